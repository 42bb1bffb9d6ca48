// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk: initiators with auth keys. The roles are those of `blk`.

use super::modules::{add_link, delete_link};
use crate::disk::{
    attr, disconnect, export, kfi, show, store, write_filled, Disk, Loaded, NAME, PORT,
};
use crate::harness::guest::until;
use crate::harness::{Ctx, Test, NETNS, SHM, TWO};
use crate::sys::Map;
use crate::wire::rng::Rng;
use anyhow::{bail, ensure, Context, Result};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("blk.initiator_with_wrong_auth_key_is_refused", auth_keys)
        .seconds(60)
        .on(NETNS | TWO | SHM),
    Test::pair(
        "blk.p03_initiator_disallowed_while_writing_loses_its_keys",
        disallowed,
    )
    .seconds(30)
    .on(NETNS | SHM),
    Test::pair(
        "blk.auth_key_changed_during_device_removal_counts",
        device_goes,
    )
    .seconds(60)
    .on(NETNS),
];

/// Another export at the same port.
const SECOND: &str = "blksecond";
/// Errnos for an initiator that has not proven its auth key, that is fenced, or that has no auth
/// key of the export.
const UNBELIEVED: i32 = libc::EACCES;
const FENCED: i32 = libc::EKEYREVOKED;
const UNPROVEN: i32 = libc::EKEYREJECTED;

/// A file with the auth key of this number.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(number: usize) -> Result<Self> {
        let pid = std::process::id();
        let path = PathBuf::from(format!("/tmp/blk-key-{pid}-{number}"));
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        write!(file, "hex:{}", format!("{number:02x}").repeat(32))?;
        Ok(Self(path))
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn allow(export: &str, client: &str, key: &KeyFile) -> Result<()> {
    kfi(&["allow", export, client, "-k", &key.path()]).map(drop)
}

/// Connects from node 2. Returns the disk's block device.
fn connect(ctx: &Ctx, export: &str, client: &str, key: Option<&KeyFile>) -> Result<PathBuf> {
    let (peer, path) = (ctx.env.peer.to_string(), key.map(KeyFile::path));
    let mut args = vec![
        "connect", &peer, export, "-p", PORT, "-d", export, "-c", client, "-i", "2",
    ];
    args.extend(["--reconnect-delay", "1", "--ctrl-loss-tmo", "2"]);
    args.extend(["--provider", ctx.provider()]);
    if let Some(path) = &path {
        args.extend(["-k", path]);
    }
    Ok(PathBuf::from(kfi(&args)?))
}

/// Checks that a disk connects and works.
fn works(ctx: &Ctx, export: &str, client: &str, key: &KeyFile) -> Result<()> {
    let device = connect(ctx, export, client, Some(key)).with_context(|| client.to_owned())?;
    until("the device's file", Duration::from_secs(5), || {
        Ok(device.exists().then_some(()))
    })?;
    let disk = Disk::open(&device)?;
    write_filled(&disk, &Map::anon(4096)?, 0, 4096, 1)?;
    drop(disk);
    disconnect(export)
}

fn refused(ctx: &Ctx, client: &str, key: Option<&KeyFile>, errno: i32) -> Result<()> {
    let Err(e) = connect(ctx, NAME, client, key) else {
        bail!("{client} is admitted");
    };
    let want = format!("os error {errno})");
    ensure!(format!("{e:#}").contains(&want), "{client}: {e:#}");
    Ok(())
}

/// Connects each initiator with an auth key of its own, at one port; fences one; uses another name.
fn auth_keys(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    let keys: Vec<_> = (0..4).map(KeyFile::new).collect::<Result<_>>()?;
    let [one, other, third, nobody] = &keys[..] else {
        bail!("four keys");
    };
    if ctx.first() {
        export(ctx, "1M", &["--only-allowed"])?;
        allow(NAME, "one", one)?;
        allow(NAME, "other", other)?;
        let shared = allow(NAME, "twin", one).err().context("two have one key")?;
        ensure!(format!("{shared:#}").contains("os error 17)"), "{shared:#}");
        let own = ctx.env.addr.to_string();
        let second = ["export", SECOND, "--size", "1M", "-l", &own, "-p", PORT];
        kfi(&[&second[..], &["--provider", ctx.provider()]].concat())?;
        allow(SECOND, "third", third)?;
        ensure!(show("subsystems", NAME, "allowed_hosts")? == "one\nother");
        ensure!(fs::read(attr("subsystems", NAME, "auth_key")).is_err());
        let none = store("subsystems", NAME, "auth_key", "fifth").err();
        ensure!(none.and_then(|e| e.raw_os_error()) == Some(libc::ENOENT));
        let list = kfi(&["list"])?;
        ensure!(!list.contains("0101"), "an auth key is shown: {list}");
    }
    ctx.barrier("exported")?;
    if !ctx.first() {
        works(ctx, NAME, "one", one)?;
        works(ctx, NAME, "other", other)?;
        works(ctx, SECOND, "third", third)?;
        // Without a key, with an unknown one, with another initiator's, and with the other
        // export's.
        for client in ["one", "stranger"] {
            refused(ctx, client, None, UNPROVEN)?;
            refused(ctx, client, Some(nobody), UNPROVEN)?;
            refused(ctx, client, Some(other), UNBELIEVED)?;
            refused(ctx, client, Some(third), UNBELIEVED)?;
        }
        // The other export admits other initiators, too, if they prove a key that the port
        // requires.
        works(ctx, SECOND, "stranger", one)?;
        ensure!(connect(ctx, SECOND, "third", Some(one)).is_err());
    }
    ctx.barrier("tried")?;
    if ctx.first() {
        kfi(&["fence", NAME, "one"])?;
    }
    ctx.barrier("fenced")?;
    if !ctx.first() {
        refused(ctx, "one", Some(one), FENCED)?;
        for name in ["other", "fresh"] {
            refused(ctx, name, Some(one), UNBELIEVED)?;
            refused(ctx, name, None, UNPROVEN)?;
        }
        works(ctx, NAME, "other", other)?;
    }
    ctx.barrier("still fenced")?;
    if ctx.first() {
        kfi(&["admit", NAME, "one"])?;
        // Another key replaces the first.
        allow(NAME, "one", nobody)?;
    }
    ctx.barrier("admitted")?;
    if !ctx.first() {
        refused(ctx, "one", Some(one), UNPROVEN)?;
        works(ctx, NAME, "one", nobody)?;
    }
    ctx.barrier("done")?;
    if ctx.first() {
        kfi(&["unexport", SECOND])?;
        kfi(&["unexport", NAME])?;
    }
    loaded.end(ctx)
}

/// When the call that disallows an initiator returns, the initiator's keys are revoked.
fn disallowed(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    let key = KeyFile::new(1)?;
    if ctx.first() {
        export(ctx, "1M", &["--only-allowed"])?;
        allow(NAME, NAME, &key)?;
        ctx.barrier("exported")?;
        ctx.barrier("writing")?;
        kfi(&["disallow", NAME, NAME])?;
        let clients = show("subsystems", NAME, "clients")?;
        ensure!(
            clients.lines().all(|line| line.ends_with("keys 0")),
            "{clients}"
        );
        ctx.barrier("disallowed")?;
        ctx.barrier("failed")?;
        kfi(&["unexport", NAME])?;
        return loaded.end(ctx);
    }
    ctx.barrier("exported")?;
    let device = connect(ctx, NAME, NAME, Some(&key))?;
    until("the device's file", Duration::from_secs(5), || {
        Ok(device.exists().then_some(()))
    })?;
    let disk = Disk::open(&device)?;
    let map = Map::anon(256 << 10)?;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut round = 0;
            while write_filled(&disk, &map, 0, 256 << 10, round).is_ok() {
                round += 1;
            }
            round
        });
        std::thread::sleep(Duration::from_millis(300));
        let told = ctx.barrier("writing");
        let told = told.and_then(|()| ctx.barrier("disallowed"));
        let rounds = writer.join().map_err(|_| anyhow::anyhow!("panicked"))?;
        ensure!(rounds > 0, "nothing was written");
        told
    })?;
    ensure!(show("disks", NAME, "state")? == "dead");
    drop(disk);
    disconnect(NAME)?;
    ctx.barrier("failed")?;
    loaded.end(ctx)
}

/// Changes the auth keys of a port while its device is removed, and while it comes back. Afterwards
/// an initiator with the final key is admitted, and one with the other key is refused.
fn device_goes(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: usize = 8;
    const LIMIT: Duration = Duration::from_secs(60);
    let loaded = Loaded::new(ctx)?;
    let keys: Vec<_> = (1..3).map(KeyFile::new).collect::<Result<_>>()?;
    if ctx.first() {
        export(ctx, "1M", &["--only-allowed"])?;
        allow(NAME, "one", &keys[1])?;
    }
    ctx.barrier("exported")?;
    let mut rng = Rng::new(ctx.env.seed);
    for round in 0..ROUNDS {
        let (now, before) = (&keys[round % 2], &keys[(round + 1) % 2]);
        if ctx.first() {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| -> Result<()> {
                let changes = scope.spawn(|| {
                    let mut done = 0;
                    for guest in (0..).map(|i| i % 5) {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        // There may be no device to listen on.
                        let key = format!("guest {}", format!("{:02x}", 3 + guest).repeat(32));
                        let key = if guest == 4 { "guest" } else { &key };
                        done += u64::from(store("subsystems", NAME, "auth_key", key).is_ok());
                    }
                    done
                });
                std::thread::sleep(Duration::from_millis(rng.below(50)));
                let gone = delete_link(ctx);
                std::thread::sleep(Duration::from_millis(rng.below(50)));
                let back = add_link(ctx);
                std::thread::sleep(Duration::from_millis(rng.below(50)));
                stop.store(true, Ordering::Relaxed);
                let done = changes.join().map_err(|_| anyhow::anyhow!("panicked"))?;
                ensure!(done > 0, "nothing was changed");
                gone.and(back)
            })?;
            until("the key is changed", LIMIT, || {
                Ok(allow(NAME, "one", now).ok())
            })?;
            ctx.barrier("changed")?;
        } else {
            ctx.barrier("changed")?;
            until("the disk is admitted", LIMIT, || {
                match connect(ctx, NAME, "one", Some(now)) {
                    Ok(_) => disconnect(NAME).map(Some),
                    Err(_) => Ok(None),
                }
            })?;
            works(ctx, NAME, "one", now)?;
            refused(ctx, "one", Some(before), UNPROVEN)?;
        }
        ctx.barrier("round")?;
    }
    if ctx.first() {
        kfi(&["unexport", NAME])?;
    }
    loaded.end(ctx)
}
