// SPDX-License-Identifier: MIT OR Apache-2.0
//! The local socket: its file, and the connections on it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{chown, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kfauth::protocol::{line, Answer, LINE_MAX};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use zeroize::{Zeroize, Zeroizing};

/// Connections at once, at most.
const MOST: usize = 64;
/// Of these, seats that only the privileged take.
const RESERVED: usize = 8;
/// Connections of one user, who is not privileged, at most.
const USER_MOST: usize = 16;
/// Connections of one process, which is not privileged, at most.
const PEER_MOST: usize = 8;
/// Connections that are accepted in a row before anything else is looked at.
const ROW: usize = 16;
/// Bytes of answers that wait, from which on no further request is read.
const BEHIND: usize = 1 << 20;
/// How long a request may take from its first byte to its last.
const HALF: Duration = Duration::from_secs(10);
/// How long a connection may be of no use: without a request, or without its answers being read.
const IDLE: Duration = Duration::from_secs(600);
/// How long none is accepted after the system has refused one, at first and at most.
const REST: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Who is at the other end, as the kernel tells of the moment it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its process.
    pub pid: i32,
}

impl Peer {
    /// Whether it is root, or the daemon's own user.
    pub fn is_privileged(&self) -> bool {
        [0, nix::unistd::geteuid().as_raw()].contains(&self.uid)
    }
}

/// Whether another connection of a peer fits beside those that are there.
///
/// # Errors
///
/// Why not.
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

/// The socket that listens.
///
/// Who may connect is said by its file's mode and group, which count supplementary groups as well.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, to know it again.
    file: Option<(u64, u64)>,
    /// Until when none is accepted, and how long that is, after the system has refused one.
    rest: Option<(Instant, Duration)>,
    /// When it was last said that a connection is turned away, and how many were since.
    turned: (Option<Instant>, usize),
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
            rest: None,
            turned: (None, 0),
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

    /// How long no connection is accepted yet, because the system has just refused one.
    pub fn rests(&self, now: Instant) -> Option<Duration> {
        let (until, _) = self.rest?;
        until
            .checked_duration_since(now)
            .filter(|left| !left.is_zero())
    }

    /// Accepts who wants to connect, some at a time; those who may not are told why, and go.
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
                    // It stays readable: without descriptors or memory it would be tried for ever.
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
                // The file's group may have been another one when it connected.
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

    /// Accepts nothing for a while, each time in a row for longer.
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

    /// The system refuses no more.
    fn end_rest(&mut self) {
        if self.rest.take().is_some() {
            crate::event!(Notice, "connections are accepted again");
        }
    }

    /// Says that a connection is turned away, but not of each of many.
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
    /// Its number, never another's.
    id: u64,
    /// Who is there.
    pub peer: Peer,
    /// The supplementary groups of who connected.
    groups: Vec<u32>,
    /// What has come and is no whole line yet. It may hold a key.
    input: Zeroizing<Vec<u8>>,
    output: Vec<u8>,
    /// Nothing more comes, or nothing more is to be heard.
    ending: bool,
    /// A request is being carried out.
    busy: bool,
    /// When something last came, was answered or was sent.
    active: Instant,
    /// Since when a request is half here.
    half: Option<Instant>,
}

/// The number of the connection that comes next.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Connection {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let who = getsockopt(&stream, PeerCredentials)?;
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            peer: Peer {
                uid: who.uid(),
                gid: who.gid(),
                pid: who.pid(),
            },
            groups: kfauth::peer_groups(stream.as_fd())?,
            stream,
            // All at once: a vector that grows leaves copies behind.
            input: Zeroizing::new(Vec::with_capacity(LINE_MAX)),
            output: Vec::new(),
            ending: false,
            busy: false,
            active: Instant::now(),
            half: None,
        })
    }

    /// Its number, never another's.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether who connected may use the socket: root, the daemon's user, and a group's members.
    pub fn is_admitted(&self, group: Option<u32>) -> bool {
        let in_group = |gid| self.peer.gid == gid || self.groups.contains(&gid);
        self.peer.is_privileged() || group.is_some_and(in_group)
    }

    /// Whether it has room for more answers, and more may come.
    pub fn hears(&self) -> bool {
        !self.ending && !self.busy && self.has_room()
    }

    /// Whether a line is here that can be answered now.
    pub fn has_line(&self) -> bool {
        !self.busy && self.has_room() && self.line().is_some()
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
        self.ending && !self.busy && self.output.is_empty() && self.line().is_none()
    }

    /// When it is to end if nothing happens; `None`: it may stay.
    pub fn deadline(&self) -> Option<Instant> {
        if self.busy {
            return None;
        }
        match self.half {
            Some(since) => Some(since + HALF),
            // Root keeps its connections: seats are kept for it.
            None if self.peer.is_privileged() && !self.speaks() => None,
            None => Some(self.active + IDLE),
        }
    }

    /// Ends it if its time is over.
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
        // An answer that it does not take now it takes never.
        if self.speaks() {
            self.hang_up();
        }
    }

    /// Takes what has come, up to the end of a line, if there is room for an answer: lines of who does
    /// not take its answers stay where they are, for an answer may be long.
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

    /// The next line, which is to be answered before there is another: [`Connection::answered`].
    pub fn take_line(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        if !self.has_line() {
            return None;
        }
        let end = self.line()?;
        // Out first: whoever cannot be answered is hung up on.
        let line = Zeroizing::new(self.input[..end].to_vec());
        self.input[..=end].zeroize();
        self.input.drain(..=end);
        self.busy = true;
        Some(line)
    }

    /// The answer to the line that was taken.
    pub fn answered(&mut self, answer: &Answer) {
        self.busy = false;
        self.active = Instant::now();
        self.half = None;
        self.say(answer);
    }

    /// Nobody is there any more.
    fn hang_up(&mut self) {
        self.ending = true;
        self.output.clear();
        self.input.zeroize();
        self.half = None;
    }

    /// Says why, and hangs up.
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

    /// Sends what can be sent now.
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
        let mut socket = Socket::bind(&path, None).unwrap();
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
            socket.accept(&mut connections, None);
            for connection in &mut connections {
                assert_eq!(connection.peer.pid as u32, std::process::id());
                answer_lines(connection, |line| {
                    count += 1;
                    match serde_json::from_slice(line) {
                        Ok(Request::List) => Answer::Revoked(count),
                        _ => refusal("no", "EPERM"),
                    }
                });
            }
            connections.retain(|connection| !connection.is_over());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let (first, second, said) = asks.join().unwrap();
        assert_eq!(first.unwrap(), Answer::Revoked(1));
        assert!(matches!(second, Err(ClientError::Refused(why)) if why.errno == "EPERM"));
        assert!(said.contains("E2BIG"), "{said}");
        patience(&mut socket, &path);
        limits(&mut socket, &path);
        // The next one takes the file over, and the first leaves it alone.
        let next = Socket::bind(&path, None).unwrap();
        drop(socket);
        assert!(UnixStream::connect(&path).is_ok());
        drop(next);
        assert!(!path.exists());
    }

    /// Who asks a lot and reads nothing has so much answered as waits to be sent, and gets the rest as
    /// it reads, also after it has said its last.
    fn patience(socket: &mut Socket, path: &Path) {
        const ASKED: usize = 1000;
        let mut raw = UnixStream::connect(path).unwrap();
        raw.write_all(&b"list\n".repeat(ASKED)).unwrap();
        raw.shutdown(std::net::Shutdown::Write).unwrap();
        let mut there = Vec::new();
        socket.accept(&mut there, None);
        let mut there = there.pop().unwrap();
        let mut count = 0;
        let mut turn = |there: &mut Connection| {
            answer_lines(there, |_| {
                count += 1;
                refusal(&"x".repeat(BEHIND / 8), "EPERM")
            });
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
    /// A turn of the daemon's: what can be answered now is, and sent.
    fn answer_lines(connection: &mut Connection, mut answer: impl FnMut(&[u8]) -> Answer) {
        loop {
            connection.hear();
            let Some(line) = connection.take_line() else {
                break;
            };
            assert!(!connection.hears() && connection.take_line().is_none());
            let said = answer(&line);
            connection.answered(&said);
        }
        connection.speak();
    }

    /// As if a connection were another peer's.
    fn of_other(mut connection: Connection, uid: u32, pid: i32) -> Connection {
        connection.peer = Peer { uid, gid: uid, pid };
        connection.groups = Vec::new();
        connection
    }

    /// Seats, and when who has one is to leave it.
    fn limits(socket: &mut Socket, path: &Path) {
        let other = nix::unistd::geteuid().as_raw() + 1;
        let mut kept = Vec::new();
        let mut connect = |uid: u32, pid: i32| {
            kept.push(UnixStream::connect(path).unwrap());
            let mut there = Vec::new();
            socket.accept(&mut there, None);
            of_other(there.pop().unwrap(), uid, pid)
        };
        let peer = |uid: u32, pid: i32| Peer { uid, gid: uid, pid };
        let mut there: Vec<_> = (0..PEER_MOST).map(|_| connect(other, 1)).collect();
        assert!(seat(&there, peer(other, 1)).is_err_and(|why| why.contains("process")));
        assert!(seat(&there, peer(other, 2)).is_ok());
        there.extend((PEER_MOST..USER_MOST).map(|_| connect(other, 2)));
        assert!(seat(&there, peer(other, 3)).is_err_and(|why| why.contains("user")));
        for n in USER_MOST..MOST - RESERVED {
            let uid = other + 1 + n as u32;
            assert!(seat(&there, peer(uid, 3)).is_ok());
            there.push(connect(uid, 4 + n as i32));
        }
        assert!(seat(&there, peer(other + 100, 3)).is_err_and(|why| why.contains("root")));
        assert!(seat(&there, peer(0, 3)).is_ok());
        there.extend((0..RESERVED).map(|_| connect(0, 3)));
        assert!(seat(&there, peer(0, 3)).is_err());

        assert!(there[0].is_admitted(Some(other)) && !there[0].is_admitted(None));
        assert!(!there[0].is_admitted(Some(other + 1)));
        there[0].groups.push(other + 1);
        assert!(there[0].is_admitted(Some(other + 1)));
        assert!(there[MOST - 1].is_admitted(None));

        // Idle, half a request, a request that takes long, and root.
        let later = Instant::now() + HALF;
        kept[0].write_all(b"\"li").unwrap();
        kept[1].write_all(b"list\n").unwrap();
        for (connection, ends) in [(0, true), (1, false), (2, false), (MOST - 1, false)] {
            let it = &mut there[connection];
            it.hear();
            it.take_line();
            it.expire(later);
            assert!(!it.is_over(), "{connection}");
            it.expire(later + HALF);
            assert_eq!(it.is_over(), ends, "{connection}");
        }
        for (connection, ends) in [(1, false), (2, true), (MOST - 1, false)] {
            there[connection].expire(later + IDLE);
            assert_eq!(there[connection].is_over(), ends, "{connection}");
        }
        let mut said = String::new();
        drop(there);
        (&kept[0]).read_to_string(&mut said).unwrap();
        assert!(said.contains("ETIMEDOUT"), "{said}");
    }
}
