// SPDX-License-Identifier: MIT OR Apache-2.0
//! Endpoints under an auth key: peers without the key do not get a connection.
//!
//! ```text
//! kfi-example-auth KEYFILE ADDRESS PORT [PROVIDER]
//! ```
//!
//! One thread listens for peers that prove the auth key in KEYFILE. Two clients connect: one with
//! the auth key, one without. In mode `enforce` the program needs a grant for the auth key.

#![forbid(unsafe_code)]

use std::time::Duration;

use kfabric::{
    resolve, AuthKey, Bind, Caps, Device, Domain, Endpoint, EndpointAttr, EventQueue, Fabric,
    Format, Hints, Info,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Timeout of each wait.
const WAIT: Duration = Duration::from_secs(30);

/// Opens the best fabric of the hints.
fn open(hints: &Hints) -> Result<(Fabric, Info)> {
    let device = Device::open()?;
    let best = device.info(hints)?.into_iter().next();
    let best = best.ok_or("no device reaches that address")?;
    Ok((device.fabric(&best)?, best))
}

/// Binds queues to an endpoint and enables the endpoint.
fn enable(domain: &Domain, events: &EventQueue, endpoint: &Endpoint) -> Result<()> {
    let completions = domain.completion_queue(0, Format::Context)?;
    endpoint.bind_event_queue(events)?;
    endpoint.bind_completion_queue(&completions, Bind::TRANSMIT | Bind::RECV)?;
    Ok(endpoint.enable()?)
}

/// Connects, with or without the auth key.
fn client(hints: &Hints, address: &str, port: u16, key: Option<&AuthKey>) -> Result<()> {
    let (fabric, info) = open(&hints.clone().destination(address, port))?;
    // The domain's auth key applies to all its objects.
    let domain = match key {
        Some(key) => fabric.domain_under(&info, key)?,
        None => fabric.domain(&info)?,
    };
    let events = fabric.event_queue(0)?;
    let endpoint = domain.endpoint(&EndpointAttr::default())?;
    enable(&domain, &events, &endpoint)?;
    endpoint.connect(resolve(address, port)?, &[])?;
    events.wait(WAIT)?.connected()?;
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, address, port, ..] = &args[..] else {
        return Err("usage: kfi-example-auth KEYFILE ADDRESS PORT [PROVIDER]".into());
    };
    let port: u16 = port.parse()?;
    let key = AuthKey::new(&std::fs::read(file)?)?;
    let provider = args.get(3).map_or("", String::as_str);
    let hints = Hints::new().caps(Caps::MSG).provider(provider);

    let (fabric, info) = open(&hints.clone().source(address, port))?;
    let domain = fabric.domain_under(&info, &key)?;
    let events = fabric.event_queue(0)?;
    let at = resolve(address, port)?;
    let listener = fabric.passive_endpoint_under(&events, at, 0, std::slice::from_ref(&key))?;
    listener.listen(0)?;
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| -> Result<()> {
            // The kernel refuses this request; the server gets no event.
            match client(&hints, address, port, None) {
                Ok(()) => Err("connected without the auth key".into()),
                Err(error) => {
                    println!("without the auth key: {error}");
                    client(&hints, address, port, Some(&key))
                }
            }
        });
        let request = events.wait(WAIT)?.request()?;
        println!("the peer has auth key number {:?}", request.auth_key);
        let endpoint = domain.endpoint_for(request, &EndpointAttr::default())?;
        enable(&domain, &events, &endpoint)?;
        endpoint.accept(&[])?;
        events.wait(WAIT)?.connected()?;
        clients.join().map_err(|_| "a client panicked")??;
        println!("with the auth key: connected");
        Ok(())
    })
}
