// SPDX-License-Identifier: MIT OR Apache-2.0

//! Auth keys: the mode, grants, the agent, and what is opened under an auth key.

use crate::auth::{add, list, mode, revoke, to_root, KEY};
use crate::fault::calls::memory::{register, touch};
use crate::fault::lab::{Lab, WAIT};
use crate::fault::sweep::{Case, Shot};
use crate::harness::guest::until;
use crate::raw::{self, Dev};
use crate::sys::Map;
use anyhow::{ensure, Result};
use kfabric_uapi::*;

/// The cases.
pub const CASES: &[Case] = &[
    Case::new("KFI_IOC_AUTH_MODE", "", show),
    Case::new("KFI_IOC_GRANT_ADD", "", grant_add),
    Case::new("KFI_IOC_GRANT_CHANGE", "", grant_change),
    Case::new("KFI_IOC_GRANT_REVOKE", "", grant_revoke),
    Case::new("KFI_IOC_GRANT_LIST", "", grant_list),
    Case::new("KFI_IOC_AGENT_OPEN", "", agent_open),
    Case::new("KFI_IOC_AGENT_NEXT", "", agent_next),
    Case::new("KFI_IOC_AGENT_ANSWER", "", agent_answer),
    Case::new("KFI_IOC_EP_OPEN", "auth_key", ep_open),
    Case::new("KFI_IOC_KEY_ALLOC", "auth_key", key_alloc).also(&[libc::ENOSPC, libc::EIO]),
];

fn show(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let got = shot.ioctl(&lab.dev, &AuthMode::default())?;
    ensure!(got.mode == KFI_AUTH_OPEN && got.timeout_ms > 0, "{got:?}");
    Ok(())
}

/// A worker may be what takes the last away.
fn no_grants(lab: &Lab) -> Result<()> {
    until("no grant is left", WAIT, || {
        Ok((mode(&lab.dev)?.grants == 0).then_some(()))
    })
}

/// One that fails leaves no grant.
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

/// It is over whatever fails.
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

/// A call of the agent's for which there is nothing.
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

fn agent_answer(_: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let want = AgentAnswer {
        id: u64::MAX,
        ..Default::default()
    };
    of_agent(want, libc::ENOENT, shot)
}

/// The first endpoint under an auth key takes a group of the device's.
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
