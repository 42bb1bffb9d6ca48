// SPDX-License-Identifier: GPL-2.0
//! Enabling and disabling a disk: its block device is added and removed.

use core::sync::atomic::Ordering;
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kfabric::{
    pure::blk::{
        device::Limits,
        Geometry,
        PERSISTENT,
        READ_ONLY, //
    },
    sys::net::Net, //
};

use super::{
    connect::CONNECT_MS,
    flush::Flusher,
    one_sided::DEPTH_WITH_COMMITS,
    protocol::Kind,
    settings::default_queues,
    Disk,
    State, //
};
use crate::{
    errno,
    sys::{
        Block,
        Shape, //
    }, //
};

/// Time after which a request is late, in milliseconds: the block layer reports it, and a renewal of
/// the connections no longer waits for its answer.
pub(super) const TIMEOUT_MS: u32 = 30_000;

impl Disk {
    /// Connects, and adds the block device.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if the disk is enabled.
    /// - Errors of connecting and of adding the block device.
    pub(super) fn enable(this: &Arc<Self>) -> Result {
        let _switch = this.switch.lock();
        let mut run = this.run.lock();
        if this.state() != State::Idle {
            return Err(EBUSY);
        }
        let mut wanted = this.conf.lock().clone();
        if wanted.queues == 0 {
            wanted.queues = default_queues();
        }
        let queues = wanted.queues;
        run.conf = Some(wanted);
        run.net = Some(Net::current());
        run.welcome = None;
        run.since = None;
        run.protocol = Kind::OneSided;
        this.unflushed.forget();
        // If the connect fails, `run.net` is cleared: an idle disk holds no network namespace.
        let (connections, welcome) = match this.connect(&mut run, CONNECT_MS) {
            Ok(connected) => connected,
            Err(e) => {
                run.net = None;
                return Err(e);
            }
        };
        let Geometry {
            capacity,
            block_shift,
            chunk_shift,
        } = welcome.geometry;
        let commits = welcome.flags & PERSISTENT != 0;
        if commits {
            match Flusher::new(welcome.geometry, welcome.flags & READ_ONLY != 0) {
                Ok(flusher) => this.set_flusher(Some(flusher)),
                Err(e) => {
                    run.net = None;
                    return Err(e);
                }
            }
        }
        let block_size = 1 << block_shift;
        let limits = welcome.device.unwrap_or(Limits {
            physical: block_size,
            io_min: block_size,
            ..Limits::default()
        });
        let properties = run.protocol.properties();
        let shape = Shape {
            counts: this.counts.as_ptr(),
            capacity,
            block_size,
            // The block layer limits the length of a request, too.
            chunk: 1 << chunk_shift.min(30),
            piece: run.piece,
            queues: queues.into(),
            depth: if commits {
                DEPTH_WITH_COMMITS
            } else {
                properties.depth
            },
            timeout_ms: TIMEOUT_MS,
            physical: limits.physical,
            io_min: limits.io_min,
            io_opt: limits.io_opt,
            request: properties.len_max,
            discard: limits.discard,
            granularity: limits.granularity,
            zeroes: limits.zeroes,
            read_only: welcome.flags & READ_ONLY != 0,
            device: properties.messages,
            cache: limits.cache || commits,
            fua: limits.fua || commits,
            rotational: limits.rotational,
            commits,
        };
        // SAFETY: `leave` drops the reference after it has freed the block device.
        let block = match unsafe { Block::new(this.clone().into_raw().cast_mut().cast(), &shape) } {
            Ok(block) => block,
            Err(e) => {
                // SAFETY: `into_raw` made the reference above, and `Block::new` has not kept it.
                drop(unsafe { Arc::from_raw(Arc::as_ptr(this)) });
                this.set_flusher(None);
                run.net = None;
                return Err(e);
            }
        };
        run.block = Some(block);
        run.welcome = Some(welcome);
        block.name(&mut this.name.lock());
        Self::install(this, &mut run, connections, block);
        this.advance(State::Idle, State::Adding);
        Self::look(this, &run);
        // `add` sends the first requests, and the connection may be lost meanwhile.
        drop(run);
        if let Err(e) = block.add() {
            Self::leave(this, false);
            return Err(e);
        }
        if !this.advance(State::Adding, State::Live) {
            Self::leave(this, true);
            return Err(match this.disabling.load(Ordering::Acquire) {
                0 => errno::enotconn(),
                _ => errno::ecanceled(),
            });
        }
        Ok(())
    }

    /// Removes the block device. `added`: [`Block::add`] succeeded. Locking: caller holds `switch`.
    fn leave(this: &Arc<Self>, added: bool) {
        let Some(block) = this.begin_leave() else {
            return;
        };
        if added {
            // Writeback uses the connections that work, or fails.
            block.del();
        }
        let flusher = this.flusher();
        let rest = match &flusher {
            Some(flusher) if this.state() == State::Leaving => flusher.commit_rest(this, block),
            _ => Err(errno::enotconn()),
        };
        let mut run = this.run.lock();
        this.drop_connections(&mut run, this.verdict_of_loss());
        if let Some(flusher) = flusher {
            flusher.wait_idle();
            // Without a connection, no flush reports these writes any more.
            if flusher.has_rest() {
                pr_warn!(
                    "disk {}: writes that were not flushed may not be durable, errno {}\n",
                    this.called.as_str(),
                    -rest.err().unwrap_or(EIO).to_errno()
                );
            }
        }
        block.resume();
        run.block = None;
        run.welcome = None;
        run.net = None;
        this.set_flusher(None);
        *this.name.lock() = [0; 32];
        this.state.store(State::Idle as u32, Ordering::Release);
        drop(run);
        // SAFETY: `run.block` is `None`, so no copy remains. No request comes after `del`.
        unsafe { block.free() };
        // SAFETY: `enable` made this reference, and the block device that used it is freed.
        drop(unsafe { Arc::from_raw(Arc::as_ptr(this)) });
    }

    /// Makes the disk stop connecting. Returns its block device, if there is one.
    fn begin_leave(&self) -> Option<Block> {
        // Writeback needs connections, so a renewal ends first. Its connections may be lost already,
        // which only its end shows.
        while !self.give_up() {
            fsleep(Delta::from_millis(10));
        }
        self.run.lock().block
    }

    /// Makes the disk stop connecting, and wakes tasks that wait for a connection. Without effect in
    /// [`State::Renewing`], for which it returns false.
    fn give_up(&self) -> bool {
        // Another task may change the state between attempts, so repeat while one may apply.
        while !self.advance(State::Live, State::Leaving)
            && !self.advance(State::Lost, State::Dead)
            && !self.advance(State::Adding, State::Leaving)
            && matches!(self.state(), State::Live | State::Lost | State::Adding)
        {}
        self.waiter.wake();
        let asking = self.asking.lock().clone();
        if let Some(waiter) = asking {
            waiter.wake();
        }
        matches!(self.state(), State::Idle | State::Leaving | State::Dead)
    }

    /// Removes the block device, and ends the connections.
    pub(super) fn disable(this: &Arc<Self>) {
        // An enabling task may wait for a target, or for requests. `give_up` ends both waits.
        this.disabling.fetch_add(1, Ordering::AcqRel);
        this.give_up();
        let switch = this.switch.lock();
        Self::leave(this, true);
        drop(switch);
        this.disabling.fetch_sub(1, Ordering::AcqRel);
    }
}
