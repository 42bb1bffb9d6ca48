// SPDX-License-Identifier: GPL-2.0
//! Table of all keys of the host, and look-up of a key by its value without a lock.
//!
//! A key value is the number of a cell and the generation of that cell, encrypted with a secret
//! permutation ([`Scramble`]). So a key value cannot be guessed and is never issued twice, and a
//! look-up needs neither a search nor a lock. Cells lie in chunks that live as long as the module,
//! so a reader can always access a cell. The contents of a cell live as long as a reader is inside;
//! a revoke waits for the readers ([`Slot::retire`]).
//!
//! Nothing is allocated under the lock of the free cells, because reclaim of other tasks' memory
//! may depend on a task that waits for that lock.

use core::{
    mem,
    sync::atomic::{
        AtomicBool,
        Ordering, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex,
        SetOnce, //
    }, //
};

use crate::{
    key::group::Group,
    sys::{
        task,
        wait::Exits, //
    }, //
};
use kfabric::{
    memory::Memory,
    pure::{
        scramble::Scramble,
        slot::{
            Handle,
            Slot, //
        }, //
    },
    uapi::KFI_KEY_NOTAVAIL,
};

/// Number of cells in a chunk.
const CHUNK: usize = 1024;
/// Maximum number of chunks.
const CHUNKS: usize = 1024;
/// Maximum number of keys at a time.
pub(crate) const MAX_KEYS: u64 = (CHUNK * CHUNKS) as u64;

/// The memory, access and state of a key.
pub(crate) struct Window {
    /// The memory that the key covers a part of.
    pub(crate) memory: Arc<Memory>,
    /// The group whose endpoints' peers may use the key.
    pub(crate) group: Arc<Group>,
    /// First byte, counted from the start of the memory.
    pub(crate) offset: usize,
    /// Length in bytes.
    pub(crate) len: u64,
    /// Remote address of the first byte.
    pub(crate) addr: u64,
    /// Rights of peers (`KFI_REMOTE_*` bits).
    pub(crate) access: u64,
    /// The key is single-use.
    pub(crate) once: bool,
    /// An operation has claimed the single-use key.
    pub(crate) used: AtomicBool,
    /// The operation that claimed the single-use key is complete.
    pub(crate) over: AtomicBool,
}

impl Window {
    /// Claims the key for an operation. Only one operation ever claims a single-use key.
    pub(crate) fn claim(&self) -> bool {
        !self.once || !self.used.swap(true, Ordering::AcqRel)
    }

    /// Returns a claim. The operation has not accessed a byte and will not do so.
    pub(crate) fn unclaim(&self) {
        self.used.store(false, Ordering::Release);
    }

    /// Returns the start of [addr, addr + len) in the memory. Returns `None` if the range is not
    /// inside the key's window, if the key does not permit `access`, or if `group` is not the key's
    /// group.
    pub(crate) fn find(
        &self,
        group: &Arc<Group>,
        addr: u64,
        len: u64,
        access: u64,
    ) -> Option<usize> {
        let into = addr.checked_sub(self.addr)?;
        let inside = into <= self.len && len <= self.len - into;
        // CAST: The range is inside the memory, whose length is a `usize`.
        (inside && self.access & access == access && Arc::ptr_eq(&self.group, group))
            .then_some(self.offset + into as usize)
    }
}

type Cells = KVVec<Slot<Window>>;

/// The free cells.
struct Free {
    /// Cells from this number on were never used.
    next: u32,
    /// Cells below `next` that were released. The capacity covers all of them.
    back: KVVec<u32>,
}

/// Memory for a new chunk.
struct Fresh {
    /// Number of the chunk.
    number: usize,
    cells: Cells,
    /// Storage for the numbers of all cells up to this chunk, when they are released.
    back: KVVec<u32>,
}

impl Fresh {
    fn new(number: usize) -> Result<Self> {
        let mut cells = Cells::with_capacity(CHUNK, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..CHUNK {
            cells.push(Slot::new(), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self {
            number,
            cells,
            back: KVVec::with_capacity((number + 1) * CHUNK, GFP_KERNEL_ACCOUNT)?,
        })
    }
}

/// The table of keys.
#[pin_data]
pub(crate) struct Table {
    scramble: Scramble,
    chunks: KVVec<SetOnce<Cells>>,
    #[pin]
    free: Mutex<Free>,
    #[pin]
    exits: Exits,
}

impl Table {
    /// Returns an empty table with a new secret.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let mut chunks = KVVec::with_capacity(CHUNKS, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..CHUNKS {
            chunks.push(SetOnce::new(), GFP_KERNEL_ACCOUNT)?;
        }
        let free = Free {
            next: 0,
            back: KVVec::new(),
        };
        Arc::pin_init(
            pin_init!(Self {
                scramble: Scramble::new(task::random()),
                chunks,
                free <- new_mutex!(free, "kshm_keys"),
                exits <- Exits::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    fn cell(&self, index: u32) -> Option<&Slot<Window>> {
        let index = index as usize;
        self.chunks.get(index / CHUNK)?.as_ref()?.get(index % CHUNK)
    }

    /// Reserves a cell for a key slot.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if all cells are in use or exhausted.
    /// - `ENOMEM`
    pub(crate) fn reserve(&self) -> Result<u32> {
        // Unused memory is dropped after the lock is released.
        let mut fresh: Option<Fresh> = None;
        loop {
            let number = {
                let mut free = self.free.lock();
                if let Some(index) = free.back.pop() {
                    return Ok(index);
                }
                let index = free.next;
                // CAST: A `u32` fits into a `usize`.
                let number = index as usize / CHUNK;
                let chunk = self.chunks.get(number).ok_or(ENOSPC)?;
                if let Some(fresh) = fresh.as_mut().filter(|fresh| fresh.number == number) {
                    if chunk.as_ref().is_none() {
                        // `free.back` is empty here, so no entry is lost.
                        mem::swap(&mut free.back, &mut fresh.back);
                        chunk.populate(mem::replace(&mut fresh.cells, Cells::new()));
                    }
                }
                if chunk.as_ref().is_some() {
                    free.next += 1;
                    return Ok(index);
                }
                number
            };
            fresh = Some(Fresh::new(number)?);
        }
    }

    /// Releases a cell that has no key. An exhausted cell is not used again.
    pub(crate) fn release(&self, index: u32) {
        if self.is_exhausted(index) {
            return;
        }
        // Cannot fail: `back` has capacity for all cells of existing chunks.
        let _ = self.free.lock().back.push_within_capacity(index);
    }

    /// Returns whether a cell has used all its generations.
    pub(crate) fn is_exhausted(&self, index: u32) -> bool {
        self.cell(index).is_none_or(Slot::is_exhausted)
    }

    /// Assigns a key to a cell without one and returns the key value. Allocates nothing.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if the cell has used all its generations.
    pub(crate) fn publish(&self, index: u32, mut window: Window) -> Result<u64> {
        let cell = self.cell(index).ok_or(EINVAL)?;
        loop {
            let generation = cell.publish(window).map_err(|_| ENOSPC)?;
            let value = self.scramble.scramble(Handle { index, generation }.pack());
            if value != KFI_KEY_NOTAVAIL {
                return Ok(value);
            }
            // One value in 2^64 means "no key", so the next generation is used.
            window = self.retire(value).ok_or(EIO)?;
        }
    }

    /// Revokes a key and waits until no reader is inside its cell. Returns the key's window, if
    /// `value` was a key. May sleep.
    pub(crate) fn retire(&self, value: u64) -> Option<Window> {
        let handle = Handle::unpack(self.scramble.plain(value));
        let cell = self.cell(handle.index)?;
        self.exits
            .wait(|sleep| cell.retire(handle.generation, sleep))
    }

    /// Calls `f` with the window of a key. A revoke of the key waits until `f` returns. Context:
    /// any.
    pub(crate) fn with<R>(&self, value: u64, f: impl FnOnce(&Window) -> R) -> Option<R> {
        let handle = Handle::unpack(self.scramble.plain(value));
        let result = self.cell(handle.index)?.with(handle.generation, f);
        self.exits.wake();
        result
    }
}
