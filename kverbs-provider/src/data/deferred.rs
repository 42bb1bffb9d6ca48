// SPDX-License-Identifier: GPL-2.0
//! Deferred operations of a transmit side: their posting after the holds have been resumed
//! ([`Holds`](crate::key::deferred::Holds)), and their cancellation.

use core::sync::atomic::Ordering;
use kernel::{
    bindings,
    prelude::*,
    sync::ArcBorrow, //
};

use super::{
    tx::{
        Poster,
        Tx, //
    },
    DataPath,
    Kept,
    Owner, //
};
use kfabric::{
    ep::OpToken,
    pure::hold::{
        Released,
        Taken, //
    },
};

/// Deferred operations that are posted at once, with interrupts disabled.
const SLICE: usize = 64;

impl<H: Owner> DataPath<H> {
    /// Posts the deferred operations whose holds have been resumed.
    pub(crate) fn resume(&self, owner: ArcBorrow<'_, H>) {
        // Checked without the lock: many endpoints have no deferred operations.
        while self.holding.load(Ordering::SeqCst) {
            // The lock is released between slices, so that interrupts can run.
            match self.release(&owner) {
                Some(Ok(())) => {}
                Some(Err(_)) => H::fail(owner, bindings::EIO),
                None => return,
            }
        }
    }

    /// Posts up to [`SLICE`] deferred operations whose holds have been resumed.
    ///
    /// Returns `None` if no remaining operation may be posted yet. The next resume checks this
    /// endpoint again.
    ///
    /// # Errors
    ///
    /// - `EIO` if the device refused an accepted operation: the caller ends the connection.
    fn release(&self, owner: &H) -> Option<Result> {
        let group = owner.group();
        let holds = group.holds();
        let mut guard = self.tx.lock();
        let Tx {
            qp,
            open,
            torn,
            slots,
            held,
            inject,
            ..
        } = &mut *guard;
        // After a stop, `DataPath::stop` cancels the deferred operations.
        let qp = qp.as_ref().filter(|_| *open)?;
        let post = |slot: u32| {
            let Some(place) = slots.get_mut(slot as usize) else {
                return Taken::Nothing;
            };
            let (Some(token), Some(posting)) = (&mut place.token, &mut place.held) else {
                return Taken::Nothing;
            };
            let poster = Poster {
                group,
                qp,
                inject: inject.as_ref(),
                slot,
                size: self.size,
            };
            let taken = poster.post_parts(posting, token.get_mut());
            if taken != Taken::Nothing {
                place.held = None;
            }
            taken
        };
        match held.release(SLICE, || holds.resumed(), || holds.note_held(), post) {
            Released::All => {
                self.holding.store(false, Ordering::SeqCst);
                None
            }
            Released::Some => Some(Ok(())),
            Released::Later => None,
            Released::Refused(taken) => {
                // The caller ends the connection, which cancels all other deferred operations.
                *open = false;
                *torn |= taken == Taken::Part;
                Some(Err(EIO))
            }
        }
    }

    /// Removes one deferred operation and frees its slot. Returns `None` after the last one.
    ///
    /// The caller has begun [`DataPath::stop`], so none is added.
    pub(super) fn cancel_deferred(&self) -> Option<OpToken> {
        let mut guard = self.tx.lock();
        let tx = &mut *guard;
        let Some(slot) = tx.held.pop() else {
            self.holding.store(false, Ordering::SeqCst);
            return None;
        };
        tx.slots.get_mut(slot as usize)?.held = None;
        tx.vacate(slot).map(Kept::into_inner)
    }
}
