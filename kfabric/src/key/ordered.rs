// SPDX-License-Identifier: GPL-2.0
//! Keys that are told at once: what the caller of an ordered assignment does. What a worker does
//! later is [`crate::later`]'s.

use core::slice;
use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    refused,
    Assignment,
    Key,
    Stop,
    Wait,
    CHAIN, //
};
use crate::{
    errno::eopnotsupp,
    fabric::Domain,
    later::{
        Failures,
        Job,
        Notice,
        Order,
        Orders, //
    },
    provider::KeyValue,
    pure::key::KeyError,
    sys, //
};

impl Assignment<'_> {
    /// Begins it and says which key it will give. Nothing if it does not go together with those
    /// that began with `first`.
    fn promise(&self, first: Option<&Order>) -> Result<Option<Order>> {
        let key = self.key;
        let (domain, grant) = self.grant()?;
        let other = first.and_then(|first| first.key.domain());
        // The first was asked whether it goes at all.
        if let Some(other) = other {
            if !Arc::ptr_eq(other, domain) || !key.ops.chains(self.offset, self.len) {
                return Ok(None);
            }
        }
        // Nobody is waited for by one who has others waiting.
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
            // Renewed by who has ended what else is under way.
            Err(e) => key.assigned(Err(e)).map(|_| None),
        }
    }
}

impl Key {
    /// Assigns many, in order, and does not wait for the device: the keys are told at once, and
    /// are valid before anything takes effect that is posted on their domain afterwards, so a
    /// message that carries one may follow immediately. What the provider cannot promise
    /// beforehand (kverbs: windows beyond fast registration), or what there is no memory to ask
    /// for, is waited for as in [`Key::assign_many`].
    ///
    /// Should the device fail after that, `failures` hears of it: an error entry for up to [`CHAIN`]
    /// keys that were asked for together. `data` says which of the batch is their first, and `len`
    /// how many of them came to be. The others are as they were before, and what was told of them
    /// never worked. Room for it is reserved here. A device that does not answer (`ETIMEDOUT`) is
    /// not asked for what waited with that either. Keys all of whose slots are closed before they
    /// are made need not be made, which is no failure.
    ///
    /// # Errors
    ///
    /// How many from the start were told, and why the next one was not: what
    /// [`Key::assign_many`] says; `EAGAIN`: the queue is full, or too much is to be made yet;
    /// `EINVAL`: the queue is another domain's; `EOPNOTSUPP`: the provider has no ordered
    /// assignments. Beyond those no slot gets a key.
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
                // All that a job would have had, for the next one would meet the same.
                Err(e) if e == ENOMEM => {
                    let end = batch.len().min(done + CHAIN - n);
                    for item in batch.get_mut(done..end).unwrap_or_default() {
                        item.key.orders(failures).map_err(|e| (done, e))?;
                        Self::assign_singly(slice::from_mut(item)).map_err(|(_, e)| (done, e))?;
                        done += 1;
                    }
                }
                Err(e) => {
                    // In case it was its reserve.
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

    /// Whether it has ordered assignments, whose failures can be told.
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

    /// Orders `item` as a job of its own, without a list.
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
                // Nobody was told, so what was foreseen may be another's, and nothing was used up.
                for order in job.orders.iter() {
                    let _ = order.key.settle(|slot| slot.life.assign_failed());
                }
                Err(e)
            }
        }
    }

    /// Orders as many of `batch` as one job takes; how many, and why the next one was refused, if
    /// it was.
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
                // There is room.
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
                // Nobody was told, so what was foreseen may be another's, and nothing was used up.
                let _ = order.key.settle(|slot| slot.life.assign_failed());
            }
            if let (Err(_), Some(item)) = (result, batch.get(n)) {
                item.key.renew_later();
            }
            return (0, Err(e));
        }
        (n, result)
    }
}
