// SPDX-License-Identifier: GPL-2.0
//! Key slots: exports of parts of a region.
//!
//! A slot owns a cell of the [`Table`]. An assignment puts a window into the cell, and a revocation
//! takes the window out. Neither allocates. A revocation waits only for copies in progress through
//! the key.

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

use crate::key::{
    group::Group,
    table::{
        Table,
        Window, //
    }, //
};
use kfabric::{
    memory::Memory,
    provider::{
        KeyAssign,
        KeyOps,
        KeyValue, //
    },
    uapi::KFI_KEY_NOTAVAIL,
};

/// A key slot. The core makes one call at a time.
pub(crate) struct Key {
    memory: Arc<Memory>,
    group: Arc<Group>,
    table: Arc<Table>,
    cell: AtomicU32,
    /// The key value; `KFI_KEY_NOTAVAIL` if the slot has no key.
    value: AtomicU64,
}

impl Key {
    /// Creates a slot of the region of `memory`, exported in `group`.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if the host has no free cell.
    /// - `ENOMEM`
    pub(crate) fn new(memory: Arc<Memory>, group: Arc<Group>, table: Arc<Table>) -> Result<Self> {
        let cell = table.reserve()?;
        Ok(Self {
            memory,
            group,
            table,
            cell: AtomicU32::new(cell),
            value: AtomicU64::new(KFI_KEY_NOTAVAIL),
        })
    }

    /// Returns the remote address of the byte at `offset`.
    ///
    /// For user memory this is the owner's own address. Kernel addresses are not disclosed: there
    /// the remote address is an offset.
    fn remote_addr(&self, offset: u64) -> u64 {
        match self.memory.user() {
            Some(addr) => addr as u64 + offset,
            None => self.memory.page_offset() as u64 + offset,
        }
    }

    fn assign(&self, order: &KeyAssign<'_>) -> Result<KeyValue> {
        let KeyAssign { offset, len, .. } = *order;
        let window = Window {
            memory: self.memory.clone(),
            group: self.group.clone(),
            // CAST: The offset is inside the memory, whose length is a `usize`.
            offset: offset as usize,
            len,
            addr: self.remote_addr(offset),
            access: order.access,
            once: order.once,
            used: AtomicBool::new(false),
            over: AtomicBool::new(false),
        };
        let remote_addr = window.addr;
        if self.table.is_exhausted(self.cell.load(Ordering::Relaxed)) {
            // The cell is exhausted, and the last revocation found no other one.
            self.cell.store(self.table.reserve()?, Ordering::Relaxed);
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

    /// Assignments are not chained: a batch has no work in common.
    fn chains(&self, _offset: u64, _len: u64) -> bool {
        false
    }

    /// Ordered assignments need no prediction: a key is valid as soon as it is assigned, before any
    /// later post takes effect.
    fn foresees(&self) -> bool {
        true
    }

    fn used(&self) -> bool {
        let value = self.value.load(Ordering::Relaxed);
        let used = |window: &Window| window.over.load(Ordering::Acquire);
        value != KFI_KEY_NOTAVAIL && self.table.with(value, used) == Some(true)
    }

    fn revoke(&self, _last: bool) {
        let value = self.value.swap(KFI_KEY_NOTAVAIL, Ordering::Relaxed);
        if value != KFI_KEY_NOTAVAIL {
            drop(self.table.retire(value));
        }
    }

    fn renew(&self, _later: bool) {
        if self.value.load(Ordering::Relaxed) == KFI_KEY_NOTAVAIL
            && self.table.is_exhausted(self.cell.load(Ordering::Relaxed))
        {
            if let Ok(cell) = self.table.reserve() {
                self.cell.store(cell, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.revoke(true);
        self.table.release(self.cell.load(Ordering::Relaxed));
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
