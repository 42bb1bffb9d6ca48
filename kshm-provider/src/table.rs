// SPDX-License-Identifier: GPL-2.0
//! All keys of the host, and finding one by its value without a lock.
//!
//! A key's value is the number of a cell and how often that cell has been used, scrambled by a
//! secret permutation ([`Scramble`]): nobody can guess one, none is ever given twice, and finding
//! what it stands for takes neither a search nor a lock. Cells lie in chunks that stay until the
//! module goes, so whoever looks at one need not fear for its memory. What a cell holds stays as long
//! as somebody is inside, and who ends a key waits for those ([`Slot::retire`]).
//!
//! Nothing is allocated under the lock of the cells that are nobody's: whoever waits for it may be what
//! others' memory waits for.

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
    group::Group,
    region::Region,
    sys::{
        self,
        Exits, //
    },
};
use kfabric::{
    pure::{
        scramble::Scramble,
        slot::{
            Handle,
            Slot, //
        }, //
    },
    uapi::KFI_KEY_NOTAVAIL, //
};

/// Cells in a chunk.
const CHUNK: usize = 1024;
/// Chunks, at most.
const CHUNKS: usize = 1024;
/// Keys at a time, at most.
pub(crate) const MAX_KEYS: u64 = (CHUNK * CHUNKS) as u64;

/// What a key gives.
pub(crate) struct Window {
    /// Memory that it is a part of.
    pub(crate) region: Arc<Region>,
    /// Whose endpoints' peers may use it.
    pub(crate) group: Arc<Group>,
    /// First byte, counted from the region's start.
    pub(crate) offset: usize,
    /// Bytes.
    pub(crate) len: u64,
    /// The address that peers know the first byte by.
    pub(crate) addr: u64,
    /// Rights of peers (`KFI_REMOTE_*` bits).
    pub(crate) access: u64,
    /// It is for one use.
    pub(crate) once: bool,
    /// One for one use is using it, or has.
    pub(crate) used: AtomicBool,
    /// … and has.
    pub(crate) over: AtomicBool,
}

impl Window {
    /// Whether an operation may use it, which has not yet: of those for one use only one ever may.
    pub(crate) fn claim(&self) -> bool {
        !self.once || !self.used.swap(true, Ordering::AcqRel)
    }

    /// An operation that may use it has not touched a byte, and does not.
    pub(crate) fn unclaim(&self) {
        self.used.store(false, Ordering::Release);
    }

    /// Where [addr, addr + len) of a peer of an endpoint in `group` begins in the region, if it is
    /// within what the key gives for `access`.
    pub(crate) fn find(
        &self,
        group: &Arc<Group>,
        addr: u64,
        len: u64,
        access: u64,
    ) -> Option<usize> {
        let into = addr.checked_sub(self.addr)?;
        let inside = into <= self.len && len <= self.len - into;
        // CAST: Inside a region, whose length is a `usize`.
        (inside && self.access & access == access && Arc::ptr_eq(&self.group, group))
            .then_some(self.offset + into as usize)
    }
}

type Cells = KVVec<Slot<Window>>;

/// Which cells are nobody's.
struct Free {
    /// Cells from here on were never anybody's.
    next: u32,
    /// Those below that have been given back. It has room for all of them.
    back: KVVec<u32>,
}

/// What a new chunk takes.
struct Fresh {
    /// Which chunk it is.
    number: usize,
    cells: Cells,
    /// Room for those of all chunks up to it to come back.
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

/// The table.
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
    /// An empty one, with a new secret.
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
                scramble: Scramble::new(sys::random()),
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

    /// Takes a cell for a key slot.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: there are no more. `ENOMEM`.
    pub(crate) fn take(&self) -> Result<u32> {
        // What is left of it is dropped after the lock.
        let mut fresh: Option<Fresh> = None;
        loop {
            let number = {
                let mut free = self.free.lock();
                if let Some(index) = free.back.pop() {
                    return Ok(index);
                }
                let index = free.next;
                // CAST: A `u32` fits.
                let number = index as usize / CHUNK;
                let chunk = self.chunks.get(number).ok_or(ENOSPC)?;
                if let Some(fresh) = fresh.as_mut().filter(|fresh| fresh.number == number) {
                    if chunk.as_ref().is_none() {
                        // None is in it now.
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

    /// Gives a cell back, which has no key. One that has had all its keys stays out.
    pub(crate) fn give_back(&self, index: u32) {
        if self.is_worn(index) {
            return;
        }
        // There is room.
        let _ = self.free.lock().back.push_within_capacity(index);
    }

    /// Whether a cell has had all its keys.
    pub(crate) fn is_worn(&self, index: u32) -> bool {
        self.cell(index).is_none_or(Slot::is_exhausted)
    }

    /// Gives the cell, which has none, a key. Returns its value. Allocates nothing.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: the cell has had all its keys.
    pub(crate) fn publish(&self, index: u32, mut window: Window) -> Result<u64> {
        let cell = self.cell(index).ok_or(EINVAL)?;
        loop {
            let generation = cell.publish(window).map_err(|_| ENOSPC)?;
            let value = self.scramble.scramble(Handle { index, generation }.pack());
            if value != KFI_KEY_NOTAVAIL {
                return Ok(value);
            }
            // One in 2^64, which means "none".
            window = self.retire(value).ok_or(EIO)?;
        }
    }

    /// Ends a key, and waits until nobody is inside. What it gave, if it was one.
    pub(crate) fn retire(&self, value: u64) -> Option<Window> {
        let handle = Handle::unpack(self.scramble.plain(value));
        let cell = self.cell(handle.index)?;
        self.exits
            .wait(|sleep| cell.retire(handle.generation, sleep))
    }

    /// Shows what a key gives to `f`; until that returns the key does not end. Any context.
    pub(crate) fn with<R>(&self, value: u64, f: impl FnOnce(&Window) -> R) -> Option<R> {
        let handle = Handle::unpack(self.scramble.plain(value));
        let result = self.cell(handle.index)?.with(handle.generation, f);
        self.exits.wake();
        result
    }
}
