// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two endpoints that exchange messages in tasks of one thread, with tokio.
//!
//! ```text
//! kfi-example-tokio ADDRESS PORT [PROVIDER]
//! ```
//!
//! Event queues and completion queues have descriptors, so any runtime can wait for them.

#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use kfabric::{
    resolve, Access, Bind, Caps, CompFlags, Completion, CompletionQueue, Device, Domain, Endpoint,
    EndpointAttr, Event, EventQueue, Fabric, Format, Hints, Memory,
};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Timeout of the whole program.
const LIMIT: Duration = Duration::from_secs(30);
/// Number of messages in each direction.
const ROUNDS: u64 = 100;

/// A queue that tasks wait for.
struct Queue<T> {
    queue: T,
    ready: AsyncFd<OwnedFd>,
}

impl<T: AsFd> Queue<T> {
    fn new(queue: T) -> Result<Self> {
        // Another descriptor of the same queue.
        let fd = queue.as_fd().try_clone_to_owned()?;
        #[expect(
            deprecated,
            reason = "sound for an owned descriptor; the successor is unsafe"
        )]
        let ready = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self { queue, ready })
    }

    /// Takes an entry; waits for one if none is ready.
    async fn take<E>(&self, read: impl Fn(&T) -> kfabric::Result<Option<E>>) -> Result<E> {
        loop {
            let mut ready = self.ready.readable().await?;
            if let Some(entry) = read(&self.queue)? {
                return Ok(entry);
            }
            // Only an empty queue makes the task sleep.
            ready.clear_ready();
            if let Some(entry) = read(&self.queue)? {
                return Ok(entry);
            }
        }
    }
}

impl Queue<EventQueue> {
    async fn event(&self) -> Result<Event> {
        self.take(EventQueue::read).await
    }
}

impl Queue<CompletionQueue> {
    async fn completion(&self) -> Result<Completion> {
        Ok(self.take(CompletionQueue::read_one).await?.ok()?)
    }
}

/// The objects of one end.
struct Side {
    fabric: Fabric,
    domain: Domain,
    events: Queue<EventQueue>,
    completions: Queue<CompletionQueue>,
}

impl Side {
    fn open(hints: Hints) -> Result<Self> {
        let device = Device::open()?;
        let offers = device.info(&hints.caps(Caps::MSG))?;
        let best = offers.first().ok_or("no device reaches that address")?;
        let fabric = device.fabric(best)?;
        let domain = fabric.domain(best)?;
        Ok(Self {
            events: Queue::new(fabric.event_queue(0)?)?,
            completions: Queue::new(domain.completion_queue(0, Format::Data)?)?,
            fabric,
            domain,
        })
    }

    fn enable(&self, endpoint: &Endpoint) -> Result<()> {
        endpoint.bind_event_queue(&self.events.queue)?;
        endpoint.bind_completion_queue(&self.completions.queue, Bind::TRANSMIT | Bind::RECV)?;
        Ok(endpoint.enable()?)
    }

    /// Exchanges the messages. Each round has two completions: a send and a receive.
    async fn exchange(&self, endpoint: &Endpoint) -> Result<u64> {
        let uses = Access::SEND | Access::RECV;
        let memory = self.domain.register(Memory::anonymous(4096)?, uses)?;
        // A receive must be posted before the peer's message arrives.
        endpoint.recv(memory.segment(2048..4096), ROUNDS)?;
        self.events.event().await?.connected()?;
        let mut bytes = 0;
        for round in 0..ROUNDS {
            endpoint.send(memory.segment(0..64), round)?;
            for _ in 0..2 {
                let completion = self.completions.completion().await?;
                if completion.flags().contains(CompFlags::RECV) {
                    bytes += completion.len();
                }
            }
            if round + 1 < ROUNDS {
                endpoint.recv(memory.segment(2048..4096), ROUNDS)?;
            }
        }
        Ok(bytes)
    }
}

async fn server(side: Side, address: String, port: u16) -> Result<(u64, Endpoint, Side)> {
    let at = resolve(&address, port)?;
    let listener = side.fabric.passive_endpoint(&side.events.queue, at, 0)?;
    listener.listen(0)?;
    let request = side.events.event().await?.request()?;
    let endpoint = side
        .domain
        .endpoint_for(request, &EndpointAttr::default())?;
    side.enable(&endpoint)?;
    endpoint.accept(&[])?;
    let bytes = side.exchange(&endpoint).await?;
    Ok((bytes, endpoint, side))
}

async fn client(side: &Side, address: &str, port: u16) -> Result<(u64, Endpoint)> {
    let endpoint = side.domain.endpoint(&EndpointAttr::default())?;
    side.enable(&endpoint)?;
    endpoint.connect(resolve(address, port)?, &[])?;
    let bytes = side.exchange(&endpoint).await?;
    Ok((bytes, endpoint))
}

async fn both(hints: Hints, address: String, port: u16) -> Result<()> {
    let listening = Side::open(hints.clone().source(&address, port))?;
    let connecting = Side::open(hints.destination(&address, port))?;
    let serving = tokio::task::spawn_local(server(listening, address.clone(), port));
    // The server listens before the client connects.
    tokio::task::yield_now().await;
    let (received, _endpoint) = client(&connecting, &address, port).await?;
    println!("the client has received {received} bytes");
    // Both endpoints stay open until both ends have all completions.
    let (received, ..) = serving.await??;
    println!("the server has received {received} bytes");
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, port, ..] = &args[..] else {
        return Err("usage: kfi-example-tokio ADDRESS PORT [PROVIDER]".into());
    };
    // An empty name matches every provider.
    let hints = Hints::new().provider(args.get(2).map_or("", String::as_str));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let work = both(hints, address.clone(), port.parse()?);
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async { tokio::time::timeout(LIMIT, work).await? })
}
