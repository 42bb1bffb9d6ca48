// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::OwnedFd;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kfabric_uapi as abi;

use crate::domain::Domain;
use crate::ffi::*;
use crate::kernel::{self, Device, Errno, Ring, Wait};
use crate::post::injected;
use crate::{status, text};

/// A completion queue.
#[repr(C)]
pub(crate) struct Queue {
    fid: fid_cq,
    dev: Arc<Device>,
    pub(crate) handle: u64,
    format: fi_cq_format,
    prov: Arc<str>,
    fd: OwnedFd,
    signal: OwnedFd,
    wait: Wait,
    ring: Mutex<Ring>,
}

static FID: Table<fi_ops> = Table(fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(close),
    bind: absent(),
    control: Some(control),
    ops_open: absent(),
    tostr: None,
    ops_set: None,
});
static OPS: Table<fi_ops_cq> = Table(fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
});

unsafe fn make(
    domain: &Domain,
    attr: *mut fi_cq_attr,
    context: *mut c_void,
) -> Result<*mut Queue, Errno> {
    // SAFETY: null or valid attributes; only fields that all versions have are read.
    let (size, wait, format) = match attr.is_null() {
        true => (0, FI_WAIT_UNSPEC, FI_CQ_FORMAT_UNSPEC),
        // SAFETY: As above.
        false => unsafe { ((*attr).size, (*attr).wait_obj, (*attr).format) },
    };
    let wait = Wait::new(wait)?;
    let format = match format {
        FI_CQ_FORMAT_UNSPEC => FI_CQ_FORMAT_CONTEXT,
        FI_CQ_FORMAT_CONTEXT | FI_CQ_FORMAT_MSG | FI_CQ_FORMAT_DATA | FI_CQ_FORMAT_TAGGED => format,
        _ => return Err(libc::EINVAL),
    };
    // The kernel takes a slot when it accepts an operation, so the ring also has room for posted
    // receives.
    let asked = u32::try_from(size).unwrap_or(u32::MAX);
    let depth = asked.saturating_mul(4).clamp(4096, abi::KFI_CQ_SIZE_MAX);
    let mut arg = abi::CqOpen {
        domain: domain.handle,
        depth,
        format: abi::KFI_CQ_FORMAT_DATA,
        ..Default::default()
    };
    let signal = kernel::eventfd()?;
    // SAFETY: no pointers.
    unsafe { domain.dev.call(&mut arg)? };
    let opened = kernel::own(arg.fd)
        .and_then(|fd| Ring::map(&fd, arg.map_size as usize).map(|ring| (fd, ring)));
    let (fd, ring) = opened.inspect_err(|_| {
        let _ = domain.dev.close(arg.handle);
    })?;
    let fid = fid {
        fclass: FI_CLASS_CQ as usize,
        context,
        ops: FID.get(),
    };
    Ok(Box::into_raw(Box::new(Queue {
        fid: fid_cq {
            fid,
            ops: OPS.get(),
        },
        dev: domain.dev.clone(),
        handle: arg.handle,
        format,
        prov: domain.prov.clone(),
        fd,
        signal,
        wait,
        ring: Mutex::new(ring),
    })))
}

/// `fi_cq_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    to: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments; the domain is ours.
    status(unsafe { make(&*domain.cast(), attr, context).map(|cq| *to = cq.cast()) })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the fid of a queue, which `make` boxed and the caller gives up.
    unsafe {
        let cq = fid.cast::<Queue>();
        let done = (*cq).dev.close((*cq).handle);
        if done.is_ok() {
            drop(Box::from_raw(cq));
        }
        status(done)
    }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: a queue's fid, and the argument that the command takes.
    unsafe {
        let cq = &*fid.cast::<Queue>();
        cq.wait.control(command, arg, &cq.fd)
    }
}

/// Returns the oldest entry. Failures of injected operations are dropped: their context is none
/// of the program's.
fn front(ring: &Ring) -> Option<abi::CqEntry> {
    loop {
        let entry = ring.front()?;
        if entry.err == 0 || entry.context != injected() {
            return Some(entry);
        }
        ring.pop();
    }
}

/// Whether a completion can be read.
pub(crate) unsafe fn ready(fid: *mut fid) -> bool {
    // SAFETY: a queue's fid.
    let cq = unsafe { &*fid.cast::<Queue>() };
    let ring = cq.ring.lock().unwrap_or_else(PoisonError::into_inner);
    front(&ring).is_some()
}

fn pointer(context: u64) -> *mut c_void {
    with_exposed_provenance_mut(context as usize)
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: a queue, and an array of `count` entries in the queue's format.
    unsafe {
        let cq = &*cq.cast::<Queue>();
        let ring = cq.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut done = 0;
        while done < count {
            let Some(e) = front(&ring) else { break };
            if e.err != 0 {
                if done == 0 {
                    return -(FI_EAVAIL as isize);
                }
                break;
            }
            let (op_context, flags, len) = (pointer(e.context), e.flags, e.len as usize);
            match cq.format {
                FI_CQ_FORMAT_CONTEXT => buf
                    .cast::<fi_cq_entry>()
                    .add(done)
                    .write(fi_cq_entry { op_context }),
                FI_CQ_FORMAT_MSG => {
                    buf.cast::<fi_cq_msg_entry>()
                        .add(done)
                        .write(fi_cq_msg_entry {
                            op_context,
                            flags,
                            len,
                        });
                }
                FI_CQ_FORMAT_DATA => {
                    buf.cast::<fi_cq_data_entry>()
                        .add(done)
                        .write(fi_cq_data_entry {
                            op_context,
                            flags,
                            len,
                            buf: null_mut(),
                            data: e.data,
                        })
                }
                _ => buf
                    .cast::<fi_cq_tagged_entry>()
                    .add(done)
                    .write(fi_cq_tagged_entry {
                        op_context,
                        flags,
                        len,
                        buf: null_mut(),
                        data: e.data,
                        tag: 0,
                    }),
            }
            ring.pop();
            done += 1;
        }
        if done == 0 {
            return -(libc::EAGAIN as isize);
        }
        done as isize
    }
}

unsafe extern "C" fn readfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    from: *mut fi_addr_t,
) -> isize {
    // SAFETY: as for `read`; the addresses have as many entries.
    unsafe {
        let n = read(cq, buf, count);
        for i in 0..usize::try_from(n).unwrap_or(0) {
            if !from.is_null() {
                *from.add(i) = u64::MAX;
            }
        }
        n
    }
}

/// The error of a failed operation by libfabric's number.
fn errno(e: &abi::CqEntry) -> c_int {
    match e.err as c_int {
        libc::EMSGSIZE if e.flags & abi::KFI_RECV != 0 => FI_ETRUNC as c_int,
        other => kernel::translate(other),
    }
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, _flags: u64) -> isize {
    // SAFETY: a queue, and the caller's entry, of which only fields that all versions have are
    // written.
    unsafe {
        let cq = &*cq.cast::<Queue>();
        let ring = cq.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(e) = front(&ring).filter(|e| e.err != 0) else {
            return -(libc::EAGAIN as isize);
        };
        ring.pop();
        (*buf).op_context = pointer(e.context);
        (*buf).flags = e.flags;
        (*buf).len = e.len as usize;
        (*buf).buf = null_mut();
        (*buf).data = e.data;
        (*buf).tag = 0;
        (*buf).olen = e.olen as usize;
        (*buf).err = errno(&e);
        (*buf).prov_errno = text::completion_code(e.err as c_int, e.prov_errno);
        if (*buf).err_data_size == 0 {
            (*buf).err_data = null_mut();
        }
        (*buf).err_data_size = 0;
    }
    1
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    let end = u64::try_from(timeout)
        .ok()
        .map(|ms| Instant::now() + Duration::from_millis(ms));
    loop {
        // SAFETY: as for `read`.
        let rc = unsafe { read(cq, buf, count) };
        if rc != -(libc::EAGAIN as isize) {
            return rc;
        }
        // SAFETY: a queue.
        let queue = unsafe { &*cq.cast::<Queue>() };
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if kernel::lower(&queue.signal) || left.is_some_and(|left| left.is_zero()) {
            return rc;
        }
        let ms = left.map_or(-1, |left| {
            i32::try_from(left.as_millis())
                .unwrap_or(i32::MAX)
                .saturating_add(1)
        });
        kernel::poll(&queue.fd, &queue.signal, ms);
    }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    from: *mut fi_addr_t,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: as for `sread`; the addresses have as many entries.
    unsafe {
        let n = sread(cq, buf, count, cond, timeout);
        for i in 0..usize::try_from(n).unwrap_or(0) {
            if !from.is_null() {
                *from.add(i) = u64::MAX;
            }
        }
        n
    }
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    // SAFETY: a queue.
    kernel::raise(unsafe { &(*cq.cast::<Queue>()).signal });
    0
}

unsafe extern "C" fn strerror(
    cq: *mut fid_cq,
    prov_errno: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: a queue, and the caller's buffer.
    unsafe {
        let cq = &*cq.cast::<Queue>();
        text::give(text::completion(&cq.prov, prov_errno), buf, len)
    }
}
