// SPDX-License-Identifier: GPL-2.0
//! One operation on its way: what the provider is told, and the token it answers with.
//!
//! A token is the promise of P9 as a type: it is made only once room for its completion is
//! reserved, it holds the memory it touches, and it is consumed by [`OpToken::complete`]. One that
//! is dropped instead completes with `ECANCELED`, so no path can lose it.

use core::ptr::NonNull;
use kernel::{
    bindings,
    prelude::*,
    sync::Arc, //
};

use crate::{
    ep::Shared,
    fabric::Domain,
    provider::RegionOps,
    pure::atomic::{
        Datatype,
        Form,
        Op, //
    },
    region::{
        Region,
        RegionGuard, //
    },
    uapi::*,
};

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Sends a message.
    Send,
    /// Takes a message.
    Recv,
    /// Reads remote memory into local.
    Read,
    /// Writes local memory to remote.
    Write,
    /// Changes remote values.
    Atomic,
    /// Changes remote values, or looks at them; what was there goes to local memory.
    Fetch,
}

/// What an atomic operation does.
#[derive(Clone, Copy)]
pub struct AtomicDesc<'a> {
    /// What it makes of a value.
    pub op: Op,
    /// What the values are.
    pub ty: Datatype,
    /// The operands, in the machine's byte order; none for [`Op::Read`].
    pub operands: &'a [u8],
    /// As many to compare with, if `op` does.
    pub compare: &'a [u8],
}

/// What a provider is to do. Local memory is in the token ([`OpToken::segs`]).
#[derive(Clone, Copy)]
pub struct OpDesc<'a> {
    /// The kind.
    pub kind: OpKind,
    /// Completion data for the peer.
    pub imm: Option<u32>,
    /// Wait for all earlier operations first.
    pub fence: bool,
    /// Payload to take before `post` returns; the token then has no segments.
    pub inject: Option<&'a [u8]>,
    /// For atomics, and only for those: what to do, to be taken before `post` returns.
    pub atomic: Option<AtomicDesc<'a>>,
    /// For one-sided operations: the peer's address.
    pub remote_addr: u64,
    /// For one-sided operations: the peer's key.
    pub key: u64,
    /// Bytes in all segments, or of the injected payload; of an atomic, of the values that it is
    /// about.
    pub len: u64,
    /// The caller is a task that holds no lock: `post` may take as long as the operation does, and
    /// let others run meanwhile.
    pub may_sleep: bool,
}

/// How an operation ended.
#[derive(Clone, Copy, Default)]
pub struct Outcome {
    /// 0, or a positive errno.
    pub err: u32,
    /// The provider's own code.
    pub prov_errno: u32,
    /// For receives: bytes that came. Otherwise ignored.
    pub len: u64,
    /// For receives: the peer's completion data.
    pub imm: Option<u32>,
    /// For receives: it was a peer's write with data that used the receive up.
    pub remote_write: bool,
}

/// Local memory of an operation.
pub struct TokenSeg {
    region: RegionGuard,
    /// First byte, counted from the region's start.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl TokenSeg {
    /// No memory.
    const NONE: Self = Self {
        region: RegionGuard::NONE,
        offset: 0,
        len: 0,
    };

    /// The provider's part of the region.
    pub fn region(&self) -> Option<&Arc<dyn RegionOps>> {
        self.region.ops()
    }
}

/// A piece of the kernel's memory that is lent to one operation, as a `struct bio_vec` names it.
#[repr(C)]
pub struct LentPiece {
    /// Page that `offset` counts from; more pages follow it contiguously.
    pub page: *mut bindings::page,
    /// Bytes from that page's start.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// The provider's: the device's address of it, while the operation is on its way.
    pub mapped: u64,
}

/// Pieces that are lent to one operation.
///
/// # Invariants
///
/// `list` points to `count` pieces, which with their pages stay, and are nobody else's to look at,
/// until the operation is over.
struct Lent {
    list: NonNull<LentPiece>,
    count: usize,
}

// SAFETY: By the type invariant whoever has it has the pieces, from any thread.
unsafe impl Send for Lent {}
// SAFETY: With a shared reference pieces are only read.
unsafe impl Sync for Lent {}

impl Lent {
    fn len(&self) -> u64 {
        self.pieces().iter().map(|piece| u64::from(piece.len)).sum()
    }

    fn pieces(&self) -> &[LentPiece] {
        // SAFETY: By the type invariant.
        unsafe { core::slice::from_raw_parts(self.list.as_ptr(), self.count) }
    }

    fn pieces_mut(&mut self) -> &mut [LentPiece] {
        // SAFETY: By the type invariant.
        unsafe { core::slice::from_raw_parts_mut(self.list.as_ptr(), self.count) }
    }
}

/// Memory of the task that posts, by its own address.
#[derive(Clone, Copy)]
pub struct Unregistered {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

/// What local memory is.
enum Local {
    Regions {
        /// As many pieces are meant; the others have no region.
        count: u8,
        pieces: [TokenSeg; KFI_IOV_MAX],
    },
    Lent(Lent),
    Task(Unregistered),
}

/// Local memory of an operation that a consumer wants: up to `KFI_IOV_MAX` pieces of regions; or the
/// kernel's own memory, or a program's, which need none.
pub struct Segs(Local);

impl Default for Segs {
    #[inline(always)]
    fn default() -> Self {
        Self::new()
    }
}

impl Segs {
    // As a constant it is written where it is to be; else the compiler copies it there.
    const NONE: Self = Self(Local::Regions {
        count: 0,
        pieces: [TokenSeg::NONE; KFI_IOV_MAX],
    });

    /// None.
    #[inline(always)]
    pub fn new() -> Self {
        Self::NONE
    }

    /// Memory of the kernel's that is not registered, for one read or write: `count` pieces. What the
    /// provider does for it, it does when the operation is posted, without an allocation.
    ///
    /// # Safety
    ///
    /// `list` points to `count` pieces of the kernel's memory map, which may be written to if the
    /// operation reads. Pieces and pages stay, and nobody looks at the pieces, until the operation
    /// has completed, or was refused.
    pub unsafe fn lend(list: NonNull<LentPiece>, count: usize) -> Self {
        // INVARIANT: The caller's promise.
        Self(Local::Lent(Lent { list, count }))
    }

    /// Memory of the task that posts, for one read or write that is over when posting it is.
    pub(crate) fn unregistered(addr: u64, len: u64) -> Self {
        Self(Local::Task(Unregistered { addr, len }))
    }

    /// The task's own memory, if that is what it is.
    #[inline]
    pub(crate) fn task(&self) -> Option<Unregistered> {
        match self.0 {
            Local::Task(memory) => Some(memory),
            _ => None,
        }
    }

    #[inline]
    fn lent(&self) -> &[LentPiece] {
        match &self.0 {
            Local::Lent(lent) => lent.pieces(),
            _ => &[],
        }
    }

    /// Whether there is memory that is lent.
    #[inline]
    pub(crate) fn has_lent(&self) -> bool {
        matches!(self.0, Local::Lent(_))
    }

    /// Bytes of the longest piece that is lent.
    pub(crate) fn longest_lent(&self) -> u32 {
        let lent = self.lent().iter().map(|piece| piece.len);
        lent.max().unwrap_or(0)
    }

    /// Adds [offset, offset + len) of `region`, for an operation of `kind`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not inside the region, or too many pieces, or it is memory that is not a region's.
    /// `EACCES`: the region is not registered for it.
    #[inline]
    pub fn push(&mut self, kind: OpKind, region: Arc<Region>, offset: u64, len: u64) -> Result {
        #[cfg(not(kfabric_seed_bug = "double-fetch"))]
        region.check(kind, offset, len)?;
        #[cfg(kfabric_seed_bug = "double-fetch")]
        let _ = kind;
        let Local::Regions { count, pieces } = &mut self.0 else {
            return Err(EINVAL);
        };
        let place = pieces.get_mut(usize::from(*count)).ok_or(EINVAL)?;
        *place = TokenSeg {
            region: RegionGuard::new(region),
            // CAST: Inside the region, whose length is a `usize`.
            offset: offset as usize,
            len: len as usize,
        };
        *count += 1;
        Ok(())
    }

    /// Bytes of all pieces.
    #[inline]
    pub fn len(&self) -> u64 {
        match &self.0 {
            Local::Regions { .. } => self.regions().iter().map(|seg| seg.len as u64).sum(),
            Local::Lent(lent) => lent.len(),
            Local::Task(memory) => memory.len,
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Local::Regions { count: 0, .. })
    }

    /// How many pieces of regions there are.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        match &self.0 {
            Local::Regions { count, .. } => usize::from(*count),
            _ => 0,
        }
    }

    /// Bytes of all pieces, and whether those of regions are all of `domain`'s.
    #[inline(always)]
    pub(crate) fn measure(&self, domain: &Arc<Domain>) -> (u64, bool) {
        if !matches!(self.0, Local::Regions { .. }) {
            return (self.len(), true);
        }
        let (mut len, mut inside) = (0, true);
        for seg in self.regions() {
            len += seg.len as u64;
            inside &= seg.region.in_domain(domain);
        }
        (len, inside)
    }

    /// The pieces of regions.
    #[inline]
    fn regions(&self) -> &[TokenSeg] {
        match &self.0 {
            Local::Regions { count, pieces } => {
                pieces.get(..usize::from(*count)).unwrap_or_default()
            }
            _ => &[],
        }
    }
}

/// An accepted operation.
pub struct OpToken {
    ep: Arc<Shared>,
    segs: Segs,
    kind: OpKind,
    context: u64,
    /// Bytes that are not in local memory: those that are injected, or values.
    apart: u32,
    /// A success is to have an entry too.
    wanted: bool,
    done: bool,
}

// It goes into a provider's slot and out again. What is longer the compiler copies by a call.
const _: () = assert!(size_of::<OpToken>() <= 128);

impl OpToken {
    /// One of an operation for which [`Shared::reserve`] has reserved what the completion needs. It is
    /// large, and made where it stays.
    #[inline(always)]
    pub(crate) fn reserved(
        ep: &Arc<Shared>,
        segs: Segs,
        kind: OpKind,
        context: u64,
        apart: u32,
        wanted: bool,
    ) -> Self {
        Self {
            ep: ep.clone(),
            segs,
            kind,
            context,
            apart,
            wanted,
            done: false,
        }
    }

    /// The local memory.
    #[inline]
    pub fn segs(&self) -> impl Iterator<Item = &TokenSeg> {
        self.segs.regions().iter()
    }

    /// The local memory, if that is one piece of a region.
    #[inline]
    pub fn only_seg(&self) -> Option<&TokenSeg> {
        match self.segs.regions() {
            [seg] => Some(seg),
            _ => None,
        }
    }

    /// Whether there is memory that is lent.
    #[inline]
    pub fn has_lent(&self) -> bool {
        self.segs.has_lent()
    }

    /// The local memory that is lent, beside [`OpToken::segs`].
    #[inline]
    pub fn lent(&self) -> &[LentPiece] {
        self.segs.lent()
    }

    /// As [`OpToken::lent`], for [`LentPiece::mapped`].
    pub fn lent_mut(&mut self) -> &mut [LentPiece] {
        match &mut self.segs.0 {
            Local::Lent(lent) => lent.pieces_mut(),
            _ => &mut [],
        }
    }

    /// The local memory if it is of the task that posts, and instead of [`OpToken::segs`]. Whoever
    /// takes the operation copies it before posting returns, and never in another task.
    pub fn unregistered(&self) -> Option<Unregistered> {
        self.segs.task()
    }

    /// The consumer's value.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// Its kind.
    pub fn kind(&self) -> OpKind {
        self.kind
    }

    /// Bytes of local memory, or of an injected payload.
    #[inline]
    pub fn len(&self) -> u64 {
        self.segs.len() + u64::from(self.apart)
    }

    /// Whether it moves no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends it without a completion: it was not accepted after all.
    pub(crate) fn refuse(mut self) {
        self.done = true;
        self.ep.unreserve(self.kind);
    }

    /// It is dropped by whoever should have completed it.
    #[cold]
    #[inline(never)]
    fn lose(&mut self) {
        let outcome = Outcome {
            err: bindings::ECANCELED,
            ..Outcome::default()
        };
        self.finish(outcome, false);
    }

    /// Completes it. Any context.
    pub fn complete(mut self, outcome: Outcome) {
        self.finish(outcome, false)
    }

    /// As [`OpToken::complete`], in a task that holds no lock: who is told of it may sleep.
    pub fn complete_sleeping(mut self, outcome: Outcome) {
        self.finish(outcome, true)
    }

    #[inline]
    fn finish(&mut self, outcome: Outcome, may_sleep: bool) {
        self.done = true;
        let recv = self.kind == OpKind::Recv;
        let mut flags = match self.kind {
            OpKind::Send => KFI_MSG | KFI_SEND,
            OpKind::Recv if outcome.remote_write => KFI_RMA | KFI_REMOTE_WRITE,
            OpKind::Recv => KFI_MSG | KFI_RECV,
            OpKind::Read => KFI_RMA | KFI_READ,
            OpKind::Write => KFI_RMA | KFI_WRITE,
            OpKind::Atomic => KFI_ATOMIC | KFI_WRITE,
            OpKind::Fetch => KFI_ATOMIC | KFI_READ,
        };
        if outcome.imm.is_some() {
            flags |= KFI_REMOTE_CQ_DATA;
        }
        let mut entry = CqEntry {
            context: self.context,
            flags,
            len: match (recv, outcome.err) {
                (true, _) => outcome.len,
                (false, 0) => self.len(),
                // What a failed operation moved is not known.
                (false, _) => 0,
            },
            buf: match self.segs.regions().first() {
                Some(seg) if recv => seg.offset as u64,
                _ => 0,
            },
            data: u64::from(outcome.imm.unwrap_or(0)),
            err: outcome.err,
            prov_errno: outcome.prov_errno,
            ep: 0,
            olen: 0,
        };
        self.ep
            .finish(self.kind, &mut entry, self.wanted, may_sleep);
    }
}

impl Drop for OpToken {
    #[inline]
    fn drop(&mut self) {
        if !self.done {
            self.lose();
        }
    }
}

/// What a consumer posts.
pub struct Post<'a> {
    /// The kind.
    pub kind: OpKind,
    /// `KFI_COMPLETION`, `KFI_INJECT`, `KFI_REMOTE_CQ_DATA`, `KFI_FENCE`.
    pub flags: u64,
    /// Returned in the completion.
    pub context: u64,
    /// Completion data for the peer.
    pub data: u64,
    /// The peer's address, for one-sided operations.
    pub remote_addr: u64,
    /// The peer's key, for one-sided operations.
    pub key: u64,
    /// With `KFI_INJECT`: the payload. For atomics: the operands, and behind them those to compare
    /// with.
    pub inject: &'a [u8],
    /// For atomics, and only for those: what they do.
    pub atomic: Option<(Op, Datatype)>,
    /// Local memory. Of [`OpKind::Fetch`]: where what was there goes.
    pub segs: Segs,
}

impl<'a> Post<'a> {
    /// Whether it just moves bytes of registered memory, as most do.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.flags & !KFI_COMPLETION == 0
            && self.inject.is_empty()
            && self.atomic.is_none()
            && matches!(self.segs.0, Local::Regions { .. })
            && !matches!(self.kind, OpKind::Atomic | OpKind::Fetch)
    }

    /// What it is as an atomic, and how many bytes of values it is about.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such operation; the peer's address is no multiple of a value's size;
    /// operands, local memory and values to compare with are not as many; `KFI_INJECT` with one that
    /// fetches. `EOPNOTSUPP`: the domain does not do it. `EMSGSIZE`: it does not do as many at once.
    #[inline(never)]
    pub(crate) fn atomic(&self, domain: &Domain) -> Result<(AtomicDesc<'a>, u64)> {
        let (op, ty) = self.atomic.ok_or(EINVAL)?;
        let fetches = self.kind == OpKind::Fetch;
        let form = match (op.has(Form::Compare), fetches) {
            (true, true) => Form::Compare,
            (false, true) => Form::Fetch,
            (_, false) => Form::Base,
        };
        let most = domain.atomic(form, op, ty)?;
        let first = match form {
            Form::Compare => self.inject.len() / 2,
            _ => self.inject.len(),
        };
        let (operands, compare) = self.inject.split_at_checked(first).ok_or(EINVAL)?;
        let here = self.segs.len();
        let len = if op.has_operand() {
            operands.len() as u64
        } else {
            here
        };
        // A power of two.
        let size = ty.size() as u64;
        let count = len.checked_div(size).unwrap_or(0);
        let part = size.wrapping_sub(1);
        if count == 0
            || (len | self.remote_addr) & part != 0
            || (form == Form::Compare && compare.len() != operands.len())
            || (!op.has_operand() && !operands.is_empty())
            || here != if fetches { len } else { 0 }
            || (fetches && self.flags & KFI_INJECT != 0)
        {
            return Err(EINVAL);
        }
        if count > most as u64 || self.inject.len() > KFI_INJECT_MAX {
            return Err(EMSGSIZE);
        }
        let desc = AtomicDesc {
            op,
            ty,
            operands,
            compare,
        };
        Ok((desc, len))
    }
}
