// SPDX-License-Identifier: GPL-2.0
//! kfi_registry_test: the framework's registry and objects, tested with providers made of nothing.
//!
//! Loading the module runs the tests, which takes a second; it fails with `EIO` if one does not
//! pass. With `stay=1` the providers `kfitest-a`, `kfitest-b` and `kfitest-c` remain registered
//! until the module is unloaded, so that a program may open them and see that it cannot be
//! unloaded meanwhile. `/sys/kernel/debug/kfi_registry_test/` has the `results`.

use kernel::{
    debugfs,
    prelude::*, //
};

#[path = "../../ktap/ktap.rs"]
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
    name: "kfi_registry_test",
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
        // The code of this module must not go while anything of it is in use, pass or fail.
        let left = bench.settle();
        ktap.test("nothing_is_left", || left);
        let report = ktap.end()?;
        let folder = debugfs::Dir::new(c"kfi_registry_test");
        Ok(Self {
            _results: ktap::Results::show(folder, report)?,
            _bench: (stay != 0).then_some(bench),
        })
    }
}
