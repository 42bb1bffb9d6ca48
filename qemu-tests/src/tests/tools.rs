// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line tool in unexpected circumstances: targets, files, devices, limits.

use super::modules::{add_link, delete_link};
use super::programs::{json, kfi, well, Server};
use crate::buf::pattern_bytes;
use crate::disk::{self, attr, store, Loaded};
use crate::harness::guest::until;
use crate::harness::{skip, Ctx, Test, NETNS, ONE};
use crate::pair::WAIT;
use crate::sys::{self, Ended};
use anyhow::{ensure, Context, Result};
use kfabric::{Device, EndpointAttr, Hints};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{chown, symlink, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("tools.get_over_each_kind_of_target_keeps_its_kind", targets)
        .on(ONE)
        .seconds(15),
    Test::alone(
        "tools.put_over_a_private_file_keeps_mode_and_owner",
        put_private,
    )
    .on(ONE)
    .seconds(10),
    Test::alone("tools.put_of_special_file_changes_nothing", put_odd)
        .on(ONE)
        .seconds(10),
    Test::alone(
        "tools.export_of_file_truncated_meanwhile_gets_no_sigbus",
        truncated,
    )
    .on(ONE)
    .seconds(15),
    Test::alone(
        "tools.serve_without_threads_refuses_and_keeps_serving",
        no_threads,
    )
    .on(ONE)
    .seconds(10),
    Test::alone(
        "tools.serve_after_device_returns_serves_again",
        device_returns,
    )
    .on(ONE)
    .seconds(20),
    Test::alone("tools.show_of_name_with_escapes_prints_no_escape", escapes).on(ONE),
    Test::alone("tools.handle_of_another_file_is_unknown", two_files).on(ONE),
    Test::pair("tools.blk_connect_interrupted_leaves_no_disk", interrupted)
        .on(NETNS)
        .seconds(10),
    Test::pair(
        "tools.blk_list_of_many_fenced_initiators_shows_all",
        many_fenced,
    )
    .on(NETNS)
    .seconds(10),
];

/// A test's folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("kfi-tools.{}.{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn file(&self, name: &str, content: &[u8], mode: u32) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::write(&path, content)?;
        fs::set_permissions(&path, PermissionsExt::from_mode(mode))?;
        Ok(path)
    }

    /// Checks that no unfinished file is left.
    fn is_tidy(&self) -> Result<()> {
        for entry in fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            let left = name.to_string_lossy().starts_with(".kfi-");
            ensure!(!left, "{name:?} is left");
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Starts a server for one command, on this node.
fn serve(ctx: &Ctx, args: &[&str]) -> Result<Server> {
    let addr = ctx.env.addr.to_string();
    Server::start(&[args, &["-l", &addr, "--json"]].concat())
}

fn stop(mut server: Server) -> Result<()> {
    ensure!(
        server.child.try_wait()?.is_none(),
        "the server has ended by itself"
    );
    sys::kill(server.child.id() as i32, libc::SIGTERM)?;
    let ended = sys::wait_pid(server.child.id() as i32, WAIT)?;
    ensure!(ended == Some(Ended::Signal(libc::SIGTERM)), "{ended:?}");
    Ok(())
}

fn targets(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        return Ok(());
    }
    let folder = Folder::new("targets")?;
    let bytes = pattern_bytes(1, 0, 70_001);
    let source = folder.file("source", &bytes, 0o644)?;
    let server = serve(ctx, &["export", &text(&source)])?;
    let peer = ctx.env.addr.to_string();

    let private = folder.file("private", b"old", 0o600)?;
    chown(&private, Some(5), Some(60))?;
    well(&["get", &peer, &text(&private)])?;
    let meta = fs::metadata(&private)?;
    let is = (meta.mode() & 0o7777, meta.uid(), meta.gid());
    ensure!(is == (0o600, 5, 60), "mode, owner and group are {is:?}");
    ensure!(fs::read(&private)? == bytes, "another content");

    let link = folder.0.join("link");
    symlink("private", &link)?;
    well(&["get", &peer, &text(&link)])?;
    ensure!(
        fs::symlink_metadata(&link)?.is_symlink(),
        "no link any more"
    );

    well(&["get", &peer, "/dev/null"])?;
    let null = fs::metadata("/dev/null")?.file_type();
    ensure!(null.is_char_device(), "/dev/null is {null:?}");

    let long = folder.0.join("n".repeat(250));
    well(&["get", &peer, &text(&long)])?;
    ensure!(fs::read(&long)? == bytes, "another content");

    let fifo = folder.0.join("fifo");
    crate::harness::guest::run("mkfifo", &[&text(&fifo)])?;
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || -> std::io::Result<Vec<u8>> {
            let mut all = Vec::new();
            File::open(fifo)?.read_to_end(&mut all)?;
            Ok(all)
        }
    });
    well(&["get", &peer, &text(&fifo)])?;
    let came = reader.join().map_err(|_| anyhow::anyhow!("panicked"))??;
    ensure!(came == bytes, "{} bytes came through the FIFO", came.len());

    let out = kfi(&["get", &peer, "-"])?;
    ensure!(out.status.success() && out.stdout == bytes, "{out:?}");

    let out = kfi(&["get", &peer, &text(&folder.0)])?;
    ensure!(!out.status.success(), "a folder is replaced");
    folder.is_tidy()?;
    stop(server)
}

fn put_private(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        return Ok(());
    }
    let folder = Folder::new("private")?;
    let bytes = pattern_bytes(2, 0, 70_001);
    let source = folder.file("source", &bytes, 0o644)?;
    let private = folder.file("private", b"old", 0o600)?;
    chown(&private, Some(5), Some(60))?;
    let server = serve(ctx, &["export", "--writable", &text(&private)])?;
    let peer = ctx.env.addr.to_string();
    well(&["put", &peer, &text(&source)])?;
    let meta = fs::metadata(&private)?;
    let is = (meta.mode() & 0o7777, meta.uid(), meta.gid());
    ensure!(is == (0o600, 5, 60), "mode, owner and group are {is:?}");
    ensure!(fs::read(&private)? == bytes, "another content");
    // `get` now fetches the bytes of `put`.
    let back = folder.0.join("back");
    well(&["get", &peer, &text(&back)])?;
    ensure!(fs::read(&back)? == bytes, "another content comes back");
    folder.is_tidy()?;
    stop(server)
}

fn put_odd(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        return Ok(());
    }
    let folder = Folder::new("odd")?;
    let target = folder.file("target", b"the old bytes", 0o644)?;
    let server = serve(ctx, &["export", "--writable", &text(&target)])?;
    let peer = ctx.env.addr.to_string();
    let fifo = folder.0.join("fifo");
    crate::harness::guest::run("mkfifo", &[&text(&fifo)])?;
    for odd in [text(&fifo), "/dev/zero".to_owned(), text(&folder.0)] {
        let out = kfi(&["put", &peer, &odd])?;
        ensure!(out.status.code() == Some(2), "{odd}: {}", out.status);
        ensure!(fs::read(&target)? == b"the old bytes", "{odd} was put");
    }
    // A file that reports no length is sent as it is.
    well(&["put", &peer, "/proc/version"])?;
    ensure!(
        fs::read(&target)? == fs::read("/proc/version")?,
        "another content"
    );
    let mut child = Command::new("kfi")
        .args(["put", &peer, "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let mut input = child.stdin.take().context("no input")?;
    input.write_all(b"from a pipe")?;
    drop(input);
    ensure!(child.wait()?.success(), "a pipe's content is not put");
    ensure!(fs::read(&target)? == b"from a pipe", "another content");
    stop(server)
}

/// Bytes that take a while to be read.
const MUCH: u64 = 96 << 20;

fn truncated(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        return Ok(());
    }
    let folder = Folder::new("truncated")?;
    let path = folder.0.join("big");
    let file = File::create(&path)?;
    file.set_len(MUCH)?;
    let addr = ctx.env.addr.to_string();
    let mut child = Command::new("kfi")
        .args(["export", &text(&path), "-l", &addr, "--provider", "kshm"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let pid = child.id();
    // The server has pinned some memory and reads it.
    let device = Device::open()?;
    until("a region", WAIT, || {
        let all = device.objects()?;
        let pinned = |o: &kfabric::LiveObject| o.pid == pid && o.kind == kfabric::Kind::Region;
        Ok(all.iter().any(pinned).then_some(()))
    })?;
    file.set_len(0)?;
    let ended = sys::wait_pid(pid as i32, Duration::from_secs(5))?;
    if ended.is_none() {
        child.kill()?;
        child.wait()?;
        // The server had read the whole file before.
        return skip("the file was looked at before it became shorter".to_owned());
    }
    ensure!(ended == Some(Ended::Exit(1)), "it ended with {ended:?}");
    Ok(())
}

/// A control group, removed with the test.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        if fs::write(root.join("cgroup.subtree_control"), "+pids").is_err() {
            return skip("this kernel does not count processes".to_owned());
        }
        let path = root.join(name);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn no_threads(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        return Ok(());
    }
    let group = Group::new("kfi-tools")?;
    let server = serve(ctx, &["serve"])?;
    let pid = server.child.id().to_string();
    fs::write(group.0.join("cgroup.procs"), &pid)?;
    let peer = ctx.env.addr.to_string();
    let ping = ["ping", &peer, "-I", "10", "--timeout", "10"];
    well(&ping)?;
    until("the first client's thread is gone", WAIT, || {
        let now = fs::read_to_string(group.0.join("pids.current"))?;
        Ok((now.trim() == "1").then_some(()))
    })?;
    fs::write(group.0.join("pids.max"), "1")?;
    let clients: Vec<_> = (0..4)
        .map(|_| {
            Command::new("kfi")
                .args(ping)
                .stderr(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
        })
        .collect();
    for client in clients {
        let out = client?.wait_with_output()?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.code() == Some(5), "{}: {said}", out.status);
        ensure!(said.contains("busy: no thread"), "{said}");
    }
    fs::write(group.0.join("pids.max"), "max")?;
    well(&ping)?;
    stop(server)
}

fn device_returns(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        return Ok(());
    }
    let folder = Folder::new("returns")?;
    let bytes = pattern_bytes(3, 0, 70_001);
    let source = folder.file("source", &bytes, 0o644)?;
    let by = ["--provider", "kverbs"];
    let peer = ctx.env.addr.to_string();
    let ping = ["ping", &peer, "-I", "10", "--timeout", "20", by[0], by[1]];
    let to = text(&folder.0.join("to"));
    let get = [
        "get",
        &peer,
        &to,
        "-p",
        "7475",
        "--timeout",
        "20",
        by[0],
        by[1],
    ];
    let server = serve(ctx, &["serve", by[0], by[1]])?;
    let export = serve(ctx, &["export", &text(&source), "-p", "7475", by[0], by[1]])?;
    well(&ping)?;
    well(&get)?;
    delete_link(ctx)?;
    add_link(ctx)?;
    // The servers print nothing; only a new connection shows that they listen again.
    well(&ping).context("after the device has come back")?;
    fs::remove_file(&to)?;
    well(&get).context("after the device has come back")?;
    ensure!(fs::read(&to)? == bytes, "another content");
    stop(export)?;
    stop(server)
}

fn escapes(ctx: &mut Ctx) -> Result<()> {
    const NAME: &[u8] = b"a\"b\n\x1b[31m\xff";
    let side = crate::pair::Side::open(ctx)?;
    let buf = crate::buf::Buf::new(4096)?;
    let _region = side.reg(&buf, crate::pair::LOCAL)?;
    let pid = std::process::id().to_string();
    // No later test uses the process name.
    fs::write("/proc/self/comm", NAME)?;
    for more in [&[][..], &["-t"], &["keys"]] {
        let said = well(&[&["show", "-p", &pid], more].concat())?;
        let odd = |c: char| c.is_control() && c != '\n';
        ensure!(!said.contains(odd), "{said:?}");
        let shown = said.contains("a\"b\\n\\u{1b}[31m");
        ensure!(shown || more == ["keys"], "{said:?}");
    }
    let values = json(&well(&["show", "-p", &pid, "--json"])?)?;
    ensure!(
        values[0].to_string().contains("a\\\"b\\n\\u001b"),
        "{values:?}"
    );
    Ok(())
}

/// Checks that a handle of one file is unknown to another file.
fn two_files(ctx: &mut Ctx) -> Result<()> {
    let hints = Hints::new().provider(ctx.provider());
    let open = || -> Result<_> {
        let device = Device::open()?;
        let info = device.info(&hints)?.into_iter().next().context("nothing")?;
        let fabric = device.fabric(&info)?;
        let domain = fabric.domain(&info)?;
        let eq = fabric.event_queue(0)?;
        let region = domain.register(kfabric::Memory::anonymous(4096)?, kfabric::Access::RECV)?;
        Ok((fabric, domain, eq, region))
    };
    let (fabric, domain, eq, region) = open()?;
    let other = open()?;
    for (one, another) in [
        (fabric.id(), other.0.id()),
        (domain.id(), other.1.id()),
        (eq.id(), other.2.id()),
        (region.id(), other.3.id()),
    ] {
        ensure!(one.handle != another.handle, "{one} is {another}, too");
    }
    let ep = domain.endpoint(&EndpointAttr::default())?;
    let cq = domain.completion_queue(0, kfabric::Format::Context)?;
    let foreign = ep.bind_event_queue(&other.2);
    ensure!(
        foreign
            .as_ref()
            .is_err_and(|e| e.errno() == Some(kfabric::Errno::EINVAL)),
        "{foreign:?}"
    );
    ep.bind_event_queue(&eq)?;
    ep.bind_completion_queue(&cq, kfabric::Bind::TRANSMIT | kfabric::Bind::RECV)?;
    ep.enable()?;
    let foreign = ep.recv(other.3.all(), 1);
    ensure!(
        foreign
            .as_ref()
            .is_err_and(|e| e.errno() == Some(kfabric::Errno::EINVAL)),
        "{foreign:?}"
    );
    ep.recv(region.all(), 2)?;
    Ok(())
}

fn interrupted(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    let folder = attr("disks", "half", "");
    let signals = [libc::SIGINT, libc::SIGTERM];
    for signal in signals.into_iter().filter(|_| ctx.first()) {
        // No host has this address.
        let mut child = Command::new("kfi")
            .args(["blk", "connect", "10.77.0.99", "a", "-d", "half"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let pid = child.id() as i32;
        let status = format!("/proc/{pid}/wchan");
        until("it waits in the kernel", WAIT, || {
            let waits = fs::read_to_string(&status).unwrap_or_default();
            Ok((folder.is_dir() && waits.len() > 1).then_some(()))
        })?;
        sys::kill(pid, signal)?;
        let ended = sys::wait_pid(pid, Duration::from_secs(20))?;
        if ended.is_none() {
            child.kill()?;
        }
        ensure!(
            ended == Some(Ended::Signal(signal)),
            "it ended with {ended:?}"
        );
        ensure!(!folder.exists(), "{} is left", folder.display());
    }
    loaded.end(ctx)
}

/// Number of initiators whose names exceed a page.
const MANY: usize = 250;

fn many_fenced(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let names: Vec<String> = (0..MANY)
            .map(|n| format!("client-with-a-name-{n:03}"))
            .collect();
        disk::export(ctx, "1M", &[])?;
        for name in &names {
            store("subsystems", disk::NAME, "fence", name)?;
        }
        let all = json(&well(&["--json", "blk", "list"])?)?;
        let fenced = all[0]["exports"][0]["fenced"]
            .as_array()
            .context("no list")?;
        let fenced: Vec<&str> = fenced.iter().filter_map(|name| name.as_str()).collect();
        ensure!(fenced == names, "{} of {MANY}: {fenced:?}", fenced.len());
        let said = well(&["blk", "list"])?;
        let lines = said
            .lines()
            .filter(|line| line.starts_with("  fenced "))
            .count();
        ensure!(lines == MANY, "{lines} lines");
        well(&["blk", "unexport", disk::NAME])?;
    }
    loaded.end(ctx)
}
