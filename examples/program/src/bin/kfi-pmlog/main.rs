// SPDX-License-Identifier: MIT OR Apache-2.0
//! An append-only log in the persistent memory of another host.
//!
//! ```text
//! kfi-pmlog serve /dev/dax0.0 ADDRESS PORT [PROVIDER]     # the host with the memory
//! kfi-pmlog create ADDRESS PORT [PROVIDER]                # makes a new log without records
//! kfi-pmlog append ADDRESS PORT [PROVIDER] <LINES         # appends each line
//! kfi-pmlog show ADDRESS PORT [PROVIDER]                  # prints all records
//! ```
//!
//! The server only opens its memory, to one client at a time; clients use one-sided operations. If
//! `append` has printed a record's number, the record survives a power failure of the server's host.
//!
//! [`format`] describes the bytes. A client that died may have left a commit word that is not durable,
//! so a client commits all that it has read before it uses it. `cargo xtask pmcut --target log` cuts
//! the power of a server.

#![forbid(unsafe_code)]

mod format;

use format::{commit_word, head_word, step, Records, LONGEST};
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{stdin, BufRead};
use std::path::Path;
use std::time::Duration;

use kfabric::{
    resolve, Access, Bind, Caps, CompletionQueue, ConnRequest, Device, Domain, Endpoint,
    EndpointAttr, Event, EventQueue, Fabric, Format, Hints, Info, Memory, Op, Region, RegionAttr,
    RemoteMem,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Timeout of each wait.
const WAIT: Duration = Duration::from_secs(60);
/// The objects that both sides need.
struct Node {
    fabric: Fabric,
    domain: Domain,
    events: EventQueue,
    completions: CompletionQueue,
    info: Info,
}

impl Node {
    /// Opens the best device that matches the hints and has durable writes.
    fn open(hints: &Hints) -> Result<Self> {
        let device = Device::open()?;
        let offers = device.info(&hints.clone().caps(Caps::RMA | Caps::RMA_PMEM))?;
        let info = offers.into_iter().next().ok_or("no durable writes there")?;
        let fabric = device.fabric(&info)?;
        let domain = fabric.domain(&info)?;
        Ok(Self {
            events: fabric.event_queue(0)?,
            completions: domain.completion_queue(0, Format::Data)?,
            fabric,
            domain,
            info,
        })
    }

    /// Binds the queues to an endpoint and enables the endpoint.
    fn enable(&self, endpoint: &Endpoint) -> Result<()> {
        endpoint.bind_event_queue(&self.events)?;
        endpoint.bind_completion_queue(&self.completions, Bind::TRANSMIT | Bind::RECV)?;
        Ok(endpoint.enable()?)
    }

    /// Serves a client until the connection ends. Other clients are rejected meanwhile.
    fn client(&self, request: ConnRequest, data: &[u8]) -> Result<()> {
        let attr = EndpointAttr::default();
        let endpoint = self.domain.endpoint_for(request, &attr)?;
        self.enable(&endpoint)?;
        endpoint.accept(data)?;
        loop {
            let event = self.events.wait(Duration::MAX)?;
            if let Event::Shutdown { .. } | Event::ConnFailed(_) = event {
                return Ok(());
            }
        }
    }
}

/// Returns the length of a device-dax device in bytes.
fn device_len(path: &Path) -> Result<usize> {
    let name = path.file_name().unwrap_or_default().display();
    let at = format!("/sys/bus/dax/devices/{name}/size");
    Ok(fs::read_to_string(at)?.trim().parse()?)
}

fn serve(path: &Path, hints: &Hints, address: &str, port: u16) -> Result<()> {
    let node = Node::open(&hints.clone().source(address, port))?;
    let file = File::options().read(true).write(true).open(path)?;
    let memory = Memory::from_file_shared(&file, device_len(path)?)?;
    // Refused if a write to this memory cannot be durable.
    let attr = RegionAttr::new(Access::REMOTE).dynamic_keys().persistent();
    let region = node.domain.register_with(memory, &attr)?;
    let key = region.alloc_keys(1)?.remove(0);
    let listener = node
        .fabric
        .passive_endpoint(&node.events, resolve(address, port)?, 0)?;
    listener.listen(0)?;
    println!("listening on {address}, provider {}", node.info.provider());
    loop {
        let Event::ConnRequest(request) = node.events.wait(Duration::MAX)? else {
            continue;
        };
        // A client has a key of its own, which ends with the client.
        let len = region.len() as u64;
        let remote = key.assign(0, len, Access::REMOTE)?;
        let data = [&remote.to_raw()[..], &len.to_le_bytes()].concat();
        if let Err(failure) = node.client(request, &data) {
            eprintln!("a client is lost: {failure}");
        }
        key.revoke()?;
    }
}

/// A client's view of the log.
struct Log {
    node: Node,
    endpoint: Endpoint,
    remote: RemoteMem,
    /// Bytes of the server's memory.
    size: u64,
    buffer: Region,
    records: Records,
}

impl Log {
    fn open(hints: &Hints, address: &str, port: u16) -> Result<Self> {
        let node = Node::open(&hints.clone().destination(address, port))?;
        let endpoint = node.domain.endpoint(&EndpointAttr::default())?;
        node.enable(&endpoint)?;
        endpoint.connect(resolve(address, port)?, &[])?;
        let data = node.events.wait(WAIT)?.connected()?;
        let (raw, rest) = data
            .split_at_checked(RemoteMem::RAW_LEN)
            .ok_or("no key came")?;
        let size = rest.first_chunk().ok_or("no length came")?;
        let memory = Memory::anonymous(LONGEST)?;
        let buffer = node.domain.register(memory, Access::READ | Access::WRITE)?;
        Ok(Self {
            remote: RemoteMem::from_raw(raw)?,
            size: u64::from_le_bytes(*size),
            node,
            endpoint,
            buffer,
            records: Records::default(),
        })
    }

    /// Executes an operation.
    fn run(&self, op: &Op<'_>) -> Result<()> {
        self.endpoint.post(op)?;
        self.node.completions.wait(WAIT)?.ok()?;
        Ok(())
    }

    /// Reads the bytes of the log at a position.
    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let segment = self.buffer.segment(0..len);
        self.run(&Op::read(&[segment], self.remote.offset(at)))?;
        Ok(self.buffer.to_vec(0, len))
    }

    fn read_word(&self, at: u64) -> Result<u64> {
        let bytes = self.read(at, 8)?;
        Ok(u64::from_le_bytes(bytes.as_slice().try_into()?))
    }

    /// Writes a word, which is durable when this returns.
    fn write_word(&self, at: u64, word: u64) -> Result<()> {
        let bytes = word.to_le_bytes();
        let write = Op::inject_write(&bytes, self.remote.offset(at));
        self.run(&write.durable().completion())
    }

    /// Makes a log without records.
    fn create(&self) -> Result<()> {
        let number = RandomState::new().hash_one(self.remote.key);
        self.write_word(0, number)?;
        self.write_word(8, head_word(number))
    }

    /// Finds the end of the log, makes all before it durable, and passes each record to `each`.
    /// Returns the number of records.
    fn recover(&mut self, mut each: impl FnMut(u64, &[u8])) -> Result<u64> {
        let found = Records::find(self.size, |at| self.read_word(at))?;
        self.records = found.ok_or("there is no log: use create")?;
        let Records { places, end, .. } = &self.records;
        for at in (0..*end).step_by(1 << 20) {
            let len = (1 << 20).min((end - at) as usize);
            self.run(&Op::commit(self.remote.offset(at), len))?;
        }
        for (number, (at, len)) in (0..).zip(places) {
            each(number, &self.read(*at, *len)?);
        }
        Ok(places.len() as u64)
    }

    /// Appends a record, which is durable when this returns.
    fn append(&mut self, record: &[u8]) -> Result<()> {
        if record.is_empty() || record.len() > LONGEST {
            return Err(format!("a record has 1 to {LONGEST} bytes").into());
        }
        let Records { log, end, .. } = self.records;
        let next = end + step(record.len());
        if next > self.size {
            return Err("the log is full".into());
        }
        let word = commit_word(log, end, record.len() as u64);
        self.buffer.write_at(0, record);
        let segment = self.buffer.segment(0..record.len());
        let write = Op::write(&[segment], self.remote.offset(end + 8));
        // A bug, for a test of the tests: the commit word comes before the record.
        #[cfg(kfabric_seed_bug = "log-early-word")]
        self.write_word(end, word)?;
        self.run(&write.durable())?;
        #[cfg(not(kfabric_seed_bug = "log-early-word"))]
        self.write_word(end, word)?;
        self.records.end = next;
        Ok(())
    }
}

fn append(mut log: Log) -> Result<()> {
    let first = log.recover(|_, _| {})?;
    println!("recovered {first} records");
    for (number, line) in (first..).zip(stdin().lock().lines()) {
        log.append(line?.as_bytes())?;
        println!("appended {number}");
    }
    Ok(())
}

fn show(mut log: Log) -> Result<()> {
    log.recover(|number, record| println!("{number}: {}", String::from_utf8_lossy(record)))?;
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let hints = |at: usize| Hints::new().provider(args.get(at).copied().unwrap_or_default());
    match args[..] {
        ["serve", path, address, port, ..] => {
            serve(Path::new(path), &hints(4), address, port.parse()?)
        }
        ["append", address, port, ..] => append(Log::open(&hints(3), address, port.parse()?)?),
        ["create", address, port, ..] => Log::open(&hints(3), address, port.parse()?)?.create(),
        ["show", address, port, ..] => show(Log::open(&hints(3), address, port.parse()?)?),
        _ => Err(
            "usage: kfi-pmlog serve DEVICE, or kfi-pmlog create|append|show ADDRESS PORT [PROVIDER]".into(),
        ),
    }
}
