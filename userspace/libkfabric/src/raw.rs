// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations on memory that is given by address, as C programs pass it: [`Endpoint::post_raw`].
//!
//! [`Endpoint::post_raw`]: crate::Endpoint::post_raw
#![forbid(unsafe_code)]

use kfabric_uapi as abi;
use kfabric_uapi::{Iov, OpEntry};

use crate::atomic::{AtomicForm, AtomicOp};
use crate::errno::Errno;
use crate::op::Local;
use crate::region::Region;
use crate::remote::RemoteMem;

/// Memory of an operation by its address: a `struct iovec` with its descriptor.
///
/// A piece of zero bytes is left out; its address and its region are ignored.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Address of the first byte.
    pub base: *const u8,
    /// Length in bytes.
    pub len: usize,
    /// The region that contains the bytes; `None` for memory that is not registered.
    pub region: Option<&'a Region>,
}

impl<'a> Piece<'a> {
    /// A piece of registered memory.
    #[inline]
    pub fn of(region: &'a Region, base: *const u8, len: usize) -> Self {
        let region = Some(region);
        Self { base, len, region }
    }

    /// A piece of memory that is not registered.
    #[inline]
    pub fn unregistered(base: *const u8, len: usize) -> Self {
        let region = None;
        Self { base, len, region }
    }
}

/// An operation on memory that is given by address. [`Endpoint::post_raw`] posts it.
///
/// [`Endpoint::post_raw`]: crate::Endpoint::post_raw
#[derive(Clone, Copy, Debug)]
pub struct RawOp<'a> {
    pub(crate) entry: OpEntry,
    /// Local memory: source or target, or the payload of an injected operation.
    pub(crate) local: &'a [Piece<'a>],
    /// Operands and comparands of an atomic.
    pub(crate) values: [&'a [Piece<'a>]; 2],
}

impl<'a> RawOp<'a> {
    #[inline]
    fn new(op: u32, local: &'a [Piece<'a>], remote: RemoteMem) -> Self {
        let entry = OpEntry {
            op,
            remote_addr: remote.addr,
            key: remote.key,
            ..OpEntry::default()
        };
        Self {
            entry,
            local,
            values: [&[]; 2],
        }
    }

    /// Sends a message.
    #[inline]
    pub fn send(local: &'a [Piece<'a>]) -> Self {
        Self::new(abi::KFI_OP_SEND, local, RemoteMem::default())
    }

    /// Posts a receive.
    #[inline]
    pub fn recv(local: &'a [Piece<'a>]) -> Self {
        Self::new(abi::KFI_OP_RECV, local, RemoteMem::default())
    }

    /// Reads a peer's memory. The local memory may be unregistered as for
    /// [`Op::read_into`](crate::Op::read_into).
    #[inline]
    pub fn read(local: &'a [Piece<'a>], remote: RemoteMem) -> Self {
        Self::new(abi::KFI_OP_READ, local, remote)
    }

    /// Writes a peer's memory. The local memory may be unregistered as for
    /// [`Op::read_into`](crate::Op::read_into).
    #[inline]
    pub fn write(local: &'a [Piece<'a>], remote: RemoteMem) -> Self {
        Self::new(abi::KFI_OP_WRITE, local, remote)
    }

    /// Changes values of a peer. `datatype` is a `KFI_INT*` or `KFI_UINT*` constant. `operands` and
    /// `comparands` are copied when the operation is posted and need no region; `comparands` is
    /// empty except in form [`AtomicForm::Compare`]. `result` is registered memory, empty in form
    /// [`AtomicForm::Base`].
    pub fn atomic(
        form: AtomicForm,
        op: AtomicOp,
        datatype: u32,
        operands: &'a [Piece<'a>],
        comparands: &'a [Piece<'a>],
        result: &'a [Piece<'a>],
        remote: RemoteMem,
    ) -> Self {
        let mut all = Self::new(form as u32, result, remote);
        all.entry.atomic_op = op as u32;
        all.entry.datatype = datatype;
        all.values = [operands, comparands];
        all
    }

    /// Copies the local memory of a send or a write when the operation is posted. The memory needs
    /// no region. For an atomic without a result, whose operands are always copied. A success has no completion, except on request ([`RawOp::completion`]). A failure
    /// has an entry with the operation's context.
    #[must_use]
    #[inline]
    pub fn inject(mut self) -> Self {
        self.entry.flags |= abi::KFI_INJECT;
        self
    }

    /// Sets the context, which the completion carries.
    #[must_use]
    #[inline]
    pub fn context(mut self, context: u64) -> Self {
        self.entry.context = context;
        self
    }

    /// Adds completion data for the peer. For a write, the peer must have a receive posted.
    #[must_use]
    #[inline]
    pub fn data(mut self, data: u64) -> Self {
        self.entry.flags |= abi::KFI_REMOTE_CQ_DATA;
        self.entry.data = data;
        self
    }

    /// Requests a completion: from a queue that is bound selectively, or for an injected operation.
    #[must_use]
    #[inline]
    pub fn completion(mut self) -> Self {
        self.entry.flags |= abi::KFI_COMPLETION;
        self
    }

    /// Completes a write only when its bytes are visible; see [`Op::visible`](crate::Op::visible).
    #[must_use]
    #[inline]
    pub fn visible(mut self) -> Self {
        self.entry.flags |= abi::KFI_DELIVERY_COMPLETE;
        self
    }

    /// Completes a write only when its bytes are durable; see [`Op::durable`](crate::Op::durable).
    #[must_use]
    #[inline]
    pub fn durable(mut self) -> Self {
        self.entry.flags |= abi::KFI_COMMIT_COMPLETE;
        self
    }

    /// Delays the operation until all earlier operations have completed.
    #[must_use]
    #[inline]
    pub fn fence(mut self) -> Self {
        self.entry.flags |= abi::KFI_FENCE;
        self
    }

    /// Returns whether the operation's local memory is a payload to inject. That of an atomic is its
    /// result; its operands are copied in any case.
    #[inline]
    pub(crate) fn is_injected(&self) -> bool {
        let payload = matches!(self.entry.op, abi::KFI_OP_SEND | abi::KFI_OP_WRITE);
        payload && self.entry.flags & abi::KFI_INJECT != 0
    }

    /// The pieces whose bytes travel with the call: a payload to inject, or operands and comparands.
    #[inline]
    pub(crate) fn carried(&self) -> [&'a [Piece<'a>]; 2] {
        match self.is_injected() {
            true => [self.local, &[]],
            false => self.values,
        }
    }

    /// Fills in the local memory that the kernel finds by region: `entry` and the regions of
    /// `named`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if a piece begins before its region, there are more than `KFI_IOV_MAX` pieces, or a
    ///   piece without a region is not the only piece of a read or a write.
    #[inline]
    pub(crate) fn place(&self, entry: &mut OpEntry, named: &mut Local<'a>) -> Result<(), Errno> {
        if self.is_injected() {
            return Ok(());
        }
        let mut count = 0;
        for piece in self.local.iter().filter(|piece| piece.len != 0) {
            let (Some(iov), Some(place)) = (entry.iov.get_mut(count), named.regions.get_mut(count))
            else {
                return Err(Errno::EINVAL);
            };
            // CAST: Addresses have 64 bits.
            let base = piece.base.expose_provenance() as u64;
            let (region, offset) = match piece.region {
                Some(region) => {
                    *place = Some(region.inner());
                    let offset = base.checked_sub(region.address()).ok_or(Errno::EINVAL)?;
                    (region.inner().handle.raw(), offset)
                }
                // The kernel refuses unregistered memory that is not the only piece.
                None if matches!(self.entry.op, abi::KFI_OP_READ | abi::KFI_OP_WRITE) => {
                    (abi::KFI_UNREGISTERED, base)
                }
                None => return Err(Errno::EINVAL),
            };
            *iov = Iov {
                region,
                offset,
                len: piece.len as u64,
            };
            count += 1;
        }
        // CAST: At most `KFI_IOV_MAX`.
        entry.iov_count = count as u32;
        Ok(())
    }
}
