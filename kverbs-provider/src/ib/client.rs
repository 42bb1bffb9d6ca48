// SPDX-License-Identifier: GPL-2.0
//! Hearing of RDMA devices that come and go.

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

/// What is told of devices. Both are called in process context.
pub(crate) trait ClientOps: Send + Sync + Sized + 'static {
    /// A device has come.
    fn add(device: Arc<Device>) -> Result<Arc<Self>>;

    /// It is going. When this returns nothing of ours is left on it.
    fn remove(self: Arc<Self>);
}

/// The registered structure, which the callbacks are not told. A module registers once.
static CLIENT: AtomicPtr<raw::ib_client> = AtomicPtr::new(core::ptr::null_mut());

/// A registration as client of the RDMA core. Dropping it says `remove` of every device.
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
// SAFETY: Nothing can be done with a shared reference.
unsafe impl<T: ClientOps> Sync for Client<T> {}

impl<T: ClientOps> Client<T> {
    /// Registers. `add` is called for every device there is before this returns.
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
        // INVARIANT: It is registered.
        Ok(Self {
            client,
            _ops: PhantomData,
        })
    }

    /// # Safety
    ///
    /// Called by the RDMA core with a device that is registered.
    unsafe extern "C" fn add_callback(ptr: *mut raw::ib_device) -> c_int {
        from_result(|| {
            let ptr = NonNull::new(ptr).ok_or(EINVAL)?;
            // SAFETY: The device is registered, as the caller says.
            // UNACCOUNTED: The device exists for all programs.
            let device = Arc::pin_init(unsafe { Device::new(ptr) }, GFP_KERNEL)?;
            let data = T::add(device)?;
            // SAFETY: Device and client are registered during this callback. The core hands the
            // `Arc` back to `remove_callback`.
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
    /// Called by the RDMA core, once, with a device and what `add_callback` gave it for that.
    unsafe extern "C" fn remove_callback(_ptr: *mut raw::ib_device, data: *mut c_void) {
        if data.is_null() {
            return;
        }
        // SAFETY: It is the `Arc` that `add_callback` let go of, and each is handed back once.
        T::remove(unsafe { Arc::from_raw(data.cast::<T>().cast_const()) });
    }
}

impl<T: ClientOps> Drop for Client<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is registered.
        unsafe { raw::ib_unregister_client(self.client.get()) }
    }
}
