// SPDX-License-Identifier: GPL-2.0
//! An RDMA device, and the proof that it is still registered.

use core::{
    ptr::NonNull,
    sync::atomic::{
        AtomicBool,
        Ordering, //
    }, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        new_condvar,
        new_mutex,
        CondVar,
        Mutex, //
    }, //
};

use super::{
    compat,
    raw,
    sockaddr, //
};
use kfabric::{
    fault,
    net::Net,
    uapi::SockAddr, //
};

/// Bytes of a device's name, with its NUL (`IB_DEVICE_NAME_MAX`).
pub(crate) const NAME_MAX: usize = 64;

/// How the gate of a device stands.
struct Gate {
    /// The device is being or has been removed.
    closed: bool,
    /// [`Live`]s there are.
    inside: usize,
}

/// An RDMA device.
///
/// # Invariants
///
/// Holds a reference on the C structure, so its fields can be read for as long as this exists,
/// also after the device was unregistered.
#[pin_data(PinnedDrop)]
pub(crate) struct Device {
    ptr: NonNull<raw::ib_device>,
    /// It has always flushed what was posted.
    flushes: AtomicBool,
    #[pin]
    gate: Mutex<Gate>,
    #[pin]
    left: CondVar,
}

// SAFETY: The C structure is reference counted and used by any thread.
unsafe impl Send for Device {}
// SAFETY: As above; what is read of it does not change.
unsafe impl Sync for Device {}

impl Device {
    /// Takes hold of a device.
    ///
    /// # Safety
    ///
    /// `ptr` is a device that is registered now.
    pub(super) unsafe fn new(ptr: NonNull<raw::ib_device>) -> impl PinInit<Self> {
        // SAFETY: The caller guarantees that the device is alive.
        unsafe { raw::kverbs_device_get(ptr.as_ptr()) };
        // INVARIANT: The reference was just taken. (Initialising does not fail.)
        pin_init!(Self {
            ptr,
            flushes: AtomicBool::new(true),
            gate <- new_mutex!(Gate { closed: false, inside: 0 }),
            left <- new_condvar!(),
        })
    }

    /// The C structure.
    pub(super) fn as_ptr(&self) -> *mut raw::ib_device {
        self.ptr.as_ptr()
    }

    fn attrs(&self) -> &raw::ib_device_attr {
        // SAFETY: By the type invariant the structure is there; attributes do not change once a
        // device is registered.
        unsafe { &(*self.as_ptr()).attrs }
    }

    /// Proof that the device is registered.
    ///
    /// # Errors
    ///
    /// `ENODEV`: it is going or gone.
    pub(crate) fn enter(&self) -> Result<Live<'_>> {
        let mut gate = self.gate.lock();
        if gate.closed {
            return Err(ENODEV);
        }
        gate.inside += 1;
        Ok(Live(self))
    }

    /// Lets nobody in any more, and waits until everybody is out.
    pub(crate) fn retire(&self) {
        let mut gate = self.gate.lock();
        gate.closed = true;
        while gate.inside != 0 {
            self.left.wait(&mut gate);
        }
    }

    /// Whether it is worth while to wait for what is posted to a failed queue pair.
    pub(super) fn flushes(&self) -> bool {
        self.flushes.load(Ordering::Relaxed)
    }

    /// It was waited for in vain. Once is enough: there may be a thousand queue pairs.
    pub(super) fn does_not_flush(&self) {
        self.flushes.store(false, Ordering::Relaxed);
    }

    /// Whether `ptr` is this device.
    pub(super) fn is(&self, ptr: *const raw::ib_device) -> bool {
        core::ptr::eq(self.as_ptr(), ptr)
    }

    /// Its name, NUL padded.
    pub(crate) fn name(&self) -> [u8; NAME_MAX] {
        let mut name = [0; NAME_MAX];
        // SAFETY: The device is there by the type invariant, and `name` has the size that is said.
        unsafe {
            raw::kverbs_device_name(self.as_ptr(), name.as_mut_ptr().cast(), NAME_MAX as c_uint)
        };
        name
    }

    /// Its number of ports; the first one is 1.
    pub(crate) fn ports(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { (*self.as_ptr()).phys_port_cnt }
    }

    /// Whether queue pairs of the port can be connected by rdma_cm over InfiniBand's protocol.
    pub(crate) fn connects(&self, port: u32) -> bool {
        // SAFETY: By the type invariant; callers pass a port of the device.
        unsafe { raw::kverbs_is_rc_capable(self.as_ptr(), port) }
    }

    /// Whether processes of a network namespace may use it.
    pub(crate) fn accessible(&self, net: &Net) -> bool {
        // SAFETY: By the type invariant; the namespace is held by `net`.
        unsafe { raw::rdma_dev_access_netns(self.as_ptr(), net.as_ptr()) }
    }

    /// The address behind an entry of a port's GID table, if it is usable from `net`.
    ///
    /// # Errors
    ///
    /// `ENOENT`: there is none or it is of no use. `ERANGE`: the table ends before it.
    pub(crate) fn gid_addr(&self, port: u32, index: c_int, net: &Net) -> Result<SockAddr> {
        let mut out = sockaddr::Storage::default();
        // SAFETY: The device is there; `Live` callers only, so its port data is too; `out` is
        // large enough for any address.
        to_result(unsafe {
            raw::kverbs_gid_addr(self.as_ptr(), port, index, net.as_ptr(), out.as_mut_ptr())
        })?;
        Ok(out.get())
    }

    /// Bytes in the longest message of a port.
    pub(crate) fn max_msg_size(&self, _live: &Live<'_>, port: u32) -> Result<u64> {
        let mut attr = raw::ib_port_attr::default();
        fault::device()?;
        // SAFETY: The device is registered, as `_live` proves, and `attr` is ours.
        to_result(unsafe { raw::ib_query_port(self.as_ptr(), port, &mut attr) })?;
        Ok(u64::from(attr.max_msg_sz))
    }

    /// Work requests that a queue may hold.
    pub(crate) fn max_qp_wr(&self) -> u32 {
        compat::limit(self.attrs().max_qp_wr)
    }

    /// Whether it does atomics, at least against each other.
    pub(crate) fn has_atomics(&self) -> bool {
        self.attrs().atomic_cap != raw::ib_atomic_cap_IB_ATOMIC_NONE
    }

    /// Entries that a completion queue may have.
    pub(crate) fn max_cqe(&self) -> u32 {
        compat::limit(self.attrs().max_cqe)
    }

    /// Scatter entries of every kind of work request.
    pub(crate) fn max_sge(&self) -> u32 {
        let attrs = self.attrs();
        let all = compat::limit(attrs.max_send_sge).min(compat::limit(attrs.max_recv_sge));
        match compat::limit(attrs.max_sge_rd) {
            // Not said.
            0 => all.max(1),
            reads => all.min(reads).max(1),
        }
    }

    /// Memory regions it can hold.
    pub(crate) fn max_mr(&self) -> u32 {
        compat::limit(self.attrs().max_mr)
    }

    /// Pages of one fast registration; 0: it has none.
    pub(crate) fn max_fast_reg_pages(&self) -> u32 {
        self.attrs().max_fast_reg_page_list_len
    }

    /// Reads that a queue pair may have in flight as the one that asks, and as the one asked.
    pub(crate) fn max_rd_atom(&self) -> (u8, u8) {
        let attrs = self.attrs();
        (
            compat::limit(attrs.max_qp_init_rd_atom).min(128) as u8,
            compat::limit(attrs.max_qp_rd_atom).min(128) as u8,
        )
    }

    /// Whether a registration of a process's memory can be given other rights as it is
    /// ([`Mr::open`](super::mr::Mr::open)): software can. Hardware may make another one of it.
    pub(crate) fn opens(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { raw::kverbs_sets_access(self.as_ptr()) }
    }

    /// Whether "DMA addresses" are the processor's own and mapping costs nothing.
    pub(crate) fn uses_virt_dma(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { raw::kverbs_uses_virt_dma(self.as_ptr()) }
    }
}

#[pinned_drop]
impl PinnedDrop for Device {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant the reference is ours.
        unsafe { raw::kverbs_device_put(self.ptr.as_ptr()) }
    }
}

/// A registered device: while one exists, `ib_client.remove` does not return.
pub(crate) struct Live<'a>(&'a Device);

impl Drop for Live<'_> {
    fn drop(&mut self) {
        let mut gate = self.0.gate.lock();
        gate.inside -= 1;
        if gate.inside == 0 {
            self.0.left.notify_all();
        }
    }
}
