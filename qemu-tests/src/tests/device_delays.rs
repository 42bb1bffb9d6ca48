// SPDX-License-Identifier: MIT OR Apache-2.0

//! Verbs that take long (`consumers/tests/fake-device`), while other work goes on.

use super::key_batches::joined;
use super::pmem::{Device, MAPPED};
use super::pmem_verbs::persistent;
use crate::buf::Buf;
use crate::harness::caps::ARRIVED_WRITES;
use crate::harness::guest::until;
use crate::harness::{Ctx, Test, NETNS};
use crate::op::{self, iov, with_flags};
use crate::pair::{accept_one, connect_one, Opts, Remote, Side, LOCAL, LONG, REMOTE, WAIT};
use crate::profile::Fake;
use anyhow::{ensure, Result};
use kfabric_uapi::*;

/// The topic's tests.
pub const TESTS: &[Test] = &[Test::pair(
    "devices.p10_commits_of_a_key_go_on_while_another_key_is_revoked",
    commits,
)
.seconds(10)
.on(NETNS)
.needs(ARRIVED_WRITES)];

/// Bytes of a durable write.
const PIECE: u64 = 4096;
/// Durable writes by the key that stays.
const WRITES: u64 = 50;

/// P10: the device deregisters the region of one key for a long time, so the key's slot stays locked.
/// Meanwhile a durable write by that key waits for its commit, and those by another key complete.
fn commits(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        return target(ctx);
    }
    let side = Side::open(ctx)?;
    let (port, stays, ends): (u16, Remote, Remote) = ctx.ctl.recv()?;
    let buf = Buf::new(PIECE as usize)?;
    let piece = [iov(side.reg(&buf, LOCAL)?.handle, 0, PIECE)];
    let at = ctx.env.peer_at(port);
    let (cq, late_cq) = (side.cq(0, 0)?, side.cq(0, 0)?);
    let ep = connect_one(&side, &Opts::default(), &cq, at)?.handle;
    let late_ep = connect_one(&side, &Opts::default(), &late_cq, at)?.handle;
    let write = |ep: u64, to: &Remote| {
        let write = op::write(1, &piece, to.addr, to.key);
        side.dev
            .submit(ep, &[with_flags(write, KFI_COMMIT_COMPLETE)])
    };
    // Both channels are there, and both keys are good.
    for (ep, cq, to) in [(ep, &cq, &stays), (late_ep, &late_cq, &ends)] {
        write(ep, to)?;
        let e = cq.wait(LONG)?;
        ensure!(e.err == 0, "before the revocation: {e:?}");
    }
    ctx.barrier("written")?;
    ctx.barrier("revoking")?;
    write(late_ep, &ends)?;
    for number in 0..WRITES {
        write(ep, &stays)?;
        let e = cq.wait(LONG)?;
        ensure!(e.err == 0, "write {number}: {e:?}");
    }
    let early = late_cq.read();
    ensure!(early.is_none(), "during the revocation: {early:?}");
    ctx.barrier("written meanwhile")?;
    let e = late_cq.wait(LONG)?;
    ensure!(e.err as i32 == libc::EKEYREVOKED, "{e:?}");
    ctx.barrier("end")
}

fn target(ctx: &mut Ctx) -> Result<()> {
    // Microseconds. The test ends the delay.
    const DELAY: u64 = 1_000_000_000;
    let map = Device::Nvdimm.map()?;
    let side = Side::open(ctx)?;
    let region = persistent(&side, &map, &[])?;
    let half = MAPPED as u64 / 2;
    let (_, stays) = side.export(region, 0, half, REMOTE)?;
    let (slot, ends) = side.export(region, half, half, REMOTE)?;
    let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
    ctx.ctl.send(&(at.port(), stays, ends))?;
    let cq = side.cq(0, 0)?;
    for _ in 0..2 {
        accept_one(&side, &Opts::default(), &cq)?;
    }
    ctx.barrier("written")?;
    let fake = Fake::load()?;
    fake.set(&format!("reset=1 delay=dereg_mr:{DELAY}"))?;
    let during = std::thread::scope(|scope| {
        let revoke = scope.spawn(|| Ok(side.dev.key_revoke(slot)?));
        let done = (|| -> Result<()> {
            until("the device deregisters", WAIT, || {
                Ok((fake.counters()?["dereg_mr"].all > 0).then_some(()))
            })?;
            ctx.barrier("revoking")?;
            ctx.barrier("written meanwhile")?;
            ensure!(!revoke.is_finished(), "the revocation has not waited");
            Ok(())
        })();
        // Ends the delay.
        fake.set("reset=1")?;
        joined(revoke)?;
        done
    });
    during?;
    ctx.barrier("end")
}
