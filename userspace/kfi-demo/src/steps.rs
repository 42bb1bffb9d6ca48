// SPDX-License-Identifier: MIT OR Apache-2.0
//! What node 2 asks of node 1, in the numbers of a control message, and how steps are printed.
//!
//! A request is a `Step`: its first number says what. The answer is a `StepDone` with the numbers
//! that stand with each request.

use std::time::Duration;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Ask {
    /// What is exported? Answer: bytes, then SHA-256 in four words.
    Facts = 1,
    /// Assign a key. n: slot, memory (0 the file, 1 the scratch), offset, length, rights.
    /// Answer: address, key, nanoseconds.
    Assign = 2,
    /// Revoke the key of a slot. n: slot. Answer: nanoseconds.
    Revoke = 3,
    /// SHA-256 of what is exported, now. n: memory. Answer: four words.
    Digest = 4,
    /// Assign and revoke many times. n: how often, bytes of the window. Answer: nanoseconds of all
    /// assigns, of all revokes.
    Cycle = 5,
    /// It is over, and all was well.
    End = 6,
    /// Are you there? Node 1 knows of a connection a little later than node 2.
    Ready = 7,
}

impl Ask {
    pub(crate) fn from_u64(n: u64) -> Option<Self> {
        let all = [
            Self::Facts,
            Self::Assign,
            Self::Revoke,
            Self::Digest,
            Self::Cycle,
            Self::End,
            Self::Ready,
        ];
        all.into_iter().find(|ask| *ask as u64 == n)
    }
}

/// Key slots that node 1 has.
pub(crate) const SLOTS: usize = 4;
/// Bytes of the scratch memory.
pub(crate) const SCRATCH: usize = 64 << 10;
/// The file, as a memory.
pub(crate) const FILE: u64 = 0;
/// The scratch memory, as a memory.
pub(crate) const SCRATCH_MEMORY: u64 = 1;

/// Prints a step that went as it should, with its figure.
pub(crate) fn step(text: &str, figure: &str) {
    say(&format!("  ok  {text:<70} {figure:>20}"));
}

/// Prints a line. That nobody takes it changes nothing: the exit status tells how it went.
pub(crate) fn say(line: &str) {
    let _ = kfi::cmd::print(&format!("{line}\n"));
}

/// A time, in the unit that reads best.
pub(crate) fn took(time: Duration) -> String {
    let us = time.as_secs_f64() * 1e6;
    match us {
        ..1e4 => format!("{us:.1} us"),
        ..1e6 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_that_reads_well() {
        assert_eq!(took(Duration::from_nanos(56_710)), "56.7 us");
        assert_eq!(took(Duration::from_micros(59_286)), "59.3 ms");
        assert_eq!(took(Duration::from_millis(5346)), "5.35 s");
    }
}
