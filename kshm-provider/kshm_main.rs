// SPDX-License-Identifier: GPL-2.0
//! kshm: the intra-node provider of kfabric. One copy, between the pinned pages of two processes of
//! one host.
//!
//! Unsafe code is in [`sys`], the thin layer over C. Above it:
//!
//! | module | what it is |
//! |---|---|
//! | [`provider`], [`info`] | what there is, and opening it |
//! | [`domain`], [`group`] | what belongs together |
//! | [`region`], [`key`], [`table`] | memory; exporting parts of it; all keys of the host |
//! | [`endpoint`], [`inbox`] | a connection's life |
//! | [`path`] | its operations |
//! | [`names`], [`listener`], [`request`] | who listens where; asking to connect |

use kernel::prelude::*;

#[path = "src/sys.rs"]
mod sys;

#[deny(unsafe_code)]
#[path = "src/budget.rs"]
mod budget;
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
#[path = "src/inbox.rs"]
mod inbox;
#[deny(unsafe_code)]
#[path = "src/info.rs"]
mod info;
#[deny(unsafe_code)]
#[path = "src/key.rs"]
mod key;
#[deny(unsafe_code)]
#[path = "src/listener.rs"]
mod listener;
#[deny(unsafe_code)]
#[path = "src/names.rs"]
mod names;
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
#[path = "src/table.rs"]
mod table;

module! {
    type: Kshm,
    name: "kshm",
    authors: ["kfabric developers"],
    description: "Kernel-mode libfabric: the intra-node provider",
    license: "GPL",
}

/// The module. Fields go in this order: no new users, then what those used.
struct Kshm {
    _registration: kfabric::registry::Registration,
    _queues: sys::WorkQueues,
}

impl kernel::Module for Kshm {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let queues = sys::WorkQueues::new()?;
        let provider = provider::Shm::new()?;
        Ok(Self {
            _registration: kfabric::registry::Registration::new(provider, module)?,
            _queues: queues,
        })
    }
}
