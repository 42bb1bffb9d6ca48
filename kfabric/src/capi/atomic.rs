// SPDX-License-Identifier: GPL-2.0
//! Atomics, in all the forms that C has for them. Any context.

use core::ptr;
use kernel::{
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*, //
};

use super::{
    ep::EpObj,
    fabric::DomainObj,
    mr::Piece,
    obj::{
        self,
        code,
        kfi_error, //
    },
    post::{
        core_flags,
        Descs,
        Flags, //
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
    pure::atomic::{
        Datatype,
        Form,
        Op, //
    },
    uapi::{
        KFI_INJECT,
        KFI_INJECT_MAX, //
    },
};

// The core knows both by libfabric's numbers.
const _: () = {
    assert!(raw::kfi_datatype_KFI_INT8 == 0 && raw::kfi_datatype_KFI_UINT64 == 7);
    assert!(raw::kfi_op_KFI_MIN == 0 && raw::kfi_op_KFI_ATOMIC_READ == 10);
    assert!(raw::kfi_op_KFI_CSWAP == 12 && raw::kfi_op_KFI_MSWAP == 18);
};

/// What the values are, and what is done with them, as C has them.
type Kind = (raw::kfi_datatype, raw::kfi_op);

/// What they are to the core.
///
/// # Errors
///
/// `EINVAL`: there are none such, or not of this form. `EOPNOTSUPP`: only integers of up to 8 bytes.
fn kind((ty, op): Kind, form: Form) -> Result<(Op, Datatype)> {
    if ty >= raw::kfi_datatype_KFI_DATATYPE_LAST {
        return Err(EINVAL);
    }
    let op = Op::new(op).filter(|op| op.has(form)).ok_or(EINVAL)?;
    Ok((op, Datatype::new(ty).ok_or_else(eopnotsupp)?))
}

/// Values of a consumer's.
#[derive(Clone, Copy)]
enum Values {
    /// None.
    None,
    /// So many in one piece.
    One(*const c_void, usize),
    /// So many pieces.
    Each(*const raw::kfi_ioc, usize),
}

impl Values {
    /// The nth piece: where, and how many.
    ///
    /// # Safety
    ///
    /// The list is as the header says.
    unsafe fn piece(&self, nth: usize) -> Option<(*const c_void, usize)> {
        match *self {
            Self::One(at, count) if nth == 0 => Some((at, count)),
            Self::Each(list, pieces) if nth < pieces => {
                // SAFETY: The caller's promise.
                let one = unsafe { &*list.add(nth) };
                Some((one.addr.cast_const(), one.count))
            }
            _ => None,
        }
    }

    /// How many there are.
    ///
    /// # Safety
    ///
    /// As [`Values::piece`].
    unsafe fn count(&self) -> usize {
        let mut all = 0usize;
        let mut nth = 0;
        // SAFETY: The caller's promise.
        while let Some((_, count)) = unsafe { self.piece(nth) } {
            all = all.saturating_add(count);
            nth += 1;
        }
        all
    }

    /// Appends the values to `to`, of which `done` bytes are taken: how many are then.
    ///
    /// # Errors
    ///
    /// `EINVAL`: a piece is nowhere. `EMSGSIZE`: more than any endpoint takes.
    ///
    /// # Safety
    ///
    /// As [`Values::piece`].
    unsafe fn gather(
        &self,
        size: usize,
        to: &mut [u8; KFI_INJECT_MAX],
        mut done: usize,
    ) -> Result<usize> {
        let mut nth = 0;
        // SAFETY: The caller's promise.
        while let Some((at, count)) = unsafe { self.piece(nth) } {
            nth += 1;
            if count == 0 {
                continue;
            }
            if at.is_null() {
                return Err(EINVAL);
            }
            let room = count
                .checked_mul(size)
                .and_then(|bytes| to.get_mut(done..)?.get_mut(..bytes))
                .ok_or_else(|| kfi_error(kernel::bindings::EMSGSIZE))?;
            // SAFETY: The consumer's memory has as many values.
            unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), room.as_mut_ptr(), room.len()) };
            done += room.len();
        }
        Ok(done)
    }
}

/// An atomic, as C names it.
#[derive(Clone, Copy)]
struct Order {
    form: Form,
    kind: Kind,
    operands: Values,
    compare: Values,
    result: Values,
    /// Descriptors of the result's pieces.
    descs: Descs,
    /// The peer's address and key.
    remote: (u64, u64),
    flags: Flags,
    context: *mut c_void,
}

impl Order {
    fn new(form: Form, kind: Kind, remote: (u64, u64), context: *mut c_void) -> Self {
        Self {
            form,
            kind,
            operands: Values::None,
            compare: Values::None,
            result: Values::None,
            descs: Descs::One(ptr::null_mut()),
            remote,
            flags: Flags::Own,
            context,
        }
    }

    /// Posts it.
    ///
    /// # Safety
    ///
    /// All is as the header says.
    unsafe fn try_post(&self, ep: *mut raw::kfid_ep) -> Result {
        // SAFETY: The consumer passes one of ours.
        let this = unsafe { obj::get::<EpObj, _>(ep) };
        let (op, ty) = kind(self.kind, self.form)?;
        let mut flags = core_flags(this, OpKind::Atomic, self.flags)?;
        if self.form != Form::Base {
            // Operands are taken before this returns, whatever is asked for; results are not theirs.
            flags &= !KFI_INJECT;
        }
        let mut values = [0; KFI_INJECT_MAX];
        let mut taken = 0;
        if op.has_operand() {
            // SAFETY: The caller's promise, here and below.
            taken = unsafe { self.operands.gather(ty.size(), &mut values, taken)? };
        }
        if self.form == Form::Compare {
            let operands = taken;
            // SAFETY: As above.
            taken = unsafe { self.compare.gather(ty.size(), &mut values, taken)? };
            if taken != 2 * operands {
                return Err(EINVAL);
            }
        }
        let mut segs = Segs::new();
        let mut nth = 0;
        // SAFETY: As above.
        while let Some((at, count)) = unsafe { self.result.piece(nth) } {
            let len = count.checked_mul(ty.size()).ok_or(EINVAL)?;
            if len != 0 {
                let piece = Piece::Virt(at, len);
                // SAFETY: As above.
                unsafe { self.descs.get(nth)? }.add(&mut segs, OpKind::Fetch, piece)?;
            }
            nth += 1;
        }
        this.ep.post(Post {
            kind: match self.form {
                Form::Base => OpKind::Atomic,
                Form::Fetch | Form::Compare => OpKind::Fetch,
            },
            flags,
            // CAST: The consumer's own pointer.
            context: self.context as u64,
            data: 0,
            remote_addr: self.remote.0,
            key: self.remote.1,
            inject: values.get(..taken).unwrap_or(&[]),
            atomic: Some((op, ty)),
            segs,
        })
    }

    /// [`Order::try_post`], as C has the outcome.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn post(&self, ep: *mut raw::kfid_ep) -> isize {
        // SAFETY: The caller's promise. CAST: A `c_int` fits.
        code(unsafe { self.try_post(ep) }) as isize
    }
}

/// What a `struct kfi_msg_atomic` orders.
///
/// # Errors
///
/// `EINVAL`: not one remote piece, or one of another length.
///
/// # Safety
///
/// As the header says.
unsafe fn order_of(
    msg: *const raw::kfi_msg_atomic,
    form: Form,
    result: Values,
    flags: u64,
) -> Result<Order> {
    // SAFETY: The caller's message.
    let msg = unsafe { &*msg };
    if msg.rma_iov_count != 1 {
        return Err(EINVAL);
    }
    // SAFETY: There is one.
    let remote = unsafe { &*msg.rma_iov };
    let operands = Values::Each(msg.msg_iov, msg.iov_count);
    let counted = match msg.op {
        raw::kfi_op_KFI_ATOMIC_READ => result,
        _ => operands,
    };
    // SAFETY: As above.
    if remote.count != unsafe { counted.count() } {
        return Err(EINVAL);
    }
    let kind = (msg.datatype, msg.op);
    Ok(Order {
        operands,
        result,
        flags: Flags::Message(flags),
        ..Order::new(form, kind, (remote.addr, remote.key), msg.context)
    })
}

/// Posts what could be made of a message.
///
/// # Safety
///
/// As the header says.
unsafe fn post_made(ep: *mut raw::kfid_ep, made: Result<Order>) -> isize {
    match made {
        // SAFETY: The caller's promise.
        Ok(order) => unsafe { order.post(ep) },
        // CAST: A `c_int` fits.
        Err(e) => e.to_errno() as isize,
    }
}

unsafe extern "C" fn write(
    ep: *mut raw::kfid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    ty: raw::kfi_datatype,
    op: raw::kfi_op,
    context: *mut c_void,
) -> isize {
    let order = Order {
        operands: Values::One(buf, count),
        ..Order::new(Form::Base, (ty, op), (addr, key), context)
    };
    // SAFETY: The consumer does as the header says, here and below.
    unsafe { order.post(ep) }
}

unsafe extern "C" fn writev(
    ep: *mut raw::kfid_ep,
    list: *const raw::kfi_ioc,
    _descs: *mut *mut c_void,
    count: usize,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    ty: raw::kfi_datatype,
    op: raw::kfi_op,
    context: *mut c_void,
) -> isize {
    let order = Order {
        operands: Values::Each(list, count),
        ..Order::new(Form::Base, (ty, op), (addr, key), context)
    };
    // SAFETY: As above.
    unsafe { order.post(ep) }
}

unsafe extern "C" fn writemsg(
    ep: *mut raw::kfid_ep,
    msg: *const raw::kfi_msg_atomic,
    flags: u64,
) -> isize {
    // SAFETY: As above.
    unsafe { post_made(ep, order_of(msg, Form::Base, Values::None, flags)) }
}

unsafe extern "C" fn inject(
    ep: *mut raw::kfid_ep,
    buf: *const c_void,
    count: usize,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    ty: raw::kfi_datatype,
    op: raw::kfi_op,
) -> isize {
    let order = Order {
        operands: Values::One(buf, count),
        flags: Flags::Inject(KFI_INJECT),
        ..Order::new(Form::Base, (ty, op), (addr, key), ptr::null_mut())
    };
    // SAFETY: As above.
    unsafe { order.post(ep) }
}

unsafe extern "C" fn readwrite(
    ep: *mut raw::kfid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    ty: raw::kfi_datatype,
    op: raw::kfi_op,
    context: *mut c_void,
) -> isize {
    let order = Order {
        operands: Values::One(buf, count),
        result: Values::One(result, count),
        descs: Descs::One(result_desc),
        ..Order::new(Form::Fetch, (ty, op), (addr, key), context)
    };
    // SAFETY: As above.
    unsafe { order.post(ep) }
}

unsafe extern "C" fn readwritev(
    ep: *mut raw::kfid_ep,
    list: *const raw::kfi_ioc,
    _descs: *mut *mut c_void,
    count: usize,
    result: *mut raw::kfi_ioc,
    result_descs: *mut *mut c_void,
    result_count: usize,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    ty: raw::kfi_datatype,
    op: raw::kfi_op,
    context: *mut c_void,
) -> isize {
    let order = Order {
        operands: Values::Each(list, count),
        result: Values::Each(result, result_count),
        descs: Descs::Each(result_descs),
        ..Order::new(Form::Fetch, (ty, op), (addr, key), context)
    };
    // SAFETY: As above.
    unsafe { order.post(ep) }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut raw::kfid_ep,
    msg: *const raw::kfi_msg_atomic,
    result: *mut raw::kfi_ioc,
    result_descs: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let result = Values::Each(result, result_count);
    // SAFETY: As above.
    let made = unsafe { order_of(msg, Form::Fetch, result, flags) };
    let made = made.map(|order| Order {
        descs: Descs::Each(result_descs),
        ..order
    });
    // SAFETY: As above.
    unsafe { post_made(ep, made) }
}

unsafe extern "C" fn compwrite(
    ep: *mut raw::kfid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    ty: raw::kfi_datatype,
    op: raw::kfi_op,
    context: *mut c_void,
) -> isize {
    let order = Order {
        operands: Values::One(buf, count),
        compare: Values::One(compare, count),
        result: Values::One(result, count),
        descs: Descs::One(result_desc),
        ..Order::new(Form::Compare, (ty, op), (addr, key), context)
    };
    // SAFETY: As above.
    unsafe { order.post(ep) }
}

unsafe extern "C" fn compwritev(
    ep: *mut raw::kfid_ep,
    list: *const raw::kfi_ioc,
    _descs: *mut *mut c_void,
    count: usize,
    compare: *const raw::kfi_ioc,
    _compare_descs: *mut *mut c_void,
    compare_count: usize,
    result: *mut raw::kfi_ioc,
    result_descs: *mut *mut c_void,
    result_count: usize,
    _peer: raw::kfi_addr_t,
    addr: u64,
    key: u64,
    ty: raw::kfi_datatype,
    op: raw::kfi_op,
    context: *mut c_void,
) -> isize {
    let order = Order {
        operands: Values::Each(list, count),
        compare: Values::Each(compare, compare_count),
        result: Values::Each(result, result_count),
        descs: Descs::Each(result_descs),
        ..Order::new(Form::Compare, (ty, op), (addr, key), context)
    };
    // SAFETY: As above.
    unsafe { order.post(ep) }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut raw::kfid_ep,
    msg: *const raw::kfi_msg_atomic,
    compare: *const raw::kfi_ioc,
    _compare_descs: *mut *mut c_void,
    compare_count: usize,
    result: *mut raw::kfi_ioc,
    result_descs: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let result = Values::Each(result, result_count);
    // SAFETY: As above.
    let made = unsafe { order_of(msg, Form::Compare, result, flags) };
    let made = made.map(|order| Order {
        compare: Values::Each(compare, compare_count),
        descs: Descs::Each(result_descs),
        ..order
    });
    // SAFETY: As above.
    unsafe { post_made(ep, made) }
}

/// How many values an atomic of this kind may have.
///
/// # Safety
///
/// The endpoint is one of ours, and `count` the caller's place, or null.
unsafe fn valid(ep: *mut raw::kfid_ep, form: Form, asked: Kind, count: *mut usize) -> c_int {
    // SAFETY: The caller's promise.
    let this = unsafe { obj::get::<EpObj, _>(ep) };
    let most = kind(asked, form).and_then(|(op, ty)| this.ep.domain().atomic(form, op, ty));
    code(most.map(|most| {
        if !count.is_null() {
            // SAFETY: The caller's promise.
            unsafe { *count = most }
        }
    }))
}

unsafe extern "C" fn writevalid(
    ep: *mut raw::kfid_ep,
    ty: raw::kfi_datatype,
    op: raw::kfi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: As above.
    unsafe { valid(ep, Form::Base, (ty, op), count) }
}

unsafe extern "C" fn readwritevalid(
    ep: *mut raw::kfid_ep,
    ty: raw::kfi_datatype,
    op: raw::kfi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: As above.
    unsafe { valid(ep, Form::Fetch, (ty, op), count) }
}

unsafe extern "C" fn compwritevalid(
    ep: *mut raw::kfid_ep,
    ty: raw::kfi_datatype,
    op: raw::kfi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: As above.
    unsafe { valid(ep, Form::Compare, (ty, op), count) }
}

/// See `kfi_query_atomic()`.
pub(super) unsafe extern "C" fn query(
    domain: *mut raw::kfid_domain,
    ty: raw::kfi_datatype,
    op: raw::kfi_op,
    attr: *mut raw::kfi_atomic_attr,
    flags: u64,
) -> c_int {
    // SAFETY: The consumer passes one of ours, and its place.
    let (domain, attr) = unsafe { (obj::get::<DomainObj, _>(domain), attr.as_mut()) };
    let go = || {
        let form = match flags {
            0 => Form::Base,
            raw::KFI_FETCH_ATOMIC => Form::Fetch,
            raw::KFI_COMPARE_ATOMIC => Form::Compare,
            _ => return Err(EINVAL),
        };
        let attr = attr.ok_or(EINVAL)?;
        let (op, ty) = kind((ty, op), form)?;
        let count = domain.domain.atomic(form, op, ty)?;
        *attr = raw::kfi_atomic_attr {
            count,
            size: ty.size(),
        };
        Ok(())
    };
    code(go())
}

/// Atomics.
pub(super) static OPS: raw::kfi_ops_atomic = raw::kfi_ops_atomic {
    size: size_of::<raw::kfi_ops_atomic>(),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg: Some(readwritemsg),
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg: Some(compwritemsg),
    writevalid: Some(writevalid),
    readwritevalid: Some(readwritevalid),
    compwritevalid: Some(compwritevalid),
};
