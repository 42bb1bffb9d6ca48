// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues.
#![forbid(unsafe_code)]

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use kfabric_uapi as abi;

use crate::domain::inner::DomainInner;
use crate::errno::Errno;
use crate::error::{Error, Result, Returned};
use crate::failure::CompError;
use crate::flags::{CompFlags, Format};
use crate::handle::{debug_by_handle, Handle};
use crate::object::{Kind, ObjectId};
use crate::rings::queue::{CqInner, Queue, Waiting};
use crate::sys::{self, Deadline, Ring, Verdict};

/// A completion queue (`fi_cq(3)`). Its entries are read from shared memory.
pub struct CompletionQueue {
    pub(crate) inner: Arc<CqInner>,
}

impl CompletionQueue {
    pub(crate) fn open(domain: &Arc<DomainInner>, depth: u32, format: Format) -> Result<Self> {
        let dev = &domain.handle.dev;
        let parent = domain.handle.id;
        let mut arg: abi::CqOpen = sys::new();
        arg.domain = domain.handle.raw();
        arg.depth = depth;
        arg.format = format.to_abi();
        dev.call(parent, &mut arg, &mut [])?;
        let handle = Handle::new(dev, Kind::CompletionQueue, arg.handle);
        let fd = dev.take_fd("CQ_OPEN", parent, arg.fd)?;
        let len = usize::try_from(arg.map_size).unwrap_or(0);
        let map = dev.backend.map(fd.as_fd(), len);
        let map = map.map_err(|errno| Error::Call {
            call: "mmap",
            object: handle.id,
            errno,
        })?;
        let ring = Ring::new(map).ok_or(Error::Ring(handle.id))?;
        Ok(Self {
            inner: Arc::new(CqInner {
                handle,
                ring,
                format,
                direct: Queue::default(),
                fd,
                _domain: domain.clone(),
            }),
        })
    }

    /// The queue's name in error messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.inner.handle.id
    }

    /// Number of entries that the queue holds.
    pub fn capacity(&self) -> u32 {
        self.inner.ring.capacity()
    }

    /// Takes as many completions as are ready and fit in `to`, without a system call. Any number of
    /// threads may read at once; each completion is returned once.
    ///
    /// # Errors
    ///
    /// - [`Error::Ring`] if the shared memory is corrupt.
    pub fn read(&self, to: &mut [Completion]) -> Result<usize> {
        self.fill(sys::entries(to))
    }

    /// Takes as many successful completions as are ready and fit in `to`, without a system call, and
    /// stops before the first failure (`fi_cq_read(3)`, which returns `-FI_EAVAIL` for
    /// [`Taken::failed`] without completions). [`CompletionQueue::read_failure`] takes the failure.
    ///
    /// # Errors
    ///
    /// - [`Error::Ring`] if the shared memory is corrupt.
    pub fn read_successes(&self, to: &mut [Completion]) -> Result<Taken> {
        let judge = |entry: &abi::CqEntry| match entry.err {
            0 => Verdict::Take,
            _ => Verdict::Stop,
        };
        self.take_each(to.len(), judge, |at, entry| to[at].raw = *entry)
    }

    /// As [`CompletionQueue::read_successes`] for up to `max` completions, and drops failures with the
    /// context `ignored`. Calls `each` with the number of each completion, counted from 0, and the
    /// completion's entry. If another thread is faster, `each` is called again from number 0 on, so the
    /// last call with a number counts.
    ///
    /// [`Taken::failed`] is never the result of an ignored failure, also if other threads read the
    /// queue at the same time.
    ///
    /// # Errors
    ///
    /// - [`Error::Ring`] if the shared memory is corrupt.
    #[inline]
    pub fn read_successes_except(
        &self,
        max: usize,
        ignored: u64,
        each: impl FnMut(usize, &abi::CqEntry),
    ) -> Result<Taken> {
        let judge = |entry: &abi::CqEntry| match entry.err {
            0 => Verdict::Take,
            _ if entry.context == ignored => Verdict::Drop,
            _ => Verdict::Stop,
        };
        self.take_each(max, judge, each)
    }

    /// Takes the next completion if it is a failure (`fi_cq_readerr(3)`). `None` if no completion is
    /// ready, or the next one is a success.
    ///
    /// # Errors
    ///
    /// - [`Error::Ring`] if the shared memory is corrupt.
    pub fn read_failure(&self) -> Result<Option<Completion>> {
        self.take_failure(|_| true)
    }

    /// Takes the next completion if it is a failure with this context, and returns whether it was
    /// one. For operations whose failures the program ignores.
    ///
    /// # Errors
    ///
    /// - [`Error::Ring`] if the shared memory is corrupt.
    pub fn skip_failure(&self, context: u64) -> Result<bool> {
        let taken = self.take_failure(|entry| entry.context == context)?;
        Ok(taken.is_some())
    }

    /// Takes the next completion if it is a failure that is `wanted`.
    fn take_failure(&self, wanted: impl Fn(&abi::CqEntry) -> bool) -> Result<Option<Completion>> {
        let judge = |entry: &abi::CqEntry| match entry.err != 0 && wanted(entry) {
            true => Verdict::Take,
            false => Verdict::Stop,
        };
        let mut one = Completion::default();
        let taken = self.take_each(1, judge, |_, entry| one.raw = *entry)?;
        Ok((taken.count == 1).then_some(one))
    }

    #[inline]
    fn take_each(
        &self,
        max: usize,
        judge: impl Fn(&abi::CqEntry) -> Verdict,
        each: impl FnMut(usize, &abi::CqEntry),
    ) -> Result<Taken> {
        let taken = match self.inner.direct.is_used() {
            true => self.inner.read_each(max, judge, each),
            false => self.inner.ring.take_each(max, judge, each),
        };
        let (count, failed) = taken.ok_or_else(|| Error::Ring(self.id()))?;
        Ok(Taken { count, failed })
    }

    /// Takes one completion if one is ready.
    ///
    /// # Errors
    ///
    /// - [`Error::Ring`] if the shared memory is corrupt.
    pub fn read_one(&self) -> Result<Option<Completion>> {
        let mut one = [abi::CqEntry::default()];
        let n = self.fill(&mut one)?;
        Ok((n == 1).then_some(Completion { raw: one[0] }))
    }

    fn fill(&self, to: &mut [abi::CqEntry]) -> Result<usize> {
        let n = match self.inner.direct.is_used() {
            true => self.inner.read(to),
            false => self.inner.ring.take(to),
        };
        n.ok_or_else(|| Error::Ring(self.id()))
    }

    /// Returns whether a completion can be read.
    pub fn is_ready(&self) -> bool {
        if !self.inner.direct.is_used() {
            return self.inner.ring.waiting();
        }
        if !self.inner.shows_entries() {
            self.inner.progress();
        }
        self.inner.shows_entries()
    }

    /// Moves messages of the queue's endpoints with rings, and reads no completion.
    pub fn progress(&self) {
        if self.inner.direct.is_used() {
            self.inner.progress();
        }
    }

    /// Returns whether the program may wait for the descriptor ([`AsFd`]) now (`fi_trywait(3)`). If
    /// the result is false, the program reads the queue first.
    ///
    /// Needed with endpoints that may have rings
    /// ([`EndpointAttr::rings`](crate::EndpointAttr::rings)): the kernel does not know of
    /// completions that rings make. Call it before each wait, after reading all entries.
    pub fn try_wait(&self) -> bool {
        // First, because an endpoint with rings may be bound meanwhile.
        self.inner.direct.set_outside();
        if !self.inner.direct.is_used() {
            return !self.inner.ring.waiting();
        }
        self.inner.arm()
    }

    /// Prepares a wait for the descriptor ([`AsFd`]) together with others. Returns `None` if the
    /// caller reads the queue first. Otherwise the caller may wait until it drops the result.
    pub fn begin_wait(&self) -> Option<QueueWait<'_>> {
        // First, because an endpoint with rings may be bound meanwhile.
        let waiting = self.inner.direct.enter();
        let may = match self.inner.direct.is_used() {
            true => self.inner.arm(),
            false => !self.inner.ring.waiting(),
        };
        may.then_some(QueueWait { _waiting: waiting })
    }

    /// Waits until a completion can be read. Returns `false` if the timeout expires first.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if `poll` fails.
    pub fn wait_ready(&self, timeout: Duration) -> Result<bool> {
        if self.inner.direct.is_used() {
            return self.wait_direct(timeout);
        }
        if self.is_ready() {
            return Ok(true);
        }
        self.poll(timeout)
    }

    /// [`CompletionQueue::wait_ready`] for a queue with ring endpoints, whose descriptor does not
    /// show every completion.
    fn wait_direct(&self, timeout: Duration) -> Result<bool> {
        let deadline = Deadline::after(timeout);
        loop {
            if self.is_ready() {
                return Ok(true);
            }
            let waiting = self.inner.direct.enter();
            let left = deadline.left();
            let over = self.inner.arm() && !self.poll(left)?;
            // The timeout also ends the wait of a thread that keeps finding work for other threads.
            if over || left.is_zero() {
                drop(waiting);
                return Ok(self.is_ready());
            }
        }
    }

    fn poll(&self, timeout: Duration) -> Result<bool> {
        let backend = &self.inner.handle.dev.backend;
        let there = backend.wait(self.inner.fd.as_fd(), timeout);
        there.map_err(|errno| Error::Call {
            call: "poll",
            object: self.id(),
            errno,
        })
    }

    /// Takes one completion; waits for one if none is ready.
    ///
    /// # Errors
    ///
    /// - [`Error::Timeout`] if no completion comes in time.
    /// - [`Error::Call`] if `poll` fails.
    /// - [`Error::Ring`] if the shared memory is corrupt.
    ///
    /// The failure of an operation is not an error of this call: see [`Completion::ok`].
    pub fn wait(&self, timeout: Duration) -> Result<Completion> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(completion) = self.read_one()? {
                return Ok(completion);
            }
            let left = deadline.left();
            let ready = self.wait_ready(left)?;
            if left.is_zero() {
                // `wait_ready` may have taken a message whose alarm was meant for another waiter.
                if let Some(completion) = self.read_one()? {
                    return Ok(completion);
                }
            }
            // A readable descriptor does not always mean that there is an entry.
            if !ready || left.is_zero() {
                return Err(Error::Timeout {
                    what: "waiting for a completion",
                    after: timeout,
                });
            }
        }
    }

    /// Closes the queue. On failure the queue is returned in [`Returned`].
    ///
    /// # Errors
    ///
    /// - `EBUSY` while an endpoint uses the queue.
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        Returned::on_error(self.inner.handle.close(), self)
    }
}

impl AsFd for CompletionQueue {
    /// Readable while a completion can be read; see also [`CompletionQueue::try_wait`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

debug_by_handle!(CompletionQueue, inner.handle);

/// A wait for the descriptor of a completion queue ([`CompletionQueue::begin_wait`]).
pub struct QueueWait<'a> {
    _waiting: Waiting<'a>,
}

/// The outcome of [`CompletionQueue::read_successes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Number of completions.
    pub count: usize,
    /// Whether the next completion is a failure.
    pub failed: bool,
}

/// One completion: the outcome of one operation.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Completion {
    raw: abi::CqEntry,
}

impl Completion {
    /// The context that the operation was posted with.
    pub fn context(&self) -> u64 {
        self.raw.context
    }

    /// The kind of operation. Zero in format `Context`.
    pub fn flags(&self) -> CompFlags {
        CompFlags::from_bits_retain(self.raw.flags)
    }

    /// Bytes received or moved. Zero in format `Context`.
    pub fn len(&self) -> u64 {
        self.raw.len
    }

    /// Returns whether no byte was received or moved.
    pub fn is_empty(&self) -> bool {
        self.raw.len == 0
    }

    /// Offset of a receive's first byte in its region. Only in format `Data`.
    pub fn offset(&self) -> u64 {
        self.raw.buf
    }

    /// The peer's completion data, if the peer sent any. Only in format `Data`.
    pub fn data(&self) -> Option<u64> {
        self.flags()
            .contains(CompFlags::REMOTE_CQ_DATA)
            .then_some(self.raw.data)
    }

    /// Handle of the endpoint that the operation was posted on.
    pub fn endpoint(&self) -> u64 {
        self.raw.ep
    }

    /// The failure, if the operation failed (`fi_cq_readerr`).
    #[inline]
    pub fn error(&self) -> Option<CompError> {
        (self.raw.err != 0).then(|| CompError {
            errno: Errno(i32::try_from(self.raw.err).unwrap_or(libc::EIO)),
            prov_errno: self.raw.prov_errno,
            context: self.raw.context,
            endpoint: self.raw.ep,
            flags: self.flags(),
            olen: self.raw.olen,
        })
    }

    /// Returns the completion if the operation succeeded.
    ///
    /// # Errors
    ///
    /// - [`Error::Completion`] if the operation failed.
    #[inline]
    pub fn ok(self) -> Result<Self> {
        match self.error() {
            None => Ok(self),
            Some(error) => Err(error.into()),
        }
    }

    /// The entry as the kernel wrote it.
    pub fn raw(&self) -> &abi::CqEntry {
        &self.raw
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut s = f.debug_struct("Completion");
        s.field("context", &self.context())
            .field("flags", &self.flags())
            .field("len", &self.len());
        if let Some(data) = self.data() {
            s.field("data", &data);
        }
        if let Some(error) = self.error() {
            s.field("errno", &error.errno)
                .field("prov_errno", &error.prov_errno);
        }
        s.finish()
    }
}
