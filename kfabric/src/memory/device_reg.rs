// SPDX-License-Identifier: GPL-2.0
//! Registrations by which a device pins a part of user memory once more, and their charge.

use kernel::{
    page::PAGE_SHIFT,
    prelude::*, //
};

use super::{
    charge::Owner,
    pages::Memory, //
};
use crate::{
    base::errno::eopnotsupp,
    pure::range, //
};

/// A part of the owner's charge that device registrations have taken over: the core returned it,
/// and the device charges the same pages.
///
/// All registrations of the part are charged alike, so any of them replaces the core's charge. When
/// the last registration ends, the core charges the owner again. Until the first registration is
/// complete the pages have no charge, but no other charge can use their part of the limit
/// ([`Owner::lend`]).
pub(super) struct DevicePart {
    offset: usize,
    len: usize,
    /// Registrations in progress.
    starting: usize,
    /// Completed registrations.
    registrations: usize,
}

impl DevicePart {
    fn is(&self, offset: usize, len: usize) -> bool {
        (self.offset, self.len) == (offset, len)
    }
}

impl Memory {
    /// Pages that [offset, offset + len) touches, as `ib_umem` charges them.
    fn pages_of(&self, offset: usize, len: usize) -> usize {
        let addr = (self.first + offset) as u64;
        // CAST: The platform is 64-bit, and a shift of a page is small.
        range::pages_spanned(addr, len as u64, PAGE_SHIFT as u32).unwrap_or(0) as usize
    }

    /// Runs `register` with the user address of [offset, offset + len). `register` pins the range
    /// once more through the device (`ib_reg_user_mr()`).
    ///
    /// The device's registration charges the owner by itself. For the first registration, the core
    /// returns its own charge of the range, so that the memory counts once. Every further
    /// registration at the same time is charged in addition. The device pins the pages that are
    /// mapped at the address at that time. If the program has mapped other pages there, these must
    /// be charged, too.
    ///
    /// # Errors
    ///
    /// The errors of `register`, and:
    ///
    /// - `EACCES` if the current task is not the owner.
    /// - `EOPNOTSUPP` if the memory is the kernel's.
    /// - `EINVAL` if the range is empty or not inside the memory.
    pub fn device_register<T>(
        &self,
        offset: usize,
        len: usize,
        register: impl FnOnce(usize) -> Result<T>,
    ) -> Result<T> {
        let owner = self.owner.as_ref().ok_or_else(eopnotsupp)?;
        if !owner.is_current() {
            return Err(EACCES);
        }
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(EINVAL);
        }
        let pages = self.pages_of(offset, len);
        let stands_in = {
            let mut lent = self.device.lock();
            match &mut *lent {
                None => {
                    *lent = Some(DevicePart {
                        offset,
                        len,
                        starting: 1,
                        registrations: 0,
                    });
                    owner.lend(pages);
                    true
                }
                Some(part) if part.is(offset, len) => {
                    part.starting += 1;
                    true
                }
                Some(_) => false,
            }
        };
        // Without the lock: `register` may wait for the program (userfaultfd), and a revocation
        // must not.
        let made = register(owner.addr + offset);
        if stands_in {
            self.registered(owner, (offset, len), made.is_ok());
        }
        made
    }

    /// Completes a registration that was to replace the owner's charge; `made` says if it
    /// succeeded.
    fn registered(&self, owner: &Owner, (offset, len): (usize, usize), made: bool) {
        let mut lent = self.device.lock();
        // Another part or none: the core charges again meanwhile, so this registration counts on
        // top.
        let part = match &mut *lent {
            Some(part) if part.is(offset, len) && part.starting != 0 => part,
            _ => return,
        };
        part.starting -= 1;
        let first = part.registrations == 0;
        part.registrations += usize::from(made);
        if first && (made || part.starting == 0) {
            owner.lent(self.pages_of(offset, len), made);
        }
        if part.registrations == 0 && part.starting == 0 {
            *lent = None;
        }
    }

    /// Ends a registration of a part. If it was the last one that replaces the core's charge, the
    /// owner is charged for the part again.
    fn take_back(&self, offset: usize, len: usize) {
        let mut lent = self.device.lock();
        let (Some(owner), Some(part)) = (&self.owner, &mut *lent) else {
            return;
        };
        if !part.is(offset, len) || part.registrations == 0 {
            return;
        }
        part.registrations -= 1;
        if part.registrations == 0 {
            owner.take_back(self.pages_of(offset, len));
            // Registrations in progress count on top.
            *lent = None;
        }
    }

    /// Runs `unregister`, which ends a registration by [`Memory::device_register`] of the same
    /// range.
    pub fn device_unregister<T>(
        &self,
        offset: usize,
        len: usize,
        unregister: impl FnOnce() -> T,
    ) -> T {
        // Before the device returns its charge: no other charge can use up the limit in between.
        self.take_back(offset, len);
        unregister()
    }
}
