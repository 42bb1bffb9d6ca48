// SPDX-License-Identifier: GPL-2.0
//! Listing of objects: `KFI_IOC_OBJ_LIST`, and fdinfo.

use core::{
    fmt::{
        Arguments,
        Write, //
    },
    ops::Range,
    sync::atomic::Ordering, //
};
use kernel::{
    prelude::*,
    seq_file::SeqFile,
    seq_print,
    task::Task, //
};
use zerocopy::IntoBytes;

use crate::{
    base::name::set_name,
    chardev::{
        args::zero,
        file::File,
        handles::{
            Entry,
            Object, //
        },
        undo::Undo,
        user, //
    },
    pure::key::State,
    sys,
    uapi::*,
};

fn describe(handle: u64, entry: &Entry) -> ObjInfo {
    let mut info: ObjInfo = zerocopy::FromZeros::new_zeroed();
    info.handle = handle;
    info.parent = entry.parent;
    match &entry.object {
        Object::Fabric(x) => {
            info.kind = KFI_TYPE_FABRIC;
            set_name(&mut info.name, x.provider().name());
        }
        Object::Domain(x) => {
            info.kind = KFI_TYPE_DOMAIN;
            info.a = x.pinned.load(Ordering::Relaxed);
            info.auth = x.auth().map_or(0, |key| key.number());
            set_name(&mut info.name, x.name());
        }
        Object::Eq(x) => {
            info.kind = KFI_TYPE_EQ;
            info.a = x.depth() as u64;
            info.b = u64::from(x.waiting());
        }
        Object::Cq(x) => {
            info.kind = KFI_TYPE_CQ;
            info.a = u64::from(x.entries());
            info.b = u64::from(x.waiting());
        }
        Object::Cntr(x) => {
            let counts = x.read();
            info.kind = KFI_TYPE_CNTR;
            info.a = counts.value;
            info.b = counts.errors;
        }
        Object::Pep(_) => info.kind = KFI_TYPE_PEP,
        Object::Ep(x) => {
            info.kind = KFI_TYPE_EP;
            info.a = u64::from(x.outstanding());
            info.b = u64::from(x.state());
            info.c = x.completed();
            info.auth = x.under().number();
        }
        Object::Region(x) => {
            info.kind = KFI_TYPE_REGION;
            info.a = x.memory().len() as u64;
            info.b = x.access();
            info.c = x.memory().charged() as u64;
            info.auth = x.under().number();
            info.ep = x.bound().map_or(0, |bound| bound.handle());
            set_name(&mut info.name, x.memory().persistence().name());
        }
        Object::Key(x) => {
            info.kind = KFI_TYPE_KEY;
            info.auth = x.under().number();
            info.ep = x.bound().map_or(0, |bound| bound.handle());
        }
        Object::Request(_) => info.kind = KFI_TYPE_CONNREQ,
    }
    info
}

/// Adds attributes whose query may sleep.
fn complete(info: &mut ObjInfo, object: &Object) {
    match object {
        Object::Domain(x) => {
            let counts = x.ops().key_counts();
            info.keys_used = counts.used;
            info.keys_reused = counts.reused;
            info.keys_worn = counts.worn;
            info.keys_spent = counts.spent;
        }
        Object::Key(x) => {
            let (state, keys) = x.state();
            let word = match state {
                State::Reserved => "reserved",
                State::Assigning(_) => "assigning",
                State::Promised { grant, .. } => {
                    (info.a, info.b, info.c) = (grant.len, grant.access, grant.offset);
                    "promised"
                }
                State::Assigned { grant, .. } => {
                    (info.a, info.b, info.c) = (grant.len, grant.access, grant.offset);
                    if x.is_used() {
                        "used"
                    } else {
                        "assigned"
                    }
                }
                State::Revoking { .. } => "revoking",
                State::Freed => "closed",
            };
            set_text(&mut info.name, format_args!("{word} {keys}"));
        }
        Object::Ep(x) => set_addr(&mut info.name, &x.peer_addr()),
        Object::Pep(x) => set_addr(&mut info.name, &x.local_addr()),
        _ => {}
    }
}

/// Writes a text into a field, cut if necessary.
fn set_text(field: &mut [u8; KFI_NAME_MAX], text: Arguments<'_>) {
    struct Text<'a>(&'a mut [u8; KFI_NAME_MAX], usize);
    impl Write for Text<'_> {
        fn write_str(&mut self, s: &str) -> core::fmt::Result {
            // The last byte stays NUL.
            let end = self.1 + s.len();
            if end >= self.0.len() {
                return Err(core::fmt::Error);
            }
            self.0[self.1..end].copy_from_slice(s.as_bytes());
            self.1 = end;
            Ok(())
        }
    }
    // All texts are shorter than the field; a longer one would be cut.
    let _ = Text(field, 0).write_fmt(text);
}

/// Writes an address as text.
fn set_addr(field: &mut [u8; KFI_NAME_MAX], addr: &SockAddr) {
    let d = &addr.data;
    let port = u16::from_be_bytes([d[2], d[3]]);
    match addr.len {
        16 => {
            let ip = core::net::Ipv4Addr::new(d[4], d[5], d[6], d[7]);
            set_text(field, format_args!("{ip}:{port}"));
        }
        28 if u16::from_ne_bytes([d[0], d[1]]) == 1 => {
            let name = d[2..].split(|byte| *byte == 0).next().unwrap_or_default();
            set_text(field, format_args!("{}", name.escape_ascii()));
        }
        28 => {
            let mut ip = [0; 16];
            ip.copy_from_slice(&d[8..24]);
            let ip = core::net::Ipv6Addr::from(ip);
            set_text(field, format_args!("[{ip}]:{port}"));
        }
        _ => {}
    }
}

/// Returns the next object of `file` among `cells`, and removes the visited cells from the range.
fn next(file: &File, cells: &mut Range<u32>) -> Result<Option<ObjInfo>> {
    for index in cells {
        sys::pause()?;
        if let Some((handle, entry)) = file.handles.peek(index) {
            let mut info = describe(handle, &entry);
            complete(&mut info, &entry.object);
            return Ok(Some(info));
        }
    }
    Ok(None)
}

fn owner(task: &Task) -> (u32, [u8; 16]) {
    let mut comm = [0; 16];
    // SAFETY: The task is held, and `comm` is a local buffer.
    unsafe { sys::kf_task_comm(task.as_ptr(), &mut comm) };
    // SAFETY: The task is held.
    let pid = unsafe { sys::kf_task_tgid(task.as_ptr()) };
    (u32::try_from(pid).unwrap_or(0), comm)
}

/// Bytes of an [`ObjInfo`] in the interface's first version.
const OBJ_INFO_FIRST: usize = core::mem::offset_of!(ObjInfo, auth);

pub(crate) fn list(file: &File, call: &mut ObjList) -> Result<Undo> {
    zero(&[call.flags])?;
    if call.reserved != [0; 3] {
        return Err(EINVAL);
    }
    user::check_entry_size_from::<ObjInfo>(call.entry_size, OBJ_INFO_FIRST)?;
    let everything = file.sees_all();
    let mut count = 0_u32;
    File::for_each(|other| {
        if !everything && !file.sees(other) {
            return Ok(());
        }
        let (pid, comm) = owner(&other.opener.task);
        let mut cells = 0..other.handles.cells();
        while let Some(mut info) = next(other, &mut cells)? {
            info.pid = pid;
            info.comm = comm;
            if !everything && info.auth != 0 {
                // Shows only that there is an auth key, because equal numbers would disclose shared
                // auth keys.
                info.auth = 1;
            }
            if count < call.count {
                // CAST: A `u32` fits.
                user::write_entry(
                    call.entries,
                    call.entry_size,
                    count as usize,
                    info.as_bytes(),
                )?;
            }
            count = count.checked_add(1).ok_or(EOVERFLOW)?;
        }
        Ok(())
    })?;
    call.count = count;
    Ok(Undo::Nothing)
}

/// Maximum of objects that `/proc/PID/fdinfo` shows singly. If the text exceeds its buffer, it is
/// rendered again at the reader's expense.
const SHOWN: u64 = 1024;

/// Prints a file's objects, for `/proc/PID/fdinfo`.
pub(crate) fn show(file: &File, m: &SeqFile) {
    const NAMES: [&str; 11] = [
        "", "fabric", "domain", "eq", "cq", "cntr", "pep", "ep", "region", "key", "connreq",
    ];
    let mut counts = [0_u64; NAMES.len()];
    let mut pages = 0;
    let mut cells = 0..file.handles.cells();
    while let Ok(Some(info)) = next(file, &mut cells) {
        // CAST: A small number.
        if let Some(count) = counts.get_mut(info.kind as usize) {
            *count += 1;
        }
        if info.kind == KFI_TYPE_REGION {
            pages += info.c;
        }
    }
    seq_print!(m, "kfabric-pages:\t{pages}\n");
    for (name, count) in NAMES.iter().zip(counts).skip(1) {
        seq_print!(m, "kfabric-{name}:\t{count}\n");
    }
    let mut cells = 0..file.handles.cells();
    for _ in 0..SHOWN {
        let Ok(Some(info)) = next(file, &mut cells) else {
            return;
        };
        // CAST: A small number.
        let name = NAMES.get(info.kind as usize).unwrap_or(&"");
        seq_print!(
            m,
            "{name}\t{:#x} on {:#x}: {} {} {}\n",
            info.handle,
            info.parent,
            info.a,
            info.b,
            info.c
        );
    }
    let more = counts.iter().sum::<u64>().saturating_sub(SHOWN);
    if more != 0 {
        seq_print!(m, "and {more} more\n");
    }
}
