// SPDX-License-Identifier: MIT OR Apache-2.0
//! Auth keys, and their place in the structures of calls.
#![forbid(unsafe_code)]

use kfabric_uapi as abi;
use zeroize::Zeroize;

use crate::error::{Error, Result};
use crate::sys::Buf;

/// An auth key (`fi_domain(3)`, `fi_endpoint(3)`): opaque bytes that separate jobs. Memory exported
/// under an auth key is reachable only through endpoints with the same auth key. Two endpoints
/// connect only if both have the same auth key. See `kfi_auth(7)`.
///
/// Dropping an `AuthKey` overwrites its bytes. Moving one leaves a copy of the bytes behind, so
/// keep it in one place and pass references.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthKey {
    bytes: [u8; abi::KFI_AUTH_KEY_MAX],
    len: usize,
}

impl AuthKey {
    /// Copies `bytes`.
    ///
    /// # Errors
    ///
    /// - [`Error::Argument`] if `bytes` is empty or longer than `KFI_AUTH_KEY_MAX`.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let mut key = Self {
            bytes: [0; abi::KFI_AUTH_KEY_MAX],
            len: bytes.len(),
        };
        match key.bytes.get_mut(..bytes.len()) {
            Some(place) if !bytes.is_empty() => place.copy_from_slice(bytes),
            _ => {
                return Err(Error::Argument {
                    what: "auth key",
                    why: format!("{} bytes", bytes.len()),
                })
            }
        }
        Ok(key)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for AuthKey {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl std::fmt::Debug for AuthKey {
    /// Does not show the bytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthKey(…)")
    }
}

/// Buffer and size of an optional auth key, for a call whose pointer field is at `at`.
pub(crate) fn given(at: usize, key: Option<&AuthKey>) -> (Vec<Buf<'_>>, u32) {
    match key {
        // CAST: At most `KFI_AUTH_KEY_MAX`.
        Some(key) => (vec![Buf::input(at, key.bytes())], key.len as u32),
        None => (Vec::new(), 0),
    }
}
