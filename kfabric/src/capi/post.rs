// SPDX-License-Identifier: GPL-2.0
//! Messages and one-sided operations, in all the forms that C has for them. Any context.

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
    ep::Post,
    errno::eopnotsupp,
    op::{
        OpKind,
        Segs, //
    },
    uapi::{
        KFI_COMPLETION,
        KFI_FENCE,
        KFI_INJECT,
        KFI_INJECT_MAX,
        KFI_REMOTE_CQ_DATA, //
    },
};

/// Flags that the core knows by the same value.
const SAME: u64 = KFI_COMPLETION | KFI_INJECT | KFI_REMOTE_CQ_DATA;
/// Flags that ask for no more than a completion always means, or give a hint.
const MEANT: u64 = (raw::KFI_INJECT_COMPLETE | raw::KFI_TRANSMIT_COMPLETE | raw::KFI_MORE) as u64;

/// The flags, if there are such.
///
/// # Errors
///
/// `EOPNOTSUPP`: a completion that says more than that the peer's side has it. `EINVAL`: unknown.
pub(super) fn check_flags(flags: u64) -> Result<u64> {
    if flags & u64::from(raw::KFI_DELIVERY_COMPLETE | raw::KFI_COMMIT_COMPLETE) != 0 {
        return Err(eopnotsupp());
    }
    if flags & !(SAME | MEANT | u64::from(raw::KFI_FENCE)) != 0 {
        return Err(EINVAL);
    }
    Ok(flags)
}

/// Flags that an endpoint may have for all its operations: those that mean something then.
///
/// # Errors
///
/// As [`check_flags`]; `EOPNOTSUPP` for those that each operation has to name.
pub(super) fn check_own_flags(flags: u64) -> Result<u64> {
    if check_flags(flags)? & !(KFI_COMPLETION | MEANT) != 0 {
        return Err(eopnotsupp());
    }
    Ok(flags)
}

/// Where the flags of an operation come from, as in C.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flags {
    /// From the endpoint: the call takes none.
    Own,
    /// From a call that takes them with a message.
    Message(u64),
    /// From a call that injects, which reports no success.
    Inject(u64),
}

/// The core's flags of an operation on an endpoint.
///
/// To the core what is injected reports success only on demand. That is what `kfi_inject()` means, but
/// in a message `KFI_INJECT` says no more than when its buffers may be used again: it completes as any
/// other does.
///
/// # Errors
///
/// As [`check_flags`].
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

/// What is posted, beside local memory.
struct Op {
    kind: OpKind,
    flags: Flags,
    context: *mut c_void,
    data: Option<u64>,
    /// The peer's address and key.
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

/// Descriptors.
#[derive(Clone, Copy)]
pub(super) enum Descs {
    /// Of all pieces.
    One(*mut c_void),
    /// One for each piece.
    Each(*mut *mut c_void),
}

impl Descs {
    /// The registration that a piece is in.
    ///
    /// # Errors
    ///
    /// `EINVAL`: none is named.
    ///
    /// # Safety
    ///
    /// As the header says.
    pub(super) unsafe fn get<'a>(&self, nth: usize) -> Result<&'a MrObj> {
        let desc = match *self {
            Self::One(desc) => desc,
            Self::Each(list) if list.is_null() => ptr::null_mut(),
            // SAFETY: There are as many as pieces.
            Self::Each(list) => unsafe { *list.add(nth) },
        };
        if desc.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: A descriptor is the address of one of ours.
        Ok(unsafe { obj::get::<MrObj, _>(desc) })
    }
}

/// Copies what is to be injected.
///
/// # Errors
///
/// `EMSGSIZE`: more than any endpoint takes. `EINVAL`: there are fewer pieces than was said.
///
/// # Safety
///
/// The list is as the header says.
unsafe fn gather(mut list: List, to: &mut [u8; KFI_INJECT_MAX]) -> Result<usize> {
    let mut done = 0;
    // SAFETY: The caller's promise.
    while let Some(piece) = unsafe { list.pop() } {
        if piece.len() == 0 {
            continue;
        }
        let from: *const u8 = match piece {
            Piece::Virt(addr, _) => addr.cast(),
            Piece::Pages(page, ..) if page.is_null() => return Err(EINVAL),
            // SAFETY: A page of the consumer's, which is mapped (x86-64 has no others).
            Piece::Pages(page, offset, _) => unsafe {
                crate::sys::kf_page_address(page).cast::<u8>().add(offset)
            },
        };
        let room = to
            .get_mut(done..)
            .and_then(|rest| rest.get_mut(..piece.len()))
            .ok_or_else(|| kfi_error(kernel::bindings::EMSGSIZE))?;
        // SAFETY: The consumer's memory has as many bytes.
        unsafe { ptr::copy_nonoverlapping(from, room.as_mut_ptr(), room.len()) };
        done += piece.len();
    }
    Ok(done)
}

/// What the core is to post.
#[inline(always)]
fn wanted<'a>(op: &Op, flags: u64, inject: &'a [u8], segs: Segs) -> Post<'a> {
    let with_data = flags & KFI_REMOTE_CQ_DATA != 0;
    Post {
        kind: op.kind,
        flags,
        // CAST: The consumer's own pointer.
        context: op.context as u64,
        data: if with_data { op.data.unwrap_or(0) } else { 0 },
        remote_addr: op.remote.0,
        key: op.remote.1,
        inject,
        atomic: None,
        segs,
    }
}

/// Posts what is to be injected.
///
/// # Safety
///
/// All is as the header says.
#[inline(never)]
unsafe fn post_injected(ep: &EpObj, op: &Op, flags: u64, list: List) -> Result {
    let mut short = [0; KFI_INJECT_MAX];
    // SAFETY: The caller's promise.
    let len = unsafe { gather(list, &mut short)? };
    let short = short.get(..len).unwrap_or(&[]);
    ep.ep.post(wanted(op, flags, short, Segs::new()))
}

/// The core's flags of an operation.
///
/// # Errors
///
/// As [`check_flags`].
#[inline(always)]
fn flags_of(ep: &EpObj, op: &Op) -> Result<u64> {
    let mut flags = core_flags(ep, op.kind, op.flags)?;
    if op.data.is_some() && op.flags == Flags::Own {
        flags |= KFI_REMOTE_CQ_DATA;
    }
    Ok(flags)
}

/// Posts.
///
/// # Safety
///
/// All is as the header says.
unsafe fn try_post(ep: *mut raw::kfid_ep, op: &Op, mut list: List, descs: Descs) -> Result {
    // SAFETY: The consumer passes one of ours.
    let this = unsafe { obj::get::<EpObj, _>(ep) };
    let flags = flags_of(this, op)?;
    if flags & KFI_INJECT != 0 {
        // SAFETY: The caller's promise.
        return unsafe { post_injected(this, op, flags, list) };
    }
    let mut segs = Segs::new();
    let mut nth = 0;
    // SAFETY: The caller's promise.
    while let Some(piece) = unsafe { list.pop() } {
        if piece.len() != 0 {
            // SAFETY: As above.
            unsafe { descs.get(nth)? }.add(&mut segs, op.kind, piece)?;
        }
        nth += 1;
    }
    this.ep.post(wanted(op, flags, &[], segs))
}

/// [`try_post`], as C has the outcome.
///
/// # Safety
///
/// As there.
unsafe fn post(ep: *mut raw::kfid_ep, op: Op, list: List, descs: Descs) -> isize {
    // SAFETY: The caller's promise.
    answer(unsafe { try_post(ep, &op, list, descs) })
}

/// As [`try_post`], of one piece that is registered, with the endpoint's own flags: what most post.
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn try_one(
    ep: *mut raw::kfid_ep,
    op: &Op,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
) -> Result {
    // SAFETY: The consumer passes one of ours.
    let this = unsafe { obj::get::<EpObj, _>(ep) };
    let flags = flags_of(this, op)?;
    let mut segs = Segs::new();
    if len != 0 {
        // SAFETY: As above.
        let mr = unsafe { Descs::One(desc).get(0)? };
        mr.add(&mut segs, op.kind, Piece::Virt(buf, len))?;
    }
    this.ep.post(wanted(op, flags, &[], segs))
}

/// [`try_one`], as C has the outcome.
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn post_one(
    ep: *mut raw::kfid_ep,
    op: Op,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
) -> isize {
    // SAFETY: The caller's promise.
    answer(unsafe { try_one(ep, &op, buf, len, desc) })
}

/// An outcome, as C has it.
#[inline(always)]
fn answer(outcome: Result) -> isize {
    match outcome {
        Ok(()) => 0,
        // CAST: A `c_int` fits.
        Err(e) => e.to_errno() as isize,
    }
}

/// Posts a `struct kfi_msg`.
///
/// # Safety
///
/// As the header says.
unsafe fn message(
    ep: *mut raw::kfid_ep,
    kind: OpKind,
    msg: *const raw::kfi_msg,
    flags: u64,
) -> isize {
    // SAFETY: The caller's message.
    let msg = unsafe { &*msg };
    // SAFETY: A union of pointers.
    let list = unsafe { msg.__bindgen_anon_1.msg_iov }.cast();
    let op = Op {
        flags: Flags::Message(flags),
        data: Some(msg.data),
        ..Op::new(kind, msg.context)
    };
    match List::of(msg.type_, list, msg.iov_count) {
        // SAFETY: As above.
        Ok(list) => unsafe { post(ep, op, list, Descs::Each(msg.desc)) },
        // CAST: A `c_int` fits.
        Err(e) => e.to_errno() as isize,
    }
}

/// Posts a `struct kfi_msg_rma`.
///
/// # Safety
///
/// As the header says.
unsafe fn one_sided(
    ep: *mut raw::kfid_ep,
    kind: OpKind,
    msg: *const raw::kfi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: The caller's message.
    let msg = unsafe { &*msg };
    // SAFETY: A union of pointers.
    let list = unsafe { msg.__bindgen_anon_1.msg_iov }.cast();
    let list = List::of(msg.type_, list, msg.iov_count);
    let (Ok(list), 1) = (list, msg.rma_iov_count) else {
        // CAST: A `c_int` fits.
        return EINVAL.to_errno() as isize;
    };
    // SAFETY: There is one.
    let remote = unsafe { &*msg.rma_iov };
    // SAFETY: As above.
    if remote.len != unsafe { total(list) } {
        // CAST: A `c_int` fits.
        return EINVAL.to_errno() as isize;
    }
    let op = Op {
        flags: Flags::Message(flags),
        data: Some(msg.data),
        remote: (remote.addr, remote.key),
        ..Op::new(kind, msg.context)
    };
    // SAFETY: As above.
    unsafe { post(ep, op, list, Descs::Each(msg.desc)) }
}

/// Bytes of a list.
///
/// # Safety
///
/// As the header says.
unsafe fn total(mut list: List) -> usize {
    let mut total = 0usize;
    // SAFETY: The caller's promise.
    while let Some(piece) = unsafe { list.pop() } {
        total = total.saturating_add(piece.len());
    }
    total
}

unsafe extern "C" fn recv(
    ep: *mut raw::kfid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    _peer: raw::kfi_addr_t,
    context: *mut c_void,
) -> isize {
    let op = Op::new(OpKind::Recv, context);
    // SAFETY: The consumer does as the header says.
    unsafe { post_one(ep, op, buf, len, desc) }
}

unsafe extern "C" fn recvv(
    ep: *mut raw::kfid_ep,
    list: *const kvec,
    desc: *mut *mut c_void,
    count: usize,
    _peer: raw::kfi_addr_t,
    context: *mut c_void,
) -> isize {
    let op = Op::new(OpKind::Recv, context);
    // SAFETY: The consumer does as the header says.
    unsafe { post(ep, op, List::Kvec(list, count), Descs::Each(desc)) }
}

unsafe extern "C" fn recvbv(
    ep: *mut raw::kfid_ep,
    list: *const bio_vec,
    desc: *mut *mut c_void,
    count: usize,
    _peer: raw::kfi_addr_t,
    context: *mut c_void,
) -> isize {
    let op = Op::new(OpKind::Recv, context);
    // SAFETY: The consumer does as the header says.
    unsafe { post(ep, op, List::Bvec(list, count), Descs::Each(desc)) }
}

unsafe extern "C" fn recvsgl(
    ep: *mut raw::kfid_ep,
    list: *const scatterlist,
    desc: *mut *mut c_void,
    count: usize,
    _peer: raw::kfi_addr_t,
    context: *mut c_void,
) -> isize {
    let op = Op::new(OpKind::Recv, context);
    // SAFETY: The consumer does as the header says.
    unsafe { post(ep, op, List::Sgl(list, count), Descs::Each(desc)) }
}

unsafe extern "C" fn recvmsg(ep: *mut raw::kfid_ep, msg: *const raw::kfi_msg, flags: u64) -> isize {
    // SAFETY: The consumer does as the header says.
    unsafe { message(ep, OpKind::Recv, msg, flags) }
}

unsafe extern "C" fn send(
    ep: *mut raw::kfid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    _peer: raw::kfi_addr_t,
    context: *mut c_void,
) -> isize {
    let op = Op::new(OpKind::Send, context);
    // SAFETY: The consumer does as the header says.
    unsafe { post_one(ep, op, buf, len, desc) }
}

unsafe extern "C" fn sendv(
    ep: *mut raw::kfid_ep,
    list: *const kvec,
    desc: *mut *mut c_void,
    count: usize,
    _peer: raw::kfi_addr_t,
    context: *mut c_void,
) -> isize {
    let op = Op::new(OpKind::Send, context);
    // SAFETY: The consumer does as the header says.
    unsafe { post(ep, op, List::Kvec(list, count), Descs::Each(desc)) }
}

unsafe extern "C" fn sendbv(
    ep: *mut raw::kfid_ep,
    list: *const bio_vec,
    desc: *mut *mut c_void,
    count: usize,
    _peer: raw::kfi_addr_t,
    context: *mut c_void,
) -> isize {
    let op = Op::new(OpKind::Send, context);
    // SAFETY: The consumer does as the header says.
    unsafe { post(ep, op, List::Bvec(list, count), Descs::Each(desc)) }
}

unsafe extern "C" fn sendsgl(
    ep: *mut raw::kfid_ep,
    list: *const scatterlist,
    desc: *mut *mut c_void,
    count: usize,
    _peer: raw::kfi_addr_t,
    context: *mut c_void,
) -> isize {
    let op = Op::new(OpKind::Send, context);
    // SAFETY: The consumer does as the header says.
    unsafe { post(ep, op, List::Sgl(list, count), Descs::Each(desc)) }
}

unsafe extern "C" fn sendmsg(ep: *mut raw::kfid_ep, msg: *const raw::kfi_msg, flags: u64) -> isize {
    // SAFETY: The consumer does as the header says.
    unsafe { message(ep, OpKind::Send, msg, flags) }
}

unsafe extern "C" fn read(
    ep: *mut raw::kfid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let op = Op {
        remote: (addr, key),
        ..Op::new(OpKind::Read, context)
    };
    // SAFETY: The consumer does as the header says.
    unsafe { post_one(ep, op, buf, len, desc) }
}

unsafe extern "C" fn readv(
    ep: *mut raw::kfid_ep,
    list: *const kvec,
    desc: *mut *mut c_void,
    count: usize,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let op = Op {
        remote: (addr, key),
        ..Op::new(OpKind::Read, context)
    };
    // SAFETY: The consumer does as the header says.
    unsafe { post(ep, op, List::Kvec(list, count), Descs::Each(desc)) }
}

unsafe extern "C" fn readbv(
    ep: *mut raw::kfid_ep,
    list: *const bio_vec,
    desc: *mut *mut c_void,
    count: usize,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let op = Op {
        remote: (addr, key),
        ..Op::new(OpKind::Read, context)
    };
    // SAFETY: The consumer does as the header says.
    unsafe { post(ep, op, List::Bvec(list, count), Descs::Each(desc)) }
}

unsafe extern "C" fn readsgl(
    ep: *mut raw::kfid_ep,
    list: *const scatterlist,
    desc: *mut *mut c_void,
    count: usize,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let op = Op {
        remote: (addr, key),
        ..Op::new(OpKind::Read, context)
    };
    // SAFETY: The consumer does as the header says.
    unsafe { post(ep, op, List::Sgl(list, count), Descs::Each(desc)) }
}

unsafe extern "C" fn readmsg(
    ep: *mut raw::kfid_ep,
    msg: *const raw::kfi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: The consumer does as the header says.
    unsafe { one_sided(ep, OpKind::Read, msg, flags) }
}

unsafe extern "C" fn write(
    ep: *mut raw::kfid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let op = Op {
        remote: (addr, key),
        ..Op::new(OpKind::Write, context)
    };
    // SAFETY: The consumer does as the header says.
    unsafe { post_one(ep, op, buf, len, desc) }
}

unsafe extern "C" fn writev(
    ep: *mut raw::kfid_ep,
    list: *const kvec,
    desc: *mut *mut c_void,
    count: usize,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let op = Op {
        remote: (addr, key),
        ..Op::new(OpKind::Write, context)
    };
    // SAFETY: The consumer does as the header says.
    unsafe { post(ep, op, List::Kvec(list, count), Descs::Each(desc)) }
}

unsafe extern "C" fn writebv(
    ep: *mut raw::kfid_ep,
    list: *const bio_vec,
    desc: *mut *mut c_void,
    count: usize,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let op = Op {
        remote: (addr, key),
        ..Op::new(OpKind::Write, context)
    };
    // SAFETY: The consumer does as the header says.
    unsafe { post(ep, op, List::Bvec(list, count), Descs::Each(desc)) }
}

unsafe extern "C" fn writesgl(
    ep: *mut raw::kfid_ep,
    list: *const scatterlist,
    desc: *mut *mut c_void,
    count: usize,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let op = Op {
        remote: (addr, key),
        ..Op::new(OpKind::Write, context)
    };
    // SAFETY: The consumer does as the header says.
    unsafe { post(ep, op, List::Sgl(list, count), Descs::Each(desc)) }
}

unsafe extern "C" fn writemsg(
    ep: *mut raw::kfid_ep,
    msg: *const raw::kfi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: The consumer does as the header says.
    unsafe { one_sided(ep, OpKind::Write, msg, flags) }
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
    // SAFETY: The consumer does as the header says.
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
    // SAFETY: The consumer does as the header says.
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
    // SAFETY: The consumer does as the header says.
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
    // SAFETY: The consumer does as the header says.
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
    // SAFETY: The consumer does as the header says.
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
    // SAFETY: The consumer does as the header says.
    unsafe { post_one(ep, op, buf, len, desc) }
}

/// Messages.
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

/// One-sided operations.
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
};
