// SPDX-License-Identifier: GPL-2.0
//! Endpoints, listeners and connection requests.

use core::any::Any;

use kernel::prelude::*;

use crate::{
    base::errno::eopnotsupp,
    ep::OpToken,
    op::OpDesc,
    uapi::SockAddr, //
};

/// Sizes of an endpoint. In: the wanted sizes. Out: the granted sizes, which are no smaller.
#[derive(Clone, Copy, Default)]
pub struct EndpointAttr {
    /// Operations of the transmit side.
    pub tx_size: u32,
    /// Receives of the receive side.
    pub rx_size: u32,
    /// Scatter entries of one operation.
    pub iov_limit: u32,
    /// Bytes that may be injected.
    pub inject_size: u32,
    /// Address to connect from; `len` 0: by route.
    pub src_addr: SockAddr,
}

/// A queue pair and its connection.
///
/// Each token that [`EndpointOps::post`] has accepted is completed exactly once, in every state.
/// When a connection ends, the first failed operation completes with its own error, the others with
/// `ECANCELED`.
pub trait EndpointOps: Send + Sync {
    /// Prepares the endpoint for receives. Called once, before connect or accept.
    fn enable(&self) -> Result;

    /// Starts to connect; the outcome goes to the sink.
    fn connect(&self, addr: &SockAddr, data: &[u8]) -> Result;

    /// Accepts the request that the endpoint was created with; the outcome goes to the sink.
    fn accept(&self, data: &[u8]) -> Result;

    /// Starts to end the connection and notifies the sink. Does nothing without a connection.
    fn shutdown(&self) -> Result;

    /// Posts one operation. Context: any.
    ///
    /// # Errors
    ///
    /// All errors return the token.
    ///
    /// - `EAGAIN` if the queue is full; retry after a completion.
    /// - `ENOTCONN` if the endpoint is not connected.
    fn post(&self, op: &OpDesc<'_>, token: OpToken) -> Result<(), (Error, OpToken)>;

    /// Completes one posted receive of this context with `ECANCELED`.
    fn cancel(&self, _context: u64) -> Result {
        Err(eopnotsupp())
    }

    /// Returns the endpoint's local address, if known (`len` 0: not yet).
    fn local_addr(&self) -> SockAddr;

    /// Returns the peer's address, if known.
    fn peer_addr(&self) -> SockAddr;

    /// Ends the endpoint, in bounded time. Idempotent.
    ///
    /// After the return every token is completed and every call of [`OpToken::complete`] has
    /// returned. (A token holds queues, whose end may sleep.) The provider makes no more calls to
    /// the sink, and has freed the endpoint's hardware resources.
    fn close(&self);
}

/// A listening address.
pub trait ListenerOps: Send + Sync {
    /// Starts to listen.
    fn listen(&self, backlog: u32) -> Result;

    /// The address, with the port chosen.
    fn local_addr(&self) -> SockAddr;

    /// Ends the listener: after the return the sink is not called again. Idempotent.
    fn close(&self);
}

/// An unanswered connection request. The drop refuses it.
pub trait ConnRequestOps: Send + Sync {
    /// Lets the provider downcast to its own type.
    fn as_any(&self) -> &dyn Any;

    /// Refuses the request, with application data for the peer. The request is used up.
    fn reject(&self, data: &[u8]) -> Result;
}
