// SPDX-License-Identifier: MIT OR Apache-2.0
//! Administration of kfabric's auth keys: grants, modes, and the agent.
//!
//! For administrators of a machine, and for authors of an agent of their own in place of
//! `kfi-authd`. `kfi_auth(7)` explains the concepts.
//!
//! - [`Grants`] installs, changes, lists and revokes grants, and shows and sets the mode.
//! - [`Agent`] takes the kernel's upcalls: requests that no grant covers. The agent allows or
//!   denies them.
//! - [`AuthKey`] holds an auth key's bytes, reads them from files, and overwrites them when
//!   dropped.
//! - [`protocol`] is the protocol of `kfi-authd`'s socket, and [`Client`] its client side. Job
//!   managers use it; it needs no administrator's rights.
//!
//! Everything but the client needs `CAP_SYS_ADMIN` in the initial user namespace, both when the
//! device is opened and when a call is made (`EPERM`).

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod agent;
mod client;
mod grants;
mod key;
mod process;
pub mod protocol;
mod terms;
mod text;

pub use agent::{Agent, Next, Question, Terms};
pub use client::{Client, ClientError};
pub use grants::{Grant, Grants, Rule, Setting, State, Used, Whom};
pub use key::{AuthKey, KeyError, KEY_MAX};
pub use process::{cgroup_id, netns_cookie, peer_groups, Process, CGROUP_ROOT, HOST_USERNS};
pub use terms::{Limits, Looks, Mode, Rights};
pub use text::{parse_size, parse_time, time_text};
