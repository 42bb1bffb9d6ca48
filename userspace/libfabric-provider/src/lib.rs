// SPDX-License-Identifier: MIT OR Apache-2.0
//! A libfabric provider over `/dev/kfabric`: `libkfabric-fi.so`, which libfabric 1.17 and later
//! load. Connected endpoints (`FI_EP_MSG`) are native; `ofi_rxm` layers `FI_EP_RDM` over them.

#![allow(
    clippy::missing_safety_doc,
    reason = "entry points have libfabric's contracts: valid objects and arguments of its manual pages"
)]

mod addr;
mod asked;
mod atomic;
mod auth;
mod closed;
mod cntr;
mod core;
mod cq;
mod domain;
mod ep;
mod eq;
mod error;
mod fabric;
mod ffi;
mod fork;
mod info;
mod mr;
mod object;
mod pep;
mod post;
#[cfg(test)]
mod tables;
mod text;
mod version;
mod wait;

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::{Once, OnceLock};

use ffi::*;

/// The newest libfabric whose rules the plug-in follows. libfabric does not use a provider whose version
/// is older than that of the program's request, so a newer libfabric gets its own version
/// ([`prepared`]): structures only grow.
const FI_VERSION: u32 = 2 << 16 | 6;

/// The provider's structure. libfabric writes to its `context`.
struct Provider(UnsafeCell<fi_provider>);

// SAFETY: only libfabric writes to the structure, under its own lock.
unsafe impl Sync for Provider {}

/// Structure of the first libfabric that loads the plug-in, whose log the plug-in uses.
static PROVIDER: Provider = Provider(UnsafeCell::new(structure()));

const fn structure() -> fi_provider {
    fi_provider {
        version: 1,
        fi_version: FI_VERSION,
        context: fi_context {
            internal: [std::ptr::null_mut(); 4],
        },
        name: c"kfabric".as_ptr(),
        getinfo: Some(info::getinfo),
        fabric: Some(fabric::open),
        cleanup: Some(cleanup),
    }
}

/// The device file.
static DEVICE: OnceLock<String> = OnceLock::new();

/// Whether the user wants rings; unset if the program's info decides.
static RINGS: OnceLock<bool> = OnceLock::new();

/// The domain to which the user restricts the program.
static DOMAIN: OnceLock<String> = OnceLock::new();

/// Entries of a completion queue for each one that the program asks for.
static QUEUE_FACTOR: OnceLock<u32> = OnceLock::new();

/// Greatest `max_msg_size` of infos, if the user has set one.
static MAX_MSG_SIZE: OnceLock<u64> = OnceLock::new();

/// [`QUEUE_FACTOR`] if the user has set none: a queue also has an entry for each posted receive.
const DEFAULT_QUEUE_FACTOR: u32 = 4;

/// Greatest value of [`QUEUE_FACTOR`].
const QUEUE_FACTOR_MAX: u32 = 64;

/// Returns the provider's structure.
pub(crate) fn provider() -> *mut fi_provider {
    PROVIDER.0.get()
}

/// Returns the path of the device file.
pub(crate) fn device_path() -> &'static str {
    DEVICE.get().map_or("/dev/kfabric", String::as_str)
}

/// Returns whether the user lets the program use the domain of this name.
pub(crate) fn allows_domain(name: &str) -> bool {
    match DOMAIN
        .get()
        .map(|wanted| (wanted, wanted.strip_prefix('^')))
    {
        None => true,
        Some((_, Some(left_out))) => left_out != name,
        Some((only, None)) => only == name,
    }
}

/// Warns once if the user restricts the program to a domain that is not among these.
pub(crate) fn check_domain<'a>(mut domains: impl Iterator<Item = &'a str>) {
    static WARNED: Once = Once::new();
    let Some(only) = DOMAIN.get().filter(|name| !name.starts_with('^')) else {
        return;
    };
    if domains.all(|domain| domain != only) {
        WARNED.call_once(|| core::warn(&format!("FI_KFABRIC_DOMAIN: no domain is named {only}")));
    }
}

/// Returns how many entries a completion queue has for each one that the program asks for.
pub(crate) fn queue_factor() -> u32 {
    *QUEUE_FACTOR.get().unwrap_or(&DEFAULT_QUEUE_FACTOR)
}

/// Returns the `max_msg_size` of an info whose endpoints can send `most` bytes.
pub(crate) fn max_msg_size(most: u64) -> u64 {
    smaller(MAX_MSG_SIZE.get().copied(), most)
}

/// [`max_msg_size`] for a value of the parameter, `None` if it is not set.
fn smaller(by_user: Option<u64>, most: u64) -> u64 {
    by_user.map_or(most, |size| most.min(size))
}

/// Converts the value of the parameter `max_msg_size`.
fn msg_size(value: &str) -> Option<u64> {
    let size = value.trim().parse().ok()?;
    (size > 0).then_some(size)
}

/// Converts the value of the parameter `queue_factor`.
fn factor(value: &str) -> Option<u32> {
    let factor = value.trim().parse().ok()?;
    (1..=QUEUE_FACTOR_MAX).contains(&factor).then_some(factor)
}

/// Returns whether endpoints with this `data_progress` ask for rings. Messages of rings move only while
/// the program calls libfabric, so the program must ask for FI_PROGRESS_MANUAL. The parameter `rings`
/// asks for a program that leaves the choice open, or forbids rings.
pub(crate) fn wants_rings(progress: fi_progress) -> bool {
    rings(RINGS.get().copied(), progress)
}

/// [`wants_rings`] for a value of the parameter, `None` if it is not set.
fn rings(by_user: Option<bool>, progress: fi_progress) -> bool {
    match progress {
        FI_PROGRESS_MANUAL => by_user != Some(false),
        FI_PROGRESS_UNSPEC => by_user == Some(true),
        _ => false,
    }
}

/// Converts a parameter's value by libfabric's words for yes and no.
fn yes_or_no(value: &str) -> Option<bool> {
    let is = |words: [&str; 6]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    match () {
        () if is(["1", "yes", "y", "true", "t", "on"]) => Some(true),
        () if is(["0", "no", "n", "false", "f", "off"]) => Some(false),
        () => None,
    }
}

unsafe extern "C" fn cleanup() {}

/// The version by which libfabric prefers the plug-in to its own provider of the name `verbs`.
const ALIAS_VERSION: u32 = 0x7fff << 16;

/// Whether the plug-in's file has the alias `verbs` in its name: then it takes the place of
/// libfabric's provider of that name, for programs that know no other one.
fn is_alias() -> bool {
    let file = core::own_file();
    let name = file.rsplit('/').next().unwrap_or_default();
    name.contains("verbs")
}

/// Returns the provider. libfabric calls this function once, when it loads the plug-in. A process may
/// have several libfabrics: each gets a structure of its own, which lives for ever. The parameters are those
/// of the process. A libfabric that is not the first one waits until they are set.
#[no_mangle]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    static LOADED: Once = Once::new();
    let mut first = None;
    LOADED.call_once(|| {
        let prov = prepared(provider());
        load(prov);
        first = Some(prov);
    });
    first.unwrap_or_else(|| prepared(Box::leak(Box::new(structure()))))
}

/// Sets the name and the version of a structure that libfabric has not got yet.
fn prepared(prov: *mut fi_provider) -> *mut fi_provider {
    // SAFETY: libfabric has not got the structure yet.
    unsafe { (*prov).fi_version = FI_VERSION.max(core::version_of_caller()) };
    if is_alias() {
        // SAFETY: libfabric has not got the structure yet.
        unsafe {
            (*prov).name = c"verbs".as_ptr();
            (*prov).version = ALIAS_VERSION;
        }
    }
    prov
}

/// Prepares the process, and declares and reads the parameters.
fn load(prov: *mut fi_provider) {
    core::note_caller();
    fork::guard();
    // The alias has the variables of its true name, and declares none.
    let parameter = |name: &CStr, help: &CStr| match is_alias() {
        true => core::variable(name),
        false => core::parameter(prov, name, help),
    };
    let help = c"Path of the device file (default: /dev/kfabric)";
    if let Some(path) = parameter(c"device", help) {
        // Fails only if the path is set already: then the first one holds.
        let _ = DEVICE.set(path);
    }
    let help = c"Name of the only domain to offer, as fi_info lists it, or ^ and the name of the only one not to \
        offer (default: all domains)";
    if let Some(name) = parameter(c"domain", help) {
        let _ = DOMAIN.set(name);
    }
    let help =
        c"Whether messages within the host use rings: yes, for programs that do not ask for \
        automatic progress; no (default: for programs that ask for manual progress)";
    if let Some(value) = parameter(c"rings", help) {
        match yes_or_no(&value) {
            Some(rings) => drop(RINGS.set(rings)),
            None => core::warn(&format!(
                "FI_KFABRIC_RINGS: {value:?} is neither yes nor no, and is ignored"
            )),
        }
    }
    let help = c"Entries of a completion queue for each one that the program asks for, 1 to 64 (default: 4)";
    if let Some(value) = parameter(c"queue_factor", help) {
        match factor(&value) {
            Some(factor) => drop(QUEUE_FACTOR.set(factor)),
            None => core::warn(&format!(
                "FI_KFABRIC_QUEUE_FACTOR: {value:?} is not a number from 1 to {QUEUE_FACTOR_MAX}, and is ignored"
            )),
        }
    }
    let help = c"Greatest max_msg_size of infos, in bytes, for programs that allocate and register a multiple of it \
        (default: the kernel provider's limit)";
    if let Some(value) = parameter(c"max_msg_size", help) {
        match msg_size(&value) {
            Some(size) => drop(MAX_MSG_SIZE.set(size)),
            None => core::warn(&format!(
                "FI_KFABRIC_MAX_MSG_SIZE: {value:?} is not a number of bytes above 0, and is ignored"
            )),
        }
    }
    let help = c"Path of a file with the auth key of domains and listeners (default: none)";
    if let Some(path) = parameter(c"auth_key_file", help) {
        auth::set_file(path);
    }
}
