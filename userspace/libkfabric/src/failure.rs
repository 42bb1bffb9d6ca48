// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failures of operations and connections, as queues report them.
#![forbid(unsafe_code)]

use std::fmt;

use crate::errno::Errno;
use crate::flags::CompFlags;

/// The failure of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation {context:#x} on endpoint {endpoint:#x}: {errno}, provider code {prov_errno}")]
pub struct CompError {
    /// The cause. `ECANCELED` if the operation was flushed after an earlier failure.
    pub errno: Errno,
    /// The provider's own code (verbs: `ib_wc_status`).
    pub prov_errno: u32,
    /// The context that the operation was posted with.
    pub context: u64,
    /// Handle of the endpoint that the operation was posted on.
    pub endpoint: u64,
    /// The kind of operation.
    pub flags: CompFlags,
    /// Bytes of the message that did not fit into the receive.
    pub olen: u64,
}

/// A failed attempt to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnFailure {
    /// The endpoint.
    pub object: u64,
    /// The endpoint's context.
    pub context: u64,
    /// The cause: `ECONNREFUSED` if the peer refuses or no listener has that port, `ETIMEDOUT`,
    /// `EHOSTUNREACH`, …
    pub errno: Errno,
    /// The provider's own code.
    pub prov_errno: u32,
    /// Private data of the refusing peer.
    pub data: Vec<u8>,
}

impl fmt::Display for ConnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, provider code {}", self.errno, self.prov_errno)
    }
}
