// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi get` and `kfi put`: transfer a file from or to a peer's export, by one-sided operations.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use kfabric::{Access, Errno, Memory, Op, Reach, Region, RemoteMem};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{print, print_json};
use crate::cli::{Get, PeerArgs, Put};
use crate::error::{During, Failure, OnFile, Result};
use crate::replace::{at_once, spool, Target};
use crate::say::{printable, stderr};
use crate::session::{Conn, Node};
use crate::stats::{bytes, mib_per_s};
use crate::wire::{Kind, Msg, Service, Shape};

/// Maximum number of outstanding operations.
const WINDOW: usize = 8;

/// Converts a digest to four words, big endian in the order of its printed form.
pub(crate) fn digest_words(hash: Sha256) -> [u64; 4] {
    let bytes = hash.finalize();
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.iter().fold(0, |sum, b| sum << 8 | u64::from(*b));
    }
    words
}

fn hex(words: [u64; 4]) -> String {
    words.iter().map(|w| format!("{w:016x}")).collect()
}

/// Progress of a transfer, shown on a terminal.
struct Progress {
    total: u64,
    shown: Option<u64>,
}

impl Progress {
    fn new(total: u64, json: bool) -> Self {
        let show = !json && std::io::stderr().as_fd().is_terminal() && total > 0;
        Self {
            total,
            shown: show.then_some(u64::MAX),
        }
    }

    fn at(&mut self, done: u64) {
        let percent = done * 100 / self.total.max(1);
        if self.shown.is_some_and(|shown| shown != percent) {
            self.shown = Some(percent);
            stderr(&format!("\r{percent:3} % of {}", bytes(self.total)));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            stderr("\r\x1b[K");
        }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    provider: &'a str,
    operation: &'static str,
    file: &'a Path,
    bytes: u64,
    seconds: f64,
    mib_per_s: f64,
    sha256: String,
    /// Set if the bytes are durable at the peer; `None` for a get.
    #[serde(skip_serializing_if = "Option::is_none")]
    durable: Option<bool>,
    /// Set if standard output gets the content.
    #[serde(skip)]
    beside: bool,
}

impl Report<'_> {
    /// Prints the report: on standard error if standard output gets the content.
    fn print(&self, json: bool) -> Result<()> {
        if json && !self.beside {
            return print_json(self);
        }
        let durable = self.durable.unwrap_or(false);
        let text = format!(
            "{}{} {}: {} in {:.3} s by {}, {:.1} MiB/s, sha256 {}\n",
            self.operation,
            if durable { " (durable)" } else { "" },
            printable(&self.file.display().to_string()),
            bytes(self.bytes),
            self.seconds,
            self.provider,
            self.mib_per_s,
            self.sha256
        );
        if self.beside {
            stderr(&text);
            return Ok(());
        }
        print(&text)
    }
}

/// A connection to an export, with a buffer for [`WINDOW`] chunks.
struct Client {
    conn: Conn,
    chunk: usize,
    buffer: Region,
}

impl Client {
    fn open(peer: &PeerArgs, chunk: u64) -> Result<(Node, Self)> {
        let chunk = usize::try_from(chunk.clamp(1, 1 << 30)).unwrap_or(1);
        let address = peer.address()?;
        let node = Node::to(&peer.common.select(), address)?;
        let wait = peer.common.wait();
        let conn = node.connect(address, Service::File, Shape::default(), wait)?;
        let memory = Memory::anonymous(chunk * WINDOW).during("allocate")?;
        let buffer = conn
            .domain
            .register(memory, Access::READ | Access::WRITE)
            .during("register")?;
        Ok((
            node,
            Self {
                conn,
                chunk,
                buffer,
            },
        ))
    }

    /// Requests the key of a segment.
    fn want(&mut self, index: u64, len: u64) -> Result<RemoteMem> {
        self.conn.send(&Msg::new(Kind::Want, &[index]))?;
        let grant = self.conn.expect(Kind::Grant)?;
        if grant.n[..2] != [index, len] {
            let got = format!("segment {} of {} bytes", grant.n[0], grant.n[1]);
            return Err(Failure::Protocol {
                what: "transfer",
                got,
            });
        }
        Ok(RemoteMem {
            addr: grant.n[2],
            key: grant.n[3],
        })
    }

    /// Reports a segment as finished.
    fn release(&mut self, index: u64) -> Result<()> {
        self.conn.send(&Msg::new(Kind::Release, &[index]))?;
        self.conn.expect(Kind::Release).map(|_| ())
    }

    /// Sends the digest, and takes the peer's answer.
    fn settle(&mut self, total: u64, digest: [u64; 4], answer: Kind) -> Result<Msg> {
        let [a, b, c, d] = digest;
        self.conn
            .send(&Msg::new(Kind::Digest, &[total, a, b, c, d]))?;
        self.conn.expect(answer)
    }

    /// Sends the digest of the content that was put. Returns whether the content has replaced the
    /// peer's file.
    fn settle_put(&mut self, total: u64, digest: [u64; 4]) -> Result<()> {
        let [a, b, c, d] = digest;
        self.conn
            .send(&Msg::new(Kind::Digest, &[total, a, b, c, d]))?;
        let msg = match self.conn.recv() {
            // From here on the peer may have replaced its file.
            Err(Failure::Gone { .. }) => {
                let what = "put: no answer, the file may have been replaced or not";
                return Err(Failure::Gone { what });
            }
            msg => msg?,
        };
        let errno = Errno(i32::try_from(msg.status).unwrap_or(Errno::EIO.0));
        match (msg.kind, errno) {
            (Kind::Status, Errno(0)) => Ok(()),
            (Kind::Status, Errno::EBADMSG) => Err(Failure::Corrupt {
                what: "put",
                detail: "the peer has other data than was sent".to_owned(),
            }),
            (Kind::Status, errno) => Err(Failure::Refused {
                what: "put",
                why: errno.to_string(),
            }),
            (kind, _) => Err(Failure::Protocol {
                what: "put",
                got: format!("{kind:?} instead of Status"),
            }),
        }
    }

    /// Sends a request and takes the offer. Converts a refusal's errno to a reason in words.
    ///
    /// Returns the bytes, the bytes of a segment, and whether the peer expects commits.
    fn offer(&mut self, what: &'static str, request: &Msg) -> Result<(u64, u64, bool)> {
        self.conn.send(request)?;
        let offer = self.conn.recv()?;
        if offer.status != 0 && offer.kind == Kind::Offer {
            let errno = Errno(i32::try_from(offer.status).unwrap_or(Errno::EIO.0));
            let why = match errno {
                Errno::ENOENT => "there is no file yet".to_owned(),
                Errno::EACCES => "the export is not writable (start it with --writable)".to_owned(),
                Errno::EMSGSIZE => "the file is larger than the export takes".to_owned(),
                Errno::EOPNOTSUPP => {
                    "the export is not a device-dax device, or has no durable writes by this provider"
                        .to_owned()
                }
                Errno::EINVAL => "the export is a device-dax device: use --durable".to_owned(),
                Errno::EBUSY => "another put is in progress".to_owned(),
                errno => errno.to_string(),
            };
            return Err(Failure::Refused { what, why });
        }
        if offer.status != 0 && offer.kind == Kind::Status {
            let errno = Errno(i32::try_from(offer.status).unwrap_or(Errno::EIO.0));
            return Err(Failure::Refused {
                what,
                why: errno.to_string(),
            });
        }
        if offer.kind != Kind::Offer || offer.n[1] == 0 {
            return Err(Failure::Protocol {
                what,
                got: format!("{:?} {:?}", offer.kind, offer.n),
            });
        }
        Ok((offer.n[0], offer.n[1], offer.n[2] == 1))
    }
}

/// Runs `kfi get`.
///
/// # Errors
///
/// If connecting fails, the peer refuses, the file cannot be written, or the data differs.
pub fn get(args: &Get, json: bool) -> Result<()> {
    let stdout = args.file == Path::new("-");
    let target = match stdout {
        true => Target::stdout()?,
        false => Target::open(&args.file)?,
    };
    let (_node, mut client) = Client::open(&args.peer, args.chunk)?;
    let start = Instant::now();
    let (total, segment, _) = client.offer("get", &Msg::new(Kind::Get, &[]))?;
    let mut file = target.begin()?;
    let mut hash = Sha256::new();
    let mut progress = Progress::new(total, json);
    let mut done = 0;
    for index in 0..total.div_ceil(segment) {
        let len = (total - index * segment).min(segment);
        let remote = client.want(index, len)?;
        read_segment(&mut client, remote, len, |data| {
            hash.update(data);
            done += data.len() as u64;
            progress.at(done);
            file.write(data)
        })?;
        client.release(index)?;
    }
    let digest = digest_words(hash);
    let theirs = client.settle(total, digest, Kind::Digest)?;
    if theirs.n[..5] != [total, digest[0], digest[1], digest[2], digest[3]] {
        let theirs = [theirs.n[1], theirs.n[2], theirs.n[3], theirs.n[4]];
        let detail = format!("sha256 {} here, {} there", hex(digest), hex(theirs));
        return Err(Failure::Corrupt {
            what: "get",
            detail,
        });
    }
    file.finish()?;
    drop(progress);
    let seconds = start.elapsed();
    Report {
        provider: &client.conn.provider,
        operation: "get",
        file: &args.file,
        bytes: total,
        seconds: seconds.as_secs_f64(),
        mib_per_s: mib_per_s(total, seconds),
        sha256: hex(digest),
        durable: None,
        beside: stdout,
    }
    .print(json)
}

/// Reads a segment through the buffer, in order.
fn read_segment(
    client: &mut Client,
    remote: RemoteMem,
    len: u64,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let chunk = client.chunk;
    let chunks = len.div_ceil(chunk as u64);
    let mut data = vec![0; chunk];
    let mut posted = 0;
    for done in 0..chunks {
        while posted < chunks && posted - done < WINDOW as u64 {
            let (slot, at, part) = place(posted, chunk, len);
            let local = client.buffer.segment(slot..slot + part);
            client
                .conn
                .ep
                .read(local, remote.offset(at), posted)
                .during("read")?;
            posted += 1;
        }
        // Operations of an endpoint complete in order.
        client.conn.completion()?.ok().during("read")?;
        let (slot, _, part) = place(done, chunk, len);
        client.buffer.read_at(slot, &mut data[..part]);
        take(&data[..part])?;
    }
    Ok(())
}

/// For chunk `n`: offset in the buffer, offset in the segment, bytes.
fn place(n: u64, chunk: usize, len: u64) -> (usize, u64, usize) {
    let slot = usize::try_from(n % WINDOW as u64).unwrap_or(0) * chunk;
    let at = n * chunk as u64;
    let part = usize::try_from((len - at).min(chunk as u64)).unwrap_or(chunk);
    (slot, at, part)
}

/// The content to put, and its length. A source without a known length is first read to its end.
fn source(path: &Path) -> Result<(File, u64)> {
    if path == Path::new("-") {
        return spooled(&mut io::stdin().lock(), Path::new("standard input"));
    }
    // Does not wait for a writer of a FIFO.
    let mut options = File::options();
    let file = options.read(true).custom_flags(at_once()).open(path);
    let mut file = file.on_file("open", path)?;
    let meta = file.metadata().on_file("look at", path)?;
    if !meta.is_file() {
        let why = "not a regular file (to put a program's output, use the name -)";
        return Err(Failure::Usage(format!("{}: {why}", path.display())));
    }
    match meta.len() {
        // A file without a length, such as those of /proc.
        0 => spooled(&mut file, path),
        len => Ok((file, len)),
    }
}

/// Replaces the error for the end of a file that was longer when it was opened.
fn shorter(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::other("it became shorter meanwhile"),
        _ => e,
    }
}

/// Copies all content of `from` to a temporary file.
fn spooled(from: &mut dyn Read, path: &Path) -> Result<(File, u64)> {
    let mut file = spool()?;
    let len = io::copy(from, &mut file).on_file("read", path)?;
    file.rewind().on_file("read", path)?;
    Ok((file, len))
}

/// Runs `kfi put`.
///
/// # Errors
///
/// If connecting fails, the peer refuses, or the file cannot be read or changes meanwhile. If the put
/// must be durable and the domain or the peer cannot do that.
pub fn put(args: &Put, json: bool) -> Result<()> {
    let (mut file, total) = source(&args.file)?;
    let (_node, mut client) = Client::open(&args.peer, args.chunk)?;
    if args.durable && client.conn.domain.durable() == Reach::No {
        let why = format!("{} has no durable writes here", client.conn.provider);
        return Err(Failure::Refused { what: "put", why });
    }
    let start = Instant::now();
    let request = Msg::new(Kind::Put, &[total, u64::from(args.durable)]);
    let (_, segment, commits) = client.offer("put", &request)?;
    if commits != args.durable {
        // An older peer ignores the request to be durable.
        let why = "the peer offers another kind of put".to_owned();
        return Err(Failure::Refused { what: "put", why });
    }
    let mut hash = Sha256::new();
    let mut progress = Progress::new(total, json);
    for index in 0..total.div_ceil(segment) {
        let len = (total - index * segment).min(segment);
        let remote = client.want(index, len)?;
        write_segment(&mut client, remote, len, |data| {
            let read = file.read_exact(data).map_err(shorter);
            read.on_file("read", &args.file)?;
            hash.update(&*data);
            Ok(())
        })?;
        if commits {
            commit(&mut client.conn, remote, len)?;
        }
        client.release(index)?;
        progress.at(index * segment + len);
    }
    let digest = digest_words(hash);
    client.settle_put(total, digest)?;
    drop(progress);
    let seconds = start.elapsed();
    Report {
        provider: &client.conn.provider,
        operation: "put",
        file: &args.file,
        bytes: total,
        seconds: seconds.as_secs_f64(),
        mib_per_s: mib_per_s(total, seconds),
        sha256: hex(digest),
        durable: Some(args.durable),
        beside: false,
    }
    .print(json)
}

/// Makes a segment durable that was written.
fn commit(conn: &mut Conn, remote: RemoteMem, len: u64) -> Result<()> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    conn.ep
        .post(&Op::commit(remote, len).context(0))
        .during("commit")?;
    conn.completion()?.ok().during("commit")?;
    Ok(())
}

/// Writes a segment through the buffer, in order.
fn write_segment(
    client: &mut Client,
    remote: RemoteMem,
    len: u64,
    mut give: impl FnMut(&mut [u8]) -> Result<()>,
) -> Result<()> {
    let chunk = client.chunk;
    let chunks = len.div_ceil(chunk as u64);
    let mut data = vec![0; chunk];
    let mut posted = 0;
    for done in 0..chunks {
        while posted < chunks && posted - done < WINDOW as u64 {
            let (slot, at, part) = place(posted, chunk, len);
            give(&mut data[..part])?;
            client.buffer.write_at(slot, &data[..part]);
            let local = client.buffer.segment(slot..slot + part);
            client
                .conn
                .ep
                .write(local, remote.offset(at), posted)
                .during("write")?;
            posted += 1;
        }
        client.conn.completion()?.ok().during("write")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_segment_once() {
        for len in [1u64, 9, 10, 11, 95] {
            let mut next = 0;
            for n in 0..len.div_ceil(10) {
                let (slot, at, part) = place(n, 10, len);
                assert_eq!(
                    (slot, at),
                    (usize::try_from(n).unwrap() % WINDOW * 10, next)
                );
                next += part as u64;
            }
            assert_eq!(next, len);
        }
    }

    #[test]
    fn digest_prints_as_sha256sum() {
        let empty = hex(digest_words(Sha256::new()));
        assert_eq!(
            empty,
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }
}
