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

/// An open fabric and its domains.
pub struct Node {
    device: Device,
    fabric: Fabric,
    infos: Vec<Info>,
    domains: Mutex<Vec<Arc<Domain>>>,
}

impl Node {
    /// Opens the fabric that reaches `peer`; without a peer, the best there is.
    ///
    /// # Errors
    ///
    /// [`Failure::NoMatch`]; whatever opening says.
    pub fn open(select: &Select, peer: Option<SocketAddr>) -> Result<Self> {
        let device = Device::open().during("open")?;
        let mut hints = Hints::new().caps(Caps::MSG | Caps::RMA);
        if let Some(provider) = &select.provider {
            hints = hints.provider(provider);
        }
        if let Some(domain) = &select.domain {
            hints = hints.domain(domain);
        }
        if let Some(peer) = peer {
            hints = hints.destination(&peer.ip().to_string(), peer.port());
        }
        let mut infos = device.info(&hints).during("getinfo")?;
        let first = infos.first().ok_or(Failure::NoMatch)?.clone();
        // A device is offered once for each of its addresses.
        let mut seen = Vec::new();
        infos.retain(|i| {
            let fits = i.provider() == first.provider() && i.fabric() == first.fabric();
            let new = fits && !seen.contains(&i.domain().to_owned());
            seen.push(i.domain().to_owned());
            new
        });
        let fabric = device.fabric(&first).during("open fabric")?;
        Ok(Self {
            device,
            fabric,
            infos,
            domains: Mutex::default(),
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The offer that was taken.
    pub fn info(&self) -> &Info {
        &self.infos[0]
    }

    /// The domain that the offer names.
    ///
    /// # Errors
    ///
    /// What opening it says.
    pub fn first_domain(&self) -> Result<Arc<Domain>> {
        self.domain(0)
    }

    fn domain(&self, nth: usize) -> Result<Arc<Domain>> {
        let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        while domains.len() <= nth {
            let info = self.infos.get(domains.len()).ok_or(Failure::NoMatch)?;
            domains.push(Arc::new(self.fabric.domain(info).during("open domain")?));
        }
        Ok(domains[nth].clone())
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
        let domain = self.domain(0)?;
        let mut last = None;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let endpoint = domain.endpoint(&Conn::attr()).during("open endpoint")?;
            let mut conn = Conn::new(&self.fabric, domain.clone(), endpoint, shape)?;
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

    /// Listens on an address.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `EADDRNOTAVAIL`.
    pub fn listen(&self, addr: SocketAddr) -> Result<Listener<'_>> {
        let eq = self.fabric.event_queue(0).during("open event queue")?;
        let pep = self
            .fabric
            .passive_endpoint(&eq, addr, 0)
            .during("listen")?;
        pep.listen(0).during("listen")?;
        Ok(Listener {
            node: self,
            pep,
            eq,
        })
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

/// Listens for connections.
pub struct Listener<'n> {
    node: &'n Node,
    pep: PassiveEndpoint,
    eq: EventQueue,
}

impl Listener<'_> {
    /// The address it listens on.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.pep.local_addr().during("getname")
    }

    /// Waits for a request for one of our services; others are refused. `None`: time is up.
    ///
    /// # Errors
    ///
    /// The queue's.
    pub fn next_request(&self, service: Service, timeout: Duration) -> Result<Option<ConnRequest>> {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let request = match self.eq.wait(left) {
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
        let mut request = request;
        let mut nth = 0;
        // The request came in on one device; with several, only that one takes it.
        let (domain, endpoint) = loop {
            let domain = self.node.domain(nth)?;
            match domain.endpoint_for(request, &Conn::attr()) {
                Ok(endpoint) => break (domain, endpoint),
                Err(e)
                    if e.error.errno() == Some(Errno::EINVAL)
                        && nth + 1 < self.node.infos.len() =>
                {
                    request = e.object;
                    nth += 1;
                }
                Err(e) => return Err(e).during("open endpoint"),
            }
        };
        let mut conn = Conn::new(&self.node.fabric, domain, endpoint, shape)?;
        conn.ep.accept(&[]).during("accept")?;
        conn.eq
            .wait(timeout)
            .and_then(Event::connected)
            .during("accept")?;
        conn.timeout = timeout;
        Ok(conn)
    }
}
