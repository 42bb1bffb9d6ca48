// SPDX-License-Identifier: GPL-2.0
//! Grants. They belong to the machine, and outlive the processes that installed them.

use core::{
    mem::MaybeUninit,
    sync::atomic::{
        AtomicBool,
        AtomicU32,
        AtomicU64,
        Ordering, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::RBTree,
    sync::{
        Arc,
        Mutex,
        UniqueArc, //
    }, //
};

use super::{
    auth_key::AuthKey,
    reaper,
    Caller,
    ResourceRequest, //
};
use crate::{
    base::errno::{
        edquot,
        ekeyexpired,
        ekeyrevoked,
        enokey, //
    },
    pure::grant::{
        end,
        left,
        right,
        Amount,
        Limits,
        Miss,
        Rule,
        NEVER, //
    },
    sys::auth::{
        now_ms,
        Process, //
    },
    uapi::*,
};

/// Grants at most, on the machine.
const GRANTS_MAX: usize = 65_536;
/// Of these, answers to one user's upcalls (effective uid), so that no user fills the list.
const USER_ANSWERS_MAX: usize = GRANTS_MAX / 4;

/// The parts of a grant that can change.
#[derive(Clone, Copy)]
struct Terms {
    limits: Limits,
    used: Amount,
}

/// Description of a grant to install.
pub(crate) struct NewGrant {
    pub(crate) key: AuthKey,
    pub(crate) rule: Rule,
    pub(crate) rights: u32,
    pub(crate) limits: Limits,
    /// Lifetime in milliseconds; 0 for no end.
    pub(crate) lifetime: u64,
    /// For an answer: the requester's process and its effective uid.
    pub(crate) answered: Option<(Arc<Process>, u32)>,
}

/// A grant.
#[pin_data]
pub(crate) struct Grant {
    id: u64,
    key: AuthKey,
    rule: Rule,
    rights: u32,
    answered: Option<(Arc<Process>, u32)>,
    /// `KFI_GRANT_*`. Set under the list's lock; it only goes from valid to one of the others.
    state: AtomicU32,
    /// When the grant ends, in milliseconds since boot.
    end: AtomicU64,
    #[pin]
    terms: Mutex<Terms>,
}

impl Grant {
    /// Checks that the grant is valid.
    ///
    /// # Errors
    ///
    /// - `EKEYREVOKED` if the grant was revoked.
    /// - `EKEYEXPIRED` if its lifetime has ended.
    fn check(&self) -> Result {
        match self.state.load(Ordering::Acquire) {
            KFI_GRANT_VALID if !self.is_late() => Ok(()),
            KFI_GRANT_REVOKED => Err(ekeyrevoked()),
            _ => Err(ekeyexpired()),
        }
    }

    /// Returns whether the grant's lifetime has ended, even if its state is still valid.
    fn is_late(&self) -> bool {
        match self.end.load(Ordering::Relaxed) {
            NEVER => false,
            end => now_ms() >= end,
        }
    }

    fn charge(&self, more: &Amount) -> bool {
        let mut terms = self.terms.lock();
        match terms.used.with(more, &terms.limits) {
            Some(sum) => terms.used = sum,
            None => return false,
        }
        true
    }

    fn is_drained(&self) -> bool {
        self.terms.lock().used.is_drained()
    }

    /// Returns whether the grant is useless: an answer for a process that has exited, with nothing
    /// charged.
    fn is_orphan(&self) -> bool {
        self.rule.process != 0
            && self.answered.as_ref().is_some_and(|(of, _)| of.is_gone())
            && self.terms.lock().used == Amount::default()
    }

    pub(crate) fn info(&self) -> GrantInfo {
        let terms = *self.terms.lock();
        GrantInfo {
            id: self.id,
            key: self.key.number(),
            match_: self.rule.what,
            rights: self.rights,
            uid: self.rule.uid,
            gid: self.rule.gid,
            cgroup: self.rule.cgroup,
            netns: self.rule.netns,
            process: self.rule.process,
            max_pinned: terms.limits.pinned,
            max_keys: terms.limits.keys,
            max_eps: terms.limits.eps,
            pinned: terms.used.pinned,
            keys: terms.used.keys,
            eps: terms.used.eps,
            left_ms: left(now_ms(), self.end.load(Ordering::Relaxed)),
            state: self.state.load(Ordering::Acquire),
            answered: self.answered.is_some().into(),
        }
    }
}

/// The charge of one object to a grant. The drop returns the charge.
pub(crate) struct Lease {
    grant: Arc<Grant>,
    amount: Amount,
    ended: AtomicBool,
}

impl Lease {
    /// The grant's id.
    pub(crate) fn id(&self) -> u64 {
        self.grant.id
    }

    /// Checks that the grant is still valid.
    ///
    /// # Errors
    ///
    /// - `EKEYREVOKED` if the grant was revoked.
    /// - `EKEYEXPIRED` if its lifetime has ended.
    pub(crate) fn check(&self) -> Result {
        self.grant.check()
    }

    /// Returns the charge before the drop: the object has ended, though it still exists.
    pub(crate) fn end(&self) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            let mut terms = self.grant.terms.lock();
            terms.used = terms.used.without(&self.amount);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.end();
    }
}

/// All grants, by auth key's number, then by age.
struct Grants {
    list: KVVec<Arc<Grant>>,
    last: u64,
    /// When the worker next examines the grants, in milliseconds since boot.
    next: u64,
}

impl Grants {
    /// Returns the grants for an auth key.
    fn of(&self, key: &AuthKey) -> &[Arc<Grant>] {
        let number = key.number();
        let from = self.list.partition_point(|g| g.key.number() < number);
        let to = self.list.partition_point(|g| g.key.number() <= number);
        self.list.get(from..to).unwrap_or_default()
    }

    /// Returns whether the list is full, or the user has the maximum of answers.
    fn is_full(&self, user: Option<u32>) -> bool {
        let of_user = |grant: &&Arc<Grant>| grant.answered.as_ref().map(|(_, uid)| *uid) == user;
        self.list.len() >= GRANTS_MAX
            // Checked first, because a list below the limit needs no count.
            || (user.is_some()
                && self.list.len() >= USER_ANSWERS_MAX
                && self.list.iter().filter(of_user).count() >= USER_ANSWERS_MAX)
    }

    fn get(&self, id: u64) -> Option<&Arc<Grant>> {
        self.list.iter().find(|grant| grant.id == id)
    }

    /// Schedules the worker for `when` at the latest.
    fn wake_at(&mut self, when: u64) {
        if when < self.next {
            self.next = when;
            reaper::wake_in(when.saturating_sub(now_ms()));
        }
    }
}

kernel::sync::global_lock! {
    // SAFETY: Initialised at module load, before anything uses it.
    unsafe(uninit) static GRANTS: Mutex<Grants> = Grants {
        list: KVVec::new(),
        last: 0,
        next: NEVER,
    };
}

/// Counts changes that may admit a caller refused before.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Initialises the list.
///
/// # Safety
///
/// Called once, at module load.
pub(super) unsafe fn init() {
    // SAFETY: The caller's contract: this is called once, at module load.
    unsafe { GRANTS.init() }
}

/// Frees the list.
pub(super) fn exit() {
    let list = core::mem::replace(&mut GRANTS.lock().list, KVVec::new());
    drop(list);
}

/// Schedules the worker for `when` at the latest, in milliseconds since boot.
pub(super) fn wake_at(when: u64) {
    GRANTS.lock().wake_at(when);
}

/// Returns how often grants were installed or changed.
pub(crate) fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// Returns the number of grants.
pub(crate) fn count() -> usize {
    GRANTS.lock().list.len()
}

/// Charges the first grant that covers the caller's request under `key`; returns the lease.
///
/// # Errors
///
/// The reason why no grant covers the request, and its errno.
pub(crate) fn find(
    key: &AuthKey,
    caller: &Caller,
    want: ResourceRequest,
) -> Result<Lease, (Miss, Error)> {
    let mut miss = (Miss::Nothing, enokey());
    let mut worse = |other: (Miss, Error)| {
        if other.0 > miss.0 {
            miss = other;
        }
    };
    let grants = GRANTS.lock();
    for grant in grants.of(key) {
        if grant.rights & want.rights != want.rights || !grant.rule.covers(caller) {
            continue;
        }
        match grant.check() {
            Err(e) if e == ekeyrevoked() => worse((Miss::Revoked, e)),
            Err(e) => worse((Miss::Expired, e)),
            Ok(()) if grant.charge(&want.amount) => {
                return Ok(Lease {
                    grant: grant.clone(),
                    amount: want.amount,
                    ended: AtomicBool::new(false),
                })
            }
            Ok(()) => worse((Miss::OverLimit, edquot())),
        }
    }
    Err(miss)
}

/// Installs a grant and returns its id.
///
/// # Errors
///
/// - `EINVAL` if the new grant has no rule or no right.
/// - `EBUSY` if the auth key is in quarantine.
/// - `ENOSPC` if there are too many grants, or too many answers to one user.
/// - `ENOMEM` if there is no memory.
pub(crate) fn add(mut new: NewGrant) -> Result<u64> {
    loop {
        match add_with(new, Room::new()?)? {
            Ok(id) => return Ok(id),
            Err(again) => new = again,
        }
    }
}

/// Memory for a new grant, allocated before any lock is taken.
pub(super) struct Room {
    place: UniqueArc<MaybeUninit<Grant>>,
    /// A larger list, if the present one is full.
    larger: KVVec<Arc<Grant>>,
}

impl Room {
    /// Allocates the memory.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory.
    pub(super) fn new() -> Result<Self> {
        let (count, capacity) = {
            let grants = GRANTS.lock();
            (grants.list.len(), grants.list.capacity())
        };
        let larger = if count == capacity {
            // UNACCOUNTED: The list is shared by all grants.
            KVVec::with_capacity(2 * count + 16, GFP_KERNEL)?
        } else {
            KVVec::new()
        };
        // UNACCOUNTED: An administrator, or the agent, installs the grant.
        let place = UniqueArc::new_uninit(GFP_KERNEL)?;
        Ok(Self { place, larger })
    }
}

/// Installs a grant in `room` without an allocation, and returns its id. Gives `new` back if other
/// grants have filled the list since `room` was allocated.
///
/// # Errors
///
/// The errors of [`add`], without `ENOMEM`.
pub(super) fn add_with(new: NewGrant, room: Room) -> Result<Result<u64, NewGrant>> {
    let Room { place, mut larger } = room;
    if !new.rule.is_valid() || new.rights == 0 || new.rights & !right::ALL != 0 {
        return Err(EINVAL);
    }
    let end = end(now_ms(), new.lifetime);
    let id = {
        let mut grants = GRANTS.lock();
        if grants
            .of(&new.key)
            .iter()
            .any(|grant| grant.check().is_err())
        {
            return Err(EBUSY);
        }
        let user = new.answered.as_ref().map(|(_, uid)| *uid);
        if grants.is_full(user) {
            reap(&mut grants);
        }
        if grants.is_full(user) {
            return Err(ENOSPC);
        }
        let count = grants.list.len();
        if count == grants.list.capacity() {
            if larger.capacity() <= count {
                return Ok(Err(new));
            }
            for grant in grants.list.drain_all() {
                // Cannot fail: the buffer has room for more grants than these.
                let _ = larger.push_within_capacity(grant);
            }
            core::mem::swap(&mut grants.list, &mut larger);
        }
        let id = grants.last + 1;
        let number = new.key.number();
        let terms = Terms {
            limits: new.limits,
            used: Amount::default(),
        };
        let made = place.pin_init_with(pin_init!(Grant {
            id,
            key: new.key,
            rule: new.rule,
            rights: new.rights,
            answered: new.answered,
            state: AtomicU32::new(KFI_GRANT_VALID),
            end: AtomicU64::new(end),
            terms <- new_mutex!(terms, "kfabric_grant"),
        }));
        let grant = match made {
            Ok(grant) => grant.into(),
            Err(never) => match never {},
        };
        let at = grants.list.partition_point(|g| g.key.number() <= number);
        // Cannot fail: the list has room, by the growth above.
        let _ = grants.list.insert_within_capacity(at, grant);
        grants.last = id;
        grants.wake_at(end);
        id
    };
    CHANGES.fetch_add(1, Ordering::Release);
    Ok(Ok(id))
}

/// Removes answers for exited processes from the list, in one pass: a user's processes may all exit
/// at once.
fn reap(grants: &mut Grants) {
    grants.list.retain(|grant| !grant.is_orphan());
}

/// Changes a grant's limits, its lifetime, or both.
///
/// # Errors
///
/// - `ENOENT` if there is no such grant, or it has ended.
pub(crate) fn change(id: u64, limits: Option<Limits>, lifetime: Option<u64>) -> Result {
    let mut grants = GRANTS.lock();
    let grant = grants.get(id).ok_or(ENOENT)?.clone();
    grant.check().map_err(|_| ENOENT)?;
    if let Some(limits) = limits {
        grant.terms.lock().limits = limits;
    }
    if let Some(lifetime) = lifetime {
        let end = end(now_ms(), lifetime);
        grant.end.store(end, Ordering::Relaxed);
        grants.wake_at(end);
    }
    drop(grants);
    CHANGES.fetch_add(1, Ordering::Release);
    Ok(())
}

/// Revokes a grant: no object is opened under it any more. [`reaper::sweep`] ends the open ones.
///
/// # Errors
///
/// - `ENOENT` if there is no such grant, or it has ended.
pub(crate) fn revoke(id: u64) -> Result {
    let mut grants = GRANTS.lock();
    let grant = grants.get(id).ok_or(ENOENT)?;
    grant.check().map_err(|_| ENOENT)?;
    grant.state.store(KFI_GRANT_REVOKED, Ordering::Release);
    // In case the caller does not sweep.
    let soon = now_ms() + reaper::AGAIN_MS;
    grants.wake_at(soon);
    Ok(())
}

/// Revokes a grant whose id the agent did not get. If no object was opened under it meanwhile, the
/// auth key can be granted again at once.
pub(crate) fn withdraw(id: u64) {
    if revoke(id).is_ok() {
        collect_ended(false);
    }
}

/// Returns all grants, by age. The list is locked for one pass, without allocation.
///
/// # Errors
///
/// - `ENOMEM` if the copy of the list cannot be allocated.
pub(crate) fn all() -> Result<RBTree<u64, Arc<Grant>>> {
    loop {
        let count = count();
        let mut all = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        {
            let grants = GRANTS.lock();
            if grants.list.len() > count {
                // Grants were installed since the count: allocate a larger list.
                continue;
            }
            for grant in &grants.list {
                // Cannot fail: the capacity was reserved above.
                let _ = all.push_within_capacity(grant.clone());
            }
        }
        let mut by_age = RBTree::new();
        for grant in all {
            by_age.try_create_and_insert(grant.id, grant, GFP_KERNEL_ACCOUNT)?;
        }
        return Ok(by_age);
    }
}

/// Marks grants as expired whose lifetime has ended, and removes ended grants without charges.
/// Returns whether an ended grant remains.
///
/// `looked` is true if the worker calls: its next run is then scheduled anew.
pub(super) fn collect_ended(looked: bool) -> bool {
    let mut grants = GRANTS.lock();
    let (mut next, mut ending) = (NEVER, false);
    // In one pass, however many end at once: every task that opens an object waits for this lock.
    grants.list.retain(|grant| {
        if grant.state.load(Ordering::Acquire) == KFI_GRANT_VALID {
            if !grant.is_late() {
                next = next.min(grant.end.load(Ordering::Relaxed));
                return true;
            }
            grant.state.store(KFI_GRANT_EXPIRED, Ordering::Release);
        }
        let drained = grant.is_drained();
        ending |= !drained;
        !drained
    });
    reap(&mut grants);
    if ending {
        next = next.min(now_ms() + reaper::AGAIN_MS);
    }
    if looked {
        grants.next = NEVER;
    }
    grants.wake_at(next);
    ending
}
