// SPDX-License-Identifier: GPL-2.0
//! Two connected endpoints.

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kfabric::{
    ep::{
        Endpoint,
        EpAttr,
        LocalMem,
        Post, //
    },
    key::Key,
    objects::{
        cntr::Cntr,
        conn_request::Request,
        cq::{
            Cq,
            CqHandler, //
        },
        eq::{
            Eq,
            Event, //
        },
        waiter::Waiter, //
    },
    op::OpKind,
    provider::KeyValue,
    uapi::*,
};

use crate::{
    buffer::Buffer,
    check_eq,
    ktap::{
        Failure,
        Outcome, //
    },
    station::{
        self,
        Station, //
    }, //
};

/// Attributes of an endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// Number of entries of its completion queue.
    pub(crate) depth: u32,
    /// Flags of the queue's bind.
    pub(crate) flags: u64,
    /// Format of the queue.
    pub(crate) format: u32,
    /// Endpoint-scoped keys.
    pub(crate) own_keys: bool,
    /// Key values of the endpoint's own.
    pub(crate) reuse_values: bool,
    /// No key value twice.
    pub(crate) strict_values: bool,
    /// Maximum number of pieces of an operation's memory; 0: the device's maximum.
    pub(crate) iov_limit: u32,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            depth: 256,
            flags: 0,
            format: KFI_CQ_FORMAT_DATA,
            own_keys: false,
            reuse_values: false,
            strict_values: false,
            iov_limit: 0,
        }
    }
}

/// An endpoint with its own queues.
pub(crate) struct Side {
    // Fields are in the order in which they are closed.
    /// The endpoint.
    pub(crate) ep: Arc<Endpoint>,
    /// Completion queue.
    pub(crate) cq: Arc<Cq>,
    /// Event queue.
    pub(crate) eq: Arc<Eq>,
    /// Handler of both queues.
    pub(crate) waiter: Arc<Waiter>,
}

/// Returns an operation without flags and data.
pub(crate) fn plain(kind: OpKind, context: u64, segs: LocalMem) -> Post<'static> {
    Post {
        kind,
        flags: 0,
        context,
        data: 0,
        remote_addr: 0,
        key: 0,
        inject: &[],
        atomic: None,
        segs,
    }
}

impl Side {
    /// Opens and enables an endpoint; with `request`, one that accepts it.
    pub(crate) fn open(
        station: &Station,
        wanted: &Wanted,
        cntrs: &[(&Arc<Cntr>, u64)],
        request: Option<&Arc<Request>>,
    ) -> Result<Self> {
        let waiter = station::waiter()?;
        Self::with_handler(station, wanted, cntrs, request, waiter.clone(), waiter)
    }

    /// Like [`Side::open`], with a handler of the completion queue, which wakes `waiter`.
    pub(crate) fn with_handler(
        station: &Station,
        wanted: &Wanted,
        cntrs: &[(&Arc<Cntr>, u64)],
        request: Option<&Arc<Request>>,
        handler: Arc<dyn CqHandler>,
        waiter: Arc<Waiter>,
    ) -> Result<Self> {
        let domain = &station.domain;
        let eq = Eq::open(station.fabric(), 0, Some(waiter.clone()))?;
        let cq = Cq::open(domain, wanted.depth, wanted.format, Some(handler))?;
        let attr = EpAttr {
            iov_limit: match wanted.iov_limit {
                0 => domain.attr().iov_limit,
                limit => limit,
            },
            own_keys: wanted.own_keys,
            reuse_values: wanted.reuse_values,
            strict_values: wanted.strict_values,
            ..EpAttr::default()
        };
        let ep = Endpoint::open(domain, &attr, request)?;
        ep.bind_eq(&eq)?;
        ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV | wanted.flags)?;
        for (cntr, kinds) in cntrs {
            ep.bind_cntr(cntr, *kinds)?;
        }
        ep.enable()?;
        Ok(Self { ep, cq, eq, waiter })
    }

    /// Waits for an event.
    pub(crate) fn event(&self) -> Result<Event> {
        station::event(&self.eq, &self.waiter)
    }

    /// Waits for the end of the connection.
    pub(crate) fn ended(&self) -> Outcome {
        check_eq!(self.event()?.kind, KFI_SHUTDOWN);
        check_eq!(self.ep.state(), KFI_STATE_DOWN);
        Ok(())
    }

    /// Reads a completion, if there is one.
    pub(crate) fn poll(&self) -> Option<CqEntry> {
        let mut entries = [CqEntry::default()];
        (self.cq.read(&mut entries) == 1).then_some(entries[0])
    }

    /// Waits for a completion.
    pub(crate) fn completion(&self) -> Result<CqEntry> {
        self.waiter.until(station::PATIENCE, || Ok(self.poll()))
    }

    /// Waits for a successful completion with this context.
    pub(crate) fn done(&self, context: u64) -> Result<CqEntry, Failure> {
        let entry = self.completion()?;
        check_eq!(entry.err, 0);
        check_eq!(entry.context, context);
        Ok(entry)
    }

    /// Posts an operation; retries while the queue is full.
    pub(crate) fn post(&self, make: impl Fn() -> Result<Post<'static>>) -> Result {
        for _ in 0..1000 {
            match self.ep.post(make()?) {
                Err(e) if e == EAGAIN => fsleep(Delta::from_millis(1)),
                other => return other,
            }
        }
        Err(ETIMEDOUT)
    }

    /// Posts a receive into [offset, offset + len).
    pub(crate) fn recv(&self, context: u64, buf: &Buffer, offset: usize, len: usize) -> Result {
        let segs = buf.segs(OpKind::Recv, offset, len)?;
        self.ep.post(plain(OpKind::Recv, context, segs))
    }

    /// Sends [offset, offset + len).
    pub(crate) fn send(&self, context: u64, buf: &Buffer, offset: usize, len: usize) -> Result {
        let segs = buf.segs(OpKind::Send, offset, len)?;
        self.ep.post(plain(OpKind::Send, context, segs))
    }

    /// Reads or writes memory of `key`, from `at` bytes after its start on.
    pub(crate) fn rma(
        &self,
        kind: OpKind,
        context: u64,
        (buf, offset, len): (&Buffer, usize, usize),
        key: &Key,
        at: u64,
    ) -> Result {
        let value = key.value().ok_or(EINVAL)?;
        self.ep.post(Post {
            remote_addr: value.remote_addr.wrapping_add(at),
            key: value.key,
            ..plain(kind, context, buf.segs(kind, offset, len)?)
        })
    }

    /// Writes to the remote address of a key value.
    pub(crate) fn write_to(
        &self,
        context: u64,
        (buf, offset, len): (&Buffer, usize, usize),
        value: KeyValue,
    ) -> Result {
        let kind = OpKind::Write;
        self.ep.post(Post {
            remote_addr: value.remote_addr,
            key: value.key,
            ..plain(kind, context, buf.segs(kind, offset, len)?)
        })
    }
}

/// Two connected endpoints.
pub(crate) struct Pair {
    /// The connecting endpoint.
    pub(crate) client: Side,
    /// The accepting endpoint.
    pub(crate) server: Side,
}

impl Pair {
    /// Connects two endpoints.
    pub(crate) fn new(station: &Station) -> Result<Self, Failure> {
        Self::with(station, &Wanted::default(), &[], &[])
    }

    /// Connects two endpoints, the client's with these attributes.
    pub(crate) fn with(
        station: &Station,
        wanted: &Wanted,
        client_cntrs: &[(&Arc<Cntr>, u64)],
        server_cntrs: &[(&Arc<Cntr>, u64)],
    ) -> Result<Self, Failure> {
        let client = Side::open(station, wanted, client_cntrs, None)?;
        Self::join(station, client, server_cntrs)
    }

    /// Connects an endpoint with a new one.
    pub(crate) fn join(
        station: &Station,
        client: Side,
        server_cntrs: &[(&Arc<Cntr>, u64)],
    ) -> Result<Self, Failure> {
        client.ep.connect(&station.addr(), &[])?;
        let event = station.request()?;
        check_eq!(event.kind, KFI_CONNREQ);
        let server = Side::open(
            station,
            &Wanted::default(),
            server_cntrs,
            event.request.as_ref(),
        )?;
        server.ep.accept(&[])?;
        for side in [&client, &server] {
            check_eq!(side.event()?.kind, KFI_CONNECTED);
            check_eq!(side.ep.state(), KFI_STATE_CONNECTED);
        }
        Ok(Self { client, server })
    }

    /// Waits until both sides have the event of the connection's end.
    pub(crate) fn ended(&self) -> Outcome {
        self.client.ended()?;
        self.server.ended()
    }
}
