// SPDX-License-Identifier: GPL-2.0
//! Memory-backed exports: the memory, its registrations, and the keys of a connection. The memory is
//! allocated, or the persistent memory of a block device.
//!
//! Initiators read and write the memory by one-sided operations. The target's processors only
//! assign the keys, one for each chunk, when a connection is made.

use kernel::{
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kfabric::{
    ep::Endpoint,
    key::{
        Assignment,
        Key,
        Region, //
    },
    memory::{
        dax::Device,
        Memory, //
    },
    objects::domain::Domain,
    provider::KeyValue,
    pure::blk::{
        self,
        Entry,
        Geometry,
        TABLE_MAX, //
    },
    uapi::{
        KFI_REACH_NO,
        KFI_REMOTE_READ,
        KFI_REMOTE_WRITE, //
    },
};

use super::{
    pmem::Opened,
    protocol::{
        Access,
        Backing,
        Service, //
    }, //
};
use crate::{
    errno,
    sys, //
};

/// Bytes per key, as a power of two; every device can register as many.
const CHUNK_SHIFT: u32 = 20;
/// Block size, as a power of two.
const BLOCK_SHIFT: u32 = 9;
/// Order of the memory's largest blocks: 2 MiB, which devices and processors map at once.
const ORDER: u32 = 9;

/// Returns the geometry of `capacity` bytes of memory.
pub(super) fn geometry(capacity: u64, block_shift: u32) -> Geometry {
    Geometry {
        capacity,
        block_shift,
        chunk_shift: CHUNK_SHIFT,
    }
}

/// The exported memory, registered with a domain.
pub(super) struct Registration {
    domain: Arc<Domain>,
    region: Arc<Region>,
}

/// Exported memory.
pub(super) struct MemoryExport {
    // Dropped in this order.
    registrations: KVec<Registration>,
    memory: Arc<Memory>,
    /// The block device of persistent memory.
    device: Option<Device>,
    geometry: Geometry,
    read_only: bool,
}

/// Allocates `size` bytes of zeroed memory. Allocates only spare pages, because a larger demand
/// makes the OOM killer kill other processes. May sleep.
///
/// # Errors
///
/// - `ENOMEM` if there are too few spare pages.
/// - `EINTR` if the task is being killed.
fn pages(size: u64) -> Result<Arc<Memory>> {
    let count = usize::try_from(size).map_err(|_| EINVAL)? / PAGE_SIZE;
    if count > sys::spare_pages() {
        return Err(ENOMEM);
    }
    Memory::in_large_blocks(count, ORDER, || {
        sys::breathe()?;
        // Other tasks allocate meanwhile.
        match sys::spare_pages() {
            0 => Err(ENOMEM),
            _ => Ok(()),
        }
    })
}

impl MemoryExport {
    /// Allocates `size` bytes of zeroed memory to export. May sleep.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `size` is 0.
    /// - `ENOMEM` if there are too few spare pages.
    /// - `EINTR` if the task is being killed.
    pub(super) fn new(size: u64, read_only: bool) -> Result<Self> {
        if size == 0 {
            return Err(EINVAL);
        }
        Ok(Self {
            registrations: KVec::new(),
            memory: pages(size)?,
            device: None,
            geometry: geometry(size, BLOCK_SHIFT),
            read_only,
        })
    }

    /// Exports the persistent memory of a block device.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if a processor cannot make stores to the memory durable.
    pub(super) fn of_device(opened: Opened) -> Result<Self> {
        if !opened.memory.persistence().is_durable_by_cpu() {
            return Err(errno::eopnotsupp());
        }
        Ok(Self {
            registrations: KVec::new(),
            memory: opened.memory,
            device: Some(opened.device),
            geometry: opened.geometry,
            read_only: opened.read_only,
        })
    }

    /// Returns whether writes are durable only after a commit.
    pub(super) fn is_persistent(&self) -> bool {
        self.device.is_some()
    }

    /// Returns whether the memory has failed, or its device is removed.
    pub(super) fn has_failed(&self) -> bool {
        self.device
            .as_ref()
            .is_some_and(|device| device.check().is_err())
    }
}

impl Backing for MemoryExport {
    fn access(&mut self, domain: &Arc<Domain>) -> Result<Access> {
        let known = self
            .registrations
            .iter()
            .find(|of| Arc::ptr_eq(&of.domain, domain));
        if let Some(known) = known {
            return Ok(Access::Memory(known.region.clone()));
        }
        if self.is_persistent() && domain.attr().durable == KFI_REACH_NO {
            return Err(errno::eopnotsupp());
        }
        let access = match self.read_only {
            true => KFI_REMOTE_READ,
            false => KFI_REMOTE_READ | KFI_REMOTE_WRITE,
        };
        let region = Region::register(domain, self.memory.clone(), access, true)?;
        let registration = Registration {
            domain: domain.clone(),
            region: region.clone(),
        };
        self.registrations.push(registration, GFP_KERNEL)?;
        Ok(Access::Memory(region))
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn measure(&self) -> Option<u64> {
        None
    }

    fn is_registered(&self, which: &dyn Fn(&Domain) -> bool) -> bool {
        self.registrations.iter().any(|of| which(&of.domain))
    }

    fn take_registration(&mut self, which: &dyn Fn(&Domain) -> bool) -> Option<Registration> {
        let at = self.registrations.iter().position(|of| which(&of.domain))?;
        self.registrations.remove(at).ok()
    }
}

/// A connection's keys, in the order of chunks.
struct Keys {
    /// The region for further keys; `None` if no more keys are assigned.
    region: Option<Arc<Region>>,
    all: KVVec<Arc<Key>>,
}

/// The service of a connection to a memory-backed export: its keys.
#[pin_data]
pub(super) struct KeyService {
    geometry: Geometry,
    /// Rights of the keys.
    access: u64,
    #[pin]
    keys: Mutex<Keys>,
}

impl KeyService {
    /// Makes a service without keys.
    pub(super) fn new(region: Arc<Region>, geometry: Geometry, access: u64) -> Result<Arc<Self>> {
        let keys = Keys {
            region: Some(region),
            all: KVVec::new(),
        };
        Arc::pin_init(
            pin_init!(Self {
                geometry,
                access,
                keys <- new_mutex!(keys, "kfblk_keys"),
            }),
            GFP_KERNEL,
        )
    }
}

impl Service for KeyService {
    const OPERATIONS: (u32, u32) = (0, 0);
    // Answers to questions may take long.
    const SERVES_IN_COMPLETION: bool = false;

    fn stop(&self) {
        let mut keys = self.keys.lock();
        let region = keys.region.take();
        // Locked until all are closed: a concurrent caller finds no key only after they are
        // revoked.
        for key in core::mem::take(&mut keys.all) {
            key.close();
        }
        // With the keys locked: a caller that finds no key may end the export, and the memory must
        // be free then.
        drop(region);
    }

    fn is_open(&self) -> bool {
        true
    }

    fn keys(&self) -> usize {
        self.keys.lock().all.len()
    }

    fn assign(&self, ep: &Arc<Endpoint>, first: u32, answer: &mut [u8]) -> Result<usize> {
        let mut guard = self.keys.lock();
        let keys = &mut *guard;
        let region = keys.region.as_ref().ok_or(EIO)?;
        let have = keys.all.len();
        if have as u64 != u64::from(first) || u64::from(first) >= self.geometry.chunks() {
            return Err(EINVAL);
        }
        let left = self.geometry.chunks() - u64::from(first);
        let count = usize::try_from(left).unwrap_or(TABLE_MAX).min(TABLE_MAX);
        for _ in 0..count {
            keys.all.push(Key::alloc_for(region, ep)?, GFP_KERNEL)?;
        }
        let mut batch = KVec::with_capacity(count, GFP_KERNEL)?;
        for (i, key) in keys.all.iter().enumerate().skip(have) {
            let (offset, len) = self.geometry.window(i as u64).ok_or(EINVAL)?;
            let one = Assignment {
                key,
                offset,
                len,
                access: self.access,
                once: false,
                value: KeyValue::NONE,
            };
            batch.push(one, GFP_KERNEL)?;
        }
        Key::assign_many(&mut batch).map_err(|(_, e)| e)?;
        let entries = batch.iter().map(|one| Entry {
            key: one.value.key,
            addr: one.value.remote_addr,
        });
        blk::write_table(answer, first, entries).map_err(|_| EINVAL)
    }
}
