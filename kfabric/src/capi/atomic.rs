// SPDX-License-Identifier: GPL-2.0
//! Atomic operations, in every form of the C API. Context: any.

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
    base::errno::eopnotsupp,
    ep::{
        LocalMem,
        Post, //
    },
    op::OpKind,
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

// The core uses libfabric's numbers for data types and operations.
const _: () = {
    assert!(raw::kfi_datatype_KFI_INT8 == 0 && raw::kfi_datatype_KFI_UINT64 == 7);
    assert!(raw::kfi_op_KFI_MIN == 0 && raw::kfi_op_KFI_ATOMIC_READ == 10);
    assert!(raw::kfi_op_KFI_CSWAP == 12 && raw::kfi_op_KFI_MSWAP == 18);
};

/// Data type and operation, by the C API's numbers.
type Kind = (raw::kfi_datatype, raw::kfi_op);

/// Returns the core's operation and data type.
///
/// # Errors
///
/// - `EINVAL` if data type or operation is unknown, or the operation does not exist in this form.
/// - `EOPNOTSUPP` if the data type is not an integer of at most 8 bytes.
fn kind((ty, op): Kind, form: Form) -> Result<(Op, Datatype)> {
    if ty >= raw::kfi_datatype_KFI_DATATYPE_LAST {
        return Err(EINVAL);
    }
    let op = Op::new(op).filter(|op| op.has(form)).ok_or(EINVAL)?;
    Ok((op, Datatype::new(ty).ok_or_else(eopnotsupp)?))
}

/// A consumer's list of values.
#[derive(Clone, Copy)]
enum Values {
    /// No values.
    None,
    /// One piece: address and number of values.
    One(*const c_void, usize),
    /// Array of pieces, and number of pieces.
    Each(*const raw::kfi_ioc, usize),
}

impl Values {
    /// Returns address and number of values of the piece with index `nth`, if it exists.
    ///
    /// # Safety
    ///
    /// The list is valid as `kfi_atomic.h` describes.
    unsafe fn piece(&self, nth: usize) -> Option<(*const c_void, usize)> {
        match *self {
            Self::One(at, count) if nth == 0 => Some((at, count)),
            Self::Each(list, pieces) if nth < pieces => {
                // SAFETY: By this function's contract the array has `pieces` entries, more than
                // `nth`.
                let one = unsafe { &*list.add(nth) };
                Some((one.addr.cast_const(), one.count))
            }
            _ => None,
        }
    }

    /// Returns the number of values in all pieces.
    ///
    /// # Safety
    ///
    /// As for [`Values::piece`].
    unsafe fn count(&self) -> usize {
        let mut all = 0usize;
        let mut nth = 0;
        // SAFETY: This function has the contract of `piece()`.
        while let Some((_, count)) = unsafe { self.piece(nth) } {
            all = all.saturating_add(count);
            nth += 1;
        }
        all
    }

    /// Copies the values to `to` from byte `done` on, and returns the number of bytes used then.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the address of a piece that has values is null.
    /// - `EMSGSIZE` if the values do not fit into `KFI_INJECT_MAX` bytes.
    ///
    /// # Safety
    ///
    /// As for [`Values::piece`]; each piece has as many values of `size` bytes as it states.
    unsafe fn gather(
        &self,
        size: usize,
        to: &mut [u8; KFI_INJECT_MAX],
        mut done: usize,
    ) -> Result<usize> {
        let mut nth = 0;
        // SAFETY: By this function's contract the list is valid.
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
            // SAFETY: By this function's contract the piece has `count` values of `size` bytes, as
            // many bytes as `room`. `room` is the caller's own buffer, so the two do not overlap.
            unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), room.as_mut_ptr(), room.len()) };
            done += room.len();
        }
        Ok(done)
    }
}

/// An atomic operation with the arguments of the C call.
#[derive(Clone, Copy)]
struct Order {
    form: Form,
    kind: Kind,
    operands: Values,
    compare: Values,
    result: Values,
    /// Descriptors of the pieces that receive the result.
    descs: Descs,
    /// Address and key of the peer's memory.
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

    /// Posts the operation.
    ///
    /// # Safety
    ///
    /// The endpoint is open and of this module. All lists, descriptors and memory are valid as
    /// `kfi_atomic.h` describes.
    unsafe fn try_post(&self, ep: *mut raw::kfid_ep) -> Result {
        // SAFETY: By this function's contract the endpoint is open and of this module.
        let this = unsafe { obj::get::<EpObj, _>(ep) };
        let (op, ty) = kind(self.kind, self.form)?;
        let mut flags = core_flags(this, OpKind::Atomic, self.flags)?;
        if self.form != Form::Base {
            // The operands are always copied before the return. The result's buffers are in use
            // until the completion, so `KFI_INJECT` cannot apply to them.
            flags &= !KFI_INJECT;
        }
        let mut values = [0; KFI_INJECT_MAX];
        let mut taken = 0;
        if op.has_operand() {
            // SAFETY: By this function's contract the operands are valid.
            taken = unsafe { self.operands.gather(ty.size(), &mut values, taken)? };
        }
        if self.form == Form::Compare {
            let operands = taken;
            // SAFETY: By this function's contract the comparands are valid.
            taken = unsafe { self.compare.gather(ty.size(), &mut values, taken)? };
            if taken != 2 * operands {
                return Err(EINVAL);
            }
        }
        let mut segs = LocalMem::new();
        let mut nth = 0;
        // SAFETY: By this function's contract the result's list is valid.
        while let Some((at, count)) = unsafe { self.result.piece(nth) } {
            let len = count.checked_mul(ty.size()).ok_or(EINVAL)?;
            if len != 0 {
                let piece = Piece::Virt(at, len);
                // SAFETY: By this function's contract each piece of the result has a descriptor, or
                // none has.
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
            // CAST: The consumer's pointer fits in 64 bits; the core does not follow it.
            context: self.context as u64,
            data: 0,
            remote_addr: self.remote.0,
            key: self.remote.1,
            inject: values.get(..taken).unwrap_or(&[]),
            atomic: Some((op, ty)),
            segs,
        })
    }

    /// Posts as [`Order::try_post`]; returns 0 or a negative error number.
    ///
    /// # Safety
    ///
    /// As for [`Order::try_post`].
    unsafe fn post(&self, ep: *mut raw::kfid_ep) -> isize {
        // SAFETY: This function has the contract of `try_post()`. CAST: An `isize` holds every
        // `c_int`.
        code(unsafe { self.try_post(ep) }) as isize
    }
}

/// Returns the operation that a `struct kfi_msg_atomic` describes.
///
/// # Errors
///
/// - `EINVAL` if the message does not have exactly one remote piece.
/// - `EINVAL` if the numbers of local and remote values differ.
///
/// # Safety
///
/// The message and `result` are valid as `kfi_atomic.h` describes.
unsafe fn order_of(
    msg: *const raw::kfi_msg_atomic,
    form: Form,
    result: Values,
    flags: u64,
) -> Result<Order> {
    // SAFETY: By this function's contract the message is valid.
    let msg = unsafe { &*msg };
    if msg.rma_iov_count != 1 {
        return Err(EINVAL);
    }
    // SAFETY: The message is valid and has one remote piece, as checked above.
    let remote = unsafe { &*msg.rma_iov };
    let operands = Values::Each(msg.msg_iov, msg.iov_count);
    let counted = match msg.op {
        raw::kfi_op_KFI_ATOMIC_READ => result,
        _ => operands,
    };
    // SAFETY: By this function's contract the lists of the message and of the result are valid.
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

/// Posts the operation of a message, or returns the error of [`order_of`].
///
/// # Safety
///
/// As for [`Order::try_post`].
unsafe fn post_made(ep: *mut raw::kfid_ep, made: Result<Order>) -> isize {
    match made {
        // SAFETY: This function has the contract of `post()`.
        Ok(order) => unsafe { order.post(ep) },
        // CAST: An `isize` holds every `c_int`.
        Err(e) => e.to_errno() as isize,
    }
}

/// Defines calls with values in one piece or in lists. The arguments after the values are the same
/// in all calls.
macro_rules! order_calls {
    ($($name:ident: $form:ident($($arg:ident: $ty:ty,)*) { $($field:ident: $value:expr,)* })*) => {
        $(
            unsafe extern "C" fn $name(
                ep: *mut raw::kfid_ep,
                $($arg: $ty,)*
                _peer: raw::kfi_addr_t,
                addr: u64,
                key: u64,
                ty: raw::kfi_datatype,
                op: raw::kfi_op,
                context: *mut c_void,
            ) -> isize {
                let order = Order {
                    $($field: $value,)*
                    ..Order::new(Form::$form, (ty, op), (addr, key), context)
                };
                // SAFETY: The consumer meets the header's contract for this call.
                unsafe { order.post(ep) }
            }
        )*
    };
}

order_calls! {
    write: Base(
        buf: *const c_void,
        count: usize,
        _desc: *mut c_void,
    ) {
        operands: Values::One(buf, count),
    }
    writev: Base(
        list: *const raw::kfi_ioc,
        _descs: *mut *mut c_void,
        count: usize,
    ) {
        operands: Values::Each(list, count),
    }
    readwrite: Fetch(
        buf: *const c_void,
        count: usize,
        _desc: *mut c_void,
        result: *mut c_void,
        result_desc: *mut c_void,
    ) {
        operands: Values::One(buf, count),
        result: Values::One(result, count),
        descs: Descs::One(result_desc),
    }
    readwritev: Fetch(
        list: *const raw::kfi_ioc,
        _descs: *mut *mut c_void,
        count: usize,
        result: *mut raw::kfi_ioc,
        result_descs: *mut *mut c_void,
        result_count: usize,
    ) {
        operands: Values::Each(list, count),
        result: Values::Each(result, result_count),
        descs: Descs::Each(result_descs),
    }
    compwrite: Compare(
        buf: *const c_void,
        count: usize,
        _desc: *mut c_void,
        compare: *const c_void,
        _compare_desc: *mut c_void,
        result: *mut c_void,
        result_desc: *mut c_void,
    ) {
        operands: Values::One(buf, count),
        compare: Values::One(compare, count),
        result: Values::One(result, count),
        descs: Descs::One(result_desc),
    }
    compwritev: Compare(
        list: *const raw::kfi_ioc,
        _descs: *mut *mut c_void,
        count: usize,
        compare: *const raw::kfi_ioc,
        _compare_descs: *mut *mut c_void,
        compare_count: usize,
        result: *mut raw::kfi_ioc,
        result_descs: *mut *mut c_void,
        result_count: usize,
    ) {
        operands: Values::Each(list, count),
        compare: Values::Each(compare, compare_count),
        result: Values::Each(result, result_count),
        descs: Descs::Each(result_descs),
    }
}

unsafe extern "C" fn writemsg(
    ep: *mut raw::kfid_ep,
    msg: *const raw::kfi_msg_atomic,
    flags: u64,
) -> isize {
    // SAFETY: The consumer meets the header's contract for this call.
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
    // SAFETY: The consumer meets the header's contract for this call.
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
    // SAFETY: The consumer passes a valid message and a valid list for the result.
    let made = unsafe { order_of(msg, Form::Fetch, result, flags) };
    let made = made.map(|order| Order {
        descs: Descs::Each(result_descs),
        ..order
    });
    // SAFETY: The consumer meets the header's contract for this call.
    unsafe { post_made(ep, made) }
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
    // SAFETY: The consumer passes a valid message and a valid list for the result.
    let made = unsafe { order_of(msg, Form::Compare, result, flags) };
    let made = made.map(|order| Order {
        compare: Values::Each(compare, compare_count),
        descs: Descs::Each(result_descs),
        ..order
    });
    // SAFETY: The consumer meets the header's contract for this call.
    unsafe { post_made(ep, made) }
}

/// Stores how many values an atomic of this kind can have on this endpoint.
///
/// # Safety
///
/// The endpoint is open and of this module. `count` is a valid place, or null.
unsafe fn valid(ep: *mut raw::kfid_ep, form: Form, asked: Kind, count: *mut usize) -> c_int {
    // SAFETY: By this function's contract the endpoint is open and of this module.
    let this = unsafe { obj::get::<EpObj, _>(ep) };
    let most = kind(asked, form).and_then(|(op, ty)| this.ep.domain().atomic(form, op, ty));
    code(most.map(|most| {
        if !count.is_null() {
            // SAFETY: By this function's contract `count` is a valid place; it is not null here.
            unsafe { *count = most }
        }
    }))
}

/// Defines the call that asks [`valid`] for one form.
macro_rules! valid_call {
    ($name:ident: $form:ident) => {
        unsafe extern "C" fn $name(
            ep: *mut raw::kfid_ep,
            ty: raw::kfi_datatype,
            op: raw::kfi_op,
            count: *mut usize,
        ) -> c_int {
            // SAFETY: The consumer passes an open endpoint of this module, and a valid place or
            // null.
            unsafe { valid(ep, Form::$form, (ty, op), count) }
        }
    };
}

valid_call!(writevalid: Base);
valid_call!(readwritevalid: Fetch);
valid_call!(compwritevalid: Compare);

/// Implements `kfi_query_atomic()`.
pub(super) unsafe extern "C" fn query(
    domain: *mut raw::kfid_domain,
    ty: raw::kfi_datatype,
    op: raw::kfi_op,
    attr: *mut raw::kfi_atomic_attr,
    flags: u64,
) -> c_int {
    // SAFETY: The consumer passes an open domain of this module, and a valid place or null.
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

/// Table of the calls for atomic operations.
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
