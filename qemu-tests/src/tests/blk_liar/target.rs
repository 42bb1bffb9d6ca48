// SPDX-License-Identifier: MIT OR Apache-2.0

//! A program that plays a target, and breaks the protocol.

use super::*;

/// A program that plays a target, on node 1, with the messages of the disk that has connected to
/// it.
pub(in crate::tests) struct Fake {
    liar: Liar,
    side: Side,
    pep: u64,
}

/// Waits for an event of this kind, and ignores disconnects of others. Returns its request.
fn next_event(side: &Side, kind: u32) -> Result<u64> {
    loop {
        let event = side.dev.eq_wait(&side.eq, WAIT)?;
        if event.raw.event == kind {
            return Ok(event.raw.connreq);
        }
        ensure!(event.raw.event == KFI_SHUTDOWN, "event {:?}", event.raw);
    }
}

const CAPACITY: u64 = 8 << 20;

/// Returns the welcome of the fake target.
pub(in crate::tests) fn welcome() -> Welcome {
    Welcome {
        status: 0,
        flags: 0,
        geometry: Geometry {
            capacity: CAPACITY,
            block_shift: 9,
            chunk_shift: 30,
        },
        device: Some(Limits {
            physical: 512,
            ..Limits::default()
        }),
        instance: 1,
        boot: 1,
        seq: 1,
    }
}

impl Fake {
    /// Admits a disk.
    fn new(ctx: &Ctx) -> Result<Self> {
        // An initiator that connects for memory learns that the export is a device.
        Self::with(ctx, &welcome(), &[false, true])
    }

    /// Admits a disk that connects once per entry of `kinds`, for memory or for a device, with the
    /// welcome `good`.
    pub(in crate::tests) fn with(ctx: &Ctx, good: &Welcome, kinds: &[bool]) -> Result<Self> {
        let side = Side::open(ctx)?;
        let (pep, _) = side.listen(SocketAddr::new(ctx.env.addr, PORT.parse()?), 8)?;
        for device in kinds.iter().copied() {
            let liar = Self::let_in(&side, good, device)?;
            if device {
                return Ok(Self { liar, side, pep });
            }
            while liar.next(WAIT)?.is_some() {}
            liar.side.dev.close(liar.ep)?;
        }
        bail!("no disk connects for a device")
    }

    /// Accepts the connection of a disk, reads its question, and does not answer.
    pub(in crate::tests) fn silent(ctx: &Ctx) -> Result<Self> {
        let side = Side::open(ctx)?;
        let (pep, _) = side.listen(SocketAddr::new(ctx.env.addr, PORT.parse()?), 8)?;
        let liar = Self::hear(&side)?;
        Ok(Self { liar, side, pep })
    }

    /// Accepts the next connection, and reads its question.
    fn hear(side: &Side) -> Result<Liar> {
        let connreq = next_event(side, KFI_CONNREQ)?;
        let liar = Liar::open(side.again()?, connreq)?;
        liar.side.dev.accept(liar.ep, &[])?;
        next_event(side, KFI_CONNECTED)?;
        let hello = liar.next(WAIT)?.context("no question")?;
        let hello = Question::read(&hello).map_err(|e| anyhow::anyhow!("{e:?}"))?;
        ensure!(matches!(hello, Question::Hello(_)), "{hello:?}");
        Ok(liar)
    }

    /// Admits the next connection, for memory or for a device, with the welcome `good`.
    fn let_in(side: &Side, good: &Welcome, device: bool) -> Result<Liar> {
        let liar = Self::hear(side)?;
        liar.welcomes(&match device {
            false => Welcome::refusal(kfabric_pure::blk::device::OTHER_KIND),
            true => *good,
        })?;
        Ok(liar)
    }

    /// Ends the connection, and admits the disk again.
    pub(in crate::tests) fn again(&mut self, good: &Welcome) -> Result<()> {
        let Liar { cq, ep, region, .. } = &self.liar;
        for handle in [*ep, cq.handle, *region] {
            self.side.dev.close(handle)?;
        }
        self.liar = Self::let_in(&self.side, good, true)?;
        Ok(())
    }

    /// Waits until every sent message has completed.
    pub(in crate::tests) fn sent(&self) -> Result<()> {
        self.liar.sent()
    }

    /// Announces another capacity of the device.
    pub(in crate::tests) fn news(&self, capacity: u64) -> Result<()> {
        self.liar.say(&[&Said::News(capacity).write()])?;
        self.sent()
    }

    /// Answers that a request has failed.
    pub(in crate::tests) fn refuse(&self, request: &Request, errno: i32) -> Result<()> {
        let (number, status) = (request.number, errno.unsigned_abs());
        self.liar.say(&[&Said::Reply { number, status }.write()])
    }

    /// Returns the next request; `None`: the disk has disconnected.
    pub(in crate::tests) fn request(&self) -> Result<Option<Request>> {
        let Some(message) = self.liar.next(WAIT)? else {
            return Ok(None);
        };
        let head = message.first_chunk().context("short")?;
        let request = Request::read(head, message.len() as u64);
        Ok(Some(request.map_err(|e| anyhow::anyhow!("{e:?}"))?))
    }

    /// Returns the next request that has a key. Requests before it are served; reads return zeroes.
    pub(in crate::tests) fn next(&self) -> Result<Request> {
        loop {
            let request = self.request()?.context("the disk is gone")?;
            if matches!(request.carry, Carry::Key { .. }) {
                return Ok(request);
            }
            self.reply(&request)?;
        }
    }

    pub(in crate::tests) fn reply(&self, request: &Request) -> Result<()> {
        let len = match (request.op, request.carry) {
            (Op::Read, Carry::Message) => request.len,
            _ => 0,
        };
        self.liar.tell(request.number, &vec![0; len as usize])
    }

    pub(in crate::tests) fn end(self) -> Result<()> {
        self.liar.side.dev.close(self.liar.ep)?;
        Ok(self.liar.side.dev.close(self.pep)?)
    }
}

/// A target's access through a request's key.
#[derive(Clone, Copy, Debug)]
enum Try {
    /// The access that the key is for.
    Right,
    /// The right access and a byte more.
    Wider,
    /// The right access, beginning a byte before.
    Before,
    /// The opposite direction.
    OtherWay,
    /// The right access, but after the answer, when the request has completed.
    Later,
}

/// A request's key is valid for the request's bytes and direction, and only until the request
/// completes.
pub(super) fn keys(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    const LEN: u32 = 64 << 10;
    for reads in [false, true] {
        for what in [
            Try::Right,
            Try::Wider,
            Try::Before,
            Try::OtherWay,
            Try::Later,
        ] {
            if ctx.first() {
                let fake = Fake::new(ctx)?;
                let request = fake.next()?;
                let Carry::Key { key, addr } = request.carry else {
                    bail!("{request:?}");
                };
                let op = if reads { Op::Read } else { Op::Write };
                ensure!(request.op == op && request.len == LEN, "{request:?}");
                // A target writes the data of a read.
                let at = (addr, key);
                let len = u64::from(LEN);
                let (write, len, at, good) = match what {
                    Try::Right => (reads, len, at, true),
                    Try::Wider => (reads, len + 1, at, false),
                    Try::Before => (reads, len, (addr.wrapping_sub(1), key), false),
                    Try::OtherWay => (!reads, len, at, false),
                    Try::Later => (reads, len, at, false),
                };
                if matches!(what, Try::Later) {
                    fake.reply(&request)?;
                    ctx.barrier("over")?;
                }
                let went = fake.liar.moves(write, len, at)?;
                ensure!(went == good, "{what:?}, reads {reads}: {went}");
                if matches!(what, Try::Right) {
                    fake.reply(&request)?;
                    ctx.barrier("over")?;
                }
                ctx.barrier("tried")?;
                fake.end()?;
            } else {
                // The disk does not reconnect.
                let options = ["-i", "1", "--ctrl-loss-tmo", "0"];
                let device = patiently(ctx, &options)?;
                let disk = Disk::open(&device)?;
                let map = Map::anon(LEN as usize)?;
                let done = match reads {
                    true => disk.read(LEN as usize, &map, LEN as usize),
                    false => write_filled(&disk, &map, LEN as usize, LEN as usize, 1),
                };
                let good = matches!(what, Try::Right | Try::Later);
                ensure!(done.is_ok() == good, "{what:?}, reads {reads}: {done:?}");
                if good {
                    ctx.barrier("over")?;
                }
                ctx.barrier("tried")?;
                drop(disk);
                disconnect(NAME)?;
            }
            ctx.barrier("round")?;
        }
    }
    loaded.end(ctx)
}

/// Connects once a target listens.
pub(in crate::tests) fn patiently(ctx: &Ctx, options: &[&str]) -> Result<std::path::PathBuf> {
    until("the target listens", WAIT, || {
        match connect(ctx, NAME, options) {
            Ok(device) => Ok(Some(device)),
            Err(e) if format!("{e:#}").contains("os error 111") => Ok(None),
            Err(e) => Err(e),
        }
    })
}

/// Encodes a message that these requests have succeeded.
fn done(numbers: &[u32]) -> Result<Vec<u8>> {
    let mut message = [0; DONE];
    let len = write_done(&mut message, numbers).ok().context("no room")?;
    Ok(message[..len].to_vec())
}

/// A target's message that breaks the protocol ends the connection. The request fails, and nothing
/// else happens.
pub(super) fn targets(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    const KINDS: usize = 13;
    for kind in 0..KINDS {
        if ctx.first() {
            let fake = Fake::new(ctx)?;
            let request = fake.next()?;
            let number = request.number;
            let reply = Said::Reply { number, status: 0 }.write();
            let mut magic = reply;
            magic[0] ^= 1;
            let liar = &fake.liar;
            match kind {
                // Of a request that does not exist, or has completed.
                0 => liar.tell(number ^ 1, &[])?,
                1 => liar.tell(number ^ 0x4000, &[])?,
                2 => liar.tell(number.wrapping_sub(1 << 16), &[])?,
                // With bytes that no request waits for.
                3 => liar.tell(number, &[9; 512])?,
                4 => liar.say(&[&reply, &[9; 512]])?,
                5 => liar.say(&[&magic])?,
                6 => liar.say(&[&magic[..7]])?,
                7 => liar.say(&[&done(&[number ^ 1, number])?])?,
                8 => liar.say(&[&done(&[])?])?,
                // Of an impossible size.
                9 => liar.say(&[&Said::News(u64::MAX).write()])?,
                10 => liar.say(&[&Said::News(CAPACITY + 100).write()])?,
                11 => liar.say(&[&Said::News(0).write()])?,
                // The same answer twice.
                _ => {
                    fake.reply(&request)?;
                    liar.sent()?;
                    liar.say(&[&reply])?;
                }
            }
            while fake.liar.next(WAIT)?.is_some() {}
            ctx.barrier("said")?;
            fake.end()?;
        } else {
            let options = ["-i", "1", "--ctrl-loss-tmo", "0"];
            let device = patiently(ctx, &options)?;
            let disk = Disk::open(&device)?;
            let map = Map::anon(64 << 10)?;
            let done = write_filled(&disk, &map, 0, 64 << 10, 1);
            ensure!(done.is_err() || kind == KINDS - 1, "{kind}: written");
            until("it is dead", WAIT, || {
                Ok((show("disks", NAME, "state")? == "dead").then_some(()))
            })?;
            ctx.barrier("said")?;
            drop(disk);
            disconnect(NAME)?;
        }
        ctx.barrier("round")?;
    }
    loaded.end(ctx)
}

/// A disk gets the reason of its rejection, even if the target disconnects before the disk's
/// message is acknowledged.
pub(super) fn unheard(ctx: &mut Ctx) -> Result<()> {
    const WHY: i32 = libc::EKEYREVOKED;
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let side = Side::open(ctx)?;
        let (pep, _) = side.listen(SocketAddr::new(ctx.env.addr, PORT.parse()?), 8)?;
        ctx.barrier("listens")?;
        let connreq = next_event(&side, KFI_CONNREQ)?;
        let liar = Liar::deaf(side.again()?, connreq)?;
        liar.side.dev.accept(liar.ep, &[])?;
        next_event(&side, KFI_CONNECTED)?;
        liar.welcomes(&Welcome::refusal(WHY.unsigned_abs()))?;
        liar.sent()?;
        liar.side.dev.close(liar.ep)?;
        ctx.barrier("refused")?;
        side.dev.close(pep)?;
        drop(liar);
        return loaded.end(ctx);
    }
    ctx.barrier("listens")?;
    let e = connect(ctx, NAME, &["-i", "1"])
        .err()
        .context("the disk is admitted")?;
    let why = format!("os error {WHY})");
    ensure!(format!("{e:#}").contains(&why), "{e:#}");
    ctx.barrier("refused")?;
    loaded.end(ctx)
}
