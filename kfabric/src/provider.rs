// SPDX-License-Identifier: GPL-2.0
//! Providers: the traits that a provider implements, the calls that a provider may make, and the
//! list of registered providers.
//!
//! A provider knows hardware. It never sees a file descriptor, a uid or an auth grant. Before each
//! call to the provider the core has checked those, pinned and charged the memory, bounded every
//! range, and reserved the completion.
//!
//! # Callers and contexts
//!
//! - Control calls ([`Provider`], [`DomainOps`], [`RegionOps`], [`KeyOps`] and all of
//!   [`EndpointOps`] except `post` and `cancel`) come from process context and may sleep.
//! - [`EndpointOps::post`] and [`EndpointOps::cancel`] come from any context. They neither allocate
//!   nor take a lock that a control call holds while it sleeps. They do not sleep, except `post` if
//!   [`OpDesc::may_sleep`](crate::op::OpDesc::may_sleep) is set.
//! - A provider calls the sinks ([`ListenSink`], [`EndpointSink`], [`DomainSink`]) from process
//!   context, and holds no lock that one of its control calls takes.
//! - A provider may call [`OpToken::complete`](crate::ep::OpToken::complete) from any context.
//!
//! # Lifetimes
//!
//! Every object that a provider returns holds references (`Arc`s) to the provider's objects that it
//! uses. The core drops keys before their region, and endpoints and regions before their domain.
//! The core holds a reference on the provider's module until the last object is dropped.
//!
//! When a device is removed, the provider disconnects its endpoints and completes their operations
//! with an error. It revokes the keys and undoes the mappings on the device. Then it calls
//! [`DomainSink::gone`], and returns `ENODEV` from then on. The objects stay until the core drops
//! them.

mod autoload;
pub mod helpers;
pub mod registry;
pub mod ring_pair;
mod select;
mod traits;

pub use self::traits::{
    ConnRequestOps,
    DomainAttr,
    DomainOps,
    DomainSink,
    EndpointAttr,
    EndpointOps,
    EndpointSink,
    GroupOps,
    KeyAssign,
    KeyCounts,
    KeyOps,
    KeyValue,
    KeyValues,
    ListenSink,
    ListenerOps,
    Proof,
    Provider,
    RegionOps, //
};
