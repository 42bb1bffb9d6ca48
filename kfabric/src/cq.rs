// SPDX-License-Identifier: GPL-2.0
//! Completion queues (`fi_cq(3)`).
//!
//! Room for a completion is reserved before its operation is accepted (P9); the accounting is
//! [`crate::pure::cqring`]. Entries lie in a ring that a program maps and reads without a call; a
//! consumer in the kernel reads the same ring through [`Cq::read`].

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    fabric::Domain,
    new_irqlock,
    object::{
        Children,
        Held,
        Parent, //
    },
    pure::cqring::Account,
    sys::{
        ring::RingMem,
        wait::WaitQueue,
        IrqLock, //
    },
    uapi::*,
};

/// Entries of a queue that did not say.
const DEFAULT_DEPTH: u32 = 1024;

/// Told when an entry was added. Runs in any context and must not sleep. It may be called inside
/// [`Endpoint::post`](crate::ep::Endpoint::post), by whoever posts on either end of a connection: it
/// takes no lock that is held around that.
///
/// The queue drops it when the last user of the queue lets go, which may be a little after
/// [`Cq::close`]: a module waits for its handlers' `Drop` before it unloads.
pub trait CqHandler: Send + Sync {
    /// At least one entry may be waiting.
    fn completed(&self);

    /// As above, in a task that holds no lock, where it may sleep. Nothing else of the endpoint
    /// completes until it returns, and who closes that waits for it: it does not do so itself.
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
    /// Held while an entry is written: there is one writer at a time.
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

impl Cq {
    /// Opens a queue of at least `depth` entries (0: 1024), in `KFI_CQ_FORMAT_*`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such format, or deeper than `KFI_CQ_SIZE_MAX`.
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
        // Before anything is made: it may be closing.
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

    /// Its domain.
    pub fn domain(&self) -> &Arc<Domain> {
        self.domain.arc()
    }

    /// Entries of the ring.
    pub fn entries(&self) -> u32 {
        self.account.capacity()
    }

    pub(crate) fn ring(&self) -> &RingMem {
        &self.ring
    }

    pub(crate) fn wait(&self) -> &WaitQueue {
        &self.wait
    }

    /// Promises room for one entry. Any context. Compiled once.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: full.
    #[inline(never)]
    pub(crate) fn reserve(&self) -> Result {
        self.account.reserve(self.ring.tail()).map_err(|_| EAGAIN)
    }

    /// Gives back a promise that no entry came of. Compiled once.
    #[inline(never)]
    pub(crate) fn unreserve(&self) {
        self.account.unreserve();
    }

    /// Writes the entry that was promised, of which only what the format has is left. Any context.
    /// `may_sleep`: in a task that holds no lock.
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

    /// Entries waiting.
    pub fn waiting(&self) -> u32 {
        // A tail that lies reads as "look": the program finds out by itself.
        self.account.unread(self.ring.tail()).unwrap_or(1)
    }

    /// Has a program look, though there may be no entry. Any context.
    pub(crate) fn alarm(&self) {
        self.ring.set_alarm();
        self.wait.wake_all();
    }

    /// Takes up to `out.len()` entries; for a consumer in the kernel. One reader at a time.
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
        // CAST: As above.
        self.ring.set_tail(tail.wrapping_add(count as u32));
        count
    }

    /// Hands up to `count` entries to `each`, the oldest first, until it does not take one, which
    /// stays. How many it took. For the reader.
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

    /// The oldest entry, which stays. For the reader.
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

    /// Closes; `EBUSY` while an endpoint uses it.
    pub fn close(&self) -> Result {
        self.children.close()?;
        self.domain.release();
        self.wait.wake_all();
        Ok(())
    }
}
