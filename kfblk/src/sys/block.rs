// SPDX-License-Identifier: GPL-2.0
//! Thin layer to `block.c`: a disk's block device, and the ends of its requests.

use core::ptr::NonNull;
use kernel::{
    bindings,
    error::to_result,
    ffi::{
        c_uint,
        c_void, //
    },
    prelude::*, //
};
use kfabric::memory::LentPiece;

use super::raw::*;
use super::Shape;

/// `enum kfblk_verdict`: how a request ended.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Verdict {
    /// The request has succeeded.
    Done = KFBLK_DONE,
    /// The request's connection has ended; the request is retried.
    Again = KFBLK_AGAIN,
    /// The request has caused the end of its connection; it is retried a limited number of times.
    Blamed = KFBLK_BLAMED,
    /// The request has failed.
    Failed = KFBLK_FAILED,
    /// As [`Verdict::Again`], and the connection has completed other requests.
    Suspect = KFBLK_SUSPECT,
    /// The request's connection was replaced; the request is retried, also if it must fail fast.
    Renewed = KFBLK_RENEWED,
}

/// A disk's block device.
///
/// # Invariants
///
/// The pointer comes from `kfblk_disk_new()`, and `kfblk_disk_free()` was not called.
#[derive(Clone, Copy)]
pub(crate) struct Block(NonNull<kfblk_disk>);

// SAFETY: The C object can be used by any thread.
unsafe impl Send for Block {}
// SAFETY: The C object can be used by several threads at once.
unsafe impl Sync for Block {}

impl Block {
    /// Allocates a block device.
    ///
    /// # Safety
    ///
    /// `owner` is valid as the owner of the callbacks of `disk`, until [`Block::free`].
    pub(crate) unsafe fn new(owner: *mut c_void, shape: &Shape) -> Result<Self> {
        // SAFETY: The shape is borrowed for the call.
        let disk = unsafe { kfblk_disk_new(owner, shape) };
        let disk = kernel::error::from_err_ptr(disk)?;
        // INVARIANT: The pointer comes from `kfblk_disk_new()`.
        Ok(Self(NonNull::new(disk).ok_or(ENOMEM)?))
    }

    /// Adds the block device to the system. Its first requests come before the return.
    pub(crate) fn add(self) -> Result {
        // SAFETY: By the type invariant.
        to_result(unsafe { kfblk_disk_add(self.0.as_ptr()) })
    }

    /// Removes the block device from the system. No request comes after the return.
    pub(crate) fn del(self) {
        // SAFETY: By the type invariant. The block device was added.
        unsafe { kfblk_disk_del(self.0.as_ptr()) }
    }

    /// Frees the block device.
    ///
    /// # Safety
    ///
    /// No copy of `self` is used any more, and no request comes.
    pub(crate) unsafe fn free(self) {
        // SAFETY: By the type invariant and the caller's contract.
        unsafe { kfblk_disk_free(self.0.as_ptr()) }
    }

    /// Holds requests back: no task is in the callback after the return. May sleep.
    pub(crate) fn quiesce(self) {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_quiesce(self.0.as_ptr()) }
    }

    /// Resumes requests after [`Block::quiesce`].
    pub(crate) fn resume(self) {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_resume(self.0.as_ptr()) }
    }

    /// Retries parked requests. May sleep.
    pub(crate) fn kick(self) {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_kick(self.0.as_ptr()) }
    }

    /// Fails requests without a connection, after `ms` milliseconds.
    pub(crate) fn fail_in(self, ms: u64) {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_fail_in(self.0.as_ptr(), ms) }
    }

    /// Undoes [`Block::fail_in`]. May sleep.
    pub(crate) fn fail_no_more(self) {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_fail_no_more(self.0.as_ptr()) }
    }

    /// Counts commits of a queue that have succeeded. Context: any.
    pub(crate) fn add_commits(self, queue: u32, count: u32) {
        // SAFETY: By the type invariant: the round of the commits keeps the device, because its
        // flushes are in flight, or the task that removes the device waits for it.
        unsafe { kfblk_disk_add_commits(self.0.as_ptr(), queue, count) }
    }

    /// Returns the capacity, in bytes.
    pub(crate) fn capacity(self) -> u64 {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_capacity(self.0.as_ptr()) }
    }

    /// Queues the disk's work in `ms` milliseconds.
    pub(crate) fn look_in(self, ms: u32) {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_look_in(self.0.as_ptr(), ms) }
    }

    /// Sets the capacity. Context: process.
    pub(crate) fn resize(self, capacity: u64) {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_resize(self.0.as_ptr(), capacity) }
    }

    /// Ends a request with the target's errno. Context: any.
    ///
    /// # Safety
    ///
    /// See [`Block::end`].
    pub(crate) unsafe fn fail(self, queue: u32, tag: u32, err: u32) {
        // CAST: `EIO` is small. An invalid errno is treated as `EIO`.
        let err = i32::try_from(err).unwrap_or(bindings::EIO as i32);
        // SAFETY: A request in flight keeps the device. The caller's contract covers the rest.
        unsafe { kfblk_rq_fail(self.0.as_ptr(), queue, tag, -err) }
    }

    /// Returns a request's memory. The result is empty if there are no bytes or too many pieces.
    ///
    /// # Safety
    ///
    /// The request is in flight with this queue and tag. The caller uses the pieces only before the
    /// request ends, and before the next call for it.
    pub(crate) unsafe fn pieces<'a>(self, queue: u32, tag: u32) -> &'a [LentPiece] {
        let mut count = 0;
        // SAFETY: A request in flight keeps the device. The caller's contract covers the rest.
        let pieces = unsafe { kfblk_rq_pieces(self.0.as_ptr(), queue, tag, &mut count) };
        // SAFETY: C returns `count` pieces, valid by the caller's contract. CAST: A `u32` fits.
        unsafe { core::slice::from_raw_parts(pieces, count as usize) }
    }

    /// Copies bytes between a request and `pieces`, up to the shorter length. Context: any.
    ///
    /// # Safety
    ///
    /// The request is in flight with this queue and tag. No other user accesses the memory of
    /// `pieces`.
    pub(crate) unsafe fn copy(self, queue: u32, tag: u32, pieces: &[LentPiece], to_request: bool) {
        // SAFETY: A request in flight keeps the device; else by the caller's contract. CAST: Few
        // pieces.
        unsafe {
            kfblk_rq_copy(
                self.0.as_ptr(),
                queue,
                tag,
                pieces.as_ptr(),
                pieces.len() as u32,
                to_request,
            )
        }
    }

    /// Writes the block device's name in `/dev` to `name`.
    pub(crate) fn name(self, name: &mut [u8; 32]) {
        // SAFETY: By the type invariant. The length is that of the buffer.
        unsafe { kfblk_disk_name(self.0.as_ptr(), name.as_mut_ptr(), name.len() as c_uint) }
    }

    /// Ends a request. Context: any.
    ///
    /// # Safety
    ///
    /// The request was accepted with this queue and tag, and has not ended.
    pub(crate) unsafe fn end(self, queue: u32, tag: u32, verdict: Verdict) {
        // SAFETY: A request in flight keeps the device. The caller's contract covers the rest.
        unsafe { kfblk_rq_end(self.0.as_ptr(), queue, tag, verdict as u32) }
    }
}
