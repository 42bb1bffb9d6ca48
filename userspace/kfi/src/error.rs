// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a command reports when it fails, and its exit status.

use kfabric::Errno;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A call of the library.
    #[error("{}", fabric(what, source))]
    Fabric {
        /// What was being done.
        what: &'static str,
        /// The library's error.
        source: kfabric::Error,
    },
    /// Reading or writing a file or the terminal.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the file's name.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Writing to standard output.
    #[error("write to standard output: {0}")]
    Output(std::io::Error),
    /// Nothing offered matches what was asked for.
    #[error("getinfo: nothing matches (ENODATA)")]
    NoMatch,
    /// The peer said no, in words.
    #[error("{what}: refused by the peer: {why}")]
    Refused {
        /// What was being done.
        what: &'static str,
        /// The peer's words.
        why: String,
    },
    /// The peer went away.
    #[error("{what}: the connection ended (ENOTCONN)")]
    Gone {
        /// What was being done.
        what: &'static str,
    },
    /// The peer does not keep to the protocol, or speaks another version.
    #[error("{what}: unexpected message from the peer: {got} (EPROTO)")]
    Protocol {
        /// What was being done.
        what: &'static str,
        /// What came.
        got: String,
    },
    /// Data arrived that is not what was sent.
    #[error("{what}: data differs: {detail} (EBADMSG)")]
    Corrupt {
        /// What was being done.
        what: &'static str,
        /// Where and how.
        detail: String,
    },
    /// An auth key that cannot be read, or is none.
    #[error("{0}")]
    AuthKey(#[from] kfauth::KeyError),
    /// kfi-authd could not be asked, or refused.
    #[error("kfi-authd: {0}")]
    Daemon(#[from] kfauth::ClientError),
    /// The policy does not allow it.
    #[error("denied: {0} (EACCES)")]
    Denied(String),
    /// An argument that only turned out wrong here.
    #[error("{0} (EINVAL)")]
    Usage(String),
}

/// Some errors say themselves what was being done.
fn fabric(what: &str, source: &kfabric::Error) -> String {
    match source {
        kfabric::Error::Open { .. } | kfabric::Error::Resolve { .. } => source.to_string(),
        _ => format!("{what}: {source}"),
    }
}

/// Result of a command.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// The exit status: see `kfi --help`.
    pub fn exit_code(&self) -> u8 {
        use kfabric::Error as E;
        match self {
            Self::Usage(_) => 2,
            Self::Fabric {
                source: E::Open { .. },
                ..
            } => 3,
            Self::Fabric { source, .. } if source.errno() == Some(Errno::ENODEV) => 3,
            Self::NoMatch => 4,
            Self::Fabric {
                source: E::Connect(_) | E::Timeout { .. } | E::Resolve { .. },
                ..
            } => 5,
            Self::Refused { .. } | Self::Gone { .. } | Self::Protocol { .. } => 5,
            Self::Corrupt { .. } => 6,
            Self::Daemon(kfauth::ClientError::Io { .. }) => 3,
            Self::Denied(_) => 7,
            _ => 1,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Fabric { source, .. } => source.hint(),
            Self::NoMatch => Some(
                "list what there is: kfi info -l; load a provider, kverbs or kshm; see: rdma link",
            ),
            Self::Daemon(kfauth::ClientError::Io { source, .. }) => Some(match source.kind() {
                std::io::ErrorKind::PermissionDenied => {
                    "its socket is for root and the group that its policy names"
                }
                _ => "is it running? see: systemctl status kfi-authd",
            }),
            Self::Gone { .. } => Some("look at the peer's own messages"),
            Self::Protocol { .. } => Some("both sides need the same version of kfi"),
            _ => None,
        }
    }

    /// The errno's name, where there is one.
    pub fn errno(&self) -> Option<&'static str> {
        match self {
            Self::Fabric { source, .. } => source.errno().map(Errno::name),
            Self::Io { source, .. } | Self::Output(source) => {
                source.raw_os_error().map(|n| Errno(n).name())
            }
            Self::NoMatch => Some("ENODATA"),
            Self::Refused { .. } => Some("ECONNREFUSED"),
            Self::Gone { .. } => Some("ENOTCONN"),
            Self::Protocol { .. } => Some("EPROTO"),
            Self::Corrupt { .. } => Some("EBADMSG"),
            Self::AuthKey(_) => None,
            Self::Daemon(kfauth::ClientError::Io { source, .. }) => {
                source.raw_os_error().map(|n| Errno(n).name())
            }
            Self::Daemon(_) => None,
            Self::Denied(_) => Some("EACCES"),
            Self::Usage(_) => Some("EINVAL"),
        }
    }
}

/// Says what was being done when a call failed.
pub trait During<T> {
    /// Adds it.
    ///
    /// # Errors
    ///
    /// The error, with what was being done.
    fn during(self, what: &'static str) -> Result<T>;
}

impl<T, E: Into<kfabric::Error>> During<T> for std::result::Result<T, E> {
    fn during(self, what: &'static str) -> Result<T> {
        self.map_err(|e| Failure::Fabric {
            what,
            source: e.into(),
        })
    }
}

/// Says which file could not be used.
pub trait OnFile<T> {
    /// Adds it.
    ///
    /// # Errors
    ///
    /// The error, with the name.
    fn on_file(self, verb: &str, path: &std::path::Path) -> Result<T>;
}

impl<T> OnFile<T> for std::io::Result<T> {
    fn on_file(self, verb: &str, path: &std::path::Path) -> Result<T> {
        self.map_err(|source| Failure::Io {
            what: format!("{verb} {}", path.display()),
            source,
        })
    }
}
