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

/// The provider and device to use; `None` means any that fits.
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
    /// The offers: one per device, at least one.
    infos: Vec<Info>,
    /// Open domains of the first devices of `infos`, in order.
    domains: Vec<Arc<Domain>>,
}

impl Provider {
    /// Opens a fabric of each provider that has an offer.
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

    /// Opens an endpoint for a connection request, on the device where the request arrived. Returns
    /// `None` if no known device accepts the request, which then stays in `request`.
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
                // With several devices, only the device where the request arrived accepts it.
                Err(e) if matches!(e.error.errno(), Some(Errno::EINVAL | Errno::ENODEV)) => {
                    *request = Some(e.object);
                }
                Err(e) => return Err(e).during("open endpoint"),
            }
        }
        Ok(None)
    }

    /// Reads the list of devices again: devices may have been removed or added.
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
    /// Adds a device. A device is offered once per address.
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

/// Whether the failure means that the device has been removed.
fn is_gone(e: &Failure) -> bool {
    let Failure::Fabric { source, .. } = e else {
        return false;
    };
    matches!(source.errno(), Some(Errno::ENODEV | Errno::ENOENT))
}

/// The open fabrics: one of each provider with an offer, best first.
pub struct Node {
    device: Device,
    hints: Hints,
    providers: Vec<Arc<Provider>>,
}

/// An address without its port, for [`kfabric::resolve`], with the zone if there is one.
fn host(addr: SocketAddr) -> String {
    match addr {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        addr => addr.ip().to_string(),
    }
}

impl Node {
    /// Opens the fabrics that reach `peer`.
    ///
    /// # Errors
    ///
    /// - [`Failure::NoMatch`] if no provider reaches the peer.
    ///
    /// Also those of opening the device and the fabrics.
    pub fn to(select: &Select, peer: SocketAddr) -> Result<Self> {
        Self::open(select.hints().destination(&host(peer), peer.port()))
    }

    /// Opens the fabrics that can listen on `addr`, or on any address if `None`.
    ///
    /// # Errors
    ///
    /// - [`Failure::NoMatch`] if no provider has the address.
    ///
    /// Also those of opening the device and the fabrics.
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
    /// The errors of opening the domain.
    pub fn first_domain(&self) -> Result<Arc<Domain>> {
        self.providers[0].domain(0)
    }

    /// Returns the best provider for the peer now; the choice depends on the providers that the
    /// peer listens through.
    fn best(&self) -> Result<&Provider> {
        let infos = self.device.info(&self.hints).during("getinfo")?;
        let best = infos.first().ok_or(Failure::NoMatch)?;
        let mut providers = self.providers.iter();
        let found = providers.find(|p| p.name == best.provider());
        Ok(found.unwrap_or(&self.providers[0]))
    }

    /// Connects to a peer. While no program listens there, retries until the timeout expires.
    ///
    /// # Errors
    ///
    /// - [`Failure::Refused`] if the peer refuses and gives a reason.
    ///
    /// Also those of connecting.
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
                // On a timeout, the last failed attempt explains more than the timeout.
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

    /// Listens on an address through all providers: the best provider depends on where a peer is.
    ///
    /// # Errors
    ///
    /// - `EADDRINUSE` if the address is in use.
    /// - `EADDRNOTAVAIL` if the address is not one of this host.
    pub fn listen(&self, addr: SocketAddr) -> Result<Listener> {
        let mut addr = addr;
        let mut doors = Vec::new();
        // The first provider reaches most peers, and listens last: a peer that finds it listening
        // finds the others listening, too.
        for provider in self.providers.iter().rev() {
            let door = Door::open(provider.clone(), addr)?;
            // If the first provider chose the port, all providers use that port.
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

/// Text of a refusal: safe for terminals, without the transport's padding.
fn text(data: &[u8]) -> String {
    let text = String::from_utf8_lossy(data);
    let text = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
    crate::say::printable(text)
}

/// The passive endpoint of one provider, with its event queue.
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

/// The passive endpoints of a listener.
struct Doors {
    open: Vec<Arc<Door>>,
    /// Providers that no longer listen, because their device was removed.
    lost: Vec<String>,
}

/// Listens for connections through several providers.
pub struct Listener {
    device: Device,
    hints: Hints,
    addr: SocketAddr,
    /// The passive endpoints, one per provider.
    doors: Mutex<Doors>,
}

/// The next event of a listener.
#[derive(Debug)]
pub enum News {
    /// A connection request for the service.
    Request(ConnRequest),
    /// A provider no longer listens. The listener tries again each second, while the program waits
    /// for the next event.
    Lost {
        /// Name of the provider.
        provider: String,
        /// The cause.
        errno: Errno,
    },
    /// A provider listens again.
    Back {
        /// Name of the provider.
        provider: String,
    },
    /// The timeout expired.
    Nothing,
}

impl Listener {
    fn doors(&self) -> MutexGuard<'_, Doors> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address that the listener listens on.
    ///
    /// # Errors
    ///
    /// The errors of the kernel's `KFI_IOC_GETNAME` call.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        match self.doors().open.first() {
            Some(door) => door.pep.local_addr().during("getname"),
            None => Ok(self.addr),
        }
    }

    /// Names of the providers that the listener listens through.
    pub fn providers(&self) -> Vec<String> {
        let doors = self.doors();
        doors.open.iter().map(|d| d.provider.name.clone()).collect()
    }

    /// Waits for a connection request for `service`, or another event. Refuses requests for other
    /// services, and requests that need more than `memory` bytes registered here.
    ///
    /// # Errors
    ///
    /// The errors of the event queues.
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
                    drop(request.reject(b"too many messages outstanding"));
                }
                Some(hello) if Conn::slot_bytes(hello.shape) > memory => {
                    drop(request.reject(b"larger messages than this server takes"));
                }
                Some(hello) if hello.service == service => return Ok(News::Request(request)),
                // If the peer has given up meanwhile, rejecting fails: the listener goes on.
                Some(_) => drop(request.reject(b"another service listens here")),
                None => drop(request.reject(b"not a kfi client of this version")),
            }
        }
    }

    /// Removes a passive endpoint whose device was removed. Returns the provider's name.
    fn lose(&self, pep: u64) -> Option<String> {
        let mut doors = self.doors();
        let at = doors.open.iter().position(|d| d.pep.id().handle == pep)?;
        let name = doors.open.remove(at).provider.name.clone();
        doors.lost.push(name.clone());
        Some(name)
    }

    /// Listens again through a lost provider, if one of its devices has the address. Returns its
    /// name.
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

    /// Accepts a connection request.
    ///
    /// # Errors
    ///
    /// The errors of opening the endpoint and of accepting.
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
