// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection: its endpoint, its queues, its control messages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kfabric::{
    Access, Bind, Completion, CompletionQueue, Domain, Endpoint, EndpointAttr, Errno, EventQueue,
    Format, Memory, Region,
};

use super::Provider;
use crate::error::{During, Failure, Result};
use crate::wire::{Kind, Msg, Shape, CTL_DATA, MSG_SIZE, WINDOW};

/// Context bit of receives. Contexts of the caller's operations do not have it.
const RECV: u64 = 1 << 63;
/// Context bit of sends of control messages. Contexts of the caller's operations do not have it.
const CTL_SEND: u64 = 1 << 62;

/// A connection: an endpoint, its queues and its control messages.
pub struct Conn {
    /// The endpoint, for the caller's own operations, whose contexts must be below 2^62.
    pub ep: Endpoint,
    /// The domain, for the caller's own regions.
    pub domain: Arc<Domain>,
    /// Timeout of each wait.
    pub timeout: Duration,
    /// Name of the provider.
    pub provider: String,
    cq: CompletionQueue,
    pub(super) eq: EventQueue,
    /// Memory of the receive slots.
    slots: Region,
    slot_size: usize,
    /// Memory of the send slots, for control messages.
    out: Region,
    free: Vec<usize>,
    inbox: VecDeque<Msg>,
    done: VecDeque<Done>,
    down: bool,
}

/// A completion of one of the caller's operations, or a received data message.
#[derive(Clone, Copy, Debug)]
pub enum Done {
    /// An operation has completed, successfully or not.
    Operation(Completion),
    /// A data message was received into a slot. It stays there until [`Conn::repost`].
    Message {
        /// Index of the slot.
        slot: usize,
        /// Bytes of the message.
        len: usize,
    },
}

impl Conn {
    /// Number of the caller's operations that each side holds, beside the control messages.
    pub const DEPTH: u32 = 64;

    /// Bytes of all receive slots for messages of this shape.
    pub(super) fn slot_bytes(shape: Shape) -> u64 {
        let slot = shape.bytes.max(MSG_SIZE) as u64;
        slot.saturating_mul((shape.window + WINDOW) as u64)
    }

    pub(super) fn attr() -> EndpointAttr {
        let size = Self::DEPTH + u32::try_from(WINDOW).unwrap_or(0);
        EndpointAttr {
            tx_size: size,
            rx_size: size,
            ..EndpointAttr::default()
        }
    }

    pub(super) fn new(
        provider: &Provider,
        domain: Arc<Domain>,
        ep: Endpoint,
        shape: Shape,
    ) -> Result<Self> {
        let eq = provider.fabric.event_queue(0).during("open event queue")?;
        let depth = ep.tx_size() + ep.rx_size();
        let cq = domain
            .completion_queue(depth, Format::Data)
            .during("open completion queue")?;
        ep.bind_event_queue(&eq).during("bind event queue")?;
        ep.bind_completion_queue(&cq, Bind::TRANSMIT | Bind::RECV)
            .during("bind completion queue")?;
        ep.enable().during("enable")?;
        let slot_size = shape.bytes.max(MSG_SIZE);
        let count = shape.window + WINDOW;
        let bytes = slot_size.checked_mul(count).ok_or_else(|| {
            Failure::Usage(format!("{count} messages of {slot_size} bytes: too large"))
        })?;
        let slots = Memory::anonymous(bytes).during("allocate")?;
        // SEND as well: an answer may be sent straight from the slot of the request.
        let slots = domain
            .register(slots, Access::RECV | Access::SEND)
            .during("register")?;
        let out = Memory::anonymous(WINDOW * MSG_SIZE).during("allocate")?;
        let out = domain.register(out, Access::SEND).during("register")?;
        let conn = Self {
            ep,
            domain,
            timeout: Duration::from_secs(10),
            provider: provider.name.clone(),
            cq,
            eq,
            slots,
            slot_size,
            out,
            free: (0..WINDOW).collect(),
            inbox: VecDeque::new(),
            done: VecDeque::new(),
            down: false,
        };
        for slot in 0..count {
            conn.repost(slot)?;
        }
        Ok(conn)
    }

    /// Memory of the receive slots, and the range of a message of `len` bytes in slot `slot`.
    pub fn slot(&self, slot: usize, len: usize) -> (&Region, std::ops::Range<usize>) {
        let at = slot * self.slot_size;
        (&self.slots, at..at + len)
    }

    /// Posts a slot's receive again.
    ///
    /// # Errors
    ///
    /// - [`Failure::Gone`] if the connection has ended.
    ///
    /// Also those of the kernel.
    pub fn repost(&self, slot: usize) -> Result<()> {
        let (region, range) = self.slot(slot, self.slot_size);
        gone(
            self.ep.recv(region.segment(range), RECV | slot as u64),
            "receive",
        )
    }

    /// The event queue of the connection.
    pub fn events(&self) -> &EventQueue {
        &self.eq
    }

    /// Whether the connection is known to have ended.
    pub fn is_down(&self) -> bool {
        self.down
    }

    /// Processes one completion. Returns `false` if none comes before the timeout expires.
    fn pump(&mut self, timeout: Duration) -> Result<bool> {
        let completion = match self.cq.read_one().during("read completions")? {
            Some(completion) => completion,
            None => match self.cq.wait(timeout) {
                Ok(completion) => completion,
                Err(kfabric::Error::Timeout { .. }) => return Ok(false),
                Err(e) => return Err(e).during("wait for a completion"),
            },
        };
        let context = completion.context();
        if context & (RECV | CTL_SEND) == 0 {
            self.done.push_back(Done::Operation(completion));
            return Ok(true);
        }
        let slot = usize::try_from(context & !(RECV | CTL_SEND)).unwrap_or(usize::MAX);
        if completion.error().is_some() {
            self.down = true;
            return Ok(true);
        }
        if context & CTL_SEND != 0 {
            self.free.push(slot);
            return Ok(true);
        }
        let len = usize::try_from(completion.len())
            .unwrap_or(0)
            .min(self.slot_size);
        if completion.data() != Some(CTL_DATA) {
            self.done.push_back(Done::Message { slot, len });
            return Ok(true);
        }
        let (region, range) = self.slot(slot, len);
        let msg =
            Msg::decode(&region.to_vec(range.start, len)).ok_or_else(|| Failure::Protocol {
                what: "receive",
                got: format!("{len} bytes"),
            })?;
        self.inbox.push_back(msg);
        match self.repost(slot) {
            // Messages that were received before the connection ended still count.
            Err(Failure::Gone { .. }) => self.down = true,
            posted => posted?,
        }
        Ok(true)
    }

    /// Sends a control message.
    ///
    /// # Errors
    ///
    /// - [`Failure::Gone`] if the connection has ended.
    /// - A timeout if the peer takes no messages.
    pub fn send(&mut self, msg: &Msg) -> Result<()> {
        let end = Instant::now() + self.timeout;
        let slot = loop {
            if self.down {
                return Err(Failure::Gone { what: "send" });
            }
            if let Some(slot) = self.free.pop() {
                break slot;
            }
            if !self.pump(end.saturating_duration_since(Instant::now()))? {
                return Err(self.late("send"));
            }
        };
        let at = slot * MSG_SIZE;
        self.out.write_at(at, &msg.encode());
        let local = self.out.segment(at..at + MSG_SIZE);
        let sent = gone(
            self.ep.senddata(local, CTL_DATA, CTL_SEND | slot as u64),
            "send",
        );
        self.down |= matches!(sent, Err(Failure::Gone { .. }));
        sent
    }

    /// Waits until all control messages have been sent.
    ///
    /// # Errors
    ///
    /// - A timeout if the peer takes no messages.
    pub fn flush(&mut self) -> Result<()> {
        let end = Instant::now() + self.timeout;
        while self.free.len() < WINDOW && !self.down {
            if !self.pump(end.saturating_duration_since(Instant::now()))? {
                return Err(self.late("send"));
            }
        }
        Ok(())
    }

    /// Takes a control message; waits for one.
    ///
    /// # Errors
    ///
    /// - [`Failure::Gone`] if the connection has ended.
    /// - A timeout if no message comes in time.
    pub fn recv(&mut self) -> Result<Msg> {
        let timeout = self.timeout;
        self.recv_within(timeout)?
            .ok_or_else(|| self.late("receive"))
    }

    /// Takes a control message; waits for one up to `timeout`. Returns `None` if no message comes
    /// in time.
    ///
    /// # Errors
    ///
    /// - [`Failure::Gone`] if the connection has ended.
    pub fn recv_within(&mut self, timeout: Duration) -> Result<Option<Msg>> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(msg) = self.inbox.pop_front() {
                return Ok(Some(msg));
            }
            if self.down {
                return Err(Failure::Gone { what: "receive" });
            }
            if !self.pump(end.saturating_duration_since(Instant::now()))? {
                return Ok(None);
            }
        }
    }

    /// Takes a control message of one kind.
    ///
    /// # Errors
    ///
    /// - [`Failure::Protocol`] for a message of another kind.
    /// - [`Failure::Refused`] for a message with an error status.
    ///
    /// Also those of [`Conn::recv`].
    pub fn expect(&mut self, kind: Kind) -> Result<Msg> {
        self.expect_past(&[], kind)
    }

    /// Like [`Conn::expect`], but drops earlier messages of the kinds in `drop`.
    ///
    /// # Errors
    ///
    /// The errors of [`Conn::expect`].
    pub fn expect_past(&mut self, drop: &[Kind], kind: Kind) -> Result<Msg> {
        loop {
            let msg = self.recv()?;
            if msg.status != 0 {
                let errno = Errno(i32::try_from(msg.status).unwrap_or(Errno::EIO.0));
                let why = errno.to_string();
                return Err(Failure::Refused {
                    what: "request",
                    why,
                });
            }
            if msg.kind == kind {
                return Ok(msg);
            }
            if !drop.contains(&msg.kind) {
                let got = format!("{:?} instead of {kind:?}", msg.kind);
                return Err(Failure::Protocol {
                    what: "receive",
                    got,
                });
            }
        }
    }

    /// Takes the next completion or data message; waits for one.
    ///
    /// # Errors
    ///
    /// - [`Failure::Gone`] if the connection has ended and nothing is outstanding.
    /// - A timeout if nothing comes in time.
    pub fn take(&mut self) -> Result<Done> {
        let end = Instant::now() + self.timeout;
        loop {
            if let Some(done) = self.done.pop_front() {
                return Ok(done);
            }
            let left = end.saturating_duration_since(Instant::now());
            // Outstanding operations are flushed as soon as the connection ends.
            let left = if self.down {
                left.min(Duration::from_secs(2))
            } else {
                left
            };
            if !self.pump(left)? {
                return Err(if self.down {
                    Failure::Gone { what: "operation" }
                } else {
                    self.late("operation")
                });
            }
        }
    }

    /// Takes the next completion, in a phase without data messages.
    ///
    /// # Errors
    ///
    /// - [`Failure::Protocol`] for a data message.
    ///
    /// Also those of [`Conn::take`].
    pub fn completion(&mut self) -> Result<Completion> {
        match self.take()? {
            Done::Operation(completion) => Ok(completion),
            Done::Message { len, .. } => Err(Failure::Protocol {
                what: "operation",
                got: format!("a message of {len} bytes"),
            }),
        }
    }

    fn late(&self, what: &'static str) -> Failure {
        let source = kfabric::Error::Timeout {
            what: "waiting for the peer",
            after: self.timeout,
        };
        Failure::Fabric { what, source }
    }
}

/// Converts the errors of an ended connection to [`Failure::Gone`].
fn gone(result: kfabric::Result<()>, what: &'static str) -> Result<()> {
    match result {
        Err(e)
            if matches!(
                e.errno(),
                Some(Errno::ENOTCONN | Errno::EPIPE | Errno::ESHUTDOWN)
            ) =>
        {
            Err(Failure::Gone { what })
        }
        result => result.during(what),
    }
}
