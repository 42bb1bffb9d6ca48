// SPDX-License-Identifier: MIT OR Apache-2.0

//! A driver that refuses to deregister memory (P3, P5), on a kernel with fault injection.

use crate::buf::Buf;
use crate::harness::guest::{run, until};
use crate::harness::leaks::vm_pin;
use crate::harness::{skip, Ctx, Test, NETNS};
use crate::op::{self, iov};
use crate::pair::{Opts, Pair, Remote, LOCAL, REMOTE};
use crate::raw::CallError;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::KFI_SHUTDOWN;
use std::path::Path;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "keys.p03_deregistration_refused_a_few_times_is_retried",
        a_few_times,
    )
    .seconds(10)
    .on(NETNS),
    Test::pair(
        "keys.p03_deregistration_refused_fails_its_group_alone",
        for_long,
    )
    .seconds(20)
    .on(NETNS),
];

/// The fault attribute of deregistrations.
const KNOBS: &str = "/sys/kernel/debug/fail_kfabric_dereg";

fn set(knob: &str, value: &str) -> Result<()> {
    let path = format!("{KNOBS}/{knob}");
    std::fs::write(&path, value).context(path)
}

/// The next deregistrations are refused, until this is dropped.
struct Refusing(());

impl Refusing {
    /// The next `times` deregistrations are refused; all of them if it is -1.
    fn new(times: &str) -> Result<Self> {
        for knob in ["verbose", "stacktrace-depth", "require-start", "space"] {
            set(knob, "0")?;
        }
        set("interval", "1")?;
        set("times", times)?;
        set("probability", "100")?;
        Ok(Self(()))
    }
}

impl Drop for Refusing {
    fn drop(&mut self) {
        let _ = set("probability", "0");
    }
}

/// Node 1's memory and a slot on it.
struct Target {
    region: u64,
    slot: u64,
    remote: Remote,
}

impl Target {
    fn new(pair: &Pair, buf: &Buf) -> Result<Self> {
        let region = pair.side.reg(buf, LOCAL | REMOTE)?.handle;
        let (slot, remote) = pair.side.export(region, 0, buf.len() as u64, REMOTE)?;
        Ok(Self {
            region,
            slot,
            remote,
        })
    }
}

/// Writes a little by a key of the peer's.
fn write(pair: &Pair, region: u64, to: &Remote) -> Result<()> {
    pair.write(region, 0, 64, to.addr, to.key)
}

/// A driver that is out of memory for a moment costs nothing but that moment.
fn a_few_times(ctx: &mut Ctx) -> Result<()> {
    if !Path::new(KNOBS).exists() {
        return skip("the kernel injects no failures");
    }
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(4096)?;
    if ctx.first() {
        let mut target = Target::new(&pair, &buf)?;
        for _ in 0..2 {
            ctx.ctl.send(&target.remote)?;
            ctx.barrier("written")?;
            {
                let _refusing = Refusing::new("3")?;
                pair.dev().key_revoke(target.slot)?;
            }
            target.remote = pair.side.assign(target.slot, 0, 4096, REMOTE)?;
        }
        ctx.ctl.send(&target.remote)?;
        return ctx.barrier("done");
    }
    let region = pair.side.reg(&buf, LOCAL)?.handle;
    for round in 0..3 {
        let to: Remote = ctx.ctl.recv()?;
        write(&pair, region, &to).with_context(|| format!("round {round}"))?;
        ctx.barrier(if round < 2 { "written" } else { "done" })?;
    }
    Ok(())
}

/// A driver that goes on refusing: the connections that could use the key end, and no others; none is made
/// anew, and the pages stay, until the driver agrees.
fn for_long(ctx: &mut Ctx) -> Result<()> {
    if !Path::new(KNOBS).exists() {
        return skip("the kernel injects no failures");
    }
    // Two domains, and so two protection domains.
    let (hit, spared) = (Pair::new(ctx)?, Pair::new(ctx)?);
    let (own, other) = (Buf::new(4096)?, Buf::new(4096)?);
    if !ctx.first() {
        let (own, other) = (hit.side.reg(&own, LOCAL)?, spared.side.reg(&other, LOCAL)?);
        let (to, through): (Remote, Remote) = ctx.ctl.recv()?;
        write(&hit, own.handle, &to)?;
        write(&spared, other.handle, &through)?;
        ctx.barrier("written")?;
        ctx.barrier("refused")?;
        hit.post(op::write(1, &[iov(own.handle, 0, 64)], to.addr, to.key))
            .map_or(Ok(()), |()| {
                let err = hit.wait_err()?;
                ensure!(err != 0, "a write by a key that was revoked");
                Ok(())
            })?;
        write(&spared, other.handle, &through).context("the other connection")?;
        return ctx.barrier("done");
    }
    let (target, kept) = (Target::new(&hit, &own)?, Target::new(&spared, &other)?);
    let dev = hit.dev();
    ctx.ctl.send(&(target.remote, kept.remote))?;
    ctx.barrier("written")?;
    let before = vm_pin();
    {
        let _refusing = Refusing::new("-1")?;
        dev.key_revoke(target.slot)?;
        let down = hit.side.event(KFI_SHUTDOWN)?;
        ensure!(down.raw.err as i32 == libc::EIO, "{:?}", down.raw);
        dev.close(target.slot)?;
        dev.close(target.region)?;
        ensure!(vm_pin() == before, "VmPin is {} of {before}", vm_pin());
        let made = hit.side.endpoint(&Opts::default(), &hit.cq, 0);
        let errno = made
            .err()
            .and_then(|e| Some(e.downcast_ref::<CallError>()?.errno.0));
        ensure!(
            errno == Some(libc::EIO),
            "an endpoint beside a key that may live on: {errno:?}"
        );
        let log = run("dmesg", &[])?;
        let line = format!("kverbs: {}: a key was not revoked (errno ", ctx.env.dev);
        ensure!(log.contains(&line), "the log does not name the device");
        ctx.barrier("refused")?;
        ctx.barrier("done")?;
    }
    until("the driver agrees", Duration::from_secs(15), || {
        Ok((vm_pin() < before).then_some(()))
    })?;
    hit.side
        .endpoint(&Opts::default(), &hit.cq, 0)
        .context("an endpoint when all is over")?;
    Ok(())
}
