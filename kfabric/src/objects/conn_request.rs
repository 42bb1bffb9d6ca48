// SPDX-License-Identifier: GPL-2.0
//! Connection requests (`FI_CONNREQ`), which an endpoint accepts or a consumer rejects.

use core::sync::atomic::{
    AtomicBool,
    Ordering, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::fabric::Fabric;
use crate::{
    auth::AuthKey,
    base::share::Portion,
    provider::ConnRequestOps,
    uapi::{
        InfoEntry,
        KFI_CM_DATA_MAX, //
    },
};

/// A connection request. The drop refuses it if it was not answered.
pub struct Request {
    ops: Arc<dyn ConnRequestOps>,
    /// Set when a task answers the request, or has answered it.
    taken: AtomicBool,
    info: InfoEntry,
    /// The auth key that the peer has proven, and its index in the passive endpoint's list, from 1
    /// on.
    auth: Option<(AuthKey, u32)>,
    /// Returned before the fabric is dropped, which has the share.
    _counted: Option<Portion>,
    // Keeps the provider's module.
    _fabric: Arc<Fabric>,
}

/// The right to answer a request, held by one task. If it is dropped without [`Answer::used`], the
/// request can be answered again.
pub(crate) struct Answer<'a>(&'a Request);

impl Answer<'_> {
    pub(crate) fn ops(&self) -> &Arc<dyn ConnRequestOps> {
        &self.0.ops
    }

    pub(crate) fn used(self) {
        core::mem::forget(self);
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

impl Request {
    /// Makes an unanswered request of `fabric`. `counted` is its part of the user's share.
    pub(super) fn new(
        ops: Arc<dyn ConnRequestOps>,
        info: InfoEntry,
        auth: Option<(AuthKey, u32)>,
        counted: Option<Portion>,
        fabric: Arc<Fabric>,
    ) -> Self {
        Self {
            ops,
            taken: AtomicBool::new(false),
            info,
            auth,
            _counted: counted,
            _fabric: fabric,
        }
    }

    /// Provider, fabric and domain of the request, the local address and the peer's.
    pub fn info(&self) -> &InfoEntry {
        &self.info
    }

    /// The auth key that the peer has proven.
    pub fn auth(&self) -> Option<&AuthKey> {
        self.auth.as_ref().map(|(key, _)| key)
    }

    /// Index of that auth key in the passive endpoint's list, from 1 on; 0 if there is none.
    pub(crate) fn auth_index(&self) -> u32 {
        self.auth.as_ref().map_or(0, |(_, index)| *index)
    }

    /// Takes the right to answer.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if another task answers the request, or has answered it.
    pub(crate) fn answer(&self) -> Result<Answer<'_>> {
        if self.taken.swap(true, Ordering::AcqRel) {
            return Err(ENOENT);
        }
        Ok(Answer(self))
    }

    /// Refuses the request, with application data for the peer.
    pub fn reject(&self, data: &[u8]) -> Result {
        if data.len() > KFI_CM_DATA_MAX {
            return Err(EINVAL);
        }
        let answer = self.answer()?;
        self.ops.reject(data)?;
        answer.used();
        Ok(())
    }
}
