// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cases of auth keys: the mode, grants, the agent, and objects opened under an auth key.

use crate::auth::{self, add, list, mode, revoke, to_root, Agent, Enforced, KEY};
use crate::fault::calls::memory::{register, touch};
use crate::fault::lab::{Lab, WAIT};
use crate::fault::sweep::{Case, Shot};
use crate::harness::guest::until;
use crate::raw::{self, Dev};
use crate::sys::{self, rights, Ended, Map};
use anyhow::{anyhow, ensure, Result};
use kfabric_uapi::*;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The cases.
pub const CASES: &[Case] = &[
    Case::new("KFI_IOC_AUTH_MODE", "", show),
    Case::new("KFI_IOC_GRANT_ADD", "", grant_add),
    Case::new("KFI_IOC_GRANT_CHANGE", "", grant_change),
    Case::new("KFI_IOC_GRANT_REVOKE", "", grant_revoke),
    Case::new("KFI_IOC_GRANT_LIST", "", grant_list),
    Case::new("KFI_IOC_AGENT_OPEN", "", agent_open),
    Case::new("KFI_IOC_AGENT_NEXT", "", agent_next),
    Case::new("KFI_IOC_AGENT_NEXT", "question", agent_question),
    Case::new("KFI_IOC_AGENT_ANSWER", "", agent_answer),
    Case::new("KFI_IOC_EP_OPEN", "auth_key", ep_open),
    Case::new("KFI_IOC_EP_OPEN", "asked", ep_asked).long(),
    Case::new("KFI_IOC_KEY_ALLOC", "auth_key", key_alloc).also(&[
        libc::ENOSPC,
        libc::EIO,
        libc::ENFILE,
    ]),
];

fn show(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let got = shot.ioctl(&lab.dev, &AuthMode::default())?;
    ensure!(got.mode == KFI_AUTH_OPEN && got.timeout_ms > 0, "{got:?}");
    Ok(())
}

/// Waits until no grant is left: a worker may still be removing the last grants.
fn no_grants(lab: &Lab) -> Result<()> {
    until("no grant is left", WAIT, || {
        Ok((mode(&lab.dev)?.grants == 0).then_some(()))
    })
}

/// A failed call leaves no grant.
fn grant_add(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let got = shot.ioctl(&lab.dev, &to_root(KEY))?;
    let all = list(&lab.dev)?;
    ensure!(all.len() == 1 && all[0].id == got.id, "{all:?}");
    revoke(&lab.dev, got.id)?;
    no_grants(lab)
}

fn grant_change(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let id = add(&lab.dev, &to_root(KEY))?;
    let want = GrantChange {
        flags: KFI_GRANT_LIMITS,
        id,
        max_keys: 7,
        ..Default::default()
    };
    shot.call(|| lab.dev.call(&mut want.clone()))?;
    ensure!(list(&lab.dev)?[0].max_keys == 7, "it was not changed");
    revoke(&lab.dev, id)?;
    no_grants(lab)
}

/// The grant is revoked, whichever step fails.
fn grant_revoke(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let id = add(&lab.dev, &to_root(KEY))?;
    shot.call(|| match revoke(&lab.dev, id) {
        Err(e) if e.errno.0 == libc::ENOENT => Ok(()),
        other => other,
    })?;
    no_grants(lab)
}

fn grant_list(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let id = add(&lab.dev, &to_root(KEY))?;
    let mut room = [GrantInfo::default(); 4];
    let want = GrantList {
        entries: room.as_mut_ptr() as u64,
        count: 4,
        entry_size: size_of::<GrantInfo>() as u32,
        ..Default::default()
    };
    let got = shot.ioctl(&lab.dev, &want)?;
    ensure!(got.count == 1 && room[0].id == id, "{got:?}: {room:?}");
    revoke(&lab.dev, id)?;
    no_grants(lab)
}

fn agent_open(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let agent = Dev::open()?;
    let mut want = AgentOpen::default();
    shot.call(|| agent.call(&mut want))?;
    ensure!(mode(&lab.dev)?.agents == 1, "there is no agent");
    drop(agent);
    ensure!(mode(&lab.dev)?.agents == 0, "there is an agent yet");
    Ok(())
}

/// Makes a call of the agent's that has no question to act on.
fn of_agent<T: Ioctl + Copy>(want: T, errno: i32, shot: &mut Shot<'_>) -> Result<()> {
    let agent = Dev::open()?;
    agent.call(&mut AgentOpen::default())?;
    shot.call(|| -> raw::Result<()> {
        match agent.call(&mut want.clone()) {
            Err(e) if e.errno.0 == errno => Ok(()),
            other => other,
        }
    })
}

fn agent_next(_: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let mut room = [0u8; KFI_AUTH_KEY_MAX];
    let want = AgentNext {
        auth_key: room.as_mut_ptr() as u64,
        ..Default::default()
    };
    of_agent(want, libc::EAGAIN, shot)
}

/// A question that the agent could not be told is the next one again, with groups and cgroup.
fn agent_question(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    const GROUPS: [u32; 3] = [5, 6, 70_001];
    let enforced = Enforced::new()?;
    // The sweep takes longer than an agent usually has.
    enforced.timeout(600_000)?;
    let agent = Agent::open()?;
    let (dev, domain) = (&lab.dev, lab.domain);
    let asker = sys::fork(|| match rights::become_member(2001, &GROUPS) {
        Ok(()) => auth::endpoint(dev, domain, KEY).map_or_else(|e| e.errno.0, |_| 0),
        Err(_) => 255,
    })?;
    ensure!(sys::poll_in(agent.dev().as_fd(), WAIT)?, "nobody asks");
    let (mut key, mut path) = ([0u8; KFI_AUTH_KEY_MAX], [0u8; 4096]);
    let mut groups = [0u32; GROUPS.len()];
    let want = AgentNext {
        auth_key: key.as_mut_ptr() as u64,
        groups: groups.as_mut_ptr() as u64,
        groups_count: groups.len() as u32,
        cgroup_path: path.as_mut_ptr() as u64,
        cgroup_path_size: path.len() as u32,
        ..Default::default()
    };
    let got = shot.ioctl(agent.dev(), &want);
    let asked = got.is_ok_and(|got| {
        let known = got.known & KFI_KNOWN_GROUPS != 0;
        known && groups == GROUPS && agent.deny(got.id).is_ok()
    });
    drop(agent);
    let end = sys::wait_pid(asker, WAIT)?;
    ensure!(asked, "the agent was not told all: {groups:?}");
    ensure!(end == Some(Ended::Exit(libc::EACCES)), "{end:?}");
    Ok(())
}

fn agent_answer(_: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let want = AgentAnswer {
        id: u64::MAX,
        ..Default::default()
    };
    of_agent(want, libc::ENOENT, shot)
}

/// The first endpoint under an auth key allocates a protection group.
fn ep_open(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let want = EpOpen {
        domain: lab.domain,
        tx_size: 8,
        rx_size: 8,
        auth_key: KEY.as_ptr() as u64,
        auth_key_size: KEY.len() as u32,
        ..Default::default()
    };
    let got = shot.ioctl(&lab.dev, &want)?;
    Ok(lab.dev.close(got.handle)?)
}

/// The agent is asked, and allows it. A question that could not be put is put by the next call.
fn ep_asked(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let enforced = Enforced::new()?;
    enforced.timeout(600_000)?;
    let agent = Agent::open()?;
    let over = AtomicBool::new(false);
    let allow_all = || -> raw::Result<u32> {
        let mut allowed = 0;
        while !over.load(Ordering::Relaxed) {
            match agent.wait(Duration::from_millis(10)) {
                Ok(question) => agent.allow(question.raw.id).map(|_| allowed += 1)?,
                Err(e) if e.errno.0 == libc::EAGAIN => {}
                Err(e) => return Err(e),
            }
        }
        Ok(allowed)
    };
    let want = EpOpen {
        domain: lab.domain,
        tx_size: 8,
        rx_size: 8,
        auth_key: KEY.as_ptr() as u64,
        auth_key_size: KEY.len() as u32,
        ..Default::default()
    };
    let dev = &lab.dev;
    let (got, allowed) = std::thread::scope(|scope| {
        let answers = scope.spawn(allow_all);
        let got = shot.ioctl(dev, &want);
        over.store(true, Ordering::Relaxed);
        (got, answers.join())
    });
    lab.dev.close(got?.handle)?;
    let allowed = allowed.map_err(|_| anyhow!("a panic"))??;
    ensure!(allowed == 1, "{allowed} questions were answered");
    drop(enforced);
    no_grants(lab)
}

fn key_alloc(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let map = Map::anon(4096)?;
    touch(&map);
    let region = register(lab, &map, KFI_REGION_DYNAMIC_KEYS)?;
    let mut slots = [0u64; 2];
    let want = KeyAlloc {
        region,
        count: 2,
        handles: slots.as_mut_ptr() as u64,
        auth_key: KEY.as_ptr() as u64,
        auth_key_size: KEY.len() as u32,
        ..Default::default()
    };
    shot.ioctl(&lab.dev, &want)?;
    for slot in slots {
        lab.dev.close(slot)?;
    }
    Ok(lab.dev.close(region)?)
}
