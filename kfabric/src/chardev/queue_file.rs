// SPDX-License-Identifier: GPL-2.0
//! The descriptors of queues and rings, and their file operations, which C calls (`helpers.c`).

use core::ptr::NonNull;
use kernel::{
    bindings,
    error::from_err_ptr,
    ffi::{
        c_ulong,
        c_void, //
    },
    fs::{
        file::FileDescriptorReservation,
        File as KFile, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    },
};

use crate::{
    objects::{
        cq::Cq,
        eq::Eq, //
    },
    provider::ring_pair::End,
    sys::{
        self,
        wait::WaitQueue, //
    },
};

/// The object behind a queue's descriptor.
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

/// A queue's file, without a descriptor yet.
pub(super) struct QueueFile(ARef<KFile>);

impl QueueFile {
    pub(super) fn new(queue: Queue) -> Result<Self> {
        let queue = KBox::into_raw(KBox::new(queue, GFP_KERNEL_ACCOUNT)?);
        // SAFETY: The file takes ownership of the box; `kf_queue_release` frees it.
        let file = from_err_ptr(unsafe { sys::kf_queue_file(queue.cast()) }).inspect_err(|_| {
            // SAFETY: On failure no file has taken ownership of the box.
            drop(unsafe { KBox::from_raw(queue) });
        })?;
        let file = NonNull::new(file).ok_or(ENOMEM)?;
        // SAFETY: This owns the only reference to the new file. No other thread has the file, so
        // none uses it by `fdget_pos`.
        Ok(Self(unsafe { ARef::from_raw(file.cast()) }))
    }

    pub(super) fn into_file(self) -> ARef<KFile> {
        self.0
    }
}

/// Creates a descriptor and its number; the descriptor is not visible to the program yet.
pub(super) fn descriptor(queue: Queue) -> Result<(FileDescriptorReservation, QueueFile, i32)> {
    let fd = FileDescriptorReservation::get_unused_fd_flags(bindings::O_CLOEXEC)?;
    let number = i32::try_from(fd.reserved_fd()).map_err(|_| EMFILE)?;
    Ok((fd, QueueFile::new(queue)?, number))
}

/// # Safety
///
/// `private` came from [`QueueFile::new`] and the file is open.
unsafe fn queue<'a>(private: *mut c_void) -> &'a Queue {
    // SAFETY: By the caller's contract `private` is the box of `QueueFile::new`, which lives until
    // release.
    unsafe { &*private.cast::<Queue>() }
}

/// Releases a queue's file.
///
/// # Safety
///
/// Called by the file's release, once, with its private data.
#[no_mangle]
unsafe extern "C" fn kf_queue_release(private: *mut c_void) {
    // SAFETY: `QueueFile::new` stored the box, and the released file is not used any more.
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
    // SAFETY: By the caller's contract `private` is the open file's data.
    let queue = unsafe { queue(private) };
    // SAFETY: The file is in use by this call, which does not change its position.
    let file = unsafe { KFile::from_raw_file(file) };
    if let Some(wait) = queue.wait() {
        // SAFETY: By the caller's contract the pointers are valid. The file holds the queue until
        // its release.
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

/// Returns the memory that a queue's file maps from page `at` on, or null if there is none. `size`
/// 0 means that the queue has no mapping at all.
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
    // SAFETY: By the caller's contract `private` is the open file's data.
    let (whole, part) = match unsafe { queue(private) } {
        Queue::Cq(cq) => {
            let (ring, bytes) = cq.ring().raw();
            (bytes, (at == 0).then_some((ring, bytes, true)))
        }
        Queue::Eq(_) => (0, None),
        Queue::Rings(end) => (End::map_size(), end.part(at)),
    };
    let (start, bytes, may_write) = part.unwrap_or((core::ptr::null_mut(), whole, false));
    // SAFETY: By the caller's contract the pointers are valid.
    unsafe {
        size.write(bytes);
        writable.write(may_write);
    }
    start
}

crate::same_prototype!(sys: kf_queue_release, kf_queue_poll, kf_queue_ring);
