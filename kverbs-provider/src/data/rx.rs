// SPDX-License-Identifier: GPL-2.0
//! The receive side of a data path: posting and completing receives.

use core::cell::Cell;
use kernel::{
    alloc::flags::__GFP_NOWARN,
    prelude::*, //
};

use super::{
    all_free,
    local,
    DataPath,
    Kept,
    Owner,
    Refused, //
};
use crate::{
    errno,
    ib::{
        qp::QueuePair,
        wr::{
            SgeList,
            SgeRoom,
            Wc, //
        }, //
    }, //
};
use kfabric::{
    base::errno::enotconn,
    ep::OpToken,
    op::Outcome, //
};

/// State of the receive side.
pub(super) struct Rx<H: Owner> {
    pub(super) qp: Option<QueuePair<H>>,
    /// True if consumers' handlers may sleep.
    pub(super) may_sleep: bool,
    pub(super) slots: KVVec<Option<Kept>>,
    free: KVVec<u32>,
}

impl<H: Owner> Rx<H> {
    /// Allocates `n` slots.
    pub(super) fn new(n: u32) -> Result<Self> {
        // The application chose the size, so a failure to allocate is not logged.
        let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
        let mut slots = KVVec::with_capacity(n as usize, flags)?;
        for _ in 0..n {
            slots.push(None, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self {
            qp: None,
            may_sleep: false,
            slots,
            free: all_free(n)?,
        })
    }
}

impl<H: Owner> DataPath<H> {
    /// Posts a receive.
    pub(super) fn post_recv(&self, owner: &H, token: OpToken) -> Result<(), Refused> {
        let mut room = SgeRoom::new();
        let mut sges = SgeList::new(&mut room);
        match local::gather(owner.group(), &token, self.size.sge, &mut sges) {
            Ok(n) if n <= self.size.sge => {}
            Ok(_) => return Err((EMSGSIZE, token)),
            Err(e) => return Err((e, token)),
        }
        let mut guard = self.rx.lock();
        let rx = &mut *guard;
        let Some(qp) = &rx.qp else {
            return Err((enotconn(), token));
        };
        let Some(slot) = rx.free.pop() else {
            return Err((EAGAIN, token));
        };
        if qp.post_recv(slot, sges.get()).is_err() {
            let _ = rx.free.push_within_capacity(slot);
            return Err((enotconn(), token));
        }
        // A completion of this receive waits for the lock.
        let place = &mut rx.slots[slot as usize];
        *place = None;
        *place = Some(Cell::new(token));
        Ok(())
    }

    /// Handles the completion of a receive. Returns the errno with which the connection must end,
    /// if it must.
    ///
    /// Context: process if the queue pair's handlers may sleep, otherwise any. Locking: none held.
    pub(crate) fn received(&self, slot: u32, wc: &Wc) -> Option<u32> {
        let mut guard = self.rx.lock();
        let rx = &mut *guard;
        let token = rx.slots.get_mut(slot as usize)?.take()?.into_inner();
        let _ = rx.free.push_within_capacity(slot);
        let may_sleep = rx.may_sleep;
        drop(guard);
        let outcome = Outcome {
            err: errno::of_receive(wc.status),
            prov_errno: wc.status,
            len: u64::from(wc.byte_len),
            // A verbs completion does not tell the length of a message that is too long.
            olen: 0,
            imm: wc.imm,
            remote_write: wc.remote_write,
        };
        token.complete_where(outcome, may_sleep);
        self.fatal_unless_ended(wc.status)
    }
}
