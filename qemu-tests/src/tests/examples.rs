// SPDX-License-Identifier: MIT OR Apache-2.0

//! The samples of the folder `examples`: each runs, prints its steps, and leaves nothing.

use super::kernel::{log_end, records};
use super::pmem::Device;
use crate::harness::caps::{ARRIVED_WRITES, LATE_RECEIVES, QUICK_CLOSES};
use crate::harness::guest::{load, module_users, run, unload, until};
use crate::harness::{Ctx, Test, NETNS, ONE, SHM};
use crate::pair::WAIT;
use anyhow::{ensure, Context, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

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
    Test::pair("examples.libfabric_program_moves_data", libfabric),
    Test::pair("examples.pingpong_between_nodes_completes", pingpong).seconds(10),
    Test::alone("examples.info_of_own_address_lists_device", info),
    Test::alone("examples.auth_key_decides_about_connections", auth)
        .seconds(8)
        .needs(QUICK_CLOSES),
    Test::alone(
        "examples.bpftrace_script_names_existing_tracepoints",
        script,
    )
    .on(ONE),
    Test::pair("examples.log_in_persistent_memory_recovers", log)
        .on(SHM | NETNS)
        .needs(ARRIVED_WRITES)
        .seconds(10),
    Test::alone("examples.tokio_tasks_exchange_messages", tokio)
        .seconds(8)
        .needs(LATE_RECEIVES),
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

/// Runs a server on node 1 and a client on node 2; each prints its lines.
fn between(ctx: &mut Ctx, name: &str, server: &[&str], client: &[&str]) -> Result<()> {
    let provider = ctx.provider().to_owned();
    let (own, peer) = (ctx.env.addr.to_string(), ctx.env.peer.to_string());
    let args = match ctx.first() {
        true => ["server", &own, PORT, &provider],
        false => ["client", &peer, PORT, &provider],
    };
    between_with(ctx, Command::new(name).args(args), server, client)
}

/// Runs the node's own command: on node 1 a server, which prints `listening`, on node 2 a client. Each
/// prints its lines.
fn between_with(
    ctx: &mut Ctx,
    command: &mut Command,
    server: &[&str],
    client: &[&str],
) -> Result<()> {
    if !ctx.first() {
        ctx.barrier("listening")?;
        let out = command.stdin(Stdio::null()).output()?;
        ensure!(out.status.success(), "the client: {out:?}");
        in_order(&String::from_utf8_lossy(&out.stdout), client)?;
        return ctx.barrier("done");
    }
    let mut running = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{command:?}"))?;
    let mut out = BufReader::new(running.stdout.take().context("no output")?);
    let mut said = String::new();
    while !said.contains("listening") {
        let read = out.read_line(&mut said)?;
        ensure!(read > 0, "the server ends early: {said}");
    }
    ctx.barrier("listening")?;
    out.read_to_string(&mut said)?;
    let status = running.wait()?;
    ensure!(status.success(), "the server: {status}: {said}");
    in_order(&said, server)?;
    ctx.barrier("done")
}

fn libfabric(ctx: &mut Ctx) -> Result<()> {
    let (own, peer) = (ctx.env.addr.to_string(), ctx.env.peer.to_string());
    let mut command = Command::new("kfi-example-libfabric");
    command.env("FI_PROVIDER_PATH", "/kfi/bin");
    match ctx.first() {
        true => command.args(["-l", &own, PORT]),
        false => command.args([&peer, PORT, "one-sided"]),
    };
    between_with(ctx, &mut command, &["one-sided"], &["one-sided"])
}

fn program(ctx: &mut Ctx) -> Result<()> {
    let server = [
        "received: done",
        "memory: the client's bytes",
        "revoked the key",
    ];
    let client = [
        "got: the server's bytes",
        "put: the client's bytes",
        "sent: done",
    ];
    between(ctx, "kfi-example", &server, &client)
}

/// Starts `kfi-pmlog` on the NVDIMM of node 1, and waits until it listens.
pub(super) fn log_server(ctx: &Ctx, device: &str) -> Result<Child> {
    let own = ctx.env.addr.to_string();
    let mut running = Command::new("kfi-pmlog")
        .args(["serve", device, &own, PORT, ctx.provider()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    let out = running.stdout.take().context("no output")?;
    BufReader::new(out).read_line(&mut said)?;
    ensure!(said.starts_with("listening"), "the server: {said}");
    Ok(running)
}

/// Returns the arguments of a client of `kfi-pmlog` on node 1.
pub(super) fn log_client(ctx: &Ctx, what: &str) -> [String; 4] {
    let peer = ctx.env.peer.to_string();
    [what.into(), peer, PORT.into(), ctx.provider().into()]
}

/// Runs a client of `kfi-pmlog` on node 1. Returns its output.
pub(super) fn run_log(ctx: &Ctx, what: &str) -> Result<String> {
    let args = log_client(ctx, what);
    run("kfi-pmlog", &args.each_ref().map(String::as_str))
}

/// Appends a line for each number, until `kill` of them are reported; then kills the program.
fn append_and_kill(ctx: &Ctx, numbers: std::ops::Range<u32>, kill: usize) -> Result<Vec<String>> {
    let mut running = Command::new("kfi-pmlog")
        .args(log_client(ctx, "append"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = running.stdin.take().context("no input")?;
    let lines: Vec<String> = numbers.map(|n| format!("record {n}")).collect();
    input.write_all((lines.join("\n") + "\n").as_bytes())?;
    let out = BufReader::new(running.stdout.take().context("no output")?);
    // The first line reports the recovery.
    let told = out.lines().skip(1).take(kill).count();
    running.kill()?;
    running.wait()?;
    ensure!(told == kill, "only {told} records are appended");
    Ok(lines[..kill].to_vec())
}

/// Returns the records in the log.
fn records_of(ctx: &Ctx) -> Result<Vec<String>> {
    let said = run_log(ctx, "show")?;
    let record = |line: &str| line.split_once(": ").map(|(_, text)| text.to_owned());
    Ok(said.lines().filter_map(record).collect())
}

fn log(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let (device, _) = Device::Nvdimm.make()?;
        let device = device.display().to_string();
        for _ in 0..2 {
            let mut server = log_server(ctx, &device)?;
            ctx.barrier("listening")?;
            ctx.barrier("done")?;
            server.kill()?;
            server.wait()?;
            ctx.barrier("stopped")?;
        }
        return Ok(());
    }
    ctx.barrier("listening")?;
    run_log(ctx, "create")?;
    ensure!(records_of(ctx)?.is_empty(), "a new log has records");
    let mut told = append_and_kill(ctx, 0..100, 20)?;
    told.extend(append_and_kill(ctx, 100..104, 4)?);
    let there = records_of(ctx)?;
    // A record that was not reported may be there, too.
    let mut found = there.iter();
    for record in &told {
        ensure!(found.any(|it| it == record), "no {record} in {there:?}");
    }
    ctx.barrier("done")?;
    ctx.barrier("stopped")?;
    ctx.barrier("listening")?;
    let again = records_of(ctx)?;
    ensure!(again == there, "{again:?} instead of {there:?}");
    ctx.barrier("done")?;
    ctx.barrier("stopped")
}

fn pingpong(ctx: &mut Ctx) -> Result<()> {
    // The line with the time differs from run to run; the exit status tells the rest.
    between(ctx, "kfi-example-pingpong", &[], &[])
}

fn info(ctx: &mut Ctx) -> Result<()> {
    let own = ctx.env.addr.to_string();
    let said = run("kfi-example-info", &[&own])?;
    let wanted = format!("provider {}, ", ctx.provider());
    let found = said.lines().any(|line| line.starts_with(&wanted));
    ensure!(found, "no {wanted:?} in {said}");
    Ok(())
}

fn auth(ctx: &mut Ctx) -> Result<()> {
    let own = ctx.env.addr.to_string();
    let key = std::env::temp_dir().join(format!("kfi-example-auth.{}", std::process::id()));
    std::fs::write(&key, "the auth key of the example")?;
    let path = key.display().to_string();
    // Both halves may run on one address.
    let port = (7480 + u32::from(ctx.env.node)).to_string();
    let said = run("kfi-example-auth", &[&path, &own, &port, ctx.provider()]);
    std::fs::remove_file(&key)?;
    let said = said?;
    let refused = said.lines().any(|line| {
        line.starts_with("without the auth key: ") && line.contains(": no connection: ")
    });
    ensure!(refused, "no refusal: {said}");
    in_order(
        &said,
        &[
            "the peer has auth key number Some(0)",
            "with the auth key: connected",
        ],
    )
}

fn tokio(ctx: &mut Ctx) -> Result<()> {
    let own = ctx.env.addr.to_string();
    let port = (7490 + u32::from(ctx.env.node)).to_string();
    let said = run("kfi-example-tokio", &[&own, &port, ctx.provider()])?;
    in_order(
        &said,
        &[
            "the client has received 6400 bytes",
            "the server has received 6400 bytes",
        ],
    )
}

/// The script, which needs bpftrace; a guest has none.
const SCRIPT: &str = include_str!("../../../examples/bpftrace/kfabric-keys.bt");
/// Descriptions of our tracepoints.
const EVENTS: &str = "/sys/kernel/tracing/events/kfabric";

/// Checks each tracepoint and each of its fields in the script against the kernel's description.
fn script(_: &mut Ctx) -> Result<()> {
    let mut fields = 0;
    for probe in SCRIPT.split("tracepoint:kfabric:").skip(1) {
        let name: String = probe.chars().take_while(|c| is_name(*c)).collect();
        let format = std::fs::read_to_string(format!("{EVENTS}/{name}/format"));
        let format = format.with_context(|| name.clone())?;
        for used in probe.split("args->").skip(1) {
            let field: String = used.chars().take_while(|c| is_name(*c)).collect();
            let words = format.split(|c: char| !is_name(c));
            ensure!(
                words.into_iter().any(|word| word == field),
                "{name} has no {field}: {format}"
            );
            fields += 1;
        }
    }
    ensure!(fields > 8, "only {fields} fields are in the script");
    Ok(())
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}
