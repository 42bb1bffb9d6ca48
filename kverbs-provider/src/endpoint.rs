// SPDX-License-Identifier: GPL-2.0
//! Endpoints: the references of the core and of the device's resource list to a connection.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    conn::{
        connection::Connection,
        request::Request, //
    },
    data::Refused,
    ib::{
        cm::{
            CmEvent,
            CmEventKind,
            CmHandler, //
        },
        qp::QpSize,
        work, //
    },
    key::{
        deferred::Deferring,
        group::Group, //
    },
    resource::{
        Class,
        GroupId,
        Resource,
        Ticket, //
    },
};
use kfabric::{
    ep::OpToken,
    op::OpDesc,
    provider::{
        EndpointOps,
        EndpointSink, //
    },
    sys::net::Net,
    uapi::SockAddr, //
};

/// A connection on the device's list of resources.
struct Listed(Arc<Connection>);

impl Resource for Listed {
    fn device_gone(&self) {
        let this = &self.0;
        <Connection as CmHandler>::event(
            this.as_arc_borrow(),
            CmEvent {
                kind: CmEventKind::DeviceRemoval,
                status: 0,
                data: &[],
                qp_num: 0,
            },
        );
        work::flush::<_, 0>(this);
    }

    fn tick(&self) {
        let this = &self.0;
        Connection::tick(this);
    }

    fn fail(&self, group: GroupId, err: u32) {
        if self.0.group().id() == group {
            Connection::fail_now(&self.0, err);
        }
    }
}

/// An endpoint, as the core refers to it.
pub(crate) struct Endpoint {
    connection: Arc<Connection>,
    ticket: Ticket,
}

impl Endpoint {
    /// Creates an endpoint in `group`. With a `request`, the endpoint is the accepting side and
    /// takes the request's identifier. On any failure the request is unchanged.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the request arrived on another device, or if it was answered or has ended.
    /// - `EINVAL` if the request has a proof and the group has none, or the reverse.
    /// - `ENODEV` if the device is being removed.
    pub(crate) fn new(
        group: &Arc<Group>,
        net: &Net,
        size: QpSize,
        local: SockAddr,
        request: Option<&Request>,
        sink: Arc<dyn EndpointSink>,
    ) -> Result<Arc<Self>> {
        let device = group.device();
        let _live = device.enter()?;
        if request.is_some_and(|request| !Arc::ptr_eq(request.device(), device)) {
            return Err(EINVAL);
        }
        // The core guarantees it: a proven request gets an endpoint in a group with a proof.
        if request.is_some_and(|of| of.proven().is_some() != group.proof().is_some()) {
            return Err(EINVAL);
        }
        let connection = Connection::new(group, net, size, local, sink)?;
        let listed: Arc<dyn Resource> = Arc::new(Listed(connection.clone()), GFP_KERNEL_ACCOUNT)?;
        let ticket = device.resources.add(Class::Endpoint, listed)?;
        let endpoint = Arc::new(Self { connection, ticket }, GFP_KERNEL_ACCOUNT)?;
        let deferring: Arc<dyn Deferring> = endpoint.connection.clone();
        group.holds().add(deferring)?;
        if let Some(request) = request {
            // No step fails after this one.
            let (id, param) = request.take().ok_or(EINVAL)?;
            let (proven, secret) = (request.proven().cloned(), request.secret());
            Connection::take_over(&endpoint.connection, id, param, proven, secret);
        }
        Ok(endpoint)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
        self.connection.group().holds().remove(&*self.connection);
        self.connection
            .group()
            .device()
            .resources
            .remove(self.ticket);
    }
}

impl EndpointOps for Endpoint {
    fn enable(&self) -> Result {
        Connection::enable(&self.connection)
    }

    fn connect(&self, addr: &SockAddr, data: &[u8]) -> Result {
        Connection::connect(&self.connection, addr, data)
    }

    fn accept(&self, data: &[u8]) -> Result {
        self.connection.accept(data)
    }

    fn shutdown(&self) -> Result {
        Connection::shutdown(&self.connection)
    }

    fn post(&self, op: &OpDesc<'_>, token: OpToken) -> Result<(), Refused> {
        Connection::post(self.connection.as_arc_borrow(), op, token)
    }

    fn local_addr(&self) -> SockAddr {
        self.connection.local_addr()
    }

    fn peer_addr(&self) -> SockAddr {
        self.connection.peer_addr()
    }

    fn close(&self) {
        Connection::close(&self.connection)
    }
}
