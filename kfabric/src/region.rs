// SPDX-License-Identifier: GPL-2.0
//! Regions and keys (`fi_mr(3)`): pin once, export many times.
//!
//! A region is memory mapped for local use; it has no key unless it was registered with a remote
//! right and without dynamic keys. A key is a slot that is assigned to a sub-range with rights,
//! and revoked, without touching the pin.

use core::sync::atomic::Ordering;
use kernel::{
    impl_has_work,
    new_mutex,
    new_work,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

use crate::{
    errno::eopnotsupp,
    fabric::Domain,
    memory::Memory,
    object::{
        Children,
        Held,
        Parent, //
    },
    op::OpKind,
    provider::{
        KeyOps,
        KeyValue,
        RegionOps, //
    },
    pure::{
        key::{
            AssignOutcome,
            Death,
            Grant,
            KeyError,
            KeySlot,
            State, //
        },
        range,
        rights, //
    },
    sys,
    uapi::{
        KFI_DYNAMIC_KEYS,
        KFI_KEY_NOTAVAIL, //
    },
};

/// Memory registered with a domain.
#[pin_data(PinnedDrop)]
pub struct Region {
    // Dropped in this order: key, mapping, pages.
    own: Option<Arc<Key>>,
    ops: Arc<dyn RegionOps>,
    memory: Arc<Memory>,
    access: u64,
    dynamic: bool,
    children: Children,
    domain: Held<Domain>,
    #[pin]
    last: Work<Region>,
}

impl Parent for Region {
    fn children(&self) -> &Children {
        &self.children
    }
}

impl_has_work! {
    impl HasWork<Self> for Region { self.last }
}

impl WorkItem for Region {
    type Pointer = Arc<Region>;

    fn run(this: Arc<Region>) {
        drop(this);
    }
}

impl Region {
    /// Registers `memory` for what `access` says (`KFI_*` access bits).
    ///
    /// With `dynamic` the region has no key by itself. Otherwise, if `access` has a remote right,
    /// it gets one key for all of it, as libfabric regions always had.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such access. `EACCES`: the memory must not be written. `EOPNOTSUPP`: dynamic
    /// keys are not offered.
    pub fn register(
        domain: &Arc<Domain>,
        memory: Arc<Memory>,
        access: u64,
        dynamic: bool,
    ) -> Result<Arc<Self>> {
        if !rights::valid_region_access(access) {
            return Err(EINVAL);
        }
        if rights::needs_write(access) && !memory.writable() {
            return Err(EACCES);
        }
        if dynamic && domain.attr().caps & KFI_DYNAMIC_KEYS == 0 {
            return Err(eopnotsupp());
        }
        domain.check()?;
        let held = Held::new(domain)?;
        let ops = domain.ops().register(&memory, access)?;
        let own = if !dynamic && rights::has_remote(access) {
            let slot = Slot::new(&ops)?;
            let grant = Grant {
                offset: 0,
                len: memory.len() as u64,
                access: access & rights::REMOTE,
            };
            let key = Key::make(slot, None)?;
            key.give(grant)?;
            Some(key)
        } else {
            None
        };
        domain
            .pinned
            .fetch_add(memory.len() as u64, Ordering::Relaxed);
        let len = memory.len() as u64;
        let made = Arc::pin_init(
            pin_init!(Self {
                own,
                ops,
                memory,
                access,
                dynamic,
                children: Children::new(),
                domain: held,
                last <- new_work!("Region::last"),
            }),
            GFP_KERNEL,
        );
        if made.is_err() {
            domain.pinned.fetch_sub(len, Ordering::Relaxed);
        }
        made
    }

    /// Its domain.
    pub fn domain(&self) -> &Arc<Domain> {
        self.domain.arc()
    }

    /// Its memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// What it may be used for.
    pub fn access(&self) -> u64 {
        self.access
    }

    /// The provider's part.
    pub fn ops(&self) -> &Arc<dyn RegionOps> {
        &self.ops
    }

    /// Its own key; `KFI_KEY_NOTAVAIL` for one that has none.
    pub fn key(&self) -> KeyValue {
        self.own
            .as_ref()
            .and_then(|key| key.value())
            .unwrap_or(KeyValue {
                key: KFI_KEY_NOTAVAIL,
                remote_addr: 0,
            })
    }

    /// Whether [offset, offset + len) may be used locally by an operation of `kind`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not inside. `EACCES`: not registered for it.
    pub(crate) fn check(&self, kind: OpKind, offset: u64, len: u64) -> Result {
        let what = match kind {
            OpKind::Send => rights::Use::Send,
            OpKind::Recv => rights::Use::Recv,
            OpKind::Read => rights::Use::Read,
            OpKind::Write => rights::Use::Write,
        };
        if !rights::op_allowed(what, self.access) {
            return Err(EACCES);
        }
        range::sub_range(offset, len, self.memory.len() as u64).map_err(|_| EINVAL)?;
        Ok(())
    }

    /// Closes: its own key is dead when this returns; the pages go when the last operation on
    /// them is over.
    ///
    /// # Errors
    ///
    /// `EBUSY`: key slots are left.
    pub fn close(&self) -> Result {
        self.children.close()?;
        if let Some(key) = &self.own {
            key.kill();
        }
        self.domain
            .pinned
            .fetch_sub(self.memory.len() as u64, Ordering::Relaxed);
        self.domain.release();
        Ok(())
    }

    /// Drops a reference from where nothing may sleep: if it is the last, a worker ends the
    /// region.
    pub(crate) fn put(this: Arc<Self>) {
        if let Some(last) = Arc::into_unique_or_drop(this) {
            let last: Arc<Self> = last.into();
            // The work item is idle: it is queued only here, by the only reference.
            let _ = sys::wq::queue().enqueue(last);
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Region {
    fn drop(self: Pin<&mut Self>) {
        // For those who drop without closing; a second close does nothing.
        let _ = self.close();
    }
}

impl Drop for RegionGuard {
    fn drop(&mut self) {
        if let Some(region) = self.0.take() {
            Region::put(region);
        }
    }
}

/// A region held by an operation.
pub(crate) struct RegionGuard(Option<Arc<Region>>);

impl RegionGuard {
    pub(crate) fn new(region: Arc<Region>) -> Self {
        Self(Some(region))
    }

    /// Whether it is a region of `domain`.
    pub(crate) fn in_domain(&self, domain: &Arc<Domain>) -> bool {
        self.0
            .as_ref()
            .is_some_and(|region| Arc::ptr_eq(region.domain.arc(), domain))
    }

    /// The provider's part.
    pub(crate) fn ops(&self) -> Option<&Arc<dyn RegionOps>> {
        self.0.as_ref().map(|region| &region.ops)
    }
}

/// What a slot's lock guards.
struct Slot {
    life: KeySlot,
    ops: KBox<dyn KeyOps>,
    remote_addr: u64,
}

impl Slot {
    fn new(region: &Arc<dyn RegionOps>) -> Result<Self> {
        Ok(Self {
            ops: region.clone().alloc_key()?,
            life: KeySlot::new(),
            remote_addr: 0,
        })
    }
}

/// A key slot.
///
/// Calls on one slot wait for each other; those on different slots do not.
#[pin_data]
pub struct Key {
    #[pin]
    state: Mutex<Slot>,
    region: Option<Held<Region>>,
}

fn refused(error: KeyError) -> Error {
    match error {
        KeyError::Assigned | KeyError::Busy => EBUSY,
        KeyError::NotAssigned => EINVAL,
        KeyError::Freed | KeyError::Dying => ENOENT,
        KeyError::Exhausted => ENOSPC,
        KeyError::OutOfOrder => EIO,
    }
}

impl Key {
    /// Reserves a slot on a region with dynamic keys.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the region has no dynamic keys. `ENOSPC`: the device has no more.
    pub fn alloc(region: &Arc<Region>) -> Result<Arc<Self>> {
        if !region.dynamic {
            return Err(EINVAL);
        }
        region.domain.check()?;
        let held = Held::new(region)?;
        Self::make(Slot::new(&region.ops)?, Some(held))
    }

    fn make(state: Slot, region: Option<Held<Region>>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                state <- new_mutex!(state, "kfabric_key"),
                region,
            }),
            GFP_KERNEL,
        )
    }

    fn give(&self, grant: Grant) -> Result<KeyValue> {
        let mut slot = self.state.lock();
        slot.life.begin_assign(grant).map_err(refused)?;
        match slot.ops.assign(grant.offset, grant.len, grant.access) {
            Ok(value) => {
                slot.remote_addr = value.remote_addr;
                // The lock was held throughout, so nothing came in between.
                match slot.life.assigned(value.key).map_err(refused)? {
                    AssignOutcome::Valid => Ok(value),
                    AssignOutcome::RevokeNow => {
                        slot.ops.revoke();
                        slot.life.revoked().map_err(refused)?;
                        Err(ENOENT)
                    }
                }
            }
            Err(e) => {
                slot.life.assign_failed().map_err(refused)?;
                Err(e)
            }
        }
    }

    /// Gives the slot a key for [offset, offset + len) of its region, with the remote rights
    /// `access`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: empty, not inside, or no remote right at all. `EACCES`: rights beyond the
    /// region's, or the memory is another process's. `EBUSY`: it has a key. `EMSGSIZE`: more than
    /// the provider can export of this memory by one key (kverbs: of the kernel's memory, 256
    /// pages).
    pub fn assign(&self, offset: u64, len: u64, access: u64) -> Result<KeyValue> {
        let region = self.region.as_ref().ok_or(EINVAL)?;
        range::non_empty_sub_range(offset, len, region.memory.len() as u64).map_err(|_| EINVAL)?;
        if !rights::valid_key_access(access) {
            return Err(EINVAL);
        }
        if !rights::key_within(access, region.access) || !region.memory.is_current() {
            return Err(EACCES);
        }
        region.domain.check()?;
        self.give(Grant {
            offset,
            len,
            access,
        })
    }

    /// Ends the key. When this returns, nothing is read or written through it any more (P3).
    ///
    /// # Errors
    ///
    /// `EINVAL`: the slot has no key.
    pub fn revoke(&self) -> Result {
        let mut slot = self.state.lock();
        slot.life.begin_revoke().map_err(refused)?;
        slot.ops.revoke();
        slot.life.revoked().map_err(refused)
    }

    /// The key, if it has one.
    pub fn value(&self) -> Option<KeyValue> {
        let slot = self.state.lock();
        match slot.life.state() {
            State::Assigned { value, .. } => Some(KeyValue {
                key: value,
                remote_addr: slot.remote_addr,
            }),
            _ => None,
        }
    }

    /// What the key gives, if it has one: offset, length, rights. Does not wait: nothing also while
    /// it is just being assigned or revoked.
    pub fn grant(&self) -> Option<(u64, u64, u64)> {
        match self.state.try_lock()?.life.state() {
            State::Assigned { grant, .. } => Some((grant.offset, grant.len, grant.access)),
            _ => None,
        }
    }

    /// Revokes if there is anything to revoke; no assign succeeds afterwards.
    fn kill(&self) {
        let mut slot = self.state.lock();
        if slot.life.die() == Death::Revoke {
            slot.ops.revoke();
            let _ = slot.life.revoked();
        }
    }

    /// Closes: its key is dead when this returns.
    pub fn close(&self) {
        self.kill();
        if let Some(region) = &self.region {
            region.release();
        }
    }
}
