// SPDX-License-Identifier: GPL-2.0
//! kfi_test_rust_api: tests of the Rust API for consumers in the kernel.
//!
//! The module opens the best device with an address in the network namespace of the loading task,
//! connects to itself, and uses all functions of the framework. Loading the module runs the tests,
//! which takes some seconds; the load fails with `EIO` if a test fails. The file
//! `/sys/kernel/debug/kfi_test_rust_api/results` shows the results while the module is loaded.
//!
//! `station` opens long-lived objects, `pair` makes a connection, `buffer` registers memory.
//! `examples/rust-module` is a small consumer.

use kernel::{
    debugfs,
    prelude::*, //
};

#[path = "../../../ktap/ktap.rs"]
mod ktap;

mod atomic;
mod buffer;
mod connections;
mod dax;
mod durable;
mod keys;
mod messages;
mod pair;
mod queues;
mod rma;
mod station;

module! {
    type: RustApi,
    name: "kfi_test_rust_api",
    authors: ["kfabric developers"],
    description: "Tests of the Rust API for consumers in the kernel",
    license: "GPL",
    params: {
        entry: i32 {
            default: 0,
            description: "Which of getinfo's suitable entries to use; 0: the best",
        },
        dax: i32 {
            default: -1,
            description: "Number of the pmem device that the tests of dax.rs use; the others are not run",
        },
        stalls: i32 {
            default: 0,
            description: "1: of dax.rs, run only the tests with a stalled deregistration",
        },
    },
}

/// A test and its name.
type Test = (&'static str, fn(&station::Station) -> ktap::Outcome);

struct RustApi {
    _results: ktap::Results,
}

impl kernel::Module for RustApi {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let all: &[&[Test]] = &[
            connections::TESTS,
            messages::TESTS,
            rma::TESTS,
            keys::TESTS,
            queues::TESTS,
            atomic::TESTS,
            durable::TESTS,
        ];
        let stalls = ktap::parameter(module_parameters::stalls.value());
        let groups = match ktap::parameter(module_parameters::dax.value()) {
            ..0 => all,
            _ if stalls == 1 => &[dax::STALLED],
            _ => &[dax::TESTS],
        };
        let entry = ktap::parameter(module_parameters::entry.value());
        let entry = usize::try_from(entry).map_err(|_| EINVAL)?;
        let station = station::Station::open(entry)?;
        let mut ktap = ktap::Ktap::begin(groups.iter().map(|tests| tests.len()).sum::<usize>() + 1);
        station.describe(&mut ktap);
        for (name, test) in groups.iter().copied().flatten() {
            ktap.test(name, || test(&station));
        }
        // The framework calls handlers in this module, so they must be gone, also if a test fails.
        let left = station.close();
        ktap.test("nothing_is_left", || left);
        let report = ktap.end()?;
        let folder = debugfs::Dir::new(c"kfi_test_rust_api");
        Ok(Self {
            _results: ktap::Results::show(folder, report)?,
        })
    }
}
