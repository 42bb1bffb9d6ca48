// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations: messages and one-sided transfers. A post is one call of the kernel, or of rings none.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;

use kfabric::uapi as abi;
use kfabric::{AtomicForm, AtomicOp, Piece, RawOp, RemoteMem};

use crate::ep::Endpoint;
use crate::error::{translate, Errno};
use crate::ffi::*;
use crate::mr::Mr;
use crate::object;

/// Flags that change nothing here: every completion is at least a transmit completion.
const IGNORED: u64 = FI_MORE as u64 | FI_INJECT_COMPLETE as u64 | FI_TRANSMIT_COMPLETE as u64;
const COMPLETION: u64 = FI_COMPLETION as u64;
const INJECT: u64 = FI_INJECT as u64;
const DATA: u64 = FI_REMOTE_CQ_DATA as u64;
const FENCE: u64 = FI_FENCE as u64;
/// Operations that complete when their bytes are visible, and writes that complete when they are
/// durable, where the provider has these.
const VISIBLE: u64 = FI_DELIVERY_COMPLETE as u64;
const DURABLE: u64 = FI_COMMIT_COMPLETE as u64;
/// Flags that the transmit operations of an endpoint may have by default.
pub(crate) const FLAGS: u64 = RECV_FLAGS | VISIBLE;
/// Flags that receives may have by default.
pub(crate) const RECV_FLAGS: u64 = IGNORED | COMPLETION | INJECT;
/// Flags of a single operation.
const KNOWN: u64 = FLAGS | DATA | FENCE | DURABLE;

/// The context of injected operations, which have none of the program's.
static INJECTED: u64 = 0;

/// The number that completions of such operations carry.
pub(crate) fn injected() -> u64 {
    (&raw const INJECTED).expose_provenance() as u64
}

/// Memory of an operation: one piece, or an array of pieces, with descriptors.
#[derive(Clone, Copy)]
pub(crate) enum Local {
    One(*const c_void, usize, *mut c_void),
    Many(*const iovec, *const *mut c_void, usize),
    /// Values of atomics, of this size each.
    Values(*const fi_ioc, *const *mut c_void, usize, usize),
}

/// Pieces for libkfabric.
#[derive(Clone, Copy)]
pub(crate) struct Pieces<'a> {
    all: [Piece<'a>; abi::KFI_IOV_MAX],
    count: usize,
}

impl<'a> Pieces<'a> {
    fn as_slice(&self) -> &[Piece<'a>] {
        &self.all[..self.count]
    }
}

impl Local {
    pub(crate) const NONE: Self = Self::Many(null(), null(), 0);

    /// The number of bytes of pieces.
    ///
    /// # Safety
    ///
    /// An array has as many entries as it says.
    unsafe fn len(self) -> usize {
        match self {
            Self::One(_, len, _) => len,
            // SAFETY: as the caller vouches.
            Self::Many(iov, _, count) => (0..count).fold(0_usize, |sum, i| unsafe {
                sum.saturating_add((*iov.add(i)).iov_len)
            }),
            Self::Values(..) => usize::MAX,
        }
    }

    /// Lists the pieces that have bytes; `registered`: with their regions.
    ///
    /// # Safety
    ///
    /// Arrays have as many entries as they say, and descriptors are regions of ours or null.
    unsafe fn pieces<'a>(self, registered: bool) -> Result<Pieces<'a>, Errno> {
        let mut pieces = Pieces {
            all: [Piece::unregistered(null(), 0); abi::KFI_IOV_MAX],
            count: 0,
        };
        let count = match self {
            Self::One(..) => 1,
            Self::Many(.., count) | Self::Values(_, _, count, _) => count,
        };
        for i in 0..count {
            // SAFETY: as the caller vouches.
            let (base, len, descs) = unsafe {
                match self {
                    Self::One(base, len, ref desc) => (base, len, &raw const *desc),
                    Self::Many(iov, descs, _) => {
                        let piece = &*iov.add(i);
                        (piece.iov_base.cast_const(), piece.iov_len, descs)
                    }
                    Self::Values(values, descs, _, size) => {
                        let piece = &*values.add(i);
                        let len = piece.count.checked_mul(size).ok_or(libc::EMSGSIZE)?;
                        (piece.addr.cast_const(), len, descs)
                    }
                }
            };
            if len == 0 {
                continue;
            }
            let place = pieces.all.get_mut(pieces.count).ok_or(libc::EINVAL)?;
            *place = Piece::unregistered(base.cast(), len);
            if registered {
                // SAFETY: as the caller vouches.
                let region = unsafe {
                    let desc = match descs.is_null() {
                        true => null_mut(),
                        false => *descs.add(i),
                    };
                    if desc.is_null() {
                        return Err(libc::EINVAL);
                    }
                    object::body::<Mr>(desc).local(place.base, len)
                };
                place.region = Some(region.ok_or(libc::EINVAL)?);
            }
            pieces.count += 1;
        }
        Ok(pieces)
    }
}

/// The flags of a call.
#[derive(Clone, Copy)]
enum Flags {
    /// Those of the endpoint.
    Default,
    Given(u64),
    /// The call has no context, so a success has no completion.
    Inject,
}

/// The kind of an operation.
#[derive(Clone, Copy)]
enum Op {
    Send,
    Recv,
    Read,
    Write,
    /// With operands and comparands, which are copied.
    Atomic(AtomicForm, AtomicOp, fi_datatype, [Local; 2]),
}

/// An operation to post.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    op: Op,
    local: Local,
    remote: RemoteMem,
    context: *mut c_void,
    data: u64,
    /// FI_REMOTE_CQ_DATA of a call without flags.
    with: u64,
    flags: Flags,
}

impl Call {
    fn new(op: Op, local: Local) -> Self {
        Self {
            op,
            local,
            remote: RemoteMem::default(),
            context: null_mut(),
            data: 0,
            with: 0,
            flags: Flags::Default,
        }
    }

    fn send(local: Local) -> Self {
        Self::new(Op::Send, local)
    }

    fn recv(local: Local) -> Self {
        Self::new(Op::Recv, local)
    }

    fn read(local: Local, addr: u64, key: u64) -> Self {
        Self::new(Op::Read, local).remote(addr, key)
    }

    fn write(local: Local, addr: u64, key: u64) -> Self {
        Self::new(Op::Write, local).remote(addr, key)
    }

    pub(crate) fn atomic(
        form: AtomicForm,
        op: AtomicOp,
        datatype: fi_datatype,
        values: [Local; 2],
        results: Local,
    ) -> Self {
        Self::new(Op::Atomic(form, op, datatype, values), results)
    }

    pub(crate) fn remote(mut self, addr: u64, key: u64) -> Self {
        self.remote = RemoteMem { addr, key };
        self
    }

    pub(crate) fn context(mut self, context: *mut c_void) -> Self {
        self.context = context;
        self
    }

    fn data(mut self, data: u64) -> Self {
        (self.data, self.with) = (data, DATA);
        self
    }

    pub(crate) fn flags(mut self, flags: u64) -> Self {
        self.flags = Flags::Given(flags);
        self
    }

    pub(crate) fn inject(mut self) -> Self {
        self.flags = Flags::Inject;
        self
    }

    /// A message of a structure.
    fn of(op: Op, m: &fi_msg, flags: u64) -> Self {
        let call = Self::new(op, Local::Many(m.msg_iov, m.desc, m.iov_count));
        let call = call.context(m.context).flags(flags);
        Self {
            data: m.data,
            ..call
        }
    }

    /// A one-sided transfer of a structure, with one remote range.
    unsafe fn of_rma(op: Op, m: &fi_msg_rma, flags: u64) -> Result<Self, Errno> {
        if m.rma_iov_count != 1 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's array has one entry.
        let range = unsafe { &*m.rma_iov };
        let local = Local::Many(m.msg_iov, m.desc, m.iov_count);
        // SAFETY: as the caller vouches.
        if unsafe { local.len() } > range.len {
            return Err(libc::EINVAL);
        }
        let call = Self::new(op, local);
        let call = call.context(m.context).flags(flags);
        Ok(Self {
            data: m.data,
            ..call.remote(range.addr, range.key)
        })
    }

    /// Posts the operation.
    ///
    /// # Safety
    ///
    /// `ep` is an endpoint that is open or was just closed. Arrays have as many entries as they say, descriptors are regions
    /// of ours or null, and the memory is the program's, as libfabric's manual asks.
    unsafe fn try_post(&self, ep: *mut fid_ep) -> Result<(), Errno> {
        // SAFETY: as the caller vouches.
        let ep = unsafe { object::body_if_open::<Endpoint>(ep) }.ok_or(libc::ENOTCONN)?;
        let side = match self.op {
            Op::Recv => &ep.rx,
            _ => &ep.tx,
        };
        let flags = match self.flags {
            Flags::Default => {
                let flags = side.flags.load(Ordering::Relaxed) | self.with;
                // FI_INJECT of the endpoint is for operations that can be injected.
                // SAFETY: as the caller vouches.
                let small = unsafe { self.local.len() } <= abi::KFI_INJECT_MAX;
                match self.op {
                    Op::Send | Op::Write if small => flags,
                    _ => flags & !INJECT,
                }
            }
            Flags::Given(flags) => flags,
            Flags::Inject => INJECT | self.with,
        };
        let fetches = matches!(self.op, Op::Recv | Op::Read);
        let receives = matches!(self.op, Op::Recv);
        if flags & !KNOWN != 0 || fetches && flags & INJECT != 0 || receives && flags & VISIBLE != 0
        {
            return Err(FI_EBADFLAGS as Errno);
        }
        let atomic = matches!(self.op, Op::Atomic(..));
        // Operands of atomics are copied in any case.
        let inject = flags & INJECT != 0 && !atomic;
        // SAFETY: as the caller vouches.
        let local = unsafe { self.local.pieces(!inject) }?;
        // The operands and comparands of an atomic. Other operations build no such arrays.
        let arrays;
        let values: [&[Piece<'_>]; 2] = match self.op {
            Op::Atomic(.., [operands, comparands]) => {
                // SAFETY: as the caller vouches.
                arrays = unsafe { [operands.pieces(false)?, comparands.pieces(false)?] };
                [arrays[0].as_slice(), arrays[1].as_slice()]
            }
            _ => [&[], &[]],
        };
        let carried = match inject {
            true => local.as_slice(),
            false => values[0],
        };
        let limit = abi::KFI_INJECT_MAX;
        if carried.iter().any(|piece| piece.len > limit) {
            return Err(if inject { libc::EINVAL } else { libc::EMSGSIZE });
        }
        let pieces = local.as_slice();
        let mut op = match self.op {
            Op::Send => RawOp::send(pieces),
            Op::Recv => RawOp::recv(pieces),
            Op::Read => RawOp::read(pieces, self.remote),
            Op::Write => RawOp::write(pieces, self.remote),
            Op::Atomic(form, op, datatype, _) => RawOp::atomic(
                form,
                op,
                datatype,
                values[0],
                values[1],
                pieces,
                self.remote,
            ),
        };
        let silent = matches!(self.flags, Flags::Inject);
        op = op.context(match silent {
            true => injected(),
            false => self.context.expose_provenance() as u64,
        });
        let selective = side.selective.load(Ordering::Relaxed);
        if !silent && (!selective || flags & COMPLETION != 0) {
            op = op.completion();
        }
        if flags & INJECT != 0 {
            op = op.inject();
        }
        if flags & DATA != 0 {
            op = op.data(self.data);
        }
        if flags & FENCE != 0 {
            op = op.fence();
        }
        if flags & VISIBLE != 0 {
            match self.op {
                Op::Write => op = op.visible(),
                Op::Send if ep.rings => match ep.ep.has_rings() {
                    Some(true) => op = op.visible(),
                    Some(false) if ep.visible => {}
                    Some(false) => return Err(libc::EOPNOTSUPP),
                    None => return Err(libc::ENOTCONN),
                },
                // The kernel's flag is for writes. Where it has the level, each operation
                // completes when its bytes are in memory: those of a send in the peer's receive.
                _ if ep.visible => {}
                _ => return Err(libc::EOPNOTSUPP),
            }
        }
        if flags & DURABLE != 0 {
            op = op.durable();
        }
        // SAFETY: the memory is the program's, as the caller vouches.
        match unsafe { ep.ep.post_raw(&op) } {
            Ok(()) => Ok(()),
            Err(kfabric::Errno::EMSGSIZE) if inject => Err(libc::EINVAL),
            Err(errno) => Err(translate(errno)),
        }
    }

    /// As [`Call::try_post`], with libfabric's status.
    pub(crate) unsafe fn post(&self, ep: *mut fid_ep) -> isize {
        // SAFETY: as the caller vouches.
        match unsafe { self.try_post(ep) } {
            Ok(()) => 0,
            Err(errno) => -(errno as isize),
        }
    }
}

/// Entry points that post: the arguments after the endpoint, and the call that they make, or an
/// errno.
macro_rules! entries {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) => $call:expr;)*) => {$(
        $(#[$meta])*
        unsafe extern "C" fn $name(ep: *mut fid_ep, $($arg: $ty),*) -> isize {
            // SAFETY: the caller's arguments, as libfabric's manual asks.
            unsafe {
                let made: Result<Call, Errno> = $call;
                match made {
                    Ok(call) => call.post(ep),
                    Err(errno) => -(errno as isize),
                }
            }
        }
    )*};
}
pub(crate) use entries;

/// The kind of an operation of one piece.
#[derive(Clone, Copy)]
enum One {
    Send,
    Recv,
    Read(RemoteMem),
    Write(RemoteMem),
}

/// Posts an operation of one piece with the endpoint's flags: the most frequent calls, which have a
/// short way.
///
/// # Safety
///
/// As for [`Call::try_post`].
#[inline]
unsafe fn post_one(
    of: One,
    ep: *mut fid_ep,
    (buf, len): (*const c_void, usize),
    desc: *mut c_void,
    context: *mut c_void,
) -> isize {
    // SAFETY: as the caller vouches.
    let Some(end) = (unsafe { object::body_if_open::<Endpoint>(ep) }) else {
        return -(libc::ENOTCONN as isize);
    };
    let side = match of {
        One::Recv => &end.rx,
        _ => &end.tx,
    };
    let flags = side.flags.load(Ordering::Relaxed);
    if flags & !(IGNORED | COMPLETION) != 0 || len == 0 || desc.is_null() {
        let local = one(buf, len, desc);
        let call = match of {
            One::Send => Call::send(local),
            One::Recv => Call::recv(local),
            One::Read(from) => Call::read(local, from.addr, from.key),
            One::Write(to) => Call::write(local, to.addr, to.key),
        };
        // SAFETY: as the caller vouches.
        return unsafe { call.context(context).post(ep) };
    }
    // SAFETY: a descriptor is a region of ours.
    let Some(region) = (unsafe { object::body::<Mr>(desc) }).local(buf.cast(), len) else {
        return -(libc::EINVAL as isize);
    };
    let piece = Piece::of(region, buf.cast(), len);
    let context = context.expose_provenance() as u64;
    let completion = flags & COMPLETION != 0 || !side.selective.load(Ordering::Relaxed);
    if end.rings && matches!(of, One::Send | One::Recv) {
        let receives = matches!(of, One::Recv);
        match end.ep.post_in_rings(receives, piece, context, completion) {
            Ok(true) => return 0,
            Ok(false) => {}
            Err(errno) => return -(translate(errno) as isize),
        }
    }
    let pieces = [piece];
    let mut op = match of {
        One::Send => RawOp::send(&pieces),
        One::Recv => RawOp::recv(&pieces),
        One::Read(from) => RawOp::read(&pieces, from),
        One::Write(to) => RawOp::write(&pieces, to),
    };
    op = op.context(context);
    if completion {
        op = op.completion();
    }
    // SAFETY: the memory is the program's, as the caller vouches.
    match unsafe { end.ep.post_raw(&op) } {
        Ok(()) => 0,
        Err(errno) => -(translate(errno) as isize),
    }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    _from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's arguments, as libfabric's manual asks.
    unsafe { post_one(One::Recv, ep, (buf, len), desc, context) }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    _to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's arguments, as libfabric's manual asks.
    unsafe { post_one(One::Send, ep, (buf, len), desc, context) }
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    _to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let from = One::Read(RemoteMem { addr, key });
    // SAFETY: the caller's arguments, as libfabric's manual asks.
    unsafe { post_one(from, ep, (buf, len), desc, context) }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    _to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let to = One::Write(RemoteMem { addr, key });
    // SAFETY: the caller's arguments, as libfabric's manual asks.
    unsafe { post_one(to, ep, (buf, len), desc, context) }
}

/// Memory of calls with one piece.
fn one(buf: *const c_void, len: usize, desc: *mut c_void) -> Local {
    Local::One(buf, len, desc)
}

/// Memory of calls that inject.
fn copied(buf: *const c_void, len: usize) -> Local {
    Local::One(buf, len, null_mut())
}

entries! {
    fn recvv(
        iov: *const iovec,
        desc: *mut *mut c_void,
        count: usize,
        _from: fi_addr_t,
        context: *mut c_void,
    ) => Ok(Call::recv(Local::Many(iov, desc, count)).context(context));

    fn recvmsg(msg: *const fi_msg, flags: u64) => Ok(Call::of(Op::Recv, &*msg, flags));

    fn sendv(
        iov: *const iovec,
        desc: *mut *mut c_void,
        count: usize,
        _to: fi_addr_t,
        context: *mut c_void,
    ) => Ok(Call::send(Local::Many(iov, desc, count)).context(context));

    fn sendmsg(msg: *const fi_msg, flags: u64) => Ok(Call::of(Op::Send, &*msg, flags));

    fn inject(buf: *const c_void, len: usize, _to: fi_addr_t) =>
        Ok(Call::send(copied(buf, len)).inject());

    fn senddata(
        buf: *const c_void,
        len: usize,
        desc: *mut c_void,
        data: u64,
        _to: fi_addr_t,
        context: *mut c_void,
    ) => Ok(Call::send(one(buf, len, desc)).data(data).context(context));

    fn injectdata(buf: *const c_void, len: usize, data: u64, _to: fi_addr_t) =>
        Ok(Call::send(copied(buf, len)).data(data).inject());

    fn readv(
        iov: *const iovec,
        desc: *mut *mut c_void,
        count: usize,
        _to: fi_addr_t,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) => Ok(Call::read(Local::Many(iov, desc, count), addr, key).context(context));

    fn readmsg(msg: *const fi_msg_rma, flags: u64) => Call::of_rma(Op::Read, &*msg, flags);

    fn writev(
        iov: *const iovec,
        desc: *mut *mut c_void,
        count: usize,
        _to: fi_addr_t,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) => Ok(Call::write(Local::Many(iov, desc, count), addr, key).context(context));

    fn writemsg(msg: *const fi_msg_rma, flags: u64) => Call::of_rma(Op::Write, &*msg, flags);

    fn inject_write(buf: *const c_void, len: usize, _to: fi_addr_t, addr: u64, key: u64) =>
        Ok(Call::write(copied(buf, len), addr, key).inject());

    fn writedata(
        buf: *const c_void,
        len: usize,
        desc: *mut c_void,
        data: u64,
        _to: fi_addr_t,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) => Ok(Call::write(one(buf, len, desc), addr, key).data(data).context(context));

    fn inject_writedata(
        buf: *const c_void,
        len: usize,
        data: u64,
        _to: fi_addr_t,
        addr: u64,
        key: u64,
    ) => Ok(Call::write(copied(buf, len), addr, key).data(data).inject());
}

pub(crate) static MSG: Table<fi_ops_msg> = Table(fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
});
pub(crate) static RMA: Table<fi_ops_rma> = Table(fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject_write),
    writedata: Some(writedata),
    injectdata: Some(inject_writedata),
});
pub(crate) static TAGGED: Table<fi_ops_tagged> = Table(fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv: absent(),
    recvv: absent(),
    recvmsg: absent(),
    send: absent(),
    sendv: absent(),
    sendmsg: absent(),
    inject: absent(),
    senddata: absent(),
    injectdata: absent(),
});
