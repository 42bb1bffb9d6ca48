// SPDX-License-Identifier: GPL-2.0
//! Who listens where.
//!
//! An address is one of a network namespace, as everywhere. A service name is one of the host, so
//! that processes that share no network can meet; and it is one of an auth key, so that nobody can
//! take it from those who have another.

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
    provider::Proof,
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
    /// Tells those apart that have one service name, by different auth keys.
    turn: u32,
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
                    turn: 0,
                });
            }
            _ => return Err(EINVAL),
        }
        Ok(Self {
            net,
            family,
            port,
            host,
            turn: 0,
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

    /// Those who listen under a service name.
    fn under<'a>(&'a self, name: &Name) -> impl Iterator<Item = (u32, &'a Heard)> + 'a {
        let mut from = Some(*name);
        core::iter::from_fn(move || {
            let now = from.take()?;
            let found = *self.heard.cursor_lower_bound(&now)?.current().0;
            if (found.family, found.host) != (now.family, now.host) {
                return None;
            }
            from = found.turn.checked_add(1).map(|turn| Name { turn, ..now });
            Some((found.turn, self.heard.get(&found)?))
        })
    }

    /// Has a service name be told from the others' of the same name. False: it is somebody's who asks
    /// for the same auth key.
    fn set_turn(&self, name: &mut Name, listener: &Inner) -> bool {
        let mut turn = Some(0);
        for (taken, heard) in self.under(name) {
            if heard.listener.is_mistaken_for(listener) {
                return false;
            }
            if turn == Some(taken) {
                turn = taken.checked_add(1);
            }
        }
        name.turn = turn.unwrap_or(0);
        turn.is_some()
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
            heard: RBTree::new(),
            last: 0,
        };
        let made = pin_init!(Self { list <- new_mutex!(list, "kshm_names") });
        Arc::pin_init(made, GFP_KERNEL)
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
        let mut list = self.list.lock();
        let free = if name.is_service() {
            list.set_turn(&mut name, listener)
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
        let heard = Heard {
            listener: listener.clone(),
            dual,
        };
        list.heard
            .try_create_and_insert(name, heard, GFP_KERNEL_ACCOUNT)?;
        Ok(name)
    }

    /// Takes it off.
    pub(crate) fn remove(&self, name: &Name) {
        let removed = self.list.lock().heard.remove(name);
        // Not under the lock.
        drop(removed);
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
        let list = self.list.lock();
        let proven = |heard: &Heard| Ok((heard.listener.clone(), heard.listener.prove(proof)?));
        if !name.is_service() {
            return list.at(name).map(proven);
        }
        let mut found = None;
        for (_, heard) in list.under(name) {
            found = Some(proven(heard));
            if matches!(found, Some(Ok(_))) {
                break;
            }
        }
        found
    }

    /// Whether somebody listens at `name`; where that says no port, at any port of its.
    pub(crate) fn is_heard(&self, name: &Name) -> bool {
        let list = self.list.lock();
        if name.is_service() {
            return list.under(name).next().is_some();
        }
        if name.port != 0 {
            return list.at(name).is_some();
        }
        let heard = list.heard.iter().any(|(at, heard)| {
            at.net == name.net
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
