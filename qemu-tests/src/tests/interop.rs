// SPDX-License-Identifier: MIT OR Apache-2.0

//! Wire compatibility with libfabric's user-space verbs provider: node 1 is a kfabric endpoint,
//! node 2 is `interop/fi_msg_peer.c`, built in the guest.

use crate::buf::Buf;
use crate::harness::caps::IB_TRANSPORT;
use crate::harness::guest::run;
use crate::harness::{skip, Ctx, Test, WRONG_DATA};
use crate::op::{self, iov};
use crate::pair::{Opts, Pair, Remote, Side, LOCAL, REMOTE};
use crate::sys::{self, Ended};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("interop.libfabric_verbs_connecting_exchanges_data", |c| {
        talk(c, true)
    })
    .seconds(15)
    .needs(IB_TRANSPORT),
    Test::pair("interop.libfabric_verbs_accepting_exchanges_data", |c| {
        talk(c, false)
    })
    .seconds(15)
    .needs(IB_TRANSPORT),
];

/// Sizes and words, as in the peer's source.
const MSG: usize = 5000;
const LEN: usize = 100_000;
const PORT: u16 = 47_123;

/// Returns the peer's pattern.
fn pattern(p: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + p * 31) as u8).collect()
}

/// Builds the peer.
fn build() -> Result<PathBuf> {
    let dir = std::env::temp_dir();
    let source = dir.join("fi_msg_peer.c");
    let program = dir.join("fi_msg_peer");
    std::fs::write(&source, include_str!("../../interop/fi_msg_peer.c"))?;
    let (from, to) = (source.to_string_lossy(), program.to_string_lossy());
    run("gcc", &["-Wall", "-O1", "-o", &to, &from, "-lfabric"]).context("building the peer")?;
    Ok(program)
}

fn start(program: &PathBuf, args: &[&str]) -> Result<Child> {
    let mut cmd = Command::new(program);
    cmd.args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    cmd.spawn().context("starting the peer")
}

fn talk(ctx: &mut Ctx, peer_connects: bool) -> Result<()> {
    if ctx.first() {
        ensure_built(ctx.ctl.recv()?)?;
        return kfabric_side(ctx, peer_connects);
    }
    let built = build();
    ctx.ctl
        .send(&built.as_ref().err().map(|e| format!("{e:#}")))?;
    let program = match built {
        Ok(program) => program,
        Err(e) => return skip(format!("{e:#}")),
    };
    let child = if peer_connects {
        let port: u16 = ctx.ctl.recv()?;
        start(
            &program,
            &["connect", &ctx.env.peer.to_string(), &port.to_string()],
        )?
    } else {
        let mut child = start(
            &program,
            &["listen", &ctx.env.addr.to_string(), &PORT.to_string()],
        )?;
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().context("no output")?);
        out.read_line(&mut line)?;
        ctx.ctl.send(&line)?;
        let out = std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::stderr()));
        let end = sys::wait_pid(child.id() as i32, Duration::from_secs(100))?;
        ensure!(end == Some(Ended::Exit(0)), "the peer: {end:?}");
        let _ = out.join();
        return ctx.barrier("over");
    };
    let end = sys::wait_pid(child.id() as i32, Duration::from_secs(100))?;
    let mut said = String::new();
    if let Some(mut out) = child.stdout {
        out.read_to_string(&mut said)?;
    }
    ensure!(end == Some(Ended::Exit(0)), "the peer: {end:?}: {said}");
    ctx.barrier("over")
}

fn ensure_built(failed: Option<String>) -> Result<()> {
    match failed {
        Some(why) => skip(why),
        None => Ok(()),
    }
}

/// Checks the data of a request or an answer, which the fabric may have padded.
fn starts_with(data: &[u8], wanted: &str) -> Result<()> {
    if !data.starts_with(wanted.as_bytes()) {
        bail!("{data:?} came, not {wanted:?}");
    }
    Ok(())
}

fn kfabric_side(ctx: &mut Ctx, peer_connects: bool) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, KFI_CQ_FORMAT_DATA)?;
    let buf = Buf::new(4 * LEN)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    // Places of the peer's four messages, and of its word that all its own operations have
    // completed.
    let places = [2 * LEN, 2 * LEN + 8192, 2 * LEN + 16_384, 2 * LEN + 24_576];
    let receives: Vec<_> = (0..5)
        .map(|i| op::recv(i, &[iov(region, places[i as usize % 4] as u64, 8192)]))
        .collect();
    let got = if peer_connects {
        let (pep, at) = side.listen(ctx.env.at(0), 0)?;
        ctx.ctl.send(&at.port())?;
        let request = side.event(KFI_CONNREQ).context("the peer's request")?;
        starts_with(&request.data, "verbs asks")?;
        let got = side.endpoint(&Opts::default(), &cq, request.raw.connreq)?;
        side.dev.submit(got.handle, &receives)?;
        side.dev.accept(got.handle, b"kfabric answers")?;
        side.event(KFI_CONNECTED)?;
        side.dev.close(pep)?;
        got
    } else {
        let line: String = ctx.ctl.recv()?;
        ensure!(line.trim() == "listening", "the peer says {line:?}");
        let got = side.endpoint(&Opts::default(), &cq, 0)?;
        side.dev.submit(got.handle, &receives)?;
        side.dev
            .connect(got.handle, ctx.env.peer_at(PORT), b"kfabric asks")?;
        let up = side.event(KFI_CONNECTED)?;
        starts_with(&up.data, "verbs answers")?;
        got
    };
    let pair = Pair {
        side,
        cq,
        ep: got.handle,
        got,
    };
    exchange(&pair, &buf, region, places)?;
    pair.dev().shutdown(pair.ep)?;
    pair.side.event(KFI_SHUTDOWN)?;
    ctx.barrier("over")
}

fn exchange(pair: &Pair, buf: &Buf, region: u64, places: [usize; 4]) -> Result<()> {
    let send = |at: usize, len: usize| -> Result<()> {
        pair.post(op::send(50, &[iov(region, at as u64, len as u64)]))?;
        Ok(())
    };
    // Completions of sends and receives may come in either order.
    let mut seen = Vec::new();
    let mut wait = |context: u64| -> Result<CqEntry> {
        loop {
            if let Some(at) = seen.iter().position(|e: &CqEntry| e.context == context) {
                return Ok(seen.remove(at));
            }
            seen.push(pair.wait()?);
        }
    };
    buf.write(0, &pattern(1, MSG));
    send(0, MSG)?;
    wait(50)?;
    let answer = wait(0).context("the answer")?;
    ensure!(answer.len == MSG as u64, "{answer:?}");
    ensure!(
        buf.read(places[0], MSG) == pattern(2, MSG),
        "{WRONG_DATA}the answer differs"
    );

    buf.write(0, &pattern(3, LEN));
    let (_, remote) = pair.side.export(region, 0, 2 * LEN as u64, REMOTE)?;
    buf.set64(3 * LEN, remote.addr);
    buf.set64(3 * LEN + 8, remote.key);
    send(3 * LEN, 16)?;
    wait(50)?;
    wait(1).context("word that it is written")?;
    ensure!(
        buf.read(LEN, LEN) == pattern(4, LEN),
        "{WRONG_DATA}the bytes that the peer wrote differ"
    );

    wait(2).context("the peer's key")?;
    let theirs = Remote {
        addr: buf.get64(places[2]),
        key: buf.get64(places[2] + 8),
        len: 0,
    };
    pair.post(op::read(
        51,
        &[iov(region, 0, LEN as u64)],
        theirs.addr,
        theirs.key,
    ))?;
    wait(51).context("reading")?;
    ensure!(
        buf.read(0, LEN) == pattern(5, LEN),
        "{WRONG_DATA}the bytes read differ"
    );
    buf.write(0, &pattern(6, LEN));
    let far = theirs.addr + LEN as u64;
    pair.post(op::write(
        52,
        &[iov(region, 0, LEN as u64)],
        far,
        theirs.key,
    ))?;
    wait(52).context("writing")?;
    send(0, 1)?;
    wait(50)?;

    let last = wait(3).context("the message with data")?;
    ensure!(
        last.flags & KFI_REMOTE_CQ_DATA != 0 && last.data == 0xfeed,
        "{last:?}"
    );
    // A disconnect may cancel the last acknowledgement, and the peer would wait for that.
    wait(4).context("the peer's last word")?;
    Ok(())
}
