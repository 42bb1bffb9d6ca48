// SPDX-License-Identifier: GPL-2.0
//! kverbs: the verbs provider of kfabric, over every RDMA device of the kernel.
//!
//! Unsafe code is in [`ib`], the thin layer over the RDMA core. Above it:
//!
//! | module | what it is |
//! |---|---|
//! | [`provider`], [`info`] | what there is, and opening it |
//! | [`device`], [`resource`] | devices coming and going, and what of ours is on them |
//! | [`domain`], [`group`] | an open device; a protection domain |
//! | [`region`], [`key`], [`spent`] | memory for local use; exporting parts of it; never the same key twice |
//! | [`stats`] | what is counted |
//! | [`endpoint`], [`inbox`], [`handle`] | a connection's life |
//! | [`path`] | its operations |
//! | [`listener`], [`request`] | waiting for connections |

use kernel::{
    prelude::*,
    sync::Arc, //
};

#[path = "src/ib/mod.rs"]
mod ib;

#[deny(unsafe_code)]
#[path = "src/atomic.rs"]
mod atomic;
#[deny(unsafe_code)]
#[path = "src/device.rs"]
mod device;
#[deny(unsafe_code)]
#[path = "src/domain.rs"]
mod domain;
#[deny(unsafe_code)]
#[path = "src/endpoint.rs"]
mod endpoint;
#[deny(unsafe_code)]
#[path = "src/errno.rs"]
mod errno;
#[deny(unsafe_code)]
#[path = "src/group.rs"]
mod group;
#[deny(unsafe_code)]
#[path = "src/handle.rs"]
mod handle;
#[deny(unsafe_code)]
#[path = "src/inbox.rs"]
mod inbox;
#[deny(unsafe_code)]
#[path = "src/info.rs"]
mod info;
#[deny(unsafe_code)]
#[path = "src/key.rs"]
mod key;
#[deny(unsafe_code)]
#[path = "src/limits.rs"]
mod limits;
#[deny(unsafe_code)]
#[path = "src/listener.rs"]
mod listener;
#[deny(unsafe_code)]
#[path = "src/path.rs"]
mod path;
#[deny(unsafe_code)]
#[path = "src/provider.rs"]
mod provider;
#[deny(unsafe_code)]
#[path = "src/region.rs"]
mod region;
#[deny(unsafe_code)]
#[path = "src/request.rs"]
mod request;
#[deny(unsafe_code)]
#[path = "src/resource.rs"]
mod resource;
#[deny(unsafe_code)]
#[path = "src/shake.rs"]
mod shake;
#[deny(unsafe_code)]
#[path = "src/spent.rs"]
mod spent;
#[deny(unsafe_code)]
#[path = "src/stats.rs"]
mod stats;

module! {
    type: Kverbs,
    name: "kverbs",
    authors: ["kfabric developers"],
    description: "Kernel-mode libfabric: the verbs provider",
    license: "GPL",
}

/// The module. Fields go in this order: no new users, then the devices, then what those used.
struct Kverbs {
    _registration: kfabric::registry::Registration,
    _client: ib::client::Client<device::Device>,
    _devices: device::List,
    _spent: spent::Memory,
    _queue: ib::work::WorkQueue,
    _counts: kfabric::stats::Files,
}

impl kernel::Module for Kverbs {
    fn init(module: &'static ThisModule) -> Result<Self> {
        // SAFETY: A module's `init` runs once, and the client is registered below.
        let devices = unsafe { device::List::new() };
        // SAFETY: As above.
        let spent = unsafe { spent::Memory::new() };
        let counts = stats::files();
        let queue = ib::work::WorkQueue::new()?;
        let client = ib::client::Client::register()?;
        // UNACCOUNTED: Allocated at module load.
        let provider = Arc::new(provider::Verbs, GFP_KERNEL)?;
        Ok(Self {
            _registration: kfabric::registry::Registration::new(provider, module)?,
            _client: client,
            _devices: devices,
            _spent: spent,
            _queue: queue,
            _counts: counts,
        })
    }
}
