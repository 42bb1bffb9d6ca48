// SPDX-License-Identifier: GPL-2.0
//! The kfi API for consumers and providers written in C (`kfabric/include/`).
//!
//! This is a thin layer over the objects that all consumers use. It converts between C structures
//! and the core's types, and holds no policy. Each object of a consumer is a box that begins with
//! its C structure, such as `struct kfid_ep`. The structure's tables of calls point to functions in
//! this module.
//!
//! As with all C code in the kernel, the layer trusts its consumers:
//!
//! - Pointers are valid as the headers describe.
//! - A consumer stops using an object before it calls [`kfi_close`](obj).
//! - Buffers stay valid until their operations are complete.
//! - Several threads may call functions on the same object at once, except for bind, enable and
//!   close.

#![expect(
    clippy::missing_safety_doc,
    reason = "what a slot of a table requires is what the C headers say"
)]

mod atomic;
mod auth;
mod av;
mod cm;
mod dax;
mod ep;
mod event;
mod fabric;
mod info;
mod key;
mod mr;
mod obj;
mod opened;
mod post;
mod prov;
mod queue;
mod raw;
mod written;

/// Initialises the lists of the C API, at module load.
///
/// # Safety
///
/// The function is called once.
pub(crate) unsafe fn init() {
    // SAFETY: By this function's contract it runs once.
    unsafe {
        cm::init();
        opened::init();
        prov::init();
    }
}

/// Frees the memory of the lists, at module unload.
pub(crate) fn exit() {
    cm::exit();
    opened::exit();
    prov::exit();
}
