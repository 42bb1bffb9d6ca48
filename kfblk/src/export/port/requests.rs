// SPDX-License-Identifier: GPL-2.0
//! A port's connections, and the requests for more.

use core::ptr;
use kernel::{
    prelude::*,
    sync::Arc,
    workqueue::WorkItem, //
};
use kfabric::{
    pure::blk::{
        device::WANTED,
        share::{
            self,
            Limits,
            Verdict, //
        }, //
    },
    uapi::KFI_CONN_ERROR,
};

use super::{
    place::source_of,
    Port, //
};
use crate::{
    export::{
        connection::Connection,
        take_ptr, //
    },
    sys,
    waiter::Receiver, //
};

/// Connections of a port, at most.
const CONNECTIONS_MAX: usize = 4096;
/// Limits for a port's connections. One source address has a quarter of them.
const LIMITS: Limits = Limits {
    all: CONNECTIONS_MAX,
    of_source: CONNECTIONS_MAX / 4,
    strangers: 128,
    strangers_of_source: 32,
};
impl WorkItem for Port {
    type Pointer = Arc<Port>;

    fn run(this: Arc<Port>) {
        Self::serve(&this);
    }
}

impl Receiver for Arc<Port> {
    type Batch = ();

    // A station has no completion queue.
    fn completed(&self) {}

    fn finish((): (), _may_sleep: bool) -> bool {
        false
    }

    // The port's work handles connection requests.
    fn event(&self) {
        // Queued work needs no second entry: it reads the queue when it runs.
        let _ = sys::exports().enqueue::<_, 0>(self.clone());
    }
}

impl Port {
    /// Returns a connection that `which` selects.
    pub(super) fn next_connection(
        &self,
        which: impl Fn(&Connection) -> bool,
    ) -> Option<Arc<Connection>> {
        let inner = self.inner.lock();
        inner
            .connections
            .iter()
            .find(|connection| which(connection))
            .cloned()
    }

    /// Returns how many other connections of the source of `connection` have memory for
    /// block-backed requests. Connections with an auth key do not count.
    pub(in crate::export) fn memory_of(&self, connection: &Connection) -> usize {
        let inner = self.inner.lock();
        let near = |of: &Connection| {
            of.source() == connection.source() && !of.is_proven() && of.has_memory()
        };
        let others = inner
            .connections
            .iter()
            .filter(|of| !ptr::eq(&raw const ***of, connection));
        others.filter(|of| near(of)).count()
    }

    /// Removes a connection that has ended.
    pub(in crate::export) fn forget(&self, connection: &Connection) {
        let taken = take_ptr(&mut self.inner.lock().connections, connection);
        drop(taken);
    }

    /// Handles connection requests.
    fn serve(this: &Arc<Self>) {
        loop {
            let station = this.inner.lock().station.clone();
            let Some(station) = station else { return };
            let Some(event) = station.eq.read() else {
                return;
            };
            if event.kind == KFI_CONN_ERROR {
                return Self::lost(this, &station);
            }
            let Some(request) = &event.request else {
                continue;
            };
            let (verdict, oldest) = {
                let inner = this.inner.lock();
                let connections = inner
                    .connections
                    .iter()
                    .map(|connection| (connection.source(), connection.stage()));
                let verdict =
                    share::decide(connections, source_of(&request.info().dest_addr), &LIMITS);
                match verdict {
                    Verdict::InsteadOf(index) => (verdict, inner.connections.get(index).cloned()),
                    _ => (verdict, None),
                }
            };
            if verdict == Verdict::Refuse {
                let _ = request.reject(&[]);
                continue;
            }
            // The connection's work ends it, because that may take long and other requests wait
            // here.
            if let Some(oldest) = oldest {
                oldest.doom();
            }
            let roomy = event.data.first() == Some(&WANTED);
            // If the endpoint cannot be opened, dropping the request refuses it.
            let Ok(connection) = Connection::open(this, &station.domain, request, roomy) else {
                continue;
            };
            let kept = {
                let mut inner = this.inner.lock();
                let open = inner
                    .station
                    .as_ref()
                    .is_some_and(|of| Arc::ptr_eq(of, &station));
                open && inner
                    .connections
                    .push(connection.clone(), GFP_KERNEL)
                    .is_ok()
            };
            if !kept || connection.accept().is_err() {
                connection.end();
            }
        }
    }
}
