// SPDX-License-Identifier: GPL-2.0
//! Domains.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    conn::request::Request,
    endpoint::Endpoint,
    host::Host,
    info,
    key::{
        group::{
            Group,
            Shared, //
        },
        slot, //
    },
    region::Region, //
};
use kfabric::{
    memory::Memory,
    provider::{
        helpers::own_request,
        ConnRequestOps,
        DomainAttr,
        DomainOps,
        EndpointAttr,
        EndpointOps,
        EndpointSink,
        GroupOps,
        KeyAssign,
        KeyValues,
        Proof,
        RegionOps, //
    },
    pure::atomic::{
        Datatype,
        Form,
        Op, //
    },
    sys::net::Net,
    uapi::KFI_INJECT_MAX, //
};

/// A domain.
pub(crate) struct Domain {
    host: Arc<Host>,
    group: Arc<Group>,
}

impl Domain {
    /// Creates a domain.
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

    /// Supports all operations, limited by the number of operands that fit into an inline payload.
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

    /// The poster itself copies, so a post may complete its operation.
    fn completes_in_post(&self) -> bool {
        true
    }

    fn register(
        &self,
        mem: &Arc<Memory>,
        _access: u64,
        group: Option<&Arc<dyn GroupOps>>,
    ) -> Result<Arc<dyn RegionOps>> {
        // The core checks the access rights with each operation.
        let group = Group::or_given(&self.group, group)?;
        let region: Arc<dyn RegionOps> = Region::new(&self.host.table, group, mem)?;
        Ok(region)
    }

    fn group(
        &self,
        proof: Option<Arc<dyn Proof>>,
        // A cell of the key table has no value twice.
        _values: KeyValues,
    ) -> Result<Arc<dyn GroupOps>> {
        let group: Arc<dyn GroupOps> = Arc::new(Shared(Group::new(proof)?), GFP_KERNEL_ACCOUNT)?;
        Ok(group)
    }

    fn assign_keys(&self, batch: &mut [KeyAssign<'_>]) -> Result<(), (usize, Error)> {
        slot::assign(batch)
    }

    fn endpoint(
        &self,
        net: &Net,
        attr: &mut EndpointAttr,
        request: Option<&Arc<dyn ConnRequestOps>>,
        group: Option<&Arc<dyn GroupOps>>,
        sink: Arc<dyn EndpointSink>,
    ) -> Result<Arc<dyn EndpointOps>> {
        info::domain_attr().admit(attr)?;
        let request = own_request::<Request>(request)?;
        let group = Group::or_given(&self.group, group)?;
        let endpoint = Endpoint::new(&self.host, group, net, attr, request, sink)?;
        Ok(endpoint)
    }
}
