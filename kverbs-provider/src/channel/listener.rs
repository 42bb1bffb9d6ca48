// SPDX-License-Identifier: GPL-2.0
//! The listener of a network namespace, which accepts channels.

use kernel::{
    impl_has_work,
    new_work,
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        ArcBorrow,
        Mutex, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

use super::PORT;
use crate::{
    channel::Owner,
    conn::connection::Connection,
    device,
    ib::{
        cm::{
            CmEvent,
            CmHandler,
            CmId,
            ConnParam,
            Incoming, //
        },
        sockaddr,
        traced::Traced,
        work, //
    }, //
};
use kfabric::{
    pure::{
        commit::{
            Hello,
            REFUSAL, //
        },
        gid::Host,
        turns::{
            self,
            Same,
            PENDING_MAX, //
        }, //
    },
    sys::net::Net,
    uapi::SockAddr, //
};

/// Length of the queue of requests that the connection manager keeps.
const BACKLOG: u32 = 64;

/// Handler of requests that wait for the work item. A request that ends meanwhile cannot be
/// accepted.
struct Waiting;

impl CmHandler for Waiting {
    fn event(_this: ArcBorrow<'_, Self>, _event: CmEvent<'_>) {}
}

/// A request for a channel, which was checked.
struct Pending {
    conn: Arc<Connection>,
    id: CmId<Waiting>,
    param: ConnParam,
    /// The address of the peer.
    from: SockAddr,
}

/// State of listening.
struct Listening {
    id: Option<CmId<Inner>>,
    /// Why the last try failed, if it did.
    failed: Option<Error>,
    /// True after the last user has left.
    ended: bool,
}

/// A listener as its handler refers to it.
#[pin_data]
struct Inner {
    net: Net,
    #[pin]
    listening: Mutex<Listening>,
    #[pin]
    pending: Mutex<KVec<Pending>>,
    waiting: Arc<Waiting>,
    #[pin]
    work: Work<Inner>,
}

impl_has_work! {
    impl HasWork<Self> for Inner { self.work }
}

impl Inner {
    /// Begins to listen, unless it listens. The work item has the right to bind to the port, which the
    /// program that registers memory may lack.
    fn listen(self: &Arc<Self>) {
        let mut listening = self.listening.lock();
        if listening.ended || listening.id.is_some() {
            return;
        }
        (listening.id, listening.failed) = match self.bound() {
            Ok(id) => (Some(id), None),
            Err(e) => (None, Some(e)),
        };
    }

    /// Returns an identifier that listens.
    fn bound(self: &Arc<Self>) -> Result<CmId<Self>> {
        let id = CmId::new(&self.net, self.clone())?;
        // Whatever net.ipv6.bindv6only says.
        id.allow_ipv4()?;
        let any = sockaddr::of(Host::V6 {
            host: [0; 16],
            scope: 0,
        });
        id.bind(&sockaddr::with_port(&any, PORT))?;
        id.listen(BACKLOG)?;
        Ok(id)
    }

    fn next(&self) -> Option<Pending> {
        let mut pending = self.pending.lock();
        if pending.is_empty() {
            return None;
        }
        pending.remove(0).ok()
    }

    /// Accepts a request.
    ///
    /// On a failure the connection manager refuses without a message, so the peer may try again.
    fn accept(request: Pending) -> Result {
        let Pending {
            conn, id, param, ..
        } = request;
        let accept = || conn.channels().accept(&conn, id, param);
        conn.memcg().charged(accept)
    }

    /// Returns the connection for which the peer requests a channel.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the request is malformed.
    /// - `ENOENT` if it names no connection.
    /// - The errors of [`Identity::check`](super::channels::Identity::check).
    fn look(incoming: &Incoming<'_>) -> Result<Arc<Connection>> {
        let hello = Hello::parse(incoming.data).map_err(|_| EINVAL)?;
        let device = device::find(|d| incoming.is_on(d.ib())).ok_or(ENODEV)?;
        let found = Connection::with_index(|index| index.find(&device, hello.target()));
        let (conn, identity) = found.ok_or(ENOENT)?;
        let (from, qp) = (incoming.peer_addr(), incoming.param.qp_num);
        identity.check(conn.group(), &hello, &from, qp)?;
        Ok(conn)
    }

    /// Returns whether another request of this connection can wait for the work item. All requests come
    /// from peers of connections.
    fn has_place(pending: &[Pending], conn: &Arc<Connection>, from: &SockAddr) -> bool {
        let same = |other: &Pending| Same {
            connection: Arc::ptr_eq(&other.conn, conn),
            host: sockaddr::same_host(&other.from, from),
        };
        turns::can_wait(pending.iter().map(same))
    }
}

impl WorkItem for Inner {
    type Pointer = Arc<Inner>;

    fn run(this: Arc<Inner>) {
        let _traced = Traced::new();
        this.listen();
        // A registration waits for this run, and not for the requests that keep coming.
        for _ in 0..PENDING_MAX {
            let Some(request) = this.next() else { return };
            let _ = Self::accept(request);
        }
        let _ = work::channels().enqueue(this);
    }
}

impl CmHandler for Inner {
    fn event(_this: ArcBorrow<'_, Self>, _event: CmEvent<'_>) {}

    fn request(this: ArcBorrow<'_, Self>, incoming: Incoming<'_>) -> Result {
        let conn = match Self::look(&incoming) {
            Ok(conn) => conn,
            // The endpoint has just been closed, which the peer learns by its connection.
            Err(e) if e == ENOENT => return Err(e),
            Err(e) => {
                incoming.refuse(&REFUSAL);
                return Err(e);
            }
        };
        let from = incoming.peer_addr();
        {
            let mut pending = this.pending.lock();
            if !Self::has_place(&pending, &conn, &from) {
                // The connection manager refuses without a message, so the peer may try again.
                return Err(EAGAIN);
            }
            let param = incoming.param;
            let request = Pending {
                conn,
                id: incoming.adopt(this.waiting.clone()),
                param,
                from,
            };
            // Cannot fail: the list was created with its capacity.
            let _ = pending.push_within_capacity(request);
        }
        let this: Arc<Self> = this.into();
        // If the work item is queued already, its run finds the new request.
        let _ = work::channels().enqueue(this);
        Ok(())
    }
}

/// An entry of the list of listeners.
struct Entry {
    net: Net,
    users: usize,
    inner: Arc<Inner>,
}

kernel::sync::global_lock! {
    // SAFETY: `List::new` initialises the lock at module load, before any domain is opened.
    unsafe(uninit) static LISTENERS: Mutex<KVec<Entry>> = KVec::new();
}

/// Owns the list of listeners. Dropping it frees the list.
pub(crate) struct List(());

impl List {
    /// Initialises the list.
    ///
    /// # Safety
    ///
    /// The caller calls this function once, at module load, before any domain is opened.
    #[expect(unsafe_code, reason = "a global lock is initialised so")]
    pub(crate) unsafe fn new() -> Self {
        // SAFETY: The caller calls `new` once, before any use of the lock.
        unsafe { LISTENERS.init() };
        Self(())
    }
}

impl Drop for List {
    fn drop(&mut self) {
        let list = core::mem::replace(&mut *LISTENERS.lock(), KVec::new());
        drop(list);
    }
}

/// A use of a namespace's listener. The drop of the last one stops listening.
pub(crate) struct Listener(Net);

impl Listener {
    /// Listens in `net`, or uses the listener there.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory.
    /// - `EADDRINUSE` if another service has the port, or another error of the connection manager.
    pub(crate) fn new(net: &Net) -> Result<Self> {
        let inner = Self::enter(net)?;
        let this = Self(net.clone());
        let _ = work::channels().enqueue(inner.clone());
        work::flush(&inner);
        let failed = inner.listening.lock().failed;
        match failed {
            Some(e) => Err(e),
            None => Ok(this),
        }
    }

    /// Returns the listener in `net`, with one more user.
    fn enter(net: &Net) -> Result<Arc<Inner>> {
        let mut list = LISTENERS.lock();
        if let Some(entry) = list.iter_mut().find(|e| e.net.as_ptr() == net.as_ptr()) {
            entry.users += 1;
            return Ok(entry.inner.clone());
        }
        list.reserve(1, GFP_KERNEL_ACCOUNT)?;
        let waiting = Arc::new(Waiting, GFP_KERNEL_ACCOUNT)?;
        let pending = KVec::with_capacity(PENDING_MAX, GFP_KERNEL_ACCOUNT)?;
        let inner = Arc::pin_init(
            pin_init!(Inner {
                net: net.clone(),
                listening <- new_mutex!(Listening {
                    id: None,
                    failed: None,
                    ended: false,
                }, "kverbs_channel_listener"),
                pending <- new_mutex!(pending, "kverbs_channel_requests"),
                waiting,
                work <- new_work!("kverbs_channel_listener"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let entry = Entry {
            net: net.clone(),
            users: 1,
            inner: inner.clone(),
        };
        // Cannot fail: the capacity was reserved above.
        let _ = list.push_within_capacity(entry);
        Ok(inner)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let inner = {
            let mut list = LISTENERS.lock();
            let found = list.iter().position(|e| e.net.as_ptr() == self.0.as_ptr());
            let Some(at) = found else { return };
            let Some(entry) = list.get_mut(at) else {
                return;
            };
            entry.users -= 1;
            if entry.users != 0 {
                return;
            }
            let Ok(Entry { inner, .. }) = list.remove(at) else {
                return;
            };
            let id = {
                let mut listening = inner.listening.lock();
                listening.ended = true;
                listening.id.take()
            };
            // No request arrives after this. Under the list's lock: a new listener of the namespace
            // finds the port free.
            drop(id);
            inner
        };
        work::flush(&inner);
    }
}
