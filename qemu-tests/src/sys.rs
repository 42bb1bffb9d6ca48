// SPDX-License-Identifier: MIT OR Apache-2.0

//! System calls that the tests need and the standard library lacks. All `unsafe` of the crate is
//! here.

pub mod heap;
pub mod remap;
pub mod rights;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{fence, AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub mod net;
pub mod uffd;

/// Returns how many times longer a step may take here than on a kernel without checkers:
/// `KFI_SLOW`, which xtask sets.
pub fn slowness() -> u32 {
    static SLOW: OnceLock<u32> = OnceLock::new();
    *SLOW.get_or_init(|| {
        let set = std::env::var("KFI_SLOW").ok();
        set.and_then(|text| text.parse().ok()).unwrap_or(1).max(1)
    })
}

/// Scales a time limit for a kernel without checkers to this kernel.
pub fn patience(limit: Duration) -> Duration {
    limit * slowness()
}

/// A positive error number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Returns the errno of the last failed system call.
    pub fn last() -> Self {
        Self(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// Returns the errno's name, if a test is likely to meet it.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "0",
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::EINTR => "EINTR",
            libc::EIO => "EIO",
            libc::E2BIG => "E2BIG",
            libc::EBADF => "EBADF",
            libc::EAGAIN => "EAGAIN",
            libc::ENOMEM => "ENOMEM",
            libc::EACCES => "EACCES",
            libc::EFAULT => "EFAULT",
            libc::EBUSY => "EBUSY",
            libc::EEXIST => "EEXIST",
            libc::ENODEV => "ENODEV",
            libc::EINVAL => "EINVAL",
            libc::ENODATA => "ENODATA",
            libc::ENFILE => "ENFILE",
            libc::EMFILE => "EMFILE",
            libc::ENOTTY => "ENOTTY",
            libc::ENOSPC => "ENOSPC",
            libc::EPIPE => "EPIPE",
            libc::EMSGSIZE => "EMSGSIZE",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            libc::EADDRINUSE => "EADDRINUSE",
            libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
            libc::ENETUNREACH => "ENETUNREACH",
            libc::ECONNABORTED => "ECONNABORTED",
            libc::ENOBUFS => "ENOBUFS",
            libc::ECONNRESET => "ECONNRESET",
            libc::EISCONN => "EISCONN",
            libc::ENOTCONN => "ENOTCONN",
            libc::ESHUTDOWN => "ESHUTDOWN",
            libc::ETIMEDOUT => "ETIMEDOUT",
            libc::ECONNREFUSED => "ECONNREFUSED",
            libc::EHOSTUNREACH => "EHOSTUNREACH",
            libc::EALREADY => "EALREADY",
            libc::EINPROGRESS => "EINPROGRESS",
            libc::ECANCELED => "ECANCELED",
            libc::EREMOTEIO => "EREMOTEIO",
            libc::EOVERFLOW => "EOVERFLOW",
            _ => "errno",
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl std::error::Error for Errno {}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn check(value: i64) -> Result<i64, Errno> {
    if value < 0 {
        Err(Errno::last())
    } else {
        Ok(value)
    }
}

/// Makes `ioctl(2)` with a bare number as argument, valid or not.
///
/// # Errors
///
/// The call's errno.
pub fn ioctl(fd: BorrowedFd<'_>, nr: u32, arg: usize) -> Result<i32, Errno> {
    // SAFETY: A request that writes to memory is given the address of a live
    // structure of the request's size by `raw`; tests of wrong addresses give
    // such as are not mapped or are `Map`s kept for the purpose.
    let r = unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(nr), arg) };
    check(i64::from(r)).map(|v| v as i32)
}

/// Takes ownership of a descriptor that the kernel has just created for the caller, or that the
/// parent left open; no other code may use the number.
pub fn own_fd(fd: RawFd) -> OwnedFd {
    assert!(fd >= 0, "the kernel answered with descriptor {fd}");
    // SAFETY: The descriptor was installed for the caller alone, which passes it on once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Waits until a descriptor is readable or has an error. Returns false if time is up.
///
/// # Errors
///
/// The errno of `poll(2)`.
pub fn poll_in(fd: BorrowedFd<'_>, timeout: Duration) -> Result<bool, Errno> {
    Ok(poll(fd, libc::POLLIN, timeout)? != 0)
}

/// Makes `poll(2)` on one descriptor. Returns the events.
///
/// # Errors
///
/// The call's errno; an interrupted call is repeated.
pub fn poll(fd: BorrowedFd<'_>, events: i16, timeout: Duration) -> Result<i16, Errno> {
    let end = Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let ms = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let mut p = libc::pollfd {
            fd: fd.as_raw_fd(),
            events,
            revents: 0,
        };
        // SAFETY: One valid structure.
        let r = unsafe { libc::poll(&raw mut p, 1, ms) };
        match check(i64::from(r)) {
            Ok(_) => return Ok(p.revents),
            Err(Errno(libc::EINTR)) => {}
            Err(e) => return Err(e),
        }
    }
}

/// An `epoll(7)` set.
pub struct Epoll(OwnedFd);

impl Epoll {
    /// Creates an empty set.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: No memory is passed.
        let fd = check(i64::from(unsafe {
            libc::epoll_create1(libc::EPOLL_CLOEXEC)
        }))?;
        Ok(Self(own_fd(fd as RawFd)))
    }

    /// Adds a descriptor for `events`, which are reported with `token`.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn add(&self, fd: BorrowedFd<'_>, events: i32, token: u64) -> Result<(), Errno> {
        let mut ev = libc::epoll_event {
            events: events as u32,
            u64: token,
        };
        // SAFETY: One valid structure.
        let r = unsafe {
            libc::epoll_ctl(
                self.0.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                fd.as_raw_fd(),
                &raw mut ev,
            )
        };
        check(i64::from(r)).map(|_| ())
    }

    /// Waits for one event. Returns its token.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn wait(&self, timeout: Duration) -> Result<Option<u64>, Errno> {
        let mut ev = libc::epoll_event { events: 0, u64: 0 };
        let ms = timeout.as_millis() as i32;
        // SAFETY: Room for the one event asked for.
        let r = unsafe { libc::epoll_wait(self.0.as_raw_fd(), &raw mut ev, 1, ms) };
        Ok((check(i64::from(r))? > 0).then_some(ev.u64))
    }
}

/// A mapping of memory, accessed only by volatile reads and writes, because a peer or the kernel
/// may change it at any time.
pub struct Map {
    addr: *mut u8,
    len: usize,
}

// SAFETY: The mapping is plain memory, reached by volatile accesses only;
// tests bring their own order between threads.
unsafe impl Send for Map {}
// SAFETY: As above.
unsafe impl Sync for Map {}

impl Map {
    fn mmap(len: usize, prot: i32, flags: i32, fd: RawFd, offset: i64) -> Result<Self, Errno> {
        // SAFETY: No address is asked for, so no existing mapping is touched.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, offset) };
        if p == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(Self {
            addr: p.cast(),
            len,
        })
    }

    /// Maps private anonymous memory.
    ///
    /// # Errors
    ///
    /// The errno of `mmap(2)`.
    pub fn anon(len: usize) -> Result<Self, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::mmap(len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    }

    /// Maps anonymous memory that children share.
    ///
    /// # Errors
    ///
    /// The errno of `mmap(2)`.
    pub fn shared(len: usize) -> Result<Self, Errno> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        Self::mmap(len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    }

    /// Maps anonymous memory in huge pages of the reserved pool.
    ///
    /// # Errors
    ///
    /// The errno of `mmap(2)`: `ENOMEM` if none are reserved.
    pub fn huge(len: usize) -> Result<Self, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
        Self::mmap(len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    }

    /// Maps a file's pages, shared; writable or not.
    ///
    /// # Errors
    ///
    /// The errno of `mmap(2)`.
    pub fn file(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Self, Errno> {
        let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        Self::mmap(len, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0)
    }

    /// Maps a file's pages, private.
    ///
    /// # Errors
    ///
    /// The errno of `mmap(2)`.
    pub fn file_private(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Self, Errno> {
        let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        Self::mmap(len, prot, libc::MAP_PRIVATE, fd.as_raw_fd(), 0)
    }

    /// Maps a descriptor at `offset`, with any `PROT_*` and `MAP_*`.
    ///
    /// # Errors
    ///
    /// The errno of `mmap(2)`.
    pub fn raw(
        fd: BorrowedFd<'_>,
        len: usize,
        prot: i32,
        flags: i32,
        offset: i64,
    ) -> Result<Self, Errno> {
        Self::mmap(len, prot, flags & !libc::MAP_FIXED, fd.as_raw_fd(), offset)
    }

    /// Takes the mapping's pages from one NUMA node, below 64.
    ///
    /// # Errors
    ///
    /// The errno of `mbind(2)`.
    pub fn bind(&self, node: u64) -> Result<(), Errno> {
        const BITS: usize = 65;
        let nodes = 1u64 << node;
        // SAFETY: The call changes where pages of the mapping come from, and reads one word.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.addr,
                self.len,
                libc::MPOL_BIND,
                &raw const nodes,
                BITS,
                0,
            )
        };
        if done == 0 {
            Ok(())
        } else {
            Err(Errno::last())
        }
    }

    /// Returns the first address.
    pub fn addr(&self) -> u64 {
        self.addr as u64
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn at(&self, off: usize, len: usize) -> *mut u8 {
        assert!(
            off <= self.len && len <= self.len - off,
            "out of the mapping"
        );
        // SAFETY: In the mapping, as just checked.
        unsafe { self.addr.add(off) }
    }

    /// Reads one byte.
    pub fn get(&self, off: usize) -> u8 {
        // SAFETY: In the mapping.
        unsafe { self.at(off, 1).read_volatile() }
    }

    /// Writes one byte.
    pub fn set(&self, off: usize, value: u8) {
        // SAFETY: In the mapping, which tests that write have made writable.
        unsafe { self.at(off, 1).write_volatile(value) }
    }

    /// Reads eight bytes, at any alignment.
    pub fn get64(&self, off: usize) -> u64 {
        let p = self.at(off, 8).cast::<[u8; 8]>();
        if off.is_multiple_of(8) {
            // SAFETY: In the mapping; aligned, since mappings are.
            return unsafe { p.cast::<u64>().read_volatile() };
        }
        // SAFETY: In the mapping; bytes have no alignment.
        u64::from_ne_bytes(unsafe { p.read_volatile() })
    }

    /// Writes eight bytes, at any alignment.
    pub fn set64(&self, off: usize, value: u64) {
        let p = self.at(off, 8).cast::<[u8; 8]>();
        if off.is_multiple_of(8) {
            // SAFETY: In the mapping; aligned, since mappings are.
            unsafe { p.cast::<u64>().write_volatile(value) };
            return;
        }
        // SAFETY: In the mapping; bytes have no alignment.
        unsafe { p.write_volatile(value.to_ne_bytes()) }
    }

    /// Writes the lines of a part back, as a program does that makes its persistent memory durable.
    pub fn write_back(&self, off: usize, len: usize) {
        use std::arch::x86_64::{_mm_clflush, _mm_sfence};
        let start = self.at(off, len);
        for line in (0..len).step_by(64) {
            // SAFETY: The line begins in the mapping; every x86-64 processor has the instruction.
            unsafe { _mm_clflush(start.wrapping_add(line)) };
        }
        // SAFETY: Every x86-64 processor has the instruction.
        unsafe { _mm_sfence() };
    }

    /// Reads four bytes at an aligned offset, in acquire order.
    pub fn load32(&self, off: usize) -> u32 {
        assert!(off.is_multiple_of(4));
        // SAFETY: In the mapping and aligned.
        let v = unsafe { self.at(off, 4).cast::<u32>().read_volatile() };
        fence(Ordering::Acquire);
        v
    }

    /// Writes four bytes at an aligned offset, in release order.
    pub fn store32(&self, off: usize, value: u32) {
        assert!(off.is_multiple_of(4));
        fence(Ordering::Release);
        // SAFETY: In the mapping and aligned.
        unsafe { self.at(off, 4).cast::<u32>().write_volatile(value) }
    }

    /// Adds to a number of 1, 2, 4 or 8 bytes at an aligned offset, by one processor instruction;
    /// it wraps.
    pub fn add(&self, off: usize, bytes: usize, value: u64) {
        assert!(off.is_multiple_of(bytes));
        let p = self.at(off, bytes);
        // SAFETY: In the mapping, which is writable, and aligned; concurrent changes are atomic.
        unsafe {
            match bytes {
                1 => _ = AtomicU8::from_ptr(p).fetch_add(value as u8, Ordering::SeqCst),
                2 => _ = AtomicU16::from_ptr(p.cast()).fetch_add(value as u16, Ordering::SeqCst),
                4 => _ = AtomicU32::from_ptr(p.cast()).fetch_add(value as u32, Ordering::SeqCst),
                _ => _ = AtomicU64::from_ptr(p.cast()).fetch_add(value, Ordering::SeqCst),
            }
        }
    }

    /// Copies bytes out.
    pub fn read(&self, off: usize, out: &mut [u8]) {
        let p = self.at(off, out.len());
        // SAFETY: In the mapping; `out` is not part of it.
        unsafe { std::ptr::copy_nonoverlapping(p, out.as_mut_ptr(), out.len()) }
        fence(Ordering::AcqRel);
    }

    /// Copies bytes in.
    pub fn write(&self, off: usize, data: &[u8]) {
        let p = self.at(off, data.len());
        fence(Ordering::AcqRel);
        // SAFETY: In the mapping; `data` is not part of it.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), p, data.len()) }
    }

    /// Reads `len` bytes at `at` of a file to the mapping's start, or writes them from there, in
    /// one system call. Returns the number of bytes.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn transfer(
        &self,
        fd: BorrowedFd<'_>,
        at: u64,
        len: usize,
        write: bool,
    ) -> io::Result<usize> {
        self.transfer_parts(fd, at, &[(0, len)], write)
    }

    /// Does [`Map::transfer`] with some parts in turn; each has an offset and a length.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn transfer_parts(
        &self,
        fd: BorrowedFd<'_>,
        at: u64,
        parts: &[(usize, usize)],
        write: bool,
    ) -> io::Result<usize> {
        let of = |(from, len): &(usize, usize)| libc::iovec {
            iov_base: self.at(*from, *len).cast(),
            iov_len: *len,
        };
        let parts: Vec<_> = parts.iter().map(of).collect();
        let (fd, at) = (fd.as_raw_fd(), at as libc::off_t);
        let (list, count) = (parts.as_ptr(), parts.len() as libc::c_int);
        let done = if write {
            // SAFETY: The mapping has these bytes, and stays for the call.
            unsafe { libc::pwritev(fd, list, count, at) }
        } else {
            // SAFETY: As above; bytes of the mapping have no meaning to us.
            unsafe { libc::preadv(fd, list, count, at) }
        };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    }

    /// Makes `madvise(2)` over the whole mapping.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn advise(&self, advice: i32) -> Result<(), Errno> {
        // SAFETY: Our own mapping; the advice keeps it mapped.
        let r = unsafe { libc::madvise(self.addr.cast(), self.len, advice) };
        check(i64::from(r)).map(|_| ())
    }

    /// Moves the mapping to another address (`mremap(2)`).
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn relocate(&mut self) -> Result<(), Errno> {
        let place = Self::mmap(
            self.len,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: Our own mapping, moved to a place that we own and that holds nothing; addresses
        // inside the old place exist only through `self`.
        let p = unsafe { libc::mremap(self.addr.cast(), self.len, self.len, flags, place.addr) };
        if p == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // The place is now part of `self`.
        std::mem::forget(place);
        self.addr = p.cast();
        Ok(())
    }

    /// Unmaps a part, which must not be accessed any more.
    ///
    /// # Errors
    ///
    /// The errno of `munmap(2)`.
    pub fn punch(&mut self, off: usize, len: usize) -> Result<(), Errno> {
        let p = self.at(off, len);
        // SAFETY: Our own mapping; the caller gives the part up.
        let r = unsafe { libc::munmap(p.cast(), len) };
        check(i64::from(r)).map(|_| ())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: Our own mapping, not used after this.
        unsafe { libc::munmap(self.addr.cast(), self.len) };
    }
}

/// Creates a file in memory.
///
/// # Errors
///
/// The errno of `memfd_create(2)`.
pub fn memfd(len: u64) -> io::Result<File> {
    // SAFETY: A valid string.
    let fd = unsafe { libc::memfd_create(c"kfi-tests".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let file = File::from(own_fd(fd));
    file.set_len(len)?;
    Ok(file)
}

/// Runs `f` in a forked child of a single-threaded process. Returns the child's process id.
///
/// The child exits with the value of `f` as its status.
///
/// # Errors
///
/// The errno of `fork(2)`.
pub fn fork(f: impl FnOnce() -> i32) -> Result<i32, Errno> {
    // SAFETY: The tests that fork have one thread, so the child finds every
    // lock free.
    let pid = check(i64::from(unsafe { libc::fork() }))? as i32;
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(101);
        // SAFETY: Ends the child without running the parent's destructors.
        unsafe { libc::_exit(code) };
    }
    Ok(pid)
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Exit with this status.
    Exit(i32),
    /// Death by this signal.
    Signal(i32),
}

/// Collects an exited child; `None`: the child still runs.
///
/// # Errors
///
/// The errno of `waitpid(2)`.
pub fn try_wait_pid(pid: i32) -> Result<Option<Ended>, Errno> {
    let mut status = 0;
    // SAFETY: A valid place for the status.
    let r = check(i64::from(unsafe {
        libc::waitpid(pid, &raw mut status, libc::WNOHANG)
    }));
    match r {
        Ok(0) | Err(Errno(libc::EINTR)) => Ok(None),
        Ok(_) if libc::WIFSIGNALED(status) => Ok(Some(Ended::Signal(libc::WTERMSIG(status)))),
        Ok(_) => Ok(Some(Ended::Exit(libc::WEXITSTATUS(status)))),
        Err(e) => Err(e),
    }
}

/// Waits for a child; `None`: the child still runs when time is up.
///
/// # Errors
///
/// The errno of `waitpid(2)`.
pub fn wait_pid(pid: i32, timeout: Duration) -> Result<Option<Ended>, Errno> {
    let end = Instant::now() + patience(timeout);
    loop {
        if let Some(ended) = try_wait_pid(pid)? {
            return Ok(Some(ended));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Opens a pidfd.
///
/// # Errors
///
/// The errno of `pidfd_open(2)`.
pub fn pidfd(pid: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: No memory is passed.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    Ok(own_fd(fd as RawFd))
}

/// Sends a signal to a process, or (negative) to a process group.
///
/// # Errors
///
/// The errno of `kill(2)`.
pub fn kill(pid: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: No memory is passed.
    check(i64::from(unsafe { libc::kill(pid, signal) })).map(|_| ())
}

/// Sets one of the process's limits, both soft and hard.
///
/// # Errors
///
/// The errno of `setrlimit(2)`.
pub fn set_limit(resource: libc::__rlimit_resource_t, value: u64) -> Result<(), Errno> {
    let limit = libc::rlimit {
        rlim_cur: value,
        rlim_max: value,
    };
    // SAFETY: A valid structure.
    check(i64::from(unsafe {
        libc::setrlimit(resource, &raw const limit)
    }))
    .map(|_| ())
}

/// Becomes user and group 65534 without capabilities.
///
/// # Errors
///
/// The errno of the failed call.
pub fn become_nobody() -> Result<(), Errno> {
    const NOBODY: u32 = 65534;
    // SAFETY: No memory is passed but an empty list.
    unsafe {
        check(i64::from(libc::setgroups(0, std::ptr::null())))?;
        check(i64::from(libc::setresgid(NOBODY, NOBODY, NOBODY)))?;
        check(i64::from(libc::setresuid(NOBODY, NOBODY, NOBODY)))?;
    }
    Ok(())
}

/// Moves the calling thread into a new, empty network namespace.
///
/// # Errors
///
/// The errno of `unshare(2)`.
pub fn unshare_net() -> Result<(), Errno> {
    // SAFETY: No memory is passed.
    check(i64::from(unsafe { libc::unshare(libc::CLONE_NEWNET) })).map(|_| ())
}

/// Moves the calling thread into another thread's or process's network namespace.
///
/// # Errors
///
/// The errno of `setns(2)`.
pub fn set_netns(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: No memory is passed.
    check(i64::from(unsafe {
        libc::setns(fd.as_raw_fd(), libc::CLONE_NEWNET)
    }))
    .map(|_| ())
}

/// Returns the calling thread's id, as in `/proc/self/task`.
pub fn thread_id() -> i32 {
    // SAFETY: No memory is passed.
    unsafe { libc::gettid() }
}

/// Makes this process die with its parent.
pub fn die_with_parent() {
    // SAFETY: No memory is passed.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Returns whether `exec` closes a descriptor.
///
/// # Errors
///
/// The errno of `fcntl(2)`.
pub fn is_cloexec(fd: impl AsFd) -> Result<bool, Errno> {
    // SAFETY: No memory is passed.
    let r = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_GETFD) };
    Ok(check(i64::from(r))? & i64::from(libc::FD_CLOEXEC) != 0)
}

/// Keeps a descriptor open over `exec`.
///
/// # Errors
///
/// The errno of `fcntl(2)`.
pub fn keep_over_exec(fd: impl AsFd) -> Result<(), Errno> {
    // SAFETY: No memory is passed.
    let r = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_SETFD, 0) };
    check(i64::from(r)).map(|_| ())
}

/// Sends one descriptor and one byte over a UNIX socket.
///
/// # Errors
///
/// The errno of `sendmsg(2)`.
pub fn send_fd(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut byte = 1u8;
    let mut iov = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let mut control = [0u64; 4];
    // SAFETY: All structures live through the call, the control buffer is
    // aligned and large enough for one descriptor.
    unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        msg.msg_iov = &raw mut iov;
        msg.msg_iovlen = 1;
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let c = libc::CMSG_FIRSTHDR(&raw const msg);
        (*c).cmsg_level = libc::SOL_SOCKET;
        (*c).cmsg_type = libc::SCM_RIGHTS;
        (*c).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(c)
            .cast::<i32>()
            .write_unaligned(fd.as_raw_fd());
        check(libc::sendmsg(socket.as_raw_fd(), &raw const msg, 0) as i64).map(|_| ())
    }
}

/// Receives one descriptor that [`send_fd`] sent.
///
/// # Errors
///
/// The errno of `recvmsg(2)`; `ENOENT` if no descriptor came.
pub fn recv_fd(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut byte = 0u8;
    let mut iov = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let mut control = [0u64; 4];
    // SAFETY: As in `send_fd`; a descriptor that came is ours.
    unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        msg.msg_iov = &raw mut iov;
        msg.msg_iovlen = 1;
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = std::mem::size_of_val(&control);
        check(libc::recvmsg(socket.as_raw_fd(), &raw mut msg, libc::MSG_CMSG_CLOEXEC) as i64)?;
        let c = libc::CMSG_FIRSTHDR(&raw const msg);
        if c.is_null() || (*c).cmsg_type != libc::SCM_RIGHTS {
            return Err(Errno(libc::ENOENT));
        }
        Ok(own_fd(libc::CMSG_DATA(c).cast::<i32>().read_unaligned()))
    }
}

/// Loads a module from a file.
///
/// # Errors
///
/// The errno of `finit_module(2)`.
pub fn load_module(file: &File, params: &str) -> Result<(), Errno> {
    let params = std::ffi::CString::new(params).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: A valid descriptor and string.
    let r = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), params.as_ptr(), 0) };
    check(r).map(|_| ())
}

/// Creates a node of a character device.
///
/// # Errors
///
/// The errno of `mknod(2)`.
pub fn make_char_node(path: &str, major: u32, minor: u32) -> Result<(), Errno> {
    let path = std::ffi::CString::new(path).map_err(|_| Errno(libc::EINVAL))?;
    let device = libc::makedev(major, minor);
    // SAFETY: A valid string.
    let r = unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o600, device) };
    check(i64::from(r)).map(|_| ())
}

/// Unloads a module without waiting for its users.
///
/// # Errors
///
/// The errno of `delete_module(2)`: `EWOULDBLOCK` or `EBUSY` while it is in use.
pub fn unload_module(name: &str) -> Result<(), Errno> {
    let name = std::ffi::CString::new(name).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: A valid string.
    let r = unsafe { libc::syscall(libc::SYS_delete_module, name.as_ptr(), libc::O_NONBLOCK) };
    check(r).map(|_| ())
}

/// Returns the nanoseconds of `CLOCK_MONOTONIC`, the clock of the interface's deadlines.
pub fn monotonic_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: A valid place for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
