// SPDX-License-Identifier: GPL-2.0
//! The initiator's end of a connection: connects, and asks the target questions.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    auth::AuthKey,
    ep::Endpoint,
    objects::{
        cq::Cq,
        domain::Domain,
        eq::Eq,
        waiter::Waiter, //
    },
    pure::blk::{
        Hello,
        Question,
        Welcome,
        MESSAGE_MAX,
        QUESTION_MAX, //
    },
    uapi::*,
};

use super::{
    protocol::Protocol,
    request::Requests,
    Disk, //
};
use crate::{
    errno,
    msg_buf::{
        MsgBuf,
        CAME,
        WENT, //
    },
    sys::{
        Block,
        Verdict, //
    },
    waiter::QueueWaiter, //
};

/// Limit for connecting, and for each answer, in milliseconds.
const PATIENCE_MS: u32 = 20_000;
/// Operations for questions and answers, at most.
pub(super) const TALK: u32 = 8;

/// The target to connect to, and the auth key that the handshake proves.
pub(super) struct Address<'a> {
    pub(super) domain: &'a Arc<Domain>,
    pub(super) addr: &'a SockAddr,
    pub(super) auth: Option<&'a AuthKey>,
}

/// An established connection.
pub(super) struct Connection<P: Protocol> {
    // Fields are dropped in this order.
    ep: Arc<Endpoint>,
    cq: Arc<Cq>,
    _eq: Arc<Eq>,
    waiter: Arc<QueueWaiter<Requests<P>>>,
    protocol: P,
}

/// Converts the errno of an event or refusal to an error.
fn failed(err: u32) -> Error {
    // CAST: An errno is small.
    match i32::try_from(err) {
        // Errnos from 512 on are internal to the kernel.
        Ok(err @ 1..=511) => Error::from_errno(-err),
        _ => EIO,
    }
}

/// Returns an error if connecting must stop. The disk wakes the waiter if the result changes.
pub(super) type GoOn<'a> = &'a dyn Fn(&Arc<Waiter>) -> Result;

/// References that are needed to ask a question.
pub(super) struct Conversation<'a> {
    pub(super) ep: &'a Arc<Endpoint>,
    pub(super) cq: &'a Arc<Cq>,
    waiter: &'a Arc<Waiter>,
    msg_buf: MsgBuf,
    go_on: GoOn<'a>,
}

impl Conversation<'_> {
    /// Sends a question, and waits for the answer. Returns the answer's length in bytes.
    ///
    /// # Errors
    ///
    /// - `ETIMEDOUT` if no answer comes in time.
    /// - `EIO` if the connection has ended.
    /// - Errors of `go_on`.
    pub(super) fn ask(&self, question: &Question, answer: &mut [u8]) -> Result<usize> {
        let mut message = [0; QUESTION_MAX];
        let len = question.write(&mut message).map_err(|_| EINVAL)?;
        self.msg_buf.recv(self.ep)?;
        let sent = self
            .msg_buf
            .send(self.ep, message.get(..len).unwrap_or_default());
        let (mut came, mut went) = match sent {
            Ok(()) => (None, false),
            // A target that has disconnected may have sent its reason before. Read the receive
            // first.
            Err(e) if e == errno::enotconn() => {
                // Fails only if the connection has ended, which has the same effect.
                let _ = self.ep.shutdown();
                (None, true)
            }
            Err(e) => return Err(e),
        };
        let len = self.waiter.until(PATIENCE_MS, || {
            (self.go_on)(self.waiter)?;
            let mut entries = [CqEntry::default(); 2];
            let count = self.cq.read(&mut entries);
            for entry in entries.iter().take(count) {
                match (entry.context, entry.err) {
                    (CAME, 0) => came = Some(entry.len),
                    (WENT, 0) => went = true,
                    // A target that refuses disconnects at once, so the send may fail although it
                    // arrived.
                    (WENT, _) if came.is_some() => went = true,
                    _ => return Err(EIO),
                }
            }
            Ok(came.filter(|_| went))
        })?;
        Ok(self.msg_buf.came(len, answer))
    }

    /// Waits until the only outstanding operation, which has this context, completes.
    ///
    /// # Errors
    ///
    /// - The errno of the operation.
    /// - `ETIMEDOUT` if the operation takes too long.
    /// - `EPROTO` if another operation completes.
    /// - Errors of `go_on`.
    pub(super) fn wait(&self, context: u64) -> Result {
        let err = self.waiter.until(PATIENCE_MS, || {
            (self.go_on)(self.waiter)?;
            let mut entries = [CqEntry::default(); 1];
            match self.cq.read(&mut entries) {
                0 => Ok(None),
                _ if entries[0].context != context => Err(errno::eproto()),
                _ => Ok(Some(entries[0].err)),
            }
        })?;
        match err {
            0 => Ok(()),
            err => Err(failed(err)),
        }
    }

    /// Sends the hello. Returns the target's answer.
    ///
    /// # Errors
    ///
    /// - `EPROTO` if the target violates the protocol.
    /// - The refusal of the target.
    /// - Errors of [`Conversation::ask`].
    fn greet(&self, hello: &Hello) -> Result<Welcome> {
        let mut answer = KVec::from_elem(0u8, MESSAGE_MAX, GFP_KERNEL)?;
        let len = self.ask(&Question::Hello(*hello), &mut answer)?;
        let welcome = answer.get(..len).unwrap_or_default();
        let welcome = Welcome::read(welcome).map_err(|_| errno::eproto())?;
        match welcome.status {
            0 => Ok(welcome),
            status => Err(failed(status)),
        }
    }
}

impl<P: Protocol> Connection<P> {
    /// Connects, sends the hello, and prepares for requests.
    ///
    /// # Errors
    ///
    /// Refusals of the target:
    ///
    /// - `EACCES` if the initiator's auth key does not allow its name.
    /// - `EKEYREVOKED` if the initiator is fenced.
    /// - `ENOENT` if there is no such subsystem.
    /// - `ENODEV` if the subsystem is not enabled.
    /// - `EMEDIUMTYPE` if the export is block-backed and `P` is one-sided.
    /// - `EBUSY` if the export is persistent memory, and another disk has it.
    /// - `ESTALE` if the disk reconnects to persistent memory that another disk has had meanwhile.
    /// - `EDQUOT` if there are too many connections.
    ///
    /// Other errors:
    ///
    /// - Errors of [`Protocol::begin`].
    /// - Errors of `go_on`, which is called before and during each wait.
    /// - Errors of opening and connecting the endpoint.
    pub(super) fn connect(
        to: &Address<'_>,
        hello: &Hello,
        go_on: GoOn<'_>,
    ) -> Result<(Arc<Self>, Welcome)> {
        let domain = to.domain;
        let waiter = QueueWaiter::<Requests<P>>::new()?;
        go_on(waiter.waiter())?;
        let eq = Eq::open(domain.fabric(), 0, Some(waiter.clone()))?;
        let (entries, attr) = P::sizes(domain.attr());
        // Block-backed exports answer requests by completion data.
        let cq = Cq::open(domain, entries, KFI_CQ_FORMAT_DATA, Some(waiter.clone()))?;
        let ep = match to.auth {
            Some(key) => Endpoint::open_with(domain, &attr, None, key)?,
            None => Endpoint::open(domain, &attr, None)?,
        };
        ep.bind_eq(&eq)?;
        ep.bind_cq(&cq, KFI_TRANSMIT | P::TRANSMIT_FLAGS)?;
        ep.bind_cq(&cq, KFI_RECV)?;
        ep.enable()?;
        ep.connect(to.addr, P::CONNECT_DATA)?;
        let event = waiter.waiter().until(PATIENCE_MS, || {
            go_on(waiter.waiter())?;
            Ok(eq.read())
        })?;
        if event.kind != KFI_CONNECTED {
            return Err(failed(event.err));
        }
        let talk = Conversation {
            ep: &ep,
            cq: &cq,
            waiter: waiter.waiter(),
            msg_buf: MsgBuf::new(domain)?,
            go_on,
        };
        let welcome = talk.greet(hello)?;
        let protocol = P::begin(&talk, &welcome)?;
        let connection = Self {
            ep,
            cq,
            _eq: eq,
            waiter,
            protocol,
        };
        Ok((Arc::new(connection, GFP_KERNEL)?, welcome))
    }

    /// Returns the endpoint.
    pub(super) fn ep(&self) -> &Arc<Endpoint> {
        &self.ep
    }

    /// Returns the protocol's part of the connection.
    pub(super) fn protocol(&self) -> &P {
        &self.protocol
    }

    /// Returns the completion waiter of the connection's queues.
    pub(super) fn waiter(&self) -> &QueueWaiter<Requests<P>> {
        &self.waiter
    }

    /// Links the handler of a disk's queue: completions are reported to `block`.
    pub(super) fn link(&self, disk: &Arc<Disk>, block: Block, queue: u32) {
        let requests = Requests::new(disk, &self.cq, &self.protocol, block, queue);
        self.waiter.link(requests);
    }

    /// Returns whether the endpoint is connected.
    pub(super) fn is_connected(&self) -> bool {
        self.ep.state() == KFI_STATE_CONNECTED
    }

    /// Closes the connection. All posted requests have ended on return, those that the connection has
    /// not completed with `verdict`.
    pub(super) fn close(&self, verdict: Verdict) {
        self.ep.close();
        self.waiter.unlink();
        self.protocol.close(verdict);
    }
}
