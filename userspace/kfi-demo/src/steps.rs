// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests of node 2 to node 1, as numbers of control messages, and the output of steps.
//!
//! A request is a `Step`, whose first number is the request. The answer is a `StepDone`; each
//! request describes the numbers of its answer.

use std::time::Duration;

/// A request of node 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Ask {
    /// Describe the exported file. Answer: bytes, then SHA-256 in four words.
    Facts = 1,
    /// Assign a key. n: slot, memory (0 the file, 1 the scratch), offset, length, rights.
    /// Answer: address, key, nanoseconds.
    Assign = 2,
    /// Revoke the key of a slot. n: slot. Answer: nanoseconds.
    Revoke = 3,
    /// Compute the SHA-256 of the present content. n: memory. Answer: four words.
    Digest = 4,
    /// Assign and revoke many times. n: count, bytes of the window. Answer: total nanoseconds of
    /// assigning, and of revoking.
    Cycle = 5,
    /// The demo has ended successfully.
    End = 6,
    /// Confirm the connection: node 1 is connected a little later than node 2.
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

/// Number of key slots on node 1.
pub(crate) const SLOTS: usize = 4;
/// Bytes of the scratch memory.
pub(crate) const SCRATCH: usize = 64 << 10;
/// Number of the file as a memory.
pub(crate) const FILE: u64 = 0;
/// Number of the scratch memory as a memory.
pub(crate) const SCRATCH_MEMORY: u64 = 1;

/// Prints a successful step, with its figure.
pub(crate) fn step(text: &str, figure: &str) {
    say(&format!("  ok  {text:<70} {figure:>20}"));
}

/// Prints a line. A failure is ignored: the exit status reports the outcome.
pub(crate) fn say(line: &str) {
    let _ = kfi::cmd::print(&format!("{line}\n"));
}

/// Formats a time, in the unit that reads best.
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
    fn took_picks_the_unit_by_size() {
        assert_eq!(took(Duration::from_nanos(56_710)), "56.7 us");
        assert_eq!(took(Duration::from_micros(59_286)), "59.3 ms");
        assert_eq!(took(Duration::from_millis(5346)), "5.35 s");
    }
}
