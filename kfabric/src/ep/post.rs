// SPDX-License-Identifier: GPL-2.0
//! Posting: what the core looks at before a provider is given an operation.

use kernel::prelude::*;

use super::Endpoint;
use crate::{
    errno::{
        enotconn,
        eopnotsupp, //
    },
    op::{
        OpDesc,
        OpKind,
        OpToken,
        Post, //
    },
    uapi::*,
};

/// Flags an operation may carry.
const OP_FLAGS: u64 = KFI_COMPLETION | KFI_INJECT | KFI_REMOTE_CQ_DATA | KFI_FENCE;

impl Endpoint {
    /// Posts one operation. Any context.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: the endpoint or its completion queue is full. `EINVAL`: unknown flags, a piece of
    /// another domain, too many pieces. `EMSGSIZE`: longer than the domain allows. `ENOTCONN`.
    /// `EOPNOTSUPP`: an atomic that the domain does not do; of those `EINVAL` also says that sizes or
    /// the peer's address do not fit. `EOPNOTSUPP` also: lent memory ([`Segs::lend`](crate::op::Segs)),
    /// which the provider does not take; of it `EMSGSIZE` also says that a piece is longer than
    /// [`Domain::lent_max`](crate::fabric::Domain::lent_max), and `EAGAIN` that the device cannot be
    /// given it just now.
    pub fn post(&self, post: Post<'_>) -> Result {
        self.post_as(post, false)
    }

    /// As [`Endpoint::post`], from a task that holds no lock: a provider that moves the bytes
    /// itself may do so before this returns.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::post`].
    pub fn post_sleeping(&self, post: Post<'_>) -> Result {
        self.post_as(post, true)
    }

    fn post_as(&self, post: Post<'_>, may_sleep: bool) -> Result {
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
            inject: None,
            atomic: None,
            remote_addr: post.remote_addr,
            key: post.key,
            len: here,
            may_sleep,
        };
        if !post.is_plain() {
            self.look_at(&post, &mut desc)?;
        }
        if desc.len > self.domain.attr().max_msg_size {
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
        // CAST: Injected bytes, or values, of which there are few.
        let apart = desc.len.saturating_sub(here) as u32;
        let token = OpToken::reserved(&self.shared, post.segs, kind, post.context, apart, wanted);
        self.ops.post(&desc, token).map_err(|(error, token)| {
            token.refuse();
            error
        })
    }

    /// Looks at an operation that does not just move bytes of registered memory, and says in `desc`
    /// what it is. Few are, and the others are to be quick.
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
        if post.flags & !OP_FLAGS != 0
            || (inject && ((!carries && !atomic) || !post.segs.is_empty()))
            || (with_data && !carries)
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
        desc.fence = post.flags & KFI_FENCE != 0;
        desc.imm = match (with_data, u32::try_from(post.data)) {
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
