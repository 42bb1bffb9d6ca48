// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk and peers that break the protocol: a program that plays an initiator of a block-backed
//! export, and one that plays a target.

use super::blk_device::{export, Backing};
use crate::disk::{
    begin, connect, disconnect, end, kfi, show, write_filled, Disk, Loaded, NAME, PORT,
};
use crate::harness::guest::until;
use crate::harness::{Ctx, Test, NETNS, SHM};
use crate::op;
use crate::pair::{Opts, Side, LOCAL, WAIT};
use crate::raw::{CallError, Cq};
use crate::sys::Map;
use anyhow::{bail, ensure, Context, Result};
use kfabric_pure::blk::device::{
    read_done, write_done, Carry, Limits, Op, Request, Said, DONE, INLINE_MAX, LEN_MAX, REQUEST,
    WANTED,
};
use kfabric_pure::blk::{
    Geometry, Hello, Name, Question, Welcome, MESSAGE_MAX, QUESTION_MAX, QUEUES_MAX, SESSION,
};
use kfabric_uapi::*;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("blk.hello_malformed_or_repeated_is_refused", strangers)
        .seconds(30)
        .on(NETNS),
    Test::pair(
        "blkdev.initiator_breaking_protocol_is_disconnected",
        clients,
    )
    .seconds(60)
    .on(NETNS),
    Test::pair("blkdev.key_of_request_used_otherwise_is_refused", keys)
        .seconds(60)
        .on(NETNS),
    Test::pair(
        "blkdev.disk_recreated_during_old_write_waits_for_it",
        made_anew,
    )
    .seconds(60)
    .on(NETNS),
    Test::pair("blkdev.target_breaking_protocol_is_disconnected", targets)
        .seconds(60)
        .on(NETNS),
    Test::pair(
        "blk.refusal_before_target_disconnects_reaches_disk",
        unheard,
    )
    .seconds(30)
    .on(NETNS | SHM),
];

const DEPTH: u64 = 16;
/// Offsets of a liar's send and receive buffers.
const SEND: u64 = 0;
const RECV: u64 = 1 << 20;
const ROOM: u64 = 8192;
/// Offset of the memory that a liar's operations use.
const DATA: u64 = 2 << 20;
/// Contexts of a liar's operations.
const SENT: u64 = 1 << 32;
const MOVED: u64 = 2 << 32;

/// A program at one end of a connection.
pub(super) struct Liar {
    side: Side,
    cq: Cq,
    ep: u64,
    map: Map,
    region: u64,
}

impl Liar {
    fn open(side: Side, connreq: u64) -> Result<Self> {
        let liar = Self::deaf(side, connreq)?;
        for n in 0..DEPTH {
            liar.listen(n)?;
        }
        Ok(liar)
    }

    /// Returns a liar that receives no message.
    fn deaf(side: Side, connreq: u64) -> Result<Self> {
        let map = Map::anon(4 << 20)?;
        let cq = side.cq(128, KFI_CQ_FORMAT_DATA)?;
        let opts = Opts {
            tx_size: 64,
            rx_size: 64,
            own_keys: true,
            ..Opts::default()
        };
        let ep = side.endpoint(&opts, &cq, connreq)?.handle;
        let len = map.len() as u64;
        let access = LOCAL | KFI_REMOTE_READ | KFI_REMOTE_WRITE;
        let region = side.reg_at(map.addr(), len, access)?.handle;
        Ok(Self {
            side,
            cq,
            ep,
            map,
            region,
        })
    }

    fn post(&self, op: OpEntry) -> Result<()> {
        let (done, err) = self.side.dev.submit(self.ep, &[op])?;
        ensure!(done == 1 && err == 0, "not taken: {err}");
        Ok(())
    }

    fn listen(&self, n: u64) -> Result<()> {
        let part = op::iov(self.region, RECV + n * ROOM, ROOM);
        self.post(op::recv(n, &[part]))
    }

    pub(super) fn say(&self, parts: &[&[u8]]) -> Result<()> {
        let all = parts.concat();
        self.map.write(SEND as usize, &all);
        let part = op::iov(self.region, SEND, all.len() as u64);
        self.post(op::send(SENT, &[part]))
    }

    fn welcomes(&self, welcome: &Welcome) -> Result<()> {
        let mut message = [0; MESSAGE_MAX];
        let len = welcome.write(&mut message).ok().context("no room")?;
        self.say(&[&message[..len]])
    }

    /// Waits until every sent message has completed.
    fn sent(&self) -> Result<()> {
        while self.cq.wait(WAIT)?.context != SENT {}
        Ok(())
    }

    /// Sends bytes with completion data.
    fn tell(&self, number: u32, bytes: &[u8]) -> Result<()> {
        self.map.write(SEND as usize, bytes);
        let part = [op::iov(self.region, SEND, bytes.len() as u64)];
        let mut send = op::send(SENT, &part[..usize::from(!bytes.is_empty())]);
        send.flags |= KFI_REMOTE_CQ_DATA;
        send.data = number.into();
        self.post(send)
    }

    /// Returns the next message, or `None` if the connection has ended.
    pub(super) fn next(&self, limit: Duration) -> Result<Option<Vec<u8>>> {
        Ok(self.heard(limit)?.map(|(bytes, _)| bytes))
    }

    /// Returns the next message with its completion data, or `None` if the connection has ended.
    fn heard(&self, limit: Duration) -> Result<Option<(Vec<u8>, Option<u64>)>> {
        loop {
            let entry = self.cq.wait(limit)?;
            if entry.err != 0 {
                return Ok(None);
            }
            if entry.context < DEPTH {
                let mut bytes = vec![0; entry.len as usize];
                let at = RECV + entry.context * ROOM;
                self.map.read(at as usize, &mut bytes);
                let over = |e: &CallError| e.errno.0 == libc::ENOTCONN;
                match self.listen(entry.context) {
                    // That was the last message.
                    Err(e) if e.downcast_ref().is_some_and(over) => {}
                    listens => listens?,
                }
                let data = (entry.flags & KFI_REMOTE_CQ_DATA != 0).then_some(entry.data);
                return Ok(Some((bytes, data)));
            }
        }
    }

    /// Sets the bytes that the next write sends.
    pub(super) fn fill(&self, value: u8) {
        self.map.write(DATA as usize, &[value; 4096]);
    }

    /// Writes or reads through a key. Returns whether the operation succeeded.
    pub(super) fn moves(&self, write: bool, len: u64, (addr, key): (u64, u64)) -> Result<bool> {
        let part = [op::iov(self.region, DATA, len)];
        let op = if write { op::write } else { op::read };
        self.post(op(MOVED, &part, addr, key))?;
        loop {
            let entry = self.cq.wait(WAIT)?;
            match entry.context {
                MOVED => return Ok(entry.err == 0),
                _ if entry.err != 0 => return Ok(false),
                SENT => {}
                other => bail!("{other:#x} completed"),
            }
        }
    }
}

pub(super) fn name(text: &str) -> Result<Name> {
    Name::new(text.as_bytes()).map_err(|e| anyhow::anyhow!("{e:?}"))
}

/// Connects, and sends no message yet.
pub(super) fn stranger(ctx: &Ctx, wants: &[u8]) -> Result<Liar> {
    let liar = Liar::open(Side::open(ctx)?, 0)?;
    let peer = SocketAddr::new(ctx.env.peer, PORT.parse()?);
    liar.side.dev.connect(liar.ep, peer, wants)?;
    liar.side.event(KFI_CONNECTED)?;
    Ok(liar)
}

pub(super) fn written(question: &Question) -> Result<Vec<u8>> {
    let mut message = [0; QUESTION_MAX];
    let len = question.write(&mut message).ok().context("no room")?;
    Ok(message[..len].to_vec())
}

/// Returns the first message of an initiator with one queue.
pub(super) fn hello(epoch: u32) -> Result<Hello> {
    Ok(Hello {
        queue: 0,
        queues: 1,
        epoch,
        session: [7; SESSION],
        disk: 7,
        client: name("liar")?,
        subsystem: name(NAME)?,
        commits: false,
        resumes: false,
    })
}

/// An initiator whose first message is malformed is not admitted, and its connection ends.
fn strangers(ctx: &mut Ctx) -> Result<()> {
    let loaded = begin(ctx, "4M")?;
    if ctx.first() {
        ctx.barrier("tried")?;
        until("they are gone", Duration::from_secs(10), || {
            let clients = show("subsystems", NAME, "clients")?;
            Ok(clients.is_empty().then_some(()))
        })?;
        return end(ctx, loaded);
    }
    let good = hello(1)?;
    let said = |hello: Hello| written(&Question::Hello(hello));
    let whole = said(good)?;
    // The message ends with two names of one size.
    let at_client = whole.len() - 2 * std::mem::size_of::<Name>();
    let mut nameless = whole.clone();
    nameless[at_client..].fill(0);
    let mut endless = whole.clone();
    endless[at_client..].fill(b'x');
    let mut other = whole.clone();
    other[5] ^= 0xff;
    let lies: &[(&str, Vec<u8>)] = &[
        ("nothing", vec![0]),
        ("half of it", whole[..whole.len() / 2].to_vec()),
        ("more than it", [&whole[..], &[0]].concat()),
        ("another version", other),
        ("no names", nameless),
        ("names without end", endless),
        (
            "more queues than there may be",
            said(Hello {
                queues: QUEUES_MAX + 1,
                ..good
            })?,
        ),
        ("no queues", said(Hello { queues: 0, ..good })?),
        ("a queue behind the last", said(Hello { queue: 1, ..good })?),
        (
            "no such export",
            said(Hello {
                subsystem: name("another")?,
                ..good
            })?,
        ),
        ("keys, before it is admitted", written(&Question::Keys(0))?),
    ];
    for (what, message) in lies {
        let liar = stranger(ctx, &[])?;
        liar.say(&[message])?;
        if let Some(answer) = liar.next(WAIT).context(*what)? {
            let welcome = Welcome::read(&answer).map_err(|e| anyhow::anyhow!("{what}: {e:?}"))?;
            ensure!(welcome.status != 0, "{what}: it is admitted");
            let more = liar.next(WAIT).context(*what)?;
            ensure!(more.is_none(), "{what}: it goes on");
        }
    }
    // An initiator that keeps to the protocol is admitted once, and no more.
    let liar = stranger(ctx, &[])?;
    liar.say(&[&whole])?;
    let answer = liar.next(WAIT)?.context("no answer")?;
    let welcome = Welcome::read(&answer).map_err(|e| anyhow::anyhow!("{e:?}"))?;
    ensure!(welcome.status == 0, "refused: {}", welcome.status);
    liar.say(&[&whole])?;
    let answer = liar.next(WAIT)?.context("no second answer")?;
    let again = Welcome::read(&answer).map_err(|e| anyhow::anyhow!("{e:?}"))?;
    ensure!(again.status == libc::EINVAL as u32, "{again:?}");
    drop(liar);
    ctx.barrier("tried")?;
    end(ctx, loaded)
}

/// Connects as an initiator of the export. Returns the target's welcome.
fn client(ctx: &Ctx, times: u32) -> Result<(Liar, Welcome)> {
    client_as(ctx, hello(times)?)
}

fn client_as(ctx: &Ctx, hello: Hello) -> Result<(Liar, Welcome)> {
    let liar = stranger(ctx, &[WANTED])?;
    liar.say(&[&written(&Question::Hello(hello))?])?;
    let answer = liar.next(WAIT)?.context("no answer")?;
    let welcome = Welcome::read(&answer).map_err(|e| anyhow::anyhow!("{e:?}"))?;
    ensure!(welcome.status == 0, "refused: {}", welcome.status);
    Ok((liar, welcome))
}

fn request(op: Op, pos: u64, len: u32, carry: Carry) -> Request {
    Request {
        op,
        flags: 0,
        number: 0xfeed_beef,
        pos,
        len,
        carry,
        alone: true,
    }
}

fn answer(liar: &Liar) -> Result<(u32, Vec<u8>)> {
    let heard = liar.heard(WAIT)?.context("the connection has ended")?;
    let (number, status, bytes) = match heard {
        (bytes, Some(data)) => (data, 0, bytes),
        (message, None) => {
            let head = message.first_chunk().context("short")?;
            match Said::read(head, message.len() as u64) {
                Ok(Said::Reply { number, status }) => (number.into(), status, vec![]),
                other => bail!("{other:?}"),
            }
        }
    };
    // The target only repeats the number.
    ensure!(number == 0xfeed_beef, "{number:#x}");
    Ok((status, bytes))
}

/// An initiator's request that breaks the protocol ends the connection, and changes nothing.
fn clients(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let backing = Backing::null(&[("discard", "1")])?;
        export(ctx, backing.path(), &[])?;
        ctx.barrier("exported")?;
        ctx.barrier("tried")?;
        let all = backing.contents()?;
        ensure!(all[..4096].iter().all(|b| *b == 0x5a), "the written bytes");
        ensure!(all[4096..].iter().all(|b| *b == 0), "something was written");
        // No initiator is left.
        until("clients are gone", Duration::from_secs(10), || {
            let clients = show("subsystems", NAME, "clients")?;
            Ok(clients.is_empty().then_some(()))
        })?;
        kfi(&["unexport", NAME])?;
        backing.end()?;
        return loaded.end(ctx);
    }
    ctx.barrier("exported")?;
    let message = Carry::Message;
    let key = Carry::Key {
        key: 0x1234,
        addr: 0x1000,
    };
    let (liar, welcome) = client(ctx, 1)?;
    let limits = welcome.device.context("no device")?;
    let capacity = welcome.geometry.capacity;
    ensure!(limits.discard != 0 && capacity == 16 << 20, "{welcome:?}");
    // A valid initiator is served.
    let good = request(Op::Write, 0, 4096, message);
    liar.say(&[&good.write(), &[0x5a; 4096]])?;
    ensure!(answer(&liar)? == (0, vec![]), "not written");
    liar.say(&[&request(Op::Read, 0, 512, message).write()])?;
    ensure!(answer(&liar)? == (0, vec![0x5a; 512]), "not read");
    // A position behind the end is an error of that request.
    for pos in [capacity, capacity - 512, 1 << 60, 0u64.wrapping_sub(512)] {
        liar.say(&[&request(Op::Write, pos, 1024, message).write(), &[1; 1024]])?;
        ensure!(answer(&liar)?.0 == libc::EIO as u32, "written at {pos}");
        liar.say(&[&request(Op::Discard, pos, 1024, message).write()])?;
        ensure!(answer(&liar)?.0 == libc::EIO as u32, "discarded at {pos}");
    }
    drop(liar);
    let head = |op: Op, pos: u64, len: u32, carry: Carry| request(op, pos, len, carry).write();
    let mut unknown = head(Op::Flush, 0, 0, message);
    unknown[8] = 77;
    let mut wrong = head(Op::Flush, 0, 0, message);
    wrong[0] ^= 1;
    let mut flags = head(Op::Read, 0, 512, message);
    flags[9] = 1;
    let lies: &[(&str, Vec<u8>)] = &[
        ("no operation", unknown.to_vec()),
        ("no magic", wrong.to_vec()),
        ("flags", flags.to_vec()),
        (
            "half a head",
            head(Op::Flush, 0, 0, message)[..REQUEST / 2].to_vec(),
        ),
        (
            "more than a head",
            [&head(Op::Flush, 0, 0, message)[..], &[1]].concat(),
        ),
        (
            "fewer bytes than said",
            [&head(Op::Write, 4096, 1024, message)[..], &[1; 512]].concat(),
        ),
        (
            "more bytes than said",
            [&head(Op::Write, 4096, 512, message)[..], &[1; 1024]].concat(),
        ),
        (
            "more than goes with a message",
            [
                &head(Op::Write, 4096, INLINE_MAX + 512, message)[..],
                &[1; INLINE_MAX as usize + 512],
            ]
            .concat(),
        ),
        (
            "a read of more than goes with a message",
            head(Op::Read, 0, INLINE_MAX + 512, message).to_vec(),
        ),
        (
            "half a block",
            [&head(Op::Write, 4096, 256, message)[..], &[1; 256]].concat(),
        ),
        (
            "between blocks",
            [&head(Op::Write, 4097, 512, message)[..], &[1; 512]].concat(),
        ),
        (
            "too much by a key",
            head(Op::Write, 4096, LEN_MAX + 512, key).to_vec(),
        ),
        (
            "all there is by a key",
            head(Op::Write, 4096, !511, key).to_vec(),
        ),
        ("nothing by a key", head(Op::Read, 4096, 0, key).to_vec()),
        (
            "a discard by a key",
            head(Op::Discard, 4096, 512, key).to_vec(),
        ),
        (
            "too much discarded",
            head(Op::Discard, 0, limits.discard.saturating_add(512), message).to_vec(),
        ),
        (
            "too much zeroed",
            head(Op::Zeroes, 0, limits.zeroes.saturating_add(512), message).to_vec(),
        ),
        (
            "a write by no key",
            head(Op::Write, 4096, 8192, key).to_vec(),
        ),
        ("a read by no key", head(Op::Read, 0, 8192, key).to_vec()),
    ];
    for (i, (what, message)) in lies.iter().enumerate() {
        let (liar, _) = client(ctx, 2 + i as u32)?;
        liar.say(&[message])?;
        let start = Instant::now();
        // A read without a key is answered before the connection ends.
        while liar.next(WAIT).context(*what)?.is_some() {
            ensure!(start.elapsed() < WAIT, "{what}: it is served");
        }
    }
    // More requests at once than the target has buffers wait, and are served.
    let (liar, _) = client(ctx, 1000)?;
    // The target may answer several at once.
    let mut flush = request(Op::Flush, 0, 0, message);
    flush.alone = false;
    liar.map.write(SEND as usize, &flush.write());
    for _ in 0..48 {
        let part = op::iov(liar.region, SEND, REQUEST as u64);
        liar.post(op::send(SENT, &[part]))?;
    }
    let mut served = 0;
    while served < 48 {
        let heard = liar.heard(WAIT)?;
        match heard.with_context(|| format!("{served} are served"))? {
            (bytes, Some(0xfeed_beef)) if bytes.is_empty() => served += 1,
            (bytes, None) => {
                let numbers = read_done(&bytes).map_err(|e| anyhow::anyhow!("{e:?}"))?;
                for number in numbers {
                    ensure!(number == 0xfeed_beef, "{number:#x}");
                    served += 1;
                }
            }
            other => bail!("{other:?}"),
        }
    }
    ensure!(served == 48, "{served} are served");
    drop(liar);
    ctx.barrier("tried")?;
    loaded.end(ctx)
}

/// An initiator's disk is recreated while the target still has a connection of the old one with an
/// outstanding write. The new disk is admitted when that write has ended, and not before. Another
/// disk of the same initiator changes nothing.
fn made_anew(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let slow = [("irqmode", "2"), ("completion_nsec", "1000000000")];
        let backing = Backing::null(&slow)?;
        export(ctx, backing.path(), &[])?;
        ctx.barrier("exported")?;
        ctx.barrier("tried")?;
        kfi(&["unexport", NAME])?;
        backing.end()?;
        return loaded.end(ctx);
    }
    ctx.barrier("exported")?;
    // Both nodes are one kernel here.
    let under_way = || -> Result<bool> {
        let text = std::fs::read_to_string("/sys/block/blkback/inflight")?;
        Ok(text.split_whitespace().any(|count| count != "0"))
    };
    let write = request(Op::Write, 0, 4096, Carry::Message);
    let before = hello(1)?;
    let (first, _) = client_as(ctx, before)?;
    first.say(&[&write.write(), &[1; 4096]])?;
    let another = Hello {
        session: [8; SESSION],
        disk: 8,
        ..before
    };
    let (other, _) = client_as(ctx, another)?;
    ensure!(answer(&first)?.0 == 0, "the first is not served");
    first.say(&[&write.write(), &[2; 4096]])?;
    until("it is written", WAIT, || Ok(under_way()?.then_some(())))?;
    let anew = Hello {
        session: [9; SESSION],
        ..before
    };
    let (last, _) = client_as(ctx, anew)?;
    ensure!(!under_way()?, "an earlier write is outstanding");
    // The old connection has ended, answered or not.
    while first.next(WAIT)?.is_some() {}
    other.say(&[&write.write(), &[3; 4096]])?;
    ensure!(answer(&other)?.0 == 0, "another disk is not served");
    last.say(&[&write.write(), &[4; 4096]])?;
    ensure!(answer(&last)?.0 == 0, "the disk is not served");
    drop((first, other, last));
    ctx.barrier("tried")?;
    loaded.end(ctx)
}

/// A program that plays a target, on node 1, with the messages of the disk that has connected to
/// it.
pub(super) struct Fake {
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
pub(super) fn welcome() -> Welcome {
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
    pub(super) fn with(ctx: &Ctx, good: &Welcome, kinds: &[bool]) -> Result<Self> {
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
    pub(super) fn silent(ctx: &Ctx) -> Result<Self> {
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
    pub(super) fn again(&mut self, good: &Welcome) -> Result<()> {
        let Liar { cq, ep, region, .. } = &self.liar;
        for handle in [*ep, cq.handle, *region] {
            self.side.dev.close(handle)?;
        }
        self.liar = Self::let_in(&self.side, good, true)?;
        Ok(())
    }

    /// Waits until every sent message has completed.
    pub(super) fn sent(&self) -> Result<()> {
        self.liar.sent()
    }

    /// Announces another capacity of the device.
    pub(super) fn news(&self, capacity: u64) -> Result<()> {
        self.liar.say(&[&Said::News(capacity).write()])?;
        self.sent()
    }

    /// Answers that a request has failed.
    pub(super) fn refuse(&self, request: &Request, errno: i32) -> Result<()> {
        let (number, status) = (request.number, errno.unsigned_abs());
        self.liar.say(&[&Said::Reply { number, status }.write()])
    }

    /// Returns the next request; `None`: the disk has disconnected.
    pub(super) fn request(&self) -> Result<Option<Request>> {
        let Some(message) = self.liar.next(WAIT)? else {
            return Ok(None);
        };
        let head = message.first_chunk().context("short")?;
        let request = Request::read(head, message.len() as u64);
        Ok(Some(request.map_err(|e| anyhow::anyhow!("{e:?}"))?))
    }

    /// Returns the next request that has a key. Requests before it are served; reads return zeroes.
    pub(super) fn next(&self) -> Result<Request> {
        loop {
            let request = self.request()?.context("the disk is gone")?;
            if matches!(request.carry, Carry::Key { .. }) {
                return Ok(request);
            }
            self.reply(&request)?;
        }
    }

    pub(super) fn reply(&self, request: &Request) -> Result<()> {
        let len = match (request.op, request.carry) {
            (Op::Read, Carry::Message) => request.len,
            _ => 0,
        };
        self.liar.tell(request.number, &vec![0; len as usize])
    }

    pub(super) fn end(self) -> Result<()> {
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
fn keys(ctx: &mut Ctx) -> Result<()> {
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
pub(super) fn patiently(ctx: &Ctx, options: &[&str]) -> Result<std::path::PathBuf> {
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
fn targets(ctx: &mut Ctx) -> Result<()> {
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
fn unheard(ctx: &mut Ctx) -> Result<()> {
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
