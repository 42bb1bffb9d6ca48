// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fabrics and domains.
#![forbid(unsafe_code)]

use std::mem::offset_of;
use std::net::SocketAddr;
use std::sync::Arc;

use kfabric_uapi as abi;

use crate::atomic::{AtomicForm, AtomicOp, Integer};
use crate::auth::{given, AuthKey};
use crate::completion::CompletionQueue;
use crate::counter::Counter;
use crate::device::{Device, Shared};
use crate::endpoint::{Endpoint, EndpointAttr, PassiveEndpoint};
use crate::error::{Error, ObjectId, Result, Returned};
use crate::event::{ConnRequest, EventQueue};
use crate::flags::{Access, Caps, Format, MrMode};
use crate::info::Info;
use crate::memory::Memory;
use crate::object::{put_text, Handle, Kind};
use crate::region::{Region, RegionAttr};
use crate::sys;

/// A fabric of a provider: what event queues, listeners and domains belong to.
#[derive(Debug)]
pub struct Fabric {
    pub(crate) handle: Arc<Handle>,
}

impl Fabric {
    pub(crate) fn open(dev: &Arc<Shared>, provider: &str, fabric: &str) -> Result<Self> {
        let mut arg: abi::FabricOpen = sys::new();
        put("provider name", &mut arg.prov_name, provider)?;
        put("fabric name", &mut arg.fabric_name, fabric)?;
        dev.call(Device::id(), &mut arg, &mut [])?;
        Ok(Self {
            handle: Arc::new(Handle::new(dev, Kind::Fabric, arg.handle)),
        })
    }

    /// Its name in messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.handle.id
    }

    /// Opens the domain that an info entry names.
    ///
    /// # Errors
    ///
    /// `ENOENT` when the device has gone.
    pub fn domain(&self, info: &Info) -> Result<Domain> {
        self.domain_by_name(info.domain())
    }

    /// Opens a domain by name.
    ///
    /// # Errors
    ///
    /// `ENOENT` for an unknown name, `ENODEV`.
    pub fn domain_by_name(&self, name: &str) -> Result<Domain> {
        self.open_domain(name, None)
    }

    /// As [`Fabric::domain`], with an auth key for all on it that has none of its own.
    ///
    /// # Errors
    ///
    /// As there. Nobody is asked yet whether the key may be used: see [`Domain::endpoint`].
    pub fn domain_under(&self, info: &Info, key: &AuthKey) -> Result<Domain> {
        self.open_domain(info.domain(), Some(key))
    }

    fn open_domain(&self, name: &str, key: Option<&AuthKey>) -> Result<Domain> {
        let dev = &self.handle.dev;
        let mut arg: abi::DomainOpen = sys::new();
        arg.fabric = self.handle.raw();
        put("domain name", &mut arg.name, name)?;
        let (mut bufs, size) = given(offset_of!(abi::DomainOpen, auth_key), key);
        arg.auth_key_size = size;
        dev.call(self.id(), &mut arg, &mut bufs)?;
        let handle = Handle::new(dev, Kind::Domain, arg.handle);
        Ok(Domain {
            inner: Arc::new(DomainInner {
                handle,
                attr: arg,
                _fabric: self.handle.clone(),
            }),
        })
    }

    /// Opens an event queue for `depth` waiting events (0: a default).
    ///
    /// # Errors
    ///
    /// `EINVAL` for too large a depth, `EMFILE`.
    pub fn event_queue(&self, depth: u32) -> Result<EventQueue> {
        EventQueue::open(&self.handle, depth)
    }

    /// Opens a listener on an address; port 0 lets the system choose
    /// ([`PassiveEndpoint::local_addr`] tells after [`PassiveEndpoint::listen`]). Requests arrive as
    /// events with `context`.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `EADDRNOTAVAIL`. `EACCES`: the port is below 1024, and the
    /// caller lacks `CAP_NET_BIND_SERVICE`.
    pub fn passive_endpoint(
        &self,
        eq: &EventQueue,
        addr: SocketAddr,
        context: u64,
    ) -> Result<PassiveEndpoint> {
        PassiveEndpoint::open(&self.handle, eq, addr, context, &[])
    }

    /// As [`Fabric::passive_endpoint`], for peers that have one of `keys`:
    /// [`ConnRequest::auth_key`] says which. Others are refused by the kernel.
    ///
    /// # Errors
    ///
    /// As there; `EINVAL` for one twice, or more than `KFI_PEP_AUTH_KEYS_MAX`; and what says why
    /// one may not be used (`kfi_auth(7)`).
    pub fn passive_endpoint_under(
        &self,
        eq: &EventQueue,
        addr: SocketAddr,
        context: u64,
        keys: &[AuthKey],
    ) -> Result<PassiveEndpoint> {
        PassiveEndpoint::open(&self.handle, eq, addr, context, keys)
    }

    /// Closes it; given back while something on it is open.
    ///
    /// # Errors
    ///
    /// `EBUSY`.
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        match self.handle.close() {
            Ok(()) => Ok(()),
            Err(error) => Err(Returned {
                object: self,
                error,
            }),
        }
    }
}

fn put(what: &'static str, to: &mut [u8], text: &str) -> Result<()> {
    if put_text(to, text) {
        return Ok(());
    }
    Err(Error::Argument {
        what,
        why: format!("longer than {} bytes, or with a NUL in it", to.len() - 1),
    })
}

pub(crate) struct DomainInner {
    // Dropped first: children before parents.
    pub(crate) handle: Handle,
    attr: abi::DomainOpen,
    _fabric: Arc<Handle>,
}

impl DomainInner {
    /// Bytes in the longest operation.
    pub(crate) fn max_msg_size(&self) -> u64 {
        self.attr.max_msg_size
    }

    /// Bytes that may be injected.
    pub(crate) fn inject_size(&self) -> usize {
        self.attr.inject_size as usize
    }
}

/// A domain: one device, with what is registered, queued and connected on it.
pub struct Domain {
    pub(crate) inner: Arc<DomainInner>,
}

impl Domain {
    /// Its name in messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.inner.handle.id
    }

    /// Capabilities.
    pub fn caps(&self) -> Caps {
        Caps::from_bits_retain(self.inner.attr.caps)
    }

    /// Registration modes required.
    pub fn mr_mode(&self) -> MrMode {
        MrMode::from_bits_retain(self.inner.attr.mr_mode)
    }

    /// Bytes in the longest operation.
    pub fn max_msg_size(&self) -> u64 {
        self.inner.attr.max_msg_size
    }

    /// How many values an atomic may have at once (`fi_query_atomic`).
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the provider does not do it. `EINVAL`: there is no such operation of this form.
    pub fn query_atomic<T: Integer>(&self, form: AtomicForm, op: AtomicOp) -> Result<usize> {
        let mut arg: abi::AtomicQuery = sys::new();
        arg.domain = self.inner.handle.raw();
        arg.op = form as u32;
        arg.atomic_op = op as u32;
        arg.datatype = T::DATATYPE;
        self.inner.handle.dev.call(self.id(), &mut arg, &mut [])?;
        Ok(usize::try_from(arg.count).unwrap_or(usize::MAX))
    }

    /// Bytes that may be injected.
    pub fn inject_size(&self) -> usize {
        self.inner.attr.inject_size as usize
    }

    /// Operations and receives that an endpoint may hold at most.
    pub fn max_sizes(&self) -> (u32, u32) {
        (self.inner.attr.max_tx_size, self.inner.attr.max_rx_size)
    }

    /// Scatter entries of one operation, at most.
    pub fn iov_limit(&self) -> usize {
        self.inner.attr.iov_limit as usize
    }

    /// Application bytes in a connection request, at most.
    pub fn cm_data_size(&self) -> usize {
        self.inner.attr.cm_data_size as usize
    }

    /// Key slots that the device can hold, about.
    pub fn max_keys(&self) -> u64 {
        self.inner.attr.max_keys
    }

    /// Opens a completion queue of at least `depth` entries (0: a default).
    ///
    /// # Errors
    ///
    /// `EINVAL` for too large a depth, `ENOMEM`, `EMFILE`.
    pub fn completion_queue(&self, depth: u32, format: Format) -> Result<CompletionQueue> {
        CompletionQueue::open(&self.inner, depth, format)
    }

    /// Opens a counter.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn counter(&self) -> Result<Counter> {
        Counter::open(&self.inner)
    }

    /// Registers all of a piece of memory, with a key of its own if peers have access.
    ///
    /// # Errors
    ///
    /// `ENOMEM` beyond `RLIMIT_MEMLOCK`; `EFAULT` for memory that does not allow the access.
    pub fn register(&self, memory: impl Into<Arc<Memory>>, access: Access) -> Result<Region> {
        self.register_with(memory, &RegionAttr::new(access))
    }

    /// Ends all keys of all its regions, in one call; how many. See [`Region::revoke_keys`].
    ///
    /// # Errors
    ///
    /// [`Error::Call`](crate::Error::Call).
    pub fn revoke_keys(&self) -> Result<u64> {
        crate::region::revoke_all(&self.inner.handle, abi::KFI_REVOKE_DOMAIN)
    }

    /// Registers memory: part of it, or with keys to come by [`Region::alloc_keys`].
    ///
    /// # Errors
    ///
    /// As for [`Domain::register`].
    pub fn register_with(
        &self,
        memory: impl Into<Arc<Memory>>,
        attr: &RegionAttr,
    ) -> Result<Region> {
        Region::open(&self.inner, memory.into(), attr)
    }

    /// Opens an endpoint that will connect.
    ///
    /// # Errors
    ///
    /// `EINVAL` for sizes beyond the domain's, `ENOMEM`; where an auth key may not be used what
    /// `kfi_auth(7)` says: `EACCES`, `ENOKEY`, `ETIMEDOUT`, `EDQUOT`.
    pub fn endpoint(&self, attr: &EndpointAttr) -> Result<Endpoint> {
        Endpoint::open(&self.inner, attr, 0)
    }

    /// Opens an endpoint that will accept a connection request; the request comes back if that
    /// fails.
    ///
    /// # Errors
    ///
    /// As for [`Domain::endpoint`]; `ENOENT` when the requester gave up, `EINVAL` when the request
    /// arrived on another device.
    pub fn endpoint_for(
        &self,
        request: ConnRequest,
        attr: &EndpointAttr,
    ) -> std::result::Result<Endpoint, Returned<ConnRequest>> {
        let dev = &self.inner.handle.dev;
        let opened = match request.is_of(dev) {
            true => Endpoint::open(&self.inner, attr, request.handle()),
            false => Err(Error::foreign(request.id())),
        };
        match opened {
            Ok(endpoint) => {
                request.used();
                Ok(endpoint)
            }
            Err(error) => Err(Returned {
                object: request,
                error,
            }),
        }
    }

    /// Closes it; given back while something on it is open.
    ///
    /// # Errors
    ///
    /// `EBUSY`.
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        match self.inner.handle.close() {
            Ok(()) => Ok(()),
            Err(error) => Err(Returned {
                object: self,
                error,
            }),
        }
    }
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.handle.fmt(f)
    }
}
