// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registration and operations on memory that is given by address.

#[cfg(test)]
mod tests;

use std::ptr::NonNull;

use kfabric_uapi::KFI_INJECT_MAX;

use super::Mapping;
use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::flags::Access;
use crate::op::Local;
use crate::raw::{Piece, RawOp};
use crate::region::{Region, RegionAttr};
use crate::{Domain, Endpoint, Memory};

impl Domain {
    /// Registers `len` bytes at `base` that the program mapped itself, for example by `malloc`.
    /// Rings copy such memory without a lock.
    ///
    /// # Safety
    ///
    /// - The bytes stay mapped, with the rights that `attr`'s access needs, until
    ///   [`Region::retire`] has returned `Ok`, or until the region is closed or dropped and every
    ///   operation that uses it has completed.
    /// - While an operation, a peer or a function of [`Region`] may write bytes of the region, the
    ///   program uses no reference to these bytes and does not access them in another way.
    /// - While an operation or a function of [`Region`] may read bytes of the region, the program does
    ///   not write them.
    ///
    /// # Errors
    ///
    /// - [`Error::Argument`] if `base` is null.
    /// - The errors of [`Domain::register_with`].
    pub unsafe fn register_raw(
        &self,
        base: *mut u8,
        len: usize,
        attr: &RegionAttr,
    ) -> Result<Region> {
        let base = NonNull::new(base).ok_or_else(|| Error::Argument {
            what: "memory to register",
            why: "its address is null".to_owned(),
        })?;
        let written = Access::RECV | Access::READ | Access::REMOTE_WRITE;
        let writable = attr.access().intersects(written);
        // Exposed, because operations name the memory by number.
        base.as_ptr().expose_provenance();
        // SAFETY: the bytes are mapped by the caller's contract. The kernel refuses access that the
        // mapping does not allow, and copies only happen on a registered region.
        let map = unsafe { Mapping::borrowed(base, len, writable) };
        self.register_with(Memory::without_lock(map), attr)
    }
}

impl Endpoint {
    /// Posts one operation on memory that is given by address. The outcome is a completion, as for
    /// [`Endpoint::post`].
    ///
    /// Without rings this makes one system call, and takes no lock. It never allocates, except for
    /// a message or receive that waits for the peer in rings.
    ///
    /// # Safety
    ///
    /// - Bytes to inject, operands and comparands are readable, and no thread writes them during
    ///   the call.
    /// - A piece without a region of a read is writable, and no thread accesses the bytes during
    ///   the call. Such a piece of a write is readable, and no thread writes the bytes during the
    ///   call.
    ///
    /// Pieces with a region need no further condition: the library and the kernel check that they
    /// lie within their region.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the endpoint or a completion queue is full.
    /// - `ENOTCONN` if the endpoint is not connected.
    /// - `EACCES` if a region does not allow the use.
    /// - `EINVAL` for a piece outside its region, a region of another domain or device file, more
    ///   pieces than the endpoint's limit, or memory without a region for a send or a receive.
    /// - `EMSGSIZE` if the message, the payload or the operands are too long.
    /// - `EOPNOTSUPP` for a read or a write without a region, if the provider needs one.
    #[inline]
    pub unsafe fn post_raw(&self, op: &RawOp<'_>) -> std::result::Result<(), Errno> {
        let mut entry = op.entry;
        let mut named = Local::default();
        let mut place = [0; KFI_INJECT_MAX];
        let pieces = op.carried();
        if pieces.iter().any(|pieces| !pieces.is_empty()) {
            // SAFETY: by the caller's contract.
            named.payload = unsafe { gathered(pieces, &mut place) }?;
            // CAST: Addresses and lengths have 64 bits.
            entry.inject = named.payload.as_ptr().expose_provenance() as u64;
            entry.inject_len = named.payload.len() as u64;
        }
        op.place(&mut entry, &mut named)?;
        let posted = self.post_entry(&entry, &named);
        posted.map_err(|error| error.errno().unwrap_or(Errno::EIO))
    }
}

/// Returns the bytes of `pieces` as one slice: the only piece itself, or a copy in `place`.
///
/// # Errors
///
/// - `EMSGSIZE` if more than one piece has bytes, and they are longer than `place`.
///
/// # Safety
///
/// The pieces' bytes are readable and not written while the result lives.
unsafe fn gathered<'a>(
    pieces: [&[Piece<'_>]; 2],
    place: &'a mut [u8; KFI_INJECT_MAX],
) -> std::result::Result<&'a [u8], Errno> {
    let mut all = pieces.into_iter().flatten().filter(|piece| piece.len != 0);
    let (first, second) = (all.next(), all.next());
    let (first, second) = match (first, second) {
        (None, _) => return Ok(&[]),
        // SAFETY: readable by the caller's contract, and not empty.
        (Some(one), None) => return Ok(unsafe { std::slice::from_raw_parts(one.base, one.len) }),
        (Some(first), Some(second)) => (first, second),
    };
    let mut end = 0;
    for piece in [first, second].into_iter().chain(all) {
        let from = end;
        end = piece.len.checked_add(from).ok_or(Errno::EMSGSIZE)?;
        let to = place.get_mut(from..end).ok_or(Errno::EMSGSIZE)?;
        // SAFETY: readable by the caller's contract. `to` is memory of this function's caller with
        // room for the bytes. `place` is a fresh variable, so the ranges do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(piece.base, to.as_mut_ptr(), piece.len) };
    }
    Ok(&place[..end])
}
