// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a host shows: modules, the device file, limits, RDMA ports and their network devices.
//!
//! Links, addresses and queues are read by the programs of iproute2 (`rdma`, `ip`, `tc`), which print
//! JSON. A fact that cannot be read is `None`, and its check says so.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kfabric::{Device, Errno, Hints};
use kfauth::{Grants, Mode};
use serde::de::DeserializeOwned;
use serde::Deserialize;

/// Modules of kfabric, each after those that need it.
pub(super) const MODULES: [&str; 4] = ["kfblk", "kverbs", "kshm", "kfabric"];

/// Facts of a host, as this process sees them.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Loaded modules of kfabric, in the order of [`MODULES`].
    pub(super) loaded: Vec<&'static str>,
    /// Loaded modules that differ from the file that `modprobe` would load.
    pub(super) stale: Vec<&'static str>,
    /// The device file.
    pub(super) node: Option<Node>,
    /// Path of the device file.
    pub(super) device: PathBuf,
    /// Number of the device file, `major:minor`, if the module is loaded.
    pub(super) number: Option<String>,
    /// Whether the device file was opened.
    pub(super) opened: bool,
    /// Why the device file cannot be opened.
    pub(super) refused: Option<Errno>,
    /// Version of the interface that the module reports; `None` if no provider makes an offer.
    pub(super) abi: Option<u32>,
    /// The calling process.
    pub(super) caller: Caller,
    /// Ports of RDMA devices; `None` if `rdma` cannot be run.
    pub(super) ports: Option<Vec<Port>>,
    /// Network devices; `None` if `ip` cannot be run.
    pub(super) links: Option<Vec<Link>>,
    /// Mode and agent of auth keys; `None` if this process may not ask.
    pub(super) auth: Option<Auth>,
}

/// A file's owner and mode.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Permission bits.
    pub(super) mode: u32,
    /// The group's name, or its number.
    pub(super) group: String,
}

/// The calling process.
#[derive(Debug, Default)]
pub(super) struct Caller {
    /// Name or number of the user.
    pub(super) user: String,
    /// Limit of locked memory in bytes; `None` is unlimited.
    pub(super) memlock: Option<u64>,
    /// Whether the limit does not apply (`CAP_IPC_LOCK`).
    pub(super) unlimited: bool,
}

/// A port of an RDMA device, as `rdma -j link` prints it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Port {
    /// Name of the RDMA device.
    #[serde(rename = "ifname")]
    pub(super) device: String,
    /// Number of the port.
    #[serde(default)]
    pub(super) port: u32,
    /// State, such as `ACTIVE`.
    pub(super) state: String,
    /// Network device below or above the port.
    pub(super) netdev: Option<String>,
    /// Whether the device is software (rxe), which sends through the network device's queue.
    #[serde(skip)]
    pub(super) soft: bool,
}

/// A network device, as `ip -j address` prints it, and its queues.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Link {
    /// Name.
    #[serde(rename = "ifname")]
    pub(super) name: String,
    /// Flags, such as `UP` and `LOOPBACK`.
    #[serde(default)]
    pub(super) flags: Vec<String>,
    /// Maximum transmission unit in bytes.
    #[serde(default)]
    pub(super) mtu: u32,
    /// Length of the queue in packets.
    #[serde(default, rename = "txqlen")]
    pub(super) queue: u32,
    /// Addresses.
    #[serde(default, rename = "addr_info")]
    pub(super) addresses: Vec<Address>,
    /// Queueing disciplines; `None` if `tc` cannot be run.
    #[serde(skip)]
    pub(super) disciplines: Option<Vec<Discipline>>,
}

impl Link {
    /// Whether the device is administratively up.
    pub(super) fn is_up(&self) -> bool {
        self.flags.iter().any(|flag| flag == "UP")
    }

    /// Whether the device is the loopback device.
    pub(super) fn is_loopback(&self) -> bool {
        self.flags.iter().any(|flag| flag == "LOOPBACK")
    }
}

/// An address of a network device.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Address {
    /// The address, without the length of its prefix.
    #[serde(default)]
    pub(super) local: String,
}

/// A queueing discipline, as `tc -j qdisc` prints it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Discipline {
    /// Kind, such as `fq_codel`.
    pub(super) kind: String,
    /// Options.
    #[serde(default)]
    pub(super) options: Options,
}

/// Options of a queueing discipline.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Options {
    /// Maximum number of packets.
    pub(super) limit: Option<u32>,
}

/// Mode and agent of auth keys.
#[derive(Clone, Debug)]
pub(super) struct Auth {
    /// Whether each use of an auth key needs a grant.
    pub(super) enforce: bool,
    /// Whether an agent runs.
    pub(super) agent: bool,
    /// Number of grants.
    pub(super) grants: u32,
    /// Whether the agent has a policy.
    pub(super) policy: bool,
}

/// Policy of the agent.
pub(super) const POLICY: &str = "/etc/kfabric/authd.toml";

/// Gathers the facts.
pub(super) fn gather() -> Facts {
    let there = |name: &&str| Path::new("/sys/module").join(name).is_dir();
    let loaded: Vec<&str> = MODULES.into_iter().filter(there).collect();
    let stale = loaded
        .iter()
        .copied()
        .filter(|name| is_stale(name) == Some(true));
    let mut facts = Facts {
        stale: stale.collect(),
        loaded,
        device: std::env::var_os(kfabric::DEVICE_ENV)
            .map_or_else(|| PathBuf::from(kfabric::DEVICE_PATH), PathBuf::from),
        number: read("/sys/class/misc/kfabric/dev"),
        caller: caller(),
        ports: ports(),
        links: links(),
        ..Facts::default()
    };
    facts.node = std::fs::metadata(&facts.device).ok().map(|meta| Node {
        mode: meta.mode() & 0o777,
        group: name_of("/etc/group", meta.gid()),
    });
    // The node of a module that is not loaded would load it.
    if facts.loaded.contains(&"kfabric") {
        match Device::open() {
            Ok(device) => {
                facts.opened = true;
                let infos = device.info(&Hints::new()).unwrap_or_default();
                facts.abi = infos.first().map(|info| info.raw().abi);
                facts.auth = auth(&device);
            }
            Err(error) => facts.refused = error.errno(),
        }
    }
    facts
}

fn read(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// The name of a user or group in a file such as `/etc/group`, or its number.
fn name_of(file: &str, id: u32) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let wanted = id.to_string();
    let found = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(&wanted)).then(|| name.to_owned())
    });
    found.unwrap_or(wanted)
}

fn caller() -> Caller {
    use rustix::process::{geteuid, getrlimit, Resource};
    /// Number of `CAP_IPC_LOCK` (linux/capability.h).
    const IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .unwrap_or(0);
    Caller {
        user: name_of("/etc/passwd", geteuid().as_raw()),
        memlock: getrlimit(Resource::Memlock).current,
        unlimited: effective >> IPC_LOCK & 1 == 1,
    }
}

/// Whether a loaded module differs from the installed file, by their build ids; `None` if either is
/// unknown.
fn is_stale(module: &str) -> Option<bool> {
    /// Bytes of the id at the end of the note.
    const ID: usize = 20;
    let note = format!("/sys/module/{module}/notes/.note.gnu.build-id");
    let note = std::fs::read(note).ok()?;
    let id = note.get(note.len().checked_sub(ID)?..)?;
    let file = said("modinfo", &["-n", module])?;
    let file = file.trim();
    let unpacker = match Path::new(file).extension()?.to_str()? {
        "xz" => Some("xz"),
        "zst" => Some("zstd"),
        "gz" => Some("gzip"),
        _ => None,
    };
    let content = match unpacker {
        None => std::fs::read(file).ok()?,
        Some(program) => output(program, &["-dc", file])?,
    };
    Some(!content.windows(ID).any(|part| part == id))
}

/// The standard output of a program that succeeds.
fn output(program: &str, args: &[&str]) -> Option<Vec<u8>> {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let out = match command.output() {
        // Programs for administrators may not be in an ordinary user's path.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mut command = Command::new(Path::new("/usr/sbin").join(program));
            command
                .args(args)
                .stdin(Stdio::null())
                .stderr(Stdio::null());
            command.output().ok()?
        }
        out => out.ok()?,
    };
    out.status.success().then_some(out.stdout)
}

fn said(program: &str, args: &[&str]) -> Option<String> {
    String::from_utf8(output(program, args)?).ok()
}

/// The JSON that a program prints; nothing is an empty list.
fn listed<T: DeserializeOwned>(program: &str, args: &[&str]) -> Option<Vec<T>> {
    let text = said(program, args)?;
    match text.trim() {
        "" => Some(Vec::new()),
        text => serde_json::from_str(text).ok(),
    }
}

fn ports() -> Option<Vec<Port>> {
    let mut ports: Vec<Port> = listed("rdma", &["-j", "link"])?;
    for port in &mut ports {
        // Hardware has a parent device.
        let folder = Path::new("/sys/class/infiniband").join(&port.device);
        port.soft = !folder.join("device").exists();
    }
    Some(ports)
}

fn links() -> Option<Vec<Link>> {
    let mut links: Vec<Link> = listed("ip", &["-j", "address"])?;
    for link in &mut links {
        link.disciplines = listed("tc", &["-j", "qdisc", "show", "dev", &link.name]);
    }
    Some(links)
}

fn auth(device: &Device) -> Option<Auth> {
    let rule = Grants::of(device).rule().ok()?;
    Some(Auth {
        enforce: rule.mode == Mode::Enforce,
        agent: rule.agent,
        grants: rule.grants,
        policy: Path::new(POLICY).exists(),
    })
}
