// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections for programs: opened in one call, with control messages and bounded waits.

mod conn;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kfabric::{
    Caps, ConnRequest, Device, Domain, Errno, Event, EventQueue, Fabric, Hints, Info,
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
    /// What was taken: each device once.
    infos: Vec<Info>,
    domains: Mutex<Vec<Arc<Domain>>>,
}

impl Provider {
    fn name(&self) -> &str {
        self.infos[0].provider()
    }

    fn domain(&self, nth: usize) -> Result<Arc<Domain>> {
        let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        while domains.len() <= nth {
            let info = self.infos.get(domains.len()).ok_or(Failure::NoMatch)?;
            domains.push(Arc::new(self.fabric.domain(info).during("open domain")?));
        }
        Ok(domains[nth].clone())
    }
}

/// What is open: a fabric of each provider that was offered, the best first.
pub struct Node {
    device: Device,
    hints: Hints,
    providers: Vec<Provider>,
}

impl Node {
    /// Opens what reaches `peer`.
    ///
    /// # Errors
    ///
    /// [`Failure::NoMatch`]; whatever opening says.
    pub fn to(select: &Select, peer: SocketAddr) -> Result<Self> {
        let ip = peer.ip().to_string();
        Self::open(select.hints().destination(&ip, peer.port()))
    }

    /// Opens what may listen on `addr`, or (none) on any address.
    ///
    /// # Errors
    ///
    /// [`Failure::NoMatch`]; whatever opening says.
    pub fn at(select: &Select, addr: Option<SocketAddr>) -> Result<Self> {
        let hints = select.hints();
        Self::open(match addr.filter(|addr| !addr.ip().is_unspecified()) {
            Some(addr) => hints.source(&addr.ip().to_string(), addr.port()),
            None => hints,
        })
    }

    fn open(hints: Hints) -> Result<Self> {
        let device = Device::open().during("open")?;
        let mut providers: Vec<Provider> = Vec::new();
        for info in device.info(&hints).during("getinfo")? {
            let known = providers.iter_mut().find(|p| p.name() == info.provider());
            let Some(known) = known else {
                providers.push(Provider {
                    fabric: device.fabric(&info).during("open fabric")?,
                    infos: vec![info],
                    domains: Mutex::default(),
                });
                continue;
            };
            // A device is offered once for each of its addresses.
            let fits = known.infos[0].fabric() == info.fabric();
            if fits && known.infos.iter().all(|i| i.domain() != info.domain()) {
                known.infos.push(info);
            }
        }
        if providers.is_empty() {
            return Err(Failure::NoMatch);
        }
        Ok(Self {
            device,
            hints,
            providers,
        })
    }

    /// The best offer.
    pub fn info(&self) -> &Info {
        &self.providers[0].infos[0]
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
        let found = providers.find(|p| p.name() == best.provider());
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
    pub fn listen(&self, addr: SocketAddr) -> Result<Listener<'_>> {
        let mut addr = addr;
        let mut doors = Vec::new();
        // Whoever finds the one that reaches most peers finds the others.
        for provider in self.providers.iter().rev() {
            let fabric = &provider.fabric;
            let eq = fabric.event_queue(0).during("open event queue")?;
            let pep = fabric.passive_endpoint(&eq, addr, 0).during("listen")?;
            pep.listen(0).during("listen")?;
            // If the first one chose a port, it is everybody's.
            addr.set_port(pep.local_addr().during("getname")?.port());
            doors.push(Door { provider, pep, eq });
        }
        Ok(Listener { doors })
    }
}

/// Text of a refusal: printable, without the transport's padding.
fn text(data: &[u8]) -> String {
    let text = String::from_utf8_lossy(data);
    text.chars()
        .filter(|c| !c.is_control())
        .collect::<String>()
        .trim()
        .to_owned()
}

/// Where those come in who connect by one provider.
struct Door<'n> {
    provider: &'n Provider,
    pep: PassiveEndpoint,
    eq: EventQueue,
}

/// Listens for connections.
pub struct Listener<'n> {
    /// One for each provider; there is one at least.
    doors: Vec<Door<'n>>,
}

impl Listener<'_> {
    /// The address it listens on.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.doors[0].pep.local_addr().during("getname")
    }

    /// The names of the providers that it listens by.
    pub fn providers(&self) -> Vec<&str> {
        self.doors.iter().map(|door| door.provider.name()).collect()
    }

    /// Waits for a request for one of our services; others are refused. `None`: time is up.
    ///
    /// # Errors
    ///
    /// The queue's.
    pub fn next_request(&self, service: Service, timeout: Duration) -> Result<Option<ConnRequest>> {
        let end = Instant::now() + timeout;
        let queues: Vec<_> = self.doors.iter().map(|door| &door.eq).collect();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let request = match EventQueue::wait_any(&queues, left) {
                Ok(Event::ConnRequest(request)) => request,
                Ok(_) => continue,
                Err(kfabric::Error::Timeout { .. }) => return Ok(None),
                Err(e) => return Err(e).during("wait for a connection"),
            };
            match Hello::decode(&request.data) {
                Some(hello) if hello.shape.window > Conn::DEPTH as usize => {
                    drop(request.reject(b"too many messages under way"));
                }
                Some(hello) if hello.service == service => return Ok(Some(request)),
                // That the peer is gone meanwhile is no reason to stop listening.
                Some(_) => drop(request.reject(b"another service listens here")),
                None => drop(request.reject(b"not a kfi client of this version")),
            }
        }
    }

    /// Accepts a request.
    ///
    /// # Errors
    ///
    /// What opening the endpoint or accepting says.
    pub fn accept(&self, request: ConnRequest, timeout: Duration) -> Result<Conn> {
        let shape = Hello::decode(&request.data).map_or(Shape::default(), |hello| hello.shape);
        let mut doors = self.doors.iter();
        let door = doors.find(|door| door.pep.id().handle == request.listener);
        let provider = door.ok_or(Failure::NoMatch)?.provider;
        let mut request = request;
        let mut nth = 0;
        // The request came in on one device; with several, only that one takes it.
        let (domain, endpoint) = loop {
            let domain = provider.domain(nth)?;
            match domain.endpoint_for(request, &Conn::attr()) {
                Ok(endpoint) => break (domain, endpoint),
                Err(e)
                    if e.error.errno() == Some(Errno::EINVAL) && nth + 1 < provider.infos.len() =>
                {
                    request = e.object;
                    nth += 1;
                }
                Err(e) => return Err(e).during("open endpoint"),
            }
        };
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
