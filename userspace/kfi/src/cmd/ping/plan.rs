// SPDX-License-Identifier: MIT OR Apache-2.0
//! One test of `kfi ping`, as both sides understand it.

use std::ops::Range;

use kfabric::{Access, Domain, Memory, Region, Segment};

use crate::error::{During, Result};
use crate::session::Conn;
use crate::wire::{Kind, Msg, Shape};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Messages.
    Send,
    /// One-sided writes.
    Write,
    /// One-sided reads.
    Read,
}

/// A test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What is measured.
    pub operation: Operation,
    /// Many at a time, instead of one.
    pub bandwidth: bool,
    /// Bytes of an operation.
    pub size: usize,
    /// Operations, with those of the warm-up.
    pub count: u64,
    /// Whether data is checked.
    pub verify: bool,
    /// Operations under way at a time.
    pub window: usize,
}

/// Bytes of buffer to stay within where the window allows it.
const BUFFER: usize = 64 << 20;

impl Plan {
    /// A window for a size: as many as the endpoint takes, but no more buffer than is reasonable.
    pub fn window_for(bandwidth: bool, size: usize) -> usize {
        if !bandwidth {
            return 1;
        }
        (BUFFER / size.max(1)).clamp(2, Conn::DEPTH as usize)
    }

    /// As a message.
    pub fn encode(&self) -> Msg {
        let operation = match self.operation {
            Operation::Send => 0,
            Operation::Write => 1,
            Operation::Read => 2,
        };
        let flag = |b: bool| u64::from(b);
        let (size, window) = (self.size as u64, self.window as u64);
        let numbers = [
            operation,
            flag(self.bandwidth),
            size,
            self.count,
            flag(self.verify),
            window,
        ];
        Msg::new(Kind::Test, &numbers)
    }

    /// From a message; `None` when it makes no sense.
    pub fn decode(msg: &Msg) -> Option<Self> {
        let [operation, bandwidth, size, count, verify, window, _] = msg.n;
        let plan = Self {
            operation: match operation {
                0 => Operation::Send,
                1 => Operation::Write,
                2 => Operation::Read,
                _ => return None,
            },
            bandwidth: bandwidth != 0,
            size: usize::try_from(size).ok()?,
            count,
            verify: verify != 0,
            window: usize::try_from(window).ok()?,
        };
        // No more buffer than a client of ours would ask for.
        let sane =
            plan.window == Self::window_for(plan.bandwidth, plan.size) && plan.size <= 1 << 40;
        sane.then_some(plan)
    }

    /// The data messages of the connection that it needs.
    pub fn shape(&self) -> Shape {
        match self.operation {
            Operation::Send => Shape {
                bytes: self.size,
                window: self.window,
            },
            _ => Shape::default(),
        }
    }

    /// Bytes of memory that the server registers for it.
    pub fn bytes(&self) -> u64 {
        match self.operation {
            Operation::Send => 0,
            _ => (self.stride() as u64).saturating_mul(self.window as u64 + 1),
        }
    }

    fn stride(&self) -> usize {
        self.size.max(1)
    }

    /// Registers a buffer with a slot for each operation of the window, and one to compare.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn register(&self, domain: &Domain) -> Result<Region> {
        let memory = Memory::anonymous(self.stride() * (self.window + 1)).during("allocate")?;
        domain
            .register(memory, Access::LOCAL | Access::REMOTE)
            .during("register")
    }

    fn range(&self, slot: usize) -> Range<usize> {
        let at = slot * self.stride();
        at..at + self.size
    }

    /// A slot, as an operation's memory.
    pub fn segment<'r>(&self, region: &'r Region, slot: usize) -> Segment<'r> {
        region.segment(self.range(slot))
    }

    /// The bytes of message `number`.
    pub fn pattern(&self, number: u64) -> Vec<u8> {
        let seed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let byte = |i: usize| (seed.wrapping_mul(i as u64 + 1) >> 32) as u8;
        (0..self.size).map(byte).collect()
    }

    /// Whether a slot holds message `number`.
    pub fn matches(&self, region: &Region, slot: usize, number: u64) -> bool {
        let range = self.range(slot);
        region.to_vec(range.start, range.len()) == self.pattern(number)
    }

    /// Puts message `number` into a slot.
    pub fn fill(&self, region: &Region, slot: usize, number: u64) {
        region.write_at(self.range(slot).start, &self.pattern(number));
    }

    /// Forgets a slot's message, so that one that does not come is noticed.
    pub fn clear(&self, region: &Region, slot: usize) {
        region.fill(self.range(slot).start, self.size, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_come_back_as_they_went() {
        let plan = Plan {
            operation: Operation::Read,
            bandwidth: true,
            size: 4096,
            count: 77,
            verify: true,
            window: Plan::window_for(true, 4096),
        };
        assert_eq!(Plan::decode(&plan.encode()), Some(plan));
        assert_eq!(
            Plan::decode(
                &Plan {
                    window: 1 << 40,
                    ..plan
                }
                .encode()
            ),
            None
        );
        assert_eq!(Plan::window_for(true, 1 << 30), 2);
        assert_eq!(Plan::window_for(true, 0), Conn::DEPTH as usize);
    }

    #[test]
    fn patterns_differ() {
        let plan = Plan {
            operation: Operation::Send,
            bandwidth: false,
            size: 64,
            count: 1,
            verify: true,
            window: 1,
        };
        assert_ne!(plan.pattern(0), plan.pattern(1));
        assert_ne!(plan.pattern(0), vec![0; 64]);
    }
}
