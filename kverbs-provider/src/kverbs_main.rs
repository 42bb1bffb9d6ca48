// SPDX-License-Identifier: GPL-2.0
//! kverbs: the verbs provider of kfabric, over every RDMA device of the kernel.
//!
//! Unsafe code is in [`ib`], the thin layer over the RDMA core. Above it:
//!
//! | module | contents |
//! |---|---|
//! | [`provider`], [`info`] | offers, and opening a domain |
//! | [`device`], [`resource`] | additions and removals of devices; the provider's objects on them |
//! | [`domain`] | an open device |
//! | [`region`] | memory for local use |
//! | [`key`] | keys and protection groups |
//! | [`stats`] | counters |
//! | [`endpoint`] | endpoints, as the core refers to them |
//! | [`conn`] | connections, passive endpoints and connection requests |
//! | [`channel`] | durable writes by the target's kernel |
//! | [`data`] | operations of a connection |
//! | [`limits`], [`errno`] | limits and times; conversion of errors |

use kernel::{
    prelude::*,
    sync::Arc, //
};

mod ib;

#[deny(unsafe_code)]
mod channel;
#[deny(unsafe_code)]
mod conn;
#[deny(unsafe_code)]
mod data;
#[deny(unsafe_code)]
mod device;
#[deny(unsafe_code)]
mod domain;
#[deny(unsafe_code)]
mod endpoint;
#[deny(unsafe_code)]
mod errno;
#[deny(unsafe_code)]
mod info;
#[deny(unsafe_code)]
mod key;
#[deny(unsafe_code)]
mod limits;
#[deny(unsafe_code)]
mod provider;
#[deny(unsafe_code)]
mod region;
#[deny(unsafe_code)]
mod resource;
#[deny(unsafe_code)]
mod stats;

module! {
    type: Kverbs,
    name: "kverbs",
    authors: ["kfabric developers"],
    description: "Kernel-mode libfabric: the verbs provider",
    license: "GPL",
    alias: ["kfabric-provider-kverbs"],
}

/// The module. The order of the fields is the order of drops: the registration, the devices, queued work,
/// then what all of them use.
struct Kverbs {
    _registration: kfabric::provider::registry::Registration,
    _client: ib::client::Client<device::Device>,
    _devices: device::List,
    _drain: ib::work::Drain,
    _key_values: key::key_values::Memory,
    _users: ib::share::Users,
    _channels: channel::listener::List,
    _connections: conn::connection::Indexed,
    _queue: ib::work::WorkQueues,
    _counts: kfabric::base::stats::Files,
}

impl kernel::Module for Kverbs {
    fn init(module: &'static ThisModule) -> Result<Self> {
        // SAFETY: A module's `init` runs once, and the client is registered below.
        let devices = unsafe { device::List::new() };
        // SAFETY: A module's `init` runs once, and the client is registered below.
        let key_values = unsafe { key::key_values::Memory::new() }?;
        // SAFETY: A module's `init` runs once, and the client is registered below.
        let users = unsafe { ib::share::Users::new() };
        // SAFETY: A module's `init` runs once, and the provider is registered below.
        let channels = unsafe { channel::listener::List::new() };
        // SAFETY: A module's `init` runs once, and the provider is registered below.
        let connections = unsafe { conn::connection::Indexed::new() };
        let counts = stats::files();
        let queue = ib::work::WorkQueues::new()?;
        // SAFETY: `Kverbs` has the queues behind the value. Below, the value is dropped first, too.
        let drain = unsafe { ib::work::Drain::new() };
        let client = ib::client::Client::register()?;
        // UNACCOUNTED: Allocated at module load.
        let provider = Arc::new(provider::Verbs, GFP_KERNEL)?;
        Ok(Self {
            _registration: kfabric::provider::registry::Registration::new(provider, module)?,
            _client: client,
            _devices: devices,
            _drain: drain,
            _key_values: key_values,
            _users: users,
            _channels: channels,
            _connections: connections,
            _queue: queue,
            _counts: counts,
        })
    }
}
