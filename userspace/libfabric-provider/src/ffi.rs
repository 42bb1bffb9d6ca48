// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfabric's structures and constants, and tables of operations that are not supported.
//!
//! `bindings.rs` is what bindgen makes of `headers.h` with libfabric 2.1.0, with five opaque types
//! at its end that stand for types that the plug-in does not use.

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    unsafe_op_in_unsafe_fn
)]
mod bindings;

pub(crate) use bindings::*;

/// `-FI_ENOSYS`.
const NOSYS: i16 = -38;

/// A function that returns `-FI_ENOSYS`, for each signature in a table of operations.
pub(crate) trait Absent: Sized {
    /// The function.
    const F: Self;
}

macro_rules! absent {
    ($($name:ident: $($arg:ident)*;)*) => {$(
        unsafe extern "C" fn $name<$($arg,)* R: From<i16>>($(_: $arg),*) -> R {
            R::from(NOSYS)
        }
        impl<$($arg,)* R: From<i16>> Absent for unsafe extern "C" fn($($arg),*) -> R {
            const F: Self = $name::<$($arg,)* R>;
        }
    )*};
}

absent! {
    absent1: A;
    absent2: A B;
    absent3: A B C;
    absent4: A B C D;
    absent5: A B C D E;
    absent6: A B C D E G;
    absent7: A B C D E G H;
    absent8: A B C D E G H I;
    absent9: A B C D E G H I J;
    absent10: A B C D E G H I J K;
    absent11: A B C D E G H I J K L;
    absent12: A B C D E G H I J K L M;
    absent13: A B C D E G H I J K L M N;
    absent14: A B C D E G H I J K L M N O;
    absent15: A B C D E G H I J K L M N O P;
    absent16: A B C D E G H I J K L M N O P Q;
}

/// The entry of an operation that is not supported.
pub(crate) const fn absent<T: Absent>() -> Option<T> {
    Some(T::F)
}

/// A table that only holds function pointers; shared by all threads.
pub(crate) struct Table<T>(pub(crate) T);

// SAFETY: tables hold function pointers and sizes, and nothing writes to a table.
unsafe impl<T> Sync for Table<T> {}

impl<T> Table<T> {
    /// The table's address, as libfabric's structures hold it.
    pub(crate) const fn get(&'static self) -> *mut T {
        (&raw const self.0).cast_mut()
    }
}

/// The table of collective operations, of which there are none: `fi_ops_collective` of libfabric,
/// with room for functions of later versions.
#[repr(C)]
struct Collectives {
    size: usize,
    ops: [unsafe extern "C" fn() -> isize; 15],
}

unsafe extern "C" fn no_collective() -> isize {
    isize::from(NOSYS)
}

/// Returns the table of collective operations.
pub(crate) fn collectives() -> *mut fi_ops_collective {
    static OPS: Table<Collectives> = Table(Collectives {
        size: size_of::<Collectives>(),
        ops: [no_collective; 15],
    });
    OPS.get().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_operation_returns_enosys() {
        let f: Option<unsafe extern "C" fn(*mut fid_ep, u64) -> isize> = absent();
        // SAFETY: the function ignores its arguments.
        let rc = f.map(|f| unsafe { f(std::ptr::null_mut(), 0) });
        assert_eq!(rc, Some(-38));
    }
}
