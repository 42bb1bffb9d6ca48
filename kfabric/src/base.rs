// SPDX-License-Identifier: GPL-2.0
//! The base of all layers: error numbers, counters, injected failures, parents and children, each
//! user's share, reports of key events.

pub mod errno;
pub mod fault;
pub mod name;
pub(crate) mod parent;
pub mod share;
pub mod stats;
pub(crate) mod trace;
