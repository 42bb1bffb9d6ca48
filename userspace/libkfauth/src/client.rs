// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client of a running `kfi-authd`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::protocol::{line, Answer, Refusal, Request};

/// Maximum time for an answer: a revocation waits for operations to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// Maximum bytes of an answer: a list of all grants that can exist.
const ANSWER_MAX: u64 = 64 << 20;

/// A connection to the daemon.
///
/// ```no_run
/// use kfauth::protocol::{Answer, Request, SOCKET};
/// use kfauth::Client;
/// use std::path::Path;
///
/// # fn main() -> Result<(), kfauth::ClientError> {
/// let mut client = Client::connect(Path::new(SOCKET))?;
/// if let Answer::Grants(grants) = client.ask(&Request::List)? {
///     println!("{} grants", grants.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

/// The failure of a request to the daemon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Connecting or communicating failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the socket.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The daemon's answer is not understood.
    #[error("{}: not an answer: {why}", path.display())]
    Protocol {
        /// Path of the socket.
        path: PathBuf,
        /// The fault of the answer.
        why: String,
    },
    /// The daemon refused the request.
    #[error("{}", refusal(.0))]
    Refused(Refusal),
}

fn refusal(refusal: &Refusal) -> String {
    if refusal.errno.is_empty() || refusal.what.contains(&refusal.errno) {
        return refusal.what.clone();
    }
    format!("{} ({})", refusal.what, refusal.errno)
}

impl Client {
    /// Connects to the daemon.
    ///
    /// # Errors
    ///
    /// - [`ClientError::Io`] if the daemon is not running, or the caller may not connect.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let connect = || {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        let stream = connect().map_err(|source| ClientError::Io {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            stream: BufReader::new(stream),
            path: path.to_owned(),
        })
    }

    /// Makes a request, and waits for its answer. Never returns [`Answer::Error`].
    ///
    /// # Errors
    ///
    /// - [`ClientError::Refused`] if the daemon refuses the request.
    /// - [`ClientError::Io`] if communicating fails.
    /// - [`ClientError::Protocol`] if the answer is not understood.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, ClientError> {
        let io = |source| ClientError::Io {
            path: self.path.clone(),
            source,
        };
        let protocol = |why: String| ClientError::Protocol {
            path: self.path.clone(),
            why,
        };
        let ask = line(request).map_err(|e| protocol(e.to_string()))?;
        // A daemon that refuses the caller has sent its reason and hung up by now: read before
        // checking.
        let sent = self.stream.get_mut().write_all(&ask);
        let mut text = String::new();
        let read = (&mut self.stream).take(ANSWER_MAX).read_line(&mut text);
        if text.is_empty() {
            sent.map_err(io)?;
            read.map_err(io)?;
            return Err(protocol("it hung up".to_owned()));
        }
        match serde_json::from_str(&text) {
            Ok(Answer::Error(refusal)) => Err(ClientError::Refused(refusal)),
            Ok(answer) => Ok(answer),
            Err(e) => Err(protocol(e.to_string())),
        }
    }
}
