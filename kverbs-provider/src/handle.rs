// SPDX-License-Identifier: GPL-2.0
//! An endpoint as the core has it, and as its device knows it.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    endpoint::Endpoint,
    group::Group,
    ib::{
        cm::{
            CmEvent,
            CmEventKind,
            CmHandler, //
        },
        qp::QpSize,
        work, //
    },
    path::Refused,
    request::Request,
    resource::{
        Class,
        Resource,
        Ticket, //
    },
};
use kfabric::{
    net::Net,
    op::{
        OpDesc,
        OpToken, //
    },
    provider::{
        EndpointOps,
        EndpointSink, //
    },
    uapi::SockAddr, //
};

/// An endpoint on the device's list of resources.
struct Listed(Arc<Endpoint>);

impl Resource for Listed {
    fn device_gone(&self) {
        let this = &self.0;
        <Endpoint as CmHandler>::event(
            this.as_arc_borrow(),
            CmEvent {
                kind: CmEventKind::DeviceRemoval,
                status: 0,
                data: &[],
                qp_num: 0,
            },
        );
        work::flush(this);
    }

    fn tick(&self) {
        let this = &self.0;
        Endpoint::tick(this);
    }

    fn fail(&self, err: u32) {
        Endpoint::fail_now(&self.0, err);
    }
}

/// An endpoint as the core has it.
pub(crate) struct Handle {
    endpoint: Arc<Endpoint>,
    ticket: Ticket,
}

impl Handle {
    /// Makes an endpoint in `group`. With `request`, its identifier is taken over: the accepting
    /// side.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the request came in on another device. `ECONNABORTED`: it is no more. The
    /// request is as before on any failure.
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
        // The core sees to that.
        if request.is_some_and(|of| of.proven().is_some() != group.proof().is_some()) {
            return Err(EINVAL);
        }
        let endpoint = Endpoint::new(group, net, size, local, sink)?;
        let listed: Arc<dyn Resource> = Arc::new(Listed(endpoint.clone()), GFP_KERNEL_ACCOUNT)?;
        let ticket = device.resources.add(Class::Endpoint, listed)?;
        let handle = Arc::new(Self { endpoint, ticket }, GFP_KERNEL_ACCOUNT)?;
        group.holds().add(&handle.endpoint)?;
        if let Some(request) = request {
            // Nothing can fail after this.
            let (id, param) = request.take().ok_or(EINVAL)?;
            Endpoint::take_over(&handle.endpoint, id, param, request.proven().cloned());
        }
        Ok(handle)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
        self.endpoint.group().holds().remove(&self.endpoint);
        self.endpoint.group().device().resources.remove(self.ticket);
    }
}

impl EndpointOps for Handle {
    fn enable(&self) -> Result {
        Endpoint::enable(&self.endpoint)
    }

    fn connect(&self, addr: &SockAddr, data: &[u8]) -> Result {
        Endpoint::connect(&self.endpoint, addr, data)
    }

    fn accept(&self, data: &[u8]) -> Result {
        self.endpoint.accept(data)
    }

    fn shutdown(&self) -> Result {
        Endpoint::shutdown(&self.endpoint)
    }

    fn post(&self, op: &OpDesc<'_>, token: OpToken) -> Result<(), Refused> {
        Endpoint::post(self.endpoint.as_arc_borrow(), op, token)
    }

    fn local_addr(&self) -> SockAddr {
        self.endpoint.local_addr()
    }

    fn peer_addr(&self) -> SockAddr {
        self.endpoint.peer_addr()
    }

    fn close(&self) {
        Endpoint::close(&self.endpoint)
    }
}
