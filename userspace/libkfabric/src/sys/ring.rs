// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion ring, read without a system call and without a lock.
//!
//! Any number of threads may read. A reader copies entries, then moves `tail` past them with a
//! compare-and-swap. If another reader was faster, the copy is discarded and made anew. So each
//! entry is returned exactly once, and the kernel never overwrites an entry that a reader goes on
//! to use.

use core::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use kfabric_uapi::{CqEntry, CqRing, KFI_CQ_RING_OFFSET};

use super::Mapping;
use crate::Completion;

/// Returns the entries that completions consist of.
#[inline]
pub(crate) fn entries(of: &mut [Completion]) -> &mut [CqEntry] {
    let all = std::ptr::from_mut(of) as *mut [CqEntry];
    // SAFETY: a completion has the representation of its only field, an entry, and no invariant.
    unsafe { &mut *all }
}

/// What a reader does with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Returns the entry.
    Take,
    /// Removes the entry, and does not return it.
    Drop,
    /// Leaves the entry and those after it.
    Stop,
}

/// A mapped completion ring.
///
/// # Invariants
///
/// `base` points to the start of `_map`, aligned to 8 and writable. There lie the words of the
/// ring, followed by `entries` entries of `stride` bytes. `stride` is a multiple of 8, and not less
/// than the size of a `CqEntry`.
pub(crate) struct Ring {
    base: NonNull<u8>,
    _map: Mapping,
    entries: u32,
    stride: usize,
}

// SAFETY: the memory of a mapping may be used from any thread, and the words of the ring are only
// accessed atomically.
unsafe impl Send for Ring {}
// SAFETY: as for `Send`.
unsafe impl Sync for Ring {}

impl Ring {
    /// Checks the sizes in the ring; `None` if the ring does not fit its mapping.
    pub(crate) fn new(map: Mapping) -> Option<Self> {
        let entries = map
            .word32(offset_of!(CqRing, entries))?
            .load(Ordering::Relaxed);
        let stride = map
            .word32(offset_of!(CqRing, entry_size))?
            .load(Ordering::Relaxed) as usize;
        let fits = stride
            .checked_mul(entries as usize)
            .and_then(|bytes| bytes.checked_add(KFI_CQ_RING_OFFSET))
            .is_some_and(|end| end <= map.len());
        let sane =
            entries.is_power_of_two() && stride >= size_of::<CqEntry>() && stride.is_multiple_of(8);
        if !fits || !sane {
            return None;
        }
        map.word64(0)?;
        let base = map.check(0, KFI_CQ_RING_OFFSET)?;
        // INVARIANT: checked above.
        Some(Self {
            base,
            _map: map,
            entries,
            stride,
        })
    }

    /// Number of entries that the ring holds.
    pub(crate) fn capacity(&self) -> u32 {
        self.entries
    }

    #[inline]
    fn word32(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at + 4 <= size_of::<CqRing>());
        // SAFETY: callers pass offsets of fields of `CqRing`. By the type invariant these lie
        // within the mapping, aligned. The words are only accessed atomically.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    #[inline]
    fn head(&self) -> &AtomicU32 {
        self.word32(offset_of!(CqRing, head))
    }

    #[inline]
    fn tail(&self) -> &AtomicU32 {
        self.word32(offset_of!(CqRing, tail))
    }

    /// Takes up to `to.len()` entries; `None` if the ring is inconsistent.
    pub(crate) fn take(&self, to: &mut [CqEntry]) -> Option<usize> {
        let max = to.len();
        let taken = self.take_each(max, |_| Verdict::Take, |at, entry| to[at] = *entry);
        taken.map(|(count, _)| count)
    }

    /// Takes up to `max` entries, and stops before the first entry that `judge` does not take. Calls
    /// `each` with the number of each taken entry, counted from 0, and the entry. Returns the number of
    /// entries, and whether `judge` stopped; `None` if the ring is inconsistent.
    ///
    /// If another reader is faster, `each` is called again from number 0 on, so the last call with a
    /// number counts.
    #[inline]
    pub(crate) fn take_each(
        &self,
        max: usize,
        judge: impl Fn(&CqEntry) -> Verdict,
        mut each: impl FnMut(usize, &CqEntry),
    ) -> Option<(usize, bool)> {
        let (head, tail) = (self.head(), self.tail());
        loop {
            let from = tail.load(Ordering::Relaxed);
            // Ordering: acquire; pairs with the kernel's release store of `head`, which follows its
            // entries.
            let waiting = head.load(Ordering::Acquire).wrapping_sub(from);
            if waiting > self.entries {
                // Either another reader moved `tail` between the two loads, or the ring is corrupt.
                if tail.load(Ordering::Relaxed) != from {
                    continue;
                }
                return None;
            }
            if waiting == 0 || max == 0 {
                return Some((0, false));
            }
            let (mut step, mut taken, mut stopped) = (0, 0, false);
            while step < waiting && taken < max {
                let entry = self.load(from.wrapping_add(step));
                match judge(&entry) {
                    Verdict::Take => {
                        each(taken, &entry);
                        taken += 1;
                    }
                    Verdict::Drop => {}
                    Verdict::Stop => {
                        stopped = true;
                        break;
                    }
                }
                step += 1;
            }
            // Ordering: release; the copies are complete before the kernel may overwrite the
            // entries. Without an entry to take this shows that the unwanted entry is still there.
            let next = from.wrapping_add(step);
            let moved = tail.compare_exchange(from, next, Ordering::Release, Ordering::Relaxed);
            // If all entries were dropped, others may follow.
            if moved.is_ok() && (taken != 0 || stopped) {
                return Some((taken, stopped));
            }
        }
    }

    /// Returns whether an entry is ready.
    #[inline]
    pub(crate) fn waiting(&self) -> bool {
        self.head().load(Ordering::Acquire) != self.tail().load(Ordering::Relaxed)
    }

    /// Whether the alarm is set: the kernel reports a change of an endpoint with rings.
    #[inline]
    pub(crate) fn alarm(&self) -> bool {
        self.alarm_word().load(Ordering::Acquire) != 0
    }

    /// Clears the alarm. The kernel sets it again at the next change.
    pub(crate) fn clear_alarm(&self) {
        self.alarm_word().store(0, Ordering::SeqCst);
    }

    #[inline]
    fn alarm_word(&self) -> &AtomicU32 {
        self.word32(offset_of!(CqRing, alarm))
    }

    /// Returns a copy of the entry at a free-running index.
    #[inline]
    fn load(&self, index: u32) -> CqEntry {
        let slot = (index & (self.entries - 1)) as usize;
        let at = KFI_CQ_RING_OFFSET + slot * self.stride;
        let mut words = [0; size_of::<CqEntry>() / 8];
        for (i, word) in words.iter_mut().enumerate() {
            // SAFETY: `slot` is below `entries`, and the word is within an entry. By the type
            // invariant it lies within the mapping, aligned. It is only accessed atomically.
            let from = unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at + i * 8).cast()) };
            *word = from.load(Ordering::Relaxed);
        }
        zerocopy::transmute!(words)
    }
}
