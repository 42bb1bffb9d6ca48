// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi blk`: remote block devices, by kfblk's folders in configfs.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use kfauth::AuthKey;
use serde::Serialize;

use super::{print, print_json};
use crate::ending::{wait_if_ending, OnSignal};
use crate::error::{Failure, OnFile, Result};
use crate::say::printable;

/// Where kfblk is in configfs.
const ROOT: &str = "/sys/kernel/config/kfblk";
/// The port that is used where none is said.
const PORT: u16 = 4421;

/// Options of `kfi blk`.
#[derive(Debug, Args)]
pub struct Blk {
    /// What to do
    #[command(subcommand)]
    pub what: What,
}

/// What `kfi blk` can do.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Export memory of this host, or a block device
    Export(ExportArgs),
    /// Take an export back: its clients lose it, and its contents are gone
    Unexport(NameArgs),
    /// Make a block device of another host's export, and print its name
    Connect(ConnectArgs),
    /// Show exports, their clients, and disks
    List,
    /// Remove a disk
    Disconnect(DiskArgs),
    /// Take a client's keys: nothing of it lands when this returns, and it is not let in again
    Fence(FenceArgs),
    /// Let a fenced client in again
    Admit(FenceArgs),
    /// Look how large an exported device is now, and tell its clients
    Resize(NameArgs),
    /// Give a client an auth key, with which alone it is let in from now on
    Allow(AllowArgs),
    /// Take it away again
    Disallow(FenceArgs),
}

/// Options of `kfi blk export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Its name
    pub name: String,
    /// So many bytes of memory, such as 64M
    #[arg(short, long, required_unless_present = "device")]
    pub size: Option<String>,
    /// This block device, for which nobody else has a use
    #[arg(short, long, value_name = "PATH", conflicts_with = "size")]
    pub device: Option<String>,
    /// What the device is known by: clients do not go on with one of another UUID
    #[arg(long, requires = "device")]
    pub uuid: Option<String>,
    /// Nobody may write
    #[arg(short, long)]
    pub read_only: bool,
    /// Only clients with an auth key, which `kfi blk allow` gives them, are let in
    #[arg(short, long)]
    pub only_allowed: bool,
    /// The address to offer it at
    #[arg(short, long, value_name = "ADDRESS")]
    pub listen: String,
    /// The port
    #[arg(short, long, default_value_t = PORT)]
    pub port: u16,
    /// By this provider
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
}

/// An export.
#[derive(Debug, Args)]
pub struct NameArgs {
    /// Its name
    pub name: String,
}

/// Options of `kfi blk connect`.
#[derive(Debug, Args)]
pub struct ConnectArgs {
    /// The other host's address
    pub address: String,
    /// The export's name
    pub name: String,
    /// The port
    #[arg(short, long, default_value_t = PORT)]
    pub port: u16,
    /// By this provider
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// What the disk is called here; the export's name if nothing is said
    #[arg(short, long, value_name = "NAME")]
    pub disk: Option<String>,
    /// Who we say we are; the host's name if nothing is said
    #[arg(short, long, value_name = "NAME")]
    pub client: Option<String>,
    /// The auth key in this file, as its bytes or as `hex:` and digits, which proves that; - is standard
    /// input
    #[arg(short = 'k', long, value_name = "FILE")]
    pub auth_key_file: Option<PathBuf>,
    /// Connections, each with a queue
    #[arg(short = 'i', long, value_name = "COUNT")]
    pub nr_io_queues: Option<u16>,
    /// Seconds after which a lost connection is given up; -1: never
    #[arg(short = 'l', long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub ctrl_loss_tmo: Option<i32>,
    /// Seconds after which requests fail while a lost connection is made again; -1: they wait
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub fast_io_fail_tmo: Option<i32>,
    /// Seconds between two tries to connect again
    #[arg(long, value_name = "SECONDS")]
    pub reconnect_delay: Option<u32>,
}

/// A disk.
#[derive(Debug, Args)]
pub struct DiskArgs {
    /// What it is called, here or in /dev
    pub disk: String,
}

/// A client of an export.
#[derive(Debug, Args)]
pub struct FenceArgs {
    /// The export
    pub name: String,
    /// The client
    pub client: String,
}

/// A client of an export, and its auth key.
#[derive(Debug, Args)]
pub struct AllowArgs {
    /// The export
    pub name: String,
    /// The client
    pub client: String,
    /// The auth key in this file, as its bytes or as `hex:` and digits; - is standard input
    #[arg(short = 'k', long, value_name = "FILE")]
    pub auth_key_file: PathBuf,
}

#[derive(Debug, Serialize)]
struct Export {
    name: String,
    device: String,
    size: u64,
    read_only: bool,
    enabled: bool,
    only_allowed: bool,
    clients: Vec<String>,
    allowed: Vec<String>,
    fenced: Vec<String>,
    /// Whether the three lists are.
    complete: bool,
}

#[derive(Debug, Serialize)]
struct Disk {
    name: String,
    device: String,
    state: String,
    address: String,
    port: String,
    subsystem: String,
}

#[derive(Debug, Serialize)]
struct All {
    exports: Vec<Export>,
    disks: Vec<Disk>,
}

/// Runs `kfi blk`.
///
/// # Errors
///
/// What went wrong, with the file that said so.
pub fn run(args: &Blk, json: bool) -> Result<()> {
    if !Path::new(ROOT).is_dir() {
        return Err(Failure::Io {
            what: format!("{ROOT} is not there; load kfblk, and mount configfs"),
            source: io::ErrorKind::NotFound.into(),
        });
    }
    let done = act(&args.what, json);
    if done.is_err() {
        // The parent is to see which signal it was.
        wait_if_ending();
    }
    done
}

fn act(what: &What, json: bool) -> Result<()> {
    match what {
        What::Export(args) => export(args),
        What::Unexport(args) => unexport(&args.name),
        What::Connect(args) => connect(args, json),
        What::List => list(json),
        What::Disconnect(args) => disconnect(&args.disk),
        What::Fence(args) => of_client(args, "fence"),
        What::Resize(args) => set(&exported(&args.name)?, "revalidate_size", "1"),
        What::Admit(args) => of_client(args, "admit"),
        What::Allow(args) => {
            let client = client(&args.client)?;
            set_key(&exported(&args.name)?, Some(client), &args.auth_key_file)
        }
        What::Disallow(args) => of_client(args, "auth_key"),
    }
}

/// A name that is one folder's, and no path.
fn name(name: &str) -> Result<&str> {
    let bad = matches!(name, "" | "." | "..") || name.contains(['/', '\0']) || name.len() > 255;
    match bad {
        true => Err(Failure::Usage(format!("{name:?} is not a name"))),
        false => Ok(name),
    }
}

/// A name that is one word of an attribute.
fn client(client: &str) -> Result<&str> {
    if client.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(Failure::Usage(format!("{client:?} is not a name")));
    }
    name(client)
}

/// The folder of this name, which may be there or not.
fn folder(kind: &str, called: &str) -> Result<PathBuf> {
    Ok(Path::new(ROOT).join(kind).join(name(called)?))
}

/// The folder of an export.
fn exported(called: &str) -> Result<PathBuf> {
    let folder = folder("subsystems", called)?;
    match folder.is_dir() {
        true => Ok(folder),
        false => Err(Failure::Io {
            what: format!("no export is {called:?}"),
            source: io::ErrorKind::NotFound.into(),
        }),
    }
}

/// Writes a client's name to an attribute of an export.
fn of_client(args: &FenceArgs, attr: &str) -> Result<()> {
    let client = client(&args.client)?;
    set(&exported(&args.name)?, attr, client)
}

/// Writes an attribute that is there, in one call, which a signal may end.
fn write(path: &Path, value: &[u8]) -> io::Result<()> {
    let mut file = fs::File::options().write(true).open(path)?;
    match file.write(value)? {
        len if len == value.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

fn set(folder: &Path, attr: &str, value: &str) -> Result<()> {
    let path = folder.join(attr);
    write(&path, value.as_bytes()).on_file(&format!("write {value:?} to"), &path)
}

/// Sets the auth key of a disk, or of an export's client, without anybody seeing it.
fn set_key(folder: &Path, client: Option<&str>, file: &Path) -> Result<()> {
    let key = match file == Path::new("-") {
        true => AuthKey::from_reader(io::stdin().lock())?,
        false => AuthKey::from_file(file)?,
    };
    let mut text = key.expose_hex();
    if let Some(client) = client {
        text.insert(0, ' ');
        text.insert_str(0, client);
    }
    let path = folder.join("auth_key");
    write(&path, text.as_bytes()).on_file("write to", &path)
}

fn get(folder: &Path, attr: &str) -> Result<String> {
    let path = folder.join(attr);
    Ok(fs::read_to_string(&path)
        .on_file("read", &path)?
        .trim()
        .to_owned())
}

/// A list: by the attribute that has all of it, or by `attr`, which ends with a page, of an older
/// module. Whether it is complete.
fn lines(folder: &Path, all: &str, attr: &str) -> Result<(Vec<String>, bool)> {
    let path = folder.join(all);
    let text = match fs::read_to_string(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => get(folder, attr)?,
        text => text.on_file("read", &path)?,
    };
    Ok(listed(&text))
}

/// The lines of a list, and whether there are no more.
fn listed(text: &str) -> (Vec<String>, bool) {
    let lines = text.lines().filter(|line| !line.is_empty());
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    // No client's name is like that.
    let more = lines.last().is_some_and(|last| last == "...");
    if more {
        lines.pop();
    }
    (lines, !more)
}

/// What is in a folder, in order.
fn names(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).on_file("read", folder)? {
        let entry = entry.on_file("read", folder)?;
        if entry
            .file_type()
            .is_ok_and(|t| t.is_dir() || t.is_symlink())
        {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found.sort();
    Ok(found)
}

/// Makes a folder and has `fill` fill it; if that fails, or a signal ends it, the folder goes again.
fn make(folder: &Path, fill: impl FnOnce() -> Result<()>) -> Result<()> {
    let filled = Arc::new(AtomicBool::new(false));
    let (gone, done) = (folder.to_owned(), filled.clone());
    let made = OnSignal::making(
        || fs::create_dir(folder),
        move || {
            // A call that waits in the kernel returns with the signal, except if it began right
            // after it: then with another.
            for _ in 0..500 {
                if done.load(Ordering::Acquire) {
                    break;
                }
                interrupt();
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = fs::remove_dir(&gone);
        },
    );
    let ((), undo) = match made {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            return Err(e).on_file("there is one of that name already:", folder)
        }
        made => made.on_file("make", folder)?,
    };
    let result = fill();
    filled.store(true, Ordering::Release);
    match result {
        Ok(()) => undo.keep(|| Ok(())),
        Err(e) => {
            let _ = fs::remove_dir(folder);
            Err(e)
        }
    }
}

/// Sends this process a signal that has been caught already.
fn interrupt() {
    let own = rustix::process::getpid();
    let _ = rustix::process::kill_process(own, rustix::process::Signal::TERM);
}

fn export(args: &ExportArgs) -> Result<()> {
    let subsystem = folder("subsystems", &args.name)?;
    let port = folder("ports", &format!("{}-{}", args.listen, args.port))?;
    make(&subsystem, || {
        if let Some(size) = &args.size {
            set(&subsystem, "attr_size", size)?;
        }
        if let Some(device) = &args.device {
            set(&subsystem, "device_path", device)?;
        }
        if let Some(uuid) = &args.uuid {
            set(&subsystem, "device_uuid", uuid)?;
        }
        set(
            &subsystem,
            "attr_read_only",
            if args.read_only { "1" } else { "0" },
        )?;
        if args.only_allowed {
            set(&subsystem, "attr_allow_any_host", "0")?;
        }
        set(&subsystem, "enable", "1")?;
        let offer = || {
            let link = port.join("subsystems").join(&args.name);
            std::os::unix::fs::symlink(&subsystem, &link).on_file("link", &link)
        };
        if port.is_dir() {
            let by = get(&port, "addr_trtype")?;
            return match &args.provider {
                Some(asked) if *asked != by => Err(Failure::Usage(format!(
                    "{} listens there already, not by {asked} alone",
                    port.display()
                ))),
                _ => offer(),
            };
        }
        make(&port, || {
            if let Some(provider) = &args.provider {
                set(&port, "addr_trtype", provider)?;
            }
            set(&port, "addr_traddr", &args.listen)?;
            set(&port, "addr_trsvcid", &args.port.to_string())?;
            offer()
        })
    })
}

fn unexport(name: &str) -> Result<()> {
    let subsystem = exported(name)?;
    // Here, where it keeps nobody from the folders, it is waited for what a device does yet.
    set(&subsystem, "enable", "0")?;
    let ports = Path::new(ROOT).join("ports");
    for port in names(&ports)? {
        let links = ports.join(&port).join("subsystems");
        if fs::remove_file(links.join(name)).is_ok() && names(&links)?.is_empty() {
            let port = ports.join(&port);
            fs::remove_dir(&port).on_file("remove", &port)?;
        }
    }
    fs::remove_dir(&subsystem).on_file("remove", &subsystem)
}

fn connect(args: &ConnectArgs, json: bool) -> Result<()> {
    let disk = folder("disks", args.disk.as_ref().unwrap_or(&args.name))?;
    make(&disk, || {
        let number = |n: Option<String>, attr| n.map_or(Ok(()), |n| set(&disk, attr, &n));
        number(args.provider.clone(), "addr_trtype")?;
        set(&disk, "addr_traddr", &args.address)?;
        set(&disk, "addr_trsvcid", &args.port.to_string())?;
        set(&disk, "subsystem", &args.name)?;
        number(args.client.clone(), "client")?;
        if let Some(file) = &args.auth_key_file {
            set_key(&disk, None, file)?;
        }
        number(args.nr_io_queues.map(|n| n.to_string()), "nr_io_queues")?;
        number(args.ctrl_loss_tmo.map(|n| n.to_string()), "ctrl_loss_tmo")?;
        number(
            args.fast_io_fail_tmo.map(|n| n.to_string()),
            "fast_io_fail_tmo",
        )?;
        number(
            args.reconnect_delay.map(|n| n.to_string()),
            "reconnect_delay",
        )?;
        set(&disk, "enable", "1")
    })?;
    let device = format!("/dev/{}", get(&disk, "device")?);
    if json {
        print_json(&serde_json::json!({ "device": device }))
    } else {
        print(&format!("{device}\n"))
    }
}

fn disks() -> Result<Vec<Disk>> {
    let mut found = Vec::new();
    for name in names(&Path::new(ROOT).join("disks"))? {
        let at = folder("disks", &name)?;
        found.push(Disk {
            device: get(&at, "device")?,
            state: get(&at, "state")?,
            address: get(&at, "addr_traddr")?,
            port: get(&at, "addr_trsvcid")?,
            subsystem: get(&at, "subsystem")?,
            name,
        });
    }
    Ok(found)
}

fn list(json: bool) -> Result<()> {
    let mut exports = Vec::new();
    for name in names(&Path::new(ROOT).join("subsystems"))? {
        let at = folder("subsystems", &name)?;
        let (allowed, a) = lines(&at, "all_allowed_hosts", "allowed_hosts")?;
        let (clients, b) = lines(&at, "all_clients", "clients")?;
        let (fenced, c) = lines(&at, "all_fenced", "fence")?;
        let complete = [a, b, c];
        exports.push(Export {
            device: get(&at, "device_path")?,
            size: get(&at, "attr_size")?.parse().unwrap_or(0),
            read_only: get(&at, "attr_read_only")? == "1",
            enabled: get(&at, "enable")? == "1",
            only_allowed: get(&at, "attr_allow_any_host")? == "0",
            complete: complete.iter().all(|complete| *complete),
            allowed,
            clients,
            fenced,
            name,
        });
    }
    let all = All {
        exports,
        disks: disks()?,
    };
    if json {
        return print_json(&all);
    }
    let mut text = String::new();
    for of in &all.exports {
        let rights = if of.read_only {
            "read-only"
        } else {
            "read-write"
        };
        let enabled = if of.enabled { "" } else { ", not enabled" };
        let what = match of.device.as_str() {
            "" => format!("{} bytes", of.size),
            device => device.to_owned(),
        };
        let name = printable(&of.name);
        text += &format!("export {name}: {}, {rights}{enabled}\n", printable(&what));
        if of.only_allowed {
            text += "  only allowed clients\n";
        }
        for client in &of.clients {
            text += &format!("  client {}\n", printable(client));
        }
        for client in &of.allowed {
            text += &format!("  allowed {}\n", printable(client));
        }
        for client in &of.fenced {
            text += &format!("  fenced {}\n", printable(client));
        }
        if !of.complete {
            text += "  and more than the kernel tells\n";
        }
    }
    for of in &all.disks {
        let line = format!(
            "disk {}: {} {}, {} at {} port {}",
            of.name, of.device, of.state, of.subsystem, of.address, of.port
        );
        text += &printable(&line);
        text.push('\n');
    }
    print(&text)
}

/// The folder of a disk: by its name, or by its device's where no disk has that name or `/dev/` is said.
fn disk_of(name: &str) -> Result<PathBuf> {
    let device = match name.strip_prefix("/dev/") {
        Some(device) => device,
        None => {
            let own = folder("disks", name)?;
            if own.is_dir() {
                return Ok(own);
            }
            name
        }
    };
    for disk in names(&Path::new(ROOT).join("disks"))? {
        let disk = folder("disks", &disk)?;
        // Others may be going.
        if get(&disk, "device").is_ok_and(|of| of == device) {
            return Ok(disk);
        }
    }
    Err(Failure::Io {
        what: format!("no disk is {name:?}"),
        source: io::ErrorKind::NotFound.into(),
    })
}

fn disconnect(name: &str) -> Result<()> {
    let disk = disk_of(name)?;
    // Here, where it keeps nobody from the folders, it is waited for what is written back.
    set(&disk, "enable", "0")?;
    fs::remove_dir(&disk).on_file("remove", &disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_path_is_refused() {
        for bad in [
            "",
            ".",
            "..",
            "/tmp/victim",
            "../../tmp/victim",
            "a/b",
            "a\0b",
        ] {
            assert!(matches!(name(bad), Err(Failure::Usage(_))), "{bad:?}");
            assert!(folder("disks", bad).is_err() && exported(bad).is_err());
            assert!(client(bad).is_err(), "{bad:?}");
        }
        assert!(name(&"n".repeat(256)).is_err());
        assert!(client("two words").is_err() && client("a\nb").is_err());
        let at = folder("disks", "..half").unwrap();
        assert_eq!(at, Path::new("/sys/kernel/config/kfblk/disks/..half"));
    }

    #[test]
    fn list_that_ends_with_dots_is_not_complete() {
        let (names, complete) = listed("a\nb\n...\n");
        assert!(names == ["a", "b"] && !complete);
        let (names, complete) = listed("a\nb\n\n\n");
        assert!(names == ["a", "b"] && complete);
        assert!(listed("").1);
    }

    #[test]
    fn write_of_a_missing_attribute_makes_no_file() {
        let path = std::env::temp_dir().join(format!("kfi-test-{}-attr", std::process::id()));
        assert!(write(&path, b"1").is_err());
        assert!(!path.exists());
    }
}
