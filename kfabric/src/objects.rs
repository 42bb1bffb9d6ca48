// SPDX-License-Identifier: GPL-2.0
//! Objects that the core owns: fabrics, domains, queues, counters, passive endpoints, connection
//! requests. Each holds its parents ([`Held`](crate::base::parent::Held)).

pub mod cntr;
pub mod conn_request;
pub mod cq;
pub mod domain;
pub mod eq;
pub mod fabric;
pub mod pep;
pub mod waiter;
