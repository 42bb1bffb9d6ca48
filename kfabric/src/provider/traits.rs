// SPDX-License-Identifier: GPL-2.0
//! The traits that a provider implements, the sinks that the core implements, and their arguments.

mod domain;
mod endpoint;
mod key;
mod proof;
mod provider;
mod region;
mod sinks;

pub use self::{
    domain::{
        DomainAttr,
        DomainOps,
        GroupOps,
        KeyCounts,
        KeyValues, //
    },
    endpoint::{
        ConnRequestOps,
        EndpointAttr,
        EndpointOps,
        ListenerOps, //
    },
    key::{
        KeyAssign,
        KeyOps,
        KeyValue, //
    },
    proof::Proof,
    provider::Provider,
    region::RegionOps,
    sinks::{
        DomainSink,
        EndpointSink,
        ListenSink, //
    },
};
