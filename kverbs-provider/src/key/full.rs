// SPDX-License-Identifier: GPL-2.0
//! Registrations for keys whose window is larger than the reserve of a slot: a wide fast registration
//! by a region of its own, in larger pages where the memory is contiguous, or a full registration,
//! `ib_reg_user_mr()` of user memory. The latter is also for local use.
//!
//! A wide fast registration has a value that the owner chooses. The value of a full registration
//! is the device's choice, and hardware may choose the same few ones for ever: mlx5 takes the region
//! that was freed last, with its value unchanged, and qedr and hns have one value for each index. So a key
//! has a full registration only if the device gives rights later, when the value is known to be new
//! ([`registers_keys`]).

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

use super::{
    fast::Registration,
    group::Group,
    policy::{
        large_pages,
        registers_keys, //
    },
    slot::{
        KeySlot,
        Slot,
        State, //
    },
    window::{
        self,
        Window, //
    }, //
};
use crate::{
    ib::{
        device::Live,
        dma::SgList,
        mr::{
            Access,
            Mr, //
        }, //
    },
    limits::{
        SOFT_PAGES,
        WIDE_PAGES, //
    },
    stats, //
};
use kfabric::{
    memory::Memory,
    provider::KeyValue,
    pure::{
        key_ledger::{
            Draw,
            TRIES, //
        },
        range::{
            largest_page,
            pages_spanned, //
        }, //
    },
};

/// Maximum number of registrations that are tried to find a key value, if each is kept until an
/// available value is found.
const KEPT_TRIES: usize = 8;

/// A key by full, or by wide fast registration.
pub(super) struct Full {
    pub(super) mr: Mr,
    how: How,
    /// The slot's region for fast registrations, if it has one.
    pub(super) reserve: Option<Mr>,
}

/// The pages of a wide fast registration.
#[derive(Clone, Copy)]
struct Pages {
    /// Bytes of a page.
    size: usize,
    /// Number of pages that the window touches.
    count: u32,
    /// Number of entries of the driver's list, which the user is charged for.
    entries: u32,
}

/// How a [`Full`] key was registered.
enum How {
    /// By the device, with the memory's offset and length.
    User(usize, usize),
    /// From the scatter list.
    Wide(Option<SgList>),
}

/// Registers `len` bytes of user memory from `offset`. `iova` is the address of the first byte.
///
/// # Errors
///
/// - `ENOMEM` if the device cannot register so much.
/// - `ENODEV` if the device is being removed.
/// - An error of [`Memory::device_register`].
pub(crate) fn user_mr(
    live: &Live<'_>,
    group: &Group,
    mem: &Memory,
    offset: usize,
    len: usize,
    iova: u64,
    access: Access,
) -> Result<Mr> {
    let pages = (mem.page_offset() + offset) % PAGE_SIZE + len;
    let pages = pages.div_ceil(PAGE_SIZE);
    if group.device().ib().uses_virt_dma() && pages > SOFT_PAGES {
        return Err(ENOMEM);
    }
    let pd = group.pd()?;
    let register = |addr| Mr::user(live, &pd, addr as u64, len as u64, iova, access);
    // The program may withhold a page for any time, and the device may be removed meanwhile.
    live.outside(
        || mem.device_register(offset, len, register),
        |mr| mem.device_unregister(offset, len, || drop(mr)),
    )
}

impl KeySlot {
    /// Ends a key of this kind. The slot keeps its reserve.
    pub(super) fn end_full(&self, slot: &mut Slot, full: Full) {
        slot.state = State::Free(full.reserve);
        match full.how {
            How::User(offset, len) => self.retire_full(full.mr, offset, len),
            How::Wide(mut list) => self.retire(full.mr.end(), &mut list),
        }
    }

    /// Ends a full registration of a window.
    fn retire_full(&self, mr: Mr, offset: usize, len: usize) {
        let mem = &self.mem;
        self.retire(mem.device_unregister(offset, len, || mr.end()), &mut None);
    }

    /// Registers a window in full.
    ///
    /// The device chooses the key value, so the driver learns only afterwards whether the value is
    /// available. A registration with another value is ended again. If the device can open a registration
    /// later, peers never had access through that value.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if no tried registration had an available value.
    fn register_full(&self, live: &Live<'_>, window: Window, rights: Access) -> Result<Mr> {
        let Window { offset, len, iova } = window;
        let mem = &self.mem;
        let opens = self.group.device().ib().opens();
        // Kept until an available value is found: a device may return the last freed region first.
        let mut old = KVec::<Mr>::with_capacity(2 * KEPT_TRIES, GFP_KERNEL_ACCOUNT)?;
        let most = if opens { TRIES } else { KEPT_TRIES };
        let values = self.group.values();
        let epoch = values.epoch();
        // A strict group waits for no epoch.
        let mut waits = values.is_strict();
        let mut tries = 0;
        let found = loop {
            tries += 1;
            let (at, first) = if opens {
                (
                    window::hidden_addr(&self.group, mem, offset),
                    rights.local(),
                )
            } else {
                (iova, rights)
            };
            let mut mr = match user_mr(live, &self.group, mem, offset, len, at, first) {
                Ok(mr) => mr,
                Err(e) => break Err(e),
            };
            let e = match values.take(mr.rkey()) {
                Ok(Ok(value)) => {
                    mr.keep_value(value);
                    let opened = if opens { mr.open(iova, rights) } else { Ok(()) };
                    match opened {
                        Ok(()) => break Ok(mr),
                        Err(e) => Some(e),
                    }
                }
                Ok(Err(why)) => {
                    // With `Taken` the index has other values, so the epoch goes on.
                    waits |= matches!(why, Draw::Resting | Draw::Taken);
                    if tries == most && !waits {
                        // All values are used that the device offers.
                        values.advance(epoch);
                        (waits, tries) = (true, 0);
                    }
                    (tries == most).then_some(ENOSPC)
                }
                Err(e) => Some(e),
            };
            if opens {
                // Software devices count up, so nothing has to be kept. Kept regions are charged,
                // and the limit may not allow two.
                self.retire_full(mr, offset, len);
            } else {
                // Cannot fail: `old` has capacity for all registrations.
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

    /// Returns the pages of a wide fast registration of a window, or `None` if the window can have none.
    ///
    /// If the kernel's pages are too many, larger ones are tried. On software devices a full registration
    /// is as good as one in the kernel's pages: its rights can be changed when its value is known.
    fn wide(&self, window: &Window) -> Option<Pages> {
        let ib = self.group.device().ib();
        let most = ib.max_fast_reg_pages().min(WIDE_PAGES);
        let small = u32::try_from(self.window_pages(window.offset, window.len)).ok()?;
        if !ib.opens() && small <= most {
            return Some(Pages {
                size: PAGE_SIZE,
                count: small,
                entries: small,
            });
        }
        // The length has 32 bits in the work requests of bnxt_re and qedr.
        u32::try_from(window.len).ok()?;
        let spanned = |shift| pages_spanned(window.iova, window.len as u64, shift);
        let is_listed = |shift: &u32| spanned(*shift).is_some_and(|count| count <= most.into());
        let listed: u64 = (0..u64::BITS)
            .filter(is_listed)
            .map(|shift| 1 << shift)
            .sum();
        let bounds = self.mem.bounds(window.offset, window.len)?;
        let segments = self.mem.segments(window.offset, window.len);
        let pieces = segments.map(|segment| (segment.addr(), segment.len as u64));
        let size = largest_page(pieces, bounds, window.iova, large_pages(ib) & listed)?;
        let count = u32::try_from(spanned(size.trailing_zeros())?).ok()?;
        let size = usize::try_from(size).ok()?;
        // rxe's list has the kernel's pages.
        let entries = match ib.uses_virt_dma() {
            true => (size / PAGE_SIZE).saturating_mul(count as usize),
            false => count as usize,
        };
        if entries > SOFT_PAGES {
            return None;
        }
        Some(Pages {
            size,
            count,
            entries: u32::try_from(entries).ok()?,
        })
    }

    /// Registers a window by a region of its own.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if no tried region has an available key value.
    /// - An error of [`Group::register`].
    fn register_wide(
        &self,
        live: &Live<'_>,
        window: Window,
        pages: Pages,
        access: Access,
    ) -> Result<(Mr, How)> {
        let (offset, len) = (window.offset, window.len);
        let group = &self.group;
        let charge = group.pd()?.charge_pages(live, pages.entries)?;
        let list = SgList::new(group.device().ib(), self.mem.segment_count(offset, len))?;
        let mut mr = self.find_region(live, pages.count)?;
        mr.keep_charge(charge);
        let mut made = [Registration {
            mr,
            list: Some(list),
            mem: &self.mem,
            window,
            page_size: pages.size,
            access,
            posted: false,
        }];
        let result = group.register(live, &mut made);
        let [Registration {
            mr,
            mut list,
            posted,
            ..
        }] = made;
        match result {
            // Without a list of the key's own the region has the addresses, which need no mapping.
            Ok(()) => return Ok((mr, How::Wide(list.filter(|_| group.own_lists())))),
            // A posted region may be registered.
            Err(_) if posted => self.retire(mr.end(), &mut list),
            Err(_) => Self::free_unused(mr),
        }
        result.map_err(|(_, e)| e).and(Err(EIO))
    }

    /// Assigns a key by wide fast, or by full registration.
    ///
    /// # Errors
    ///
    /// - `EMSGSIZE` if the region is kernel memory, or no full registration is allowed for keys of the
    ///   device ([`registers_keys`]).
    /// - `ENOMEM` if there is no memory for the slot's state.
    pub(super) fn assign_full(
        self: &Arc<Self>,
        live: &Live<'_>,
        window: Window,
        access: Access,
    ) -> Result<KeyValue> {
        if self.mem.user().is_none() {
            return Err(EMSGSIZE);
        }
        let wide = self.wide(&window);
        if wide.is_none() && !registers_keys(self.group.device().ib()) {
            return Err(EMSGSIZE);
        }
        let full = KBox::new_uninit(GFP_KERNEL_ACCOUNT)?;
        // Without the slot's lock: the registration may wait for the program.
        let (mr, how) = if let Some(pages) = wide {
            self.register_wide(live, window, pages, access)?
        } else {
            let mr = self.register_full(live, window, access)?;
            (mr, How::User(window.offset, window.len))
        };
        let value = KeyValue {
            key: u64::from(mr.rkey()),
            remote_addr: window.iova,
        };
        let mut slot = self.place.lock();
        let reserve = match &mut slot.state {
            State::Free(reserve) => reserve.take(),
            _ => None,
        };
        if wide.is_some() {
            stats::FAST.add(1);
        } else {
            stats::FULL.add(1);
        }
        self.opened(&mut slot, &mr, window, access);
        let full = full.write(Full { mr, how, reserve });
        slot.state = State::Full(full);
        Ok(value)
    }
}
