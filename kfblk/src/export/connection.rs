// SPDX-License-Identifier: GPL-2.0
//! The target's end of a connection.
//!
//! The connection's work answers questions, one at a time. After a disconnect, the work closes the
//! endpoint. After admission, the connection has the service of its export's kind. Keys are
//! endpoint-scoped: valid on this connection alone, and revoked before it is closed.

mod client;
mod serve;

use core::sync::atomic::{
    AtomicBool,
    Ordering, //
};
use kernel::{
    impl_has_work,
    new_mutex,
    new_work,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SetOnce, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};
use kfabric::{
    auth::AuthKey,
    ep::{
        Endpoint,
        EpAttr, //
    },
    objects::{
        conn_request::Request,
        cq::Cq,
        domain::Domain,
        eq::Eq, //
    },
    pure::blk::share::{
        Source,
        Stage, //
    },
    uapi::*,
};

use super::{
    block::Io,
    memory::KeyService,
    port::{
        source_of,
        Port, //
    },
    protocol::{
        AnyService,
        Service, //
    }, //
};
use crate::{
    msg_buf::MsgBuf,
    sys,
    waiter::{
        QueueWaiter,
        Receiver, //
    }, //
};
use client::Client;

/// Size of each queue without an export's requests; questions need few operations.
const DEPTH: u32 = 8;

/// State of the exchange of questions and answers.
struct Talk {
    ended: bool,
    /// The send of an answer is outstanding.
    sending: bool,
    /// Length of a received question that waits for its answer, in bytes.
    question: Option<u64>,
}

/// The target's end of a connection.
#[pin_data]
pub(super) struct Connection {
    // Dropped in this order.
    ep: Arc<Endpoint>,
    msg_buf: MsgBuf,
    /// The queues have room for requests of a block-backed export.
    roomy: bool,
    /// The service of the export's kind, once the initiator is admitted.
    service: SetOnce<AnyService>,
    cq: Arc<Cq>,
    eq: Arc<Eq>,
    waiter: Arc<QueueWaiter<Arc<Connection>>>,
    port: Arc<Port>,
    /// The auth key that the peer has proven in the auth handshake.
    auth: Option<AuthKey>,
    /// The peer's address, for shares.
    source: Source,
    /// The connection has memory for requests to a block-backed export, or allocates it.
    memory: AtomicBool,
    client: SetOnce<Client>,
    /// The initiator has its answer with the capacity. Locking: changed with the subsystem's lock
    /// held.
    welcomed: AtomicBool,
    /// The initiator is admitted.
    admitted: AtomicBool,
    doomed: AtomicBool,
    #[pin]
    talk: Mutex<Talk>,
    /// The connection gets no service any more, or its service is stopped.
    #[pin]
    revoked: Mutex<bool>,
    #[pin]
    work: Work<Connection>,
}

impl_has_work! {
    impl HasWork<Self> for Connection { self.work }
}

impl WorkItem for Connection {
    type Pointer = Arc<Connection>;

    fn run(this: Arc<Connection>) {
        if Self::serve(&this).is_err() {
            this.end();
        }
    }
}

impl Receiver for Arc<Connection> {
    type Batch = Arc<Connection>;

    fn completed(&self) -> Arc<Connection> {
        self.clone()
    }

    fn finish(connection: Arc<Connection>, may_sleep: bool) -> bool {
        if may_sleep {
            Connection::serve_here(&connection);
        } else {
            // Queued work needs no second entry: it reads the queues when it runs.
            let _ = sys::exports().enqueue(connection);
        }
        false
    }

    fn event(&self) {
        let _ = sys::exports().enqueue(self.clone());
    }
}

impl Connection {
    /// Opens an endpoint for a connection request, which [`Connection::accept`] accepts. `roomy`:
    /// the queues have room for requests of a block-backed export.
    pub(super) fn open(
        port: &Arc<Port>,
        domain: &Arc<Domain>,
        request: &Arc<Request>,
        roomy: bool,
    ) -> Result<Arc<Self>> {
        let waiter = QueueWaiter::<Arc<Self>>::new()?;
        let eq = Eq::open(domain.fabric(), 0, Some(waiter.clone()))?;
        let (sends, receives) = match roomy {
            true => Io::OPERATIONS,
            false => KeyService::OPERATIONS,
        };
        let (tx, rx) = (DEPTH + sends, DEPTH + receives);
        let cq = Cq::open(domain, tx + rx, KFI_CQ_FORMAT_MSG, Some(waiter.clone()))?;
        let attr = EpAttr {
            tx_size: tx,
            rx_size: rx,
            // A message has a head and a payload.
            iov_limit: 2,
            own_keys: true,
            // The connection has many keys, and no other connection uses their values.
            reuse_values: true,
            ..EpAttr::default()
        };
        let msg_buf = MsgBuf::new(domain)?;
        let ep = match request.auth() {
            Some(key) => Endpoint::open_with(domain, &attr, Some(request), key)?,
            None => Endpoint::open(domain, &attr, Some(request))?,
        };
        ep.bind_eq(&eq)?;
        ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV)?;
        ep.enable()?;
        let talk = Talk {
            ended: false,
            sending: false,
            question: None,
        };
        Arc::pin_init(
            pin_init!(Self {
                ep,
                msg_buf,
                roomy,
                service: SetOnce::new(),
                cq,
                eq,
                waiter,
                port: port.clone(),
                auth: request.auth().cloned(),
                source: source_of(&request.info().dest_addr),
                memory: AtomicBool::new(false),
                client: SetOnce::new(),
                welcomed: AtomicBool::new(false),
                admitted: AtomicBool::new(false),
                doomed: AtomicBool::new(false),
                talk <- new_mutex!(talk, "kfblk_talk"),
                revoked <- new_mutex!(false, "kfblk_revoked"),
                work <- new_work!("Connection::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Links the completion waiter, posts the first receive, and accepts the connection request.
    pub(super) fn accept(self: &Arc<Self>) -> Result {
        self.waiter.link(self.clone());
        self.msg_buf.recv(&self.ep)?;
        self.ep.accept(&[])
    }

    /// Returns the domain of the connection's endpoint.
    pub(super) fn domain(&self) -> &Domain {
        self.ep.domain()
    }

    /// Returns the address that the connection is counted by.
    pub(super) fn source(&self) -> Source {
        self.source
    }

    /// Returns how far the connection has come.
    pub(super) fn stage(&self) -> Stage {
        match (self.client.as_ref(), self.doomed.load(Ordering::Acquire)) {
            (Some(_), _) => Stage::Client,
            (None, true) => Stage::Ending,
            (None, false) => Stage::Stranger,
        }
    }

    /// Returns whether the peer has proven an auth key.
    pub(super) fn is_proven(&self) -> bool {
        self.auth.is_some()
    }

    /// Returns whether the connection has memory for block-backed requests, or allocates it.
    pub(super) fn has_memory(&self) -> bool {
        self.memory.load(Ordering::Acquire)
    }

    /// Returns whether the connection is about to end. Its operations may still be outstanding.
    pub(super) fn is_ending(&self) -> bool {
        self.doomed.load(Ordering::Acquire) || self.ep.state() == KFI_STATE_DOWN
    }

    /// Announces another capacity to the initiator. Before the answer to the hello, the initiator
    /// would mistake the announcement for that answer, so none is sent. Locking: caller holds the
    /// subsystem's lock.
    pub(super) fn announce(&self, capacity: u64) {
        let service = self.service.as_ref();
        if let Some(service) = service.filter(|_| self.welcomed.load(Ordering::Relaxed)) {
            service.announce(capacity);
        }
    }

    /// Records that the initiator has its answer with the capacity. Locking: caller holds the
    /// subsystem's lock.
    pub(super) fn is_welcomed(&self) {
        self.welcomed.store(true, Ordering::Relaxed);
    }

    /// Revokes the connection's keys and stops its block-backed requests.
    ///
    /// After the return no byte is read or written for the initiator, and it gets no more keys. May
    /// sleep.
    pub(super) fn revoke(&self) {
        *self.revoked.lock() = true;
        // `stop` waits until all bios of the connection are complete, with no time limit.
        if let Some(service) = self.service.as_ref() {
            service.stop();
        }
    }

    /// Schedules the work, which ends the connection.
    pub(super) fn doom(self: Arc<Self>) {
        self.doomed.store(true, Ordering::Release);
        let _ = sys::exports().enqueue(self);
    }

    /// Ends the connection: its endpoint is closed and its keys are revoked on return.
    ///
    /// Locking: caller holds no lock of the port or the subsystem.
    pub(super) fn end(&self) {
        // A connection that is admitted meanwhile waits for this one's outstanding requests.
        self.doomed.store(true, Ordering::Release);
        self.waiter.unlink();
        {
            let mut talk = self.talk.lock();
            if !talk.ended {
                talk.ended = true;
                // The endpoint's close revokes its keys first.
                self.ep.close();
                self.revoke();
                if self.admitted.load(Ordering::Relaxed) {
                    self.log("disconnected");
                }
            }
        }
        if let Some(of) = self.client.as_ref() {
            of.subsystem.forget(self);
        }
        self.port.forget(self);
    }
}
