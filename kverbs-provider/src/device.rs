// SPDX-License-Identifier: GPL-2.0
//! The list of devices in use, and the handling of additions and removals.

use core::sync::atomic::{
    AtomicBool,
    Ordering, //
};
use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    prelude::*,
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::{
        DelayedWork,
        WorkItem, //
    }, //
};

use crate::{
    ib::{
        self,
        client::ClientOps,
        device::{
            Live,
            Trouble, //
        },
        work, //
    },
    limits::TICK_MS,
    resource::{
        Class,
        Resources, //
    },
};
use kfabric::base::errno::eopnotsupp;

kernel::sync::global_lock! {
    // SAFETY: `List::new` initialises the lock at module load, before the client is registered.
    unsafe(uninit) static DEVICES: Mutex<KVec<Arc<Device>>> = KVec::new();
}

/// Owns the list of devices in use. Dropping it frees the list.
pub(crate) struct List(());

impl List {
    /// Initialises the list.
    ///
    /// # Safety
    ///
    /// The caller calls this function once, at module load, before the client is registered.
    #[expect(unsafe_code, reason = "a global lock is initialised so")]
    pub(crate) unsafe fn new() -> Self {
        // SAFETY: The caller calls `new` once, before any use of the lock.
        unsafe { DEVICES.init() };
        Self(())
    }
}

impl Drop for List {
    fn drop(&mut self) {
        let list = core::mem::replace(&mut *DEVICES.lock(), KVec::new());
        drop(list);
    }
}

/// An RDMA device and the provider's objects on it.
#[pin_data]
pub(crate) struct Device {
    ib: Arc<ib::device::Device>,
    #[pin]
    pub(crate) resources: Resources,
    going: AtomicBool,
    #[pin]
    tick: DelayedWork<Self>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Device { self.tick }
}

impl WorkItem for Device {
    type Pointer = Arc<Device>;

    fn run(this: Arc<Device>) {
        this.ib.retry_parked();
        this.resources.tick(Class::Endpoint);
        this.arm();
    }
}

impl Device {
    /// Returns the device of the RDMA core.
    pub(crate) fn ib(&self) -> &Arc<ib::device::Device> {
        &self.ib
    }

    /// Returns proof that the device is registered.
    pub(crate) fn enter(&self) -> Result<Live<'_>> {
        self.ib.enter()
    }

    fn arm(self: Arc<Self>) {
        if !self.going.load(Ordering::Acquire) {
            let _ = work::queue().enqueue_delayed(self, msecs_to_jiffies(TICK_MS));
        }
    }

    /// Returns the maximum bytes of an operation on the device's ports.
    pub(crate) fn max_msg_size(&self, live: &Live<'_>) -> Result<u64> {
        let mut least = crate::limits::MAX_MSG;
        for port in self.ports() {
            least = least.min(self.ib.max_msg_size(live, port)?);
        }
        Ok(least)
    }

    /// Returns the ports through which rdma_cm can connect.
    pub(crate) fn ports(&self) -> impl Iterator<Item = u32> + '_ {
        (1..=self.ib.ports()).filter(|port| self.ib.connects(*port))
    }
}

impl ClientOps for Device {
    fn add(ib: Arc<ib::device::Device>) -> Result<Arc<Self>> {
        if ib.bounces() {
            // The same check as in `ib_umem`: with bounce buffers or caches, a device's writes
            // would not reach memory that stays mapped.
            ib.say(Trouble::Bounces);
            return Err(eopnotsupp());
        }
        let device = Arc::pin_init(
            pin_init!(Self {
                ib,
                resources <- Resources::new(),
                going: AtomicBool::new(false),
                tick <- new_delayed_work!("kverbs_tick"),
            }),
            // UNACCOUNTED: The device exists for all programs.
            GFP_KERNEL,
        )?;
        if device.ib.is_iwarp() && device.ports().next().is_none() {
            device.ib.say(Trouble::Iwarp);
        }
        // UNACCOUNTED: The device exists for all programs.
        DEVICES.lock().push(device.clone(), GFP_KERNEL)?;
        device.clone().arm();
        Ok(device)
    }

    fn remove(self: Arc<Self>) {
        {
            let mut list = DEVICES.lock();
            if let Some(at) = list.iter().position(|d| Arc::ptr_eq(d, &self)) {
                let _ = list.remove(at);
            }
        }
        // From here on no object is created. All objects end, and consumers are notified.
        self.ib.retire();
        self.going.store(true, Ordering::Release);
        work::cancel_delayed(&self);
        self.resources.end_all();
        // Registrations that wait for a program's page delay the device, but no other consumer.
        self.ib.wait_for_late();
        self.ib.end_resting();
        self.ib.end_parked();
    }
}

/// Returns all devices in use.
pub(crate) fn all() -> Result<KVec<Arc<Device>>> {
    loop {
        // Allocate before the lock: a program whose cgroup has to reclaim would block all others.
        let count = DEVICES.lock().len();
        let mut copy = KVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        let list = DEVICES.lock();
        if list.len() > count {
            // A device was added meanwhile.
            continue;
        }
        for device in list.iter() {
            // Cannot fail: the capacity was reserved above.
            let _ = copy.push_within_capacity(device.clone());
        }
        return Ok(copy);
    }
}

/// Returns the first device for which `wanted` returns true.
pub(crate) fn find(wanted: impl Fn(&Device) -> bool) -> Option<Arc<Device>> {
    DEVICES.lock().iter().find(|d| wanted(d)).cloned()
}
