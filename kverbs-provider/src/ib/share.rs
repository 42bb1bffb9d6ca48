// SPDX-License-Identifier: GPL-2.0
//! Shares of users in the memory of device drivers. Drivers allocate in the kernel's name, and no
//! memory cgroup is charged. Therefore each user has a limit (`user_mib`).

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    }, //
};

use super::raw;
use kfabric::base::{
    errno::edquot,
    share::current_payer, //
};

/// Bytes counted for an object without queues: an estimate of rxe's memory for one.
pub(super) const OBJECT: usize = 2048;
/// Bytes counted for an operation in a queue: an estimate of rxe's memory for a work request and
/// its completion.
pub(super) const OPERATION: usize = 1280;
/// Bytes counted for a page of a memory region's page list: drivers allocate 8 to 16.
pub(super) const PAGE: usize = 16;

/// The objects of a user.
struct User {
    /// Bytes counted for the objects.
    bytes: usize,
    /// Number of the user's [`Share`]s.
    shares: usize,
}

kernel::sync::global_lock! {
    // SAFETY: `Users::new` initialises the lock at module load, before the client is registered.
    unsafe(uninit) static USERS: Mutex<Option<RBTree<u32, User>>> = None;
}

/// Owns the table of users. Dropping it frees the table.
pub(crate) struct Users(());

impl Users {
    /// Initialises the table.
    ///
    /// # Safety
    ///
    /// The caller calls this function once, at module load, before the client is registered.
    pub(crate) unsafe fn new() -> Self {
        // SAFETY: The caller calls `new` once, before any use of the lock.
        unsafe { USERS.init() };
        Self(())
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        let users = USERS.lock().take();
        drop(users);
    }
}

/// Returns the number of the user who pays for the current task, if the task has limits.
pub(crate) fn limited_user() -> Option<u32> {
    // SAFETY: The function has no preconditions.
    let limit = unsafe { raw::kverbs_user_limit() };
    (limit != u64::MAX).then(current_payer)
}

/// Bytes counted for a user; dropping the value releases them.
pub(super) struct Share {
    uid: u32,
    bytes: usize,
    /// The user's limit when the share was made.
    limit: usize,
}

impl Share {
    /// Counts `bytes` for the user who pays for the current task.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the user would have more than `user_mib`, and the task lacks
    ///   `CAP_SYS_RESOURCE`.
    /// - `ENOMEM` if there is no memory for the entry.
    pub(super) fn new(bytes: usize) -> Result<Self> {
        // SAFETY: The function has no preconditions.
        let limit = unsafe { raw::kverbs_user_limit() };
        // CAST: Both are 64 bits wide.
        Self::of(current_payer(), bytes, limit as usize)
    }

    /// Counts `bytes` more for the user of this share, in any task, with the limit of this share.
    ///
    /// # Errors
    ///
    /// As [`Share::new`].
    pub(super) fn more(&self, bytes: usize) -> Result<Self> {
        Self::of(self.uid, bytes, self.limit)
    }

    fn of(uid: u32, bytes: usize, limit: usize) -> Result<Self> {
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let mut users = USERS.lock();
        let users = users.get_or_insert_with(RBTree::new);
        let had = users.get(&uid).map_or(0, |user| user.bytes);
        let sum = had.saturating_add(bytes);
        if sum > limit {
            return Err(edquot());
        }
        match users.get_mut(&uid) {
            Some(user) => {
                user.bytes = sum;
                user.shares += 1;
            }
            None => {
                let user = User {
                    bytes: sum,
                    shares: 1,
                };
                let _ = users.insert(node.into_node(uid, user));
            }
        }
        Ok(Self { uid, bytes, limit })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let gone = {
            let mut users = USERS.lock();
            let Some(users) = users.as_mut() else { return };
            let last = users.get_mut(&self.uid).is_some_and(|user| {
                user.bytes -= self.bytes;
                user.shares -= 1;
                user.shares == 0
            });
            if last {
                users.remove_node(&self.uid)
            } else {
                None
            }
        };
        drop(gone);
    }
}
