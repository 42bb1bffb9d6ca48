// SPDX-License-Identifier: MIT OR Apache-2.0

//! QEMU's command line.
//!
//! QEMU comes from the build root and is started by that root's own dynamic
//! loader, so that the host needs neither QEMU nor its libraries.

use super::accel::Accel;
use crate::setup::Rig;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A machine to be started.
#[derive(Debug)]
pub struct Machine<'a> {
    /// Kernel, initramfs, build root.
    pub rig: &'a Rig,
    /// What executes its instructions.
    pub accel: Accel,
    /// Deterministic time: a count of instructions.
    pub icount: bool,
    /// CPUs.
    pub cpus: u32,
    /// Memory, as QEMU takes it (`2G`).
    pub mem: &'a str,
    /// The folder of the run, `/kfi` in the guest.
    pub share: &'a Path,
    /// A folder to be mounted read-write at `/host`.
    pub host_dir: Option<&'a Path>,
    /// Where the kernel's console goes.
    pub console: &'a Path,
    /// Sockets xtask listens on: a port's name and the socket.
    pub ports: &'a [(String, PathBuf)],
    /// Sockets of terminals, in the order of the guest's `/dev/hvcN`.
    pub terminals: &'a [PathBuf],
    /// The control socket.
    pub qmp: &'a Path,
    /// The network card's cable.
    pub cable: Option<Cable<'a>>,
    /// More of the kernel's command line.
    pub append: &'a str,
}

/// One end of a cable between two guests.
#[derive(Debug, Clone, Copy)]
pub struct Cable<'a> {
    /// The socket both ends know.
    pub socket: &'a Path,
    /// Which end: 1 connects, 2 listens.
    pub end: u8,
}

/// The identifier of the guests' network card.
pub const CARD: &str = "cable0";

/// What every guest's kernel is told: complaints end the guest at once. An emulated clock that
/// falls behind on a busy host is none.
const APPEND: &str = "console=ttyS0 panic=-1 panic_on_warn=1 oops=panic hung_task_panic=1 \
                      softlockup_panic=1 tsc=reliable no_timer_check no5lvl mitigations=off \
                      random.trust_cpu=on";

/// QEMU itself, without arguments.
pub fn program(rig: &Rig) -> Command {
    let root = &rig.root;
    let libraries: Vec<String> = [
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/x86_64-linux-gnu/pulseaudio",
    ]
    .iter()
    .map(|dir| root.join(dir).display().to_string())
    .collect();
    // QEMU ends with the thread that started it: xtask's first.
    let mut cmd = Command::new("setpriv");
    cmd.args(["--pdeathsig", "KILL"])
        .arg(root.join("usr/lib64/ld-linux-x86-64.so.2"))
        .args(["--library-path", &libraries.join(":")])
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
    /// The command that starts the machine.
    pub fn command(&self) -> Command {
        let mut cmd = program(self.rig);
        cmd.args(self.accel_args());
        cmd.args(self.arguments());
        cmd
    }

    fn accel_args(&self) -> Vec<String> {
        let words: &[&str] = match (self.icount, self.accel) {
            // An emulated `rep movsb` counts an instruction for each byte and
            // would drown all else: take the string instructions away.
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

    fn arguments(&self) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        let mut add = |option: &str, value: String| args.extend([option.to_owned(), value]);
        add("-smp", self.cpus.to_string());
        add("-m", self.mem.to_owned());
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
            // The end that listens blocks when the other takes nothing, its whole guest with it
            // (QEMU 10). It is guest 2, which is the one that tests freeze.
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
            // Without merged receive buffers, which the driver takes from a page pool: rxe gives
            // packets of a failed queue pair back under that queue pair's lock, giving one back to
            // a page pool runs the next receive, and that wants the same lock.
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

/// The rate of the time stamp counter, which guests in software emulation see as it is. They would
/// measure it against an emulated timer, and on a busy machine be wrong by a factor, and their clock
/// with it.
fn tsc_khz() -> u64 {
    const SPAN: Duration = Duration::from_millis(20);
    // SAFETY: Every x86-64 processor has the instruction.
    let counter = || unsafe { core::arch::x86_64::_rdtsc() };
    // Being interrupted between the two readings makes one measurement wrong, not most.
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

/// A path as part of an option with commas.
fn escape(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
