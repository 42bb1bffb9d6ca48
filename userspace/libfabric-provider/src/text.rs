// SPDX-License-Identifier: MIT OR Apache-2.0
//! Texts of error codes, as `fi_cq_strerror` and `fi_eq_strerror` return them.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, CStr, CString};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use kfabric::Errno;

/// The code of a failed operation for [`completion`]: that of the kernel's provider. If there is
/// none, the errno, which is negative.
pub(crate) fn completion_code(err: c_int, code: u32) -> c_int {
    match c_int::try_from(code) {
        Ok(0) | Err(_) => -err,
        Ok(code) => code,
    }
}

/// Returns the text of a code of [`completion_code`]; `prov` is the kernel's provider.
pub(crate) fn completion(prov: &str, code: c_int) -> &'static CStr {
    permanent(match u32::try_from(code) {
        Ok(code) => kfabric::completion_text(prov, code),
        Err(_) => Errno(code.saturating_abs()).text(),
    })
}

/// The code of a failed connection, which says for [`connection`] of which kind it is: a reason of
/// the peer's connection manager, or an errno, which is negative.
pub(crate) fn connection_code(prov: &str, err: c_int, code: c_int) -> c_int {
    match (prov, err, code) {
        (_, err, 0) => -err,
        ("kverbs", libc::ECONNREFUSED, reason) => reason,
        (_, _, errno) => -errno.saturating_abs(),
    }
}

/// Returns the text of a code of [`connection_code`].
pub(crate) fn connection(code: c_int) -> &'static CStr {
    permanent(match u32::try_from(code) {
        Ok(reason) => kfabric::connection_text("kverbs", Errno(libc::ECONNREFUSED), reason),
        Err(_) => Errno(code.saturating_abs()).text(),
    })
}

/// Texts with and without their NUL.
pub(crate) type Texts = HashMap<&'static str, &'static CStr>;

static TEXTS: LazyLock<Mutex<Texts>> = LazyLock::new(Mutex::default);

/// Locks the texts, which no other thread changes then: for a fork.
pub(crate) fn lock() -> MutexGuard<'static, Texts> {
    TEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a text with its NUL, which lives for ever. There are as many texts as codes.
fn permanent(text: &'static str) -> &'static CStr {
    let mut texts = lock();
    let known: &mut &'static CStr = texts.entry(text).or_insert_with(|| {
        let text = CString::new(text).unwrap_or_default();
        Box::leak(text.into_boxed_c_str())
    });
    known
}

/// Copies as much of a text as fits, with a NUL. Returns the whole text.
///
/// # Safety
///
/// `buf` is null or has `len` bytes.
pub(crate) unsafe fn give(text: &'static CStr, buf: *mut c_char, len: usize) -> *const c_char {
    if !buf.is_null() && len != 0 {
        let n = (len - 1).min(text.to_bytes().len());
        // SAFETY: `n` bytes of the text and the NUL fit, as the caller vouches.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buf, n);
            *buf.add(n) = 0;
        }
    }
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_code_keeps_its_kind() {
        let text = |prov, err, code| {
            let code = connection_code(prov, err, code);
            connection(code).to_str().unwrap_or_default()
        };
        assert_eq!(
            text("kverbs", libc::ECONNREFUSED, 28),
            "rejected by the peer's application"
        );
        assert_eq!(text("kverbs", libc::ETIMEDOUT, 0), "timed out");
        assert_eq!(text("kverbs", libc::ETIMEDOUT, -110), "timed out");
        assert_eq!(text("kshm", libc::ECONNREFUSED, 0), "connection refused");
    }

    #[test]
    fn text_is_cut_to_the_buffer() {
        let text = completion("kverbs", 5);
        let mut buf = [1 as c_char; 6];
        // SAFETY: the buffer has six bytes, of which five are given.
        let whole = unsafe { give(text, buf.as_mut_ptr(), 5) };
        assert_eq!(whole, text.as_ptr());
        assert_eq!(buf.map(|c| c as u8), *b"work\0\x01");
        let cancelled = completion("kshm", completion_code(libc::ECANCELED, 0));
        assert!(
            cancelled.to_string_lossy().contains("cancel"),
            "{cancelled:?}"
        );
    }
}
