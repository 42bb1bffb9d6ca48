// SPDX-License-Identifier: GPL-2.0
//! The kfi API for consumers and providers written in C (`kfabric/include/`).
//!
//! A thin layer over the objects that all consumers use: it turns C structures into theirs and back,
//! and holds no policy. What a consumer gets is a box that begins with the structure the API says
//! (`struct kfid_ep` and the like), whose tables of calls point to functions in here.
//!
//! What is assumed of consumers, as of all C in the kernel: pointers are what the headers say they
//! are; an object is not used when [`kfi_close`](obj) of it has begun, nor its buffers before their
//! operations are over. Calls on one object may come from several threads at once, but for those
//! that change what it is (bind, enable, close).

#![expect(
    clippy::missing_safety_doc,
    reason = "what a slot of a table requires is what the C headers say"
)]

mod atomic;
mod auth;
mod av;
mod cm;
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

pub(crate) use prov::has;

/// Readies the lists. Once, at module load.
///
/// # Safety
///
/// Not called twice.
pub(crate) unsafe fn init() {
    // SAFETY: The caller's promise.
    unsafe {
        cm::init();
        opened::init();
        prov::init();
    }
}

/// Frees what the lists hold. Once, at module unload.
pub(crate) fn exit() {
    cm::exit();
    opened::exit();
    prov::exit();
}
