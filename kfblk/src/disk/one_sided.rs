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
    sync::Arc, //
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
        Entry,
        Geometry,
        Question,
        Welcome,
        MESSAGE_MAX,
        TABLE_MAX, //
    },
    uapi::CqEntry, //
};

use super::{
    connection::{
        Connection,
        Conversation,
        TALK, //
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
const DEPTH: u32 = 128;
/// Work requests per operation, at most.
const PARTS: u32 = 4;

/// The geometry of a memory-backed export, and the connection's keys of its chunks.
pub(super) struct OneSided {
    geometry: Geometry,
    keys: KVVec<Entry>,
}

/// Tags of ended requests, and their results.
pub(super) struct Ended {
    list: [(u32, Verdict); BATCH],
    count: usize,
}

/// Returns how a request ended, by its errno. If the peer or the device rejected the operation, the
/// request may be the cause. If the connection failed, the request is not blamed.
///
/// `served`: the connection has completed other requests.
fn verdict(err: u32, served: bool) -> Verdict {
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
    type Handle = ();
    type Batch = Ended;

    fn sizes(limits: &DomainAttr) -> (u32, EpAttr) {
        let attr = EpAttr {
            tx_size: (DEPTH * PARTS).min(limits.max_tx_size),
            rx_size: 4,
            iov_limit: limits.iov_limit,
            ..EpAttr::default()
        };
        (DEPTH + TALK, attr)
    }

    fn begin(talk: &Conversation<'_>, welcome: &Welcome) -> Result<Self> {
        if welcome.device.is_some() {
            return Err(errno::eproto());
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
        Ok(Self { geometry, keys })
    }

    fn attach(&self, _disk: &Disk, _block: Block, _queue: u32) {}

    fn completed((): &(), disk: &Arc<Disk>, entries: &[CqEntry]) -> Ended {
        let mut ended = Ended {
            list: [(0, Verdict::Done); BATCH],
            count: 0,
        };
        let (mut completed, mut lost) = (false, false);
        for (entry, place) in entries.iter().zip(&mut ended.list) {
            let verdict = verdict(entry.err, disk.has_served());
            match verdict {
                Verdict::Done => completed = true,
                // Every failed operation ends the connection.
                _ => lost = true,
            }
            // CAST: The context is the tag that was posted.
            *place = (entry.context as u32, verdict);
            ended.count += 1;
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
        for (tag, verdict) in ended.list.iter().take(ended.count) {
            // SAFETY: The tag's request is in flight. A post completes once, so the request ends
            // only here.
            unsafe { block.end(queue, *tag, *verdict) };
        }
    }

    // The endpoint's close has ended the operations, whose completions end the requests.
    fn close(&self, _served: bool) {}
}

impl Connection<OneSided> {
    /// Posts a request: reads or writes from byte `pos` of the disk on. Context: any.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the request cannot be posted now.
    /// - `EIO` if the request can never be posted.
    fn post(&self, kind: OpKind, tag: u32, pos: u64, segs: LocalMem) -> Result {
        let OneSided { geometry, keys } = self.protocol();
        let (chunk, at) = geometry.place(pos, segs.len()).ok_or(EIO)?;
        // CAST: `place` checks the range, and the keys of all chunks are in memory.
        let entry = keys.get(chunk as usize).ok_or(EIO)?;
        let posted = self.ep().post(Post {
            kind,
            flags: 0,
            context: tag.into(),
            data: 0,
            remote_addr: entry.addr.wrapping_add(at),
            key: entry.key,
            inject: &[],
            atomic: None,
            segs,
        });
        posted.map_err(super::request::retried)
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
        .post(kind, tag, pos, segs)
        .map_or_else(|e| e.to_errno(), |()| 0)
}

kfabric::same_prototype!(sys: kfblk_rs_queue);
