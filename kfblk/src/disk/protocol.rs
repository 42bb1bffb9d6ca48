// SPDX-License-Identifier: GPL-2.0
//! The protocol of a disk's requests: a trait, and the place that chooses an implementation.
//!
//! [`OneSided`] serves memory-backed exports, [`Messages`] block-backed exports. The export decides
//! when the first connection is made ([`AnyConnection::connect`]). Requests and completions are
//! dispatched statically: code behind a connection is generic over the protocol, and
//! [`AnyConnection`] is an enumeration.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    ep::EpAttr,
    objects::cq::CqHandler,
    provider::DomainAttr,
    pure::blk::{
        Hello,
        Welcome, //
    },
    uapi::CqEntry, //
};

use super::{
    connection::{
        Address,
        Connection,
        Conversation,
        GoOn, //
    },
    message::Messages,
    one_sided::OneSided,
    Disk, //
};
use crate::{
    errno,
    sys::{
        Block,
        Verdict, //
    }, //
};

/// Completions per read of the queue. Mostly there is one. The handler of the next one reads again.
pub(super) const BATCH: usize = 4;

/// Properties of a protocol on which the block device depends.
pub(super) struct Properties {
    /// Requests per queue.
    pub(super) depth: u32,
    /// Maximum length of a request, in bytes; 0 if only the chunk size limits the length.
    pub(super) len_max: u32,
    /// `block.c` passes requests to `kfblk_rs_send`, not to `kfblk_rs_queue`.
    pub(super) messages: bool,
    /// The provider maps the pages of requests.
    pub(super) borrows_pages: bool,
    /// The capacity may change while the disk is enabled.
    pub(super) resizes: bool,
}

/// A protocol: the part of a connection that depends on the kind of the export.
pub(super) trait Protocol: Sized + Send + Sync + 'static {
    /// Properties on which the block device depends.
    const PROPERTIES: Properties;
    /// Private data of the connection request.
    const CONNECT_DATA: &'static [u8];
    /// Flags of the completion queue's bind for transmits, besides `KFI_TRANSMIT`.
    const TRANSMIT_FLAGS: u64;
    /// The part of the protocol that the handler of completions needs.
    type Handle: Send + Unpin + 'static;
    /// Completions to report.
    type Batch;

    /// Returns the size of the completion queue and the attributes of the endpoint.
    fn sizes(limits: &DomainAttr) -> (u32, EpAttr);

    /// Prepares for requests, after the target has admitted the initiator.
    ///
    /// # Errors
    ///
    /// - `EPROTO` if the target violates the protocol.
    /// - `ESTALE` if the export has changed its kind meanwhile.
    /// - Errors of questions to the target, and of allocations.
    fn begin(talk: &Conversation<'_>, welcome: &Welcome) -> Result<Self>;

    /// Sets the block device and queue that the requests belong to. Called once.
    fn attach(&self, disk: &Disk, block: Block, queue: u32) -> Self::Handle;

    /// Handles completions that were read from the queue. Context: any. Locking: one caller at a
    /// time.
    fn completed(handle: &Self::Handle, disk: &Arc<Disk>, entries: &[CqEntry]) -> Self::Batch;

    /// Reports completions to the block layer. Context: any. `may_sleep`: the caller is a task that
    /// holds no lock.
    fn report(batch: Self::Batch, block: Block, queue: u32, may_sleep: bool);

    /// Ends all outstanding requests with `verdict`.
    ///
    /// The caller has closed the endpoint.
    fn close(&self, verdict: Verdict);
}

/// The protocol of an export.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One-sided operations: memory-backed exports.
    OneSided,
    /// Messages: block-backed exports.
    Messages,
}

impl Kind {
    /// Returns the properties of the protocol.
    pub(super) fn properties(self) -> &'static Properties {
        match self {
            Self::OneSided => &OneSided::PROPERTIES,
            Self::Messages => &Messages::PROPERTIES,
        }
    }
}

/// An established connection, of either protocol.
#[derive(Clone)]
pub(super) enum AnyConnection {
    OneSided(Arc<Connection<OneSided>>),
    Messages(Arc<Connection<Messages>>),
}

impl AnyConnection {
    /// Connects by the protocol `kind`. If the target reports that the export needs the other
    /// protocol, changes `kind` and connects again.
    ///
    /// # Errors
    ///
    /// - Errors of [`Connection::connect`].
    pub(super) fn connect(
        kind: &mut Kind,
        to: &Address<'_>,
        hello: &Hello,
        go_on: GoOn<'_>,
    ) -> Result<(Self, Welcome)> {
        if *kind == Kind::OneSided {
            match Connection::<OneSided>::connect(to, hello, go_on) {
                // The first connection reports the kind of the export.
                Err(e) if e == errno::emediumtype() => *kind = Kind::Messages,
                other => return other.map(|(of, welcome)| (Self::OneSided(of), welcome)),
            }
        }
        let connected = Connection::<Messages>::connect(to, hello, go_on);
        connected.map(|(of, welcome)| (Self::Messages(of), welcome))
    }

    /// Links the handler of a disk's queue: completions are reported to `block`.
    pub(super) fn link(&self, disk: &Arc<Disk>, block: Block, queue: u32) {
        match self {
            Self::OneSided(of) => of.link(disk, block, queue),
            Self::Messages(of) => of.link(disk, block, queue),
        }
    }

    /// Handles completions that came before [`AnyConnection::link`].
    pub(super) fn handle_earlier(&self) {
        match self {
            Self::OneSided(of) => of.waiter().completed(),
            Self::Messages(of) => of.waiter().completed(),
        }
    }

    /// Returns whether the endpoint is connected.
    pub(super) fn is_connected(&self) -> bool {
        match self {
            Self::OneSided(of) => of.is_connected(),
            Self::Messages(of) => of.is_connected(),
        }
    }

    /// Returns whether the target may still answer a request. False for one-sided operations, which have
    /// no answers.
    pub(super) fn is_busy(&self) -> bool {
        match self {
            Self::OneSided(_) => false,
            Self::Messages(of) => of.is_connected() && of.protocol().is_busy(),
        }
    }

    /// Closes the connection. All posted requests have ended on return, those that the connection has
    /// not completed with `verdict`.
    pub(super) fn close(&self, verdict: Verdict) {
        match self {
            Self::OneSided(of) => of.close(verdict),
            Self::Messages(of) => of.close(verdict),
        }
    }
}
