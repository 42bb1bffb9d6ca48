// SPDX-License-Identifier: GPL-2.0
//! The initiator's disk.
//!
//! ```text
//!   Idle ──enable──▶ Adding ──▶ Live ──connection lost──▶ Lost ──reconnected──▶ Live
//!                     │          │                         └─ctrl_loss_tmo, fenced, disable─▶ Dead
//!                     │          ├──disable──▶ Leaving ──connection lost──▶ Dead
//!                     │          └──key values used up──▶ Renewing ──connected──▶ Live
//!                     │                                    └─not connected──▶ Lost
//!                     └──connection lost──▶ Dead
//! ```
//!
//! In `Adding`, the task that enables the disk reads its partition table, and no task can remove
//! the disk. If the connection is lost then, the disk does not reconnect.
//!
//! In `Lost`, requests wait. They fail if they must fail fast (`REQ_FAILFAST_*`, as
//! dm-multipath's), or after `fast_io_fail_tmo`. In `Dead`, they fail. The next connection retries
//! the outstanding requests of a lost one. A block can be written twice. The target revokes the old
//! connection's keys before it accepts a new connection, so no late write overwrites newer data.
//!
//! In `Renewing`, the disk replaces connections that work. All requests wait, also those that must
//! fail fast, whatever the disk's timeouts are: first for the answers that are outstanding, then for the
//! connection. If the disk cannot connect for `connect::RENEW_MS`, the connections are lost. A task that disables the disk waits until `Renewing` has ended.

mod connect;
mod connection;
mod enable;
mod flush;
mod message;
mod one_sided;
mod protocol;
mod recover;
mod request;
mod settings;

use core::{
    mem,
    sync::atomic::{
        AtomicBool,
        AtomicU32,
        AtomicU64,
        Ordering, //
    }, //
};
use kernel::{
    impl_has_work,
    new_mutex,
    new_work,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};
use kfabric::{
    objects::waiter::Waiter,
    pure::blk::{
        cache::Unflushed,
        Name,
        Welcome,
        QUEUES_MAX,
        SESSION, //
    },
    sys::net::Net, //
};

use crate::{
    sys::{
        self,
        Block,
        QueueCounts, //
    },
    waiter, //
};
use flush::Flusher;
use protocol::{
    AnyConnection,
    Kind, //
};
use request::ConnectionSlot;
use settings::Conf;

/// State of a disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The disk is not enabled.
    Idle = 0,
    /// All connections work.
    Live = 1,
    /// A connection was lost, and the disk reconnects.
    Lost = 2,
    /// The disk is being removed, and its connections work.
    Leaving = 3,
    /// All requests fail.
    Dead = 4,
    /// The block device is being added, and its connections work.
    Adding = 5,
    /// The disk replaces its connections, because key values of one are nearly used up.
    Renewing = 6,
}

impl State {
    fn of(number: u32) -> Self {
        match number {
            1 => Self::Live,
            2 => Self::Lost,
            3 => Self::Leaving,
            4 => Self::Dead,
            5 => Self::Adding,
            6 => Self::Renewing,
            _ => Self::Idle,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Live => "live",
            Self::Lost => "connecting",
            Self::Leaving => "deleting",
            Self::Dead => "dead",
            Self::Adding => "adding",
            Self::Renewing => "renewing",
        }
    }
}

/// Run-time state of an enabled disk: block device, connections, reconnect epoch.
struct Run {
    block: Option<Block>,
    welcome: Option<Welcome>,
    /// Network namespace of the task that enabled the disk.
    net: Option<Net>,
    conf: Option<Conf>,
    connections: KVec<AnyConnection>,
    epoch: u32,
    /// Maximum length of contiguous memory in one segment, in bytes.
    piece: u32,
    /// When the disk lost the last connections that served a request.
    since: Option<Instant<Monotonic>>,
    /// Time of the last change of capacity.
    resized: Option<Instant<Monotonic>>,
    /// The protocol of the export.
    protocol: Kind,
}

/// A disk: one folder of the initiator in configfs.
#[pin_data]
pub(crate) struct Disk {
    /// Name of the disk's folder.
    called: Name,
    session: [u8; SESSION],
    /// Writes that a block-backed export has acknowledged and may lose.
    unflushed: Arc<Unflushed>,
    /// Marks and flushes, if the export is persistent memory.
    #[pin]
    flusher: Mutex<Option<Arc<Flusher>>>,
    state: AtomicU32,
    /// The present connections have completed a request.
    has_completed: AtomicBool,
    /// A request was not done because its connection was lost.
    has_lost: AtomicBool,
    /// Capacity that the target has announced last; 0 if it has not.
    capacity: AtomicU64,
    slots: KVec<Arc<ConnectionSlot>>,
    /// Request counters, per queue.
    counts: QueueCounts,
    /// Number of reconnects after a loss.
    reconnects: AtomicU32,
    /// Number of times that the disk has replaced connections that worked.
    renewals: AtomicU32,
    /// Number of tasks that disable the disk.
    disabling: AtomicU32,
    /// The completion waiter of the connection that is being made.
    #[pin]
    asking: Mutex<Option<Arc<Waiter>>>,
    /// Held while a task enables or disables the disk, which may take minutes.
    #[pin]
    switch: Mutex<()>,
    /// Changed with `switch` held as well, so that a reader does not wait for `switch`.
    #[pin]
    conf: Mutex<Conf>,
    /// Held while connections are made or ended.
    #[pin]
    run: Mutex<Run>,
    /// Name of the block device in `/dev`; empty if it does not exist.
    #[pin]
    name: Mutex<[u8; 32]>,
    /// Wakes the task that waits between two attempts to reconnect.
    waiter: Arc<Waiter>,
    #[pin]
    work: Work<Disk>,
}

impl_has_work! {
    impl HasWork<Self> for Disk { self.work }
}

impl WorkItem for Disk {
    type Pointer = Arc<Disk>;

    fn run(this: Arc<Disk>) {
        Self::recover(&this);
    }
}

impl Disk {
    /// Makes a disk in state `Idle`.
    pub(crate) fn new(called: Name) -> Result<Arc<Self>> {
        let conf = Conf::new();
        let run = Run {
            block: None,
            welcome: None,
            net: None,
            conf: None,
            connections: KVec::new(),
            epoch: 0,
            piece: 0,
            since: None,
            resized: None,
            protocol: Kind::OneSided,
        };
        let mut slots = KVec::with_capacity(QUEUES_MAX.into(), GFP_KERNEL)?;
        for _ in 0..QUEUES_MAX {
            slots.push(ConnectionSlot::new()?, GFP_KERNEL)?;
        }
        let waiter = waiter::waiter()?;
        let counts = QueueCounts::new(QUEUES_MAX.into())?;
        let unflushed = Arc::new(Unflushed::default(), GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                called,
                session: sys::random(),
                unflushed,
                flusher <- new_mutex!(None, "kfblk_flusher"),
                state: AtomicU32::new(State::Idle as u32),
                has_completed: AtomicBool::new(false),
                has_lost: AtomicBool::new(false),
                capacity: AtomicU64::new(0),
                slots,
                counts,
                reconnects: AtomicU32::new(0),
                renewals: AtomicU32::new(0),
                disabling: AtomicU32::new(0),
                asking <- new_mutex!(None, "kfblk_asking"),
                switch <- new_mutex!((), "kfblk_disk_switch"),
                conf <- new_mutex!(conf, "kfblk_conf"),
                run <- new_mutex!(run, "kfblk_run"),
                name <- new_mutex!([0; 32], "kfblk_name"),
                waiter,
                work <- new_work!("Disk::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the disk's state.
    fn state(&self) -> State {
        State::of(self.state.load(Ordering::Acquire))
    }

    fn advance(&self, from: State, to: State) -> bool {
        let (from, to) = (from as u32, to as u32);
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Returns the slot that holds a queue's connection.
    fn slot(&self, queue: u32) -> Option<&Arc<ConnectionSlot>> {
        self.slots.get(queue as usize)
    }

    /// Returns the writes that a block-backed export has acknowledged and may lose.
    fn unflushed(&self) -> &Arc<Unflushed> {
        &self.unflushed
    }

    /// Returns the marks and flushes, if the export is persistent memory.
    fn flusher(&self) -> Option<Arc<Flusher>> {
        self.flusher.lock().clone()
    }

    /// Sets the marks and flushes of an enabled disk.
    fn set_flusher(&self, flusher: Option<Arc<Flusher>>) {
        let before = mem::replace(&mut *self.flusher.lock(), flusher);
        drop(before);
    }

    /// Records that requests have completed, or were lost with their connection. Context: any.
    fn record(&self, completed: bool, lost: bool) {
        // Mostly the flag is set already. A read avoids writes to a shared cache line.
        if completed && !self.has_completed.load(Ordering::Relaxed) {
            self.has_completed.store(true, Ordering::Relaxed);
        }
        if lost {
            self.has_lost.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the present connections have served requests. Context: any.
    fn has_served(&self) -> bool {
        self.has_completed.load(Ordering::Relaxed)
    }

    /// Returns whether the ended connections failed requests and completed none.
    fn is_stuck(&self) -> bool {
        self.has_lost.load(Ordering::Relaxed) && !self.has_completed.load(Ordering::Relaxed)
    }

    /// Begins to replace the connections, because key values of one are used up or nearly so. Returns
    /// whether the disk is [`State::Renewing`]: the caller's request is sent by the next connection.
    /// Context: any.
    ///
    /// Returns false if the disk is in another state, or if its connections have not completed a
    /// request: the next ones would do no better.
    fn renew(this: &Arc<Self>) -> bool {
        if this.has_served() && this.advance(State::Live, State::Renewing) {
            Self::look_again(this);
        }
        this.state() == State::Renewing
    }

    /// Reports that a connection is lost or does not answer. Without effect in [`State::Renewing`],
    /// which ends only after the connections have been closed. Context: any.
    fn lost(this: &Arc<Self>) {
        if this.advance(State::Live, State::Lost)
            || this.advance(State::Leaving, State::Dead)
            || this.advance(State::Adding, State::Dead)
        {
            Self::look_again(this);
        }
    }

    /// Queues the disk's work. Context: any.
    fn look_again(this: &Arc<Self>) {
        // Queued work needs no second entry: it reads the state when it runs.
        let _ = sys::disks().enqueue(this.clone());
    }

    /// Records the capacity that the target announces, and queues the disk's work. Context: any.
    fn resized(this: &Arc<Self>, capacity: u64) {
        this.capacity.store(capacity, Ordering::Release);
        // Queued work needs no second entry: it reads the capacity when it runs.
        let _ = sys::disks().enqueue(this.clone());
    }
}
