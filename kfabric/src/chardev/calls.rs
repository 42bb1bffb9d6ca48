// SPDX-License-Identifier: GPL-2.0
//! The handlers of ioctls, one file for each subject.
//!
//! A handler gets the file and a copy of the call's structure, and leaves its results in the copy.
//! The handler returns the changes that are undone if the copy cannot be copied out.
//!
//! - `info`: offers.
//! - `object`: opening, binding, enabling and closing of objects.
//! - `conn`: connections, their events and rings.
//! - `counter`: counters.
//! - `region`: regions.
//! - `key`, `key_assign_many`, `key_revoke_many`: key slots, one by one and in batches.
//! - `auth`: the mode, grants, and the agent's calls.
//! - `submit`: the data path.
//! - `list`: listing of objects.

pub(super) mod auth;
pub(super) mod conn;
pub(super) mod counter;
pub(super) mod info;
pub(super) mod key;
pub(super) mod key_assign_many;
pub(super) mod key_revoke_many;
pub(super) mod list;
pub(super) mod object;
pub(super) mod region;
pub(super) mod submit;
