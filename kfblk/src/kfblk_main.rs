// SPDX-License-Identifier: GPL-2.0
//! kfblk: a remote block device over kfabric.
//!
//! A *target* exports memory or a block device: subsystems, which are offered at ports. An *initiator*
//! has a block device of it: a disk.
//!
//! Each connection of a disk of memory has keys of its own at the target, one for each chunk of
//! the memory, that are valid on that connection alone; requests are one-sided reads and writes by
//! them, from and to the pages that the block layer brings, and the target's processors do nothing for
//! them. Fencing a client revokes its keys: when that has returned, nothing of it can land.
//!
//! Of a device, requests are messages (`disk/message.rs`, `export/device.rs`), and the keys are the
//! initiator's: one for each request's bytes, unless these go with the message. Fencing a client waits
//! for what the device does for it, and has it do no more.
//!
//! Everything is made through configfs (`configfs.c`, `config`). What the ends say to each other, and
//! which byte is behind which key, is [`kfabric::pure::blk`].

use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

mod buffer;
mod config;
mod disk;
mod export;
mod hook;
mod pad;
mod sys;

module! {
    type: Kfblk,
    name: "kfblk",
    authors: ["kfabric developers"],
    description: "A remote block device over kfabric",
    license: "GPL",
}

struct Kfblk {
    // Dropped in this order: nobody makes anything, then nothing is under way.
    _config: sys::Configfs,
    _hooks: Hooks,
    _ports: sys::WorkQueue,
    _exports: sys::WorkQueue,
    _disks: sys::WorkQueue,
    _requests: sys::WorkQueue,
    _major: sys::Major,
}

impl kernel::Module for Kfblk {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        export::begin();
        let major = sys::Major::register()?;
        let ports = sys::WorkQueue::for_ports()?;
        let exports = sys::WorkQueue::for_exports()?;
        let disks = sys::WorkQueue::for_disks()?;
        let requests = sys::WorkQueue::for_requests()?;
        Ok(Self {
            _config: sys::Configfs::register()?,
            _hooks: Hooks,
            _ports: ports,
            _exports: exports,
            _disks: disks,
            _requests: requests,
            _major: major,
        })
    }
}

/// Dropping it waits until the framework has let go of our handlers, whose code is ours: it does
/// when the last of their operations is over, which may be a moment after the queue was closed.
struct Hooks;

impl Drop for Hooks {
    fn drop(&mut self) {
        while hook::Hook::live() != 0 {
            fsleep(Delta::from_millis(1));
        }
    }
}
