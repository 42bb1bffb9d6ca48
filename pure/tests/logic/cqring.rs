// SPDX-License-Identifier: GPL-2.0 OR MIT
use std::{
    cell::{Cell, RefCell},
    sync::{
        atomic::{AtomicU32, AtomicU64, Ordering},
        Arc, Mutex,
    },
    thread,
};

use kfabric_pure::cqring::{valid_capacity, Account, Corrupt, Full, Reader, RingMemory};
use proptest::prelude::*;

/// A ring that one thread uses.
struct Ring {
    head: Cell<u32>,
    tail: Cell<u32>,
    entries: RefCell<Vec<u32>>,
}

impl Ring {
    fn new(entries: u32, start: u32) -> Box<Self> {
        Box::new(Self {
            head: Cell::new(start),
            tail: Cell::new(start),
            entries: RefCell::new(vec![0; entries as usize]),
        })
    }

    /// Writes one entry, as the kernel does.
    fn push(&self, account: &Account, value: u32) {
        self.entries.borrow_mut()[account.slot() as usize] = value;
        self.head.set(account.advance());
    }
}

impl RingMemory for Ring {
    type Entry = u32;

    fn load_head(&self) -> u32 {
        self.head.get()
    }

    fn load_tail(&self) -> u32 {
        self.tail.get()
    }

    fn store_tail(&self, tail: u32) {
        self.tail.set(tail);
    }

    fn entry(&self, index: u32) -> u32 {
        self.entries.borrow()[index as usize]
    }
}

#[test]
fn capacities() {
    for (entries, valid) in [
        (0, false),
        (1, true),
        (2, true),
        (3, false),
        (1 << 31, true),
        (u32::MAX, false),
    ] {
        assert_eq!(valid_capacity(entries), valid);
        assert_eq!(Account::new(entries).is_some(), valid);
        if entries <= 4 {
            assert_eq!(Reader::new(&*Ring::new(4, 0), entries).is_some(), valid);
        }
    }
}

#[test]
fn full_until_read() {
    let account = Account::new(2).unwrap();
    let ring = Ring::new(2, 0);
    let mut reader = Reader::new(&*ring, 2).unwrap();
    assert_eq!(account.capacity(), 2);
    assert_eq!(account.reserve(0), Ok(()));
    assert_eq!(account.reserve(0), Ok(()));
    assert_eq!(account.reserve(0), Err(Full));
    assert_eq!(account.outstanding(), 2);
    ring.push(&account, 1);
    ring.push(&account, 2);
    assert_eq!(account.outstanding(), 0);
    assert_eq!(account.unread(ring.tail.get()), Some(2));
    assert_eq!(account.reserve(ring.tail.get()), Err(Full));
    assert_eq!(reader.available(), Ok(2));
    assert_eq!(reader.read(), Ok(Some(1)));
    assert_eq!(account.reserve(ring.tail.get()), Ok(()));
    assert_eq!(account.reserve(ring.tail.get()), Err(Full));
    assert_eq!(reader.read(), Ok(Some(2)));
    assert_eq!(reader.read(), Ok(None));
    assert_eq!(account.unread(ring.tail.get()), Some(0));
}

#[test]
fn a_depth_is_rounded_up() {
    let capacity = |depth| Account::at_least(depth).map(|account| account.capacity());
    assert_eq!(capacity(0), Some(1));
    assert_eq!(capacity(1), Some(1));
    assert_eq!(capacity(3), Some(4));
    assert_eq!(capacity(1 << 31), Some(1 << 31));
    assert_eq!(capacity((1 << 31) + 1), None);
}

#[test]
fn promises_can_be_given_back() {
    let account = Account::new(1).unwrap();
    account.reserve(0).unwrap();
    assert_eq!(account.reserve(0), Err(Full));
    account.unreserve();
    account.reserve(0).unwrap();
    assert_eq!(account.advance(), 1);
    assert_eq!(account.reserve(0), Err(Full));
    assert_eq!(account.reserve(1), Ok(()));
}

#[test]
fn all_or_none() {
    let account = Account::new(4).unwrap();
    assert_eq!(account.reserve_many(0, 5), Err(Full));
    assert_eq!(account.reserve_many(0, u32::MAX), Err(Full));
    assert_eq!(account.reserve_many(0, 3), Ok(()));
    assert_eq!(account.reserve_many(0, 2), Err(Full));
    assert_eq!(account.reserve_many(0, 0), Ok(()));
    assert_eq!(account.reserve_many(0, 1), Ok(()));
    assert_eq!(account.outstanding(), 4);
}

#[test]
fn the_largest_ring() {
    let account = Account::starting_at(1 << 31, u32::MAX).unwrap();
    assert_eq!(account.reserve_many(u32::MAX, 1 << 31), Ok(()));
    assert_eq!(account.reserve(u32::MAX), Err(Full));
    assert_eq!(account.outstanding(), 1 << 31);
}

#[test]
fn a_head_nobody_wrote_is_seen() {
    let ring = Ring::new(4, 10);
    let mut reader = Reader::new(&*ring, 4).unwrap();
    ring.head.set(15);
    assert_eq!(reader.read(), Err(Corrupt));
    ring.head.set(9);
    assert_eq!(reader.available(), Err(Corrupt));
    assert_eq!(ring.tail.get(), 10);
}

#[test]
fn reading_a_batch_makes_room_once() {
    let account = Account::new(8).unwrap();
    let ring = Ring::new(8, 0);
    let mut reader = Reader::new(&*ring, 8).unwrap();
    for value in 0..5 {
        account.reserve(0).unwrap();
        ring.push(&account, value);
    }
    let mut got = vec![];
    assert_eq!(reader.read_with(3, |entry| got.push(entry)), Ok(3));
    assert_eq!(ring.tail.get(), 3);
    assert_eq!(reader.read_with(0, |_| ()), Ok(0));
    assert_eq!(reader.read_with(u32::MAX, |entry| got.push(entry)), Ok(2));
    assert_eq!(got, [0, 1, 2, 3, 4]);
    assert_eq!(reader.memory().tail.get(), 5);
}

fn starts() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), (u32::MAX - 20)..=u32::MAX, any::<u32>()]
}

proptest! {
    #![proptest_config(crate::config())]

    /// An honest program is refused only if the ring is full. Each entry is read exactly once and
    /// in order, also across the wrap of the counters.
    #[test]
    fn honest_program(
        log in 0..4u32,
        start in starts(),
        steps in prop::collection::vec(0..5u8, 0..crate::STEPS),
    ) {
        let capacity = 1 << log;
        let account = Account::starting_at(capacity, start).unwrap();
        let ring = Ring::new(capacity, start);
        let mut reader = Reader::new(&*ring, capacity).unwrap();
        let (mut promised, mut written, mut read) = (0u32, 0u32, 0u32);
        for step in steps {
            match step {
                0 | 1 => {
                    let room = promised + (written - read) < capacity;
                    let result = account.reserve(ring.tail.get());
                    prop_assert_eq!(result.is_ok(), room);
                    promised += u32::from(room);
                }
                2 if promised > 0 => {
                    account.unreserve();
                    promised -= 1;
                }
                3 if promised > 0 => {
                    ring.push(&account, written);
                    promised -= 1;
                    written += 1;
                }
                _ => match reader.read().unwrap() {
                    Some(entry) => {
                        prop_assert_eq!(entry, read);
                        read += 1;
                    }
                    None => prop_assert_eq!(read, written),
                },
            }
            prop_assert_eq!(account.outstanding(), promised);
            prop_assert_eq!(account.unread(ring.tail.get()), Some(written - read));
        }
    }

    /// A program stores any tail: the kernel never reserves more than the ring holds, writes only
    /// within the ring, and keeps every reservation.
    #[test]
    fn hostile_tail(
        log in 0..4u32,
        start in starts(),
        steps in prop::collection::vec((0..4u8, prop_oneof![any::<u32>(), 0..40u32, Just(u32::MAX)]), 0..crate::STEPS),
    ) {
        let capacity = 1u32 << log;
        let account = Account::starting_at(capacity, start).unwrap();
        let mut promised = 0u32;
        for (step, lie) in steps {
            // Wrong tails near the right one, and arbitrary ones.
            let tail = if lie < 40 {
                account.head().wrapping_add(lie).wrapping_sub(20)
            } else {
                lie
            };
            match step {
                0 | 1 => {
                    let result = account.reserve(tail);
                    let behind = account.head().wrapping_sub(tail);
                    if behind > capacity {
                        prop_assert_eq!(result, Err(Full));
                    }
                    promised += u32::from(result.is_ok());
                }
                2 if promised > 0 => {
                    prop_assert!(account.slot() < capacity);
                    account.advance();
                    promised -= 1;
                }
                _ if promised > 0 => {
                    account.unreserve();
                    promised -= 1;
                }
                _ => {}
            }
            prop_assert!(promised <= capacity);
            prop_assert_eq!(account.outstanding(), promised);
            let unread = account.unread(tail);
            prop_assert!(unread.is_none_or(|unread| unread <= capacity));
        }
    }
}

/// A ring that threads share, as shared memory would be.
struct Shared {
    head: AtomicU32,
    tail: AtomicU32,
    entries: Vec<AtomicU64>,
}

impl RingMemory for Shared {
    type Entry = u64;

    fn load_head(&self) -> u32 {
        self.head.load(Ordering::Acquire)
    }

    fn load_tail(&self) -> u32 {
        self.tail.load(Ordering::Relaxed)
    }

    fn store_tail(&self, tail: u32) {
        self.tail.store(tail, Ordering::Release);
    }

    fn entry(&self, index: u32) -> u64 {
        self.entries[index as usize].load(Ordering::Relaxed)
    }
}

/// Producers retry when the ring is full; one reader reads. Every completion arrives once, those of
/// each producer in order (P9), while the counters wrap.
#[test]
fn many_producers_one_reader() {
    const PRODUCERS: u64 = 3;
    const EACH: u64 = if cfg!(miri) { 20 } else { 20_000 };
    const ENTRIES: u32 = 8;
    let start = u32::MAX - 10;
    let shared = Arc::new(Shared {
        head: AtomicU32::new(start),
        tail: AtomicU32::new(start),
        entries: (0..ENTRIES).map(|_| AtomicU64::new(u64::MAX)).collect(),
    });
    let account = Arc::new(Account::starting_at(ENTRIES, start).unwrap());
    let lock = Arc::new(Mutex::new(()));
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let (shared, account, lock) = (shared.clone(), account.clone(), lock.clone());
            thread::spawn(move || {
                for count in 0..EACH {
                    while account
                        .reserve(shared.tail.load(Ordering::Acquire))
                        .is_err()
                    {
                        thread::yield_now();
                    }
                    if count % 7 == 3 {
                        // The operation was refused, so the reservation is returned; then the
                        // producer tries again.
                        account.unreserve();
                        while account
                            .reserve(shared.tail.load(Ordering::Acquire))
                            .is_err()
                        {
                            thread::yield_now();
                        }
                    }
                    let _guard = lock.lock().unwrap();
                    let entry = &shared.entries[account.slot() as usize];
                    entry.store(producer << 32 | count, Ordering::Relaxed);
                    shared.head.store(account.advance(), Ordering::Release);
                }
            })
        })
        .collect();
    let mut reader = Reader::new(&*shared, ENTRIES).unwrap();
    let mut next = [0; PRODUCERS as usize];
    let mut got = 0;
    while got < PRODUCERS * EACH {
        match reader.read().unwrap() {
            Some(entry) => {
                let producer = (entry >> 32) as usize;
                assert_eq!(entry & 0xffff_ffff, next[producer]);
                next[producer] += 1;
                got += 1;
            }
            None => thread::yield_now(),
        }
    }
    for producer in producers {
        producer.join().unwrap();
    }
    assert_eq!(reader.read(), Ok(None));
    assert_eq!(account.outstanding(), 0);
}
