// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory to register.
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::{Error, Result};
use crate::sys::Mapping;

/// Memory that may be registered: a mapping whose bytes devices and peers change at any time.
///
/// For this reason the memory is never returned as a slice; [`Memory::read_at`] and
/// [`Memory::write_at`] copy. A copy made during a transfer holds a mixture of old and new bytes.
/// Only one thread at a time copies in. Threads that fill separate parts should use one `Memory`
/// each.
pub struct Memory {
    map: Mapping,
    /// Held for reading while a thread copies out, and for writing while a thread copies in: Rust
    /// does not allow both at once. Devices and peers do not take this lock. `None` for memory whose
    /// owner has promised to exclude other copies ([`Domain::register_raw`](crate::Domain)).
    copying: Option<RwLock<()>>,
}

impl Memory {
    /// Allocates `len` zeroed bytes, page aligned, with huge pages where the system has them.
    ///
    /// # Errors
    ///
    /// - [`Error::Argument`] if `len` is zero or memory is missing.
    pub fn anonymous(len: usize) -> Result<Self> {
        let map = Mapping::anonymous(len).map_err(|e| failed("map memory", e))?;
        map.advise_huge();
        Ok(Self::from_mapping(map))
    }

    /// Maps the first `len` bytes of a file read-only: the pages of the page cache. Later writes to
    /// the file are visible.
    ///
    /// # Errors
    ///
    /// - [`Error::Argument`] if `len` is zero or `mmap(2)` fails.
    pub fn from_file(file: &File, len: usize) -> Result<Self> {
        Ok(Self::from_mapping(
            Mapping::file(file.as_fd(), len).map_err(|e| failed("map file", e))?,
        ))
    }

    /// Like [`Memory::from_file`], but writable and private: writes stay in this process.
    ///
    /// # Errors
    ///
    /// The errors of [`Memory::from_file`].
    pub fn from_file_private(file: &File, len: usize) -> Result<Self> {
        Ok(Self::from_mapping(
            Mapping::private_file(file.as_fd(), len).map_err(|e| failed("map file", e))?,
        ))
    }

    /// Like [`Memory::from_file`], but writable and shared with every process that maps the file
    /// (for example a memfd).
    ///
    /// Some file systems do not allow long-term pins of writable pages: registering then fails with
    /// `EFAULT` or `EOPNOTSUPP`.
    ///
    /// # Errors
    ///
    /// The errors of [`Memory::from_file`].
    pub fn from_file_shared(file: &File, len: usize) -> Result<Self> {
        Ok(Self::from_mapping(
            Mapping::shared(file.as_fd(), len).map_err(|e| failed("map file", e))?,
        ))
    }

    pub(crate) fn from_mapping(map: Mapping) -> Self {
        let copying = Some(RwLock::new(()));
        Self { map, copying }
    }

    /// Makes memory that is copied without a lock. The creator of `map` excludes concurrent copies
    /// to the same bytes.
    pub(crate) fn without_lock(map: Mapping) -> Self {
        Self { map, copying: None }
    }

    /// Excludes threads that copy in.
    #[inline]
    fn copying_out(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let lock = self.copying.as_ref()?;
        Some(lock.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Excludes all threads that copy.
    #[inline]
    fn copying_in(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let lock = self.copying.as_ref()?;
        Some(lock.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls `copy` with the mapping, under the lock for copying in (`write`) or out. For copies
    /// from and to a ring.
    pub(crate) fn with_map<R>(&self, write: bool, copy: impl FnOnce(&Mapping) -> R) -> R {
        if write {
            let _alone = self.copying_in();
            return copy(&self.map);
        }
        let _others = self.copying_out();
        copy(&self.map)
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the program may write the memory.
    pub fn writable(&self) -> bool {
        self.map.writable()
    }

    /// Address of the memory in this process.
    pub fn address(&self) -> u64 {
        self.map.address()
    }

    /// Copies `to.len()` bytes at offset `at` out of the memory.
    ///
    /// # Panics
    ///
    /// If the range is not within the memory.
    pub fn read_at(&self, at: usize, to: &mut [u8]) {
        let len = to.len();
        let _others = self.copying_out();
        assert!(
            self.map.read(at, to).is_some(),
            "{len} bytes at {at} of {} bytes",
            self.len()
        );
    }

    /// Copies bytes into the memory, at offset `at`.
    ///
    /// # Panics
    ///
    /// If the range is not within the memory, or the memory is read-only.
    pub fn write_at(&self, at: usize, from: &[u8]) {
        let _alone = self.copying_in();
        assert!(
            self.map.write(at, from).is_some(),
            "{} bytes at {at} of {} bytes",
            from.len(),
            self.len()
        );
    }

    /// Sets `len` bytes at offset `at` to `byte`.
    ///
    /// # Panics
    ///
    /// If the range is not within the memory, or the memory is read-only.
    pub fn fill(&self, at: usize, len: usize, byte: u8) {
        let _alone = self.copying_in();
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
    /// If the range is not within the memory.
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
