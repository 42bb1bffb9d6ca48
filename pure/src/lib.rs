// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Logic of kfabric that needs no kernel.
//!
//! One source, two compilers. Cargo builds this crate on the host, where unit tests, property
//! tests, Miri and loom run it; Kbuild builds the same files into `kfabric.ko`, as
//! `#[path = "../../pure/src/tree.rs"] pub mod pure;`. So everything hangs below [`tree`], uses
//! `core` alone, allocates nothing, and never says `crate::`.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

// By path, as Kbuild does it: the modules lie beside the file.
#[path = "tree.rs"]
pub mod tree;
pub use tree::*;
