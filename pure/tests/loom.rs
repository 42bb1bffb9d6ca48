// SPDX-License-Identifier: GPL-2.0 OR MIT
//! loom runs every interleaving and every permitted reordering of the lock-free parts.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kfabric-pure --test loom --release`

#![cfg(loom)]

use kfabric_pure::{
    cqring::{Account, Reader, RingMemory},
    gate::Gate,
    hold::{Held, Released, Taken, Waiting},
    pipe::{End, Memory, Piece, Receiver, Sender},
    slot::Slot,
};
use loom::{
    cell::UnsafeCell,
    sync::{
        atomic::{fence, AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
        Arc, Mutex,
    },
    thread,
};

/// Data that only users inside the gate may access. loom reports an unordered access.
struct Guarded {
    gate: Gate,
    lasts: AtomicUsize,
    data: UnsafeCell<u32>,
}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            gate: Gate::new(),
            lasts: AtomicUsize::new(0),
            data: UnsafeCell::new(1),
        })
    }

    fn use_it(&self) {
        if self.gate.enter() {
            // SAFETY: Shared access; loom checks that no other thread frees the data meanwhile.
            assert_eq!(self.data.with(|data| unsafe { *data }), 1);
            if self.gate.exit() {
                self.free();
            }
        }
    }

    fn close(&self) {
        let closing = self.gate.close();
        if closing.first && closing.drained {
            self.free();
        }
    }

    fn free(&self) {
        // SAFETY: Exclusive access is the property under test; loom checks it.
        self.data.with_mut(|data| unsafe { *data = 0 });
        // After the access, because these loads have acquire order and would hide a missing one.
        assert!(self.gate.is_drained());
        assert!(!self.gate.enter());
        self.lasts.fetch_add(1, Ordering::Relaxed);
    }
}

/// A child enters while the parent closes: exactly one of them succeeds.
#[test]
fn gate_a_child_or_the_close() {
    loom::model(|| {
        let shared = Guarded::new();
        let child = {
            let shared = shared.clone();
            thread::spawn(move || shared.gate.enter())
        };
        let closed = shared.gate.close_if_idle().is_ok();
        let opened = child.join().unwrap();
        assert!(closed != opened);
        assert_eq!(shared.gate.users(), u32::from(opened));
    });
}

#[test]
fn gate_one_party_sees_the_last_leave() {
    loom::model(|| {
        let shared = Guarded::new();
        let users: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || shared.use_it())
            })
            .collect();
        shared.close();
        for user in users {
            user.join().unwrap();
        }
        assert_eq!(shared.lasts.load(Ordering::Relaxed), 1);
        assert!(shared.gate.is_drained());
    });
}

#[test]
fn gate_two_closers() {
    loom::model(|| {
        let shared = Guarded::new();
        let user = {
            let shared = shared.clone();
            thread::spawn(move || shared.use_it())
        };
        let closer = {
            let shared = shared.clone();
            thread::spawn(move || shared.close())
        };
        shared.close();
        user.join().unwrap();
        closer.join().unwrap();
        assert_eq!(shared.lasts.load(Ordering::Relaxed), 1);
    });
}

/// A closer polls for the drained gate instead of using the result of `exit`.
#[test]
fn gate_a_watched_drain_is_ordered() {
    loom::model(|| {
        let shared = Arc::new((Gate::new(), UnsafeCell::new(1)));
        let user = {
            let shared = shared.clone();
            thread::spawn(move || {
                if shared.0.enter() {
                    // SAFETY: Shared access; loom checks it.
                    assert_eq!(shared.1.with(|data| unsafe { *data }), 1);
                    let _ = shared.0.exit();
                }
            })
        };
        let _ = shared.0.close();
        while !shared.0.is_drained() {
            thread::yield_now();
        }
        // SAFETY: Exclusive access is the property under test; loom checks it.
        shared.1.with_mut(|data| unsafe { *data = 0 });
        user.join().unwrap();
    });
}

#[test]
fn slot_one_of_two_retirers_gets_the_value() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        let generation = slot.publish(Box::new(7)).unwrap();
        let other = {
            let slot = slot.clone();
            thread::spawn(move || slot.retire(generation, thread::yield_now).is_some())
        };
        let reader = {
            let slot = slot.clone();
            thread::spawn(move || {
                if let Some(value) = slot.with(generation, |value| **value) {
                    assert_eq!(value, 7);
                }
            })
        };
        let mine = slot.retire(generation, thread::yield_now).is_some();
        assert!(mine != other.join().unwrap());
        reader.join().unwrap();
        assert!(slot.is_empty());
    });
}

#[test]
fn slot_two_readers_and_a_retirer() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        let generation = slot.publish(Box::new(7)).unwrap();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let slot = slot.clone();
                thread::spawn(move || slot.with(generation, |value| assert_eq!(**value, 7)))
            })
            .collect();
        let value = slot.retire(generation, thread::yield_now).unwrap();
        assert_eq!(*value, 7);
        drop(value);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

/// A stale handle never shows the next value.
#[test]
fn slot_a_stale_handle_while_the_value_changes() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        let old = slot.publish(Box::new(1)).unwrap();
        let stale = {
            let slot = slot.clone();
            thread::spawn(move || {
                if let Some(value) = slot.with(old, |value| **value) {
                    assert_eq!(value, 1);
                }
            })
        };
        assert!(slot.retire(old, thread::yield_now).is_some());
        let new = slot.publish(Box::new(2)).unwrap();
        assert_eq!(slot.with(new, |value| **value), Some(2));
        stale.join().unwrap();
    });
}

/// A lister sees the old value or the new one, whole and with its own generation.
#[test]
fn slot_a_lister_while_the_value_changes() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        let old = slot.publish(Box::new(1)).unwrap();
        let lister = {
            let slot = slot.clone();
            thread::spawn(move || {
                if let Some((generation, value)) =
                    slot.with_current(|generation, value| (generation, **value))
                {
                    assert_eq!(generation, value);
                }
            })
        };
        assert!(slot.retire(old, thread::yield_now).is_some());
        slot.publish(Box::new(2)).unwrap();
        lister.join().unwrap();
    });
}

#[test]
fn slot_one_of_two_publishers_gets_in() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        let other = {
            let slot = slot.clone();
            thread::spawn(move || slot.publish(2).is_ok())
        };
        let mine = slot.publish(1).is_ok();
        let theirs = other.join().unwrap();
        assert!(mine != theirs);
        assert_eq!(slot.with(1, |value| *value), Some(if mine { 1 } else { 2 }));
    });
}

/// A ring in shared memory. loom checks that accesses to an entry are ordered.
struct Ring {
    account: Account,
    lock: Mutex<()>,
    head: AtomicU32,
    tail: AtomicU32,
    entries: Vec<UnsafeCell<u32>>,
}

// SAFETY: loom checks that accesses to `entries` are ordered.
unsafe impl Sync for Ring {}
// SAFETY: It holds plain data.
unsafe impl Send for Ring {}

impl Ring {
    fn new(entries: u32, start: u32) -> Arc<Self> {
        Arc::new(Self {
            account: Account::starting_at(entries, start).unwrap(),
            lock: Mutex::new(()),
            head: AtomicU32::new(start),
            tail: AtomicU32::new(start),
            entries: (0..entries).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    fn reserve(&self) -> bool {
        self.account
            .reserve(self.tail.load(Ordering::Acquire))
            .is_ok()
    }

    fn push(&self, value: u32) {
        let _guard = self.lock.lock().unwrap();
        let entry = &self.entries[self.account.slot() as usize];
        // SAFETY: Exclusive access is the property under test; loom checks it.
        entry.with_mut(|entry| unsafe { *entry = value });
        self.head.store(self.account.advance(), Ordering::Release);
    }
}

impl RingMemory for Ring {
    type Entry = u32;

    fn load_head(&self) -> u32 {
        self.head.load(Ordering::Acquire)
    }

    fn load_tail(&self) -> u32 {
        self.tail.load(Ordering::Relaxed)
    }

    fn store_tail(&self, tail: u32) {
        self.tail.store(tail, Ordering::Release);
    }

    fn entry(&self, index: u32) -> u32 {
        // SAFETY: Shared access; loom checks that no other thread writes meanwhile.
        self.entries[index as usize].with(|entry| unsafe { *entry })
    }
}

/// One producer fills a ring of one entry again and again while the program reads, across the wrap.
#[test]
fn ring_entries_are_read_before_they_are_overwritten() {
    loom::model(|| {
        let ring = Ring::new(1, u32::MAX);
        let producer = {
            let ring = ring.clone();
            thread::spawn(move || {
                for value in 1..=2 {
                    while !ring.reserve() {
                        thread::yield_now();
                    }
                    ring.push(value);
                }
            })
        };
        let mut reader = Reader::new(&*ring, 1).unwrap();
        for expected in 1..=2 {
            loop {
                match reader.read().unwrap() {
                    Some(value) => {
                        assert_eq!(value, expected);
                        break;
                    }
                    None => thread::yield_now(),
                }
            }
        }
        producer.join().unwrap();
        assert_eq!(reader.read(), Ok(None));
    });
}

/// Two producers, of which one may be refused, and a reader: every accepted entry arrives.
#[test]
fn ring_two_producers_lose_nothing() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let ring = Ring::new(2, u32::MAX);
        assert!(ring.reserve());
        ring.push(4);
        let producers: Vec<_> = [1, 2]
            .into_iter()
            .map(|value| {
                let ring = ring.clone();
                thread::spawn(move || {
                    let accepted = ring.reserve();
                    if accepted {
                        ring.push(value);
                    }
                    accepted.then_some(value)
                })
            })
            .collect();
        let mut reader = Reader::new(&*ring, 2).unwrap();
        let mut sum = 0;
        reader.read_with(1, |value| sum += value).unwrap();
        let accepted: u32 = producers
            .into_iter()
            .filter_map(|producer| producer.join().unwrap())
            .sum();
        while let Some(value) = reader.read().unwrap() {
            sum += value;
        }
        assert!(accepted != 0);
        assert_eq!(sum, 4 + accepted);
        assert_eq!(ring.account.outstanding(), 0);
    });
}

/// Two threads reserve and release the only entry of a ring. They never own a reservation at once.
#[test]
fn ring_room_is_never_promised_twice() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let ring = Ring::new(1, 0);
        let holders = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (ring, holders) = (ring.clone(), holders.clone());
                thread::spawn(move || {
                    if ring.reserve() {
                        assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0);
                        holders.fetch_sub(1, Ordering::Relaxed);
                        ring.account.unreserve();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(ring.reserve());
        assert!(!ring.reserve());
    });
}

/// A number whose accesses have one total order. loom gives such an order only to fences.
struct Ordered(AtomicU64);

impl Ordered {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    fn load(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::SeqCst)
    }

    fn swap(&self, value: u64) -> u64 {
        fence(Ordering::SeqCst);
        let old = self.0.swap(value, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        old
    }

    fn store(&self, value: u64) {
        self.0.store(value, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn add(&self) {
        fence(Ordering::SeqCst);
        self.0.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// Deferred operations of one connection, as in kverbs (`Path` and `Holds`).
struct Holding {
    holds: Ordered,
    resumed: Ordered,
    /// The resuming party must call `look`.
    noted: Ordered,
    /// At least one operation is deferred.
    holding: AtomicBool,
    held: Mutex<Held<Box<[Option<Waiting>]>>>,
    /// The released slots, in order.
    gone: Mutex<Vec<u32>>,
}

impl Holding {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            holds: Ordered::new(0),
            resumed: Ordered::new(0),
            noted: Ordered::new(0),
            holding: AtomicBool::new(false),
            held: Mutex::new(Held::new((0..4).map(|_| None).collect())),
            gone: Mutex::new(Vec::new()),
        })
    }

    fn post(&self, slot: u32) {
        let mut held = self.held.lock().unwrap();
        let until = self.holds.load();
        if held.is_empty() && until <= self.resumed.load() {
            return self.gone.lock().unwrap().push(slot);
        }
        held.push(Waiting { slot, until }).unwrap();
        self.holding.store(true, Ordering::SeqCst);
        drop(held);
        self.look();
    }

    fn look(&self) {
        while self.holding.load(Ordering::SeqCst) {
            let mut held = self.held.lock().unwrap();
            let post = |slot| {
                self.gone.lock().unwrap().push(slot);
                Taken::All
            };
            match held.release(1, || self.resumed.load(), || self.noted.store(1), post) {
                Released::All => return self.holding.store(false, Ordering::SeqCst),
                Released::Some => {}
                Released::Later => return,
                Released::Refused(taken) => unreachable!("{taken:?}"),
            }
        }
    }

    fn resume(&self) {
        self.resumed.add();
        if self.noted.swap(0) == 1 {
            self.look();
        }
    }

    fn all_have_gone(&self, slots: &[u32]) {
        assert!(self.held.lock().unwrap().is_empty(), "something stays");
        assert_eq!(*self.gone.lock().unwrap(), slots);
        assert_eq!(self.resumed.load(), self.holds.load());
    }
}

/// One thread posts and another resumes: at least one of them releases the operation.
#[test]
fn hold_nothing_stays_when_it_was_resumed() {
    loom::model(|| {
        let shared = Holding::new();
        shared.holds.add();
        let worker = {
            let shared = shared.clone();
            thread::spawn(move || shared.resume())
        };
        shared.post(0);
        worker.join().unwrap();
        shared.all_have_gone(&[0]);
    });
}

/// Two operations with one hold each, and a worker that resumes both: they are released in order.
#[test]
fn hold_two_holds_one_after_the_other() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Holding::new();
        shared.holds.add();
        let worker = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.resume();
                shared.resume();
            })
        };
        shared.post(0);
        shared.holds.add();
        shared.post(1);
        worker.join().unwrap();
        // The second hold may have begun after the first one ended.
        shared.all_have_gone(&[0, 1]);
    });
}

/// Two threads post on one connection at the same time: each operation is released exactly once.
#[test]
fn hold_two_who_post() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let shared = Holding::new();
        shared.holds.add();
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.post(1))
        };
        let worker = {
            let shared = shared.clone();
            thread::spawn(move || shared.resume())
        };
        shared.post(0);
        other.join().unwrap();
        worker.join().unwrap();
        let mut gone = shared.gone.lock().unwrap().clone();
        gone.sort_unstable();
        *shared.gone.lock().unwrap() = gone;
        shared.all_have_gone(&[0, 1]);
    });
}

/// A ring that two processes share.
struct Piped {
    tail: AtomicU32,
    head: AtomicU32,
    asleep: [AtomicBool; 2],
    words: Vec<AtomicU64>,
}

impl Piped {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            tail: AtomicU32::new(0),
            head: AtomicU32::new(0),
            asleep: [AtomicBool::new(false), AtomicBool::new(false)],
            words: (0..32).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    fn asleep(&self, who: End) -> &AtomicBool {
        &self.asleep[usize::from(who == End::Sender)]
    }
}

impl Memory for Piped {
    fn load_tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    fn store_tail(&self, tail: u32) {
        self.tail.store(tail, Ordering::Release);
    }

    fn load_head(&self) -> u32 {
        self.head.load(Ordering::Acquire)
    }

    fn store_head(&self, head: u32) {
        self.head.store(head, Ordering::Release);
    }

    fn asleep(&self, who: End) -> bool {
        self.asleep(who).load(Ordering::Relaxed)
    }

    fn set_asleep(&self, who: End, sleeps: bool) -> bool {
        self.asleep(who).swap(sleeps, Ordering::AcqRel)
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn word(&self, at: u32) -> u64 {
        self.words[at as usize / 8].load(Ordering::Relaxed)
    }

    fn set_word(&self, at: u32, value: u64) {
        self.words[at as usize / 8].store(value, Ordering::Relaxed);
    }
}

fn note(data: u32) -> Piece {
    Piece {
        total: 5,
        data: Some(data),
        written: true,
        ..Piece::default()
    }
}

/// A receiver that finds nothing and sleeps is woken, and then finds the message.
#[test]
fn pipe_no_message_is_slept_over() {
    loom::model(|| {
        let shared = Piped::new();
        let woken = Arc::new(AtomicBool::new(false));
        let sender = {
            let (shared, woken) = (shared.clone(), woken.clone());
            thread::spawn(move || {
                let mut sender = Sender::new(256).unwrap();
                assert_eq!(sender.room(&*shared, 0), Ok(Some(0)));
                sender.put(&*shared, &note(7), |_, _, _| {});
                if sender.wakes(&*shared) {
                    woken.store(true, Ordering::Release);
                }
            })
        };
        let mut receiver = Receiver::new(256).unwrap();
        let mut came = receiver.peek(&*shared).unwrap();
        if came.is_none() {
            receiver.sleep(&*shared);
            came = receiver.peek(&*shared).unwrap();
        }
        if came.is_none() {
            // If the receiver were not woken, it would sleep for ever.
            while !woken.load(Ordering::Acquire) {
                thread::yield_now();
            }
            came = receiver.peek(&*shared).unwrap();
        }
        assert_eq!(came, Some(note(7)));
        sender.join().unwrap();
    });
}

/// A sender that finds the ring full and sleeps is woken, and then finds space.
#[test]
fn pipe_no_room_is_slept_over() {
    loom::model(|| {
        let shared = Piped::new();
        let mut sender = Sender::new(256).unwrap();
        for data in 0..10 {
            assert_eq!(sender.room(&*shared, 0), Ok(Some(0)));
            sender.put(&*shared, &note(data), |_, _, _| {});
        }
        let woken = Arc::new(AtomicBool::new(false));
        let receiver = {
            let (shared, woken) = (shared.clone(), woken.clone());
            thread::spawn(move || {
                let mut receiver = Receiver::new(256).unwrap();
                let piece = receiver.peek(&*shared).unwrap().unwrap();
                assert_eq!(piece, note(0));
                receiver.take(&*shared, &piece, |_, _, _| {});
                if receiver.wakes(&*shared) {
                    woken.store(true, Ordering::Release);
                }
            })
        };
        let mut room = sender.room(&*shared, 0).unwrap();
        if room.is_none() {
            sender.sleep(&*shared);
            room = sender.room(&*shared, 0).unwrap();
        }
        if room.is_none() {
            while !woken.load(Ordering::Acquire) {
                thread::yield_now();
            }
            room = sender.room(&*shared, 0).unwrap();
        }
        assert_eq!(room, Some(0));
        // The new piece replaces the first one, which was taken.
        sender.put(&*shared, &note(99), |_, _, _| {});
        receiver.join().unwrap();
    });
}
