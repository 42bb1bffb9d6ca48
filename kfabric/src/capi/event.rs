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
    eq::{
        Eq,
        EqHandler,
        Event, //
    },
    uapi, //
};

/// Tells the consumer's handler of events.
///
/// # Invariants
///
/// Null, or a queue that stays as long as events are added to it.
struct Told(AtomicPtr<raw::kfid_eq>);

impl EqHandler for Told {
    fn event(&self) {
        let eq = self.0.load(Ordering::Acquire);
        // SAFETY: By the type invariant it stays, and the consumer leaves the fields alone.
        let handler = unsafe { eq.as_ref() }.and_then(|eq| eq.event_handler);
        if let Some(handler) = handler {
            // SAFETY: A handler is called in process context, with the context it was given.
            unsafe { handler(eq, (*eq).fid.context) }
        }
    }
}

/// What the last error came with, for those who read it.
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
    /// It is waited for by a wait queue of the kernel.
    by_queue: bool,
}

// SAFETY: Begins with its structure, whose class this is.
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
    // INVARIANT: Nothing yet; below, the queue, which is closed before it is freed.
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
    // SAFETY: The consumer passes one of ours, and attributes or null.
    let (fabric, attr) = unsafe { (obj::get::<FabricObj, _>(fabric), attr.as_ref()) };
    code(open(fabric, attr, handler, context).map(|made| {
        // SAFETY: The caller's place.
        unsafe { *eq = made }
    }))
}

unsafe extern "C" fn close(fid: *mut raw::kfid) -> c_int {
    // SAFETY: The consumer closes one of ours.
    let this = unsafe { obj::get::<EqObj, _>(fid) };
    if let Err(e) = this.eq.close() {
        return e.to_errno();
    }
    // SAFETY: It is closed: no event is added to it any more, and nobody uses it.
    drop(unsafe { obj::take::<EqObj>(fid) });
    0
}

unsafe extern "C" fn control(fid: *mut raw::kfid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: The consumer passes one of ours, and what the command takes.
    unsafe {
        let this = obj::get::<EqObj, _>(fid);
        code(get_wait(command, this.by_queue, this.eq.wait(), arg))
    }
}

impl EqObj {
    /// Takes the oldest event, or looks at it: bytes written, and its kind.
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
                // SAFETY: One info, ours until it is in the buffer.
                unsafe { (*info).handle = handle };
            }
            let data = event.data.get(..room.min(event.data.len())).unwrap_or(&[]);
            let entry = buf.cast::<raw::kfi_eq_cm_entry>();
            // CAST: The context of what events are of is the address of the object.
            // SAFETY: There is room for the entry and the data behind it, which need not be
            // aligned.
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

/// As C has it.
///
/// # Safety
///
/// `event` is the caller's place.
unsafe fn answer(read: Result<(usize, u32)>, event: *mut u32) -> isize {
    match read {
        Ok((written, kind)) => {
            // SAFETY: The caller's promise.
            unsafe { *event = kind };
            // CAST: Far below the largest.
            written as isize
        }
        // CAST: A `c_int` fits.
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
    // SAFETY: The consumer passes one of ours, and a buffer of the length that it says.
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
    // SAFETY: As for `read`.
    let this = unsafe { obj::get::<EqObj, _>(eq) };
    let deadline = deadline(timeout, this.by_queue);
    loop {
        let left = deadline.left_ms();
        let waited = this.eq.wait().wait_until(|| this.eq.waiting() != 0, left);
        if let Err(e) = waited {
            // CAST: A `c_int` fits.
            return e.to_errno() as isize;
        }
        // SAFETY: As for `read`.
        let taken = unsafe { read(eq, event, buf, len, flags) };
        // Another reader may have been faster. CAST: A `c_int` fits.
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
    // SAFETY: The consumer passes one of ours.
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
        // CAST: The context of what events are of is the address of the object; error numbers are
        // small.
        let entry = raw::kfi_eq_err_entry {
            fid,
            // SAFETY: Closing it waits until nobody looks at an event of it.
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
        // SAFETY: The caller's place.
        unsafe { *buf = entry };
        Ok(true)
    });
    match taken {
        // CAST: A small size, and error numbers.
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
    // CAST: A `c_int` fits.
    enosys().to_errno() as isize
}

unsafe extern "C" fn strerror(
    _eq: *mut raw::kfid_eq,
    prov_errno: c_int,
    _data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: The caller's buffer, or null.
    unsafe { prov_error(prov_errno, buf, len) }
}
