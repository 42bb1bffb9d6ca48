// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device file, on which all other objects are opened.
#![forbid(unsafe_code)]

use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kfabric_uapi as abi;
use zerocopy::{FromZeros, IntoBytes};

use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::fabric::Fabric;
use crate::handle::{Shared, DEVICE};
use crate::info::{Hints, Info};
use crate::object::LiveObject;
use crate::revoke::revoked;
use crate::sys::{self, Backend, Buf};

/// Path of the device file.
pub const DEVICE_PATH: &str = "/dev/kfabric";
/// Environment variable that names another device file.
pub const DEVICE_ENV: &str = "KFABRIC_DEVICE";

/// An open device file.
///
/// All objects opened on it keep the file open. When the last of them is dropped, or the process
/// ends, the kernel closes whatever is left.
#[derive(Clone)]
pub struct Device {
    pub(crate) shared: Arc<Shared>,
}

impl Device {
    /// Opens the file that the environment variable `KFABRIC_DEVICE` names, or else `/dev/kfabric`.
    ///
    /// # Errors
    ///
    /// - [`Error::Open`] if the file cannot be opened.
    pub fn open() -> Result<Self> {
        let path =
            std::env::var_os(DEVICE_ENV).map_or_else(|| PathBuf::from(DEVICE_PATH), PathBuf::from);
        Self::open_path(&path)
    }

    /// Opens a device file by path.
    ///
    /// # Errors
    ///
    /// - [`Error::Open`] if the file cannot be opened.
    pub fn open_path(path: &Path) -> Result<Self> {
        let kernel = sys::Kernel::open(path).map_err(|errno| Error::Open {
            path: path.to_owned(),
            errno,
        })?;
        Ok(Self::with_backend(Box::new(kernel)))
    }

    pub(crate) fn with_backend(backend: Box<dyn Backend>) -> Self {
        Self {
            shared: Shared::new(backend),
        }
    }

    /// Revokes all keys of all regions that were registered through this device file, in one call.
    /// Returns their number. See [`Region::revoke_keys`](crate::Region::revoke_keys).
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the call.
    pub fn revoke_keys(&self) -> Result<u64> {
        let mut arg: abi::KeyRevokeMany = sys::new();
        arg.scope = abi::KFI_REVOKE_FILE;
        revoked(&self.shared, DEVICE, &mut arg, &mut [])
    }

    /// Returns the offers of the loaded providers that match the hints, best first
    /// (`fi_getinfo(3)`). If none matches (`ENODATA` of the kernel), the list is empty.
    ///
    /// For a peer on this host, kshm is first if the peer listens through kshm; otherwise the
    /// provider that reaches most peers is first. So a server should listen through each provider
    /// that is offered ([`EventQueue::wait_any`](crate::EventQueue::wait_any)).
    ///
    /// # Errors
    ///
    /// - [`Error::Resolve`] if a node cannot be resolved.
    /// - [`Error::Call`] if the kernel refuses the call.
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
            self.shared.call(DEVICE, &mut arg, &mut bufs)?;
            Ok(arg.count)
        });
        let found = match found {
            Err(e) if e.errno() == Some(Errno::ENODATA) => Vec::new(),
            found => found?,
        };
        Ok(found.into_iter().map(Info::new).collect())
    }

    /// Returns live objects: those of all open files for an administrator, else those of the
    /// caller's user.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the call.
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
            self.shared.call(DEVICE, &mut arg, &mut bufs)?;
            Ok(arg.count)
        })?;
        Ok(found.iter().map(LiveObject::from_abi).collect())
    }

    /// Calls `ask` with larger and larger buffers until the whole list fits.
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
            // A quarter more than needed, because the list may grow between two calls.
            room = vec![T::new_zeroed(); there + there / 4];
        }
    }

    /// Opens the fabric that an info entry names.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if the provider has been unloaded.
    /// - `ENODEV` if the device is gone.
    pub fn fabric(&self, info: &Info) -> Result<Fabric> {
        self.fabric_by_name(info.provider(), info.fabric())
    }

    /// Opens a fabric by the names of provider and fabric. With an empty fabric name, opens the
    /// provider's first fabric.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if no provider or fabric has that name.
    pub fn fabric_by_name(&self, provider: &str, fabric: &str) -> Result<Fabric> {
        Fabric::open(&self.shared, provider, fabric)
    }
}

impl AsFd for Device {
    /// The device's descriptor, for calls that this crate does not wrap.
    ///
    /// # Panics
    ///
    /// If the device has no descriptor. Only the fake device of this crate's unit tests has none.
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
