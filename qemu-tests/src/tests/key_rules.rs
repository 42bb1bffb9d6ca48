// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rules of key slots that can be tested without a peer.

use super::refused;
use crate::buf::Buf;
use crate::harness::leaks::vm_pin;
use crate::harness::{Ctx, Test, SMOKE};
use crate::pair::{Side, LOCAL, REMOTE};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone(
        "keys.alloc_and_assign_with_bad_arguments_are_refused",
        rules,
    )
    .also(SMOKE),
    Test::alone("keys.alloc_beyond_limits_is_refused", alloc_limits),
    Test::alone("keys.slot_assigned_again_has_new_key", slots_are_used_again),
    Test::alone("keys.keys_of_2000_slots_differ", many_keys).seconds(10),
    Test::alone("keys.p05_region_with_key_refuses_close", busy_region_stays),
];

fn rules(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let buf = Buf::at(10_000, 50)?;
    let region = side.reg(&buf, LOCAL | KFI_REMOTE_READ)?.handle;
    let slot = dev.key_alloc(region, 1)?[0];
    let no = |off, len, access, errno, what: &str| {
        refused(dev.key_assign(slot, off, len, access), errno, what)
    };
    no(0, 0, KFI_REMOTE_READ, libc::EINVAL, "an empty range")?;
    // A domain without single-use keys refuses them.
    if side.domain.caps & KFI_SINGLE_USE_KEYS == 0 {
        let mut once = KeyAssign {
            flags: KFI_KEY_SINGLE_USE,
            slot,
            length: 1,
            access: KFI_REMOTE_READ,
            ..Default::default()
        };
        refused(dev.call(&mut once), libc::EOPNOTSUPP, "a single use")?;
    }
    no(
        0,
        10_001,
        KFI_REMOTE_READ,
        libc::EINVAL,
        "one byte past the end",
    )?;
    no(
        10_000,
        1,
        KFI_REMOTE_READ,
        libc::EINVAL,
        "the byte behind the end",
    )?;
    no(
        9_999,
        2,
        KFI_REMOTE_READ,
        libc::EINVAL,
        "the last byte and one more",
    )?;
    no(
        u64::MAX,
        2,
        KFI_REMOTE_READ,
        libc::EINVAL,
        "a range that wraps",
    )?;
    no(
        1,
        u64::MAX,
        KFI_REMOTE_READ,
        libc::EINVAL,
        "a length that wraps",
    )?;
    no(0, 1, 0, libc::EINVAL, "no rights")?;
    no(
        0,
        1,
        KFI_REMOTE_READ | KFI_SEND,
        libc::EINVAL,
        "a right that is not a key's",
    )?;
    no(
        0,
        1,
        KFI_REMOTE_WRITE,
        libc::EACCES,
        "a right that the region has not",
    )?;
    no(
        0,
        1,
        REMOTE,
        libc::EACCES,
        "two rights where the region has one",
    )?;
    let k = dev
        .key_assign(slot, 9_999, 1, KFI_REMOTE_READ)
        .context("the last byte")?;
    ensure!(k.key != KFI_KEY_NOTAVAIL, "the value that means no key");
    no(0, 1, KFI_REMOTE_READ, libc::EBUSY, "a slot that has a key")?;
    refused(
        dev.close(region),
        libc::EBUSY,
        "closing a region with a key",
    )?;
    dev.key_revoke(slot)?;
    refused(
        dev.key_revoke(slot),
        libc::EINVAL,
        "revoking a slot without a key",
    )?;
    dev.key_assign(slot, 0, 10_000, KFI_REMOTE_READ)
        .context("a revoked slot")?;
    dev.close(slot).context("closing a slot revokes")?;
    refused(dev.key_revoke(slot), libc::ENOENT, "revoking a closed slot")?;
    dev.close(region)?;
    // The region has no dynamic keys, so it has no slots.
    let plain = dev.region_reg(side.domain.handle, buf.addr(), 100, LOCAL | REMOTE, 0)?;
    match dev.key_alloc(plain.handle, 1) {
        Err(e) if [libc::EINVAL, libc::EOPNOTSUPP].contains(&e.errno.0) => Ok(()),
        other => bail!("slots on a region without dynamic keys: {other:?}"),
    }
}

fn alloc_limits(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let buf = Buf::new(4096)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    refused(dev.key_alloc(region, 0), libc::EINVAL, "no slots")?;
    refused(
        dev.key_alloc(region, KFI_KEY_ALLOC_MAX + 1),
        libc::EINVAL,
        "too many slots",
    )?;
    let mut bad = KeyAlloc {
        region,
        count: 4,
        handles: 8,
        ..Default::default()
    };
    refused(
        dev.call(&mut bad),
        libc::EFAULT,
        "a bad place for the handles",
    )?;
    let me = std::process::id();
    let keys = || -> Result<usize> {
        Ok(dev
            .obj_list()?
            .iter()
            .filter(|o| o.pid == me && o.kind == KFI_TYPE_KEY)
            .count())
    };
    ensure!(keys()? == 0, "{} slots are left of refused calls", keys()?);
    let slots = dev.key_alloc(region, 500)?;
    ensure!(
        slots.iter().collect::<std::collections::HashSet<_>>().len() == 500,
        "handles repeat"
    );
    ensure!(keys()? == 500, "{} slots are listed", keys()?);
    for slot in slots {
        dev.close(slot)?;
    }
    dev.close(region)?;
    Ok(())
}

fn slots_are_used_again(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let buf = Buf::new(8192)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slot = dev.key_alloc(region, 1)?[0];
    let mut before = None;
    for i in 0..1000u64 {
        let k = dev
            .key_assign(slot, i % 4096, 1 + i % 100, KFI_REMOTE_READ)
            .with_context(|| format!("round {i}"))?;
        ensure!(before != Some(k.key), "round {i}: the same key again");
        before = Some(k.key);
        dev.key_revoke(slot)?;
    }
    Ok(())
}

fn many_keys(ctx: &mut Ctx) -> Result<()> {
    const COUNT: u32 = 2000;
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let buf = Buf::new(COUNT as usize * 64)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slots = dev.key_alloc(region, COUNT)?;
    let mut keys = std::collections::HashSet::new();
    for (i, slot) in slots.iter().enumerate() {
        let k = dev.key_assign(*slot, i as u64 * 64, 64, REMOTE)?;
        ensure!(keys.insert(k.key), "key {:#x} was given out twice", k.key);
    }
    refused(dev.close(region), libc::EBUSY, "closing the region")?;
    // Closing the file frees them all.
    Ok(())
}

fn busy_region_stays(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let buf = Buf::new(3 * 4096)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slots = dev.key_alloc(region, 2)?;
    for slot in &slots {
        dev.key_assign(*slot, 0, 100, KFI_REMOTE_READ)?;
    }
    for slot in &slots {
        refused(
            dev.close(region),
            libc::EBUSY,
            "closing a region with an assigned key",
        )?;
        ensure!(vm_pin() == 3 * 4096, "VmPin is {}", vm_pin());
        dev.key_revoke(*slot)?;
    }
    slots.iter().try_for_each(|s| dev.close(*s))?;
    dev.close(region)?;
    ensure!(vm_pin() == 0, "VmPin is {}", vm_pin());
    Ok(())
}
