// SPDX-License-Identifier: MIT OR Apache-2.0

//! Commit channels with a raw verbs peer, which breaks the rules: it opens a connection and its channel, or
//! refuses the channels of the other node.
//!
//! The peer of a connection knows the first packet numbers of both ends, and so can open the channel. No
//! other party does.

use super::pmem::{Device, MAPPED};
use super::pmem_verbs::persistent;
use crate::buf::Buf;
use crate::harness::caps::ARRIVED_WRITES;
use crate::harness::guest::{run, until};
use crate::harness::{Ctx, Test, LONG as LONG_RUNS, NETNS};
use crate::op::{self, iov, with_flags};
use crate::pair::{accept_one, connect_one, Opts, Pair, Remote, Side, LOCAL, LONG, REMOTE};
use crate::sys::{patience, slowness};
use crate::wire::peer::Peer;
use anyhow::{bail, ensure, Context, Result};
use kfabric_pure::commit::{
    secret_of, write_answer, write_request, End, Ends, Hello, Range, Status, ANSWER_MAX, REFUSAL,
    REQUEST_MAX,
};
use kfabric_pure::proof::Mac;
use kfabric_pure::wire::{self, Secret};
use kfabric_uapi::KFI_COMMIT_COMPLETE;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("pmem.p10_hostile_commits_change_nothing", |c| {
        raw(c, None, commits)
    })
    .seconds(20)
    .on(NETNS)
    .needs(ARRIVED_WRITES),
    Test::pair(
        "pmem.p10_channel_without_the_packet_numbers_is_refused",
        |c| raw(c, None, strangers),
    )
    .seconds(20)
    .on(NETNS)
    .needs(ARRIVED_WRITES),
    Test::pair("pmem.p10_channel_without_the_secret_is_refused", |c| {
        raw(c, Some(*b"a secret"), no_secret)
    })
    .seconds(20)
    .on(NETNS)
    .needs(ARRIVED_WRITES),
    Test::pair(
        "pmem.p10_streams_of_commits_do_not_hold_up_other_users",
        streams,
    )
    .seconds(60)
    .on(NETNS)
    .needs(ARRIVED_WRITES),
    Test::pair("pmem.commit_after_answer_without_receive_is_served", |c| {
        raw(c, None, late_receives)
    })
    .seconds(20)
    .on(NETNS)
    .needs(ARRIVED_WRITES),
    Test::pair(
        "pmem.p10_peer_that_answers_without_receive_cannot_hold_writes",
        no_receive,
    )
    .seconds(180)
    .on(LONG_RUNS),
    Test::pair(
        "pmem.p10_refusal_for_the_moment_is_not_one_for_ever",
        refusals,
    )
    .seconds(10)
    .on(NETNS)
    .needs(ARRIVED_WRITES),
];

/// Port of the channels.
const PORT: u16 = 1013;
/// Value of each byte of the target.
const FILL: u8 = 0x3c;
/// Bytes that the key covers, at the target's start.
const WINDOW: usize = 65536;
/// Connection parameters of an ordinary peer, without the data.
const PARAM: &str = "1 1 1 6 7 0 -1";
/// Place of answers in the peer's memory, behind the message to send.
const ANSWERS: u32 = 4096;
/// `IBV_WR_SEND`.
const SEND: u32 = 2;
/// kverbs waits for the send completion of one message in this many (`SENDS` in
/// kverbs-provider/src/channel.rs).
const SENDS: u64 = 8;

/// The raw peer with a connection.
struct Raw<'a> {
    peer: Peer,
    ctx: &'a mut Ctx,
    ends: Ends,
    to: Remote,
}

/// Runs `attack` as node 2, whose request has `secret`, and checks the memory of node 1.
fn raw(
    ctx: &mut Ctx,
    secret: Option<Secret>,
    attack: fn(&mut Raw<'_>) -> Result<()>,
) -> Result<()> {
    if ctx.first() {
        let map = Device::Nvdimm.map()?;
        (0..map.len()).for_each(|i| map.set(i, FILL));
        let side = Side::open(ctx)?;
        let region = persistent(&side, &map, &[])?;
        let (_, mine) = side.export(region, 0, WINDOW as u64, REMOTE)?;
        let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
        ctx.ctl.send(&(at.port(), mine))?;
        let cq = side.cq(0, 0)?;
        ctx.barrier("started")?;
        let ep = accept_one(&side, &Opts::default(), &cq)?.handle;
        ctx.barrier("over")?;
        let changed = (0..map.len()).find(|i| map.get(*i) != FILL);
        ensure!(changed.is_none(), "byte {changed:?} has changed");
        // The connection has no part in that of the channel.
        let event = side.dev.eq_wait(&side.eq, Duration::ZERO);
        ensure!(event.is_err(), "{:?}", event.map(|event| event.raw));
        side.dev.close(ep)?;
        return ctx.barrier("end");
    }
    let (port, to): (u16, Remote) = ctx.ctl.recv()?;
    let mut peer = Peer::start(slowness())?;
    ctx.barrier("started")?;
    let address = ctx.env.peer;
    let mut data = [0; wire::REQUEST_MAX];
    let len = match &secret {
        Some(secret) => wire::append_secret(&mut data, wire::HEADER, secret),
        None => wire::HEADER,
    };
    let to_node = format!("{address} {port}");
    let (answer, mut ends) = open(&mut peer, 0, &to_node, |_| hex(&data[..len]))?
        .context("the target has refused the connection")?;
    let theirs = wire::secret(&unhex(&answer)?);
    ensure!(theirs.is_some() == secret.is_some(), "answer {answer}");
    if let Some((own, theirs)) = secret.zip(theirs) {
        ends.secret = secret_of(&own, &theirs);
    }
    let mut raw = Raw {
        peer,
        ctx,
        ends,
        to,
    };
    attack(&mut raw)?;
    raw.ctx.barrier("over")?;
    raw.ctx.barrier("end")
}

/// Has the peer execute a command.
fn must(peer: &mut Peer, command: &str) -> Result<Vec<String>> {
    match peer.ask(command)? {
        Some(words) => Ok(words),
        None => bail!("the raw peer cannot {command:?}"),
    }
}

/// Connects a slot of the peer. `data` returns the private data for the number of the queue pair.
/// Returns the data of the acceptance and both ends, or `None` if the target has refused.
fn open(
    peer: &mut Peer,
    slot: u32,
    to: &str,
    data: impl FnOnce(u32) -> String,
) -> Result<Option<(String, Ends)>> {
    must(peer, &format!("resolve {slot} {to}"))?;
    let qp: u32 = must(peer, &format!("qp {slot}"))?[0].parse()?;
    let data = data(qp);
    must(peer, &format!("connect {slot} {PARAM} {data}"))?;
    let event = must(peer, &format!("wait {slot} {}", 30_000 * slowness()))?;
    if event[0] == "REJECTED" {
        must(peer, &format!("del {slot}"))?;
        return Ok(None);
    }
    ensure!(event[0] == "CONNECT_RESPONSE", "{event:?}");
    let agreed = must(peer, &format!("rts {slot}"))?;
    must(peer, &format!("recv {slot} 256 {ANSWERS}"))?;
    must(peer, &format!("establish {slot}"))?;
    let ends = Ends {
        initiator: End {
            qp,
            psn: agreed[2].parse()?,
        },
        target: End {
            qp: agreed[0].parse()?,
            psn: agreed[1].parse()?,
        },
        secret: 0,
    };
    Ok(Some((event[2].clone(), ends)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let pair = |at| {
        let two = text.get(at..at + 2).context("half a byte")?;
        Ok(u8::from_str_radix(two, 16)?)
    };
    (0..text.len()).step_by(2).map(pair).collect()
}

impl Raw<'_> {
    /// Opens the channel in slot 1 as the peer of the connection `ends`. Returns whether the target has
    /// accepted.
    fn channel(&mut self, ends: &Ends) -> Result<bool> {
        let to = format!("{} {PORT}", self.ctx.env.peer);
        let hello = |qp| hex(&Hello::request(ends, qp, |_| Mac::default()).write());
        Ok(open(&mut self.peer, 1, &to, hello)?.is_some())
    }

    /// Sends a message on the channel.
    fn send(&mut self, message: &[u8]) -> Result<()> {
        must(&mut self.peer, &format!("put {}", hex(message)))?;
        let len = message.len();
        must(&mut self.peer, &format!("post 1 {SEND} {len} 0 0 0 0")).map(drop)
    }

    /// Waits for completions of the channel.
    fn poll(&mut self, count: u32) -> Result<Vec<String>> {
        let ms = 30_000 * slowness();
        must(&mut self.peer, &format!("poll 1 {count} {ms}"))
    }

    /// Sends a COMMIT.
    fn ask(&mut self, number: u64, ranges: &[Range]) -> Result<()> {
        let mut message = [0; REQUEST_MAX];
        let len = write_request(number, ranges, &mut message);
        self.send(&message[..len])
    }

    /// Waits for successful completions of the channel.
    fn succeed(&mut self, count: usize) -> Result<()> {
        let done = self.poll(count as u32)?;
        let good = done.iter().all(|word| word.starts_with("0:"));
        ensure!(good && done.len() == count, "{done:?}");
        Ok(())
    }

    /// Posts a receive for an ANSWER.
    fn receive(&mut self) -> Result<()> {
        must(&mut self.peer, &format!("recv 1 256 {ANSWERS}")).map(drop)
    }

    /// Checks that the last ANSWER has this number and these statuses.
    fn answered(&mut self, number: u64, statuses: &[Status]) -> Result<()> {
        let mut answer = [0; ANSWER_MAX];
        let len = write_answer(number, statuses, &mut answer);
        let found = must(&mut self.peer, &format!("find {}", hex(&answer[..len])))?;
        ensure!(found[0] != "0", "another answer to {number}");
        Ok(())
    }

    /// Sends a COMMIT, and checks that its ANSWER has these statuses.
    fn commit(&mut self, number: u64, ranges: &[Range], statuses: &[Status]) -> Result<()> {
        self.ask(number, ranges)?;
        self.succeed(2)?;
        self.answered(number, statuses)?;
        self.receive()
    }
}

fn commits(raw: &mut Raw<'_>) -> Result<()> {
    let to = raw.to;
    let range = |key, addr, len| Range { key, addr, len };
    let whole = range(to.key, to.addr, WINDOW as u64);
    let ends = raw.ends;
    ensure!(raw.channel(&ends)?, "the target has refused its peer");
    raw.commit(1, &[whole], &[Status::Durable])?;
    let outside = [
        range(to.key, to.addr, WINDOW as u64 + 1),
        range(to.key, to.addr - 1, 1),
        range(to.key, to.addr + WINDOW as u64, 1),
        range(to.key, to.addr, 1 << 63),
        range(to.key, to.addr, u64::MAX),
        range(to.key, u64::MAX, 2),
        range(to.key, 0, u64::MAX),
    ];
    raw.commit(2, &outside, &[Status::Refused; 7])?;
    let unknown = [0, to.key ^ 1, to.key + 256, to.key | 1 << 32, u64::MAX];
    let unknown = unknown.map(|key| range(key, to.addr, 8));
    raw.commit(3, &unknown, &[Status::Revoked; 5])?;
    raw.commit(u64::MAX, &[whole; 32], &[Status::Durable; 32])?;
    let mut good = [0; REQUEST_MAX];
    let len = write_request(4, &[whole; 2], &mut good);
    let good = good[..len].to_vec();
    let mut many = good.clone();
    many[3] = 33;
    many.resize(16 + 33 * 24, 0);
    let changed = |at: usize, value: u8| {
        let mut bad = good.clone();
        bad[at] = value;
        bad
    };
    let malformed = [
        many,
        vec![0; 1],
        vec![0xff; 784],
        vec![0; 1100],
        good[..len - 1].to_vec(),
        changed(0, 9),
        changed(1, 4),
        changed(2, 7),
        changed(3, 0),
        changed(3, 1),
    ];
    for bad in malformed {
        raw.send(&bad)?;
        // The target ends the channel. The peer may open another.
        raw.poll(1)?;
        let wait = format!("wait 1 {}", 30_000 * slowness());
        let event = loop {
            let event = must(&mut raw.peer, &wait)?;
            if event[0] != "ESTABLISHED" {
                break event;
            }
        };
        ensure!(event[0] == "DISCONNECTED", "{event:?}");
        must(&mut raw.peer, "del 1")?;
        let ends = raw.ends;
        ensure!(raw.channel(&ends)?, "the target refuses another channel");
        raw.commit(5, &[whole], &[Status::Durable])?;
    }
    // A channel replaces the one before, which the peer has kept.
    must(&mut raw.peer, "del 1")?;
    for number in 6..10 {
        let ends = raw.ends;
        ensure!(raw.channel(&ends)?, "the target refuses another channel");
        raw.commit(number, &[whole], &[Status::Durable])?;
        must(&mut raw.peer, "del 1")?;
    }
    Ok(())
}

fn strangers(raw: &mut Raw<'_>) -> Result<()> {
    let ends = raw.ends;
    let guesses: [fn(&mut Ends); 6] = [
        |ends| ends.initiator.psn ^= 1,
        |ends| ends.target.psn ^= 1,
        |ends| ends.initiator.qp ^= 1,
        |ends| ends.target.qp ^= 1,
        |ends| *ends = ends.swapped(),
        |ends| *ends = Ends::default(),
    ];
    for change in guesses {
        let mut guess = ends;
        change(&mut guess);
        ensure!(
            !raw.channel(&guess)?,
            "a channel of {guess:?}, not {ends:?}"
        );
    }
    // Other bytes than a HELLO.
    let to = format!("{} {PORT}", raw.ctx.env.peer);
    for data in ["-", "00", "01", "0101", "0201"] {
        let opened = open(&mut raw.peer, 1, &to, |_| data.into())?;
        ensure!(opened.is_none(), "a channel for {data}");
    }
    // Another queue pair than the HELLO's does not matter without an auth key: the peer itself has
    // made both.
    ensure!(raw.channel(&ends)?, "the target has refused its peer");
    Ok(())
}

/// A user of the initiator's host knows queue pairs and packet numbers, but not the secret.
fn no_secret(raw: &mut Raw<'_>) -> Result<()> {
    let ends = raw.ends;
    ensure!(ends.secret != 0);
    for secret in [0, ends.secret ^ 1, ends.secret ^ 1 << 64, !ends.secret] {
        let opened = raw.channel(&Ends { secret, ..ends })?;
        ensure!(!opened, "a channel with the secret {secret:#x}");
    }
    ensure!(raw.channel(&ends)?, "the target has refused its peer");
    Ok(())
}

/// The peer sends the next COMMIT before it can receive the ANSWER to the last one. If the target waits for
/// the send completion of this ANSWER, it serves the COMMIT afterwards.
fn late_receives(raw: &mut Raw<'_>) -> Result<()> {
    let to = raw.to;
    let whole = Range {
        key: to.key,
        addr: to.addr,
        len: WINDOW as u64,
    };
    let ends = raw.ends;
    ensure!(raw.channel(&ends)?, "the target has refused its peer");
    // The receive for the first ANSWER is posted. So later pairs begin with an even number.
    raw.ask(1, &[whole])?;
    raw.succeed(2)?;
    for first in (2..=SENDS).step_by(2) {
        raw.ask(first, &[whole])?;
        raw.succeed(1)?;
        raw.ask(first + 1, &[whole])?;
        raw.succeed(1)?;
        for _ in 0..2 {
            raw.receive()?;
            raw.succeed(1)?;
        }
        raw.answered(first + 1, &[Status::Durable])?;
    }
    Ok(())
}

/// A target that answers a COMMIT without a receive for it, so that the initiator's device repeats the
/// message. The next durable write ends with `ETIMEDOUT`: the device's retries end (rxe), or the time for
/// the send completion.
fn no_receive(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let mut peer = Peer::start(slowness())?;
        let ms = 60_000 * slowness();
        let address = ctx.env.addr;
        let port: u16 = must(&mut peer, &format!("listen 0 {address}"))?[0].parse()?;
        must(&mut peer, &format!("listen 1 {address} {PORT}"))?;
        ctx.ctl.send(&port)?;
        must(&mut peer, &format!("take 0 2 {ms}"))?;
        let (qp, theirs) = accept(&mut peer, 2, |_| "00".into())?;
        let at = must(&mut peer, "mem")?;
        let remote = Remote {
            addr: at[0].parse()?,
            key: at[1].parse()?,
            len: at[2].parse()?,
        };
        ctx.ctl.send(&remote)?;
        ctx.barrier("write")?;
        must(&mut peer, &format!("take 1 3 {ms}"))?;
        let ends = Ends {
            initiator: theirs,
            target: qp,
            secret: 0,
        };
        let welcome = |channel| hex(&Hello::welcome(&ends, channel, |_| Mac::default()).write());
        accept(&mut peer, 3, welcome)?;
        // How often the device has refused a message because there is no receive.
        let link = format!("{}/1", ctx.env.dev);
        let refusals = || -> Result<u64> {
            let text = run("rdma", &["statistic", "show", "link", &link])?;
            let mut words = text.split_whitespace();
            words.find(|word| *word == "send_rnr_err");
            Ok(words.next().context("no counter")?.parse()?)
        };
        for number in 1..=SENDS {
            let before = refusals()?;
            if number > 1 {
                ctx.barrier("write")?;
            }
            if number < SENDS {
                let done = must(&mut peer, &format!("poll 3 1 {ms}"))?;
                ensure!(done.len() == 1 && done[0].starts_with("0:"), "{done:?}");
            } else {
                // The message is on its way.
                until(
                    "a COMMIT without a receive",
                    Duration::from_secs(30),
                    || Ok((refusals()? != before).then_some(())),
                )?;
            }
            if number + 1 < SENDS {
                must(&mut peer, &format!("recv 3 1024 {ANSWERS}"))?;
            }
            let mut answer = [0; ANSWER_MAX];
            let len = write_answer(number, &[Status::Durable], &mut answer);
            must(&mut peer, &format!("put {}", hex(&answer[..len])))?;
            must(&mut peer, &format!("post 3 {SEND} {len} 0 0 0 0"))?;
            must(&mut peer, &format!("poll 3 1 {ms}"))?;
        }
        return ctx.barrier("end");
    }
    let side = Side::open(ctx)?;
    let buf = Buf::new(4096)?;
    let region = side.reg(&buf, LOCAL)?.handle;
    let cq = side.cq(0, 0)?;
    let port: u16 = ctx.ctl.recv()?;
    let ep = connect_one(&side, &Opts::default(), &cq, ctx.env.peer_at(port))?.handle;
    let to: Remote = ctx.ctl.recv()?;
    // Behind the place of the raw peer's messages.
    let plain = op::write(1, &[iov(region, 0, 8)], to.addr + 65536, to.key);
    let durable = with_flags(plain, KFI_COMMIT_COMPLETE);
    let end_of = |entry| -> Result<u32> {
        ensure!(side.dev.submit(ep, &[entry])? == (1, 0));
        Ok(cq.wait(patience(Duration::from_secs(150)))?.err)
    };
    for _ in 1..=SENDS {
        ctx.barrier("write")?;
        ensure!(end_of(durable)? == 0);
    }
    let err = end_of(durable)?;
    ensure!(err == libc::ETIMEDOUT as u32, "errno {err}");
    ensure!(end_of(plain)? == 0, "the connection has ended");
    ctx.barrier("end")
}

/// Accepts the request in a slot of the raw peer. `data` returns the private data for the number of the queue
/// pair. Posts a receive. Returns both ends, the peer's first.
fn accept(peer: &mut Peer, slot: u32, data: impl FnOnce(u32) -> String) -> Result<(End, End)> {
    let qp: u32 = must(peer, &format!("qp {slot}"))?[0].parse()?;
    let agreed = must(peer, &format!("rts {slot}"))?;
    must(peer, &format!("recv {slot} 1024 {ANSWERS}"))?;
    let data = data(qp);
    must(peer, &format!("accept {slot} {PARAM} {data}"))?;
    let own = End {
        qp,
        psn: agreed[2].parse()?,
    };
    let theirs = End {
        qp: agreed[0].parse()?,
        psn: agreed[1].parse()?,
    };
    Ok((own, theirs))
}

/// Connections with a stream of COMMITs.
const STREAMS: u32 = 6;
/// Number of ranges of a COMMIT, and bytes of each: 64 MiB in all.
const PIECES: usize = 32;
const PIECE: u64 = 2 << 20;
/// Connections of the other user, one after the other.
const ROUNDS: u32 = 6;
/// Time in which the other user connects, writes durably and disconnects, however many COMMITs wait.
const BOUND: Duration = Duration::from_secs(10);

/// Sends COMMITs on all channels until `over`, at once. Returns the number of answers.
fn stream(peer: &mut Peer, over: &AtomicBool, message: &[u8]) -> Result<u32> {
    let ms = 120_000 * slowness();
    let len = message.len();
    must(peer, &format!("put {}", hex(message)))?;
    let post = |peer: &mut Peer, n: u32| {
        let slot = 2 * n + 1;
        must(peer, &format!("post {slot} {SEND} {len} 0 0 0 0")).map(drop)
    };
    for n in 0..STREAMS {
        post(peer, n)?;
    }
    let mut answers = 0;
    while !over.load(Ordering::Acquire) {
        for n in 0..STREAMS {
            let slot = 2 * n + 1;
            let done = must(peer, &format!("poll {slot} 2 {ms}"))?;
            let good = done.len() == 2 && done.iter().all(|word| word.starts_with("0:"));
            ensure!(good, "stream {n}: {done:?}");
            answers += 1;
            must(peer, &format!("recv {slot} 256 {ANSWERS}"))?;
            post(peer, n)?;
        }
    }
    Ok(answers)
}

/// While a peer streams COMMITs, a user connects, writes durably and disconnects in bounded time.
fn streams(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    if ctx.first() {
        let map = Device::Nvdimm.map()?;
        let region = persistent(&side, &map, &[])?;
        let (_, mine) = side.export(region, 0, MAPPED as u64, REMOTE)?;
        let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
        ctx.ctl.send(&(at.port(), mine))?;
        let cq = side.cq(0, 0)?;
        ctx.barrier("started")?;
        for _ in 0..STREAMS {
            accept_one(&side, &Opts::default(), &cq)?;
        }
        for _ in 0..ROUNDS {
            let ep = accept_one(&side, &Opts::default(), &cq)?.handle;
            ctx.barrier("written")?;
            side.dev.close(ep)?;
        }
        return ctx.barrier("end");
    }
    let (port, to): (u16, Remote) = ctx.ctl.recv()?;
    let mut peer = Peer::start(slowness())?;
    ctx.barrier("started")?;
    let address = ctx.env.peer;
    for n in 0..STREAMS {
        let at = format!("{address} {port}");
        let (_, ends) = open(&mut peer, 2 * n, &at, |_| "00".into())?
            .context("the target has refused the connection")?;
        let hello = |qp| hex(&Hello::request(&ends, qp, |_| Mac::default()).write());
        let at = format!("{address} {PORT}");
        let channel = open(&mut peer, 2 * n + 1, &at, hello)?;
        ensure!(channel.is_some(), "the target has refused its peer");
    }
    let range = Range {
        key: to.key,
        addr: to.addr,
        len: PIECE,
    };
    let mut message = [0; REQUEST_MAX];
    let len = write_request(1, &[range; PIECES], &mut message);
    let over = AtomicBool::new(false);
    let buf = Buf::new(4096)?;
    let region = side.reg(&buf, LOCAL)?.handle;
    let (longest, answers) = std::thread::scope(|scope| -> Result<_> {
        let sender = scope.spawn(|| stream(&mut peer, &over, &message[..len]));
        let work = |ctx: &mut Ctx| -> Result<Duration> {
            let mut longest = Duration::ZERO;
            for _ in 0..ROUNDS {
                let start = Instant::now();
                let cq = side.cq(0, 0)?;
                let ep = connect_one(&side, &Opts::default(), &cq, ctx.env.peer_at(port))?.handle;
                let write = op::write(1, &[iov(region, 0, 4096)], to.addr, to.key);
                side.dev
                    .submit(ep, &[with_flags(write, KFI_COMMIT_COMPLETE)])?;
                let e = cq.wait(LONG)?;
                ensure!(e.err == 0, "{e:?}");
                side.dev.close(ep)?;
                longest = longest.max(start.elapsed());
                ctx.barrier("written")?;
                while side.dev.eq_wait(&side.eq, Duration::ZERO).is_ok() {}
            }
            Ok(longest)
        };
        let longest = work(ctx);
        over.store(true, Ordering::Release);
        let answers = sender
            .join()
            .map_err(|_| anyhow::anyhow!("the streams panicked"))??;
        Ok((longest?, answers))
    })?;
    eprintln!("{answers} COMMITs; the longest of {ROUNDS} rounds took {longest:?}");
    ensure!(longest < patience(BOUND), "a round took {longest:?}");
    ctx.barrier("end")
}

/// Node 1 has a listener for channels that is not the kernel's. It refuses without a message, as the
/// connection manager does for a kernel without memory, and then for ever.
fn refusals(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    let (_, mine) = pair.side.export(region, 0, 4096, REMOTE)?;
    let to: Remote = ctx.ctl.exchange(&mine)?;
    if ctx.first() {
        let mut peer = Peer::start(slowness())?;
        let address = ctx.env.addr;
        must(&mut peer, &format!("listen 0 {address} {PORT}"))?;
        ctx.barrier("listening")?;
        for (slot, answer) in [(1, "-".into()), (2, hex(&REFUSAL))] {
            must(&mut peer, &format!("take 0 {slot} {}", 60_000 * slowness()))?;
            must(&mut peer, &format!("reject {slot} {answer}"))?;
        }
        return ctx.barrier("end");
    }
    ctx.barrier("listening")?;
    let write = op::write(1, &[iov(region, 0, 8)], to.addr, to.key);
    for expected in [libc::EAGAIN, libc::EOPNOTSUPP] {
        pair.post(with_flags(write, KFI_COMMIT_COMPLETE))?;
        let err = pair.wait_err()?;
        ensure!(err == expected, "errno {err} instead of {expected}");
    }
    // The connection stays.
    pair.post(write)?;
    pair.wait_context(1)?;
    ctx.barrier("end")
}
