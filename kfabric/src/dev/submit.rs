// SPDX-License-Identifier: GPL-2.0
//! The data path's call: many operations in one.
//!
//! Each entry is fetched once, into this call's own memory. No lock is taken here; looking up a
//! handle touches that handle's cell alone.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use zerocopy::IntoBytes;

use super::{
    call::{
        ep,
        errno,
        region,
        zero,
        Made, //
    },
    file::File,
    user, //
};
use crate::{
    ep::{
        Endpoint,
        Post, //
    },
    op::{
        OpKind,
        Segs, //
    },
    region::Region,
    uapi::*,
};

/// Entries fetched at a time.
const BATCH: usize = 4;

/// The region of the last entry: most programs use the same one again and again.
type Last = Option<(u64, Arc<Region>)>;

pub(super) fn submit(file: &File, call: &mut Submit) -> Result<Made> {
    zero(&[call.flags])?;
    // CAST: A `u32` fits.
    let (count, step) = (call.count as usize, call.entry_size as usize);
    if count == 0 || call.count > KFI_SUBMIT_MAX || step != size_of::<OpEntry>() {
        return Err(EINVAL);
    }
    let ep = ep(file, call.ep)?;
    let mut entries = [OpEntry::default(); BATCH];
    let mut last = None;
    let mut done = 0;
    let mut result = Ok(());
    while done < count && result.is_ok() {
        let part = BATCH.min(count - done);
        let at = user::entry_at(call.ops, call.entry_size, done);
        result = user::read_bytes(at, entries[..part].as_mut_bytes());
        if result.is_err() {
            break;
        }
        #[cfg(kfabric_seed_bug = "double-fetch")]
        {
            // Judged here, and not when they are used.
            entries[..part].iter().try_for_each(|e| judge(file, e))?;
            user::read_bytes(
                call.ops + (done * step) as u64,
                entries[..part].as_mut_bytes(),
            )?;
        }
        for entry in &entries[..part] {
            result = post(file, &ep, entry, &mut last);
            if result.is_err() {
                break;
            }
            done += 1;
        }
    }
    if done == 0 {
        result?;
    }
    call.err = errno(result);
    // CAST: At most `count`.
    call.done = done as u32;
    Ok(Made::Nothing)
}

#[cfg(kfabric_seed_bug = "double-fetch")]
fn judge(file: &File, entry: &OpEntry) -> Result {
    let iov = entry.iov.get(..entry.iov_count as usize).ok_or(EINVAL)?;
    iov.iter().try_for_each(|piece| {
        region(file, piece.region)?.check(OpKind::Recv, piece.offset, piece.len)
    })
}

fn post(file: &File, ep: &Endpoint, entry: &OpEntry, last: &mut Last) -> Result {
    let kind = match entry.op {
        KFI_OP_SEND => OpKind::Send,
        KFI_OP_RECV => OpKind::Recv,
        KFI_OP_READ => OpKind::Read,
        KFI_OP_WRITE => OpKind::Write,
        _ => return Err(EINVAL),
    };
    let mut segs = Segs::new();
    // CAST: A `u32` fits.
    let iov = entry.iov.get(..entry.iov_count as usize).ok_or(EINVAL)?;
    for piece in iov {
        let found = match last {
            Some((handle, found)) if *handle == piece.region => found.clone(),
            _ => {
                let found = region(file, piece.region)?;
                *last = Some((piece.region, found.clone()));
                found
            }
        };
        segs.push(kind, found, piece.offset, piece.len)?;
    }
    let mut payload = [0; KFI_INJECT_MAX];
    let inject = if entry.flags & KFI_INJECT == 0 {
        if entry.inject != 0 || entry.inject_len != 0 {
            return Err(EINVAL);
        }
        &[][..]
    } else {
        let len = usize::try_from(entry.inject_len).map_err(|_| EMSGSIZE)?;
        let payload = payload.get_mut(..len).ok_or(EMSGSIZE)?;
        user::read_bytes(entry.inject, payload)?;
        &*payload
    };
    ep.post(Post {
        kind,
        flags: entry.flags,
        context: entry.context,
        data: entry.data,
        remote_addr: entry.remote_addr,
        key: entry.key,
        inject,
        segs,
    })
}
