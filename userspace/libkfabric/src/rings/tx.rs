// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transmit side: messages that are copied into the ring, or wait for space in it.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use kfabric_pure::pipe::Sender;
use kfabric_uapi as abi;
use kfabric_uapi::CqEntry;

use super::message::{Asked, Message};
use super::queue::Pushed;
use super::{lock, Posted, Rings};
use crate::errno::Errno;
use crate::sys::Link;

/// The transmit side.
pub(super) struct Tx {
    /// Messages that did not fit into the ring yet, oldest first.
    pub(super) pending: VecDeque<Message>,
    pub(super) pipe: Sender,
    pub(super) over: bool,
}

impl Rings {
    /// Completes a message of `len` bytes; its place in the completion queue was reserved. Returns
    /// whether a waiter must be woken.
    fn complete_tx(&self, context: u64, len: u64, wanted: bool, err: i32) -> bool {
        let Some(bound) = self.tx_queue.get() else {
            return false;
        };
        if err == 0 && !wanted {
            bound.cq.direct.release();
            return false;
        }
        bound.cq.push(CqEntry {
            context,
            flags: abi::KFI_MSG | abi::KFI_SEND,
            len: if err == 0 { len } else { 0 },
            // CAST: Never negative: a positive errno, or 0.
            err: err.unsigned_abs(),
            prov_errno: crate::provider_code::wc_status(err),
            ep: self.id.handle,
            ..CqEntry::default()
        })
    }

    /// Puts pending messages into the ring, as many as fit. Returns whether a waiter must be woken.
    pub(super) fn give(&self, link: &Link, tx: &mut Tx) -> bool {
        if tx.over || tx.pending.is_empty() {
            return false;
        }
        if link.ended() {
            return self.flush_tx(link, tx);
        }
        let (mut pushed, mut gave, mut said) = (false, false, false);
        while let Some(message) = tx.pending.front_mut() {
            let before = message.progress();
            match message.put(&link.ours, &mut tx.pipe) {
                Ok(true) => gave = true,
                Ok(false) => {
                    gave |= message.progress() != before;
                    // A waiter may have gone to sleep while no message was pending. Set its sleep
                    // flag, then try once more: the peer may have freed space in between.
                    if said || !self.is_awaited() {
                        break;
                    }
                    said = true;
                    tx.pipe.sleep(&link.ours);
                    continue;
                }
                Err(_) => {
                    self.end();
                    return pushed | self.flush_tx(link, tx);
                }
            }
            if let Some(message) = tx.pending.pop_front() {
                pushed |= self.sent(&message);
            }
        }
        if tx.pending.is_empty() {
            self.pending.store(false, Ordering::Relaxed);
        }
        if gave && tx.pipe.wakes(&link.ours) {
            self.wake_peer();
        }
        pushed
    }

    fn sent(&self, message: &Message) -> bool {
        // The note of a write has no completion: the kernel completes the write.
        message.written.is_none()
            && self.complete_tx(message.context, message.len, message.wanted, 0)
    }

    pub(super) fn flush_tx(&self, link: &Link, tx: &mut Tx) -> bool {
        tx.over = true;
        self.pending.store(false, Ordering::Relaxed);
        let mut pushed = false;
        // If the receiver failed with `EMSGSIZE`, the first pending message is the one that was too
        // long.
        let failed = link.ours.failed().load(Ordering::Relaxed);
        let mut err = match failed == libc::EMSGSIZE.unsigned_abs() {
            true => libc::EREMOTEIO,
            false => libc::ECANCELED,
        };
        // The peer may have taken a message that waits for that alone.
        let taken = |message: &mut Message| message.is_taken(&link.ours, &mut tx.pipe);
        if tx.pending.front_mut().is_some_and(taken) {
            if let Some(message) = tx.pending.pop_front() {
                pushed |= self.sent(&message);
            }
        }
        while let Some(message) = tx.pending.pop_front() {
            if message.written.is_none() {
                pushed |= self.complete_tx(message.context, message.len, message.wanted, err);
            }
            err = libc::ECANCELED;
        }
        pushed
    }

    pub(super) fn send(&self, asked: &Asked<'_>) -> std::result::Result<Posted, Errno> {
        let Some(link) = self.connected()? else {
            return Ok(Posted::Kernel);
        };
        let bound = self.tx_queue.get();
        let wanted = bound.is_some_and(|bound| bound.wants(asked.flags()));
        let mut tx = lock(&self.tx);
        self.reserve(false)?;
        let result = match self.send_now(link, &mut tx, asked, wanted) {
            Some(pushed) => Ok(pushed),
            None => self.enter(link, &mut tx, asked.message(wanted)),
        };
        drop(tx);
        let tx = result.inspect_err(|_| self.release(false))?;
        self.alert(Pushed::tx(tx), None);
        Ok(Posted::Here)
    }

    /// Copies a message into the ring at once, if it fits. Returns whether a waiter must be woken,
    /// or `None` if [`Rings::enter`] must queue the message.
    fn send_now(&self, link: &Link, tx: &mut Tx, asked: &Asked<'_>, wanted: bool) -> Option<bool> {
        if tx.over || !tx.pending.is_empty() || asked.is_confirmed() {
            return None;
        }
        // After a protocol violation `enter` sees the violation again, and ends the connection.
        if !asked.put(&link.ours, &mut tx.pipe).is_ok_and(|all| all) {
            return None;
        }
        if tx.pipe.wakes(&link.ours) {
            self.wake_peer();
        }
        Some(self.complete_tx(asked.context(), asked.len, wanted, 0))
    }

    /// Copies a message into the ring, or queues the part that does not fit. Returns whether a waiter must
    /// be woken.
    pub(super) fn enter(
        &self,
        link: &Link,
        tx: &mut Tx,
        mut message: Message,
    ) -> std::result::Result<bool, Errno> {
        let mut pushed = self.give(link, tx);
        if tx.over {
            return Err(Errno(libc::ENOTCONN));
        }
        if !tx.pending.is_empty() {
            // A note is queued beyond the limit: its write was executed and cannot be refused.
            if message.written.is_none() && tx.pending.len() >= self.size.0 as usize {
                return Err(Errno::EAGAIN);
            }
            tx.pending.push_back(message);
            return Ok(pushed);
        }
        match message.put(&link.ours, &mut tx.pipe) {
            Ok(true) => {
                if tx.pipe.wakes(&link.ours) {
                    self.wake_peer();
                }
                pushed |= self.sent(&message);
            }
            Ok(false) => {
                let begun = message.progress() != (0, false);
                tx.pending.push_back(message);
                self.pending.store(true, Ordering::Relaxed);
                if begun && tx.pipe.wakes(&link.ours) {
                    self.wake_peer();
                }
                pushed |= self.give(link, tx);
            }
            Err(_) => {
                self.end();
                return Err(Errno(libc::ENOTCONN));
            }
        }
        Ok(pushed)
    }

    /// Returns `Ok` if every earlier message is in the ring, so that the kernel may execute the
    /// next operation. `EAGAIN` otherwise.
    pub(super) fn in_turn(&self, link: &Link) -> std::result::Result<(), Errno> {
        let mut tx = lock(&self.tx);
        let pushed = Pushed::tx(self.give(link, &mut tx));
        let turn = tx.pending.is_empty();
        drop(tx);
        self.alert(pushed, None);
        match turn {
            true => Ok(()),
            false => Err(Errno::EAGAIN),
        }
    }
}
