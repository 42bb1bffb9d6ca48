// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cost of durable and of visible writes.
//!
//! Over verbs, node 2 writes to the NVDIMM of node 1. The comparison is what a program does without
//! durable writes: it writes, sends a message, and the target's program writes the lines back and
//! answers. Or verbs' own flush of persistent memory (`ibv_wr_flush`), which rxe has.

use super::shm::Ends;
use super::Figure;
use crate::buf::Buf;
use crate::harness::Ctx;
use crate::op::{self, iov, with_flags};
use crate::pair::{Pair, Remote, LOCAL, LONG, REMOTE};
use crate::tests::pmem::{want, Device};
use crate::tests::pmem_commit::{initiator, target};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Bytes of a write.
const PAGE: u64 = 4096;
/// Measured rounds of each case.
const ROUNDS: u32 = 300;
/// Writes that one commit covers.
const WRITES: u64 = 16;
/// What the cases are compared with.
const BY_MESSAGES: &str = "write, message, write-back by the program, answer";

/// Measures writes over verbs and over kshm.
pub(super) fn run(ctx: &mut Ctx) -> Result<()> {
    let durable = match ctx.first() {
        true => over_verbs_target(ctx)?,
        false => over_verbs(ctx)?,
    };
    ctx.barrier("flush")?;
    by_flush(ctx, durable)?;
    if ctx.first() {
        over_kshm(ctx)?;
    }
    ctx.barrier("end")
}

/// Writes lines back and answers, as often as the peer asks.
fn over_verbs_target(ctx: &mut Ctx) -> Result<f64> {
    let (pair, there, _) = target(ctx)?;
    let buf = Buf::new(64)?;
    let region = pair.reg(&buf)?;
    let piece = [iov(region, 0, 8)];
    for _ in 0..4 {
        pair.post(op::recv(1, &piece))?;
    }
    ctx.barrier("posted")?;
    let mut asked = 0;
    while asked < ROUNDS + 1 {
        // Completions of the answers come, too.
        if pair.wait_for(LONG)?.context != 1 {
            continue;
        }
        there.map().write_back(0, PAGE as usize);
        pair.post(op::recv(1, &piece))?;
        pair.post(op::send(2, &piece))?;
        asked += 1;
    }
    let figures: Vec<(String, f64, String, f64, Option<String>)> = ctx.ctl.recv()?;
    for (case, value, peer, peer_value, wanted) in &figures {
        figure(ctx, case, *value, peer, *peer_value, wanted.as_deref());
    }
    Ok(0.0)
}

fn figure(ctx: &Ctx, case: &str, value: f64, peer: &str, peer_value: f64, wanted: Option<&str>) {
    Figure {
        bench: "pmem",
        case,
        value,
        unit: "us",
        peer: Some(peer),
        peer_value: Some(peer_value),
        ratio: None,
        wanted,
    }
    .print(ctx);
}

/// The initiator's memory and operations.
struct Writer {
    pair: Pair,
    region: u64,
    to: Remote,
}

impl Writer {
    /// Returns a write of one page, at the page with a number.
    fn write(&self, page: u64) -> OpEntry {
        let piece = [iov(self.region, 0, PAGE)];
        op::write(3, &piece, self.to.addr + page * PAGE, self.to.key)
    }

    /// Waits for a number of completions.
    fn wait(&self, count: u64) -> Result<()> {
        for _ in 0..count {
            self.pair.wait_for(LONG)?;
        }
        Ok(())
    }

    /// Returns the average time of a round in microseconds.
    fn average(&self, round: impl Fn() -> Result<()>) -> Result<f64> {
        round()?;
        let start = Instant::now();
        (0..ROUNDS).try_for_each(|_| round())?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS))
    }

    /// Writes, asks the peer's program to write the lines back, and waits for its answer.
    fn by_message(&self) -> Result<()> {
        let message = [iov(self.region, PAGE, 8)];
        self.pair.post(op::recv(4, &message))?;
        self.pair.post(self.write(0))?;
        self.pair.post(op::send(5, &message))?;
        // Of the write, of the message, and of the answer.
        self.wait(3)
    }
}

/// Returns the time of a durable write.
fn over_verbs(ctx: &mut Ctx) -> Result<f64> {
    let (pair, to) = initiator(ctx)?;
    let buf = Buf::new(2 * PAGE as usize)?;
    let region = pair.reg(&buf)?;
    let writer = Writer { pair, region, to };
    ctx.barrier("posted")?;
    let messages = writer.average(|| writer.by_message())?;
    let plain = writer.average(|| {
        writer.pair.post(writer.write(0))?;
        writer.wait(1)
    })?;
    let flagged = |flags: u64| {
        writer.average(|| {
            writer.pair.post(with_flags(writer.write(0), flags))?;
            writer.wait(1)
        })
    };
    let visible = flagged(KFI_DELIVERY_COMPLETE)?;
    let durable = flagged(KFI_COMMIT_COMPLETE)?;
    let many = writer.average(|| {
        for page in 0..WRITES {
            writer.pair.post(writer.write(page))?;
        }
        let commit = op::commit(6, writer.to.addr, writer.to.key, WRITES * PAGE);
        writer.pair.post(commit)?;
        writer.wait(WRITES + 1)
    })?;
    let wanted = |text: &str| Some(text.to_owned());
    let each = many / WRITES as f64;
    let figures = [
        (
            "kverbs: 4 KiB, durable",
            durable,
            BY_MESSAGES,
            messages,
            wanted("<= 0.9"),
        ),
        (
            "kverbs: 4 KiB, 16 and one commit, each",
            each,
            BY_MESSAGES,
            messages,
            wanted("<= 0.35"),
        ),
        (
            "kverbs: 4 KiB, visible",
            visible,
            "plain write",
            plain,
            wanted("<= 1.02"),
        ),
        (
            "kverbs: 4 KiB, durable, to a write",
            durable,
            "plain write",
            plain,
            None,
        ),
    ];
    let figures: Vec<_> = figures
        .into_iter()
        .map(|(case, value, peer, peer_value, wanted)| {
            (case.to_owned(), value, peer.to_owned(), peer_value, wanted)
        })
        .collect();
    ctx.ctl.send(&figures)?;
    Ok(durable)
}

/// Compares a durable write of `durable` microseconds with the flush operation of verbs between the
/// same nodes. Node 2 knows the time.
fn by_flush(ctx: &mut Ctx, durable: f64) -> Result<()> {
    const PORT: &str = "7495";
    let source = include_str!("../../interop/verbs_flush.c");
    let program = super::build("verbs_flush", source, &["-lrdmacm", "-libverbs"])?;
    if ctx.first() {
        let (device, _) = Device::Nvdimm.make()?;
        let mut server = Command::new(&program)
            .arg("serve")
            .arg(device)
            .args([&ctx.env.addr.to_string(), PORT])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().context("no output")?).read_line(&mut line)?;
        ctx.ctl.send(&line)?;
        let (flushed, durable): (std::result::Result<f64, String>, f64) = ctx.ctl.recv()?;
        let _ = server.kill();
        server.wait()?;
        match flushed {
            Ok(ns) => {
                let (case, peer) = (
                    "kverbs: 4 KiB, durable, to a flush",
                    "write, `ibv_wr_flush`",
                );
                figure(ctx, case, durable, peer, ns / 1e3, Some("<= 1.2"));
            }
            Err(why) => eprintln!("# no comparison with a flush: {why}"),
        }
        return Ok(());
    }
    let line: String = ctx.ctl.recv()?;
    ensure!(line == "listening\n", "the server: {line}");
    let out = Command::new(&program)
        .arg("write")
        .args([&ctx.env.peer.to_string(), PORT])
        .args([PAGE.to_string(), ROUNDS.to_string()])
        .output()?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let ns = said.trim().parse::<f64>();
    let flushed = ns.map_err(|_| String::from_utf8_lossy(&out.stderr).into_owned());
    ctx.ctl.send(&(flushed, durable))
}

/// Measures writes between two ends of this process.
fn over_kshm(ctx: &mut Ctx) -> Result<()> {
    let ends = Ends::new(&ctx.env)?;
    let map = Device::Nvdimm.map()?;
    let region = ends.theirs.dev.call_region(&want(
        &ends.theirs,
        &map,
        KFI_REGION_PMEM | KFI_REGION_DYNAMIC_KEYS,
    ))?;
    let (_, to) = ends
        .theirs
        .export(region.handle, 0, map.len() as u64, REMOTE)?;
    for (name, len) in [("4 KiB", PAGE), ("64 KiB", 64 << 10)] {
        let near = Buf::new(len as usize)?;
        let local = ends.ours.reg(&near, LOCAL)?.handle;
        let piece = [iov(local, 0, len)];
        let write = op::write(1, &piece, to.addr, to.key);
        let plain = super::memory::average(ROUNDS, || ends.run(write))?;
        let durable =
            super::memory::average(ROUNDS, || ends.run(with_flags(write, KFI_COMMIT_COMPLETE)))?;
        let wanted = (len == PAGE).then_some("<= 1.3");
        let case = format!("kshm: {name}, durable");
        figure(ctx, &case, durable, "plain write", plain, wanted);
    }
    Ok(())
}
