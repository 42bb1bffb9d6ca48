// SPDX-License-Identifier: GPL-2.0
//! Regions (`fi_mr(3)`): pin once, export many times.
//!
//! A region is memory mapped for local use; it has no key unless it was registered with a remote
//! right and without dynamic keys. What is exported of it is the business of [`Key`]s.

use core::sync::atomic::Ordering;
use kernel::{
    impl_has_work,
    new_work,
    prelude::*,
    sync::Arc,
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

use crate::{
    auth::{
        Apart,
        AuthKey,
        Under, //
    },
    bound::Bound,
    ep::Endpoint,
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
        GroupOps,
        KeyValue,
        RegionOps, //
    },
    pure::{
        key::Grant,
        range,
        rights, //
    },
    sys,
    uapi::{
        KFI_ATOMIC,
        KFI_DYNAMIC_KEYS, //
    },
};

pub use crate::key::Key;

/// What a region is registered under: its memory, and its own key if it gets one.
#[derive(Default)]
pub(crate) struct Unders {
    pub(crate) memory: Under,
    pub(crate) own: Under,
}

impl Unders {
    /// An auth key, or none, and nobody was asked.
    fn of(key: Option<&AuthKey>) -> Self {
        Self {
            memory: Under::of(key),
            own: Under::of(key),
        }
    }
}

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
    // What is the provider's goes before the domain's hold, which keeps its module.
    auth: Apart,
    domain: Held<Domain>,
    /// Of the endpoint that it is bound to.
    bound: Option<Arc<Bound>>,
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
    /// `EINVAL`: no such access, or not for a [room](Memory::room). `EACCES`: the memory must not be
    /// written. `EOPNOTSUPP`: dynamic keys are not offered.
    pub fn register(
        domain: &Arc<Domain>,
        memory: Arc<Memory>,
        access: u64,
        dynamic: bool,
    ) -> Result<Arc<Self>> {
        let unders = Unders::of(domain.auth());
        Self::make(domain, memory, access, dynamic, None, unders)
    }

    /// As [`Region::register`], with an auth key of its own.
    ///
    /// # Errors
    ///
    /// As [`Region::register`]. `EOPNOTSUPP`: the provider cannot keep auth keys apart.
    pub fn register_with(
        domain: &Arc<Domain>,
        memory: Arc<Memory>,
        access: u64,
        dynamic: bool,
        key: &AuthKey,
    ) -> Result<Arc<Self>> {
        let unders = Unders::of(Some(key));
        Self::make(domain, memory, access, dynamic, None, unders)
    }

    /// As [`Region::register`] or, with `ep`, [`Region::register_for`], under what is given.
    pub(crate) fn register_under(
        domain: &Arc<Domain>,
        ep: Option<&Endpoint>,
        memory: Arc<Memory>,
        access: u64,
        dynamic: bool,
        unders: Unders,
    ) -> Result<Arc<Self>> {
        let of = match ep {
            Some(ep) => {
                let of = ep.own_keys(domain)?;
                of.1.check()?;
                Some(of)
            }
            None => None,
        };
        Self::make(domain, memory, access, dynamic, of, unders)
    }

    /// As [`Region::register`], but binds the region to an endpoint with keys of its own
    /// ([`EpAttr::own_keys`](crate::ep::EpAttr::own_keys)): its keys are valid on that one alone, and
    /// end before it does.
    ///
    /// # Errors
    ///
    /// As [`Region::register`]; `EINVAL` also: the endpoint has no keys of its own. `ENOENT`: it was
    /// closed.
    pub fn register_for(
        ep: &Endpoint,
        memory: Arc<Memory>,
        access: u64,
        dynamic: bool,
    ) -> Result<Arc<Self>> {
        let of = ep.own_keys(ep.domain())?;
        of.1.check()?;
        let unders = Unders::of(ep.under().key.as_ref());
        Self::make(ep.domain(), memory, access, dynamic, Some(of), unders)
    }

    fn make(
        domain: &Arc<Domain>,
        memory: Arc<Memory>,
        access: u64,
        dynamic: bool,
        of: Option<(&Arc<dyn GroupOps>, &Arc<Bound>)>,
        unders: Unders,
    ) -> Result<Arc<Self>> {
        let (group, bound) = of.unzip();
        let Unders { memory: under, own } = unders;
        if !rights::valid_region_access(access) {
            return Err(EINVAL);
        }
        // What a room has is there for its keys alone, and not longer than one of them.
        let keys_only = dynamic && access & rights::LOCAL == 0;
        if memory.is_room() && (!keys_only || memory.filled() != 0) {
            return Err(EINVAL);
        }
        if rights::needs_write(access) && !memory.writable() {
            return Err(EACCES);
        }
        let caps = domain.attr().caps;
        if (dynamic && caps & KFI_DYNAMIC_KEYS == 0)
            || (access & rights::REMOTE_ATOMIC != 0 && caps & KFI_ATOMIC == 0)
        {
            return Err(eopnotsupp());
        }
        domain.check()?;
        let held = Held::new(domain)?;
        let apart = match &under.key {
            Some(key) if group.is_none() => Some(domain.group(key)?),
            _ => None,
        };
        let group = group.or(apart.as_ref().map(|apart| apart.ops()));
        let ops = domain.ops().register(&memory, access, group)?;
        let own = if !dynamic && rights::has_remote(access) {
            let grant = Grant {
                offset: 0,
                len: memory.len() as u64,
                access: access & rights::REMOTE,
                once: false,
            };
            Some(Key::own(domain, &ops, grant, bound, own)?)
        } else {
            None
        };
        let len = memory.len() as u64;
        domain.pinned.fetch_add(len, Ordering::Relaxed);
        let made_key = own.clone();
        let made = Arc::pin_init(
            pin_init!(Self {
                own,
                ops,
                memory,
                access,
                dynamic,
                children: Children::new(),
                domain: held,
                bound: bound.cloned(),
                auth: Apart { under, group: apart },
                last <- new_work!("Region::last"),
            }),
            GFP_KERNEL_ACCOUNT,
        );
        made.inspect_err(|_| {
            domain.pinned.fetch_sub(len, Ordering::Relaxed);
            if let Some(key) = made_key {
                key.kill();
            }
        })
    }

    /// Its domain.
    pub fn domain(&self) -> &Arc<Domain> {
        self.domain.arc()
    }

    /// What it was registered under.
    pub(crate) fn under(&self) -> &Under {
        &self.auth.under
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
            .unwrap_or(KeyValue::NONE)
    }

    /// The key that it was registered with, if it was registered with one.
    pub(crate) fn own(&self) -> Option<&Arc<Key>> {
        self.own.as_ref()
    }

    /// Of the endpoint that it is bound to, if it is to one.
    pub(crate) fn bound(&self) -> Option<&Arc<Bound>> {
        self.bound.as_ref()
    }

    /// Whether it has its keys by alloc and assign.
    pub(crate) fn is_dynamic(&self) -> bool {
        self.dynamic
    }

    /// Whether [offset, offset + len) may be used locally by an operation of `kind`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not inside. `EACCES`: not registered for it.
    #[inline]
    pub(crate) fn check(&self, kind: OpKind, offset: u64, len: u64) -> Result {
        let what = match kind {
            OpKind::Send => rights::Use::Send,
            OpKind::Recv => rights::Use::Recv,
            OpKind::Read | OpKind::Fetch => rights::Use::Read,
            OpKind::Write | OpKind::Atomic => rights::Use::Write,
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
        // Its grant is charged until the last operation on the memory is over.
        Ok(())
    }

    /// Drops a reference from where nothing may sleep: if it is the last, a worker ends the
    /// region.
    #[inline(never)]
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
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(region) = self.0.take() {
            Region::put(region);
        }
    }
}

/// A region held by an operation.
pub(crate) struct RegionGuard(Option<Arc<Region>>);

impl RegionGuard {
    /// None.
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn new(region: Arc<Region>) -> Self {
        Self(Some(region))
    }

    /// Whether it is a region of `domain`.
    #[inline]
    pub(crate) fn in_domain(&self, domain: &Arc<Domain>) -> bool {
        self.0
            .as_ref()
            .is_some_and(|region| Arc::ptr_eq(region.domain.arc(), domain))
    }

    /// The provider's part.
    #[inline]
    pub(crate) fn ops(&self) -> Option<&Arc<dyn RegionOps>> {
        self.0.as_ref().map(|region| &region.ops)
    }
}
