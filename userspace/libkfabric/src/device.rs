// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device file: where everything starts.
#![forbid(unsafe_code)]

use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use kfabric_uapi::{self as abi, Ioctl};
use zerocopy::{FromZeros, IntoBytes};

use crate::errno::Errno;
use crate::error::{Error, ObjectId, Result};
use crate::fabric::Fabric;
use crate::info::{Hints, Info};
use crate::object::{Handle, Kind, LiveObject};
use crate::sys::{self, Backend, Buf};

/// The device file.
pub const DEVICE_PATH: &str = "/dev/kfabric";
/// Environment variable that names another device file.
pub const DEVICE_ENV: &str = "KFABRIC_DEVICE";

/// An open device file, shared by all objects on it.
pub(crate) struct Shared {
    pub(crate) backend: Box<dyn Backend>,
    /// Handles that could not be closed yet, because an operation held them.
    orphans: Mutex<Vec<ObjectId>>,
}

impl Shared {
    /// Refuses an object of another device file: its handle is another object's in this one, or
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`], `EINVAL`.
    pub(crate) fn owns(self: &Arc<Self>, object: &Handle) -> Result<()> {
        if Arc::ptr_eq(self, &object.dev) {
            return Ok(());
        }
        Err(Error::foreign(object.id))
    }

    /// Makes a call; errors name `object`.
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

    /// Closes a handle, and those left over from before if they can be closed by now.
    pub(crate) fn close(&self, id: ObjectId) -> Result<()> {
        let mut arg: abi::Close = sys::new();
        arg.handle = id.handle;
        self.call(id, &mut arg, &mut [])?;
        let mut orphans =
            std::mem::take(&mut *self.orphans.lock().unwrap_or_else(PoisonError::into_inner));
        // Newest first: children before parents.
        let mut left = Vec::new();
        while let Some(id) = orphans.pop() {
            let mut arg: abi::Close = sys::new();
            arg.handle = id.handle;
            if self
                .call(id, &mut arg, &mut [])
                .is_err_and(|e| e.errno() == Some(Errno::EBUSY))
            {
                left.push(id);
            }
        }
        left.reverse();
        self.orphans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(left);
        Ok(())
    }

    /// Keeps a handle to be closed later.
    pub(crate) fn orphan(&self, id: ObjectId) {
        self.orphans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(id);
    }

    /// Takes over a descriptor that a call gave out.
    pub(crate) fn take_fd(&self, call: &'static str, object: ObjectId, fd: i32) -> Result<OwnedFd> {
        self.backend.take_fd(fd).map_err(|errno| Error::Call {
            call,
            object,
            errno,
        })
    }
}

/// The open device.
///
/// Its objects keep it open. When the last is gone, or the process dies, the kernel tears down
/// whatever is left.
#[derive(Clone)]
pub struct Device {
    pub(crate) shared: Arc<Shared>,
}

impl Device {
    /// Opens `/dev/kfabric`, or what the environment variable `KFABRIC_DEVICE` names.
    ///
    /// # Errors
    ///
    /// [`Error::Open`].
    pub fn open() -> Result<Self> {
        let path =
            std::env::var_os(DEVICE_ENV).map_or_else(|| PathBuf::from(DEVICE_PATH), PathBuf::from);
        Self::open_path(&path)
    }

    /// Opens a device file by path.
    ///
    /// # Errors
    ///
    /// [`Error::Open`].
    pub fn open_path(path: &Path) -> Result<Self> {
        let kernel = sys::Kernel::open(path).map_err(|errno| Error::Open {
            path: path.to_owned(),
            errno,
        })?;
        Ok(Self::with_backend(Box::new(kernel)))
    }

    pub(crate) fn with_backend(backend: Box<dyn Backend>) -> Self {
        Self {
            shared: Arc::new(Shared {
                backend,
                orphans: Mutex::new(Vec::new()),
            }),
        }
    }

    /// Ends all keys of all regions that were registered through this device file, in one call; how
    /// many. See [`Region::revoke_keys`](crate::Region::revoke_keys).
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn revoke_keys(&self) -> Result<u64> {
        let mut arg: abi::KeyRevokeMany = sys::new();
        arg.scope = abi::KFI_REVOKE_FILE;
        crate::region::revoked(&self.shared, Self::id(), &mut arg, &mut [])
    }

    /// The device itself, in messages.
    pub(crate) fn id() -> ObjectId {
        ObjectId {
            kind: Kind::Device,
            handle: 0,
        }
    }

    /// What the loaded providers offer that matches the hints, best first (`fi_getinfo(3)`).
    ///
    /// For a peer on this host kshm comes first if the peer listens by it, else what reaches most
    /// peers. So who is to be found by the best way listens by each provider that is offered
    /// ([`EventQueue::wait_any`](crate::EventQueue::wait_any)).
    ///
    /// That nothing matched (`ENODATA` of the kernel) is no error here: the list is empty.
    ///
    /// # Errors
    ///
    /// [`Error::Call`]; [`Error::Resolve`] for a node that is no address.
    pub fn info(&self, hints: &Hints) -> Result<Vec<Info>> {
        let hints = hints.to_abi()?;
        let size = u32::try_from(size_of::<abi::InfoEntry>()).unwrap_or(u32::MAX);
        let found = self.grow(|room: &mut [abi::InfoEntry]| {
            let mut arg: abi::GetInfo = sys::new();
            arg.count = u32::try_from(room.len()).unwrap_or(u32::MAX);
            arg.entry_size = size;
            let mut bufs = [
                Buf::input(offset_of!(abi::GetInfo, hints), hints.as_bytes()),
                Buf::output(offset_of!(abi::GetInfo, entries), room.as_mut_bytes()),
            ];
            self.shared.call(Self::id(), &mut arg, &mut bufs)?;
            Ok(arg.count)
        });
        let found = match found {
            Err(e) if e.errno() == Some(Errno::ENODATA) => Vec::new(),
            found => found?,
        };
        Ok(found.into_iter().map(Info::new).collect())
    }

    /// Every live object: of all open files for an administrator, else of the caller's user.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn objects(&self) -> Result<Vec<LiveObject>> {
        let size = u32::try_from(size_of::<abi::ObjInfo>()).unwrap_or(u32::MAX);
        let found = self.grow(|room: &mut [abi::ObjInfo]| {
            let mut arg: abi::ObjList = sys::new();
            arg.count = u32::try_from(room.len()).unwrap_or(u32::MAX);
            arg.entry_size = size;
            let mut bufs = [Buf::output(
                offset_of!(abi::ObjList, entries),
                room.as_mut_bytes(),
            )];
            self.shared.call(Self::id(), &mut arg, &mut bufs)?;
            Ok(arg.count)
        })?;
        Ok(found.iter().map(LiveObject::from_abi).collect())
    }

    /// Asks again with more room until everything fits.
    pub(crate) fn grow<T: FromZeros + Clone>(
        &self,
        ask: impl Fn(&mut [T]) -> Result<u32>,
    ) -> Result<Vec<T>> {
        let mut room = vec![T::new_zeroed(); 64];
        loop {
            let there = ask(&mut room)? as usize;
            if there <= room.len() {
                room.truncate(there);
                return Ok(room);
            }
            // Some more, because the list may grow between two calls.
            room = vec![T::new_zeroed(); there + there / 4];
        }
    }

    /// Opens the fabric that an info entry names.
    ///
    /// # Errors
    ///
    /// `ENOENT` when the provider has gone, `ENODEV`.
    pub fn fabric(&self, info: &Info) -> Result<Fabric> {
        self.fabric_by_name(info.provider(), info.fabric())
    }

    /// Opens a fabric by the names of provider and fabric; an empty fabric name means the
    /// provider's first.
    ///
    /// # Errors
    ///
    /// `ENOENT` for an unknown name.
    pub fn fabric_by_name(&self, provider: &str, fabric: &str) -> Result<Fabric> {
        Fabric::open(&self.shared, provider, fabric)
    }
}

impl AsFd for Device {
    /// The device's descriptor, for calls that this crate does not wrap.
    ///
    /// # Panics
    ///
    /// On a device that has none, which only this crate's own unit tests make.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared
            .backend
            .device_fd()
            .expect("only a fake has no descriptor")
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Device")
    }
}
