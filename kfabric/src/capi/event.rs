// SPDX-License-Identifier: GPL-2.0
//! Event queues.

use core::{
    ptr,
    sync::atomic::{
        AtomicPtr,
        Ordering, //
    }, //
};
use kernel::{
    ffi::{
        c_char,
        c_int,
        c_void, //
    },
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    types::Opaque, //
};

use super::{
    cm,
    fabric::{
        check_wait,
        deadline,
        get_wait,
        FabricObj, //
    },
    info,
    obj::{
        self,
        code,
        enosys,
        kfi_error,
        Object,
        Place, //
    },
    queue::prov_error,
    raw, //
};
use crate::{
    objects::eq::{
        Eq,
        EqHandler,
        Event, //
    },
    uapi, //
};

/// Calls the consumer's event handler.
///
/// # Invariants
///
/// Null, or a queue that is not freed while events are added to it.
struct Told(AtomicPtr<raw::kfid_eq>);

impl EqHandler for Told {
    fn event(&self) {
        let eq = self.0.load(Ordering::Acquire);
        // SAFETY: By the type invariant the queue is not freed. The consumer does not write this
        // field.
        let handler = unsafe { eq.as_ref() }.and_then(|eq| eq.event_handler);
        if let Some(handler) = handler {
            // SAFETY: The core calls handlers in process context, as the header promises. The
            // handler gets the context that the consumer passed.
            unsafe { handler(eq, (*eq).fid.context) }
        }
    }
}

/// Error data of the event that the last `kfi_eq_readerr()` returned; `err_data` points here.
#[pin_data]
struct Said {
    #[pin]
    data: Mutex<KVec<u8>>,
}

/// An event queue.
#[repr(C)]
pub(super) struct EqObj {
    fid: Opaque<raw::kfid_eq>,
    pub(super) eq: Arc<Eq>,
    said: Arc<Said>,
    /// The consumer waits by a wait queue of the kernel (`KFI_WAIT_QUEUE`).
    by_queue: bool,
}

// SAFETY: The `repr(C)` object begins with the C structure of this class.
unsafe impl Object for EqObj {
    type C = raw::kfid_eq;
    const CLASS: u32 = raw::KFI_CLASS_EQ;
    const OPS: &'static raw::kfi_ops = &EQ;
}

static EQ: raw::kfi_ops = raw::kfi_ops {
    size: size_of::<raw::kfi_ops>(),
    close: Some(close),
    bind: Some(obj::no_bind),
    control: Some(control),
    ops_open: Some(obj::no_ops),
};

static OPS: raw::kfi_ops_eq = raw::kfi_ops_eq {
    size: size_of::<raw::kfi_ops_eq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
};

fn open(
    fabric: &FabricObj,
    attr: Option<&raw::kfi_eq_attr>,
    handler: raw::kfi_event_handler,
    context: *mut c_void,
) -> Result<*mut raw::kfid_eq> {
    let (mut depth, mut by_queue) = (0, false);
    if let Some(attr) = attr {
        by_queue = check_wait(attr.wait_obj, attr.wait_set)?;
        if attr.flags & !u64::from(raw::KFI_AFFINITY) != 0 {
            return Err(EINVAL);
        }
        depth = u32::try_from(attr.size).map_err(|_| EINVAL)?;
    }
    let place = Place::<EqObj>::new()?;
    let said = Arc::pin_init(
        pin_init!(Said {
            data <- new_mutex!(KVec::new(), "kfabric_capi_eq"),
        }),
        GFP_KERNEL,
    )?;
    // INVARIANT: Null for now. Later it is the queue, which `close()` closes before it frees it.
    let told = Arc::new(Told(AtomicPtr::new(ptr::null_mut())), GFP_KERNEL)?;
    let eq = Eq::open(&fabric.fabric, depth, Some(told.clone()))?;
    let object = EqObj {
        fid: Opaque::uninit(),
        eq,
        said,
        by_queue,
    };
    let made = place.put(object, context, |c| {
        c.ops = ptr::from_ref(&OPS).cast_mut();
        c.event_handler = handler;
    });
    told.0.store(made, Ordering::Release);
    Ok(made)
}

pub(super) unsafe extern "C" fn eq_open(
    fabric: *mut raw::kfid_fabric,
    attr: *mut raw::kfi_eq_attr,
    eq: *mut *mut raw::kfid_eq,
    handler: raw::kfi_event_handler,
    context: *mut c_void,
) -> c_int {
    // SAFETY: The consumer passes an open fabric of this module, and attributes or null.
    let (fabric, attr) = unsafe { (obj::get::<FabricObj, _>(fabric), attr.as_ref()) };
    code(open(fabric, attr, handler, context).map(|made| {
        // SAFETY: The caller passes a valid place for the result.
        unsafe { *eq = made }
    }))
}

unsafe extern "C" fn close(fid: *mut raw::kfid) -> c_int {
    // SAFETY: The consumer closes an event queue of this module.
    let this = unsafe { obj::get::<EqObj, _>(fid) };
    if let Err(e) = this.eq.close() {
        return e.to_errno();
    }
    // SAFETY: The queue is closed, so no event is added any more. The consumer no longer uses it.
    drop(unsafe { obj::take::<EqObj>(fid) });
    0
}

unsafe extern "C" fn control(fid: *mut raw::kfid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: The consumer passes an open event queue of this module, and the command's argument.
    unsafe {
        let this = obj::get::<EqObj, _>(fid);
        code(get_wait(command, this.by_queue, this.eq.wait(), arg))
    }
}

impl EqObj {
    /// Copies the oldest event to `buf` and removes the event, unless `flags` has `KFI_PEEK`.
    /// Returns the number of bytes written and the event's kind.
    ///
    /// # Safety
    ///
    /// `buf` has room for `len` bytes.
    unsafe fn read(&self, buf: *mut c_void, len: usize, flags: u64) -> Result<(usize, u32)> {
        let peek = flags & u64::from(raw::KFI_PEEK) != 0;
        if flags & !u64::from(raw::KFI_PEEK) != 0 {
            return Err(EINVAL);
        }
        let mut written = (0, 0);
        self.eq.read_with(|event: &Event| {
            if event.kind == uapi::KFI_CONN_ERROR {
                return Err(kfi_error(raw::KFI_EAVAIL));
            }
            let head = size_of::<raw::kfi_eq_cm_entry>();
            let Some(room) = len.checked_sub(head) else {
                return Err(kfi_error(raw::KFI_ETOOSMALL));
            };
            let mut info = ptr::null_mut();
            if let Some(request) = event.request.as_ref().filter(|_| !peek) {
                let list = info::offer(request.info(), None)?;
                if let Some(key) = request.auth() {
                    info::set_auth(&list, key)?;
                }
                let handle = cm::add_request(request.clone(), event.context, self.eq.fabric())?;
                info = list.give();
                // SAFETY: The list has one info. No other task has a pointer to it before the entry
                // holds it.
                unsafe { (*info).handle = handle };
            }
            let data = event.data.get(..room.min(event.data.len())).unwrap_or(&[]);
            let entry = buf.cast::<raw::kfi_eq_cm_entry>();
            // CAST: An event's context is the address of the C object that the event is about.
            // SAFETY: `buf` has room for the entry and `data` after it, as `len` was checked. The
            // writes need no alignment.
            unsafe {
                ptr::addr_of_mut!((*entry).fid).write_unaligned(event.context as *mut raw::kfid);
                ptr::addr_of_mut!((*entry).info).write_unaligned(info);
                let behind = buf.cast::<u8>().add(head);
                ptr::copy_nonoverlapping(data.as_ptr(), behind, data.len());
            }
            written = (head + data.len(), event.kind);
            Ok(!peek)
        })?;
        Ok(written)
    }
}

/// Stores the event's kind, and returns the number of bytes or a negative error number.
///
/// # Safety
///
/// `event` is a valid place.
unsafe fn answer(read: Result<(usize, u32)>, event: *mut u32) -> isize {
    match read {
        Ok((written, kind)) => {
            // SAFETY: By this function's contract `event` is valid.
            unsafe { *event = kind };
            // CAST: An entry with its data is far shorter than `isize::MAX`.
            written as isize
        }
        // CAST: An `isize` holds every `c_int`.
        Err(e) if e == ERESTARTSYS => EINTR.to_errno() as isize,
        Err(e) => e.to_errno() as isize,
    }
}

unsafe extern "C" fn read(
    eq: *mut raw::kfid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    // SAFETY: The consumer passes an open event queue of this module, a buffer of `len` bytes, and
    // a valid place for the kind.
    unsafe { answer(obj::get::<EqObj, _>(eq).read(buf, len, flags), event) }
}

unsafe extern "C" fn sread(
    eq: *mut raw::kfid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    // SAFETY: The consumer passes an open event queue of this module.
    let this = unsafe { obj::get::<EqObj, _>(eq) };
    let deadline = deadline(timeout, this.by_queue);
    loop {
        let left = deadline.left_ms();
        let waited = this.eq.wait().wait_until(|| this.eq.waiting() != 0, left);
        if let Err(e) = waited {
            // CAST: An `isize` holds every `c_int`.
            return e.to_errno() as isize;
        }
        // SAFETY: This function has the contract of `read()`.
        let taken = unsafe { read(eq, event, buf, len, flags) };
        // If another reader took the event, wait again. CAST: An `isize` holds every `c_int`.
        if left == 0 || taken != EAGAIN.to_errno() as isize {
            return taken;
        }
    }
}

unsafe extern "C" fn readerr(
    eq: *mut raw::kfid_eq,
    buf: *mut raw::kfi_eq_err_entry,
    _flags: u64,
) -> isize {
    // SAFETY: The consumer passes an open event queue of this module.
    let this = unsafe { obj::get::<EqObj, _>(eq) };
    let taken = this.eq.read_with(|event| {
        if event.kind != uapi::KFI_CONN_ERROR {
            return Err(EAGAIN);
        }
        let mut data = KVec::new();
        data.extend_from_slice(&event.data, GFP_KERNEL)?;
        let mut said = this.said.data.lock();
        *said = data;
        let fid = event.context as *mut raw::kfid;
        // CAST: An event's context is the address of the C object that the event is about. Error
        // numbers are small.
        let entry = raw::kfi_eq_err_entry {
            fid,
            // SAFETY: The object exists: its close waits until no task reads an event of the
            // object.
            context: unsafe { (*fid).context },
            data: 0,
            err: event.err as c_int,
            prov_errno: event.prov_errno as c_int,
            err_data: match said.is_empty() {
                true => ptr::null_mut(),
                false => said.as_mut_ptr().cast(),
            },
            err_data_size: said.len(),
        };
        // SAFETY: The caller passes a valid place for the entry.
        unsafe { *buf = entry };
        Ok(true)
    });
    match taken {
        // CAST: An `isize` holds the size of the entry, and every `c_int`.
        Ok(()) => size_of::<raw::kfi_eq_err_entry>() as isize,
        Err(e) if e == ERESTARTSYS => EINTR.to_errno() as isize,
        Err(e) => e.to_errno() as isize,
    }
}

unsafe extern "C" fn write(
    _eq: *mut raw::kfid_eq,
    _event: u32,
    _buf: *const c_void,
    _len: usize,
    _flags: u64,
) -> isize {
    // CAST: An `isize` holds every `c_int`.
    enosys().to_errno() as isize
}

unsafe extern "C" fn strerror(
    _eq: *mut raw::kfid_eq,
    prov_errno: c_int,
    _data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: The caller passes a buffer of `len` bytes, or null.
    unsafe { prov_error(prov_errno, buf, len) }
}
