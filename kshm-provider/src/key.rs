// SPDX-License-Identifier: GPL-2.0
//! Key slots: exporting parts of a region.
//!
//! A slot has a cell of the [`Table`]; assigning puts a window into it and revoking takes it out,
//! and neither allocates nor waits for anything but copies that are just being made through the key.

use core::{
    any::Any,
    sync::atomic::{
        AtomicBool,
        AtomicU32,
        AtomicU64,
        Ordering, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    group::Group,
    region::Region,
    table::{
        Table,
        Window, //
    },
};
use kfabric::{
    provider::{
        KeyAssign,
        KeyOps,
        KeyValue, //
    },
    uapi::KFI_KEY_NOTAVAIL, //
};

/// A slot. The core asks for one thing at a time.
pub(crate) struct Key {
    region: Arc<Region>,
    group: Arc<Group>,
    table: Arc<Table>,
    cell: AtomicU32,
    /// Its key; `KFI_KEY_NOTAVAIL`: none.
    value: AtomicU64,
}

impl Key {
    /// One of `region`, exported in `group`.
    ///
    /// # Errors
    ///
    /// `ENOSPC`, `ENOMEM`: the host has no more.
    pub(crate) fn new(region: Arc<Region>, group: Arc<Group>, table: Arc<Table>) -> Result<Self> {
        let cell = table.take()?;
        Ok(Self {
            region,
            group,
            table,
            cell: AtomicU32::new(cell),
            value: AtomicU64::new(KFI_KEY_NOTAVAIL),
        })
    }

    fn assign(&self, order: &KeyAssign<'_>) -> Result<KeyValue> {
        let KeyAssign { offset, len, .. } = *order;
        let window = Window {
            region: self.region.clone(),
            group: self.group.clone(),
            // CAST: Inside the region, whose length is a `usize`.
            offset: offset as usize,
            len,
            addr: self.region.remote_addr(offset),
            access: order.access,
            once: order.once,
            used: AtomicBool::new(false),
            over: AtomicBool::new(false),
        };
        let remote_addr = window.addr;
        if self.table.is_worn(self.cell.load(Ordering::Relaxed)) {
            // Its last cell had all its keys, and the revocation found no other.
            self.cell.store(self.table.take()?, Ordering::Relaxed);
        }
        let key = self
            .table
            .publish(self.cell.load(Ordering::Relaxed), window)?;
        self.value.store(key, Ordering::Relaxed);
        Ok(KeyValue { key, remote_addr })
    }
}

impl KeyOps for Key {
    fn as_any(&self) -> &dyn Any {
        self
    }

    /// There is nothing that many would do together.
    fn chains(&self, _offset: u64, _len: u64) -> bool {
        false
    }

    /// Nothing is told beforehand: a key is there as soon as it is asked for, before anything that
    /// is posted afterwards.
    fn foresees(&self) -> bool {
        true
    }

    fn used(&self) -> bool {
        let value = self.value.load(Ordering::Relaxed);
        let used = |window: &Window| window.over.load(Ordering::Acquire);
        value != KFI_KEY_NOTAVAIL && self.table.with(value, used) == Some(true)
    }

    fn revoke(&self) {
        let value = self.value.swap(KFI_KEY_NOTAVAIL, Ordering::Relaxed);
        if value != KFI_KEY_NOTAVAIL {
            drop(self.table.retire(value));
        }
    }

    fn renew(&self, _later: bool) {
        if self.value.load(Ordering::Relaxed) == KFI_KEY_NOTAVAIL
            && self.table.is_worn(self.cell.load(Ordering::Relaxed))
        {
            if let Ok(cell) = self.table.take() {
                self.cell.store(cell, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.revoke();
        self.table.give_back(self.cell.load(Ordering::Relaxed));
    }
}

/// [`DomainOps::assign_keys`](kfabric::provider::DomainOps::assign_keys).
pub(crate) fn assign(batch: &mut [KeyAssign<'_>]) -> Result<(), (usize, Error)> {
    for (i, item) in batch.iter_mut().enumerate() {
        let slot = item.slot.as_any().downcast_ref::<Key>();
        let made = slot.ok_or(EINVAL).and_then(|slot| slot.assign(item));
        item.value = made.map_err(|e| (i, e))?;
    }
    Ok(())
}
