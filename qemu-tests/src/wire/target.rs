// SPDX-License-Identifier: MIT OR Apache-2.0

//! The target of the raw peer: a kfabric program on node 1 that accepts every connection, exports
//! parts of a buffer, and counts its events.
//!
//! It behaves like an ordinary server until node 2 ends a round; then it checks its state.

use super::rng::Rng;
use super::{fresh, slow};
use crate::buf::Buf;
use crate::harness::Ctx;
use crate::op::{self, iov};
use crate::pair::{Opts, Remote, Side, LOCAL, REMOTE};
use crate::raw::{CallError, Cq, Event};
use crate::sys;
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Eight bytes, repeated, that no peer may read.
pub const SECRET: [u8; 8] = [0x5e, 0xc2, 0xe7, 0x91, 0x3b, 0xad, 0xca, 0x7e];
/// Content of the readable part.
const PUBLIC: u8 = 0x77;
/// Bytes of the buffer.
const LEN: u64 = 64 << 10;
/// Bytes of an exported part.
pub const PART: u64 = 4096;
/// Offsets and rights of the exported parts.
const PARTS: [(u64, u64); 3] = [
    (16 << 10, KFI_REMOTE_READ | KFI_REMOTE_WRITE),
    (24 << 10, KFI_REMOTE_READ),
    (32 << 10, KFI_REMOTE_WRITE),
];
/// Offset of the data that the target reads from its peer.
const LANDING: u64 = 36 << 10;
/// Offset of the receives, one each [`STEP`].
const RECEIVES: u64 = 40 << 10;
/// Bytes from one receive to the next; the longest receive takes half.
const STEP: u64 = 1024;
/// Number of receives of each connection.
pub const DEPTH: u64 = 16;
/// Time limit of closing an endpoint, whatever the peer does.
const CLOSE: Duration = Duration::from_secs(20);
/// Maximum number of connections; the target rejects further ones.
const MOST: usize = 48;

/// An order of node 2.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// A round begins.
    Begin {
        /// Seed of the target's random choices.
        seed: u64,
        /// True if every request is accepted.
        polite: bool,
        /// Memory of the peer, which the target reads and writes over each connection.
        mem: Option<(u64, u64)>,
    },
    /// Connect this many endpoints to this port.
    Dial(u16, u32),
    /// End the round.
    Settle,
    /// Make an ordinary transfer with an ordinary peer.
    Fresh,
    /// No orders follow.
    End,
}

/// The targets of the peer's attacks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bait {
    /// Port on which the target listens.
    pub port: u16,
    /// Address of the buffer's first byte, in the address space of the exported parts.
    pub base: u64,
    /// Length of the buffer.
    pub len: u64,
    /// Exported parts, with rights.
    pub parts: Vec<(Remote, u64)>,
    /// Revoked keys.
    pub stale: Vec<u64>,
}

/// Result of a round, as the target saw it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Number of requests.
    pub requests: u64,
    /// Number of requests that could not be accepted.
    pub aborted: u64,
    /// Number of established connections.
    pub connected: u64,
    /// Number of completions.
    pub completions: u64,
    /// Violations found.
    pub faults: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Connecting or accepting.
    Opened,
    Connected,
    /// The shutdown was reported.
    Ended,
}

/// A connection of the target's.
struct Conn {
    ep: u64,
    cq: Cq,
    state: State,
    /// Contexts of operations that have not completed.
    open: Vec<u64>,
}

struct Target {
    side: Side,
    buf: Buf,
    region: u64,
    slots: Vec<u64>,
    bait: Bait,
    rng: Rng,
    polite: bool,
    mem: Option<(u64, u64)>,
    conns: Vec<Conn>,
    /// Requests that are left unanswered.
    ignored: Vec<u64>,
    tally: Tally,
}

/// Plays node 1 of every wire test.
///
/// # Errors
///
/// If a setup step fails. Violations that the peer provokes go into the tally.
pub fn serve(ctx: &mut Ctx) -> Result<()> {
    let mut target = Target::new(ctx)?;
    ctx.ctl.send(&target.bait)?;
    loop {
        target.tend()?;
        // An order and its answer alternate, so no order waits in a buffer.
        if !sys::poll_in(ctx.ctl.as_fd(), Duration::from_millis(2))? {
            continue;
        }
        match ctx.ctl.recv()? {
            Order::Begin { seed, polite, mem } => {
                target.rng = Rng::new(seed);
                target.polite = polite;
                target.mem = mem;
                ctx.ctl.send(&())?;
            }
            Order::Dial(port, count) => {
                for _ in 0..count {
                    target.dial(ctx, port)?;
                }
                ctx.ctl.send(&())?;
            }
            Order::Settle => {
                let tally = target.settle()?;
                ctx.ctl.send(&(tally, &target.bait))?;
            }
            Order::Fresh => fresh(ctx).context("an ordinary transfer")?,
            Order::End => return Ok(()),
        }
    }
}

impl Target {
    fn new(ctx: &Ctx) -> Result<Self> {
        let side = Side::open(ctx)?;
        let buf = Buf::new(LEN as usize)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let slots = side.dev.key_alloc(region, PARTS.len() as u32)?;
        let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
        let bait = Bait {
            port: at.port(),
            base: 0,
            len: LEN,
            parts: Vec::new(),
            stale: Vec::new(),
        };
        let mut target = Self {
            side,
            buf,
            region,
            slots,
            bait,
            rng: Rng::new(0),
            polite: true,
            mem: None,
            conns: Vec::new(),
            ignored: Vec::new(),
            tally: Tally::default(),
        };
        target.dress();
        target.assign()?;
        Ok(target)
    }

    fn fault(&mut self, what: String) {
        self.tally.faults.push(what);
    }

    /// Assigns keys to the parts.
    fn assign(&mut self) -> Result<()> {
        self.bait.parts.clear();
        for (slot, (offset, access)) in self.slots.iter().zip(PARTS) {
            let remote = self.side.assign(*slot, offset, PART, access)?;
            self.bait.base = remote.addr.wrapping_sub(offset);
            self.bait.parts.push((remote, access));
        }
        Ok(())
    }

    /// Revokes the keys, which the peer may have invalidated.
    fn revoke(&mut self) -> Result<()> {
        for slot in &self.slots {
            self.side.dev.key_revoke(*slot)?;
        }
        let gone = self.bait.parts.iter().map(|(remote, _)| remote.key);
        self.bait.stale.extend(gone);
        let old = self.bait.stale.len().saturating_sub(12);
        self.bait.stale.drain(..old);
        Ok(())
    }

    /// Writes the content that must stay.
    fn dress(&self) {
        let secret = u64::from_ne_bytes(SECRET);
        for at in (0..LEN as usize).step_by(8) {
            self.buf.set64(at, secret);
        }
        let readable = PARTS
            .iter()
            .filter(|(_, access)| access & KFI_REMOTE_READ != 0);
        for (offset, _) in readable {
            for at in (*offset..offset + PART).step_by(8) {
                self.buf.set64(at as usize, u64::from_ne_bytes([PUBLIC; 8]));
            }
        }
    }

    /// Returns the length of receive `i`.
    fn receive_len(i: u64) -> u64 {
        [1, 64, 256, 512][i as usize % 4]
    }

    /// Returns whether a peer, or an operation of the target's own, may change this word.
    fn may_change(at: u64) -> bool {
        let written = PARTS.iter().any(|(offset, access)| {
            access & KFI_REMOTE_WRITE != 0 && (*offset..offset + PART).contains(&at)
        });
        let received = (RECEIVES..RECEIVES + DEPTH * STEP).contains(&at) && {
            let (i, into) = ((at - RECEIVES) / STEP, (at - RECEIVES) % STEP);
            into < Self::receive_len(i).next_multiple_of(8)
        };
        written || received || (LANDING..LANDING + PART).contains(&at)
    }

    /// Checks that the other words are unchanged.
    fn look(&mut self) {
        let secret = u64::from_ne_bytes(SECRET);
        let public = u64::from_ne_bytes([PUBLIC; 8]);
        let (from, _) = PARTS[1];
        for at in (0..LEN).step_by(8).filter(|at| !Self::may_change(*at)) {
            let wanted = if (from..from + PART).contains(&at) {
                public
            } else {
                secret
            };
            let got = self.buf.get64(at as usize);
            if got != wanted {
                self.fault(format!("the word at {at} was changed to {got:#018x}"));
                break;
            }
        }
        // The first receive takes one byte; the other bytes of its word must stay.
        for i in (0..DEPTH).filter(|i| Self::receive_len(*i) == 1) {
            let at = (RECEIVES + i * STEP) as usize;
            if self.buf.read(at + 1, 7) != SECRET[1..] {
                self.fault(format!("bytes behind receive {i} were changed"));
            }
        }
        if let Err(e) = self.buf.check_guards() {
            self.fault(format!("{e:#}"));
        }
    }

    /// Handles all events and completions.
    fn tend(&mut self) -> Result<()> {
        loop {
            match self.side.dev.eq_read(self.side.eq.handle, 0) {
                Ok(event) => self.event(&event)?,
                Err(e) if e.errno.0 == libc::EAGAIN => break,
                Err(e) => return Err(e).context("reading events"),
            }
        }
        for i in 0..self.conns.len() {
            self.reap(i);
        }
        Ok(())
    }

    /// Takes the completions of a connection.
    fn reap(&mut self, i: usize) {
        let conn = &mut self.conns[i];
        let mut faults = Vec::new();
        while let Some(e) = conn.cq.read() {
            self.tally.completions += 1;
            match conn.open.iter().position(|context| *context == e.context) {
                Some(at) => {
                    conn.open.swap_remove(at);
                }
                None => faults.push(format!(
                    "{e:?} completes an operation that is not outstanding"
                )),
            }
            // A write with immediate data takes a receive, and reports its own length.
            let received = e.context < DEPTH && e.flags & KFI_RMA == 0;
            if received && e.len > Self::receive_len(e.context) {
                faults.push(format!("{e:?}: longer than its receive"));
            }
        }
        self.tally.faults.extend(faults);
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        let raw = &event.raw;
        if raw.event == KFI_CONNREQ {
            self.tally.requests += 1;
            if event.data.len() > 4096 {
                self.fault(format!("a request with {} bytes", event.data.len()));
            }
            return self.request(raw.connreq);
        }
        let Some(i) = self.conns.iter().position(|c| c.ep == raw.object) else {
            self.fault(format!("an event of no endpoint: {raw:?}"));
            return Ok(());
        };
        let state = self.conns[i].state;
        let next = match (raw.event, state) {
            (KFI_CONNECTED, State::Opened) => State::Connected,
            (KFI_SHUTDOWN, State::Connected) | (KFI_CONN_ERROR, State::Opened) => State::Ended,
            _ => {
                self.fault(format!("when {state:?}: {raw:?}"));
                state
            }
        };
        self.conns[i].state = next;
        if raw.event == KFI_CONNECTED {
            self.tally.connected += 1;
            self.work(i);
        }
        Ok(())
    }

    /// Handles a request in a random way.
    fn request(&mut self, connreq: u64) -> Result<()> {
        let choice = if self.polite { 9 } else { self.rng.below(10) };
        if choice == 0 || self.conns.len() >= MOST {
            let len = self.rng.below(56) as usize;
            let data = self.rng.bytes(len);
            let _ = self.side.dev.reject(connreq, &data);
            return Ok(());
        }
        if choice == 1 {
            self.ignored.push(connreq);
            return Ok(());
        }
        let Some(i) = self.endpoint(connreq)? else {
            return Ok(());
        };
        let ep = self.conns[i].ep;
        let len = self.rng.below(56) as usize;
        let data = self.rng.bytes(len);
        match self.side.dev.accept(ep, &data) {
            Ok(()) => {}
            // The peer has disconnected.
            Err(e) if e.errno.0 == libc::ECONNABORTED => {
                self.tally.aborted += 1;
                return self.close(i);
            }
            Err(e) => {
                self.fault(format!("{e}"));
                return self.close(i);
            }
        }
        match choice {
            2 => self.close(i),
            3 => {
                let _ = self.side.dev.shutdown(ep);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Opens an endpoint with its receives, for a request or (0) to connect.
    fn endpoint(&mut self, connreq: u64) -> Result<Option<usize>> {
        let opts = Opts {
            tx_size: 16,
            rx_size: DEPTH as u32,
            ..Opts::default()
        };
        let cq = self.side.cq(64, KFI_CQ_FORMAT_DATA)?;
        let got = match self.side.endpoint(&opts, &cq, connreq) {
            Ok(got) => got,
            Err(e) => {
                let errno = e.downcast_ref::<CallError>().map(|e| e.errno.0);
                if errno != Some(libc::ECONNABORTED) {
                    self.fault(format!("an endpoint: {e:#}"));
                    return Ok(None);
                }
                self.side
                    .dev
                    .close(cq.handle)
                    .context("closing its queue")?;
                return Ok(None);
            }
        };
        let receives: Vec<_> = (0..DEPTH)
            .map(|i| {
                op::recv(
                    i,
                    &[iov(self.region, RECEIVES + i * STEP, Self::receive_len(i))],
                )
            })
            .collect();
        // The peer may have given up meanwhile.
        let posted = match self.side.dev.submit(got.handle, &receives) {
            Err(e) if e.errno.0 == libc::ENOTCONN => 0,
            other => other?.0,
        };
        self.conns.push(Conn {
            ep: got.handle,
            cq,
            state: State::Opened,
            open: (0..posted as u64).collect(),
        });
        Ok(Some(self.conns.len() - 1))
    }

    fn dial(&mut self, ctx: &Ctx, port: u16) -> Result<()> {
        let Some(i) = self.endpoint(0)? else {
            bail!("no endpoint to connect");
        };
        let len = self.rng.below(56) as usize;
        let data = self.rng.bytes(len);
        let to = ctx.env.peer_at(port);
        self.side.dev.connect(self.conns[i].ep, to, &data)?;
        Ok(())
    }

    /// Uses a connection, if the peer has memory.
    fn work(&mut self, i: usize) {
        let Some((addr, key)) = self.mem else {
            return;
        };
        let public = iov(self.region, PARTS[1].0, 1 + self.rng.below(PART));
        let landing = iov(self.region, LANDING, 1 + self.rng.below(PART));
        for n in 0..self.rng.below(6) {
            let context = 1000 + n;
            let entry = match self.rng.below(3) {
                0 => op::send(context, &[public]),
                1 => op::write(context, &[public], addr, key),
                _ => op::read(context, &[landing], addr, key),
            };
            let conn = &mut self.conns[i];
            match self.side.dev.submit(conn.ep, &[entry]) {
                Ok((1, _)) => conn.open.push(context),
                Ok(_) => {}
                Err(e) if e.errno.0 == libc::ENOTCONN => {}
                Err(e) => return self.fault(format!("{e}")),
            }
        }
    }

    /// Closes an endpoint: outstanding operations complete then at the latest.
    fn close(&mut self, i: usize) -> Result<()> {
        let start = Instant::now();
        let closed = self.side.dev.close(self.conns[i].ep);
        closed.context("closing an endpoint")?;
        let took = start.elapsed();
        if took > CLOSE * slow() {
            let state = self.conns[i].state;
            self.fault(format!("when {state:?}, closing took {} s", took.as_secs()));
        }
        self.reap(i);
        let conn = self.conns.swap_remove(i);
        if !conn.open.is_empty() {
            self.fault(format!("closed, and {:?} never completed", conn.open));
        }
        let closed = self.side.dev.close(conn.cq.handle);
        closed.context("closing a completion queue")?;
        Ok(())
    }

    /// Waits until `done`, or for at most `limit`.
    fn until(&mut self, limit: Duration, done: impl Fn(&Conn) -> bool) -> Result<bool> {
        let end = Instant::now() + limit * slow();
        loop {
            self.tend()?;
            if self.conns.iter().all(&done) {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The peer has closed everything: here everything must end too, once.
    fn settle(&mut self) -> Result<Tally> {
        for connreq in std::mem::take(&mut self.ignored) {
            let _ = self.side.dev.reject(connreq, b"too late");
        }
        if !self.until(Duration::from_secs(60), |c| c.state != State::Connected)? {
            self.fault("a connection does not end".into());
        }
        // A peer that was never answered gets no event.
        self.until(Duration::from_millis(100), |c| c.state == State::Ended)?;
        let flushed = |c: &Conn| c.state != State::Ended || c.open.is_empty();
        if !self.until(Duration::from_secs(30), flushed)? {
            self.fault("operations of an ended connection do not complete".into());
        }
        while !self.conns.is_empty() {
            self.close(0)?;
        }
        // Any further event is an error, or a request.
        self.tend()?;
        while !self.conns.is_empty() {
            self.close(0)?;
        }
        for connreq in std::mem::take(&mut self.ignored) {
            let _ = self.side.dev.reject(connreq, &[]);
        }
        self.look();
        self.dress();
        self.revoke().context("revoking")?;
        self.assign()?;
        ensure!(self.bait.parts.len() == PARTS.len(), "keys are missing");
        Ok(std::mem::take(&mut self.tally))
    }
}
