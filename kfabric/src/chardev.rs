// SPDX-License-Identifier: GPL-2.0
//! The device file `/dev/kfabric`: the core's objects for programs.
//!
//! A file imports only those below it:
//!
//! - `fops`: entry points from C.
//! - `dispatch`: the table of ioctls.
//! - `calls`: the handlers, one file for each subject.
//! - `leases`: the objects of ended grants, in all files.
//! - `admission`: the auth keys of calls, and grants for their objects.
//! - `undo`: the changes of a call.
//! - `file`: an open file and its end.
//! - `handles`: the handles of a file.
//! - `queue_file`: the descriptors of queues.
//! - `args`, `user`: checks of fields, and all accesses to user memory.
//!
//! `fops` and `queue_file` have the unsafe code that C calls.

mod admission;
mod args;
mod calls;
mod dispatch;
mod file;
mod fops;
mod handles;
mod leases;
mod queue_file;
mod undo;
mod user;

use kernel::{
    error::to_result,
    prelude::*, //
};

use crate::sys;

pub(crate) use leases::{
    sweep,
    swept, //
};

/// The registered device; the drop unregisters it.
pub(crate) struct Device(());

impl Device {
    /// Registers the device. Once, at module load.
    pub(crate) fn new() -> Result<Self> {
        file::init();
        // SAFETY: The module is ready for opens. It stays loaded while a file is open, because the
        // file operations name their owner.
        to_result(unsafe { sys::kf_dev_register() })?;
        Ok(Self(()))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: `new` registered it.
        unsafe { sys::kf_dev_unregister() };
        // Statics are not dropped with the module.
        file::exit();
    }
}
