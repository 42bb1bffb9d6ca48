// SPDX-License-Identifier: GPL-2.0
//! Who listens where.
//!
//! An address is one of a network namespace, as everywhere. A service name is one of the host, so
//! that processes that share no network can meet.

use kernel::{
    prelude::*,
    rbtree::RBTree,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use crate::{
    errno,
    listener::Inner,
    sys, //
};
use kfabric::{
    net::Net,
    uapi::{
        SockAddr,
        KFI_SOCKADDR,
        KFI_SOCKADDR_IN,
        KFI_SOCKADDR_IN6, //
    },
};

const AF_LOCAL: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// The first port that is chosen where none is said, and how many there are.
const FIRST: u16 = 32768;
const PORTS: u16 = 28232;

/// Where somebody listens, as the table orders it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    /// 0 for a service name.
    net: usize,
    family: u16,
    port: u16,
    /// The address; of a service name, its bytes.
    host: [u8; 26],
}

impl Name {
    /// What `addr` means in `net`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: nothing.
    pub(crate) fn new(net: &Net, addr: &SockAddr) -> Result<Self> {
        let data = &addr.data;
        let family = u16::from_ne_bytes([data[0], data[1]]);
        let port = u16::from_be_bytes([data[2], data[3]]);
        let mut host = [0; 26];
        let net = net.as_ptr().addr();
        match (addr.len, family) {
            (16, AF_INET) => host[..4].copy_from_slice(&data[4..8]),
            (28, AF_INET6) => host[..16].copy_from_slice(&data[8..24]),
            (28, AF_LOCAL) if data[2] != 0 => {
                host.copy_from_slice(&data[2..28]);
                return Ok(Self {
                    net: 0,
                    family,
                    port: 0,
                    host,
                });
            }
            _ => return Err(EINVAL),
        }
        Ok(Self {
            net,
            family,
            port,
            host,
        })
    }

    /// Whether it is a service name.
    pub(crate) fn is_service(&self) -> bool {
        self.family == AF_LOCAL
    }

    /// Whether it says no host.
    pub(crate) fn is_any(&self) -> bool {
        !self.is_service() && self.host == [0; 26]
    }

    fn at_any(&self) -> Self {
        Self {
            host: [0; 26],
            ..*self
        }
    }

    fn same_place(&self, other: &Self) -> bool {
        (self.net, self.family, self.port) == (other.net, other.family, other.port)
    }

    /// `KFI_SOCKADDR*` of an address.
    pub(crate) fn format(addr: &SockAddr) -> u32 {
        match u16::from_ne_bytes([addr.data[0], addr.data[1]]) {
            AF_INET => KFI_SOCKADDR_IN,
            AF_INET6 => KFI_SOCKADDR_IN6,
            _ => KFI_SOCKADDR,
        }
    }
}

/// Gives an address a port.
pub(crate) fn set_port(addr: &mut SockAddr, port: u16) {
    addr.data[2..4].copy_from_slice(&port.to_be_bytes());
}

/// What is behind the lock.
struct List {
    listeners: RBTree<Name, Arc<Inner>>,
    /// The port that was chosen last, counted from [`FIRST`].
    last: u16,
}

impl List {
    fn is_taken(&self, name: &Name) -> bool {
        if name.is_service() || !name.is_any() {
            return self.listeners.get(name).is_some()
                || (!name.is_service() && self.listeners.get(&name.at_any()).is_some());
        }
        // Of all of this port, "any" is the least.
        self.listeners
            .cursor_lower_bound(name)
            .is_some_and(|cursor| cursor.current().0.same_place(name))
    }

    fn next_port(&mut self) -> u16 {
        self.last = (self.last + 1) % PORTS;
        FIRST + self.last
    }
}

/// The table.
#[pin_data]
pub(crate) struct Names {
    #[pin]
    list: Mutex<List>,
}

impl Names {
    /// An empty one.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let list = List {
            listeners: RBTree::new(),
            last: 0,
        };
        let made = pin_init!(Self { list <- new_mutex!(list, "kshm_names") });
        Arc::pin_init(made, GFP_KERNEL)
    }

    /// Has `listener` at `addr`, whose port is chosen if it is 0. Where it is.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EINVAL`, `ENOMEM`.
    pub(crate) fn add(
        &self,
        net: &Net,
        addr: &mut SockAddr,
        listener: &Arc<Inner>,
    ) -> Result<Name> {
        let mut name = Name::new(net, addr)?;
        if !name.is_service() && !name.is_any() && !sys::is_local(net, addr) {
            return Err(errno::eaddrnotavail());
        }
        let mut list = self.list.lock();
        if !name.is_service() && name.port == 0 {
            let free = (0..PORTS).find_map(|_| {
                name.port = list.next_port();
                (!list.is_taken(&name)).then_some(name.port)
            });
            set_port(addr, free.ok_or_else(errno::eaddrinuse)?);
        } else if list.is_taken(&name) {
            return Err(errno::eaddrinuse());
        }
        list.listeners
            .try_create_and_insert(name, listener.clone(), GFP_KERNEL)?;
        Ok(name)
    }

    /// Takes it off.
    pub(crate) fn remove(&self, name: &Name) {
        let removed = self.list.lock().listeners.remove(name);
        // Not under the lock.
        drop(removed);
    }

    /// Who listens at `name`.
    pub(crate) fn find(&self, name: &Name) -> Option<Arc<Inner>> {
        let list = self.list.lock();
        let found = list.listeners.get(name);
        let found = match found {
            None if !name.is_service() => list.listeners.get(&name.at_any()),
            found => found,
        };
        found.cloned()
    }

    /// Whether somebody listens at `name`; where that says no port, at any port of its.
    pub(crate) fn is_heard(&self, name: &Name) -> bool {
        if name.is_service() || name.port != 0 {
            return self.find(name).is_some();
        }
        let list = self.list.lock();
        let heard = list.listeners.keys().any(|at| {
            (at.net, at.family) == (name.net, name.family) && (at.is_any() || at.host == name.host)
        });
        heard
    }

    /// A port for one that connects.
    pub(crate) fn ephemeral(&self) -> u16 {
        self.list.lock().next_port()
    }
}
