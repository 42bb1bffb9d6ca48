// SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note
//! The user-space interface of `/dev/kfabric`.
//!
//! One source, two compilers: cargo builds this crate for programs, Kbuild builds [`abi`] into
//! `kfabric.ko`. `include/kfabric_uapi.h` is generated from it for C.

#![no_std]
#![forbid(unsafe_code)]

pub mod abi;
pub use abi::*;
