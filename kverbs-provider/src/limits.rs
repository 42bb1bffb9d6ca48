// SPDX-License-Identifier: GPL-2.0
//! Limits and times of the provider. The times for a flush and for a registration by the device are
//! in `helpers.c` and `ib/reg_queue.rs`.

/// Maximum bytes of an injected operation.
pub(crate) const INJECT_SIZE: usize = kfabric::uapi::KFI_INJECT_MAX;
/// Maximum operations of a transmit side.
pub(crate) const MAX_TX: u32 = 4096;
/// Maximum receives of a receive side.
pub(crate) const MAX_RX: u32 = 4096;
/// Maximum bytes of an operation, if the port supports as much: scatter entries and completions
/// count bytes in 32 bits.
pub(crate) const MAX_MSG: u64 = 1 << 31;
/// Maximum scatter entries of one operation.
pub(crate) const IOV_LIMIT: u32 = kfabric::uapi::KFI_IOV_MAX as u32;
/// Maximum contiguous pieces of a region that is mapped piece by piece, or covered by as many fast
/// registrations. A region with more gets one memory region of the device, so that an operation always fits one
/// work request. On irdma it gets registrations of 1 MiB ([`USER_PIECES`]), and a long message does not fit
/// (docs/devices.md). A device with fewer scatter entries has fewer pieces.
pub(crate) const PIECES: u32 = 4;
/// Maximum pages of one fast registration: the reserve of a key slot costs memory.
pub(crate) const FAST_PAGES: u32 = 256;
/// Maximum pages of a fast registration by a region of the key's own. Drivers allocate 8 to 16 bytes for
/// a page, in one piece.
pub(crate) const WIDE_PAGES: u32 = 16384;
/// Maximum bytes of a page of a fast registration: a huge page.
pub(crate) const LARGE_PAGE: usize = 2 << 20;
/// Maximum fast registrations that cover a program's region, if the driver registers no user memory
/// for the kernel: 1 GiB with registrations of [`FAST_PAGES`].
pub(crate) const USER_PIECES: usize = 1024;

/// Time from a group's first moment without key slots until it closes its key queue, unless it has slots
/// then, in milliseconds.
pub(crate) const QUEUE_IDLE_MS: u32 = 6000;

/// Delay until a slot tries again to obtain its reserve, in milliseconds, after its revocation
/// could not.
pub(crate) const REFILL_MS: u32 = 2;

/// Maximum pages of one registration on a software device. Such a device keeps 16 bytes per page in
/// one allocation, and does not report this limit. The kernel warns about allocations above 4 MiB.
pub(crate) const SOFT_PAGES: usize = (4 << 20) / 16;

/// Time limit to resolve an address or a route, in milliseconds.
pub(crate) const RESOLVE_MS: u32 = 4000;
/// Time to wait for an answer: 4.096 us times 2 to the power of this, 537 ms.
pub(crate) const ACK_TIMEOUT: u8 = 17;
/// Retries of an unanswered packet. With [`ACK_TIMEOUT`], an operation fails after 3.8 s if the
/// peer does not answer (hardware may take up to four times as long).
pub(crate) const RETRY_COUNT: u8 = 6;
/// Retries of a message to a peer without a receive. 7 means for ever, because the peer chooses the
/// time of each. [`STALL_MS`] bounds the total.
pub(crate) const RNR_RETRY: u8 = 7;
/// Time for which a peer has to wait if no receive is posted here: 1.28 ms (IBTA's encoding).
pub(crate) const MIN_RNR_TIMER: u8 = 14;
/// Time without any completion after which the oldest send fails, in milliseconds. Each outstanding
/// byte extends it by [`STALL_BYTES_PER_MS`]. Only a peer without a receive reaches it: a peer that
/// does not answer is noticed much earlier.
pub(crate) const STALL_MS: u64 = 60_000;
/// Slowest transfer that counts as progress, in bytes per millisecond.
pub(crate) const STALL_BYTES_PER_MS: u64 = 1024;
/// Interval between checks of idle connections, in milliseconds.
///
/// A connection that was idle for one to two intervals sends a probe. A peer that died silently is
/// noticed within twice the interval and the time of the retries: 10 s.
pub(crate) const TICK_MS: u32 = 3000;
/// Ticks after which connecting fails, on either side: 2 minutes. The connection manager itself
/// gives up after 69 s, but a sender in the peer's name may extend that repeatedly.
pub(crate) const CONNECT_TICKS: u32 = 120_000 / TICK_MS + 1;
/// Ticks after which an unanswered commit fails: a minute. A commit of several writes has at most 64
/// MiB.
pub(crate) const ANSWER_TICKS: u32 = 60_000 / TICK_MS + 1;
/// Interval between checks for answers that a disconnect request has overtaken, in milliseconds.
/// With [`ANSWER_POLLS`] checks, the total is a second.
pub(crate) const ANSWER_MS: i64 = 20;
/// Number of checks. See [`ANSWER_MS`].
pub(crate) const ANSWER_POLLS: u32 = 50;
