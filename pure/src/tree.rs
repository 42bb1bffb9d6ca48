// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The modules, as both compilers see them.
//!
//! | module | decides |
//! |---|---|
//! | [`addr`] | which socket addresses can mean the same place |
//! | [`atomic`] | what an atomic operation makes of a value |
//! | [`blk`] | what kfblk's two ends say, and which key a byte of a disk is behind |
//! | [`copysize`] | how much of a structure that may have grown is copied |
//! | [`cqring`] | whether a completion has room, where it goes, what a program reads |
//! | [`gate`] | who may still enter, and who is the last to leave |
//! | [`grant`] | whom a grant of an auth key covers, how much, how long |
//! | [`hold`] | which operations that are held back may go |
//! | [`info`] | what a provider's offer and a caller's hints have in common |
//! | [`key`] | the life of a key slot |
//! | [`pairs`] | which bytes go where, when both ends are in pieces |
//! | [`pipe`] | what two programs put into a ring of bytes that they share |
//! | [`proof`] | what peers say to each other to prove that they have an auth key |
//! | [`range`] | what part of what lies where |
//! | [`rights`] | which access implies, needs or allows which |
//! | [`ring`] | first in, first out, in bounded storage |
//! | [`scramble`] | which number stands for which, that nobody can guess |
//! | [`slot`] | a table cell that is read without a lock |
//! | [`spent`] | which keys of a hardware slot have been given out |
//! | [`wire`] | application data in connection messages |

pub mod addr;
pub mod atomic;
pub mod blk;
pub mod copysize;
pub mod cqring;
pub mod gate;
pub mod grant;
pub mod hold;
pub mod info;
pub mod key;
pub mod pairs;
pub mod pipe;
pub mod proof;
pub mod range;
pub mod rights;
pub mod ring;
pub mod scramble;
pub mod slot;
pub mod spent;
mod sync;
pub mod wire;
