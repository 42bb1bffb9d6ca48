// SPDX-License-Identifier: GPL-2.0
//! The handles of a device file.
//!
//! A lookup takes no lock and accesses only the handle's own cell ([`crate::pure::slot`]); only
//! insertion and removal take the table's lock. Cells are allocated in chunks, which stay until the
//! table is dropped, so a lookup needs no protection against their end.

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
    ep::Endpoint,
    key::{
        Key,
        Region, //
    },
    objects::{
        cntr::Cntr,
        conn_request::Request,
        cq::Cq,
        domain::Domain,
        eq::Eq,
        fabric::Fabric,
        pep::PassiveEp, //
    },
    pure::slot::{
        Handle,
        Slot, //
    },
    sys, //
};

/// An object that a handle can name.
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

impl Object {
    /// Returns the key slot that the object is, or a region's own key.
    #[inline(never)]
    pub(super) fn key(&self) -> Option<&Key> {
        match self {
            Object::Key(key) => Some(key),
            Object::Region(region) => region.own().map(|key| &**key),
            _ => None,
        }
    }
}

/// An object and its parent's handle.
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

/// Free cells. Guarded by the table's lock.
struct Free {
    list: KVVec<u32>,
    chunks: usize,
}

/// The handles of one file.
///
/// # Invariants
/// The first `free.chunks` of `chunks` point to chunks made by `KBox::into_raw`, which stay until
/// drop; the others are null.
#[pin_data(PinnedDrop)]
pub(super) struct Handles {
    chunks: KVBox<[AtomicPtr<Chunk>; CHUNKS]>,
    #[pin]
    free: Mutex<Free>,
}

/// Returns a function that waits for the readers of a cell, which stay for some instructions. It
/// spins first, and then sleeps, because a preempted reader may need this CPU.
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

/// A cell reserved by one caller. The drop frees the cell.
pub(super) struct Reserved<'a> {
    handles: &'a Handles,
    index: u32,
}

impl Reserved<'_> {
    /// Publishes an object in the cell; returns its handle.
    ///
    /// # Errors
    ///
    /// The error of [`Handles::reserve`], if the cell has used up its generations (more than 10^9).
    /// The cell is not used again.
    #[inline(never)]
    pub(super) fn insert(self, entry: Entry) -> Result<u64> {
        let this = core::mem::ManuallyDrop::new(self);
        let (handles, index) = (this.handles, this.index);
        match handles.cell(index).ok_or(EIO)?.publish(entry) {
            Ok(generation) => Ok(Handle { index, generation }.pack()),
            Err(back) => handles.insert(back),
        }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.handles.free_again(self.index);
    }
}

impl Handles {
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
        // SAFETY: By the type invariant the pointer is null or a chunk that lives as long as
        // `self`.
        let chunk = unsafe { chunk.as_ref() }?;
        chunk.get(index % CHUNK)
    }

    fn grow(&self, free: &mut Free) -> Result {
        if free.chunks >= CHUNKS {
            return Err(ENOSPC);
        }
        // Capacity for every cell, so that freeing a cell never allocates. (The list is empty when
        // the table grows.)
        let base = free.chunks * CHUNK;
        free.list.reserve(base + CHUNK, GFP_KERNEL_ACCOUNT)?;
        // Random first generations, so that a handle of one file names nothing in another. At least
        // half of the generations remain.
        let mut first = [0u8; 4];
        sys::auth::random(&mut first);
        let first = (u32::from_ne_bytes(first) >> 1) + 1;
        let chunk = KBox::<Chunk>::init(
            pin_init::init_array_from_fn(|_| Slot::starting_at(first)),
            GFP_KERNEL_ACCOUNT,
        )?;
        // INVARIANT: `into_raw` made the pointer; the lock excludes other growing tasks.
        self.chunks[free.chunks].store(KBox::into_raw(chunk), Ordering::Release);
        free.chunks += 1;
        for i in (base..base + CHUNK).rev() {
            // CAST: A million fits. The push cannot fail: the capacity was reserved above.
            let _ = free.list.push_within_capacity(i as u32);
        }
        Ok(())
    }

    /// Reserves a cell, into which [`Reserved::insert`] publishes an object.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if a million cells are in use.
    /// - `ENOMEM` if a chunk cannot be allocated.
    pub(super) fn reserve(&self) -> Result<Reserved<'_>> {
        let mut free = self.free.lock();
        loop {
            match free.list.pop() {
                Some(index) => {
                    return Ok(Reserved {
                        handles: self,
                        index,
                    })
                }
                None => self.grow(&mut free)?,
            }
        }
    }

    /// Publishes an object; returns its handle.
    ///
    /// # Errors
    ///
    /// As [`Handles::reserve`].
    pub(super) fn insert(&self, entry: Entry) -> Result<u64> {
        self.reserve()?.insert(entry)
    }

    /// Returns the object of a handle. Takes no lock.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if there is no such handle.
    #[inline(never)]
    pub(super) fn get(&self, handle: u64) -> Result<Object> {
        let handle = Handle::unpack(handle);
        self.cell(handle.index)
            .and_then(|cell| cell.with(handle.generation, |entry| entry.object.clone()))
            .ok_or(ENOENT)
    }

    /// Removes a handle; exactly one caller gets the object. May sleep.
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
        // Cannot fail: `grow` reserved the capacity.
        let _ = self.free.lock().list.push_within_capacity(index);
    }

    /// Number of cells, used or not.
    #[inline(never)]
    pub(super) fn cells(&self) -> u32 {
        let used = |chunk: &&AtomicPtr<Chunk>| !chunk.load(Ordering::Acquire).is_null();
        // CAST: A million fits.
        (self.chunks.iter().take_while(used).count() * CHUNK) as u32
    }

    /// Returns the object and the handle in cell `index`.
    #[inline(never)]
    pub(super) fn peek(&self, index: u32) -> Option<(u64, Entry)> {
        self.cell(index)?
            .with_current(|generation, entry| (Handle { index, generation }.pack(), entry.clone()))
    }
}

macro_rules! getters {
    ($($name:ident, $variant:ident, $ty:ty;)*) => {
        /// The objects of handles, by type; `ENOENT` if the handle names no object of the type.
        impl Handles {
            $(
                pub(super) fn $name(&self, handle: u64) -> Result<Arc<$ty>> {
                    match self.get(handle)? {
                        Object::$variant(object) => Ok(object),
                        _ => Err(ENOENT),
                    }
                }
            )*
        }
    };
}

getters! {
    fabric, Fabric, Fabric;
    domain, Domain, Domain;
    eq, Eq, Eq;
    cq, Cq, Cq;
    cntr, Cntr, Cntr;
    pep, Pep, PassiveEp;
    ep, Ep, Endpoint;
    region, Region, Region;
    key, Key, Key;
    request, Request, Request;
}

impl Handles {
    /// Returns the endpoint that an object is to be bound to; `None` for handle 0.
    pub(super) fn optional_ep(&self, handle: u64) -> Result<Option<Arc<Endpoint>>> {
        match handle {
            0 => Ok(None),
            handle => self.ep(handle).map(Some),
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Handles {
    fn drop(self: Pin<&mut Self>) {
        for chunk in self.chunks.iter() {
            let chunk = chunk.load(Ordering::Acquire);
            if !chunk.is_null() {
                // SAFETY: By the type invariant `into_raw` made the pointer, and the dropped table
                // has no readers.
                drop(unsafe { KBox::from_raw(chunk) });
            }
        }
    }
}
