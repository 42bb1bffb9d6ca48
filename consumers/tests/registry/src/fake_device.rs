// SPDX-License-Identifier: GPL-2.0
//! Devices of a fake provider: domains, regions, keys.

use core::{
    any::Any,
    sync::atomic::{
        AtomicBool,
        Ordering, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    memory::Memory,
    provider::{
        ConnRequestOps,
        DomainAttr,
        DomainOps,
        EndpointAttr,
        EndpointOps,
        EndpointSink,
        GroupOps,
        KeyAssign,
        KeyOps,
        KeyValue,
        RegionOps, //
    },
    sys::net::Net, //
};

use crate::{
    fake::{
        wanted_error,
        Control,
        Spec,
        Step,
        CM_DATA_SIZE,
        INJECT_SIZE,
        IOV_LIMIT,
        MAX_KEYS,
        MAX_MSG_SIZE,
        TX_SIZE, //
    },
    fake_cm::{
        FakeEp,
        FakeRequest, //
    },
};

/// Remote address of a fake device's memory.
pub(crate) const BASE: u64 = 0x10_0000;

/// A fake device.
pub(crate) struct FakeDomain {
    spec: &'static Spec,
    control: Arc<Control>,
}

impl FakeDomain {
    pub(crate) fn new(spec: &'static Spec, control: Arc<Control>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { spec, control }, GFP_KERNEL)?)
    }

    /// Returns the address of the object, which identifies the domain.
    pub(crate) fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }
}

impl DomainOps for FakeDomain {
    fn attr(&self) -> DomainAttr {
        DomainAttr {
            caps: self.spec.caps,
            mr_mode: self.spec.mr_mode,
            max_msg_size: MAX_MSG_SIZE,
            inject_size: INJECT_SIZE,
            max_tx_size: TX_SIZE,
            max_rx_size: TX_SIZE,
            iov_limit: IOV_LIMIT,
            cq_data_size: 4,
            cm_data_size: CM_DATA_SIZE,
            max_keys: MAX_KEYS.into(),
            ..DomainAttr::default()
        }
    }

    fn register(
        &self,
        _mem: &Arc<Memory>,
        _access: u64,
        _group: Option<&Arc<dyn GroupOps>>,
    ) -> Result<Arc<dyn RegionOps>> {
        let control = self.control.clone();
        let region = Arc::new(FakeRegion { control }, GFP_KERNEL)?;
        self.control.regions.fetch_add(1, Ordering::Relaxed);
        Ok(region)
    }

    fn assign_keys(&self, batch: &mut [KeyAssign<'_>]) -> Result<(), (usize, Error)> {
        for (i, order) in batch.iter_mut().enumerate() {
            let key = order.slot.as_any().downcast_ref::<FakeKey>();
            order.value = key
                .ok_or(EINVAL)
                .and_then(|key| key.assign(order.offset, order.once))
                .map_err(|e| (i, e))?;
        }
        Ok(())
    }

    fn endpoint(
        &self,
        _net: &Net,
        attr: &mut EndpointAttr,
        request: Option<&Arc<dyn ConnRequestOps>>,
        _group: Option<&Arc<dyn GroupOps>>,
        sink: Arc<dyn EndpointSink>,
    ) -> Result<Arc<dyn EndpointOps>> {
        wanted_error(&self.control.endpoint_error)?;
        attr.inject_size = INJECT_SIZE;
        if let Some(request) = request {
            request
                .as_any()
                .downcast_ref::<FakeRequest>()
                .ok_or(EINVAL)?
                .take();
        }
        Ok(FakeEp::new(attr, sink, self.control.clone())?)
    }
}

impl Drop for FakeDomain {
    fn drop(&mut self) {
        self.control.did(Step::DomainDrop);
        self.control.clear_device(self.address());
    }
}

/// A fake region.
struct FakeRegion {
    control: Arc<Control>,
}

impl RegionOps for FakeRegion {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn alloc_key(self: Arc<Self>, _group: Option<&Arc<dyn GroupOps>>) -> Result<KBox<dyn KeyOps>> {
        let keys = &self.control.keys;
        if keys.fetch_add(1, Ordering::Relaxed) >= MAX_KEYS {
            keys.fetch_sub(1, Ordering::Relaxed);
            return Err(ENOSPC);
        }
        let key = FakeKey {
            region: self.clone(),
            assigned: AtomicBool::new(false),
            once: AtomicBool::new(false),
        };
        match KBox::new(key, GFP_KERNEL) {
            Ok(key) => Ok(key),
            Err(e) => {
                keys.fetch_sub(1, Ordering::Relaxed);
                Err(e.into())
            }
        }
    }
}

impl Drop for FakeRegion {
    fn drop(&mut self) {
        self.control.did(Step::RegionDrop);
        self.control.regions.fetch_sub(1, Ordering::Release);
    }
}

/// A fake key slot.
struct FakeKey {
    region: Arc<FakeRegion>,
    assigned: AtomicBool,
    once: AtomicBool,
}

impl FakeKey {
    fn assign(&self, offset: u64, once: bool) -> Result<KeyValue> {
        let control = &self.region.control;
        let left = &control.assigns_before;
        let one_less = |left: u32| left.checked_sub(1);
        if left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            .is_err()
        {
            wanted_error(&control.assign_error)?;
        }
        self.assigned.store(true, Ordering::Relaxed);
        self.once.store(once, Ordering::Relaxed);
        control.did(Step::Assign);
        Ok(KeyValue {
            key: control.next_key.fetch_add(1, Ordering::Relaxed).into(),
            remote_addr: BASE + offset,
        })
    }
}

impl KeyOps for FakeKey {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn used(&self) -> bool {
        self.once.load(Ordering::Relaxed) && self.region.control.used.load(Ordering::Relaxed)
    }

    fn revoke(&self, _last: bool) {
        if self.assigned.swap(false, Ordering::Relaxed) {
            self.region.control.did(Step::Revoke);
        }
    }
}

impl Drop for FakeKey {
    fn drop(&mut self) {
        self.revoke(true);
        let control = &self.region.control;
        control.did(Step::KeyDrop);
        control.keys.fetch_sub(1, Ordering::Relaxed);
    }
}
