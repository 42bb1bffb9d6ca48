// SPDX-License-Identifier: GPL-2.0
//! Turns of channels, by the users that have created their endpoints.
//!
//! A user has one work item, a run of which gives a turn to one channel of the user. So the users take
//! turns, however many channels each of them has. The logic is in [`kfabric::pure::turns`].

use core::sync::atomic::{
    AtomicBool,
    Ordering, //
};
use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::{
        DelayedWork,
        WorkItem, //
    }, //
};

use super::{
    link::Channel,
    Owner, //
};
use crate::ib::work;
use kfabric::{
    base::share::current_payer,
    new_irqlock,
    pure::turns::{
        Then,
        Turn,
        Turns, //
    },
    sys::IrqLock, //
};

/// Pause in milliseconds, rounded up to a tick of the timer, while all channels of a user are blocked.
const BLOCKED_MS: u32 = 1;

/// Places for channels that wait.
type Places<H> = KVVec<Option<Arc<Channel<H>>>>;

/// A user with endpoints that may have channels.
#[pin_data]
pub(crate) struct User<H: Owner> {
    uid: u32,
    #[pin]
    turns: IrqLock<Turns<Places<H>>>,
    /// Set while the work item pauses.
    pausing: AtomicBool,
    #[pin]
    work: DelayedWork<User<H>>,
}

impl_has_delayed_work! {
    impl{H: Owner} HasDelayedWork<Self> for User<H> { self.work }
}

/// The users with endpoints that may have channels.
pub(crate) type Users<H> = RBTree<u32, Arc<User<H>>>;

impl<H: Owner> User<H> {
    /// Queues a channel for a turn, unless it waits or has ended. Context: any.
    pub(super) fn ask(self: &Arc<Self>, channel: Arc<Channel<H>>) {
        self.turns.lock().ask(channel.clone(), channel.place());
        if self.pausing.swap(false, Ordering::AcqRel) {
            // The channel need not be one of those that are blocked.
            work::cancel_pause(self);
        }
        // If the work item is queued already, one of its runs finds the channel.
        let _ = work::commits().enqueue(self.clone());
    }

    /// Ends the turns of a channel, except one in progress.
    pub(super) fn end(&self, channel: &Channel<H>) {
        let is = |other: &Arc<Channel<H>>| core::ptr::eq(&**other, channel);
        let waiting = self.turns.lock().end(channel.place(), is);
        // Without the lock.
        drop(waiting);
    }

    /// Waits until a turn in progress is over.
    pub(super) fn flush(self: &Arc<Self>) {
        work::flush(self);
    }
}

impl<H: Owner> WorkItem for User<H> {
    type Pointer = Arc<User<H>>;

    fn run(this: Arc<User<H>>) {
        this.pausing.store(false, Ordering::Release);
        let next = this.turns.lock().next(|channel| channel.place());
        let Some(channel) = next else { return };
        let turn = channel.turn();
        let then = {
            let mut turns = this.turns.lock();
            if turn != Turn::Over {
                turns.ask(channel.clone(), channel.place());
            }
            turns.end_turn(turn)
        };
        // If the work item is queued already, that run does the same.
        match then {
            Then::Idle => {}
            // The items of other users are first.
            Then::Next => drop(work::commits().enqueue(this)),
            Then::Wait => {
                let pause = msecs_to_jiffies(BLOCKED_MS);
                // First: a channel that asks from now on ends the pause, or prevents it by its own call.
                this.pausing.store(true, Ordering::Release);
                drop(work::commits().enqueue_delayed(this, pause));
            }
        }
        // Last: the drop may end the pause.
        drop(channel);
    }
}

/// A connection's place among those of its user. The drop leaves it; the connection's channels have ended
/// before.
pub(crate) struct Member<H: Owner>(Arc<User<H>>);

impl<H: Owner> Member<H> {
    /// Makes the user who pays for the current task the one of a new connection.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory.
    pub(crate) fn new() -> Result<Self> {
        let uid = current_payer();
        // Before the lock, which all users share.
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let fresh = Arc::pin_init(
            pin_init!(User {
                uid,
                turns <- new_irqlock!(Turns::new(KVVec::new()), "kverbs_turns"),
                pausing: AtomicBool::new(false),
                work <- new_delayed_work!("kverbs_turns"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let user = H::with_users(|users| {
            let user = match users.get(&uid) {
                Some(user) => user.clone(),
                None => {
                    let _ = users.insert(node.into_node(uid, fresh.clone()));
                    fresh
                }
            };
            user.turns.lock().enter();
            user
        });
        let member = Self(user);
        member.make_places()?;
        Ok(member)
    }

    /// Allocates places for the channels of all members.
    fn make_places(&self) -> Result {
        loop {
            let missing = self.0.turns.lock().missing();
            let Some(n) = missing else { return Ok(()) };
            let mut places = KVVec::with_capacity(n, GFP_KERNEL_ACCOUNT)?;
            for _ in 0..n {
                places.push(None, GFP_KERNEL_ACCOUNT)?;
            }
            let old = self.0.turns.lock().grow(places);
            drop(old);
        }
    }

    /// Returns the user.
    pub(super) fn user(&self) -> &Arc<User<H>> {
        &self.0
    }
}

impl<H: Owner> Drop for Member<H> {
    fn drop(&mut self) {
        let uid = self.0.uid;
        let gone = H::with_users(|users| {
            let last = self.0.turns.lock().leave();
            if last {
                users.remove_node(&uid)
            } else {
                None
            }
        });
        if gone.is_some() {
            // No channel is left.
            work::cancel_pause(&self.0);
        }
        drop(gone);
    }
}
