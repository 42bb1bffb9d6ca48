// SPDX-License-Identifier: MIT OR Apache-2.0

//! Use of auth keys: grants, the agent, and the errno of every refusal.
//!
//! The mode is machine-wide, so each of these tests has the machine to itself: node 1 sets the
//! mode, and node 2 does nothing.

use super::refused;
use crate::auth::{self, keyed, to_root, Agent, Enforced, KEY, OTHER};
use crate::buf::Buf;
use crate::harness::{Ctx, Test, NETNS, SHM};
use crate::pair::{Side, LOCAL, REMOTE};
use crate::raw::Dev;
use crate::sys::{self, Ended};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::fs;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "auth.p07_open_in_each_matrix_cell_returns_documented_errno",
        |ctx| led(ctx, matrix),
    )
    .on(NETNS | SHM)
    .seconds(15),
    Test::pair(
        "auth.p07_grant_of_each_match_kind_covers_only_its_subject",
        |ctx| led(ctx, matches),
    )
    .on(NETNS | SHM)
    .seconds(10),
    Test::pair("auth.p07_grant_at_its_limits_refuses_more", |ctx| {
        led(ctx, limits)
    })
    .on(NETNS | SHM)
    .seconds(10),
    Test::pair(
        "auth.p07_slot_under_other_auth_key_is_charged_to_its_grant",
        |ctx| led(ctx, charged),
    )
    .on(NETNS | SHM)
    .seconds(10),
    Test::pair("auth.p07_listen_without_granted_key_is_refused", |ctx| {
        led(ctx, listeners)
    })
    .on(NETNS | SHM)
    .seconds(10),
    Test::pair(
        "auth.p07_grant_to_exited_pid_covers_no_later_process",
        |ctx| led(ctx, processes),
    )
    .on(NETNS | SHM)
    .seconds(10),
    Test::pair(
        "auth.p07_grant_revoked_or_expired_ends_its_objects",
        |ctx| led(ctx, ends),
    )
    .on(NETNS | SHM)
    .seconds(15),
    Test::pair("auth.p07_admin_calls_by_others_are_refused", |ctx| {
        led(ctx, nobody)
    })
    .on(NETNS | SHM)
    .seconds(10),
    Test::pair("auth.p08_auth_key_in_use_shows_its_bytes_nowhere", |ctx| {
        led(ctx, unseen)
    })
    .on(NETNS | SHM)
    .seconds(15),
];

/// Runs a test on node 1 alone.
pub(super) fn led(ctx: &mut Ctx, run: fn(&Ctx) -> Result<()>) -> Result<()> {
    let result = if ctx.first() { run(ctx) } else { Ok(()) };
    result?;
    ctx.barrier("done")
}

/// Grant that an administrator installs before a cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grant {
    None,
    Ours,
    Others,
}

/// Behaviour of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    NotThere,
    Yes,
    No,
    Nothing,
}

/// Returns the expected errno for a mode, grant, agent and key. `docs/design/auth.md` has the same
/// table.
fn expected(enforced: bool, grant: Grant, says: Says, key: bool) -> i32 {
    match (enforced, key, grant, says) {
        (false, ..) | (true, true, Grant::Ours, _) => 0,
        (true, false, ..) => libc::ENOKEY,
        (_, _, _, Says::NotThere) => libc::ENOKEY,
        (_, _, _, Says::Yes) => 0,
        (_, _, _, Says::No) => libc::EACCES,
        (_, _, _, Says::Nothing) => libc::ETIMEDOUT,
    }
}

/// A child process that serves questions until this value is dropped.
pub(super) struct Served(i32);

impl Served {
    /// Starts an agent that treats every question alike.
    pub(super) fn start(each: impl Fn(&Agent, &auth::Question) + 'static) -> Result<Self> {
        let agent = Agent::open()?;
        let pid = sys::fork(move || {
            sys::die_with_parent();
            loop {
                if let Ok(question) = agent.wait(Duration::from_secs(1)) {
                    each(&agent, &question);
                }
            }
        })?;
        Ok(Self(pid))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = sys::kill(self.0, libc::SIGKILL);
        let _ = sys::wait_pid(self.0, Duration::from_secs(10));
    }
}

/// Opens an endpoint and a slot on a fresh file. Returns an errno for each; 0 if it was opened.
pub(super) fn try_all(ctx: &Ctx, key: &[u8]) -> Result<[i32; 2]> {
    let side = Side::of(&ctx.env)?;
    let errno = |r: crate::raw::Result<()>| r.map_or_else(|e| e.errno.0, |()| 0);
    let ep = errno(
        side.dev
            .ep_open(&keyed(side.domain.handle, key))
            .map(|_| ()),
    );
    let buf = Buf::new(4096)?;
    let region = side.dev.call_region(&RegionReg {
        flags: KFI_REGION_DYNAMIC_KEYS,
        domain: side.domain.handle,
        addr: buf.addr(),
        len: 4096,
        access: LOCAL | REMOTE,
        ..Default::default()
    })?;
    let mut slot = 0_u64;
    let slots = errno(side.dev.call(&mut KeyAlloc {
        region: region.handle,
        count: 1,
        handles: (&raw mut slot) as u64,
        auth_key: if key.is_empty() {
            0
        } else {
            key.as_ptr() as u64
        },
        auth_key_size: key.len() as u32,
        ..Default::default()
    }));
    if slots == 0 {
        side.assign(slot, 0, 4096, REMOTE)?;
    }
    Ok([ep, slots])
}

/// Checks each cell of the matrix, for endpoints and for keys.
fn matrix(ctx: &Ctx) -> Result<()> {
    let mut cells = 0;
    for enforced in [false, true] {
        for grant in [Grant::None, Grant::Ours, Grant::Others] {
            for says in [Says::NotThere, Says::Yes, Says::No, Says::Nothing] {
                for given in [false, true] {
                    let mode = Enforced::new()?;
                    mode.timeout(100)?;
                    // A denial in one cell must not be cached for the next.
                    auth::set(
                        mode.dev(),
                        &AuthMode {
                            flags: KFI_AUTH_SET_DENY,
                            ..Default::default()
                        },
                    )?;
                    if !enforced {
                        auth::set(
                            mode.dev(),
                            &AuthMode {
                                flags: KFI_AUTH_SET_MODE,
                                ..Default::default()
                            },
                        )?;
                    }
                    match grant {
                        Grant::None => {}
                        Grant::Ours => {
                            auth::add(mode.dev(), &to_root(KEY))?;
                        }
                        Grant::Others => {
                            auth::add(
                                mode.dev(),
                                &GrantAdd {
                                    uid: 4711,
                                    ..to_root(KEY)
                                },
                            )?;
                        }
                    }
                    let served = match says {
                        Says::NotThere => None,
                        Says::Yes => Some(Served::start(|a, q| {
                            let _ = a.allow(q.raw.id);
                        })?),
                        Says::No => Some(Served::start(|a, q| {
                            let _ = a.deny(q.raw.id);
                        })?),
                        Says::Nothing => Some(Served::start(|_, _| ())?),
                    };
                    let got = try_all(ctx, if given { KEY } else { &[] })?;
                    let want = expected(enforced, grant, says, given);
                    ensure!(
                        got == [want; 2],
                        "enforced {enforced}, grant {grant:?}, agent {says:?}, key {given}: {got:?}, not {want}"
                    );
                    drop(served);
                    cells += 1;
                }
            }
        }
    }
    ensure!(cells == 48, "{cells} cells");
    Ok(())
}

/// A grant covers exactly its subject: user, group, cgroup, namespace, process, and all of them at
/// once.
fn matches(ctx: &Ctx) -> Result<()> {
    let mode = Enforced::new()?;
    let side = Side::of(&ctx.env)?;
    let dev = mode.dev();
    let me = auth::pidfd(std::process::id() as i32)?;
    let ns = fs::File::open("/proc/self/ns/net")?;
    let other_ns = fs::File::open("/proc/1/ns/net")?;
    let (ns, other_ns) = (
        std::os::fd::OwnedFd::from(ns),
        std::os::fd::OwnedFd::from(other_ns),
    );
    let cgroup = {
        let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let at = text
            .lines()
            .find_map(|l| l.strip_prefix("0::"))
            .unwrap_or("/")
            .to_owned();
        std::os::unix::fs::MetadataExt::ino(
            &fs::metadata(format!("/sys/fs/cgroup{at}"))
                .or_else(|_| fs::metadata("/sys/fs/cgroup"))?,
        )
    };
    let init = auth::pidfd(1)?;
    let base = auth::grant(KEY);
    let all = GrantAdd {
        match_: KFI_MATCH_UID | KFI_MATCH_GID | KFI_MATCH_NETNS | KFI_MATCH_PROCESS,
        pidfd: auth::number(&me),
        netns_fd: auth::number(&ns),
        ..base
    };
    let same_ns = auth::inode(ns.as_fd())? == auth::inode(other_ns.as_fd())?;
    let mut rows = vec![
        (
            "uid",
            GrantAdd {
                match_: KFI_MATCH_UID,
                ..base
            },
            true,
        ),
        (
            "another uid",
            GrantAdd {
                match_: KFI_MATCH_UID,
                uid: 1,
                ..base
            },
            false,
        ),
        (
            "gid",
            GrantAdd {
                match_: KFI_MATCH_GID,
                ..base
            },
            true,
        ),
        (
            "another gid",
            GrantAdd {
                match_: KFI_MATCH_GID,
                gid: 4711,
                ..base
            },
            false,
        ),
        (
            "netns",
            GrantAdd {
                match_: KFI_MATCH_NETNS,
                netns_fd: auth::number(&ns),
                ..base
            },
            true,
        ),
        (
            "process",
            GrantAdd {
                match_: KFI_MATCH_PROCESS,
                pidfd: auth::number(&me),
                ..base
            },
            true,
        ),
        (
            "another process",
            GrantAdd {
                match_: KFI_MATCH_PROCESS,
                pidfd: auth::number(&init),
                ..base
            },
            false,
        ),
        ("all", all, true),
        ("all but one", GrantAdd { uid: 1, ..all }, false),
        (
            "no such cgroup",
            GrantAdd {
                match_: KFI_MATCH_CGROUP,
                cgroup: u64::MAX,
                ..base
            },
            false,
        ),
        (
            "keys only",
            GrantAdd {
                match_: KFI_MATCH_UID,
                rights: KFI_AUTH_KEYS,
                ..base
            },
            false,
        ),
    ];
    if !same_ns {
        rows.push((
            "another netns",
            GrantAdd {
                match_: KFI_MATCH_NETNS,
                netns_fd: auth::number(&other_ns),
                ..base
            },
            false,
        ));
    }
    if fs::metadata("/sys/fs/cgroup/cgroup.procs").is_ok() {
        rows.push((
            "cgroup",
            GrantAdd {
                match_: KFI_MATCH_CGROUP,
                cgroup,
                ..base
            },
            true,
        ));
    }
    for (what, want, covers) in rows {
        let id = auth::add(dev, &want).with_context(|| what.to_owned())?;
        let got = auth::endpoint(&side.dev, side.domain.handle, KEY);
        match (got, covers) {
            (Ok(ep), true) => side.dev.close(ep.handle)?,
            (Err(e), false) if e.errno.0 == libc::ENOKEY => {}
            (got, _) => anyhow::bail!("{what}: {got:?}, covers: {covers}"),
        }
        auth::revoke(dev, id)?;
    }
    refused(
        auth::add(dev, &base),
        libc::EINVAL,
        "a grant without a subject",
    )?;
    refused(
        auth::add(
            dev,
            &GrantAdd {
                match_: KFI_MATCH_UID,
                gid: 1,
                ..base
            },
        ),
        libc::EINVAL,
        "a gid that is not named",
    )?;
    refused(
        auth::add(
            dev,
            &GrantAdd {
                rights: 0,
                ..to_root(KEY)
            },
        ),
        libc::EINVAL,
        "no right",
    )?;
    refused(
        auth::add(
            dev,
            &GrantAdd {
                rights: 4,
                ..to_root(KEY)
            },
        ),
        libc::EINVAL,
        "another right",
    )?;
    refused(
        auth::add(
            dev,
            &GrantAdd {
                auth_key_size: 0,
                ..to_root(KEY)
            },
        ),
        libc::EINVAL,
        "no key",
    )?;
    refused(
        auth::add(
            dev,
            &GrantAdd {
                auth_key_size: 65,
                ..to_root(KEY)
            },
        ),
        libc::EINVAL,
        "a long key",
    )?;
    refused(
        auth::add(
            dev,
            &GrantAdd {
                match_: KFI_MATCH_NETNS,
                netns_fd: auth::number(&me),
                ..base
            },
        ),
        libc::EBADF,
        "no netns",
    )?;
    refused(
        auth::add(
            dev,
            &GrantAdd {
                match_: KFI_MATCH_PROCESS,
                pidfd: auth::number(&ns),
                ..base
            },
        ),
        libc::EBADF,
        "no pidfd",
    )
}

/// Limits apply to the grant as a whole, across files, and can be changed.
fn limits(ctx: &Ctx) -> Result<()> {
    let mode = Enforced::new()?;
    let id = auth::add(
        mode.dev(),
        &GrantAdd {
            max_eps: 2,
            max_keys: 1,
            max_pinned: 8192,
            ..to_root(KEY)
        },
    )?;
    let sides = [Side::of(&ctx.env)?, Side::of(&ctx.env)?];
    let open = |side: &Side| auth::endpoint(&side.dev, side.domain.handle, KEY);
    let first = open(&sides[0])?;
    open(&sides[1])?;
    refused(open(&sides[0]), libc::EDQUOT, "a third endpoint")?;
    sides[0].dev.close(first.handle)?;
    open(&sides[0])?;
    let buf = Buf::new(16384)?;
    let reg = |side: &Side, len: u64| {
        side.dev.call_region(&RegionReg {
            flags: KFI_REGION_DYNAMIC_KEYS,
            domain: side.domain.handle,
            addr: buf.addr(),
            len,
            access: LOCAL | REMOTE,
            auth_key: KEY.as_ptr() as u64,
            auth_key_size: KEY.len() as u32,
            ..Default::default()
        })
    };
    refused(reg(&sides[0], 8193), libc::EDQUOT, "a byte too many")?;
    let region = reg(&sides[0], 8192)?;
    refused(reg(&sides[1], 1), libc::EDQUOT, "another byte")?;
    let slots = sides[0].dev.key_alloc(region.handle, 1)?;
    refused(
        sides[0].dev.key_alloc(region.handle, 1),
        libc::EDQUOT,
        "a second key",
    )?;
    let used = auth::list(mode.dev())?[0];
    ensure!(
        (used.eps, used.keys, used.pinned) == (2, 1, 8192),
        "{used:?}"
    );
    mode.dev().call(&mut GrantChange {
        flags: KFI_GRANT_LIMITS,
        id,
        max_keys: 3,
        ..Default::default()
    })?;
    sides[0].dev.key_alloc(region.handle, 2)?;
    sides[0].dev.close(slots[0])?;
    drop(sides);
    let used = auth::list(mode.dev())?[0];
    ensure!((used.eps, used.keys, used.pinned) == (0, 0, 0), "{used:?}");
    Ok(())
}

/// A slot under another auth key than its region's lets the holders of that key reach the whole
/// region. So the region's length is charged to that key's grant, for each slot. A slot under the
/// region's own auth key is not charged.
fn charged(ctx: &Ctx) -> Result<()> {
    const LEN: u64 = 8192;
    let mode = Enforced::new()?;
    let add = |key, max_pinned| {
        auth::add(
            mode.dev(),
            &GrantAdd {
                max_pinned,
                ..to_root(key)
            },
        )
    };
    let ids = [add(KEY, LEN)?, add(OTHER, 2 * LEN)?];
    let side = Side::of(&ctx.env)?;
    let buf = Buf::new(LEN as usize)?;
    let region = side.dev.call_region(&RegionReg {
        flags: KFI_REGION_DYNAMIC_KEYS,
        domain: side.domain.handle,
        addr: buf.addr(),
        len: LEN,
        access: LOCAL | REMOTE,
        auth_key: KEY.as_ptr() as u64,
        auth_key_size: KEY.len() as u32,
        ..Default::default()
    })?;
    let slot = |key: &[u8]| {
        let mut slot = 0_u64;
        side.dev
            .call(&mut KeyAlloc {
                region: region.handle,
                count: 1,
                handles: (&raw mut slot) as u64,
                auth_key: key.as_ptr() as u64,
                auth_key_size: key.len() as u32,
                ..Default::default()
            })
            .map(|()| slot)
    };
    let used = || -> Result<Vec<(u64, u32)>> {
        let all = auth::list(mode.dev())?;
        let of = |id: &u64| all.iter().find(|grant| grant.id == *id);
        let amounts = ids.iter().filter_map(of).map(|g| (g.pinned, g.keys));
        Ok(amounts.collect())
    };
    ensure!(used()? == [(LEN, 0), (0, 0)], "{:?}", used()?);
    slot(KEY)?;
    slot(KEY)?;
    ensure!(used()? == [(LEN, 2), (0, 0)], "{:?}", used()?);
    let first = slot(OTHER)?;
    slot(OTHER)?;
    ensure!(used()? == [(LEN, 2), (2 * LEN, 2)], "{:?}", used()?);
    refused(slot(OTHER), libc::EDQUOT, "a third")?;
    ensure!(used()? == [(LEN, 2), (2 * LEN, 2)], "{:?}", used()?);
    side.dev.close(first)?;
    ensure!(used()? == [(LEN, 2), (LEN, 1)], "{:?}", used()?);
    slot(OTHER)?;
    drop(side);
    ensure!(used()? == [(0, 0); 2], "{:?}", used()?);
    Ok(())
}

/// If grants are required, a program can listen only with auth keys that grants cover: every key of
/// a listener needs a grant, and each is counted.
fn listeners(ctx: &Ctx) -> Result<()> {
    let mode = Enforced::new()?;
    let id = auth::add(mode.dev(), &to_root(KEY))?;
    let side = Side::of(&ctx.env)?;
    let open = |keys: &[&[u8]]| {
        let refs = auth::refs(keys);
        let mut call = PepOpen {
            fabric: side.fabric,
            eq: side.eq.handle,
            addr: crate::raw::to_sockaddr(ctx.env.at(0)),
            auth_keys: if refs.is_empty() {
                0
            } else {
                refs.as_ptr() as u64
            },
            auth_key_count: refs.len() as u32,
            ..Default::default()
        };
        side.dev.call(&mut call).map(|()| call.handle)
    };
    refused(open(&[]), libc::ENOKEY, "no auth key")?;
    refused(open(&[OTHER]), libc::ENOKEY, "another's")?;
    refused(open(&[KEY, OTHER]), libc::ENOKEY, "also another's")?;
    ensure!(auth::list(mode.dev())?[0].eps == 0, "a refusal counts");
    let pep = open(&[KEY])?;
    ensure!(auth::list(mode.dev())?[0].eps == 1, "it does not count");
    side.dev.listen(pep, 0)?;
    auth::revoke(mode.dev(), id)?;
    refused(open(&[KEY]), libc::ENOKEY, "afterwards")?;
    Ok(())
}

/// A grant to a process covers neither a later process with the same number nor any process after
/// the first has exited.
fn processes(ctx: &Ctx) -> Result<()> {
    let mode = Enforced::new()?;
    let side = Side::of(&ctx.env)?;
    let pid = sys::fork(|| 0)?;
    let fd = auth::pidfd(pid)?;
    ensure!(sys::wait_pid(pid, Duration::from_secs(10))? == Some(Ended::Exit(0)));
    let want = GrantAdd {
        match_: KFI_MATCH_PROCESS,
        pidfd: auth::number(&fd),
        ..auth::grant(KEY)
    };
    refused(
        auth::add(mode.dev(), &want),
        libc::ESRCH,
        "a process that is gone",
    )?;
    refused(
        auth::add(
            mode.dev(),
            &GrantAdd {
                pidfd: 4711,
                ..want
            },
        ),
        libc::EBADF,
        "a forged pidfd",
    )?;
    refused(
        auth::add(mode.dev(), &GrantAdd { pidfd: -1, ..want }),
        libc::EBADF,
        "no pidfd",
    )?;
    // Reuse the number: the kernel is set to issue it next.
    let child = sys::fork(|| {
        std::thread::sleep(Duration::from_secs(30));
        0
    })?;
    let fd = auth::pidfd(child)?;
    auth::add(
        mode.dev(),
        &GrantAdd {
            pidfd: auth::number(&fd),
            ..want
        },
    )?;
    sys::kill(child, libc::SIGKILL)?;
    sys::wait_pid(child, Duration::from_secs(10))?;
    for _ in 0..50 {
        if fs::write("/proc/sys/kernel/ns_last_pid", (child - 1).to_string()).is_err() {
            break;
        }
        let env = ctx.env.clone();
        let again = sys::fork(move || match Side::of(&env) {
            Ok(side) => {
                auth::endpoint(&side.dev, side.domain.handle, KEY).map_or_else(|e| e.errno.0, |_| 0)
            }
            Err(_) => 99,
        })?;
        let ended = sys::wait_pid(again, Duration::from_secs(30))?;
        ensure!(ended == Some(Ended::Exit(libc::ENOKEY)), "{ended:?}");
        if again == child {
            break;
        }
    }
    refused(
        auth::endpoint(&side.dev, side.domain.handle, KEY),
        libc::ENOKEY,
        "another process",
    )
}

/// Objects that were opened under a grant end with the grant, and every user of them gets the
/// reason.
fn ends(ctx: &Ctx) -> Result<()> {
    let mode = Enforced::new()?;
    for (lifetime_ms, errno) in [(0, libc::EKEYREVOKED), (300, libc::EKEYEXPIRED)] {
        let id = auth::add(mode.dev(), &to_root(KEY))?;
        let side = Side::of(&ctx.env)?;
        let domain = side.domain.handle;
        let ep = auth::endpoint(&side.dev, domain, KEY)?;
        let buf = Buf::new(4096)?;
        let region = side.dev.call_region(&RegionReg {
            flags: KFI_REGION_DYNAMIC_KEYS,
            domain,
            addr: buf.addr(),
            len: 4096,
            access: LOCAL | REMOTE,
            auth_key: KEY.as_ptr() as u64,
            auth_key_size: KEY.len() as u32,
            ..Default::default()
        })?;
        let slots = side.dev.key_alloc(region.handle, 2)?;
        side.assign(slots[0], 0, 4096, REMOTE)?;
        let own = side.dev.call_region(&RegionReg {
            domain,
            addr: buf.addr(),
            len: 4096,
            access: LOCAL | REMOTE,
            auth_key: KEY.as_ptr() as u64,
            auth_key_size: KEY.len() as u32,
            ..Default::default()
        })?;
        ensure!(own.key != KFI_KEY_NOTAVAIL);
        if lifetime_ms == 0 {
            auth::revoke(mode.dev(), id)?;
        } else {
            mode.dev().call(&mut GrantChange {
                flags: KFI_GRANT_LIFETIME,
                id,
                lifetime_ms,
                ..Default::default()
            })?;
            std::thread::sleep(Duration::from_millis(lifetime_ms + 50));
        }
        refused(
            side.dev.key_assign(slots[1], 0, 1, REMOTE).map(|_| ()),
            errno,
            "an assignment",
        )?;
        refused(
            side.dev
                .bind(ep.handle, side.eq.handle, 0)
                .and_then(|()| side.dev.enable(ep.handle)),
            errno,
            "enabling",
        )?;
        let end = Instant::now() + sys::patience(Duration::from_secs(10));
        while !auth::list(mode.dev())?.is_empty() {
            ensure!(
                Instant::now() < end,
                "it does not drain: {:?}",
                auth::list(mode.dev())?
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        refused(
            auth::revoke(mode.dev(), id),
            libc::ENOENT,
            "a grant that is over",
        )?;
        let keys = side
            .dev
            .obj_list()?
            .into_iter()
            .filter(|o| o.kind == KFI_TYPE_KEY && o.a != 0);
        ensure!(keys.count() == 0, "a key is left");
        // Another process may have the number now.
        let id = auth::add(
            mode.dev(),
            &GrantAdd {
                uid: 4711,
                ..to_root(KEY)
            },
        )?;
        auth::revoke(mode.dev(), id)?;
    }
    Ok(())
}

/// A process that is no administrator, or that was handed an administrator's file, is refused every
/// administrator's call.
fn nobody(_ctx: &Ctx) -> Result<()> {
    let handed = Dev::open()?;
    let child = sys::fork(move || {
        if sys::become_nobody().is_err() {
            return 99;
        }
        let mut denied = 0;
        let mut try_it = |r: crate::raw::Result<()>| {
            denied += i32::from(r.is_err_and(|e| e.errno.0 == libc::EPERM));
        };
        try_it(handed.call(&mut AuthMode::default()));
        try_it(handed.call(&mut to_root(KEY)));
        try_it(handed.call(&mut GrantChange {
            flags: 2,
            id: 1,
            ..Default::default()
        }));
        try_it(handed.call(&mut GrantRevoke {
            id: 1,
            ..Default::default()
        }));
        try_it(auth::list(&handed).map(|_| ()));
        try_it(handed.call(&mut AgentOpen::default()));
        try_it(handed.call(&mut AgentNext::default()));
        try_it(handed.call(&mut AgentAnswer::default()));
        denied
    })?;
    let ended = sys::wait_pid(child, Duration::from_secs(10))?;
    ensure!(ended == Some(Ended::Exit(8)), "{ended:?}");
    Ok(())
}

/// Returns whether the bytes, or their `%*ph` form, are in a text.
fn shows(text: &[u8], key: &[u8]) -> bool {
    let core = &key[1..key.len() - 1];
    let hex: String = core.iter().map(|b| format!("{b:02x}")).collect();
    text.windows(core.len()).any(|w| w == core)
        || text.windows(hex.len()).any(|w| w == hex.as_bytes())
}

/// Checks that the bytes of an auth key appear nowhere.
fn unseen(ctx: &Ctx) -> Result<()> {
    let trace = "/sys/kernel/tracing";
    let event = format!("{trace}/events/kfabric/enable");
    let traced = fs::write(&event, "1").is_ok();
    let mode = Enforced::new()?;
    let side = Side::of(&ctx.env)?;
    let mut texts = vec![];
    for says in [true, false] {
        let served = Served::start(move |a, q| {
            let _ = if says {
                a.allow(q.raw.id)
            } else {
                a.deny(q.raw.id)
            };
        })?;
        let key = if says { KEY } else { OTHER };
        let opened = auth::endpoint(&side.dev, side.domain.handle, key);
        texts.push(format!("{opened:?}").into_bytes());
        drop(served);
    }
    texts.push(fs::read(
        "/proc/self/fdinfo/".to_owned() + &auth_fd(&side.dev).to_string(),
    )?);
    texts.push(format!("{:?}", auth::list(mode.dev())?).into_bytes());
    texts.push(std::process::Command::new("dmesg").output()?.stdout);
    if traced {
        let _ = fs::write(&event, "0");
        let seen = fs::read(format!("{trace}/trace"))?;
        let text = String::from_utf8_lossy(&seen).into_owned();
        ensure!(
            text.contains("auth_decision") && text.contains("verdict=granted"),
            "{text}"
        );
        ensure!(text.contains("verdict=denied"), "{text}");
        texts.push(seen);
    }
    for text in &texts {
        for key in [KEY, OTHER] {
            ensure!(!shows(text, key), "{}", String::from_utf8_lossy(text));
        }
    }
    Ok(())
}

fn auth_fd(dev: &Dev) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(&dev.as_fd())
}
