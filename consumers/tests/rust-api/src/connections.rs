// SPDX-License-Identifier: GPL-2.0
//! Tests of connections: connect, refuse, end.

use kernel::{
    bindings,
    prelude::*, //
};
use kfabric::{
    base::errno::enotconn,
    ep::LocalMem,
    objects::{
        domain::Domain,
        eq::Eq,
        pep::PassiveEp, //
    },
    op::OpKind,
    uapi::*,
};

use crate::{
    buffer::Buffer,
    check, check_eq, check_err,
    ktap::Outcome,
    pair::{
        plain,
        Pair,
        Side,
        Wanted, //
    },
    station::{
        self,
        Station, //
    },
    Test,
};

/// The tests of this file.
pub(crate) const TESTS: &[Test] = &[
    ("connect_with_private_data", private_data),
    ("connect_on_every_address", every_address),
    ("connect_again_and_again", again),
    ("reject_with_private_data", rejected),
    ("unanswered_request_is_refused", unanswered),
    ("connect_where_nobody_listens", nobody),
    ("shutdown_reaches_both", shutdown),
    ("close_reaches_the_peer", close),
    ("close_cancels_receives", cancels),
    ("parents_are_busy", busy),
];

fn private_data(station: &Station) -> Outcome {
    let max = station.domain.attr().cm_data_size as usize;
    let mut data = KVec::new();
    for i in 0..max {
        // CAST: Takes the low byte.
        data.push(i as u8 ^ 0x5a, GFP_KERNEL)?;
    }
    for (there, back) in [
        (&b"hello"[..], &b"welcome"[..]),
        (&data[..], &data[..max - 1]),
        (&b""[..], &b""[..]),
    ] {
        let client = Side::open(station, &Wanted::default(), &[], None)?;
        client.ep.connect(&station.addr(), there)?;
        check_err!(client.ep.connect(&station.addr(), &[]), EINVAL);
        let event = station.request()?;
        check_eq!(event.kind, KFI_CONNREQ);
        check!(&event.data[..] == there);
        let request = event.request.as_ref().ok_or(ENOENT)?;
        let server = Side::open(station, &Wanted::default(), &[], Some(request))?;
        server.ep.accept(back)?;
        let event = client.event()?;
        check_eq!(event.kind, KFI_CONNECTED);
        check!(&event.data[..] == back);
        check_eq!(server.event()?.kind, KFI_CONNECTED);
        check!(client.ep.peer_addr() == station.addr());
        check!(server.ep.local_addr() == station.addr());
    }
    let client = Side::open(station, &Wanted::default(), &[], None)?;
    data.push(0, GFP_KERNEL)?;
    check_err!(client.ep.connect(&station.addr(), &data), EINVAL);
    Ok(())
}

fn every_address(station: &Station) -> Outcome {
    let waiter = station::waiter()?;
    let eq = Eq::open(station.fabric(), 0, Some(waiter.clone()))?;
    for addr in station.addrs.iter() {
        let pep = PassiveEp::open(station.fabric(), &eq, addr, 9)?;
        pep.listen(1)?;
        let client = Side::open(station, &Wanted::default(), &[], None)?;
        client.ep.connect(&pep.local_addr(), &[])?;
        let event = station::event(&eq, &waiter)?;
        check_eq!(event.context, 9);
        let server = Side::open(station, &Wanted::default(), &[], event.request.as_ref())?;
        server.ep.accept(&[])?;
        check_eq!(client.event()?.kind, KFI_CONNECTED);
        check_eq!(server.event()?.kind, KFI_CONNECTED);
    }
    Ok(())
}

fn again(station: &Station) -> Outcome {
    for _ in 0..10 {
        Pair::new(station)?;
    }
    Ok(())
}

fn rejected(station: &Station) -> Outcome {
    let client = Side::open(station, &Wanted::default(), &[], None)?;
    client.ep.connect(&station.addr(), b"please")?;
    let event = station.request()?;
    let request = event.request.as_ref().ok_or(ENOENT)?;
    request.reject(b"no, thank you")?;
    check_err!(request.reject(&[]), ENOENT);
    let event = client.event()?;
    check_eq!(event.kind, KFI_CONN_ERROR);
    check_eq!(event.err, bindings::ECONNREFUSED);
    check!(&event.data[..] == b"no, thank you");
    check_eq!(client.ep.state(), KFI_STATE_DOWN);
    Ok(())
}

fn unanswered(station: &Station) -> Outcome {
    let client = Side::open(station, &Wanted::default(), &[], None)?;
    client.ep.connect(&station.addr(), &[])?;
    drop(station.request()?);
    let event = client.event()?;
    check_eq!(event.kind, KFI_CONN_ERROR);
    check_eq!(event.err, bindings::ECONNREFUSED);
    Ok(())
}

fn nobody(station: &Station) -> Outcome {
    let eq = Eq::open(station.fabric(), 0, None)?;
    // A port without a listener, because the listener was closed.
    let pep = PassiveEp::open(station.fabric(), &eq, &station.addrs[0], 0)?;
    pep.listen(0)?;
    let addr = pep.local_addr();
    check!(addr.len != 0 && addr != station.addrs[0]);
    pep.close();
    let client = Side::open(station, &Wanted::default(), &[], None)?;
    client.ep.connect(&addr, &[])?;
    let event = client.event()?;
    check_eq!(event.kind, KFI_CONN_ERROR);
    check_eq!(event.err, bindings::ECONNREFUSED);
    check!(event.data.is_empty());
    Ok(())
}

fn shutdown(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    pair.client.ep.shutdown()?;
    pair.ended()?;
    for side in [&pair.client, &pair.server] {
        let send = plain(OpKind::Send, 1, LocalMem::new());
        check_err!(side.ep.post(send), enotconn());
        check_err!(side.ep.shutdown(), enotconn());
    }
    Ok(())
}

fn close(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    pair.client.ep.close();
    pair.server.ended()?;
    let pair = Pair::new(station)?;
    pair.server.ep.close();
    pair.client.ended()
}

fn cancels(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let buffer = Buffer::local(&station.domain, 4096)?;
    for context in 0..10 {
        pair.server.recv(context, &buffer, 0, 4096)?;
    }
    pair.server.ep.close();
    check_eq!(pair.server.ep.outstanding(), 0);
    for context in 0..10 {
        let entry = pair.server.poll().ok_or(ENOENT)?;
        check_eq!(entry.context, context);
        check_eq!(entry.err, bindings::ECANCELED);
    }
    check!(pair.server.poll().is_none());
    pair.client.ended()
}

fn busy(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    check_err!(pair.client.cq.close(), EBUSY);
    check_err!(pair.client.eq.close(), EBUSY);
    check_err!(station.domain.close(), EBUSY);
    check_err!(station.fabric().close(), EBUSY);
    // A second domain on the same device is a separate domain.
    let other = Domain::open(station.fabric(), station.domain.name())?;
    let buffer = Buffer::local(&other, 4096)?;
    check_err!(pair.client.send(1, &buffer, 0, 1), EINVAL);
    check_err!(other.close(), EBUSY);
    station::close_region(&buffer.region)?;
    other.close()?;
    // From the children up to the parents.
    pair.client.ep.close();
    pair.client.cq.close()?;
    pair.client.eq.close()?;
    check_err!(pair.client.cq.close(), ENOENT);
    Ok(())
}
