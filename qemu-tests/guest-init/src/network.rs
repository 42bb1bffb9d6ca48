// SPDX-License-Identifier: MIT OR Apache-2.0

//! Network devices, addresses, and an RDMA device for each node.

use crate::machine::{self, run};
use crate::protocol::{Config, Device, Topology};
use anyhow::{Context as _, Result};

/// MTU of the devices; with it rxe's is 4096.
const MTU: &str = "4400";
/// Number of packets that may wait to be sent.
const QUEUE: &str = "20000";

/// A node's addresses and devices.
#[derive(Debug)]
pub(crate) struct Place {
    /// IPv4 address.
    pub(crate) addr: String,
    /// IPv6 address.
    pub(crate) addr6: String,
    /// Network device.
    pub(crate) netdev: String,
    /// RDMA device.
    pub(crate) dev: String,
    /// Network namespace, if it has one of its own.
    pub(crate) netns: Option<String>,
}

/// Returns the addresses and devices of a node.
pub(crate) fn place(topology: Topology, device: Device, node: u8) -> Place {
    Place {
        addr: format!("10.77.0.{node}"),
        addr6: format!("fd77::{node}"),
        netdev: match topology {
            Topology::One | Topology::Netns => format!("kfi{node}"),
            Topology::Two => "eth0".into(),
        },
        dev: format!("{}{node}", device.name()),
        netns: (topology == Topology::Netns).then(|| format!("node{node}")),
    }
}

/// Returns the peer of a node.
pub(crate) fn peer(topology: Topology, node: u8) -> u8 {
    match topology {
        Topology::One => node,
        Topology::Netns | Topology::Two => 3 - node,
    }
}

/// Brings up every node's network and RDMA device.
pub(crate) fn up(config: &Config) -> Result<()> {
    run("modprobe", &["-a", "rdma_ucm", "ib_uverbs"])?;
    match config.device {
        Device::Rxe => run("modprobe", &["rdma_rxe"]).map(drop)?,
        Device::Siw => {}
    }
    for module in &config.kernel {
        machine::load(module)?;
    }
    run("ip", &["link", "set", "lo", "up"])?;
    // The distribution's fq_codel drops packets that a slow machine delays for 5 ms, and reports a
    // drop, if at all, for another packet. rxe answers a read with as many packets as it takes:
    // after a loss in the middle it sends the rest of a gigabyte in vain. So use a queue that drops
    // only when full, and then the last packet, which rxe retransmits.
    std::fs::write("/proc/sys/net/core/default_qdisc", "pfifo").context("choosing a queue")?;
    let name = match config.topology {
        Topology::Two => format!("node{}", config.nodes[0]),
        Topology::One | Topology::Netns => "guest".into(),
    };
    std::fs::write("/proc/sys/kernel/hostname", name).context("naming the guest")?;
    match config.topology {
        Topology::One => {
            run("ip", &["link", "add", "kfi1", "mtu", MTU, "type", "dummy"])?;
        }
        Topology::Netns => {
            for name in ["node1", "node2"] {
                run("ip", &["netns", "add", name])?;
                run("ip", &["-n", name, "link", "set", "lo", "up"])?;
            }
            let ends =
                "link add kfi1 mtu 4400 netns node1 type veth peer name kfi2 mtu 4400 netns node2";
            run("ip", &ends.split(' ').collect::<Vec<_>>())?;
        }
        Topology::Two => {}
    }
    for node in &config.nodes {
        node_up(config, *node).with_context(|| format!("node {node}"))?;
    }
    Ok(())
}

fn node_up(config: &Config, node: u8) -> Result<()> {
    let place = place(config.topology, config.device, node);
    let inside: Vec<&str> = place
        .netns
        .as_deref()
        .map(|netns| vec!["-n", netns])
        .unwrap_or_default();
    let ip = |line: &str| run("ip", &[inside.clone(), line.split(' ').collect()].concat());
    let Place {
        addr,
        addr6,
        netdev,
        dev,
        ..
    } = &place;
    // Before the device is up, because then it gets its queue.
    ip(&format!("link set {netdev} mtu {MTU} txqueuelen {QUEUE}"))?;
    ip(&format!("link set {netdev} up"))?;
    ip(&format!("addr add {addr}/24 dev {netdev}"))?;
    // Without duplicate address detection, which takes time.
    ip(&format!("addr add {addr6}/64 dev {netdev} nodad"))?;
    let kind = config.device.name();
    let link = format!("link add {dev} type {kind} netdev {netdev}");
    let link: Vec<&str> = link.split(' ').collect();
    match &place.netns {
        Some(netns) => {
            let exec = ["netns", "exec", netns.as_str(), "rdma"];
            run("ip", &[&exec[..], &link[..]].concat())
        }
        None => run("rdma", &link),
    }
    .map(drop)
}
