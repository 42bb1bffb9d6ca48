// SPDX-License-Identifier: GPL-2.0
//! Proofs of auth keys on connections: what is kept from one message to the next. What the messages
//! say is in [`kfabric::pure::proof`].

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
    errno::ekeyrejected,
    provider::Proof,
    pure::{
        proof::{
            self,
            Ends,
            Frame,
            Mac,
            Nonce,
            NotFrame, //
        },
        wire, //
    },
    uapi::SockAddr, //
};

/// What is said to who has not proven what it has to: no frame that anybody has a MAC of.
pub(crate) const UNPROVEN: [u8; 2] = [0xf0 | proof::VERSION, 0];

/// The addresses of both ends.
pub(crate) fn ends(initiator: &SockAddr, responder: &SockAddr) -> Ends {
    let bytes = |addr: &SockAddr| {
        // CAST: A `u32` fits.
        let len = (addr.len as usize).min(addr.data.len());
        (addr.data, len)
    };
    let ((a, a_len), (b, b_len)) = (bytes(initiator), bytes(responder));
    Ends::new(&a[..a_len], &b[..b_len])
}

/// The application's data in a message, whoever it is from.
pub(crate) fn data(message: &[u8]) -> &[u8] {
    match Frame::parse(message) {
        Ok(Frame::Proof { data, .. } | Frame::Reply { data, .. } | Frame::Refusal { data, .. }) => {
            data
        }
        Err(NotFrame::Plain) => wire::decode(message),
        _ => &[],
    }
}

/// Whether a message says nothing about auth keys.
pub(crate) fn is_plain(message: &[u8]) -> bool {
    Frame::parse(message) == Err(NotFrame::Plain)
}

/// How far the connecting side is.
#[derive(Clone, Copy)]
enum Step {
    /// It asks whether the peer has the auth key.
    Hello,
    /// The peer has, and wants this one to prove it with this cookie.
    Proof(Nonce),
    /// So has the peer once more, with its queue pair.
    Done,
}

/// The connecting side's part.
pub(crate) struct Shake {
    proof: Arc<dyn Proof>,
    step: Step,
    nonce: Nonce,
    /// Of the last message.
    ends: Ends,
    mac: Mac,
    data: [u8; proof::DATA_MAX],
    len: usize,
}

impl Shake {
    /// One that has said nothing yet. `data`: what the application has to say.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no room for so much.
    pub(crate) fn new(proof: &Arc<dyn Proof>, data: &[u8]) -> Result<Self> {
        let mut shake = Self {
            proof: proof.clone(),
            step: Step::Hello,
            nonce: [0; proof::NONCE],
            ends: Ends::new(&[], &[]),
            mac: [0; proof::MAC],
            data: [0; proof::DATA_MAX],
            len: data.len(),
        };
        let place = shake.data.get_mut(..data.len()).ok_or(EINVAL)?;
        place.copy_from_slice(data);
        auth::random(&mut shake.nonce);
        Ok(shake)
    }

    /// Writes the request that is due.
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

    /// The request was refused: whether it is to be made again, with a proof; or that was the
    /// application, whose data may be looked at if so.
    ///
    /// # Errors
    ///
    /// `EKEYREJECTED`: the peer has not the auth key, or says that we have not.
    pub(crate) fn refused(&mut self, message: &[u8]) -> Result<Refused> {
        match (self.step, Frame::parse(message)) {
            (Step::Hello, Ok(Frame::Challenge { cookie, mac })) => {
                let text = proof::challenge(&self.ends, &self.nonce, &cookie);
                if !self.proof.check(text.bytes(), &mac) {
                    return Err(ekeyrejected());
                }
                self.step = Step::Proof(cookie);
                Ok(Refused::Again)
            }
            (Step::Proof(_), Ok(Frame::Refusal { mac, data })) => {
                let text = proof::refusal(&self.ends, &self.mac, data);
                if !self.proof.check(text.bytes(), &mac) {
                    return Err(ekeyrejected());
                }
                Ok(Refused::ByApplication)
            }
            // The end of what the peer had of it.
            (Step::Proof(_), Err(NotFrame::Plain)) if data(message).is_empty() => {
                Ok(Refused::Plainly)
            }
            _ => Err(ekeyrejected()),
        }
    }

    /// The peer has accepted, with its queue pair `qp`.
    ///
    /// # Errors
    ///
    /// `EKEYREJECTED`: that is not the peer that has proven.
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

    /// Whether both ends have proven all.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.step, Step::Done)
    }
}

/// What a refusal means.
pub(crate) enum Refused {
    /// The request is to be made again.
    Again,
    /// The peer's application refuses.
    ByApplication,
    /// It is over.
    Plainly,
}

/// A request whose peer has proven.
#[derive(Clone)]
pub(crate) struct Proven {
    proof: Arc<dyn Proof>,
    ends: Ends,
    mac: Mac,
}

impl Proven {
    /// Writes the answer of queue pair `qp`.
    pub(crate) fn reply(&self, qp: u32, data: &[u8], out: &mut [u8]) -> Result<usize> {
        fits(data)?;
        let text = proof::reply(&self.ends, &self.mac, qp, data);
        let mac = self.proof.prove(text.bytes());
        let frame = Frame::Reply { mac, data };
        frame.write(out).map_err(|_| EINVAL)
    }

    /// Writes the application's refusal.
    pub(crate) fn refusal(&self, data: &[u8], out: &mut [u8]) -> Result<usize> {
        fits(data)?;
        let text = proof::refusal(&self.ends, &self.mac, data);
        let mac = self.proof.prove(text.bytes());
        let frame = Frame::Refusal { mac, data };
        frame.write(out).map_err(|_| EINVAL)
    }
}

/// Refuses more data than a text has room for.
fn fits(data: &[u8]) -> Result {
    if data.len() > wire::DATA_MAX {
        return Err(EINVAL);
    }
    Ok(())
}

/// Cookies of an auth key that were good and are not any more, at most: only who has it makes them so,
/// and keeps out nobody who has another.
const SPENT_MAX: usize = 4096;

/// What a listener keeps of cookies.
struct Cookies {
    /// When the last was made: no two at the same time.
    last: u64,
    /// For each auth key, when those were made that are spent.
    spent: KVec<KVVec<u64>>,
}

/// The listening side's part.
#[pin_data]
pub(crate) struct Gatekeeper {
    proofs: KVec<Arc<dyn Proof>>,
    secret: Nonce,
    #[pin]
    cookies: Mutex<Cookies>,
}

/// What a request turns out to be.
pub(crate) enum Asked {
    /// It says nothing about auth keys, and need not.
    Plain,
    /// Its peer has proven to have the auth key of this index.
    Proven(usize, Proven),
    /// It is refused with this.
    Refuse([u8; wire::REJECT_MAX], usize),
}

impl Gatekeeper {
    /// One that lets in who has one of `proofs`; without any, who says nothing about auth keys.
    pub(crate) fn new(proofs: KVec<Arc<dyn Proof>>) -> impl PinInit<Self> {
        let mut secret = [0; proof::NONCE];
        auth::random(&mut secret);
        let cookies = Cookies {
            last: 0,
            spent: KVec::new(),
        };
        pin_init!(Self {
            proofs,
            secret,
            cookies <- new_mutex!(cookies, "kverbs_cookies"),
        })
    }

    /// The cookie that was made at `made` for who has an auth key.
    fn cookie(&self, proof: &Arc<dyn Proof>, made: u64) -> Nonce {
        let mut text = [0; 8 + proof::NONCE];
        text[..8].copy_from_slice(&made.to_be_bytes());
        text[8..].copy_from_slice(&self.secret);
        let tag = proof.prove(&text);
        let mut cookie = [0; proof::NONCE];
        cookie[..8].copy_from_slice(&made.to_be_bytes());
        cookie[8..].copy_from_slice(&tag[..8]);
        cookie
    }

    /// The time for a new cookie.
    fn now(&self) -> u64 {
        let mut cookies = self.cookies.lock();
        cookies.last = auth::now_ns().max(cookies.last + 1);
        cookies.last
    }

    /// Spends a cookie of the auth key of this index; whether it was still good.
    fn spend(&self, index: usize, made: u64) -> bool {
        let mut cookies = self.cookies.lock();
        let now = auth::now_ns().max(cookies.last);
        if !proof::is_fresh(made, now) {
            return false;
        }
        while cookies.spent.len() <= index {
            if cookies
                .spent
                .push(KVVec::new(), GFP_KERNEL_ACCOUNT)
                .is_err()
            {
                return false;
            }
        }
        let Some(spent) = cookies.spent.get_mut(index) else {
            return false;
        };
        spent.retain(|spent| proof::is_fresh(*spent, now));
        if spent.contains(&made) || spent.len() >= SPENT_MAX {
            return false;
        }
        spent.push(made, GFP_KERNEL_ACCOUNT).is_ok()
    }

    /// Looks at a request from queue pair `qp` of the initiator at `ends`.
    pub(crate) fn look(&self, message: &[u8], ends: Ends, qp: u32) -> Asked {
        let mut out = [0; wire::REJECT_MAX];
        let refused = |mut out: [u8; wire::REJECT_MAX]| {
            out[..UNPROVEN.len()].copy_from_slice(&UNPROVEN);
            Asked::Refuse(out, UNPROVEN.len())
        };
        match Frame::parse(message) {
            Err(NotFrame::Plain) if self.proofs.is_empty() => Asked::Plain,
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
                let made = proof::made_at(&cookie);
                let good = found.and_then(|index| {
                    let proof = self.proofs.get(index)?;
                    (auth::same(&self.cookie(proof, made), &cookie) && self.spend(index, made))
                        .then(|| {
                            let proof = proof.clone();
                            Asked::Proven(index, Proven { proof, ends, mac })
                        })
                });
                good.unwrap_or_else(|| refused(out))
            }
            _ => refused(out),
        }
    }
}
