// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages of the workload in the guest to the host, compiled into both.
//!
//! The workload stores a message in a cache line of the channel, a page of the persistent memory, the last
//! word last. The plug-in then adds the line to its log, in program order with the fences.

/// Physical address of the persistent memory.
pub const BASE: u64 = 8 << 30;
/// Length of the persistent memory in bytes.
pub const LEN: u64 = 64 << 20;
/// Offset of the channel in the memory, at a large page's start.
pub const CHANNEL: u64 = LEN - (2 << 20);
/// Length in bytes of the part of the device to which the workload writes.
pub const AREA: usize = 1 << 20;
/// Length of a message in bytes: a cache line.
pub const LINE: usize = 64;
/// Variable with the number of writes of the workload.
pub const WRITES: &str = "KFI_PMCUT_WRITES";
/// Name of the file in `/host` with the bytes of the area that the power failure left, or with the
/// log's records, as `kfi-pmlog show` prints them.
pub const KEPT: &str = "kept";

/// A write by the workload. A record that is appended to a log has no offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// Number of the write in its boot, from 1.
    pub number: u64,
    /// Offset in the area.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The copy stores whole aligned words.
    pub by_words: bool,
}

/// A message of the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// The workload begins. The area has the physical address.
    Hello {
        /// Physical address of the area.
        address: u64,
        /// Seed of the bytes.
        seed: u64,
    },
    /// The write is about to be posted.
    Begin(Write),
    /// The write was reported to be durable.
    Durable {
        /// Number of the write.
        number: u64,
        /// Checksum of the written bytes.
        sum: u64,
    },
    /// The target has a completion for the write's data, so the write is durable.
    Arrived {
        /// Number of the write.
        number: u64,
    },
    /// The workload has ended.
    End,
}

impl Message {
    /// Returns the words of the message. The last word is not 0.
    pub fn words(self) -> [u64; LINE / 8] {
        match self {
            Self::Hello { address, seed } => [1, address, seed, 0, 0, 0, 0, 1],
            Self::Begin(write) => {
                let by_words = u64::from(write.by_words);
                [2, write.number, write.offset, write.len, by_words, 0, 0, 1]
            }
            Self::Durable { number, sum } => [3, number, sum, 0, 0, 0, 0, 1],
            Self::End => [4, 0, 0, 0, 0, 0, 0, 1],
            Self::Arrived { number } => [5, number, 0, 0, 0, 0, 0, 1],
        }
    }

    /// Returns the message of these words; `None` if there is none.
    pub fn of(words: [u64; LINE / 8]) -> Option<Self> {
        let [kind, a, b, c, d, ..] = words;
        Some(match kind {
            1 => Self::Hello {
                address: a,
                seed: b,
            },
            2 => Self::Begin(Write {
                number: a,
                offset: b,
                len: c,
                by_words: d != 0,
            }),
            3 => Self::Durable { number: a, sum: b },
            4 => Self::End,
            5 => Self::Arrived { number: a },
            _ => return None,
        })
    }
}

/// Returns the bytes of a write.
pub fn bytes(seed: u64, write: &Write) -> Vec<u8> {
    let start = seed.wrapping_add(write.number << 32);
    let words = (0..write.len.div_ceil(8)).flat_map(|i| mix(start.wrapping_add(i)).to_le_bytes());
    words.take(write.len as usize).collect()
}

/// Returns the text of a log's record, as the bytes of a write.
pub fn text(seed: u64, write: &Write) -> Vec<u8> {
    let mut bytes = bytes(seed, write);
    for byte in &mut bytes {
        *byte = b'A' + *byte % 26;
    }
    bytes
}

/// Returns the checksum of bytes (FNV-1a).
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Returns a number that differs from its neighbours' (splitmix64).
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
