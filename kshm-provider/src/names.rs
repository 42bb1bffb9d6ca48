// SPDX-License-Identifier: GPL-2.0
//! Who listens where.
//!
//! An address is one of a network namespace, as everywhere. A service name is one of the host, so
//! that processes that share no network can meet; and it is one of an auth key, so that nobody can
//! take it from those who have another.
//!
//! The host waits for one lock, so what is done under it takes a few look-ups, however many listen
//! under one name: an auth key is known by a mark, which is made before. Nor is anything allocated
//! under it: what others' memory waits for may connect.

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
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
    provider::Proof,
    pure::proof::Mac,
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
    /// Of a service name, the mark of the auth key that it is one of, if it is one of any.
    mark: Option<Mac>,
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
                    mark: None,
                });
            }
            _ => return Err(EINVAL),
        }
        Ok(Self {
            net,
            family,
            port,
            host,
            mark: None,
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

    /// Where `listener` is in the table: under a service name, once for each of its auth keys.
    fn places<'a>(&self, listener: &'a Inner) -> impl Iterator<Item = Self> + 'a {
        let (name, service) = (*self, self.is_service());
        let count = if service { usize::MAX } else { 1 };
        let place = move |mark: Option<Mac>| Self {
            mark: mark.filter(|_| service),
            ..name
        };
        listener.marks().take(count).map(place)
    }

    fn at_any(&self) -> Self {
        Self {
            host: [0; 26],
            ..*self
        }
    }

    /// At all addresses of IPv4, or of IPv6.
    fn at_all(&self, family: u16) -> Self {
        Self {
            family,
            ..self.at_any()
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

/// Somebody who listens.
struct Heard {
    listener: Arc<Inner>,
    /// At all addresses of IPv6, with which are those of IPv4.
    dual: bool,
}

/// What is behind the lock.
struct List {
    heard: RBTree<Name, Heard>,
    /// The port that was chosen last, counted from [`FIRST`].
    last: u16,
}

impl List {
    /// Whether an address is somebody's; if `dual`, of IPv4, too.
    fn is_taken(&self, name: &Name, dual: bool) -> bool {
        let all = |family| {
            let any = name.at_all(family);
            // Of all of this port, "any" is the least.
            self.heard
                .cursor_lower_bound(&any)
                .is_some_and(|cursor| cursor.current().0.same_place(&any))
        };
        if name.is_any() {
            all(name.family) || (dual && all(AF_INET)) || self.dual_at(name).is_some()
        } else {
            self.at(name).is_some()
        }
    }

    /// Who listens at all of IPv6, and so at `name` of IPv4.
    fn dual_at(&self, name: &Name) -> Option<&Heard> {
        match name.family {
            AF_INET => self.heard.get(&name.at_all(AF_INET6)).filter(|at| at.dual),
            _ => None,
        }
    }

    /// Who listens at an address.
    fn at(&self, name: &Name) -> Option<&Heard> {
        self.heard
            .get(name)
            .or_else(|| self.heard.get(&name.at_any()))
            .or_else(|| self.dual_at(name))
    }

    /// Who listens under a service name for those with its auth key, or else anybody who listens
    /// under it.
    fn under(&self, name: &Name) -> Option<&Heard> {
        self.heard.get(name).or_else(|| {
            let least = Name {
                mark: None,
                ..*name
            };
            let found = *self.heard.cursor_lower_bound(&least)?.current().0;
            let same = found.same_place(name) && found.host == name.host;
            self.heard.get(same.then_some(&found)?)
        })
    }

    fn next_port(&mut self) -> u16 {
        self.last = (self.last + 1) % PORTS;
        FIRST + self.last
    }
}

/// The table.
#[pin_data]
pub(crate) struct Names {
    /// What marks are made of. Nobody else knows it.
    secret: u128,
    #[pin]
    list: Mutex<List>,
}

impl Names {
    /// An empty one.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let list = List {
            heard: RBTree::new(),
            last: 0,
        };
        let made = pin_init!(Self {
            secret: sys::random(),
            list <- new_mutex!(list, "kshm_names"),
        });
        // UNACCOUNTED: Allocated at module load.
        Arc::pin_init(made, GFP_KERNEL)
    }

    /// The mark of an auth key: two have the same if they are the same. Both ends are this kernel's,
    /// so nothing has to travel.
    pub(crate) fn mark(&self, proof: &Arc<dyn Proof>) -> Mac {
        proof.prove(&self.secret.to_ne_bytes())
    }

    /// Has `listener` at `addr`, whose port is chosen if it is 0. Where it is.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE` (a service name: by somebody who asks for the same auth key), `EADDRNOTAVAIL`,
    /// `EINVAL`, `ENOMEM`.
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
        let dual = name.family == AF_INET6 && name.is_any() && sys::is_dual(net);
        let mut room = KVec::new();
        for _ in name.places(listener) {
            room.push(
                RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?,
                GFP_KERNEL_ACCOUNT,
            )?;
        }
        let mut list = self.list.lock();
        let free = if name.is_service() {
            let mut places = name.places(listener);
            places.all(|place| list.heard.get(&place).is_none())
        } else if name.port == 0 {
            let free = (0..PORTS).find_map(|_| {
                name.port = list.next_port();
                (!list.is_taken(&name, dual)).then_some(name.port)
            });
            set_port(addr, free.ok_or_else(errno::eaddrinuse)?);
            true
        } else {
            !list.is_taken(&name, dual)
        };
        if !free {
            return Err(errno::eaddrinuse());
        }
        for (place, room) in name.places(listener).zip(room) {
            let heard = Heard {
                listener: listener.clone(),
                dual,
            };
            // There is none.
            let _ = list.heard.insert(room.into_node(place, heard));
        }
        Ok(name)
    }

    /// Takes `listener` off, which is at `name`.
    pub(crate) fn remove(&self, name: &Name, listener: &Inner) {
        for place in name.places(listener) {
            let removed = self.list.lock().heard.remove_node(&place);
            // Not under the lock.
            drop(removed);
        }
    }

    /// Who listens at `name` for somebody with `proof`, and for which of its auth keys. `None`: nobody
    /// listens there.
    ///
    /// # Errors
    ///
    /// As [`Inner::prove`].
    pub(crate) fn find(
        &self,
        name: &Name,
        proof: Option<&Arc<dyn Proof>>,
    ) -> Option<Result<(Arc<Inner>, Option<usize>)>> {
        let mark = proof.map(|proof| self.mark(proof));
        let listener = {
            let list = self.list.lock();
            let found = match name.is_service() {
                true => list.under(&Name { mark, ..*name }),
                false => list.at(name),
            };
            found.map(|heard| heard.listener.clone())
        }?;
        let proven = listener.prove(mark.as_ref());
        Some(proven.map(|proven| (listener, proven)))
    }

    /// Whether a listener that the current task trusts is at `name`; where that says no port, at any
    /// port of its.
    ///
    /// A port of kshm's says nothing about the same port of another provider's, which may be another
    /// user's: one listener must not draw what was meant for the other.
    pub(crate) fn is_heard(&self, net: &Net, name: &Name) -> bool {
        let trusted = |heard: &Heard| heard.listener.owner().is_trusted_in(net);
        let list = self.list.lock();
        if name.is_service() {
            return list.under(name).is_some();
        }
        if name.port != 0 {
            return list.at(name).is_some_and(trusted);
        }
        let heard = list.heard.iter().any(|(at, heard)| {
            at.net == name.net
                && trusted(heard)
                && match at.family == name.family {
                    true => at.is_any() || at.host == name.host,
                    false => heard.dual && name.family == AF_INET,
                }
        });
        heard
    }

    /// A port for one that connects.
    pub(crate) fn ephemeral(&self) -> u16 {
        self.list.lock().next_port()
    }
}
