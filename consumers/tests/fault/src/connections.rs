// SPDX-License-Identifier: GPL-2.0
//! Cases of endpoints, connections and operations.

use core::sync::atomic::{
    AtomicBool,
    Ordering, //
};
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
        EpAttr, //
    },
    key::{
        Key,
        Region, //
    },
    objects::{
        cntr::Cntr,
        cq::Cq,
        eq::{
            Eq,
            EqHandler,
            Event, //
        },
        waiter::Waiter, //
    },
    op::OpKind,
    uapi::*,
};

use crate::{
    buffer::Buffer,
    check,
    check_eq,
    ktap::{
        Failure,
        Outcome, //
    },
    pair::{
        plain,
        Pair,
        Side,
        Wanted, //
    },
    shot::{
        econnaborted,
        Case,
        Shot, //
    },
    station::{
        self,
        Station, //
    }, //
};

/// The cases.
pub(crate) const CASES: &[(&str, Case)] = &[
    ("Endpoint::open", ep_open),
    ("Endpoint::open with keys", ep_open_own_keys),
    ("Endpoint::open request", ep_open_request),
    ("Key::alloc_for", key_alloc_for),
    ("Region::register_for", register_for),
    ("Endpoint::bind_eq", bind_eq),
    ("Endpoint::bind_cq", bind_cq),
    ("Endpoint::bind_cntr", bind_cntr),
    ("Endpoint::enable", enable),
    ("Endpoint::connect", connect),
    ("Endpoint::accept", accept),
    ("Request::reject", reject),
    ("Endpoint::post send", post_send),
    ("Endpoint::post write", post_write),
    ("Endpoint::post inject", post_inject),
    ("Endpoint::post write in parts", post_parts),
    ("Endpoint::shutdown", shutdown),
    ("Endpoint::close", ep_close),
    ("Key::revoke that a handler waits for", revoke_awaited),
    ("PassiveEp::close", pep_close),
];

/// The size of a page in bytes.
const PAGE: usize = kernel::page::PAGE_SIZE;

fn attr() -> EpAttr {
    EpAttr {
        tx_size: 8,
        rx_size: 8,
        ..EpAttr::default()
    }
}

fn ep_open(station: &Station, shot: &mut Shot) -> Outcome {
    let ep = shot.call(|| Endpoint::open(&station.domain, &attr(), None))?;
    ep.close();
    Ok(())
}

/// Returns attributes with endpoint-scoped keys.
fn own_keys() -> EpAttr {
    EpAttr {
        own_keys: true,
        ..attr()
    }
}

fn ep_open_own_keys(station: &Station, shot: &mut Shot) -> Outcome {
    let ep = shot.call(|| Endpoint::open(&station.domain, &own_keys(), None))?;
    ep.close();
    Ok(())
}

/// A key slot that ends with the endpoint.
fn key_alloc_for(station: &Station, shot: &mut Shot) -> Outcome {
    let buffer = Buffer::shared(&station.domain, PAGE)?;
    let ep = Endpoint::open(&station.domain, &own_keys(), None)?;
    let key = shot.call(|| Key::alloc_for(&buffer.region, &ep))?;
    key.assign(0, 64, KFI_REMOTE_READ)?;
    ep.close();
    check!(key.value().is_none());
    key.close();
    Ok(buffer.region.close()?)
}

/// A region with its own key, and the queue pair that the registration needs.
fn register_for(station: &Station, shot: &mut Shot) -> Outcome {
    let buffer = Buffer::local(&station.domain, PAGE)?;
    let ep = Endpoint::open(&station.domain, &own_keys(), None)?;
    let memory = buffer.region.memory();
    let access = KFI_SEND | KFI_REMOTE_READ;
    let region = shot.call(|| Region::register_for(&ep, memory.clone(), access, false))?;
    check!(region.key().key != KFI_KEY_NOTAVAIL);
    ep.close();
    check!(region.key().key == KFI_KEY_NOTAVAIL);
    region.close()?;
    Ok(buffer.region.close()?)
}

/// Returns a connecting client, and its request.
fn request(station: &Station) -> Result<(Side, Event), Failure> {
    let client = Side::open(station, &Wanted::default(), &[], None)?;
    client.ep.connect(&station.addr(), b"knock")?;
    let event = station.request()?;
    check_eq!(event.kind, KFI_CONNREQ);
    Ok((client, event))
}

/// After a failure the request can still be accepted.
fn ep_open_request(station: &Station, shot: &mut Shot) -> Outcome {
    let (client, event) = request(station)?;
    let ep = shot.call(|| Endpoint::open(&station.domain, &attr(), event.request.as_ref()))?;
    ep.close();
    check_eq!(client.event()?.kind, KFI_CONN_ERROR);
    Ok(())
}

fn bind_eq(station: &Station, shot: &mut Shot) -> Outcome {
    let eq = Eq::open(station.fabric(), 1, None)?;
    let ep = Endpoint::open(&station.domain, &attr(), None)?;
    shot.call(|| ep.bind_eq(&eq))?;
    ep.close();
    Ok(eq.close()?)
}

fn bind_cq(station: &Station, shot: &mut Shot) -> Outcome {
    let cq = Cq::open(&station.domain, 16, 0, None)?;
    let ep = Endpoint::open(&station.domain, &attr(), None)?;
    shot.call(|| ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV))?;
    ep.close();
    Ok(cq.close()?)
}

fn bind_cntr(station: &Station, shot: &mut Shot) -> Outcome {
    let cntr = Cntr::open(&station.domain)?;
    let ep = Endpoint::open(&station.domain, &attr(), None)?;
    shot.call(|| ep.bind_cntr(&cntr, KFI_SEND | KFI_RECV))?;
    ep.close();
    Ok(cntr.close()?)
}

/// Opens an endpoint with bound queues.
fn bound(station: &Station) -> Result<(Arc<Endpoint>, Arc<Eq>, Arc<Cq>)> {
    let eq = Eq::open(station.fabric(), 0, None)?;
    let cq = Cq::open(&station.domain, 16, 0, None)?;
    let ep = Endpoint::open(&station.domain, &attr(), None)?;
    ep.bind_eq(&eq)?;
    ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV)?;
    Ok((ep, eq, cq))
}

fn enable(station: &Station, shot: &mut Shot) -> Outcome {
    let (ep, eq, cq) = bound(station)?;
    shot.call(|| ep.enable())?;
    ep.close();
    eq.close()?;
    Ok(cq.close()?)
}

fn connect(station: &Station, shot: &mut Shot) -> Outcome {
    let client = Side::open(station, &Wanted::default(), &[], None)?;
    let addr = station.addr();
    shot.call(|| client.ep.connect(&addr, b"hello"))?;
    let event = station.request()?;
    check!(event.data[..] == *b"hello");
    // The drop refuses the request.
    drop(event);
    check_eq!(client.event()?.kind, KFI_CONN_ERROR);
    Ok(())
}

/// A failed accept refuses the peer, which gets an event; before that the accept can be retried.
fn accept(station: &Station, shot: &mut Shot) -> Outcome {
    let (client, event) = request(station)?;
    let server = Side::open(station, &Wanted::default(), &[], event.request.as_ref())?;
    let up = match shot.once(|| server.ep.accept(b"welcome"))? {
        Ok(()) => true,
        Err(e) if e == econnaborted() => false,
        Err(_) => {
            server.ep.accept(b"welcome")?;
            true
        }
    };
    if up {
        check_eq!(server.event()?.kind, KFI_CONNECTED);
        check_eq!(client.event()?.kind, KFI_CONNECTED);
    } else {
        check_eq!(refused(station, &client)?.kind, KFI_CONN_ERROR);
    }
    Ok(())
}

/// Waits for the client's event. A lost refusal makes the peer send its request again, which is
/// refused again.
fn refused(station: &Station, client: &Side) -> Result<Event> {
    for _ in 0..200 {
        if let Some(event) = client.eq.read() {
            return Ok(event);
        }
        // The drop refuses the request.
        drop(station.poll());
        fsleep(Delta::from_millis(100));
    }
    client.event()
}

fn reject(station: &Station, shot: &mut Shot) -> Outcome {
    let (client, event) = request(station)?;
    let request = event.request.as_ref().ok_or(EINVAL)?;
    shot.call(|| request.reject(b"not today"))?;
    let refusal = refused(station, &client)?;
    check_eq!(refusal.kind, KFI_CONN_ERROR);
    check!(shot.hit() || refusal.data[..] == *b"not today");
    Ok(())
}

/// A post allocates nothing. An operation that the device refuses counts as not posted.
fn post_send(station: &Station, shot: &mut Shot) -> Outcome {
    let pair = Pair::new(station)?;
    let buffer = Buffer::local(&station.domain, 2 * PAGE)?;
    pair.server.recv(7, &buffer, PAGE, PAGE)?;
    buffer.fill(0, 100, 3);
    shot.call(|| pair.client.send(8, &buffer, 0, 100))?;
    pair.client.done(8)?;
    pair.server.done(7)?;
    check!(buffer.has(PAGE, 100, 3));
    check!(pair.client.poll().is_none());
    drop(pair);
    Ok(buffer.region.close()?)
}

/// Connects a pair, with server memory that has a key, and local memory of the client.
fn rma(station: &Station, post: impl FnOnce(&Pair, &Buffer, &Key) -> Outcome) -> Outcome {
    let pair = Pair::new(station)?;
    let buffer = Buffer::shared(&station.domain, 2 * PAGE)?;
    let key = Key::alloc(&buffer.region)?;
    key.assign(0, PAGE as u64, KFI_REMOTE_READ | KFI_REMOTE_WRITE)?;
    post(&pair, &buffer, &key)?;
    drop(pair);
    key.close();
    Ok(buffer.region.close()?)
}

fn post_write(station: &Station, shot: &mut Shot) -> Outcome {
    rma(station, |pair, buffer, key| {
        buffer.fill(PAGE, 100, 5);
        shot.call(|| {
            pair.client
                .rma(OpKind::Write, 9, (buffer, PAGE, 100), key, 0)
        })?;
        pair.client.done(9)?;
        check!(buffer.has(0, 100, 5));
        check!(pair.client.poll().is_none());
        Ok(())
    })
}

fn post_inject(station: &Station, shot: &mut Shot) -> Outcome {
    rma(station, |pair, buffer, key| {
        let value = key.value().ok_or(EINVAL)?;
        shot.call(|| {
            let mut post = plain(OpKind::Write, 1, kfabric::ep::LocalMem::new());
            post.flags = KFI_INJECT;
            post.inject = &[9; 16];
            post.remote_addr = value.remote_addr;
            post.key = value.key;
            pair.client.ep.post(post)
        })?;
        // The write has no completion; the read after it has one.
        pair.client
            .rma(OpKind::Read, 2, (buffer, PAGE, 8), key, 0)?;
        pair.client.done(2)?;
        let mut got = [0; 16];
        buffer.region.memory().read(0, &mut got);
        check!(got == [9; 16]);
        Ok(())
    })
}

/// A write of several work requests, which the peer refuses. If the device accepts none of them,
/// the post fails. If the device accepts a part, the write completes when the connection ends,
/// which it does by itself.
fn post_parts(station: &Station, shot: &mut Shot) -> Outcome {
    // A window of the device covers 256 pages as one piece, and a work request takes four pieces.
    const LEN: usize = 4 * 256 * PAGE + PAGE;
    let wanted = Wanted {
        iov_limit: 1,
        ..Wanted::default()
    };
    let pair = Pair::with(station, &wanted, &[], &[])?;
    let large = Buffer::local(&station.domain, LEN)?;
    let buffer = Buffer::shared(&station.domain, PAGE)?;
    let key = Key::alloc(&buffer.region)?;
    key.assign(0, PAGE as u64, KFI_REMOTE_WRITE)?;
    let write = || {
        let whole = (&large, 0, LEN);
        pair.client.rma(OpKind::Write, 9, whole, &key, 0)
    };
    if shot.once(write)?.is_ok() {
        let entry = pair.client.completion()?;
        check!(entry.err != 0);
        check_eq!(entry.context, 9);
        pair.ended()?;
    }
    check!(pair.client.poll().is_none());
    drop(pair);
    key.close();
    buffer.region.close()?;
    Ok(large.region.close()?)
}

fn shutdown(station: &Station, shot: &mut Shot) -> Outcome {
    let pair = Pair::new(station)?;
    shot.call(|| pair.client.ep.shutdown())?;
    pair.ended()
}

/// With a posted receive, which completes. The peer gets an event.
fn ep_close(station: &Station, shot: &mut Shot) -> Outcome {
    let pair = Pair::new(station)?;
    let buffer = Buffer::local(&station.domain, PAGE)?;
    pair.server.recv(7, &buffer, 0, PAGE)?;
    shot.once(|| {
        pair.server.ep.close();
        Ok(())
    })??;
    let entry = pair.server.completion()?;
    check_eq!(entry.err, kernel::bindings::ECANCELED);
    pair.client.ended()?;
    drop(pair);
    Ok(buffer.region.close()?)
}

/// Closes a key when an event arrives.
struct Closer {
    waiter: Arc<Waiter>,
    key: Arc<Key>,
    armed: AtomicBool,
}

impl EqHandler for Closer {
    fn event(&self) {
        if self.armed.load(Ordering::Acquire) {
            // Waits for the revocation that has ended the connection.
            self.key.close();
        }
        self.waiter.wake();
    }
}

/// If the device refuses to deregister, connections end before the revocation returns. A handler of
/// that event may wait for the revocation.
fn revoke_awaited(station: &Station, shot: &mut Shot) -> Outcome {
    let buffer = Buffer::shared(&station.domain, PAGE)?;
    let key = Key::alloc(&buffer.region)?;
    key.assign(0, 64, KFI_REMOTE_READ)?;
    let closer = Arc::new(
        Closer {
            waiter: station::waiter()?,
            key: key.clone(),
            armed: AtomicBool::new(false),
        },
        GFP_KERNEL,
    )?;
    let eq = Eq::open(station.fabric(), 0, Some(closer.clone()))?;
    let cq = Cq::open(&station.domain, 16, 0, None)?;
    let ep = Endpoint::open(&station.domain, &attr(), None)?;
    ep.bind_eq(&eq)?;
    ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV)?;
    ep.enable()?;
    ep.connect(&station.addr(), &[])?;
    let event = station.request()?;
    let server = Side::open(station, &Wanted::default(), &[], event.request.as_ref())?;
    server.ep.accept(&[])?;
    check_eq!(server.event()?.kind, KFI_CONNECTED);
    let connected = || Ok((ep.state() == KFI_STATE_CONNECTED).then_some(()));
    closer.waiter.until(station::PATIENCE, connected)?;
    closer.armed.store(true, Ordering::Release);
    shot.once(|| key.revoke())??;
    check!(key.value().is_none());
    ep.close();
    server.ended()?;
    key.close();
    eq.close()?;
    cq.close()?;
    drop(server);
    Ok(buffer.region.close()?)
}

/// With an unread request, which is refused.
fn pep_close(station: &Station, shot: &mut Shot) -> Outcome {
    let waiter = station::waiter()?;
    let eq = Eq::open(station.fabric(), 0, Some(waiter.clone()))?;
    let addr = station.info().src_addr;
    let pep = kfabric::objects::pep::PassiveEp::open(station.fabric(), &eq, &addr, 0)?;
    pep.listen(0)?;
    let client = Side::open(station, &Wanted::default(), &[], None)?;
    client.ep.connect(&pep.local_addr(), &[])?;
    waiter.until(station::PATIENCE, || Ok((eq.waiting() != 0).then_some(())))?;
    shot.once(|| {
        pep.close();
        Ok(())
    })??;
    check_eq!(client.event()?.kind, KFI_CONN_ERROR);
    Ok(eq.close()?)
}
