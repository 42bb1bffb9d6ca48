// SPDX-License-Identifier: GPL-2.0
//! The objects as configfs has them: what `configfs.c` calls.

use core::mem::ManuallyDrop;
use kernel::{
    bindings,
    ffi::{
        c_char,
        c_int,
        c_uint,
        c_void, //
    },
    fmt::{
        self,
        Write, //
    },
    page::PAGE_SIZE,
    prelude::*,
    str::CStr,
    sync::Arc, //
};
use kfabric::{
    auth::AuthKey,
    object::set_name,
    pure::blk::Name,
    uapi::*, //
};

pub(crate) use kfabric::errno::{
    edquot,
    ekeyrevoked,
    emediumtype,
    enodata,
    enotconn,
    eopnotsupp,
    eproto,
    estale, //
};

use crate::{
    disk::Disk,
    export::{
        port::Port,
        subsystem::Subsystem, //
    },
};

/// An object that is a folder.
pub(crate) trait Item {
    /// Its folder is removed.
    fn end(this: &Arc<Self>);

    /// Writes an attribute's value. Numbers are those of `configfs.c`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such attribute. `EMSGSIZE`: no room.
    fn show(&self, attr: u32, out: &mut Text<'_>) -> Result;

    /// Takes an attribute's value.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not such a value. `EBUSY`: not while it is enabled. Else what it does says.
    fn store(this: &Arc<Self>, attr: u32, text: &str) -> Result;
}

/// A value that is being written.
pub(crate) struct Text<'a> {
    page: &'a mut [u8],
    len: usize,
    end: End,
}

/// What becomes of what there is no room for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// A line says that there are more.
    More,
    /// It is left out.
    Cut,
    /// There is no page: bytes are only counted.
    Count,
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        if self.end == End::Count {
            self.len = end;
            return Ok(());
        }
        let place = self.page.get_mut(self.len..end).ok_or(fmt::Error)?;
        for (to, from) in place.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        self.len = end;
        Ok(())
    }
}

/// The line that says that there are more.
const MORE: &str = "...\n";

impl Text<'_> {
    /// A line for each of a list, by `line`; as many as there is room for.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: there is not even room to say that there are more.
    pub(crate) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        line: impl Fn(&mut Self, T) -> Result,
    ) -> Result {
        let room = match self.end {
            End::More => self.page.len().saturating_sub(MORE.len()),
            End::Cut => self.page.len(),
            End::Count => usize::MAX,
        };
        for item in items {
            let before = self.len;
            if line(self, item).is_err() || self.len > room {
                self.len = before;
                return match self.end {
                    End::More => Ok(self.write_str(MORE)?),
                    _ => Ok(()),
                };
            }
        }
        Ok(())
    }
}

/// A name from an attribute.
pub(crate) fn name(text: &str) -> Result<Name> {
    Name::new(text.as_bytes()).map_err(|_| EINVAL)
}

/// An auth key from hexadecimal digits; none of them: none.
pub(crate) fn key(text: &str) -> Result<Option<AuthKey>> {
    match text {
        "" => Ok(None),
        digits => AuthKey::from_hex(digits.as_bytes()).map(Some),
    }
}

/// 0 or 1.
pub(crate) fn flag(text: &str) -> Result<bool> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(EINVAL),
    }
}

/// A number.
pub(crate) fn number<T: core::str::FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| EINVAL)
}

/// Bytes, with K, M, G or T for powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (text.get(..text.len() - 1), 10),
        Some(b'M' | b'm') => (text.get(..text.len() - 1), 20),
        Some(b'G' | b'g') => (text.get(..text.len() - 1), 30),
        Some(b'T' | b't') => (text.get(..text.len() - 1), 40),
        _ => (Some(text), 0),
    };
    let count: u64 = number(digits.ok_or(EINVAL)?)?;
    count.checked_mul(1 << shift).ok_or(EINVAL)
}

/// `EREMOTEIO`: see `kfblk_rs_send()`.
pub(crate) fn eremoteio() -> Error {
    // CAST: An errno is a small number.
    Error::from_errno(-(bindings::EREMOTEIO as i32))
}

/// What is wanted of a device, and of which provider, if one is said.
pub(crate) fn hints(provider: Option<&Name>) -> InfoEntry {
    let mut hints = InfoEntry {
        caps: KFI_MSG | KFI_RMA | KFI_DYNAMIC_KEYS,
        mode: !0,
        mr_mode: !0,
        ep_type: KFI_EP_MSG,
        ..InfoEntry::default()
    };
    if let Some(provider) = provider {
        set_name(&mut hints.prov_name, provider.as_str());
    }
    hints
}

/// Takes an object out of a list. The caller drops it outside the list's lock.
pub(crate) fn take_ptr<T>(list: &mut KVec<Arc<T>>, object: &T) -> Option<Arc<T>> {
    let at = list
        .iter()
        .position(|of| core::ptr::eq::<T>(&**of, object))?;
    list.remove(at).ok()
}

/// `enum kfblk_kind`; what is neither is a disk.
const SUBSYSTEM: c_uint = 0;
const PORT: c_uint = 1;

/// Runs something with the object, which the folder keeps.
///
/// # Safety
///
/// `object` is a `T` that [`kfblk_rs_make`] gave, and not put yet.
unsafe fn with<T, R>(object: *mut c_void, run: impl FnOnce(&Arc<T>) -> R) -> R {
    // SAFETY: The caller's promise. The reference stays the folder's.
    let object = ManuallyDrop::new(unsafe { Arc::from_raw(object.cast::<T>().cast_const()) });
    run(&object)
}

fn into<T>(object: Arc<T>) -> *mut c_void {
    object.into_raw().cast_mut().cast()
}

/// A folder is made.
///
/// # Safety
///
/// `name` is a C string, and `err` can be written to.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_make(
    kind: c_uint,
    name: *const c_char,
    err: *mut c_int,
) -> *mut c_void {
    // SAFETY: The caller's promise.
    let name = unsafe { CStr::from_char_ptr(name) };
    let made = Name::new(name.to_bytes())
        .map_err(|_| EINVAL)
        .and_then(|name| match kind {
            SUBSYSTEM => Subsystem::new(name).map(into),
            PORT => Port::new().map(into),
            _ => Disk::new(name).map(into),
        });
    match made {
        Ok(object) => object,
        Err(e) => {
            // SAFETY: The caller's promise.
            unsafe { *err = e.to_errno() };
            core::ptr::null_mut()
        }
    }
}

/// A folder is removed.
///
/// # Safety
///
/// `object` is what was made for it.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_end(kind: c_uint, object: *mut c_void) {
    // SAFETY: The caller's promise.
    unsafe {
        match kind {
            SUBSYSTEM => with(object, Subsystem::end),
            PORT => with(object, Port::end),
            _ => with(object, Disk::end),
        }
    }
}

/// The last user of a folder is gone.
///
/// # Safety
///
/// `object` is what was made for it, and is not used any more.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_put(kind: c_uint, object: *mut c_void) {
    // SAFETY: The caller's promise: it is the folder's reference.
    unsafe {
        match kind {
            SUBSYSTEM => drop(Arc::<Subsystem>::from_raw(object.cast_const().cast())),
            PORT => drop(Arc::<Port>::from_raw(object.cast_const().cast())),
            _ => drop(Arc::<Disk>::from_raw(object.cast_const().cast())),
        }
    }
}

/// An attribute is read.
///
/// # Safety
///
/// `object` is what was made for the folder; `page` is one of them.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_show(
    kind: c_uint,
    object: *mut c_void,
    attr: u32,
    page: *mut u8,
) -> isize {
    // SAFETY: The caller's promise: a page, that is ours until we return.
    let page = unsafe { core::slice::from_raw_parts_mut(page, PAGE_SIZE) };
    let mut text = Text {
        page,
        len: 0,
        end: End::More,
    };
    // SAFETY: The caller's promise.
    let shown = unsafe {
        match kind {
            SUBSYSTEM => with(object, |of: &Arc<Subsystem>| of.show(attr, &mut text)),
            PORT => with(object, |of: &Arc<Port>| of.show(attr, &mut text)),
            _ => with(object, |of: &Arc<Disk>| of.show(attr, &mut text)),
        }
    };
    match shown {
        // CAST: At most a page.
        Ok(()) => text.len as isize,
        // CAST: An errno is small.
        Err(e) => e.to_errno() as isize,
    }
}

/// A list of a subsystem is read, all of it: first, with no buffer, how many bytes that are.
///
/// # Safety
///
/// `object` is what was made for the folder; `buf` is null, or has `len` bytes.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_show_all(
    object: *mut c_void,
    attr: u32,
    buf: *mut u8,
    len: usize,
) -> isize {
    let (page, end): (&mut [u8], _) = match buf.is_null() {
        true => (&mut [], End::Count),
        // SAFETY: The caller's promise: so many bytes, that are ours until we return.
        false => unsafe {
            core::ptr::write_bytes(buf, b'\n', len);
            (core::slice::from_raw_parts_mut(buf, len), End::Cut)
        },
    };
    let mut text = Text { page, len: 0, end };
    // SAFETY: The caller's promise.
    let shown = unsafe { with(object, |of: &Arc<Subsystem>| of.show(attr, &mut text)) };
    match (shown, end) {
        // CAST: An errno is small.
        (Err(e), _) => e.to_errno() as isize,
        // CAST: Memory has not as many bytes.
        (Ok(()), End::Count) => text.len as isize,
        // What it has become shorter by is empty lines: configfs gives out all of its buffer.
        (Ok(()), _) => len as isize,
    }
}

/// An attribute is written.
///
/// # Safety
///
/// `object` is what was made for the folder; `page` has `len` bytes.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_store(
    kind: c_uint,
    object: *mut c_void,
    attr: u32,
    page: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: The caller's promise.
    let bytes = unsafe { core::slice::from_raw_parts(page, len) };
    let Ok(text) = core::str::from_utf8(bytes) else {
        return EINVAL.to_errno();
    };
    let text = text.trim();
    // SAFETY: The caller's promise.
    let stored = unsafe {
        match kind {
            SUBSYSTEM => with(object, |of| Subsystem::store(of, attr, text)),
            PORT => with(object, |of| Port::store(of, attr, text)),
            _ => with(object, |of| Disk::store(of, attr, text)),
        }
    };
    stored.map_or_else(|e| e.to_errno(), |()| 0)
}

/// A subsystem is linked to a port.
///
/// # Safety
///
/// Both are what was made for their folders.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_link(port: *mut c_void, subsystem: *mut c_void) -> c_int {
    // SAFETY: The caller's promise.
    let linked = unsafe {
        with(port, |port: &Arc<Port>| {
            with(subsystem, |of: &Arc<Subsystem>| Port::link(port, of))
        })
    };
    linked.map_or_else(|e| e.to_errno(), |()| 0)
}

/// It is not any more.
///
/// # Safety
///
/// Both are what was made for their folders.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_unlink(port: *mut c_void, subsystem: *mut c_void) {
    // SAFETY: The caller's promise.
    unsafe {
        with(port, |port: &Arc<Port>| {
            with(subsystem, |of: &Arc<Subsystem>| Port::unlink(port, of))
        })
    }
}
