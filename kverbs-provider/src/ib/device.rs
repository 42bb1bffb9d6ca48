// SPDX-License-Identifier: GPL-2.0
//! An RDMA device, and the proof that it is still registered.

use core::{
    cell::Cell,
    ptr::NonNull,
    sync::atomic::{
        AtomicBool,
        AtomicU32,
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
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use super::{
    compat,
    mr::Parked,
    raw,
    resting::Resting,
    seconds, //
};
use kfabric::{
    base::fault,
    pure::gid::{
        Gid,
        GidType,
        Link, //
    },
    sys::net::Net, //
};

/// Bytes of a device's name, with its NUL (`IB_DEVICE_NAME_MAX`).
pub(crate) const NAME_MAX: usize = 64;

/// Pauses between attempts to deregister the parked regions of a device that is being removed, in
/// milliseconds.
const PARKED_MS: [i64; 5] = [10, 100, 400, 1000, 2000];

/// Time for which no queue pair of a device is drained after one did not flush in time, in seconds: a card
/// that is reset flushes again afterwards.
const UNFLUSHED_S: u32 = 60;

/// State of a device's gate, which counts the [`Live`]s.
struct Gate {
    /// The device is being or has been removed.
    closed: bool,
    /// [`Live`]s that do not wait for a program.
    inside: usize,
    /// [`Live`]s that wait for a program ([`Live::outside`]), or did when the gate was closed.
    outside: usize,
}

/// What the log says of a device.
#[derive(Clone, Copy)]
pub(crate) enum Trouble {
    /// The device is not used, because its DMA bounces or is not coherent.
    Bounces,
    /// The device is not used, because it is an iWARP device and the administrator allows none.
    Iwarp,
    /// The driver refused to revoke a key.
    Revoke(Error),
    /// The driver refused to deregister memory to which peers have no right.
    Deregister(Error),
    /// Memory is still registered when the device is removed.
    Lost,
}

/// An RDMA device.
///
/// # Invariants
///
/// This object holds a reference to the C structure. The structure's fields can be read as long as
/// this object exists, even after the device was unregistered.
#[pin_data(PinnedDrop)]
pub(crate) struct Device {
    ptr: NonNull<raw::ib_device>,
    /// Second at which the device last failed to flush posted work requests in time, or 0.
    unflushed: AtomicU32,
    /// True from a deregistration that the driver has refused for 341 ms to the next one that succeeds.
    refuses: AtomicBool,
    #[pin]
    gate: Mutex<Gate>,
    #[pin]
    left: CondVar,
    /// Regions that the driver refused to deregister. Each holds its protection domain, which holds
    /// this device, until [`Device::end_parked`].
    #[pin]
    parked: Mutex<KVec<Parked>>,
    /// Each region holds its protection domain, and this device, until [`Device::end_resting`].
    #[pin]
    pub(super) resting: Resting,
}

// SAFETY: The C structure is reference counted, and any thread may use it.
unsafe impl Send for Device {}
// SAFETY: Any thread may use the C structure; the fields that are read do not change.
unsafe impl Sync for Device {}

impl Device {
    /// Takes a reference to a device.
    ///
    /// # Safety
    ///
    /// `ptr` is a registered device.
    pub(super) unsafe fn new(ptr: NonNull<raw::ib_device>) -> impl PinInit<Self> {
        // SAFETY: By the caller's contract the device is alive.
        unsafe { raw::kverbs_device_get(ptr.as_ptr()) };
        // INVARIANT: The reference was taken above, and initialising does not fail.
        pin_init!(Self {
            ptr,
            unflushed: AtomicU32::new(0),
            refuses: AtomicBool::new(false),
            gate <- new_mutex!(Gate { closed: false, inside: 0, outside: 0 }),
            left <- new_condvar!(),
            parked <- new_mutex!(KVec::new(), "kverbs_parked"),
            resting <- Resting::new(),
        })
    }

    /// Returns the C structure.
    pub(super) fn as_ptr(&self) -> *mut raw::ib_device {
        self.ptr.as_ptr()
    }

    fn attrs(&self) -> &raw::ib_device_attr {
        // SAFETY: By the type invariant the structure exists; attributes do not change once a
        // device is registered.
        unsafe { &(*self.as_ptr()).attrs }
    }

    /// Returns proof that the device is registered.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device is being removed, or was removed.
    pub(crate) fn enter(&self) -> Result<Live<'_>> {
        let mut gate = self.gate.lock();
        if gate.closed {
            return Err(ENODEV);
        }
        gate.inside += 1;
        Ok(Live {
            device: self,
            late: Cell::new(false),
        })
    }

    /// Closes the gate, and waits until every [`Live`] is dropped that does not wait for a program.
    ///
    /// A holder that waits for a program undoes its registration afterwards ([`Live::outside`]), so
    /// all other objects on the device can end meanwhile. May sleep.
    pub(crate) fn retire(&self) {
        let mut gate = self.gate.lock();
        gate.closed = true;
        while gate.inside != 0 {
            self.left.wait(&mut gate);
        }
    }

    /// Waits until every [`Live`] that waited for a program is dropped. Called after
    /// [`Device::retire`].
    pub(crate) fn wait_for_late(&self) {
        let mut gate = self.gate.lock();
        while gate.outside != 0 {
            self.left.wait(&mut gate);
        }
    }

    /// Keeps a region for [`Device::retry_parked`].
    pub(super) fn park(&self, parked: Parked) {
        let mut list = self.parked.lock();
        // UNACCOUNTED: The region may outlive its program.
        match list.reserve(1, GFP_KERNEL) {
            // Cannot fail: the capacity was reserved above.
            Ok(()) => drop(list.push_within_capacity(parked)),
            // The region is never freed, nor its memory.
            Err(_) => core::mem::forget(parked),
        }
    }

    /// Tries once to deregister each parked region. Returns whether none is left.
    pub(crate) fn retry_parked(&self) -> bool {
        let mut list = core::mem::replace(&mut *self.parked.lock(), KVec::new());
        let mut all = true;
        for parked in list.drain_all() {
            if let Err(parked) = parked.end() {
                all = false;
                self.park(parked);
            }
        }
        all
    }

    /// Tries for 3.5 s to deregister the parked regions, after all other objects on the device have
    /// ended. A region that the driver refuses until then is never freed.
    pub(crate) fn end_parked(&self) {
        for ms in PARKED_MS {
            if self.retry_parked() {
                return;
            }
            fsleep(Delta::from_millis(ms));
        }
        let mut list = core::mem::replace(&mut *self.parked.lock(), KVec::new());
        for parked in list.drain_all() {
            self.say(Trouble::Lost);
            core::mem::forget(parked);
        }
    }

    /// Returns whether waiting for the device to flush a failed queue pair is useful: it has not failed
    /// to flush one in time within [`UNFLUSHED_S`].
    pub(super) fn flushes(&self) -> bool {
        let at = self.unflushed.load(Ordering::Relaxed);
        at == 0 || seconds().wrapping_sub(at) >= UNFLUSHED_S
    }

    /// Records that the device did not flush in time. One timeout is enough for a while, because there
    /// may be a thousand queue pairs.
    pub(super) fn does_not_flush(&self) {
        self.unflushed.store(seconds().max(1), Ordering::Relaxed);
    }

    /// Returns whether the driver refuses deregistrations, so that waiting is of no use. irdma refuses all
    /// while the card is reset.
    pub(super) fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    /// Records the result of a deregistration. One wait is enough, because there may be ten thousand
    /// regions.
    pub(super) fn note_refusal(&self, refused: bool) {
        self.refuses.store(refused, Ordering::Relaxed);
    }

    /// Returns whether the DMA layer copies between mapped memory and the device, or flushes
    /// caches.
    pub(crate) fn bounces(&self) -> bool {
        // SAFETY: By the type invariant the structure exists.
        unsafe { raw::kverbs_bounces(self.as_ptr()) }
    }

    /// Writes a line with the device's name to the log; each kind has a rate limit.
    pub(crate) fn say(&self, trouble: Trouble) {
        let (kind, err) = match trouble {
            Trouble::Bounces => (raw::kverbs_trouble_KVERBS_TROUBLE_BOUNCES, 0),
            Trouble::Iwarp => (raw::kverbs_trouble_KVERBS_TROUBLE_IWARP, 0),
            Trouble::Revoke(e) => (raw::kverbs_trouble_KVERBS_TROUBLE_REVOKE, e.to_errno()),
            Trouble::Deregister(e) => (raw::kverbs_trouble_KVERBS_TROUBLE_DEREGISTER, e.to_errno()),
            Trouble::Lost => (raw::kverbs_trouble_KVERBS_TROUBLE_LOST, 0),
        };
        // SAFETY: By the type invariant the structure exists.
        unsafe { raw::kverbs_say(self.as_ptr(), kind, err) }
    }

    /// Returns whether `ptr` is this device.
    pub(super) fn is(&self, ptr: *const raw::ib_device) -> bool {
        core::ptr::eq(self.as_ptr(), ptr)
    }

    /// Returns the device's name, NUL padded.
    pub(crate) fn name(&self) -> [u8; NAME_MAX] {
        let mut name = [0; NAME_MAX];
        // SAFETY: By the type invariant the structure exists, and `name` has `NAME_MAX` bytes.
        unsafe {
            raw::kverbs_device_name(self.as_ptr(), name.as_mut_ptr().cast(), NAME_MAX as c_uint)
        };
        name
    }

    /// Returns the number of ports; the first one is 1.
    pub(crate) fn ports(&self) -> u32 {
        // SAFETY: By the type invariant the structure exists.
        unsafe { (*self.as_ptr()).phys_port_cnt }
    }

    /// Returns whether the device's protocol is iWARP.
    pub(crate) fn is_iwarp(&self) -> bool {
        // SAFETY: By the type invariant the structure exists.
        unsafe { raw::kverbs_is_iwarp(self.as_ptr()) }
    }

    /// Returns whether the driver is siw.
    pub(crate) fn is_siw(&self) -> bool {
        self.driver() == raw::rdma_driver_id_RDMA_DRIVER_SIW
    }

    /// Returns whether the device may send other bytes than those of a work request with several scatter
    /// entries. At the next entry, `siw_tx_hdt()` goes on in the page list where it was in the entry before.
    pub(crate) fn mixes_up_pieces(&self) -> bool {
        self.is_siw()
    }

    /// Returns whether memory that receives the answer of a read must be registered with a right for
    /// peers to write (RFC 5040, section 5.2). siw checks the local right instead (`siw_proc_rresp()`).
    pub(crate) fn sinks_need_rights(&self) -> bool {
        self.is_iwarp() && self.policy_driver() != raw::rdma_driver_id_RDMA_DRIVER_SIW
    }

    /// Returns whether rdma_cm can connect queue pairs of the port. iWARP ports count only if the
    /// administrator allows them.
    pub(crate) fn connects(&self, port: u32) -> bool {
        // SAFETY: By the type invariant the structure exists; callers pass a port of the device.
        unsafe { raw::kverbs_is_rc_capable(self.as_ptr(), port) }
    }

    /// Returns whether processes of a network namespace may use the device.
    pub(crate) fn accessible(&self, net: &Net) -> bool {
        // SAFETY: By the type invariant the structure exists; `net` keeps the namespace alive.
        unsafe { raw::rdma_dev_access_netns(self.as_ptr(), net.as_ptr()) }
    }

    /// Returns whether a port was active when the RDMA core last heard of it. No command to the device.
    pub(crate) fn is_active(&self, port: u32) -> bool {
        let mut state = raw::ib_port_state_IB_PORT_NOP;
        // SAFETY: By the type invariant the structure exists, and callers hold a `Live`; `state` is local.
        let ret = unsafe { raw::ib_get_cached_port_state(self.as_ptr(), port, &mut state) };
        ret == 0 && state == raw::ib_port_state_IB_PORT_ACTIVE
    }

    /// Returns the link of a port, or `None` if rdma_cm has no addresses on such links.
    pub(crate) fn link(&self, port: u32) -> Option<Link> {
        // SAFETY: By the type invariant the structure exists; callers pass a port of the device.
        match unsafe { raw::kverbs_port_link(self.as_ptr(), port) } {
            raw::kverbs_link_KVERBS_LINK_IB => Some(Link::InfiniBand),
            raw::kverbs_link_KVERBS_LINK_ROCE_V1 => Some(Link::Roce { v2: false }),
            raw::kverbs_link_KVERBS_LINK_ROCE_V2 => Some(Link::Roce { v2: true }),
            raw::kverbs_link_KVERBS_LINK_IWARP => Some(Link::Iwarp),
            _ => None,
        }
    }

    /// Returns an entry of a port's GID table, as seen from `net`.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if the entry is empty.
    /// - `ERANGE` if the table has no entry `index`.
    pub(crate) fn gid(&self, port: u32, index: c_int, net: &Net) -> Result<Gid> {
        let mut out = raw::kverbs_gid::default();
        // SAFETY: The structure exists, and so does its port data: callers have a `Live`.
        to_result(unsafe {
            raw::kverbs_read_gid(self.as_ptr(), port, index, net.as_ptr(), &mut out)
        })?;
        Ok(Gid {
            gid: out.gid,
            kind: match out.type_ {
                raw::ib_gid_type_IB_GID_TYPE_IB => GidType::Ib,
                raw::ib_gid_type_IB_GID_TYPE_ROCE => GidType::RoceV1,
                raw::ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP => GidType::RoceV2,
                _ => return Err(ENOENT),
            },
            ifindex: out.ifindex,
        })
    }

    /// Returns the maximum message length of a port in bytes.
    pub(crate) fn max_msg_size(&self, _live: &Live<'_>, port: u32) -> Result<u64> {
        let mut attr = raw::ib_port_attr::default();
        fault::device()?;
        // SAFETY: The device is registered, as `_live` proves, and `attr` is a local variable.
        to_result(unsafe { raw::ib_query_port(self.as_ptr(), port, &mut attr) })?;
        Ok(u64::from(attr.max_msg_sz))
    }

    /// Returns the maximum number of work requests in a queue.
    pub(crate) fn max_qp_wr(&self) -> u32 {
        compat::limit(self.attrs().max_qp_wr)
    }

    /// Returns whether the device has atomics, at least against other atomics of the device.
    pub(crate) fn has_atomics(&self) -> bool {
        self.attrs().atomic_cap != raw::ib_atomic_cap_IB_ATOMIC_NONE
    }

    /// Returns the maximum number of entries of a completion queue.
    pub(crate) fn max_cqe(&self) -> u32 {
        compat::limit(self.attrs().max_cqe)
    }

    /// Returns the maximum number of scatter entries of a work request that is no read.
    pub(crate) fn max_sge(&self) -> u32 {
        let attrs = self.attrs();
        let all = compat::limit(attrs.max_send_sge).min(compat::limit(attrs.max_recv_sge));
        all.max(1)
    }

    /// Returns the maximum number of scatter entries of a read. iWARP has one.
    pub(crate) fn max_read_sge(&self) -> u32 {
        match compat::limit(self.attrs().max_sge_rd) {
            // The device states no limit for reads.
            0 if self.is_iwarp() => 1,
            0 => self.max_sge(),
            reads => self.max_sge().min(reads),
        }
    }

    /// Returns the maximum number of memory regions.
    pub(crate) fn max_mr(&self) -> u32 {
        compat::limit(self.attrs().max_mr)
    }

    /// Returns the maximum number of pages of a fast registration, or 0 if the device has none.
    pub(crate) fn max_fast_reg_pages(&self) -> u32 {
        self.attrs().max_fast_reg_page_list_len
    }

    /// Returns the page sizes that the device says it has, as a set of powers of two.
    pub(crate) fn page_sizes(&self) -> u64 {
        self.attrs().page_size_cap
    }

    /// Returns the maximum reads in flight of a queue pair, as initiator and as responder.
    pub(crate) fn max_rd_atom(&self) -> (u8, u8) {
        let attrs = self.attrs();
        (
            compat::limit(attrs.max_qp_init_rd_atom).min(128) as u8,
            compat::limit(attrs.max_qp_rd_atom).min(128) as u8,
        )
    }

    /// Returns whether the rights of a registration of user memory can be changed in place
    /// ([`Mr::open`](super::mr::Mr::open)). Software devices can; hardware may create another
    /// region.
    pub(crate) fn opens(&self) -> bool {
        // SAFETY: By the type invariant the structure exists.
        unsafe { raw::kverbs_sets_access(self.as_ptr()) }
    }

    /// Returns the driver of the device.
    pub(crate) fn driver(&self) -> raw::rdma_driver_id {
        // SAFETY: By the type invariant the structure exists.
        unsafe { raw::kverbs_driver(self.as_ptr()) }
    }

    /// Returns the driver by whose policies keys are treated. It differs from [`Device::driver`] only
    /// on software devices, in tests (parameter `as_driver`). Only `key/policy.rs` and
    /// [`Device::sinks_need_rights`] call this.
    pub(crate) fn policy_driver(&self) -> raw::rdma_driver_id {
        // SAFETY: By the type invariant the structure exists.
        unsafe { raw::kverbs_policy_driver(self.as_ptr()) }
    }

    /// Returns whether "DMA addresses" are the processor's own and mapping costs nothing.
    pub(crate) fn uses_virt_dma(&self) -> bool {
        // SAFETY: By the type invariant the structure exists.
        unsafe { raw::kverbs_uses_virt_dma(self.as_ptr()) }
    }
}

#[pinned_drop]
impl PinnedDrop for Device {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant this object holds the reference.
        unsafe { raw::kverbs_device_put(self.ptr.as_ptr()) }
    }
}

/// Proof that a device is registered: while one exists, `ib_client.remove` does not return.
pub(crate) struct Live<'a> {
    device: &'a Device,
    /// True if the gate was closed while this was outside, where it is still counted.
    late: Cell<bool>,
}

impl Live<'_> {
    /// Returns the device.
    pub(super) fn device(&self) -> &Device {
        self.device
    }

    /// Runs `call`, which may wait for a program without a time limit. A removal of the device ends
    /// all other objects meanwhile, and waits for this call last.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device is being removed. `undo` ends the result of `call`, which the
    ///   removal would miss.
    /// - An error of `call`.
    pub(crate) fn outside<T>(
        &self,
        call: impl FnOnce() -> Result<T>,
        undo: impl FnOnce(T),
    ) -> Result<T> {
        let device = self.device;
        if !self.late.get() {
            let mut gate = device.gate.lock();
            gate.inside -= 1;
            gate.outside += 1;
            if gate.inside == 0 {
                device.left.notify_all();
            }
        }
        let made = call();
        if !self.late.get() {
            let mut gate = device.gate.lock();
            if gate.closed {
                self.late.set(true);
            } else {
                gate.outside -= 1;
                gate.inside += 1;
            }
        }
        if !self.late.get() {
            return made;
        }
        made.map(undo)?;
        Err(ENODEV)
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        let mut gate = self.device.gate.lock();
        let left = if self.late.get() {
            &mut gate.outside
        } else {
            &mut gate.inside
        };
        *left -= 1;
        if *left == 0 {
            self.device.left.notify_all();
        }
    }
}
