// SPDX-License-Identifier: GPL-2.0
//! Memory regions as verbs means them: a range, rights, a local and a remote key.

use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

use super::{
    charge::Charge,
    device::Live,
    dma::SgList,
    pd::Pd,
    raw, //
};
use kfabric::{
    fault,
    memory::Memory, //
};

/// Rights of a memory region.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access(raw::ib_access_flags);

impl Access {
    /// The device may read, by the local key.
    pub(crate) const LOCAL_READ: Self = Self(0);
    /// The device may write, by the local key.
    pub(crate) const LOCAL_WRITE: Self = Self(raw::ib_access_flags_IB_ACCESS_LOCAL_WRITE);

    /// Rights for peers. To be written to by a peer, the device must be able to write.
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

    /// What is left of it without peers.
    pub(crate) fn local(self) -> Self {
        Self(self.0 & raw::ib_access_flags_IB_ACCESS_LOCAL_WRITE)
    }

    /// As the RDMA core takes it.
    pub(super) fn bits(self) -> c_int {
        // CAST: Only low bits are ever set.
        self.0 as c_int
    }

    /// Whether the device may write.
    pub(super) fn writes(self) -> bool {
        self.0 & raw::ib_access_flags_IB_ACCESS_LOCAL_WRITE != 0
    }
}

/// A memory region.
///
/// # Invariants
///
/// `ptr` is a memory region of ours in `pd`.
pub(crate) struct Mr {
    ptr: NonNull<raw::ib_mr>,
    pd: Arc<Pd>,
    charge: Option<Charge>,
}

// SAFETY: The C object may be used by any thread; changes take `&mut self`.
unsafe impl Send for Mr {}
// SAFETY: As above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Makes one for fast registration of up to `pages` pages, as many as the device's own limit
    /// at most. It covers nothing yet. It is charged to nobody: a worker may make it, for a slot that is.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: the device has no more, which rxe says by `EINVAL`. `ENOMEM`.
    pub(crate) fn fast(_live: &Live<'_>, pd: &Arc<Pd>, pages: u32) -> Result<Self> {
        fault::device()?;
        // SAFETY: The protection domain is alive.
        let ptr = from_err_ptr(unsafe {
            raw::ib_alloc_mr(pd.as_ptr(), raw::ib_mr_type_IB_MR_TYPE_MEM_REG, pages)
        })
        .map_err(|e| if e == EINVAL { ENOSPC } else { e })?;
        // INVARIANT: It was just made.
        Ok(Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
            pd: pd.clone(),
            charge: None,
        })
    }

    /// Registers `len` bytes at `addr` of the current process, the first of which is known as
    /// `iova`, with the same offset in its page.
    ///
    /// To be called inside [`Memory::device_register`].
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
        // SAFETY: The protection domain is alive. The address is checked by the call.
        let ptr = from_err_ptr(unsafe {
            raw::ib_reg_user_mr(pd.as_ptr(), addr, len, iova, access.bits())
        })?;
        // INVARIANT: It was just made.
        Ok(Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
            pd: pd.clone(),
            charge,
        })
    }

    /// Gives a registration of a process's memory other rights, and has peers know its first byte
    /// as `iova`, where the device [opens](super::device::Device::opens). They begin when this
    /// returns, at the latest.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub(crate) fn open(&mut self, iova: u64, access: Access) -> Result {
        fault::device()?;
        // SAFETY: By the type invariant; nobody else changes it. Such a driver looks here, but not
        // before the rights below let anybody in: the number is new, so no request was let in yet.
        unsafe { (*self.as_ptr()).iova = iova };
        // SAFETY: By the type invariant; nobody else changes it.
        to_result(unsafe { raw::kverbs_set_access(self.as_ptr(), access.bits()) })
    }

    /// The C object.
    pub(super) fn as_ptr(&self) -> *mut raw::ib_mr {
        self.ptr.as_ptr()
    }

    /// The key that work requests name it by.
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { (*self.as_ptr()).lkey }
    }

    /// The key that peers name it by.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { (*self.as_ptr()).rkey }
    }

    /// Points a fresh fast region at [offset, offset + len) of `mem`.
    /// Peers will know the first byte as `iova`, whose offset in its page is that of the byte.
    ///
    /// Nothing is reachable before the registration is posted and done
    /// ([`KeyQueue::register`](super::keyq::KeyQueue::register)).
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: it does not fit (too many pages, or gaps inside). `EIO`: the mapping failed, or moved
    /// bytes inside their pages.
    pub(crate) fn aim(
        &mut self,
        sg: &mut SgList,
        mem: &Arc<Memory>,
        offset: usize,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result {
        let n = sg.map(mem, offset, len, access.writes())?;
        let got = fault::device().and_then(|()| {
            // SAFETY: Both are alive, and the first `n` entries are mapped.
            let got = unsafe {
                raw::ib_map_mr_sg(
                    self.as_ptr(),
                    sg.as_mut_ptr(),
                    n as c_int,
                    core::ptr::null_mut(),
                    PAGE_SIZE as c_uint,
                )
            };
            to_result(got).map(|()| got as usize)
        });
        // SAFETY: By the type invariant; nobody else changes it.
        let (covered, at) = unsafe { ((*self.as_ptr()).length, (*self.as_ptr()).iova) };
        // A mapping that moved the byte in its page (through bounce buffers) cannot be called so.
        let moved = got.is_ok() && (at ^ iova) & (PAGE_SIZE as u64 - 1) != 0;
        if moved {
            sg.unmap();
            return Err(EIO);
        }
        if got != Ok(n) || covered != len as u64 {
            sg.unmap();
            return Err(got.err().unwrap_or(EMSGSIZE));
        }
        // SAFETY: As above.
        unsafe { (*self.as_ptr()).iova = iova };
        Ok(())
    }

    /// Chooses the low byte of a fast region's keys, from its registration on.
    pub(crate) fn set_key(&mut self, byte: u8) {
        // SAFETY: By the type invariant; nobody else changes it.
        unsafe { raw::kverbs_rotate_key(self.as_ptr(), byte) }
    }

    /// Ends it. After a success nothing is read or written through its keys any more: on every
    /// driver deregistration waits for what is under way (on rxe a local invalidate does not).
    ///
    /// # Errors
    ///
    /// What the driver says; the region is then handed back, as it was.
    pub(crate) fn end(self) -> Result<(), (Error, Self)> {
        if let Err(e) = fault::device() {
            return Err((e, self));
        }
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: By the type invariant it is ours; this is its end unless the driver refuses.
        let ret = unsafe { raw::ib_dereg_mr_user(this.as_ptr(), core::ptr::null_mut()) };
        match to_result(ret) {
            Ok(()) => {
                // SAFETY: `this` is not used again, so `pd` is moved out once.
                drop(unsafe { core::ptr::read(&this.pd) });
                // SAFETY: As above.
                drop(unsafe { core::ptr::read(&this.charge) });
                Ok(())
            }
            Err(e) => Err((e, core::mem::ManuallyDrop::into_inner(this))),
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is ours.
        let ret = unsafe { raw::ib_dereg_mr_user(self.as_ptr(), core::ptr::null_mut()) };
        if ret != 0 {
            pr_err!("kverbs: a memory region could not be deregistered ({ret})\n");
        }
    }
}
