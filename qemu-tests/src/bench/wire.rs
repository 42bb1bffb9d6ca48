// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cost of moving bytes, beside perftest.

use super::Figure;
use crate::buf::Buf;
use crate::harness::Ctx;
use crate::op::{self, iov};
use crate::pair::{Opts, Pair, LONG};
use crate::sys;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs a perftest program on both nodes, node 2 as the initiator. Returns a column of its result
/// line.
fn perftest(ctx: &mut Ctx, program: &str, size: usize, rounds: u32, column: usize) -> Result<f64> {
    let mut cmd = Command::new(program);
    cmd.args([
        "-R",
        "-F",
        "-e",
        "-d",
        &ctx.env.dev,
        "-s",
        &size.to_string(),
        "-n",
        &rounds.to_string(),
    ]);
    if !ctx.first() {
        ctx.barrier("server started")?;
        cmd.arg(ctx.env.peer.to_string());
    }
    let child = cmd
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| program.to_owned())?;
    if ctx.first() {
        std::thread::sleep(Duration::from_secs(1));
        ctx.barrier("server started")?;
    }
    let pid = child.id() as i32;
    let guard = std::thread::spawn(move || child.wait_with_output());
    let end = Instant::now() + LONG;
    while !guard.is_finished() {
        if Instant::now() > end {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let out = guard.join().map_err(|_| anyhow::anyhow!("panicked"))??;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mine = result_line(&text, size, column);
    // The initiator's figure counts.
    let theirs: Option<f64> = ctx.ctl.exchange(&mine)?;
    let counted = if ctx.first() { theirs } else { mine };
    counted.with_context(|| format!("{program} says {text}"))
}

/// Returns the figure in a column of the line that starts with the size.
fn result_line(text: &str, size: usize, column: usize) -> Option<f64> {
    text.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        (words.first()? == &size.to_string()).then(|| words.get(column)?.parse().ok())?
    })
}

/// Column of perftest's average latency.
const LAT_AVERAGE: usize = 5;
/// Column of perftest's average bandwidth.
const BW_AVERAGE: usize = 3;

/// Measures half a round trip of messages, and a read, in microseconds.
pub(super) fn latency(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u32 = 1000;
    let send = ping_pong(ctx, 64, ROUNDS)?;
    let peer = perftest(ctx, "ib_send_lat", 64, ROUNDS, LAT_AVERAGE)?;
    figure(
        ctx,
        "lat",
        "send 64 B",
        send,
        "us",
        Some(("ib_send_lat -e", peer)),
    );
    for (case, size) in [("read 64 B", 64), ("read 64 KiB", 64 << 10)] {
        let read = one_sided(ctx, size, 300, 1, false)?;
        let peer = perftest(ctx, "ib_read_lat", size, 300, LAT_AVERAGE)?;
        figure(
            ctx,
            "lat",
            case,
            read.0,
            "us",
            Some(("ib_read_lat -e", peer)),
        );
    }
    Ok(())
}

/// Measures operations of 64 KiB, many outstanding, in MiB per second. perftest writes by polling
/// only, which does not work on one processor, so writes have no peer.
pub(super) fn bandwidth(ctx: &mut Ctx) -> Result<()> {
    const SIZE: usize = 64 << 10;
    const ROUNDS: u32 = 1000;
    let send = stream(ctx, SIZE, ROUNDS, 64)?;
    let peer = perftest(ctx, "ib_send_bw", SIZE, ROUNDS, BW_AVERAGE)?;
    figure(
        ctx,
        "bw",
        "send 64 KiB",
        send,
        "MiB/s",
        Some(("ib_send_bw -e", peer)),
    );
    let read = one_sided(ctx, SIZE, ROUNDS, 64, false)?;
    let peer = perftest(ctx, "ib_read_bw", SIZE, ROUNDS, BW_AVERAGE)?;
    figure(
        ctx,
        "bw",
        "read 64 KiB",
        read.1,
        "MiB/s",
        Some(("ib_read_bw -e", peer)),
    );
    let write = one_sided(ctx, SIZE, ROUNDS, 64, true)?;
    figure(ctx, "bw", "write 64 KiB", write.1, "MiB/s", None);
    Ok(())
}

fn figure(ctx: &Ctx, bench: &str, case: &str, value: f64, unit: &str, peer: Option<(&str, f64)>) {
    Figure {
        bench,
        case,
        value,
        unit,
        peer: peer.map(|(name, _)| name),
        peer_value: peer.map(|(_, value)| value),
        ratio: None,
        wanted: None,
    }
    .print(ctx);
}

fn ping_pong(ctx: &mut Ctx, size: usize, rounds: u32) -> Result<f64> {
    let pair = Pair::with(
        ctx,
        &Opts {
            cq_format: KFI_CQ_FORMAT_CONTEXT,
            ..Default::default()
        },
    )?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    let recv = || pair.post(op::recv(1, &[iov(region, 0, 1024)]));
    let data = vec![7u8; size];
    let send = || pair.post(op::inject(op::send(2, &[]), &data));
    for _ in 0..16 {
        recv()?;
    }
    ctx.barrier("receives posted")?;
    let client = !ctx.first();
    let mut start = Instant::now();
    for round in 0..rounds + 10 {
        if round == 10 {
            start = Instant::now();
        }
        if client {
            send()?;
        }
        ensure!(
            pair.wait()?.context == 1,
            "a completion that was not asked for"
        );
        recv()?;
        if !client {
            send()?;
        }
    }
    let mine = start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds) / 2.0;
    let theirs: f64 = ctx.ctl.exchange(&mine)?;
    Ok(if client { mine } else { theirs })
}

/// Node 2 sends, `depth` at once, into receives that node 1 keeps posted. Returns MiB per second.
fn stream(ctx: &mut Ctx, size: usize, rounds: u32, depth: u32) -> Result<f64> {
    let opts = Opts {
        tx_size: depth,
        rx_size: 4 * depth,
        ..Default::default()
    };
    let pair = Pair::with(ctx, &opts)?;
    let buf = Buf::new(size)?;
    let region = pair.reg(&buf)?;
    let piece = [iov(region, 0, size as u64)];
    let receiver = ctx.first();
    let make = || {
        if receiver {
            op::recv(1, &piece)
        } else {
            op::send(1, &piece)
        }
    };
    let most = if receiver { 4 * depth } else { depth };
    let (mut posted, mut done) = (0, 0);
    let mut ready = false;
    let mut start = Instant::now();
    while done < rounds {
        while posted < rounds && posted - done < most && (receiver || ready) {
            pair.post(make())?;
            posted += 1;
        }
        if !ready {
            ready = true;
            ctx.barrier("receives posted")?;
            start = Instant::now();
            continue;
        }
        pair.wait_for(LONG)?;
        done += 1;
        while let Some(e) = pair.cq.read() {
            ensure!(e.err == 0, "{e:?}");
            done += 1;
        }
    }
    let theirs: f64 = ctx.ctl.exchange(&start.elapsed().as_secs_f64())?;
    // The sender knows when the last message was received.
    let seconds = if receiver {
        theirs
    } else {
        start.elapsed().as_secs_f64()
    };
    Ok(size as f64 * f64::from(rounds) / seconds / f64::from(1 << 20))
}

/// Node 2 reads from or writes to node 1, `depth` at once. Returns microseconds per operation, and
/// MiB per second.
fn one_sided(
    ctx: &mut Ctx,
    size: usize,
    rounds: u32,
    depth: u32,
    write: bool,
) -> Result<(f64, f64)> {
    let pair = Pair::with(
        ctx,
        &Opts {
            tx_size: depth.max(16),
            ..Default::default()
        },
    )?;
    let buf = Buf::new(size)?;
    let (region, remote) = crate::tests::rma::exported(ctx, &pair, &buf)?;
    let mut seconds = 0.0;
    if !ctx.first() {
        let piece = [iov(region, 0, size as u64)];
        let make = |c| match write {
            true => op::write(c, &piece, remote.addr, remote.key),
            false => op::read(c, &piece, remote.addr, remote.key),
        };
        pair.post(make(0))?;
        pair.wait_for(LONG)?;
        let start = Instant::now();
        let (mut posted, mut done) = (0, 0);
        while done < rounds {
            while posted < rounds && posted - done < depth {
                pair.post(make(1))?;
                posted += 1;
            }
            pair.wait_for(LONG)?;
            done += 1;
            while let Some(e) = pair.cq.read() {
                ensure!(e.err == 0, "{e:?}");
                done += 1;
            }
        }
        seconds = start.elapsed().as_secs_f64();
    }
    let theirs: f64 = ctx.ctl.exchange(&seconds)?;
    let seconds = if ctx.first() { theirs } else { seconds };
    let each = seconds / f64::from(rounds);
    Ok((each * 1e6, size as f64 / each / f64::from(1 << 20)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perftests_lines_are_read() {
        let text = " #bytes #iterations t_min[usec] t_max t_typical t_avg\n 64      1000          60.1           90.2        61.3       62.5\n";
        assert_eq!(result_line(text, 64, LAT_AVERAGE), Some(62.5));
        assert_eq!(result_line(text, 128, LAT_AVERAGE), None);
    }
}
