// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grants, modes and the agent's side of kfabric's auth keys.
//!
//! For who administers a machine, and for who writes an agent of their own instead of running
//! `kfi-authd`. What it is all about is told in kfi_auth(7).
//!
//! * [`Grants`] installs, changes, lists and revokes grants, and shows and sets the mode.
//! * [`Agent`] is asked by the kernel where no grant says yes, and answers.
//! * [`AuthKey`] holds a key's bytes, reads them from files, and overwrites them when it goes.
//! * [`protocol`] is what `kfi-authd` speaks on its socket, and [`Client`] speaks with it: for job
//!   managers, which need no right of an administrator for that.
//!
//! All of it but the client needs `CAP_SYS_ADMIN` in the initial user namespace, for who opens the
//! device as for who makes the call (`EPERM`).

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
pub use process::{cgroup_id, netns_cookie, peer_groups, Process, CGROUP_ROOT};
pub use terms::{Limits, Looks, Mode, Rights};
pub use text::{parse_size, parse_time, time_text};
