// SPDX-License-Identifier: GPL-2.0
//! The connections for which peers may open channels, by device and number of the queue pair.
//!
//! A connection is in the index from the moment at which its peer can know its queue pair, until it
//! ends. It leaves the index before its queue pair is destroyed. So no two have the same place.

use kernel::{
    rbtree::{
        RBTree,
        RBTreeNode,
        RBTreeNodeReservation, //
    },
    sync::Arc, //
};

use super::channels::Identity;
use crate::device::Device;

/// The place of a connection: the address of its device, and the number of its queue pair.
pub(super) type Place = (usize, u32);

/// Returns the place of the queue pair `qp` of a device.
fn place(device: &Arc<Device>, qp: u32) -> Place {
    (Arc::as_ptr(device).addr(), qp)
}

/// A connection in the index.
pub(crate) struct Entry<H> {
    conn: Arc<H>,
    identity: Identity,
}

/// Memory for a connection in the index.
pub(super) type Room<H> = RBTreeNodeReservation<Place, Entry<H>>;

/// An entry that the index does not have any more. It is dropped without the lock of the index.
pub(super) type Removed<H> = Option<RBTreeNode<Place, Entry<H>>>;

/// The connections.
pub(crate) struct Index<H>(RBTree<Place, Entry<H>>);

impl<H> Index<H> {
    /// Returns an empty index.
    pub(crate) fn new() -> Self {
        Self(RBTree::new())
    }

    /// Adds a connection of `device`, whose queue pair exists. Returns its place.
    pub(super) fn add(
        &mut self,
        room: Room<H>,
        device: &Arc<Device>,
        conn: &Arc<H>,
        identity: Identity,
    ) -> Place {
        let place = place(device, identity.ends.initiator.qp);
        let entry = Entry {
            conn: conn.clone(),
            identity,
        };
        // Cannot replace an entry, by the uniqueness of queue pairs.
        let _ = self.0.insert(room.into_node(place, entry));
        place
    }

    /// Removes the connection at this place.
    pub(super) fn remove(&mut self, place: Place) -> Removed<H> {
        self.0.remove_node(&place)
    }

    /// Returns the connection with the queue pair `qp` of `device`, and its identity.
    pub(super) fn find(&self, device: &Arc<Device>, qp: u32) -> Option<(Arc<H>, Identity)> {
        let entry = self.0.get(&place(device, qp))?;
        Some((entry.conn.clone(), entry.identity))
    }
}
