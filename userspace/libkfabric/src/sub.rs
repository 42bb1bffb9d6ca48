// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regions within regions, as `fi_mr(3)` of libfabric 2 has them (`base_mr`, `sub_mr_cnt`).
//!
//! A sub-region is a key: a part of a region that peers may reach, with rights of its own. It costs
//! no pin, and goes without touching that of the base. Sub-regions of sub-regions are keys beside
//! each other over the same base; what their parent does not give they cannot.
#![forbid(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::auth::AuthKey;
use crate::errno::Errno;
use crate::error::{Error, ObjectId, Result, Returned};
use crate::flags::Access;
use crate::op::RemoteMem;
use crate::region::{Key, Region};

/// Reserved slots that no sub-region uses.
pub(crate) type Spare = Arc<Mutex<Vec<Key>>>;

struct Inner {
    /// `None` once it is given back.
    key: Option<Key>,
    spare: Spare,
    /// First byte, counted from the base's start.
    first: u64,
    len: u64,
    access: Access,
    remote: RemoteMem,
    /// Stays as long.
    _parent: Option<Arc<Inner>>,
}

/// A part of a region that peers may reach.
///
/// Dropped, its key ends. One that has sub-regions of its own and is dropped ends with the last of
/// them. [`SubRegion::close`] tells.
pub struct SubRegion {
    inner: Arc<Inner>,
    id: ObjectId,
}

fn outside(range: &Range<u64>, len: u64) -> Error {
    Error::Argument {
        what: "range of a sub-region",
        why: format!("{range:?} is not within {len} bytes"),
    }
}

/// Makes a key for `range` of a base.
fn make(
    base: &Region,
    range: Range<u64>,
    access: Access,
    parent: Option<Arc<Inner>>,
) -> Result<SubRegion> {
    let spare = base.spare();
    let reserved = spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let key = match reserved {
        Some(key) => key,
        None => base.alloc_keys(1)?.remove(0),
    };
    assigned(key, spare.clone(), range, access, parent)
}

/// Gives `key` to `range`; afterwards it goes to `spare`.
fn assigned(
    key: Key,
    spare: Spare,
    range: Range<u64>,
    access: Access,
    parent: Option<Arc<Inner>>,
) -> Result<SubRegion> {
    let id = key.id();
    let len = range.end.saturating_sub(range.start);
    let made = key.assign(range.start, len, access);
    let mut inner = Inner {
        key: Some(key),
        spare,
        first: range.start,
        len,
        access,
        remote: RemoteMem::default(),
        _parent: parent,
    };
    match made {
        Ok(remote) => inner.remote = remote,
        Err(e) => {
            if e.errno() != Some(Errno::ENOENT) {
                inner.keep_slot();
            }
            return Err(e);
        }
    }
    Ok(SubRegion {
        inner: Arc::new(inner),
        id,
    })
}

impl Inner {
    /// Has the slot, which has no key, serve another.
    fn keep_slot(&mut self) {
        if let Some(key) = self.key.take() {
            self.spare
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(key);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A slot whose key cannot be revoked is closed, which ends the key.
        if self.key.as_ref().is_some_and(|key| key.revoke().is_ok()) {
            self.keep_slot();
        }
    }
}

impl Region {
    /// Makes a part of it reachable for peers with these rights. The key works when this returns.
    ///
    /// Slots that were reserved at registration ([`RegionAttr::sub_regions`]) are used first, and
    /// again when a sub-region ends; then it reserves more.
    ///
    /// [`RegionAttr::sub_regions`]: crate::RegionAttr::sub_regions
    ///
    /// # Errors
    ///
    /// `EACCES` beyond the region's access, `EINVAL` for an empty range, no remote right, or a
    /// region without dynamic keys, `ENOSPC`; [`Error::Argument`] for a range that is not within it.
    pub fn sub_region(&self, range: Range<u64>, access: Access) -> Result<SubRegion> {
        let len = self.len() as u64;
        if range.start > range.end || range.end > len {
            return Err(outside(&range, len));
        }
        make(self, range, access, None)
    }

    /// As [`Region::sub_region`], under an auth key of its own. Its slot is none of those that were
    /// reserved.
    ///
    /// # Errors
    ///
    /// As there, and where an auth key may not be used what `kfi_auth(7)` says.
    pub fn sub_region_under(
        &self,
        key: &AuthKey,
        range: Range<u64>,
        access: Access,
    ) -> Result<SubRegion> {
        let len = self.len() as u64;
        if range.start > range.end || range.end > len {
            return Err(outside(&range, len));
        }
        let slot = self.alloc_keys_under(key, 1)?.remove(0);
        // Not to be mixed with the others; it closes when the sub-region ends.
        assigned(slot, Spare::default(), range, access, None)
    }
}

impl SubRegion {
    /// The name of its key slot in messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Where peers find it.
    pub fn remote(&self) -> RemoteMem {
        self.inner.remote
    }

    /// What peers may do with it.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> u64 {
        self.inner.len
    }

    /// Where it begins, counted from the base's start.
    pub fn offset(&self) -> u64 {
        self.inner.first
    }

    /// Makes a part of this one a sub-region by itself, over the same `base`, with a key of its own.
    ///
    /// # Errors
    ///
    /// `EACCES` for a right that this one does not give; else as for [`Region::sub_region`].
    /// [`Error::Argument`] also for another base.
    pub fn sub_region(&self, base: &Region, range: Range<u64>, access: Access) -> Result<Self> {
        let inner = &self.inner;
        if !Arc::ptr_eq(base.spare(), &inner.spare) {
            return Err(Error::Argument {
                what: "base of a sub-region",
                why: "it is another one's".to_owned(),
            });
        }
        if range.start > range.end || range.end > inner.len {
            return Err(outside(&range, inner.len));
        }
        if !inner.access.contains(access) {
            return Err(Error::Call {
                call: "KEY_ASSIGN",
                object: self.id,
                errno: Errno(libc::EACCES),
            });
        }
        let range = inner.first + range.start..inner.first + range.end;
        make(base, range, access, Some(inner.clone()))
    }

    /// Ends it. When this returns no byte is read or written through its key any more. Given back
    /// while it has sub-regions of its own.
    ///
    /// # Errors
    ///
    /// `EBUSY`; what [`Key::revoke`] says.
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        let id = self.id;
        let busy = |inner| Returned {
            object: Self { inner, id },
            error: Error::Call {
                call: "CLOSE",
                object: id,
                errno: Errno::EBUSY,
            },
        };
        let mut inner = Arc::try_unwrap(self.inner).map_err(busy)?;
        match inner.key.as_ref().map_or(Ok(()), Key::revoke) {
            Ok(()) => {
                inner.keep_slot();
                Ok(())
            }
            // It ended with all keys of the base.
            Err(e) if e.errno() == Some(Errno::EINVAL) => {
                inner.keep_slot();
                Ok(())
            }
            // It ended with the endpoint that it was of, and its slot did.
            Err(e) if e.errno() == Some(Errno::ENOENT) => Ok(()),
            Err(error) => Err(Returned {
                object: Self {
                    inner: Arc::new(inner),
                    id,
                },
                error,
            }),
        }
    }
}

impl std::fmt::Debug for SubRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { first, len, .. } = &*self.inner;
        write!(f, "{} for {len} bytes at {first}", self.id)
    }
}
