// SPDX-License-Identifier: GPL-2.0
//! Lists of the fabrics and domains that C consumers have open.
//!
//! Hints of `kfi_getinfo()` may name an object that was closed or never existed. So a pointer in
//! hints is compared with these lists and never followed. The infos that `kfi_getinfo()` returns
//! name objects that the calling module has open.

use core::ptr;
use kernel::{
    bindings,
    prelude::*,
    sync::Arc, //
};

use super::raw;
use crate::{
    objects::{
        domain::Domain,
        fabric::Fabric, //
    },
    sys::net::Net, //
};

/// The calling module, or null if unknown. The pointer is compared, never followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct User(pub(super) *mut bindings::module);

// SAFETY: The pointer is compared, never followed.
unsafe impl Send for User {}
// SAFETY: The pointer is compared, never followed.
unsafe impl Sync for User {}

/// An open object.
struct Entry<T> {
    /// Address of the object's C structure.
    address: usize,
    user: User,
    core: Arc<T>,
}

/// Open objects of one kind, in the order in which they were opened.
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
    // SAFETY: The module's init calls `init()`, before any consumer can open an object.
    unsafe(uninit) static OPEN: Mutex<Lists> = Lists {
        fabrics: List::new(),
        domains: List::new(),
    };
}

/// Initialises the lists, at module load.
///
/// # Safety
///
/// The function is called once.
pub(super) unsafe fn init() {
    // SAFETY: By this function's contract it runs once.
    unsafe { OPEN.init() }
}

/// Frees the lists' memory, at module unload. No object is open then.
pub(super) fn exit() {
    let mut open = OPEN.lock();
    open.fabrics = List::new();
    open.domains = List::new();
}

/// Adds a fabric that `user` opens.
///
/// # Errors
///
/// - `ENOMEM` if there is no memory for the entry.
pub(super) fn add_fabric(c: *mut raw::kfid_fabric, user: User, fabric: &Arc<Fabric>) -> Result {
    OPEN.lock().fabrics.add(c.addr(), user, fabric.clone())
}

/// Adds a domain. Its user is the module that opened the domain's fabric.
///
/// # Errors
///
/// - `ENOMEM` if there is no memory for the entry.
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

/// Removes a closed fabric.
pub(super) fn remove_fabric(c: *mut raw::kfid) {
    let removed = OPEN.lock().fabrics.remove(c.addr());
    // Outside the lock: this may be the last reference to the fabric.
    drop(removed);
}

/// Removes a closed domain.
pub(super) fn remove_domain(c: *mut raw::kfid) {
    let removed = OPEN.lock().domains.remove(c.addr());
    // Outside the lock: this may be the last reference to the domain.
    drop(removed);
}

/// Returns the open fabric of this module at this address, if there is one.
pub(super) fn fabric(c: *mut raw::kfid_fabric) -> Option<Arc<Fabric>> {
    let open = OPEN.lock();
    open.fabrics.find(c.addr()).map(|entry| entry.core.clone())
}

/// Returns the open domain of this module at this address, if there is one.
pub(super) fn domain(c: *mut raw::kfid_domain) -> Option<Arc<Domain>> {
    let open = OPEN.lock();
    open.domains.find(c.addr()).map(|entry| entry.core.clone())
}

/// The open objects that an info names; null if the info names none.
#[derive(Clone, Copy)]
pub(super) struct Instances {
    pub(super) fabric: *mut raw::kfid_fabric,
    pub(super) domain: *mut raw::kfid_domain,
}

/// Adds objects that `user` has open to an info that names none.
///
/// The fabric is the first that `user` opened; if the hints name an open domain, it is the domain's
/// fabric. The domain is the first that `user` opened on that fabric. The three names are the
/// info's provider, fabric and domain.
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
        // If the hints name an open domain, only its own fabric matches.
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
