// SPDX-License-Identifier: GPL-2.0
//! Entry points from C (`helpers.c`): the device's file operations and those of queues.

use core::ptr::NonNull;
use kernel::{
    bindings,
    error::from_err_ptr,
    ffi::{
        c_int,
        c_long,
        c_uint,
        c_ulong,
        c_void, //
    },
    fs::{
        File as KFile,
        LocalFile, //
    },
    prelude::*,
    seq_file::SeqFile,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use super::{
    call,
    file::File,
    list, //
};
use crate::{
    cq::Cq,
    eq::Eq,
    rings::End,
    sys::{
        self,
        wait::WaitQueue, //
    }, //
};

/// What a queue's descriptor stands for.
pub(super) enum Queue {
    /// Completions: poll and mmap.
    Cq(Arc<Cq>),
    /// Events: poll.
    Eq(Arc<Eq>),
    /// Rings: mmap.
    Rings(Arc<End>),
}

impl Queue {
    fn wait(&self) -> Option<&WaitQueue> {
        match self {
            Queue::Cq(cq) => Some(cq.wait()),
            Queue::Eq(eq) => Some(eq.wait()),
            Queue::Rings(_) => None,
        }
    }

    fn waiting(&self) -> bool {
        match self {
            Queue::Cq(cq) => cq.waiting() != 0 || cq.ring().alarm(),
            Queue::Eq(eq) => eq.waiting() != 0,
            Queue::Rings(_) => false,
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Queue::Cq(cq) => cq.is_closed(),
            Queue::Eq(eq) => eq.is_closed(),
            Queue::Rings(_) => false,
        }
    }
}

/// A queue's file, not yet a descriptor of anyone.
pub(super) struct QueueFile(ARef<KFile>);

impl QueueFile {
    pub(super) fn new(queue: Queue) -> Result<Self> {
        let queue = KBox::into_raw(KBox::new(queue, GFP_KERNEL_ACCOUNT)?);
        // SAFETY: The file takes the box over; `kf_queue_release` gives it back.
        let file = from_err_ptr(unsafe { sys::kf_queue_file(queue.cast()) }).inspect_err(|_| {
            // SAFETY: No file took it over.
            drop(unsafe { KBox::from_raw(queue) });
        })?;
        let file = NonNull::new(file).ok_or(ENOMEM)?;
        // SAFETY: A new file with one reference, which is ours, and which no thread has in use by
        // `fdget_pos`: nobody knows it yet.
        Ok(Self(unsafe { ARef::from_raw(file.cast()) }))
    }

    pub(super) fn into_file(self) -> ARef<KFile> {
        self.0
    }
}

/// # Safety
///
/// `private` came from [`QueueFile::new`] and the file is open.
unsafe fn queue<'a>(private: *mut c_void) -> &'a Queue {
    // SAFETY: The caller's promise; the box lives until release.
    unsafe { &*private.cast::<Queue>() }
}

/// Releases a queue's file.
///
/// # Safety
///
/// Called by the file's release, once, with its private data.
#[no_mangle]
unsafe extern "C" fn kf_queue_release(private: *mut c_void) {
    // SAFETY: `QueueFile::new` put it there, and nobody uses the file any more.
    let queue = unsafe { KBox::from_raw(private.cast::<Queue>()) };
    #[cfg(kfabric_seed_bug = "use-after-free")]
    let wait = queue.wait().map(core::ptr::from_ref);
    drop(queue);
    #[cfg(kfabric_seed_bug = "use-after-free")]
    if let Some(wait) = wait {
        // SAFETY: None: this is the bug.
        unsafe { (*wait).wake_all() };
    }
}

/// Polls a queue's file.
///
/// # Safety
///
/// Called by the file's poll, with its private data and valid pointers.
#[no_mangle]
unsafe extern "C" fn kf_queue_poll(
    private: *mut c_void,
    file: *mut bindings::file,
    table: *mut bindings::poll_table,
) -> bindings::__poll_t {
    // SAFETY: The caller's promise.
    let queue = unsafe { queue(private) };
    // SAFETY: The file is in use by this call, which does not change its position.
    let file = unsafe { KFile::from_raw_file(file) };
    if let Some(wait) = queue.wait() {
        // SAFETY: The caller's promise. The file holds the queue until its release.
        unsafe { wait.poll(file, table) };
    }
    let mut mask = 0;
    if queue.waiting() {
        mask |= bindings::POLLIN | bindings::POLLRDNORM;
    }
    if queue.is_closed() {
        mask |= bindings::POLLHUP;
    }
    mask
}

/// What a queue's file shows from page `at` on, or null: nothing ever (`size` 0) or nothing there.
///
/// # Safety
///
/// Called by the file's mmap, with its private data and valid pointers.
#[no_mangle]
unsafe extern "C" fn kf_queue_ring(
    private: *mut c_void,
    at: c_ulong,
    size: *mut c_ulong,
    writable: *mut bool,
) -> *mut c_void {
    // SAFETY: The caller's promise.
    let (whole, part) = match unsafe { queue(private) } {
        Queue::Cq(cq) => {
            let (ring, bytes) = cq.ring().raw();
            (bytes, (at == 0).then_some((ring, bytes, true)))
        }
        Queue::Eq(_) => (0, None),
        Queue::Rings(end) => (End::map_size(), end.part(at)),
    };
    let (start, bytes, may_write) = part.unwrap_or((core::ptr::null_mut(), whole, false));
    // SAFETY: The caller's promise.
    unsafe {
        size.write(bytes);
        writable.write(may_write);
    }
    start
}

/// # Safety
///
/// `private` came from [`kf_dev_open`] and the file is open.
unsafe fn dev<'a>(private: *mut c_void) -> &'a File {
    // SAFETY: The caller's promise: it is the pointer of an `Arc` that the open file holds.
    unsafe { &*private.cast::<File>() }
}

/// Opens the device.
///
/// # Safety
///
/// Called by the device's open, with valid pointers.
#[no_mangle]
unsafe extern "C" fn kf_dev_open(file: *mut bindings::file, private: *mut *mut c_void) -> c_int {
    // SAFETY: The file is being opened by this task alone.
    let kfile = unsafe { LocalFile::from_raw_file(file) };
    match File::open(kfile.cred()) {
        Ok(new) => {
            // SAFETY: The caller's promise.
            unsafe { private.write(Arc::into_raw(new).cast_mut().cast()) };
            0
        }
        Err(e) => e.to_errno(),
    }
}

/// Releases the device's file.
///
/// # Safety
///
/// Called by the device's release, once, with what open stored.
#[no_mangle]
unsafe extern "C" fn kf_dev_release(private: *mut c_void) {
    // SAFETY: `kf_dev_open` stored the pointer of an `Arc` for this.
    File::release(unsafe { Arc::from_raw(private.cast::<File>()) });
}

/// Runs an ioctl.
///
/// # Safety
///
/// Called by the device's ioctl, with what open stored.
#[no_mangle]
unsafe extern "C" fn kf_dev_ioctl(private: *mut c_void, cmd: c_uint, arg: c_ulong) -> c_long {
    // SAFETY: The caller's promise.
    let file = unsafe { dev(private) };
    match call::dispatch(file, cmd, arg as u64) {
        Ok(()) => 0,
        Err(e) => c_long::from(e.to_errno() as isize),
    }
}

/// Polls the device: for questions, if it is the agent.
///
/// # Safety
///
/// Called by the device's poll, with what open stored and valid pointers.
#[no_mangle]
unsafe extern "C" fn kf_dev_poll(
    private: *mut c_void,
    file: *mut bindings::file,
    table: *mut bindings::poll_table,
) -> bindings::__poll_t {
    // SAFETY: The caller's promise.
    let Some(seat) = (unsafe { dev(private) }).seat.as_ref() else {
        return 0;
    };
    // SAFETY: The file is in use by this call, which does not change its position.
    let file = unsafe { KFile::from_raw_file(file) };
    // SAFETY: The caller's promise. The file holds the seat until its release.
    unsafe { seat.wait().poll(file, table) };
    if !seat.is_current() {
        return bindings::POLLHUP;
    }
    if seat.has_question() {
        return bindings::POLLIN | bindings::POLLRDNORM;
    }
    0
}

/// Prints a file's fdinfo.
///
/// # Safety
///
/// Called by the device's show_fdinfo, with what open stored and a valid pointer.
#[no_mangle]
unsafe extern "C" fn kf_dev_show_fdinfo(private: *mut c_void, m: *mut bindings::seq_file) {
    // SAFETY: The caller's promise.
    let (file, m) = unsafe { (dev(private), SeqFile::from_raw(m)) };
    list::show(file, m);
}
