// SPDX-License-Identifier: GPL-2.0
//! A provider made of nothing.
//!
//! It offers what its [`Spec`] says. What is asked of it it writes into a log and does as its
//! [`Control`] says, so that a test can have any call fail, and be the one who completes an
//! operation, connects, breaks a connection or takes a device away.

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
    net::Net,
    new_irqlock,
    object::set_name,
    provider::{
        DomainOps,
        DomainSink,
        ListenSink,
        ListenerOps,
        Provider, //
    },
    registry,
    sys::IrqLock,
    uapi::*,
};

use crate::{
    fake_cm::{
        FakeEp,
        FakeListener, //
    },
    fake_device::FakeDomain, //
};

/// Operations that an endpoint of a fake device holds.
pub(crate) const TX_SIZE: u32 = 16;
/// Bytes that may be injected.
pub(crate) const INJECT_SIZE: u32 = 32;
/// Bytes in the longest operation.
pub(crate) const MAX_MSG_SIZE: u64 = 1 << 20;
/// Scatter entries of one operation.
pub(crate) const IOV_LIMIT: u32 = 2;
/// Application bytes in a connection request.
pub(crate) const CM_DATA_SIZE: u32 = 56;
/// Key slots of one device.
pub(crate) const MAX_KEYS: u32 = 4;

/// An IPv4 socket address.
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

/// What a fake provider offers.
pub(crate) struct Spec {
    /// Name.
    pub(crate) name: &'static str,
    /// Version.
    pub(crate) version: u32,
    /// Fabric.
    pub(crate) fabric: &'static str,
    /// Devices: name, rank, address.
    pub(crate) devices: &'static [(&'static str, u32, SockAddr)],
    /// Capabilities.
    pub(crate) caps: u64,
    /// Modes it requires.
    pub(crate) mode: u64,
    /// Registration modes it requires.
    pub(crate) mr_mode: u64,
}

/// What a fake provider was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Gave a slot a key.
    Assign,
    /// Ended a slot's key.
    Revoke,
    /// Gave up a slot.
    KeyDrop,
    /// Unmapped a region.
    RegionDrop,
    /// Closed an endpoint.
    EpClose,
    /// Gave up an endpoint.
    EpDrop,
    /// Closed a listener.
    ListenerClose,
    /// Refused a request, with data.
    Reject,
    /// Gave up a request that nobody answered.
    RequestDrop,
    /// Closed a device.
    DomainDrop,
}

/// The last steps, oldest first.
struct Log {
    steps: [Option<Step>; 64],
    count: usize,
}

/// What of a fake provider is in use now: the newest of each kind.
#[derive(Default)]
struct Live {
    endpoint: Option<Arc<FakeEp>>,
    device: Option<(usize, Arc<dyn DomainSink>)>,
    listener: Option<Arc<dyn ListenSink>>,
}

/// The test's hold on a fake provider.
#[pin_data]
pub(crate) struct Control {
    /// Posting says `EAGAIN`.
    pub(crate) full: AtomicBool,
    /// Posted operations are dropped at once.
    pub(crate) drop_tokens: AtomicBool,
    /// Errno that `getinfo` fails with; 0: none.
    pub(crate) getinfo_error: AtomicI32,
    /// `getinfo` itself asks for all there is.
    pub(crate) nested: AtomicBool,
    /// Entries that the last nested `getinfo` found.
    pub(crate) nested_found: AtomicU32,
    /// Errno that assigning fails with; 0: none.
    pub(crate) assign_error: AtomicI32,
    /// Assignments that go well before that.
    pub(crate) assigns_before: AtomicU32,
    /// Errno that connecting and accepting fail with; 0: none.
    pub(crate) connect_error: AtomicI32,
    /// Errno that making an endpoint fails with; 0: none.
    pub(crate) endpoint_error: AtomicI32,
    /// Keys for one use are used up.
    pub(crate) used: AtomicBool,
    /// Regions that exist.
    pub(crate) regions: AtomicU32,
    /// Slots in use.
    pub(crate) keys: AtomicU32,
    /// Key values handed out.
    pub(crate) next_key: AtomicU32,
    #[pin]
    log: IrqLock<Log>,
    #[pin]
    live: Mutex<Live>,
}

/// The error that `place` holds.
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
                log <- new_irqlock!(log, "kfi_registry_test_log"),
                live <- new_mutex!(Live::default(), "kfi_registry_test_live"),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds a step to the log.
    pub(crate) fn did(&self, step: Step) {
        let mut log = self.log.lock();
        let at = log.count % log.steps.len();
        log.steps[at] = Some(step);
        log.count += 1;
    }

    /// Forgets the steps.
    pub(crate) fn forget(&self) {
        self.log.lock().count = 0;
    }

    /// Whether exactly these steps were taken since [`Control::forget`].
    pub(crate) fn steps_are(&self, steps: &[Step]) -> bool {
        let log = self.log.lock();
        log.count == steps.len()
            && log
                .steps
                .iter()
                .zip(steps)
                .all(|(got, wanted)| *got == Some(*wanted))
    }

    /// How many steps of this kind were taken since [`Control::forget`].
    pub(crate) fn count(&self, step: Step) -> usize {
        let log = self.log.lock();
        log.steps
            .iter()
            .take(log.count)
            .filter(|got| **got == Some(step))
            .count()
    }

    /// The newest endpoint.
    pub(crate) fn endpoint(&self) -> Result<Arc<FakeEp>> {
        self.live.lock().endpoint.clone().ok_or(ENOENT)
    }

    /// Notes the newest endpoint.
    pub(crate) fn set_endpoint(&self, endpoint: Arc<FakeEp>) {
        // What was there is dropped outside the lock.
        let _old = self.live.lock().endpoint.replace(endpoint);
    }

    /// Forgets the newest endpoint if it is this one.
    pub(crate) fn clear_endpoint(&self, endpoint: &FakeEp) {
        let mut live = self.live.lock();
        let _old = live
            .endpoint
            .take_if(|newest| core::ptr::eq(&**newest, endpoint));
        drop(live);
    }

    /// Who is told when the newest device goes.
    pub(crate) fn device(&self) -> Result<Arc<dyn DomainSink>> {
        let live = self.live.lock();
        let (_, sink) = live.device.as_ref().ok_or(ENOENT)?;
        Ok(sink.clone())
    }

    /// Notes the newest device: whose it is (an address), and who is told when it goes.
    pub(crate) fn set_device(&self, domain: usize, sink: Arc<dyn DomainSink>) {
        let _old = self.live.lock().device.replace((domain, sink));
    }

    /// Forgets a device, if it is still the newest: a domain may go after the next has come.
    pub(crate) fn clear_device(&self, domain: usize) {
        let _old = self
            .live
            .lock()
            .device
            .take_if(|(newest, _)| *newest == domain);
    }

    /// Who takes the newest listener's requests.
    pub(crate) fn listener(&self) -> Result<Arc<dyn ListenSink>> {
        self.live.lock().listener.clone().ok_or(ENOENT)
    }

    /// Sets or clears the newest listener.
    pub(crate) fn set_listener(&self, listener: Option<Arc<dyn ListenSink>>) {
        let _old = core::mem::replace(&mut self.live.lock().listener, listener);
    }
}

/// A provider made of nothing.
pub(crate) struct Fake {
    spec: &'static Spec,
    control: Arc<Control>,
}

impl Fake {
    /// A provider, and the test's hold on it.
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
        // Only the outer call asks again.
        if self.control.nested.swap(false, Ordering::AcqRel) {
            let found = registry::getinfo(net, None)?.len();
            // CAST: A handful.
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
