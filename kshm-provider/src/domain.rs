// SPDX-License-Identifier: GPL-2.0
//! Domains.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    endpoint::{
        Endpoint,
        Handle, //
    },
    group::{
        Group,
        Shared, //
    },
    info,
    key,
    provider::Host,
    region::Region,
    request::Request, //
};
use kfabric::{
    memory::Memory,
    net::Net,
    provider::{
        ConnRequestOps,
        DomainAttr,
        DomainOps,
        EndpointAttr,
        EndpointOps,
        EndpointSink,
        GroupOps,
        KeyAssign,
        Proof,
        RegionOps, //
    },
    pure::atomic::{
        Datatype,
        Form,
        Op, //
    },
    uapi::KFI_INJECT_MAX,
};

/// A domain.
pub(crate) struct Domain {
    host: Arc<Host>,
    group: Arc<Group>,
}

impl Domain {
    /// Makes one.
    pub(crate) fn new(host: &Arc<Host>) -> Result<Arc<Self>> {
        let domain = Self {
            host: host.clone(),
            group: Group::new(None)?,
        };
        Ok(Arc::new(domain, GFP_KERNEL_ACCOUNT)?)
    }
}

impl DomainOps for Domain {
    fn attr(&self) -> DomainAttr {
        info::domain_attr()
    }

    /// All that there is, as many at once as their operands have room.
    fn atomic(&self, form: Form, _op: Op, ty: Datatype) -> Option<usize> {
        let values = match form {
            Form::Compare => 2,
            Form::Base | Form::Fetch => 1,
        };
        KFI_INJECT_MAX.checked_div(values * ty.size())
    }

    fn lent_max(&self) -> Option<u32> {
        Some(u32::MAX)
    }

    /// Who posts copies.
    fn completes_in_post(&self) -> bool {
        true
    }

    fn register(
        &self,
        mem: &Arc<Memory>,
        _access: u64,
        group: Option<&Arc<dyn GroupOps>>,
    ) -> Result<Arc<dyn RegionOps>> {
        // What the memory may be used for the core checks with each operation.
        let group = Group::or_given(&self.group, group)?;
        let region: Arc<dyn RegionOps> = Region::new(&self.host.table, group, mem)?;
        Ok(region)
    }

    fn group(&self, proof: Option<Arc<dyn Proof>>, _reuses: bool) -> Result<Arc<dyn GroupOps>> {
        let group: Arc<dyn GroupOps> = Arc::new(Shared(Group::new(proof)?), GFP_KERNEL_ACCOUNT)?;
        Ok(group)
    }

    fn assign_keys(&self, batch: &mut [KeyAssign<'_>]) -> Result<(), (usize, Error)> {
        key::assign(batch)
    }

    fn endpoint(
        &self,
        net: &Net,
        attr: &mut EndpointAttr,
        request: Option<&Arc<dyn ConnRequestOps>>,
        group: Option<&Arc<dyn GroupOps>>,
        sink: Arc<dyn EndpointSink>,
    ) -> Result<Arc<dyn EndpointOps>> {
        let limits = info::domain_attr();
        let too_large = attr.tx_size > limits.max_tx_size
            || attr.rx_size > limits.max_rx_size
            || attr.iov_limit > limits.iov_limit
            || attr.inject_size > limits.inject_size;
        if too_large || attr.tx_size == 0 || attr.rx_size == 0 {
            return Err(EINVAL);
        }
        attr.inject_size = limits.inject_size;
        let request = match request {
            Some(request) => {
                let ours = request.as_any().downcast_ref::<Request>().ok_or(EINVAL)?;
                Some(ours)
            }
            None => None,
        };
        let group = Group::or_given(&self.group, group)?;
        let endpoint = Endpoint::new(&self.host, group, net, attr, sink)?;
        let handle = Arc::new(Handle(endpoint), GFP_KERNEL_ACCOUNT)?;
        if let Some(request) = request {
            // Nothing can fail after this.
            handle.0.take_over(request)?;
        }
        Ok(handle)
    }
}
