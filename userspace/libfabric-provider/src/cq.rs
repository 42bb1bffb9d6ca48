// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Arc, OnceLock};

use kfabric::uapi as abi;
use kfabric::{CompletionQueue, Format, Taken};

use crate::closed::Drain;
use crate::domain::Domain;
use crate::error::{translate, Errno, Ours};
use crate::ffi::*;
use crate::fork::{self, Disabled};
use crate::object::{self, ended, Kind};
use crate::post::injected;
use crate::wait::{either, Signal, Timeout, Wait};
use crate::{core, text};

/// Least entries of the kernel's queue.
const DEPTH_MIN: u32 = 4096;

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) cq: CompletionQueue,
    format: fi_cq_format,
    prov: Arc<str>,
    /// Version of the interface that the program uses.
    version: u32,
    /// Raised by `fi_cq_signal`.
    signal: Signal,
    /// The program's descriptor: readable with the kernel's or after a signal. Made on demand.
    descriptor: OnceLock<OwnedFd>,
    wait: Wait,
    /// Of closed endpoints of this queue.
    pub(crate) drain: Arc<Drain>,
}

static FID: Table<fi_ops> = object::ops::<Cq>(absent(), Some(control));
pub(crate) static OPS: Table<fi_ops_cq> = Table(fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
});

impl Kind for Cq {
    type Head = fid_cq;
    const CLASS: u32 = FI_CLASS_CQ;

    fn ops() -> *mut fi_ops {
        FID.get()
    }

    fn head(&self, fid: fid, _: *mut c_void) -> fid_cq {
        fid_cq {
            fid,
            ops: OPS.get(),
        }
    }

    fn disable(head: &mut fid_cq) {
        head.ops = Disabled::of(&fork::CQ);
    }

    fn end(self) -> Result<(), (Self, Errno)> {
        let drain = self.drain.clone();
        ended(self.cq.close(), |cq| Self { cq, ..self })?;
        drain.end();
        Ok(())
    }
}

impl Cq {
    fn new(domain: &Domain, attr: Option<&fi_cq_attr>) -> Result<Self, Errno> {
        let (size, wait, format) = attr.map_or((0, FI_WAIT_UNSPEC, FI_CQ_FORMAT_UNSPEC), |a| {
            (a.size, a.wait_obj, a.format)
        });
        // FI_AFFINITY is a wish. FI_PEER, for example, means that the context is another provider's.
        if attr.is_some_and(|a| a.flags & !u64::from(FI_AFFINITY) != 0) {
            return Err(FI_EBADFLAGS as Errno);
        }
        let wait = Wait::new(wait)?;
        let format = match format {
            FI_CQ_FORMAT_UNSPEC => FI_CQ_FORMAT_CONTEXT,
            FI_CQ_FORMAT_CONTEXT | FI_CQ_FORMAT_MSG | FI_CQ_FORMAT_DATA | FI_CQ_FORMAT_TAGGED => {
                format
            }
            _ => return Err(libc::EINVAL),
        };
        if size > abi::KFI_CQ_SIZE_MAX as usize {
            core::warn(&format!(
                "a completion queue gets {} entries, not {size}: posts return -FI_EAGAIN if these are \
                 taken; ofi_rxm asks for fewer with smaller FI_OFI_RXM_MSG_TX_SIZE and \
                 FI_OFI_RXM_MSG_RX_SIZE",
                abi::KFI_CQ_SIZE_MAX
            ));
        }
        let depth = depth(size, crate::queue_factor());
        let signal = Signal::new()?;
        Ok(Self {
            cq: domain.domain.completion_queue(depth, Format::Data).ours()?,
            format,
            prov: domain.prov.clone(),
            version: domain.version,
            signal,
            descriptor: OnceLock::new(),
            wait,
            drain: Arc::default(),
        })
    }

    /// Drops failures of injected operations at the front: their context is none of the program's.
    fn skip_injected(&self) {
        while self.cq.skip_failure(injected()).unwrap_or(false) {}
    }

    /// Notes that closed endpoints have no completions in the queue if it is empty. A program may never read
    /// a queue, for example one of sends that complete only with FI_COMPLETION.
    pub(crate) fn note_if_empty(&self) {
        let mark = self.drain.begin();
        self.skip_injected();
        if !self.cq.is_ready() {
            self.drain.found_empty(mark);
        }
    }

    /// Whether there is nothing to read, and no signal since the last wait.
    pub(crate) fn may_wait(&self) -> bool {
        self.skip_injected();
        let signaled = self.signal.take();
        self.cq.try_wait() && !signaled
    }

    /// The descriptor that the program may wait for.
    fn descriptor(&self) -> Result<BorrowedFd<'_>, Errno> {
        if let Some(made) = self.descriptor.get() {
            return Ok(made.as_fd());
        }
        let made = either(self.cq.as_fd(), self.signal.poll())?;
        // If another thread was faster, its descriptor holds.
        Ok(self.descriptor.get_or_init(|| made).as_fd())
    }

    /// Reads up to `count` completions. `give` gets each with its number; the last call with a number
    /// counts.
    #[inline]
    fn read(&self, count: usize, give: impl FnMut(usize, &abi::CqEntry)) -> isize {
        if count == 0 {
            // The program only makes progress.
            self.cq.progress();
            return -(libc::EAGAIN as isize);
        }
        let mark = self.drain.begin();
        let read = self.cq.read_successes_except(count, injected(), give);
        if matches!(read, Ok(Taken { count: n, failed: false }) if n < count) {
            self.drain.found_empty(mark);
        }
        match read {
            Ok(Taken {
                count: 0,
                failed: true,
            }) => -(FI_EAVAIL as isize),
            Ok(Taken { count: 0, .. }) => -(libc::EAGAIN as isize),
            // CAST: At most the length of the caller's array.
            Ok(taken) => taken.count as isize,
            Err(_) => -(libc::EIO as isize),
        }
    }
}

/// Entries of the kernel's queue for a program that asks for `size` entries. The kernel takes an entry
/// when it accepts an operation, so the queue also needs entries for posted receives: `factor` times as
/// many as asked for, where the kernel's limit allows. No completion is lost if there are fewer: posts fail
/// with -FI_EAGAIN.
fn depth(size: usize, factor: u32) -> u32 {
    let asked = u32::try_from(size).unwrap_or(u32::MAX);
    let depth = asked.saturating_mul(factor);
    depth.clamp(DEPTH_MIN, abi::KFI_CQ_SIZE_MAX)
}

/// `fi_cq_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    to: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments; the domain is ours.
    unsafe {
        object::open(to, context, |_| {
            Cq::new(object::body(domain), attr.as_ref())
        })
    }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: a queue's fid, and the argument that the command takes.
    unsafe {
        let cq = object::body::<Cq>(fid);
        let fd = match command as u32 {
            FI_GETWAIT if cq.wait.is_fd() => match cq.descriptor() {
                Ok(fd) => Some(fd),
                Err(errno) => return -errno,
            },
            _ => None,
        };
        cq.wait.control(command, arg, fd)
    }
}

fn pointer(context: u64) -> *mut c_void {
    with_exposed_provenance_mut(context as usize)
}

/// An entry in the largest format.
fn entry(e: &abi::CqEntry) -> fi_cq_tagged_entry {
    fi_cq_tagged_entry {
        op_context: pointer(e.context),
        flags: e.flags,
        len: e.len as usize,
        buf: null_mut(),
        data: e.data,
        tag: 0,
    }
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: a queue.
    let cq = unsafe { object::body::<Cq>(cq) };
    // SAFETY: the caller's array of `count` entries in the queue's format.
    unsafe {
        match cq.format {
            FI_CQ_FORMAT_CONTEXT => read_as(cq, buf, count, |e| fi_cq_entry {
                op_context: pointer(e.context),
            }),
            FI_CQ_FORMAT_MSG => read_as(cq, buf, count, |e| fi_cq_msg_entry {
                op_context: pointer(e.context),
                flags: e.flags,
                len: e.len as usize,
            }),
            FI_CQ_FORMAT_DATA => read_as(cq, buf, count, |e| fi_cq_data_entry {
                op_context: pointer(e.context),
                flags: e.flags,
                len: e.len as usize,
                buf: null_mut(),
                data: e.data,
            }),
            _ => read_as(cq, buf, count, entry),
        }
    }
}

/// Reads up to `count` completions, as `make` converts them.
///
/// # Safety
///
/// `to` has room for `count` entries of this type.
unsafe fn read_as<T>(
    cq: &Cq,
    to: *mut c_void,
    count: usize,
    make: impl Fn(&abi::CqEntry) -> T,
) -> isize {
    let to = to.cast::<T>();
    cq.read(count, |at, e| {
        // SAFETY: `at` is below `count`.
        unsafe { to.add(at).write_unaligned(make(e)) };
    })
}

/// Fills in the source addresses of `n` entries: endpoints with connections have none.
unsafe fn no_source(n: isize, from: *mut fi_addr_t) -> isize {
    for i in 0..usize::try_from(n).unwrap_or(0) {
        if !from.is_null() {
            // SAFETY: the caller's array has as many entries.
            unsafe { *from.add(i) = u64::MAX };
        }
    }
    n
}

unsafe extern "C" fn readfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    from: *mut fi_addr_t,
) -> isize {
    // SAFETY: as for `read`; the addresses have as many entries.
    unsafe { no_source(read(cq, buf, count), from) }
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, _flags: u64) -> isize {
    // SAFETY: a queue, and the caller's entry, of which only fields that all versions have are
    // written.
    unsafe {
        let cq = object::body::<Cq>(cq);
        let failure = loop {
            match cq.cq.read_failure() {
                // The context of an injected operation is none of the program's.
                Ok(Some(failure)) if failure.raw().context == injected() => {}
                Ok(Some(failure)) => break failure,
                Ok(None) => return -(libc::EAGAIN as isize),
                Err(_) => return -(libc::EIO as isize),
            }
        };
        // The size of the error data came with version 1.5.
        let sized = cq.version >= (1 << 16 | 5);
        let (e, common) = (failure.raw(), entry(failure.raw()));
        (*buf).op_context = common.op_context;
        (*buf).flags = common.flags;
        (*buf).len = common.len;
        (*buf).buf = common.buf;
        (*buf).data = common.data;
        (*buf).tag = common.tag;
        (*buf).olen = e.olen as usize;
        (*buf).err = match e.err as c_int {
            libc::EMSGSIZE if e.flags & abi::KFI_RECV != 0 => FI_ETRUNC as c_int,
            other => translate(kfabric::Errno(other)),
        };
        (*buf).prov_errno = text::completion_code(e.err as c_int, e.prov_errno);
        if !sized || (*buf).err_data_size == 0 {
            (*buf).err_data = null_mut();
        }
        if sized {
            (*buf).err_data_size = 0;
        }
    }
    1
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    let mut timeout = Timeout::new(timeout);
    let mut waiter = None;
    loop {
        // SAFETY: as for `read`.
        let (rc, of) = unsafe { (read(cq, buf, count), object::body::<Cq>(cq)) };
        let empty = rc == -(libc::EAGAIN as isize);
        if !empty || waiter.get_or_insert_with(|| of.signal.wait()).is_signaled() {
            return rc;
        }
        match of.cq.begin_wait() {
            // The wait counts until the end of the `match`.
            Some(_) if timeout.wait(of.cq.as_fd(), of.signal.as_fd()) => {}
            Some(_) => return rc,
            // There is something to read, or it is an ignored failure. At the end of the time, too:
            // `begin_wait` may have taken a message whose alarm was meant for another waiter.
            None if timeout.is_over() || count == 0 => {
                // SAFETY: as for `read`.
                return unsafe { read(cq, buf, count) };
            }
            None => {}
        }
    }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    from: *mut fi_addr_t,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: as for `sread`; the addresses have as many entries.
    unsafe { no_source(sread(cq, buf, count, cond, timeout), from) }
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    // SAFETY: a queue.
    unsafe { object::body::<Cq>(cq) }.signal.raise();
    0
}

unsafe extern "C" fn strerror(
    cq: *mut fid_cq,
    prov_errno: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: a queue, and the caller's buffer.
    unsafe {
        let prov = &object::body::<Cq>(cq).prov;
        text::give(text::completion(prov, prov_errno), buf, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_has_as_many_entries_as_asked_for_up_to_the_limit() {
        let most = abi::KFI_CQ_SIZE_MAX;
        for (size, factor, expected) in [
            (0, 4, DEPTH_MIN),
            (64, 4, DEPTH_MIN),
            (2000, 4, 8000),
            (2000, 1, DEPTH_MIN),
            (1 << 16, 4, most),
            (most as usize, 64, most),
            (most as usize + 1, 1, most),
            (usize::MAX, 4, most),
        ] {
            assert_eq!(depth(size, factor), expected, "{size}");
        }
    }
}
