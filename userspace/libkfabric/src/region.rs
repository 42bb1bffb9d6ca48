// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registered memory. [`key`] has the keys through which peers access it, [`sub`] its sub-regions.
#![forbid(unsafe_code)]

pub(crate) mod inner;
mod key;
mod sub;

use std::mem::offset_of;
use std::ops::Range;
use std::sync::{Arc, PoisonError, Weak};

use kfabric_uapi as abi;
use zerocopy::IntoBytes;

use crate::auth::key::{given, AuthKey};
use crate::domain::inner::DomainInner;
use crate::endpoint::Endpoint;
use crate::errno::Errno;
use crate::error::{Error, Result, Returned};
use crate::flags::{Access, Persistence};
use crate::handle::{Handle, Shared};
use crate::memory::Memory;
use crate::object::{Kind, ObjectId};
use crate::op::Segment;
use crate::remote::RemoteMem;
use crate::revoke::revoke_all;
use crate::sys::{self, Buf};
use inner::RegionInner;
pub use key::{Assigned, Grant, Key};
use sub::Spare;
pub use sub::SubRegion;

/// An endpoint that a region is to be bound to, by its name and device file.
#[derive(Clone)]
struct BoundTo {
    id: ObjectId,
    dev: Weak<Shared>,
}

impl std::fmt::Debug for BoundTo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.id)
    }
}

/// Attributes of a region to register.
#[derive(Clone, Debug)]
pub struct RegionAttr {
    access: Access,
    range: Option<Range<usize>>,
    dynamic_keys: bool,
    persistent: bool,
    endpoint: Option<BoundTo>,
    reserved: usize,
    auth_key: Option<AuthKey>,
}

impl RegionAttr {
    /// Registers all of the memory, for these uses. If they include remote access, the registration
    /// returns a key.
    pub fn new(access: Access) -> Self {
        Self {
            access,
            range: None,
            dynamic_keys: false,
            persistent: false,
            endpoint: None,
            reserved: 0,
            auth_key: None,
        }
    }

    /// The uses that the region will allow.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Registers only this part, in bytes.
    #[must_use]
    pub fn range(mut self, range: Range<usize>) -> Self {
        self.range = Some(range);
        self
    }

    /// Registers without a key: keys are assigned later, by [`Region::alloc_keys`] and
    /// [`Key::assign`].
    #[must_use]
    pub fn dynamic_keys(mut self) -> Self {
        self.dynamic_keys = true;
        self
    }

    /// Requires memory to which writes can be durable ([`Op::durable`](crate::Op::durable)), such
    /// as a mapping of `/dev/daxX.Y`. Registering fails with `EINVAL` if the memory is not known to
    /// be persistent, and with `EOPNOTSUPP` if the domain cannot make writes to it durable.
    #[must_use]
    pub fn persistent(mut self) -> Self {
        self.persistent = true;
        self
    }

    /// Registers without a key, and reserves slots for `count` sub-regions ([`Region::sub_region`])
    /// that exist at the same time: `sub_mr_cnt` of `fi_mr(3)`.
    #[must_use]
    pub fn sub_regions(mut self, count: usize) -> Self {
        self.reserved = count;
        self.dynamic_keys()
    }

    /// Sets the auth key under which the region's keys are valid, except keys with an auth key of
    /// their own. The default is the auth key of the endpoint that the region is bound to, or else
    /// the domain's.
    #[must_use]
    pub fn auth_key(mut self, key: AuthKey) -> Self {
        self.auth_key = Some(key);
        self
    }

    /// Binds the region and all its keys to an endpoint with keys of its own
    /// ([`EndpointAttr::own_keys`](crate::EndpointAttr)). The keys are valid on that endpoint
    /// alone, and are revoked before it is closed.
    #[must_use]
    pub fn endpoint(mut self, endpoint: &Endpoint) -> Self {
        self.endpoint = Some(BoundTo {
            id: endpoint.id(),
            dev: Arc::downgrade(endpoint.dev()),
        });
        self
    }
}

/// A memory region (`fi_mr(3)`): pinned memory of a domain. Offsets count from the region's start.
pub struct Region {
    spare: Spare,
    inner: Arc<RegionInner>,
}

impl Region {
    pub(crate) fn open(
        domain: &Arc<DomainInner>,
        memory: Arc<Memory>,
        attr: &RegionAttr,
    ) -> Result<Self> {
        let range = attr.range.clone().unwrap_or(0..memory.len());
        if range.start > range.end || range.end > memory.len() {
            let why = format!(
                "{range:?} is not within the memory's {} bytes",
                memory.len()
            );
            return Err(Error::Argument {
                what: "range to register",
                why,
            });
        }
        let dev = &domain.handle.dev;
        let mut arg: abi::RegionReg = sys::new();
        for (wanted, flag) in [
            (attr.dynamic_keys, abi::KFI_REGION_DYNAMIC_KEYS),
            (attr.persistent, abi::KFI_REGION_PMEM),
        ] {
            arg.flags |= if wanted { flag } else { 0 };
        }
        arg.domain = domain.handle.raw();
        arg.addr = memory.address() + range.start as u64;
        arg.len = range.len() as u64;
        arg.access = attr.access.bits();
        if let Some(bound) = &attr.endpoint {
            if bound.dev.as_ptr() != Arc::as_ptr(dev) {
                return Err(Error::foreign(bound.id));
            }
            arg.ep = bound.id.handle;
        }
        let at = offset_of!(abi::RegionReg, auth_key);
        let (mut bufs, size) = given(at, attr.auth_key.as_ref());
        arg.auth_key_size = size;
        dev.call(domain.handle.id, &mut arg, &mut bufs)?;
        let key = (arg.key != abi::KFI_KEY_NOTAVAIL).then_some(RemoteMem {
            addr: arg.remote_addr,
            key: arg.key,
        });
        let inner = RegionInner {
            handle: Handle::new(dev, Kind::Region, arg.handle),
            memory,
            first: range.start,
            len: range.len(),
            access: attr.access,
            remote: key,
            pages: arg.pages,
            persistence: crate::flags::persistence(arg.persistence),
            domain: domain.clone(),
        };
        let region = Self {
            spare: Spare::default(),
            inner: Arc::new(inner),
        };
        if attr.reserved != 0 {
            let slots = region.alloc_keys(attr.reserved)?;
            region
                .spare
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(slots);
        }
        Ok(region)
    }

    /// Reserved slots that are not in use by a sub-region.
    pub(crate) fn spare(&self) -> &Spare {
        &self.spare
    }

    /// The region's name in error messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.inner.handle.id
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Uses that the region allows.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// Number of pages charged to `RLIMIT_MEMLOCK`.
    pub fn pages(&self) -> u64 {
        self.inner.pages
    }

    /// Kind of the memory. Memory of several kinds has the weakest one.
    pub fn persistence(&self) -> Persistence {
        self.inner.persistence
    }

    /// The part of the region that operations keep alive.
    #[inline]
    pub(crate) fn inner(&self) -> &Arc<RegionInner> {
        &self.inner
    }

    /// The memory that the region was registered on.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.inner.memory
    }

    /// Address of the region's first byte in this process.
    #[inline]
    pub fn address(&self) -> u64 {
        self.inner.address()
    }

    /// Address and key for peers, if the region was registered with a key.
    pub fn remote(&self) -> Option<RemoteMem> {
        self.inner.remote
    }

    /// A part of the region, for use in an operation. The kernel checks the range when the
    /// operation is posted.
    pub fn segment(&self, range: Range<usize>) -> Segment<'_> {
        Segment::new(&self.inner, range)
    }

    /// The whole region, for use in an operation.
    pub fn all(&self) -> Segment<'_> {
        self.segment(0..self.inner.len)
    }

    /// Returns the offset in the memory of `len` bytes at `at` of the region; panics outside the
    /// region.
    fn within(&self, at: usize, len: usize) -> usize {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.inner.len);
        assert!(
            fits,
            "{len} bytes at {at} of a region of {} bytes",
            self.inner.len
        );
        self.inner.first + at
    }

    /// Copies bytes out of the region.
    ///
    /// # Panics
    ///
    /// If the range is not within the region.
    pub fn read_at(&self, at: usize, to: &mut [u8]) {
        self.inner.memory.read_at(self.within(at, to.len()), to);
    }

    /// Copies `len` bytes out of the region into a new vector.
    ///
    /// # Panics
    ///
    /// If the range is not within the region.
    pub fn to_vec(&self, at: usize, len: usize) -> Vec<u8> {
        self.inner.memory.to_vec(self.within(at, len), len)
    }

    /// Copies bytes into the region.
    ///
    /// # Panics
    ///
    /// If the range is not within the region, or its memory is read-only.
    pub fn write_at(&self, at: usize, from: &[u8]) {
        self.inner
            .memory
            .write_at(self.within(at, from.len()), from);
    }

    /// Sets `len` bytes to `byte`.
    ///
    /// # Panics
    ///
    /// If the range is not within the region, or its memory is read-only.
    pub fn fill(&self, at: usize, len: usize, byte: u8) {
        self.inner.memory.fill(self.within(at, len), len, byte);
    }

    /// Reserves `count` key slots, with everything that later assignments need. Reserves all or
    /// none.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if the provider has not enough free slots.
    /// - `EINVAL` if the region has no dynamic keys, or `count` is 0 or more than
    ///   `KFI_KEY_ALLOC_MAX`.
    pub fn alloc_keys(&self, count: usize) -> Result<Vec<Key>> {
        self.alloc(count, 0, None)
    }

    /// Like [`Region::alloc_keys`], but the keys are valid under the auth key `key`: only endpoints
    /// with that auth key accept them.
    ///
    /// # Errors
    ///
    /// The errors of [`Region::alloc_keys`]. If `key` may not be used: see `kfi_auth(7)`.
    pub fn alloc_keys_under(&self, key: &AuthKey, count: usize) -> Result<Vec<Key>> {
        self.alloc(count, 0, Some(key))
    }

    /// Like [`Region::alloc_keys`], but binds the slots to an endpoint with keys of its own
    /// ([`EndpointAttr::own_keys`](crate::EndpointAttr)). The slots' keys are valid on that
    /// endpoint alone, and are revoked when it is closed. After that, assigning to the slots fails
    /// with `ENOENT`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the endpoint has no keys of its own or belongs to another domain, or the
    ///   region is bound to another endpoint.
    ///
    /// Also those of [`Region::alloc_keys`].
    pub fn alloc_keys_for(&self, endpoint: &Endpoint, count: usize) -> Result<Vec<Key>> {
        let dev = &self.inner.handle.dev;
        if !Arc::ptr_eq(dev, endpoint.dev()) {
            return Err(Error::foreign(endpoint.id()));
        }
        self.alloc(count, endpoint.id().handle, None)
    }

    fn alloc(&self, count: usize, endpoint: u64, key: Option<&AuthKey>) -> Result<Vec<Key>> {
        let dev = &self.inner.handle.dev;
        // The kernel refuses a `count` that is too large, but the buffer must match the `count` in
        // the call.
        let wanted = u32::try_from(count).map_err(|_| Error::Argument {
            what: "number of keys",
            why: format!("{count} is more than any device holds"),
        })?;
        let mut handles = vec![0u64; count];
        let mut arg: abi::KeyAlloc = sys::new();
        arg.region = self.inner.handle.raw();
        arg.count = wanted;
        arg.ep = endpoint;
        let (mut bufs, size) = given(offset_of!(abi::KeyAlloc, auth_key), key);
        arg.auth_key_size = size;
        let at = offset_of!(abi::KeyAlloc, handles);
        bufs.push(Buf::output(at, handles.as_mut_bytes()));
        dev.call(self.id(), &mut arg, &mut bufs)?;
        let key = |handle: &u64| Key {
            handle: Handle::new(dev, Kind::Key, *handle),
            _region: self.inner.clone(),
        };
        Ok(handles.iter().map(key).collect())
    }

    /// Revokes all keys of the region, in one call. Returns their number.
    ///
    /// After the return no byte is read or written through any of them. Slots remain and can be
    /// assigned again. If the region was registered with a key, that key is revoked for good.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the call.
    pub fn revoke_keys(&self) -> Result<u64> {
        revoke_all(&self.inner.handle, abi::KFI_REVOKE_REGION)
    }

    /// Closes the region, or revokes all its keys and closes it later (`fi_close(3)` of a region).
    ///
    /// After the return no peer reads or writes through any key of the region. If an operation of
    /// the kernel, a [`Key`] or a [`SubRegion`] still uses the region, the region stays until that
    /// use has ended: it is closed by a later close of another object, at the latest with the device
    /// file. Operations of the kernel complete as usual; the kernel has pinned their memory.
    ///
    /// Receives of endpoints with rings are canceled, and messages that wait for space in a ring are
    /// copied. So the program may unmap memory of
    /// [`Domain::register_raw`](crate::Domain::register_raw) after the return.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the revocation. The region is returned in
    ///   [`Returned`]; receives of rings are canceled already.
    pub fn retire(self) -> std::result::Result<(), Returned<Self>> {
        if Arc::strong_count(&self.inner) > 1 {
            self.inner.domain.detach(self.inner.handle.raw());
        }
        let Err(Returned { object, error }) = self.close() else {
            return Ok(());
        };
        if error.errno() != Some(Errno::EBUSY) {
            return Err(Returned { object, error });
        }
        Returned::on_error(object.revoke_keys().map(drop), object)
    }

    /// Closes the region and unpins the memory. On failure the region is returned in [`Returned`].
    ///
    /// # Errors
    ///
    /// - `EBUSY` while a key, a sub-region or an operation uses the region.
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        // While a sub-region exists, its slot uses the region: keep the reserved slots, too.
        if Arc::strong_count(&self.spare) == 1 {
            self.spare
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clear();
        }
        // Other references belong to keys, which the kernel knows of, and to messages that wait for
        // a ring, which it does not.
        let closed = match Arc::strong_count(&self.inner) {
            1 => self.inner.handle.close(),
            _ => Err(Error::Call {
                call: "CLOSE",
                object: self.id(),
                errno: Errno::EBUSY,
            }),
        };
        Returned::on_error(closed, self)
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} bytes", self.inner.handle.id, self.inner.len)
    }
}
