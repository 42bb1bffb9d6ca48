// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plan of one test of `kfi ping`, in the form that both sides exchange.

use std::ops::Range;

use kfabric::{Access, Domain, Memory, Region, Segment};

use crate::error::{During, Result};
use crate::session::Conn;
use crate::wire::{Kind, Msg, Shape};

/// The operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Messages.
    Send,
    /// One-sided writes.
    Write,
    /// One-sided reads.
    Read,
}

/// The plan of one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The operation to measure.
    pub operation: Operation,
    /// Many operations at a time, to measure bandwidth.
    pub bandwidth: bool,
    /// Bytes of an operation.
    pub size: usize,
    /// Number of operations, including the warm-up.
    pub count: u64,
    /// Set if data is to be checked.
    pub verify: bool,
    /// Maximum number of outstanding operations.
    pub window: usize,
}

/// Size of the buffer that the window should not exceed.
const BUFFER: usize = 64 << 20;

impl Plan {
    /// The window for a size: as large as the endpoint allows, within `BUFFER` if possible.
    pub fn window_for(bandwidth: bool, size: usize) -> usize {
        if !bandwidth {
            return 1;
        }
        (BUFFER / size.max(1)).clamp(2, Conn::DEPTH as usize)
    }

    /// Encodes the plan as a message.
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

    /// Decodes a message; `None` if the plan is invalid.
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
        // Refuses buffers larger than any that a kfi client requests.
        let sane =
            plan.window == Self::window_for(plan.bandwidth, plan.size) && plan.size <= 1 << 40;
        sane.then_some(plan)
    }

    /// The data messages that the test needs on its connection.
    pub fn shape(&self) -> Shape {
        match self.operation {
            Operation::Send => Shape {
                bytes: self.size,
                window: self.window,
            },
            _ => Shape::default(),
        }
    }

    /// Bytes of memory that the server registers for the test.
    pub fn bytes(&self) -> u64 {
        match self.operation {
            Operation::Send => 0,
            _ => (self.stride() as u64).saturating_mul(self.window as u64 + 1),
        }
    }

    fn stride(&self) -> usize {
        self.size.max(1)
    }

    /// Registers a buffer: a slot for each operation of the window, and one to compare with.
    ///
    /// # Errors
    ///
    /// The errors of registering.
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

    /// A slot, as local memory of an operation.
    pub fn segment<'r>(&self, region: &'r Region, slot: usize) -> Segment<'r> {
        region.segment(self.range(slot))
    }

    /// The bytes of message `number`.
    pub fn pattern(&self, number: u64) -> Vec<u8> {
        let seed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let byte = |i: usize| (seed.wrapping_mul(i as u64 + 1) >> 32) as u8;
        (0..self.size).map(byte).collect()
    }

    /// Returns whether a slot holds message `number`.
    pub fn matches(&self, region: &Region, slot: usize, number: u64) -> bool {
        let range = self.range(slot);
        region.to_vec(range.start, range.len()) == self.pattern(number)
    }

    /// Writes message `number` into a slot.
    pub fn fill(&self, region: &Region, slot: usize, number: u64) {
        region.write_at(self.range(slot).start, &self.pattern(number));
    }

    /// Clears a slot, so that a missing message is detected.
    pub fn clear(&self, region: &Region, slot: usize) {
        region.fill(self.range(slot).start, self.size, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_encoded_and_decoded_is_equal() {
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
    fn pattern_of_another_number_differs() {
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
