// SPDX-License-Identifier: GPL-2.0
//! Providers written in C. They serve consumers written in C, by objects of their own.
//!
//! No lock is held while a provider runs, so it may itself ask what there is. A name is one
//! provider's, in whichever language it is written: the core's list is locked first, then this one.

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
    registry,
    sys, //
};

/// A provider.
///
/// # Invariants
///
/// Registered, which it stays until it is taken out of the list, and until all references that were
/// taken before are given back.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    provider: *mut raw::kfi_provider,
    /// Larger than of those that were registered before.
    number: u64,
}

// SAFETY: A provider is called from any thread, as its header says.
unsafe impl Send for Entry {}

/// Who is being asked, and by which task: a provider that asks what there is is not asked again.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Asked(Entry, *mut bindings::task_struct);

// SAFETY: The task is compared only.
unsafe impl Send for Asked {}

struct Lists {
    /// By number.
    providers: KVec<Entry>,
    /// The largest number that one has had.
    last: u64,
    asked: KVec<Asked>,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init, before anyone can register.
    unsafe(uninit) static PROVIDERS: Mutex<Lists> = Lists {
        providers: KVec::new(),
        last: 0,
        asked: KVec::new(),
    };
}

/// Readies the lists. Once, at module load.
///
/// # Safety
///
/// Not called twice.
pub(super) unsafe fn init() {
    // SAFETY: The caller's promise.
    unsafe { PROVIDERS.init() }
}

/// Gives back what the lists took. Once, at module unload.
pub(super) fn exit() {
    let mut lists = PROVIDERS.lock();
    lists.providers = KVec::new();
    lists.asked = KVec::new();
}

impl Entry {
    fn name(&self) -> &CStr {
        // SAFETY: By the type invariant it is registered, with a name.
        unsafe { CStr::from_char_ptr((*self.provider).name) }
    }
}

/// A provider that is kept from being deregistered.
struct Kept(Entry);

impl Kept {
    /// The provider as it is.
    fn get(&self) -> &raw::kfi_provider {
        // SAFETY: By the invariant of `Entry` it stays until the reference is given back. What C
        // changes in it meanwhile, its count, is not read here.
        unsafe { &*self.0.provider }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: The reference that was taken with it.
        unsafe { raw::kf_c_provider_put(self.0.provider) }
    }
}

impl Lists {
    /// None: its module is going.
    fn keep(&self, entry: Entry) -> Option<Kept> {
        // SAFETY: It is in the list, so it has at least the reference of being registered.
        unsafe { raw::kf_c_provider_get(entry.provider) }.then(|| Kept(entry))
    }

    fn find(&self, name: &CStr) -> Option<usize> {
        self.providers.iter().position(|entry| entry.name() == name)
    }
}

/// Whether there is one of this name.
pub(crate) fn has(name: &str) -> bool {
    let lists = PROVIDERS.lock();
    let found = lists
        .providers
        .iter()
        .any(|entry| entry.name().to_bytes() == name.as_bytes());
    found
}

fn register(provider: *mut raw::kfi_provider, owner: *mut bindings::module) -> Result {
    // SAFETY: The caller's provider, or null.
    let given = unsafe { provider.as_ref() }.ok_or(EINVAL)?;
    if given.name.is_null() || given.kgetinfo.is_none() || given.kfabric.is_none() {
        return Err(EINVAL);
    }
    // SAFETY: A text, by the header.
    let name = unsafe { CStr::from_char_ptr(given.name) };
    let text = name.to_str().map_err(|_| EINVAL)?;
    if text.is_empty() || text.len() >= 32 {
        return Err(EINVAL);
    }
    let (major, minor) = (given.kfi_version >> 16, given.kfi_version & 0xffff);
    if major != raw::KFI_MAJOR_VERSION || minor > raw::KFI_MINOR_VERSION {
        return Err(enosys());
    }
    registry::unless_taken(text, || {
        let mut lists = PROVIDERS.lock();
        if lists.find(name).is_some() {
            return Err(EEXIST);
        }
        // Before anyone can find it.
        // SAFETY: The caller's, of which nobody knows yet.
        unsafe { raw::kf_c_provider_init(provider, owner) };
        lists.last += 1;
        // INVARIANT: From now on it is registered.
        let entry = Entry {
            provider,
            number: lists.last,
        };
        Ok(lists.providers.push(entry, GFP_KERNEL)?)
    })
}

/// See `kfi_provider_register_by()`.
///
/// # Safety
///
/// As the header says.
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
/// As the header says.
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
    // SAFETY: It was in the list, and only who took it out comes here.
    unsafe {
        raw::kf_c_provider_end(provider);
        if let Some(cleanup) = (*provider).cleanup {
            cleanup();
        }
    }
    0
}

/// Asks them all, or the one that the hints name.
///
/// # Errors
///
/// `ENOMEM`. What a provider says hides no other's offers.
///
/// # Safety
///
/// All is as `kfi_getinfo()` says.
pub(super) unsafe fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const raw::kfi_info,
    list: &mut List,
) -> Result {
    // SAFETY: The caller's promise.
    let named = unsafe {
        let fabric = hints.as_ref().and_then(|hints| hints.fabric_attr.as_ref());
        fabric.map_or(ptr::null(), |fabric| fabric.prov_name)
    };
    // SAFETY: A text, if it is there.
    let named = (!named.is_null()).then(|| unsafe { CStr::from_char_ptr(named) });
    let task = sys::current_task();
    let mut last = 0;
    loop {
        let (kept, asked) = {
            let mut lists = PROVIDERS.lock();
            // The list may be another one than before.
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
            // SAFETY: The provider takes what `kfi_getinfo()` does.
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
            // SAFETY: A provider gives its list away.
            unsafe { given.push(found) };
            given.sign(kept.0.name(), kept.get().version)?;
            // SAFETY: As above.
            unsafe { list.push(given.give()) };
        }
    }
}

/// Opens a fabric of one of these, if the name is one's.
///
/// # Safety
///
/// All is as `kfi_fabric()` says; there is a name.
pub(super) unsafe fn fabric(
    attr: &raw::kfi_fabric_attr,
    fabric: *mut *mut raw::kfid_fabric,
    context: *mut c_void,
) -> Option<c_int> {
    // SAFETY: The caller's promise.
    let name = unsafe { CStr::from_char_ptr(attr.prov_name) };
    let kept = {
        let lists = PROVIDERS.lock();
        let at = lists.find(name)?;
        lists.keep(*lists.providers.get(at)?)?
    };
    let open = kept.get().kfabric?;
    // SAFETY: The provider takes what `kfi_fabric()` does.
    Some(unsafe { open(ptr::from_ref(attr).cast_mut(), fabric, context) })
}
