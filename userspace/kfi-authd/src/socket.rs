// SPDX-License-Identifier: MIT OR Apache-2.0
//! The local socket: its file, and the limits of its connections.

mod connection;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{chown, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use connection::{refusal, Connection, Peer};

/// Maximum number of connections.
const MOST: usize = 64;
/// Connections of [`MOST`] that are reserved for privileged peers.
const RESERVED: usize = 8;
/// Maximum number of connections of one unprivileged user.
const USER_MOST: usize = 16;
/// Maximum number of connections of one unprivileged process.
const PEER_MOST: usize = 8;
/// Maximum number of connections accepted in a row, before other work.
const ROW: usize = 16;
/// First and longest pause after an error of the system in accepting.
const REST: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Checks that another connection of a peer is within the limits.
///
/// # Errors
///
/// The limit that is reached, in words.
fn seat(there: &[Connection], peer: Peer) -> Result<(), &'static str> {
    let count = |of: &dyn Fn(&Peer) -> bool| there.iter().filter(|c| of(&c.peer)).count();
    if there.len() >= MOST {
        return Err("there are as many connections as there may be");
    }
    if peer.is_privileged() {
        return Ok(());
    }
    if count(&|other| !other.is_privileged()) >= MOST - RESERVED {
        return Err("the other seats are for root");
    }
    if count(&|other| other.uid == peer.uid) >= USER_MOST {
        return Err("the user has as many connections as one may have");
    }
    if count(&|other| other.pid == peer.pid) >= PEER_MOST {
        return Err("the process has as many connections as one may have");
    }
    Ok(())
}

/// The listening socket.
///
/// The mode and group of its file decide which processes may connect. The kernel checks
/// supplementary groups, too.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, to recognize it.
    file: Option<(u64, u64)>,
    /// End and length of the pause in accepting, after an error of the system.
    rest: Option<(Instant, Duration)>,
    /// Time of the last log entry about a refused connection, and the number of refusals since.
    turned: (Option<Instant>, usize),
}

impl Socket {
    /// Listens at `path`, and replaces any socket there.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    pub fn bind(path: &Path, group: Option<u32>) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // Bound under another name first, then renamed. So no process can connect before the mode
        // is right, and at any time either the old or the new socket has the name.
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let fresh = PathBuf::from(name);
        let _ = std::fs::remove_file(&fresh);
        let mask = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
        let bound = UnixListener::bind(&fresh);
        nix::sys::stat::umask(mask);
        let listener = bound?;
        listener.set_nonblocking(true)?;
        let meta = std::fs::metadata(&fresh)?;
        let socket = Self {
            listener,
            path: path.to_owned(),
            file: Some((meta.dev(), meta.ino())),
            rest: None,
            turned: (None, 0),
        };
        let placed = admit(&fresh, group).and_then(|()| std::fs::rename(&fresh, path));
        if placed.is_err() {
            let _ = std::fs::remove_file(&fresh);
        }
        placed.map(|()| socket)
    }

    /// Changes the group that may connect.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    pub fn admit(&self, group: Option<u32>) -> io::Result<()> {
        admit(&self.path, group)
    }

    /// Gives up the file: another daemon replaces it, before or after this.
    pub fn leave(&mut self) {
        self.file = None;
    }

    /// Time until connections are accepted again after an error of the system; `None` without a
    /// pause.
    pub fn rests(&self, now: Instant) -> Option<Duration> {
        let (until, _) = self.rest?;
        until
            .checked_duration_since(now)
            .filter(|left| !left.is_zero())
    }

    /// Accepts pending connections, up to `ROW`. Refused peers get the reason.
    pub fn accept(&mut self, there: &mut Vec<Connection>, group: Option<u32>) {
        if self.rests(Instant::now()).is_some() {
            return;
        }
        for _ in 0..ROW {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) => match e.kind() {
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    io::ErrorKind::WouldBlock => return self.end_rest(),
                    // The socket stays readable: without a pause, missing descriptors or memory
                    // would make a busy loop.
                    _ => return self.take_rest(&e),
                },
            };
            self.end_rest();
            let mut connection = match Connection::new(stream) {
                Ok(connection) => connection,
                Err(e) => {
                    self.turn_away(&format!("a connection is dropped: {e}"));
                    continue;
                }
            };
            let peer = connection.peer;
            let (why, errno) = match seat(there, peer) {
                // The file may have had another group when the peer connected.
                Ok(()) if !connection.is_admitted(group) => (
                    "this is for root and a group that the policy names",
                    "EPERM",
                ),
                Ok(()) => {
                    there.push(connection);
                    continue;
                }
                Err(why) => (why, "EAGAIN"),
            };
            connection.refuse(why, errno);
            connection.speak();
            let (pid, uid) = (peer.pid, peer.uid);
            self.turn_away(&format!("pid {pid} of uid {uid} is refused: {why}"));
        }
    }

    /// Pauses accepting; each pause in a row is longer.
    fn take_rest(&mut self, why: &io::Error) {
        let long = match self.rest {
            Some((_, long)) => (long * 2).min(REST.1),
            None => {
                crate::event!(Warning, "no connection can be accepted for now: {why}");
                REST.0
            }
        };
        self.rest = Some((Instant::now() + long, long));
    }

    /// Ends the pause.
    fn end_rest(&mut self) {
        if self.rest.take().is_some() {
            crate::event!(Notice, "connections are accepted again");
        }
    }

    /// Logs a refused connection, at most once a second.
    fn turn_away(&mut self, what: &str) {
        const PACE: Duration = Duration::from_secs(1);
        let now = Instant::now();
        let (last, more) = &mut self.turned;
        if last.is_some_and(|last| now.duration_since(last) < PACE) {
            *more += 1;
            return;
        }
        match std::mem::take(more) {
            0 => crate::event!(Notice, "{what}"),
            more => crate::event!(Notice, "{what} ({more} more before)"),
        }
        *last = Some(now);
    }
}

/// Sets mode and group of the file, so that root and the group's members may connect.
fn admit(path: &Path, group: Option<u32>) -> io::Result<()> {
    let set = |mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    set(0o600)?;
    let Some(group) = group else {
        return Ok(());
    };
    chown(path, None, Some(group))?;
    set(0o660)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Socket {
    /// Removes the file, unless it is another daemon's by now.
    fn drop(&mut self) {
        let file = std::fs::symlink_metadata(&self.path).map(|meta| (meta.dev(), meta.ino()));
        if file.is_ok_and(|file| self.file == Some(file)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests;
