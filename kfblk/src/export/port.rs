// SPDX-License-Identifier: GPL-2.0
//! Ports: addresses at which subsystems are offered.

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
    base::name::name_str,
    objects::{
        domain::Domain,
        eq::Eq,
        fabric::Fabric,
        pep::PassiveEp,
        waiter::Waiter, //
    },
    provider::registry,
    pure::blk::{
        device::WANTED,
        share::{
            self,
            Limits,
            Source,
            Verdict, //
        },
        Name, //
    },
    sys::net::Net,
    uapi::*,
};

use super::{
    connection::Connection,
    subsystem::Subsystem,
    take_ptr, //
};
use crate::{
    attr::{
        self,
        Item,
        Text, //
    },
    errno,
    offer,
    sys,
    waiter::{
        self,
        QueueWaiter,
        Receiver, //
    }, //
};

/// Connections of a port, at most.
const CONNECTIONS_MAX: usize = 4096;
/// Limits for a port's connections. One source address has a quarter of them.
const LIMITS: Limits = Limits {
    all: CONNECTIONS_MAX,
    of_source: CONNECTIONS_MAX / 4,
    strangers: 128,
    strangers_of_source: 32,
};
/// Identifies the work item that makes a port listen again.
const REPAIR: u64 = 1;
/// Time between two attempts to listen, in milliseconds.
const AGAIN: u32 = 1000;

/// Run-time state of a listening port.
struct Station {
    // Dropped in this order.
    pep: Arc<PassiveEp>,
    eq: Arc<Eq>,
    waiter: Arc<QueueWaiter<Arc<Port>>>,
    domain: Arc<Domain>,
    /// Auth keys, one of which a peer must prove; empty if none is required.
    keys: KVec<AuthKey>,
}

/// Domain and address of a port, from its first subsystem to its last.
#[derive(Clone)]
struct Place {
    domain: Arc<Domain>,
    addr: SockAddr,
    /// Other hosts may reach the address.
    is_wide: bool,
}

struct Inner {
    trtype: Option<Name>,
    traddr: Option<Name>,
    trsvcid: Option<Name>,
    subsystems: KVec<Arc<Subsystem>>,
    /// Network namespace of the task that linked the first subsystem.
    net: Option<Net>,
    place: Option<Place>,
    station: Option<Arc<Station>>,
    connections: KVec<Arc<Connection>>,
}

/// A port, which listens while a subsystem is linked.
#[pin_data]
pub(crate) struct Port {
    #[pin]
    inner: Mutex<Inner>,
    /// Wakes the task that waits between two attempts to listen.
    waiter: Arc<Waiter>,
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

impl Receiver for Arc<Port> {
    type Batch = ();

    // A station has no completion queue.
    fn completed(&self) {}

    fn finish((): (), _may_sleep: bool) -> bool {
        false
    }

    // The port's work handles connection requests.
    fn event(&self) {
        // Queued work needs no second entry: it reads the queue when it runs.
        let _ = sys::exports().enqueue::<_, 0>(self.clone());
    }
}

/// Finds the domain and the address to listen at.
///
/// # Errors
///
/// - `EINVAL` if the address or service is not set.
/// - `ENODATA` if no device has the address.
/// - `EOPNOTSUPP` if the device has no endpoint-scoped keys.
fn place(inner: &mut Inner) -> Result<Place> {
    let net = inner.net.get_or_insert_with(Net::current).clone();
    let traddr = inner.traddr.as_ref().ok_or(EINVAL)?;
    let trsvcid = inner.trsvcid.as_ref().ok_or(EINVAL)?;
    let addr = sys::parse_addr(&net, traddr, trsvcid)?;
    let hints = offer::hints(inner.trtype.as_ref());
    let all = registry::getinfo(&net, Some(&hints))?;
    // Offers carry no port number, so only the host parts are compared.
    let info = all
        .iter()
        .find(|info| info.src_addr.len == addr.len && host_of(&info.src_addr) == host_of(&addr))
        .ok_or_else(errno::enodata)?;
    let fabric = Fabric::open(
        net,
        name_str(&info.prov_name)?,
        name_str(&info.fabric_name)?,
    )?;
    let domain = Domain::open(&fabric, name_str(&info.domain_name)?)?;
    if domain.attr().caps & KFI_EP_KEYS == 0 {
        return Err(errno::eopnotsupp());
    }
    let is_wide = name_str(&info.prov_name)? != "kshm" && !is_loopback(&addr);
    Ok(Place {
        domain,
        addr,
        is_wide,
    })
}

impl Station {
    /// Listens at `place`. If `keys` is not empty, each peer must prove one of them.
    ///
    /// # Errors
    ///
    /// - `EADDRINUSE` if the address is in use.
    /// - Errors of [`PassiveEp::open_for`] and `listen`.
    fn open(port: &Arc<Port>, place: &Place, keys: KVec<AuthKey>) -> Result<Arc<Self>> {
        let fabric = place.domain.fabric();
        let waiter = QueueWaiter::<Arc<Port>>::new()?;
        let eq = Eq::open(fabric, 0, Some(waiter.clone()))?;
        let pep = PassiveEp::open_for(fabric, &eq, &place.addr, 0, &keys)?;
        let domain = place.domain.clone();
        let station = Self {
            pep,
            eq,
            waiter,
            domain,
            keys,
        };
        let station = Arc::new(station, GFP_KERNEL)?;
        station.waiter.link(port.clone());
        station
            .pep
            .listen(0)
            .inspect_err(|_| station.waiter.unlink())?;
        Ok(station)
    }

    /// Returns whether the station listens for exactly these auth keys.
    fn is_for(&self, keys: &[AuthKey]) -> bool {
        let has = |key: &AuthKey| self.keys.iter().any(|of| of.is(key));
        self.keys.len() == keys.len() && keys.iter().all(has)
    }

    /// Closes the passive endpoint: no connection request comes after the return.
    fn close(&self) {
        self.pep.close();
        self.waiter.unlink();
    }
}

/// Returns the host part of an address.
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

/// Returns whether only this host can reach an address.
fn is_loopback(addr: &SockAddr) -> bool {
    let host = host_of(addr);
    match addr.len {
        16 => host.first() == Some(&127),
        _ => u128::from_be_bytes(host) == 1,
    }
}

/// Returns the address that a peer's connections are counted by.
pub(super) fn source_of(addr: &SockAddr) -> Source {
    match addr.len {
        16 => share::source(addr.data.get(4..8).unwrap_or_default()),
        _ => share::source(&host_of(addr)),
    }
}

impl Port {
    /// Makes a port that offers no subsystem.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let inner = Inner {
            trtype: None,
            traddr: None,
            trsvcid: None,
            subsystems: KVec::new(),
            net: None,
            place: None,
            station: None,
            connections: KVec::new(),
        };
        let waiter = waiter::waiter()?;
        Arc::pin_init(
            pin_init!(Self {
                inner <- new_mutex!(inner, "kfblk_port"),
                waiter,
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
    /// - `EEXIST` if the port offers the subsystem already.
    /// - Errors of [`place`] and [`Station::open`].
    pub(crate) fn link(this: &Arc<Self>, subsystem: &Arc<Subsystem>) -> Result {
        let mut inner = this.inner.lock();
        let is_it = |other: &Arc<Subsystem>| Arc::ptr_eq(other, subsystem);
        if inner.subsystems.iter().any(is_it) {
            return Err(EEXIST);
        }
        inner.subsystems.push(subsystem.clone(), GFP_KERNEL)?;
        // Add the port before reading auth keys: a task that changes keys renews the ports
        // afterwards.
        let listens = subsystem
            .add_port(this)
            .and_then(|()| Self::listen(this, &mut inner));
        match &listens {
            Ok(()) => Self::warn(&inner, subsystem),
            Err(_) => Self::take(this, &mut inner, subsystem),
        }
        listens
    }

    /// Warns of an export that every host in the network may use.
    fn warn(inner: &Inner, subsystem: &Subsystem) {
        let (Some(place), Some(station)) = (&inner.place, &inner.station) else {
            return;
        };
        if station.keys.is_empty() && subsystem.is_for_all() && place.is_wide {
            pr_warn!(
                "export {}: every host that reaches {} may use the export, which has no auth keys\n",
                subsystem.name().as_str(),
                inner.traddr.as_ref().map_or("", Name::as_str)
            );
        }
    }

    /// Removes a subsystem, and listens for the remaining ones.
    fn take(this: &Arc<Self>, inner: &mut Inner, subsystem: &Subsystem) {
        subsystem.drop_port(this);
        drop(take_ptr(&mut inner.subsystems, subsystem));
        Self::listen_or_later(this, inner);
    }

    /// Listens for the initiators of the offered subsystems. If there is no subsystem, stops
    /// listening.
    ///
    /// # Errors
    ///
    /// - Errors of [`place`] and [`Station::open`]. The port does not listen then.
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
            // The work also ends the old device's connections and registrations.
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
        // A peer that connects at this moment must try again.
        Self::listen_no_more(inner);
        inner.station = Some(Station::open(this, &place, keys)?);
        inner.place = Some(place);
        Ok(())
    }

    /// Applies changed auth keys. Does not fail: connections with the old keys are already closed.
    pub(crate) fn renew(this: &Arc<Self>) {
        Self::listen_or_later(this, &mut this.inner.lock());
    }

    /// Listens for the present initiators. If that fails, schedules attempts until one succeeds.
    fn listen_or_later(this: &Arc<Self>, inner: &mut Inner) {
        let did = inner.station.is_some();
        if Self::listen(this, inner).is_err() {
            if did {
                pr_warn!("a port does not listen any more\n");
            }
            Self::listen_again(this);
        }
    }

    /// Schedules attempts to listen until one succeeds.
    fn listen_again(this: &Arc<Self>) {
        // Queued work needs no second entry: it reads the port's state when it runs.
        let _ = sys::ports().enqueue::<_, REPAIR>(this.clone());
    }

    /// Makes the port listen again if it should. Initiators reconnect on their own.
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
            // The loop checks the state again, whichever reason ends the wait.
            let done = || Ok(idle(&this.inner.lock()).then_some(()));
            let _ = this.waiter.until(AGAIN, done);
        }
    }

    /// Handles the removal of the port's device. Another device may get the address later.
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
        // The domain may not report the removal yet.
        Self::clear(this, |of| {
            ptr::eq(of, &raw const *station.domain) || of.is_gone()
        });
        Self::listen_again(this);
    }

    /// Ends connections and registrations on domains that `which` selects.
    fn clear(this: &Arc<Self>, which: impl Fn(&Domain) -> bool) {
        while let Some(connection) = this.next_connection(|connection| which(connection.domain())) {
            connection.end();
        }
        loop {
            let found = {
                let inner = this.inner.lock();
                let mut all = inner.subsystems.iter();
                all.find(|of| of.has_registration(&which)).cloned()
            };
            let Some(subsystem) = found else { return };
            subsystem.close_registrations(&which);
        }
    }

    /// Withdraws a subsystem. Its connections through this port have ended on return.
    pub(crate) fn unlink(this: &Arc<Self>, subsystem: &Arc<Subsystem>) {
        let (all, place) = {
            let mut inner = this.inner.lock();
            let place = inner.place.clone();
            Self::take(this, &mut inner, subsystem);
            (inner.subsystems.is_empty(), place)
        };
        while let Some(connection) =
            this.next_connection(|connection| all || connection.serves(subsystem))
        {
            connection.end();
        }
        let own = place.map(|place| place.domain);
        subsystem.close_registrations(|of| {
            let own = own.as_ref();
            of.is_gone() || own.is_some_and(|own| ptr::eq(of, &raw const **own))
        });
        this.waiter.wake();
    }

    /// Returns a connection that `which` selects.
    fn next_connection(&self, which: impl Fn(&Connection) -> bool) -> Option<Arc<Connection>> {
        let inner = self.inner.lock();
        inner
            .connections
            .iter()
            .find(|connection| which(connection))
            .cloned()
    }

    /// Returns the offered subsystem of this name.
    pub(crate) fn subsystem(&self, name: &Name) -> Option<Arc<Subsystem>> {
        let inner = self.inner.lock();
        inner
            .subsystems
            .iter()
            .find(|of| of.name() == name)
            .cloned()
    }

    /// Returns how many other connections of the source of `connection` have memory for
    /// block-backed requests. Connections with an auth key do not count.
    pub(super) fn memory_of(&self, connection: &Connection) -> usize {
        let inner = self.inner.lock();
        let near = |of: &Connection| {
            of.source() == connection.source() && !of.is_proven() && of.has_memory()
        };
        let others = inner
            .connections
            .iter()
            .filter(|of| !ptr::eq(&raw const ***of, connection));
        others.filter(|of| near(of)).count()
    }

    /// Removes a connection that has ended.
    pub(super) fn forget(&self, connection: &Connection) {
        let taken = take_ptr(&mut self.inner.lock().connections, connection);
        drop(taken);
    }

    /// Handles connection requests.
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
            let (verdict, oldest) = {
                let inner = this.inner.lock();
                let connections = inner
                    .connections
                    .iter()
                    .map(|connection| (connection.source(), connection.stage()));
                let verdict =
                    share::decide(connections, source_of(&request.info().dest_addr), &LIMITS);
                match verdict {
                    Verdict::InsteadOf(index) => (verdict, inner.connections.get(index).cloned()),
                    _ => (verdict, None),
                }
            };
            if verdict == Verdict::Refuse {
                let _ = request.reject(&[]);
                continue;
            }
            // The connection's work ends it, because that may take long and other requests wait
            // here.
            if let Some(oldest) = oldest {
                oldest.doom();
            }
            let roomy = event.data.first() == Some(&WANTED);
            // If the endpoint cannot be opened, dropping the request refuses it.
            let Ok(connection) = Connection::open(this, &station.domain, request, roomy) else {
                continue;
            };
            let kept = {
                let mut inner = this.inner.lock();
                let open = inner
                    .station
                    .as_ref()
                    .is_some_and(|of| Arc::ptr_eq(of, &station));
                open && inner
                    .connections
                    .push(connection.clone(), GFP_KERNEL)
                    .is_ok()
            };
            if !kept || connection.accept().is_err() {
                connection.end();
            }
        }
    }

    /// Changes settings that are fixed while the port offers a subsystem.
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
    // configfs links keep a port from being removed while it offers a subsystem.
    fn end(_this: &Arc<Self>) {}

    fn show(&self, attr: u32, out: &mut Text<'_>) -> Result {
        let inner = self.inner.lock();
        let name = match attr {
            sys::KFBLK_PORT_ADDR_TRTYPE => &inner.trtype,
            sys::KFBLK_PORT_ADDR_TRADDR => &inner.traddr,
            sys::KFBLK_PORT_ADDR_TRSVCID => &inner.trsvcid,
            _ => return Err(EINVAL),
        };
        writeln!(out, "{}", name.as_ref().map_or("", Name::as_str))?;
        Ok(())
    }

    fn store(this: &Arc<Self>, attr: u32, text: &str) -> Result {
        let name = Some(attr::name(text)?);
        match attr {
            sys::KFBLK_PORT_ADDR_TRTYPE => this.set(|inner| inner.trtype = name),
            sys::KFBLK_PORT_ADDR_TRADDR => this.set(|inner| inner.traddr = name),
            sys::KFBLK_PORT_ADDR_TRSVCID => this.set(|inner| inner.trsvcid = name),
            _ => Err(EINVAL),
        }
    }
}
