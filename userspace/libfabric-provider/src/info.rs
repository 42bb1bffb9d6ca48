// SPDX-License-Identifier: MIT OR Apache-2.0
//! `fi_getinfo`: the kernel's offers, checked against hints.

mod names;

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::net::SocketAddr;
use std::path::Path;
use std::ptr::null_mut;

use kfabric::uapi as abi;
use kfabric::{Device, Info};

use crate::domain::Domain;
use crate::error::Errno;
use crate::fabric::Fabric;
use crate::{addr, ffi::*, object, version};
use names::{by_domain, is_link_local, skip_link_local};

/// Bytes of each part of an info: more than the part has in any version of libfabric.
const PART: usize = 512;
/// Bits of the kernel's capabilities that have libfabric's meaning.
const CAPS: u64 = abi::KFI_MSG
    | abi::KFI_RMA
    | abi::KFI_ATOMIC
    | abi::KFI_READ
    | abi::KFI_WRITE
    | abi::KFI_RECV
    | abi::KFI_SEND
    | abi::KFI_REMOTE_READ
    | abi::KFI_REMOTE_WRITE
    | abi::KFI_RMA_PMEM;
/// Capabilities that the kernel knows by other values than libfabric.
const COMM: [(u64, u64); 2] = [
    (abi::KFI_LOCAL_COMM, FI_LOCAL_COMM),
    (abi::KFI_REMOTE_COMM, FI_REMOTE_COMM),
];
/// Registration modes that programs must support.
const MR_MODE: u64 =
    abi::KFI_MR_LOCAL | abi::KFI_MR_VIRT_ADDR | abi::KFI_MR_ALLOCATED | abi::KFI_MR_PROV_KEY;
/// Send after send, after write; write after write; read after everything (`FI_ORDER_*`).
const ORDER: u64 = 0x1
    | 0x2
    | 0x10
    | 0x80
    | 0x100
    | 0x4
    | 0x20
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAW;
/// Read after send, and write after send: rings do not keep these orders. A one-sided operation is
/// executed while an earlier message may still be in the ring.
pub(crate) const AFTER_SEND: u64 = 0x4 | 0x20;
/// Orders of completions that a queue pair keeps: all operations of a side complete in the order of
/// their posts (`FI_ORDER_STRICT`, `FI_ORDER_DATA`).
const COMPLETION_ORDER: u64 = 0x1ff | 1 << 16;
/// The mode of programs before version 1.5 that FI_MR_LOCAL has replaced (`FI_LOCAL_MR`).
const LOCAL_MR: u64 = 1 << 55;
/// The registration mode of programs before version 1.5 that has [`MR_MODE`]'s meaning
/// (`FI_MR_BASIC`).
const MR_BASIC: c_int = 1;
/// Operation flags of transmit operations.
const TX_FLAGS: u64 =
    (FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_COMPLETION) as u64;
/// Objects of each kind that a domain is said to have.
const COUNT: usize = 256;
/// Regions that a domain is said to have.
const MR_COUNT: usize = 65_536;

/// Parts that hints name; `None` for a part that is missing.
pub(crate) struct Hints<'a> {
    pub(crate) info: &'a fi_info,
    pub(crate) tx: Option<&'a fi_tx_attr>,
    pub(crate) rx: Option<&'a fi_rx_attr>,
    pub(crate) ep: Option<&'a fi_ep_attr>,
    pub(crate) domain: Option<&'a fi_domain_attr>,
    pub(crate) fabric: Option<&'a fi_fabric_attr>,
}

/// The fabric's name in libfabric: the kernel provider, then the kernel's name.
fn fabric_name(offer: &Info) -> String {
    format!("{}/{}", offer.provider(), offer.fabric())
}

/// The capabilities of an offer, by libfabric's values. All providers know fences.
fn capabilities(entry: &abi::InfoEntry) -> u64 {
    let comm = COMM.iter().filter(|(kernel, _)| entry.caps & kernel != 0);
    comm.fold(entry.caps & CAPS | u64::from(FI_FENCE), |all, (_, ours)| {
        all | ours
    })
}

/// The protocol of an offer, by libfabric's number.
fn protocol(entry: &abi::InfoEntry) -> u32 {
    match entry.protocol {
        abi::KFI_PROTO_SHM => FI_PROTO_SHM,
        other => other,
    }
}

/// The orders of completions that an offer keeps.
fn completion_order(entry: &abi::InfoEntry) -> u64 {
    match entry.protocol {
        abi::KFI_PROTO_RDMA_CM_IB_RC => COMPLETION_ORDER,
        _ => 0,
    }
}

/// The flags that transmit operations of an offer can have by default.
fn transmit_flags(entry: &abi::InfoEntry) -> u64 {
    match entry.visible {
        abi::KFI_REACH_NO => TX_FLAGS,
        _ => TX_FLAGS | u64::from(FI_DELIVERY_COMPLETE),
    }
}

/// Whether endpoints of an offer ask for rings: within a host, for a program that wants them
/// ([`crate::wants_rings`]) and needs no order that rings do not keep.
fn has_rings(entry: &abi::InfoEntry, hints: Option<&Hints<'_>>) -> bool {
    let domain = hints.and_then(|h| h.domain);
    // SAFETY: the union has but one type.
    let progress = domain.map_or(FI_PROGRESS_UNSPEC, |d| unsafe {
        d.__bindgen_anon_1.data_progress
    });
    let orders = [
        hints.and_then(|h| h.tx).map_or(0, |tx| tx.msg_order),
        hints.and_then(|h| h.rx).map_or(0, |rx| rx.msg_order),
    ];
    entry.protocol == abi::KFI_PROTO_SHM
        && crate::wants_rings(progress)
        && orders.iter().all(|order| order & AFTER_SEND == 0)
}

/// Kinds of operations, and the directions of each side.
const KINDS: u64 = abi::KFI_MSG | abi::KFI_RMA | abi::KFI_ATOMIC;
const TRANSMITS: u64 = abi::KFI_SEND | abi::KFI_READ | abi::KFI_WRITE;
const RECEIVES: u64 = abi::KFI_RECV | abi::KFI_REMOTE_READ | abi::KFI_REMOTE_WRITE;
/// Capabilities that apply to the attributes of each side. libfabric ignores there those of the other
/// side (`ofi_check_tx_attr()`, `ofi_check_rx_attr()`).
const TX_CAPS: u64 = KINDS | TRANSMITS | FI_FENCE as u64;
const RX_CAPS: u64 = KINDS | RECEIVES;

/// Adds the directions of the kinds that have none: such a kind means all of its directions.
pub(crate) fn with_directions(mut caps: u64) -> u64 {
    let msg = abi::KFI_SEND | abi::KFI_RECV;
    let rma = (TRANSMITS | RECEIVES) & !msg;
    let given = caps;
    if given & abi::KFI_MSG != 0 && given & msg == 0 {
        caps |= msg;
    }
    if given & (abi::KFI_RMA | abi::KFI_ATOMIC) != 0 && given & rma == 0 {
        caps |= rma;
    }
    caps
}

/// Whether the capabilities of a side are among those of the info, as `fi_endpoint(3)` demands.
fn is_subset(side: u64, of: u64) -> bool {
    of == 0 || side & !with_directions(of) == 0
}

/// The capabilities of a side in an answer: those of the info, or fewer if the hints name fewer.
fn side_caps(hinted: Option<u64>, caps: u64, of_side: u64) -> u64 {
    match hinted.unwrap_or(0) & of_side {
        0 => caps & of_side,
        fewer => with_directions(fewer) & caps & of_side,
    }
}

/// The modes that a program supports on a side: those of the side if it names any, else the info's.
fn side_mode(side: Option<u64>, info: u64) -> u64 {
    match side {
        None | Some(0) => info,
        Some(side) => side,
    }
}

impl Hints<'_> {
    fn tx_mode(&self) -> u64 {
        side_mode(self.tx.map(|tx| tx.mode), self.info.mode)
    }

    fn rx_mode(&self) -> u64 {
        side_mode(self.rx.map(|rx| rx.mode), self.info.mode)
    }

    /// Whether the hints ask for peers' access to memory. Those without capabilities may ask for it by
    /// the receiving side's.
    fn is_target(&self) -> bool {
        is_target(match self.info.caps {
            0 => self.rx.map_or(0, |rx| rx.caps),
            caps => caps,
        })
    }
}

/// Whether peers may reach the memory of an endpoint with these capabilities: libfabric's rule
/// (`ofi_rma_target_allowed()`).
fn is_target(caps: u64) -> bool {
    let remote = abi::KFI_REMOTE_READ | abi::KFI_REMOTE_WRITE;
    caps & (abi::KFI_RMA | abi::KFI_ATOMIC) != 0 && with_directions(caps) & remote != 0
}

/// Whether hints ask for access to a peer's memory, or for no capabilities, which are all.
fn wants_rma(caps: u64) -> bool {
    let remote = abi::KFI_REMOTE_READ | abi::KFI_REMOTE_WRITE;
    caps == 0 || caps & (abi::KFI_RMA | abi::KFI_ATOMIC | remote) != 0
}

/// Returns the size of completion data under hints. A write with data takes a receive, so a program
/// that writes must have the mode for this.
fn data_size(entry: &abi::InfoEntry, hints: Option<&Hints<'_>>) -> usize {
    match hints {
        Some(h) if h.rx_mode() & FI_RX_CQ_DATA != 0 || !wants_rma(h.info.caps) => {
            entry.cq_data_size as usize
        }
        _ => 0,
    }
}

/// Whether a registration mode is FI_MR_BASIC, which says nothing about local memory.
fn is_basic(mode: c_int) -> bool {
    mode & !(abi::KFI_MR_LOCAL as c_int) == MR_BASIC
}

/// The registration mode of an answer: as few bits as hints need.
fn mr_mode(hints: Option<&Hints<'_>>, version: u32) -> c_int {
    let asked = hints.and_then(|h| h.domain).map_or(0, |d| d.mr_mode);
    if version < (1 << 16 | 5) {
        return MR_BASIC;
    }
    if is_basic(asked) {
        return asked;
    }
    match hints {
        Some(h) if !h.is_target() => MR_MODE as c_int & asked,
        _ => MR_MODE as c_int,
    }
}

/// The capabilities of an answer to hints without any: all, or those that need no registration modes
/// beyond the answer's.
fn default_caps(all: u64, registration: c_int) -> u64 {
    match is_basic(registration) || MR_MODE & !(registration as u64) == 0 {
        true => all,
        false => all & !(abi::KFI_REMOTE_READ | abi::KFI_REMOTE_WRITE),
    }
}

/// Whether hints name an object, or none. libfabric's providers ignore the case, too.
unsafe fn matches_name(wanted: *const c_char, name: &str) -> bool {
    // SAFETY: hints hold C strings or null.
    wanted.is_null()
        || unsafe { CStr::from_ptr(wanted) }
            .to_bytes()
            .eq_ignore_ascii_case(name.as_bytes())
}

/// Checks whether an offer satisfies hints.
unsafe fn satisfies(offer: &Info, hints: &Hints<'_>, version: u32) -> bool {
    let entry = offer.raw();
    let caps = capabilities(entry);
    let info = hints.info;
    if info.caps & !caps != 0 {
        return false;
    }
    let format = match offer.source() {
        None => info.addr_format,
        Some(source) => addr::format(&source),
    };
    if !matches!(
        info.addr_format,
        0 | FI_SOCKADDR | FI_SOCKADDR_IN | FI_SOCKADDR_IN6
    ) || info.addr_format > FI_SOCKADDR && info.addr_format != format
    {
        return false;
    }
    let order = completion_order(entry);
    if let Some(ep) = hints.ep {
        let over = |max: usize| max as u64 > crate::max_msg_size(entry.max_msg_size);
        let ordered = info.caps & (abi::KFI_RMA | abi::KFI_ATOMIC) != 0;
        if !matches!(ep.type_, FI_EP_UNSPEC | FI_EP_MSG)
            || ep.protocol != 0 && ep.protocol != protocol(entry)
            || ep.protocol_version > 1
            || over(ep.max_msg_size)
            || ep.tx_ctx_cnt > 1
            || ep.rx_ctx_cnt > 1
            || ep.auth_key_size > abi::KFI_AUTH_KEY_MAX
            || ordered
                && (over(ep.max_order_raw_size)
                    || over(ep.max_order_waw_size)
                    || ep.max_order_war_size > 0)
        {
            return false;
        }
    }
    if let Some(tx) = hints.tx {
        if tx.caps & !caps != 0
            || !is_subset(tx.caps & TX_CAPS, info.caps)
            || tx.op_flags & !transmit_flags(entry) != 0
            || tx.msg_order & !ORDER != 0
            || tx.comp_order & !order != 0
            || tx.inject_size as u64 > entry.inject_size
            || tx.size > entry.tx_size as usize
            || tx.iov_limit > entry.iov_limit as usize
            || tx.rma_iov_limit > entry.rma_iov_limit as usize
        {
            return false;
        }
    }
    if let Some(rx) = hints.rx {
        if rx.caps & !caps != 0
            || !is_subset(rx.caps & RX_CAPS, info.caps)
            || rx.op_flags & !u64::from(FI_COMPLETION) != 0
            || rx.msg_order & !ORDER != 0
            || rx.comp_order & !order != 0
            || rx.total_buffered_recv > 0
            || rx.size > entry.rx_size as usize
            || rx.iov_limit > entry.iov_limit as usize
        {
            return false;
        }
    }
    if let Some(domain) = hints.domain {
        // With peers' access to memory all modes are needed, else only FI_MR_LOCAL.
        let mode = domain.mr_mode as u64;
        let needed = match hints.is_target() {
            true => MR_MODE,
            false => abi::KFI_MR_LOCAL,
        };
        let local = hints.tx_mode() & hints.rx_mode() & LOCAL_MR != 0;
        let fits = if version < (1 << 16 | 5) {
            // Unspecified or basic, which has these modes except FI_MR_LOCAL.
            matches!(domain.mr_mode, 0 | MR_BASIC) && local
        } else if is_basic(domain.mr_mode) {
            local || mode & abi::KFI_MR_LOCAL != 0
        } else {
            needed & !mode == 0
        };
        if !fits
            || domain.cq_data_size > data_size(entry, Some(hints))
            || domain.caps & !caps != 0
            || domain.cntr_cnt > COUNT
            || domain.mr_cnt > MR_COUNT
            || domain.mr_iov_limit > 1
            || domain.max_err_data > 0
            // The domain needs no mode, so any will do. So will limits of counters (`COUNTER_LIMITS`), and
            // the numbers that libfabric's check (`ofi_check_domain_attr()`) does not refuse either: hints
            // may be a copy of another provider's info.
            || domain.auth_key_size > abi::KFI_AUTH_KEY_MAX
        {
            return false;
        }
        // SAFETY: null or an open domain.
        let open = unsafe { object::body_of_class::<Domain>(domain.domain.cast()) };
        if !domain.domain.is_null() && !open.is_some_and(|open| open.is(offer)) {
            return false;
        }
        // SAFETY: a C string or null.
        if !unsafe { matches_name(domain.name, offer.domain()) } {
            return false;
        }
    }
    hints.fabric.is_none_or(|fabric| {
        // SAFETY: null or an open fabric; a C string or null.
        unsafe {
            let open = object::body_of_class::<Fabric>(fabric.fabric.cast());
            matches_name(fabric.name, &fabric_name(offer))
                && (fabric.fabric.is_null() || open.is_some_and(|open| open.is(offer)))
        }
    })
}

unsafe fn part<T>() -> *mut T {
    const { assert!(size_of::<T>() <= PART) };
    // SAFETY: plain allocation; null means that memory is missing.
    unsafe { libc::calloc(1, PART) }.cast()
}

fn string(text: &str) -> *mut c_char {
    let Ok(text) = CString::new(text) else {
        return std::ptr::null_mut();
    };
    // SAFETY: a C string.
    unsafe { libc::strdup(text.as_ptr()) }
}

unsafe fn put_addr(addr: Option<SocketAddr>, to: &mut *mut c_void, len: &mut usize) {
    let Some(addr) = addr else { return };
    let (from, n) = addr::bytes(&addr);
    // SAFETY: 32 bytes are allocated, and 28 copied.
    unsafe {
        *to = libc::calloc(1, 32);
        if !to.is_null() {
            std::ptr::copy_nonoverlapping(from.as_ptr(), to.cast::<u8>(), from.len());
            *len = n;
        }
    }
}

/// Copies an auth key to the memory of an info.
unsafe fn put_key(key: Option<&[u8]>, to: &mut *mut u8, size: &mut usize) {
    let Some(key) = key else { return };
    // SAFETY: the copy has the key's size.
    unsafe {
        *to = libc::calloc(1, key.len()).cast();
        if !to.is_null() {
            std::ptr::copy_nonoverlapping(key.as_ptr(), *to, key.len());
            *size = key.len();
        }
    }
}

/// Puts auth keys into an info without any.
///
/// # Safety
///
/// [`make`] made the info.
pub(crate) unsafe fn put_keys(info: *mut fi_info, ep: Option<&[u8]>, domain: Option<&[u8]>) {
    // SAFETY: `make` allocated the parts.
    unsafe {
        let (e, d) = (&mut *(*info).ep_attr, &mut *(*info).domain_attr);
        put_key(ep, &mut e.auth_key, &mut e.auth_key_size);
        put_key(domain, &mut d.auth_key, &mut d.auth_key_size);
    }
}

/// The auth key that hints have.
unsafe fn hinted<'a>(at: *const u8, size: usize) -> Option<&'a [u8]> {
    // SAFETY: hints have a key of its size, or null.
    (!at.is_null() && size != 0).then(|| unsafe { std::slice::from_raw_parts(at, size) })
}

/// Frees an info that [`make`] made.
pub(crate) unsafe fn free(info: *mut fi_info) {
    // SAFETY: all parts come from `calloc` or `strdup`, or are null.
    unsafe {
        let i = &*info;
        if !i.domain_attr.is_null() {
            libc::free((*i.domain_attr).name.cast());
            libc::free((*i.domain_attr).auth_key.cast());
        }
        if !i.ep_attr.is_null() {
            libc::free((*i.ep_attr).auth_key.cast());
        }
        if !i.fabric_attr.is_null() {
            libc::free((*i.fabric_attr).name.cast());
            libc::free((*i.fabric_attr).prov_name.cast());
        }
        for at in [
            i.src_addr,
            i.dest_addr,
            i.tx_attr.cast(),
            i.rx_attr.cast(),
            i.ep_attr.cast(),
            i.domain_attr.cast(),
            i.fabric_attr.cast(),
            info.cast(),
        ] {
            libc::free(at);
        }
    }
}

/// Offset in the domain's attributes of `max_cntr_value` and `max_err_cntr_value`, which libfabric 2.5
/// has put behind the last field of 2.1, and of which `bindings.rs` knows nothing. Older libraries do not
/// read these bytes.
const COUNTER_LIMITS: usize = size_of::<fi_domain_attr>();
const _: () = assert!(std::mem::offset_of!(fi_domain_attr, max_group_id) + 8 == COUNTER_LIMITS);

/// Writes the greatest values of counters: both count to the end of 64 bits.
///
/// # Safety
///
/// The attributes have [`PART`] bytes.
unsafe fn put_counter_limits(domain: *mut fi_domain_attr) {
    const { assert!(COUNTER_LIMITS + 16 <= PART) };
    // SAFETY: as the caller vouches; the offset is a multiple of 8.
    unsafe {
        let limits = domain.byte_add(COUNTER_LIMITS).cast::<[u64; 2]>();
        limits.write([u64::MAX; 2]);
    }
}

/// Makes an info of an offer. `None` if memory is missing.
pub(crate) unsafe fn make(
    offer: &Info,
    hints: Option<&Hints<'_>>,
    version: u32,
) -> Option<*mut fi_info> {
    let entry = offer.raw();
    // SAFETY: the parts are allocated here, zeroed, and larger than their types.
    unsafe {
        let info = part::<fi_info>();
        if info.is_null() {
            return None;
        }
        let i = &mut *info;
        i.tx_attr = part();
        i.rx_attr = part();
        i.ep_attr = part();
        i.domain_attr = part();
        i.fabric_attr = part();
        let (Some(tx), Some(rx), Some(ep), Some(domain), Some(fabric)) = (
            i.tx_attr.as_mut(),
            i.rx_attr.as_mut(),
            i.ep_attr.as_mut(),
            i.domain_attr.as_mut(),
            i.fabric_attr.as_mut(),
        ) else {
            free(info);
            return None;
        };
        let asked = hints.map_or(0, |h| h.info.caps);
        let all = capabilities(entry);
        let comm = FI_LOCAL_COMM | FI_REMOTE_COMM;
        let registration = mr_mode(hints, version);
        let caps = match asked {
            0 => default_caps(all, registration),
            asked => with_directions(asked & !comm | all & comm),
        };
        let data = hints.is_some_and(|h| h.rx_mode() & FI_RX_CQ_DATA != 0);
        let mode = if data { FI_RX_CQ_DATA } else { 0 };
        // Old programs know the need to register local memory as a mode of the info.
        let old = version < (1 << 16 | 5) || registration == MR_BASIC;
        let mode = mode | if old { LOCAL_MR } else { 0 };
        i.caps = caps;
        i.mode = mode;
        // A passive endpoint whose address the new endpoint is to have.
        i.handle = hints.map_or(null_mut(), |h| h.info.handle);
        i.addr_format = offer.source().map_or(FI_SOCKADDR_IN, |a| addr::format(&a));
        put_addr(offer.source(), &mut i.src_addr, &mut i.src_addrlen);
        put_addr(offer.destination(), &mut i.dest_addr, &mut i.dest_addrlen);
        let smaller = |wanted: Option<usize>, most: u32| match wanted {
            Some(n) if n != 0 => n,
            _ => most as usize,
        };
        // A default that does not pin the queues of a full-size endpoint.
        let size = |most: u32| most.min(512);
        tx.caps = side_caps(hints.and_then(|h| h.tx).map(|t| t.caps), caps, TX_CAPS);
        tx.mode = mode;
        tx.op_flags = hints.and_then(|h| h.tx).map_or(0, |t| t.op_flags);
        let rings = has_rings(entry, hints);
        let order = if rings { ORDER & !AFTER_SEND } else { ORDER };
        tx.msg_order = order;
        tx.comp_order = completion_order(entry);
        tx.inject_size = entry.inject_size as usize;
        tx.size = smaller(
            hints.and_then(|h| h.tx).map(|t| t.size),
            size(entry.tx_size),
        );
        tx.iov_limit = smaller(
            hints.and_then(|h| h.tx).map(|t| t.iov_limit),
            entry.iov_limit,
        );
        tx.rma_iov_limit = entry.rma_iov_limit as usize;
        rx.caps = side_caps(hints.and_then(|h| h.rx).map(|r| r.caps), caps, RX_CAPS);
        rx.mode = mode;
        rx.op_flags = hints.and_then(|h| h.rx).map_or(0, |r| r.op_flags);
        rx.msg_order = order;
        rx.comp_order = completion_order(entry);
        rx.size = smaller(
            hints.and_then(|h| h.rx).map(|r| r.size),
            size(entry.rx_size),
        );
        rx.iov_limit = smaller(
            hints.and_then(|h| h.rx).map(|r| r.iov_limit),
            entry.iov_limit,
        );
        ep.type_ = FI_EP_MSG;
        ep.protocol = protocol(entry);
        ep.protocol_version = 1;
        let most = crate::max_msg_size(entry.max_msg_size) as usize;
        ep.max_msg_size = most;
        ep.max_order_raw_size = most;
        ep.max_order_waw_size = most;
        ep.tx_ctx_cnt = 1;
        ep.rx_ctx_cnt = 1;
        domain.name = string(offer.domain());
        let given = hints.and_then(|h| h.domain);
        domain.threading = match given.map(|d| d.threading) {
            Some(wanted) if wanted != 0 => wanted,
            _ => FI_THREAD_SAFE,
        };
        // Progress is automatic except with rings; a program that would help is told to.
        let progress = |wanted: Option<fi_progress>| match wanted {
            Some(FI_PROGRESS_MANUAL) => FI_PROGRESS_MANUAL,
            _ => FI_PROGRESS_AUTO,
        };
        domain.control_progress = progress(given.map(|d| d.control_progress));
        domain.__bindgen_anon_1.data_progress = match rings {
            true => FI_PROGRESS_MANUAL,
            false => progress(given.map(|d| d.__bindgen_anon_1.data_progress)),
        };
        domain.resource_mgmt = FI_RM_ENABLED;
        domain.av_type = match given.map(|d| d.av_type) {
            Some(wanted) => wanted,
            None => FI_AV_UNSPEC,
        };
        domain.mr_mode = registration;
        domain.mr_key_size = entry.mr_key_size as usize;
        domain.cq_data_size = data_size(entry, hints);
        domain.cq_cnt = COUNT;
        domain.cntr_cnt = COUNT;
        domain.ep_cnt = COUNT * 16;
        domain.tx_ctx_cnt = COUNT * 16;
        domain.rx_ctx_cnt = COUNT * 16;
        domain.max_ep_tx_ctx = 1;
        domain.max_ep_rx_ctx = 1;
        domain.mr_iov_limit = 1;
        domain.caps = all & comm;
        domain.mr_cnt = MR_COUNT;
        put_counter_limits(domain);
        fabric.name = string(&fabric_name(offer));
        if let Some(hints) = hints {
            put_keys(
                info,
                hints.ep.and_then(|e| hinted(e.auth_key, e.auth_key_size)),
                hints
                    .domain
                    .and_then(|d| hinted(d.auth_key, d.auth_key_size)),
            );
        }
        Some(info)
    }
}

unsafe fn collect(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: Option<&Hints<'_>>,
) -> Result<Vec<*mut fi_info>, Errno> {
    let path = Path::new(crate::device_path());
    let device = Device::open_path(path).map_err(|_| libc::ENODATA)?;
    let format = hints.map_or(0, |h| h.info.addr_format);
    // SAFETY: the caller's strings.
    let named = unsafe { addr::resolve(node, service, flags, format)? };
    let named = match named.is_empty() {
        true => vec![None],
        false => named.into_iter().map(Some).collect(),
    };
    by_domain(named, |named, listed| {
        // SAFETY: the caller's hints.
        unsafe { collect_for(&device, version, named, flags, hints, listed) }
    })
}

/// [`collect`] for one of the addresses of the caller's name, without domains that are listed already.
/// Returns infos with the names of their domains.
unsafe fn collect_for(
    device: &Device,
    version: u32,
    named: Option<SocketAddr>,
    flags: u64,
    hints: Option<&Hints<'_>>,
    listed: &[String],
) -> Result<Vec<(String, *mut fi_info)>, Errno> {
    // SAFETY: the caller's addresses.
    let (src, dest) = unsafe {
        let (src, dest) = match flags & FI_SOURCE != 0 {
            true => (named, None),
            false => (None, named),
        };
        let hinted = |at: *const c_void, len| addr::from(at, len);
        (
            src.or_else(|| hints.and_then(|h| hinted(h.info.src_addr, h.info.src_addrlen))),
            dest.or_else(|| hints.and_then(|h| hinted(h.info.dest_addr, h.info.dest_addrlen))),
        )
    };
    let mut wanted = kfabric::Hints::new();
    if let Some(src) = src.filter(|src| !src.ip().is_unspecified()) {
        wanted = wanted.source_addr(src);
    }
    if let Some(dest) = dest {
        wanted = wanted.destination_addr(dest);
    }
    let offers = device.info(&wanted);
    version::check(offers.as_deref());
    let mut offers = offers.map_err(|_| libc::ENODATA)?;
    if src.is_none() && dest.is_none() {
        crate::check_domain(offers.iter().map(Info::domain));
    }
    if !src.iter().chain(&dest).any(is_link_local) {
        skip_link_local(&mut offers);
    }
    let scopes = match hints {
        Some(hints) if wants_own_keys(hints) => &[false, true][..],
        _ => &[false],
    };
    let mut infos = Vec::new();
    for scoped in scopes {
        for offer in &offers {
            let domain = offer.domain();
            if !crate::allows_domain(domain) || listed.iter().any(|name| name == domain) {
                continue;
            }
            // SAFETY: the hints' strings.
            if hints.is_some_and(|h| unsafe { !satisfies(offer, h, version) }) {
                continue;
            }
            if *scoped && !offer.caps().contains(kfabric::Caps::EP_KEYS) {
                continue;
            }
            // SAFETY: makes a new info.
            let Some(info) = (unsafe { make(offer, hints, version) }) else {
                continue;
            };
            // SAFETY: just made, with all parts.
            unsafe {
                if *scoped {
                    (*(*info).domain_attr).mr_mode |= FI_MR_ENDPOINT as c_int;
                }
                set_source(&mut *info, src);
            }
            infos.push((domain.to_owned(), info));
        }
    }
    Ok(infos)
}

/// Whether hints ask for infos with FI_MR_ENDPOINT. ofi_rxm passes a program's registration modes on,
/// but cannot bind regions to endpoints. Its hints have these modes and both sizes
/// (`rxm_info_to_core()` of libfabric).
fn wants_own_keys(hints: &Hints<'_>) -> bool {
    let sizes = hints.tx.is_some_and(|tx| tx.size != 0) && hints.rx.is_some_and(|rx| rx.size != 0);
    let by_rxm = hints.info.mode == FI_RX_CQ_DATA | FI_CONTEXT && sizes;
    let modes = hints.domain.map_or(0, |domain| domain.mr_mode);
    modes & FI_MR_ENDPOINT as c_int != 0 && !by_rxm
}

/// Completes the address of an info by that of the caller: the kernel's offers have no port, and
/// the caller's is where a listener will listen.
unsafe fn set_source(info: &mut fi_info, asked: Option<SocketAddr>) {
    let Some(asked) = asked else { return };
    if info.src_addr.is_null() {
        // SAFETY: the info has no address yet.
        unsafe { put_addr(Some(asked), &mut info.src_addr, &mut info.src_addrlen) };
        info.addr_format = addr::format(&asked);
    } else {
        // SAFETY: `make` has put an address of at least 16 bytes there.
        unsafe {
            let port = info.src_addr.byte_add(2).cast::<[u8; 2]>();
            port.write_unaligned(asked.port().to_be_bytes());
        }
    }
}

/// `fi_getinfo`.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    to: *mut *mut fi_info,
) -> c_int {
    // SAFETY: hints and their parts are null or valid; infos are fresh.
    unsafe {
        let hints = hints.as_ref().map(|info| Hints {
            info,
            tx: info.tx_attr.as_ref(),
            rx: info.rx_attr.as_ref(),
            ep: info.ep_attr.as_ref(),
            domain: info.domain_attr.as_ref(),
            fabric: info.fabric_attr.as_ref(),
        });
        let infos = match collect(version, node, service, flags, hints.as_ref()) {
            Ok(infos) => infos,
            Err(errno) => return -errno,
        };
        let mut first = null_mut();
        for info in infos.into_iter().rev() {
            (*info).next = first;
            first = info;
        }
        *to = first;
        if first.is_null() {
            return -libc::ENODATA;
        }
    }
    0
}

#[cfg(test)]
mod tests;
