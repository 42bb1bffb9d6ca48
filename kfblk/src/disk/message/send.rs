// SPDX-License-Identifier: GPL-2.0
//! Sends requests: assigns the key, encodes the message, and posts it.

use core::sync::atomic::Ordering;
use kernel::prelude::*;
use kfabric::{
    base::name::name_str,
    ep::LocalMem,
    key::{
        Assignment,
        Failures,
        Key, //
    },
    op::OpKind,
    provider::KeyValue,
    pure::blk::device::{
        Carry,
        Op,
        Request,
        INLINE_MAX,
        REQUEST, //
    },
    sys::NoIo,
    uapi::{
        KFI_REMOTE_READ,
        KFI_REMOTE_WRITE, //
    },
};

use super::{
    keys::KeySlot,
    state::RequestState,
    Io,
    INLINE,
    STRIDE,
    UNMADE,
    WENT, //
};
use crate::{
    buffer,
    disk::request::retried,
    errno,
    sys::{
        Block,
        Log, //
    }, //
};

/// Time for which no key can be assigned before that is logged, in milliseconds.
const SHORT_MS: u64 = 10_000;

impl Io {
    /// Sends a request. May sleep.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the request cannot be sent now.
    /// - `EREMOTEIO` if the request cannot be sent now and may itself be the cause.
    /// - `ESTALE` if only another connection can send the request.
    /// - `EIO` if the request can never be sent.
    pub(super) fn send(&self, tag: u32, op: Op, flags: u8, pos: u64, len: u32) -> Result {
        let (block, queue) = *self.queue.as_ref().ok_or(EAGAIN)?;
        let slot = self.slots.get(tag as usize).ok_or(EIO)?;
        // Record the effect before the target can receive the request.
        let effect = self.unflushed.as_ref().ok_or(EAGAIN)?.effect(op, flags);
        let large = op.moves() && len > INLINE_MAX;
        let behind = op == Op::Write && !large;
        let mut keyed = large;
        let carry = if large {
            // SAFETY: The tag's request is in flight, so its pages stay.
            let pieces = unsafe { block.pieces(queue, tag) };
            if pieces.iter().map(|piece| u64::from(piece.len)).sum::<u64>() != len.into() {
                return Err(EIO);
            }
            // SAFETY: The tag's last request ended, or its send failed, only after its key was
            // revoked. The pages stay until this request ends, before which the region is emptied.
            unsafe { slot.fill(pieces) }.map_err(|_| EIO)?;
            match self.assign(tag, slot, op, len) {
                Ok(carry) => carry,
                Err(e) => {
                    // SAFETY: The assignment failed, so the slot has no key.
                    unsafe { slot.empty() };
                    keyed = false;
                    self.spare(block, queue, tag, op, e)?
                }
            }
        } else {
            Carry::Message
        };
        if behind {
            let body = self.bodies.piece(tag as usize * INLINE, len).ok_or(EIO)?;
            // SAFETY: The tag's request is in flight. Only this tag uses this part of `bodies`.
            unsafe { block.copy(queue, tag, &[body], false) };
        }
        let (number, alone) = {
            let mut states = self.states.lock();
            let alone = !states.iter().any(|state| state.busy);
            let state = states.get_mut(tag as usize).ok_or(EIO)?;
            *state = RequestState {
                busy: true,
                spare: large && !keyed,
                times: state.times.wrapping_add(1),
                reads: op == Op::Read,
                keyed,
                len,
                effect,
                answered: None,
            };
            ((u32::from(state.times) << 16) | tag, alone)
        };
        let request = Request {
            op,
            flags,
            number,
            pos,
            len,
            carry,
            alone,
        };
        let Err(e) = self.post(tag, &request, behind) else {
            return Ok(());
        };
        // A malicious target may have answered a request that it has not received. Then that answer
        // ends the request, and the tag may already belong to another request.
        let ours = |state: &&mut RequestState| {
            let same = u32::from(state.times) == number >> 16;
            state.busy && same && state.answered.is_none()
        };
        match self.states.lock().get_mut(tag as usize).filter(ours) {
            Some(state) => state.busy = false,
            None => return Ok(()),
        }
        if large && !keyed {
            self.spare.put();
        } else if let Carry::Key { key, addr } = carry {
            let _no_io = NoIo::begin();
            // Revokes even if the task is killed: the tag gets no other key before this one is
            // revoked.
            slot.key.take_back(&KeyValue {
                key,
                remote_addr: addr,
            });
            // SAFETY: `take_back` has waited until the key is revoked.
            unsafe { slot.empty() };
        }
        Err(e)
    }

    /// Reserves the spare for a request for which assigning a key has failed with `e`.
    ///
    /// # Errors
    ///
    /// - `e` if `e` is not `EAGAIN`.
    /// - `e` if another request uses the spare.
    fn spare(&self, block: Block, queue: u32, tag: u32, op: Op, e: Error) -> Result<Carry> {
        if e != EAGAIN {
            return Err(e);
        }
        let carry = self.spare.take(op).ok_or(e)?;
        if op == Op::Write {
            // SAFETY: The tag's request is in flight, and the spare is reserved for it.
            unsafe { block.copy(queue, tag, self.spare.data.pieces(), false) };
        }
        Ok(carry)
    }

    fn assign(&self, tag: u32, slot: &KeySlot, op: Op, len: u32) -> Result<Carry> {
        // If the slot has nothing in reserve, the assignment allocates. Reclaim must not wait for
        // this disk.
        let _no_io = NoIo::begin();
        let mut one = [Assignment {
            key: &slot.key,
            offset: 0,
            len: len.into(),
            access: match op {
                Op::Read => KFI_REMOTE_WRITE,
                _ => KFI_REMOTE_READ,
            },
            once: false,
            value: KeyValue::NONE,
        }];
        self.unmade.fetch_and(!(1 << tag), Ordering::AcqRel);
        // If the assignment fails later, the target's access fails and ends the connection. The
        // failure is reported on `cq`, so that this request is blamed for the disconnect.
        let failures = Failures {
            cq: &self.cq,
            context: UNMADE | u64::from(tag),
            first: 0,
        };
        Key::assign_ordered(&mut one, Some(failures)).map_err(|(_, e)| self.unassigned(e))?;
        if self.short.load(Ordering::Relaxed) != 0 {
            self.short.store(0, Ordering::Relaxed);
            self.told.store(false, Ordering::Relaxed);
        }
        let [one] = one;
        Ok(Carry::Key {
            key: one.value.key,
            addr: one.value.remote_addr,
        })
    }

    /// Returns the error of a request for which assigning a key has failed with `e`.
    ///
    /// - `EAGAIN` if the cause may pass. An exhausted device may get resources back from other
    ///   users.
    /// - `ESTALE` if the endpoint has exhausted its key values. The next connection's endpoint has
    ///   new values.
    /// - `EREMOTEIO` if the request may be the cause.
    /// - `EIO` if the request has more pages than a key can cover.
    fn unassigned(&self, e: Error) -> Error {
        // The request has more pages than a key can cover.
        if e == EINVAL || e == EMSGSIZE {
            return EIO;
        }
        let passes = [
            EAGAIN,
            ENOMEM,
            EBUSY,
            EINTR,
            ENOENT,
            ETIMEDOUT,
            errno::enotconn(),
        ];
        if e != ENOSPC && !passes.contains(&e) {
            return errno::eremoteio();
        }
        if e == ENOSPC && self.ep.keys_exhausted() {
            return errno::estale();
        }
        if e == ENOSPC || e == ENOMEM {
            self.runs_short();
        }
        EAGAIN
    }

    /// Records that the device, or memory, is exhausted. Logs a long shortage once.
    fn runs_short(&self) {
        // CAST: The clock is monotonic, so the difference is not negative.
        let now = (self.since.elapsed().as_millis() as u64).max(1);
        let first = self
            .short
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed)
            .err()
            .unwrap_or(now);
        let long = now.saturating_sub(first) > SHORT_MS;
        if !long || self.told.swap(true, Ordering::Relaxed) || !Log::Disk.may() {
            return;
        }
        if let Some((block, _)) = self.queue.as_ref() {
            let mut name = [0; 32];
            block.name(&mut name);
            pr_warn!(
                "{}: no memory or device resources for keys for {} s, requests go one by one\n",
                name_str(&name).unwrap_or_default(),
                SHORT_MS / 1000
            );
        }
    }

    fn post(&self, tag: u32, request: &Request, behind: bool) -> Result {
        let head = request.write();
        let context = WENT | u64::from(tag);
        let posted = if behind {
            let at = tag as usize * STRIDE;
            self.heads.write(at, &head);
            let mut segs = LocalMem::new();
            self.heads.add(&mut segs, OpKind::Send, at, REQUEST)?;
            let (at, len) = (tag as usize * INLINE, request.len as usize);
            self.bodies.add(&mut segs, OpKind::Send, at, len)?;
            buffer::post(&self.ep, OpKind::Send, context, segs)
        } else {
            buffer::inject(&self.ep, context, &head, None)
        };
        posted.map_err(retried)
    }
}
