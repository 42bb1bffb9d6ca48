// SPDX-License-Identifier: GPL-2.0
//! Ordered assignments: keys that are told at once, and valid before anything that is posted
//! afterwards on their domain takes effect.
//!
//! The provider says which key the next assignment will give ([`KeyOps::foresee`]) and holds what
//! is posted ([`DomainOps::hold`]) until a worker has had the keys made, in the order in which they
//! were asked for. So a message that carries a key may follow at once, and nothing waits for the
//! device but the message.
//!
//! [`KeyOps::foresee`]: crate::provider::KeyOps::foresee
//! [`DomainOps::hold`]: crate::provider::DomainOps::hold

use core::{
    ops::Deref,
    slice, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use crate::{
    cq::Cq,
    fabric::Domain,
    key::Key,
    object::Held,
    provider::{
        KeyAssign,
        KeyValue, //
    },
    pure::key::Grant,
    uapi::CqEntry, //
};

/// Jobs of a domain that may be under way, at most.
const PENDING: usize = 1024;

/// Who hears of it when keys that were told do not come to be.
#[derive(Clone, Copy)]
pub struct Failures<'a> {
    /// The queue, of the keys' domain.
    pub cq: &'a Arc<Cq>,
    /// The context of its entries.
    pub context: u64,
    /// What the first of the batch counts as, in the entries' `data`.
    pub first: u64,
}

/// The entry of a completion queue in which a failure is told, promised beforehand.
pub(crate) struct Notice {
    cq: Held<Cq>,
    context: u64,
    first: u64,
    used: bool,
}

impl Notice {
    /// Reserves the entry. `first` is what the job's first key counts as.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: the queue is full. `EBUSY`: it is closing.
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

    /// Tells that all keys but the first `good` became nothing.
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

/// A key that was told.
pub(crate) struct Order {
    pub(crate) key: Arc<Key>,
    pub(crate) grant: Grant,
    pub(crate) value: KeyValue,
}

/// The keys of a job. One takes no memory of its own.
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

/// Keys that are to be made at once.
pub(crate) struct Job {
    pub(crate) orders: Orders,
    pub(crate) notice: Option<Notice>,
}

impl Job {
    /// Makes them, unless `given_up` says why not; or says why some were not.
    fn run(self, domain: &Domain, given_up: Result) -> Result {
        let Self { orders, notice } = self;
        // Then nobody wants them, and whoever closes the slots waits for us.
        let closed = orders.iter().all(|order| order.key.is_dying());
        let made = match given_up {
            _ if closed => Err((0, ENOENT)),
            Err(e) => Err((0, e)),
            Ok(()) => make(domain, &orders),
        };
        let (good, why) = made.err().unwrap_or((orders.len(), EIO));
        // Before the slots settle: who has waited for them may close the queue.
        match notice {
            Some(notice) if good < orders.len() && !closed => notice.tell(good, why),
            other => drop(other),
        }
        for (i, order) in orders.iter().enumerate() {
            let made = if i < good {
                Ok(order.value)
            } else {
                // Somebody has it, so it must be no other grant's.
                order.key.forget();
                Err(why)
            };
            // One that was closed meanwhile has nobody to tell.
            let _ = order.key.assigned(made);
        }
        // What is posted waits for us, so we wait for nothing.
        for order in orders.iter().skip(good) {
            order.key.renew_later();
        }
        made.map_err(|(_, e)| e)
    }
}

/// Asks the provider for what was told.
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
        // There is room.
        let _ = batch.push_within_capacity(order.key.order(order.grant));
    }
    check(domain, orders, &mut batch)
}

/// Asks the provider for `batch`, and sees to it that it is what was told.
fn check(
    domain: &Domain,
    orders: &[Order],
    batch: &mut [KeyAssign<'_>],
) -> Result<(), (usize, Error)> {
    let made = domain.ops().assign_keys(batch);
    let good = made.err().map_or(orders.len(), |(good, _)| good);
    // Another key than the one that was told is none.
    let wrong = |i: &usize| batch.get(*i).map(|made| made.value) != orders.get(*i).map(|o| o.value);
    if let Some(first) = (0..good).find(wrong) {
        for order in orders.iter().take(good).skip(first) {
            order.key.drop_made();
        }
        return Err((first, EIO));
    }
    made
}

/// Jobs, by who has them.
struct Pending {
    /// Those that wait for the worker.
    waiting: KVVec<Job>,
    /// An empty list with room, to wait in when the worker has taken the other.
    spare: KVVec<Job>,
    /// How many the worker has.
    taken: usize,
}

/// The ordered assignments of a domain that are still to be made.
#[pin_data]
pub(crate) struct Jobs {
    #[pin]
    pending: Mutex<Pending>,
}

impl Jobs {
    /// None.
    pub(crate) fn new() -> impl PinInit<Self> {
        let none = Pending {
            waiting: KVVec::new(),
            spare: KVVec::new(),
            taken: 0,
        };
        pin_init!(Self {
            pending <- new_mutex!(none, "kfabric_later"),
        })
    }

    /// Adds one as the last, and holds what is posted from now on until it is over. Whether it is the
    /// only one, so that the worker is to be queued; whoever added those before it does that else.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: too many are under way. `ENOMEM`. Gives the job back; nothing is held for it.
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
        // There is room.
        let _ = pending.waiting.push_within_capacity(job);
        Ok(first)
    }

    /// Whether some wait, for whom the worker may not have been queued yet.
    pub(crate) fn some_wait(&self) -> bool {
        !self.pending.lock().waiting.is_empty()
    }

    /// Takes all that wait.
    fn take(&self) -> KVVec<Job> {
        let mut pending = self.pending.lock();
        pending.taken = pending.waiting.len();
        let spare = core::mem::replace(&mut pending.spare, KVVec::new());
        core::mem::replace(&mut pending.waiting, spare)
    }

    /// Runs all, in order. One worker at a time.
    pub(crate) fn run(&self, domain: &Domain) {
        loop {
            let mut jobs = self.take();
            if jobs.is_empty() {
                self.pending.lock().spare = jobs;
                return;
            }
            // A device that does not answer is waited for long, and what is posted meanwhile is
            // held. So it is not asked for anything that was there by the time it was silent.
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
