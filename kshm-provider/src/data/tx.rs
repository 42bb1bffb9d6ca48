// SPDX-License-Identifier: GPL-2.0
//! Transmit side: the send queue and its operations.

use core::sync::atomic::Ordering;
use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    budget::Budget,
    local::local,
    path::{
        DataPath,
        Owner,
        Refused, //
    },
};
use crate::{
    errno,
    key::table::Window,
    sys::mem::{
        self,
        Piece, //
    }, //
};
use kfabric::{
    base::errno::enotconn,
    ep::OpToken,
    memory::Memory,
    op::{
        OpDesc,
        OpKind,
        Outcome, //
    },
    pure::{
        atomic::{
            Datatype,
            Op, //
        },
        ring::FixedRing,
        sendq::Event, //
    },
    uapi::KFI_INJECT_MAX, //
};

/// Operations in order, in storage that [`DataPath::new`] allocates.
type Queue = FixedRing<KVVec<Option<TxOp>>>;

/// An operation of the send queue.
pub(super) struct TxOp {
    pub(super) token: OpToken,
    pub(super) kind: OpKind,
    pub(super) imm: Option<u32>,
    remote_addr: u64,
    pub(super) key: u64,
    pub(super) len: u64,
    /// Bytes copied so far.
    pub(super) done: u64,
    /// Payload copied at the post. For an atomic: the operands, followed by the comparands.
    pub(super) inject: Option<([u8; KFI_INJECT_MAX], usize)>,
    /// Operation and type of an atomic.
    pub(super) atomic: Option<(Op, Datatype)>,
    /// The write completes only when its bytes are durable.
    pub(super) durable: bool,
    /// The operation has claimed a single-use key, which no other operation can use any more.
    pub(super) claimed: bool,
}

/// State of the transmit side under the lock.
pub(super) struct Tx<E> {
    pub(super) waiting: Queue,
    /// The peer, from connect or accept until the close of this endpoint.
    pub(super) peer: Option<Arc<E>>,
}

impl<E> Tx<E> {
    /// Returns an empty send queue in `places`.
    pub(super) fn new(places: KVVec<Option<TxOp>>) -> Self {
        Self {
            waiting: FixedRing::new(places),
            peer: None,
        }
    }
}

impl TxOp {
    /// Returns the operation, with a copy of its inline payload.
    pub(super) fn new(op: &OpDesc<'_>, token: OpToken) -> Self {
        let copied = |data: &[u8], more: &[u8]| {
            // Cannot truncate: the core has checked the length.
            let data = &data[..data.len().min(KFI_INJECT_MAX)];
            let more = &more[..more.len().min(KFI_INJECT_MAX - data.len())];
            let mut place = [0; KFI_INJECT_MAX];
            let (first, rest) = place.split_at_mut(data.len());
            first.copy_from_slice(data);
            rest[..more.len()].copy_from_slice(more);
            (place, data.len() + more.len())
        };
        let inject = match op.atomic {
            Some(atomic) => Some(copied(atomic.operands, atomic.compare)),
            None => op.inject.map(|data| copied(data, &[])),
        };
        Self {
            token,
            kind: op.kind,
            imm: op.imm,
            remote_addr: op.remote_addr,
            key: op.key,
            len: match op.kind {
                OpKind::Commit => op.commit_len,
                _ => op.len,
            },
            done: 0,
            inject,
            atomic: op.atomic.map(|atomic| (atomic.op, atomic.ty)),
            durable: op.durable,
            claimed: false,
        }
    }

    /// Returns the start of the operation's remote range in the memory of `window`, if the peer's
    /// group permits `access`.
    pub(super) fn place<E>(
        &self,
        window: &Window,
        peer: &DataPath<E>,
        access: u64,
    ) -> Option<usize> {
        window.find(&peer.group, self.remote_addr, self.len, access)
    }

    /// Returns whether the peer's group permits `access` to the operation's remote range.
    pub(super) fn is_inside<E>(&self, window: &Window, peer: &DataPath<E>, access: u64) -> bool {
        self.place(window, peer, access).is_some()
    }

    /// Returns the start of the operation's remote range in the memory of `window`, if the peer's
    /// group permits `access`. Claims a single-use key for this operation.
    pub(super) fn find<E>(
        &mut self,
        window: &Window,
        peer: &DataPath<E>,
        access: u64,
    ) -> Option<usize> {
        let at = self.place(window, peer, access)?;
        if !self.claimed && !window.claim() {
            return None;
        }
        self.claimed = true;
        Some(at)
    }

    /// Copies as [`TxOp::copy_to`], to bytes from `at` on of memory that is persistent, and makes
    /// the copied bytes durable. The caller must not be preempted meanwhile.
    ///
    /// The fence belongs to each part, because the next part may run on another processor.
    pub(super) fn copy_durably(&self, n: u64, memory: &Memory, at: usize) -> u64 {
        // CAST: The range is inside the memory, whose length is a `usize`.
        let to = mem::pieces(memory, at, n as usize);
        let mut copied = n;
        match (&self.inject, self.token.unregistered()) {
            (Some(_), _) => mem::store_durable(self.injected(), to),
            (None, None) => mem::copy_durable(local(&self.token, self.done, n), to),
            (None, Some(_)) => {
                copied = self.copy_to(n, to);
                let wrong = cfg!(kfabric_seed_bug = "pmem-wrong-range");
                // CAST: At most `n`.
                mem::write_back(memory, if wrong { 0 } else { at }, copied as usize);
            }
        }
        if !cfg!(kfabric_seed_bug = "pmem-early-answer") {
            mem::fence_durable();
        }
        copied
    }

    /// Returns the inline payload that is not copied yet.
    fn injected(&self) -> &[u8] {
        let payload = self.inject.as_ref();
        // CAST: An inject payload is at most `KFI_INJECT_MAX` bytes.
        let rest = payload.and_then(|(data, len)| data.get(self.done as usize..*len));
        rest.unwrap_or_default()
    }

    /// Copies the next `n` bytes to `to` and returns the number of bytes copied. The number is
    /// lower than `n` only for unregistered memory.
    pub(super) fn copy_to<'a>(&self, n: u64, to: impl Iterator<Item = Piece<'a>>) -> u64 {
        match (&self.inject, self.token.unregistered()) {
            (Some(_), _) => mem::store(self.injected(), to),
            (None, Some(memory)) => {
                return mem::copy_from_task(memory.addr.wrapping_add(self.done), to) as u64;
            }
            (None, None) => mem::copy(local(&self.token, self.done, n), to),
        }
        n
    }

    /// Copies the next `n` bytes from `from`, as [`TxOp::copy_to`] does in the other direction.
    pub(super) fn copy_from<'a>(&self, n: u64, from: impl Iterator<Item = Piece<'a>>) -> u64 {
        match self.token.unregistered() {
            Some(memory) => mem::copy_to_task(from, memory.addr.wrapping_add(self.done)) as u64,
            None => {
                mem::copy(from, local(&self.token, self.done, n));
                n
            }
        }
    }
}

impl<E: Owner> DataPath<E> {
    /// Posts any operation but a receive. The caller is inside the gate.
    pub(super) fn post_send(
        endpoint: &Arc<E>,
        op: &OpDesc<'_>,
        token: OpToken,
    ) -> Result<(), Refused> {
        let this = endpoint.path();
        let op_ = TxOp::new(op, token);
        {
            let mut tx = this.tx.lock();
            if !this.scheduler.state().is_open() {
                return Err((enotconn(), op_.token));
            }
            if this.used.load(Ordering::Acquire) >= this.tx_size {
                return Err((EAGAIN, op_.token));
            }
            if this.scheduler.apply(Event::Post).is_none() {
                if let Err(op) = tx.waiting.push(op_) {
                    return Err((EAGAIN, op.token));
                }
                this.used.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            this.used.fetch_add(1, Ordering::Relaxed);
        }
        Self::run(endpoint, Some(op_), &mut Budget::caller(op.may_sleep));
        Ok(())
    }

    /// Completes an operation with a positive errno or 0.
    pub(super) fn complete(&self, place: &mut Option<TxOp>, err: u32) {
        let Some(op) = place.take() else { return };
        self.mark_used(&op);
        let TxOp { token, .. } = op;
        // Before the completion, because the consumer may post again as soon as it sees the
        // completion.
        self.used.fetch_sub(1, Ordering::Release);
        token.complete(Outcome {
            err,
            prov_errno: errno::code(err),
            ..Outcome::default()
        });
        if cfg!(kfabric_seed_bug = "pmem-early-answer") {
            mem::fence_durable();
        }
    }

    /// Marks a claimed single-use key as used.
    pub(super) fn mark_used(&self, op: &TxOp) {
        if op.claimed {
            let over = |window: &Window| window.over.store(true, Ordering::Release);
            let _ = self.table.with(op.key, over);
        }
    }

    /// Puts an operation back to the front of the send queue.
    pub(super) fn put_back(&self, place: &mut Option<TxOp>) {
        let Some(op) = place.take() else { return };
        let lost = self.tx.lock().waiting.push_front(op);
        // Cannot fail: the operation had a place before. A failure would cancel the operation.
        drop(lost);
    }
}
