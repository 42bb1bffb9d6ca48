// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk and peers that break the protocol: a program that plays an initiator of a block-backed
//! export, and one that plays a target.

mod target;

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
pub(super) use target::{patiently, welcome, Fake};

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
    Test::pair(
        "blkdev.key_of_request_used_otherwise_is_refused",
        target::keys,
    )
    .seconds(60)
    .on(NETNS),
    Test::pair(
        "blkdev.disk_recreated_during_old_write_waits_for_it",
        made_anew,
    )
    .seconds(60)
    .on(NETNS),
    Test::pair(
        "blkdev.target_breaking_protocol_is_disconnected",
        target::targets,
    )
    .seconds(60)
    .on(NETNS),
    Test::pair(
        "blk.refusal_before_target_disconnects_reaches_disk",
        target::unheard,
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
