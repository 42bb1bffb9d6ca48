// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hostile peers during the auth handshake (P7). They speak to the connection manager directly,
//! know the auth key and so can build valid messages, and then change them. Each is refused with an
//! error of its own, exchanges no data with the application, and harms no later peer.

use super::auth_wire::{accept, connect, endpoint, listen};
use super::classes::raw_cm::{nobodys_qp, CmEvent, RawCm, CONNECT_REQUEST, REJECTED};
use super::modules::{add_link, delete_link};
use crate::auth::{KEY, OTHER};
use crate::harness::caps::IB_TRANSPORT;
use crate::harness::{Ctx, Test, NETNS, TWO};
use crate::pair::{Side, WAIT};
use anyhow::{bail, ensure, Context, Result};
use kfabric_pure::proof::{
    self, Cookie, Ends, Frame, Mac, Nonce, Text, COOKIE, MAC, NONCE, VERSION,
};
use kfabric_uapi::*;
use sha2::{Digest, Sha256};
use std::net::SocketAddr;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("auth.p07_forged_requests_are_refused_unheard", requests)
        .on(NETNS | TWO)
        .seconds(30)
        .needs(IB_TRANSPORT),
    Test::pair("auth.p07_replayed_requests_are_refused", replayed)
        .on(NETNS | TWO)
        .seconds(15)
        .needs(IB_TRANSPORT),
    Test::pair("auth.p07_forged_answers_fail_the_connect", answers)
        .on(NETNS | TWO)
        .seconds(60)
        .needs(IB_TRANSPORT),
    Test::pair(
        "auth.p07_device_removed_mid_handshake_fails_the_connect",
        removed,
    )
    .on(NETNS)
    .seconds(30)
    .needs(IB_TRANSPORT),
];

/// Port of the hostile listener.
const PORT: u16 = 7472;
/// The application's data; no byte is zero, because padding is.
pub(super) const DATA: &[u8] = b"application's";
/// First byte of handshake data, without the version.
const MARK: u8 = 0xf0;
/// The kernel's refusal of a peer that has not proven the auth key.
const UNPROVEN: [u8; 2] = [MARK | VERSION, 0];
/// The length of a hello, and of a challenge.
const HELLO: usize = 2 + NONCE + MAC;

/// Computes the handshake's MAC: HMAC-SHA256 of the key's length and the text, truncated.
pub(super) fn mac(key: &[u8], text: &Text) -> Mac {
    let mut block = [0u8; 64];
    block[..key.len()].copy_from_slice(key);
    let inner = Sha256::new()
        .chain_update(block.map(|byte| byte ^ 0x36))
        .chain_update([key.len() as u8])
        .chain_update(text.bytes())
        .finalize();
    let outer = Sha256::new()
        .chain_update(block.map(|byte| byte ^ 0x5c))
        .chain_update(inner)
        .finalize();
    let mut mac = [0; MAC];
    mac.copy_from_slice(&outer[..MAC]);
    mac
}

/// Encodes a frame.
pub(super) fn bytes(frame: Frame<'_>) -> Result<Vec<u8>> {
    let mut room = [0; 196];
    match frame.write(&mut room) {
        Ok(len) => Ok(room[..len].to_vec()),
        Err(_) => bail!("{frame:?} is too long"),
    }
}

/// Returns the message with a bit of each byte flipped, cut off at each length, and in each other
/// version, each with a description.
fn mutations(message: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for at in 0..message.len() {
        let mut other = message.to_vec();
        other[at] ^= 1 << (at % 8);
        all.push((format!("byte {at} is another"), other));
        // The connection manager pads with zeros.
        if message[at..].iter().any(|byte| *byte != 0) {
            all.push((format!("{at} bytes of it"), message[..at].to_vec()));
        }
    }
    for version in (0..16).filter(|version| *version != VERSION) {
        let mut other = message.to_vec();
        other[0] = MARK | version;
        all.push((format!("version {version}"), other));
    }
    all
}

/// A raw connection identifier that is about to send a connection request.
pub(super) struct Ask {
    cm: RawCm,
    pub(super) ends: Ends,
    pub(super) qp: u32,
    /// Own address, as bytes.
    from: Vec<u8>,
}

impl Ask {
    pub(super) fn new(to: SocketAddr) -> Result<Self> {
        Self::from(&[], to, nobodys_qp())
    }

    fn from(from: &[u8], to: SocketAddr, qp: u32) -> Result<Self> {
        let mut cm = RawCm::new()?;
        cm.resolve_from(from, to)?;
        let (ours, theirs) = cm.places(cm.id())?;
        Ok(Self {
            cm,
            ends: Ends::new(&ours, &theirs),
            qp,
            from: ours,
        })
    }

    pub(super) fn hello(&self, key: &[u8]) -> Result<(Nonce, Vec<u8>)> {
        // Any nonce will do.
        let nonce = self.qp.to_ne_bytes().repeat(4);
        let nonce = *nonce.first_chunk().context("a nonce")?;
        let mac = mac(key, &proof::hello(&self.ends, &nonce, self.qp));
        Ok((nonce, bytes(Frame::Hello { nonce, mac })?))
    }

    pub(super) fn proof(&self, key: &[u8], cookie: &Cookie) -> Result<(Mac, Vec<u8>)> {
        let (cookie, data) = (*cookie, DATA);
        let mac = mac(key, &proof::proof(&self.ends, &cookie, self.qp, data));
        Ok((mac, bytes(Frame::Proof { cookie, mac, data })?))
    }

    /// Sends a connection request that must be refused. Returns the refusal's data.
    pub(super) fn ask(&mut self, message: &[u8]) -> Result<Vec<u8>> {
        self.cm.connect_as(self.qp, message)?;
        Ok(self.cm.wait(REJECTED)?.data)
    }
}

/// Obtains a cookie of the listener, as a holder of the auth key.
pub(super) fn cookie(key: &[u8], to: SocketAddr) -> Result<Cookie> {
    let mut ask = Ask::new(to)?;
    let (nonce, hello) = ask.hello(key)?;
    let said = ask.ask(&hello)?;
    cookie_of(&said, &ask, &nonce, key)
}

/// The cookie in the answer to a hello of `nonce`.
pub(super) fn cookie_of(said: &[u8], ask: &Ask, nonce: &Nonce, key: &[u8]) -> Result<Cookie> {
    let Ok(Frame::Challenge { cookie, mac: got }) = Frame::parse(said) else {
        bail!("no challenge: {said:x?}");
    };
    ensure!(
        got == mac(key, &proof::challenge(&ask.ends, nonce, &cookie)),
        "another's challenge"
    );
    Ok(cookie)
}

/// Checks that a refusal says that the proof is missing, and nothing else.
pub(super) fn unproven(said: &[u8]) -> Result<()> {
    let (first, rest) = said.split_at(UNPROVEN.len().min(said.len()));
    ensure!(
        first == UNPROVEN && rest.iter().all(|byte| *byte == 0),
        "it gets {said:x?}"
    );
    Ok(())
}

/// Checks that the listener's application has had no event, and gets one from an honest peer.
fn heard_of_nobody(side: &Side) -> Result<()> {
    let none = side.dev.eq_read(side.eq.handle, 0);
    ensure!(
        none.as_ref().is_err_and(|e| e.errno.0 == libc::EAGAIN),
        "the application heard of one: {none:?}"
    );
    let cq = side.cq(0, 0)?;
    let (_, request) = accept(side, &cq, KEY, DATA)?;
    ensure!(request.data == DATA, "{request:?}");
    Ok(())
}

/// Connects as an honest peer.
fn honestly(ctx: &Ctx, side: &Side, port: u16) -> Result<()> {
    let cq = side.cq(0, 0)?;
    let (_ep, event) = connect(ctx, side, &cq, KEY, port, DATA)?;
    ensure!(
        event.raw.event == KFI_CONNECTED && event.data == DATA,
        "{event:?}"
    );
    Ok(())
}

/// Sends requests that are cut off, changed at any byte, of another version, without the proof, or
/// with a proof of other data.
fn requests(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    if ctx.first() {
        let (_pep, port) = listen(ctx, &side, &[KEY])?;
        let (_another, other) = listen(ctx, &side, &[KEY])?;
        ctx.ctl.send(&[port, other])?;
        ctx.barrier("tried")?;
        heard_of_nobody(&side)?;
        return ctx.barrier("done");
    }
    let [port, other]: [u16; 2] = ctx.ctl.recv()?;
    let (to, other) = (ctx.env.peer_at(port), ctx.env.peer_at(other));
    // Each message is built for its own identifier, and then changed.
    let lengths = Ask::new(to)?.hello(KEY)?.1.len();
    ensure!(lengths == HELLO, "a hello of {lengths} bytes");
    let good = cookie(KEY, to)?;
    let made = |ask: &Ask, proves: bool| match proves {
        true => Ok::<_, anyhow::Error>(ask.proof(KEY, &good)?.1),
        false => Ok(ask.hello(KEY)?.1),
    };
    for proves in [false, true] {
        let mut at = 0;
        loop {
            let mut ask = Ask::new(to)?;
            let wrong = mutations(&made(&ask, proves)?);
            let Some((what, message)) = wrong.get(at) else {
                break;
            };
            let said = ask.ask(message)?;
            unproven(&said).with_context(|| format!("proves {proves}: {what}"))?;
            at += 1;
        }
        ensure!(at > 2 * HELLO, "{at} changes");
    }
    let alien = cookie(KEY, other)?;
    type Make<'a> = &'a dyn Fn(&Ask) -> Result<Vec<u8>>;
    let kind = |kind: u8| {
        move |ask: &Ask| {
            let mut message = ask.hello(KEY)?.1;
            message[1] = kind;
            Ok(message)
        }
    };
    let wrong: &[(&str, Make<'_>)] = &[
        ("nothing", &|_| Ok(vec![])),
        ("the proof left out", &|_| {
            Ok([&[DATA.len() as u8][..], DATA].concat())
        }),
        ("another auth key's hello", &|ask| Ok(ask.hello(OTHER)?.1)),
        ("another auth key's proof", &|ask| {
            Ok(ask.proof(OTHER, &good)?.1)
        }),
        ("a cookie of its own", &|ask| {
            Ok(ask.proof(KEY, &[7; COOKIE])?.1)
        }),
        ("another listener's cookie", &|ask| {
            Ok(ask.proof(KEY, &alien)?.1)
        }),
        ("no kind", &kind(0)),
        ("a challenge", &kind(2)),
        ("a reply", &kind(4)),
        ("a refusal", &kind(5)),
        ("that it is busy", &kind(6)),
        ("a kind that is not there", &kind(7)),
    ];
    for (what, make) in wrong {
        let mut ask = Ask::new(to)?;
        let message = make(&ask)?;
        unproven(&ask.ask(&message)?).context(*what)?;
    }
    ctx.barrier("tried")?;
    honestly(ctx, &side, port)?;
    ctx.barrier("done")
}

/// Replays the recording of a valid connection request, from the recorded address and from another:
/// both are refused.
fn replayed(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    if ctx.first() {
        let (_pep, port) = listen(ctx, &side, &[KEY])?;
        ctx.ctl.send(&port)?;
        let request = side.event(KFI_CONNREQ)?;
        ensure!(request.data == DATA, "{request:?}");
        side.dev.reject(request.raw.connreq, b"no")?;
        ctx.barrier("tried")?;
        heard_of_nobody(&side)?;
        return ctx.barrier("done");
    }
    let port: u16 = ctx.ctl.recv()?;
    let to = ctx.env.peer_at(port);
    let mut ask = Ask::new(to)?;
    let (qp, from) = (ask.qp, ask.from.clone());
    let (_, hello) = ask.hello(KEY)?;
    let said = ask.ask(&hello)?;
    let Ok(Frame::Challenge { cookie: first, .. }) = Frame::parse(&said) else {
        bail!("no challenge: {said:x?}");
    };
    let again = || Ask::from(&from, to, qp);
    drop(ask);
    let mut ask = again()?;
    let (own, message) = ask.proof(KEY, &first)?;
    let said = ask.ask(&message)?;
    let refusal = proof::refusal(&ask.ends, &own, b"no");
    let data: &[u8] = b"no";
    let mac = mac(KEY, &refusal);
    ensure!(
        Frame::parse(&said) == Ok(Frame::Refusal { mac, data }),
        "the application's refusal: {said:x?}"
    );
    drop(ask);
    // Replay from the same address and queue pair, then from others.
    unproven(&again()?.ask(&message)?).context("the proof")?;
    unproven(&Ask::new(to)?.ask(&message)?).context("the proof, from elsewhere")?;
    unproven(&Ask::from(&from, to, nobodys_qp())?.ask(&message)?)
        .context("the proof, by another queue pair")?;
    unproven(&Ask::new(to)?.ask(&hello)?).context("the hello, from elsewhere")?;
    let said = again()?.ask(&hello)?;
    match Frame::parse(&said) {
        Ok(Frame::Challenge { cookie, .. }) if cookie != first => {}
        _ => bail!("the hello again: {said:x?}"),
    }
    unproven(&again()?.ask(&message)?).context("the proof after the hello")?;
    ctx.barrier("tried")?;
    honestly(ctx, &side, port)?;
    ctx.barrier("done")
}

/// A connection request to the hostile listener.
struct Asked {
    id: u32,
    ends: Ends,
    qp: u32,
    data: Vec<u8>,
}

fn asked(cm: &mut RawCm) -> Result<Asked> {
    let CmEvent { id, qp, data, .. } = cm.wait_for(CONNECT_REQUEST)?;
    let (ours, theirs) = cm.places(id)?;
    let ends = Ends::new(&theirs, &ours);
    Ok(Asked { id, ends, qp, data })
}

/// Answers of the hostile listener.
#[derive(Clone, Copy, Debug)]
enum Say {
    /// The valid answer to a hello.
    Challenge,
    /// The valid answer to a proof, for accepting and refusing.
    Reply,
    Refusal,
    /// A reply computed for another queue pair than the accepting one.
    OthersReply,
    /// The reply to another connection's proof.
    OldReply,
    /// That there is no memory for another connection, rightly after a proof.
    Busy,
    /// A refusal that proves nothing.
    Forged,
    /// The bytes of the request.
    Echo,
    /// Application data without handshake data.
    Plain,
    Nothing,
    Unproven,
}

/// One answer of the hostile listener: to the hello or to the proof, accepting or refusing, with
/// this content, changed by the given entry of [`mutations`], and the expected result.
#[derive(Clone, Copy, Debug)]
struct Answer {
    proven: bool,
    accepts: bool,
    say: Say,
    change: Option<usize>,
}

impl Answer {
    /// Returns the expected errno. The connection manager sends an empty refusal to a proven peer
    /// for an application that has exited; every other answer is no proof.
    fn errno(&self) -> i32 {
        let nothing = matches!(
            (self.say, self.change),
            (Say::Nothing, _) | (Say::Refusal | Say::Busy, Some(NOTHING))
        );
        if self.proven && !self.accepts && nothing {
            return libc::ECONNREFUSED;
        }
        if self.proven && !self.accepts && matches!(self.say, Say::Busy) && self.change.is_none() {
            return libc::EAGAIN;
        }
        libc::EKEYREJECTED
    }
}

/// Index in [`mutations`] of the message cut off before its first byte.
const NOTHING: usize = 1;

/// The request to be answered.
struct Said {
    ends: Ends,
    nonce: Nonce,
    /// MAC of the proof, once it has arrived, and the proof.
    mac: Mac,
    message: Vec<u8>,
}

impl Said {
    fn say(&self, say: Say, qp: u32) -> Result<Vec<u8>> {
        let (ends, data) = (&self.ends, DATA);
        let reply = |of: &Mac, qp: u32| {
            let mac = mac(KEY, &proof::reply(ends, of, qp, data));
            bytes(Frame::Reply { mac, data })
        };
        match say {
            Say::Challenge => {
                let cookie = [0x77; COOKIE];
                let mac = mac(KEY, &proof::challenge(ends, &self.nonce, &cookie));
                bytes(Frame::Challenge { cookie, mac })
            }
            Say::Reply => reply(&self.mac, qp),
            Say::OthersReply => reply(&self.mac, qp + 1),
            Say::OldReply => reply(&[0x33; MAC], qp),
            Say::Refusal => {
                let mac = mac(KEY, &proof::refusal(ends, &self.mac, data));
                bytes(Frame::Refusal { mac, data })
            }
            Say::Busy => {
                let mac = mac(KEY, &proof::busy(ends, &self.mac));
                bytes(Frame::Busy { mac })
            }
            Say::Forged => {
                let mac = [0x5a; MAC];
                bytes(Frame::Refusal { mac, data })
            }
            Say::Echo => Ok(self.message.clone()),
            Say::Plain => Ok([&[DATA.len() as u8][..], DATA].concat()),
            Say::Nothing => Ok(Vec::new()),
            Say::Unproven => Ok(UNPROVEN.to_vec()),
        }
    }
}

/// Answers one connecting peer.
fn serve(cm: &mut RawCm, answer: &Answer) -> Result<()> {
    let mut request = asked(cm)?;
    let Ok(Frame::Hello { nonce, mac: got }) = Frame::parse(&request.data) else {
        bail!("no hello: {:x?}", request.data);
    };
    ensure!(
        got == mac(KEY, &proof::hello(&request.ends, &nonce, request.qp)),
        "a wrong hello"
    );
    ensure!(
        !request.data.windows(4).any(|part| part == &DATA[..4]),
        "the application's data is in the hello"
    );
    let mut said = Said {
        ends: request.ends,
        nonce,
        mac: got,
        message: request.data.clone(),
    };
    if answer.proven {
        let challenge = said.say(Say::Challenge, 0)?;
        cm.reject(request.id, &challenge)?;
        cm.destroy(request.id)?;
        request = asked(cm)?;
        let Ok(Frame::Proof { mac, data, .. }) = Frame::parse(&request.data) else {
            bail!("no proof: {:x?}", request.data);
        };
        ensure!(data == DATA, "{data:x?}");
        said = Said {
            ends: request.ends,
            nonce,
            mac,
            message: request.data.clone(),
        };
    }
    let qp = nobodys_qp();
    let mut message = said.say(answer.say, qp)?;
    if let Some(at) = answer.change {
        // The number of cuts depends on which bytes happen to be zero.
        let mut all = mutations(&message);
        message = all.swap_remove(at.min(all.len() - 1)).1;
    }
    if answer.accepts {
        cm.accept_as(qp, request.id, &message)?;
        let no = cm.wait_for(REJECTED)?;
        ensure!(no.id == request.id, "{no:?}");
        unproven(&no.data)?;
    } else {
        cm.reject(request.id, &message)?;
    }
    cm.destroy(request.id)
}

/// Answers that are cut off, changed at any byte, of another version, without a proof, with a proof
/// of other data, and refusals that are not the application's.
fn answers(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    if ctx.first() {
        while let Some((what, errno)) = ctx.ctl.recv::<Option<(String, i32)>>()? {
            let ep = endpoint(&side, &cq, KEY, 0)?;
            side.dev.connect(ep.handle, ctx.env.peer_at(PORT), DATA)?;
            let event = side
                .dev
                .eq_wait(&side.eq, WAIT)
                .with_context(|| what.clone())?;
            ensure!(
                event.raw.event == KFI_CONN_ERROR
                    && event.raw.err as i32 == errno
                    && event.data.is_empty(),
                "{what}: {event:?}"
            );
            side.dev.close(ep.handle)?;
        }
        let port: u16 = ctx.ctl.recv()?;
        honestly(ctx, &side, port)?;
        return ctx.barrier("done");
    }
    let mut cm = RawCm::new()?;
    cm.listen(SocketAddr::new(ctx.env.addr, PORT))?;
    for answer in list() {
        let what = format!("{answer:?}");
        ctx.ctl.send(&Some((&what, answer.errno())))?;
        serve(&mut cm, &answer).with_context(|| what)?;
    }
    drop(cm);
    ctx.ctl.send(&None::<(String, i32)>)?;
    let (_pep, port) = listen(ctx, &side, &[KEY])?;
    ctx.ctl.send(&port)?;
    heard_of_nobody(&side)?;
    ctx.barrier("done")
}

/// Returns all wrong answers.
fn list() -> Vec<Answer> {
    use Say::*;
    let mut all = Vec::new();
    for (proven, accepts, says) in [
        (
            false,
            false,
            &[Refusal, Busy, Forged, Echo, Plain, Nothing, Unproven][..],
        ),
        (false, true, &[Challenge, Reply, Echo, Plain, Nothing]),
        (
            true,
            false,
            &[
                Challenge, Reply, Busy, Forged, Echo, Plain, Nothing, Unproven,
            ],
        ),
        (
            true,
            true,
            &[
                Challenge,
                Refusal,
                Busy,
                OthersReply,
                OldReply,
                Echo,
                Plain,
                Nothing,
            ],
        ),
    ] {
        all.extend(says.iter().map(|say| Answer {
            proven,
            accepts,
            say: *say,
            change: None,
        }));
    }
    const DATED: usize = 2 + MAC + 1 + DATA.len();
    for (proven, accepts, say, len) in [
        (false, false, Challenge, HELLO),
        (true, true, Reply, DATED),
        (true, false, Refusal, DATED),
        (true, false, Busy, 2 + MAC),
    ] {
        // A flip and a cut for each byte, and each other version.
        all.extend((0..2 * len + 15).map(|at| Answer {
            proven,
            accepts,
            say,
            change: Some(at),
        }));
    }
    all
}

/// Removes the device after the hello is answered and before the proof is sent: the connecting
/// program gets an error, in every order, and no handshake keeps the device.
fn removed(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 8;
    for round in 0..ROUNDS {
        // The hostile peer listens until the round is over.
        let mut hostile = None;
        if ctx.first() {
            let side = Side::open(ctx)?;
            let cq = side.cq(0, 0)?;
            let ep = endpoint(&side, &cq, KEY, 0)?;
            ctx.barrier("listening")?;
            side.dev.connect(ep.handle, ctx.env.peer_at(PORT), DATA)?;
            ctx.barrier("asked")?;
            delete_link(ctx)?;
            let event = side.dev.eq_wait(&side.eq, WAIT);
            add_link(ctx)?;
            let event = event.with_context(|| format!("round {round}"))?;
            let gone = [libc::ENODEV, libc::EHOSTUNREACH, libc::EADDRNOTAVAIL];
            ensure!(
                event.raw.event == KFI_CONN_ERROR
                    && gone.contains(&(event.raw.err as i32))
                    && event.data.is_empty(),
                "round {round}: {event:?}"
            );
            side.dev.close(ep.handle)?;
        } else {
            let mut cm = RawCm::new()?;
            cm.listen(SocketAddr::new(ctx.env.addr, PORT))?;
            ctx.barrier("listening")?;
            let request = asked(&mut cm)?;
            let Ok(Frame::Hello { nonce, mac }) = Frame::parse(&request.data) else {
                bail!("no hello: {:x?}", request.data);
            };
            let said = Said {
                ends: request.ends,
                nonce,
                mac,
                message: Vec::new(),
            };
            let challenge = said.say(Say::Challenge, 0)?;
            ctx.barrier("asked")?;
            std::thread::sleep(std::time::Duration::from_millis(3 * round));
            cm.reject(request.id, &challenge)?;
            hostile = Some(cm);
        }
        ctx.barrier("gone")?;
        drop(hostile);
    }
    let side = Side::open(ctx)?;
    if ctx.first() {
        let port: u16 = ctx.ctl.recv()?;
        honestly(ctx, &side, port)?;
    } else {
        let (_pep, port) = listen(ctx, &side, &[KEY])?;
        ctx.ctl.send(&port)?;
        heard_of_nobody(&side)?;
    }
    ctx.barrier("done")
}
