// SPDX-License-Identifier: GPL-2.0
//! Endpoints: the references of the core to a connection.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    conn::{
        connection::Connection, //
        request::Request,
    },
    data::path::{
        DataPath,
        Owner,
        Refused, //
    },
    host::Host,
    key::group::Group, //
};
use kfabric::{
    ep::OpToken,
    op::OpDesc,
    provider::{
        EndpointAttr,
        EndpointOps,
        EndpointSink, //
    },
    sys::net::Net,
    uapi::SockAddr, //
};

/// An endpoint, as the core refers to it. The drop closes the connection.
pub(crate) struct Endpoint(Arc<Connection>);

impl Endpoint {
    /// Creates an endpoint in `group`. With a `request`, the endpoint is the accepting end.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the request was answered, or if it has a proof and the group has none, or the
    ///   reverse.
    /// - `ENOMEM`
    pub(crate) fn new(
        host: &Host,
        group: Arc<Group>,
        net: &Net,
        attr: &EndpointAttr,
        request: Option<&Request>,
        sink: Arc<dyn EndpointSink>,
    ) -> Result<Arc<Self>> {
        let connection = Connection::new(&host.names, &host.table, group, net, attr, sink)?;
        let endpoint = Arc::new(Self(connection), GFP_KERNEL_ACCOUNT)?;
        if let Some(request) = request {
            // The only step that can fail, so it is the last.
            endpoint.0.take_over(request)?;
        }
        Ok(endpoint)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        Connection::close(&self.0);
    }
}

impl EndpointOps for Endpoint {
    fn enable(&self) -> Result {
        self.0.enable()
    }

    fn connect(&self, addr: &SockAddr, data: &[u8]) -> Result {
        Connection::connect(&self.0, addr, data)
    }

    fn accept(&self, data: &[u8]) -> Result {
        Connection::accept(&self.0, data)
    }

    fn shutdown(&self) -> Result {
        Connection::shutdown(&self.0)
    }

    fn post(&self, op: &OpDesc<'_>, token: OpToken) -> Result<(), Refused> {
        DataPath::post(&self.0, op, token)
    }

    fn cancel(&self, context: u64) -> Result {
        self.0.path().cancel(context)
    }

    fn local_addr(&self) -> SockAddr {
        self.0.local_addr()
    }

    fn peer_addr(&self) -> SockAddr {
        self.0.peer_addr()
    }

    fn close(&self) {
        Connection::close(&self.0)
    }
}
