// SPDX-License-Identifier: GPL-2.0
//! A disk's connection: how it is made, and what it knows then.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    auth::AuthKey,
    cq::Cq,
    ep::{
        Endpoint,
        EpAttr,
        Post, //
    },
    eq::Eq,
    fabric::Domain,
    op::{
        OpKind,
        Segs, //
    },
    pure::blk::{
        self,
        device::WANTED,
        Entry,
        Geometry,
        Hello,
        Question,
        Welcome,
        MESSAGE_MAX,
        QUESTION_MAX,
        TABLE_MAX, //
    },
    uapi::*,
};

use super::{
    message::{
        self,
        Io, //
    },
    DEPTH, //
};
use crate::{
    config,
    hook::Hook,
    pad::{
        Pad,
        CAME,
        WENT, //
    },
};

/// How long connecting, or an answer, may take, in milliseconds.
const PATIENCE_MS: u32 = 20_000;
/// Operations that questions and answers take.
const TALK: u32 = 8;
/// Work requests that one operation may be.
const PARTS: u32 = 4;

/// A connection whose keys are known.
pub(crate) struct Lane {
    // Dropped in this order.
    ep: Arc<Endpoint>,
    cq: Arc<Cq>,
    _eq: Arc<Eq>,
    hook: Arc<Hook>,
    geometry: Geometry,
    keys: KVVec<Entry>,
    /// Its requests, if it is a device's.
    io: Option<Arc<Io>>,
}

/// Why there is no connection: what its event says.
fn failed(err: u32) -> Error {
    // CAST: An errno is small.
    match i32::try_from(err) {
        // Those from 512 on are the kernel's own.
        Ok(err @ 1..=511) => Error::from_errno(-err),
        _ => EIO,
    }
}

/// What asking takes.
struct Talk<'a> {
    ep: &'a Endpoint,
    cq: &'a Cq,
    hook: &'a Hook,
    pad: Pad,
}

impl Talk<'_> {
    /// Asks; how many bytes the answer has.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: there is none. `EIO`: the connection has ended.
    fn ask(&self, question: &Question, answer: &mut [u8]) -> Result<usize> {
        let mut message = [0; QUESTION_MAX];
        let len = question.write(&mut message).map_err(|_| EINVAL)?;
        self.pad.recv(self.ep)?;
        let sent = self
            .pad
            .send(self.ep, message.get(..len).unwrap_or_default());
        let (mut came, mut went) = match sent {
            Ok(()) => (None, false),
            // Who has gone may have said why. Should it be the device that will not, nothing comes either.
            Err(e) if e == config::enotconn() => {
                // If there is no connection any more, that is as good.
                let _ = self.ep.shutdown();
                (None, true)
            }
            Err(e) => return Err(e),
        };
        let len = self.hook.until(PATIENCE_MS, || {
            let mut entries = [CqEntry::default(); 2];
            let count = self.cq.read(&mut entries);
            for entry in entries.iter().take(count) {
                match (entry.context, entry.err) {
                    (CAME, 0) => came = Some(entry.len),
                    (WENT, 0) => went = true,
                    // Who refuses leaves at once: that the question arrived may not be known then.
                    (WENT, _) if came.is_some() => went = true,
                    _ => return Err(EIO),
                }
            }
            Ok(came.filter(|_| went))
        })?;
        Ok(self.pad.came(len, answer))
    }
}

impl Lane {
    /// Connects, says who asks for what, and fetches the keys. `device`: with room for a device's
    /// requests.
    ///
    /// # Errors
    ///
    /// The target's refusal: `EACCES`: it does not believe who we say we are. `EKEYREVOKED`: the client
    /// is fenced. `ENOENT`: there is no such subsystem. `ENODEV`: it is not enabled. `EMEDIUMTYPE`: it is
    /// a device. `EDQUOT`: too many connections. What `go_on`, asked before each question, says.
    /// `EPROTO`: what was said is not of this protocol. Else those of connecting.
    pub(crate) fn connect(
        domain: &Arc<Domain>,
        addr: &SockAddr,
        auth: Option<&AuthKey>,
        hello: &Hello,
        device: bool,
        go_on: &dyn Fn() -> Result,
    ) -> Result<(Arc<Self>, Welcome)> {
        go_on()?;
        let hook = Hook::new()?;
        let eq = Eq::open(domain.fabric(), 0, Some(hook.clone()))?;
        let limits = domain.attr();
        let (entries, attr) = match device {
            true => (
                TALK + message::SENDS + message::RECEIVES + message::ASSIGNS,
                EpAttr {
                    tx_size: TALK + message::SENDS,
                    rx_size: TALK + message::RECEIVES,
                    // A head, and what goes with it.
                    iov_limit: 2,
                    own_keys: true,
                    // A key for a request, for years. They are of use by its connection alone.
                    reuse_values: true,
                    ..EpAttr::default()
                },
            ),
            false => (
                DEPTH + TALK,
                EpAttr {
                    tx_size: (DEPTH * PARTS).min(limits.max_tx_size),
                    rx_size: 4,
                    iov_limit: limits.iov_limit,
                    ..EpAttr::default()
                },
            ),
        };
        // Requests of a device are answered by completion data.
        let cq = Cq::open(domain, entries, KFI_CQ_FORMAT_DATA, Some(hook.clone()))?;
        let ep = match auth {
            Some(key) => Endpoint::open_with(domain, &attr, None, key)?,
            None => Endpoint::open(domain, &attr, None)?,
        };
        ep.bind_eq(&eq)?;
        // Of a device's requests only the answers matter.
        let selective = match device {
            true => KFI_SELECTIVE_COMPLETION,
            false => 0,
        };
        ep.bind_cq(&cq, KFI_TRANSMIT | selective)?;
        ep.bind_cq(&cq, KFI_RECV)?;
        ep.enable()?;
        ep.connect(addr, if device { &[WANTED] } else { &[] })?;
        let event = hook.until(PATIENCE_MS, || Ok(eq.read()))?;
        if event.kind != KFI_CONNECTED {
            return Err(failed(event.err));
        }
        let talk = Talk {
            ep: &ep,
            cq: &cq,
            hook: &hook,
            pad: Pad::new(domain)?,
        };
        let mut answer = KVec::from_elem(0u8, MESSAGE_MAX, GFP_KERNEL)?;
        let len = talk.ask(&Question::Hello(*hello), &mut answer)?;
        let welcome = answer.get(..len).unwrap_or_default();
        let welcome = Welcome::read(welcome).map_err(|_| config::eproto())?;
        if welcome.status != 0 {
            return Err(failed(welcome.status));
        }
        let geometry = welcome.geometry;
        let io = match welcome.device {
            Some(_) if device => Some(Io::new(domain, &ep, &cq, geometry)?),
            Some(_) => return Err(config::eproto()),
            None => None,
        };
        let chunks = match io {
            Some(_) => 0,
            None => usize::try_from(geometry.chunks()).map_err(|_| config::eproto())?,
        };
        let mut keys = KVVec::with_capacity(chunks, GFP_KERNEL)?;
        while keys.len() < chunks {
            go_on()?;
            let first = u32::try_from(keys.len()).map_err(|_| config::eproto())?;
            let len = talk.ask(&Question::Keys(first), &mut answer)?;
            let most = (chunks - keys.len()) as u64;
            let table = answer.get(..len).unwrap_or_default();
            // There is room for all.
            let add = |entry| drop(keys.push_within_capacity(entry));
            blk::read_table(table, first, most, add).map_err(|_| config::eproto())?;
            // As many as there is room for, so that there is an end.
            if keys.len() < chunks && keys.len() % TABLE_MAX != 0 {
                return Err(config::eproto());
            }
        }
        let lane = Self {
            ep,
            cq,
            _eq: eq,
            hook,
            geometry,
            keys,
            io,
        };
        Ok((Arc::new(lane, GFP_KERNEL)?, welcome))
    }

    /// Its completions.
    pub(crate) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// What its queues call.
    pub(crate) fn hook(&self) -> &Hook {
        &self.hook
    }

    /// Its requests, if it is a device's.
    pub(crate) fn io(&self) -> Option<&Arc<Io>> {
        self.io.as_ref()
    }

    /// Whether it has not ended.
    pub(crate) fn is_connected(&self) -> bool {
        self.ep.state() == KFI_STATE_CONNECTED
    }

    /// Posts a request: reads or writes from byte `pos` of the disk on. Any context.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: not now. `EIO`: never.
    pub(crate) fn post(&self, kind: OpKind, tag: u32, pos: u64, segs: Segs) -> Result {
        let (chunk, at) = self.geometry.place(pos, segs.len()).ok_or(EIO)?;
        // CAST: There are as many keys in memory.
        let entry = self.keys.get(chunk as usize).ok_or(EIO)?;
        let posted = self.ep.post(Post {
            kind,
            flags: 0,
            context: tag.into(),
            data: 0,
            remote_addr: entry.addr.wrapping_add(at),
            key: entry.key,
            inject: &[],
            atomic: None,
            segs,
        });
        posted.map_err(|e| {
            // What has ended is being made again.
            let later = [EAGAIN, ENOENT, config::enotconn()];
            if later.contains(&e) {
                EAGAIN
            } else {
                EIO
            }
        })
    }

    /// Ends it: every request that was posted has ended when this returns. `served`: the connections that
    /// there were have served requests.
    pub(crate) fn close(&self, served: bool) {
        self.ep.close();
        self.hook.unlink();
        if let Some(io) = &self.io {
            io.close(served);
        }
    }
}
