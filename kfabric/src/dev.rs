// SPDX-License-Identifier: GPL-2.0
//! The device file `/dev/kfabric`: the core's objects for programs.
//!
//! * `fops` — entry points from C, and the descriptors of queues. The unsafe of this folder.
//! * `user` — the one door to user memory.
//! * `table` — handles.
//! * `file` — an open file and its end.
//! * `auth` — the calls about auth keys.
//! * `call` — which ioctl does what.
//! * `keys` — the calls about keys.
//! * `submit` — the data path's call.
//! * `list` — showing what there is.

mod auth;
mod call;
mod file;
mod fops;
mod keys;
mod list;
mod submit;
mod table;
mod user;

use kernel::{
    error::to_result,
    prelude::*, //
};

use crate::sys;

pub(crate) use auth::{
    sweep,
    swept, //
};

/// The registered device; dropping it takes it away.
pub(crate) struct Device(());

impl Device {
    /// Registers the device. Once, at module load.
    pub(crate) fn new() -> Result<Self> {
        file::init();
        // SAFETY: The module is ready to be opened, and stays while a file is open: the
        // operations name their owner.
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
