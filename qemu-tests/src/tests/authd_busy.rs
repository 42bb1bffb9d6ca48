// SPDX-License-Identifier: MIT OR Apache-2.0

//! `kfi-authd` under load and short of resources: one peer's slow request delays no other, and the
//! service manager is notified.

use super::authd::{once, open, opens, refused, Rig, COMPUTE, COMPUTE_FOR_ROOT, STORAGE, WAIT};
use crate::harness::guest::until;
use crate::harness::{Ctx, Test, ONE};
use crate::pair::Side;
use crate::raw;
use crate::sys;
use anyhow::{ensure, Context, Result};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("authd.question_during_slow_revocation_is_answered", |c| {
        once(c, slow_revocation)
    })
    .on(ONE)
    .seconds(20),
    Test::alone("authd.question_without_descriptors_left_is_answered", |c| {
        once(c, descriptors)
    })
    .on(ONE),
    Test::alone("authd.p07_stricter_policy_reloaded_narrows_grants", |c| {
        once(c, stricter)
    })
    .on(ONE),
    Test::alone("authd.reload_of_bad_policy_is_reported", |c| {
        once(c, reported)
    })
    .on(ONE),
];

/// Revokes a grant that many endpoints use, which takes long; meanwhile other questions are
/// answered.
fn slow_revocation(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let mut rig = Rig::new()?;
    let job = "[[job]]\nname = \"all\"\nkeys = [\"storage\"]\nanybody = true\n";
    rig.policy(job)?;
    rig.start()?;
    // Grow the grant until its revocation takes longer than an answer.
    for count in [500, 1000, 2000, 4000] {
        let id = rig.asked(&["grant", "--key", "compute", "--uid", "0"])?["grant"].clone();
        let endpoints: Vec<_> = (0..count)
            .map(|_| open(&side, COMPUTE))
            .collect::<raw::Result<_>>()?;
        let mut job_manager = UnixStream::connect(rig.folder.join("socket"))?;
        job_manager.write_all(format!("{{\"revoke\":{{\"grants\":[{id}]}}}}\n").as_bytes())?;
        // The revocation has begun when no endpoint can be opened any more.
        until("the revocation begins", WAIT, || {
            match open(&side, COMPUTE) {
                Ok(ep) => side.dev.close(ep)?,
                Err(e) if [libc::EKEYREVOKED, libc::EACCES].contains(&e.errno.0) => {
                    return Ok(Some(()))
                }
                Err(e) => return Err(e.into()),
            }
            Ok(None)
        })?;
        opens(&side, STORAGE)?;
        let is_over = sys::poll_in(job_manager.as_fd(), Duration::ZERO)?;
        let mut said = [0; 64];
        let n = job_manager.read(&mut said).context("the answer")?;
        ensure!(said[..n].starts_with(b"{\"revoked\":1}"), "{said:?}");
        for ep in endpoints {
            side.dev.close(ep)?;
        }
        rig.asked(&["revoke", "--answered"])?;
        if !is_over {
            return rig.keeps_silent();
        }
    }
    anyhow::bail!(
        "no question was answered while a revocation took place: {}",
        rig.log()
    )
}

fn descriptors(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let mut rig = Rig::new()?;
    rig.policy(COMPUTE_FOR_ROOT)?;
    let mut few = Command::new("sh");
    few.args(["-c", "ulimit -n 14 && exec kfi-authd \"$@\"", "sh"]);
    rig.start_by(&mut few)?;
    let path = rig.folder.join("socket");
    let there = (0..20)
        .map(|_| UnixStream::connect(&path))
        .collect::<std::io::Result<Vec<_>>>()?;
    rig.logged("accept")?;
    // Each question makes the daemon's loop run once.
    for _ in 0..50 {
        refused(&side, b"an unlisted auth key", libc::EACCES)?;
        opens(&side, COMPUTE)?;
        let mut client = &there[0];
        client.write_all(b"\"rule\"\n")?;
        let mut said = [0; 512];
        ensure!(client.read(&mut said)? > 0, "it hung up");
    }
    let log = rig.log();
    let lines = log.lines().filter(|line| line.contains("accept")).count();
    ensure!(lines == 1, "{lines} lines about refused connections: {log}");
    drop(there);
    rig.logged("connections are accepted again")?;
    rig.asked(&["list"])?;
    rig.keeps_silent()
}

fn stricter(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let mut rig = Rig::new()?;
    let storage = COMPUTE_FOR_ROOT
        .replace("compute", "storage")
        .replace("one", "two");
    rig.policy(&format!("{COMPUTE_FOR_ROOT}{storage}"))?;
    let pid = rig.start()? as i32;
    let (ended, stays) = (open(&side, COMPUTE)?, open(&side, STORAGE)?);
    let grants = rig.asked(&["list"])?;
    ensure!(
        grants.as_array().is_some_and(|all| all.len() == 2),
        "{grants}"
    );
    rig.policy(&storage.replace("keys = 7", "keys = 5"))?;
    sys::kill(pid, libc::SIGHUP)?;
    rig.logged("no job of the policy is about it")?;
    rig.logged("gives less")?;
    let grants = rig.asked(&["list"])?;
    ensure!(grants[0]["limits"]["keys"] == 5, "{grants}");
    ensure!(
        grants.as_array().is_some_and(|all| all.len() == 1),
        "{grants}"
    );
    refused(&side, COMPUTE, libc::EACCES)?;
    opens(&side, STORAGE)?;
    side.dev.close(ended)?;
    side.dev.close(stays)?;
    rig.keeps_silent()
}

fn reported(_: &mut Ctx) -> Result<()> {
    let mut rig = Rig::new()?;
    let manager = UnixDatagram::bind(rig.folder.join("manager"))?;
    manager.set_read_timeout(Some(sys::patience(WAIT)))?;
    // Receives the next message and checks that it contains the word.
    let told = |what: &str| -> Result<String> {
        let mut room = [0; 1024];
        loop {
            let n = manager.recv(&mut room).with_context(|| what.to_owned())?;
            let text = String::from_utf8_lossy(&room[..n]).into_owned();
            if text.contains(what) {
                return Ok(text);
            }
        }
    };
    rig.policy(COMPUTE_FOR_ROOT)?;
    let mut daemon = Command::new("kfi-authd");
    daemon
        .env("NOTIFY_SOCKET", rig.folder.join("manager"))
        .env("WATCHDOG_USEC", "1000000");
    let pid = rig.start_by(&mut daemon)? as i32;
    told("READY=1")?;
    told("WATCHDOG=1")?;
    rig.write("policy", b"[keys.compute]\nfile = \"nowhere\"\n")?;
    sys::kill(pid, libc::SIGHUP)?;
    told("RELOADING=1")?;
    let text = told("READY=1")?;
    ensure!(
        text.contains("STATUS=not reloaded") && text.contains("ERRNO=22"),
        "{text}"
    );
    rig.policy(COMPUTE_FOR_ROOT)?;
    sys::kill(pid, libc::SIGHUP)?;
    let text = told("READY=1")?;
    ensure!(
        text.contains("STATUS=2 keys, 1 jobs") && text.contains("ERRNO=0"),
        "{text}"
    );
    told("WATCHDOG=1")?;
    Ok(())
}
