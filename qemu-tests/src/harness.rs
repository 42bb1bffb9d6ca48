// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runner of the tests: one process on each node, in lockstep.
//!
//! Node 1 leads. For each test it sends node 2 the name; both start a child process that runs the
//! test, and the two children share a TCP connection of their own ([`Ctl`]). Both wait for their
//! child and check for leftovers ([`leaks`]), and node 1 prints one result. A child that crashes or
//! hangs fails its test and nothing else.

pub mod caps;
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
pub const ONE: u16 = 1;
/// Runs between two network namespaces of one guest.
pub const NETNS: u16 = 2;
/// Runs between two guests.
pub const TWO: u16 = 4;
/// Is part of the short check of a kernel series.
pub const SMOKE: u16 = 8;
/// Runs between two guests, in runs with plenty of time.
pub const LONG: u16 = 16;
/// Runs over the intra-node provider, between two processes of one guest.
pub const SHM: u16 = 32;
/// Runs over the intra-node provider, in runs with plenty of time.
pub const SHM_LONG: u16 = 64;
/// Fails on purpose, to show how the test run judges.
pub const PLANTED: u16 = 128;
/// Runs over the intra-node provider, in a guest whose persistent memory loses its power.
pub const POWER_CUT: u16 = 256;
/// Runs over verbs between two network namespaces, in a guest whose persistent memory loses its power.
pub const POWER_CUT_VERBS: u16 = 512;
/// Runs on either provider between two nodes of one kernel.
pub const PAIR: u16 = NETNS | SHM;

/// A test of the list.
#[derive(Clone, Copy)]
pub struct Test {
    /// Unique name, `topic.subject_condition_expected`.
    pub name: &'static str,
    /// Topologies that the test runs in: [`ONE`], [`NETNS`], …
    pub topologies: u16,
    /// Seconds on a slow machine; the limit is ten times that, and at least 30.
    pub seconds: u32,
    /// Body of the test, run on both nodes at once.
    pub run: fn(&mut Ctx) -> Result<()>,
    /// Capabilities that the device must have ([`caps`]).
    pub needs: u32,
    /// Whether node 2 is lost afterwards; such a test comes last.
    pub loses_peer: bool,
}

impl Test {
    /// Creates a test of two nodes, of five seconds.
    pub const fn pair(name: &'static str, run: fn(&mut Ctx) -> Result<()>) -> Self {
        Self {
            name,
            topologies: PAIR,
            seconds: 5,
            run,
            needs: 0,
            loses_peer: false,
        }
    }

    /// Creates a test that needs no peer. It runs on both nodes of the namespace topology at once,
    /// and not also in a guest of one node, because it would show the same there.
    pub const fn alone(name: &'static str, run: fn(&mut Ctx) -> Result<()>) -> Self {
        Self {
            name,
            topologies: PAIR,
            seconds: 5,
            run,
            needs: 0,
            loses_peer: false,
        }
    }

    /// Sets the test's duration.
    #[must_use]
    pub const fn seconds(self, seconds: u32) -> Self {
        Self { seconds, ..self }
    }

    /// Sets the topologies that the test runs in.
    #[must_use]
    pub const fn on(self, topologies: u16) -> Self {
        Self { topologies, ..self }
    }

    /// Adds topologies that the test runs in.
    #[must_use]
    pub const fn also(self, topologies: u16) -> Self {
        Self {
            topologies: self.topologies | topologies,
            ..self
        }
    }

    /// Restricts the test to RDMA devices.
    #[must_use]
    pub const fn verbs(self) -> Self {
        Self {
            topologies: self.topologies & !(SHM | SHM_LONG),
            ..self
        }
    }

    /// Adds capabilities that the device must have ([`caps`]).
    #[must_use]
    pub const fn needs(self, caps: u32) -> Self {
        Self {
            needs: self.needs | caps,
            ..self
        }
    }

    /// Marks a test that loses node 2.
    #[must_use]
    pub const fn loses_peer(self) -> Self {
        Self {
            loses_peer: true,
            ..self
        }
    }

    /// Returns the time limit on a kernel without checkers.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(u64::from(self.seconds.max(3)) * 10)
    }
}

/// Environment of a running test, and the line to its other half.
pub struct Ctx {
    /// Node of this half, and its peer.
    pub env: Env,
    /// The line to the other half.
    pub ctl: Ctl,
}

impl Ctx {
    /// Returns whether this is node 1, the listening side.
    pub fn first(&self) -> bool {
        self.env.node == 1
    }

    /// Returns the provider under test.
    pub fn provider(&self) -> &str {
        &self.env.provider
    }

    /// Waits until the other half is at the same place.
    ///
    /// # Errors
    ///
    /// If it is elsewhere, has ended, or is late.
    pub fn barrier(&mut self, label: &str) -> Result<()> {
        self.ctl.barrier(label)
    }
}
