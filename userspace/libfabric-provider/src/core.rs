// SPDX-License-Identifier: MIT OR Apache-2.0
//! The libfabric that loaded the plug-in. Nothing is linked: functions are looked up at run time,
//! so the plug-in needs no version of a symbol.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::sync::OnceLock;

use crate::ffi::*;

type Define =
    unsafe extern "C" fn(*const fi_provider, *const c_char, c_int, *const c_char, ...) -> c_int;
type Get = unsafe extern "C" fn(*mut fi_provider, *const c_char, *mut c_void) -> c_int;

type Version = unsafe extern "C" fn() -> u32;
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

/// `FI_LOG_WARN` and `FI_LOG_INFO`.
const WARN: c_int = 0;
const INFO: c_int = 2;
/// The subsystem `FI_LOG_CORE`.
const CORE: c_int = 0;
/// `FI_PARAM_STRING`.
const STRING: c_int = 0;

/// The libfabric that loaded the plug-in.
struct Library {
    /// Handle of `dlopen`; null for the default search.
    handle: usize,
    /// Address at which the file is loaded; 0 if unknown.
    base: usize,
}

static LIBRARY: OnceLock<Library> = OnceLock::new();

impl Library {
    /// The libfabric that calls `fi_prov_ini`: there it is the first caller outside this file.
    fn of_caller() -> Self {
        let (name, base) = match caller() {
            Some((name, base)) => (name, base),
            None => (c"libfabric.so.1".to_owned(), 0),
        };
        // SAFETY: a C string. The library is loaded already; nothing is loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
        let handle = handle.expose_provenance();
        Self { handle, base }
    }

    /// Looks a function of the library up; null if the library does not export it.
    fn find(&self, name: &CStr) -> *mut c_void {
        let handle = std::ptr::with_exposed_provenance_mut(self.handle);
        // SAFETY: a handle of `dlopen`, or null, which is RTLD_DEFAULT; and a C string.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        // The search goes on in other files. A second libfabric may have another version.
        let is_own = |at| object_of(at).is_some_and(|(_, found)| found == self.base);
        if found.is_null() || self.base == 0 || is_own(found) {
            return found;
        }
        std::ptr::null_mut()
    }
}

/// Notes which libfabric calls the plug-in. Its name is not known: Python's wheels, for example, have
/// copies of other names, which other libraries cannot see. `fi_prov_ini` calls this function.
pub(crate) fn note_caller() {
    LIBRARY.get_or_init(Library::of_caller);
}

/// The version of the libfabric that calls `fi_prov_ini`, which need not be the first one; 0 if unknown.
pub(crate) fn version_of_caller() -> u32 {
    let library = Library::of_caller();
    let found = library.find(c"fi_version");
    if found.is_null() {
        return 0;
    }
    // SAFETY: the type holds in all versions.
    unsafe { std::mem::transmute::<*mut c_void, Version>(found)() }
}

/// The file of an address, and where it is loaded.
fn object_of(at: *const c_void) -> Option<(CString, usize)> {
    // SAFETY: zeroes are a valid value; any address, and a place for the answer, whose text lives as
    // long as the file is loaded.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(at, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        Some((
            CStr::from_ptr(info.dli_fname).to_owned(),
            info.dli_fbase.addr(),
        ))
    }
}

/// The file that called a function of this file, and where the caller's file is loaded.
fn caller() -> Option<(CString, usize)> {
    let (_, own) = object_of(caller as fn() -> Option<(CString, usize)> as *const c_void)?;
    let mut frames = [std::ptr::null_mut(); 32];
    // SAFETY: an array of 32 places.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), 32) };
    let frames = &frames[..usize::try_from(count).unwrap_or(0)];
    let mut objects = frames.iter().filter_map(|at| object_of(*at));
    objects.find(|(_, base)| *base != own)
}

/// Looks a function of libfabric up; null if libfabric does not export it.
fn find(name: &CStr) -> *mut c_void {
    let unknown = Library { handle: 0, base: 0 };
    LIBRARY.get().unwrap_or(&unknown).find(name)
}

/// The path of the plug-in's own file; empty if unknown.
pub(crate) fn own_file() -> String {
    let own = object_of(own_file as fn() -> String as *const c_void);
    own.map_or(String::new(), |(file, _)| {
        file.to_string_lossy().into_owned()
    })
}

/// The variable of a parameter, as libfabric names it for the provider `kfabric`.
pub(crate) fn variable(name: &CStr) -> Option<String> {
    let name = name.to_string_lossy().to_uppercase();
    let value = std::env::var_os(format!("FI_KFABRIC_{name}"))?;
    Some(value.to_string_lossy().into_owned())
}

/// Declares a parameter, and returns its value if the user has set it. The value is that of the
/// variable if libfabric does not export its functions for parameters: a program must not run without
/// the auth key that the user has given it.
pub(crate) fn parameter(prov: *mut fi_provider, name: &CStr, help: &CStr) -> Option<String> {
    let (define, get) = (find(c"fi_param_define"), find(c"fi_param_get"));
    if define.is_null() || get.is_null() {
        return variable(name);
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
    log(WARN, text);
}

/// Writes a remark to libfabric's log.
pub(crate) fn inform(text: &str) {
    log(INFO, text);
}

fn log(level: c_int, text: &str) {
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
        if enabled(prov, level, CORE) != 0 {
            log(
                prov,
                level,
                CORE,
                c"kfabric".as_ptr(),
                0,
                c"%s\n".as_ptr(),
                text.as_ptr(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caller_is_the_first_object_outside_this_one() {
        let (name, base) = caller().expect("a caller");
        let name = name.to_string_lossy().into_owned();
        // The C library starts threads, and `main`.
        assert!(name.contains("libc.so"), "{name}");
        assert_ne!(base, 0);
        assert_ne!(name, own_file());
    }

    #[test]
    fn parameter_without_interface_is_read_from_the_environment() {
        let help = c"";
        let prov = crate::provider();
        assert_eq!(parameter(prov, c"test_of_core", help), None);
        std::env::set_var("FI_KFABRIC_TEST_OF_CORE", "a value");
        let value = parameter(prov, c"test_of_core", help);
        assert_eq!(value.as_deref(), Some("a value"));
    }
}
