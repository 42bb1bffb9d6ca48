// SPDX-License-Identifier: GPL-2.0
//! Commit channels: connections between two kernels, beside the connections of endpoints, by which a
//! target's kernel makes writes durable. The messages are in [`kfabric::pure::commit`].
//!
//! A connection of endpoints has up to two channels, one for each direction. The end whose writes are to
//! be durable opens its channel with the first commit. The target accepts the channel through a listener
//! of its network namespace, which exists while a domain there has persistent memory registered.
//! A channel is in a protection domain of its own, without keys, and under the endpoint's auth key.
//!
//! Locking: the control lock of a connection, then [`Channels`], then the control lock of a channel. A
//! channel's work item holds none of them while it writes cache lines back. It calls no consumer's
//! handler: another work item of the connection completes the writes, on a work queue of its own. Nor
//! does a work item that serves commits create a channel, which may wait for memory.
//!
//! A channel ends before its connection does: [`Channels::end`] destroys the queue pair and the identifier.
//! The close of an endpoint then waits for the channels' work items.
//!
//! | module | contents |
//! |---|---|
//! | [`channels`] | the channels of a connection |
//! | [`index`] | the connections by their queue pairs, for requests |
//! | [`link`] | a channel: its queue pair and its connection |
//! | [`serve`] | the target's side: commits |
//! | [`user`] | turns of the users' channels |
//! | [`listener`] | the listener of a network namespace |

pub(crate) mod channels;
pub(crate) mod index;
mod link;
pub(crate) mod listener;
mod serve;
pub(crate) mod user;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    ib::{
        memcg::MemCgroup,
        qp::QpSize, //
    },
    key::group::Group, //
};
use kfabric::{
    pure::commit::{
        Range,
        RANGES_MAX, //
    },
    sys::net::Net, //
};

/// The connection to which channels belong.
pub(crate) trait Owner: Send + Sync + Sized + 'static {
    /// Returns the connection's protection group.
    fn group(&self) -> &Arc<Group>;

    /// Returns the memory cgroup of the endpoint's creator.
    fn memcg(&self) -> &MemCgroup;

    /// Returns the user that has created the endpoint, on a device with durable writes.
    fn user(&self) -> Option<&Arc<user::User<Self>>>;

    /// Returns the endpoint's network namespace.
    fn net(&self) -> &Net;

    /// Returns the connection's channels.
    fn channels(&self) -> &channels::Channels<Self>;

    /// Calls `act` with the index of connections, whose lock is held meanwhile.
    fn with_index<T>(act: impl FnOnce(&mut index::Index<Self>) -> T) -> T;

    /// Calls `act` with the users of connections, whose lock is held meanwhile.
    fn with_users<T>(act: impl FnOnce(&mut user::Users<Self>) -> T) -> T;

    /// Begins a COMMIT of the writes that wait for it, if none is outstanding. Stores the ranges, and
    /// returns the number of the COMMIT and the number of the ranges.
    fn begin_commit(&self, ranges: &mut [Range; RANGES_MAX]) -> Option<(u64, usize)>;

    /// Completes the writes of the outstanding COMMIT with the ANSWER `message`, in another work item.
    ///
    /// # Errors
    ///
    /// - `EPROTO` if the message is not that.
    fn committed(this: &Arc<Self>, message: &[u8]) -> Result;

    /// Completes all writes that wait for a commit with an error, in another work item.
    fn fail_commits(this: &Arc<Self>, why: Error);

    /// Schedules a commit, if writes wait for it.
    fn commit_again(this: &Arc<Self>);

    /// Ends the connection, whose peer has tried too many keys.
    fn distrust(this: &Arc<Self>);
}

/// Port of the listeners, in rdma_cm's port space of TCP, which RoCE does not share with TCP. Binding
/// to it takes `CAP_NET_BIND_SERVICE`.
const PORT: u16 = 1013;

/// One of this many messages has a send completion, which costs an interrupt and a worker's run.
const SENDS: u32 = 8;

/// Size of a channel's queue pair: one message in each direction, and those that the device has sent
/// without a completion.
const SIZE: QpSize = QpSize {
    tx: SENDS,
    rx: 1,
    sge: 1,
    read_sge: 1,
    write_sge: 1,
    of_owner: true,
};
