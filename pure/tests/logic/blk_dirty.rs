// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::blk::dirty::{Dirty, Range};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Chunks of a disk, not a multiple of a group.
const CHUNKS: usize = 200;
const SHIFT: u32 = 20;

struct Memory(Vec<AtomicU32>, Vec<AtomicU64>);

impl Memory {
    fn new() -> Self {
        let ranges = (0..CHUNKS).map(|_| AtomicU32::new(0)).collect();
        let groups = (0..Dirty::groups(CHUNKS)).map(|_| AtomicU64::new(0));
        Self(ranges, groups.collect())
    }

    fn dirty(&self) -> Dirty<'_> {
        Dirty::new(&self.0, &self.1)
    }

    fn all(&self) -> Vec<Range> {
        let mut at = 0;
        std::iter::from_fn(|| self.dirty().take(&mut at)).collect()
    }
}

#[test]
fn mark_all_marks_whole_chunks() {
    let memory = Memory::new();
    memory.dirty().mark_all();
    let whole = |chunk: usize| Range::of(chunk as u32, 0, 1 << SHIFT, SHIFT);
    assert_eq!(memory.all(), (0..CHUNKS).map(whole).collect::<Vec<_>>());
    assert_eq!(memory.all(), []);
}

#[test]
fn is_any_only_while_a_mark_is_not_taken() {
    let memory = Memory::new();
    assert!(!memory.dirty().is_any());
    for chunk in [0, 70, CHUNKS as u32 - 1] {
        memory.dirty().mark(Range::of(chunk, 0, 1, SHIFT));
        assert!(memory.dirty().is_any());
        assert_eq!(memory.all().len(), 1);
        assert!(!memory.dirty().is_any());
    }
    memory.dirty().mark(Range::of(CHUNKS as u32, 0, 1, SHIFT));
    assert!(!memory.dirty().is_any());
}

#[test]
fn range_covers_its_bytes_and_ends_with_the_window() {
    let range = Range::of(3, 4095, 2, SHIFT);
    assert_eq!((range.first, range.last), (0, 1));
    assert_eq!(range.bytes(SHIFT, 1 << SHIFT), (0, 8192));
    assert_eq!(range.bytes(SHIFT, 5000), (0, 5000));
    let whole = Range::of(3, 0, 1 << SHIFT, SHIFT);
    assert_eq!((whole.first, whole.last), (0, 255));
    assert_eq!(Range::unpack(whole.pack()), whole);
}

#[test]
fn mark_of_no_chunk_is_ignored() {
    let memory = Memory::new();
    memory.dirty().mark(Range::of(CHUNKS as u32, 0, 1, SHIFT));
    assert_eq!(memory.all(), []);
}

#[test]
fn mark_behind_the_place_stays_for_the_next_flush() {
    let memory = Memory::new();
    let (dirty, mut at) = (memory.dirty(), 0);
    dirty.mark(Range::of(70, 0, 1, SHIFT));
    assert_eq!(dirty.take(&mut at).map(|of| of.chunk), Some(70));
    dirty.mark(Range::of(70, 0, 1, SHIFT));
    assert_eq!(dirty.take(&mut at), None);
    assert_eq!(memory.all().len(), 1);
}

proptest! {
    #[test]
    fn taken_ranges_cover_all_marks_once(
        writes in prop::collection::vec((0..CHUNKS as u32, 0..1u64 << SHIFT, 1..1u64 << SHIFT), 0..50)
    ) {
        let memory = Memory::new();
        let mut want = std::collections::BTreeMap::new();
        for (chunk, at, len) in writes {
            let len = len.min((1 << SHIFT) - at);
            memory.dirty().mark(Range::of(chunk, at, len, SHIFT));
            let (first, end) = want.entry(chunk).or_insert((at, at + len));
            *first = (*first).min(at);
            *end = (*end).max(at + len);
        }
        let taken = memory.all();
        let chunks: Vec<u32> = taken.iter().map(|of| of.chunk).collect();
        prop_assert_eq!(chunks, want.keys().copied().collect::<Vec<_>>());
        for range in taken {
            let (start, len) = range.bytes(SHIFT, 1 << SHIFT);
            let (first, end) = want[&range.chunk];
            prop_assert!(start <= first && end <= start + len);
            prop_assert!(first - start < 4096 && start + len - end < 4096);
            prop_assert_eq!(Range::unpack(range.pack()), range);
        }
        prop_assert_eq!(memory.all(), []);
    }
}
