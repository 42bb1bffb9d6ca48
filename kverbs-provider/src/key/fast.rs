// SPDX-License-Identifier: GPL-2.0
//! Fast registrations (`IB_WR_REG_MR`): the resources that a group's registrations share, and the
//! chain that executes them.
//!
//! A program's group without key slots soon closes its queue ([`QueueHold`]), so that it has no queue pair.
//! While the group has a slot, the queue stays, so no assignment has to create one.

use core::sync::atomic::{
    AtomicBool,
    Ordering, //
};
use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use super::{
    group::Group,
    window::Window, //
};
use crate::{
    ib::{
        charge::Charge,
        device::Live,
        dma::SgList,
        mr::{
            Access,
            Mr,
            Part, //
        },
        reg_queue::RegQueue, //
    },
    stats, //
};
use kfabric::memory::Memory;

/// Resources that the fast registrations of a group use one after the other.
struct Shared {
    /// The queue is created with its first use, and again after a failure or an idle time.
    queue: Option<RegQueue>,
    /// Scatter list for the pages of one window, created with its first use.
    ///
    /// If DMA addresses are the processor's own, no mapping has to last, and all keys share this
    /// list. Otherwise, each key has its own list ([`Group::own_lists`]).
    scratch: Option<SgList>,
    /// Charges for the queue's device objects. A replacement queue uses the same charges.
    charges: Option<[Option<Charge>; 4]>,
}

impl Shared {
    fn free(&mut self) {
        self.queue = None;
        self.scratch = None;
        self.charges = None;
    }
}

/// The shared resources of a group, and their lock.
#[pin_data]
pub(super) struct Registrar {
    #[pin]
    resources: Mutex<Shared>,
    /// True while all resources that a registration needs exist.
    ready: AtomicBool,
    /// True if the device has not answered the last request. Changed under the lock.
    silent: AtomicBool,
    /// Number of [`QueueHold`]s. A separate lock, because the owner of `resources` may wait for the device.
    #[pin]
    holds: Mutex<u32>,
    /// True if the resources are freed while no [`QueueHold`] exists.
    closes: bool,
}

impl Registrar {
    /// Returns a registrar without resources. With `closes`, they are freed after an idle time.
    pub(super) fn new(closes: bool) -> impl PinInit<Self> {
        pin_init!(Self {
            resources <- new_mutex!(Shared {
                queue: None,
                scratch: None,
                charges: None,
            }, "kverbs_registrar"),
            ready: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            holds <- new_mutex!(0, "kverbs_queue_holds"),
            closes,
        })
    }

    /// Frees the resources.
    pub(super) fn end(&self) {
        self.resources.lock().free();
    }

    /// Frees the resources, unless a [`QueueHold`] exists.
    pub(super) fn end_unheld(&self) {
        // Their user has a hold, whose end calls this again.
        let Some(mut shared) = self.resources.try_lock() else {
            return;
        };
        let holds = self.holds.lock();
        if *holds != 0 {
            return;
        }
        // A later hold finds that the resources are not ready, and waits for the lock.
        self.ready.store(false, Ordering::Relaxed);
        drop(holds);
        shared.free();
    }
}

/// Keeps the resources of a group's registrations, once they exist, until this is dropped.
pub(crate) struct QueueHold(Arc<Group>);

impl QueueHold {
    /// Begins a hold. Afterwards, [`Group::ready`] creates the resources.
    pub(crate) fn new(group: &Arc<Group>) -> Self {
        *group.registrar().holds.lock() += 1;
        Self(group.clone())
    }
}

impl Drop for QueueHold {
    fn drop(&mut self) {
        let registrar = self.0.registrar();
        let mut holds = registrar.holds.lock();
        *holds -= 1;
        let last = *holds == 0;
        drop(holds);
        if last && registrar.closes {
            self.0.end_resources_later();
        }
    }
}

/// A fast registration to execute.
///
/// The fields are dropped in order: the region before its list.
pub(crate) struct Registration<'a> {
    /// A region that has not been registered yet.
    pub(crate) mr: Mr,
    /// The scatter list that lasts as long as the key, if keys need their own
    /// ([`Group::own_lists`]).
    pub(crate) list: Option<SgList>,
    /// The memory to register.
    pub(crate) mem: &'a Arc<Memory>,
    /// The part of the memory to register.
    pub(crate) window: Window,
    /// Bytes of the region's pages. Larger than `PAGE_SIZE` only if the window is contiguous enough
    /// ([`largest_page`](kfabric::pure::range::largest_page)).
    pub(crate) page_size: usize,
    /// The access that peers get.
    pub(crate) access: Access,
    /// True if the registration may have been posted to the device.
    pub(crate) posted: bool,
}

impl Group {
    /// Registers up to [`CHAIN`](kfabric::key::CHAIN) regions in order, and waits until peers can
    /// access them.
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Returns the number of registrations from the start that succeeded, and the error of the next
    /// one. The caller must end that registration and the later ones if they are `posted`, each
    /// before its list. The device's queue uses none of them any more.
    ///
    /// - `EMSGSIZE` if the window does not fit a fast registration.
    pub(crate) fn register(
        &self,
        live: &Live<'_>,
        batch: &mut [Registration<'_>],
    ) -> Result<(), (usize, Error)> {
        // Mapping a large window takes long. With lists of their own it needs no lock.
        let own = batch.iter().all(|one| one.list.is_some());
        let aimed = own.then(|| aim_all(batch, None));
        let mut guard = self.registrar().resources.lock();
        let shared = &mut *guard;
        self.ready_in(live, shared).map_err(|e| (0, e))?;
        let (good, why) = aimed.unwrap_or_else(|| aim_all(batch, shared.scratch.as_mut()));
        if good != 0 {
            let queue = shared.queue.as_mut().ok_or((0, ENODEV))?;
            batch[..good].iter_mut().for_each(|one| one.posted = true);
            let aimed = batch[..good].iter().map(|one| (&one.mr, one.access));
            stats::WAITS.add(1);
            if let Err(e) = queue.register(aimed) {
                self.registrar().ready.store(false, Ordering::Relaxed);
                self.registrar()
                    .silent
                    .store(e == ETIMEDOUT, Ordering::Relaxed);
                shared.queue = None;
                // Replace the queue now, for the next registration of any slot. A device that did
                // not answer gets no further requests.
                if e != ETIMEDOUT {
                    let _ = self.ready_in(live, shared);
                }
                return Err((0, e));
            }
            self.registrar().silent.store(false, Ordering::Relaxed);
        }
        why.map_or(Ok(()), |e| Err((good, e)))
    }

    /// Invalidates `keys` of the group's fast registrations, and waits until peers can access none of
    /// them. Allocates nothing.
    ///
    /// If the device has not answered, further calls fail at once, until a registration by another
    /// queue has succeeded: many revocations together wait once.
    ///
    /// May sleep, for 10 s if the device does not answer.
    ///
    /// # Errors
    ///
    /// Any key may be valid then. The caller must deregister all regions.
    pub(crate) fn invalidate(&self, live: &Live<'_>, keys: &[u32]) -> Result {
        let registrar = self.registrar();
        // The owner of the lock may be waiting for the device.
        if registrar.silent.load(Ordering::Relaxed) {
            return Err(ETIMEDOUT);
        }
        let mut shared = registrar.resources.lock();
        if registrar.silent.load(Ordering::Relaxed) {
            return Err(ETIMEDOUT);
        }
        let queue = shared.queue.as_mut().ok_or(ENODEV)?;
        stats::WAITS.add(1);
        queue.invalidate(live, keys).inspect_err(|e| {
            // The slots are renewed after the revocation, and create the next queue.
            registrar.ready.store(false, Ordering::Relaxed);
            registrar.silent.store(*e == ETIMEDOUT, Ordering::Relaxed);
            shared.queue = None;
        })
    }

    /// Creates the resources that registrations share, so that a registration has to create none.
    ///
    /// If the resources exist, it does not wait. Otherwise, it waits for a registration in
    /// progress.
    pub(crate) fn ready(&self, live: &Live<'_>) -> Result {
        if self.is_ready() {
            return Ok(());
        }
        self.ready_in(live, &mut self.registrar().resources.lock())
    }

    /// Creates the resources like [`Group::ready`], but does not wait for a registration in
    /// progress. The task that registers creates the resources itself.
    pub(crate) fn try_ready(&self, live: &Live<'_>) -> Result {
        if self.is_ready() {
            return Ok(());
        }
        match self.registrar().resources.try_lock() {
            Some(mut shared) => self.ready_in(live, &mut shared),
            None => Ok(()),
        }
    }

    /// Returns whether all resources that a registration needs exist.
    pub(crate) fn is_ready(&self) -> bool {
        self.registrar().ready.load(Ordering::Relaxed)
    }

    fn ready_in(&self, live: &Live<'_>, shared: &mut Shared) -> Result {
        if shared.queue.is_none() && self.fast_pages() != 0 {
            let pd = self.pd()?;
            if shared.charges.is_none() {
                shared.charges = Some(RegQueue::charges(live, &pd)?);
            }
            shared.queue = Some(RegQueue::new(live, &pd)?);
        }
        if shared.scratch.is_none() && !self.own_lists() {
            let list = SgList::new(self.device().ib(), self.fast_pages() as usize + 1)?;
            shared.scratch = Some(list);
        }
        self.registrar().ready.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Sets the regions of registrations to their windows, until one fails. Returns the number of those
/// before it, and its error. Registrations without a list of their own use `scratch`.
fn aim_all(
    batch: &mut [Registration<'_>],
    mut scratch: Option<&mut SgList>,
) -> (usize, Option<Error>) {
    for (good, one) in batch.iter_mut().enumerate() {
        if let Err(e) = aim(scratch.as_deref_mut(), one) {
            return (good, Some(e));
        }
    }
    (batch.len(), None)
}

/// Sets a registration's region to its window.
fn aim(scratch: Option<&mut SgList>, one: &mut Registration<'_>) -> Result {
    let Window { offset, len, iova } = one.window;
    let part = Part {
        offset,
        len,
        iova,
        page_size: one.page_size,
    };
    if let Some(list) = &mut one.list {
        return one.mr.aim(list, one.mem, part, one.access);
    }
    let list = scratch.ok_or(ENOMEM)?;
    let aimed = one.mr.aim(list, one.mem, part, one.access);
    // Frees the list for the next key. The region has the addresses, which need no mapping here.
    list.unmap();
    aimed
}
