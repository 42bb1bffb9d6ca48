// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between two programs on one host, without a call ([`EndpointAttr::rings`]).
//!
//! [`EndpointAttr::rings`]: crate::EndpointAttr::rings
//!
//! An endpoint that asked for rings keeps its receives here. When it is connected it learns whether
//! there are rings, which the kernel has settled for both ends and which never changes: if not, it
//! hands the receives to the kernel, in order, and from then on all goes there. If so, a message is
//! copied into the ring and is complete, and whoever posts a receive or reads the completion queue
//! takes messages out ([`kfabric_pure::pipe`]). One-sided operations stay the kernel's, which has
//! done them when the call returns; what takes a receive of the peer's, a write with data, is
//! a write, and a note in the ring that it was made.
//!
//! Locks: `order` (posting to the kernel), then `rx` or `tx`, then what a completion queue holds.
#![forbid(unsafe_code)]

mod message;
mod queue;

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use kfabric_pure::pipe::{Piece, Receiver, Sender, HEAD};
use kfabric_uapi as abi;
use kfabric_uapi::{CqEntry, OpEntry};

use crate::completion::CqInner;
use crate::errno::Errno;
use crate::error::{ObjectId, Result};
use crate::fabric::DomainInner;
use crate::op::Local;
use crate::sys::{self, Link, DATA};
use message::{Asked, Message, Receive};
pub(crate) use queue::{Pushed, Queue};

/// Nothing is known yet.
const UNKNOWN: u8 = 0;
/// There are none: all is the kernel's.
const NONE: u8 = 1;
/// There they are.
const SHARED: u8 = 2;
/// There are some that cannot be used: the connection is over.
const LOST: u8 = 3;

/// Where a side's completions go.
struct Bound {
    cq: Arc<CqInner>,
    selective: bool,
}

impl Bound {
    fn wants(&self, flags: u64) -> bool {
        let asked = flags & abi::KFI_COMPLETION != 0;
        asked || (!self.selective && flags & abi::KFI_INJECT == 0)
    }

    fn is_awaited(&self) -> bool {
        self.cq.is_awaited()
    }
}

/// The receive side.
struct Rx {
    receives: VecDeque<Receive>,
    pipe: Receiver,
    /// No more receives, and none is left.
    over: bool,
}

/// The transmit side.
struct Tx {
    /// Messages that did not fit yet.
    pending: VecDeque<Message>,
    pipe: Sender,
    over: bool,
}

/// What an endpoint that asked for rings has here.
pub(crate) struct Rings {
    domain: Arc<DomainInner>,
    id: ObjectId,
    size: (u32, u32),
    iov_limit: u32,
    enabled: AtomicBool,
    mode: AtomicU8,
    link: OnceLock<Link>,
    rx_queue: OnceLock<Bound>,
    tx_queue: OnceLock<Bound>,
    rx: Mutex<Rx>,
    tx: Mutex<Tx>,
    /// Something is pending.
    pending: AtomicBool,
    /// There are none, and the kernel has not taken all receives yet.
    owed: AtomicBool,
    order: Mutex<()>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where an operation goes.
pub(crate) enum Posted {
    /// It is accepted.
    Here,
    /// It is the kernel's.
    Kernel,
}

impl Rings {
    pub(crate) fn new(
        domain: &Arc<DomainInner>,
        id: ObjectId,
        size: (u32, u32),
        iov_limit: u32,
    ) -> Option<Arc<Self>> {
        let data = u32::try_from(DATA).ok()?;
        Some(Arc::new(Self {
            domain: domain.clone(),
            id,
            size,
            iov_limit,
            enabled: AtomicBool::new(false),
            mode: AtomicU8::new(UNKNOWN),
            link: OnceLock::new(),
            rx_queue: OnceLock::new(),
            tx_queue: OnceLock::new(),
            rx: Mutex::new(Rx {
                receives: VecDeque::new(),
                pipe: Receiver::new(data)?,
                over: false,
            }),
            tx: Mutex::new(Tx {
                pending: VecDeque::new(),
                pipe: Sender::new(data)?,
                over: false,
            }),
            pending: AtomicBool::new(false),
            owed: AtomicBool::new(false),
            order: Mutex::new(()),
        }))
    }

    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }

    /// It is bound to a queue.
    pub(crate) fn bind(self: &Arc<Self>, cq: &Arc<CqInner>, flags: u64) {
        let selective = flags & abi::KFI_SELECTIVE_COMPLETION != 0;
        let sides = [
            (abi::KFI_RECV, &self.rx_queue),
            (abi::KFI_TRANSMIT, &self.tx_queue),
        ];
        for (_, place) in sides.iter().filter(|(side, _)| flags & side != 0) {
            let cq = cq.clone();
            let _ = place.set(Bound { cq, selective });
        }
        cq.direct.add(self);
    }

    pub(crate) fn set_enabled(&self) {
        self.enabled.store(true, Ordering::Release);
    }

    fn mode(&self) -> u8 {
        self.mode.load(Ordering::Acquire)
    }

    /// Whether there are any.
    pub(crate) fn known(&self) -> Option<bool> {
        let pushed = self.learn();
        self.alert(pushed, None);
        match self.mode() {
            UNKNOWN if !self.is_owed() => None,
            mode => Some(mode == SHARED),
        }
    }

    fn is_owed(&self) -> bool {
        self.owed.load(Ordering::Acquire)
    }

    fn dev(&self) -> &crate::device::Shared {
        &self.domain.handle.dev
    }

    /// Learns what became of the connection, if it does not know and there is one by now.
    pub(crate) fn learn(&self) -> Pushed {
        let mut pushed = Pushed::default();
        if self.mode() != UNKNOWN || !self.enabled.load(Ordering::Acquire) {
            return pushed;
        }
        let mut rx = lock(&self.rx);
        if self.mode() != UNKNOWN {
            return pushed;
        }
        let mut arg: abi::EpRings = sys::new();
        arg.ep = self.id.handle;
        let asked = self.dev().call(self.id, &mut arg, &mut []);
        let mode = match arg.state {
            // Nobody may ever look again.
            _ if asked.is_err() => LOST,
            abi::KFI_RINGS_UNKNOWN => return pushed,
            abi::KFI_RINGS_SHARED => match self.map(&arg) {
                Some(link) => {
                    let _ = self.link.set(link);
                    SHARED
                }
                None => LOST,
            },
            _ => NONE,
        };
        if mode == NONE {
            pushed.rx = self.hand_over(&mut rx);
            if !rx.receives.is_empty() {
                self.owed.store(true, Ordering::Release);
                return pushed;
            }
            self.owed.store(false, Ordering::Release);
        }
        self.mode.store(mode, Ordering::Release);
        if mode == SHARED {
            // Who sleeps has not told the peer.
            pushed |= Pushed {
                rx: self.queue(true).is_some_and(Bound::is_awaited),
                tx: self.queue(false).is_some_and(Bound::is_awaited),
                more: false,
            };
        }
        drop(rx);
        if mode == LOST {
            self.end();
            pushed.rx |= self.flush_rx(&mut lock(&self.rx));
        }
        pushed
    }

    fn map(&self, arg: &abi::EpRings) -> Option<Link> {
        let fd = self.dev().take_fd("EP_RINGS", self.id, arg.fd).ok()?;
        let bytes = usize::try_from(arg.map_size).ok()?;
        let page = arg.page_size as usize;
        let link = self
            .dev()
            .backend
            .map_rings(fd.as_fd(), arg.side, page, bytes);
        link.ok()
    }

    /// Gives the kernel the receives, which were posted before it was known that they are its. Those for
    /// which it has no room just now stay.
    fn hand_over(&self, rx: &mut Rx) -> bool {
        let mut pushed = false;
        while let Some(receive) = rx.receives.pop_front() {
            match self.submit(&receive.entry()) {
                Ok(_) => self.release(true),
                Err(e) if e.errno() == Some(Errno::EAGAIN) => {
                    rx.receives.push_front(receive);
                    break;
                }
                Err(_) => pushed |= self.complete_rx(&receive, libc::ECANCELED, None),
            }
        }
        pushed
    }

    fn submit(&self, entry: &OpEntry) -> Result<Option<Errno>> {
        crate::endpoint::submit(self.dev(), self.id, std::slice::from_ref(entry))
            .map(|submitted| submitted.refused)
    }

    fn queue(&self, rx: bool) -> Option<&Bound> {
        match rx {
            true => self.rx_queue.get(),
            false => self.tx_queue.get(),
        }
    }

    fn reserve(&self, rx: bool) -> std::result::Result<(), Errno> {
        match self.queue(rx) {
            Some(bound) => bound.cq.reserve(),
            None => Ok(()),
        }
    }

    fn release(&self, rx: bool) {
        if let Some(bound) = self.queue(rx) {
            bound.cq.direct.release();
        }
    }

    /// Completes a receive that had room reserved, with the last piece of what it got; whether somebody
    /// waits for that.
    fn complete_rx(&self, receive: &Receive, err: i32, piece: Option<&Piece>) -> bool {
        let Some(bound) = self.rx_queue.get() else {
            return false;
        };
        if err == 0 && !receive.wanted {
            bound.cq.direct.release();
            return false;
        }
        let (mut flags, mut len, mut data) = (abi::KFI_MSG | abi::KFI_RECV, 0, 0);
        if let Some(piece) = piece {
            len = piece.total;
            if piece.written {
                flags = abi::KFI_RMA | abi::KFI_REMOTE_WRITE;
            }
            if let Some(value) = piece.data {
                flags |= abi::KFI_REMOTE_CQ_DATA;
                data = u64::from(value);
            }
        }
        bound.cq.push(CqEntry {
            context: receive.context,
            flags,
            len,
            buf: receive.offset(),
            data,
            // A positive errno.
            err: err.unsigned_abs(),
            prov_errno: err.unsigned_abs(),
            ep: self.id.handle,
            ..CqEntry::default()
        })
    }

    /// Completes a message of `len` bytes that had room reserved; whether somebody waits for that.
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
            // A positive errno.
            err: err.unsigned_abs(),
            prov_errno: err.unsigned_abs(),
            ep: self.id.handle,
            ..CqEntry::default()
        })
    }

    /// Ends the connection: the peer has broken the rules, or sent too much.
    fn end(&self) {
        let mut arg: abi::Shutdown = sys::new();
        arg.ep = self.id.handle;
        // Else it is over.
        let _ = self.dev().call(self.id, &mut arg, &mut []);
    }

    /// Wakes the peer. Else there is nobody.
    fn wake_peer(&self) {
        self.wake(0);
    }

    fn wake(&self, flags: u32) -> bool {
        let mut arg: abi::EpWake = sys::new();
        arg.flags = flags;
        arg.ep = self.id.handle;
        self.dev().call(self.id, &mut arg, &mut []).is_ok()
    }

    /// Wakes who waits at the queues that got something, but for one that is being looked at.
    #[inline]
    pub(crate) fn alert(&self, pushed: Pushed, but: Option<&CqInner>) {
        if pushed.rx || pushed.tx {
            self.alert_them(pushed, but);
        }
    }

    fn alert_them(&self, pushed: Pushed, but: Option<&CqInner>) {
        for (there, rx) in [(pushed.rx, true), (pushed.tx, false)] {
            let Some(bound) = self.queue(rx).filter(|_| there) else {
                continue;
            };
            let same = but.is_some_and(|but| std::ptr::eq(but, Arc::as_ptr(&bound.cq)));
            if !same {
                // Else it was just closed, by which the kernel wakes them.
                self.wake_self();
            }
        }
    }

    /// Wakes who waits at its queues, unless the kernel has it no more.
    fn wake_self(&self) -> bool {
        self.wake(abi::KFI_WAKE_SELF)
    }

    /// Takes what came, and sends what waits.
    pub(crate) fn progress(&self) -> Pushed {
        let Some(link) = self.link.get() else {
            return match self.is_owed() {
                true => self.learn(),
                false => Pushed::default(),
            };
        };
        let mut pushed = self.take(link, &mut lock(&self.rx));
        if self.pending.load(Ordering::Relaxed) {
            pushed.tx = self.give(link, &mut lock(&self.tx));
        }
        pushed
    }

    /// Says that this end sleeps, if it then finds nothing.
    pub(crate) fn sleep(&self) {
        let Some(link) = self.link.get() else { return };
        lock(&self.rx).pipe.sleep(&link.theirs);
        let tx = lock(&self.tx);
        if !tx.pending.is_empty() {
            tx.pipe.sleep(&link.ours);
        }
    }

    /// Takes messages out, as long as there are receives for them; at one time about as much as a ring
    /// holds, whatever the peer puts in meanwhile.
    fn take(&self, link: &Link, rx: &mut Rx) -> Pushed {
        let ring = &link.theirs;
        let (mut pushed, mut more, mut took, mut why) = (false, false, 0, None);
        // All that the peer sent is there then; and what it puts in afterwards is nothing to us.
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
                pushed |= self.complete_rx(receive, 0, Some(&piece));
                rx.receives.pop_front();
            }
        }
        if let Some(err) = why {
            // It is the first receive that it concerns, if there is one.
            if let Some(receive) = rx.receives.pop_front() {
                pushed |= self.complete_rx(&receive, err, None);
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

    fn flush_rx(&self, rx: &mut Rx) -> bool {
        rx.over = true;
        let mut pushed = false;
        while let Some(receive) = rx.receives.pop_front() {
            pushed |= self.complete_rx(&receive, libc::ECANCELED, None);
        }
        pushed
    }

    /// Puts messages in that wait, as many as there is room for.
    fn give(&self, link: &Link, tx: &mut Tx) -> bool {
        if tx.over || tx.pending.is_empty() {
            return false;
        }
        if link.ended() {
            return self.flush_tx(link, tx);
        }
        let (mut pushed, mut gave, mut said) = (false, false, false);
        while let Some(message) = tx.pending.front_mut() {
            let before = message.done;
            match message.put(&link.ours, &mut tx.pipe) {
                Ok(true) => gave = true,
                Ok(false) => {
                    gave |= message.done != before;
                    // Who waits may have said that it sleeps when nothing was pending.
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

    /// Whether somebody waits at one of its queues.
    fn is_awaited(&self) -> bool {
        [true, false]
            .into_iter()
            .filter_map(|rx| self.queue(rx))
            .any(Bound::is_awaited)
    }

    fn sent(&self, message: &Message) -> bool {
        // The note of a write has no completion of its own.
        message.written.is_none()
            && self.complete_tx(message.context, message.len, message.wanted, 0)
    }

    fn flush_tx(&self, link: &Link, tx: &mut Tx) -> bool {
        tx.over = true;
        self.pending.store(false, Ordering::Relaxed);
        let mut pushed = false;
        // What was too long for its receive is what failed.
        let failed = link.ours.failed().load(Ordering::Relaxed);
        let mut err = match failed == libc::EMSGSIZE.unsigned_abs() {
            true => libc::EREMOTEIO,
            false => libc::ECANCELED,
        };
        while let Some(message) = tx.pending.pop_front() {
            if message.written.is_none() {
                pushed |= self.complete_tx(message.context, message.len, message.wanted, err);
            }
            err = libc::ECANCELED;
        }
        pushed
    }

    /// Posts an operation, or says that it is the kernel's.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::post`](crate::Endpoint::post).
    pub(crate) fn post(
        &self,
        entry: &OpEntry,
        local: &Local<'_>,
    ) -> std::result::Result<Posted, Errno> {
        if self.mode() == NONE {
            return Ok(Posted::Kernel);
        }
        let asked = match entry.op {
            abi::KFI_OP_RECV | abi::KFI_OP_SEND => {
                Asked::new(&self.domain, entry, local, self.iov_limit)?
            }
            abi::KFI_OP_WRITE if entry.flags & abi::KFI_REMOTE_CQ_DATA != 0 => {
                if !self.enabled.load(Ordering::Acquire) {
                    return Err(Errno::EINVAL);
                }
                return self.write_with_data(entry);
            }
            _ => return self.one_sided(entry),
        };
        if !self.enabled.load(Ordering::Acquire) {
            return Err(Errno::EINVAL);
        }
        match entry.op {
            abi::KFI_OP_RECV => self.receive(&asked),
            _ => self.send(&asked),
        }
    }

    fn receive(&self, asked: &Asked<'_>) -> std::result::Result<Posted, Errno> {
        let Some(bound) = self.rx_queue.get() else {
            return Ok(Posted::Kernel);
        };
        let mut rx = lock(&self.rx);
        match self.mode() {
            // It was handed over to, meanwhile.
            NONE => return Ok(Posted::Kernel),
            LOST => return Err(Errno(libc::ENOTCONN)),
            _ => {}
        }
        let link = self.link.get();
        if link.is_some_and(Link::ended) {
            // There may be messages yet.
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

    /// The rings, for something to send; none: it is the kernel's.
    fn connected(&self) -> std::result::Result<Option<&Link>, Errno> {
        if self.mode() == UNKNOWN {
            let pushed = self.learn();
            self.alert(pushed, None);
        }
        match self.mode() {
            NONE => Ok(None),
            // Nothing that is sent waits for the receives.
            UNKNOWN if self.is_owed() => Ok(None),
            SHARED => match self.link.get() {
                Some(link) if !link.ended() => Ok(Some(link)),
                _ => Err(Errno(libc::ENOTCONN)),
            },
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    fn send(&self, asked: &Asked<'_>) -> std::result::Result<Posted, Errno> {
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

    /// Sends a message for which there is room, without keeping it; whether that completed something
    /// that is waited for. `None`: it goes the other way.
    fn send_now(&self, link: &Link, tx: &mut Tx, asked: &Asked<'_>, wanted: bool) -> Option<bool> {
        if tx.over || !tx.pending.is_empty() {
            return None;
        }
        // A lie is seen again by who takes the other way.
        if !asked.put(&link.ours, &mut tx.pipe).is_ok_and(|all| all) {
            return None;
        }
        if tx.pipe.wakes(&link.ours) {
            self.wake_peer();
        }
        Some(self.complete_tx(asked.context(), asked.len, wanted, 0))
    }

    /// Sends a message now, or when there is room. Whether something completed.
    fn enter(
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
            // The write that a note tells of is made.
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
                let begun = message.done != 0;
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

    /// Whether all that was sent before is on its way, so that the kernel may go on with what is its.
    fn in_turn(&self, link: &Link) -> std::result::Result<(), Errno> {
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

    /// Posts what is the kernel's, which has done it when this returns: nobody else is at it.
    fn one_sided(&self, entry: &OpEntry) -> std::result::Result<Posted, Errno> {
        // Refused in any state but this, and by the kernel where that does it.
        let Ok(Some(link)) = self.connected() else {
            return Ok(Posted::Kernel);
        };
        let _order = lock(&self.order);
        self.in_turn(link)?;
        self.submit(entry)
            .map_err(|e| e.errno().unwrap_or(Errno::EIO))?;
        Ok(Posted::Here)
    }

    /// Writes, then tells the peer.
    fn write_with_data(&self, entry: &OpEntry) -> std::result::Result<Posted, Errno> {
        let Some(link) = self.connected()? else {
            return Ok(Posted::Kernel);
        };
        let data = u32::try_from(entry.data).map_err(|_| Errno::EINVAL)?;
        let mut write = *entry;
        write.flags &= !abi::KFI_REMOTE_CQ_DATA;
        write.data = 0;
        // Nothing, which is refused if what is before it failed.
        let probe = OpEntry {
            op: abi::KFI_OP_WRITE,
            flags: abi::KFI_INJECT,
            context: queue::probe_context(),
            ..OpEntry::default()
        };
        let _order = lock(&self.order);
        self.in_turn(link)?;
        let submit = |entries: &[OpEntry]| crate::endpoint::submit(self.dev(), self.id, entries);
        let errno = |e: crate::Error| e.errno().unwrap_or(Errno::EIO);
        let mut refused = submit(&[write, probe]).map_err(errno)?.refused;
        // Half a second in all.
        for pause in (0..1000).map(Duration::from_micros) {
            if refused != Some(Errno::EAGAIN) {
                break;
            }
            // Entries that nobody read: they have a place here, too.
            if self.tx_queue.get().is_some_and(|bound| bound.cq.fetch()) {
                self.wake_self();
            }
            std::thread::sleep(pause);
            refused = submit(&[probe]).err().map(errno);
        }
        if refused == Some(Errno::EAGAIN) {
            // Whether it was made will not be known, so nothing may come after it.
            self.end();
        }
        if refused.is_some() {
            // The write was accepted, and its completion says why.
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
        // Should it be over by now, there is nobody to tell.
        let entered = self.enter(link, &mut lock(&self.tx), note);
        let pushed = Pushed::tx(entered.unwrap_or(false));
        self.alert(pushed, None);
        Ok(Posted::Here)
    }

    /// Ends one receive of this context; none: it is the kernel's to.
    pub(crate) fn cancel(&self, context: u64) -> Option<std::result::Result<(), Errno>> {
        let mut rx = lock(&self.rx);
        if self.mode() == NONE {
            return None;
        }
        // The first may be full in part.
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
        let pushed = Pushed::rx(self.complete_rx(&receive, libc::ECANCELED, None));
        drop(rx);
        self.alert(pushed, None);
        Some(Ok(()))
    }

    /// Before the kernel's endpoint is closed: who waits for receives of one that knows nothing yet is
    /// woken by it.
    pub(crate) fn begin_end(&self) {
        let mut rx = lock(&self.rx);
        if self.mode() != UNKNOWN {
            return;
        }
        self.mode.store(LOST, Ordering::Release);
        let pushed = Pushed::rx(self.flush_rx(&mut rx));
        drop(rx);
        self.alert(pushed, None);
    }

    /// The kernel's endpoint is closed: takes what had come, and ends the rest.
    pub(crate) fn finish(self: &Arc<Self>) {
        // Who waits at a queue was woken by the kernel, looks at this endpoint, and does the same.
        self.progress();
        {
            let mut rx = lock(&self.rx);
            self.flush_rx(&mut rx);
        }
        if let Some(link) = self.link.get() {
            self.flush_tx(link, &mut lock(&self.tx));
        }
        for bound in [&self.rx_queue, &self.tx_queue]
            .into_iter()
            .filter_map(OnceLock::get)
        {
            bound.cq.direct.remove(self);
        }
    }
}
