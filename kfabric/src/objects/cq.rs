// SPDX-License-Identifier: GPL-2.0
//! Completion queues (`fi_cq(3)`).
//!
//! The entry of a completion is reserved before its operation is accepted (P9); the accounting is
//! [`crate::pure::cqring`]. Entries lie in a ring that a program maps and reads without a system
//! call. A kernel consumer reads the same ring through [`Cq::read`].

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::domain::Domain;
use crate::{
    base::parent::{
        Children,
        Held,
        Parent, //
    },
    new_irqlock,
    provider::ring_pair::Alarm,
    pure::cqring::Account,
    sys::{
        ring::RingMem,
        wait::WaitQueue,
        IrqLock, //
    },
    uapi::*,
};

/// Default number of entries.
const DEFAULT_DEPTH: u32 = 1024;

/// Handler that the queue calls after an entry was added. Runs in any context and must not sleep.
/// The queue may call it inside [`Endpoint::post`](crate::ep::Endpoint::post) of either end of a
/// connection. So the handler takes no lock that a poster holds during `post`.
///
/// The queue drops the handler when the last reference to the queue is dropped, which may be after
/// [`Cq::close`]. A module waits for its handlers' `Drop` before it unloads.
pub trait CqHandler: Send + Sync {
    /// Called when at least one entry may be waiting.
    fn completed(&self);

    /// As [`completed`](Self::completed), in a task that holds no lock, where the handler may
    /// sleep. No other operation of the endpoint completes until it returns, except durable writes,
    /// which may have a task of their own. A close of the endpoint waits for the return, so the
    /// handler does not close the endpoint. It may close another one, unless a handler of that one may
    /// wait for this handler, as by closing this endpoint.
    fn completed_sleeping(&self) {
        self.completed();
    }
}

/// A completion queue.
#[pin_data]
pub struct Cq {
    ring: RingMem,
    account: Account,
    format: u32,
    /// Held while an entry is written, so there is one writer at a time.
    #[pin]
    writer: IrqLock<()>,
    #[pin]
    wait: WaitQueue,
    handler: Option<Arc<dyn CqHandler>>,
    children: Children,
    domain: Held<Domain>,
}

impl Parent for Cq {
    fn children(&self) -> &Children {
        &self.children
    }
}

impl Alarm for Cq {
    fn alarm(&self) {
        self.ring.set_alarm();
        self.wait.wake_all();
    }
}

impl Cq {
    /// Opens a queue of at least `depth` entries (0: 1024), in `KFI_CQ_FORMAT_*`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no such format, or `depth` exceeds `KFI_CQ_SIZE_MAX`.
    pub fn open(
        domain: &Arc<Domain>,
        depth: u32,
        format: u32,
        handler: Option<Arc<dyn CqHandler>>,
    ) -> Result<Arc<Self>> {
        let depth = if depth == 0 { DEFAULT_DEPTH } else { depth };
        let format = match format {
            0 => KFI_CQ_FORMAT_CONTEXT,
            KFI_CQ_FORMAT_CONTEXT | KFI_CQ_FORMAT_MSG | KFI_CQ_FORMAT_DATA => format,
            _ => return Err(EINVAL),
        };
        if depth > KFI_CQ_SIZE_MAX {
            return Err(EINVAL);
        }
        let account = Account::at_least(depth).ok_or(EINVAL)?;
        // Before the allocation: the domain may be closing.
        let domain = Held::new(domain)?;
        let ring = RingMem::new(account.capacity())?;
        Arc::pin_init(
            pin_init!(Self {
                ring,
                account,
                format,
                writer <- new_irqlock!((), "kfabric_cq"),
                wait <- WaitQueue::new(),
                handler,
                children: Children::new(),
                domain,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The queue's domain.
    pub fn domain(&self) -> &Arc<Domain> {
        self.domain.arc()
    }

    /// Number of entries in the ring.
    pub fn entries(&self) -> u32 {
        self.account.capacity()
    }

    /// Returns whether a handler is called for each entry.
    pub(crate) fn has_handler(&self) -> bool {
        self.handler.is_some()
    }

    pub(crate) fn ring(&self) -> &RingMem {
        &self.ring
    }

    pub(crate) fn wait(&self) -> &WaitQueue {
        &self.wait
    }

    /// Reserves one entry. Context: any. Compiled once.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the queue is full.
    #[inline(never)]
    pub(crate) fn reserve(&self) -> Result {
        self.account.reserve(self.ring.tail()).map_err(|_| EAGAIN)
    }

    /// Returns a reserved entry that was not used. Compiled once.
    #[inline(never)]
    pub(crate) fn unreserve(&self) {
        self.account.unreserve();
    }

    /// Writes a reserved entry, after clearing the fields that the format lacks. Context: any. With
    /// `may_sleep` the caller is a task that holds no lock.
    pub(crate) fn push(&self, entry: &mut CqEntry, may_sleep: bool) {
        #[cfg(kfabric_seed_bug = "lost-completion")]
        if entry.err == kernel::bindings::ECANCELED {
            return self.unreserve();
        }
        if entry.err == 0 {
            if self.format == KFI_CQ_FORMAT_CONTEXT {
                entry.flags = 0;
                entry.len = 0;
            }
            if self.format != KFI_CQ_FORMAT_DATA {
                entry.buf = 0;
                entry.data = 0;
            }
        }
        {
            let _writer = self.writer.lock();
            self.ring.write(self.account.slot(), entry);
            self.ring.set_head(self.account.advance());
        }
        match &self.handler {
            Some(handler) if may_sleep => handler.completed_sleeping(),
            Some(handler) => handler.completed(),
            None => {}
        }
        self.wait.wake_all();
    }

    /// Number of entries waiting.
    pub fn waiting(&self) -> u32 {
        // A wrong tail of a program counts as one entry: the program then finds its own error.
        self.account.unread(self.ring.tail()).unwrap_or(1)
    }

    /// Reads up to `out.len()` entries, for a kernel consumer. One reader at a time.
    pub fn read(&self, out: &mut [CqEntry]) -> usize {
        let tail = self.ring.tail();
        let waiting = self.account.unread(tail).unwrap_or(0) as usize;
        let count = waiting.min(out.len());
        for (i, entry) in out[..count].iter_mut().enumerate() {
            // CAST: `i` is below the ring's size, a `u32`.
            *entry = self
                .ring
                .read(tail.wrapping_add(i as u32) & (self.entries() - 1));
        }
        // CAST: `count` is at most the ring's size, a `u32`.
        self.ring.set_tail(tail.wrapping_add(count as u32));
        count
    }

    /// Passes up to `count` entries to `each`, the oldest first. The first entry that `each`
    /// refuses stays. Returns the number of accepted entries. For the reader.
    #[inline(always)]
    pub(crate) fn read_each(&self, count: usize, mut each: impl FnMut(&CqEntry) -> bool) -> usize {
        let tail = self.ring.tail();
        let waiting = self.account.unread(tail).unwrap_or(0) as usize;
        let mut taken: u32 = 0;
        for _ in 0..waiting.min(count) {
            let entry = self.ring.read(tail.wrapping_add(taken));
            if !each(&entry) {
                break;
            }
            taken += 1;
        }
        if taken != 0 {
            self.ring.set_tail(tail.wrapping_add(taken));
        }
        taken as usize
    }

    /// Returns a copy of the oldest entry, which stays. For the reader.
    pub(crate) fn peek(&self) -> Option<CqEntry> {
        let tail = self.ring.tail();
        match self.account.unread(tail) {
            Some(waiting) if waiting != 0 => Some(self.ring.read(tail & (self.entries() - 1))),
            _ => None,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.children.is_closed()
    }

    /// Closes the queue; `EBUSY` if an endpoint uses it.
    pub fn close(&self) -> Result {
        self.children.close()?;
        self.domain.release();
        self.wait.wake_all();
        Ok(())
    }
}
