// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomics. The kernel copies operands and comparands when an atomic is posted; only memory for
//! results needs a region.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use kfabric_uapi as abi;

use crate::domain::Domain;
use crate::ep::Endpoint;
use crate::ffi::*;
use crate::kernel::{Device, Errno};
use crate::post::{one, Post};
use crate::status;

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

/// An array of pieces of values, and their descriptors.
#[derive(Clone, Copy)]
struct Values {
    at: *const fi_ioc,
    desc: *const *mut c_void,
    count: usize,
}

impl Values {
    const NONE: Self = Self {
        at: null(),
        desc: null(),
        count: 0,
    };
}

/// An atomic to post.
struct Atomic {
    op: u32,
    operands: Values,
    compare: Values,
    results: Values,
    remote: (u64, u64),
    datatype: fi_datatype,
    atomic_op: fi_op,
    context: *mut c_void,
    /// The flags of a call that takes some.
    flags: Option<u64>,
}

/// Appends values to a buffer.
///
/// # Safety
///
/// The pieces are memory of the caller with as many values as they say.
unsafe fn gather(
    values: Values,
    size: usize,
    to: &mut [u8; abi::KFI_INJECT_MAX],
    used: &mut usize,
) -> Result<(), Errno> {
    for i in 0..values.count {
        // SAFETY: as the caller vouches.
        unsafe {
            let piece = &*values.at.add(i);
            let len = piece.count.checked_mul(size).ok_or(libc::EMSGSIZE)?;
            let end = used.checked_add(len).ok_or(libc::EMSGSIZE)?;
            let place = to.get_mut(*used..end).ok_or(libc::EMSGSIZE)?;
            if place.is_empty() {
                continue;
            }
            std::ptr::copy_nonoverlapping(piece.addr.cast::<u8>(), place.as_mut_ptr(), len);
            *used = end;
        }
    }
    Ok(())
}

impl Atomic {
    unsafe fn post(self, ep: *mut fid_ep, injected: bool) -> isize {
        // SAFETY: the caller's arrays.
        match unsafe { self.try_post(ep, injected) } {
            Ok(rc) => rc,
            Err(errno) => -(errno as isize),
        }
    }

    unsafe fn try_post(self, ep: *mut fid_ep, injected: bool) -> Result<isize, Errno> {
        let size = value_size(self.datatype)?;
        let mut bytes = [0u8; abi::KFI_INJECT_MAX];
        let mut used = 0;
        let mut pieces = [one(null(), 0); abi::KFI_IOV_MAX];
        // SAFETY: the caller's arrays.
        unsafe {
            // A read has no operands; a program may pass some all the same.
            if self.atomic_op != abi::KFI_ATOMIC_READ {
                gather(self.operands, size, &mut bytes, &mut used)?;
                gather(self.compare, size, &mut bytes, &mut used)?;
            }
            for i in 0..self.results.count {
                let result = &*self.results.at.add(i);
                let len = result.count.checked_mul(size).ok_or(libc::EMSGSIZE)?;
                *pieces.get_mut(i).ok_or(libc::EINVAL)? = one(result.addr, len);
            }
            let (iov, desc) = (pieces.as_ptr(), self.results.desc);
            let mut post = Post::new(self.op, iov, desc, self.results.count, self.context)
                .remote(self.remote.0, self.remote.1)
                .atomic(self.atomic_op, self.datatype, &bytes[..used]);
            post = match self.flags {
                _ if injected => post.injected(),
                Some(flags) => post.flags(flags),
                None => post.defaults(ep),
            };
            Ok(post.post(ep))
        }
    }
}

/// The single remote range of a message structure, which has as many values as `local`.
unsafe fn remote(m: &fi_msg_atomic, local: Values) -> Result<(u64, u64), Errno> {
    if m.rma_iov_count != 1 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's arrays have as many entries as they say.
    unsafe {
        let range = &*m.rma_iov;
        let count =
            (0..local.count).try_fold(0usize, |all, i| all.checked_add((*local.at.add(i)).count));
        match count == Some(range.count) {
            true => Ok((range.addr, range.key)),
            false => Err(libc::EINVAL),
        }
    }
}

/// Posts an atomic of a message structure.
unsafe fn message(
    op: u32,
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    compare: Values,
    results: Values,
    flags: u64,
) -> isize {
    // SAFETY: the caller's arguments.
    unsafe {
        let m = &*msg;
        let operands = Values {
            at: m.msg_iov,
            desc: null(),
            count: m.iov_count,
        };
        // A read has results and no operands.
        let local = match m.op {
            abi::KFI_ATOMIC_READ => results,
            _ => operands,
        };
        let remote = match remote(m, local) {
            Ok(remote) => remote,
            Err(errno) => return -(errno as isize),
        };
        // Operands are copied in any case.
        let flags = flags & !abi::KFI_INJECT;
        Atomic {
            op,
            operands,
            compare,
            results,
            remote,
            datatype: m.datatype,
            atomic_op: m.op,
            context: m.context,
            flags: Some(flags),
        }
        .post(ep, false)
    }
}

/// A single piece of values.
fn single(addr: *const c_void, count: usize) -> fi_ioc {
    fi_ioc {
        addr: addr.cast_mut(),
        count,
    }
}

/// The array of one piece.
fn alone(piece: &fi_ioc, desc: *const *mut c_void) -> Values {
    Values {
        at: piece,
        desc,
        count: 1,
    }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let piece = single(buf, count);
    // SAFETY: the caller's arguments.
    unsafe {
        let none = null_mut();
        writev(ep, &piece, none, 1, dest, addr, key, datatype, op, context)
    }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    _: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let operands = Values {
        at: iov,
        desc: null(),
        count,
    };
    let atomic = Atomic {
        op: abi::KFI_OP_ATOMIC,
        operands,
        compare: Values::NONE,
        results: Values::NONE,
        remote: (addr, key),
        datatype,
        atomic_op: op,
        context,
        flags: None,
    };
    // SAFETY: the caller's arguments.
    unsafe { atomic.post(ep, false) }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize {
    let op = abi::KFI_OP_ATOMIC;
    // SAFETY: the caller's arguments.
    unsafe { message(op, ep, msg, Values::NONE, Values::NONE, flags) }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
) -> isize {
    let piece = single(buf, count);
    let atomic = Atomic {
        op: abi::KFI_OP_ATOMIC,
        operands: alone(&piece, null()),
        compare: Values::NONE,
        results: Values::NONE,
        remote: (addr, key),
        datatype,
        atomic_op: op,
        context: null_mut(),
        flags: None,
    };
    // SAFETY: the caller's arguments.
    unsafe { atomic.post(ep, true) }
}

unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    mut result_desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let piece = single(buf, count);
    let mut old = single(result, count);
    // SAFETY: the caller's arguments.
    unsafe {
        readwritev(
            ep,
            &piece,
            null_mut(),
            1,
            &mut old,
            &mut result_desc,
            1,
            dest,
            addr,
            key,
            datatype,
            op,
            context,
        )
    }
}

unsafe extern "C" fn readwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    _: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let atomic = Atomic {
        op: abi::KFI_OP_FETCH_ATOMIC,
        operands: Values {
            at: iov,
            desc: null(),
            count,
        },
        compare: Values::NONE,
        results: Values {
            at: resultv,
            desc: result_desc,
            count: result_count,
        },
        remote: (addr, key),
        datatype,
        atomic_op: op,
        context,
        flags: None,
    };
    // SAFETY: the caller's arguments.
    unsafe { atomic.post(ep, false) }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let results = Values {
        at: resultv,
        desc: result_desc,
        count: result_count,
    };
    let op = abi::KFI_OP_FETCH_ATOMIC;
    // SAFETY: the caller's arguments.
    unsafe { message(op, ep, msg, Values::NONE, results, flags) }
}

unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    mut result_desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let (piece, comparand) = (single(buf, count), single(compare, count));
    let mut old = single(result, count);
    // SAFETY: the caller's arguments.
    unsafe {
        compwritev(
            ep,
            &piece,
            null_mut(),
            1,
            &comparand,
            null_mut(),
            1,
            &mut old,
            &mut result_desc,
            1,
            dest,
            addr,
            key,
            datatype,
            op,
            context,
        )
    }
}

unsafe extern "C" fn compwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    _: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let atomic = Atomic {
        op: abi::KFI_OP_COMPARE_ATOMIC,
        operands: Values {
            at: iov,
            desc: null(),
            count,
        },
        compare: Values {
            at: comparev,
            desc: null(),
            count: compare_count,
        },
        results: Values {
            at: resultv,
            desc: result_desc,
            count: result_count,
        },
        remote: (addr, key),
        datatype,
        atomic_op: op,
        context,
        flags: None,
    };
    // SAFETY: the caller's arguments.
    unsafe { atomic.post(ep, false) }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let compare = Values {
        at: comparev,
        desc: null(),
        count: compare_count,
    };
    let results = Values {
        at: resultv,
        desc: result_desc,
        count: result_count,
    };
    let op = abi::KFI_OP_COMPARE_ATOMIC;
    // SAFETY: the caller's arguments.
    unsafe { message(op, ep, msg, compare, results, flags) }
}

/// Returns the number of values of one atomic, and the size of a value.
fn ask(
    dev: &Device,
    domain: u64,
    op: u32,
    atomic_op: fi_op,
    datatype: fi_datatype,
) -> Result<(usize, usize), Errno> {
    // The kernel has libfabric's integers and operations, and calls others invalid.
    value_size(datatype)?;
    let mut arg = abi::AtomicQuery {
        domain,
        op,
        atomic_op,
        datatype,
        ..Default::default()
    };
    // SAFETY: no pointers.
    match unsafe { dev.call(&mut arg) } {
        Ok(()) => Ok((arg.count as usize, arg.value_size as usize)),
        Err(libc::EINVAL) => Err(libc::EOPNOTSUPP),
        Err(errno) => Err(errno),
    }
}

unsafe fn valid(
    ep: *mut fid_ep,
    op: u32,
    datatype: fi_datatype,
    atomic_op: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: an endpoint, and the caller's place for the number.
    unsafe {
        let ep = &*ep.cast::<Endpoint>();
        status(ask(&ep.dev, ep.domain, op, atomic_op, datatype).map(|(most, _)| *count = most))
    }
}

unsafe extern "C" fn writevalid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { valid(ep, abi::KFI_OP_ATOMIC, datatype, op, count) }
}

unsafe extern "C" fn readwritevalid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { valid(ep, abi::KFI_OP_FETCH_ATOMIC, datatype, op, count) }
}

unsafe extern "C" fn compwritevalid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { valid(ep, abi::KFI_OP_COMPARE_ATOMIC, datatype, op, count) }
}

/// `fi_query_atomic`.
pub(crate) unsafe extern "C" fn query(
    domain: *mut fid_domain,
    datatype: fi_datatype,
    atomic_op: fi_op,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    let op = match flags {
        0 => abi::KFI_OP_ATOMIC,
        FI_FETCH_ATOMIC => abi::KFI_OP_FETCH_ATOMIC,
        FI_COMPARE_ATOMIC => abi::KFI_OP_COMPARE_ATOMIC,
        _ => return -libc::EOPNOTSUPP,
    };
    // SAFETY: a domain, and the caller's attributes.
    unsafe {
        let domain = &*domain.cast::<Domain>();
        status(
            ask(&domain.dev, domain.handle, op, atomic_op, datatype).map(|(count, size)| {
                (*attr).count = count;
                (*attr).size = size;
            }),
        )
    }
}
