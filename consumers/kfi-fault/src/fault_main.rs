// SPDX-License-Identifier: GPL-2.0
//! kfi_fault: every call that a consumer in the kernel makes, with failures injected.
//!
//! Loading it sweeps, and fails with `EIO` if a call does not end as it should, with `ENODEV` on a
//! kernel that cannot inject failures. What is made to fail (allocations, pages, the device) is
//! what `/sys/kernel/debug/fail*` lets through: `kfi-fault` in a guest chooses one after the
//! other.

use kernel::{
    debugfs,
    prelude::*, //
};

#[path = "../../ktap/ktap.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod ktap;

#[path = "../../kfi-sample/src/buffer.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod buffer;
#[path = "../../kfi-sample/src/pair.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod pair;
#[path = "../../kfi-sample/src/station.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod station;
#[path = "../../kfi-sample/src/wake.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod wake;

mod connections;
mod objects;
mod shot;

module! {
    type: Fault,
    name: "kfi_fault",
    authors: ["kfabric developers"],
    description: "Every call of a consumer of kfabric, with failures injected",
    license: "GPL",
    params: {
        dry: i32 {
            default: 0,
            description: "Not 0: on any kernel, make each call without a failure",
        },
    },
}

struct Fault {
    _results: ktap::Results,
}

impl kernel::Module for Fault {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let dry = ktap::parameter(module_parameters::dry.value()) != 0;
        if !dry && !shot::possible() {
            return Err(ENODEV);
        }
        let station = station::Station::open(0)?;
        let cases = || [objects::CASES, connections::CASES].into_iter().flatten();
        let mut ktap = ktap::Ktap::begin(cases().count() + 1);
        for (name, case) in cases() {
            shot::sweep(&mut ktap, name, &station, *case);
        }
        let left = station.close();
        ktap.test("nothing_is_left", || left);
        let report = ktap.end()?;
        let folder = debugfs::Dir::new(c"kfi_fault");
        Ok(Self {
            _results: ktap::Results::show(folder, report)?,
        })
    }
}
