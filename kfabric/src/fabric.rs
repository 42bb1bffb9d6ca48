// SPDX-License-Identifier: GPL-2.0
//! Fabrics and domains (`fi_fabric(3)`, `fi_domain(3)`).

use core::sync::atomic::{
    AtomicBool,
    AtomicU64,
    Ordering, //
};
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
        group::{
            GroupRef,
            Groups, //
        },
        AuthKey, //
    },
    errno::eopnotsupp,
    later::{
        Job,
        Jobs, //
    },
    net::Net,
    object::{
        name_str,
        Children,
        Held,
        Parent, //
    },
    provider::{
        DomainAttr,
        DomainOps,
        DomainSink,
        Provider, //
    },
    pure::atomic::{
        Datatype,
        Form,
        Op, //
    },
    registry::{
        self,
        ProviderRef, //
    },
    sys,
    uapi::{
        InfoEntry,
        KFI_AUTH_CM_DATA,
        KFI_NAME_MAX, //
    },
};

/// A short text kept in place.
#[derive(Clone, Copy)]
pub(crate) struct Name([u8; KFI_NAME_MAX]);

impl Name {
    fn new(text: &str) -> Self {
        let mut name = [0; KFI_NAME_MAX];
        crate::object::set_name(&mut name, text);
        Self(name)
    }

    pub(crate) fn as_str(&self) -> &str {
        name_str(&self.0).unwrap_or("")
    }
}

/// A provider, as seen from one network namespace.
pub struct Fabric {
    provider: ProviderRef,
    name: Name,
    net: Net,
    children: Children,
}

impl Parent for Fabric {
    fn children(&self) -> &Children {
        &self.children
    }
}

impl Fabric {
    /// Opens fabric `name` (empty: its first) of `provider`.
    ///
    /// # Errors
    ///
    /// `ENOENT`: no such provider, or it knows no such fabric here.
    pub fn open(net: Net, provider: &str, name: &str) -> Result<Arc<Self>> {
        let provider = registry::find(provider)?;
        if !name.is_empty() {
            let mut offered = KVec::new();
            provider
                .get()
                .getinfo(&net, &InfoEntry::default(), &mut offered)?;
            let is_it = |entry: &InfoEntry| name_str(&entry.fabric_name) == Ok(name);
            if !offered.iter().any(is_it) {
                return Err(ENOENT);
            }
        }
        let fabric = Self {
            provider,
            name: Name::new(name),
            net,
            children: Children::new(),
        };
        Ok(Arc::new(fabric, GFP_KERNEL_ACCOUNT)?)
    }

    pub(crate) fn provider(&self) -> &dyn Provider {
        self.provider.get()
    }

    pub(crate) fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The namespace it was opened from.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// Application bytes in a connection request that comes in here, to a passive endpoint with, or
    /// without, an auth key: as many as may come by any of its devices.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn request_size(&self, keyed: bool) -> Result<u32> {
        let mut offered = KVec::new();
        let all = InfoEntry::default();
        self.provider().getinfo(&self.net, &all, &mut offered)?;
        let any = self.name().is_empty();
        let ours = |entry: &&InfoEntry| any || name_str(&entry.fabric_name) == Ok(self.name());
        let sizes = offered.iter().filter(ours).map(|entry| entry.cm_data_size);
        Ok(cm_data_room(sizes.max().unwrap_or(0), keyed))
    }

    /// Closes; `EBUSY` while a domain, event queue or passive endpoint is open on it.
    pub fn close(&self) -> Result {
        self.children.close()
    }
}

/// Of a request's `size` bytes those that are the application's: an auth key's proof takes some.
fn cm_data_room(size: u32, keyed: bool) -> u32 {
    // CAST: A small number.
    let room = KFI_AUTH_CM_DATA as u32;
    if keyed {
        size.min(room)
    } else {
        size
    }
}

/// Hears that a domain's device is gone.
struct Watch {
    gone: AtomicBool,
    program: bool,
}

impl DomainSink for Watch {
    fn gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    fn is_program(&self) -> bool {
        self.program
    }
}

/// A device of a fabric.
#[pin_data]
pub struct Domain {
    // Dropped first: what the provider made goes before the hold on the provider.
    ops: Arc<dyn DomainOps>,
    watch: Arc<Watch>,
    name: Name,
    attr: DomainAttr,
    /// Bytes in open regions.
    pub(crate) pinned: AtomicU64,
    children: Children,
    fabric: Held<Fabric>,
    /// What is opened on it without an auth key of its own has this one.
    auth: Option<AuthKey>,
    groups: Arc<Groups>,
    #[pin]
    jobs: Jobs,
    #[pin]
    work: Work<Domain>,
}

impl_has_work! {
    impl HasWork<Self> for Domain { self.work }
}

impl WorkItem for Domain {
    type Pointer = Arc<Domain>;

    fn run(this: Arc<Domain>) {
        // What a block device sends may be held until a job is done.
        let _no_io = sys::NoIo::begin();
        this.jobs.run(&this);
    }
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
    /// `ENOENT`: there is none of that name here.
    pub fn open(fabric: &Arc<Fabric>, name: &str) -> Result<Arc<Self>> {
        Self::open_with(fabric, name, None)
    }

    /// As [`Domain::open`]; what is opened on it without an auth key of its own has `auth`.
    pub fn open_with(
        fabric: &Arc<Fabric>,
        name: &str,
        auth: Option<&AuthKey>,
    ) -> Result<Arc<Self>> {
        Self::make(fabric, name, auth, false)
    }

    /// As [`Domain::open_with`], for a program.
    pub(crate) fn open_for_program(
        fabric: &Arc<Fabric>,
        name: &str,
        auth: Option<&AuthKey>,
    ) -> Result<Arc<Self>> {
        Self::make(fabric, name, auth, true)
    }

    fn make(
        fabric: &Arc<Fabric>,
        name: &str,
        auth: Option<&AuthKey>,
        program: bool,
    ) -> Result<Arc<Self>> {
        let held = Held::new(fabric)?;
        let groups = Groups::new()?;
        let gone = AtomicBool::new(false);
        let watch = Arc::new(Watch { gone, program }, GFP_KERNEL_ACCOUNT)?;
        let ops = fabric
            .provider()
            .open_domain(&fabric.net, fabric.name(), name, watch.clone())?;
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
                jobs <- Jobs::new(),
                work <- new_work!("Domain::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Has keys made that were told already, before anything takes effect that is posted on the
    /// domain after this has returned.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: too many are to be made yet. `ENOMEM`. Gives the job back.
    pub(crate) fn make_later(this: &Arc<Self>, job: Job) -> Result<(), (Error, Job)> {
        if this.jobs.add(this, job)? {
            // Without the lock, which the worker takes first of all.
            Self::run_later(this);
        }
        Ok(())
    }

    /// Waits until all keys that were told are made, or have failed, and nothing keeps them, or the
    /// domain for them, but who asked for them.
    pub(crate) fn settle(this: &Arc<Self>) {
        if this.jobs.some_wait() {
            Self::run_later(this);
        }
        sys::wq::flush(this);
    }

    /// Queues the worker; if it is queued already it will see all.
    fn run_later(this: &Arc<Self>) {
        let _ = sys::wq::jobs().enqueue(this.clone());
    }

    /// What it can do.
    pub fn attr(&self) -> &DomainAttr {
        &self.attr
    }

    /// Bytes in one piece of memory that is lent ([`Segs::lend`](crate::op::Segs::lend)), at most.
    /// `None`: it takes none.
    pub fn lent_max(&self) -> Option<u32> {
        self.ops.lent_max()
    }

    /// How many values an atomic of this kind may have at once.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such operation (`fi_atomic(3)`). `EOPNOTSUPP`: not here.
    pub fn atomic(&self, form: Form, op: Op, ty: Datatype) -> Result<usize> {
        if !op.has(form) {
            return Err(EINVAL);
        }
        self.ops.atomic(form, op, ty).ok_or_else(eopnotsupp)
    }

    pub(crate) fn ops(&self) -> &Arc<dyn DomainOps> {
        &self.ops
    }

    /// The auth key of what has none of its own.
    pub fn auth(&self) -> Option<&AuthKey> {
        self.auth.as_ref()
    }

    /// The group of an auth key.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the provider cannot keep any apart.
    pub(crate) fn group(&self, key: &AuthKey) -> Result<GroupRef> {
        Groups::get(&self.groups, &self.ops, key)
    }

    /// Application bytes in a connection request of an endpoint with, or without, an auth key.
    pub(crate) fn cm_data_size(&self, keyed: bool) -> u32 {
        cm_data_room(self.attr.cm_data_size, keyed)
    }

    /// Its device's name.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Its fabric.
    pub fn fabric(&self) -> &Arc<Fabric> {
        self.fabric.arc()
    }

    /// Whether the device is gone, for good: one that comes back is another.
    pub fn is_gone(&self) -> bool {
        self.watch.gone.load(Ordering::Acquire)
    }

    /// `ENODEV` once the device is gone.
    pub(crate) fn check(&self) -> Result {
        if self.is_gone() {
            return Err(ENODEV);
        }
        Ok(())
    }

    /// Closes; `EBUSY` while anything is open on it.
    pub fn close(&self) -> Result {
        self.children.close()?;
        self.fabric.release();
        Ok(())
    }
}
