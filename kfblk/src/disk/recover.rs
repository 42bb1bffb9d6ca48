// SPDX-License-Identifier: GPL-2.0
//! The work of a disk: reconnects after a lost connection, replaces connections whose key values are
//! nearly used up, and applies an announced capacity.

use core::sync::atomic::Ordering;
use kernel::{
    bindings,
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use kfabric::{
    pure::blk::{
        self,
        Next,
        Welcome, //
    },
    sys::NoIo, //
};

use super::{
    connect::{
        CONNECT_MS,
        RENEW_MS, //
    },
    protocol::AnyConnection,
    settings::text,
    Disk,
    Run,
    State, //
};
use crate::sys::{
    Block,
    Log,
    Verdict, //
};

/// Minimum time between two changes of a disk's capacity, in milliseconds.
const RESIZE_MS: u32 = 1000;
/// Time between two attempts to replace connections, in milliseconds.
const AGAIN_MS: i64 = 200;

/// Returns whether the target would refuse each further attempt to connect, too.
fn is_final(e: Error) -> bool {
    matches!(e.to_errno().unsigned_abs(), blk::REVOKED | blk::CHANGED)
}

impl Disk {
    /// Runs the disk's work: applies an announced capacity, and replaces connections, reconnects or
    /// gives up.
    pub(super) fn recover(this: &Arc<Self>) {
        let _no_io = NoIo::begin();
        let mut run = this.run.lock();
        let Some(block) = run.block else { return };
        this.resize(&mut run, block);
        let renewal = match this.state() {
            State::Renewing => match Self::replace(this, &mut run, block) {
                Ok(()) => return,
                Err(e) => Some(e),
            },
            State::Lost | State::Dead => {
                this.drop_connections(&mut run, this.verdict_of_loss());
                None
            }
            _ => return,
        };
        // Time counts until a request completes: connections that serve no request are no success.
        // Then the first attempt waits, too.
        let stuck = renewal.is_none() && this.is_stuck();
        if !stuck {
            run.since = None;
            if this.state() == State::Lost {
                let event = match renewal {
                    Some(_) => "connections could not be replaced, reconnecting",
                    None => "connection lost, reconnecting",
                };
                this.log(&run, event);
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
        let mut err = match renewal {
            Some(e) => e.to_errno().unsigned_abs(),
            None if stuck => bindings::EIO,
            None => 0,
        };
        let mut why = None;
        while this.state() == State::Lost {
            // `give_up` leaves a renewal alone, and this loop may follow one.
            if this.is_disabled() {
                this.advance(State::Lost, State::Dead);
                break;
            }
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
                    let ends = || this.state() != State::Lost || this.is_disabled();
                    if this.waiter.until(ms, || Ok(ends().then_some(()))).is_ok() {
                        continue;
                    }
                }
            }
            match this.connect(&mut run, CONNECT_MS) {
                Ok(connected) => {
                    block.fail_no_more();
                    Self::begin_use(this, &mut run, block, connected);
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

    /// Replaces the connections of a disk in [`State::Renewing`]. Requests are held back meanwhile, and
    /// those that stay outstanding are sent again.
    ///
    /// # Errors
    ///
    /// The error of the last attempt. The disk is then in [`State::Lost`], has no connections, and
    /// requests are still held back.
    fn replace(this: &Arc<Self>, run: &mut Run, block: Block) -> Result {
        this.drop_connections(run, Verdict::Renewed);
        let since = Instant::<Monotonic>::now();
        let connected = loop {
            let left = RENEW_MS - since.elapsed().as_millis();
            match this.connect(run, left) {
                // The device or memory may be exhausted for a short time only.
                Err(e) if !is_final(e) && left > 0 => fsleep(Delta::from_millis(AGAIN_MS)),
                ended => break ended,
            }
        }
        .inspect_err(|_| {
            this.advance(State::Renewing, State::Lost);
        })?;
        Self::begin_use(this, run, block, connected);
        // The next loss of a connection is a first one.
        run.since = None;
        this.advance(State::Renewing, State::Live);
        this.renewals.fetch_add(1, Ordering::Relaxed);
        if Log::Renewal.may() {
            pr_info!(
                "disk {}: connections replaced, most of their key values were used up\n",
                this.called.as_str()
            );
        }
        Self::look(this, run);
        block.resume();
        Ok(())
    }

    /// Makes requests use new connections.
    fn begin_use(
        this: &Arc<Self>,
        run: &mut Run,
        block: Block,
        (connections, welcome): (KVec<AnyConnection>, Welcome),
    ) {
        if run.protocol.properties().resizes {
            this.capacity
                .store(welcome.geometry.capacity, Ordering::Release);
            this.resize(run, block);
        }
        run.welcome = Some(welcome);
        Self::install(this, run, connections, block);
    }

    /// Returns whether a task disables the disk.
    pub(super) fn is_disabled(&self) -> bool {
        self.disabling.load(Ordering::Acquire) != 0
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
