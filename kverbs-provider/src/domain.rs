// SPDX-License-Identifier: GPL-2.0
//! Domains: a device that a consumer has opened.

use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex,
        SetOnce, //
    }, //
};

use crate::{
    channel::listener::Listener,
    conn::request::Request,
    data::atomic,
    device::Device,
    endpoint::Endpoint,
    ib::{
        charge::{
            Charge,
            Kind, //
        },
        device::Live,
        dma,
        qp::QpSize,
        wr::MAX_SGE, //
    },
    info,
    key::{
        assign,
        deferred::Holds,
        group::{
            Group,
            Owner,
            Shared, //
        },
        revoke, //
    },
    limits::PIECES,
    region::Region,
    resource::{
        Class,
        Resource,
        Ticket, //
    },
    stats::DomainCounts, //
};
use kfabric::{
    memory::Memory,
    provider::{
        helpers::own_request,
        ConnRequestOps,
        DomainAttr,
        DomainOps,
        DomainSink,
        EndpointAttr,
        EndpointOps,
        EndpointSink,
        GroupOps,
        KeyAssign,
        KeyCounts,
        KeyOps,
        KeyValues,
        Proof,
        RegionOps, //
    },
    pure::{
        atomic::{
            Datatype,
            Form,
            Op, //
        },
        rights, //
    },
    sys::net::Net,
    uapi::{
        KFI_ATOMIC,
        KFI_REACH_NO, //
    }, //
};

/// Notifies the core of the device's removal, after all other resources have ended.
#[pin_data]
struct Gone {
    sink: Arc<dyn DomainSink>,
    /// Charge for the opened device, if the domain is a program's.
    #[pin]
    charge: Mutex<Option<Charge>>,
}

impl Resource for Gone {
    fn device_gone(&self) {
        let charge = self.charge.lock().take();
        drop(charge);
        self.sink.gone();
    }
}

/// A domain of the provider.
pub(crate) struct Domain {
    device: Arc<Device>,
    group: Arc<Group>,
    attr: DomainAttr,
    lent_max: u32,
    net: Net,
    /// Accepts channels for the domain's connections, once persistent memory is registered.
    channels: SetOnce<Listener>,
    ticket: Ticket,
}

impl Domain {
    /// Opens `device`.
    pub(crate) fn new(
        live: &Live<'_>,
        net: &Net,
        device: &Arc<Device>,
        sink: Arc<dyn DomainSink>,
    ) -> Result<Arc<Self>> {
        let attr = info::domain_attr(live, device)?;
        let program = sink.is_program();
        let charge = match program {
            true => Some(Charge::new(live, device.ib(), Kind::Handle)?),
            false => None,
        };
        let values = sink.key_values();
        let owner = Owner {
            holds: Arc::pin_init(Holds::new(), GFP_KERNEL_ACCOUNT)?,
            program,
            counts: Arc::new(DomainCounts::default(), GFP_KERNEL_ACCOUNT)?,
        };
        let group = Group::new(live, device, None, values, owner)?;
        let gone: Arc<dyn Resource> = Arc::pin_init(
            pin_init!(Gone {
                sink,
                charge <- new_mutex!(charge, "kverbs_domain"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let ticket = device.resources.add(Class::Domain, gone)?;
        let domain = Self {
            device: device.clone(),
            group,
            attr,
            lent_max: dma::max_lent(live, device.ib()),
            net: net.clone(),
            channels: SetOnce::new(),
            ticket,
        };
        Ok(Arc::new(domain, GFP_KERNEL_ACCOUNT)?)
    }
}

impl DomainOps for Domain {
    fn attr(&self) -> DomainAttr {
        self.attr
    }

    fn atomic(&self, form: Form, op: Op, ty: Datatype) -> Option<usize> {
        (self.attr.caps & KFI_ATOMIC != 0 && atomic::offered(form, op, ty)).then_some(1)
    }

    fn lent_max(&self) -> Option<u32> {
        Some(self.lent_max)
    }

    fn region_slots(&self, mem: &Memory, access: u64) -> u64 {
        match access & rights::LOCAL {
            0 => 0,
            _ => Region::slots(&self.group, mem),
        }
    }

    fn register(
        &self,
        mem: &Arc<Memory>,
        access: u64,
        group: Option<&Arc<dyn GroupOps>>,
    ) -> Result<Arc<dyn RegionOps>> {
        let live = self.device.enter()?;
        let group = self.group.or_given(group)?;
        let is_local = access & rights::LOCAL != 0;
        let region: Arc<dyn RegionOps> = Region::new(&live, group, mem, is_local)?;
        let durable = self.attr.durable != KFI_REACH_NO && mem.persistence().is_durable_by_cpu();
        if durable && self.channels.as_ref().is_none() {
            match Listener::new(&self.net) {
                Ok(listener) => {
                    self.channels.populate(listener);
                }
                Err(e) if e == ENOMEM => return Err(e),
                // The memory works, and durable writes to it are refused until a later registration
                // listens.
                Err(_) => {}
            }
        }
        Ok(region)
    }

    fn group(&self, proof: Option<Arc<dyn Proof>>, values: KeyValues) -> Result<Arc<dyn GroupOps>> {
        let live = self.device.enter()?;
        let owner = self.group.owner().clone();
        let group = Group::new(&live, &self.device, proof, values, owner)?;
        let group: Arc<dyn GroupOps> = Arc::new(Shared(group), GFP_KERNEL_ACCOUNT)?;
        Ok(group)
    }

    fn assign_keys(&self, batch: &mut [KeyAssign<'_>]) -> Result<(), (usize, Error)> {
        assign::assign(&self.device, batch)
    }

    fn revoke_keys(&self, slots: &[&dyn KeyOps]) {
        revoke::revoke(&self.device, slots);
    }

    fn key_counts(&self) -> KeyCounts {
        self.group.values().counts()
    }

    fn hold(&self) {
        self.group.holds().hold();
    }

    fn resume(&self) {
        self.group.holds().resume();
    }

    fn endpoint(
        &self,
        net: &Net,
        attr: &mut EndpointAttr,
        request: Option<&Arc<dyn ConnRequestOps>>,
        group: Option<&Arc<dyn GroupOps>>,
        sink: Arc<dyn EndpointSink>,
    ) -> Result<Arc<dyn EndpointOps>> {
        self.attr.admit(attr)?;
        // Each scatter entry of the caller may need several entries of the device.
        let ib = self.device.ib();
        let sge = (attr.iov_limit.max(1) * PIECES)
            .min(ib.max_sge())
            .min(MAX_SGE as u32);
        let read_sge = sge.min(ib.max_read_sge());
        let write_sge = if ib.mixes_up_pieces() { 1 } else { sge };
        // One operation of `iov_limit` pieces fits the queue, however few operations the caller wants at once.
        let entries = attr.iov_limit.max(1) * PIECES;
        let least = entries.div_ceil(read_sge.min(write_sge).max(1));
        let size = QpSize {
            tx: attr.tx_size.max(least),
            rx: attr.rx_size,
            sge,
            read_sge,
            write_sge,
            of_owner: false,
        };
        let request = own_request::<Request>(request)?;
        let endpoint: Arc<dyn EndpointOps> = Endpoint::new(
            self.group.or_given(group)?,
            net,
            size,
            attr.src_addr,
            request,
            sink,
        )?;
        Ok(endpoint)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.device.resources.remove(self.ticket);
    }
}
