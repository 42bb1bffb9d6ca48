// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses and keys of a peer's memory.
#![forbid(unsafe_code)]

use crate::error::{Error, Result};

/// Memory of a peer: an address and a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteMem {
    /// Address of the first byte.
    pub addr: u64,
    /// The key value.
    pub key: u64,
}

impl RemoteMem {
    /// Length of [`RemoteMem::to_raw`] in bytes.
    pub const RAW_LEN: usize = 16;

    /// Encodes address and key as bytes to send to a peer (`fi_mr_raw_attr(3)`), most significant
    /// byte first. A peer of any byte order decodes them with [`RemoteMem::from_raw`].
    pub fn to_raw(self) -> [u8; Self::RAW_LEN] {
        (u128::from(self.addr) << 64 | u128::from(self.key)).to_be_bytes()
    }

    /// Decodes the bytes of [`RemoteMem::to_raw`] (`fi_mr_map_raw(3)`). No unmapping is needed:
    /// keys of kfabric have at most 64 bits.
    ///
    /// # Errors
    ///
    /// - [`Error::Argument`] if `raw` has another length.
    pub fn from_raw(raw: &[u8]) -> Result<Self> {
        let raw: [u8; Self::RAW_LEN] = raw.try_into().map_err(|_| Error::Argument {
            what: "raw key",
            why: format!("{} bytes, not {}", raw.len(), Self::RAW_LEN),
        })?;
        let both = u128::from_be_bytes(raw);
        Ok(Self {
            // CAST: The upper half, then the lower half.
            addr: (both >> 64) as u64,
            key: both as u64,
        })
    }

    /// The memory that begins `bytes` further on, under the same key.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Self {
        Self {
            addr: self.addr.wrapping_add(bytes),
            ..self
        }
    }
}
