// SPDX-License-Identifier: GPL-2.0
//! The thin layer to C: `helpers.h`.

use core::{
    ptr::NonNull,
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
        c_ulong,
        c_void, //
    },
    prelude::*,
    workqueue::Queue, //
};
use kfabric::{
    net::Net,
    op::LentPiece,
    pure::blk::Name,
    uapi::SockAddr, //
};

/// `struct kfblk_disk`.
#[repr(C)]
pub(crate) struct RawDisk {
    _opaque: [u8; 0],
}

/// `struct kfblk_shape`: what a disk looks like.
#[repr(C)]
pub(crate) struct Shape {
    /// Bytes.
    pub(crate) capacity: u64,
    /// Bytes.
    pub(crate) block_size: u32,
    /// Bytes; no request goes across a multiple of it.
    pub(crate) chunk: u32,
    /// Bytes of contiguous memory that are taken as one, at most.
    pub(crate) piece: u32,
    /// Queues.
    pub(crate) queues: u32,
    /// Requests of a queue.
    pub(crate) depth: u32,
    /// Milliseconds after which a request is asked about.
    pub(crate) timeout_ms: u32,
    /// Bytes that it writes at once.
    pub(crate) physical: u32,
    /// Bytes that it likes to be asked for, at least.
    pub(crate) io_min: u32,
    /// Bytes that it likes best.
    pub(crate) io_opt: u32,
    /// Bytes of one request, at most; 0: those of a chunk.
    pub(crate) request: u32,
    /// Bytes that are discarded at once, at most.
    pub(crate) discard: u32,
    /// In multiples of so many bytes.
    pub(crate) granularity: u32,
    /// Bytes that are zeroed at once, at most.
    pub(crate) zeroes: u32,
    /// It is not to be written to.
    pub(crate) read_only: bool,
    /// It is a device: requests go as messages.
    pub(crate) device: bool,
    /// It has a cache.
    pub(crate) cache: bool,
    /// Single writes can go past it.
    pub(crate) fua: bool,
    /// It turns.
    pub(crate) rotational: bool,
}

/// `struct kfblk_order`: what is to be done.
#[repr(C)]
pub(crate) struct Order {
    /// Who is told of the end.
    pub(crate) owner: *const c_void,
    /// First byte.
    pub(crate) pos: u64,
    /// Bytes.
    pub(crate) len: u32,
    /// The owner's number.
    pub(crate) slot: u32,
    /// [`Op`](kfabric::pure::blk::device::Op).
    pub(crate) op: u8,
    /// [`PAST_CACHE`](kfabric::pure::blk::device::PAST_CACHE) and its like.
    pub(crate) flags: u8,
    /// Bytes go from or to memory.
    pub(crate) moves: bool,
}

/// `enum kfblk_verdict`: how a request ended.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Verdict {
    /// Well.
    Done = 0,
    /// Its connection has ended: it is to be tried again.
    Again = 1,
    /// The same, and because of it.
    Blamed = 2,
    /// With an error.
    Failed = 3,
    /// As [`Verdict::Again`], and the connection has served other requests.
    Suspect = 4,
}

#[expect(
    improper_ctypes,
    reason = "bindgen's empty structures, behind pointers as in the kernel crate's own bindings"
)]
extern "C" {
    fn kfblk_block_init() -> c_int;
    fn kfblk_block_exit();
    fn kfblk_disk_new(owner: *mut c_void, shape: *const Shape) -> *mut RawDisk;
    fn kfblk_disk_add(disk: *mut RawDisk) -> c_int;
    fn kfblk_disk_del(disk: *mut RawDisk);
    fn kfblk_disk_free(disk: *mut RawDisk);
    fn kfblk_disk_quiesce(disk: *mut RawDisk);
    fn kfblk_disk_resume(disk: *mut RawDisk);
    fn kfblk_disk_kick(disk: *mut RawDisk);
    fn kfblk_disk_fail_in(disk: *mut RawDisk, ms: u64);
    fn kfblk_disk_fail_no_more(disk: *mut RawDisk);
    fn kfblk_disk_name(disk: *const RawDisk, name: *mut u8, size: c_uint);
    fn kfblk_disk_capacity(disk: *const RawDisk) -> u64;
    fn kfblk_disk_resize(disk: *mut RawDisk, capacity: u64);
    fn kfblk_rq_end(disk: *mut RawDisk, queue: u32, tag: u32, verdict: u32);
    fn kfblk_rq_fail(disk: *mut RawDisk, queue: u32, tag: u32, err: c_int);
    fn kfblk_rq_pieces(
        disk: *mut RawDisk,
        queue: u32,
        tag: u32,
        count: *mut u32,
    ) -> *const LentPiece;
    fn kfblk_rq_copy(
        disk: *mut RawDisk,
        queue: u32,
        tag: u32,
        pieces: *const LentPiece,
        count: u32,
        to_request: bool,
    );
    fn kfblk_configfs_init() -> c_int;
    fn kfblk_configfs_exit();
    fn kfblk_wq_alloc(name: *const c_char) -> *mut bindings::workqueue_struct;
    fn kfblk_wq_free(wq: *mut bindings::workqueue_struct);
    fn kfblk_parse_addr(
        net: *mut bindings::net,
        addr: *const c_char,
        port: *const c_char,
        out: *mut u8,
        len: *mut u32,
    ) -> c_int;
    fn kfblk_random(data: *mut c_void, len: c_ulong);
    fn kfblk_spare_pages() -> c_ulong;
    fn kfblk_breathe() -> bool;
    fn kfblk_cpus() -> u32;
    fn kfblk_node_name(name: *mut u8, size: c_uint);
}

type RawQueue = AtomicPtr<bindings::workqueue_struct>;

/// The exporting end's: its work is short.
static EXPORTS: RawQueue = AtomicPtr::new(core::ptr::null_mut());
/// The importing end's: connecting may take minutes, and may be to an export of this host.
static DISKS: RawQueue = AtomicPtr::new(core::ptr::null_mut());
/// The importing end's requests: they end, whoever is connecting and has the only thread that there is
/// memory for.
static REQUESTS: RawQueue = AtomicPtr::new(core::ptr::null_mut());

/// Of ports that listen again: that may take as long as it likes.
static PORTS: RawQueue = AtomicPtr::new(core::ptr::null_mut());

/// Keeps a work queue; dropping it runs what is queued and waits.
pub(crate) struct WorkQueue(&'static RawQueue);

impl WorkQueue {
    /// Makes that of exports. Once, at module load.
    pub(crate) fn for_exports() -> Result<Self> {
        Self::new(&EXPORTS, c"kfblk_export")
    }

    /// Makes that of disks. Once, at module load.
    pub(crate) fn for_disks() -> Result<Self> {
        Self::new(&DISKS, c"kfblk_disk")
    }

    /// Makes that of disks' requests. Once, at module load.
    pub(crate) fn for_requests() -> Result<Self> {
        Self::new(&REQUESTS, c"kfblk_request")
    }

    /// Makes that of ports. Once, at module load.
    pub(crate) fn for_ports() -> Result<Self> {
        Self::new(&PORTS, c"kfblk_port")
    }

    fn new(place: &'static RawQueue, name: &'static CStr) -> Result<Self> {
        // SAFETY: The name is a C string.
        let wq = unsafe { kfblk_wq_alloc(name.as_char_ptr()) };
        if wq.is_null() {
            return Err(ENOMEM);
        }
        place.store(wq, Ordering::Release);
        Ok(Self(place))
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        let wq = self.0.swap(core::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: `new` made it, and nothing queues any more.
        unsafe { kfblk_wq_free(wq) };
    }
}

/// The work queue of ports and their connections. Only while something of the module exists.
pub(crate) fn exports() -> &'static Queue {
    // SAFETY: Its users exist only between load and unload, when the pointer is a live work queue.
    unsafe { Queue::from_raw(EXPORTS.load(Ordering::Acquire)) }
}

/// The work queue of disks. As above.
pub(crate) fn disks() -> &'static Queue {
    // SAFETY: As above.
    unsafe { Queue::from_raw(DISKS.load(Ordering::Acquire)) }
}

/// The work queue of disks' requests. As above. What runs there waits for nothing that takes memory.
pub(crate) fn requests() -> &'static Queue {
    // SAFETY: As above.
    unsafe { Queue::from_raw(REQUESTS.load(Ordering::Acquire)) }
}

/// The work queue of ports that listen again. As above.
pub(crate) fn ports() -> &'static Queue {
    // SAFETY: As above.
    unsafe { Queue::from_raw(PORTS.load(Ordering::Acquire)) }
}

/// The block device's major number.
pub(crate) struct Major(());

impl Major {
    /// Gets one. Once, at module load.
    pub(crate) fn register() -> Result<Self> {
        // SAFETY: No preconditions.
        to_result(unsafe { kfblk_block_init() })?;
        Ok(Self(()))
    }
}

impl Drop for Major {
    fn drop(&mut self) {
        // SAFETY: It was registered, and no disk is left.
        unsafe { kfblk_block_exit() }
    }
}

/// The presence in configfs.
pub(crate) struct Configfs(());

impl Configfs {
    /// Appears. Last at module load.
    pub(crate) fn register() -> Result<Self> {
        // SAFETY: What its calls need is there.
        to_result(unsafe { kfblk_configfs_init() })?;
        Ok(Self(()))
    }
}

impl Drop for Configfs {
    fn drop(&mut self) {
        // SAFETY: It was registered. Items keep the module, so there are none.
        unsafe { kfblk_configfs_exit() }
    }
}

/// A block device.
///
/// # Invariants
///
/// What `kfblk_disk_new()` made, until `kfblk_disk_free()`.
#[derive(Clone, Copy)]
pub(crate) struct Block(NonNull<RawDisk>);

// SAFETY: The C object is for any thread.
unsafe impl Send for Block {}
// SAFETY: As above.
unsafe impl Sync for Block {}

impl Block {
    /// Makes one.
    ///
    /// # Safety
    ///
    /// `owner` is what the callbacks of `request.rs` take, until [`Block::free`].
    pub(crate) unsafe fn new(owner: *mut c_void, shape: &Shape) -> Result<Self> {
        // SAFETY: The shape is borrowed for the call.
        let disk = unsafe { kfblk_disk_new(owner, shape) };
        let disk = kernel::error::from_err_ptr(disk)?;
        // INVARIANT: It was made.
        Ok(Self(NonNull::new(disk).ok_or(ENOMEM)?))
    }

    /// Shows it to everybody. Its first requests come before this returns.
    pub(crate) fn add(self) -> Result {
        // SAFETY: By the type invariant.
        to_result(unsafe { kfblk_disk_add(self.0.as_ptr()) })
    }

    /// Takes it away from everybody: no request comes when this has returned.
    pub(crate) fn del(self) {
        // SAFETY: By the type invariant; it was added.
        unsafe { kfblk_disk_del(self.0.as_ptr()) }
    }

    /// Frees it.
    ///
    /// # Safety
    ///
    /// No copy of `self` is used any more, and no request comes.
    pub(crate) unsafe fn free(self) {
        // SAFETY: By the type invariant and the caller's promise.
        unsafe { kfblk_disk_free(self.0.as_ptr()) }
    }

    /// Holds requests back: nobody is in the callback when this returns.
    pub(crate) fn quiesce(self) {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_quiesce(self.0.as_ptr()) }
    }

    /// Lets them go.
    pub(crate) fn resume(self) {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_resume(self.0.as_ptr()) }
    }

    /// Tries parked requests again. May sleep.
    pub(crate) fn kick(self) {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_kick(self.0.as_ptr()) }
    }

    /// Fails requests that find no connection, from `ms` milliseconds on.
    pub(crate) fn fail_in(self, ms: u64) {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_fail_in(self.0.as_ptr(), ms) }
    }

    /// Undoes [`Block::fail_in`]. May sleep.
    pub(crate) fn fail_no_more(self) {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_fail_no_more(self.0.as_ptr()) }
    }

    /// Its size, in bytes.
    pub(crate) fn capacity(self) -> u64 {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_capacity(self.0.as_ptr()) }
    }

    /// It has another size from now on. In process context.
    pub(crate) fn resize(self, capacity: u64) {
        // SAFETY: By the type invariant.
        unsafe { kfblk_disk_resize(self.0.as_ptr(), capacity) }
    }

    /// Ends a request with an errno of the target's. Any context.
    ///
    /// # Safety
    ///
    /// As [`Block::end`].
    pub(crate) unsafe fn fail(self, queue: u32, tag: u32, err: u32) {
        // CAST: What is no errno is an I/O error.
        let err = i32::try_from(err).unwrap_or(5);
        // SAFETY: A request on its way keeps the device; the rest is the caller's promise.
        unsafe { kfblk_rq_fail(self.0.as_ptr(), queue, tag, -err) }
    }

    /// Names a request's memory. None: there is none, or it is in too many pieces.
    ///
    /// # Safety
    ///
    /// The request came with these numbers. The pieces are looked at only before it ends, and before
    /// they are asked for again.
    pub(crate) unsafe fn pieces<'a>(self, queue: u32, tag: u32) -> &'a [LentPiece] {
        let mut count = 0;
        // SAFETY: A request on its way keeps the device; the rest is the caller's promise.
        let pieces = unsafe { kfblk_rq_pieces(self.0.as_ptr(), queue, tag, &mut count) };
        // SAFETY: There are as many, and they stay by the caller's promise. CAST: A `u32` fits.
        unsafe { core::slice::from_raw_parts(pieces, count as usize) }
    }

    /// Copies a request's bytes from or to memory of our own, as far as that goes. Any context.
    ///
    /// # Safety
    ///
    /// The request came with these numbers, and has not ended. The pieces name memory that nobody else
    /// has.
    pub(crate) unsafe fn copy(self, queue: u32, tag: u32, pieces: &[LentPiece], to_request: bool) {
        // SAFETY: A request on its way keeps the device; the rest is the caller's promise. CAST: Few.
        unsafe {
            kfblk_rq_copy(
                self.0.as_ptr(),
                queue,
                tag,
                pieces.as_ptr(),
                pieces.len() as u32,
                to_request,
            )
        }
    }

    /// Its name in `/dev`.
    pub(crate) fn name(self, name: &mut [u8; 32]) {
        // SAFETY: By the type invariant; there is room for as many.
        unsafe { kfblk_disk_name(self.0.as_ptr(), name.as_mut_ptr(), name.len() as c_uint) }
    }

    /// Ends a request. Any context.
    ///
    /// # Safety
    ///
    /// The request came with these numbers and was taken, and has not ended.
    pub(crate) unsafe fn end(self, queue: u32, tag: u32, verdict: Verdict) {
        // SAFETY: A request on its way keeps the device; the rest is the caller's promise.
        unsafe { kfblk_rq_end(self.0.as_ptr(), queue, tag, verdict as u32) }
    }
}

/// A socket address from its texts.
///
/// # Errors
///
/// `EINVAL`: it is none.
pub(crate) fn parse_addr(net: &Net, addr: &Name, port: &Name) -> Result<SockAddr> {
    let mut out = SockAddr::default();
    // SAFETY: The texts end with a NUL; `data` has room for the longest address.
    to_result(unsafe {
        kfblk_parse_addr(
            net.as_ptr(),
            addr.bytes().as_ptr().cast(),
            port.bytes().as_ptr().cast(),
            out.data.as_mut_ptr(),
            &mut out.len,
        )
    })?;
    Ok(out)
}

/// Random bytes.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    // SAFETY: There is room for as many.
    unsafe { kfblk_random(out.as_mut_ptr().cast(), N) };
    out
}

/// Pages that may be taken without the rest of the host being short of memory.
pub(crate) fn spare_pages() -> usize {
    // SAFETY: No preconditions.
    unsafe { kfblk_spare_pages() }
}

/// Lets others run, in the middle of something that takes long. May sleep.
///
/// # Errors
///
/// `EINTR`: the task is being killed.
pub(crate) fn breathe() -> Result {
    // SAFETY: It may sleep here, as the caller says.
    match unsafe { kfblk_breathe() } {
        true => Err(EINTR),
        false => Ok(()),
    }
}

/// Processors.
pub(crate) fn cpus() -> u32 {
    // SAFETY: No preconditions.
    unsafe { kfblk_cpus() }
}

/// The host's name.
pub(crate) fn node_name(name: &mut [u8; 64]) {
    // SAFETY: There is room for as many.
    unsafe { kfblk_node_name(name.as_mut_ptr(), name.len() as c_uint) }
}
