// SPDX-License-Identifier: GPL-2.0
//! Registered memory: the kernel's, by address, by pages, by scatterlist. It stays the consumer's.

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
    ep::Endpoint,
    fabric::Domain,
    memory::{
        Lender,
        Memory, //
    },
    op::{
        OpKind,
        Segs, //
    },
    region::Region,
    uapi::{
        KFI_DYNAMIC_KEYS,
        KFI_KEY_NOTAVAIL, //
    },
};

/// How long a close waits for operations that are just ending, in milliseconds.
const LINGER_MS: usize = 1000;

/// A piece of the kernel's memory, as a consumer names it.
#[derive(Clone, Copy)]
pub(super) enum Piece {
    /// By its address.
    Virt(*const c_void, usize),
    /// By its first page, where in that it begins, and its length.
    Pages(*mut bindings::page, usize, usize),
}

/// A consumer's list of pieces.
#[derive(Clone, Copy)]
pub(super) enum List {
    /// One piece.
    One(*const c_void, usize),
    /// Kernel addresses.
    Kvec(*const bindings::kvec, usize),
    /// Pages.
    Bvec(*const bindings::bio_vec, usize),
    /// A scatterlist, from this entry on, and how many entries are left.
    Sgl(*const bindings::scatterlist, usize),
}

impl List {
    /// A list by its type.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such type.
    pub(super) fn of(ty: raw::kfi_iov_type, list: *const c_void, count: usize) -> Result<Self> {
        Ok(match ty {
            raw::kfi_iov_type_KFI_KVEC => Self::Kvec(list.cast(), count),
            raw::kfi_iov_type_KFI_BVEC => Self::Bvec(list.cast(), count),
            raw::kfi_iov_type_KFI_SGL => Self::Sgl(list.cast(), count),
            _ => return Err(EINVAL),
        })
    }

    /// Takes the first piece off the list.
    ///
    /// # Safety
    ///
    /// The list is as the header says.
    pub(super) unsafe fn pop(&mut self) -> Option<Piece> {
        match self {
            Self::One(addr, len) => {
                let piece = Piece::Virt(*addr, *len);
                *self = Self::Kvec(ptr::null(), 0);
                Some(piece)
            }
            Self::Kvec(list, count) => {
                *count = count.checked_sub(1)?;
                // SAFETY: There was one left.
                let one = unsafe { &**list };
                *list = list.wrapping_add(1);
                Some(Piece::Virt(one.iov_base, one.iov_len))
            }
            Self::Bvec(list, count) => {
                *count = count.checked_sub(1)?;
                // SAFETY: There was one left.
                let one = unsafe { &**list };
                *list = list.wrapping_add(1);
                // CAST: `u32` fit.
                let (offset, len) = (one.bv_offset as usize, one.bv_len as usize);
                Some(Piece::Pages(one.bv_page, offset, len))
            }
            Self::Sgl(sg, count) => {
                *count = count.checked_sub(1)?;
                if sg.is_null() {
                    // Fewer than was said: what is not there is no memory.
                    return Some(Piece::Pages(ptr::null_mut(), 0, 1));
                }
                let (mut page, mut offset, mut len) = (ptr::null_mut(), 0, 0);
                // SAFETY: There was one left; the places are ours.
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

    /// Where in its page it begins.
    fn first(&self) -> usize {
        match *self {
            Self::Virt(addr, _) => addr.addr() & (PAGE_SIZE - 1),
            Self::Pages(_, offset, _) => offset & (PAGE_SIZE - 1),
        }
    }

    /// How many pages it touches.
    fn pages(&self) -> usize {
        (self.first() + self.len()).div_ceil(PAGE_SIZE)
    }

    /// The nth page that it touches.
    ///
    /// # Errors
    ///
    /// `EFAULT`: it is no memory of the kernel's.
    fn page(&self, nth: usize) -> Result<NonNull<bindings::page>> {
        let page = match *self {
            // SAFETY: Any address can be asked for.
            Self::Virt(addr, _) => unsafe {
                raw::kf_c_page(addr.wrapping_byte_add(nth << PAGE_SHIFT))
            },
            Self::Pages(page, ..) if page.is_null() => page,
            // SAFETY: Pages that the consumer has follow each other.
            Self::Pages(page, offset, _) => unsafe {
                raw::kf_c_page_of(page, (offset >> PAGE_SHIFT) + nth)
            },
        };
        NonNull::new(page).ok_or(EFAULT)
    }

    /// Its physical address, if it has one.
    fn phys(&self) -> Option<u64> {
        match *self {
            // SAFETY: Any address can be asked for.
            Self::Virt(addr, _) => match unsafe { raw::kf_c_phys(addr) } {
                u64::MAX => None,
                phys => Some(phys),
            },
            Self::Pages(page, ..) if page.is_null() => None,
            Self::Pages(page, offset, _) => {
                // SAFETY: A page of the consumer's.
                let start = unsafe { raw::kf_c_page_phys(page) };
                Some(start + offset as u64)
            }
        }
    }
}

/// Tells when lent memory is not used any more.
struct Gone(Arc<AtomicBool>);

impl Lender for Gone {}

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Bytes of a registration, at most, with what lies before it in its first page.
const LONGEST: usize = isize::MAX as usize - PAGE_SIZE;

/// Where a contiguous part of the memory is, by some kind of address.
#[repr(C)]
struct Part {
    start: u64,
    len: u64,
    /// Its first byte, counted from the memory's start.
    offset: u64,
}

/// Parts in the order of their addresses.
struct Index(KVec<Part>);

impl Index {
    fn new(mut parts: KVec<Part>) -> Self {
        // SAFETY: So many parts are there, each of which begins with its address.
        unsafe { raw::kf_c_sort(parts.as_mut_ptr().cast(), parts.len(), size_of::<Part>()) };
        Self(parts)
    }

    /// Where [addr, addr + len) is.
    fn find(&self, addr: u64, len: u64) -> Option<u64> {
        let part = match &self.0[..] {
            // Most have one.
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

/// Registered memory.
#[repr(C)]
pub(super) struct MrObj {
    fid: Opaque<raw::kfid_mr>,
    /// None before it is enabled, and once its close has begun.
    region: Option<Arc<Region>>,
    memory: Option<Arc<Memory>>,
    /// The endpoint that it is bound to.
    ep: Option<Arc<Endpoint>>,
    virt: Index,
    phys: Index,
    gone: Arc<AtomicBool>,
    domain: Arc<Domain>,
    /// Its own; none: the domain's, or its endpoint's.
    auth: Option<AuthKey>,
    access: u64,
    dynamic: bool,
    /// It is to be bound and enabled.
    later: bool,
}

// SAFETY: Begins with its structure, whose class this is.
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

/// The pages of a list of pieces: the first piece's begin, the length of all, and where they are by
/// their addresses.
///
/// # Errors
///
/// `EINVAL`: nothing, or a gap within a page.
///
/// # Safety
///
/// The list is as the header says.
unsafe fn measure(mut list: List) -> Result<(usize, usize, KVec<Part>)> {
    let (mut first, mut len, mut virt) = (None, 0usize, KVec::new());
    // SAFETY: The caller's promise.
    while let Some(piece) = unsafe { list.pop() } {
        if piece.len() == 0 {
            return Err(EINVAL);
        }
        let begin = *first.get_or_insert(piece.first());
        // What follows has room to count.
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

/// The pages of a list, in order.
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
            // SAFETY: Whoever made this promised that the list is good.
            let piece = unsafe { self.list.pop() }?;
            self.next = 0..piece.pages();
            self.piece = Some(piece);
        }
    }
}

/// Where memory is by physical addresses.
fn physical(memory: &Memory) -> Result<KVec<Part>> {
    let mut parts = KVec::new();
    let mut offset = 0;
    for segment in memory.segments(0, memory.len()) {
        let part = Part {
            // SAFETY: A page of the memory's.
            start: unsafe { raw::kf_c_page_phys(segment.page) } + segment.offset as u64,
            len: segment.len as u64,
            offset,
        };
        offset += part.len;
        parts.push(part, GFP_KERNEL)?;
    }
    Ok(parts)
}

/// Registers what a list names.
///
/// # Safety
///
/// The list, and the memory that it names, are as the header says.
unsafe fn register(
    fid: *mut raw::kfid,
    list: List,
    (access, offset, flags): (u64, u64, u64),
    auth: Option<AuthKey>,
    context: *mut c_void,
) -> Result<*mut raw::kfid_mr> {
    // SAFETY: The consumer passes one of ours.
    let domain = unsafe { obj::get::<DomainObj, _>(fid) };
    if offset != 0 || flags & !KFI_DYNAMIC_KEYS != 0 {
        return Err(EINVAL);
    }
    let place = Place::<MrObj>::new()?;
    let gone = Arc::new(AtomicBool::new(false), GFP_KERNEL)?;
    // SAFETY: The caller's promise.
    let (first, len, virt) = unsafe { measure(list)? };
    let lender = Arc::new(Gone(gone.clone()), GFP_KERNEL)?;
    let pages = PagesOf {
        list,
        piece: None,
        next: 0..0,
    };
    // SAFETY: The consumer keeps its memory until a close has succeeded, and that waits for the drop
    // of the lender.
    let memory = unsafe { Memory::lend(lender, pages, first, len)? };
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
    // CAST: A descriptor is the address of what it describes.
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
            // What is bound to an endpoint is under the endpoint's.
            (Some(ep), Some(key)) if ep.under().number() != key.number() => return Err(EINVAL),
            (Some(ep), _) => Region::register_for(ep, memory, access, dynamic)?,
            (None, _) if self.later => return Err(EINVAL),
            (None, Some(key)) => Region::register_with(&self.domain, memory, access, dynamic, key)?,
            (None, None) => Region::register(&self.domain, memory, access, dynamic)?,
        };
        self.region = Some(region);
        Ok(())
    }

    /// The region.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is not enabled, or closing.
    pub(super) fn region(&self) -> Result<&Arc<Region>> {
        self.region.as_ref().ok_or(EINVAL)
    }

    /// Adds a piece of it to an operation.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is not inside, in one part. Else what [`Segs::push`] says.
    pub(super) fn add(&self, segs: &mut Segs, kind: OpKind, piece: Piece) -> Result {
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

/// Puts what was registered where the caller wants it.
///
/// # Safety
///
/// `mr` is the caller's place.
unsafe fn answer(made: Result<*mut raw::kfid_mr>, mr: *mut *mut raw::kfid_mr) -> c_int {
    code(made.map(|made| {
        // SAFETY: The caller's promise.
        unsafe { *mr = made }
    }))
}

unsafe extern "C" fn reg(
    fid: *mut raw::kfid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    _requested_key: u64,
    flags: u64,
    mr: *mut *mut raw::kfid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: The consumer does as the header says, here and below.
    unsafe {
        answer(
            register(
                fid,
                List::One(buf, len),
                (access, offset, flags),
                None,
                context,
            ),
            mr,
        )
    }
}

unsafe extern "C" fn regv(
    fid: *mut raw::kfid,
    iov: *const bindings::kvec,
    count: usize,
    access: u64,
    offset: u64,
    _requested_key: u64,
    flags: u64,
    mr: *mut *mut raw::kfid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: As above.
    unsafe {
        answer(
            register(
                fid,
                List::Kvec(iov, count),
                (access, offset, flags),
                None,
                context,
            ),
            mr,
        )
    }
}

unsafe extern "C" fn regbv(
    fid: *mut raw::kfid,
    biov: *const bindings::bio_vec,
    count: usize,
    access: u64,
    offset: u64,
    _requested_key: u64,
    flags: u64,
    mr: *mut *mut raw::kfid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: As above.
    unsafe {
        answer(
            register(
                fid,
                List::Bvec(biov, count),
                (access, offset, flags),
                None,
                context,
            ),
            mr,
        )
    }
}

unsafe extern "C" fn regsgl(
    fid: *mut raw::kfid,
    sgl: *const bindings::scatterlist,
    count: usize,
    access: u64,
    offset: u64,
    _requested_key: u64,
    flags: u64,
    mr: *mut *mut raw::kfid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: As above.
    unsafe {
        answer(
            register(
                fid,
                List::Sgl(sgl, count),
                (access, offset, flags),
                None,
                context,
            ),
            mr,
        )
    }
}

unsafe extern "C" fn regattr(
    fid: *mut raw::kfid,
    attr: *const raw::kfi_mr_attr,
    flags: u64,
    mr: *mut *mut raw::kfid_mr,
) -> c_int {
    let go = || {
        // SAFETY: The caller's attributes, or null.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: As above.
        let auth = unsafe { auth::key(attr.auth_key, attr.auth_key_size)? };
        // SAFETY: A union of pointers.
        let list = unsafe { attr.__bindgen_anon_1.mr_iov }.cast();
        let list = List::of(attr.type_, list, attr.iov_count)?;
        // SAFETY: As above.
        unsafe {
            register(
                fid,
                list,
                (attr.access, attr.offset, flags),
                auth,
                attr.context,
            )
        }
    };
    // SAFETY: As above.
    unsafe { answer(go(), mr) }
}

impl MrObj {
    fn close(&mut self) -> Result {
        if let Some(region) = &self.region {
            region.close()?;
        }
        self.region = None;
        self.memory = None;
        // Operations that are over let go of it a moment later.
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
    // SAFETY: The consumer closes one of ours, which nobody uses but operations, and those do not
    // know this.
    if let Err(e) = unsafe { &mut *fid.cast::<MrObj>() }.close() {
        return e.to_errno();
    }
    // SAFETY: As above.
    drop(unsafe { obj::take::<MrObj>(fid) });
    0
}

unsafe extern "C" fn bind(fid: *mut raw::kfid, bfid: *mut raw::kfid, flags: u64) -> c_int {
    // SAFETY: The consumer passes one of ours, which nobody else changes or uses meanwhile.
    let this = unsafe { &mut *fid.cast::<MrObj>() };
    // SAFETY: The consumer passes another object.
    let ep = unsafe { obj::try_get::<EpObj>(bfid) };
    match ep {
        Some(ep) if flags == 0 && this.later && this.ep.is_none() => this.ep = Some(ep.ep.clone()),
        _ => return EINVAL.to_errno(),
    }
    0
}

unsafe extern "C" fn control(fid: *mut raw::kfid, command: c_int, arg: *mut c_void) -> c_int {
    // CAST: Commands are small.
    match command as u32 {
        raw::KFI_ENABLE => {
            // SAFETY: As for `bind`.
            let this = unsafe { &mut *fid.cast::<MrObj>() };
            if let Err(e) = this.enable() {
                return e.to_errno();
            }
            let value = this.region.as_ref().map(|region| region.key());
            if let Some(value) = value {
                let c: *mut raw::kfid_mr = this.fid.get();
                // SAFETY: Its own structure.
                unsafe {
                    (*c).key = value.key;
                    (*c).iova = value.remote_addr;
                }
            }
            0
        }
        // The kernel's memory is what was registered.
        raw::KFI_REFRESH => 0,
        raw::KFI_ALLOC_KEYS => {
            // SAFETY: The consumer passes one of ours, and what the command takes.
            let (this, alloc) = unsafe {
                (
                    obj::get::<MrObj, _>(fid),
                    arg.cast::<raw::kfi_key_alloc>().as_ref(),
                )
            };
            let Some(alloc) = alloc else {
                return EINVAL.to_errno();
            };
            // SAFETY: As above.
            code(unsafe { key::alloc(this, alloc) })
        }
        _ => enosys().to_errno(),
    }
}
