// SPDX-License-Identifier: GPL-2.0
//! The devices there are, and what a device's coming and going does.

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
        device::Live,
        work, //
    },
    limits::TICK_MS,
    resource::{
        Class,
        Resources, //
    },
};

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init, before the client is registered.
    unsafe(uninit) static DEVICES: Mutex<KVec<Arc<Device>>> = KVec::new();
}

/// The list of devices in use; dropping it gives its memory back.
pub(crate) struct List(());

impl List {
    /// Readies the list.
    ///
    /// # Safety
    ///
    /// Called once, at module load, before the client is registered.
    #[expect(unsafe_code, reason = "a global lock is initialised so")]
    pub(crate) unsafe fn new() -> Self {
        // SAFETY: The caller's promise.
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

/// An RDMA device and what of ours is on it.
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
        this.resources.tick(Class::Endpoint);
        this.arm();
    }
}

impl Device {
    /// The device itself.
    pub(crate) fn ib(&self) -> &Arc<ib::device::Device> {
        &self.ib
    }

    /// Proof that it is registered.
    pub(crate) fn enter(&self) -> Result<Live<'_>> {
        self.ib.enter()
    }

    fn arm(self: Arc<Self>) {
        if !self.going.load(Ordering::Acquire) {
            let _ = work::queue().enqueue_delayed(self, msecs_to_jiffies(TICK_MS));
        }
    }

    /// Bytes in the longest operation on a port.
    pub(crate) fn max_msg_size(&self, live: &Live<'_>) -> Result<u64> {
        let mut least = crate::limits::MAX_MSG;
        for port in self.ports() {
            least = least.min(self.ib.max_msg_size(live, port)?);
        }
        Ok(least)
    }

    /// Ports through which connections can be made.
    pub(crate) fn ports(&self) -> impl Iterator<Item = u32> + '_ {
        (1..=self.ib.ports()).filter(|port| self.ib.connects(*port))
    }
}

impl ClientOps for Device {
    fn add(ib: Arc<ib::device::Device>) -> Result<Arc<Self>> {
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
        // Nobody makes anything any more; what there is, ends.
        self.ib.retire();
        self.going.store(true, Ordering::Release);
        work::cancel_delayed(&self);
        self.resources.end_all();
    }
}

/// All devices.
pub(crate) fn all() -> Result<KVec<Arc<Device>>> {
    let list = DEVICES.lock();
    let mut copy = KVec::with_capacity(list.len(), GFP_KERNEL_ACCOUNT)?;
    for device in list.iter() {
        copy.push(device.clone(), GFP_KERNEL_ACCOUNT)?;
    }
    Ok(copy)
}

/// The first device that `wanted` says yes to.
pub(crate) fn find(wanted: impl Fn(&Device) -> bool) -> Option<Arc<Device>> {
    DEVICES.lock().iter().find(|d| wanted(d)).cloned()
}
