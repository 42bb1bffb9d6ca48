// SPDX-License-Identifier: GPL-2.0
//! The provider's objects on a device, so that they can be ended when the device is removed.

use core::{
    sync::atomic::{
        AtomicU64,
        Ordering, //
    }, //
};
use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

/// Identifies a protection group: its address, while the group exists.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupId(usize);

impl GroupId {
    /// Returns the identity of the group at `address`.
    pub(crate) fn new(address: usize) -> Self {
        Self(address)
    }
}

/// An object on a device.
pub(crate) trait Resource: Send + Sync {
    /// Frees all objects of the RDMA core before it returns, because the device is being removed.
    ///
    /// Called at most once. Context: process. Locking: none held.
    fn device_gone(&self);

    /// Does periodic work, about every [`TICK_MS`](crate::limits::TICK_MS). Does not sleep for
    /// long.
    fn tick(&self) {}

    /// Ends the connection with a positive errno, if it is of `group`.
    ///
    /// When this returns, no peer can access memory by the connection. The consumer is notified
    /// later, because it may be waiting for the caller.
    fn fail(&self, _group: GroupId, _err: u32) {}
}

/// The order in which resources are ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Objects that can create endpoints: listeners and requests.
    Passive,
    /// Connections of endpoints.
    Endpoint,
    /// Keys, which peers may be using.
    Key,
    /// Regions, which endpoints used.
    Region,
    /// Protection domains of groups.
    Group,
    /// The core's domain, notified last.
    Domain,
}

/// A resource's position in the list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(Class, u64);

/// The resources of a device.
#[pin_data]
pub(crate) struct Resources {
    #[pin]
    list: Mutex<RBTree<Ticket, Arc<dyn Resource>>>,
    next: AtomicU64,
}

impl Resources {
    /// Returns an empty list.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(RBTree::new(), "kverbs_resources"),
            next: AtomicU64::new(0),
        })
    }

    /// Adds a resource. The caller has proof that the device is registered, so a removal finds it.
    pub(crate) fn add(&self, class: Class, resource: Arc<dyn Resource>) -> Result<Ticket> {
        let ticket = Ticket(class, self.next.fetch_add(1, Ordering::Relaxed));
        // Allocate before the lock: memory reclaim may depend on a task that waits for the lock.
        let node = RBTreeNode::new(ticket, resource, GFP_KERNEL_ACCOUNT)?;
        // Cannot replace an entry: the number is new.
        let _ = self.list.lock().insert(node);
        Ok(ticket)
    }

    /// Removes a resource that has ended, if it is still listed. A removal before its end would let
    /// a device removal finish without waiting for it.
    pub(crate) fn remove(&self, ticket: Ticket) {
        let taken = self.list.lock().remove(&ticket);
        // Drop the reference without the lock.
        drop(taken);
    }

    /// Removes the first resource.
    fn pop(&self) -> Option<Arc<dyn Resource>> {
        let mut list = self.list.lock();
        let ticket = *list.keys().next()?;
        list.remove(&ticket)
    }

    /// Ends all resources in the order of their classes.
    pub(crate) fn end_all(&self) {
        while let Some(resource) = self.pop() {
            resource.device_gone();
        }
    }

    /// Ends all connections of a group with a positive errno.
    pub(crate) fn fail_endpoints(&self, group: GroupId, err: u32) {
        self.for_each(Class::Endpoint, |resource| resource.fail(group, err));
    }

    /// Ticks all resources of a class.
    pub(crate) fn tick(&self, class: Class) {
        self.for_each(class, |resource| resource.tick());
    }

    /// Calls `act` with each resource of a class, without the lock. May miss resources that are
    /// added meanwhile.
    fn for_each(&self, class: Class, act: impl Fn(&dyn Resource)) {
        let mut next = Ticket(class, 0);
        loop {
            let resource = {
                let list = self.list.lock();
                list.cursor_lower_bound(&next).and_then(|cursor| {
                    let (ticket, resource) = cursor.current();
                    (ticket.0 == class).then(|| (*ticket, resource.clone()))
                })
            };
            let Some((Ticket(_, number), resource)) = resource else {
                return;
            };
            act(&*resource);
            next = Ticket(class, number + 1);
        }
    }
}
