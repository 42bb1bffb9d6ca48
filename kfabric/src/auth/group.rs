// SPDX-License-Identifier: GPL-2.0
//! The protection groups of a domain's auth keys: one for each, created at its first use, shared,
//! and dropped after its last use.

use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        Arc,
        Mutex, //
    }, //
};

use super::auth_key::AuthKey;
use crate::provider::{
    DomainOps,
    GroupOps,
    KeyValues, //
};

/// A protection group in use.
struct Used {
    group: Arc<dyn GroupOps>,
    users: usize,
}

/// The groups of a domain, by the number of their auth key.
#[pin_data]
pub(crate) struct Groups {
    #[pin]
    list: Mutex<RBTree<u64, Used>>,
}

/// A reference to a protection group in use.
pub(crate) struct GroupRef {
    // Dropped before the list's reference.
    group: Arc<dyn GroupOps>,
    // Keeps the number in use, and so the entry of the list.
    key: AuthKey,
    groups: Arc<Groups>,
}

impl Groups {
    /// Creates an empty list.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let made = pin_init!(Self { list <- new_mutex!(RBTree::new(), "kfabric_groups") });
        Arc::pin_init(made, GFP_KERNEL_ACCOUNT)
    }

    /// Returns the protection group of `key`; creates the group, with the rule `values` for its key
    /// values, if there is none.
    ///
    /// # Errors
    ///
    /// The provider's error, and:
    ///
    /// - `EOPNOTSUPP` if the provider cannot separate groups.
    pub(crate) fn get(
        this: &Arc<Self>,
        domain: &Arc<dyn DomainOps>,
        key: &AuthKey,
        values: KeyValues,
    ) -> Result<GroupRef> {
        let mut list = this.list.lock();
        let made = |group: &Arc<dyn GroupOps>| GroupRef {
            group: group.clone(),
            key: key.clone(),
            groups: this.clone(),
        };
        let number = key.number();
        if let Some(used) = list.get_mut(&number) {
            used.users += 1;
            return Ok(made(&used.group));
        }
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let group = domain.group(Some(key.prover()?), values)?;
        let result = made(&group);
        let used = Used { group, users: 1 };
        // Cannot replace an entry: there is none of that number.
        let _ = list.insert(node.into_node(number, used));
        Ok(result)
    }
}

impl GroupRef {
    /// The provider's part.
    pub(crate) fn ops(&self) -> &Arc<dyn GroupOps> {
        &self.group
    }
}

impl Drop for GroupRef {
    fn drop(&mut self) {
        let mut list = self.groups.list.lock();
        let number = self.key.number();
        let last = list.get_mut(&number).is_some_and(|used| {
            used.users -= 1;
            used.users == 0
        });
        let gone = if last {
            list.remove_node(&number)
        } else {
            None
        };
        drop(list);
        drop(gone);
    }
}
