// SPDX-License-Identifier: MIT OR Apache-2.0

//! The fuzzer's system calls, and the memory that its programs use. All its `unsafe` is here and in
//! [`kcov`](super::kcov).

use super::shape::Area;
use crate::sys::{self, Errno};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Makes a system call by its number.
///
/// The arguments come from a program: numbers, and addresses that point into the program's own
/// memory, to unmapped memory, or to the kernel. Calls made through this function neither map over
/// memory nor close descriptors that are not a program's.
///
/// # Errors
///
/// The call's errno.
pub fn call(nr: libc::c_long, args: [u64; 6]) -> Result<u64, Errno> {
    let [a, b, c, d, e, f] = args;
    // SAFETY: See above: the kernel checks addresses, and may write only to a program's memory.
    let r = unsafe { libc::syscall(nr, a, b, c, d, e, f) };
    if r < 0 {
        return Err(Errno::last());
    }
    Ok(r as u64)
}

fn map(at: u64, len: usize, prot: i32, flags: i32, fd: i32, off: u64) -> Result<u64, Errno> {
    let args = [
        at,
        len as u64,
        prot as u64,
        flags as u64,
        i64::from(fd) as u64,
        off,
    ];
    call(libc::SYS_mmap, args)
}

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The memory that programs point into.
///
/// All but the private pages is a file, mapped twice. Programs get addresses of the view, in which
/// some pages are missing or read-only. The fuzzer itself reads and writes through the other
/// mapping, which is always complete.
pub struct Arena {
    file: std::fs::File,
    view: u64,
    alias: u64,
}

/// Returns the first page of an area.
fn start(area: Area) -> usize {
    let before = Area::ALL.iter().take_while(|other| **other != area);
    before.map(|other| other.pages() * PAGE).sum()
}

/// Returns the number of bytes of the file's areas.
fn shared() -> usize {
    start(Area::Play)
}

impl Arena {
    /// Maps the memory.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn new() -> std::io::Result<Self> {
        let to_io = |e: Errno| std::io::Error::from_raw_os_error(e.0);
        let file = sys::memfd(shared() as u64)?;
        let total = shared() + Area::Play.pages() * PAGE;
        let view = map(
            0,
            total,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        let alias = map(0, shared(), RW, libc::MAP_SHARED, file.as_raw_fd(), 0);
        let arena = Self {
            file,
            view: view.map_err(to_io)?,
            alias: alias.map_err(to_io)?,
        };
        arena.reset().map_err(to_io)?;
        Ok(arena)
    }

    /// Restores every page, filled with zeroes.
    ///
    /// # Errors
    ///
    /// The errno of `mmap(2)`.
    pub fn reset(&self) -> Result<(), Errno> {
        for area in Area::ALL {
            let (prot, flags, fd) = match area {
                Area::Play => (RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
                Area::Hole => (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
                Area::Ro => (libc::PROT_READ, libc::MAP_SHARED, self.file.as_raw_fd()),
                _ => (RW, libc::MAP_SHARED, self.file.as_raw_fd()),
            };
            let off = if fd < 0 { 0 } else { start(area) as u64 };
            let at = self.view + start(area) as u64;
            map(
                at,
                area.pages() * PAGE,
                prot,
                flags | libc::MAP_FIXED,
                fd,
                off,
            )?;
        }
        self.fill(0, shared(), 0);
        Ok(())
    }

    /// Returns the address of a byte of an area, or of the byte behind it, in the programs' view.
    pub fn addr(&self, area: Area, off: u32) -> u64 {
        self.view + start(area) as u64 + u64::from(off)
    }

    /// Returns the part of the file behind `len` bytes at an address, cut at the file's end.
    fn within(&self, addr: u64, len: usize) -> Option<(usize, usize)> {
        let at = usize::try_from(addr.checked_sub(self.view)?).ok()?;
        (at < shared()).then(|| (at, len.min(shared() - at)))
    }

    /// Returns whether a program may map `pages` pages from `addr` on anew.
    pub fn is_play(&self, addr: u64, pages: u64) -> bool {
        let first = self.addr(Area::Shm, 0);
        let end = self.addr(Area::Play, 0) + (Area::Play.pages() * PAGE) as u64;
        addr >= first && addr < end && pages <= (end - addr) / PAGE as u64
    }

    fn fill(&self, at: usize, len: usize, byte: u8) {
        // SAFETY: In the second mapping, which is always there and never a Rust object.
        unsafe { std::ptr::write_bytes((self.alias as usize + at) as *mut u8, byte, len) };
    }

    /// Writes the part of `bytes` that has a place at a program's address.
    pub fn write(&self, addr: u64, bytes: &[u8]) {
        if let Some((at, len)) = self.within(addr, bytes.len()) {
            let to = (self.alias as usize + at) as *mut u8;
            // SAFETY: As in `fill`; racing accesses are a program's own.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, len) };
        }
    }

    /// Reads from a program's address; zeroes for bytes that are not in the file.
    pub fn read(&self, addr: u64, out: &mut [u8]) {
        if let Some((at, len)) = self.within(addr, out.len()) {
            let from = (self.alias as usize + at) as *const u8;
            // SAFETY: As `fill`.
            unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), len) };
        }
    }

    /// Writes two values in turn to a word, so that another thread's call sees one or the other.
    pub fn flip(&self, addr: u64, value: u64, times: u64) {
        let Some((at, 8)) = self.within(addr & !7, 8) else {
            return;
        };
        let word = (self.alias as usize + at) as *mut u64;
        // SAFETY: As `fill`, and aligned.
        let old = unsafe { word.read_volatile() };
        for n in 0..times {
            let now = if n % 2 == 0 { value } else { old };
            // SAFETY: As above.
            unsafe { word.write_volatile(now) };
            std::thread::yield_now();
        }
        // SAFETY: As above.
        unsafe { word.write_volatile(old) };
    }
}

/// Writes four bytes of this process's memory. Returns false if they are not mapped.
pub fn poke(addr: u64, value: u32) -> bool {
    let mut value = value;
    transfer(addr, &mut value, true)
}

/// Reads four bytes of this process's memory, if they are mapped.
pub fn peek(addr: u64) -> Option<u32> {
    let mut value = 0;
    transfer(addr, &mut value, false).then_some(value)
}

fn transfer(addr: u64, value: &mut u32, write: bool) -> bool {
    let local = libc::iovec {
        iov_base: std::ptr::from_mut(value).cast(),
        iov_len: 4,
    };
    let remote = libc::iovec {
        iov_base: addr as *mut libc::c_void,
        iov_len: 4,
    };
    // SAFETY: One piece on each side. Programs write to rings alone, at addresses that `mmap` gave
    // them; whether those are still mapped the kernel finds out.
    let moved = unsafe {
        let pid = libc::getpid();
        if write {
            libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0)
        } else {
            libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0)
        }
    };
    moved == 4
}

/// Makes one `poll(2)`. Returns the events, also after a signal or a timeout.
pub fn poll(fd: i32, events: i16, ms: i32) -> i16 {
    let mut one = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: One valid structure.
    unsafe { libc::poll(&raw mut one, 1, ms) };
    one.revents
}

/// Waits once on a new set with one descriptor.
///
/// # Errors
///
/// The errno of the failed call.
pub fn epoll(fd: i32, events: u32, ms: i32) -> Result<i32, Errno> {
    let set = call(
        libc::SYS_epoll_create1,
        [libc::EPOLL_CLOEXEC as u64, 0, 0, 0, 0, 0],
    )? as i32;
    let mut event = libc::epoll_event { events, u64: 1 };
    // SAFETY: One valid structure for each call.
    unsafe {
        libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event);
        libc::epoll_wait(set, &raw mut event, 1, ms);
    }
    Ok(set)
}

/// Forks. The child runs `f`, which makes system calls only, and exits; the parent waits for it.
///
/// # Errors
///
/// The errno of `fork(2)`.
pub fn fork(f: impl FnOnce()) -> Result<(), Errno> {
    // SAFETY: The child of a process with threads makes system calls alone, and ends.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Errno::last());
    }
    if pid == 0 {
        f();
        // SAFETY: Ends the child without running the parent's destructors.
        unsafe { libc::_exit(0) };
    }
    let patience = Duration::from_secs(2);
    if sys::wait_pid(pid, patience)?.is_none() {
        sys::kill(pid, libc::SIGKILL)?;
        let long = Instant::now() + Duration::from_secs(60);
        while sys::wait_pid(pid, patience)?.is_none() && Instant::now() < long {}
    }
    Ok(())
}

/// Makes `SIGUSR1` interrupt calls and do nothing else.
pub fn catch_nudges() {
    extern "C" fn nothing(_: i32) {}
    let handler = nothing as extern "C" fn(i32);
    // SAFETY: A valid structure; the handler touches nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
}

/// Returns the calling thread's id.
pub fn thread_id() -> u64 {
    call(libc::SYS_gettid, [0; 6]).unwrap_or(0)
}

/// Interrupts the call in which a thread of this process waits.
pub fn nudge(thread: u64) {
    let pid = u64::from(std::process::id());
    let _ = call(
        libc::SYS_tgkill,
        [pid, thread, libc::SIGUSR1 as u64, 0, 0, 0],
    );
}

/// Limits the number of open descriptors from now on.
pub fn limit_files(count: u64) {
    limit(libc::RLIMIT_NOFILE, count);
}

/// Limits the bytes that an unprivileged user may pin from now on.
pub fn limit_pinned(bytes: u64) {
    limit(libc::RLIMIT_MEMLOCK, bytes);
}

fn limit(what: libc::__rlimit_resource_t, value: u64) {
    // SAFETY: Valid structures.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        // Injected copy failures hit this call too; then the limit is unknown.
        if libc::getrlimit(what, &raw mut limit) != 0 {
            return;
        }
        limit.rlim_cur = value.min(limit.rlim_max);
        libc::setrlimit(what, &raw const limit);
    }
}

/// Returns the lowest free descriptor.
pub fn free_fd() -> i32 {
    // SAFETY: The only memory passed is a valid string; the opened descriptor is closed.
    unsafe {
        let fd = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        libc::close(fd);
        fd
    }
}

/// Drops the calling thread's privileges, or restores them.
pub fn become_nobody(nobody: bool) {
    const KEEP: u64 = u32::MAX as u64;
    let user = if nobody { 65534 } else { 0 };
    // The system call changes the calling thread alone; the library's function changes all threads.
    let _ = call(libc::SYS_setresuid, [KEEP, user, KEEP, 0, 0, 0]);
}
