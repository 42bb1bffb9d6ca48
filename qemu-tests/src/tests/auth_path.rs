// SPDX-License-Identifier: MIT OR Apache-2.0

//! Proofs of auth keys (P7): a proof covers the path that the queue pairs are connected by, and a listener
//! has room for the proofs of a whole job.

use super::auth_hostile::{bytes, cookie, cookie_of, mac, unproven, Ask, DATA};
use super::auth_wire::{accept, connect, listen};
use super::classes::raw_cm::nobodys_qp;
use crate::auth::KEY;
use crate::harness::caps::IB_TRANSPORT;
use crate::harness::guest::{run, until};
use crate::harness::{skip, Ctx, Test, NETNS, TWO};
use crate::pair::Side;
use crate::sys::{net, Errno};
use crate::wire::roce::{self, opcode, Bth, BTH};
use anyhow::{ensure, Context, Result};
use kfabric_pure::proof::{self, Frame};
use kfabric_uapi::{KFI_CONNECTED, KFI_CONNREQ, KFI_CONN_ERROR};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("auth.p07_request_with_another_gid_is_refused", another_gid)
        .seconds(10)
        .on(TWO),
    Test::pair("auth.p07_proofs_of_many_ranks_are_good_once_each", many)
        .seconds(20)
        .on(NETNS)
        .needs(IB_TRANSPORT),
    Test::pair("auth.p07_proof_without_memory_for_it_is_retried", no_memory)
        .seconds(10)
        .on(NETNS),
];

/// Offsets in messages of the connection manager: `struct cm_req_msg` and `cm_rej_msg`.
const MAD: usize = BTH + 8;
const TRANSACTION: usize = MAD + 8;
const ATTRIBUTE: usize = MAD + 16;
const WORDS: usize = MAD + 24;
const REQUEST_QP: usize = WORDS + 32;
const REQUEST_GID: usize = WORDS + 56;
/// Behind the addresses that `rdma_cm` puts in front.
const REQUEST_DATA: usize = WORDS + 140 + 36;
const REFUSED_PARTY: usize = WORDS + 4;
const REFUSAL_DATA: usize = WORDS + 84;

/// The attributes of a request and of a refusal.
const REQUEST: [u8; 2] = [0, 0x10];
const REFUSAL: [u8; 2] = [0, 0x12];

/// The wire at node 2.
struct Wire {
    sniff: OwnedFd,
    raw: OwnedFd,
    own: Ipv4Addr,
    peer: Ipv4Addr,
    sent: u16,
}

impl Wire {
    fn open(ctx: &Ctx) -> Result<Self> {
        let (IpAddr::V4(own), IpAddr::V4(peer)) = (ctx.env.addr, ctx.env.peer) else {
            anyhow::bail!("no IPv4 addresses");
        };
        Ok(Self {
            sniff: net::packet_socket()?,
            raw: net::raw_socket()?,
            own,
            peer,
            sent: 0,
        })
    }

    /// Waits for a message of the connection manager's for which `wanted` is true.
    fn wait(&self, outgoing: bool, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>> {
        let mut room = [0u8; 8192];
        until("a message", Duration::from_secs(10), || loop {
            let (len, out) = match net::take_packet(self.sniff.as_fd(), &mut room) {
                Ok(Some(got)) => got,
                Ok(None) | Err(Errno(libc::ENOBUFS)) => return Ok(None),
                Err(e) => return Err(e).context("looking at packets"),
            };
            let packet = &room[..len.min(room.len())];
            let Some((_, inner)) = roce::payload(packet) else {
                continue;
            };
            let is_cm = Bth::read(inner).is_some_and(|bth| bth.opcode == opcode::UD_SEND_ONLY);
            if out == outgoing && is_cm && inner.len() > REQUEST_DATA && wanted(inner) {
                return Ok(Some(inner.to_vec()));
            }
        })
    }

    fn send(&mut self, inner: &[u8]) -> Result<()> {
        self.sent += 1;
        let packet = roce::packet(self.own, self.peer, self.sent, inner);
        net::send_packet(self.raw.as_fd(), self.peer, &packet).context("sending a packet")
    }
}

/// A second address of node 2's, to which the listener's answer to the forged GID goes.
struct Address {
    text: String,
    netdev: String,
}

impl Address {
    fn new(ctx: &Ctx, addr: Ipv4Addr) -> Result<Self> {
        let text = format!("{addr}/32");
        let netdev = ctx.env.netdev.clone();
        run("ip", &["addr", "add", &text, "dev", &netdev])?;
        Ok(Self { text, netdev })
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        let _ = run("ip", &["addr", "del", &self.text, "dev", &self.netdev]);
    }
}

/// A request that is intercepted and sent on with the GID of another machine is refused: the listener's
/// queue pair would be connected to that machine.
fn another_gid(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    if ctx.first() {
        let (_pep, port) = listen(ctx, &side, &[KEY])?;
        ctx.ctl.send(&port)?;
        // The forger's method works: with the right GID its request is let in.
        let request = side.event(KFI_CONNREQ)?;
        ensure!(request.data == DATA, "{request:?}");
        side.dev.reject(request.raw.connreq, b"no")?;
        ctx.barrier("tried")?;
        let none = side.dev.eq_read(side.eq.handle, 0);
        ensure!(
            none.as_ref().is_err_and(|e| e.errno.0 == libc::EAGAIN),
            "the application has an event: {none:?}"
        );
        return ctx.barrier("done");
    }
    let port: u16 = ctx.ctl.recv()?;
    let mut wire = Wire::open(ctx)?;
    // The last byte of the GID is that of the address.
    const OTHER: u8 = 0x20;
    let [a, b, c, d] = wire.own.octets();
    let _address = Address::new(ctx, Ipv4Addr::new(a, b, c, d ^ OTHER))?;
    for (round, changed) in [false, true].into_iter().enumerate() {
        let mut ask = Ask::new(ctx.env.peer_at(port))?;
        let (nonce, hello) = ask.hello(KEY)?;
        let said = ask.ask(&hello)?;
        let cookie = cookie_of(&said, &ask, &nonce, KEY)?;
        let honest = wire
            .wait(true, |inner| {
                inner.get(ATTRIBUTE..ATTRIBUTE + 2) == Some(&REQUEST)
                    && inner[REQUEST_DATA..].starts_with(&hello)
            })
            .context("the honest request")?;
        // The proof of a queue pair that has made no request yet.
        ask.qp = nobodys_qp();
        let proof = proof::proof(&ask.ends, &cookie, ask.qp, DATA);
        let frame = bytes(Frame::Proof {
            cookie,
            mac: mac(KEY, &proof),
            data: DATA,
        })?;
        let mut forged = honest.clone();
        let party = [0x4b, 0x46, 0x49, round as u8];
        forged[WORDS..WORDS + 4].copy_from_slice(&party);
        forged[TRANSACTION + 4..TRANSACTION + 8].copy_from_slice(&party);
        forged[REQUEST_QP..REQUEST_QP + 3].copy_from_slice(&ask.qp.to_be_bytes()[1..]);
        forged[REQUEST_DATA..REQUEST_DATA + frame.len()].copy_from_slice(&frame);
        ensure!(
            forged[REQUEST_GID + 10..REQUEST_GID + 16]
                == [&[0xff, 0xff], &wire.own.octets()[..]].concat(),
            "the GID is not where it is looked for"
        );
        if changed {
            forged[REQUEST_GID + 15] ^= OTHER;
        }
        wire.send(&forged)?;
        let refused = wire
            .wait(false, |inner| {
                inner.get(ATTRIBUTE..ATTRIBUTE + 2) == Some(&REFUSAL)
                    && inner[REFUSED_PARTY..REFUSED_PARTY + 4] == party
            })
            .with_context(|| format!("the refusal, another GID: {changed}"))?;
        let said = &refused[REFUSAL_DATA..];
        match changed {
            true => unproven(said).context("another GID")?,
            false => ensure!(
                matches!(Frame::parse(said), Ok(Frame::Refusal { data: b"no", .. })),
                "the application's refusal: {said:x?}"
            ),
        }
    }
    ctx.barrier("tried")?;
    ctx.barrier("done")
}

/// Many ranks prove to have the auth key at the same time. Each is let in, and none by an old cookie, also
/// after the listener's table of cookies has grown.
fn many(ctx: &mut Ctx) -> Result<()> {
    // The first table has 64 buckets of 8, of which one is full long before that.
    const THREADS: usize = 4;
    const EACH: usize = 80;
    let side = Side::open(ctx)?;
    if ctx.first() {
        let (_pep, port) = listen(ctx, &side, &[KEY])?;
        ctx.ctl.send(&port)?;
        for at in 0..THREADS * EACH {
            let request = side.event(KFI_CONNREQ).with_context(|| format!("{at}"))?;
            ensure!(request.data == DATA, "{request:?}");
            side.dev.reject(request.raw.connreq, b"no")?;
        }
        ctx.barrier("replayed")?;
        let none = side.dev.eq_read(side.eq.handle, 0);
        ensure!(
            none.as_ref().is_err_and(|e| e.errno.0 == libc::EAGAIN),
            "the application has an event: {none:?}"
        );
        return Ok(());
    }
    let port: u16 = ctx.ctl.recv()?;
    let to = ctx.env.peer_at(port);
    let rank = || -> Result<proof::Cookie> {
        let cookie = cookie(KEY, to)?;
        let mut ask = Ask::new(to)?;
        let said = ask.proof(KEY, &cookie)?.1;
        let said = ask.ask(&said)?;
        ensure!(
            matches!(Frame::parse(&said), Ok(Frame::Refusal { data: b"no", .. })),
            "the application's refusal: {said:x?}"
        );
        Ok(cookie)
    };
    let cookies = std::thread::scope(|scope| -> Result<Vec<_>> {
        let ranks = || (0..EACH).map(|_| rank()).collect::<Result<Vec<_>>>();
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ranks)).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(super::key_batches::joined(thread)?);
        }
        Ok(all)
    })?;
    // Each of them would be good for a second connection if the table had lost it.
    for cookie in cookies.iter().step_by(2) {
        let mut ask = Ask::new(to)?;
        let again = ask.proof(KEY, cookie)?.1;
        unproven(&ask.ask(&again)?).context("a cookie again")?;
    }
    ctx.barrier("replayed")
}

/// Where tests say that a listener has no memory for cookies.
const KNOBS: &str = "/sys/kernel/debug/fail_kfabric_cookie";

fn set(knob: &str, value: &str) -> Result<()> {
    let path = format!("{KNOBS}/{knob}");
    std::fs::write(&path, value).context(path)
}

/// A listener that has no memory for one more cookie lets the initiator try again, and does not say that its
/// auth key is wrong.
fn no_memory(ctx: &mut Ctx) -> Result<()> {
    if !Path::new(KNOBS).exists() {
        return skip("the kernel injects no failures");
    }
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    if ctx.first() {
        for knob in ["verbose", "stacktrace-depth", "require-start", "space"] {
            set(knob, "0")?;
        }
        set("interval", "1")?;
        set("times", "-1")?;
        let (_pep, port) = listen(ctx, &side, &[KEY])?;
        set("probability", "100")?;
        let tried = ctx.ctl.send(&port).and_then(|()| ctx.barrier("tried"));
        set("probability", "0")?;
        tried?;
        ctx.barrier("memory")?;
        accept(&side, &cq, KEY, DATA)?;
        return ctx.barrier("done");
    }
    let port: u16 = ctx.ctl.recv()?;
    let (_ep, event) = connect(ctx, &side, &cq, KEY, port, DATA)?;
    ctx.barrier("tried")?;
    ensure!(
        event.raw.event == KFI_CONN_ERROR && event.raw.err as i32 == libc::EAGAIN,
        "{event:?}"
    );
    ctx.barrier("memory")?;
    let (_ep, event) = connect(ctx, &side, &cq, KEY, port, DATA)?;
    ensure!(event.raw.event == KFI_CONNECTED, "{event:?}");
    ctx.barrier("done")
}
