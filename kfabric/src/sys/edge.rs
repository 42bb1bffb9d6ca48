// SPDX-License-Identifier: GPL-2.0
//! Comparisons of Rust with C that the compiler makes when it builds a module.

/// Compares sizes and offsets in Rust with those of the C compiler.
///
/// The module `layout` at the caller's place holds the C compiler's numbers, which Kbuild makes from
/// `layout.c`.
#[macro_export]
macro_rules! same_layout {
    ($($type:ident = $size:ident $({ $($field:ident = $offset:ident),* $(,)? })?;)*) => {
        $(
            const _: () = assert!(size_of::<$type>() == layout::$size);
            $($(
                const _: () = assert!(core::mem::offset_of!($type, $field) == layout::$offset);
            )*)?
        )*
    };
}

/// Compares Rust functions that C calls with their prototypes in the C header.
///
/// `$raw` is the module of bindgen's declarations. The comparison is that of the kernel crate's
/// `#[export]`: both arms of an `if` have one type.
#[macro_export]
macro_rules! same_prototype {
    ($raw:ident: $($name:ident),+ $(,)?) => {
        $(
            const _: () = {
                let _ = if true { $raw::$name } else { $name };
            };
        )+
    };
}
