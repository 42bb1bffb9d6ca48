// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tests, by topic. If libfabric's fabtests have a test of the same purpose, the topic bears
//! its name.
//!
//! To add a test, write `fn(&mut Ctx) -> Result<()>`, which both nodes run at once, and list it in
//! its topic's `TESTS`. Name it `<topic>.<subject>_<condition>_<expected>`, with `pNN_` in front if
//! it shows promise NN.

pub mod accounts;
pub mod atomics;
pub mod auth;
pub mod auth_agent;
pub mod auth_board;
pub mod auth_hostile;
pub mod auth_path;
pub mod auth_size;
pub mod auth_wire;
pub mod authd;
pub mod authd_busy;
pub mod authd_recipe;
pub mod authd_unknown;
pub mod blk;
pub mod blk_again;
pub mod blk_auth;
pub mod blk_break;
pub mod blk_burner;
pub mod blk_device;
pub mod blk_eadr;
pub mod blk_events;
pub mod blk_famine;
pub mod blk_fence;
pub mod blk_fio;
pub mod blk_fs;
pub mod blk_hang;
pub mod blk_identity;
pub mod blk_liar;
pub mod blk_paths;
pub mod blk_pmem;
pub mod blk_poison;
pub mod blk_renew;
pub mod blk_rules;
pub mod blk_share;
pub mod bounds;
pub mod classes;
pub mod cm;
pub mod conformance;
pub mod containers;
pub mod death;
pub mod device_delays;
pub mod device_removal;
pub mod devices;
pub mod devices_groups;
pub mod devices_pages;
pub mod devices_values;
pub mod doctor;
pub mod examples;
pub mod flood;
pub mod getinfo;
pub mod hosts;
pub mod interop;
pub mod kernel;
pub mod key_batches;
pub mod key_death;
pub mod key_endpoint;
pub mod key_fence;
pub mod key_groups;
pub mod key_once;
pub mod key_ordered;
pub mod key_policy;
pub mod key_races;
pub mod key_refused;
pub mod key_rules;
pub mod key_scale;
pub mod key_seen;
pub mod key_wide;
pub mod keys;
pub mod library;
pub mod library_keys;
pub mod library_raw;
pub mod memory;
pub mod missing_pages;
pub mod modules;
pub mod mpi;
pub mod msg;
pub mod ofi;
pub mod planted;
pub mod pmcut;
pub mod pmcut_disk;
pub mod pmcut_log;
pub mod pmem;
pub mod pmem_bound;
pub mod pmem_channel;
pub mod pmem_commit;
pub mod pmem_kmem;
pub mod pmem_poison;
pub mod pmem_verbs;
pub mod programs;
pub mod promises;
pub mod queues;
pub mod queues_busy;
pub mod rma;
pub mod shares;
pub mod shm;
pub mod shm_atomics;
pub mod shm_calls;
pub mod shm_death;
pub mod shm_killed;
pub mod shm_names;
pub mod shm_owner;
pub mod shm_revoked;
pub mod shm_rings;
pub mod shm_unregistered;
pub mod shm_versions;
pub mod stress;
pub mod tools;
pub mod tutorial;
pub mod uapi;

use crate::harness::{Test, PAIR, TWO};

/// Beginnings of names of tests that run between two guests too, because their result depends on a
/// wire or a second kernel. All other tests show the same between two network namespaces.
const OVER_A_WIRE: &[&str] = &[
    "atomic.adds_from_two_connections_lose_no_update",
    "auth.p07_forged_",
    "auth.p07_leaked_key_",
    "auth.p07_peers_",
    "auth.p07_refusal_",
    "auth.p07_replayed_",
    "blk.rw_of_each_size_reads_back",
    "blkdev.rw_of_each_size_reads_back",
    "cm.",
    "cm_data.",
    "death.p11_",
    "death.sigkill_of_",
    "flood.",
    "kernel.c_lnd_between_nodes_moves_data",
    "keys.p01_region_without_key_is_unreachable",
    "keys.p02_bytes_beyond_both_edges_are_refused",
    "keys.p02_access_beyond_range_is_refused",
    "keys.p03_",
    "keys.p04_stale_key_after_reassign_is_refused",
    "keys.p11_",
    "kfi.get_of_each_size_copies_file",
    "kfi.ping_to_server_is_answered",
    "msg.sends_both_ways_at_once_arrive",
    "msg.sends_posted_together_complete_in_order",
    "msg.send_of_64m_arrives",
    "msg.send_of_each_size_arrives",
    "rma.write_fenced_waits_for_read",
    "rma.read_of_64m_arrives",
    "rma.write_of_64m_arrives",
    "rma.write_with_data_takes_a_receive",
    "unexpected_msg.",
];

/// Returns every test.
pub fn all() -> Vec<Test> {
    let topics: &[&'static [Test]] = &[
        accounts::TESTS,
        getinfo::TESTS,
        msg::TESTS,
        ofi::TESTS,
        mpi::TESTS,
        conformance::TESTS,
        rma::TESTS,
        queues::TESTS,
        queues_busy::TESTS,
        cm::TESTS,
        memory::TESTS,
        missing_pages::TESTS,
        flood::TESTS,
        key_rules::TESTS,
        keys::TESTS,
        key_batches::TESTS,
        key_endpoint::TESTS,
        key_groups::TESTS,
        key_fence::TESTS,
        key_wide::TESTS,
        key_once::TESTS,
        key_ordered::TESTS,
        key_races::TESTS,
        key_refused::TESTS,
        promises::TESTS,
        key_policy::TESTS,
        key_scale::TESTS,
        key_seen::TESTS,
        atomics::TESTS,
        auth::TESTS,
        auth_agent::TESTS,
        auth_board::TESTS,
        auth_wire::TESTS,
        auth_hostile::TESTS,
        auth_path::TESTS,
        auth_size::TESTS,
        uapi::TESTS,
        library::TESTS,
        library_keys::TESTS,
        library_raw::TESTS,
        kernel::TESTS,
        examples::TESTS,
        blk::TESTS,
        blk_auth::TESTS,
        blk_rules::TESTS,
        blk_fio::TESTS,
        blk_fs::TESTS,
        blk_break::TESTS,
        blk_burner::TESTS,
        blk_fence::TESTS,
        blk_device::TESTS,
        blk_hang::TESTS,
        blk_liar::TESTS,
        blk_paths::TESTS,
        blk_pmem::TESTS,
        blk_poison::TESTS,
        blk_renew::TESTS,
        blk_share::TESTS,
        blk_again::TESTS,
        blk_eadr::TESTS,
        blk_events::TESTS,
        blk_famine::TESTS,
        blk_identity::TESTS,
        programs::TESTS,
        stress::TESTS,
        tools::TESTS,
        tutorial::TESTS,
        authd::TESTS,
        authd_busy::TESTS,
        authd_recipe::TESTS,
        authd_unknown::TESTS,
        classes::TESTS,
        death::TESTS,
        device_delays::TESTS,
        device_removal::TESTS,
        devices::TESTS,
        devices_groups::TESTS,
        devices_pages::TESTS,
        devices_values::TESTS,
        doctor::TESTS,
        key_death::TESTS,
        modules::TESTS,
        shm::TESTS,
        shm_names::TESTS,
        shm_owner::TESTS,
        shares::TESTS,
        bounds::TESTS,
        shm_calls::TESTS,
        shm_death::TESTS,
        shm_revoked::TESTS,
        shm_atomics::TESTS,
        shm_killed::TESTS,
        shm_rings::TESTS,
        shm_versions::TESTS,
        shm_unregistered::TESTS,
        pmem::TESTS,
        pmem_bound::TESTS,
        pmem_channel::TESTS,
        pmem_commit::TESTS,
        pmem_kmem::TESTS,
        pmem_poison::TESTS,
        pmem_verbs::TESTS,
        pmcut::TESTS,
        pmcut_disk::TESTS,
        pmcut_log::TESTS,
        containers::TESTS,
        planted::TESTS,
    ];
    let of_devices: &[&'static [Test]] = &[interop::TESTS, crate::wire::TESTS, hosts::TESTS];
    let each = |topics: &[&'static [Test]]| topics.concat();
    let verbs = each(of_devices).into_iter().map(Test::verbs);
    let wired = |test: Test| {
        let wire = OVER_A_WIRE.iter().any(|start| test.name.starts_with(start));
        match wire && test.topologies & PAIR == PAIR {
            true => test.on(test.topologies | TWO),
            false => test,
        }
    };
    let all = each(topics).into_iter().chain(verbs);
    all.map(wired).collect()
}

/// Returns the test called `name`.
pub fn find(name: &str) -> Option<Test> {
    all().into_iter().find(|t| t.name == name)
}

/// Checks that a call was refused with `errno`.
///
/// # Errors
///
/// If the call succeeded or failed with another errno.
pub fn refused<T>(result: crate::raw::Result<T>, errno: i32, what: &str) -> anyhow::Result<()> {
    use crate::sys::Errno;
    match result {
        Err(e) if e.errno.0 == errno => Ok(()),
        Err(e) => anyhow::bail!("{what}: {e}, not {}", Errno(errno)),
        Ok(_) => anyhow::bail!("{what}: accepted, not refused with {}", Errno(errno)),
    }
}

#[cfg(test)]
mod list {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_well_formed() {
        let mut seen = HashSet::new();
        for test in all() {
            assert!(seen.insert(test.name), "{} is there twice", test.name);
            let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let (topic, rest) = test.name.split_once('.').unwrap();
            assert!(
                topic.chars().all(fine) && rest.chars().all(fine),
                "{}",
                test.name
            );
            assert!(test.topologies != 0, "{}", test.name);
        }
    }
}
