// SPDX-License-Identifier: MIT OR Apache-2.0

//! The booted part of `package --test`: machines with the distribution's systemd, on which the
//! packages are installed by apt. A machine keeps its disk over its boots.

use crate::chroot::{overlaid, run_logged, Bind};
use crate::context::Context;
use crate::files;
use crate::guest::accel;
use crate::guest::klog;
use crate::guest::qemu::{Cable, Machine};
use crate::progress::Step;
use crate::setup::Rig;
use anyhow::{bail, ensure, Context as _, Result};
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of a boot with its step: ten times the usual time.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Installs everything on a machine that does not run yet. Arguments: the kernel's release, its
/// version and its series.
const INSTALL: &str = r#"
release=$1 version=$2 series=$3
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
# The build root leaves documents out, with the examples.
rm -f /etc/dpkg/dpkg.cfg.d/99mmdebstrap
mkdir -p /packages
cp /mnt/*.deb /packages/
apt-get update
# The packages name all tools that they need.
apt-get purge -y --autoremove bc bindgen bison dkms dwarves flex libelf-dev libssl-dev rust-src rustc
apt-get install -y --no-install-recommends bpftrace systemd-sysv udev dbus iputils-ping openssl procps \
    "linux-headers-$release=$version" "linux-source-$series=$version"
apt-get install -y --no-install-recommends /packages/*.deb
rm /usr/sbin/policy-rc.d
depmod "$release"
useradd --create-home --groups rdma member
useradd --create-home outsider
cat >/usr/local/sbin/kfabric-installed <<'SCRIPT'
#!/bin/sh
mount -t 9p -o trans=virtio,version=9p2000.L,ro kfabric-run /mnt
exec bash /mnt/installed.sh
SCRIPT
chmod 755 /usr/local/sbin/kfabric-installed
cat >/etc/systemd/system/kfabric-installed.service <<'UNIT'
[Unit]
Description=The test of an installed machine
Wants=network-online.target
After=network-online.target
[Service]
Type=exec
ExecStart=/usr/local/sbin/kfabric-installed
[Install]
WantedBy=multi-user.target
UNIT
cat >/etc/systemd/system/kfabric-network.service <<'UNIT'
[Unit]
Description=Network and RDMA device of the machine
Wants=network.target
Before=network.target network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/kfabric-network
[Install]
WantedBy=multi-user.target network-online.target
UNIT
cat >/usr/local/sbin/kfabric-network <<'SCRIPT'
#!/bin/sh
set -e
node=$(sed 's/.*kfabric.node=\([0-9]\).*/\1/' /proc/cmdline)
[ -e /sys/class/net/eth0 ] || ip link add eth0 type dummy
ip link set eth0 up
ip address add "10.77.0.$node/24" dev eth0
[ ! -e /var/pair.img ] || losetup /dev/loop0 /var/pair.img
SCRIPT
chmod 755 /usr/local/sbin/kfabric-network
systemctl enable kfabric-installed kfabric-network kfi-rxe@eth0
# A login on the console would take the console from the test.
systemctl mask serial-getty@ttyS0
systemctl disable nvmefc-boot-connections nvmf-autoconnect || true
systemctl set-default multi-user.target
"#;

/// The script of all steps.
const STEPS: &str = include_str!("installed.sh");

/// The tutorial, whose commands a machine runs.
const TUTORIAL: &str = include_str!("../../../docs/tutorial.md");
/// The words of a console's line when a disk has not found its export.
const NO_EXPORT: [&str; 2] = ["Failed to start", "kfblk-connect@pair"];

/// Which of two machines starts first.
#[derive(Clone, Copy)]
enum Order {
    /// None.
    Together,
    /// The disk's, until it has not found the export.
    DiskFirst,
}

/// The folder and the parts of the test.
struct Rigged<'a> {
    ctx: &'a Context,
    rig: &'a Rig,
    folder: PathBuf,
}

/// Installs the packages `debs` on a machine, boots it, reboots it, purges the packages; then two
/// machines that start in either order.
///
/// # Errors
///
/// If a step fails; the error contains the end of its output.
pub(super) fn run(ctx: &Context, rig: &Rig, debs: &[PathBuf]) -> Result<()> {
    let folder = ctx.target.join("package-installed");
    let _ = fs::remove_dir_all(&folder);
    let test = Rigged { ctx, rig, folder };
    fs::create_dir_all(test.share())?;
    fs::write(test.share().join("installed.sh"), STEPS)?;
    fs::write(test.share().join("tutorial.md"), TUTORIAL)?;
    test.example()?;
    let first = test.install(debs)?;
    // The pair begins with the machine as installed.
    let single = test.copy(&first, "single")?;
    for step in ["first", "second", "third"] {
        test.boot(step, &[&single], Order::Together)?;
    }
    let disks = [test.copy(&first, "one")?, test.copy(&first, "two")?];
    let other = test.copy(&first, "other")?;
    test.boot("tutorial", &[&other], Order::Together)?;
    test.boot("secure", &[&other], Order::Together)?;
    let both: Vec<&Path> = disks.iter().map(PathBuf::as_path).collect();
    test.boot("pair-set-up", &both, Order::Together)?;
    test.boot("pair", &both, Order::Together)?;
    test.boot("pair", &both, Order::DiskFirst)?;
    fs::remove_dir_all(&test.folder)?;
    Ok(())
}

impl Rigged<'_> {
    /// The folder that the machines see, with the script of all steps.
    fn share(&self) -> PathBuf {
        self.folder.join("share")
    }

    /// Builds the tutorial's program from the files of the package kfabric-dev.
    fn example(&self) -> Result<()> {
        let sources = self.folder.join("sources");
        let at = Path::new("/usr/share/kfabric/rust");
        for file in files::of_development(self.ctx, Path::new("/usr"))? {
            let Ok(path) = file.path.strip_prefix(at) else {
                continue;
            };
            let to = sources.join(path);
            fs::create_dir_all(to.parent().context("no folder")?)?;
            fs::write(&to, &file.content).with_context(|| to.display().to_string())?;
        }
        // The same versions of other crates as everywhere.
        fs::copy(self.ctx.repo.join("Cargo.lock"), sources.join("Cargo.lock"))?;
        let target = self.folder.join("example");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--release", "--package", "kfi-example"]);
        cargo.args(["--bin", "kfi-example", "--target-dir"]);
        cargo.arg(&target).current_dir(&sources);
        run_logged(cargo, &self.ctx.log_dir().join("package-example.log"))?;
        let built = target.join("release/kfi-example");
        fs::copy(&built, self.share().join("kfi-example"))
            .with_context(|| built.display().to_string())?;
        Ok(())
    }

    /// Installs the packages. Returns the image of the machine's disk.
    fn install(&self, debs: &[PathBuf]) -> Result<PathBuf> {
        let step = Step::new(self.ctx, "package test: install a machine");
        let rig = self.rig;
        let scratch = self.folder.join("machine");
        let own = scratch.join("files");
        fs::create_dir_all(&own)?;
        for deb in debs {
            let name = deb.file_name().context("a package without a name")?;
            fs::copy(deb, own.join(name)).with_context(|| deb.display().to_string())?;
        }
        let release = &rig.choice.release;
        let modules = rig.packages.join("lib/modules").join(release);
        let binds = [
            Bind {
                from: own,
                at: "/mnt".into(),
            },
            Bind {
                from: modules.join("kernel"),
                at: Path::new("/usr/lib/modules").join(release).join("kernel"),
            },
        ];
        let argv = [
            "sh",
            "-ec",
            INSTALL,
            "package-test",
            release,
            &rig.choice.version,
            &rig.choice.series,
        ];
        let cmd = overlaid(&rig.root, &scratch, &binds, Path::new("/"), &argv);
        run_logged(cmd, &self.ctx.log_dir().join("package-install.log"))?;
        let disk = self.folder.join("first.img");
        fs::remove_dir_all(scratch.join("files"))?;
        fs::remove_dir_all(scratch.join("root"))?;
        let binds = [Bind::same(&self.folder)];
        let (image, content) = (disk.display().to_string(), scratch.display().to_string());
        let argv = ["mke2fs", "-q", "-t", "ext4", "-d", &content, &image, "8G"];
        let cmd = crate::chroot::command(&rig.root, &binds, Path::new("/"), &argv);
        run_logged(cmd, &self.ctx.log_dir().join("package-disk.log"))?;
        fs::remove_dir_all(&scratch)?;
        step.done();
        Ok(disk)
    }

    /// Copies a disk, with its holes.
    fn copy(&self, disk: &Path, name: &str) -> Result<PathBuf> {
        let to = self.folder.join(format!("{name}.img"));
        let mut cp = Command::new("cp");
        cp.arg("--sparse=always").arg(disk).arg(&to);
        ensure!(cp.status()?.success(), "copying {}", disk.display());
        Ok(to)
    }

    /// Boots a machine for each disk. Waits until all have powered off.
    fn boot(&self, name: &str, disks: &[&Path], order: Order) -> Result<()> {
        let step = Step::new(self.ctx, format!("package test: boot for {name}"));
        let sockets =
            std::env::temp_dir().join(format!("kfabric-installed-{}", std::process::id()));
        let _ = fs::remove_dir_all(&sockets);
        fs::create_dir_all(&sockets)?;
        let ended = self.boot_with(name, disks, order, &sockets);
        fs::remove_dir_all(&sockets)?;
        ended?;
        step.done();
        Ok(())
    }

    fn boot_with(&self, step: &str, disks: &[&Path], order: Order, sockets: &Path) -> Result<()> {
        let accel = accel::choose(self.ctx, self.rig)?;
        let share = self.share();
        let enforce = match step {
            "secure" => " module.sig_enforce=1",
            _ => "",
        };
        let mut running: Vec<(Running, PathBuf, UnixListener)> = Vec::new();
        // The machine with the number 2 listens on the cable, and must run first.
        for (at, disk) in disks.iter().enumerate().rev() {
            let number = u8::try_from(at + 1)?;
            if let (0, Order::DiskFirst, Some((disk, console, _))) = (at, order, running.last_mut())
            {
                wait_for(&mut disk.0, console, &NO_EXPORT)?;
            }
            let console = self
                .ctx
                .log_dir()
                .join(format!("package-{step}-{number}.log"));
            let _ = fs::remove_file(&console);
            let qmp = sockets.join(format!("{number}-qmp"));
            let listener = UnixListener::bind(&qmp)?;
            let cable = sockets.join("cable");
            let machine = Machine {
                rig: self.rig,
                accel,
                icount: false,
                cpus: 2,
                mem: "2G",
                share: &share,
                host_dir: None,
                layers: &[],
                console: &console,
                ports: &[],
                terminals: &[],
                qmp: &qmp,
                cable: (disks.len() > 1).then_some(Cable {
                    socket: &cable,
                    end: number,
                }),
                append: &format!(
                    "net.ifnames=0 systemd.firstboot=off kfabric.installed kfabric.step={step} \
                     kfabric.node={number}{enforce}"
                ),
                disk: Some(disk),
                pmem: None,
            };
            let mut command = machine.command();
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command.stderr(fs::File::create(console.with_extension("qemu"))?);
            let child = Running(command.spawn().context("starting QEMU")?);
            running.push((child, console, listener));
        }
        let started = Instant::now();
        let mut verdict = Ok(());
        for (child, console, _) in &mut running {
            let ended = wait(&mut child.0, LIMIT.saturating_sub(started.elapsed()));
            let log =
                String::from_utf8_lossy(&fs::read(&*console).unwrap_or_default()).into_owned();
            let judged = ended.and_then(|()| judge(step, &log));
            verdict = verdict.and(judged);
        }
        verdict
    }
}

/// A running QEMU, which ends with the value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a line of the console has all `words`.
///
/// # Errors
///
/// If QEMU ends before, or after [`LIMIT`].
fn wait_for(child: &mut Child, console: &Path, words: &[&str]) -> Result<()> {
    let started = Instant::now();
    while child.try_wait()?.is_none() && started.elapsed() < LIMIT {
        let log = fs::read(console).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let has = |line: &str| words.iter().all(|word| line.contains(word));
        if log.lines().any(has) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    bail!("no line with {words:?} on {}", console.display())
}

/// Waits until QEMU ends; kills it at the limit.
fn wait(child: &mut Child, limit: Duration) -> Result<()> {
    let started = Instant::now();
    while child.try_wait()?.is_none() {
        if started.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Checks a machine's console: its last word, and the kernel's complaints.
fn judge(step: &str, log: &str) -> Result<()> {
    if let Some(complaint) = klog::scan(log).first() {
        bail!("step {step}: the kernel complained:\n{}", complaint.around);
    }
    // systemd clears its status line by an escape sequence, which is then in front of the word.
    ensure!(
        log.lines()
            .any(|line| line.trim_end().ends_with("kfabric-installed: ok")),
        "step {step} has failed; the end of its output:\n{}",
        klog::tail(log, 60)
    );
    Ok(())
}
