// SPDX-License-Identifier: MIT OR Apache-2.0
//! Event queues: the kernel's events, and those that the program writes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kfabric::uapi as abi;
use kfabric::{ConnRequest, Event as Cause, EventQueue};

use crate::error::{errno, translate, Errno, Ours};
use crate::fabric::Fabric;
use crate::ffi::*;
use crate::fork::{self, Disabled};
use crate::object::{self, Kind};
use crate::wait::{either, Flag, Timeout, Wait};
use crate::{info, pep, text};

/// An event that waits in the plug-in.
#[derive(Default)]
struct Event {
    event: u32,
    /// Address of the endpoint; 0 for an event of the program.
    object: usize,
    /// The error of a failed connection; 0 for none.
    err: i32,
    prov_errno: i32,
    /// Address of the info of a connection request; 0 for none.
    info: usize,
    /// The entry for `fi_eq_read`, or the peer's data with an error.
    bytes: Vec<u8>,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    /// The data of the error that was read last.
    err_data: Vec<u8>,
}

/// An event queue, which endpoints share.
pub(crate) struct Queue {
    pub(crate) eq: EventQueue,
    prov: Arc<str>,
    requests: Arc<Requests>,
    /// Raised while `State::events` is not empty.
    user: Flag,
    /// Readable when there is an event of the kernel or in `State::events`.
    both: OwnedFd,
    wait: Wait,
    /// Version of the interface that the program uses.
    version: u32,
    state: Mutex<State>,
}

/// The plug-in's part of an event queue of libfabric.
pub(crate) struct Eq(pub(crate) Arc<Queue>);

static FID: Table<fi_ops> = object::ops::<Eq>(absent(), Some(control));
pub(crate) static OPS: Table<fi_ops_eq> = Table(fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
});

impl Kind for Eq {
    type Head = fid_eq;
    const CLASS: u32 = FI_CLASS_EQ;

    fn ops() -> *mut fi_ops {
        FID.get()
    }

    fn head(&self, fid: fid, _: *mut c_void) -> fid_eq {
        fid_eq {
            fid,
            ops: OPS.get(),
        }
    }

    fn disable(head: &mut fid_eq) {
        head.ops = Disabled::of(&fork::EQ);
    }

    fn end(self) -> Result<(), (Self, Errno)> {
        // Each bound endpoint has a reference.
        let queue = Arc::try_unwrap(self.0).map_err(|queue| (Self(queue), libc::EBUSY))?;
        match queue.eq.close() {
            Ok(()) => {
                let state = queue.state.into_inner();
                let state = state.unwrap_or_else(PoisonError::into_inner);
                drop_unread(&queue.requests, state.events);
                Ok(())
            }
            Err(returned) => {
                let eq = returned.object;
                let back = Self(Arc::new(Queue { eq, ..queue }));
                Err((back, errno(&returned.error)))
            }
        }
    }
}

/// Fids of answered requests that are kept, so that a new request does not get the address of an
/// old one while a program may still have the old info.
const ANSWERED_MAX: usize = 1024;

/// The objects that the handle of an info can be, by the addresses of their fids: the info's owner
/// may use a handle after its end, so a handle is never dereferenced before it is found here.
#[derive(Default)]
struct Handles {
    /// Connection requests that the program has neither accepted nor rejected.
    requests: HashMap<usize, (Box<fid>, ConnRequest)>,
    /// Fids of requests that the program has answered, oldest first.
    answered: VecDeque<Box<fid>>,
    /// Open passive endpoints.
    passive: HashSet<usize>,
}

/// The handles of a fabric.
#[derive(Default)]
pub(crate) struct Requests(Mutex<Handles>);

// SAFETY: the fids have no pointers but null.
unsafe impl Send for Requests {}
// SAFETY: as above.
unsafe impl Sync for Requests {}

impl Requests {
    fn all(&self) -> MutexGuard<'_, Handles> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the address of a passive endpoint, which is being opened.
    pub(crate) fn add_passive(&self, at: usize) {
        self.all().passive.insert(at);
    }

    /// Removes the address of a passive endpoint, which is being closed.
    pub(crate) fn remove_passive(&self, at: usize) {
        self.all().passive.remove(&at);
    }

    /// Whether a handle is that of an open passive endpoint.
    pub(crate) fn is_passive(&self, handle: *const fid) -> bool {
        self.all().passive.contains(&handle.addr())
    }

    /// Makes a fid for a request.
    fn add(&self, request: ConnRequest) -> *mut fid {
        let mut fid = Box::new(fid {
            fclass: FI_CLASS_CONNREQ as usize,
            context: null_mut(),
            ops: null_mut(),
        });
        let at = &raw mut *fid;
        self.all().requests.insert(at.addr(), (fid, request));
        at
    }

    /// Passes the request of a fid to `answer`, which returns the request if it fails. A fid that
    /// has no request is `EINVAL`.
    pub(crate) fn answer<T>(
        &self,
        fid: *mut fid,
        answer: impl FnOnce(ConnRequest) -> Result<T, Box<kfabric::Returned<ConnRequest>>>,
    ) -> Result<T, Errno> {
        let found = self.all().requests.remove(&fid.addr());
        let (own, request) = found.ok_or(libc::EINVAL)?;
        let answered = answer(request);
        let mut all = self.all();
        match answered {
            Ok(value) => {
                if all.answered.len() == ANSWERED_MAX {
                    all.answered.pop_front();
                }
                all.answered.push_back(own);
                Ok(value)
            }
            Err(returned) => {
                // The program may still reject it.
                all.requests.insert(fid.addr(), (own, returned.object));
                Err(crate::error::errno(&returned.error))
            }
        }
    }
}

/// Size of a `fi_eq_cm_entry` without data.
const CM_ENTRY: usize = size_of::<fi_eq_cm_entry>();

/// Lays out a `fi_eq_cm_entry`.
fn cm_entry(fid: usize, info: usize, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(CM_ENTRY + data.len());
    bytes.extend_from_slice(&fid.to_ne_bytes());
    bytes.extend_from_slice(&info.to_ne_bytes());
    bytes.extend_from_slice(data);
    bytes
}

impl Event {
    /// An event of an endpoint, with the peer's data.
    fn of(event: u32, context: u64, info: usize, data: &[u8]) -> Self {
        // CAST: The context is an address.
        let object = context as usize;
        Self {
            event,
            object,
            info,
            bytes: cm_entry(object, info, data),
            ..Self::default()
        }
    }
}

impl Queue {
    fn new(fabric: &Fabric, version: u32, attr: Option<&fi_eq_attr>) -> Result<Self, Errno> {
        let (size, wait) = attr.map_or((0, FI_WAIT_UNSPEC), |a| (a.size, a.wait_obj));
        let wait = Wait::new(wait)?;
        let most = abi::KFI_EQ_SIZE_MAX;
        let depth = u32::try_from(size).unwrap_or(u32::MAX).min(most);
        if size > most as usize {
            crate::core::warn(&format!("an event queue gets {most} events, not {size}"));
        }
        let eq = fabric.fabric.event_queue(depth);
        let (eq, user) = (eq.ours()?, Flag::new()?);
        Ok(Self {
            both: either(eq.as_fd(), user.0.as_fd())?,
            eq,
            prov: fabric.prov.clone(),
            requests: fabric.requests.clone(),
            user,
            wait,
            version,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock, and moves an event of the kernel to `events` if these are empty.
    fn fetch(&self) -> Result<MutexGuard<'_, State>, Errno> {
        let mut state = self.state();
        if !state.events.is_empty() {
            return Ok(state);
        }
        let Some(cause) = self.eq.read().ours()? else {
            return Ok(state);
        };
        let event = match cause {
            Cause::ConnRequest(request) => self.asked(request)?,
            Cause::Connected { context, data, .. } => {
                Event::of(abi::KFI_CONNECTED, context, 0, &data)
            }
            Cause::Shutdown { context, errno, .. } => {
                if let Some(errno) = errno {
                    // FI_SHUTDOWN has no place for the cause.
                    crate::core::inform(&format!("a connection was lost: {}", errno.text()));
                }
                Event::of(abi::KFI_SHUTDOWN, context, 0, &[])
            }
            Cause::ConnFailed(failure) => {
                let code = failure.prov_errno as c_int;
                Event {
                    event: abi::KFI_CONN_ERROR,
                    object: failure.context as usize,
                    err: translate(failure.errno),
                    prov_errno: text::connection_code(&self.prov, failure.errno.0, code),
                    info: 0,
                    bytes: failure.data,
                }
            }
            // The library knows all events of this kernel; a newer one may have others.
            _ => return Ok(state),
        };
        self.push(&mut state, event);
        Ok(state)
    }

    /// The event of a connection request.
    fn asked(&self, request: ConnRequest) -> Result<Event, Errno> {
        // SAFETY: makes a new info.
        let info = unsafe { info::make(&request.info, None, self.version) }.ok_or(libc::ENOMEM)?;
        let at = info.expose_provenance();
        let event = Event::of(abi::KFI_CONNREQ, request.context, at, &request.data);
        // SAFETY: just made; a connection request has the context of a passive endpoint, which is
        // open: `forget` waits for the lock that the caller holds.
        unsafe {
            (*info).handle = self.requests.add(request);
            pep::complete(event.object, info);
        }
        Ok(event)
    }

    fn push(&self, state: &mut State, event: Event) {
        state.events.push_back(event);
        self.user.raise();
    }

    /// Removes the first event.
    fn pop(&self, state: &mut State) {
        state.events.pop_front();
        if state.events.is_empty() {
            self.user.lower();
        }
    }

    /// Passes the first event to `give`, and removes it unless `flags` has FI_PEEK; -FI_EAGAIN if
    /// there is none. A negative result of `give` leaves the event.
    fn next(&self, flags: u64, give: impl FnOnce(&Event, &mut Vec<u8>) -> isize) -> isize {
        let mut guard = match self.fetch() {
            Ok(guard) => guard,
            Err(errno) => return -(errno as isize),
        };
        let State { events, err_data } = &mut *guard;
        let Some(first) = events.front() else {
            return -(libc::EAGAIN as isize);
        };
        let rc = give(first, err_data);
        if rc >= 0 && flags & u64::from(FI_PEEK) == 0 {
            self.pop(&mut guard);
        }
        rc
    }

    /// Whether there is nothing to read.
    pub(crate) fn may_wait(&self) -> Result<bool, Errno> {
        Ok(self.fetch()?.events.is_empty())
    }

    /// Removes the events of an endpoint that has been closed. Refuses connection requests among
    /// them.
    pub(crate) fn forget(&self, object: usize) {
        let mut state = self.state();
        let (gone, kept) = std::mem::take(&mut state.events)
            .into_iter()
            .partition::<VecDeque<_>, _>(|e| e.object == object);
        state.events = kept;
        if state.events.is_empty() {
            self.user.lower();
        }
        drop(state);
        drop_unread(&self.requests, gone);
    }
}

/// Refuses the connection requests among events that the program has not read, and frees their infos.
fn drop_unread(requests: &Requests, events: VecDeque<Event>) {
    for event in events.iter().filter(|e| e.info != 0) {
        let info: *mut fi_info = with_exposed_provenance_mut(event.info);
        // SAFETY: `asked` made the info, and the program has not read the event.
        unsafe {
            // Dropping the request refuses it.
            let _ = requests.answer((*info).handle, |request| {
                drop(request);
                Ok(())
            });
            info::free(info);
        }
    }
}

/// `fi_eq_open`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    to: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments; the fabric is ours.
    unsafe {
        let version = (*fabric).api_version;
        object::open(to, context, |_| {
            let queue = Queue::new(object::body(fabric), version, attr.as_ref())?;
            Ok(Eq(Arc::new(queue)))
        })
    }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: a queue's fid, and the argument that the command takes.
    unsafe {
        let eq = &object::body::<Eq>(fid).0;
        eq.wait.control(command, arg, Some(eq.both.as_fd()))
    }
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    // SAFETY: a queue.
    let eq = unsafe { &object::body::<Eq>(eq).0 };
    eq.next(flags, |first, _| {
        if first.err != 0 {
            return -(FI_EAVAIL as isize);
        }
        // An event of the program is read whole, a connection's data as far as there is room.
        let least = match first.object {
            0 => first.bytes.len(),
            _ => CM_ENTRY,
        };
        if len < least {
            return -(FI_ETOOSMALL as isize);
        }
        let n = len.min(first.bytes.len());
        // SAFETY: the caller's buffer has `len` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(first.bytes.as_ptr(), buf.cast::<u8>(), n);
            *event = first.event;
        }
        n as isize
    })
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    let mut timeout = Timeout::new(timeout);
    loop {
        // SAFETY: as for `read`.
        let (rc, of) = unsafe { (read(eq, event, buf, len, flags), &object::body::<Eq>(eq).0) };
        let empty = rc == -(libc::EAGAIN as isize);
        if !empty || !timeout.wait(of.eq.as_fd(), of.user.0.as_fd()) {
            return rc;
        }
    }
}

unsafe extern "C" fn readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize {
    // SAFETY: a queue.
    let eq = unsafe { &object::body::<Eq>(eq).0 };
    eq.next(flags, |first, kept| {
        if first.err == 0 {
            return -(libc::EAGAIN as isize);
        }
        kept.clone_from(&first.bytes);
        let n = kept.len();
        // SAFETY: the caller's entry, whose data has its size. Events are those of open endpoints.
        unsafe {
            let to = &mut *buf;
            let object: *mut fid = with_exposed_provenance_mut(first.object);
            to.fid = object;
            to.context = (*object).context;
            to.data = 0;
            to.err = first.err;
            to.prov_errno = first.prov_errno;
            // Before 1.5 the field of the size is only an answer.
            let given = eq.version >= (1 << 16 | 5) && !to.err_data.is_null();
            if given && to.err_data_size != 0 {
                to.err_data_size = n.min(to.err_data_size);
                let place = to.err_data.cast::<u8>();
                std::ptr::copy_nonoverlapping(kept.as_ptr(), place, to.err_data_size);
            } else {
                to.err_data = match n {
                    0 => null_mut(),
                    _ => kept.as_mut_ptr().cast(),
                };
                to.err_data_size = n;
            }
        }
        size_of::<fi_eq_err_entry>() as isize
    })
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    _flags: u64,
) -> isize {
    // SAFETY: a queue, and `len` bytes of the caller.
    let (eq, bytes) = unsafe { (&object::body::<Eq>(eq).0, param(buf, len).to_vec()) };
    let event = Event {
        event,
        bytes,
        ..Event::default()
    };
    eq.push(&mut eq.state(), event);
    len as isize
}

unsafe extern "C" fn strerror(
    _: *mut fid_eq,
    prov_errno: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the caller's buffer.
    unsafe { text::give(text::connection(prov_errno), buf, len) }
}

/// Borrows a program's data.
///
/// # Safety
///
/// `at` is null, or has `len` bytes for as long as the result is used.
pub(crate) unsafe fn param<'a>(at: *const c_void, len: usize) -> &'a [u8] {
    match at.is_null() || len == 0 {
        true => &[],
        // SAFETY: as the caller vouches.
        false => unsafe { std::slice::from_raw_parts(at.cast(), len) },
    }
}
