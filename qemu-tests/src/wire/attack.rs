// SPDX-License-Identifier: MIT OR Apache-2.0

//! Node 2: rounds of attacks, and their common parts.

use super::datagrams::Wire;
use super::peer::{Peer, SLOTS};
use super::rng::Rng;
use super::target::{Bait, Order, Tally, PART, SECRET};
use super::{env, fresh, slow, SECONDS};
use crate::harness::Ctx;
use anyhow::{bail, ensure, Context, Result};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// Number of rounds between ordinary transfers.
const FRESH: u64 = 25;
/// Content of the peer's own memory.
const FILL: u8 = 0x11;

/// Ordinary connection parameters and private data.
pub(super) const ORDINARY: &str = "16 16 1 6 7 0 -1 00";

/// A connection of the peer's, with the numbers that its device and the target's agreed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) slot: u64,
    /// Number of the peer's queue pair.
    pub(super) own: u32,
    /// Number of the target's queue pair.
    pub(super) theirs: u32,
    /// Number of the target's first packet.
    pub(super) their_psn: u32,
    /// Number of the peer's first packet.
    pub(super) own_psn: u32,
}

/// The attacker.
pub(super) struct Attack<'a> {
    pub(super) ctx: &'a mut Ctx,
    pub(super) peer: Peer,
    pub(super) rng: Rng,
    pub(super) bait: Bait,
    /// Address and key of the peer's memory.
    pub(super) mem: (u64, u64),
    /// State that the forger of datagrams keeps from round to round.
    pub(super) wire: Option<Wire>,
    /// Number of requests that must arrive in this round, and number of those that cannot be
    /// accepted.
    pub(super) expect: Option<(u64, u64)>,
    seed: u64,
    steps: u64,
    connected: u64,
}

/// Encodes bytes as the peer parses them.
pub(super) fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".into();
    }
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Appends text to a file.
fn append(path: &str, text: &str) -> Result<()> {
    let mut file = File::options().append(true).create(true).open(path)?;
    Ok(writeln!(file, "{text}")?)
}

/// Returns a seed if none was given.
fn any_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |t| t.as_nanos() as u64) & 0xffff_ffff
}

impl<'a> Attack<'a> {
    pub(super) fn new(ctx: &'a mut Ctx) -> Result<Self> {
        let peer = Peer::start(slow())?;
        let bait = ctx.ctl.recv()?;
        let seed = env::number(env::SEED).unwrap_or_else(any_seed);
        let mut attack = Self {
            ctx,
            peer,
            rng: Rng::new(seed),
            bait,
            mem: (0, 0),
            wire: None,
            expect: None,
            seed,
            steps: 0,
            connected: 0,
        };
        attack.prepare()?;
        Ok(attack)
    }

    /// Reads the memory's address and key after the peer has started.
    fn prepare(&mut self) -> Result<()> {
        let resolve = self.resolve_command(SLOTS - 1);
        self.must(&resolve)?;
        let mem = self.must("mem")?;
        self.mem = (mem[0].parse()?, mem[1].parse()?);
        self.must(&format!("del {}", SLOTS - 1))?;
        Ok(())
    }

    /// Runs rounds until time is up.
    pub(super) fn run(&mut self, round: fn(&mut Attack<'a>) -> Result<()>) -> Result<()> {
        self.run_rounds(env::number(env::ROUNDS).unwrap_or(u64::MAX), round)
    }

    /// Runs at most `most` rounds.
    pub(super) fn run_rounds(
        &mut self,
        most: u64,
        round: fn(&mut Attack<'a>) -> Result<()>,
    ) -> Result<()> {
        let seconds = env::number(env::SECONDS).unwrap_or(SECONDS);
        let first = env::number(env::FROM).unwrap_or(0);
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut done = 0;
        while done == 0 || (done < most && Instant::now() < end) {
            let number = first + done;
            self.one(number, round)
                .with_context(|| self.words(number))?;
            done += 1;
            if done.is_multiple_of(FRESH) {
                self.fresh().with_context(|| self.words(number))?;
            }
        }
        self.fresh()?;
        self.ctx.ctl.send(&Order::End)?;
        let said = format!(
            "seed {:#x}: {done} rounds, {} steps, {} connections",
            self.seed, self.steps, self.connected
        );
        eprintln!("{said}");
        let said = format!("{said}; {}", self.peer.times());
        if let Ok(path) = std::env::var(env::LOG) {
            append(&path, &said)?;
        }
        Ok(())
    }

    fn fresh(&mut self) -> Result<()> {
        self.ctx.ctl.send(&Order::Fresh)?;
        fresh(self.ctx).context("an ordinary transfer")
    }

    /// Returns the command that repeats this round, and the round's steps.
    fn words(&self, number: u64) -> String {
        let all = self.peer.trace.join("\n");
        eprintln!("{all}");
        let path = std::env::var(env::LOG).unwrap_or_default();
        if !path.is_empty() {
            let _ = append(
                &path,
                &format!("seed {:#x} round {number}:\n{all}", self.seed),
            );
        }
        let last = self.peer.trace.len().saturating_sub(12);
        format!(
            "kfi-wire --seed {:#x} --from {number} --rounds 1: {} steps, last: {}",
            self.seed,
            self.peer.trace.len(),
            self.peer.trace[last..].join("; ")
        )
    }

    fn one(&mut self, number: u64, round: fn(&mut Attack<'a>) -> Result<()>) -> Result<()> {
        self.rng = Rng::new(self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(number));
        self.peer.forget();
        self.must(&format!("fill {FILL}"))?;
        round(self)?;
        self.settle()
    }

    /// Tells the target that a round begins.
    pub(super) fn begin(&mut self, polite: bool) -> Result<()> {
        let mem = self.rng.one_in(2).then_some(self.mem);
        let seed = self.rng.any();
        self.order(&Order::Begin { seed, polite, mem })
    }

    /// Gives the target an order and waits until it has executed it.
    pub(super) fn order(&mut self, order: &Order) -> Result<()> {
        self.ctx.ctl.send(order)?;
        self.ctx.ctl.recv()
    }

    /// Closes everything that the peer has, and checks the result.
    fn settle(&mut self) -> Result<()> {
        self.must("clear")?;
        self.ctx.ctl.send(&Order::Settle)?;
        let (tally, bait): (Tally, Bait) = self.ctx.ctl.recv()?;
        self.steps += self.peer.trace.len() as u64;
        self.connected += tally.connected;
        self.bait = bait;
        ensure!(tally.faults.is_empty(), "{}", tally.faults.join("; "));
        if let Some(expected) = self.expect.take() {
            let got = (tally.requests, tally.aborted);
            ensure!(
                got == expected,
                "requests, and those rejected for their contents: {got:?}, not {expected:?}"
            );
        }
        let found = self.must(&format!("find {}", hex(&SECRET)))?;
        ensure!(found == ["0"], "the peer has read bytes that no key grants");
        Ok(())
    }

    /// Gives the peer a command that it may refuse.
    pub(super) fn ask(&mut self, command: &str) -> Result<Option<Vec<String>>> {
        self.peer.ask(command)
    }

    /// Gives the peer a command that must succeed.
    pub(super) fn must(&mut self, command: &str) -> Result<Vec<String>> {
        match self.peer.ask(command)? {
            Some(words) => Ok(words),
            None => bail!("the raw peer cannot {command:?}"),
        }
    }

    /// Kills the peer in the middle of its work.
    pub(super) fn die(&mut self) -> Result<()> {
        self.peer.die()?;
        self.prepare()?;
        self.must(&format!("fill {FILL}")).map(|_| ())
    }

    pub(super) fn resolve_command(&self, slot: u64) -> String {
        format!("resolve {slot} {} {}", self.ctx.env.peer, self.bait.port)
    }

    /// Returns connection parameters and private data, ordinary or not.
    pub(super) fn param(&mut self, ordinary: bool, room: u64) -> String {
        if ordinary {
            return ORDINARY.into();
        }
        let rng = &mut self.rng;
        let count = |rng: &mut Rng| rng.pick(&[0, 1, 7, 16, 128, 255]);
        let mut numbers: Vec<i64> = (0..5).map(|_| count(rng)).collect();
        numbers.push(i64::from(rng.one_in(4)));
        numbers.push(match rng.below(8) {
            0 => 0,
            1 => 1,
            2 => 0xff_ffff,
            3 => rng.below(1 << 32) as i64,
            _ => -1,
        });
        let len = rng.pick(&[0, 1, 2, room - 1, room, room + 1, 255]);
        let len = if rng.one_in(3) { rng.below(room) } else { len };
        let mut data = rng.bytes(len as usize);
        // Lengths that are true, or wrong by a little or a lot.
        if let Some(size) = data.first_mut() {
            *size = rng.edge(len.saturating_sub(1)) as u8;
        }
        let words: Vec<_> = numbers.iter().map(i64::to_string).collect();
        format!("{} {}", words.join(" "), hex(&data))
    }

    /// Connects as an ordinary peer does. Returns `None` if the target has rejected it.
    pub(super) fn connect(&mut self, slot: u64, param: &str) -> Result<Option<Link>> {
        let resolve = self.resolve_command(slot);
        self.must(&resolve)?;
        let own = self.must(&format!("qp {slot}"))?[0].parse()?;
        if self.ask(&format!("connect {slot} {param}"))?.is_none() {
            return Ok(None);
        }
        let wait = format!("wait {slot} {}", 10_000 * slow());
        let event = self.must(&wait)?;
        if event[0] != "CONNECT_RESPONSE" {
            return Ok(None);
        }
        let Some(agreed) = self.ask(&format!("rts {slot}"))? else {
            return Ok(None);
        };
        let link = Link {
            slot,
            own,
            theirs: agreed[0].parse()?,
            their_psn: agreed[1].parse()?,
            own_psn: agreed[2].parse()?,
        };
        Ok(self
            .ask(&format!("establish {slot}"))?
            .is_some()
            .then_some(link))
    }

    /// Returns a target for operations: address, length and key, mostly near the exported parts.
    pub(super) fn aim(&mut self) -> (u64, u64, u32) {
        let parts = self.bait.parts.clone();
        let rng = &mut self.rng;
        let (remote, _) = rng.pick(&parts);
        let inside = rng.below(PART);
        let addr = match rng.below(8) {
            0 => remote.addr.wrapping_sub(1),
            1 => remote.addr + PART - 1,
            2 => remote.addr + PART,
            3 => self.bait.base + rng.below(self.bait.len),
            4 => rng.edge(remote.addr),
            5 => remote.addr,
            _ => remote.addr + inside,
        };
        let len = match rng.below(7) {
            0 => 0,
            1 => 1 + rng.below(PART - inside),
            2 => PART,
            3 => PART + 1,
            4 => 8,
            5 => rng.pick(&[1 << 16, 1 << 20, 3 << 20, (4 << 20) + 1]),
            _ => 1 + rng.below(512),
        };
        let key = remote.key as u32;
        let key = match rng.below(12) {
            0 => key ^ 1 << rng.below(32),
            1 => key.wrapping_add(256),
            2 => key.wrapping_sub(256),
            3 => rng.any() as u32,
            4 => rng.pick(&parts).0.key as u32,
            5 if !self.bait.stale.is_empty() => rng.pick(&self.bait.stale) as u32,
            6 => rng.pick(&[0, u32::MAX]),
            _ => key,
        };
        (addr, len, key)
    }

    /// Returns whether the keys grant `access` to the range.
    pub(super) fn allowed(&self, addr: u64, len: u64, key: u32, access: u64) -> bool {
        len == 0
            || self.bait.parts.iter().any(|(remote, rights)| {
                remote.key as u32 == key
                    && rights & access != 0
                    && addr >= remote.addr
                    && addr
                        .checked_add(len)
                        .is_some_and(|end| end <= remote.addr + PART)
            })
    }

    /// Ends a connection in one of several ways.
    pub(super) fn end(&mut self, slot: u64) -> Result<()> {
        match self.rng.below(12) {
            0 => self.die(),
            n @ 1..=9 => {
                let how = ["disconnect", "del", "delqp", "error"][n as usize % 4];
                self.ask(&format!("{how} {slot}")).map(|_| ())
            }
            // The end of the round closes it.
            _ => Ok(()),
        }
    }
}
