// SPDX-License-Identifier: GPL-2.0
//! What is bound to an endpoint with keys of its own: key slots whose keys are valid on it alone,
//! and which end before it does.

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
    rbtree::RBTree,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use crate::key::Key;

/// What is behind the lock.
struct List {
    /// By address.
    keys: RBTree<usize, Arc<Key>>,
    /// Nothing is bound any more.
    ended: bool,
}

/// The slots that are bound to an endpoint. A slot holds it, and not the endpoint.
#[pin_data]
pub(crate) struct Bound {
    /// The endpoint's handle; 0: it has none.
    handle: AtomicU64,
    #[pin]
    list: Mutex<List>,
}

impl Bound {
    /// None.
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

    /// The endpoint's handle; 0: it has none.
    pub(crate) fn handle(&self) -> u64 {
        self.handle.load(Ordering::Relaxed)
    }

    /// `ENOENT` once the endpoint ends.
    pub(crate) fn check(&self) -> Result {
        if self.list.lock().ended {
            return Err(ENOENT);
        }
        Ok(())
    }

    /// Binds a slot, until it is [removed](Self::remove) or the endpoint ends.
    ///
    /// # Errors
    ///
    /// `ENOENT`: the endpoint ends.
    pub(crate) fn add(&self, key: &Arc<Key>) -> Result {
        let mut list = self.list.lock();
        if list.ended {
            return Err(ENOENT);
        }
        let address = from_ref::<Key>(key).addr();
        list.keys
            .try_create_and_insert(address, key.clone(), GFP_KERNEL_ACCOUNT)?;
        Ok(())
    }

    /// Takes a slot off, if it is still there.
    pub(crate) fn remove(&self, key: &Key) {
        let removed = self.list.lock().keys.remove(&from_ref(key).addr());
        // Not under the lock.
        drop(removed);
    }

    /// The first that lies behind `address`, and where.
    fn behind(&self, address: usize) -> Option<(usize, Arc<Key>)> {
        let list = self.list.lock();
        let from = address.checked_add(1)?;
        let cursor = list.keys.cursor_lower_bound(&from)?;
        let (address, key) = cursor.current();
        Some((*address, key.clone()))
    }

    /// Calls `each` with all of them, until it fails.
    pub(crate) fn for_each(&self, mut each: impl FnMut(Arc<Key>) -> Result) -> Result {
        let mut at = 0;
        while let Some((address, key)) = self.behind(at) {
            at = address;
            each(key)?;
        }
        Ok(())
    }

    /// Has nothing bound any more, and one of what is.
    pub(crate) fn end_next(&self) -> Option<Arc<Key>> {
        let mut list = self.list.lock();
        list.ended = true;
        let first = list.keys.values().next().cloned();
        first
    }
}
