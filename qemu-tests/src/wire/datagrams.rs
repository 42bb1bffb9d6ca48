// SPDX-License-Identifier: MIT OR Apache-2.0

//! Forged datagrams: no device would send them, their checksum is right, and they are aimed at live
//! queue pairs and at the connection manager.
//!
//! RoCE does not authenticate the sender. So a datagram that guesses everything right may well
//! write to exported memory, end a connection, or answer in the peer's place. It must not do more
//! than the peer could.

use super::attack::{Attack, Link, ORDINARY};
use super::rng::Rng;
use super::roce::{self, atomic_eth, opcode, reth, Bth, BTH};
use super::target::SECRET;
use crate::sys::net;
use crate::sys::Errno;
use anyhow::{bail, ensure, Context, Result};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Number of datagrams that are kept for changing and resending.
const KEPT: usize = 256;
/// Offset of the management datagram, and of its attribute.
const MAD: usize = BTH + 8;
const ATTRIBUTE: usize = MAD + 16;
/// Offset of the connection manager's message, behind the management datagram's own header.
const WORDS: usize = MAD + 24;

/// A datagram of an honest end.
struct Seen {
    outgoing: bool,
    bth: Bth,
    inner: Vec<u8>,
}

/// The wire as node 2 sees it.
pub(super) struct Wire {
    sniff: OwnedFd,
    raw: OwnedFd,
    own: Ipv4Addr,
    target: Ipv4Addr,
    seen: Vec<Seen>,
    sent: u16,
}

fn v4(addr: IpAddr) -> Result<Ipv4Addr> {
    match addr {
        IpAddr::V4(addr) => Ok(addr),
        IpAddr::V6(addr) => bail!("{addr} is no IPv4 address"),
    }
}

impl Wire {
    fn open(own: IpAddr, target: IpAddr) -> Result<Self> {
        Ok(Self {
            sniff: net::packet_socket().context("a packet socket")?,
            raw: net::raw_socket().context("a raw socket")?,
            own: v4(own)?,
            target: v4(target)?,
            seen: Vec::new(),
            sent: 0,
        })
    }

    /// Takes the packets on the wire, and checks those that the target sent.
    fn look(&mut self) -> Result<()> {
        let mut buf = [0u8; 8192];
        loop {
            let (len, outgoing) = match net::take_packet(self.sniff.as_fd(), &mut buf) {
                Ok(Some(got)) => got,
                // Lost packets are not seen.
                Ok(None) | Err(Errno(libc::ENOBUFS)) => break,
                Err(e) => return Err(e).context("looking at packets"),
            };
            let packet = &buf[..len.min(buf.len())];
            let Some((from, inner)) = roce::payload(packet) else {
                continue;
            };
            if from == self.own && roce::is_forged(packet) {
                continue;
            }
            let Some(bth) = Bth::read(inner) else {
                continue;
            };
            if !outgoing {
                let leak = inner.windows(SECRET.len()).any(|bytes| bytes == SECRET);
                ensure!(!leak, "the target sends bytes that no key grants: {bth:?}");
            }
            let whole = packet.len() - roce::ICRC;
            ensure!(
                roce::icrc(packet).is_some_and(|crc| crc == packet[whole..]),
                "the checksum differs from the devices': {bth:?}"
            );
            if self.seen.len() == KEPT {
                self.seen.remove(0);
            }
            self.seen.push(Seen {
                outgoing,
                bth,
                inner: inner.to_vec(),
            });
        }
        Ok(())
    }

    fn send(&mut self, inner: &[u8]) -> Result<()> {
        self.sent = self.sent.wrapping_add(1);
        let packet = roce::packet(self.own, self.target, self.sent, inner);
        match net::send_packet(self.raw.as_fd(), self.target, &packet) {
            Ok(()) | Err(Errno(libc::EMSGSIZE | libc::ENOBUFS)) => Ok(()),
            Err(e) => Err(e).context("sending a packet"),
        }
    }

    /// Returns the packet number that the target expects next on a connection.
    fn next_psn(&self, link: &Link) -> u32 {
        let last = self
            .seen
            .iter()
            .rev()
            .find(|s| s.outgoing && s.bth.qpn == link.theirs && s.bth.opcode < opcode::ACK);
        last.map_or(link.own_psn, |s| s.bth.psn.wrapping_add(1)) & 0xff_ffff
    }

    /// Returns the packet number of the target's last request on a connection.
    fn asked_psn(&self, link: &Link) -> u32 {
        let last = self.seen.iter().rev().find(|s| {
            let answer =
                (opcode::READ_ANSWER_ONLY - 3..=opcode::ATOMIC_ACK).contains(&s.bth.opcode);
            !s.outgoing && s.bth.qpn == link.own && !answer
        });
        last.map_or(link.their_psn, |s| s.bth.psn)
    }
}

/// Offset of a request's path MTU: the upper half of a byte.
const MTU: usize = WORDS + 50;

/// Sends requests with every invalid path MTU, which the target must reject. Each is a valid
/// request with another sender's numbers.
pub(super) fn no_mtu(attack: &mut Attack<'_>) -> Result<()> {
    let mut wire = Wire::open(attack.ctx.env.addr, attack.ctx.env.peer)?;
    attack.begin(true)?;
    let link = attack.connect(0, ORDINARY)?;
    link.context("the target does not accept")?;
    wire.look()?;
    let is_request = |s: &&Seen| {
        let request = s.inner.get(ATTRIBUTE..ATTRIBUTE + 2) == Some(&[0, 0x10]);
        s.outgoing && s.bth.opcode == opcode::UD_SEND_ONLY && request
    };
    let seen = wire.seen.iter().find(is_request);
    let honest = seen.context("no request was seen")?.inner.clone();
    ensure!(
        (1..=5).contains(&(honest[MTU] >> 4)),
        "the size of packets is not where it is looked for"
    );
    let sizes: Vec<u8> = (0..16).filter(|size| !(1..=5).contains(size)).collect();
    for size in &sizes {
        let mut inner = honest.clone();
        estrange(&mut attack.rng, &mut inner);
        inner[MTU] = size << 4 | inner[MTU] & 0xf;
        wire.send(&inner)?;
    }
    let count = sizes.len() as u64;
    attack.expect = Some((1 + count, count));
    // The requests are outstanding, and their handling takes time.
    std::thread::sleep(Duration::from_millis(500) * super::slow());
    Ok(())
}

/// Turns a request into one of another party and another queue pair.
fn estrange(rng: &mut Rng, inner: &mut [u8]) {
    // The party's own number for the connection, the transaction, the queue pair.
    for (at, len) in [(WORDS, 4), (MAD + 8, 8), (WORDS + 32, 3)] {
        let fresh = rng.bytes(len);
        inner[at..at + len].copy_from_slice(&fresh);
    }
}

/// Runs a round.
pub(super) fn round(attack: &mut Attack<'_>) -> Result<()> {
    let mut wire = match attack.wire.take() {
        Some(wire) => wire,
        None => {
            let mut wire = Wire::open(attack.ctx.env.addr, attack.ctx.env.peer)?;
            prove(attack, &mut wire)?;
            wire
        }
    };
    let done = forge_some(attack, &mut wire);
    attack.wire = Some(wire);
    done
}

/// Checks that an unchanged datagram is accepted and answered: the forger can forge.
fn prove(attack: &mut Attack<'_>, wire: &mut Wire) -> Result<()> {
    attack.begin(true)?;
    let link = attack.connect(0, ORDINARY)?;
    let link = link.context("the target does not accept")?;
    let (part, _) = attack.bait.parts[0];
    let bth = Bth::new(opcode::WRITE_ONLY, link.theirs, link.own_psn);
    let data = [0x42; 16];
    let head = reth(part.addr, part.key as u32, data.len() as u32);
    wire.send(&[&bth.bytes()[..], &head, &data].concat())?;
    let end = Instant::now() + Duration::from_secs(10) * super::slow();
    loop {
        wire.look()?;
        let answered = |s: &Seen| {
            let good = s.inner.get(BTH).is_some_and(|syndrome| syndrome >> 5 == 0);
            s.bth.opcode == opcode::ACK && s.bth.psn == link.own_psn && good
        };
        if wire.seen.iter().any(answered) {
            break;
        }
        ensure!(
            Instant::now() < end,
            "the target does not answer a datagram that is as it should be"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    attack.must(&format!("del {}", link.slot)).map(|_| ())
}

fn forge_some(attack: &mut Attack<'_>, wire: &mut Wire) -> Result<()> {
    attack.begin(true)?;
    let mut links = Vec::new();
    for slot in 0..1 + attack.rng.below(2) {
        links.extend(attack.connect(slot, ORDINARY)?);
    }
    for link in &links {
        // Messages of honest ends, to be changed later.
        for _ in 0..8 {
            attack.ask(&format!("recv {} 4096", link.slot))?;
        }
        let (readable, _) = attack.bait.parts[1];
        let (addr, key) = (readable.addr, readable.key);
        for (op, len) in [(2, 64), (4, 700)] {
            attack.ask(&format!("post {} {op} {len} {addr} {key} 0 0", link.slot))?;
        }
        attack.ask(&format!("poll {} 2 50", link.slot))?;
    }
    wire.look()?;
    for _ in 0..1 + attack.rng.below(40) {
        let Some(link) = links.get(attack.rng.below(links.len() as u64) as usize) else {
            // The target had no place for another connection.
            break;
        };
        let inner = forge(attack, wire, link);
        if rxe_warns_of(&inner) {
            continue;
        }
        let shown = &inner[..inner.len().min(48)];
        let note = format!(
            "datagram {} bytes: {}",
            inner.len(),
            super::attack::hex(shown)
        );
        attack.peer.trace.push(note);
        wire.send(&inner)?;
        if attack.rng.one_in(8) {
            wire.look()?;
        }
    }
    // Wait for outstanding packets and their answers.
    std::thread::sleep(Duration::from_millis(10));
    wire.look()?;
    for link in &links {
        if attack.rng.one_in(2) {
            attack.end(link.slot)?;
        }
    }
    Ok(())
}

fn forge(attack: &mut Attack<'_>, wire: &Wire, link: &Link) -> Vec<u8> {
    match attack.rng.below(10) {
        0..=3 => request(attack, wire, link),
        4 => answer(attack, wire, link),
        5 | 6 => again(&mut attack.rng, wire, link),
        7 | 8 => {
            management(&mut attack.rng, wire).unwrap_or_else(|| again(&mut attack.rng, wire, link))
        }
        _ => {
            let len = attack.rng.below(200) as usize;
            let mut inner = attack.rng.bytes(len);
            if attack.rng.one_in(2) {
                let bth = Bth::new(attack.rng.any() as u8, link.theirs, wire.next_psn(link));
                inner.splice(..0, bth.bytes());
            }
            inner
        }
    }
}

/// Returns a number near the expected one.
fn psn(rng: &mut Rng, expected: u32) -> u32 {
    match rng.below(8) {
        0 => expected.wrapping_sub(1 + rng.below(8) as u32),
        1 => expected.wrapping_add(1 + rng.below(8) as u32),
        2 => rng.any() as u32,
        _ => expected,
    }
}

/// Builds a datagram, with the right padding or another.
fn put(rng: &mut Rng, mut bth: Bth, head: &[u8], len: usize) -> Vec<u8> {
    let pad = len.wrapping_neg() & 3;
    let told = if rng.one_in(8) {
        rng.below(4) as usize
    } else {
        pad
    };
    bth.flags = 0x40 | (told as u8) << 4;
    if rng.one_in(10) {
        bth.flags = rng.any() as u8;
    }
    bth.ack = !rng.one_in(4);
    if rng.one_in(30) {
        bth.pkey = rng.any() as u16;
    }
    if rng.one_in(20) {
        bth.qpn = rng.edge(bth.qpn.into()) as u32;
    }
    let mut inner = [&bth.bytes()[..], head].concat();
    inner.resize(inner.len() + len + pad, 0x33);
    if rng.one_in(12) {
        inner.truncate(BTH + rng.below((inner.len() - BTH) as u64 + 1) as usize);
    }
    inner
}

/// Builds a request of any kind, in its place or not.
fn request(attack: &mut Attack<'_>, wire: &Wire, link: &Link) -> Vec<u8> {
    let (addr, len, key) = attack.aim();
    let rng = &mut attack.rng;
    let often = [
        opcode::SEND_ONLY,
        opcode::WRITE_FIRST,
        opcode::WRITE_ONLY,
        opcode::WRITE_ONLY_IMM,
        opcode::READ,
        opcode::CMP_SWAP,
        opcode::FETCH_ADD,
        opcode::SEND_ONLY_INV,
    ];
    let op = if rng.one_in(3) {
        rng.below(0x20) as u8
    } else {
        rng.pick(&often)
    };
    let number = psn(rng, wire.next_psn(link));
    let mut head = match op {
        0x06 | 0x0a | 0x0b | 0x0c | 0x1d => reth(addr, key, len as u32),
        opcode::CMP_SWAP | opcode::FETCH_ADD => atomic_eth(addr, key, rng.any(), rng.any()),
        0x1c => [&rng.bytes(4)[..], &reth(addr, key, len as u32)].concat(),
        0x16 | 0x17 => key.to_be_bytes().to_vec(),
        _ => Vec::new(),
    };
    if matches!(op, 0x03 | 0x05 | 0x09 | 0x0b) {
        head.extend(rng.bytes(4));
    }
    let fits = len.min(4096) as usize;
    let len = match (op, rng.below(4)) {
        (opcode::READ | opcode::CMP_SWAP | opcode::FETCH_ADD, 1..) => 0,
        (_, 0) => rng.pick(&[0, 1, 3, 16, 1024, 4096, 4200]),
        _ => fits,
    };
    put(rng, Bth::new(op, link.theirs, number), &head, len)
}

/// Returns whether rxe's completer may warn of an answer; a warning ends the guest.
///
/// For some wrong answers rxe ends the connection without setting the operation's status. It then
/// finds a success there, warns, and completes the operation with that (`COMPST_ERROR` in
/// `rxe_comp.c`). These are parts of an answer out of order, answers to an atomic operation where
/// there was none, and invalid syndromes.
fn rxe_warns_of(inner: &[u8]) -> bool {
    // If the syndrome is missing, rxe may take the checksum for it.
    let syndrome = inner.get(BTH).map(|syndrome| syndrome & 0xe0);
    match inner.first().copied() {
        Some(0x0d..=0x0f | opcode::ATOMIC_ACK) => true,
        Some(opcode::READ_ANSWER_ONLY) => syndrome != Some(0),
        Some(opcode::ACK) => !matches!(syndrome, Some(0x00 | 0x20 | 0x60)),
        _ => false,
    }
}

/// Builds an answer to a request that the target may have sent.
fn answer(attack: &mut Attack<'_>, wire: &Wire, link: &Link) -> Vec<u8> {
    let rng = &mut attack.rng;
    let op = rng.pick(&[opcode::READ_ANSWER_ONLY, opcode::ACK]);
    let number = psn(rng, wire.asked_psn(link));
    // Success, not ready, or refused; and the number of accepted requests.
    let syndromes: &[u8] = match op {
        opcode::ACK => &[0x00, 0x1f, 0x20, 0x2e, 0x60, 0x61, 0x62, 0x63, 0x64, 0x7f],
        _ => &[0x00, 0x1f],
    };
    let mut head = vec![rng.pick(syndromes)];
    head.extend(rng.bytes(3));
    let len = match op {
        opcode::READ_ANSWER_ONLY => rng.pick(&[0, 1, 512, 4096]),
        _ => 0,
    };
    put(rng, Bth::new(op, link.theirs, number), &head, len)
}

/// Returns an observed datagram, slightly changed.
fn again(rng: &mut Rng, wire: &Wire, link: &Link) -> Vec<u8> {
    let Some(seen) = wire.seen.get(rng.below(wire.seen.len() as u64) as usize) else {
        return Vec::new();
    };
    let mut inner = seen.inner.clone();
    if !seen.outgoing || rng.one_in(2) {
        // As if the target's own datagram came back, or another connection's to this one.
        let mut bth = seen.bth;
        bth.qpn = link.theirs;
        bth.psn = psn(rng, wire.next_psn(link));
        inner[..BTH].copy_from_slice(&bth.bytes());
    }
    spoil(rng, &mut inner, 0);
    inner
}

/// Changes some bytes from `from` on, and perhaps the length.
fn spoil(rng: &mut Rng, inner: &mut Vec<u8>, from: usize) {
    for _ in 0..rng.below(5) {
        let room = inner.len().saturating_sub(from);
        if let Some(byte) = inner.get_mut(from + rng.below(room as u64) as usize) {
            *byte = rng.edge((*byte).into()) as u8;
        }
    }
    if rng.one_in(8) {
        inner.truncate(rng.below(inner.len() as u64 + 1) as usize);
    }
    if rng.one_in(16) {
        let more = rng.below(3000) as usize;
        inner.extend(rng.bytes(more));
    }
}

/// Returns a connection manager's message: another connection's, at the wrong time, or of an
/// unknown party.
fn management(rng: &mut Rng, wire: &Wire) -> Option<Vec<u8>> {
    let words: Vec<_> = wire
        .seen
        .iter()
        .filter(|s| s.bth.opcode == opcode::UD_SEND_ONLY && s.inner.len() > MTU)
        .collect();
    let seen = words.get(rng.below(words.len() as u64) as usize)?;
    let mut inner = seen.inner.clone();
    match rng.below(4) {
        // The same message with another attribute.
        0 => inner[ATTRIBUTE + 1] = 0x10 + rng.below(11) as u8,
        // An unknown party: a request is then a new one.
        1 => estrange(rng, &mut inner),
        // The two parties swapped.
        2 => {
            let (left, right) = inner[WORDS..].split_at_mut(4);
            left.swap_with_slice(&mut right[..4]);
        }
        _ => {}
    }
    let from = if rng.one_in(4) { 0 } else { WORDS };
    spoil(rng, &mut inner, from);
    Some(inner)
}
