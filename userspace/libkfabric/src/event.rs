// SPDX-License-Identifier: MIT OR Apache-2.0
//! Event queues: connection requests, connections made, connections lost.
#![forbid(unsafe_code)]

use std::fmt;
use std::mem::offset_of;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use kfabric_uapi as abi;
use zerocopy::IntoBytes;

use crate::addr;
use crate::errno::Errno;
use crate::error::{Error, Result, Returned};
use crate::failure::ConnFailure;
use crate::handle::{debug_by_handle, Handle, Shared};
use crate::info::Info;
use crate::object::{Kind, ObjectId};
use crate::rings::Rings;
use crate::sys::{self, Buf, Deadline};

pub(crate) struct EqInner {
    pub(crate) handle: Handle,
    /// Endpoints bound to the queue that may have rings.
    rings: Mutex<Vec<Weak<Rings>>>,
    fd: OwnedFd,
    _fabric: Arc<Handle>,
}

impl EqInner {
    /// Registers an endpoint that may have rings.
    pub(crate) fn add(&self, rings: &Arc<Rings>) {
        let mut all = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() != 0);
        all.push(Arc::downgrade(rings));
    }

    /// Handles an event of an endpoint: its ring state may be known now, or its connection may have
    /// ended.
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

/// An event queue (`fi_eq(3)`).
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

    /// The queue's name in error messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.inner.handle.id
    }

    /// Takes an event if one is ready.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the call.
    pub fn read(&self) -> Result<Option<Event>> {
        self.next(0)
    }

    /// Returns an event if one is ready, and leaves it in the queue (`FI_PEEK`).
    ///
    /// A [`ConnRequest`] in the result shows the request's properties. Its handle is 0, it can be
    /// neither accepted nor refused, and dropping it has no effect.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the call.
    pub fn peek(&self) -> Result<Option<Event>> {
        self.next(abi::KFI_EQ_PEEK)
    }

    fn next(&self, flags: u32) -> Result<Option<Event>> {
        let dev = &self.inner.handle.dev;
        let mut data = [0; abi::KFI_CM_DATA_MAX];
        let mut arg: abi::EqRead = sys::new();
        arg.flags = flags;
        arg.eq = self.inner.handle.raw();
        arg.data_len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let mut info = abi::InfoEntry::default();
        let mut bufs = [
            Buf::output(offset_of!(abi::EqRead, data), &mut data),
            Buf::output(offset_of!(abi::EqRead, info), info.as_mut_bytes()),
        ];
        match dev.call(self.id(), &mut arg, &mut bufs) {
            Ok(()) => {
                self.inner.happened(arg.object);
                let len = data.len().min(arg.data_len as usize);
                Ok(Some(Event::from_abi(dev, &arg, &data[..len], info)))
            }
            Err(e) if e.errno() == Some(Errno::EAGAIN) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Waits until an event can be read. Returns `false` if the timeout expires first.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if `poll` fails.
    pub fn wait_ready(&self, timeout: Duration) -> Result<bool> {
        let backend = &self.inner.handle.dev.backend;
        let there = backend.wait(self.as_fd(), timeout);
        there.map_err(|errno| Error::Call {
            call: "poll",
            object: self.id(),
            errno,
        })
    }

    /// Takes an event; waits for one if none is ready.
    ///
    /// # Errors
    ///
    /// - [`Error::Timeout`] if no event comes in time.
    /// - [`Error::Call`] if the kernel refuses the call.
    pub fn wait(&self, timeout: Duration) -> Result<Event> {
        Self::wait_any(&[self], timeout)
    }

    /// Takes an event from any of `queues`; waits for one if none is ready. A program that listens
    /// through several providers has one queue per provider.
    ///
    /// # Errors
    ///
    /// - [`Error::Timeout`] if no event comes in time, or `queues` is empty.
    /// - [`Error::Call`] if the kernel refuses the call.
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
            // A readable descriptor does not always mean that there is an event.
            if !there || left.is_zero() {
                return Err(late());
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

impl AsFd for EventQueue {
    /// Readable while an event is ready.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

debug_by_handle!(EventQueue, inner.handle);

/// An event. `object` is the handle of the object concerned; `context` is the value that the object
/// was opened with.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A connection request of a peer (`FI_CONNREQ`).
    ConnRequest(ConnRequest),
    /// An endpoint is connected.
    Connected {
        /// The endpoint.
        object: u64,
        /// The endpoint's context.
        context: u64,
        /// Private data of the accepting peer.
        data: Vec<u8>,
    },
    /// Connecting failed or was refused.
    ConnFailed(Box<ConnFailure>),
    /// A connection ended.
    Shutdown {
        /// The endpoint.
        object: u64,
        /// The endpoint's context.
        context: u64,
        /// The cause; `None` if the peer disconnected on purpose.
        errno: Option<Errno>,
    },
    /// An event that this crate does not know.
    Other {
        /// Number of the event.
        event: u32,
        /// Handle of the object concerned.
        object: u64,
        /// The object's context.
        context: u64,
        /// Errno of the event, positive; `None` without an error.
        errno: Option<Errno>,
    },
}

impl Event {
    fn from_abi(dev: &Arc<Shared>, arg: &abi::EqRead, data: &[u8], info: abi::InfoEntry) -> Self {
        let (object, context) = (arg.object, arg.context);
        let errno = (arg.err != 0).then(|| Errno(i32::try_from(arg.err).unwrap_or(libc::EIO)));
        match arg.event {
            abi::KFI_CONNREQ => {
                let request = ObjectId {
                    kind: Kind::ConnRequest,
                    handle: arg.connreq,
                };
                let peeked = arg.flags & abi::KFI_EQ_PEEK != 0;
                let dev = (!peeked).then(|| dev.clone());
                Self::ConnRequest(ConnRequest {
                    dev,
                    id: request,
                    listener: object,
                    context,
                    data: data.to_vec(),
                    auth_key: arg.auth_index.checked_sub(1),
                    peer: addr::from_abi(&info.dest_addr),
                    info: Info::new(info),
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

    /// Returns the private data of the accepting peer, if this event is a connection.
    ///
    /// # Errors
    ///
    /// - [`Error::Connect`] if connecting failed or the connection ended at once.
    /// - [`Error::Argument`] for an event of another kind.
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

    /// Returns the connection request, if this event is one.
    ///
    /// # Errors
    ///
    /// - [`Error::Argument`] for an event of another kind.
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

/// A connection request (`FI_CONNREQ`). Accept it by [`crate::Domain::endpoint_for`] and
/// [`crate::Endpoint::accept`], or refuse it by [`ConnRequest::reject`]. Dropping the request
/// refuses it.
pub struct ConnRequest {
    dev: Option<Arc<Shared>>,
    id: ObjectId,
    /// Handle of the passive endpoint.
    pub listener: u64,
    /// The passive endpoint's context.
    pub context: u64,
    /// Private data of the peer.
    pub data: Vec<u8>,
    /// Index (from 0) of the passive endpoint's auth key that the peer has proven to have. The
    /// endpoint that accepts the request needs the same auth key.
    pub auth_key: Option<u32>,
    /// The peer's address, as it says.
    pub peer: Option<SocketAddr>,
    /// The domain to accept on, with its capabilities and limits as in an answer of
    /// [`Device::info`](crate::Device::info), the local address ([`Info::source`]) and the peer's
    /// ([`Info::destination`]). Fields after the entry's first version (from `visible`) are zero.
    pub info: Info,
}

impl ConnRequest {
    /// The request's handle.
    pub fn handle(&self) -> u64 {
        self.id.handle
    }

    /// The request's name in error messages.
    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }

    /// Whether the request arrived through this device file.
    pub(crate) fn is_of(&self, dev: &Arc<Shared>) -> bool {
        self.dev.as_ref().is_some_and(|own| Arc::ptr_eq(own, dev))
    }

    /// Marks the request as taken over by an endpoint.
    pub(crate) fn used(mut self) {
        self.dev = None;
    }

    /// Like [`ConnRequest::reject`], but on failure the request is returned in [`Returned`].
    ///
    /// # Errors
    ///
    /// The errors of [`ConnRequest::reject`].
    #[expect(clippy::result_large_err, reason = "the request itself is returned")]
    pub fn try_reject(mut self, data: &[u8]) -> std::result::Result<(), Returned<Self>> {
        let done = match &self.dev {
            Some(dev) => reject(dev, self.id, data),
            None => Err(Error::Call {
                call: "REJECT",
                object: self.id,
                errno: Errno::ENOENT,
            }),
        };
        if done.is_ok() {
            self.dev = None;
        }
        Returned::on_error(done, self)
    }

    /// Refuses the request, with data for the peer.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `data` is too long.
    /// - `ENOENT` if the peer has given up already, or the request is the result of
    ///   [`EventQueue::peek`].
    pub fn reject(mut self, data: &[u8]) -> Result<()> {
        match self.dev.take() {
            Some(dev) => reject(&dev, self.id, data),
            None => Err(Error::Call {
                call: "REJECT",
                object: self.id,
                errno: Errno::ENOENT,
            }),
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
            // Fails only if the peer has given up: nothing is left to refuse.
            let _ = reject(&dev, self.id, &[]);
        }
    }
}

impl fmt::Debug for ConnRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} bytes", self.id, self.data.len())
    }
}
