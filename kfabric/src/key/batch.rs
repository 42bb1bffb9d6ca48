// SPDX-License-Identifier: GPL-2.0
//! Assignment of many keys in one call, with one wait for the device.
//!
//! A batch owns many slots at once. It waits for a slot only while it owns none, so no two batches
//! wait for each other.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::slot::{
    Key,
    Stop,
    Wait,
    CHAIN, //
};
use crate::{
    objects::domain::Domain,
    provider::{
        KeyAssign,
        KeyValue, //
    },
    pure::key::{
        KeyError,
        Window, //
    },
    sys, //
};

/// An element of the batch of [`Key::assign_many`] or [`Key::assign_ordered`].
pub struct Assignment<'a> {
    /// The slot.
    pub key: &'a Arc<Key>,
    /// First byte, counted from the region's start.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Rights of peers (`KFI_REMOTE_*` bits).
    pub access: u64,
    /// As [`Key::assign_once`].
    pub once: bool,
    /// Out: the key.
    pub value: KeyValue,
}

impl<'a> Assignment<'a> {
    /// Checks the arguments; returns the domain and the grant.
    ///
    /// # Errors
    ///
    /// See [`Key::assign`].
    pub(super) fn grant(&self) -> Result<(&'a Arc<Domain>, Window)> {
        self.key
            .grant_of(self.offset, self.len, self.access, self.once)
    }
}

impl Key {
    /// Assigns many keys, in order, as [`Key::assign`] does one. When this returns the keys are
    /// valid everywhere. The caller waits for the device once for each [`CHAIN`] keys.
    ///
    /// # Errors
    ///
    /// The number of keys assigned, from the start, and the next one's error. No later slot gets a
    /// key.
    ///
    /// - The errors of [`Key::assign`].
    /// - `EINTR` if the task is being killed.
    pub fn assign_many(batch: &mut [Assignment<'_>]) -> Result<(), (usize, Error)> {
        if batch.len() == 1 {
            return Self::assign_singly(batch);
        }
        // UNACCOUNTED: Freed before the call returns; the caller may be a block device that serves another task.
        let Ok(mut orders) = KVec::with_capacity(batch.len().min(CHAIN), GFP_KERNEL) else {
            return Self::assign_singly(batch);
        };
        let mut done = 0;
        while let Some(rest) = batch.get_mut(done..).filter(|rest| !rest.is_empty()) {
            sys::pause().map_err(|e| (done, e))?;
            orders.clear();
            let begun = Self::begin_many(rest, &mut orders);
            Self::give_many(rest, &mut orders).map_err(|(n, e)| (done + n, e))?;
            done += orders.len();
            begun.map_err(|e| (done, e))?;
        }
        Ok(())
    }

    /// As [`Key::assign_many`], one after the other, without an allocation.
    pub(super) fn assign_singly(batch: &mut [Assignment<'_>]) -> Result<(), (usize, Error)> {
        for (i, item) in batch.iter_mut().enumerate() {
            let made = sys::pause();
            let made = made.and_then(|()| {
                let (domain, grant) = item.grant()?;
                item.key.give(domain, grant)
            });
            item.value = made.map_err(|e| (i, e))?;
        }
        Ok(())
    }

    /// Begins as many assignments of `batch` as one call to the provider takes; at least one.
    ///
    /// # Errors
    ///
    /// The error of the first assignment that cannot begin. Those before it have begun all the
    /// same.
    fn begin_many<'a>(batch: &[Assignment<'a>], orders: &mut KVec<KeyAssign<'a>>) -> Result {
        let mut chain: Option<&Arc<Domain>> = None;
        for item in batch.iter().take(CHAIN) {
            let key = item.key;
            let (domain, grant) = item.grant()?;
            // An assignment that may take long is made alone, so that no other slot is busy
            // meanwhile.
            let alone = !key.ops.chains(item.offset, item.len);
            if chain.is_some_and(|chain| alone || !Arc::ptr_eq(chain, domain)) {
                break;
            }
            // Do not block while this batch already owns slots: two batches could deadlock.
            let wait = if chain.is_none() {
                Wait::Killable
            } else {
                Wait::No
            };
            match key.begin_assign(wait, grant) {
                Err(Stop::Refused(KeyError::Busy)) => break,
                begun => begun?,
            }
            chain = Some(domain);
            // Cannot fail: the caller reserved the capacity.
            let _ = orders.push_within_capacity(key.order(grant));
            if alone {
                break;
            }
        }
        Ok(())
    }

    /// Makes and completes the assignments that [`Key::begin_many`] began, the first of `batch`.
    fn give_many(
        batch: &mut [Assignment<'_>],
        orders: &mut [KeyAssign<'_>],
    ) -> Result<(), (usize, Error)> {
        let Some(domain) = batch.first().and_then(|item| item.key.domain()) else {
            return Ok(());
        };
        if orders.is_empty() {
            return Ok(());
        }
        let made = domain.ops().assign_keys(orders);
        let (good, why) = made.err().unwrap_or((orders.len(), EIO));
        let mut stop = None;
        for (i, (item, order)) in batch.iter_mut().zip(&*orders).enumerate() {
            let made = if i < good { Ok(order.value) } else { Err(why) };
            match item.key.assigned(made) {
                Ok(value) => item.value = value,
                Err(e) => {
                    stop.get_or_insert((i, e));
                }
            }
        }
        let Some((stopped, e)) = stop else {
            return Ok(());
        };
        // A slot was closed meanwhile: revoke the keys beyond it. The revocation may wait, so it
        // comes after all slots have completed their step.
        for (item, order) in batch.iter_mut().zip(&*orders).take(good).skip(stopped) {
            item.key.take_back(&order.value);
            item.value = KeyValue::NONE;
        }
        for item in batch.iter().take(orders.len()).skip(good) {
            item.key.renew();
        }
        Err((stopped, e))
    }
}
