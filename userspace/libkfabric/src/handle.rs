// SPDX-License-Identifier: MIT OR Apache-2.0
//! The open device file, and the handles of its objects.
#![forbid(unsafe_code)]

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kfabric_uapi::{self as abi, Ioctl};

use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::object::{Kind, ObjectId};
use crate::sys::{self, Backend, Buf};

/// An open device file, shared by all objects opened on it.
pub(crate) struct Shared {
    pub(crate) backend: Box<dyn Backend>,
    /// Handles that could not be closed yet, because an operation used them. Oldest first.
    orphans: Mutex<Vec<ObjectId>>,
    /// Held by the thread that closes orphans.
    turn: Mutex<()>,
}

impl Shared {
    pub(crate) fn new(backend: Box<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            backend,
            orphans: Mutex::new(Vec::new()),
            turn: Mutex::new(()),
        })
    }

    /// Refuses an object of another device file: in this one its handle names another object, or
    /// none.
    ///
    /// # Errors
    ///
    /// - [`Error::Argument`] (`EINVAL`).
    pub(crate) fn owns(self: &Arc<Self>, object: &Handle) -> Result<()> {
        if Arc::ptr_eq(self, &object.dev) {
            return Ok(());
        }
        Err(Error::foreign(object.id))
    }

    /// Makes an ioctl call. Errors name `object`.
    pub(crate) fn call<T: Ioctl>(
        &self,
        object: ObjectId,
        arg: &mut T,
        bufs: &mut [Buf<'_>],
    ) -> Result<()> {
        let name = T::NAME.strip_prefix("KFI_IOC_").unwrap_or(T::NAME);
        sys::call(&*self.backend, arg, bufs).map_err(|errno| Error::Call {
            call: name,
            object,
            errno,
        })
    }

    /// Closes a handle. Tries again to close the handles in `orphans`: if one of them is what keeps
    /// the object busy, before, otherwise afterwards.
    pub(crate) fn close(&self, id: ObjectId) -> Result<()> {
        let mut closed = self.try_close(id);
        if closed.as_ref().is_err_and(is_busy) {
            self.close_orphans();
            closed = self.try_close(id);
        }
        closed?;
        self.close_orphans();
        Ok(())
    }

    fn try_close(&self, id: ObjectId) -> Result<()> {
        let mut arg: abi::Close = sys::new();
        arg.handle = id.handle;
        self.call(id, &mut arg, &mut [])
    }

    /// Closes the handles in `orphans` that are not busy any more. If another thread does so, waits for
    /// it.
    fn close_orphans(&self) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut orphans = std::mem::take(&mut *self.orphans());
            let before = orphans.len();
            orphans.retain(|id| self.try_close(*id).is_err_and(|e| is_busy(&e)));
            let left = orphans.len();
            let mut kept = self.orphans();
            // Handles that another thread has added meanwhile are newer.
            orphans.append(&mut kept);
            *kept = orphans;
            drop(kept);
            if left == before {
                return;
            }
            // The parent of a handle that is closed now may come before the handle.
        }
    }

    fn orphans(&self) -> MutexGuard<'_, Vec<ObjectId>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a handle that could not be closed, for a later attempt.
    pub(crate) fn orphan(&self, id: ObjectId) {
        self.orphans().push(id);
    }

    /// Takes ownership of a descriptor that a call returned.
    pub(crate) fn take_fd(&self, call: &'static str, object: ObjectId, fd: i32) -> Result<OwnedFd> {
        self.backend.take_fd(fd).map_err(|errno| Error::Call {
            call,
            object,
            errno,
        })
    }
}

/// Whether the kernel refused to close an object because something uses the object.
fn is_busy(error: &Error) -> bool {
    error.errno() == Some(Errno::EBUSY)
}

/// A handle of the kernel, closed when dropped.
pub(crate) struct Handle {
    pub(crate) dev: Arc<Shared>,
    pub(crate) id: ObjectId,
    closed: AtomicBool,
}

impl Handle {
    pub(crate) fn new(dev: &Arc<Shared>, kind: Kind, handle: u64) -> Self {
        Self {
            dev: dev.clone(),
            id: ObjectId { kind, handle },
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn raw(&self) -> u64 {
        self.id.handle
    }

    /// Closes the handle now. A later drop does nothing.
    pub(crate) fn close(&self) -> Result<()> {
        self.dev.close(self.id)?;
        self.forget();
        Ok(())
    }

    /// Marks the handle as closed: the kernel has used it up.
    pub(crate) fn forget(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

impl Handle {
    /// Closes the handle, now or together with the device file.
    pub(crate) fn end(&self) {
        if self.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        // If an operation still uses the object, closing is tried again when the next object is
        // closed. At the latest, the kernel closes the object with the file.
        if self.dev.close(self.id).is_err_and(|e| is_busy(&e)) {
            self.dev.orphan(self.id);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)
    }
}

/// Implements `Debug` for a type: formats the type's handle, which is the given field.
macro_rules! debug_by_handle {
    ($object:ident, $($handle:ident).+) => {
        impl std::fmt::Debug for $object {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.$($handle).+.fmt(f)
            }
        }
    };
}
pub(crate) use debug_by_handle;

/// The device itself, in error messages.
pub(crate) const DEVICE: ObjectId = ObjectId {
    kind: Kind::Device,
    handle: 0,
};
