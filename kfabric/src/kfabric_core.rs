// SPDX-License-Identifier: GPL-2.0
//! kfabric: kernel-mode libfabric.
//!
//! A framework through which kernel storage code and programs use a fabric. Memory is pinned once
//! and exported through many small keys, which are assigned and revoked without a change to the
//! pinned pages.
//!
//! This crate is the core. It holds all policy: permissions, pinning and charges, keys, and the
//! order of closing. Providers drive the hardware. A provider is a separate module that implements
//! [`provider`] and registers by [`provider::registry::Registration`].
//!
//! A kernel consumer uses the same objects as a program does through `/dev/kfabric`:
//!
//! - [`provider::registry::getinfo`]: the offers.
//! - [`objects::fabric::Fabric`], [`objects::domain::Domain`]: a provider, a device.
//! - [`memory::Memory`], [`key::Region`], [`key::Key`]: memory, registered, exported.
//! - [`objects::cq::Cq`], [`objects::cntr::Cntr`], [`objects::eq::Eq`]: completions, counters, events.
//! - [`objects::pep::PassiveEp`], [`ep::Endpoint`]: connections and operations.
//! - [`objects::waiter::Waiter`]: the wait for completions and events.

use kernel::prelude::*;

#[path = "../../pure/src/tree.rs"]
pub mod pure;
#[path = "../../uapi/src/abi.rs"]
pub mod uapi;

// The layers, lowest first. A layer imports only layers above it in this list.
pub mod sys;

pub mod base;

pub mod memory;

pub mod op;

pub mod provider;

pub mod auth;

pub mod objects;

pub mod key;

pub mod ep;

mod capi;
mod chardev;

module! {
    type: Kfabric,
    name: "kfabric",
    authors: ["kfabric developers"],
    description: "Kernel-mode libfabric: the framework",
    license: "GPL",
}

struct Kfabric {
    // Dropped in this order: first the device file, so that no program opens objects, then the
    // lists.
    _device: chardev::Device,
    _auth: Auth,
    _jobs: sys::wq::QueueOwner,
    _queue: sys::wq::QueueOwner,
    _faults: base::fault::Attributes,
    _key_counts: base::stats::Files,
    _auth_counts: base::stats::Files,
    _counts: base::stats::Root,
    _providers: Providers,
}

impl kernel::Module for Kfabric {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        // SAFETY: A module's `init` runs once.
        unsafe {
            provider::registry::init();
            capi::init();
            memory::charge::init();
            base::share::init();
            auth::init();
        }
        auth::reaper::register(&Files);
        let auth = Auth {
            _worker: sys::auth::Worker::new()?,
            _grants: Grants,
        };
        auth::reserve()?;
        let (queue, jobs) = sys::wq::create()?;
        let counts = base::stats::Root::new();
        Ok(Self {
            _device: chardev::Device::new()?,
            _auth: auth,
            _jobs: jobs,
            _queue: queue,
            _faults: base::fault::Attributes::new(),
            _key_counts: base::trace::files(),
            _auth_counts: auth::trace::files(),
            _counts: counts,
            _providers: Providers,
        })
    }
}

/// The files of the character device, which hold the objects of grants.
struct Files;

impl auth::reaper::LeaseHolders for Files {
    fn sweep(&self) -> Result {
        chardev::sweep()
    }

    fn wait_swept(&self) -> Result {
        chardev::swept()
    }
}

/// Grants, and the worker that examines them. The drop waits for the worker, then frees the grants.
struct Auth {
    _worker: sys::auth::Worker,
    _grants: Grants,
}

/// The lists of grants, auth keys and upcalls; the drop frees them.
struct Grants;

impl Drop for Grants {
    fn drop(&mut self) {
        auth::exit()
    }
}

/// The list of providers; the drop frees it.
struct Providers;

impl Drop for Providers {
    fn drop(&mut self) {
        provider::registry::exit();
        capi::exit();
        memory::charge::exit();
        memory::dax::exit();
        base::share::exit();
    }
}
