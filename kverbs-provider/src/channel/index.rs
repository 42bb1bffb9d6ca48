// SPDX-License-Identifier: GPL-2.0
//! The connections of a device for which peers may open channels, by the number of their queue pair.
//!
//! A connection is in the index from the moment at which its peer can know its queue pair, until it
//! ends. It leaves the index before its queue pair is destroyed. So no two have the same number.

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use super::channels::Identity;

/// An entry of the index.
pub(super) struct Entry<H> {
    conn: Arc<H>,
    identity: Identity,
}

/// Memory for a connection's entry.
pub(super) type Room<H> = RBTreeNodeReservation<u32, Entry<H>>;

/// The connections of a device.
#[pin_data]
pub(crate) struct Index<H> {
    #[pin]
    tree: Mutex<RBTree<u32, Entry<H>>>,
}

impl<H> Index<H> {
    /// Returns an empty index.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            tree <- new_mutex!(RBTree::new(), "kverbs_channel_index"),
        })
    }

    /// Adds a connection, whose queue pair exists. Returns the number of the queue pair.
    pub(super) fn add(&self, room: Room<H>, conn: &Arc<H>, identity: Identity) -> u32 {
        let qp = identity.ends.initiator.qp;
        let entry = Entry {
            conn: conn.clone(),
            identity,
        };
        let old = self.tree.lock().insert(room.into_node(qp, entry));
        // `None`, by the uniqueness of queue pairs.
        drop(old);
        qp
    }

    /// Removes the connection with this queue pair. The caller owns a reference to the connection.
    pub(super) fn remove(&self, qp: u32) {
        let node = self.tree.lock().remove_node(&qp);
        drop(node);
    }

    /// Returns the connection with this queue pair, and its identity.
    pub(super) fn find(&self, qp: u32) -> Option<(Arc<H>, Identity)> {
        let tree = self.tree.lock();
        let entry = tree.get(&qp)?;
        Some((entry.conn.clone(), entry.identity))
    }
}
