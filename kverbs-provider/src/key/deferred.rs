// SPDX-License-Identifier: GPL-2.0
//! Holds of a domain's operations: while ordered keys are assigned, operations that are posted
//! after them are deferred to the transmit sides of the domain's endpoints.

use core::{
    ptr,
    sync::atomic::{
        AtomicBool,
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
        ArcBorrow,
        Mutex, //
    }, //
};

/// An endpoint that can defer operations.
pub(crate) trait Deferring: Send + Sync {
    /// Posts the deferred operations whose holds have been resumed.
    fn resume(self: ArcBorrow<'_, Self>);
}

/// Returns the address of an endpoint, which identifies the endpoint.
fn address(endpoint: &dyn Deferring) -> usize {
    ptr::from_ref(endpoint).cast::<()>().addr()
}

/// Counts the holds and resumes of operations on a domain.
#[pin_data]
pub(crate) struct Holds {
    holds: AtomicU64,
    resumed: AtomicU64,
    /// True if an endpoint may have deferred operations.
    held: AtomicBool,
    /// The domain's endpoints, by address. A task that owns this lock neither allocates nor waits.
    #[pin]
    endpoints: Mutex<RBTree<usize, Arc<dyn Deferring>>>,
}

impl Holds {
    /// Returns counters without any hold, and no endpoints.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            holds: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            held: AtomicBool::new(false),
            endpoints <- new_mutex!(RBTree::new(), "kverbs_holds"),
        })
    }

    /// Adds an endpoint to those that [`Holds::resume`] resumes, until [`Holds::remove`].
    pub(crate) fn add(&self, endpoint: Arc<dyn Deferring>) -> Result {
        let node = RBTreeNode::new(address(&*endpoint), endpoint, GFP_KERNEL_ACCOUNT)?;
        // Cannot replace an entry: the endpoint is new.
        let _ = self.endpoints.lock().insert(node);
        Ok(())
    }

    /// Removes an endpoint from those that [`Holds::resume`] resumes.
    pub(crate) fn remove(&self, endpoint: &dyn Deferring) {
        let removed = self.endpoints.lock().remove(&address(endpoint));
        // Drop without the lock: this may be the last reference to the endpoint.
        drop(removed);
    }

    /// Defers operations that are posted from now on, on all endpoints of the domain. An operation
    /// stays deferred until each call of `hold` made before its post has had its call of
    /// [`Holds::resume`].
    pub(crate) fn hold(&self) {
        self.holds.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends one hold, and resumes the endpoints if one has deferred operations.
    pub(crate) fn resume(&self) {
        self.resumed.fetch_add(1, Ordering::SeqCst);
        if self.held.swap(false, Ordering::SeqCst) {
            for endpoint in self.endpoints.lock().values() {
                endpoint.as_arc_borrow().resume();
            }
        }
    }

    /// Returns the number of calls of [`Holds::resume`] after which an operation posted now may be
    /// posted to the device.
    ///
    /// Context: any.
    pub(crate) fn holds(&self) -> u64 {
        self.holds.load(Ordering::SeqCst)
    }

    /// Returns the number of calls of [`Holds::resume`] so far.
    ///
    /// Context: any.
    pub(crate) fn resumed(&self) -> u64 {
        self.resumed.load(Ordering::SeqCst)
    }

    /// Records that an endpoint has deferred an operation. After the call, the caller checks again
    /// whether the operation may be posted.
    ///
    /// Context: any.
    pub(crate) fn note_held(&self) {
        self.held.store(true, Ordering::SeqCst);
    }
}
