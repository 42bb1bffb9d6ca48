// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posting: the choice between the rings and the kernel, and operations of the kernel that keep their
//! place among the messages.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use kfabric_uapi as abi;
use kfabric_uapi::OpEntry;

use super::message::{Args, Asked, Message};
use super::queue::{probe_context, Pushed};
use super::{lock, Rings, NONE, SHARED, UNKNOWN};
use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::op::{submit, Local};
use crate::sys::Link;

/// Where an operation was accepted.
pub(crate) enum Posted {
    /// Accepted here: no system call is needed.
    Here,
    /// The caller posts the operation to the kernel.
    Kernel,
}

impl Rings {
    pub(super) fn submit(&self, entry: &OpEntry) -> Result<Option<Errno>> {
        submit(self.dev(), self.id, std::slice::from_ref(entry)).map(|submitted| submitted.refused)
    }

    /// Posts an operation, or returns [`Posted::Kernel`] if the caller must post it to the kernel.
    ///
    /// # Errors
    ///
    /// The conditions of [`Endpoint::post`](crate::Endpoint::post).
    pub(crate) fn post(
        &self,
        entry: &OpEntry,
        local: &Local<'_>,
    ) -> std::result::Result<Posted, Errno> {
        self.retried(|| self.try_post(entry, local))
    }

    /// As [`Rings::post`], for a send or a receive without an entry.
    #[inline]
    pub(crate) fn post_message(&self, args: Args<'_>) -> std::result::Result<Posted, Errno> {
        self.retried(|| self.message(args))
    }

    /// Makes `attempt`, and once more after moving messages if there is no space for another one.
    #[inline]
    fn retried(
        &self,
        attempt: impl Fn() -> std::result::Result<Posted, Errno>,
    ) -> std::result::Result<Posted, Errno> {
        match attempt() {
            Err(Errno::EAGAIN) if self.mode() == SHARED && self.pending.load(Ordering::Relaxed) => {
            }
            outcome => return outcome,
        }
        // Earlier messages wait until the peer takes messages out. The peer may belong to this
        // thread, or wait for this end in the same way, and the caller may post again without reading
        // a queue.
        self.domain.advance();
        attempt()
    }

    #[inline]
    fn message(&self, args: Args<'_>) -> std::result::Result<Posted, Errno> {
        if self.mode() == NONE {
            return Ok(Posted::Kernel);
        }
        let asked = Asked::new(&self.domain, args, self.iov_limit)?;
        if !self.enabled.load(Ordering::Acquire) {
            return Err(Errno::EINVAL);
        }
        match args.receives {
            true => self.receive(&asked),
            false => self.send(&asked),
        }
    }

    fn try_post(&self, entry: &OpEntry, local: &Local<'_>) -> std::result::Result<Posted, Errno> {
        if self.mode() == NONE {
            return Ok(Posted::Kernel);
        }
        match entry.op {
            abi::KFI_OP_RECV | abi::KFI_OP_SEND => self.message(Args::of(entry, local)?),
            abi::KFI_OP_WRITE | abi::KFI_OP_COMMIT
                if entry.flags & abi::KFI_REMOTE_CQ_DATA != 0 =>
            {
                if !self.enabled.load(Ordering::Acquire) {
                    return Err(Errno::EINVAL);
                }
                self.write_with_data(entry)
            }
            _ => self.one_sided(entry),
        }
    }

    /// Returns the rings for an operation that sends; `None` if the kernel must execute the
    /// operation.
    pub(super) fn connected(&self) -> std::result::Result<Option<&Link>, Errno> {
        if self.mode() == UNKNOWN {
            let pushed = self.learn();
            self.alert(pushed, None);
        }
        match self.mode() {
            NONE => Ok(None),
            // The kernel sends already: only receives are still being handed over.
            UNKNOWN if self.is_owed() => Ok(None),
            SHARED => match self.link.get() {
                Some(link) if !link.ended() => Ok(Some(link)),
                _ => Err(Errno(libc::ENOTCONN)),
            },
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// Posts a one-sided operation to the kernel. `order` is held, and the kernel has executed the
    /// operation when this returns.
    fn one_sided(&self, entry: &OpEntry) -> std::result::Result<Posted, Errno> {
        // Without usable rings the kernel executes or refuses the operation.
        let Ok(Some(link)) = self.connected() else {
            return Ok(Posted::Kernel);
        };
        let _order = lock(&self.order);
        self.in_turn(link)?;
        self.submit(entry)
            .map_err(|e| e.errno().unwrap_or(Errno::EIO))?;
        Ok(Posted::Here)
    }

    /// Posts the write to the kernel, then puts a note of it into the ring.
    fn write_with_data(&self, entry: &OpEntry) -> std::result::Result<Posted, Errno> {
        let Some(link) = self.connected()? else {
            return Ok(Posted::Kernel);
        };
        // If the target's memory is not persistent, the write fails and the connection stays, so the
        // probe below would succeed and the note would claim durable bytes.
        if entry.flags & abi::KFI_COMMIT_COMPLETE != 0 || entry.op == abi::KFI_OP_COMMIT {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let data = u32::try_from(entry.data).map_err(|_| Errno::EINVAL)?;
        let mut write = *entry;
        write.flags &= !abi::KFI_REMOTE_CQ_DATA;
        write.data = 0;
        // An empty write: the kernel refuses it if the write before it failed.
        let probe = OpEntry {
            op: abi::KFI_OP_WRITE,
            flags: abi::KFI_INJECT,
            context: probe_context(),
            ..OpEntry::default()
        };
        let _order = lock(&self.order);
        self.in_turn(link)?;
        let submit = |entries: &[OpEntry]| submit(self.dev(), self.id, entries);
        let errno = |e: Error| e.errno().unwrap_or(Errno::EIO);
        let mut refused = submit(&[write, probe]).map_err(errno)?.refused;
        // Retried for 0.5 s in all (0 + 1 + … + 999 µs), while the kernel's queues are full.
        for pause in (0..1000).map(Duration::from_micros) {
            if refused != Some(Errno::EAGAIN) {
                break;
            }
            // Unread entries may fill the kernel's ring: move them to the library's queue.
            if self.tx_queue.get().is_some_and(|bound| bound.cq.fetch()) {
                self.wake_self();
            }
            std::thread::sleep(pause);
            refused = submit(&[probe]).err().map(errno);
        }
        if refused == Some(Errno::EAGAIN) {
            // The outcome of the write stays unknown, so no later operation may follow it.
            self.end();
        }
        if refused.is_some() {
            // The kernel accepted the write; its own completion carries the failure.
            return Ok(Posted::Here);
        }
        let len = match entry.flags & abi::KFI_INJECT {
            0 => entry
                .iov
                .iter()
                .take(entry.iov_count as usize)
                .map(|iov| iov.len)
                .sum(),
            _ => entry.inject_len,
        };
        let note = Message::note(len, data);
        // A failure means that the connection has ended: no peer is left to read the note.
        let entered = self.enter(link, &mut lock(&self.tx), note);
        let pushed = Pushed::tx(entered.unwrap_or(false));
        self.alert(pushed, None);
        Ok(Posted::Here)
    }
}
