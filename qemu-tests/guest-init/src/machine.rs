// SPDX-License-Identifier: MIT OR Apache-2.0

//! Duties of the first process: file systems, ports, modules, processes.

use crate::protocol::Config;
use anyhow::{bail, Context as _, Result};
use nix::errno::Errno;
use nix::mount::{mount, MsFlags};
use nix::sys::reboot::{reboot, RebootMode};
use nix::sys::signal::{kill, Signal};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

/// Type, place and options of each file system.
const MOUNTS: [(&str, &str, &str); 8] = [
    ("devpts", "/dev/pts", "mode=620,ptmxmode=666"),
    ("tmpfs", "/dev/shm", "mode=1777"),
    ("tmpfs", "/run", "mode=755"),
    ("tmpfs", "/tmp", "mode=1777"),
    ("debugfs", "/sys/kernel/debug", ""),
    ("tracefs", "/sys/kernel/tracing", ""),
    ("cgroup2", "/sys/fs/cgroup", ""),
    ("configfs", "/sys/kernel/config", ""),
];

/// Mounts the file systems that programs expect.
pub(crate) fn mount_all() -> Result<()> {
    // configfs is a module; kernels without it do without.
    let _ = run("modprobe", &["configfs"]);
    for (kind, at, options) in MOUNTS {
        let _ = std::fs::create_dir_all(at);
        match mount(Some(kind), at, Some(kind), MsFlags::empty(), Some(options)) {
            Ok(()) | Err(Errno::EBUSY) => {}
            Err(_) if kind == "configfs" => {}
            Err(error) => bail!("mounting {at}: {error}"),
        }
    }
    // A terminal's end of `/dev/ptmx`, and core files that are discarded.
    let _ = std::fs::write("/proc/sys/kernel/core_pattern", "|/bin/false");
    Ok(())
}

/// Mounts the folder of the host that was named on xtask's command line.
pub(crate) fn mount_host() -> Result<()> {
    mount(
        Some("kfabric-host"),
        "/host",
        Some("9p"),
        MsFlags::empty(),
        Some("trans=virtio,version=9p2000.L,msize=262144,cache=mmap"),
    )
    .context("mounting /host")
}

/// Mounts a layer of programs at `/opt/TAG`. Tests share this mount: a machine can mount each tag
/// only once.
pub(crate) fn mount_layer(tag: &str) -> Result<()> {
    let at = Path::new("/opt").join(tag);
    std::fs::create_dir_all(&at)?;
    let options = "trans=virtio,version=9p2000.L,msize=262144,cache=loose";
    mount(
        Some(tag),
        &at,
        Some("9p"),
        MsFlags::MS_RDONLY,
        Some(options),
    )
    .with_context(|| format!("mounting {}", at.display()))
}

/// Creates the names of the virtio ports that udev would create.
pub(crate) fn name_ports() -> Result<()> {
    let dir = Path::new("/dev/virtio-ports");
    std::fs::create_dir_all(dir)?;
    for entry in std::fs::read_dir("/sys/class/virtio-ports").context("no virtio ports")? {
        let entry = entry?;
        let Ok(name) = std::fs::read_to_string(entry.path().join("name")) else {
            continue;
        };
        let link = dir.join(name.trim());
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(Path::new("/dev").join(entry.file_name()), link)?;
    }
    Ok(())
}

/// Opens a virtio port by its name.
pub(crate) fn open_port(name: &str) -> Result<File> {
    File::options()
        .read(true)
        .write(true)
        .open(Path::new("/dev/virtio-ports").join(name))
        .with_context(|| format!("opening the port {name}"))
}

/// Reads the guest's configuration.
pub(crate) fn config() -> Result<Config> {
    let line = std::fs::read_to_string("/proc/cmdline")?;
    let number = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("kfabric.guest="))
        .context("the kernel's command line does not say which guest this is")?;
    let path = format!("/kfi/guest-{number}.json");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    serde_json::from_str(&text).context(path)
}

/// Loads a module from `/kfi/ko`, and the kernel's modules that it needs.
pub(crate) fn load(file: &str) -> Result<()> {
    let path = format!("/kfi/ko/{file}");
    let depends = run("modinfo", &["--field", "depends", &path])?;
    for name in depends.trim().split(',').filter(|name| !name.is_empty()) {
        // Our own modules are loaded already.
        if !Path::new("/sys/module").join(name).exists() {
            run("modprobe", &[name])?;
        }
    }
    let mut args = vec![path.as_str()];
    if file == "kverbs.ko" {
        // Off by default. The kernel's own requests for the module use the file.
        std::fs::create_dir_all("/etc/modprobe.d")?;
        std::fs::write("/etc/modprobe.d/kverbs.conf", "options kverbs iwarp=1\n")?;
        args.push("iwarp=1");
    }
    run("insmod", &args).map(drop)
}

/// Runs a program to its end. Returns its output.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .env("PATH", crate::node::PATH)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("{program} {}: {} ({said})", args.join(" "), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Collects an exited process; every orphan is this process's child.
pub(crate) fn reap(block: bool) -> Option<(i32, i32)> {
    let flags = (!block).then_some(WaitPidFlag::WNOHANG);
    loop {
        match waitpid(None, flags) {
            Ok(WaitStatus::Exited(pid, status)) => return Some((pid.as_raw(), status)),
            Ok(WaitStatus::Signaled(pid, signal, _)) => {
                return Some((pid.as_raw(), 128 + signal as i32))
            }
            Ok(WaitStatus::StillAlive) => return None,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return None,
        }
    }
}

/// Kills every other process.
pub(crate) fn kill_all() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let _ = kill(Pid::from_raw(-1), signal);
        for _ in 0..20 {
            while reap(false).is_some() {}
            if waitpid(None, Some(WaitPidFlag::WNOHANG)) == Err(Errno::ECHILD) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

/// Powers the guest off.
pub(crate) fn power_off() {
    nix::unistd::sync();
    let _ = reboot(RebootMode::RB_POWER_OFF);
}
