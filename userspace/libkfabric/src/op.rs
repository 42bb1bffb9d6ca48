// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations and batches of them.
#![forbid(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use kfabric_uapi as abi;
use kfabric_uapi::{Iov, OpEntry};

use crate::atomic::{AtomicForm, AtomicOp, Integer};
use crate::errno::Errno;
use crate::region::RegionInner;

/// Memory of a peer: where it is and the key that opens it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteMem {
    /// Address of its first byte.
    pub addr: u64,
    /// The key.
    pub key: u64,
}

impl RemoteMem {
    /// Bytes of [`RemoteMem::to_raw`].
    pub const RAW_LEN: usize = 16;

    /// What a peer needs, as bytes to hand over (`fi_mr_raw_attr(3)`): address and key, the most
    /// significant byte first. [`RemoteMem::from_raw`] takes them, on a machine of any kind.
    pub fn to_raw(self) -> [u8; Self::RAW_LEN] {
        (u128::from(self.addr) << 64 | u128::from(self.key)).to_be_bytes()
    }

    /// What [`RemoteMem::to_raw`] gave (`fi_mr_map_raw(3)`). There is nothing to unmap: kfabric's
    /// keys are of 64 bits at most.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument): not so many bytes.
    pub fn from_raw(raw: &[u8]) -> crate::Result<Self> {
        let raw: [u8; Self::RAW_LEN] = raw.try_into().map_err(|_| crate::Error::Argument {
            what: "raw key",
            why: format!("{} bytes, not {}", raw.len(), Self::RAW_LEN),
        })?;
        let both = u128::from_be_bytes(raw);
        Ok(Self {
            // CAST: One half each.
            addr: (both >> 64) as u64,
            key: both as u64,
        })
    }

    /// The same, `bytes` further on.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Self {
        Self {
            addr: self.addr.wrapping_add(bytes),
            ..self
        }
    }
}

/// A part of a region, as an operation's local memory.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    iov: Iov,
    /// None: it is not registered.
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

/// What an operation uses of this process, which its entry only names.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Local<'a> {
    /// The regions of its pieces.
    pub(crate) regions: [Option<&'a Arc<RegionInner>>; abi::KFI_IOV_MAX],
    /// What is injected.
    pub(crate) payload: &'a [u8],
}

/// An operation: what `fi_sendmsg`, `fi_recvmsg`, `fi_readmsg`, `fi_writemsg` and `fi_atomicmsg`
/// take.
///
/// ```no_run
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
        // One too many is the kernel's to refuse, with the endpoint's own limit.
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

    /// Reads a peer's memory into memory that is not registered: it is there when posting returns, and
    /// a completion comes as with any other. For providers with
    /// [`Caps::UNREGISTERED_RMA`](crate::Caps::UNREGISTERED_RMA), others say `EOPNOTSUPP`. `EAGAIN`:
    /// operations before it are not over yet.
    pub fn read_into(local: &'a mut [u8], remote: RemoteMem) -> Self {
        let at = local.as_mut_ptr().expose_provenance();
        Self::read(&[Segment::unregistered(at, local.len())], remote)
    }

    /// As [`Op::read_into`], the other way: writes a peer's memory from memory that is not registered.
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

    /// Changes a peer's values, one for each operand (`fi_atomic`). The operands are taken at once.
    /// Which operations there are, and how many values at a time,
    /// [`Domain::query_atomic`](crate::Domain::query_atomic) says; the key has to allow
    /// [`Access::ATOMIC`](crate::Access::ATOMIC).
    pub fn atomic<T: Integer>(op: AtomicOp, operands: &'a [T], remote: RemoteMem) -> Self {
        Self::atomic_of(AtomicForm::Base, op, operands, &[], remote)
    }

    /// As [`Op::atomic`]; what was there goes to `result`, of as many bytes (`fi_fetch_atomic`).
    pub fn fetch_atomic<T: Integer>(
        op: AtomicOp,
        operands: &'a [T],
        result: &[Segment<'a>],
        remote: RemoteMem,
    ) -> Self {
        Self::atomic_of(AtomicForm::Fetch, op, operands, result, remote)
    }

    /// As [`Op::fetch_atomic`], with values to compare with (`fi_compare_atomic`): they lie in
    /// `values` behind the operands, and are as many.
    pub fn compare_atomic<T: Integer>(
        op: AtomicOp,
        values: &'a [T],
        result: &[Segment<'a>],
        remote: RemoteMem,
    ) -> Self {
        Self::atomic_of(AtomicForm::Compare, op, values, result, remote)
    }

    /// Sends bytes that are taken at once, without a completion (`fi_inject`).
    pub fn inject_send(payload: &'a [u8]) -> Self {
        Self::send(&[]).inject(payload)
    }

    /// Writes bytes that are taken at once, without a completion (`fi_inject_write`).
    pub fn inject_write(payload: &'a [u8], remote: RemoteMem) -> Self {
        Self::write(&[], remote).inject(payload)
    }

    /// The value to find in its completion.
    #[must_use]
    #[inline]
    pub fn context(mut self, context: u64) -> Self {
        self.entry.context = context;
        self
    }

    /// Completion data for the peer. For a write, the peer must have a receive posted.
    #[must_use]
    pub fn data(mut self, data: u64) -> Self {
        self.entry.flags |= abi::KFI_REMOTE_CQ_DATA;
        self.entry.data = data;
        self
    }

    /// Asks for a completion where the queue is bound selectively.
    #[must_use]
    pub fn completion(mut self) -> Self {
        self.entry.flags |= abi::KFI_COMPLETION;
        self
    }

    /// Starts only when all earlier operations are done.
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.entry.flags |= abi::KFI_FENCE;
        self
    }
}

/// Operations gathered to go in few calls.
#[derive(Clone, Debug, Default)]
pub struct Batch<'a> {
    pub(crate) entries: Vec<OpEntry>,
    /// Of each.
    pub(crate) locals: Vec<Local<'a>>,
}

impl<'a> Batch<'a> {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one.
    pub fn push(&mut self, op: Op<'a>) -> &mut Self {
        self.entries.push(op.entry);
        self.locals.push(op.local);
        self
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.locals.clear();
    }

    /// Forgets the first `count`: those that were accepted.
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

/// How far a batch came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Operations accepted: the first so many.
    pub accepted: usize,
    /// Why the next one was refused; `EAGAIN`: the endpoint or a completion queue is full.
    pub refused: Option<Errno>,
}
