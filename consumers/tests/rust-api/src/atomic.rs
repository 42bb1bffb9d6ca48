// SPDX-License-Identifier: GPL-2.0
//! Tests of posts in atomic context.

use core::sync::atomic::{
    AtomicI32,
    AtomicU64,
    Ordering, //
};
use kernel::{
    impl_has_hr_timer,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    },
    time::{
        hrtimer::{
            HrTimer,
            HrTimerCallback,
            HrTimerCallbackContext,
            HrTimerPointer,
            HrTimerRestart,
            RelativeMode, //
        },
        Delta,
        Monotonic, //
    }, //
};
use kfabric::{
    ep::{
        Endpoint,
        LocalMem,
        Post, //
    },
    key::{
        Key,
        Region, //
    },
    new_irqlock,
    op::OpKind,
    sys::IrqLock,
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
        Pair, //
    },
    station::Station,
    Test,
};

/// The tests of this file.
pub(crate) const TESTS: &[Test] = &[
    ("post_under_spin_lock", under_lock),
    ("post_from_timer", from_timer),
];

fn under_lock(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let (here, there) = (
        Buffer::local(&station.domain, 8192)?,
        Buffer::shared(&station.domain, 8192)?,
    );
    let key = Key::alloc(&there.region)?;
    let value = key.assign(0, 8192, REMOTE)?;
    here.fill(0, 5000, 8);
    let lock = KBox::pin_init(new_irqlock!(0_u32, "kfi_test_rust_api_post"), GFP_KERNEL)?;
    let lock: &IrqLock<u32> = &lock;
    let posted: Result = {
        // Interrupts are disabled until the end of the block.
        let mut count = lock.lock();
        let mut post = |side: &Endpoint, post| {
            *count += 1;
            side.post(post)
        };
        (|| {
            let segs = here.segs(OpKind::Recv, 6000, 100)?;
            post(&pair.server.ep, plain(OpKind::Recv, 1, segs))?;
            let segs = here.segs(OpKind::Send, 0, 100)?;
            post(&pair.client.ep, plain(OpKind::Send, 2, segs))?;
            let write = Post {
                remote_addr: value.remote_addr,
                key: value.key,
                ..plain(OpKind::Write, 3, here.segs(OpKind::Write, 0, 5000)?)
            };
            post(&pair.client.ep, write)?;
            post(&pair.server.ep, plain(OpKind::Recv, 4, LocalMem::new()))?;
            let inject = Post {
                flags: KFI_INJECT,
                ..plain(OpKind::Send, 5, LocalMem::new())
            };
            post(&pair.client.ep, inject)
        })()
    };
    posted?;
    check_eq!(*lock.lock(), 5);
    pair.client.done(2)?;
    pair.client.done(3)?;
    pair.server.done(1)?;
    pair.server.done(4)?;
    check!(here.has(6000, 100, 8));
    check!(there.has(0, 5000, 8));
    Ok(())
}

/// Number of sends that the timer posts.
const SENDS: u64 = 50;

/// Posts a send each time it expires, in interrupt context.
#[pin_data]
struct Ticker {
    ep: Arc<Endpoint>,
    region: Arc<Region>,
    posted: AtomicU64,
    /// Errno of a failed post, other than for a full queue.
    failed: AtomicI32,
    #[pin]
    timer: HrTimer<Self>,
}

impl Ticker {
    fn post(&self, context: u64) -> Result {
        let mut segs = LocalMem::new();
        segs.push(OpKind::Send, self.region.clone(), 0, 8)?;
        self.ep.post(plain(OpKind::Send, context, segs))
    }
}

impl HrTimerCallback for Ticker {
    type Pointer<'a> = Arc<Self>;

    fn run(this: ArcBorrow<'_, Self>, mut ctx: HrTimerCallbackContext<'_, Self>) -> HrTimerRestart {
        let context = this.posted.load(Ordering::Relaxed);
        match this.post(context) {
            Ok(()) => this.posted.store(context + 1, Ordering::Relaxed),
            Err(e) if e == EAGAIN => {}
            Err(e) => {
                this.failed.store(e.to_errno(), Ordering::Relaxed);
                return HrTimerRestart::NoRestart;
            }
        }
        if this.posted.load(Ordering::Relaxed) >= SENDS {
            return HrTimerRestart::NoRestart;
        }
        ctx.forward_now(Delta::from_millis(1));
        HrTimerRestart::Restart
    }
}

impl_has_hr_timer! {
    impl HasHrTimer<Self> for Ticker {
        mode: RelativeMode<Monotonic>, field: self.timer
    }
}

fn from_timer(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let buffer = Buffer::local(&station.domain, 4096)?;
    // The server sends from here and the client from the timer, at the same time.
    for context in 0..SENDS {
        pair.server.recv(context, &buffer, 64, 8)?;
        pair.client.recv(1000 + context, &buffer, 128, 8)?;
    }
    let (ep, region) = (pair.client.ep.clone(), buffer.region.clone());
    let ticker = Arc::pin_init(
        pin_init!(Ticker {
            ep,
            region,
            posted: AtomicU64::new(0),
            failed: AtomicI32::new(0),
            timer <- HrTimer::new(),
        }),
        GFP_KERNEL,
    )?;
    // The drop of the handle waits for the timer.
    let handle = ticker.clone().start(Delta::from_millis(1));
    for context in 0..SENDS {
        pair.server.send(1000 + context, &buffer, 0, 8)?;
    }
    let (mut sent, mut received) = (0, 1000);
    while sent < SENDS || received < 1000 + SENDS {
        let entry = pair.client.completion()?;
        check_eq!(entry.err, 0);
        if entry.context < 1000 {
            check_eq!(entry.context, sent);
            sent += 1;
        } else {
            check_eq!(entry.context, received);
            received += 1;
        }
        check_eq!(ticker.failed.load(Ordering::Relaxed), 0);
    }
    drop(handle);
    check_eq!(ticker.posted.load(Ordering::Relaxed), SENDS);
    check!(pair.client.poll().is_none());
    Ok(())
}
