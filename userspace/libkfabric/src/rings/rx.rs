// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receive side: kept receives, and messages that the peer sent.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use kfabric_pure::pipe::{Piece, Receiver, HEAD};
use kfabric_uapi as abi;
use kfabric_uapi::CqEntry;

use super::message::{Asked, Receive};
use super::queue::Pushed;
use super::{lock, Posted, Rings, LOST, NONE};
use crate::errno::Errno;
use crate::sys::{Link, DATA};

/// The receive side.
pub(super) struct Rx {
    pub(super) receives: VecDeque<Receive>,
    pub(super) pipe: Receiver,
    /// No more receives are accepted, and none is queued.
    pub(super) over: bool,
}

impl Rings {
    /// Posts the kept receives to the kernel, in order. Receives that the kernel refuses with
    /// `EAGAIN` stay for the next attempt. Returns whether a waiter must be woken.
    pub(super) fn hand_over(&self, rx: &mut Rx) -> bool {
        let mut pushed = false;
        while let Some(receive) = rx.receives.pop_front() {
            match self.submit(&receive.entry()) {
                Ok(_) => self.release(true),
                Err(e) if e.errno() == Some(Errno::EAGAIN) => {
                    rx.receives.push_front(receive);
                    break;
                }
                Err(_) => pushed |= self.fail_rx(&receive, libc::ECANCELED, 0),
            }
        }
        pushed
    }

    /// Completes a receive; its place in the completion queue was reserved. `piece` is the last
    /// piece of the received message. Returns whether a waiter must be woken.
    fn complete_rx(&self, receive: &Receive, piece: &Piece) -> bool {
        let Some(bound) = self.rx_queue.get() else {
            return false;
        };
        if !receive.wanted {
            bound.cq.direct.release();
            return false;
        }
        let (mut flags, mut data) = (abi::KFI_MSG | abi::KFI_RECV, 0);
        if piece.written {
            flags = abi::KFI_RMA | abi::KFI_REMOTE_WRITE;
        }
        if let Some(value) = piece.data {
            flags |= abi::KFI_REMOTE_CQ_DATA;
            data = u64::from(value);
        }
        bound.cq.push(CqEntry {
            context: receive.context,
            flags,
            len: piece.total,
            buf: receive.offset(),
            data,
            ep: self.id.handle,
            ..CqEntry::default()
        })
    }

    /// As [`Rings::complete_rx`], for a receive that fails with a positive errno. `olen` bytes of
    /// the message did not fit.
    pub(super) fn fail_rx(&self, receive: &Receive, err: i32, olen: u64) -> bool {
        let Some(bound) = self.rx_queue.get() else {
            return false;
        };
        bound.cq.push(CqEntry {
            context: receive.context,
            flags: abi::KFI_MSG | abi::KFI_RECV,
            buf: receive.offset(),
            // CAST: A positive errno.
            err: err.unsigned_abs(),
            prov_errno: crate::provider_code::wc_status(err),
            ep: self.id.handle,
            olen,
            ..CqEntry::default()
        })
    }

    /// Takes messages out while receives are posted for them. Stops after about one ring's size of
    /// bytes (`DATA`), so that a busy peer cannot hold the caller here.
    pub(super) fn take(&self, link: &Link, rx: &mut Rx) -> Pushed {
        let ring = &link.theirs;
        let (mut pushed, mut more, mut took, mut why, mut olen) = (false, false, 0, None, 0);
        // Read before the ring: if the connection has ended, all that the peer sent is in the ring
        // by now. Bytes that the peer adds later are ignored.
        let ended = link.ended();
        if ended {
            rx.pipe.finish(ring);
        }
        while !rx.over {
            if took >= DATA {
                more = true;
                break;
            }
            let piece = match rx.pipe.peek(ring) {
                Ok(Some(piece)) => piece,
                Ok(None) if ended => {
                    pushed |= self.flush_rx(rx);
                    break;
                }
                Ok(None) => break,
                Err(_) => {
                    why = Some(libc::EIO);
                    break;
                }
            };
            let Some(receive) = rx.receives.front() else {
                break;
            };
            if !piece.written && piece.total > receive.len {
                why = Some(libc::EMSGSIZE);
                olen = piece.total - receive.len;
                break;
            }
            let mut whole = true;
            rx.pipe.take(ring, &piece, |at, from, len| {
                whole &= receive.store(ring, at, piece.at + u64::from(from), len);
            });
            took += (HEAD + piece.len) as usize;
            if !whole {
                why = Some(libc::EFAULT);
                break;
            }
            if piece.is_last() {
                pushed |= match receive.lost {
                    true => self.fail_rx(receive, libc::ECANCELED, 0),
                    false => self.complete_rx(receive, &piece),
                };
                rx.receives.pop_front();
            }
        }
        if let Some(err) = why {
            // The error concerns the first receive, if one is posted.
            if let Some(receive) = rx.receives.pop_front() {
                pushed |= self.fail_rx(&receive, err, olen);
            }
            ring.failed().store(err.unsigned_abs(), Ordering::Relaxed);
            pushed |= self.flush_rx(rx);
            self.end();
        } else if took != 0 && rx.pipe.wakes(ring) {
            self.wake_peer();
        }
        Pushed {
            more,
            ..Pushed::rx(pushed)
        }
    }

    pub(super) fn flush_rx(&self, rx: &mut Rx) -> bool {
        rx.over = true;
        let mut pushed = false;
        while let Some(receive) = rx.receives.pop_front() {
            pushed |= self.fail_rx(&receive, libc::ECANCELED, 0);
        }
        pushed
    }

    pub(super) fn receive(&self, asked: &Asked<'_>) -> std::result::Result<Posted, Errno> {
        let Some(bound) = self.rx_queue.get() else {
            return Ok(Posted::Kernel);
        };
        let mut rx = lock(&self.rx);
        match self.mode() {
            // Another thread has handed the receives over to the kernel since the check in `post`.
            NONE => return Ok(Posted::Kernel),
            LOST => return Err(Errno(libc::ENOTCONN)),
            _ => {}
        }
        let link = self.link.get();
        if link.is_some_and(Link::ended) {
            // The ring may still hold messages that were sent before the connection ended.
            if let Some(link) = link {
                self.take(link, &mut rx);
            }
        }
        if rx.over {
            return Err(Errno(libc::ENOTCONN));
        }
        if rx.receives.len() >= self.size.1 as usize {
            return Err(Errno::EAGAIN);
        }
        bound.cq.reserve()?;
        rx.receives
            .push_back(asked.receive(bound.wants(asked.flags())));
        let pushed = link
            .filter(|link| rx.pipe.has_some(&link.theirs))
            .map_or_else(Pushed::default, |link| self.take(link, &mut rx));
        drop(rx);
        self.alert(pushed, None);
        Ok(Posted::Here)
    }

    /// Cancels one receive with this context; `None` if the caller must cancel it in the kernel.
    pub(crate) fn cancel(&self, context: u64) -> Option<std::result::Result<(), Errno>> {
        let mut rx = lock(&self.rx);
        if self.mode() == NONE {
            return None;
        }
        // A message may have been copied into the first receive in part: that one is not cancelled.
        let begun = usize::from(rx.pipe.has_begun());
        let found = rx
            .receives
            .iter()
            .skip(begun)
            .position(|receive| receive.context == context);
        let Some(receive) = found.and_then(|at| rx.receives.remove(begun + at)) else {
            if self.is_owed() {
                return None;
            }
            return Some(Err(Errno(libc::ENOENT)));
        };
        let pushed = Pushed::rx(self.fail_rx(&receive, libc::ECANCELED, 0));
        drop(rx);
        self.alert(pushed, None);
        Some(Ok(()))
    }
}
