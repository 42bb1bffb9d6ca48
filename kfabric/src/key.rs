// SPDX-License-Identifier: GPL-2.0
//! Keys (`fi_mr(3)`): what peers may reach of a region, and for how long.
//!
//! A key is a slot that is assigned to a sub-range with rights, and revoked, without touching the
//! pin. What comes after what on one slot is decided by its state machine ([`KeySlot`]), under
//! the slot's lock; the provider is asked without it. Whoever comes meanwhile waits until that is
//! over, so a call on one slot waits for the others on it, and for no others.

mod many;
mod ordered;

use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

mod alloc;

pub use crate::later::Failures;
pub use many::Assignment;

use crate::{
    auth::Apart,
    bound::Bound,
    errno::eopnotsupp,
    fabric::Domain,
    object::Held,
    provider::{
        KeyAssign,
        KeyOps,
        KeyValue, //
    },
    pure::{
        key::{
            AssignOutcome,
            Death,
            Grant,
            KeyError,
            KeySlot,
            State, //
        },
        range,
        rights, //
    },
    region::Region,
    seen,
    sys::{
        self,
        steps::Steps, //
    },
    uapi::KFI_SINGLE_USE_KEYS,
};

/// Keys that a provider is asked for at once, at most: what one wait serves.
pub const CHAIN: usize = 64;

/// How often slots on which something is under way are looked at again while one of them is waited
/// for, in milliseconds.
const REST_MS: u32 = 10;

/// What a slot's lock guards.
struct Slot {
    life: KeySlot,
    remote_addr: u64,
}

/// A key slot.
#[pin_data]
pub struct Key {
    // Dropped before the region's hold.
    ops: KBox<dyn KeyOps>,
    #[pin]
    state: Mutex<Slot>,
    /// Taken whenever what was under way is over.
    #[pin]
    settled: Steps,
    // What is the provider's goes before the region's hold, which keeps its module.
    auth: Apart,
    region: Option<Held<Region>>,
    /// Of the endpoint that it is bound to.
    bound: Option<Arc<Bound>>,
}

/// Whether to wait for what is under way on a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Not at all: [`KeyError::Busy`].
    No,
    /// Unless the task is killed.
    Killable,
    /// Whatever comes.
    Always,
}

/// Why something was not begun.
enum Stop {
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

fn refused(error: KeyError) -> Error {
    match error {
        KeyError::Assigned | KeyError::Busy => EBUSY,
        KeyError::NotAssigned => EINVAL,
        KeyError::Freed | KeyError::Dying => ENOENT,
        KeyError::Exhausted => ENOSPC,
        KeyError::OutOfOrder => EIO,
    }
}

/// The first step of a slot's end.
fn begin_die(life: &mut KeySlot) -> Result<(), KeyError> {
    match life.die() {
        Death::Freed => Err(KeyError::Freed),
        Death::Revoke => Ok(()),
        Death::Wait => Err(KeyError::Busy),
    }
}

impl AsRef<Key> for Key {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Key {
    /// Takes the first step of something, which its caller then does and ends.
    fn begin(
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
            seen::waiting();
            match wait {
                Wait::Always => self.settled.wait(taken),
                _ => self
                    .settled
                    .wait_killable(taken, 0)
                    .map_err(|_| Stop::Killed)?,
            }
        }
    }

    /// Takes the first step of an assignment. A key for one use that is used up is ended before.
    fn begin_assign(&self, wait: Wait, grant: Grant) -> Result<(), Stop> {
        loop {
            match self.begin(wait, |life| life.begin_assign(grant)) {
                Err(Stop::Refused(KeyError::Assigned)) => {}
                other => return other,
            }
            // That one and no other: somebody may be as far as we are.
            let Some(used) = self.used() else {
                return self.begin(wait, |life| life.begin_assign(grant));
            };
            match self.begin(wait, |life| life.begin_take_back(used)) {
                Ok(()) => {
                    self.end();
                    self.renew();
                }
                // Somebody else has ended it.
                Err(Stop::Refused(KeyError::NotAssigned)) => {}
                other => return other,
            }
        }
    }

    /// Its key, if that was for one use and is used up.
    fn used(&self) -> Option<u64> {
        match self.state.lock().life.state() {
            State::Assigned { value, grant, .. } if grant.once => Some(value),
            _ => None,
        }
        .filter(|_| self.ops.used())
    }

    /// Whether it had a key for one use, which is used up.
    pub(crate) fn is_used(&self) -> bool {
        self.used().is_some()
    }

    /// Takes the last step, and wakes who waits for it.
    fn settle<R>(&self, step: impl FnOnce(&mut Slot) -> R) -> R {
        let mut slot = self.state.lock();
        let result = step(&mut slot);
        self.settled.take();
        result
    }

    /// What an assignment gives.
    ///
    /// # Errors
    ///
    /// See [`Key::assign`].
    fn grant_of(
        &self,
        offset: u64,
        len: u64,
        access: u64,
        once: bool,
    ) -> Result<(&Arc<Domain>, Grant)> {
        let region = self.region.as_ref().ok_or(EINVAL)?;
        self.auth.under.check()?;
        let memory = region.memory();
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
        let grant = Grant {
            offset,
            len,
            access,
            once,
        };
        Ok((domain, grant))
    }

    /// What the provider is asked for.
    pub(crate) fn order(&self, grant: Grant) -> KeyAssign<'_> {
        KeyAssign {
            slot: &*self.ops,
            offset: grant.offset,
            len: grant.len,
            access: grant.access,
            once: grant.once,
            value: KeyValue::NONE,
        }
    }

    /// Ends an assignment as the provider answered. Should that be a failure, the slot is to be
    /// [renewed](Self::renew) when nothing waits for the caller any more.
    pub(crate) fn assigned(&self, made: Result<KeyValue>) -> Result<KeyValue> {
        let value = match made {
            Ok(value) => value,
            Err(e) => {
                self.settle(|slot| {
                    seen::assigning(self, &slot.life, Err(e));
                    slot.life.assign_failed()
                })
                .map_err(refused)?;
                return Err(e);
            }
        };
        let outcome = self.settle(|slot| {
            slot.remote_addr = value.remote_addr;
            seen::assigning(self, &slot.life, Ok(value.key));
            slot.life.assigned(value.key)
        });
        match outcome.map_err(refused)? {
            AssignOutcome::Valid => Ok(value),
            AssignOutcome::RevokeNow => {
                self.end();
                Err(ENOENT)
            }
        }
    }

    fn give(&self, domain: &Domain, grant: Grant) -> Result<KeyValue> {
        self.begin_assign(Wait::Killable, grant)?;
        let mut order = [self.order(grant)];
        let made = domain.ops().assign_keys(&mut order);
        let [order] = order;
        let made = self.assigned(made.map(|()| order.value).map_err(|(_, e)| e));
        made.inspect_err(|_| self.renew())
    }

    /// Gives the slot a key for [offset, offset + len) of its region, with the remote rights
    /// `access`. When this returns the key is valid everywhere.
    ///
    /// # Errors
    ///
    /// `EINVAL`: empty, not inside, or no remote right at all. `EACCES`: rights beyond the
    /// region's, or the memory is another process's. `EBUSY`: it has a key. `ENOENT`: the slot was
    /// closed. `EMSGSIZE`: more than the provider can export of this memory by one key (kverbs: of
    /// the kernel's memory, 256 pages). `ENODEV`: the device is gone. `EIO`, `ETIMEDOUT`: it
    /// failed. `EINTR`: something else is under way on the slot, and the task was killed while it
    /// waited for that.
    ///
    /// A slot has in reserve what this takes, so nothing is allocated, with two exceptions, of
    /// which it may fail (`ENOMEM`, `ENOSPC`: the machine or the device has no more): a window that
    /// the provider has to register in full (kverbs: more than 256 pages), and a slot for which the
    /// revocation of its last key could not reserve that again.
    pub fn assign(&self, offset: u64, len: u64, access: u64) -> Result<KeyValue> {
        let (domain, grant) = self.grant_of(offset, len, access, false)?;
        self.give(domain, grant)
    }

    /// As [`Key::assign`], but the key ends with the first operation that is done by it, whether a
    /// read, a write or an atomic. Of several that come at once one is done. The slot can be
    /// assigned again then, without being revoked.
    ///
    /// # Errors
    ///
    /// As [`Key::assign`]; `EOPNOTSUPP`: the domain has no such keys (`KFI_SINGLE_USE_KEYS`).
    pub fn assign_once(&self, offset: u64, len: u64, access: u64) -> Result<KeyValue> {
        let (domain, grant) = self.grant_of(offset, len, access, true)?;
        self.give(domain, grant)
    }

    /// Whether it gets no key any more, not even the one that is under way.
    pub(crate) fn is_dying(&self) -> bool {
        self.state.lock().life.is_dying()
    }

    /// Has the provider never give what was told.
    pub(crate) fn forget(&self) {
        self.ops.forget();
    }

    /// Ends what the provider made, which is not what was promised; the slot's step goes on.
    pub(crate) fn drop_made(&self) {
        self.ops.revoke();
    }

    /// Ends the key, in [`State::Revoking`] by the caller's own step. If the slot may get another
    /// one, what that takes is to be [reserved](Self::renew) afterwards.
    fn end(&self) {
        self.ops.revoke();
        // Nobody else may take this step.
        let _ = self.settle(|slot| {
            seen::revoking(self, &slot.life);
            slot.life.revoked()
        });
    }

    /// Reserves anew what an ended key used up.
    fn renew(&self) {
        self.renew_when(false);
    }

    /// As [`Key::renew`], for one of many, all of which have ended: no key lives longer for what
    /// others need. A task that is killed leaves it to a worker.
    pub(crate) fn renew_in_turn(&self) {
        self.renew_when(sys::pause().is_err());
    }

    /// Has a worker reserve anew what a failed assignment used up.
    pub(crate) fn renew_later(&self) {
        self.renew_when(true);
    }

    fn renew_when(&self, later: bool) {
        if self.region.is_some() && !self.is_dying() {
            self.ops.renew(later);
        }
    }

    /// Ends the key. When this returns, nothing is read or written through it any more (P3), and
    /// what the next one takes of the device is reserved again. That may be impossible for want of
    /// memory, or of the device's; the key has ended all the same, and the next assignment tries.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the slot has no key. `ENOENT`: it was closed. `EINTR`: something else is under way
    /// on the slot, and the task was killed while it waited for that.
    pub fn revoke(&self) -> Result {
        self.begin(Wait::Killable, KeySlot::begin_revoke)?;
        self.end();
        self.renew();
        Ok(())
    }

    /// Ends the key if it is `value`, which nobody was told, or will use: as [`Key::revoke`], but what
    /// is under way on the slot is waited for in any case.
    pub fn take_back(&self, value: &KeyValue) {
        let key = value.key;
        if self
            .begin(Wait::Always, |life| life.begin_take_back(key))
            .is_ok()
        {
            self.end();
            self.renew();
        }
    }

    /// Ends the key, if there is one; whether there was. `None`: something else is under way.
    /// Who has ended all that it wanted to end [renews](Self::renew_in_turn) the slots.
    pub(crate) fn try_revoke(&self) -> Option<bool> {
        match self.begin(Wait::No, KeySlot::begin_revoke) {
            Ok(()) => {
                self.end();
                Some(true)
            }
            Err(Stop::Refused(KeyError::Busy)) => None,
            Err(_) => Some(false),
        }
    }

    /// Ends the keys of many slots; slots without one are passed over. When this returns, nothing
    /// is read or written through any key that they had (P3). Returns how many it ended.
    ///
    /// What else is under way on a slot is waited for, and keeps no other slot's key alive
    /// meanwhile. The order of `keys` changes.
    ///
    /// # Errors
    ///
    /// How many it ended, and `EINTR`: the task was killed while it waited. The keys have ended of
    /// all slots but those on which something else is under way, which come first now.
    pub fn revoke_many<K: AsRef<Key>>(keys: &mut [K]) -> Result<usize, (usize, Error)> {
        let ended = Self::end_many(keys);
        Self::renew_many(keys);
        ended
    }

    /// As [`Key::revoke_many`], but does not reserve what the slots' next keys take. Until
    /// [`Key::renew_many`] an assignment does that itself, and may fail for it.
    ///
    /// # Errors
    ///
    /// As [`Key::revoke_many`].
    pub fn end_many<K: AsRef<Key>>(keys: &mut [K]) -> Result<usize, (usize, Error)> {
        Self::end_each(keys, |key| Some(key.as_ref()))
    }

    /// Reserves what the next keys take of slots that [`Key::end_many`] was called for.
    pub fn renew_many<K: AsRef<Key>>(keys: &[K]) {
        keys.iter().for_each(|key| key.as_ref().renew_in_turn());
    }

    /// As [`Key::revoke_many`], of things that have a key, or none, but leaves it to the caller to
    /// [renew](Self::renew_in_turn) the slots.
    pub(crate) fn end_each<T>(
        of: &mut [T],
        key: fn(&T) -> Option<&Key>,
    ) -> Result<usize, (usize, Error)> {
        let mut ended = 0;
        let mut left = of;
        loop {
            let before = left.len();
            let mut busy = 0;
            for i in 0..before {
                sys::cond_resched();
                match left.get(i).and_then(key).map(Key::try_revoke) {
                    Some(None) => {
                        left.swap(busy, i);
                        busy += 1;
                    }
                    Some(Some(had)) => ended += usize::from(had),
                    None => {}
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

    /// Waits a little for what is under way to be over, if something is.
    ///
    /// # Errors
    ///
    /// `EINTR`: the task is being killed.
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

    /// The region that it is a slot of; none for a region's own key.
    pub(crate) fn region(&self) -> Option<&Arc<Region>> {
        self.region.as_ref().map(Held::arc)
    }

    fn domain(&self) -> Option<&Arc<Domain>> {
        self.region.as_ref().map(|region| region.domain())
    }

    /// The key, if it has one. Nothing while it is just being assigned or revoked, nor of a key that
    /// is used up.
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

    /// What the key gives, if it has one: offset, length, rights. Nothing while it is just being
    /// assigned or revoked.
    pub fn grant(&self) -> Option<(u64, u64, u64)> {
        match self.state.lock().life.state() {
            State::Assigned { grant, .. } => Some((grant.offset, grant.len, grant.access)),
            _ => None,
        }
    }

    /// Revokes if there is anything to revoke; no assign succeeds afterwards, not even if the wait
    /// for what is under way was broken off.
    fn die(&self, wait: Wait) -> Result {
        match self.begin(wait, begin_die) {
            Ok(()) => self.end(),
            Err(Stop::Killed) => return Err(EINTR),
            Err(Stop::Refused(_)) => {}
        }
        Ok(())
    }

    /// Where it is in its life, and how many keys it has had.
    pub(crate) fn state(&self) -> (State, u64) {
        let slot = self.state.lock();
        let state = slot.life.state();
        let ended = slot.life.generation() - 1;
        let now = !matches!(state, State::Reserved | State::Freed);
        (state, ended + u64::from(now))
    }

    /// Revokes if there is anything to revoke; no assign succeeds afterwards.
    pub(crate) fn kill(&self) {
        // This wait is never broken off.
        let _ = self.die(Wait::Always);
        if let Some(bound) = &self.bound {
            bound.remove(self);
        }
        self.auth.under.end();
    }

    /// As [`Key::kill`], for a program, which may itself hold up what is under way on the slot.
    ///
    /// # Errors
    ///
    /// `EINTR`: the task was killed while it waited for that. The slot stays, and gets no key.
    pub(crate) fn kill_killable(&self) -> Result {
        self.die(Wait::Killable)?;
        self.kill();
        Ok(())
    }

    /// As [`Key::close`], for a program; see [`Key::kill_killable`].
    ///
    /// # Errors
    ///
    /// `EINTR`: the task was killed while it waited. The slot stays, and gets no key.
    pub(crate) fn close_killable(&self) -> Result {
        self.kill_killable()?;
        self.close();
        Ok(())
    }

    /// Closes: its key is dead when this returns.
    pub fn close(&self) {
        self.kill();
        if let Some(region) = &self.region {
            region.release();
        }
    }
}
