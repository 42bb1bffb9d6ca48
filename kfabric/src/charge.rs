// SPDX-License-Identifier: GPL-2.0
//! What pinned memory is charged to: `mm->pinned_vm` against `RLIMIT_MEMLOCK`, as `ib_umem` does
//! (drivers/infiniband/core/umem.c), so that verbs and kfabric pins of one process sum up.
//!
//! Two things `pinned_vm` alone does not tell, and a charge looks at both:
//!
//! * **Lent pages.** While a device registers user memory that the core has charged, the core gives its
//!   charge back, because the device charges the same pages. In between nothing in `pinned_vm` stands for
//!   them, and another thread must not be let in on their account.
//! * **Orphans.** Pages of an address space that no process has any more (its process has exited, or has
//!   run another program) stay pinned while another process keeps the descriptor. They count against the
//!   limit of each later charge of the same user, or children could pin for a parent without end.
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

use crate::sys;

/// What a user has pinned with one address space.
#[derive(Default)]
struct Space {
    /// [`Owner`]s of it. While there is one the `mm_struct` stays allocated.
    owners: usize,
    /// Pages that they have charged.
    pages: usize,
    /// Pages of those that are lent to a device's registration and charged by neither.
    lent: usize,
}

/// What a user has pinned.
struct Pinned {
    /// By the address of the `mm_struct`.
    spaces: RBTree<usize, Space>,
    /// Pages of address spaces that no process has any more, which have left `spaces`.
    orphans: usize,
}

impl Pinned {
    /// Counts the pages of address spaces that no process has any more as orphans. Returns all orphans.
    fn orphans(&mut self) -> usize {
        let mut next = self.spaces.cursor_front_mut();
        while let Some(at) = next {
            let (&mm, &Space { pages, .. }) = at.current();
            // SAFETY: The space has an owner, which holds the structure and takes the lock before it lets go.
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
    /// [`Owner`]s of this user.
    owners: usize,
}

/// Users with pinned memory, by uid.
type Users = Option<RBTree<u32, Known>>;

kernel::sync::global_lock! {
    // SAFETY: Initialised at module load, before anything uses it.
    unsafe(uninit) static USERS: Mutex<Users> = None;
}

/// Readies the list of users.
///
/// # Safety
///
/// Called once, at module load.
pub(crate) unsafe fn init() {
    // SAFETY: As the caller promises.
    unsafe { USERS.init() }
}

/// Gives back the list's memory. Once, at module unload.
pub(crate) fn exit() {
    let users = USERS.lock().take();
    drop(users);
}

/// A user, for as long as something is charged.
struct UserRef(Arc<User>);

impl UserRef {
    /// Finds or makes the current task's.
    fn current() -> Result<Self> {
        // SAFETY: No preconditions.
        let uid = unsafe { sys::kf_current_uid() };
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
        // Another task may have been first.
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
/// `mm` is held by `mmgrab()`. `pages` pages are charged to it, and counted for `user`.
pub(crate) struct Owner {
    mm: NonNull<bindings::mm_struct>,
    /// The owner's address of the first byte.
    pub(crate) addr: usize,
    /// Pages charged.
    pub(crate) pages: usize,
    user: UserRef,
}

// SAFETY: The structure may be held, charged and let go from any thread.
unsafe impl Send for Owner {}
// SAFETY: As above; with a shared reference it is only compared and charged.
unsafe impl Sync for Owner {}

impl Owner {
    /// Charges `pages` to the current task's memory.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: its limit.
    pub(crate) fn charge(addr: usize, pages: usize) -> Result<Self> {
        // SAFETY: No preconditions.
        let mm = NonNull::new(unsafe { sys::kf_current_mm() }).ok_or(EFAULT)?;
        let user = UserRef::current()?;
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        {
            let mut pinned = user.0.pinned.lock();
            let orphans = pinned.orphans();
            let key = mm.as_ptr().addr();
            let lent = pinned.spaces.get(&key).map_or(0, |space| space.lent);
            // SAFETY: The current task's `mm` is alive.
            if !unsafe { sys::kf_mm_charge(mm.as_ptr(), pages, orphans.saturating_add(lent)) } {
                return Err(ENOMEM);
            }
            // SAFETY: As above.
            unsafe { sys::kf_mm_grab(mm.as_ptr()) };
            if pinned.spaces.get(&key).is_none() {
                let _ = pinned.spaces.insert(node.into_node(key, Space::default()));
            }
            if let Some(space) = pinned.spaces.get_mut(&key) {
                space.owners += 1;
                space.pages += pages;
            }
        }
        // INVARIANT: Charged, counted and grabbed.
        Ok(Self {
            mm,
            addr,
            pages,
            user,
        })
    }

    /// Whether the current task has this memory.
    pub(crate) fn is_current(&self) -> bool {
        // SAFETY: No preconditions.
        self.mm.as_ptr() == unsafe { sys::kf_current_mm() }
    }

    /// Gives the charge of `pages` back for the device to take. Until [`Owner::lent`] nobody else is let in
    /// on their account. Only while the current task has the memory.
    pub(crate) fn lend(&self, pages: usize) {
        let mut pinned = self.user.0.pinned.lock();
        if let Some(space) = pinned.spaces.get_mut(&self.mm.as_ptr().addr()) {
            space.lent += pages;
        }
        // SAFETY: By the type invariant the structure is alive and charged.
        unsafe { sys::kf_mm_uncharge(self.mm.as_ptr(), pages) };
    }

    /// Ends what [`Owner::lend`] began: the device has charged the pages, or is not `charged` for them and
    /// the owner is again.
    pub(crate) fn lent(&self, pages: usize, charged: bool) {
        let mut pinned = self.user.0.pinned.lock();
        if !charged {
            self.take_back(pages);
        }
        if let Some(space) = pinned.spaces.get_mut(&self.mm.as_ptr().addr()) {
            space.lent -= pages;
        }
    }

    /// Charges `pages` that the device had charged. Beyond the limit, too: the device is about to give its
    /// charge back, or an `ib_umem` of the program's has used the moment.
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
        // SAFETY: By the type invariant it is held. Nothing looks at it under the lock any more.
        unsafe { sys::kf_mm_drop(self.mm.as_ptr()) };
    }
}
