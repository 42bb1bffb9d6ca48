// SPDX-License-Identifier: GPL-2.0
//! Which providers there are, and what they offer.
//!
//! The list's lock is never held while a provider runs, so a provider may itself ask
//! ([`getinfo`]) or be slow. Whoever uses a provider holds its module.

use kernel::{
    bindings,
    prelude::*,
    sync::Arc,
    ThisModule, //
};

use crate::{
    capi,
    errno::enodata,
    net::Net,
    object::set_name,
    provider::Provider,
    pure::info,
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

// SAFETY: Module references are plain counters.
unsafe impl Send for ModuleRef {}
// SAFETY: As above.
unsafe impl Sync for ModuleRef {}

impl ModuleRef {
    fn get(module: &'static ThisModule) -> Option<Self> {
        // SAFETY: `ThisModule` is a module that exists: it is registered and unregisters before
        // it goes.
        let got = unsafe { bindings::try_module_get(module.as_ptr()) };
        // INVARIANT: As just got.
        got.then(|| Self(module.as_ptr()))
    }
}

impl Drop for ModuleRef {
    fn drop(&mut self) {
        // SAFETY: By the type invariant we hold a reference.
        unsafe { bindings::module_put(self.0) }
    }
}

/// A provider in use: its module stays as long as this does.
pub(crate) struct ProviderRef {
    // Dropped before the module is let go.
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

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init, before anyone can register.
    unsafe(uninit) static PROVIDERS: Mutex<KVec<Entry>> = KVec::new();
}

/// Readies the list. Once, at module load.
///
/// # Safety
///
/// Not called twice.
pub(crate) unsafe fn init() {
    // SAFETY: The caller's promise.
    unsafe { PROVIDERS.init() }
}

/// Gives back what the list took. Once, at module unload.
pub(crate) fn exit() {
    *PROVIDERS.lock() = KVec::new();
}

/// A provider's presence in the list; dropping it takes the provider out.
///
/// A provider keeps it for as long as its module is loaded, and makes it last in its `init`: a
/// module whose `init` fails goes without waiting for those who found it meanwhile. At drop nothing of the provider is in
/// use: everything that uses it holds its module.
pub struct Registration {
    provider: Arc<dyn Provider>,
}

impl Registration {
    /// Adds a provider.
    ///
    /// # Errors
    ///
    /// `EEXIST`: the name is taken. `EINVAL`: the name is empty or longer than fits.
    pub fn new(provider: Arc<dyn Provider>, module: &'static ThisModule) -> Result<Self> {
        let name = provider.name();
        if name.is_empty() || name.len() >= 32 {
            return Err(EINVAL);
        }
        let mut list = PROVIDERS.lock();
        if list.iter().any(|e| e.provider.name() == name) || capi::has(name) {
            return Err(EEXIST);
        }
        let entry = Entry {
            provider: provider.clone(),
            module,
        };
        // UNACCOUNTED: A provider module registers it.
        list.push(entry, GFP_KERNEL)?;
        Ok(Self { provider })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let taken = {
            let mut list = PROVIDERS.lock();
            list.iter()
                .position(|e| Arc::ptr_eq(&e.provider, &self.provider))
                .and_then(|at| list.remove(at).ok())
        };
        // Outside the lock.
        drop(taken);
    }
}

/// Does something unless the name is taken, which it is not before that is over.
///
/// # Errors
///
/// `EEXIST`: it is. Else what `go` says.
pub(crate) fn unless_taken(name: &str, go: impl FnOnce() -> Result) -> Result {
    let list = PROVIDERS.lock();
    if list.iter().any(|e| e.provider.name() == name) {
        return Err(EEXIST);
    }
    go()
}

/// The provider of this name.
///
/// # Errors
///
/// `ENOENT`: there is none, or it is just going away.
pub(crate) fn find(name: &str) -> Result<ProviderRef> {
    PROVIDERS
        .lock()
        .iter()
        .find(|e| e.provider.name() == name)
        .and_then(Entry::get)
        .ok_or(ENOENT)
}

/// All of them, each held.
fn snapshot() -> Result<KVec<ProviderRef>> {
    let mut all = KVec::new();
    let list = PROVIDERS.lock();
    for entry in list.iter() {
        if let Some(provider) = entry.get() {
            all.push(provider, GFP_KERNEL_ACCOUNT)?;
        }
    }
    Ok(all)
}

/// What matches `hints` (none: all there is), best first (`fi_getinfo(3)`).
///
/// # Errors
///
/// `ENODATA`: nothing does.
pub fn getinfo(net: &Net, hints: Option<&InfoEntry>) -> Result<KVec<InfoEntry>> {
    let nothing = InfoEntry::default();
    let mut found = KVec::new();
    for provider in snapshot()?.iter() {
        let provider = provider.get();
        let mut offered = KVec::new();
        if let Err(e) = provider.getinfo(net, hints.unwrap_or(&nothing), &mut offered) {
            // One that cannot answer now must not hide the others.
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
            if let Some(entry) = crate::info::select(&entry, hints) {
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
