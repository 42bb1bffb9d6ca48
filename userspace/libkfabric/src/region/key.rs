// SPDX-License-Identifier: MIT OR Apache-2.0
//! Key slots, through whose keys peers access a region.
#![forbid(unsafe_code)]

use std::mem::offset_of;
use std::sync::Arc;

use kfabric_uapi as abi;
use zerocopy::IntoBytes;

use super::inner::RegionInner;
use crate::completion::CompletionQueue;
use crate::errno::Errno;
use crate::error::{Error, Result, Returned};
use crate::flags::Access;
use crate::handle::{debug_by_handle, Handle};
use crate::object::ObjectId;
use crate::remote::RemoteMem;
use crate::revoke::{revoked, stopped};
use crate::sys::{self, Buf};

/// One assignment of [`Key::assign_many`]: the window that a slot's key opens.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    /// The slot to assign.
    pub key: &'a Key,
    /// Offset of the first byte in the region.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Access that peers get.
    pub access: Access,
}

/// The outcome of [`Key::assign_many`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// Addresses and keys for peers, of the first slots, in order.
    pub remotes: Vec<RemoteMem>,
    /// The error of the next slot; that slot and all later ones have no key. `None`: all slots are
    /// assigned.
    pub refused: Option<Errno>,
}

/// A key slot of a region. Dropping or closing the slot revokes its key first.
pub struct Key {
    pub(super) handle: Handle,
    pub(super) _region: Arc<RegionInner>,
}

impl Key {
    /// The slot's name in error messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.handle.id
    }

    /// Assigns a key: peers get `access` to `length` bytes at `offset` of the region. Returns the
    /// address and the key for peers. The key is valid when this returns.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if the slot has a key.
    /// - `EINVAL` for a range outside the region.
    /// - `EACCES` for access that the region does not allow.
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

    /// Like [`Key::assign`], but the first operation through the key revokes it. Needs the provider
    /// capability [`Caps::SINGLE_USE_KEYS`](crate::Caps::SINGLE_USE_KEYS).
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the provider has no single-use keys.
    ///
    /// Also those of [`Key::assign`].
    pub fn assign_once(&self, offset: u64, length: u64, access: Access) -> Result<RemoteMem> {
        self.give(offset, length, access, abi::KFI_KEY_SINGLE_USE, None)
    }

    /// Assigns many slots in order, of any regions of one device file, with one system call per
    /// `KFI_KEY_ALLOC_MAX` slots. The keys are valid when this returns. Stops at the first slot
    /// that is refused. The cost per key is a small part of the cost of [`Key::assign`].
    ///
    /// ```no_run
    /// # use libkfabric as kfabric;
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
    /// - [`Error::Argument`] for slots of more than one device file.
    ///
    /// If the first slot is refused: those of [`Key::assign`]. A later refusal is in
    /// [`Assigned::refused`].
    pub fn assign_many(grants: &[Grant<'_>]) -> Result<Assigned> {
        Self::assign_all(grants, 0, None)
    }

    /// Like [`Key::assign_many`], but returns the keys without waiting for the device. The keys
    /// become valid before any operation takes effect that is posted on their domain afterwards. So
    /// a message that carries a key may follow at once.
    ///
    /// If the device fails an assignment later, an error entry is added to a completion queue:
    /// `failures` names the queue, of the keys' domain, and the context for the entries. One entry
    /// covers up to 64 keys of one call. Its data is the index of the first of these keys among up
    /// to `KFI_KEY_ALLOC_MAX` grants; its length is how many of them were assigned. Without
    /// `failures` the program is not notified, and a peer's operation through such a key is
    /// refused. The queue can be closed when all assignments have completed.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the queue is full, or too many assignments are outstanding.
    /// - `EINVAL` if the queue belongs to another domain.
    /// - `EOPNOTSUPP` if the provider has no ordered keys.
    ///
    /// Also those of [`Key::assign_many`].
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
            // The call for one key reads and writes less memory.
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
                // The call lacked memory for its list: try again from the next slot. Not with
                // `failures`: its entries count from the call's first grant.
                Some(Errno(libc::ENOMEM)) if further && arg.cq == 0 => {}
                _ => {
                    // A call that assigns no key must report an error; a kernel that does not is
                    // faulty.
                    all.refused = refused.or(Some(Errno(libc::EIO)));
                    break;
                }
            }
        }
        Ok(all)
    }

    /// Assigns as many slots as fit one call. Returns the error that stopped it.
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

    /// Revokes the keys of many slots of one device file. Returns their number. Slots without a key
    /// are skipped. After the return no byte is read or written through any of the keys.
    ///
    /// # Errors
    ///
    /// - [`Error::Argument`] for slots of more than one device file.
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

    /// Refuses objects of another device file: their handles have no meaning in this one.
    fn same_file<'a>(&self, mut handles: impl Iterator<Item = &'a Handle>) -> Result<()> {
        if handles.all(|handle| Arc::ptr_eq(&handle.dev, &self.handle.dev)) {
            return Ok(());
        }
        Err(Error::Argument {
            what: "keys",
            why: "they are of more than one device file".into(),
        })
    }

    /// Revokes the slot's key. After the return no byte is read or written through the key. The
    /// slot remains and can be assigned again; the old key value is never valid again.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the slot has no key.
    pub fn revoke(&self) -> Result<()> {
        let mut arg: abi::ObjectCall2 = sys::new();
        arg.handle = self.handle.raw();
        self.handle.dev.call(self.id(), &mut arg, &mut [])
    }

    /// Revokes the slot's key, then frees the slot.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the call. The slot is returned in [`Returned`].
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        Returned::on_error(self.handle.close(), self)
    }
}

debug_by_handle!(Key, handle);
