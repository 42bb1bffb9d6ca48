// SPDX-License-Identifier: GPL-2.0
//! Protection groups: a protection domain and the resources that register keys in the group.
//!
//! Only queue pairs of a group can access the group's memory. Each domain has a group of its own
//! and one group for each group that the core creates. A hold of operations applies to all groups
//! of a domain.

use core::{
    any::Any,
    ptr,
    sync::atomic::{
        AtomicU64,
        Ordering, //
    }, //
};
use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    },
    time::msecs_to_jiffies,
    workqueue::{
        DelayedWork,
        WorkItem, //
    }, //
};

use super::{
    deferred::Holds,
    fast::Registrar,
    index::Index,
    key_values::Values,
    policy::{
        counts_up,
        user_values, //
    }, //
};
use crate::{
    device::Device,
    ib::{
        device::Live,
        mr::Mr,
        pd::Pd,
        share::limited_user,
        work, //
    },
    limits::{
        FAST_PAGES,
        QUEUE_IDLE_MS, //
    },
    resource::{
        Class,
        GroupId,
        Resource,
        Ticket, //
    },
    stats::DomainCounts, //
};
use kfabric::{
    provider::{
        GroupOps,
        KeyValues,
        Proof, //
    },
    pure::key_budget::Payer, //
};

/// Maximum number of regions that a group keeps.
const KEPT: usize = 4096;

/// The part of a group that is freed when the device is removed.
#[pin_data]
struct Inner {
    #[pin]
    pd: Mutex<Option<Arc<Pd>>>,
    #[pin]
    registrar: Registrar,
    /// Regions whose indices have no value in the group's own ledger. Empty if the group shares one.
    #[pin]
    kept: Mutex<KVVec<Mr>>,
    values: Values,
    base: u64,
    #[pin]
    index: Index,
    /// Frees the registrar's resources.
    #[pin]
    work: DelayedWork<Self>,
    device: Arc<Device>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Inner { self.work }
}

impl WorkItem for Inner {
    type Pointer = Arc<Inner>;

    fn run(this: Arc<Inner>) {
        // A removal of the device frees the resources itself.
        if let Ok(_live) = this.device.enter() {
            this.registrar.end_unheld();
        }
    }
}

/// Returns the address base for a group with values of its own. The bases of 2^20 consecutive groups
/// are distinct.
fn next_base() -> u64 {
    /// Bytes of one base's range: more than a kernel memory region has.
    const PLACE: u64 = 1 << 42;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Above all addresses of processes and below the addresses through which peers get no access.
    let places = (1 << 62) / PLACE;
    (1 << 62) + NEXT.fetch_add(1, Ordering::Relaxed) % places * PLACE
}

impl Resource for Inner {
    fn device_gone(&self) {
        self.registrar.end();
        self.kept.lock().clear();
        // Under the lock: a task that finds `None` then knows that the resources above are freed.
        *self.pd.lock() = None;
    }
}

/// The domain of a group, as far as its groups need to know it.
#[derive(Clone)]
pub(crate) struct Owner {
    /// The counts of holds of the domain.
    pub(crate) holds: Arc<Holds>,
    /// True if the domain is a program's, which is charged.
    pub(crate) program: bool,
    /// The counts of the domain's key values.
    pub(crate) counts: Arc<DomainCounts>,
}

/// A protection group. Each object in a group has a reference to the group.
pub(crate) struct Group {
    inner: Arc<Inner>,
    ticket: Ticket,
    lkey: u32,
    proof: Option<Arc<dyn Proof>>,
    owner: Owner,
}

/// The core's reference to a group.
pub(crate) struct Shared(pub(crate) Arc<Group>);

impl GroupOps for Shared {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn is_worn(&self) -> bool {
        self.0.inner.values.is_worn()
    }

    fn is_exhausted(&self) -> bool {
        let values = &self.0.inner.values;
        values.is_exhausted() || self.0.kept() != 0
    }
}

impl Group {
    /// Creates a group of the domain `owner`.
    ///
    /// With a `proof`, the group's endpoints connect only to peers that have the same auth key. If
    /// the group has [`KeyValues::Own`], it must have exactly one endpoint. For a program, the
    /// protection domain and its objects are charged, and its user pays for key values.
    pub(crate) fn new(
        live: &Live<'_>,
        device: &Arc<Device>,
        proof: Option<Arc<dyn Proof>>,
        values: KeyValues,
        owner: Owner,
    ) -> Result<Arc<Self>> {
        let pd = Pd::new(live, device.ib(), owner.program)?;
        let pd = Arc::new(pd, GFP_KERNEL_ACCOUNT)?;
        let lkey = pd.local_dma_lkey();
        let base = match values {
            // siw ignores the address that a registration of user memory wants (`siw_reg_user_mr()`).
            KeyValues::Own if !device.ib().is_siw() => next_base(),
            _ => 0,
        };
        let payer = owner.program.then(limited_user).flatten();
        let payer = payer.map(|uid| Payer {
            uid,
            limit: user_values(device.ib()),
        });
        // A device that counts its indices up offers others first.
        let sets_aside = !counts_up(device.ib());
        let regions = device.ib().max_mr();
        let source = Values::new(values, payer, owner.counts.clone(), sets_aside, regions)?;
        let inner = Arc::pin_init(
            pin_init!(Inner {
                device: device.clone(),
                pd <- new_mutex!(Some(pd), "kverbs_pd"),
                // A kernel consumer may need its next key to free memory. An iWARP device would have
                // to connect its queue again.
                registrar <- Registrar::new(owner.program && !device.ib().is_iwarp()),
                kept <- new_mutex!(KVVec::new(), "kverbs_kept"),
                values: source,
                base,
                index <- Index::new(),
                work <- new_delayed_work!("kverbs_idle_queue"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let ticket = device.resources.add(Class::Group, inner.clone())?;
        let group = Self {
            inner,
            ticket,
            lkey,
            proof,
            owner,
        };
        Ok(Arc::new(group, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns the identity of the group, for comparisons while the group exists.
    pub(crate) fn id(&self) -> GroupId {
        GroupId::new(ptr::from_ref(self).addr())
    }

    /// Returns the device of the group.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.inner.device
    }

    /// Returns the proof of the auth key that endpoints exchange with their peers.
    pub(crate) fn proof(&self) -> Option<&Arc<dyn Proof>> {
        self.proof.as_ref()
    }

    /// Returns the group's protection domain.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device was removed.
    /// - `EIO` if the protection domain [is stuck](Pd::is_stuck).
    pub(crate) fn pd(&self) -> Result<Arc<Pd>> {
        let pd = self.inner.pd.lock().clone().ok_or(ENODEV)?;
        match pd.is_stuck() {
            true => Err(EIO),
            false => Ok(pd),
        }
    }

    /// Returns the local key for mapped memory.
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Returns the counts of holds of the group's domain.
    pub(crate) fn holds(&self) -> &Arc<Holds> {
        &self.owner.holds
    }

    /// Returns the domain of the group.
    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Returns the `given` group, or this group if the core gave none.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the given group belongs to another provider or another domain.
    pub(crate) fn or_given<'a>(
        self: &'a Arc<Self>,
        given: Option<&'a Arc<dyn GroupOps>>,
    ) -> Result<&'a Arc<Self>> {
        let Some(given) = given else { return Ok(self) };
        let Shared(group) = given.as_any().downcast_ref().ok_or(EINVAL)?;
        if !Arc::ptr_eq(group.holds(), self.holds()) {
            return Err(EINVAL);
        }
        Ok(group)
    }

    /// Returns the maximum number of pages of a fast registration, or 0 if the device has none.
    pub(crate) fn fast_pages(&self) -> u32 {
        self.device().ib().max_fast_reg_pages().min(FAST_PAGES)
    }

    /// Returns the resources that the group's fast registrations share.
    pub(super) fn registrar(&self) -> &Registrar {
        &self.inner.registrar
    }

    /// Frees the resources of registrations later, if no [`QueueHold`](super::fast::QueueHold) exists then.
    pub(super) fn end_resources_later(&self) {
        // Fails only if the work is queued already. Then the time counts from when it was queued.
        let _ = work::idle().enqueue_delayed(self.inner.clone(), msecs_to_jiffies(QUEUE_IDLE_MS));
    }

    /// Returns the source of the values of the group's keys.
    pub(crate) fn values(&self) -> &Values {
        &self.inner.values
    }

    /// Returns the group's keys by their values.
    pub(super) fn index(&self) -> &Index {
        &self.inner.index
    }

    /// Returns the offset that is added to the addresses by which peers know the group's memory.
    ///
    /// A group with values of its own has a base of its own, so an equal value has other addresses.
    /// When a peer repeats a read that succeeded before, rxe checks only value and address
    /// ([`hidden_addr`](super::window::hidden_addr)).
    pub(crate) fn base(&self) -> u64 {
        self.inner.base
    }

    /// Keeps a region, whose index has no value for this group alone, until the group ends. Frees the region
    /// and returns false if the group keeps as many as it can.
    pub(super) fn keep(&self, mr: Mr) -> bool {
        let mut kept = self.inner.kept.lock();
        if kept.len() >= KEPT / 8 * 7 {
            self.values().note_worn();
        }
        // On failure the region is freed.
        kept.len() < KEPT && kept.push(mr, GFP_KERNEL_ACCOUNT).is_ok()
    }

    /// Returns the number of kept regions.
    pub(super) fn kept(&self) -> usize {
        self.inner.kept.lock().len()
    }

    /// Returns whether each key needs a scatter list of its own.
    pub(crate) fn own_lists(&self) -> bool {
        !self.device().ib().uses_virt_dma()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        work::cancel_delayed(&self.inner);
        // Remove the ticket last: a device removal in parallel waits until it is removed.
        self.inner.device_gone();
        self.inner.device.resources.remove(self.ticket);
    }
}
