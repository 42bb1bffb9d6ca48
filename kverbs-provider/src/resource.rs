// SPDX-License-Identifier: GPL-2.0
//! What there is of ours on a device, so that it can be ended when the device goes.

use core::sync::atomic::{
    AtomicU64,
    Ordering, //
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

/// Something on a device.
pub(crate) trait Resource: Send + Sync {
    /// The device is going: when this returns, nothing of the RDMA core's is left of it. Called
    /// at most once, in process context, without locks.
    fn device_gone(&self);

    /// Called every [`TICK_MS`](crate::limits::TICK_MS) or so. Does not sleep for long.
    fn tick(&self) {}

    /// Ends a connection with a positive errno: when this returns nothing reaches anything by it.
    /// Who is told of that is told later, and not waited for: he may be waiting for the caller.
    fn fail(&self, _err: u32) {}
}

/// The order in which resources are ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// What could make endpoints: listeners and requests.
    Passive,
    /// Connections.
    Endpoint,
    /// Keys, which peers may be using.
    Key,
    /// Mappings, which endpoints used.
    Region,
    /// Protection domains.
    Group,
    /// The core's domain, told last.
    Domain,
}

/// A resource's place in the list.
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
    /// None.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(RBTree::new(), "kverbs_resources"),
            next: AtomicU64::new(0),
        })
    }

    /// Adds one. To be called with proof that the device is registered, so that it is not missed.
    pub(crate) fn add(&self, class: Class, resource: Arc<dyn Resource>) -> Result<Ticket> {
        let ticket = Ticket(class, self.next.fetch_add(1, Ordering::Relaxed));
        // Before the lock: what others' memory waits for may want it.
        let node = RBTreeNode::new(ticket, resource, GFP_KERNEL_ACCOUNT)?;
        // There is none of that number.
        let _ = self.list.lock().insert(node);
        Ok(ticket)
    }

    /// Takes one out that has ended, if it is still there. Not before it has: the device would be
    /// gone without waiting for it.
    pub(crate) fn remove(&self, ticket: Ticket) {
        let taken = self.list.lock().remove(&ticket);
        // Not under the lock.
        drop(taken);
    }

    /// Takes the first one out.
    fn pop(&self) -> Option<Arc<dyn Resource>> {
        let mut list = self.list.lock();
        let ticket = *list.keys().next()?;
        list.remove(&ticket)
    }

    /// Ends all.
    pub(crate) fn end_all(&self) {
        while let Some(resource) = self.pop() {
            resource.device_gone();
        }
    }

    /// Ends all connections with a positive errno.
    pub(crate) fn fail_endpoints(&self, err: u32) {
        let mut after = None;
        loop {
            let found = {
                let list = self.list.lock();
                let next = list
                    .iter()
                    .find(|(ticket, _)| ticket.0 == Class::Endpoint && Some(**ticket) > after);
                next.map(|(ticket, resource)| (*ticket, resource.clone()))
            };
            let Some((ticket, resource)) = found else {
                return;
            };
            resource.fail(err);
            after = Some(ticket);
        }
    }

    /// Ticks all of a class.
    pub(crate) fn tick(&self, class: Class) {
        let list = self.list.lock();
        // In order of class; there may be many keys after the endpoints.
        for (ticket, resource) in list.iter() {
            if ticket.0 > class {
                break;
            }
            if ticket.0 == class {
                resource.tick();
            }
        }
    }
}
