// SPDX-License-Identifier: GPL-2.0
//! kfblk: a remote block device over kfabric.
//!
//! A *target* exports memory or block devices: subsystems, which are offered at ports. An
//! *initiator* has a block device for an export: a disk.
//!
//! Memory-backed exports: each connection of a disk has keys of its own at the target, one for each
//! chunk of the memory. They are valid on that connection alone. Requests are one-sided reads and
//! writes from and to the pages of the block layer, and do not involve the target's processors. A
//! fence of an initiator revokes its keys: after the return, none of its writes lands.
//!
//! Block-backed exports: requests are messages (`disk/message.rs`, `export/block.rs`). The
//! initiator assigns a key for each request's bytes, unless these are part of the message. A fence
//! of an initiator waits for its bios and prevents further ones.
//!
//! All objects are made through configfs (`configfs.c`, `config`). The protocol and the mapping of
//! bytes to keys are in [`kfabric::pure::blk`].

use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

mod attr;
mod buffer;
mod config;
mod disk;
mod errno;
mod export;
mod msg_buf;
mod offer;
mod sys;
mod waiter;

module! {
    type: Kfblk,
    name: "kfblk",
    authors: ["kfabric developers"],
    description: "A remote block device over kfabric",
    license: "GPL",
}

struct Kfblk {
    // Fields are dropped in this order: first no task can make objects, then no operation is in
    // flight.
    _config: sys::Configfs,
    _waiters: Waiters,
    _queues: sys::WorkQueues,
    _major: sys::Major,
}

impl kernel::Module for Kfblk {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        export::begin();
        let major = sys::Major::register()?;
        let queues = sys::WorkQueues::new()?;
        Ok(Self {
            _config: sys::Configfs::register()?,
            _waiters: Waiters,
            _queues: queues,
            _major: major,
        })
    }
}

/// Waits, when dropped, until the framework has released this module's handlers. It releases them
/// after the last of their operations, possibly after the queue was closed.
struct Waiters;

impl Drop for Waiters {
    fn drop(&mut self) {
        while waiter::live() != 0 {
            fsleep(Delta::from_millis(1));
        }
    }
}
