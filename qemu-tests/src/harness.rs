// SPDX-License-Identifier: MIT OR Apache-2.0

//! What runs the tests: two runners, one on each node, in lockstep.
//!
//! Node 1 leads. For each test it tells node 2 its name; both start a child
//! process that runs the test, the two children joined by a TCP connection of
//! their own ([`Ctl`]); both wait for their child, look for what it left
//! behind ([`leaks`]) and node 1 prints one result. A child that crashes or
//! hangs fails its test and nothing else.

pub mod child;
pub mod ctl;
pub mod env;
pub mod guest;
pub mod leaks;
pub mod result;
pub mod runner;
pub mod trace;
pub mod weather;

pub use ctl::Ctl;
pub use env::{Env, Topology};
pub use result::{skip, Outcome, Skip, Status, WRONG_DATA};

use anyhow::Result;
use std::time::Duration;

/// Runs on one node only, no peer.
pub const ONE: u8 = 1;
/// Runs between two network namespaces of one guest.
pub const NETNS: u8 = 2;
/// Runs between two guests.
pub const TWO: u8 = 4;
/// Is part of the short check of a kernel series.
pub const SMOKE: u8 = 8;
/// Runs between two guests, when there is plenty of time.
pub const LONG: u8 = 16;
/// Runs over the intra-node provider, between two processes of one guest.
pub const SHM: u8 = 32;
/// … when there is plenty of time.
pub const SHM_LONG: u8 = 64;
/// Fails on purpose, to show how the test run judges.
pub const PLANTED: u8 = 128;
/// Runs on either provider between two nodes of one kernel.
pub const PAIR: u8 = NETNS | SHM;

/// One test.
#[derive(Clone, Copy)]
pub struct Test {
    /// `topic.what_holds`, unique.
    pub name: &'static str,
    /// Where it runs: [`ONE`], [`NETNS`], …
    pub topologies: u8,
    /// Seconds it takes on a slow machine; the limit is ten times that, and 30 at least.
    pub seconds: u32,
    /// The test, run on both nodes at once.
    pub run: fn(&mut Ctx) -> Result<()>,
    /// Node 2 is gone for good afterwards; such a test comes last.
    pub loses_peer: bool,
}

impl Test {
    /// A test of two nodes, five seconds.
    pub const fn pair(name: &'static str, run: fn(&mut Ctx) -> Result<()>) -> Self {
        Self {
            name,
            topologies: PAIR,
            seconds: 5,
            run,
            loses_peer: false,
        }
    }

    /// A test that needs no peer. It runs on both nodes of the namespace topology at once, and not
    /// in a guest of one node besides, because it asks the same there.
    pub const fn alone(name: &'static str, run: fn(&mut Ctx) -> Result<()>) -> Self {
        Self {
            name,
            topologies: PAIR,
            seconds: 5,
            run,
            loses_peer: false,
        }
    }

    /// … that takes so long.
    #[must_use]
    pub const fn seconds(self, seconds: u32) -> Self {
        Self { seconds, ..self }
    }

    /// … that runs there instead.
    #[must_use]
    pub const fn on(self, topologies: u8) -> Self {
        Self { topologies, ..self }
    }

    /// … that runs there too.
    #[must_use]
    pub const fn also(self, topologies: u8) -> Self {
        Self {
            topologies: self.topologies | topologies,
            ..self
        }
    }

    /// … that is about RDMA devices, and not about what every provider does.
    #[must_use]
    pub const fn verbs(self) -> Self {
        Self {
            topologies: self.topologies & !(SHM | SHM_LONG),
            ..self
        }
    }

    /// … after which node 2 is gone.
    #[must_use]
    pub const fn loses_peer(self) -> Self {
        Self {
            loses_peer: true,
            ..self
        }
    }

    /// When it has failed, on a kernel without checkers.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(u64::from(self.seconds.max(3)) * 10)
    }
}

/// What a test knows about where it runs, and its line to its other half.
pub struct Ctx {
    /// This node and its peer.
    pub env: Env,
    /// The line to the other half.
    pub ctl: Ctl,
}

impl Ctx {
    /// Whether this is node 1, which listens where it matters.
    pub fn first(&self) -> bool {
        self.env.node == 1
    }

    /// The provider under test.
    pub fn provider(&self) -> &str {
        &self.env.provider
    }

    /// Waits until the other half is here too.
    ///
    /// # Errors
    ///
    /// When it is elsewhere, gone, or late.
    pub fn barrier(&mut self, label: &str) -> Result<()> {
        self.ctl.barrier(label)
    }
}
