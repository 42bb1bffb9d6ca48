// SPDX-License-Identifier: GPL-2.0
//! Rings between two programs, which carry their messages without system calls.
//!
//! The kernel makes the rings if both ends of a connection want them, reports the connection's end,
//! and wakes waiters. It never reads the rings: the bytes that the two ends write can harm only
//! those two.
//!
//! An end begins with an [`Offer`]. The program's pinned pages are charged when it connects or
//! accepts. The connecting end allocates the memory, so that its memory cgroup is charged: a
//! program that accepts connections does not pay for the pages that its peers keep. A provider that
//! has both ends [joins](join) the two offers before either end gets its connected event. From then
//! on each end has an [`End`] of one [`Pair`]. Offers that are not joined by then get no rings.

use kernel::{
    ffi::c_void,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

use crate::{
    memory::charge::Owner,
    new_irqlock,
    sys::{
        ring::StatusMem,
        IrqLock, //
    },
    uapi::KFI_RING_SIZE, //
};

/// Bytes of both rings.
const RINGS: usize = (2 * KFI_RING_SIZE).next_multiple_of(PAGE_SIZE);

/// A queue whose waiters the other end's program wakes.
pub(crate) trait Alarm: Send + Sync {
    /// Sets the alarm and wakes all waiters, without an entry. Context: any.
    fn alarm(&self);
}

/// The receive and the transmit queue of an end, whose waiters are woken. The second is missing if
/// both are one queue.
pub(crate) type Queues = (Arc<dyn Alarm>, Option<Arc<dyn Alarm>>);

/// The rings' memory, and the queues of both ends.
#[pin_data]
struct Pair {
    mem: StatusMem,
    #[pin]
    queues: IrqLock<[Option<Queues>; 2]>,
}

impl Pair {
    fn wake(&self, side: usize) {
        let queues = self.queues.lock().get(side).cloned().flatten();
        let Some((rx, tx)) = queues else { return };
        rx.alarm();
        if let Some(tx) = tx {
            tx.alarm();
        }
    }

    fn end(&self) {
        self.mem.set_ended();
        self.wake(0);
        self.wake(1);
    }
}

/// One end of a pair. Its owner is charged as long as an endpoint or a mapping holds the end.
pub(crate) struct End {
    // Dropped before the charge: if the other end is dropped already, this frees the pages.
    pair: Arc<Pair>,
    side: usize,
    _charge: Owner,
}

impl End {
    /// Index of the ring that this end writes to: 0 or 1.
    pub(crate) fn side(&self) -> usize {
        self.side
    }

    /// Bytes of both rings.
    pub(crate) const fn map_size() -> usize {
        RINGS
    }

    /// The memory at page `at` of a mapping: address, bytes, and whether programs may write to it.
    pub(crate) fn part(&self, at: usize) -> Option<(*mut c_void, usize, bool)> {
        let (base, _) = self.pair.mem.raw();
        match at {
            0 => Some((base, PAGE_SIZE, false)),
            1 => Some((base.wrapping_byte_add(PAGE_SIZE), RINGS, true)),
            _ => None,
        }
    }

    /// Wakes the waiters of the other end.
    pub(crate) fn wake_peer(&self) {
        self.pair.wake(1 - self.side)
    }

    /// Ends the connection; this end's queues are not woken any more.
    fn leave(&self) {
        self.pair.end();
        let queues = {
            let mut queues = self.pair.queues.lock();
            queues.get_mut(self.side).and_then(Option::take)
        };
        drop(queues);
    }
}

/// The resources of an end before the join.
struct Ready {
    charge: Owner,
    queues: Queues,
    /// The memory, if this is the connecting end.
    mem: Option<StatusMem>,
}

/// How far an endpoint's rings are set up.
enum State {
    /// The endpoint does not connect yet, or gets no rings.
    None,
    /// The endpoint connects or accepts.
    Ready(Ready),
    Joined(Arc<End>),
    /// The connection is over.
    Gone,
}

/// Set-up state of the rings of an endpoint that may get them.
#[pin_data]
pub struct Offer {
    /// Version of the program's protocol in the rings.
    version: u32,
    #[pin]
    state: IrqLock<State>,
}

impl Offer {
    pub(crate) fn new(version: u32) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                version,
                state <- new_irqlock!(State::None, "kfabric_rings_offer"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Replaces the state by `to` if `from` holds for it. Returns the state to drop, without the
    /// lock.
    fn change(&self, from: impl FnOnce(&State) -> bool, to: State) -> State {
        let mut state = self.state.lock();
        match from(&state) {
            true => core::mem::replace(&mut *state, to),
            false => to,
        }
    }

    /// Prepares rings for a program that connects (`asks`) or accepts. If the charge or the
    /// allocation fails, there are no rings.
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

    /// Drops the offer unless it is joined. The connection is established or has failed, so no join
    /// follows.
    pub(crate) fn discard(&self) {
        drop(self.take());
    }

    fn take(&self) -> Option<Ready> {
        match self.change(|now| matches!(now, State::Ready(_)), State::None) {
            State::Ready(ready) => Some(ready),
            _ => None,
        }
    }

    /// Returns this end of the pair, if the offers were joined.
    pub(crate) fn joined(&self) -> Option<Arc<End>> {
        match &*self.state.lock() {
            State::Joined(end) => Some(end.clone()),
            _ => None,
        }
    }

    /// Ends the connection. Messages in the rings stay there.
    pub(crate) fn end(&self) {
        // A join that runs concurrently ends the pair itself, because the state is `Gone`.
        drop(self.change(|now| !matches!(now, State::Joined(_)), State::Gone));
        if let Some(end) = self.joined() {
            end.pair.end();
        }
    }

    /// Ends the rings of a closed endpoint: its queues are not woken any more.
    pub(crate) fn leave(&self) {
        if let State::Joined(end) = self.change(|_| true, State::Gone) {
            end.leave();
        }
    }

    fn join(&self, end: Arc<End>) {
        // The endpoint may have been closed or disconnected meanwhile.
        if let State::Joined(end) =
            self.change(|now| matches!(now, State::None), State::Joined(end))
        {
            end.leave();
        }
    }
}

/// Makes rings for the two ends of a new connection, if both offers are ready and have the same
/// version. The provider calls it before it reports the connection to either end. May sleep.
pub fn join(ours: &Offer, theirs: &Offer) {
    // The programs would not understand each other. The connection then discards both offers.
    if ours.version != theirs.version {
        return;
    }
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
