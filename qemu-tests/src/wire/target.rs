// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the raw peer aims at: a kfabric program on node 1 that takes every
//! connection, exports parts of a buffer, and counts what it hears.
//!
//! It does as an ordinary server does, whatever comes, until node 2 says that
//! a round is over; then it looks whether all is as it must be.

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

/// What no peer may read: these eight bytes, again and again.
pub const SECRET: [u8; 8] = [0x5e, 0xc2, 0xe7, 0x91, 0x3b, 0xad, 0xca, 0x7e];
/// What the readable part holds.
const PUBLIC: u8 = 0x77;
/// Bytes of the buffer, and of each exported part.
const LEN: u64 = 64 << 10;
/// Bytes of an exported part.
pub const PART: u64 = 4096;
/// Where the exported parts begin, and what they allow.
const PARTS: [(u64, u64); 3] = [
    (16 << 10, KFI_REMOTE_READ | KFI_REMOTE_WRITE),
    (24 << 10, KFI_REMOTE_READ),
    (32 << 10, KFI_REMOTE_WRITE),
];
/// Where what the target reads from its peer goes.
const LANDING: u64 = 36 << 10;
/// Where receives are, one each [`STEP`].
const RECEIVES: u64 = 40 << 10;
/// Bytes from one receive to the next, of which the longest takes half.
const STEP: u64 = 1024;
/// Receives of each connection.
pub const DEPTH: u64 = 16;
/// How long closing an endpoint may take, whatever the peer does.
const CLOSE: Duration = Duration::from_secs(20);
/// Connections that are held at a time; what comes beyond is refused.
const MOST: usize = 48;

/// What node 2 says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// A round begins.
    Begin {
        /// For what the target chooses by chance.
        seed: u64,
        /// Every request is accepted.
        polite: bool,
        /// Memory of the peer: the target uses each connection towards it.
        mem: Option<(u64, u64)>,
    },
    /// Connect so many endpoints to this port.
    Dial(u16, u32),
    /// The round is over.
    Settle,
    /// Do something ordinary with an ordinary peer.
    Fresh,
    /// That was all.
    End,
}

/// What the peer is told to aim at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bait {
    /// Where the target listens.
    pub port: u16,
    /// The buffer's first byte, in the addresses of the exported parts.
    pub base: u64,
    /// Its bytes.
    pub len: u64,
    /// What is exported, with rights.
    pub parts: Vec<(Remote, u64)>,
    /// Keys that were revoked.
    pub stale: Vec<u64>,
}

/// How a round went, as the target saw it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Requests that came.
    pub requests: u64,
    /// Those of them that could not be accepted.
    pub aborted: u64,
    /// Connections that were up.
    pub connected: u64,
    /// Completions that came, each once.
    pub completions: u64,
    /// What was not as it must be.
    pub faults: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Connecting or accepting.
    Opened,
    Connected,
    /// Its end was told.
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
    /// Requests that are left lying.
    ignored: Vec<u64>,
    tally: Tally,
}

/// Node 1 of every wire test.
///
/// # Errors
///
/// When something cannot be set up. What the peer provokes goes into the tally.
pub fn serve(ctx: &mut Ctx) -> Result<()> {
    let mut target = Target::new(ctx)?;
    ctx.ctl.send(&target.bait)?;
    loop {
        target.tend()?;
        // An order and its answer take turns, so none waits in a buffer.
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

    /// Gives the parts keys.
    fn assign(&mut self) -> Result<()> {
        self.bait.parts.clear();
        for (slot, (offset, access)) in self.slots.iter().zip(PARTS) {
            let remote = self.side.assign(*slot, offset, PART, access)?;
            self.bait.base = remote.addr.wrapping_sub(offset);
            self.bait.parts.push((remote, access));
        }
        Ok(())
    }

    /// Takes the keys away, which the peer may have invalidated.
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

    /// Puts in what must stay.
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

    /// Bytes that receive `i` takes.
    fn receive_len(i: u64) -> u64 {
        [1, 64, 256, 512][i as usize % 4]
    }

    /// Whether a peer, or an operation of the target's own, may change this word.
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

    /// Looks whether everything that must stay has stayed.
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
        // The first receive takes one byte: those behind it, in the same word.
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

    /// Takes in what has happened.
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

    /// Takes in completions of a connection.
    fn reap(&mut self, i: usize) {
        let conn = &mut self.conns[i];
        let mut faults = Vec::new();
        while let Some(e) = conn.cq.read() {
            self.tally.completions += 1;
            match conn.open.iter().position(|context| *context == e.context) {
                Some(at) => {
                    conn.open.swap_remove(at);
                }
                None => faults.push(format!("{e:?} completes what is not under way")),
            }
            // A write with immediate data takes a receive, and tells its own length.
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

    /// What is done with a request is a matter of chance.
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
            // The peer has gone.
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

    /// An endpoint with its receives, for a request or (0) to connect.
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

    /// Uses a connection, if the peer has memory to use.
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

    /// Closes an endpoint: what was under way completes then at the latest.
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

    /// Waits until `done`, or so long.
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

    /// The peer has ended all it had: so must everything here, once.
    fn settle(&mut self) -> Result<Tally> {
        for connreq in std::mem::take(&mut self.ignored) {
            let _ = self.side.dev.reject(connreq, b"too late");
        }
        if !self.until(Duration::from_secs(60), |c| c.state != State::Connected)? {
            self.fault("a connection does not end".into());
        }
        // Who was never answered is not told that nobody will.
        self.until(Duration::from_millis(100), |c| c.state == State::Ended)?;
        let flushed = |c: &Conn| c.state != State::Ended || c.open.is_empty();
        if !self.until(Duration::from_secs(30), flushed)? {
            self.fault("operations of an ended connection do not complete".into());
        }
        while !self.conns.is_empty() {
            self.close(0)?;
        }
        // Whatever else comes is one event too many, or a request.
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
