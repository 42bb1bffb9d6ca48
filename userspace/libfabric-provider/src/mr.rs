// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory regions, and regions within regions (`base_mr`). Descriptors are addresses of regions.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};

use kfabric::{Access, Caps, Key, Persistence, Reach, Region, RegionAttr, SubRegion};

use crate::domain::Domain;
use crate::ep::Endpoint;
use crate::error::{errno, Errno, Ours};
use crate::object::{self, status, Kind};
use crate::{auth, ffi::*};

/// The value of a key that does not exist.
const NOTAVAIL: u64 = kfabric::uapi::KFI_KEY_NOTAVAIL;
/// Most slots for sub-regions that are reserved ahead; more are allocated when they are needed.
const RESERVED_MAX: usize = kfabric::uapi::KFI_KEY_ALLOC_MAX as usize - 1;
/// A flag of utility providers such as ofi_rxm, which register memory that no cache is to hold
/// (`OFI_MR_NOCACHE`, include/ofi_mr.h of libfabric). There is no cache here.
const NOCACHE: u64 = 1 << 60;

/// Memory and attributes of a registration, as the program passes them.
struct Wanted {
    base: *mut u8,
    len: usize,
    access: Access,
    flags: u64,
    key: Option<kfabric::AuthKey>,
    /// Number of sub-regions that the program announces.
    subs: usize,
}

/// Registered memory.
struct Base {
    region: Region,
    /// Whether keys can be allocated on `region`; else on `twin`.
    dynamic: bool,
    /// Attributes of a registration of the same memory.
    attr: RegionAttr,
    /// [`Domain::id`].
    domain: u64,
    /// The same memory once more, for sub-regions of a region that has a key by registration.
    twin: Mutex<Option<Region>>,
}

/// A key that ends before its region.
enum Own {
    Sub(SubRegion),
    Once(Key),
}

/// Part of the memory of a base.
#[derive(Clone, Copy)]
struct Window {
    first: u64,
    len: u64,
    access: Access,
}

/// A memory region of libfabric.
pub(crate) struct Mr {
    /// Empty until a region of FI_MR_ENDPOINT is enabled.
    base: OnceLock<Arc<Base>>,
    window: Window,
    own: Mutex<Option<Own>>,
    /// Counts the sub-regions: each has a reference.
    alive: Arc<()>,
    /// The reference of a sub-region to its base's count.
    _parent: Option<Arc<()>>,
    /// The domain and the attributes of a region that is not enabled yet.
    pending: Mutex<Option<Pending>>,
    /// The key by the time that the region was opened.
    key: u64,
}

struct Pending {
    domain: Arc<kfabric::Domain>,
    id: u64,
    wanted: Wanted,
    endpoint: Option<RegionAttr>,
}

static FID: Table<fi_ops> = object::ops::<Mr>(Some(bind), Some(control));
pub(crate) static OPS: Table<fi_ops_mr> = Table(fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: Some(reg),
    regv: Some(regv),
    regattr: Some(regattr),
});

impl Kind for Mr {
    type Head = fid_mr;
    const CLASS: u32 = FI_CLASS_MR;

    fn ops() -> *mut fi_ops {
        FID.get()
    }

    fn head(&self, fid: fid, at: *mut c_void) -> fid_mr {
        fid_mr {
            fid,
            mem_desc: at,
            key: self.key,
        }
    }

    /// A region has no operations but those of its fid.
    fn disable(_: &mut fid_mr) {}

    /// Ends the region's keys, and closes the memory, or leaves that to the end of the operations
    /// that use it.
    fn end(mut self) -> Result<(), (Self, Errno)> {
        if Arc::strong_count(&self.alive) > 1 {
            return Err((self, libc::EBUSY));
        }
        match self.base.take().map(Arc::try_unwrap) {
            // Never enabled.
            None => Ok(()),
            // The memory of a sub-region is its base's.
            Some(Err(base)) => self.end_own().map_err(|errno| {
                self.base = base.into();
                (self, errno)
            }),
            Some(Ok(base)) => {
                let Base { region, .. } = base;
                // This one step ends all keys of the memory. The rest cannot fail: without
                // sub-regions the twin has no key.
                region.retire().map_err(|r| {
                    let base = Base {
                        region: r.object,
                        ..base
                    };
                    self.base = Arc::new(base).into();
                    (self, errno(&r.error))
                })
            }
        }
    }
}

fn locked<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The rights of peers.
fn remote(access: Access) -> Access {
    access & (Access::REMOTE | Access::ATOMIC)
}

/// Assigns a key that one operation uses up.
fn once(
    region: &Region,
    (first, len): (u64, u64),
    access: Access,
    auth: Option<&kfabric::AuthKey>,
) -> Result<(Own, u64), Errno> {
    let keys = match auth {
        Some(auth) => region.alloc_keys_under(auth, 1),
        None => region.alloc_keys(1),
    };
    let key = keys.ours()?.remove(0);
    let mem = key.assign_once(first, len, access).ours()?;
    Ok((Own::Once(key), mem.key))
}

impl Base {
    /// Registers memory. Returns the key for peers, and its slot if it has one.
    fn register(
        (domain, id): (&kfabric::Domain, u64),
        wanted: &Wanted,
        endpoint: Option<RegionAttr>,
    ) -> Result<(Arc<Self>, Option<Own>, u64), Errno> {
        let peers = remote(wanted.access);
        let single = wanted.flags & FI_MR_SINGLE_USE != 0 && !peers.is_empty();
        let dynamic = single || wanted.subs != 0 && !peers.is_empty();
        let mut attr = endpoint.unwrap_or_else(|| RegionAttr::new(wanted.access));
        if let Some(key) = &wanted.key {
            attr = attr.auth_key(key.clone());
        }
        if wanted.flags & FI_RMA_PMEM != 0 {
            attr = attr.persistent();
        }
        let plain = attr.clone();
        if single {
            attr = attr.dynamic_keys();
        } else if dynamic {
            // One more is for the key of all of the memory.
            attr = attr.sub_regions(wanted.subs.min(RESERVED_MAX) + 1);
        }
        // SAFETY: the program keeps the memory mapped until the region is closed, and orders its
        // accesses with its operations, as libfabric's manual asks.
        let region = unsafe { domain.register_raw(wanted.base, wanted.len, &attr) }.ours();
        let region = region.inspect_err(|e| {
            if *e == libc::EMSGSIZE {
                crate::core::warn(
                    "the region is longer than the device's keys can be: max_key_pages of kfi info -v",
                );
            }
        })?;
        let len = wanted.len as u64;
        let (own, key) = if single {
            let (own, key) = once(&region, (0, len), peers, None)?;
            (Some(own), key)
        } else if dynamic {
            let sub = region.sub_region(0..len, peers).ours()?;
            let key = sub.remote().key;
            (Some(Own::Sub(sub)), key)
        } else {
            (None, region.remote().map_or(NOTAVAIL, |mem| mem.key))
        };
        let base = Self {
            region,
            dynamic,
            attr: plain,
            domain: id,
            twin: Mutex::default(),
        };
        Ok((Arc::new(base), own, key))
    }

    /// Calls `use_it` with a region on which keys can be allocated.
    fn with_keys<T>(
        &self,
        domain: &kfabric::Domain,
        use_it: impl FnOnce(&Region) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if self.dynamic {
            return use_it(&self.region);
        }
        let mut twin = locked(&self.twin);
        let region = match twin.take() {
            Some(region) => region,
            None => {
                let base = std::ptr::with_exposed_provenance_mut(self.region.address() as usize);
                let attr = self.attr.clone().dynamic_keys();
                // SAFETY: the memory of a region that stays registered as long as this one.
                unsafe { domain.register_raw(base, self.region.len(), &attr) }.ours()?
            }
        };
        use_it(twin.insert(region))
    }
}

impl Mr {
    /// The registered memory, for operations of this program.
    #[inline]
    fn region(&self) -> Option<&Region> {
        self.base.get().map(|base| &base.region)
    }

    /// The registered memory, for an operation of this program on `len` bytes at `at`. `None`
    /// outside this part of it, or before the region is enabled.
    #[inline]
    pub(crate) fn local(&self, at: *const u8, len: usize) -> Option<&Region> {
        let region = self.region()?;
        let first = at.addr() as u64;
        let within = first.checked_sub(region.address() + self.window.first)?;
        let room = self.window.len.checked_sub(within)?;
        (len as u64 <= room).then_some(region)
    }

    /// Ends the key of a sub-region.
    fn end_own(&mut self) -> Result<(), Errno> {
        let own = self.own.get_mut().unwrap_or_else(PoisonError::into_inner);
        let kept = match own.take() {
            None => None,
            Some(Own::Sub(sub)) => sub.close().err().map(|r| (Own::Sub(r.object), r.error)),
            Some(Own::Once(key)) => key.close().err().map(|r| (Own::Once(r.object), r.error)),
        };
        let Some((key, error)) = kept else {
            return Ok(());
        };
        *own = Some(key);
        Err(errno(&error))
    }

    fn new(domain: &Domain, wanted: Wanted) -> Result<Self, Errno> {
        let window = Window {
            first: 0,
            len: wanted.len as u64,
            access: wanted.access,
        };
        let mut mr = Self {
            base: OnceLock::new(),
            window,
            own: Mutex::default(),
            alive: Arc::default(),
            _parent: None,
            pending: Mutex::default(),
            key: NOTAVAIL,
        };
        if domain.endpoint_keys {
            mr.pending = Mutex::new(Some(Pending {
                domain: domain.domain.clone(),
                id: domain.id,
                wanted,
                endpoint: None,
            }));
            return Ok(mr);
        }
        let (base, own, key) = Base::register((&domain.domain, domain.id), &wanted, None)?;
        mr.base = base.into();
        (mr.own, mr.key) = (Mutex::new(own), key);
        Ok(mr)
    }

    /// Makes a part of this region a region of its own.
    fn part(&self, domain: &Domain, wanted: &Wanted) -> Result<Self, Errno> {
        let base = self.base.get().ok_or(libc::EINVAL)?;
        if base.domain != domain.id {
            return Err(libc::EINVAL);
        }
        let at = wanted.base.expose_provenance() as u64;
        let first = at.checked_sub(base.region.address()).ok_or(libc::EINVAL)?;
        let len = wanted.len as u64;
        let (low, high) = (self.window.first, self.window.first + self.window.len);
        let end = first.checked_add(len).ok_or(libc::EINVAL)?;
        if len == 0 || first < low || end > high {
            return Err(libc::EINVAL);
        }
        if !self.window.access.contains(wanted.access) {
            return Err(libc::EACCES);
        }
        if wanted.flags & FI_RMA_PMEM != 0 {
            // The same errors as for a registration.
            let kind = base.region.persistence();
            if kind == Persistence::None {
                return Err(libc::EINVAL);
            }
            if !kind.is_durable_by_cpu() || domain.domain.durable() == Reach::No {
                return Err(libc::EOPNOTSUPP);
            }
        }
        let peers = remote(wanted.access);
        let (own, key) = match peers.is_empty() {
            true => (None, NOTAVAIL),
            false => base.with_keys(&domain.domain, |region| {
                if wanted.flags & FI_MR_SINGLE_USE != 0 {
                    let (own, key) = once(region, (first, len), peers, wanted.key.as_ref())?;
                    return Ok((Some(own), key));
                }
                let sub = match &wanted.key {
                    Some(key) => region.sub_region_under(key, first..end, peers),
                    None => region.sub_region(first..end, peers),
                };
                let sub = sub.ours()?;
                let key = sub.remote().key;
                Ok((Some(Own::Sub(sub)), key))
            })?,
        };
        Ok(Self {
            base: base.clone().into(),
            window: Window {
                first,
                len,
                access: wanted.access,
            },
            own: Mutex::new(own),
            alive: Arc::default(),
            _parent: Some(self.alive.clone()),
            pending: Mutex::default(),
            key,
        })
    }

    /// Registers a region that was deferred, and returns its key. `None` for a region that is
    /// registered.
    fn enable(&self) -> Result<Option<u64>, Errno> {
        let mut pending = locked(&self.pending);
        let Some(asked) = pending.as_ref() else {
            return Ok(None);
        };
        // Keys of such a domain are valid on one endpoint.
        if asked.endpoint.is_none() && !remote(asked.wanted.access).is_empty() {
            return Err(libc::EINVAL);
        }
        let (base, own, key) = Base::register(
            (&asked.domain, asked.id),
            &asked.wanted,
            asked.endpoint.clone(),
        )?;
        *locked(&self.own) = own;
        // Empty until now, because `pending` was not.
        let _ = self.base.set(base);
        *pending = None;
        Ok(Some(key))
    }
}

/// The rights that a program asks for, by libkfabric's names.
fn rights(domain: &Domain, access: u64) -> Result<Access, Errno> {
    let access = Access::from_bits_retain(access);
    if !(Access::LOCAL | Access::REMOTE).contains(access) {
        return Err(libc::EINVAL);
    }
    Ok(if access.is_empty() {
        // All uses by this program, and none by peers.
        Access::LOCAL
    } else if domain.atomics && access.contains(Access::REMOTE) {
        // libfabric has no right for atomics alone.
        access | Access::ATOMIC
    } else {
        access
    })
}

/// Opens a region, or a part of `base` if that is not null.
unsafe fn register(
    domain: *mut fid,
    base: *const fid_mr,
    (iov, count): (*const iovec, usize),
    (access, flags, subs): (u64, u64, usize),
    key: Result<Option<kfabric::AuthKey>, Errno>,
    (to, context): (*mut *mut fid_mr, *mut c_void),
) -> c_int {
    // SAFETY: the caller's arguments: a domain, an array of `count` pieces, and a region or null.
    unsafe {
        let domain = object::body::<Domain>(domain);
        object::open(to, context, |_| {
            if flags & !(NOCACHE | FI_MR_SINGLE_USE | FI_RMA_PMEM) != 0 {
                return Err(FI_EBADFLAGS as Errno);
            }
            let once = domain.domain.caps().contains(Caps::SINGLE_USE_KEYS);
            if flags & FI_MR_SINGLE_USE != 0 && !once {
                return Err(FI_EBADFLAGS as Errno);
            }
            if count != 1 {
                return Err(libc::EINVAL);
            }
            let wanted = Wanted {
                base: (*iov).iov_base.cast(),
                len: (*iov).iov_len,
                access: rights(domain, access)?,
                flags,
                key: key?,
                subs,
            };
            if base.is_null() {
                return Mr::new(domain, wanted);
            }
            // A utility provider's region is none of ours.
            let base = object::body_of_class::<Mr>(base.cast()).ok_or(libc::EINVAL)?;
            base.part(domain, &wanted)
        })
    }
}

unsafe extern "C" fn reg(
    fid: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    to: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let iov = iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    };
    // SAFETY: the caller's arguments.
    unsafe { regv(fid, &iov, 1, access, offset, key, flags, to, context) }
}

unsafe extern "C" fn regv(
    fid: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    _offset: u64,
    _key: u64,
    flags: u64,
    to: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let (pieces, wanted) = ((iov, count), (access, flags, 0));
    // SAFETY: the caller's arguments.
    unsafe {
        register(
            fid,
            std::ptr::null(),
            pieces,
            wanted,
            Ok(None),
            (to, context),
        )
    }
}

/// Warns once about memory of a device. Such a registration is not refused for its `iface`: no info has
/// FI_HMEM, and a program without FI_HMEM may leave the field as it is.
fn check_iface(iface: fi_hmem_iface) {
    static WARNED: Once = Once::new();
    if iface != FI_HMEM_SYSTEM {
        WARNED.call_once(|| {
            crate::core::warn("the iface of a region is ignored: there is no FI_HMEM");
        });
    }
}

unsafe extern "C" fn regattr(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    to: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: the caller's attributes, whose size is that of the program's version. Later fields are
    // read only if the program has them. libfabric refuses programs of a later version than its own.
    unsafe {
        let version = object::body::<Domain>(fid).version;
        let at = |offset: usize| attr.byte_add(offset);
        macro_rules! field {
            ($name:ident: $ty:ty) => {
                at(offset_of!(fi_mr_attr, $name)).cast::<$ty>().read()
            };
        }
        let (base, subs) = match version >= 2 << 16 {
            true => (field!(base_mr: *const fid_mr), field!(sub_mr_cnt: usize)),
            false => (std::ptr::null(), 0),
        };
        let pieces = (
            at(0).cast::<*const iovec>().read(),
            field!(iov_count: usize),
        );
        if version >= 1 << 16 | 10 {
            check_iface(field!(iface: fi_hmem_iface));
        }
        let key = match version >= 1 << 16 | 5 {
            true => auth::copy(field!(auth_key: *const u8), field!(auth_key_size: usize)),
            false => Ok(None),
        };
        let key = key.and_then(|key| key.map(|key| auth::given(&key)).transpose());
        let wanted = (field!(access: u64), flags, subs);
        register(
            fid,
            base,
            pieces,
            wanted,
            key,
            (to, field!(context: *mut c_void)),
        )
    }
}

/// `fi_mr_bind`: to the endpoint on which the region's keys are to be valid.
unsafe extern "C" fn bind(fid: *mut fid, object: *mut fid, flags: u64) -> c_int {
    if flags != 0 {
        return -(FI_EBADFLAGS as c_int);
    }
    // SAFETY: two valid fids, the first one of a region.
    unsafe {
        let Some(ep) = object::body_of_class::<Endpoint>(object) else {
            return -libc::ENOSYS;
        };
        let mut pending = locked(&object::body::<Mr>(fid).pending);
        match pending.as_mut() {
            Some(asked) if asked.endpoint.is_none() => {
                let attr = RegionAttr::new(asked.wanted.access);
                asked.endpoint = Some(attr.endpoint(&ep.ep));
                0
            }
            _ => -libc::EINVAL,
        }
    }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: a region's fid, and the argument that the command takes.
    unsafe {
        let (head, mr) = (fid.cast::<fid_mr>(), object::body::<Mr>(fid));
        match command as u32 {
            FI_ENABLE => status(
                mr.enable()
                    .map(|key| (*head).key = key.unwrap_or((*head).key)),
            ),
            FI_GET_RAW_MR => {
                let raw = &*arg.cast::<fi_mr_raw_attr>();
                let room = std::mem::replace(&mut *raw.key_size, size_of::<u64>());
                if room < size_of::<u64>() {
                    return -(FI_ETOOSMALL as c_int);
                }
                let at = mr.region().map_or(0, Region::address);
                *raw.base_addr = at + mr.window.first;
                raw.raw_key.cast::<u64>().write_unaligned((*head).key);
                0
            }
            _ => -libc::ENOSYS,
        }
    }
}
