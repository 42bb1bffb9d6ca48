// SPDX-License-Identifier: GPL-2.0
//! The message buffer of a connection: a page of registered memory, for one message to send and one
//! to receive.

use kernel::{
    page::Page,
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    ep::{
        Endpoint,
        LocalMem,
        Post, //
    },
    key::Region,
    memory::Memory,
    objects::domain::Domain,
    op::OpKind,
    pure::blk::MESSAGE_MAX,
    uapi::*,
};

/// Offset of the message to send.
const SEND: usize = 0;
/// Offset of the received message.
const RECV: usize = 2048;
const _: () = assert!(MESSAGE_MAX <= RECV);

/// Context of the receive.
pub(crate) const CAME: u64 = 1 << 32;
/// Context of the send.
pub(crate) const WENT: u64 = CAME + 1;

/// Message buffer of a connection.
pub(crate) struct MsgBuf {
    region: Arc<Region>,
}

impl MsgBuf {
    /// Allocates and registers a message buffer.
    pub(crate) fn new(domain: &Arc<Domain>) -> Result<Self> {
        let mut pages = KVVec::with_capacity(1, GFP_KERNEL)?;
        pages.push(Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?, GFP_KERNEL)?;
        let memory = Memory::from_pages(pages)?;
        Ok(Self {
            region: Region::register(domain, memory, KFI_SEND | KFI_RECV, false)?,
        })
    }

    fn post(&self, ep: &Endpoint, kind: OpKind, at: usize, len: usize, context: u64) -> Result {
        let mut segs = LocalMem::new();
        segs.push(kind, self.region.clone(), at as u64, len as u64)?;
        ep.post(Post {
            kind,
            // Completes also if the endpoint's completions are selective.
            flags: KFI_COMPLETION,
            context,
            data: 0,
            remote_addr: 0,
            key: 0,
            inject: &[],
            atomic: None,
            segs,
        })
    }

    /// Posts the receive; completes with [`CAME`].
    pub(crate) fn recv(&self, ep: &Endpoint) -> Result {
        self.post(ep, OpKind::Recv, RECV, MESSAGE_MAX, CAME)
    }

    /// Sends; completes with [`WENT`]. The previous send must have completed.
    pub(crate) fn send(&self, ep: &Endpoint, message: &[u8]) -> Result {
        self.region.memory().write(SEND, message);
        self.post(ep, OpKind::Send, SEND, message.len(), WENT)
    }

    /// Copies the received message. Returns the number of bytes copied.
    pub(crate) fn came(&self, len: u64, out: &mut [u8]) -> usize {
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(out.len());
        let out = out.get_mut(..len).unwrap_or_default();
        self.region.memory().read(RECV, out)
    }
}
