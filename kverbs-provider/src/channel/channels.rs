// SPDX-License-Identifier: GPL-2.0
//! The channels of a connection.

use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use super::{
    index::{
        Index,
        Place,
        Room, //
    },
    link::Channel,
    user::{
        Member,
        User, //
    },
    Owner, //
};
use crate::{
    data::level,
    ib::{
        self,
        cm::{
            CmHandler,
            CmId,
            ConnParam, //
        },
        sockaddr, //
    },
    key::group::Group, //
};
use kfabric::{
    base::errno::{
        enotconn,
        eopnotsupp, //
    },
    new_irqlock,
    pure::{
        commit::{
            Ends,
            Hello,
            Range,
            Refusals,
            Status, //
        },
        proof::Mac, //
    },
    sys::IrqLock,
    uapi::{
        SockAddr,
        KFI_REACH_NO, //
    }, //
};

/// The connection's ends and addresses, from the moment at which the peer can know them.
#[derive(Clone, Copy)]
pub(crate) struct Identity {
    /// The queue pairs; this side is the initiator.
    pub(crate) ends: Ends,
    pub(crate) local: SockAddr,
    pub(crate) peer: SockAddr,
}

impl Identity {
    /// Checks a request for a channel of a connection in `group`: its HELLO, the address `from` which
    /// it comes, and the number of its queue pair.
    ///
    /// # Errors
    ///
    /// - `EACCES` if the request does not come from the connection's peer.
    /// - `EOPNOTSUPP` if the device cannot make writes durable.
    pub(super) fn check(&self, group: &Group, hello: &Hello, from: &SockAddr, qp: u32) -> Result {
        let check = |text: &[u8], mac: &Mac| match group.proof() {
            Some(proof) => proof.check(text, mac),
            None => *mac == Mac::default(),
        };
        let same = sockaddr::same_host(from, &self.peer);
        if !same || !hello.is_request(&self.ends.swapped(), qp, check) {
            return Err(EACCES);
        }
        if level::durable(group.device().ib()) == KFI_REACH_NO {
            return Err(eopnotsupp());
        }
        Ok(())
    }
}

/// State of the channels.
struct State<H: Owner> {
    identity: Option<Identity>,
    /// Memory for the connection in the index, on a device with durable writes.
    room: Option<Room<H>>,
    /// The connection's place in the index.
    listed: Option<Place>,
    /// The channel for this side's writes.
    out: Option<Arc<Channel<H>>>,
    /// The channel for the peer's writes.
    inward: Option<Arc<Channel<H>>>,
    /// True after the connection has ended.
    ended: bool,
}

/// The channels of a connection.
#[pin_data]
pub(crate) struct Channels<H: Owner> {
    #[pin]
    state: Mutex<State<H>>,
    /// The channel for this side's writes while it is open. The channel's control lock is held for
    /// writing.
    #[pin]
    open: IrqLock<Option<Arc<Channel<H>>>>,
    /// The place among the connections of the user, on a device with durable writes.
    member: Option<Member<H>>,
    /// Refused ranges of the peer's commits.
    #[pin]
    refusals: IrqLock<Refusals>,
}

impl<H: Owner> Channels<H> {
    /// Returns the channels of a new connection, without any. The peer can open one if the device can
    /// make writes `durable`.
    pub(crate) fn new(durable: bool) -> Result<impl PinInit<Self>> {
        let (room, member) = match durable {
            true => (Some(Room::new(GFP_KERNEL_ACCOUNT)?), Some(Member::new()?)),
            false => (None, None),
        };
        Ok(pin_init!(Self {
            member,
            state <- new_mutex!(State {
                identity: None,
                room,
                listed: None,
                out: None,
                inward: None,
                ended: false,
            }, "kverbs_channels"),
            open <- new_irqlock!(None, "kverbs_channel_open"),
            refusals <- new_irqlock!(Refusals::default(), "kverbs_refusals"),
        }))
    }

    /// Sets the identity of the connection, before the peer can open a channel. Once per connection.
    pub(crate) fn identify(&self, conn: &Arc<H>, identity: Identity) {
        let mut state = self.state.lock();
        if state.ended {
            return;
        }
        state.identity = Some(identity);
        if let Some(room) = state.room.take() {
            let device = conn.group().device();
            let add = |index: &mut Index<H>| index.add(room, device, conn, identity);
            state.listed = Some(H::with_index(add));
        }
    }

    /// Returns the connection's user, on a device with durable writes.
    pub(crate) fn user(&self) -> Option<&Arc<User<H>>> {
        self.member.as_ref().map(Member::user)
    }

    /// Counts a range of the peer's commits. Returns whether the connection must end.
    pub(super) fn judged(&self, range: &Range, status: Status) -> bool {
        let mut refusals = self.refusals.lock();
        match status {
            Status::Refused | Status::Revoked => return refusals.refuse(range.key),
            // A range of no bytes asks for nothing.
            Status::Durable if range.len == 0 => {}
            Status::Durable => refusals.succeed(ib::seconds),
            Status::Unsupported | Status::Closing => {}
        }
        refusals.is_over()
    }

    /// Makes the channel for this side's writes commit if it is open. Returns whether it is.
    ///
    /// Context: any. The lock of the channels, whose owner may wait for memory, is not needed.
    pub(crate) fn commit_open(&self) -> bool {
        let open = self.open.lock();
        if let Some(channel) = &*open {
            Channel::schedule(channel.as_arc_borrow());
        }
        open.is_some()
    }

    /// Records that the channel for this side's writes is open.
    pub(super) fn opened(&self, channel: &Arc<Channel<H>>) {
        let old = self.open.lock().replace(channel.clone());
        drop(old);
    }

    /// Records that a channel is no longer open. The caller fails the writes that wait for it.
    pub(super) fn shut(&self, channel: &Channel<H>) {
        let is = |open: &mut Arc<Channel<H>>| core::ptr::eq(&**open, channel);
        let gone = self.open.lock().take_if(is);
        // Without the lock. The caller has another reference.
        drop(gone);
    }

    /// Opens the channel for this side's writes if there is none, and makes it commit.
    ///
    /// # Errors
    ///
    /// The caller fails the writes that wait for the channel.
    ///
    /// - `ENOTCONN` if the connection has ended.
    /// - An error of the connection manager, or `ENOMEM`.
    pub(crate) fn commit(&self, conn: &Arc<H>) -> Result {
        let mut state = self.state.lock();
        let identity = state.identity.filter(|_| !state.ended);
        let identity = identity.ok_or_else(enotconn)?;
        match &state.out {
            Some(channel) => Channel::schedule(channel.as_arc_borrow()),
            None => state.out = Some(Channel::open(conn, &identity)?),
        }
        Ok(())
    }

    /// Accepts a channel for the peer's writes, whose request was checked ([`Identity::check`]). It
    /// replaces a former one, which the peer has given up.
    ///
    /// # Errors
    ///
    /// - `ENOTCONN` if the connection has ended.
    /// - An error of the connection manager or of the device, or `ENOMEM`.
    pub(crate) fn accept<C: CmHandler>(
        &self,
        conn: &Arc<H>,
        id: CmId<C>,
        param: ConnParam,
    ) -> Result {
        let mut state = self.state.lock();
        let identity = state.identity.filter(|_| !state.ended);
        let identity = identity.ok_or_else(enotconn)?;
        if self.refusals.lock().is_over() {
            return Err(EACCES);
        }
        let ends = identity.ends.swapped();
        if let Some(old) = state.inward.take() {
            old.end();
        }
        state.inward = Some(Channel::accept(conn, id, param, &ends)?);
        Ok(())
    }

    /// Removes the channel for this side's writes, which has ended by itself.
    pub(super) fn forget(&self, channel: &Arc<Channel<H>>) {
        let mut state = self.state.lock();
        let gone = state.out.take_if(|out| Arc::ptr_eq(out, channel));
        drop(state);
        drop(gone);
    }

    /// Checks the channels' timeouts, once per tick.
    pub(crate) fn tick(&self) {
        // The owner of the lock may be waiting for the device.
        let Some(state) = self.state.try_lock() else {
            return;
        };
        for channel in [&state.out, &state.inward].into_iter().flatten() {
            Channel::tick(channel);
        }
    }

    /// Ends both channels for good: destroys their queue pairs and identifiers. From now on, requests
    /// do not find the connection. The caller owns a reference to the connection.
    ///
    /// Context: process; may sleep. Locking: none of the channels'.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        if let Some(place) = state.listed.take() {
            let removed = H::with_index(|index| index.remove(place));
            drop(removed);
        }
        for channel in [&state.out, &state.inward].into_iter().flatten() {
            channel.end();
        }
    }

    /// Waits until the work items of the ended channels have run, and frees the channels.
    pub(crate) fn close(&self) {
        let (out, inward) = {
            let mut state = self.state.lock();
            (state.out.take(), state.inward.take())
        };
        // Also a turn of a channel that was replaced, which queues nothing after this.
        if let Some(user) = self.user() {
            user.flush();
        }
        for channel in [out, inward].into_iter().flatten() {
            channel.flush();
        }
    }
}
