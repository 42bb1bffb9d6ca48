// SPDX-License-Identifier: MIT OR Apache-2.0
//! Passive (listening) endpoints.
#![forbid(unsafe_code)]

use std::mem::offset_of;
use std::net::SocketAddr;
use std::sync::Arc;

use kfabric_uapi as abi;
use zerocopy::IntoBytes;

use super::name;
use crate::addr;
use crate::auth::key::AuthKey;
use crate::error::{Result, Returned};
use crate::event::{EqInner, EventQueue};
use crate::handle::Handle;
use crate::object::{Kind, ObjectId};
use crate::sys::{self, Buf};

/// A passive endpoint (`fi_passive_ep`): listens for connection requests.
#[derive(Debug)]
pub struct PassiveEndpoint {
    handle: Handle,
    _eq: Held<EqInner>,
    _fabric: Arc<Handle>,
}

/// An object that is only kept alive, and not shown in debug output.
struct Held<T>(#[allow(dead_code, reason = "kept for its drop")] Arc<T>);

impl<T> std::fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl PassiveEndpoint {
    pub(crate) fn open(
        fabric: &Arc<Handle>,
        eq: &EventQueue,
        addr: SocketAddr,
        context: u64,
        keys: &[AuthKey],
    ) -> Result<Self> {
        let dev = &fabric.dev;
        dev.owns(&eq.inner.handle)?;
        let mut arg: abi::PepOpen = sys::new();
        arg.fabric = fabric.raw();
        arg.eq = eq.inner.handle.raw();
        arg.addr = addr::to_abi(Some(addr));
        arg.context = context;
        let refer = |key: &AuthKey| abi::AuthKeyRef {
            addr: key.bytes().as_ptr().expose_provenance() as u64,
            // CAST: At most `KFI_AUTH_KEY_MAX`.
            size: key.bytes().len() as u32,
            reserved: 0,
        };
        let keys: Vec<_> = keys.iter().map(refer).collect();
        let mut bufs = Vec::new();
        if !keys.is_empty() {
            let at = offset_of!(abi::PepOpen, auth_keys);
            bufs.push(Buf::input(at, keys.as_bytes()));
            arg.auth_key_count = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        }
        dev.call(fabric.id, &mut arg, &mut bufs)?;
        let handle = Handle::new(dev, Kind::PassiveEndpoint, arg.handle);
        Ok(Self {
            handle,
            _eq: Held(eq.inner.clone()),
            _fabric: fabric.clone(),
        })
    }

    /// The endpoint's name in error messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.handle.id
    }

    /// Starts listening. At most `backlog` connection requests may be pending (0: a default).
    ///
    /// # Errors
    ///
    /// - `EADDRINUSE` if the address is in use.
    /// - `EADDRNOTAVAIL` if the address is not one of this host.
    /// - `EINVAL` if the endpoint listens already.
    pub fn listen(&self, backlog: u32) -> Result<()> {
        let mut arg: abi::Listen = sys::new();
        arg.pep = self.handle.raw();
        arg.backlog = backlog;
        self.handle.dev.call(self.id(), &mut arg, &mut [])
    }

    /// Returns the address of the endpoint, with its port. The port is known from the open on, before
    /// [`PassiveEndpoint::listen`].
    ///
    /// # Errors
    ///
    /// - [`Error::Call`](crate::Error::Call) if the kernel refuses the call.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        name(&self.handle.dev, self.id(), 0)
    }

    /// Closes the endpoint.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`](crate::Error::Call) if the kernel refuses the call. The endpoint is returned
    ///   in [`Returned`].
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        Returned::on_error(self.handle.close(), self)
    }
}
