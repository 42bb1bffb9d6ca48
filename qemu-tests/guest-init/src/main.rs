// SPDX-License-Identifier: MIT OR Apache-2.0

//! The first process of a guest.
//!
//! The initramfs has mounted the build root and starts this process. It makes the machine a node
//! (or two) of a fabric, runs the given command on each, checks for leftovers, and powers off.
//! [`protocol`] defines its messages to and from xtask.

mod checkers;
mod leftovers;
mod machine;
mod network;
mod node;
#[path = "../../../xtask/src/guest/protocol.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "one file for both sides, of which each uses its part"
)]
mod protocol;

use anyhow::{bail, Context as _, Result};
use protocol::{Config, Event, Order, SYS_PORT};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::time::Duration;

fn main() {
    let result = machine::mount_all().and_then(|()| live());
    if let Err(error) = result {
        eprintln!("guest-init: {error:#}");
    }
    machine::power_off();
}

/// The line to xtask.
struct Host {
    port: File,
    orders: BufReader<File>,
}

impl Host {
    fn open() -> Result<Self> {
        let port = machine::open_port(SYS_PORT)?;
        Ok(Self {
            orders: BufReader::new(port.try_clone()?),
            port,
        })
    }

    fn tell(&mut self, event: &Event) -> Result<()> {
        let line = serde_json::to_string(event)? + "\n";
        self.port
            .write_all(line.as_bytes())
            .context("telling the host")
    }

    fn wait_for(&mut self, wanted: &Order) -> Result<()> {
        loop {
            let mut line = String::new();
            if self.orders.read_line(&mut line).context("an order")? == 0 {
                // The host's end is not connected (yet).
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            let order: Order =
                serde_json::from_str(&line).with_context(|| format!("the order {line:?}"))?;
            if order == *wanted {
                return Ok(());
            }
        }
    }
}

/// Runs the guest's life, from the mounted root to the order to finish.
fn live() -> Result<()> {
    machine::name_ports()?;
    let mut host = Host::open()?;
    let made = prepare();
    let (config, baseline) = match made {
        Ok(made) => made,
        Err(error) => {
            let text = format!("{error:#}");
            host.tell(&Event::Fault { text })?;
            bail!(error);
        }
    };
    host.tell(&Event::Ready)?;
    host.wait_for(&Order::Go)?;
    let mut running = Vec::new();
    for node in &config.nodes {
        match node::start(&config, *node) {
            Ok(pid) => running.push((*node, pid)),
            Err(error) => {
                node::complain(&config, *node, &error);
                host.tell(&Event::Exit {
                    node: *node,
                    status: 127,
                })?;
            }
        }
    }
    while !running.is_empty() {
        let Some((pid, status)) = machine::reap(true) else {
            break;
        };
        if let Some(index) = running.iter().position(|(_, running)| *running == pid) {
            let (node, _) = running.remove(index);
            host.tell(&Event::Exit { node, status })?;
        }
    }
    host.wait_for(&Order::Finish)?;
    machine::kill_all();
    let found = leftovers::look(&config, &baseline);
    host.tell(&Event::Done {
        left: found.left,
        unload: found.unload,
    })
}

/// Sets the machine up as the configuration says.
fn prepare() -> Result<(Config, leftovers::Baseline)> {
    let config = machine::config()?;
    if config.host {
        machine::mount_host()?;
    }
    for tag in &config.layers {
        machine::mount_layer(tag)?;
    }
    network::up(&config)?;
    checkers::forget_leaks();
    let baseline = leftovers::Baseline::take();
    for module in &config.load {
        machine::load(module)?;
    }
    Ok((config, baseline))
}
