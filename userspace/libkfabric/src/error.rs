// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors, and hints on how to solve them.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::errno::Errno;
use crate::failure::{CompError, ConnFailure};
use crate::object::ObjectId;

/// Result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device file could not be opened.
    #[error("open {}: {}", path.display(), of_file(*errno))]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        errno: Errno,
    },
    /// The kernel refused a call.
    #[error("{call} on {object}: {errno}")]
    Call {
        /// The call, for example `EP_OPEN`.
        call: &'static str,
        /// The object that the call was made on (for an open: the parent).
        object: ObjectId,
        /// The cause.
        errno: Errno,
    },
    /// An argument was refused before it reached the kernel.
    #[error("{what}: {why}")]
    Argument {
        /// The argument.
        what: &'static str,
        /// The fault of the argument.
        why: String,
    },
    /// A name could not be turned into an address.
    #[error("resolve {name}: {why}")]
    Resolve {
        /// The name and service to resolve.
        name: String,
        /// The resolver's message.
        why: String,
    },
    /// A wait reached its timeout.
    #[error("{what}: timed out after {after:?}")]
    Timeout {
        /// The object of the wait.
        what: &'static str,
        /// The timeout.
        after: Duration,
    },
    /// Connecting failed or was refused.
    #[error("no connection: {0}")]
    Connect(Box<ConnFailure>),
    /// An operation completed with an error.
    #[error(transparent)]
    Completion(#[from] CompError),
    /// The completion ring holds impossible values; the queue is unusable.
    #[error("completion ring of {0} is inconsistent")]
    Ring(ObjectId),
}

/// The message for the errno of a file, for which "no such object" would be misleading.
fn of_file(errno: Errno) -> String {
    match errno {
        Errno::ENOENT => "no such file (ENOENT)".to_owned(),
        errno => errno.to_string(),
    }
}

impl Error {
    /// Makes the error for an object of another device file.
    pub(crate) fn foreign(object: ObjectId) -> Self {
        Self::Argument {
            what: "object of another device file",
            why: object.to_string(),
        }
    }

    /// The error number; `None` for an error without one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Open { errno, .. } | Self::Call { errno, .. } => Some(*errno),
            Self::Argument { .. } => Some(Errno::EINVAL),
            Self::Resolve { .. } => None,
            Self::Timeout { .. } => Some(Errno::ETIMEDOUT),
            Self::Connect(failure) => Some(failure.errno),
            Self::Completion(e) => Some(e.errno),
            Self::Ring(_) => Some(Errno::EIO),
        }
    }

    /// Whether the same call may succeed later, because a queue is full.
    pub fn is_full(&self) -> bool {
        self.errno() == Some(Errno::EAGAIN)
    }

    /// Advice on how to solve the error, if there is general advice.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Open { errno, .. } => match *errno {
                Errno::ENOENT | Errno::ENODEV | Errno::ENXIO => Some(
                    "the module is not loaded: modprobe kfabric (if not installed: insmod kfabric.ko), then a provider, kverbs or kshm",
                ),
                Errno::EACCES | Errno::EPERM => {
                    Some("join the group that owns the device file (rdma by the shipped udev rule), or run as root")
                }
                _ => None,
            },
            Self::Call { call, errno, .. } => call_hint(call, *errno),
            Self::Timeout { .. } => Some("is the peer up, and the RDMA link active? see: rdma link"),
            Self::Connect(failure) => match failure.errno {
                Errno::ECONNREFUSED => Some("is something listening at that address and port?"),
                Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH => {
                    Some("check the route and the RDMA link: ip route get ADDRESS; rdma link")
                }
                _ => None,
            },
            Self::Completion(e) => match e.errno {
                Errno::ECANCELED => Some("an earlier operation failed: see its completion"),
                Errno::EACCES => Some("the peer's key does not cover this access: wrong range or rights, or revoked"),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Advice for the failure of a call.
fn call_hint(call: &str, errno: Errno) -> Option<&'static str> {
    Some(match (call, errno) {
        (
            "AUTH_MODE" | "GRANT_ADD" | "GRANT_CHANGE" | "GRANT_REVOKE" | "GRANT_LIST"
            | "AGENT_OPEN" | "AGENT_NEXT" | "AGENT_ANSWER",
            Errno::EPERM,
        ) => "only an administrator (CAP_SYS_ADMIN) manages auth keys; job managers use kfi-authd's socket",
        ("GRANT_ADD" | "AGENT_ANSWER", Errno::EBUSY) => {
            "a grant of this auth key has ended, but an object opened under it still exists: try again"
        }
        ("GRANT_CHANGE" | "GRANT_REVOKE", Errno::ENOENT) => "list the grants: kfi auth list",
        ("PEP_OPEN", Errno::EACCES) => {
            "a port below 1024 needs CAP_NET_BIND_SERVICE; otherwise the agent denied the request: see the agent's log"
        }
        (_, Errno::EACCES) if call.ends_with("OPEN") => "denied by the agent: see the agent's log",
        (_, Errno::ENOKEY) => {
            "grants are required here (kfi auth mode), but an auth key, a grant or the agent is missing"
        }
        (_, Errno::EDQUOT) => {
            "beyond the limits of the auth key's grant (kfi auth list), or of the user (user_mib in kfi info -v)"
        }
        (_, Errno::EKEYREVOKED | Errno::EKEYEXPIRED) => "the auth key's grant has ended: request another one",
        (_, Errno::ENODEV) => "the device was removed: close the object and open another one",
        (_, Errno::ENOTTY) => "the loaded kfabric module is older than this program",
        (_, Errno::E2BIG) => "the loaded kfabric module is older than this program",
        ("REGION_REG", Errno::ENOMEM) => {
            "raise the locked-memory limit: ulimit -l, or LimitMEMLOCK= in the unit"
        }
        ("REGION_REG", Errno::EFAULT) => {
            "the range is not mapped, or not writable although the access needs it"
        }
        ("REGION_REG", Errno::EOPNOTSUPP) => {
            "the mapping's kind cannot be pinned long-term (a shared file mapping?)"
        }
        ("CLOSE", Errno::EBUSY) => "close the object's children and wait for its operations first",
        ("KEY_ASSIGN" | "KEY_ASSIGN_MANY", Errno::EBUSY) => "revoke the slot's key first",
        ("KEY_ASSIGN" | "KEY_ASSIGN_MANY", Errno::EACCES) => {
            "rights must lie within the region's access"
        }
        ("KEY_ASSIGN" | "KEY_ASSIGN_MANY", Errno::EINVAL) => {
            "offset + length must lie within the region"
        }
        ("KEY_ALLOC", Errno::ENOSPC) => "the device has no key slots left: close some",
        ("SUBMIT", Errno::EAGAIN) => "read completions, then submit again",
        ("FABRIC_OPEN", Errno::ENOENT) => {
            "no provider of that name: load it (kverbs, kshm), then see: kfi info -l"
        }
        ("DOMAIN_OPEN", Errno::ENOENT) => "no device of that name: see kfi info and rdma link",
        ("LISTEN" | "PEP_OPEN", Errno::EADDRINUSE) => "another listener has that port",
        ("LISTEN" | "PEP_OPEN", Errno::EADDRNOTAVAIL) => "no local interface has that address",
        (_, Errno::EOPNOTSUPP) => "this provider does not support it: see kfi info -v",
        _ => return None,
    })
}

/// The error of a call that takes an object by value, with the object.
#[derive(Debug)]
pub struct Returned<T> {
    /// The object, unchanged.
    pub object: T,
    /// The error of the call.
    pub error: Error,
}

impl<T> Returned<T> {
    /// Adds `object` to the error of a call on the object.
    pub(crate) fn on_error<U>(outcome: Result<U>, object: T) -> std::result::Result<U, Self> {
        outcome.map_err(|error| Self { object, error })
    }
}

impl<T> From<Returned<T>> for Error {
    fn from(returned: Returned<T>) -> Self {
        returned.error
    }
}

impl<T: fmt::Debug> fmt::Display for Returned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for Returned<T> {}
