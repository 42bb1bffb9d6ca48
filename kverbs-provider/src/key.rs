// SPDX-License-Identifier: GPL-2.0
//! Key slots: exporting part of a region, and ending that.
//!
//! A slot keeps a memory region of the device's in reserve, large enough for a fast registration
//! of [`FAST_PAGES`](crate::limits::FAST_PAGES). Windows beyond that are registered in full
//! (`ib_reg_user_mr()` of just the window), which only the owner of user memory can do; the
//! kernel's own memory is then refused with `EMSGSIZE`.
//!
//! Revoking is deregistering: on every driver that waits for what a peer is just doing, which on
//! rxe an invalidate does not. The reserve is refilled at once; if that fails the next assign
//! tries again. A key's number is as unpredictable as the device allows, and comes once
//! ([`spent`]); isolation rests on the group's protection domain. For a full registration the device
//! chooses it: an old one works for the moment until it is found to be one.
//!
//! What this cannot keep a peer from, on rxe: a "send with invalidate" ends any fast registration
//! of the device whose number the peer guesses, whatever protection domain it is in. That takes a
//! key away; it never gives one.

use kernel::{
    bindings,
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use crate::{
    group::Window,
    ib::{
        self,
        device::Live,
        dma::SgList,
        mr::{
            Access,
            Mr, //
        }, //
    },
    region::{
        self,
        Region, //
    },
    resource::{
        Class,
        Resource,
        Ticket, //
    },
    spent,
};
use kfabric::{
    provider::{
        KeyOps,
        KeyValue, //
    },
    uapi::{
        KFI_REMOTE_READ,
        KFI_REMOTE_WRITE, //
    },
};

/// How many of the device's keys are looked at for one that is new.
const TRIES: usize = 64;
/// … where looking means to register a window.
const FULL_TRIES: usize = 4;

/// What a slot has on the device.
enum State {
    /// A region in reserve, or none if it could not be had.
    Free(Option<Mr>),
    /// A key by fast registration.
    Fast(Mr),
    /// A key by full registration of [offset, offset + length).
    Full(Mr, usize, usize),
}

/// What is behind the slot's lock.
struct Slot {
    state: State,
    /// The scatter list of a fast registration, where it has to last as long as that.
    list: Option<SgList>,
}

/// The part that ends with the device.
#[pin_data]
struct Inner {
    #[pin]
    place: Mutex<Slot>,
    region: Arc<Region>,
}

impl Inner {
    /// Ends the key, if there is one.
    fn end(&self, slot: &mut Slot) {
        let (mr, user) = match core::mem::replace(&mut slot.state, State::Free(None)) {
            State::Free(reserve) => {
                slot.state = State::Free(reserve);
                return;
            }
            State::Fast(mr) => (mr, None),
            State::Full(mr, offset, len) => (mr, Some((offset, len))),
        };
        let ended = match user {
            None => mr.end(),
            Some((offset, len)) => self
                .region
                .mem()
                .device_unregister(offset, len, || mr.end()),
        };
        if let Err((e, mr)) = ended {
            // No driver refuses that for a region of ours. If one does, what could reach it has
            // to go: every connection on the device.
            pr_err!(
                "kverbs: revoke refused ({}), ending the device's connections\n",
                e.to_errno()
            );
            let resources = &self.region.group().device().resources;
            resources.fail_endpoints(bindings::EIO);
            drop(mr);
        }
        if let Some(list) = &mut slot.list {
            list.unmap();
        }
    }

    /// Has a region in reserve, if it can.
    fn refill(&self, live: &Live<'_>, slot: &mut Slot) -> Result {
        let State::Free(reserve) = &mut slot.state else {
            return Ok(());
        };
        let group = self.region.group();
        let pages = self.pages();
        if reserve.is_some() || pages == 0 {
            return Ok(());
        }
        let pd = group.pd()?;
        for _ in 0..TRIES {
            let mut mr = Mr::fast(live, &pd, pages)?;
            if let Some(byte) = spent::draw(mr.rkey(), ib::random())? {
                mr.set_key(byte);
                *reserve = Some(mr);
                return Ok(());
            }
            group.keep_worn(mr);
        }
        Err(ENOSPC)
    }

    /// Registers a window in full. The device chooses the key, so whether it is a new one shows
    /// only when it is made; one that is not is ended again.
    fn full(&self, live: &Live<'_>, offset: usize, len: usize, rights: Access) -> Result<Mr> {
        let mem = self.region.mem();
        // Kept until another is found, for a device may hand out again what it got back last.
        let mut old = KVec::<Mr>::with_capacity(FULL_TRIES, GFP_KERNEL)?;
        let found = loop {
            let mr = match region::user_mr(live, self.region.group(), mem, offset, len, rights) {
                Ok(mr) => mr,
                Err(e) => break Err(e),
            };
            let e = match spent::take(mr.rkey()) {
                Ok(true) => break Ok(mr),
                Ok(false) if old.len() + 1 < FULL_TRIES => None,
                Ok(false) => Some(ENOSPC),
                Err(e) => Some(e),
            };
            // There is room.
            let _ = old.push(mr, GFP_KERNEL);
            if let Some(e) = e {
                break Err(e);
            }
        };
        for mr in old {
            mem.device_unregister(offset, len, || drop(mr));
        }
        found
    }

    /// Pages that a fast registration of any window of the region needs, as far as there are.
    fn pages(&self) -> u32 {
        let mem = self.region.mem();
        let all = (mem.page_offset() + mem.len()).div_ceil(kernel::page::PAGE_SIZE);
        let fast = self.region.group().fast_pages();
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
    }
}

/// A key slot.
pub(crate) struct Key {
    inner: Arc<Inner>,
    ticket: Ticket,
}

impl Key {
    /// Reserves one.
    pub(crate) fn new(region: Arc<Region>) -> Result<Self> {
        let device = region.group().device().clone();
        let live = device.enter()?;
        let inner = Arc::pin_init(
            pin_init!(Inner {
                place <- new_mutex!(Slot { state: State::Free(None), list: None }, "kverbs_key"),
                region,
            }),
            GFP_KERNEL,
        )?;
        {
            let mut slot = inner.place.lock();
            inner.refill(&live, &mut slot)?;
            if inner.region.group().own_lists() {
                slot.list = Some(SgList::new(device.ib(), inner.pages() as usize + 1)?);
            }
        }
        let ticket = device.resources.add(Class::Key, inner.clone())?;
        Ok(Self { inner, ticket })
    }
}

impl KeyOps for Key {
    fn assign(&mut self, offset: u64, len: u64, access: u64) -> Result<KeyValue> {
        let inner = &*self.inner;
        let region = &inner.region;
        let live = region.group().device().enter()?;
        let (offset, len) = (usize::try_from(offset)?, usize::try_from(len)?);
        let rights = Access::remote(
            access & KFI_REMOTE_READ != 0,
            access & KFI_REMOTE_WRITE != 0,
        );
        let remote_addr = region::remote_addr(region.mem(), offset);
        let mut guard = inner.place.lock();
        let slot = &mut *guard;
        let rkey = if inner.window_pages(offset, len) <= inner.pages() as usize {
            inner.refill(&live, slot)?;
            let State::Free(reserve) = &mut slot.state else {
                return Err(EBUSY);
            };
            let mut mr = reserve.take().ok_or(ENOMEM)?;
            let window = Window {
                offset,
                len,
                iova: remote_addr,
            };
            // On a failure the region is dropped, which ends whatever came of it.
            region.group().register(
                &live,
                &mut mr,
                slot.list.as_mut(),
                region.mem(),
                window,
                rights,
            )?;
            let rkey = mr.rkey();
            slot.state = State::Fast(mr);
            rkey
        } else if region.mem().user().is_some() {
            if !matches!(slot.state, State::Free(_)) {
                return Err(EBUSY);
            }
            let mr = inner.full(&live, offset, len, rights)?;
            let rkey = mr.rkey();
            // What was in reserve goes; a later revoke gets a new one.
            slot.state = State::Full(mr, offset, len);
            rkey
        } else {
            return Err(EMSGSIZE);
        };
        Ok(KeyValue {
            key: u64::from(rkey),
            remote_addr,
        })
    }

    fn revoke(&mut self) {
        let mut slot = self.inner.place.lock();
        self.inner.end(&mut slot);
        if let Ok(live) = self.inner.region.group().device().enter() {
            // The key is dead; a reserve that cannot be had now is had by the next assign.
            let _ = self.inner.refill(&live, &mut slot);
        }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // Off the list only when it has ended: a device that goes meanwhile waits for that.
        self.inner.device_gone();
        self.inner
            .region
            .group()
            .device()
            .resources
            .remove(self.ticket);
    }
}
