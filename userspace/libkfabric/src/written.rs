// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ranges to commit.
#![forbid(unsafe_code)]

use crate::op::Op;
use crate::remote::RemoteMem;
use kfabric_pure::commit::Range;
use kfabric_pure::written;

/// The set has [`Written::RANGES`] ranges, each of another key. Commit them, and then note the write again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many keys have uncommitted writes")]
pub struct WrittenFull;

/// The ranges of peers' memory that an endpoint has written since their last commit.
///
/// A program that makes all its writes durable at certain moments notes each posted write. Then it posts
/// commits of the ranges that [`Written::take`] returns. All of the writes are durable when all of these
/// commits have completed without an error. A range is noted again if its commit was not posted, or
/// completed with an error. Before a key is revoked, its ranges are committed or forgotten: the peer ends a
/// connection after commits under eight keys that have ended, of which it forgets one every two seconds at
/// most.
#[derive(Clone, Debug, Default)]
pub struct Written(written::Written<{ Written::RANGES }>);

impl Written {
    /// Maximum number of ranges. If more are needed, two ranges of one key become one with the bytes between
    /// them, which is harmless.
    pub const RANGES: usize = 64;

    /// Returns an empty set.
    pub const fn new() -> Self {
        Self(written::Written::new())
    }

    /// Returns whether nothing was written.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes a posted write, or the range of a commit that did not succeed.
    ///
    /// # Errors
    ///
    /// [`WrittenFull`]. Nothing is noted.
    pub fn note(&mut self, remote: RemoteMem, len: usize) -> Result<(), WrittenFull> {
        let range = Range {
            key: remote.key,
            addr: remote.addr,
            len: len as u64,
        };
        self.0.note(range).map_err(|_| WrittenFull)
    }

    /// Forgets the ranges of a key.
    pub fn forget(&mut self, key: u64) {
        self.0.forget(key);
    }

    /// Removes a range, or its first `most` bytes, and returns it for [`Op::commit`]; `None` if there is none.
    /// `most` is the domain's `max_msg_size` or less.
    pub fn take(&mut self, most: usize) -> Option<(RemoteMem, usize)> {
        let range = self.0.take(most as u64)?;
        let remote = RemoteMem {
            addr: range.addr,
            key: range.key,
        };
        // CAST: At most `most`, or 1.
        Some((remote, range.len as usize))
    }

    /// As [`Written::take`], as a commit with a context.
    pub fn take_commit(&mut self, most: usize, context: u64) -> Option<Op<'static>> {
        let (remote, len) = self.take(most)?;
        Some(Op::commit(remote, len).context(context))
    }
}
