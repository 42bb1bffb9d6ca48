// SPDX-License-Identifier: GPL-2.0
//! Windows of memories, and the addresses by which peers know them.

use super::group::Group;
use kfabric::memory::Memory;

/// A part of a memory, and the address by which peers know the part's first byte.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    /// Offset from the memory's start, in bytes.
    pub(crate) offset: usize,
    /// Length in bytes.
    pub(crate) len: usize,
    /// Address that peers use.
    pub(crate) iova: u64,
}

/// Returns the address by which peers know the byte at `offset` of `mem`.
///
/// For user memory that is the owner's own address. Kernel addresses are secret: for kernel memory
/// it is the offset, with the in-page bits that registrations must keep.
pub(crate) fn remote_addr(mem: &Memory, offset: usize) -> u64 {
    match mem.user() {
        Some(addr) => (addr + offset) as u64,
        None => (mem.page_offset() + offset) as u64,
    }
}

/// Returns the address of the byte at `offset` of `mem` in a registration that gives peers no
/// access.
///
/// No key ever has such an address. When a peer repeats a read that succeeded before, rxe checks
/// only key value and address, neither rights nor protection domains. The registration may have the
/// value of an earlier key.
pub(crate) fn hidden_addr(group: &Group, mem: &Memory, offset: usize) -> u64 {
    let hidden = if group.device().ib().opens() {
        1 << 63
    } else {
        0
    };
    remote_addr(mem, offset) | hidden
}
