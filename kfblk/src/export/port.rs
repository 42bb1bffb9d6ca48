// SPDX-License-Identifier: GPL-2.0
//! Ports: where subsystems are offered.

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

/// What a port is while it listens.
pub(crate) struct Station {
    // Dropped in this order.
    pep: Arc<PassiveEp>,
    eq: Arc<Eq>,
    hook: Arc<Hook>,
    pub(crate) domain: Arc<Domain>,
}

struct Inner {
    trtype: Option<Name>,
    traddr: Option<Name>,
    trsvcid: Option<Name>,
    subsystems: KVec<Arc<Subsystem>>,
    station: Option<Arc<Station>>,
    lanes: KVec<Arc<Lane>>,
}

/// A port. It listens while a subsystem is linked to it.
#[pin_data]
pub(crate) struct Port {
    #[pin]
    inner: Mutex<Inner>,
    #[pin]
    work: Work<Port>,
}

impl_has_work! {
    impl HasWork<Self> for Port { self.work }
}

impl WorkItem for Port {
    type Pointer = Arc<Port>;

    fn run(this: Arc<Port>) {
        Self::serve(&this);
    }
}

/// Opens what is needed to listen.
///
/// # Errors
///
/// `EINVAL`: the address is not said. `ENODATA`: no device has it. `EADDRINUSE`.
fn open(inner: &Inner) -> Result<Station> {
    let net = Net::current();
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
    let hook = Hook::new()?;
    let eq = Eq::open(&fabric, 0, Some(hook.clone()))?;
    let pep = PassiveEp::open(&fabric, &eq, &addr, 0)?;
    Ok(Station {
        pep,
        eq,
        hook,
        domain,
    })
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
            station: None,
            lanes: KVec::new(),
        };
        Arc::pin_init(
            pin_init!(Self {
                inner <- new_mutex!(inner, "kfblk_port"),
                work <- new_work!("Port::work"),
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
        inner.subsystems.reserve(1, GFP_KERNEL)?;
        if inner.station.is_none() {
            let station = Arc::new(open(&inner)?, GFP_KERNEL)?;
            station.hook.link(Link::Port(this.clone()));
            if let Err(e) = station.pep.listen(0) {
                station.hook.unlink();
                return Err(e);
            }
            inner.station = Some(station);
        }
        inner.subsystems.push(subsystem.clone(), GFP_KERNEL)?;
        Ok(())
    }

    /// Offers it no more: its connections through this port have ended when this returns.
    pub(crate) fn unlink(&self, subsystem: &Arc<Subsystem>) {
        let (closing, domain) = {
            let mut inner = self.inner.lock();
            let taken = config::take_ptr(&mut inner.subsystems, subsystem);
            drop(taken);
            let domain = inner.station.as_ref().map(|of| of.domain.clone());
            let closing = match inner.subsystems.is_empty() {
                true => inner.station.take(),
                false => None,
            };
            (closing, domain)
        };
        if let Some(station) = &closing {
            // No request comes after this.
            station.pep.close();
            station.hook.unlink();
        }
        let all = closing.is_some();
        while let Some(lane) = self.next_lane(|lane| all || lane.serves(subsystem)) {
            lane.end();
        }
        if let Some(domain) = domain {
            subsystem.close_export(&domain);
        }
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
        if inner.station.is_some() {
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
