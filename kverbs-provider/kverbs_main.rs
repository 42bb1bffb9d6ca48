// SPDX-License-Identifier: GPL-2.0
//! The verbs provider.

use kernel::prelude::*;

#[path = "src/ib/mod.rs"]
mod ib;

module! {
    type: KverbsModule,
    name: "kverbs",
    authors: ["kfabric project"],
    description: "kfabric provider over RDMA verbs",
    license: "GPL",
}

struct KverbsModule;

impl kernel::Module for KverbsModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}
