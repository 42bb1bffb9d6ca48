// SPDX-License-Identifier: GPL-2.0
//! Listening addresses.

use core::sync::atomic::{
    AtomicUsize,
    Ordering, //
};
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

use crate::{
    info,
    names::Name,
    provider::Host,
    request::Request,
    sys, //
};
use kfabric::{
    errno::ekeyrejected,
    net::{
        Net,
        Owner, //
    },
    provider::{
        ConnRequestOps,
        ListenSink,
        ListenerOps,
        Proof, //
    },
    pure::proof::Mac,
    uapi::SockAddr, //
};

/// Requests that may wait for the work item. How many may wait for the application is the core's
/// business; this only bounds what peers can make us keep meanwhile.
const PENDING_MAX: usize = 1024;

/// What the lock protects.
struct Ctl {
    /// Requests are taken.
    listening: bool,
    /// In the order in which they came.
    requests: KVec<Arc<Request>>,
    sink: Option<Arc<dyn ListenSink>>,
}

/// A listener as those who connect know it.
#[pin_data]
pub(crate) struct Inner {
    #[pin]
    ctl: Mutex<Ctl>,
    #[pin]
    work: Work<Inner>,
    /// The task that runs the work item, while it does.
    worker: AtomicUsize,
    /// Held throughout a close.
    #[pin]
    closing: Mutex<()>,
    /// The marks of auth keys: who connects has one of these, or none if there are none.
    marks: KVec<Mac>,
    /// The user that listens.
    owner: Owner,
}

impl_has_work! {
    impl HasWork<Self> for Inner { self.work }
}

impl Inner {
    /// Which auth key somebody has, whose has that `mark`, of those that are wanted here.
    ///
    /// # Errors
    ///
    /// `EKEYREJECTED`: none of them, or one where none is wanted.
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

    /// The marks of the auth keys that are wanted, each once; or that none is.
    pub(crate) fn marks(&self) -> impl Iterator<Item = Option<Mac>> + '_ {
        let none = self.marks.is_empty().then_some(None);
        // Different bytes may be one auth key to those who prove it.
        let first = |&(index, mark): &(usize, &Mac)| {
            self.marks.iter().position(|other| other == mark) == Some(index)
        };
        let some = self.marks.iter().enumerate().filter(first);
        Iterator::chain(none.into_iter(), some.map(|(_, mark)| Some(*mark)))
    }

    /// The user that listens.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Somebody asks. The caller holds the lock of its own endpoint.
    ///
    /// # Errors
    ///
    /// `EAGAIN`, `ENOTCONN`: nobody takes it, and dropping it refuses it. `ENOMEM`.
    pub(crate) fn ask(this: &Arc<Self>, request: Arc<Request>) -> Result {
        {
            let mut ctl = this.ctl.lock();
            if !ctl.listening || ctl.requests.len() >= PENDING_MAX {
                return Err(EAGAIN);
            }
            ctl.requests.push(request, GFP_KERNEL_ACCOUNT)?;
        }
        // If it is queued already it will see what was put in.
        let _ = sys::events().enqueue(this.clone());
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
        this.worker.store(sys::current(), Ordering::Release);
        while let Some((request, sink)) = this.next() {
            let Some(sink) = sink else { continue };
            let (local, peer) = request.addresses();
            let mut entry = info::entry(local, true);
            entry.dest_addr = peer;
            let ops: Arc<dyn ConnRequestOps> = request.clone();
            // Whoever does not take it drops it, which refuses it.
            let _ = match request.proven() {
                Some(index) => sink.proven(ops, &entry, request.data(), index),
                None => sink.request(ops, &entry, request.data()),
            };
        }
        this.worker.store(0, Ordering::Release);
    }
}

/// A request, and who hears of it, if anybody does.
type Delivery = (Arc<Request>, Option<Arc<dyn ListenSink>>);

/// A listener as the core has it.
pub(crate) struct Listener {
    inner: Arc<Inner>,
    host: Arc<Host>,
    name: Name,
    local: SockAddr,
    /// Its name is one of this namespace's, so it stays.
    _net: Net,
}

impl Listener {
    /// Takes `addr`. Who connects has to have one of `proofs`, or no auth key if there are none.
    ///
    /// # Errors
    ///
    /// What [`Names::add`](crate::names::Names::add) says.
    pub(crate) fn new(
        host: &Arc<Host>,
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
            marks.push(host.names.mark(proof), GFP_KERNEL_ACCOUNT)?;
        }
        let inner = Arc::pin_init(
            pin_init!(Inner {
                ctl <- new_mutex!(ctl, "kshm_listener"),
                work <- new_work!("kshm_listener"),
                worker: AtomicUsize::new(0),
                closing <- new_mutex!((), "kshm_closing"),
                marks,
                owner: Owner::current(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let mut local = *addr;
        let name = host.names.add(net, &mut local, &inner)?;
        let listener = Self {
            inner,
            host: host.clone(),
            name,
            local,
            _net: net.clone(),
        };
        Arc::new(listener, GFP_KERNEL_ACCOUNT).map_err(|e| e.into())
    }
}

impl ListenerOps for Listener {
    fn listen(&self, _backlog: u32) -> Result {
        self.inner.ctl.lock().listening = true;
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
        self.host.names.remove(&self.name, inner);
        // Nothing new comes now; what has come and was not delivered is refused.
        while let Some((request, _)) = inner.next() {
            drop(request);
        }
        if inner.worker.load(Ordering::Acquire) != sys::current() {
            sys::flush::<_, 0>(inner);
        }
        drop(sink);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}
