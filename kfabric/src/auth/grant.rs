// SPDX-License-Identifier: GPL-2.0
//! Grants. They are the machine's, and stay whatever becomes of who installed them.

use core::sync::atomic::{
    AtomicBool,
    AtomicU32,
    AtomicU64,
    Ordering, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use super::{
    key::AuthKey,
    sweep,
    Caller,
    Want, //
};
use crate::{
    errno::{
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

/// Grants there may be.
const GRANTS_MAX: usize = 65_536;

/// What may change of a grant.
#[derive(Clone, Copy)]
struct Terms {
    limits: Limits,
    used: Amount,
}

/// What a grant is to be.
pub(crate) struct Offer {
    pub(crate) key: AuthKey,
    pub(crate) rule: Rule,
    pub(crate) rights: u32,
    pub(crate) limits: Limits,
    /// Milliseconds; 0: without end.
    pub(crate) lifetime: u64,
    /// The process that asked, for an answer.
    pub(crate) answered: Option<Arc<Process>>,
}

/// A grant.
#[pin_data]
pub(crate) struct Grant {
    id: u64,
    key: AuthKey,
    rule: Rule,
    rights: u32,
    answered: Option<Arc<Process>>,
    /// `KFI_GRANT_*`. Set under the list's lock; it only goes from valid to one of the others.
    state: AtomicU32,
    /// When it is over, in milliseconds since boot.
    end: AtomicU64,
    #[pin]
    terms: Mutex<Terms>,
}

impl Grant {
    /// Whether it is valid.
    ///
    /// # Errors
    ///
    /// `EKEYREVOKED`, `EKEYEXPIRED`.
    fn check(&self) -> Result {
        match self.state.load(Ordering::Acquire) {
            KFI_GRANT_VALID if !self.is_late() => Ok(()),
            KFI_GRANT_REVOKED => Err(ekeyrevoked()),
            _ => Err(ekeyexpired()),
        }
    }

    /// Whether its time is over, though nobody may have said so yet.
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

    /// Whether it is of use to nobody: an answer about a process that is gone.
    fn is_orphan(&self) -> bool {
        self.rule.process != 0
            && self.answered.as_ref().is_some_and(|of| of.is_gone())
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

/// What one object takes of a grant. Dropped, it is given back.
pub(crate) struct Lease {
    grant: Arc<Grant>,
    amount: Amount,
    ended: AtomicBool,
}

impl Lease {
    /// The grant.
    pub(crate) fn id(&self) -> u64 {
        self.grant.id
    }

    /// Whether the grant is still valid.
    ///
    /// # Errors
    ///
    /// `EKEYREVOKED`, `EKEYEXPIRED`.
    pub(crate) fn check(&self) -> Result {
        self.grant.check()
    }

    /// Gives it back now: what it is for has ended, though it is still there.
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
    /// When the worker is to look, in milliseconds since boot.
    next: u64,
}

impl Grants {
    /// Those of an auth key.
    fn of(&self, key: &AuthKey) -> &[Arc<Grant>] {
        let number = key.number();
        let from = self.list.partition_point(|g| g.key.number() < number);
        let to = self.list.partition_point(|g| g.key.number() <= number);
        self.list.get(from..to).unwrap_or_default()
    }

    fn get(&self, id: u64) -> Option<&Arc<Grant>> {
        self.list.iter().find(|grant| grant.id == id)
    }

    /// Sees to it that the worker looks at `when`.
    fn wake_at(&mut self, when: u64) {
        if when < self.next {
            self.next = when;
            sweep::wake_in(when.saturating_sub(now_ms()));
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

/// Counts what may let somebody in who was not let in before.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Readies the list.
///
/// # Safety
///
/// Called once, at module load.
pub(super) unsafe fn init() {
    // SAFETY: As the caller promises.
    unsafe { GRANTS.init() }
}

/// Gives back what the list holds.
pub(super) fn exit() {
    let list = core::mem::replace(&mut GRANTS.lock().list, KVVec::new());
    drop(list);
}

/// Sees to it that the worker looks at `when`, in milliseconds since boot.
pub(super) fn wake_at(when: u64) {
    GRANTS.lock().wake_at(when);
}

/// How often grants have come or have got larger.
pub(crate) fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// How many there are.
pub(crate) fn count() -> usize {
    GRANTS.lock().list.len()
}

/// A lease of what the caller wants under `key`, of the first grant that has it.
///
/// # Errors
///
/// Why there is none, and the errno for it.
pub(crate) fn find(key: &AuthKey, caller: &Caller, want: Want) -> Result<Lease, (Miss, Error)> {
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

/// Installs a grant; its id.
///
/// # Errors
///
/// `EINVAL`: no rule, or no right. `EBUSY`: the auth key is in quarantine. `ENOSPC`: too many.
pub(crate) fn add(offer: Offer) -> Result<u64> {
    if !offer.rule.is_valid() || offer.rights == 0 || offer.rights & !right::ALL != 0 {
        return Err(EINVAL);
    }
    let end = end(now_ms(), offer.lifetime);
    let mut orphans = KVec::new();
    let id = {
        let mut grants = GRANTS.lock();
        if grants
            .of(&offer.key)
            .iter()
            .any(|grant| grant.check().is_err())
        {
            return Err(EBUSY);
        }
        if grants.list.len() >= GRANTS_MAX {
            reap(&mut grants, &mut orphans);
        }
        if grants.list.len() >= GRANTS_MAX {
            return Err(ENOSPC);
        }
        // UNACCOUNTED: The list is shared by all grants.
        grants.list.reserve(1, GFP_KERNEL)?;
        let id = grants.last + 1;
        let number = offer.key.number();
        let terms = Terms {
            limits: offer.limits,
            used: Amount::default(),
        };
        let grant = Arc::pin_init(
            pin_init!(Grant {
                id,
                key: offer.key,
                rule: offer.rule,
                rights: offer.rights,
                answered: offer.answered,
                state: AtomicU32::new(KFI_GRANT_VALID),
                end: AtomicU64::new(end),
                terms <- new_mutex!(terms, "kfabric_grant"),
            }),
            // UNACCOUNTED: Installed by an administrator; allocated with all grants locked.
            GFP_KERNEL,
        )?;
        let at = grants.list.partition_point(|g| g.key.number() <= number);
        // There is room.
        let _ = grants.list.insert_within_capacity(at, grant);
        grants.last = id;
        grants.wake_at(end);
        id
    };
    drop(orphans);
    CHANGES.fetch_add(1, Ordering::Release);
    Ok(id)
}

/// Takes answers about processes that are gone off the list, some at a time.
fn reap(grants: &mut Grants, gone: &mut KVec<Arc<Grant>>) {
    let mut at = 0;
    while at < grants.list.len() {
        if !grants.list[at].is_orphan() {
            at += 1;
            continue;
        }
        // UNACCOUNTED: Freed before the call returns; allocated with all grants locked.
        if gone.reserve(1, GFP_KERNEL).is_err() {
            return;
        }
        if let Ok(grant) = grants.list.remove(at) {
            // There is room.
            let _ = gone.push_within_capacity(grant);
        }
    }
}

/// Changes a grant's limits, or its end, or both.
///
/// # Errors
///
/// `ENOENT`: no such grant, or it is over.
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

/// Ends a grant: nothing more is opened under it. What was is for [`sweep`].
///
/// # Errors
///
/// `ENOENT`: no such grant, or it is over.
pub(crate) fn revoke(id: u64) -> Result {
    let mut grants = GRANTS.lock();
    let grant = grants.get(id).ok_or(ENOENT)?;
    grant.check().map_err(|_| ENOENT)?;
    grant.state.store(KFI_GRANT_REVOKED, Ordering::Release);
    // Should the caller not come to it.
    let soon = now_ms() + sweep::AGAIN_MS;
    grants.wake_at(soon);
    Ok(())
}

/// Takes back a grant of which nobody was told: unless somebody has already opened something under it,
/// its auth key may be granted again at once.
pub(crate) fn withdraw(id: u64) {
    if revoke(id).is_ok() {
        settle(false);
    }
}

/// The grant behind `id`, if there is one.
pub(crate) fn after(id: u64) -> Option<GrantInfo> {
    let grants = GRANTS.lock();
    let next = grants.list.iter().filter(|grant| grant.id > id);
    next.min_by_key(|grant| grant.id).map(|grant| grant.info())
}

/// Declares those over whose time is over, forgets those of which nothing is left, and says whether
/// there is one that is over and not yet forgotten. The worker's; `looked`: it looks, so it is to be woken
/// anew.
pub(super) fn settle(looked: bool) -> bool {
    let mut gone = KVec::new();
    let ending = {
        let mut grants = GRANTS.lock();
        let (mut next, mut ending) = (NEVER, false);
        let mut at = 0;
        while at < grants.list.len() {
            let grant = &grants.list[at];
            if grant.state.load(Ordering::Acquire) == KFI_GRANT_VALID {
                if grant.is_late() {
                    grant.state.store(KFI_GRANT_EXPIRED, Ordering::Release);
                } else {
                    next = next.min(grant.end.load(Ordering::Relaxed));
                    at += 1;
                    continue;
                }
            }
            // A grant that cannot be put aside for want of memory stays until the next time.
            // UNACCOUNTED: Freed before the call returns; allocated with all grants locked.
            if grant.is_drained() && gone.reserve(1, GFP_KERNEL).is_ok() {
                if let Ok(grant) = grants.list.remove(at) {
                    // There is room.
                    let _ = gone.push_within_capacity(grant);
                }
                continue;
            }
            ending = true;
            at += 1;
        }
        reap(&mut grants, &mut gone);
        if ending {
            next = next.min(now_ms() + sweep::AGAIN_MS);
        }
        if looked {
            grants.next = NEVER;
        }
        grants.wake_at(next);
        ending
    };
    drop(gone);
    ending
}
