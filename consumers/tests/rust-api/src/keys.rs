// SPDX-License-Identifier: GPL-2.0
//! Tests of operations that a key does not permit: each is refused and ends the connection, and no
//! byte is moved (P1, P2, P3).

use kernel::{
    bindings,
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    base::errno::enotconn,
    ep::{
        Endpoint,
        EpAttr,
        Post, //
    },
    key::{
        Assignment,
        Key,
        Region, //
    },
    memory::{
        LentPiece,
        Memory, //
    },
    objects::domain::Domain,
    op::OpKind,
    provider::KeyValue,
    uapi::*,
};

use crate::{
    buffer::{
        Buffer,
        LOCAL,
        REMOTE, //
    },
    check, check_eq, check_err,
    ktap::Outcome,
    pair::{
        plain,
        Pair,
        Wanted, //
    },
    station::{
        close_region,
        Station, //
    },
    Test,
};

/// The tests of this file.
pub(crate) const TESTS: &[Test] = &[
    ("key_beyond_the_end", |s| outside(s, OpKind::Write, 3000)),
    ("key_before_the_start", |s| {
        outside(s, OpKind::Write, -1_i64 as u64)
    }),
    ("key_read_beyond_the_end", |s| {
        outside(s, OpKind::Read, 3000)
    }),
    ("key_read_only", |s| {
        rights(s, KFI_REMOTE_READ, OpKind::Write)
    }),
    ("key_write_only", |s| {
        rights(s, KFI_REMOTE_WRITE, OpKind::Read)
    }),
    ("key_revoked", revoked),
    ("key_assigned_anew", anew),
    ("key_closed_with_region", closed),
    ("key_invented", invented),
    ("key_refusals_of_the_core", core_refusals),
    ("region_with_keys_is_busy", busy),
    ("revoke_while_written", revoke_while_written),
    ("key_batch", |s| batch(s, Key::assign_many)),
    // The writes are posted immediately.
    ("key_ordered", |s| {
        batch(s, |all| Key::assign_ordered(all, None))
    }),
    ("key_of_an_endpoint", of_an_endpoint),
    ("key_of_a_reused_value", of_reused_values),
    ("key_of_a_strict_domain", of_a_strict_domain),
    ("key_of_a_room", of_a_room),
];

/// Posts an operation that must be refused by either end, and checks that no byte is moved.
fn refused(pair: &Pair, kind: OpKind, here: &Buffer, addr: u64, key: u64) -> Outcome {
    here.fill(0, 1000, 0x77);
    pair.client.ep.post(Post {
        remote_addr: addr,
        key,
        ..plain(kind, 1, here.segs(kind, 0, 1000)?)
    })?;
    let entry = pair.client.completion()?;
    check_eq!(entry.context, 1);
    check_eq!(entry.err, bindings::EACCES);
    check!(here.has(0, 1000, 0x77));
    pair.ended()?;
    // The connection has ended.
    check_err!(pair.client.send(2, here, 0, 1), enotconn());
    check!(pair.client.poll().is_none());
    Ok(())
}

fn outside(station: &Station, kind: OpKind, at: u64) -> Outcome {
    let pair = Pair::new(station)?;
    let (here, there) = (
        Buffer::local(&station.domain, 4096)?,
        Buffer::shared(&station.domain, 8192)?,
    );
    let key = Key::alloc(&there.region)?;
    // The key covers 3999 bytes from 2000 on, so 1000 bytes at 3000 are one too many.
    let value = key.assign(2000, 3999, REMOTE)?;
    refused(
        &pair,
        kind,
        &here,
        value.remote_addr.wrapping_add(at),
        value.key,
    )?;
    check!(there.is_zero(0, 8192));
    // On a new connection the same key still works, up to its last byte.
    let pair = Pair::new(station)?;
    here.fill(0, 1000, 1);
    pair.client
        .rma(OpKind::Write, 1, (&here, 0, 1000), &key, 2999)?;
    pair.client.done(1)?;
    check!(there.has(4999, 1000, 1));
    check!(there.is_zero(5999, 1));
    Ok(())
}

fn rights(station: &Station, have: u64, kind: OpKind) -> Outcome {
    let pair = Pair::new(station)?;
    let (here, there) = (
        Buffer::local(&station.domain, 4096)?,
        Buffer::shared(&station.domain, 4096)?,
    );
    let key = Key::alloc(&there.region)?;
    let value = key.assign(0, 4096, have)?;
    refused(&pair, kind, &here, value.remote_addr, value.key)?;
    check!(there.is_zero(0, 4096));
    // The permitted operation succeeds.
    let other = match kind {
        OpKind::Write => OpKind::Read,
        _ => OpKind::Write,
    };
    let pair = Pair::new(station)?;
    pair.client.rma(other, 1, (&here, 0, 1000), &key, 0)?;
    pair.client.done(1)?;
    Ok(())
}

fn revoked(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let (here, there) = (
        Buffer::local(&station.domain, 4096)?,
        Buffer::shared(&station.domain, 4096)?,
    );
    let key = Key::alloc(&there.region)?;
    let value = key.assign(0, 4096, REMOTE)?;
    pair.client
        .rma(OpKind::Write, 1, (&here, 0, 100), &key, 0)?;
    pair.client.done(1)?;
    key.revoke()?;
    check!(key.value().is_none());
    refused(&pair, OpKind::Write, &here, value.remote_addr, value.key)?;
    check!(there.is_zero(0, 4096));
    let pair = Pair::new(station)?;
    refused(&pair, OpKind::Read, &here, value.remote_addr, value.key)
}

fn anew(station: &Station) -> Outcome {
    let (here, there) = (
        Buffer::local(&station.domain, 4096)?,
        Buffer::shared(&station.domain, 8192)?,
    );
    let key = Key::alloc(&there.region)?;
    let first = key.assign(0, 4096, REMOTE)?;
    let mut last = first;
    for i in 0..20 {
        key.revoke()?;
        let value = key.assign(i, 4096, REMOTE)?;
        check!(value.key != last.key);
        last = value;
    }
    let pair = Pair::new(station)?;
    here.fill(0, 1000, 6);
    pair.client
        .rma(OpKind::Write, 1, (&here, 0, 1000), &key, 0)?;
    pair.client.done(1)?;
    check!(there.has(19, 1000, 6));
    check!(there.is_zero(0, 19));
    // The slot has a key, but not this one.
    refused(&pair, OpKind::Write, &here, last.remote_addr, first.key)
}

fn closed(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let here = Buffer::local(&station.domain, 4096)?;
    let there = Buffer::new(&station.domain, 4096, REMOTE, false)?;
    let value = there.region.key();
    close_region(&there.region)?;
    check_eq!(there.region.key().key, KFI_KEY_NOTAVAIL);
    refused(&pair, OpKind::Write, &here, value.remote_addr, value.key)?;
    check!(there.is_zero(0, 4096));
    Ok(())
}

fn invented(station: &Station) -> Outcome {
    let here = Buffer::local(&station.domain, 4096)?;
    for key in [0, 1, 0xffff_ffff, 0x1234_5678] {
        let pair = Pair::new(station)?;
        refused(&pair, OpKind::Write, &here, 0x1000, key)?;
    }
    let pair = Pair::new(station)?;
    if station.info().mr_key_size == 8 {
        return refused(&pair, OpKind::Write, &here, 0x1000, 1 << 32);
    }
    // Longer than a key value of this device.
    let post = Post {
        key: 1 << 32,
        ..plain(OpKind::Write, 1, here.segs(OpKind::Write, 0, 8)?)
    };
    check_err!(pair.client.ep.post(post), EINVAL);
    Ok(())
}

fn core_refusals(station: &Station) -> Outcome {
    let there = Buffer::shared(&station.domain, 8192)?;
    let key = Key::alloc(&there.region)?;
    check_err!(key.revoke(), EINVAL);
    for (offset, len) in [(0, 0), (0, 8193), (8192, 1), (u64::MAX, 2), (2, u64::MAX)] {
        check_err!(key.assign(offset, len, KFI_REMOTE_READ), EINVAL);
    }
    check_err!(key.assign(0, 1, 0), EINVAL);
    check_err!(key.assign(0, 1, KFI_SEND), EINVAL);
    key.assign(8191, 1, KFI_REMOTE_READ)?;
    check_err!(key.assign(0, 1, KFI_REMOTE_READ), EBUSY);
    let read_only = Buffer::new(&station.domain, 4096, KFI_REMOTE_READ, true)?;
    let key = Key::alloc(&read_only.region)?;
    check_err!(key.assign(0, 1, REMOTE), EACCES);
    check_err!(key.assign(0, 1, KFI_REMOTE_WRITE), EACCES);
    let local = Buffer::local(&station.domain, 4096)?;
    check_eq!(local.region.key().key, KFI_KEY_NOTAVAIL);
    check_err!(Key::alloc(&local.region), EINVAL);
    Ok(())
}

fn busy(station: &Station) -> Outcome {
    let there = Buffer::shared(&station.domain, 4096)?;
    let (reserved, assigned) = (Key::alloc(&there.region)?, Key::alloc(&there.region)?);
    assigned.assign(0, 4096, REMOTE)?;
    check_err!(there.region.close(), EBUSY);
    reserved.close();
    check_err!(there.region.close(), EBUSY);
    assigned.revoke()?;
    // The slot is revoked, but still reserved.
    check_err!(there.region.close(), EBUSY);
    assigned.close();
    close_region(&there.region)?;
    check_err!(Key::alloc(&there.region), ENOENT);
    // A region can be closed while another one covers the same memory.
    let memory = there.region.memory().clone();
    let again: Arc<Region> = Region::register(&station.domain, memory, LOCAL, false)?;
    close_region(&again)
}

fn revoke_while_written(station: &Station) -> Outcome {
    const LEN: usize = 256 << 10;
    let pair = Pair::new(station)?;
    let (here, there) = (
        Buffer::local(&station.domain, LEN)?,
        Buffer::shared(&station.domain, LEN)?,
    );
    let key = Key::alloc(&there.region)?;
    let value = key.assign(0, LEN as u64, REMOTE)?;
    here.fill(0, LEN, 1);
    let mut posted = 0;
    let mut write = || {
        let segs = here.segs(OpKind::Write, 0, LEN)?;
        pair.client.ep.post(Post {
            remote_addr: value.remote_addr,
            key: value.key,
            ..plain(OpKind::Write, posted, segs)
        })?;
        posted += 1;
        Ok::<_, Error>(())
    };
    for _ in 0..32 {
        write()?;
    }
    key.revoke()?;
    // From here on no byte may arrive.
    there.fill(0, LEN, 2);
    // One more write, in case all others were faster than the revoke.
    let last = write();
    check!(last.is_ok() || last == Err(enotconn()));
    let mut errors = 0;
    for context in 0..posted {
        let entry = pair.client.completion()?;
        check_eq!(entry.context, context);
        match entry.err {
            // Operations that succeed come before those that fail. The first failure has the
            // reason, and the later ones were flushed.
            0 | bindings::EACCES => check_eq!(errors, 0),
            err => {
                check_eq!(err, bindings::ECANCELED);
                check!(errors > 0);
            }
        }
        errors += u32::from(entry.err != 0);
    }
    check!(errors > 0);
    pair.ended()?;
    check!(there.has(0, LEN, 2));
    Ok(())
}

/// A key that is bound to an endpoint works on that endpoint alone and ends with it. The domain's
/// other keys do not work on it. The endpoint gets no key value twice.
fn of_an_endpoint(station: &Station) -> Outcome {
    let wanted = Wanted {
        own_keys: true,
        strict_values: true,
        ..Wanted::default()
    };
    let (own, other) = (Pair::with(station, &wanted, &[], &[])?, Pair::new(station)?);
    bound_to(station, &own, &other)
}

/// As above, for an endpoint with key values of its own. These need endpoint-scoped keys.
fn of_reused_values(station: &Station) -> Outcome {
    let attr = EpAttr {
        reuse_values: true,
        ..EpAttr::default()
    };
    check_err!(Endpoint::open(&station.domain, &attr, None), EINVAL);
    let attr = EpAttr {
        strict_values: true,
        ..EpAttr::default()
    };
    check_err!(Endpoint::open(&station.domain, &attr, None), EINVAL);
    let wanted = Wanted {
        own_keys: true,
        reuse_values: true,
        ..Wanted::default()
    };
    let (own, other) = (Pair::with(station, &wanted, &[], &[])?, Pair::new(station)?);
    check!(!own.client.ep.keys_exhausted());
    if station.info().mr_key_size == 4 {
        apart(station, &wanted, &own)?;
    }
    bound_to(station, &own, &other)
}

/// A slot of a strict domain gets no key value twice.
fn of_a_strict_domain(station: &Station) -> Outcome {
    /// More than the values of a device's index.
    const CYCLES: usize = 300;
    let domain = Domain::open_strict(station.fabric(), station.domain.name(), None)?;
    let there = Buffer::shared(&domain, 4096)?;
    let key = Key::alloc(&there.region)?;
    let mut values = KVec::with_capacity(CYCLES, GFP_KERNEL)?;
    for _ in 0..CYCLES {
        let value = key.assign(0, 4096, REMOTE)?.key;
        key.revoke()?;
        check!(!values.contains(&value));
        values.push(value, GFP_KERNEL)?;
    }
    drop(key);
    close_region(&there.region)?;
    domain.close()?;
    Ok(())
}

/// A reused key value has another remote address.
fn apart(station: &Station, wanted: &Wanted, own: &Pair) -> Outcome {
    const LEN: u64 = 64 << 10;
    let there = Buffer::shared(&station.domain, LEN as usize)?;
    let next = Pair::with(station, wanted, &[], &[])?;
    let mut addrs = [0; 2];
    for (addr, pair) in addrs.iter_mut().zip([own, &next]) {
        let key = Key::alloc_for(&there.region, &pair.client.ep)?;
        *addr = key.assign(0, LEN, REMOTE)?.remote_addr;
        key.close();
    }
    check!(addrs[0].abs_diff(addrs[1]) >= LEN);
    close_region(&there.region)
}

fn bound_to(station: &Station, own: &Pair, other: &Pair) -> Outcome {
    let (here, there) = (
        Buffer::local(&station.domain, 4096)?,
        Buffer::shared(&station.domain, 8192)?,
    );
    let (exporter, writer) = (&own.client, &own.server);
    check_err!(Key::alloc_for(&there.region, &other.client.ep), EINVAL);
    let bound = Key::alloc_for(&there.region, &exporter.ep)?;
    let common = Key::alloc(&there.region)?;
    let value = bound.assign(0, 4096, REMOTE)?;
    let common_value = common.assign(4096, 4096, REMOTE)?;
    here.fill(0, 4096, 9);
    writer.write_to(1, (&here, 0, 4096), value)?;
    writer.done(1)?;
    check!(there.has(0, 4096, 9));
    other.client.write_to(2, (&here, 0, 4096), common_value)?;
    other.client.done(2)?;
    check!(there.has(4096, 4096, 9));
    refused(other, OpKind::Write, &here, value.remote_addr, value.key)?;
    writer.write_to(3, (&here, 0, 100), common_value)?;
    check_eq!(writer.completion()?.err, bindings::EACCES);
    own.ended()?;
    check!(bound.value() == Some(value));
    exporter.ep.close();
    check!(bound.value().is_none());
    check_err!(bound.assign(0, 1, REMOTE), ENOENT);
    check_err!(Key::alloc_for(&there.region, &exporter.ep), ENOENT);
    bound.close();
    common.close();
    close_region(&there.region)
}

/// Attaches `parts` of `buffer`, each by start and length, to an attach-on-assign region.
///
/// # Safety
///
/// The region has no key, and the buffer lives until it has none again.
unsafe fn put(room: &Memory, buffer: &Buffer, parts: &[(usize, usize)]) -> Result {
    let mut pieces = KVec::new();
    for (from, len) in parts {
        for segment in buffer.region.memory().segments(*from, *len) {
            let piece = LentPiece {
                page: segment.page,
                offset: u32::try_from(segment.offset)?,
                len: u32::try_from(segment.len)?,
                mapped: 0,
            };
            pieces.push(piece, GFP_KERNEL)?;
        }
    }
    // SAFETY: By the caller's contract.
    unsafe { room.fill(&pieces) }
}

/// Keys of an attach-on-assign region are for the pages attached at their assignment.
fn of_a_room(station: &Station) -> Outcome {
    let domain = &station.domain;
    let (here, there) = (
        Buffer::local(domain, 8192)?,
        Buffer::local(domain, 5 * 4096)?,
    );
    let room = Memory::placeholder(2 * 4096)?;
    check_err!(Memory::placeholder(0), EINVAL);
    check_err!(
        Region::register(domain, room.clone(), REMOTE, false),
        EINVAL
    );
    check_err!(
        Region::register(domain, room.clone(), REMOTE | KFI_SEND, true),
        EINVAL
    );
    let region = Region::register(domain, room.clone(), REMOTE, true)?;
    let pair = Pair::new(station)?;
    let key = Key::alloc(&region)?;
    here.fill(0, 8192, 7);
    // SAFETY: The region has keys only between `assign` and `revoke`, and `there` is dropped later.
    let put = |parts: &[(usize, usize)]| unsafe { put(&room, &there, parts) };
    check_err!(key.assign(0, 1, REMOTE), EINVAL);
    for (parts, why) in [
        // A gap before a piece, and one behind a piece.
        (&[(0, 4096), (8192 + 8, 100)][..], EINVAL),
        (&[(0, 4000), (8192, 4096)], EINVAL),
        (&[(512, 4096), (8192, 4096), (12288, 4096)], EINVAL),
        (&[(0, 4096), (8192, 4096), (16384, 1)], EMSGSIZE),
        (&[(4000, 96), (8192, 4096), (12288, 4001)], EMSGSIZE),
    ] {
        check_err!(put(parts), why);
        check_err!(key.assign(0, 1, REMOTE), EINVAL);
    }
    // Three pages, of which two are attached in part.
    put(&[(4000, 96), (8192, 4096), (12288, 4000)])?;
    check_err!(key.assign(0, 8193, REMOTE), EINVAL);
    check_err!(Region::register(domain, room.clone(), REMOTE, true), EINVAL);
    let first = key.assign(0, 8192, REMOTE)?;
    pair.client.write_to(1, (&here, 0, 96), first)?;
    pair.client.done(1)?;
    let behind = KeyValue {
        remote_addr: first.remote_addr + 96,
        ..first
    };
    pair.client.write_to(2, (&here, 0, 8096), behind)?;
    pair.client.done(2)?;
    check!(there.has(4000, 96, 7));
    check!(there.has(8192, 8096, 7));
    check!(there.is_zero(0, 4000));
    check!(there.is_zero(4096, 4096));
    check!(there.is_zero(12288 + 4000, 96));
    key.revoke()?;
    // Other memory, and less of it.
    put(&[(4096, 4096)])?;
    check_err!(key.assign(0, 4097, REMOTE), EINVAL);
    let mut second = [Assignment {
        key: &key,
        offset: 0,
        len: 4096,
        access: REMOTE,
        once: false,
        value: KeyValue::NONE,
    }];
    Key::assign_ordered(&mut second, None).map_err(|(_, e)| e)?;
    let second = second[0].value;
    pair.client.write_to(3, (&here, 0, 4096), second)?;
    pair.client.done(3)?;
    check!(there.has(4096, 4096, 7));
    check!(there.is_zero(0, 4000));
    there.fill(8192, 4096, 8);
    refused(&pair, OpKind::Write, &here, first.remote_addr, first.key)?;
    check!(there.has(8192, 4096, 8));
    key.close();
    close_region(&region)
}

/// A batch longer than a chain, each key for its own window.
fn batch(
    station: &Station,
    assign: impl Fn(&mut [Assignment<'_>]) -> Result<(), (usize, Error)>,
) -> Outcome {
    const COUNT: usize = 70;
    const LEN: usize = 100;
    let pair = Pair::new(station)?;
    let (here, there) = (
        Buffer::local(&station.domain, 4096)?,
        Buffer::shared(&station.domain, COUNT * 4096)?,
    );
    let mut keys = KVec::new();
    for _ in 0..COUNT {
        keys.push(Key::alloc(&there.region)?, GFP_KERNEL)?;
    }
    let mut batch = KVec::new();
    for (i, key) in keys.iter().enumerate() {
        let one = Assignment {
            key,
            offset: (i * 4096 + i) as u64,
            len: LEN as u64,
            access: REMOTE,
            once: false,
            value: KeyValue::NONE,
        };
        batch.push(one, GFP_KERNEL)?;
    }
    here.fill(0, LEN, 9);
    check!(assign(&mut batch).is_ok());
    for (i, one) in batch.iter().enumerate() {
        pair.client.write_to(i as u64, (&here, 0, LEN), one.value)?;
        pair.client.done(i as u64)?;
        check!(there.has(i * 4096 + i, LEN, 9));
        check!(there.is_zero(i * 4096 + i + LEN, 1));
    }
    let last = batch[COUNT - 1].value;
    drop(batch);
    check!(Key::revoke_many(&mut keys) == Ok(COUNT));
    refused(&pair, OpKind::Write, &here, last.remote_addr, last.key)
}
