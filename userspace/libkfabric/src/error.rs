// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong, told so that somebody can act on it.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::errno::Errno;
use crate::event::ConnFailure;
use crate::object::Kind;

/// Result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Names an object in messages: what it is and its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// What it is.
    pub kind: Kind,
    /// Its handle; 0 for the device itself.
    pub handle: u64,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.handle == 0 {
            write!(f, "{}", self.kind)
        } else {
            write!(f, "{} {:#x}", self.kind, self.handle)
        }
    }
}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device file could not be opened.
    #[error("open {}: {}", path.display(), of_file(*errno))]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// The kernel refused a call.
    #[error("{call} on {object}: {errno}")]
    Call {
        /// The call, for example `EP_OPEN`.
        call: &'static str,
        /// The object that it was made on (for an open: the parent).
        object: ObjectId,
        /// Why.
        errno: Errno,
    },
    /// An argument was refused before it reached the kernel.
    #[error("{what}: {why}")]
    Argument {
        /// The argument.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A name could not be turned into an address.
    #[error("resolve {name}: {why}")]
    Resolve {
        /// The name and service asked for.
        name: String,
        /// What the resolver said.
        why: String,
    },
    /// Time ran out.
    #[error("{what}: timed out after {after:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
    },
    /// Connecting failed or was refused.
    #[error("no connection: {0}")]
    Connect(Box<ConnFailure>),
    /// An operation completed with an error.
    #[error(transparent)]
    Completion(#[from] crate::completion::CompError),
    /// The completion ring says what it never may; the queue is unusable.
    #[error("completion ring of {0} is inconsistent")]
    Ring(ObjectId),
}

/// What an errno says of a file, which is no object.
fn of_file(errno: Errno) -> String {
    match errno {
        Errno::ENOENT => "no such file (ENOENT)".to_owned(),
        errno => errno.to_string(),
    }
}

impl Error {
    /// An object was given to one of another device file.
    pub(crate) fn foreign(object: ObjectId) -> Self {
        Self::Argument {
            what: "object of another device file",
            why: object.to_string(),
        }
    }

    /// The error number, where there is one.
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

    /// Whether the same call may succeed later: a queue was full.
    pub fn is_full(&self) -> bool {
        self.errno() == Some(Errno::EAGAIN)
    }

    /// What to do about it, where something general can be said.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Open { errno, .. } => match *errno {
                Errno::ENOENT | Errno::ENODEV | Errno::ENXIO => Some(
                    "the module is not loaded: modprobe kfabric if it is installed (cargo xtask install), else insmod kfabric.ko; then a provider, kverbs or kshm",
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
                Errno::ECANCELED => Some("an earlier operation failed, its completion says why"),
                Errno::EACCES => Some("the peer's key does not cover this access: wrong range or rights, or revoked"),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Advice by call and errno.
fn call_hint(call: &str, errno: Errno) -> Option<&'static str> {
    Some(match (call, errno) {
        (
            "AUTH_MODE" | "GRANT_ADD" | "GRANT_CHANGE" | "GRANT_REVOKE" | "GRANT_LIST"
            | "AGENT_OPEN" | "AGENT_NEXT" | "AGENT_ANSWER",
            Errno::EPERM,
        ) => "auth keys are the administrator's (CAP_SYS_ADMIN); job managers go by kfi-authd's socket",
        ("GRANT_ADD" | "AGENT_ANSWER", Errno::EBUSY) => {
            "a grant of this auth key is over and something opened under it has not ended yet: try again"
        }
        ("GRANT_CHANGE" | "GRANT_REVOKE", Errno::ENOENT) => "see the grants there are: kfi auth list",
        ("PEP_OPEN", Errno::EACCES) => {
            "a port below 1024 takes CAP_NET_BIND_SERVICE; else the agent denied it: see its log"
        }
        (_, Errno::EACCES) if call.ends_with("OPEN") => "denied by the agent: see its log",
        (_, Errno::ENOKEY) => {
            "grants are needed here (kfi auth mode), and there is no auth key, no grant, or no agent to ask"
        }
        (_, Errno::EDQUOT) => "beyond the limits of the auth key's grant: see kfi auth list",
        (_, Errno::EKEYREVOKED | Errno::EKEYEXPIRED) => "the auth key's grant is over: ask for another",
        (_, Errno::ENODEV) => "the device under it went away: close it and open another",
        (_, Errno::ENOTTY) => "the loaded kfabric module is older than this program",
        (_, Errno::E2BIG) => "the loaded kfabric module is older than this program",
        ("REGION_REG", Errno::ENOMEM) => {
            "raise the locked-memory limit: ulimit -l, or LimitMEMLOCK= in the unit"
        }
        ("REGION_REG", Errno::EFAULT) => {
            "the range is not mapped, or not writable for the access asked for"
        }
        ("REGION_REG", Errno::EOPNOTSUPP) => {
            "the mapping's kind cannot be pinned long-term (a shared file mapping?)"
        }
        ("CLOSE", Errno::EBUSY) => "close its children and let its operations end first",
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
        (_, Errno::EOPNOTSUPP) => "this provider does not offer it: see kfi info -v",
        _ => return None,
    })
}

/// A call took an object, failed, and gives the object back.
#[derive(Debug)]
pub struct Returned<T> {
    /// The object, as usable as before.
    pub object: T,
    /// Why the call failed.
    pub error: Error,
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
