// SPDX-License-Identifier: MIT OR Apache-2.0
//! The libfabric that loaded the plug-in. Nothing is linked: functions are looked up at run time,
//! so the plug-in needs no version of a symbol.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::sync::OnceLock;

use crate::ffi::*;

type Version = unsafe extern "C" fn() -> u32;
type Define =
    unsafe extern "C" fn(*const fi_provider, *const c_char, c_int, *const c_char, ...) -> c_int;
type Get = unsafe extern "C" fn(*mut fi_provider, *const c_char, *mut c_void) -> c_int;

type Enabled = unsafe extern "C" fn(*const fi_provider, c_int, c_int) -> c_int;
type Log = unsafe extern "C" fn(
    *const fi_provider,
    c_int,
    c_int,
    *const c_char,
    c_int,
    *const c_char,
    ...
);

/// `FI_LOG_WARN`, and the subsystem `FI_LOG_CORE`.
const WARN: (c_int, c_int) = (0, 0);
/// `FI_PARAM_STRING`.
const STRING: c_int = 0;

fn find(name: &CStr) -> *mut c_void {
    static LIB: OnceLock<usize> = OnceLock::new();
    let lib = LIB.get_or_init(|| {
        // SAFETY: a C string. The library that loads us is there already; nothing is loaded.
        let at = unsafe {
            libc::dlopen(
                c"libfabric.so.1".as_ptr(),
                libc::RTLD_NOLOAD | libc::RTLD_NOW,
            )
        };
        at.expose_provenance()
    });
    let lib = std::ptr::with_exposed_provenance_mut(*lib);
    // SAFETY: a handle of `dlopen`, or null, which is RTLD_DEFAULT; and a C string.
    unsafe { libc::dlsym(lib, name.as_ptr()) }
}

/// The path of the plug-in's own file; empty if unknown.
pub(crate) fn own_file() -> String {
    let own = own_file as fn() -> String;
    // SAFETY: zeroes are a valid value; an address of this file, and a place for the answer, whose
    // text lives as long as the file is loaded.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(own as *const c_void, &raw mut info) == 0 || info.dli_fname.is_null() {
            return String::new();
        }
        CStr::from_ptr(info.dli_fname)
            .to_string_lossy()
            .into_owned()
    }
}

/// The version of the loaded library: major << 16 | minor. 1.17 if unknown.
pub(crate) fn version() -> u32 {
    static VERSION: OnceLock<u32> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let f = find(c"fi_version");
        if f.is_null() {
            return 1 << 16 | 17;
        }
        // SAFETY: libfabric's `fi_version` has this type in all versions.
        unsafe { std::mem::transmute::<*mut c_void, Version>(f)() }
    })
}

/// Declares a parameter, and returns its value if the user has set it.
pub(crate) fn parameter(prov: *mut fi_provider, name: &CStr, help: &CStr) -> Option<String> {
    let (define, get) = (find(c"fi_param_define"), find(c"fi_param_get"));
    if define.is_null() || get.is_null() {
        return None;
    }
    let mut value: *const c_char = std::ptr::null();
    // SAFETY: these types hold in all versions; the provider and the strings live for ever.
    unsafe {
        let define = std::mem::transmute::<*mut c_void, Define>(define);
        let get = std::mem::transmute::<*mut c_void, Get>(get);
        define(prov, name.as_ptr(), STRING, c"%s".as_ptr(), help.as_ptr());
        if get(prov, name.as_ptr(), (&raw mut value).cast()) != 0 || value.is_null() {
            return None;
        }
        Some(CStr::from_ptr(value).to_string_lossy().into_owned())
    }
}

/// Writes a warning to libfabric's log.
pub(crate) fn warn(text: &str) {
    let (enabled, log) = (find(c"fi_log_enabled"), find(c"fi_log"));
    let Ok(text) = CString::new(text) else { return };
    if enabled.is_null() || log.is_null() {
        return;
    }
    let prov = crate::provider().cast_const();
    // SAFETY: these types hold in all versions; the format has one string.
    unsafe {
        let enabled = std::mem::transmute::<*mut c_void, Enabled>(enabled);
        let log = std::mem::transmute::<*mut c_void, Log>(log);
        if enabled(prov, WARN.0, WARN.1) != 0 {
            log(
                prov,
                WARN.0,
                WARN.1,
                c"kfabric".as_ptr(),
                0,
                c"%s\n".as_ptr(),
                text.as_ptr(),
            );
        }
    }
}
