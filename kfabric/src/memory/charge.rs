// SPDX-License-Identifier: GPL-2.0
//! The charge of pinned memory: `mm->pinned_vm` against `RLIMIT_MEMLOCK`, as `ib_umem` does
//! (drivers/infiniband/core/umem.c), so that verbs and kfabric pins of one process add up.
//!
//! A charge also counts two kinds of pages that `pinned_vm` alone does not show:
//!
//! - **Lent pages.** While a device registers user memory, the core returns its charge of the
//!   memory, because the device charges the same pages. In between `pinned_vm` does not contain the
//!   pages, but no other thread may use the limit that they leave.
//! - **Orphans.** If a process exits or runs another program, its address space has no process. Its
//!   pages stay pinned while another process keeps the descriptor. They count against the limit of
//!   each later charge of the same user. Otherwise children could pin for a parent without end.
//!   Address spaces in use do not count against each other.

use core::ptr::NonNull;
use kernel::{
    bindings,
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

use crate::{
    base::share::current_payer,
    sys, //
};

/// Pages that a user has pinned with one address space.
#[derive(Default)]
struct Space {
    /// Number of [`Owner`]s of the space. While there is one, the `mm_struct` stays allocated.
    owners: usize,
    /// Pages that the owners have charged.
    pages: usize,
    /// Pages among them lent to a device's registration, and charged by neither.
    lent: usize,
}

/// Pages that a user has pinned.
struct Pinned {
    /// Address spaces, by the address of the `mm_struct`.
    spaces: RBTree<usize, Space>,
    /// Pages of address spaces without a process, which were removed from `spaces`.
    orphans: usize,
}

impl Pinned {
    /// Counts pages of address spaces without a process as orphans. Returns the number of all
    /// orphans.
    fn orphans(&mut self) -> usize {
        let mut next = self.spaces.cursor_front_mut();
        while let Some(at) = next {
            let (&mm, &Space { pages, .. }) = at.current();
            // SAFETY: The space has an owner, which holds the structure, and takes the lock before
            // dropping it.
            next = if unsafe { sys::kf_mm_gone(mm as *mut bindings::mm_struct) } {
                self.orphans += pages;
                at.remove_current().0
            } else {
                at.move_next()
            };
        }
        self.orphans
    }
}

/// A user.
#[pin_data]
struct User {
    uid: u32,
    #[pin]
    pinned: Mutex<Pinned>,
}

/// A user with pinned memory.
struct Known {
    user: Arc<User>,
    /// Number of [`Owner`]s of this user.
    owners: usize,
}

/// Users with pinned memory, by uid.
type Users = Option<RBTree<u32, Known>>;

kernel::sync::global_lock! {
    // SAFETY: Initialised at module load, before anything uses it.
    unsafe(uninit) static USERS: Mutex<Users> = None;
}

/// Initialises the list of users.
///
/// # Safety
///
/// Called once, at module load.
pub(crate) unsafe fn init() {
    // SAFETY: The caller's contract: this is called once, at module load.
    unsafe { USERS.init() }
}

/// Frees the list. Once, at module unload.
pub(crate) fn exit() {
    let users = USERS.lock().take();
    drop(users);
}

/// A reference to a user, held while pages are charged.
struct UserRef(Arc<User>);

impl UserRef {
    /// Finds or creates the current task's user.
    fn current() -> Result<Self> {
        let uid = current_payer();
        if let Some(found) = Self::find(&mut USERS.lock(), uid) {
            return Ok(found);
        }
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let user = Arc::pin_init(
            pin_init!(User {
                uid,
                pinned <- new_mutex!(Pinned { spaces: RBTree::new(), orphans: 0 }, "kfabric_pinned"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let known = Known {
            user: user.clone(),
            owners: 1,
        };
        let node = node.into_node(uid, known);
        let mut users = USERS.lock();
        // Another task may have added the user since the first search.
        if let Some(found) = Self::find(&mut users, uid) {
            drop(users);
            drop(node);
            return Ok(found);
        }
        let _ = users.get_or_insert_with(RBTree::new).insert(node);
        Ok(Self(user))
    }

    fn find(users: &mut Users, uid: u32) -> Option<Self> {
        let known = users.as_mut()?.get_mut(&uid)?;
        known.owners += 1;
        Some(Self(known.user.clone()))
    }
}

impl Drop for UserRef {
    fn drop(&mut self) {
        let gone = {
            let mut users = USERS.lock();
            let Some(users) = users.as_mut() else { return };
            let last = users.get_mut(&self.0.uid).is_some_and(|known| {
                known.owners -= 1;
                known.owners == 0
            });
            if last {
                users.remove_node(&self.0.uid)
            } else {
                None
            }
        };
        drop(gone);
    }
}

/// The owner of user memory.
///
/// # Invariants
///
/// `mm` is held by `mmgrab()`. `pages` pages are charged to `mm`, and counted for `user`.
pub(crate) struct Owner {
    mm: NonNull<bindings::mm_struct>,
    /// The owner's address of the first byte.
    pub(crate) addr: usize,
    /// Pages charged.
    pub(crate) pages: usize,
    user: UserRef,
}

// SAFETY: Any thread may hold, charge and drop the structure.
unsafe impl Send for Owner {}
// SAFETY: A shared reference only compares and charges the structure, as any thread may.
unsafe impl Sync for Owner {}

impl Owner {
    /// Charges `pages` to the current task's memory.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if the charge exceeds the task's limit.
    /// - `EFAULT` if the task has no memory.
    pub(crate) fn charge(addr: usize, pages: usize) -> Result<Self> {
        // SAFETY: The function has no preconditions.
        let mm = NonNull::new(unsafe { sys::kf_current_mm() }).ok_or(EFAULT)?;
        let user = UserRef::current()?;
        let key = mm.as_ptr().addr();
        let mut node = None;
        loop {
            let mut pinned = user.0.pinned.lock();
            if node.is_none() && pinned.spaces.get(&key).is_none() {
                // Nothing is allocated with the user locked.
                drop(pinned);
                node = Some(RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?);
                continue;
            }
            let orphans = pinned.orphans();
            let lent = pinned.spaces.get(&key).map_or(0, |space| space.lent);
            // SAFETY: The current task's `mm` is alive.
            if !unsafe { sys::kf_mm_charge(mm.as_ptr(), pages, orphans.saturating_add(lent)) } {
                return Err(ENOMEM);
            }
            // SAFETY: The current task's `mm` is alive.
            unsafe { sys::kf_mm_grab(mm.as_ptr()) };
            if pinned.spaces.get(&key).is_none() {
                if let Some(node) = node.take() {
                    let _ = pinned.spaces.insert(node.into_node(key, Space::default()));
                }
            }
            if let Some(space) = pinned.spaces.get_mut(&key) {
                space.owners += 1;
                space.pages += pages;
            }
            break;
        }
        // INVARIANT: The pages were charged and counted, and the structure was grabbed, above.
        Ok(Self {
            mm,
            addr,
            pages,
            user,
        })
    }

    /// Returns whether the current task has this memory.
    pub(crate) fn is_current(&self) -> bool {
        // SAFETY: The function has no preconditions.
        self.mm.as_ptr() == unsafe { sys::kf_current_mm() }
    }

    /// Runs `f` with the user's lock held: a bug, as `f` waits for the program.
    #[cfg(kfabric_seed_bug = "page-under-lock")]
    pub(crate) fn with_lock<T>(&self, f: impl FnOnce() -> T) -> T {
        let _pinned = self.user.0.pinned.lock();
        f()
    }

    /// Returns the charge of `pages`, so that the device can charge them. Until [`Owner::lent`], no
    /// other charge can use the limit that they leave. Only while the current task has the memory.
    pub(crate) fn lend(&self, pages: usize) {
        let mut pinned = self.user.0.pinned.lock();
        if let Some(space) = pinned.spaces.get_mut(&self.mm.as_ptr().addr()) {
            space.lent += pages;
        }
        // SAFETY: By the type invariant the structure is alive and charged.
        unsafe { sys::kf_mm_uncharge(self.mm.as_ptr(), pages) };
    }

    /// Ends a lending by [`Owner::lend`]. If the device has not `charged` the pages, the owner is
    /// charged again.
    pub(crate) fn lent(&self, pages: usize, charged: bool) {
        let mut pinned = self.user.0.pinned.lock();
        if !charged {
            self.take_back(pages);
        }
        if let Some(space) = pinned.spaces.get_mut(&self.mm.as_ptr().addr()) {
            space.lent -= pages;
        }
    }

    /// Charges `pages` that the device had charged, even beyond the limit. The device is about to
    /// return its charge, or another `ib_umem` of the program has used the limit meanwhile.
    pub(crate) fn take_back(&self, pages: usize) {
        // SAFETY: By the type invariant the structure is alive.
        unsafe { sys::kf_mm_charge_unchecked(self.mm.as_ptr(), pages) };
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let gone = {
            let mut pinned = self.user.0.pinned.lock();
            // SAFETY: By the type invariant the structure is alive and charged.
            unsafe { sys::kf_mm_uncharge(self.mm.as_ptr(), self.pages) };
            let key = self.mm.as_ptr().addr();
            let last = match pinned.spaces.get_mut(&key) {
                Some(space) => {
                    space.owners -= 1;
                    space.pages -= self.pages;
                    space.owners == 0
                }
                None => {
                    pinned.orphans -= self.pages;
                    false
                }
            };
            if last {
                pinned.spaces.remove_node(&key)
            } else {
                None
            }
        };
        drop(gone);
        // SAFETY: By the type invariant the structure is held. No task accesses it under the lock
        // any more.
        unsafe { sys::kf_mm_drop(self.mm.as_ptr()) };
    }
}
