// SPDX-License-Identifier: GPL-2.0
//! The target's side of a channel: commits.
//!
//! A turn writes back a bounded number of bytes. Then the turns of other users' channels come, and those of
//! the user's others ([`user`](super::user)). So the commits of one peer do not hold up those of others.

use core::sync::atomic::Ordering;
use kernel::prelude::*;

use super::{
    link::Channel,
    Owner, //
};
use crate::{
    ib::persist::{
        self,
        Flush, //
    },
    key::write_back::Unwritten, //
};
use kfabric::{
    base::errno::eproto,
    pure::commit::{
        write_answer,
        Range,
        Request,
        Status,
        ANSWER_MAX,
        BYTES_MAX,
        RANGES_MAX, //
    }, //
};

/// Bytes that a turn writes back, and a stretch more.
const TURN: u64 = 1 << 20;

/// What a turn has left to do.
pub(super) enum Left {
    /// All ranges have their status.
    Nothing,
    /// Bytes.
    More,
    /// Bytes of a key whose slot another task has locked.
    Blocked,
}

/// The end of a stretch.
enum Stretch {
    /// The range goes on.
    Part,
    /// The range has its status.
    Last(Status),
    /// Another task has locked the key's slot.
    Blocked,
}

/// The COMMIT that a target serves.
pub(super) struct Serving {
    number: u64,
    ranges: [Range; RANGES_MAX],
    statuses: [Status; RANGES_MAX],
    /// Number of ranges; 0 if there is no COMMIT.
    count: usize,
    /// Number of ranges that have their status.
    judged: usize,
    /// Bytes of the next range that were written back.
    done: u64,
    /// Bytes of all ranges that were written back.
    bytes: u64,
}

impl Serving {
    /// Returns the state of a target without a COMMIT.
    pub(super) fn new() -> Self {
        Self {
            number: 0,
            ranges: [Range::default(); RANGES_MAX],
            statuses: [Status::Closing; RANGES_MAX],
            count: 0,
            judged: 0,
            done: 0,
            bytes: 0,
        }
    }

    /// Returns whether a COMMIT is being served.
    pub(super) fn is_busy(&self) -> bool {
        self.count != 0
    }

    /// Begins to serve a COMMIT.
    ///
    /// # Errors
    ///
    /// - `EPROTO` if the message violates the protocol: the caller ends the channel.
    pub(super) fn begin(&mut self, message: &[u8]) -> Result {
        let request = Request::parse(message).map_err(|_| eproto())?;
        self.number = request.number();
        (self.judged, self.done, self.bytes) = (0, 0, 0);
        self.count = 0;
        for (place, range) in self.ranges.iter_mut().zip(request.ranges()) {
            *place = range;
            self.count += 1;
        }
        Ok(())
    }

    /// Writes the COMMIT's ranges back for one turn, and waits with a fence.
    ///
    /// Context: process. Locking: no other lock is held.
    ///
    /// # Errors
    ///
    /// - `EPROTO` if the ranges have more bytes than an initiator may ask for: the caller ends the
    ///   channel.
    /// - `EACCES` if the peer has tried too many keys: the connection ends, too.
    pub(super) fn turn<H: Owner>(&mut self, channel: &Channel<H>) -> Result<Left> {
        // The drop is the fence.
        let flush = Flush::begin();
        let end = self.bytes.saturating_add(TURN);
        while self.judged < self.count {
            if self.bytes >= end {
                return Ok(Left::More);
            }
            if self.judged > 0 && self.done == 0 && self.bytes >= BYTES_MAX {
                // No initiator of ours asks for so much at once.
                return Err(eproto());
            }
            match self.stretch(channel, &flush) {
                Stretch::Part => {}
                Stretch::Blocked => return Ok(Left::Blocked),
                Stretch::Last(status) => self.judge(channel, status)?,
            }
            persist::resched();
        }
        Ok(Left::Nothing)
    }

    /// Records the status of the next range.
    fn judge<H: Owner>(&mut self, channel: &Channel<H>, status: Status) -> Result {
        let range = &self.ranges[self.judged];
        if channel.conn.channels().judged(range, status) {
            H::distrust(&channel.conn);
            return Err(EACCES);
        }
        self.statuses[self.judged] = status;
        self.judged += 1;
        self.done = 0;
        Ok(())
    }

    /// Writes a stretch of the next range back.
    fn stretch<H: Owner>(&mut self, channel: &Channel<H>, flush: &Flush) -> Stretch {
        let range = &self.ranges[self.judged];
        if channel.stopping.load(Ordering::Acquire) {
            return Stretch::Last(Status::Closing);
        }
        if !persist::is_allowed() {
            return Stretch::Last(Status::Unsupported);
        }
        match channel.conn.group().write_back(flush, range, self.done) {
            Ok(n) => {
                self.done += n;
                self.bytes += n;
                if self.done < range.len {
                    return Stretch::Part;
                }
                Stretch::Last(Status::Durable)
            }
            Err(Unwritten::Busy) => Stretch::Blocked,
            Err(Unwritten::Ended(status)) => Stretch::Last(status),
        }
    }

    /// Answers the COMMIT, whose ranges have their statuses.
    ///
    /// # Errors
    ///
    /// - `ENOTCONN` if the channel has ended meanwhile.
    pub(super) fn answer<H: Owner>(&mut self, channel: &Channel<H>) -> Result {
        let count = core::mem::take(&mut self.count);
        let statuses = self.statuses.get(..count).unwrap_or_default();
        let mut answer = [0; ANSWER_MAX];
        let len = write_answer(self.number, statuses, &mut answer);
        channel.send(answer.get(..len).unwrap_or_default())
    }
}
