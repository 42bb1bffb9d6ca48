// SPDX-License-Identifier: MIT OR Apache-2.0

//! RoCEv2 datagrams, parsed and built by hand.
//!
//! A datagram to UDP port 4791 is a base transport header (BTH), headers that its opcode implies,
//! payload, and a checksum over everything that does not change on the way (iCRC). A device drops a
//! datagram with a wrong checksum, so a forged one needs a right one.

use std::net::Ipv4Addr;

/// RoCEv2's UDP port.
pub const PORT: u16 = 4791;
/// Bytes of the base transport header.
pub const BTH: usize = 12;
/// Bytes of the checksum.
pub const ICRC: usize = 4;
/// Source port of forged datagrams, which devices do not use.
const FORGED: u16 = 0x4b46;
/// Bytes of the headers of IPv4 and UDP.
const OUTER: usize = 20 + 8;

/// Opcodes of a reliable connection, and the one of management datagrams.
pub mod opcode {
    /// A message in one packet.
    pub const SEND_ONLY: u8 = 0x04;
    /// The first packet of a write.
    pub const WRITE_FIRST: u8 = 0x06;
    /// A write in one packet.
    pub const WRITE_ONLY: u8 = 0x0a;
    /// A write in one packet with completion data.
    pub const WRITE_ONLY_IMM: u8 = 0x0b;
    /// A read.
    pub const READ: u8 = 0x0c;
    /// Read data in one packet.
    pub const READ_ANSWER_ONLY: u8 = 0x10;
    /// Acknowledges or refuses.
    pub const ACK: u8 = 0x11;
    /// Answers an atomic operation.
    pub const ATOMIC_ACK: u8 = 0x12;
    /// Compare and swap.
    pub const CMP_SWAP: u8 = 0x13;
    /// Fetch and add.
    pub const FETCH_ADD: u8 = 0x14;
    /// A message in one packet that invalidates a key.
    pub const SEND_ONLY_INV: u8 = 0x17;
    /// A datagram, as connection managers use them.
    pub const UD_SEND_ONLY: u8 = 0x64;
}

/// A base transport header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bth {
    /// Opcode of the datagram.
    pub opcode: u8,
    /// Solicited, migrated, two bits of padding, four of version.
    pub flags: u8,
    /// Partition key.
    pub pkey: u16,
    /// Number of the destination queue pair.
    pub qpn: u32,
    /// True if an acknowledgement is requested.
    pub ack: bool,
    /// Packet sequence number.
    pub psn: u32,
}

impl Bth {
    /// Returns an ordinary header.
    pub fn new(opcode: u8, qpn: u32, psn: u32) -> Self {
        Self {
            opcode,
            flags: 0x40,
            pkey: 0xffff,
            qpn,
            ack: true,
            psn,
        }
    }

    /// Encodes the header.
    pub fn bytes(&self) -> [u8; BTH] {
        let mut out = [0; BTH];
        out[0] = self.opcode;
        out[1] = self.flags;
        out[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        out[4..8].copy_from_slice(&(self.qpn & 0xff_ffff).to_be_bytes());
        let psn = (self.psn & 0xff_ffff) | u32::from(self.ack) << 31;
        out[8..12].copy_from_slice(&psn.to_be_bytes());
        out
    }

    /// Decodes a header, if there are enough bytes.
    pub fn read(raw: &[u8]) -> Option<Self> {
        let raw: &[u8; BTH] = raw.first_chunk()?;
        let word = |at: usize| u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        Some(Self {
            opcode: raw[0],
            flags: raw[1],
            pkey: u16::from_be_bytes([raw[2], raw[3]]),
            qpn: word(4) & 0xff_ffff,
            ack: raw[8] & 0x80 != 0,
            psn: word(8) & 0xff_ffff,
        })
    }
}

/// Encodes the extended header of a one-sided operation: address, key, length.
pub fn reth(addr: u64, key: u32, len: u32) -> Vec<u8> {
    let mut out = addr.to_be_bytes().to_vec();
    out.extend(key.to_be_bytes());
    out.extend(len.to_be_bytes());
    out
}

/// Encodes the extended header of an atomic operation: address, key, two operands.
pub fn atomic_eth(addr: u64, key: u32, swap: u64, compare: u64) -> Vec<u8> {
    let mut out = addr.to_be_bytes().to_vec();
    out.extend(key.to_be_bytes());
    out.extend(swap.to_be_bytes());
    out.extend(compare.to_be_bytes());
    out
}

/// Continues a CRC-32 (least significant bit first) over some bytes.
fn crc32(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

/// Computes the checksum of a packet, which begins with its IPv4 header and ends with [`ICRC`]
/// bytes for the checksum.
pub fn icrc(packet: &[u8]) -> Option<[u8; ICRC]> {
    let end = packet.len().checked_sub(ICRC)?;
    let mut head: [u8; OUTER + BTH] = *packet.get(..end)?.first_chunk()?;
    // Fields that change on the way count as all ones: class, hops and checksum of IP, checksum of
    // UDP, and a byte of the BTH that is reserved for routers.
    for at in [1, 8, 10, 11, 26, 27, OUTER + 4] {
        head[at] = 0xff;
    }
    // CRC of the eight bytes of a missing local header, which are all ones.
    let crc = crc32(0xdebb_20e3, &head);
    let crc = crc32(crc, &packet[OUTER + BTH..end]);
    Some((!crc).to_le_bytes())
}

/// Builds a packet around `payload`, which begins with a BTH, and adds the checksum. Without a
/// complete BTH the checksum cannot be right.
pub fn packet(from: Ipv4Addr, to: Ipv4Addr, id: u16, payload: &[u8]) -> Vec<u8> {
    let total = OUTER + payload.len() + ICRC;
    let mut out = vec![0x45, 0];
    out.extend((total as u16).to_be_bytes());
    // The kernel fills in an identification if it is 0.
    out.extend(id.max(1).to_be_bytes());
    // Do not fragment; hops; UDP; the kernel adds the checksum.
    out.extend([0x40, 0, 64, 17, 0, 0]);
    out.extend(from.octets());
    out.extend(to.octets());
    out.extend(FORGED.to_be_bytes());
    out.extend(PORT.to_be_bytes());
    out.extend(((total - 20) as u16).to_be_bytes());
    out.extend([0, 0]);
    out.extend(payload);
    out.extend([0; ICRC]);
    if let Some(crc) = icrc(&out) {
        let at = out.len() - ICRC;
        out[at..].copy_from_slice(&crc);
    }
    out
}

/// Returns whether [`packet`] built a packet.
pub fn is_forged(packet: &[u8]) -> bool {
    packet.get(20..22) == Some(&FORGED.to_be_bytes())
}

/// Parses a RoCEv2 datagram: its source, and the bytes between UDP header and checksum.
pub fn payload(packet: &[u8]) -> Option<(Ipv4Addr, &[u8])> {
    let head: &[u8; OUTER] = packet.first_chunk()?;
    let port = u16::from_be_bytes([head[22], head[23]]);
    if head[0] != 0x45 || head[9] != 17 || port != PORT {
        return None;
    }
    let end = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let inner = packet.get(OUTER..end.checked_sub(ICRC)?)?;
    Some((Ipv4Addr::new(head[12], head[13], head[14], head[15]), inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

    #[test]
    fn the_crc_is_the_common_one() {
        assert_eq!(!crc32(!0, b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(!0, &[0xff; 8]), 0xdebb_20e3);
    }

    #[test]
    fn what_changes_on_the_way_does_not_matter() {
        let bth = Bth::new(opcode::ACK, 17, 0x12_3456).bytes();
        let mut sent = packet(A, B, 7, &bth);
        let crc = icrc(&sent).unwrap();
        assert_eq!(sent[sent.len() - ICRC..], crc);
        for at in [1, 8, 10, 11, 26, 27, OUTER + 4] {
            sent[at] ^= 0x5a;
        }
        assert_eq!(icrc(&sent), Some(crc));
        sent[OUTER + 11] ^= 1;
        assert_ne!(icrc(&sent), Some(crc));
    }

    #[test]
    fn a_packet_is_taken_apart_again() {
        let bth = Bth::new(opcode::READ, 0x123, 0xff_ffff);
        let inner = [&bth.bytes()[..], &reth(1, 2, 3)].concat();
        let sent = packet(A, B, 7, &inner);
        assert_eq!(payload(&sent), Some((A, &inner[..])));
        let again = Bth::read(&inner).unwrap();
        assert_eq!((again.qpn, again.psn, again.ack), (0x123, 0xff_ffff, true));
        assert_eq!(payload(&sent[..30]), None);
        assert_eq!(icrc(&sent[..20]), None);
    }
}
