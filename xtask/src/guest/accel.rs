// SPDX-License-Identifier: MIT OR Apache-2.0

//! The accelerator of guests: hardware only if it works.
//!
//! `/dev/kvm` may exist, open and create machines, and still not run a guest. So a guest is booted
//! under KVM once, with a short limit. The result is kept until the host reboots. `KFABRIC_ACCEL`
//! (`kvm` or `tcg`) overrides the result.

use super::qemu;
use crate::context::Context;
use crate::progress::Step;
use crate::setup::{initrd, stage, Rig};
use anyhow::{bail, Result};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The accelerator of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// Emulation in software (TCG).
    Tcg,
    /// Virtualization in hardware (KVM).
    Kvm,
}

/// Time limit of a probed guest.
const LIMIT: Duration = Duration::from_secs(10);

/// Chooses the accelerator.
///
/// # Errors
///
/// If `KFABRIC_ACCEL` is neither `kvm` nor `tcg`.
pub fn choose(ctx: &Context, rig: &Rig) -> Result<Accel> {
    match std::env::var("KFABRIC_ACCEL").as_deref() {
        Ok("tcg") => return Ok(Accel::Tcg),
        Ok("kvm") => return Ok(Accel::Kvm),
        Ok("") | Err(_) => {}
        Ok(other) => bail!("KFABRIC_ACCEL is {other:?}; it can be \"kvm\" or \"tcg\""),
    }
    let kvm = Path::new("/dev/kvm");
    if std::fs::File::options()
        .read(true)
        .write(true)
        .open(kvm)
        .is_err()
    {
        return Ok(Accel::Tcg);
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let key = stage::key(&[
        "probe",
        boot.trim(),
        &rig.initrd.to_string_lossy(),
        &rig.root.to_string_lossy(),
    ]);
    let record = ctx.cache.join("accel");
    let known = std::fs::read_to_string(&record).unwrap_or_default();
    let works = match known.trim().split_once(' ') {
        Some((known, works)) if known == key => works == "kvm",
        _ => {
            let step = Step::new(ctx, "probe whether a guest runs under KVM");
            let works = probe(ctx, rig);
            step.done();
            if !works {
                eprintln!(
                    "  it does not: guests run in software emulation (KFABRIC_ACCEL overrides)"
                );
            }
            // Without the record, the next run probes again.
            let _ = std::fs::write(
                &record,
                format!("{key} {}\n", if works { "kvm" } else { "tcg" }),
            );
            works
        }
    };
    Ok(if works { Accel::Kvm } else { Accel::Tcg })
}

/// Returns whether a guest boots under KVM within the limit.
fn probe(ctx: &Context, rig: &Rig) -> bool {
    let console = ctx.cache.join(format!("probe-{}.log", std::process::id()));
    let mut cmd = qemu::program(rig);
    cmd.args([
        "-accel",
        "kvm",
        "-cpu",
        "host",
        "-m",
        "512M",
        "-nodefaults",
        "-display",
        "none",
        "-no-reboot",
    ])
    .args(["-append", "console=ttyS0 kfabric.probe"])
    .arg("-kernel")
    .arg(rig.packages.join("vmlinuz"))
    .arg("-initrd")
    .arg(&rig.initrd)
    .arg("-serial")
    .arg(format!("file:{}", console.display()))
    .stdin(Stdio::null())
    .stdout(Stdio::null())
    .stderr(Stdio::null());
    let started = Instant::now();
    let mut works = false;
    if let Ok(mut child) = cmd.spawn() {
        while started.elapsed() < LIMIT && !works {
            let over = child.try_wait().is_ok_and(|status| status.is_some());
            works = std::fs::read(&console)
                .is_ok_and(|log| String::from_utf8_lossy(&log).contains(initrd::PROBE_LINE));
            if over {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
    let _ = std::fs::remove_file(console);
    works
}
