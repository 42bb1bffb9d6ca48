// SPDX-License-Identifier: GPL-2.0
//! The protocol of memory-backed exports: requests are one-sided reads and writes by the target's
//! keys.
//!
//! Each connection has a key for each chunk of the exported memory. `block.c` passes a request's
//! pages to [`kfblk_rs_queue`], which posts one operation. Its completion ends the request.

use core::ptr::NonNull;
use kernel::{
    bindings,
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*,
    sync::{
        Arc,
        SetOnce, //
    }, //
};
use kfabric::{
    ep::{
        EpAttr,
        LocalMem,
        Post, //
    },
    memory::LentPiece,
    op::OpKind,
    provider::DomainAttr,
    pure::blk::{
        self,
        dirty::Range,
        Entry,
        Geometry,
        Question,
        Welcome,
        MESSAGE_MAX,
        PERSISTENT,
        READ_ONLY,
        TABLE_MAX, //
    },
    uapi::{
        CqEntry,
        KFI_COMMIT_COMPLETE,
        KFI_DELIVERY_COMPLETE,
        KFI_REACH_NO, //
    }, //
};

use super::{
    connection::{
        Connection,
        Conversation,
        TALK, //
    },
    flush::{
        self,
        Flusher,
        COMMITS, //
    },
    protocol::{
        AnyConnection,
        Properties,
        Protocol,
        BATCH, //
    },
    Disk,
    State, //
};
use crate::{
    errno,
    sys::{
        self,
        Block,
        Verdict, //
    }, //
};

/// Requests per queue.
pub(super) const DEPTH: u32 = 128;
/// Work requests per operation, at most.
const PARTS: u32 = 4;
/// Places of the send queue. A power of two: a larger queue may take twice the memory of a device.
const TX_SIZE: u32 = DEPTH * PARTS;
/// Requests per queue of a disk on persistent memory. Its commits use the places of the others.
pub(super) const DEPTH_WITH_COMMITS: u32 = DEPTH - COMMITS.div_ceil(PARTS);

const _: () = assert!(DEPTH_WITH_COMMITS * PARTS + COMMITS <= TX_SIZE && TX_SIZE.is_power_of_two());

/// Context of an operation: bits of a request's tag.
const TAG: u64 = 0xff;
/// Context of an operation: place of a range of persistent memory, for [`WRITTEN`] and [`COMMIT`].
const RANGE_SHIFT: u32 = 8;
/// Context of an operation: a write whose range is marked.
const WRITTEN: u64 = 1 << 62;
/// Context of an operation: the commit of a range, without a request.
const COMMIT: u64 = 1 << 63;

const _: () = assert!(DEPTH <= 1 << RANGE_SHIFT && TAG == (1 << RANGE_SHIFT) - 1);

/// Returns the range in the context of an operation.
fn range_of(context: u64) -> Range {
    Range::unpack((context & !(WRITTEN | COMMIT)) >> RANGE_SHIFT)
}

/// The geometry of a memory-backed export, and the connection's keys of its chunks.
pub(super) struct OneSided {
    geometry: Geometry,
    keys: KVVec<Entry>,
    /// For persistent memory: the disk's marks and flushes, and its block device.
    flusher: SetOnce<(Arc<Flusher>, Block)>,
}

impl OneSided {
    /// Returns the disk's marks and flushes, and its block device, if the export is persistent
    /// memory.
    pub(super) fn flusher(&self) -> Option<(&Arc<Flusher>, Block)> {
        self.flusher
            .as_ref()
            .map(|(flusher, block)| (flusher, *block))
    }
}

/// Contexts of ended operations, and their results.
pub(super) struct Ended {
    list: [(u64, Verdict); BATCH],
    count: usize,
    /// If a commit has ended: its disk, whose flush goes on.
    flush: Option<(Arc<Flusher>, Arc<Disk>)>,
}

/// Returns how a request ended, by its errno. If the peer or the device rejected the operation, the
/// request may be the cause. If the connection failed, the request is not blamed.
///
/// `served`: the connection has completed other requests.
pub(super) fn verdict(err: u32, served: bool) -> Verdict {
    match err {
        0 => Verdict::Done,
        bindings::EACCES | bindings::EFAULT | bindings::EMSGSIZE | bindings::EREMOTEIO => {
            Verdict::Blamed
        }
        _ if served => Verdict::Suspect,
        _ => Verdict::Again,
    }
}

impl Protocol for OneSided {
    const PROPERTIES: Properties = Properties {
        depth: DEPTH,
        len_max: 0,
        messages: false,
        borrows_pages: true,
        resizes: false,
    };
    const CONNECT_DATA: &'static [u8] = &[];
    const TRANSMIT_FLAGS: u64 = 0;
    type Handle = Option<Arc<Flusher>>;
    type Batch = Ended;

    fn sizes(limits: &DomainAttr) -> (u32, EpAttr) {
        let attr = EpAttr {
            tx_size: TX_SIZE.min(limits.max_tx_size),
            rx_size: 4,
            iov_limit: limits.iov_limit,
            ..EpAttr::default()
        };
        (DEPTH + COMMITS + TALK, attr)
    }

    fn begin(talk: &Conversation<'_>, welcome: &Welcome) -> Result<Self> {
        if welcome.device.is_some() {
            return Err(errno::eproto());
        }
        let limits = talk.ep.domain().attr();
        let reaches = limits.durable != KFI_REACH_NO && limits.visible != KFI_REACH_NO;
        // With enough places for all requests, a commit is never refused because the queue is full,
        // unless other commits are outstanding.
        let fits = limits.max_tx_size >= TX_SIZE;
        let persistent = welcome.flags & PERSISTENT != 0;
        if persistent && !(reaches && fits) {
            return Err(errno::eopnotsupp());
        }
        let geometry = welcome.geometry;
        let chunks = usize::try_from(geometry.chunks()).map_err(|_| errno::eproto())?;
        let mut answer = KVec::from_elem(0u8, MESSAGE_MAX, GFP_KERNEL)?;
        let mut keys = KVVec::with_capacity(chunks, GFP_KERNEL)?;
        while keys.len() < chunks {
            let first = u32::try_from(keys.len()).map_err(|_| errno::eproto())?;
            let len = talk.ask(&Question::Keys(first), &mut answer)?;
            let most = (chunks - keys.len()) as u64;
            let table = answer.get(..len).unwrap_or_default();
            // Cannot fail: `keys` has capacity for all chunks.
            let add = |entry| drop(keys.push_within_capacity(entry));
            blk::read_table(table, first, most, add).map_err(|_| errno::eproto())?;
            // A target must fill each table but the last, so that the number of questions is
            // bounded.
            if keys.len() < chunks && keys.len() % TABLE_MAX != 0 {
                return Err(errno::eproto());
            }
        }
        if persistent && welcome.flags & READ_ONLY == 0 {
            // The first flush must not be the first to find out that the target cannot commit.
            let entry = keys.first().ok_or_else(errno::eproto)?;
            talk.commit(entry, 1 << geometry.block_shift)?;
        }
        Ok(Self {
            geometry,
            keys,
            flusher: SetOnce::new(),
        })
    }

    fn attach(&self, disk: &Disk, block: Block, _queue: u32) -> Option<Arc<Flusher>> {
        let flusher = disk.flusher()?;
        self.flusher.populate((flusher.clone(), block));
        Some(flusher)
    }

    fn completed(flusher: &Option<Arc<Flusher>>, disk: &Arc<Disk>, entries: &[CqEntry]) -> Ended {
        let mut ended = Ended {
            list: [(0, Verdict::Done); BATCH],
            count: 0,
            flush: None,
        };
        let (mut completed, mut lost) = (false, false);
        for entry in entries {
            let served = disk.has_served();
            let verdict = match flusher {
                Some(_) => flush::verdict(entry.err, served),
                None => verdict(entry.err, served),
            };
            match verdict {
                Verdict::Done => completed = true,
                Verdict::Failed => {}
                // Every other failed operation ends the connection.
                _ => lost = true,
            }
            if let Some(flusher) = flusher {
                if entry.context & COMMIT != 0 {
                    ended.flush = Some((flusher.clone(), disk.clone()));
                }
                if entry.context & WRITTEN != 0 && verdict == Verdict::Done {
                    flusher.written(range_of(entry.context));
                }
            }
            if let Some(place) = ended.list.get_mut(ended.count) {
                *place = (entry.context, verdict);
                ended.count += 1;
            }
        }
        disk.record(completed, lost);
        if lost {
            Disk::lost(disk);
            if disk.state() == State::Dead {
                for (_, verdict) in &mut ended.list {
                    if *verdict != Verdict::Done {
                        *verdict = Verdict::Failed;
                    }
                }
            }
        }
        ended
    }

    fn report(ended: Ended, block: Block, queue: u32, _may_sleep: bool) {
        let mut commits = 0;
        for (context, verdict) in ended.list.iter().take(ended.count) {
            if context & COMMIT != 0 {
                commits += u32::from(*verdict == Verdict::Done);
                continue;
            }
            // CAST: A tag is small.
            let tag = (context & TAG) as u32;
            // SAFETY: The tag's request is in flight. A post completes once, so the request ends
            // only here.
            unsafe { block.end(queue, tag, *verdict) };
        }
        let Some((flusher, disk)) = ended.flush else {
            return;
        };
        if commits != 0 {
            // The round of these commits is not over yet, and keeps the block device.
            block.add_commits(queue, commits);
        }
        for (context, verdict) in ended.list.iter().take(ended.count) {
            if context & COMMIT != 0 {
                flusher.committed(range_of(*context), *verdict);
            }
        }
        flusher.go_on(&disk, block, queue);
    }

    // The endpoint's close has ended the operations, whose completions end the requests.
    fn close(&self, _verdict: Verdict) {}
}

impl Connection<OneSided> {
    /// Posts a request: reads or writes from byte `pos` of the disk on. A `durable` write completes
    /// when it is durable. Context: any.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the request cannot be posted now.
    /// - `EIO` if the request can never be posted.
    fn post(&self, kind: OpKind, durable: bool, tag: u32, pos: u64, segs: LocalMem) -> Result {
        let OneSided {
            geometry,
            keys,
            flusher,
        } = self.protocol();
        let (chunk, at) = geometry.place(pos, segs.len()).ok_or(EIO)?;
        let (flags, context) = match flusher.as_ref() {
            Some(_) if kind == OpKind::Write && durable => (KFI_COMMIT_COMPLETE, 0),
            Some((flusher, _)) if kind == OpKind::Write => {
                let range = flusher.range(chunk, at, segs.len());
                (KFI_DELIVERY_COMPLETE, WRITTEN | range.pack() << RANGE_SHIFT)
            }
            _ => (0, 0),
        };
        // CAST: `place` checks the range, and the keys of all chunks are in memory.
        let entry = keys.get(chunk as usize).ok_or(EIO)?;
        let posted = self.ep().post(Post {
            kind,
            flags,
            context: context | u64::from(tag),
            data: 0,
            remote_addr: entry.addr.wrapping_add(at),
            key: entry.key,
            inject: &[],
            atomic: None,
            segs,
        });
        posted.map_err(super::request::retried)
    }

    /// Posts the commit of `range`, which is `len` bytes from byte `at` of its chunk on. Context: any.
    ///
    /// # Errors
    ///
    /// - Errors of [`Endpoint::commit`](kfabric::ep::Endpoint::commit).
    pub(super) fn commit(&self, range: Range, at: u64, len: u64) -> Result {
        // CAST: A `u32` fits. The keys of all chunks are in memory.
        let entry = self.protocol().keys.get(range.chunk as usize).ok_or(EIO)?;
        let context = COMMIT | range.pack() << RANGE_SHIFT;
        self.ep()
            .commit(post_of_commit(entry, at, context), len, false)
    }
}

/// Returns the commit of memory from byte `at` of a chunk on.
fn post_of_commit(entry: &Entry, at: u64, context: u64) -> Post<'static> {
    Post {
        kind: OpKind::Commit,
        flags: 0,
        context,
        data: 0,
        remote_addr: entry.addr.wrapping_add(at),
        key: entry.key,
        inject: &[],
        atomic: None,
        segs: LocalMem::default(),
    }
}

impl Conversation<'_> {
    /// Commits the first `len` bytes of a chunk, and waits for the end.
    ///
    /// # Errors
    ///
    /// - The errno of the commit.
    /// - Errors of [`Conversation::wait`].
    fn commit(&self, entry: &Entry, len: u64) -> Result {
        self.ep
            .commit(post_of_commit(entry, 0, COMMIT), len, false)?;
        self.wait(COMMIT)
    }
}

/// Posts a request of the block layer to a memory-backed export. Returns 0 or a negative errno:
///
/// - `-EAGAIN` if the request must be retried later.
/// - `-ENOTCONN` if there is no connection.
/// - `-EIO` if the request fails.
///
/// # Safety
///
/// `owner` was passed to [`Block::new`]. `pieces` are the request's, and stay until the request
/// ends or this call fails.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_queue(
    owner: *mut c_void,
    queue: u32,
    tag: u32,
    write: bool,
    durable: bool,
    pos: u64,
    pieces: *mut LentPiece,
    count: u32,
) -> c_int {
    // SAFETY: By the caller's contract. The block device holds a reference to its owner.
    let disk = unsafe { &*owner.cast::<Disk>() };
    let connection = match disk.connection(queue) {
        Ok(connection) => connection,
        Err(e) => return e.to_errno(),
    };
    let (AnyConnection::OneSided(connection), Some(pieces)) = (connection, NonNull::new(pieces))
    else {
        return EAGAIN.to_errno();
    };
    // SAFETY: By the caller's contract. The pages of a request that reads are writable.
    let segs = unsafe { LocalMem::lend(pieces, count as usize) };
    let kind = if write { OpKind::Write } else { OpKind::Read };
    connection
        .post(kind, durable, tag, pos, segs)
        .map_or_else(|e| e.to_errno(), |()| 0)
}

kfabric::same_prototype!(sys: kfblk_rs_queue);
