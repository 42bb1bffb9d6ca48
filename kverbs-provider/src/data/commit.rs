// SPDX-License-Identifier: GPL-2.0
//! Durable writes: their commit by the target's kernel, after the device has acknowledged them.
//!
//! ```text
//!  Writing --acknowledged--> Committing --answered--> Ended --> complete
//!                                                       \\--with completion data--> Notifying --> complete
//! ```
//!
//! A work item of the connection completes the writes in `Ended`. The work item runs consumers'
//! handlers and nothing else, so a handler may wait for other durable writes, or for the close of
//! another endpoint.
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
    tx::{
        Tx,
        TxSlot, //
    },
    DataPath,
    Kept,
    Owner, //
};
use crate::{
    errno,
    ib::{
        device::Device,
        persist,
        wr::{
            Opcode,
            SendWr, //
        }, //
    },
};
use kfabric::{
    base::errno::{
        ecanceled,
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
    },
    pure::ring::FixedRing, //
};

/// Slots of writes that wait for a commit.
pub(super) type Commits = Queue<KVVec<Option<u32>>>;

/// Slots of writes whose commit has ended.
pub(super) type Ended = FixedRing<KVVec<Option<u32>>>;

fn places(n: u32, flags: Flags) -> Result<KVVec<Option<u32>>> {
    let mut places = KVVec::with_capacity(n as usize, flags)?;
    for _ in 0..n {
        places.push(None, GFP_KERNEL_ACCOUNT)?;
    }
    Ok(places)
}

/// Returns empty queues with `n` places each.
pub(super) fn queues(n: u32, flags: Flags) -> Result<(Commits, Ended)> {
    let commits = Queue::new(places(n, flags)?);
    Ok((commits, FixedRing::new(places(n, flags)?)))
}

/// Progress of a durable write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The device writes.
    Writing,
    /// The write waits for the target's kernel.
    Committing,
    /// The commit has ended with this errno, or 0.
    Ended(u32),
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
    /// Lets a posted write wait for its commit at once. Returns whether the device has posted it.
    #[cfg(kfabric_seed_bug = "pmem-early-commit")]
    pub(super) fn commit_early(&mut self, slot: u32) -> bool {
        let place = self.slots.get_mut(slot as usize);
        let Some(durable) = place.and_then(|place| place.durable.as_mut()) else {
            return false;
        };
        durable.stage = Stage::Committing;
        self.commits.push(slot)
    }

    /// Handles the acknowledgement of a durable write.
    #[cold]
    pub(super) fn acknowledged(&mut self, slot: u32, device: &Device) -> Acknowledged {
        let place = self.slots.get_mut(slot as usize);
        let Some((durable, token)) =
            place.and_then(|at| at.durable.as_mut().zip(at.token.as_mut()))
        else {
            return Acknowledged::Complete;
        };
        if cfg!(kfabric_seed_bug = "pmem-early-commit") && durable.stage == Stage::Committing {
            return Acknowledged::Queued;
        }
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

    /// Records the end of a write's commit with an errno, or 0.
    fn end_commit(slots: &mut [TxSlot], ended: &mut Ended, slot: u32, err: u32) {
        let place = slots.get_mut(slot as usize);
        if let Some(durable) = place.and_then(|place| place.durable.as_mut()) {
            durable.stage = Stage::Ended(err);
        }
        // Cannot fail: the queue has a place for each slot.
        let _ = ended.push(slot);
    }

    /// Removes a write whose commit has ended. Returns its slot, and an errno or 0.
    fn next_ended(&mut self) -> Option<(u32, u32)> {
        loop {
            let slot = self.ended.pop()?;
            let place = self.slots.get(slot as usize);
            // The endpoint's close may have canceled the write meanwhile.
            let durable = place.and_then(|place| place.durable.as_ref());
            if let Some(Stage::Ended(err)) = durable.map(|durable| durable.stage) {
                return Some((slot, err));
            }
        }
    }

    /// Posts the completion data of a committed write. Returns whether the write has any.
    ///
    /// # Errors
    ///
    /// - `ECANCELED` if the connection is ending.
    /// - An error of the device.
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
            .ok_or_else(ecanceled)?;
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

    /// Ends the commits of the writes of the outstanding COMMIT. The caller schedules
    /// [`DataPath::complete_ended`].
    ///
    /// # Errors
    ///
    /// - `EPROTO` if the message is not the answer to the outstanding COMMIT.
    pub(crate) fn committed(&self, message: &[u8]) -> Result {
        let answer = Answer::parse(message).map_err(|_| eproto())?;
        let mut guard = self.tx.lock();
        let Tx {
            commits,
            slots,
            ended,
            ..
        } = &mut *guard;
        let each = |slot, status| Tx::<H>::end_commit(slots, ended, slot, errno_of(status));
        commits.answered(&answer, each).map_err(|_| eproto())
    }

    /// Completes the writes whose commits have ended, or sends their completion data.
    ///
    /// Context: process; consumers' handlers may sleep. Locking: none held.
    pub(crate) fn complete_ended(&self) {
        loop {
            let next = self.tx.lock().next_ended();
            let Some((slot, err)) = next else { return };
            self.finish(slot, err);
            persist::resched();
        }
    }

    /// Completes a write whose commit has ended with an errno, or 0, or sends its completion data.
    fn finish(&self, slot: u32, mut err: u32) {
        let token = {
            let mut tx = self.tx.lock();
            if err == 0 {
                match tx.notify(slot) {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(e) => err = errno::number(e),
                }
            }
            // `None` if the endpoint's close has canceled the write meanwhile.
            tx.vacate(slot)
        };
        if let Some(token) = token.map(Kept::into_inner) {
            complete(token, err);
        }
    }

    /// Ends the commits of all writes that wait for one with an error. The caller schedules
    /// [`DataPath::complete_ended`].
    pub(crate) fn fail_commits(&self, why: Error) {
        let mut guard = self.tx.lock();
        let Tx {
            commits,
            slots,
            ended,
            ..
        } = &mut *guard;
        while let Some(slot) = commits.cancel() {
            Tx::<H>::end_commit(slots, ended, slot, errno::number(why));
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
