// SPDX-License-Identifier: MIT OR Apache-2.0
//! Event queues: connections asked for, made, lost.
#![forbid(unsafe_code)]

use std::fmt;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use kfabric_uapi as abi;

use crate::device::Shared;
use crate::errno::Errno;
use crate::error::{Error, ObjectId, Result, Returned};
use crate::object::{Handle, Kind};
use crate::rings::Rings;
use crate::sys::{self, Buf, Deadline};

pub(crate) struct EqInner {
    pub(crate) handle: Handle,
    /// Those of its endpoints that may have rings.
    rings: Mutex<Vec<Weak<Rings>>>,
    fd: OwnedFd,
    _fabric: Arc<Handle>,
}

impl EqInner {
    /// An endpoint that may have rings is bound to it.
    pub(crate) fn add(&self, rings: &Arc<Rings>) {
        let mut all = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() != 0);
        all.push(Arc::downgrade(rings));
    }

    /// There is an event of an endpoint: it may know by now what it has, or that it is over.
    fn happened(&self, object: u64) {
        let found = {
            let all = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter()
                .filter_map(Weak::upgrade)
                .find(|rings| rings.id().handle == object)
        };
        if let Some(rings) = found {
            let mut pushed = rings.learn();
            pushed |= rings.progress();
            rings.alert(pushed, None);
        }
    }
}

/// A queue of events.
pub struct EventQueue {
    pub(crate) inner: Arc<EqInner>,
}

impl EventQueue {
    pub(crate) fn open(fabric: &Arc<Handle>, depth: u32) -> Result<Self> {
        let dev = &fabric.dev;
        let mut arg: abi::EqOpen = sys::new();
        arg.fabric = fabric.raw();
        arg.depth = depth;
        dev.call(fabric.id, &mut arg, &mut [])?;
        let handle = Handle::new(dev, Kind::EventQueue, arg.handle);
        let fd = dev.take_fd("EQ_OPEN", fabric.id, arg.fd)?;
        Ok(Self {
            inner: Arc::new(EqInner {
                handle,
                rings: Mutex::default(),
                fd,
                _fabric: fabric.clone(),
            }),
        })
    }

    /// Its name in messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.inner.handle.id
    }

    /// Takes an event if one waits.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn read(&self) -> Result<Option<Event>> {
        let dev = &self.inner.handle.dev;
        let mut data = [0; abi::KFI_CM_DATA_MAX];
        let mut arg: abi::EqRead = sys::new();
        arg.eq = self.inner.handle.raw();
        arg.data_len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let mut bufs = [Buf::output(offset_of!(abi::EqRead, data), &mut data)];
        match dev.call(self.id(), &mut arg, &mut bufs) {
            Ok(()) => {
                self.inner.happened(arg.object);
                let len = data.len().min(arg.data_len as usize);
                Ok(Some(Event::from_abi(dev, &arg, &data[..len])))
            }
            Err(e) if e.errno() == Some(Errno::EAGAIN) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Takes an event, waiting for one.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`]; [`Error::Call`].
    pub fn wait(&self, timeout: Duration) -> Result<Event> {
        Self::wait_any(&[self], timeout)
    }

    /// Takes an event of whichever of `queues` has one, waiting for it: who listens by several
    /// providers has a queue of each.
    ///
    /// # Errors
    ///
    /// As [`EventQueue::wait`].
    pub fn wait_any(queues: &[&Self], timeout: Duration) -> Result<Event> {
        let deadline = Deadline::after(timeout);
        let late = || Error::Timeout {
            what: "waiting for an event",
            after: timeout,
        };
        let first = queues.first().ok_or_else(late)?;
        let fds: Vec<_> = queues.iter().map(|queue| queue.as_fd()).collect();
        loop {
            for queue in queues {
                if let Some(event) = queue.read()? {
                    return Ok(event);
                }
            }
            let left = deadline.left();
            let there = first.inner.handle.dev.backend.wait_any(&fds, left);
            let there = there.map_err(|errno| Error::Call {
                call: "poll",
                object: first.id(),
                errno,
            })?;
            // Also when a descriptor says "readable" for another reason than an event.
            if !there || left.is_zero() {
                return Err(late());
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

impl AsFd for EventQueue {
    /// Readable while an event waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

impl fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.handle.fmt(f)
    }
}

/// An event. `object` is the handle of what it is about, `context` the value given when that was
/// opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer asks to connect.
    ConnRequest(ConnRequest),
    /// An endpoint is connected.
    Connected {
        /// The endpoint.
        object: u64,
        /// Its context.
        context: u64,
        /// What the accepting peer sent along.
        data: Vec<u8>,
    },
    /// Connecting failed or was refused.
    ConnFailed(Box<ConnFailure>),
    /// A connection ended.
    Shutdown {
        /// The endpoint.
        object: u64,
        /// Its context.
        context: u64,
        /// Why, if it was not by the peer's wish.
        errno: Option<Errno>,
    },
    /// An event that this crate does not know.
    Other {
        /// Its number.
        event: u32,
        /// What it is about.
        object: u64,
        /// Its context.
        context: u64,
        /// Positive errno, or none.
        errno: Option<Errno>,
    },
}

/// Why a connection did not come about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnFailure {
    /// The endpoint.
    pub object: u64,
    /// Its context.
    pub context: u64,
    /// `ECONNREFUSED`: refused, or nobody listens; `ETIMEDOUT`; `EHOSTUNREACH`; …
    pub errno: Errno,
    /// The provider's own code.
    pub prov_errno: u32,
    /// What the refusing peer sent along.
    pub data: Vec<u8>,
}

impl fmt::Display for ConnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, provider code {}", self.errno, self.prov_errno)
    }
}

impl Event {
    fn from_abi(dev: &Arc<Shared>, arg: &abi::EqRead, data: &[u8]) -> Self {
        let (object, context) = (arg.object, arg.context);
        let errno = (arg.err != 0).then(|| Errno(i32::try_from(arg.err).unwrap_or(libc::EIO)));
        match arg.event {
            abi::KFI_CONNREQ => {
                let request = ObjectId {
                    kind: Kind::ConnRequest,
                    handle: arg.connreq,
                };
                let dev = Some(dev.clone());
                Self::ConnRequest(ConnRequest {
                    dev,
                    id: request,
                    listener: object,
                    context,
                    data: data.to_vec(),
                    auth_key: arg.auth_index.checked_sub(1),
                })
            }
            abi::KFI_CONNECTED => Self::Connected {
                object,
                context,
                data: data.to_vec(),
            },
            abi::KFI_CONN_ERROR => Self::ConnFailed(Box::new(ConnFailure {
                object,
                context,
                errno: errno.unwrap_or(Errno::EIO),
                prov_errno: arg.prov_errno,
                data: data.to_vec(),
            })),
            abi::KFI_SHUTDOWN => Self::Shutdown {
                object,
                context,
                errno,
            },
            event => Self::Other {
                event,
                object,
                context,
                errno,
            },
        }
    }

    /// The connection's answer, where that is what was waited for.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] when connecting failed or the connection ended at once;
    /// [`Error::Argument`] for an event of another kind.
    pub fn connected(self) -> Result<Vec<u8>> {
        match self {
            Self::Connected { data, .. } => Ok(data),
            Self::ConnFailed(failure) => Err(Error::Connect(failure)),
            Self::Shutdown {
                object,
                context,
                errno,
            } => Err(Error::Connect(Box::new(ConnFailure {
                object,
                context,
                errno: errno.unwrap_or(Errno::ECONNRESET),
                prov_errno: 0,
                data: Vec::new(),
            }))),
            other => Err(Error::Argument {
                what: "event",
                why: format!("{other:?} instead of a connection"),
            }),
        }
    }

    /// The connection request, where that is what was waited for.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an event of another kind.
    pub fn request(self) -> Result<ConnRequest> {
        match self {
            Self::ConnRequest(request) => Ok(request),
            other => Err(Error::Argument {
                what: "event",
                why: format!("{other:?} instead of a request"),
            }),
        }
    }
}

/// A peer's wish to connect, to be answered by [`crate::Domain::endpoint_for`] and
/// [`crate::Endpoint::accept`], or by [`ConnRequest::reject`]. Dropping it rejects it.
pub struct ConnRequest {
    dev: Option<Arc<Shared>>,
    id: ObjectId,
    /// Handle of the passive endpoint.
    pub listener: u64,
    /// The passive endpoint's context.
    pub context: u64,
    /// What the peer sent along.
    pub data: Vec<u8>,
    /// Which of the passive endpoint's auth keys the peer has proven to have, counted from 0. The
    /// endpoint that takes it needs the same one.
    pub auth_key: Option<u32>,
}

impl ConnRequest {
    /// Its handle.
    pub fn handle(&self) -> u64 {
        self.id.handle
    }

    /// Its name in messages.
    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }

    /// Whether it came by this device file.
    pub(crate) fn is_of(&self, dev: &Arc<Shared>) -> bool {
        self.dev.as_ref().is_some_and(|own| Arc::ptr_eq(own, dev))
    }

    /// An endpoint took it over.
    pub(crate) fn used(mut self) {
        self.dev = None;
    }

    /// Refuses it, with data for the peer.
    ///
    /// # Errors
    ///
    /// `EINVAL` for too much data, `ENOENT` when the peer gave up already.
    pub fn reject(mut self, data: &[u8]) -> Result<()> {
        match self.dev.take() {
            Some(dev) => reject(&dev, self.id, data),
            None => Ok(()),
        }
    }
}

fn reject(dev: &Shared, id: ObjectId, data: &[u8]) -> Result<()> {
    let mut arg: abi::Reject = sys::new();
    arg.connreq = id.handle;
    arg.param_len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    dev.call(
        id,
        &mut arg,
        &mut [Buf::input(offset_of!(abi::Reject, param), data)],
    )
}

impl Drop for ConnRequest {
    fn drop(&mut self) {
        if let Some(dev) = self.dev.take() {
            // Only fails when the peer is gone, which is as good.
            let _ = reject(&dev, self.id, &[]);
        }
    }
}

impl fmt::Debug for ConnRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} bytes", self.id, self.data.len())
    }
}
