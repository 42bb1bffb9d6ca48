// SPDX-License-Identifier: GPL-2.0
//! The data path of an endpoint: posting operations and doing them.
//!
//! An operation is one copy between its own memory and the peer's, which is pinned. Its own is so too,
//! or it is the task's as it is mapped just then, and then nobody else can do the operation. Else who
//! posts it does it if that may take its time or it is short, and a worker the rest. One at a
//! time does the operations of an endpoint ("drives" it), so they complete in the order in which they
//! were posted. A message without a receive waits for one, and what was posted after it waits too;
//! who posts that receive goes on with it.
//!
//! No lock is held while anything is copied, and never more than one. What keeps the two ends alive
//! and in place is a [`Gate`] for each: who posts, drives, or copies from or to an end is inside it,
//! and closing waits until nobody is. Nobody inside waits for anybody.

#[path = "path/unregistered.rs"]
mod unregistered;

use core::sync::atomic::{
    fence,
    AtomicBool,
    AtomicU32,
    Ordering, //
};
use kernel::{
    alloc::flags::__GFP_NOWARN,
    bindings,
    prelude::*,
    sync::Arc, //
};

use crate::{
    budget::Budget,
    endpoint::Endpoint,
    errno,
    group::Group,
    region::Region,
    sys::{
        self,
        Exits,
        Piece, //
    },
    table::{
        Table,
        Window, //
    },
};
use kfabric::{
    errno::enotconn,
    new_irqlock,
    op::{
        OpDesc,
        OpKind,
        OpToken,
        Outcome, //
    },
    pure::{
        atomic::{
            Datatype,
            Op, //
        },
        gate::Gate,
        ring::FixedRing, //
    },
    sys::IrqLock,
    uapi::{
        KFI_ATOMIC,
        KFI_INJECT_MAX,
        KFI_REMOTE_READ,
        KFI_REMOTE_WRITE, //
    },
};

/// An operation that was refused, and why.
pub(crate) type Refused = (Error, OpToken);

/// An operation of the transmit side.
struct TxOp {
    token: OpToken,
    kind: OpKind,
    imm: Option<u32>,
    remote_addr: u64,
    key: u64,
    len: u64,
    /// Bytes copied so far.
    done: u64,
    /// Payload that was taken when it was posted; of an atomic its operands, and behind them those to
    /// compare with.
    inject: Option<([u8; KFI_INJECT_MAX], usize)>,
    /// Of an atomic: what it does.
    atomic: Option<(Op, Datatype)>,
    /// It has a key for one use, which is nobody else's any more.
    claimed: bool,
}

/// How far an operation came.
enum Step {
    /// It is done.
    Done,
    /// The peer has no receive.
    Stall,
    /// Somebody else has to go on.
    Later,
    /// There is no connection any more.
    Cut,
    /// It failed, which ends the connection: the errno, and the peer's.
    Failed(u32, u32),
}

/// What the peer's receives had for an operation.
enum Taken {
    Receive(OpToken),
    None,
    Closed,
}

/// The transmit side.
struct Tx {
    /// Operations may be posted.
    open: bool,
    /// Somebody drives; or a worker is about to.
    driven: bool,
    /// Who drives waits for memory of its task's own, outside of the gate.
    away: bool,
    /// The first waits for a receive of the peer's.
    stalled: bool,
    waiting: FixedRing<KVVec<Option<TxOp>>>,
    /// Stays until the endpoint is closed.
    peer: Option<Arc<Endpoint>>,
}

/// The receive side.
struct Rx {
    /// Receives may be posted.
    open: bool,
    receives: FixedRing<KVVec<Option<OpToken>>>,
    /// One of them is taken out, and may be put back.
    out: bool,
    /// The first, or the one that is out, has been written to.
    begun: bool,
    /// As in [`Tx`].
    peer: Option<Arc<Endpoint>>,
}

/// Both sides.
#[pin_data]
pub(crate) struct Path {
    #[pin]
    tx: IrqLock<Tx>,
    #[pin]
    rx: IrqLock<Rx>,
    /// Operations accepted and not completed; raised under the lock of the transmit side.
    used: AtomicU32,
    tx_size: u32,
    rx_size: u32,
    /// Operations of this end may go on.
    up: AtomicBool,
    /// The peer may reach this end.
    serving: AtomicBool,
    /// Mirrors the transmit side's, for the peer.
    stalled: AtomicBool,
    gate: Gate,
    #[pin]
    exits: Exits,
    group: Arc<Group>,
    table: Arc<Table>,
}

/// Somebody inside an endpoint's gate.
struct Visit<'a>(&'a Path);

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if self.0.gate.exit() {
            self.0.exits.wake();
        }
    }
}

/// Room for `n`.
fn room<T>(n: u32) -> Result<KVVec<Option<T>>> {
    // The application chose the size: that it is too much is no news for the log.
    let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
    let mut places = KVVec::with_capacity(n as usize, flags)?;
    for _ in 0..n {
        places.push(None, flags)?;
    }
    Ok(places)
}

/// The local memory of `token` from byte `from` on, `len` bytes of it.
fn local(token: &OpToken, from: u64, len: u64) -> impl Iterator<Item = Piece<'_>> {
    let lent = sys::lent_pieces(token.lent(), from as usize, len as usize);
    let mut skip = from as usize;
    let mut left = len as usize;
    let registered = token
        .segs()
        .filter_map(move |seg| {
            let past = skip.min(seg.len);
            skip -= past;
            let n = left.min(seg.len - past);
            left -= n;
            let region = seg.region()?.as_any().downcast_ref::<Region>()?;
            Some(sys::pieces(region.mem(), seg.offset + past, n))
        })
        .flatten();
    // An operation has the one or the other.
    Iterator::chain(lent, registered)
}

/// Whether all local memory of an operation is ours.
fn is_ours(token: &OpToken) -> bool {
    token.segs().all(|seg| {
        seg.region()
            .is_some_and(|region| region.as_any().is::<Region>())
    })
}

impl TxOp {
    /// Where its range begins in the region of `window`, if a peer of `peer` may use that for
    /// `access`. A key for one use is its own from then on.
    fn find(&mut self, window: &Window, peer: &Path, access: u64) -> Option<usize> {
        let at = window.find(&peer.group, self.remote_addr, self.len, access)?;
        if !self.claimed && !window.claim() {
            return None;
        }
        self.claimed = true;
        Some(at)
    }

    /// Copies the next `n` bytes to `to`; how many it has copied: fewer only of a task's own memory.
    fn give<'a>(&self, n: u64, to: impl Iterator<Item = Piece<'a>>) -> u64 {
        match (&self.inject, self.token.unregistered()) {
            (Some((data, len)), _) => {
                // CAST: What is injected is short.
                let rest = data.get(self.done as usize..*len).unwrap_or_default();
                sys::store(rest, to);
            }
            (None, Some(memory)) => {
                return sys::copy_from_task(memory.addr.wrapping_add(self.done), to) as u64;
            }
            (None, None) => sys::copy(local(&self.token, self.done, n), to),
        }
        n
    }

    /// As [`TxOp::give`], the other way.
    fn take<'a>(&self, n: u64, from: impl Iterator<Item = Piece<'a>>) -> u64 {
        match self.token.unregistered() {
            Some(memory) => sys::copy_to_task(from, memory.addr.wrapping_add(self.done)) as u64,
            None => {
                sys::copy(from, local(&self.token, self.done, n));
                n
            }
        }
    }
}

impl Path {
    /// Makes room for so many.
    pub(crate) fn new(
        tx_size: u32,
        rx_size: u32,
        group: Arc<Group>,
        table: Arc<Table>,
    ) -> Result<impl PinInit<Self>> {
        let tx = Tx {
            open: false,
            driven: false,
            away: false,
            stalled: false,
            waiting: FixedRing::new(room(tx_size)?),
            peer: None,
        };
        let rx = Rx {
            open: false,
            receives: FixedRing::new(room(rx_size)?),
            out: false,
            begun: false,
            peer: None,
        };
        Ok(pin_init!(Self {
            tx <- new_irqlock!(tx, "kshm_tx"),
            rx <- new_irqlock!(rx, "kshm_rx"),
            used: AtomicU32::new(0),
            tx_size,
            rx_size,
            up: AtomicBool::new(false),
            serving: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            gate: Gate::new(),
            exits <- Exits::new(),
            group,
            table,
        }))
    }

    fn visit(&self) -> Option<Visit<'_>> {
        self.gate.enter().then(|| Visit(self))
    }

    /// Takes receives from now on.
    pub(crate) fn receive(&self) {
        self.rx.lock().open = true;
    }

    /// Lets the peer in.
    pub(crate) fn serve(&self, peer: &Arc<Endpoint>) {
        self.rx.lock().peer = Some(peer.clone());
        self.tx.lock().peer = Some(peer.clone());
        self.serving.store(true, Ordering::Release);
    }

    /// Takes all operations from now on.
    pub(crate) fn open(&self) {
        let mut tx = self.tx.lock();
        tx.open = true;
        self.up.store(true, Ordering::Release);
    }

    /// What its peer reaches by it.
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Who it is connected to.
    pub(crate) fn peer(&self) -> Option<Arc<Endpoint>> {
        self.tx.lock().peer.clone()
    }

    /// Lets nothing more happen. All that is accepted completes with `ECANCELED`, what is just
    /// being done by the hand of who does it.
    pub(crate) fn stop(endpoint: &Arc<Endpoint>) {
        let this = endpoint.path();
        // None: it is being closed, and that ends all.
        let Some(_visit) = this.visit() else { return };
        this.serving.store(false, Ordering::Release);
        let flush = {
            let mut tx = this.tx.lock();
            tx.open = false;
            tx.stalled = false;
            this.up.store(false, Ordering::Release);
            this.stalled.store(false, Ordering::Relaxed);
            let driven = core::mem::replace(&mut tx.driven, true);
            !driven || core::mem::replace(&mut tx.away, false)
        };
        if flush {
            Self::drive(endpoint, None, &mut Budget::all());
        }
        this.rx.lock().open = false;
        while let Some(token) = this.take_any() {
            // Completes with ECANCELED.
            drop(token);
        }
    }

    fn take_any(&self) -> Option<OpToken> {
        self.rx.lock().receives.pop()
    }

    /// Ends all, after [`Path::stop`]: when this returns nobody is inside, and nothing is left.
    pub(crate) fn close(&self) {
        let _ = self.gate.close();
        self.exits.wait(|sleep| {
            while !self.gate.is_drained() {
                sleep();
            }
        });
        // What a worker was to go on with.
        loop {
            let Some(op) = self.tx.lock().waiting.pop() else {
                break;
            };
            self.used_up(&op);
        }
        let (peer, places) = {
            let mut tx = self.tx.lock();
            let none = FixedRing::new(KVVec::new());
            (tx.peer.take(), core::mem::replace(&mut tx.waiting, none))
        };
        drop((peer, places));
        let (peer, places) = {
            let mut rx = self.rx.lock();
            let none = FixedRing::new(KVVec::new());
            (rx.peer.take(), core::mem::replace(&mut rx.receives, none))
        };
        drop((peer, places));
    }

    /// [`EndpointOps::post`](kfabric::provider::EndpointOps::post).
    pub(crate) fn post(
        endpoint: &Arc<Endpoint>,
        op: &OpDesc<'_>,
        token: OpToken,
    ) -> Result<(), Refused> {
        if !is_ours(&token) {
            return Err((EINVAL, token));
        }
        if token.unregistered().is_some() {
            return Self::post_unregistered(endpoint, op, token);
        }
        let Some(_visit) = endpoint.path().visit() else {
            return Err((enotconn(), token));
        };
        match op.kind {
            OpKind::Recv => Self::post_recv(endpoint, token),
            _ => Self::post_send(endpoint, op, token),
        }
    }

    fn post_recv(endpoint: &Arc<Endpoint>, token: OpToken) -> Result<(), Refused> {
        let this = endpoint.path();
        let peer = {
            let mut rx = this.rx.lock();
            if !rx.open {
                return Err((enotconn(), token));
            }
            if rx.receives.len() + usize::from(rx.out) >= this.rx_size as usize {
                return Err((EAGAIN, token));
            }
            if let Err(token) = rx.receives.push(token) {
                return Err((EAGAIN, token));
            }
            rx.peer.clone()
        };
        if let Some(peer) = peer {
            Self::kick(&peer);
        }
        Ok(())
    }

    /// Goes on with what waited for a receive, a little: it is the peer's to do.
    fn kick(endpoint: &Arc<Endpoint>) {
        let this = endpoint.path();
        // Behind the receive: either we see that it waits, or it sees the receive.
        fence(Ordering::SeqCst);
        if !this.stalled.load(Ordering::Relaxed) {
            return;
        }
        let Some(_visit) = this.visit() else { return };
        if this.unstall() {
            Self::drive(endpoint, None, &mut Budget::caller(false));
        }
    }

    /// Begins to drive if it waits for a receive.
    fn unstall(&self) -> bool {
        let mut tx = self.tx.lock();
        if !tx.stalled || tx.driven {
            return false;
        }
        tx.stalled = false;
        tx.driven = true;
        self.stalled.store(false, Ordering::Relaxed);
        true
    }

    /// What is to be done of an operation.
    fn take(op: &OpDesc<'_>, token: OpToken) -> TxOp {
        let taken = |data: &[u8], more: &[u8]| {
            // The core has checked the length.
            let data = &data[..data.len().min(KFI_INJECT_MAX)];
            let more = &more[..more.len().min(KFI_INJECT_MAX - data.len())];
            let mut place = [0; KFI_INJECT_MAX];
            let (first, rest) = place.split_at_mut(data.len());
            first.copy_from_slice(data);
            rest[..more.len()].copy_from_slice(more);
            (place, data.len() + more.len())
        };
        let inject = match op.atomic {
            Some(atomic) => Some(taken(atomic.operands, atomic.compare)),
            None => op.inject.map(|data| taken(data, &[])),
        };
        TxOp {
            token,
            kind: op.kind,
            imm: op.imm,
            remote_addr: op.remote_addr,
            key: op.key,
            len: op.len,
            done: 0,
            inject,
            atomic: op.atomic.map(|atomic| (atomic.op, atomic.ty)),
            claimed: false,
        }
    }

    fn post_send(endpoint: &Arc<Endpoint>, op: &OpDesc<'_>, token: OpToken) -> Result<(), Refused> {
        let this = endpoint.path();
        let op_ = Self::take(op, token);
        {
            let mut tx = this.tx.lock();
            if !tx.open {
                return Err((enotconn(), op_.token));
            }
            if this.used.load(Ordering::Acquire) >= this.tx_size {
                return Err((EAGAIN, op_.token));
            }
            if tx.driven || tx.stalled {
                if let Err(op) = tx.waiting.push(op_) {
                    return Err((EAGAIN, op.token));
                }
                this.used.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            this.used.fetch_add(1, Ordering::Relaxed);
            tx.driven = true;
        }
        Self::drive(endpoint, Some(op_), &mut Budget::caller(op.may_sleep));
        Ok(())
    }

    /// What a worker does: goes on where somebody stopped. Not by more than one at a time.
    pub(crate) fn go_on(endpoint: &Arc<Endpoint>) {
        let Some(_visit) = endpoint.path().visit() else {
            return;
        };
        Self::drive(endpoint, None, &mut Budget::worker());
    }

    /// Does what waits, and `first` before that. The caller is inside the gate and has set `driven`.
    fn drive(endpoint: &Arc<Endpoint>, mut first: Option<TxOp>, budget: &mut Budget) {
        let this = endpoint.path();
        let Some(peer) = this.peer() else {
            // Never connected: nothing was accepted.
            this.tx.lock().driven = false;
            return;
        };
        loop {
            if first.is_none() {
                let mut tx = this.tx.lock();
                first = tx.waiting.pop();
                if first.is_none() {
                    tx.driven = false;
                    return;
                }
            }
            // Looked at where it is: it is large.
            let step = match &mut first {
                Some(op) => this.execute(&peer, op, budget),
                None => continue,
            };
            if !Self::settle(endpoint, &peer, &mut first, step) {
                return;
            }
            if !budget.another() && !this.tx.lock().waiting.is_empty() {
                Endpoint::go_on_later(endpoint);
                return;
            }
        }
    }

    /// Sees to the operation after a step. Whether to go on driving.
    fn settle(
        endpoint: &Arc<Endpoint>,
        peer: &Arc<Endpoint>,
        place: &mut Option<TxOp>,
        step: Step,
    ) -> bool {
        let this = endpoint.path();
        match step {
            Step::Done => this.finish(place, 0),
            Step::Cut => {
                this.shut();
                this.finish(place, bindings::ECANCELED);
            }
            Step::Failed(err, theirs) => {
                this.shut();
                this.finish(place, err);
                Endpoint::fail_both(endpoint, err, peer, theirs);
            }
            Step::Later => {
                this.put_back(place);
                Endpoint::go_on_later(endpoint);
                return false;
            }
            Step::Stall => return this.stall(peer, place),
        }
        true
    }

    /// Nothing more is accepted, and what is ends with `ECANCELED`.
    fn shut(&self) {
        self.tx.lock().open = false;
        self.up.store(false, Ordering::Release);
    }

    fn finish(&self, place: &mut Option<TxOp>, err: u32) {
        let Some(op) = place.take() else { return };
        self.used_up(&op);
        let TxOp { token, .. } = op;
        // Before anybody hears of it: there is room again then.
        self.used.fetch_sub(1, Ordering::Release);
        token.complete(Outcome {
            err,
            prov_errno: errno::code(err),
            ..Outcome::default()
        });
    }

    /// If it had a key for one use, that is over.
    fn used_up(&self, op: &TxOp) {
        if op.claimed {
            let over = |window: &Window| window.over.store(true, Ordering::Release);
            let _ = self.table.with(op.key, over);
        }
    }

    fn put_back(&self, place: &mut Option<TxOp>) {
        let Some(op) = place.take() else { return };
        let lost = self.tx.lock().waiting.push_front(op);
        // There is room: it was accepted. If there were not, it would be cancelled.
        drop(lost);
    }

    /// Puts an operation back that waits for a receive. Whether to go on, because one came.
    fn stall(&self, peer: &Arc<Endpoint>, place: &mut Option<TxOp>) -> bool {
        self.put_back(place);
        {
            let mut tx = self.tx.lock();
            if !tx.open {
                // Stopped meanwhile: we are to flush.
                return true;
            }
            tx.stalled = true;
            tx.driven = false;
            self.stalled.store(true, Ordering::Relaxed);
        }
        // Behind that: see `kick`.
        fence(Ordering::SeqCst);
        peer.path().has_receive() && self.unstall()
    }

    fn has_receive(&self) -> bool {
        let rx = self.rx.lock();
        !rx.open || !rx.receives.is_empty()
    }

    fn take_receive(&self) -> Taken {
        let mut rx = self.rx.lock();
        if !rx.open {
            return Taken::Closed;
        }
        match rx.receives.pop() {
            Some(token) => {
                rx.out = true;
                Taken::Receive(token)
            }
            None => Taken::None,
        }
    }

    /// Puts a receive back that is not full yet.
    fn put_receive(&self, token: OpToken) {
        let lost = {
            let mut rx = self.rx.lock();
            rx.out = false;
            rx.begun = true;
            match rx.open {
                true => rx.receives.push_front(token).err(),
                false => Some(token),
            }
        };
        // Completes with ECANCELED.
        drop(lost);
    }

    fn receive_done(&self, token: OpToken, outcome: Outcome) {
        {
            let mut rx = self.rx.lock();
            rx.out = false;
            rx.begun = false;
        }
        token.complete(outcome);
    }

    /// Does as much of an operation as the budget allows.
    fn execute(&self, peer: &Arc<Endpoint>, op: &mut TxOp, budget: &mut Budget) -> Step {
        loop {
            match self.part(peer, op, budget) {
                Some(step) => return step,
                None if budget.goes_on() => {}
                None => return Step::Later,
            }
        }
    }

    /// Does a part of an operation. Nothing: there is more.
    fn part(&self, peer: &Arc<Endpoint>, op: &mut TxOp, budget: &mut Budget) -> Option<Step> {
        let peer = peer.path();
        if !self.up.load(Ordering::Acquire) {
            return Some(Step::Cut);
        }
        // Until the end of this part the peer does not go.
        let Some(_visit) = peer.visit() else {
            return Some(Step::Cut);
        };
        if !peer.serving.load(Ordering::Acquire) {
            return Some(Step::Cut);
        }
        // Nor is whoever ends the key, or the peer, kept waiting by who else wants this processor.
        let _short = sys::NoPreempt::new();
        match op.kind {
            OpKind::Send => Self::send_part(peer, op, budget),
            OpKind::Write => self.write_part(peer, op, budget),
            OpKind::Atomic | OpKind::Fetch => Some(self.atomic(peer, op)),
            _ => self.read_part(peer, op, budget),
        }
    }

    /// A part of a message. Nothing: there is more.
    fn send_part(peer: &Path, op: &mut TxOp, budget: &mut Budget) -> Option<Step> {
        let token = match peer.take_receive() {
            Taken::Receive(token) => token,
            Taken::None => return Some(Step::Stall),
            Taken::Closed => return Some(Step::Cut),
        };
        if op.len > token.len() {
            let outcome = Outcome {
                err: bindings::EMSGSIZE,
                prov_errno: errno::code(bindings::EMSGSIZE),
                ..Outcome::default()
            };
            peer.receive_done(token, outcome);
            return Some(Step::Failed(bindings::EREMOTEIO, bindings::EMSGSIZE));
        }
        let n = budget.chunk(op.len - op.done);
        op.done += op.give(n, local(&token, op.done, n));
        if op.done < op.len {
            peer.put_receive(token);
            return None;
        }
        let outcome = Outcome {
            len: op.len,
            imm: op.imm,
            ..Outcome::default()
        };
        peer.receive_done(token, outcome);
        Some(Step::Done)
    }

    /// A part of a write. Nothing: there is more.
    fn write_part(&self, peer: &Path, op: &mut TxOp, budget: &mut Budget) -> Option<Step> {
        if op.done < op.len {
            let n = budget.chunk(op.len - op.done);
            let given = self.table.with(op.key, |window| {
                let at = op.find(window, peer, KFI_REMOTE_WRITE)?;
                // CAST: Inside the window.
                let to = sys::pieces(window.region.mem(), at + op.done as usize, n as usize);
                Some(op.give(n, to))
            });
            let Some(n) = given.flatten() else {
                return Some(Self::not_allowed());
            };
            op.done += n;
            if op.done < op.len {
                return None;
            }
        }
        if op.imm.is_none() {
            return Some(Step::Done);
        }
        match peer.take_receive() {
            Taken::Receive(token) => {
                let outcome = Outcome {
                    len: op.len,
                    imm: op.imm,
                    remote_write: true,
                    ..Outcome::default()
                };
                peer.receive_done(token, outcome);
                Some(Step::Done)
            }
            Taken::None => Some(Step::Stall),
            Taken::Closed => Some(Step::Cut),
        }
    }

    /// A part of a read. Nothing: there is more.
    fn read_part(&self, peer: &Path, op: &mut TxOp, budget: &mut Budget) -> Option<Step> {
        if op.len == 0 {
            return Some(Step::Done);
        }
        let n = budget.chunk(op.len - op.done);
        let given = self.table.with(op.key, |window| {
            let at = op.find(window, peer, KFI_REMOTE_READ)?;
            // CAST: Inside the window.
            let from = sys::pieces(window.region.mem(), at + op.done as usize, n as usize);
            Some(op.take(n, from))
        });
        let Some(n) = given.flatten() else {
            return Some(Self::not_allowed());
        };
        op.done += n;
        (op.done >= op.len).then_some(Step::Done)
    }

    /// All of an atomic: it is short.
    fn atomic(&self, peer: &Path, op: &mut TxOp) -> Step {
        let Some((what, ty)) = op.atomic else {
            return Self::not_allowed();
        };
        let (size, len) = (ty.size(), op.len as usize);
        let mut fetched = [0; KFI_INJECT_MAX];
        let given = self.table.with(op.key, |window| {
            let at = op.find(window, peer, KFI_ATOMIC)?;
            let values = op.inject.as_ref().map_or(&[][..], |(data, _)| data);
            for (i, old) in fetched[..len].chunks_exact_mut(size).enumerate() {
                let of = |from: usize| -> u64 {
                    let mut bytes = [0; 8];
                    if let Some(value) = values.get(from..from + size) {
                        bytes[..size].copy_from_slice(value);
                    }
                    u64::from_le_bytes(bytes)
                };
                let (operand, compare) = (of(i * size), of(len + i * size));
                let piece = sys::pieces(window.region.mem(), at + i * size, size).next();
                let there =
                    sys::update(piece, size, |there| what.apply(ty, there, operand, compare));
                old.copy_from_slice(&there.ok()?.to_le_bytes()[..size]);
            }
            Some(())
        });
        if given.flatten().is_none() {
            return Self::not_allowed();
        }
        if op.kind == OpKind::Fetch {
            sys::store(&fetched[..len], local(&op.token, 0, op.len));
        }
        Step::Done
    }

    /// The peer's key does not allow it.
    fn not_allowed() -> Step {
        Step::Failed(bindings::EACCES, bindings::EACCES)
    }

    /// [`EndpointOps::cancel`](kfabric::provider::EndpointOps::cancel).
    ///
    /// # Errors
    ///
    /// `ENOENT`: none of this context waits, or it is just being filled.
    pub(crate) fn cancel(&self, context: u64) -> Result {
        let _visit = self.visit().ok_or(ENOENT)?;
        let token = {
            let mut rx = self.rx.lock();
            let count = rx.receives.len();
            let mut found = None;
            for i in 0..count {
                let Some(token) = rx.receives.pop() else {
                    break;
                };
                // The first may be full in part.
                let begun = i == 0 && rx.begun && !rx.out;
                if found.is_none() && !begun && token.context() == context {
                    found = Some(token);
                } else {
                    // There is room: it was just taken.
                    let _ = rx.receives.push(token);
                }
            }
            found
        };
        // Completes with ECANCELED.
        token.map(drop).ok_or(ENOENT)
    }
}
