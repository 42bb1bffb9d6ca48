// SPDX-License-Identifier: MIT OR Apache-2.0
//! Node 1: pins the file once, then assigns and revokes keys.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kfabric::{Access, Domain, Key, Memory, Region, RegionAttr};
use kfi::error::{During, Failure, OnFile, Result};
use kfi::session::{Conn, News, Node, Select};
use kfi::stats::bytes;
use kfi::wire::{Kind, Msg, Service};
use sha2::{Digest, Sha256};

use crate::steps::{say, step, took, Ask, FILE, SCRATCH, SCRATCH_MEMORY, SLOTS};
use crate::{Nodes, PORT};

/// Timeout of waiting for node 2, and for each of its operations.
const PATIENCE: Duration = Duration::from_secs(60);

/// The exported file and scratch memory.
struct Export {
    path: PathBuf,
    /// The open file: reading the mapping of a file that was truncated raises SIGBUS.
    opened: File,
    file: Region,
    scratch: Region,
    slots: Vec<Slot>,
}

/// A pair of key slots: one of the file, one of the scratch memory.
struct Slot {
    file: Key,
    scratch: Key,
    /// The memory whose slot has a key, if any.
    assigned: Option<u64>,
}

/// Picks a file of some size that a small system has: its shell, its C library, or this program.
fn pick_file() -> Result<PathBuf> {
    if let Some(file) = std::env::var_os("KFI_DEMO_FILE") {
        return Ok(PathBuf::from(file));
    }
    let known = [
        "/usr/bin/bash",
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/bin/busybox",
        "/proc/self/exe",
    ];
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |meta| meta.len());
    let found = known
        .iter()
        .map(PathBuf::from)
        .filter(|path| size(path) > 1 << 20)
        .max_by_key(size);
    found.ok_or_else(|| Failure::Usage("no file to export: name one in KFI_DEMO_FILE".to_owned()))
}

impl Export {
    fn new(domain: &Domain) -> Result<Self> {
        let path = pick_file()?;
        let file = File::open(&path).on_file("open", &path)?;
        let len = file.metadata().on_file("look at", &path)?.len();
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        let memory = Arc::new(Memory::from_file(&file, size).during("map file")?);
        let attr = RegionAttr::new(Access::REMOTE_READ).dynamic_keys();
        let start = Instant::now();
        let region = domain.register_with(memory, &attr).during("register")?;
        let time = start.elapsed();
        let what = format!(
            "pinned {} of {} in place, no key yet",
            bytes(len),
            path.display()
        );
        step(&what, &format!("{} pages, {}", region.pages(), took(time)));
        let scratch = Memory::anonymous(SCRATCH).during("allocate")?;
        scratch.fill(0, SCRATCH, 0x5a);
        let attr = RegionAttr::new(Access::REMOTE).dynamic_keys();
        let scratch = domain.register_with(scratch, &attr).during("register")?;
        let start = Instant::now();
        let file_keys = region.alloc_keys(SLOTS).during("reserve keys")?;
        let time = start.elapsed();
        step(&format!("reserved {SLOTS} key slots"), &took(time));
        let scratch_keys = scratch.alloc_keys(SLOTS).during("reserve keys")?;
        let slots = file_keys.into_iter().zip(scratch_keys);
        let slots = slots
            .map(|(file, scratch)| Slot {
                file,
                scratch,
                assigned: None,
            })
            .collect();
        Ok(Self {
            path,
            opened: file,
            file: region,
            scratch,
            slots,
        })
    }

    /// SHA-256 of the present content of a memory, in words.
    fn digest(&self, which: u64) -> Result<[u64; 4]> {
        let region = match which {
            FILE => &self.file,
            SCRATCH_MEMORY => &self.scratch,
            other => return Err(nonsense(&format!("memory {other}"))),
        };
        let mut hash = Sha256::new();
        let mut part = vec![0; 1 << 20];
        for at in (0..region.len()).step_by(part.len()) {
            let part = &mut part[..(region.len() - at).min(1 << 20)];
            match which {
                FILE => self
                    .opened
                    .read_exact_at(part, at as u64)
                    .on_file("read", &self.path)?,
                _ => region.read_at(at, part),
            }
            hash.update(&*part);
        }
        Ok(crate::reader::words(hash))
    }

    fn slot(&mut self, n: u64) -> Result<&mut Slot> {
        let slot = usize::try_from(n).ok().and_then(|n| self.slots.get_mut(n));
        slot.ok_or_else(|| nonsense(&format!("slot {n}")))
    }

    fn assign(&mut self, n: &[u64; 7]) -> Result<[u64; 3]> {
        let [_, slot, memory, offset, length, rights, _] = *n;
        let access = Access::from_bits_retain(rights);
        let held = self.slot(slot)?;
        let key = if memory == FILE {
            &held.file
        } else {
            &held.scratch
        };
        let start = Instant::now();
        let remote = key.assign(offset, length, access).during("assign key")?;
        let time = start.elapsed();
        held.assigned = Some(memory);
        let rights = match access {
            Access::REMOTE_READ => "read",
            Access::REMOTE_WRITE => "write",
            _ => "read and write",
        };
        let of = if memory == FILE {
            "the file"
        } else {
            "scratch memory"
        };
        let what = format!(
            "key {slot}: {} at {offset} of {of}, {rights}",
            bytes(length)
        );
        step(&what, &took(time));
        Ok([remote.addr, remote.key, nanos(time)])
    }

    fn revoke(&mut self, n: u64) -> Result<u64> {
        let held = self.slot(n)?;
        let memory = held
            .assigned
            .take()
            .ok_or_else(|| nonsense("no key to revoke"))?;
        let key = if memory == FILE {
            &held.file
        } else {
            &held.scratch
        };
        let start = Instant::now();
        key.revoke().during("revoke key")?;
        let time = start.elapsed();
        step(&format!("key {n}: revoked"), &took(time));
        Ok(nanos(time))
    }

    /// Assigns and revokes a slot's key many times, at offsets all over the file.
    fn cycle(&mut self, count: u64, window: u64) -> Result<[u64; 2]> {
        let len = self.file.len() as u64;
        if count == 0 || count > 1 << 20 || window == 0 || window > len {
            return Err(nonsense("a cycle of that kind"));
        }
        let (mut assigns, mut revokes) = (Duration::ZERO, Duration::ZERO);
        let key = &self.slot(SLOTS as u64 - 1)?.file;
        for i in 0..count {
            let offset = i.wrapping_mul(0x9e37_79b9) % (len - window + 1);
            let start = Instant::now();
            key.assign(offset, window, Access::REMOTE_READ)
                .during("assign key")?;
            let assigned = Instant::now();
            key.revoke().during("revoke key")?;
            assigns += assigned - start;
            revokes += assigned.elapsed();
        }
        let mean = |time: Duration| took(time.div_f64(count as f64));
        let what = format!(
            "{count} times: assign a key for {}, then revoke it",
            bytes(window)
        );
        step(&what, &format!("{} + {}", mean(assigns), mean(revokes)));
        Ok([nanos(assigns), nanos(revokes)])
    }

    /// Executes a request of node 2. Returns `true` for the last one.
    fn answer(&mut self, conn: &mut Conn, msg: &Msg) -> Result<bool> {
        let ask = Ask::from_u64(msg.n[0]).filter(|_| msg.kind == Kind::Step);
        let ask = ask.ok_or_else(|| nonsense(&format!("{:?} {:?}", msg.kind, msg.n)))?;
        let numbers = match ask {
            Ask::Facts => {
                let d = self.digest(FILE)?;
                vec![self.file.len() as u64, d[0], d[1], d[2], d[3]]
            }
            Ask::Assign => self.assign(&msg.n)?.to_vec(),
            Ask::Revoke => vec![self.revoke(msg.n[1])?],
            Ask::Digest => self.digest(msg.n[1])?.to_vec(),
            Ask::Cycle => self.cycle(msg.n[1], msg.n[2])?.to_vec(),
            Ask::End | Ask::Ready => Vec::new(),
        };
        conn.send(&Msg::new(Kind::StepDone, &numbers))?;
        conn.flush()?;
        Ok(ask == Ask::End)
    }

    /// Closes all objects, in order.
    fn close(self) -> Result<()> {
        let start = Instant::now();
        for slot in self.slots {
            slot.file.close().during("close key")?;
            slot.scratch.close().during("close key")?;
        }
        self.file.close().during("unpin")?;
        self.scratch.close().during("unpin")?;
        step("all keys gone, all memory unpinned", &took(start.elapsed()));
        Ok(())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn nonsense(what: &str) -> Failure {
    Failure::Protocol {
        what: "export",
        got: what.to_owned(),
    }
}

/// Runs node 1.
pub(crate) fn run(nodes: &Nodes) -> Result<()> {
    let peer = SocketAddr::new(nodes.peer, PORT);
    let best = Node::to(&Select::default(), peer)?;
    // Keys belong to one domain, so node 1 listens through one provider.
    let select = Select {
        provider: Some(best.info().provider().to_owned()),
        ..Select::default()
    };
    let node = Node::to(&select, peer)?;
    let info = node.info();
    say(&format!(
        "node 1 exports, on {} by {}",
        info.domain(),
        info.provider()
    ));
    let domain = node.first_domain()?;
    let mut export = Export::new(&domain)?;
    let listener = node.listen(SocketAddr::new(nodes.own, PORT))?;
    // A refused access ends the connection, so node 2 connects many times. Each connection is kept
    // until the next one. If this side closed at once, that could overtake the answer that tells
    // node 2 of the refusal.
    let mut connections = 0;
    let mut previous = None;
    loop {
        // The demo has no data messages.
        let News::Request(request) = listener.next(Service::Demo, 1 << 20, PATIENCE)? else {
            let source = kfabric::Error::Timeout {
                what: "waiting for node 2",
                after: PATIENCE,
            };
            return Err(Failure::Fabric {
                what: "listen",
                source,
            });
        };
        let mut conn = listener.accept(request, PATIENCE)?;
        drop(previous.take());
        connections += 1;
        let end = loop {
            let msg = match conn.recv() {
                Ok(msg) => msg,
                Err(Failure::Gone { .. }) => break false,
                Err(e) => return Err(e),
            };
            match export.answer(&mut conn, &msg) {
                Ok(false) => {}
                Ok(true) => break true,
                Err(Failure::Gone { .. }) => break false,
                Err(e) => return Err(e),
            }
        };
        if end {
            break;
        }
        previous = Some(conn);
    }
    drop(listener);
    export.close()?;
    say(&format!(
        "node 1 is through: all as it should be, over {connections} connections"
    ));
    Ok(())
}
