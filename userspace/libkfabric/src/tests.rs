// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the library on a fake kernel.
#![forbid(unsafe_code)]

mod rings;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kfabric_uapi as abi;

use crate::sys::fake::Fake;
use crate::*;

pub(crate) const SOON: Duration = Duration::from_secs(5);

pub(crate) fn device() -> (Fake, Device) {
    let fake = Fake::default();
    let device = Device::with_backend(Box::new(fake.clone()));
    (fake, device)
}

fn fabric(device: &Device) -> (Fabric, Domain) {
    let info = device.info(&Hints::new()).unwrap().remove(0);
    let fabric = device.fabric(&info).unwrap();
    let domain = fabric.domain(&info).unwrap();
    (fabric, domain)
}

fn port(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], port))
}

fn endpoint(fabric: &Fabric, ep: &Endpoint, domain: &Domain) -> (EventQueue, CompletionQueue) {
    let eq = fabric.event_queue(0).unwrap();
    let cq = domain.completion_queue(64, Format::Data).unwrap();
    ep.bind_event_queue(&eq).unwrap();
    ep.bind_completion_queue(&cq, Bind::TRANSMIT | Bind::RECV)
        .unwrap();
    ep.enable().unwrap();
    (eq, cq)
}

/// Two connected endpoints, with their queues.
pub(crate) struct Pair {
    pub(crate) a: Endpoint,
    pub(crate) a_cq: CompletionQueue,
    pub(crate) b: Endpoint,
    pub(crate) b_cq: CompletionQueue,
    pub(crate) domain: Domain,
}

/// Connects two endpoints without rings.
fn pair(device: &Device) -> Pair {
    pair_with(device, false, false)
}

/// Connects two endpoints; each is opened with rings if its flag says so.
pub(crate) fn pair_with(device: &Device, a_rings: bool, b_rings: bool) -> Pair {
    pair_when(device, a_rings, b_rings, |_, _| ())
}

/// Like [`pair_with`]; calls `before` when `a` is enabled but not connected.
fn pair_when(
    device: &Device,
    a_rings: bool,
    b_rings: bool,
    before: impl FnOnce(&Domain, &Endpoint),
) -> Pair {
    let (fabric, domain) = fabric(device);
    let listen_eq = fabric.event_queue(0).unwrap();
    let pep = fabric.passive_endpoint(&listen_eq, port(7), 77).unwrap();
    pep.listen(0).unwrap();
    let a = domain
        .endpoint(&EndpointAttr {
            context: 5,
            rings: a_rings,
            ..EndpointAttr::default()
        })
        .unwrap();
    let (a_eq, a_cq) = endpoint(&fabric, &a, &domain);
    before(&domain, &a);
    a.connect(port(7), b"let me in").unwrap();
    let request = listen_eq.wait(SOON).unwrap().request().unwrap();
    assert_eq!(
        (request.context, &request.data[..]),
        (77, &b"let me in"[..])
    );
    let attr = EndpointAttr {
        rings: b_rings,
        ..EndpointAttr::default()
    };
    let b = domain.endpoint_for(request, &attr).unwrap();
    let (b_eq, b_cq) = endpoint(&fabric, &b, &domain);
    b.accept(b"come in").unwrap();
    assert_eq!(a_eq.wait(SOON).unwrap().connected().unwrap(), b"come in");
    assert_eq!(b_eq.wait(SOON).unwrap().connected().unwrap(), b"");
    Pair {
        a,
        a_cq,
        b,
        b_cq,
        domain,
    }
}

#[test]
fn info_longer_than_the_buffer_is_complete() {
    let (_, device) = device();
    let infos = device.info(&Hints::new().provider("fake")).unwrap();
    assert_eq!(infos.len(), 70);
    assert_eq!(
        (infos[69].provider(), infos[69].domain()),
        ("fake", "fake0")
    );
}

#[test]
fn close_of_a_parent_with_children_returns_it() {
    let (fake, device) = device();
    let (fabric, domain) = fabric(&device);
    let Returned {
        object: fabric,
        error,
    } = fabric.close().unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EBUSY));
    assert!(
        error.to_string().starts_with("CLOSE on fabric 0x"),
        "{error}"
    );
    assert!(error.hint().is_some());
    domain.close().unwrap();
    fabric.close().unwrap();
    assert_eq!(fake.0.lock().unwrap().count(), 0);
}

#[test]
fn drop_in_any_order_closes_every_object() {
    let (fake, device) = device();
    let Pair {
        a,
        a_cq,
        b,
        b_cq,
        domain,
    } = pair(&device);
    let region = domain
        .register(Memory::anonymous(64).unwrap(), Access::LOCAL)
        .unwrap();
    let keys = region.alloc_keys(3).unwrap();
    // Parents are dropped first: they stay open until their children are dropped.
    drop(domain);
    drop((a_cq, b_cq));
    drop(region);
    assert!(fake.0.lock().unwrap().count() > 8);
    drop((a, b));
    drop(keys);
    assert_eq!(fake.0.lock().unwrap().count(), 0);
    drop(device);
}

#[test]
fn sub_region_of_a_sub_region_stays_within_it() {
    let (fake, device) = device();
    let (_fabric, domain) = fabric(&device);
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let attr = RegionAttr::new(both).sub_regions(2);
    let region = domain
        .register_with(Memory::anonymous(4096).unwrap(), &attr)
        .unwrap();
    let before = fake.0.lock().unwrap().count();
    let first = region.sub_region(100..300, both).unwrap();
    assert_eq!((first.offset(), first.len()), (100, 200));
    // A sub-region of the sub-region, with less access.
    let inner = first
        .sub_region(&region, 50..60, Access::REMOTE_READ)
        .unwrap();
    assert_eq!((inner.offset(), inner.len()), (150, 10));
    assert_eq!(inner.remote().addr, first.remote().addr + 50);
    assert_ne!(inner.remote().key, first.remote().key);
    // Both used slots that were reserved.
    assert_eq!(fake.0.lock().unwrap().count(), before);
    // No access beyond the parent's.
    let beyond = inner.sub_region(&region, 0..5, both).unwrap_err();
    assert_eq!(beyond.errno(), Some(Errno(libc::EACCES)));
    for range in [0..11, 10..11, std::ops::Range { start: 5, end: 4 }] {
        let outside = inner.sub_region(&region, range, Access::REMOTE_READ);
        assert!(matches!(outside.unwrap_err(), Error::Argument { .. }));
    }
    assert!(region.sub_region(4096..4097, both).is_err());
    // Parents cannot be closed before their children.
    let Returned { object, error } = first.close().unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EBUSY));
    let region = region.close().unwrap_err().object;
    assert_eq!(fake.0.lock().unwrap().count(), before);
    inner.close().unwrap();
    object.close().unwrap();
    // The returned slots are used again.
    let again = region.sub_region(0..1, both).unwrap();
    assert_eq!(fake.0.lock().unwrap().count(), before);
    drop(again);
    region.close().unwrap();
    assert_eq!(fake.0.lock().unwrap().count(), before - 3);
}

#[test]
fn remote_mem_to_raw_and_back_is_equal() {
    let there = RemoteMem {
        addr: 0x0102_0304_0506_0708,
        key: 0xfff0_f1f2_f3f4_f5f6,
    };
    let raw = there.to_raw();
    assert_eq!(raw[0], 1);
    assert_eq!(raw[15], 0xf6);
    assert_eq!(RemoteMem::from_raw(&raw).unwrap(), there);
    assert!(RemoteMem::from_raw(&raw[..15]).is_err());
    assert!(RemoteMem::from_raw(&[]).is_err());
}

#[test]
fn region_used_by_an_operation_is_closed_with_the_next_object() {
    let (fake, device) = device();
    let (_fabric, domain) = fabric(&device);
    let region = domain
        .register(Memory::anonymous(64).unwrap(), Access::LOCAL)
        .unwrap();
    let handle = region.id().handle;
    fake.0.lock().unwrap().hold(handle, true);
    let region = region.close().unwrap_err().object;
    let before = fake.0.lock().unwrap().count();
    drop(region);
    assert_eq!(fake.0.lock().unwrap().count(), before);
    fake.0.lock().unwrap().hold(handle, false);
    // The next close also closes the handle that was busy.
    domain.counter().unwrap_err();
    domain
        .completion_queue(4, Format::Msg)
        .unwrap()
        .close()
        .unwrap();
    assert_eq!(fake.0.lock().unwrap().count(), before - 1);
}

#[test]
fn send_and_inject_are_received() {
    let (_, device) = device();
    let p = pair(&device);
    let memory = Memory::anonymous(4096).unwrap();
    let region = p.domain.register(memory, Access::LOCAL).unwrap();
    region.write_at(0, b"hello");
    p.b.recv(region.segment(100..200), 1).unwrap();
    p.a.senddata(region.segment(0..5), 9, 2).unwrap();
    let sent = p.a_cq.wait(SOON).unwrap().ok().unwrap();
    assert_eq!((sent.context(), sent.data()), (2, None));
    let came = p.b_cq.wait(SOON).unwrap().ok().unwrap();
    assert_eq!((came.context(), came.len(), came.data()), (1, 5, Some(9)));
    assert_eq!(region.to_vec(100, 5), b"hello");
    // An injected send has no completion.
    p.b.recv(region.segment(200..300), 3).unwrap();
    p.a.inject(b"bye").unwrap();
    assert_eq!(p.b_cq.wait(SOON).unwrap().ok().unwrap().len(), 3);
    assert!(!p.a_cq.is_ready());
    let full = p.a.inject(b"one too many").unwrap_err();
    assert!(full.is_full() && full.hint().is_some());
}

#[test]
fn submit_stops_at_the_first_refused_operation() {
    let (fake, device) = device();
    let p = pair(&device);
    let region = p
        .domain
        .register(Memory::anonymous(64).unwrap(), Access::LOCAL)
        .unwrap();
    for context in 0..3 {
        p.b.recv(region.all(), context).unwrap();
    }
    let part = [region.segment(0..1)];
    let batch: Batch<'_> = (0..2000).map(|n| Op::send(&part).context(n)).collect();
    let before = fake.0.lock().unwrap().calls.len();
    let done = p.a.submit(&batch).unwrap();
    assert_eq!(
        done,
        Submitted {
            accepted: 3,
            refused: Some(Errno::EAGAIN)
        }
    );
    assert_eq!(fake.0.lock().unwrap().calls.len(), before + 1);
    let mut some = [Completion::default(); 10];
    assert_eq!(p.a_cq.read(&mut some).unwrap(), 3);
    assert_eq!(some[2].context(), 2);
    assert_eq!(p.a.submit(&batch).unwrap_err().errno(), Some(Errno::EAGAIN));
}

#[test]
fn key_revoked_refuses_a_read() {
    let (_, device) = device();
    let p = pair(&device);
    let region = p
        .domain
        .register(Memory::anonymous(8192).unwrap(), Access::LOCAL)
        .unwrap();
    region.write_at(5000, b"secret");
    let key = region.alloc_keys(1).unwrap().remove(0);
    let remote = key.assign(5000, 6, Access::REMOTE_READ).unwrap();
    let again = key.assign(0, 1, Access::REMOTE_READ).unwrap_err();
    assert_eq!(again.errno(), Some(Errno::EBUSY));
    p.a.read(region.segment(0..6), remote, 1).unwrap();
    p.a_cq.wait(SOON).unwrap().ok().unwrap();
    assert_eq!(region.to_vec(0, 6), b"secret");
    key.revoke().unwrap();
    p.a.read(region.segment(0..6), remote, 2).unwrap();
    let error = p.a_cq.wait(SOON).unwrap().error().unwrap();
    assert_eq!(
        (error.errno, error.prov_errno, error.context),
        (Errno::EACCES, 10, 2)
    );
    assert_eq!(
        region.alloc_keys(0).unwrap_err().errno(),
        Some(Errno::EINVAL)
    );
    assert_eq!(
        region.alloc_keys(5000).unwrap_err().errno(),
        Some(Errno::EINVAL)
    );
}

#[test]
fn assign_many_and_revoke_many_split_by_the_calls_limit() {
    let (fake, device) = device();
    let p = pair(&device);
    let region = || {
        let memory = Memory::anonymous(1 << 20).unwrap();
        p.domain.register(memory, Access::LOCAL).unwrap()
    };
    let (one, two) = (region(), region());
    let keys = one.alloc_keys(4096).unwrap();
    let more = two.alloc_keys(10).unwrap();
    let grant = |key| Grant {
        key,
        offset: 64,
        length: 1,
        access: Access::REMOTE_READ,
    };
    let grants: Vec<_> = keys.iter().chain(&more).map(grant).collect();
    let before = fake.0.lock().unwrap().calls.len();
    let all = Key::assign_many(&grants).unwrap();
    assert_eq!((all.remotes.len(), all.refused), (4106, None));
    // Two calls: each takes at most `KFI_KEY_ALLOC_MAX` slots.
    assert_eq!(fake.0.lock().unwrap().calls.len(), before + 2);
    assert_eq!(Key::revoke_many(&keys[..100]).unwrap(), 100);
    assert_eq!(Key::revoke_many(&keys[..101]).unwrap(), 1);
    // The first 101 slots can be assigned again; the next slot still has a key.
    let again = Key::assign_many(&grants).unwrap();
    assert_eq!(again.remotes.len(), 101);
    assert_eq!(again.refused, Some(Errno::EBUSY));
    let error = Key::assign_many(&grants).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EBUSY));
    assert!(error.hint().is_some());
    assert_eq!(two.revoke_keys().unwrap(), 10);
    assert_eq!(p.domain.revoke_keys().unwrap(), 4096);
    assert_eq!(device.revoke_keys().unwrap(), 0);
    assert_eq!(Key::assign_many(&[]).unwrap(), Assigned::default());
    assert_eq!(Key::revoke_many([]).unwrap(), 0);
    // Ordered keys, with and without a failure queue of the same file.
    for failures in [None, Some((&p.a_cq, 7))] {
        let all = Key::assign_ordered(&grants[..3], failures).unwrap();
        assert_eq!((all.remotes.len(), all.refused), (3, None));
        assert_eq!(Key::revoke_many(&keys).unwrap(), 3);
    }
    let one = Key::assign_ordered(&grants[..1], Some((&p.a_cq, 7))).unwrap();
    assert_eq!((one.remotes.len(), one.refused), (1, None));
    let error = Key::assign_ordered(&grants[..1], None).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EBUSY));
    keys[0].revoke().unwrap();
    // Objects of another device file are refused.
    let (_, other) = self::device();
    let q = pair(&other);
    let error = Key::assign_ordered(&grants[..3], Some((&q.a_cq, 7))).unwrap_err();
    assert!(matches!(error, Error::Argument { .. }), "{error}");
    let memory = Memory::anonymous(64).unwrap();
    let foreign = q.domain.register(memory, Access::LOCAL).unwrap();
    let foreign = foreign.alloc_keys(1).unwrap();
    let error = Key::revoke_many(keys.iter().chain(&foreign)).unwrap_err();
    assert!(matches!(error, Error::Argument { .. }), "{error}");
    let error = Key::assign_many(&[grant(&keys[0]), grant(&foreign[0])]).unwrap_err();
    assert!(matches!(error, Error::Argument { .. }), "{error}");
}

#[test]
fn wait_any_takes_the_event_of_any_queue() {
    let (_, device) = device();
    let (fabric, domain) = fabric(&device);
    let eqs = [10, 11].map(|at| {
        let eq = fabric.event_queue(0).unwrap();
        let pep = fabric.passive_endpoint(&eq, port(at), at.into()).unwrap();
        pep.listen(0).unwrap();
        (eq, pep)
    });
    let queues = [&eqs[0].0, &eqs[1].0];
    let ep = domain.endpoint(&EndpointAttr::default()).unwrap();
    let (ep_eq, _cq) = endpoint(&fabric, &ep, &domain);
    for at in [11, 10] {
        ep.connect(port(at), &[]).unwrap();
        let request = EventQueue::wait_any(&queues, SOON)
            .unwrap()
            .request()
            .unwrap();
        assert_eq!(request.context, u64::from(at));
        drop(request);
        assert!(ep_eq.wait(SOON).unwrap().connected().is_err());
    }
    let late = EventQueue::wait_any(&queues, Duration::from_millis(1)).unwrap_err();
    assert_eq!(late.errno(), Some(Errno::ETIMEDOUT));
    let none = EventQueue::wait_any(&[], SOON).unwrap_err();
    assert_eq!(none.errno(), Some(Errno::ETIMEDOUT));
}

#[test]
fn conn_request_is_accepted_rejected_or_returned() {
    let (_, device) = device();
    let (fabric, domain) = fabric(&device);
    let eq = fabric.event_queue(0).unwrap();
    let pep = fabric.passive_endpoint(&eq, port(8), 0).unwrap();
    let ep = domain.endpoint(&EndpointAttr::default()).unwrap();
    let (ep_eq, _cq) = endpoint(&fabric, &ep, &domain);
    let refused = || match ep_eq.wait(SOON).unwrap().connected().unwrap_err() {
        Error::Connect(failure) => *failure,
        other => panic!("{other}"),
    };
    // Refused by `reject`.
    ep.connect(port(8), &[]).unwrap();
    eq.wait(SOON)
        .unwrap()
        .request()
        .unwrap()
        .reject(b"not you")
        .unwrap();
    let failure = refused();
    assert_eq!(
        (failure.errno, &failure.data[..]),
        (Errno::ECONNREFUSED, &b"not you"[..])
    );
    // Refused by dropping the request.
    ep.connect(port(8), &[]).unwrap();
    drop(eq.wait(SOON).unwrap());
    assert_eq!(refused().data, b"");
    // If the endpoint cannot be opened, the request is returned.
    ep.connect(port(8), &[]).unwrap();
    let request = eq.wait(SOON).unwrap().request().unwrap();
    let (other, other_device) = self::device();
    let (_f, foreign) = self::fabric(&other_device);
    let back = foreign
        .endpoint_for(request, &EndpointAttr::default())
        .unwrap_err();
    drop(other);
    domain
        .endpoint_for(back.object, &EndpointAttr::default())
        .unwrap();
    // No passive endpoint has that port.
    drop(pep);
    ep.connect(port(9), &[]).unwrap();
    assert_eq!(refused().errno, Errno::ECONNREFUSED);
    assert!(eq.read().unwrap().is_none());
    let late = ep_eq.wait(Duration::from_millis(1)).unwrap_err();
    assert_eq!(late.errno(), Some(Errno::ETIMEDOUT));
}

#[test]
fn completion_read_by_many_threads_is_returned_once() {
    let (fake, device) = device();
    let p = pair(&device);
    let ep = p.a.id().handle;
    let sum = AtomicU64::new(0);
    let count = AtomicU64::new(0);
    const ALL: u64 = 20_000;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut some = [Completion::default(); 7];
                while count.load(Ordering::Relaxed) < ALL {
                    let n = p.a_cq.read(&mut some).unwrap();
                    for completion in &some[..n] {
                        sum.fetch_add(completion.context(), Ordering::Relaxed);
                    }
                    count.fetch_add(n as u64, Ordering::Relaxed);
                }
            });
        }
        for context in 0..ALL {
            // Wait for space: fewer entries are unread than the ring holds.
            while context - count.load(Ordering::Relaxed) >= u64::from(p.a_cq.capacity()) {
                std::thread::yield_now();
            }
            let entry = abi::CqEntry {
                context,
                ..abi::CqEntry::default()
            };
            fake.0.lock().unwrap().complete(ep, entry);
        }
    });
    assert_eq!(count.into_inner(), ALL);
    assert_eq!(sum.into_inner(), ALL * (ALL - 1) / 2);
}

#[test]
fn ignored_failure_taken_by_another_thread_is_no_failure() {
    let (fake, device) = device();
    let p = pair(&device);
    let ep = p.a.id().handle;
    const ALL: u64 = 300;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let each = |_, _: &abi::CqEntry| panic!("a failure was taken for a success");
                    let taken = p.a_cq.read_successes_except(2, 7, each).unwrap();
                    assert_eq!(taken, Taken::default());
                }
            });
        }
        for _ in 0..ALL {
            while p.a_cq.is_ready() {
                std::thread::yield_now();
            }
            let entry = abi::CqEntry {
                context: 7,
                err: 5,
                ..abi::CqEntry::default()
            };
            fake.0.lock().unwrap().complete(ep, entry);
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn errors_of_common_causes_have_hints() {
    let (fake, device) = device();
    let (_fabric, domain) = fabric(&device);
    fake.0.lock().unwrap().fail = Some((abi::KFI_IOC_REGION_REG, Errno::ENOMEM));
    let error = domain
        .register(Memory::anonymous(64).unwrap(), Access::SEND)
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("REGION_REG on domain 0x") && text.ends_with("(ENOMEM)"),
        "{text}"
    );
    assert!(error.hint().unwrap().contains("ulimit -l"));
    let missing = Device::open_path(std::path::Path::new("/nonexistent/kfabric")).unwrap_err();
    assert!(missing.hint().unwrap().contains("insmod kfabric.ko"));
}

#[test]
fn wait_with_the_longest_timeout_returns_the_completion() {
    let (_, device) = device();
    let p = pair(&device);
    let region = p
        .domain
        .register(Memory::anonymous(64).unwrap(), Access::LOCAL)
        .unwrap();
    p.b.recv(region.all(), 1).unwrap();
    p.a.send(region.segment(0..1), 2).unwrap();
    assert_eq!(p.b_cq.wait(Duration::MAX).unwrap().context(), 1);
}

#[test]
fn memory_access_out_of_bounds_panics() {
    let memory = Memory::anonymous(100).unwrap();
    memory.write_at(90, &[7; 10]);
    assert_eq!(memory.to_vec(89, 11)[..2], [0, 7]);
    for at in [91, usize::MAX] {
        let beyond = std::panic::catch_unwind(|| memory.write_at(at, &[0; 10]));
        assert!(beyond.is_err());
    }
    assert!(Memory::anonymous(0).is_err());
}

#[test]
fn object_of_another_device_file_is_refused_where_it_is_used() {
    let (_, one) = device();
    let (_, two) = device();
    let mine = pair(&one);
    let (their_fabric, theirs) = fabric(&two);
    let region = |domain: &Domain| {
        domain
            .register(Memory::anonymous(64).unwrap(), Access::LOCAL)
            .unwrap()
    };
    let (own, foreign) = (region(&mine.domain), region(&theirs));
    // Handles of two files may have the same numbers, so the library must compare the files.
    let is_foreign = |error: Error| {
        assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
        assert!(error.to_string().contains("another device file"), "{error}");
    };
    is_foreign(mine.a.send(foreign.all(), 1).unwrap_err());
    is_foreign(mine.a.recv(foreign.all(), 1).unwrap_err());
    is_foreign(mine.a.sendv(&[own.all(), foreign.all()], 1).unwrap_err());
    let mut batch = Batch::new();
    batch.push(Op::recv(&[foreign.all()]));
    is_foreign(mine.a.submit(&batch).unwrap_err());
    let mut batch = Batch::new();
    batch
        .push(Op::recv(&[own.all()]))
        .push(Op::recv(&[foreign.all()]));
    let done = mine.a.submit(&batch).unwrap();
    assert_eq!(
        (done.accepted, done.refused),
        (1, Some(Errno::EINVAL)),
        "the operation before it is posted"
    );
    let ep = mine.domain.endpoint(&EndpointAttr::default()).unwrap();
    let eq = their_fabric.event_queue(0).unwrap();
    is_foreign(ep.bind_event_queue(&eq).unwrap_err());
    let cq = theirs.completion_queue(0, Format::Data).unwrap();
    is_foreign(ep.bind_completion_queue(&cq, Bind::RECV).unwrap_err());
    is_foreign(foreign.alloc_keys_for(&ep, 1).unwrap_err());
    let attr = RegionAttr::new(Access::REMOTE).endpoint(&ep);
    let memory = Memory::anonymous(64).unwrap();
    is_foreign(theirs.register_with(memory, &attr).unwrap_err());
    let (own_fabric, _) = fabric(&one);
    is_foreign(own_fabric.passive_endpoint(&eq, port(9), 0).unwrap_err());
}

#[test]
fn region_retired_in_use_loses_its_keys_at_once() {
    let (fake, device) = device();
    let p = pair(&device);
    let region = || {
        let memory = Memory::anonymous(64).unwrap();
        let all = Access::LOCAL | Access::REMOTE;
        p.domain.register(memory, all).unwrap()
    };
    // Not in use: closed.
    let before = fake.0.lock().unwrap().count();
    region().retire().unwrap();
    assert_eq!(fake.0.lock().unwrap().count(), before);
    // In use by an operation and by a key slot.
    let (used, local) = (region(), region());
    let key = used.alloc_keys(1).unwrap().remove(0);
    let remote = key.assign(0, 8, Access::REMOTE_READ).unwrap();
    let handle = used.id().handle;
    fake.0.lock().unwrap().hold(handle, true);
    used.retire().unwrap();
    p.a.read(local.segment(0..8), remote, 1).unwrap();
    let error = p.a_cq.wait(SOON).unwrap().error().unwrap();
    assert_eq!(error.errno, Errno::EACCES);
    drop(key);
    assert_eq!(fake.0.lock().unwrap().count(), before + 2);
    fake.0.lock().unwrap().hold(handle, false);
    // The next close also closes the region.
    local.retire().unwrap();
    assert_eq!(fake.0.lock().unwrap().count(), before);
    // A refused revocation returns the region.
    let used = region();
    fake.0.lock().unwrap().hold(used.id().handle, true);
    fake.0.lock().unwrap().fail = Some((abi::KFI_IOC_KEY_REVOKE_MANY, Errno::EINTR));
    let Returned { object, error } = used.retire().unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EINTR));
    fake.0.lock().unwrap().hold(object.id().handle, false);
    object.close().unwrap();
}

#[test]
fn orphans_are_closed_in_any_order_before_an_object_that_they_keep_busy() {
    let (fake, device) = device();
    let p = pair(&device);
    let before = fake.0.lock().unwrap().count();
    let memory = Memory::anonymous(64).unwrap();
    let all = Access::LOCAL | Access::REMOTE;
    let attr = RegionAttr::new(all).dynamic_keys();
    let region = p.domain.register_with(memory, &attr).unwrap();
    let key = region.alloc_keys(1).unwrap().remove(0);
    let slot = key.id().handle;
    // The slot becomes an orphan before its region.
    fake.0.lock().unwrap().hold(slot, true);
    drop(key);
    drop(region);
    assert_eq!(fake.0.lock().unwrap().count(), before + 2);
    fake.0.lock().unwrap().hold(slot, false);
    // One close of another object is enough for both.
    let other = Memory::anonymous(64).unwrap();
    p.domain.register(other, all).unwrap().close().unwrap();
    assert_eq!(fake.0.lock().unwrap().count(), before);

    // The region is the only child of its domain.
    let (_fabric, domain) = fabric(&device);
    let memory = Memory::anonymous(64).unwrap();
    let region = domain.register(memory, all).unwrap();
    let handle = region.id().handle;
    fake.0.lock().unwrap().hold(handle, true);
    drop(region);
    let Returned { object, error } = domain.close().unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EBUSY));
    fake.0.lock().unwrap().hold(handle, false);
    object.close().unwrap();
}

#[test]
fn event_peeked_stays_and_its_request_has_no_effect() {
    let (_fake, device) = device();
    let (fabric, domain) = fabric(&device);
    let eq = fabric.event_queue(0).unwrap();
    let _pep = fabric.passive_endpoint(&eq, port(7), 77).unwrap();
    let ep = domain.endpoint(&EndpointAttr::default()).unwrap();
    let (ep_eq, _cq) = endpoint(&fabric, &ep, &domain);
    assert!(eq.peek().unwrap().is_none());
    ep.connect(port(7), b"data").unwrap();
    for _ in 0..2 {
        let peeked = eq.peek().unwrap().unwrap().request().unwrap();
        assert_eq!((&peeked.data[..], peeked.context), (&b"data"[..], 77));
        assert_eq!((peeked.handle(), peeked.info.provider()), (0, "fake"));
        assert_eq!(peeked.reject(&[]).unwrap_err().errno(), Some(Errno::ENOENT));
    }
    let peeked = eq.peek().unwrap().unwrap().request().unwrap();
    let back = domain.endpoint_for(peeked, &EndpointAttr::default());
    assert_eq!(back.unwrap_err().error.errno(), Some(Errno::EINVAL));
    assert!(ep_eq.peek().unwrap().is_none(), "no request was refused");
    let request = eq.read().unwrap().unwrap().request().unwrap();
    assert_eq!(request.info.provider(), "fake");
    assert_eq!(request.info.destination(), request.peer);
    assert_eq!(request.peer, Some("192.0.2.9:4".parse().unwrap()));
    request.reject(b"no").unwrap();
    assert!(matches!(ep_eq.peek().unwrap(), Some(Event::ConnFailed(_))));
    assert!(ep_eq.read().unwrap().unwrap().connected().is_err());
    assert!(ep_eq.peek().unwrap().is_none());
}

/// Reads successes and failures of the queue of `a`, in turn.
fn successes_before_failures(rings: bool) {
    let (fake, device) = device();
    let p = pair_with(&device, rings, rings);
    let ep = p.a.id().handle;
    let mut some = [Completion::default(); 40];
    let taken = |count, failed| Taken { count, failed };
    assert_eq!(p.a_cq.read_successes(&mut some).unwrap(), taken(0, false));
    assert_eq!(p.a_cq.read_failure().unwrap(), None);
    for context in 0..60u64 {
        let err = u32::from(context == 35 || context == 36) * 5;
        let entry = abi::CqEntry {
            context,
            err,
            ..abi::CqEntry::default()
        };
        fake.0.lock().unwrap().complete(ep, entry);
    }
    assert_eq!(p.a_cq.read_failure().unwrap(), None);
    assert_eq!(
        p.a_cq.read_successes(&mut some[..3]).unwrap(),
        taken(3, false)
    );
    assert_eq!(p.a_cq.read_successes(&mut some).unwrap(), taken(32, true));
    assert_eq!((some[0].context(), some[31].context()), (3, 34));
    for context in [35, 36] {
        assert_eq!(p.a_cq.read_successes(&mut some).unwrap(), taken(0, true));
        assert_eq!(p.a_cq.read_failure().unwrap().unwrap().context(), context);
    }
    assert_eq!(p.a_cq.read_failure().unwrap(), None);
    assert_eq!(p.a_cq.read_successes(&mut some).unwrap(), taken(23, false));
    assert_eq!((some[0].context(), some[22].context()), (37, 59));
    assert_eq!(p.a_cq.read_successes(&mut []).unwrap(), taken(0, false));
}

#[test]
fn successes_of_the_kernel_are_read_up_to_a_failure() {
    successes_before_failures(false);
}

#[test]
fn successes_of_a_queue_with_rings_are_read_up_to_a_failure() {
    successes_before_failures(true);
}
