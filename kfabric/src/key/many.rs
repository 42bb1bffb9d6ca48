// SPDX-License-Identifier: GPL-2.0
//! Keys for many slots in one call, which the device is waited for together.
//!
//! A batch has many slots under way at once. It waits for a slot only while it has none, so no two
//! batches ever wait for each other.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    Key,
    Stop,
    Wait,
    CHAIN, //
};
use crate::{
    fabric::Domain,
    provider::{
        KeyAssign,
        KeyValue, //
    },
    pure::key::{
        Grant,
        KeyError, //
    },
    sys, //
};

/// One of [`Key::assign_many`] and [`Key::assign_ordered`].
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
    /// What it gives, and on what.
    ///
    /// # Errors
    ///
    /// See [`Key::assign`].
    pub(super) fn grant(&self) -> Result<(&'a Arc<Domain>, Grant)> {
        self.key
            .grant_of(self.offset, self.len, self.access, self.once)
    }
}

impl Key {
    /// Assigns many, in order, as [`Key::assign`] does one. When this returns the keys are valid
    /// everywhere. The device is waited for once for each [`CHAIN`] of them.
    ///
    /// # Errors
    ///
    /// How many from the start have their keys, and why the next one has none: what
    /// [`Key::assign`] says, or `EINTR` (the task is being killed). Beyond those no slot got a key.
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

    /// As [`Key::assign_many`], one after the other, which takes no memory.
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

    /// Begins as many assignments of `batch` as the provider is to be asked for at once; at least
    /// one.
    ///
    /// # Errors
    ///
    /// Why the first that was not begun will not be. Those before it are begun all the same.
    fn begin_many<'a>(batch: &[Assignment<'a>], orders: &mut KVec<KeyAssign<'a>>) -> Result {
        let mut chain: Option<&Arc<Domain>> = None;
        for item in batch.iter().take(CHAIN) {
            let key = item.key;
            let (domain, grant) = item.grant()?;
            // What may take long keeps no other slot busy meanwhile.
            let alone = !key.ops.chains(item.offset, item.len);
            if chain.is_some_and(|chain| alone || !Arc::ptr_eq(chain, domain)) {
                break;
            }
            // Nobody is waited for by one who has others waiting.
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
            // There is room.
            let _ = orders.push_within_capacity(key.order(grant));
            if alone {
                break;
            }
        }
        Ok(())
    }

    /// Does and ends what [`Key::begin_many`] began, which are the first of `batch`.
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
        // A slot that was closed meanwhile: what lies beyond it is not to be. Not before all are
        // settled, for this may wait.
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
