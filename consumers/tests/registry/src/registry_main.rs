// SPDX-License-Identifier: GPL-2.0
//! kfi_test_registry: tests of the framework's registry and objects, with fake providers.
//!
//! Loading the module runs the tests, which takes a second; the load fails with `EIO` if a test
//! fails. With `stay=1` the providers `kfitest-a`, `kfitest-b` and `kfitest-c` remain registered
//! until the module is unloaded. So a program can open them and check that the module cannot be
//! unloaded meanwhile. The file `results` in `/sys/kernel/debug/kfi_test_registry/` shows the
//! results.

use kernel::{
    debugfs,
    prelude::*, //
};

#[path = "../../../ktap/ktap.rs"]
mod ktap;

mod bench;
mod connections;
mod fake;
mod fake_cm;
mod fake_device;
mod getinfo;
mod keys;
mod lifetime;
mod operations;
mod requests;

module! {
    type: RegistryTest,
    name: "kfi_test_registry",
    authors: ["kfabric developers"],
    description: "Tests of kfabric with providers made of nothing",
    license: "GPL",
    params: {
        stay: i32 {
            default: 0,
            description: "1: the providers stay registered until the module is unloaded",
        },
    },
}

/// A test and its name.
type Test = (&'static str, fn(&bench::Bench) -> ktap::Outcome);

struct RegistryTest {
    _results: ktap::Results,
    _bench: Option<bench::Bench>,
}

impl kernel::Module for RegistryTest {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let groups: [&[Test]; 6] = [
            getinfo::TESTS,
            lifetime::TESTS,
            operations::TESTS,
            connections::TESTS,
            requests::TESTS,
            keys::TESTS,
        ];
        let stay = ktap::parameter(module_parameters::stay.value());
        let bench = bench::Bench::new(module)?;
        let mut ktap = ktap::Ktap::begin(groups.iter().map(|tests| tests.len()).sum::<usize>() + 1);
        for (name, test) in groups.into_iter().flatten() {
            ktap.test(name, || test(&bench));
        }
        // The module's code must stay while objects use it, also if a test fails.
        let left = bench.settle();
        ktap.test("nothing_is_left", || left);
        let report = ktap.end()?;
        let folder = debugfs::Dir::new(c"kfi_test_registry");
        Ok(Self {
            _results: ktap::Results::show(folder, report)?,
            _bench: (stay != 0).then_some(bench),
        })
    }
}
