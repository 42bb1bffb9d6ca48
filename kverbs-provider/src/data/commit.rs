// SPDX-License-Identifier: GPL-2.0
//! Durable writes: their commit by the target's kernel, after the device has acknowledged them.
//!
//! ```text
//!  Writing --acknowledged--> Committing --answered--> complete
//!                                           \\--with completion data--> Notifying --> complete
//! ```
//!
//! The completion data are a write of no bytes, which follows the commit. So a completion at the
//! target means durable bytes, and a refused commit uses up no receive.

use kernel::{
    alloc::Flags,
    bindings,
    prelude::*, //
};

use super::{
    local,
    tx::Tx,
    DataPath,
    Kept,
    Owner, //
};
use crate::{
    errno,
    ib::{
        device::Device,
        wr::{
            Opcode,
            SendWr, //
        }, //
    },
};
use kfabric::{
    base::errno::{
        enotconn,
        eproto, //
    },
    ep::OpToken,
    op::{
        OpDesc,
        Outcome, //
    },
    pure::commit::{
        Answer,
        Queue,
        Range,
        Status,
        RANGES_MAX, //
    }, //
};

/// Slots of writes that wait for a commit.
pub(super) type Commits = Queue<KVVec<Option<u32>>>;

/// Returns an empty queue with `n` places.
pub(super) fn queue(n: u32, flags: Flags) -> Result<Commits> {
    let mut places = KVVec::with_capacity(n as usize, flags)?;
    for _ in 0..n {
        places.push(None, GFP_KERNEL_ACCOUNT)?;
    }
    Ok(Queue::new(places))
}

/// Progress of a durable write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The device writes.
    Writing,
    /// The write waits for the target's kernel.
    Committing,
    /// The device sends the completion data.
    Notifying,
}

/// The state of a durable write after an acknowledgement.
#[derive(PartialEq, Eq)]
pub(super) enum Acknowledged {
    /// The write waits for a commit.
    Queued,
    /// The completion data of the committed write have arrived.
    Complete,
    /// The connection is ending, so there is no commit.
    Late,
}

/// A durable write.
pub(super) struct Durable {
    range: Range,
    /// Completion data for the peer.
    imm: Option<u32>,
    stage: Stage,
}

impl Durable {
    /// Returns whether an operation needs a commit. A write of no bytes does not.
    #[inline(always)]
    pub(super) fn is_wanted(op: &OpDesc<'_>) -> bool {
        op.durable_len() != 0
    }

    /// Returns the state of a durable write that is posted now.
    pub(super) fn new(op: &OpDesc<'_>) -> Self {
        Self {
            range: Range {
                key: op.key,
                addr: op.remote_addr,
                len: op.durable_len(),
            },
            imm: op.imm,
            stage: Stage::Writing,
        }
    }
}

/// Returns the errno with which a write completes; 0: its bytes are durable.
fn errno_of(status: Status) -> u32 {
    match status {
        Status::Durable => 0,
        Status::Unsupported => bindings::EOPNOTSUPP,
        Status::Revoked => bindings::EKEYREVOKED,
        Status::Refused => bindings::EACCES,
        Status::Closing => bindings::ECANCELED,
    }
}

impl<H: Owner> Tx<H> {
    /// Handles the acknowledgement of a durable write.
    #[cold]
    pub(super) fn acknowledged(&mut self, slot: u32, device: &Device) -> Acknowledged {
        let place = self.slots.get_mut(slot as usize);
        let Some((durable, token)) =
            place.and_then(|at| at.durable.as_mut().zip(at.token.as_mut()))
        else {
            return Acknowledged::Complete;
        };
        if durable.stage != Stage::Writing {
            return Acknowledged::Complete;
        }
        if !self.open {
            return Acknowledged::Late;
        }
        local::unmap_lent(device, token.get_mut());
        durable.stage = Stage::Committing;
        // Cannot fail: the queue has a place for each slot, and the core refuses durable writes on
        // a domain without them.
        match self.commits.push(slot) {
            true => Acknowledged::Queued,
            false => Acknowledged::Late,
        }
    }

    /// Posts the completion data of a committed write. Returns whether the write has any.
    fn notify(&mut self, slot: u32) -> Result<bool> {
        let place = self.slots.get_mut(slot as usize);
        let durable = place
            .and_then(|place| place.durable.as_mut())
            .ok_or(EINVAL)?;
        let Some(imm) = durable.imm else {
            return Ok(false);
        };
        let qp = self
            .qp
            .as_ref()
            .filter(|_| self.open)
            .ok_or_else(enotconn)?;
        let wr = SendWr {
            opcode: Opcode::Write,
            imm: Some(imm),
            fence: false,
            remote_addr: 0,
            rkey: 0,
        };
        durable.stage = Stage::Notifying;
        // The slot has at least one credit, which no work request uses now.
        qp.post_send(slot, &wr, &[], true)?;
        Ok(true)
    }
}

impl<H: Owner> DataPath<H> {
    /// Returns whether writes wait for a commit.
    pub(crate) fn has_commits(&self) -> bool {
        !self.tx.lock().commits.is_empty()
    }

    /// Begins a COMMIT, if writes wait and none is outstanding. Returns its number and the number of
    /// its `ranges`.
    pub(crate) fn begin_commit(&self, ranges: &mut [Range; RANGES_MAX]) -> Option<(u64, usize)> {
        let mut guard = self.tx.lock();
        let Tx { commits, slots, .. } = &mut *guard;
        commits.begin(ranges, |slot| {
            let durable = slots.get(slot as usize).and_then(|at| at.durable.as_ref());
            durable.map_or(Range::default(), |durable| durable.range)
        })
    }

    /// Completes the writes of the outstanding COMMIT.
    ///
    /// Context: process. Locking: none held.
    ///
    /// # Errors
    ///
    /// - `EPROTO` if the message is not the answer to the outstanding COMMIT.
    pub(crate) fn committed(&self, message: &[u8]) -> Result {
        let answer = Answer::parse(message).map_err(|_| eproto())?;
        let mut done = [(0, Status::Closing); RANGES_MAX];
        let mut count = 0;
        let each = |slot, status| {
            if let Some(place) = done.get_mut(count) {
                *place = (slot, status);
                count += 1;
            }
        };
        let answered = self.tx.lock().commits.answered(&answer, each);
        answered.map_err(|_| eproto())?;
        for (slot, status) in done.into_iter().take(count) {
            self.finish(slot, errno_of(status));
        }
        Ok(())
    }

    /// Completes a write whose commit has ended with an errno, or 0, or sends its completion data.
    fn finish(&self, slot: u32, mut err: u32) {
        let token = {
            let mut tx = self.tx.lock();
            if err == 0 {
                match tx.notify(slot) {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(_) => err = bindings::ECANCELED,
                }
            }
            // `None` if the endpoint's close has canceled the write meanwhile.
            tx.vacate(slot)
        };
        if let Some(token) = token.map(Kept::into_inner) {
            complete(token, err);
        }
    }

    /// Completes all writes that wait for a commit with an error.
    ///
    /// Context: process. Locking: none held.
    pub(crate) fn fail_commits(&self, why: Error) {
        while let Some(token) = self.cancel_commit() {
            complete(token, errno::number(why));
        }
    }

    /// Removes a write that waits for a commit, and frees its slot.
    pub(super) fn cancel_commit(&self) -> Option<OpToken> {
        let mut tx = self.tx.lock();
        loop {
            let slot = tx.commits.cancel()?;
            if let Some(token) = tx.vacate(slot) {
                return Some(token.into_inner());
            }
        }
    }
}

/// Completes a write.
fn complete(token: OpToken, err: u32) {
    token.complete_sleeping(Outcome {
        err,
        prov_errno: err,
        ..Outcome::default()
    });
}
