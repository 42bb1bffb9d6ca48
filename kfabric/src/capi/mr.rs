// SPDX-License-Identifier: GPL-2.0
//! Registration of kernel memory by address, pages or scatterlist. The consumer keeps ownership of
//! the memory.

use core::{
    ops::Range,
    ptr::{
        self,
        NonNull, //
    },
    sync::atomic::{
        AtomicBool,
        Ordering, //
    }, //
};
use kernel::{
    bindings,
    ffi::{
        c_int,
        c_void, //
    },
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    },
    types::Opaque, //
};

use super::{
    auth,
    dax,
    ep::EpObj,
    fabric::DomainObj,
    key,
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
    auth::AuthKey,
    ep::{
        Endpoint,
        LocalMem, //
    },
    key::Region,
    memory::{
        Lender,
        Memory, //
    },
    objects::domain::Domain,
    op::OpKind,
    uapi::{
        KFI_DYNAMIC_KEYS,
        KFI_KEY_NOTAVAIL,
        KFI_RMA_PMEM, //
    },
};

/// How long a close waits for operations that are completing, in milliseconds.
const LINGER_MS: usize = 1000;

/// A piece of the kernel's memory, as a consumer names it.
#[derive(Clone, Copy)]
pub(super) enum Piece {
    /// Kernel address and length.
    Virt(*const c_void, usize),
    /// First page, offset into that page, and length.
    Pages(*mut bindings::page, usize, usize),
}

/// A consumer's list of pieces.
#[derive(Clone, Copy)]
pub(super) enum List {
    /// A single piece: address and length.
    One(*const c_void, usize),
    /// Kernel addresses.
    Kvec(*const bindings::kvec, usize),
    /// Pages.
    Bvec(*const bindings::bio_vec, usize),
    /// A scatterlist: the next entry, and the number of entries left.
    Sgl(*const bindings::scatterlist, usize),
}

impl List {
    /// Returns the list of type `ty` at `list`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `ty` is no type of list.
    pub(super) fn of(ty: raw::kfi_iov_type, list: *const c_void, count: usize) -> Result<Self> {
        Ok(match ty {
            raw::kfi_iov_type_KFI_KVEC => Self::Kvec(list.cast(), count),
            raw::kfi_iov_type_KFI_BVEC => Self::Bvec(list.cast(), count),
            raw::kfi_iov_type_KFI_SGL => Self::Sgl(list.cast(), count),
            _ => return Err(EINVAL),
        })
    }

    /// Removes the first piece from the list and returns it.
    ///
    /// # Safety
    ///
    /// The list is valid as `kfi_domain.h` describes.
    pub(super) unsafe fn pop(&mut self) -> Option<Piece> {
        match self {
            Self::One(addr, len) => {
                let piece = Piece::Virt(*addr, *len);
                *self = Self::Kvec(ptr::null(), 0);
                Some(piece)
            }
            Self::Kvec(list, count) => {
                *count = count.checked_sub(1)?;
                // SAFETY: By this function's contract the list has `count` entries, and `count` was
                // not zero.
                let one = unsafe { &**list };
                *list = list.wrapping_add(1);
                Some(Piece::Virt(one.iov_base, one.iov_len))
            }
            Self::Bvec(list, count) => {
                *count = count.checked_sub(1)?;
                // SAFETY: By this function's contract the list has `count` entries, and `count` was
                // not zero.
                let one = unsafe { &**list };
                *list = list.wrapping_add(1);
                // CAST: A `u32` fits.
                let (offset, len) = (one.bv_offset as usize, one.bv_len as usize);
                Some(Piece::Pages(one.bv_page, offset, len))
            }
            Self::Sgl(sg, count) => {
                *count = count.checked_sub(1)?;
                if sg.is_null() {
                    // The scatterlist ends before `count` entries. A piece without a page makes the
                    // call fail.
                    return Some(Piece::Pages(ptr::null_mut(), 0, 1));
                }
                let (mut page, mut offset, mut len) = (ptr::null_mut(), 0, 0);
                // SAFETY: `sg` is an entry of the scatterlist; the output places are locals.
                *sg = unsafe { raw::kf_c_sg(*sg, &mut page, &mut offset, &mut len) };
                Some(Piece::Pages(page, offset, len))
            }
        }
    }
}

impl Piece {
    pub(super) fn len(&self) -> usize {
        match *self {
            Self::Virt(_, len) | Self::Pages(_, _, len) => len,
        }
    }

    /// Offset into the first page.
    fn first(&self) -> usize {
        match *self {
            Self::Virt(addr, _) => addr.addr() & (PAGE_SIZE - 1),
            Self::Pages(_, offset, _) => offset & (PAGE_SIZE - 1),
        }
    }

    /// Number of pages that the piece touches.
    fn pages(&self) -> usize {
        (self.first() + self.len()).div_ceil(PAGE_SIZE)
    }

    /// Returns the page with index `nth` of the piece.
    ///
    /// # Errors
    ///
    /// - `EFAULT` if the address is not memory of the kernel.
    fn page(&self, nth: usize) -> Result<NonNull<bindings::page>> {
        let page = match *self {
            // SAFETY: `kf_c_page()` accepts any address.
            Self::Virt(addr, _) => unsafe {
                raw::kf_c_page(addr.wrapping_byte_add(nth << PAGE_SHIFT))
            },
            Self::Pages(page, ..) if page.is_null() => page,
            // SAFETY: The consumer's pages of one piece are contiguous.
            Self::Pages(page, offset, _) => unsafe {
                raw::kf_c_page_of(page, (offset >> PAGE_SHIFT) + nth)
            },
        };
        NonNull::new(page).ok_or(EFAULT)
    }

    /// Returns the physical address, if the piece has one.
    fn phys(&self) -> Option<u64> {
        match *self {
            // SAFETY: `kf_c_phys()` accepts any address.
            Self::Virt(addr, _) => match unsafe { raw::kf_c_phys(addr) } {
                u64::MAX => None,
                phys => Some(phys),
            },
            Self::Pages(page, ..) if page.is_null() => None,
            Self::Pages(page, offset, _) => {
                // SAFETY: The consumer passes a valid page.
                let start = unsafe { raw::kf_c_page_phys(page) };
                Some(start + offset as u64)
            }
        }
    }
}

/// Sets its flag when the core drops the last use of the borrowed memory.
struct Gone(Arc<AtomicBool>);

impl Lender for Gone {}

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The longest registration in bytes, including the unused start of its first page.
const LONGEST: usize = isize::MAX as usize - PAGE_SIZE;

/// A contiguous part of the memory, in one kind of address.
#[repr(C)]
struct Part {
    start: u64,
    len: u64,
    /// Offset of the part's first byte from the start of the memory.
    offset: u64,
}

// `kf_c_sort()` sorts parts by their first eight bytes.
const _: () = assert!(core::mem::offset_of!(Part, start) == 0);

/// The parts of a region, sorted by address.
struct Index(KVec<Part>);

impl Index {
    fn new(mut parts: KVec<Part>) -> Self {
        // SAFETY: The vector has `len()` parts, and each begins with its address.
        unsafe { raw::kf_c_sort(parts.as_mut_ptr().cast(), parts.len(), size_of::<Part>()) };
        Self(parts)
    }

    /// Returns the offset of [addr, addr + len) in the memory, if one part contains the range.
    fn find(&self, addr: u64, len: u64) -> Option<u64> {
        let part = match &self.0[..] {
            // Fast path: most regions have one part.
            [part] if part.start <= addr => part,
            parts => {
                let behind = parts.partition_point(|part| part.start <= addr);
                parts.get(behind.checked_sub(1)?)?
            }
        };
        let into = addr - part.start;
        (into.checked_add(len)? <= part.len).then_some(part.offset + into)
    }
}

/// A region of the C API.
#[repr(C)]
pub(super) struct MrObj {
    fid: Opaque<raw::kfid_mr>,
    /// `None` before the region is enabled, and once its close has begun.
    region: Option<Arc<Region>>,
    memory: Option<Arc<Memory>>,
    /// The endpoint that the region is bound to.
    ep: Option<Arc<Endpoint>>,
    virt: Index,
    phys: Index,
    gone: Arc<AtomicBool>,
    domain: Arc<Domain>,
    /// The region's own auth key. `None`: the domain's or the bound endpoint's auth key applies.
    auth: Option<AuthKey>,
    access: u64,
    dynamic: bool,
    /// The consumer must bind the region to an endpoint and enable it (`KFI_MR_ENDPOINT`).
    later: bool,
}

// SAFETY: The `repr(C)` object begins with the C structure of this class.
unsafe impl Object for MrObj {
    type C = raw::kfid_mr;
    const CLASS: u32 = raw::KFI_CLASS_MR;
    const OPS: &'static raw::kfi_ops = &MR;
}

static MR: raw::kfi_ops = raw::kfi_ops {
    size: size_of::<raw::kfi_ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ops_open: Some(obj::no_ops),
};

pub(super) static OPS: raw::kfi_ops_mr = raw::kfi_ops_mr {
    size: size_of::<raw::kfi_ops_mr>(),
    reg: Some(reg),
    regv: Some(regv),
    regbv: Some(regbv),
    regattr: Some(regattr),
    regsgl: Some(regsgl),
};

/// Measures a list of pieces: offset in the first page, total length, and the parts by address.
///
/// # Errors
///
/// - `EINVAL` if the list is empty, a piece is empty, or a piece begins or ends within a page where
///   the list continues.
/// - `EINVAL` if the memory is longer than `LONGEST`.
///
/// # Safety
///
/// The list is valid as `kfi_domain.h` describes.
unsafe fn measure(mut list: List) -> Result<(usize, usize, KVec<Part>)> {
    let (mut first, mut len, mut virt) = (None, 0usize, KVec::new());
    // SAFETY: By this function's contract the list is valid.
    while let Some(piece) = unsafe { list.pop() } {
        if piece.len() == 0 {
            return Err(EINVAL);
        }
        let begin = *first.get_or_insert(piece.first());
        // The limit keeps later additions of lengths and offsets from overflowing.
        if piece.len() > LONGEST - begin - len {
            return Err(EINVAL);
        }
        let at_page = (begin + len) & (PAGE_SIZE - 1) == 0 && piece.first() == 0;
        if len != 0 && !at_page {
            return Err(EINVAL);
        }
        if let Piece::Virt(addr, bytes) = piece {
            let part = Part {
                start: addr.addr() as u64,
                len: bytes as u64,
                offset: len as u64,
            };
            virt.push(part, GFP_KERNEL)?;
        }
        len = len.checked_add(piece.len()).ok_or(EINVAL)?;
    }
    Ok((first.ok_or(EINVAL)?, len, virt))
}

/// Iterates over the pages of a list, in order.
struct PagesOf {
    list: List,
    piece: Option<Piece>,
    next: Range<usize>,
}

impl Iterator for PagesOf {
    type Item = Result<NonNull<bindings::page>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let (Some(piece), Some(nth)) = (&self.piece, self.next.next()) {
                return Some(piece.page(nth));
            }
            // SAFETY: `register()` makes this iterator from a valid list, by its contract.
            let piece = unsafe { self.list.pop() }?;
            self.next = 0..piece.pages();
            self.piece = Some(piece);
        }
    }
}

/// Returns the parts of the memory by physical address.
fn physical(memory: &Memory) -> Result<KVec<Part>> {
    let mut parts = KVec::new();
    let mut offset = 0;
    for segment in memory.segments(0, memory.len()) {
        let part = Part {
            // SAFETY: The page belongs to `memory`, which exists.
            start: unsafe { raw::kf_c_page_phys(segment.page) } + segment.offset as u64,
            len: segment.len as u64,
            offset,
        };
        offset += part.len;
        parts.push(part, GFP_KERNEL)?;
    }
    Ok(parts)
}

/// Registers the memory that a list names.
///
/// # Safety
///
/// List and memory are valid as `kfi_domain.h` describes.
unsafe fn register(
    fid: *mut raw::kfid,
    list: List,
    how: (u64, u64, u64),
    auth: Option<AuthKey>,
    context: *mut c_void,
) -> Result<*mut raw::kfid_mr> {
    // SAFETY: By this function's contract.
    unsafe { register_by(fid, how, auth, context, || lent(list)) }
}

/// The memory of a registration: its parts by kernel address, and a flag that is set when the core has
/// dropped the last use of the memory.
struct Taken {
    memory: Arc<Memory>,
    virt: KVec<Part>,
    gone: Arc<AtomicBool>,
}

/// Uses the memory that a list names.
///
/// # Safety
///
/// List and memory are valid as `kfi_domain.h` describes.
unsafe fn lent(list: List) -> Result<Taken> {
    let gone = Arc::new(AtomicBool::new(false), GFP_KERNEL)?;
    // SAFETY: By this function's contract the list is valid.
    let (first, len, virt) = unsafe { measure(list)? };
    let lender = Arc::new(Gone(gone.clone()), GFP_KERNEL)?;
    let pages = PagesOf {
        list,
        piece: None,
        next: 0..0,
    };
    // SAFETY: The consumer keeps the memory until a close has succeeded. The close waits until the
    // core drops the lender.
    let memory = unsafe { Memory::lend(lender, pages, first, len)? };
    Ok(Taken { memory, virt, gone })
}

/// Uses memory of a DAX device, which the core keeps. A close need not wait for the last use.
///
/// # Safety
///
/// The range is valid as `kfi_dax.h` describes.
unsafe fn of_device(range: *const raw::kfi_dax_range) -> Result<Taken> {
    Ok(Taken {
        // SAFETY: By this function's contract.
        memory: unsafe { dax::memory(range)? },
        virt: KVec::new(),
        gone: Arc::new(AtomicBool::new(true), GFP_KERNEL)?,
    })
}

/// Registers the memory that `take` returns.
///
/// # Safety
///
/// `fid` is an open domain of this module.
unsafe fn register_by(
    fid: *mut raw::kfid,
    (access, offset, flags): (u64, u64, u64),
    auth: Option<AuthKey>,
    context: *mut c_void,
    take: impl FnOnce() -> Result<Taken>,
) -> Result<*mut raw::kfid_mr> {
    // SAFETY: By this function's contract.
    let domain = unsafe { obj::get::<DomainObj, _>(fid) };
    if offset != 0 || flags & !(KFI_DYNAMIC_KEYS | KFI_RMA_PMEM) != 0 {
        return Err(EINVAL);
    }
    let place = Place::<MrObj>::new()?;
    let Taken { memory, virt, gone } = take()?;
    if flags & KFI_RMA_PMEM != 0 {
        Region::check_durable(&domain.domain, &memory)?;
    }
    let mut object = MrObj {
        fid: Opaque::uninit(),
        region: None,
        virt: Index::new(virt),
        phys: Index::new(physical(&memory)?),
        memory: Some(memory),
        ep: None,
        gone,
        domain: domain.domain.clone(),
        auth,
        access,
        dynamic: flags & KFI_DYNAMIC_KEYS != 0,
        later: domain.ep_keys,
    };
    if !object.later {
        object.enable()?;
    }
    let value = object.region.as_ref().map(|region| region.key());
    // CAST: A descriptor is the address of its `MrObj`.
    let desc = place.ptr().cast();
    Ok(place.put(object, context, |c| {
        c.mem_desc = desc;
        c.key = value.map_or(KFI_KEY_NOTAVAIL, |value| value.key);
        c.iova = value.map_or(0, |value| value.remote_addr);
    }))
}

impl MrObj {
    fn enable(&mut self) -> Result {
        if self.region.is_some() {
            return Err(EINVAL);
        }
        let memory = self.memory.clone().ok_or(EINVAL)?;
        let (access, dynamic) = (self.access, self.dynamic);
        let region = match (&self.ep, &self.auth) {
            // A region that is bound to an endpoint must have the endpoint's auth key.
            (Some(ep), Some(key)) if ep.under().number() != key.number() => return Err(EINVAL),
            (Some(ep), _) => Region::register_for(ep, memory, access, dynamic)?,
            (None, _) if self.later => return Err(EINVAL),
            (None, Some(key)) => Region::register_with(&self.domain, memory, access, dynamic, key)?,
            (None, None) => Region::register(&self.domain, memory, access, dynamic)?,
        };
        self.region = Some(region);
        Ok(())
    }

    /// The core's region.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the region is not enabled, or is closing.
    pub(super) fn region(&self) -> Result<&Arc<Region>> {
        self.region.as_ref().ok_or(EINVAL)
    }

    /// Adds a piece of the region's memory to an operation.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if no single part of the region contains the piece.
    /// - `EINVAL` if the region is not enabled.
    /// - Any error of [`LocalMem::push`].
    pub(super) fn add(&self, segs: &mut LocalMem, kind: OpKind, piece: Piece) -> Result {
        let len = piece.len() as u64;
        let by_addr = match piece {
            Piece::Virt(addr, _) => self.virt.find(addr.addr() as u64, len),
            Piece::Pages(..) => None,
        };
        let at = by_addr
            .or_else(|| self.phys.find(piece.phys()?, len))
            .ok_or(EINVAL)?;
        segs.push(kind, self.region()?.clone(), at, len)
    }
}

/// Stores the new region at the caller's place, and returns 0 or the error number.
///
/// # Safety
///
/// `mr` is a valid place for the result.
unsafe fn answer(made: Result<*mut raw::kfid_mr>, mr: *mut *mut raw::kfid_mr) -> c_int {
    code(made.map(|made| {
        // SAFETY: By this function's contract `mr` is valid.
        unsafe { *mr = made }
    }))
}

/// Defines the call that registers the memory of one form of list.
macro_rules! reg_call {
    ($name:ident: $form:ident($piece:ty)) => {
        unsafe extern "C" fn $name(
            fid: *mut raw::kfid,
            list: *const $piece,
            count: usize,
            access: u64,
            offset: u64,
            _requested_key: u64,
            flags: u64,
            mr: *mut *mut raw::kfid_mr,
            context: *mut c_void,
        ) -> c_int {
            let (list, how) = (List::$form(list, count), (access, offset, flags));
            // SAFETY: The consumer fulfils the call's contract in `kfi_domain.h`.
            unsafe { answer(register(fid, list, how, None, context), mr) }
        }
    };
}

reg_call!(reg: One(c_void));
reg_call!(regv: Kvec(bindings::kvec));
reg_call!(regbv: Bvec(bindings::bio_vec));
reg_call!(regsgl: Sgl(bindings::scatterlist));

unsafe extern "C" fn regattr(
    fid: *mut raw::kfid,
    attr: *const raw::kfi_mr_attr,
    flags: u64,
    mr: *mut *mut raw::kfid_mr,
) -> c_int {
    let go = || {
        // SAFETY: The caller passes valid attributes, or null.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: The auth key of valid attributes has `auth_key_size` bytes, or is null.
        let auth = unsafe { auth::key(attr.auth_key, attr.auth_key_size)? };
        // SAFETY: All members of the union are pointers.
        let list: *const c_void = unsafe { attr.__bindgen_anon_1.mr_iov }.cast();
        let (how, context) = ((attr.access, attr.offset, flags), attr.context);
        if attr.type_ == raw::kfi_iov_type_KFI_DAX {
            if attr.iov_count != 1 {
                return Err(EINVAL);
            }
            // SAFETY: The consumer fulfils the contract of `kfi_mr_regattr()`.
            return unsafe { register_by(fid, how, auth, context, || of_device(list.cast())) };
        }
        let list = List::of(attr.type_, list, attr.iov_count)?;
        // SAFETY: The consumer fulfils the contract of `kfi_mr_regattr()`.
        unsafe { register(fid, list, how, auth, context) }
    };
    // SAFETY: The caller passes a valid place for the result.
    unsafe { answer(go(), mr) }
}

impl MrObj {
    fn close(&mut self) -> Result {
        if let Some(region) = &self.region {
            region.close()?;
        }
        self.region = None;
        self.memory = None;
        // Operations that have completed drop their reference to the memory a moment later.
        for _ in 0..LINGER_MS {
            if self.gone.load(Ordering::Acquire) {
                return Ok(());
            }
            fsleep(Delta::from_millis(1));
        }
        Err(EBUSY)
    }
}

unsafe extern "C" fn close(fid: *mut raw::kfid) -> c_int {
    // SAFETY: The consumer closes a region of this module and no longer uses it. Operations use the
    // core's region, not this object.
    if let Err(e) = unsafe { &mut *fid.cast::<MrObj>() }.close() {
        return e.to_errno();
    }
    // SAFETY: The region is closed, and the consumer no longer uses it.
    drop(unsafe { obj::take::<MrObj>(fid) });
    0
}

unsafe extern "C" fn bind(fid: *mut raw::kfid, bfid: *mut raw::kfid, flags: u64) -> c_int {
    // SAFETY: The consumer passes a region of this module, and makes no other call on it meanwhile.
    let this = unsafe { &mut *fid.cast::<MrObj>() };
    // SAFETY: The consumer passes another open object.
    let ep = unsafe { obj::try_get::<EpObj>(bfid) };
    match ep {
        Some(ep) if flags == 0 && this.later && this.ep.is_none() => this.ep = Some(ep.ep.clone()),
        _ => return EINVAL.to_errno(),
    }
    0
}

unsafe extern "C" fn control(fid: *mut raw::kfid, command: c_int, arg: *mut c_void) -> c_int {
    // CAST: Command numbers are small and positive.
    match command as u32 {
        raw::KFI_ENABLE => {
            // SAFETY: The consumer passes a region, and makes no other call on it meanwhile.
            let this = unsafe { &mut *fid.cast::<MrObj>() };
            if let Err(e) = this.enable() {
                return e.to_errno();
            }
            let value = this.region.as_ref().map(|region| region.key());
            if let Some(value) = value {
                let c: *mut raw::kfid_mr = this.fid.get();
                // SAFETY: `c` is the C structure at the start of `this`, which this call borrows
                // mutably.
                unsafe {
                    (*c).key = value.key;
                    (*c).iova = value.remote_addr;
                }
            }
            0
        }
        // Nothing to do: the registered pages themselves are the kernel's memory.
        raw::KFI_REFRESH => 0,
        raw::KFI_ALLOC_KEYS => {
            // SAFETY: The consumer passes an open region and the argument of `KFI_ALLOC_KEYS`.
            let (this, alloc) = unsafe {
                (
                    obj::get::<MrObj, _>(fid),
                    arg.cast::<raw::kfi_key_alloc>().as_ref(),
                )
            };
            let Some(alloc) = alloc else {
                return EINVAL.to_errno();
            };
            // SAFETY: The consumer fulfils the contract of `KFI_ALLOC_KEYS`.
            code(unsafe { key::alloc(this, alloc) })
        }
        _ => enosys().to_errno(),
    }
}
