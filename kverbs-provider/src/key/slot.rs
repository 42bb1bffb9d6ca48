// SPDX-License-Identifier: GPL-2.0
//! Key slots: their states, the region in reserve, and revoking a key.

use core::{
    any::Any,
    sync::atomic::{
        AtomicU32,
        Ordering, //
    }, //
};
use kernel::{
    bindings,
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
    fast::QueueHold,
    full::Full,
    group::Group,
    index::Entry,
    key_values::{
        resting_since,
        Values, //
    },
    revoke::revoke_one,
    window::{
        self,
        Window, //
    }, //
};
use crate::{
    data::level,
    ib::{
        charge::Charge,
        device::Live,
        dma::SgList,
        mr::{
            Access,
            Mr, //
        },
        pd::Pd,
        resting::Aside,
        work, //
    },
    limits::REFILL_MS,
    resource::{
        Class,
        Resource,
        Ticket, //
    },
    stats, //
};
use kfabric::{
    base::errno::edquot,
    memory::Memory,
    provider::{
        KeyOps,
        KeyValue,
        RegionOps, //
    },
    pure::key_ledger::{
        search,
        Draw,
        Regions,
        TRIES, //
    },
    sys::NoIo, //
};

/// State of a slot on the device.
pub(super) enum State {
    /// No key. The region is the reserve, if the slot has one.
    Free(Option<Mr>),
    /// No key. An assigner owns the reserve.
    Taken,
    /// A key by fast registration.
    Fast(Mr),
    /// A key by full, or by wide fast registration. Apart, because few keys are of this kind.
    Full(KBox<Full>),
}

/// The fields that the slot's lock protects.
pub(super) struct Slot {
    pub(super) state: State,
    /// A region that is of no more use. The next refill frees it, after the revocation.
    spent: Option<Mr>,
    /// The window of the key and the rights of peers, while the slot has a key.
    pub(super) open: Option<(Window, Access)>,
    /// The scatter list of a fast registration, if it has to last as long as the key.
    pub(super) list: Option<SgList>,
    /// True if a caller has the value of the reserve, which then is spent.
    promised: bool,
    /// Charge for the region in reserve or under the key. A replacement region uses the same
    /// charge.
    charge: Option<Charge>,
    /// The slot's entry in the group's index of keys.
    pub(super) entry: Entry,
}

impl Slot {
    /// Makes the region of an invalidated key the reserve, with the next one of `values`, and unmaps
    /// the key's memory.
    pub(super) fn keep(&mut self, mut mr: Mr, values: &Values) {
        if let Some(list) = &mut self.list {
            list.unmap();
        }
        self.promised = false;
        self.state = match mr.next_key(values) {
            Draw::Value(..) => State::Free(Some(mr)),
            _ => {
                self.spent = Some(mr);
                State::Free(None)
            }
        };
    }
}

/// The part of a slot that ends when the device is removed.
#[pin_data]
pub(crate) struct KeySlot {
    #[pin]
    pub(super) place: Mutex<Slot>,
    /// Number of tasks that end the key, or wait for the lock to do so. Commits then leave the lock to
    /// them.
    ending: AtomicU32,
    pub(super) mem: Arc<Memory>,
    /// Keeps the registration for local use as long as the slot.
    _region: Arc<dyn RegionOps>,
    /// The group in which the slot's keys are valid.
    pub(super) group: Arc<Group>,
    #[pin]
    work: DelayedWork<Self>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for KeySlot { self.work }
}

impl WorkItem for KeySlot {
    type Pointer = Arc<KeySlot>;

    fn run(this: Arc<KeySlot>) {
        // A block device may wait for the slot.
        let _no_io = NoIo::begin();
        if let Ok(live) = this.group.device().enter() {
            // On failure, the next assignment tries again.
            let _ = this.reserve(&live);
        }
    }
}

/// Keeps commits from taking a slot's lock, until this is dropped.
pub(super) struct Ending<'a>(&'a AtomicU32);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl KeySlot {
    /// Begins the end of the key, before the lock is taken. A commit that takes the lock again for each of
    /// its stretches could otherwise keep a waiting task out until its end.
    pub(super) fn ending(&self) -> Ending<'_> {
        self.ending.fetch_add(1, Ordering::Relaxed);
        Ending(&self.ending)
    }

    /// Returns whether a task ends the key.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed) != 0
    }

    /// Revokes the key by deregistration, if the slot has one.
    pub(super) fn revoke(&self, slot: &mut Slot) {
        match core::mem::replace(&mut slot.state, State::Free(None)) {
            kept @ (State::Free(_) | State::Taken) => {
                slot.state = kept;
                return;
            }
            State::Fast(mr) => self.retire(mr.end(), &mut slot.list),
            State::Full(full) => {
                self.end_full(slot, KBox::into_inner(full));
            }
        }
        if let Some(list) = &mut slot.list {
            list.unmap();
        }
    }

    /// Handles the result of ending a region whose scatter list is `list`.
    ///
    /// If the driver refused, every connection of the group ends. The group gets no new connection
    /// before the driver has agreed. Until then the region keeps its mapping and its pages.
    pub(super) fn retire(&self, ended: Result<(), (Error, Mr)>, list: &mut Option<SgList>) {
        if let Err((e, mr)) = ended {
            let (list, mem) = (list.take(), self.mem.clone());
            mr.park(e, true, list, Some(mem));
            let resources = &self.group.device().resources;
            resources.fail_endpoints(self.group.id(), bindings::EIO);
        }
    }

    /// Tries to obtain the resources for the slot's next assignment. Does not wait for a
    /// registration.
    fn reserve(&self, live: &Live<'_>) -> Result {
        let had = self.refill(live, &mut self.place.lock());
        let ready = self.group.try_ready(live);
        had.and(ready)
    }

    /// Obtains a region as reserve, if the slot has neither a key nor a reserve.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if no tried region has an available key value.
    pub(super) fn refill(&self, live: &Live<'_>, slot: &mut Slot) -> Result {
        slot.spent = None;
        let State::Free(reserve) = &mut slot.state else {
            return Ok(());
        };
        let group = &self.group;
        let pages = self.pages();
        if slot.list.is_none() && group.own_lists() {
            slot.list = Some(SgList::new(group.device().ib(), pages as usize + 1)?);
        }
        if reserve.is_some() || pages == 0 {
            return Ok(());
        }
        *reserve = Some(self.find_region(live, pages)?);
        stats::RESERVED.add(1);
        slot.promised = false;
        Ok(())
    }

    /// Obtains a region for fast registrations of up to `pages` pages, with a key value.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the user's budget of values is exhausted.
    /// - `ENOSPC` if no tried region has an available key value.
    pub(super) fn find_region(&self, live: &Live<'_>, pages: u32) -> Result<Mr> {
        let group = &self.group;
        let mut tried = Tried {
            live,
            group,
            pd: group.pd()?,
            pages,
            skipped: KVec::new(),
            missed: 0,
            broken: false,
        };
        let found = search(&mut tried, group.values().is_strict())?;
        if found.is_none() {
            group.values().note_refused();
        }
        found.ok_or(ENOSPC)
    }

    /// Frees the reserve, if the slot has one. A value that no caller has seen is not spent.
    fn free_reserve(&self, slot: &mut Slot) {
        let State::Free(reserve) = &mut slot.state else {
            return;
        };
        let Some(mr) = reserve.take() else {
            return;
        };
        if !slot.promised {
            Self::free_unused(mr);
        }
    }

    /// Frees a region that was not posted to the device, and whose value no caller has seen. The value is not
    /// spent.
    pub(super) fn free_unused(mut mr: Mr) {
        if let Some(value) = mr.take_value() {
            value.unused();
            stats::UNUSED.add(1);
        }
    }

    /// Returns the pages that a fast registration of any window of the region needs, at most
    /// [`Group::fast_pages`].
    fn pages(&self) -> u32 {
        let all = self.mem.page_count();
        let fast = self.group.fast_pages();
        u32::try_from(all).map_or(fast, |all| all.min(fast))
    }

    /// Returns the number of pages that a window touches.
    pub(super) fn window_pages(&self, offset: usize, len: usize) -> usize {
        let first = (self.mem.page_offset() + offset) % kernel::page::PAGE_SIZE;
        (first + len).div_ceil(kernel::page::PAGE_SIZE)
    }

    /// Returns the offset that is added to addresses ([`Group::base`]).
    ///
    /// For user memory the offset is 0: processes use their own addresses.
    fn base(&self) -> u64 {
        match self.mem.user() {
            Some(_) => 0,
            None => self.group.base(),
        }
    }

    /// Returns the window of `len` bytes from `offset`, with its address for peers.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if a number does not fit a `usize`.
    pub(super) fn window(&self, offset: u64, len: u64) -> Result<Window> {
        let offset = usize::try_from(offset)?;
        Ok(Window {
            offset,
            len: usize::try_from(len)?,
            iova: window::remote_addr(&self.mem, offset).wrapping_add(self.base()),
        })
    }

    /// Returns whether a window fits a fast registration.
    pub(super) fn is_fast(&self, window: &Window) -> bool {
        self.window_pages(window.offset, window.len) <= self.pages() as usize
    }
}

/// Regions that a slot tries, to find one with an available key value.
struct Tried<'a> {
    live: &'a Live<'a>,
    group: &'a Group,
    pd: Arc<Pd>,
    pages: u32,
    /// Regions whose indices have values, but not for this group. Freed after the search.
    skipped: KVec<Mr>,
    /// Number of indices that could not be set aside, because the device offered other ones.
    missed: usize,
    /// True if the device does not answer: it lacks no region.
    broken: bool,
}

impl Regions for Tried<'_> {
    type Region = Mr;
    type Error = Error;

    fn fresh(&mut self) -> Result<Mr> {
        // For a ledger of the group's own, resting indices have values.
        let obtain = match self.group.values().are_shared() {
            true => Mr::fast,
            false => Mr::with_room,
        };
        obtain(self.live, &self.pd, self.pages)
            .inspect_err(|e| self.broken = [EIO, ENODEV, ETIMEDOUT].contains(e))
    }

    fn draw(&mut self, mr: &mut Mr) -> Result<Draw> {
        Ok(match self.group.values().draw(mr.rkey())? {
            Ok(value) => {
                let draw = value.draw();
                mr.set_key(value);
                draw
            }
            Err(why) => why,
        })
    }

    fn sets_aside(&self) -> bool {
        self.group.values().sets_aside()
    }

    fn set_aside(&mut self, mr: Mr) -> bool {
        stats::WORN.add(1);
        if !self.sets_aside() {
            return true;
        }
        if !self.group.values().are_shared() {
            return self.group.keep(mr);
        }
        if resting_since(mr.rkey()).is_none() {
            // On failure the region is freed, and the search ends.
            let skips = self.skipped.len() < TRIES;
            return skips && self.skipped.push(mr, GFP_KERNEL_ACCOUNT).is_ok();
        }
        // The device probably offers the index of the last freed region, or the lowest one.
        drop(mr);
        match self.group.device().ib().set_aside(self.live) {
            Aside::Done => true,
            Aside::Missed => {
                self.missed += 1;
                self.missed < TRIES
            }
            Aside::Full => false,
        }
    }

    fn release(&mut self) -> bool {
        !self.broken && self.group.device().ib().release_rested()
    }

    fn epoch(&self) -> u64 {
        self.group.values().epoch()
    }

    fn advance(&mut self, epoch: u64) {
        self.group.values().advance(epoch);
    }
}

impl Resource for KeySlot {
    fn device_gone(&self) {
        let _ending = self.ending();
        let mut slot = self.place.lock();
        self.revoke(&mut slot);
        self.free_reserve(&mut slot);
        slot.state = State::Free(None);
        slot.spent = None;
        slot.list = None;
        slot.charge = None;
        self.group.index().remove(&mut slot.entry, self);
    }
}

/// A key slot of a region.
pub(crate) struct Key {
    pub(super) inner: Arc<KeySlot>,
    ticket: Ticket,
    _queue: QueueHold,
}

impl Key {
    /// Creates a slot of `region`, whose memory is `mem`, without a key, and its first reserve.
    pub(crate) fn new(
        region: Arc<dyn RegionOps>,
        mem: Arc<Memory>,
        group: Arc<Group>,
    ) -> Result<Self> {
        let device = group.device().clone();
        let live = device.enter()?;
        let queue = QueueHold::new(&group);
        let charge = group.pd()?.charge(&live)?;
        // Whether or not the administrator allows commits now.
        let entry = Entry::new(level::can_be_durable(device.ib()))?;
        let inner = Arc::pin_init(
            pin_init!(KeySlot {
                place <- new_mutex!(
                    Slot {
                    state: State::Free(None),
                    spent: None,
                    open: None,
                    list: None,
                    promised: false,
                    charge,
                    entry,
                },
                    "kverbs_key"
                ),
                ending: AtomicU32::new(0),
                mem,
                _region: region,
                group,
                work <- new_delayed_work!("kverbs_refill"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let made = (|| {
            inner.refill(&live, &mut inner.place.lock())?;
            inner.group.ready(&live)?;
            device.resources.add(Class::Key, inner.clone())
        })();
        match made {
            Ok(ticket) => Ok(Self {
                inner,
                ticket,
                _queue: queue,
            }),
            Err(e) => {
                // No caller has seen the value of the reserve.
                inner.device_gone();
                Err(e)
            }
        }
    }
}

impl KeyOps for Key {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn chains(&self, offset: u64, len: u64) -> bool {
        let inner = &self.inner;
        inner
            .window(offset, len)
            .is_ok_and(|window| inner.is_fast(&window))
    }

    fn foresees(&self) -> bool {
        true
    }

    fn foresee(&self, offset: u64, len: u64) -> Result<KeyValue> {
        let inner = &self.inner;
        let window = inner.window(offset, len)?;
        let live = inner.group.device().enter()?;
        let mut slot = inner.place.lock();
        inner.refill(&live, &mut slot)?;
        let key = match &slot.state {
            State::Free(Some(mr)) if inner.is_fast(&window) => mr.rkey(),
            _ => return Err(EINVAL),
        };
        slot.promised = true;
        Ok(KeyValue {
            key: u64::from(key),
            remote_addr: window.iova,
        })
    }

    fn forget(&self) {
        let inner = &self.inner;
        let mut slot = inner.place.lock();
        if let State::Free(reserve) = &mut slot.state {
            // The device has never received this key, so no work request names it.
            drop(reserve.take());
        }
    }

    fn revoke(&self, last: bool) {
        let inner = &self.inner;
        if last {
            let _ending = inner.ending();
            inner.revoke(&mut inner.place.lock());
        } else {
            revoke_one(self);
        }
    }

    fn renew(&self, later: bool) {
        let inner = &self.inner;
        let lacks = |slot: &Slot| matches!(slot.state, State::Free(None));
        let short = if later {
            // The owner of the lock may be waiting for the device.
            inner.place.try_lock().is_none_or(|slot| lacks(&slot))
        } else {
            lacks(&inner.place.lock())
        };
        if !short && inner.group.is_ready() {
            return;
        }
        if !later {
            let Ok(live) = inner.group.device().enter() else {
                return;
            };
            match inner.reserve(&live) {
                Ok(()) => return,
                Err(e) => {
                    stats::SHORT.add(1);
                    // Values rest for minutes, or are exhausted until another user frees regions:
                    // the next assignment tries again.
                    if (e == ENOSPC || e == edquot()) && inner.group.is_ready() {
                        return;
                    }
                }
            }
        }
        // Fails only if the work is queued already, and then the queued work does the same.
        let _ = work::spare().enqueue_delayed(inner.clone(), msecs_to_jiffies(REFILL_MS));
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        work::cancel_delayed(&self.inner);
        // Remove the ticket last: a device removal in parallel waits until it is removed.
        self.inner.device_gone();
        let resources = &self.inner.group.device().resources;
        resources.remove(self.ticket);
    }
}
