// SPDX-License-Identifier: GPL-2.0
//! Domains (`fi_domain(3)`): an open device of a fabric.

use core::{
    any::Any,
    sync::atomic::{
        AtomicBool,
        AtomicU64,
        Ordering, //
    }, //
};
use kernel::{
    impl_has_work,
    new_work,
    prelude::*,
    sync::{
        Arc,
        SetOnce, //
    },
    workqueue::Work, //
};

use super::fabric::{
    cm_data_room,
    Fabric, //
};
use crate::{
    auth::{
        group::{
            GroupRef,
            Groups, //
        },
        AuthKey, //
    },
    base::{
        errno::eopnotsupp,
        name::Name,
        parent::{
            Children,
            Held,
            Parent, //
        },
        share::{
            Portion,
            Share, //
        },
    },
    provider::{
        DomainAttr,
        DomainOps,
        DomainSink,
        KeyValues, //
    },
    pure::atomic::{
        Datatype,
        Form,
        Op, //
    }, //
};

/// Receiver of the event that a domain's device is removed.
struct Watch {
    gone: AtomicBool,
    program: bool,
    values: KeyValues,
}

impl DomainSink for Watch {
    fn gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    fn is_program(&self) -> bool {
        self.program
    }

    fn key_values(&self) -> KeyValues {
        self.values
    }
}

/// A device of a fabric.
#[pin_data]
pub struct Domain {
    // Dropped first: the provider's objects are dropped before the hold on the provider.
    ops: Arc<dyn DomainOps>,
    watch: Arc<Watch>,
    name: Name,
    attr: DomainAttr,
    /// Bytes in open regions.
    pub(crate) pinned: AtomicU64,
    children: Children,
    fabric: Held<Fabric>,
    /// Default auth key of the objects opened on the domain.
    auth: Option<AuthKey>,
    groups: Arc<Groups>,
    /// The limits of the user whose program opened the domain, if the user has limits.
    share: Option<Share>,
    /// The ordered assignments that are not made yet. The layer of keys sets it before the first
    /// slot exists, so an ordered assignment allocates nothing.
    pub(crate) jobs: SetOnce<Arc<dyn Any + Send + Sync>>,
    #[pin]
    work: Work<Domain>,
}

impl_has_work! {
    impl HasWork<Self> for Domain { self.work }
}

impl Parent for Domain {
    fn children(&self) -> &Children {
        &self.children
    }
}

impl Domain {
    /// Opens the device `name`.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if there is no such device in this namespace.
    pub fn open(fabric: &Arc<Fabric>, name: &str) -> Result<Arc<Self>> {
        Self::open_with(fabric, name, None)
    }

    /// As [`Domain::open`], with `auth` as the default auth key of the objects opened on the
    /// domain.
    pub fn open_with(
        fabric: &Arc<Fabric>,
        name: &str,
        auth: Option<&AuthKey>,
    ) -> Result<Arc<Self>> {
        Self::make(fabric, name, auth, KeyValues::Again, false)
    }

    /// As [`Domain::open_with`]. No protection group of the domain gets a value that any key of the host has
    /// had since the group was created. The domain's own regions are a group, and so are the objects of each
    /// auth key, as long as there are some, and each endpoint with keys of its own. If the device offers no
    /// other value, an assignment fails (`ENOSPC`). Endpoints with [`EpAttr::reuse_values`] have values of
    /// their own.
    ///
    /// [`EpAttr::reuse_values`]: crate::ep::endpoint::EpAttr::reuse_values
    pub fn open_strict(
        fabric: &Arc<Fabric>,
        name: &str,
        auth: Option<&AuthKey>,
    ) -> Result<Arc<Self>> {
        Self::make(fabric, name, auth, KeyValues::Strict, false)
    }

    /// As [`Domain::open_with`] or, if `strict`, [`Domain::open_strict`], for a program.
    pub(crate) fn open_for_program(
        fabric: &Arc<Fabric>,
        name: &str,
        auth: Option<&AuthKey>,
        strict: bool,
    ) -> Result<Arc<Self>> {
        let values = match strict {
            true => KeyValues::Strict,
            false => KeyValues::Again,
        };
        Self::make(fabric, name, auth, values, true)
    }

    fn make(
        fabric: &Arc<Fabric>,
        name: &str,
        auth: Option<&AuthKey>,
        values: KeyValues,
        program: bool,
    ) -> Result<Arc<Self>> {
        let held = Held::new(fabric)?;
        let share = match program {
            true => Share::current(fabric.provider().name(), name)?,
            false => None,
        };
        let groups = Groups::new()?;
        let watch = Watch {
            gone: AtomicBool::new(false),
            program,
            values,
        };
        let watch = Arc::new(watch, GFP_KERNEL_ACCOUNT)?;
        let ops =
            fabric
                .provider()
                .open_domain(fabric.net(), fabric.name(), name, watch.clone())?;
        Arc::pin_init(
            pin_init!(Self {
                attr: ops.attr(),
                ops,
                watch,
                name: Name::new(name),
                pinned: AtomicU64::new(0),
                children: Children::new(),
                fabric: held,
                auth: auth.cloned(),
                groups,
                share,
                jobs: SetOnce::new(),
                work <- new_work!("Domain::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The domain's capabilities and limits.
    pub fn attr(&self) -> &DomainAttr {
        &self.attr
    }

    /// Bytes in one piece of borrowed pages ([`LocalMem::lend`](crate::ep::LocalMem::lend)), at most.
    /// `None` if the domain does not accept borrowed pages.
    pub fn lent_max(&self) -> Option<u32> {
        self.ops.lent_max()
    }

    /// Returns how many values one atomic of this kind can have.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no such operation (`fi_atomic(3)`).
    /// - `EOPNOTSUPP` if the device does not support the operation.
    pub fn atomic(&self, form: Form, op: Op, ty: Datatype) -> Result<usize> {
        if !op.has(form) {
            return Err(EINVAL);
        }
        self.ops.atomic(form, op, ty).ok_or_else(eopnotsupp)
    }

    pub(crate) fn ops(&self) -> &Arc<dyn DomainOps> {
        &self.ops
    }

    /// The default auth key of the domain's objects.
    pub fn auth(&self) -> Option<&AuthKey> {
        self.auth.as_ref()
    }

    /// Returns the protection group of an auth key.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the provider cannot separate groups.
    pub(crate) fn group(&self, key: &AuthKey) -> Result<KBox<GroupRef>> {
        let group = Groups::get(&self.groups, &self.ops, key, self.watch.values)?;
        Ok(KBox::new(group, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns the rule for the values of the domain's keys.
    pub(crate) fn key_values(&self) -> KeyValues {
        self.watch.values
    }

    /// Returns the maximum number of bytes of application data in a connection request of an endpoint
    /// with, or without, an auth key.
    pub(crate) fn cm_data_size(&self, keyed: bool) -> u32 {
        cm_data_room(self.attr.cm_data_size, keyed)
    }

    /// Counts key slots, or registrations, for the user whose program opened the domain.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the count exceeds the user's share of the device.
    pub(crate) fn count_slots(&self, count: u64) -> Result<Option<Portion>> {
        match &self.share {
            Some(share) if count != 0 => share.slots(count, self.attr.max_keys).map(Some),
            _ => Ok(None),
        }
    }

    /// Name of the domain's device.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The domain's fabric.
    pub fn fabric(&self) -> &Arc<Fabric> {
        self.fabric.arc()
    }

    /// Returns whether the device is removed. If it is added again, it is another device.
    pub fn is_gone(&self) -> bool {
        self.watch.gone.load(Ordering::Acquire)
    }

    /// Returns `ENODEV` if the device is removed.
    pub(crate) fn check(&self) -> Result {
        if self.is_gone() {
            return Err(ENODEV);
        }
        Ok(())
    }

    /// Closes the domain; `EBUSY` if an object is open on it.
    pub fn close(&self) -> Result {
        self.children.close()?;
        self.fabric.release();
        Ok(())
    }
}
