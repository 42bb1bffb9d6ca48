// SPDX-License-Identifier: GPL-2.0
//! Tests of passive endpoints and connection requests.

use core::sync::atomic::Ordering;
use kernel::{
    bindings,
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    base::name::name_str,
    ep::{
        Endpoint,
        EpAttr, //
    },
    objects::{
        domain::Domain,
        eq::{
            Eq,
            Event, //
        },
        pep::PassiveEp, //
    },
    uapi::*,
};

use crate::{
    bench::Bench,
    check, check_eq, check_err,
    fake::{
        ipv4,
        Step, //
    },
    fake_cm::FakeRequest,
    ktap::Outcome,
    Test,
};

/// The tests of this file.
pub(crate) const TESTS: &[Test] = &[
    ("request_says_who", says_who),
    ("requests_are_bounded", bounded),
    ("request_is_rejected_once", rejected),
    ("request_is_accepted_once", accepted),
    ("unanswered_request_is_dropped", unanswered),
    ("failed_accept_leaves_request", failed_accept),
    ("closing_refuses_requests", closing),
];

const HERE: SockAddr = ipv4([192, 0, 2, 1], 7);

/// A listening passive endpoint, with its queue and its domain.
struct Listening {
    pep: Arc<PassiveEp>,
    eq: Arc<Eq>,
    domain: Arc<Domain>,
}

impl Listening {
    fn new(bench: &Bench, depth: u32) -> Result<Self> {
        let domain = bench.domain()?;
        let eq = Eq::open(domain.fabric(), depth, None)?;
        let pep = PassiveEp::open(domain.fabric(), &eq, &HERE, 55)?;
        pep.listen(0)?;
        Ok(Self { pep, eq, domain })
    }

    /// Sends the connection request of a peer.
    fn ask(&self, bench: &Bench, data: &[u8]) -> Result {
        let request = FakeRequest::make(&bench.a.control)?;
        let info = InfoEntry {
            src_addr: HERE,
            dest_addr: ipv4([192, 0, 2, 9], 1),
            ..InfoEntry::default()
        };
        bench.a.control.listener()?.request(request, &info, data)
    }

    fn event(&self) -> Result<Event> {
        self.eq.read().ok_or(ENOENT)
    }

    fn accept(&self, event: &Event) -> Result<Arc<Endpoint>> {
        Endpoint::open(&self.domain, &EpAttr::default(), event.request.as_ref())
    }
}

fn says_who(bench: &Bench) -> Outcome {
    let here = Listening::new(bench, 0)?;
    check!(here.pep.local_addr() == HERE);
    check_err!(here.pep.listen(0), EINVAL);
    here.ask(bench, b"let me in")?;
    let event = here.event()?;
    check_eq!(event.kind, KFI_CONNREQ);
    check_eq!(event.context, 55);
    check!(&event.data[..] == b"let me in");
    let info = event.request.as_ref().ok_or(ENOENT)?.info();
    check!(name_str(&info.prov_name)? == "kfitest-a");
    check!(info.src_addr == HERE);
    check!(info.dest_addr == ipv4([192, 0, 2, 9], 1));
    Ok(())
}

fn bounded(bench: &Bench) -> Outcome {
    let here = Listening::new(bench, 3)?;
    bench.a.control.forget();
    for _ in 0..3 {
        here.ask(bench, &[])?;
    }
    check_err!(here.ask(bench, &[]), EAGAIN);
    check_eq!(bench.a.control.count(Step::RequestDrop), 1);
    drop(here.event()?);
    here.ask(bench, &[])?;
    check_eq!(here.eq.waiting(), 3);
    Ok(())
}

fn rejected(bench: &Bench) -> Outcome {
    let here = Listening::new(bench, 0)?;
    bench.a.control.forget();
    here.ask(bench, &[])?;
    let event = here.event()?;
    let request = event.request.as_ref().ok_or(ENOENT)?;
    check_err!(request.reject(&[0; KFI_CM_DATA_MAX + 1]), EINVAL);
    request.reject(b"no")?;
    check_err!(request.reject(b"no"), ENOENT);
    check_err!(here.accept(&event), ENOENT);
    drop(event);
    check!(bench.a.control.steps_are(&[Step::Reject]));
    Ok(())
}

fn accepted(bench: &Bench) -> Outcome {
    let here = Listening::new(bench, 0)?;
    bench.a.control.forget();
    here.ask(bench, &[])?;
    let event = here.event()?;
    let ep = here.accept(&event)?;
    check_err!(here.accept(&event), ENOENT);
    check_err!(event.request.as_ref().ok_or(ENOENT)?.reject(&[]), ENOENT);
    drop(event);
    ep.close();
    check!(bench.a.control.steps_are(&[Step::EpClose]));
    Ok(())
}

fn unanswered(bench: &Bench) -> Outcome {
    let here = Listening::new(bench, 0)?;
    bench.a.control.forget();
    here.ask(bench, &[])?;
    check!(bench.a.control.steps_are(&[]));
    drop(here.event()?);
    check!(bench.a.control.steps_are(&[Step::RequestDrop]));
    Ok(())
}

fn failed_accept(bench: &Bench) -> Outcome {
    let here = Listening::new(bench, 0)?;
    here.ask(bench, &[])?;
    let event = here.event()?;
    let fail = &bench.a.control.endpoint_error;
    // CAST: An errno is a small number.
    fail.store(bindings::ENOMEM as i32, Ordering::Relaxed);
    let failed = here.accept(&event);
    fail.store(0, Ordering::Relaxed);
    check_err!(failed, ENOMEM);
    // The request is unchanged, so it can be accepted again.
    here.accept(&event)?.close();
    Ok(())
}

fn closing(bench: &Bench) -> Outcome {
    let control = &bench.a.control;
    let here = Listening::new(bench, 0)?;
    for _ in 0..3 {
        here.ask(bench, &[])?;
    }
    control.forget();
    here.pep.close();
    check_eq!(here.eq.waiting(), 0);
    check!(control.steps_are(&[
        Step::ListenerClose,
        Step::RequestDrop,
        Step::RequestDrop,
        Step::RequestDrop
    ]));
    here.eq.close()?;
    // The close of a queue refuses its requests as well.
    let here = Listening::new(bench, 0)?;
    here.ask(bench, &[])?;
    control.forget();
    check_err!(here.eq.close(), EBUSY);
    drop(here);
    check_eq!(control.count(Step::RequestDrop), 1);
    Ok(())
}
