// SPDX-License-Identifier: GPL-2.0
//! The calls on auth keys: the mode, grants, and the agent's calls.

use core::sync::atomic::Ordering;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};
use zerocopy::IntoBytes;

use crate::{
    auth::{
        self,
        agent::{
            self,
            Seat, //
        },
        grant::{
            self,
            NewGrant, //
        },
        reaper, //
    },
    base::errno::{
        ealready,
        estale, //
    },
    chardev::{
        admission::read_auth_key,
        args::zero,
        file::File,
        undo::Undo,
        user, //
    },
    pure::grant::{
        Limits,
        Rule, //
    },
    sys::{
        self,
        auth as sys_auth, //
    },
    uapi::*,
};

/// Refuses a caller without administrator rights.
fn admin(file: &File) -> Result {
    if file.sees_all() {
        return Ok(());
    }
    Err(EPERM)
}

/// Refuses a value outside its bounds.
fn within(value: u32, low: u32, high: u32) -> Result {
    if value < low || value > high {
        return Err(EINVAL);
    }
    Ok(())
}

/// Longest time that an administrator can set, in milliseconds.
const TIME_MAX: u32 = 600_000;
/// Largest limit of a process's waiting upcalls that an administrator can set.
const ASKS_MAX: u32 = 4096;

pub(crate) fn mode(file: &File, call: &mut AuthMode) -> Result<Undo> {
    const ALL: u32 =
        KFI_AUTH_SET_MODE | KFI_AUTH_SET_TIMEOUT | KFI_AUTH_SET_DENY | KFI_AUTH_SET_ASKS;
    zero(&[call.flags & !ALL])?;
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    admin(file)?;
    let sets = |flag: u32| call.flags & flag != 0;
    if sets(KFI_AUTH_SET_MODE) {
        within(call.mode, KFI_AUTH_OPEN, KFI_AUTH_ENFORCE)?;
    }
    if sets(KFI_AUTH_SET_TIMEOUT) {
        within(call.timeout_ms, 1, TIME_MAX)?;
    }
    if sets(KFI_AUTH_SET_DENY) {
        within(call.deny_ms, 0, TIME_MAX)?;
    }
    if sets(KFI_AUTH_SET_ASKS) {
        within(call.asks, 1, ASKS_MAX)?;
    }
    if sets(KFI_AUTH_SET_TIMEOUT) {
        agent::TIMEOUT_MS.store(call.timeout_ms, Ordering::Relaxed);
    }
    if sets(KFI_AUTH_SET_DENY) {
        agent::DENY_MS.store(call.deny_ms, Ordering::Relaxed);
    }
    if sets(KFI_AUTH_SET_ASKS) {
        agent::ASKS.store(call.asks, Ordering::Relaxed);
    }
    if sets(KFI_AUTH_SET_MODE) {
        auth::set_mode(call.mode);
    }
    let (agent, waiting) = agent::agent();
    call.mode = auth::mode();
    call.timeout_ms = agent::TIMEOUT_MS.load(Ordering::Relaxed);
    call.deny_ms = agent::DENY_MS.load(Ordering::Relaxed);
    call.asks = agent::ASKS.load(Ordering::Relaxed);
    call.agent = agent.unwrap_or(0);
    call.agents = agent.is_some().into();
    call.grants = u32::try_from(grant::count()).unwrap_or(u32::MAX);
    call.waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    Ok(Undo::Nothing)
}

pub(crate) fn grant_add(file: &File, call: &mut GrantAdd) -> Result<Undo> {
    zero(&[call.flags, call.reserved])?;
    admin(file)?;
    let of = |bit: u32| call.match_ & bit != 0;
    let unnamed = |bit: u32, fd: i32| of(bit) || fd == 0;
    if !unnamed(KFI_MATCH_PROCESS, call.pidfd) || !unnamed(KFI_MATCH_NETNS, call.netns_fd) {
        return Err(EINVAL);
    }
    let key = read_auth_key(call.auth_key, call.auth_key_size)?.ok_or(EINVAL)?;
    let mut rule = Rule {
        what: call.match_,
        uid: call.uid,
        gid: call.gid,
        cgroup: call.cgroup,
        netns: 0,
        process: 0,
    };
    if of(KFI_MATCH_PROCESS) {
        rule.process = sys_auth::process_of(call.pidfd)?;
    }
    if of(KFI_MATCH_NETNS) {
        rule.netns = sys_auth::netns_of(call.netns_fd)?;
    }
    call.id = grant::add(NewGrant {
        key: key.clone(),
        rule,
        rights: call.rights,
        limits: limits(call.max_pinned, call.max_keys, call.max_eps),
        lifetime: call.lifetime_ms,
        answered: None,
    })?;
    agent::look(&key);
    Ok(Undo::Grant(call.id))
}

fn limits(pinned: u64, keys: u32, eps: u32) -> Limits {
    Limits { pinned, keys, eps }
}

pub(crate) fn grant_change(file: &File, call: &mut GrantChange) -> Result<Undo> {
    zero(&[call.flags & !(KFI_GRANT_LIMITS | KFI_GRANT_LIFETIME)])?;
    admin(file)?;
    let wants = |flag: u32| call.flags & flag != 0;
    let no_limits = call.max_pinned == 0 && call.max_keys == 0 && call.max_eps == 0;
    if call.flags == 0
        || !(wants(KFI_GRANT_LIMITS) || no_limits)
        || !(wants(KFI_GRANT_LIFETIME) || call.lifetime_ms == 0)
    {
        return Err(EINVAL);
    }
    grant::change(
        call.id,
        wants(KFI_GRANT_LIMITS).then(|| limits(call.max_pinned, call.max_keys, call.max_eps)),
        wants(KFI_GRANT_LIFETIME).then_some(call.lifetime_ms),
    )?;
    Ok(Undo::NoAnswer)
}

pub(crate) fn grant_revoke(file: &File, call: &mut GrantRevoke) -> Result<Undo> {
    zero(&[call.flags])?;
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    admin(file)?;
    grant::revoke(call.id)?;
    reaper::sweep()?;
    Ok(Undo::NoAnswer)
}

pub(crate) fn grant_list(file: &File, call: &mut GrantList) -> Result<Undo> {
    zero(&[call.flags])?;
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    admin(file)?;
    user::check_entry_size::<GrantInfo>(call.entry_size)?;
    let mut count = 0_u32;
    for grant in grant::all()?.values() {
        sys::pause()?;
        let info = grant.info();
        if count < call.count {
            // CAST: A `u32` fits.
            let index = count as usize;
            user::write_entry(call.entries, call.entry_size, index, info.as_bytes())?;
        }
        count = count.checked_add(1).ok_or(EOVERFLOW)?;
    }
    call.count = count;
    Ok(Undo::Nothing)
}

pub(crate) fn agent_open(file: &File, call: &mut AgentOpen) -> Result<Undo> {
    zero(&[call.flags])?;
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    admin(file)?;
    if let Some(seat) = file.seat.as_ref() {
        return Err(if seat.is_current() {
            ealready()
        } else {
            estale()
        });
    }
    let seat = Seat::new()?;
    // If several calls run at once, one of them becomes the agent's.
    if !file.seat.populate(seat.clone()) {
        return Err(ealready());
    }
    agent::sit(&seat)?;
    Ok(Undo::NoAnswer)
}

fn seat(file: &File) -> Result<&Arc<Seat>> {
    admin(file)?;
    file.seat.as_ref().ok_or(EINVAL)
}

/// Copies the requester's supplementary groups to the agent, up to the size of its buffer.
fn tell_groups(told: &sys_auth::Told, call: &mut AgentNext) -> Result {
    let room = core::mem::take(&mut call.groups_count);
    if call.groups == 0 {
        return Ok(());
    }
    let mut part = [0_u32; 64];
    let mut done = 0_u32;
    loop {
        let all = told.groups(done, &mut part);
        // CAST: At most 64.
        let n = all.min(room).saturating_sub(done).min(part.len() as u32);
        call.groups_count = all;
        if n == 0 {
            if all <= room {
                call.known |= KFI_KNOWN_GROUPS;
            }
            return Ok(());
        }
        let at = call.groups.saturating_add(u64::from(done) * 4);
        // CAST: At most 64.
        let some = part.get(..n as usize).unwrap_or_default();
        user::write_bytes(at, some.as_bytes())?;
        done += n;
        sys::pause()?;
    }
}

/// Copies the path of the requester's cgroup to the agent, if it fits into the buffer.
fn tell_cgroup(told: &sys_auth::Told, call: &mut AgentNext) -> Result {
    let room = core::mem::take(&mut call.cgroup_path_size);
    if call.cgroup_path == 0 {
        return Ok(());
    }
    let mut buffer = KVVec::from_elem(0_u8, PAGE_SIZE, GFP_KERNEL_ACCOUNT)?;
    let Ok(path) = told.path(&mut buffer) else {
        return Ok(());
    };
    // CAST: A `u32` fits.
    if path.len() > room as usize {
        return Ok(());
    }
    user::write_bytes(call.cgroup_path, path)?;
    // CAST: Less than a page.
    call.cgroup_path_size = path.len() as u32;
    call.known |= KFI_KNOWN_CGROUP;
    Ok(())
}

pub(crate) fn agent_next(file: &File, call: &mut AgentNext) -> Result<Undo> {
    zero(&[call.flags, call.reserved])?;
    let question = agent::next(seat(file)?)?;
    question.tell(call);
    let bytes = question.key().bytes();
    let zeros = [0; KFI_AUTH_KEY_MAX];
    let rest = call.auth_key.saturating_add(bytes.len() as u64);
    let padding = zeros.get(bytes.len()..).unwrap_or_default();
    let told = user::write_bytes(call.auth_key, bytes)
        .and_then(|()| user::write_bytes(rest, padding))
        .and_then(|()| tell_groups(question.told(), call))
        .and_then(|()| tell_cgroup(question.told(), call));
    let undo = Undo::Upcall(question);
    if let Err(e) = told {
        undo.roll_back(file);
        return Err(e);
    }
    Ok(undo)
}

pub(crate) fn agent_answer(file: &File, call: &mut AgentAnswer) -> Result<Undo> {
    zero(&[call.flags, call.reserved])?;
    let seat = seat(file)?;
    let nothing = call.match_ == 0
        && call.rights == 0
        && call.max_keys == 0
        && call.max_pinned == 0
        && call.lifetime_ms == 0
        && call.max_eps == 0;
    match call.verdict {
        KFI_AUTH_ALLOW => {}
        KFI_AUTH_DENY if nothing => {}
        _ => return Err(EINVAL),
    }
    call.grant = agent::answer(seat, call)?;
    Ok(Undo::Nothing)
}
