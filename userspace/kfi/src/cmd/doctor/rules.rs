// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the facts mean: findings, each with the command that mends it.
//!
//! If no command can mend a finding for certain, the finding has a command that shows more.

mod net;
mod peer;
#[cfg(test)]
mod tests;

use kfabric::{uapi, Errno};
use serde::Serialize;

use super::facts::{series, Facts, Kernel, Node, Signing, Socket, MOK, POLICY};
use crate::stats::bytes;

pub(super) use peer::path;

/// Locked memory in bytes that a small program needs: its queues' buffers and a few regions.
const MEMLOCK: u64 = 1 << 20;

/// Reason of a check without an answer.
const NOT_OPENED: &str = "the device was not opened";

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// Could not be checked.
    Unknown,
    /// Works, but not for everything or not well.
    Warning,
    /// Does not work.
    Error,
}

impl Level {
    /// The name that is printed.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Name of the check.
    pub(super) check: &'static str,
    /// The severity.
    pub(super) level: Level,
    /// Result of the check, as text.
    pub(super) what: String,
    /// The command that mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mend: Option<String>,
    /// The command that shows more, if no command mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) check_command: Option<String>,
}

impl Finding {
    fn new(check: &'static str, level: Level, what: impl Into<String>) -> Self {
        Self {
            check,
            level,
            what: what.into(),
            mend: None,
            check_command: None,
        }
    }

    /// A check that found nothing.
    pub(super) fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(check, Level::Ok, what)
    }

    /// A fault.
    pub(super) fn error(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(check, Level::Error, what)
    }

    fn warning(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(check, Level::Warning, what)
    }

    pub(super) fn unknown(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(check, Level::Unknown, what)
    }

    /// Adds the command that mends it.
    pub(super) fn mended_by(mut self, command: impl Into<String>) -> Self {
        self.mend = Some(command.into());
        self
    }

    /// Adds a command that shows more.
    pub(super) fn checked_by(mut self, command: impl Into<String>) -> Self {
        self.check_command = Some(command.into());
        self
    }
}

/// Judges a host.
pub(super) fn host(facts: &Facts) -> Vec<Finding> {
    let mut findings = modules(facts);
    findings.push(version(facts));
    findings.push(device(facts));
    findings.push(memlock(facts));
    findings.extend(net::ports(facts));
    findings.push(auth(facts));
    findings
}

fn modules(facts: &Facts) -> Vec<Finding> {
    let is_loaded = |name: &str| facts.loaded.contains(&name);
    if !is_loaded("kfabric") {
        return vec![unloaded(facts)];
    }
    let mut findings = Vec::new();
    let devices = facts.ports.as_ref().is_some_and(|ports| !ports.is_empty());
    if devices && !is_loaded("kverbs") {
        let what = "kverbs is not loaded, so no RDMA device is used";
        findings.push(Finding::error("module", what).mended_by("modprobe kverbs"));
    }
    if !is_loaded("kshm") {
        let what =
            "kshm is not loaded: processes of this host reach each other by RDMA devices alone";
        findings.push(Finding::warning("module", what).mended_by("modprobe kshm"));
    }
    if findings.is_empty() {
        let what = format!("loaded: {}", facts.loaded.join(", "));
        findings.push(Finding::ok("module", what));
    }
    findings
}

/// Judges a host on which kfabric is not loaded.
fn unloaded(facts: &Facts) -> Finding {
    let (kernel, node) = (&facts.kernel, facts.node.is_some());
    match (kernel.kfabric, kernel.signing) {
        (Some(false), _) => not_installed(kernel),
        (_, Signing::NotEnrolled) => {
            let what = "the kernel loads signed modules only, and does not have the key of DKMS";
            let mend = format!("mokutil --import {MOK}   # then reboot, and enroll the key");
            Finding::error("module", what).mended_by(mend)
        }
        (_, Signing::Unknown) => {
            let what = "kfabric is not loaded, and the kernel loads signed modules only";
            Finding::unknown("module", what).checked_by(format!("mokutil --test-key {MOK}"))
        }
        (Some(true), _) if node => Finding::ok("module", "kfabric loads on first use"),
        (None, _) if node => {
            let what = "kfabric is not loaded, and the program modinfo cannot be run";
            Finding::unknown("module", what).checked_by("modprobe --dry-run kfabric")
        }
        (Some(true) | None, _) => {
            let what = "kfabric is not loaded, and the device file does not exist";
            Finding::error("module", what).mended_by("modprobe kfabric")
        }
    }
}

/// Judges a kernel without the module kfabric.
fn not_installed(kernel: &Kernel) -> Finding {
    let release = &kernel.release;
    if !kernel.dkms {
        let what =
            format!("there is no module kfabric for {release}: kfabric-dkms is not installed");
        let mend = "apt install ./kfabric-dkms_*.deb   # in the folder of the packages";
        return Finding::error("module", what).mended_by(mend);
    }
    let headers = (!kernel.headers).then(|| format!("linux-headers-{release}"));
    let source = (!kernel.source).then(|| format!("linux-source-{}", series(release)));
    let missing: Vec<String> = headers.into_iter().chain(source).collect();
    let build = format!("dkms autoinstall -k {release}");
    match missing.is_empty() {
        true => {
            let what = format!("there is no module kfabric for {release}: DKMS has not built it");
            Finding::error("module", what).mended_by(build)
        }
        false => {
            let missing = missing.join(" ");
            let what =
                format!("there is no module kfabric for {release}: not installed: {missing}");
            Finding::error("module", what).mended_by(format!("apt install {missing} && {build}"))
        }
    }
}

fn version(facts: &Facts) -> Finding {
    if !facts.stale.is_empty() {
        let what = format!(
            "the installed file differs from the loaded module: {}",
            facts.stale.join(", ")
        );
        return Finding::warning("version", what).mended_by(reload(facts));
    }
    match facts.abi {
        Some(abi) if abi == uapi::KFI_ABI_VERSION => {
            Finding::ok("version", format!("interface version {abi}"))
        }
        // Each side tells the other's age by the sizes of structures.
        Some(abi) => {
            let own = uapi::KFI_ABI_VERSION;
            Finding::ok(
                "version",
                format!("interface version {abi}; kfi knows {own}"),
            )
        }
        None if facts.opened => Finding::unknown("version", "no provider makes an offer"),
        None => Finding::unknown("version", NOT_OPENED),
    }
}

/// Returns the commands that replace the loaded modules by the installed ones.
fn reload(facts: &Facts) -> String {
    let (names, units) = (facts.loaded.join(" "), facts.units.join(" "));
    let modules = format!("modprobe -r {names} && modprobe -a {names}");
    let all = match units.is_empty() {
        true => modules,
        false => format!("systemctl stop {units} && {modules} && systemctl start {units}"),
    };
    all + "   # or reboot, if programs use the modules"
}

fn device(facts: &Facts) -> Finding {
    let path = facts.device.display();
    let Some(node) = &facts.node else {
        let number = facts.number.as_deref();
        let Some((major, minor)) = number.and_then(|number| number.split_once(':')) else {
            return Finding::unknown("device", "the module is not loaded");
        };
        let make = format!("mknod -m 660 {path} c {major} {minor} && chgrp rdma {path}");
        let finding = Finding::error("device", format!("{path} does not exist"));
        return finding.mended_by(with_group(facts, make));
    };
    match facts.refused {
        None => match unruled(facts, node) {
            Some((what, mend)) => Finding::warning("device", what).mended_by(mend),
            None => Finding::ok("device", format!("{path} is open to the group rdma")),
        },
        Some(Errno::EACCES | Errno::EPERM) => forbidden(facts, node),
        Some(errno @ (Errno::ENXIO | Errno::ENODEV)) => {
            let what = format!("{path} is not the device of the module: {errno}");
            let check = format!("ls -l {path}; cat /sys/class/misc/kfabric/dev");
            Finding::error("device", what).checked_by(check)
        }
        Some(errno) => {
            let what = format!("{path} cannot be opened: {errno}");
            Finding::error("device", what).checked_by("dmesg | grep kfabric")
        }
    }
}

/// The fault of a device file that is not open to the group rdma alone, and the command that mends it.
fn unruled(facts: &Facts, node: &Node) -> Option<(String, String)> {
    let (path, group) = (facts.device.display(), &node.group);
    (group != "rdma" || node.mode != 0o660).then(|| {
        let what = format!(
            "{path} has the group {group} and the mode {:o}, and not rdma and 660",
            node.mode
        );
        let mend = format!("chgrp rdma {path} && chmod 660 {path}");
        (what, with_group(facts, mend))
    })
}

/// Returns a command that needs the group rdma.
fn with_group(facts: &Facts, command: String) -> String {
    match facts.group_exists {
        true => command,
        false => format!("groupadd --system rdma && {command}"),
    }
}

/// Judges a device file that this process may not open.
fn forbidden(facts: &Facts, node: &Node) -> Finding {
    let (path, user) = (facts.device.display(), &facts.caller.user);
    if let Some((what, mend)) = unruled(facts, node) {
        return Finding::error("device", what).mended_by(mend);
    }
    if node.member {
        let what = format!(
            "{user} may not open {path}, although a member of the group rdma: a device cgroup or a \
             security module refuses"
        );
        return Finding::error("device", what).checked_by("dmesg | grep -i denied");
    }
    let what = format!("{user} may not open {path}: not a member of the group rdma");
    Finding::error("device", what)
        .mended_by(format!("gpasswd --add {user} rdma   # then log in again"))
}

fn memlock(facts: &Facts) -> Finding {
    let caller = &facts.caller;
    let Some(limit) = caller.memlock.filter(|_| !caller.unlimited) else {
        return Finding::ok("memlock", "unlimited");
    };
    if limit >= MEMLOCK {
        return Finding::ok("memlock", bytes(limit));
    }
    let user = &caller.user;
    let what = format!(
        "{user} may lock {} of memory, and registration locks it",
        bytes(limit)
    );
    let finding = match limit {
        0 => Finding::error("memlock", what),
        _ => Finding::warning("memlock", what),
    };
    // limits.conf(5) takes a number for a user only as a range.
    let name = match user.parse::<u32>() {
        Ok(id) => format!("{id}:{id}"),
        Err(_) => user.clone(),
    };
    finding.mended_by(format!(
        "echo '{name} - memlock unlimited' >>/etc/security/limits.d/kfabric.conf   # then log in again; \
         a service needs LimitMEMLOCK=infinity in its unit"
    ))
}

fn auth(facts: &Facts) -> Finding {
    let start = "systemctl start kfi-authd";
    let Some(auth) = &facts.auth else {
        return match facts.socket {
            Socket::Answers => Finding::ok("auth", "an agent runs"),
            Socket::Dead => {
                Finding::warning("auth", "the socket of the agent exists, but no agent runs")
                    .mended_by(start)
            }
            _ if facts.opened => {
                Finding::unknown("auth", "only an administrator sees mode and agent")
            }
            _ => Finding::unknown("auth", NOT_OPENED),
        };
    };
    match (auth.agent, auth.enforce) {
        (true, _) => Finding::ok("auth", "an agent runs"),
        (false, true) if auth.grants == 0 => {
            let what = "grants are required, and there is neither a grant nor an agent";
            Finding::error("auth", what).mended_by(start)
        }
        (false, true) => {
            let what = format!(
                "grants are required, no agent runs, and {} grants are installed: other uses are refused",
                auth.grants
            );
            Finding::warning("auth", what).mended_by(start)
        }
        (false, false) if auth.policy => {
            let what = format!("{POLICY} exists, but no agent runs");
            Finding::warning("auth", what).mended_by(start)
        }
        (false, false) => Finding::ok("auth", "grants are not required"),
    }
}
