// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi blk`: remote block devices, through kfblk's directories in configfs.

mod boot;
mod configfs;

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use kfauth::AuthKey;
use rustix::fs::OFlags;
use serde::Serialize;
use zeroize::Zeroizing;

use super::{print, print_json};
use crate::ending::wait_if_ending;
use crate::error::{Failure, OnFile, Result};
use crate::say::printable;
use configfs::{client, exported, folder, get, lines, make, names, set, write, ROOT};

/// Default port of exports.
const PORT: u16 = 4421;

/// Options of `kfi blk`.
#[derive(Debug, Args)]
pub struct Blk {
    /// The command to run
    #[command(subcommand)]
    pub what: What,
}

/// The commands of `kfi blk`.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Export memory of this host, or a block device
    Export(ExportArgs),
    /// Remove an export: its initiators lose it, and memory contents are lost
    Unexport(NameArgs),
    /// Create a disk from another host's export, and print the block device's name
    Connect(ConnectArgs),
    /// Connect the disks of /etc/kfabric/blk.conf that do not exist yet
    ConnectAll(boot::AllArgs),
    /// Make the exports of /etc/kfabric/blk.conf that do not exist yet
    ExportAll(boot::AllArgs),
    /// Show exports, their initiators, and disks
    List,
    /// Remove a disk
    Disconnect(DiskArgs),
    /// Fence an initiator: after the return none of its writes lands, and it cannot connect again
    Fence(FenceArgs),
    /// Allow a fenced initiator to connect again
    Admit(FenceArgs),
    /// Read the size of an exported device again, and notify the initiators
    Resize(NameArgs),
    /// Set an initiator's auth key; from then on it needs that key to connect
    Allow(AllowArgs),
    /// Remove an initiator's auth key
    Disallow(FenceArgs),
}

/// Options of `kfi blk export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Name of the export
    pub name: String,
    /// Export memory of this size, such as 64M
    #[arg(short, long, required_unless_present_any = ["device", "pmem"])]
    pub size: Option<String>,
    /// Export this block device; it must not be in use otherwise
    #[arg(short, long, value_name = "PATH", conflicts_with = "size")]
    pub device: Option<String>,
    /// Export the persistent memory of this block device; it must not be in use otherwise
    #[arg(long, value_name = "PATH", conflicts_with_all = ["size", "device"])]
    pub pmem: Option<String>,
    /// UUID of the device; an initiator does not reconnect to a device with another UUID
    #[arg(long, requires = "device")]
    pub uuid: Option<String>,
    /// Refuse writes
    #[arg(short, long)]
    pub read_only: bool,
    /// Admit only initiators with an auth key, which `kfi blk allow` sets
    #[arg(short, long)]
    pub only_allowed: bool,
    /// Address to listen on
    #[arg(short, long, value_name = "ADDRESS")]
    pub listen: String,
    /// Port to listen on
    #[arg(short, long, default_value_t = PORT)]
    pub port: u16,
    /// Listen through this provider
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
}

/// Argument that names an export.
#[derive(Debug, Args)]
pub struct NameArgs {
    /// Name of the export
    pub name: String,
}

/// Options of `kfi blk connect`.
#[derive(Debug, Args)]
pub struct ConnectArgs {
    /// Address of the exporting host
    pub address: String,
    /// Name of the export
    pub name: String,
    /// Port of the export
    #[arg(short, long, default_value_t = PORT)]
    pub port: u16,
    /// Connect through this provider
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Name of the disk on this host; by default the export's name
    #[arg(short, long, value_name = "NAME")]
    pub disk: Option<String>,
    /// Name of this host as an initiator; by default its host name
    #[arg(short, long, value_name = "NAME")]
    pub client: Option<String>,
    /// File with the auth key that proves the initiator's name, as bytes or as `hex:` and digits; -
    /// is standard input
    #[arg(short = 'k', long, value_name = "FILE")]
    pub auth_key_file: Option<PathBuf>,
    /// Number of connections, each with a queue
    #[arg(short = 'i', long, value_name = "COUNT")]
    pub nr_io_queues: Option<u16>,
    /// Seconds after which reconnecting is given up; -1: never
    #[arg(short = 'l', long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub ctrl_loss_tmo: Option<i32>,
    /// Seconds after which requests fail while reconnecting; -1: requests wait
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub fast_io_fail_tmo: Option<i32>,
    /// Seconds between two attempts to reconnect
    #[arg(long, value_name = "SECONDS")]
    pub reconnect_delay: Option<u32>,
}

/// Argument that names a disk.
#[derive(Debug, Args)]
pub struct DiskArgs {
    /// Name of the disk, here or in /dev
    pub disk: String,
    /// Also a disk in use, whose file system then gets errors
    #[arg(long)]
    pub force: bool,
}

/// Arguments that name an initiator of an export.
#[derive(Debug, Args)]
pub struct FenceArgs {
    /// Name of the export
    pub name: String,
    /// Name of the initiator
    pub client: String,
}

/// Arguments that name an initiator of an export, and its auth key.
#[derive(Debug, Args)]
pub struct AllowArgs {
    /// Name of the export
    pub name: String,
    /// Name of the initiator
    pub client: String,
    /// File with the auth key, as bytes or as `hex:` and digits; - is standard input
    #[arg(short = 'k', long, value_name = "FILE")]
    pub auth_key_file: PathBuf,
}

#[derive(Debug, Serialize)]
struct Export {
    name: String,
    device: String,
    /// The device's persistent memory is exported.
    pmem: bool,
    size: u64,
    read_only: bool,
    enabled: bool,
    only_allowed: bool,
    clients: Vec<String>,
    allowed: Vec<String>,
    fenced: Vec<String>,
    /// Set if all three lists are complete.
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
/// The failure, with the file that reported it.
pub fn run(args: &Blk, json: bool) -> Result<()> {
    if !Path::new(ROOT).is_dir() {
        return Err(Failure::Io {
            what: format!("{ROOT} is not there; load kfblk, and mount configfs"),
            source: io::ErrorKind::NotFound.into(),
        });
    }
    let done = act(&args.what, json);
    if done.is_err() {
        // If a signal is ending the program, the parent process must see the signal.
        wait_if_ending();
    }
    done
}

fn act(what: &What, json: bool) -> Result<()> {
    match what {
        What::Export(args) => export(args),
        What::Unexport(args) => unexport(&args.name),
        What::Connect(args) => connect(args, json),
        What::ConnectAll(args) => boot::connect_all(args, json),
        What::ExportAll(args) => boot::export_all(args, json),
        What::List => list(json),
        What::Disconnect(args) => disconnect(args),
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

/// Writes an initiator's name to an attribute of an export.
fn of_client(args: &FenceArgs, attr: &str) -> Result<()> {
    let client = client(&args.client)?;
    set(&exported(&args.name)?, attr, client)
}

/// Sets the auth key of a disk, or of an export's initiator, without showing it.
fn set_key(folder: &Path, client: Option<&str>, file: &Path) -> Result<()> {
    let key = match file == Path::new("-") {
        true => AuthKey::from_reader(io::stdin().lock())?,
        false => AuthKey::from_file(file)?,
    };
    let digits = key.expose_hex();
    // Sized before it is filled: a string that grows leaves a copy that nothing overwrites.
    let room = client.map_or(0, |client| client.len() + 1) + digits.len();
    let mut text = Zeroizing::new(String::with_capacity(room));
    if let Some(client) = client {
        text.push_str(client);
        text.push(' ');
    }
    text.push_str(&digits);
    let path = folder.join("auth_key");
    write(&path, text.as_bytes()).on_file("write to", &path)
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
        if let Some(device) = &args.pmem {
            set(&subsystem, "device_path", device)?;
            set(&subsystem, "attr_pmem", "1")?;
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
    // Disables first: this waits for the device's outstanding requests without blocking the
    // directories.
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
            // An earlier module has no such attribute.
            pmem: at.join("attr_pmem").exists() && get(&at, "attr_pmem")? == "1",
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
            device if of.pmem => format!("persistent memory {device}"),
            device => device.to_owned(),
        };
        let name = printable(&of.name);
        text += &format!("export {name}: {}, {rights}{enabled}\n", printable(&what));
        if of.only_allowed {
            text += "  only allowed initiators\n";
        }
        for client in &of.clients {
            text += &format!("  initiator {}\n", printable(client));
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

/// Directory of a disk: by the disk's name, or else by its device's name. With `/dev/`, by the
/// device's name only.
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
        // Another disk may be being removed: ignore its errors.
        if get(&disk, "device").is_ok_and(|of| of == device) {
            return Ok(disk);
        }
    }
    Err(Failure::Io {
        what: format!("no disk is {name:?}"),
        source: io::ErrorKind::NotFound.into(),
    })
}

/// Fails with `EBUSY` if a mounted file system or another device holds a disk.
fn check_free(disk: &Path) -> Result<()> {
    // A disk without a connection is not opened: closing it could wait for its unwritten data.
    if !matches!(get(disk, "state")?.as_str(), "live" | "renewing") {
        return Ok(());
    }
    let device = Path::new("/dev").join(get(disk, "device")?);
    let open = fs::File::options()
        .read(true)
        .custom_flags(OFlags::EXCL.bits().cast_signed())
        .open(&device);
    match open {
        Err(source) if source.kind() == io::ErrorKind::ResourceBusy => Err(Failure::Io {
            what: format!(
                "{} has a mounted file system, or another device uses it; --force removes it nevertheless",
                device.display()
            ),
            source,
        }),
        _ => Ok(()),
    }
}

fn disconnect(args: &DiskArgs) -> Result<()> {
    let disk = disk_of(&args.disk)?;
    if !args.force {
        check_free(&disk)?;
    }
    // Disables first: this waits for written data to be flushed without blocking the directories.
    set(&disk, "enable", "0")?;
    match fs::remove_dir(&disk) {
        // A `connect` that this has ended removes the folder, too.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.on_file("remove", &disk),
    }
}
