// SPDX-License-Identifier: GPL-2.0
//! Memory regions of verbs: a range, access rights, a local and a remote key.

use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use super::{
    charge::Charge,
    device::{
        Live,
        Trouble, //
    },
    dma::SgList,
    pd::Pd,
    raw, //
};
use crate::key::key_values::{
    Value,
    Values, //
};
use kfabric::{
    base::fault,
    memory::Memory,
    pure::key_ledger::Draw, //
};

/// Access rights of a memory region.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access(raw::ib_access_flags);

impl Access {
    /// The device may read by the local key.
    pub(crate) const LOCAL_READ: Self = Self(0);
    /// The device may write by the local key.
    pub(crate) const LOCAL_WRITE: Self = Self(raw::ib_access_flags_IB_ACCESS_LOCAL_WRITE);

    /// Returns whether peers may write.
    pub(crate) fn lets_write(self) -> bool {
        self.0 & raw::ib_access_flags_IB_ACCESS_REMOTE_WRITE != 0
    }

    /// Returns the rights for peers. If peers may write or execute atomics, the device may write
    /// too.
    pub(crate) fn remote(read: bool, write: bool, atomic: bool) -> Self {
        let mut bits = 0;
        if read {
            bits |= raw::ib_access_flags_IB_ACCESS_REMOTE_READ;
        }
        if write {
            bits |= raw::ib_access_flags_IB_ACCESS_REMOTE_WRITE
                | raw::ib_access_flags_IB_ACCESS_LOCAL_WRITE;
        }
        if atomic {
            bits |= raw::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC;
        }
        Self(bits)
    }

    /// Returns the rights of a region that the device also fills with answers to reads, if iWARP
    /// requires remote rights for that (`needs`).
    pub(crate) fn sink(self, needs: bool) -> Self {
        if needs && self.writes() {
            return Self(self.0 | raw::ib_access_flags_IB_ACCESS_REMOTE_WRITE);
        }
        self
    }

    /// Returns the rights without those of peers.
    pub(crate) fn local(self) -> Self {
        Self(self.0 & raw::ib_access_flags_IB_ACCESS_LOCAL_WRITE)
    }

    /// Returns the access flags of the RDMA core.
    pub(super) fn bits(self) -> c_int {
        // CAST: Only low bits are ever set.
        self.0 as c_int
    }

    /// Returns whether the device may write.
    pub(super) fn writes(self) -> bool {
        self.0 & raw::ib_access_flags_IB_ACCESS_LOCAL_WRITE != 0
    }
}

/// Pauses between attempts to deregister a region, in milliseconds. Drivers refuse while they have
/// no memory, or after a command has timed out.
const RETRY_MS: [i64; 6] = [1, 4, 16, 64, 128, 128];

/// A part of a memory, as a fast region shows it to the device.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// Offset from the memory's start, in bytes.
    pub(crate) offset: usize,
    /// Length in bytes.
    pub(crate) len: usize,
    /// Address of the first byte.
    pub(crate) iova: u64,
    /// Bytes of the region's pages.
    pub(crate) page_size: usize,
}

/// A memory region.
///
/// # Invariants
///
/// This object owns `ptr`, a memory region in `pd`.
pub(crate) struct Mr {
    ptr: NonNull<raw::ib_mr>,
    pd: Arc<Pd>,
    charge: Option<Charge>,
    /// The value of the key. Dropped after the deregistration: the value ends then.
    value: Option<Value>,
}

// SAFETY: Any thread may use the C object; changes take `&mut self`.
unsafe impl Send for Mr {}
// SAFETY: Any thread may use the C object; changes take `&mut self`.
unsafe impl Sync for Mr {}

impl Mr {
    /// Creates a region for fast registrations of up to `pages` pages, at most the device's limit.
    ///
    /// The region covers no memory yet. It has no charge, because a worker may create it; the slot
    /// has the charge. For a region without a slot, see [`Mr::keep_charge`].
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if the device has no more regions (rxe returns `EINVAL` then).
    /// - `ENOMEM` if there is no memory.
    pub(crate) fn fast(_live: &Live<'_>, pd: &Arc<Pd>, pages: u32) -> Result<Self> {
        fault::device()?;
        // SAFETY: The protection domain is alive.
        let ptr = from_err_ptr(unsafe {
            raw::ib_alloc_mr(pd.as_ptr(), raw::ib_mr_type_IB_MR_TYPE_MEM_REG, pages)
        })
        .map_err(|e| if e == EINVAL { ENOSPC } else { e })?;
        // INVARIANT: The region was created above, in `pd`.
        Ok(Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
            pd: pd.clone(),
            charge: None,
            value: None,
        })
    }

    /// Creates a region like [`Mr::fast`] that needs no value of the host's ledger: an index that rests makes
    /// room for it.
    pub(crate) fn with_room(live: &Live<'_>, pd: &Arc<Pd>, pages: u32) -> Result<Self> {
        pd.device().with_room(|| Self::fast(live, pd, pages))
    }

    /// Registers `len` bytes at `addr` of the current process. Peers know the first byte as `iova`,
    /// which has the same offset in its page.
    ///
    /// The caller calls this inside [`Memory::device_register`].
    pub(crate) fn user(
        live: &Live<'_>,
        pd: &Arc<Pd>,
        addr: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Self> {
        let charge = pd.charge(live)?;
        fault::device()?;
        // SAFETY: The protection domain is alive. The call checks the address.
        let ptr = from_err_ptr(unsafe {
            raw::ib_reg_user_mr(pd.as_ptr(), addr, len, iova, access.bits())
        })?;
        // INVARIANT: The region was created above, in `pd`.
        Ok(Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
            pd: pd.clone(),
            charge,
            value: None,
        })
    }

    /// Makes a charge last as long as the region: until the driver has agreed to deregister it.
    pub(crate) fn keep_charge(&mut self, charge: Option<Charge>) {
        self.charge = charge;
    }

    /// Changes the rights of a registration of user memory, and makes `iova` the first byte's
    /// address, if the device [opens](super::device::Device::opens). The rights are valid at the
    /// latest when this returns.
    ///
    /// # Errors
    ///
    /// - An error of the driver.
    pub(crate) fn open(&mut self, iova: u64, access: Access) -> Result {
        fault::device()?;
        // SAFETY: By the type invariant the region is alive; `&mut self` excludes other changes.
        // Such a driver reads `iova` only for admitted requests, and the key is new: none is
        // admitted yet.
        unsafe { (*self.as_ptr()).iova = iova };
        // SAFETY: By the type invariant the region is alive; `&mut self` excludes other changes.
        to_result(unsafe { raw::kverbs_set_access(self.as_ptr(), access.bits()) })
    }

    /// Returns the C object.
    pub(super) fn as_ptr(&self) -> *mut raw::ib_mr {
        self.ptr.as_ptr()
    }

    /// Returns the local key, for work requests.
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: By the type invariant the region is alive.
        unsafe { (*self.as_ptr()).lkey }
    }

    /// Returns the remote key, for peers.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: By the type invariant the region is alive.
        unsafe { (*self.as_ptr()).rkey }
    }

    /// Sets a new fast region to a part of `mem`.
    ///
    /// Peers will know the first byte by the part's address, which must have the byte's offset in its page.
    /// They have no access before the registration has completed
    /// ([`RegQueue::register`](super::reg_queue::RegQueue::register)).
    ///
    /// If this fails with pages larger than the kernel's, the region must not be used again: rxe may have freed
    /// the region's page list. The reserve of a slot, which is used again, has the kernel's pages.
    ///
    /// # Errors
    ///
    /// - `EMSGSIZE` if the part does not fit: too many pages, or gaps inside. If the device sees other
    ///   addresses than the kernel, a larger page may also have another offset.
    /// - `EIO` if the mapping failed, or moved bytes inside their pages.
    pub(crate) fn aim(
        &mut self,
        sg: &mut SgList,
        mem: &Arc<Memory>,
        part: Part,
        access: Access,
    ) -> Result {
        let Part {
            offset,
            len,
            iova,
            page_size,
        } = part;
        let n = sg.map(mem, offset, len, access.writes())?;
        // Before the driver writes its page list: pages that begin elsewhere may be more than the list has.
        let moved = sg.addr().map_or(u64::MAX, |addr| addr ^ iova);
        if moved & (page_size as u64 - 1) != 0 {
            sg.unmap();
            // If bounce buffers moved the byte inside its page, `iova` cannot be its address.
            let bounced = moved & (PAGE_SIZE as u64 - 1) != 0;
            return Err(if bounced { EIO } else { EMSGSIZE });
        }
        let got = fault::device().and_then(|()| {
            // SAFETY: The region and the list are alive, and the first `n` entries are mapped.
            let got = unsafe {
                raw::ib_map_mr_sg(
                    self.as_ptr(),
                    sg.as_mut_ptr(),
                    n as c_int,
                    core::ptr::null_mut(),
                    page_size as c_uint,
                )
            };
            to_result(got).map(|()| got as usize)
        });
        // SAFETY: By the type invariant the region is alive; `&mut self` excludes other changes.
        let covered = unsafe { (*self.as_ptr()).length };
        if got != Ok(n) || covered != len as u64 {
            sg.unmap();
            return Err(got.err().unwrap_or(EMSGSIZE));
        }
        // SAFETY: By the type invariant the region is alive; `&mut self` excludes other changes.
        unsafe { (*self.as_ptr()).iova = iova };
        Ok(())
    }

    /// Sets the low byte of a fast region's keys to that of `value`, before its registration.
    pub(crate) fn set_key(&mut self, value: Value) {
        // SAFETY: By the type invariant the region is alive; `&mut self` excludes other changes.
        unsafe { raw::kverbs_rotate_key(self.as_ptr(), value.byte()) }
        self.keep_value(value);
    }

    /// Sets the keys of a region, whose key was invalidated, to the next value of its index. Without
    /// a [`Draw::Value`], the region is of no more use.
    pub(crate) fn next_key(&mut self, values: &Values) -> Draw {
        let draw = match &mut self.value {
            Some(value) => value.next(values),
            None => Draw::Spent,
        };
        if let Draw::Value(byte, _) = draw {
            // SAFETY: By the type invariant the region is alive; `&mut self` excludes other changes.
            unsafe { raw::kverbs_rotate_key(self.as_ptr(), byte) }
        }
        draw
    }

    /// Keeps the value of the region's key until the region is deregistered.
    pub(crate) fn keep_value(&mut self, value: Value) {
        self.value = Some(value);
    }

    /// Removes the value of the region's key.
    pub(crate) fn take_value(&mut self) -> Option<Value> {
        self.value.take()
    }

    /// Requests deregistration from the driver once.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if the protection domain [is stuck](Pd::is_stuck).
    /// - An error of the driver.
    fn deregister(&self) -> Result {
        if self.pd.is_stuck() {
            return Err(EBUSY);
        }
        fault::dereg()?;
        // SAFETY: By the type invariant this object owns the region; callers do not use it after a
        // success.
        to_result(unsafe { raw::kverbs_dereg_mr(self.as_ptr()) })
    }

    /// Requests deregistration until the driver agrees, for up to 341 ms. Requests it only once while the
    /// driver [refuses](Device::refuses) all.
    fn deregister_patiently(&self) -> Result {
        let device = self.pd.device();
        let mut ended = fault::device().and_then(|()| self.deregister());
        for ms in RETRY_MS {
            if ended.is_ok() || device.refuses() || self.pd.is_stuck() {
                break;
            }
            fsleep(Delta::from_millis(ms));
            ended = self.deregister();
        }
        if !self.pd.is_stuck() {
            device.note_refusal(ended.is_err());
        }
        ended
    }

    /// Ends the region by `deregister`.
    fn end_by(self, deregister: fn(&Self) -> Result) -> Result<(), (Error, Self)> {
        let this = core::mem::ManuallyDrop::new(self);
        match deregister(&this) {
            Ok(()) => {
                // SAFETY: `this` is not used again, so `pd` is moved out once.
                let pd = unsafe { core::ptr::read(&this.pd) };
                // SAFETY: `this` is not used again, so `charge` is moved out once.
                drop(unsafe { core::ptr::read(&this.charge) });
                // SAFETY: `this` is not used again, so `value` is moved out once.
                end_value(unsafe { core::ptr::read(&this.value) }, &pd);
                Ok(())
            }
            Err(e) => Err((e, core::mem::ManuallyDrop::into_inner(this))),
        }
    }

    /// Deregisters the region. After a success, no byte is read or written through its keys.
    ///
    /// Deregistration waits for accesses in flight, except on siw for answers to a peer's reads; a
    /// local invalidate on rxe does not. May sleep, for 341 ms if the driver refuses.
    ///
    /// # Errors
    ///
    /// - The driver's last error, with the unchanged region, for [`Mr::park`].
    pub(crate) fn end(self) -> Result<(), (Error, Self)> {
        self.end_by(Self::deregister_patiently)
    }

    /// Parks a region that the driver refuses to deregister. Its device tries again with each tick.
    /// Until then `list` stays mapped and `mem` pinned. The log says that the driver has `refused`.
    ///
    /// If peers had rights to the region (`remote`), no queue pair can be created in its protection
    /// domain meanwhile. The caller ends the existing queue pairs.
    pub(crate) fn park(
        self,
        refused: Error,
        remote: bool,
        list: Option<SgList>,
        mem: Option<Arc<Memory>>,
    ) {
        let pd = self.pd.clone();
        if remote {
            pd.taint();
            pd.device().say(Trouble::Revoke(refused));
        } else {
            pd.device().say(Trouble::Deregister(refused));
        }
        pd.device().park(Parked {
            mr: self,
            remote,
            list,
            mem,
        });
    }
}

/// Ends the value of a region that was deregistered. An index without a value is set aside.
fn end_value(value: Option<Value>, pd: &Pd) {
    if value.is_some_and(Value::end) {
        pd.device().catch();
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let Err(e) = self.deregister_patiently() else {
            end_value(self.value.take(), &self.pd);
            return;
        };
        let again = Self {
            ptr: self.ptr,
            pd: self.pd.clone(),
            charge: self.charge.take(),
            value: self.value.take(),
        };
        again.park(e, false, None, None);
    }
}

/// A region that the driver has refused to deregister.
pub(super) struct Parked {
    mr: Mr,
    /// True if the region taints its protection domain.
    remote: bool,
    list: Option<SgList>,
    mem: Option<Arc<Memory>>,
}

impl Parked {
    /// Requests deregistration once more.
    ///
    /// # Errors
    ///
    /// - The region, if the driver still refuses.
    pub(super) fn end(self) -> Result<(), Self> {
        let Self {
            mr,
            remote,
            list,
            mem,
        } = self;
        let pd = mr.pd.clone();
        if let Err((_, mr)) = mr.end_by(Mr::deregister) {
            return Err(Self {
                mr,
                remote,
                list,
                mem,
            });
        }
        pd.device().note_refusal(false);
        if remote {
            pd.untaint();
        }
        // Unmap before the pages are unpinned.
        drop(list);
        drop(mem);
        Ok(())
    }
}
