// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations: messages and one-sided transfers. Each post is one call of the kernel.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use kfabric_uapi as abi;

use crate::domain::Region;
use crate::ep::Endpoint;
use crate::ffi::*;
use crate::kernel::{address, Errno};

/// The context of injected operations that have none of the program's.
static INJECTED: u64 = 0;

/// The number that completions of such operations carry.
pub(crate) fn injected() -> u64 {
    address(&INJECTED)
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
/// Flags that change nothing here: every completion is at least a transmit completion.
const IGNORED: u64 = FI_MORE as u64 | FI_INJECT_COMPLETE as u64 | FI_TRANSMIT_COMPLETE as u64;
/// Flags that the kernel knows.
const KNOWN: u64 = abi::KFI_COMPLETION | abi::KFI_INJECT | abi::KFI_REMOTE_CQ_DATA;
/// Operation flags that an endpoint may have.
pub(crate) const FLAGS: u64 = IGNORED | KNOWN;
/// A flag that the kernel knows by another value than libfabric.
const FENCE: u64 = FI_FENCE as u64;

/// An operation to post.
pub(crate) struct Post {
    op: u32,
    iov: *const iovec,
    desc: *const *mut c_void,
    count: usize,
    context: *mut c_void,
    data: u64,
    remote: u64,
    key: u64,
    flags: u64,
    /// Operation and type of an atomic, and the bytes of its operands and comparands.
    atomic: Option<(u32, u32, *const [u8])>,
    /// The call has no context, so a success has no completion.
    silent: bool,
}

impl Post {
    pub(crate) fn new(
        op: u32,
        iov: *const iovec,
        desc: *const *mut c_void,
        count: usize,
        context: *mut c_void,
    ) -> Self {
        Self {
            op,
            iov,
            desc,
            count,
            context,
            data: 0,
            remote: 0,
            key: 0,
            flags: 0,
            atomic: None,
            silent: false,
        }
    }

    pub(crate) fn remote(mut self, addr: u64, key: u64) -> Self {
        (self.remote, self.key) = (addr, key);
        self
    }

    /// Makes the operation an atomic. The iov is the memory of its results.
    pub(crate) fn atomic(mut self, op: u32, datatype: u32, operands: *const [u8]) -> Self {
        self.atomic = Some((op, datatype, operands));
        self
    }

    /// Sets the flags of a call that takes some.
    pub(crate) fn flags(mut self, flags: u64) -> Self {
        self.flags = flags;
        self
    }

    fn with_data(mut self, data: u64) -> Self {
        self.flags |= abi::KFI_REMOTE_CQ_DATA;
        self.data = data;
        self
    }

    pub(crate) fn injected(mut self) -> Self {
        self.flags |= abi::KFI_INJECT;
        self.silent = true;
        self
    }

    /// Adds the endpoint's own flags, for a call that takes none.
    pub(crate) fn defaults(mut self, ep: *mut fid_ep) -> Self {
        // SAFETY: an endpoint.
        let ep = unsafe { &*ep.cast::<Endpoint>() };
        self.flags |= match self.op {
            abi::KFI_OP_RECV => ep.rx_flags.load(Ordering::Relaxed),
            // FI_INJECT of the endpoint would limit every operation to the inject size.
            _ => ep.tx_flags.load(Ordering::Relaxed) & !abi::KFI_INJECT,
        };
        self
    }

    unsafe fn build(
        &self,
        ep: &Endpoint,
        entry: &mut abi::OpEntry,
        bytes: &mut [u8; abi::KFI_INJECT_MAX],
    ) -> Result<(), Errno> {
        if self.flags & !(IGNORED | KNOWN | FENCE) != 0 {
            return Err(FI_EBADFLAGS as Errno);
        }
        entry.op = self.op;
        entry.flags = self.flags & KNOWN;
        if self.flags & FENCE != 0 {
            entry.flags |= abi::KFI_FENCE;
        }
        entry.context = self.context.expose_provenance() as u64;
        entry.data = self.data;
        entry.remote_addr = self.remote;
        entry.key = self.key;
        let side = usize::from(self.op == abi::KFI_OP_RECV);
        if self.silent {
            entry.context = injected();
            entry.flags &= !abi::KFI_COMPLETION;
        } else if !ep.selective[side].load(Ordering::Relaxed) {
            entry.flags |= abi::KFI_COMPLETION;
        }
        // SAFETY: the caller's arrays have `count` entries, and the memory is the program's.
        unsafe {
            if let Some((op, datatype, operands)) = self.atomic {
                (entry.atomic_op, entry.datatype) = (op, datatype);
                entry.inject = operands.cast::<u8>().expose_provenance() as u64;
                entry.inject_len = operands.len() as u64;
            } else if self.flags & abi::KFI_INJECT != 0 {
                let mut at = 0;
                for i in 0..self.count {
                    let piece = &*self.iov.add(i);
                    let end = piece.iov_len.saturating_add(at);
                    let to = bytes.get_mut(at..end).ok_or(libc::EINVAL)?;
                    if to.is_empty() {
                        continue;
                    }
                    std::ptr::copy_nonoverlapping(
                        piece.iov_base.cast::<u8>(),
                        to.as_mut_ptr(),
                        piece.iov_len,
                    );
                    at = end;
                }
                entry.inject = address(bytes);
                entry.inject_len = at as u64;
                return Ok(());
            }
            let mut used = 0;
            for i in 0..self.count {
                let piece = &*self.iov.add(i);
                if piece.iov_len == 0 {
                    continue;
                }
                let desc = match self.desc.is_null() {
                    true => std::ptr::null_mut(),
                    false => *self.desc.add(i),
                };
                let to = entry.iov.get_mut(used).ok_or(libc::EINVAL)?;
                // Descriptors are regions of ours.
                let region = desc.cast::<Region>().as_ref().ok_or(libc::EINVAL)?;
                let base = piece.iov_base.expose_provenance() as u64;
                let offset = base.checked_sub(region.base).ok_or(libc::EINVAL)?;
                *to = abi::Iov {
                    region: region.handle,
                    offset,
                    len: piece.iov_len as u64,
                };
                used += 1;
            }
            entry.iov_count = used as u32;
        }
        Ok(())
    }

    /// Posts the operation.
    pub(crate) unsafe fn post(self, ep: *mut fid_ep) -> isize {
        let mut entry = abi::OpEntry::default();
        let mut bytes = [0u8; abi::KFI_INJECT_MAX];
        // SAFETY: an endpoint, and the caller's arrays. The entry and the bytes live through the
        // call.
        unsafe {
            let ep = &*ep.cast::<Endpoint>();
            if let Err(errno) = self.build(ep, &mut entry, &mut bytes) {
                return -(errno as isize);
            }
            let mut arg = abi::Submit {
                ep: ep.handle,
                ops: address(&entry),
                count: 1,
                entry_size: size_of::<abi::OpEntry>() as u32,
                ..Default::default()
            };
            match ep.dev.call(&mut arg) {
                Ok(()) if arg.done == 1 => 0,
                Ok(()) => -(arg.err.max(1) as isize),
                Err(errno) => -(errno as isize),
            }
        }
    }
}

/// A single piece of memory.
pub(crate) fn one(buf: *const c_void, len: usize) -> iovec {
    iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    _: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let iov = one(buf, len);
    // SAFETY: the caller's arguments.
    unsafe {
        Post::new(abi::KFI_OP_RECV, &iov, &desc, 1, context)
            .defaults(ep)
            .post(ep)
    }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    _: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's arguments.
    unsafe {
        Post::new(abi::KFI_OP_RECV, iov, desc, count, context)
            .defaults(ep)
            .post(ep)
    }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the caller's arguments.
    unsafe {
        let m = &*msg;
        let mut post = Post::new(abi::KFI_OP_RECV, m.msg_iov, m.desc, m.iov_count, m.context);
        post.flags = flags;
        post.post(ep)
    }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    _: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let iov = one(buf, len);
    // SAFETY: the caller's arguments.
    unsafe {
        Post::new(abi::KFI_OP_SEND, &iov, &desc, 1, context)
            .defaults(ep)
            .post(ep)
    }
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    _: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's arguments.
    unsafe {
        Post::new(abi::KFI_OP_SEND, iov, desc, count, context)
            .defaults(ep)
            .post(ep)
    }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the caller's arguments.
    unsafe {
        let m = &*msg;
        let mut post = Post::new(abi::KFI_OP_SEND, m.msg_iov, m.desc, m.iov_count, m.context);
        (post.flags, post.data) = (flags, m.data);
        post.post(ep)
    }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: fi_addr_t,
) -> isize {
    let iov = one(buf, len);
    let none = std::ptr::null_mut();
    // SAFETY: the caller's arguments.
    unsafe {
        Post::new(abi::KFI_OP_SEND, &iov, std::ptr::null(), 1, none)
            .injected()
            .post(ep)
    }
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    _: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let iov = one(buf, len);
    // SAFETY: the caller's arguments.
    unsafe {
        Post::new(abi::KFI_OP_SEND, &iov, &desc, 1, context)
            .with_data(data)
            .defaults(ep)
            .post(ep)
    }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    _: fi_addr_t,
) -> isize {
    let iov = one(buf, len);
    let none = std::ptr::null_mut();
    // SAFETY: the caller's arguments.
    unsafe {
        Post::new(abi::KFI_OP_SEND, &iov, std::ptr::null(), 1, none)
            .with_data(data)
            .injected()
            .post(ep)
    }
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    _: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let iov = one(buf, len);
    // SAFETY: the caller's arguments.
    unsafe {
        Post::new(abi::KFI_OP_READ, &iov, &desc, 1, context)
            .remote(addr, key)
            .defaults(ep)
            .post(ep)
    }
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    _: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's arguments.
    unsafe {
        Post::new(abi::KFI_OP_READ, iov, desc, count, context)
            .remote(addr, key)
            .defaults(ep)
            .post(ep)
    }
}

/// Posts a one-sided operation of a message structure, with one remote range.
unsafe fn rma_msg(op: u32, ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the caller's arguments.
    unsafe {
        let m = &*msg;
        if m.rma_iov_count != 1 {
            return -(libc::EINVAL as isize);
        }
        let range = &*m.rma_iov;
        let mut post =
            Post::new(op, m.msg_iov, m.desc, m.iov_count, m.context).remote(range.addr, range.key);
        (post.flags, post.data) = (flags, m.data);
        post.post(ep)
    }
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the caller's arguments.
    unsafe { rma_msg(abi::KFI_OP_READ, ep, msg, flags) }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    _: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let iov = one(buf, len);
    // SAFETY: the caller's arguments.
    unsafe {
        Post::new(abi::KFI_OP_WRITE, &iov, &desc, 1, context)
            .remote(addr, key)
            .defaults(ep)
            .post(ep)
    }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    _: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's arguments.
    unsafe {
        Post::new(abi::KFI_OP_WRITE, iov, desc, count, context)
            .remote(addr, key)
            .defaults(ep)
            .post(ep)
    }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the caller's arguments.
    unsafe { rma_msg(abi::KFI_OP_WRITE, ep, msg, flags) }
}

unsafe extern "C" fn inject_write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let iov = one(buf, len);
    let none = std::ptr::null_mut();
    // SAFETY: the caller's arguments.
    unsafe {
        Post::new(abi::KFI_OP_WRITE, &iov, std::ptr::null(), 1, none)
            .remote(addr, key)
            .injected()
            .post(ep)
    }
}

unsafe extern "C" fn writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    _: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let iov = one(buf, len);
    // SAFETY: the caller's arguments.
    unsafe {
        let post = Post::new(abi::KFI_OP_WRITE, &iov, &desc, 1, context).remote(addr, key);
        post.with_data(data).defaults(ep).post(ep)
    }
}

unsafe extern "C" fn inject_writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    _: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let iov = one(buf, len);
    let none = std::ptr::null_mut();
    // SAFETY: the caller's arguments.
    unsafe {
        let post = Post::new(abi::KFI_OP_WRITE, &iov, std::ptr::null(), 1, none).remote(addr, key);
        post.with_data(data).injected().post(ep)
    }
}
