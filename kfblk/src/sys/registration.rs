// SPDX-License-Identifier: GPL-2.0
//! The module's registrations: the block device's major number, and configfs.

use kernel::{
    error::to_result,
    prelude::*, //
};

use super::raw::{
    kfblk_block_exit,
    kfblk_block_init,
    kfblk_configfs_exit,
    kfblk_configfs_init, //
};

/// The block device's major number.
pub(crate) struct Major(());

impl Major {
    /// Registers a major number. Called once, at module load.
    pub(crate) fn register() -> Result<Self> {
        // SAFETY: No preconditions.
        to_result(unsafe { kfblk_block_init() })?;
        Ok(Self(()))
    }
}

impl Drop for Major {
    fn drop(&mut self) {
        // SAFETY: The number is registered, and no disk is left.
        unsafe { kfblk_block_exit() }
    }
}

/// The registration with configfs.
pub(crate) struct Configfs(());

impl Configfs {
    /// Registers with configfs. Called last at module load.
    pub(crate) fn register() -> Result<Self> {
        // SAFETY: All state that the callbacks need is initialised earlier.
        to_result(unsafe { kfblk_configfs_init() })?;
        Ok(Self(()))
    }
}

impl Drop for Configfs {
    fn drop(&mut self) {
        // SAFETY: It is registered. Items hold module references, so no item exists.
        unsafe { kfblk_configfs_exit() }
    }
}
