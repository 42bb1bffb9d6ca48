// SPDX-License-Identifier: GPL-2.0
//! Auth handshakes on connections: the state from one message to the next. The messages themselves
//! are in [`kfabric::pure::proof`].

use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use kfabric::{
    auth,
    base::{
        errno::ekeyrejected,
        fault, //
    },
    provider::Proof,
    pure::{
        proof::{
            self,
            Cookie,
            Ends,
            Frame,
            Gid,
            Mac,
            Nonce,
            NotFrame,
            Spend, //
        },
        wire, //
    },
    uapi::SockAddr, //
};

/// Answer to a peer that has not proven its auth key: the mark of a frame, and a kind that no frame
/// has. Therefore it carries no MAC.
pub(crate) const UNPROVEN: [u8; 2] = [0xf0 | proof::VERSION, 0];

/// Returns the addresses of both ends and the GIDs of the path of their queue pairs.
pub(crate) fn ends(initiator: (&SockAddr, Gid), responder: (&SockAddr, Gid)) -> Ends {
    let bytes = |addr: &SockAddr| {
        // CAST: A `usize` has at least 32 bits.
        let len = (addr.len as usize).min(addr.data.len());
        (addr.data, len)
    };
    let ((a, a_len), (b, b_len)) = (bytes(initiator.0), bytes(responder.0));
    Ends::new(&a[..a_len], &b[..b_len]).between(initiator.1, responder.1)
}

/// Returns the application's data in a message of either side.
pub(crate) fn data(message: &[u8]) -> &[u8] {
    match Frame::parse(message) {
        Ok(Frame::Proof { data, .. } | Frame::Reply { data, .. } | Frame::Refusal { data, .. }) => {
            data
        }
        Err(NotFrame::Plain) => wire::decode(message),
        _ => &[],
    }
}

/// Returns whether a message has no part of an auth handshake.
pub(crate) fn is_plain(message: &[u8]) -> bool {
    Frame::parse(message) == Err(NotFrame::Plain)
}

/// State of the handshake on the connecting side.
#[derive(Clone, Copy)]
enum Step {
    /// The request asks the peer to prove the auth key.
    Hello,
    /// The peer has proven the auth key, and wants a proof for this cookie.
    Proof(Cookie),
    /// The peer has accepted with a proof for its queue pair.
    Done,
}

/// The handshake of the connecting side.
pub(crate) struct Handshake {
    proof: Arc<dyn Proof>,
    step: Step,
    nonce: Nonce,
    /// Ends and MAC of the last message.
    ends: Ends,
    mac: Mac,
    data: [u8; proof::DATA_MAX],
    len: usize,
}

impl Handshake {
    /// Returns a handshake before its first message. `data` is the application's data for the
    /// request.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `data` is too long for a message.
    pub(crate) fn new(proof: &Arc<dyn Proof>, data: &[u8]) -> Result<Self> {
        let mut handshake = Self {
            proof: proof.clone(),
            step: Step::Hello,
            nonce: [0; proof::NONCE],
            ends: Ends::new(&[], &[]),
            mac: [0; proof::MAC],
            data: [0; proof::DATA_MAX],
            len: data.len(),
        };
        let place = handshake.data.get_mut(..data.len()).ok_or(EINVAL)?;
        place.copy_from_slice(data);
        auth::random(&mut handshake.nonce);
        Ok(handshake)
    }

    /// Writes the next request to `out`, and returns its length.
    pub(crate) fn request(&mut self, ends: Ends, qp: u32, out: &mut [u8]) -> Result<usize> {
        let data = self.data.get(..self.len).unwrap_or_default();
        self.ends = ends;
        let frame = match self.step {
            Step::Hello => {
                let text = proof::hello(&ends, &self.nonce, qp);
                Frame::Hello {
                    nonce: self.nonce,
                    mac: self.proof.prove(text.bytes()),
                }
            }
            Step::Proof(cookie) => {
                let text = proof::proof(&ends, &cookie, qp, data);
                self.mac = self.proof.prove(text.bytes());
                Frame::Proof {
                    cookie,
                    mac: self.mac,
                    data,
                }
            }
            Step::Done => return Err(EINVAL),
        };
        frame.write(out).map_err(|_| EINVAL)
    }

    /// Handles a refusal of the request, and returns its meaning.
    ///
    /// # Errors
    ///
    /// - `EKEYREJECTED` if the peer does not have the auth key, or refused this side's proof.
    /// - `EAGAIN` if the peer has the auth key, and no memory for another connection at the moment.
    pub(crate) fn refused(&mut self, message: &[u8]) -> Result<Refusal> {
        match (self.step, Frame::parse(message)) {
            (Step::Hello, Ok(Frame::Challenge { cookie, mac })) => {
                let text = proof::challenge(&self.ends, &self.nonce, &cookie);
                if !self.proof.check(text.bytes(), &mac) {
                    return Err(ekeyrejected());
                }
                self.step = Step::Proof(cookie);
                Ok(Refusal::Again)
            }
            (Step::Proof(_), Ok(Frame::Refusal { mac, data })) => {
                let text = proof::refusal(&self.ends, &self.mac, data);
                if !self.proof.check(text.bytes(), &mac) {
                    return Err(ekeyrejected());
                }
                Ok(Refusal::ByApplication)
            }
            (Step::Proof(_), Ok(Frame::Busy { mac })) => {
                let text = proof::busy(&self.ends, &self.mac);
                let proven = self.proof.check(text.bytes(), &mac);
                Err(if proven { EAGAIN } else { ekeyrejected() })
            }
            // The peer ended the request after its proof, without data of its application.
            (Step::Proof(_), Err(NotFrame::Plain)) if data(message).is_empty() => {
                Ok(Refusal::Plainly)
            }
            _ => Err(ekeyrejected()),
        }
    }

    /// Checks the acceptance of the peer, with its queue pair `qp`.
    ///
    /// # Errors
    ///
    /// - `EKEYREJECTED` if the accepting peer is not the peer that has proven the auth key.
    pub(crate) fn accepted(&mut self, message: &[u8], qp: u32) -> Result {
        let (Step::Proof(_), Ok(Frame::Reply { mac, data })) = (self.step, Frame::parse(message))
        else {
            return Err(ekeyrejected());
        };
        let text = proof::reply(&self.ends, &self.mac, qp, data);
        if !self.proof.check(text.bytes(), &mac) {
            return Err(ekeyrejected());
        }
        self.step = Step::Done;
        Ok(())
    }

    /// Returns whether both ends have proven the auth key and their queue pairs.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.step, Step::Done)
    }
}

/// The meaning of a refusal.
pub(crate) enum Refusal {
    /// The connecting side has to repeat the request, with a proof.
    Again,
    /// The peer's application refuses; its data may be returned.
    ByApplication,
    /// The attempt has ended, without data.
    Plainly,
}

/// A request whose peer has proven its auth key.
#[derive(Clone)]
pub(crate) struct Proven {
    proof: Arc<dyn Proof>,
    ends: Ends,
    mac: Mac,
}

impl Proven {
    /// Writes the acceptance with queue pair `qp` to `out`, and returns its length.
    pub(crate) fn reply(&self, qp: u32, data: &[u8], out: &mut [u8]) -> Result<usize> {
        fits(data)?;
        let text = proof::reply(&self.ends, &self.mac, qp, data);
        let mac = self.proof.prove(text.bytes());
        let frame = Frame::Reply { mac, data };
        frame.write(out).map_err(|_| EINVAL)
    }

    /// Writes the application's refusal to `out`, and returns its length.
    pub(crate) fn refusal(&self, data: &[u8], out: &mut [u8]) -> Result<usize> {
        fits(data)?;
        let text = proof::refusal(&self.ends, &self.mac, data);
        let mac = self.proof.prove(text.bytes());
        let frame = Frame::Refusal { mac, data };
        frame.write(out).map_err(|_| EINVAL)
    }
}

/// Refuses data that is too long for a message.
fn fits(data: &[u8]) -> Result {
    if data.len() > wire::DATA_MAX {
        return Err(EINVAL);
    }
    Ok(())
}

/// Initial places for used cookies of an auth key. Only a peer that has the auth key uses up
/// cookies, so it cannot block peers with another auth key.
const COOKIES_MIN: usize = 512;
/// Maximum places for used cookies of an auth key.
const COOKIES_MAX: usize = 1 << 16;
/// Growth factor of a table that has no free place for a cookie.
const COOKIES_GROWTH: usize = 8;

/// Cookies of a listener.
struct Cookies {
    /// Time of the last cookie; all times are distinct.
    last: u64,
    /// Times of the used cookies, for each auth key in the listener's order.
    spent: KVec<KVVec<u64>>,
}

/// The handshakes of the listening side.
#[pin_data]
pub(crate) struct Gatekeeper {
    proofs: KVec<Arc<dyn Proof>>,
    secret: Nonce,
    #[pin]
    cookies: Mutex<Cookies>,
}

/// The verdict on a request.
pub(crate) enum Asked {
    /// The request has no part of a handshake, and needs none.
    Plain,
    /// The peer has proven the auth key of this index.
    Proven(usize, Proven),
    /// The request is refused with this message of this length.
    Refuse([u8; wire::REJECT_MAX], usize),
}

impl Gatekeeper {
    /// Returns a gatekeeper that admits peers with one of `proofs`. Without any, it admits requests
    /// that have no part of a handshake.
    pub(crate) fn new(proofs: KVec<Arc<dyn Proof>>) -> Result<impl PinInit<Self>> {
        let mut secret = [0; proof::NONCE];
        auth::random(&mut secret);
        let mut spent = KVec::with_capacity(proofs.len(), GFP_KERNEL_ACCOUNT)?;
        for _ in &proofs {
            spent.push(KVVec::new(), GFP_KERNEL_ACCOUNT)?;
        }
        let cookies = Cookies { last: 0, spent };
        Ok(pin_init!(Self {
            proofs,
            secret,
            cookies <- new_mutex!(cookies, "kverbs_cookies"),
        }))
    }

    /// Returns the cookie of the time `made` for peers with the auth key of `proof`.
    fn cookie(&self, proof: &Arc<dyn Proof>, made: u64) -> Cookie {
        let mut text = [0; 8 + proof::NONCE];
        text[..8].copy_from_slice(&made.to_be_bytes());
        text[8..].copy_from_slice(&self.secret);
        proof::cookie(made, &proof.prove(&text))
    }

    /// Returns the time for a new cookie.
    fn now(&self) -> u64 {
        let mut cookies = self.cookies.lock();
        cookies.last = auth::now_ns().max(cookies.last + 1);
        cookies.last
    }

    /// Returns a time that no cookie so far is later than.
    fn latest(&self) -> u64 {
        let cookies = self.cookies.lock();
        auth::now_ns().max(cookies.last)
    }

    /// Records a cookie of the auth key of this index as used.
    fn spend(&self, index: usize, made: u64) -> Spend {
        loop {
            let wanted = {
                let mut cookies = self.cookies.lock();
                let now = auth::now_ns().max(cookies.last);
                let Some(spent) = cookies.spent.get_mut(index) else {
                    return Spend::Full;
                };
                match proof::spend(spent, made, now) {
                    Spend::Full if spent.len() < COOKIES_MAX => {
                        (spent.len() * COOKIES_GROWTH).clamp(COOKIES_MIN, COOKIES_MAX)
                    }
                    done => return done,
                }
            };
            let larger =
                fault::cookie().and_then(|()| Ok(KVVec::from_elem(0, wanted, GFP_KERNEL_ACCOUNT)?));
            let Ok(mut larger) = larger else {
                return Spend::Full;
            };
            let mut cookies = self.cookies.lock();
            let now = auth::now_ns().max(cookies.last);
            let Some(spent) = cookies.spent.get_mut(index) else {
                return Spend::Full;
            };
            // Another task may have replaced the table meanwhile.
            if spent.len() < wanted {
                if !proof::carry(spent, &mut larger, now) {
                    return Spend::Full;
                }
                core::mem::swap(spent, &mut larger);
            }
            // The smaller table is freed without the lock.
            drop(cookies);
        }
    }

    /// Judges a request from queue pair `qp` of the initiator at `ends`.
    ///
    /// `ends` is `None` if the request has no path, or an alternate path that no proof covers.
    pub(crate) fn look(&self, message: &[u8], ends: Option<Ends>, qp: u32) -> Asked {
        let mut out = [0; wire::REJECT_MAX];
        let refused = |mut out: [u8; wire::REJECT_MAX]| {
            out[..UNPROVEN.len()].copy_from_slice(&UNPROVEN);
            Asked::Refuse(out, UNPROVEN.len())
        };
        let frame = Frame::parse(message);
        if frame == Err(NotFrame::Plain) && self.proofs.is_empty() {
            return Asked::Plain;
        }
        let Some(ends) = ends else {
            return refused(out);
        };
        match frame {
            Ok(Frame::Hello { nonce, mac }) => {
                let text = proof::hello(&ends, &nonce, qp);
                let found = self.proofs.iter().find(|p| p.check(text.bytes(), &mac));
                let Some(proof) = found else {
                    return refused(out);
                };
                let cookie = self.cookie(proof, self.now());
                let text = proof::challenge(&ends, &nonce, &cookie);
                let mac = proof.prove(text.bytes());
                match (Frame::Challenge { cookie, mac }).write(&mut out) {
                    Ok(len) => Asked::Refuse(out, len),
                    Err(_) => refused(out),
                }
            }
            Ok(Frame::Proof { cookie, mac, data }) => {
                let text = proof::proof(&ends, &cookie, qp, data);
                let found = self.proofs.iter().position(|p| p.check(text.bytes(), &mac));
                let Some((index, proof)) = found.and_then(|at| Some((at, self.proofs.get(at)?)))
                else {
                    return refused(out);
                };
                let made = proof::made_at(&cookie, self.latest());
                if !auth::same(&self.cookie(proof, made), &cookie) {
                    return refused(out);
                }
                match self.spend(index, made) {
                    Spend::Good => {
                        let proof = proof.clone();
                        Asked::Proven(index, Proven { proof, ends, mac })
                    }
                    Spend::Spent => refused(out),
                    Spend::Full => {
                        let mac = proof.prove(proof::busy(&ends, &mac).bytes());
                        match (Frame::Busy { mac }).write(&mut out) {
                            Ok(len) => Asked::Refuse(out, len),
                            Err(_) => refused(out),
                        }
                    }
                }
            }
            _ => refused(out),
        }
    }
}
