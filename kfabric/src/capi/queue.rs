// SPDX-License-Identifier: GPL-2.0
//! Completion queues and counters.

use core::{
    ptr,
    sync::atomic::{
        AtomicPtr,
        AtomicU32,
        AtomicU64,
        Ordering, //
    }, //
};
use kernel::{
    ffi::{
        c_char,
        c_int,
        c_void, //
    },
    impl_has_work,
    new_work,
    prelude::*,
    sync::Arc,
    types::Opaque,
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

use super::{
    fabric::{
        check_wait,
        deadline,
        get_wait,
        DomainObj, //
    },
    obj::{
        self,
        code,
        enosys,
        kfi_error,
        Object,
        Place, //
    },
    raw, //
};
use crate::{
    new_irqlock,
    objects::{
        cntr::{
            Cntr,
            Counts, //
        },
        cq::{
            Cq,
            CqHandler, //
        },
    },
    sys::{
        self,
        wait::Deadline,
        IrqLock, //
    },
    uapi::CqEntry, //
};

/// Calls the consumer's completion handler for a completion queue.
#[pin_data]
pub(super) struct Handler {
    /// # Invariants
    ///
    /// Null, or a queue that is not freed before the last entry is added and the work item has run.
    cq: AtomicPtr<raw::kfid_cq>,
    /// Handler calls that the work item still has to make.
    owed: AtomicU32,
    #[pin]
    work: Work<Handler>,
}

impl_has_work! {
    impl HasWork<Self> for Handler { self.work }
}

impl WorkItem for Handler {
    type Pointer = Arc<Handler>;

    fn run(this: Arc<Handler>) {
        for _ in 0..this.owed.swap(0, Ordering::AcqRel) {
            this.call();
        }
    }
}

impl Handler {
    /// Waits until the handler has been called for every entry added so far.
    pub(super) fn settle(this: &Arc<Self>) {
        sys::wq::flush(this);
    }

    fn call(&self) {
        let cq = self.cq.load(Ordering::Acquire);
        // SAFETY: By the type invariant the queue is not freed. The consumer does not write these
        // fields.
        let handler = unsafe { cq.as_ref() }.and_then(|cq| cq.comp_handler);
        if let Some(handler) = handler {
            // SAFETY: The header allows handler calls in any context; the queue stores the
            // handler's context.
            unsafe { handler(cq, (*cq).fid.context) }
        }
    }
}

/// Calls a handler when entries are added.
///
/// If the provider completes operations inside the posting calls, a worker makes the call: the
/// poster may hold a lock that the handler takes.
struct Told {
    handler: Arc<Handler>,
    later: bool,
}

impl CqHandler for Told {
    fn completed(&self) {
        if !self.later {
            return self.handler.call();
        }
        self.handler.owed.fetch_add(1, Ordering::AcqRel);
        // If the work item is already queued, it has not read `owed` yet and makes this call too.
        let _ = sys::wq::queue().enqueue(self.handler.clone());
    }
}

/// State that the readers of a queue share.
#[pin_data]
struct Reading {
    /// Held by the reader that takes entries: one reader at a time.
    #[pin]
    turn: IrqLock<()>,
    /// Number of calls of `kfi_cq_signal()`.
    signals: AtomicU64,
    /// The largest number of signals for which a waiter has returned.
    heard: AtomicU64,
}

/// A completion queue.
#[repr(C)]
pub(super) struct CqObj {
    fid: Opaque<raw::kfid_cq>,
    pub(super) cq: Arc<Cq>,
    reading: Arc<Reading>,
    pub(super) handler: Option<Arc<Handler>>,
    format: raw::kfi_cq_format,
    threshold: bool,
    /// The consumer waits by a wait queue of the kernel (`KFI_WAIT_QUEUE`).
    by_queue: bool,
}

// SAFETY: The `repr(C)` object begins with the C structure of this class.
unsafe impl Object for CqObj {
    type C = raw::kfid_cq;
    const CLASS: u32 = raw::KFI_CLASS_CQ;
    const OPS: &'static raw::kfi_ops = &CQ;
}

static CQ: raw::kfi_ops = raw::kfi_ops {
    size: size_of::<raw::kfi_ops>(),
    close: Some(cq_close),
    bind: Some(obj::no_bind),
    control: Some(cq_control),
    ops_open: Some(obj::no_ops),
};

static CQ_OPS: raw::kfi_ops_cq = raw::kfi_ops_cq {
    size: size_of::<raw::kfi_ops_cq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
};

fn open_cq(
    domain: &DomainObj,
    attr: Option<&raw::kfi_cq_attr>,
    wanted: raw::kfi_comp_handler,
    context: *mut c_void,
) -> Result<*mut raw::kfid_cq> {
    let (mut depth, mut format, mut threshold, mut by_queue) = (0, 0, false, false);
    if let Some(attr) = attr {
        by_queue = check_wait(attr.wait_obj, attr.wait_set)?;
        // These flags are hints; kfabric ignores them.
        if attr.flags & !u64::from(raw::KFI_AFFINITY | raw::KFI_SEND | raw::KFI_RECV) != 0 {
            return Err(EINVAL);
        }
        depth = u32::try_from(attr.size).map_err(|_| EINVAL)?;
        format = attr.format;
        threshold = match attr.wait_cond {
            raw::kfi_cq_wait_cond_KFI_CQ_COND_NONE => false,
            raw::kfi_cq_wait_cond_KFI_CQ_COND_THRESHOLD => true,
            _ => return Err(EINVAL),
        };
    }
    let core = match format {
        // The core has no tags: an entry with data has all other fields of a tagged entry.
        raw::kfi_cq_format_KFI_CQ_FORMAT_TAGGED => raw::kfi_cq_format_KFI_CQ_FORMAT_DATA,
        other => other,
    };
    let place = Place::<CqObj>::new()?;
    let reading = Arc::pin_init(
        pin_init!(Reading {
            turn <- new_irqlock!((), "kfabric_capi_cq"),
            signals: AtomicU64::new(0),
            heard: AtomicU64::new(0),
        }),
        GFP_KERNEL,
    )?;
    let (mut handler, mut told): (_, Option<Arc<dyn CqHandler>>) = (None, None);
    if wanted.is_some() {
        let made = Arc::pin_init(
            pin_init!(Handler {
                // INVARIANT: Null until the queue is made. Before the queue is freed, `cq_close()`
                // closes it and waits for the work item.
                cq: AtomicPtr::new(ptr::null_mut()),
                owed: AtomicU32::new(0),
                work <- new_work!("Handler::work"),
            }),
            GFP_KERNEL,
        )?;
        let teller = Told {
            handler: made.clone(),
            later: domain.domain.ops().completes_in_post(),
        };
        told = Some(Arc::new(teller, GFP_KERNEL)?);
        handler = Some(made);
    }
    let cq = Cq::open(&domain.domain, depth, core, told)?;
    let object = CqObj {
        fid: Opaque::uninit(),
        cq,
        reading,
        handler: handler.clone(),
        format,
        threshold,
        by_queue,
    };
    let made = place.put(object, context, |c| {
        c.ops = ptr::from_ref(&CQ_OPS).cast_mut();
        c.comp_handler = wanted;
    });
    if let Some(handler) = handler {
        handler.cq.store(made, Ordering::Release);
    }
    Ok(made)
}

pub(super) unsafe extern "C" fn cq_open(
    domain: *mut raw::kfid_domain,
    attr: *mut raw::kfi_cq_attr,
    cq: *mut *mut raw::kfid_cq,
    handler: raw::kfi_comp_handler,
    context: *mut c_void,
) -> c_int {
    // SAFETY: The consumer passes an open domain of this module, and attributes or null.
    let (domain, attr) = unsafe { (obj::get::<DomainObj, _>(domain), attr.as_ref()) };
    code(open_cq(domain, attr, handler, context).map(|made| {
        // SAFETY: The caller passes a valid place for the result.
        unsafe { *cq = made }
    }))
}

unsafe extern "C" fn cq_close(fid: *mut raw::kfid) -> c_int {
    // SAFETY: The consumer closes a completion queue of this module.
    let this = unsafe { obj::get::<CqObj, _>(fid) };
    if let Err(e) = this.cq.close() {
        return e.to_errno();
    }
    if let Some(handler) = &this.handler {
        Handler::settle(handler);
    }
    // SAFETY: The queue is closed: no entry is added any more, and the handler's work has run. The
    // consumer no longer uses a queue that it closes.
    drop(unsafe { obj::take::<CqObj>(fid) });
    0
}

unsafe extern "C" fn cq_control(fid: *mut raw::kfid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: The consumer passes an open completion queue and the command's argument.
    unsafe {
        let this = obj::get::<CqObj, _>(fid);
        code(get_wait(command, this.by_queue, this.cq.wait(), arg))
    }
}

/// An entry in one of the API's formats, made from an entry of the core.
trait Format {
    fn of(entry: &CqEntry) -> Self;
}

// CAST: In all formats `context` is the consumer's own pointer. Sizes fit: the platform is 64-bit.

impl Format for raw::kfi_cq_entry {
    #[inline(always)]
    fn of(entry: &CqEntry) -> Self {
        Self {
            op_context: entry.context as *mut c_void,
        }
    }
}

impl Format for raw::kfi_cq_msg_entry {
    #[inline(always)]
    fn of(entry: &CqEntry) -> Self {
        Self {
            op_context: entry.context as *mut c_void,
            flags: entry.flags,
            len: entry.len as usize,
        }
    }
}

impl Format for raw::kfi_cq_data_entry {
    #[inline(always)]
    fn of(entry: &CqEntry) -> Self {
        Self {
            op_context: entry.context as *mut c_void,
            flags: entry.flags,
            len: entry.len as usize,
            buf: ptr::null_mut(),
            data: entry.data,
        }
    }
}

impl Format for raw::kfi_cq_tagged_entry {
    #[inline(always)]
    fn of(entry: &CqEntry) -> Self {
        Self {
            op_context: entry.context as *mut c_void,
            flags: entry.flags,
            len: entry.len as usize,
            buf: ptr::null_mut(),
            data: entry.data,
            tag: 0,
        }
    }
}

impl CqObj {
    /// Takes up to `count` entries.
    ///
    /// # Safety
    ///
    /// `buf` has room for `count` entries in the queue's format.
    unsafe fn read(&self, buf: *mut c_void, count: usize) -> Result<usize> {
        // SAFETY: By this function's contract `buf` has room for `count` entries of the format.
        unsafe {
            match self.format {
                raw::kfi_cq_format_KFI_CQ_FORMAT_MSG => {
                    self.read_as(buf.cast::<raw::kfi_cq_msg_entry>(), count)
                }
                raw::kfi_cq_format_KFI_CQ_FORMAT_DATA => {
                    self.read_as(buf.cast::<raw::kfi_cq_data_entry>(), count)
                }
                raw::kfi_cq_format_KFI_CQ_FORMAT_TAGGED => {
                    self.read_as(buf.cast::<raw::kfi_cq_tagged_entry>(), count)
                }
                _ => self.read_as(buf.cast::<raw::kfi_cq_entry>(), count),
            }
        }
    }

    /// Takes up to `count` entries in a format.
    ///
    /// # Safety
    ///
    /// `buf` has room for `count` entries of type `T`.
    unsafe fn read_as<T: Format>(&self, buf: *mut T, count: usize) -> Result<usize> {
        // Many consumers poll far more often than entries arrive: do not take the lock in vain.
        if self.cq.waiting() == 0 {
            return Err(EAGAIN);
        }
        let _turn = self.reading.turn.lock();
        let (mut at, mut failed) = (buf, false);
        let taken = self.cq.read_each(count, |entry| {
            // An error stays in the queue until `kfi_cq_readerr()` takes it.
            failed = entry.err != 0;
            if !failed {
                // SAFETY: By this function's contract; `read_each()` takes at most `count` entries.
                unsafe {
                    at.write(T::of(entry));
                    at = at.add(1);
                }
            }
            !failed
        });
        if taken != 0 {
            return Ok(taken);
        }
        // A call with a count of zero reports a pending error, too.
        match failed || (count == 0 && self.next_failed()) {
            true => Err(kfi_error(raw::KFI_EAVAIL)),
            false => Err(EAGAIN),
        }
    }

    /// Whether at least `wanted` entries are queued, or the oldest entry is an error.
    fn is_ready(&self, wanted: usize) -> bool {
        // CAST: A `u32` fits.
        let waiting = self.cq.waiting() as usize;
        waiting >= wanted || (waiting != 0 && self.is_failed())
    }

    /// Whether the oldest entry is an error.
    fn is_failed(&self) -> bool {
        let _turn = self.reading.turn.lock();
        self.next_failed()
    }

    /// Like [`Self::is_failed`], for a caller that holds `turn`.
    fn next_failed(&self) -> bool {
        self.cq.peek().is_some_and(|entry| entry.err != 0)
    }

    /// Takes the oldest entry if it is an error.
    fn error(&self) -> Option<CqEntry> {
        let _turn = self.reading.turn.lock();
        let mut found = None;
        self.cq.read_each(1, |entry| {
            found = (entry.err != 0).then_some(*entry);
            found.is_some()
        });
        found
    }
}

/// Converts a result to the API's form: a size or a negative error number.
fn sized(result: Result<usize>) -> isize {
    match result {
        // CAST: Sizes are far below `isize::MAX`.
        Ok(size) => size as isize,
        // CAST: A `c_int` fits.
        Err(e) => e.to_errno() as isize,
    }
}

/// Writes `KFI_ADDR_NOTAVAIL` as the source of each of `count` entries.
///
/// # Safety
///
/// `addrs` is null, or has room for `count` addresses.
unsafe fn no_addr(addrs: *mut raw::kfi_addr_t, count: isize) {
    for i in 0..usize::try_from(count).unwrap_or(0) {
        if !addrs.is_null() {
            // SAFETY: By this function's contract `addrs` has room for `count` addresses.
            unsafe { *addrs.add(i) = u64::MAX }
        }
    }
}

unsafe extern "C" fn read(cq: *mut raw::kfid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: The consumer passes an open completion queue, and a buffer for `count` entries.
    sized(unsafe { obj::get::<CqObj, _>(cq).read(buf, count) })
}

unsafe extern "C" fn readfrom(
    cq: *mut raw::kfid_cq,
    buf: *mut c_void,
    count: usize,
    addrs: *mut raw::kfi_addr_t,
) -> isize {
    // SAFETY: The caller's contract is that of `read`; `addrs` has room for `count` addresses.
    unsafe {
        let taken = read(cq, buf, count);
        no_addr(addrs, taken);
        taken
    }
}

unsafe extern "C" fn readerr(
    cq: *mut raw::kfid_cq,
    buf: *mut raw::kfi_cq_err_entry,
    _flags: u64,
) -> isize {
    // SAFETY: The consumer passes an open completion queue of this module.
    let this = unsafe { obj::get::<CqObj, _>(cq) };
    let Some(entry) = this.error() else {
        // CAST: A `c_int` fits.
        return EAGAIN.to_errno() as isize;
    };
    // CAST: `context` is the consumer's own pointer; error numbers are small; the platform is
    // 64-bit.
    let entry = raw::kfi_cq_err_entry {
        op_context: entry.context as *mut c_void,
        flags: entry.flags,
        len: entry.len as usize,
        buf: ptr::null_mut(),
        data: entry.data,
        tag: 0,
        olen: entry.olen as usize,
        err: entry.err as c_int,
        prov_errno: entry.prov_errno as c_int,
        err_data: ptr::null_mut(),
        err_data_size: 0,
    };
    // SAFETY: The caller passes a valid place for the entry.
    unsafe { *buf = entry };
    1
}

unsafe extern "C" fn sread(
    cq: *mut raw::kfid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: The consumer passes an open completion queue of this module.
    let this = unsafe { obj::get::<CqObj, _>(cq) };
    let wanted = if this.threshold && !cond.is_null() {
        // SAFETY: With `KFI_CQ_COND_THRESHOLD` the condition points to a size.
        unsafe { cond.cast::<usize>().read() }.clamp(1, this.cq.entries() as usize)
    } else {
        1
    };
    let reading = &this.reading;
    // A signal wakes all waiters. A signal that no waiter has received ends the next wait.
    let heard = reading.heard.load(Ordering::Acquire);
    let signals = || reading.signals.load(Ordering::Acquire);
    let ready = || this.is_ready(wanted) || signals() != heard;
    let deadline = deadline(timeout, this.by_queue);
    loop {
        let left = deadline.left_ms();
        if let Err(e) = this.cq.wait().wait_until(ready, left) {
            return sized(Err(e));
        }
        let signals = signals();
        reading.heard.fetch_max(signals, Ordering::AcqRel);
        // SAFETY: The caller's contract is that of `read`.
        let taken = unsafe { read(cq, buf, count) };
        // Another reader may have taken the entries first.
        let again = taken == sized(Err(EAGAIN)) && count != 0;
        if !again || left == 0 || signals != heard {
            return taken;
        }
    }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut raw::kfid_cq,
    buf: *mut c_void,
    count: usize,
    addrs: *mut raw::kfi_addr_t,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: The caller's contract is that of `sread`; `addrs` has room for `count` addresses.
    unsafe {
        let taken = sread(cq, buf, count, cond, timeout);
        no_addr(addrs, taken);
        taken
    }
}

unsafe extern "C" fn signal(cq: *mut raw::kfid_cq) -> c_int {
    // SAFETY: The consumer passes an open completion queue of this module.
    let this = unsafe { obj::get::<CqObj, _>(cq) };
    this.reading.signals.fetch_add(1, Ordering::AcqRel);
    this.cq.wait().wake_all();
    0
}

unsafe extern "C" fn strerror(
    _cq: *mut raw::kfid_cq,
    prov_errno: c_int,
    _data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: The caller passes a buffer of `len` bytes, or null.
    unsafe { prov_error(prov_errno, buf, len) }
}

/// Returns a text for a provider's error number: providers define no texts of their own.
///
/// # Safety
///
/// `buf` has room for `len` bytes, or is null.
pub(super) unsafe fn prov_error(prov_errno: c_int, buf: *mut c_char, len: usize) -> *const c_char {
    // SAFETY: By this function's contract `buf` has room for `len` bytes, or is null.
    unsafe { raw::kf_c_prov_error(prov_errno, buf, len) }
}

/// A counter of the C API.
#[repr(C)]
pub(super) struct CntrObj {
    fid: Opaque<raw::kfid_cntr>,
    pub(super) cntr: Arc<Cntr>,
}

// SAFETY: The `repr(C)` object begins with the C structure of this class.
unsafe impl Object for CntrObj {
    type C = raw::kfid_cntr;
    const CLASS: u32 = raw::KFI_CLASS_CNTR;
    const OPS: &'static raw::kfi_ops = &CNTR;
}

static CNTR: raw::kfi_ops = raw::kfi_ops {
    size: size_of::<raw::kfi_ops>(),
    close: Some(cntr_close),
    bind: Some(obj::no_bind),
    control: Some(obj::no_control),
    ops_open: Some(obj::no_ops),
};

static CNTR_OPS: raw::kfi_ops_cntr = raw::kfi_ops_cntr {
    size: size_of::<raw::kfi_ops_cntr>(),
    read: Some(cntr_read),
    readerr: Some(cntr_readerr),
    add: Some(cntr_add),
    set: Some(cntr_set),
    wait: Some(cntr_wait),
    adderr: Some(cntr_adderr),
    seterr: Some(cntr_seterr),
};

fn open_cntr(
    domain: &DomainObj,
    attr: Option<&raw::kfi_cntr_attr>,
    context: *mut c_void,
) -> Result<*mut raw::kfid_cntr> {
    if let Some(attr) = attr {
        // A counter exposes no wait queue of the kernel.
        if check_wait(attr.wait_obj, attr.wait_set)? {
            return Err(enosys());
        }
        if attr.events != raw::kfi_cntr_events_KFI_CNTR_EVENTS_COMP || attr.flags != 0 {
            return Err(EINVAL);
        }
    }
    let place = Place::<CntrObj>::new()?;
    let object = CntrObj {
        fid: Opaque::uninit(),
        cntr: Cntr::open(&domain.domain)?,
    };
    Ok(place.put(object, context, |c| {
        c.ops = ptr::from_ref(&CNTR_OPS).cast_mut();
    }))
}

pub(super) unsafe extern "C" fn cntr_open(
    domain: *mut raw::kfid_domain,
    attr: *mut raw::kfi_cntr_attr,
    cntr: *mut *mut raw::kfid_cntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: The consumer passes an open domain of this module, and attributes or null.
    let (domain, attr) = unsafe { (obj::get::<DomainObj, _>(domain), attr.as_ref()) };
    code(open_cntr(domain, attr, context).map(|made| {
        // SAFETY: The caller passes a valid place for the result.
        unsafe { *cntr = made }
    }))
}

unsafe extern "C" fn cntr_close(fid: *mut raw::kfid) -> c_int {
    // SAFETY: The consumer closes a counter of this module.
    let this = unsafe { obj::get::<CntrObj, _>(fid) };
    if let Err(e) = this.cntr.close() {
        return e.to_errno();
    }
    // SAFETY: The counter is closed, so nothing uses it.
    drop(unsafe { obj::take::<CntrObj>(fid) });
    0
}

/// Returns the core's counter behind the C structure.
///
/// # Safety
///
/// `cntr` is an open counter of this module.
unsafe fn cntr_of<'a>(cntr: *mut raw::kfid_cntr) -> &'a Cntr {
    // SAFETY: By this function's contract `cntr` is an open counter.
    unsafe { &obj::get::<CntrObj, _>(cntr).cntr }
}

unsafe extern "C" fn cntr_read(cntr: *mut raw::kfid_cntr) -> u64 {
    // SAFETY: The consumer passes an open counter of this module.
    unsafe { cntr_of(cntr).read().value }
}

unsafe extern "C" fn cntr_readerr(cntr: *mut raw::kfid_cntr) -> u64 {
    // SAFETY: The consumer passes an open counter of this module.
    unsafe { cntr_of(cntr).read().errors }
}

/// Changes the two values of a counter.
///
/// # Safety
///
/// `cntr` is an open counter of this module.
unsafe fn change(cntr: *mut raw::kfid_cntr, change: impl FnOnce(&mut Counts)) -> c_int {
    // SAFETY: By this function's contract `cntr` is an open counter.
    unsafe { cntr_of(cntr).update(change) };
    0
}

unsafe extern "C" fn cntr_add(cntr: *mut raw::kfid_cntr, value: u64) -> c_int {
    // SAFETY: The consumer passes an open counter of this module.
    unsafe { change(cntr, |now| now.value = now.value.wrapping_add(value)) }
}

unsafe extern "C" fn cntr_set(cntr: *mut raw::kfid_cntr, value: u64) -> c_int {
    // SAFETY: The consumer passes an open counter of this module.
    unsafe { change(cntr, |now| now.value = value) }
}

unsafe extern "C" fn cntr_adderr(cntr: *mut raw::kfid_cntr, value: u64) -> c_int {
    // SAFETY: The consumer passes an open counter of this module.
    unsafe { change(cntr, |now| now.errors = now.errors.wrapping_add(value)) }
}

unsafe extern "C" fn cntr_seterr(cntr: *mut raw::kfid_cntr, value: u64) -> c_int {
    // SAFETY: The consumer passes an open counter of this module.
    unsafe { change(cntr, |now| now.errors = value) }
}

unsafe extern "C" fn cntr_wait(cntr: *mut raw::kfid_cntr, threshold: u64, timeout: c_int) -> c_int {
    let deadline = Deadline::in_ms(timeout);
    // SAFETY: The consumer passes an open counter of this module.
    let waited = unsafe { cntr_of(cntr).wait(threshold, deadline.at()) };
    code(waited.map_err(|e| {
        if e == EIO {
            kfi_error(raw::KFI_EAVAIL)
        } else if e == ERESTARTSYS {
            EINTR
        } else {
            e
        }
    }))
}
