// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line tool, end to end.

use super::pmem::Device;
use crate::buf::{pattern_bytes, Buf};
use crate::harness::caps::{ARRIVED_WRITES, IMMEDIATE_DATA};
use crate::harness::{Ctx, Test, NETNS, SHM};
use crate::pair::WAIT;
use crate::sys::{self, Ended};
use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("kfi.info_of_own_device_lists_it", info),
    Test::alone("kfi.show_of_open_objects_lists_them", show),
    Test::alone("kfi.error_of_each_kind_has_documented_status", errors).seconds(8),
    Test::pair("kfi.ping_to_server_is_answered", ping)
        .seconds(15)
        .needs(IMMEDIATE_DATA),
    Test::pair("kfi.provider_left_out_uses_best_one", unnamed)
        .seconds(15)
        .needs(IMMEDIATE_DATA),
    Test::pair("kfi.get_of_each_size_copies_file", get)
        .seconds(15)
        .needs(IMMEDIATE_DATA),
    Test::pair("kfi.put_of_each_size_replaces_file", put)
        .seconds(15)
        .needs(IMMEDIATE_DATA),
    Test::pair("kfi.put_to_read_only_server_is_refused", put_refused).seconds(8),
    Test::pair("kfi.p10_durable_put_writes_persistent_memory", put_durable)
        .on(SHM | NETNS)
        .needs(ARRIVED_WRITES)
        .seconds(15),
];

pub(super) fn kfi(args: &[&str]) -> Result<Output> {
    Command::new("kfi")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .context("kfi")
}

/// Runs `kfi`, which must succeed. Returns its standard output.
pub(super) fn well(args: &[&str]) -> Result<String> {
    let out = kfi(args)?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        bail!(
            "kfi {}: {}: {said}{}",
            args.join(" "),
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
    }
    Ok(said)
}

/// Parses JSON: one value, or one per line.
pub(super) fn json(text: &str) -> Result<Vec<Value>> {
    let values: std::result::Result<Vec<Value>, _> = serde_json::Deserializer::from_str(text)
        .into_iter()
        .collect();
    values.with_context(|| format!("not JSON: {text:?}"))
}

/// A `kfi` process that listens.
pub(super) struct Server {
    pub(super) child: Child,
    out: BufReader<ChildStdout>,
    /// First line that the server printed, once it listened.
    first: String,
}

impl Server {
    /// Starts a server, and waits until it listens.
    pub(super) fn start(args: &[&str]) -> Result<Self> {
        let mut cmd = Command::new("kfi");
        cmd.args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = cmd.spawn().context("kfi")?;
        let mut out = BufReader::new(child.stdout.take().context("no output")?);
        let mut first = String::new();
        out.read_line(&mut first)?;
        ensure!(!first.is_empty(), "kfi {args:?} says nothing");
        Ok(Self { child, out, first })
    }

    /// Waits for the server's successful exit. Returns all its output.
    fn ended(self) -> Result<String> {
        let Self {
            child,
            mut out,
            first,
        } = self;
        let pid = child.id() as i32;
        let reader = std::thread::spawn(move || {
            let mut text = first;
            out.read_to_string(&mut text).map(|_| text)
        });
        let end = sys::wait_pid(pid, Duration::from_secs(60))?;
        if end.is_none() {
            sys::kill(pid, libc::SIGKILL)?;
        }
        let text = reader.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        ensure!(end == Some(Ended::Exit(0)), "it ended with {end:?}: {text}");
        Ok(text)
    }
}

fn info(ctx: &mut Ctx) -> Result<()> {
    let text = well(&["info", "-p", ctx.provider()])?;
    for line in [
        format!("provider: {}", ctx.provider()),
        "type: FI_EP_MSG".to_owned(),
    ] {
        ensure!(text.contains(&line), "{line:?} is not in {text}");
    }
    let addr = ctx.env.addr.to_string();
    let own = well(&["info", "-s", &addr, "-v"])?;
    ensure!(own.contains(&addr), "{addr} is not in {own}");
    let list = well(&["info", "-l"])?;
    ensure!(list.contains(ctx.provider()), "{list}");
    let values = json(&well(&["--json", "info"])?)?;
    ensure!(values[0].to_string().contains(ctx.provider()), "{values:?}");
    Ok(())
}

fn show(ctx: &mut Ctx) -> Result<()> {
    let side = crate::pair::Side::open(ctx)?;
    let buf = crate::buf::Buf::new(12_345)?;
    let _region = side.reg(&buf, crate::pair::LOCAL)?;
    let pid = std::process::id().to_string();
    let text = well(&["show", "-p", &pid])?;
    for word in ["kfi-tests", "domain", "region"] {
        ensure!(text.contains(word), "{word:?} is not in {text}");
    }
    let values = json(&well(&["show", "-p", &pid, "--json"])?)?;
    ensure!(
        values.iter().any(|v| v.to_string().contains("12345")),
        "{values:?}"
    );
    Ok(())
}

/// Checks the exit statuses that the help lists, and the line on standard error that every error
/// has.
fn errors(ctx: &mut Ctx) -> Result<()> {
    let peer = ctx.env.addr.to_string();
    let cases: [(&[&str], i32); 4] = [
        (&["frobnicate"], 2),
        (&["info", "-p", "no-such-provider"], 4),
        // The tool retries until its time is up.
        (&["ping", &peer, "-p", "9", "--timeout", "1"], 5),
        (
            &["get", &peer, "/tmp/never", "-p", "9", "--timeout", "1"],
            5,
        ),
    ];
    for (args, status) in cases {
        let out = kfi(args)?;
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        ensure!(
            out.status.code() == Some(status),
            "kfi {args:?}: {}, not {status}: {said}",
            out.status
        );
        ensure!(said.starts_with("error: "), "kfi {args:?} says {said:?}");
    }
    let out = Command::new("kfi")
        .arg("info")
        .env("KFABRIC_DEVICE", "/dev/no-such-file")
        .output()?;
    ensure!(
        out.status.code() == Some(3),
        "without a device: {}",
        out.status
    );
    Ok(())
}

/// Node 1 runs the first command over provider `by`, or over any provider; when it listens, node 2
/// runs the second command. Returns the server's output on node 1.
fn together(
    ctx: &mut Ctx,
    by: Option<&str>,
    server: &[&str],
    client: impl FnOnce(&str) -> Result<()>,
) -> Result<String> {
    if ctx.first() {
        let addr = ctx.env.addr.to_string();
        let named = by.map(|by| ["--provider", by]);
        let named = named.as_ref().map_or(&[][..], |named| &named[..]);
        let more = ["--json", "--once", "-l", &addr];
        let server = Server::start(&[server, named, &more].concat())?;
        ctx.barrier("listening")?;
        ctx.barrier("served")?;
        server.ended()
    } else {
        ctx.barrier("listening")?;
        let peer = ctx.env.peer.to_string();
        let result = client(&peer);
        ctx.barrier("served")?;
        result.map(|()| String::new())
    }
}

/// Runs an initiating command, whose output must name this provider.
fn served_by(provider: &str, args: &[&str]) -> Result<()> {
    let args = [&["--json"], args].concat();
    let values = json(&well(&args)?)?;
    ensure!(!values.is_empty(), "kfi {args:?} prints nothing");
    for value in values {
        ensure!(value["provider"] == provider, "kfi {args:?}: {value}");
    }
    Ok(())
}

fn ping(ctx: &mut Ctx) -> Result<()> {
    let cases: [&[&str]; 5] = [
        &["-I", "100", "-c"],
        &["-o", "write", "-S", "64,4K,100000", "-I", "50", "-c"],
        &["-o", "read", "-S", "1,64K", "-I", "50", "-c"],
        &["-b", "-S", "64K", "-I", "100"],
        &["-b", "-o", "read", "-S", "1M", "-I", "10", "-c"],
    ];
    let limit = sys::patience(Duration::from_secs(30)).as_secs().to_string();
    let by = ctx.provider().to_owned();
    for case in cases {
        together(ctx, Some(&by), &["serve", "--timeout", &limit], |peer| {
            let named = ["ping", peer, "--timeout", &limit, "--provider", &by];
            served_by(&by, &[&named, case].concat())
        })
        .with_context(|| format!("{case:?}"))?;
    }
    Ok(())
}

/// Without a named provider, a server listens over every provider, and a connecting program uses
/// the best one that leads there: kshm to a peer on the same host, else verbs. It uses verbs also
/// if no server listens over kshm.
fn unnamed(ctx: &mut Ctx) -> Result<()> {
    let best = ctx.provider().to_owned();
    let (path, bytes) = file("unnamed", 5000, 5)?;
    let from = path.to_string_lossy().into_owned();
    let to = format!("{from}.to");
    for (by, wanted) in [(None, &best[..]), (Some("kverbs"), "kverbs")] {
        let said = together(ctx, by, &["serve"], |peer| {
            served_by(wanted, &["ping", peer, "-I", "20", "-c"])
        })?;
        if ctx.first() {
            let mut names = by.map_or(vec!["kverbs", "kshm"], |by| vec![by]);
            let said = json(&said)?;
            let told = said[0]["providers"].as_array().context("no providers")?;
            names.retain(|name| told.iter().all(|told| told != name));
            ensure!(names.is_empty(), "not by {names:?}: {said:?}");
        }
    }
    together(ctx, None, &["export", &from], |peer| {
        served_by(&best, &["get", peer, &to])?;
        let got = std::fs::read(&to)?;
        ensure!(got == bytes, "{} bytes came, or other ones", got.len());
        Ok(())
    })?;
    let _ = std::fs::remove_file(&path);
    let _ = std::fs::remove_file(&to);
    Ok(())
}

/// Creates a file of `len` bytes with a pattern.
fn file(name: &str, len: usize, seed: u64) -> Result<(PathBuf, Vec<u8>)> {
    let path = std::env::temp_dir().join(format!("kfi-tests.{}.{name}", std::process::id()));
    let bytes = pattern_bytes(seed, 0, len);
    std::fs::write(&path, &bytes)?;
    Ok((path, bytes))
}

/// Sizes of the files that are sent.
const FILES: &[usize] = &[0, 1, 4097, 3_000_001];

fn get(ctx: &mut Ctx) -> Result<()> {
    let by = ctx.provider().to_owned();
    for &size in FILES {
        let (path, bytes) = file("get", size, size as u64)?;
        let from = path.to_string_lossy().into_owned();
        let to = format!("{from}.to");
        together(ctx, Some(&by), &["export", &from], |peer| {
            served_by(&by, &["get", peer, &to, "--provider", &by])?;
            let got = std::fs::read(&to)?;
            ensure!(got == bytes, "{} bytes came, or other ones", got.len());
            Ok(())
        })
        .with_context(|| format!("{size} bytes"))?;
        let _ = std::fs::remove_file(&path);
        let _ = std::fs::remove_file(&to);
    }
    Ok(())
}

fn put(ctx: &mut Ctx) -> Result<()> {
    let by = ctx.provider().to_owned();
    for &size in FILES {
        // Each node has its own file: the replaced one, or the replacement.
        let seed = u64::from(ctx.env.node) * 100 + size as u64;
        let (path, _) = file("put", if ctx.first() { 100 } else { size }, seed)?;
        let name = path.to_string_lossy().into_owned();
        together(ctx, Some(&by), &["export", "-w", &name], |peer| {
            served_by(&by, &["put", peer, &name, "--provider", &by])
        })
        .with_context(|| format!("{size} bytes"))?;
        if ctx.first() {
            let want = pattern_bytes(200 + size as u64, 0, size);
            let same = || Ok((std::fs::read(&path)? == want).then_some(()));
            crate::harness::guest::until("the file is replaced", WAIT, same)?;
        }
        let _ = std::fs::remove_file(&path);
    }
    Ok(())
}

fn put_durable(ctx: &mut Ctx) -> Result<()> {
    const SIZE: usize = 300_000;
    let seed = 300;
    let (path, bytes) = file("durable", SIZE, seed)?;
    let name = path.to_string_lossy().into_owned();
    let by = ctx.provider().to_owned();
    if ctx.first() {
        let (device, _) = Device::Nvdimm.make()?;
        let addr = ctx.env.addr.to_string();
        for exported in [&device, &path] {
            let exported = exported.to_string_lossy();
            let mut server =
                Server::start(&["export", "--provider", &by, "-l", &addr, "-w", &exported])?;
            ctx.barrier("listening")?;
            ctx.barrier("tried")?;
            server.child.kill()?;
            server.child.wait()?;
        }
        let there = Buf::whole(Device::Nvdimm.map()?);
        ensure!(there.read(0, SIZE) == bytes, "other bytes are there");
        ensure!(std::fs::read(&path)? == bytes, "the file was changed");
    } else {
        let peer = ctx.env.peer.to_string();
        let to = [peer.as_str(), &name, "--provider", &by];
        ctx.barrier("listening")?;
        served_by(&by, &[&["put", "--durable"], &to[..]].concat())?;
        let plain = kfi(&[&["put"], &to[..]].concat())?;
        let back = format!("{name}.back");
        served_by(&by, &["get", &peer, &back, "--provider", &by])?;
        ctx.barrier("tried")?;
        ensure!(!plain.status.success(), "a put without --durable is taken");
        let got = std::fs::read(&back)?;
        ensure!(got.starts_with(&bytes), "other bytes come back");
        std::fs::remove_file(&back)?;
        ctx.barrier("listening")?;
        let durable = kfi(&[&["put", "--durable"], &to[..]].concat())?;
        ctx.barrier("tried")?;
        let said = String::from_utf8_lossy(&durable.stderr).into_owned();
        ensure!(
            !durable.status.success() && said.contains("not a device-dax device"),
            "a durable put into a file: {durable:?}"
        );
    }
    let _ = std::fs::remove_file(&path);
    Ok(())
}

fn put_refused(ctx: &mut Ctx) -> Result<()> {
    let (path, bytes) = file("refused", 1000, u64::from(ctx.env.node))?;
    let name = path.to_string_lossy().into_owned();
    let by = ctx.provider().to_owned();
    if ctx.first() {
        let addr = ctx.env.addr.to_string();
        let args = ["export", "--once", "--provider", &by, "-l", &addr, &name];
        let mut server = Server::start(&args)?;
        ctx.barrier("listening")?;
        ctx.barrier("tried")?;
        let _ = server.child.kill();
        server.child.wait()?;
        ensure!(std::fs::read(&path)? == bytes, "the file was changed");
    } else {
        ctx.barrier("listening")?;
        let out = kfi(&["put", &ctx.env.peer.to_string(), &name, "--provider", &by])?;
        ctx.barrier("tried")?;
        ensure!(
            !out.status.success(),
            "a put into a read-only export is taken"
        );
    }
    let _ = std::fs::remove_file(&path);
    Ok(())
}
