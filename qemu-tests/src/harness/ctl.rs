// SPDX-License-Identifier: MIT OR Apache-2.0

//! A line between the nodes: JSON values over TCP, one per line.

use super::result::PEER_GONE;
use crate::sys::{patience, poll_in};
use anyhow::{bail, Context, Result};
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Port on which node 1 accepts connections.
pub const PORT: u16 = 18_599;

/// An end of the line.
pub struct Ctl {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl AsFd for Ctl {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.writer.as_fd()
    }
}

impl Ctl {
    /// Makes a line of a connection. A read that takes longer than `limit` fails.
    ///
    /// # Errors
    ///
    /// If the socket refuses its settings.
    pub fn new(stream: TcpStream, limit: Duration) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience(limit)))?;
        stream.set_write_timeout(Some(patience(limit)))?;
        let writer = stream.try_clone()?;
        Ok(Self {
            reader: BufReader::new(stream),
            writer,
        })
    }

    /// Changes the limit of a read.
    ///
    /// # Errors
    ///
    /// If the socket refuses it.
    pub fn set_limit(&self, limit: Duration) -> Result<()> {
        Ok(self.writer.set_read_timeout(Some(patience(limit)))?)
    }

    /// Sends a value.
    ///
    /// # Errors
    ///
    /// If the other end has closed the line.
    pub fn send<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.writer.write_all(&line).context(PEER_GONE)
    }

    /// Receives a value.
    ///
    /// # Errors
    ///
    /// If the other end has closed the line, is late, or sends another type.
    pub fn recv<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => bail!(PEER_GONE),
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                bail!("no word from the other half of the test in time")
            }
            Err(e) => return Err(e).context(PEER_GONE),
        }
        serde_json::from_str(&line)
            .with_context(|| format!("unexpected word {line:?} from the other half"))
    }

    /// Returns whether a value can be received, or the other end has closed the line.
    ///
    /// # Errors
    ///
    /// The errno of `poll(2)`.
    pub fn is_ready(&self) -> Result<bool> {
        Ok(!self.reader.buffer().is_empty() || poll_in(self.as_fd(), Duration::ZERO)?)
    }

    /// Sends a value and receives one of the same type.
    ///
    /// # Errors
    ///
    /// The errors of [`Ctl::send`] and [`Ctl::recv`].
    pub fn exchange<T: Serialize + DeserializeOwned>(&mut self, mine: &T) -> Result<T> {
        self.send(mine)?;
        self.recv()
    }

    /// Waits until the other half is at the same place.
    ///
    /// # Errors
    ///
    /// If it is elsewhere, has ended, or is late.
    pub fn barrier(&mut self, label: &str) -> Result<()> {
        let theirs: String = self
            .exchange(&label.to_owned())
            .with_context(|| format!("at {label:?}"))?;
        if theirs != label {
            bail!("the halves are out of step: here {label:?}, there {theirs:?}");
        }
        Ok(())
    }
}

/// Listens on node 1.
///
/// # Errors
///
/// If the port is in use.
pub fn listen() -> Result<TcpListener> {
    let any: SocketAddr = (std::net::Ipv6Addr::UNSPECIFIED, PORT).into();
    let listener = TcpListener::bind(any)
        .or_else(|_| TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, PORT)))
        .with_context(|| format!("cannot listen on port {PORT}"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Accepts a connection from node 2.
///
/// # Errors
///
/// If none comes in time.
pub fn accept(listener: &TcpListener, limit: Duration) -> Result<TcpStream> {
    let end = Instant::now() + patience(limit);
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e.into()),
        }
        if Instant::now() >= end {
            bail!("node 2 does not call");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Connects to node 1, which may not listen yet.
///
/// # Errors
///
/// If node 1 does not listen in time.
pub fn connect(addr: SocketAddr, limit: Duration) -> Result<TcpStream> {
    let end = Instant::now() + patience(limit);
    loop {
        match TcpStream::connect_timeout(&addr, Duration::from_secs(5)) {
            Ok(stream) => return Ok(stream),
            Err(e) if Instant::now() >= end => {
                return Err(e).with_context(|| format!("cannot reach node 1 at {addr}"))
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> (Ctl, Ctl) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (b, _) = listener.accept().unwrap();
        let limit = Duration::from_millis(200);
        (Ctl::new(a, limit).unwrap(), Ctl::new(b, limit).unwrap())
    }

    #[test]
    fn values_and_barriers_pass() {
        let (mut a, mut b) = line();
        a.send(&(1u32, "x")).unwrap();
        assert_eq!(b.recv::<(u32, String)>().unwrap(), (1, "x".into()));
        let other = std::thread::spawn(move || b.barrier("here").map(|()| b));
        a.barrier("here").unwrap();
        let mut b = other.join().unwrap().unwrap();
        b.send("there").unwrap();
        assert!(a
            .barrier("here")
            .unwrap_err()
            .to_string()
            .contains("out of step"));
    }

    #[test]
    fn a_late_and_a_lost_end_are_told_apart() {
        let (mut a, b) = line();
        assert!(a.recv::<u32>().unwrap_err().to_string().contains("in time"));
        drop(b);
        assert!(format!("{:#}", a.recv::<u32>().unwrap_err()).contains(PEER_GONE));
    }
}
