// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages that go back and forth, and their time.
//!
//! ```text
//! kfi-example-pingpong server 10.0.0.1 7479 [PROVIDER] &
//! kfi-example-pingpong client 10.0.0.1 7479 [PROVIDER]
//! ```

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use kfabric::{
    resolve, Access, Bind, Caps, CompFlags, CompletionQueue, Device, Endpoint, EndpointAttr,
    EventQueue, Format, Hints, Memory, Region,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Timeout of each wait.
const WAIT: Duration = Duration::from_secs(30);
/// Number of round trips.
const ROUNDS: usize = 1000;
/// Size of a message.
const SIZE: usize = 64;

/// A connected endpoint with its queue, and memory for one message in each direction.
struct Side {
    endpoint: Endpoint,
    completions: CompletionQueue,
    received: Region,
    sent: Region,
}

impl Side {
    fn send(&self) -> Result<()> {
        Ok(self.endpoint.send(self.sent.all(), 1)?)
    }

    fn receive(&self) -> Result<()> {
        Ok(self.endpoint.recv(self.received.all(), 2)?)
    }

    /// Waits until so many sends and receives have completed, all in all.
    fn completed(&self, done: &mut Done, sends: usize, receives: usize) -> Result<()> {
        while done.sends < sends || done.receives < receives {
            let completion = self.completions.wait(WAIT)?.ok()?;
            match completion.flags().contains(CompFlags::RECV) {
                true => done.receives += 1,
                false => done.sends += 1,
            }
        }
        Ok(())
    }
}

/// Numbers of completed operations.
#[derive(Default)]
struct Done {
    sends: usize,
    receives: usize,
}

/// Connects, as the server or as the client.
fn connect(hints: Hints, address: &str, port: u16, server: bool) -> Result<Side> {
    let device = Device::open()?;
    let hints = hints.caps(Caps::MSG);
    let hints = match server {
        true => hints.source(address, port),
        false => hints.destination(address, port),
    };
    let offers = device.info(&hints)?;
    let best = offers.first().ok_or("no device reaches that address")?;
    let fabric = device.fabric(best)?;
    let domain = fabric.domain(best)?;
    let events: EventQueue = fabric.event_queue(0)?;
    let completions = domain.completion_queue(0, Format::Data)?;
    let at = resolve(address, port)?;
    let attr = EndpointAttr::default();
    let endpoint = match server {
        true => {
            let listener = fabric.passive_endpoint(&events, at, 0)?;
            listener.listen(0)?;
            println!("listening on {at}");
            domain.endpoint_for(events.wait(WAIT)?.request()?, &attr)?
        }
        false => domain.endpoint(&attr)?,
    };
    endpoint.bind_event_queue(&events)?;
    endpoint.bind_completion_queue(&completions, Bind::TRANSMIT | Bind::RECV)?;
    endpoint.enable()?;
    let side = Side {
        received: domain.register(Memory::anonymous(SIZE)?, Access::RECV)?,
        sent: domain.register(Memory::anonymous(SIZE)?, Access::SEND)?,
        endpoint,
        completions,
    };
    // A receive must be posted before the peer's message arrives.
    side.receive()?;
    match server {
        true => side.endpoint.accept(&[])?,
        false => side.endpoint.connect(at, &[])?,
    }
    events.wait(WAIT)?.connected()?;
    Ok(side)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let [role @ ("server" | "client"), address, port, ..] = args[..] else {
        return Err("usage: kfi-example-pingpong server|client ADDRESS PORT [PROVIDER]".into());
    };
    // An empty name matches every provider.
    let hints = Hints::new().provider(args.get(3).copied().unwrap_or_default());
    let server = role == "server";
    let side = connect(hints, address, port.parse()?, server)?;
    let start = Instant::now();
    let mut done = Done::default();
    for round in 1..=ROUNDS {
        if !server {
            side.send()?;
        }
        side.completed(&mut done, 0, round)?;
        if round < ROUNDS {
            side.receive()?;
        }
        if server {
            side.send()?;
        }
    }
    // The last message must have arrived before the endpoint is closed.
    side.completed(&mut done, ROUNDS, ROUNDS)?;
    let each = start.elapsed() / u32::try_from(ROUNDS)?;
    println!("{ROUNDS} round trips, {} us each", each.as_micros());
    Ok(())
}
