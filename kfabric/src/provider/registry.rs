// SPDX-License-Identifier: GPL-2.0
//! The registered providers, and their offers.
//!
//! The list's lock is never held while a provider runs, so a provider may be slow, or itself call
//! [`getinfo`]. Each user of a provider holds its module.

use kernel::{
    bindings,
    prelude::*,
    sync::Arc,
    ThisModule, //
};

use super::{
    autoload,
    select::select,
    traits::Provider, //
};
use crate::{
    base::{
        errno::enodata,
        name::{
            name_str,
            set_name, //
        },
    },
    pure::info,
    sys::net::Net,
    uapi::{
        InfoEntry,
        KFI_ABI_VERSION,
        KFI_API_VERSION, //
    },
};

/// A reference that keeps a module loaded.
///
/// # Invariants
///
/// `try_module_get()` succeeded on it.
struct ModuleRef(*mut bindings::module);

// SAFETY: Module references are counters, which any thread may change.
unsafe impl Send for ModuleRef {}
// SAFETY: A shared reference gives no access to the module.
unsafe impl Sync for ModuleRef {}

impl ModuleRef {
    fn get(module: &'static ThisModule) -> Option<Self> {
        // SAFETY: `ThisModule` is a loaded module: it is registered, and unregisters before it is
        // unloaded.
        let got = unsafe { bindings::try_module_get(module.as_ptr()) };
        // INVARIANT: `got` is true, so the reference was taken.
        got.then(|| Self(module.as_ptr()))
    }
}

impl Drop for ModuleRef {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the value holds a reference.
        unsafe { bindings::module_put(self.0) }
    }
}

/// A provider in use, whose module stays loaded until the drop.
pub(crate) struct ProviderRef {
    // Dropped before the module reference.
    provider: Arc<dyn Provider>,
    _module: ModuleRef,
}

impl ProviderRef {
    pub(crate) fn get(&self) -> &dyn Provider {
        &*self.provider
    }
}

struct Entry {
    provider: Arc<dyn Provider>,
    module: &'static ThisModule,
}

impl Entry {
    fn get(&self) -> Option<ProviderRef> {
        Some(ProviderRef {
            _module: ModuleRef::get(self.module)?,
            provider: self.provider.clone(),
        })
    }
}

/// Bytes of a provider's name, and a NUL.
const NAME: usize = 32;

/// The providers written in Rust, and the names of those written in C. A name belongs to one
/// provider.
struct Providers {
    entries: KVec<Entry>,
    c_names: KVec<(usize, [u8; NAME])>,
}

impl Providers {
    /// Checks that `name` is free, and neither empty nor too long.
    ///
    /// # Errors
    ///
    /// - `EEXIST` if the name is taken.
    /// - `EINVAL` if the name is empty or too long.
    fn check(&self, name: &str) -> Result {
        if name.is_empty() || name.len() >= NAME {
            return Err(EINVAL);
        }
        if self.has(|known| known == name) {
            return Err(EEXIST);
        }
        Ok(())
    }

    /// Returns whether the name of a provider satisfies `is_it`.
    fn has(&self, is_it: impl Fn(&str) -> bool) -> bool {
        self.entries.iter().any(|e| is_it(e.provider.name()))
            || self
                .c_names
                .iter()
                .any(|(_, field)| name_str(field).is_ok_and(&is_it))
    }
}

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init, before a provider can register.
    unsafe(uninit) static PROVIDERS: Mutex<Providers> = Providers {
        entries: KVec::new(),
        c_names: KVec::new(),
    };
}

/// Initialises the list. Once, at module load.
///
/// # Safety
///
/// Called once.
pub(crate) unsafe fn init() {
    // SAFETY: The caller's contract: this is called once.
    unsafe { PROVIDERS.init() }
}

/// Frees the list. Once, at module unload.
pub(crate) fn exit() {
    let mut list = PROVIDERS.lock();
    list.entries = KVec::new();
    list.c_names = KVec::new();
}

/// A provider's entry in the list; the drop removes the entry.
///
/// A provider holds it as long as its module is loaded, and makes it last in its `init`. If `init`
/// failed later, the module would be freed without a wait for tasks that found the provider
/// meanwhile. At the drop no object of the provider is in use: each of them holds the module.
pub struct Registration {
    provider: Arc<dyn Provider>,
}

impl Registration {
    /// Adds a provider.
    ///
    /// # Errors
    ///
    /// - `EEXIST` if the name is taken.
    /// - `EINVAL` if the name is empty or too long.
    pub fn new(provider: Arc<dyn Provider>, module: &'static ThisModule) -> Result<Self> {
        let mut list = PROVIDERS.lock();
        list.check(provider.name())?;
        let entry = Entry {
            provider: provider.clone(),
            module,
        };
        // UNACCOUNTED: A provider module registers it.
        list.entries.push(entry, GFP_KERNEL)?;
        Ok(Self { provider })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let taken = {
            let mut list = PROVIDERS.lock();
            list.entries
                .iter()
                .position(|e| Arc::ptr_eq(&e.provider, &self.provider))
                .and_then(|at| list.entries.remove(at).ok())
        };
        // Drop outside the lock.
        drop(taken);
    }
}

/// Reserves a name for a provider written in C, until [`release_name`]. The address of its structure
/// identifies the provider, which may change its name.
///
/// # Errors
///
/// - `EEXIST` if the name is taken, or the provider is registered.
/// - `EINVAL` if the name is empty or too long.
pub(crate) fn reserve_name(provider: usize, name: &str) -> Result {
    let mut field = [0; NAME];
    set_name(&mut field, name);
    let mut list = PROVIDERS.lock();
    list.check(name)?;
    if list.c_names.iter().any(|(of, _)| *of == provider) {
        return Err(EEXIST);
    }
    // UNACCOUNTED: A provider module registers it.
    list.c_names.push((provider, field), GFP_KERNEL)?;
    Ok(())
}

/// Ends a reservation by [`reserve_name`].
pub(crate) fn release_name(provider: usize) {
    let mut list = PROVIDERS.lock();
    let at = list.c_names.iter().position(|(of, _)| *of == provider);
    if let Some(at) = at {
        let _ = list.c_names.remove(at);
    }
}

/// Returns the provider of this name. If it is not registered, requests its module first.
///
/// # Errors
///
/// - `ENOENT` if there is no such provider, or it is being unloaded.
pub(crate) fn find(name: &str) -> Result<ProviderRef> {
    find_registered(name).or_else(|_| {
        autoload::request(name);
        find_registered(name)
    })
}

fn find_registered(name: &str) -> Result<ProviderRef> {
    PROVIDERS
        .lock()
        .entries
        .iter()
        .find(|e| e.provider.name() == name)
        .and_then(Entry::get)
        .ok_or(ENOENT)
}

/// Returns all providers, each held. The list is locked without an allocation: a program whose
/// cgroup has to reclaim memory would delay all other tasks.
fn snapshot() -> Result<KVec<ProviderRef>> {
    loop {
        let count = PROVIDERS.lock().entries.len();
        let mut all = KVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        let list = PROVIDERS.lock();
        if list.entries.len() > count {
            // A provider was added since the count: allocate a larger list.
            continue;
        }
        for provider in list.entries.iter().filter_map(Entry::get) {
            // Cannot fail: the capacity was reserved above.
            let _ = all.push_within_capacity(provider);
        }
        return Ok(all);
    }
}

/// Requests the module of the provider that `hints` name, unless it is registered.
fn load_named(hints: &InfoEntry) {
    let Ok(name) = name_str(&hints.prov_name) else {
        return;
    };
    let known = PROVIDERS
        .lock()
        .has(|known| known.eq_ignore_ascii_case(name));
    if !known {
        autoload::request(name);
    }
}

/// Returns the offers that match `hints` (`None`: all offers), best first (`fi_getinfo(3)`). If
/// `hints` name a provider that is not registered, requests its module first.
///
/// # Errors
///
/// - `ENODATA` if no offer matches.
pub fn getinfo(net: &Net, hints: Option<&InfoEntry>) -> Result<KVec<InfoEntry>> {
    let nothing = InfoEntry::default();
    if let Some(hints) = hints {
        load_named(hints);
    }
    let mut found = KVec::new();
    for provider in snapshot()?.iter() {
        let provider = provider.get();
        let mut offered = KVec::new();
        if let Err(e) = provider.getinfo(net, hints.unwrap_or(&nothing), &mut offered) {
            // A provider that fails does not hide the others' offers.
            if e == ENOMEM {
                return Err(e);
            }
            continue;
        }
        for mut entry in offered {
            set_name(&mut entry.prov_name, provider.name());
            entry.prov_version = provider.version();
            entry.api_version = KFI_API_VERSION;
            entry.abi = KFI_ABI_VERSION;
            entry.dest_addr = hints.unwrap_or(&nothing).dest_addr;
            if let Some(entry) = select(&entry, hints) {
                found.push(entry, GFP_KERNEL_ACCOUNT)?;
            }
        }
    }
    // Stable: the order of registration decides ties.
    info::sort_by_rank(&mut found, |entry: &InfoEntry| entry.rank);
    if found.is_empty() {
        return Err(enodata());
    }
    Ok(found)
}
