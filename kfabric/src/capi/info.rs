// SPDX-License-Identifier: GPL-2.0
//! `kfi_getinfo()`: hints and offers, between the C structures and the core's.
//!
//! Values that differ between the published kfi API and libfabric, whose the core has, are
//! translated here and nowhere else.

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
    errno::enodata,
    fabric::Fabric,
    net::Net,
    object::{
        name_str,
        set_name, //
    },
    registry,
    uapi::{
        self,
        InfoEntry,
        SockAddr,
        KFI_AUTH_KEY_MAX, //
    },
};

/// `KFI_VERSION(1, 7)`.
pub(super) const API_VERSION: u32 = (raw::KFI_MAJOR_VERSION << 16) | raw::KFI_MINOR_VERSION;

/// Capabilities and flags that have another value here: the C API's, the core's.
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
    | uapi::KFI_EP_KEYS;

/// Registration modes: the C API's, the core's.
const MR_MODES: [(u32, u64); 3] = [
    (raw::KFI_MR_LOCAL, uapi::KFI_MR_LOCAL),
    (raw::KFI_MR_VIRT_ADDR, uapi::KFI_MR_VIRT_ADDR),
    (raw::KFI_MR_PROV_KEY, uapi::KFI_MR_PROV_KEY),
];

/// What stays in order on a reliable connection.
const ORDER: u32 = raw::KFI_ORDER_RAR
    | raw::KFI_ORDER_RAW
    | raw::KFI_ORDER_RAS
    | raw::KFI_ORDER_WAW
    | raw::KFI_ORDER_WAS
    | raw::KFI_ORDER_SAW
    | raw::KFI_ORDER_SAS;

// The rest of what is passed on as it is.
const _: () = {
    assert!(raw::KFI_MSG as u64 == uapi::KFI_MSG && raw::KFI_RMA as u64 == uapi::KFI_RMA);
    assert!(raw::KFI_READ as u64 == uapi::KFI_READ && raw::KFI_WRITE as u64 == uapi::KFI_WRITE);
    assert!(raw::KFI_SEND as u64 == uapi::KFI_SEND && raw::KFI_RECV as u64 == uapi::KFI_RECV);
    assert!(raw::KFI_REMOTE_READ as u64 == uapi::KFI_REMOTE_READ);
    assert!(raw::KFI_REMOTE_WRITE as u64 == uapi::KFI_REMOTE_WRITE);
    assert!(raw::KFI_REMOTE_CQ_DATA as u64 == uapi::KFI_REMOTE_CQ_DATA);
    assert!(raw::KFI_COMPLETION as u64 == uapi::KFI_COMPLETION);
    assert!(raw::KFI_INJECT as u64 == uapi::KFI_INJECT);
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

/// Bytes of the longest socket address: of a `sockaddr_storage`.
const ADDR_MAX: usize = 128;

/// Capabilities for the core; none: there is nothing that has them.
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

/// The bytes of a C address.
///
/// # Errors
///
/// `EINVAL`: longer than any.
///
/// # Safety
///
/// `addr` has `len` bytes, or is null.
unsafe fn address(addr: *const c_void, len: usize) -> Result<SockAddr> {
    let mut found = SockAddr::default();
    if addr.is_null() || len == 0 {
        return Ok(found);
    }
    // A `sockaddr_storage` is as good as what is in it, and no address is longer.
    let len = len.min(ADDR_MAX);
    // SAFETY: The caller's promise.
    let bytes = unsafe { core::slice::from_raw_parts(addr.cast::<u8>(), len) };
    let family = bytes.first_chunk().copied().map(u16::from_ne_bytes);
    let len = match family.map(u32::from) {
        Some(kernel::bindings::AF_INET) => 16,
        Some(kernel::bindings::AF_INET6) => 28,
        _ => return Err(EINVAL),
    };
    found.data[..len].copy_from_slice(bytes.get(..len).ok_or(EINVAL)?);
    // CAST: As just chosen.
    found.len = len as u32;
    Ok(found)
}

/// The address that a call is given with its length.
///
/// # Errors
///
/// `EINVAL`: null, shorter than its family says, or neither IPv4 nor IPv6.
///
/// # Safety
///
/// `addr` has `len` bytes, or is null.
pub(super) unsafe fn given_addr(addr: *const c_void, len: usize) -> Result<SockAddr> {
    // SAFETY: The caller's promise.
    let found = unsafe { address(addr, len)? };
    match found.len {
        0 => Err(EINVAL),
        _ => Ok(found),
    }
}

/// An address whose length its family says: that of a call that is given no length.
///
/// # Errors
///
/// `EINVAL`: null, or neither IPv4 nor IPv6.
///
/// # Safety
///
/// `addr` is a socket address, or null.
pub(super) unsafe fn sockaddr(addr: *const c_void) -> Result<SockAddr> {
    if addr.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: Every socket address begins with its family.
    let family = u32::from(unsafe { addr.cast::<u16>().read_unaligned() });
    let len = match family {
        kernel::bindings::AF_INET => 16,
        kernel::bindings::AF_INET6 => 28,
        _ => return Err(EINVAL),
    };
    // SAFETY: An address of that family has as many bytes.
    unsafe { address(addr, len) }
}

/// Own address of an info.
///
/// # Safety
///
/// The info is as the header says.
pub(super) unsafe fn src_addr(info: &raw::kfi_info) -> Result<SockAddr> {
    // SAFETY: The caller's promise.
    unsafe { address(info.src_addr, info.src_addrlen) }
}

/// The peer's address of an info.
///
/// # Safety
///
/// The info is as the header says.
pub(super) unsafe fn dest_addr(info: &raw::kfi_info) -> Result<SockAddr> {
    // SAFETY: The caller's promise.
    unsafe { address(info.dest_addr, info.dest_addrlen) }
}

/// As the size of something in the core; what is larger matches nothing.
fn size(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// What the hints want.
///
/// # Errors
///
/// `ENODATA`: what nothing has. `EINVAL`: no address, or a name that is too long.
///
/// # Safety
///
/// The hints are as the header says.
unsafe fn wanted(hints: &raw::kfi_info) -> Result<InfoEntry> {
    // SAFETY: Attributes are there, or null.
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
        // SAFETY: The caller's promise.
        src_addr: unsafe { src_addr(hints)? },
        // SAFETY: As above.
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
        // CAST: Bits.
        let served = domain.mr_mode as u32;
        // The kernel's memory has pages when it is registered.
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
        // SAFETY: A text or null.
        want.domain_name = unsafe { name(domain.name)? };
        if domain.auth_key_size > KFI_AUTH_KEY_MAX {
            return Err(enodata());
        }
        if !domain.domain.is_null() {
            // One that was closed, or never was, is not followed.
            let open = opened::domain(domain.domain).ok_or_else(enodata)?;
            // A device that comes back is another one.
            if open.is_gone() {
                return Err(enodata());
            }
            restrict(&mut want.domain_name, open.name())?;
            of_fabric(&mut want, open.fabric())?;
        }
    }
    // As it was said before there were modes of registration.
    if hints.mode & raw::KFI_LOCAL_MR != 0 {
        want.mr_mode |= uapi::KFI_MR_LOCAL;
    }
    if let Some(fabric) = fabric {
        want.prov_version = fabric.prov_version;
        // SAFETY: Texts or null.
        unsafe {
            restrict(&mut want.prov_name, name_str(&name(fabric.prov_name)?)?)?;
            restrict(&mut want.fabric_name, name_str(&name(fabric.name)?)?)?;
        }
        if !fabric.fabric.is_null() {
            // As above.
            let open = opened::fabric(fabric.fabric).ok_or_else(enodata)?;
            of_fabric(&mut want, &open)?;
        }
    }
    Ok(want)
}

/// Whether hints name an open object of ours: then nobody else has what they want.
///
/// # Safety
///
/// Hints are as the header says.
unsafe fn name_ours(hints: &raw::kfi_info) -> bool {
    // SAFETY: Attributes, or null.
    let (fabric, domain) = unsafe { (hints.fabric_attr.as_ref(), hints.domain_attr.as_ref()) };
    fabric.is_some_and(|of| opened::fabric(of.fabric).is_some())
        || domain.is_some_and(|of| opened::domain(of.domain).is_some())
}

/// Wants what an open fabric is of.
///
/// # Errors
///
/// `ENODATA`: another one is wanted.
fn of_fabric(want: &mut InfoEntry, fabric: &Fabric) -> Result {
    if fabric.net().as_ptr() != Net::current().as_ptr() {
        return Err(enodata());
    }
    restrict(&mut want.prov_name, fabric.provider().name())?;
    restrict(&mut want.fabric_name, fabric.name())
}

/// Wants just this name; the empty one is any.
///
/// # Errors
///
/// `ENODATA`: another one is wanted.
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

/// A list of infos, ours until it is given away.
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

    /// Appends a list.
    ///
    /// # Safety
    ///
    /// `list` is one, and the caller's to give away, or null.
    pub(super) unsafe fn push(&mut self, list: *mut raw::kfi_info) {
        let mut last = list;
        // SAFETY: Members of a list that ends with null.
        while let Some(info) = unsafe { last.as_ref() }.filter(|info| !info.next.is_null()) {
            last = info.next;
        }
        if list.is_null() {
            return;
        }
        if self.last.is_null() {
            self.first = list;
        } else {
            // SAFETY: The last of ours.
            unsafe { (*self.last).next = list };
        }
        self.last = last;
    }

    /// Says whose infos these are, where a provider in C has left that out.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn sign(&mut self, name: &CStr, version: u32) -> Result {
        let mut next = self.first;
        // SAFETY: Members of a list of ours that ends with null, and their attributes, which nobody else
        // knows.
        while let Some(info) = unsafe { next.as_mut() } {
            next = info.next;
            // SAFETY: As above.
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

    /// Gives it away.
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
        // SAFETY: Ours.
        unsafe { raw::kfi_freeinfo(self.first) }
    }
}

/// A copy of a name for C.
fn text(name: &[u8]) -> Result<*mut c_char> {
    let name = name_str(name)?;
    // SAFETY: As many bytes as are said.
    let copy = unsafe { raw::kf_c_text(name.as_ptr(), name.len()) };
    if copy.is_null() {
        return Err(ENOMEM);
    }
    Ok(copy)
}

/// A copy of an address for C, and its length; null for none.
fn copied(addr: &SockAddr) -> Result<(*mut c_void, usize)> {
    // CAST: A `u32` fits.
    let bytes = addr.data.get(..addr.len as usize).ok_or(EINVAL)?;
    if bytes.is_empty() {
        return Ok((ptr::null_mut(), 0));
    }
    // SAFETY: As many bytes as are said.
    let copy = unsafe { raw::kf_c_copy(bytes.as_ptr().cast(), bytes.len()) };
    if copy.is_null() {
        return Err(ENOMEM);
    }
    Ok((copy, bytes.len()))
}

/// A copy of an auth key for C; null for none.
///
/// # Safety
///
/// `bytes` has `len` bytes, or is null.
unsafe fn auth_copied(bytes: *const u8, len: usize) -> Result<(*mut u8, usize)> {
    if bytes.is_null() || len == 0 {
        return Ok((ptr::null_mut(), 0));
    }
    // SAFETY: The caller's promise.
    let copy: *mut u8 = unsafe { raw::kf_c_copy(bytes.cast(), len) }.cast();
    if copy.is_null() {
        return Err(ENOMEM);
    }
    Ok((copy, len))
}

/// Has an info say under which auth key an endpoint is opened with it.
pub(super) fn set_auth(list: &List, key: &AuthKey) -> Result {
    let bytes = key.bytes();
    // SAFETY: As many bytes as there are; an info of ours has attributes of endpoints, which are the
    // caller's alone.
    unsafe {
        let copy = auth_copied(bytes.as_ptr(), bytes.len())?;
        let attr = &mut *(*list.first).ep_attr;
        (attr.auth_key, attr.auth_key_size) = copy;
    }
    Ok(())
}

/// An offer of the core's as an info. Flags of operations, and auth keys, are as the hints have them.
pub(super) fn offer(entry: &InfoEntry, hints: Option<&raw::kfi_info>) -> Result<List> {
    let mut list = List::new();
    // SAFETY: No preconditions; what it returns is ours.
    unsafe { list.push(raw::kfi_allocinfo()) };
    // SAFETY: The info, with all its attributes, or null.
    let info = unsafe { list.first.as_mut() }.ok_or(ENOMEM)?;
    // SAFETY: As above, and nobody else knows them.
    let (tx, rx, ep, domain, fabric) = unsafe {
        (
            &mut *info.tx_attr,
            &mut *info.rx_attr,
            &mut *info.ep_attr,
            &mut *info.domain_attr,
            &mut *info.fabric_attr,
        )
    };
    // SAFETY: Hints are as the header says.
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
    // SAFETY: As above, and as many bytes as they say.
    unsafe {
        if let Some(of) = hints.and_then(|hints| hints.ep_attr.as_ref()) {
            (ep.auth_key, ep.auth_key_size) = auth_copied(of.auth_key, of.auth_key_size)?;
        }
        // The open objects that this was found for.
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
            // CAST: A bit each.
            domain.mr_mode |= ours as c_int;
        }
    }
    domain.mr_key_size = entry.mr_key_size as usize;
    domain.cq_data_size = entry.cq_data_size as usize;
    domain.max_ep_tx_ctx = 1;
    domain.max_ep_rx_ctx = 1;
    // CAST: As above.
    domain.mr_iov_limit = c_int::MAX as usize;
    domain.caps = info.caps & (raw::KFI_LOCAL_COMM | raw::KFI_REMOTE_COMM);
    domain.max_err_data = uapi::KFI_CM_DATA_MAX;
    fabric.name = text(&entry.fabric_name)?;
    fabric.prov_name = text(&entry.prov_name)?;
    fabric.prov_version = entry.prov_version;
    fabric.api_version = API_VERSION;
    Ok(list)
}

/// Has an offer name the objects that are open of what it offers.
fn name_instances(list: &List, entry: &InfoEntry, user: User, net: &Net) -> Result {
    let names = (
        name_str(&entry.prov_name)?,
        name_str(&entry.fabric_name)?,
        name_str(&entry.domain_name)?,
    );
    // SAFETY: An info of ours has these attributes, which nobody else knows of yet.
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

/// What the core's providers have.
///
/// # Safety
///
/// All is as the header says.
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
        // SAFETY: The caller's promise.
        Some(hints) => unsafe { wanted(hints)? },
        None => InfoEntry {
            mode: !0,
            mr_mode: !0,
            ..InfoEntry::default()
        },
    };
    if !node.is_null() || !service.is_null() {
        let mut addr = SockAddr::default();
        // SAFETY: The address has room for either family; the texts are such, or null.
        kernel::error::to_result(unsafe {
            raw::kf_c_address(
                net.as_ptr(),
                node,
                service,
                addr.data.as_mut_ptr(),
                &mut addr.len,
            )
        })
        // A name that is no address names nothing here.
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
        // SAFETY: The list is ours to give away.
        unsafe { list.push(made.give()) };
    }
    Ok(())
}

/// See `kfi_getinfo()`. `user`: the module that calls, or null.
///
/// # Safety
///
/// As the header says.
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
        // SAFETY: The caller's promise.
        let ours = match unsafe { hints.as_ref() } {
            _ if flags & !known != 0 => Err(EINVAL),
            // SAFETY: The caller's promise.
            hints => unsafe { of_core(node, service, flags, hints, User(user), &mut list) },
        };
        // A provider in C reads addresses and flags by itself.
        // SAFETY: The caller's promise.
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
        // SAFETY: The caller's place.
        unsafe { *info = list.give() }
    }))
}
