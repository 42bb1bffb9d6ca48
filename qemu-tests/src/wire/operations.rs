// SPDX-License-Identifier: MIT OR Apache-2.0

//! Operations: every verbs opcode, aimed at the target's exports and around them, and connections
//! that end in the middle of operations.

use super::attack::{Attack, Link, ORDINARY};
use anyhow::{ensure, Result};
use kfabric_uapi::{KFI_REMOTE_READ, KFI_REMOTE_WRITE};

/// `enum ibv_wr_opcode`.
const WRITE: u64 = 0;
const WRITE_IMM: u64 = 1;
const READ: u64 = 4;
const CMP_SWAP: u64 = 5;
const FETCH_ADD: u64 = 6;
/// Common opcodes several times, and every other opcode once.
const OPCODES: [u64; 20] = [
    0, 0, 0, 1, 1, 2, 2, 3, 4, 4, 4, 4, 5, 6, 7, 8, 9, 10, 14, 15,
];
/// Maximum number of operations in the peer's queue.
const MOST: u64 = 100;

/// A posted operation, and whether it may succeed.
struct Posted {
    what: String,
    allowed: bool,
}

/// Runs a round.
pub(super) fn round(attack: &mut Attack<'_>) -> Result<()> {
    attack.begin(true)?;
    let mut links = Vec::new();
    for slot in 0..1 + attack.rng.below(3) {
        // Many reads at once, few resources for them, a peer that never retries.
        let param = attack.rng.pick(&[
            ORDINARY,
            ORDINARY,
            "255 255 0 7 7 1 -1 ff",
            "0 0 0 0 0 0 -1 -",
            "0 255 1 1 1 0 -1 38",
        ]);
        links.extend(attack.connect(slot, param)?);
    }
    for link in links {
        for _ in 0..attack.rng.below(8) {
            let len = attack.rng.pick(&[0, 1, 512, 4096, 1 << 20]);
            attack.ask(&format!("recv {} {len}", link.slot))?;
        }
        use_it(attack, link)?;
        attack.end(link.slot)?;
    }
    Ok(())
}

fn use_it(attack: &mut Attack<'_>, link: Link) -> Result<()> {
    let mut posted = Vec::new();
    let burst = attack.rng.one_in(4);
    let count = if burst { 40 } else { 1 + attack.rng.below(16) };
    for n in 0..count.min(MOST) {
        let opcode = if burst && n > 0 {
            READ
        } else {
            attack.rng.pick(&OPCODES)
        };
        let (addr, mut len, key) = attack.aim();
        if matches!(opcode, CMP_SWAP | FETCH_ADD) && !attack.rng.one_in(4) {
            len = 8;
        }
        let allowed = match opcode {
            WRITE | WRITE_IMM => attack.allowed(addr, len, key, KFI_REMOTE_WRITE),
            READ => attack.allowed(addr, len, key, KFI_REMOTE_READ),
            // No key grants these.
            CMP_SWAP | FETCH_ADD | 14 | 15 => false,
            _ => true,
        };
        let (a, b) = (attack.rng.any(), attack.rng.any());
        let what = format!(
            "post {} {opcode} {len} {addr:#x} {key:#x} {a:#x} {b:#x}",
            link.slot
        );
        if attack.ask(&what)?.is_some() {
            posted.push(Posted { what, allowed });
        }
        if !burst && attack.rng.one_in(3) {
            // A completion may end the connection; then the remaining operations are useless.
            look(attack, link.slot, &mut posted)?;
        }
    }
    // Sometimes the operations are left outstanding.
    if attack.rng.one_in(3) {
        return Ok(());
    }
    look(attack, link.slot, &mut posted)
}

/// Takes completions, which come in the order of posting.
fn look(attack: &mut Attack<'_>, slot: u64, posted: &mut Vec<Posted>) -> Result<()> {
    let ms = attack.rng.pick(&[1, 20, 200]);
    let many = posted.len() + 16;
    for done in attack.must(&format!("poll {slot} {many} {ms}"))? {
        let mut numbers = done.split(':');
        let mut number = || numbers.next().and_then(|n| n.parse::<i64>().ok());
        let (status, _, id) = (number(), number(), number());
        if id != Some(1) || posted.is_empty() {
            continue;
        }
        let op = posted.remove(0);
        ensure!(
            op.allowed || status != Some(0),
            "{} went well, which no key allows",
            op.what
        );
    }
    Ok(())
}
