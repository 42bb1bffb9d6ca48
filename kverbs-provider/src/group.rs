// SPDX-License-Identifier: GPL-2.0
//! A protection domain and what keys in it are made with.
//!
//! Memory is reachable only from queue pairs of its own group. A domain has one of its own, and
//! one for each that the core asks for. What is posted is held for all groups of a domain together.

use core::{
    any::Any,
    sync::atomic::{
        AtomicBool,
        AtomicU64,
        Ordering, //
    },
};
use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use crate::{
    device::Device,
    endpoint::Endpoint,
    ib::{
        charge::Charge,
        device::Live,
        dma::SgList,
        keyq::KeyQueue,
        mr::{
            Access,
            Mr, //
        },
        pd::Pd, //
    },
    limits::FAST_PAGES,
    resource::{
        Class,
        Resource,
        Ticket, //
    },
    spent::Values,
    stats, //
};
use kfabric::{
    memory::Memory,
    provider::{
        GroupOps,
        Proof, //
    },
};

/// What fast registrations take turns with.
struct Registrar {
    /// Made with the first slot, and again after a failure.
    queue: Option<KeyQueue>,
    /// Room for a window's pieces, made with the first slot. Where DMA addresses are the
    /// processor's own nothing stays mapped, and one list does for all keys; elsewhere each key has
    /// its own.
    scratch: Option<SgList>,
    /// For the queue, of which there are two objects. Kept when that is made anew, by whichever task.
    charges: Option<[Option<Charge>; 2]>,
}

/// The part that ends with the device.
#[pin_data]
struct Inner {
    #[pin]
    pd: Mutex<Option<Arc<Pd>>>,
    #[pin]
    registrar: Mutex<Registrar>,
    /// The registrar has all that it needs.
    ready: AtomicBool,
    /// Regions whose keys are used up: a device that hands out what came back last would do so for
    /// ever.
    #[pin]
    worn: Mutex<KVec<Mr>>,
    #[pin]
    values: Values,
    base: u64,
}

/// Where the addresses of a group that reuses values begin: no two of 2^20 in a row are the same.
fn next_base() -> u64 {
    /// Bytes of a place: more than a region of the kernel's memory has.
    const PLACE: u64 = 1 << 42;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Above all addresses of processes, and below those that give peers nothing.
    let places = (1 << 62) / PLACE;
    (1 << 62) + NEXT.fetch_add(1, Ordering::Relaxed) % places * PLACE
}

/// Worn regions that are kept.
const WORN: usize = 4096;

impl Resource for Inner {
    fn device_gone(&self) {
        {
            let mut registrar = self.registrar.lock();
            registrar.queue = None;
            registrar.scratch = None;
            registrar.charges = None;
        }
        self.worn.lock().clear();
        // Under the lock, so that whoever finds nothing knows that nothing is left.
        *self.pd.lock() = None;
    }
}

/// How often what is posted on a domain was to be held, and to be held no more.
#[pin_data]
pub(crate) struct Holds {
    holds: AtomicU64,
    resumed: AtomicU64,
    /// Something may be held.
    held: AtomicBool,
    /// The domain's endpoints, by address. Nothing is allocated, and nobody waited for, under its lock.
    #[pin]
    endpoints: Mutex<RBTree<usize, Arc<Endpoint>>>,
}

impl Holds {
    /// Nothing is held.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            holds: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            held: AtomicBool::new(false),
            endpoints <- new_mutex!(RBTree::new(), "kverbs_holds"),
        })
    }

    /// An endpoint's that is asked whether it holds something, until it is [removed](Self::remove).
    pub(crate) fn add(&self, endpoint: &Arc<Endpoint>) -> Result {
        let address = Arc::as_ptr(endpoint).addr();
        let node = RBTreeNode::new(address, endpoint.clone(), GFP_KERNEL_ACCOUNT)?;
        // It is new.
        let _ = self.endpoints.lock().insert(node);
        Ok(())
    }

    /// It is asked no more.
    pub(crate) fn remove(&self, endpoint: &Arc<Endpoint>) {
        let removed = self.endpoints.lock().remove(&Arc::as_ptr(endpoint).addr());
        // Not under the lock.
        drop(removed);
    }

    /// What is posted on the transmit sides of the domain's endpoints from now on is held, until
    /// [`Holds::resume`] was called as often as this was until then.
    pub(crate) fn hold(&self) {
        self.holds.fetch_add(1, Ordering::SeqCst);
    }

    /// See [`Holds::hold`].
    pub(crate) fn resume(&self) {
        self.resumed.fetch_add(1, Ordering::SeqCst);
        if self.held.swap(false, Ordering::SeqCst) {
            for endpoint in self.endpoints.lock().values() {
                Endpoint::resume(endpoint.as_arc_borrow());
            }
        }
    }

    /// How often [`Holds::resume`] has to have been called before what is posted now may go. Any
    /// context.
    pub(crate) fn holds(&self) -> u64 {
        self.holds.load(Ordering::SeqCst)
    }

    /// How often it has been. Any context.
    pub(crate) fn resumed(&self) -> u64 {
        self.resumed.load(Ordering::SeqCst)
    }

    /// Something is held, and an endpoint says so when asked. Whoever calls this looks afterwards
    /// whether it may go by now. Any context.
    pub(crate) fn note_held(&self) {
        self.held.store(true, Ordering::SeqCst);
    }
}

/// A group. Everything in it holds it.
pub(crate) struct Group {
    device: Arc<Device>,
    inner: Arc<Inner>,
    ticket: Ticket,
    lkey: u32,
    holds: Arc<Holds>,
    proof: Option<Arc<dyn Proof>>,
}

/// A group as the core has it.
pub(crate) struct Shared(pub(crate) Arc<Group>);

impl GroupOps for Shared {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn is_worn(&self) -> bool {
        self.0.inner.values.reuses() && !self.0.inner.worn.lock().is_empty()
    }
}

impl Group {
    /// Makes one of the domain that `holds` are of; with a `proof`, one whose endpoints connect only to
    /// who has the same auth key; `reuses` values, which has one endpoint and no other; what is made of the
    /// device's for a `program` is charged.
    pub(crate) fn new(
        live: &Live<'_>,
        device: &Arc<Device>,
        holds: Arc<Holds>,
        proof: Option<Arc<dyn Proof>>,
        reuses: bool,
        program: bool,
    ) -> Result<Arc<Self>> {
        let pd = Arc::new(Pd::new(live, device.ib(), program)?, GFP_KERNEL_ACCOUNT)?;
        let lkey = pd.local_dma_lkey();
        let inner = Arc::pin_init(
            pin_init!(Inner {
                pd <- new_mutex!(Some(pd), "kverbs_pd"),
                registrar <- new_mutex!(Registrar {
                    queue: None,
                    scratch: None,
                    charges: None,
                }, "kverbs_keyq"),
                ready: AtomicBool::new(false),
                worn <- new_mutex!(KVec::new(), "kverbs_worn"),
                values <- Values::new(reuses),
                base: if reuses { next_base() } else { 0 },
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let ticket = device.resources.add(Class::Group, inner.clone())?;
        let group = Self {
            device: device.clone(),
            inner,
            ticket,
            lkey,
            holds,
            proof,
        };
        Ok(Arc::new(group, GFP_KERNEL_ACCOUNT)?)
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// What its endpoints prove to their peers.
    pub(crate) fn proof(&self) -> Option<&Arc<dyn Proof>> {
        self.proof.as_ref()
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> Result<Arc<Pd>> {
        self.inner.pd.lock().clone().ok_or(ENODEV)
    }

    /// The local key for mapped memory.
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// What is held of its domain.
    pub(crate) fn holds(&self) -> &Arc<Holds> {
        &self.holds
    }

    /// The group that the core means, of this one's domain: itself where the core has none.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is another provider's, or another domain's.
    pub(crate) fn or_given<'a>(
        self: &'a Arc<Self>,
        given: Option<&'a Arc<dyn GroupOps>>,
    ) -> Result<&'a Arc<Self>> {
        let Some(given) = given else { return Ok(self) };
        let Shared(group) = given.as_any().downcast_ref().ok_or(EINVAL)?;
        if !Arc::ptr_eq(&group.holds, &self.holds) {
            return Err(EINVAL);
        }
        Ok(group)
    }

    /// Pages of one fast registration; 0: the device has none.
    pub(crate) fn fast_pages(&self) -> u32 {
        self.device.ib().max_fast_reg_pages().min(FAST_PAGES)
    }

    /// Where its keys' values come from.
    pub(crate) fn values(&self) -> &Values {
        &self.inner.values
    }

    /// What is added to the addresses that peers know its memory by: in a group that reuses values a place
    /// of its own, so that a value which comes again is not where it was. rxe looks at nothing else when a
    /// peer repeats a read that was good once ([`hidden_addr`](crate::region::hidden_addr)).
    pub(crate) fn base(&self) -> u64 {
        self.inner.base
    }

    /// Keeps a region that has had all its keys from coming again, if there is room for it.
    pub(crate) fn keep_worn(&self, mr: Mr) {
        let mut worn = self.inner.worn.lock();
        if worn.len() < WORN {
            // What cannot be kept comes again.
            let _ = worn.push(mr, GFP_KERNEL_ACCOUNT);
        }
    }

    /// Whether a key needs a scatter list of its own.
    pub(crate) fn own_lists(&self) -> bool {
        !self.device.ib().uses_virt_dma()
    }

    /// Makes registrations reachable, in order, and returns when they are. Up to
    /// [`CHAIN`](kfabric::key::CHAIN) at once.
    ///
    /// # Errors
    ///
    /// How many from the start are reachable, and what the next one failed of (`EMSGSIZE`: it does
    /// not fit a fast registration). That one and those after it must, if they are `posted`, be
    /// ended, each before its list; the device's queue uses none of them any more.
    pub(crate) fn register(
        &self,
        live: &Live<'_>,
        batch: &mut [Registration<'_>],
    ) -> Result<(), (usize, Error)> {
        let mut guard = self.inner.registrar.lock();
        let registrar = &mut *guard;
        self.ready_in(live, registrar).map_err(|e| (0, e))?;
        let (mut good, mut why) = (0, None);
        for one in batch.iter_mut() {
            if let Err(e) = self.aim(registrar, one) {
                why = Some(e);
                break;
            }
            good += 1;
        }
        if good != 0 {
            let queue = registrar.queue.as_mut().ok_or((0, ENODEV))?;
            batch[..good].iter_mut().for_each(|one| one.posted = true);
            let aimed = batch[..good].iter().map(|one| (&one.mr, one.access));
            stats::WAITS.add(1);
            if let Err(e) = queue.register(aimed) {
                self.inner.ready.store(false, Ordering::Relaxed);
                registrar.queue = None;
                // Whoever is next is to find one, whatever slot that is. A device that is silent is
                // not asked for more.
                if e != ETIMEDOUT {
                    let _ = self.ready_in(live, registrar);
                }
                return Err((0, e));
            }
        }
        why.map_or(Ok(()), |e| Err((good, e)))
    }

    /// Has what registrations take turns with, so that one needs to make nothing. Waits for none
    /// where that is there.
    pub(crate) fn ready(&self, live: &Live<'_>) -> Result {
        if self.is_ready() {
            return Ok(());
        }
        self.ready_in(live, &mut self.inner.registrar.lock())
    }

    /// As [`Group::ready`], but never waits for a registration: whoever makes one sees to it.
    pub(crate) fn try_ready(&self, live: &Live<'_>) -> Result {
        if self.is_ready() {
            return Ok(());
        }
        match self.inner.registrar.try_lock() {
            Some(mut registrar) => self.ready_in(live, &mut registrar),
            None => Ok(()),
        }
    }

    /// Whether a registration needs to make nothing.
    pub(crate) fn is_ready(&self) -> bool {
        self.inner.ready.load(Ordering::Relaxed)
    }

    fn ready_in(&self, live: &Live<'_>, registrar: &mut Registrar) -> Result {
        if registrar.queue.is_none() && self.fast_pages() != 0 {
            let pd = self.pd()?;
            if registrar.charges.is_none() {
                registrar.charges = Some([pd.charge(live)?, pd.charge(live)?]);
            }
            registrar.queue = Some(KeyQueue::new(live, &pd)?);
        }
        if registrar.scratch.is_none() && !self.own_lists() {
            let list = SgList::new(self.device.ib(), self.fast_pages() as usize + 1)?;
            registrar.scratch = Some(list);
        }
        self.inner.ready.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Points a registration's region at its window.
    fn aim(&self, registrar: &mut Registrar, one: &mut Registration<'_>) -> Result {
        let Window { offset, len, iova } = one.window;
        if let Some(list) = &mut one.list {
            return one.mr.aim(list, one.mem, offset, len, iova, one.access);
        }
        let list = registrar.scratch.as_mut().ok_or(ENOMEM)?;
        let aimed = one.mr.aim(list, one.mem, offset, len, iova, one.access);
        // Undoes nothing here, but lets go of the memory: the region has the addresses.
        list.unmap();
        aimed
    }
}

/// A fast registration that is to be made.
///
/// Dropped, it ends: the region before its list.
pub(crate) struct Registration<'a> {
    /// A fresh region.
    pub(crate) mr: Mr,
    /// The scatter list that lasts as long, where one has to ([`Group::own_lists`]).
    pub(crate) list: Option<SgList>,
    /// The memory.
    pub(crate) mem: &'a Arc<Memory>,
    /// What of it.
    pub(crate) window: Window,
    /// For what.
    pub(crate) access: Access,
    /// The device may have heard of it.
    pub(crate) posted: bool,
}

/// Part of a memory, and the address that peers know its first byte by.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    /// Bytes from the memory's start.
    pub(crate) offset: usize,
    /// Bytes.
    pub(crate) len: usize,
    /// The address.
    pub(crate) iova: u64,
}

impl Drop for Group {
    fn drop(&mut self) {
        // Off the list only when it has ended: a device that goes meanwhile waits for that.
        self.inner.device_gone();
        self.device.resources.remove(self.ticket);
    }
}
