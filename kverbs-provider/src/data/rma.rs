// SPDX-License-Identifier: GPL-2.0
//! Work requests of one-sided operations: the peer's key, and the division of an operation whose
//! memory has more pieces than a work request has scatter entries.

use kernel::prelude::*;

use super::{
    local,
    tx::{
        Poster,
        Posting, //
    },
    Owner, //
};
use crate::ib::{
    qp::QpSize,
    wr::{
        Opcode,
        SgeList,
        SgeRoom, //
    }, //
};
use kfabric::{
    ep::OpToken,
    pure::hold::Taken, //
};

/// Returns the peer's key for a work request: 0 for a message.
///
/// # Errors
///
/// - `EINVAL` if the key has more than the 32 bits of verbs.
#[inline(always)]
pub(super) fn remote_key(opcode: Opcode, key: u64) -> Result<u32> {
    match opcode {
        Opcode::Send => Ok(0),
        _ => u32::try_from(key).map_err(|_| EINVAL),
    }
}

/// Returns the number of work requests of an operation with `entries` scatter entries.
///
/// Only reads and writes may have several work requests, at most as many as the queue has entries.
///
/// # Errors
///
/// - `EMSGSIZE` if the operation may not have that many.
#[inline(always)]
pub(super) fn work_requests(opcode: Opcode, entries: u32, size: QpSize) -> Result<u32> {
    let sge = size.sge_of(opcode);
    let needed = if entries <= sge {
        1
    } else {
        entries.div_ceil(sge)
    };
    let most = match opcode {
        Opcode::Read | Opcode::Write => size.tx,
        _ => 1,
    };
    if needed > most {
        return Err(EMSGSIZE);
    }
    Ok(needed)
}

impl<H: Owner> Poster<'_, H> {
    /// Posts an operation to the device, as one or more work requests, whose scatter entries are
    /// found meanwhile.
    #[inline(never)]
    pub(super) fn post_parts(&self, posting: &mut Posting, token: &OpToken) -> Taken {
        let mut room = SgeRoom::new();
        let mut part = SgeList::new(&mut room);
        if let Some(sge) = self.injected(posting) {
            part.push(sge);
        }
        let wr = &mut posting.wr;
        let max_sge = self.size.sge_of(wr.opcode) as usize;
        let mut posted = 0;
        let result = local::for_each_sge(self.group, token, |sge| {
            if part.len() == max_sge {
                self.qp.post_send(self.slot, wr, part.get(), false)?;
                posted += 1;
                wr.remote_addr = wr.remote_addr.wrapping_add(part.bytes());
                wr.fence = false;
                part.clear();
            }
            part.push(sge);
            Ok(())
        })
        .and_then(|()| {
            wr.imm = posting.imm;
            self.qp.post_send(self.slot, wr, part.get(), true)
        });
        match result {
            Ok(()) => Taken::All,
            Err(_) if posted == 0 => Taken::Nothing,
            Err(_) => Taken::Part,
        }
    }
}
