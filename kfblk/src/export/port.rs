// SPDX-License-Identifier: GPL-2.0
//! Ports: where subsystems are offered.

use core::ptr;
use kernel::{
    fmt::Write,
    impl_has_work,
    new_mutex,
    new_work,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};
use kfabric::{
    auth::AuthKey,
    eq::Eq,
    fabric::{
        Domain,
        Fabric, //
    },
    net::Net,
    object::name_str,
    pep::PassiveEp,
    pure::blk::{
        device::WANTED,
        Name, //
    },
    registry,
    uapi::*,
};

use super::{
    lane::Lane,
    subsystem::Subsystem, //
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
    sys,
};

/// Connections of a port, at most.
const LANES_MAX: usize = 4096;
/// Connections that have not said what they want, at most: beyond, the oldest ends.
const STRANGERS_MAX: usize = 64;
/// The work item that has a port listen again.
const REPAIR: u64 = 1;
/// Milliseconds between two tries to.
const AGAIN: u32 = 1000;

/// What a port is while it listens.
struct Station {
    // Dropped in this order.
    pep: Arc<PassiveEp>,
    eq: Arc<Eq>,
    hook: Arc<Hook>,
    domain: Arc<Domain>,
    /// Whoever connects has one of these, if there are any.
    keys: KVec<AuthKey>,
}

/// Where a port is, from its first subsystem to its last.
#[derive(Clone)]
struct Place {
    domain: Arc<Domain>,
    addr: SockAddr,
}

struct Inner {
    trtype: Option<Name>,
    traddr: Option<Name>,
    trsvcid: Option<Name>,
    subsystems: KVec<Arc<Subsystem>>,
    /// Where its address is looked for: where the first subsystem was linked.
    net: Option<Net>,
    place: Option<Place>,
    station: Option<Arc<Station>>,
    lanes: KVec<Arc<Lane>>,
}

/// A port. It listens while a subsystem is linked to it.
#[pin_data]
pub(crate) struct Port {
    #[pin]
    inner: Mutex<Inner>,
    /// Ends the waiting between two tries to listen again.
    hook: Arc<Hook>,
    #[pin]
    work: Work<Port>,
    #[pin]
    repair: Work<Port, REPAIR>,
}

impl_has_work! {
    impl HasWork<Self> for Port { self.work }
    impl HasWork<Self, REPAIR> for Port { self.repair }
}

impl WorkItem for Port {
    type Pointer = Arc<Port>;

    fn run(this: Arc<Port>) {
        Self::serve(&this);
    }
}

impl WorkItem<REPAIR> for Port {
    type Pointer = Arc<Port>;

    fn run(this: Arc<Port>) {
        Self::repair(&this);
    }
}

/// Where it is to listen.
///
/// # Errors
///
/// `EINVAL`: the address is not said. `ENODATA`: no device has it.
fn place(inner: &mut Inner) -> Result<Place> {
    let net = inner.net.get_or_insert_with(Net::current).clone();
    let traddr = inner.traddr.as_ref().ok_or(EINVAL)?;
    let trsvcid = inner.trsvcid.as_ref().ok_or(EINVAL)?;
    let addr = sys::parse_addr(&net, traddr, trsvcid)?;
    let hints = config::hints(inner.trtype.as_ref());
    let all = registry::getinfo(&net, Some(&hints))?;
    // Without the port, which offers do not say.
    let info = all
        .iter()
        .find(|info| info.src_addr.len == addr.len && host_of(&info.src_addr) == host_of(&addr))
        .ok_or_else(config::enodata)?;
    let fabric = Fabric::open(
        net,
        name_str(&info.prov_name)?,
        name_str(&info.fabric_name)?,
    )?;
    let domain = Domain::open(&fabric, name_str(&info.domain_name)?)?;
    if domain.attr().caps & KFI_EP_KEYS == 0 {
        return Err(config::eopnotsupp());
    }
    Ok(Place { domain, addr })
}

impl Station {
    /// Listens at `place` for peers that have one of `keys`, if there are any.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`. Else what listening says.
    fn open(port: &Arc<Port>, place: &Place, keys: KVec<AuthKey>) -> Result<Arc<Self>> {
        let fabric = place.domain.fabric();
        let hook = Hook::new()?;
        let eq = Eq::open(fabric, 0, Some(hook.clone()))?;
        let pep = PassiveEp::open_for(fabric, &eq, &place.addr, 0, &keys)?;
        let domain = place.domain.clone();
        let station = Self {
            pep,
            eq,
            hook,
            domain,
            keys,
        };
        let station = Arc::new(station, GFP_KERNEL)?;
        station.hook.link(Link::Port(port.clone()));
        station
            .pep
            .listen(0)
            .inspect_err(|_| station.hook.unlink())?;
        Ok(station)
    }

    /// Whether it listens for these.
    fn is_for(&self, keys: &[AuthKey]) -> bool {
        let has = |key: &AuthKey| self.keys.iter().any(|of| of.is(key));
        self.keys.len() == keys.len() && keys.iter().all(has)
    }

    /// No request comes after this.
    fn close(&self) {
        self.pep.close();
        self.hook.unlink();
    }
}

/// The host's part of an address.
fn host_of(addr: &SockAddr) -> [u8; 16] {
    let mut host = [0; 16];
    let part = match addr.len {
        16 => addr.data.get(4..8),
        _ => addr.data.get(8..24),
    };
    for (to, from) in host.iter_mut().zip(part.unwrap_or_default()) {
        *to = *from;
    }
    host
}

impl Port {
    /// One that offers nothing yet.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let inner = Inner {
            trtype: None,
            traddr: None,
            trsvcid: None,
            subsystems: KVec::new(),
            net: None,
            place: None,
            station: None,
            lanes: KVec::new(),
        };
        let hook = Hook::new()?;
        Arc::pin_init(
            pin_init!(Self {
                inner <- new_mutex!(inner, "kfblk_port"),
                hook,
                work <- new_work!("Port::work"),
                repair <- new_work!("Port::repair"),
            }),
            GFP_KERNEL,
        )
    }

    /// Offers a subsystem.
    ///
    /// # Errors
    ///
    /// `EEXIST`: it is offered. Else what listening says.
    pub(crate) fn link(this: &Arc<Self>, subsystem: &Arc<Subsystem>) -> Result {
        let mut inner = this.inner.lock();
        let is_it = |other: &Arc<Subsystem>| Arc::ptr_eq(other, subsystem);
        if inner.subsystems.iter().any(is_it) {
            return Err(EEXIST);
        }
        inner.subsystems.push(subsystem.clone(), GFP_KERNEL)?;
        // Before its auth keys are looked at: who changes them looks for its ports afterwards.
        let listens = subsystem
            .add_port(this)
            .and_then(|()| Self::listen(this, &mut inner));
        if listens.is_err() {
            Self::take(this, &mut inner, subsystem);
        }
        listens
    }

    /// Takes a subsystem off, and has those that are left listened for.
    fn take(this: &Arc<Self>, inner: &mut Inner, subsystem: &Subsystem) {
        subsystem.drop_port(this);
        drop(config::take_ptr(&mut inner.subsystems, subsystem));
        Self::listen_or_later(this, inner);
    }

    /// Listens for whoever may come to what is offered; not at all if that is nothing.
    ///
    /// # Errors
    ///
    /// What listening says. It does not listen then.
    fn listen(this: &Arc<Self>, inner: &mut Inner) -> Result {
        if inner.subsystems.is_empty() {
            Self::listen_no_more(inner);
            inner.place = None;
            inner.net = None;
            return Ok(());
        }
        if inner.place.as_ref().is_some_and(|of| of.domain.is_gone()) {
            Self::listen_no_more(inner);
            inner.place = None;
            // What was had there is still to be ended.
            Self::listen_again(this);
        }
        Self::listen_for_all(this, inner).inspect_err(|_| Self::listen_no_more(inner))
    }

    fn listen_no_more(inner: &mut Inner) {
        if let Some(station) = inner.station.take() {
            station.close();
        }
    }

    fn listen_for_all(this: &Arc<Self>, inner: &mut Inner) -> Result {
        let mut keys = KVec::new();
        for subsystem in &inner.subsystems {
            subsystem.add_keys(&mut keys)?;
        }
        if inner.station.as_ref().is_some_and(|of| of.is_for(&keys)) {
            return Ok(());
        }
        let place = match &inner.place {
            Some(place) => place.clone(),
            None => place(inner)?,
        };
        // Who is just connecting has to try again.
        Self::listen_no_more(inner);
        inner.station = Some(Station::open(this, &place, keys)?);
        inner.place = Some(place);
        Ok(())
    }

    /// The auth keys of what it offers are others. That cannot be undone, for who had the old ones is out.
    pub(crate) fn renew(this: &Arc<Self>) {
        Self::listen_or_later(this, &mut this.inner.lock());
    }

    /// Listens for whoever may come now; if it cannot, it tries until it does.
    fn listen_or_later(this: &Arc<Self>, inner: &mut Inner) {
        let did = inner.station.is_some();
        if Self::listen(this, inner).is_err() {
            if did {
                pr_warn!("a port does not listen any more\n");
            }
            Self::listen_again(this);
        }
    }

    /// Tries to listen until it does.
    fn listen_again(this: &Arc<Self>) {
        // If it is queued already it will see to it.
        let _ = sys::ports().enqueue::<_, REPAIR>(this.clone());
    }

    /// Has it listen again, if it does not and should: whoever was served there comes back by itself.
    fn repair(this: &Arc<Self>) {
        Self::clear(this, Domain::is_gone);
        let idle = |inner: &Inner| inner.subsystems.is_empty() || inner.station.is_some();
        loop {
            {
                let mut inner = this.inner.lock();
                if idle(&inner) || Self::listen(this, &mut inner).is_ok() {
                    return;
                }
            }
            // Whatever ends the waiting: it is looked again.
            let done = || Ok(idle(&this.inner.lock()).then_some(()));
            let _ = this.hook.until(AGAIN, done);
        }
    }

    /// The device that it listens on is gone. Another one may have the address later.
    fn lost(this: &Arc<Self>, station: &Arc<Station>) {
        {
            let mut inner = this.inner.lock();
            let is_it = |of: &Arc<Station>| Arc::ptr_eq(of, station);
            if !inner.station.as_ref().is_some_and(is_it) {
                return;
            }
            inner.station = None;
            inner.place = None;
        }
        station.close();
        pr_warn!("the device that a port listens on is gone\n");
        // Of that one the end may not have been told yet.
        Self::clear(this, |of| {
            ptr::eq(of, &raw const *station.domain) || of.is_gone()
        });
        Self::listen_again(this);
    }

    /// Ends what was had on devices for which `which` says so.
    fn clear(this: &Arc<Self>, which: impl Fn(&Domain) -> bool) {
        while let Some(lane) = this.next_lane(|lane| which(lane.domain())) {
            lane.end();
        }
        loop {
            let found = {
                let inner = this.inner.lock();
                let mut all = inner.subsystems.iter();
                all.find(|of| of.has_export(&which)).cloned()
            };
            let Some(subsystem) = found else { return };
            subsystem.close_exports(&which);
        }
    }

    /// Offers it no more: its connections through this port have ended when this returns.
    pub(crate) fn unlink(this: &Arc<Self>, subsystem: &Arc<Subsystem>) {
        let (all, place) = {
            let mut inner = this.inner.lock();
            let place = inner.place.clone();
            Self::take(this, &mut inner, subsystem);
            (inner.subsystems.is_empty(), place)
        };
        while let Some(lane) = this.next_lane(|lane| all || lane.serves(subsystem)) {
            lane.end();
        }
        let own = place.map(|place| place.domain);
        subsystem.close_exports(|of| {
            let own = own.as_ref();
            of.is_gone() || own.is_some_and(|own| ptr::eq(of, &raw const **own))
        });
        this.hook.wake();
    }

    /// One of its connections for which `which` says so.
    fn next_lane(&self, which: impl Fn(&Lane) -> bool) -> Option<Arc<Lane>> {
        let inner = self.inner.lock();
        inner.lanes.iter().find(|lane| which(lane)).cloned()
    }

    /// The subsystem of a name, if it is offered.
    pub(crate) fn subsystem(&self, name: &Name) -> Option<Arc<Subsystem>> {
        let inner = self.inner.lock();
        inner
            .subsystems
            .iter()
            .find(|of| of.name() == name)
            .cloned()
    }

    /// Forgets a connection that has ended.
    pub(crate) fn forget(&self, lane: &Lane) {
        let taken = config::take_ptr(&mut self.inner.lock().lanes, lane);
        drop(taken);
    }

    /// Takes requests to connect.
    fn serve(this: &Arc<Self>) {
        loop {
            let station = this.inner.lock().station.clone();
            let Some(station) = station else { return };
            let Some(event) = station.eq.read() else {
                return;
            };
            if event.kind == KFI_CONN_ERROR {
                return Self::lost(this, &station);
            }
            let Some(request) = &event.request else {
                continue;
            };
            let (all, strangers) = {
                let inner = this.inner.lock();
                let strangers = inner.lanes.iter().filter(|lane| lane.is_stranger());
                (inner.lanes.len(), strangers.count())
            };
            if all >= LANES_MAX {
                let _ = request.reject(&[]);
                continue;
            }
            if strangers >= STRANGERS_MAX {
                if let Some(oldest) = this.next_lane(Lane::is_stranger) {
                    oldest.end();
                }
            }
            let device = event.data.first() == Some(&WANTED);
            // What cannot be served is refused: the request is dropped.
            let Ok(lane) = Lane::open(this, &station.domain, request, device) else {
                continue;
            };
            let kept = {
                let mut inner = this.inner.lock();
                let open = inner
                    .station
                    .as_ref()
                    .is_some_and(|of| Arc::ptr_eq(of, &station));
                open && inner.lanes.push(lane.clone(), GFP_KERNEL).is_ok()
            };
            if !kept || lane.accept().is_err() {
                lane.end();
            }
        }
    }

    /// What may be changed only while it does not listen.
    fn set(&self, set: impl FnOnce(&mut Inner)) -> Result {
        let mut inner = self.inner.lock();
        if !inner.subsystems.is_empty() {
            return Err(EBUSY);
        }
        set(&mut inner);
        Ok(())
    }
}

impl Item for Port {
    // Links keep a port from being removed.
    fn end(_this: &Arc<Self>) {}

    fn show(&self, attr: u32, out: &mut Text<'_>) -> Result {
        let inner = self.inner.lock();
        let name = match attr {
            0 => &inner.trtype,
            1 => &inner.traddr,
            2 => &inner.trsvcid,
            _ => return Err(EINVAL),
        };
        writeln!(out, "{}", name.as_ref().map_or("", Name::as_str))?;
        Ok(())
    }

    fn store(this: &Arc<Self>, attr: u32, text: &str) -> Result {
        let name = Some(config::name(text)?);
        match attr {
            0 => this.set(|inner| inner.trtype = name),
            1 => this.set(|inner| inner.traddr = name),
            2 => this.set(|inner| inner.trsvcid = name),
            _ => Err(EINVAL),
        }
    }
}
