// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Access bits, with libfabric's values (`fi_mr(3)`), and what they imply.

/// May be the source of a send (`FI_SEND`).
pub const SEND: u64 = 1 << 11;
/// May take a message (`FI_RECV`).
pub const RECV: u64 = 1 << 10;
/// May take what is read from a peer (`FI_READ`).
pub const READ: u64 = 1 << 8;
/// May be the source of a write to a peer (`FI_WRITE`).
pub const WRITE: u64 = 1 << 9;
/// Peers may read it (`FI_REMOTE_READ`).
pub const REMOTE_READ: u64 = 1 << 12;
/// Peers may write it (`FI_REMOTE_WRITE`).
pub const REMOTE_WRITE: u64 = 1 << 13;

/// Peers may use it for atomics (`FI_ATOMIC`), which takes [`REMOTE_READ`] and [`REMOTE_WRITE`] too.
pub const REMOTE_ATOMIC: u64 = 1 << 4;

/// Rights of this side.
pub const LOCAL: u64 = SEND | RECV | READ | WRITE;
/// Rights of peers; what keys are about.
pub const REMOTE: u64 = REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC;
/// Every right.
pub const ALL: u64 = LOCAL | REMOTE;

/// What an operation does with local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is sent.
    Send,
    /// It takes a message.
    Recv,
    /// It takes what is read from a peer.
    Read,
    /// It is written to a peer.
    Write,
}

/// Whether what atomics take is there: they read and write.
const fn atomic_complete(access: u64) -> bool {
    access & REMOTE_ATOMIC == 0 || access & REMOTE == REMOTE
}

/// Whether a region may be asked for with these bits: some, none unknown, and not atomics alone.
pub const fn valid_region_access(access: u64) -> bool {
    access != 0 && access & !ALL == 0 && atomic_complete(access)
}

/// Whether the memory may be changed under these rights, so that the mapping must be writable:
/// by [`RECV`], [`READ`] or [`REMOTE_WRITE`].
pub const fn needs_write(access: u64) -> bool {
    access & (RECV | READ | REMOTE_WRITE) != 0
}

/// Whether a peer can reach the memory under these rights.
pub const fn has_remote(access: u64) -> bool {
    access & REMOTE != 0
}

/// Whether a key may be asked for with these bits: some, only rights of peers, and not atomics
/// alone.
pub const fn valid_key_access(access: u64) -> bool {
    access != 0 && access & !REMOTE == 0 && atomic_complete(access)
}

/// Whether a key with `key` access may be given on a region with `region` access: it is a valid
/// key access, and nothing the region was not registered for.
pub const fn key_within(key: u64, region: u64) -> bool {
    valid_key_access(key) && key & !region == 0
}

/// Whether a region with `region` access may be used so.
pub const fn op_allowed(what: Use, region: u64) -> bool {
    let needed = match what {
        Use::Send => SEND,
        Use::Recv => RECV,
        Use::Read => READ,
        Use::Write => WRITE,
    };
    region & needed != 0
}
