// SPDX-License-Identifier: MIT OR Apache-2.0

//! `kfi doctor`: planted faults are found, and the printed commands mend them where a guest has the
//! program. A finding that no command mends has a command that shows more.

use super::authd::{once, Rig};
use super::programs::{json, kfi};
use crate::harness::caps::IB_TRANSPORT;
use crate::harness::guest::{load, run, unload};
use crate::harness::{Ctx, Test, NETNS, ONE};
use anyhow::{ensure, Context, Result};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("doctor.host_that_works_has_no_finding", |c| once(c, well)).on(ONE),
    Test::alone("doctor.module_missing_is_found_and_mended", |c| {
        once(c, module)
    })
    .on(ONE),
    Test::alone("doctor.host_after_boot_has_no_finding", |c| once(c, boot)).on(ONE),
    Test::alone("doctor.module_of_another_build_is_found_and_mended", |c| {
        once(c, version)
    })
    .on(ONE),
    Test::alone("doctor.device_of_another_group_is_found_and_mended", |c| {
        once(c, group)
    })
    .on(ONE),
    Test::alone("doctor.memlock_of_zero_is_found", |c| once(c, memlock)).on(ONE),
    Test::alone("doctor.link_down_is_found_and_mended", |c| once(c, link)).on(ONE),
    Test::alone("doctor.queue_that_drops_is_found_and_mended", |c| {
        once(c, queue)
    })
    .on(ONE),
    Test::alone("doctor.agent_down_is_found", |c| once(c, agent)).on(ONE),
    Test::pair("doctor.path_that_works_has_no_finding", good_path).on(NETNS),
    Test::pair("doctor.mtu_of_peer_smaller_is_found_and_mended", mtu).on(NETNS),
    Test::pair(
        "doctor.mtu_of_peer_that_takes_our_packets_is_no_finding",
        mtu_enough,
    )
    .on(NETNS),
    Test::pair("doctor.grant_missing_does_not_blame_the_peer", grant).on(NETNS),
    Test::pair("doctor.port_closed_is_found", port)
        .on(NETNS)
        .needs(IB_TRANSPORT),
    Test::pair("doctor.route_missing_is_found_and_mended", route).on(NETNS),
    Test::pair("doctor.route_to_far_peer_missing_is_found", far).on(NETNS),
];

const DEVICE: &str = "/dev/kfabric";

/// While the value exists, the device belongs to the group rdma, as the udev rule makes it.
struct Ruled;

impl Ruled {
    fn new() -> Result<Self> {
        run("chgrp", &["rdma", DEVICE])?;
        run("chmod", &["660", DEVICE])?;
        Ok(Self)
    }
}

impl Drop for Ruled {
    fn drop(&mut self) {
        let _ = run("chgrp", &["root", DEVICE]);
        let _ = run("chmod", &["660", DEVICE]);
    }
}

/// Stand-ins for programs, found before the guest's own.
struct Programs(PathBuf);

impl Programs {
    fn new(programs: &[(&str, &str)]) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("doctor.{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        for (name, text) in programs {
            let path = folder.join(name);
            fs::write(&path, text)?;
            fs::set_permissions(path, Permissions::from_mode(0o755))?;
        }
        Ok(Self(folder))
    }

    fn path(&self) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        format!("{}:{path}", self.0.display())
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the doctor by `command`, and returns its warnings and errors.
fn findings(command: &mut Command) -> Result<Vec<Value>> {
    let out = command.stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let said = json(&text)?;
    let all = said.first().and_then(Value::as_array);
    let all = all.with_context(|| format!("{out:?}"))?;
    let is_bad = |finding: &&Value| finding["level"] == "warning" || finding["level"] == "error";
    let bad: Vec<Value> = all.iter().filter(is_bad).cloned().collect();
    let wanted = i32::from(!bad.is_empty());
    ensure!(out.status.code() == Some(wanted), "{}: {text}", out.status);
    Ok(bad)
}

fn doctor(args: &[&str]) -> Result<Vec<Value>> {
    findings(Command::new("kfi").args(["--json", "doctor"]).args(args))
}

/// Returns the command that mends the only finding, which `check` made.
fn only(found: &[Value], check: &str) -> Result<String> {
    sole(found, check, "mend")
}

/// Returns the command that shows more about the only finding, which `check` made.
fn shown(found: &[Value], check: &str) -> Result<String> {
    sole(found, check, "check_command")
}

fn sole(found: &[Value], check: &str, kind: &str) -> Result<String> {
    ensure!(found.len() == 1 && found[0]["check"] == check, "{found:?}");
    let command = found[0][kind].as_str();
    Ok(command
        .with_context(|| format!("no {kind} in {found:?}"))?
        .to_owned())
}

/// Runs a command that the doctor printed.
fn mend(command: &str) -> Result<()> {
    run("sh", &["-ec", command]).map(drop)
}

fn none(found: &[Value]) -> Result<()> {
    ensure!(found.is_empty(), "{found:?}");
    Ok(())
}

fn well(_: &mut Ctx) -> Result<()> {
    let _ruled = Ruled::new()?;
    none(&doctor(&[])?)?;
    let text = kfi(&["doctor"])?;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for check in [
        "module", "version", "device", "memlock", "port", "queue", "auth",
    ] {
        let ok = text
            .lines()
            .any(|line| line.starts_with(&format!("ok       {check:<8} ")));
        ensure!(ok, "{check} is not ok: {text}");
    }
    Ok(())
}

/// Loads modules from the guest's folder, or removes modules, as `modprobe` does with installed ones.
const MODPROBE: &str = "\
#!/bin/sh -e
load() {
    if [ -e /sys/module/$1 ]; then return; fi
    if [ $1 != kfabric ]; then load kfabric; fi
    insmod /kfi/ko/$1.ko $([ $1 = kverbs ] && echo iwarp=1)
}
how=load
for arg; do
    case $arg in
    -r) how=rmmod ;;
    -a) how=load ;;
    *) $how $arg ;;
    esac
done
";

/// Runs a command that the doctor printed, with the guest's modules for `modprobe`.
fn mend_by_modprobe(command: &str) -> Result<()> {
    let programs = Programs::new(&[("modprobe", MODPROBE)])?;
    let mut shell = Command::new("sh");
    let out = shell
        .args(["-ec", command])
        .env("PATH", programs.path())
        .stdin(Stdio::null())
        .output()?;
    ensure!(out.status.success(), "{command}: {out:?}");
    Ok(())
}

fn module(_: &mut Ctx) -> Result<()> {
    let _ruled = Ruled::new()?;
    unload("kshm")?;
    let found = doctor(&[]).and_then(|found| only(&found, "module"));
    let mended = found.and_then(|command| mend_by_modprobe(&command));
    if mended.is_err() {
        load("kshm")?;
    }
    mended?;
    none(&doctor(&[])?)
}

/// Returns what the doctor finds if `modinfo` prints the path of `file`, or fails without a file.
fn with_modinfo(file: Option<&str>) -> Result<Vec<Value>> {
    let command = file.map_or("exit 1".to_owned(), |file| format!("echo /kfi/ko/{file}"));
    let programs = Programs::new(&[("modinfo", &format!("#!/bin/sh\n{command}\n"))])?;
    let mut doctor = Command::new("kfi");
    findings(
        doctor
            .args(["--json", "doctor"])
            .env("PATH", programs.path()),
    )
}

/// While the value exists, no module of kfabric is loaded.
struct Unloaded(Vec<&'static str>);

impl Unloaded {
    fn new() -> Result<Self> {
        let mut unloaded = Self(Vec::new());
        for name in ["kfblk", "kverbs", "kshm", "kfabric"] {
            if Path::new("/sys/module").join(name).is_dir() {
                unload(name)?;
                unloaded.0.push(name);
            }
        }
        Ok(unloaded)
    }
}

impl Drop for Unloaded {
    fn drop(&mut self) {
        // A static node is not the kernel's.
        let _ = fs::remove_file(DEVICE);
        for name in self.0.iter().rev() {
            let _ = load(name);
        }
    }
}

fn boot(_: &mut Ctx) -> Result<()> {
    let _unloaded = Unloaded::new()?;
    let command = only(&with_modinfo(Some("$2.ko"))?, "module")?;
    ensure!(command == "modprobe kfabric", "{command}");
    // systemd makes the node from the module's alias.
    run("mknod", &["-m", "660", DEVICE, "c", "10", "250"])?;
    run("chgrp", &["rdma", DEVICE])?;
    none(&with_modinfo(Some("$2.ko"))?)?;
    let command = only(&with_modinfo(None)?, "module")?;
    ensure!(command.starts_with("apt install "), "{command}");
    Ok(())
}

fn version(_: &mut Ctx) -> Result<()> {
    let _ruled = Ruled::new()?;
    // All modules but kfabric itself differ from its file.
    let command = only(&with_modinfo(Some("kfabric.ko"))?, "version")?;
    ensure!(command.starts_with("modprobe -r "), "{command}");
    mend_by_modprobe(&command)?;
    let _ruled = Ruled::new()?;
    none(&with_modinfo(Some("$2.ko"))?)
}

/// Runs the doctor as an ordinary user of the group rdma.
fn as_user(memlock: &str) -> Result<Vec<Value>> {
    let text = run("getent", &["group", "rdma"])?;
    let gid = text.split(':').nth(2).context("no group rdma")?.to_owned();
    let limit = format!("--memlock={memlock}");
    let mut command = Command::new("prlimit");
    command.args([&*limit, "setpriv", "--reuid=65534", "--regid=65534"]);
    command.args([&*format!("--groups={gid}"), "kfi", "--json", "doctor"]);
    findings(&mut command)
}

fn group(_: &mut Ctx) -> Result<()> {
    let _ruled = Ruled::new()?;
    none(&as_user("unlimited")?)?;
    run("chgrp", &["root", DEVICE])?;
    let command = only(&as_user("unlimited")?, "device")?;
    mend(&command)?;
    none(&as_user("unlimited")?)
}

fn memlock(_: &mut Ctx) -> Result<()> {
    let _ruled = Ruled::new()?;
    let command = only(&as_user("0")?, "memlock")?;
    // The limit is one of sessions, and a guest has none.
    let file = Path::new("/etc/security/limits.d/kfabric.conf");
    let folder = file.parent().context("no folder")?;
    fs::create_dir_all(folder)?;
    // The line of another user stays.
    fs::write(file, "alice - memlock unlimited\n")?;
    mend(&command)?;
    let text = fs::read_to_string(file)?;
    fs::remove_file(file)?;
    let wanted = "alice - memlock unlimited\nnobody - memlock unlimited\n";
    ensure!(text == wanted, "{text:?}");
    none(&as_user("unlimited")?)
}

/// A network device with an address, and an RDMA device on it.
struct Spare;

impl Spare {
    fn new() -> Result<Self> {
        let spare = Self;
        for line in [
            "ip link add kfi9 mtu 1500 numtxqueues 4 type dummy",
            "ip address add 192.0.2.1/24 dev kfi9",
            "ip link set kfi9 up",
            "rdma link add rxe9 type rxe netdev kfi9",
        ] {
            mend(line)?;
        }
        Ok(spare)
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        let _ = run("rdma", &["link", "delete", "rxe9"]);
        let _ = run("ip", &["link", "delete", "kfi9"]);
    }
}

fn link(_: &mut Ctx) -> Result<()> {
    let (_ruled, _spare) = (Ruled::new()?, Spare::new()?);
    none(&doctor(&[])?)?;
    run("ip", &["link", "set", "kfi9", "down"])?;
    let command = only(&doctor(&[])?, "port")?;
    mend(&command)?;
    none(&doctor(&[])?)
}

fn queue(_: &mut Ctx) -> Result<()> {
    let (_ruled, _spare) = (Ruled::new()?, Spare::new()?);
    for spec in ["fq_codel", "pfifo limit 10"] {
        mend(&format!("tc qdisc replace dev kfi9 root {spec}"))?;
        let command = only(&doctor(&[])?, "queue")?;
        mend(&command)?;
        none(&doctor(&[])?)?;
    }
    // The queues of a card stay several.
    mend("tc qdisc replace dev kfi9 root handle 2: mq")?;
    mend("tc qdisc replace dev kfi9 parent 2:3 fq_codel")?;
    let command = only(&doctor(&[])?, "queue")?;
    mend(&command)?;
    none(&doctor(&[])?)?;
    let text = run("tc", &["qdisc", "show", "dev", "kfi9"])?;
    let queues = text.matches("pfifo").count();
    ensure!(queues == 4 && text.contains("qdisc mq 1: root"), "{text}");
    Ok(())
}

fn agent(_: &mut Ctx) -> Result<()> {
    let _ruled = Ruled::new()?;
    let mut rig = Rig::new()?;
    let command = only(&doctor(&[])?, "auth")?;
    ensure!(command == "systemctl start kfi-authd", "{command}");
    rig.policy("")?;
    rig.start()?;
    none(&doctor(&[])?)
}

/// On the first node, `test` with the peer's address; the second waits.
fn first(ctx: &mut Ctx, test: impl FnOnce(&str) -> Result<()>) -> Result<()> {
    let peer = ctx.env.peer.to_string();
    let ended = if ctx.first() { test(&peer) } else { Ok(()) };
    ctx.barrier("looked")?;
    ended
}

/// The warnings and errors of the checks of the path.
fn on_path(peer: &str) -> Result<Vec<Value>> {
    let _ruled = Ruled::new()?;
    doctor(&["--peer", peer, "--timeout", "3"])
}

fn good_path(ctx: &mut Ctx) -> Result<()> {
    first(ctx, |peer| none(&on_path(peer)?))
}

/// Sets the MTU of a node's device until it is dropped.
struct Mtu(String);

impl Mtu {
    fn set(netdev: &str, mtu: &str) -> Result<Self> {
        run("ip", &["link", "set", netdev, "mtu", mtu])?;
        Ok(Self(netdev.to_owned()))
    }
}

impl Drop for Mtu {
    fn drop(&mut self) {
        let _ = run("ip", &["link", "set", &self.0, "mtu", "4400"]);
    }
}

fn mtu(ctx: &mut Ctx) -> Result<()> {
    let netdev = ctx.env.netdev.clone();
    let _short = match ctx.first() {
        true => None,
        false => Some(Mtu::set(&netdev, "1500")?),
    };
    ctx.barrier("unequal")?;
    first(ctx, |peer| {
        let command = only(&on_path(peer)?, "mtu")?;
        let _as_before = Mtu(netdev.clone());
        ensure!(
            command == format!("ip link set {netdev} mtu 1500"),
            "{command}"
        );
        mend(&command)?;
        none(&on_path(peer)?)
    })
}

/// A path of 1,450 bytes is too short for the device's packets, but soft-RoCE sends 1,104.
fn mtu_enough(ctx: &mut Ctx) -> Result<()> {
    let netdev = ctx.env.netdev.clone();
    let _short = Mtu::set(&netdev, if ctx.first() { "1500" } else { "1450" })?;
    ctx.barrier("unequal")?;
    first(ctx, |peer| none(&on_path(peer)?))
}

/// Requires grants until it is dropped.
struct Enforced;

impl Enforced {
    fn new() -> Result<Self> {
        run("kfi", &["auth", "mode", "enforce"])?;
        Ok(Self)
    }
}

impl Drop for Enforced {
    fn drop(&mut self) {
        let _ = run("kfi", &["auth", "mode", "open"]);
    }
}

fn grant(ctx: &mut Ctx) -> Result<()> {
    first(ctx, |peer| {
        let _enforced = Enforced::new()?;
        // The agent is missing; the path is good.
        only(&on_path(peer)?, "auth").map(drop)
    })
}

/// Drops what arrives at the port of RoCE v2 until it is dropped, as a firewall does.
struct Closed(String);

impl Closed {
    fn new(netdev: &str) -> Result<Self> {
        mend(&format!("tc qdisc add dev {netdev} ingress"))?;
        let closed = Self(netdev.to_owned());
        mend(&format!(
            "tc filter add dev {netdev} parent ffff: protocol ip u32 match ip protocol 17 0xff \
             match ip dport 4791 0xffff action drop"
        ))?;
        Ok(closed)
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        let _ = run("tc", &["qdisc", "delete", "dev", &self.0, "ingress"]);
    }
}

fn port(ctx: &mut Ctx) -> Result<()> {
    let netdev = ctx.env.netdev.clone();
    let closed = match ctx.first() {
        true => None,
        false => Some(Closed::new(&netdev)?),
    };
    ctx.barrier("closed")?;
    first(ctx, |peer| {
        let command = shown(&on_path(peer)?, "connect")?;
        ensure!(command.starts_with("nft list ruleset "), "{command}");
        Ok(())
    })?;
    drop(closed);
    ctx.barrier("opened")?;
    first(ctx, |peer| none(&on_path(peer)?))
}

fn route(ctx: &mut Ctx) -> Result<()> {
    first(ctx, |peer| {
        let text = run("ip", &["-4", "route", "show", "scope", "link"])?;
        let line = text.lines().next().context("no route")?;
        let network = line.split_whitespace().next().context("no network")?;
        run("ip", &["route", "delete", network])?;
        let mended = on_path(peer)
            .and_then(|found| only(&found, "route"))
            .and_then(|command| mend(&command));
        if mended.is_err() {
            let words: Vec<&str> = line.split_whitespace().collect();
            run("ip", &[&["route", "replace"], &*words].concat())?;
        }
        mended?;
        none(&on_path(peer)?)
    })
}

fn far(ctx: &mut Ctx) -> Result<()> {
    const FAR: &str = "10.88.0.2";
    let netdev = ctx.env.netdev.clone();
    let how = |what: &str| mend(&format!("ip address {what} {FAR}/32 dev {netdev}"));
    if !ctx.first() {
        how("add")?;
    }
    ctx.barrier("has an address")?;
    let ended = first(ctx, |_| {
        // The doctor cannot know whether a router is between the hosts.
        let command = shown(&on_path(FAR)?, "route")?;
        ensure!(command.starts_with("ip route show "), "{command}");
        run("ip", &["route", "add", FAR, "dev", &netdev])?;
        let found = on_path(FAR);
        run("ip", &["route", "delete", FAR])?;
        none(&found?)
    });
    if !ctx.first() {
        how("delete")?;
    }
    ended
}
