// SPDX-License-Identifier: GPL-2.0
//! The slots that are bound to an endpoint with endpoint-scoped keys. Their keys are valid on that
//! endpoint alone, and are revoked before the endpoint is closed.

use core::{
    ptr::from_ref,
    sync::atomic::{
        AtomicU64,
        Ordering, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        Mutex, //
    }, //
};

use super::slot::Key;

/// The state under the lock.
struct List {
    /// Slots, by address.
    keys: RBTree<usize, Arc<Key>>,
    /// The endpoint is being closed: no slot can be bound.
    ended: bool,
}

/// The slots that are bound to an endpoint. A slot holds this list, and not the endpoint.
#[pin_data]
pub(crate) struct Bound {
    /// The endpoint's handle; 0 for a kernel consumer's.
    handle: AtomicU64,
    #[pin]
    list: Mutex<List>,
}

impl Bound {
    /// Creates an empty list.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let list = List {
            keys: RBTree::new(),
            ended: false,
        };
        let made = pin_init!(Self {
            handle: AtomicU64::new(0),
            list <- new_mutex!(list, "kfabric_bound"),
        });
        Arc::pin_init(made, GFP_KERNEL_ACCOUNT)
    }

    pub(crate) fn set_handle(&self, handle: u64) {
        self.handle.store(handle, Ordering::Relaxed);
    }

    /// The endpoint's handle; 0 for a kernel consumer's.
    pub(crate) fn handle(&self) -> u64 {
        self.handle.load(Ordering::Relaxed)
    }

    /// Returns `ENOENT` if the endpoint is being closed.
    pub(crate) fn check(&self) -> Result {
        if self.list.lock().ended {
            return Err(ENOENT);
        }
        Ok(())
    }

    /// Binds a slot, until the slot is [removed](Self::remove) or the endpoint is closed.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if the endpoint is being closed.
    pub(crate) fn add(&self, key: &Arc<Key>) -> Result {
        let address = from_ref::<Key>(key).addr();
        // Before the lock: the end of a grant takes the lock, and must not wait for a cgroup's
        // reclaim.
        let node = RBTreeNode::new(address, key.clone(), GFP_KERNEL_ACCOUNT)?;
        let mut list = self.list.lock();
        if list.ended {
            drop(list);
            drop(node);
            return Err(ENOENT);
        }
        // Cannot replace an entry: the slot is new.
        let _ = list.keys.insert(node);
        Ok(())
    }

    /// Removes a slot, if it is still bound.
    pub(crate) fn remove(&self, key: &Key) {
        let removed = self.list.lock().keys.remove(&from_ref(key).addr());
        // Drop without the lock.
        drop(removed);
    }

    /// Returns the first slot above `address`, and its address.
    fn behind(&self, address: usize) -> Option<(usize, Arc<Key>)> {
        let list = self.list.lock();
        let from = address.checked_add(1)?;
        let cursor = list.keys.cursor_lower_bound(&from)?;
        let (address, key) = cursor.current();
        Some((*address, key.clone()))
    }

    /// Calls `each` for all slots, until it fails.
    pub(crate) fn for_each(&self, mut each: impl FnMut(Arc<Key>) -> Result) -> Result {
        let mut at = 0;
        while let Some((address, key)) = self.behind(at) {
            at = address;
            each(key)?;
        }
        Ok(())
    }

    /// Refuses further slots; returns one of the bound slots, which the caller closes.
    pub(crate) fn end_next(&self) -> Option<Arc<Key>> {
        let mut list = self.list.lock();
        list.ended = true;
        let first = list.keys.values().next().cloned();
        first
    }
}
