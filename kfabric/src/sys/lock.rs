// SPDX-License-Identifier: GPL-2.0
//! A spin lock that any context may take: interrupts are off while it is held.
//!
//! The kernel crate's `SpinLock` is a plain `spin_lock()`; consumers that post from interrupt
//! context need this one.

use kernel::{
    bindings,
    ffi::{
        c_char,
        c_ulong, //
    },
    sync::lock::{
        Backend,
        Lock, //
    },
};

/// `spin_lock_irqsave()` and `spin_unlock_irqrestore()` as a lock backend.
pub struct IrqSpinBackend;

/// A spin lock usable in any context. Make one with [`new_irqlock!`](crate::new_irqlock).
pub type IrqLock<T> = Lock<T, IrqSpinBackend>;

// SAFETY: The kernel's `spinlock_t` excludes all other holders between lock and unlock. `relock` is
// the default, which uses `lock`.
unsafe impl Backend for IrqSpinBackend {
    type State = bindings::spinlock_t;
    type GuardState = c_ulong;

    #[inline]
    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: The caller guarantees `ptr` valid for writes, `name` and `key` for ever.
        unsafe { bindings::__spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> c_ulong {
        // SAFETY: The caller guarantees that `ptr` is an initialised lock.
        unsafe { super::kf_spin_lock_irqsave(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<c_ulong> {
        let mut flags = 0;
        // SAFETY: The caller guarantees that `ptr` is an initialised lock; `flags` is a local
        // variable.
        unsafe { super::kf_spin_trylock_irqsave(ptr, &mut flags) }.then_some(flags)
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, flags: &c_ulong) {
        // SAFETY: The caller owns the lock and `flags` came from taking it.
        unsafe { super::kf_spin_unlock_irqrestore(ptr, *flags) }
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // Without lockdep the holder is unknown; skip the call.
        if cfg!(CONFIG_LOCKDEP) {
            // SAFETY: The caller guarantees that `ptr` is an initialised lock.
            unsafe { bindings::spin_assert_is_held(ptr) }
        }
    }
}

/// Initialises an [`IrqLock`](crate::sys::IrqLock) with a lockdep class of its own.
#[macro_export]
macro_rules! new_irqlock {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::sys::IrqLock::new(
            $inner, ::kernel::optional_name!($($name)?), ::kernel::static_lock_class!())
    };
}
