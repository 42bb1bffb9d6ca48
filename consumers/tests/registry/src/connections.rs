// SPDX-License-Identifier: GPL-2.0
//! Tests of an endpoint's states, and of the provider's events in each state.

use core::sync::atomic::{
    AtomicU32,
    Ordering, //
};
use kernel::{
    bindings,
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    base::errno::enotconn,
    ep::{
        Endpoint,
        EpAttr, //
    },
    objects::{
        cq::Cq,
        eq::{
            Eq,
            EqHandler, //
        },
    },
    uapi::*,
};

use crate::{
    bench::{
        Bench,
        Ends, //
    },
    check, check_eq, check_err,
    fake::{
        ipv4,
        CM_DATA_SIZE, //
    },
    ktap::Outcome,
    Test,
};

/// The tests of this file.
pub(crate) const TESTS: &[Test] = &[
    ("early_events_are_ignored", early),
    ("connect_fails_at_once", fails_at_once),
    ("connected_once", connected),
    ("connect_fails_later", fails_later),
    ("shutdown_once", shutdown),
    ("shutdown_without_connection", no_connection),
    ("closing_takes_events_along", takes_along),
    ("event_handler", handler),
    ("events_of_many_endpoints", many),
];

const PEER: SockAddr = ipv4([192, 0, 2, 9], 1);

fn early(bench: &Bench) -> Outcome {
    let ends = Ends::new(&bench.domain()?, 0)?;
    let sink = bench.a.control.endpoint()?.sink.clone();
    for state in [KFI_STATE_NEW, KFI_STATE_ENABLED] {
        check_eq!(ends.ep.state(), state);
        sink.connected(b"early");
        sink.conn_error(bindings::EIO, 0, &[]);
        sink.shutdown(0);
        check_eq!(ends.ep.state(), state);
        check!(ends.eq.read().is_none());
        if state == KFI_STATE_NEW {
            check_err!(ends.ep.connect(&PEER, &[]), EINVAL);
            check_err!(ends.ep.accept(&[]), EINVAL);
            ends.ep.enable()?;
        }
    }
    Ok(())
}

fn fails_at_once(bench: &Bench) -> Outcome {
    let ends = Ends::new(&bench.domain()?, 0)?;
    ends.ep.enable()?;
    let too_long = [0; CM_DATA_SIZE as usize + 1];
    check_err!(ends.ep.connect(&PEER, &too_long), EINVAL);
    let fail = &bench.a.control.connect_error;
    // CAST: An errno is a small number.
    fail.store(bindings::EHOSTUNREACH as i32, Ordering::Relaxed);
    let failed = ends.ep.connect(&PEER, &[]);
    fail.store(0, Ordering::Relaxed);
    check_err!(failed, Error::from_errno(-(bindings::EHOSTUNREACH as i32)));
    // The state is unchanged, so the endpoint can try again.
    check_eq!(ends.ep.state(), KFI_STATE_ENABLED);
    check!(ends.eq.read().is_none());
    ends.ep.connect(&PEER, &too_long[1..])?;
    check_eq!(ends.ep.state(), KFI_STATE_CONNECTING);
    check_err!(ends.ep.connect(&PEER, &[]), EINVAL);
    Ok(())
}

fn connected(bench: &Bench) -> Outcome {
    let ends = Ends::new(&bench.domain()?, 0)?;
    ends.ep.enable()?;
    ends.ep.connect(&PEER, b"hello")?;
    let sink = bench.a.control.endpoint()?.sink.clone();
    sink.connected(b"welcome");
    sink.connected(b"again");
    sink.conn_error(bindings::EIO, 0, &[]);
    check_eq!(ends.ep.state(), KFI_STATE_CONNECTED);
    check_eq!(ends.eq.waiting(), 1);
    let event = ends.eq.read().ok_or(ENOENT)?;
    check_eq!(event.kind, KFI_CONNECTED);
    check_eq!(event.context, 77);
    check_eq!(event.err, 0);
    check!(&event.data[..] == b"welcome");
    check!(event.request.is_none());
    check!(ends.eq.read().is_none());
    check_eq!(ends.eq.waiting(), 0);
    Ok(())
}

fn fails_later(bench: &Bench) -> Outcome {
    let ends = Ends::new(&bench.domain()?, 0)?;
    ends.ep.enable()?;
    ends.ep.connect(&PEER, &[])?;
    let sink = bench.a.control.endpoint()?.sink.clone();
    // The endpoint is not connected, so no connection ends.
    sink.shutdown(0);
    check_eq!(ends.ep.state(), KFI_STATE_CONNECTING);
    sink.conn_error(bindings::ECONNREFUSED, 28, b"go away");
    sink.connected(&[]);
    sink.conn_error(bindings::EIO, 0, &[]);
    sink.shutdown(0);
    check_eq!(ends.ep.state(), KFI_STATE_DOWN);
    let event = ends.eq.read().ok_or(ENOENT)?;
    check_eq!(event.kind, KFI_CONN_ERROR);
    check_eq!(event.err, bindings::ECONNREFUSED);
    check_eq!(event.prov_errno, 28);
    check!(&event.data[..] == b"go away");
    check!(ends.eq.read().is_none());
    check_err!(ends.ep.connect(&PEER, &[]), EINVAL);
    Ok(())
}

fn shutdown(bench: &Bench) -> Outcome {
    let ends = Ends::connected(&bench.domain()?, 0, &bench.a.control)?;
    let sink = bench.a.control.endpoint()?.sink.clone();
    sink.shutdown(bindings::ETIMEDOUT);
    sink.shutdown(0);
    check_eq!(ends.ep.state(), KFI_STATE_DOWN);
    let event = ends.eq.read().ok_or(ENOENT)?;
    check_eq!(event.kind, KFI_SHUTDOWN);
    check_eq!(event.err, bindings::ETIMEDOUT);
    check!(ends.eq.read().is_none());
    check_err!(ends.ep.shutdown(), enotconn());
    Ok(())
}

fn no_connection(bench: &Bench) -> Outcome {
    let ends = Ends::new(&bench.domain()?, 0)?;
    check_err!(ends.ep.shutdown(), enotconn());
    ends.ep.enable()?;
    check_err!(ends.ep.shutdown(), enotconn());
    let ends = Ends::connected(&bench.domain()?, 0, &bench.a.control)?;
    ends.ep.shutdown()?;
    check_eq!(ends.eq.read().ok_or(ENOENT)?.kind, KFI_SHUTDOWN);
    Ok(())
}

fn takes_along(bench: &Bench) -> Outcome {
    let domain = bench.domain()?;
    let eq = Eq::open(domain.fabric(), 0, None)?;
    let cq = Cq::open(&domain, 0, 0, None)?;
    let open = |context| {
        let attr = EpAttr {
            context,
            ..EpAttr::default()
        };
        let ep = Endpoint::open(&domain, &attr, None)?;
        ep.bind_eq(&eq)?;
        ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV)?;
        ep.enable()?;
        ep.connect(&PEER, &[])?;
        let sink = bench.a.control.endpoint()?.sink.clone();
        sink.connected(&[]);
        Ok::<_, Error>((ep, sink))
    };
    let (first, _) = open(1)?;
    let (second, sink) = open(2)?;
    let (third, _) = open(3)?;
    sink.shutdown(0);
    check_eq!(eq.waiting(), 4);
    second.close();
    // The events of the closed endpoint are removed; the others are in order.
    check_eq!(eq.waiting(), 2);
    check_eq!(eq.read().ok_or(ENOENT)?.context, 1);
    check_eq!(eq.read().ok_or(ENOENT)?.context, 3);
    check!(eq.read().is_none());
    first.close();
    third.close();
    eq.close()?;
    Ok(())
}

/// Counts its calls.
struct Told(AtomicU32);

impl EqHandler for Told {
    fn event(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn handler(bench: &Bench) -> Outcome {
    let domain = bench.domain()?;
    let told = Arc::new(Told(AtomicU32::new(0)), GFP_KERNEL)?;
    let eq = Eq::open(domain.fabric(), 0, Some(told.clone()))?;
    let cq = Cq::open(&domain, 0, 0, None)?;
    let ep = Endpoint::open(&domain, &EpAttr::default(), None)?;
    ep.bind_eq(&eq)?;
    ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV)?;
    ep.enable()?;
    ep.connect(&PEER, &[])?;
    check_eq!(told.0.load(Ordering::Relaxed), 0);
    let sink = bench.a.control.endpoint()?.sink.clone();
    sink.connected(&[]);
    check_eq!(told.0.load(Ordering::Relaxed), 1);
    sink.shutdown(0);
    check_eq!(told.0.load(Ordering::Relaxed), 2);
    Ok(())
}

fn many(bench: &Bench) -> Outcome {
    let domain = bench.domain()?;
    // A queue with a depth of 1 has places for all events of its endpoints.
    let eq = Eq::open(domain.fabric(), 1, None)?;
    let cq = Cq::open(&domain, 0, 0, None)?;
    let mut endpoints = KVec::new();
    for context in 0..200 {
        let attr = EpAttr {
            context,
            ..EpAttr::default()
        };
        let ep = Endpoint::open(&domain, &attr, None)?;
        ep.bind_eq(&eq)?;
        ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV)?;
        ep.enable()?;
        ep.connect(&PEER, &[])?;
        let sink = bench.a.control.endpoint()?.sink.clone();
        sink.connected(&[]);
        sink.shutdown(0);
        endpoints.push(ep, GFP_KERNEL)?;
    }
    for context in 0..200 {
        for kind in [KFI_CONNECTED, KFI_SHUTDOWN] {
            let event = eq.read().ok_or(ENOENT)?;
            check_eq!(event.kind, kind);
            check_eq!(event.context, context);
        }
    }
    check!(eq.read().is_none());
    drop(endpoints);
    eq.close()?;
    Ok(())
}
