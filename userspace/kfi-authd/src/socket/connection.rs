// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection of a peer: its requests and its answers.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kfauth::protocol::{line, Answer, LINE_MAX};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of unsent answers from which on no further request is read.
pub(super) const BEHIND: usize = 1 << 20;
/// Maximum time of a request from its first byte to its last.
pub(super) const HALF: Duration = Duration::from_secs(10);
/// Maximum time without a request, or without progress of unread answers.
pub(super) const IDLE: Duration = Duration::from_secs(600);

/// The process at the other end, as of the time of connecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Process id.
    pub pid: i32,
}

impl Peer {
    /// Whether the peer is root, or has the daemon's own user id.
    pub fn is_privileged(&self) -> bool {
        [0, nix::unistd::geteuid().as_raw()].contains(&self.uid)
    }
}

/// A connection of a peer.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    /// Number of the connection, never used again.
    id: u64,
    /// The process at the other end.
    pub peer: Peer,
    /// Supplementary groups of the peer.
    pub(super) groups: Vec<u32>,
    /// Bytes read, up to an incomplete line. They may contain a key.
    input: Zeroizing<Vec<u8>>,
    output: Vec<u8>,
    /// No further request is read.
    ending: bool,
    /// Set while a request is being executed.
    busy: bool,
    /// Time of the last progress: bytes read, a request answered, or bytes sent.
    active: Instant,
    /// Arrival of the first byte of an incomplete request.
    half: Option<Instant>,
}

/// Number of the next connection.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Connection {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let peer = getsockopt(&stream, PeerCredentials)?;
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            peer: Peer {
                uid: peer.uid(),
                gid: peer.gid(),
                pid: peer.pid(),
            },
            groups: kfauth::peer_groups(stream.as_fd())?,
            stream,
            // Full capacity from the start: a growing vector leaves copies of keys behind.
            input: Zeroizing::new(Vec::with_capacity(LINE_MAX)),
            output: Vec::new(),
            ending: false,
            busy: false,
            active: Instant::now(),
            half: None,
        })
    }

    /// Number of the connection, never used again.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the peer may use the socket: root, the daemon's user, or a member of the group.
    pub fn is_admitted(&self, group: Option<u32>) -> bool {
        let in_group = |gid| self.peer.gid == gid || self.groups.contains(&gid);
        self.peer.is_privileged() || group.is_some_and(in_group)
    }

    /// Returns whether further bytes should be read.
    pub fn hears(&self) -> bool {
        !self.ending && !self.busy && self.has_room()
    }

    /// Whether a complete request can be taken now.
    pub fn has_line(&self) -> bool {
        !self.busy && self.has_room() && self.line().is_some()
    }

    /// Whether the unsent answers are few enough for another one.
    fn has_room(&self) -> bool {
        self.output.len() < BEHIND
    }

    /// Index of the end of the first line.
    fn line(&self) -> Option<usize> {
        self.input.iter().position(|byte| *byte == b'\n')
    }

    /// Whether answers are waiting to be sent.
    pub fn speaks(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether the connection has ended, with all answers sent.
    pub fn is_over(&self) -> bool {
        self.ending && !self.busy && self.output.is_empty() && self.line().is_none()
    }

    /// Time at which the connection expires without progress; `None` if it does not.
    pub fn deadline(&self) -> Option<Instant> {
        if self.busy {
            return None;
        }
        match self.half {
            Some(since) => Some(since + HALF),
            // Privileged connections do not expire: places are reserved for them.
            None if self.peer.is_privileged() && !self.speaks() => None,
            None => Some(self.active + IDLE),
        }
    }

    /// Ends the connection if it has expired.
    pub fn expire(&mut self, now: Instant) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.half {
            Some(_) => self.refuse("the rest of the request did not come", "ETIMEDOUT"),
            None if self.speaks() => self.hang_up(),
            None => self.refuse("nothing was asked for a long time", "ETIMEDOUT"),
        }
        self.speak();
        // An answer that cannot be sent at once is dropped.
        if self.speaks() {
            self.hang_up();
        }
    }

    /// Reads up to the end of a line, if an answer fits. An answer may be long, so requests of a
    /// peer that does not read its answers stay in the socket.
    pub fn hear(&mut self) {
        while self.hears() && self.line().is_none() {
            let had = self.input.len();
            self.input.resize(LINE_MAX, 0);
            let read = self.stream.read(&mut self.input[had..]);
            let came = *read.as_ref().unwrap_or(&0);
            self.input.truncate(had + came);
            match read {
                Ok(0) => self.ending = true,
                Ok(_) => self.active = Instant::now(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.hang_up(),
            }
            if self.input.len() == LINE_MAX && self.line().is_none() {
                self.refuse(&format!("a line of more than {LINE_MAX} bytes"), "E2BIG");
            }
        }
        self.half = match self.input.is_empty() || self.ending || self.line().is_some() {
            true => None,
            false => self.half.or(Some(self.active)),
        };
    }

    /// Takes the next request. The caller answers it by [`Connection::answered`] before taking
    /// another one.
    pub fn take_line(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        if !self.has_line() {
            return None;
        }
        let end = self.line()?;
        // Copied out first: the caller may hang up on a peer whose request it cannot answer.
        let line = Zeroizing::new(self.input[..end].to_vec());
        self.input[..=end].zeroize();
        self.input.drain(..=end);
        self.busy = true;
        Some(line)
    }

    /// Queues the answer to the request that was taken.
    pub fn answered(&mut self, answer: &Answer) {
        self.busy = false;
        self.active = Instant::now();
        self.half = None;
        self.say(answer);
    }

    /// Drops all input and output: the peer has disconnected.
    fn hang_up(&mut self) {
        self.ending = true;
        self.output.clear();
        self.input.zeroize();
        self.half = None;
    }

    /// Sends the reason, then hangs up.
    pub fn refuse(&mut self, what: &str, errno: &str) {
        self.say(&refusal(what, errno));
        self.input.zeroize();
        self.half = None;
        self.ending = true;
    }

    fn say(&mut self, answer: &Answer) {
        match line(answer) {
            Ok(line) => self.output.extend_from_slice(&line),
            Err(_) => self.hang_up(),
        }
    }

    /// Sends as many bytes as possible without blocking.
    pub fn speak(&mut self) {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => break,
                Ok(sent) => {
                    self.output.drain(..sent);
                    self.active = Instant::now();
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.hang_up(),
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Makes an answer that refuses a request.
pub fn refusal(what: &str, errno: &str) -> Answer {
    Answer::Error(kfauth::protocol::Refusal {
        what: what.to_owned(),
        errno: errno.to_owned(),
    })
}
