// SPDX-License-Identifier: MIT OR Apache-2.0

//! The samples of the folder `examples`: each runs, prints its steps, and leaves nothing.

use super::kernel::{log_end, records};
use crate::harness::guest::{load, module_users, run, unload, until};
use crate::harness::{Ctx, Test, SHM};
use crate::pair::WAIT;
use anyhow::{ensure, Context, Result};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("examples.rust_module_runs_and_cleans_up", |c| {
        let steps = [
            "wrote 18 bytes through the key",
            "the revoked key was refused",
            "closed everything",
        ];
        module(c, "kfi_example_rust", &steps)
    })
    .on(SHM),
    Test::alone("examples.c_module_runs_and_cleans_up", |c| {
        let steps = [
            "wrote 19 bytes through the key",
            "the revoked key was refused",
            "closed everything: 0",
        ];
        module(c, "kfi_example_c", &steps)
    })
    .on(SHM),
    Test::pair("examples.program_client_and_server_move_data", program),
];

/// Loads a module, which runs the sample; checks the lines in the kernel's log and the modules'
/// users, and unloads the module.
fn module(ctx: &mut Ctx, name: &str, steps: &[&str]) -> Result<()> {
    if ctx.first() {
        let before = ["kfabric", "kshm"].map(module_users);
        let mut log = log_end()?;
        load(name)?;
        // The loaded module uses the framework's symbols. An open object would use the provider.
        until("the example has closed everything", WAIT, || {
            Ok((module_users("kshm") == before[1]).then_some(()))
        })?;
        unload(name)?;
        ensure!(module_users("kfabric") == before[0], "kfabric is in use");
        let mut text = String::new();
        until("the kernel's log has the last step", WAIT, || {
            text += &records(&mut log, &format!("{name}: "));
            Ok(steps
                .last()
                .filter(|last| text.contains(**last))
                .map(|_| ()))
        })?;
        in_order(&text, steps)?;
    }
    ctx.barrier("done")
}

/// Checks that the text has these lines, in this order.
fn in_order(text: &str, lines: &[&str]) -> Result<()> {
    let mut rest = text.lines();
    for line in lines {
        ensure!(
            rest.any(|found| found == *line),
            "{line:?} is not in {text}"
        );
    }
    Ok(())
}

/// Port of the server.
const PORT: &str = "7479";

/// Runs the server on node 1 and the client on node 2.
fn program(ctx: &mut Ctx) -> Result<()> {
    let provider = ctx.provider().to_owned();
    if !ctx.first() {
        ctx.barrier("listening")?;
        let peer = ctx.env.peer.to_string();
        let said = run("kfi-example", &["client", &peer, PORT, &provider])?;
        let steps = [
            "got: the server's bytes",
            "put: the client's bytes",
            "sent: done",
        ];
        in_order(&said, &steps)?;
        return ctx.barrier("done");
    }
    let own = ctx.env.addr.to_string();
    let mut server = Command::new("kfi-example")
        .args(["server", &own, PORT, &provider])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("kfi-example")?;
    let mut out = BufReader::new(server.stdout.take().context("no output")?);
    let mut said = String::new();
    while !said.contains("listening on") {
        let read = out.read_line(&mut said)?;
        ensure!(read > 0, "the server ends early: {said}");
    }
    ctx.barrier("listening")?;
    out.read_to_string(&mut said)?;
    let status = server.wait()?;
    ensure!(status.success(), "the server: {status}: {said}");
    let steps = [
        "received: done",
        "memory: the client's bytes",
        "revoked the key",
    ];
    in_order(&said, &steps)?;
    ctx.barrier("done")
}
