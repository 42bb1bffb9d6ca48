// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues.
#![forbid(unsafe_code)]

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use kfabric_uapi as abi;
use zerocopy::FromZeros;

use crate::errno::Errno;
use crate::error::{Error, ObjectId, Result, Returned};
use crate::fabric::DomainInner;
use crate::flags::{CompFlags, Format};
use crate::object::{Handle, Kind};
use crate::rings::Queue;
use crate::sys::{self, Deadline, Ring};

pub(crate) struct CqInner {
    pub(crate) handle: Handle,
    pub(crate) ring: Ring,
    /// How much of a completion there is.
    pub(crate) format: Format,
    /// For endpoints with rings.
    pub(crate) direct: Queue,
    fd: OwnedFd,
    _domain: Arc<DomainInner>,
}

/// A queue of completions, read from shared memory.
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

    /// Its name in messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.inner.handle.id
    }

    /// Entries that it holds.
    pub fn capacity(&self) -> u32 {
        self.inner.ring.capacity()
    }

    /// Takes as many completions as wait and fit, without a system call. Any number of threads may
    /// read at once; each completion is returned once.
    ///
    /// # Errors
    ///
    /// [`Error::Ring`].
    pub fn read(&self, to: &mut [Completion]) -> Result<usize> {
        let mut raw = [abi::CqEntry::new_zeroed(); 32];
        let mut done = 0;
        while done < to.len() {
            let room = raw.len().min(to.len() - done);
            let n = self.fill(&mut raw[..room])?;
            for (to, raw) in to[done..].iter_mut().zip(&raw[..n]) {
                to.raw = *raw;
            }
            done += n;
            if n < room {
                break;
            }
        }
        Ok(done)
    }

    /// Takes one completion if one waits.
    ///
    /// # Errors
    ///
    /// [`Error::Ring`].
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

    /// Whether a completion waits.
    pub fn is_ready(&self) -> bool {
        if self.inner.direct.is_used() {
            self.inner.progress();
            return self.inner.has_entries();
        }
        self.inner.ring.waiting()
    }

    /// Whether a program that is about to wait for the descriptor ([`AsFd`]) may do so (`fi_trywait(3)`);
    /// else it reads first. Needed with endpoints that may have rings
    /// ([`EndpointAttr::rings`](crate::EndpointAttr::rings)), each time before it waits, when it has
    /// read all: what they complete the kernel does not know of. One thread at a time waits so.
    pub fn try_wait(&self) -> bool {
        if !self.inner.direct.is_used() {
            return !self.inner.ring.waiting();
        }
        self.inner.direct.set_outside(true);
        let may = self.inner.arm();
        if !may {
            self.inner.direct.set_outside(false);
        }
        may
    }

    /// Waits until a completion waits; `false` when time ran out.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] for `poll`.
    pub fn wait_ready(&self, timeout: Duration) -> Result<bool> {
        if self.inner.direct.is_used() {
            return self.wait_direct(timeout);
        }
        if self.is_ready() {
            return Ok(true);
        }
        self.poll(timeout)
    }

    /// As [`CompletionQueue::wait_ready`], where the descriptor does not know all.
    fn wait_direct(&self, timeout: Duration) -> Result<bool> {
        let deadline = Deadline::after(timeout);
        loop {
            if self.is_ready() {
                return Ok(true);
            }
            let waiting = self.inner.direct.enter();
            let left = deadline.left();
            let over = self.inner.arm() && !self.poll(left)?;
            // Time is over also for who is kept busy.
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

    /// Takes one completion, waiting for it.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`]. A failed operation is no error of this call: see [`Completion::ok`].
    pub fn wait(&self, timeout: Duration) -> Result<Completion> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(completion) = self.read_one()? {
                return Ok(completion);
            }
            let left = deadline.left();
            // Also when the descriptor says "readable" for another reason than an entry.
            if !self.wait_ready(left)? || left.is_zero() {
                return Err(Error::Timeout {
                    what: "waiting for a completion",
                    after: timeout,
                });
            }
        }
    }

    /// Closes it; given back while an endpoint uses it.
    ///
    /// # Errors
    ///
    /// `EBUSY`.
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        match self.inner.handle.close() {
            Ok(()) => Ok(()),
            Err(error) => Err(Returned {
                object: self,
                error,
            }),
        }
    }
}

impl AsFd for CompletionQueue {
    /// Readable while a completion waits; see also [`CompletionQueue::try_wait`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.handle.fmt(f)
    }
}

/// One completion.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Completion {
    raw: abi::CqEntry,
}

impl Completion {
    /// The operation's context.
    pub fn context(&self) -> u64 {
        self.raw.context
    }

    /// What completed. Not in format `Context`.
    pub fn flags(&self) -> CompFlags {
        CompFlags::from_bits_retain(self.raw.flags)
    }

    /// Bytes received or moved. Not in format `Context`.
    pub fn len(&self) -> u64 {
        self.raw.len
    }

    /// Whether nothing was received or moved.
    pub fn is_empty(&self) -> bool {
        self.raw.len == 0
    }

    /// Offset in the region of a receive's first byte. Format `Data` only.
    pub fn offset(&self) -> u64 {
        self.raw.buf
    }

    /// The peer's completion data, if it sent any. Format `Data` only.
    pub fn data(&self) -> Option<u64> {
        self.flags()
            .contains(CompFlags::REMOTE_CQ_DATA)
            .then_some(self.raw.data)
    }

    /// Handle of the endpoint.
    pub fn endpoint(&self) -> u64 {
        self.raw.ep
    }

    /// The failure, if it is one (`fi_cq_readerr`).
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

    /// The completion if the operation succeeded.
    ///
    /// # Errors
    ///
    /// [`Error::Completion`].
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

/// How an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation {context:#x} on endpoint {endpoint:#x}: {errno}, provider code {prov_errno}")]
pub struct CompError {
    /// Why. `ECANCELED`: flushed after an earlier failure.
    pub errno: Errno,
    /// The provider's own code (verbs: `ib_wc_status`).
    pub prov_errno: u32,
    /// The operation's context.
    pub context: u64,
    /// Handle of the endpoint.
    pub endpoint: u64,
    /// What failed.
    pub flags: CompFlags,
    /// Bytes that did not fit.
    pub olen: u64,
}
