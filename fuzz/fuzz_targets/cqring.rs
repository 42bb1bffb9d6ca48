// SPDX-License-Identifier: MIT OR Apache-2.0

//! The completion ring with a hostile peer: a wrong tail for the kernel, wrong head and entries for
//! the library's reader.
//!
//! Input: the ring's size and the start of its counters, then steps.

#![no_main]

use kfabric_pure::cqring::{Account, Reader, RingMemory};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use std::cell::Cell;

fuzz_target!(|input: &[u8]| {
    let mut input = Unstructured::new(input);
    let _ = kernel(&mut input);
    let _ = reader(&mut input);
});

/// The memory that the program sees. Any party may have written any of it.
struct Shared {
    head: Cell<u32>,
    tail: Cell<u32>,
    entries: u32,
    asked: Cell<u32>,
}

impl RingMemory for Shared {
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
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        self.asked.set(self.asked.get() + 1);
        index
    }
}

/// The kernel's side, compared with a model that counts.
fn kernel(input: &mut Unstructured<'_>) -> Result<()> {
    let capacity = 1u32 << input.int_in_range(0..=6)?;
    let start: u32 = input.arbitrary()?;
    let Some(account) = Account::starting_at(capacity, start) else {
        panic!("{capacity} is a capacity");
    };
    let (mut promised, mut head, mut tail) = (start, start, start);
    for _ in 0..input.arbitrary::<u8>()? {
        match input.int_in_range(0..=4)? {
            // The program stores a tail, most often one near the right value.
            0 => tail = input.arbitrary()?,
            1 => tail = head.wrapping_add(input.arbitrary::<i8>()? as u32),
            2 => {
                let count = u32::from(input.arbitrary::<u8>()?);
                let used = u64::from(promised.wrapping_sub(tail)) + u64::from(count);
                let honest = head.wrapping_sub(tail) <= capacity;
                let fits = honest && used <= u64::from(capacity);
                assert_eq!(account.reserve_many(tail, count).is_ok(), fits);
                if fits {
                    promised = promised.wrapping_add(count);
                }
            }
            3 if promised != head => {
                assert_eq!(account.slot(), head & (capacity - 1));
                head = head.wrapping_add(1);
                assert_eq!(account.advance(), head);
            }
            _ if promised != head => {
                account.unreserve();
                promised = promised.wrapping_sub(1);
            }
            _ => {}
        }
        assert_eq!(account.head(), head);
        // No wrong tail makes the kernel reserve more entries than there are.
        assert!(promised.wrapping_sub(head) <= capacity);
        assert_eq!(account.outstanding(), promised.wrapping_sub(head));
        let unread = head.wrapping_sub(tail);
        assert_eq!(account.unread(tail), (unread <= capacity).then_some(unread));
    }
    Ok(())
}

/// The program's side: the reader never reads an entry that does not exist.
fn reader(input: &mut Unstructured<'_>) -> Result<()> {
    let entries: u32 = match input.arbitrary::<bool>()? {
        true => 1 << input.int_in_range(0..=31)?,
        false => input.arbitrary()?,
    };
    let shared = Shared {
        head: Cell::new(input.arbitrary()?),
        tail: Cell::new(input.arbitrary()?),
        entries,
        asked: Cell::new(0),
    };
    let Some(mut reader) = Reader::new(&shared, entries) else {
        assert!(!entries.is_power_of_two());
        return Ok(());
    };
    let mut tail = shared.tail.get();
    for _ in 0..input.arbitrary::<u8>()? {
        match input.int_in_range(0..=2)? {
            0 => shared.head.set(input.arbitrary()?),
            // Another party overwrites the reader's own counter.
            1 => shared.tail.set(input.arbitrary()?),
            _ => {
                let max = u32::from(input.arbitrary::<u8>()?);
                let waiting = shared.head.get().wrapping_sub(tail);
                shared.asked.set(0);
                match reader.read_with(max, |_| {}) {
                    Ok(count) => {
                        assert_eq!(count, waiting.min(max));
                        tail = tail.wrapping_add(count);
                    }
                    Err(_) => assert!(waiting > entries),
                }
                assert!(shared.asked.get() <= max.min(entries));
            }
        }
    }
    Ok(())
}
