// SPDX-License-Identifier: GPL-2.0
//! A group of the provider's for each auth key of a domain: made with its first use, shared, and
//! kept while it is used.

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

use super::key::AuthKey;
use crate::provider::{
    DomainOps,
    GroupOps, //
};

/// One that is in use.
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

/// The use of one.
pub(crate) struct GroupRef {
    // Dropped before what keeps the list.
    group: Arc<dyn GroupOps>,
    // Keeps the number, and with it the place on the list.
    key: AuthKey,
    groups: Arc<Groups>,
}

impl Groups {
    /// None yet.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let made = pin_init!(Self { list <- new_mutex!(RBTree::new(), "kfabric_groups") });
        Arc::pin_init(made, GFP_KERNEL_ACCOUNT)
    }

    /// That of `key`, made if there is none.
    ///
    /// # Errors
    ///
    /// What the provider says: `EOPNOTSUPP`: it cannot keep any apart.
    pub(crate) fn get(
        this: &Arc<Self>,
        domain: &Arc<dyn DomainOps>,
        key: &AuthKey,
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
        let group = domain.group(Some(key.prover()?), false)?;
        let result = made(&group);
        let used = Used { group, users: 1 };
        // There is none of that number.
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
