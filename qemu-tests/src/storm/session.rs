// SPDX-License-Identifier: MIT OR Apache-2.0

//! Work of a pair of workers. One half requests by message; the other offers a window of its memory
//! under a key. The first writes and reads the window and reports it. The other checks every byte,
//! revokes the key and answers. Both repeat that, with forks, moved and unmapped memory in between,
//! until one is disturbed or ends the session, in one of many ways.

use super::worker::{disturbed, Worker, BOUND};
use crate::buf::Buf;
use crate::op::{self, iov};
use crate::pair::{Opts, Remote, Side, LOCAL, REMOTE};
use crate::raw::{CallError, Cq};
use crate::sys::{self, patience, Ended};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Base of the listening halves' ports; the slot is added.
const PORTS: u16 = 21_000;
/// Bytes of a message: its head, and as many pattern bytes as the head says.
const MESSAGE: usize = 2048;
/// Bytes of a head.
const HEAD: usize = 64;
/// Number of posted receives.
const RECEIVES: usize = 4;
/// Bytes of the memory that windows are taken from.
const LENT: usize = 96 << 10;
/// Time limit of a successful connect.
const CONNECT: Duration = Duration::from_secs(6);

/// Head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    kind: u64,
    seq: u64,
    /// Seed of the pattern in the rest of the message.
    seed: u64,
    len: u64,
    remote: Remote,
}

/// Requests a window.
const ASK: u64 = 1;
/// Offers a window, filled with the pattern of the sequence number.
const LEND: u64 = 2;
/// Reports that the pattern of the seed is written.
const DONE: u64 = 3;
/// Reports that the pattern was checked and the key revoked.
const SEEN: u64 = 4;

impl Head {
    fn new(kind: u64, seq: u64, w: &mut Worker<'_>) -> Self {
        Self {
            kind,
            seq,
            seed: w.rng.draw(),
            len: w.rng.below((MESSAGE - HEAD) as u64),
            remote: Remote {
                addr: 0,
                key: 0,
                len: 0,
            },
        }
    }

    fn words(&self) -> [u64; 7] {
        let r = self.remote;
        [
            self.kind, self.seq, self.seed, self.len, r.addr, r.key, r.len,
        ]
    }

    fn put(&self, buf: &Buf, at: usize) {
        for (i, word) in self.words().into_iter().enumerate() {
            buf.set64(at + i * 8, word);
        }
        buf.fill_part(at + HEAD, self.len as usize, self.seed);
    }

    fn get(buf: &Buf, at: usize, len: usize) -> Result<Self> {
        ensure!((HEAD..=MESSAGE).contains(&len), "a message of {len} bytes");
        let w: Vec<u64> = (0..7).map(|i| buf.get64(at + i * 8)).collect();
        let head = Self {
            kind: w[0],
            seq: w[1],
            seed: w[2],
            len: w[3],
            remote: Remote {
                addr: w[4],
                key: w[5],
                len: w[6],
            },
        };
        ensure!(
            head.len as usize + HEAD == len,
            "a message of {len} bytes says that it has {}",
            head.len
        );
        buf.check_part(at + HEAD, head.len as usize, head.seed)
            .context("a message")?;
        Ok(head)
    }
}

/// One half's connection, and the counts of its posted operations.
struct Line {
    side: Side,
    cq: Cq,
    ep: u64,
    cntr: u64,
    mail: Buf,
    region: u64,
    /// Contexts of operations that are posted and not completed.
    open: BTreeMap<u64, bool>,
    next: u64,
    /// Numbers of successful and failed transmit operations.
    sent: (u64, u64),
    /// Received messages, with the place of each.
    came: Vec<(usize, usize)>,
    broken: bool,
}

/// Offset of the one outgoing message, behind the receives.
const OUT: usize = RECEIVES * MESSAGE;

impl Line {
    fn new(side: Side) -> Result<Self> {
        let cq = side.cq(64, KFI_CQ_FORMAT_DATA)?;
        let cntr = side.dev.cntr_open(side.domain.handle)?;
        let mail = Buf::new((RECEIVES + 1) * MESSAGE)?;
        let region = side.reg(&mail, LOCAL)?.handle;
        Ok(Self {
            side,
            cq,
            ep: 0,
            cntr,
            mail,
            region,
            open: BTreeMap::new(),
            next: 0,
            sent: (0, 0),
            came: Vec::new(),
            broken: false,
        })
    }

    fn endpoint(&mut self, connreq: u64) -> Result<()> {
        let opts = Opts {
            tx_size: 16,
            rx_size: 16,
            counters: vec![(self.cntr, KFI_SEND | KFI_READ | KFI_WRITE)],
            ..Default::default()
        };
        self.ep = self.side.endpoint(&opts, &self.cq, connreq)?.handle;
        (0..RECEIVES).try_for_each(|i| self.receive(i))
    }

    /// Posts an operation. Returns its context. A refusal by an ended connection is no error, but
    /// the end of the session.
    fn post(&mut self, mut op: OpEntry, place: usize) -> Result<u64> {
        op.context = self.next << 8 | place as u64;
        self.next += 1;
        match self.side.dev.submit(self.ep, &[op]) {
            Ok(_) => {
                self.open.insert(op.context, op.op == KFI_OP_RECV);
                Ok(op.context)
            }
            Err(e) if e.errno.0 == libc::ENOTCONN => {
                self.broken = true;
                disturbed("not connected any more")
            }
            Err(e) => Err(e.into()),
        }
    }

    fn receive(&mut self, place: usize) -> Result<()> {
        let piece = iov(self.region, (place * MESSAGE) as u64, MESSAGE as u64);
        self.post(op::recv(0, &[piece]), place).map(drop)
    }

    /// Accounts for a completion.
    fn take(&mut self, e: &CqEntry) -> Result<()> {
        let Some(receive) = self.open.remove(&e.context) else {
            bail!("a completion of nothing that is open: {e:?}");
        };
        match (receive, e.err) {
            (false, 0) => self.sent.0 += 1,
            (false, _) => self.sent.1 += 1,
            (true, 0) => self
                .came
                .push(((e.context & 0xff) as usize, e.len as usize)),
            (true, _) => {}
        }
        self.broken |= e.err != 0;
        Ok(())
    }

    /// Waits until `ready`, accounting for completions. Every wait is bounded.
    fn wait(&mut self, what: &str, ready: impl Fn(&Self) -> bool) -> Result<()> {
        let end = Instant::now() + patience(2 * BOUND);
        while !ready(self) {
            if self.broken {
                return disturbed(format!("cut off while waiting for {what}"));
            }
            match self.cq.wait(Duration::from_millis(200)) {
                Ok(e) => self.take(&e)?,
                Err(e) if e.errno.0 == libc::ETIMEDOUT => {
                    ensure!(Instant::now() < end, "{what} takes for ever");
                    self.events()?;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Checks for events of the connection.
    fn events(&mut self) -> Result<()> {
        match self.side.dev.eq_read(self.side.eq.handle, KFI_EQ_PEEK) {
            Err(e) if e.errno.0 == libc::EAGAIN => Ok(()),
            Err(e) => Err(e.into()),
            // Another peer requests a connection: the old one must be dead.
            Ok(e) if e.raw.event == KFI_CONNREQ => disturbed("a new peer"),
            Ok(e) if e.raw.object == self.ep => disturbed("the connection is over"),
            Ok(_) => self
                .side
                .dev
                .eq_read(self.side.eq.handle, 0)
                .map(drop)
                .map_err(Into::into),
        }
    }

    /// Waits for the completion of an own operation.
    fn finish(&mut self, context: u64, what: &str) -> Result<()> {
        self.wait(what, |line| !line.open.contains_key(&context))?;
        if self.broken {
            return disturbed(format!("{what} failed"));
        }
        Ok(())
    }

    fn send(&mut self, head: &Head) -> Result<()> {
        head.put(&self.mail, OUT);
        let piece = iov(self.region, OUT as u64, HEAD as u64 + head.len);
        let context = self.post(op::send(0, &[piece]), 0)?;
        self.finish(context, "a send")
    }

    /// Receives the next message, which must be of this kind.
    fn hear(&mut self, kind: u64, seq: u64) -> Result<Head> {
        self.wait("a message", |line| !line.came.is_empty())?;
        let (place, len) = self.came.remove(0);
        let head = Head::get(&self.mail, place * MESSAGE, len)?;
        ensure!(
            (head.kind, head.seq) == (kind, seq),
            "message {} of number {}, not {kind} of {seq}",
            head.kind,
            head.seq
        );
        self.receive(place)?;
        Ok(head)
    }

    /// Closes the endpoint; afterwards every posted operation has completed, once.
    fn close(&mut self) -> Result<()> {
        if self.ep == 0 {
            return Ok(());
        }
        self.side
            .dev
            .close(self.ep)
            .context("closing an endpoint")?;
        self.ep = 0;
        while let Some(e) = self.cq.read() {
            self.take(&e)?;
        }
        ensure!(
            self.open.is_empty(),
            "{} operations of a closed endpoint have not completed",
            self.open.len()
        );
        let counted = self.side.dev.cntr_read(self.cntr)?;
        ensure!(
            counted == self.sent,
            "the counter says {counted:?}, the queue {:?}",
            self.sent
        );
        self.mail.check_guards()
    }
}

/// Waits a while for an event of this endpoint.
fn connected(line: &Line) -> Result<()> {
    let end = Instant::now() + patience(CONNECT);
    loop {
        let moment = Duration::from_millis(200);
        match line.side.dev.eq_wait(&line.side.eq, moment) {
            Ok(e) if e.raw.object != line.ep => {}
            Ok(e) if e.raw.event == KFI_CONNECTED => return Ok(()),
            Ok(e) => return disturbed(format!("no connection: {:?}", e.raw)),
            Err(e) if e.errno.0 == libc::ETIMEDOUT => {
                if Instant::now() >= end {
                    return disturbed("connecting takes long");
                }
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// Runs one session of the requesting half.
///
/// # Errors
///
/// If the worker is disturbed, or an error is found.
pub fn use_it(w: &mut Worker<'_>) -> Result<()> {
    let mut line = Line::new(w.side()?)?;
    line.endpoint(0)?;
    let peer = w.env.peer_at(PORTS + w.slot as u16);
    w.at("connecting");
    line.side.dev.connect(line.ep, peer, &[])?;
    let result = connected(&line).and_then(|()| {
        let rounds = 1 + w.rng.below(30);
        (0..rounds).try_for_each(|seq| ask(w, &mut line, seq))
    });
    leave(w, line, result)
}

/// Ends a session in one way or another.
fn leave(w: &mut Worker<'_>, mut line: Line, result: Result<()>) -> Result<()> {
    w.at("leaving");
    if w.one_in(3) {
        // Closing the file closes everything.
        return result;
    }
    if result.is_ok() && w.one_in(3) {
        // The connection may have ended by itself.
        let _ = line.side.dev.shutdown(line.ep);
    }
    line.close()?;
    result
}

/// Makes one exchange as the requesting half.
fn ask(w: &mut Worker<'_>, line: &mut Line, seq: u64) -> Result<()> {
    w.at("asking");
    line.send(&Head::new(ASK, seq, w))?;
    w.at("waiting for a window");
    let lent = line.hear(LEND, seq)?;
    let Remote { addr, key, len } = lent.remote;
    ensure!(len as usize <= LENT, "a window of {len} bytes");
    let mut buf = Buf::at(len as usize, w.rng.below(100) as usize)?;
    let region = line.side.reg(&buf, LOCAL)?.handle;
    w.at("reading");
    let context = line.post(op::read(0, &[iov(region, 0, len)], addr, key), 0)?;
    if w.one_in(4) {
        distract(w, &mut buf)?;
    }
    line.finish(context, "a read")?;
    buf.check(seed_lent(lent.seed)).context("the bytes read")?;
    w.at("writing");
    let mut done = Head::new(DONE, seq, w);
    done.remote.len = len;
    buf.fill(done.seed);
    let unmapped = w.one_in(4);
    let context = if unmapped {
        // The write moves the bytes that were there when the memory was pinned.
        drop(buf);
        line.post(op::write(0, &[iov(region, 0, len)], addr, key), 0)?
    } else {
        let context = line.post(op::write(0, &[iov(region, 0, len)], addr, key), 0)?;
        if w.one_in(4) {
            distract(w, &mut buf)?;
        }
        context
    };
    line.finish(context, "a write")?;
    line.side.dev.close(region).context("closing a region")?;
    line.send(&done)?;
    w.at("waiting for the verdict");
    line.hear(SEEN, seq)?;
    w.done();
    if w.one_in(16) {
        return stale(w, line, addr, key);
    }
    Ok(())
}

fn seed_lent(seed: u64) -> u64 {
    seed ^ 0x1e57
}

/// Uses a revoked key: the access is refused, and the connection ends.
fn stale(w: &Worker<'_>, line: &mut Line, addr: u64, key: u64) -> Result<()> {
    w.at("using a dead key");
    let before = line.sent;
    let piece = iov(line.region, 0, 64);
    let context = line.post(op::write(0, &[piece], addr, key), 0)?;
    match line.finish(context, "a write by a dead key") {
        Ok(()) => bail!("a revoked key was taken"),
        Err(_) if line.sent.0 > before.0 => bail!("a revoked key was taken"),
        Err(e) => Err(e),
    }
}

/// Changes its own memory as programs do.
fn distract(w: &mut Worker<'_>, buf: &mut Buf) -> Result<()> {
    match w.rng.below(4) {
        0 => buf.map_mut().relocate()?,
        kind => {
            let map = buf.map();
            let pid = sys::fork(|| {
                match kind {
                    1 => (0..map.len()).step_by(4096).for_each(|at| map.set(at, 1)),
                    2 => drop(std::process::Command::new("true").status()),
                    _ => {}
                }
                0
            })?;
            let end = sys::wait_pid(pid, BOUND)?;
            ensure!(
                matches!(end, Some(Ended::Exit(_) | Ended::Signal(libc::SIGKILL))),
                "a child of a worker: {end:?}"
            );
        }
    }
    Ok(())
}

/// Listens as the offering half, and serves some sessions.
///
/// # Errors
///
/// If the worker is disturbed, or an error is found.
pub fn serve(w: &mut Worker<'_>) -> Result<()> {
    let mut side = w.side()?;
    w.at("listening");
    let (pep, _) = side.listen(w.env.at(PORTS + w.slot as u16), 8)?;
    let end = Instant::now() + patience(BOUND);
    for _ in 0..1 + w.rng.below(12) {
        w.at("waiting for a request");
        let request = loop {
            match side.dev.eq_wait(&side.eq, Duration::from_millis(500)) {
                Ok(e) if e.raw.event == KFI_CONNREQ => break e.raw.connreq,
                Ok(_) => {}
                Err(CallError { errno, .. }) if errno.0 == libc::ETIMEDOUT => {
                    // The device may have been removed under the listener, which gets no event.
                    if Instant::now() > end {
                        return disturbed("no peer comes");
                    }
                }
                Err(e) => return Err(e.into()),
            }
            if w.one_in(40) {
                return disturbed("tired of listening");
            }
        };
        match w.rng.below(12) {
            0 => side.dev.reject(request, b"no")?,
            1 => side.dev.close(request)?,
            _ => {
                let dev = side.dev.dup().context("another descriptor")?;
                let mut line = Line::new(side)?;
                line.endpoint(request)?;
                w.at("accepting");
                line.side.dev.accept(line.ep, &[])?;
                let result = connected(&line)
                    .and_then(|()| (0..).try_for_each(|seq| lend(w, &mut line, seq)));
                w.at("closing");
                line.close()?;
                if let Err(e) = result {
                    if !e.is::<super::worker::Disturbed>() {
                        return Err(e);
                    }
                }
                let Line {
                    side: s,
                    cq,
                    region,
                    cntr,
                    ..
                } = line;
                for handle in [region, cq.handle, cntr] {
                    dev.close(handle).context("closing a session's objects")?;
                }
                side = s;
            }
        }
    }
    if w.one_in(2) {
        side.dev.close(pep).context("closing a listener")?;
    }
    Ok(())
}

/// Makes one exchange as the offering half.
fn lend(w: &mut Worker<'_>, line: &mut Line, seq: u64) -> Result<()> {
    const AROUND: u64 = 512;
    w.at("waiting for a question");
    line.hear(ASK, seq)?;
    let buf = Buf::new(LENT)?;
    buf.clear(0x77);
    let len = 1 + w.rng.below(LENT as u64 - 2 * AROUND);
    let offset = AROUND + w.rng.below(LENT as u64 - 2 * AROUND - len + 1);
    let region = line.side.reg(&buf, LOCAL | REMOTE)?.handle;
    let mut head = Head::new(LEND, seq, w);
    buf.fill_part(offset as usize, len as usize, seed_lent(head.seed));
    let (slot, remote) = line.side.export(region, offset, len, REMOTE)?;
    head.remote = remote;
    w.at("lending");
    line.send(&head)?;
    w.at("waiting for its use");
    let done = line.hear(DONE, seq)?;
    ensure!(done.remote.len == len, "{done:?}");
    w.at("revoking");
    line.side.dev.key_revoke(slot).context("revoking")?;
    let check = |when: &str| -> Result<()> {
        buf.check_part(offset as usize, len as usize, done.seed)
            .with_context(|| format!("the bytes written, {when}"))?;
        buf.check_value((offset - AROUND) as usize, AROUND as usize, 0x77)?;
        buf.check_value((offset + len) as usize, AROUND as usize, 0x77)?;
        buf.check_guards()
    };
    check("at the key's end")?;
    w.at("answering");
    let told = line.send(&Head::new(SEEN, seq, w));
    check("after the key's end")?;
    told?;
    w.done();
    if w.one_in(2) {
        line.side.dev.close(slot).context("closing a slot")?;
        line.side.dev.close(region).context("closing a region")?;
    }
    Ok(())
}
