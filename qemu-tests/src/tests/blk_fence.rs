// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk: fences. When the call that fences an initiator has returned, no byte of that initiator's
//! writes lands any more, however fast it writes.

use crate::disk::*;
use crate::harness::guest::until;
use crate::harness::{Ctx, Test, LONG, SHM, TWO};
use crate::sys::{slowness, Map};
use crate::wire::rng::Rng;
use anyhow::{bail, ensure, Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "blk.p03_fence_during_writes_lets_no_byte_land_after_return",
        |ctx| fences(ctx, 100),
    )
    .seconds(60)
    .on(TWO | SHM),
    Test::pair(
        "blk.p03_fence_10k_times_lets_no_byte_land_after_return",
        |ctx| fences(ctx, 10_000),
    )
    .seconds(4000)
    .on(LONG),
];

/// Number of initiators at a time, each with a part of the export of its own.
const CLIENTS: usize = 8;
const SIZE: &str = "512K";
const PART: usize = 64 << 10;
/// Writers of a part, each with half of it, and bytes of a write.
const WRITERS: usize = 2;
const PIECE: usize = 16 << 10;
/// Longer than the retransmission time of an unacknowledged packet.
const AGAIN: Duration = Duration::from_millis(700);

/// Returns the name of initiator `n` and of its disk.
fn client(n: usize) -> String {
    format!("{NAME}-{n}")
}

/// Returns the range of an initiator's part.
fn part(n: usize) -> std::ops::Range<usize> {
    n * PART..(n + 1) * PART
}

/// Returns the order in which the initiators are fenced in a round; each round begins with another
/// one. The first may be fenced before it is connected.
fn order(round: usize) -> impl Iterator<Item = usize> {
    (0..CLIENTS).map(move |i| (round + i) % CLIENTS)
}

/// Makes `count` fences, as many in a round as there are initiators.
fn fences(ctx: &mut Ctx, count: usize) -> Result<()> {
    // With checkers a round takes a quarter of a minute.
    let count = if slowness() > 1 {
        count.min(25).max(count / 40)
    } else {
        count
    };
    let rounds = count.div_ceil(CLIENTS);
    let loaded = begin(ctx, SIZE)?;
    if ctx.first() {
        fence(ctx, rounds)?;
    } else {
        are_fenced(ctx, rounds)?;
    }
    end(ctx, loaded)
}

/// Node 1's half: fences one initiator after the other, and checks the memory.
fn fence(ctx: &mut Ctx, rounds: usize) -> Result<()> {
    let watch = Disk::open_as(&connect(ctx, WATCH, &["-i", "1"])?, false)?;
    let map = Map::anon(PART)?;
    let mut now = vec![0; PART];
    let mut rng = Rng::new(ctx.env.seed);
    let mut before = watch.contents()?;
    for round in 0..rounds {
        let mut after = before.clone();
        ctx.barrier("go")?;
        for (i, n) in order(round).enumerate() {
            if i == 0 {
                std::thread::sleep(Duration::from_millis(rng.below(100)));
            } else {
                until("it writes", Duration::from_secs(60), || {
                    watch.read(part(n).start, &map, 512)?;
                    map.read(0, &mut now[..512]);
                    Ok((now[..512] != before[part(n)][..512]).then_some(()))
                })?;
                std::thread::sleep(Duration::from_micros(rng.below(5000)));
            }
            store("subsystems", NAME, "fence", &client(n))?;
            watch.read(part(n).start, &map, PART)?;
            map.read(0, &mut after[part(n)]);
        }
        // All outstanding requests of the fenced initiators have ended.
        ctx.barrier("failed")?;
        if round % 10 == 0 {
            std::thread::sleep(AGAIN);
        }
        let landed = |when: &str| match watch
            .contents()?
            .iter()
            .zip(&after)
            .position(|(a, b)| a != b)
        {
            Some(i) => bail!("round {round}, {when}: byte {i} has landed"),
            None => Ok(()),
        };
        landed("fenced")?;
        for n in 0..CLIENTS {
            store("subsystems", NAME, "admit", &client(n))?;
        }
        ctx.barrier("admitted")?;
        // The fenced disks are removed, and have not reconnected before.
        ctx.barrier("gone")?;
        landed("admitted")?;
        before = after;
    }
    drop(watch);
    disconnect(WATCH)
}

/// Node 2's half: writes to disks until they fail, new ones in each round.
fn are_fenced(ctx: &mut Ctx, rounds: usize) -> Result<()> {
    // The options of a disk are set at its first connect.
    for n in 0..CLIENTS {
        connect(ctx, &client(n), &["--reconnect-delay", "1"])?;
        store("disks", &client(n), "enable", "0")?;
    }
    let (mut writes, mut refused) = (0, 0);
    for round in 0..rounds {
        ctx.barrier("go")?;
        std::thread::scope(|scope| -> Result<()> {
            let all: Vec<_> = order(round)
                .enumerate()
                .map(|(i, n)| scope.spawn(move || is_fenced(n, i, round)))
                .collect();
            for one in all {
                match one.join().map_err(|_| anyhow::anyhow!("panicked"))?? {
                    Some(done) => writes += done,
                    None => refused += 1,
                }
            }
            Ok(())
        })
        .with_context(|| format!("round {round}"))?;
        ctx.barrier("failed")?;
        ctx.barrier("admitted")?;
        for n in 0..CLIENTS {
            store("disks", &client(n), "enable", "0")?;
        }
        ctx.barrier("gone")?;
    }
    eprintln!("{rounds} rounds, {writes} writes, {refused} initiators were not admitted");
    ensure!(writes > rounds * CLIENTS, "that is not full speed");
    (0..CLIENTS).try_for_each(|n| disconnect(&client(n)))
}

/// Writes to the disk of initiator `n`, which is fenced as number `i`. Returns the number of
/// completed writes, or `None` if the disk was not admitted.
fn is_fenced(n: usize, i: usize, round: usize) -> Result<Option<usize>> {
    let disk = client(n);
    // Disk 3 has several connections. Disk 0, which may never write, does not reconnect: on a busy
    // machine a connection may also be lost for other reasons than the fence.
    let queues = if i == 3 { "4" } else { "1" };
    let patience = if i == 0 { "0" } else { "-1" };
    store("disks", &disk, "nr_io_queues", queues)?;
    store("disks", &disk, "ctrl_loss_tmo", patience)?;
    match store("disks", &disk, "enable", "1") {
        Ok(()) => {}
        Err(_) if i == 0 => return Ok(None),
        Err(e) => return Err(e).context(format!("connecting {disk}")),
    }
    let path = PathBuf::from("/dev").join(show("disks", &disk, "device")?);
    let done = std::thread::scope(|scope| {
        let all: Vec<_> = (0..WRITERS)
            .map(|half| {
                let path = &path;
                let len = PART / WRITERS;
                let at = part(n).start + half * len;
                scope.spawn(move || write_until_it_fails(path, at, len, round))
            })
            .collect();
        let mut sum = 0;
        for one in all {
            sum += one.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        }
        Ok::<_, anyhow::Error>(sum)
    })?;
    wait_state(&disk, "dead", Duration::from_secs(30))?;
    Ok(Some(done))
}

/// Writes bytes that occur in no other write of this round or the one before, over and over.
/// Returns the number of completed writes.
fn write_until_it_fails(path: &Path, at: usize, len: usize, round: usize) -> Result<usize> {
    let disk = Disk::open(path)?;
    let map = Map::anon(PIECE)?;
    for i in 0.. {
        let number = (round * 4096 + i) as u64;
        if write_filled(&disk, &map, at + i * PIECE % len, PIECE, number).is_err() {
            return Ok(i);
        }
    }
    Ok(0)
}
