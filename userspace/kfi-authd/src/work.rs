// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slow work on other threads: requests of the socket, reading a policy, and revising answers for a
//! new one.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;

/// Starts one thread per piece of work, and collects the results.
///
/// The caller limits the number of threads.
#[derive(Debug)]
pub(crate) struct Work<T> {
    done: Receiver<T>,
    tell: Sender<T>,
    /// Readable when a result is ready.
    woken: UnixStream,
    wake: Arc<UnixStream>,
}

impl<T: Send + 'static> Work<T> {
    /// Makes an empty collection.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    pub(crate) fn new() -> io::Result<Self> {
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let (tell, done) = channel();
        Ok(Self {
            done,
            tell,
            woken,
            wake: Arc::new(wake),
        })
    }

    /// Runs `work` on a new thread. If `work` panics, its result is `failed`.
    ///
    /// # Errors
    ///
    /// If the system cannot start a thread.
    pub(crate) fn start(
        &self,
        failed: T,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<()> {
        let (tell, wake) = (self.tell.clone(), self.wake.clone());
        let run = move || {
            let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or(failed);
            let _ = tell.send(done);
            // If the pipe is full, it wakes the loop as well.
            let _ = (&*wake).write(&[1]);
        };
        std::thread::Builder::new().spawn(run).map(drop)
    }

    /// Takes a result, if one is ready.
    pub(crate) fn next(&mut self) -> Option<T> {
        let mut bytes = [0; 64];
        // Drains the pipe before looking: a later result makes it readable again.
        while matches!(self.woken.read(&mut bytes), Ok(n) if n == bytes.len()) {}
        self.done.try_recv().ok()
    }
}

impl<T> AsFd for Work<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

    #[test]
    fn work_done_or_panicked_wakes_the_loop() {
        let mut work = Work::new().unwrap();
        work.start(0, || 7).unwrap();
        work.start(8, || panic!("a worker's end")).unwrap();
        let mut done = Vec::new();
        while done.len() < 2 {
            let mut fds = [PollFd::new(work.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::NONE).unwrap();
            while let Some(one) = work.next() {
                done.push(one);
            }
        }
        done.sort_unstable();
        assert_eq!(done, [7, 8]);
    }
}
