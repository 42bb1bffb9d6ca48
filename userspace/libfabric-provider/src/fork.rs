// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects after `fork()`. A child has copies of the parent's objects, with the parent's open device
//! file, queues and rings. A call on such a copy would close or use the object of the parent. So each
//! copy in a child gets operations that do nothing: `fi_close` returns 0, and the other calls return
//! -FI_EOPBADSTATE. Objects that the child opens itself work.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use crate::ffi::*;
use crate::{closed, text};

/// Disables the object at an address.
type Disable = unsafe fn(usize);

/// Open objects by their addresses.
static OPEN: Mutex<BTreeMap<usize, Disable>> = Mutex::new(BTreeMap::new());

fn open() -> MutexGuard<'static, BTreeMap<usize, Disable>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes an object that was opened.
///
/// # Safety
///
/// `disable` can be called with `at` until [`remove`].
pub(crate) unsafe fn add(at: usize, disable: Disable) {
    open().insert(at, disable);
}

/// Forgets an object, which is being closed.
pub(crate) fn remove(at: usize) {
    open().remove(&at);
}

/// The locks of all lists, which a thread holds while it forks: a child could not take a lock of another
/// thread.
struct Locks {
    open: MutexGuard<'static, BTreeMap<usize, Disable>>,
    _closed: MutexGuard<'static, closed::Memory>,
    _texts: MutexGuard<'static, text::Texts>,
}

/// The locks while a thread forks.
struct Held(UnsafeCell<Option<Locks>>);

// SAFETY: only the thread that holds the locks uses the cell.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

unsafe extern "C" fn before() {
    let locks = Locks {
        open: open(),
        _closed: closed::lock(),
        _texts: text::lock(),
    };
    // SAFETY: this thread has the locks.
    unsafe { *HELD.0.get() = Some(locks) };
}

unsafe extern "C" fn in_parent() {
    // SAFETY: this thread has taken the locks in `before`.
    drop(unsafe { (*HELD.0.get()).take() });
}

unsafe extern "C" fn in_child() {
    // SAFETY: this thread has taken the locks in `before`; it is the only one of the child.
    let Some(mut locks) = (unsafe { (*HELD.0.get()).take() }) else {
        return;
    };
    for (at, disable) in std::mem::take(&mut *locks.open) {
        // SAFETY: the object is open, as the caller of `add` vouched.
        unsafe { disable(at) };
    }
}

/// Has children of this process disable their copies of its objects.
pub(crate) fn guard() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions live for ever: the plug-in is never unloaded. A failure means that
        // memory is missing; then children are not guarded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

type Op = unsafe extern "C" fn() -> isize;

/// Any table of operations: its size, and functions that ignore their arguments.
#[repr(C)]
pub(crate) struct Disabled {
    size: usize,
    ops: [Op; 31],
}

unsafe extern "C" fn refuse() -> isize {
    -(FI_EOPBADSTATE as isize)
}

unsafe extern "C" fn zero() -> isize {
    0
}

unsafe extern "C" fn of_parent() -> isize {
    // CAST: An address.
    c"the object belongs to the parent process"
        .as_ptr()
        .expose_provenance() as isize
}

impl Disabled {
    /// A table whose functions refuse, except those at the offsets of `others`.
    const fn except(others: &[(usize, Op)]) -> Table<Self> {
        let mut ops: [Op; 31] = [refuse; 31];
        let mut i = 0;
        while i < others.len() {
            let (offset, op) = others[i];
            ops[offset / size_of::<Op>() - 1] = op;
            i += 1;
        }
        let size = size_of::<Self>();
        Table(Self { size, ops })
    }

    /// The table as one of any type.
    pub(crate) fn of<T>(table: &'static Table<Self>) -> *mut T {
        const { assert!(size_of::<T>() <= size_of::<Self>()) };
        table.get().cast()
    }
}

/// Operations of fids: `fi_close` succeeds.
pub(crate) static FID: Table<Disabled> = Disabled::except(&[(offset_of!(fi_ops, close), zero)]);
/// Operations that all refuse.
pub(crate) static OPS: Table<Disabled> = Disabled::except(&[]);
pub(crate) static CQ: Table<Disabled> =
    Disabled::except(&[(offset_of!(fi_ops_cq, strerror), of_parent)]);
pub(crate) static EQ: Table<Disabled> =
    Disabled::except(&[(offset_of!(fi_ops_eq, strerror), of_parent)]);
/// Operations of counters: the values are 0.
pub(crate) static COUNTER: Table<Disabled> = Disabled::except(&[
    (offset_of!(fi_ops_cntr, read), zero),
    (offset_of!(fi_ops_cntr, readerr), zero),
]);
