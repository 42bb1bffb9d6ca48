// SPDX-License-Identifier: GPL-2.0
//! The steps of connecting and accepting: addresses, routes, the auth handshake, and the peer's
//! acceptance or refusal.

use core::sync::atomic::Ordering;
use kernel::{
    bindings,
    prelude::*,
    sync::Arc, //
};

use super::{
    connection::{
        Call,
        Connection,
        Ctl, //
    },
    handshake::{
        self,
        Handshake,
        Refusal, //
    }, //
};
use crate::{
    data::level,
    errno,
    ib::{
        cm::{
            CmEventKind,
            CmId,
            ConnParam,
            REJ_CONSUMER, //
        },
        qp::{
            Handling,
            QpSize,
            QueuePair, //
        }, //
    },
    limits::{
        ACK_TIMEOUT,
        CONNECT_TICKS,
        MIN_RNR_TIMER,
        RESOLVE_MS,
        RETRY_COUNT,
        RNR_RETRY, //
    }, //
};
use kfabric::{
    auth,
    base::errno::ekeyrejected,
    provider::helpers::Phase,
    pure::{
        commit::secret_of,
        wire::{
            self,
            Secret, //
        }, //
    },
    uapi::{
        SockAddr,
        KFI_REACH_NO, //
    }, //
};

/// Returns random bytes for a request or an answer.
fn new_secret() -> Secret {
    let mut secret = Secret::default();
    auth::random(&mut secret);
    secret
}

impl Connection {
    /// Implements [`EndpointOps::connect`](kfabric::provider::EndpointOps::connect).
    pub(crate) fn connect(this: &Arc<Self>, addr: &SockAddr, data: &[u8]) -> Result {
        let live = this.device.enter()?;
        let mut guard = this.ctl.lock();
        let ctl = &mut *guard;
        if ctl.phase != Phase::Enabled || ctl.id.is_some() {
            return Err(EINVAL);
        }
        match this.group().proof() {
            Some(proof) => {
                if this.is_iwarp() {
                    let port = this.device.ports().next().ok_or(ENODEV)?;
                    let pd = this.group().pd()?;
                    let (size, handling) = (QpSize::LEAST, Handling::Worker);
                    let qp = QueuePair::new(&live, &pd, this, size, port, handling)?;
                    ctl.hello_qp = Some(qp);
                }
                ctl.handshake = Some(Handshake::new(proof, data)?);
            }
            None => {
                let used = wire::encode(data, &mut ctl.message).map_err(|_| EINVAL)?;
                ctl.message_len = used;
                if this.has_channels() {
                    let secret = new_secret();
                    ctl.message_len = wire::append_secret(&mut ctl.message, used, &secret);
                    ctl.secret = (ctl.message_len != used).then_some(secret);
                }
            }
        }
        let id = CmId::new(&this.net, this.clone())?;
        id.set_timers(ACK_TIMEOUT, MIN_RNR_TIMER)?;
        id.resolve_addr(&ctl.local, addr, RESOLVE_MS)?;
        ctl.peer = *addr;
        ctl.id = Some(id);
        // Events of the identifier wait for the control lock.
        ctl.phase = Phase::Connecting;
        this.connecting.store(CONNECT_TICKS, Ordering::Release);
        Ok(())
    }

    /// Implements [`EndpointOps::accept`](kfabric::provider::EndpointOps::accept).
    ///
    /// After any other error the caller may try again.
    ///
    /// # Errors
    ///
    /// - `ECONNABORTED` if it is too late. The peer receives a refusal.
    /// - `EINVAL` if the endpoint is not an accepting one, or not in the right state.
    pub(crate) fn accept(&self, data: &[u8]) -> Result {
        let _live = self.device.enter()?;
        let mut message = [0; wire::REPLY_MAX];
        let mut guard = self.ctl.lock();
        let ctl = &mut *guard;
        if ctl.offered.is_none() {
            return Err(EINVAL);
        }
        ctl.phase.check_accept()?;
        let param = self.param(ctl)?;
        let (Some(id), Some(qp)) = (&ctl.id, &ctl.qp) else {
            return Err(EINVAL);
        };
        let mut secret = 0;
        let mut len = match &ctl.proven {
            Some(proven) => proven.reply(self.proven_qp(&param), data, &mut message)?,
            None => wire::encode(data, &mut message).map_err(|_| EINVAL)?,
        };
        if let Some(theirs) = ctl.secret.filter(|_| self.has_channels()) {
            let own = new_secret();
            let used = len;
            len = wire::append_secret(&mut message, used, &own);
            if len != used {
                secret = secret_of(&theirs, &own);
            }
        }
        if let Err(e) = qp.connect(id, RETRY_COUNT, RNR_RETRY) {
            if qp.is_broken() {
                self.down(ctl, 0, 0);
                return Err(Self::given_up());
            }
            if e == EINVAL {
                // The peer gave up and the event is still queued, or the peer's parameters are
                // invalid.
                let _ = id.reject(&[]);
                return Err(Self::given_up());
            }
            return Err(e);
        }
        self.identify(id, qp, secret);
        id.accept(&param, &message[..len])
            .map_err(|_| Self::given_up())?;
        self.connecting.store(CONNECT_TICKS, Ordering::Release);
        ctl.phase = Phase::Connecting;
        Ok(())
    }

    /// Returns whether the connection may have channels for durable writes.
    fn has_channels(&self) -> bool {
        level::durable(self.device.ib()) != KFI_REACH_NO
    }

    /// Returns the error of an accept that is too late: the peer did not wait, or the device failed
    /// the connection.
    pub(super) fn given_up() -> Error {
        // CAST: An errno is a small number.
        Error::from_errno(-(bindings::ECONNABORTED as i32))
    }

    /// Returns this side's connection parameters.
    fn param(&self, ctl: &Ctl) -> Result<ConnParam> {
        let (initiator, responder) = self.device.ib().max_rd_atom();
        let mut param = ConnParam {
            responder_resources: responder,
            initiator_depth: initiator,
            retry_count: RETRY_COUNT,
            rnr_retry_count: RNR_RETRY,
            qp_num: ctl
                .hello_qp
                .as_ref()
                .or(ctl.qp.as_ref())
                .ok_or(EINVAL)?
                .number(),
        };
        if let Some(offered) = &ctl.offered {
            param.responder_resources = responder.min(offered.responder_resources);
            param.initiator_depth = initiator.min(offered.initiator_depth);
        }
        Ok(param)
    }

    /// Returns the number of the local queue pair in an auth handshake. iWARP does not tell the peer a
    /// number: messages and data share one TCP connection.
    fn proven_qp(&self, param: &ConnParam) -> u32 {
        if self.is_iwarp() {
            return 0;
        }
        param.qp_num
    }

    /// Returns whether the peer's last message has no part of an auth handshake.
    pub(super) fn is_plain(&self) -> bool {
        let (message, len) = self.inbox.lock().message();
        handshake::is_plain(&message[..len])
    }

    /// Handles a refusal of a request with an auth key. The refusal may be a challenge for the
    /// handshake.
    pub(super) fn refused(this: &Arc<Self>, ctl: &mut Ctl) -> Option<Call> {
        let (message, len) = this.inbox.lock().message();
        let refused = match &mut ctl.handshake {
            Some(handshake) => handshake.refused(&message[..len]),
            None => Ok(Refusal::Plainly),
        };
        let err = match refused {
            Ok(Refusal::Again) => match Self::ask(this, ctl) {
                Ok(()) => return None,
                Err(e) => errno::number(e),
            },
            Ok(Refusal::ByApplication) => {
                return this.down_refused(ctl, REJ_CONSUMER);
            }
            Ok(Refusal::Plainly) => bindings::ECONNREFUSED,
            Err(e) => errno::number(e),
        };
        this.down(ctl, err, REJ_CONSUMER.unsigned_abs())
    }

    /// Sends a connection request with a new identifier: a refused identifier cannot be used again.
    fn ask(this: &Arc<Self>, ctl: &mut Ctl) -> Result {
        // No event of the old identifier arrives after this.
        drop(ctl.id.take());
        drop(ctl.hello_qp.take());
        this.inbox.lock().forget_events();
        let id = CmId::new(&this.net, this.clone())?;
        id.set_timers(ACK_TIMEOUT, MIN_RNR_TIMER)?;
        id.resolve_addr(&ctl.local, &ctl.peer, RESOLVE_MS)?;
        ctl.id = Some(id);
        Ok(())
    }

    /// Takes a step of connecting. If the step fails, ends the attempt with the step's error.
    pub(super) fn step(&self, ctl: &mut Ctl, go: fn(&Self, &mut Ctl) -> Result) -> Option<Call> {
        let e = go(self, ctl).err()?;
        self.down(ctl, errno::number(e), 0)
    }

    /// Looks for a route, after the addresses were resolved.
    pub(super) fn addr_resolved(&self, ctl: &mut Ctl) -> Result {
        let id = ctl.id.as_ref().ok_or(EINVAL)?;
        // The routing table may prefer another device, but only this device has the caller's
        // memory.
        if !id.is_on(self.device.ib()) {
            // CAST: An errno is a small number.
            return Err(Error::from_errno(-(bindings::EHOSTUNREACH as i32)));
        }
        id.resolve_route(RESOLVE_MS)
    }

    /// Sends the connection request, after the route was resolved.
    pub(super) fn route_resolved(&self, ctl: &mut Ctl) -> Result {
        let param = self.param(ctl)?;
        let id = ctl.id.as_ref().ok_or(EINVAL)?;
        if let Some(handshake) = &mut ctl.handshake {
            let (own, theirs) = id.path_gids()?;
            let ends = handshake::ends((&id.local_addr(), own), (&id.peer_addr(), theirs));
            let qp = self.proven_qp(&param);
            ctl.message_len = handshake.request(ends, qp, &mut ctl.message)?;
        }
        id.connect(&param, &ctl.message[..ctl.message_len])
    }

    /// Connects the queue pair and confirms, after the peer has accepted.
    pub(super) fn responded(&self, ctl: &mut Ctl) -> Result {
        let id = ctl.id.as_ref().ok_or(EINVAL)?;
        let qp = ctl.qp.as_ref().ok_or(EINVAL)?;
        let ((message, len), peer_qp) = {
            let inbox = self.inbox.lock();
            (inbox.message(), inbox.peer_qp())
        };
        let proven = match &mut ctl.handshake {
            Some(handshake) => handshake.accepted(&message[..len], peer_qp),
            None if handshake::is_plain(&message[..len]) => Ok(()),
            None => Err(ekeyrejected()),
        };
        if let Err(e) = proven {
            let _ = id.reject(&handshake::UNPROVEN);
            return Err(e);
        }
        qp.connect(id, RETRY_COUNT, RNR_RETRY)
            .and_then(|()| {
                let theirs = wire::secret(&message[..len]);
                let both = ctl.secret.zip(theirs);
                let secret = both.map_or(0, |(own, theirs)| secret_of(&own, &theirs));
                self.identify(id, qp, secret);
                id.establish()
            })
            .inspect_err(|_| {
                // The peer has accepted. Its connection manager repeats the response, and the local
                // one asks for more time, until this rejection.
                let _ = id.reject(&[]);
            })
    }

    /// Checks the peer's acceptance and sends the greeting, after the driver has connected an iWARP
    /// queue pair.
    pub(super) fn accepted(&self, ctl: &mut Ctl) -> Result {
        let qp = ctl.qp.as_ref().ok_or(EINVAL)?;
        let (message, len) = self.inbox.lock().message();
        match &mut ctl.handshake {
            Some(handshake) => handshake.accepted(&message[..len], 0)?,
            None if handshake::is_plain(&message[..len]) => {}
            None => return Err(ekeyrejected()),
        }
        qp.post_greeting()
    }

    /// Handles the arrival of the greeting, or its absence, on an iWARP connection.
    pub(super) fn greeted(&self, ctl: &mut Ctl, arrived: bool) -> Option<Call> {
        if ctl.phase != Phase::Connecting {
            return None;
        }
        if !arrived {
            return self.down(ctl, bindings::ECONNABORTED, 0);
        }
        if ctl.over {
            self.inbox.lock().put_bare(CmEventKind::Disconnected, 0);
        }
        self.up(ctl)
    }

    /// Handles the completion of the connection.
    pub(super) fn up(&self, ctl: &mut Ctl) -> Option<Call> {
        if ctl.phase != Phase::Connecting {
            return None;
        }
        if let Some(id) = &ctl.id {
            ctl.local = id.local_addr();
            ctl.peer = id.peer_addr();
        }
        ctl.phase = Phase::Connected;
        self.data.open();
        Some(Call::Connected)
    }
}
