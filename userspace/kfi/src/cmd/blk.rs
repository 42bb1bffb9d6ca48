// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi blk`: remote block devices, by kfblk's folders in configfs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use kfauth::AuthKey;
use serde::Serialize;

use super::{print, print_json};
use crate::error::{Failure, OnFile, Result};

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
    match &args.what {
        What::Export(args) => export(args),
        What::Unexport(args) => unexport(&args.name),
        What::Connect(args) => connect(args, json),
        What::List => list(json),
        What::Disconnect(args) => disconnect(&args.disk),
        What::Fence(args) => set(&folder("subsystems", &args.name), "fence", &args.client),
        What::Resize(args) => set(&folder("subsystems", &args.name), "revalidate_size", "1"),
        What::Admit(args) => set(&folder("subsystems", &args.name), "admit", &args.client),
        What::Allow(args) => {
            let subsystem = folder("subsystems", &args.name);
            set_key(&subsystem, Some(&args.client), &args.auth_key_file)
        }
        What::Disallow(args) => set(&folder("subsystems", &args.name), "auth_key", &args.client),
    }
}

fn folder(kind: &str, name: &str) -> PathBuf {
    Path::new(ROOT).join(kind).join(name)
}

fn set(folder: &Path, attr: &str, value: &str) -> Result<()> {
    let path = folder.join(attr);
    fs::write(&path, value).on_file(&format!("write {value:?} to"), &path)
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
    fs::write(&path, text.as_bytes()).on_file("write to", &path)
}

fn get(folder: &Path, attr: &str) -> Result<String> {
    let path = folder.join(attr);
    Ok(fs::read_to_string(&path)
        .on_file("read", &path)?
        .trim()
        .to_owned())
}

fn lines(folder: &Path, attr: &str) -> Result<Vec<String>> {
    Ok(get(folder, attr)?.lines().map(str::to_owned).collect())
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

/// Makes a folder and has `fill` fill it; if that fails the folder goes again.
fn make(folder: &Path, fill: impl FnOnce() -> Result<()>) -> Result<()> {
    fs::create_dir(folder).on_file("make", folder)?;
    fill().inspect_err(|_| {
        let _ = fs::remove_dir(folder);
    })
}

fn export(args: &ExportArgs) -> Result<()> {
    let subsystem = folder("subsystems", &args.name);
    let port = folder("ports", &format!("{}-{}", args.listen, args.port));
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
    let subsystem = folder("subsystems", name);
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
    let disk = folder("disks", args.disk.as_ref().unwrap_or(&args.name));
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
        let at = folder("disks", &name);
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
        let at = folder("subsystems", &name);
        exports.push(Export {
            device: get(&at, "device_path")?,
            size: get(&at, "attr_size")?.parse().unwrap_or(0),
            read_only: get(&at, "attr_read_only")? == "1",
            enabled: get(&at, "enable")? == "1",
            only_allowed: get(&at, "attr_allow_any_host")? == "0",
            allowed: lines(&at, "allowed_hosts")?,
            clients: lines(&at, "clients")?,
            fenced: lines(&at, "fence")?,
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
        text += &format!("export {}: {what}, {rights}{enabled}\n", of.name);
        if of.only_allowed {
            text += "  only allowed clients\n";
        }
        for client in &of.clients {
            text += &format!("  client {client}\n");
        }
        for client in &of.allowed {
            text += &format!("  allowed {client}\n");
        }
        for client in &of.fenced {
            text += &format!("  fenced {client}\n");
        }
    }
    for of in &all.disks {
        text += &format!(
            "disk {}: {} {}, {} at {} port {}\n",
            of.name, of.device, of.state, of.subsystem, of.address, of.port
        );
    }
    print(&text)
}

/// The folder of a disk: by its name, or by its device's where no disk has that name or `/dev/` is said.
fn disk_of(name: &str) -> Result<PathBuf> {
    let own = folder("disks", name);
    let device = match name.strip_prefix("/dev/") {
        None if own.is_dir() => return Ok(own),
        device => device.unwrap_or(name),
    };
    for disk in names(&Path::new(ROOT).join("disks"))? {
        let disk = folder("disks", &disk);
        // Others may be going.
        if get(&disk, "device").is_ok_and(|of| of == device) {
            return Ok(disk);
        }
    }
    Err(Failure::Io {
        what: format!("no disk is {name}"),
        source: io::ErrorKind::NotFound.into(),
    })
}

fn disconnect(name: &str) -> Result<()> {
    let disk = disk_of(name)?;
    // Here, where it keeps nobody from the folders, it is waited for what is written back.
    set(&disk, "enable", "0")?;
    fs::remove_dir(&disk).on_file("remove", &disk)
}
