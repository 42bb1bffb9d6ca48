// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of rings, between two endpoints of one process.

use std::sync::Arc;

use super::*;

fn region(domain: &Domain, len: usize) -> Region {
    let memory = Memory::anonymous(len).unwrap();
    domain.register(memory, Access::LOCAL).unwrap()
}

fn calls(fake: &Fake, nr: u32) -> usize {
    let state = fake.0.lock().unwrap();
    state.calls.iter().filter(|call| **call == nr).count()
}

#[test]
fn message_with_rings_makes_no_system_call() {
    let (fake, device) = device();
    let pair = pair_with(&device, true, true);
    assert_eq!(
        (pair.a.has_rings(), pair.b.has_rings()),
        (Some(true), Some(true))
    );
    let memory = region(&pair.domain, 4096);
    memory.write_at(0, b"a message");
    let before = fake.0.lock().unwrap().calls.len();
    for i in 0..1000 {
        pair.b.recv(memory.segment(100..200), i).unwrap();
        pair.a.senddata(memory.segment(0..9), 7, 1000 + i).unwrap();
        let sent = pair.a_cq.read_one().unwrap().unwrap().ok().unwrap();
        assert_eq!((sent.context(), sent.len()), (1000 + i, 9));
        let came = pair.b_cq.read_one().unwrap().unwrap().ok().unwrap();
        assert_eq!((came.context(), came.len(), came.data()), (i, 9, Some(7)));
        assert_eq!(came.endpoint(), pair.b.id().handle);
    }
    assert_eq!(fake.0.lock().unwrap().calls.len(), before);
    assert_eq!(memory.to_vec(100, 9), b"a message");
    assert_eq!(pair.a_cq.read_one().unwrap(), None);
}

#[test]
fn message_without_rings_goes_through_the_kernel() {
    let (fake, device) = device();
    let pair = pair_with(&device, false, true);
    let memory = region(&pair.domain, 4096);
    pair.b.recv(memory.segment(0..64), 1).unwrap();
    assert_eq!(pair.b.has_rings(), Some(false));
    pair.a.inject(b"by the kernel").unwrap();
    let came = pair.b_cq.read_one().unwrap().unwrap().ok().unwrap();
    assert_eq!(came.context(), 1);
    assert_eq!(memory.to_vec(0, 13), b"by the kernel");
    assert_eq!(calls(&fake, abi::KFI_IOC_SUBMIT), 2);
}

#[test]
fn long_message_moves_as_the_ring_gets_space() {
    const LEN: usize = 1_000_003;
    let (_, device) = device();
    let pair = pair_with(&device, true, true);
    let memory = region(&pair.domain, 2 * LEN);
    let bytes: Vec<u8> = (0..LEN).map(|i| (i * 7 + i / 251) as u8).collect();
    memory.write_at(0, &bytes);
    let long = [memory.segment(0..3), memory.segment(3..LEN)];
    pair.a.post(&Op::send(&long).data(77).context(1)).unwrap();
    pair.a.inject(b"behind").unwrap();
    assert_eq!(pair.a_cq.read_one().unwrap(), None);
    pair.b.recv(memory.segment(LEN..2 * LEN), 2).unwrap();
    pair.b.recv(memory.segment(0..100), 3).unwrap();
    let mut came = Vec::new();
    while came.len() < 2 {
        assert!(!pair.a_cq.is_ready() || came.len() < 2);
        came.extend(pair.b_cq.read_one().unwrap());
    }
    assert_eq!((came[0].context(), came[0].len()), (2, LEN as u64));
    assert_eq!((came[0].data(), came[1].data()), (Some(77), None));
    assert_eq!((came[1].context(), came[1].len()), (3, 6));
    assert_eq!(memory.to_vec(LEN, LEN), bytes);
    let sent = pair.a_cq.read_one().unwrap().unwrap();
    assert_eq!((sent.context(), sent.len()), (1, LEN as u64));
}

#[test]
fn operation_behind_messages_gets_its_turn_without_a_read() {
    const LEN: usize = 300_000;
    let (fake, device) = device();
    let pair = pair_with(&device, true, true);
    let memory = region(&pair.domain, 2 * LEN);
    memory.fill(0, LEN, 9);
    pair.a.send(memory.segment(0..LEN), 1).unwrap();
    pair.a.inject(b"after").unwrap();
    let post = || pair.a.read(memory.segment(0..1), RemoteMem::default(), 3);
    // The peer has no receive.
    let late = post().unwrap_err();
    assert_eq!(late.errno(), Some(Errno::EAGAIN));
    pair.b.recv(memory.segment(LEN..2 * LEN), 2).unwrap();
    pair.b.recv(memory.segment(0..8), 4).unwrap();
    let mut tries = 0;
    while let Err(late) = post() {
        assert_eq!(late.errno(), Some(Errno::EAGAIN));
        tries += 1;
        assert!(tries < 20, "no queue is read, and the turn never comes");
    }
    assert_eq!(calls(&fake, abi::KFI_IOC_SUBMIT), 1);
    // The last message may still be in the ring.
    let mut came = Vec::new();
    while came.len() < 2 {
        came.extend(pair.b_cq.read_one().unwrap().map(|done| done.context()));
    }
    assert_eq!(came, [2, 4]);
    assert_eq!(memory.to_vec(2 * LEN - 8, 8), [9; 8]);
}

#[test]
fn full_rings_of_both_ends_move_by_posts_alone() {
    const LEN: usize = 50_000;
    let (_, device) = device();
    let pair = pair_with(&device, true, true);
    let memory = region(&pair.domain, 4 * LEN);
    for i in 0..20 {
        pair.a.recv(memory.segment(0..LEN), i).unwrap();
        pair.b.recv(memory.segment(LEN..2 * LEN), i).unwrap();
    }
    // More than both rings hold. No queue is read.
    for (end, at) in [(&pair.a, 2 * LEN), (&pair.b, 3 * LEN)] {
        for i in 0..15 {
            end.send(memory.segment(at..at + LEN), i).unwrap();
        }
    }
    for end in [&pair.a, &pair.b] {
        let mut tries = 0;
        while end
            .write(memory.segment(0..1), RemoteMem::default(), 99)
            .is_err()
        {
            tries += 1;
            assert!(tries < 200, "no queue is read, and the turn never comes");
        }
    }
}

#[test]
fn endpoint_with_rings_tells_the_kernel_its_version() {
    let (fake, device) = device();
    let _pair = pair_with(&device, true, false);
    // An endpoint without rings names no version: the kernel refuses one.
    let own = Some(crate::endpoint::RINGS_VERSION);
    assert_eq!(fake.0.lock().unwrap().asked_rings, [own, None]);
}

#[test]
fn peer_with_another_version_gets_messages_through_the_kernel() {
    let (fake, device) = device();
    fake.0.lock().unwrap().newer_peer = true;
    let pair = pair_with(&device, true, true);
    assert_eq!(
        (pair.a.has_rings(), pair.b.has_rings()),
        (Some(false), Some(false))
    );
    let memory = region(&pair.domain, 4096);
    pair.b.recv(memory.segment(0..64), 1).unwrap();
    pair.a.inject(b"by the kernel").unwrap();
    let came = pair.b_cq.read_one().unwrap().unwrap().ok().unwrap();
    assert_eq!(came.context(), 1);
    assert_eq!(memory.to_vec(0, 13), b"by the kernel");
}

#[test]
fn message_of_delivery_complete_waits_for_the_peer() {
    let (_, device) = device();
    let pair = pair_with(&device, true, true);
    let memory = region(&pair.domain, 4096);
    let sent = |op: Op<'_>| pair.a.post(&op).unwrap();
    sent(Op::send(&[memory.segment(0..8)]).context(1).visible());
    sent(Op::send(&[]).context(2).visible());
    sent(Op::send(&[memory.segment(0..8)]).context(3));
    for context in 1..=2 {
        assert_eq!(pair.a_cq.read_one().unwrap(), None);
        pair.b.recv(memory.segment(8..16), 0).unwrap();
        assert!(pair.b_cq.read_one().unwrap().is_some());
        let done = pair.a_cq.read_one().unwrap().unwrap().ok().unwrap();
        assert_eq!(done.context(), context);
    }
    assert_eq!(pair.a_cq.read_one().unwrap().unwrap().context(), 3);
    // The peer closes: the messages that it has taken were delivered, the others were not.
    sent(Op::send(&[memory.segment(0..8)]).context(4).visible());
    sent(Op::send(&[memory.segment(0..8)]).context(5).visible());
    pair.b.recv(memory.segment(8..16), 0).unwrap();
    pair.b.recv(memory.segment(8..16), 0).unwrap();
    assert_eq!(pair.b_cq.read_one().unwrap().unwrap().len(), 8);
    assert_eq!(pair.b_cq.read_one().unwrap().unwrap().len(), 8);
    pair.b.close().unwrap();
    assert!(pair.a_cq.read_one().unwrap().unwrap().ok().is_ok());
    let lost = pair.a_cq.read_one().unwrap().unwrap().error().unwrap();
    assert_eq!((lost.context, lost.errno.0), (5, libc::ECANCELED));
}

#[test]
fn retired_region_is_used_by_no_ring() {
    const LEN: usize = 20_000;
    let (_, device) = device();
    let pair = pair_with(&device, true, true);
    let memory = region(&pair.domain, LEN);
    let (from, to) = (region(&pair.domain, 100_000), region(&pair.domain, LEN));
    let watch = Arc::downgrade(to.inner());
    pair.b.recv(to.all(), 0).unwrap();
    pair.b.recv(memory.all(), 1).unwrap();
    pair.b.recv(to.all(), 2).unwrap();
    to.retire().unwrap();
    assert!(watch.upgrade().is_none());
    for context in [0, 2] {
        let error = pair.b_cq.read_one().unwrap().unwrap().error().unwrap();
        assert_eq!((error.context, error.errno.0), (context, libc::ECANCELED));
    }
    pair.a.inject(b"first").unwrap();
    assert_eq!(pair.b_cq.read_one().unwrap().unwrap().context(), 1);
    // Messages that wait for space.
    from.fill(0, 100_000, 5);
    let watch = Arc::downgrade(from.inner());
    for i in 0..5 {
        pair.a.send(from.segment(0..LEN), i).unwrap();
    }
    pair.a.send(from.all(), 5).unwrap();
    from.retire().unwrap();
    assert!(watch.upgrade().is_none());
    let big = region(&pair.domain, 100_000);
    for context in 3..9 {
        pair.b.recv(big.all(), context).unwrap();
    }
    let mut came = Vec::new();
    while came.len() < 6 {
        came.extend(
            pair.b_cq
                .read_one()
                .unwrap()
                .map(|done| done.ok().unwrap().len()),
        );
        let _ = pair.a_cq.read_one().unwrap();
    }
    assert_eq!(came, [20_000, 20_000, 20_000, 20_000, 20_000, 100_000]);
    assert_eq!(big.to_vec(99_992, 8), [5; 8]);
}

#[test]
fn message_longer_than_its_receive_ends_the_connection() {
    let (_, device) = device();
    let pair = pair_with(&device, true, true);
    let memory = region(&pair.domain, 1 << 20);
    pair.b.recv(memory.segment(0..100), 1).unwrap();
    pair.b.recv(memory.segment(0..100), 2).unwrap();
    pair.a.send(memory.all(), 3).unwrap();
    pair.a.send(memory.segment(0..1), 4).unwrap();
    let errors = |cq: &CompletionQueue| {
        let read = || cq.read_one().unwrap();
        let error = |done: Completion| done.error().map(|e| (e.context, e.errno.0)).unwrap();
        std::iter::from_fn(read).map(error).collect::<Vec<_>>()
    };
    assert_eq!(
        errors(&pair.b_cq),
        [(1, libc::EMSGSIZE), (2, libc::ECANCELED)]
    );
    assert_eq!(
        errors(&pair.a_cq),
        [(3, libc::EREMOTEIO), (4, libc::ECANCELED)]
    );
    let late = pair.b.recv(memory.segment(0..1), 5).unwrap_err();
    assert_eq!(late.errno(), Some(Errno(libc::ENOTCONN)));
    let late = pair.a.inject(b"late").unwrap_err();
    assert_eq!(late.errno(), Some(Errno(libc::ENOTCONN)));
}

#[test]
fn receive_with_bad_arguments_fails_as_in_the_kernel() {
    let (_, device) = device();
    let pair = pair_with(&device, true, true);
    let memory = Memory::anonymous(4096).unwrap();
    let sends = pair.domain.register(memory, Access::SEND).unwrap();
    let errno = |result: Result<()>| result.unwrap_err().errno().map(|e| e.0);
    assert_eq!(errno(pair.a.recv(sends.all(), 1)), Some(libc::EACCES));
    let memory = region(&pair.domain, 4096);
    let beyond = memory.segment(4000..5000);
    assert_eq!(errno(pair.a.recv(beyond, 1)), Some(libc::EINVAL));
    let flagged = Op::recv(&[memory.all()]).data(1);
    assert_eq!(errno(pair.a.post(&flagged)), Some(libc::EINVAL));
    for i in 0..64 {
        pair.a.recv(memory.segment(0..1), i).unwrap();
    }
    // All 64 entries of the queue are reserved.
    assert_eq!(
        errno(pair.a.recv(memory.segment(0..1), 64)),
        Some(libc::EAGAIN)
    );
    pair.a.cancel(5).unwrap();
    assert_eq!(errno(pair.a.cancel(5)), Some(libc::ENOENT));
    assert!(pair.a_cq.read_one().unwrap().unwrap().error().is_some());
    pair.a.recv(memory.segment(0..1), 64).unwrap();
    let kept = memory.close().unwrap_err();
    assert_eq!(kept.error.errno(), Some(Errno::EBUSY));
    drop(pair.a);
    let mut ended = 0;
    while let Some(done) = pair.a_cq.read_one().unwrap() {
        assert_eq!(done.error().unwrap().errno, Errno::ECANCELED);
        ended += 1;
    }
    assert_eq!(ended, 64);
    kept.object.close().unwrap();
}

#[test]
fn endpoint_whose_ring_query_fails_cancels_its_receives() {
    let (fake, device) = device();
    let mut kept = None;
    let pair = pair_when(&device, true, true, |domain, a| {
        let memory = region(domain, 64);
        a.recv(memory.all(), 1).unwrap();
        // A write with data is refused, too: it does not go to the kernel.
        let to = RemoteMem { addr: 0, key: 1 };
        let early = a.writedata(memory.all(), to, 7, 2).unwrap_err();
        assert_eq!(early.errno(), Some(Errno(libc::ENOTCONN)));
        assert_eq!(calls(&fake, abi::KFI_IOC_SUBMIT), 0);
        kept = Some(memory);
        fake.0.lock().unwrap().fail = Some((abi::KFI_IOC_EP_RINGS, Errno(libc::EMFILE)));
    });
    assert_eq!(calls(&fake, abi::KFI_IOC_SHUTDOWN), 1);
    assert_eq!(pair.a.has_rings(), Some(false));
    let done = pair.a_cq.read_one().unwrap().unwrap().error().unwrap();
    assert_eq!((done.context, done.errno), (1, Errno::ECANCELED));
    let late = pair.a.inject(b"late").unwrap_err();
    assert_eq!(late.errno(), Some(Errno(libc::ENOTCONN)));
}

#[test]
fn receives_refused_by_the_kernel_with_eagain_are_kept() {
    let (fake, device) = device();
    let mut kept = None;
    let pair = pair_when(&device, true, false, |domain, a| {
        let memory = region(domain, 3 * 64);
        for i in 0..3 {
            a.recv(memory.segment(i * 64..i * 64 + 64), i as u64)
                .unwrap();
        }
        kept = Some(memory);
        fake.0.lock().unwrap().fail = Some((abi::KFI_IOC_SUBMIT, Errno::EAGAIN));
    });
    assert_eq!(pair.a_cq.read_one().unwrap(), None);
    // Four calls for three receives: the first call was refused once.
    assert_eq!(calls(&fake, abi::KFI_IOC_SUBMIT), 4);
    assert_eq!(pair.a.has_rings(), Some(false));
    for i in 0..3u8 {
        pair.b.inject(&[i; 5]).unwrap();
        let came = pair.a_cq.read_one().unwrap().unwrap().ok().unwrap();
        assert_eq!(came.context(), u64::from(i));
        let memory = kept.as_ref().unwrap();
        assert_eq!(memory.to_vec(usize::from(i) * 64, 5), [i; 5]);
    }
}

#[test]
fn read_without_wait_leaves_the_alarm_to_the_waiter() {
    let (_, device) = device();
    let pair = pair_with(&device, true, true);
    let memory = region(&pair.domain, 4096);
    for i in 0..2 {
        pair.b.recv(memory.segment(0..64), i).unwrap();
    }
    assert!(pair.b_cq.try_wait());
    let ring = &pair.b_cq.inner.ring;
    assert!(!ring.alarm());
    pair.a.inject(b"one").unwrap();
    assert!(ring.alarm());
    // Read as if by another thread.
    assert!(pair.b_cq.read_one().unwrap().is_some());
    pair.a.inject(b"two").unwrap();
    assert!(ring.alarm(), "it sleeps over the second");
    assert!(!pair.b_cq.try_wait());
    // Another thread may still wait for the descriptor: the next message wakes it.
    assert!(!ring.alarm());
    assert!(pair.b_cq.read_one().unwrap().is_some());
    pair.b.recv(memory.segment(0..64), 2).unwrap();
    pair.a.inject(b"three").unwrap();
    assert!(ring.alarm(), "it sleeps over the third");
    assert!(pair.b_cq.read_one().unwrap().is_some());
}

#[test]
fn pending_message_with_a_sleeping_sender_sets_the_sleep_flag() {
    let (_, device) = device();
    let pair = pair_with(&device, true, true);
    let memory = region(&pair.domain, 1 << 20);
    assert!(pair.a_cq.try_wait());
    // Sent as if by another thread.
    pair.a.send(memory.segment(0..1 << 19), 1).unwrap();
    assert!(!pair.a_cq.inner.ring.alarm());
    pair.b.recv(memory.segment(1 << 19..1 << 20), 2).unwrap();
    assert!(pair.b_cq.read_one().unwrap().is_none());
    assert!(pair.a_cq.inner.ring.alarm(), "it sleeps beside the room");
}

/// One thread at each end sleeps in the queue. Another posts, reads now and then, and goes on when
/// a whole round has completed, with entries read by either thread.
#[test]
fn sleeping_and_working_threads_read_every_completion() {
    const ROUNDS: u64 = 400;
    const LONG: usize = 150_000;
    let (_, device) = device();
    let pair = pair_with(&device, true, true);
    let memory = region(&pair.domain, 4 * LONG);
    let side = |ep: &Endpoint, cq: &CompletionQueue, at: usize, seed: u64| {
        let seen = AtomicU64::new(0);
        let take = |done: Option<Completion>| {
            if let Some(done) = done {
                done.ok().unwrap();
                seen.fetch_add(1, Ordering::SeqCst);
            }
        };
        std::thread::scope(|s| {
            s.spawn(|| {
                while seen.load(Ordering::SeqCst) < 2 * ROUNDS {
                    take(Some(cq.wait(4 * SOON).unwrap()));
                }
            });
            let mut random = seed;
            let mut pause = || {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                std::thread::sleep(Duration::from_micros(random >> 33 & 127));
                random >> 40
            };
            for round in 1..=ROUNDS {
                ep.recv(memory.segment(at..at + LONG), round).unwrap();
                let len = if pause() % 3 == 0 { LONG } else { 8 };
                ep.send(memory.segment(at + LONG..at + LONG + len), round)
                    .unwrap();
                let reads = if round == ROUNDS { 0 } else { pause() % 3 };
                for _ in 0..reads {
                    take(cq.read_one().unwrap());
                    pause();
                }
                let begin = std::time::Instant::now();
                while seen.load(Ordering::SeqCst) < 2 * round {
                    assert!(begin.elapsed() < 2 * SOON, "round {round} is slept over");
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        });
    };
    std::thread::scope(|s| {
        s.spawn(|| side(&pair.a, &pair.a_cq, 0, 1));
        s.spawn(|| side(&pair.b, &pair.b_cq, 2 * LONG, 2));
    });
}
