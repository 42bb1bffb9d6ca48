// SPDX-License-Identifier: MIT OR Apache-2.0
//! The local socket: its file, and the connections on it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{chown, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use kfauth::protocol::{line, Answer, LINE_MAX};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use zeroize::{Zeroize, Zeroizing};

/// Connections at once, at most.
const MOST: usize = 64;
/// Bytes of answers that wait, from which on no further request is read.
const BEHIND: usize = 1 << 20;

/// Who is at the other end, as the kernel tells of the moment it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its process.
    pub pid: i32,
}

/// The socket that listens.
///
/// Who may connect is said by its file's mode and group, which count supplementary groups as well.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, to know it again.
    file: Option<(u64, u64)>,
}

impl Socket {
    /// Listens at a path, in the place of whatever listened there before.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn bind(path: &Path, group: Option<u32>) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // Under another name first, so that nobody finds it before its mode is right, and who
        // connects finds either the old one or the new one.
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
        };
        let placed = admit(&fresh, group).and_then(|()| std::fs::rename(&fresh, path));
        if placed.is_err() {
            let _ = std::fs::remove_file(&fresh);
        }
        placed.map(|()| socket)
    }

    /// Lets another group connect, or none.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn admit(&self, group: Option<u32>) -> io::Result<()> {
        admit(&self.path, group)
    }

    /// Leaves the file to another daemon, which puts its own in its place, before or after this.
    pub fn leave(&mut self) {
        self.file = None;
    }

    /// Who wants to connect; `None`: nobody more.
    pub fn accept(&self, there: usize) -> Option<Connection> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) if there < MOST => match Connection::new(stream) {
                    Ok(connection) => return Some(connection),
                    Err(e) => crate::event!(Warning, "a connection is dropped: {e}"),
                },
                Ok(_) => crate::event!(Warning, "a connection is dropped: there are {MOST}"),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                Err(e) => {
                    crate::event!(Warning, "cannot accept a connection: {e}");
                    return None;
                }
            }
        }
    }
}

/// Says by the file who may connect: root, and a group's members.
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
    /// Takes its file away, unless it is another daemon's by now.
    fn drop(&mut self) {
        let file = std::fs::symlink_metadata(&self.path).map(|meta| (meta.dev(), meta.ino()));
        if file.is_ok_and(|file| self.file == Some(file)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    /// Who is there.
    pub peer: Peer,
    /// What has come and is no whole line yet. It may hold a key.
    input: Zeroizing<Vec<u8>>,
    output: Vec<u8>,
    /// Nothing more comes, or nothing more is to be heard.
    ending: bool,
}

impl Connection {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let who = getsockopt(&stream, PeerCredentials)?;
        Ok(Self {
            stream,
            peer: Peer {
                uid: who.uid(),
                pid: who.pid(),
            },
            // All at once: a vector that grows leaves copies behind.
            input: Zeroizing::new(Vec::with_capacity(LINE_MAX)),
            output: Vec::new(),
            ending: false,
        })
    }

    /// Whether it has room for more answers, and more may come.
    pub fn hears(&self) -> bool {
        !self.ending && self.has_room()
    }

    /// Whether a line is here that can be answered now.
    pub fn has_line(&self) -> bool {
        self.has_room() && self.line().is_some()
    }

    /// Whether it takes its answers.
    fn has_room(&self) -> bool {
        self.output.len() < BEHIND
    }

    /// Where the first line ends.
    fn line(&self) -> Option<usize> {
        self.input.iter().position(|byte| *byte == b'\n')
    }

    /// Whether answers wait to be sent.
    pub fn speaks(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.ending && self.output.is_empty() && self.line().is_none()
    }

    /// Takes what has come, and has each line answered. Lines of who does not take its answers stay
    /// where they are: an answer may be long.
    pub fn hear(&mut self, mut answer: impl FnMut(Peer, &[u8]) -> Answer) {
        self.answer_lines(&mut answer);
        while self.hears() {
            let had = self.input.len();
            let room = LINE_MAX - had;
            self.input.resize(LINE_MAX, 0);
            let read = self.stream.read(&mut self.input[had..]);
            let came = *read.as_ref().unwrap_or(&0);
            self.input.truncate(had + came);
            match read {
                Ok(0) => self.ending = true,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.hang_up(),
            }
            self.answer_lines(&mut answer);
            if came == room && self.input.len() == LINE_MAX && self.line().is_none() {
                self.refuse(&format!("a line of more than {LINE_MAX} bytes"), "E2BIG");
            }
        }
    }

    /// Has the lines that are here answered, as long as there is room.
    fn answer_lines(&mut self, answer: &mut impl FnMut(Peer, &[u8]) -> Answer) {
        while self.has_room() {
            let Some(end) = self.line() else { return };
            // Out first: whoever cannot be answered is hung up on.
            let mut line: Vec<u8> = self.input[..=end].to_vec();
            self.input[..=end].zeroize();
            self.input.drain(..=end);
            let said = answer(self.peer, &line[..end]);
            line.zeroize();
            self.say(&said);
        }
    }

    /// Nobody is there any more.
    fn hang_up(&mut self) {
        self.ending = true;
        self.output.clear();
        self.input.zeroize();
    }

    /// Says why, and hangs up.
    pub fn refuse(&mut self, what: &str, errno: &str) {
        self.say(&refusal(what, errno));
        self.input.zeroize();
        self.ending = true;
    }

    fn say(&mut self, answer: &Answer) {
        match line(answer) {
            Ok(line) => self.output.extend_from_slice(&line),
            Err(_) => self.hang_up(),
        }
    }

    /// Sends what can be sent now.
    pub fn speak(&mut self) {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => break,
                Ok(sent) => drop(self.output.drain(..sent)),
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

/// The answer that something was not done.
pub fn refusal(what: &str, errno: &str) -> Answer {
    Answer::Error(kfauth::protocol::Refusal {
        what: what.to_owned(),
        errno: errno.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kfauth::protocol::Request;
    use kfauth::{Client, ClientError};

    #[test]
    fn lines_are_answered_in_order() {
        let path = std::env::temp_dir().join(format!("kfi-authd.{}.sock", std::process::id()));
        let socket = Socket::bind(&path, None).unwrap();
        let mode = std::fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let asked = path.clone();
        let asks = std::thread::spawn(move || {
            let mut client = Client::connect(&asked).unwrap();
            let first = client.ask(&Request::List);
            let second = client.ask(&Request::Rule);
            let mut raw = UnixStream::connect(&asked).unwrap();
            raw.write_all(&vec![b'x'; LINE_MAX]).unwrap();
            let mut said = String::new();
            raw.read_to_string(&mut said).unwrap();
            (first, second, said)
        });
        let mut connections = Vec::new();
        let mut count = 0;
        while !asks.is_finished() {
            connections.extend(socket.accept(connections.len()));
            for connection in &mut connections {
                connection.hear(|peer, line| {
                    assert_eq!(peer.pid as u32, std::process::id());
                    count += 1;
                    match serde_json::from_slice(line) {
                        Ok(Request::List) => Answer::Revoked(count),
                        _ => refusal("no", "EPERM"),
                    }
                });
                connection.speak();
            }
            connections.retain(|connection| !connection.is_over());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let (first, second, said) = asks.join().unwrap();
        assert_eq!(first.unwrap(), Answer::Revoked(1));
        assert!(matches!(second, Err(ClientError::Refused(why)) if why.errno == "EPERM"));
        assert!(said.contains("E2BIG"), "{said}");
        patience(&socket, &path);
        // The next one takes the file over, and the first leaves it alone.
        let next = Socket::bind(&path, None).unwrap();
        drop(socket);
        assert!(UnixStream::connect(&path).is_ok());
        drop(next);
        assert!(!path.exists());
    }

    /// Who asks a lot and reads nothing has so much answered as waits to be sent, and gets the rest as
    /// it reads, also after it has said its last.
    fn patience(socket: &Socket, path: &Path) {
        const ASKED: usize = 1000;
        let mut raw = UnixStream::connect(path).unwrap();
        raw.write_all(&b"list\n".repeat(ASKED)).unwrap();
        raw.shutdown(std::net::Shutdown::Write).unwrap();
        let mut there = socket.accept(0).unwrap();
        let mut count = 0;
        let mut turn = |there: &mut Connection| {
            there.hear(|_, _| {
                count += 1;
                refusal(&"x".repeat(BEHIND / 8), "EPERM")
            });
            there.speak();
            count
        };
        assert!(turn(&mut there) <= 8);
        let before = turn(&mut there);
        assert_eq!(turn(&mut there), before, "answered what nobody reads");
        let reads = std::thread::spawn(move || {
            let mut said = Vec::new();
            raw.read_to_end(&mut said).unwrap();
            said.iter().filter(|byte| **byte == b'\n').count()
        });
        while !there.is_over() {
            turn(&mut there);
        }
        drop(there);
        assert_eq!(reads.join().unwrap(), ASKED);
        assert_eq!(count, ASKED);
    }
}
