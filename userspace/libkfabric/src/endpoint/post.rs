// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posting of operations.
#![forbid(unsafe_code)]

use kfabric_uapi as abi;

use super::Endpoint;
use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::op::{submit, Batch, Local, Op, Segment, Submitted};
use crate::raw::Piece;
use crate::remote::RemoteMem;
use crate::rings::{Args, Posted};
use crate::sys;

impl Endpoint {
    /// Posts operations in order, with one system call per `KFI_SUBMIT_MAX` operations. Stops at
    /// the first operation that is refused.
    ///
    /// # Errors
    ///
    /// If the first operation is refused: its error, as for [`Endpoint::post`]. A later refusal is
    /// in [`Submitted::refused`].
    pub fn submit(&self, batch: &Batch<'_>) -> Result<Submitted> {
        let mut accepted = 0;
        if self.rings.is_some() {
            for (entry, local) in batch.entries.iter().zip(&batch.locals) {
                match self.post_entry(entry, local) {
                    Ok(()) => accepted += 1,
                    Err(e) if accepted == 0 => return Err(e),
                    Err(e) => {
                        return Ok(Submitted {
                            accepted,
                            refused: e.errno(),
                        })
                    }
                }
            }
            return Ok(Submitted {
                accepted,
                refused: None,
            });
        }
        // Memory of another device file is refused here; the kernel checks everything else.
        let own = |local: &Local<'_>| self.check(local).is_ok();
        let good = batch.locals.iter().take_while(|local| own(local)).count();
        if let (0, Some(first)) = (good, batch.locals.first()) {
            self.check(first)?;
        }
        let (entries, foreign) = batch.entries.split_at(good);
        for chunk in entries.chunks(abi::KFI_SUBMIT_MAX as usize) {
            match self.submit_entries(chunk) {
                Ok(part) => {
                    accepted += part.accepted;
                    if part.accepted < chunk.len() {
                        return Ok(Submitted {
                            accepted,
                            refused: part.refused,
                        });
                    }
                }
                Err(e) if accepted == 0 => return Err(e),
                Err(e) => {
                    return Ok(Submitted {
                        accepted,
                        refused: e.errno(),
                    })
                }
            }
        }
        Ok(Submitted {
            accepted,
            refused: (!foreign.is_empty()).then_some(Errno::EINVAL),
        })
    }

    /// Refuses operations on memory of another device file.
    #[inline]
    fn check(&self, local: &Local<'_>) -> Result<()> {
        for region in local.regions.iter().flatten() {
            self.handle.dev.owns(&region.handle)?;
        }
        Ok(())
    }

    fn submit_entries(&self, entries: &[abi::OpEntry]) -> Result<Submitted> {
        submit(&self.handle.dev, self.id(), entries)
    }

    pub(crate) fn post_entry(&self, entry: &abi::OpEntry, local: &Local<'_>) -> Result<()> {
        self.check(local)?;
        if let Some(rings) = &self.rings {
            match rings.post(entry, local) {
                Ok(Posted::Here) => return Ok(()),
                Ok(Posted::Kernel) => {}
                Err(errno) => {
                    return Err(Error::Call {
                        call: "SUBMIT",
                        object: self.id(),
                        errno,
                    })
                }
            }
        }
        self.submit_entries(std::slice::from_ref(entry)).map(|_| ())
    }

    /// Sends a message, or posts a receive, of one piece of registered memory by rings. Returns
    /// `false` if the kernel must execute the operation; then the caller posts it by
    /// [`Endpoint::post_raw`]. This function is the shortest way of a message, and makes the same
    /// checks.
    ///
    /// # Errors
    ///
    /// The conditions of [`Endpoint::post_raw`].
    #[inline]
    pub fn post_in_rings(
        &self,
        receives: bool,
        piece: Piece<'_>,
        context: u64,
        completion: bool,
    ) -> std::result::Result<bool, Errno> {
        let (Some(rings), Some(region)) = (&self.rings, piece.region) else {
            return Ok(false);
        };
        let inner = region.inner();
        if self.handle.dev.owns(&inner.handle).is_err() {
            return Err(Errno::EINVAL);
        }
        // CAST: Addresses have 64 bits.
        let base = piece.base.expose_provenance() as u64;
        let iov = abi::Iov {
            region: inner.handle.raw(),
            offset: base.checked_sub(inner.address()).ok_or(Errno::EINVAL)?,
            len: piece.len as u64,
        };
        let posted = rings.post_message(Args {
            receives,
            flags: if completion { abi::KFI_COMPLETION } else { 0 },
            context,
            data: 0,
            iov: &[iov],
            regions: &[Some(inner)],
            payload: &[],
        })?;
        Ok(matches!(posted, Posted::Here))
    }

    /// Posts one operation. The outcome is a completion.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the endpoint or a completion queue is full.
    /// - `ENOTCONN` if the endpoint is not connected.
    /// - `EACCES` if a region does not allow the use.
    /// - `EINVAL` for a range outside its region, or a region of another domain.
    /// - `EMSGSIZE` if the message is too long.
    /// - [`Error::Argument`] for a region of another device file.
    pub fn post(&self, op: &Op<'_>) -> Result<()> {
        self.post_entry(&op.entry, &op.local)
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// The conditions of [`Endpoint::post`].
    pub fn send(&self, local: Segment<'_>, context: u64) -> Result<()> {
        self.post(&Op::send(&[local]).context(context))
    }

    /// Sends one message from several segments.
    ///
    /// # Errors
    ///
    /// The conditions of [`Endpoint::post`].
    pub fn sendv(&self, local: &[Segment<'_>], context: u64) -> Result<()> {
        self.post(&Op::send(local).context(context))
    }

    /// Sends a message with completion data.
    ///
    /// # Errors
    ///
    /// The conditions of [`Endpoint::post`].
    pub fn senddata(&self, local: Segment<'_>, data: u64, context: u64) -> Result<()> {
        self.post(&Op::send(&[local]).data(data).context(context))
    }

    /// Sends a copy of `payload`, which the caller may change after the return. A success has no
    /// completion.
    ///
    /// # Errors
    ///
    /// - `EMSGSIZE` if `payload` is longer than the domain's `inject_size`.
    ///
    /// Also the conditions of [`Endpoint::post`].
    pub fn inject(&self, payload: &[u8]) -> Result<()> {
        self.post(&Op::inject_send(payload))
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// The conditions of [`Endpoint::post`].
    pub fn recv(&self, local: Segment<'_>, context: u64) -> Result<()> {
        self.post(&Op::recv(&[local]).context(context))
    }

    /// Posts a receive into several segments.
    ///
    /// # Errors
    ///
    /// The conditions of [`Endpoint::post`].
    pub fn recvv(&self, local: &[Segment<'_>], context: u64) -> Result<()> {
        self.post(&Op::recv(local).context(context))
    }

    /// Reads the peer's memory.
    ///
    /// # Errors
    ///
    /// The conditions of [`Endpoint::post`].
    pub fn read(&self, local: Segment<'_>, remote: RemoteMem, context: u64) -> Result<()> {
        self.post(&Op::read(&[local], remote).context(context))
    }

    /// Reads the peer's memory into several segments.
    ///
    /// # Errors
    ///
    /// The conditions of [`Endpoint::post`].
    pub fn readv(&self, local: &[Segment<'_>], remote: RemoteMem, context: u64) -> Result<()> {
        self.post(&Op::read(local, remote).context(context))
    }

    /// Writes the peer's memory.
    ///
    /// # Errors
    ///
    /// The conditions of [`Endpoint::post`].
    pub fn write(&self, local: Segment<'_>, remote: RemoteMem, context: u64) -> Result<()> {
        self.post(&Op::write(&[local], remote).context(context))
    }

    /// Writes the peer's memory from several segments.
    ///
    /// # Errors
    ///
    /// The conditions of [`Endpoint::post`].
    pub fn writev(&self, local: &[Segment<'_>], remote: RemoteMem, context: u64) -> Result<()> {
        self.post(&Op::write(local, remote).context(context))
    }

    /// Writes the peer's memory, and completes one of the peer's receives with `data`.
    ///
    /// # Errors
    ///
    /// The conditions of [`Endpoint::post`].
    pub fn writedata(
        &self,
        local: Segment<'_>,
        remote: RemoteMem,
        data: u64,
        context: u64,
    ) -> Result<()> {
        self.post(&Op::write(&[local], remote).data(data).context(context))
    }

    /// Cancels one posted receive with this context, which then completes with `ECANCELED`.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if no receive with this context is posted.
    /// - `EOPNOTSUPP` if the provider cannot cancel receives.
    pub fn cancel(&self, context: u64) -> Result<()> {
        if let Some(done) = self.rings.as_ref().and_then(|rings| rings.cancel(context)) {
            return done.map_err(|errno| Error::Call {
                call: "CANCEL",
                object: self.id(),
                errno,
            });
        }
        let mut arg: abi::Cancel = sys::new();
        arg.ep = self.handle.raw();
        arg.context = context;
        self.handle.dev.call(self.id(), &mut arg, &mut [])
    }
}
