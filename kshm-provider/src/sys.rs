// SPDX-License-Identifier: GPL-2.0
//! The thin layer to C: everything unsafe of the module.
//!
//! C header: `helpers.h` beside this crate.

use core::{
    marker::PhantomData,
    sync::atomic::{
        AtomicPtr,
        Ordering, //
    }, //
};
use kernel::{
    bindings,
    error::to_result,
    ffi::{
        c_char,
        c_int,
        c_uint,
        c_void, //
    },
    prelude::*,
    sync::Arc,
    types::Opaque,
    workqueue::{
        HasWork,
        Queue,
        Work, //
    }, //
};

use kfabric::{
    memory::Memory,
    net::Net,
    op::LentPiece,
    pure::pairs::{
        pairs,
        Run, //
    },
    uapi::SockAddr, //
};

#[expect(
    improper_ctypes,
    reason = "bindgen's empty structures, behind pointers as in the kernel crate's own bindings"
)]
extern "C" {
    fn kshm_page_address(page: *const bindings::page) -> *mut c_void;
    fn kshm_copy(to: *mut c_void, from: *const c_void, len: usize);
    fn kshm_fault_in(at: u64, len: usize, write: bool) -> usize;
    fn kshm_copy_from_user(to: *mut c_void, from: u64, len: usize) -> usize;
    fn kshm_copy_to_user(to: u64, from: *const c_void, len: usize) -> usize;
    fn kshm_read(at: *const c_void, size: c_uint) -> u64;
    fn kshm_cmpxchg(at: *mut c_void, size: c_uint, old: u64, new: u64) -> u64;
    fn kshm_preempt_disable();
    fn kshm_preempt_enable();
    fn kshm_cond_resched();
    fn kshm_fatal_signal_pending() -> bool;
    fn kshm_current() -> *mut bindings::task_struct;
    fn kshm_wq_alloc(name: *const c_char) -> *mut bindings::workqueue_struct;
    fn kshm_wq_free(
        events: *mut bindings::workqueue_struct,
        copies: *mut bindings::workqueue_struct,
    );
    fn kshm_wait_init(head: *mut bindings::wait_queue_head);
    fn kshm_wait_wake(head: *mut bindings::wait_queue_head);
    fn kshm_addr(
        net: *mut bindings::net,
        index: c_uint,
        addr: *mut bindings::__kernel_sockaddr_storage,
    ) -> c_int;
    fn kshm_is_local(
        net: *mut bindings::net,
        addr: *const bindings::__kernel_sockaddr_storage,
    ) -> bool;
    fn kshm_is_dual(net: *mut bindings::net) -> bool;
    fn kshm_random(to: *mut c_void, len: usize);
}

// ---- copying ----

/// A contiguous piece of pinned memory, mapped in the kernel.
///
/// # Invariants
///
/// `len` bytes from `addr` on belong to a [`Memory`] that lives for `'a`; a room's stay as long as the key
/// by which they are found, which waits for who copies before it is dead.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    addr: usize,
    len: usize,
    _memory: PhantomData<&'a Memory>,
}

/// The pieces of [offset, offset + len) of `memory`. None when that is not inside.
pub(crate) fn pieces(
    memory: &Memory,
    offset: usize,
    len: usize,
) -> impl Iterator<Item = Piece<'_>> + '_ {
    memory.segments(offset, len).map(|seg| {
        // SAFETY: The page is one of the memory's, which is borrowed.
        let page = unsafe { kshm_page_address(seg.page) };
        // INVARIANT: The segment's bytes are the memory's. Pages that follow each other do so in
        // the kernel's mapping too, which on x86-64 has all of them.
        Piece {
            addr: page.expose_provenance() + seg.offset,
            len: seg.len,
            _memory: PhantomData,
        }
    })
}

/// The pieces of [offset, offset + len) of memory that is lent to an operation.
pub(crate) fn lent_pieces(
    lent: &[LentPiece],
    offset: usize,
    len: usize,
) -> impl Iterator<Item = Piece<'_>> + '_ {
    let (mut skip, mut left) = (offset, len);
    lent.iter().filter_map(move |piece| {
        // CAST: A `u32` fits.
        let has = piece.len as usize;
        let past = skip.min(has);
        skip -= past;
        let n = left.min(has - past);
        left -= n;
        // SAFETY: Whoever lends a page keeps it until the operation is over, which it is not.
        let page = unsafe { kshm_page_address(piece.page) };
        // INVARIANT: The piece's bytes are lent for as long as the operation is borrowed. Pages that
        // follow each other do so in the kernel's mapping too.
        (n != 0).then(|| Piece {
            addr: page.expose_provenance() + piece.offset as usize + past,
            len: n,
            _memory: PhantomData,
        })
    })
}

/// Copies as much as both sides have.
///
/// The bytes may be changed meanwhile by whoever has the memory mapped: they have no meaning to us.
pub(crate) fn copy<'a, 'b>(
    from: impl Iterator<Item = Piece<'a>>,
    to: impl Iterator<Item = Piece<'b>>,
) {
    let run = |piece: Piece<'_>| -> Run { (piece.addr, piece.len) };
    for pair in pairs(from.map(run), to.map(run)) {
        // SAFETY: By the invariants of the pieces, which `pairs` only cuts, both ends are mapped
        // memory of that many bytes, borrowed until we return.
        unsafe { kshm_copy(pair.to as *mut c_void, pair.from as *const c_void, pair.len) };
    }
}

/// Copies `bytes` as far as there is room.
pub(crate) fn store<'a>(bytes: &[u8], to: impl Iterator<Item = Piece<'a>>) {
    let from = core::iter::once((bytes.as_ptr().expose_provenance(), bytes.len()));
    for pair in pairs(from, to.map(|piece| (piece.addr, piece.len))) {
        // SAFETY: As in `copy`; the source is the borrowed slice.
        unsafe { kshm_copy(pair.to as *mut c_void, pair.from as *const c_void, pair.len) };
    }
}

/// Makes `len` bytes of the task's own memory from `at` on present, for writing to if `write`. How many
/// there are, from the first on. Only where sleeping is allowed, for as long as it takes.
pub(crate) fn fault_in(at: u64, len: usize, write: bool) -> usize {
    // SAFETY: Any address will do.
    unsafe { kshm_fault_in(at, len, write) }
}

/// Copies from the task's own memory, from `at` on, as far as there is room and it is present; how many
/// bytes.
pub(crate) fn copy_from_task<'a>(at: u64, to: impl Iterator<Item = Piece<'a>>) -> usize {
    each_run(at, to, |at, addr, len| {
        // SAFETY: By the piece's invariant it is mapped memory of that many bytes, borrowed until we
        // return. Any address of the task's will do.
        unsafe { kshm_copy_from_user(addr as *mut c_void, at, len) }
    })
}

/// Copies to the task's own memory, from `at` on, as far as it is present; how many bytes.
pub(crate) fn copy_to_task<'a>(from: impl Iterator<Item = Piece<'a>>, at: u64) -> usize {
    each_run(at, from, |at, addr, len| {
        // SAFETY: As in `copy_from_task`.
        unsafe { kshm_copy_to_user(at, addr as *const c_void, len) }
    })
}

/// Has `copy` copy each piece, until it does not copy all of one; how many bytes it has copied.
fn each_run<'a>(
    at: u64,
    pieces: impl Iterator<Item = Piece<'a>>,
    copy: impl Fn(u64, usize, usize) -> usize,
) -> usize {
    let mut done = 0;
    for piece in pieces {
        let n = copy(at.wrapping_add(done as u64), piece.addr, piece.len);
        done += n;
        if n < piece.len {
            break;
        }
    }
    done
}

/// Puts what `change` makes of the value of `size` bytes (1, 2, 4 or 8) at the start of `piece` in its
/// place, in one step for everybody, processors of the target included; nothing if that is `None`.
/// What was there.
///
/// # Errors
///
/// `EFAULT`: it is not all there, or not at a multiple of its size.
pub(crate) fn update(
    piece: Option<Piece<'_>>,
    size: usize,
    change: impl Fn(u64) -> Option<u64>,
) -> Result<u64> {
    let piece = piece.ok_or(EFAULT)?;
    if !matches!(size, 1 | 2 | 4 | 8) || piece.len < size || piece.addr & (size - 1) != 0 {
        return Err(EFAULT);
    }
    // CAST: 8 at most.
    let (at, bytes) = (piece.addr as *mut c_void, size as c_uint);
    // SAFETY: By the piece's invariant there are that many bytes; they are aligned.
    let mut there = unsafe { kshm_read(at, bytes) };
    loop {
        let Some(new) = change(there) else {
            return Ok(there);
        };
        // SAFETY: As above.
        let found = unsafe { kshm_cmpxchg(at, bytes, there, new) };
        if found == there {
            return Ok(there);
        }
        there = found;
    }
}

/// While it lives, no other task runs on this processor.
pub(crate) struct NoPreempt(PhantomData<*mut ()>);

impl NoPreempt {
    /// Begins. Any context; nothing sleeps until it is dropped.
    pub(crate) fn new() -> Self {
        // SAFETY: No preconditions; what is dropped ends it.
        unsafe { kshm_preempt_disable() };
        Self(PhantomData)
    }
}

impl Drop for NoPreempt {
    fn drop(&mut self) {
        // SAFETY: It was disabled when this was made, on this processor, where the task has stayed.
        unsafe { kshm_preempt_enable() };
    }
}

// ---- tasks ----

/// Lets others run. Only where sleeping is allowed.
pub(crate) fn cond_resched() {
    // SAFETY: No preconditions but that we may sleep, which callers see to.
    unsafe { kshm_cond_resched() }
}

/// Whether the task is being killed.
pub(crate) fn killed() -> bool {
    // SAFETY: No preconditions.
    unsafe { kshm_fatal_signal_pending() }
}

/// Which task runs; only to be compared.
pub(crate) fn current() -> usize {
    // SAFETY: No preconditions.
    unsafe { kshm_current() }.addr()
}

/// Fills `secret` with random bytes.
pub(crate) fn random() -> u128 {
    let mut secret = 0u128;
    // SAFETY: The place is ours and that large; any bytes are a number.
    unsafe { kshm_random((&raw mut secret).cast(), size_of::<u128>()) };
    secret
}

// ---- waiting ----

/// Where those wait who want others to leave.
///
/// # Invariants
///
/// Initialised.
#[pin_data]
pub(crate) struct Exits {
    #[pin]
    head: Opaque<bindings::wait_queue_head>,
}

// SAFETY: The C object has a lock of its own.
unsafe impl Send for Exits {}
// SAFETY: As above.
unsafe impl Sync for Exits {}

impl Exits {
    /// Nobody waits.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: The slot is valid for writes, and pinned from then on.
            head <- Opaque::ffi_init(|head| unsafe { kshm_wait_init(head) }),
        })
    }

    /// Somebody has left. Any context.
    pub(crate) fn wake(&self) {
        // SAFETY: By the type invariant it is initialised.
        unsafe { kshm_wait_wake(self.head.get()) }
    }

    /// Runs `look`, which calls what it is given whenever what it looks for is not so yet: that
    /// sleeps until somebody has left since the look before.
    pub(crate) fn wait<R>(&self, look: impl FnOnce(&mut dyn FnMut()) -> R) -> R {
        let entry = Opaque::<bindings::wait_queue_entry>::uninit();
        let head = self.head.get();
        // SAFETY: The place is ours, and does not move until the end of this function.
        unsafe { bindings::init_wait_entry(entry.get(), 0) };
        let mut ready = false;
        let result = look(&mut || {
            if ready {
                // SAFETY: No preconditions but that we may sleep.
                unsafe { bindings::schedule() };
            }
            ready = true;
            // CAST: A small constant.
            let state = bindings::TASK_UNINTERRUPTIBLE as c_int;
            // SAFETY: Both are initialised.
            unsafe { bindings::prepare_to_wait(head, entry.get(), state) };
        });
        if ready {
            // SAFETY: As above; this takes the entry off the list before it goes.
            unsafe { bindings::finish_wait(head, entry.get()) };
        }
        result
    }
}

// ---- work ----

/// A queue as the module has it: null while there is none.
type Place = AtomicPtr<bindings::workqueue_struct>;

/// What tells applications of their connections.
static EVENTS: Place = Place::new(core::ptr::null_mut());
/// What goes on with operations. However many do, events do not wait behind them.
static COPIES: Place = Place::new(core::ptr::null_mut());

/// Keeps the queues alive; dropping it runs what is queued and waits.
pub(crate) struct WorkQueues(());

impl WorkQueues {
    /// Makes the queues. Once, at module load.
    pub(crate) fn new() -> Result<Self> {
        let all = Self(());
        for (place, name) in [(&EVENTS, c"kshm"), (&COPIES, c"kshm_copy")] {
            // SAFETY: The name is a text.
            let wq = unsafe { kshm_wq_alloc(name.as_char_ptr()) };
            if wq.is_null() {
                return Err(ENOMEM);
            }
            place.store(wq, Ordering::Release);
        }
        Ok(all)
    }
}

impl Drop for WorkQueues {
    fn drop(&mut self) {
        let [events, copies] = [&EVENTS, &COPIES].map(|place| place.load(Ordering::Acquire));
        // SAFETY: `new` made them, if they are there, and nobody else frees them. Nothing of the
        // module is in use any more, so nothing new is queued but by what still runs, which is waited
        // for, too: an event that still runs may have operations gone on with, and that tells.
        unsafe { kshm_wq_free(events, copies) };
        EVENTS.store(core::ptr::null_mut(), Ordering::Release);
        COPIES.store(core::ptr::null_mut(), Ordering::Release);
    }
}

/// The queue of what applications are told. Only while the module is loaded and something of it exists.
pub(crate) fn events() -> &'static Queue {
    // SAFETY: Endpoints and listeners, the only users, exist only between load and unload, when
    // the pointer is a live work queue.
    unsafe { Queue::from_raw(EVENTS.load(Ordering::Acquire)) }
}

/// The queue of operations that somebody else goes on with. As [`events`].
pub(crate) fn copies() -> &'static Queue {
    // SAFETY: As above.
    unsafe { Queue::from_raw(COPIES.load(Ordering::Acquire)) }
}

/// Waits until the work item, if it is queued or runs, has run. Not to be called by the item.
pub(crate) fn flush<T: HasWork<T, ID>, const ID: u64>(this: &Arc<T>) {
    // SAFETY: `this` points to a live `T`, whose work item is initialised with it and stays as long.
    unsafe { bindings::flush_work(Work::raw_get(T::raw_get_work(Arc::as_ptr(this).cast_mut()))) };
}

// ---- addresses ----

type Storage = bindings::__kernel_sockaddr_storage;

/// Every address of this host in `net`, without a port.
pub(crate) fn for_each_addr(net: &Net, mut each: impl FnMut(SockAddr) -> Result) -> Result {
    for index in 0.. {
        let mut storage = Storage::default();
        // SAFETY: `net` holds the namespace; the place is ours.
        if to_result(unsafe { kshm_addr(net.as_ptr(), index, &mut storage) }).is_err() {
            return Ok(());
        }
        let mut addr = SockAddr::default();
        // SAFETY: Both have that many bytes; the C side has written all of them.
        unsafe {
            core::ptr::copy_nonoverlapping(
                (&raw const storage).cast::<u8>(),
                addr.data.as_mut_ptr(),
                addr.data.len(),
            )
        };
        addr.len = match u16::from_ne_bytes([addr.data[0], addr.data[1]]) {
            2 => 16,
            _ => 28,
        };
        each(addr)?;
    }
    Ok(())
}

/// Whether `addr` is one of this host's in `net`.
pub(crate) fn is_local(net: &Net, addr: &SockAddr) -> bool {
    let mut storage = Storage::default();
    // SAFETY: Both have that many bytes.
    unsafe {
        core::ptr::copy_nonoverlapping(
            addr.data.as_ptr(),
            (&raw mut storage).cast::<u8>(),
            addr.data.len(),
        )
    };
    // SAFETY: `net` holds the namespace; the address is ours.
    unsafe { kshm_is_local(net.as_ptr(), &storage) }
}

/// Whether who listens at all addresses of IPv6 in `net` listens at those of IPv4, too.
pub(crate) fn is_dual(net: &Net) -> bool {
    // SAFETY: `net` holds the namespace.
    unsafe { kshm_is_dual(net.as_ptr()) }
}
