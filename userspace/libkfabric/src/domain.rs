// SPDX-License-Identifier: MIT OR Apache-2.0
//! Domains.
#![forbid(unsafe_code)]

pub(crate) mod inner;

use std::sync::Arc;

use kfabric_uapi as abi;

use crate::atomic::{AtomicForm, AtomicOp, Integer};
use crate::completion::CompletionQueue;
use crate::counter::Counter;
use crate::endpoint::{Endpoint, EndpointAttr};
use crate::error::{Error, Result, Returned};
use crate::event::ConnRequest;
use crate::flags::{Access, Caps, Format, MrMode, Reach};
use crate::handle::debug_by_handle;
use crate::memory::Memory;
use crate::object::ObjectId;
use crate::region::{Region, RegionAttr};
use crate::revoke::revoke_all;
use crate::sys;
use inner::DomainInner;

/// A domain: one device, with its regions, queues and endpoints (`fi_domain(3)`).
pub struct Domain {
    pub(crate) inner: Arc<DomainInner>,
}

impl Domain {
    /// The domain's name in error messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.inner.handle.id
    }

    /// Capabilities of the domain.
    pub fn caps(&self) -> Caps {
        Caps::from_bits_retain(self.inner.attr.caps)
    }

    /// Registration modes that the domain requires.
    pub fn mr_mode(&self) -> MrMode {
        MrMode::from_bits_retain(self.inner.attr.mr_mode)
    }

    /// Maximum bytes of one operation.
    pub fn max_msg_size(&self) -> u64 {
        self.inner.attr.max_msg_size
    }

    /// Returns how many values one atomic may change (`fi_query_atomic`).
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the provider does not support the operation.
    /// - `EINVAL` if `op` does not exist in this form.
    pub fn query_atomic<T: Integer>(&self, form: AtomicForm, op: AtomicOp) -> Result<usize> {
        self.query_atomic_raw(form, op, T::DATATYPE)
    }

    /// Like [`Domain::query_atomic`], for a `KFI_INT*` or `KFI_UINT*` constant.
    ///
    /// # Errors
    ///
    /// The errors of [`Domain::query_atomic`].
    pub fn query_atomic_raw(&self, form: AtomicForm, op: AtomicOp, datatype: u32) -> Result<usize> {
        let mut arg: abi::AtomicQuery = sys::new();
        arg.domain = self.inner.handle.raw();
        arg.op = form as u32;
        arg.atomic_op = op as u32;
        arg.datatype = datatype;
        self.inner.handle.dev.call(self.id(), &mut arg, &mut [])?;
        Ok(usize::try_from(arg.count).unwrap_or(usize::MAX))
    }

    /// Maximum bytes of an injected payload.
    pub fn inject_size(&self) -> usize {
        self.inner.attr.inject_size as usize
    }

    /// Maximum numbers of operations and receives that an endpoint may hold.
    pub fn max_sizes(&self) -> (u32, u32) {
        (self.inner.attr.max_tx_size, self.inner.attr.max_rx_size)
    }

    /// Maximum scatter entries of one operation.
    pub fn iov_limit(&self) -> usize {
        self.inner.attr.iov_limit as usize
    }

    /// Maximum bytes of the program's data in a connection request.
    pub fn cm_data_size(&self) -> usize {
        self.inner.attr.cm_data_size as usize
    }

    /// Approximate number of key slots that the device can hold.
    pub fn max_keys(&self) -> u64 {
        self.inner.attr.max_keys
    }

    /// How writes become visible before they complete ([`Op::visible`](crate::Op::visible)).
    pub fn visible(&self) -> Reach {
        Reach::from_abi(self.inner.attr.visible)
    }

    /// How writes to persistent memory become durable before they complete
    /// ([`Op::durable`](crate::Op::durable)).
    pub fn durable(&self) -> Reach {
        Reach::from_abi(self.inner.attr.durable)
    }

    /// Opens a completion queue of at least `depth` entries (0: a default).
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `depth` is too large.
    /// - `ENOMEM` if memory is missing.
    /// - `EMFILE` if the process has too many open files.
    pub fn completion_queue(&self, depth: u32, format: Format) -> Result<CompletionQueue> {
        CompletionQueue::open(&self.inner, depth, format)
    }

    /// Opens a counter.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if memory is missing.
    pub fn counter(&self) -> Result<Counter> {
        Counter::open(&self.inner)
    }

    /// Registers all of `memory`. If `access` includes remote access, the region has a key.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if the pins exceed `RLIMIT_MEMLOCK`.
    /// - `EFAULT` if the memory does not allow the access.
    pub fn register(&self, memory: impl Into<Arc<Memory>>, access: Access) -> Result<Region> {
        self.register_with(memory, &RegionAttr::new(access))
    }

    /// Revokes all keys of all regions of the domain, in one call. Returns their number. See
    /// [`Region::revoke_keys`].
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the call.
    pub fn revoke_keys(&self) -> Result<u64> {
        revoke_all(&self.inner.handle, abi::KFI_REVOKE_DOMAIN)
    }

    /// Registers memory with attributes: a part of it, or without a key until
    /// [`Region::alloc_keys`].
    ///
    /// # Errors
    ///
    /// The errors of [`Domain::register`].
    pub fn register_with(
        &self,
        memory: impl Into<Arc<Memory>>,
        attr: &RegionAttr,
    ) -> Result<Region> {
        Region::open(&self.inner, memory.into(), attr)
    }

    /// Opens an endpoint for connecting.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if a size exceeds the domain's limit.
    /// - `ENOMEM` if memory is missing.
    /// - `EACCES`, `ENOKEY`, `ETIMEDOUT` or `EDQUOT` if the auth key may not be used: see
    ///   `kfi_auth(7)`.
    pub fn endpoint(&self, attr: &EndpointAttr) -> Result<Endpoint> {
        Endpoint::open(&self.inner, attr, 0)
    }

    /// Opens an endpoint for accepting a connection request. On failure the request is returned in
    /// [`Returned`].
    ///
    /// # Errors
    ///
    /// - `ENOENT` if the peer has given up.
    /// - `EINVAL` if the request arrived on another device.
    ///
    /// Also those of [`Domain::endpoint`].
    #[expect(clippy::result_large_err, reason = "the request itself is returned")]
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

    /// Closes the domain. On failure the domain is returned in [`Returned`].
    ///
    /// # Errors
    ///
    /// - `EBUSY` while an object of the domain is open.
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        Returned::on_error(self.inner.handle.close(), self)
    }
}

debug_by_handle!(Domain, inner.handle);
