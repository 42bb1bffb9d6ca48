// SPDX-License-Identifier: GPL-2.0
//! Posting: the core's checks before the provider gets an operation.

use kernel::prelude::*;

use super::{
    endpoint::Endpoint,
    local::LocalMem,
    token::OpToken, //
};
use crate::{
    base::errno::{
        enotconn,
        eopnotsupp, //
    },
    objects::domain::Domain,
    op::{
        AtomicDesc,
        OpDesc,
        OpKind, //
    },
    pure::atomic::{
        Datatype,
        Form,
        Op, //
    },
    uapi::*,
};

/// Flags an operation may carry.
const OP_FLAGS: u64 = KFI_COMPLETION
    | KFI_INJECT
    | KFI_REMOTE_CQ_DATA
    | KFI_FENCE
    | KFI_DELIVERY_COMPLETE
    | KFI_COMMIT_COMPLETE;

/// An operation as a consumer posts it.
pub struct Post<'a> {
    /// The kind.
    pub kind: OpKind,
    /// `KFI_COMPLETION`, `KFI_INJECT`, `KFI_REMOTE_CQ_DATA`, `KFI_FENCE`; for a write also
    /// `KFI_DELIVERY_COMPLETE` and `KFI_COMMIT_COMPLETE`.
    pub flags: u64,
    /// Returned in the completion.
    pub context: u64,
    /// Completion data for the peer.
    pub data: u64,
    /// The peer's address, for one-sided operations and commits.
    pub remote_addr: u64,
    /// The peer's key, for one-sided operations and commits.
    pub key: u64,
    /// With `KFI_INJECT`: the payload. For atomics: the operands, followed by the comparands.
    pub inject: &'a [u8],
    /// For atomics only: operation and type.
    pub atomic: Option<(Op, Datatype)>,
    /// Local memory. For [`OpKind::Fetch`]: destination of the former values.
    pub segs: LocalMem,
}

impl<'a> Post<'a> {
    /// Returns whether the operation only moves bytes of registered memory, as most do.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        self.flags & !KFI_COMPLETION == 0
            && self.inject.is_empty()
            && self.atomic.is_none()
            && self.segs.is_registered()
            && !matches!(self.kind, OpKind::Atomic | OpKind::Fetch | OpKind::Commit)
    }

    /// Returns the description of an atomic, and the bytes of the remote values.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no such operation.
    /// - `EINVAL` if the peer's address is no multiple of a value's size.
    /// - `EINVAL` if operands, local memory and comparands differ in number.
    /// - `EINVAL` if `KFI_INJECT` is set and the operation fetches.
    /// - `EOPNOTSUPP` if the domain does not support the operation.
    /// - `EMSGSIZE` if the domain does not support as many values at once.
    #[inline(never)]
    fn atomic(&self, domain: &Domain) -> Result<(AtomicDesc<'a>, u64)> {
        let (op, ty) = self.atomic.ok_or(EINVAL)?;
        let fetches = self.kind == OpKind::Fetch;
        let form = match (op.has(Form::Compare), fetches) {
            (true, true) => Form::Compare,
            (false, true) => Form::Fetch,
            (_, false) => Form::Base,
        };
        let most = domain.atomic(form, op, ty)?;
        let first = match form {
            Form::Compare => self.inject.len() / 2,
            _ => self.inject.len(),
        };
        let (operands, compare) = self.inject.split_at_checked(first).ok_or(EINVAL)?;
        let here = self.segs.len();
        let len = if op.has_operand() {
            operands.len() as u64
        } else {
            here
        };
        // `size` is a power of two, so `part` is the mask of its low bits.
        let size = ty.size() as u64;
        let count = len.checked_div(size).unwrap_or(0);
        let part = size.wrapping_sub(1);
        if count == 0
            || (len | self.remote_addr) & part != 0
            || (form == Form::Compare && compare.len() != operands.len())
            || (!op.has_operand() && !operands.is_empty())
            || here != if fetches { len } else { 0 }
            || (fetches && self.flags & KFI_INJECT != 0)
        {
            return Err(EINVAL);
        }
        if count > most as u64 || self.inject.len() > KFI_INJECT_MAX {
            return Err(EMSGSIZE);
        }
        let desc = AtomicDesc {
            op,
            ty,
            operands,
            compare,
        };
        Ok((desc, len))
    }
}

impl Endpoint {
    /// Posts one operation. Context: any.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the endpoint or its completion queue is full.
    /// - `EAGAIN` if the device cannot map borrowed pages now.
    /// - `EINVAL` if `flags` has an unknown flag, a piece is of another domain, or there are too
    ///   many pieces.
    /// - `EINVAL` if an atomic's sizes or the peer's address do not match.
    /// - `EMSGSIZE` if the operation is longer than the domain allows.
    /// - `EMSGSIZE` if a borrowed piece exceeds
    ///   [`Domain::lent_max`](crate::objects::domain::Domain::lent_max).
    /// - `ENOTCONN` if the endpoint is not connected.
    /// - `EOPNOTSUPP` if the domain does not support the atomic.
    /// - `EOPNOTSUPP` if an operation other than a write or a commit asks to be visible or durable,
    ///   or the domain does not reach that level.
    /// - `EOPNOTSUPP` if the provider does not accept borrowed pages
    ///   ([`LocalMem::lend`](crate::ep::LocalMem)).
    pub fn post(&self, post: Post<'_>) -> Result {
        self.post_as(post, None, false)
    }

    /// As [`Endpoint::post`], from a task that holds no lock. A provider that copies the bytes
    /// itself may copy them before the return.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::post`].
    pub fn post_sleeping(&self, post: Post<'_>) -> Result {
        self.post_as(post, None, true)
    }

    /// Posts a commit, which makes `len` bytes of the peer's memory durable. It covers earlier writes
    /// of this endpoint, and bytes that its earlier reads have returned. It also covers bytes that
    /// were visible at the peer before the post, by whichever endpoint they were written: the peer
    /// writes back all lines of the range. A write of another endpoint is visible if it has
    /// completed with `KFI_DELIVERY_COMPLETE`. `post` has the kind [`OpKind::Commit`] and no memory.
    /// Context: any; if `may_sleep`, a task that holds no lock.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the domain has no durable writes.
    /// - `EINVAL` if `post` has another kind. [`Endpoint::post`] refuses this kind likewise.
    /// - As [`Endpoint::post`].
    pub fn commit(&self, post: Post<'_>, len: u64, may_sleep: bool) -> Result {
        self.post_as(post, Some(len), may_sleep)
    }

    fn post_as(&self, post: Post<'_>, commit: Option<u64>, may_sleep: bool) -> Result {
        if self.ending.begun() {
            return Err(ENOENT);
        }
        // CAST: A `u32` fits.
        if post.segs.count() > self.attr.iov_limit as usize {
            return Err(EINVAL);
        }
        let kind = post.kind;
        let (here, inside) = post.segs.measure(self.domain.arc());
        let mut desc = OpDesc {
            kind,
            imm: None,
            fence: false,
            durable: false,
            inject: None,
            atomic: None,
            remote_addr: post.remote_addr,
            key: post.key,
            len: here,
            commit_len: commit.unwrap_or(0),
            may_sleep,
        };
        if !post.is_plain() || commit.is_some() {
            if commit.is_some() != (kind == OpKind::Commit) {
                return Err(EINVAL);
            }
            self.look_at(&post, &mut desc)?;
        }
        if desc.len.max(desc.commit_len) > self.domain.attr().max_msg_size {
            return Err(EMSGSIZE);
        }
        match (self.state(), kind) {
            (KFI_STATE_NEW, _) => return Err(EINVAL),
            (KFI_STATE_CONNECTED, _) => {}
            (KFI_STATE_ENABLED | KFI_STATE_CONNECTING, OpKind::Recv) => {}
            _ => return Err(enotconn()),
        }
        if !inside {
            return Err(EINVAL);
        }
        let queue = self.shared.cq(kind);
        let wanted = match queue {
            Some(bound) if bound.selective => post.flags & KFI_COMPLETION != 0,
            _ => post.flags & (KFI_INJECT | KFI_COMPLETION) != KFI_INJECT,
        };
        self.shared.reserve(queue)?;
        // CAST: Injected bytes or values; both have small limits.
        let apart = desc.len.saturating_sub(here) as u32;
        let token = OpToken::reserved(&self.shared, post.segs, kind, post.context, apart, wanted);
        self.ops.post(&desc, token).map_err(|(error, token)| {
            token.refuse();
            error
        })
    }

    /// Checks an operation that is not a plain transfer of registered memory, and fills in `desc`.
    /// Such operations are rare, and kept out of the fast path.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::post`].
    #[inline(never)]
    fn look_at<'a>(&self, post: &Post<'a>, desc: &mut OpDesc<'a>) -> Result {
        let limits = self.domain.attr();
        let kind = post.kind;
        let inject = post.flags & KFI_INJECT != 0;
        let with_data = post.flags & KFI_REMOTE_CQ_DATA != 0;
        let carries = matches!(kind, OpKind::Send | OpKind::Write);
        let atomic = matches!(kind, OpKind::Atomic | OpKind::Fetch);
        let commit = kind == OpKind::Commit;
        if post.flags & !OP_FLAGS != 0
            || (inject && ((!carries && !atomic) || !post.segs.is_empty()))
            || (with_data && !carries && !commit)
            || (commit && !post.segs.is_empty())
            || (!inject && !atomic && !post.inject.is_empty())
            || (!atomic && post.atomic.is_some())
            || (post.segs.has_lent() && !matches!(kind, OpKind::Read | OpKind::Write))
        {
            return Err(EINVAL);
        }
        if post.segs.task().is_some() {
            if !matches!(kind, OpKind::Read | OpKind::Write) || !desc.may_sleep {
                return Err(EINVAL);
            }
            if limits.caps & KFI_UNREGISTERED_RMA == 0 {
                return Err(eopnotsupp());
            }
        }
        if post.segs.has_lent() {
            let max = self.domain.lent_max().ok_or_else(eopnotsupp)?;
            if post.segs.longest_lent() > max {
                return Err(EMSGSIZE);
            }
        }
        let visible = post.flags & KFI_DELIVERY_COMPLETE != 0;
        desc.durable = commit || post.flags & KFI_COMMIT_COMPLETE != 0;
        let is_write = commit || kind == OpKind::Write;
        if (visible && !(is_write && limits.visible != KFI_REACH_NO))
            || (desc.durable && !(is_write && limits.durable != KFI_REACH_NO))
        {
            return Err(eopnotsupp());
        }
        desc.fence = post.flags & KFI_FENCE != 0;
        desc.imm = match (with_data, u32::try_from(post.data)) {
            (true, _) if limits.cq_data_size == 0 => return Err(eopnotsupp()),
            (true, Ok(data)) => Some(data),
            (true, Err(_)) => return Err(EINVAL),
            (false, _) => None,
        };
        if atomic {
            let (atomic, len) = post.atomic(self.domain.arc())?;
            desc.atomic = Some(atomic);
            desc.len = len;
        } else if inject {
            desc.inject = Some(post.inject);
            desc.len = post.inject.len() as u64;
        }
        if inject && desc.len > u64::from(self.attr.inject_size) {
            return Err(EMSGSIZE);
        }
        Ok(())
    }
}
