// SPDX-License-Identifier: MIT OR Apache-2.0

//! Commands that run inside the build root.
//!
//! Folders are bind-mounted under their own paths, so that a compiler's messages contain valid
//! paths. The mounts belong to a namespace of the command. Mounts and processes end with the
//! command, also if xtask is killed.

use anyhow::{bail, Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A bind mount into the root.
#[derive(Debug, Clone)]
pub struct Bind {
    /// The folder outside of the root.
    pub from: PathBuf,
    /// Path of the folder inside the root.
    pub at: PathBuf,
}

impl Bind {
    /// Returns a bind mount of a folder under its own path.
    pub fn same(path: &Path) -> Self {
        Self {
            from: path.to_owned(),
            at: path.to_owned(),
        }
    }
}

/// Script that enters the root: mounts, changes the folder, runs the command. Each command has its
/// own `/tmp`, because process numbers, by which programs name files, repeat in all commands.
///
/// With a second folder (not empty), the root stays unchanged: changes go to that folder, and end
/// with it.
const ENTER: &str = r#"
root=$1 scratch=$2 cwd=$3; shift 3
if [ -n "$scratch" ]; then
    mkdir -p "$scratch/upper" "$scratch/work" "$scratch/root"
    options="lowerdir=$root,upperdir=$scratch/upper,workdir=$scratch/work"
    root=$scratch/root
    mount -t overlay -o "$options" overlay "$root"
    # The machine's own name service, for downloads.
    rm -f "$root/etc/resolv.conf"
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
fi
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
while [ "$1" != -- ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    shift 2
done
shift
exec chroot "$root" /usr/bin/env -C "$cwd" "$@"
"#;

/// Options of unshare for a process namespace that ends with its first process.
const TIED: [&str; 5] = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// Returns a command that ends, with all its child processes, when xtask ends in any way.
pub fn tied(program: &str) -> Command {
    let mut cmd = Command::new("setpriv");
    cmd.args(["--pdeathsig", "KILL"]);
    if is_root() {
        cmd.arg("unshare").args(TIED);
    }
    cmd.arg(program);
    cmd
}

/// Returns a command that runs `argv` in `root`, in folder `cwd`, with `binds`.
pub fn command(root: &Path, binds: &[Bind], cwd: &Path, argv: &[&str]) -> Command {
    enter(root, Path::new(""), binds, cwd, argv)
}

/// As [`command`], but leaves `root` unchanged: changes go to the folder `scratch`.
pub fn overlaid(root: &Path, scratch: &Path, binds: &[Bind], cwd: &Path, argv: &[&str]) -> Command {
    enter(root, scratch, binds, cwd, argv)
}

fn enter(root: &Path, scratch: &Path, binds: &[Bind], cwd: &Path, argv: &[&str]) -> Command {
    let mut cmd = Command::new("setpriv");
    cmd.args(["--pdeathsig", "KILL", "unshare"]);
    if !is_root() {
        cmd.args(["--user", "--map-root-user", "--map-auto"]);
    }
    cmd.args(TIED)
        .args(["sh", "-ec", ENTER, "kfabric-chroot"])
        .arg(root)
        .arg(scratch)
        .arg(cwd);
    for bind in binds {
        cmd.arg(&bind.from).arg(&bind.at);
    }
    cmd.arg("--").args(argv);
    let term = std::env::var_os("TERM").unwrap_or_else(|| "dumb".into());
    cmd.env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("HOME", "/root")
        .env("LC_ALL", "C.UTF-8")
        .env("TERM", term);
    cmd
}

/// Runs `cmd` with its output in the file `log`.
///
/// # Errors
///
/// If the command cannot be started or fails; the error contains the end of the log.
pub fn run_logged(mut cmd: Command, log: &Path) -> Result<()> {
    if let Some(dir) = log.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let file = std::fs::File::create(log).with_context(|| format!("making {}", log.display()))?;
    let program = cmd.get_program().to_string_lossy().into_owned();
    let status = cmd
        .stdin(std::process::Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .with_context(|| format!("starting {program}"))?;
    if status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(30)..].join("\n");
    bail!(
        "{program} failed ({status}); the end of {}:\n{tail}",
        log.display()
    );
}

/// Returns whether this process runs as root.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}
