// SPDX-License-Identifier: GPL-2.0
//! Numbers that the provider promises or lives by. How long the device itself is waited for stands
//! where it is: a flush in `helpers.c`, a registration in `ib/keyq.rs`.

/// Bytes that may be injected.
pub(crate) const INJECT_SIZE: usize = kfabric::uapi::KFI_INJECT_MAX;
/// Operations of a transmit side, at most.
pub(crate) const MAX_TX: u32 = 4096;
/// Receives of a receive side, at most.
pub(crate) const MAX_RX: u32 = 4096;
/// Bytes in the longest operation, where the port can do as much: a scatter entry and a
/// completion count bytes in 32 bits.
pub(crate) const MAX_MSG: u64 = 1 << 31;
/// Scatter entries of one operation, at most.
pub(crate) const IOV_LIMIT: u32 = kfabric::uapi::KFI_IOV_MAX as u32;
/// Contiguous pieces up to which a region is mapped piece by piece. Beyond, it gets a memory
/// region of its own, so that an operation always finds room in one work request.
pub(crate) const PIECES: u32 = 4;
/// Pages of one fast registration, at most: what a key slot reserves costs memory.
pub(crate) const FAST_PAGES: u32 = 256;

/// When a slot that could not get its next memory region with a revoke tries again, in
/// milliseconds.
pub(crate) const REFILL_MS: u32 = 2;

/// Pages of one registration with a device that is software, at most. Those keep 16 bytes for each
/// page in one allocation, of which the kernel warns beyond 4 MiB; they do not say so.
pub(crate) const SOFT_PAGES: usize = (4 << 20) / 16;

/// Time that resolving an address or a route may take, in milliseconds.
pub(crate) const RESOLVE_MS: u32 = 4000;
/// How long an answer is waited for: 4.096 us times 2 to this, 537 ms.
pub(crate) const ACK_TIMEOUT: u8 = 17;
/// Times that an unanswered packet is sent again. With [`ACK_TIMEOUT`] a peer that does not
/// answer fails an operation after 3.8 s (hardware may take up to four times as long).
pub(crate) const RETRY_COUNT: u8 = 6;
/// Times that a message is sent again to a peer without a receive: 7 means for ever, because how
/// long one time is, is the peer's choice. [`STALL_MS`] bounds it.
pub(crate) const RNR_RETRY: u8 = 7;
/// How long a peer is told to wait when we have no receive: 1.28 ms (IBTA's encoding).
pub(crate) const MIN_RNR_TIMER: u8 = 14;
/// After how long without any completion the oldest send is given up, in milliseconds; and per
/// byte outstanding, [`STALL_BYTES_PER_MS`] more. Only a peer without a receive comes to that: one
/// that does not answer at all is noticed much earlier.
pub(crate) const STALL_MS: u64 = 60_000;
/// The slowest transfer that is still one.
pub(crate) const STALL_BYTES_PER_MS: u64 = 1024;
/// How often idle connections are looked after, in milliseconds: one that was idle for one to two
/// of these sends a probe, so a peer that died silently is noticed within twice this and the
/// time of the retries: 10 s.
pub(crate) const TICK_MS: u32 = 3000;
/// Ticks after which connecting is given up, on either side: 2 minutes. The connection manager itself
/// gives up after 69 s, but whoever sends in the peer's name may ask it for more time again and
/// again.
pub(crate) const CONNECT_TICKS: u32 = 120_000 / TICK_MS + 1;
/// How often, in milliseconds, it is looked whether the answers to operations have come that may
/// be behind the peer's disconnecting, and how many times: a second in all.
pub(crate) const ANSWER_MS: i64 = 20;
/// See [`ANSWER_MS`].
pub(crate) const ANSWER_POLLS: u32 = 50;
