// SPDX-License-Identifier: GPL-2.0
//! Requests for the modules of providers that are not registered.
//!
//! A provider's module has the alias `kfabric-provider-NAME`. Any program can name providers, so
//! only valid names are requested, and callers without privileges share a limited rate. Kernel
//! threads request none.

use crate::{
    pure::info,
    sys, //
};

/// Loads the module of provider `name`, if the name is valid, the caller may request modules now,
/// and the machine has such a module. The caller looks for the provider again afterwards.
///
/// Context: process; may sleep. Locking: none held, because the module registers the provider.
pub(super) fn request(name: &str) {
    let name = name.as_bytes();
    // SAFETY: The function has no preconditions.
    if !info::is_module_name(name) || !unsafe { sys::kf_may_request_module() } {
        return;
    }
    // SAFETY: The pointer and the length are those of a slice. The caller holds no lock.
    unsafe { sys::kf_request_provider(name.as_ptr(), name.len()) };
}
