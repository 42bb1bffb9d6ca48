// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client and a server over libkfabric.
//!
//! ```text
//! kfi-example server 10.0.0.1 7479 [PROVIDER] &
//! kfi-example client 10.0.0.1 7479 [PROVIDER]
//! ```
//!
//! The server opens a part of its memory to the client by a key. The client gets the bytes, puts
//! other bytes in their place, and sends a message. Neither `get` nor `put` needs any action of
//! the server. The server then revokes the key.

#![forbid(unsafe_code)]

use std::time::Duration;

use kfabric::{
    resolve, Access, Bind, Caps, CompletionQueue, Device, Domain, Endpoint, EndpointAttr,
    EventQueue, Fabric, Format, Hints, Memory, Region, RegionAttr, RemoteMem,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Timeout of each wait.
const WAIT: Duration = Duration::from_secs(30);
/// Size of each registered memory.
const PAGE: usize = 4096;
/// The server's bytes, which the client gets.
const OFFER: &[u8] = b"the server's bytes";
/// The bytes that the client puts in their place; not longer, because the key covers no more.
const REPLY: &[u8] = b"the client's bytes";

/// The objects that both sides need.
struct Node {
    fabric: Fabric,
    domain: Domain,
    events: EventQueue,
    completions: CompletionQueue,
}

impl Node {
    /// Opens the best device that matches the hints.
    fn open(hints: Hints) -> Result<Self> {
        let hints = hints.caps(Caps::MSG | Caps::RMA | Caps::DYNAMIC_KEYS);
        let device = Device::open()?;
        let offers = device.info(&hints)?;
        let best = offers.first().ok_or("no device reaches that address")?;
        let fabric = device.fabric(best)?;
        let domain = fabric.domain(best)?;
        println!("provider {}, device {}", best.provider(), best.domain());
        Ok(Self {
            events: fabric.event_queue(0)?,
            completions: domain.completion_queue(0, Format::Data)?,
            fabric,
            domain,
        })
    }

    /// Binds the queues to an endpoint and enables the endpoint.
    fn enable(&self, endpoint: &Endpoint) -> Result<()> {
        endpoint.bind_event_queue(&self.events)?;
        endpoint.bind_completion_queue(&self.completions, Bind::TRANSMIT | Bind::RECV)?;
        Ok(endpoint.enable()?)
    }

    /// Waits for the completion of one operation. Returns the number of moved bytes.
    fn completed(&self) -> Result<usize> {
        Ok(self.completions.wait(WAIT)?.ok()?.len().try_into()?)
    }
}

/// Returns the first `len` bytes of a region as text.
fn text(region: &Region, len: usize) -> String {
    String::from_utf8_lossy(&region.to_vec(0, len)).into_owned()
}

fn server(hints: Hints, address: &str, port: u16) -> Result<()> {
    let node = Node::open(hints.source(address, port))?;
    let domain = &node.domain;
    let at = resolve(address, port)?;
    let listener = node.fabric.passive_endpoint(&node.events, at, 0)?;
    listener.listen(0)?;
    println!("listening on {at}");
    let request = node.events.wait(WAIT)?.request()?;
    let endpoint = domain.endpoint_for(request, &EndpointAttr::default())?;
    node.enable(&endpoint)?;

    // A receive must be posted before the client's message arrives.
    let inbox = domain.register(Memory::anonymous(PAGE)?, Access::RECV)?;
    endpoint.recv(inbox.all(), 1)?;
    // A region with dynamic keys is pinned once and reachable only through keys.
    let attr = RegionAttr::new(Access::REMOTE).dynamic_keys();
    let shared = domain.register_with(Memory::anonymous(PAGE)?, &attr)?;
    shared.write_at(0, OFFER);
    let key = shared.alloc_keys(1)?.remove(0);
    let remote = key.assign(0, OFFER.len() as u64, Access::REMOTE)?;
    // Address and key travel to the client as data of the connection.
    endpoint.accept(&remote.to_raw())?;
    node.events.wait(WAIT)?.connected()?;

    let len = node.completed()?;
    println!("received: {}", text(&inbox, len));
    println!("memory: {}", text(&shared, OFFER.len()));
    key.revoke()?;
    println!("revoked the key");
    // Dropping an object closes it, too; `close` reports a failure.
    key.close()?;
    shared.close()?;
    Ok(endpoint.close()?)
}

fn client(hints: Hints, address: &str, port: u16) -> Result<()> {
    let node = Node::open(hints.destination(address, port))?;
    let endpoint = node.domain.endpoint(&EndpointAttr::default())?;
    node.enable(&endpoint)?;
    endpoint.connect(resolve(address, port)?, &[])?;
    let data = node.events.wait(WAIT)?.connected()?;
    // A fabric may pad the data.
    let raw = data.get(..RemoteMem::RAW_LEN).ok_or("no key came")?;
    let remote = RemoteMem::from_raw(raw)?;

    let uses = Access::READ | Access::WRITE | Access::SEND;
    let buffer = node.domain.register(Memory::anonymous(PAGE)?, uses)?;
    endpoint.read(buffer.segment(0..OFFER.len()), remote, 1)?;
    node.completed()?;
    println!("got: {}", text(&buffer, OFFER.len()));
    buffer.write_at(0, REPLY);
    endpoint.write(buffer.segment(0..REPLY.len()), remote, 2)?;
    node.completed()?;
    println!("put: {}", text(&buffer, REPLY.len()));
    buffer.write_at(0, b"done");
    endpoint.send(buffer.segment(0..4), 3)?;
    node.completed()?;
    println!("sent: done");
    Ok(endpoint.close()?)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    // An empty name matches every provider.
    let hints = Hints::new().provider(args.get(3).copied().unwrap_or_default());
    match args[..] {
        ["server", address, port, ..] => server(hints, address, port.parse()?),
        ["client", address, port, ..] => client(hints, address, port.parse()?),
        _ => Err("usage: kfi-example server|client ADDRESS PORT [PROVIDER]".into()),
    }
}
