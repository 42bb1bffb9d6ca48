// SPDX-License-Identifier: GPL-2.0
//! Table of listening addresses.
//!
//! A socket address belongs to a network namespace. A service name belongs to the host, so that
//! processes in different network namespaces can connect. It also belongs to an auth key, so that
//! no task without that key can take the name from its users.
//!
//! All connects and listens of the host share one lock. So the code under it does a few look-ups,
//! however many listeners share one name. An auth key is compared by its mark, which is computed
//! before the lock is taken. Nothing is allocated under the lock, because reclaim of other tasks'
//! memory may depend on a task that connects.

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

use super::{
    addr::{
        set_port,
        Name,
        AF_INET,
        AF_INET6, //
    },
    listener::Inner, //
};
use crate::{
    errno,
    sys::{
        addr::{
            is_dual,
            is_local, //
        },
        task, //
    }, //
};
use kfabric::{
    provider::Proof,
    pure::proof::Mac,
    sys::net::Net,
    uapi::SockAddr, //
};

/// First ephemeral port, and their number.
const FIRST: u16 = 32768;
const PORTS: u16 = 28232;

/// Listeners that a search examines while the table is locked.
const AT_ONCE: usize = 256;

/// An entry of the table.
struct Heard {
    listener: Arc<Inner>,
    /// The listener accepts IPv4 connections at an "any" address of IPv6.
    dual: bool,
}

/// State under the lock.
struct List {
    heard: RBTree<Name, Heard>,
    /// The last port chosen, counted from [`FIRST`].
    last: u16,
}

impl List {
    /// Returns whether the address conflicts with a listener. `dual`: the address includes IPv4.
    fn is_taken(&self, name: &Name, dual: bool) -> bool {
        let all = |family| {
            let any = name.at_all(family);
            // The "any" address is the least of all addresses with this port.
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

    /// Returns the dual-stack listener at the "any" address of IPv6 that covers the IPv4 address
    /// `name`.
    fn dual_at(&self, name: &Name) -> Option<&Heard> {
        match name.family {
            AF_INET => self.heard.get(&name.at_all(AF_INET6)).filter(|at| at.dual),
            _ => None,
        }
    }

    /// Returns the listener at an address.
    fn at(&self, name: &Name) -> Option<&Heard> {
        self.heard
            .get(name)
            .or_else(|| self.heard.get(&name.at_any()))
            .or_else(|| self.dual_at(name))
    }

    /// Returns the listener of a service name with the same auth key, or else any listener of that
    /// name.
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

/// The table of listeners.
#[pin_data]
pub(crate) struct Names {
    /// Secret input of all marks, never disclosed.
    secret: u128,
    #[pin]
    list: Mutex<List>,
}

impl Names {
    /// Returns an empty table.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let list = List {
            heard: RBTree::new(),
            last: 0,
        };
        let made = pin_init!(Self {
            secret: task::random(),
            list <- new_mutex!(list, "kshm_names"),
        });
        // UNACCOUNTED: Allocated at module load.
        Arc::pin_init(made, GFP_KERNEL)
    }

    /// Returns the mark of an auth key. Two auth keys are equal if their marks are. Both ends are
    /// in this kernel, so nothing is sent.
    pub(crate) fn mark(&self, proof: &Arc<dyn Proof>) -> Mac {
        proof.prove(&self.secret.to_ne_bytes())
    }

    /// Adds `listener` at `addr` and returns its entry. If the port is 0, a free port is chosen and
    /// stored in `addr`.
    ///
    /// # Errors
    ///
    /// - `EADDRINUSE` if the address is in use; for a service name, with the same auth key.
    /// - `EADDRNOTAVAIL` if the address is not one of this host.
    /// - `EINVAL` if `addr` is not a valid address.
    /// - `ENOMEM`
    pub(crate) fn add(
        &self,
        net: &Net,
        addr: &mut SockAddr,
        listener: &Arc<Inner>,
    ) -> Result<Name> {
        let mut name = Name::new(net, addr)?;
        if !name.is_service() && !name.is_any() && !is_local(net, addr) {
            return Err(errno::eaddrnotavail());
        }
        let dual = name.family == AF_INET6 && name.is_any() && is_dual(net);
        let mut room = KVec::new();
        for _ in name.places(listener.marks()) {
            room.push(
                RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?,
                GFP_KERNEL_ACCOUNT,
            )?;
        }
        let mut list = self.list.lock();
        let free = if name.is_service() {
            let mut places = name.places(listener.marks());
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
        for (place, room) in name.places(listener.marks()).zip(room) {
            let heard = Heard {
                listener: listener.clone(),
                dual,
            };
            // Cannot replace an entry: the places were found free under this lock.
            let _ = list.heard.insert(room.into_node(place, heard));
        }
        Ok(name)
    }

    /// Removes `listener` from the entries of `name`.
    pub(crate) fn remove(&self, name: &Name, listener: &Inner) {
        for place in name.places(listener.marks()) {
            let removed = self.list.lock().heard.remove_node(&place);
            // Dropped outside of the lock.
            drop(removed);
        }
    }

    /// Returns the listener at `name` for a peer with `proof`, and the index of the matching auth
    /// key at the listener. Returns `None` if there is no listener.
    ///
    /// # Errors
    ///
    /// The errors of [`Inner::prove`].
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

    /// Returns whether the current task trusts a listener at `name`. A `name` without a port stands
    /// for any port.
    ///
    /// A port of kshm is independent of the same port of another provider, which may belong to
    /// another user. Without the check a listener could attract connections meant for that other
    /// listener.
    pub(crate) fn is_heard(&self, net: &Net, name: &Name) -> bool {
        let trusted = |heard: &Heard| heard.listener.owner().is_trusted_in(net);
        if name.is_service() {
            return self.list.lock().under(name).is_some();
        }
        if name.port != 0 {
            return self.list.lock().at(name).is_some_and(trusted);
        }
        let fits = |at: &Name, heard: &Heard| {
            trusted(heard)
                && match at.family == name.family {
                    true => at.is_any() || at.host == name.host,
                    false => heard.dual && name.family == AF_INET,
                }
        };
        // Of one namespace, the least.
        let mut from = Name {
            net: name.net,
            family: 0,
            port: 0,
            host: [0; 26],
            mark: None,
        };
        // Some at a time: a user may listen at very many, and others wait for the lock.
        loop {
            let mut list = self.list.lock();
            let mut next = list.heard.cursor_lower_bound_mut(&from);
            for _ in 0..AT_ONCE {
                let Some(cursor) = next else { return false };
                let (at, heard) = cursor.current();
                if at.net != name.net {
                    return false;
                }
                if fits(at, heard) {
                    return true;
                }
                from = *at;
                next = cursor.move_next();
            }
            drop(list);
            task::cond_resched();
        }
    }

    /// Returns an ephemeral port for a connecting endpoint.
    pub(crate) fn ephemeral(&self) -> u16 {
        self.list.lock().next_port()
    }
}
