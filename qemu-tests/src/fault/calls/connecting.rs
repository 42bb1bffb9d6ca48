// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cases of connections: from binding queues to shutdown.

use crate::fault::lab::{Lab, WAIT};
use crate::fault::sweep::{Case, Shot};
use crate::op;
use crate::raw::to_sockaddr;
use anyhow::{ensure, Result};
use kfabric_uapi::*;

/// The cases.
pub const CASES: &[Case] = &[
    Case::new("KFI_IOC_BIND", "eq", bind_eq),
    Case::new("KFI_IOC_BIND", "cq", bind_cq),
    Case::new("KFI_IOC_BIND", "cntr", bind_cntr),
    Case::new("KFI_IOC_ENABLE", "", enable).also(super::memory::NO_SOCKET),
    Case::new("KFI_IOC_LISTEN", "", listen),
    Case::new("KFI_IOC_CONNECT", "", connect).also(&[libc::ENOBUFS]),
    Case::new("KFI_IOC_ACCEPT", "", accept).also(&[libc::ECONNABORTED]),
    Case::new("KFI_IOC_REJECT", "", reject),
    Case::new("KFI_IOC_SHUTDOWN", "", shutdown),
    Case::new("KFI_IOC_GETNAME", "", getname),
    Case::new("KFI_IOC_EQ_READ", "connected", read_connected),
    Case::new("KFI_IOC_EQ_READ", "request", read_request),
    Case::new("KFI_IOC_EQ_READ", "peek", read_peek),
    Case::new("KFI_IOC_CLOSE", "connreq", close_request),
];

fn bind(lab: &Lab, shot: &mut Shot<'_>, object: u64, bind_flags: u64) -> Result<()> {
    let ep = lab.endpoint(0)?;
    let want = Bind {
        ep,
        object,
        bind_flags,
        ..Default::default()
    };
    shot.ioctl(&lab.dev, &want)?;
    Ok(lab.dev.close(ep)?)
}

/// Binds a queue whose memory must grow.
fn bind_eq(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let eq = lab.dev.eq_open(lab.fabric, 1)?;
    bind(lab, shot, eq.handle, 0)?;
    Ok(lab.dev.close(eq.handle)?)
}

fn bind_cq(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    bind(lab, shot, lab.cq.handle, KFI_TRANSMIT | KFI_RECV)
}

fn bind_cntr(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let cntr = lab.dev.cntr_open(lab.domain)?;
    bind(lab, shot, cntr, KFI_SEND | KFI_WRITE)?;
    Ok(lab.dev.close(cntr)?)
}

fn enable(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let handle = lab.bound(0)?;
    let want = ObjectCall {
        handle,
        ..Default::default()
    };
    shot.ioctl(&lab.dev, &want)?;
    Ok(lab.dev.close(handle)?)
}

fn listen(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let pep = lab
        .dev
        .pep_open(lab.fabric, lab.eq.handle, lab.env.at(0), 0)?;
    let want = Listen {
        pep,
        ..Default::default()
    };
    shot.ioctl(&lab.dev, &want)?;
    ensure!(lab.dev.getname(pep, false)?.port() != 0, "no port");
    Ok(lab.dev.close(pep)?)
}

/// The network returns `ENOBUFS` if there is no memory for a route, and repeats that errno for a
/// while.
fn connect(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let addr = lab.addr;
    let ep = lab.enabled(0)?;
    let data = *b"hello, is anybody there?";
    let want = Connect {
        ep,
        addr: to_sockaddr(addr),
        param: data.as_ptr() as u64,
        param_len: data.len() as u32,
        ..Default::default()
    };
    shot.ioctl(&lab.dev, &want)?;
    let request = lab.dev.eq_wait(&lab.door, WAIT)?;
    ensure!(
        request.raw.event == KFI_CONNREQ && request.data == data,
        "{request:?}"
    );
    lab.dev.close(request.raw.connreq)?;
    lab.event(KFI_CONN_ERROR)?;
    Ok(lab.dev.close(ep)?)
}

/// A failed accept has rejected the peer, which must get an event; until then the accept may be
/// retried. Receives posted before complete in every case.
fn accept(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let (client, connreq) = lab.request()?;
    let ep = lab.enabled(connreq)?;
    lab.dev.submit(ep, &[op::recv(9, &[])])?;
    let data = *b"welcome";
    let mut want = Accept {
        ep,
        param: data.as_ptr() as u64,
        param_len: data.len() as u32,
        ..Default::default()
    };
    let first = shot.once(|| lab.dev.call(&mut want))?;
    let up = match first {
        Ok(()) => true,
        Err(errno) if errno.0 == libc::ECONNABORTED => false,
        Err(_) => {
            lab.dev.call(&mut want)?;
            true
        }
    };
    if up {
        lab.event(KFI_CONNECTED)?;
        lab.event(KFI_CONNECTED)?;
    } else {
        lab.refused(true)?;
        // The state must stay, whichever step failed.
        let again = lab.dev.call(&mut want).map_err(|e| e.errno.0);
        ensure!(
            again == Err(libc::ECONNABORTED),
            "accepted later: {again:?}"
        );
    }
    lab.dev.close(ep)?;
    ensure!(lab.drain() == 1, "the receive is lost");
    Ok(lab.dev.close(client)?)
}

fn reject(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let (client, connreq) = lab.request()?;
    let data = *b"not today";
    let want = Reject {
        connreq,
        param: data.as_ptr() as u64,
        param_len: data.len() as u32,
        ..Default::default()
    };
    shot.ioctl(&lab.dev, &want)?;
    let refusal = lab.refused(shot.hit())?;
    ensure!(shot.hit() || refusal.data == data, "{refusal:?}");
    Ok(lab.dev.close(client)?)
}

fn close_request(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let (client, handle) = lab.request()?;
    let want = Close {
        handle,
        ..Default::default()
    };
    shot.ioctl(&lab.dev, &want)?;
    lab.refused(shot.hit())?;
    Ok(lab.dev.close(client)?)
}

fn shutdown(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let link = lab.link()?;
    let want = Shutdown {
        ep: link.client,
        ..Default::default()
    };
    shot.ioctl(&lab.dev, &want)?;
    lab.event(KFI_SHUTDOWN)?;
    lab.event(KFI_SHUTDOWN)?;
    lab.unlink(link)
}

fn getname(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let addr = lab.env.at(0);
    let pep = lab.dev.pep_open(lab.fabric, lab.eq.handle, addr, 0)?;
    let want = GetName {
        handle: pep,
        ..Default::default()
    };
    let got = shot.ioctl(&lab.dev, &want)?;
    ensure!(got.addr.len == to_sockaddr(addr).len, "{:?}", got.addr);
    Ok(lab.dev.close(pep)?)
}

/// An event stays until it is read.
fn read_connected(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let (client, connreq) = lab.request()?;
    let server = lab.enabled(connreq)?;
    lab.dev.accept(server, b"welcome")?;
    let mut room = [0u8; 256];
    let want = EqRead {
        eq: lab.eq.handle,
        data: room.as_mut_ptr() as u64,
        data_len: room.len() as u32,
        ..Default::default()
    };
    let both = crate::harness::guest::until("both are connected", WAIT, || {
        let me = std::process::id();
        let all = lab.dev.obj_list()?;
        let up = all.iter().filter(|o| {
            o.pid == me && o.kind == KFI_TYPE_EP && o.b == u64::from(KFI_STATE_CONNECTED)
        });
        Ok((up.count() == 2).then_some(()))
    });
    both?;
    let got = shot.ioctl(&lab.dev, &want)?;
    ensure!(got.event == KFI_CONNECTED, "{got:?}");
    let other = lab.event(KFI_CONNECTED)?;
    ensure!(other.raw.object != got.object, "one event came twice");
    lab.unlink(crate::fault::lab::Link { client, server })
}

fn read_request(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let client = lab.knock()?;
    let mut room = [0u8; 256];
    let mut info = Box::<InfoEntry>::default();
    let want = EqRead {
        eq: lab.door.handle,
        data: room.as_mut_ptr() as u64,
        data_len: room.len() as u32,
        info: std::ptr::from_mut(&mut *info) as u64,
        ..Default::default()
    };
    let got = shot.ioctl(&lab.dev, &want)?;
    ensure!(
        got.event == KFI_CONNREQ && got.connreq != 0 && got.data_len == 5,
        "{got:?}"
    );
    ensure!(info.domain_name == lab.info.domain_name, "another domain");
    let server = lab.enabled(got.connreq)?;
    lab.dev.accept(server, &[])?;
    lab.event(KFI_CONNECTED)?;
    lab.event(KFI_CONNECTED)?;
    lab.unlink(crate::fault::lab::Link { client, server })
}

fn read_peek(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let client = lab.knock()?;
    let mut room = [0u8; 256];
    let eq = lab.door.handle;
    let want = EqRead {
        eq,
        flags: KFI_EQ_PEEK,
        data: room.as_mut_ptr() as u64,
        data_len: room.len() as u32,
        ..Default::default()
    };
    let got = shot.ioctl(&lab.dev, &want)?;
    ensure!(got.event == KFI_CONNREQ, "{got:?}");
    let event = lab.dev.eq_read(eq, 0)?;
    lab.dev.close(event.raw.connreq)?;
    lab.event(KFI_CONN_ERROR)?;
    Ok(lab.dev.close(client)?)
}
