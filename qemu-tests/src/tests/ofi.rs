// SPDX-License-Identifier: MIT OR Apache-2.0

//! The libfabric plug-in, loaded by the distribution's libfabric: `fi_pingpong` between two nodes.

use crate::harness::guest::until;
use crate::harness::{Ctx, Test};
use crate::pair::WAIT;
use anyhow::{ensure, Context, Result};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("ofi.info_lists_the_provider", info),
    Test::pair("ofi.pingpong_of_messages_passes_data", |c| {
        pingpong(c, "kfabric", &["-e", "msg"])
    })
    .seconds(15),
    Test::pair("ofi.pingpong_of_datagrams_by_rxm_passes_data", |c| {
        pingpong(c, "kfabric;ofi_rxm", &["-e", "rdm"])
    })
    .seconds(15),
    Test::pair("ofi.pingpong_of_tagged_messages_by_rxm_passes_data", |c| {
        pingpong(c, "kfabric;ofi_rxm", &["-e", "rdm", "-m", "tagged"])
    })
    .seconds(15),
];

/// Port of `fi_pingpong`'s own connection, by which the two programs exchange addresses.
const CONTROL: u16 = 47_592;

/// A program of libfabric that loads the plug-in.
fn program(name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(args).env("FI_PROVIDER_PATH", "/kfi/bin");
    command.stdin(Stdio::null());
    command
}

fn info(ctx: &mut Ctx) -> Result<()> {
    let out = program("fi_info", &["-p", "kfabric", "-t", "FI_EP_MSG"]).output()?;
    let said = String::from_utf8_lossy(&out.stdout);
    ensure!(out.status.success(), "{out:?}");
    ensure!(said.contains("provider: kfabric\n"), "{said}");
    ctx.barrier("listed")
}

/// Runs `fi_pingpong`, which checks the data of each message.
fn pingpong(ctx: &mut Ctx, provider: &str, kind: &[&str]) -> Result<()> {
    let domain = match ctx.provider() {
        "kshm" => "shm".to_owned(),
        _ => ctx.env.dev.clone(),
    };
    let mut args = vec!["-p", provider, "-d", &domain, "-c", "-I", "20"];
    args.extend(kind);
    let peer = ctx.env.peer.to_string();
    if ctx.first() {
        let mut server = program("fi_pingpong", &args)
            .stdout(Stdio::piped())
            .spawn()?;
        until("fi_pingpong listens", WAIT, || Ok(listens().then_some(())))?;
        ctx.barrier("listening")?;
        let ended = crate::sys::wait_pid(server.id() as i32, Duration::from_secs(100))?;
        if ended.is_none() {
            server.kill()?;
        }
        let out = server.wait_with_output();
        ensure!(
            ended == Some(crate::sys::Ended::Exit(0)),
            "the server: {ended:?}: {out:?}"
        );
    } else {
        ctx.barrier("listening")?;
        args.push(&peer);
        let out = program("fi_pingpong", &args)
            .output()
            .context("fi_pingpong")?;
        let said = String::from_utf8_lossy(&out.stdout);
        ensure!(out.status.success(), "{out:?}");
        // A line for each size.
        ensure!(said.lines().count() > 3, "{said}");
    }
    ctx.barrier("done")
}

/// Returns whether a program listens at the port of `fi_pingpong`.
fn listens() -> bool {
    let port = format!(":{CONTROL:04X} ");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        // The state 0A is LISTEN.
        text.lines()
            .any(|line| line.contains(&port) && line.contains(" 0A "))
    })
}
