// SPDX-License-Identifier: GPL-2.0
//! Key slots: exporting part of a region, and ending that.
//!
//! A slot keeps a memory region of the device's in reserve, large enough for a fast registration
//! of [`FAST_PAGES`](crate::limits::FAST_PAGES). Windows beyond that are registered in full
//! (`ib_reg_user_mr()` of just the window), which only the owner of user memory can do; the
//! kernel's own memory is then refused with `EMSGSIZE`.
//!
//! Many are assigned as a chain of fast registrations, which is waited for once. Meanwhile what the
//! slots had in reserve is the assigner's, and no slot's lock is held.
//!
//! Revoking is deregistering: on every driver that waits for what a peer is just doing, which on
//! rxe an invalidate does not. So each key takes a memory region of its own. The next one is had by
//! the revocation, once the key is dead, so that an assignment finds all that it needs; if it
//! cannot be had then, a worker tries again, and so does the next assignment.
//!
//! A key's number is as unpredictable as the device allows, and is new to all who could use it
//! ([`spent`](crate::spent)); isolation rests on the group's protection domain. For a full
//! registration the device chooses it, so what is registered gives peers nothing until it is known to
//! be one that nobody ever had ([`Mr::open`]), not even the answer to a read that is repeated
//! ([`region::hidden_addr`]). A device that cannot do that has an old one work for the moment until it
//! is found out.
//!
//! What this cannot keep a peer from, on rxe: a "send with invalidate" ends any fast registration
//! of the device whose number the peer guesses, whatever protection domain it is in. That takes a
//! key away; it never gives one.

use core::any::Any;
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

use crate::{
    device::Device,
    group::{
        Group,
        Registration,
        Window, //
    },
    ib::{
        self,
        charge::Charge,
        device::Live,
        dma::SgList,
        mr::{
            Access,
            Mr, //
        },
        work, //
    },
    limits::REFILL_MS,
    region::{
        self,
        Region, //
    },
    resource::{
        Class,
        Resource,
        Ticket, //
    },
    stats, //
};
use kfabric::{
    provider::{
        KeyAssign,
        KeyOps,
        KeyValue, //
    },
    sys::NoIo,
    uapi::{
        KFI_ATOMIC,
        KFI_REMOTE_READ,
        KFI_REMOTE_WRITE, //
    },
};

/// How many of the device's keys are looked at for one that is new.
const TRIES: usize = 64;
/// … where looking means to register a window, and each is kept until another is found.
const KEPT_TRIES: usize = 8;

/// What a slot has on the device.
enum State {
    /// A region in reserve, or none if it could not be had.
    Free(Option<Mr>),
    /// What there was in reserve is being made a key.
    Taken,
    /// A key by fast registration.
    Fast(Mr),
    /// A key by full registration of [offset, offset + length), and what stays in reserve.
    Full(Mr, usize, usize, Option<Mr>),
}

/// What is behind the slot's lock.
struct Slot {
    state: State,
    /// The scatter list of a fast registration, where it has to last as long as that.
    list: Option<SgList>,
    /// For the region that it has in reserve or has made a key, whoever makes it anew.
    charge: Option<Charge>,
}

/// The part that ends with the device.
#[pin_data]
struct Inner {
    #[pin]
    place: Mutex<Slot>,
    region: Arc<Region>,
    /// Where its keys are exported.
    group: Arc<Group>,
    #[pin]
    work: DelayedWork<Self>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Inner { self.work }
}

impl WorkItem for Inner {
    type Pointer = Arc<Inner>;

    fn run(this: Arc<Inner>) {
        // A block device may wait for the slot.
        let _no_io = NoIo::begin();
        if let Ok(live) = this.group.device().enter() {
            // What cannot be had now the next assign tries to have.
            let _ = this.reserve(&live);
        }
    }
}

impl Inner {
    /// Ends the key, if there is one.
    fn end(&self, slot: &mut Slot) {
        match core::mem::replace(&mut slot.state, State::Free(None)) {
            kept @ (State::Free(_) | State::Taken) => {
                slot.state = kept;
                return;
            }
            State::Fast(mr) => self.retire(mr.end()),
            State::Full(mr, offset, len, reserve) => {
                slot.state = State::Free(reserve);
                self.retire_full(mr, offset, len);
            }
        }
        if let Some(list) = &mut slot.list {
            list.unmap();
        }
    }

    /// Ends a full registration.
    fn retire_full(&self, mr: Mr, offset: usize, len: usize) {
        let mem = self.region.mem();
        self.retire(mem.device_unregister(offset, len, || mr.end()));
    }

    /// Sees to it that a region has ended.
    fn retire(&self, ended: Result<(), (Error, Mr)>) {
        if let Err((e, mr)) = ended {
            // No driver refuses that for a region of ours. If one does, what could reach it has
            // to go: every connection on the device.
            pr_err!(
                "kverbs: revoke refused ({}), ending the device's connections\n",
                e.to_errno()
            );
            let resources = &self.group.device().resources;
            resources.fail_endpoints(bindings::EIO);
            drop(mr);
        }
    }

    /// Has all in reserve that an assignment takes, if it can, and waits for no registration.
    fn reserve(&self, live: &Live<'_>) -> Result {
        let had = self.refill(live, &mut self.place.lock());
        let ready = self.group.try_ready(live);
        had.and(ready)
    }

    /// Has a region in reserve, if it can.
    fn refill(&self, live: &Live<'_>, slot: &mut Slot) -> Result {
        let State::Free(reserve) = &mut slot.state else {
            return Ok(());
        };
        let group = &self.group;
        let pages = self.pages();
        if reserve.is_some() || pages == 0 {
            return Ok(());
        }
        let pd = group.pd()?;
        for _ in 0..TRIES {
            let mut mr = Mr::fast(live, &pd, pages)?;
            if let Some(byte) = group.values().draw(mr.rkey(), ib::random())? {
                mr.set_key(byte);
                stats::RESERVED.add(1);
                *reserve = Some(mr);
                return Ok(());
            }
            stats::WORN.add(1);
            group.keep_worn(mr);
        }
        Err(ENOSPC)
    }

    /// Registers a window in full. The device chooses the key, so whether it is a new one shows
    /// only when it is made; one that is not is ended again, before it gave peers anything where
    /// the device can do that.
    fn full(&self, live: &Live<'_>, window: Window, rights: Access) -> Result<Mr> {
        let Window { offset, len, iova } = window;
        let mem = self.region.mem();
        let opens = self.group.device().ib().opens();
        // Kept until another is found, for a device may hand out again what it got back last.
        let mut old = KVec::<Mr>::with_capacity(KEPT_TRIES, GFP_KERNEL_ACCOUNT)?;
        let most = if opens { TRIES } else { KEPT_TRIES };
        let mut tries = 0;
        let found = loop {
            tries += 1;
            let (at, first) = if opens {
                (
                    region::hidden_addr(&self.group, mem, offset),
                    rights.local(),
                )
            } else {
                (iova, rights)
            };
            let mut mr = match region::user_mr(live, &self.group, mem, offset, len, at, first) {
                Ok(mr) => mr,
                Err(e) => break Err(e),
            };
            let new = self.group.values().take(mr.rkey()).and_then(|new| {
                if new && opens {
                    mr.open(iova, rights)?;
                }
                Ok(new)
            });
            let e = match new {
                Ok(true) => break Ok(mr),
                Ok(false) if tries < most => None,
                Ok(false) => Some(ENOSPC),
                Err(e) => Some(e),
            };
            if opens {
                // Software counts up. What is kept is charged, and there may be no room for two.
                self.retire_full(mr, offset, len);
            } else {
                // There is room.
                let _ = old.push(mr, GFP_KERNEL_ACCOUNT);
            }
            if let Some(e) = e {
                break Err(e);
            }
        };
        for mr in old {
            self.retire_full(mr, offset, len);
        }
        found
    }

    /// Pages that a fast registration of any window of the region needs, as far as there are.
    fn pages(&self) -> u32 {
        let all = self.region.mem().page_count();
        let fast = self.group.fast_pages();
        u32::try_from(all).map_or(fast, |all| all.min(fast))
    }

    /// Pages that a window touches.
    fn window_pages(&self, offset: usize, len: usize) -> usize {
        let first = (self.region.mem().page_offset() + offset) % kernel::page::PAGE_SIZE;
        (first + len).div_ceil(kernel::page::PAGE_SIZE)
    }
}

impl Resource for Inner {
    fn device_gone(&self) {
        let mut slot = self.place.lock();
        self.end(&mut slot);
        slot.state = State::Free(None);
        slot.list = None;
        slot.charge = None;
    }
}

/// A key slot.
pub(crate) struct Key {
    inner: Arc<Inner>,
    ticket: Ticket,
}

impl Key {
    /// Reserves one.
    pub(crate) fn new(region: Arc<Region>, group: Arc<Group>) -> Result<Self> {
        let device = group.device().clone();
        let live = device.enter()?;
        let charge = group.pd()?.charge(&live)?;
        let inner = Arc::pin_init(
            pin_init!(Inner {
                place <- new_mutex!(
                    Slot { state: State::Free(None), list: None, charge },
                    "kverbs_key"
                ),
                region,
                group,
                work <- new_delayed_work!("kverbs_refill"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        {
            let mut slot = inner.place.lock();
            inner.refill(&live, &mut slot)?;
            if inner.group.own_lists() {
                slot.list = Some(SgList::new(device.ib(), inner.pages() as usize + 1)?);
            }
        }
        inner.group.ready(&live)?;
        let ticket = device.resources.add(Class::Key, inner.clone())?;
        Ok(Self { inner, ticket })
    }
}

/// What peers are to be able to do.
fn rights(order: &KeyAssign<'_>) -> Access {
    Access::remote(
        order.access & KFI_REMOTE_READ != 0,
        order.access & KFI_REMOTE_WRITE != 0,
        order.access & KFI_ATOMIC != 0,
    )
}

impl Inner {
    /// What is added to addresses: see [`Group::base`]. A process knows its memory by addresses of its own.
    fn base(&self) -> u64 {
        match self.region.mem().user() {
            Some(_) => 0,
            None => self.group.base(),
        }
    }

    fn window(&self, offset: u64, len: u64) -> Result<Window> {
        let offset = usize::try_from(offset)?;
        Ok(Window {
            offset,
            len: usize::try_from(len)?,
            iova: region::remote_addr(self.region.mem(), offset).wrapping_add(self.base()),
        })
    }

    /// Whether a window fits a fast registration.
    fn is_fast(&self, window: &Window) -> bool {
        self.window_pages(window.offset, window.len) <= self.pages() as usize
    }

    /// Takes what a fast registration needs.
    fn take(&self, live: &Live<'_>, window: Window, access: Access) -> Result<Registration<'_>> {
        let mut slot = self.place.lock();
        self.refill(live, &mut slot)?;
        let State::Free(reserve) = &mut slot.state else {
            return Err(EBUSY);
        };
        let mr = reserve.take().ok_or(ENOMEM)?;
        slot.state = State::Taken;
        Ok(Registration {
            mr,
            list: slot.list.take(),
            mem: self.region.mem(),
            window,
            access,
            posted: false,
        })
    }

    /// Keeps what has become a key.
    fn keep(&self, made: Registration<'_>) {
        let mut slot = self.place.lock();
        stats::FAST.add(1);
        slot.state = State::Fast(made.mr);
        slot.list = made.list;
    }

    /// Has the slot free again. What was set aside for it stays so, unless the device has heard of
    /// it: then it ends, whatever came of it.
    fn give_up(&self, made: Registration<'_>) {
        let Registration {
            mr,
            mut list,
            posted,
            ..
        } = made;
        let mut reserve = Some(mr);
        if let Some(mr) = reserve.take_if(|_| posted) {
            self.retire(mr.end());
        }
        if let Some(list) = &mut list {
            list.unmap();
        }
        let mut slot = self.place.lock();
        slot.state = State::Free(reserve);
        slot.list = list;
    }

    /// Makes a key by full registration.
    fn assign_full(&self, live: &Live<'_>, window: Window, access: Access) -> Result<KeyValue> {
        if self.region.mem().user().is_none() {
            return Err(EMSGSIZE);
        }
        let Window { offset, len, iova } = window;
        // Without the lock: this may wait for the program.
        let mr = self.full(live, window, access)?;
        let value = KeyValue {
            key: u64::from(mr.rkey()),
            remote_addr: iova,
        };
        let mut slot = self.place.lock();
        let reserve = match &mut slot.state {
            State::Free(reserve) => reserve.take(),
            _ => None,
        };
        stats::FULL.add(1);
        slot.state = State::Full(mr, offset, len, reserve);
        Ok(value)
    }
}

fn inner<'a>(order: &KeyAssign<'a>) -> Result<&'a Inner> {
    let key = order.slot.as_any().downcast_ref::<Key>().ok_or(EINVAL)?;
    Ok(&key.inner)
}

/// Assigns slots: those of one group as a chain of fast registrations, or a single full one. See
/// [`DomainOps::assign_keys`].
///
/// [`DomainOps::assign_keys`]: kfabric::provider::DomainOps::assign_keys
pub(crate) fn assign(device: &Device, batch: &mut [KeyAssign<'_>]) -> Result<(), (usize, Error)> {
    let live = device.enter().map_err(|e| (0, e))?;
    if let [one] = &mut *batch {
        if full(&live, one).map_err(|e| (0, e))? {
            return Ok(());
        }
    }
    let mut done = 0;
    while let Some(first) = batch.get(done) {
        let group = &inner(first).map_err(|e| (done, e))?.group;
        let rest = &mut batch[done..];
        let of_group = |order: &KeyAssign<'_>| {
            inner(order).is_ok_and(|inner| Arc::ptr_eq(&inner.group, group))
        };
        let n = rest.iter().take_while(|order| of_group(order)).count();
        // UNACCOUNTED: Freed before the call returns; the caller may be a block device that serves another task.
        let chain = (n > 1).then(|| KVec::with_capacity(n, GFP_KERNEL));
        done += match chain {
            Some(Ok(chain)) => {
                assign_chain(&live, group, &mut rest[..n], chain)
                    .map_err(|(n, e)| (done + n, e))?;
                n
            }
            // One takes no memory, also where there is none for a chain.
            _ => {
                assign_one(&live, group, &mut rest[0]).map_err(|e| (done, e))?;
                1
            }
        };
    }
    Ok(())
}

/// Assigns a slot of `group`.
fn assign_one(live: &Live<'_>, group: &Group, order: &mut KeyAssign<'_>) -> Result {
    let mut made = [prepare(live, order)?];
    let result = group.register(live, &mut made).map_err(|(_, e)| e);
    let [made] = made;
    settle(order, made, result.is_ok());
    result
}

/// Has the slot keep what was made for it, if that is `good`.
fn settle(order: &mut KeyAssign<'_>, made: Registration<'_>, good: bool) {
    // It was one of ours before, too.
    let Ok(key) = inner(order) else { return };
    if good {
        order.value = KeyValue {
            key: u64::from(made.mr.rkey()),
            remote_addr: made.window.iova,
        };
        key.keep(made);
    } else {
        key.give_up(made);
    }
}

/// Assigns slots of `group` as a `chain`, which has room for them. See [`assign`].
fn assign_chain<'a>(
    live: &Live<'_>,
    group: &Group,
    batch: &mut [KeyAssign<'a>],
    mut chain: KVec<Registration<'a>>,
) -> Result<(), (usize, Error)> {
    let mut result = Ok(());
    for order in &*batch {
        match prepare(live, order) {
            // There is room.
            Ok(fast) => drop(chain.push_within_capacity(fast)),
            Err(e) => {
                result = Err((chain.len(), e));
                break;
            }
        }
    }
    if chain.is_empty() {
        return result;
    }
    let mut good = chain.len();
    if let Err((n, e)) = group.register(live, &mut chain) {
        good = n;
        result = Err((n, e));
    }
    for (i, (made, order)) in chain.drain_all().zip(batch).enumerate() {
        settle(order, made, i < good);
    }
    result
}

/// Takes what a slot has for a fast registration of its window.
fn prepare<'a>(live: &Live<'_>, order: &KeyAssign<'a>) -> Result<Registration<'a>> {
    let key = inner(order)?;
    let window = key.window(order.offset, order.len)?;
    if !key.is_fast(&window) {
        return Err(EINVAL);
    }
    key.take(live, window, rights(order))
}

/// Registers a window in full if it takes that; whether it does.
fn full(live: &Live<'_>, order: &mut KeyAssign<'_>) -> Result<bool> {
    let key = inner(order)?;
    let window = key.window(order.offset, order.len)?;
    if key.is_fast(&window) {
        return Ok(false);
    }
    order.value = key.assign_full(live, window, rights(order))?;
    Ok(true)
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
        match &slot.state {
            State::Free(Some(mr)) if inner.is_fast(&window) => Ok(KeyValue {
                key: u64::from(mr.rkey()),
                remote_addr: window.iova,
            }),
            _ => Err(EINVAL),
        }
    }

    fn forget(&self) {
        let inner = &self.inner;
        let mut slot = inner.place.lock();
        if let State::Free(reserve) = &mut slot.state {
            if let Some(mr) = reserve.take() {
                inner.retire(mr.end());
            }
        }
    }

    fn revoke(&self) {
        let inner = &self.inner;
        inner.end(&mut inner.place.lock());
    }

    fn renew(&self, later: bool) {
        let inner = &self.inner;
        let lacks = |slot: &Slot| matches!(slot.state, State::Free(None));
        let short = if later {
            // Who has it may be waiting for the device.
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
                    // That does not pass with time, but with what others give back.
                    if e == ENOSPC && inner.group.is_ready() {
                        return;
                    }
                }
            }
        }
        // What is queued already has yet to run.
        let _ = work::spare().enqueue_delayed(inner.clone(), msecs_to_jiffies(REFILL_MS));
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        work::cancel_delayed(&self.inner);
        // Off the list only when it has ended: a device that goes meanwhile waits for that.
        self.inner.device_gone();
        let resources = &self.inner.group.device().resources;
        resources.remove(self.ticket);
    }
}
