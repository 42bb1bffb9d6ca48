// SPDX-License-Identifier: GPL-2.0
//! kfi_test_fault: makes every call of a kernel consumer with injected failures.
//!
//! Loading the module runs the sweep. The load fails with `EIO` if a call does not end correctly,
//! and with `ENODEV` if the kernel cannot inject failures. The files `/sys/kernel/debug/fail*`
//! select the failures (allocations, pages, the device); `kfi-fault` in a guest selects one after
//! the other.

use kernel::{
    debugfs,
    prelude::*, //
};

#[path = "../../../ktap/ktap.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod ktap;

#[path = "../../rust-api/src/buffer.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod buffer;
#[path = "../../rust-api/src/pair.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod pair;
#[path = "../../rust-api/src/station.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod station;

mod connections;
mod objects;
mod raw;
mod shot;

module! {
    type: Fault,
    name: "kfi_test_fault",
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
        let folder = debugfs::Dir::new(c"kfi_test_fault");
        Ok(Self {
            _results: ktap::Results::show(folder, report)?,
        })
    }
}
