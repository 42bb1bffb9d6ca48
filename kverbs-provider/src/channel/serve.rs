// SPDX-License-Identifier: GPL-2.0
//! The target's side of a channel: commits.

use core::sync::atomic::Ordering;
use kernel::prelude::*;

use super::{
    link::Channel,
    Owner, //
};
use crate::ib::persist::{
    self,
    Flush, //
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

/// Serves a COMMIT: writes its ranges back, waits with one fence, and answers.
///
/// Context: process; may sleep. Locking: none held.
///
/// # Errors
///
/// - `EPROTO` if the message violates the protocol: the caller ends the channel.
/// - `ENOTCONN` if the channel has ended meanwhile.
pub(super) fn serve<H: Owner>(channel: &Channel<H>, message: &[u8]) -> Result {
    let request = Request::parse(message).map_err(|_| eproto())?;
    let mut statuses = [Status::Closing; RANGES_MAX];
    let mut count = 0;
    let flush = Flush::begin();
    let mut bytes = 0;
    for (range, status) in request.ranges().zip(&mut statuses) {
        if count > 0 && bytes >= BYTES_MAX {
            // No initiator of ours asks for so much at once.
            return Err(eproto());
        }
        *status = match write_back(channel, &flush, &range) {
            Ok(()) => {
                bytes += range.len;
                Status::Durable
            }
            Err(status) => status,
        };
        count += 1;
    }
    // The fence.
    drop(flush);
    let mut answer = [0; ANSWER_MAX];
    let statuses = statuses.get(..count).unwrap_or_default();
    let len = write_answer(request.number(), statuses, &mut answer);
    channel.send(answer.get(..len).unwrap_or_default())
}

/// Writes a range back, in stretches. The key can be revoked in between.
fn write_back<H: Owner>(channel: &Channel<H>, flush: &Flush, range: &Range) -> Result<(), Status> {
    let mut done = 0;
    loop {
        done += channel.conn.group().write_back(flush, range, done)?;
        if done >= range.len {
            return Ok(());
        }
        if channel.stopping.load(Ordering::Acquire) {
            return Err(Status::Closing);
        }
        persist::resched();
    }
}
