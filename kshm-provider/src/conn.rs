// SPDX-License-Identifier: GPL-2.0
//! Connections.
//!
//! | module | contents |
//! |---|---|
//! | [`connection`] | state machine of one end of a connection |
//! | [`inbox`] | events that peers store for an endpoint |
//! | [`addr`], [`names`] | listening addresses, and their table |
//! | [`listener`], [`request`] | listeners and connection requests |

pub(crate) mod addr;
pub(crate) mod connection;
mod inbox;
pub(crate) mod listener;
pub(crate) mod names;
pub(crate) mod request;
