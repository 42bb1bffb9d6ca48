// SPDX-License-Identifier: GPL-2.0
//! A client's connection: its questions, and its keys.
//!
//! Its work answers questions, one at a time, and ends it when the connection has ended. The keys
//! are its endpoint's own: valid on this connection alone, and dead before it is.

use core::sync::atomic::{
    AtomicBool,
    Ordering, //
};
use kernel::{
    fmt::Write,
    impl_has_work,
    new_mutex,
    new_work,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SetOnce, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};
use kfabric::{
    auth::AuthKey,
    cq::Cq,
    ep::{
        Endpoint,
        EpAttr, //
    },
    eq::Eq,
    fabric::Domain,
    key::{
        Assignment,
        Key, //
    },
    pep::Request,
    provider::KeyValue,
    pure::blk::{
        self,
        device::OTHER_KIND,
        Entry,
        Geometry,
        Hello,
        Name,
        Question,
        Welcome,
        MESSAGE_MAX,
        QUESTION_MAX,
        READ_ONLY,
        TABLE_MAX, //
    },
    region::Region,
    uapi::*,
};

use super::{
    device::{
        self,
        Device,
        Io, //
    },
    hosts::Hosts,
    port::Port,
    subsystem::Subsystem, //
};
use crate::{
    config::Text,
    hook::{
        Hook,
        Link, //
    },
    pad::{
        Pad,
        CAME,
        WENT, //
    },
    sys,
};

/// Operations of a connection: it has few of its own.
const DEPTH: u32 = 8;

/// Who it is, once it has said so.
struct Client {
    hello: Hello,
    subsystem: Arc<Subsystem>,
}

/// What it has, once it was let in.
struct Share {
    region: Arc<Region>,
    geometry: Geometry,
    access: u64,
}

/// Where the conversation is.
struct Talk {
    ended: bool,
    /// An answer is on its way.
    sending: bool,
    /// Bytes of a question that waits.
    question: Option<u64>,
    share: Option<Share>,
}

/// Its keys, in the order of chunks.
struct Keys {
    /// It gets no more.
    over: bool,
    all: KVVec<Arc<Key>>,
}

/// A connection.
#[pin_data]
pub(crate) struct Lane {
    // Dropped in this order.
    ep: Arc<Endpoint>,
    pad: Pad,
    /// It has room for requests of a device.
    roomy: bool,
    /// Those, once it was let in to one.
    io: SetOnce<Arc<Io>>,
    cq: Arc<Cq>,
    eq: Arc<Eq>,
    hook: Arc<Hook>,
    port: Arc<Port>,
    /// What its peer has proven to have.
    auth: Option<AuthKey>,
    client: SetOnce<Client>,
    /// Its client was told what the device is like. With the subsystem's lock.
    welcomed: AtomicBool,
    doomed: AtomicBool,
    #[pin]
    talk: Mutex<Talk>,
    #[pin]
    keys: Mutex<Keys>,
    #[pin]
    work: Work<Lane>,
}

impl_has_work! {
    impl HasWork<Self> for Lane { self.work }
}

impl WorkItem for Lane {
    type Pointer = Arc<Lane>;

    fn run(this: Arc<Lane>) {
        if Self::serve(&this).is_err() {
            this.end();
        }
    }
}

impl Lane {
    /// Makes one for a request to connect, which [`Lane::accept`] accepts. `device`: with room for
    /// requests of a device.
    pub(crate) fn open(
        port: &Arc<Port>,
        domain: &Arc<Domain>,
        request: &Arc<Request>,
        device: bool,
    ) -> Result<Arc<Self>> {
        let hook = Hook::new()?;
        let eq = Eq::open(domain.fabric(), 0, Some(hook.clone()))?;
        let (tx, rx) = match device {
            true => (DEPTH + device::SENDS, DEPTH + device::SLOTS),
            false => (DEPTH, DEPTH),
        };
        let cq = Cq::open(domain, tx + rx, KFI_CQ_FORMAT_MSG, Some(hook.clone()))?;
        let attr = EpAttr {
            tx_size: tx,
            rx_size: rx,
            // A head, and what goes with it.
            iov_limit: 2,
            own_keys: true,
            // Many for each connection, which is their only use.
            reuse_values: true,
            ..EpAttr::default()
        };
        let pad = Pad::new(domain)?;
        let ep = match request.auth() {
            Some(key) => Endpoint::open_with(domain, &attr, Some(request), key)?,
            None => Endpoint::open(domain, &attr, Some(request))?,
        };
        ep.bind_eq(&eq)?;
        ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV)?;
        ep.enable()?;
        let talk = Talk {
            ended: false,
            sending: false,
            question: None,
            share: None,
        };
        let keys = Keys {
            over: false,
            all: KVVec::new(),
        };
        Arc::pin_init(
            pin_init!(Self {
                ep,
                pad,
                roomy: device,
                io: SetOnce::new(),
                cq,
                eq,
                hook,
                port: port.clone(),
                auth: request.auth().cloned(),
                client: SetOnce::new(),
                welcomed: AtomicBool::new(false),
                doomed: AtomicBool::new(false),
                talk <- new_mutex!(talk, "kfblk_talk"),
                keys <- new_mutex!(keys, "kfblk_keys"),
                work <- new_work!("Lane::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Accepts.
    pub(crate) fn accept(self: &Arc<Self>) -> Result {
        self.hook.link(Link::Lane(self.clone()));
        self.pad.recv(&self.ep)?;
        self.ep.accept(&[])
    }

    /// What it is a connection of.
    pub(crate) fn domain(&self) -> &Domain {
        self.ep.domain()
    }

    /// Whether it has not said yet who it is.
    pub(crate) fn is_stranger(&self) -> bool {
        self.client.as_ref().is_none()
    }

    /// Whether it is `client`'s.
    pub(crate) fn is_of(&self, client: &Name) -> bool {
        self.client
            .as_ref()
            .is_some_and(|of| of.hello.client == *client)
    }

    /// Whether `hosts` let it say that it is `client`.
    pub(crate) fn may_say(&self, hosts: &Hosts, client: &Name) -> bool {
        hosts.believes(self.auth.as_ref(), client)
    }

    /// Whether `hosts` let it say what it has said.
    pub(crate) fn is_believed(&self, hosts: &Hosts) -> bool {
        self.client
            .as_ref()
            .is_some_and(|of| self.may_say(hosts, &of.hello.client))
    }

    /// Whether it is of a session that is over, for the disk of that name is another one now.
    fn is_former(&self, hello: &Hello) -> bool {
        self.client.as_ref().is_some_and(|of| {
            let of = &of.hello;
            of.client == hello.client && of.disk == hello.disk && of.session != hello.session
        })
    }

    /// How many times later `hello` is, if it is of the same session.
    fn later(&self, hello: &Hello) -> Option<i32> {
        let of = &self.client.as_ref()?.hello;
        // CAST: What is more than half of all is before.
        (of.client == hello.client && of.session == hello.session)
            .then(|| hello.epoch.wrapping_sub(of.epoch) as i32)
    }

    /// Whether it is of an earlier time of the same disk as `hello`, or what that replaces.
    pub(crate) fn is_before(&self, hello: &Hello) -> bool {
        let earlier = self.later(hello).is_some_and(|later| {
            let same = |of: &Client| of.hello.queue == hello.queue;
            later > 0 || (later == 0 && self.client.as_ref().is_some_and(same))
        });
        earlier || self.is_former(hello)
    }

    /// Whether it is about to end, but may have something under way yet.
    pub(crate) fn is_ending(&self) -> bool {
        self.doomed.load(Ordering::Acquire) || self.ep.state() == KFI_STATE_DOWN
    }

    /// Whether it is of a later time.
    pub(crate) fn is_behind(&self, hello: &Hello) -> bool {
        self.later(hello).is_some_and(|later| later < 0)
    }

    /// Whether it counts beside a connection that says `hello`: it is not about to end.
    pub(crate) fn counts(&self, hello: &Hello) -> bool {
        !self.doomed.load(Ordering::Acquire) && !self.is_before(hello)
    }

    /// Whether it serves that.
    pub(crate) fn serves(&self, subsystem: &Arc<Subsystem>) -> bool {
        self.client
            .as_ref()
            .is_some_and(|of| Arc::ptr_eq(&of.subsystem, subsystem))
    }

    /// A line about it.
    pub(crate) fn describe(&self, out: &mut Text<'_>) -> Result {
        if let Some(of) = self.client.as_ref() {
            let keys = self.keys.lock().all.len();
            writeln!(
                out,
                "{} queue {} of {} epoch {} keys {}",
                of.hello.client.as_str(),
                of.hello.queue,
                of.hello.queues,
                of.hello.epoch,
                keys
            )?;
        }
        Ok(())
    }

    /// Tells its client that the device has another capacity, if that waits for no answer any more: what
    /// comes before the answer would be taken for it. With the subsystem's lock.
    pub(crate) fn news(&self, capacity: u64) {
        let io = self.io.as_ref();
        if let Some(io) = io.filter(|_| self.welcomed.load(Ordering::Relaxed)) {
            io.news(capacity);
        }
    }

    /// Its client was told what the device is like. With the subsystem's lock.
    pub(crate) fn is_welcomed(&self) {
        self.welcomed.store(true, Ordering::Relaxed);
    }

    /// Ends its keys, or what it has the device do: nothing is read or written by them when this
    /// returns, and it gets no more.
    pub(crate) fn revoke(&self) {
        let mut keys = self.keys.lock();
        keys.over = true;
        // With the lock held: whoever comes next finds none, and they have ended.
        for key in core::mem::take(&mut keys.all) {
            key.close();
        }
        drop(keys);
        // That may take as long as the device takes.
        if let Some(io) = self.io.as_ref() {
            io.stop();
        }
    }

    /// Has its work end it.
    pub(crate) fn doom(self: Arc<Self>) {
        self.doomed.store(true, Ordering::Release);
        let _ = sys::exports().enqueue(self);
    }

    /// Ends it: connection and keys are over when this returns. Not under a lock of the port's or the
    /// subsystem's.
    pub(crate) fn end(&self) {
        // Whoever is let in meanwhile waits for what it has under way.
        self.doomed.store(true, Ordering::Release);
        self.hook.unlink();
        {
            let mut talk = self.talk.lock();
            if !talk.ended {
                talk.ended = true;
                // Its keys end first.
                self.ep.close();
                self.revoke();
                talk.share = None;
            }
        }
        if let Some(of) = self.client.as_ref() {
            of.subsystem.forget(self);
        }
        self.port.forget(self);
    }

    /// Does what its work does in the task that a completion is told in, if it is a device's and nobody
    /// else is about it. It does not end it: who does waits for this task.
    pub(crate) fn serve_here(this: &Arc<Self>) {
        let talk = match this.io.as_ref() {
            Some(_) => this.talk.try_lock(),
            // Questions may take long.
            None => None,
        };
        let Some(mut talk) = talk else {
            // If it is queued already it will look again.
            let _ = sys::exports().enqueue(this.clone());
            return;
        };
        if Self::serve_in(this, &mut talk).is_err() {
            drop(talk);
            return this.clone().doom();
        }
        if this.io.as_ref().is_some_and(|io| io.has_to_tell()) {
            // When all that completes just now has been looked at.
            let _ = sys::exports().enqueue(this.clone());
        }
    }

    /// Answers what was asked.
    ///
    /// # Errors
    ///
    /// It is to end.
    fn serve(this: &Arc<Self>) -> Result {
        let mut talk = this.talk.lock();
        Self::serve_in(this, &mut talk)?;
        match this.io.as_ref() {
            Some(io) if !talk.ended => io.tell(),
            _ => Ok(()),
        }
    }

    fn serve_in(this: &Arc<Self>, talk: &mut Talk) -> Result {
        if talk.ended {
            return Ok(());
        }
        let broken = this.io.as_ref().is_some_and(|io| io.is_broken());
        if broken || this.doomed.load(Ordering::Acquire) {
            return Err(EIO);
        }
        while let Some(event) = this.eq.read() {
            if event.kind != KFI_CONNECTED {
                return Err(EIO);
            }
        }
        loop {
            let mut entries = [CqEntry::default(); 4];
            let count = this.cq.read(&mut entries);
            for entry in entries.iter().take(count) {
                if entry.err != 0 {
                    return Err(EIO);
                }
                match entry.context {
                    CAME => talk.question = Some(entry.len),
                    WENT => {
                        talk.sending = false;
                        if talk.share.is_none() && !this.is_device() {
                            // That was a refusal.
                            return Err(EIO);
                        }
                    }
                    _ => this.io.as_ref().ok_or(EIO)?.completed(entry)?,
                }
            }
            // A question may be faster than the event, after which the work runs again.
            if !talk.sending && this.ep.state() == KFI_STATE_CONNECTED {
                if let Some(len) = talk.question.take() {
                    Self::answer(this, talk, len)?;
                    continue;
                }
            }
            // Each that comes later is told of by a call of its own.
            if count < entries.len() {
                return Ok(());
            }
        }
    }

    /// Whether it is a device that its client was let in to.
    fn is_device(&self) -> bool {
        self.io.as_ref().is_some_and(|io| io.is_open())
    }

    fn answer(this: &Arc<Self>, talk: &mut Talk, len: u64) -> Result {
        let mut question = [0; QUESTION_MAX];
        if len > question.len() as u64 {
            return Err(EINVAL);
        }
        let len = this.pad.came(len, &mut question);
        let question = question.get(..len).unwrap_or_default();
        let question = Question::read(question).map_err(|_| EINVAL)?;
        let mut answer = KVec::from_elem(0u8, MESSAGE_MAX, GFP_KERNEL)?;
        let mut told = None;
        let len = match question {
            Question::Hello(hello) => {
                let welcome = Self::welcome(this, talk, hello);
                told = welcome.device.map(|_| welcome.geometry.capacity);
                welcome.write(&mut answer).map_err(|_| EINVAL)?
            }
            Question::Keys(first) => this.give(talk, first, &mut answer)?,
        };
        // After the first answer a device's requests come, and no more questions.
        if !this.is_device() {
            this.pad.recv(&this.ep)?;
        }
        talk.sending = true;
        this.pad
            .send(&this.ep, answer.get(..len).unwrap_or_default())?;
        if let (Some(told), Some(client)) = (told, this.client.as_ref()) {
            client.subsystem.welcomed(this, told);
        }
        Ok(())
    }

    fn welcome(this: &Arc<Self>, talk: &mut Talk, hello: Hello) -> Welcome {
        let refusal = |e: Error| Welcome::refusal(e.to_errno().unsigned_abs());
        let Some(subsystem) = this.port.subsystem(&hello.subsystem) else {
            return refusal(ENOENT);
        };
        let client = Client {
            hello,
            subsystem: subsystem.clone(),
        };
        // Once, and before it is let in: who fences looks at it.
        if !this.client.populate(client) {
            return refusal(EINVAL);
        }
        // Who ends the offer looks for those that have said so.
        let offered = this.port.subsystem(&hello.subsystem);
        if !offered.is_some_and(|of| Arc::ptr_eq(&of, &subsystem)) {
            return refusal(ENOENT);
        }
        if !this.roomy && subsystem.is_device() {
            return Welcome::refusal(OTHER_KIND);
        }
        let admitted = match subsystem.admit(this.ep.domain(), &hello, this) {
            Ok(admitted) => admitted,
            Err(e) => return refusal(e),
        };
        // What is late of the connections before this one must not land after this one's.
        for lane in admitted.stale {
            lane.revoke();
            lane.doom();
        }
        let (flags, access) = match admitted.read_only {
            true => (READ_ONLY, KFI_REMOTE_READ),
            false => (0, KFI_REMOTE_READ | KFI_REMOTE_WRITE),
        };
        match (&admitted.device, admitted.region) {
            (Some(device), _) => {
                if let Err(e) = this.take_requests(device) {
                    return refusal(e);
                }
            }
            (None, Some(region)) => {
                talk.share = Some(Share {
                    region,
                    geometry: admitted.geometry,
                    access,
                });
            }
            (None, None) => return refusal(EIO),
        }
        Welcome {
            status: 0,
            flags,
            geometry: admitted.geometry,
            device: admitted.device.as_ref().map(|device| *device.limits()),
            instance: admitted.instance,
            boot: super::boot(),
            seq: admitted.device.map_or(0, |device| device.seq()),
        }
    }

    /// Takes requests for a device from now on.
    fn take_requests(&self, device: &Arc<Device>) -> Result {
        if !self.roomy {
            // It was no device just now.
            return Err(EAGAIN);
        }
        // There has to be as much again for others.
        if sys::spare_pages() < 2 * device::PAGES {
            return Err(ENOMEM);
        }
        let io = Io::new(self.ep.domain(), &self.ep, &self.hook)?;
        let keys = self.keys.lock();
        // Whoever ends it comes later, and finds this, or was there before.
        if keys.over || !self.io.populate(io.clone()) {
            return Err(EIO);
        }
        drop(keys);
        io.open(device)
    }

    /// Makes keys from chunk `first` on, and writes them down. Each chunk gets one, in order.
    fn give(&self, talk: &Talk, first: u32, answer: &mut [u8]) -> Result<usize> {
        let share = talk.share.as_ref().ok_or(EINVAL)?;
        let mut keys = self.keys.lock();
        if keys.over {
            return Err(EIO);
        }
        let have = keys.all.len();
        if have as u64 != u64::from(first) || u64::from(first) >= share.geometry.chunks() {
            return Err(EINVAL);
        }
        let left = share.geometry.chunks() - u64::from(first);
        let count = usize::try_from(left).unwrap_or(TABLE_MAX).min(TABLE_MAX);
        for _ in 0..count {
            keys.all
                .push(Key::alloc_for(&share.region, &self.ep)?, GFP_KERNEL)?;
        }
        let mut batch = KVec::with_capacity(count, GFP_KERNEL)?;
        for (i, key) in keys.all.iter().enumerate().skip(have) {
            let (offset, len) = share.geometry.window(i as u64).ok_or(EINVAL)?;
            let one = Assignment {
                key,
                offset,
                len,
                access: share.access,
                once: false,
                value: KeyValue::NONE,
            };
            batch.push(one, GFP_KERNEL)?;
        }
        Key::assign_many(&mut batch).map_err(|(_, e)| e)?;
        let entries = batch.iter().map(|one| Entry {
            key: one.value.key,
            addr: one.value.remote_addr,
        });
        blk::write_table(answer, first, entries).map_err(|_| EINVAL)
    }
}
