// SPDX-License-Identifier: MIT OR Apache-2.0
//! Speaking with a running `kfi-authd`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::protocol::{line, Answer, Refusal, Request};

/// How long the daemon may take for an answer: revoking waits for what has to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of an answer, at most: a list of all the grants there can be.
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

/// Why the daemon could not be asked, or did not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The socket.
    #[error("{}: {source}", path.display())]
    Io {
        /// Its file.
        path: PathBuf,
        /// What failed.
        source: std::io::Error,
    },
    /// It says what this version does not understand.
    #[error("{}: not an answer: {why}", path.display())]
    Protocol {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It refused.
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
    /// [`ClientError::Io`].
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

    /// Makes a request and waits for its answer, which is not [`Answer::Error`].
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with what the daemon says; [`ClientError::Io`],
    /// [`ClientError::Protocol`].
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
        // A daemon that refuses the caller has hung up already, and said why.
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
