// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion ring, read without a call and without a lock.
//!
//! Any number of threads may read. A reader copies entries and then moves `tail` over them with a
//! compare-and-swap: if another reader was faster, the copy is thrown away and made anew, so an
//! entry is returned exactly once, and the kernel never overwrites one that somebody goes on to
//! use.

use core::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};

use kfabric_uapi::{CqEntry, CqRing, KFI_CQ_RING_OFFSET};
use zerocopy::IntoBytes;

use super::Mapping;

/// A mapped completion ring.
pub(crate) struct Ring {
    map: Mapping,
    entries: u32,
    stride: usize,
}

impl Ring {
    /// Checks what the ring says of itself; `None` when it does not fit its mapping.
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
        (fits && sane).then_some(Self {
            map,
            entries,
            stride,
        })
    }

    /// Entries that the ring holds.
    pub(crate) fn capacity(&self) -> u32 {
        self.entries
    }

    fn head(&self) -> Option<&AtomicU32> {
        self.map.word32(offset_of!(CqRing, head))
    }

    fn tail(&self) -> Option<&AtomicU32> {
        self.map.word32(offset_of!(CqRing, tail))
    }

    /// Takes up to `to.len()` entries; `None` when the ring is inconsistent.
    pub(crate) fn take(&self, to: &mut [CqEntry]) -> Option<usize> {
        let (head, tail) = (self.head()?, self.tail()?);
        loop {
            let from = tail.load(Ordering::Relaxed);
            // Acquire: entries before `head` are there once `head` is seen.
            let waiting = head.load(Ordering::Acquire).wrapping_sub(from);
            if waiting > self.entries {
                // Either another reader moved on between the two loads, or the ring lies.
                if tail.load(Ordering::Relaxed) != from {
                    continue;
                }
                return None;
            }
            let n = to.len().min(waiting as usize);
            if n == 0 {
                return Some(0);
            }
            let step = u32::try_from(n).ok()?;
            for (i, entry) in (0..step).zip(to.iter_mut()) {
                self.load(from.wrapping_add(i), entry)?;
            }
            // Release: the copies are done before the kernel may write there again.
            let next = from.wrapping_add(step);
            if tail
                .compare_exchange(from, next, Ordering::Release, Ordering::Relaxed)
                .is_ok()
            {
                return Some(n);
            }
        }
    }

    /// Whether an entry waits.
    pub(crate) fn waiting(&self) -> bool {
        match (self.head(), self.tail()) {
            (Some(head), Some(tail)) => {
                head.load(Ordering::Acquire) != tail.load(Ordering::Relaxed)
            }
            _ => false,
        }
    }

    /// Whether the kernel has us look at more than entries.
    pub(crate) fn alarm(&self) -> bool {
        self.alarm_word()
            .is_some_and(|alarm| alarm.load(Ordering::Acquire) != 0)
    }

    /// From now on it tells us again.
    pub(crate) fn clear_alarm(&self) {
        if let Some(alarm) = self.alarm_word() {
            alarm.store(0, Ordering::SeqCst);
        }
    }

    fn alarm_word(&self) -> Option<&AtomicU32> {
        self.map.word32(offset_of!(CqRing, alarm))
    }

    fn load(&self, index: u32, entry: &mut CqEntry) -> Option<()> {
        let slot = (index & (self.entries - 1)) as usize;
        let at = KFI_CQ_RING_OFFSET + slot * self.stride;
        for (i, word) in entry.as_mut_bytes().chunks_exact_mut(8).enumerate() {
            let value = self.map.word64(at + i * 8)?.load(Ordering::Relaxed);
            word.copy_from_slice(&value.to_ne_bytes());
        }
        Some(())
    }
}
