// SPDX-License-Identifier: GPL-2.0
//! The channels of a connection.

use core::sync::atomic::{
    AtomicU32,
    Ordering, //
};
use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use super::{
    link::Channel,
    Owner, //
};
use crate::{
    data::level,
    ib::{
        cm::{
            CmHandler,
            CmId,
            ConnParam, //
        },
        sockaddr,
        work, //
    }, //
};
use kfabric::{
    base::errno::{
        enotconn,
        eopnotsupp, //
    },
    pure::{
        commit::{
            Ends,
            Hello, //
        },
        proof::Mac, //
    },
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

/// State of the channels.
struct State<H: Owner> {
    identity: Option<Identity>,
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
    /// Number of the connection's queue pair, for searches without the lock; 0: not known yet.
    qp: AtomicU32,
    #[pin]
    state: Mutex<State<H>>,
}

impl<H: Owner> Channels<H> {
    /// Returns the channels of a new connection, without any.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            qp: AtomicU32::new(0),
            state <- new_mutex!(State {
                identity: None,
                out: None,
                inward: None,
                ended: false,
            }, "kverbs_channels"),
        })
    }

    /// Sets the identity of the connection, before the peer can open a channel.
    pub(crate) fn identify(&self, identity: Identity) {
        self.state.lock().identity = Some(identity);
        self.qp.store(identity.ends.initiator.qp, Ordering::Release);
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

    /// Accepts a channel for the peer's writes. It replaces a former one, which the peer has given up.
    ///
    /// # Errors
    ///
    /// - `EACCES` if the request does not come from the connection's peer.
    /// - `EOPNOTSUPP` if the device cannot make writes durable.
    /// - `ENOTCONN` if the connection has ended.
    /// - An error of the connection manager or of the device, or `ENOMEM`.
    pub(crate) fn accept<C: CmHandler>(
        &self,
        conn: &Arc<H>,
        id: CmId<C>,
        param: ConnParam,
        hello: &Hello,
    ) -> Result {
        let mut state = self.state.lock();
        let identity = state.identity.filter(|_| !state.ended);
        let identity = identity.ok_or_else(enotconn)?;
        if !sockaddr::same_host(&id.peer_addr(), &identity.peer) {
            return Err(EACCES);
        }
        let ends = identity.ends.swapped();
        let check = |text: &[u8], mac: &Mac| match conn.group().proof() {
            Some(proof) => proof.check(text, mac),
            None => *mac == Mac::default(),
        };
        if !hello.is_request(&ends, param.qp_num, check) {
            return Err(EACCES);
        }
        if level::durable(conn.group().device().ib()) == KFI_REACH_NO {
            return Err(eopnotsupp());
        }
        if let Some(old) = state.inward.take() {
            old.end();
        }
        state.inward = Some(Channel::accept(conn, id, param, &ends)?);
        Ok(())
    }

    /// Returns whether a request for a channel names this connection's queue pair. Takes no lock.
    pub(crate) fn is_meant(&self, hello: &Hello) -> bool {
        let qp = self.qp.load(Ordering::Acquire);
        qp != 0 && qp == hello.target()
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

    /// Ends both channels for good: destroys their queue pairs and identifiers.
    ///
    /// Context: process; may sleep. Locking: none of the channels'.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
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
        for channel in [out, inward].into_iter().flatten() {
            if !channel.is_current() {
                work::flush(&channel);
            }
        }
    }
}
