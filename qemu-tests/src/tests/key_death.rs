// SPDX-License-Identifier: MIT OR Apache-2.0

//! A process is killed in every state of its keys: nothing of them stays, the peer that was using a
//! key gets the reason, and the next process has all its resources at once.

use super::death::nothing_left_of;
use super::library::Lib;
use super::promises::{run_to_the_end, REM_ACCESS_ERR};
use super::refused;
use crate::buf::Buf;
use crate::harness::caps::{REMOTE_ERRORS, WIDE_WINDOWS};
use crate::harness::guest::until;
use crate::harness::{Ctx, Env, Test};
use crate::op::{self, iov};
use crate::pair::{accept_one, connect_one, Opts, Remote, Side, LOCAL, LONG, REMOTE, WAIT};
use crate::raw::Dev;
use crate::sys::{self, Ended, Map};
use anyhow::{ensure, Context, Result};
use kfabric::{Access, Memory, RegionAttr};
use kfabric_uapi::*;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone(
        "keys.p05_sigkill_in_every_key_state_leaves_nothing",
        sigkill,
    )
    .seconds(90)
    .needs(WIDE_WINDOWS),
    Test::pair("keys.p11_sigkill_in_every_key_state_notifies_peer", told)
        .seconds(60)
        .needs(REMOTE_ERRORS),
];

const PAGE: u64 = 4096;

/// Objects of a process when it is killed.
struct Victim<'a> {
    side: Side,
    region: u64,
    map: Map,
    env: Env,
    /// The parent waits for a word in this memory.
    word: &'a Map,
}

impl<'a> Victim<'a> {
    // Longer than a slot's reserve covers, and not longer than the page lists of all profiles.
    const SIZE: u64 = 300 * PAGE;

    fn new(env: &Env, word: &'a Map) -> Result<Self> {
        let side = Side::of(env)?;
        let map = Map::anon(Self::SIZE as usize)?;
        let region = side.reg_at(map.addr(), Self::SIZE, LOCAL | REMOTE)?.handle;
        Ok(Self {
            side,
            region,
            map,
            env: env.clone(),
            word,
        })
    }

    fn dev(&self) -> &Dev {
        &self.side.dev
    }

    /// Reports that the process is in its state, or about to enter and leave it without end.
    fn ready(&self) {
        self.word.store32(0, 1);
    }

    fn slots(&self, count: u32) -> Result<Vec<u64>> {
        Ok(self.dev().key_alloc(self.region, count)?)
    }

    /// Allocates and assigns slots with a page each.
    fn keys(&self, count: u32) -> Result<Vec<u64>> {
        let slots = self.slots(count)?;
        self.assign(&slots)?;
        Ok(slots)
    }

    /// Returns an entry of one page for each slot.
    fn entries(slots: &[u64]) -> Vec<KeyEntry> {
        let entry = |(i, slot): (u64, &u64)| KeyEntry {
            slot: *slot,
            offset: i * PAGE % Self::SIZE,
            length: PAGE,
            access: REMOTE,
            ..Default::default()
        };
        (0..).zip(slots).map(entry).collect()
    }

    fn assign(&self, slots: &[u64]) -> Result<()> {
        let got = self.dev().key_assign_many(&mut Self::entries(slots))?;
        ensure!(got == (slots.len(), 0), "assigned: {got:?}");
        Ok(())
    }

    fn order(&self, slots: &[u64]) -> Result<()> {
        let mut entries = Self::entries(slots);
        let got = self.dev().key_assign_ordered(&mut entries, 0, 0)?;
        ensure!(got == (slots.len(), 0), "ordered: {got:?}");
        Ok(())
    }

    /// Opens an endpoint with endpoint-scoped keys, and slots that are bound to it.
    fn bound(&self, count: u32) -> Result<(u64, Vec<u64>)> {
        let ep = self.dev().ep_open(&EpOpen {
            flags: KFI_EP_OWN_KEYS,
            domain: self.side.domain.handle,
            ..Default::default()
        })?;
        let slots = self.dev().key_alloc_for(self.region, ep.handle, count)?;
        Ok((ep.handle, slots))
    }

    fn assign_full(&self, slot: u64) -> Result<()> {
        self.side.assign(slot, 100, Self::SIZE - 200, REMOTE)?;
        Ok(())
    }
}

/// A key state, and the function that brings a process there.
type Path = (&'static str, fn(&Victim<'_>) -> Result<()>);

/// Every state of a key, and the transitions between them.
const PATHS: &[Path] = &[
    ("reserving", |v| {
        v.ready();
        loop {
            let slots = v.slots(300)?;
            slots.iter().try_for_each(|slot| v.dev().close(*slot))?;
        }
    }),
    ("reserved", |v| {
        v.slots(300)?;
        v.ready();
        Ok(())
    }),
    ("assigning", |v| {
        let slots = v.slots(500)?;
        v.ready();
        loop {
            v.assign(&slots)?;
            v.dev().key_revoke_all(KFI_REVOKE_REGION, v.region)?;
        }
    }),
    ("assigning in full", |v| {
        let slot = v.slots(1)?[0];
        v.ready();
        loop {
            v.assign_full(slot)?;
            v.dev().key_revoke(slot)?;
        }
    }),
    ("assigned", |v| {
        v.keys(300)?;
        v.ready();
        Ok(())
    }),
    ("assigned in full", |v| {
        for slot in v.slots(3)? {
            v.assign_full(slot)?;
        }
        v.ready();
        Ok(())
    }),
    ("registered with its own", |v| {
        let domain = v.side.domain.handle;
        let (addr, access) = (v.map.addr(), LOCAL | REMOTE);
        v.dev().region_reg(domain, addr, Victim::SIZE, access, 0)?;
        v.ready();
        Ok(())
    }),
    ("revoking", |v| {
        let slots = v.keys(1000)?;
        v.ready();
        loop {
            let revoke = |slot: &u64| v.dev().key_revoke(*slot);
            slots.iter().try_for_each(revoke)?;
            v.assign(&slots)?;
        }
    }),
    // For 2 ms the slots have nothing in reserve.
    ("revoked", |v| {
        let slots = v.keys(300)?;
        v.dev().key_revoke_slots(&slots)?;
        v.ready();
        Ok(())
    }),
    ("closing", |v| {
        v.ready();
        loop {
            let slots = v.keys(300)?;
            slots.iter().try_for_each(|slot| v.dev().close(*slot))?;
        }
    }),
    // The keys are returned and not assigned yet, or about to be.
    ("promised", |v| {
        let slots = v.slots(500)?;
        v.ready();
        loop {
            v.order(&slots)?;
            v.dev().key_revoke_slots(&slots)?;
        }
    }),
    ("promised and closed", |v| {
        v.ready();
        loop {
            let slots = v.slots(300)?;
            v.order(&slots)?;
            slots.iter().try_for_each(|slot| v.dev().close(*slot))?;
        }
    }),
    ("promised when it is killed", |v| {
        let slots = v.slots(2000)?;
        v.ready();
        v.order(&slots)
    }),
    ("freed", |v| {
        let slots = v.keys(300)?;
        slots.iter().try_for_each(|slot| v.dev().close(*slot))?;
        v.ready();
        Ok(())
    }),
    ("bound, without keys", |v| {
        v.bound(300)?;
        v.ready();
        Ok(())
    }),
    ("bound", |v| {
        let (_, slots) = v.bound(300)?;
        v.assign(&slots[..200])?;
        v.order(&slots[200..])?;
        v.ready();
        Ok(())
    }),
    ("bound as a region", |v| {
        let (ep, _) = v.bound(1)?;
        for flags in [0, KFI_REGION_DYNAMIC_KEYS] {
            v.dev().call_region(&RegionReg {
                flags,
                domain: v.side.domain.handle,
                addr: v.map.addr(),
                len: Victim::SIZE,
                access: LOCAL | REMOTE,
                ep,
                ..Default::default()
            })?;
        }
        v.ready();
        Ok(())
    }),
    ("ending with its endpoint", |v| {
        v.ready();
        loop {
            let (ep, slots) = v.bound(100)?;
            v.assign(&slots[..50])?;
            v.order(&slots[50..])?;
            v.dev().close(ep)?;
            slots.iter().try_for_each(|slot| v.dev().close(*slot))?;
        }
    }),
    ("ended for its endpoint", |v| {
        let (ep, slots) = v.bound(300)?;
        v.ready();
        loop {
            v.assign(&slots)?;
            v.dev().key_revoke_all(KFI_REVOKE_EP, ep)?;
        }
    }),
    ("sub-regions", |v| {
        let lib = Lib::of(&v.env)?;
        let attr = RegionAttr::new(Access::LOCAL | Access::REMOTE).sub_regions(20);
        let memory = Memory::anonymous(Victim::SIZE as usize)?;
        let base = lib.domain.register_with(memory, &attr)?;
        let outer = base.sub_region(100..Victim::SIZE - 100, Access::REMOTE)?;
        let inner = |i: u64| outer.sub_region(&base, i * 99..(i + 1) * 99, Access::REMOTE_READ);
        let mut all: Vec<_> = (0..30).map(inner).collect::<kfabric::Result<_>>()?;
        v.ready();
        // One sub-region after the other is dropped and created again.
        for i in (0..30).cycle() {
            let next = inner(i)?;
            all.push(next);
            all.swap_remove(0);
        }
        Ok(())
    }),
    ("keeping its region", |v| {
        v.keys(1)?;
        refused(v.dev().close(v.region), libc::EBUSY, "a busy region")?;
        v.ready();
        Ok(())
    }),
];

/// Starts a process that runs `work`, and then does nothing.
fn start(state: &str, work: impl FnOnce() -> Result<()>) -> Result<i32> {
    let pid = sys::fork(|| {
        if let Err(e) = work() {
            eprintln!("{state}: {e:#}");
        }
        1
    })?;
    Ok(pid)
}

/// Brings the process into a state, and stays there.
fn stay(victim: &Victim<'_>, path: fn(&Victim<'_>) -> Result<()>) -> Result<()> {
    path(victim)?;
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

/// Kills a process, and waits until nothing of it is left.
fn end(dev: &Dev, pid: i32) -> Result<()> {
    sys::kill(pid, libc::SIGKILL)?;
    let ended = sys::wait_pid(pid, WAIT)?;
    ensure!(ended == Some(Ended::Signal(libc::SIGKILL)), "{ended:?}");
    nothing_left_of(dev, pid)
}

/// P5: in whatever state a process's keys are when it is killed, nothing of them stays.
fn sigkill(ctx: &mut Ctx) -> Result<()> {
    let dev = Dev::open()?;
    for (state, path) in PATHS {
        for delay in [0, 700, 3000, 11_000] {
            let what = format!("killed after {delay} us: {state}");
            let word = Map::shared(PAGE as usize)?;
            let pid = start(state, || stay(&Victim::new(&ctx.env, &word)?, *path))?;
            until(&what, WAIT, || Ok((word.load32(0) == 1).then_some(())))?;
            std::thread::sleep(Duration::from_micros(delay));
            end(&dev, pid).context(what)?;
        }
    }
    // Freed resources can be used again.
    let side = Side::open(ctx)?;
    let buf = Buf::new(PAGE as usize)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    side.export(region, 0, PAGE, REMOTE)?;
    Ok(())
}

/// Errors that the peer of a killed process may get: the key is revoked before the connection ends.
const FIRST: [(i32, u32); 2] = [
    (libc::EACCES, REM_ACCESS_ERR),
    (libc::ECANCELED, WR_FLUSH_ERR),
];
/// `IB_WC_WR_FLUSH_ERR`.
const WR_FLUSH_ERR: u32 = 5;
/// Offset of the word that lets the victim go on, behind its own words.
const GO: usize = 64;

/// P11: the peer of a killed process, in every key state, writes through one of its keys without
/// pause. Completed operations stay completed, one operation names the reason, the rest is flushed,
/// and one event follows. The next process, with the same peer, is there at once.
fn told(ctx: &mut Ctx) -> Result<()> {
    const SIZE: u64 = 64 << 10;
    let side = Side::open(ctx)?;
    if !ctx.first() {
        let buf = Buf::new(SIZE as usize)?;
        buf.clear(0x77);
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
        ctx.ctl.send(&at.port())?;
        for (state, _) in PATHS {
            let cq = side.cq(0, KFI_CQ_FORMAT_DATA)?;
            let ep = accept_one(&side, &Opts::default(), &cq)?.handle;
            let r: Remote = ctx.ctl.recv()?;
            let piece = [iov(region, 0, SIZE)];
            let make = |context| op::write(context, &piece, r.addr, r.key);
            side.dev.submit(ep, &[make(0)])?;
            let worked = cq.wait(LONG).context(*state)?;
            ensure!(worked.err == 0, "{state}: it never worked: {worked:?}");
            ctx.ctl.send(&true)?;
            let ends = run_to_the_end(&side, ep, &cq, make).context(*state)?;
            let good = ends.iter().take_while(|e| e.err == 0).count();
            // Without outstanding operations there is nothing to flush.
            let first = ends.get(good);
            if let Some(first) = first {
                let is = (first.err as i32, first.prov_errno);
                ensure!(FIRST.contains(&is), "{state}: {first:?}");
                let flushed = |e: &CqEntry| e.err as i32 == libc::ECANCELED;
                let rest = &ends[good + 1..];
                ensure!(rest.iter().all(flushed), "{state}: {rest:?}");
            }
            let down = side.event(KFI_SHUTDOWN)?;
            ensure!(down.raw.object == ep, "{state}: {:?}", down.raw);
            let why = down.raw.err as i32;
            let errno = first.map_or(0, |first| first.err as i32);
            // The shutdown event may come before the refusal.
            ensure!(
                [0, errno].contains(&why),
                "{state}: {errno}, but {:?}",
                down.raw
            );
            eprintln!("{state}: {good} writes, then {errno}, event {why}");
            side.dev.close(ep)?;
            side.dev.close(cq.handle)?;
            let more = side.dev.eq_read(side.eq.handle, 0);
            refused(more, libc::EAGAIN, "a second event")?;
            ctx.barrier("heard")?;
        }
        return ctx.barrier("done");
    }
    let port: u16 = ctx.ctl.recv()?;
    let peer = ctx.env.peer_at(port);
    for (state, path) in PATHS {
        let word = Map::shared(PAGE as usize)?;
        let work = || -> Result<()> {
            let victim = Victim::new(&ctx.env, &word)?;
            let (side, window) = (&victim.side, Map::anon(SIZE as usize)?);
            let cq = side.cq(0, 0)?;
            // A key of a region whose keys do not change.
            let region = side.reg_at(window.addr(), SIZE, LOCAL | REMOTE)?.handle;
            let (_, r) = side.export(region, 0, SIZE, KFI_REMOTE_WRITE)?;
            connect_one(side, &Opts::default(), &cq, peer)?;
            r.leave_in(&word);
            let go = || Ok((word.load32(GO) == 1).then_some(()));
            until("a write", LONG, go)?;
            ensure!(window.get64(0) != 0, "nothing was written");
            stay(&victim, *path)
        };
        let pid = start(state, work)?;
        Remote::tell_of(ctx, &word)?;
        // At least one write has completed at the peer.
        ensure!(ctx.ctl.recv::<bool>()?, "{state}: nothing worked");
        word.store32(GO, 1);
        until(state, WAIT, || Ok((word.load32(0) == 1).then_some(())))?;
        std::thread::sleep(Duration::from_millis(3));
        end(&side.dev, pid).context(*state)?;
        ctx.barrier("heard")?;
    }
    ctx.barrier("done")
}
