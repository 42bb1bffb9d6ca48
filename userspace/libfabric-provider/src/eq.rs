// SPDX-License-Identifier: MIT OR Apache-2.0
//! Event queues: the kernel's events, and those that the program writes.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::OwnedFd;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kfabric_uapi as abi;

use crate::fabric::Fabric;
use crate::ffi::*;
use crate::kernel::{self, address, Device, Errno, Wait};
use crate::{info, pep, status, text};

/// An event that waits in the plug-in.
struct Event {
    event: u32,
    /// Address of the endpoint; 0 for an event of the program.
    object: usize,
    /// The error of a failed connection; 0 for none.
    err: i32,
    prov_errno: i32,
    info: usize,
    /// The entry for `fi_eq_read`, or the peer's data with an error.
    bytes: Vec<u8>,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    /// The data of the error that was read last.
    err_data: Vec<u8>,
}

/// An event queue.
#[repr(C)]
pub(crate) struct Queue {
    fid: fid_eq,
    dev: Arc<Device>,
    prov: Arc<str>,
    pub(crate) handle: u64,
    fd: OwnedFd,
    /// Readable while `State::events` is not empty.
    user: OwnedFd,
    both: OwnedFd,
    wait: Wait,
    /// Version of the interface that the program uses.
    version: u32,
    state: Mutex<State>,
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
static OPS: Table<fi_ops_eq> = Table(fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
});

/// Connection requests that the program has neither accepted nor rejected: by the address of the
/// fid that the program has.
static REQUESTS: LazyLock<Mutex<HashMap<usize, u64>>> = LazyLock::new(Mutex::default);

/// The fid of a connection request.
fn request(connreq: u64) -> *mut fid {
    let fid = fid {
        fclass: FI_CLASS_CONNREQ as usize,
        context: null_mut(),
        ops: null_mut(),
    };
    let at = Box::into_raw(Box::new(fid));
    let mut all = REQUESTS.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(at.expose_provenance(), connreq);
    at
}

/// Returns the kernel's handle of a connection request. `EINVAL` for any other fid.
pub(crate) fn request_handle(fid: *mut fid) -> Result<u64, Errno> {
    let all = REQUESTS.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(&fid.addr()).copied().ok_or(libc::EINVAL)
}

/// Takes the kernel's handle of a connection request. `EINVAL` for any other fid.
pub(crate) fn take_request(fid: *mut fid) -> Result<u64, Errno> {
    let mut all = REQUESTS.lock().unwrap_or_else(PoisonError::into_inner);
    let handle = all.remove(&fid.addr()).ok_or(libc::EINVAL)?;
    // SAFETY: the table had the address, so `request` boxed the fid and it is not freed yet.
    drop(unsafe { Box::from_raw(fid) });
    Ok(handle)
}

unsafe fn make(fabric: &Fabric, attr: *mut fi_eq_attr) -> Result<*mut Queue, Errno> {
    // SAFETY: null or valid attributes.
    let (size, wait) =
        unsafe { attr.as_ref() }.map_or((0, FI_WAIT_UNSPEC), |a| (a.size, a.wait_obj));
    let wait = Wait::new(wait)?;
    let mut arg = abi::EqOpen {
        fabric: fabric.handle,
        depth: u32::try_from(size)
            .unwrap_or(u32::MAX)
            .min(abi::KFI_EQ_SIZE_MAX),
        ..Default::default()
    };
    let user = kernel::eventfd()?;
    // SAFETY: no pointers.
    unsafe { fabric.dev.call(&mut arg)? };
    let opened =
        kernel::own(arg.fd).and_then(|fd| kernel::either(&fd, &user).map(|both| (fd, both)));
    let (fd, both) = opened.inspect_err(|_| {
        let _ = fabric.dev.close(arg.handle);
    })?;
    let fid = fid {
        fclass: FI_CLASS_EQ as usize,
        context: null_mut(),
        ops: FID.get(),
    };
    Ok(Box::into_raw(Box::new(Queue {
        fid: fid_eq {
            fid,
            ops: OPS.get(),
        },
        dev: fabric.dev.clone(),
        prov: fabric.prov.clone(),
        handle: arg.handle,
        fd,
        user,
        both,
        wait,
        version: fabric.fid.api_version,
        state: Mutex::default(),
    })))
}

/// `fi_eq_open`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    to: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments; the fabric is ours.
    status(unsafe {
        make(&*fabric.cast(), attr).map(|eq| {
            (*eq).fid.fid.context = context;
            *to = eq.cast();
        })
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the fid of a queue, which `make` boxed and the caller gives up.
    unsafe {
        let eq = fid.cast::<Queue>();
        let done = (*eq).dev.close((*eq).handle);
        if done.is_ok() {
            drop(Box::from_raw(eq));
        }
        status(done)
    }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: a queue's fid, and the argument that the command takes.
    unsafe {
        let eq = &*fid.cast::<Queue>();
        eq.wait.control(command, arg, &eq.both)
    }
}

/// Size of a `fi_eq_cm_entry` without data.
const CM_ENTRY: usize = size_of::<fi_eq_cm_entry>();

/// Lays out a `fi_eq_cm_entry`.
fn cm_entry(fid: usize, info: usize, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(CM_ENTRY + data.len());
    bytes.extend_from_slice(&fid.to_ne_bytes());
    bytes.extend_from_slice(&info.to_ne_bytes());
    bytes.extend_from_slice(data);
    bytes
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves an event of the kernel to `events`, if these are empty.
    fn fetch(&self, state: &mut State) -> Result<(), Errno> {
        if !state.events.is_empty() {
            return Ok(());
        }
        let mut data = [0u8; abi::KFI_CM_DATA_MAX];
        let mut entry = abi::InfoEntry::default();
        let mut arg = abi::EqRead {
            eq: self.handle,
            data: data.as_mut_ptr().expose_provenance() as u64,
            data_len: abi::KFI_CM_DATA_MAX as u32,
            info: (&raw mut entry).expose_provenance() as u64,
            ..Default::default()
        };
        // SAFETY: the buffers live through the call, and have the sizes that it is given.
        match unsafe { self.dev.call(&mut arg) } {
            Ok(()) => {}
            Err(libc::EAGAIN) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        let data = &data[..data.len().min(arg.data_len as usize)];
        let object = arg.context as usize;
        let mut event = Event {
            event: arg.event,
            object,
            err: 0,
            prov_errno: 0,
            info: 0,
            bytes: Vec::new(),
        };
        match arg.event {
            abi::KFI_CONNREQ => {
                // SAFETY: makes a new info.
                let Some(info) = (unsafe { info::make(&entry, None, self.version) }) else {
                    return Err(libc::ENOMEM);
                };
                // SAFETY: just made; a connection request has the context of a passive endpoint.
                unsafe {
                    (*info).handle = request(arg.connreq);
                    // The endpoint is open: `forget` waits for the lock that the caller holds.
                    pep::give_keys(object, info);
                }
                event.info = info.expose_provenance();
                event.bytes = cm_entry(object, event.info, data);
            }
            abi::KFI_CONN_ERROR => {
                let err = arg.err.max(1) as i32;
                event.err = kernel::translate(err);
                event.prov_errno = text::connection_code(&self.prov, err, arg.prov_errno as i32);
                event.bytes = data.to_vec();
            }
            _ => event.bytes = cm_entry(object, 0, data),
        }
        state.events.push_back(event);
        kernel::raise(&self.user);
        Ok(())
    }

    /// Removes the first event.
    fn take(&self, state: &mut State) -> Option<Event> {
        let event = state.events.pop_front();
        if state.events.is_empty() {
            kernel::lower(&self.user);
        }
        event
    }

    /// Reads an event; -FI_EAGAIN if there is none, -FI_EAVAIL if the first one is an error.
    unsafe fn next(&self, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize {
        let mut state = self.state();
        if let Err(errno) = self.fetch(&mut state) {
            return -(errno as isize);
        }
        let Some(first) = state.events.front() else {
            return -(libc::EAGAIN as isize);
        };
        if first.err != 0 {
            return -(FI_EAVAIL as isize);
        }
        // An event of the program is read whole, a connection's data as far as there is room.
        let least = match first.object {
            0 => first.bytes.len(),
            _ => first.bytes.len().min(CM_ENTRY),
        };
        if len < least {
            return -(FI_ETOOSMALL as isize);
        }
        let n = len.min(first.bytes.len());
        // SAFETY: the caller's buffer has `len` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(first.bytes.as_ptr(), buf.cast::<u8>(), n);
            *event = first.event;
        }
        if flags & u64::from(FI_PEEK) == 0 {
            self.take(&mut state);
        }
        n as isize
    }

    /// Removes the events of an endpoint that has been closed. Refuses connection requests among
    /// them.
    pub(crate) fn forget(&self, object: usize) {
        let mut state = self.state();
        let (gone, kept) = std::mem::take(&mut state.events)
            .into_iter()
            .partition::<VecDeque<_>, _>(|e| e.object == object);
        state.events = kept;
        if state.events.is_empty() {
            kernel::lower(&self.user);
        }
        drop(state);
        for event in gone.iter().filter(|e| e.info != 0) {
            let info: *mut fi_info = with_exposed_provenance_mut(event.info);
            // SAFETY: `fetch` made the info, and the program has not read the event.
            unsafe {
                if let Ok(connreq) = take_request((*info).handle) {
                    // Fails only if the peer has given up.
                    let _ = refuse(&self.dev, connreq, &[]);
                }
                info::free(info);
            }
        }
    }
}

/// Whether an event can be read.
pub(crate) unsafe fn ready(fid: *mut fid) -> bool {
    // SAFETY: a queue's fid.
    let eq = unsafe { &*fid.cast::<Queue>() };
    let mut state = eq.state();
    eq.fetch(&mut state).is_err() || !state.events.is_empty()
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    // SAFETY: a queue, and the caller's buffer.
    unsafe { (*eq.cast::<Queue>()).next(event, buf, len, flags) }
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    let end = u64::try_from(timeout)
        .ok()
        .map(|ms| Instant::now() + Duration::from_millis(ms));
    loop {
        // SAFETY: as for `read`.
        let rc = unsafe { read(eq, event, buf, len, flags) };
        if rc != -(libc::EAGAIN as isize) {
            return rc;
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return rc;
        }
        let ms = left.map_or(-1, |left| {
            i32::try_from(left.as_millis())
                .unwrap_or(i32::MAX)
                .saturating_add(1)
        });
        // SAFETY: a queue.
        let eq = unsafe { &*eq.cast::<Queue>() };
        kernel::poll(&eq.fd, &eq.user, ms);
    }
}

unsafe extern "C" fn readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize {
    // SAFETY: a queue, and the caller's entry.
    unsafe {
        let eq = &*eq.cast::<Queue>();
        let mut state = eq.state();
        if let Err(errno) = eq.fetch(&mut state) {
            return -(errno as isize);
        }
        if state.events.front().is_none_or(|e| e.err == 0) {
            return -(libc::EAGAIN as isize);
        }
        let peek = flags & u64::from(FI_PEEK) != 0;
        let Some(event) = state.events.front_mut() else {
            return -(libc::EAGAIN as isize);
        };
        let to = &mut *buf;
        let object: *mut fid = with_exposed_provenance_mut(event.object);
        to.fid = object;
        to.context = (*object).context;
        to.data = 0;
        to.err = event.err;
        to.prov_errno = event.prov_errno;
        let data = match peek {
            true => event.bytes.clone(),
            false => std::mem::take(&mut event.bytes),
        };
        if !peek {
            eq.take(&mut state);
        }
        state.err_data = data;
        let n = state.err_data.len();
        // Before 1.5 the field of the size is only an answer.
        let room = match eq.version < (1 << 16 | 5) || to.err_data.is_null() {
            true => 0,
            false => to.err_data_size,
        };
        if room != 0 {
            let n = n.min(room);
            std::ptr::copy_nonoverlapping(state.err_data.as_ptr(), to.err_data.cast::<u8>(), n);
            to.err_data_size = n;
        } else {
            to.err_data = match n {
                0 => null_mut(),
                _ => state.err_data.as_mut_ptr().cast(),
            };
            to.err_data_size = n;
        }
    }
    size_of::<fi_eq_err_entry>() as isize
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    _flags: u64,
) -> isize {
    // SAFETY: a queue, and `len` bytes of the caller.
    unsafe {
        let eq = &*eq.cast::<Queue>();
        let bytes = param(buf, len).to_vec();
        let event = Event {
            event,
            object: 0,
            err: 0,
            prov_errno: 0,
            info: 0,
            bytes,
        };
        eq.state().events.push_back(event);
        kernel::raise(&eq.user);
    }
    len as isize
}

unsafe extern "C" fn strerror(
    _: *mut fid_eq,
    prov_errno: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the caller's buffer.
    unsafe { text::give(text::connection(prov_errno), buf, len) }
}

/// Refuses a connection request.
pub(crate) fn refuse(dev: &Device, connreq: u64, data: &[u8]) -> Result<(), Errno> {
    let mut arg = abi::Reject {
        connreq,
        param: data.first().map_or(0, address),
        param_len: data.len() as u32,
        ..Default::default()
    };
    // SAFETY: the data lives through the call.
    unsafe { dev.call(&mut arg) }
}

/// Borrows a program's connection data.
pub(crate) unsafe fn param<'a>(at: *const c_void, len: usize) -> &'a [u8] {
    match at.is_null() || len == 0 {
        true => &[],
        // SAFETY: the caller's data of `len` bytes.
        false => unsafe { std::slice::from_raw_parts(at.cast(), len) },
    }
}
