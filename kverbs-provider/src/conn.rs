// SPDX-License-Identifier: GPL-2.0
//! Connections and passive endpoints.
//!
//! | module | contents |
//! |---|---|
//! | [`completer`] | the work item that completes durable writes |
//! | [`connection`] | the queue pair of an endpoint, and its connection |
//! | [`events`] | the work item, and transitions between the phases of a connection |
//! | [`setup`] | the steps of connecting and accepting |
//! | [`inbox`] | events that handlers leave for the work item |
//! | [`handshake`] | auth handshakes of both sides |
//! | [`listener`], [`request`] | passive endpoints and connection requests |
//! | [`addr`] | addresses of devices |

pub(crate) mod addr;
mod completer;
pub(crate) mod connection;
mod events;
mod handshake;
pub(crate) mod inbox;
pub(crate) mod listener;
pub(crate) mod request;
mod setup;
