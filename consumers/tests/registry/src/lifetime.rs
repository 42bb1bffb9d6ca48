// SPDX-License-Identifier: GPL-2.0
//! Tests of lifetimes: modules, parents and children, and a removed device.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    base::errno::eopnotsupp,
    ep::{
        Endpoint,
        EpAttr,
        LocalMem, //
    },
    key::{
        Key,
        Region, //
    },
    memory::Memory,
    objects::{
        cntr::Cntr,
        cq::Cq,
        domain::Domain,
        eq::Eq,
        fabric::Fabric,
        pep::PassiveEp, //
    },
    op::OpKind,
    uapi::*,
};

use crate::{
    bench::{
        region,
        Bench,
        Ends, //
    },
    check, check_eq, check_err,
    fake::{
        ipv4,
        Step, //
    },
    ktap::Outcome,
    Test,
};

/// The tests of this file.
pub(crate) const TESTS: &[Test] = &[
    ("fabric_holds_module", holds_module),
    ("request_holds_module", request_holds_module),
    ("parents_are_busy", parents_busy),
    ("closed_takes_no_children", closed),
    ("objects_of_another_domain", foreign),
    ("bad_attributes", bad_attributes),
    ("device_gone", device_gone),
];

fn holds_module(bench: &Bench) -> Outcome {
    let before = bench.references();
    let first = Fabric::open(bench.net.clone(), "kfitest-a", "")?;
    check_eq!(bench.references(), before + 1);
    let second = Fabric::open(bench.net.clone(), "kfitest-b", "")?;
    check_eq!(bench.references(), before + 2);
    let domain = Domain::open(&first, "kfa0")?;
    drop(first);
    // The domain refers to its fabric, and the fabric to the module.
    check_eq!(bench.references(), before + 2);
    drop(second);
    check_eq!(bench.references(), before + 1);
    drop(domain);
    check_eq!(bench.references(), before);
    // A getinfo keeps no reference.
    drop(bench.found(None)?);
    check_eq!(bench.references(), before);
    Ok(())
}

fn request_holds_module(bench: &Bench) -> Outcome {
    let before = bench.references();
    let fabric = Fabric::open(bench.net.clone(), "kfitest-a", "")?;
    let eq = Eq::open(&fabric, 0, None)?;
    let pep = PassiveEp::open(&fabric, &eq, &ipv4([192, 0, 2, 1], 7), 0)?;
    let request = crate::fake_cm::FakeRequest::make(&bench.a.control)?;
    bench
        .a
        .control
        .listener()?
        .request(request, &InfoEntry::default(), &[])?;
    let event = eq.read();
    pep.close();
    drop((pep, eq, fabric));
    check_eq!(bench.references(), before + 1);
    drop(event);
    check_eq!(bench.references(), before);
    Ok(())
}

fn parents_busy(bench: &Bench) -> Outcome {
    let fabric = Fabric::open(bench.net.clone(), "kfitest-a", "")?;
    let domain = Domain::open(&fabric, "kfa0")?;
    let ends = Ends::new(&domain, 0)?;
    let other_eq = Eq::open(&fabric, 0, None)?;
    let pep = PassiveEp::open(&fabric, &other_eq, &ipv4([192, 0, 2, 1], 7), 0)?;
    let cntr = Cntr::open(&domain)?;
    ends.ep.bind_cntr(&cntr, KFI_SEND | KFI_RECV)?;
    let memory = region(&domain, 1, KFI_SEND | KFI_REMOTE_READ, true)?;
    let key = Key::alloc(&memory)?;

    check_err!(fabric.close(), EBUSY);
    check_err!(domain.close(), EBUSY);
    check_err!(ends.cq.close(), EBUSY);
    check_err!(ends.eq.close(), EBUSY);
    check_err!(other_eq.close(), EBUSY);
    check_err!(cntr.close(), EBUSY);
    check_err!(memory.close(), EBUSY);

    // From the children up to the parents.
    ends.ep.close();
    check_err!(domain.close(), EBUSY);
    ends.cq.close()?;
    cntr.close()?;
    key.close();
    memory.close()?;
    domain.close()?;
    check_err!(fabric.close(), EBUSY);
    ends.eq.close()?;
    pep.close();
    other_eq.close()?;
    fabric.close()?;
    // A second close fails.
    check_err!(fabric.close(), ENOENT);
    check_err!(domain.close(), ENOENT);
    check_err!(memory.close(), ENOENT);
    Ok(())
}

fn closed(bench: &Bench) -> Outcome {
    let fabric = Fabric::open(bench.net.clone(), "kfitest-a", "")?;
    let domain = Domain::open(&fabric, "kfa0")?;
    let eq = Eq::open(&fabric, 0, None)?;
    let cq = Cq::open(&domain, 0, 0, None)?;
    let ep = Endpoint::open(&domain, &EpAttr::default(), None)?;
    eq.close()?;
    cq.close()?;
    check_err!(ep.bind_eq(&eq), ENOENT);
    check_err!(ep.bind_cq(&cq, KFI_TRANSMIT), ENOENT);
    ep.close();
    domain.close()?;
    check_err!(Cq::open(&domain, 0, 0, None), ENOENT);
    check_err!(Cntr::open(&domain), ENOENT);
    check_err!(Endpoint::open(&domain, &EpAttr::default(), None), ENOENT);
    check_err!(region(&domain, 1, KFI_SEND, false), ENOENT);
    fabric.close()?;
    check_err!(Domain::open(&fabric, "kfa0"), ENOENT);
    check_err!(Eq::open(&fabric, 0, None), ENOENT);
    Ok(())
}

fn foreign(bench: &Bench) -> Outcome {
    let (here, there) = (bench.domain()?, bench.domain()?);
    let cq = Cq::open(&there, 0, 0, None)?;
    let eq = Eq::open(there.fabric(), 0, None)?;
    let cntr = Cntr::open(&there)?;
    let ep = Endpoint::open(&here, &EpAttr::default(), None)?;
    check_err!(ep.bind_cq(&cq, KFI_TRANSMIT), EINVAL);
    check_err!(ep.bind_eq(&eq), EINVAL);
    check_err!(ep.bind_cntr(&cntr, KFI_SEND), EINVAL);
    let addr = ipv4([192, 0, 2, 1], 7);
    check_err!(PassiveEp::open(here.fabric(), &eq, &addr, 0), EINVAL);
    // Memory of another domain cannot be posted.
    let ends = Ends::connected(&here, 0, &bench.a.control)?;
    let memory = region(&there, 1, KFI_SEND, false)?;
    let mut segs = LocalMem::new();
    segs.push(OpKind::Send, memory, 0, 8)?;
    check_err!(ends.post(OpKind::Send, 1, segs), EINVAL);
    Ok(())
}

fn bad_attributes(bench: &Bench) -> Outcome {
    let domain = bench.domain()?;
    check_err!(Cq::open(&domain, KFI_CQ_SIZE_MAX + 1, 0, None), EINVAL);
    check_err!(Cq::open(&domain, 0, 9, None), EINVAL);
    check_err!(Eq::open(domain.fabric(), KFI_EQ_SIZE_MAX + 1, None), EINVAL);
    let attrs = [
        EpAttr {
            tx_size: 1 << 20,
            ..EpAttr::default()
        },
        EpAttr {
            rx_size: 1 << 20,
            ..EpAttr::default()
        },
        EpAttr {
            iov_limit: 4,
            ..EpAttr::default()
        },
    ];
    for attr in &attrs {
        check_err!(Endpoint::open(&domain, attr, None), EINVAL);
    }
    // A provider without groups has no endpoints with endpoint-scoped keys.
    let own = EpAttr {
        own_keys: true,
        ..EpAttr::default()
    };
    check_err!(Endpoint::open(&domain, &own, None), eopnotsupp());
    let memory = region(&domain, 1, KFI_REMOTE_READ, true)?;
    let plain = Endpoint::open(&domain, &EpAttr::default(), None)?;
    check_err!(Key::alloc_for(&memory, &plain), EINVAL);
    check!(plain.revoke_keys() == Err((0, EINVAL)));
    let cq = Cq::open(&domain, 3, 0, None)?;
    check_eq!(cq.entries(), 4);
    let ep = Endpoint::open(&domain, &EpAttr::default(), None)?;
    check_err!(ep.bind_cq(&cq, 0), EINVAL);
    check_err!(ep.bind_cq(&cq, KFI_TRANSMIT | 1), EINVAL);
    // An endpoint without a completion queue for each side cannot be enabled.
    check_err!(ep.enable(), EINVAL);
    ep.bind_cq(&cq, KFI_TRANSMIT)?;
    check_err!(ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV), EINVAL);
    check_err!(ep.enable(), EINVAL);
    ep.bind_cq(&cq, KFI_RECV)?;
    check_err!(ep.enable(), EINVAL);
    ep.bind_eq(&Eq::open(domain.fabric(), 0, None)?)?;
    ep.enable()?;
    check_err!(ep.enable(), EINVAL);
    check_err!(ep.bind_cq(&cq, KFI_RECV), EINVAL);
    Ok(())
}

fn device_gone(bench: &Bench) -> Outcome {
    let control = &bench.a.control;
    let domain = bench.domain()?;
    let memory = region(&domain, 1, KFI_SEND | KFI_REMOTE_READ, true)?;
    let (key, idle) = (Key::alloc(&memory)?, Key::alloc(&memory)?);
    key.assign(0, 64, KFI_REMOTE_READ)?;
    let ends = Ends::connected(&domain, 0, control)?;
    let mut segs = LocalMem::new();
    segs.push(OpKind::Send, memory.clone(), 0, 8)?;
    ends.post(OpKind::Send, 5, segs)?;

    // In a provider's order: first the endpoint ends, then the device.
    control.endpoint()?.complete(kfabric::op::Outcome {
        err: kernel::bindings::ENODEV,
        ..kfabric::op::Outcome::default()
    })?;
    let device = control.device()?;
    control.endpoint()?.sink.shutdown(kernel::bindings::ENODEV);
    device.gone();
    drop(device);

    let completion = ends.completion().ok_or(ENOENT)?;
    check_eq!(completion.context, 5);
    check_eq!(completion.err, kernel::bindings::ENODEV);
    let event = ends.eq.read().ok_or(ENOENT)?;
    check_eq!(event.kind, KFI_SHUTDOWN);
    check_eq!(event.err, kernel::bindings::ENODEV);
    // No new object can be opened,
    check_err!(region(&domain, 1, KFI_SEND, false), ENODEV);
    check_err!(Key::alloc(&memory), ENODEV);
    check_err!(idle.assign(0, 64, KFI_REMOTE_READ), ENODEV);
    check_err!(Endpoint::open(&domain, &EpAttr::default(), None), ENODEV);
    let pages: Arc<Memory> = memory.memory().clone();
    check_err!(Region::register(&domain, pages, KFI_SEND, false), ENODEV);
    // but existing ones can be closed.
    control.forget();
    key.revoke()?;
    key.close();
    idle.close();
    ends.ep.close();
    memory.close()?;
    ends.cq.close()?;
    domain.close()?;
    check_eq!(control.count(Step::Revoke), 1);
    Ok(())
}
