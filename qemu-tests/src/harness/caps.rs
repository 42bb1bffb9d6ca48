// SPDX-License-Identifier: MIT OR Apache-2.0

//! Capabilities of the device under test. A test that needs one asks for it ([`Test::needs`]); it is
//! skipped on a device that lacks it.
//!
//! [`Test::needs`]: super::Test::needs

use super::{skip, Ctx, Env};
use crate::pair::own_info;
use crate::profile::AS_DRIVER;
use crate::raw::Dev;
use anyhow::Result;
use kfabric_uapi::*;

/// An operation can carry completion data to the peer.
pub const IMMEDIATE_DATA: u32 = 1;
/// The device has atomics.
pub const ATOMICS: u32 = 2;
/// An operation that the peer refuses completes with the reason. Without it, the connection ends,
/// and a refused write may have succeeded before.
pub const REMOTE_ERRORS: u32 = 4;
/// A message waits for a receive. Without it, a message without a receive ends the connection.
pub const LATE_RECEIVES: u32 = 8;
/// A write completes after its bytes have arrived. Without it, the bytes may arrive later.
pub const ARRIVED_WRITES: u32 = 16;
/// A revocation waits for answers to a peer's reads. siw has no way to (`siw_qp_sq_proc_tx()` in
/// `drivers/infiniband/sw/siw/siw_qp_tx.c` checks a region once, when an answer begins).
pub const FENCED_READS: u32 = 32;
/// A peer that is silent is noticed after seconds. Without it, after TCP's time.
pub const SILENCE: u32 = 64;
/// The path of packets can be tampered with, and each packet is one of InfiniBand's transport.
pub const IB_TRANSPORT: u32 = 128;

/// An attempt to connect can be given up at once. iWARP's connection manager first waits for the
/// peer's answer (`iw_cm_disconnect()` in `drivers/infiniband/core/iwcm.c`), on siw for up to 10 s.
pub const ABORTED_CONNECTS: u32 = 256;

/// A key without the right to read refuses reads. siw checks no right when it answers a read
/// (`siw_qp_sq_proc_tx()` in `drivers/infiniband/sw/siw/siw_qp_tx.c`).
pub const READ_RIGHTS: u32 = 512;

/// A read can go into pages that a kernel consumer has borrowed, as kfblk's do.
pub const BORROWED_READS: u32 = 1024;

/// The device itself registers a large window of a program's memory, and waits for missing pages then.
/// A device that behaves like another card ([`profile`](crate::profile)) makes such a key from the
/// pages that the region has pinned.
pub const FULL_KEYS: u32 = 2048;

/// A key can have a window of any length. On a card, a window has at most the pages of the device's
/// page list, and 64 MiB (`WIDE_PAGES` in `kverbs-provider/src/limits.rs`), because a full registration
/// gives rights before its value is known.
pub const ANY_WINDOW: u32 = 4096;

/// A key can have a window of 24 MiB.
pub const WIDE_WINDOWS: u32 = 8192;

/// A side can close an endpoint as soon as it is connected. Bytes that reach siw while a queue pair changes
/// its state wait for the next bytes (`siw_qp_llp_data_ready()` in `drivers/infiniband/sw/siw/siw_qp.c`).
pub const QUICK_CLOSES: u32 = 16384;

/// The device can behave like another card ([`profile`](crate::profile)).
pub const OTHER_CARDS: u32 = 32768;

/// A region of a program pins its pages once. On siw the device registers the memory as a whole, and pins
/// it again.
pub const PINS_ONCE: u32 = 65536;

/// Messages of a program can have several pieces, and can be long. siw loses its place in the page
/// list of fast registrations (`siw_tx_hdt()` in `drivers/infiniband/sw/siw/siw_qp_tx.c`), which cover a
/// program's memory if kverbs acts as it does on a card.
pub const LONG_MESSAGES: u32 = 131_072;

/// The names of all capabilities.
const NAMES: [(u32, &str); 18] = [
    (IMMEDIATE_DATA, "immediate data"),
    (ATOMICS, "atomics"),
    (REMOTE_ERRORS, "errors of the peer"),
    (LATE_RECEIVES, "late receives"),
    (ARRIVED_WRITES, "arrived writes"),
    (FENCED_READS, "fenced reads"),
    (SILENCE, "silent peers"),
    (IB_TRANSPORT, "InfiniBand's transport"),
    (ABORTED_CONNECTS, "aborted connects"),
    (READ_RIGHTS, "rights to read"),
    (BORROWED_READS, "reads into borrowed pages"),
    (FULL_KEYS, "keys by full registration"),
    (ANY_WINDOW, "windows of any length"),
    (WIDE_WINDOWS, "windows of 24 MiB"),
    (QUICK_CLOSES, "closes at once"),
    (OTHER_CARDS, "behaviour of other cards"),
    (PINS_ONCE, "regions that are pinned once"),
    (LONG_MESSAGES, "messages of several pieces"),
];

/// The words before the names of missing capabilities, in the reason of a skipped test.
pub const LACKS: &str = "the device lacks: ";

/// Returns the capabilities of the device at the node's address.
///
/// # Errors
///
/// If the provider does not offer the device.
pub fn of(env: &Env) -> Result<u32> {
    let info = own_info(&Dev::open()?, env)?;
    let iwarp = info.protocol == KFI_PROTO_IWARP;
    let has = |cap: u32, it: bool| if it { cap } else { 0 };
    let by_packets = REMOTE_ERRORS
        | LATE_RECEIVES
        | ARRIVED_WRITES
        | FENCED_READS
        | SILENCE
        | IB_TRANSPORT
        | ABORTED_CONNECTS
        | READ_RIGHTS
        | BORROWED_READS
        | QUICK_CLOSES
        | OTHER_CARDS
        | PINS_ONCE;
    Ok(has(IMMEDIATE_DATA, info.cq_data_size != 0)
        | has(ATOMICS, info.caps & KFI_ATOMIC != 0)
        | has(by_packets, !iwarp)
        | has(FULL_KEYS, card() == 0)
        | has(ANY_WINDOW, card() == 0)
        | has(LONG_MESSAGES, !iwarp || card() == 0)
        | has(WIDE_WINDOWS, card() == 0 || info.max_key_pages > 24 << 8))
}

/// Returns the number of the driver as whose card the devices behave, or 0.
fn card() -> u32 {
    let driver = std::fs::read_to_string(AS_DRIVER).unwrap_or_default();
    driver.trim().parse().unwrap_or(0)
}

/// Returns the names of capabilities, separated by commas.
pub fn names(caps: u32) -> String {
    let wanted = NAMES.iter().filter(|(cap, _)| caps & cap != 0);
    let names: Vec<&str> = wanted.map(|(_, name)| *name).collect();
    names.join(", ")
}

impl Ctx {
    /// Skips the test if the device lacks one of `caps`.
    ///
    /// # Errors
    ///
    /// If the device lacks one, or the provider does not offer the device.
    pub fn need(&self, caps: u32) -> Result<()> {
        if caps == 0 {
            return Ok(());
        }
        match caps & !of(&self.env)? {
            0 => Ok(()),
            missing => skip(format!("{LACKS}{}", names(missing))),
        }
    }

    /// Returns whether the device has a capability.
    ///
    /// # Errors
    ///
    /// If the provider does not offer the device.
    pub fn has(&self, cap: u32) -> Result<bool> {
        Ok(of(&self.env)? & cap != 0)
    }
}
