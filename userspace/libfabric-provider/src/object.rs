// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects of libfabric: libfabric's structure first, then the plug-in's part. Every object is
//! opened, borrowed and closed here.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::addr_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use kfabric::Returned;

use crate::closed::{self, Drain};
use crate::error::{errno, Errno, Ours};
use crate::ffi::*;
use crate::fork;

/// The plug-in's part of an object.
pub(crate) trait Kind: Sized + 'static {
    /// libfabric's structure, which begins with a `fid`.
    type Head;
    /// `FI_CLASS_*` of the object.
    const CLASS: u32;
    /// Whether the memory of a closed object stays for a while ([`crate::closed`]).
    const STAYS: bool = false;

    /// Returns the operations of the object's fid.
    fn ops() -> *mut fi_ops;

    /// Makes libfabric's structure. `at` is the object's address.
    fn head(&self, fid: fid, at: *mut c_void) -> Self::Head;

    /// The completion queues after which the memory of the closed object can be freed.
    fn queues(&self) -> Vec<Arc<Drain>> {
        Vec::new()
    }

    /// Replaces the operations of libfabric's structure, except those of the fid, by
    /// [`crate::fork`]'s.
    fn disable(head: &mut Self::Head);

    /// Closes the object. On failure the object is returned unchanged.
    fn end(self) -> Result<(), (Self, Errno)>;
}

#[repr(C)]
struct Object<K: Kind> {
    head: K::Head,
    /// Reset when the object is closed. `body` is then moved out.
    open: AtomicBool,
    body: K,
}

/// Opens an object. `make` gets the object's address.
///
/// # Safety
///
/// `to` has room for the result.
pub(crate) unsafe fn open<K: Kind>(
    to: *mut *mut K::Head,
    context: *mut c_void,
    make: impl FnOnce(usize) -> Result<K, Errno>,
) -> c_int {
    let place = Box::into_raw(Box::new(MaybeUninit::<Object<K>>::uninit()));
    let at: *mut Object<K> = place.cast();
    match make(at.expose_provenance()) {
        Ok(body) => {
            let fid = fid {
                fclass: K::CLASS as usize,
                context,
                ops: K::ops(),
            };
            let head = body.head(fid, at.cast());
            // SAFETY: the place was just allocated; the caller's place for the result.
            unsafe {
                let open = AtomicBool::new(true);
                at.write(Object { head, open, body });
                fork::add(at.expose_provenance(), disable::<K>);
                *to = at.cast();
            }
            0
        }
        Err(errno) => {
            // SAFETY: boxed above, and without contents.
            drop(unsafe { Box::from_raw(place) });
            -errno
        }
    }
}

/// Disables an object in a forked child ([`crate::fork`]).
///
/// # Safety
///
/// `at` is the address of an open object of this kind, which no other thread uses.
unsafe fn disable<K: Kind>(at: usize) {
    let at = std::ptr::with_exposed_provenance_mut::<Object<K>>(at);
    // SAFETY: as the caller vouches. Each structure of libfabric begins with a `fid`.
    unsafe {
        (*at.cast::<fid>()).ops = fork::Disabled::of(&fork::FID);
        K::disable(&mut (*at).head);
    }
}

/// Borrows the plug-in's part of an object.
///
/// # Safety
///
/// `at` points to an open object of this kind, which the program does not close meanwhile.
pub(crate) unsafe fn body<'a, K: Kind>(at: *const impl Sized) -> &'a K {
    // SAFETY: as the caller vouches. The reference does not cover libfabric's structure, which
    // libfabric and programs may write to.
    unsafe { &*addr_of!((*at.cast::<Object<K>>()).body) }
}

/// As [`body`]; `None` if the object is closed and its memory stays ([`Kind::STAYS`]).
///
/// # Safety
///
/// `at` points to an object of this kind that is open, and that the program does not close
/// meanwhile, or that is among those that [`crate::closed`] keeps.
pub(crate) unsafe fn body_if_open<'a, K: Kind>(at: *const impl Sized) -> Option<&'a K> {
    const { assert!(K::STAYS) };
    // SAFETY: as the caller vouches: the flag outlives the object's part.
    unsafe {
        let open = &*addr_of!((*at.cast::<Object<K>>()).open);
        open.load(Ordering::Acquire).then(|| body(at))
    }
}

/// Borrows the plug-in's part of an object that may be of another kind, or null.
///
/// # Safety
///
/// `at` is null, or points to an open object of any provider.
pub(crate) unsafe fn body_of_class<'a, K: Kind>(at: *const fid) -> Option<&'a K> {
    // SAFETY: as the caller vouches. Equal operations mean that the object is ours.
    unsafe {
        let class = at.as_ref()?;
        let ours = class.fclass == K::CLASS as usize && std::ptr::eq(class.ops, K::ops());
        ours.then(|| body(at))
    }
}

/// Borrows libfabric's structure of an object.
///
/// # Safety
///
/// As for [`body`], and `at` is the object that the plug-in opened.
pub(crate) unsafe fn head<K: Kind>(at: usize) -> *mut K::Head {
    std::ptr::with_exposed_provenance_mut::<K::Head>(at)
}

/// `fi_close` of an object.
///
/// # Safety
///
/// `fid` points to an open object of this kind. On success the program does not use it any more.
pub(crate) unsafe extern "C" fn close<K: Kind>(fid: *mut fid) -> c_int {
    let at = fid.cast::<Object<K>>();
    // SAFETY: the object was boxed by `open`. The part is moved out, and either moved back or the
    // box is freed without it.
    unsafe {
        let part = &raw mut (*at).body;
        let open = &*addr_of!((*at).open);
        if !open.swap(false, Ordering::AcqRel) {
            return -libc::EINVAL;
        }
        let body = part.read();
        let queues = body.queues();
        match body.end() {
            Ok(()) => {
                fork::remove(at.expose_provenance());
                match K::STAYS {
                    true => closed::keep(at.expose_provenance(), free::<K>, queues),
                    false => free::<K>(at.expose_provenance()),
                }
                0
            }
            Err((body, errno)) => {
                part.write(body);
                open.store(true, Ordering::Release);
                -errno
            }
        }
    }
}

/// Frees the memory of a closed object.
///
/// # Safety
///
/// `open` boxed the object at this address, and its part was moved out.
unsafe fn free<K: Kind>(at: usize) {
    let at = std::ptr::with_exposed_provenance_mut::<MaybeUninit<Object<K>>>(at);
    // SAFETY: as the caller vouches.
    drop(unsafe { Box::from_raw(at) });
}

/// The operations of a fid.
pub(crate) const fn ops<K: Kind>(
    bind: Option<unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int>,
    control: Option<unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int>,
) -> Table<fi_ops> {
    Table(fi_ops {
        size: size_of::<fi_ops>(),
        close: Some(close::<K>),
        bind,
        control,
        ops_open: absent(),
        tostr: None,
        ops_set: None,
    })
}

/// Turns the outcome of a close of libkfabric into that of [`Kind::end`]; `back` makes the part of
/// the returned object.
pub(crate) fn ended<T, K>(
    outcome: Result<(), Returned<T>>,
    back: impl FnOnce(T) -> K,
) -> Result<(), (K, Errno)> {
    outcome.map_err(|returned| (back(returned.object), errno(&returned.error)))
}

/// Converts a result to libfabric's status: zero, or a negative errno.
pub(crate) fn status<T>(result: Result<T, Errno>) -> c_int {
    match result {
        Ok(_) => 0,
        Err(errno) => -errno,
    }
}

/// As [`status`], for a call of libkfabric.
pub(crate) fn called<T>(result: kfabric::Result<T>) -> c_int {
    status(result.ours())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ptr::null_mut;
    use std::rc::Rc;

    use super::*;

    /// An object whose close fails while `busy` is set.
    struct Thing {
        busy: Rc<Cell<bool>>,
    }

    impl Kind for Thing {
        type Head = fid;
        const CLASS: u32 = 0;
        const STAYS: bool = true;

        fn ops() -> *mut fi_ops {
            null_mut()
        }

        fn head(&self, fid: fid, _: *mut c_void) -> fid {
            fid
        }

        fn disable(_: &mut fid) {}

        fn end(self) -> Result<(), (Self, Errno)> {
            match self.busy.get() {
                true => Err((self, libc::EBUSY)),
                false => Ok(()),
            }
        }
    }

    #[test]
    fn closed_object_that_stays_is_not_open() {
        let busy = Rc::new(Cell::new(true));
        // More than stay: the memory of the first ones is freed, once.
        for _ in 0..1000 {
            busy.set(true);
            let mut at = null_mut();
            // SAFETY: `at` has room for the result; the object stays for a while after the close.
            unsafe {
                let thing = Thing { busy: busy.clone() };
                assert_eq!(open(&mut at, null_mut(), |_| Ok(thing)), 0);
                assert!(body_if_open::<Thing>(at).is_some());
                assert_eq!(close::<Thing>(at), -libc::EBUSY);
                assert!(body_if_open::<Thing>(at).is_some());
                busy.set(false);
                assert_eq!(close::<Thing>(at), 0);
                assert!(body_if_open::<Thing>(at).is_none());
                assert_eq!(close::<Thing>(at), -libc::EINVAL);
            }
            assert_eq!(Rc::strong_count(&busy), 1);
        }
    }

    #[test]
    fn close_in_a_forked_child_leaves_the_object_of_the_parent() {
        fork::guard();
        let busy = Rc::new(Cell::new(false));
        let mut at = null_mut();
        // SAFETY: `at` has room for the result. The child uses only its copy, and ends at once.
        unsafe {
            let thing = Thing { busy: busy.clone() };
            assert_eq!(open(&mut at, null_mut(), |_| Ok(thing)), 0);
            let close = |at: *mut fid| (*(*at).ops).close.map(|close| close(at));
            let pid = libc::fork();
            if pid == 0 {
                let bind = (*(*at).ops).bind.map(|bind| bind(at, at, 0));
                let refused = bind == Some(-(FI_EOPBADSTATE as c_int));
                let closed = close(at) == Some(0) && close(at) == Some(0);
                // The object is as before, as nothing has closed it.
                let intact = Rc::strong_count(&busy) == 2;
                // Objects that the child opens itself work.
                let mut own = null_mut();
                let thing = Thing { busy: busy.clone() };
                let opened = open(&mut own, null_mut(), |_| Ok(thing)) == 0;
                let works = super::close::<Thing>(own) == 0 && Rc::strong_count(&busy) == 2;
                libc::_exit(i32::from(!(refused && closed && intact && opened && works)));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            assert_eq!(status, 0);
            assert!((*at).ops.is_null());
            assert_eq!(super::close::<Thing>(at), 0);
        }
        assert_eq!(Rc::strong_count(&busy), 1);
    }
}
