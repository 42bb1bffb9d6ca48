// SPDX-License-Identifier: GPL-2.0
//! The fabrics and the domains that consumers in C have open.
//!
//! Hints of `kfi_getinfo()` may name an object that was closed, or that never was: a pointer in hints
//! is compared with these lists and is not followed. What `kfi_getinfo()` returns names the open
//! objects of the module that calls.

use core::ptr;
use kernel::{
    bindings,
    prelude::*,
    sync::Arc, //
};

use super::raw;
use crate::{
    fabric::{
        Domain,
        Fabric, //
    },
    net::Net,
};

/// The module that calls; null: it is not known. Compared only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct User(pub(super) *mut bindings::module);

// SAFETY: The pointer is compared only.
unsafe impl Send for User {}
// SAFETY: As above.
unsafe impl Sync for User {}

/// An open object.
struct Entry<T> {
    /// Address of its C structure.
    address: usize,
    user: User,
    core: Arc<T>,
}

/// Open objects of one kind, the one that was opened first in front.
struct List<T>(KVec<Entry<T>>);

impl<T> List<T> {
    const fn new() -> Self {
        Self(KVec::new())
    }

    fn find(&self, address: usize) -> Option<&Entry<T>> {
        self.0.iter().find(|entry| entry.address == address)
    }

    fn add(&mut self, address: usize, user: User, core: Arc<T>) -> Result {
        let entry = Entry {
            address,
            user,
            core,
        };
        Ok(self.0.push(entry, GFP_KERNEL)?)
    }

    fn remove(&mut self, address: usize) -> Option<Entry<T>> {
        let at = self.0.iter().position(|entry| entry.address == address)?;
        self.0.remove(at).ok()
    }
}

struct Lists {
    fabrics: List<Fabric>,
    domains: List<Domain>,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init, before anything can be opened.
    unsafe(uninit) static OPEN: Mutex<Lists> = Lists {
        fabrics: List::new(),
        domains: List::new(),
    };
}

/// Readies the lists. Once, at module load.
///
/// # Safety
///
/// Not called twice.
pub(super) unsafe fn init() {
    // SAFETY: The caller's promise.
    unsafe { OPEN.init() }
}

/// Frees the lists' memory. Once, at module unload, when nothing is open.
pub(super) fn exit() {
    let mut open = OPEN.lock();
    open.fabrics = List::new();
    open.domains = List::new();
}

/// Adds a fabric that `user` opens.
///
/// # Errors
///
/// `ENOMEM`.
pub(super) fn add_fabric(c: *mut raw::kfid_fabric, user: User, fabric: &Arc<Fabric>) -> Result {
    OPEN.lock().fabrics.add(c.addr(), user, fabric.clone())
}

/// Adds a domain, of the module that has its fabric open.
///
/// # Errors
///
/// `ENOMEM`.
pub(super) fn add_domain(c: *mut raw::kfid_domain, domain: &Arc<Domain>) -> Result {
    let mut open = OPEN.lock();
    let of = open
        .fabrics
        .0
        .iter()
        .find(|entry| Arc::ptr_eq(&entry.core, domain.fabric()));
    let user = of.map_or(User(ptr::null_mut()), |entry| entry.user);
    open.domains.add(c.addr(), user, domain.clone())
}

/// Removes a fabric, which has been closed.
pub(super) fn remove_fabric(c: *mut raw::kfid) {
    let removed = OPEN.lock().fabrics.remove(c.addr());
    // Without the lock.
    drop(removed);
}

/// Removes a domain, which has been closed.
pub(super) fn remove_domain(c: *mut raw::kfid) {
    let removed = OPEN.lock().domains.remove(c.addr());
    // Without the lock.
    drop(removed);
}

/// The fabric at this address; `None`: no open one of ours is there.
pub(super) fn fabric(c: *mut raw::kfid_fabric) -> Option<Arc<Fabric>> {
    let open = OPEN.lock();
    open.fabrics.find(c.addr()).map(|entry| entry.core.clone())
}

/// The domain at this address; `None`: no open one of ours is there.
pub(super) fn domain(c: *mut raw::kfid_domain) -> Option<Arc<Domain>> {
    let open = OPEN.lock();
    open.domains.find(c.addr()).map(|entry| entry.core.clone())
}

/// What an info says of the objects that are open.
#[derive(Clone, Copy)]
pub(super) struct Instances {
    pub(super) fabric: *mut raw::kfid_fabric,
    pub(super) domain: *mut raw::kfid_domain,
}

/// Completes what hints name of an info's objects by those that `user` has open: the fabric that was
/// opened first, and the domain that was opened first on that fabric. The names are those of the info:
/// of its provider, its fabric and its domain.
pub(super) fn instances(
    given: Instances,
    user: User,
    net: &Net,
    (provider, fabric, domain): (&str, &str, &str),
) -> Instances {
    let mut found = given;
    if user.0.is_null() {
        return found;
    }
    let open = OPEN.lock();
    if found.fabric.is_null() {
        // The fabric of a domain that hints name is that of the domain.
        let within = open.domains.find(given.domain.addr());
        let is_it = |entry: &&Entry<Fabric>| {
            let core = &entry.core;
            match within {
                Some(domain) => Arc::ptr_eq(core, domain.core.fabric()),
                None => {
                    entry.user == user
                        && core.net().as_ptr() == net.as_ptr()
                        && core.provider().name() == provider
                        && core.name() == fabric
                }
            }
        };
        if let Some(entry) = open.fabrics.0.iter().find(is_it) {
            found.fabric = ptr::with_exposed_provenance_mut(entry.address);
        }
    }
    let on = open.fabrics.find(found.fabric.addr());
    if let (true, Some(on)) = (found.domain.is_null(), on) {
        let is_it = |entry: &&Entry<Domain>| {
            let core = &entry.core;
            entry.user == user
                && Arc::ptr_eq(core.fabric(), &on.core)
                && core.name() == domain
                && !core.is_gone()
        };
        if let Some(entry) = open.domains.0.iter().find(is_it) {
            found.domain = ptr::with_exposed_provenance_mut(entry.address);
        }
    }
    found
}
