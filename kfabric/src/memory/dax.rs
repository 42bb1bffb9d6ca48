// SPDX-License-Identifier: GPL-2.0
//! Persistent memory of a block device with a DAX device, such as `/dev/pmem0` in the mode `fsdax`.
//!
//! A kernel consumer opens the device ([`Device::open`]) and registers [`Device::memory`]. When memory
//! of the device fails, or the device is removed, a work item of the core revokes all keys of the
//! device's memory, whether or not the consumer does anything, and then calls the consumer
//! ([`Failure`]). From the failure on, registrations and assignments fail. If the consumer has looked at
//! memory of the device, the removal of the device waits until the consumer has closed the regions and
//! dropped memory and device.
//!
//! C code: `dax.c`, which has the rule for notifications; [`kf_dax_failed`] does not sleep. Lock order
//! here: the handler's lock, then the lock of the list of slots. The latter is not held while a slot or its
//! provider is called.

use core::{
    mem::ManuallyDrop,
    ptr::{
        from_ref,
        NonNull, //
    },
    sync::atomic::{
        AtomicI32,
        Ordering, //
    }, //
};
use kernel::{
    bindings,
    error::from_err_ptr,
    ffi::{
        c_int,
        c_void, //
    },
    impl_has_work,
    new_condvar,
    new_mutex,
    new_work,
    page::PAGE_SIZE,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    str::CStr,
    sync::{
        Arc,
        CondVar,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

use super::pages::{
    Memory,
    Source, //
};
use crate::sys;

/// Pages that are looked at before the task reschedules.
const STRETCH: u64 = 1 << 16;

/// Interval at which the end of keys is repeated while other tasks' steps of their slots are in
/// progress, in milliseconds.
const AGAIN_MS: i64 = 10;

/// Waits until the module's text has no notification. Once, at module unload.
pub(crate) fn exit() {
    // SAFETY: The module is being unloaded, so no consumer and no provider has a device.
    unsafe { sys::kf_dax_exit() }
}

/// A consumer's handler of failures.
pub trait Failure: Send + Sync {
    /// Reports that memory of the device has failed (`EHWPOISON`), or that the device is being removed
    /// (`ENODEV`). All keys of its memory are revoked.
    ///
    /// Called once at most: after `EHWPOISON` a removal is not reported, and waits until the consumer has
    /// dropped device and memory. Context: process; may sleep. Locking: must neither drop the [`Device`]
    /// nor call [`Device::watch`], which wait for the return.
    fn failed(&self, error: Error);
}

/// A key slot whose key the failure of its memory ends.
pub(crate) trait EndKey: Send + Sync {
    /// Revokes the key, if there is one; no assignment succeeds afterwards. Does not wait for another
    /// task's step of the slot. Returns `false` if such a step is in progress; its task then revokes
    /// the key.
    fn end_for_good(&self) -> bool;
}

/// A slot in the list of a device.
struct Slot(NonNull<dyn EndKey>);

// SAFETY: `EndKey` is `Send` and `Sync`, so any thread may use the slot.
unsafe impl Send for Slot {}

/// The consumer's handler, and whether it has been called or would have been.
struct Watch {
    failure: Option<Arc<dyn Failure>>,
    over: bool,
}

/// The key slots of a device's memory.
struct Slots {
    /// By the address of their [`Listed`]. A slot in the list exists: its drop removes it.
    all: RBTree<usize, Slot>,
    /// Address of the [`Listed`] whose slot's key is being ended, or 0. Its drop waits.
    ending: usize,
}

/// Whether the memory of a device works, and the key slots of that memory.
#[pin_data]
pub(crate) struct Health {
    /// 0, or the negative error number of the first failure.
    error: AtomicI32,
    /// Locking: no key is revoked with this lock held, because that may take as long as a device likes.
    #[pin]
    slots: Mutex<Slots>,
    /// Notified when [`Slots::ending`] changes to 0.
    #[pin]
    ended: CondVar,
    #[pin]
    watch: Mutex<Watch>,
    /// Ends the keys. Queued once, by the first failure.
    #[pin]
    work: Work<Health>,
}

impl_has_work! {
    impl HasWork<Self> for Health { self.work }
}

impl WorkItem for Health {
    type Pointer = Arc<Health>;

    fn run(this: Arc<Health>) {
        while !this.end_keys() {
            fsleep(Delta::from_millis(AGAIN_MS));
        }
        let mut watch = this.watch.lock();
        watch.over = true;
        if let (Some(failure), Err(e)) = (&watch.failure, this.check()) {
            failure.failed(e);
        }
    }
}

impl Health {
    fn new() -> Result<Arc<Self>> {
        let watch = Watch {
            failure: None,
            over: false,
        };
        let slots = Slots {
            all: RBTree::new(),
            ending: 0,
        };
        Arc::pin_init(
            pin_init!(Self {
                error: AtomicI32::new(0),
                slots <- new_mutex!(slots, "kfabric_dax_slots"),
                ended <- new_condvar!("kfabric_dax_ended"),
                watch <- new_mutex!(watch, "kfabric_dax_watch"),
                work <- new_work!("Health::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Returns the error of the first failure, if there was one.
    ///
    /// Ordering: a slot that is added before a check without an error is seen by [`Self::end_keys`]:
    /// both lock the list, and the failure is stored before the keys are ended.
    pub(crate) fn check(&self) -> Result {
        match self.error.load(Ordering::Acquire) {
            0 => Ok(()),
            e => Err(Error::from_errno(e)),
        }
    }

    /// Records a failure, and schedules the end of the keys. Does not wait.
    fn fail(this: &Arc<Self>, error: i32) {
        let (new, order) = (error, Ordering::AcqRel);
        if this
            .error
            .compare_exchange(0, new, order, Ordering::Acquire)
            .is_ok()
        {
            // Cannot fail: the item is queued only here.
            let _ = sys::wq::queue().enqueue(this.clone());
        }
    }

    /// Revokes the keys of all slots for good. Returns whether none is left. Locking: one caller at a
    /// time, the work item.
    fn end_keys(&self) -> bool {
        let (mut at, mut all) = (0, true);
        loop {
            sys::cond_resched();
            let slot = {
                let mut slots = self.slots.lock();
                let Some(cursor) = slots.all.cursor_lower_bound(&at) else {
                    return all;
                };
                let (address, slot) = cursor.current();
                at = address + 1;
                if cfg!(kfabric_seed_bug = "dax-keys-stay") {
                    continue;
                }
                let (address, slot) = (*address, slot.0);
                slots.ending = address;
                slot
            };
            // SAFETY: The slot was in the list, and the drop of its `Listed`, the first of its fields, waits until
            // `ending` is another one. The slot's own drop may run meanwhile: the slot is `!Unpin`, and the drop
            // accesses it by shared references alone.
            all &= unsafe { slot.as_ref() }.end_for_good();
            self.slots.lock().ending = 0;
            self.ended.notify_all();
        }
    }
}

/// A slot's place in the list of its memory's device. The drop waits while a failure of the memory
/// ends this slot's key. The slot has no key then: otherwise the failure would not wait for its end.
pub(crate) struct Listed(Arc<Health>);

impl Listed {
    /// Returns a place without a slot.
    pub(crate) fn new(health: Arc<Health>) -> Self {
        Self(health)
    }

    /// Adds `slot` until the drop. `self` is not moved any more.
    ///
    /// # Errors
    ///
    /// - `EHWPOISON`, `ENODEV` if the memory has failed.
    /// - `ENOMEM`.
    ///
    /// # Safety
    ///
    /// `slot` exists until `self` is dropped.
    pub(crate) unsafe fn add(&self, slot: &(dyn EndKey + 'static)) -> Result {
        let slot = Slot(NonNull::from(slot));
        let node = RBTreeNode::new(from_ref(self).addr(), slot, GFP_KERNEL_ACCOUNT)?;
        // Cannot replace an entry: each place has its own address.
        let _ = self.0.slots.lock().all.insert(node);
        self.0.check()
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let address = from_ref(self).addr();
        let mut slots = self.0.slots.lock();
        while slots.ending == address {
            self.0.ended.wait(&mut slots);
        }
        slots.all.remove(&address);
    }
}

/// An open block device. The memory holds it, so it may be closed late, after the [`Device`] is
/// dropped. The code of that close is the core's, and every module that can hold memory depends on
/// the core, so the core is not unloaded before.
///
/// # Invariants
///
/// `c` comes from `kf_dax_open()` with the address of `health`, and is not closed.
pub(super) struct Opened {
    c: NonNull<sys::kf_dax>,
    writable: bool,
    // Dropped after the close, whose return ends the use of its address.
    health: Arc<Health>,
}

// SAFETY: The functions of `dax.c` may be called by any thread.
unsafe impl Send for Opened {}
// SAFETY: The functions of `dax.c` may be called by several threads at once, except for the close,
// which the drop calls.
unsafe impl Sync for Opened {}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. The memory that has the pages is gone: it holds a reference.
        unsafe { sys::kf_dax_close(self.c.as_ptr()) }
    }
}

impl Opened {
    pub(super) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Returns whether the kernel treats the processors' caches as persistent for the memory. An
    /// administrator may change that at any time. Context: any.
    pub(super) fn caches_persist(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { sys::kf_dax_caches_persist(self.c.as_ptr()) }
    }

    /// Returns a page and the number of pages from there on that are contiguous, at most `most`.
    fn pages(&self, index: u64, most: u64) -> Result<(*mut bindings::page, u64)> {
        let mut found = 0;
        // SAFETY: By the type invariant. `found` is a local variable.
        let page = unsafe { sys::kf_dax_pages(self.c.as_ptr(), index, most, &mut found) };
        Ok((from_err_ptr(page)?, found))
    }
}

/// Iterates over pages of a device.
struct Pages<'a> {
    device: &'a Opened,
    /// The next page of the contiguous ones, and how many are left.
    run: (*mut bindings::page, u64),
    next: u64,
    end: u64,
}

impl Pages<'_> {
    fn look(&mut self) -> Result<NonNull<bindings::page>> {
        if self.next % STRETCH == 0 {
            sys::pause()?;
        }
        if self.run.1 == 0 {
            self.run = self.device.pages(self.next, self.end - self.next)?;
        }
        let (page, left) = self.run;
        // The `struct page`s of contiguous pages are contiguous.
        self.run = (page.wrapping_add(1), left.saturating_sub(1));
        self.next += 1;
        NonNull::new(page).ok_or(EIO)
    }
}

impl Iterator for Pages<'_> {
    type Item = Result<NonNull<bindings::page>>;

    fn next(&mut self) -> Option<Self::Item> {
        (self.next < self.end).then(|| self.look())
    }
}

/// A block device that a consumer has opened for its persistent memory.
///
/// The drop waits for the consumer's handler: after the return the handler neither runs nor is called.
/// Locking: the caller of the drop holds no lock that the handler takes. Memory of the device that is
/// still in use keeps the block device open, and its keys still end when the memory fails.
pub struct Device(Arc<Opened>);

impl Device {
    /// Opens the block device at `path`, a path of the current task, exclusively; for writing if
    /// `write` is set. Otherwise regions of its memory cannot be written to.
    ///
    /// Context: process; may sleep.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if another holder has the device.
    /// - `ENOTBLK` if the path names no block device.
    /// - `EOPNOTSUPP` if the device has no DAX device, another user has its DAX device, or the device
    ///   is stacked.
    /// - `EHWPOISON` or `ENODEV` if the open failed because memory fails or the device is removed.
    /// - `ENOMEM`.
    /// - Other errors of opening a file.
    pub fn open(path: &CStr, write: bool) -> Result<Self> {
        let health = Health::new()?;
        let owner = Arc::as_ptr(&health).cast_mut().cast::<c_void>();
        // SAFETY: The path is a C string. `health` exists until the call fails or the device is closed.
        let c = unsafe { sys::kf_dax_open(path.as_char_ptr(), write, owner) };
        let c = from_err_ptr(c).map_err(|e| health.check().err().unwrap_or(e))?;
        let c = NonNull::new(c).ok_or(ENXIO)?;
        // INVARIANT: `kf_dax_open` has opened the device, with the address of `health`.
        let opened = Opened {
            c,
            writable: write,
            health,
        };
        Ok(Self(Arc::new(opened, GFP_KERNEL_ACCOUNT)?))
    }

    /// Sets the handler of failures, in place of an earlier one. Waits for an earlier one that runs.
    ///
    /// # Errors
    ///
    /// `EHWPOISON` or `ENODEV`, as the handler would get, if it is too late to call the handler. The
    /// handler is not called then.
    pub fn watch(&self, failure: Arc<dyn Failure>) -> Result {
        let health = &self.0.health;
        let earlier = {
            let mut watch = health.watch.lock();
            if watch.over {
                return health.check();
            }
            watch.failure.replace(failure)
        };
        // Drop without the lock.
        drop(earlier);
        Ok(())
    }

    /// Bytes of the block device.
    pub fn size(&self) -> u64 {
        // SAFETY: By the type invariant of `Opened`.
        unsafe { sys::kf_dax_size(self.0.c.as_ptr()) }
    }

    /// The open block device. Valid as long as `self`.
    pub fn file(&self) -> *mut bindings::file {
        // SAFETY: By the type invariant of `Opened`.
        unsafe { sys::kf_dax_file(self.0.c.as_ptr()) }
    }

    /// Checks that the memory has not failed.
    ///
    /// # Errors
    ///
    /// - `EHWPOISON` if memory of the device has failed.
    /// - `ENODEV` if the device is being removed.
    pub fn check(&self) -> Result {
        self.0.health.check()
    }

    /// Returns `len` bytes of the device's memory from byte `offset` on, which is a multiple of the page
    /// size. Context: process; may sleep.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the range is empty or not inside the device, or `offset` is no multiple.
    /// - `EHWPOISON` if the range has a known bad block, or memory of the device has failed.
    /// - `EOPNOTSUPP` if the memory has no pages, or belongs to several devices.
    /// - `ENODEV` if the device is being removed.
    /// - `EIO`, `ERANGE` if the driver does not map the range.
    /// - `EINTR` if the task is being killed.
    /// - `ENOMEM`.
    pub fn memory(&self, offset: u64, len: usize) -> Result<Arc<Memory>> {
        self.check()?;
        let end = offset.checked_add(len as u64).ok_or(EINVAL)?;
        if len == 0 || end > self.size() || offset % PAGE_SIZE as u64 != 0 {
            return Err(EINVAL);
        }
        let pages = Pages {
            device: &self.0,
            run: (core::ptr::null_mut(), 0),
            next: offset / PAGE_SIZE as u64,
            end: end.div_ceil(PAGE_SIZE as u64),
        };
        let source = Source::Dax(self.0.clone());
        // SAFETY: The pages are the device's, which stay until the drop of `Opened` closes it.
        unsafe { Memory::keep(source, pages, 0, len, self.0.writable) }
    }

    /// Returns the page at byte `offset`, and the number of bytes from `offset` on that are contiguous, at
    /// most 1 GiB.
    ///
    /// # Errors
    ///
    /// As [`Device::memory`].
    pub(crate) fn page(&self, offset: u64) -> Result<(NonNull<bindings::page>, u64)> {
        self.check()?;
        let (size, page) = (self.size(), PAGE_SIZE as u64);
        if offset >= size {
            return Err(EINVAL);
        }
        let index = offset / page;
        let (first, count) = self.0.pages(index, size.div_ceil(page) - index)?;
        let end = ((index + count) * page).min(size);
        Ok((NonNull::new(first).ok_or(EIO)?, end - offset))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let failure = self.0.health.watch.lock().failure.take();
        // Drop without the lock.
        drop(failure);
    }
}

/// Records a failure of a device.
///
/// # Safety
///
/// `owner` was passed to `kf_dax_open()`, and the device is not closed.
#[no_mangle]
unsafe extern "C" fn kf_dax_failed(owner: *mut c_void, error: c_int) {
    // SAFETY: By the caller's contract the health exists, and `Device::open` has passed its address.
    // `ManuallyDrop` leaves its owners their references.
    let health = ManuallyDrop::new(unsafe { Arc::from_raw(owner.cast::<Health>().cast_const()) });
    Health::fail(&health, error);
}

crate::same_prototype!(sys: kf_dax_failed);
