// SPDX-License-Identifier: GPL-2.0
//! Data path of an endpoint.
//!
//! | module | contents |
//! |---|---|
//! | [`path`] | the data path of one endpoint, and how operations are posted |
//! | `tx`, `schedule` | send queue; the party that runs the send queue |
//! | `rx` | receive queue |
//! | `message`, `rma`, `atomic` | execution of an operation |
//! | `unregistered` | RMA with unregistered local memory |
//! | `cancel` | cancellation of receives, and of all operations |
//! | `local`, `budget` | local memory of an operation; limits of one run of a send queue |

mod atomic;
mod budget;
mod cancel;
mod local;
mod message;
pub(crate) mod path;
mod rma;
mod rx;
mod schedule;
mod tx;
mod unregistered;
