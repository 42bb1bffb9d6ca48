// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the socket and its connections, through the file.

use super::connection::{BEHIND, HALF, IDLE};
use super::*;
use kfauth::protocol::{Answer, Request, LINE_MAX};
use kfauth::{Client, ClientError};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

#[test]
fn requests_of_a_connection_are_answered_in_order() {
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
    // The second socket takes the file over, and the first one does not remove it.
    let next = Socket::bind(&path, None).unwrap();
    drop(socket);
    assert!(UnixStream::connect(&path).is_ok());
    drop(next);
    assert!(!path.exists());
}

/// A peer that sends many requests and reads no answer: only as many requests are answered as
/// may wait to be sent. The peer gets the other answers as it reads, even after it has shut
/// down its sending side.
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
    assert_eq!(
        turn(&mut there),
        before,
        "answered although the peer reads nothing"
    );
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
/// One turn of the daemon: answers all requests that can be answered, and sends.
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

/// Makes a connection look like another peer's.
fn of_other(mut connection: Connection, uid: u32, pid: i32) -> Connection {
    connection.peer = Peer { uid, gid: uid, pid };
    connection.groups = Vec::new();
    connection
}

/// Limits of connections, and expiry.
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

    // An idle connection, half a request, a long request, and root.
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
