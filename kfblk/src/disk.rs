// SPDX-License-Identifier: GPL-2.0
//! The importing end: a disk.
//!
//! ```text
//!   Idle ──enable──▶ Adding ──▶ Live ──connection lost──▶ Lost ──made again──▶ Live
//!                     │          │                         └──ctrl_loss_tmo, fenced, disable──▶ Dead
//!                     │          └──disable──▶ Leaving ──connection lost──▶ Dead
//!                     └──connection lost──▶ Dead
//! ```
//!
//! While it is added, whoever adds it reads it, and nobody could remove it: a connection that is lost then
//! is not waited for.
//!
//! While it is lost, requests wait, unless they are to fail fast (`REQ_FAILFAST_*`, as dm-multipath's), or
//! `fast_io_fail_tmo` is over; while it is dead, they fail. What a lost connection had on its way
//! is tried again by the next one: a request that had been done is done twice, which for a block is the
//! same, and the target has ended the old connection's keys before it lets a new one in, so that
//! nothing late lands upon what came after.

pub(crate) mod lane;
pub(crate) mod message;
pub(crate) mod request;

use core::sync::atomic::{
    AtomicBool,
    AtomicU32,
    AtomicU64,
    Ordering, //
};
use kernel::{
    bindings,
    fmt::Write,
    impl_has_work,
    new_mutex,
    new_work,
    page::PAGE_SIZE,
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
    auth::AuthKey,
    cq::CqHandler,
    fabric::{
        Domain,
        Fabric, //
    },
    net::Net,
    object::name_str,
    pure::blk::{
        self,
        cache::Unflushed,
        device::{
            self,
            Limits, //
        },
        Geometry,
        Hello,
        Name,
        Next,
        Welcome,
        QUEUES_MAX,
        READ_ONLY,
        SESSION, //
    },
    registry,
    sys::NoIo, //
};

use crate::{
    config::{
        self,
        Item,
        Text, //
    },
    hook::{
        Hook,
        Link, //
    },
    sys::{
        self,
        Block,
        Shape, //
    },
};
use lane::Lane;
use request::{
    Requests,
    Slot, //
};

/// Queues of one that did not say, at most.
const QUEUES: u32 = 4;
/// Requests of a queue.
pub(crate) const DEPTH: u32 = 128;
/// After how long a request is asked about, in milliseconds.
const TIMEOUT_MS: u32 = 30_000;

/// Bytes of a page.
// CAST: Few.
const PAGE: u32 = PAGE_SIZE as u32;

/// How long all connections of a disk may take to be made, in milliseconds.
const CONNECT_MS: i64 = 120_000;

/// Where a disk is in its life.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// There is none.
    Idle = 0,
    /// It works.
    Live = 1,
    /// The connection is being made again.
    Lost = 2,
    /// It works, and is being removed.
    Leaving = 3,
    /// Nothing works any more.
    Dead = 4,
    /// It works, and is just being shown to everybody.
    Adding = 5,
}

impl State {
    fn of(number: u32) -> Self {
        match number {
            1 => Self::Live,
            2 => Self::Lost,
            3 => Self::Leaving,
            4 => Self::Dead,
            5 => Self::Adding,
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
        }
    }
}

/// What is asked for.
#[derive(Clone)]
struct Conf {
    trtype: Option<Name>,
    traddr: Option<Name>,
    trsvcid: Option<Name>,
    subsystem: Option<Name>,
    client: Option<Name>,
    /// What proves it.
    auth: Option<AuthKey>,
    queues: u16,
    loss_tmo: i32,
    /// Seconds after which requests no longer wait for a connection; negative: they always do.
    fail_tmo: i32,
    delay: u32,
}

/// What there is of it.
struct Run {
    block: Option<Block>,
    welcome: Option<Welcome>,
    /// Where it was enabled from.
    net: Option<Net>,
    conf: Option<Conf>,
    lanes: KVec<Arc<Lane>>,
    epoch: u32,
    /// Bytes of contiguous memory that the device takes as one.
    piece: u32,
    /// Since when there has been no connection that served.
    since: Option<Instant<Monotonic>>,
    /// It is a device.
    device: bool,
}

/// A disk.
#[pin_data]
pub(crate) struct Disk {
    /// What its folder is called.
    called: Name,
    session: [u8; SESSION],
    /// What a device has acknowledged and may lose.
    unflushed: Arc<Unflushed>,
    state: AtomicU32,
    /// A request was done by the connections that there are.
    done: AtomicBool,
    /// One was not.
    undone: AtomicBool,
    /// The capacity that the target has told of; 0: it has not.
    capacity: AtomicU64,
    slots: KVec<Arc<Slot>>,
    /// Held while it is enabled or disabled, which may take minutes.
    #[pin]
    switch: Mutex<()>,
    /// Changes with `switch` held, too: who only looks does not wait for that.
    #[pin]
    conf: Mutex<Conf>,
    /// Held while connections are made or ended.
    #[pin]
    run: Mutex<Run>,
    /// The device's name in `/dev`, while there is one.
    #[pin]
    name: Mutex<[u8; 32]>,
    /// Wakes who waits between two tries.
    hook: Arc<Hook>,
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

/// The host's name, if it is one.
fn host() -> Result<Name> {
    let mut name = [0; 64];
    sys::node_name(&mut name);
    let end = name.iter().position(|c| *c == 0).unwrap_or(0);
    Name::new(name.get(..end).unwrap_or_default()).map_err(|_| EINVAL)
}

impl Disk {
    /// One that is not there yet.
    pub(crate) fn new(called: Name) -> Result<Arc<Self>> {
        let conf = Conf {
            trtype: None,
            traddr: None,
            trsvcid: None,
            subsystem: None,
            client: host().ok(),
            auth: None,
            queues: 0,
            loss_tmo: 600,
            fail_tmo: -1,
            delay: 10,
        };
        let run = Run {
            block: None,
            welcome: None,
            net: None,
            conf: None,
            lanes: KVec::new(),
            epoch: 0,
            piece: 0,
            since: None,
            device: false,
        };
        let mut slots = KVec::with_capacity(QUEUES_MAX.into(), GFP_KERNEL)?;
        for _ in 0..QUEUES_MAX {
            slots.push(Slot::new()?, GFP_KERNEL)?;
        }
        let hook = Hook::new()?;
        let unflushed = Arc::new(Unflushed::default(), GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                called,
                session: sys::random(),
                unflushed,
                state: AtomicU32::new(State::Idle as u32),
                done: AtomicBool::new(false),
                undone: AtomicBool::new(false),
                capacity: AtomicU64::new(0),
                slots,
                switch <- new_mutex!((), "kfblk_disk_switch"),
                conf <- new_mutex!(conf, "kfblk_conf"),
                run <- new_mutex!(run, "kfblk_run"),
                name <- new_mutex!([0; 32], "kfblk_name"),
                hook,
                work <- new_work!("Disk::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Where it is.
    pub(crate) fn state(&self) -> State {
        State::of(self.state.load(Ordering::Acquire))
    }

    fn advance(&self, from: State, to: State) -> bool {
        let (from, to) = (from as u32, to as u32);
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The connections' places, by queue.
    pub(crate) fn slot(&self, queue: u32) -> Option<&Arc<Slot>> {
        self.slots.get(queue as usize)
    }

    /// What the device has acknowledged and may lose.
    pub(crate) fn unflushed(&self) -> &Arc<Unflushed> {
        &self.unflushed
    }

    /// Requests were done, or were not because the connection is lost. Any context.
    pub(crate) fn note(&self, done: bool, undone: bool) {
        // Mostly it is known already.
        if done && !self.done.load(Ordering::Relaxed) {
            self.done.store(true, Ordering::Relaxed);
        }
        if undone {
            self.undone.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the connections that there are have served requests. Any context.
    pub(crate) fn has_served(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// Whether the connections were of no use though they were wanted. They have ended.
    fn is_stuck(&self) -> bool {
        self.undone.load(Ordering::Relaxed) && !self.done.load(Ordering::Relaxed)
    }

    /// A connection is lost, or does not answer. Any context.
    pub(crate) fn lost(this: &Arc<Self>) {
        if this.advance(State::Live, State::Lost)
            || this.advance(State::Leaving, State::Dead)
            || this.advance(State::Adding, State::Dead)
        {
            // If it is queued already it will look again.
            let _ = sys::disks().enqueue(this.clone());
        }
    }

    /// The target says that it has another capacity. Any context.
    pub(crate) fn resized(this: &Arc<Self>, capacity: u64) {
        this.capacity.store(capacity, Ordering::Release);
        // As above.
        let _ = sys::disks().enqueue(this.clone());
    }

    /// Connects, as often as there are queues.
    fn connect(&self, run: &mut Run) -> Result<(KVec<Arc<Lane>>, Welcome)> {
        let conf = run.conf.clone().ok_or(EINVAL)?;
        let net = run.net.clone().ok_or(EINVAL)?;
        let traddr = conf.traddr.as_ref().ok_or(EINVAL)?;
        let trsvcid = conf.trsvcid.as_ref().ok_or(EINVAL)?;
        let addr = sys::parse_addr(&net, traddr, trsvcid)?;
        let mut hints = config::hints(conf.trtype.as_ref());
        hints.dest_addr = addr;
        let all = registry::getinfo(&net, Some(&hints))?;
        let info = all.first().ok_or_else(config::enodata)?;
        let fabric = Fabric::open(
            net,
            name_str(&info.prov_name)?,
            name_str(&info.fabric_name)?,
        )?;
        let domain = Domain::open(&fabric, name_str(&info.domain_name)?)?;
        let piece = domain.lent_max().ok_or_else(config::eopnotsupp)?;
        match run.welcome {
            // The block layer wants a page at least.
            None if piece < PAGE => return Err(config::eopnotsupp()),
            None => run.piece = piece,
            // What waits has been cut for the device that there was. Of a device nothing is lent.
            Some(_) if !run.device && piece < run.piece => return Err(ENODEV),
            Some(_) => {}
        }
        run.epoch = run.epoch.wrapping_add(1);
        let mut hello = Hello {
            queue: 0,
            queues: conf.queues,
            epoch: run.epoch,
            session: self.session,
            disk: self.called.number(),
            client: conf.client.ok_or(EINVAL)?,
            subsystem: conf.subsystem.ok_or(EINVAL)?,
        };
        // Whoever is to go, or asks for too long, does not go on asking.
        let (state, since) = (self.state(), Instant::<Monotonic>::now());
        let go_on = || -> Result {
            if self.state() != state {
                return Err(EINTR);
            }
            if since.elapsed().as_millis() > CONNECT_MS {
                return Err(ETIMEDOUT);
            }
            Ok(())
        };
        let mut lanes = KVec::with_capacity(conf.queues.into(), GFP_KERNEL)?;
        let mut first: Option<Welcome> = run.welcome;
        if let (Some(first), Some(block)) = (&mut first, run.block) {
            // It may have heard of another one.
            first.geometry.capacity = block.capacity();
        }
        for queue in 0..conf.queues {
            hello.queue = queue;
            let auth = conf.auth.as_ref();
            let connect = |device| Lane::connect(&domain, &addr, auth, &hello, device, &go_on);
            let (lane, welcome) = match connect(run.device) {
                // What kind it is we learn of the first.
                Err(e) if e == config::emediumtype() && !run.device => {
                    run.device = true;
                    connect(true)?
                }
                other => other?,
            };
            // It has to stay the disk that it was, with the same contents, and must not have been
            // fenced: what waits here was meant for that.
            if first.is_some_and(|first| !first.is_still(&welcome)) {
                return Err(config::estale());
            }
            // Who flushes is told that all that was acknowledged before is safe. Nothing is under way.
            let lost = |first: Welcome| first.may_have_lost(&welcome) && self.unflushed.is_any();
            if first.is_some_and(lost) {
                pr_warn!(
                    "disk {}: its target has started again, and has lost what was not flushed\n",
                    self.called.as_str()
                );
                return Err(config::estale());
            }
            first = Some(welcome);
            lanes.push(lane, GFP_KERNEL)?;
        }
        Ok((lanes, first.ok_or(EINVAL)?))
    }

    /// Has the connections serve requests.
    fn install(this: &Arc<Self>, run: &mut Run, lanes: KVec<Arc<Lane>>, block: Block) {
        this.done.store(false, Ordering::Relaxed);
        this.undone.store(false, Ordering::Relaxed);
        for (queue, (lane, slot)) in lanes.iter().zip(&this.slots).enumerate() {
            // CAST: Few.
            let requests = Requests::new(this, lane, block, queue as u32);
            lane.hook().link(Link::Requests(requests));
            slot.put(lane);
        }
        run.lanes = lanes;
    }

    /// Looks at what came before somebody was told of it: a target's news, and whether one was lost.
    fn look(this: &Arc<Self>, run: &Run) {
        for lane in &run.lanes {
            lane.hook().completed();
        }
        if run.lanes.iter().any(|lane| !lane.is_connected()) {
            Self::lost(this);
        }
    }

    /// Ends the connections; what was on its way has ended then.
    fn drop_lanes(&self, run: &mut Run) {
        for slot in &self.slots {
            slot.clear();
        }
        if let Some(block) = run.block {
            block.quiesce();
        }
        let served = self.has_served();
        for lane in core::mem::take(&mut run.lanes) {
            lane.close(served);
        }
        // The next ones say how large it is.
        self.capacity.store(0, Ordering::Relaxed);
    }

    /// What there is to do for it: gives it the capacity that the target told of, makes the connections
    /// again, or gives up.
    fn recover(this: &Arc<Self>) {
        let _no_io = NoIo::begin();
        let mut run = this.run.lock();
        let Some(block) = run.block else { return };
        if let capacity @ 1.. = this.capacity.swap(0, Ordering::AcqRel) {
            block.resize(capacity);
        }
        if !matches!(this.state(), State::Lost | State::Dead) {
            return;
        }
        this.drop_lanes(&mut run);
        // The time goes on until something gets done: that it connects again and again says nothing.
        // It is not tried at once then, either.
        let stuck = this.is_stuck();
        if !stuck {
            run.since = None;
        }
        let since = *run.since.get_or_insert_with(Instant::now);
        let fail_tmo = run.conf.as_ref().map_or(-1, |conf| conf.fail_tmo);
        if let (State::Lost, Ok(tmo)) = (this.state(), u64::try_from(fail_tmo)) {
            // CAST: Time goes forward.
            let ms = since.elapsed().as_millis() as u64;
            block.fail_in(tmo.saturating_mul(1000).saturating_sub(ms));
        }
        // From here on no request waits for us: each is parked, or fails.
        block.resume();
        let mut err = if stuck { bindings::EIO } else { 0 };
        while this.state() == State::Lost {
            let Some(conf) = &run.conf else { break };
            // CAST: Time goes forward.
            let ms = since.elapsed().as_millis() as u64;
            match blk::next(conf.loss_tmo, conf.delay, ms, err) {
                Next::GiveUp => {
                    this.advance(State::Lost, State::Dead);
                    break;
                }
                Next::Retry(0) => {}
                Next::Retry(ms) => {
                    let ms = u32::try_from(ms).unwrap_or(u32::MAX);
                    let gone = || Ok((this.state() != State::Lost).then_some(()));
                    if this.hook.until(ms, gone).is_ok() {
                        break;
                    }
                }
            }
            match this.connect(&mut run) {
                Ok((lanes, welcome)) => {
                    if run.device {
                        block.resize(welcome.geometry.capacity);
                    }
                    run.welcome = Some(welcome);
                    block.fail_no_more();
                    Self::install(this, &mut run, lanes, block);
                    this.advance(State::Lost, State::Live);
                    Self::look(this, &run);
                    break;
                }
                Err(e) => err = e.to_errno().unsigned_abs(),
            }
        }
        if this.state() == State::Dead {
            pr_warn!(
                "disk {}: it has lost its target for good\n",
                this.called.as_str()
            );
        }
        block.kick();
    }

    fn enable(this: &Arc<Self>) -> Result {
        let _switch = this.switch.lock();
        let mut run = this.run.lock();
        if this.state() != State::Idle {
            return Err(EBUSY);
        }
        let mut wanted = this.conf.lock().clone();
        if wanted.queues == 0 {
            // CAST: Few.
            wanted.queues = sys::cpus().min(QUEUES) as u16;
        }
        let queues = wanted.queues;
        run.conf = Some(wanted);
        run.net = Some(Net::current());
        run.welcome = None;
        run.since = None;
        run.device = false;
        this.unflushed.forget();
        // Of one that is not there nothing keeps a network namespace.
        let (lanes, welcome) = match this.connect(&mut run) {
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
        let block_size = 1 << block_shift;
        let limits = welcome.device.unwrap_or(Limits {
            physical: block_size,
            io_min: block_size,
            ..Limits::default()
        });
        let device = welcome.device.is_some();
        let shape = Shape {
            capacity,
            block_size,
            // A request is not longer than the block layer's own limit either.
            chunk: 1 << chunk_shift.min(30),
            piece: run.piece,
            queues: queues.into(),
            depth: if device { device::DEPTH } else { DEPTH },
            timeout_ms: TIMEOUT_MS,
            physical: limits.physical,
            io_min: limits.io_min,
            io_opt: limits.io_opt,
            request: if device { device::LEN_MAX } else { 0 },
            discard: limits.discard,
            granularity: limits.granularity,
            zeroes: limits.zeroes,
            read_only: welcome.flags & READ_ONLY != 0,
            device,
            cache: limits.cache,
            fua: limits.fua,
            rotational: limits.rotational,
        };
        // SAFETY: The reference is given back when the block device is freed.
        let block = match unsafe { Block::new(this.clone().into_raw().cast_mut().cast(), &shape) } {
            Ok(block) => block,
            Err(e) => {
                // SAFETY: It was made just now, and nobody took it.
                drop(unsafe { Arc::from_raw(Arc::as_ptr(this)) });
                run.net = None;
                return Err(e);
            }
        };
        run.block = Some(block);
        run.welcome = Some(welcome);
        block.name(&mut this.name.lock());
        Self::install(this, &mut run, lanes, block);
        this.advance(State::Idle, State::Adding);
        Self::look(this, &run);
        // The first requests come with it, and the connection may be lost with them.
        drop(run);
        if let Err(e) = block.add() {
            Self::leave(this, false);
            return Err(e);
        }
        if !this.advance(State::Adding, State::Live) {
            Self::leave(this, true);
            return Err(config::enotconn());
        }
        Ok(())
    }

    /// Removes it, with `switch` held. `added`: others know of it.
    fn leave(this: &Arc<Self>, added: bool) {
        let Some(block) = this.begin_leave() else {
            return;
        };
        if added {
            // What is written back goes by connections that work, or fails.
            block.del();
        }
        let mut run = this.run.lock();
        this.drop_lanes(&mut run);
        block.resume();
        run.block = None;
        run.welcome = None;
        run.net = None;
        *this.name.lock() = [0; 32];
        this.state.store(State::Idle as u32, Ordering::Release);
        drop(run);
        // SAFETY: Nobody has a copy: the place is empty, and no request comes any more.
        unsafe { block.free() };
        // SAFETY: That was `enable`'s reference.
        drop(unsafe { Arc::from_raw(Arc::as_ptr(this)) });
    }

    /// Says that it is to go, so that nobody tries to connect any more; what is to go, if it is there.
    fn begin_leave(&self) -> Option<Block> {
        self.give_up();
        self.run.lock().block
    }

    /// Nobody tries to connect any more, if it is there.
    fn give_up(&self) {
        // One may become another of them meanwhile, but no fourth that is not over.
        while !self.advance(State::Live, State::Leaving)
            && !self.advance(State::Lost, State::Dead)
            && !self.advance(State::Adding, State::Leaving)
            && matches!(self.state(), State::Live | State::Lost | State::Adding)
        {}
        self.hook.wake();
    }

    fn disable(this: &Arc<Self>) {
        // Whoever enables it may wait for requests that only this ends.
        this.give_up();
        let _switch = this.switch.lock();
        Self::leave(this, true);
    }

    fn set(&self, set: impl FnOnce(&mut Conf)) -> Result {
        let _switch = self.switch.lock();
        if self.state() != State::Idle {
            return Err(EBUSY);
        }
        set(&mut self.conf.lock());
        Ok(())
    }
}

fn text(name: &Option<Name>) -> &str {
    name.as_ref().map_or("", Name::as_str)
}

impl Item for Disk {
    fn end(this: &Arc<Self>) {
        Self::disable(this);
    }

    fn show(&self, attr: u32, out: &mut Text<'_>) -> Result {
        match attr {
            9 => writeln!(out, "{}", self.state().name())?,
            10 => {
                let name = *self.name.lock();
                writeln!(out, "{}", name_str(&name)?)?;
            }
            _ => {
                let conf = self.conf.lock();
                match attr {
                    0 => writeln!(out, "{}", text(&conf.trtype))?,
                    1 => writeln!(out, "{}", text(&conf.traddr))?,
                    2 => writeln!(out, "{}", text(&conf.trsvcid))?,
                    3 => writeln!(out, "{}", text(&conf.subsystem))?,
                    4 => writeln!(out, "{}", text(&conf.client))?,
                    5 => writeln!(out, "{}", conf.queues)?,
                    6 => writeln!(out, "{}", conf.loss_tmo)?,
                    7 => writeln!(out, "{}", conf.delay)?,
                    12 if conf.fail_tmo < 0 => writeln!(out, "off")?,
                    12 => writeln!(out, "{}", conf.fail_tmo)?,
                    8 => writeln!(out, "{}", u32::from(self.state() != State::Idle))?,
                    _ => return Err(EINVAL),
                }
            }
        }
        Ok(())
    }

    fn store(this: &Arc<Self>, attr: u32, text: &str) -> Result {
        match attr {
            0..=4 => {
                let name = Some(config::name(text)?);
                this.set(|conf| match attr {
                    0 => conf.trtype = name,
                    1 => conf.traddr = name,
                    2 => conf.trsvcid = name,
                    3 => conf.subsystem = name,
                    _ => conf.client = name,
                })
            }
            5 => {
                let queues: u16 = config::number(text)?;
                if queues > QUEUES_MAX {
                    return Err(EINVAL);
                }
                this.set(|conf| conf.queues = queues)
            }
            6 => {
                let loss_tmo = config::number(text)?;
                this.set(|conf| conf.loss_tmo = loss_tmo)
            }
            7 => {
                let delay = config::number(text)?;
                if !(1..=3600).contains(&delay) {
                    return Err(EINVAL);
                }
                this.set(|conf| conf.delay = delay)
            }
            12 => {
                let fail_tmo = match text {
                    "off" => -1,
                    text => config::number(text)?,
                };
                this.set(|conf| conf.fail_tmo = fail_tmo)
            }
            11 => {
                let auth = config::key(text)?;
                this.set(|conf| conf.auth = auth)
            }
            8 if config::flag(text)? => Self::enable(this),
            8 => {
                Self::disable(this);
                Ok(())
            }
            _ => Err(EINVAL),
        }
    }
}
