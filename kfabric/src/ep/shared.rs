// SPDX-License-Identifier: GPL-2.0
//! The part of an endpoint that its operations and the provider's events use: the connection's state,
//! and the accounting of completions.

use core::sync::atomic::{
    AtomicU32,
    AtomicU64,
    Ordering, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        SetOnce, //
    }, //
};

use crate::{
    base::parent::Held,
    objects::{
        cntr::Cntr,
        cq::Cq,
        eq::{
            Eq,
            Event, //
        },
    },
    op::OpKind,
    provider::{
        ring_pair::Offer,
        EndpointSink, //
    },
    uapi::*,
};

/// A bound completion queue.
pub(super) struct BoundCq {
    pub(super) cq: Held<Cq>,
    pub(super) selective: bool,
}

/// Operations that each counter counts. Atomics and commits count as writes, fetching atomics as
/// reads.
pub(super) const CNTR_KINDS: [(u64, OpKind); 4] = [
    (KFI_SEND, OpKind::Send),
    (KFI_RECV, OpKind::Recv),
    (KFI_READ, OpKind::Read),
    (KFI_WRITE, OpKind::Write),
];

/// The part of an endpoint that operations and the provider's events use.
pub(crate) struct Shared {
    /// The program's handle; 0 for a consumer in the kernel.
    pub(super) handle: AtomicU64,
    pub(super) context: u64,
    pub(super) state: AtomicU32,
    pub(super) tx: SetOnce<BoundCq>,
    pub(super) rx: SetOnce<BoundCq>,
    pub(super) cntrs: [SetOnce<Held<Cntr>>; 4],
    pub(super) eq: SetOnce<Held<Eq>>,
    pub(super) outstanding: AtomicU32,
    pub(super) completed: AtomicU64,
    /// Set for an endpoint of a program that supports rings.
    pub(super) rings: Option<Arc<Offer>>,
}

impl Shared {
    pub(super) fn source(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    #[inline]
    pub(super) fn cq(&self, kind: OpKind) -> Option<&BoundCq> {
        match kind {
            OpKind::Recv => self.rx.as_ref(),
            _ => self.tx.as_ref(),
        }
    }

    pub(super) fn cntr(&self, kind: OpKind) -> Option<&Held<Cntr>> {
        let kind = match kind {
            OpKind::Atomic | OpKind::Commit => OpKind::Write,
            OpKind::Fetch => OpKind::Read,
            other => other,
        };
        CNTR_KINDS
            .iter()
            .position(|(_, k)| *k == kind)
            .and_then(|i| self.cntrs[i].as_ref())
    }

    /// Reserves the completion entry of an operation, in the queue of its kind.
    pub(super) fn reserve(&self, queue: Option<&BoundCq>) -> Result {
        if let Some(bound) = queue {
            bound.cq.reserve()?;
        }
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn unreserve(&self, kind: OpKind) {
        if let Some(bound) = self.cq(kind) {
            bound.cq.unreserve();
        }
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn finish(&self, kind: OpKind, entry: &mut CqEntry, wanted: bool, may_sleep: bool) {
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
        self.completed.fetch_add(1, Ordering::Relaxed);
        if let Some(cntr) = self.cntr(kind) {
            cntr.update(|counts| {
                if entry.err == 0 {
                    counts.value = counts.value.wrapping_add(1);
                } else {
                    counts.errors = counts.errors.wrapping_add(1);
                }
            });
        }
        if let Some(bound) = self.cq(kind) {
            if entry.err != 0 || wanted {
                entry.ep = self.handle.load(Ordering::Relaxed);
                bound.cq.push(entry, may_sleep);
            } else {
                bound.cq.unreserve();
            }
        }
    }

    pub(super) fn advance(&self, from: &[u32], to: u32) -> Result {
        self.state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                from.contains(&now).then_some(to)
            })
            .map(|_| ())
            .map_err(|_| EINVAL)
    }

    /// Moves from one state to the next and adds the event, in one step: events have the order of
    /// the states. Does nothing in any other state.
    fn step(&self, (from, to): (u32, u32), kind: u32, err: (u32, u32), data: &[u8]) {
        let Some(eq) = self.eq.as_ref() else { return };
        let mut copy = KVec::new();
        // Without memory, the event is delivered without the peer's data.
        let _ = copy.extend_from_slice(data, GFP_KERNEL_ACCOUNT);
        let (err, prov_errno) = err;
        let event = Event {
            kind,
            object: self.handle.load(Ordering::Relaxed),
            context: self.context,
            err,
            prov_errno,
            data: copy,
            request: None,
            source: self.source(),
        };
        // Before the event: if no rings were joined, their charge is returned before a program can
        // read the event.
        if let Some(rings) = &self.rings {
            rings.discard();
        }
        eq.push_owed(event, || self.advance(&[from], to).is_ok());
        if let Some(rings) = &self.rings {
            if to == KFI_STATE_DOWN {
                rings.end();
            }
            self.alarm();
        }
    }
}

impl EndpointSink for Shared {
    fn connected(&self, data: &[u8]) {
        let step = (KFI_STATE_CONNECTING, KFI_STATE_CONNECTED);
        self.step(step, KFI_CONNECTED, (0, 0), data);
    }

    fn conn_error(&self, err: u32, prov_errno: u32, data: &[u8]) {
        let step = (KFI_STATE_CONNECTING, KFI_STATE_DOWN);
        self.step(step, KFI_CONN_ERROR, (err, prov_errno), data);
    }

    fn shutdown(&self, err: u32) {
        let step = (KFI_STATE_CONNECTED, KFI_STATE_DOWN);
        self.step(step, KFI_SHUTDOWN, (err, 0), &[]);
    }

    fn rings(&self) -> Option<Arc<Offer>> {
        self.rings.clone()
    }

    fn completes_anywhere(&self) -> bool {
        let has_handler =
            |queue: &SetOnce<BoundCq>| queue.as_ref().is_some_and(|bound| bound.cq.has_handler());
        !has_handler(&self.tx) && !has_handler(&self.rx)
    }
}
