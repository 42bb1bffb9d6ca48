// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sub-regions: regions within regions, as in `fi_mr(3)` of libfabric 2 (`base_mr`, `sub_mr_cnt`).
//!
//! A sub-region is a key: peers access a part of a region through it, with access of its own. A
//! sub-region pins no memory; closing it leaves the base's pins unchanged. A sub-region of a
//! sub-region is another key over the same base. It never allows more than its parent.
#![forbid(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Key, Region};
use crate::auth::key::AuthKey;
use crate::errno::Errno;
use crate::error::{Error, Result, Returned};
use crate::flags::Access;
use crate::object::ObjectId;
use crate::remote::RemoteMem;

/// Reserved slots that are not in use by a sub-region.
pub(crate) type Spare = Arc<Mutex<Vec<Key>>>;

struct Inner {
    /// `None` once the slot was returned to `spare`.
    key: Option<Key>,
    spare: Spare,
    /// Offset of the first byte in the base.
    first: u64,
    len: u64,
    access: Access,
    remote: RemoteMem,
    /// Kept alive, so that the parent's key lasts as long as this one.
    _parent: Option<Arc<Inner>>,
}

/// A sub-region: a part of a region that peers access through a key.
///
/// Dropping the sub-region revokes its key. While it has sub-regions of its own, the key stays
/// until the last of those is dropped, too; [`SubRegion::close`] reports that case.
pub struct SubRegion {
    inner: Arc<Inner>,
    id: ObjectId,
}

/// Makes the error for a range that is not within `len` bytes.
fn outside(range: &Range<u64>, len: u64) -> Error {
    Error::Argument {
        what: "range of a sub-region",
        why: format!("{range:?} is not within {len} bytes"),
    }
}

/// Assigns a slot of the base to `range`: a reserved slot, or else a new one.
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

/// Assigns `key` to `range`. When the sub-region ends, its slot is returned to `spare`.
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
    /// Returns the slot, which has no key, to the spare slots.
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
        // If the key cannot be revoked, the slot is closed, which revokes the key.
        if self.key.as_ref().is_some_and(|key| key.revoke().is_ok()) {
            self.keep_slot();
        }
    }
}

impl Region {
    /// Makes a sub-region: peers get `access` to a part of the region. The key is valid when this
    /// returns.
    ///
    /// Slots reserved at registration ([`RegionAttr::sub_regions`]) are used first, and used again
    /// after a sub-region ends. When none is left, a new slot is allocated.
    ///
    /// [`RegionAttr::sub_regions`]: crate::RegionAttr::sub_regions
    ///
    /// # Errors
    ///
    /// - `EACCES` for access that the region does not allow.
    /// - `EINVAL` if `range` is empty, `access` has no remote access, or the region has no dynamic
    ///   keys.
    /// - `ENOSPC` if the provider has no free slot.
    /// - [`Error::Argument`] if `range` is not within the region.
    pub fn sub_region(&self, range: Range<u64>, access: Access) -> Result<SubRegion> {
        let len = self.len() as u64;
        if range.start > range.end || range.end > len {
            return Err(outside(&range, len));
        }
        make(self, range, access, None)
    }

    /// Like [`Region::sub_region`], under an auth key of its own. The slot is always a new one.
    ///
    /// # Errors
    ///
    /// The errors of [`Region::sub_region`]. If the auth key may not be used: see `kfi_auth(7)`.
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
        // The slot belongs to another auth key than the spare ones: it is closed when the
        // sub-region ends.
        assigned(slot, Spare::default(), range, access, None)
    }
}

impl SubRegion {
    /// The name of the sub-region's key slot in error messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Address and key for peers.
    pub fn remote(&self) -> RemoteMem {
        self.inner.remote
    }

    /// Access that peers have.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> u64 {
        self.inner.len
    }

    /// Offset of the first byte in the base.
    pub fn offset(&self) -> u64 {
        self.inner.first
    }

    /// Makes a sub-region of a part of this sub-region, over the same `base`, with a key of its
    /// own.
    ///
    /// # Errors
    ///
    /// - `EACCES` for access that this sub-region does not allow.
    /// - [`Error::Argument`] if `base` is not this sub-region's base.
    ///
    /// Also those of [`Region::sub_region`].
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

    /// Revokes the key and returns the slot. After the return no byte is read or written through
    /// the key. On failure the sub-region is returned in [`Returned`].
    ///
    /// # Errors
    ///
    /// - `EBUSY` while the sub-region has sub-regions of its own.
    ///
    /// Also those of [`Key::revoke`].
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
            // The key was revoked before, with all keys of the base.
            Err(e) if e.errno() == Some(Errno::EINVAL) => {
                inner.keep_slot();
                Ok(())
            }
            // The key and the slot ended with the endpoint that they were bound to.
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
