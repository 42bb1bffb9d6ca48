// SPDX-License-Identifier: GPL-2.0
//! The token of an accepted operation, which completes the operation.
//!
//! A token implements P9. It is made only after the room for its completion is reserved, it holds
//! the memory that the operation touches, and [`OpToken::complete`] consumes it. A token that is
//! dropped instead completes with `ECANCELED`, so every accepted operation completes.

use kernel::{
    bindings,
    sync::Arc, //
};

use super::{
    local::{
        LocalMem,
        TokenSeg,
        Unregistered, //
    },
    shared::Shared, //
};
use crate::{
    memory::LentPiece,
    op::{
        OpKind,
        Outcome, //
    },
    uapi::*,
};

/// An accepted operation.
pub struct OpToken {
    ep: Arc<Shared>,
    segs: LocalMem,
    kind: OpKind,
    context: u64,
    /// Bytes that are not in local memory: injected bytes, or values.
    apart: u32,
    /// A success, too, produces a completion entry.
    wanted: bool,
    done: bool,
}

// A provider copies the token into a slot and back. Above 128 bytes the compiler calls `memcpy`.
const _: () = assert!(size_of::<OpToken>() <= 128);

impl OpToken {
    /// Makes a token after [`Shared::reserve`] has reserved the completion. The token is large, and
    /// inlining builds it in place.
    #[inline(always)]
    pub(crate) fn reserved(
        ep: &Arc<Shared>,
        segs: LocalMem,
        kind: OpKind,
        context: u64,
        apart: u32,
        wanted: bool,
    ) -> Self {
        Self {
            ep: ep.clone(),
            segs,
            kind,
            context,
            apart,
            wanted,
            done: false,
        }
    }

    /// The local memory.
    #[inline]
    pub fn segs(&self) -> impl Iterator<Item = &TokenSeg> {
        self.segs.regions().iter()
    }

    /// Returns the local memory if it is exactly one piece of a region.
    #[inline]
    pub fn only_seg(&self) -> Option<&TokenSeg> {
        match self.segs.regions() {
            [seg] => Some(seg),
            _ => None,
        }
    }

    /// Returns whether the local memory is borrowed pages.
    #[inline]
    pub fn has_lent(&self) -> bool {
        self.segs.has_lent()
    }

    /// The borrowed pages; [`OpToken::segs`] is empty then.
    #[inline]
    pub fn lent(&self) -> &[LentPiece] {
        self.segs.lent()
    }

    /// As [`OpToken::lent`], so that the provider can set [`LentPiece::mapped`].
    pub fn lent_mut(&mut self) -> &mut [LentPiece] {
        self.segs.lent_mut()
    }

    /// Returns the posting task's memory if the operation uses that instead of [`OpToken::segs`].
    /// The provider copies it before `post` returns, and never in another task.
    pub fn unregistered(&self) -> Option<Unregistered> {
        self.segs.task()
    }

    /// The consumer's value.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// The operation's kind.
    pub fn kind(&self) -> OpKind {
        self.kind
    }

    /// Bytes of local memory, or of an injected payload.
    #[inline]
    pub fn len(&self) -> u64 {
        self.segs.len() + u64::from(self.apart)
    }

    /// Returns whether the operation moves no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops the token without a completion, because the operation was not accepted.
    pub(crate) fn refuse(mut self) {
        self.done = true;
        self.ep.unreserve(self.kind);
    }

    /// Completes a token that the provider has dropped, with `ECANCELED`.
    #[cold]
    #[inline(never)]
    fn lose(&mut self) {
        let outcome = Outcome {
            err: bindings::ECANCELED,
            ..Outcome::default()
        };
        self.finish(outcome, false);
    }

    /// Completes the operation. Context: any.
    pub fn complete(mut self, outcome: Outcome) {
        self.finish(outcome, false)
    }

    /// As [`OpToken::complete`], in a task that holds no lock: completion waiters may sleep.
    pub fn complete_sleeping(mut self, outcome: Outcome) {
        self.finish(outcome, true)
    }

    /// As [`OpToken::complete_sleeping`] with `may_sleep`, otherwise as [`OpToken::complete`].
    #[inline]
    pub fn complete_where(mut self, outcome: Outcome, may_sleep: bool) {
        self.finish(outcome, may_sleep)
    }

    #[inline]
    fn finish(&mut self, outcome: Outcome, may_sleep: bool) {
        self.done = true;
        let recv = self.kind == OpKind::Recv;
        let mut flags = match self.kind {
            OpKind::Send => KFI_MSG | KFI_SEND,
            OpKind::Recv if outcome.remote_write => KFI_RMA | KFI_REMOTE_WRITE,
            OpKind::Recv => KFI_MSG | KFI_RECV,
            OpKind::Read => KFI_RMA | KFI_READ,
            OpKind::Write | OpKind::Commit => KFI_RMA | KFI_WRITE,
            OpKind::Atomic => KFI_ATOMIC | KFI_WRITE,
            OpKind::Fetch => KFI_ATOMIC | KFI_READ,
        };
        if outcome.imm.is_some() {
            flags |= KFI_REMOTE_CQ_DATA;
        }
        let mut entry = CqEntry {
            context: self.context,
            flags,
            len: match (recv, outcome.err) {
                (true, _) => outcome.len,
                (false, 0) => self.len(),
                // The number of bytes that a failed operation moved is unknown.
                (false, _) => 0,
            },
            buf: match self.segs.regions().first() {
                Some(seg) if recv => seg.offset as u64,
                _ => 0,
            },
            data: u64::from(outcome.imm.unwrap_or(0)),
            err: outcome.err,
            prov_errno: outcome.prov_errno,
            ep: 0,
            olen: outcome.olen,
        };
        self.ep
            .finish(self.kind, &mut entry, self.wanted, may_sleep);
    }
}

impl Drop for OpToken {
    #[inline]
    fn drop(&mut self) {
        if !self.done {
            self.lose();
        }
    }
}
