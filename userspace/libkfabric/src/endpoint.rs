// SPDX-License-Identifier: MIT OR Apache-2.0
//! Endpoints: attributes, binding and connecting. [`passive`] has listening endpoints, [`post`] the
//! operations.
#![forbid(unsafe_code)]

mod passive;
mod post;

use std::any::Any;
use std::mem::offset_of;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use kfabric_pure::pipe;
use kfabric_uapi as abi;

use crate::addr;
use crate::auth::key::{given, AuthKey};
use crate::completion::CompletionQueue;
use crate::counter::Counter;
use crate::domain::inner::DomainInner;
use crate::error::{Error, Result, Returned};
use crate::event::EventQueue;
use crate::flags::Bind;
use crate::handle::{debug_by_handle, Handle, Shared};
use crate::object::{Kind, ObjectId};
use crate::revoke::revoke_all;
use crate::rings::Rings;
use crate::sys::{self, Buf};
pub use passive::PassiveEndpoint;

/// Asks the kernel for an endpoint's own address (`peer` 0) or the peer's (1).
fn name(dev: &Shared, id: ObjectId, peer: u32) -> Result<SocketAddr> {
    let mut arg: abi::GetName = sys::new();
    arg.handle = id.handle;
    arg.peer = peer;
    dev.call(id, &mut arg, &mut [])?;
    addr::from_abi(&arg.addr).ok_or_else(|| Error::Argument {
        what: "address",
        why: "none known yet".to_owned(),
    })
}

/// Attributes of an endpoint to open. Zero means the default, for every field.
#[derive(Clone, Debug, Default)]
pub struct EndpointAttr {
    /// Number of operations that the transmit side holds.
    pub tx_size: u32,
    /// Number of receives that the receive side holds.
    pub rx_size: u32,
    /// Number of scatter entries per operation.
    pub iov_limit: u32,
    /// A value of the program's choice, returned in events.
    pub context: u64,
    /// Address to connect from; `None`: chosen by the route.
    pub source: Option<SocketAddr>,
    /// Gives the endpoint keys of its own (`FI_MR_ENDPOINT`). Through this endpoint the peer
    /// reaches only memory whose keys are bound to it
    /// ([`Region::alloc_keys_for`](crate::Region::alloc_keys_for),
    /// [`RegionAttr::endpoint`](crate::RegionAttr::endpoint)), and no other memory of the domain.
    /// These keys are revoked before the endpoint is closed.
    pub own_keys: bool,
    /// No value of the endpoint's keys is issued twice while the endpoint exists
    /// (`KFI_EP_STRICT_KEYS`). If the device offers no other value, the allocation or assignment of
    /// a key fails with `ENOSPC`. Values that other endpoints of the host have had since this one
    /// was opened count, too; a program that connects anew can have values again. Needs
    /// `own_keys`. For all keys of a domain: [`Fabric::strict_domain`](crate::Fabric::strict_domain).
    pub strict_keys: bool,
    /// Auth key of the endpoint; `None`: the domain's.
    pub auth_key: Option<AuthKey>,
    /// Sends messages through memory that is shared with the peer, without a system call.
    /// Conditions: the peer is a program on the same host and asked for rings, too; the provider is
    /// kshm; neither endpoint has a counter. Otherwise messages go through the kernel. With rings:
    ///
    /// - A send completes when the message is in the shared memory, before the peer receives it. A
    ///   message that is too long for its receive ends the connection; the receive fails with
    ///   `EMSGSIZE`.
    /// - Messages move only while either program posts, or reads or waits for the endpoint's
    ///   queues. A long message stops moving while its sender sleeps elsewhere.
    /// - [`CompletionQueue::try_wait`] must precede each wait for a queue's descriptor.
    /// - Each end is charged 140 KiB against `RLIMIT_MEMLOCK`. If that exceeds a program's limit,
    ///   the connection has no rings.
    ///
    /// `kfi_rings(7)` describes rings in full.
    pub rings: bool,
}

/// A connected, message-oriented, reliable endpoint (`FI_EP_MSG`).
///
/// Life cycle: open, bind queues, [`enable`](Endpoint::enable), post receives,
/// [`connect`](Endpoint::connect) or [`accept`](Endpoint::accept), wait for
/// [`Event::Connected`](crate::Event::Connected).
pub struct Endpoint {
    // Dropped first, so that the kernel's endpoint is closed before the queues it is bound to.
    handle: Handle,
    size: (u32, u32),
    iov_limit: u32,
    cm_data_size: u32,
    /// Queues and counters that the endpoint is bound to, kept alive until it is closed.
    bound: Box<Mutex<Vec<Arc<dyn Any + Send + Sync>>>>,
    rings: Option<Arc<Rings>>,
    _domain: Arc<DomainInner>,
}

/// Version of the rings' protocol that endpoints ask for. The unit tests ask for another version: the
/// first one is zero, like a field that is not set.
pub(crate) const RINGS_VERSION: u32 = if cfg!(test) { 7 } else { pipe::VERSION };

impl Endpoint {
    pub(crate) fn open(
        domain: &Arc<DomainInner>,
        attr: &EndpointAttr,
        connreq: u64,
    ) -> Result<Self> {
        let dev = &domain.handle.dev;
        let mut arg: abi::EpOpen = sys::new();
        arg.domain = domain.handle.raw();
        arg.connreq = connreq;
        arg.src_addr = addr::to_abi(attr.source);
        arg.context = attr.context;
        arg.tx_size = attr.tx_size;
        arg.rx_size = attr.rx_size;
        arg.iov_limit = attr.iov_limit;
        arg.flags = match attr.own_keys {
            true => abi::KFI_EP_OWN_KEYS,
            false => 0,
        } | match attr.rings {
            true => abi::KFI_EP_RINGS,
            false => 0,
        } | match attr.strict_keys {
            true => abi::KFI_EP_STRICT_KEYS,
            false => 0,
        };
        if attr.rings {
            arg.rings_version = RINGS_VERSION;
        }
        let at = offset_of!(abi::EpOpen, auth_key);
        let (mut bufs, size) = given(at, attr.auth_key.as_ref());
        arg.auth_key_size = size;
        dev.call(domain.handle.id, &mut arg, &mut bufs)?;
        let handle = Handle::new(dev, Kind::Endpoint, arg.handle);
        let size = (arg.tx_size, arg.rx_size);
        let rings = match attr.rings {
            true => Rings::new(domain, handle.id, size, arg.iov_limit),
            false => None,
        };
        Ok(Self {
            handle,
            rings,
            cm_data_size: arg.cm_data_size,
            size,
            iov_limit: arg.iov_limit,
            bound: Box::default(),
            _domain: domain.clone(),
        })
    }

    /// The endpoint's name in error messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.handle.id
    }

    /// The device file that the endpoint was opened on.
    pub(crate) fn dev(&self) -> &Arc<Shared> {
        &self.handle.dev
    }

    /// Revokes all keys that are bound to the endpoint, in one call. Returns their number. See
    /// [`Region::revoke_keys`](crate::Region::revoke_keys).
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the endpoint has no keys of its own ([`EndpointAttr::own_keys`]).
    pub fn revoke_keys(&self) -> Result<u64> {
        revoke_all(&self.handle, abi::KFI_REVOKE_EP)
    }

    /// Maximum bytes of the program's data in a connection request. An auth key reduces the
    /// maximum.
    pub fn cm_data_size(&self) -> usize {
        self.cm_data_size as usize
    }

    /// Returns whether messages go through rings ([`EndpointAttr::rings`]). `None` until the
    /// endpoint is connected.
    pub fn has_rings(&self) -> Option<bool> {
        let Some(rings) = &self.rings else {
            return Some(false);
        };
        rings.known()
    }

    /// Number of operations that the transmit side holds.
    pub fn tx_size(&self) -> u32 {
        self.size.0
    }

    /// Number of receives that the receive side holds.
    pub fn rx_size(&self) -> u32 {
        self.size.1
    }

    /// Number of scatter entries per operation.
    pub fn iov_limit(&self) -> u32 {
        self.iov_limit
    }

    fn bind(&self, object: &Handle, flags: Bind, hold: Arc<dyn Any + Send + Sync>) -> Result<()> {
        self.handle.dev.owns(object)?;
        let mut arg: abi::Bind = sys::new();
        arg.ep = self.handle.raw();
        arg.object = object.raw();
        arg.bind_flags = flags.bits();
        self.handle.dev.call(self.id(), &mut arg, &mut [])?;
        self.bound
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(hold);
        Ok(())
    }

    /// Binds the event queue that gets the endpoint's connection events.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the endpoint has an event queue or is enabled.
    /// - [`Error::Argument`] if the queue belongs to another device file.
    pub fn bind_event_queue(&self, eq: &EventQueue) -> Result<()> {
        self.bind(&eq.inner.handle, Bind::empty(), eq.inner.clone())?;
        if let Some(rings) = &self.rings {
            eq.inner.add(rings);
        }
        Ok(())
    }

    /// Binds a completion queue to one side or both; selectively if `flags` says so.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if a side has a queue already, the endpoint is enabled, or the queue belongs to
    ///   another domain.
    /// - [`Error::Argument`] if the queue belongs to another device file.
    pub fn bind_completion_queue(&self, cq: &CompletionQueue, flags: Bind) -> Result<()> {
        self.bind(&cq.inner.handle, flags, cq.inner.clone())?;
        if let Some(rings) = &self.rings {
            rings.bind(&cq.inner, flags.bits());
        }
        Ok(())
    }

    /// Binds a counter to the kinds of operations in `flags`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if a kind has a counter already, the endpoint is enabled, or the counter belongs
    ///   to another domain.
    /// - [`Error::Argument`] if the counter belongs to another device file.
    pub fn bind_counter(&self, counter: &Counter, flags: Bind) -> Result<()> {
        self.bind(&counter.inner.handle, flags, counter.inner.clone())
    }

    /// Enables the endpoint: it then takes receives and can be connected.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if a queue is missing or the endpoint is enabled already.
    pub fn enable(&self) -> Result<()> {
        let mut arg: abi::ObjectCall = sys::new();
        arg.handle = self.handle.raw();
        self.handle.dev.call(self.id(), &mut arg, &mut [])?;
        if let Some(rings) = &self.rings {
            rings.set_enabled();
        }
        Ok(())
    }

    /// Starts connecting, with `data` for the peer. The outcome is an event.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the endpoint is in another state, or `data` is longer than
    ///   [`Endpoint::cm_data_size`].
    pub fn connect(&self, addr: SocketAddr, data: &[u8]) -> Result<()> {
        let mut arg: abi::Connect = sys::new();
        arg.ep = self.handle.raw();
        arg.addr = addr::to_abi(Some(addr));
        arg.param_len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let mut bufs = [Buf::input(offset_of!(abi::Connect, param), data)];
        self.handle.dev.call(self.id(), &mut arg, &mut bufs)
    }

    /// Accepts the connection request that the endpoint was opened for, with `data` for the peer.
    /// The outcome is an event.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the endpoint is in another state, or `data` is too long.
    /// - `ECONNABORTED` if the request can no longer be accepted: the peer gave up, or the device
    ///   failed the request.
    pub fn accept(&self, data: &[u8]) -> Result<()> {
        let mut arg: abi::Accept = sys::new();
        arg.ep = self.handle.raw();
        arg.param_len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let mut bufs = [Buf::input(offset_of!(abi::Accept, param), data)];
        self.handle.dev.call(self.id(), &mut arg, &mut bufs)
    }

    /// Ends the connection. Outstanding operations complete with `ECANCELED`.
    ///
    /// # Errors
    ///
    /// - `ENOTCONN` if the endpoint is not connected.
    pub fn shutdown(&self) -> Result<()> {
        let mut arg: abi::Shutdown = sys::new();
        arg.ep = self.handle.raw();
        self.handle.dev.call(self.id(), &mut arg, &mut [])?;
        if let Some(rings) = &self.rings {
            let pushed = rings.progress();
            rings.alert(pushed, None);
        }
        Ok(())
    }

    /// Returns the endpoint's own address.
    ///
    /// # Errors
    ///
    /// - [`Error::Argument`] if no address is known yet.
    /// - [`Error::Call`] if the kernel refuses the call.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        name(&self.handle.dev, self.id(), 0)
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    ///
    /// - `ENOTCONN` if the endpoint is not connected.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        name(&self.handle.dev, self.id(), 1)
    }

    /// Disconnects and closes the endpoint.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the call. The endpoint is returned in [`Returned`].
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        if let Some(rings) = &self.rings {
            rings.begin_end();
        }
        Returned::on_error(self.handle.close(), self)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let Some(rings) = &self.rings else { return };
        rings.begin_end();
        self.handle.end();
        rings.finish();
    }
}

debug_by_handle!(Endpoint, handle);
