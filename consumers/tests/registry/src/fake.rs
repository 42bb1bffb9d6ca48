// SPDX-License-Identifier: GPL-2.0
//! A fake provider without hardware.
//!
//! The provider offers the attributes in its [`Spec`]. It writes each call to a log and behaves as
//! its [`Control`] says. So a test can make any call fail, complete an operation, connect, break a
//! connection, or remove a device.

use core::sync::atomic::{
    AtomicBool,
    AtomicI32,
    AtomicU32,
    Ordering, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kfabric::{
    base::name::set_name,
    new_irqlock,
    provider::{
        registry,
        DomainOps,
        DomainSink,
        ListenSink,
        ListenerOps,
        Provider, //
    },
    sys::{
        net::Net,
        IrqLock, //
    },
    uapi::*,
};

use crate::{
    fake_cm::{
        FakeEp,
        FakeListener, //
    },
    fake_device::FakeDomain, //
};

/// Size of a transmit queue in operations.
pub(crate) const TX_SIZE: u32 = 16;
/// Maximum length of an inject operation in bytes.
pub(crate) const INJECT_SIZE: u32 = 32;
/// Maximum length of an operation in bytes.
pub(crate) const MAX_MSG_SIZE: u64 = 1 << 20;
/// Maximum number of local buffers of one operation.
pub(crate) const IOV_LIMIT: u32 = 2;
/// Maximum application data of a connection request in bytes.
pub(crate) const CM_DATA_SIZE: u32 = 56;
/// Number of key slots of one device.
pub(crate) const MAX_KEYS: u32 = 4;

/// Returns an IPv4 socket address.
pub(crate) const fn ipv4(addr: [u8; 4], port: u16) -> SockAddr {
    let family = 2_u16.to_ne_bytes();
    let port = port.to_be_bytes();
    let mut data = [0; 28];
    data[0] = family[0];
    data[1] = family[1];
    data[2] = port[0];
    data[3] = port[1];
    let mut i = 0;
    while i < 4 {
        data[4 + i] = addr[i];
        i += 1;
    }
    SockAddr { len: 16, data }
}

/// Attributes of a fake provider.
pub(crate) struct Spec {
    /// Provider name.
    pub(crate) name: &'static str,
    /// Provider version.
    pub(crate) version: u32,
    /// Fabric name.
    pub(crate) fabric: &'static str,
    /// Devices: name, rank, address.
    pub(crate) devices: &'static [(&'static str, u32, SockAddr)],
    /// Capabilities.
    pub(crate) caps: u64,
    /// Required modes.
    pub(crate) mode: u64,
    /// Required registration modes.
    pub(crate) mr_mode: u64,
}

/// A call of a fake provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A key was assigned.
    Assign,
    /// A key was revoked.
    Revoke,
    /// A key slot was dropped.
    KeyDrop,
    /// A region was dropped.
    RegionDrop,
    /// An endpoint was closed.
    EpClose,
    /// An endpoint was dropped.
    EpDrop,
    /// A listener was closed.
    ListenerClose,
    /// A connection request was refused, with data.
    Reject,
    /// An unanswered connection request was dropped.
    RequestDrop,
    /// A device was closed.
    DomainDrop,
}

/// The last calls, oldest first.
struct Log {
    steps: [Option<Step>; 64],
    count: usize,
}

/// The newest object of each kind that is in use.
#[derive(Default)]
struct Live {
    endpoint: Option<Arc<FakeEp>>,
    device: Option<(usize, Arc<dyn DomainSink>)>,
    listener: Option<Arc<dyn ListenSink>>,
}

/// The test's control of a fake provider.
#[pin_data]
pub(crate) struct Control {
    /// A post fails with `EAGAIN`.
    pub(crate) full: AtomicBool,
    /// Posted operations are dropped at once.
    pub(crate) drop_tokens: AtomicBool,
    /// Errno of `getinfo`; 0: success.
    pub(crate) getinfo_error: AtomicI32,
    /// `getinfo` itself calls getinfo of all providers.
    pub(crate) nested: AtomicBool,
    /// Number of entries of the last nested `getinfo`.
    pub(crate) nested_found: AtomicU32,
    /// Errno of an assignment; 0: success.
    pub(crate) assign_error: AtomicI32,
    /// Number of assignments that succeed before that errno.
    pub(crate) assigns_before: AtomicU32,
    /// Errno of connect and accept; 0: success.
    pub(crate) connect_error: AtomicI32,
    /// Errno of the creation of an endpoint; 0: success.
    pub(crate) endpoint_error: AtomicI32,
    /// Single-use keys are used.
    pub(crate) used: AtomicBool,
    /// Number of regions.
    pub(crate) regions: AtomicU32,
    /// Number of key slots in use.
    pub(crate) keys: AtomicU32,
    /// The next key value.
    pub(crate) next_key: AtomicU32,
    #[pin]
    log: IrqLock<Log>,
    #[pin]
    live: Mutex<Live>,
}

/// Returns the error in `place`.
pub(crate) fn wanted_error(place: &AtomicI32) -> Result {
    match place.load(Ordering::Relaxed) {
        0 => Ok(()),
        errno => Err(Error::from_errno(-errno)),
    }
}

impl Control {
    fn new() -> Result<Arc<Self>> {
        let log = Log {
            steps: [None; 64],
            count: 0,
        };
        Arc::pin_init(
            pin_init!(Self {
                full: AtomicBool::new(false),
                drop_tokens: AtomicBool::new(false),
                getinfo_error: AtomicI32::new(0),
                nested: AtomicBool::new(false),
                nested_found: AtomicU32::new(0),
                assign_error: AtomicI32::new(0),
                assigns_before: AtomicU32::new(0),
                connect_error: AtomicI32::new(0),
                endpoint_error: AtomicI32::new(0),
                regions: AtomicU32::new(0),
                keys: AtomicU32::new(0),
                used: AtomicBool::new(false),
                next_key: AtomicU32::new(1),
                log <- new_irqlock!(log, "kfi_test_registry_log"),
                live <- new_mutex!(Live::default(), "kfi_test_registry_live"),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds a call to the log.
    pub(crate) fn did(&self, step: Step) {
        let mut log = self.log.lock();
        let at = log.count % log.steps.len();
        log.steps[at] = Some(step);
        log.count += 1;
    }

    /// Clears the log.
    pub(crate) fn forget(&self) {
        self.log.lock().count = 0;
    }

    /// Returns whether exactly these calls were made since [`Control::forget`].
    pub(crate) fn steps_are(&self, steps: &[Step]) -> bool {
        let log = self.log.lock();
        log.count == steps.len()
            && log
                .steps
                .iter()
                .zip(steps)
                .all(|(got, wanted)| *got == Some(*wanted))
    }

    /// Returns the number of calls of this kind since [`Control::forget`].
    pub(crate) fn count(&self, step: Step) -> usize {
        let log = self.log.lock();
        log.steps
            .iter()
            .take(log.count)
            .filter(|got| **got == Some(step))
            .count()
    }

    /// Returns the newest endpoint.
    pub(crate) fn endpoint(&self) -> Result<Arc<FakeEp>> {
        self.live.lock().endpoint.clone().ok_or(ENOENT)
    }

    /// Stores the newest endpoint.
    pub(crate) fn set_endpoint(&self, endpoint: Arc<FakeEp>) {
        // The old endpoint is dropped outside of the lock.
        let _old = self.live.lock().endpoint.replace(endpoint);
    }

    /// Clears the newest endpoint if it is this one.
    pub(crate) fn clear_endpoint(&self, endpoint: &FakeEp) {
        let mut live = self.live.lock();
        let _old = live
            .endpoint
            .take_if(|newest| core::ptr::eq(&**newest, endpoint));
        drop(live);
    }

    /// Returns the sink of the newest device.
    pub(crate) fn device(&self) -> Result<Arc<dyn DomainSink>> {
        let live = self.live.lock();
        let (_, sink) = live.device.as_ref().ok_or(ENOENT)?;
        Ok(sink.clone())
    }

    /// Stores the newest device: its domain's address, and its sink.
    pub(crate) fn set_device(&self, domain: usize, sink: Arc<dyn DomainSink>) {
        let _old = self.live.lock().device.replace((domain, sink));
    }

    /// Clears the device if it is the newest. An older domain may be dropped after the newer one
    /// was opened.
    pub(crate) fn clear_device(&self, domain: usize) {
        let _old = self
            .live
            .lock()
            .device
            .take_if(|(newest, _)| *newest == domain);
    }

    /// Returns the sink of the newest listener.
    pub(crate) fn listener(&self) -> Result<Arc<dyn ListenSink>> {
        self.live.lock().listener.clone().ok_or(ENOENT)
    }

    /// Sets or clears the newest listener.
    pub(crate) fn set_listener(&self, listener: Option<Arc<dyn ListenSink>>) {
        let _old = core::mem::replace(&mut self.live.lock().listener, listener);
    }
}

/// A fake provider.
pub(crate) struct Fake {
    spec: &'static Spec,
    control: Arc<Control>,
}

impl Fake {
    /// Returns a provider, and the test's control of it.
    pub(crate) fn make(spec: &'static Spec) -> Result<(Arc<dyn Provider>, Arc<Control>)> {
        let control = Control::new()?;
        let fake = Self {
            spec,
            control: control.clone(),
        };
        Ok((Arc::new(fake, GFP_KERNEL)?, control))
    }
}

impl Provider for Fake {
    fn name(&self) -> &'static str {
        self.spec.name
    }

    fn version(&self) -> u32 {
        self.spec.version
    }

    fn getinfo(&self, net: &Net, _hints: &InfoEntry, out: &mut KVec<InfoEntry>) -> Result {
        wanted_error(&self.control.getinfo_error)?;
        // Only the outer call makes a nested call.
        if self.control.nested.swap(false, Ordering::AcqRel) {
            let found = registry::getinfo(net, None)?.len();
            // CAST: There are few providers.
            self.control
                .nested_found
                .store(found as u32, Ordering::Relaxed);
            self.control.nested.store(true, Ordering::Release);
        }
        for (name, rank, addr) in self.spec.devices {
            let mut entry = InfoEntry {
                caps: self.spec.caps,
                mode: self.spec.mode,
                mr_mode: self.spec.mr_mode,
                max_msg_size: MAX_MSG_SIZE,
                inject_size: INJECT_SIZE.into(),
                tx_size: TX_SIZE,
                rx_size: TX_SIZE,
                iov_limit: IOV_LIMIT,
                rma_iov_limit: 1,
                cq_data_size: 4,
                mr_key_size: 4,
                cm_data_size: CM_DATA_SIZE,
                ep_type: KFI_EP_MSG,
                protocol: KFI_PROTO_SHM,
                addr_format: KFI_SOCKADDR_IN,
                rank: *rank,
                src_addr: *addr,
                ..InfoEntry::default()
            };
            set_name(&mut entry.fabric_name, self.spec.fabric);
            set_name(&mut entry.domain_name, name);
            out.push(entry, GFP_KERNEL)?;
        }
        Ok(())
    }

    fn open_domain(
        &self,
        _net: &Net,
        fabric: &str,
        name: &str,
        sink: Arc<dyn DomainSink>,
    ) -> Result<Arc<dyn DomainOps>> {
        let known = fabric.is_empty() || fabric == self.spec.fabric;
        if !known || !self.spec.devices.iter().any(|device| device.0 == name) {
            return Err(ENOENT);
        }
        let device = FakeDomain::new(self.spec, self.control.clone())?;
        self.control.set_device(device.address(), sink);
        Ok(device)
    }

    fn listener(
        &self,
        _net: &Net,
        addr: &SockAddr,
        sink: Arc<dyn ListenSink>,
    ) -> Result<Arc<dyn ListenerOps>> {
        let listener = FakeListener::new(addr, self.control.clone())?;
        self.control.set_listener(Some(sink));
        Ok(listener)
    }
}
