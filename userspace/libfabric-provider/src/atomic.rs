// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomics. The kernel copies operands and comparands when an atomic is posted; only memory for
//! results needs a region.

use std::ffi::{c_int, c_void};
use std::ptr::null;

use kfabric::uapi as abi;
use kfabric::{AtomicForm, AtomicOp};

use crate::domain::Domain;
use crate::ep::Endpoint;
use crate::error::Errno;
use crate::ffi::*;
use crate::object::{self, status};
use crate::post::{entries, Call, Local};

pub(crate) static OPS: Table<fi_ops_atomic> = Table(fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
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
});

/// Size of a value of one of the integer types that the kernel knows.
fn value_size(datatype: fi_datatype) -> Result<usize, Errno> {
    match datatype {
        abi::KFI_INT8 | abi::KFI_UINT8 => Ok(1),
        abi::KFI_INT16 | abi::KFI_UINT16 => Ok(2),
        abi::KFI_INT32 | abi::KFI_UINT32 => Ok(4),
        abi::KFI_INT64 | abi::KFI_UINT64 => Ok(8),
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// Type and operator of an atomic.
#[derive(Clone, Copy)]
struct Kind {
    datatype: fi_datatype,
    size: usize,
    op: AtomicOp,
}

impl Kind {
    fn new(datatype: fi_datatype, op: fi_op) -> Result<Self, Errno> {
        Ok(Self {
            datatype,
            size: value_size(datatype)?,
            op: AtomicOp::from_abi(op).ok_or(libc::EOPNOTSUPP)?,
        })
    }

    /// A single piece of `count` values.
    fn one(&self, at: *const c_void, count: usize, desc: *mut c_void) -> Result<Local, Errno> {
        let len = count.checked_mul(self.size).ok_or(libc::EMSGSIZE)?;
        Ok(Local::One(at, len, desc))
    }

    /// An array of pieces of values.
    fn many(&self, at: *const fi_ioc, desc: *const *mut c_void, count: usize) -> Local {
        Local::Values(at, desc, count, self.size)
    }

    fn call(&self, form: AtomicForm, mut values: [Local; 2], results: Local) -> Call {
        // A read has no operands; a program may pass some all the same.
        if self.op == AtomicOp::Read {
            values = [Local::NONE; 2];
        }
        Call::atomic(form, self.op, self.datatype, values, results)
    }
}

/// Pieces of values of a call with arrays: the array, its descriptors, and its length.
type Array = (*const fi_ioc, *const *mut c_void, usize);

/// No pieces.
const NONE: Array = (null(), null(), 0);

/// The atomic of a message structure, with one remote range, which has as many values as the
/// operands.
unsafe fn of(
    form: AtomicForm,
    m: &fi_msg_atomic,
    compare: Array,
    results: Array,
    flags: u64,
) -> Result<Call, Errno> {
    if m.rma_iov_count != 1 {
        return Err(libc::EINVAL);
    }
    let kind = Kind::new(m.datatype, m.op)?;
    let operands = (m.msg_iov, null(), m.iov_count);
    // A read has results and no operands.
    let counted: Array = match kind.op {
        AtomicOp::Read => results,
        _ => operands,
    };
    // SAFETY: the caller's arrays have as many entries as they say.
    let (range, count) = unsafe {
        let each = |i: usize| (*counted.0.add(i)).count;
        let count = (0..counted.2).try_fold(0usize, |all, i| all.checked_add(each(i)));
        (&*m.rma_iov, count)
    };
    if count != Some(range.count) {
        return Err(libc::EINVAL);
    }
    let local = |(at, desc, count): Array| kind.many(at, desc, count);
    let call = kind.call(form, [local(operands), local(compare)], local(results));
    let call = call.remote(range.addr, range.key).context(m.context);
    // Operands are copied in any case.
    Ok(call.flags(flags & !u64::from(FI_INJECT)))
}

entries! {
    fn write(
        buf: *const c_void,
        count: usize,
        desc: *mut c_void,
        _to: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: fi_datatype,
        op: fi_op,
        context: *mut c_void,
    ) => Kind::new(datatype, op).and_then(|kind| {
        let values = [kind.one(buf, count, desc)?, Local::NONE];
        let call = kind.call(AtomicForm::Base, values, Local::NONE);
        Ok(call.remote(addr, key).context(context))
    });

    fn writev(
        iov: *const fi_ioc,
        desc: *mut *mut c_void,
        count: usize,
        _to: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: fi_datatype,
        op: fi_op,
        context: *mut c_void,
    ) => Kind::new(datatype, op).map(|kind| {
        let values = [kind.many(iov, desc, count), Local::NONE];
        let call = kind.call(AtomicForm::Base, values, Local::NONE);
        call.remote(addr, key).context(context)
    });

    fn writemsg(msg: *const fi_msg_atomic, flags: u64) =>
        of(AtomicForm::Base, &*msg, NONE, NONE, flags);

    fn inject(
        buf: *const c_void,
        count: usize,
        _to: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: fi_datatype,
        op: fi_op,
    ) => Kind::new(datatype, op).and_then(|kind| {
        let values = [kind.one(buf, count, std::ptr::null_mut())?, Local::NONE];
        let call = kind.call(AtomicForm::Base, values, Local::NONE);
        Ok(call.remote(addr, key).inject())
    });

    fn readwrite(
        buf: *const c_void,
        count: usize,
        desc: *mut c_void,
        result: *mut c_void,
        result_desc: *mut c_void,
        _to: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: fi_datatype,
        op: fi_op,
        context: *mut c_void,
    ) => Kind::new(datatype, op).and_then(|kind| {
        let values = [kind.one(buf, count, desc)?, Local::NONE];
        let call = kind.call(AtomicForm::Fetch, values, kind.one(result, count, result_desc)?);
        Ok(call.remote(addr, key).context(context))
    });

    fn readwritev(
        iov: *const fi_ioc,
        desc: *mut *mut c_void,
        count: usize,
        resultv: *mut fi_ioc,
        result_desc: *mut *mut c_void,
        result_count: usize,
        _to: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: fi_datatype,
        op: fi_op,
        context: *mut c_void,
    ) => Kind::new(datatype, op).map(|kind| {
        let values = [kind.many(iov, desc, count), Local::NONE];
        let results = kind.many(resultv, result_desc, result_count);
        let call = kind.call(AtomicForm::Fetch, values, results);
        call.remote(addr, key).context(context)
    });

    fn readwritemsg(
        msg: *const fi_msg_atomic,
        resultv: *mut fi_ioc,
        result_desc: *mut *mut c_void,
        result_count: usize,
        flags: u64,
    ) => {
        let results: Array = (resultv, result_desc, result_count);
        of(AtomicForm::Fetch, &*msg, NONE, results, flags)
    };

    fn compwrite(
        buf: *const c_void,
        count: usize,
        desc: *mut c_void,
        compare: *const c_void,
        compare_desc: *mut c_void,
        result: *mut c_void,
        result_desc: *mut c_void,
        _to: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: fi_datatype,
        op: fi_op,
        context: *mut c_void,
    ) => Kind::new(datatype, op).and_then(|kind| {
        let values = [kind.one(buf, count, desc)?, kind.one(compare, count, compare_desc)?];
        let call = kind.call(AtomicForm::Compare, values, kind.one(result, count, result_desc)?);
        Ok(call.remote(addr, key).context(context))
    });

    fn compwritev(
        iov: *const fi_ioc,
        desc: *mut *mut c_void,
        count: usize,
        comparev: *const fi_ioc,
        compare_desc: *mut *mut c_void,
        compare_count: usize,
        resultv: *mut fi_ioc,
        result_desc: *mut *mut c_void,
        result_count: usize,
        _to: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: fi_datatype,
        op: fi_op,
        context: *mut c_void,
    ) => Kind::new(datatype, op).map(|kind| {
        let values = [
            kind.many(iov, desc, count),
            kind.many(comparev, compare_desc, compare_count),
        ];
        let results = kind.many(resultv, result_desc, result_count);
        let call = kind.call(AtomicForm::Compare, values, results);
        call.remote(addr, key).context(context)
    });

    fn compwritemsg(
        msg: *const fi_msg_atomic,
        comparev: *const fi_ioc,
        compare_desc: *mut *mut c_void,
        compare_count: usize,
        resultv: *mut fi_ioc,
        result_desc: *mut *mut c_void,
        result_count: usize,
        flags: u64,
    ) => {
        let compare: Array = (comparev, compare_desc, compare_count);
        let results: Array = (resultv, result_desc, result_count);
        of(AtomicForm::Compare, &*msg, compare, results, flags)
    };
}

/// Returns the number of values of one atomic, and the size of a value.
fn ask(
    domain: &kfabric::Domain,
    form: AtomicForm,
    op: fi_op,
    datatype: fi_datatype,
) -> Result<(usize, usize), Errno> {
    // The kernel has libfabric's integers and operations.
    let kind = Kind::new(datatype, op)?;
    match domain.query_atomic_raw(form, kind.op, datatype) {
        Ok(count) => Ok((count, kind.size)),
        Err(e) if e.errno() == Some(kfabric::Errno::EINVAL) => Err(libc::EOPNOTSUPP),
        Err(e) => Err(crate::error::errno(&e)),
    }
}

/// Functions that say how many values an atomic of a form may have.
macro_rules! valid {
    ($($name:ident = $form:expr;)*) => {$(
        unsafe extern "C" fn $name(
            ep: *mut fid_ep,
            datatype: fi_datatype,
            op: fi_op,
            count: *mut usize,
        ) -> c_int {
            // SAFETY: an endpoint, and the caller's place for the number.
            unsafe {
                let domain = &object::body::<Endpoint>(ep).domain;
                status(ask(domain, $form, op, datatype).map(|(most, _)| *count = most))
            }
        }
    )*};
}

valid! {
    writevalid = AtomicForm::Base;
    readwritevalid = AtomicForm::Fetch;
    compwritevalid = AtomicForm::Compare;
}

/// `fi_query_atomic`.
pub(crate) unsafe extern "C" fn query(
    domain: *mut fid_domain,
    datatype: fi_datatype,
    op: fi_op,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    let form = match flags {
        0 => AtomicForm::Base,
        FI_FETCH_ATOMIC => AtomicForm::Fetch,
        FI_COMPARE_ATOMIC => AtomicForm::Compare,
        _ => return -libc::EOPNOTSUPP,
    };
    // SAFETY: a domain, and the caller's attributes.
    unsafe {
        let domain = &object::body::<Domain>(domain).domain;
        status(ask(domain, form, op, datatype).map(|(count, size)| {
            (*attr).count = count;
            (*attr).size = size;
        }))
    }
}
