// SPDX-License-Identifier: MIT OR Apache-2.0
//! Endpoints: listening ones and connected ones.
#![forbid(unsafe_code)]

use std::any::Any;
use std::mem::offset_of;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use kfabric_uapi as abi;
use zerocopy::IntoBytes;

use crate::addr;
use crate::auth::{given, AuthKey};
use crate::completion::CompletionQueue;
use crate::counter::Counter;
use crate::device::Shared;
use crate::errno::Errno;
use crate::error::{Error, ObjectId, Result, Returned};
use crate::event::{EqInner, EventQueue};
use crate::fabric::DomainInner;
use crate::flags::Bind;
use crate::object::{Handle, Kind};
use crate::op::{Batch, Local, Op, RemoteMem, Segment, Submitted};
use crate::rings::{Posted, Rings};
use crate::sys::{self, Buf};

/// Listens for connection requests.
#[derive(Debug)]
pub struct PassiveEndpoint {
    handle: Handle,
    _eq: Held<EqInner>,
    _fabric: Arc<Handle>,
}

/// Something kept alive, of no interest in messages.
struct Held<T>(#[allow(dead_code, reason = "kept for its drop")] Arc<T>);

impl<T> std::fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl PassiveEndpoint {
    pub(crate) fn open(
        fabric: &Arc<Handle>,
        eq: &EventQueue,
        addr: SocketAddr,
        context: u64,
        keys: &[AuthKey],
    ) -> Result<Self> {
        let dev = &fabric.dev;
        dev.owns(&eq.inner.handle)?;
        let mut arg: abi::PepOpen = sys::new();
        arg.fabric = fabric.raw();
        arg.eq = eq.inner.handle.raw();
        arg.addr = addr::to_abi(Some(addr));
        arg.context = context;
        let refer = |key: &AuthKey| abi::AuthKeyRef {
            addr: key.bytes().as_ptr().expose_provenance() as u64,
            // CAST: At most `KFI_AUTH_KEY_MAX`.
            size: key.bytes().len() as u32,
            reserved: 0,
        };
        let keys: Vec<_> = keys.iter().map(refer).collect();
        let mut bufs = Vec::new();
        if !keys.is_empty() {
            let at = offset_of!(abi::PepOpen, auth_keys);
            bufs.push(Buf::input(at, keys.as_bytes()));
            arg.auth_key_count = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        }
        dev.call(fabric.id, &mut arg, &mut bufs)?;
        let handle = Handle::new(dev, Kind::PassiveEndpoint, arg.handle);
        Ok(Self {
            handle,
            _eq: Held(eq.inner.clone()),
            _fabric: fabric.clone(),
        })
    }

    /// Its name in messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.handle.id
    }

    /// Starts listening; `backlog` requests may wait (0: a default).
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EINVAL` when it listens already.
    pub fn listen(&self, backlog: u32) -> Result<()> {
        let mut arg: abi::Listen = sys::new();
        arg.pep = self.handle.raw();
        arg.backlog = backlog;
        self.handle.dev.call(self.id(), &mut arg, &mut [])
    }

    /// The address it listens on.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        name(&self.handle.dev, self.id(), 0)
    }

    /// Closes it.
    ///
    /// # Errors
    ///
    /// [`Error::Call`], with the endpoint given back.
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        match self.handle.close() {
            Ok(()) => Ok(()),
            Err(error) => Err(Returned {
                object: self,
                error,
            }),
        }
    }
}

fn name(dev: &Shared, id: ObjectId, peer: u32) -> Result<SocketAddr> {
    let mut arg: abi::GetName = sys::new();
    arg.handle = id.handle;
    arg.peer = peer;
    dev.call(id, &mut arg, &mut [])?;
    addr::from_abi(&arg.addr).ok_or_else(|| Error::Argument {
        what: "address",
        why: "none known yet".to_owned(),
    })
}

/// How to open an endpoint. Zero means a default everywhere.
#[derive(Clone, Debug, Default)]
pub struct EndpointAttr {
    /// Operations of the transmit side.
    pub tx_size: u32,
    /// Receives of the receive side.
    pub rx_size: u32,
    /// Scatter entries of an operation.
    pub iov_limit: u32,
    /// The caller's value, returned in events.
    pub context: u64,
    /// Address to connect from; none: chosen by route.
    pub source: Option<SocketAddr>,
    /// It has keys of its own: the peer reaches by it what is bound to it
    /// ([`Region::alloc_keys_for`](crate::Region::alloc_keys_for),
    /// [`RegionAttr::endpoint`](crate::RegionAttr::endpoint)), and nothing else of its domain. They
    /// end before it does.
    pub own_keys: bool,
    /// Its auth key; none: the domain's.
    pub auth_key: Option<AuthKey>,
    /// Its messages may go through memory that it shares with its peer, without a system call: if the
    /// peer is a program on this host that has asked for it too, over a provider that can do that
    /// (kshm), and neither has a counter. Else they go as ever. With it
    ///
    /// * a message is sent as soon as it is in that memory, which says nothing of its receive: one
    ///   that is too long for it ends the connection, with `EMSGSIZE` at the receive;
    /// * messages move while either program posts, or reads or waits for the queues that the endpoint
    ///   is bound to: one that is long is not sent while its sender sleeps elsewhere;
    /// * [`CompletionQueue::try_wait`] comes before each wait for a queue's descriptor;
    /// * both ends are charged 140 KiB against `RLIMIT_MEMLOCK` (who may not pin as much goes without).
    ///
    /// `kfi_rings(7)` has the whole of it.
    pub rings: bool,
}

/// A connected, message-oriented, reliable endpoint.
///
/// Life: open, bind queues, [`enable`](Endpoint::enable), post receives,
/// [`connect`](Endpoint::connect) or [`accept`](Endpoint::accept), wait for
/// [`Event::Connected`](crate::Event::Connected).
pub struct Endpoint {
    // Dropped first: before the queues it is bound to.
    handle: Handle,
    size: (u32, u32),
    iov_limit: u32,
    cm_data_size: u32,
    /// What it is bound to, kept until it is closed.
    bound: Box<Mutex<Vec<Arc<dyn Any + Send + Sync>>>>,
    rings: Option<Arc<Rings>>,
    _domain: Arc<DomainInner>,
}

impl Endpoint {
    pub(crate) fn open(
        domain: &Arc<DomainInner>,
        attr: &EndpointAttr,
        connreq: u64,
    ) -> Result<Self> {
        let dev = &domain.handle.dev;
        let mut arg: abi::EpOpen = sys::new();
        arg.domain = domain.handle.raw();
        arg.connreq = connreq;
        arg.src_addr = addr::to_abi(attr.source);
        arg.context = attr.context;
        arg.tx_size = attr.tx_size;
        arg.rx_size = attr.rx_size;
        arg.iov_limit = attr.iov_limit;
        arg.flags = match attr.own_keys {
            true => abi::KFI_EP_OWN_KEYS,
            false => 0,
        } | match attr.rings {
            true => abi::KFI_EP_RINGS,
            false => 0,
        };
        let at = offset_of!(abi::EpOpen, auth_key);
        let (mut bufs, size) = given(at, attr.auth_key.as_ref());
        arg.auth_key_size = size;
        dev.call(domain.handle.id, &mut arg, &mut bufs)?;
        let handle = Handle::new(dev, Kind::Endpoint, arg.handle);
        let size = (arg.tx_size, arg.rx_size);
        let rings = match attr.rings {
            true => Rings::new(domain, handle.id, size, arg.iov_limit),
            false => None,
        };
        Ok(Self {
            handle,
            rings,
            cm_data_size: arg.cm_data_size,
            size,
            iov_limit: arg.iov_limit,
            bound: Box::default(),
            _domain: domain.clone(),
        })
    }

    /// Its name in messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.handle.id
    }

    /// Its device file.
    pub(crate) fn dev(&self) -> &Arc<Shared> {
        &self.handle.dev
    }

    /// Ends all keys that are bound to it, in one call; how many. See
    /// [`Region::revoke_keys`](crate::Region::revoke_keys).
    ///
    /// # Errors
    ///
    /// `EINVAL` for one without keys of its own.
    pub fn revoke_keys(&self) -> Result<u64> {
        crate::region::revoke_all(&self.handle, abi::KFI_REVOKE_EP)
    }

    /// Application bytes in its connection request, at most. With an auth key they are fewer.
    pub fn cm_data_size(&self) -> usize {
        self.cm_data_size as usize
    }

    /// Whether its messages go through rings ([`EndpointAttr::rings`]); none: not known yet, as it is
    /// not connected.
    pub fn has_rings(&self) -> Option<bool> {
        let Some(rings) = &self.rings else {
            return Some(false);
        };
        rings.known()
    }

    /// Operations that the transmit side holds.
    pub fn tx_size(&self) -> u32 {
        self.size.0
    }

    /// Receives that the receive side holds.
    pub fn rx_size(&self) -> u32 {
        self.size.1
    }

    /// Scatter entries of one operation.
    pub fn iov_limit(&self) -> u32 {
        self.iov_limit
    }

    fn bind(&self, object: &Handle, flags: Bind, hold: Arc<dyn Any + Send + Sync>) -> Result<()> {
        self.handle.dev.owns(object)?;
        let mut arg: abi::Bind = sys::new();
        arg.ep = self.handle.raw();
        arg.object = object.raw();
        arg.bind_flags = flags.bits();
        self.handle.dev.call(self.id(), &mut arg, &mut [])?;
        self.bound
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(hold);
        Ok(())
    }

    /// Binds the event queue that gets its connection events.
    ///
    /// # Errors
    ///
    /// `EINVAL` when it has one, or is enabled, or the queue is of another device file.
    pub fn bind_event_queue(&self, eq: &EventQueue) -> Result<()> {
        self.bind(&eq.inner.handle, Bind::empty(), eq.inner.clone())?;
        if let Some(rings) = &self.rings {
            eq.inner.add(rings);
        }
        Ok(())
    }

    /// Binds a completion queue to a side or both, selectively if asked to.
    ///
    /// # Errors
    ///
    /// `EINVAL` when that side has one, or is enabled, or the queue is of another domain.
    pub fn bind_completion_queue(&self, cq: &CompletionQueue, flags: Bind) -> Result<()> {
        self.bind(&cq.inner.handle, flags, cq.inner.clone())?;
        if let Some(rings) = &self.rings {
            rings.bind(&cq.inner, flags.bits());
        }
        Ok(())
    }

    /// Binds a counter to kinds of operations.
    ///
    /// # Errors
    ///
    /// `EINVAL` as for queues.
    pub fn bind_counter(&self, counter: &Counter, flags: Bind) -> Result<()> {
        self.bind(&counter.inner.handle, flags, counter.inner.clone())
    }

    /// Makes it ready to post receives and to connect.
    ///
    /// # Errors
    ///
    /// `EINVAL` when a queue is missing or it is enabled already.
    pub fn enable(&self) -> Result<()> {
        let mut arg: abi::ObjectCall = sys::new();
        arg.handle = self.handle.raw();
        self.handle.dev.call(self.id(), &mut arg, &mut [])?;
        if let Some(rings) = &self.rings {
            rings.set_enabled();
        }
        Ok(())
    }

    /// Starts connecting, with data for the peer. The outcome is an event.
    ///
    /// # Errors
    ///
    /// `EINVAL` in another state, or for more data than the domain's `cm_data_size`.
    pub fn connect(&self, addr: SocketAddr, data: &[u8]) -> Result<()> {
        let mut arg: abi::Connect = sys::new();
        arg.ep = self.handle.raw();
        arg.addr = addr::to_abi(Some(addr));
        arg.param_len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let mut bufs = [Buf::input(offset_of!(abi::Connect, param), data)];
        self.handle.dev.call(self.id(), &mut arg, &mut bufs)
    }

    /// Accepts the request it was opened for, with data for the peer. The outcome is an event.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::connect`]; and `ECONNABORTED`: it cannot be accepted any more, because
    /// the peer gave up or the device has failed it.
    pub fn accept(&self, data: &[u8]) -> Result<()> {
        let mut arg: abi::Accept = sys::new();
        arg.ep = self.handle.raw();
        arg.param_len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let mut bufs = [Buf::input(offset_of!(abi::Accept, param), data)];
        self.handle.dev.call(self.id(), &mut arg, &mut bufs)
    }

    /// Ends the connection. Operations not done complete with `ECANCELED`.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`.
    pub fn shutdown(&self) -> Result<()> {
        let mut arg: abi::Shutdown = sys::new();
        arg.ep = self.handle.raw();
        self.handle.dev.call(self.id(), &mut arg, &mut [])?;
        if let Some(rings) = &self.rings {
            let pushed = rings.progress();
            rings.alert(pushed, None);
        }
        Ok(())
    }

    /// Its own address.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        name(&self.handle.dev, self.id(), 0)
    }

    /// Its peer's address.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        name(&self.handle.dev, self.id(), 1)
    }

    /// Posts operations in order, in one call for up to `KFI_SUBMIT_MAX`; stops at the first that
    /// is refused.
    ///
    /// # Errors
    ///
    /// When the very first is refused: its errno, `EAGAIN` if the endpoint or a queue is full.
    pub fn submit(&self, batch: &Batch<'_>) -> Result<Submitted> {
        let mut accepted = 0;
        if self.rings.is_some() {
            for (entry, local) in batch.entries.iter().zip(&batch.locals) {
                match self.post_entry(entry, local) {
                    Ok(()) => accepted += 1,
                    Err(e) if accepted == 0 => return Err(e),
                    Err(e) => {
                        return Ok(Submitted {
                            accepted,
                            refused: e.errno(),
                        })
                    }
                }
            }
            return Ok(Submitted {
                accepted,
                refused: None,
            });
        }
        // What is of another device file is refused here; the kernel refuses the rest.
        let own = |local: &Local<'_>| self.check(local).is_ok();
        let good = batch.locals.iter().take_while(|local| own(local)).count();
        if let (0, Some(first)) = (good, batch.locals.first()) {
            self.check(first)?;
        }
        let (entries, foreign) = batch.entries.split_at(good);
        for chunk in entries.chunks(abi::KFI_SUBMIT_MAX as usize) {
            match self.submit_entries(chunk) {
                Ok(part) => {
                    accepted += part.accepted;
                    if part.accepted < chunk.len() {
                        return Ok(Submitted {
                            accepted,
                            refused: part.refused,
                        });
                    }
                }
                Err(e) if accepted == 0 => return Err(e),
                Err(e) => {
                    return Ok(Submitted {
                        accepted,
                        refused: e.errno(),
                    })
                }
            }
        }
        Ok(Submitted {
            accepted,
            refused: (!foreign.is_empty()).then_some(Errno::EINVAL),
        })
    }

    /// Refuses memory of another device file.
    #[inline]
    fn check(&self, local: &Local<'_>) -> Result<()> {
        for region in local.regions.iter().flatten() {
            self.handle.dev.owns(&region.handle)?;
        }
        Ok(())
    }

    fn submit_entries(&self, entries: &[abi::OpEntry]) -> Result<Submitted> {
        submit(&self.handle.dev, self.id(), entries)
    }

    fn post_entry(&self, entry: &abi::OpEntry, local: &Local<'_>) -> Result<()> {
        self.check(local)?;
        if let Some(rings) = &self.rings {
            match rings.post(entry, local) {
                Ok(Posted::Here) => return Ok(()),
                Ok(Posted::Kernel) => {}
                Err(errno) => {
                    return Err(Error::Call {
                        call: "SUBMIT",
                        object: self.id(),
                        errno,
                    })
                }
            }
        }
        self.submit_entries(std::slice::from_ref(entry)).map(|_| ())
    }

    /// Posts one operation.
    ///
    /// # Errors
    ///
    /// `EAGAIN` when the endpoint or a completion queue is full; `ENOTCONN`; `EACCES` when a region
    /// does not allow the use; `EINVAL` for a range outside a region, or a region of another device
    /// file; `EMSGSIZE`.
    pub fn post(&self, op: &Op<'_>) -> Result<()> {
        self.post_entry(&op.entry, &op.local)
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::post`], here and below.
    pub fn send(&self, local: Segment<'_>, context: u64) -> Result<()> {
        self.post(&Op::send(&[local]).context(context))
    }

    /// Sends a message from pieces.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::post`].
    pub fn sendv(&self, local: &[Segment<'_>], context: u64) -> Result<()> {
        self.post(&Op::send(local).context(context))
    }

    /// Sends a message with completion data.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::post`].
    pub fn senddata(&self, local: Segment<'_>, data: u64, context: u64) -> Result<()> {
        self.post(&Op::send(&[local]).data(data).context(context))
    }

    /// Sends bytes that are taken at once; there is no completion.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::post`]; `EMSGSIZE` beyond the domain's `inject_size`.
    pub fn inject(&self, payload: &[u8]) -> Result<()> {
        self.post(&Op::inject_send(payload))
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::post`].
    pub fn recv(&self, local: Segment<'_>, context: u64) -> Result<()> {
        self.post(&Op::recv(&[local]).context(context))
    }

    /// Posts a receive into pieces.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::post`].
    pub fn recvv(&self, local: &[Segment<'_>], context: u64) -> Result<()> {
        self.post(&Op::recv(local).context(context))
    }

    /// Reads a peer's memory.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::post`].
    pub fn read(&self, local: Segment<'_>, remote: RemoteMem, context: u64) -> Result<()> {
        self.post(&Op::read(&[local], remote).context(context))
    }

    /// Reads a peer's memory into pieces.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::post`].
    pub fn readv(&self, local: &[Segment<'_>], remote: RemoteMem, context: u64) -> Result<()> {
        self.post(&Op::read(local, remote).context(context))
    }

    /// Writes a peer's memory.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::post`].
    pub fn write(&self, local: Segment<'_>, remote: RemoteMem, context: u64) -> Result<()> {
        self.post(&Op::write(&[local], remote).context(context))
    }

    /// Writes a peer's memory from pieces.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::post`].
    pub fn writev(&self, local: &[Segment<'_>], remote: RemoteMem, context: u64) -> Result<()> {
        self.post(&Op::write(local, remote).context(context))
    }

    /// Writes a peer's memory and completes one of its receives with `data`.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::post`].
    pub fn writedata(
        &self,
        local: Segment<'_>,
        remote: RemoteMem,
        data: u64,
        context: u64,
    ) -> Result<()> {
        self.post(&Op::write(&[local], remote).data(data).context(context))
    }

    /// Asks for posted receives with this context to end with `ECANCELED`.
    ///
    /// # Errors
    ///
    /// `ENOENT` when none waits, `EOPNOTSUPP` when the provider cannot.
    pub fn cancel(&self, context: u64) -> Result<()> {
        if let Some(done) = self.rings.as_ref().and_then(|rings| rings.cancel(context)) {
            return done.map_err(|errno| Error::Call {
                call: "CANCEL",
                object: self.id(),
                errno,
            });
        }
        let mut arg: abi::Cancel = sys::new();
        arg.ep = self.handle.raw();
        arg.context = context;
        self.handle.dev.call(self.id(), &mut arg, &mut [])
    }

    /// Disconnects and closes it.
    ///
    /// # Errors
    ///
    /// [`Error::Call`], with the endpoint given back.
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        if let Some(rings) = &self.rings {
            rings.begin_end();
        }
        match self.handle.close() {
            Ok(()) => Ok(()),
            Err(error) => Err(Returned {
                object: self,
                error,
            }),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let Some(rings) = &self.rings else { return };
        rings.begin_end();
        self.handle.end();
        rings.finish();
    }
}

/// Posts operations in one call.
pub(crate) fn submit(dev: &Shared, id: ObjectId, entries: &[abi::OpEntry]) -> Result<Submitted> {
    let mut arg: abi::Submit = sys::new();
    arg.ep = id.handle;
    arg.count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    arg.entry_size = u32::try_from(size_of::<abi::OpEntry>()).unwrap_or(u32::MAX);
    let mut bufs = [Buf::input(offset_of!(abi::Submit, ops), entries.as_bytes())];
    dev.call(id, &mut arg, &mut bufs)?;
    let refused = (arg.err != 0).then(|| crate::Errno(i32::try_from(arg.err).unwrap_or(libc::EIO)));
    Ok(Submitted {
        accepted: arg.done as usize,
        refused,
    })
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.handle.fmt(f)
    }
}
