// SPDX-License-Identifier: MIT OR Apache-2.0
//! Node 2: reads through the keys of node 1, and tries accesses beyond them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kfabric::{Access, Completion, Errno, Memory, Region, RemoteMem};
use kfi::error::{During, Failure, Result};
use kfi::session::{Conn, Node, Select};
use kfi::stats::{bytes, mib_per_s};
use kfi::wire::{Kind, Msg, Service, Shape};
use sha2::{Digest, Sha256};

use crate::steps::{say, step, took, Ask, FILE, SCRATCH, SCRATCH_MEMORY};
use crate::{Nodes, PORT};

/// Timeout of each wait.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of one read.
const CHUNK: usize = 256 << 10;
/// Maximum number of outstanding reads.
const WINDOW: usize = 16;
/// Bytes of a small piece.
const PIECE: u64 = 8192;

/// A digest as four words, in the order of its printed form.
pub(crate) fn words(hash: Sha256) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(hash.finalize().chunks_exact(8)) {
        *word = bytes.iter().fold(0, |sum, b| sum << 8 | u64::from(*b));
    }
    words
}

struct Reader {
    node: Node,
    peer: SocketAddr,
    conn: Conn,
    /// Buffer for the copy of the file, followed by the buffer for short pieces.
    copy: Region,
    /// Bytes of the file.
    len: usize,
}

impl Reader {
    fn ask(conn: &mut Conn, ask: Ask, numbers: &[u64]) -> Result<[u64; 7]> {
        let mut all = vec![ask as u64];
        all.extend(numbers);
        conn.send(&Msg::new(Kind::Step, &all))?;
        Ok(conn.expect(Kind::StepDone)?.n)
    }

    fn assign(
        &mut self,
        slot: u64,
        memory: u64,
        at: u64,
        len: u64,
        rights: Access,
    ) -> Result<RemoteMem> {
        let n = Self::ask(
            &mut self.conn,
            Ask::Assign,
            &[slot, memory, at, len, rights.bits()],
        )?;
        Ok(RemoteMem {
            addr: n[0],
            key: n[1],
        })
    }

    fn revoke(&mut self, slot: u64) -> Result<()> {
        Self::ask(&mut self.conn, Ask::Revoke, &[slot]).map(|_| ())
    }

    /// Makes a short read into the end of the buffer.
    fn read(&mut self, remote: RemoteMem, len: u64) -> Result<Completion> {
        let range = self.piece(len);
        self.conn
            .ep
            .read(self.copy.segment(range), remote, 1)
            .during("read")?;
        self.conn.completion()
    }

    /// Makes a short write from the end of the buffer.
    fn write(&mut self, remote: RemoteMem, len: u64) -> Result<Completion> {
        let range = self.piece(len);
        self.copy.fill(range.start, range.len(), 0xee);
        self.conn
            .ep
            .write(self.copy.segment(range), remote, 2)
            .during("write")?;
        self.conn.completion()
    }

    /// Range for short pieces, behind the copy of the file.
    fn piece(&self, len: u64) -> std::ops::Range<usize> {
        self.len..self.len + usize::try_from(len.min(PIECE)).unwrap_or(0)
    }

    fn piece_bytes(&self, len: u64) -> Vec<u8> {
        let range = self.piece(len);
        self.copy.to_vec(range.start, range.len())
    }

    /// Reads the whole file. Returns its digest.
    fn read_file(&mut self, remote: RemoteMem) -> Result<[u64; 4]> {
        let chunks = self.len.div_ceil(CHUNK);
        let start = Instant::now();
        let mut posted = 0;
        for done in 0..chunks {
            while posted < chunks && posted - done < WINDOW {
                let at = posted * CHUNK;
                let local = self.copy.segment(at..self.len.min(at + CHUNK));
                self.conn
                    .ep
                    .read(local, remote.offset(at as u64), 0)
                    .during("read")?;
                posted += 1;
            }
            self.conn.completion()?.ok().during("read")?;
        }
        let time = start.elapsed();
        let rate = mib_per_s(self.len as u64, time);
        step(
            &format!("read {} by RDMA READ", bytes(self.len as u64)),
            &format!("{rate:.1} MiB/s"),
        );
        let mut hash = Sha256::new();
        hash.update(self.copy.to_vec(0, self.len));
        Ok(words(hash))
    }

    /// Checks that an access was refused: the operation failed with `EACCES`, the connection has
    /// ended, and a new connection works.
    fn refused(&mut self, what: &str, completion: Completion) -> Result<()> {
        match completion.error() {
            Some(error) if error.errno == Errno::EACCES => {}
            Some(error) => return Err(wrong(what, &format!("ended with {}", error.errno))),
            None => return Err(wrong(what, "was let through")),
        }
        let start = Instant::now();
        self.conn = connect(&self.node, self.peer)?;
        step(
            &format!("{what}: refused (EACCES), reconnected"),
            &took(start.elapsed()),
        );
        Ok(())
    }
}

fn wrong(what: &str, detail: &str) -> Failure {
    Failure::Corrupt {
        what: "demo",
        detail: format!("{what}: {detail}"),
    }
}

fn check(right: bool, what: &str, detail: &str) -> Result<()> {
    if right {
        return Ok(());
    }
    Err(wrong(what, detail))
}

/// Connects, and waits until node 1 is connected, too. A refused access before that would end the
/// connection while node 1 is still accepting it.
fn connect(node: &Node, peer: SocketAddr) -> Result<Conn> {
    let mut conn = node.connect(peer, Service::Demo, Shape::default(), PATIENCE)?;
    Reader::ask(&mut conn, Ask::Ready, &[])?;
    Ok(conn)
}

/// Runs node 2.
pub(crate) fn run(nodes: &Nodes) -> Result<()> {
    let peer = SocketAddr::new(nodes.peer, PORT);
    let node = Node::to(&Select::default(), peer)?;
    let info = node.info();
    say(&format!(
        "node 2 reads, on {} by {}",
        info.domain(),
        info.provider()
    ));
    let start = Instant::now();
    let mut conn = connect(&node, peer)?;
    step(
        &format!("connected to node 1 at {peer}"),
        &took(start.elapsed()),
    );
    let facts = Reader::ask(&mut conn, Ask::Facts, &[])?;
    let len = usize::try_from(facts[0]).unwrap_or(0);
    let sum = [facts[1], facts[2], facts[3], facts[4]];
    check(
        len as u64 >= 4 * PIECE,
        "file",
        "too small to show anything",
    )?;
    let room = len + usize::try_from(PIECE).unwrap_or(0);
    let memory = Memory::anonymous(room).during("allocate")?;
    let copy = conn
        .domain
        .register(memory, Access::READ | Access::WRITE)
        .during("register")?;
    let mut reader = Reader {
        node,
        peer,
        conn,
        copy,
        len,
    };

    whole_file(&mut reader, sum)?;
    sub_range(&mut reader)?;
    read_only(&mut reader)?;
    revoked(&mut reader)?;
    cost(&mut reader)?;

    let after = Reader::ask(&mut reader.conn, Ask::Digest, &[FILE])?;
    check(after[..4] == sum, "file", "its content changed")?;
    step("the exported file is unchanged", "sha256 matches");
    Reader::ask(&mut reader.conn, Ask::End, &[])?;
    say("node 2 is through: all as it should be");
    Ok(())
}

/// A key for the whole file gives access to the whole file.
fn whole_file(reader: &mut Reader, sum: [u64; 4]) -> Result<()> {
    let key = reader.assign(0, FILE, 0, reader.len as u64, Access::REMOTE_READ)?;
    let copied = reader.read_file(key)?;
    check(copied == sum, "copy of the file", "its SHA-256 differs")?;
    let hex: String = sum.iter().map(|w| format!("{w:016x}")).collect();
    step(
        "the bytes read are the file's",
        &format!("sha256 {}…", &hex[..10]),
    );
    Ok(())
}

/// A key for a range gives access to that range, and to no byte beyond.
fn sub_range(reader: &mut Reader) -> Result<()> {
    // The range neither begins nor ends at a page boundary.
    let at = reader.len as u64 / 2 + 123;
    let key = reader.assign(1, FILE, at, PIECE, Access::REMOTE_READ)?;
    let start = Instant::now();
    reader
        .read(key, PIECE)?
        .ok()
        .during("read within the sub-range")?;
    let time = start.elapsed();
    let from = usize::try_from(at).unwrap_or(0);
    let same = reader.piece_bytes(PIECE) == reader.copy.to_vec(from, PIECE as usize);
    check(same, "read within the sub-range", "the bytes differ")?;
    step(
        &format!("read {} within the sub-range", bytes(PIECE)),
        &took(time),
    );
    let tries = [
        ("read one byte behind the sub-range", key.offset(1)),
        (
            "read one byte before the sub-range",
            RemoteMem {
                addr: key.addr.wrapping_sub(1),
                ..key
            },
        ),
    ];
    for (what, remote) in tries {
        let completion = reader.read(remote, PIECE)?;
        reader.refused(what, completion)?;
    }
    let completion = reader.write(key, PIECE)?;
    reader.refused("write within the sub-range", completion)?;
    // The key is still valid on the new connection.
    reader.read(key, 1)?.ok().during("read after a refusal")?;
    Ok(())
}

/// A read-only key refuses a write, which a key with write access allows.
fn read_only(reader: &mut Reader) -> Result<()> {
    let (at, memory) = (4096 + 7, SCRATCH_MEMORY);
    let before = Reader::ask(&mut reader.conn, Ask::Digest, &[memory])?;
    let key = reader.assign(2, memory, at, PIECE, Access::REMOTE_READ)?;
    reader
        .read(key, PIECE)?
        .ok()
        .during("read by the read-only key")?;
    let untouched = reader.piece_bytes(PIECE).iter().all(|b| *b == 0x5a);
    check(untouched, "read by the read-only key", "the bytes differ")?;
    step("read by a read-only key", &bytes(PIECE));
    let completion = reader.write(key, PIECE)?;
    reader.refused("write by a read-only key", completion)?;
    let after = Reader::ask(&mut reader.conn, Ask::Digest, &[memory])?;
    check(
        before == after,
        "write by a read-only key",
        "it changed the memory",
    )?;
    reader.revoke(2)?;
    let key = reader.assign(3, memory, at, PIECE, Access::REMOTE)?;
    let start = Instant::now();
    reader
        .write(key, PIECE)?
        .ok()
        .during("write by a read-write key")?;
    let time = start.elapsed();
    // The expected digest, computed on this node.
    let mut expected = vec![0x5a; SCRATCH];
    let from = usize::try_from(at).unwrap_or(0);
    expected[from..from + PIECE as usize].fill(0xee);
    let mut hash = Sha256::new();
    hash.update(&expected);
    let now = Reader::ask(&mut reader.conn, Ask::Digest, &[memory])?;
    check(
        now[..4] == words(hash),
        "write by a read-write key",
        "the memory is not as written",
    )?;
    step("write by a read-write key", &took(time));
    reader.revoke(3)
}

/// A revoked key stays invalid even after its slot has another key; other keys stay valid.
fn revoked(reader: &mut Reader) -> Result<()> {
    let old = reader.assign(2, FILE, 0, PIECE, Access::REMOTE_READ)?;
    reader
        .read(old, PIECE)?
        .ok()
        .during("read before the revoke")?;
    reader.revoke(2)?;
    let completion = reader.read(old, PIECE)?;
    reader.refused("read by a revoked key", completion)?;
    let new = reader.assign(2, FILE, 0, PIECE, Access::REMOTE_READ)?;
    check(
        new.key != old.key,
        "key after a revoke",
        "has the value of the old one",
    )?;
    reader
        .read(new, PIECE)?
        .ok()
        .during("read by the slot's new key")?;
    step(
        "the slot's new key has another value, and works",
        &format!("{:#x}", new.key),
    );
    let completion = reader.read(
        RemoteMem {
            key: old.key,
            ..new
        },
        PIECE,
    )?;
    reader.refused("read by the old key while the new one lives", completion)?;
    for slot in [0, 1, 2] {
        reader.revoke(slot)?;
    }
    Ok(())
}

/// Measures the cost of a key.
fn cost(reader: &mut Reader) -> Result<()> {
    let count = 200;
    for window in [4096, reader.len as u64] {
        let n = Reader::ask(&mut reader.conn, Ask::Cycle, &[count, window])?;
        let mean = |ns: u64| took(Duration::from_nanos(ns / count));
        let what = format!("a key for {} costs: assign + revoke", bytes(window));
        step(&what, &format!("{} + {}", mean(n[0]), mean(n[1])));
    }
    Ok(())
}
