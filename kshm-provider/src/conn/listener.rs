// SPDX-License-Identifier: GPL-2.0
//! Listening addresses.

use kernel::{
    impl_has_work,
    new_work,
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

use super::{
    addr::Name,
    names::Names,
    request::Request, //
};
use crate::{
    info,
    sys::work, //
};
use kfabric::{
    base::errno::ekeyrejected,
    provider::{
        helpers::{
            deliver,
            Worker, //
        },
        ListenSink,
        ListenerOps,
        Proof, //
    },
    pure::proof::Mac,
    sys::net::{
        Net,
        Owner, //
    },
    uapi::SockAddr, //
};

/// Maximum number of requests that wait for the work item. The core limits the requests that wait
/// for the application; this limit bounds the memory that peers can occupy before.
const PENDING_MAX: usize = 1024;

/// State under the lock.
struct Ctl {
    /// Requests are accepted.
    listening: bool,
    /// Requests in order of arrival. The room for [`PENDING_MAX`] requests is allocated in advance. An
    /// allocation under the lock could wait for reclaim in one peer's cgroup, and all peers with it.
    requests: KVec<Arc<Request>>,
    sink: Option<Arc<dyn ListenSink>>,
}

/// A listener, as the table of names and connecting endpoints refer to it.
#[pin_data]
pub(crate) struct Inner {
    #[pin]
    ctl: Mutex<Ctl>,
    #[pin]
    work: Work<Inner>,
    /// The task that runs the work item.
    worker: Worker,
    /// Serializes calls of `close`.
    #[pin]
    closing: Mutex<()>,
    /// Marks of the auth keys that a peer must have one of. Empty: peers must have none.
    marks: KVec<Mac>,
    /// The user that created the listener.
    owner: Owner,
}

impl_has_work! {
    impl HasWork<Self> for Inner { self.work }
}

impl Inner {
    /// Returns the index of the peer's auth key among those of this listener. `mark`: the mark of
    /// the peer's auth key.
    ///
    /// # Errors
    ///
    /// - `EKEYREJECTED` if the peer's auth key is not among them, or the peer has one and the
    ///   listener has none, or the reverse.
    pub(crate) fn prove(&self, mark: Option<&Mac>) -> Result<Option<usize>> {
        let Some(mark) = mark else {
            return self
                .marks
                .is_empty()
                .then_some(None)
                .ok_or_else(ekeyrejected);
        };
        let index = self.marks.iter().position(|wanted| wanted == mark);
        index.map(Some).ok_or_else(ekeyrejected)
    }

    /// Returns the distinct marks of the listener's auth keys, or one `None` if it has none.
    pub(crate) fn marks(&self) -> impl Iterator<Item = Option<Mac>> + '_ {
        let none = self.marks.is_empty().then_some(None);
        // Two auth keys of different bytes may have the same mark.
        let first = |&(index, mark): &(usize, &Mac)| {
            self.marks.iter().position(|other| other == mark) == Some(index)
        };
        let some = self.marks.iter().enumerate().filter(first);
        Iterator::chain(none.into_iter(), some.map(|(_, mark)| Some(*mark)))
    }

    /// Returns the user that created the listener.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Queues a connection request. Locking: caller holds the control lock of the initiator.
    ///
    /// # Errors
    ///
    /// The caller then drops the request, which refuses it.
    ///
    /// - `EAGAIN` if the listener is not active, or too many requests wait.
    pub(crate) fn ask(this: &Arc<Self>, request: Arc<Request>) -> Result {
        {
            let mut ctl = this.ctl.lock();
            if !ctl.listening || ctl.requests.len() >= PENDING_MAX {
                return Err(EAGAIN);
            }
            ctl.requests
                .push_within_capacity(request)
                .map_err(|_| EAGAIN)?;
        }
        // A work item that is queued already will see the request.
        let _ = work::events().enqueue(this.clone());
        Ok(())
    }

    fn next(&self) -> Option<Delivery> {
        let mut ctl = self.ctl.lock();
        if ctl.requests.is_empty() {
            return None;
        }
        let request = ctl.requests.remove(0).ok()?;
        Some((request, ctl.sink.clone()))
    }
}

impl WorkItem for Inner {
    type Pointer = Arc<Inner>;

    fn run(this: Arc<Inner>) {
        this.worker.run(|| {
            while let Some((request, sink)) = this.next() {
                let Some(sink) = sink else { continue };
                let (local, peer) = request.addresses();
                let mut entry = info::entry(local, true);
                entry.dest_addr = peer;
                deliver(
                    &sink,
                    request.clone(),
                    &entry,
                    request.data(),
                    request.proven(),
                );
            }
        });
    }
}

/// A request, and the sink that receives it unless the listener is closed.
type Delivery = (Arc<Request>, Option<Arc<dyn ListenSink>>);

/// The core's reference to a listener.
pub(crate) struct Listener {
    inner: Arc<Inner>,
    names: Arc<Names>,
    name: Name,
    local: SockAddr,
    /// Keeps the namespace of `name` alive.
    _net: Net,
}

impl Listener {
    /// Listens at `addr`. A peer must have one of `proofs`, or no auth key if `proofs` is empty.
    ///
    /// # Errors
    ///
    /// The errors of [`Names::add`].
    pub(crate) fn new(
        names: &Arc<Names>,
        net: &Net,
        addr: &SockAddr,
        proofs: KVec<Arc<dyn Proof>>,
        sink: Arc<dyn ListenSink>,
    ) -> Result<Arc<Self>> {
        let ctl = Ctl {
            listening: false,
            requests: KVec::new(),
            sink: Some(sink),
        };
        let mut marks = KVec::with_capacity(proofs.len(), GFP_KERNEL_ACCOUNT)?;
        for proof in &proofs {
            marks.push(names.mark(proof), GFP_KERNEL_ACCOUNT)?;
        }
        let inner = Arc::pin_init(
            pin_init!(Inner {
                ctl <- new_mutex!(ctl, "kshm_listener"),
                work <- new_work!("kshm_listener"),
                worker: Worker::new(),
                closing <- new_mutex!((), "kshm_closing"),
                marks,
                owner: Owner::current(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let mut local = *addr;
        let name = names.add(net, &mut local, &inner)?;
        let listener = Self {
            inner,
            names: names.clone(),
            name,
            local,
            _net: net.clone(),
        };
        Arc::new(listener, GFP_KERNEL_ACCOUNT).map_err(|e| e.into())
    }
}

impl ListenerOps for Listener {
    fn listen(&self, _backlog: u32) -> Result {
        let requests = KVec::with_capacity(PENDING_MAX, GFP_KERNEL_ACCOUNT)?;
        let mut ctl = self.inner.ctl.lock();
        if !ctl.listening {
            ctl.requests = requests;
            ctl.listening = true;
        }
        Ok(())
    }

    fn local_addr(&self) -> SockAddr {
        self.local
    }

    fn close(&self) {
        let inner = &self.inner;
        let _closing = inner.closing.lock();
        let sink = {
            let mut ctl = inner.ctl.lock();
            ctl.listening = false;
            ctl.sink.take()
        };
        let Some(sink) = sink else { return };
        self.names.remove(&self.name, inner);
        // No request arrives any more. Undelivered requests are refused by their drop.
        while let Some((request, _)) = inner.next() {
            drop(request);
        }
        if !inner.worker.is_current() {
            work::flush::<_, 0>(inner);
        }
        drop(sink);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}
