// SPDX-License-Identifier: GPL-2.0
//! `kfi_getinfo()`: converts hints and offers between C structures and the core's entries.
//!
//! The core uses libfabric's values. Only this file translates values that differ in the published
//! kfi API.

use core::ptr;
use kernel::{
    bindings,
    ffi::{
        c_char,
        c_int,
        c_void, //
    },
    prelude::*,
    str::CStr, //
};

use super::{
    fabric::name,
    obj::{
        code,
        enosys, //
    },
    opened::{
        self,
        Instances,
        User, //
    },
    prov,
    raw, //
};
use crate::{
    auth::AuthKey,
    base::{
        errno::enodata,
        name::{
            name_str,
            set_name, //
        },
    },
    objects::fabric::Fabric,
    provider::registry,
    sys::net::Net,
    uapi::{
        self,
        InfoEntry,
        SockAddr,
        KFI_AUTH_KEY_MAX, //
    },
};

/// `KFI_VERSION(1, 7)`.
pub(super) const API_VERSION: u32 = (raw::KFI_MAJOR_VERSION << 16) | raw::KFI_MINOR_VERSION;

/// Capabilities and flags whose values differ: the C API's value, the core's value.
const MOVED: [(u64, u64); 3] = [
    (raw::KFI_LOCAL_COMM, uapi::KFI_LOCAL_COMM),
    (raw::KFI_REMOTE_COMM, uapi::KFI_REMOTE_COMM),
    (raw::KFI_FENCE as u64, uapi::KFI_FENCE),
];

/// Capabilities that have the same value on both sides.
const SAME: u64 = uapi::KFI_MSG
    | uapi::KFI_RMA
    | uapi::KFI_READ
    | uapi::KFI_WRITE
    | uapi::KFI_RECV
    | uapi::KFI_SEND
    | uapi::KFI_REMOTE_READ
    | uapi::KFI_REMOTE_WRITE
    | uapi::KFI_ATOMIC
    | uapi::KFI_DYNAMIC_KEYS
    | uapi::KFI_SINGLE_USE_KEYS
    | uapi::KFI_EP_KEYS
    | uapi::KFI_RMA_PMEM;

/// Registration modes: the C API's value, the core's value.
const MR_MODES: [(u32, u64); 3] = [
    (raw::KFI_MR_LOCAL, uapi::KFI_MR_LOCAL),
    (raw::KFI_MR_VIRT_ADDR, uapi::KFI_MR_VIRT_ADDR),
    (raw::KFI_MR_PROV_KEY, uapi::KFI_MR_PROV_KEY),
];

/// Message orders that a reliable connection guarantees.
const ORDER: u32 = raw::KFI_ORDER_RAR
    | raw::KFI_ORDER_RAW
    | raw::KFI_ORDER_RAS
    | raw::KFI_ORDER_WAW
    | raw::KFI_ORDER_WAS
    | raw::KFI_ORDER_SAW
    | raw::KFI_ORDER_SAS;

// All other values that are passed through must be equal in both APIs.
const _: () = {
    assert!(raw::KFI_MSG as u64 == uapi::KFI_MSG && raw::KFI_RMA as u64 == uapi::KFI_RMA);
    assert!(raw::KFI_READ as u64 == uapi::KFI_READ && raw::KFI_WRITE as u64 == uapi::KFI_WRITE);
    assert!(raw::KFI_SEND as u64 == uapi::KFI_SEND && raw::KFI_RECV as u64 == uapi::KFI_RECV);
    assert!(raw::KFI_REMOTE_READ as u64 == uapi::KFI_REMOTE_READ);
    assert!(raw::KFI_REMOTE_WRITE as u64 == uapi::KFI_REMOTE_WRITE);
    assert!(raw::KFI_REMOTE_CQ_DATA as u64 == uapi::KFI_REMOTE_CQ_DATA);
    assert!(raw::KFI_COMPLETION as u64 == uapi::KFI_COMPLETION);
    assert!(raw::KFI_INJECT as u64 == uapi::KFI_INJECT);
    assert!(raw::KFI_DELIVERY_COMPLETE as u64 == uapi::KFI_DELIVERY_COMPLETE);
    assert!(raw::KFI_COMMIT_COMPLETE as u64 == uapi::KFI_COMMIT_COMPLETE);
    assert!(raw::KFI_RMA_PMEM == uapi::KFI_RMA_PMEM);
    assert!(raw::KFI_SELECTIVE_COMPLETION == uapi::KFI_SELECTIVE_COMPLETION);
    assert!(raw::KFI_ATOMIC as u64 == uapi::KFI_ATOMIC);
    assert!(raw::KFI_DYNAMIC_KEYS == uapi::KFI_DYNAMIC_KEYS);
    assert!(raw::KFI_SINGLE_USE_KEYS == uapi::KFI_SINGLE_USE_KEYS);
    assert!(raw::KFI_EP_KEYS == uapi::KFI_EP_KEYS);
    assert!(raw::kfi_ep_type_KFI_EP_MSG == uapi::KFI_EP_MSG);
    assert!(raw::KFI_PROTO_RDMA_CM_IB_RC == uapi::KFI_PROTO_RDMA_CM_IB_RC);
    assert!(raw::KFI_SOCKADDR_IN == uapi::KFI_SOCKADDR_IN);
    assert!(raw::KFI_SOCKADDR_IN6 == uapi::KFI_SOCKADDR_IN6);
    assert!(raw::KFI_CONNREQ == uapi::KFI_CONNREQ);
    assert!(raw::KFI_CONNECTED == uapi::KFI_CONNECTED);
    assert!(raw::KFI_SHUTDOWN == uapi::KFI_SHUTDOWN);
    assert!(raw::kfi_cq_format_KFI_CQ_FORMAT_CONTEXT == uapi::KFI_CQ_FORMAT_CONTEXT);
    assert!(raw::kfi_cq_format_KFI_CQ_FORMAT_MSG == uapi::KFI_CQ_FORMAT_MSG);
    assert!(raw::kfi_cq_format_KFI_CQ_FORMAT_DATA == uapi::KFI_CQ_FORMAT_DATA);
};

/// Size of `sockaddr_storage`, which holds the longest socket address, in bytes.
const ADDR_MAX: usize = 128;

/// Converts capabilities to the core's. `None` if the core does not know one of the capabilities.
fn caps_in(caps: u64) -> Option<u64> {
    let mut core = caps & SAME;
    let mut known = SAME;
    for (ours, theirs) in MOVED {
        known |= ours;
        if caps & ours != 0 {
            core |= theirs;
        }
    }
    (caps & !known == 0).then_some(core)
}

fn caps_out(core: u64) -> u64 {
    MOVED
        .iter()
        .filter(|(_, theirs)| core & theirs != 0)
        .fold(core & SAME, |caps, (ours, _)| caps | ours)
}

/// Copies a C socket address.
///
/// # Errors
///
/// - `EINVAL` if the family is neither IPv4 nor IPv6, or `len` is too short for the family.
///
/// # Safety
///
/// `addr` has `len` bytes, or is null.
unsafe fn address(addr: *const c_void, len: usize) -> Result<SockAddr> {
    let mut found = SockAddr::default();
    if addr.is_null() || len == 0 {
        return Ok(found);
    }
    // A caller may pass the size of `sockaddr_storage`. No address is longer.
    let len = len.min(ADDR_MAX);
    // SAFETY: By this function's contract `addr` has `len` bytes; it is not null here.
    let bytes = unsafe { core::slice::from_raw_parts(addr.cast::<u8>(), len) };
    let family = bytes.first_chunk().copied().map(u16::from_ne_bytes);
    let len = match family.map(u32::from) {
        Some(kernel::bindings::AF_INET) => 16,
        Some(kernel::bindings::AF_INET6) => 28,
        _ => return Err(EINVAL),
    };
    found.data[..len].copy_from_slice(bytes.get(..len).ok_or(EINVAL)?);
    // CAST: `len` is 16 or 28.
    found.len = len as u32;
    Ok(found)
}

/// Copies the address of a call that passes its length, too.
///
/// # Errors
///
/// - `EINVAL` if `addr` is null, too short for its family, or neither IPv4 nor IPv6.
///
/// # Safety
///
/// `addr` has `len` bytes, or is null.
pub(super) unsafe fn given_addr(addr: *const c_void, len: usize) -> Result<SockAddr> {
    // SAFETY: By this function's contract.
    let found = unsafe { address(addr, len)? };
    match found.len {
        0 => Err(EINVAL),
        _ => Ok(found),
    }
}

/// Copies the address of a call that passes no length: the family determines the length.
///
/// # Errors
///
/// - `EINVAL` if `addr` is null, or neither IPv4 nor IPv6.
///
/// # Safety
///
/// `addr` is a socket address, or null.
pub(super) unsafe fn sockaddr(addr: *const c_void) -> Result<SockAddr> {
    if addr.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: By this function's contract `addr` is a socket address, which begins with its family.
    let family = u32::from(unsafe { addr.cast::<u16>().read_unaligned() });
    let len = match family {
        kernel::bindings::AF_INET => 16,
        kernel::bindings::AF_INET6 => 28,
        _ => return Err(EINVAL),
    };
    // SAFETY: By this function's contract `addr` is a whole address of that family.
    unsafe { address(addr, len) }
}

/// Returns the source address of an info.
///
/// # Safety
///
/// The info is valid as `kfabric.h` describes.
pub(super) unsafe fn src_addr(info: &raw::kfi_info) -> Result<SockAddr> {
    // SAFETY: By this function's contract the address has `src_addrlen` bytes, or is null.
    unsafe { address(info.src_addr, info.src_addrlen) }
}

/// Returns the destination address of an info.
///
/// # Safety
///
/// The info is valid as `kfabric.h` describes.
pub(super) unsafe fn dest_addr(info: &raw::kfi_info) -> Result<SockAddr> {
    // SAFETY: By this function's contract the address has `dest_addrlen` bytes, or is null.
    unsafe { address(info.dest_addr, info.dest_addrlen) }
}

/// Converts a size to the core's type. A size that does not fit becomes the maximum, which no offer
/// has.
fn size(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// Converts hints to the core's requirements.
///
/// # Errors
///
/// - `ENODATA` if no offer can match.
/// - `EINVAL` if an address is invalid, or a name is too long.
///
/// # Safety
///
/// The hints are valid as `kfabric.h` describes.
unsafe fn wanted(hints: &raw::kfi_info) -> Result<InfoEntry> {
    // SAFETY: By this function's contract each attribute is valid or null.
    let (tx, rx, ep, domain, fabric) = unsafe {
        (
            hints.tx_attr.as_ref(),
            hints.rx_attr.as_ref(),
            hints.ep_attr.as_ref(),
            hints.domain_attr.as_ref(),
            hints.fabric_attr.as_ref(),
        )
    };
    let mut want = InfoEntry {
        caps: caps_in(hints.caps).ok_or_else(enodata)?,
        mode: hints.mode,
        mr_mode: !0,
        addr_format: hints.addr_format,
        // SAFETY: By this function's contract the hints are valid.
        src_addr: unsafe { src_addr(hints)? },
        // SAFETY: By this function's contract the hints are valid.
        dest_addr: unsafe { dest_addr(hints)? },
        ..InfoEntry::default()
    };
    let order = |order: u64| order & !u64::from(ORDER) == 0;
    if let Some(tx) = tx {
        want.caps |= caps_in(tx.caps).ok_or_else(enodata)?;
        want.inject_size = tx.inject_size as u64;
        want.tx_size = size(tx.size);
        want.iov_limit = size(tx.iov_limit);
        want.rma_iov_limit = size(tx.rma_iov_limit);
        if !order(tx.msg_order) {
            return Err(enodata());
        }
    }
    if let Some(rx) = rx {
        want.caps |= caps_in(rx.caps).ok_or_else(enodata)?;
        want.rx_size = size(rx.size);
        want.iov_limit = want.iov_limit.max(size(rx.iov_limit));
        if !order(rx.msg_order) || rx.total_buffered_recv != 0 {
            return Err(enodata());
        }
    }
    if let Some(ep) = ep {
        want.ep_type = ep.type_;
        want.protocol = ep.protocol;
        want.max_msg_size = ep.max_msg_size as u64;
        if ep.auth_key_size > KFI_AUTH_KEY_MAX || ep.tx_ctx_cnt > 1 || ep.rx_ctx_cnt > 1 {
            return Err(enodata());
        }
    }
    if let Some(domain) = domain {
        // CAST: The mode is a set of bits.
        let served = domain.mr_mode as u32;
        // Kernel memory always has pages when a consumer registers it.
        want.mr_mode = uapi::KFI_MR_ALLOCATED;
        for (ours, theirs) in MR_MODES {
            if served & ours != 0 {
                want.mr_mode |= theirs;
            }
        }
        if served & raw::KFI_MR_ENDPOINT != 0 && hints.caps & uapi::KFI_EP_KEYS != 0 {
            want.caps |= uapi::KFI_EP_KEYS;
        }
        want.mr_key_size = size(domain.mr_key_size);
        want.cq_data_size = size(domain.cq_data_size);
        // SAFETY: By this function's contract the name is a terminated string, or null.
        want.domain_name = unsafe { name(domain.name)? };
        if domain.auth_key_size > KFI_AUTH_KEY_MAX {
            return Err(enodata());
        }
        if !domain.domain.is_null() {
            // Do not follow the pointer: the domain may be closed, or may never have been open.
            let open = opened::domain(domain.domain).ok_or_else(enodata)?;
            // A removed device does not return: a device that is added later makes a new domain.
            if open.is_gone() {
                return Err(enodata());
            }
            restrict(&mut want.domain_name, open.name())?;
            of_fabric(&mut want, open.fabric())?;
        }
    }
    // `KFI_LOCAL_MR` is the older form of `KFI_MR_LOCAL`.
    if hints.mode & raw::KFI_LOCAL_MR != 0 {
        want.mr_mode |= uapi::KFI_MR_LOCAL;
    }
    if let Some(fabric) = fabric {
        want.prov_version = fabric.prov_version;
        // SAFETY: By this function's contract both names are terminated strings, or null.
        unsafe {
            restrict(&mut want.prov_name, name_str(&name(fabric.prov_name)?)?)?;
            restrict(&mut want.fabric_name, name_str(&name(fabric.name)?)?)?;
        }
        if !fabric.fabric.is_null() {
            // Do not follow the pointer: the fabric may be closed, or may never have been open.
            let open = opened::fabric(fabric.fabric).ok_or_else(enodata)?;
            of_fabric(&mut want, &open)?;
        }
    }
    Ok(want)
}

/// Whether hints name an open object of kfabric itself: then no C provider has a matching offer.
///
/// # Safety
///
/// The hints are valid as `kfabric.h` describes.
unsafe fn name_ours(hints: &raw::kfi_info) -> bool {
    // SAFETY: By this function's contract each attribute is valid or null.
    let (fabric, domain) = unsafe { (hints.fabric_attr.as_ref(), hints.domain_attr.as_ref()) };
    fabric.is_some_and(|of| opened::fabric(of.fabric).is_some())
        || domain.is_some_and(|of| opened::domain(of.domain).is_some())
}

/// Restricts the requirements to the provider and the name of an open fabric.
///
/// # Errors
///
/// - `ENODATA` if the fabric is of another network namespace, or the hints name another fabric.
fn of_fabric(want: &mut InfoEntry, fabric: &Fabric) -> Result {
    if fabric.net().as_ptr() != Net::current().as_ptr() {
        return Err(enodata());
    }
    restrict(&mut want.prov_name, fabric.provider().name())?;
    restrict(&mut want.fabric_name, fabric.name())
}

/// Restricts a required name to `to`. An empty `to` is no restriction.
///
/// # Errors
///
/// - `ENODATA` if the hints require another name.
fn restrict(wanted: &mut [u8], to: &str) -> Result {
    let now = name_str(wanted)?;
    if to.is_empty() || now.eq_ignore_ascii_case(to) {
        return Ok(());
    }
    if !now.is_empty() {
        return Err(enodata());
    }
    set_name(wanted, to);
    Ok(())
}

/// A list of infos, which is freed on drop unless `give()` passes it on.
pub(super) struct List {
    first: *mut raw::kfi_info,
    last: *mut raw::kfi_info,
}

impl List {
    pub(super) const fn new() -> Self {
        Self {
            first: ptr::null_mut(),
            last: ptr::null_mut(),
        }
    }

    /// Appends a list of infos, and owns the list from then on.
    ///
    /// # Safety
    ///
    /// `list` is a list of infos that the caller owns, or null.
    pub(super) unsafe fn push(&mut self, list: *mut raw::kfi_info) {
        let mut last = list;
        // SAFETY: By this function's contract the members are infos; null ends the list.
        while let Some(info) = unsafe { last.as_ref() }.filter(|info| !info.next.is_null()) {
            last = info.next;
        }
        if list.is_null() {
            return;
        }
        if self.last.is_null() {
            self.first = list;
        } else {
            // SAFETY: `self` owns the info at its end.
            unsafe { (*self.last).next = list };
        }
        self.last = last;
    }

    /// Enters the provider's name and version into the infos where the C provider left the name
    /// empty.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if memory is exhausted.
    pub(super) fn sign(&mut self, name: &CStr, version: u32) -> Result {
        let mut next = self.first;
        // SAFETY: `self` owns the infos and their attributes; null ends the list.
        while let Some(info) = unsafe { next.as_mut() } {
            next = info.next;
            // SAFETY: The attributes are valid or null, and `self` owns them.
            let Some(fabric) = (unsafe { info.fabric_attr.as_mut() }) else {
                continue;
            };
            if fabric.prov_name.is_null() {
                fabric.prov_name = text(name.to_bytes_with_nul())?;
                fabric.prov_version = version;
                fabric.api_version = API_VERSION;
            }
        }
        Ok(())
    }

    /// Passes ownership of the list to the caller.
    pub(super) fn give(self) -> *mut raw::kfi_info {
        let first = self.first;
        core::mem::forget(self);
        first
    }

    fn is_empty(&self) -> bool {
        self.first.is_null()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: `self` owns the list.
        unsafe { raw::kfi_freeinfo(self.first) }
    }
}

/// Copies a name for C. The C code frees the copy.
fn text(name: &[u8]) -> Result<*mut c_char> {
    let name = name_str(name)?;
    // SAFETY: The name has `name.len()` bytes.
    let copy = unsafe { raw::kf_c_text(name.as_ptr(), name.len()) };
    if copy.is_null() {
        return Err(ENOMEM);
    }
    Ok(copy)
}

/// Copies an address for C, with its length. An empty address yields null.
fn copied(addr: &SockAddr) -> Result<(*mut c_void, usize)> {
    // CAST: A `u32` fits.
    let bytes = addr.data.get(..addr.len as usize).ok_or(EINVAL)?;
    if bytes.is_empty() {
        return Ok((ptr::null_mut(), 0));
    }
    // SAFETY: The slice has `bytes.len()` bytes.
    let copy = unsafe { raw::kf_c_copy(bytes.as_ptr().cast(), bytes.len()) };
    if copy.is_null() {
        return Err(ENOMEM);
    }
    Ok((copy, bytes.len()))
}

/// Copies an auth key for C. An empty key yields null.
///
/// # Safety
///
/// `bytes` has `len` bytes, or is null.
unsafe fn auth_copied(bytes: *const u8, len: usize) -> Result<(*mut u8, usize)> {
    if bytes.is_null() || len == 0 {
        return Ok((ptr::null_mut(), 0));
    }
    // SAFETY: By this function's contract `bytes` has `len` bytes; it is not null here.
    let copy: *mut u8 = unsafe { raw::kf_c_copy(bytes.cast(), len) }.cast();
    if copy.is_null() {
        return Err(ENOMEM);
    }
    Ok((copy, len))
}

/// Enters the auth key into the endpoint attributes of the list's first info.
pub(super) fn set_auth(list: &List, key: &AuthKey) -> Result {
    let bytes = key.bytes();
    // SAFETY: The slice has `bytes.len()` bytes. The list owns its infos, and each info has
    // endpoint attributes.
    unsafe {
        let copy = auth_copied(bytes.as_ptr(), bytes.len())?;
        let attr = &mut *(*list.first).ep_attr;
        (attr.auth_key, attr.auth_key_size) = copy;
    }
    Ok(())
}

/// Makes an info of an offer of the core. Operation flags and auth keys are copied from the hints.
pub(super) fn offer(entry: &InfoEntry, hints: Option<&raw::kfi_info>) -> Result<List> {
    let mut list = List::new();
    // SAFETY: `kfi_allocinfo()` has no preconditions, and the caller owns its result.
    unsafe { list.push(raw::kfi_allocinfo()) };
    // SAFETY: `first` is the info just allocated, or null.
    let info = unsafe { list.first.as_mut() }.ok_or(ENOMEM)?;
    // SAFETY: `kfi_allocinfo()` allocates all attributes, and `list` alone owns them.
    let (tx, rx, ep, domain, fabric) = unsafe {
        (
            &mut *info.tx_attr,
            &mut *info.rx_attr,
            &mut *info.ep_attr,
            &mut *info.domain_attr,
            &mut *info.fabric_attr,
        )
    };
    // SAFETY: The caller's hints are valid; each attribute is valid or null.
    let (tx_flags, rx_flags) = unsafe {
        (
            hints
                .and_then(|hints| hints.tx_attr.as_ref())
                .map_or(0, |tx| tx.op_flags),
            hints
                .and_then(|hints| hints.rx_attr.as_ref())
                .map_or(0, |rx| rx.op_flags),
        )
    };
    // SAFETY: The caller's hints are valid; each auth key has as many bytes as its size states.
    unsafe {
        if let Some(of) = hints.and_then(|hints| hints.ep_attr.as_ref()) {
            (ep.auth_key, ep.auth_key_size) = auth_copied(of.auth_key, of.auth_key_size)?;
        }
        // Name the open objects of the hints: the offer was found for them.
        if let Some(of) = hints.and_then(|hints| hints.fabric_attr.as_ref()) {
            fabric.fabric = of.fabric;
        }
        if let Some(of) = hints.and_then(|hints| hints.domain_attr.as_ref()) {
            domain.domain = of.domain;
            (domain.auth_key, domain.auth_key_size) = auth_copied(of.auth_key, of.auth_key_size)?;
        }
    }
    info.caps = caps_out(entry.caps);
    info.mode = entry.mode;
    info.addr_format = entry.addr_format;
    (info.src_addr, info.src_addrlen) = copied(&entry.src_addr)?;
    (info.dest_addr, info.dest_addrlen) = copied(&entry.dest_addr)?;
    // CAST: The platform is 64-bit, here and below.
    *tx = raw::kfi_tx_attr {
        caps: info.caps & !u64::from(raw::KFI_RECV),
        op_flags: tx_flags,
        msg_order: u64::from(ORDER),
        comp_order: u64::from(raw::KFI_ORDER_STRICT),
        inject_size: entry.inject_size as usize,
        size: entry.tx_size as usize,
        iov_limit: entry.iov_limit as usize,
        rma_iov_limit: entry.rma_iov_limit as usize,
        mode: 0,
        tclass: 0,
    };
    *rx = raw::kfi_rx_attr {
        caps: info.caps & !u64::from(raw::KFI_SEND | raw::KFI_READ | raw::KFI_WRITE),
        op_flags: rx_flags,
        msg_order: u64::from(ORDER),
        comp_order: u64::from(raw::KFI_ORDER_STRICT),
        size: entry.rx_size as usize,
        iov_limit: entry.iov_limit as usize,
        mode: 0,
        total_buffered_recv: 0,
    };
    ep.type_ = entry.ep_type;
    ep.protocol = entry.protocol;
    ep.protocol_version = 1;
    ep.max_msg_size = entry.max_msg_size as usize;
    ep.max_order_raw_size = ep.max_msg_size;
    ep.max_order_waw_size = ep.max_msg_size;
    ep.tx_ctx_cnt = 1;
    ep.rx_ctx_cnt = 1;
    domain.name = text(&entry.domain_name)?;
    domain.threading = raw::kfi_threading_KFI_THREAD_SAFE;
    domain.control_progress = raw::kfi_progress_KFI_PROGRESS_AUTO;
    domain.data_progress = raw::kfi_progress_KFI_PROGRESS_AUTO;
    domain.resource_mgmt = raw::kfi_resource_mgmt_KFI_RM_ENABLED;
    for (ours, theirs) in MR_MODES {
        if entry.mr_mode & theirs != 0 {
            // CAST: Each mode is one bit.
            domain.mr_mode |= ours as c_int;
        }
    }
    domain.mr_key_size = entry.mr_key_size as usize;
    domain.cq_data_size = entry.cq_data_size as usize;
    domain.max_ep_tx_ctx = 1;
    domain.max_ep_rx_ctx = 1;
    // CAST: The platform is 64-bit.
    domain.mr_iov_limit = c_int::MAX as usize;
    domain.caps = info.caps & (raw::KFI_LOCAL_COMM | raw::KFI_REMOTE_COMM);
    domain.max_err_data = uapi::KFI_CM_DATA_MAX;
    fabric.name = text(&entry.fabric_name)?;
    fabric.prov_name = text(&entry.prov_name)?;
    fabric.prov_version = entry.prov_version;
    fabric.api_version = API_VERSION;
    Ok(list)
}

/// Enters the caller's open fabric and open domain of the same names into an offer.
fn name_instances(list: &List, entry: &InfoEntry, user: User, net: &Net) -> Result {
    let names = (
        name_str(&entry.prov_name)?,
        name_str(&entry.fabric_name)?,
        name_str(&entry.domain_name)?,
    );
    // SAFETY: The list owns its infos, and each has these attributes. No other task has a pointer
    // yet.
    let (fabric, domain) = unsafe {
        let info = &mut *list.first;
        (&mut *info.fabric_attr, &mut *info.domain_attr)
    };
    let given = Instances {
        fabric: fabric.fabric,
        domain: domain.domain,
    };
    let found = opened::instances(given, user, net, names);
    (fabric.fabric, domain.domain) = (found.fabric, found.domain);
    Ok(())
}

/// Appends the offers of the core's providers to `list`.
///
/// # Safety
///
/// The contract is that of `kfi_getinfo()`.
unsafe fn of_core(
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: Option<&raw::kfi_info>,
    user: User,
    list: &mut List,
) -> Result {
    let net = Net::current();
    let mut want = match hints {
        // SAFETY: By this function's contract the hints are valid.
        Some(hints) => unsafe { wanted(hints)? },
        None => InfoEntry {
            mode: !0,
            mr_mode: !0,
            ..InfoEntry::default()
        },
    };
    if !node.is_null() || !service.is_null() {
        let mut addr = SockAddr::default();
        // SAFETY: The buffer has room for both families; both strings are terminated, or null.
        kernel::error::to_result(unsafe {
            raw::kf_c_address(
                net.as_ptr(),
                node,
                service,
                addr.data.as_mut_ptr(),
                &mut addr.len,
            )
        })
        // If the node or the service is no numeric address, no offer matches.
        .map_err(|_| enodata())?;
        if flags & raw::KFI_SOURCE != 0 {
            want.src_addr = addr;
        } else {
            want.dest_addr = addr;
        }
    }
    let port = match want.src_addr.len {
        0 => [0; 2],
        _ => [want.src_addr.data[2], want.src_addr.data[3]],
    };
    for mut entry in registry::getinfo(&net, Some(&want))? {
        if port != [0; 2] && entry.src_addr.len != 0 {
            entry.src_addr.data[2..4].copy_from_slice(&port);
        }
        let made = offer(&entry, hints)?;
        name_instances(&made, &entry, user, &net)?;
        // SAFETY: `give()` passes ownership of the list.
        unsafe { list.push(made.give()) };
    }
    Ok(())
}

/// Implements `kfi_getinfo()`. `user` is the calling module, or null.
///
/// # Safety
///
/// The contract is that of `kfi_getinfo()` in `kfabric.h`.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_getinfo(
    user: *mut bindings::module,
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const raw::kfi_info,
    info: *mut *mut raw::kfi_info,
) -> c_int {
    let all = || -> Result<List> {
        if info.is_null() {
            return Err(EINVAL);
        }
        if version > API_VERSION {
            return Err(enosys());
        }
        let mut list = List::new();
        let known = raw::KFI_SOURCE | raw::KFI_NUMERICHOST | raw::KFI_PROV_ATTR_ONLY;
        // SAFETY: By this function's contract the hints are valid, or null.
        let ours = match unsafe { hints.as_ref() } {
            _ if flags & !known != 0 => Err(EINVAL),
            // SAFETY: By this function's contract, which is that of `kfi_getinfo()`.
            hints => unsafe { of_core(node, service, flags, hints, User(user), &mut list) },
        };
        // A C provider interprets addresses and flags itself.
        // SAFETY: By this function's contract, which is that of `kfi_getinfo()`.
        unsafe {
            if !hints.as_ref().is_some_and(|hints| name_ours(hints)) {
                prov::getinfo(version, node, service, flags, hints, &mut list)?;
            }
        }
        match ours {
            Err(e) if e == ENOMEM || list.is_empty() => Err(e),
            _ => Ok(list),
        }
    };
    code(all().map(|list| {
        // SAFETY: `info` is not null here: the caller passes a valid place.
        unsafe { *info = list.give() }
    }))
}

crate::same_prototype!(raw: kf_c_getinfo);
