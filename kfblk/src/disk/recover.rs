// SPDX-License-Identifier: GPL-2.0
//! The work of a disk: reconnects after a lost connection, and applies an announced capacity.

use core::sync::atomic::Ordering;
use kernel::{
    bindings,
    prelude::*,
    sync::Arc,
    time::Instant, //
};
use kfabric::{
    pure::blk::{
        self,
        Next, //
    },
    sys::NoIo, //
};

use super::{
    settings::text,
    Disk,
    Run,
    State, //
};
use crate::sys::{
    Block,
    Log, //
};

/// Minimum time between two changes of a disk's capacity, in milliseconds.
const RESIZE_MS: u32 = 1000;

impl Disk {
    /// Runs the disk's work: applies an announced capacity, and reconnects or gives up.
    pub(super) fn recover(this: &Arc<Self>) {
        let _no_io = NoIo::begin();
        let mut run = this.run.lock();
        let Some(block) = run.block else { return };
        this.resize(&mut run, block);
        if !matches!(this.state(), State::Lost | State::Dead) {
            return;
        }
        this.drop_connections(&mut run);
        // Time counts until a request completes: connections that serve no request are no success.
        // Then the first attempt waits, too.
        let stuck = this.is_stuck();
        if !stuck {
            run.since = None;
            if this.state() == State::Lost {
                this.log(&run, "connection lost, reconnecting");
            }
        }
        let since = *run.since.get_or_insert_with(Instant::now);
        let fail_tmo = run.conf.as_ref().map_or(-1, |conf| conf.fail_tmo);
        if let (State::Lost, Ok(tmo)) = (this.state(), u64::try_from(fail_tmo)) {
            // CAST: The clock is monotonic, so the difference is not negative.
            let ms = since.elapsed().as_millis() as u64;
            block.fail_in(tmo.saturating_mul(1000).saturating_sub(ms));
        }
        // From here on no request waits for this work: each is parked, or fails.
        block.resume();
        let mut err = if stuck { bindings::EIO } else { 0 };
        let mut why = None;
        while this.state() == State::Lost {
            let Some(conf) = &run.conf else { break };
            // CAST: The clock is monotonic, so the difference is not negative.
            let ms = since.elapsed().as_millis() as u64;
            match blk::next(conf.loss_tmo, conf.delay, ms, err) {
                Next::GiveUp => {
                    why = this.advance(State::Lost, State::Dead).then_some(err);
                    break;
                }
                Next::Retry(0) => {}
                Next::Retry(ms) => {
                    let ms = u32::try_from(ms).unwrap_or(u32::MAX);
                    let gone = || Ok((this.state() != State::Lost).then_some(()));
                    if this.waiter.until(ms, gone).is_ok() {
                        break;
                    }
                }
            }
            match this.connect(&mut run) {
                Ok((connections, welcome)) => {
                    if run.protocol.properties().resizes {
                        this.capacity
                            .store(welcome.geometry.capacity, Ordering::Release);
                        this.resize(&mut run, block);
                    }
                    run.welcome = Some(welcome);
                    block.fail_no_more();
                    Self::install(this, &mut run, connections, block);
                    this.advance(State::Lost, State::Live);
                    this.reconnects.fetch_add(1, Ordering::Relaxed);
                    if !stuck {
                        this.log(&run, "reconnected");
                    }
                    Self::look(this, &run);
                    break;
                }
                Err(e) => err = e.to_errno().unsigned_abs(),
            }
        }
        if this.state() == State::Dead {
            let why = match why {
                Some(blk::REVOKED) => ": the client is fenced",
                Some(blk::CHANGED) => ": the export has changed",
                Some(_) => ": ctrl_loss_tmo is over",
                None => "",
            };
            pr_warn!(
                "disk {}: it has lost its target for good{}\n",
                this.called.as_str(),
                why
            );
        }
        block.kick();
    }

    /// Logs an event of the disk. The rate of such lines is limited.
    fn log(&self, run: &Run, event: &str) {
        if let (Some(conf), true) = (&run.conf, Log::Disk.may()) {
            pr_warn!(
                "disk {}: {} (export {} at {} port {})\n",
                self.called.as_str(),
                event,
                text(&conf.subsystem),
                text(&conf.traddr),
                text(&conf.trsvcid)
            );
        }
    }

    /// Sets the capacity that the target has announced last. Each change is an event for every
    /// program that watches disks, so there is at most one per [`RESIZE_MS`], even from a hostile
    /// target.
    fn resize(&self, run: &mut Run, block: Block) {
        let announced = self.capacity.load(Ordering::Acquire);
        if announced == 0 {
            return;
        }
        let passed = run.resized.map_or(i64::MAX, |at| at.elapsed().as_millis());
        if announced != block.capacity() && passed < i64::from(RESIZE_MS) {
            return block.look_in(RESIZE_MS);
        }
        let capacity = self.capacity.swap(0, Ordering::AcqRel);
        if capacity != 0 && capacity != block.capacity() {
            run.resized = Some(Instant::now());
            block.resize(capacity);
        }
    }
}
