// SPDX-License-Identifier: GPL-2.0
//! Keys.
//!
//! | module | contents |
//! |---|---|
//! | [`slot`] | key slots |
//! | [`group`] | protection groups |
//! | [`table`] | table of all keys of the host |

pub(crate) mod group;
pub(crate) mod slot;
pub(crate) mod table;
