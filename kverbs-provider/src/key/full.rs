// SPDX-License-Identifier: GPL-2.0
//! Full registrations: `ib_reg_user_mr()` of user memory, for local use or for one key.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    group::Group,
    policy::registers_user,
    slot::{
        KeySlot,
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
        mr::{
            Access,
            Mr, //
        }, //
    },
    limits::SOFT_PAGES,
    stats, //
};
use kfabric::{
    memory::Memory,
    provider::KeyValue,
    pure::key_ledger::{
        Draw,
        TRIES, //
    }, //
};

/// Maximum number of registrations that are tried to find a key value, if each is kept until an
/// available value is found.
const KEPT_TRIES: usize = 8;

/// A key by full registration.
pub(super) struct Full {
    pub(super) mr: Mr,
    /// First byte of the window in the region.
    pub(super) offset: usize,
    /// Bytes of the window.
    pub(super) len: usize,
    /// The slot's region for fast registrations, if it has one.
    pub(super) reserve: Option<Mr>,
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
    let pages = (mem.page_offset() + offset) % kernel::page::PAGE_SIZE + len;
    let pages = pages.div_ceil(kernel::page::PAGE_SIZE);
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
    /// Ends a full registration of a window.
    pub(super) fn retire_full(&self, mr: Mr, offset: usize, len: usize) {
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
                    waits |= why != Draw::Spent;
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

    /// Assigns a key by full registration.
    ///
    /// # Errors
    ///
    /// - `EMSGSIZE` if the region is kernel memory, or the driver registers no user memory for the
    ///   kernel ([`registers_user`]).
    /// - `ENOMEM` if there is no memory for the slot's state.
    pub(super) fn assign_full(
        self: &Arc<Self>,
        live: &Live<'_>,
        window: Window,
        access: Access,
    ) -> Result<KeyValue> {
        if self.mem.user().is_none() || !registers_user(self.group.device().ib()) {
            return Err(EMSGSIZE);
        }
        let Window { offset, len, iova } = window;
        let full = KBox::new_uninit(GFP_KERNEL_ACCOUNT)?;
        // Without the slot's lock: the registration may wait for the program.
        let mr = self.register_full(live, window, access)?;
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
        self.opened(&mut slot, &mr, window, access);
        let full = full.write(Full {
            mr,
            offset,
            len,
            reserve,
        });
        slot.state = State::Full(full);
        Ok(value)
    }
}
