// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use kfabric_uapi as abi;

use crate::domain::Domain;
use crate::ffi::*;
use crate::kernel::{monotonic_ns, Device, Errno};
use crate::status;

/// A counter.
#[repr(C)]
pub(crate) struct Counter {
    fid: fid_cntr,
    dev: Arc<Device>,
    pub(crate) handle: u64,
}

static FID: Table<fi_ops> = Table(fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(close),
    bind: absent(),
    control: absent(),
    ops_open: absent(),
    tostr: None,
    ops_set: None,
});
static OPS: Table<fi_ops_cntr> = Table(fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(adderr),
    seterr: Some(seterr),
});

unsafe fn make(
    domain: &Domain,
    attr: *mut fi_cntr_attr,
    context: *mut c_void,
) -> Result<*mut Counter, Errno> {
    // SAFETY: null or valid attributes; only fields that all versions have are read.
    let (events, wait, flags) = match attr.is_null() {
        true => (FI_CNTR_EVENTS_COMP, FI_WAIT_UNSPEC, 0),
        // SAFETY: As above.
        false => unsafe { ((*attr).events, (*attr).wait_obj, (*attr).flags) },
    };
    if flags != 0 {
        return Err(FI_EBADFLAGS as Errno);
    }
    // The kernel's counters count completions and have no descriptor.
    if events != FI_CNTR_EVENTS_COMP
        || !matches!(wait, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD)
    {
        return Err(libc::ENOSYS);
    }
    let mut arg = abi::CntrOpen {
        domain: domain.handle,
        ..Default::default()
    };
    // SAFETY: no pointers.
    unsafe { domain.dev.call(&mut arg)? };
    let fid = fid {
        fclass: FI_CLASS_CNTR as usize,
        context,
        ops: FID.get(),
    };
    Ok(Box::into_raw(Box::new(Counter {
        fid: fid_cntr {
            fid,
            ops: OPS.get(),
        },
        dev: domain.dev.clone(),
        handle: arg.handle,
    })))
}

/// `fi_cntr_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    to: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments; the domain is ours.
    status(unsafe { make(&*domain.cast(), attr, context).map(|cntr| *to = cntr.cast()) })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the fid of a counter, which `make` boxed and the caller gives up.
    unsafe {
        let cntr = fid.cast::<Counter>();
        let done = (*cntr).dev.close((*cntr).handle);
        if done.is_ok() {
            drop(Box::from_raw(cntr));
        }
        status(done)
    }
}

/// Reads or changes a counter. Returns the successes and the failures.
unsafe fn control(cntr: *mut fid_cntr, op: u32, value: u64) -> Result<(u64, u64), Errno> {
    // SAFETY: a counter.
    let cntr = unsafe { &*cntr.cast::<Counter>() };
    let mut arg = abi::CntrCtl {
        cntr: cntr.handle,
        op,
        value,
        ..Default::default()
    };
    // SAFETY: no pointers.
    unsafe { cntr.dev.call(&mut arg)? };
    Ok((arg.value, arg.errors))
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: a counter.
    unsafe { control(cntr, abi::KFI_CNTR_READ, 0) }.map_or(0, |(value, _)| value)
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: a counter.
    unsafe { control(cntr, abi::KFI_CNTR_READ, 0) }.map_or(0, |(_, errors)| errors)
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: a counter.
    status(unsafe { control(cntr, abi::KFI_CNTR_ADD, value) }.map(drop))
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: a counter.
    status(unsafe { control(cntr, abi::KFI_CNTR_SET, value) }.map(drop))
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: a counter.
    status(unsafe { control(cntr, abi::KFI_CNTR_ADDERR, value) }.map(drop))
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: a counter.
    status(unsafe { control(cntr, abi::KFI_CNTR_SETERR, value) }.map(drop))
}

unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    // SAFETY: a counter.
    let cntr = unsafe { &*cntr.cast::<Counter>() };
    let mut arg = abi::CntrWait {
        cntr: cntr.handle,
        threshold,
        deadline: match u64::try_from(timeout) {
            Ok(ms) => monotonic_ns().saturating_add(ms.saturating_mul(1_000_000)),
            Err(_) => u64::MAX,
        },
        ..Default::default()
    };
    // SAFETY: no pointers.
    match unsafe { cntr.dev.call(&mut arg) } {
        Err(libc::EIO) => -(FI_EAVAIL as c_int),
        done => status(done),
    }
}
