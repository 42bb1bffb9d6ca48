// SPDX-License-Identifier: MIT OR Apache-2.0

//! Workload of `cargo xtask pmcut`, in a guest whose NVDIMM loses its power.
//!
//! Node 1 exports a part of the device-dax device, the area. Node 2 writes there durably, and
//! reports the beginning and the completion of each write to the host over the channel
//! ([`message`]). Node 1 reports the completions of data that come with writes. The host checks that what was
//! reported to be durable is there.

use super::pmem::{want, Device};
use crate::buf::Buf;
use crate::harness::guest::until;
use crate::harness::{Ctx, Test, POWER_CUT, POWER_CUT_VERBS};
use crate::op::{self, iov, with_data, with_flags};
use crate::pair::{Opts, Pair, Remote, Side, REMOTE, WAIT};
use crate::pmcut_message::{
    bytes, mix, sum, Message, Write, AREA, BASE, CHANNEL, KEPT, LINE, WRITES,
};
use crate::sys::{monotonic_ns, patience, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("pmcut.kept", kept)
        .seconds(20)
        .on(POWER_CUT | POWER_CUT_VERBS),
    Test::pair("pmcut.writes", writes)
        .seconds(60)
        .on(POWER_CUT | POWER_CUT_VERBS),
];

/// Number of writes in flight.
const OUTSTANDING: usize = 4;

/// Receives for completion data of node 1 at once.
const RECEIVES: u64 = 8;
/// Cache lines of the channel: of the node that writes, of its poller, and of the target.
const POSTS: usize = 0;
const COMPLETES: usize = 1;
const ARRIVES: usize = 2;

/// Exports the area, which the device keeps, and waits until the other node is done.
fn target(ctx: &mut Ctx) -> Result<()> {
    let map = Device::Nvdimm.map()?;
    let side = Side::open(ctx)?;
    let flags = KFI_REGION_PMEM | KFI_REGION_DYNAMIC_KEYS;
    let region = side.dev.call_region(&want(&side, &map, flags))?;
    ensure!(region.persistence == KFI_PERSISTENCE_ADR, "{region:?}");
    let pair = Pair::on(ctx, side, &Opts::default())?;
    let (_, mine) = pair.side.export(region.handle, 0, AREA as u64, REMOTE)?;
    for context in 0..RECEIVES {
        pair.post(op::recv(context, &[]))?;
    }
    let _: Remote = ctx.ctl.exchange(&mine)?;
    let (channel, _) = Channel::open()?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reporter = scope.spawn(|| report(&pair, &channel, &is_over));
        let ended = ctx.barrier("end");
        is_over.store(true, Ordering::Relaxed);
        let reported = reporter.join();
        ended?;
        reported.map_err(|_| anyhow::anyhow!("the target's reporter panicked"))?
    })
}

/// Reports the completions of data at the target, as soon as the queue has them.
fn report(pair: &Pair, channel: &Channel, is_over: &AtomicBool) -> Result<()> {
    while !is_over.load(Ordering::Relaxed) {
        let Some(done) = pair.cq.read() else {
            std::thread::yield_now();
            continue;
        };
        if done.err == 0 {
            channel.say(ARRIVES, Message::Arrived { number: done.data });
            pair.post(op::recv(done.context, &[]))?;
        }
    }
    Ok(())
}

/// Connects to the target. Returns the pair, and the exported area.
fn initiator(ctx: &mut Ctx) -> Result<(Pair, Remote)> {
    let pair = Pair::new(ctx)?;
    let nothing = Remote {
        addr: 0,
        key: 0,
        len: 0,
    };
    let to = ctx.ctl.exchange(&nothing)?;
    Ok((pair, to))
}

/// Reads the area after a power failure, and compares it with the bytes that the host found.
fn kept(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let (_, number) = Device::Nvdimm.region()?;
        // The device-dax device was made before the power failure.
        let path = format!("/dev/dax{number}.0");
        until("the device-dax device", WAIT, || {
            Ok(Path::new(&path).exists().then_some(()))
        })?;
        return target(ctx);
    }
    let (pair, from) = initiator(ctx)?;
    let there = Buf::new(AREA)?;
    let region = pair.reg(&there)?;
    pair.read(region, 0, AREA as u64, from.addr, from.key)?;
    let kept = fs::read(Path::new("/host").join(KEPT)).context("the bytes that the host found")?;
    ensure!(
        there.read(0, AREA) == kept,
        "the guest reads other bytes than the host"
    );
    ctx.barrier("end")
}

/// The channel to the host.
pub(super) struct Channel(Map);

impl Channel {
    /// Maps the channel. Returns it, and the physical address of the device-dax device.
    pub(super) fn open() -> Result<(Self, u64)> {
        let (_, number) = Device::Nvdimm.region()?;
        let name = format!("dax{number}.0");
        let text = fs::read_to_string(format!("/sys/bus/dax/devices/{name}/resource"))?;
        let text = text.trim().trim_start_matches("0x");
        let address = u64::from_str_radix(text, 16).context("the device's address")?;
        let offset = (BASE + CHANNEL)
            .checked_sub(address)
            .context("the channel")?;
        let file = File::options()
            .read(true)
            .write(true)
            .open(format!("/dev/{name}"))?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // A device-dax device maps large pages only.
        let map = Map::raw(file.as_fd(), 2 << 20, prot, libc::MAP_SHARED, offset as i64);
        Ok((Self(map.context("mapping the channel")?), address))
    }

    /// Maps the channel by the memory of the machine, for a NVDIMM that is no device-dax device.
    pub(super) fn open_memory() -> Result<Self> {
        // The kernel allows it for memory in use only with `iomem=relaxed`.
        let file = File::options().read(true).write(true).open("/dev/mem")?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let at = (BASE + CHANNEL) as i64;
        let map = Map::raw(file.as_fd(), 4096, prot, libc::MAP_SHARED, at);
        Ok(Self(map.context("mapping the channel")?))
    }

    /// Reports to the host, in a cache line of the caller's own.
    pub(super) fn say(&self, line: usize, message: Message) {
        for (i, word) in message.words().into_iter().enumerate() {
            self.0.set64(line * LINE + i * 8, word);
        }
    }
}

/// Source of a write's bytes.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    Registered,
    Unregistered,
    Injected,
    /// Registered; a commit follows the write, which does not ask to be durable.
    Committed,
}

/// Context of a write that a commit follows.
const PLAIN: u64 = 0;

/// A write in flight.
#[derive(Clone, Copy)]
struct InFlight {
    write: Write,
    /// Checksum of the bytes.
    sum: u64,
}

/// Chooses writes.
struct Chooser {
    state: u64,
    number: u64,
    /// The device copies: it tears words, and it reads only registered memory.
    by_device: bool,
}

impl Chooser {
    fn below(&mut self, limit: u64) -> u64 {
        self.state = mix(self.state);
        (self.state >> 8) % limit
    }

    /// Returns the next write, which does not touch the ones in flight.
    fn next(&mut self, open: &[InFlight]) -> (Write, Source) {
        self.number += 1;
        loop {
            let (source, most) = match self.below(10) {
                8 => (Source::Committed, 180_000),
                9 => (Source::Committed, 300),
                0..=1 => (Source::Unregistered, 5000),
                2..=3 => (Source::Injected, KFI_INJECT_MAX as u64),
                4 => (Source::Registered, 180_000),
                5 => (Source::Registered, 4096),
                _ => (Source::Registered, 300),
            };
            let source = match source {
                Source::Unregistered if self.by_device => Source::Registered,
                source => source,
            };
            let len = 1 + self.below(most);
            let offset = self.below(AREA as u64 - len + 1);
            let aligned = self.below(2) == 0;
            let write = Write {
                number: self.number,
                offset: if aligned { offset & !7 } else { offset },
                len,
                by_words: !self.by_device
                    && !matches!(source, Source::Unregistered | Source::Committed),
            };
            let apart = |InFlight { write: other, .. }: &InFlight| {
                other.offset + other.len <= write.offset || write.offset + len <= other.offset
            };
            if open.iter().all(apart) {
                return (write, source);
            }
        }
    }
}

fn writes(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        return target(ctx);
    }
    let (pair, to) = initiator(ctx)?;
    let (channel, address) = Channel::open()?;
    let count: u64 = std::env::var(WRITES).context(WRITES)?.parse()?;
    let seed = ctx.env.seed;
    channel.say(POSTS, Message::Hello { address, seed });
    let open = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| poll(&pair, &channel, &open, count));
        let by_device = ctx.env.provider == "kverbs";
        let chooser = Chooser {
            state: seed,
            number: 0,
            by_device,
        };
        let posted = post(&pair, &channel, &open, chooser, count, &to);
        let polled = poller.join();
        posted?;
        polled.map_err(|_| anyhow::anyhow!("the poller panicked"))?
    })?;
    channel.say(POSTS, Message::End);
    ctx.barrier("end")
}

/// Locks the list of writes in flight.
fn locked(open: &Mutex<Vec<InFlight>>) -> std::sync::MutexGuard<'_, Vec<InFlight>> {
    open.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Posts the writes.
fn post(
    pair: &Pair,
    channel: &Channel,
    open: &Mutex<Vec<InFlight>>,
    mut chooser: Chooser,
    count: u64,
    to: &Remote,
) -> Result<()> {
    let seed = chooser.state;
    let from = Buf::new(AREA)?;
    let region = pair.reg(&from)?;
    for _ in 0..count {
        let end = monotonic_ns() + patience(WAIT).as_nanos() as u64;
        while locked(open).len() >= OUTSTANDING {
            ensure!(monotonic_ns() < end, "no completion in time");
            std::thread::yield_now();
        }
        let (write, source) = chooser.next(&locked(open));
        let data = bytes(seed, &write);
        from.write(write.offset as usize, &data);
        channel.say(POSTS, Message::Begin(write));
        let sum = sum(&data);
        locked(open).push(InFlight { write, sum });
        let at = to.addr + write.offset;
        let local = match source {
            Source::Registered | Source::Committed => iov(region, write.offset, write.len),
            _ => iov(KFI_UNREGISTERED, from.addr() + write.offset, write.len),
        };
        let entry = match source {
            Source::Committed => {
                pair.post(op::write(PLAIN, &[local], at, to.key))?;
                op::commit(write.number, at, to.key, write.len)
            }
            Source::Injected => op::inject(op::write(write.number, &[], at, to.key), &data),
            _ => op::write(write.number, &[local], at, to.key),
        };
        let entry = match chooser.below(2) {
            0 => with_data(entry, write.number),
            _ => entry,
        };
        let entry = with_flags(entry, KFI_COMMIT_COMPLETE | KFI_COMPLETION);
        // A write from unregistered memory is refused while an earlier one waits for a receive.
        while let Err(e) = pair.post(entry) {
            ensure!(e.errno.0 == libc::EAGAIN && monotonic_ns() < end, "{e}");
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Reports each completion to the host as soon as the queue has it. Polls without a pause, because
/// a completion that comes too early is too early for some instructions only.
fn poll(pair: &Pair, channel: &Channel, open: &Mutex<Vec<InFlight>>, count: u64) -> Result<()> {
    for _ in 0..count {
        let end = monotonic_ns() + patience(WAIT).as_nanos() as u64;
        let done = loop {
            match pair.cq.read() {
                Some(done) if done.err == 0 && done.context == PLAIN => {}
                Some(done) => break done,
                None => ensure!(monotonic_ns() < end, "no completion in time"),
            }
        };
        ensure!(done.err == 0, "write {} failed: {}", done.context, done.err);
        let number = done.context;
        let is_done = |of: &InFlight| of.write.number == number;
        let mut open = locked(open);
        let at = open.iter().position(is_done);
        let at = at.with_context(|| format!("completion of {number}"))?;
        let sum = open[at].sum;
        channel.say(COMPLETES, Message::Durable { number, sum });
        open.swap_remove(at);
    }
    Ok(())
}
