// SPDX-License-Identifier: MIT OR Apache-2.0

//! QEMU's command line.
//!
//! QEMU comes from the build root and is started by that root's own dynamic
//! loader, so that the host needs neither QEMU nor its libraries.

use super::accel::Accel;
use super::pmcut::Pmcut;
use crate::setup::layers::Layer;
use crate::setup::Rig;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A machine to start.
#[derive(Debug)]
pub struct Machine<'a> {
    /// Kernel, initramfs, build root.
    pub rig: &'a Rig,
    /// The accelerator.
    pub accel: Accel,
    /// Deterministic time: the clock counts instructions.
    pub icount: bool,
    /// CPUs.
    pub cpus: u32,
    /// Memory size in QEMU's format (`2G`).
    pub mem: &'a str,
    /// The folder of the run, mounted at `/kfi` in the guest.
    pub share: &'a Path,
    /// A folder to mount read-write at `/host`.
    pub host_dir: Option<&'a Path>,
    /// Layers that the guest can mount.
    pub layers: &'a [Layer],
    /// File of the kernel's console.
    pub console: &'a Path,
    /// Names and sockets of the ports; xtask listens on the sockets.
    pub ports: &'a [(String, PathBuf)],
    /// Sockets of terminals, in the order of the guest's `/dev/hvcN`.
    pub terminals: &'a [PathBuf],
    /// Control socket of QEMU.
    pub qmp: &'a Path,
    /// The network card's cable.
    pub cable: Option<Cable<'a>>,
    /// Additional parameters of the kernel's command line.
    pub append: &'a str,
    /// Image of the disk, if the machine has one.
    pub disk: Option<&'a Path>,
    /// Persistent memory.
    pub pmem: Option<Pmem<'a>>,
}

/// Persistent memory of a machine: one or two NVDIMMs, and a virtio-pmem device.
#[derive(Debug, Clone, Copy)]
pub enum Pmem<'a> {
    /// The NVDIMMs keep every store.
    Plain,
    /// A plug-in, whose file is given, cuts the power of one of the two. If that is the virtio-pmem
    /// device, there is no NVDIMM.
    Cut(&'a Pmcut, &'a Path),
}

/// Maximum memory of a machine with persistent memory, which QEMU adds behind its other memory.
const MAX_MEM: &str = "64G";

/// One end of a cable between two guests.
#[derive(Debug, Clone, Copy)]
pub struct Cable<'a> {
    /// The socket of both ends.
    pub socket: &'a Path,
    /// Number of the end: 1 connects, 2 listens.
    pub end: u8,
}

/// The identifier of the guests' network card.
pub const CARD: &str = "cable0";

/// Parameters of every guest's kernel. A complaint ends the guest at once. `tsc=reliable` and
/// `no_timer_check` switch off the checks of clocks, which fail on a busy host.
const APPEND: &str = "console=ttyS0 panic=-1 panic_on_warn=1 oops=panic hung_task_panic=1 \
                      softlockup_panic=1 tsc=reliable no_timer_check no5lvl mitigations=off \
                      random.trust_cpu=on";

/// Returns a command for QEMU without arguments.
pub fn program(rig: &Rig) -> Command {
    program_with(rig, None)
}

/// As [`program`], with a library whose functions take the place of the C library's.
fn program_with(rig: &Rig, preload: Option<&Path>) -> Command {
    let root = &rig.root;
    let libraries: Vec<String> = [
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/x86_64-linux-gnu/pulseaudio",
    ]
    .iter()
    .map(|dir| root.join(dir).display().to_string())
    .collect();
    // QEMU ends with the thread that started it, which is xtask's first.
    let mut cmd = Command::new("setpriv");
    cmd.args(["--pdeathsig", "KILL"])
        .arg(root.join("usr/lib64/ld-linux-x86-64.so.2"))
        .args(["--library-path", &libraries.join(":")])
        .args(
            preload
                .into_iter()
                .flat_map(|file| [Path::new("--preload"), file]),
        )
        .arg(root.join("usr/bin/qemu-system-x86_64"))
        .env(
            "QEMU_MODULE_DIR",
            root.join("usr/lib/x86_64-linux-gnu/qemu"),
        );
    for dir in ["usr/share/qemu", "usr/share/seabios"] {
        cmd.arg("-L").arg(root.join(dir));
    }
    cmd
}

impl Machine<'_> {
    /// Returns the command that starts the machine.
    pub fn command(&self) -> Command {
        let preload = match self.pmem {
            Some(Pmem::Cut(cut, plugin)) if cut.device => Some(plugin),
            _ => None,
        };
        let mut cmd = program_with(self.rig, preload);
        cmd.args(self.accel_args());
        cmd.args(self.arguments());
        cmd
    }

    fn accel_args(&self) -> Vec<String> {
        let words: &[&str] = match (self.icount, self.accel) {
            // An emulated `rep movsb` counts one instruction per byte, which would dominate all
            // times. So the guest's processor has no fast string instructions.
            (true, _) => &[
                "-accel",
                "tcg,thread=single",
                "-icount",
                "shift=1,sleep=off",
                "-cpu",
                "max,la57=off,-erms,-fsrm,-fsrs",
            ],
            (false, Accel::Tcg) => &["-accel", "tcg,thread=multi", "-cpu", "max,la57=off"],
            (false, Accel::Kvm) => &["-accel", "kvm", "-cpu", "host"],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// Adds an NVDIMM with a NUMA node of its own, which is large enough for blocks of system RAM (kmem).
    fn large_nvdimm(&self, add: &mut impl FnMut(&str, String)) {
        let backing = format!("memory-backend-ram,id=ram0,size={}", self.mem);
        add("-object", backing);
        let cpus = self.cpus - 1;
        add("-numa", format!("node,nodeid=0,cpus=0-{cpus},memdev=ram0"));
        add("-numa", "node,nodeid=1".into());
        add("-object", "memory-backend-memfd,id=pmem2,size=384M".into());
        add("-device", "nvdimm,memdev=pmem2,node=1".into());
    }

    fn arguments(&self) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        let mut add = |option: &str, value: String| args.extend([option.to_owned(), value]);
        add("-smp", self.cpus.to_string());
        match self.pmem {
            Some(pmem) => {
                add("-m", format!("{},slots=2,maxmem={MAX_MEM}", self.mem));
                pmem.arguments(&mut add);
                if matches!(pmem, Pmem::Plain) && !self.icount {
                    self.large_nvdimm(&mut add);
                }
            }
            None => add("-m", self.mem.to_owned()),
        }
        add(
            "-kernel",
            self.rig.packages.join("vmlinuz").display().to_string(),
        );
        add("-initrd", self.rig.initrd.display().to_string());
        let clock = match (self.icount, self.accel) {
            (false, Accel::Tcg) => format!("tsc_early_khz={}", tsc_khz()),
            _ => String::new(),
        };
        add("-append", format!("{APPEND} {clock} {}", self.append));
        add("-serial", format!("file:{}", escape(self.console)));
        let modules = self.rig.packages.join("lib/modules");
        let mut shares = vec![
            ("kfabric-root", self.rig.root.as_path(), true),
            ("kfabric-modules", modules.as_path(), true),
            ("kfabric-run", self.share, true),
        ];
        let layers = self.layers.iter();
        shares.extend(layers.map(|layer| (layer.tag, layer.path.as_path(), true)));
        shares.extend(self.host_dir.map(|dir| ("kfabric-host", dir, false)));
        for (tag, path, read_only) in shares {
            let access = if read_only { ",readonly=on" } else { "" };
            add(
                "-virtfs",
                format!(
                    "local,path={},mount_tag={tag},security_model=none,multidevs=remap{access}",
                    escape(path)
                ),
            );
        }
        if let Some(disk) = self.disk {
            add(
                "-drive",
                format!("file={},if=virtio,format=raw,cache=unsafe", escape(disk)),
            );
        }
        add("-device", "virtio-rng-pci".into());
        add("-device", "virtio-serial-pci,max_ports=16".into());
        for (number, socket) in self.terminals.iter().enumerate() {
            add(
                "-chardev",
                format!("socket,id=tty{number},path={}", escape(socket)),
            );
            add("-device", format!("virtconsole,chardev=tty{number}"));
        }
        for (number, (name, socket)) in self.ports.iter().enumerate() {
            add(
                "-chardev",
                format!("socket,id=port{number},path={}", escape(socket)),
            );
            add(
                "-device",
                format!("virtserialport,chardev=port{number},name={name}"),
            );
        }
        add(
            "-chardev",
            format!("socket,id=qmp,path={}", escape(self.qmp)),
        );
        add("-mon", "chardev=qmp,mode=control".into());
        if let Some(cable) = self.cable {
            // If its peer does not read, the listening end blocks with its whole guest (QEMU 10).
            // The listener is guest 2, because tests freeze guest 2.
            let side = if cable.end == 2 {
                "server=on"
            } else {
                "server=off,reconnect-ms=100"
            };
            add(
                "-netdev",
                format!(
                    "stream,id=net0,{side},addr.type=unix,addr.path={}",
                    escape(cable.socket)
                ),
            );
            // Without merged receive buffers, which the driver takes from a page pool. rxe frees
            // packets of a failed queue pair under that queue pair's lock. Freeing a page-pool page
            // runs the next receive, which needs the same lock.
            add(
                "-device",
                format!(
                    "virtio-net-pci,id={CARD},netdev=net0,host_mtu=4400,mrg_rxbuf=off,mac=52:54:00:77:00:{:02x},romfile=",
                    cable.end
                ),
            );
        }
        for word in [
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
        ] {
            args.push(word.to_owned());
        }
        args
    }
}

impl Pmem<'_> {
    fn arguments(self, add: &mut impl FnMut(&str, String)) {
        match self {
            Self::Plain => {
                add("-machine", "pc,nvdimm=on".into());
                add("-object", "memory-backend-memfd,id=pmem0,size=64M".into());
                add("-device", "nvdimm,memdev=pmem0".into());
            }
            Self::Cut(cut, plugin) => {
                for (option, value) in cut.memory() {
                    add(option, value);
                }
                add("-plugin", cut.plugin(plugin));
                if cut.device {
                    return;
                }
            }
        }
        // The device virtio-pmem flushes its memory by the file's fsync(), so it needs a file.
        add("-object", "memory-backend-memfd,id=pmem1,size=64M".into());
        add("-device", "virtio-pmem-pci,memdev=pmem1".into());
    }
}

/// Returns the rate of the time stamp counter, which emulated guests see unchanged. A guest would
/// measure the rate against an emulated timer. On a busy host the result, and so the guest's clock,
/// would be wrong by a factor.
fn tsc_khz() -> u64 {
    const SPAN: Duration = Duration::from_millis(20);
    // SAFETY: Every x86-64 processor has the instruction.
    let counter = || unsafe { core::arch::x86_64::_rdtsc() };
    // An interruption between the two readings spoils one measurement, but not most of them.
    let mut rates: Vec<u64> = (0..5)
        .map(|_| {
            let (time, from) = (Instant::now(), counter());
            std::thread::sleep(SPAN);
            let (to, took) = (counter(), time.elapsed());
            to.saturating_sub(from) * 1_000_000 / (took.as_nanos() as u64).max(1)
        })
        .collect();
    rates.sort_unstable();
    rates[rates.len() / 2]
}

/// Escapes a path as part of an option with commas.
pub(super) fn escape(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
