// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a host shows: modules, the device file, limits, RDMA ports and their network devices.
//!
//! Links, addresses and queues are read by the programs of iproute2 (`rdma`, `ip`, `tc`), which print
//! JSON. A fact that cannot be read is `None`, and its check says so.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use kfabric::{Device, Errno, Hints};
use kfauth::{protocol::SOCKET, Grants, Mode};
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
    /// Active units that use the modules; empty if no module is stale.
    pub(super) units: Vec<String>,
    /// The running kernel and the modules installed for it.
    pub(super) kernel: Kernel,
    /// The device file.
    pub(super) node: Option<Node>,
    /// Path of the device file.
    pub(super) device: PathBuf,
    /// Number of the device file, `major:minor`, if the module is loaded.
    pub(super) number: Option<String>,
    /// The device file was opened.
    pub(super) opened: bool,
    /// Why the device file cannot be opened.
    pub(super) refused: Option<Errno>,
    /// The group rdma exists.
    pub(super) group_exists: bool,
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
    /// The socket of the agent of auth keys.
    pub(super) socket: Socket,
}

/// The running kernel and the modules installed for it.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    /// The output of `uname -r`.
    pub(super) release: String,
    /// Whether `modprobe` finds kfabric; `None` if `modinfo` cannot be run.
    pub(super) kfabric: Option<bool>,
    /// Whether soft-RoCE is loaded or `modprobe` finds the module; `None` if `modinfo` cannot be run.
    pub(super) rxe: Option<bool>,
    /// Whether the sources of the modules are installed for DKMS.
    pub(super) dkms: bool,
    /// Whether the headers of the kernel are installed.
    pub(super) headers: bool,
    /// Whether a source package of the kernel's series is installed.
    pub(super) source: bool,
    /// Whether the kernel accepts the signature of DKMS.
    pub(super) signing: Signing,
}

/// Whether the kernel accepts modules that DKMS has signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Signing {
    /// The kernel loads unsigned modules.
    #[default]
    Optional,
    /// The kernel requires signatures and has the key.
    Enrolled,
    /// The kernel requires signatures and does not have the key.
    NotEnrolled,
    /// The kernel requires signatures, and the enrolled keys cannot be read.
    Unknown,
}

/// The socket of the agent of auth keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Socket {
    /// No socket exists.
    #[default]
    Missing,
    /// An agent accepts connections.
    Answers,
    /// No agent accepts connections.
    Dead,
    /// The socket refuses this process.
    Unknown,
}

/// A file's owner and mode.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Permission bits.
    pub(super) mode: u32,
    /// The group's name, or its number.
    pub(super) group: String,
    /// Whether this process is a member of the group.
    pub(super) member: bool,
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
    /// Returns whether the device is administratively up.
    pub(super) fn is_up(&self) -> bool {
        self.flags.iter().any(|flag| flag == "UP")
    }

    /// Returns whether the device has a carrier.
    pub(super) fn has_carrier(&self) -> bool {
        self.flags.iter().any(|flag| flag == "LOWER_UP")
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
    /// Length of the prefix in bits.
    #[serde(default, rename = "prefixlen")]
    pub(super) prefix: u8,
}

/// A queueing discipline, as `tc -j qdisc` prints it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Discipline {
    /// Kind, such as `fq_codel`.
    pub(super) kind: String,
    /// The class above, such as `:1` of the first queue of `mq`; `None` at the root.
    pub(super) parent: Option<String>,
    /// Options.
    #[serde(default)]
    pub(super) options: Options,
}

/// Options of a queueing discipline.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Options {
    /// Maximum number of packets.
    pub(super) limit: Option<u32>,
    /// Maximum number of packets of one flow (`fq`).
    pub(super) flow_limit: Option<u32>,
}

/// Mode and agent of auth keys.
#[derive(Clone, Debug)]
pub(super) struct Auth {
    /// Whether each use of an auth key needs a grant.
    pub(super) enforce: bool,
    /// An agent runs.
    pub(super) agent: bool,
    /// Number of grants.
    pub(super) grants: u32,
    /// The agent has a policy.
    pub(super) policy: bool,
}

/// Policy of the agent.
pub(super) const POLICY: &str = "/etc/kfabric/authd.toml";

/// Gathers the facts.
pub(super) fn gather() -> Facts {
    let there = |name: &&str| Path::new("/sys/module").join(name).is_dir();
    let loaded: Vec<&str> = MODULES.into_iter().filter(there).collect();
    let is_stale = |name: &&str| is_stale(name) == Some(true);
    let stale: Vec<&str> = loaded.iter().copied().filter(is_stale).collect();
    let mut facts = Facts {
        units: match stale.is_empty() {
            true => Vec::new(),
            false => units(),
        },
        kernel: kernel(),
        stale,
        loaded,
        device: std::env::var_os(kfabric::DEVICE_ENV)
            .map_or_else(|| PathBuf::from(kfabric::DEVICE_PATH), PathBuf::from),
        number: read("/sys/class/misc/kfabric/dev"),
        group_exists: said("getent", &["group", "rdma"]).is_some(),
        caller: caller(),
        ports: ports(),
        links: links(),
        socket: socket(),
        ..Facts::default()
    };
    facts.node = std::fs::metadata(&facts.device).ok().map(|meta| Node {
        mode: meta.mode() & 0o777,
        group: name_of("group", meta.gid()),
        member: is_member(meta.gid()),
    });
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
    } else if facts.node.is_some() {
        // An open would load the module.
        use rustix::fs::{access, Access};
        let allowed = access(&facts.device, Access::READ_OK | Access::WRITE_OK);
        facts.refused = allowed.err().map(|errno| Errno(errno.raw_os_error()));
    }
    facts
}

/// Reads what is installed for the running kernel.
fn kernel() -> Kernel {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let series = series(&release).to_owned();
    let sources = names("/usr/src");
    let loaded = Path::new("/sys/module/rdma_rxe").is_dir();
    Kernel {
        kfabric: installed("kfabric"),
        rxe: match loaded {
            true => Some(true),
            false => installed("rdma_rxe"),
        },
        dkms: sources.iter().any(|name| name.starts_with("kfabric-")),
        headers: Path::new("/lib/modules")
            .join(&release)
            .join("build")
            .exists(),
        source: sources
            .iter()
            .any(|name| name.starts_with(&format!("linux-source-{series}"))),
        signing: signing(),
        release,
    }
}

/// The series of a kernel release: `7.2` of `7.2.12+deb13-amd64`.
pub(super) fn series(release: &str) -> &str {
    let mut dots = release.match_indices('.');
    dots.nth(1).map_or(release, |(at, _)| &release[..at])
}

fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Whether `modprobe` finds a module; `None` if `modinfo` cannot be run.
fn installed(module: &str) -> Option<bool> {
    Some(ran("modinfo", &["-n", module])?.status.success())
}

/// Public key of the key by which DKMS signs modules.
pub(super) const MOK: &str = "/var/lib/dkms/mok.pub";

fn signing() -> Signing {
    let enforced = read("/sys/module/module/parameters/sig_enforce").as_deref() == Some("Y");
    let lockdown = read("/sys/kernel/security/lockdown").unwrap_or_default();
    if !enforced
        && !["[integrity]", "[confidentiality]"]
            .iter()
            .any(|mode| lockdown.contains(mode))
    {
        return Signing::Optional;
    }
    // The exit status differs between versions of mokutil.
    let text = ran("mokutil", &["--test-key", MOK]).map_or_else(String::new, |out| {
        let (out, err) = (out.stdout, out.stderr);
        String::from_utf8_lossy(&out).into_owned() + &String::from_utf8_lossy(&err)
    });
    match () {
        () if text.contains("is already enrolled") => Signing::Enrolled,
        () if text.contains("is not enrolled") => Signing::NotEnrolled,
        () => Signing::Unknown,
    }
}

/// Active units that use the modules, a disk before its export.
fn units() -> Vec<String> {
    let kinds = ["kfblk-connect@*", "kfi-export@*", "kfi-authd.service"];
    let active = kinds.into_iter().map(|kind| {
        let args = [
            "list-units",
            "--plain",
            "--no-legend",
            "--state=active",
            kind,
        ];
        let text = said("systemctl", &args).unwrap_or_default();
        let first = text
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        first.map(str::to_owned).collect::<Vec<_>>()
    });
    active.flatten().collect()
}

fn socket() -> Socket {
    match UnixStream::connect(SOCKET).map_err(|error| error.kind()) {
        Ok(_) => Socket::Answers,
        Err(ErrorKind::NotFound) => Socket::Missing,
        Err(ErrorKind::ConnectionRefused) => Socket::Dead,
        Err(_) => Socket::Unknown,
    }
}

fn read(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// The name of a user (`passwd`) or a group (`group`), of any source that NSS knows, or its number.
fn name_of(database: &str, id: u32) -> String {
    let id = id.to_string();
    let line = said("getent", &[database, &id]).unwrap_or_default();
    match line.split(':').next() {
        None | Some("") => id,
        Some(name) => name.trim().to_owned(),
    }
}

/// Whether this process is a member of the group `id`.
fn is_member(id: u32) -> bool {
    let groups = rustix::process::getgroups().unwrap_or_default();
    let mut all = groups.into_iter().chain([rustix::process::getegid()]);
    all.any(|group| group.as_raw() == id)
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
        user: name_of("passwd", geteuid().as_raw()),
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

/// The result of a program; `None` if the program cannot be run.
fn ran(program: &str, args: &[&str]) -> Option<Output> {
    let run = |program: &Path| {
        Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .output()
    };
    match run(Path::new(program)) {
        // Programs for administrators may not be in an ordinary user's path.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            run(&Path::new("/usr/sbin").join(program)).ok()
        }
        out => out.ok(),
    }
}

/// The standard output of a program that succeeds.
fn output(program: &str, args: &[&str]) -> Option<Vec<u8>> {
    let out = ran(program, args)?;
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
