// SPDX-License-Identifier: GPL-2.0
//! Rings between two programs, through which their messages go without a call.
//!
//! The kernel's part is to make them for a connection whose two ends both want them, to say when it
//! is over, and to wake. It never looks into them: what the two put there can hurt nobody but the
//! two.
//!
//! An end begins with an [`Offer`]. What it may pin is charged to the program when it connects or
//! accepts. The memory itself is made when one connects, so that its memory cgroup has it: whoever
//! lets others connect does not pay for what they keep.
//! A provider that has both ends before it [joins](join) two offers before either end hears that it
//! is connected; from then on each has an [`End`] of one [`Pair`]. Offers that are not joined until
//! then never are.

use kernel::{
    ffi::c_void,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

use crate::{
    charge::Owner,
    cq::Cq,
    new_irqlock,
    sys::{
        ring::StatusMem,
        IrqLock, //
    },
    uapi::KFI_RING_SIZE,
};

/// Bytes of both rings.
const RINGS: usize = (2 * KFI_RING_SIZE).next_multiple_of(PAGE_SIZE);

/// The queues of an end, which are woken.
type Queues = [Arc<Cq>; 2];

/// The memory, and who is to be woken.
#[pin_data]
struct Pair {
    mem: StatusMem,
    #[pin]
    queues: IrqLock<[Option<Queues>; 2]>,
}

impl Pair {
    fn wake(&self, side: usize) {
        let queues = self.queues.lock().get(side).cloned().flatten();
        let Some([rx, tx]) = queues else { return };
        rx.alarm();
        if !Arc::ptr_eq(&rx, &tx) {
            tx.alarm();
        }
    }

    fn end(&self) {
        self.mem.set_ended();
        self.wake(0);
        self.wake(1);
    }
}

/// One of the two ends. Its owner is charged while it has it: for an endpoint, or a mapping.
pub(crate) struct End {
    // Dropped first: the pages go before the charge does, if the other end has let go.
    pair: Arc<Pair>,
    side: usize,
    _charge: Owner,
}

impl End {
    /// Which ring is its own to write to: 0 or 1.
    pub(crate) fn side(&self) -> usize {
        self.side
    }

    /// Bytes of both rings.
    pub(crate) const fn map_size() -> usize {
        RINGS
    }

    /// What lies at page `at` of a mapping: address, bytes, and whether programs may write to it.
    pub(crate) fn part(&self, at: usize) -> Option<(*mut c_void, usize, bool)> {
        let (base, _) = self.pair.mem.raw();
        match at {
            0 => Some((base, PAGE_SIZE, false)),
            1 => Some((base.wrapping_byte_add(PAGE_SIZE), RINGS, true)),
            _ => None,
        }
    }

    /// Wakes who waits at the other end.
    pub(crate) fn wake_peer(&self) {
        self.pair.wake(1 - self.side)
    }

    /// Ends the connection, and is not woken any more.
    fn leave(&self) {
        self.pair.end();
        let queues = {
            let mut queues = self.pair.queues.lock();
            queues.get_mut(self.side).and_then(Option::take)
        };
        drop(queues);
    }
}

/// What there is until the end is joined.
struct Ready {
    charge: Owner,
    queues: Queues,
    /// Of one that connects.
    mem: Option<StatusMem>,
}

/// How far an endpoint is.
enum State {
    /// It does not connect, or gets no rings.
    None,
    /// It connects, or accepts.
    Ready(Ready),
    Joined(Arc<End>),
    /// It is over.
    Gone,
}

/// An endpoint that may get rings.
#[pin_data]
pub struct Offer {
    #[pin]
    state: IrqLock<State>,
}

impl Offer {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                state <- new_irqlock!(State::None, "kfabric_rings_offer"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Goes on to `to` if it is as `from` says. What is left over is dropped without the lock.
    fn change(&self, from: impl FnOnce(&State) -> bool, to: State) -> State {
        let mut state = self.state.lock();
        match from(&state) {
            true => core::mem::replace(&mut *state, to),
            false => to,
        }
    }

    /// The program connects (`asks`), or accepts. Where it may not pin as much, or there is not the
    /// memory, there are no rings.
    pub(crate) fn prepare(&self, queues: Queues, asks: bool) {
        let Ok(charge) = Owner::charge(0, (PAGE_SIZE + RINGS) / PAGE_SIZE) else {
            return;
        };
        let Ok(mem) = asks.then(|| StatusMem::new(RINGS)).transpose() else {
            return;
        };
        let ready = State::Ready(Ready {
            charge,
            queues,
            mem,
        });
        drop(self.change(|now| matches!(now, State::None), ready));
    }

    /// It is connected, or nothing came of it: what is not joined by now never is.
    pub(crate) fn settle(&self) {
        drop(self.take());
    }

    fn take(&self) -> Option<Ready> {
        match self.change(|now| matches!(now, State::Ready(_)), State::None) {
            State::Ready(ready) => Some(ready),
            _ => None,
        }
    }

    /// What came of it.
    pub(crate) fn joined(&self) -> Option<Arc<End>> {
        match &*self.state.lock() {
            State::Joined(end) => Some(end.clone()),
            _ => None,
        }
    }

    /// The connection is over. What was put into the rings stays there.
    pub(crate) fn end(&self) {
        // What is just being joined ends when it is.
        drop(self.change(|now| !matches!(now, State::Joined(_)), State::Gone));
        if let Some(end) = self.joined() {
            end.pair.end();
        }
    }

    /// The endpoint is over: it is not woken any more.
    pub(crate) fn leave(&self) {
        if let State::Joined(end) = self.change(|_| true, State::Gone) {
            end.leave();
        }
    }

    fn join(&self, end: Arc<End>) {
        // It may have gone meanwhile.
        if let State::Joined(end) =
            self.change(|now| matches!(now, State::None), State::Joined(end))
        {
            end.leave();
        }
    }
}

/// Gives two ends of a connection that is being made rings, if both are ready for them. Before either
/// is told that it is connected. May sleep.
pub fn join(ours: &Offer, theirs: &Offer) {
    let (Some(ready), Some(other)) = (ours.take(), theirs.take()) else {
        return;
    };
    let Some(mem) = ready.mem.or(other.mem) else {
        return;
    };
    let pair = || -> Result<Arc<Pair>> {
        let queues = [Some(ready.queues), Some(other.queues)];
        Arc::pin_init(
            pin_init!(Pair {
                mem,
                queues <- new_irqlock!(queues, "kfabric_rings"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    };
    let Ok(pair) = pair() else { return };
    let end = |side, charge| {
        let pair = pair.clone();
        Arc::new(
            End {
                pair,
                side,
                _charge: charge,
            },
            GFP_KERNEL_ACCOUNT,
        )
    };
    if let (Ok(first), Ok(second)) = (end(0, ready.charge), end(1, other.charge)) {
        theirs.join(second);
        ours.join(first);
    }
}
