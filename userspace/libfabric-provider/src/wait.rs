// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wait objects of queues and counters: descriptors, and waiting for them.

use std::ffi::{c_int, c_void};
use std::io::Error;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Errno, Ours};
use crate::ffi::{
    fi_wait_obj, FI_GETWAIT, FI_GETWAITOBJ, FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_YIELD,
};

/// The kind of wait object that an object has.
#[derive(Clone, Copy)]
pub(crate) struct Wait(fi_wait_obj);

impl Wait {
    /// Returns the wait object for the one that the program asks for. `ENOSYS` for sets and for
    /// mutexes with conditions.
    pub(crate) fn new(asked: fi_wait_obj) -> Result<Self, Errno> {
        match asked {
            FI_WAIT_UNSPEC => Ok(Self(FI_WAIT_FD)),
            FI_WAIT_NONE | FI_WAIT_FD | FI_WAIT_YIELD => Ok(Self(asked)),
            _ => Err(libc::ENOSYS),
        }
    }

    /// The wait object of an object without a descriptor, unless the program asks for one.
    pub(crate) fn without_fd(asked: fi_wait_obj) -> Result<Self, Errno> {
        match asked {
            FI_WAIT_UNSPEC => Ok(Self(FI_WAIT_UNSPEC)),
            asked => Self::new(asked),
        }
    }

    /// Whether the program may have the descriptor.
    pub(crate) fn is_fd(self) -> bool {
        self.0 == FI_WAIT_FD
    }

    /// Answers `fi_control`.
    ///
    /// # Safety
    ///
    /// `arg` points to an argument of the command.
    pub(crate) unsafe fn control(
        self,
        command: c_int,
        arg: *mut c_void,
        fd: Option<BorrowedFd<'_>>,
    ) -> c_int {
        match (command as u32, fd) {
            // SAFETY: as the caller vouches.
            (FI_GETWAIT, Some(fd)) if self.is_fd() => unsafe {
                *arg.cast::<c_int>() = fd.as_raw_fd();
            },
            (FI_GETWAIT, _) => return -libc::ENODATA,
            // SAFETY: as the caller vouches.
            (FI_GETWAITOBJ, _) => unsafe { *arg.cast::<fi_wait_obj>() = self.0 },
            _ => return -libc::ENOSYS,
        }
        0
    }
}

/// Takes ownership of a descriptor that a call returned.
fn own(fd: c_int) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Error::last_os_error()).ours();
    }
    // SAFETY: the kernel made the descriptor for this call, whose caller takes it once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An eventfd that is readable while it is raised.
pub(crate) struct Flag(pub(crate) OwnedFd);

impl Flag {
    /// Makes a flag that is not raised.
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: no pointers.
        own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).map(Self)
    }

    /// Makes the descriptor readable.
    pub(crate) fn raise(&self) {
        let one = 1u64;
        // SAFETY: eight bytes to read from. A full counter is readable already.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Lowers the flag. Returns whether it was raised.
    pub(crate) fn lower(&self) -> bool {
        let mut count = 0u64;
        // SAFETY: eight bytes to write to.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) == 8 }
    }
}

/// The state of `fi_cq_signal`, which wakes all threads that wait at the time, or else the next wait;
/// and a program that polls the queue's descriptor.
pub(crate) struct Signal {
    /// Raised while a waiter that a signal has reached still waits, or a signal met no waiter.
    flag: Flag,
    /// Raised by a signal, lowered by [`Signal::take`] alone: waiters that lower [`Signal::flag`] are
    /// faster than a thread that polls.
    polled: Flag,
    state: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    count: usize,
    /// Number of waiters that a signal has reached, and that have not ended their wait.
    woken: usize,
    /// Number of signals.
    signals: u64,
    /// Whether the last signal met no waiter, and the next wait takes it.
    pending: bool,
    /// Whether the program has the descriptor.
    is_polled: bool,
    /// Whether [`Signal::polled`] is raised.
    is_shown: bool,
}

/// A thread that waits. Signals from its begin on are for this thread, too.
pub(crate) struct Waiter<'a> {
    of: &'a Signal,
    seen: u64,
}

impl Signal {
    /// Makes an object without a signal.
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self {
            flag: Flag::new()?,
            polled: Flag::new()?,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, Waiters> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all threads that wait; the next one if none waits.
    pub(crate) fn raise(&self) {
        let mut state = self.state();
        state.signals += 1;
        state.woken = state.count;
        state.pending = state.count == 0;
        self.flag.raise();
        self.show(&mut state);
    }

    /// Makes the program's descriptor readable, if the program has one.
    fn show(&self, state: &mut Waiters) {
        if state.is_polled && !state.is_shown {
            state.is_shown = true;
            self.polled.raise();
        }
    }

    /// Returns a descriptor for the program: readable from a signal on until [`Signal::take`].
    pub(crate) fn poll(&self) -> BorrowedFd<'_> {
        let mut state = self.state();
        state.is_polled = true;
        if state.pending {
            self.show(&mut state);
        }
        self.polled.0.as_fd()
    }

    /// Begins a wait, which takes a signal that met no waiter.
    pub(crate) fn wait(&self) -> Waiter<'_> {
        let mut state = self.state();
        state.count += 1;
        let taken = std::mem::take(&mut state.pending);
        state.woken += usize::from(taken);
        Waiter {
            of: self,
            seen: state.signals - u64::from(taken),
        }
    }

    /// Takes a signal that met no waiter, or that the descriptor shows. Returns whether there was one.
    pub(crate) fn take(&self) -> bool {
        let mut state = self.state();
        let taken = std::mem::take(&mut state.pending);
        if taken {
            self.flag.lower();
        }
        let shown = std::mem::take(&mut state.is_shown);
        if shown {
            self.polled.lower();
        }
        taken || shown
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.flag.0.as_fd()
    }
}

impl Waiter<'_> {
    /// Returns whether there was a signal for this thread.
    pub(crate) fn is_signaled(&self) -> bool {
        self.of.state().signals != self.seen
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.count -= 1;
        if state.signals == self.seen {
            return;
        }
        state.woken -= 1;
        if state.woken == 0 {
            self.of.flag.lower();
        }
    }
}

/// Makes an epoll descriptor that is readable when one of two descriptors is.
pub(crate) fn either(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers.
    let both = own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    for fd in [a, b] {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        let (set, fd) = (both.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: two open descriptors and a valid event.
        if unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) } < 0 {
            return Err(Error::last_os_error()).ours();
        }
    }
    Ok(both)
}

/// The time that a program gives a call.
pub(crate) struct Timeout(Option<Instant>);

impl Timeout {
    /// A number of milliseconds from now; for ever if negative.
    pub(crate) fn new(ms: c_int) -> Self {
        let ms = u64::try_from(ms).ok();
        Self(ms.map(|ms| Instant::now() + Duration::from_millis(ms)))
    }

    /// Returns whether no time is left.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_some_and(|end| end <= Instant::now())
    }

    /// Waits until one of two descriptors is readable. Returns false if no time is left; else the
    /// caller looks again, whatever the outcome. A signal handler that runs meanwhile ends the time, as
    /// `fi_cq(3)` and `fi_eq(3)` demand.
    pub(crate) fn wait(&mut self, a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
        let left = self
            .0
            .map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return false;
        }
        let ms = left.map_or(-1, |left| {
            let ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
            ms.saturating_add(1)
        });
        let mut fds = [a, b].map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: an array of two entries.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, ms) };
        if ready < 0 && Error::last_os_error().raw_os_error() == Some(libc::EINTR) {
            self.0 = Some(Instant::now());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(fd: BorrowedFd<'_>) -> bool {
        let mut fd = libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: an array of one entry.
        unsafe { libc::poll(&raw mut fd, 1, 0) == 1 }
    }

    #[test]
    fn signal_reaches_all_waiters_and_no_later_one() {
        let signal = Signal::new().expect("a descriptor");
        let (one, two) = (signal.wait(), signal.wait());
        assert!(!one.is_signaled() && !is_readable(signal.as_fd()));
        signal.raise();
        assert!(one.is_signaled() && is_readable(signal.as_fd()));
        drop(one);
        assert!(two.is_signaled() && is_readable(signal.as_fd()));
        let later = signal.wait();
        drop(two);
        assert!(!later.is_signaled() && !is_readable(signal.as_fd()));
        drop(later);
        assert!(!is_readable(signal.as_fd()) && !signal.take());
    }

    #[test]
    fn signal_without_waiter_is_taken_once() {
        let signal = Signal::new().expect("a descriptor");
        signal.raise();
        signal.raise();
        assert!(is_readable(signal.as_fd()));
        assert!(signal.wait().is_signaled());
        assert!(!signal.wait().is_signaled() && !is_readable(signal.as_fd()));
        signal.raise();
        assert!(signal.take() && !signal.take());
        assert!(!is_readable(signal.as_fd()));
    }

    #[test]
    fn signal_that_waiters_have_taken_is_shown_to_a_poller() {
        let signal = Signal::new().expect("a descriptor");
        // A signal before the program asks for the descriptor.
        signal.raise();
        assert!(is_readable(signal.poll()) && signal.take());
        assert!(!is_readable(signal.poll()) && !signal.take());
        let waiter = signal.wait();
        signal.raise();
        assert!(waiter.is_signaled());
        drop(waiter);
        assert!(!is_readable(signal.as_fd()) && is_readable(signal.poll()));
        assert!(!signal.wait().is_signaled());
        assert!(signal.take() && !signal.take() && !is_readable(signal.poll()));
    }
}
