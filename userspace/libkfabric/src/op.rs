// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations, batches of operations, and the call that posts them.
#![forbid(unsafe_code)]

use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

use kfabric_uapi as abi;
use kfabric_uapi::{Iov, OpEntry};
use zerocopy::IntoBytes;

use crate::atomic::{AtomicForm, AtomicOp, Integer};
use crate::errno::Errno;
use crate::error::Result;
use crate::handle::Shared;
use crate::object::ObjectId;
use crate::region::inner::RegionInner;
use crate::remote::RemoteMem;
use crate::sys::{self, Buf};

/// A part of a region, as local memory of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    iov: Iov,
    /// `None` for memory that is not registered.
    region: Option<&'a Arc<RegionInner>>,
}

impl<'a> Segment<'a> {
    #[inline]
    pub(crate) fn new(inner: &'a Arc<RegionInner>, range: Range<usize>) -> Self {
        Self::of(inner.handle.raw(), range, Some(inner))
    }

    #[inline]
    fn of(handle: u64, range: Range<usize>, region: Option<&'a Arc<RegionInner>>) -> Self {
        let iov = Iov {
            region: handle,
            offset: range.start as u64,
            len: range.len() as u64,
        };
        Self { iov, region }
    }

    fn unregistered(at: usize, len: usize) -> Self {
        Self::of(abi::KFI_UNREGISTERED, at..at + len, None)
    }
}

/// Objects of this process that an operation uses, and that its entry names by handle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Local<'a> {
    /// The regions of the segments.
    pub(crate) regions: [Option<&'a Arc<RegionInner>>; abi::KFI_IOV_MAX],
    /// The bytes to inject.
    pub(crate) payload: &'a [u8],
}

/// An operation: the arguments of `fi_sendmsg`, `fi_recvmsg`, `fi_readmsg`, `fi_writemsg` and
/// `fi_atomicmsg`.
///
/// ```no_run
/// # use libkfabric as kfabric;
/// # fn f(ep: &kfabric::Endpoint, region: &kfabric::Region, peer: kfabric::RemoteMem) -> kfabric::Result<()> {
/// use kfabric::Op;
///
/// ep.post(&Op::write(&[region.segment(0..100), region.segment(200..300)], peer).context(7).fence())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Op<'a> {
    pub(crate) entry: OpEntry,
    pub(crate) local: Local<'a>,
}

impl<'a> Op<'a> {
    #[inline]
    fn new(op: u32, local: &[Segment<'a>], remote: RemoteMem) -> Self {
        let mut entry = OpEntry {
            op,
            remote_addr: remote.addr,
            key: remote.key,
            ..OpEntry::default()
        };
        // The kernel refuses too many segments: it knows the endpoint's limit.
        entry.iov_count = u32::try_from(local.len()).unwrap_or(u32::MAX);
        let mut named = Local::default();
        let places = entry.iov.iter_mut().zip(&mut named.regions);
        for ((to, region), from) in places.zip(local) {
            *to = from.iov;
            *region = from.region;
        }
        Self {
            entry,
            local: named,
        }
    }

    /// Sends a message.
    #[inline]
    pub fn send(local: &[Segment<'a>]) -> Self {
        Self::new(abi::KFI_OP_SEND, local, RemoteMem::default())
    }

    /// Posts a receive.
    #[inline]
    pub fn recv(local: &[Segment<'a>]) -> Self {
        Self::new(abi::KFI_OP_RECV, local, RemoteMem::default())
    }

    /// Reads a peer's memory.
    pub fn read(local: &[Segment<'a>], remote: RemoteMem) -> Self {
        Self::new(abi::KFI_OP_READ, local, remote)
    }

    /// Writes a peer's memory.
    pub fn write(local: &[Segment<'a>], remote: RemoteMem) -> Self {
        Self::new(abi::KFI_OP_WRITE, local, remote)
    }

    /// Makes earlier writes of this endpoint to `len` bytes of a peer's memory durable, and bytes that
    /// its earlier reads have returned from there (`KFI_OP_COMMIT`). One commit of a range costs less
    /// than as many writes with [`Op::durable`]. With [`Op::data`] the peer's completion follows the
    /// commit.
    ///
    /// Posting fails where [`Domain::durable`](crate::Domain::durable) is
    /// [`Reach::No`](crate::Reach). The commit completes with `EOPNOTSUPP` if the memory is neither
    /// [`Persistence::Adr`](crate::Persistence) nor `Eadr`, with `EKEYREVOKED` if the key has ended, and with
    /// `EACCES` if the key does not permit a write to the range; the connection stays, but ends after
    /// refusals with eight keys. With [`Op::data`], an endpoint with rings refuses a commit with
    /// `EOPNOTSUPP`.
    pub fn commit(remote: RemoteMem, len: usize) -> Self {
        let mut all = Self::new(abi::KFI_OP_COMMIT, &[], remote);
        all.entry.inject_len = len as u64;
        all
    }

    /// Reads a peer's memory into memory that is not registered. The bytes are there when posting
    /// returns; a completion follows as for any operation. Needs a provider with
    /// [`Caps::UNREGISTERED_RMA`](crate::Caps::UNREGISTERED_RMA).
    ///
    /// Posting fails with `EOPNOTSUPP` on other providers, and with `EAGAIN` while earlier
    /// operations are outstanding.
    pub fn read_into(local: &'a mut [u8], remote: RemoteMem) -> Self {
        let at = local.as_mut_ptr().expose_provenance();
        Self::read(&[Segment::unregistered(at, local.len())], remote)
    }

    /// Writes a peer's memory from memory that is not registered. Conditions as for
    /// [`Op::read_into`].
    pub fn write_from(local: &'a [u8], remote: RemoteMem) -> Self {
        let at = local.as_ptr().expose_provenance();
        Self::write(&[Segment::unregistered(at, local.len())], remote)
    }

    fn carry<T>(mut self, payload: &'a [T]) -> Self {
        self.entry.inject = payload.as_ptr().expose_provenance() as u64;
        self.entry.inject_len = size_of_val(payload) as u64;
        self
    }

    fn inject(mut self, payload: &'a [u8]) -> Self {
        self.entry.flags |= abi::KFI_INJECT;
        self.local.payload = payload;
        self.carry(payload)
    }

    fn atomic_of<T: Integer>(
        form: AtomicForm,
        op: AtomicOp,
        values: &'a [T],
        result: &[Segment<'a>],
        remote: RemoteMem,
    ) -> Self {
        let mut all = Self::new(form as u32, result, remote).carry(values);
        all.entry.atomic_op = op as u32;
        all.entry.datatype = T::DATATYPE;
        all
    }

    /// Changes values of a peer, one per operand (`fi_atomic`). The operands are copied when the
    /// operation is posted. [`Domain::query_atomic`](crate::Domain::query_atomic) returns whether a
    /// provider supports `op`, and for how many values at a time. The key must allow
    /// [`Access::ATOMIC`](crate::Access::ATOMIC).
    pub fn atomic<T: Integer>(op: AtomicOp, operands: &'a [T], remote: RemoteMem) -> Self {
        Self::atomic_of(AtomicForm::Base, op, operands, &[], remote)
    }

    /// Like [`Op::atomic`], and fetches the previous values into `result`, which has the same
    /// length as the operands (`fi_fetch_atomic`).
    pub fn fetch_atomic<T: Integer>(
        op: AtomicOp,
        operands: &'a [T],
        result: &[Segment<'a>],
        remote: RemoteMem,
    ) -> Self {
        Self::atomic_of(AtomicForm::Fetch, op, operands, result, remote)
    }

    /// Like [`Op::fetch_atomic`], with comparands (`fi_compare_atomic`). `values` holds the
    /// operands, followed by as many comparands.
    pub fn compare_atomic<T: Integer>(
        op: AtomicOp,
        values: &'a [T],
        result: &[Segment<'a>],
        remote: RemoteMem,
    ) -> Self {
        Self::atomic_of(AtomicForm::Compare, op, values, result, remote)
    }

    /// Sends a copy of `payload`. A success has no completion (`fi_inject`).
    pub fn inject_send(payload: &'a [u8]) -> Self {
        Self::send(&[]).inject(payload)
    }

    /// Writes a copy of `payload`. A success has no completion (`fi_inject_write`).
    pub fn inject_write(payload: &'a [u8], remote: RemoteMem) -> Self {
        Self::write(&[], remote).inject(payload)
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
    pub fn data(mut self, data: u64) -> Self {
        self.entry.flags |= abi::KFI_REMOTE_CQ_DATA;
        self.entry.data = data;
        self
    }

    /// Requests a completion from a queue that is bound selectively.
    #[must_use]
    pub fn completion(mut self) -> Self {
        self.entry.flags |= abi::KFI_COMPLETION;
        self
    }

    /// Completes a write only when its bytes are visible to the target's processors
    /// (`FI_DELIVERY_COMPLETE`). A send of an endpoint with rings completes when the peer has taken the
    /// message. Posting fails with `EOPNOTSUPP` for any other operation, and where
    /// [`Domain::visible`](crate::Domain::visible) is [`Reach::No`](crate::Reach).
    #[must_use]
    pub fn visible(mut self) -> Self {
        self.entry.flags |= abi::KFI_DELIVERY_COMPLETE;
        self
    }

    /// Completes a write only when its bytes are durable (`FI_COMMIT_COMPLETE`): they survive a
    /// power failure of the target. Posting fails with `EOPNOTSUPP` for any other operation, and
    /// where [`Domain::durable`](crate::Domain::durable) is [`Reach::No`](crate::Reach). If the
    /// target's memory is neither [`Persistence::Adr`](crate::Persistence) nor `Eadr`, the write completes with
    /// `EOPNOTSUPP`; over kverbs, bytes may have changed. With [`Op::data`], an endpoint with rings refuses it
    /// with `EOPNOTSUPP`.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.entry.flags |= abi::KFI_COMMIT_COMPLETE;
        self
    }

    /// Delays the operation until all earlier operations have completed.
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.entry.flags |= abi::KFI_FENCE;
        self
    }
}

/// Operations that are posted together, with few system calls.
#[derive(Clone, Debug, Default)]
pub struct Batch<'a> {
    pub(crate) entries: Vec<OpEntry>,
    /// The local memory of each entry.
    pub(crate) locals: Vec<Local<'a>>,
}

impl<'a> Batch<'a> {
    /// Makes an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an operation.
    pub fn push(&mut self, op: Op<'a>) -> &mut Self {
        self.entries.push(op.entry);
        self.locals.push(op.local);
        self
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the batch holds no operation.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all operations.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.locals.clear();
    }

    /// Removes the first `count` operations, for example those that were accepted.
    pub fn remove_first(&mut self, count: usize) {
        let count = count.min(self.entries.len());
        self.entries.drain(..count);
        self.locals.drain(..count);
    }
}

impl<'a> Extend<Op<'a>> for Batch<'a> {
    fn extend<I: IntoIterator<Item = Op<'a>>>(&mut self, ops: I) {
        for op in ops {
            self.push(op);
        }
    }
}

impl<'a> FromIterator<Op<'a>> for Batch<'a> {
    fn from_iter<I: IntoIterator<Item = Op<'a>>>(ops: I) -> Self {
        let mut batch = Self::new();
        batch.extend(ops);
        batch
    }
}

/// The outcome of posting a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Number of operations accepted; they are the first ones.
    pub accepted: usize,
    /// The error of the next operation. `EAGAIN` if the endpoint or a completion queue is full.
    pub refused: Option<Errno>,
}

/// Posts operations with one `KFI_IOC_SUBMIT` call.
pub(crate) fn submit(dev: &Shared, id: ObjectId, entries: &[abi::OpEntry]) -> Result<Submitted> {
    let mut arg: abi::Submit = sys::new();
    arg.ep = id.handle;
    arg.count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    arg.entry_size = u32::try_from(size_of::<abi::OpEntry>()).unwrap_or(u32::MAX);
    let mut bufs = [Buf::input(offset_of!(abi::Submit, ops), entries.as_bytes())];
    dev.call(id, &mut arg, &mut bufs)?;
    let refused = (arg.err != 0).then(|| Errno(i32::try_from(arg.err).unwrap_or(libc::EIO)));
    Ok(Submitted {
        accepted: arg.done as usize,
        refused,
    })
}
