// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a test does to the guest around it.

use anyhow::{bail, Context, Result};
use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

/// The line to the host, which acts on this guest: there in the two-guest topology.
const CONTROL: &str = "/dev/virtio-ports/kfi.ctl";

/// Asks the host for something: `link off`, `link on`, `freeze SECONDS`, `kill`.
///
/// # Errors
///
/// When there is no host that listens.
pub fn ask_host(what: &str) -> Result<()> {
    let mut port = File::options().write(true).open(CONTROL).context(CONTROL)?;
    port.write_all(format!("{what}\n").as_bytes())
        .context(CONTROL)?;
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

/// A module's file, where the build put it.
///
/// # Errors
///
/// When it is nowhere.
pub fn module_file(name: &str) -> Result<std::path::PathBuf> {
    let roots = std::env::var("KFI_MODULES").unwrap_or_else(|_| "/kfi/modules:/kfi".into());
    let file = format!("{name}.ko");
    for root in roots.split(':') {
        for dir in [
            "",
            "kfabric",
            "kverbs-provider",
            "consumers",
            "consumers/kfi-sample",
        ] {
            let path = std::path::Path::new(root).join(dir).join(&file);
            if path.is_file() {
                return Ok(path);
            }
        }
    }
    bail!("{file} is not in {roots}")
}
