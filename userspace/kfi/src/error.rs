// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failures of a command, and the exit status for each.

use kfabric::Errno;

/// The failure of a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A call of the library failed.
    #[error("{}", fabric(what, source))]
    Fabric {
        /// The step that failed.
        what: &'static str,
        /// The library's error.
        source: kfabric::Error,
    },
    /// Reading or writing a file or the terminal failed.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed, with the file's name.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Writing to standard output failed.
    #[error("write to standard output: {0}")]
    Output(std::io::Error),
    /// No offer of a provider matches the request.
    #[error("getinfo: nothing matches (ENODATA)")]
    NoMatch,
    /// The peer refused, with a reason.
    #[error("{what}: refused by the peer: {why}")]
    Refused {
        /// The step that failed.
        what: &'static str,
        /// The peer's reason.
        why: String,
    },
    /// The peer disconnected.
    #[error("{what}: the connection ended (ENOTCONN)")]
    Gone {
        /// The step that failed.
        what: &'static str,
    },
    /// The peer breaks the protocol, or uses another version of it.
    #[error("{what}: unexpected message from the peer: {got} (EPROTO)")]
    Protocol {
        /// The step that failed.
        what: &'static str,
        /// The unexpected message.
        got: String,
    },
    /// The data received differs from the data sent.
    #[error("{what}: data differs: {detail} (EBADMSG)")]
    Corrupt {
        /// The step that failed.
        what: &'static str,
        /// Position and kind of the difference.
        detail: String,
    },
    /// An auth key cannot be read or is invalid.
    #[error("{0}")]
    AuthKey(#[from] kfauth::KeyError),
    /// kfi-authd cannot be reached, or refused the request.
    #[error("kfi-authd: {0}")]
    Daemon(#[from] kfauth::ClientError),
    /// The policy denies the request.
    #[error("denied: {0} (EACCES)")]
    Denied(String),
    /// `kfi doctor` has warnings or errors.
    #[error("doctor: {count} {}", if *count == 1 { "finding" } else { "findings" })]
    Unwell {
        /// Number of warnings and errors.
        count: usize,
    },
    /// An argument is wrong, which only the command could detect.
    #[error("{0} (EINVAL)")]
    Usage(String),
}

/// Formats a library error. Some errors name the step themselves.
fn fabric(what: &str, source: &kfabric::Error) -> String {
    match source {
        kfabric::Error::Open { .. } | kfabric::Error::Resolve { .. } => source.to_string(),
        _ => format!("{what}: {source}"),
    }
}

/// Result of a command.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// The exit status; `kfi --help` lists them.
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

    /// Advice on how to solve the failure.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Fabric { source, .. } => source.hint(),
            Self::NoMatch => Some(
                "list the providers: kfi info -l; load a provider, kverbs or kshm; see: rdma link",
            ),
            Self::Daemon(kfauth::ClientError::Io { source, .. }) => Some(match source.kind() {
                std::io::ErrorKind::PermissionDenied => {
                    "only root and the group that its policy names may use its socket"
                }
                _ => "is it running? see: systemctl status kfi-authd",
            }),
            Self::Gone { .. } => Some("see the peer's own messages"),
            Self::Protocol { .. } => Some("both sides need the same version of kfi"),
            _ => None,
        }
    }

    /// The errno's name; `None` if the failure has no errno.
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
            Self::Daemon(_) | Self::Unwell { .. } => None,
            Self::Denied(_) => Some("EACCES"),
            Self::Usage(_) => Some("EINVAL"),
        }
    }
}

/// Adds the step that failed to an error of the library.
pub trait During<T> {
    /// Adds the step.
    ///
    /// # Errors
    ///
    /// The error, with the step.
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

/// Adds the file's name to an error of the system.
pub trait OnFile<T> {
    /// Adds the name.
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
