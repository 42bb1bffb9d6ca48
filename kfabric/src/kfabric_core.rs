// SPDX-License-Identifier: GPL-2.0
//! kfabric: kernel-mode libfabric.
//!
//! One framework through which storage code in the kernel and programs reach a fabric. Memory is
//! pinned once and exported through many small keys, which are assigned and revoked without
//! touching the pin.
//!
//! This crate is the core. It holds every policy: who may do what, what is pinned and charged,
//! which keys exist, what is closed in which order. Hardware is the business of providers, modules
//! of their own that implement [`provider`] and register by [`registry::Registration`].
//!
//! A consumer in the kernel uses the same objects as a program does through `/dev/kfabric`:
//!
//! * [`registry::getinfo`] — what there is.
//! * [`fabric::Fabric`], [`fabric::Domain`] — a provider, a device.
//! * [`memory::Memory`], [`region::Region`], [`key::Key`] — memory, registered, exported.
//! * [`cq::Cq`], [`cntr::Cntr`], [`eq::Eq`] — completions, counters, events.
//! * [`pep::PassiveEp`], [`ep::Endpoint`] — connections and operations.

use kernel::prelude::*;

#[path = "../../pure/src/tree.rs"]
pub mod pure;
#[path = "../../uapi/src/abi.rs"]
pub mod uapi;

pub mod auth;
mod bound;
mod capi;
mod charge;
pub mod cntr;
pub mod cq;
mod dev;
pub mod ep;
pub mod eq;
pub mod errno;
pub mod fabric;
pub mod fault;
mod info;
pub mod key;
mod later;
pub mod memory;
pub mod net;
pub mod object;
pub mod op;
pub mod pep;
pub mod provider;
pub mod region;
pub mod registry;
pub mod rings;
mod seen;
pub mod stats;
pub mod sys;

module! {
    type: Kfabric,
    name: "kfabric",
    authors: ["kfabric developers"],
    description: "Kernel-mode libfabric: the framework",
    license: "GPL",
}

struct Kfabric {
    // Dropped in this order: no new users, then what they left behind.
    _device: dev::Device,
    _auth: Auth,
    _jobs: sys::wq::WorkQueue,
    _queue: sys::wq::WorkQueue,
    _faults: fault::Attributes,
    _key_counts: stats::Files,
    _auth_counts: stats::Files,
    _counts: stats::Root,
    _providers: Providers,
}

impl kernel::Module for Kfabric {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        // SAFETY: A module's `init` runs once.
        unsafe {
            registry::init();
            capi::init();
            charge::init();
            auth::init();
        }
        let auth = Auth {
            _worker: sys::auth::Worker::new()?,
            _grants: Grants,
        };
        let queue = sys::wq::WorkQueue::new()?;
        let jobs = sys::wq::WorkQueue::new_jobs()?;
        let counts = stats::Root::new();
        Ok(Self {
            _device: dev::Device::new()?,
            _auth: auth,
            _jobs: jobs,
            _queue: queue,
            _faults: fault::Attributes::new(),
            _key_counts: seen::files(),
            _auth_counts: auth::seen::files(),
            _counts: counts,
            _providers: Providers,
        })
    }
}

/// Grants, and the worker that looks after them. Dropping it waits for the worker, then gives their
/// memory back.
struct Auth {
    _worker: sys::auth::Worker,
    _grants: Grants,
}

/// What grants hold.
struct Grants;

impl Drop for Grants {
    fn drop(&mut self) {
        auth::exit()
    }
}

/// The list of providers; dropping it gives its memory back.
struct Providers;

impl Drop for Providers {
    fn drop(&mut self) {
        registry::exit();
        capi::exit();
        charge::exit();
    }
}
