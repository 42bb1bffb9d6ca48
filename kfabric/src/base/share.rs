// SPDX-License-Identifier: GPL-2.0
//! Each user's share of resources that no memory cgroup bounds: the key slots and registrations that a
//! device has for all users, and unanswered connection requests, which a worker allocates.
//!
//! A user has a share of each device, and one of each provider for connection requests. It is found when a
//! domain or a fabric is opened, and counted without a lock. Limits are parameters of the module. A task
//! with `CAP_SYS_RESOURCE` has no limit, and consumers in the kernel have none.
//!
//! Subordinate users of a user (subuid(5)) count as that user ([`current_payer`]).

use core::sync::atomic::{
    AtomicU64,
    Ordering, //
};
use kernel::{
    bindings,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::Arc, //
};

use crate::{
    base::{
        errno::edquot,
        name::set_name, //
    },
    sys,
    uapi::KFI_NAME_MAX, //
};

/// A counted resource. The C side knows the limits by these numbers.
#[derive(Clone, Copy)]
enum What {
    /// Key slots and registrations of a device.
    Slots,
    /// Connection requests that are not answered.
    Requests,
}

/// Number of counted resources.
const KINDS: usize = 2;

/// A user, a provider, and a device of it or none.
type Place = (u32, [u8; KFI_NAME_MAX], [u8; KFI_NAME_MAX]);

/// Resources of a device that a user holds.
struct Used {
    place: Place,
    counts: [AtomicU64; KINDS],
}

/// An entry of the list.
struct Known {
    used: Arc<Used>,
    /// Number of [`Share`]s of the entry.
    holders: usize,
}

/// All entries, by place.
type All = Option<RBTree<Place, Known>>;

kernel::sync::global_lock! {
    // SAFETY: Initialised at module load, before anything uses it.
    unsafe(uninit) static ALL: Mutex<All> = None;
}

/// Initialises the list of shares.
///
/// # Safety
///
/// Called once, at module load.
pub(crate) unsafe fn init() {
    // SAFETY: The caller's contract: this is called once, at module load.
    unsafe { ALL.init() }
}

/// Frees the list's memory. Once, at module unload.
pub(crate) fn exit() {
    let all = ALL.lock().take();
    drop(all);
}

fn find(all: &mut All, place: &Place) -> Option<Share> {
    let known = all.as_mut()?.get_mut(place)?;
    known.holders += 1;
    Some(Share(known.used.clone()))
}

/// Returns the number of the user to whose shares and limits the current task's resources count, in the initial
/// user namespace: of a task in a user namespace of a user's own, that user. Not for authority.
pub fn current_payer() -> u32 {
    // SAFETY: The function has no preconditions.
    unsafe { sys::kf_current_payer() }
}

/// Reads the parameter of a limit.
fn parameter(what: What) -> u64 {
    // SAFETY: The function has no preconditions.
    unsafe { sys::kf_user_limit(what as c_uint) }
}

/// A user's share of a device.
pub(crate) struct Share(Arc<Used>);

impl Share {
    /// Finds or creates the current user's share of a provider's device. `None` if the task has no
    /// limit.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if the share cannot be allocated.
    pub(crate) fn current(provider: &str, device: &str) -> Result<Option<Self>> {
        let ns = &raw mut bindings::init_user_ns;
        // SAFETY: The initial namespace always exists.
        if unsafe { bindings::ns_capable_noaudit(ns, bindings::CAP_SYS_RESOURCE as c_int) } {
            return Ok(None);
        }
        let mut place = (current_payer(), [0; KFI_NAME_MAX], [0; KFI_NAME_MAX]);
        set_name(&mut place.1, provider);
        set_name(&mut place.2, device);
        if let Some(found) = find(&mut ALL.lock(), &place) {
            return Ok(Some(found));
        }
        // Nothing is allocated or freed with the list locked.
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let used = Used {
            place,
            counts: [const { AtomicU64::new(0) }; KINDS],
        };
        let used = Arc::new(used, GFP_KERNEL_ACCOUNT)?;
        let known = Known {
            used: used.clone(),
            holders: 1,
        };
        let node = node.into_node(place, known);
        let mut all = ALL.lock();
        // Another task may have added the share since the first search.
        if let Some(found) = find(&mut all, &place) {
            drop(all);
            drop(node);
            return Ok(Some(found));
        }
        let _ = all.get_or_insert_with(RBTree::new).insert(node);
        Ok(Some(Self(used)))
    }

    fn take(&self, what: What, amount: u64, limit: u64) -> Result<Portion> {
        let count = self.0.counts.get(what as usize).ok_or(EINVAL)?;
        let more = |now: u64| now.checked_add(amount).filter(|sum| *sum <= limit);
        count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|_| edquot())?;
        Ok(Portion {
            used: self.0.clone(),
            what,
            amount,
        })
    }

    /// Takes key slots or registrations of a device that has `all`.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the user's share is exhausted.
    pub(crate) fn slots(&self, count: u64, all: u64) -> Result<Portion> {
        let percent = parameter(What::Slots).min(100);
        // Divided first, so that the product does not overflow.
        let limit = (all / 100 * percent + all % 100 * percent / 100).max(1);
        self.take(What::Slots, count, limit)
    }

    /// Counts a connection request. A worker of any user may call it for the holder.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the user's share is exhausted.
    pub(crate) fn request(&self) -> Result<Portion> {
        self.take(What::Requests, 1, parameter(What::Requests))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let gone = {
            let mut all = ALL.lock();
            let Some(all) = all.as_mut() else { return };
            let last = all.get_mut(&self.0.place).is_some_and(|known| {
                known.holders -= 1;
                known.holders == 0
            });
            if last {
                all.remove_node(&self.0.place)
            } else {
                None
            }
        };
        drop(gone);
    }
}

/// A used part of a share; the drop returns it. The holder keeps the share's domain or fabric, so
/// that the share is not removed while a part is in use.
pub(crate) struct Portion {
    used: Arc<Used>,
    what: What,
    amount: u64,
}

impl Drop for Portion {
    fn drop(&mut self) {
        if let Some(count) = self.used.counts.get(self.what as usize) {
            count.fetch_sub(self.amount, Ordering::Relaxed);
        }
    }
}
