// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a test does to the guest around it.

use anyhow::{bail, Context, Result};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The line to the host, which acts on this guest: there in the two-guest topology.
const CONTROL: &str = "/dev/virtio-ports/kfi.ctl";
/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";

/// Asks the host for something: `link off`, `link on`, `freeze SECONDS`, `kill`. Returns when it
/// is done.
///
/// # Errors
///
/// When there is no host that listens, or it cannot.
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

/// Runs a program; its output.
///
/// # Errors
///
/// When it cannot be run or fails.
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

/// A control group that counts memory; `None`: the kernel has none.
pub fn memory_group(name: &str) -> Option<PathBuf> {
    let root = Path::new(GROUPS);
    fs::write(root.join("cgroup.subtree_control"), "+memory").ok()?;
    let group = root.join(name);
    let _ = fs::create_dir(&group);
    Some(group)
}

/// Has a control group of its own count the memory of this process.
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Puts this process there; `None`: the kernel counts none.
    ///
    /// # Errors
    ///
    /// When it cannot be moved.
    pub fn join(name: &str) -> Result<Option<Self>> {
        let Some(group) = memory_group(name).map(Self) else {
            return Ok(None);
        };
        fs::write(group.0.join("cgroup.procs"), "0")?;
        Ok(Some(group))
    }

    /// Bytes that it has now.
    ///
    /// # Errors
    ///
    /// When they cannot be read.
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

/// Tries again and again until `f` gives something; `what` is for the error.
///
/// # Errors
///
/// When time is up.
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

/// Users of a loaded module; `None`: it is not loaded.
pub fn module_users(name: &str) -> Option<i64> {
    let path = format!("/sys/module/{name}/refcnt");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Where the build puts the modules.
const MODULES: &str = "/kfi/ko";

/// Loads one of our modules.
///
/// # Errors
///
/// When it is not there or does not load.
pub fn load(name: &str) -> Result<()> {
    load_with(name, "")
}

/// Loads one of our modules with parameters.
///
/// # Errors
///
/// When it is not there or does not load.
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

/// Unloads a module, waiting a little for users that are about to go.
///
/// # Errors
///
/// When it stays in use.
pub fn unload(name: &str) -> Result<()> {
    until(
        &format!("unloading {name}"),
        Duration::from_secs(5),
        || match crate::sys::unload_module(name) {
            Ok(()) => Ok(Some(())),
            Err(e) if [libc::EAGAIN, libc::EBUSY].contains(&e.0) => Ok(None),
            Err(e) => Err(e.into()),
        },
    )
}
