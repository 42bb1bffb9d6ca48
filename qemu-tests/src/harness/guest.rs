// SPDX-License-Identifier: MIT OR Apache-2.0

//! Actions of a test on its guest.

use crate::sys::Errno;
use anyhow::{bail, Context, Result};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The line to the host, which acts on this guest; present in the two-guest topology.
const CONTROL: &str = "/dev/virtio-ports/kfi.ctl";
/// Root of the control groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// Requests an action of the host: `link off`, `link on`, `freeze SECONDS`, or `kill SECONDS`, a
/// freeze that ends with the machine's death. Returns when it is done.
///
/// # Errors
///
/// If no host listens, or the action fails.
pub fn ask_host(what: &str) -> Result<()> {
    let mut port = File::options()
        .read(true)
        .write(true)
        .open(CONTROL)
        .context(CONTROL)?;
    port.write_all(format!("{what}\n").as_bytes())
        .context(CONTROL)?;
    let mut answer = String::new();
    BufReader::new(port)
        .read_line(&mut answer)
        .context(CONTROL)?;
    if answer.trim() != "ok" {
        bail!("the host answers {what:?} with {answer:?}");
    }
    Ok(())
}

/// Runs a program. Returns its output.
///
/// # Errors
///
/// If it cannot be run or fails.
pub fn run(program: &str, args: &[&str]) -> Result<String> {
    let out = Command::new(program)
        .args(args)
        .output()
        .with_context(|| program.to_owned())?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        let err = String::from_utf8_lossy(&out.stderr);
        bail!("{program} {}: {}: {said}{err}", args.join(" "), out.status);
    }
    Ok(said)
}

/// Creates a control group that counts memory. Returns `None` if the kernel has none.
pub fn memory_group(name: &str) -> Option<PathBuf> {
    let root = Path::new(GROUPS);
    fs::write(root.join("cgroup.subtree_control"), "+memory").ok()?;
    let group = root.join(name);
    let _ = fs::create_dir(&group);
    Some(group)
}

/// A control group that counts the memory of this process.
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Moves this process into the group. Returns `None` if the kernel counts no memory.
    ///
    /// # Errors
    ///
    /// If it cannot be moved.
    pub fn join(name: &str) -> Result<Option<Self>> {
        let Some(group) = memory_group(name).map(Self) else {
            return Ok(None);
        };
        fs::write(group.0.join("cgroup.procs"), "0")?;
        Ok(Some(group))
    }

    /// Returns the bytes charged now.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn current(&self) -> Result<u64> {
        let text = fs::read_to_string(self.0.join("memory.current"))?;
        Ok(text.trim().parse()?)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::write(Path::new(GROUPS).join("cgroup.procs"), "0");
        let _ = fs::remove_dir(&self.0);
    }
}

/// Calls `f` repeatedly until it returns a value. The first argument names the event in the error.
///
/// # Errors
///
/// If time is up.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut f: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let limit = crate::sys::patience(limit);
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = f()? {
            return Ok(value);
        }
        if Instant::now() >= end {
            bail!("{what}: not after {:.1} s", limit.as_secs_f32());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Checks that the end of four times as many objects does not take more than nine times as long.
/// `end` makes as many objects as it is told to, ends them, and returns how long the end took.
///
/// A busy host prolongs some measurements, so the shortest of three counts. Three of the small number
/// are always made: one that was too long would hide a fault.
///
/// # Errors
///
/// If the end takes longer than that, or `end` fails.
pub fn ends_in_linear_time(few: u32, mut end: impl FnMut(u32) -> Result<Duration>) -> Result<()> {
    const TRIES: usize = 3;
    let (mut one, mut four) = (Duration::MAX, Duration::MAX);
    for _ in 0..TRIES {
        one = one.min(end(few)?);
    }
    for _ in 0..TRIES {
        four = four.min(end(4 * few)?);
        // A walk through all objects at each end takes sixteen times as long.
        if four < one * 9 || four < Duration::from_millis(100) {
            return Ok(());
        }
    }
    bail!("{few} objects end in {one:?}, four times as many in {four:?}")
}

/// Returns the number of users of a loaded module, or `None` if it is not loaded.
pub fn module_users(name: &str) -> Option<i64> {
    let path = format!("/sys/module/{name}/refcnt");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Parameters of kverbs that a test run sets for all tests: how keys are revoked, and the driver by whose
/// policies kverbs acts. With their first values.
const KEPT: [(&str, &str); 2] = [("revoke", "auto"), ("as_driver", "0")];

/// Changed values of [`KEPT`] when this process unloaded kverbs, as parameters for the next load.
static KEPT_VALUES: Mutex<String> = Mutex::new(String::new());

/// Returns the changed values of [`KEPT`] of the loaded kverbs.
fn kept_values() -> String {
    let value = |(name, first): &(&str, &str)| {
        let path = format!("/sys/module/kverbs/parameters/{name}");
        let value = fs::read_to_string(path).ok()?;
        // A write of `as_driver` taints the kernel.
        (value.trim() != *first).then(|| format!(" {name}={}", value.trim()))
    };
    KEPT.iter().filter_map(value).collect()
}

/// Folder of the built modules.
const MODULES: &str = "/kfi/ko";

/// Loads one of our modules. If this process has unloaded kverbs ([`unload`]), kverbs has the same policies
/// again: the profile or the way to revoke that `kfi-tests run` has set.
///
/// # Errors
///
/// If it is missing or does not load.
pub fn load(name: &str) -> Result<()> {
    let params = match name {
        // Features that are off by default.
        "kverbs" => {
            let kept = KEPT_VALUES.lock().unwrap_or_else(PoisonError::into_inner);
            format!("iwarp=1{kept}")
        }
        _ => String::new(),
    };
    load_with(name, &params)
}

/// Loads one of our modules with parameters.
///
/// # Errors
///
/// If it is missing or does not load.
pub fn load_with(name: &str, params: &str) -> Result<()> {
    let spelt = [name.to_owned(), name.replace('_', "-")];
    let paths = spelt.map(|n| std::path::Path::new(MODULES).join(n + ".ko"));
    let path = paths
        .iter()
        .find(|p| p.is_file())
        .with_context(|| format!("{name}.ko is not in {MODULES}"))?;
    let file = File::open(path)?;
    crate::sys::load_module(&file, params).with_context(|| format!("loading {name}"))
}

/// Unloads a module, if it has no users.
///
/// # Errors
///
/// The system call's.
pub fn try_unload(name: &str) -> Result<(), Errno> {
    let kept = match name {
        "kverbs" => kept_values(),
        _ => String::new(),
    };
    crate::sys::unload_module(name)?;
    if name == "kverbs" {
        *KEPT_VALUES.lock().unwrap_or_else(PoisonError::into_inner) = kept;
    }
    Ok(())
}

/// Unloads a module, waiting a little for its last users.
///
/// # Errors
///
/// If it stays in use.
pub fn unload(name: &str) -> Result<()> {
    until(
        &format!("unloading {name}"),
        Duration::from_secs(5),
        || match try_unload(name) {
            Ok(()) => Ok(Some(())),
            Err(e) if [libc::EAGAIN, libc::EBUSY].contains(&e.0) => Ok(None),
            Err(e) => Err(e.into()),
        },
    )
}

/// The kernel's path of `modprobe`.
const MODPROBE: &str = "/proc/sys/kernel/modprobe";

/// While the value exists, `modprobe` finds our modules instead of the kernel's, and each request
/// of the kernel for a module is recorded.
pub struct Autoload {
    dir: PathBuf,
    before: String,
}

impl Autoload {
    /// Makes a folder of our modules, with the lists of `depmod`, and serves requests from it.
    ///
    /// # Errors
    ///
    /// If the folder cannot be made, or `depmod` fails.
    pub fn begin(modules: &[&str]) -> Result<Self> {
        let dir = std::env::temp_dir().join("kfi-autoload");
        let _ = fs::remove_dir_all(&dir);
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let release = release.trim();
        let to = dir.join("lib/modules").join(release);
        fs::create_dir_all(&to)?;
        for name in modules {
            let file = format!("{name}.ko");
            fs::copy(Path::new(MODULES).join(&file), to.join(&file)).context(file)?;
        }
        let base = dir.display().to_string();
        run("depmod", &["-b", &base, release])?;
        let script = dir.join("modprobe");
        let text =
            format!("#!/bin/sh\necho \"$3\" >>{base}/requests\nexec modprobe -d {base} \"$@\"\n");
        fs::write(&script, text)?;
        fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        fs::write(dir.join("requests"), "")?;
        let before = fs::read_to_string(MODPROBE)?;
        fs::write(MODPROBE, script.display().to_string())?;
        Ok(Self { dir, before })
    }

    /// Returns the names that the kernel has requested since the last call.
    ///
    /// # Errors
    ///
    /// If the record cannot be read.
    pub fn requests(&self) -> Result<Vec<String>> {
        let record = self.dir.join("requests");
        let text = fs::read_to_string(&record)?;
        fs::write(&record, "")?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Returns one of the lists that `depmod` made.
    ///
    /// # Errors
    ///
    /// If the list cannot be read.
    pub fn list(&self, name: &str) -> Result<String> {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let folder = self.dir.join("lib/modules").join(release.trim());
        fs::read_to_string(folder.join(name)).context(name.to_owned())
    }
}

impl Drop for Autoload {
    fn drop(&mut self) {
        let _ = fs::write(MODPROBE, self.before.trim());
        let _ = fs::remove_dir_all(&self.dir);
    }
}
