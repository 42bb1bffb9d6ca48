// SPDX-License-Identifier: GPL-2.0
//! Events of a connection: the work item, which handles them one after the other, and the
//! transitions between the phases.

use core::sync::atomic::Ordering;
use kernel::{
    bindings,
    sync::{
        Arc,
        ArcBorrow, //
    },
    workqueue::WorkItem, //
};

use super::{
    connection::{
        Call,
        Connection,
        Ctl, //
    },
    handshake::{
        self,
        Handshake, //
    },
    inbox::Todo, //
};
use crate::{
    errno,
    ib::{
        cm::{
            CmEvent,
            CmEventKind,
            CmHandler,
            REJ_CONSUMER, //
        },
        qp::QueuePair, //
    },
};
use kfabric::{
    base::errno::ekeyrejected,
    provider::{
        helpers::{
            Ended,
            Phase, //
        },
        EndpointSink, //
    }, //
};

impl Connection {
    fn take(&self) -> Option<Todo> {
        self.inbox.lock().take()
    }

    /// Handles an event of the identifier in the current phase.
    fn event(&self, ctl: &mut Ctl, kind: CmEventKind, status: i32) -> Option<Call> {
        use CmEventKind::*;
        if ctl.phase == Phase::Closed {
            return None;
        }
        let connecting = ctl.phase == Phase::Connecting;
        match kind {
            AddrResolved if connecting => self.step(ctl, Self::addr_resolved),
            RouteResolved if connecting => self.step(ctl, Self::route_resolved),
            Response if connecting => self.step(ctl, Self::responded).or_else(|| self.up(ctl)),
            Established if connecting && self.is_iwarp() => match ctl.offered {
                None => self.step(ctl, Self::accepted).or_else(|| self.up(ctl)),
                // The accepting side waits for the greeting.
                Some(_) => None,
            },
            Established if connecting && ctl.handshake.as_ref().is_none_or(Handshake::is_done) => {
                self.up(ctl)
            }
            // The attempt was given up meanwhile; the peer would wait or believe that it is
            // connected.
            Response if ctl.phase == Phase::Down => {
                if let Some(id) = &ctl.id {
                    let _ = id.reject(&[]);
                }
                None
            }
            Established if ctl.phase == Phase::Down => {
                if let Some(id) = &ctl.id {
                    id.disconnect();
                }
                None
            }
            Unresolved => {
                let err = match errno::of_cm(status, bindings::EHOSTUNREACH) {
                    // No RDMA device leads to the address; the local device still works.
                    bindings::ENODEV => bindings::EHOSTUNREACH,
                    other => other,
                };
                self.down(ctl, err, status.unsigned_abs())
            }
            Unreachable => {
                let err = errno::of_cm(status, bindings::ETIMEDOUT);
                self.down(ctl, err, status.unsigned_abs())
            }
            ConnectError => {
                let err = errno::of_cm(status, bindings::ECONNABORTED);
                self.down(ctl, err, status.unsigned_abs())
            }
            Rejected if status == REJ_CONSUMER && ctl.handshake.is_none() && !self.is_plain() => {
                self.down(ctl, errno::number(ekeyrejected()), 0)
            }
            Rejected => self.down_refused(ctl, status),
            Disconnected if connecting && self.is_iwarp() && Self::is_accepted(ctl) => {
                // The receive for the greeting completes now, if it has not already.
                ctl.over = true;
                if let Some(qp) = &ctl.qp {
                    qp.fail();
                }
                None
            }
            Disconnected if connecting && Self::is_accepted(ctl) => {
                // The peer was connected, or it could not disconnect: its disconnect request
                // arrived before its "ready to use".
                self.inbox.lock().put_bare(kind, status);
                self.up(ctl)
            }
            Disconnected | TimewaitExit => {
                // The peer may disconnect because of a local failure, before that failure is
                // reported here.
                let failed =
                    |qp: &QueuePair<Self>| ctl.phase == Phase::Connected && qp.has_failed();
                let err = match ctl.qp.as_ref().is_some_and(failed) {
                    true => bindings::ECONNABORTED,
                    false => 0,
                };
                self.down(ctl, err, 0)
            }
            AddrChange => self.down(ctl, bindings::EHOSTUNREACH, 0),
            DeviceRemoval => {
                let call = self.down(ctl, bindings::ENODEV, 0);
                self.destroy(ctl);
                call
            }
            _ => None,
        }
    }

    /// Ends the connection because the peer refused it, with the connection manager's reason.
    pub(super) fn down_refused(&self, ctl: &mut Ctl, reason: i32) -> Option<Call> {
        let mut call = self.down(ctl, bindings::ECONNREFUSED, reason.unsigned_abs());
        if let Some(Call::Ended { with_data, .. }) = &mut call {
            // Only a refusal by the application carries its data.
            *with_data = reason == REJ_CONSUMER;
        }
        call
    }

    /// Returns whether this side accepted the peer's request and has not ended the connection.
    fn is_accepted(ctl: &Ctl) -> bool {
        ctl.offered.is_some() && ctl.qp.as_ref().is_some_and(|qp| !qp.is_ended())
    }

    /// Handles an event. Returns the call of the sink to make, and the sink.
    fn act(this: &Arc<Self>, todo: Todo) -> (Option<Call>, Option<Arc<dyn EndpointSink>>) {
        let mut guard = this.ctl.lock();
        let ctl = &mut *guard;
        let connects = ctl.phase == Phase::Connecting && ctl.handshake.is_some();
        let call = match todo {
            Todo::Event(CmEventKind::Rejected, REJ_CONSUMER) if connects => {
                Self::refused(this, ctl)
            }
            Todo::Event(kind, status) => this.event(ctl, kind, status),
            Todo::Failed(..) if ctl.phase == Phase::Closed => None,
            Todo::Failed(err, false) => this.down(ctl, err, 0),
            Todo::Failed(err, true) => {
                // The next tick may come at once; the second one leaves the peer at least a whole
                // tick.
                this.lingering.store(2, Ordering::Release);
                this.down_lingering(ctl, err, 0)
            }
            Todo::Greeted(arrived) => this.greeted(ctl, arrived),
            Todo::Lingered => {
                this.halt(ctl);
                if let Some(id) = &ctl.id {
                    id.disconnect();
                }
                this.destroy_unflushed(ctl);
                None
            }
            Todo::Late if ctl.phase == Phase::Connecting => {
                let call = this.down(ctl, bindings::ETIMEDOUT, 0);
                // Destroying the identifier notifies the peer, which then stops repeating its
                // response.
                this.destroy(ctl);
                call
            }
            Todo::Late => None,
            Todo::NotifyEstablished => {
                if let (Phase::Connecting, Some(id)) = (ctl.phase, &ctl.id) {
                    id.notify_established();
                }
                None
            }
        };
        let sink = call.as_ref().and_then(|_| ctl.sink.clone());
        (call, sink)
    }
}

impl Connection {
    /// Handles an event, and calls the sink without a lock.
    fn handle(this: &Arc<Self>, todo: Todo) {
        if let Todo::Event(kind @ CmEventKind::Disconnected, status) = todo {
            this.data.await_answers();
            // Report a failure from those answers before the peer's disconnect, which it caused.
            if this.inbox.lock().put_behind_failure(kind, status) {
                return;
            }
        }
        let (Some(call), Some(sink)) = Self::act(this, todo) else {
            return;
        };
        let (message, len) = this.inbox.lock().message();
        let data = handshake::data(&message[..len]);
        match call {
            Call::Connected => sink.connected(data),
            Call::Ended {
                ended: Ended::ConnError(err),
                prov_errno,
                with_data,
            } => sink.conn_error(err, prov_errno, if with_data { data } else { &[] }),
            Call::Ended {
                ended: Ended::Shutdown(err),
                ..
            } => sink.shutdown(err),
        }
    }
}

impl WorkItem for Connection {
    type Pointer = Arc<Connection>;

    fn run(this: Arc<Connection>) {
        this.worker.run(|| {
            while let Some(todo) = this.take() {
                Self::handle(&this, todo);
            }
        });
    }
}

impl CmHandler for Connection {
    fn event(this: ArcBorrow<'_, Self>, event: CmEvent<'_>) {
        this.inbox.lock().put(&event);
        Self::schedule(this);
    }
}
