// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cases of kfblk's administration, by one system call in configfs each. This task makes the calls,
//! not `kfi`, because only this task's failures are injected: work queues of connections get none.
//!
//! A failed call is right if everything that configfs shows is unchanged ([`seen`]), and if the
//! same call then succeeds.

use crate::disk::{attr, show, store, sweep, Backing, Disk, NAME, PORT, ROOT};
use crate::fault::lab::{Lab, WAIT};
use crate::fault::sweep::{Case, Run, Shot};
use crate::harness::guest::{load, module_users, until};
use crate::harness::Env;
use crate::raw::{self, CallError};
use crate::sys::{Errno, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The cases.
pub const CASES: &[Case] = &[
    Case::new("blk.make", "subsystem", make_subsystem)
        .amid(module)
        .long(),
    Case::new("blk.make", "port", make_port).amid(module).long(),
    Case::new("blk.make", "disk", make_disk).amid(module).long(),
    Case::new("blk.export", "", export).amid(subsystem).long(),
    Case::new("blk.export_device", "", export)
        .amid(device)
        .long(),
    Case::new("blk.offer", "", offer)
        .amid(port)
        .also(NO_DEVICE)
        .long(),
    Case::new("blk.withdraw", "", withdraw).amid(port).long(),
    Case::new("blk.allow", "", allow).amid(offered).long(),
    Case::new("blk.disallow", "", disallow).amid(offered).long(),
    Case::new("blk.connect", "", connect)
        .amid(disk)
        .also(NO_CONNECTION)
        .long(),
    Case::new("blk.disconnect", "", disconnect)
        .amid(disk)
        .long(),
    Case::new("blk.fence", "", fence).amid(disk).long(),
    Case::new("blk.unexport", "", unexport).amid(disk).long(),
];

/// A device that does not answer is not listed.
const NO_DEVICE: &[i32] = &[libc::ENODATA];

/// The errno of [`NO_DEVICE`]; the network's, if there is no memory for a route; and rxe's, if it
/// cannot get a queue pair's socket.
const NO_CONNECTION: &[i32] = &[libc::ENODATA, libc::ENOBUFS, libc::ENFILE];

/// Bytes that are exported; few, because each page is a place.
const SIZE: usize = 64 << 10;
/// An auth key in hexadecimal digits.
const KEY: &str = "5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e";

fn folder(kind: &str, name: &str) -> PathBuf {
    Path::new(ROOT).join(kind).join(name)
}

fn port_name(env: &Env) -> String {
    format!("{}-{PORT}", env.addr)
}

/// Loads the module, and removes it with everything left in it.
fn module(_: &Env, run: Run<'_>) -> Result<()> {
    load("kfblk")?;
    let ran = run();
    sweep()?;
    ran
}

/// Adds a subsystem to [`module`]'s environment.
fn subsystem(env: &Env, run: Run<'_>) -> Result<()> {
    module(env, &mut || {
        fs::create_dir(folder("subsystems", NAME))?;
        store("subsystems", NAME, "attr_size", &SIZE.to_string())?;
        run()
    })
}

/// Adds a block-backed subsystem.
fn device(env: &Env, run: Run<'_>) -> Result<()> {
    let backing = Backing::null(&[("size", "1")])?;
    let ran = subsystem(env, &mut || {
        let path = backing.path().display().to_string();
        store("subsystems", NAME, "device_path", &path)?;
        run()
    });
    backing.end()?;
    ran
}

/// Adds an enabled export, and a port for it.
fn port(env: &Env, run: Run<'_>) -> Result<()> {
    subsystem(env, &mut || {
        store("subsystems", NAME, "enable", "1")?;
        let name = port_name(env);
        fs::create_dir(folder("ports", &name))?;
        store("ports", &name, "addr_trtype", &env.provider)?;
        store("ports", &name, "addr_traddr", &env.addr.to_string())?;
        store("ports", &name, "addr_trsvcid", PORT)?;
        run()
    })
}

/// Adds the export to the port.
fn offered(env: &Env, run: Run<'_>) -> Result<()> {
    port(env, &mut || {
        symlink(folder("subsystems", NAME), link(env))?;
        run()
    })
}

/// Adds a disk that can connect to the export.
fn disk(env: &Env, run: Run<'_>) -> Result<()> {
    offered(env, &mut || {
        fs::create_dir(folder("disks", NAME))?;
        let addr = env.addr.to_string();
        for (what, value) in [
            ("addr_trtype", env.provider.as_str()),
            ("addr_traddr", &addr),
            ("addr_trsvcid", PORT),
            ("subsystem", NAME),
            ("client", NAME),
            ("nr_io_queues", "1"),
            ("ctrl_loss_tmo", "0"),
        ] {
            store("disks", NAME, what, value)?;
        }
        run()
    })
}

/// Returns the link of the export at the port.
fn link(env: &Env) -> PathBuf {
    attr("ports", &port_name(env), "subsystems").join(NAME)
}

/// Reads everything in configfs except initiators, which come and go by themselves, and statistics,
/// which count that; the names of the disks; and the use counts of our modules.
fn seen() -> Result<BTreeMap<PathBuf, String>> {
    let mut all = BTreeMap::new();
    let mut rest = vec![PathBuf::from(ROOT)];
    while let Some(at) = rest.pop() {
        for entry in fs::read_dir(&at)? {
            let (entry, path) = entry.map(|entry| (entry.file_type(), entry.path()))?;
            if entry?.is_dir() {
                rest.push(path.clone());
            } else if ["clients", "statistics", "all_statistics"]
                .iter()
                .any(|name| path.ends_with(name))
            {
                continue;
            }
            let text = match fs::symlink_metadata(&path)?.is_file() {
                true => fs::read_to_string(&path).unwrap_or_default(),
                false => String::new(),
            };
            all.insert(path, text);
        }
    }
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        if name.to_string_lossy().starts_with("kfblk") {
            all.insert(name.into(), String::new());
        }
    }
    for name in ["kfabric", "kverbs"] {
        all.insert(name.into(), format!("{:?}", module_users(name)));
    }
    Ok(all)
}

/// Waits until everything is unchanged; connections end a moment later.
fn as_before(before: &BTreeMap<PathBuf, String>) -> Result<()> {
    let mut now = BTreeMap::new();
    until("all is as it was", Duration::from_secs(5), || {
        now = seen()?;
        Ok((now == *before).then_some(()))
    })
    .with_context(|| {
        let other = |a: &BTreeMap<_, _>, b: &BTreeMap<_, _>| -> Vec<String> {
            a.iter()
                .filter(|(k, v)| b.get(*k) != Some(*v))
                .map(|(k, v): (&PathBuf, &String)| format!("{}: {}", k.display(), v.trim()))
                .collect()
        };
        format!(
            "before: {:?}; now: {:?}",
            other(before, &now),
            other(&now, before)
        )
    })
}

/// Makes the call; if it fails, nothing must have changed, and a second call must succeed.
fn call(shot: &mut Shot<'_>, mut f: impl FnMut() -> raw::Result<()>) -> Result<()> {
    let before = seen()?;
    let Err(errno) = shot.once(&mut f)? else {
        return Ok(());
    };
    as_before(&before).with_context(|| format!("{errno} changed something"))?;
    f().with_context(|| format!("again, after {errno}"))
}

/// Converts the result of a system call.
fn told(call: &'static str, answer: io::Result<()>) -> raw::Result<()> {
    answer.map_err(|e| CallError {
        call,
        errno: Errno(e.raw_os_error().unwrap_or(0)),
    })
}

/// Writes to an attribute that was opened before, because the open is not kfblk's code.
fn write(
    shot: &mut Shot<'_>,
    kind: &str,
    name: &str,
    what: &'static str,
    text: &str,
) -> Result<()> {
    let path = attr(kind, name, what);
    let file = File::options().write(true).open(&path).context(what)?;
    call(shot, || told(what, (&file).write_all(text.as_bytes())))
}

fn make(shot: &mut Shot<'_>, kind: &str) -> Result<()> {
    let at = folder(kind, NAME);
    call(shot, || told("mkdir", fs::create_dir(&at)))?;
    Ok(fs::remove_dir(&at)?)
}

fn make_subsystem(_: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    make(shot, "subsystems")
}

fn make_port(_: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    make(shot, "ports")
}

fn make_disk(_: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    make(shot, "disks")
}

fn export(_: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    write(shot, "subsystems", NAME, "enable", "1")?;
    ensure!(show("subsystems", NAME, "enable")? == "1", "it is not");
    Ok(store("subsystems", NAME, "enable", "0")?)
}

fn offer(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let (to, at) = (folder("subsystems", NAME), link(&lab.env));
    call(shot, || told("symlink", symlink(&to, &at)))?;
    ensure!(knock(lab)? == 0, "the port does not listen");
    Ok(fs::remove_file(&at)?)
}

fn withdraw(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let at = link(&lab.env);
    symlink(folder("subsystems", NAME), &at)?;
    call(shot, || told("unlink", fs::remove_file(&at)))?;
    ensure!(knock(lab)? == libc::ECONNREFUSED, "the port listens");
    Ok(())
}

/// Requests a connection at the port, without an auth key. Returns the errno of the rejection.
fn knock(lab: &Lab) -> Result<i32> {
    let ep = lab.enabled(0)?;
    let addr = SocketAddr::new(lab.env.addr, PORT.parse()?);
    lab.dev.connect(ep, addr, &[])?;
    let event = lab.dev.eq_wait(&lab.eq, WAIT)?;
    lab.dev.close(ep)?;
    // A shutdown may have been reported too.
    while lab.dev.eq_read(lab.eq.handle, 0).is_ok() {}
    Ok(match event.raw.event {
        KFI_CONNECTED => 0,
        _ => event.raw.err as i32,
    })
}

/// Waits until the port answers with `errno`: it listens again by itself.
fn answers(lab: &Lab, errno: i32) -> Result<()> {
    until("the port's answer", WAIT, || {
        Ok((knock(lab)? == errno).then_some(()))
    })
}

fn allow(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let text = format!("{NAME} {KEY}");
    write(shot, "subsystems", NAME, "auth_key", &text)?;
    ensure!(show("subsystems", NAME, "allowed_hosts")? == NAME);
    answers(lab, libc::EKEYREJECTED)?;
    store("subsystems", NAME, "auth_key", NAME)?;
    answers(lab, 0)
}

fn disallow(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    store("subsystems", NAME, "auth_key", &format!("{NAME} {KEY}"))?;
    write(shot, "subsystems", NAME, "auth_key", NAME)?;
    ensure!(show("subsystems", NAME, "allowed_hosts")?.is_empty());
    answers(lab, 0)
}

/// Checks that the disk works. A disk whose device file could not be created has none.
fn works(shot: &Shot<'_>) -> Result<()> {
    ensure!(show("disks", NAME, "state")? == "live", "it is not live");
    let path = Path::new("/dev").join(show("disks", NAME, "device")?);
    if shot.hit() && !path.exists() {
        return Ok(());
    }
    let disk = Disk::open(&path)?;
    ensure!(disk.size == SIZE, "{} bytes", disk.size);
    Ok(disk.write(0, &Map::anon(4096)?, 4096)?)
}

/// Checks that no initiator is connected.
fn alone() -> Result<()> {
    until("no client is left", WAIT, || {
        Ok(show("subsystems", NAME, "clients")?
            .is_empty()
            .then_some(()))
    })
}

fn connect(_: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    write(shot, "disks", NAME, "enable", "1")?;
    works(shot)?;
    store("disks", NAME, "enable", "0")?;
    alone()
}

fn disconnect(_: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    store("disks", NAME, "enable", "1")?;
    write(shot, "disks", NAME, "enable", "0")?;
    ensure!(show("disks", NAME, "state")? == "idle", "it is there");
    alone()
}

/// Checks that a disk fails whose connection was ended for good.
fn dies() -> Result<()> {
    until("the disk is dead", WAIT, || {
        Ok((show("disks", NAME, "state")? == "dead").then_some(()))
    })?;
    store("disks", NAME, "enable", "0")?;
    alone()
}

fn fence(_: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    store("disks", NAME, "enable", "1")?;
    write(shot, "subsystems", NAME, "fence", NAME)?;
    ensure!(show("subsystems", NAME, "fence")? == NAME, "it is not");
    dies()?;
    Ok(store("subsystems", NAME, "admit", NAME)?)
}

fn unexport(_: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    store("disks", NAME, "enable", "1")?;
    write(shot, "subsystems", NAME, "enable", "0")?;
    ensure!(show("subsystems", NAME, "enable")? == "0", "it is");
    dies()?;
    Ok(store("subsystems", NAME, "enable", "1")?)
}
