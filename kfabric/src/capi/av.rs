// SPDX-License-Identifier: GPL-2.0
//! Address vectors: tables of peers' addresses with a short name (`kfi_addr_t`) for each.
//!
//! kfabric's endpoints are connected. So a name serves only to look up the address for a connect.

use core::ptr;
use kernel::{
    ffi::{
        c_char,
        c_int,
        c_void, //
    },
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    types::Opaque, //
};

use super::{
    cm,
    fabric::DomainObj,
    info,
    obj::{
        self,
        code,
        enosys,
        Object,
        Place, //
    },
    raw, //
};
use crate::{
    base::parent::Held,
    objects::domain::Domain,
    sys::net::Net,
    uapi::SockAddr, //
};

/// The most bits of a name that can select a receive context.
const CTX_BITS_MAX: c_int = 32;

/// The addresses of a vector. The index of an address is its name.
#[pin_data]
struct Table {
    #[pin]
    list: Mutex<KVec<Option<SockAddr>>>,
    _domain: Held<Domain>,
}

/// An address vector.
#[repr(C)]
pub(super) struct AvObj {
    fid: Opaque<raw::kfid_av>,
    table: Arc<Table>,
    /// Mask of the bits of a name that hold the index; the other bits select a receive context.
    mask: u64,
}

// SAFETY: The `repr(C)` object begins with the C structure of this class.
unsafe impl Object for AvObj {
    type C = raw::kfid_av;
    const CLASS: u32 = raw::KFI_CLASS_AV;
    const OPS: &'static raw::kfi_ops = &AV;
}

static AV: raw::kfi_ops = raw::kfi_ops {
    size: size_of::<raw::kfi_ops>(),
    close: Some(close),
    bind: Some(obj::no_bind),
    control: Some(obj::no_control),
    ops_open: Some(obj::no_ops),
};

static OPS: raw::kfi_ops_av = raw::kfi_ops_av {
    size: size_of::<raw::kfi_ops_av>(),
    insert: Some(insert),
    insertsvc: Some(insertsvc),
    insertsym: Some(insertsym),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
};

impl Table {
    /// Adds an address and returns its name.
    fn add(&self, addr: SockAddr) -> Result<u64> {
        let mut list = self.list.lock();
        let at = match list.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                list.push(None, GFP_KERNEL)?;
                list.len() - 1
            }
        };
        list[at] = Some(addr);
        Ok(at as u64)
    }

    /// Calls `act` with the place of the address that has this name; `act` may change the place.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if no address has this name, or `act` returns `None`.
    fn with<T>(
        &self,
        name: u64,
        act: impl FnOnce(&mut Option<SockAddr>) -> Option<T>,
    ) -> Result<T> {
        let mut list = self.list.lock();
        let at = usize::try_from(name).map_err(|_| EINVAL)?;
        list.get_mut(at).and_then(act).ok_or(EINVAL)
    }
}

/// Implements `kfi_av_open()`.
pub(super) unsafe extern "C" fn open(
    domain: *mut raw::kfid_domain,
    attr: *mut raw::kfi_av_attr,
    av: *mut *mut raw::kfid_av,
    context: *mut c_void,
) -> c_int {
    // SAFETY: The consumer passes an open domain of this module, and attributes or null.
    let (domain, attr) = unsafe { (obj::get::<DomainObj, _>(domain), attr.as_ref()) };
    let go = || {
        let mut bits = 0;
        if let Some(attr) = attr {
            if !attr.name.is_null() {
                return Err(enosys());
            }
            bits = attr.rx_ctx_bits;
            if attr.type_ > raw::kfi_av_type_KFI_AV_TABLE
                || attr.flags != 0
                || !(0..=CTX_BITS_MAX).contains(&bits)
            {
                return Err(EINVAL);
            }
        }
        let place = Place::<AvObj>::new()?;
        let held = Held::new(&domain.domain)?;
        let table = Arc::pin_init(
            pin_init!(Table {
                list <- new_mutex!(KVec::new(), "kfabric_capi_av"),
                _domain: held,
            }),
            GFP_KERNEL,
        )?;
        let object = AvObj {
            fid: Opaque::uninit(),
            table,
            mask: u64::MAX >> bits,
        };
        Ok(place.put(object, context, |c| {
            c.ops = ptr::from_ref(&OPS).cast_mut();
        }))
    };
    code(go().map(|made| {
        // SAFETY: The caller passes a valid place for the result.
        unsafe { *av = made }
    }))
}

unsafe extern "C" fn close(fid: *mut raw::kfid) -> c_int {
    // SAFETY: The consumer closes an address vector of this module and no longer uses it.
    drop(unsafe { obj::take::<AvObj>(fid) });
    0
}

/// The caller's arrays for the results of an insertion: names and error numbers.
struct Told {
    names: *mut raw::kfi_addr_t,
    errors: *mut c_int,
    at: usize,
    good: c_int,
}

impl Told {
    /// Returns the results' state for an insertion with these flags.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if a flag is unknown.
    /// - `EINVAL` if `flags` has `KFI_SYNC_ERR` and `context` is null.
    ///
    /// # Safety
    ///
    /// `names` has room for all inserted addresses, or is null. With `KFI_SYNC_ERR`, `context` has
    /// room for as many error numbers, or is null.
    unsafe fn new(names: *mut raw::kfi_addr_t, flags: u64, context: *mut c_void) -> Result<Self> {
        let sync_err = flags & raw::KFI_SYNC_ERR != 0;
        if flags & !(raw::KFI_SYNC_ERR | u64::from(raw::KFI_MORE)) != 0
            || (sync_err && context.is_null())
        {
            return Err(EINVAL);
        }
        Ok(Self {
            names,
            errors: if sync_err {
                context.cast()
            } else {
                ptr::null_mut()
            },
            at: 0,
            good: 0,
        })
    }

    /// Stores the result for the next address.
    fn tell(&mut self, made: Result<u64>) {
        let (name, err) = match made {
            Ok(name) => (name, 0),
            Err(e) => (u64::MAX, -e.to_errno()),
        };
        // SAFETY: By the contract of `new()` each array has room for every inserted address, or is
        // null.
        unsafe {
            if !self.names.is_null() {
                *self.names.add(self.at) = name;
            }
            if !self.errors.is_null() {
                *self.errors.add(self.at) = err;
            }
        }
        self.at += 1;
        self.good += c_int::from(err == 0);
    }
}

unsafe extern "C" fn insert(
    av: *mut raw::kfid_av,
    addrs: *const c_void,
    count: usize,
    names: *mut raw::kfi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: The consumer passes an open address vector of this module. Its arrays have room for
    // `count` results.
    let (this, told) = unsafe { (obj::get::<AvObj, _>(av), Told::new(names, flags, context)) };
    let mut told = match told {
        Ok(told) if count <= c_int::MAX as usize => told,
        _ => return EINVAL.to_errno(),
    };
    // `None` after an invalid address: its length is unknown, and so is the position of the next
    // one.
    let mut next = Some(addrs);
    for _ in 0..count {
        let addr = match next.filter(|next| !next.is_null()) {
            // SAFETY: The consumer passes `count` addresses; this is one of them.
            Some(at) => unsafe { info::sockaddr(at) },
            None => Err(EINVAL),
        };
        // CAST: An address has at most 28 bytes.
        next = match (&addr, next) {
            (Ok(addr), Some(at)) => Some(at.wrapping_byte_add(addr.len as usize)),
            _ => None,
        };
        told.tell(addr.and_then(|addr| this.table.add(addr)));
    }
    told.good
}

/// Returns the address that a node's and a service's string name.
///
/// # Errors
///
/// - `EINVAL` if `node` is null, or the strings are no address and port.
///
/// # Safety
///
/// Both are terminated strings, or null.
unsafe fn named(node: *const c_char, service: *const c_char) -> Result<SockAddr> {
    if node.is_null() {
        return Err(EINVAL);
    }
    let net = Net::current();
    let mut addr = SockAddr::default();
    // SAFETY: `addr.data` has room for both families. By this function's contract both strings are
    // terminated, or null.
    kernel::error::to_result(unsafe {
        raw::kf_c_address(
            net.as_ptr(),
            node,
            service,
            addr.data.as_mut_ptr(),
            &mut addr.len,
        )
    })?;
    Ok(addr)
}

/// Returns the address that is `node` addresses and `service` ports above `first`.
///
/// # Errors
///
/// - `EINVAL` if the port or the last 32 bits of the address overflow.
fn after(first: &SockAddr, node: usize, service: usize) -> Result<SockAddr> {
    let mut addr = *first;
    let add = |bytes: [u8; 4], more: usize| -> Result<u32> {
        let more = u32::try_from(more).map_err(|_| EINVAL)?;
        u32::from_be_bytes(bytes).checked_add(more).ok_or(EINVAL)
    };
    let port = add([0, 0, addr.data[2], addr.data[3]], service)?;
    let port = u16::try_from(port).map_err(|_| EINVAL)?;
    addr.data[2..4].copy_from_slice(&port.to_be_bytes());
    // Offset of the last 32 bits of the address. IPv4: after the port. IPv6: after the port, the
    // flow information and the first 12 bytes.
    let at = if addr.len == 16 { 4 } else { 20 };
    let mut low = [0; 4];
    low.copy_from_slice(&addr.data[at..at + 4]);
    addr.data[at..at + 4].copy_from_slice(&add(low, node)?.to_be_bytes());
    Ok(addr)
}

unsafe extern "C" fn insertsym(
    av: *mut raw::kfid_av,
    node: *const c_char,
    nodes: usize,
    service: *const c_char,
    services: usize,
    names: *mut raw::kfi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: The consumer passes an open address vector of this module, and strings or null. Its
    // arrays have room for `nodes * services` results.
    let (this, first, told) = unsafe {
        (
            obj::get::<AvObj, _>(av),
            named(node, service),
            Told::new(names, flags, context),
        )
    };
    let count = nodes.checked_mul(services);
    let (first, mut told) = match (first, told) {
        (Ok(first), Ok(told)) if count.is_some_and(|n| n <= c_int::MAX as usize) => (first, told),
        _ => return EINVAL.to_errno(),
    };
    for n in 0..nodes {
        for s in 0..services {
            told.tell(after(&first, n, s).and_then(|addr| this.table.add(addr)));
        }
    }
    told.good
}

unsafe extern "C" fn insertsvc(
    av: *mut raw::kfid_av,
    node: *const c_char,
    service: *const c_char,
    name: *mut raw::kfi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: `insertsym()` has the same contract; the arrays have room for one result.
    unsafe { insertsym(av, node, 1, service, 1, name, flags, context) }
}

unsafe extern "C" fn remove(
    av: *mut raw::kfid_av,
    names: *mut raw::kfi_addr_t,
    count: usize,
    flags: u64,
) -> c_int {
    // SAFETY: The consumer passes an open address vector of this module.
    let this = unsafe { obj::get::<AvObj, _>(av) };
    if flags != 0 {
        return EINVAL.to_errno();
    }
    let mut result = Ok(());
    for i in 0..count {
        // SAFETY: The consumer passes `count` names.
        let name = unsafe { *names.add(i) } & this.mask;
        let gone = this.table.with(name, Option::take);
        result = result.and(gone.map(|_| ()));
    }
    code(result)
}

unsafe extern "C" fn lookup(
    av: *mut raw::kfid_av,
    name: raw::kfi_addr_t,
    addr: *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: The consumer passes an open address vector of this module.
    let this = unsafe { obj::get::<AvObj, _>(av) };
    let found = this.table.with(name & this.mask, |place| *place);
    // SAFETY: The caller passes a buffer of `*len` bytes or null, and a valid `len` or null.
    code(found.and_then(|found| unsafe { cm::address(&found, addr, len) }))
}

unsafe extern "C" fn straddr(
    _av: *mut raw::kfid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    // SAFETY: The caller passes a socket address, and a buffer of `*len` bytes.
    unsafe { raw::kf_c_straddr(addr, buf, len) }
}
