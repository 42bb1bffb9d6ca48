// SPDX-License-Identifier: GPL-2.0
//! Thin layer over C, with all unsafe code of the module.
//!
//! C header: `helpers.h` beside this crate.
//!
//! | module | contents |
//! |---|---|
//! | [`mem`] | copies |
//! | [`task`] | the current task, and random numbers |
//! | [`wait`] | wait queues |
//! | [`work`] | work queues |
//! | [`addr`] | addresses of this host |
//! | `raw` | bindings |

pub(crate) mod addr;
pub(crate) mod mem;
mod raw;
pub(crate) mod task;
pub(crate) mod wait;
pub(crate) mod work;
