// SPDX-License-Identifier: GPL-2.0
//! Regions (`fi_mr(3)`): pin once, export many times.
//!
//! A region is memory mapped for local use. It has a key of its own only if it was registered with
//! a remote right and without dynamic keys. [`Key`]s export its ranges.

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

use super::{
    endpoint_keys::Bound,
    slot::Key, //
};
use crate::{
    auth::{
        AuthKey,
        Authorization,
        Scope, //
    },
    base::{
        errno::eopnotsupp,
        parent::{
            Children,
            Held,
            Parent, //
        },
        share::Portion, //
    },
    memory::Memory,
    objects::domain::Domain,
    op::OpKind,
    provider::{
        GroupOps,
        KeyValue,
        RegionOps, //
    },
    pure::{
        key::Window,
        persist::Persistence,
        range,
        rights, //
    },
    sys,
    uapi::{
        KFI_ATOMIC,
        KFI_DYNAMIC_KEYS,
        KFI_REACH_NO, //
    },
};

/// Auth key and lease of a region's memory, and of its own key if it has one.
#[derive(Default)]
pub(crate) struct Authorizations {
    pub(crate) memory: Authorization,
    pub(crate) own: Authorization,
}

impl Authorizations {
    /// An auth key or none, without a grant: for kernel consumers.
    pub(crate) fn of(key: Option<&AuthKey>) -> Self {
        Self {
            memory: Authorization::of(key),
            own: Authorization::of(key),
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
    // The provider's group is dropped before the domain's hold, which keeps the provider's module.
    auth: Scope,
    /// Returned before the domain is dropped, which has the share.
    _slots: Option<Portion>,
    domain: Held<Domain>,
    /// The bound list of the region's endpoint, if it is bound to one.
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
    /// Registers `memory` for the uses in `access` (`KFI_*` access bits).
    ///
    /// With `dynamic` the region has no key of its own. Otherwise, if `access` has a remote right,
    /// the region gets one key for all of its memory, as in libfabric.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `access` is invalid, or not allowed for [attach-on-assign](Memory::placeholder)
    ///   memory.
    /// - `EACCES` if `access` needs writing, and the memory is read-only.
    /// - `EOPNOTSUPP` if the domain has no dynamic keys or no atomics, and the region needs them.
    /// - `EHWPOISON` or `ENODEV` if the memory is that of a [DAX device](crate::memory::dax::Device)
    ///   that has failed or is being removed.
    pub fn register(
        domain: &Arc<Domain>,
        memory: Arc<Memory>,
        access: u64,
        dynamic: bool,
    ) -> Result<Arc<Self>> {
        let unders = Authorizations::of(domain.auth());
        Self::make(domain, memory, access, dynamic, None, unders)
    }

    /// As [`Region::register`], with an auth key for the region.
    ///
    /// # Errors
    ///
    /// As [`Region::register`], and:
    ///
    /// - `EOPNOTSUPP` if the provider cannot keep auth keys apart.
    pub fn register_with(
        domain: &Arc<Domain>,
        memory: Arc<Memory>,
        access: u64,
        dynamic: bool,
        key: &AuthKey,
    ) -> Result<Arc<Self>> {
        let unders = Authorizations::of(Some(key));
        Self::make(domain, memory, access, dynamic, None, unders)
    }

    /// Registers `memory`; with `of`, in the group of an endpoint with endpoint-scoped keys.
    pub(crate) fn make(
        domain: &Arc<Domain>,
        memory: Arc<Memory>,
        access: u64,
        dynamic: bool,
        of: Option<(&Arc<dyn GroupOps>, &Arc<Bound>)>,
        unders: Authorizations,
    ) -> Result<Arc<Self>> {
        let (group, bound) = of.unzip();
        let Authorizations { memory: under, own } = unders;
        if !rights::valid_region_access(access) {
            return Err(EINVAL);
        }
        // Attached pages serve the region's keys alone, and no longer than one key.
        let keys_only = dynamic && access & rights::LOCAL == 0;
        if memory.is_placeholder() && (!keys_only || memory.filled() != 0) {
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
        memory.check()?;
        domain.check()?;
        let held = Held::new(domain)?;
        let slots = domain.count_slots(domain.ops().region_slots(&memory, access))?;
        let apart = match &under.key {
            Some(key) if group.is_none() => Some(domain.group(key)?),
            _ => None,
        };
        let group = group.or(apart.as_ref().map(|apart| apart.ops()));
        let ops = domain.ops().register(&memory, access, group)?;
        let own = if !dynamic && rights::has_remote(access) {
            let grant = Window {
                offset: 0,
                len: memory.len() as u64,
                access: access & rights::REMOTE,
                once: false,
            };
            Some(Key::own(domain, &memory, &ops, grant, bound, own)?)
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
                auth: Scope { under, group: apart },
                _slots: slots,
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

    /// The region's domain.
    pub fn domain(&self) -> &Arc<Domain> {
        self.domain.arc()
    }

    /// The auth key and lease of the region.
    pub(crate) fn under(&self) -> &Authorization {
        &self.auth.under
    }

    /// The region's memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The region's `KFI_*` access bits.
    pub fn access(&self) -> u64 {
        self.access
    }

    /// The provider's part.
    pub fn ops(&self) -> &Arc<dyn RegionOps> {
        &self.ops
    }

    /// Value of the region's own key; `KFI_KEY_NOTAVAIL` if it has none.
    pub fn key(&self) -> KeyValue {
        self.own
            .as_ref()
            .and_then(|key| key.value())
            .unwrap_or(KeyValue::NONE)
    }

    /// The region's own key, if it was registered with one.
    pub(crate) fn own(&self) -> Option<&Arc<Key>> {
        self.own.as_ref()
    }

    /// The bound list of the region's endpoint, if the region is bound to one.
    pub(crate) fn bound(&self) -> Option<&Arc<Bound>> {
        self.bound.as_ref()
    }

    /// Returns whether the region has dynamic keys.
    pub(crate) fn is_dynamic(&self) -> bool {
        self.dynamic
    }

    /// Checks that durable writes to `memory` are possible on `domain`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the memory is not persistent.
    /// - `EOPNOTSUPP` if only the memory's own driver can make stores durable.
    /// - `EOPNOTSUPP` if the domain has no durable writes.
    pub fn check_durable(domain: &Domain, memory: &Memory) -> Result {
        let kind = memory.persistence();
        match kind.is_durable_by_cpu() && domain.attr().durable != KFI_REACH_NO {
            true => Ok(()),
            false if kind == Persistence::None => Err(EINVAL),
            false => Err(eopnotsupp()),
        }
    }

    /// Checks that an operation of `kind` may use [offset, offset + len) locally.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the range is not inside the region.
    /// - `EACCES` if the region is not registered for `kind`.
    #[inline]
    pub(crate) fn check(&self, kind: OpKind, offset: u64, len: u64) -> Result {
        let what = match kind {
            OpKind::Send => rights::Use::Send,
            OpKind::Recv => rights::Use::Recv,
            OpKind::Read | OpKind::Fetch => rights::Use::Read,
            OpKind::Write | OpKind::Atomic | OpKind::Commit => rights::Use::Write,
        };
        if !rights::op_allowed(what, self.access) {
            return Err(EACCES);
        }
        range::sub_range(offset, len, self.memory.len() as u64).map_err(|_| EINVAL)?;
        Ok(())
    }

    /// Closes the region: its own key is revoked when this returns. The pages are released when the
    /// last operation on them is over.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if the region has key slots.
    pub fn close(&self) -> Result {
        self.children.close()?;
        if let Some(key) = &self.own {
            key.kill();
        }
        self.domain
            .pinned
            .fetch_sub(self.memory.len() as u64, Ordering::Relaxed);
        self.domain.release();
        // The grant is charged until the last operation on the memory is over.
        Ok(())
    }

    /// Drops a reference in a context that may not sleep: a worker drops the last one.
    #[inline(never)]
    pub(crate) fn put(this: Arc<Self>) {
        if let Some(last) = Arc::into_unique_or_drop(this) {
            let last: Arc<Self> = last.into();
            // Cannot fail: the work item is queued only here, by the only reference.
            let _ = sys::wq::queue().enqueue(last);
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Region {
    fn drop(self: Pin<&mut Self>) {
        // For consumers that drop without closing; a second close does nothing.
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
    /// An empty guard.
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn new(region: Arc<Region>) -> Self {
        Self(Some(region))
    }

    /// Returns whether the region belongs to `domain`.
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
