// SPDX-License-Identifier: MIT OR Apache-2.0

//! `kfi-authd`, the agent as a service, and `kfi auth`. The mode is machine-wide, so these tests
//! run on one node, and each ends with mode `open` and without grants, also when it fails.

use crate::harness::guest::{run, until};
use crate::harness::{Ctx, Test, ONE};
use crate::pair::Side;
use crate::raw;
use crate::sys::{self, Ended};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("authd.policy_reloaded_decides_anew", |c| once(c, policy)).on(ONE),
    Test::alone("authd.grants_after_daemon_exit_stay", |c| once(c, restart)).on(ONE),
    Test::alone("authd.second_daemon_started_takes_over", |c| {
        once(c, takeover)
    })
    .on(ONE),
    Test::alone("authd.socket_used_by_others_is_refused", |c| {
        once(c, socket)
    })
    .on(ONE),
    Test::alone("authd.kfi_auth_by_administrator_manages_grants", |c| {
        once(c, commands)
    })
    .on(ONE),
    Test::alone("authd.slurm_prolog_grants_and_epilog_revokes", |c| {
        once(c, slurm)
    })
    .on(ONE),
];

/// Runs a test on one of the two halves, because both share a machine.
pub(super) fn once(ctx: &mut Ctx, test: fn(&mut Ctx) -> Result<()>) -> Result<()> {
    if ctx.first() {
        test(ctx)
    } else {
        Ok(())
    }
}

pub(super) const WAIT: Duration = Duration::from_secs(10);
/// Auth keys, and their names in the policy.
pub(super) const COMPUTE: &[u8] = b"kfi-tests: compute!";
pub(super) const STORAGE: &[u8] = b"kfi-tests: storage?";

/// A folder with a policy, its keys and a log; and the mode.
pub(super) struct Rig {
    pub(super) folder: PathBuf,
    pub(super) daemons: Vec<Child>,
}

impl Rig {
    /// Creates a rig on a machine that requires grants.
    pub(super) fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("authd.{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let rig = Self {
            folder,
            daemons: Vec::new(),
        };
        for (name, key) in [("compute", COMPUTE), ("storage", STORAGE)] {
            rig.write(name, key)?;
        }
        run("kfi", &["auth", "mode", "enforce"])?;
        Ok(rig)
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    pub(super) fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.folder.join(name);
        std::fs::write(&path, content)?;
        Ok(std::fs::set_permissions(
            &path,
            Permissions::from_mode(0o600),
        )?)
    }

    /// Writes a policy with both keys and these jobs.
    pub(super) fn policy(&self, jobs: &str) -> Result<()> {
        let keys = "[keys.compute]\nfile = \"compute\"\n[keys.storage]\nfile = \"storage\"\n";
        self.write("policy", format!("{keys}{jobs}").as_bytes())
    }

    /// Starts a daemon. Returns its process id when it is the agent and its socket answers.
    pub(super) fn start(&mut self) -> Result<u32> {
        self.start_by(&mut Command::new("kfi-authd"))
    }

    /// Starts a daemon through `command`, as [`Self::start`] does.
    pub(super) fn start_by(&mut self, command: &mut Command) -> Result<u32> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))?;
        let child = command
            .args([
                "--policy",
                &self.path("policy"),
                "--socket",
                &self.path("socket"),
            ])
            .arg("--verbose")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("kfi-authd")?;
        let pid = child.id();
        self.daemons.push(child);
        until("the daemon is the agent", WAIT, || {
            let rule = self.ask(&["mode"])?;
            Ok(rule
                .is_some_and(|rule| rule["agent_pid"] == pid)
                .then_some(()))
        })
        .with_context(|| self.log())?;
        Ok(pid)
    }

    /// Runs `kfi auth` through the daemon. Returns its output, or `None` if it failed.
    pub(super) fn ask(&self, args: &[&str]) -> Result<Option<Value>> {
        let daemon = format!("--daemon={}", self.path("socket"));
        let out = Command::new("kfi")
            .args(["--json", "auth", &daemon])
            .args(args)
            .output()?;
        if !out.status.success() {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&out.stdout)?))
    }

    /// Runs `kfi auth`, which must succeed.
    pub(super) fn asked(&self, args: &[&str]) -> Result<Value> {
        let daemon = format!("--daemon={}", self.path("socket"));
        let text = run("kfi", &[&["--json", "auth", &daemon], args].concat())?;
        Ok(serde_json::from_str(&text)?)
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Waits for a word in the log.
    pub(super) fn logged(&self, word: &str) -> Result<()> {
        let there = || Ok(self.log().contains(word).then_some(()));
        until(&format!("{word:?} in the log"), WAIT, there).with_context(|| self.log())
    }

    /// Returns how the daemon number `which` ended.
    pub(super) fn ended(&mut self, which: usize) -> Result<Option<Ended>> {
        let pid = self.daemons[which].id() as i32;
        Ok(sys::wait_pid(pid, WAIT)?)
    }

    /// Checks that no key's bytes are in the log.
    pub(super) fn keeps_silent(&self) -> Result<()> {
        let log = self.log();
        for key in [COMPUTE, STORAGE] {
            let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
            let list = format!("{key:?}");
            let list = list.trim_matches(['[', ']']);
            let text = std::str::from_utf8(key)?;
            for form in [&hex[..], list, text] {
                ensure!(
                    !log.to_lowercase().contains(form),
                    "a key in the log: {log}"
                );
            }
        }
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = run("kfi", &["auth", "revoke", "--all"]);
        if let Err(e) = run("kfi", &["auth", "mode", "open"]) {
            eprintln!("the mode stays: {e:#}");
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Opens an endpoint under an auth key.
pub(super) fn open(side: &Side, key: &[u8]) -> raw::Result<u64> {
    let ep = side.dev.ep_open(&EpOpen {
        domain: side.domain.handle,
        auth_key: key.as_ptr() as u64,
        auth_key_size: key.len() as u32,
        ..Default::default()
    })?;
    Ok(ep.handle)
}

/// Opens and closes an endpoint under an auth key.
pub(super) fn opens(side: &Side, key: &[u8]) -> Result<()> {
    Ok(side.dev.close(open(side, key)?)?)
}

/// Checks that an open is refused with `errno`.
pub(super) fn refused(side: &Side, key: &[u8], errno: i32) -> Result<()> {
    super::refused(open(side, key), errno, "an endpoint")
}

pub(super) const COMPUTE_FOR_ROOT: &str =
    "[[job]]\nname = \"one\"\nkeys = [\"compute\"]\nusers = [0]\nlimits = { keys = 7 }\n";

fn policy(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let mut rig = Rig::new()?;
    refused(&side, COMPUTE, libc::ENOKEY)?;
    rig.policy(COMPUTE_FOR_ROOT)?;
    let pid = rig.start()? as i32;
    opens(&side, COMPUTE)?;
    refused(&side, STORAGE, libc::EACCES)?;
    refused(&side, b"an unlisted auth key", libc::EACCES)?;
    let grants = rig.asked(&["list"])?;
    let given = &grants[0];
    ensure!(
        given["answered"] == true && given["limits"]["keys"] == 7,
        "{grants}"
    );
    for word in [
        "allow key=compute",
        "deny key=storage",
        "deny key=unknown",
        "job one",
    ] {
        rig.logged(word)?;
    }

    rig.write("policy", b"[keys.compute]\nfile = \"nowhere\"\n")?;
    sys::kill(pid, libc::SIGHUP)?;
    rig.logged("the old policy stays")?;
    rig.logged(&format!("{}:2: key `compute`", rig.path("policy")))?;
    ensure!(
        rig.asked(&["revoke", "--answered"])?["revoked"] == 1,
        "one was given"
    );
    opens(&side, COMPUTE)?;

    let job = "[[job]]\nname = \"two\"\nkeys = [\"storage\"]\nusers = [0]\n";
    rig.policy(&format!("{COMPUTE_FOR_ROOT}{job}"))?;
    sys::kill(pid, libc::SIGHUP)?;
    rig.logged("reloaded: ")?;
    // The denial is cached for a moment.
    let yes = || Ok(open(&side, STORAGE).ok());
    let ep = until("the new policy's yes", WAIT, yes).with_context(|| rig.log())?;
    side.dev.close(ep)?;
    rig.keeps_silent()?;
    sys::kill(pid, libc::SIGTERM)?;
    let end = rig.ended(0)?;
    ensure!(end == Some(Ended::Exit(0)), "{end:?}: {}", rig.log());
    ensure!(!rig.folder.join("socket").exists(), "its socket is left");
    Ok(())
}

fn restart(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let mut rig = Rig::new()?;
    rig.policy("")?;
    rig.start()?;
    let id = rig.asked(&["grant", "--key", "compute", "--uid", "0"])?["grant"].clone();
    let ep = open(&side, COMPUTE)?;
    rig.daemons[0].kill()?;
    rig.daemons[0].wait()?;
    opens(&side, COMPUTE)?;
    until("there is no agent", WAIT, || {
        Ok(refused(&side, STORAGE, libc::ENOKEY).ok())
    })?;
    rig.start()?;
    let grants = rig.asked(&["list"])?;
    ensure!(grants[0]["id"] == id, "{id} is not in {grants}");
    ensure!(grants[0]["used"]["endpoints"] == 1, "{grants}");
    side.dev.close(ep)?;
    opens(&side, COMPUTE)?;
    rig.keeps_silent()
}

fn takeover(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let mut rig = Rig::new()?;
    rig.policy(COMPUTE_FOR_ROOT)?;
    rig.start()?;
    opens(&side, COMPUTE)?;
    rig.start()?;
    let end = rig.ended(0)?;
    ensure!(end == Some(Ended::Exit(0)), "{end:?}: {}", rig.log());
    rig.logged("another agent has taken over")?;
    rig.asked(&["list"])?;
    rig.asked(&["revoke", "--all"])?;
    opens(&side, COMPUTE)
}

fn socket(_: &mut Ctx) -> Result<()> {
    let mut rig = Rig::new()?;
    rig.policy("")?;
    rig.start()?;
    // The mode of the socket, not that of the folder, must keep other users out.
    std::fs::set_permissions(&rig.folder, Permissions::from_mode(0o755))?;
    let path = rig.folder.join("socket");
    let child = sys::fork(move || {
        if sys::become_nobody().is_err() {
            return 2;
        }
        match UnixStream::connect(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => 0,
            _ => 1,
        }
    })?;
    let end = sys::wait_pid(child, WAIT)?;
    ensure!(end == Some(Ended::Exit(0)), "{end:?}");
    Ok(())
}

fn commands(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let mut rig = Rig::new()?;
    let text = run("kfi", &["auth", "mode"])?;
    for line in ["mode: enforce\n", "agent: none\n", "timeout: 10s\n"] {
        ensure!(text.contains(line), "{line:?} is not in {text}");
    }
    ensure!(
        run("kfi", &["auth", "list"])? == "no grants\n",
        "there are grants"
    );
    let (key, pid) = (rig.path("compute"), std::process::id().to_string());
    let what = [
        "auth",
        "grant",
        "--key-file",
        &key,
        "--pid",
        &pid,
        "--pinned",
        "1G",
    ];
    let id = run(
        "kfi",
        &[&what[..], &["--endpoints", "1", "--lifetime", "1h"]].concat(),
    )?;
    let id = id.trim();
    let ep = open(&side, COMPUTE)?;
    refused(&side, COMPUTE, libc::EDQUOT)?;
    run("kfi", &["auth", "change", id, "--endpoints", "2"])?;
    opens(&side, COMPUTE)?;
    let text = run("kfi", &["auth", "list"])?;
    for word in ["process=", "endpoints+keys", "1/2", "installed"] {
        ensure!(text.contains(word), "{word:?} is not in {text}");
    }
    ensure!(
        run("kfi", &["auth", "revoke", id])? == "1 revoked\n",
        "not revoked"
    );
    ensure!(
        run("kfi", &["auth", "revoke", id])? == "0 revoked\n",
        "revoked twice"
    );
    side.dev.close(ep)?;
    // Names belong to the daemon, bytes may not be arguments, and a file that others can read is
    // refused.
    std::fs::set_permissions(&key, Permissions::from_mode(0o644))?;
    for args in [&["--key", "compute"][..], &["--key-file", &key]] {
        let out = Command::new("kfi")
            .args(["auth", "grant", "--uid", "0"])
            .args(args)
            .output()?;
        ensure!(!out.status.success(), "{args:?} is taken");
    }
    std::fs::set_permissions(&key, Permissions::from_mode(0o600))?;
    rig.policy(COMPUTE_FOR_ROOT)?;
    rig.start()?;
    let verdict = rig.asked(&["check", "--key", "compute", "--pid", &pid])?;
    ensure!(verdict["allowed"] == true, "{verdict}");
    let daemon = format!("--daemon={}", rig.path("socket"));
    let out = Command::new("kfi")
        .args(["auth", &daemon, "check", "--key", "storage"])
        .output()?;
    ensure!(out.status.code() == Some(7), "{out:?}");
    Ok(())
}

fn slurm(ctx: &mut Ctx) -> Result<()> {
    const SCRIPTS: [(&str, &str); 2] = [
        (
            "prolog",
            include_str!("../../../userspace/kfi-authd/examples/slurm-prolog.sh"),
        ),
        (
            "epilog",
            include_str!("../../../userspace/kfi-authd/examples/slurm-epilog.sh"),
        ),
    ];
    let side = Side::open(ctx)?;
    let mut rig = Rig::new()?;
    rig.policy("")?;
    rig.start()?;
    for (name, text) in SCRIPTS {
        rig.write(name, text.as_bytes())?;
    }
    let script = |name: &str| -> Result<()> {
        let out = Command::new("sh")
            .arg(rig.path(name))
            .env("SLURM_JOB_ID", "17")
            .env("SLURM_JOB_UID", "0")
            .env("KFI_SOCKET", rig.path("socket"))
            .env("KFI_STATE", rig.path("jobs"))
            .env("KFI_CGROUP", "")
            .output()?;
        ensure!(out.status.success(), "{name}: {out:?}");
        Ok(())
    };
    refused(&side, COMPUTE, libc::EACCES)?;
    script("prolog")?;
    let grants = rig.asked(&["list"])?;
    ensure!(
        grants.as_array().is_some_and(|all| all.len() == 2),
        "{grants}"
    );
    opens(&side, COMPUTE)?;
    let left = open(&side, STORAGE)?;
    script("epilog")?;
    let over = |key| {
        until("the grant is over", WAIT, || {
            Ok(refused(&side, key, libc::EACCES).ok())
        })
    };
    over(COMPUTE)?;
    side.dev.close(left)?;
    over(STORAGE)?;
    ensure!(
        !rig.folder.join("jobs/17").exists(),
        "the job's file is left"
    );
    // A second epilog has nothing to do.
    script("epilog")?;
    rig.keeps_silent()
}
