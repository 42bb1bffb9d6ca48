// SPDX-License-Identifier: GPL-2.0
//! Keys of requests: a key slot for each tag, and the spare for a shortage.

use core::sync::atomic::{
    AtomicBool,
    Ordering, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    ep::Endpoint,
    key::{
        Key,
        Region, //
    },
    memory::{
        LentPiece,
        Memory, //
    },
    objects::domain::Domain,
    provider::KeyValue,
    pure::blk::device::{
        Carry,
        Op,
        LEN_MAX, //
    },
    uapi::{
        KFI_REMOTE_READ,
        KFI_REMOTE_WRITE, //
    },
};

use crate::buffer::Buffer;

/// Region and key slot of a tag.
pub(super) struct KeySlot {
    /// Attach-on-assign region for the request's pages, while `key` is assigned.
    room: Arc<Region>,
    pub(super) key: Arc<Key>,
}

impl KeySlot {
    /// Makes a key slot on an attach-on-assign region.
    pub(super) fn new(domain: &Arc<Domain>, ep: &Arc<Endpoint>) -> Result<Self> {
        let access = KFI_REMOTE_READ | KFI_REMOTE_WRITE;
        let room = Memory::placeholder(LEN_MAX as usize)?;
        let room = Region::register(domain, room, access, true)?;
        let key = Key::alloc_for(&room, ep)?;
        Ok(Self { room, key })
    }

    /// Attaches `pieces` to the tag's region. See [`Memory::fill`].
    ///
    /// # Safety
    ///
    /// The key slot has no key, and no assignment is outstanding. The pages of `pieces` stay until
    /// the region is emptied.
    pub(super) unsafe fn fill(&self, pieces: &[LentPiece]) -> Result {
        // SAFETY: By the caller's contract. The region is private, and only its keys access its
        // memory.
        unsafe { self.room.memory().fill(pieces) }
    }

    /// Detaches all pages from the tag's region.
    ///
    /// # Safety
    ///
    /// The key slot has no key, and no assignment is outstanding.
    pub(super) unsafe fn empty(&self) {
        // SAFETY: By the caller's contract. An empty list always fits, so it cannot fail.
        let _ = unsafe { self.fill(&[]) };
    }
}

/// Memory and keys for a request for which no key can be assigned. The keys live as long as the
/// connection. Through them the target accesses only this memory. The request's bytes are copied to
/// or from it.
pub(super) struct Spare {
    pub(super) data: Buffer,
    /// The key for requests that read, and the key for requests that write.
    pub(super) keys: [Arc<Key>; 2],
    values: [KeyValue; 2],
    /// A request uses the memory.
    taken: AtomicBool,
}

impl Spare {
    /// Allocates the memory, and assigns the keys.
    pub(super) fn new(domain: &Arc<Domain>, ep: &Arc<Endpoint>) -> Result<Self> {
        let data = Buffer::with_keys(domain)?;
        let make = |access| -> Result<(Arc<Key>, KeyValue)> {
            let key = Key::alloc_for(data.region(), ep)?;
            let value = key.assign(0, LEN_MAX.into(), access)?;
            Ok((key, value))
        };
        let (for_read, read) = make(KFI_REMOTE_WRITE)?;
        let (for_write, write) = make(KFI_REMOTE_READ)?;
        Ok(Self {
            data,
            keys: [for_read, for_write],
            values: [read, write],
            taken: AtomicBool::new(false),
        })
    }

    /// Reserves the memory for a request. Returns the key for the target, or `None` if another
    /// request uses the memory.
    pub(super) fn take(&self, op: Op) -> Option<Carry> {
        if self.taken.swap(true, Ordering::Acquire) {
            return None;
        }
        let [read, write] = &self.values;
        let value = if op == Op::Read { read } else { write };
        Some(Carry::Key {
            key: value.key,
            addr: value.remote_addr,
        })
    }

    /// Releases the memory.
    pub(super) fn put(&self) {
        self.taken.store(false, Ordering::Release);
    }
}
