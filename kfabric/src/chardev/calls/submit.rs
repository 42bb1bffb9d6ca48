// SPDX-License-Identifier: GPL-2.0
//! The data path's call: many operations in one.
//!
//! Each entry is copied once into the memory of this call. The call takes no lock; a lookup
//! accesses only the handle's own cell.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use zerocopy::IntoBytes;

use crate::{
    chardev::{
        args::{
            errno,
            zero, //
        },
        file::File,
        undo::Undo,
        user, //
    },
    ep::{
        Endpoint,
        LocalMem,
        Post, //
    },
    key::Region,
    op::OpKind,
    pure::atomic::{
        Datatype,
        Form,
        Op, //
    },
    uapi::*,
};

/// Entries fetched at a time.
const BATCH: usize = 4;

/// The region of the last entry, because most programs use one region repeatedly.
type Last = Option<(u64, Arc<Region>)>;

pub(crate) fn submit(file: &File, call: &mut Submit) -> Result<Undo> {
    zero(&[call.flags])?;
    // CAST: A `u32` fits.
    let (count, step) = (call.count as usize, call.entry_size as usize);
    if count == 0 || call.count > KFI_SUBMIT_MAX || step != size_of::<OpEntry>() {
        return Err(EINVAL);
    }
    let ep = file.handles.ep(call.ep)?;
    // Most calls have one entry, for which room for a batch would only be zeroed.
    let (mut one, mut many) = ([OpEntry::default()], None);
    let entries: &mut [OpEntry] = match count {
        1 => &mut one,
        _ => many.insert([OpEntry::default(); BATCH]),
    };
    let mut last = None;
    let mut done = 0;
    let mut result = Ok(());
    while done < count && result.is_ok() {
        let part = entries.len().min(count - done);
        let at = user::entry_at(call.ops, call.entry_size, done);
        result = user::read_bytes(at, entries[..part].as_mut_bytes());
        if result.is_err() {
            break;
        }
        #[cfg(kfabric_seed_bug = "double-fetch")]
        {
            // Checked here, before any entry is used.
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
    Ok(Undo::Nothing)
}

#[cfg(kfabric_seed_bug = "double-fetch")]
fn judge(file: &File, entry: &OpEntry) -> Result {
    let iov = entry.iov.get(..entry.iov_count as usize).ok_or(EINVAL)?;
    iov.iter().try_for_each(|piece| {
        file.handles
            .region(piece.region)?
            .check(OpKind::Recv, piece.offset, piece.len)
    })
}

fn post(file: &File, ep: &Endpoint, entry: &OpEntry, last: &mut Last) -> Result {
    let kind = match entry.op {
        KFI_OP_SEND => OpKind::Send,
        KFI_OP_RECV => OpKind::Recv,
        KFI_OP_READ => OpKind::Read,
        KFI_OP_WRITE => OpKind::Write,
        KFI_OP_ATOMIC => OpKind::Atomic,
        KFI_OP_FETCH_ATOMIC | KFI_OP_COMPARE_ATOMIC => OpKind::Fetch,
        KFI_OP_COMMIT => OpKind::Commit,
        _ => return Err(EINVAL),
    };
    let atomic = match kind {
        OpKind::Atomic | OpKind::Fetch => {
            Some(atomic_of(entry.op, entry.atomic_op, entry.datatype)?)
        }
        _ if entry.atomic_op != 0 || entry.datatype != 0 => return Err(EINVAL),
        _ => None,
    };
    let mut segs = LocalMem::new();
    // CAST: A `u32` fits.
    let iov = entry.iov.get(..entry.iov_count as usize).ok_or(EINVAL)?;
    for piece in iov {
        if piece.region == KFI_UNREGISTERED {
            if iov.len() != 1 {
                return Err(EINVAL);
            }
            segs = LocalMem::unregistered(piece.offset, piece.len);
            break;
        }
        let found = match last {
            Some((handle, found)) if *handle == piece.region => found.clone(),
            _ => {
                let found = file.handles.region(piece.region)?;
                *last = Some((piece.region, found.clone()));
                found
            }
        };
        segs.push(kind, found, piece.offset, piece.len)?;
    }
    let mut payload = [0; KFI_INJECT_MAX];
    let commit = kind == OpKind::Commit;
    let inject = if (entry.flags & KFI_INJECT == 0 && atomic.is_none()) || commit {
        if entry.inject != 0 || (entry.inject_len != 0 && !commit) {
            return Err(EINVAL);
        }
        &[][..]
    } else {
        let len = usize::try_from(entry.inject_len).map_err(|_| EMSGSIZE)?;
        let payload = payload.get_mut(..len).ok_or(EMSGSIZE)?;
        user::read_bytes(entry.inject, payload)?;
        &*payload
    };
    let post = Post {
        kind,
        flags: entry.flags,
        context: entry.context,
        data: entry.data,
        remote_addr: entry.remote_addr,
        key: entry.key,
        inject,
        atomic: atomic.map(|(_, op, ty)| (op, ty)),
        segs,
    };
    match commit {
        true => ep.commit(post, entry.inject_len, true),
        false => ep.post_sleeping(post),
    }
}

/// Decodes the numbers of an atomic.
///
/// # Errors
///
/// - `EINVAL` if there is no such operation.
fn atomic_of(op: u32, atomic_op: u32, datatype: u32) -> Result<(Form, Op, Datatype)> {
    let form = match op {
        KFI_OP_ATOMIC => Form::Base,
        KFI_OP_FETCH_ATOMIC => Form::Fetch,
        KFI_OP_COMPARE_ATOMIC => Form::Compare,
        _ => return Err(EINVAL),
    };
    let what = Op::new(atomic_op).filter(|what| what.has(form));
    Ok((
        form,
        what.ok_or(EINVAL)?,
        Datatype::new(datatype).ok_or(EINVAL)?,
    ))
}

pub(crate) fn query_atomic(file: &File, call: &mut AtomicQuery) -> Result<Undo> {
    zero(&[call.flags])?;
    let domain = file.handles.domain(call.domain)?;
    let (form, op, ty) = atomic_of(call.op, call.atomic_op, call.datatype)?;
    call.count = domain.atomic(form, op, ty)? as u64;
    // CAST: 8 at most.
    call.value_size = ty.size() as u32;
    Ok(Undo::Nothing)
}

pub(crate) fn cancel(file: &File, call: &mut Cancel) -> Result<Undo> {
    zero(&[call.flags])?;
    file.handles.ep(call.ep)?.cancel(call.context)?;
    Ok(Undo::NoAnswer)
}
