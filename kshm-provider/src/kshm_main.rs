// SPDX-License-Identifier: GPL-2.0
//! kshm: the intra-node provider of kfabric. Each operation is one copy between the pinned pages of
//! two processes of one host.
//!
//! Unsafe code is in [`sys`], the thin layer over C. Above it:
//!
//! | module | contents |
//! |---|---|
//! | [`provider`], [`info`] | attributes, `fi_getinfo` and the open of a domain |
//! | [`domain`], [`region`], [`endpoint`] | objects of a domain |
//! | [`host`] | state that all domains and listeners share |
//! | [`key`] | keys, their table, and protection groups |
//! | [`data`] | operations of a connection |
//! | [`conn`] | connections, listeners, and the table of listening addresses |

use kernel::prelude::*;

mod sys;

#[deny(unsafe_code)]
mod conn;
#[deny(unsafe_code)]
mod data;
#[deny(unsafe_code)]
mod domain;
#[deny(unsafe_code)]
mod endpoint;
#[deny(unsafe_code)]
mod errno;
#[deny(unsafe_code)]
mod host;
#[deny(unsafe_code)]
mod info;
#[deny(unsafe_code)]
mod key;
#[deny(unsafe_code)]
mod provider;
#[deny(unsafe_code)]
mod region;

module! {
    type: Kshm,
    name: "kshm",
    authors: ["kfabric developers"],
    description: "Kernel-mode libfabric: the intra-node provider",
    license: "GPL",
    alias: ["kfabric-provider-kshm"],
}

/// The module. Fields are dropped in this order: the registration first, so that no new users
/// appear, then the work queues that users need.
struct Kshm {
    _registration: kfabric::provider::registry::Registration,
    _queues: sys::work::WorkQueues,
}

impl kernel::Module for Kshm {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let queues = sys::work::WorkQueues::new()?;
        let provider = provider::Shm::new()?;
        Ok(Self {
            _registration: kfabric::provider::registry::Registration::new(provider, module)?,
            _queues: queues,
        })
    }
}
