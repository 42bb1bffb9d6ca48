// SPDX-License-Identifier: GPL-2.0
//! Memory mapped for a device's local access, by the protection domain's local key.

use core::ptr;
use kernel::{
    alloc::flags::__GFP_NOWARN,
    bindings,
    ffi::c_ulong,
    prelude::*,
    sync::Arc, //
};

use super::{
    device::{
        Device,
        Live, //
    },
    raw, //
};
use kfabric::{
    base::fault,
    memory::{
        LentPiece,
        Memory,
        Segment, //
    },
};

/// A mapped piece of memory.
struct Mapped {
    addr: u64,
    len: usize,
}

/// Mapped pieces of one [`Memory`].
///
/// # Invariants
///
/// The pieces are mapped on `device`, for the device to write if `writable`. `mem` keeps their
/// pages.
pub(crate) struct DmaMap {
    device: Arc<Device>,
    pieces: KVec<Mapped>,
    writable: bool,
    mem: Arc<Memory>,
}

impl DmaMap {
    /// Maps all of `mem`, which has few contiguous pieces.
    ///
    /// # Errors
    ///
    /// - `EIO` if the device cannot map a piece as one.
    pub(crate) fn new(_live: &Live<'_>, device: &Arc<Device>, mem: &Arc<Memory>) -> Result<Self> {
        // INVARIANT: The list is empty; the loop adds pieces after it has mapped them.
        let mut map = Self {
            device: device.clone(),
            pieces: KVec::with_capacity(mem.segment_count(0, mem.len()), GFP_KERNEL_ACCOUNT)?,
            writable: mem.writable(),
            mem: mem.clone(),
        };
        // SAFETY: The device is registered, as `_live` proves.
        let max = unsafe { raw::kverbs_dma_max_seg_size(device.as_ptr()) } as usize;
        for segment in mem.segments(0, mem.len()) {
            if segment.len > max {
                return Err(EIO);
            }
            map.pieces.reserve(1, GFP_KERNEL_ACCOUNT)?;
            fault::device()?;
            // SAFETY: The segment's pages are contiguous and `mem` keeps them; the device is
            // registered, as `_live` proves.
            let addr = unsafe {
                raw::kverbs_dma_map_page(
                    device.as_ptr(),
                    segment.page,
                    segment.offset as c_ulong,
                    segment.len,
                    map.writable,
                )
            };
            // SAFETY: The device is registered, as `_live` proves.
            if unsafe { raw::kverbs_dma_mapping_error(device.as_ptr(), addr) } != 0 {
                return Err(EIO);
            }
            let len = segment.len;
            map.pieces
                .push_within_capacity(Mapped { addr, len })
                .map_err(|_| ENOMEM)?;
        }
        Ok(map)
    }

    /// Returns device addresses and lengths of the pieces, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.pieces.iter().map(|piece| (piece.addr, piece.len))
    }
}

impl Drop for DmaMap {
    fn drop(&mut self) {
        // Keep the pages until they are unmapped.
        let _pages = &self.mem;
        for piece in &self.pieces {
            // SAFETY: By the type invariant the piece is mapped so; each object of the provider
            // ends before the device is unregistered.
            unsafe {
                raw::kverbs_dma_unmap_page(
                    self.device.as_ptr(),
                    piece.addr,
                    piece.len,
                    self.writable,
                )
            };
        }
    }
}

/// Maps borrowed pages of an operation, for the device to write if it `writes`.
///
/// The caller has a queue pair on the device, so the device is registered. No piece is longer than
/// [`max_lent`].
///
/// Context: any.
///
/// # Errors
///
/// - `EAGAIN` if the device has no mapping resources for now. No page is mapped then.
pub(crate) fn map_lent(device: &Device, pieces: &mut [LentPiece], writes: bool) -> Result {
    if !pieces.is_empty() {
        fault::device().map_err(|_| EAGAIN)?;
    }
    for i in 0..pieces.len() {
        let Some(piece) = pieces.get_mut(i) else {
            break;
        };
        // SAFETY: The consumer guarantees contiguous pages that stay. The device is registered,
        // because the caller has a queue pair.
        let addr = unsafe {
            raw::kverbs_dma_map_page(
                device.as_ptr(),
                piece.page,
                piece.offset as c_ulong,
                piece.len as usize,
                writes,
            )
        };
        // SAFETY: The device is registered, because the caller has a queue pair.
        if unsafe { raw::kverbs_dma_mapping_error(device.as_ptr(), addr) } != 0 {
            unmap_lent(device, pieces.get_mut(..i).unwrap_or_default(), writes);
            return Err(EAGAIN);
        }
        piece.mapped = addr;
    }
    Ok(())
}

/// Returns the maximum bytes of one borrowed piece.
pub(crate) fn max_lent(_live: &Live<'_>, device: &Device) -> u32 {
    // SAFETY: The device is registered, as `_live` proves.
    unsafe { raw::kverbs_dma_max_page(device.as_ptr()) }
}

/// Unmaps the pages of [`map_lent`], while the queue pair exists or directly after its destruction.
pub(crate) fn unmap_lent(device: &Device, pieces: &mut [LentPiece], writes: bool) {
    for piece in pieces {
        // SAFETY: `map_lent` has mapped the piece with these parameters.
        unsafe {
            raw::kverbs_dma_unmap_page(device.as_ptr(), piece.mapped, piece.len as usize, writes)
        };
    }
}

/// Memory of the provider that a device reads and writes: payload of injected operations, and
/// results of atomics that are not read.
///
/// # Invariants
///
/// `buf` is mapped at `addr` on `device`, for the device to read and write.
pub(crate) struct DmaBuf {
    device: Arc<Device>,
    buf: KVec<u8>,
    addr: u64,
}

impl DmaBuf {
    /// Allocates and maps `len` zeroed bytes, at least one.
    pub(crate) fn new(_live: &Live<'_>, device: &Arc<Device>, len: usize) -> Result<Self> {
        // A large contiguous allocation may fail, and the failure is not logged.
        let mut buf = KVec::from_elem(0u8, len, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
        fault::device()?;
        // SAFETY: The buffer is `kmalloc()`ed and stays in place while mapped; the device is
        // registered, as `_live` proves.
        let addr = unsafe {
            raw::kverbs_dma_map_single(device.as_ptr(), buf.as_mut_ptr().cast(), len, true)
        };
        // SAFETY: The device is registered, as `_live` proves.
        if unsafe { raw::kverbs_dma_mapping_error(device.as_ptr(), addr) } != 0 {
            return Err(EIO);
        }
        // INVARIANT: The buffer was mapped above.
        Ok(Self {
            device: device.clone(),
            buf,
            addr,
        })
    }

    /// Returns the device address of the byte at `offset`.
    pub(crate) fn addr_of(&self, offset: usize) -> u64 {
        self.addr + offset as u64
    }

    /// Stores `data` at `offset`. The caller has checked that `data` fits; excess bytes are cut
    /// off.
    ///
    /// Context: any.
    pub(crate) fn store(&mut self, offset: usize, data: &[u8]) {
        let len = data.len().min(self.buf.len().saturating_sub(offset));
        // SAFETY: The range is inside the buffer. No reference is created, because the device may
        // write elsewhere in the buffer at the same time.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.buf.as_mut_ptr().add(offset), len) };
        let addr = self.addr_of(offset);
        // SAFETY: By the type invariant the range is mapped so.
        unsafe { raw::kverbs_dma_sync_for_device(self.device.as_ptr(), addr, len, true) };
    }

    /// Copies the bytes from `offset` on, which the device has written, to `out`. Bytes past the
    /// buffer's end are not copied.
    ///
    /// Context: any.
    pub(crate) fn load(&self, offset: usize, out: &mut [u8]) {
        let len = out.len().min(self.buf.len().saturating_sub(offset));
        let addr = self.addr_of(offset);
        // SAFETY: By the type invariant the range is mapped so.
        unsafe { raw::kverbs_dma_sync_for_cpu(self.device.as_ptr(), addr, len, true) };
        // SAFETY: The range is inside the buffer. No reference is created, because the device may
        // write elsewhere in the buffer at the same time.
        unsafe { ptr::copy_nonoverlapping(self.buf.as_ptr().add(offset), out.as_mut_ptr(), len) };
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the buffer is mapped so.
        unsafe {
            raw::kverbs_dma_unmap_single(self.device.as_ptr(), self.addr, self.buf.len(), true)
        };
    }
}

/// A scatter list. It maps the pieces of a [`Memory`], for one fast registration at a time.
///
/// # Invariants
///
/// `list` is an initialised table. Its first `mapped` entries are mapped on `device` in the
/// direction of `writable`, and `mem` keeps their pages. An attach-on-assign region has its pages
/// as long as the key exists.
pub(crate) struct SgList {
    device: Arc<Device>,
    list: KVVec<bindings::scatterlist>,
    mapped: usize,
    writable: bool,
    mem: Option<Arc<Memory>>,
}

// SAFETY: The list owns its memory, and `mem` keeps the pages in its entries.
unsafe impl Send for SgList {}
// SAFETY: A shared reference allows only reads.
unsafe impl Sync for SgList {}

impl SgList {
    /// Allocates a list for up to `max` pieces.
    pub(crate) fn new(device: &Arc<Device>, max: usize) -> Result<Self> {
        let mut list = KVVec::with_capacity(max, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..max {
            list.push(bindings::scatterlist::default(), GFP_KERNEL_ACCOUNT)?;
        }
        // SAFETY: `list` has `max` entries.
        unsafe { raw::kverbs_sg_init(list.as_mut_ptr(), max as c_uint) };
        // INVARIANT: The table was initialised above, and no entry is mapped.
        Ok(Self {
            device: device.clone(),
            list,
            mapped: 0,
            writable: false,
            mem: None,
        })
    }

    /// Fills the list with [offset, offset + len) of `mem` and maps the entries.
    ///
    /// Returns the number of entries that the device sees.
    ///
    /// # Errors
    ///
    /// - `EMSGSIZE` if the range has more pieces than the list has entries.
    /// - `EIO` if the mapping failed.
    pub(super) fn map(
        &mut self,
        mem: &Arc<Memory>,
        offset: usize,
        len: usize,
        writable: bool,
    ) -> Result<usize> {
        self.unmap();
        let mut n = 0;
        let mut segments = mem.segments(offset, len);
        for (entry, segment) in self.list.iter_mut().zip(&mut segments) {
            let Segment {
                page,
                offset: at,
                len,
            } = segment;
            let len = c_uint::try_from(len).map_err(|_| EMSGSIZE)?;
            // SAFETY: The entry is initialised; the segment's pages are contiguous.
            unsafe { raw::kverbs_sg_set(entry, page, len, at as c_uint) };
            n += 1;
        }
        if segments.next().is_some() {
            return Err(EMSGSIZE);
        }
        if n == 0 {
            return Err(EINVAL);
        }
        // End the table after the entries in use, as long as they are in use.
        // SAFETY: The entry is initialised.
        unsafe { raw::kverbs_sg_end(&mut self.list[n - 1]) };
        let nents = match fault::device() {
            // SAFETY: The first `n` entries have pages that `mem` keeps; the device is registered,
            // because the caller has a `Live`.
            Ok(()) => unsafe {
                raw::kverbs_dma_map_sg(
                    self.device.as_ptr(),
                    self.list.as_mut_ptr(),
                    n as c_int,
                    writable,
                )
            },
            Err(_) => 0,
        };
        if nents <= 0 {
            self.unend(n);
            return Err(EIO);
        }
        // INVARIANT: The first `n` entries are mapped, and `mem` keeps their pages.
        self.mapped = n;
        self.writable = writable;
        self.mem = Some(mem.clone());
        Ok(nents as usize)
    }

    /// Returns the device's address of the first mapped byte.
    pub(super) fn addr(&self) -> Option<u64> {
        let mapped = self.list.get(..self.mapped)?;
        mapped.first().map(|entry| entry.dma_address)
    }

    /// Returns the entries, for the RDMA core.
    pub(super) fn as_mut_ptr(&mut self) -> *mut bindings::scatterlist {
        self.list.as_mut_ptr()
    }

    fn unend(&mut self, n: usize) {
        if n < self.list.len() {
            // SAFETY: The entry is initialised.
            unsafe { raw::kverbs_sg_unend(&mut self.list[n - 1]) };
        }
    }

    /// Unmaps the mapped entries.
    pub(crate) fn unmap(&mut self) {
        let n = core::mem::replace(&mut self.mapped, 0);
        if n != 0 {
            // SAFETY: By the type invariant the first `n` entries are mapped so.
            unsafe {
                raw::kverbs_dma_unmap_sg(
                    self.device.as_ptr(),
                    self.list.as_mut_ptr(),
                    n as c_int,
                    self.writable,
                )
            };
            self.unend(n);
        }
        self.mem = None;
    }
}

impl Drop for SgList {
    fn drop(&mut self) {
        self.unmap();
    }
}
