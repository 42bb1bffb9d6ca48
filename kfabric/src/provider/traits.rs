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
        GroupOps, //
    },
    endpoint::{
        ConnRequestOps,
        EndpointAttr,
        EndpointOps,
        ListenerOps, //
    },
    key::{
        KeyAssign,
        KeyCounts,
        KeyOps,
        KeyValue,
        KeyValues, //
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
