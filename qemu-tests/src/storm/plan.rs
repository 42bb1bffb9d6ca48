// SPDX-License-Identifier: MIT OR Apache-2.0

//! The schedule of blows: a list made from a seed alone.

use crate::harness::Topology;
use crate::tests::stress::Rng;
use std::fmt;
use std::time::Duration;

/// Number of pairs. Workers are numbered by slot: first pairs, whose halves have the same number on
/// both nodes, then loners.
pub const PAIRS: u32 = 3;
/// Number of loners: see [`PAIRS`].
pub const LONERS: u32 = 2;
/// Number of workers of a node.
pub const WORKERS: u32 = PAIRS + LONERS;

/// Wire faults, as netem spells them.
const WEATHERS: [&str; 6] = [
    "loss 3%",
    "delay 2ms 1ms reorder 10% 25%",
    "duplicate 10%",
    "corrupt 2%",
    "loss 100%",
    crate::tests::hosts::MIXED,
];

/// A blow to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// A worker is killed.
    Kill(u32),
    /// All workers are killed at once.
    KillAll,
    /// A worker is frozen for a while.
    Stop(u32, Duration),
    /// The network device is down for a while.
    Down(Duration),
    /// The cable is pulled for a while.
    Unplug(Duration),
    /// The RDMA device is deleted, and created again after a while.
    Delete(Duration),
    /// The provider is unloaded, if it is unused, and loaded.
    Unload,
    /// Packets suffer faults for a while.
    Weather(&'static str, Duration),
    /// A process takes all memory for a while.
    Hog(Duration),
    /// A processor is taken offline for a while.
    Processor(Duration),
}

impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(slot) => write!(f, "kill worker {slot}"),
            Self::KillAll => write!(f, "kill all workers"),
            Self::Stop(slot, t) => write!(f, "stop worker {slot} for {} ms", t.as_millis()),
            Self::Down(t) => write!(f, "network device down for {} ms", t.as_millis()),
            Self::Unplug(t) => write!(f, "cable out for {} ms", t.as_millis()),
            Self::Delete(t) => write!(f, "rdma device gone for {} ms", t.as_millis()),
            Self::Unload => write!(f, "unload the provider"),
            Self::Weather(spec, t) => write!(f, "weather {spec:?} for {} ms", t.as_millis()),
            Self::Hog(t) => write!(f, "memory used up for {} ms", t.as_millis()),
            Self::Processor(t) => write!(f, "processor offline for {} ms", t.as_millis()),
        }
    }
}

/// A blow and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// Time since the beginning.
    pub at: Duration,
    /// Number of the node.
    pub node: u8,
    /// The blow.
    pub blow: Blow,
}

/// Kind of wire between the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// A cable: the nodes are guests of their own.
    Cable,
    /// Network devices of one guest.
    Devices,
    /// None: the nodes are processes of one guest, and use no device.
    None,
}

impl Wire {
    /// Returns the wire of a topology.
    pub fn of(topology: Topology) -> Self {
        match topology {
            Topology::Two => Self::Cable,
            Topology::Shm | Topology::ShmLong => Self::None,
            _ => Self::Devices,
        }
    }
}

/// All blows of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Blows in time order.
    pub actions: Vec<Action>,
    /// Length of the round.
    pub length: Duration,
    seed: u64,
}

impl Plan {
    /// Returns the plan of a seed.
    pub fn new(seed: u64, length: Duration, wire: Wire) -> Self {
        let mut rng = Rng::of(seed);
        let mut actions = Vec::new();
        let mut at = Duration::from_millis(300);
        loop {
            at += Duration::from_millis(60 + rng.below(700));
            if at >= length {
                break;
            }
            let node = 1 + rng.below(2) as u8;
            let blow = draw(&mut rng, wire);
            actions.push(Action { at, node, blow });
        }
        Self {
            actions,
            length,
            seed,
        }
    }

    /// Returns the plan as text, a line for each blow.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let head = format!(
            "seed {}: {} blows in {} s",
            self.seed,
            self.actions.len(),
            self.length.as_secs()
        );
        let blows = self.actions.iter().map(|a| {
            let at = a.at.as_secs_f64();
            format!("{at:7.3} s, node {}: {}", a.node, a.blow)
        });
        std::iter::once(head).chain(blows)
    }
}

fn draw(rng: &mut Rng, wire: Wire) -> Blow {
    let slot = rng.below(u64::from(WORKERS)) as u32;
    let length = |rng: &mut Rng, most: u64| Duration::from_millis(20 + rng.below(most));
    match rng.below(100) {
        0..36 => Blow::Kill(slot),
        36..40 => Blow::KillAll,
        40..54 => Blow::Stop(slot, length(rng, 2000)),
        54..70 if wire == Wire::None => Blow::Stop(slot, length(rng, 500)),
        54..94 if wire == Wire::None => Blow::Unload,
        54..60 if wire == Wire::Cable => Blow::Unplug(length(rng, 2500)),
        54..64 => Blow::Down(length(rng, 1500)),
        64..74 => Blow::Delete(length(rng, 1200)),
        74..84 => Blow::Unload,
        84..94 => {
            let spec = WEATHERS[rng.below(WEATHERS.len() as u64) as usize];
            Blow::Weather(spec, length(rng, 3000))
        }
        94..97 => Blow::Hog(length(rng, 1500)),
        _ => Blow::Processor(length(rng, 1500)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_one_plan() {
        let plan = |seed| Plan::new(seed, Duration::from_secs(60), Wire::Cable);
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7).actions, plan(8).actions);
        assert!(plan(7).lines().count() > 60);
    }

    #[test]
    fn blows_come_in_order_and_in_time() {
        for seed in 0..50 {
            let wire = [Wire::Cable, Wire::Devices, Wire::None][seed as usize % 3];
            let plan = Plan::new(seed, Duration::from_secs(20), wire);
            assert!(plan.actions.is_sorted_by_key(|a| a.at));
            assert!(plan.actions.iter().all(|a| a.at < plan.length));
            assert!(plan.actions.len() > 20, "{}", plan.actions.len());
        }
    }

    #[test]
    fn every_kind_of_blow_comes() {
        for (wire, kinds) in [(Wire::Cable, 10), (Wire::Devices, 9), (Wire::None, 6)] {
            let seen: std::collections::HashSet<_> = (0..50)
                .flat_map(|seed| Plan::new(seed, Duration::from_secs(20), wire).actions)
                .map(|a| std::mem::discriminant(&a.blow))
                .collect();
            assert_eq!(seen.len(), kinds, "{wire:?}");
        }
    }
}
