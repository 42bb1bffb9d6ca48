// SPDX-License-Identifier: MIT OR Apache-2.0

//! A node's command: its output, and its environment.

use crate::machine::open_port;
use crate::network::{peer, place};
use crate::protocol::{output_port, Config, Stream};
use anyhow::{Context as _, Result};
use nix::mount::{mount, umount2, MntFlags, MsFlags};
use nix::sched::{setns, unshare, CloneFlags};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Search path of programs.
pub(crate) const PATH: &str =
    "/kfi/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Starts a node's command. Returns its process.
pub(crate) fn start(config: &Config, node: u8) -> Result<i32> {
    let place = place(config.topology, config.device, node);
    let other = peer(config.topology, node);
    let other = crate::network::place(config.topology, config.device, other);
    let program = config.argv.first().context("no command")?;
    let mut cmd = Command::new(program);
    cmd.args(&config.argv[1..])
        .current_dir(if config.host { "/host" } else { "/root" })
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", "/root")
        .env("LC_ALL", "C.UTF-8")
        .env(
            "TERM",
            if config.interactive {
                "xterm-256color"
            } else {
                "dumb"
            },
        )
        .env("KFI_TOPOLOGY", config.topology.name())
        .env("KFI_NODE", node.to_string())
        .env("KFI_ADDR", &place.addr)
        .env("KFI_ADDR6", &place.addr6)
        .env("KFI_PEER", &other.addr)
        .env("KFI_PEER6", &other.addr6)
        .env("KFI_DEV", &place.dev)
        .env("KFI_DEVICE", config.device.name())
        .env("KFI_NETDEV", &place.netdev)
        .envs(&config.env);
    if config.interactive {
        attach_terminal(&mut cmd, config, node)?;
    } else {
        cmd.stdin(Stdio::null())
            .stdout(open_port(&output_port(node, Stream::Out))?)
            .stderr(open_port(&output_port(node, Stream::Err))?);
    }
    let netns = match &place.netns {
        Some(name) => {
            Some(File::open(Path::new("/run/netns").join(name)).context("the node's namespace")?)
        }
        None => None,
    };
    let interactive = config.interactive;
    // SAFETY: between fork and exec of this single-threaded process the
    // closure makes system calls only; it allocates nothing that it shares.
    unsafe {
        cmd.pre_exec(move || {
            nix::unistd::setsid()?;
            if interactive {
                // SAFETY: TIOCSCTTY takes an integer; fd 0 is the terminal.
                nix::errno::Errno::result(libc::ioctl(0, libc::TIOCSCTTY, 0))?;
            }
            if let Some(netns) = &netns {
                enter(netns)?;
            }
            Ok(())
        });
    }
    let child = cmd.spawn().with_context(|| format!("starting {program}"))?;
    i32::try_from(child.id()).context("a process number")
}

/// Enters a network namespace, with a /sys that shows it.
fn enter(netns: &File) -> nix::Result<()> {
    setns(netns.as_fd(), CloneFlags::CLONE_NEWNET)?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_SLAVE | MsFlags::MS_REC, none)?;
    umount2("/sys", MntFlags::MNT_DETACH)?;
    for (kind, at) in [
        ("sysfs", "/sys"),
        ("debugfs", "/sys/kernel/debug"),
        ("tracefs", "/sys/kernel/tracing"),
        ("cgroup2", "/sys/fs/cgroup"),
    ] {
        mount(Some(kind), at, Some(kind), MsFlags::empty(), none)?;
    }
    // configfs is a module; kernels without it do without.
    let _ = mount(
        Some("configfs"),
        "/sys/kernel/config",
        Some("configfs"),
        MsFlags::empty(),
        none,
    );
    Ok(())
}

/// Connects the command to the node's terminal.
fn attach_terminal(cmd: &mut Command, config: &Config, node: u8) -> Result<()> {
    let index = config
        .nodes
        .iter()
        .position(|there| *there == node)
        .unwrap_or(0);
    let path = format!("/dev/hvc{index}");
    let tty = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .context(path)?;
    if let Some((rows, cols)) = config.size {
        let size = libc::winsize {
            ws_row: rows,
            ws_col: cols,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: the descriptor is open and `size` lives through the call.
        let _ = unsafe {
            libc::ioctl(
                std::os::fd::AsRawFd::as_raw_fd(&tty),
                libc::TIOCSWINSZ,
                &size,
            )
        };
    }
    let host = if config.nodes.len() > 1 {
        "guest"
    } else {
        "node"
    };
    cmd.env("PS1", format!("{host}[{node}]:\\w# "));
    cmd.stdin(tty.try_clone()?)
        .stdout(tty.try_clone()?)
        .stderr(tty);
    Ok(())
}

/// Reports on the node's standard error why its command could not be started.
pub(crate) fn complain(config: &Config, node: u8, error: &anyhow::Error) {
    let text = format!("{error:#}\n");
    let said = if config.interactive {
        std::fs::write("/dev/hvc0", text).map_err(anyhow::Error::from)
    } else {
        open_port(&output_port(node, Stream::Err))
            .and_then(|mut port| Ok(port.write_all(text.as_bytes())?))
    };
    if let Err(error) = said {
        eprintln!("guest-init: {error:#}");
    }
}
