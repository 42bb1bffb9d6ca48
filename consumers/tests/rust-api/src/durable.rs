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
    ktap::Outcome,
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

/// Number of handlers that sleep at once: as many commits as kverbs serves at once, and more.
const SLEEPERS: usize = 6;

/// What the sleeping handlers share with the test.
#[pin_data]
struct Shared {
    /// Number of handlers that have begun to sleep.
    sleeping: AtomicU32,
    /// Number of handlers that have returned without a timeout.
    woken: AtomicU32,
    /// 1: the handlers may return.
    over: AtomicU32,
    waiter: Arc<Waiter>,
    /// The endpoint that the first handler closes.
    #[pin]
    victim: Mutex<Option<Arc<Endpoint>>>,
}

/// Handler that sleeps until the test is over. The first one closes the endpoint of the test.
struct Sleeper {
    shared: Arc<Shared>,
    /// The waiter of the endpoint's queues.
    side: Arc<Waiter>,
}

impl CqHandler for Sleeper {
    fn completed(&self) {
        self.side.wake();
    }

    fn completed_sleeping(&self) {
        let shared = &*self.shared;
        let victim = shared.victim.lock().take();
        shared.sleeping.fetch_add(1, Ordering::AcqRel);
        shared.waiter.wake();
        let all = || {
            let sleeping = shared.sleeping.load(Ordering::Acquire) as usize;
            Ok((sleeping == SLEEPERS).then_some(()))
        };
        let over = || Ok((shared.over.load(Ordering::Acquire) != 0).then_some(()));
        let slept = shared.waiter.until(PATIENCE, all);
        if let Some(endpoint) = victim {
            endpoint.close();
            shared.over.store(1, Ordering::Release);
            shared.waiter.wake();
        }
        let slept = slept.and_then(|()| shared.waiter.until(PATIENCE, over));
        self.side.wake();
        if slept.is_ok() {
            shared.woken.fetch_add(1, Ordering::AcqRel);
        }
        shared.waiter.wake();
    }
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

fn handlers_close(station: &Station) -> Outcome {
    // Another provider completes durable writes inside the post.
    if station.domain.attr().durable != KFI_REACH_ASSISTED {
        return Ok(());
    }
    let here = Buffer::local(&station.domain, 4096)?;
    let there = Buffer::shared(&station.domain, 4096)?;
    let key = Key::alloc(&there.region)?;
    key.assign(0, 4096, REMOTE)?;
    let last = Pair::new(station)?;
    let waiter = station::waiter()?;
    let victim = Some(last.client.ep.clone());
    let shared = Arc::pin_init(
        pin_init!(Shared {
            sleeping: AtomicU32::new(0),
            woken: AtomicU32::new(0),
            over: AtomicU32::new(0),
            waiter,
            victim <- new_mutex!(victim),
        }),
        GFP_KERNEL,
    )?;
    let mut pairs = KVec::new();
    for _ in 0..SLEEPERS {
        let side = station::waiter()?;
        let sleeper = Sleeper {
            shared: shared.clone(),
            side: side.clone(),
        };
        let handler = Arc::new(sleeper, GFP_KERNEL)?;
        let client = Side::with_handler(station, &Wanted::default(), &[], None, handler, side)?;
        pairs.push(Pair::join(station, client, &[])?, GFP_KERNEL)?;
    }
    for pair in &pairs {
        write(&pair.client, 1, &here, &key)?;
    }
    let sleeping = || Ok((shared.sleeping.load(Ordering::Acquire) > 0).then_some(()));
    shared.waiter.until(PATIENCE, sleeping)?;
    // While handlers sleep, a durable write of another endpoint completes.
    let posted = write(&last.client, 2, &here, &key);
    let entry = posted.and_then(|()| last.client.completion());
    let woken = || {
        let woken = shared.woken.load(Ordering::Acquire) as usize;
        Ok((woken == SLEEPERS).then_some(()))
    };
    let woken = shared.waiter.until(2 * PATIENCE, woken);
    // Handlers that still sleep do not see the pairs' end.
    shared.over.store(1, Ordering::Release);
    shared.waiter.wake();
    woken?;
    for pair in &pairs {
        let done = pair.client.completion()?;
        check_eq!(done.context, 1);
        check_eq!(done.err, bindings::EOPNOTSUPP);
    }
    check!(shared.victim.lock().is_none());
    // The close of the endpoint may have been earlier than the write.
    if let Ok(entry) = entry {
        check!(matches!(
            entry.err,
            bindings::EOPNOTSUPP | bindings::ECANCELED
        ));
    }
    Ok(())
}
