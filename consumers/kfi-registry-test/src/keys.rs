// SPDX-License-Identifier: GPL-2.0
//! Regions and keys: what may be exported, and what ends when.

use core::sync::atomic::Ordering;
use kernel::{
    bindings,
    prelude::*, //
};
use kfabric::{
    errno::eopnotsupp,
    fabric::{
        Domain,
        Fabric, //
    },
    region::Key,
    uapi::*,
};

use crate::{
    bench::{
        region,
        Bench, //
    },
    check, check_eq, check_err,
    fake::{
        Step,
        MAX_KEYS, //
    },
    fake_device::BASE,
    ktap::Outcome,
    Test,
};

/// The tests of this file.
pub(crate) const TESTS: &[Test] = &[
    ("region_access", access),
    ("region_own_key", own_key),
    ("region_dynamic_has_no_key", dynamic),
    ("region_without_dynamic_keys", not_offered),
    ("key_life", life),
    ("key_range_and_rights", range),
    ("key_slots_run_out", slots),
    ("key_assign_fails", assign_fails),
    ("key_close_revokes", close_revokes),
    ("release_order", release_order),
];

const LOCAL: u64 = KFI_SEND | KFI_RECV;
const BOTH: u64 = KFI_REMOTE_READ | KFI_REMOTE_WRITE;

fn access(bench: &Bench) -> Outcome {
    let domain = bench.domain()?;
    check_err!(region(&domain, 1, 1 << 40, false), EINVAL);
    check_err!(region(&domain, 1, LOCAL | KFI_COMPLETION, true), EINVAL);
    check_err!(region(&domain, 0, LOCAL, false), EINVAL);
    let memory = region(&domain, 3, LOCAL, false)?;
    check_eq!(memory.memory().len(), 3 * 4096);
    check_eq!(memory.access(), LOCAL);
    // No remote right, no key (P1).
    check_eq!(memory.key().key, KFI_KEY_NOTAVAIL);
    Ok(())
}

fn own_key(bench: &Bench) -> Outcome {
    let control = &bench.a.control;
    let domain = bench.domain()?;
    control.forget();
    let memory = region(&domain, 2, LOCAL | KFI_REMOTE_READ, false)?;
    check!(memory.key().key != KFI_KEY_NOTAVAIL);
    check_eq!(memory.key().remote_addr, BASE);
    check_err!(Key::alloc(&memory), EINVAL);
    memory.close()?;
    check!(control.steps_are(&[Step::Assign, Step::Revoke]));
    check_eq!(memory.key().key, KFI_KEY_NOTAVAIL);
    drop(memory);
    check!(control.steps_are(&[Step::Assign, Step::Revoke, Step::KeyDrop, Step::RegionDrop]));
    Ok(())
}

fn dynamic(bench: &Bench) -> Outcome {
    let memory = region(&bench.domain()?, 1, LOCAL | BOTH, true)?;
    check_eq!(memory.key().key, KFI_KEY_NOTAVAIL);
    let key = Key::alloc(&memory)?;
    check!(key.value().is_none());
    check!(key.grant().is_none());
    Ok(())
}

fn not_offered(bench: &Bench) -> Outcome {
    let fabric = Fabric::open(bench.net.clone(), "kfitest-b", "")?;
    let domain = Domain::open(&fabric, "kfb0")?;
    check_err!(region(&domain, 1, LOCAL | BOTH, true), eopnotsupp());
    region(&domain, 1, LOCAL, false)?;
    Ok(())
}

fn life(bench: &Bench) -> Outcome {
    let memory = region(&bench.domain()?, 2, LOCAL | BOTH, true)?;
    let key = Key::alloc(&memory)?;
    check_err!(key.revoke(), EINVAL);
    let first = key.assign(4000, 200, KFI_REMOTE_READ)?;
    check_eq!(first.remote_addr, BASE + 4000);
    check!(key.value() == Some(first));
    check!(key.grant() == Some((4000, 200, KFI_REMOTE_READ)));
    check_err!(key.assign(0, 1, KFI_REMOTE_READ), EBUSY);
    key.revoke()?;
    check!(key.value().is_none());
    check_err!(key.revoke(), EINVAL);
    let second = key.assign(0, 8192, BOTH)?;
    check!(second.key != first.key);
    check!(key.grant() == Some((0, 8192, BOTH)));
    key.close();
    check_err!(key.assign(0, 1, KFI_REMOTE_READ), ENOENT);
    check_err!(key.revoke(), ENOENT);
    Ok(())
}

fn range(bench: &Bench) -> Outcome {
    let domain = bench.domain()?;
    let memory = region(&domain, 1, LOCAL | BOTH, true)?;
    let key = Key::alloc(&memory)?;
    bench.a.control.forget();
    for (offset, len) in [
        (0, 0),
        (0, 4097),
        (4096, 1),
        (1, 4096),
        (u64::MAX, 2),
        (1, u64::MAX),
    ] {
        check_err!(key.assign(offset, len, KFI_REMOTE_READ), EINVAL);
    }
    for rights in [0, KFI_SEND, KFI_REMOTE_READ | KFI_READ, 1 << 63] {
        check_err!(key.assign(0, 1, rights), EINVAL);
    }
    let read_only = region(&domain, 1, LOCAL | KFI_REMOTE_READ, true)?;
    let of_read_only = Key::alloc(&read_only)?;
    check_err!(of_read_only.assign(0, 1, KFI_REMOTE_WRITE), EACCES);
    check_err!(of_read_only.assign(0, 1, BOTH), EACCES);
    // The provider was not asked for any of it.
    check!(bench.a.control.steps_are(&[]));
    of_read_only.assign(4095, 1, KFI_REMOTE_READ)?;
    key.assign(0, 4096, KFI_REMOTE_WRITE)?;
    Ok(())
}

fn slots(bench: &Bench) -> Outcome {
    let memory = region(&bench.domain()?, 1, LOCAL | BOTH, true)?;
    let mut keys = KVec::new();
    for _ in 0..MAX_KEYS {
        keys.push(Key::alloc(&memory)?, GFP_KERNEL)?;
    }
    check_err!(Key::alloc(&memory), ENOSPC);
    check_err!(memory.close(), EBUSY);
    drop(keys.pop());
    keys.push(Key::alloc(&memory)?, GFP_KERNEL)?;
    drop(keys);
    memory.close()?;
    check_eq!(bench.a.control.keys.load(Ordering::Relaxed), 0);
    Ok(())
}

fn assign_fails(bench: &Bench) -> Outcome {
    let memory = region(&bench.domain()?, 1, LOCAL | BOTH, true)?;
    let key = Key::alloc(&memory)?;
    let fail = &bench.a.control.assign_error;
    // CAST: An errno is a small number.
    fail.store(bindings::EIO as i32, Ordering::Relaxed);
    let failed = key.assign(0, 64, KFI_REMOTE_READ);
    fail.store(0, Ordering::Relaxed);
    check_err!(failed, EIO);
    // The slot is reserved as before.
    check!(key.value().is_none());
    check_err!(key.revoke(), EINVAL);
    check_err!(memory.close(), EBUSY);
    key.assign(0, 64, KFI_REMOTE_READ)?;
    Ok(())
}

fn close_revokes(bench: &Bench) -> Outcome {
    let control = &bench.a.control;
    let memory = region(&bench.domain()?, 1, LOCAL | BOTH, true)?;
    let key = Key::alloc(&memory)?;
    key.assign(0, 64, KFI_REMOTE_READ)?;
    control.forget();
    key.close();
    check!(control.steps_are(&[Step::Revoke]));
    key.close();
    check!(control.steps_are(&[Step::Revoke]));
    // A slot that had no key has none to end.
    let key = Key::alloc(&memory)?;
    control.forget();
    key.close();
    drop(key);
    check!(control.steps_are(&[Step::KeyDrop]));
    Ok(())
}

fn release_order(bench: &Bench) -> Outcome {
    let control = &bench.a.control;
    let domain = bench.domain()?;
    let memory = region(&domain, 1, LOCAL | BOTH, true)?;
    let key = Key::alloc(&memory)?;
    key.assign(0, 64, KFI_REMOTE_READ)?;
    let ends = crate::bench::Ends::connected(&domain, 0, control)?;
    let fabric = domain.fabric().clone();
    control.forget();
    // Dropped the wrong way round and without closing.
    drop((fabric, domain, memory));
    check!(control.steps_are(&[]));
    drop(ends);
    check!(control.steps_are(&[Step::EpClose, Step::EpDrop]));
    drop(key);
    check!(control.steps_are(&[
        Step::EpClose,
        Step::EpDrop,
        Step::Revoke,
        Step::KeyDrop,
        Step::RegionDrop,
        Step::DomainDrop
    ]));
    Ok(())
}
