// SPDX-License-Identifier: MIT OR Apache-2.0

//! Keys under concurrency: batches, closing, death, removal, and stalled assignments.

use super::key_batches::{assign_all, entry, joined, with_key, Slots, PAGE};
use super::keys::hammer;
use super::modules::{add_link, delete_link};
use crate::buf::Buf;
use crate::fault::calls::memory::touch;
use crate::harness::{caps, Ctx, Test, NETNS};
use crate::lanes::{Lanes, LANES};
use crate::op::{self, iov};
use crate::pair::{Remote, Side, LOCAL, REMOTE};
use crate::raw::Dev;
use crate::sys::{self, uffd, Map};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("keys.p04_batches_racing_repeat_no_key", race).seconds(30),
    Test::pair(
        "keys.p02_batches_racing_under_peer_stay_in_windows",
        under_peer,
    )
    .seconds(30),
    Test::alone("keys.p03_batches_race_with_death_leaves_nothing", death).seconds(30),
    Test::pair("keys.p03_batches_race_with_removal_leaves_no_key", removal)
        .seconds(60)
        .on(NETNS),
    Test::alone(
        "keys.p03_stalled_assign_in_batch_delays_no_other_slot",
        stalled,
    )
    .seconds(30)
    .needs(caps::FULL_KEYS)
    .verbs(),
];

/// Keys that calls have returned; none may be returned twice.
#[derive(Default)]
struct Told(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// The slot of each key.
    slots: BTreeMap<u64, u64>,
    /// The last key, for a peer.
    last: Option<Remote>,
}

impl Told {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn note(&self, slot: u64, addr: u64, key: u64) -> Result<()> {
        let mut known = self.known();
        let before = known.slots.insert(key, slot);
        ensure!(before.is_none(), "{key:#x} came twice");
        known.last = Some(Remote {
            addr,
            key,
            len: PAGE,
        });
        Ok(())
    }

    /// Returns the last key that no peer has taken yet; `None` when the race is over.
    fn next(&self, stop: &AtomicBool) -> Option<Remote> {
        while !stop.load(Ordering::Relaxed) {
            if let Some(last) = self.known().last.take() {
                return Some(last);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        None
    }
}

/// Errnos that a race explains.
const RACED: [i32; 3] = [libc::EBUSY, libc::EINVAL, libc::ENOENT];

/// Fails on an errno that no race explains.
fn may<T>(result: crate::raw::Result<T>, what: &str) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if RACED.contains(&e.errno.0) => Ok(None),
        Err(e) => Err(anyhow::Error::from(e).context(what.to_owned())),
    }
}

/// Makes one thread's turn in the race, on slots that the other threads use too.
fn turn(all: &Slots, told: &Told, who: u64, round: u64) -> Result<()> {
    let dev = &all.side.dev;
    let shift = (round * 7 + who * 13) as usize % all.slots.len();
    let mut entries = all.entries();
    entries.rotate_left(shift);
    // Forward and backward: batches meet in both orders.
    if who % 2 == 1 {
        entries.reverse();
    }
    match who {
        0 | 1 => {
            if let Some((done, err)) = may(dev.key_assign_many(&mut entries), "batch")? {
                entries[..done]
                    .iter()
                    .try_for_each(|e| told.note(e.slot, e.remote_addr, e.key))?;
                let fine = [0, libc::EBUSY, libc::ENOENT].contains(&err);
                ensure!(fine, "a batch stopped with {err}");
            }
        }
        2 => {
            for e in entries.iter().take(20) {
                let one = dev.key_assign(e.slot, e.offset, e.length, REMOTE);
                if let Some(one) = may(one, "assign")? {
                    told.note(one.slot, one.remote_addr, one.key)?;
                }
                may(dev.key_revoke(entries[0].slot), "revoke")?;
            }
        }
        3 => {
            let slots: Vec<_> = entries.iter().map(|e| e.slot).collect();
            may(dev.key_revoke_slots(&slots[..50]), "revoke list")?;
        }
        _ => {
            let (scope, object) = match round % 3 {
                0 => (KFI_REVOKE_REGION, all.region),
                1 => (KFI_REVOKE_DOMAIN, all.side.domain.handle),
                _ => (KFI_REVOKE_FILE, 0),
            };
            dev.key_revoke_all(scope, object)?;
        }
    }
    Ok(())
}

/// Runs the race until `stop`.
fn run_race(all: &Slots, told: &Told, stop: &AtomicBool) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..5)
            .map(|who| {
                scope.spawn(move || {
                    let mut round = 0;
                    let mut went = Ok(());
                    while went.is_ok() && !stop.load(Ordering::Relaxed) {
                        went = turn(all, told, who, round);
                        round += 1;
                    }
                    // A failure in one thread stops all.
                    stop.store(true, Ordering::Relaxed);
                    went
                })
            })
            .collect();
        threads.into_iter().try_for_each(joined)
    })
}

/// Batches, single calls, mass revocation and closing run on the same slots at once: no task waits
/// for ever, no key is issued twice (P4), and in the end nothing is left.
fn race(ctx: &mut Ctx) -> Result<()> {
    let all = Slots::new(ctx, 100)?;
    let stop = AtomicBool::new(false);
    let dev = &all.side.dev;
    std::thread::scope(|scope| -> Result<()> {
        let racers = scope.spawn(|| run_race(&all, &Told::default(), &stop));
        let end = Instant::now() + Duration::from_secs(5);
        let mut closed = 0;
        let mut closing = || -> Result<()> {
            while Instant::now() < end && !racers.is_finished() {
                std::thread::sleep(Duration::from_millis(50));
                if let Some(slot) = all.slots.get(closed).filter(|_| closed < 80) {
                    dev.close(*slot)?;
                    closed += 1;
                }
            }
            Ok(())
        };
        let closed = closing();
        stop.store(true, Ordering::Relaxed);
        closed.and(joined(racers))
    })?;
    dev.key_revoke_all(KFI_REVOKE_FILE, 0)?;
    ensure!(with_key(dev)?.is_empty(), "a slot still has a key");
    Ok(())
}

/// P2, P3: a peer writes without pause through the last key that the race returned, and writes that
/// key's value. Each value is only in the window of the slot that the key was returned for. When
/// the last revocation has returned, no byte changes any more, and none of the last keys reaches
/// anything.
fn under_peer(ctx: &mut Ctx) -> Result<()> {
    let turns = if sys::slowness() > 1 { 2 } else { 5 };
    let mut lanes = Lanes::new(ctx)?;
    if !ctx.first() {
        let mut written = 0;
        for _ in 0..turns {
            written += write_by_the_last(ctx, &mut lanes)?;
        }
        ctx.barrier("done")?;
        eprintln!("{written} writes");
        ensure!(written > 0, "no key lived long enough to be used");
        return Ok(());
    }
    let all = Slots::on(lanes.side.again()?, 100)?;
    let told = Told::default();
    all.buf.clear(0);
    for turn in 0..turns {
        race_under_peer(ctx, &mut lanes, &all, &told).with_context(|| format!("turn {turn}"))?;
    }
    ctx.barrier("done")
}

/// Plays node 2 of [`under_peer`]. Returns the number of writes.
fn write_by_the_last(ctx: &mut Ctx, lanes: &mut Lanes) -> Result<u64> {
    let values = Buf::new(8 * LANES)?;
    let region = lanes.side.reg(&values, LOCAL)?.handle;
    let (mut last, mut written) = (Vec::new(), 0);
    lanes.connect(ctx)?;
    for lane in 0..LANES {
        let mut done = 0;
        if let Some(r) = ctx.ctl.recv::<Option<Remote>>()? {
            values.set64(8 * lane, r.key);
            let piece = [iov(region, 8 * lane as u64, 8)];
            let mut n = 0;
            let make = || {
                n += 1;
                op::write(1, &piece, r.addr + n * 264 % PAGE, r.key)
            };
            done = hammer(&lanes.side.dev, lanes.eps[lane], &lanes.cqs[lane], 4, make)?;
            last.push(r);
        }
        ctx.ctl.send(&done)?;
        written += done;
    }
    // By now no key is left.
    lanes.connect(ctx)?;
    ctx.barrier("revoked")?;
    for (lane, r) in last.iter().enumerate() {
        let errno = lanes.attempt(lane, true, 8, r.addr, r.key)?;
        ensure!(errno == libc::EACCES, "{r:?} afterwards: errno {errno}");
    }
    ctx.barrier("tried")?;
    Ok(written)
}

/// Plays node 1 of [`under_peer`].
fn race_under_peer(ctx: &mut Ctx, lanes: &mut Lanes, all: &Slots, told: &Told) -> Result<()> {
    lanes.connect(ctx)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let racers = scope.spawn(|| run_race(all, told, &stop));
        let told = (0..LANES).try_for_each(|_| {
            ctx.ctl.send(&told.next(&stop))?;
            ctx.ctl.recv::<u64>().map(drop)
        });
        stop.store(true, Ordering::Relaxed);
        joined(racers).and(told)
    })?;
    lanes.connect(ctx)?;
    all.side.dev.key_revoke_all(KFI_REVOKE_FILE, 0)?;
    let words = || (0..all.buf.len()).step_by(8).map(|at| all.buf.get64(at));
    let before: Vec<u64> = words().collect();
    let same = |when: &str| {
        let changed = words().zip(&before).position(|(now, was)| now != *was);
        changed.map_or(Ok(()), |word| bail!("byte {} changed {when}", 8 * word))
    };
    same("at once")?;
    for (word, value) in before.iter().enumerate().filter(|(_, value)| **value != 0) {
        let slot = told.known().slots.get(value).copied();
        let of_window = all.slots.get(8 * word / PAGE as usize).copied();
        ensure!(
            slot.is_some() && slot == of_window,
            "{value:#x} of slot {slot:x?} is in the window of {of_window:x?}"
        );
    }
    ctx.barrier("revoked")?;
    ctx.barrier("tried")?;
    std::thread::sleep(Duration::from_millis(100));
    same("100 ms later")
}

/// Kills the process with `SIGKILL` in the middle of the race: nothing of it is left.
fn death(ctx: &mut Ctx) -> Result<()> {
    for round in 0..12u64 {
        let buddy = || -> Result<()> {
            let all = Slots::new(ctx, 100)?;
            run_race(&all, &Told::default(), &AtomicBool::new(false))
        };
        let pid = sys::fork(|| match buddy() {
            Ok(()) => 0,
            Err(e) => {
                eprintln!("{e:#}");
                1
            }
        })?;
        std::thread::sleep(Duration::from_millis(100 + round * 37 % 200));
        sys::kill(pid, libc::SIGKILL)?;
        let ended = sys::wait_pid(pid, sys::patience(Duration::from_secs(20)))?;
        ensure!(
            ended == Some(sys::Ended::Signal(libc::SIGKILL)),
            "round {round}: {ended:?}"
        );
        let left = Dev::open()?.obj_list()?;
        ensure!(
            left.iter().all(|o| o.pid != pid as u32),
            "round {round}: something is left"
        );
    }
    Ok(())
}

/// Removes the device in the middle of the race: the calls fail, no task hangs, and no key is left
/// on the device.
fn removal(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        remove_under_batches(ctx)?;
    }
    ctx.barrier("done")
}

fn remove_under_batches(ctx: &Ctx) -> Result<()> {
    let rounds = if sys::slowness() > 1 { 3 } else { 8 };
    for round in 0..rounds {
        let all = Slots::new(ctx, 100)?;
        let dev = &all.side.dev;
        let gone = AtomicBool::new(false);
        let assign_all_the_time = || -> Result<()> {
            let mut entries = all.entries();
            for turn in 0u64.. {
                let is_gone = gone.load(Ordering::Relaxed);
                match dev.key_assign_many(&mut entries) {
                    Err(e) if e.errno.0 == libc::ENODEV => break,
                    Ok((_, 0 | libc::ENODEV | libc::EIO)) if !is_gone => {}
                    Err(e) if e.errno.0 == libc::EIO && !is_gone => {}
                    other => bail!("assigned {other:?}, gone: {is_gone}"),
                }
                dev.key_revoke_slots(&all.slots)?;
                // Now and then the reserve is refilled in the background.
                std::thread::sleep(Duration::from_millis(turn % 4));
            }
            Ok(())
        };
        std::thread::scope(|scope| -> Result<()> {
            let assigner = scope.spawn(assign_all_the_time);
            std::thread::sleep(Duration::from_millis(50 + round * 17 % 60));
            let deleted = delete_link(ctx);
            gone.store(true, Ordering::Relaxed);
            let raced = joined(assigner);
            deleted?;
            add_link(ctx)?;
            raced
        })
        .with_context(|| format!("round {round}"))?;
        // Slots of a removed device have nothing to revoke, and can be closed.
        dev.key_revoke_all(KFI_REVOKE_FILE, 0)?;
        all.slots.iter().try_for_each(|slot| dev.close(*slot))?;
    }
    // The new device works.
    let all = Slots::new(ctx, 100)?;
    assign_all(&all.side.dev, &mut all.entries())
}

/// An assignment that waits for the program delays no other slot, neither of its batch nor of a
/// revoked list: the keys of all other slots are revoked first.
fn stalled(ctx: &mut Ctx) -> Result<()> {
    const SIZE: usize = 2 << 20;
    const LAST: usize = SIZE - PAGE as usize;
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let map = Map::anon(SIZE)?;
    // Contiguous memory would have a fast registration, which waits for no page.
    touch(&map);
    let domain = side.domain.handle;
    let region = dev.region_reg(
        domain,
        map.addr(),
        SIZE as u64,
        LOCAL | REMOTE,
        KFI_REGION_DYNAMIC_KEYS,
    )?;
    let slots = dev.key_alloc(region.handle, 7)?;
    let missing = uffd::Missing::watch(&map)?;
    let within = sys::patience(Duration::from_secs(10));
    // Slots before the stalled one, the stalled one, and slots after it; and a slot of its own.
    let mut entries: Vec<_> = (0..6).map(|i| entry(slots[i], 0, PAGE)).collect();
    entries[3].length = SIZE as u64;
    for (round, how) in ["a list", "the region", "the file", "a killed close"]
        .iter()
        .enumerate()
    {
        missing.drop_from(LAST)?;
        dev.key_assign(slots[6], 0, PAGE, REMOTE)?;
        std::thread::scope(|scope| -> Result<()> {
            let mut batch = entries.clone();
            let assigner = scope.spawn(move || Ok(dev.key_assign_many(&mut batch)?));
            let steps = || -> Result<_> {
                ensure!(missing.is_waited_for(within)?, "nothing stalls");
                let wanted = [0, 1, 2, 6].map(|i| slots[i]).into();
                ensure!(with_key(dev)? == wanted, "{:?} have keys", with_key(dev)?);
                // Slots before the stalled one are done, and slots after it are not begun.
                dev.key_revoke(slots[0])?;
                dev.key_assign(slots[0], 0, PAGE, REMOTE)?;
                dev.key_assign(slots[5], 0, PAGE, REMOTE)?;
                dev.key_revoke(slots[5])?;
                // A task that waits for the stalled slot can be killed.
                killed(|| dev.key_revoke(slots[3]).map(drop))?;
                killed(|| dev.key_revoke_slots(&[slots[3]]).map(drop))?;
                if round == 3 {
                    killed(|| dev.close(slots[3]))?;
                }
                let revoker = scope.spawn(|| -> Result<u64> {
                    Ok(match round {
                        0 => {
                            dev.key_revoke_slots(&[&slots[3..], &slots[..3]].concat())?
                                .revoked
                        }
                        1 => dev.key_revoke_all(KFI_REVOKE_REGION, region.handle)?,
                        _ => dev.key_revoke_all(KFI_REVOKE_FILE, 0)?,
                    })
                });
                let end = Instant::now() + within;
                while !with_key(dev)?.is_empty() {
                    ensure!(Instant::now() < end, "{how}: {:?}", with_key(dev)?);
                    std::thread::sleep(Duration::from_millis(5));
                }
                ensure!(!revoker.is_finished(), "{how}: nothing was waited for");
                Ok(revoker)
            };
            let revoker = steps();
            missing.fill_from(LAST)?;
            let assigned = joined(assigner)?;
            let revoked = joined(revoker?)?;
            if round == 3 {
                // The closing process was killed before the close had ended.
                ensure!(assigned == (3, libc::ENOENT), "{how}: {assigned:?}");
                ensure!(revoked == 4, "{how}: {revoked} revoked");
                dev.close(slots[3])?;
                return Ok(());
            }
            ensure!(assigned == (6, 0), "{how}: {assigned:?} assigned");
            // The stalled slot's key for certain; later slots may have been assigned too late.
            ensure!((5..=7).contains(&revoked), "{how}: {revoked} revoked");
            let left = with_key(dev)?;
            let late = [slots[4], slots[5]].into();
            ensure!(left.is_subset(&late), "{how}: {left:?} have keys");
            Ok(())
        })
        .with_context(|| (*how).to_owned())?;
        dev.key_revoke_all(KFI_REVOKE_FILE, 0)?;
    }
    Ok(())
}

/// Kills a process in a call that does not return.
fn killed(call: impl FnOnce() -> crate::raw::Result<()>) -> Result<()> {
    let pid = sys::fork(|| i32::from(call().is_err()))?;
    std::thread::sleep(Duration::from_millis(100));
    sys::kill(pid, libc::SIGKILL)?;
    let ended = sys::wait_pid(pid, sys::patience(Duration::from_secs(10)))?;
    ensure!(
        ended == Some(sys::Ended::Signal(libc::SIGKILL)),
        "it ended with {ended:?}"
    );
    Ok(())
}
