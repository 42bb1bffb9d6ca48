// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Access rights, with libfabric's values (`fi_mr(3)`), and the rules between them.

/// The memory may be the source of a send (`FI_SEND`).
pub const SEND: u64 = 1 << 11;
/// The memory may receive a message (`FI_RECV`).
pub const RECV: u64 = 1 << 10;
/// The memory may be the destination of an RMA read (`FI_READ`).
pub const READ: u64 = 1 << 8;
/// The memory may be the source of an RMA write (`FI_WRITE`).
pub const WRITE: u64 = 1 << 9;
/// Peers may read the memory (`FI_REMOTE_READ`).
pub const REMOTE_READ: u64 = 1 << 12;
/// Peers may write the memory (`FI_REMOTE_WRITE`).
pub const REMOTE_WRITE: u64 = 1 << 13;

/// Peers may use the memory for atomics (`FI_ATOMIC`). Requires [`REMOTE_READ`] and
/// [`REMOTE_WRITE`].
pub const REMOTE_ATOMIC: u64 = 1 << 4;

/// Rights of local operations.
pub const LOCAL: u64 = SEND | RECV | READ | WRITE;
/// All rights of peers: the rights that a key can have.
pub const REMOTE: u64 = REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC;
/// Every right.
pub const ALL: u64 = LOCAL | REMOTE;

/// Use of local memory by an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Source of a send.
    Send,
    /// Destination of a message.
    Recv,
    /// Destination of an RMA read.
    Read,
    /// Source of an RMA write.
    Write,
}

/// Returns whether `access` has both rights that atomics require, or no right for atomics.
const fn atomic_complete(access: u64) -> bool {
    access & REMOTE_ATOMIC == 0 || access & REMOTE == REMOTE
}

/// Returns whether a region can be registered with these rights: at least one, none unknown, and
/// not atomics alone.
pub const fn valid_region_access(access: u64) -> bool {
    access != 0 && access & !ALL == 0 && atomic_complete(access)
}

/// Returns whether these rights ([`RECV`], [`READ`], [`REMOTE_WRITE`]) permit changes of the
/// memory, so that its mapping must be writable.
pub const fn needs_write(access: u64) -> bool {
    access & (RECV | READ | REMOTE_WRITE) != 0
}

/// Returns whether these rights permit access by a peer.
pub const fn has_remote(access: u64) -> bool {
    access & REMOTE != 0
}

/// Returns whether a key can have these rights: at least one, only rights of peers, and not atomics
/// alone.
pub const fn valid_key_access(access: u64) -> bool {
    access != 0 && access & !REMOTE == 0 && atomic_complete(access)
}

/// Returns whether a key with rights `key` can be assigned on a region with rights `region`: `key`
/// is valid and contains no right that the region lacks.
pub const fn key_within(key: u64, region: u64) -> bool {
    valid_key_access(key) && key & !region == 0
}

/// Returns whether a region with rights `region` permits the use.
pub const fn op_allowed(what: Use, region: u64) -> bool {
    let needed = match what {
        Use::Send => SEND,
        Use::Recv => RECV,
        Use::Read => READ,
        Use::Write => WRITE,
    };
    region & needed != 0
}
