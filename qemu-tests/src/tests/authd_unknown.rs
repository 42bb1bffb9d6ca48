// SPDX-License-Identifier: MIT OR Apache-2.0

//! `kfi-authd` and properties that a process may hide: a process escapes a denying job neither by
//! being unreadable nor by an answer that was meant for another process.

use super::authd::{once, open, Rig, COMPUTE, WAIT};
use crate::auth::{Agent, Enforced};
use crate::harness::guest::until;
use crate::harness::{skip, Ctx, Test, ONE};
use crate::pair::Side;
use crate::sys::{self, rights, Ended, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone(
        "authd.p07_deny_group_of_process_with_odd_name_denies",
        |c| once(c, odd_name),
    )
    .on(ONE),
    Test::alone("authd.p07_deny_cgroup_with_odd_name_denies", |c| {
        once(c, odd_cgroup)
    })
    .on(ONE),
    Test::alone("authd.p07_deny_cgroup_of_thread_denies", |c| {
        once(c, thread_cgroup)
    })
    .on(ONE),
    Test::alone("authd.p07_answer_for_user_leaves_out_denied_cgroup", |c| {
        once(c, wide_answer)
    })
    .on(ONE),
    Test::alone("authd.p07_deny_missing_netns_denies", |c| once(c, no_netns)).on(ONE),
    Test::alone(
        "authd.p07_deny_group_left_in_a_user_namespace_denies",
        |c| once(c, left_group),
    )
    .on(ONE),
    Test::alone(
        "auth.agent_next_with_short_arrays_reports_full_counts",
        |c| once(c, question),
    )
    .on(ONE),
];

/// A user for which one job denies a key and another allows it.
const USER: u32 = 2001;
/// A group to which a job denies a key.
const BANNED: u32 = 4001;
const ALLOWED: &str = "[[job]]\nname = \"user\"\nkeys = [\"compute\"]\nusers = [2001]\n";

/// Returns a policy that denies, and then allows the user.
fn denying(what: &str, per: &str) -> String {
    format!(
        "[[job]]\nname = \"banned\"\nkeys = [\"compute\"]\n{what}\ndeny = true\n\
         {ALLOWED}per = \"{per}\"\n"
    )
}

/// Opens an endpoint in a process that has run `ready`. Returns 0 or the errno.
fn asks(side: &Side, ready: impl FnOnce() -> Result<()>) -> Result<i32> {
    let child = sys::fork(|| match ready() {
        Ok(()) => tries(side),
        Err(e) => {
            eprintln!("not ready: {e:#}");
            255
        }
    })?;
    match sys::wait_pid(child, WAIT)? {
        Some(Ended::Exit(code)) => Ok(code),
        end => anyhow::bail!("{end:?}"),
    }
}

fn tries(side: &Side) -> i32 {
    match open(side, COMPUTE) {
        Ok(ep) => {
            let _ = side.dev.close(ep);
            0
        }
        Err(e) => e.errno.0,
    }
}

/// Checks that the open was denied and that the log names the job.
fn denied(rig: &Rig, got: i32) -> Result<()> {
    ensure!(got == libc::EACCES, "{got}: {}", rig.log());
    rig.logged("job banned")
}

fn odd_name(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let mut rig = Rig::new()?;
    rig.policy(&denying(&format!("groups = [{BANNED}]"), "process"))?;
    rig.start()?;
    let got = asks(&side, || Ok(rights::become_member(USER, &[7])?))?;
    ensure!(
        got == 0,
        "{got}, though it is in no such group: {}",
        rig.log()
    );
    let got = asks(&side, || {
        rights::become_member(USER, &[7, BANNED])?;
        Ok(rights::set_name(c"\xff\n\x1b[2J")?)
    })?;
    denied(&rig, got)?;
    rig.keeps_silent()
}

/// A member of a denied group that leaves it in a user namespace, where groups were delegated to its user, is
/// denied all the same.
fn left_group(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let mut rig = Rig::new()?;
    rig.policy(&denying(&format!("groups = [{BANNED}]"), "process"))?;
    rig.start()?;
    // 1: it is in its namespace. 2: groups are delegated there. 3: there are no user namespaces.
    let step = Map::shared(4096)?;
    let child = sys::fork(|| {
        let ready = || -> Result<()> {
            rights::become_member(USER, &[7, BANNED])?;
            if rights::unshare(libc::CLONE_NEWUSER).is_err() {
                step.store32(0, 3);
                return Ok(());
            }
            step.store32(0, 1);
            until("the delegation", WAIT, || {
                Ok((step.load32(0) == 2).then_some(()))
            })?;
            Ok(rights::become_member(0, &[])?)
        };
        match ready() {
            Ok(()) => tries(&side),
            Err(e) => {
                eprintln!("not ready: {e:#}");
                255
            }
        }
    })?;
    until("the user namespace", WAIT, || {
        Ok((step.load32(0) != 0).then_some(()))
    })?;
    if step.load32(0) == 1 {
        // As newgidmap(1) does, which leaves setgroups(2) allowed.
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{child}/{map}"), format!("0 {USER} 1\n"))?;
        }
        step.store32(0, 2);
    }
    match sys::wait_pid(child, WAIT)? {
        Some(Ended::Exit(_)) if step.load32(0) == 3 => skip("there are no user namespaces"),
        Some(Ended::Exit(got)) => denied(&rig, got),
        end => anyhow::bail!("{end:?}"),
    }
}

/// Control groups, removed on drop.
struct Groups(Vec<PathBuf>);

impl Groups {
    /// Creates control groups, each below the one before if its path says so. Returns `None` if
    /// there is no hierarchy.
    fn new(names: &[&[u8]]) -> Result<Option<Self>> {
        const ROOT: &str = "/sys/fs/cgroup";
        if !Path::new(ROOT).join("cgroup.controllers").exists() {
            return Ok(None);
        }
        let mut all = Self(Vec::new());
        for name in names {
            let path = Path::new(ROOT).join(OsStr::from_bytes(name));
            fs::create_dir(&path).with_context(|| format!("{path:?}"))?;
            all.0.push(path);
        }
        Ok(Some(all))
    }

    /// Moves the calling process into group `which`.
    fn join(&self, which: usize) -> Result<()> {
        Ok(fs::write(self.0[which].join("cgroup.procs"), "0")?)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // A process that has just exited may still be in the group.
            let gone = || Ok(fs::remove_dir(path).ok());
            if let Err(e) = until("a control group is gone", WAIT, gone) {
                eprintln!("{path:?}: {e:#}");
            }
        }
    }
}

fn odd_cgroup(ctx: &mut Ctx) -> Result<()> {
    let Some(groups) = Groups::new(&[b"logins", b"logins/\xff", b"logins-not"])? else {
        return skip("there are no control groups");
    };
    let side = Side::open(ctx)?;
    let mut rig = Rig::new()?;
    rig.policy(&denying("cgroups = [\"/logins\"]", "process"))?;
    rig.start()?;
    for (which, expected) in [(2, 0), (0, libc::EACCES), (1, libc::EACCES)] {
        let got = asks(&side, || {
            groups.join(which)?;
            Ok(rights::become_user(USER)?)
        })?;
        let path = &groups.0[which];
        ensure!(got == expected, "{path:?}: {got}: {}", rig.log());
    }
    rig.logged("cgroup=/logins/\\xff ")?;
    rig.keeps_silent()
}

fn thread_cgroup(ctx: &mut Ctx) -> Result<()> {
    let Some(groups) = Groups::new(&[b"logins", b"logins/threads"])? else {
        return skip("there are no control groups");
    };
    fs::write(groups.0[1].join("cgroup.type"), "threaded")?;
    let side = Side::open(ctx)?;
    let mut rig = Rig::new()?;
    rig.policy(&denying("cgroups = [\"/logins\"]", "process"))?;
    rig.start()?;
    let (side, groups) = (&side, &groups);
    let child = sys::fork(|| {
        // The main thread stays in the process's group.
        let asks = || -> Result<i32> {
            let thread = sys::thread_id().to_string();
            fs::write(groups.0[1].join("cgroup.threads"), thread)?;
            rights::become_user(USER)?;
            Ok(tries(side))
        };
        if let Err(e) = groups.join(0) {
            eprintln!("{e:#}");
            return 255;
        }
        std::thread::scope(|scope| match scope.spawn(asks).join() {
            Ok(Ok(code)) => code,
            other => {
                eprintln!("the thread: {other:?}");
                255
            }
        })
    })?;
    let got = match sys::wait_pid(child, WAIT)? {
        Some(Ended::Exit(code)) => code,
        end => anyhow::bail!("{end:?}"),
    };
    denied(&rig, got)
}

fn wide_answer(ctx: &mut Ctx) -> Result<()> {
    let Some(groups) = Groups::new(&[b"logins", b"jobs"])? else {
        return skip("there are no control groups");
    };
    let side = Side::open(ctx)?;
    let mut rig = Rig::new()?;
    rig.policy(&denying("cgroups = [\"/logins\"]", "user"))?;
    rig.start()?;
    for (which, expected) in [(1, 0), (0, libc::EACCES), (1, 0)] {
        let got = asks(&side, || {
            groups.join(which)?;
            Ok(rights::become_user(USER)?)
        })?;
        let path = &groups.0[which];
        ensure!(got == expected, "{path:?}: {got}: {}", rig.log());
    }
    Ok(())
}

fn no_netns(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let mut rig = Rig::new()?;
    rig.policy(&denying("netns = [\"/run/netns/kfi-gone\"]", "process"))?;
    rig.start()?;
    let got = asks(&side, || Ok(rights::become_user(USER)?))?;
    denied(&rig, got)?;
    rig.logged("an attribute of the process is unknown")
}

/// Returns the question about a user in groups, as an agent with `room` group entries receives it.
fn asked(ctx: &Ctx, room: usize, path: &mut [u8], groups: &mut Vec<u32>) -> Result<AgentNext> {
    let side = Side::open(ctx)?;
    let agent = Agent::open()?;
    let child = sys::fork(|| match rights::become_member(USER, &[70_001, 5, 6]) {
        Ok(()) => tries(&side),
        Err(_) => 255,
    })?;
    sys::poll_in(agent.dev().as_fd(), WAIT)?;
    let mut key = [0u8; KFI_AUTH_KEY_MAX];
    *groups = vec![0; room];
    let mut call = AgentNext {
        auth_key: key.as_mut_ptr() as u64,
        groups: groups.as_mut_ptr() as u64,
        groups_count: room as u32,
        cgroup_path: path.as_mut_ptr() as u64,
        cgroup_path_size: path.len() as u32,
        // Input values of output fields have no meaning.
        known: u32::MAX,
        userns: u64::MAX,
        ..Default::default()
    };
    let told = agent.dev().call(&mut call);
    agent.deny(call.id)?;
    let end = sys::wait_pid(child, WAIT)?;
    ensure!(end == Some(Ended::Exit(libc::EACCES)), "{end:?}");
    told?;
    // The denial is cached for that process alone.
    Ok(call)
}

fn question(ctx: &mut Ctx) -> Result<()> {
    let _mode = Enforced::new()?;
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::"));
    let (mut path, mut groups) = ([0xee_u8; 4096], Vec::new());
    let call = asked(ctx, 4, &mut path, &mut groups)?;
    groups.sort_unstable();
    ensure!(groups == [0, 5, 6, 70_001], "{groups:?}");
    ensure!(call.groups_count == 3, "{}", call.groups_count);
    ensure!(call.known & KFI_KNOWN_GROUPS != 0, "{:#x}", call.known);
    let ns = std::os::unix::fs::MetadataExt::ino(&fs::metadata("/proc/self/ns/user")?);
    ensure!(call.userns == ns, "{} is not {ns}", call.userns);
    if let Some(own) = own {
        let told = path.get(..call.cgroup_path_size as usize);
        ensure!(told == Some(own.as_bytes()), "{told:?} is not {own}");
        ensure!(call.known & KFI_KNOWN_CGROUP != 0, "{:#x}", call.known);
    }
    // With less room the call reports the full count.
    let call = asked(ctx, 2, &mut [], &mut groups)?;
    ensure!(call.groups_count == 3 && !groups.contains(&0), "{groups:?}");
    ensure!(call.known == 0, "{:#x}", call.known);
    ensure!(call.cgroup_path_size == 0, "{}", call.cgroup_path_size);
    Ok(())
}
