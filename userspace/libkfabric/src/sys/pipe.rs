// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a connection's rings: two rings of bytes shared with the peer, and the status
//! page, written by the kernel alone.

use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use kfabric_pure::pipe::{End, Memory};
use kfabric_uapi::{RingWords, RingsStatus, KFI_RING_DATA, KFI_RING_SIZE};

use super::Mapping;
use crate::errno::Errno;

/// Bytes of a ring's data.
pub(crate) const DATA: usize = KFI_RING_SIZE - KFI_RING_DATA;
const _: () = assert!(DATA.is_power_of_two());

/// One of the two rings of a connection.
///
/// # Invariants
///
/// `base` points to `KFI_RING_SIZE` bytes of `map`, aligned to 8 and writable.
pub(crate) struct PipeMem {
    base: NonNull<u8>,
    _map: Arc<Mapping>,
}

// SAFETY: the memory of a mapping may be used from any thread. Words are only accessed atomically,
// and on this side one thread at a time copies bytes.
unsafe impl Send for PipeMem {}
// SAFETY: as for `Send`.
unsafe impl Sync for PipeMem {}

impl PipeMem {
    fn new(map: &Arc<Mapping>, index: usize) -> Option<Self> {
        let at = index.checked_mul(KFI_RING_SIZE)?;
        map.word64(at)?;
        let base = map.check(at, KFI_RING_SIZE)?;
        // INVARIANT: both conditions were just checked, and `_map` keeps the mapping.
        Some(Self {
            base,
            _map: map.clone(),
        })
    }

    fn word32(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at + 4 <= KFI_RING_DATA);
        // SAFETY: callers pass offsets of fields of `RingWords`. By the type invariant these lie
        // within the mapping, aligned. The words are only accessed atomically.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    fn word64(&self, at: u32) -> &AtomicU64 {
        let at = KFI_RING_DATA + (at as usize & (DATA - 8));
        // SAFETY: the masked offset is a multiple of 8 within the data, so the word lies within the
        // mapping, aligned. As message bytes the same memory is copied without atomics, only by the
        // side that owns the bytes at that time.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// Returns the address of byte `at` of the data, if `len` bytes from there on are within it.
    fn data(&self, at: u32, len: usize) -> Option<NonNull<u8>> {
        if (at as usize).checked_add(len)? > DATA {
            return None;
        }
        // SAFETY: within the data, checked above.
        Some(unsafe { self.base.add(KFI_RING_DATA + at as usize) })
    }

    /// Copies `len` bytes of `from` into the ring; `None` if a range is not within its memory.
    pub(crate) fn fill(&self, at: u32, from: &Mapping, from_at: usize, len: usize) -> Option<()> {
        let to = self.data(at, len)?;
        let from = from.check(from_at, len)?;
        // SAFETY: both ranges are valid for the length. A peer or a device that writes them at the
        // same time yields old or new bytes. `copy` allows overlap, for a program that registered a
        // ring.
        unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), len) };
        Some(())
    }

    /// Copies a slice into the ring; `None` if the range is not within the ring.
    pub(crate) fn fill_from(&self, at: u32, from: &[u8]) -> Option<()> {
        let to = self.data(at, from.len())?;
        // SAFETY: as in `fill`.
        unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), from.len()) };
        Some(())
    }

    /// Copies `len` bytes of the ring to `to`; `None` if a range is not within its memory, or `to`
    /// is read-only.
    pub(crate) fn empty(&self, at: u32, to: &Mapping, to_at: usize, len: usize) -> Option<()> {
        if !to.writable() {
            return None;
        }
        let from = self.data(at, len)?;
        let to = to.check(to_at, len)?;
        // SAFETY: as in `fill`, and `to` is writable.
        unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), len) };
        Some(())
    }

    /// The errno for which the receiving end ended the connection; 0 for none.
    pub(crate) fn failed(&self) -> &AtomicU32 {
        self.word32(offset_of!(RingWords, failed))
    }

    fn asleep_word(&self, who: End) -> &AtomicU32 {
        self.word32(match who {
            End::Sender => offset_of!(RingWords, waits),
            End::Receiver => offset_of!(RingWords, sleeps),
        })
    }
}

impl Memory for PipeMem {
    fn load_tail(&self) -> u32 {
        self.word32(offset_of!(RingWords, tail))
            .load(Ordering::Acquire)
    }

    fn store_tail(&self, tail: u32) {
        self.word32(offset_of!(RingWords, tail))
            .store(tail, Ordering::Release);
    }

    fn load_head(&self) -> u32 {
        self.word32(offset_of!(RingWords, head))
            .load(Ordering::Acquire)
    }

    fn store_head(&self, head: u32) {
        self.word32(offset_of!(RingWords, head))
            .store(head, Ordering::Release);
    }

    fn asleep(&self, who: End) -> bool {
        self.asleep_word(who).load(Ordering::Relaxed) != 0
    }

    fn set_asleep(&self, who: End, sleeps: bool) -> bool {
        self.asleep_word(who)
            .swap(u32::from(sleeps), Ordering::AcqRel)
            != 0
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn word(&self, at: u32) -> u64 {
        self.word64(at).load(Ordering::Relaxed)
    }

    fn set_word(&self, at: u32, value: u64) {
        self.word64(at).store(value, Ordering::Relaxed);
    }
}

/// Both rings of a connection, and their status page.
pub(crate) struct Link {
    /// The ring that this end puts messages into.
    pub(crate) ours: PipeMem,
    /// The ring that the peer puts messages into.
    pub(crate) theirs: PipeMem,
    status: Mapping,
}

impl Link {
    /// Maps the rings. `side` is the index of the ring that this end writes.
    pub(crate) fn map(
        fd: BorrowedFd<'_>,
        side: u32,
        page: usize,
        bytes: usize,
    ) -> Result<Self, Errno> {
        let status = Mapping::part(fd, 0, page, false)?;
        let rings = Arc::new(Mapping::part(fd, page, bytes, true)?);
        let ring = |side: u32| PipeMem::new(&rings, side as usize & 1).ok_or(Errno::EINVAL);
        Ok(Self {
            ours: ring(side)?,
            theirs: ring(side ^ 1)?,
            status,
        })
    }

    /// Whether the connection has ended. If so, all bytes that the peer put in before are visible.
    pub(crate) fn ended(&self) -> bool {
        self.status
            .look32(offset_of!(RingsStatus, ended))
            .is_none_or(|ended| ended != 0)
    }
}
