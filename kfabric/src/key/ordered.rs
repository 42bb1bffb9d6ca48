// SPDX-License-Identifier: GPL-2.0
//! The caller's side of ordered assignments, which return key values at once. The worker's side is
//! [`ordered_worker`](super::ordered_worker).

use core::slice;
use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    batch::Assignment,
    ordered_worker::{
        Failures,
        Job,
        Notice,
        Order,
        Orders, //
    },
    slot::{
        refused,
        Key,
        Stop,
        Wait,
        CHAIN, //
    }, //
};
use crate::{
    base::errno::eopnotsupp,
    objects::domain::Domain,
    provider::KeyValue,
    pure::key::KeyError,
    sys, //
};

impl Assignment<'_> {
    /// Begins the assignment and returns its key value. `None` if it cannot be in one job with the
    /// assignments that began with `first`.
    fn promise(&self, first: Option<&Order>) -> Result<Option<Order>> {
        let key = self.key;
        let (domain, grant) = self.grant()?;
        let other = first.and_then(|first| first.key.domain());
        // For the first, the caller has checked these conditions.
        if let Some(other) = other {
            if !Arc::ptr_eq(other, domain) || !key.ops.chains(self.offset, self.len) {
                return Ok(None);
            }
        }
        // Do not block while this batch already owns slots: two batches could deadlock.
        let wait = if first.is_none() {
            Wait::Killable
        } else {
            Wait::No
        };
        match key.begin_assign(wait, grant) {
            Err(Stop::Refused(KeyError::Busy)) => return Ok(None),
            begun => begun?,
        }
        let foreseen = key.ops.foresee(self.offset, self.len).and_then(|value| {
            let mut slot = key.state.lock();
            slot.life.promise(value.key).map_err(refused)?;
            slot.remote_addr = value.remote_addr;
            Ok(value)
        });
        match foreseen {
            Ok(value) => Ok(Some(Order {
                key: key.clone(),
                grant,
                value,
            })),
            // The caller refills the slot's reserve, after it has ordered the earlier assignments.
            Err(e) => key.assigned(Err(e)).map(|_| None),
        }
    }
}

impl Key {
    /// Assigns many keys, in order, without a wait for the device. The key values are returned at
    /// once. The keys are valid before any operation posted later on their domain takes effect, so
    /// a message with a key may be posted immediately. If the provider cannot predict a key
    /// (kverbs: windows beyond fast registration), or memory is short, this call waits as
    /// [`Key::assign_many`] does.
    ///
    /// If the device fails after the return, `failures` gets an error entry, for up to [`CHAIN`]
    /// keys of one job. Its `data` is the index of their first in the batch; `len` says how many of
    /// them are valid. The slots of the others are unchanged, and their returned values never
    /// worked. The entry is reserved here. If a device does not respond (`ETIMEDOUT`), the jobs
    /// waiting behind fail too, without a request to the device. If all slots of a job are closed
    /// before their keys are made, the job is skipped without an error entry.
    ///
    /// # Errors
    ///
    /// The number of values returned, from the start, and the next one's error. No later slot gets
    /// a key.
    ///
    /// - The errors of [`Key::assign_many`].
    /// - `EAGAIN` if the completion queue is full, or too many jobs are outstanding.
    /// - `EINVAL` if the completion queue belongs to another domain.
    /// - `ENOENT` if the completion queue is closed.
    /// - `EOPNOTSUPP` if the provider has no ordered assignments.
    pub fn assign_ordered(
        batch: &mut [Assignment<'_>],
        failures: Option<Failures<'_>>,
    ) -> Result<(), (usize, Error)> {
        let mut done = 0;
        while let Some(rest) = batch.get_mut(done..).filter(|rest| !rest.is_empty()) {
            sys::pause().map_err(|e| (done, e))?;
            let alone = match rest.first() {
                Some(item) => {
                    item.key.orders(failures).map_err(|e| (done, e))?;
                    !item.key.ops.chains(item.offset, item.len)
                }
                None => false,
            };
            if alone {
                Self::assign_many(&mut rest[..1]).map_err(|(_, e)| (done, e))?;
                done += 1;
                continue;
            }
            let failures = failures.map(|failures| Failures {
                first: failures.first + done as u64,
                ..failures
            });
            let (n, result) = match rest {
                [one] => match Self::order_one(one, failures) {
                    Ok(()) => (1, Ok(())),
                    Err(e) => (0, Err(e)),
                },
                some => Self::order_some(some, failures),
            };
            done += n;
            match result {
                // Assign as many singly as one job has; the next job would fail in the same way.
                Err(e) if e == ENOMEM => {
                    let end = batch.len().min(done + CHAIN - n);
                    for item in batch.get_mut(done..end).unwrap_or_default() {
                        item.key.orders(failures).map_err(|e| (done, e))?;
                        Self::assign_singly(slice::from_mut(item)).map_err(|(_, e)| (done, e))?;
                        done += 1;
                    }
                }
                Err(e) => {
                    // Refill the slot's reserve: that may be the failure's cause.
                    if let Some(item) = batch.get(done) {
                        item.key.renew();
                    }
                    return Err((done, e));
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Checks that the slot supports ordered assignments, and that `failures` has a queue of its
    /// domain.
    ///
    /// # Errors
    ///
    /// See [`Key::assign_ordered`].
    fn orders(&self, failures: Option<Failures<'_>>) -> Result {
        let domain = self.domain().ok_or(EINVAL)?;
        if failures.is_some_and(|failures| !Arc::ptr_eq(domain, failures.cq.domain())) {
            return Err(EINVAL);
        }
        if !self.ops.foresees() {
            return Err(eopnotsupp());
        }
        Ok(())
    }

    /// Orders `item` as a job of its own, without allocating a list.
    fn order_one(item: &mut Assignment<'_>, failures: Option<Failures<'_>>) -> Result {
        let domain = item.key.domain().ok_or(EINVAL)?.clone();
        let notice = failures.map(Notice::new).transpose()?;
        let order = item.promise(None)?.ok_or(EBUSY)?;
        let value = order.value;
        let orders = Orders::One([order]);
        match Domain::make_later(&domain, Job { orders, notice }) {
            Ok(()) => {
                item.value = value;
                Ok(())
            }
            Err((e, job)) => {
                // The values were not returned to the caller: they may be issued again, and no
                // reserve is used up.
                for order in job.orders.iter() {
                    let _ = order.key.complete_step(|slot| slot.life.assign_failed());
                }
                Err(e)
            }
        }
    }

    /// Orders as many of `batch` as one job takes. Returns their number, and the error of the next
    /// one, if there is one.
    fn order_some(batch: &mut [Assignment<'_>], failures: Option<Failures<'_>>) -> (usize, Result) {
        let ready = || -> Result<(KVec<Order>, Option<Notice>)> {
            Ok((
                // UNACCOUNTED: Freed before the call returns; the caller may be a block device that serves another task.
                KVec::with_capacity(batch.len().min(CHAIN), GFP_KERNEL)?,
                failures.map(Notice::new).transpose()?,
            ))
        };
        let (mut orders, notice) = match ready() {
            Ok(ready) => ready,
            Err(e) => return (0, Err(e)),
        };
        let mut result = Ok(());
        for item in batch.iter().take(CHAIN) {
            match item.promise(orders.first()) {
                // Cannot fail: the capacity was reserved above.
                Ok(Some(order)) => drop(orders.push_within_capacity(order)),
                Ok(None) => break,
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
        }
        let Some(domain) = orders.first().and_then(|order| order.key.domain()).cloned() else {
            return (0, result);
        };
        for (item, order) in batch.iter_mut().zip(&orders) {
            item.value = order.value;
        }
        let n = orders.len();
        let orders = Orders::Many(orders);
        if let Err((e, job)) = Domain::make_later(&domain, Job { orders, notice }) {
            for (item, order) in batch.iter_mut().zip(&*job.orders) {
                item.value = KeyValue::NONE;
                // The values were not returned: they may be issued again, and no reserve is used
                // up.
                let _ = order.key.complete_step(|slot| slot.life.assign_failed());
            }
            if let (Err(_), Some(item)) = (result, batch.get(n)) {
                item.key.renew_later();
            }
            return (0, Err(e));
        }
        (n, result)
    }
}
