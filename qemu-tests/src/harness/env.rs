// SPDX-License-Identifier: MIT OR Apache-2.0

//! The environment of the tests, as set by the guest's first process.

use anyhow::{bail, Context, Result};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

/// Layout of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// A guest without a peer.
    One,
    /// A guest with two network namespaces.
    Netns,
    /// Two guests.
    Two,
    /// `Netns` or `Two`, with the few tests that a new kernel must pass.
    Smoke,
    /// Two guests, and the tests that take minutes each.
    Long,
    /// One guest, two processes, and the intra-node provider.
    Shm,
    /// `Shm` with the tests that take minutes each.
    ShmLong,
    /// Two network namespaces, and the tests that fail on purpose.
    Planted,
    /// `Shm` in a guest whose persistent memory loses its power.
    PowerCut,
    /// `Netns` in a guest whose persistent memory loses its power.
    PowerCutVerbs,
}

impl Topology {
    /// Returns the topology's bit in [`Test::topologies`](super::Test::topologies).
    pub fn bit(self) -> u16 {
        match self {
            Self::One => super::ONE,
            Self::Netns => super::NETNS,
            Self::Two => super::TWO,
            Self::Smoke => super::SMOKE,
            Self::Long => super::LONG,
            Self::Shm => super::SHM,
            Self::ShmLong => super::SHM_LONG,
            Self::Planted => super::PLANTED,
            Self::PowerCut => super::POWER_CUT,
            Self::PowerCutVerbs => super::POWER_CUT_VERBS,
        }
    }

    /// Returns the provider that the topology tests.
    fn provider(self) -> &'static str {
        match self {
            Self::Shm | Self::ShmLong | Self::PowerCut => "kshm",
            _ => "kverbs",
        }
    }

    /// Returns whether its nodes are on the same kernel.
    pub fn is_one_kernel(self) -> bool {
        matches!(
            self,
            Self::Netns
                | Self::Shm
                | Self::ShmLong
                | Self::Planted
                | Self::PowerCut
                | Self::PowerCutVerbs
        )
    }

    /// Returns the topology's name in results.
    pub fn place(self) -> &'static str {
        match self {
            Self::One => "1 node",
            Self::Netns => "netns",
            Self::Two => "2 nodes",
            Self::Smoke => "smoke",
            Self::Long => "2 nodes, long",
            Self::Shm => "kshm",
            Self::ShmLong => "kshm, long",
            Self::Planted => "planted",
            Self::PowerCut => "power cut",
            Self::PowerCutVerbs => "power cut, netns",
        }
    }
}

impl FromStr for Topology {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "1" => Self::One,
            "netns" => Self::Netns,
            "2" => Self::Two,
            "smoke" => Self::Smoke,
            "long" => Self::Long,
            "shm" => Self::Shm,
            "shm-long" => Self::ShmLong,
            "planted" => Self::Planted,
            "power-cut" => Self::PowerCut,
            "power-cut-netns" => Self::PowerCutVerbs,
            _ => bail!("no topology is called {text:?}: netns, 2, 1, smoke, long, shm, shm-long"),
        })
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "1",
            Self::Netns => "netns",
            Self::Two => "2",
            Self::Smoke => "smoke",
            Self::Long => "long",
            Self::Shm => "shm",
            Self::ShmLong => "shm-long",
            Self::Planted => "planted",
            Self::PowerCut => "power-cut",
            Self::PowerCutVerbs => "power-cut-netns",
        })
    }
}

/// A node, and its peer.
#[derive(Clone, Debug)]
pub struct Env {
    /// Layout of the nodes.
    pub topology: Topology,
    /// Number of the node: 1 or 2.
    pub node: u8,
    /// Address of the node.
    pub addr: IpAddr,
    /// Address of the peer; the node's own if it has no peer.
    pub peer: IpAddr,
    /// IPv6 address of the node, if any.
    pub addr6: Option<Ipv6Addr>,
    /// IPv6 address of the peer, if any.
    pub peer6: Option<Ipv6Addr>,
    /// Name of the RDMA device.
    pub dev: String,
    /// Name of the network device under the RDMA device.
    pub netdev: String,
    /// The kind of RDMA device, as `rdma link add` names it.
    pub device: String,
    /// Name of the provider under test.
    pub provider: String,
    /// Seed of random tests.
    pub seed: u64,
}

/// Returns a seed if none was given.
fn any_seed() -> u64 {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
    // Short enough to be typed.
    now.map_or(1, |t| u64::from(t.subsec_micros()))
}

fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

impl Env {
    /// Reads the environment.
    ///
    /// # Errors
    ///
    /// If a variable is missing or unreadable.
    pub fn read(topology: Topology) -> Result<Self> {
        let addr: IpAddr = var("KFI_ADDR")
            .context("KFI_ADDR is not set")?
            .parse()
            .context("KFI_ADDR")?;
        let peer = match var("KFI_PEER") {
            Some(text) => text.parse().context("KFI_PEER")?,
            None => addr,
        };
        let six = |name: &str| -> Result<Option<Ipv6Addr>> {
            let Some(text) = var(name) else {
                return Ok(None);
            };
            let bare = text.split('%').next().unwrap_or_default();
            Ok(Some(bare.parse().with_context(|| name.to_owned())?))
        };
        Ok(Self {
            topology,
            node: var("KFI_NODE")
                .map_or(Ok(1), |v| v.parse())
                .context("KFI_NODE")?,
            addr,
            peer,
            addr6: six("KFI_ADDR6")?,
            peer6: six("KFI_PEER6")?,
            dev: var("KFI_DEV").unwrap_or_else(|| "rxe0".into()),
            device: var("KFI_DEVICE").unwrap_or_else(|| "rxe".into()),
            netdev: var("KFI_NETDEV").unwrap_or_else(|| "eth0".into()),
            provider: var("KFI_PROVIDER").unwrap_or_else(|| topology.provider().into()),
            seed: match var("KFI_SEED") {
                Some(text) => text.parse().context("KFI_SEED")?,
                None => any_seed(),
            },
        })
    }

    /// Returns whether the node has a peer.
    pub fn has_peer(&self) -> bool {
        self.peer != self.addr
    }

    /// Returns the node's address with a port.
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.addr, port)
    }

    /// Returns the peer's address with a port.
    pub fn peer_at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.peer, port)
    }

    /// Returns the node's IPv6 address with a port.
    pub fn at6(&self, port: u16) -> Option<SocketAddr> {
        Some(SocketAddr::V6(SocketAddrV6::new(
            self.addr6?,
            port,
            0,
            self.scope()?,
        )))
    }

    /// Returns the peer's IPv6 address with a port.
    pub fn peer_at6(&self, port: u16) -> Option<SocketAddr> {
        Some(SocketAddr::V6(SocketAddrV6::new(
            self.peer6?,
            port,
            0,
            self.scope()?,
        )))
    }

    /// Returns the network device's index if the address needs one, else 0.
    fn scope(&self) -> Option<u32> {
        let link_local = self.addr6?.segments()[0] & 0xffc0 == 0xfe80;
        if !link_local {
            return Some(0);
        }
        let path = format!("/sys/class/net/{}/ifindex", self.netdev);
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}
