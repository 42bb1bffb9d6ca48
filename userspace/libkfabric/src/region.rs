// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registered memory and the keys that let peers reach it.
#![forbid(unsafe_code)]

use std::mem::offset_of;
use std::ops::Range;
use std::sync::{Arc, PoisonError, Weak};

use kfabric_uapi as abi;
use zerocopy::IntoBytes;

use crate::auth::{given, AuthKey};
use crate::completion::CompletionQueue;
use crate::device::Shared;
use crate::endpoint::Endpoint;
use crate::errno::Errno;
use crate::error::{Error, ObjectId, Result, Returned};
use crate::fabric::DomainInner;
use crate::flags::Access;
use crate::memory::Memory;
use crate::object::{Handle, Kind};
use crate::op::{RemoteMem, Segment};
use crate::sub::Spare;
use crate::sys::{self, Buf};

/// An endpoint, by its name and its device file.
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

/// How to register memory.
#[derive(Clone, Debug)]
pub struct RegionAttr {
    access: Access,
    range: Option<Range<usize>>,
    dynamic_keys: bool,
    endpoint: Option<BoundTo>,
    reserved: usize,
    auth_key: Option<AuthKey>,
}

impl RegionAttr {
    /// All of it, for these uses; with a key of its own if they are remote ones.
    pub fn new(access: Access) -> Self {
        Self {
            access,
            range: None,
            dynamic_keys: false,
            endpoint: None,
            reserved: 0,
            auth_key: None,
        }
    }

    /// Only this part, in bytes.
    #[must_use]
    pub fn range(mut self, range: Range<usize>) -> Self {
        self.range = Some(range);
        self
    }

    /// No key at registration: keys come by [`Region::alloc_keys`] and [`Key::assign`].
    #[must_use]
    pub fn dynamic_keys(mut self) -> Self {
        self.dynamic_keys = true;
        self
    }

    /// No key at registration, and slots reserved for `count` sub-regions
    /// ([`Region::sub_region`]) that are to be live at once: `sub_mr_cnt` of `fi_mr(3)`.
    #[must_use]
    pub fn sub_regions(mut self, count: usize) -> Self {
        self.reserved = count;
        self.dynamic_keys()
    }

    /// The auth key under which its keys are valid, those without one of their own; none: that of
    /// the endpoint it is bound to, or the domain's.
    #[must_use]
    pub fn auth_key(mut self, key: AuthKey) -> Self {
        self.auth_key = Some(key);
        self
    }

    /// Binds it to an endpoint with keys of its own
    /// ([`EndpointAttr::own_keys`](crate::EndpointAttr)), and with it all its keys: they are valid
    /// on that endpoint alone, and end before it does.
    #[must_use]
    pub fn endpoint(mut self, endpoint: &Endpoint) -> Self {
        self.endpoint = Some(BoundTo {
            id: endpoint.id(),
            dev: Arc::downgrade(endpoint.dev()),
        });
        self
    }
}

pub(crate) struct RegionInner {
    pub(crate) handle: Handle,
    pub(crate) memory: Arc<Memory>,
    pub(crate) first: usize,
    pub(crate) len: usize,
    pub(crate) access: Access,
    remote: Option<RemoteMem>,
    pages: u64,
    pub(crate) domain: Arc<DomainInner>,
}

impl std::fmt::Debug for RegionInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.handle.fmt(f)
    }
}

/// Pinned memory of a domain. Offsets count from the region's start.
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
        arg.flags = if attr.dynamic_keys {
            abi::KFI_REGION_DYNAMIC_KEYS
        } else {
            0
        };
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

    /// Reserved slots that no sub-region uses.
    pub(crate) fn spare(&self) -> &Spare {
        &self.spare
    }

    /// Its name in messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.inner.handle.id
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// What it may be used for.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// Pages charged to `RLIMIT_MEMLOCK`.
    pub fn pages(&self) -> u64 {
        self.inner.pages
    }

    /// The memory under it.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.inner.memory
    }

    /// Where peers find it, if it has a key of its own.
    pub fn remote(&self) -> Option<RemoteMem> {
        self.inner.remote
    }

    /// A part of it, to use in an operation. The kernel checks the range.
    pub fn segment(&self, range: Range<usize>) -> Segment<'_> {
        Segment::new(&self.inner, range)
    }

    /// All of it, to use in an operation.
    pub fn all(&self) -> Segment<'_> {
        self.segment(0..self.inner.len)
    }

    fn within(&self, at: usize, len: usize) -> usize {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.inner.len);
        assert!(
            fits,
            "{len} bytes at {at} of a region of {} bytes",
            self.inner.len
        );
        self.inner.first + at
    }

    /// Copies bytes out.
    ///
    /// # Panics
    ///
    /// When the range is not within the region.
    pub fn read_at(&self, at: usize, to: &mut [u8]) {
        self.inner.memory.read_at(self.within(at, to.len()), to);
    }

    /// Copies `len` bytes out into a new vector.
    ///
    /// # Panics
    ///
    /// As for [`Region::read_at`].
    pub fn to_vec(&self, at: usize, len: usize) -> Vec<u8> {
        self.inner.memory.to_vec(self.within(at, len), len)
    }

    /// Copies bytes in.
    ///
    /// # Panics
    ///
    /// When the range is not within the region, or its memory is read-only.
    pub fn write_at(&self, at: usize, from: &[u8]) {
        self.inner
            .memory
            .write_at(self.within(at, from.len()), from);
    }

    /// Sets `len` bytes.
    ///
    /// # Panics
    ///
    /// As for [`Region::write_at`].
    pub fn fill(&self, at: usize, len: usize, byte: u8) {
        self.inner.memory.fill(self.within(at, len), len, byte);
    }

    /// Reserves key slots: whatever later assigns need. All of them or none.
    ///
    /// # Errors
    ///
    /// `ENOSPC`; `EINVAL` on a region without dynamic keys, or for 0 or more than
    /// `KFI_KEY_ALLOC_MAX`.
    pub fn alloc_keys(&self, count: usize) -> Result<Vec<Key>> {
        self.alloc(count, 0, None)
    }

    /// As [`Region::alloc_keys`]; the keys are valid under `key`, for endpoints that have that one.
    ///
    /// # Errors
    ///
    /// As there, and where an auth key may not be used what `kfi_auth(7)` says.
    pub fn alloc_keys_under(&self, key: &AuthKey, count: usize) -> Result<Vec<Key>> {
        self.alloc(count, 0, Some(key))
    }

    /// As [`Region::alloc_keys`], but binds the slots to an endpoint with keys of its own
    /// ([`EndpointAttr::own_keys`](crate::EndpointAttr)): their keys are valid on that one alone, and
    /// end when it is closed, after which the slots get no more (`ENOENT`).
    ///
    /// # Errors
    ///
    /// As for [`Region::alloc_keys`]; `EINVAL` also for an endpoint without keys of its own, one of
    /// another domain, or a region that is bound to another one.
    pub fn alloc_keys_for(&self, endpoint: &Endpoint, count: usize) -> Result<Vec<Key>> {
        let dev = &self.inner.handle.dev;
        if !Arc::ptr_eq(dev, endpoint.dev()) {
            return Err(Error::foreign(endpoint.id()));
        }
        self.alloc(count, endpoint.id().handle, None)
    }

    fn alloc(&self, count: usize, endpoint: u64, key: Option<&AuthKey>) -> Result<Vec<Key>> {
        let dev = &self.inner.handle.dev;
        // Too many is the kernel's to refuse, but the room must be what the call says it is.
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

    /// Ends all its keys, in one call; how many. When this returns no byte is read or written
    /// through any of them any more. Slots stay and can be assigned anew; a key that the region was
    /// registered with goes for good.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn revoke_keys(&self) -> Result<u64> {
        revoke_all(&self.inner.handle, abi::KFI_REVOKE_REGION)
    }

    /// Closes it: unpins the memory. Given back while a key, a sub-region or an operation uses it.
    ///
    /// # Errors
    ///
    /// `EBUSY`.
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        // While there is a sub-region its slot keeps the region, and those in reserve stay.
        if Arc::strong_count(&self.spare) == 1 {
            self.spare
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clear();
        }
        // Who else has it is a key, which the kernel knows of too, or a message's way through a ring.
        let closed = match Arc::strong_count(&self.inner) {
            1 => self.inner.handle.close(),
            _ => Err(Error::Call {
                call: "CLOSE",
                object: self.id(),
                errno: Errno::EBUSY,
            }),
        };
        match closed {
            Ok(()) => Ok(()),
            Err(error) => Err(Returned {
                object: self,
                error,
            }),
        }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} bytes", self.inner.handle.id, self.inner.len)
    }
}

/// Ends all keys of an object; how many.
pub(crate) fn revoke_all(of: &Handle, scope: u32) -> Result<u64> {
    let mut arg: abi::KeyRevokeMany = sys::new();
    arg.scope = scope;
    arg.object = of.raw();
    revoked(&of.dev, of.id, &mut arg, &mut [])
}

/// Makes a revoking call, to its end.
pub(crate) fn revoked(
    dev: &Shared,
    of: ObjectId,
    arg: &mut abi::KeyRevokeMany,
    bufs: &mut [Buf<'_>],
) -> Result<u64> {
    dev.call(of, arg, bufs)?;
    match stopped(arg.err) {
        None => Ok(arg.revoked),
        Some(errno) => Err(Error::Call {
            call: "KEY_REVOKE_MANY",
            object: of,
            errno,
        }),
    }
}

/// What stopped a batch.
fn stopped(err: u32) -> Option<Errno> {
    (err != 0).then(|| Errno(i32::try_from(err).unwrap_or(libc::EIO)))
}

/// What a slot's key is to give: one of [`Key::assign_many`].
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    /// The slot.
    pub key: &'a Key,
    /// First byte, counted from the region's start.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Rights of peers.
    pub access: Access,
}

/// How far [`Key::assign_many`] came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// Where peers find what the first slots were assigned to, in order.
    pub remotes: Vec<RemoteMem>,
    /// Why the next slot, and with it the rest, got no key; `None`: all did.
    pub refused: Option<Errno>,
}

/// A reserved key slot of a region. Dropping or closing it revokes its key first.
pub struct Key {
    handle: Handle,
    _region: Arc<RegionInner>,
}

impl Key {
    /// Its name in messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.handle.id
    }

    /// Makes `length` bytes at `offset` of the region reachable for peers with these rights, and
    /// says where they find them. The key works when this returns.
    ///
    /// # Errors
    ///
    /// `EBUSY` while it has a key; `EINVAL` outside the region; `EACCES` beyond its access.
    pub fn assign(&self, offset: u64, length: u64, access: Access) -> Result<RemoteMem> {
        self.give(offset, length, access, 0, None)
    }

    fn give(
        &self,
        offset: u64,
        length: u64,
        access: Access,
        flags: u32,
        failures: Option<(&CompletionQueue, u64)>,
    ) -> Result<RemoteMem> {
        let mut arg: abi::KeyAssign = sys::new();
        arg.flags = flags;
        if let Some((cq, context)) = failures {
            (arg.cq, arg.context) = (cq.inner.handle.raw(), context);
        }
        arg.slot = self.handle.raw();
        arg.offset = offset;
        arg.length = length;
        arg.access = access.bits();
        self.handle.dev.call(self.id(), &mut arg, &mut [])?;
        Ok(RemoteMem {
            addr: arg.remote_addr,
            key: arg.key,
        })
    }

    /// As [`Key::assign`], but the key ends with the first operation that is done by it. Only where
    /// a provider has the capability [`Caps::SINGLE_USE_KEYS`](crate::Caps::SINGLE_USE_KEYS).
    ///
    /// # Errors
    ///
    /// As for [`Key::assign`]; `EOPNOTSUPP`: no key of the provider's ends by itself.
    pub fn assign_once(&self, offset: u64, length: u64, access: Access) -> Result<RemoteMem> {
        self.give(offset, length, access, abi::KFI_KEY_SINGLE_USE, None)
    }

    /// Assigns many slots, of any regions of one device file, in order; one call for up to
    /// `KFI_KEY_ALLOC_MAX`. The keys work when this returns. Stops at the first that is refused.
    /// For each key this costs a small part of what [`Key::assign`] does.
    ///
    /// ```no_run
    /// # use kfabric::*;
    /// # fn main() -> kfabric::Result<()> {
    /// # let device = Device::open()?;
    /// # let info = device.info(&Hints::new())?.remove(0);
    /// # let domain = device.fabric(&info)?.domain(&info)?;
    /// let attr = RegionAttr::new(Access::REMOTE_READ).dynamic_keys();
    /// let region = domain.register_with(Memory::anonymous(1 << 20)?, &attr)?;
    /// let keys = region.alloc_keys(256)?;
    /// let page = |(i, key)| Grant {
    ///     key,
    ///     offset: 4096 * i as u64,
    ///     length: 4096,
    ///     access: Access::REMOTE_READ,
    /// };
    /// let grants: Vec<_> = keys.iter().enumerate().map(page).collect();
    /// let assigned = Key::assign_many(&grants)?;
    /// assert_eq!(assigned.refused, None);
    /// // … a peer reads `assigned.remotes` …
    /// assert_eq!(Key::revoke_many(&keys)?, 256);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the very first is refused: what [`Key::assign`] says. [`Error::Argument`]: slots of
    /// more than one device file.
    pub fn assign_many(grants: &[Grant<'_>]) -> Result<Assigned> {
        Self::assign_all(grants, 0, None)
    }

    /// As [`Key::assign_many`], but does not wait for the device: the keys are told at once, and
    /// work before anything takes effect that is posted on their domain afterwards. A message that
    /// carries one may follow immediately.
    ///
    /// Should the device fail after that, `failures` (a queue, and the context of its entries)
    /// of the keys' domain gets an error entry for up to 64 keys that were asked for together: its
    /// data is the index of their first among up to `KFI_KEY_ALLOC_MAX` grants, its length says how
    /// many of them came to be. Without it nobody hears of that, and a peer's operation by such a
    /// key is refused. The queue closes when it is known how all went.
    ///
    /// # Errors
    ///
    /// As [`Key::assign_many`]; `EAGAIN`: the queue is full, or too much is to be made yet;
    /// `EINVAL`: the queue is another domain's; `EOPNOTSUPP`: the provider has no ordered keys.
    pub fn assign_ordered(
        grants: &[Grant<'_>],
        failures: Option<(&CompletionQueue, u64)>,
    ) -> Result<Assigned> {
        Self::assign_all(grants, abi::KFI_KEY_ORDERED, failures)
    }

    fn assign_all(
        grants: &[Grant<'_>],
        flags: u32,
        failures: Option<(&CompletionQueue, u64)>,
    ) -> Result<Assigned> {
        let mut all = Assigned::default();
        let Some(first) = grants.first().map(|grant| grant.key) else {
            return Ok(all);
        };
        let cq = failures.map(|(cq, _)| &cq.inner.handle);
        first.same_file(grants.iter().map(|grant| &grant.key.handle).chain(cq))?;
        if let [one] = grants {
            // Less to read and to write.
            let (offset, length, access) = (one.offset, one.length, one.access);
            let remote = first.give(offset, length, access, flags, failures)?;
            all.remotes.push(remote);
            return Ok(all);
        }
        let mut arg: abi::KeyAssignMany = sys::new();
        arg.flags = flags;
        if let Some((cq, context)) = failures {
            (arg.cq, arg.context) = (cq.inner.handle.raw(), context);
        }
        while let Some(rest) = grants
            .get(all.remotes.len()..)
            .filter(|rest| !rest.is_empty())
        {
            let before = all.remotes.len();
            let chunk = rest.get(..abi::KFI_KEY_ALLOC_MAX as usize).unwrap_or(rest);
            let refused = match first.assign_chunk(chunk, arg, &mut all.remotes) {
                Ok(refused) => refused,
                Err(e) if all.remotes.is_empty() => return Err(e),
                Err(e) => e.errno().or(Some(Errno(libc::EIO))),
            };
            let further = all.remotes.len() > before;
            match refused {
                None if further => {}
                // Memory was missing for the call's list, and the next entry may do without. (Not
                // where a queue counts from the call's first.)
                Some(Errno(libc::ENOMEM)) if further && arg.cq == 0 => {}
                _ => {
                    // A call that did nothing and does not say why is none of ours.
                    all.refused = refused.or(Some(Errno(libc::EIO)));
                    break;
                }
            }
        }
        Ok(all)
    }

    /// Assigns what fits one call; what stopped it.
    fn assign_chunk(
        &self,
        grants: &[Grant<'_>],
        mut arg: abi::KeyAssignMany,
        remotes: &mut Vec<RemoteMem>,
    ) -> Result<Option<Errno>> {
        let entry = |grant: &Grant<'_>| abi::KeyEntry {
            slot: grant.key.handle.raw(),
            offset: grant.offset,
            length: grant.length,
            access: grant.access.bits(),
            ..Default::default()
        };
        let mut entries: Vec<_> = grants.iter().map(entry).collect();
        arg.count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        arg.entry_size = u32::try_from(size_of::<abi::KeyEntry>()).unwrap_or(u32::MAX);
        let at = offset_of!(abi::KeyAssignMany, entries);
        let mut bufs = [Buf::output(at, entries.as_mut_bytes())];
        let of = grants.first().map_or(self.id(), |grant| grant.key.id());
        self.handle.dev.call(of, &mut arg, &mut bufs)?;
        let told = entries.iter().take(arg.done as usize);
        remotes.extend(told.map(|entry| RemoteMem {
            addr: entry.remote_addr,
            key: entry.key,
        }));
        Ok(stopped(arg.err))
    }

    /// Ends the keys of many slots of one device file; how many. Slots without a key are passed
    /// over. When this returns no byte is read or written through any of the keys any more.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`]: slots of more than one device file.
    pub fn revoke_many<'a>(keys: impl IntoIterator<Item = &'a Key>) -> Result<u64> {
        let keys: Vec<_> = keys.into_iter().collect();
        let Some(first) = keys.first() else {
            return Ok(0);
        };
        first.same_file(keys.iter().map(|key| &key.handle))?;
        let mut ended = 0;
        for chunk in keys.chunks(abi::KFI_KEY_ALLOC_MAX as usize) {
            let slots: Vec<_> = chunk.iter().map(|key| key.handle.raw()).collect();
            let mut arg: abi::KeyRevokeMany = sys::new();
            arg.scope = abi::KFI_REVOKE_SLOTS;
            arg.count = u32::try_from(slots.len()).unwrap_or(u32::MAX);
            let at = offset_of!(abi::KeyRevokeMany, slots);
            let mut bufs = [Buf::input(at, slots.as_bytes())];
            ended += revoked(&first.handle.dev, first.id(), &mut arg, &mut bufs)?;
        }
        Ok(ended)
    }

    /// Refuses objects of another device file: their handles mean nothing in this one.
    fn same_file<'a>(&self, mut handles: impl Iterator<Item = &'a Handle>) -> Result<()> {
        if handles.all(|handle| Arc::ptr_eq(&handle.dev, &self.handle.dev)) {
            return Ok(());
        }
        Err(Error::Argument {
            what: "keys",
            why: "they are of more than one device file".into(),
        })
    }

    /// Ends the key. When this returns no byte is read or written through it any more. The slot
    /// stays and can be assigned anew; the old value never works again.
    ///
    /// # Errors
    ///
    /// `EINVAL` when it has no key.
    pub fn revoke(&self) -> Result<()> {
        let mut arg: abi::ObjectCall2 = sys::new();
        arg.handle = self.handle.raw();
        self.handle.dev.call(self.id(), &mut arg, &mut [])
    }

    /// Gives the slot back, revoking its key first.
    ///
    /// # Errors
    ///
    /// [`Error::Call`], with the slot given back.
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        match self.handle.close() {
            Ok(()) => Ok(()),
            Err(error) => Err(Returned {
                object: self,
                error,
            }),
        }
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.handle.fmt(f)
    }
}
