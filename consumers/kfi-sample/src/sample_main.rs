// SPDX-License-Identifier: GPL-2.0
//! kfi_sample: a consumer in the kernel, and the test of what such a consumer relies on.
//!
//! It opens the best device that has an address in the network namespace of whoever loads it,
//! connects to itself through it, and tries everything that the framework offers. Loading it runs
//! the tests, which takes some seconds; it fails with `EIO` if one does not pass.
//! `/sys/kernel/debug/kfi_sample/results` shows the results while it is loaded.
//!
//! For who wants to see how a consumer is written: `station` opens what lasts, `pair` makes a
//! connection, `buffer` registers memory, `wake` waits.

use kernel::{
    debugfs,
    prelude::*, //
};

#[path = "../../ktap/ktap.rs"]
mod ktap;

mod atomic;
mod buffer;
mod connections;
mod keys;
mod messages;
mod pair;
mod queues;
mod rma;
mod station;
mod wake;

module! {
    type: Sample,
    name: "kfi_sample",
    authors: ["kfabric developers"],
    description: "A consumer of kfabric in the kernel, and its test",
    license: "GPL",
    params: {
        entry: i32 {
            default: 0,
            description: "Which of getinfo's suitable entries to use; 0: the best",
        },
    },
}

/// A test and its name.
type Test = (&'static str, fn(&station::Station) -> ktap::Outcome);

struct Sample {
    _results: ktap::Results,
}

impl kernel::Module for Sample {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let groups: [&[Test]; 6] = [
            connections::TESTS,
            messages::TESTS,
            rma::TESTS,
            keys::TESTS,
            queues::TESTS,
            atomic::TESTS,
        ];
        let entry = ktap::parameter(module_parameters::entry.value());
        let entry = usize::try_from(entry).map_err(|_| EINVAL)?;
        let station = station::Station::open(entry)?;
        let mut ktap = ktap::Ktap::begin(groups.iter().map(|tests| tests.len()).sum::<usize>() + 1);
        station.describe(&mut ktap);
        for (name, test) in groups.into_iter().flatten() {
            ktap.test(name, || test(&station));
        }
        // What we gave to the framework calls code of this module: it must be gone, pass or fail.
        let left = station.close();
        ktap.test("nothing_is_left", || left);
        let report = ktap.end()?;
        let folder = debugfs::Dir::new(c"kfi_sample");
        Ok(Self {
            _results: ktap::Results::show(folder, report)?,
        })
    }
}
