// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Atomics and cells: those of `core`, or those of loom when loom checks every interleaving.

#[cfg(not(loom))]
pub(super) use core::sync::atomic::{
    AtomicU32,
    AtomicU64,
    Ordering, //
};

#[cfg(loom)]
pub(super) use loom::{
    cell::UnsafeCell,
    sync::atomic::{
        AtomicU32,
        AtomicU64,
        Ordering, //
    },
};

/// `core`'s cell with loom's access methods.
#[cfg(not(loom))]
pub(super) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    pub(super) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get().cast_const())
    }

    pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Defines a constructor that is `const`, except under loom, whose types have no `const`
/// constructors.
macro_rules! const_fn {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($args:tt)*) -> $ret:ty $body:block) => {
        $(#[$meta])*
        #[cfg(not(loom))]
        $vis const fn $name($($args)*) -> $ret $body

        $(#[$meta])*
        #[cfg(loom)]
        $vis fn $name($($args)*) -> $ret $body
    };
}
pub(super) use const_fn;
