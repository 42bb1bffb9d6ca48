// SPDX-License-Identifier: GPL-2.0
//! Messages and one-sided operations, in every form of the C API. Context: any.

use core::ptr;
use kernel::{
    bindings::{
        bio_vec,
        kvec,
        scatterlist, //
    },
    ffi::c_void,
    prelude::*, //
};

use super::{
    ep::EpObj,
    mr::{
        List,
        MrObj,
        Piece, //
    },
    obj::{
        self,
        kfi_error, //
    },
    raw, //
};
use crate::{
    base::errno::eopnotsupp,
    ep::{
        LocalMem,
        Post, //
    },
    op::OpKind,
    uapi::{
        KFI_COMMIT_COMPLETE,
        KFI_COMPLETION,
        KFI_DELIVERY_COMPLETE,
        KFI_FENCE,
        KFI_INJECT,
        KFI_INJECT_MAX,
        KFI_REMOTE_CQ_DATA, //
    },
};

/// Flags whose value is the same in the core.
const SAME: u64 =
    KFI_COMPLETION | KFI_INJECT | KFI_REMOTE_CQ_DATA | KFI_DELIVERY_COMPLETE | KFI_COMMIT_COMPLETE;
/// Flags that need no action: a promise that every completion keeps, or a hint.
const MEANT: u64 = (raw::KFI_INJECT_COMPLETE | raw::KFI_TRANSMIT_COMPLETE | raw::KFI_MORE) as u64;

/// Returns `flags` if kfabric supports each flag.
///
/// # Errors
///
/// - `EINVAL` if a flag is unknown.
pub(super) fn check_flags(flags: u64) -> Result<u64> {
    if flags & !(SAME | MEANT | u64::from(raw::KFI_FENCE)) != 0 {
        return Err(EINVAL);
    }
    Ok(flags)
}

/// Returns `flags` if an endpoint may have them as defaults for all its operations.
///
/// # Errors
///
/// - As [`check_flags`].
/// - `EOPNOTSUPP` if a flag is valid only in the call of one operation.
pub(super) fn check_own_flags(flags: u64) -> Result<u64> {
    if check_flags(flags)? & !(KFI_COMPLETION | MEANT) != 0 {
        return Err(eopnotsupp());
    }
    Ok(flags)
}

/// Source of an operation's flags in the C API.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flags {
    /// The endpoint's default flags: the call has no flags argument.
    Own,
    /// Flags of a call that posts a message structure.
    Message(u64),
    /// Flags of a call that injects: success has no completion.
    Inject(u64),
}

/// Returns the core's flags of an operation on an endpoint.
///
/// In the core an injected operation has a completion on success only with `KFI_COMPLETION`, as
/// `kfi_inject()` requires. In a message, `KFI_INJECT` only lets the caller reuse its buffers after
/// the return; the message completes as others do. So this function adds `KFI_COMPLETION` to such a
/// message.
///
/// # Errors
///
/// - As [`check_flags`].
#[inline]
pub(super) fn core_flags(ep: &EpObj, kind: OpKind, given: Flags) -> Result<u64> {
    let own = match kind {
        OpKind::Recv => ep.flags.1,
        _ => ep.flags.0,
    };
    let of_message = matches!(given, Flags::Message(_));
    let given = match given {
        Flags::Message(flags) | Flags::Inject(flags) => check_flags(flags)?,
        Flags::Own => own & KFI_COMPLETION,
    };
    let mut flags = given & SAME;
    if given & u64::from(raw::KFI_FENCE) != 0 {
        flags |= KFI_FENCE;
    }
    if of_message && flags & KFI_INJECT != 0 && !ep.ep.is_selective(kind) {
        flags |= KFI_COMPLETION;
    }
    Ok(flags)
}

/// An operation without its local memory.
struct Op {
    kind: OpKind,
    flags: Flags,
    context: *mut c_void,
    data: Option<u64>,
    /// Address and key of the peer's memory.
    remote: (u64, u64),
}

impl Op {
    fn new(kind: OpKind, context: *mut c_void) -> Self {
        Self {
            kind,
            flags: Flags::Own,
            context,
            data: None,
            remote: (0, 0),
        }
    }
}

/// Descriptors of an operation's local memory.
#[derive(Clone, Copy)]
pub(super) enum Descs {
    /// A descriptor that is valid for all pieces.
    One(*mut c_void),
    /// An array with a descriptor for each piece.
    Each(*mut *mut c_void),
}

impl Descs {
    /// Returns the region that contains the piece with index `nth`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the consumer passed no descriptor for the piece.
    ///
    /// # Safety
    ///
    /// Each descriptor is that of an open region, or null. An array has more than `nth`
    /// descriptors, or is null.
    pub(super) unsafe fn get<'a>(&self, nth: usize) -> Result<&'a MrObj> {
        let desc = match *self {
            Self::One(desc) => desc,
            Self::Each(list) if list.is_null() => ptr::null_mut(),
            // SAFETY: By this function's contract the array has more than `nth` descriptors.
            Self::Each(list) => unsafe { *list.add(nth) },
        };
        if desc.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: By this function's contract the descriptor is the address of an open `MrObj`.
        Ok(unsafe { obj::get::<MrObj, _>(desc) })
    }
}

/// Copies the payload of an injected operation and returns its length.
///
/// # Errors
///
/// - `EMSGSIZE` if the payload is longer than `KFI_INJECT_MAX` bytes.
/// - `EINVAL` if a scatterlist ends before its count of entries.
///
/// # Safety
///
/// List and memory are valid as `kfi_endpoint.h` describes.
unsafe fn gather(mut list: List, to: &mut [u8; KFI_INJECT_MAX]) -> Result<usize> {
    let mut done = 0;
    // SAFETY: By this function's contract the list is valid.
    while let Some(piece) = unsafe { list.pop() } {
        if piece.len() == 0 {
            continue;
        }
        let from: *const u8 = match piece {
            Piece::Virt(addr, _) => addr.cast(),
            Piece::Pages(page, ..) if page.is_null() => return Err(EINVAL),
            // SAFETY: The page is the consumer's and not null. On x86-64 every page has a kernel
            // address.
            Piece::Pages(page, offset, _) => unsafe {
                crate::sys::kf_page_address(page).cast::<u8>().add(offset)
            },
        };
        let room = to
            .get_mut(done..)
            .and_then(|rest| rest.get_mut(..piece.len()))
            .ok_or_else(|| kfi_error(kernel::bindings::EMSGSIZE))?;
        // SAFETY: By this function's contract the piece has `piece.len()` bytes, as many as `room`.
        // `room` is a local buffer, so the two do not overlap.
        unsafe { ptr::copy_nonoverlapping(from, room.as_mut_ptr(), room.len()) };
        done += piece.len();
    }
    Ok(done)
}

/// Returns the core's form of an operation.
#[inline(always)]
fn wanted<'a>(op: &Op, flags: u64, inject: &'a [u8], segs: LocalMem) -> Post<'a> {
    let with_data = flags & KFI_REMOTE_CQ_DATA != 0;
    Post {
        kind: op.kind,
        flags,
        // CAST: The consumer's pointer fits in 64 bits; the core does not follow it.
        context: op.context as u64,
        data: if with_data { op.data.unwrap_or(0) } else { 0 },
        remote_addr: op.remote.0,
        key: op.remote.1,
        inject,
        atomic: None,
        segs,
    }
}

/// Copies the payload of an injected operation and posts the operation.
///
/// # Safety
///
/// As for [`gather`].
#[inline(never)]
unsafe fn post_injected(ep: &EpObj, op: &Op, flags: u64, list: List) -> Result {
    let mut short = [0; KFI_INJECT_MAX];
    // SAFETY: By this function's contract list and memory are valid.
    let len = unsafe { gather(list, &mut short)? };
    let short = short.get(..len).unwrap_or(&[]);
    ep.ep.post(wanted(op, flags, short, LocalMem::new()))
}

/// Returns the core's flags of an operation.
///
/// # Errors
///
/// - As [`core_flags`].
#[inline(always)]
fn flags_of(ep: &EpObj, op: &Op) -> Result<u64> {
    let mut flags = core_flags(ep, op.kind, op.flags)?;
    if op.data.is_some() && op.flags == Flags::Own {
        flags |= KFI_REMOTE_CQ_DATA;
    }
    Ok(flags)
}

/// Posts an operation on the memory in a list.
///
/// # Safety
///
/// The endpoint is open and of this module. List, descriptors and memory are valid as
/// `kfi_endpoint.h` describes.
unsafe fn try_post(ep: *mut raw::kfid_ep, op: &Op, mut list: List, descs: Descs) -> Result {
    // SAFETY: By this function's contract the endpoint is open and of this module.
    let this = unsafe { obj::get::<EpObj, _>(ep) };
    let flags = flags_of(this, op)?;
    if flags & KFI_INJECT != 0 {
        // SAFETY: By this function's contract list and memory are valid.
        return unsafe { post_injected(this, op, flags, list) };
    }
    let mut segs = LocalMem::new();
    let mut nth = 0;
    // SAFETY: By this function's contract the list is valid.
    while let Some(piece) = unsafe { list.pop() } {
        if piece.len() != 0 {
            // SAFETY: By this function's contract each piece of the list has a descriptor, or none
            // has.
            unsafe { descs.get(nth)? }.add(&mut segs, op.kind, piece)?;
        }
        nth += 1;
    }
    this.ep.post(wanted(op, flags, &[], segs))
}

/// Posts as [`try_post`]; returns 0 or a negative error number.
///
/// # Safety
///
/// As for [`try_post`].
unsafe fn post(ep: *mut raw::kfid_ep, op: Op, list: List, descs: Descs) -> isize {
    // SAFETY: This function has the contract of `try_post()`.
    answer(unsafe { try_post(ep, &op, list, descs) })
}

/// Posts an operation on one registered piece with the endpoint's default flags.
///
/// Most callers take this path; it is inlined into each call.
///
/// # Safety
///
/// As for [`try_post`].
#[inline(always)]
unsafe fn try_one(
    ep: *mut raw::kfid_ep,
    op: &Op,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
) -> Result {
    // SAFETY: By this function's contract the endpoint is open and of this module.
    let this = unsafe { obj::get::<EpObj, _>(ep) };
    let flags = flags_of(this, op)?;
    let mut segs = LocalMem::new();
    if len != 0 {
        // SAFETY: By this function's contract the descriptor is that of an open region, or null.
        let mr = unsafe { Descs::One(desc).get(0)? };
        mr.add(&mut segs, op.kind, Piece::Virt(buf, len))?;
    }
    this.ep.post(wanted(op, flags, &[], segs))
}

/// Posts as [`try_one`]; returns 0 or a negative error number.
///
/// # Safety
///
/// As for [`try_post`].
#[inline(always)]
unsafe fn post_one(
    ep: *mut raw::kfid_ep,
    op: Op,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
) -> isize {
    // SAFETY: This function has the contract of `try_one()`.
    answer(unsafe { try_one(ep, &op, buf, len, desc) })
}

/// Returns an outcome as 0 or a negative error number.
#[inline(always)]
fn answer(outcome: Result) -> isize {
    match outcome {
        Ok(()) => 0,
        // CAST: An `isize` holds every `c_int`.
        Err(e) => e.to_errno() as isize,
    }
}

/// Posts a `struct kfi_msg`.
///
/// # Safety
///
/// The endpoint is open and of this module. The message is valid as `kfi_endpoint.h` describes.
unsafe fn message(
    ep: *mut raw::kfid_ep,
    kind: OpKind,
    msg: *const raw::kfi_msg,
    flags: u64,
) -> isize {
    // SAFETY: By this function's contract the message is valid.
    let msg = unsafe { &*msg };
    // SAFETY: All members of the union are pointers, so each is a valid value.
    let list = unsafe { msg.__bindgen_anon_1.msg_iov }.cast();
    let op = Op {
        flags: Flags::Message(flags),
        data: Some(msg.data),
        ..Op::new(kind, msg.context)
    };
    match List::of(msg.type_, list, msg.iov_count) {
        // SAFETY: By this function's contract endpoint, list, descriptors and memory are valid.
        Ok(list) => unsafe { post(ep, op, list, Descs::Each(msg.desc)) },
        // CAST: An `isize` holds every `c_int`.
        Err(e) => e.to_errno() as isize,
    }
}

/// Posts a `struct kfi_msg_rma`.
///
/// # Safety
///
/// The endpoint is open and of this module. The message is valid as `kfi_rma.h` describes.
unsafe fn one_sided(
    ep: *mut raw::kfid_ep,
    kind: OpKind,
    msg: *const raw::kfi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: By this function's contract the message is valid.
    let msg = unsafe { &*msg };
    // SAFETY: All members of the union are pointers, so each is a valid value.
    let list = unsafe { msg.__bindgen_anon_1.msg_iov }.cast();
    let list = List::of(msg.type_, list, msg.iov_count);
    let (Ok(list), 1) = (list, msg.rma_iov_count) else {
        // CAST: An `isize` holds every `c_int`.
        return EINVAL.to_errno() as isize;
    };
    // SAFETY: The message is valid and has one remote piece, as checked above.
    let remote = unsafe { &*msg.rma_iov };
    // SAFETY: By this function's contract the list is valid.
    if remote.len != unsafe { total(list) } {
        // CAST: An `isize` holds every `c_int`.
        return EINVAL.to_errno() as isize;
    }
    let op = Op {
        flags: Flags::Message(flags),
        data: Some(msg.data),
        remote: (remote.addr, remote.key),
        ..Op::new(kind, msg.context)
    };
    // SAFETY: By this function's contract endpoint, list, descriptors and memory are valid.
    unsafe { post(ep, op, list, Descs::Each(msg.desc)) }
}

/// Returns the total length of a list in bytes.
///
/// # Safety
///
/// The list is valid as `kfi_domain.h` describes.
unsafe fn total(mut list: List) -> usize {
    let mut total = 0usize;
    // SAFETY: By this function's contract the list is valid.
    while let Some(piece) = unsafe { list.pop() } {
        total = total.saturating_add(piece.len());
    }
    total
}

/// Defines a call on one piece. A one-sided operation's names the peer's address and key.
macro_rules! one_call {
    ($name:ident: $kind:ident, $buf:ty $(, $addr:ident, $key:ident)?) => {
        unsafe extern "C" fn $name(
            ep: *mut raw::kfid_ep,
            buf: $buf,
            len: usize,
            desc: *mut c_void,
            _peer: raw::kfi_addr_t,
            $($addr: u64, $key: u64,)?
            context: *mut c_void,
        ) -> isize {
            let op = Op::new(OpKind::$kind, context);
            $(let op = Op { remote: ($addr, $key), ..op };)?
            // SAFETY: The consumer meets the header's contract for this call.
            unsafe { post_one(ep, op, buf, len, desc) }
        }
    };
}

/// Defines a call on a list of one form, else as [`one_call`].
macro_rules! list_call {
    ($name:ident: $kind:ident, $form:ident($piece:ty) $(, $addr:ident, $key:ident)?) => {
        unsafe extern "C" fn $name(
            ep: *mut raw::kfid_ep,
            list: *const $piece,
            desc: *mut *mut c_void,
            count: usize,
            _peer: raw::kfi_addr_t,
            $($addr: u64, $key: u64,)?
            context: *mut c_void,
        ) -> isize {
            let op = Op::new(OpKind::$kind, context);
            $(let op = Op { remote: ($addr, $key), ..op };)?
            // SAFETY: The consumer meets the header's contract for this call.
            unsafe { post(ep, op, List::$form(list, count), Descs::Each(desc)) }
        }
    };
}

one_call!(recv: Recv, *mut c_void);
list_call!(recvv: Recv, Kvec(kvec));
list_call!(recvbv: Recv, Bvec(bio_vec));
list_call!(recvsgl: Recv, Sgl(scatterlist));

one_call!(send: Send, *const c_void);
list_call!(sendv: Send, Kvec(kvec));
list_call!(sendbv: Send, Bvec(bio_vec));
list_call!(sendsgl: Send, Sgl(scatterlist));

one_call!(read: Read, *mut c_void, addr, key);
list_call!(readv: Read, Kvec(kvec), addr, key);
list_call!(readbv: Read, Bvec(bio_vec), addr, key);
list_call!(readsgl: Read, Sgl(scatterlist), addr, key);

one_call!(write: Write, *const c_void, addr, key);
list_call!(writev: Write, Kvec(kvec), addr, key);
list_call!(writebv: Write, Bvec(bio_vec), addr, key);
list_call!(writesgl: Write, Sgl(scatterlist), addr, key);

unsafe extern "C" fn recvmsg(ep: *mut raw::kfid_ep, msg: *const raw::kfi_msg, flags: u64) -> isize {
    // SAFETY: The consumer meets the header's contract for this call.
    unsafe { message(ep, OpKind::Recv, msg, flags) }
}

unsafe extern "C" fn sendmsg(ep: *mut raw::kfid_ep, msg: *const raw::kfi_msg, flags: u64) -> isize {
    // SAFETY: The consumer meets the header's contract for this call.
    unsafe { message(ep, OpKind::Send, msg, flags) }
}

unsafe extern "C" fn readmsg(
    ep: *mut raw::kfid_ep,
    msg: *const raw::kfi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: The consumer meets the header's contract for this call.
    unsafe { one_sided(ep, OpKind::Read, msg, flags) }
}

unsafe extern "C" fn writemsg(
    ep: *mut raw::kfid_ep,
    msg: *const raw::kfi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: The consumer meets the header's contract for this call.
    unsafe { one_sided(ep, OpKind::Write, msg, flags) }
}

unsafe extern "C" fn commitmsg(
    ep: *mut raw::kfid_ep,
    msg: *const raw::kfi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: The consumer meets the header's contract for this call.
    answer(unsafe { try_commit(ep, &*msg, flags) })
}

/// Posts a commit of the range in a `struct kfi_msg_rma`.
///
/// # Errors
///
/// - `EINVAL` if the message has local pieces, or not one range.
/// - As [`core_flags`] and [`Endpoint::commit`](crate::ep::Endpoint::commit).
///
/// # Safety
///
/// The endpoint is open and of this module. The message is valid as `kfi_rma.h` describes.
unsafe fn try_commit(ep: *mut raw::kfid_ep, msg: &raw::kfi_msg_rma, flags: u64) -> Result {
    // SAFETY: By this function's contract the endpoint is open and of this module.
    let this = unsafe { obj::get::<EpObj, _>(ep) };
    if msg.iov_count != 0 || msg.rma_iov_count != 1 {
        return Err(EINVAL);
    }
    // SAFETY: The message is valid and has one range, as checked above.
    let range = unsafe { &*msg.rma_iov };
    let op = Op {
        data: Some(msg.data),
        remote: (range.addr, range.key),
        ..Op::new(OpKind::Commit, msg.context)
    };
    let flags = core_flags(this, op.kind, Flags::Message(flags))?;
    let post = wanted(&op, flags, &[], LocalMem::new());
    this.ep.commit(post, range.len as u64, false)
}

unsafe extern "C" fn inject(
    ep: *mut raw::kfid_ep,
    buf: *const c_void,
    len: usize,
    _peer: raw::kfi_addr_t,
) -> isize {
    let op = Op {
        flags: Flags::Inject(KFI_INJECT),
        ..Op::new(OpKind::Send, ptr::null_mut())
    };
    // SAFETY: The consumer meets the header's contract for this call.
    unsafe { post(ep, op, List::One(buf, len), Descs::One(ptr::null_mut())) }
}

unsafe extern "C" fn injectdata(
    ep: *mut raw::kfid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    _peer: raw::kfi_addr_t,
) -> isize {
    let op = Op {
        flags: Flags::Inject(KFI_INJECT | KFI_REMOTE_CQ_DATA),
        data: Some(data),
        ..Op::new(OpKind::Send, ptr::null_mut())
    };
    // SAFETY: The consumer meets the header's contract for this call.
    unsafe { post(ep, op, List::One(buf, len), Descs::One(ptr::null_mut())) }
}

unsafe extern "C" fn senddata(
    ep: *mut raw::kfid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    _peer: raw::kfi_addr_t,
    context: *mut c_void,
) -> isize {
    let op = Op {
        data: Some(data),
        ..Op::new(OpKind::Send, context)
    };
    // SAFETY: The consumer meets the header's contract for this call.
    unsafe { post_one(ep, op, buf, len, desc) }
}

unsafe extern "C" fn inject_write(
    ep: *mut raw::kfid_ep,
    buf: *const c_void,
    len: usize,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let op = Op {
        flags: Flags::Inject(KFI_INJECT),
        remote: (addr, key),
        ..Op::new(OpKind::Write, ptr::null_mut())
    };
    // SAFETY: The consumer meets the header's contract for this call.
    unsafe { post(ep, op, List::One(buf, len), Descs::One(ptr::null_mut())) }
}

unsafe extern "C" fn inject_writedata(
    ep: *mut raw::kfid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let op = Op {
        flags: Flags::Inject(KFI_INJECT | KFI_REMOTE_CQ_DATA),
        data: Some(data),
        remote: (addr, key),
        ..Op::new(OpKind::Write, ptr::null_mut())
    };
    // SAFETY: The consumer meets the header's contract for this call.
    unsafe { post(ep, op, List::One(buf, len), Descs::One(ptr::null_mut())) }
}

unsafe extern "C" fn writedata(
    ep: *mut raw::kfid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let op = Op {
        data: Some(data),
        remote: (addr, key),
        ..Op::new(OpKind::Write, context)
    };
    // SAFETY: The consumer meets the header's contract for this call.
    unsafe { post_one(ep, op, buf, len, desc) }
}

/// Table of the calls for messages.
pub(super) static MSG: raw::kfi_ops_msg = raw::kfi_ops_msg {
    size: size_of::<raw::kfi_ops_msg>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvbv: Some(recvbv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendbv: Some(sendbv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
    recvsgl: Some(recvsgl),
    sendsgl: Some(sendsgl),
};

/// Table of the calls for one-sided operations.
pub(super) static RMA: raw::kfi_ops_rma = raw::kfi_ops_rma {
    size: size_of::<raw::kfi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readbv: Some(readbv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writebv: Some(writebv),
    writemsg: Some(writemsg),
    inject: Some(inject_write),
    writedata: Some(writedata),
    injectdata: Some(inject_writedata),
    readsgl: Some(readsgl),
    writesgl: Some(writesgl),
    commitmsg: Some(commitmsg),
};
