// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues: the ring that the kernel fills, and the library's part with the completions of
//! endpoints with rings.
//!
//! For each endpoint, all entries here are older than those in the kernel's ring. To ensure this,
//! the entries of the kernel's ring are moved here before an entry is added here.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kfabric_uapi::CqEntry;

use super::{lock, Rings};
use crate::domain::inner::DomainInner;
use crate::flags::Format;
use crate::handle::Handle;
use crate::sys::{Ring, Verdict};

/// Which queues of an endpoint got an entry and have a waiter that must be woken.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pushed {
    pub(super) rx: bool,
    pub(super) tx: bool,
    /// The ring holds more messages, which are left for the next call.
    pub(super) more: bool,
}

impl Pushed {
    pub(super) fn rx(rx: bool) -> Self {
        Self {
            rx,
            ..Self::default()
        }
    }

    pub(super) fn tx(tx: bool) -> Self {
        Self {
            tx,
            ..Self::default()
        }
    }
}

impl std::ops::BitOrAssign for Pushed {
    fn bitor_assign(&mut self, other: Self) {
        self.rx |= other.rx;
        self.tx |= other.tx;
        self.more |= other.more;
    }
}

/// The library's part of a completion queue.
#[derive(Default)]
pub(crate) struct Queue {
    /// An endpoint with rings is bound to the queue, or has been.
    used: AtomicBool,
    endpoints: Mutex<Vec<Arc<Rings>>>,
    entries: Mutex<VecDeque<CqEntry>>,
    /// Number of `entries`, read without their lock and changed under it.
    made: AtomicUsize,
    /// Completions that are reserved, or made here and not read yet. Bounds `entries`.
    promised: AtomicU32,
    /// Threads that wait for the queue's descriptor, or are about to.
    waiters: AtomicU32,
    /// Set once the program may wait for the descriptor itself: from the first `try_wait` on. Several
    /// threads may do so, and none of them says when its wait ends.
    outside: AtomicBool,
}

impl Queue {
    pub(super) fn add(&self, endpoint: &Arc<Rings>) {
        self.used.store(true, Ordering::Release);
        let mut endpoints = lock(&self.endpoints);
        // Already there if the queue is bound to one side after the other.
        if !endpoints.iter().any(|other| Arc::ptr_eq(other, endpoint)) {
            endpoints.push(endpoint.clone());
        }
    }

    pub(super) fn remove(&self, endpoint: &Arc<Rings>) {
        lock(&self.endpoints).retain(|other| !Arc::ptr_eq(other, endpoint));
    }

    /// Whether completions may come from anywhere but the kernel's ring.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Returns one reserved place.
    pub(super) fn release(&self) {
        self.promised.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a thread waits for the descriptor, or is about to.
    fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) != 0 || self.outside.load(Ordering::Relaxed)
    }

    /// Counts the calling thread as a waiter until the result is dropped.
    pub(crate) fn enter(&self) -> Waiting<'_> {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }

    /// Records that the program may wait for the descriptor itself.
    pub(crate) fn set_outside(&self) {
        self.outside.store(true, Ordering::SeqCst);
    }
}

/// A thread that is counted as a waiter.
pub(crate) struct Waiting<'a>(&'a Queue);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::Release);
    }
}

/// The part of a completion queue that endpoints keep alive.
pub(crate) struct CqInner {
    pub(crate) handle: Handle,
    pub(crate) ring: Ring,
    /// Which fields of an entry are filled in.
    pub(crate) format: Format,
    /// Completions of endpoints with rings, which the library makes itself.
    pub(crate) direct: Queue,
    pub(crate) fd: OwnedFd,
    pub(crate) _domain: Arc<DomainInner>,
}

/// The context of the library's own probe writes ([`Rings`]): the address of a static, which no
/// program uses as a context by chance. A probe completes only if the connection ends at that
/// moment.
pub(super) fn probe_context() -> u64 {
    static PLACE: AtomicU32 = AtomicU32::new(0);
    // CAST: Addresses have 64 bits.
    (&raw const PLACE) as u64
}

impl CqInner {
    /// Reserves a place for one completion.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if as many places are reserved as the queue holds.
    pub(super) fn reserve(&self) -> Result<(), crate::Errno> {
        let promised = &self.direct.promised;
        if promised.fetch_add(1, Ordering::Relaxed) >= self.ring.capacity() {
            promised.fetch_sub(1, Ordering::Relaxed);
            return Err(crate::Errno::EAGAIN);
        }
        Ok(())
    }

    /// Moves the entries of the kernel's ring to `entries`. A corrupt ring is reported when it is
    /// read next.
    #[inline(never)]
    fn empty(&self, entries: &mut VecDeque<CqEntry>) {
        let mut some = [CqEntry::default(); 8];
        while let Some(n @ 1..) = self.of_kernel(&mut some) {
            entries.extend(&some[..n]);
            // These entries had no place reserved, but reading them releases one each: reserve it
            // now.
            self.direct.promised.fetch_add(n as u32, Ordering::Relaxed);
        }
    }

    /// Takes entries of the kernel's ring, without those of the library's own operations.
    fn of_kernel(&self, to: &mut [CqEntry]) -> Option<usize> {
        loop {
            let n = self.ring.take(to)?;
            let mut kept = 0;
            for at in 0..n {
                if to[at].context != probe_context() {
                    to[kept] = to[at];
                    kept += 1;
                }
            }
            if kept != 0 || n == 0 {
                return Some(kept);
            }
        }
    }

    /// Moves the entries of the kernel's ring here, to free space in that ring. Returns whether a
    /// waiter must be woken.
    pub(super) fn fetch(&self) -> bool {
        let mut entries = lock(&self.direct.entries);
        self.empty(&mut entries);
        self.direct.made.store(entries.len(), Ordering::Relaxed);
        !entries.is_empty() && self.is_awaited()
    }

    /// Returns whether a waiter must be woken.
    ///
    /// Locking: caller holds the lock that guards the entries or messages concerned. A waiter
    /// announces itself first, then takes that lock to look once more. So either the waiter sees
    /// the new entry, or this function sees the waiter. While the alarm is set no waiter sleeps:
    /// clearing the alarm is followed by another look.
    pub(super) fn is_awaited(&self) -> bool {
        self.direct.has_waiters() && !self.ring.alarm()
    }

    /// Adds a completion; its place was reserved. Returns whether a waiter must be woken.
    pub(super) fn push(&self, mut entry: CqEntry) -> bool {
        self.format.apply(&mut entry);
        let mut entries = lock(&self.direct.entries);
        if self.ring.waiting() {
            self.empty(&mut entries);
        }
        entries.push_back(entry);
        self.direct.made.store(entries.len(), Ordering::Relaxed);
        self.is_awaited()
    }

    /// Moves messages for all endpoints of the queue. If the alarm is set, endpoints without a
    /// known ring state ask the kernel.
    pub(crate) fn progress(&self) {
        let alarm = self.ring.alarm();
        // If there are waiters, the alarm is meant for them: leave it set.
        if alarm && !self.direct.has_waiters() {
            self.ring.clear_alarm();
            fence(Ordering::SeqCst);
            if self.direct.has_waiters() {
                // A thread that began to wait meanwhile may have counted on the alarm.
                self.wake_others();
            }
        }
        self.look(alarm);
    }

    /// Moves messages for all endpoints, and leaves the alarm unchanged. Returns whether a ring
    /// holds more.
    fn look(&self, learn: bool) -> bool {
        let mut more = false;
        for endpoint in lock(&self.direct.endpoints).iter() {
            let mut pushed = Pushed::default();
            if learn {
                pushed |= endpoint.learn();
            }
            pushed |= endpoint.progress();
            more |= pushed.more;
            endpoint.alert(pushed, Some(self));
        }
        more
    }

    /// Prepares for waiting on the descriptor: returns whether the caller may wait. From then on,
    /// the kernel and every peer wake the queue when they have something for it.
    ///
    /// The caller is registered as a waiter ([`Queue::enter`], [`Queue::set_outside`]). The alarm
    /// is cleared first. It is set again if an endpoint connects after it was asked here, and if a
    /// peer finds this end's sleep flag set. Until the wait, nothing else clears it.
    pub(crate) fn arm(&self) -> bool {
        self.ring.clear_alarm();
        fence(Ordering::SeqCst);
        for endpoint in lock(&self.direct.endpoints).iter() {
            let pushed = endpoint.learn();
            endpoint.sleep();
            endpoint.alert(pushed, Some(self));
        }
        fence(Ordering::SeqCst);
        let more = self.look(false);
        !more && !self.has_entries()
    }

    /// As [`CqInner::has_entries`], without a lock. An entry that another thread is moving may be
    /// missed; before waiting, call [`CqInner::has_entries`].
    #[inline]
    pub(crate) fn shows_entries(&self) -> bool {
        self.direct.made.load(Ordering::Relaxed) != 0 || self.ring.waiting()
    }

    /// Returns whether an entry can be read.
    pub(crate) fn has_entries(&self) -> bool {
        self.ring.waiting() || !lock(&self.direct.entries).is_empty()
    }

    /// Reads up to `to.len()` entries; `None` if the kernel's ring is corrupt.
    pub(crate) fn read(&self, to: &mut [CqEntry]) -> Option<usize> {
        // Read existing entries before making more.
        let n = self.take_some(to)?;
        if n != 0 {
            return Some(n);
        }
        self.progress();
        self.take_some(to)
    }

    /// As [`Ring::take_each`], for the entries here and those of the kernel's ring.
    #[inline]
    pub(crate) fn read_each(
        &self,
        max: usize,
        judge: impl Fn(&CqEntry) -> Verdict,
        mut each: impl FnMut(usize, &CqEntry),
    ) -> Option<(usize, bool)> {
        // Read existing entries before making more.
        if self.shows_entries() {
            let taken = self.take_each(max, &judge, &mut each)?;
            if taken != (0, false) {
                let (count, stopped) = taken;
                if count < max && !stopped {
                    // Otherwise messages would not move while another endpoint always has an entry.
                    self.progress();
                }
                return Some(taken);
            }
        }
        self.progress();
        if !self.shows_entries() {
            return Some((0, false));
        }
        self.take_each(max, judge, each)
    }

    fn take_each(
        &self,
        max: usize,
        judge: impl Fn(&CqEntry) -> Verdict,
        mut each: impl FnMut(usize, &CqEntry),
    ) -> Option<(usize, bool)> {
        let mut entries = lock(&self.direct.entries);
        let (mut step, mut taken, mut stopped) = (0_u32, 0, false);
        while taken < max {
            let Some(entry) = entries.front() else { break };
            match judge(entry) {
                Verdict::Take => {
                    each(taken, entry);
                    taken += 1;
                }
                Verdict::Drop => {}
                Verdict::Stop => {
                    stopped = true;
                    break;
                }
            }
            entries.pop_front();
            step += 1;
        }
        if step != 0 {
            self.direct.made.store(entries.len(), Ordering::Relaxed);
            // `step` is at most the number of reserved places.
            self.direct.promised.fetch_sub(step, Ordering::Relaxed);
        }
        // Entries of the kernel's ring follow those here. The library's own entries are failures that
        // no program may see.
        if !stopped && taken < max && self.ring.waiting() {
            let judge = |entry: &CqEntry| match entry.context == probe_context() {
                true => Verdict::Drop,
                false => judge(entry),
            };
            let rest = self
                .ring
                .take_each(max - taken, judge, |at, entry| each(taken + at, entry));
            match rest {
                Some((more, stop)) => (taken, stopped) = (taken + more, stop),
                None if taken == 0 => return None,
                // The next read reports the corrupt ring.
                None => {}
            }
        }
        let awaited = !entries.is_empty() && self.is_awaited();
        drop(entries);
        if awaited {
            self.wake_others();
        }
        Some((taken, stopped))
    }

    /// Like [`CqInner::take`], but without a lock if the queue looks empty. An entry that another
    /// thread is moving may be missed; before waiting, call [`CqInner::has_entries`].
    fn take_some(&self, to: &mut [CqEntry]) -> Option<usize> {
        if !self.shows_entries() {
            return Some(0);
        }
        self.take(to)
    }

    /// Takes entries from `entries`, then from the kernel's ring.
    fn take(&self, to: &mut [CqEntry]) -> Option<usize> {
        let mut entries = lock(&self.direct.entries);
        let mut n = 0;
        while let Some(to) = to.get_mut(n) {
            let Some(entry) = entries.pop_front() else {
                break;
            };
            *to = entry;
            n += 1;
        }
        if n != 0 {
            self.direct.made.store(entries.len(), Ordering::Relaxed);
            // CAST: At most the number of reserved places, a `u32`.
            self.direct.promised.fetch_sub(n as u32, Ordering::Relaxed);
        }
        if n < to.len() {
            n += match self.of_kernel(&mut to[n..]) {
                Some(more) => more,
                None if n == 0 => return None,
                // The next read reports the corrupt ring.
                None => 0,
            };
        }
        let awaited = !entries.is_empty() && self.is_awaited();
        drop(entries);
        if awaited {
            self.wake_others();
        }
        Some(n)
    }

    /// Wakes the queue's waiters, through any endpoint that the kernel still has open.
    fn wake_others(&self) {
        let endpoints = lock(&self.direct.endpoints);
        let _ = endpoints.iter().any(|endpoint| endpoint.wake_self());
    }
}
