// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sub-regions and raw keys of libkfabric, used by a peer.

use super::library::Lib;
use crate::buf::pattern_bytes;
use crate::harness::caps::REMOTE_ERRORS;
use crate::harness::{Ctx, Test};
use crate::pair::WAIT;
use anyhow::{bail, ensure, Context, Result};
use kfabric::{
    Access, Endpoint, Errno, Error, Event, Kind, Memory, Region, RegionAttr, RemoteMem, SubRegion,
};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "lib.p02_sub_region_key_grants_exactly_its_range_and_rights",
        exact,
    )
    .seconds(20)
    .needs(REMOTE_ERRORS),
    Test::pair("lib.p03_sub_region_closed_revokes_its_key_alone", ends)
        .seconds(10)
        .needs(REMOTE_ERRORS),
    Test::pair(
        "lib.raw_key_sent_as_bytes_works_and_flipped_is_refused",
        raw_keys,
    )
    .seconds(10)
    .needs(REMOTE_ERRORS),
    Test::alone("lib.sub_region_with_bad_arguments_is_refused", rules),
];

const BOTH: Access = Access::REMOTE;
const SIZE: usize = 16 << 10;
/// Seed of the base's pattern.
const SEED: u64 = 3;
/// Byte that node 2 writes.
const WRITTEN: u8 = 0x77;

fn base(lib: &Lib, access: Access, reserved: usize) -> Result<Region> {
    let attr = RegionAttr::new(access).sub_regions(reserved);
    let base = lib
        .domain
        .register_with(Memory::anonymous(SIZE)?, &attr)
        .context("a base")?;
    Ok(base)
}

/// Counts this process's objects of a kind.
fn count(lib: &Lib, kind: Kind) -> Result<usize> {
    let me = std::process::id();
    let all = lib.device.objects()?;
    Ok(all.iter().filter(|o| o.pid == me && o.kind == kind).count())
}

fn has_errno<T>(result: &kfabric::Result<T>, errno: Errno) -> bool {
    matches!(result, Err(e) if e.errno() == Some(errno))
}

/// An access that node 2 tries, and whether it must succeed.
#[derive(serde::Serialize, serde::Deserialize, Clone, Debug)]
struct Probe {
    what: String,
    /// A raw key.
    raw: Vec<u8>,
    write: bool,
    /// Offset from the address that the raw key holds.
    at: i64,
    len: usize,
    /// Offset in the base of the bytes that a successful read returns.
    base: Option<u64>,
}

impl Probe {
    fn new(sub: &SubRegion, write: bool, at: i64, len: usize, fine: bool) -> Self {
        Self {
            what: format!("{sub:?}: {len} bytes at {at}, write {write}"),
            raw: sub.remote().to_raw().to_vec(),
            write,
            at,
            len,
            base: fine.then(|| sub.offset().wrapping_add_signed(at)),
        }
    }
}

/// Node 1 passes a list; node 2 tries each access over a connection that has refused nothing yet. A
/// refused access ends the connection for both sides, with the same reason.
fn try_all(ctx: &mut Ctx, lib: &Lib, local: &Region, list: Vec<Probe>) -> Result<()> {
    let list = match ctx.first() {
        true => {
            ctx.ctl.send(&list)?;
            list
        }
        false => ctx.ctl.recv()?,
    };
    let mut live: Option<Endpoint> = None;
    for probe in &list {
        let ep = match live.take() {
            Some(ep) => ep,
            None => {
                // Discard events of earlier connections.
                while lib.eq.read()?.is_some() {}
                lib.connect(ctx)?
            }
        };
        if !ctx.first() {
            try_one(lib, &ep, local, probe).with_context(|| probe.what.clone())?;
        }
        if probe.base.is_some() {
            live = Some(ep);
        } else {
            let event = lib.eq.wait(WAIT)?;
            let told =
                matches!(event, Event::Shutdown { errno: Some(e), .. } if e == Errno::EACCES);
            ensure!(told, "{}: {event:?}", probe.what);
        }
        ctx.barrier(&probe.what)?;
    }
    Ok(())
}

fn try_one(lib: &Lib, ep: &Endpoint, local: &Region, probe: &Probe) -> Result<()> {
    let remote = RemoteMem::from_raw(&probe.raw)?;
    let remote = remote.offset(probe.at as u64);
    local.fill(0, SIZE, WRITTEN);
    let piece = local.segment(0..probe.len);
    match probe.write {
        true => ep.write(piece, remote, 1)?,
        false => ep.read(piece, remote, 1)?,
    }
    let done = lib.cq.wait(WAIT)?;
    match (probe.base, done.error()) {
        (None, Some(e)) if e.errno == Errno::EACCES => {
            ensure!(
                local.to_vec(0, SIZE) == [WRITTEN; SIZE],
                "a refused operation brought something"
            );
        }
        (Some(at), None) if !probe.write => {
            let wanted = pattern_bytes(SEED, at, probe.len);
            ensure!(local.to_vec(0, probe.len) == wanted, "something else");
        }
        (Some(_), None) => {}
        (_, error) => bail!("{error:?}"),
    }
    Ok(())
}

/// P2: sub-regions, at three levels and over the same bytes, grant exactly their own range and
/// rights, and no byte or right of the regions around them.
fn exact(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::open(ctx)?;
    let base = base(&lib, Access::LOCAL | BOTH, 4)?;
    if !ctx.first() {
        return try_all(ctx, &lib, &base, Vec::new());
    }
    base.write_at(0, &pattern_bytes(SEED, 0, SIZE));
    ensure!(count(&lib, Kind::Key)? == 4, "not as many are reserved");
    let outer = base.sub_region(1000..9000, BOTH)?;
    let reader = outer.sub_region(&base, 100..600, Access::REMOTE_READ)?;
    let writer = outer.sub_region(&base, 100..600, Access::REMOTE_WRITE)?;
    let inner = reader.sub_region(&base, 200..210, Access::REMOTE_READ)?;
    ensure!(count(&lib, Kind::Key)? == 4, "a reserved slot is not used");
    for (sub, at, len) in [
        (&outer, 1000, 8000),
        (&reader, 1100, 500),
        (&writer, 1100, 500),
        (&inner, 1300, 10),
    ] {
        ensure!((sub.offset(), sub.len()) == (at, len), "{sub:?}");
        let beyond = sub.remote().addr - outer.remote().addr;
        ensure!(beyond == at - 1000, "{sub:?} is {beyond} bytes behind");
    }
    // Accesses that work, reads first, because they must see unwritten bytes.
    let mut list = Vec::new();
    for (sub, write) in [
        (&outer, false),
        (&reader, false),
        (&inner, false),
        (&outer, true),
        (&writer, true),
    ] {
        let len = sub.len() as usize;
        list.push(Probe::new(sub, write, 0, 1, true));
        list.push(Probe::new(sub, write, len as i64 - 1, 1, true));
        if !write || sub.len() < 1000 {
            list.push(Probe::new(sub, write, 0, len, true));
        }
    }
    for (sub, write) in [
        (&outer, false),
        (&outer, true),
        (&reader, false),
        (&writer, true),
        (&inner, false),
    ] {
        let len = sub.len() as usize;
        list.push(Probe::new(sub, write, -1, 1, false));
        list.push(Probe::new(sub, write, len as i64, 1, false));
        list.push(Probe::new(sub, write, 0, len + 1, false));
    }
    list.push(Probe::new(&reader, true, 0, 1, false));
    list.push(Probe::new(&inner, true, 0, 1, false));
    list.push(Probe::new(&writer, false, 0, 1, false));
    try_all(ctx, &lib, &base, list)?;
    let mut wanted = pattern_bytes(SEED, 0, SIZE);
    for part in [1000..1001, 8999..9000, 1100..1600] {
        wanted[part].fill(WRITTEN);
    }
    let wrong = (0..SIZE).find(|at| base.to_vec(*at, 1)[0] != wanted[*at]);
    ensure!(wrong.is_none(), "byte {wrong:?} is wrong");
    Ok(())
}

/// P3: closing one sub-region leaves the others valid. A dropped sub-region is freed with the last
/// sub-region within it, and the base is busy until then.
fn ends(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::open(ctx)?;
    let base = base(&lib, Access::LOCAL | BOTH, 3)?;
    if !ctx.first() {
        for _ in 0..3 {
            try_all(ctx, &lib, &base, Vec::new())?;
        }
        return Ok(());
    }
    base.write_at(0, &pattern_bytes(SEED, 0, SIZE));
    let outer = base.sub_region(1000..3000, BOTH)?;
    let inner = outer.sub_region(&base, 0..500, Access::REMOTE_READ)?;
    let last = inner.sub_region(&base, 10..20, Access::REMOTE_READ)?;
    let works = |sub: &SubRegion| Probe::new(sub, false, 0, sub.len() as usize, true);
    let fails = |mut probe: Probe| {
        probe.base = None;
        probe
    };
    let (of_outer, of_inner, of_last) = (works(&outer), works(&inner), works(&last));

    let busy = |e: &Error| e.errno() == Some(Errno::EBUSY);
    let Err(kept) = inner.close() else {
        bail!("one that has a sub-region is closed");
    };
    ensure!(busy(&kept.error), "{}", kept.error);
    let inner = kept.object;
    // Only sub-regions within `outer` still use it.
    drop(outer);
    let base = match base.close() {
        Ok(()) => bail!("a base with sub-regions is closed"),
        Err(kept) if busy(&kept.error) => kept.object,
        Err(kept) => return Err(kept.error.into()),
    };
    let all = [&of_outer, &of_inner, &of_last].map(Clone::clone).to_vec();
    try_all(ctx, &lib, &base, all)?;

    last.close().map_err(|r| r.error)?;
    let list = vec![of_outer.clone(), of_inner.clone(), fails(of_last)];
    try_all(ctx, &lib, &base, list)?;

    inner.close().map_err(|r| r.error)?;
    // The new sub-region reuses a freed slot, and none of the earlier key values.
    let next = base.sub_region(1000..3000, BOTH)?;
    ensure!(count(&lib, Kind::Key)? == 3, "a slot too many");
    let list = vec![works(&next), fails(of_outer), fails(of_inner)];
    try_all(ctx, &lib, &base, list)?;
    next.close().map_err(|r| r.error)?;
    base.close().map_err(|r| r.error)?;
    let left = (count(&lib, Kind::Key)?, count(&lib, Kind::Region)?);
    ensure!(left == (0, 0), "{left:?} are left");
    Ok(())
}

/// Sends raw keys in a message, as bytes. The peer uses each; a key with any bit flipped is
/// refused.
fn raw_keys(ctx: &mut Ctx) -> Result<()> {
    const COUNT: usize = 32;
    const PART: usize = 100;
    let lib = Lib::open(ctx)?;
    let base = base(&lib, Access::LOCAL | BOTH, COUNT)?;
    let message = lib.region(4096)?;
    let ep = lib.connect(ctx)?;
    if ctx.first() {
        let part = |i: usize| (i * PART) as u64..((i + 1) * PART) as u64;
        let subs: kfabric::Result<Vec<_>> =
            (0..COUNT).map(|i| base.sub_region(part(i), BOTH)).collect();
        let subs = subs?;
        let blob: Vec<u8> = subs.iter().flat_map(|sub| sub.remote().to_raw()).collect();
        message.write_at(0, &blob);
        ctx.barrier("posted")?;
        ep.send(message.segment(0..blob.len()), 1)?;
        lib.cq.wait(WAIT)?.ok()?;
        ctx.barrier("written")?;
        for i in 0..COUNT {
            ensure!(
                base.to_vec(i * PART, PART) == [i as u8 + 1; PART],
                "part {i} does not hold the bytes written to it"
            );
        }
        ensure!(base.to_vec(COUNT * PART, 1) == [0], "too much was written");
    } else {
        ep.recv(message.segment(0..4096), 1)?;
        ctx.barrier("posted")?;
        let len = lib.cq.wait(WAIT)?.ok()?.len() as usize;
        ensure!(len == COUNT * RemoteMem::RAW_LEN, "{len} bytes came");
        let blob = message.to_vec(0, len);
        for (i, raw) in blob.chunks(RemoteMem::RAW_LEN).enumerate() {
            base.fill(0, PART, i as u8 + 1);
            let remote = RemoteMem::from_raw(raw)?;
            ensure!(remote.to_raw() == raw, "{raw:?} does not come back");
            ep.write(base.segment(0..PART), remote, 1)?;
            lib.cq
                .wait(WAIT)?
                .ok()
                .with_context(|| format!("key {i}"))?;
        }
        for len in [0, RemoteMem::RAW_LEN - 1, RemoteMem::RAW_LEN + 1] {
            let odd = RemoteMem::from_raw(&blob[..len]);
            ensure!(matches!(odd, Err(Error::Argument { .. })), "{odd:?}");
        }
        ctx.barrier("written")?;
    }
    drop(ep);
    let mut list = Vec::new();
    if ctx.first() {
        let sub = base.sub_region(8000..8100, BOTH)?;
        // Bits of the 24 that the device chooses, and of the eight that are random.
        for bit in [0, 3, 7, 8, 13, 23, 31] {
            let mut probe = Probe::new(&sub, true, 0, 1, false);
            probe.what = format!("bit {bit} changed");
            probe.raw[RemoteMem::RAW_LEN - 1 - bit / 8] ^= 1 << (bit % 8);
            list.push(probe);
        }
        try_all(ctx, &lib, &base, list)?;
        ensure!(base.to_vec(8000, 100) == [0; 100], "a changed key works");
    } else {
        try_all(ctx, &lib, &base, list)?;
    }
    ctx.barrier("done")
}

/// Checks which sub-regions are refused, and that a refusal costs no slot.
fn rules(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::open(ctx)?;
    let read = Access::REMOTE_READ;
    let plain = base(&lib, Access::LOCAL | read, 2)?;
    let base = base(&lib, Access::LOCAL | BOTH, 2)?;
    let outer = base.sub_region(100..200, read)?;
    let argument = |made: &kfabric::Result<SubRegion>| matches!(made, Err(Error::Argument { .. }));
    let end = SIZE as u64;
    for range in [0..end + 1, end + 1..end + 2, u64::MAX - 1..u64::MAX] {
        let made = base.sub_region(range, BOTH);
        ensure!(argument(&made), "outside of the base: {made:?}");
    }
    for range in [0..101, 100..101, 101..101, u64::MAX - 100..u64::MAX] {
        let made = outer.sub_region(&base, range, read);
        ensure!(argument(&made), "outside of its parent: {made:?}");
    }
    #[allow(
        clippy::reversed_empty_ranges,
        reason = "the reversed range must be refused"
    )]
    for made in [
        base.sub_region(2..1, read),
        outer.sub_region(&base, 2..1, read),
        outer.sub_region(&plain, 0..1, read),
    ] {
        ensure!(argument(&made), "{made:?}");
    }
    for access in [BOTH, Access::REMOTE_WRITE] {
        let made = outer.sub_region(&base, 0..1, access);
        ensure!(has_errno(&made, Errno::EACCES), "{access:?}: {made:?}");
        let made = plain.sub_region(0..1, access);
        ensure!(has_errno(&made, Errno::EACCES), "{access:?}: {made:?}");
    }
    for made in [
        base.sub_region(5..5, read),
        base.sub_region(0..1, Access::SEND),
        outer.sub_region(&base, 5..5, read),
    ] {
        ensure!(has_errno(&made, Errno::EINVAL), "{made:?}");
    }
    ensure!(count(&lib, Kind::Key)? == 4, "a refusal cost a slot");
    // More sub-regions than were reserved are allocated on demand, and their slots are kept for
    // reuse.
    for _ in 0..3 {
        let subs: kfabric::Result<Vec<_>> =
            (0..5).map(|i| base.sub_region(i..i + 1, BOTH)).collect();
        subs?;
        ensure!(count(&lib, Kind::Key)? == 8, "slots are not used again");
    }
    // A sub-region whose key was revoked with all keys of the base can be closed.
    ensure!(base.revoke_keys()? == 1, "another number had a key");
    outer.close().map_err(|r| r.error)?;
    base.close().map_err(|r| r.error)?;
    plain.close().map_err(|r| r.error)?;
    ensure!(count(&lib, Kind::Key)? == 0, "slots are left");
    Ok(())
}
