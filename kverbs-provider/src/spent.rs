// SPDX-License-Identifier: GPL-2.0
//! The values that keys have had since the module was loaded, on any device: none comes again (P4), not
//! even when a device was removed and begins to count anew. A value is spent when it is set aside, whether
//! or not it is given out.
//!
//! The one exception is asked for: an endpoint with keys of its own may reuse what others of that kind have
//! had. What is in its group is reached by its peer alone, so there it is enough that the group has not
//! had the value. [`kfabric::pure::spent`] says how the two are kept apart.
//!
//! It takes 48 bytes for each hardware slot that ever had a key, and 16 more in each group that reuses
//! values and had a key with it. There are 2^32 values (of which rxe uses 2^27), half of them for what
//! never comes again; when those are used up there are no such keys any more, rather than old ones. As
//! many are for each endpoint that reuses them.
//!
//! Nothing is allocated under a lock: whoever waits for it may be what others' memory waits for.

use core::ops::DerefMut;
use kernel::{
    alloc::Flags,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        new_mutex,
        Mutex, //
    }, //
};

use kfabric::pure::spent::{
    Spent,
    SpentOwn, //
};

/// Hardware slots of which the values are kept in one allocation, of a page at most.
const CHUNK: usize = kernel::page::PAGE_SIZE / size_of::<Spent>();

/// What is kept of hardware slots, by [`CHUNK`]s; none until there is something.
type Map<T> = Option<RBTree<usize, KVec<T>>>;

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init, before the client is registered.
    unsafe(uninit) static SPENT: Mutex<Map<Spent>> = None;
}

/// What is known of given keys; dropping it forgets them.
pub(crate) struct Memory(());

impl Memory {
    /// Readies it.
    ///
    /// # Safety
    ///
    /// Called once, at module load, before the client is registered.
    #[expect(unsafe_code, reason = "a global lock is initialised so")]
    pub(crate) unsafe fn new() -> Self {
        // SAFETY: The caller's promise.
        unsafe { SPENT.init() };
        Self(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let spent = SPENT.lock().take();
        drop(spent);
    }
}

/// Acts on what the map behind `lock` has of the hardware slot of `key`.
///
/// # Errors
///
/// `ENOMEM`.
fn with<T, G, R>(
    lock: impl Fn() -> G,
    key: u32,
    flags: Flags,
    act: impl FnOnce(&mut T) -> R,
) -> Result<R>
where
    T: Clone + Default,
    G: DerefMut<Target = Map<T>>,
{
    // CAST: 24 bits.
    let slot = (key >> 8) as usize;
    let mut fresh = None;
    loop {
        {
            let mut guard = lock();
            let map = guard.get_or_insert_with(RBTree::new);
            if map.get(&(slot / CHUNK)).is_none() {
                if let Some(fresh) = fresh.take() {
                    // There is none of that number.
                    let _ = map.insert(fresh);
                }
            }
            if let Some(chunk) = map.get_mut(&(slot / CHUNK)) {
                return Ok(act(chunk.get_mut(slot % CHUNK).ok_or(EINVAL)?));
            }
        }
        let chunk = KVec::from_elem(T::default(), CHUNK, flags)?;
        fresh = Some(RBTreeNode::new(slot / CHUNK, chunk, flags)?);
    }
}

/// Acts on what is known of everybody's keys.
fn with_all<R>(key: u32, act: impl FnOnce(&mut Spent) -> R) -> Result<R> {
    // UNACCOUNTED: Key values stay known until the module unloads, for all programs.
    with(|| SPENT.lock(), key, GFP_KERNEL, act)
}

/// Where the values of a group's keys come from.
#[pin_data]
pub(crate) struct Values {
    /// It is a group of one endpoint that reuses what others of that kind have had.
    reuses: bool,
    /// What has been in that one.
    #[pin]
    had: Mutex<Map<SpentOwn>>,
}

impl Values {
    /// Those of a group; `reuses`: of one endpoint that reuses values.
    pub(crate) fn new(reuses: bool) -> impl PinInit<Self> {
        pin_init!(Self {
            reuses,
            had <- new_mutex!(None, "kverbs_spent"),
        })
    }

    /// Whether values are reused.
    pub(crate) fn reuses(&self) -> bool {
        self.reuses
    }

    fn with_own<R>(&self, key: u32, act: impl FnOnce(&mut SpentOwn) -> R) -> Result<R> {
        with(|| self.had.lock(), key, GFP_KERNEL_ACCOUNT, act)
    }

    /// A low byte for a key with the hardware slot of `key` that is new to all who could use it;
    /// `random` says which. `None`: that slot has had all.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn draw(&self, key: u32, random: u32) -> Result<Option<u8>> {
        if !self.reuses {
            return with_all(key, |spent| spent.draw(random));
        }
        // From here on it is there: nothing is allocated with the other lock held.
        with_all(key, |_| ())?;
        self.with_own(key, |own| with_all(key, |all| own.draw(all, random)))?
    }

    /// Whether `key`, which the device chose, has never been given out; from now on it has.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn take(&self, key: u32) -> Result<bool> {
        // CAST: The low byte.
        let byte = key as u8;
        let new = with_all(key, |spent| spent.take(byte))?;
        if new && self.reuses {
            self.with_own(key, |spent| spent.take(byte))?;
        }
        Ok(new)
    }
}
