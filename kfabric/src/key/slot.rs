// SPDX-License-Identifier: GPL-2.0
//! Keys (`fi_mr(3)`): the ranges of a region that peers can access, and for how long.
//!
//! A key slot gets a key for a sub-range with rights, and loses it again, without a change to the
//! pinned pages. The slot's state machine ([`KeySlot`]) orders the steps, under the slot's lock.
//! The provider is called without that lock. If a step of the slot is in progress, later callers
//! wait for that slot alone.
//!
//! Some functions leave a step to their caller. To renew a slot is to refill its reserve.
//!
//! | after | the caller calls |
//! |---|---|
//! | `assign_keys` made a key of another value than the returned one | `drop_made` |
//! | an ordered assignment failed | `forget`, `assigned` with the error, `renew_later` |
//! | `assigned` returned an error | `renew`; `renew_later` if a task waits for the caller |
//! | `end` | `renew` |
//! | `try_revoke`, `end_each` | `renew_in_turn` for all slots, after the last revocation |
//! | `end_many` | `renew_many` |
//! | `revoke`, `take_back`, `revoke_many` | nothing: these renew the slots |
//! | `die`, `kill`, `close` | nothing: the slot gets no key any more |

use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use super::{
    endpoint_keys::Bound,
    region::Region, //
};
use crate::{
    auth::Scope,
    base::{
        errno::eopnotsupp,
        parent::Held,
        share::Portion,
        trace, //
    },
    memory::dax::{
        EndKey,
        Listed, //
    },
    objects::domain::Domain,
    provider::{
        KeyAssign,
        KeyOps,
        KeyValue, //
    },
    pure::{
        key::{
            AssignOutcome,
            Death,
            KeyError,
            KeySlot,
            State,
            Window, //
        },
        range,
        rights, //
    },
    sys::{
        self,
        steps::Steps, //
    },
    uapi::KFI_SINGLE_USE_KEYS, //
};

/// Assignments of one call to the provider, at most; the caller waits once for all of them.
pub const CHAIN: usize = 64;

/// Slots whose keys one call to the provider revokes, at most. The lists are on the stack, because a
/// revocation allocates nothing.
const TOGETHER: usize = 32;

/// Interval at which [`Key::end_each`] retries busy slots while it waits for one of them, in
/// milliseconds.
const REST_MS: u32 = 10;

/// The state under the lock of a slot.
pub(super) struct Slot {
    pub(super) life: KeySlot,
    pub(super) remote_addr: u64,
}

/// A key slot.
#[pin_data(PinnedDrop)]
pub struct Key {
    // Dropped first, while the slot is whole: until then a failure of the memory uses the slot.
    /// Place in the list of the memory's DAX device, if the memory has one.
    pub(super) listed: Option<Listed>,
    // Dropped before the region's hold.
    pub(super) ops: KBox<dyn KeyOps>,
    #[pin]
    pub(super) state: Mutex<Slot>,
    /// Advanced when a step of the slot is completed.
    #[pin]
    pub(super) settled: Steps,
    // The provider's group is dropped before the region's hold, which keeps the provider's module.
    pub(super) auth: Scope,
    /// Returned before the region's hold is dropped, because that hold keeps the domain with the
    /// share.
    pub(super) counted: Option<Portion>,
    pub(super) region: Option<Held<Region>>,
    /// The bound list of the slot's endpoint, if the slot is endpoint-scoped.
    pub(super) bound: Option<Arc<Bound>>,
}

/// Whether a caller waits for a step that another task has begun on the slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// Does not wait: the result is [`KeyError::Busy`].
    No,
    /// Waits until the step is completed or the task is killed.
    Killable,
    /// Waits until the step is completed, even if the task is killed.
    Always,
}

/// Why a step was not begun.
pub(super) enum Stop {
    Refused(KeyError),
    Killed,
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Refused(error) => refused(error),
            Stop::Killed => EINTR,
        }
    }
}

pub(super) fn refused(error: KeyError) -> Error {
    match error {
        KeyError::Assigned | KeyError::Busy => EBUSY,
        KeyError::NotAssigned => EINVAL,
        KeyError::Freed | KeyError::Dying => ENOENT,
        KeyError::Exhausted => ENOSPC,
        KeyError::OutOfOrder => EIO,
    }
}

/// Begins the end of a slot.
pub(super) fn begin_die(life: &mut KeySlot) -> Result<(), KeyError> {
    match life.die() {
        Death::Freed => Err(KeyError::Freed),
        Death::Revoke => Ok(()),
        Death::Wait => Err(KeyError::Busy),
    }
}

/// What [`Key::end_some`] did with a list.
#[derive(Default)]
struct Passed {
    /// Elements at the start of the list that need no further call.
    passed: usize,
    /// Keys that it revoked.
    ended: usize,
    /// Whether the next element's slot is busy.
    stopped: bool,
}

#[pinned_drop]
impl PinnedDrop for Key {
    /// Revokes the key of a slot that was not closed, while the slot is in the list of its memory's
    /// device. So a failure of the memory, which no longer finds the slot afterwards, waits for the
    /// revocation before it calls the consumer's handler (P3).
    fn drop(self: Pin<&mut Self>) {
        if self.listed.is_some() {
            // Cannot fail: `Wait::Always` is not interrupted.
            let _ = self.die(Wait::Always);
        }
    }
}

impl EndKey for Key {
    fn end_for_good(&self) -> bool {
        match self.begin(Wait::No, begin_die) {
            Ok(()) => {
                self.end(true);
                true
            }
            // The task of the step in progress revokes the key.
            Err(Stop::Refused(KeyError::Busy)) => false,
            Err(_) => true,
        }
    }
}

impl AsRef<Key> for Key {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Key {
    /// Begins a step of the slot. The caller executes and completes the step.
    pub(super) fn begin(
        &self,
        wait: Wait,
        step: impl Fn(&mut KeySlot) -> Result<(), KeyError>,
    ) -> Result<(), Stop> {
        loop {
            let taken = {
                let mut slot = self.state.lock();
                match step(&mut slot.life) {
                    Err(KeyError::Busy) if wait != Wait::No => self.settled.taken(),
                    other => return other.map_err(Stop::Refused),
                }
            };
            trace::waiting();
            match wait {
                Wait::Always => self.settled.wait(taken),
                _ => self
                    .settled
                    .wait_killable(taken, 0)
                    .map_err(|_| Stop::Killed)?,
            }
        }
    }

    /// Begins an assignment. If the slot has a used-up single-use key, revokes that key first.
    pub(super) fn begin_assign(&self, wait: Wait, grant: Window) -> Result<(), Stop> {
        loop {
            match self.begin(wait, |life| life.begin_assign(grant)) {
                Err(Stop::Refused(KeyError::Assigned)) => {}
                other => return other,
            }
            // Revoke only the used-up key: another task may have assigned a new one since the
            // check.
            let Some(used) = self.used() else {
                return self.begin(wait, |life| life.begin_assign(grant));
            };
            match self.begin(wait, |life| life.begin_take_back(used)) {
                Ok(()) => {
                    self.end(false);
                    self.renew();
                }
                // Another task has revoked the used-up key.
                Err(Stop::Refused(KeyError::NotAssigned)) => {}
                other => return other,
            }
        }
    }

    /// Returns the value of the slot's key if that is a used-up single-use key.
    fn used(&self) -> Option<u64> {
        match self.state.lock().life.state() {
            State::Assigned { value, grant, .. } if grant.once => Some(value),
            _ => None,
        }
        .filter(|_| self.ops.used())
    }

    /// Returns whether the slot has a used-up single-use key.
    pub(crate) fn is_used(&self) -> bool {
        self.used().is_some()
    }

    /// Identifies the slot in reports: its address in memory.
    fn id(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Completes a step and wakes the waiters of the slot.
    pub(super) fn complete_step<R>(&self, step: impl FnOnce(&mut Slot) -> R) -> R {
        let mut slot = self.state.lock();
        let result = step(&mut slot);
        self.settled.take();
        result
    }

    /// Checks the arguments of an assignment; returns the domain and the grant.
    ///
    /// # Errors
    ///
    /// See [`Key::assign`].
    pub(super) fn grant_of(
        &self,
        offset: u64,
        len: u64,
        access: u64,
        once: bool,
    ) -> Result<(&Arc<Domain>, Window)> {
        let region = self.region.as_ref().ok_or(EINVAL)?;
        self.auth.under.check()?;
        let memory = region.memory();
        memory.check()?;
        range::non_empty_sub_range(offset, len, memory.filled() as u64).map_err(|_| EINVAL)?;
        if !rights::valid_key_access(access) {
            return Err(EINVAL);
        }
        if !rights::key_within(access, region.access()) || !memory.is_current() {
            return Err(EACCES);
        }
        let domain = region.domain();
        if once && domain.attr().caps & KFI_SINGLE_USE_KEYS == 0 {
            return Err(eopnotsupp());
        }
        domain.check()?;
        let grant = Window {
            offset,
            len,
            access,
            once,
        };
        Ok((domain, grant))
    }

    /// Builds the provider's request for `grant`.
    pub(crate) fn order(&self, grant: Window) -> KeyAssign<'_> {
        KeyAssign {
            slot: &*self.ops,
            offset: grant.offset,
            len: grant.len,
            access: grant.access,
            once: grant.once,
            value: KeyValue::NONE,
        }
    }

    /// Completes an assignment with the provider's result. If it failed, the caller
    /// [renews](Self::renew) the slot once no task waits for the caller any more.
    pub(crate) fn assigned(&self, made: Result<KeyValue>) -> Result<KeyValue> {
        let value = match made {
            Ok(value) => value,
            Err(e) => {
                self.complete_step(|slot| {
                    trace::assigning(self.id(), &slot.life, Err(e));
                    slot.life.assign_failed()
                })
                .map_err(refused)?;
                return Err(e);
            }
        };
        let outcome = self.complete_step(|slot| {
            slot.remote_addr = value.remote_addr;
            trace::assigning(self.id(), &slot.life, Ok(value.key));
            slot.life.assigned(value.key)
        });
        match outcome.map_err(refused)? {
            AssignOutcome::Valid => Ok(value),
            AssignOutcome::RevokeNow => {
                self.end(true);
                Err(ENOENT)
            }
        }
    }

    pub(super) fn give(&self, domain: &Domain, grant: Window) -> Result<KeyValue> {
        self.begin_assign(Wait::Killable, grant)?;
        let mut order = [self.order(grant)];
        let made = domain.ops().assign_keys(&mut order);
        let [order] = order;
        let made = self.assigned(made.map(|()| order.value).map_err(|(_, e)| e));
        made.inspect_err(|_| self.renew())
    }

    /// Assigns a key to the slot, for [offset, offset + len) of its region, with the remote rights
    /// `access`. When this returns the key is valid everywhere.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the range is empty or not inside the region, or `access` has no remote right.
    /// - `EACCES` if `access` exceeds the region's rights, or the memory belongs to another
    ///   process.
    /// - `EBUSY` if the slot has a key.
    /// - `ENOENT` if the slot was closed.
    /// - `EMSGSIZE` if one key cannot export as much of this memory (kverbs: 256 pages of the
    ///   kernel's memory).
    /// - `EKEYREVOKED`, `EKEYEXPIRED` if the slot's grant has ended.
    /// - `ENODEV` if the device is gone.
    /// - `EHWPOISON`, `ENODEV`, or at the moment of the failure `ENOENT`, if the memory is that of a
    ///   [DAX device](crate::memory::dax::Device) that has failed or is being removed.
    /// - `EIO`, `ETIMEDOUT` if the device failed.
    /// - `EINTR` if the task was killed while it waited for another step of the slot.
    /// - `ENOMEM`, `ENOSPC` if the machine or the device has no more; only in the two cases below.
    ///
    /// The slot has reserved the resources of an assignment, so nothing is allocated, with two
    /// exceptions. If the provider registers the window in full (kverbs: more than 256 pages), it
    /// allocates. If the last revocation could not refill the slot's reserve, the assignment
    /// allocates instead.
    pub fn assign(&self, offset: u64, len: u64, access: u64) -> Result<KeyValue> {
        let (domain, grant) = self.grant_of(offset, len, access, false)?;
        self.give(domain, grant)
    }

    /// As [`Key::assign`], but the first operation that uses the key ends it: a read, a write or an
    /// atomic. If several operations arrive at once, one of them succeeds. The slot can then be
    /// assigned again without a revocation.
    ///
    /// # Errors
    ///
    /// As [`Key::assign`], and:
    ///
    /// - `EOPNOTSUPP` if the domain has no single-use keys (`KFI_SINGLE_USE_KEYS`).
    pub fn assign_once(&self, offset: u64, len: u64, access: u64) -> Result<KeyValue> {
        let (domain, grant) = self.grant_of(offset, len, access, true)?;
        self.give(domain, grant)
    }

    /// Returns whether the slot is being closed: no assignment succeeds, not even one in progress.
    pub(crate) fn is_dying(&self) -> bool {
        self.state.lock().life.is_dying()
    }

    /// Makes the provider never issue the foreseen key value.
    pub(crate) fn forget(&self) {
        self.ops.forget();
    }

    /// Revokes a key whose value is not the promised one; the slot's step is not completed by it.
    pub(crate) fn drop_made(&self) {
        self.ops.revoke(false);
    }

    /// Revokes the key of a slot that the caller has moved to [`State::Revoking`]. Unless it is the
    /// slot's `last` key, the caller [renews](Self::renew) the slot afterwards.
    pub(super) fn end(&self, last: bool) {
        self.ops.revoke(last);
        self.ended();
    }

    /// Completes a revocation.
    fn ended(&self) {
        // Cannot fail: the caller owns the step.
        let _ = self.complete_step(|slot| {
            trace::revoking(self.id(), &slot.life);
            slot.life.revoked()
        });
    }

    /// Refills the slot's reserve after a key has ended.
    pub(super) fn renew(&self) {
        self.renew_when(false);
    }

    /// As [`Key::renew`], for one of many slots whose keys have all ended: a refill never prolongs
    /// another key. If the task is being killed, a worker refills the slot.
    pub(crate) fn renew_in_turn(&self) {
        self.renew_when(sys::pause().is_err());
    }

    /// Makes a worker refill the slot's reserve after a failed assignment.
    pub(crate) fn renew_later(&self) {
        self.renew_when(true);
    }

    fn renew_when(&self, later: bool) {
        if self.region.is_some() && !self.is_dying() {
            self.ops.renew(later);
        }
    }

    /// Revokes the slot's key and refills the slot's reserve.
    ///
    /// After the return no byte is read or written through the key (P3). If memory or device
    /// resources are short, the refill fails silently; the key is revoked all the same, and the
    /// next assignment retries the refill.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the slot has no key.
    /// - `ENOENT` if the slot was closed.
    /// - `EINTR` if the task was killed while it waited for another step of the slot.
    pub fn revoke(&self) -> Result {
        self.begin(Wait::Killable, KeySlot::begin_revoke)?;
        self.end(false);
        self.renew();
        Ok(())
    }

    /// Revokes the key if its value is `value`, which the caller has not passed on. As
    /// [`Key::revoke`], but the wait for another step of the slot cannot be interrupted.
    pub fn take_back(&self, value: &KeyValue) {
        let key = value.key;
        if self
            .begin(Wait::Always, |life| life.begin_take_back(key))
            .is_ok()
        {
            self.end(false);
            self.renew();
        }
    }

    /// Revokes the key if the slot has one; returns whether it had one. `None` if another step of
    /// the slot is in progress. The caller [renews](Self::renew_in_turn) the slots after its last
    /// revocation.
    pub(crate) fn try_revoke(&self) -> Option<bool> {
        match self.begin(Wait::No, KeySlot::begin_revoke) {
            Ok(()) => {
                self.end(false);
                Some(true)
            }
            Err(Stop::Refused(KeyError::Busy)) => None,
            Err(_) => Some(false),
        }
    }

    /// Revokes the keys of many slots; skips slots without a key. Returns how many keys it revoked.
    ///
    /// After the return no byte is read or written through any of these keys (P3). A wait for a
    /// busy slot does not delay the revocation of the other slots' keys. The order of `keys`
    /// changes.
    ///
    /// # Errors
    ///
    /// The number of revoked keys, and:
    ///
    /// - `EINTR` if the task was killed while it waited. The keys of all slots are revoked, except
    ///   those of busy slots, which now come first in `keys`.
    pub fn revoke_many<K: AsRef<Key>>(keys: &mut [K]) -> Result<usize, (usize, Error)> {
        let ended = Self::end_many(keys);
        Self::renew_many(keys);
        ended
    }

    /// As [`Key::revoke_many`], but does not refill the slots' reserves. Until [`Key::renew_many`],
    /// an assignment allocates these resources itself, and can fail if there are none.
    ///
    /// # Errors
    ///
    /// As [`Key::revoke_many`].
    pub fn end_many<K: AsRef<Key>>(keys: &mut [K]) -> Result<usize, (usize, Error)> {
        Self::end_each(keys, |key| Some(key.as_ref()))
    }

    /// Refills the reserves of slots whose keys [`Key::end_many`] revoked.
    pub fn renew_many<K: AsRef<Key>>(keys: &[K]) {
        keys.iter().for_each(|key| key.as_ref().renew_in_turn());
    }

    /// As [`Key::revoke_many`], for elements that have a key or none. The caller
    /// [renews](Self::renew_in_turn) the slots.
    pub(crate) fn end_each<T>(
        of: &mut [T],
        key: fn(&T) -> Option<&Key>,
    ) -> Result<usize, (usize, Error)> {
        let mut ended = 0;
        let mut left = of;
        loop {
            let before = left.len();
            let (mut next, mut busy) = (0, 0);
            while next < before {
                sys::cond_resched();
                let some = Self::end_some(left.get(next..).unwrap_or_default(), key);
                ended += some.ended;
                next += some.passed;
                if some.stopped {
                    left.swap(busy, next);
                    busy += 1;
                    next += 1;
                }
            }
            let all = core::mem::take(&mut left);
            left = all.get_mut(..busy).unwrap_or_default();
            let Some(first) = left.first().and_then(key) else {
                return Ok(ended);
            };
            if busy == before {
                first.rest().map_err(|e| (ended, e))?;
            }
        }
    }

    /// Revokes the keys of slots, from the first one on: as many as are of one domain, in one call to
    /// the provider. Does not wait for a slot: it stops before the first one that is busy.
    fn end_some<T>(of: &[T], key: fn(&T) -> Option<&Key>) -> Passed {
        let mut some = Passed::default();
        let mut begun: [Option<&Key>; TOGETHER] = [None; TOGETHER];
        let mut domain: Option<&Arc<Domain>> = None;
        let mut places = begun.iter_mut();
        for item in of.iter().take(TOGETHER) {
            if let Some(key) = key(item) {
                let of_key = key.domain();
                if domain.is_some_and(|domain| !of_key.is_some_and(|of| Arc::ptr_eq(domain, of))) {
                    break;
                }
                match key.begin(Wait::No, KeySlot::begin_revoke) {
                    Ok(()) => {
                        some.ended += 1;
                        match of_key.and_then(|of| Some((of, places.next()?))) {
                            Some((of, place)) => {
                                domain = Some(of);
                                *place = Some(key);
                            }
                            // A region's own key knows no domain.
                            None => key.end(false),
                        }
                    }
                    Err(Stop::Refused(KeyError::Busy)) => {
                        some.stopped = true;
                        break;
                    }
                    Err(_) => {}
                }
            }
            some.passed += 1;
        }
        if let (Some(domain), [Some(first), ..]) = (domain, begun) {
            let ops = begun.map(|key| &*key.unwrap_or(first).ops);
            let count = begun.iter().flatten().count();
            domain
                .ops()
                .revoke_keys(ops.get(..count).unwrap_or_default());
            begun.iter().flatten().for_each(|key| key.ended());
        }
        some
    }

    /// Waits up to `REST_MS` for the slot's step in progress, if there is one.
    ///
    /// # Errors
    ///
    /// - `EINTR` if the task is being killed.
    fn rest(&self) -> Result {
        let taken = {
            let slot = self.state.lock();
            match slot.life.state() {
                State::Assigning(_) | State::Promised { .. } | State::Revoking { .. } => {
                    self.settled.taken()
                }
                _ => return Ok(()),
            }
        };
        self.settled.wait_killable(taken, REST_MS)
    }

    /// The region of the slot; `None` for a region's own key.
    pub(crate) fn region(&self) -> Option<&Arc<Region>> {
        self.region.as_ref().map(Held::arc)
    }

    pub(super) fn domain(&self) -> Option<&Arc<Domain>> {
        self.region.as_ref().map(|region| region.domain())
    }

    /// The slot's key value. `None` if the slot has no key, the key is used up, or an assignment or
    /// revocation is in progress.
    pub fn value(&self) -> Option<KeyValue> {
        if self.is_used() {
            return None;
        }
        let slot = self.state.lock();
        match slot.life.state() {
            State::Assigned { value, .. } => Some(KeyValue {
                key: value,
                remote_addr: slot.remote_addr,
            }),
            _ => None,
        }
    }

    /// Offset, length and rights of the slot's key. `None` if the slot has no key, or an assignment
    /// or revocation is in progress.
    pub fn grant(&self) -> Option<(u64, u64, u64)> {
        match self.state.lock().life.state() {
            State::Assigned { grant, .. } => Some((grant.offset, grant.len, grant.access)),
            _ => None,
        }
    }

    /// Revokes the key, if there is one. No assignment succeeds afterwards, even if the wait for
    /// another step was interrupted.
    fn die(&self, wait: Wait) -> Result {
        match self.begin(wait, begin_die) {
            Ok(()) => self.end(true),
            Err(Stop::Killed) => return Err(EINTR),
            Err(Stop::Refused(_)) => {}
        }
        Ok(())
    }

    /// Returns the slot's state and the number of keys it has had.
    pub(crate) fn state(&self) -> (State, u64) {
        let slot = self.state.lock();
        let state = slot.life.state();
        let ended = slot.life.generation() - 1;
        let now = !matches!(state, State::Reserved | State::Freed);
        (state, ended + u64::from(now))
    }

    /// Revokes the key, if there is one; no assignment succeeds afterwards.
    pub(crate) fn kill(&self) {
        // Cannot fail: `Wait::Always` is not interrupted.
        let _ = self.die(Wait::Always);
        if let Some(bound) = &self.bound {
            bound.remove(self);
        }
        self.auth.under.end();
    }

    /// As [`Key::kill`], for a program. A program itself can delay the slot's step in progress, so
    /// the wait is killable.
    ///
    /// # Errors
    ///
    /// - `EINTR` if the task was killed while it waited. The slot stays open but gets no key any
    ///   more.
    pub(crate) fn kill_killable(&self) -> Result {
        self.die(Wait::Killable)?;
        self.kill();
        Ok(())
    }

    /// As [`Key::close`], for a program; see [`Key::kill_killable`].
    ///
    /// # Errors
    ///
    /// - `EINTR` if the task was killed while it waited. The slot stays open but gets no key any
    ///   more.
    pub(crate) fn close_killable(&self) -> Result {
        self.kill_killable()?;
        self.close();
        Ok(())
    }

    /// Closes the slot. After the return its key is revoked.
    pub fn close(&self) {
        self.kill();
        if let Some(region) = &self.region {
            region.release();
        }
    }
}
