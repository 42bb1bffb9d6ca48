// SPDX-License-Identifier: GPL-2.0
//! Fabrics and domains.

use core::ptr;
use kernel::{
    bindings,
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use super::{
    atomic,
    auth,
    av,
    cm,
    ep,
    event,
    info,
    mr,
    obj::{
        self,
        code,
        enosys,
        Object,
        Place, //
    },
    opened::{
        self,
        User, //
    },
    prov,
    queue,
    raw, //
};
use crate::{
    base::{
        errno::eopnotsupp,
        name::name_str, //
    },
    objects::{
        domain::Domain,
        fabric::Fabric, //
    },
    sys::{
        net::Net,
        wait::{
            Deadline,
            WaitQueue, //
        },
    },
    uapi::{
        KFI_EP_KEYS,
        KFI_NAME_MAX, //
    },
};

/// A fabric.
#[repr(C)]
pub(super) struct FabricObj {
    fid: Opaque<raw::kfid_fabric>,
    pub(super) fabric: Arc<Fabric>,
}

// SAFETY: The `repr(C)` object begins with the C structure of this class.
unsafe impl Object for FabricObj {
    type C = raw::kfid_fabric;
    const CLASS: u32 = raw::KFI_CLASS_FABRIC;
    const OPS: &'static raw::kfi_ops = &FABRIC;
}

static FABRIC: raw::kfi_ops = raw::kfi_ops {
    size: size_of::<raw::kfi_ops>(),
    close: Some(fabric_close),
    bind: Some(obj::no_bind),
    control: Some(obj::no_control),
    ops_open: Some(obj::no_ops),
};

static FABRIC_OPS: raw::kfi_ops_fabric = raw::kfi_ops_fabric {
    size: size_of::<raw::kfi_ops_fabric>(),
    domain: Some(domain),
    passive_ep: Some(cm::passive_ep),
    eq_open: Some(event::eq_open),
    wait_open: Some(wait_open),
};

/// A domain.
#[repr(C)]
pub(super) struct DomainObj {
    fid: Opaque<raw::kfid_domain>,
    pub(super) domain: Arc<Domain>,
    /// Each region must be bound to an endpoint (`KFI_MR_ENDPOINT`).
    pub(super) ep_keys: bool,
}

// SAFETY: The `repr(C)` object begins with the C structure of this class.
unsafe impl Object for DomainObj {
    type C = raw::kfid_domain;
    const CLASS: u32 = raw::KFI_CLASS_DOMAIN;
    const OPS: &'static raw::kfi_ops = &DOMAIN;
}

static DOMAIN: raw::kfi_ops = raw::kfi_ops {
    size: size_of::<raw::kfi_ops>(),
    close: Some(domain_close),
    bind: Some(obj::no_bind),
    control: Some(obj::no_control),
    ops_open: Some(obj::no_ops),
};

static DOMAIN_OPS: raw::kfi_ops_domain = raw::kfi_ops_domain {
    size: size_of::<raw::kfi_ops_domain>(),
    av_open: Some(av::open),
    cq_open: Some(queue::cq_open),
    endpoint: Some(ep::endpoint),
    scalable_ep: Some(scalable_ep),
    cntr_open: Some(queue::cntr_open),
    poll_open: Some(poll_open),
    stx_ctx: Some(stx_ctx),
    srx_ctx: Some(srx_ctx),
    query_atomic: Some(atomic::query),
};

/// Returns a C string as a name; null becomes the empty name.
///
/// # Errors
///
/// - `EINVAL` if the string is longer than a name.
///
/// # Safety
///
/// `text` is a terminated string, or null.
pub(super) unsafe fn name(text: *const kernel::ffi::c_char) -> Result<[u8; KFI_NAME_MAX]> {
    let mut name = [0; KFI_NAME_MAX];
    // SAFETY: The buffer has `KFI_NAME_MAX` bytes. By this function's contract `text` is a
    // terminated string; it is not null here.
    if !text.is_null() && !unsafe { raw::kf_c_name(name.as_mut_ptr(), KFI_NAME_MAX, text) } {
        return Err(EINVAL);
    }
    Ok(name)
}

/// Turns `ENOENT` into `ENODEV`: the C API reports a missing fabric or domain as a missing device.
fn no_device(e: Error) -> Error {
    if e == ENOENT {
        ENODEV
    } else {
        e
    }
}

fn open(
    user: User,
    attr: &raw::kfi_fabric_attr,
    context: *mut c_void,
) -> Result<*mut raw::kfid_fabric> {
    // SAFETY: Both names of the caller's attributes are terminated strings, or null.
    let (provider, fabric) = unsafe { (name(attr.prov_name)?, name(attr.name)?) };
    let place = Place::<FabricObj>::new()?;
    let fabric = Fabric::open(Net::current(), name_str(&provider)?, name_str(&fabric)?)
        .map_err(no_device)?;
    opened::add_fabric(place.ptr(), user, &fabric)?;
    let object = FabricObj {
        fid: Opaque::uninit(),
        fabric,
    };
    Ok(place.put(object, context, |c| {
        c.ops = ptr::from_ref(&FABRIC_OPS).cast_mut();
        c.api_version = info::API_VERSION;
    }))
}

/// Implements `kfi_fabric()`. `user` is the calling module, or null.
///
/// # Safety
///
/// `attr` is valid as `kfabric.h` describes, or null. `fabric` is a valid place, or null.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_fabric(
    user: *mut bindings::module,
    attr: *const raw::kfi_fabric_attr,
    fabric: *mut *mut raw::kfid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: By this function's contract `attr` is valid or null.
    let Some(attr) = (unsafe { attr.as_ref() }) else {
        return EINVAL.to_errno();
    };
    if attr.prov_name.is_null() || fabric.is_null() {
        return EINVAL.to_errno();
    }
    // SAFETY: This function has the contract of `kfi_fabric()`; the provider's name is not null
    // here.
    if let Some(answer) = unsafe { prov::fabric(attr, fabric, context) } {
        return answer;
    }
    code(open(User(user), attr, context).map(|made| {
        // SAFETY: By this function's contract `fabric` is valid; it is not null here.
        unsafe { *fabric = made }
    }))
}

unsafe extern "C" fn fabric_close(fid: *mut raw::kfid) -> c_int {
    // SAFETY: The consumer closes a fabric of this module.
    let this = unsafe { obj::get::<FabricObj, _>(fid) };
    if let Err(e) = this.fabric.close() {
        return e.to_errno();
    }
    opened::remove_fabric(fid);
    // SAFETY: The fabric is closed: it has no open objects, and the consumer no longer uses it.
    drop(unsafe { obj::take::<FabricObj>(fid) });
    0
}

fn open_domain(
    fabric: &FabricObj,
    info: *const raw::kfi_info,
    context: *mut c_void,
) -> Result<*mut raw::kfid_domain> {
    // SAFETY: The caller passes an info or null; its domain attributes are valid or null.
    let attr = unsafe {
        let info = info.as_ref().ok_or(EINVAL)?;
        info.domain_attr.as_ref().ok_or(EINVAL)?
    };
    // SAFETY: The name is a terminated string or null. The auth key has as many bytes as its size
    // states, or is null.
    let (name, auth) = unsafe {
        (
            name(attr.name)?,
            auth::key(attr.auth_key, attr.auth_key_size)?,
        )
    };
    let place = Place::<DomainObj>::new()?;
    let domain =
        Domain::open_with(&fabric.fabric, name_str(&name)?, auth.as_ref()).map_err(no_device)?;
    // CAST: The flag is one bit of a `c_int`.
    let ep_keys = attr.mr_mode & raw::KFI_MR_ENDPOINT as c_int != 0;
    if ep_keys && domain.attr().caps & KFI_EP_KEYS == 0 {
        return Err(eopnotsupp());
    }
    opened::add_domain(place.ptr(), &domain)?;
    let object = DomainObj {
        fid: Opaque::uninit(),
        domain,
        ep_keys,
    };
    Ok(place.put(object, context, |c| {
        c.ops = ptr::from_ref(&DOMAIN_OPS).cast_mut();
        c.mr = ptr::from_ref(&mr::OPS).cast_mut();
    }))
}

unsafe extern "C" fn domain(
    fabric: *mut raw::kfid_fabric,
    info: *mut raw::kfi_info,
    domain: *mut *mut raw::kfid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: The consumer passes an open fabric of this module.
    let fabric = unsafe { obj::get::<FabricObj, _>(fabric) };
    code(open_domain(fabric, info, context).map(|made| {
        // SAFETY: The caller passes a valid place for the result.
        unsafe { *domain = made }
    }))
}

unsafe extern "C" fn domain_close(fid: *mut raw::kfid) -> c_int {
    // SAFETY: The consumer closes a domain of this module.
    let this = unsafe { obj::get::<DomainObj, _>(fid) };
    if let Err(e) = this.domain.close() {
        return e.to_errno();
    }
    opened::remove_domain(fid);
    // SAFETY: The domain is closed: it has no open objects, and the consumer no longer uses it.
    drop(unsafe { obj::take::<DomainObj>(fid) });
    0
}

macro_rules! not_offered {
    ($($name:ident($($arg:ty),*);)*) => {
        $(
            unsafe extern "C" fn $name($(_: $arg),*) -> c_int {
                enosys().to_errno()
            }
        )*
    };
}

not_offered! {
    wait_open(*mut raw::kfid_fabric, *mut raw::kfi_wait_attr, *mut *mut raw::kfid_wait);
    scalable_ep(*mut raw::kfid_domain, *mut raw::kfi_info, *mut *mut raw::kfid_ep, *mut c_void);
    poll_open(*mut raw::kfid_domain, *mut raw::kfi_poll_attr, *mut *mut raw::kfid_poll);
    stx_ctx(*mut raw::kfid_domain, *mut raw::kfi_tx_attr, *mut *mut raw::kfid_stx, *mut c_void);
    srx_ctx(*mut raw::kfid_domain, *mut raw::kfi_rx_attr, *mut *mut raw::kfid_ep, *mut c_void);
}

/// Returns whether the consumer waits for a queue by a wait queue of the kernel.
///
/// # Errors
///
/// - `ENOSYS` if the attributes name a wait set, or a wait object other than a wait queue.
pub(super) fn check_wait(
    wait_obj: raw::kfi_wait_obj,
    wait_set: *mut raw::kfid_wait,
) -> Result<bool> {
    if !wait_set.is_null() {
        return Err(enosys());
    }
    match wait_obj {
        raw::kfi_wait_obj_KFI_WAIT_NONE | raw::kfi_wait_obj_KFI_WAIT_UNSPEC => Ok(false),
        raw::kfi_wait_obj_KFI_WAIT_QUEUE => Ok(true),
        _ => Err(enosys()),
    }
}

/// Returns the deadline of a wait with `timeout` in milliseconds; a negative timeout has none.
///
/// If `timeout` is 0 and the queue was opened with `KFI_WAIT_QUEUE`, the wait has no deadline
/// either. Published kfi providers behave so, and their consumers set `KFI_WAIT_QUEUE`.
pub(super) fn deadline(timeout: c_int, by_queue: bool) -> Deadline {
    match timeout {
        0 if by_queue => Deadline::in_ms(-1),
        ms => Deadline::in_ms(ms),
    }
}

/// Performs `KFI_GETWAIT` on a queue whose waiters sleep on `wait`.
///
/// # Errors
///
/// - `ENOSYS` if `command` is not `KFI_GETWAIT`.
/// - `ENOSYS` if the queue was not opened with `KFI_WAIT_QUEUE`.
/// - `EINVAL` if `arg` is null.
///
/// # Safety
///
/// With `KFI_GETWAIT`, `arg` is a valid place for a pointer, or null.
pub(super) unsafe fn get_wait(
    command: c_int,
    by_queue: bool,
    wait: &WaitQueue,
    arg: *mut c_void,
) -> Result {
    // CAST: Commands are small positive numbers.
    if command as u32 != raw::KFI_GETWAIT || !by_queue {
        return Err(enosys());
    }
    if arg.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: By this function's contract `arg` is a valid place; it is not null here.
    unsafe { *arg.cast::<*mut bindings::wait_queue_head>() = wait.as_ptr() };
    Ok(())
}

crate::same_prototype!(raw: kf_c_fabric);
