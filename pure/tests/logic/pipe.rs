// SPDX-License-Identifier: GPL-2.0 OR MIT
use std::cell::{Cell, RefCell};

use kfabric_pure::pipe::{valid_size, End, Lie, Memory, Piece, Receiver, Sender};
use proptest::prelude::*;

use crate::STEPS;

const SIZE: u32 = 1024;

/// The shared memory, which a test may overwrite.
struct Shared {
    tail: Cell<u32>,
    head: Cell<u32>,
    asleep: [Cell<bool>; 2],
    data: RefCell<Vec<u8>>,
}

impl Shared {
    fn new(start: u32) -> Self {
        Self {
            tail: Cell::new(start),
            head: Cell::new(start),
            asleep: Default::default(),
            data: RefCell::new(vec![0xff; SIZE as usize]),
        }
    }

    fn asleep(&self, who: End) -> &Cell<bool> {
        &self.asleep[usize::from(who == End::Sender)]
    }
}

impl Memory for Shared {
    fn load_tail(&self) -> u32 {
        self.tail.get()
    }

    fn store_tail(&self, tail: u32) {
        self.tail.set(tail);
    }

    fn load_head(&self) -> u32 {
        self.head.get()
    }

    fn store_head(&self, head: u32) {
        self.head.set(head);
    }

    fn asleep(&self, who: End) -> bool {
        self.asleep(who).get()
    }

    fn set_asleep(&self, who: End, sleeps: bool) -> bool {
        self.asleep(who).replace(sleeps)
    }

    fn fence(&self) {}

    fn word(&self, at: u32) -> u64 {
        let at = at as usize;
        u64::from_ne_bytes(self.data.borrow()[at..at + 8].try_into().unwrap())
    }

    fn set_word(&self, at: u32, value: u64) {
        let at = at as usize;
        self.data.borrow_mut()[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
}

/// A message of the tests.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    bytes: Vec<u8>,
    data: Option<u32>,
    written: Option<u64>,
}

fn message() -> impl Strategy<Value = Message> {
    let bytes = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..40),
        1 => prop::collection::vec(any::<u8>(), 0..4000),
    ];
    prop_oneof![
        5 => (bytes, any::<Option<u32>>()).prop_map(|(bytes, data)| Message {
            bytes,
            data,
            written: None,
        }),
        1 => (any::<u32>(), any::<u64>()).prop_map(|(data, len)| Message {
            bytes: Vec::new(),
            data: Some(data),
            written: Some(len),
        }),
    ]
}

/// Puts one piece of a message into the ring. Returns the length put so far.
fn put(shared: &Shared, sender: &mut Sender, message: &Message, done: usize) -> Option<usize> {
    let left = message.bytes.len() - done;
    let len = sender.room(shared, left as u64).unwrap()?;
    let piece = Piece {
        total: message.written.unwrap_or(message.bytes.len() as u64),
        at: done as u64,
        len,
        data: message.data,
        written: message.written.is_some(),
    };
    sender.put(shared, &piece, |at, from, n| {
        let from = &message.bytes[done + from as usize..][..n as usize];
        shared.data.borrow_mut()[at as usize..][..n as usize].copy_from_slice(from);
    });
    Some(done + len as usize)
}

/// Takes one piece out of the ring.
fn take(shared: &Shared, receiver: &mut Receiver, to: &mut Vec<u8>) -> Result<Option<Piece>, Lie> {
    let Some(piece) = receiver.peek(shared)? else {
        return Ok(None);
    };
    assert_eq!(receiver.has_begun(), !piece.is_first());
    assert!(piece.written || piece.at + u64::from(piece.len) <= piece.total);
    let mut came = vec![0; piece.len as usize];
    receiver.take(shared, &piece, |at, from, n| {
        let (at, from, n) = (at as usize, from as usize, n as usize);
        came[from..from + n].copy_from_slice(&shared.data.borrow()[at..at + n]);
    });
    to.extend(came);
    Ok(Some(piece))
}

#[test]
fn sizes() {
    assert!(valid_size(256) && valid_size(64 << 10));
    assert!(!valid_size(0) && !valid_size(128) && !valid_size(1000) && !valid_size(1 << 31));
    assert!(Sender::new(100).is_none() && Receiver::new(100).is_none());
}

#[test]
fn a_message_that_is_too_long_waits_for_room() {
    let shared = Shared::new(0);
    let (mut sender, mut receiver) = (Sender::new(SIZE).unwrap(), Receiver::new(SIZE).unwrap());
    let long = Message {
        bytes: (0..3000u32).map(|i| i as u8).collect(),
        data: Some(7),
        written: None,
    };
    let (mut done, mut came, mut waits) = (0, Vec::new(), 0);
    while done < long.bytes.len() {
        match put(&shared, &mut sender, &long, done) {
            Some(now) => done = now,
            None => {
                waits += 1;
                sender.sleep(&shared);
                assert!(take(&shared, &mut receiver, &mut came).unwrap().is_some());
                assert!(receiver.wakes(&shared));
                assert!(!receiver.wakes(&shared), "it is woken once");
            }
        }
    }
    while take(&shared, &mut receiver, &mut came).unwrap().is_some() {}
    assert!(waits > 5, "{waits}");
    assert!(!receiver.has_some(&shared) && !receiver.has_begun());
    assert_eq!(came, long.bytes);
}

#[test]
fn mark_is_taken_when_the_receiver_has_passed_it() {
    let shared = Shared::new(0);
    let (mut sender, mut receiver) = (Sender::new(SIZE).unwrap(), Receiver::new(SIZE).unwrap());
    let message = Message {
        bytes: vec![7; 20],
        data: None,
        written: None,
    };
    put(&shared, &mut sender, &message, 0).unwrap();
    let first = sender.mark();
    put(&shared, &mut sender, &message, 0).unwrap();
    let second = sender.mark();
    assert_eq!(sender.taken(&shared, first), Ok(false));
    take(&shared, &mut receiver, &mut Vec::new()).unwrap();
    assert_eq!(sender.taken(&shared, first), Ok(true));
    assert_eq!(sender.taken(&shared, second), Ok(false));
    take(&shared, &mut receiver, &mut Vec::new()).unwrap();
    assert_eq!(sender.taken(&shared, second), Ok(true));
    shared.store_head(second.wrapping_add(8));
    assert_eq!(sender.taken(&shared, second), Err(Lie));
}

#[test]
fn what_comes_after_the_end_does_not() {
    let shared = Shared::new(0);
    let (mut sender, mut receiver) = (Sender::new(SIZE).unwrap(), Receiver::new(SIZE).unwrap());
    let message = Message {
        bytes: vec![7; 20],
        data: None,
        written: None,
    };
    let mut came = Vec::new();
    put(&shared, &mut sender, &message, 0).unwrap();
    put(&shared, &mut sender, &message, 0).unwrap();
    receiver.finish(&shared);
    for there in [true, true, false, false] {
        // A process that still maps the memory may go on writing.
        put(&shared, &mut sender, &message, 0).unwrap();
        receiver.finish(&shared);
        assert_eq!(receiver.has_some(&shared), there);
        let piece = take(&shared, &mut receiver, &mut came).unwrap();
        assert_eq!(piece.is_some(), there);
    }
    assert_eq!(came.len(), 40);
}

#[test]
fn what_is_no_head_ends_it() {
    let piece = |words: [u64; 3], tail: u32| {
        let shared = Shared::new(0);
        for (i, word) in (0..).step_by(8).zip(words) {
            shared.set_word(i, word);
        }
        shared.store_tail(tail);
        Receiver::new(SIZE).unwrap().peek(&shared)
    };
    const FIRST: u64 = 1 << 32;
    let good = piece([FIRST | 8, 8, 0], 32).unwrap().unwrap();
    assert!(good.is_first() && good.is_last());
    for (words, tail) in [
        // Longer than the bytes in the ring, by either counter.
        ([FIRST | 8, 8, 0], 31),
        ([FIRST | 16, 16, 0], 32),
        ([FIRST | 8, 8, 0], SIZE + 1),
        ([FIRST | 8, 8, 0], u32::MAX),
        ([FIRST | 8, 8, 0], 8),
        ([FIRST | u64::from(u32::MAX), u64::MAX, 0], SIZE),
        // Longer than its message; a message that makes no progress; one that has not begun.
        ([FIRST | 8, 7, 0], 32),
        ([FIRST, 8, 0], 24),
        ([8, 8, 0], 32),
        // An unknown flag; invalid completion data; a note with bytes.
        ([8 << 32 | FIRST | 8, 8, 0], 32),
        ([3 << 32 | 8, 8, 1 << 32], 32),
        ([5 << 32 | 8, 8, 0], 32),
        ([4 << 32, 8, 0], 24),
    ] {
        assert_eq!(piece(words, tail), Err(Lie), "{words:?} {tail}");
    }
}

proptest! {
    #![proptest_config(crate::config())]

    /// Messages come out as they went in, for any schedule of the two ends and any start of the
    /// counters.
    #[test]
    fn all_comes_out_in_order(
        messages in prop::collection::vec(message(), 0..20),
        turns in prop::collection::vec(any::<bool>(), STEPS),
        start in any::<u32>(),
    ) {
        let start = start & !7;
        let shared = Shared::new(start);
        let mut sender = Sender::starting_at(SIZE, start).unwrap();
        let mut receiver = Receiver::starting_at(SIZE, start).unwrap();
        let mut turns = turns.into_iter().chain(std::iter::repeat([true, false]).flatten());
        let (mut next, mut done, mut came, mut out) = (0, 0, Vec::new(), Vec::new());
        let mut put_any = false;
        while out.len() < messages.len() {
            if turns.next() == Some(true) {
                if let Some(message) = messages.get(next) {
                    if let Some(now) = put(&shared, &mut sender, message, done) {
                        put_any = true;
                        (next, done) = match now == message.bytes.len() {
                            true => (next + 1, 0),
                            false => (next, now),
                        };
                    }
                }
                continue;
            }
            let Some(piece) = take(&shared, &mut receiver, &mut came).unwrap() else {
                continue;
            };
            prop_assert!(put_any);
            prop_assert_eq!(piece.data, messages[out.len()].data);
            if piece.is_last() {
                let expected = messages[out.len()].clone();
                prop_assert_eq!(piece.written.then_some(piece.total), expected.written);
                out.push(std::mem::take(&mut came));
                prop_assert_eq!(out.last(), Some(&expected.bytes));
            }
        }
    }

    /// For any writes of a peer, a receiver stays within the ring and within messages, and
    /// terminates.
    #[test]
    fn scribbles_do_no_more_than_end_it(
        seed in prop::collection::vec(any::<u8>(), SIZE as usize),
        steps in prop::collection::vec((any::<u32>(), 0..SIZE / 8, any::<u64>(), 0..5u8), STEPS),
    ) {
        let shared = Shared::new(0);
        shared.data.replace(seed);
        let mut receiver = Receiver::new(SIZE).unwrap();
        let mut sender = Sender::new(SIZE).unwrap();
        let honest = Message { bytes: vec![1; 100], data: None, written: None };
        let mut came = Vec::new();
        for (counter, at, word, what) in steps {
            match what {
                0 => shared.store_tail(counter),
                1 => shared.store_tail(receiver_like(&shared, counter)),
                2 => shared.set_word(at * 8, word),
                // Heads that are almost valid.
                3 => shared.set_word(at * 8, word & 0x7_0000_00ff),
                _ => shared.store_head(counter),
            }
            came.clear();
            match take(&shared, &mut receiver, &mut came) {
                Ok(Some(piece)) => prop_assert!(piece.len as usize == came.len()),
                Ok(None) => {}
                Err(Lie) => receiver = Receiver::starting_at(SIZE, shared.load_head() & !7).unwrap(),
            }
            if let Ok(Some(len)) = sender.room(&shared, honest.bytes.len() as u64) {
                prop_assert!(len == 100);
            }
        }
    }
}

/// Returns a tail near the head.
fn receiver_like(shared: &Shared, by: u32) -> u32 {
    shared.load_head().wrapping_add(by % (SIZE + 64))
}
