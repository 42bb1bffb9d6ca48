// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cases of listing and opening objects.

use crate::fault::inject::Kind;
use crate::fault::lab::Lab;
use crate::fault::sweep::{Case, Shot};
use crate::raw::{hints, name_field, to_sockaddr};
use crate::sys::own_fd;
use anyhow::{ensure, Result};
use kfabric_uapi::*;
use zerocopy::FromZeros;

/// The cases.
pub const CASES: &[Case] = &[
    // A device that does not answer is not listed.
    Case::new("KFI_IOC_GETINFO", "", getinfo).also(&[libc::ENODATA]),
    Case::new("KFI_IOC_OBJ_LIST", "", obj_list),
    Case::new("KFI_IOC_FABRIC_OPEN", "", fabric_open),
    Case::new("KFI_IOC_DOMAIN_OPEN", "", domain_open),
    Case::new("KFI_IOC_EQ_OPEN", "", eq_open),
    Case::new("KFI_IOC_CQ_OPEN", "", cq_open),
    Case::new("KFI_IOC_CNTR_OPEN", "", cntr_open),
    Case::new("KFI_IOC_PEP_OPEN", "", pep_open),
    Case::new("KFI_IOC_EP_OPEN", "", ep_open),
    Case::new("KFI_IOC_EP_OPEN", "own_keys", ep_open_own_keys),
    Case::new("KFI_IOC_EP_OPEN", "rings", ep_open_rings),
    Case::new("KFI_IOC_EP_OPEN", "request", ep_open_request),
    Case::new("KFI_IOC_EP_OPEN", "first_handles", first_handles),
    Case::new("KFI_IOC_CLOSE", "fabric", close_fabric),
    Case::new("KFI_IOC_CLOSE", "domain", close_domain),
    Case::new("KFI_IOC_CLOSE", "eq", close_eq),
    Case::new("KFI_IOC_CLOSE", "cq", close_cq),
    Case::new("KFI_IOC_CLOSE", "cntr", close_cntr),
    Case::new("KFI_IOC_CLOSE", "pep", close_pep),
    Case::new("KFI_IOC_CLOSE", "ep", close_ep),
];

fn getinfo(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let mut entries = vec![InfoEntry::default(); 16];
    let hints = InfoEntry {
        dest_addr: to_sockaddr(lab.env.at(9)),
        ..hints()
    };
    let got = shot.ioctl(
        &lab.dev,
        &GetInfo {
            hints: std::ptr::from_ref(&hints) as u64,
            entries: entries.as_mut_ptr() as u64,
            count: entries.len() as u32,
            entry_size: std::mem::size_of::<InfoEntry>() as u32,
            ..Default::default()
        },
    )?;
    ensure!(got.count > 0, "no entry");
    Ok(())
}

fn obj_list(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let mut entries = vec![ObjInfo::new_zeroed(); 64];
    let got = shot.ioctl(
        &lab.dev,
        &ObjList {
            entries: entries.as_mut_ptr() as u64,
            count: entries.len() as u32,
            entry_size: std::mem::size_of::<ObjInfo>() as u32,
            ..Default::default()
        },
    )?;
    ensure!(got.count >= 4, "{} objects", got.count);
    Ok(())
}

fn fabric_open(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let mut want = FabricOpen::new_zeroed();
    want.prov_name = name_field(&lab.env.provider);
    want.fabric_name = lab.info.fabric_name;
    let got = shot.ioctl(&lab.dev, &want)?;
    Ok(lab.dev.close(got.handle)?)
}

fn domain_open(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let mut want = DomainOpen::new_zeroed();
    want.fabric = lab.fabric;
    want.name = lab.info.domain_name;
    let got = shot.ioctl(&lab.dev, &want)?;
    Ok(lab.dev.close(got.handle)?)
}

fn eq_open(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let want = EqOpen {
        fabric: lab.fabric,
        ..Default::default()
    };
    let got = shot.ioctl(&lab.dev, &want)?;
    drop(own_fd(got.fd));
    Ok(lab.dev.close(got.handle)?)
}

fn cq_open(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let want = CqOpen {
        domain: lab.domain,
        depth: 128,
        ..Default::default()
    };
    let got = shot.ioctl(&lab.dev, &want)?;
    drop(own_fd(got.fd));
    Ok(lab.dev.close(got.handle)?)
}

fn cntr_open(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let want = CntrOpen {
        domain: lab.domain,
        ..Default::default()
    };
    let got = shot.ioctl(&lab.dev, &want)?;
    Ok(lab.dev.close(got.handle)?)
}

fn pep_open(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let want = PepOpen {
        fabric: lab.fabric,
        eq: lab.eq.handle,
        addr: to_sockaddr(lab.env.at(0)),
        ..Default::default()
    };
    let got = shot.ioctl(&lab.dev, &want)?;
    Ok(lab.dev.close(got.handle)?)
}

fn want_ep(lab: &Lab, connreq: u64) -> EpOpen {
    EpOpen {
        domain: lab.domain,
        connreq,
        tx_size: 4,
        rx_size: 4,
        ..Default::default()
    }
}

fn ep_open(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let got = shot.ioctl(&lab.dev, &want_ep(lab, 0))?;
    Ok(lab.dev.close(got.handle)?)
}

fn ep_open_own_keys(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let want = EpOpen {
        flags: KFI_EP_OWN_KEYS,
        ..want_ep(lab, 0)
    };
    let got = shot.ioctl(&lab.dev, &want)?;
    Ok(lab.dev.close(got.handle)?)
}

fn ep_open_rings(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let want = EpOpen {
        flags: KFI_EP_RINGS,
        rings_version: 1,
        ..want_ep(lab, 0)
    };
    let got = shot.ioctl(&lab.dev, &want)?;
    Ok(lab.dev.close(got.handle)?)
}

/// After a failure the request must stay acceptable. If the answer could not be delivered, the
/// request is rejected.
fn ep_open_request(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let (client, connreq) = lab.request()?;
    let want = want_ep(lab, connreq);
    let got = if shot.kind() == Kind::Copy {
        let opened = shot.once(|| lab.dev.ep_open(&want))?;
        let again = || match lab.dev.ep_open(&want) {
            Err(e) if e.errno.0 == libc::ENOENT => Ok(None),
            other => other.map(Some),
        };
        opened.map_or_else(|_| again(), |got| Ok(Some(got)))?
    } else {
        Some(shot.ioctl(&lab.dev, &want)?)
    };
    if let Some(got) = got {
        lab.dev.close(got.handle)?;
    }
    lab.refused(true)?;
    Ok(lab.dev.close(client)?)
}

/// A file's first handle allocates the table's first cells.
fn first_handles(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let dev = crate::raw::Dev::open()?;
    let mut want = FabricOpen::new_zeroed();
    want.prov_name = name_field(&lab.env.provider);
    shot.ioctl(&dev, &want)?;
    Ok(())
}

fn close(lab: &Lab, shot: &mut Shot<'_>, handle: u64) -> Result<()> {
    let want = Close {
        handle,
        ..Default::default()
    };
    shot.ioctl(&lab.dev, &want).map(|_| ())
}

fn close_fabric(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let fabric = lab.dev.fabric_open(&lab.env.provider, "")?;
    close(lab, shot, fabric)
}

fn close_domain(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let domain = lab.another_domain()?;
    close(lab, shot, domain)
}

fn close_eq(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let eq = lab.dev.eq_open(lab.fabric, 0)?;
    close(lab, shot, eq.handle)
}

fn close_cq(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let cq = lab.dev.cq_open(lab.domain, 0, 0)?;
    close(lab, shot, cq.handle)
}

fn close_cntr(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let cntr = lab.dev.cntr_open(lab.domain)?;
    close(lab, shot, cntr)
}

/// Closes a passive endpoint with a request that was not read.
fn close_pep(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let eq = lab.dev.eq_open(lab.fabric, 0)?;
    let pep = lab.dev.pep_open(lab.fabric, eq.handle, lab.env.at(0), 0)?;
    lab.dev.listen(pep, 0)?;
    let client = lab.enabled(0)?;
    lab.dev.connect(client, lab.dev.getname(pep, false)?, &[])?;
    let there = crate::sys::poll_in(std::os::fd::AsFd::as_fd(&eq.fd), crate::fault::lab::WAIT)?;
    ensure!(there, "no request came");
    close(lab, shot, pep)?;
    // The connection manager makes up for a lost rejection: no endpoint listens any more.
    lab.event(KFI_CONN_ERROR)?;
    lab.dev.close(client)?;
    Ok(lab.dev.close(eq.handle)?)
}

/// Closes a connected endpoint with a receive posted: the receive completes, and the peer gets an
/// event.
fn close_ep(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let link = lab.link()?;
    let recv = crate::op::recv(5, &[]);
    lab.dev.submit(link.server, &[recv])?;
    close(lab, shot, link.server)?;
    let entry = lab.cq.wait(crate::fault::lab::WAIT)?;
    ensure!(
        entry.context == 5 && entry.err == libc::ECANCELED as u32,
        "{entry:?}"
    );
    lab.event(KFI_SHUTDOWN)?;
    Ok(lab.dev.close(link.client)?)
}
