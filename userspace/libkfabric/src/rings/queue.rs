// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a completion queue has beside the kernel's ring: completions that are made here.
//!
//! All in it are older than what the kernel's ring holds of the same endpoint: before something is
//! put here the ring is emptied into it.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kfabric_uapi::CqEntry;

use super::{lock, Rings};
use crate::completion::CqInner;

/// Which of an endpoint's queues got something that somebody waits for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pushed {
    pub(super) rx: bool,
    pub(super) tx: bool,
    /// There is more in the ring, which was left for another time.
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

/// See the module.
#[derive(Default)]
pub(crate) struct Queue {
    /// An endpoint with rings was bound to it, ever.
    used: AtomicBool,
    endpoints: Mutex<Vec<Arc<Rings>>>,
    entries: Mutex<VecDeque<CqEntry>>,
    /// How many there are, for who only looks. Changed under their lock.
    made: AtomicUsize,
    /// Entries that are, or may yet come to be, made here and not read.
    promised: AtomicU32,
    /// Threads that wait for its descriptor, or are about to.
    waiters: AtomicU32,
    /// A program was told that it may. It does, for all that is known here, until it asks again.
    outside: AtomicBool,
}

impl Queue {
    pub(super) fn add(&self, endpoint: &Arc<Rings>) {
        self.used.store(true, Ordering::Release);
        lock(&self.endpoints).push(endpoint.clone());
    }

    pub(super) fn remove(&self, endpoint: &Arc<Rings>) {
        lock(&self.endpoints).retain(|other| !Arc::ptr_eq(other, endpoint));
    }

    /// Whether there is anything but the kernel's ring.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    pub(super) fn release(&self) {
        self.promised.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether somebody waits, or is about to.
    fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) != 0 || self.outside.load(Ordering::Relaxed)
    }

    /// A thread is about to wait for the descriptor.
    pub(crate) fn enter(&self) -> Waiting<'_> {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }

    /// The program is about to; or it was told that it may not.
    pub(crate) fn set_outside(&self, waits: bool) {
        self.outside.store(waits, Ordering::SeqCst);
    }
}

/// A thread that waits.
pub(crate) struct Waiting<'a>(&'a Queue);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::Release);
    }
}

/// The context of an operation that only asks whether those before it went well: an address that is
/// nobody else's. It completes when the connection ends just then, and no program has posted it.
pub(super) fn probe_context() -> u64 {
    static PLACE: AtomicU32 = AtomicU32::new(0);
    // CAST: Addresses have 64 bits.
    (&raw const PLACE) as u64
}

impl CqInner {
    /// Promises room for one completion that is made here.
    ///
    /// # Errors
    ///
    /// `EAGAIN`.
    pub(super) fn reserve(&self) -> Result<(), crate::Errno> {
        let promised = &self.direct.promised;
        if promised.fetch_add(1, Ordering::Relaxed) >= self.ring.capacity() {
            promised.fetch_sub(1, Ordering::Relaxed);
            return Err(crate::Errno::EAGAIN);
        }
        Ok(())
    }

    /// Takes what the kernel's ring holds. One that lies shows when it is read.
    #[inline(never)]
    fn empty(&self, entries: &mut VecDeque<CqEntry>) {
        let mut some = [CqEntry::default(); 8];
        while let Some(n @ 1..) = self.of_kernel(&mut some) {
            entries.extend(&some[..n]);
            // They are not of those that are promised here, but read as if they were.
            self.direct.promised.fetch_add(n as u32, Ordering::Relaxed);
        }
    }

    /// Takes entries of the kernel's ring, but for those of operations that are the library's own.
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

    /// As [`CqInner::push`] does, for who needs room in the kernel's ring; whether somebody waits for
    /// what is there.
    pub(super) fn fetch(&self) -> bool {
        let mut entries = lock(&self.direct.entries);
        self.empty(&mut entries);
        self.direct.made.store(entries.len(), Ordering::Relaxed);
        !entries.is_empty() && self.is_awaited()
    }

    /// Whether somebody waits who is not woken yet. Asked under a lock that who waits takes after it said
    /// so, to look at what that lock is for: so it sees what was put there, or is seen. While the alarm
    /// is set nobody sleeps: who clears it looks again.
    pub(super) fn is_awaited(&self) -> bool {
        self.direct.has_waiters() && !self.ring.alarm()
    }

    /// Adds a completion for which room is promised; whether somebody waits for one.
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

    /// Has all endpoints take and send; after an alarm, those that know nothing ask.
    pub(crate) fn progress(&self) {
        let alarm = self.ring.alarm();
        // It is for who waits, if somebody does.
        if alarm && !self.direct.has_waiters() {
            self.ring.clear_alarm();
            fence(Ordering::SeqCst);
            if self.direct.has_waiters() {
                // One who just came may have slept when it was set.
                self.wake_others();
            }
        }
        self.look(alarm);
    }

    /// The alarm stays as it is. Whether there is more than was looked at.
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

    /// Before the descriptor is waited for, by who has said that it waits: whether it may be. All who
    /// could have something for this queue wake it from then on.
    ///
    /// The alarm is cleared first. An endpoint that is connected later than it is asked here sets it,
    /// and so does a peer that sees that this end sleeps: nothing clears it before the wait.
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

    /// Whether there is something to read.
    pub(crate) fn has_entries(&self) -> bool {
        self.ring.waiting() || !lock(&self.direct.entries).is_empty()
    }

    /// Reads up to `to.len()` entries; `None` as for the ring.
    pub(crate) fn read(&self, to: &mut [CqEntry]) -> Option<usize> {
        // What is there is read before more is made.
        let n = self.take_some(to)?;
        if n != 0 {
            return Some(n);
        }
        self.progress();
        self.take_some(to)
    }

    /// As [`CqInner::take`], without the lock where there is nothing. What another thread is just moving
    /// may be missed; who is about to wait asks [`CqInner::has_entries`].
    fn take_some(&self, to: &mut [CqEntry]) -> Option<usize> {
        let made = self.direct.made.load(Ordering::Relaxed);
        if made == 0 && !self.ring.waiting() {
            return Some(0);
        }
        self.take(to)
    }

    /// Takes entries that are here, or in the kernel's ring.
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
            // CAST: As many as were promised.
            self.direct.promised.fetch_sub(n as u32, Ordering::Relaxed);
        }
        if n < to.len() {
            n += match self.of_kernel(&mut to[n..]) {
                Some(more) => more,
                None if n == 0 => return None,
                // Whoever reads next is told.
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

    /// Wakes who waits: by one of the endpoints that the kernel has yet.
    fn wake_others(&self) {
        let endpoints = lock(&self.direct.endpoints);
        let _ = endpoints.iter().any(|endpoint| endpoint.wake_self());
    }
}
