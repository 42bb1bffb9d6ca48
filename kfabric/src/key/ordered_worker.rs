// SPDX-License-Identifier: GPL-2.0
//! Ordered assignments: the key value is returned at once, and the key is valid before any
//! operation posted afterwards on the same domain takes effect.
//!
//! The provider predicts the value of the slot's next key ([`KeyOps::foresee`]). It defers posted
//! operations ([`DomainOps::hold`]) until a worker has made the assignments, in the order of the
//! calls. So the caller can send a key in a message at once; only the message waits for the device.
//!
//! [`KeyOps::foresee`]: crate::provider::KeyOps::foresee
//! [`DomainOps::hold`]: crate::provider::DomainOps::hold

use core::{
    any::Any,
    ops::Deref,
    slice, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    workqueue::WorkItem, //
};

use super::slot::Key;
use crate::{
    base::parent::Held,
    objects::{
        cq::Cq,
        domain::Domain, //
    },
    provider::{
        KeyAssign,
        KeyValue, //
    },
    pure::key::Window,
    sys,
    uapi::CqEntry, //
};

/// Jobs that are not completed yet, at most, per domain.
const PENDING: usize = 1024;

/// Where assignment failures of an ordered batch are reported.
#[derive(Clone, Copy)]
pub struct Failures<'a> {
    /// The completion queue that gets the entries; it belongs to the keys' domain.
    pub cq: &'a Arc<Cq>,
    /// The context of the entries.
    pub context: u64,
    /// Index of the batch's first key, returned in the entries' `data`.
    pub first: u64,
}

/// A reserved entry of a completion queue, for the failure of a job.
pub(crate) struct Notice {
    cq: Held<Cq>,
    context: u64,
    first: u64,
    used: bool,
}

impl Notice {
    /// Reserves the entry. `first` is the index of the job's first key.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the queue is full.
    /// - `ENOENT` if the queue is closed.
    pub(crate) fn new(failures: Failures<'_>) -> Result<Self> {
        let cq = Held::new(failures.cq)?;
        cq.reserve()?;
        Ok(Self {
            cq,
            context: failures.context,
            first: failures.first,
            used: false,
        })
    }

    /// Reports that all keys of the job after the first `good` failed with `error`.
    fn tell(mut self, good: usize, error: Error) {
        self.used = true;
        self.cq.push(
            &mut CqEntry {
                context: self.context,
                len: good as u64,
                data: self.first,
                err: u32::try_from(-error.to_errno()).unwrap_or(0),
                ..CqEntry::default()
            },
            false,
        );
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        if !self.used {
            self.cq.unreserve();
        }
    }
}

/// A key whose value was returned to the caller and that is not assigned yet.
pub(crate) struct Order {
    pub(crate) key: Arc<Key>,
    pub(crate) grant: Window,
    pub(crate) value: KeyValue,
}

/// The keys of a job. The variant `One` allocates no memory.
pub(crate) enum Orders {
    One([Order; 1]),
    Many(KVec<Order>),
}

impl Deref for Orders {
    type Target = [Order];

    fn deref(&self) -> &[Order] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

/// Ordered assignments that the worker makes together.
pub(crate) struct Job {
    pub(crate) orders: Orders,
    pub(crate) notice: Option<Notice>,
}

impl Job {
    /// Makes the job's assignments, unless `given_up` is an error. Returns the error of the first
    /// assignment that failed.
    fn run(self, domain: &Domain, given_up: Result) -> Result {
        let Self { orders, notice } = self;
        // If all slots are closed, no caller uses the keys, and the closers wait for this worker.
        let closed = orders.iter().all(|order| order.key.is_dying());
        let made = match given_up {
            _ if closed => Err((0, ENOENT)),
            Err(e) => Err((0, e)),
            Ok(()) => make(domain, &orders),
        };
        let (good, why) = made.err().unwrap_or((orders.len(), EIO));
        // Before the slots complete their step: after that, a task that waited for them may close the queue.
        match notice {
            Some(notice) if good < orders.len() && !closed => notice.tell(good, why),
            other => drop(other),
        }
        for (i, order) in orders.iter().enumerate() {
            let made = if i < good {
                Ok(order.value)
            } else {
                // The caller already has the value, so no later grant may get it.
                order.key.forget();
                Err(why)
            };
            // Fails only for a slot that was closed meanwhile, which needs no report.
            let _ = order.key.assigned(made);
        }
        // Deferred operations wait for this job, so it leaves the refill to a worker.
        for order in orders.iter().skip(good) {
            order.key.renew_later();
        }
        made.map_err(|(_, e)| e)
    }
}

/// Makes the provider assign the keys whose values were returned.
fn make(domain: &Domain, orders: &[Order]) -> Result<(), (usize, Error)> {
    let batch = if orders.len() > 1 {
        // UNACCOUNTED: Freed before the call returns; the caller may be a block device that serves another task.
        KVec::with_capacity(orders.len(), GFP_KERNEL).ok()
    } else {
        None
    };
    let Some(mut batch) = batch else {
        for (i, order) in orders.iter().enumerate() {
            let mut one = [order.key.order(order.grant)];
            check(domain, slice::from_ref(order), &mut one).map_err(|(_, e)| (i, e))?;
        }
        return Ok(());
    };
    for order in orders {
        // Cannot fail: the capacity was reserved above.
        let _ = batch.push_within_capacity(order.key.order(order.grant));
    }
    check(domain, orders, &mut batch)
}

/// Makes the provider assign `batch`, and checks that the values are the returned ones.
fn check(
    domain: &Domain,
    orders: &[Order],
    batch: &mut [KeyAssign<'_>],
) -> Result<(), (usize, Error)> {
    let made = domain.ops().assign_keys(batch);
    let good = made.err().map_or(orders.len(), |(good, _)| good);
    // A key with another value than the returned one is treated as a failure.
    let wrong = |i: &usize| batch.get(*i).map(|made| made.value) != orders.get(*i).map(|o| o.value);
    if let Some(first) = (0..good).find(wrong) {
        for order in orders.iter().take(good).skip(first) {
            order.key.drop_made();
        }
        return Err((first, EIO));
    }
    made
}

/// Jobs of a domain that are not completed yet.
struct Pending {
    /// Jobs that the worker has not taken yet.
    waiting: KVVec<Job>,
    /// An empty list with capacity. It replaces `waiting` when the worker takes that list.
    spare: KVVec<Job>,
    /// Number of jobs that the worker has taken and not completed.
    taken: usize,
}

/// The ordered assignments of a domain that are not made yet.
#[pin_data]
pub(crate) struct Jobs {
    #[pin]
    pending: Mutex<Pending>,
}

impl Jobs {
    /// Creates an empty list of jobs.
    fn new() -> impl PinInit<Self> {
        let none = Pending {
            waiting: KVVec::new(),
            spare: KVVec::new(),
            taken: 0,
        };
        pin_init!(Self {
            pending <- new_mutex!(none, "kfabric_later"),
        })
    }

    /// Appends `job` and defers the operations posted from now on until the job is completed.
    /// Returns true if no other job waits: then the caller must queue the worker. Otherwise the
    /// caller that added the first waiting job does so.
    ///
    /// # Errors
    ///
    /// All errors return the job; no operation is deferred for it.
    ///
    /// - `EAGAIN` if the domain has `PENDING` jobs that are not completed.
    /// - `ENOMEM` if the list cannot grow.
    pub(crate) fn add(&self, domain: &Domain, job: Job) -> Result<bool, (Error, Job)> {
        let mut pending = self.pending.lock();
        if pending.waiting.len() + pending.taken >= PENDING {
            return Err((EAGAIN, job));
        }
        // UNACCOUNTED: The domain keeps the list for all callers.
        if let Err(e) = pending.waiting.reserve(1, GFP_KERNEL) {
            return Err((e.into(), job));
        }
        domain.ops().hold();
        let first = pending.waiting.is_empty();
        // Cannot fail: the capacity was reserved above.
        let _ = pending.waiting.push_within_capacity(job);
        Ok(first)
    }

    /// Returns whether jobs wait; the worker may not be queued for them yet.
    pub(crate) fn some_wait(&self) -> bool {
        !self.pending.lock().waiting.is_empty()
    }

    /// Takes all waiting jobs.
    fn take(&self) -> KVVec<Job> {
        let mut pending = self.pending.lock();
        pending.taken = pending.waiting.len();
        let spare = core::mem::replace(&mut pending.spare, KVVec::new());
        core::mem::replace(&mut pending.waiting, spare)
    }

    /// Runs all jobs in order. Locking: the domain's worker calls it, one call at a time.
    pub(crate) fn run(&self, domain: &Domain) {
        loop {
            let mut jobs = self.take();
            if jobs.is_empty() {
                self.pending.lock().spare = jobs;
                return;
            }
            // A silent device costs a long timeout, while posted operations stay deferred. After
            // the first timeout, the jobs taken with it fail without a request to the device.
            let mut given_up = Ok(());
            for job in jobs.drain_all() {
                match job.run(domain, given_up) {
                    Err(e) if e == ETIMEDOUT => given_up = Err(e),
                    _ => {}
                }
                self.pending.lock().taken -= 1;
                domain.ops().resume();
            }
            self.pending.lock().spare = jobs;
        }
    }
}

impl WorkItem for Domain {
    type Pointer = Arc<Domain>;

    fn run(this: Arc<Domain>) {
        // Operations of a block device may be deferred until a job is done: allocations must not
        // wait for I/O.
        let _no_io = sys::NoIo::begin();
        if let Some(jobs) = this.jobs() {
            jobs.run(&this);
        }
    }
}

impl Domain {
    /// Prepares the domain for ordered assignments. Called before a slot is made.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if the list of jobs cannot be allocated.
    pub(super) fn prepare_ordered(&self) -> Result {
        if self.jobs.as_ref().is_none() {
            let jobs: Arc<Jobs> = Arc::pin_init(Jobs::new(), GFP_KERNEL_ACCOUNT)?;
            // Another task may have set the list meanwhile; then this one is dropped.
            let _ = self.jobs.populate(jobs);
        }
        Ok(())
    }

    /// The ordered assignments that are not made yet. `None` before the first slot.
    fn jobs(&self) -> Option<&Jobs> {
        let jobs: &(dyn Any + Send + Sync) = &**self.jobs.as_ref()?;
        jobs.downcast_ref()
    }

    /// Schedules the job's ordered assignments. They are made before any operation takes effect
    /// that is posted on the domain after the return.
    ///
    /// # Errors
    ///
    /// All errors return the job.
    ///
    /// - `EAGAIN` if too many jobs are outstanding.
    /// - `ENOMEM` if the list of jobs cannot grow.
    /// - `EINVAL` if the domain has no slots.
    pub(super) fn make_later(this: &Arc<Self>, job: Job) -> Result<(), (Error, Job)> {
        let Some(jobs) = this.jobs() else {
            return Err((EINVAL, job));
        };
        if jobs.add(this, job)? {
            // Without the jobs' lock, which the worker takes first.
            Self::run_later(this);
        }
        Ok(())
    }

    /// Waits until all ordered assignments are made or have failed, and the worker has dropped its
    /// references to the keys and the domain.
    pub(crate) fn wait_ordered(this: &Arc<Self>) {
        if this.jobs().is_some_and(Jobs::some_wait) {
            Self::run_later(this);
        }
        sys::wq::flush(this);
    }

    /// Queues the worker; a worker that is queued already runs all jobs.
    fn run_later(this: &Arc<Self>) {
        let _ = sys::wq::jobs().enqueue(this.clone());
    }
}
