// SPDX-License-Identifier: GPL-2.0
//! A file's handles.
//!
//! Looking a handle up takes no lock and touches nothing but the handle's own cell
//! ([`crate::pure::slot`]); only opening and closing take the table's lock. Cells come in chunks
//! and stay until the file goes, so a lookup needs no protection against their end.

use core::sync::atomic::{
    AtomicPtr,
    Ordering, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use crate::{
    cntr::Cntr,
    cq::Cq,
    ep::Endpoint,
    eq::Eq,
    fabric::{
        Domain,
        Fabric, //
    },
    pep::{
        PassiveEp,
        Request, //
    },
    pure::slot::{
        Handle,
        Slot, //
    },
    region::{
        Key,
        Region, //
    },
    sys,
};

/// Anything a handle can name.
#[derive(Clone)]
pub(super) enum Object {
    Fabric(Arc<Fabric>),
    Domain(Arc<Domain>),
    Eq(Arc<Eq>),
    Cq(Arc<Cq>),
    Cntr(Arc<Cntr>),
    Pep(Arc<PassiveEp>),
    Ep(Arc<Endpoint>),
    Region(Arc<Region>),
    Key(Arc<Key>),
    Request(Arc<Request>),
}

/// An object and what it was opened on.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) object: Object,
    pub(super) parent: u64,
}

/// Cells of a chunk.
const CHUNK: usize = 256;
/// Chunks of a table: a million handles in one file.
const CHUNKS: usize = 4096;

type Chunk = [Slot<Entry>; CHUNK];

/// Cells that may be published into. Guarded by the table's lock.
struct Free {
    list: KVVec<u32>,
    chunks: usize,
}

/// The handles of one file.
///
/// # Invariants
///
/// The first `free.chunks` of `chunks` point to chunks made by `KBox::into_raw`, which stay until
/// drop; the rest are null.
#[pin_data(PinnedDrop)]
pub(super) struct Table {
    chunks: KVBox<[AtomicPtr<Chunk>; CHUNKS]>,
    #[pin]
    free: Mutex<Free>,
}

/// How to wait for readers of a cell, who stay for some instructions: spin, and if one was
/// preempted there, sleep, as it may need this very CPU to go on.
fn relax() -> impl FnMut() {
    const SPINS: u32 = 100;
    let mut spins = 0;
    move || {
        if spins < SPINS {
            spins += 1;
            sys::cpu_relax();
        } else {
            fsleep(Delta::from_micros(100));
        }
    }
}

/// A cell that is nobody else's. Dropped, it is free again.
pub(super) struct Reserved<'a> {
    table: &'a Table,
    index: u32,
}

impl Reserved<'_> {
    /// Gives an object this cell's handle.
    ///
    /// # Errors
    ///
    /// Only where the cell has used up its generations, some thousand millions: then it is left
    /// out from now on, and [`Table::reserve`]'s.
    #[inline(never)]
    pub(super) fn insert(self, entry: Entry) -> Result<u64> {
        let this = core::mem::ManuallyDrop::new(self);
        let (table, index) = (this.table, this.index);
        match table.cell(index).ok_or(EIO)?.publish(entry) {
            Ok(generation) => Ok(Handle { index, generation }.pack()),
            Err(back) => table.insert(back),
        }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.table.free_again(self.index);
    }
}

impl Table {
    pub(super) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            chunks: KVBox::init(
                pin_init::init_array_from_fn(|_| AtomicPtr::new(core::ptr::null_mut())),
                GFP_KERNEL_ACCOUNT,
            )?,
            free <- new_mutex!(Free { list: KVVec::new(), chunks: 0 }, "kfabric_handles"),
        })
    }

    #[inline(never)]
    fn cell(&self, index: u32) -> Option<&Slot<Entry>> {
        // CAST: A `u32` fits.
        let index = index as usize;
        let chunk = self.chunks.get(index / CHUNK)?.load(Ordering::Acquire);
        // SAFETY: By the type invariant it is null or a chunk that lives as long as `self`.
        let chunk = unsafe { chunk.as_ref() }?;
        chunk.get(index % CHUNK)
    }

    fn grow(&self, free: &mut Free) -> Result {
        if free.chunks >= CHUNKS {
            return Err(ENOSPC);
        }
        // Room for every cell there is, so that giving one back never allocates. (The list is
        // empty when the table grows.)
        let base = free.chunks * CHUNK;
        free.list.reserve(base + CHUNK, GFP_KERNEL_ACCOUNT)?;
        // Handles of one file are not to name anything in another. Half of the generations are left.
        let mut first = [0u8; 4];
        sys::auth::random(&mut first);
        let first = (u32::from_ne_bytes(first) >> 1) + 1;
        let chunk = KBox::<Chunk>::init(
            pin_init::init_array_from_fn(|_| Slot::starting_at(first)),
            GFP_KERNEL_ACCOUNT,
        )?;
        // INVARIANT: Made by `into_raw`; the lock makes us the only one to grow.
        self.chunks[free.chunks].store(KBox::into_raw(chunk), Ordering::Release);
        free.chunks += 1;
        for i in (base..base + CHUNK).rev() {
            // CAST: A million fits. There is room: reserved above.
            let _ = free.list.push_within_capacity(i as u32);
        }
        Ok(())
    }

    /// Takes a cell that [`Reserved::insert`] then puts an object into.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: a million are in use. `ENOMEM`.
    pub(super) fn reserve(&self) -> Result<Reserved<'_>> {
        let mut free = self.free.lock();
        loop {
            match free.list.pop() {
                Some(index) => return Ok(Reserved { table: self, index }),
                None => self.grow(&mut free)?,
            }
        }
    }

    /// Gives an object a handle.
    ///
    /// # Errors
    ///
    /// As [`Table::reserve`].
    pub(super) fn insert(&self, entry: Entry) -> Result<u64> {
        self.reserve()?.insert(entry)
    }

    /// The object of a handle. No lock.
    ///
    /// # Errors
    ///
    /// `ENOENT`.
    #[inline(never)]
    pub(super) fn get(&self, handle: u64) -> Result<Object> {
        let handle = Handle::unpack(handle);
        self.cell(handle.index)
            .and_then(|cell| cell.with(handle.generation, |entry| entry.object.clone()))
            .ok_or(ENOENT)
    }

    /// Takes a handle out; exactly one caller gets the object. May sleep.
    pub(super) fn remove(&self, handle: u64) -> Result<Entry> {
        let Handle { index, generation } = Handle::unpack(handle);
        let entry = self
            .cell(index)
            .and_then(|cell| cell.retire(generation, relax()))
            .ok_or(ENOENT)?;
        self.free_again(index);
        Ok(entry)
    }

    #[inline(never)]
    fn free_again(&self, index: u32) {
        // `grow` made the room.
        let _ = self.free.lock().list.push_within_capacity(index);
    }

    /// Cells there are, used or not.
    #[inline(never)]
    pub(super) fn cells(&self) -> u32 {
        let used = |chunk: &&AtomicPtr<Chunk>| !chunk.load(Ordering::Acquire).is_null();
        // CAST: A million fits.
        (self.chunks.iter().take_while(used).count() * CHUNK) as u32
    }

    /// What cell `index` holds, with its handle.
    #[inline(never)]
    pub(super) fn peek(&self, index: u32) -> Option<(u64, Entry)> {
        self.cell(index)?
            .with_current(|generation, entry| (Handle { index, generation }.pack(), entry.clone()))
    }
}

#[pinned_drop]
impl PinnedDrop for Table {
    fn drop(self: Pin<&mut Self>) {
        for chunk in self.chunks.iter() {
            let chunk = chunk.load(Ordering::Acquire);
            if !chunk.is_null() {
                // SAFETY: By the type invariant it was made by `into_raw`, and nobody looks at it
                // any more.
                drop(unsafe { KBox::from_raw(chunk) });
            }
        }
    }
}
