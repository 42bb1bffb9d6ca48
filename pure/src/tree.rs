// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The modules, as both compilers see them.
//!
//! | module | contents |
//! |---|---|
//! | [`addr`] | matching of socket addresses |
//! | [`atomic`] | results of atomic operations |
//! | [`blk`] | kfblk's wire protocol, and the mapping from bytes of a disk to keys |
//! | [`commit`] | messages of a commit channel, and the queue of writes that wait for a commit |
//! | [`copysize`] | copy rule of structures that may have grown |
//! | [`cqring`] | accounting of a completion ring, and the program's reader |
//! | [`gate`] | user count of an object that can be closed |
//! | [`gid`] | addresses of an RDMA port, found through its GID table |
//! | [`grant`] | tasks that a grant covers, its limits and its end |
//! | [`hold`] | queue of deferred operations |
//! | [`info`] | matching of a provider's offer with a caller's hints |
//! | [`key`] | state machine of a key slot |
//! | [`key_budget`] | bounds of the key values that a user draws |
//! | [`key_ledger`] | accounting of key values of verbs devices |
//! | [`pairs`] | copy plan between two lists of runs |
//! | [`parts`] | division of a copy into parts, among parties with limits |
//! | [`persist`] | kinds of memory, by the way a store becomes durable |
//! | [`pipe`] | messages in a byte ring that two processes share |
//! | [`proof`] | messages of the auth handshake |
//! | [`range`] | ranges, pages and runs |
//! | [`rights`] | rules between access rights |
//! | [`ring`] | first-in-first-out queue in bounded storage |
//! | [`scramble`] | unpredictable numbers that never repeat |
//! | [`sendq`] | scheduler of a send queue that one party runs at a time |
//! | [`slot`] | a cell of the handle table, read without a lock |
//! | [`turns`] | turns of the channels of one user, and the bound on requests for channels |
//! | [`written`] | the ranges that an endpoint has written since their last commit |
//! | [`wire`] | application data in connection messages |

pub mod addr;
pub mod atomic;
pub mod blk;
pub mod commit;
pub mod copysize;
pub mod cqring;
pub mod gate;
pub mod gid;
pub mod grant;
pub mod hold;
pub mod info;
pub mod key;
pub mod key_budget;
pub mod key_ledger;
pub mod pairs;
pub mod parts;
pub mod persist;
pub mod pipe;
pub mod proof;
pub mod range;
pub mod rights;
pub mod ring;
pub mod scramble;
pub mod sendq;
pub mod slot;
mod sync;
pub mod turns;
pub mod wire;
pub mod written;
