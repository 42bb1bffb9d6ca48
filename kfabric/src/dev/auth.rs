// SPDX-License-Identifier: GPL-2.0
//! The calls about auth keys: the mode, grants, and the agent's.

use core::sync::atomic::Ordering;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};
use zerocopy::IntoBytes;

use super::{
    call::{
        zero,
        Made, //
    },
    file::File,
    keys::key_of,
    table::Object,
    user, //
};
use crate::{
    auth::{
        self,
        ask::{
            self,
            Seat, //
        },
        grant::{
            self,
            Offer, //
        },
        key::{
            AuthKey,
            Secret, //
        },
        sweep,
        Under,
        Want, //
    },
    fabric::Domain,
    key::Key,
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

/// Fetches an auth key; none where no bytes are named.
///
/// # Errors
///
/// `EINVAL`: too many bytes, or a pointer to none.
#[inline(never)]
pub(super) fn read_key(addr: u64, size: u32) -> Result<Option<AuthKey>> {
    if addr == 0 && size == 0 {
        return Ok(None);
    }
    // CAST: A `u32` fits.
    let secret = Secret::fill(size as usize, |place| user::read_bytes(addr, place))?;
    AuthKey::of(secret).map(Some)
}

/// What something on `domain` is opened under: the auth key that is given, else `other`.
#[inline(never)]
pub(super) fn under(
    file: &File,
    domain: &Domain,
    key: Option<AuthKey>,
    other: Option<&AuthKey>,
    want: Want,
) -> Result<Under> {
    let key = key.or_else(|| other.cloned());
    let lease = auth::admit(&file.net, domain.name(), key.as_ref(), want)?;
    Ok(Under { key, lease })
}

/// Refuses who is no administrator.
fn admin(file: &File) -> Result {
    if file.sees_all() {
        return Ok(());
    }
    Err(EPERM)
}

/// Refuses what is beyond a bound.
fn within(value: u32, low: u32, high: u32) -> Result {
    if value < low || value > high {
        return Err(EINVAL);
    }
    Ok(())
}

/// The longest time that may be set, in milliseconds.
const TIME_MAX: u32 = 600_000;
/// The most questions of a process that may be set.
const ASKS_MAX: u32 = 4096;

pub(super) fn mode(file: &File, call: &mut AuthMode) -> Result<Made> {
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
        ask::TIMEOUT_MS.store(call.timeout_ms, Ordering::Relaxed);
    }
    if sets(KFI_AUTH_SET_DENY) {
        ask::DENY_MS.store(call.deny_ms, Ordering::Relaxed);
    }
    if sets(KFI_AUTH_SET_ASKS) {
        ask::ASKS.store(call.asks, Ordering::Relaxed);
    }
    if sets(KFI_AUTH_SET_MODE) {
        auth::set_mode(call.mode);
    }
    let (agent, waiting) = ask::agent();
    call.mode = auth::mode();
    call.timeout_ms = ask::TIMEOUT_MS.load(Ordering::Relaxed);
    call.deny_ms = ask::DENY_MS.load(Ordering::Relaxed);
    call.asks = ask::ASKS.load(Ordering::Relaxed);
    call.agent = agent.unwrap_or(0);
    call.agents = agent.is_some().into();
    call.grants = u32::try_from(grant::count()).unwrap_or(u32::MAX);
    call.waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    Ok(Made::Nothing)
}

pub(super) fn grant_add(file: &File, call: &mut GrantAdd) -> Result<Made> {
    zero(&[call.flags, call.reserved])?;
    admin(file)?;
    let of = |bit: u32| call.match_ & bit != 0;
    let unnamed = |bit: u32, fd: i32| of(bit) || fd == 0;
    if !unnamed(KFI_MATCH_PROCESS, call.pidfd) || !unnamed(KFI_MATCH_NETNS, call.netns_fd) {
        return Err(EINVAL);
    }
    let key = read_key(call.auth_key, call.auth_key_size)?.ok_or(EINVAL)?;
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
    call.id = grant::add(Offer {
        key: key.clone(),
        rule,
        rights: call.rights,
        limits: limits(call.max_pinned, call.max_keys, call.max_eps),
        lifetime: call.lifetime_ms,
        answered: None,
    })?;
    ask::look(&key);
    Ok(Made::Granted(call.id))
}

fn limits(pinned: u64, keys: u32, eps: u32) -> Limits {
    Limits { pinned, keys, eps }
}

pub(super) fn grant_change(file: &File, call: &mut GrantChange) -> Result<Made> {
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
    Ok(Made::Done)
}

pub(super) fn grant_revoke(file: &File, call: &mut GrantRevoke) -> Result<Made> {
    zero(&[call.flags])?;
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    admin(file)?;
    grant::revoke(call.id)?;
    sweep::sweep()?;
    Ok(Made::Done)
}

pub(super) fn grant_list(file: &File, call: &mut GrantList) -> Result<Made> {
    zero(&[call.flags])?;
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    admin(file)?;
    user::check_entry_size::<GrantInfo>(call.entry_size)?;
    let (mut count, mut last) = (0_u32, 0);
    while let Some(info) = grant::after(last) {
        sys::pause()?;
        last = info.id;
        if count < call.count {
            // CAST: A `u32` fits.
            let index = count as usize;
            user::write_entry(call.entries, call.entry_size, index, info.as_bytes())?;
        }
        count = count.checked_add(1).ok_or(EOVERFLOW)?;
    }
    call.count = count;
    Ok(Made::Nothing)
}

pub(super) fn agent_open(file: &File, call: &mut AgentOpen) -> Result<Made> {
    zero(&[call.flags])?;
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    admin(file)?;
    if let Some(seat) = file.seat.as_ref() {
        return Err(if seat.is_current() {
            crate::errno::ealready()
        } else {
            crate::errno::estale()
        });
    }
    let seat = Seat::new()?;
    // Of many calls at once one sits.
    if !file.seat.populate(seat.clone()) {
        return Err(crate::errno::ealready());
    }
    ask::sit(&seat)?;
    Ok(Made::Done)
}

fn seat(file: &File) -> Result<&Arc<Seat>> {
    admin(file)?;
    file.seat.as_ref().ok_or(EINVAL)
}

/// Tells the agent the supplementary groups of who asks, as far as it has room.
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

/// Tells the agent the path of the cgroup of who asks, if it has room.
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

pub(super) fn agent_next(file: &File, call: &mut AgentNext) -> Result<Made> {
    zero(&[call.flags, call.reserved])?;
    let question = ask::next(seat(file)?)?;
    question.tell(call);
    let bytes = question.key().bytes();
    let zeros = [0; KFI_AUTH_KEY_MAX];
    let rest = call.auth_key.saturating_add(bytes.len() as u64);
    let padding = zeros.get(bytes.len()..).unwrap_or_default();
    let told = user::write_bytes(call.auth_key, bytes)
        .and_then(|()| user::write_bytes(rest, padding))
        .and_then(|()| tell_groups(question.told(), call))
        .and_then(|()| tell_cgroup(question.told(), call));
    let made = Made::Asked(question);
    if let Err(e) = told {
        made.undo(file);
        return Err(e);
    }
    Ok(made)
}

pub(super) fn agent_answer(file: &File, call: &mut AgentAnswer) -> Result<Made> {
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
    call.grant = ask::answer(seat, call)?;
    Ok(Made::Nothing)
}

/// Ends an endpoint, if its grant is over.
fn end_endpoint(object: &Object) -> Result {
    let ended = match object {
        Object::Pep(pep) => pep.sweep(),
        Object::Ep(ep) => ep.sweep(),
        _ => false,
    };
    auth::seen::swept(ended.into());
    Ok(())
}

/// Ends a key, if its grant is over.
fn end_key(object: &Object) -> Result {
    let ended = key_of(object).is_some_and(Key::sweep);
    auth::seen::swept(ended.into());
    Ok(())
}

/// Waits for who is just ending a key whose grant is over.
fn await_key(object: &Object) -> Result {
    key_of(object).map_or(Ok(()), Key::swept)
}

/// Ends all that was opened under grants that are over. Endpoints go first: one that ended because
/// its peer has met a dead key would be told of that and not of the grant.
///
/// # Errors
///
/// `EINTR`: the task is being killed.
pub(crate) fn sweep() -> Result {
    each_object(end_endpoint)?;
    each_object(end_key)
}

/// Waits for what others are just ending of what [`sweep`] ends: the worker, or an owner. Endpoints
/// it has waited for.
///
/// # Errors
///
/// As [`sweep`].
pub(crate) fn swept() -> Result {
    each_object(await_key)
}

fn each_object(act: fn(&Object) -> Result) -> Result {
    File::for_each(|file| {
        for index in 0..file.table.cells() {
            sys::pause()?;
            if let Some((_, entry)) = file.table.peek(index) {
                act(&entry.object)?;
            }
        }
        Ok(())
    })
}
