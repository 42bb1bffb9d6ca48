// SPDX-License-Identifier: GPL-2.0
//! Tests of regions and keys: valid exports, and the end of keys.

use core::sync::atomic::Ordering;
use kernel::{
    bindings,
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    base::errno::eopnotsupp,
    key::{
        Assignment,
        Key,
        Region, //
    },
    objects::{
        domain::Domain,
        fabric::Fabric, //
    },
    provider::KeyValue,
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
    ("key_for_one_use", one_use),
    ("key_range_and_rights", range),
    ("key_slots_run_out", slots),
    ("key_assign_fails", assign_fails),
    ("key_close_revokes", close_revokes),
    ("key_batch", batch),
    ("key_batch_refused", batch_refused),
    ("key_batch_fails_midway", batch_fails),
    ("key_batch_of_two_domains", batch_of_two_domains),
    ("key_ordered_not_offered", ordered_not_offered),
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

fn one_use(bench: &Bench) -> Outcome {
    let control = &bench.a.control;
    let memory = region(&bench.domain()?, 1, LOCAL | BOTH, true)?;
    let (key, plain) = (Key::alloc(&memory)?, Key::alloc(&memory)?);
    plain.assign(0, 1, BOTH)?;
    let first = key.assign_once(0, 1, BOTH)?;
    check!(key.value() == Some(first));
    check_err!(key.assign(0, 1, BOTH), EBUSY);
    control.used.store(true, Ordering::Relaxed);
    control.forget();
    // The used key counts as revoked; the other key is not single-use.
    check!(key.value().is_none() && plain.value().is_some());
    check_err!(plain.assign(0, 1, BOTH), EBUSY);
    // The used key is revoked before the slot is assigned again.
    let second = key.assign(0, 1, BOTH)?;
    check!(second.key != first.key && key.value() == Some(second));
    check!(control.steps_are(&[Step::Revoke, Step::Assign]));
    key.revoke()?;
    // A used key that was not revoked can be revoked; a second revoke fails.
    key.assign_once(0, 1, BOTH)?;
    key.revoke()?;
    check_err!(key.revoke(), EINVAL);
    key.assign_once(0, 1, BOTH)?;
    control.forget();
    key.close();
    check!(control.steps_are(&[Step::Revoke]));
    control.used.store(false, Ordering::Relaxed);
    // A provider without single-use keys refuses them.
    let fabric = Fabric::open(bench.net.clone(), "kfitest-b", "")?;
    let domain = Domain::open(&fabric, "kfb0")?;
    check!(domain.attr().caps & KFI_SINGLE_USE_KEYS == 0);
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
    // The provider was not called for any of these.
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

/// Allocates all slots of the device, on a region of two pages.
fn all_slots(region: &Arc<Region>) -> Result<KVec<Arc<Key>>> {
    let mut keys = KVec::new();
    for _ in 0..MAX_KEYS {
        keys.push(Key::alloc(region)?, GFP_KERNEL)?;
    }
    Ok(keys)
}

/// Revokes all keys.
fn revoke(keys: &[Arc<Key>]) -> Result<usize, (usize, Error)> {
    let mut all = KVec::new();
    for key in keys {
        all.push(key.clone(), GFP_KERNEL)
            .map_err(|e| (0, e.into()))?;
    }
    Key::revoke_many(&mut all)
}

/// Returns an assignment of one byte for each slot.
fn bytes(keys: &[Arc<Key>]) -> Result<KVec<Assignment<'_>>> {
    let mut batch = KVec::new();
    for (key, offset) in keys.iter().zip(0..) {
        let one = Assignment {
            key,
            offset,
            len: 1,
            access: KFI_REMOTE_READ,
            once: false,
            value: KeyValue::NONE,
        };
        batch.push(one, GFP_KERNEL)?;
    }
    Ok(batch)
}

fn batch(bench: &Bench) -> Outcome {
    let control = &bench.a.control;
    let memory = region(&bench.domain()?, 2, LOCAL | BOTH, true)?;
    let keys = all_slots(&memory)?;
    control.forget();
    check!(Key::assign_many(&mut []).is_ok());
    let mut batch = bytes(&keys)?;
    check!(Key::assign_many(&mut batch).is_ok());
    for (i, one) in batch.iter().enumerate() {
        check!(one.key.value() == Some(one.value));
        check_eq!(one.value.remote_addr, BASE + i as u64);
        check!(i == 0 || batch[i - 1].value.key != one.value.key);
    }
    keys[2].revoke()?;
    check!(revoke(&keys) == Ok(3));
    check!(revoke(&keys) == Ok(0));
    check_eq!(control.count(Step::Assign), 4);
    check_eq!(control.count(Step::Revoke), 4);
    check!(keys.iter().all(|key| key.value().is_none()));
    Ok(())
}

fn batch_refused(bench: &Bench) -> Outcome {
    let control = &bench.a.control;
    let memory = region(&bench.domain()?, 2, LOCAL | BOTH, true)?;
    let keys = all_slots(&memory)?;
    control.forget();
    let mut batch = bytes(&keys)?;
    batch[2].len = 0;
    check!(Key::assign_many(&mut batch) == Err((2, EINVAL)));
    // The provider was not called for the refused entry and those after it.
    check_eq!(control.count(Step::Assign), 2);
    check!(keys[1].value() == Some(batch[1].value));
    check!(keys[2].value().is_none());
    check!(keys[3].value().is_none());
    check!(batch[3].value == KeyValue::NONE);
    check!(revoke(&keys) == Ok(2));
    // A slot that is in the batch twice has its key the second time.
    let mut batch = bytes(&keys)?;
    batch[3].key = &keys[0];
    check!(Key::assign_many(&mut batch) == Err((3, EBUSY)));
    check!(revoke(&keys) == Ok(3));
    keys[1].close();
    let mut batch = bytes(&keys)?;
    check!(Key::assign_many(&mut batch) == Err((1, ENOENT)));
    check!(revoke(&keys) == Ok(1));
    Ok(())
}

fn batch_fails(bench: &Bench) -> Outcome {
    let control = &bench.a.control;
    let memory = region(&bench.domain()?, 2, LOCAL | BOTH, true)?;
    let keys = all_slots(&memory)?;
    for good in 0..keys.len() {
        // CAST: An errno is a small number, and so is the count.
        control.assigns_before.store(good as u32, Ordering::Relaxed);
        control
            .assign_error
            .store(bindings::EIO as i32, Ordering::Relaxed);
        let mut batch = bytes(&keys)?;
        let failed = Key::assign_many(&mut batch);
        control.assign_error.store(0, Ordering::Relaxed);
        check!(failed == Err((good, EIO)));
        let assigned = keys.iter().filter(|key| key.value().is_some()).count();
        check_eq!(assigned, good);
        // The remaining slots are reserved as before.
        check!(Key::assign_many(&mut batch[good..]).is_ok());
        check!(revoke(&keys) == Ok(keys.len()));
    }
    Ok(())
}

fn batch_of_two_domains(bench: &Bench) -> Outcome {
    let one = region(&bench.domain()?, 1, LOCAL | BOTH, true)?;
    let other = region(&bench.domain()?, 1, LOCAL | BOTH, true)?;
    let mut keys = KVec::new();
    for region in [&one, &other, &other, &one] {
        keys.push(Key::alloc(region)?, GFP_KERNEL)?;
    }
    let mut batch = bytes(&keys)?;
    check!(Key::assign_many(&mut batch).is_ok());
    check!(revoke(&keys) == Ok(4));
    Ok(())
}

fn ordered_not_offered(bench: &Bench) -> Outcome {
    let memory = region(&bench.domain()?, 2, LOCAL | BOTH, true)?;
    let keys = all_slots(&memory)?;
    bench.a.control.forget();
    let mut batch = bytes(&keys)?;
    check!(Key::assign_ordered(&mut [], None).is_ok());
    check!(Key::assign_ordered(&mut batch, None) == Err((0, eopnotsupp())));
    check!(bench.a.control.steps_are(&[]));
    check!(batch.iter().all(|one| one.value == KeyValue::NONE));
    // The slots are reserved as before.
    check!(Key::assign_many(&mut batch).is_ok());
    check!(revoke(&keys) == Ok(keys.len()));
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
    // A slot without a key is closed without a revoke.
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
    // Objects are dropped in the wrong order and without a close.
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
