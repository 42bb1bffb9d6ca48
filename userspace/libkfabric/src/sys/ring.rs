// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion ring, read without a call and without a lock.
//!
//! Any number of threads may read. A reader copies entries and then moves `tail` over them with a
//! compare-and-swap: if another reader was faster, the copy is thrown away and made anew, so an
//! entry is returned exactly once, and the kernel never overwrites one that somebody goes on to
//! use.

use core::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use kfabric_uapi::{CqEntry, CqRing, KFI_CQ_RING_OFFSET};
use zerocopy::IntoBytes;

use super::Mapping;

/// A mapped completion ring.
///
/// # Invariants
///
/// `base` points to the start of `_map`, aligned to 8 and writable, which holds the words of the ring
/// and behind them `entries` entries of `stride` bytes, a multiple of 8 not below that of a `CqEntry`.
pub(crate) struct Ring {
    base: NonNull<u8>,
    _map: Mapping,
    entries: u32,
    stride: usize,
}

// SAFETY: it is memory of a mapping, which may be used from any thread, and words of it are only
// accessed by atomics.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

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
        if !fits || !sane {
            return None;
        }
        map.word64(0)?;
        let base = map.check(0, KFI_CQ_RING_OFFSET)?;
        // INVARIANT: all of that was just checked.
        Some(Self {
            base,
            _map: map,
            entries,
            stride,
        })
    }

    /// Entries that the ring holds.
    pub(crate) fn capacity(&self) -> u32 {
        self.entries
    }

    fn word32(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at + 4 <= size_of::<CqRing>());
        // SAFETY: callers pass offsets of fields of `CqRing`, which by the type invariant lie inside,
        // aligned; they are only accessed atomically here.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    fn head(&self) -> &AtomicU32 {
        self.word32(offset_of!(CqRing, head))
    }

    fn tail(&self) -> &AtomicU32 {
        self.word32(offset_of!(CqRing, tail))
    }

    /// Takes up to `to.len()` entries; `None` when the ring is inconsistent.
    pub(crate) fn take(&self, to: &mut [CqEntry]) -> Option<usize> {
        let (head, tail) = (self.head(), self.tail());
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
                self.load(from.wrapping_add(i), entry);
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
        self.head().load(Ordering::Acquire) != self.tail().load(Ordering::Relaxed)
    }

    /// Whether the kernel has us look at more than entries.
    pub(crate) fn alarm(&self) -> bool {
        self.alarm_word().load(Ordering::Acquire) != 0
    }

    /// From now on it tells us again.
    pub(crate) fn clear_alarm(&self) {
        self.alarm_word().store(0, Ordering::SeqCst);
    }

    fn alarm_word(&self) -> &AtomicU32 {
        self.word32(offset_of!(CqRing, alarm))
    }

    fn load(&self, index: u32, entry: &mut CqEntry) {
        let slot = (index & (self.entries - 1)) as usize;
        let at = KFI_CQ_RING_OFFSET + slot * self.stride;
        for (i, word) in entry.as_mut_bytes().chunks_exact_mut(8).enumerate() {
            // SAFETY: `slot` is below `entries`, and the word within an entry, so by the type invariant
            // it lies inside, aligned; it is only accessed atomically here.
            let from = unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at + i * 8).cast()) };
            word.copy_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        }
    }
}
