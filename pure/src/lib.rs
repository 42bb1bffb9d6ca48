// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Logic of kfabric that needs no kernel.
//!
//! One source, two compilers. Cargo builds this crate on the host, where unit tests, property
//! tests, Miri and loom run it. Kbuild builds the same files into `kfabric.ko`, as `#[path =
//! "../../pure/src/tree.rs"] pub mod pure;`. So every module is below [`tree`], uses only `core`,
//! allocates nothing, and never names `crate::`.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

// By path, as Kbuild does it, because the modules lie beside `tree.rs`.
#[path = "tree.rs"]
pub mod tree;
pub use tree::*;
