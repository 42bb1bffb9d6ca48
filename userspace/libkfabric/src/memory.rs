// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory to register.
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::{PoisonError, RwLock};

use crate::error::{Error, Result};
use crate::sys::Mapping;

/// Memory that may be registered: mapped here, changed by devices and peers at any time.
///
/// It is therefore never lent as a slice; [`Memory::read_at`] and [`Memory::write_at`] copy. What a
/// copy sees of a transfer that is still under way is some mixture of old and new bytes. One thread
/// at a time copies in; threads that fill parts of their own do better with a memory each.
pub struct Memory {
    map: Mapping,
    /// Keeps this process's threads from copying in and out at once, which the language does not
    /// allow. Devices and peers do not ask.
    copying: RwLock<()>,
}

impl Memory {
    /// Zeroed memory of `len` bytes, page aligned, with huge pages where the system has them.
    ///
    /// # Errors
    ///
    /// `EINVAL` for length zero, `ENOMEM`.
    pub fn anonymous(len: usize) -> Result<Self> {
        let map = Mapping::anonymous(len).map_err(|e| failed("map memory", e))?;
        map.advise_huge();
        Ok(Self::from_mapping(map))
    }

    /// The first `len` bytes of a file: the very pages that the system caches it in, read-only.
    /// What others write to the file meanwhile shows.
    ///
    /// # Errors
    ///
    /// What `mmap(2)` says; `EINVAL` for length zero.
    pub fn from_file(file: &File, len: usize) -> Result<Self> {
        Ok(Self::from_mapping(
            Mapping::file(file.as_fd(), len).map_err(|e| failed("map file", e))?,
        ))
    }

    /// As [`Memory::from_file`], writable, and private: what is written stays in this process.
    ///
    /// # Errors
    ///
    /// As for [`Memory::from_file`].
    pub fn from_file_private(file: &File, len: usize) -> Result<Self> {
        Ok(Self::from_mapping(
            Mapping::private_file(file.as_fd(), len).map_err(|e| failed("map file", e))?,
        ))
    }

    /// As [`Memory::from_file`], writable, and shared with everybody who maps it (for example a
    /// memfd).
    ///
    /// Not every file system's pages may be pinned for long and written: registering can answer
    /// `EFAULT` or `EOPNOTSUPP`.
    ///
    /// # Errors
    ///
    /// As for [`Memory::from_file`].
    pub fn from_file_shared(file: &File, len: usize) -> Result<Self> {
        Ok(Self::from_mapping(
            Mapping::shared(file.as_fd(), len).map_err(|e| failed("map file", e))?,
        ))
    }

    pub(crate) fn from_mapping(map: Mapping) -> Self {
        let copying = RwLock::new(());
        Self { map, copying }
    }

    /// For who copies to or from a ring: with `write` as [`Memory::write_at`] does, else as
    /// [`Memory::read_at`].
    pub(crate) fn with_map<R>(&self, write: bool, copy: impl FnOnce(&Mapping) -> R) -> R {
        if write {
            let _alone = self.copying.write().unwrap_or_else(PoisonError::into_inner);
            return copy(&self.map);
        }
        let _others = self.copying.read().unwrap_or_else(PoisonError::into_inner);
        copy(&self.map)
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether it may be written.
    pub fn writable(&self) -> bool {
        self.map.writable()
    }

    /// Its address in this process.
    pub fn address(&self) -> u64 {
        self.map.address()
    }

    /// Copies `to.len()` bytes out, from offset `at`.
    ///
    /// # Panics
    ///
    /// When the range is not within the memory.
    pub fn read_at(&self, at: usize, to: &mut [u8]) {
        let len = to.len();
        let _others = self.copying.read().unwrap_or_else(PoisonError::into_inner);
        assert!(
            self.map.read(at, to).is_some(),
            "{len} bytes at {at} of {} bytes",
            self.len()
        );
    }

    /// Copies bytes in, to offset `at`.
    ///
    /// # Panics
    ///
    /// When the range is not within the memory, or it is read-only.
    pub fn write_at(&self, at: usize, from: &[u8]) {
        let _alone = self.copying.write().unwrap_or_else(PoisonError::into_inner);
        assert!(
            self.map.write(at, from).is_some(),
            "{} bytes at {at} of {} bytes",
            from.len(),
            self.len()
        );
    }

    /// Sets `len` bytes at offset `at`.
    ///
    /// # Panics
    ///
    /// As for [`Memory::write_at`].
    pub fn fill(&self, at: usize, len: usize, byte: u8) {
        let _alone = self.copying.write().unwrap_or_else(PoisonError::into_inner);
        assert!(
            self.map.fill(at, len, byte).is_some(),
            "{len} bytes at {at} of {} bytes",
            self.len()
        );
    }

    /// Copies `len` bytes at offset `at` into a new vector.
    ///
    /// # Panics
    ///
    /// As for [`Memory::read_at`].
    pub fn to_vec(&self, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.read_at(at, &mut out);
        out
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({:#x}, {} bytes)", self.address(), self.len())
    }
}

fn failed(what: &'static str, errno: crate::errno::Errno) -> Error {
    Error::Argument {
        what,
        why: errno.to_string(),
    }
}
