// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fabrics.
#![forbid(unsafe_code)]

use std::mem::offset_of;
use std::net::SocketAddr;
use std::sync::Arc;

use kfabric_uapi as abi;

use crate::auth::key::{given, AuthKey};
use crate::domain::inner::DomainInner;
use crate::domain::Domain;
use crate::endpoint::PassiveEndpoint;
use crate::error::{Error, Result, Returned};
use crate::event::EventQueue;
use crate::handle::{Handle, Shared, DEVICE};
use crate::info::Info;
use crate::object::{put_text, Kind, ObjectId};
use crate::sys;

/// A fabric of a provider: the parent of event queues, passive endpoints and domains.
#[derive(Debug)]
pub struct Fabric {
    pub(crate) handle: Arc<Handle>,
}

impl Fabric {
    pub(crate) fn open(dev: &Arc<Shared>, provider: &str, fabric: &str) -> Result<Self> {
        let mut arg: abi::FabricOpen = sys::new();
        put("provider name", &mut arg.prov_name, provider)?;
        put("fabric name", &mut arg.fabric_name, fabric)?;
        dev.call(DEVICE, &mut arg, &mut [])?;
        Ok(Self {
            handle: Arc::new(Handle::new(dev, Kind::Fabric, arg.handle)),
        })
    }

    /// The fabric's name in error messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.handle.id
    }

    /// Opens the domain that an info entry names.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if the device has been removed.
    pub fn domain(&self, info: &Info) -> Result<Domain> {
        self.domain_by_name(info.domain())
    }

    /// Opens a domain by name.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if no device has that name.
    /// - `ENODEV` if the device is being removed.
    pub fn domain_by_name(&self, name: &str) -> Result<Domain> {
        self.open_domain(name, None, 0)
    }

    /// Like [`Fabric::domain_under`], by name.
    ///
    /// # Errors
    ///
    /// The errors of [`Fabric::domain_by_name`].
    pub fn domain_by_name_under(&self, name: &str, key: &AuthKey) -> Result<Domain> {
        self.open_domain(name, Some(key), 0)
    }

    /// Like [`Fabric::domain`], with an auth key for all objects of the domain that have none of
    /// their own. The use of the auth key is checked when such an object is opened: see
    /// [`Domain::endpoint`].
    ///
    /// # Errors
    ///
    /// The errors of [`Fabric::domain`].
    pub fn domain_under(&self, info: &Info, key: &AuthKey) -> Result<Domain> {
        self.open_domain(info.domain(), Some(key), 0)
    }

    /// Like [`Fabric::domain`], or with an auth key like [`Fabric::domain_under`]. No protection group
    /// of the domain gets a value that any key of the host has had since the group was created
    /// (`KFI_DOMAIN_STRICT_KEYS`). The domain's own regions are a group, and so are the objects of each
    /// auth key, as long as there are some, and each endpoint with keys of its own. If the device
    /// offers no other value, the allocation or assignment of a key fails with `ENOSPC`; a program
    /// that opens another domain can have values again.
    ///
    /// # Errors
    ///
    /// The errors of [`Fabric::domain`], and:
    ///
    /// - `EINVAL` if the kernel is older than the option.
    pub fn strict_domain(&self, info: &Info, key: Option<&AuthKey>) -> Result<Domain> {
        self.open_domain(info.domain(), key, abi::KFI_DOMAIN_STRICT_KEYS)
    }

    fn open_domain(&self, name: &str, key: Option<&AuthKey>, flags: u32) -> Result<Domain> {
        let dev = &self.handle.dev;
        let mut arg: abi::DomainOpen = sys::new();
        arg.fabric = self.handle.raw();
        arg.flags = flags;
        put("domain name", &mut arg.name, name)?;
        let (mut bufs, size) = given(offset_of!(abi::DomainOpen, auth_key), key);
        arg.auth_key_size = size;
        dev.call(self.id(), &mut arg, &mut bufs)?;
        let handle = Handle::new(dev, Kind::Domain, arg.handle);
        Ok(Domain {
            inner: Arc::new(DomainInner::new(handle, arg, &self.handle)),
        })
    }

    /// Opens an event queue for `depth` events (0: a default).
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `depth` is too large.
    /// - `EMFILE` if the process has too many open files.
    pub fn event_queue(&self, depth: u32) -> Result<EventQueue> {
        EventQueue::open(&self.handle, depth)
    }

    /// Opens a passive endpoint for an address. With port 0 the system chooses a port;
    /// [`PassiveEndpoint::local_addr`] returns it after [`PassiveEndpoint::listen`]. Connection
    /// requests arrive as events with `context`.
    ///
    /// # Errors
    ///
    /// - `EADDRINUSE` if the address is in use.
    /// - `EADDRNOTAVAIL` if the address is not one of this host.
    /// - `EACCES` if the port is below 1024 and the caller lacks `CAP_NET_BIND_SERVICE`.
    pub fn passive_endpoint(
        &self,
        eq: &EventQueue,
        addr: SocketAddr,
        context: u64,
    ) -> Result<PassiveEndpoint> {
        PassiveEndpoint::open(&self.handle, eq, addr, context, &[])
    }

    /// Like [`Fabric::passive_endpoint`], but only for peers with one of `keys`;
    /// [`ConnRequest::auth_key`](crate::ConnRequest::auth_key) says which one. The kernel refuses other peers.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `keys` has an auth key twice, or more than `KFI_PEP_AUTH_KEYS_MAX`.
    ///
    /// Also those of [`Fabric::passive_endpoint`]. If an auth key may not be used: see
    /// `kfi_auth(7)`.
    pub fn passive_endpoint_under(
        &self,
        eq: &EventQueue,
        addr: SocketAddr,
        context: u64,
        keys: &[AuthKey],
    ) -> Result<PassiveEndpoint> {
        PassiveEndpoint::open(&self.handle, eq, addr, context, keys)
    }

    /// Closes the fabric. On failure the fabric is returned in [`Returned`].
    ///
    /// # Errors
    ///
    /// - `EBUSY` while an object of the fabric is open.
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        Returned::on_error(self.handle.close(), self)
    }
}

/// Copies a name into a NUL-padded array.
fn put(what: &'static str, to: &mut [u8], text: &str) -> Result<()> {
    if put_text(to, text) {
        return Ok(());
    }
    Err(Error::Argument {
        what,
        why: format!("longer than {} bytes, or with a NUL in it", to.len() - 1),
    })
}
