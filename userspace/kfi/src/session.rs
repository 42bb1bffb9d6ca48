// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections for programs: opened in one call, with control messages and bounded waits.

mod conn;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kfabric::{
    Caps, ConnRequest, Device, Domain, Endpoint, Errno, Event, EventQueue, Fabric, Hints, Info,
    PassiveEndpoint,
};

use crate::error::{During, Failure, Result};
use crate::wire::{Hello, Service, Shape};
pub use conn::{Conn, Done};

/// Which provider and device to use; unset: whatever fits.
#[derive(Clone, Debug, Default)]
pub struct Select {
    /// Provider name.
    pub provider: Option<String>,
    /// Domain name.
    pub domain: Option<String>,
}

impl Select {
    fn hints(&self) -> Hints {
        let mut hints = Hints::new().caps(Caps::MSG | Caps::RMA);
        if let Some(provider) = &self.provider {
            hints = hints.provider(provider);
        }
        if let Some(domain) = &self.domain {
            hints = hints.domain(domain);
        }
        hints
    }
}

/// An open fabric of a provider, and its domains.
struct Provider {
    fabric: Fabric,
    name: String,
    devices: Mutex<Devices>,
}

/// The devices of a provider.
struct Devices {
    /// What was offered: each device once. There is one at least.
    infos: Vec<Info>,
    /// The domains of the first of them.
    domains: Vec<Arc<Domain>>,
}

impl Provider {
    /// Opens a fabric of each provider that is offered.
    fn all(device: &Device, hints: &Hints) -> Result<Vec<Self>> {
        let mut providers: Vec<Self> = Vec::new();
        for info in device.info(hints).during("getinfo")? {
            match providers.iter_mut().find(|p| p.name == info.provider()) {
                Some(known) => known.devices().add(info),
                None => providers.push(Self {
                    fabric: device.fabric(&info).during("open fabric")?,
                    name: info.provider().to_owned(),
                    devices: Mutex::new(Devices {
                        infos: vec![info],
                        domains: Vec::new(),
                    }),
                }),
            }
        }
        Ok(providers)
    }

    fn devices(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn info(&self) -> Info {
        self.devices().infos[0].clone()
    }

    fn domain(&self, nth: usize) -> Result<Arc<Domain>> {
        let mut devices = self.devices();
        while devices.domains.len() <= nth {
            let info = devices.infos.get(devices.domains.len());
            let domain = self.fabric.domain(info.ok_or(Failure::NoMatch)?);
            devices
                .domains
                .push(Arc::new(domain.during("open domain")?));
        }
        Ok(devices.domains[nth].clone())
    }

    /// Opens an endpoint for a request, on the device that it came in on; none: that is not known.
    fn endpoint_for(
        &self,
        request: &mut Option<ConnRequest>,
    ) -> Result<Option<(Arc<Domain>, Endpoint)>> {
        let count = self.devices().infos.len();
        for nth in 0..count {
            let domain = match self.domain(nth) {
                Err(e) if is_gone(&e) => continue,
                domain => domain?,
            };
            let Some(asked) = request.take() else { break };
            match domain.endpoint_for(asked, &Conn::attr()) {
                Ok(endpoint) => return Ok(Some((domain, endpoint))),
                // With several devices, only the one that it came in on takes it.
                Err(e) if matches!(e.error.errno(), Some(Errno::EINVAL | Errno::ENODEV)) => {
                    *request = Some(e.object);
                }
                Err(e) => return Err(e).during("open endpoint"),
            }
        }
        Ok(None)
    }

    /// Looks anew which devices there are: some may be gone, or new.
    fn look(&self, device: &Device, hints: &Hints) -> Result<()> {
        let mut infos = device.info(hints).during("getinfo")?;
        infos.retain(|info| info.provider() == self.name);
        let mut devices = Devices {
            infos: Vec::new(),
            domains: Vec::new(),
        };
        for info in infos {
            devices.add(info);
        }
        if devices.infos.is_empty() {
            return Err(Failure::NoMatch);
        }
        *self.devices() = devices;
        Ok(())
    }
}

impl Devices {
    /// Adds a device, which is offered once for each of its addresses.
    fn add(&mut self, info: Info) {
        let mut all = self.infos.iter();
        let fits = self
            .infos
            .first()
            .is_none_or(|first| first.fabric() == info.fabric());
        if fits && all.all(|known| known.domain() != info.domain()) {
            self.infos.push(info);
        }
    }
}

/// Whether what failed did so because there is no such device any more.
fn is_gone(e: &Failure) -> bool {
    let Failure::Fabric { source, .. } = e else {
        return false;
    };
    matches!(source.errno(), Some(Errno::ENODEV | Errno::ENOENT))
}

/// What is open: a fabric of each provider that was offered, the best first.
pub struct Node {
    device: Device,
    hints: Hints,
    providers: Vec<Arc<Provider>>,
}

/// An address without its port, as [`kfabric::resolve`] takes it: with the zone, if it has one.
fn host(addr: SocketAddr) -> String {
    match addr {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        addr => addr.ip().to_string(),
    }
}

impl Node {
    /// Opens what reaches `peer`.
    ///
    /// # Errors
    ///
    /// [`Failure::NoMatch`]; whatever opening says.
    pub fn to(select: &Select, peer: SocketAddr) -> Result<Self> {
        Self::open(select.hints().destination(&host(peer), peer.port()))
    }

    /// Opens what may listen on `addr`, or (none) on any address.
    ///
    /// # Errors
    ///
    /// [`Failure::NoMatch`]; whatever opening says.
    pub fn at(select: &Select, addr: Option<SocketAddr>) -> Result<Self> {
        let hints = select.hints();
        Self::open(match addr.filter(|addr| !addr.ip().is_unspecified()) {
            Some(addr) => hints.source(&host(addr), addr.port()),
            None => hints,
        })
    }

    fn open(hints: Hints) -> Result<Self> {
        let device = Device::open().during("open")?;
        let providers = Provider::all(&device, &hints)?;
        if providers.is_empty() {
            return Err(Failure::NoMatch);
        }
        Ok(Self {
            device,
            hints,
            providers: providers.into_iter().map(Arc::new).collect(),
        })
    }

    /// The best offer.
    pub fn info(&self) -> Info {
        self.providers[0].info()
    }

    /// The domain that the best offer names.
    ///
    /// # Errors
    ///
    /// What opening it says.
    pub fn first_domain(&self) -> Result<Arc<Domain>> {
        self.providers[0].domain(0)
    }

    /// Who is the best for the peer just now: which one is also a matter of by whom it listens.
    fn best(&self) -> Result<&Provider> {
        let infos = self.device.info(&self.hints).during("getinfo")?;
        let best = infos.first().ok_or(Failure::NoMatch)?;
        let mut providers = self.providers.iter();
        let found = providers.find(|p| p.name == best.provider());
        Ok(found.unwrap_or(&self.providers[0]))
    }

    /// Connects to a peer. While nobody listens there it is tried again until time is up.
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] when the peer says why it does not want to; otherwise what connecting
    /// says.
    pub fn connect(
        &self,
        peer: SocketAddr,
        service: Service,
        shape: Shape,
        timeout: Duration,
    ) -> Result<Conn> {
        let end = Instant::now() + timeout;
        let mut last = None;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let provider = self.best()?;
            let domain = provider.domain(0)?;
            let endpoint = domain.endpoint(&Conn::attr()).during("open endpoint")?;
            let mut conn = Conn::new(provider, domain, endpoint, shape)?;
            let hello = Hello { service, shape }.encode();
            conn.ep.connect(peer, &hello).during("connect")?;
            let error = match conn.eq.wait(left).and_then(Event::connected) {
                Ok(_) => {
                    conn.timeout = timeout;
                    return Ok(conn);
                }
                // Time is up: what went wrong before says more.
                Err(kfabric::Error::Timeout { what, .. }) => {
                    last.unwrap_or(kfabric::Error::Timeout {
                        what,
                        after: timeout,
                    })
                }
                Err(error) => error,
            };
            let kfabric::Error::Connect(failure) = &error else {
                return Err(error).during("connect");
            };
            let why = text(&failure.data);
            if !why.is_empty() {
                return Err(Failure::Refused {
                    what: "connect",
                    why,
                });
            }
            let again = matches!(
                failure.errno,
                Errno::ECONNREFUSED | Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH
            );
            let pause = Duration::from_millis(200);
            if !again || left < pause {
                return Err(error).during("connect");
            }
            last = Some(error);
            drop(conn);
            std::thread::sleep(pause);
        }
    }

    /// Listens on an address, by all providers: which one suits a peer depends on where it is.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `EADDRNOTAVAIL`.
    pub fn listen(&self, addr: SocketAddr) -> Result<Listener> {
        let mut addr = addr;
        let mut doors = Vec::new();
        // Whoever finds the one that reaches most peers finds the others.
        for provider in self.providers.iter().rev() {
            let door = Door::open(provider.clone(), addr)?;
            // If the first one chose a port, it is everybody's.
            addr.set_port(door.pep.local_addr().during("getname")?.port());
            doors.push(Arc::new(door));
        }
        Ok(Listener {
            device: self.device.clone(),
            hints: self.hints.clone(),
            addr,
            doors: Mutex::new(Doors {
                open: doors,
                lost: Vec::new(),
            }),
        })
    }
}

/// Text of a refusal: printable, without the transport's padding.
fn text(data: &[u8]) -> String {
    let text = String::from_utf8_lossy(data);
    let text = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
    crate::say::printable(text)
}

/// Where those come in who connect by one provider.
struct Door {
    provider: Arc<Provider>,
    pep: PassiveEndpoint,
    eq: EventQueue,
}

impl Door {
    fn open(provider: Arc<Provider>, addr: SocketAddr) -> Result<Self> {
        let fabric = &provider.fabric;
        let eq = fabric.event_queue(0).during("open event queue")?;
        let pep = fabric.passive_endpoint(&eq, addr, 0).during("listen")?;
        pep.listen(0).during("listen")?;
        Ok(Self { provider, pep, eq })
    }
}

/// The doors of a listener.
struct Doors {
    open: Vec<Arc<Door>>,
    /// Providers that listened, and do not: their device is gone.
    lost: Vec<String>,
}

/// Listens for connections.
pub struct Listener {
    device: Device,
    hints: Hints,
    addr: SocketAddr,
    /// One for each provider.
    doors: Mutex<Doors>,
}

/// What happens to a listener.
#[derive(Debug)]
pub enum News {
    /// A request for the service.
    Request(ConnRequest),
    /// A provider listens no more. It is tried again each second, when the next news is waited for.
    Lost {
        /// Its name.
        provider: String,
        /// Why.
        errno: Errno,
    },
    /// A provider that was lost listens again.
    Back {
        /// Its name.
        provider: String,
    },
    /// Time is up.
    Nothing,
}

impl Listener {
    fn doors(&self) -> MutexGuard<'_, Doors> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address it listens on.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        match self.doors().open.first() {
            Some(door) => door.pep.local_addr().during("getname"),
            None => Ok(self.addr),
        }
    }

    /// The names of the providers that it listens by.
    pub fn providers(&self) -> Vec<String> {
        let doors = self.doors();
        doors.open.iter().map(|d| d.provider.name.clone()).collect()
    }

    /// Waits for a request for one of our services; others are refused, and who would have more than
    /// `memory` bytes registered here. Or for other news.
    ///
    /// # Errors
    ///
    /// The queue's.
    pub fn next(&self, service: Service, memory: u64, timeout: Duration) -> Result<News> {
        let end = Instant::now() + timeout;
        loop {
            let (doors, lost) = {
                let doors = self.doors();
                (doors.open.clone(), !doors.lost.is_empty())
            };
            let mut left = end.saturating_duration_since(Instant::now());
            if lost {
                if let Some(provider) = self.listen_again() {
                    return Ok(News::Back { provider });
                }
                left = left.min(Duration::from_secs(1));
            }
            if doors.is_empty() {
                std::thread::sleep(left);
            }
            let queues: Vec<_> = doors.iter().map(|door| &door.eq).collect();
            let request = match EventQueue::wait_any(&queues, left) {
                Ok(Event::ConnRequest(request)) => request,
                Ok(Event::ConnFailed(failure)) => match self.lose(failure.object) {
                    Some(provider) => {
                        let errno = failure.errno;
                        return Ok(News::Lost { provider, errno });
                    }
                    None => continue,
                },
                Ok(_) => continue,
                Err(kfabric::Error::Timeout { .. }) if Instant::now() < end => continue,
                Err(kfabric::Error::Timeout { .. }) => return Ok(News::Nothing),
                Err(e) => return Err(e).during("wait for a connection"),
            };
            match Hello::decode(&request.data) {
                Some(hello) if hello.shape.window > Conn::DEPTH as usize => {
                    drop(request.reject(b"too many messages under way"));
                }
                Some(hello) if Conn::slot_bytes(hello.shape) > memory => {
                    drop(request.reject(b"larger messages than this server takes"));
                }
                Some(hello) if hello.service == service => return Ok(News::Request(request)),
                // That the peer is gone meanwhile is no reason to stop listening.
                Some(_) => drop(request.reject(b"another service listens here")),
                None => drop(request.reject(b"not a kfi client of this version")),
            }
        }
    }

    /// The device under a passive endpoint is gone: which provider's that was.
    fn lose(&self, pep: u64) -> Option<String> {
        let mut doors = self.doors();
        let at = doors.open.iter().position(|d| d.pep.id().handle == pep)?;
        let name = doors.open.remove(at).provider.name.clone();
        doors.lost.push(name.clone());
        Some(name)
    }

    /// Listens by a provider that was lost, if one of its devices has the address again.
    fn listen_again(&self) -> Option<String> {
        let providers = Provider::all(&self.device, &self.hints).ok()?;
        let mut doors = self.doors();
        for provider in providers {
            let Some(at) = doors.lost.iter().position(|name| *name == provider.name) else {
                continue;
            };
            if let Ok(door) = Door::open(Arc::new(provider), self.addr) {
                doors.open.push(Arc::new(door));
                return Some(doors.lost.remove(at));
            }
        }
        None
    }

    /// Accepts a request.
    ///
    /// # Errors
    ///
    /// What opening the endpoint or accepting says.
    pub fn accept(&self, request: ConnRequest, timeout: Duration) -> Result<Conn> {
        let shape = Hello::decode(&request.data).map_or(Shape::default(), |hello| hello.shape);
        let door = {
            let doors = self.doors();
            let mut doors = doors.open.iter();
            let door = doors.find(|door| door.pep.id().handle == request.listener);
            door.ok_or(Failure::NoMatch)?.clone()
        };
        let provider = &door.provider;
        let mut request = Some(request);
        let mut found = provider.endpoint_for(&mut request)?;
        if found.is_none() {
            provider.look(&self.device, &self.hints)?;
            found = provider.endpoint_for(&mut request)?;
        }
        let (domain, endpoint) = found.ok_or(Failure::NoMatch)?;
        let mut conn = Conn::new(provider, domain, endpoint, shape)?;
        conn.ep.accept(&[]).during("accept")?;
        conn.eq
            .wait(timeout)
            .and_then(Event::connected)
            .during("accept")?;
        conn.timeout = timeout;
        Ok(conn)
    }
}
