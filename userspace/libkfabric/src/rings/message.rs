// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages that are sent through a ring, and receives that wait for them.
//!
//! If a message fits, it is copied into the ring straight from the operation's memory ([`Asked`]).
//! Only waiting operations keep their memory alive: a receive ([`Receive`]), and a message that
//! does not fit yet ([`Message`]).
#![forbid(unsafe_code)]

use std::sync::Arc;

use kfabric_pure::pipe::{Lie, Piece, Sender};
use kfabric_uapi as abi;
use kfabric_uapi::{Iov, OpEntry};

use crate::domain::inner::DomainInner;
use crate::errno::Errno;
use crate::flags::Access;
use crate::op::Local;
use crate::region::inner::RegionInner;
use crate::sys::PipeMem;

/// The arguments of a send or a receive.
#[derive(Clone, Copy)]
pub(crate) struct Args<'a> {
    pub(crate) receives: bool,
    /// `KFI_*` flags.
    pub(crate) flags: u64,
    pub(crate) context: u64,
    /// Remote completion data, with `KFI_REMOTE_CQ_DATA`.
    pub(crate) data: u64,
    pub(crate) iov: &'a [Iov],
    /// The regions of `iov`.
    pub(crate) regions: &'a [Option<&'a Arc<RegionInner>>],
    /// The bytes to inject.
    pub(crate) payload: &'a [u8],
}

impl<'a> Args<'a> {
    /// The arguments of an entry; `EINVAL` if it has too many pieces.
    #[inline]
    pub(super) fn of(entry: &'a OpEntry, local: &'a Local<'a>) -> Result<Self, Errno> {
        let count = entry.iov_count as usize;
        Ok(Self {
            receives: entry.op == abi::KFI_OP_RECV,
            flags: entry.flags,
            context: entry.context,
            data: entry.data,
            iov: entry.iov.get(..count).ok_or(Errno::EINVAL)?,
            regions: local.regions.get(..count).ok_or(Errno::EINVAL)?,
            payload: local.payload,
        })
    }
}

/// A send or receive whose arguments have been checked.
pub(super) struct Asked<'a> {
    args: Args<'a>,
    /// Bytes to send, or capacity of the receive.
    pub(super) len: u64,
    data: Option<u32>,
}

impl<'a> Asked<'a> {
    /// Checks an operation.
    ///
    /// # Errors
    ///
    /// - `EACCES` if a region does not allow the use.
    /// - `EINVAL` for a range outside its region, a region of another domain, or bad flags.
    /// - `EOPNOTSUPP` if a message asks for a level of completion of writes.
    /// - `EMSGSIZE` if the message is too long.
    #[inline]
    pub(super) fn new(
        domain: &Arc<DomainInner>,
        args: Args<'a>,
        iov_limit: u32,
    ) -> Result<Self, Errno> {
        let needed = if args.receives {
            Access::RECV
        } else {
            Access::SEND
        };
        let mut len = 0;
        for (iov, region) in args.iov.iter().zip(args.regions) {
            check(domain, region.ok_or(Errno::EINVAL)?, iov, needed)?;
            len += iov.len;
        }
        let inject = args.flags & abi::KFI_INJECT != 0;
        let with_data = args.flags & abi::KFI_REMOTE_CQ_DATA != 0;
        let mut known =
            abi::KFI_COMPLETION | abi::KFI_INJECT | abi::KFI_REMOTE_CQ_DATA | abi::KFI_FENCE;
        if !args.receives {
            known |= abi::KFI_DELIVERY_COMPLETE;
        }
        if args.flags & !known & (abi::KFI_DELIVERY_COMPLETE | abi::KFI_COMMIT_COMPLETE) != 0 {
            // As the kernel does: the other levels are for writes.
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if args.flags & !known != 0
            || args.iov.len() > iov_limit as usize
            || (inject && (args.receives || !args.iov.is_empty()))
            || (with_data && args.receives)
        {
            return Err(Errno::EINVAL);
        }
        let data = match (with_data, u32::try_from(args.data)) {
            (false, _) => None,
            (true, Ok(data)) => Some(data),
            (true, Err(_)) => return Err(Errno::EINVAL),
        };
        if inject {
            if args.payload.len() > domain.inject_size().min(abi::KFI_INJECT_MAX) {
                return Err(Errno(libc::EMSGSIZE));
            }
            len = args.payload.len() as u64;
        }
        if len > domain.max_msg_size() {
            return Err(Errno(libc::EMSGSIZE));
        }
        Ok(Self { args, len, data })
    }

    /// The operation's context, for its completion.
    pub(super) fn context(&self) -> u64 {
        self.args.context
    }

    /// The operation's `KFI_*` flags.
    pub(super) fn flags(&self) -> u64 {
        self.args.flags
    }

    /// Whether the message completes only when the peer has taken it.
    #[inline]
    pub(super) fn is_confirmed(&self) -> bool {
        self.args.flags & abi::KFI_DELIVERY_COMPLETE != 0
    }

    fn pieces(&self) -> impl Iterator<Item = (&'a Arc<RegionInner>, &'a Iov)> {
        let regions = self.args.regions.iter().map_while(|region| *region);
        regions.zip(self.args.iov)
    }

    #[inline]
    fn parts(&self) -> Parts {
        let part = |(region, iov): (&Arc<RegionInner>, &Iov)| Part {
            region: region.clone(),
            // CAST: Inside the region: checked in `new`.
            offset: iov.offset as usize,
            len: iov.len as usize,
        };
        let mut pieces = self.pieces();
        match (pieces.next(), self.args.iov.len()) {
            (None, _) => Parts::None,
            (Some(one), ..=1) => Parts::One(part(one)),
            _ => Parts::More(self.pieces().map(part).collect()),
        }
    }

    /// Makes a receive that is kept until a message comes.
    #[inline]
    pub(super) fn receive(&self, wanted: bool) -> Receive {
        Receive {
            context: self.args.context,
            flags: self.args.flags,
            len: self.len,
            wanted,
            lost: false,
            parts: self.parts(),
        }
    }

    /// Makes a message that is kept until the ring has space.
    pub(super) fn message(&self, wanted: bool) -> Message {
        let mut inject = [0; abi::KFI_INJECT_MAX];
        for (to, from) in inject.iter_mut().zip(self.args.payload) {
            *to = *from;
        }
        Message {
            context: self.args.context,
            wanted,
            len: self.len,
            done: 0,
            data: self.data,
            written: None,
            confirmed: self.is_confirmed(),
            mark: None,
            injected: self.args.flags & abi::KFI_INJECT != 0,
            inject,
            kept: None,
            parts: self.parts(),
        }
    }

    /// Copies the whole message into the ring if it fits. Returns whether it did.
    #[inline]
    pub(super) fn put(&self, ring: &PipeMem, pipe: &mut Sender) -> Result<bool, Lie> {
        let Some(len) = pipe
            .room(ring, self.len)?
            .filter(|n| u64::from(*n) == self.len)
        else {
            return Ok(false);
        };
        let piece = Piece {
            total: self.len,
            at: 0,
            len,
            data: self.data,
            written: false,
        };
        let injected = self.args.flags & abi::KFI_INJECT != 0;
        pipe.put(ring, &piece, |at, from, n| match injected {
            true => inject(ring, at, self.args.payload, from.into(), n),
            // CAST: Inside the region: checked in `new`.
            false => load(
                ring,
                at,
                from.into(),
                n,
                self.pieces()
                    .map(|(region, iov)| (&**region, iov.offset as usize, iov.len as usize)),
            ),
        });
        Ok(true)
    }
}

/// Checks that `iov` lies within a region of `domain` that allows the use.
fn check(
    domain: &Arc<DomainInner>,
    region: &RegionInner,
    iov: &Iov,
    needed: Access,
) -> Result<(), Errno> {
    if !region.access.contains(needed) {
        return Err(Errno(libc::EACCES));
    }
    let end = iov.offset.checked_add(iov.len);
    match end.is_some_and(|end| end <= region.len as u64) && Arc::ptr_eq(domain, &region.domain) {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

/// A range of a region, kept alive.
struct Part {
    region: Arc<RegionInner>,
    offset: usize,
    len: usize,
}

impl Part {
    /// Region, offset in the region, and bytes.
    fn get(&self) -> (&RegionInner, usize, usize) {
        (&self.region, self.offset, self.len)
    }
}

/// Whether a part lies in `region`.
fn uses(parts: &Parts, region: u64) -> bool {
    let mut parts = parts.as_slice().iter();
    parts.any(|part| part.region.handle.raw() == region)
}

/// The memory of an operation.
enum Parts {
    None,
    /// One part, as most operations have. It is stored without an allocation.
    One(Part),
    More(Box<[Part]>),
}

impl Parts {
    #[inline]
    fn as_slice(&self) -> &[Part] {
        match self {
            Self::None => &[],
            Self::One(part) => std::slice::from_ref(part),
            Self::More(parts) => parts,
        }
    }
}

/// Splits `len` bytes, from byte `from` on, over `memory` (region, offset in the region, bytes).
/// Calls `each` with region, offset in the region's memory, bytes before this part, and bytes.
/// Returns whether `memory` was long enough and `each` never returned `false`.
#[inline]
fn walk<'a>(
    memory: impl Iterator<Item = (&'a RegionInner, usize, usize)>,
    from: u64,
    len: u32,
    mut each: impl FnMut(&RegionInner, usize, usize, usize) -> bool,
) -> bool {
    // CAST: Within memory of this process: checked in `Asked::new`.
    let (mut skip, mut left, mut before) = (from as usize, len as usize, 0);
    for (region, offset, bytes) in memory {
        if left == 0 {
            break;
        }
        let past = skip.min(bytes);
        skip -= past;
        let n = left.min(bytes - past);
        if n != 0 {
            if !each(region, region.first + offset + past, before, n) {
                return false;
            }
            left -= n;
            before += n;
        }
    }
    left == 0
}

/// Copies `len` bytes of `memory`, from byte `from` on, to byte `at` of the ring.
#[inline]
fn load<'a>(
    ring: &PipeMem,
    at: u32,
    from: u64,
    len: u32,
    memory: impl Iterator<Item = (&'a RegionInner, usize, usize)>,
) {
    walk(memory, from, len, |region, of, before, n| {
        // CAST: Less than the ring's size.
        let at = at + before as u32;
        let copy = |map: &_| ring.fill(at, map, of, n);
        region.memory.with_map(false, copy).is_some()
    });
}

/// Copies `len` bytes of a payload, from byte `from` on, to byte `at` of the ring.
fn inject(ring: &PipeMem, at: u32, payload: &[u8], from: u64, len: u32) {
    // CAST: Within the payload.
    let from = from as usize;
    let bytes = payload.get(from..from + len as usize);
    let _ = ring.fill_from(at, bytes.unwrap_or_default());
}

/// A posted receive that has no message yet.
pub(super) struct Receive {
    pub(super) context: u64,
    /// `KFI_*` of its entry.
    flags: u64,
    /// Capacity in bytes.
    pub(super) len: u64,
    /// Set if a success gets a completion.
    pub(super) wanted: bool,
    /// Set if the region was closed after a part of the message had arrived: the rest is dropped, and
    /// the receive is canceled.
    pub(super) lost: bool,
    parts: Parts,
}

impl Receive {
    /// Whether the receive's memory lies in `region`.
    pub(super) fn uses(&self, region: u64) -> bool {
        uses(&self.parts, region)
    }

    /// Gives up the receive's memory. The bytes that still arrive are dropped.
    pub(super) fn lose(&mut self) {
        self.lost = true;
        self.parts = Parts::None;
    }

    /// The receive as an entry of `KFI_IOC_SUBMIT`.
    pub(super) fn entry(&self) -> OpEntry {
        let mut entry = OpEntry {
            op: abi::KFI_OP_RECV,
            flags: self.flags,
            context: self.context,
            ..OpEntry::default()
        };
        for (iov, part) in entry.iov.iter_mut().zip(self.parts.as_slice()) {
            *iov = Iov {
                region: part.region.handle.raw(),
                offset: part.offset as u64,
                len: part.len as u64,
            };
            entry.iov_count += 1;
        }
        entry
    }

    /// Offset of the receive's first byte in its region.
    pub(super) fn offset(&self) -> u64 {
        let first = self.parts.as_slice().first();
        first.map_or(0, |part| part.offset as u64)
    }

    /// Copies `len` bytes at byte `at` of the ring to byte `from` of the receive. Returns whether
    /// they fit.
    #[inline]
    pub(super) fn store(&self, ring: &PipeMem, at: u32, from: u64, len: u32) -> bool {
        if self.lost {
            return true;
        }
        let memory = self.parts.as_slice().iter().map(Part::get);
        walk(memory, from, len, |region, to, before, n| {
            // CAST: Less than the ring's size.
            let at = at + before as u32;
            let copy = |map: &_| ring.empty(at, map, to, n);
            region.memory.with_map(true, copy).is_some()
        })
    }
}

/// A message that is not in the ring yet, or only in part.
pub(super) struct Message {
    pub(super) context: u64,
    /// Set if a success gets a completion.
    pub(super) wanted: bool,
    /// Bytes of the message.
    pub(super) len: u64,
    /// Bytes that are in the ring already.
    pub(super) done: u64,
    data: Option<u32>,
    /// For the note of a write: the bytes written.
    pub(super) written: Option<u64>,
    /// Set if the message completes only when the peer has taken it.
    confirmed: bool,
    /// End of the message in the ring, once the ring holds all of a confirmed message.
    mark: Option<u32>,
    injected: bool,
    inject: [u8; abi::KFI_INJECT_MAX],
    /// Copy of the bytes from offset `.0` of the message on, if a region was closed meanwhile.
    kept: Option<(u64, Vec<u8>)>,
    parts: Parts,
}

impl Message {
    /// Makes the note that tells the peer of a write of `len` bytes.
    pub(super) fn note(len: u64, data: u32) -> Self {
        Self {
            context: 0,
            wanted: false,
            len: 0,
            done: 0,
            data: Some(data),
            written: Some(len),
            confirmed: false,
            mark: None,
            injected: false,
            inject: [0; abi::KFI_INJECT_MAX],
            kept: None,
            parts: Parts::None,
        }
    }

    /// Returns the bytes of the message that the ring holds, and whether these are all.
    pub(super) fn progress(&self) -> (u64, bool) {
        (self.done, self.mark.is_some())
    }

    /// Whether the peer has taken a confirmed message.
    pub(super) fn is_taken(&self, ring: &PipeMem, pipe: &mut Sender) -> bool {
        self.mark
            .is_some_and(|mark| pipe.taken(ring, mark).unwrap_or(false))
    }

    /// Whether bytes that the ring has not got yet may lie in `region`.
    pub(super) fn uses(&self, region: u64) -> bool {
        uses(&self.parts, region)
    }

    /// Copies the bytes that the ring has not got yet, and gives up the message's memory. Returns
    /// `false` if there is no memory for the copy.
    pub(super) fn keep(&mut self) -> bool {
        let left = usize::try_from(self.len - self.done).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(left).is_err() {
            return false;
        }
        // CAST: Within memory of this process: checked in `Asked::new`.
        let mut skip = self.done as usize;
        for (region, offset, len) in self.parts.as_slice().iter().map(Part::get) {
            let past = skip.min(len);
            skip -= past;
            let (from, to) = (bytes.len(), bytes.len() + len - past);
            bytes.resize(to, 0);
            let at = region.first + offset + past;
            let copied = region
                .memory
                .with_map(false, |map| map.read(at, &mut bytes[from..]));
            if copied.is_none() {
                return false;
            }
        }
        self.parts = Parts::None;
        self.kept = Some((self.done, bytes));
        true
    }

    /// Copies the rest of the message into the ring, as far as it fits. Returns whether all of it
    /// is in, and taken if the message is confirmed.
    pub(super) fn put(&mut self, ring: &PipeMem, pipe: &mut Sender) -> Result<bool, Lie> {
        if let Some(mark) = self.mark {
            return pipe.taken(ring, mark);
        }
        loop {
            let Some(len) = pipe.room(ring, self.len - self.done)? else {
                return Ok(false);
            };
            let piece = Piece {
                total: self.written.unwrap_or(self.len),
                at: self.done,
                len,
                data: self.data,
                written: self.written.is_some(),
            };
            pipe.put(ring, &piece, |at, from, n| {
                let from = self.done + u64::from(from);
                match (&self.kept, self.injected) {
                    (Some((first, bytes)), _) => inject(ring, at, bytes, from - first, n),
                    (None, true) => inject(ring, at, &self.inject, from, n),
                    (None, false) => load(
                        ring,
                        at,
                        from,
                        n,
                        self.parts.as_slice().iter().map(Part::get),
                    ),
                }
            });
            self.done += u64::from(len);
            if self.done == self.len {
                if !self.confirmed {
                    return Ok(true);
                }
                let mark = pipe.mark();
                self.mark = Some(mark);
                self.parts = Parts::None;
                return pipe.taken(ring, mark);
            }
        }
    }
}
