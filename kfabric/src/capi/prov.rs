// SPDX-License-Identifier: GPL-2.0
//! Providers written in C. They serve consumers written in C, with objects of their own.
//!
//! No lock is held while a provider runs, so a provider may itself call `kfi_getinfo()`. A name
//! belongs to one provider, in C or in Rust: the registry reserves it.

use core::ptr;
use kernel::{
    bindings,
    ffi::{
        c_char,
        c_int,
        c_void, //
    },
    prelude::*,
    str::CStr, //
};

use super::{
    info::List,
    obj::{
        code,
        enosys, //
    },
    raw, //
};
use crate::{
    provider::registry,
    sys, //
};

/// A registered provider written in C.
///
/// # Invariants
///
/// `provider` is registered: it stays in the list until it is deregistered, and in memory until all
/// references taken before are returned.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    provider: *mut raw::kfi_provider,
    /// Larger than the number of every provider registered before.
    number: u64,
}

// SAFETY: The header allows calls of a provider from any thread.
unsafe impl Send for Entry {}

/// A call of `kgetinfo()` in progress: its provider and its task. A nested call of the same task
/// skips that provider.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Asked(Entry, *mut bindings::task_struct);

// SAFETY: The task pointer is only compared, never followed.
unsafe impl Send for Asked {}

struct Lists {
    /// Sorted by `number`.
    providers: KVec<Entry>,
    /// The largest number assigned so far.
    last: u64,
    asked: KVec<Asked>,
}

kernel::sync::global_lock! {
    // SAFETY: The module's init calls `init()`, before any provider can register.
    unsafe(uninit) static PROVIDERS: Mutex<Lists> = Lists {
        providers: KVec::new(),
        last: 0,
        asked: KVec::new(),
    };
}

/// Initialises the lists, at module load.
///
/// # Safety
///
/// Called only once.
pub(super) unsafe fn init() {
    // SAFETY: By this function's contract it runs once.
    unsafe { PROVIDERS.init() }
}

/// Frees the lists' memory, at module unload.
pub(super) fn exit() {
    let mut lists = PROVIDERS.lock();
    lists.providers = KVec::new();
    lists.asked = KVec::new();
}

impl Entry {
    fn name(&self) -> &CStr {
        // SAFETY: By the type invariant the provider is registered, so it has a name.
        unsafe { CStr::from_char_ptr((*self.provider).name) }
    }
}

/// A reference to a provider: deregistration waits for its return.
struct Kept(Entry);

impl Kept {
    /// The provider's C structure.
    fn get(&self) -> &raw::kfi_provider {
        // SAFETY: By the invariant of `Entry` the provider stays until the reference is returned.
        // The reference count, which C changes meanwhile, is not read here.
        unsafe { &*self.0.provider }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: `self` owns the reference that `Lists::keep` took.
        unsafe { raw::kf_c_provider_put(self.0.provider) }
    }
}

impl Lists {
    /// Takes a reference, unless the provider's module is being unloaded.
    fn keep(&self, entry: Entry) -> Option<Kept> {
        // SAFETY: The provider is in the list, so it has at least the registration's reference.
        unsafe { raw::kf_c_provider_get(entry.provider) }.then(|| Kept(entry))
    }

    fn find(&self, name: &CStr) -> Option<usize> {
        self.providers.iter().position(|entry| entry.name() == name)
    }
}

fn register(provider: *mut raw::kfi_provider, owner: *mut bindings::module) -> Result {
    // SAFETY: The caller passes a valid provider, or null.
    let given = unsafe { provider.as_ref() }.ok_or(EINVAL)?;
    if given.name.is_null() || given.kgetinfo.is_none() || given.kfabric.is_none() {
        return Err(EINVAL);
    }
    // SAFETY: The header requires a terminated string.
    let name = unsafe { CStr::from_char_ptr(given.name) };
    let text = name.to_str().map_err(|_| EINVAL)?;
    if text.is_empty() || text.len() >= 32 {
        return Err(EINVAL);
    }
    let (major, minor) = (given.kfi_version >> 16, given.kfi_version & 0xffff);
    if major != raw::KFI_MAJOR_VERSION || minor > raw::KFI_MINOR_VERSION {
        return Err(enosys());
    }
    registry::reserve_name(provider.addr(), text)?;
    add(provider, owner).inspect_err(|_| registry::release_name(provider.addr()))
}

/// Adds a provider, whose name the caller has reserved.
fn add(provider: *mut raw::kfi_provider, owner: *mut bindings::module) -> Result {
    let mut lists = PROVIDERS.lock();
    // Before any task can find the provider.
    // SAFETY: The provider is the caller's, and no other task has a pointer to it yet.
    unsafe { raw::kf_c_provider_init(provider, owner) };
    lists.last += 1;
    // INVARIANT: The provider is registered from here on.
    let entry = Entry {
        provider,
        number: lists.last,
    };
    Ok(lists.providers.push(entry, GFP_KERNEL)?)
}

/// See `kfi_provider_register_by()`.
///
/// # Safety
///
/// The contract is that of `kfi_provider_register_by()` in `kfi_prov.h`.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_provider_register(
    provider: *mut raw::kfi_provider,
    owner: *mut bindings::module,
) -> c_int {
    code(register(provider, owner))
}

/// See `kfi_provider_deregister()`.
///
/// # Safety
///
/// The contract is that of `kfi_provider_deregister()` in `kfi_prov.h`.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_provider_deregister(
    provider: *mut raw::kfi_provider,
) -> c_int {
    let taken = {
        let mut lists = PROVIDERS.lock();
        let at = lists
            .providers
            .iter()
            .position(|entry| entry.provider == provider);
        at.and_then(|at| lists.providers.remove(at).ok())
    };
    if taken.is_none() {
        return ENOENT.to_errno();
    }
    registry::release_name(provider.addr());
    // SAFETY: The provider was registered, and only the task that removed it from the list gets
    // here.
    unsafe {
        raw::kf_c_provider_end(provider);
        if let Some(cleanup) = (*provider).cleanup {
            cleanup();
        }
    }
    0
}

/// Collects the offers of all providers, or of the provider that the hints name.
///
/// # Errors
///
/// - `ENOMEM` if memory is exhausted.
///
/// An error of one provider does not hide the other providers' offers.
///
/// # Safety
///
/// The contract is that of `kfi_getinfo()`.
pub(super) unsafe fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const raw::kfi_info,
    list: &mut List,
) -> Result {
    // SAFETY: By this function's contract hints and attributes are valid, or null.
    let named = unsafe {
        let fabric = hints.as_ref().and_then(|hints| hints.fabric_attr.as_ref());
        fabric.map_or(ptr::null(), |fabric| fabric.prov_name)
    };
    // SAFETY: A provider name that is not null is a terminated string.
    let named = (!named.is_null()).then(|| unsafe { CStr::from_char_ptr(named) });
    let task = sys::current_task();
    let mut last = 0;
    loop {
        let (kept, asked) = {
            let mut lists = PROVIDERS.lock();
            // The list may have changed while it was not locked.
            let next = lists.providers.iter().find(|entry| entry.number > last);
            let Some(entry) = next.copied() else {
                return Ok(());
            };
            last = entry.number;
            let Some(kept) = lists.keep(entry) else {
                continue;
            };
            let asked = Asked(kept.0, task);
            let skipped = named.is_some_and(|named| {
                !named
                    .to_bytes()
                    .eq_ignore_ascii_case(kept.0.name().to_bytes())
            }) || lists.asked.contains(&asked);
            if skipped {
                drop(lists);
                continue;
            }
            lists.asked.push(asked, GFP_KERNEL)?;
            (kept, asked)
        };
        let mut found = ptr::null_mut();
        let answer = match kept.get().kgetinfo {
            // SAFETY: `kgetinfo()` has the contract of `kfi_getinfo()`, which holds here.
            Some(ask) => unsafe {
                ask(version, node, service, flags, hints.cast_mut(), &mut found)
            },
            None => enosys().to_errno(),
        };
        {
            let mut lists = PROVIDERS.lock();
            if let Some(at) = lists.asked.iter().position(|one| *one == asked) {
                let _ = lists.asked.remove(at);
            }
        }
        if answer == 0 {
            let mut given = List::new();
            // SAFETY: The provider passes ownership of the list that it returns.
            unsafe { given.push(found) };
            given.sign(kept.0.name(), kept.get().version)?;
            // SAFETY: `give()` passes ownership of a list of infos.
            unsafe { list.push(given.give()) };
        }
    }
}

/// Opens a fabric by the C provider that the attributes name, if that provider is registered.
///
/// # Safety
///
/// The contract is that of `kfi_fabric()`; `attr.prov_name` is not null.
pub(super) unsafe fn fabric(
    attr: &raw::kfi_fabric_attr,
    fabric: *mut *mut raw::kfid_fabric,
    context: *mut c_void,
) -> Option<c_int> {
    // SAFETY: By this function's contract the name is a terminated string.
    let name = unsafe { CStr::from_char_ptr(attr.prov_name) };
    let kept = {
        let lists = PROVIDERS.lock();
        let at = lists.find(name)?;
        lists.keep(*lists.providers.get(at)?)?
    };
    let open = kept.get().kfabric?;
    // SAFETY: `kfabric()` has the contract of `kfi_fabric()`, which holds here.
    Some(unsafe { open(ptr::from_ref(attr).cast_mut(), fabric, context) })
}

crate::same_prototype!(raw: kf_c_provider_register, kf_c_provider_deregister);
