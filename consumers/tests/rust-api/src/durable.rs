// SPDX-License-Identifier: GPL-2.0
//! Tests of completions of durable writes: their handlers may sleep, as those of other operations.
//!
//! The memory of this module is not persistent, so each durable write fails.

use core::sync::atomic::{
    AtomicU32,
    Ordering, //
};
use kernel::{
    bindings,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kfabric::{
    ep::{
        Endpoint,
        Post, //
    },
    key::Key,
    objects::{
        cq::CqHandler,
        waiter::Waiter, //
    },
    op::OpKind,
    uapi::*,
};

use crate::{
    buffer::{
        Buffer,
        REMOTE, //
    },
    check, check_eq,
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
    station::{
        self,
        Station,
        PATIENCE, //
    },
    Test,
};

/// The tests of this file.
pub(crate) const TESTS: &[Test] = &[(
    "handlers_of_durable_writes_close_another_endpoint",
    handlers_close,
)];

/// Number of handlers that sleep at once: as many commits as kverbs serves at once, and more. One of them
/// is the victim's.
const SLEEPERS: usize = 6;

/// What the sleeping handlers share with the test.
#[pin_data]
struct Shared {
    /// Number of handlers that have begun to sleep.
    sleeping: AtomicU32,
    /// 1: a handler closes the victim.
    closing: AtomicU32,
    /// 1: the victim is closed.
    closed: AtomicU32,
    /// 1: the handlers may return.
    over: AtomicU32,
    /// Number of handlers that have returned without a timeout.
    woken: AtomicU32,
    waiter: Arc<Waiter>,
    /// The endpoint that the first handler closes.
    #[pin]
    victim: Mutex<Option<Arc<Endpoint>>>,
}

impl Shared {
    fn new() -> Result<Arc<Self>> {
        let waiter = station::waiter()?;
        Arc::pin_init(
            pin_init!(Self {
                sleeping: AtomicU32::new(0),
                closing: AtomicU32::new(0),
                closed: AtomicU32::new(0),
                over: AtomicU32::new(0),
                woken: AtomicU32::new(0),
                waiter,
                victim <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )
    }

    fn set(&self, flag: &AtomicU32) {
        flag.store(1, Ordering::Release);
        self.waiter.wake();
    }

    fn add(&self, count: &AtomicU32) {
        count.fetch_add(1, Ordering::AcqRel);
        self.waiter.wake();
    }

    /// Waits until a counter or flag is at least `n`.
    fn reaches(&self, count: &AtomicU32, n: usize) -> Result {
        let reached = || Ok((count.load(Ordering::Acquire) as usize >= n).then_some(()));
        self.waiter.until(PATIENCE, reached)
    }
}

/// Handler that sleeps until the test is over. The first one closes the victim, whose handler sleeps
/// until then.
struct Sleeper {
    shared: Arc<Shared>,
    /// The waiter of the endpoint's queues.
    side: Arc<Waiter>,
    is_victim: bool,
}

impl Sleeper {
    fn sleep(&self) -> Result {
        let shared = &*self.shared;
        let victim = match self.is_victim {
            true => None,
            false => shared.victim.lock().take(),
        };
        shared.add(&shared.sleeping);
        shared.reaches(&shared.sleeping, SLEEPERS)?;
        if let Some(endpoint) = victim {
            shared.set(&shared.closing);
            endpoint.close();
            shared.set(&shared.closed);
        }
        let end = match self.is_victim {
            true => &shared.closing,
            false => &shared.over,
        };
        shared.reaches(end, 1)
    }
}

impl CqHandler for Sleeper {
    fn completed(&self) {
        self.side.wake();
    }

    fn completed_sleeping(&self) {
        let slept = self.sleep();
        self.side.wake();
        if slept.is_ok() {
            self.shared.add(&self.shared.woken);
        }
    }
}

/// Returns connected endpoints, the client's with a sleeping handler.
fn sleeping_pair(
    station: &Station,
    shared: &Arc<Shared>,
    is_victim: bool,
) -> Result<Pair, Failure> {
    let side = station::waiter()?;
    let sleeper = Sleeper {
        shared: shared.clone(),
        side: side.clone(),
        is_victim,
    };
    let handler = Arc::new(sleeper, GFP_KERNEL)?;
    let client = Side::with_handler(station, &Wanted::default(), &[], None, handler, side)?;
    Pair::join(station, client, &[])
}

/// Posts a durable write.
fn write(side: &Side, context: u64, here: &Buffer, key: &Key) -> Result {
    let value = key.value().ok_or(EINVAL)?;
    side.ep.post(Post {
        flags: KFI_COMMIT_COMPLETE,
        remote_addr: value.remote_addr,
        key: value.key,
        ..plain(OpKind::Write, context, here.segs(OpKind::Write, 0, 64)?)
    })
}

/// Writes on an endpoint of its own while the handlers of the others sleep.
fn write_meanwhile(shared: &Shared, other: &Side, here: &Buffer, key: &Key) -> Result<CqEntry> {
    shared.reaches(&shared.closed, 1)?;
    write(other, 2, here, key)?;
    other.completion()
}

fn handlers_close(station: &Station) -> Outcome {
    // Another provider completes durable writes inside the post.
    if station.domain.attr().durable != KFI_REACH_ASSISTED {
        return Ok(());
    }
    let here = Buffer::local(&station.domain, 4096)?;
    let there = Buffer::shared(&station.domain, 4096)?;
    let key = Key::alloc(&there.region)?;
    key.assign(0, 4096, REMOTE)?;
    let other = Pair::new(station)?;
    let shared = Shared::new()?;
    let mut pairs = KVec::new();
    for n in 0..SLEEPERS {
        pairs.push(sleeping_pair(station, &shared, n == 0)?, GFP_KERNEL)?;
    }
    *shared.victim.lock() = Some(pairs[0].client.ep.clone());
    for pair in &pairs {
        write(&pair.client, 1, &here, &key)?;
    }
    let meanwhile = write_meanwhile(&shared, &other.client, &here, &key);
    // Handlers that still sleep do not see the pairs' end.
    shared.set(&shared.over);
    shared.reaches(&shared.woken, SLEEPERS)?;
    let done = meanwhile?;
    check_eq!(done.context, 2);
    check_eq!(done.err, bindings::EOPNOTSUPP);
    for pair in &pairs {
        let done = pair.client.completion()?;
        check_eq!(done.context, 1);
        check_eq!(done.err, bindings::EOPNOTSUPP);
    }
    check!(shared.victim.lock().is_none());
    Ok(())
}
