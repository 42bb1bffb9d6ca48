// SPDX-License-Identifier: GPL-2.0
//! Registration for additions and removals of RDMA devices.

use core::{
    marker::PhantomData,
    ptr::NonNull,
    sync::atomic::{
        AtomicPtr,
        Ordering, //
    }, //
};
use kernel::{
    error::{
        from_result,
        to_result, //
    },
    ffi::c_void,
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use super::{
    device::Device,
    raw,
    CALLER, //
};

/// Handler of device additions and removals.
///
/// Context: process.
pub(crate) trait ClientOps: Send + Sync + Sized + 'static {
    /// Handles the addition of a device.
    fn add(device: Arc<Device>) -> Result<Arc<Self>>;

    /// Handles the removal of the device. When this returns, no object of the provider is on the
    /// device.
    fn remove(self: Arc<Self>);
}

/// The registered structure, which callbacks do not receive. A module registers once.
static CLIENT: AtomicPtr<raw::ib_client> = AtomicPtr::new(core::ptr::null_mut());

/// A registration as client of the RDMA core. Dropping it calls `remove` for every device.
///
/// # Invariants
///
/// `client` is registered.
pub(crate) struct Client<T: ClientOps> {
    client: Pin<KBox<Opaque<raw::ib_client>>>,
    _ops: PhantomData<T>,
}

// SAFETY: The C structure is only used to unregister it.
unsafe impl<T: ClientOps> Send for Client<T> {}
// SAFETY: A shared reference has no operations.
unsafe impl<T: ClientOps> Sync for Client<T> {}

impl<T: ClientOps> Client<T> {
    /// Registers the client. `add` is called for every existing device before this returns.
    pub(crate) fn register() -> Result<Self> {
        let init = raw::ib_client {
            name: CALLER.as_char_ptr(),
            add: Some(Self::add_callback),
            remove: Some(Self::remove_callback),
            ..Default::default()
        };
        // UNACCOUNTED: Allocated at module load.
        let client = KBox::pin(Opaque::new(init), GFP_KERNEL)?;
        CLIENT.store(client.get(), Ordering::Release);
        // SAFETY: The structure is filled in, pinned, and unregistered before it is freed.
        to_result(unsafe { raw::ib_register_client(client.get()) })?;
        // INVARIANT: The client was registered above.
        Ok(Self {
            client,
            _ops: PhantomData,
        })
    }

    /// # Safety
    ///
    /// The caller is the RDMA core, with a registered device.
    unsafe extern "C" fn add_callback(ptr: *mut raw::ib_device) -> c_int {
        from_result(|| {
            let ptr = NonNull::new(ptr).ok_or(EINVAL)?;
            // SAFETY: By the caller's contract the device is registered.
            // UNACCOUNTED: The device exists for all programs.
            let device = Arc::pin_init(unsafe { Device::new(ptr) }, GFP_KERNEL)?;
            let data = T::add(device)?;
            // SAFETY: Device and client are registered during this callback. The core passes the
            // `Arc` to `remove_callback`.
            unsafe {
                raw::ib_set_client_data(
                    ptr.as_ptr(),
                    CLIENT.load(Ordering::Acquire),
                    Arc::into_raw(data).cast_mut().cast(),
                )
            };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// The caller is the RDMA core, once per device, with the device's data from `add_callback`.
    unsafe extern "C" fn remove_callback(_ptr: *mut raw::ib_device, data: *mut c_void) {
        if data.is_null() {
            return;
        }
        // SAFETY: The data is the `Arc` from `add_callback`, and the core passes each once.
        T::remove(unsafe { Arc::from_raw(data.cast::<T>().cast_const()) });
    }
}

impl<T: ClientOps> Drop for Client<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the client is registered.
        unsafe { raw::ib_unregister_client(self.client.get()) }
    }
}
