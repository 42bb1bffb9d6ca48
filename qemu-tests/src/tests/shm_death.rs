// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kills processes at any point of their work over the intra-node provider, with messages carried
//! by the kernel and by rings. The peer is notified in bounded time, nothing of the process is
//! left, and the next process listens under the same name at once (P11).

use super::death::nothing_left_of;
use super::library::Lib;
use crate::buf::Buf;
use crate::harness::guest::until;
use crate::harness::leaks::vm_pin;
use crate::harness::{Ctx, Env, Test, SHM, SHM_LONG};
use crate::op::{self, iov};
use crate::pair::{connect_one, Opts, Remote, Side, LOCAL, REMOTE, WAIT};
use crate::sys::{self, Ended, Map};
use anyhow::{bail, ensure, Context, Result};
use kfabric::{
    Access, CompFlags, Completion, Endpoint, Errno, Error, Event, Op, Region, RemoteMem,
};
use kfabric_uapi::*;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "shm.p11_kill_at_random_points_notifies_peer_and_leaves_nothing",
        |c| killed(c, 96),
    )
    .seconds(30)
    .on(SHM),
    Test::pair(
        "shm.p11_kill_at_5000_random_points_notifies_peer_and_leaves_nothing",
        |c| killed(c, 5000),
    )
    .seconds(1200)
    .on(SHM_LONG),
];

/// Port on which each victim listens.
const PORT: u16 = 7117;

/// How an end handles its messages.
#[derive(Clone, Copy, Debug)]
struct Plan {
    receives: bool,
    sends: bool,
    /// Some messages, and the copies, are longer than a ring.
    long: bool,
    /// The end reads and writes the peer's memory, from and to registered or unregistered memory.
    copies: bool,
    /// The end sleeps until a completion; else it polls.
    sleeps: bool,
    /// The end pauses now and then, so that the other end sleeps.
    pauses: bool,
}

const NOTHING: Plan = Plan {
    receives: false,
    sends: false,
    long: false,
    copies: false,
    sleeps: false,
    pauses: false,
};
const SENDS: Plan = Plan {
    sends: true,
    ..NOTHING
};
const RECEIVES: Plan = Plan {
    receives: true,
    ..NOTHING
};
const ALL: Plan = Plan {
    receives: true,
    sends: true,
    long: true,
    ..NOTHING
};

/// Subject of a round.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Messages carried by the kernel.
    Kernel,
    /// Messages by rings: the plans of the victim and of its peer.
    Rings(Plan, Plan),
}

/// Chooses the subject of a round.
fn way(round: u64) -> Way {
    // Both directions of connecting take part.
    let sleeps = (round / 16).is_multiple_of(2);
    match round % 8 {
        // The victim sends short messages, and messages that wait for space in the ring.
        1 => Way::Rings(SENDS, Plan { sleeps, ..RECEIVES }),
        2 => Way::Rings(
            Plan {
                long: true,
                sleeps,
                ..SENDS
            },
            Plan {
                pauses: true,
                ..RECEIVES
            },
        ),
        // The victim receives, polling or asleep.
        3 => Way::Rings(
            RECEIVES,
            Plan {
                long: true,
                sleeps,
                ..SENDS
            },
        ),
        5 => Way::Rings(
            Plan {
                sleeps: true,
                ..RECEIVES
            },
            Plan {
                pauses: true,
                ..SENDS
            },
        ),
        // Both ends send and receive.
        6 => Way::Rings(
            Plan { sleeps, ..ALL },
            Plan {
                sleeps: true,
                ..ALL
            },
        ),
        7 => {
            let copies = Plan {
                copies: true,
                ..ALL
            };
            Way::Rings(copies, Plan { sleeps, ..copies })
        }
        _ => Way::Kernel,
    }
}

/// Returns whether the victim listens in this round.
fn victim_listens(round: u64) -> bool {
    (round / 8) % 2 == 1
}

/// Stages that the victim reaches.
const LISTENS: u32 = 1;
const WORKS: u32 = 2;

fn killed(ctx: &mut Ctx, rounds: u64) -> Result<()> {
    if ctx.first() {
        let peer = Survivor::new(ctx)?;
        for round in 0..rounds {
            peer.round(ctx, round)
                .and_then(|()| nothing_kept(peer.areas))
                .with_context(|| format!("round {round}, {:?}", way(round)))?;
            ctx.barrier("round")?;
        }
        return ctx.barrier("done");
    }
    let side = Side::open(ctx)?;
    ctx.barrier("open")?;
    let ports: Ports = ctx.ctl.recv()?;
    for round in 0..rounds {
        one_life(ctx, &side, ports, round)
            .with_context(|| format!("round {round}, {:?}", way(round)))?;
        ctx.barrier("round")?;
    }
    ctx.barrier("done")
}

/// Counts the areas that the kernel has mapped for kfabric: rings of all kinds.
fn kernel_areas() -> Result<usize> {
    let all = std::fs::read_to_string("/proc/vmallocinfo").context("/proc/vmallocinfo")?;
    Ok(all.lines().filter(|l| l.contains("[kfabric]")).count())
}

/// Waits until the kernel has freed the memory of the victim and of the connection.
fn nothing_kept(areas: usize) -> Result<()> {
    until("the kernel's memory comes back", WAIT, || {
        Ok((kernel_areas()? <= areas).then_some(()))
    })
}

/// Where the other node listens and its remote memory, for the kernel's way, and the port for
/// rings.
type Ports = (u16, Remote, u16);

/// Starts a process, kills it at a random point, and checks that nothing of it is left.
fn one_life(ctx: &mut Ctx, side: &Side, ports: Ports, round: u64) -> Result<()> {
    let stage = Map::shared(4096)?;
    let env = ctx.env.clone();
    let pid = sys::fork(|| {
        let ended = match way(round) {
            Way::Kernel => by_kernel(&env, ports, round, &stage),
            Way::Rings(plan, _) => by_rings(&env, ports, round, plan, &stage),
        };
        if let Err(e) = ended {
            eprintln!("the one to be killed: {e:#}");
            return 1;
        }
        // The other end has closed the connection.
        2
    })?;
    let chance = (round + ctx.env.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let reaches = |wanted: u32| {
        until("the one to be killed gets on", WAIT, || {
            let died = sys::try_wait_pid(pid)?;
            ensure!(died.is_none(), "it has ended by itself: {died:?}");
            Ok((stage.load32(0) >= wanted).then_some(()))
        })
    };
    if matches!(way(round), Way::Rings(..)) {
        if victim_listens(round) {
            reaches(LISTENS)?;
            ctx.ctl.send(&true)?;
        }
        // Otherwise the victim may be anywhere on the way to that stage.
        if chance & 3 != 0 {
            reaches(WORKS)?;
        }
    }
    std::thread::sleep(Duration::from_micros(chance % 30_000));
    sys::kill(pid, libc::SIGKILL)?;
    let end = sys::wait_pid(pid, WAIT)?;
    ensure!(end == Some(Ended::Signal(libc::SIGKILL)), "{end:?}");
    nothing_left_of(&side.dev, pid)?;
    ctx.ctl.send(&true)
}

/// Runs a victim whose messages the kernel carries.
fn by_kernel(env: &Env, (port, theirs, _): Ports, way: u64, stage: &Map) -> Result<()> {
    let side = Side::of(env)?;
    let cq = side.cq(0, 0)?;
    let buf = Buf::new(1 << 20)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let (slot, _) = side.export(region, 0, 4096, REMOTE)?;
    let ep = connect_one(&side, &Opts::default(), &cq, env.peer_at(port))?.handle;
    stage.store32(0, WORKS);
    let len = if way & 4 == 0 { 1 << 20 } else { 64 };
    let piece = [iov(region, 0, len)];
    for i in 0.. {
        let op = match (way + i) % 3 {
            0 => op::write(i, &piece, theirs.addr, theirs.key),
            1 => op::read(i, &piece, theirs.addr, theirs.key),
            _ => op::send(i, &piece[..1]),
        };
        match side.dev.submit(ep, &[op]) {
            Ok(_) => {}
            Err(e) if e.errno.0 == libc::EAGAIN => {}
            Err(e) => bail!(e),
        }
        while cq.read().is_some() {}
        if i % 7 == 0 {
            side.dev.key_revoke(slot)?;
            side.assign(slot, 0, 4096, REMOTE)?;
        }
    }
    Ok(())
}

/// Runs a victim whose messages go through rings.
fn by_rings(env: &Env, (_, _, port): Ports, round: u64, plan: Plan, stage: &Map) -> Result<()> {
    let mut lib = Lib::of(env)?;
    lib.rings = true;
    let mut talk = if victim_listens(round) {
        // The victim before has just died under this name.
        let _pep = lib.listen(env.at(PORT)).context("a name that is free")?;
        stage.store32(0, LISTENS);
        let ep = lib.endpoint_for(lib.eq.wait(WAIT)?.request()?)?;
        ep.accept(&[])?;
        lib.eq.wait(WAIT)?.connected()?;
        Talk::new(&lib, ep, plan)?
    } else {
        Talk::new(&lib, lib.connect_to(env.peer_at(port))?, plan)?
    };
    stage.store32(0, WORKS);
    talk.go_on()
}

/// The surviving end.
struct Survivor {
    side: Side,
    region: u64,
    _buf: Buf,
    lib: Lib,
    _pep: kfabric::PassiveEndpoint,
    /// Areas that the kernel has mapped for this end alone.
    areas: usize,
}

/// Time without an event after which the survivor asks whether the victim has died.
const QUIET: Duration = Duration::from_millis(20);

fn is_timeout(e: &Error) -> bool {
    matches!(e, Error::Timeout { .. })
}

impl Survivor {
    fn new(ctx: &mut Ctx) -> Result<Self> {
        let side = Side::open(ctx)?;
        let (_, at) = side.listen(ctx.env.at(0), 0)?;
        let buf = Buf::new(1 << 20)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let (_, remote) = side.export(region, 0, buf.len() as u64, REMOTE)?;
        let mut lib = Lib::open(ctx)?;
        lib.rings = true;
        let pep = lib.listen(ctx.env.at(0))?;
        let ports: Ports = (at.port(), remote, pep.local_addr()?.port());
        ctx.barrier("open")?;
        let areas = kernel_areas()?;
        ensure!(areas != 0, "the kernel shows none");
        // From now on other connections exist.
        ctx.ctl.send(&ports)?;
        Ok(Self {
            side,
            region,
            _buf: buf,
            lib,
            _pep: pep,
            areas,
        })
    }

    fn round(&self, ctx: &mut Ctx, round: u64) -> Result<()> {
        let Way::Rings(_, plan) = way(round) else {
            return self.serve_by_kernel(ctx);
        };
        let before = vm_pin();
        if victim_listens(round) {
            ctx.ctl.recv::<bool>()?;
            let asks = self.lib.ask(ctx.env.peer_at(PORT))?;
            self.talk(asks, plan)?;
            ctx.ctl.recv::<bool>()?;
        } else {
            self.serve(ctx, plan)?;
        }
        let late = self.lib.cq.read_one()?;
        ensure!(late.is_none(), "one completion too many: {late:?}");
        let late = self.lib.eq.read()?;
        ensure!(late.is_none(), "one event too many: {late:?}");
        ensure!(vm_pin() == before, "VmPin: {}, was {before}", vm_pin());
        Ok(())
    }

    /// Serves a victim that may be killed before it requests a connection, or while connected.
    fn serve_by_kernel(&self, ctx: &mut Ctx) -> Result<()> {
        let side = &self.side;
        let cq = side.cq(0, 0)?;
        let mut up = None;
        let mut dead = false;
        let end = Instant::now() + sys::patience(WAIT);
        loop {
            ensure!(Instant::now() < end, "no word of the end");
            match side.dev.eq_wait(&side.eq, QUIET) {
                Ok(event) if event.raw.event == KFI_CONNREQ => {
                    let ep = side
                        .endpoint(&Opts::default(), &cq, event.raw.connreq)?
                        .handle;
                    let piece = [iov(self.region, 0, 1 << 20)];
                    for i in 0..8 {
                        side.dev.submit(ep, &[op::recv(i, &piece)])?;
                    }
                    match side.dev.accept(ep, &[]) {
                        Ok(()) => up = Some(ep),
                        Err(e) if e.errno.0 == libc::ECONNABORTED => side.dev.close(ep)?,
                        Err(e) => bail!(e),
                    }
                }
                Ok(event) if [KFI_SHUTDOWN, KFI_CONN_ERROR].contains(&event.raw.event) => {
                    if up == Some(event.raw.object) {
                        side.dev.close(event.raw.object)?;
                        up = None;
                    }
                }
                Ok(_) => {}
                // No event for now.
                Err(_) if dead && up.is_none() => break,
                Err(_) if !dead => dead = ctx.ctl.recv::<bool>()?,
                Err(_) => {}
            }
        }
        Ok(side.dev.close(cq.handle)?)
    }

    /// Serves a victim that has rings, which may be given the time to connect.
    fn serve(&self, ctx: &mut Ctx, plan: Plan) -> Result<()> {
        let mut dead = false;
        let end = Instant::now() + sys::patience(2 * WAIT);
        loop {
            ensure!(Instant::now() < end, "no word of the end");
            match self.lib.eq.wait(QUIET) {
                Ok(Event::ConnRequest(request)) => {
                    let ep = self.lib.endpoint_for(request)?;
                    match ep.accept(&[]) {
                        Ok(()) => self.talk(ep, plan)?,
                        Err(e) if e.errno() == Some(Errno(libc::ECONNABORTED)) => {}
                        Err(e) => bail!(e),
                    }
                }
                // The event is of a connection that was not accepted.
                Ok(Event::ConnFailed(_) | Event::Shutdown { .. }) => {}
                Ok(other) => bail!("{other:?}"),
                Err(e) if !is_timeout(&e) => bail!(e),
                Err(_) if dead => return Ok(()),
                Err(_) => dead = ctx.ctl.is_ready()? && ctx.ctl.recv::<bool>()?,
            }
        }
    }

    /// Talks until the other end has died.
    fn talk(&self, ep: Endpoint, plan: Plan) -> Result<()> {
        match self.lib.eq.wait(WAIT).context("connected or not")? {
            Event::Connected { .. } => {}
            // The victim died before it was connected.
            Event::ConnFailed(_) | Event::Shutdown { .. } => return Ok(()),
            other => bail!("{other:?}"),
        }
        let mut talk = Talk::new(&self.lib, ep, plan)?;
        talk.go_on()?;
        let event = self.lib.eq.wait(WAIT).context("no word of the end")?;
        ensure!(matches!(event, Event::Shutdown { .. }), "{event:?}");
        Ok(())
    }
}

/// Bytes of a long message; a ring holds fewer.
const LONG: usize = 100_000;
/// Bytes of a short one.
const SHORT: usize = 64;
/// Bytes of a copy.
const COPY: usize = 512 << 10;
/// Number of receives and messages posted at a time.
const RECV_SLOTS: u64 = 4;
const SEND_SLOTS: u64 = 2;
/// Offset of the memory for the peer's copies and for own copies, behind the message slots.
const WINDOW: usize = (RECV_SLOTS + SEND_SLOTS) as usize * LONG;
const OWN: usize = WINDOW + COPY;

/// Contexts: the kind of operation of a completion.
const RECV: u64 = 1;
const SEND: u64 = 2;
const COPIED: u64 = 3;

/// A conversation: numbered messages, in one or both directions.
struct Talk<'a> {
    // Dropped first: keys of a region that the endpoint's receives name.
    _keys: Vec<kfabric::Key>,
    ep: Endpoint,
    region: Region,
    lib: &'a Lib,
    plan: Plan,
    /// Memory that the other end offers, once its message has arrived.
    theirs: Option<RemoteMem>,
    /// Memory that this end offers.
    mine: RemoteMem,
    /// Unregistered memory.
    bare: Vec<u8>,
    /// Receives posted, and receives completed.
    receives: (u64, u64),
    sends: (u64, u64),
    copies: (u64, u64),
    /// Number of messages received.
    came: u64,
    over: bool,
}

impl<'a> Talk<'a> {
    fn new(lib: &'a Lib, ep: Endpoint, plan: Plan) -> Result<Self> {
        let region = lib.region(OWN + COPY)?;
        let keys = region.alloc_keys(1)?;
        let mine = keys[0].assign(WINDOW as u64, COPY as u64, Access::REMOTE)?;
        // The connection has already ended.
        ensure!(ep.has_rings() == Some(true), "{:?}", ep.has_rings());
        Ok(Self {
            _keys: keys,
            ep,
            region,
            lib,
            plan,
            theirs: None,
            mine,
            bare: vec![0x5b; COPY],
            receives: (0, 0),
            sends: (0, 0),
            copies: (0, 0),
            came: 0,
            over: false,
        })
    }

    /// Talks until the connection is over and every posted operation has completed once.
    fn go_on(&mut self) -> Result<()> {
        let end = Instant::now() + sys::patience(2 * WAIT);
        for turn in 0u64.. {
            if !self.over {
                self.post()?;
            }
            let open = |(posted, done): (u64, u64)| posted - done;
            let left = open(self.receives) + open(self.sends) + open(self.copies);
            if self.over && left == 0 {
                return Ok(());
            }
            let done = match self.plan.sleeps && left != 0 {
                true => Some(self.lib.cq.wait(WAIT).context("no word of the end")?),
                false => self.lib.cq.read_one()?,
            };
            if let Some(done) = done {
                self.take(&done)?;
            }
            ensure!(Instant::now() < end, "no word of the end");
            if self.plan.pauses && turn.is_multiple_of(4) {
                std::thread::sleep(Duration::from_micros(turn * 37 % 1000));
            }
        }
        Ok(())
    }

    /// Returns whether an operation was accepted. A refusal must be the errno of an ended
    /// connection.
    fn taken(&mut self, posted: kfabric::Result<()>) -> Result<bool> {
        match posted {
            Ok(()) => Ok(true),
            Err(e) if e.is_full() => Ok(false),
            Err(e) if e.errno() == Some(Errno(libc::ENOTCONN)) => {
                self.over = true;
                Ok(false)
            }
            Err(e) => bail!(e),
        }
    }

    fn post(&mut self) -> Result<()> {
        while self.plan.receives && self.receives.0 - self.receives.1 < RECV_SLOTS {
            let at = recv_slot(self.receives.0);
            let posted = self.ep.recv(self.region.segment(at..at + LONG), RECV);
            if !self.taken(posted)? {
                break;
            }
            self.receives.0 += 1;
        }
        // A copy is refused behind messages that wait for space.
        if self.plan.copies && self.copies.0 == self.copies.1 {
            self.copy()?;
        }
        let most = if self.plan.copies { 1 } else { SEND_SLOTS };
        if self.plan.sends && self.sends.0 - self.sends.1 < most {
            self.send()?;
        }
        Ok(())
    }

    /// Sends a message: its number, the memory that the peer may copy, and at its end its number
    /// again.
    fn send(&mut self) -> Result<()> {
        let number = self.sends.0;
        let at = (RECV_SLOTS + number % SEND_SLOTS) as usize * LONG;
        let len = match self.plan.long && !number.is_multiple_of(3) {
            true => LONG,
            false => SHORT,
        };
        self.region.write_at(at, &number.to_ne_bytes());
        self.region.write_at(at + 8, &self.mine.to_raw());
        self.region.write_at(at + len - 8, &number.to_ne_bytes());
        let posted = self.ep.send(self.region.segment(at..at + len), SEND);
        if self.taken(posted)? {
            self.sends.0 += 1;
        }
        Ok(())
    }

    fn copy(&mut self) -> Result<()> {
        let Some(theirs) = self.theirs else {
            return Ok(());
        };
        let own = self.region.segment(OWN..OWN + COPY);
        let op = match self.copies.0 % 5 {
            0 => Op::write(&[own], theirs),
            1 => Op::read_into(&mut self.bare, theirs),
            2 => Op::write(&[own], theirs).data(7),
            3 => Op::write_from(&self.bare, theirs),
            _ => Op::read(&[own], theirs),
        };
        let posted = self.ep.post(&op.context(COPIED));
        if self.taken(posted)? {
            self.copies.0 += 1;
        }
        Ok(())
    }

    fn take(&mut self, done: &Completion) -> Result<()> {
        let (of, may) = match done.context() {
            RECV => (&mut self.receives, [libc::ECANCELED, libc::ECANCELED]),
            SEND => (&mut self.sends, [libc::ECANCELED, libc::ECANCELED]),
            // The peer's keys are revoked before the peer is removed.
            COPIED => (&mut self.copies, [libc::ECANCELED, libc::EACCES]),
            _ => bail!("{done:?}"),
        };
        let number = of.1;
        of.1 += 1;
        ensure!(of.1 <= of.0, "it completes twice: {done:?}");
        if let Some(err) = done.error() {
            ensure!(may.contains(&err.errno.0), "{err}");
            self.over = true;
            return Ok(());
        }
        if done.context() == RECV && !done.flags().contains(CompFlags::REMOTE_WRITE) {
            self.look(recv_slot(number), done.len() as usize)?;
        }
        Ok(())
    }

    /// Checks a received message.
    fn look(&mut self, at: usize, len: usize) -> Result<()> {
        ensure!(len == LONG || len == SHORT, "a message of {len} bytes");
        let number = self.came.to_ne_bytes();
        let ends = [
            self.region.to_vec(at, 8),
            self.region.to_vec(at + len - 8, 8),
        ];
        ensure!(ends == [number, number], "message {}: {ends:?}", self.came);
        self.came += 1;
        let theirs = self.region.to_vec(at + 8, RemoteMem::RAW_LEN);
        self.theirs = Some(RemoteMem::from_raw(&theirs)?);
        Ok(())
    }
}

/// Returns the offset of a receive slot.
fn recv_slot(number: u64) -> usize {
    (number % RECV_SLOTS) as usize * LONG
}
