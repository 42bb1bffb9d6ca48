// SPDX-License-Identifier: MIT OR Apache-2.0

//! One worker's life: its repeated work, the errors that it may meet, and the page on which it
//! records its progress.

use super::plan::PAIRS;
use super::{churn, session};
use crate::harness::Env;
use crate::pair::Side;
use crate::raw::CallError;
use crate::sys::{self, Map};
use crate::tests::stress::Rng;
use anyhow::{anyhow, Result};
use std::fmt;
use std::time::Duration;

/// Time limit of a worker's waits: the provider's bound for a silent peer, and as much again for a
/// slow machine.
pub const BOUND: Duration = Duration::from_secs(40);

/// Error of a worker that lost a resource to the storm; neither the worker nor kfabric is at fault.
#[derive(Debug)]
pub struct Disturbed(pub String);

impl fmt::Display for Disturbed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Disturbed {}

/// Ends a worker's step because the storm disturbed it.
///
/// # Errors
///
/// Always.
pub fn disturbed<T>(why: impl Into<String>) -> Result<T> {
    Err(Disturbed(why.into()).into())
}

/// Errnos that a call may return during a storm.
const TOLERABLE: &[i32] = &[
    libc::ENOENT,
    libc::ENXIO,
    libc::EAGAIN,
    libc::ENOMEM,
    libc::ENODEV,
    libc::ENFILE,
    libc::EMFILE,
    libc::EACCES,
    libc::ENODATA,
    libc::EADDRINUSE,
    libc::EADDRNOTAVAIL,
    libc::ENETUNREACH,
    libc::EHOSTUNREACH,
    libc::ENOTCONN,
    libc::ECONNRESET,
    libc::ECONNABORTED,
];

/// Returns whether an error only shows that a worker was disturbed.
fn is_tolerable(e: &anyhow::Error) -> bool {
    if e.is::<Disturbed>() {
        return true;
    }
    let errno = e
        .downcast_ref::<CallError>()
        .map(|c| c.errno.0)
        .or_else(|| e.downcast_ref::<sys::Errno>().map(|e| e.0));
    errno.is_some_and(|e| TOLERABLE.contains(&e))
}

/// Resource that a worker lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The worker lacks nothing.
    Nothing,
    /// Memory that it may pin.
    Pins,
    /// Descriptors.
    Files,
    /// Memory: the worker is in a control group with little.
    Memory,
}

/// A worker's page, which outlives the worker.
pub struct Page<'a> {
    map: &'a Map,
    at: usize,
}

/// Bytes of a page.
pub const PAGE: usize = 4096;
const CYCLES: usize = 0;
const TROUBLES: usize = 8;
const TEXT_LEN: usize = 16;
const TEXT: usize = 24;
const STEP: usize = 2048;

impl<'a> Page<'a> {
    /// Returns the page of a slot.
    pub fn new(map: &'a Map, slot: u32) -> Self {
        Self {
            map,
            at: slot as usize * PAGE,
        }
    }

    fn add(&self, off: usize) {
        let at = self.at + off;
        self.map.set64(at, self.map.get64(at) + 1);
    }

    /// Returns how many cycles the slot's workers have completed.
    pub fn cycles(&self) -> u64 {
        self.map.get64(self.at + CYCLES)
    }

    /// Returns how often they were disturbed.
    pub fn troubles(&self) -> u64 {
        self.map.get64(self.at + TROUBLES)
    }

    /// Returns the recorded error.
    pub fn fault(&self) -> String {
        let len = (self.map.get64(self.at + TEXT_LEN) as usize).min(STEP - TEXT);
        let mut text = vec![0; len];
        self.map.read(self.at + TEXT, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    fn set_fault(&self, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(STEP - TEXT)];
        self.map.write(self.at + TEXT, bytes);
        self.map.set64(self.at + TEXT_LEN, bytes.len() as u64);
    }

    /// Returns the worker's current or last step.
    pub fn step(&self) -> String {
        let mut text = [0; 64];
        self.map.read(self.at + STEP, &mut text);
        let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
        String::from_utf8_lossy(&text[..end]).into_owned()
    }
}

/// A worker.
pub struct Worker<'a> {
    /// Node on which the worker runs.
    pub env: &'a Env,
    /// Slot of the worker.
    pub slot: u32,
    /// Generator of the worker's choices.
    pub rng: Rng,
    /// Resource that the worker lacks.
    pub want: Want,
    page: Page<'a>,
}

impl<'a> Worker<'a> {
    /// Creates a worker of a slot.
    pub fn new(env: &'a Env, slot: u32, seed: u64, want: Want, board: &'a Map) -> Self {
        Self {
            env,
            slot,
            rng: Rng::of(seed),
            want,
            page: Page::new(board, slot),
        }
    }

    /// Records the next step.
    pub fn at(&self, step: &str) {
        let mut text = [0; 64];
        let bytes = &step.as_bytes()[..step.len().min(63)];
        text[..bytes.len()].copy_from_slice(bytes);
        self.page.map.write(self.page.at + STEP, &text);
    }

    /// Records a completed cycle.
    pub fn done(&self) {
        self.page.add(CYCLES);
    }

    /// Returns true once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.rng.below(n) == 0
    }

    /// Opens the worker's side.
    ///
    /// # Errors
    ///
    /// [`Disturbed`] if there is no device, else the errno of the failed call.
    pub fn side(&self) -> Result<Side> {
        self.at("opening");
        Side::of(self.env).map_err(|e| match e.downcast_ref::<CallError>() {
            Some(_) => e,
            None => anyhow!(Disturbed(format!("{e:#}"))),
        })
    }

    /// Works until killed. Returns the exit status after an error.
    pub fn live(&mut self) -> i32 {
        if let Err(e) = self.lack() {
            self.page
                .set_fault(&format!("lacking {:?}: {e:#}", self.want));
            return 1;
        }
        loop {
            let result = match (self.slot < PAIRS, self.serves()) {
                (true, true) => session::serve(self),
                (true, false) => session::use_it(self),
                (false, _) => churn::turn(self),
            };
            match result {
                Ok(()) => {}
                Err(e) if is_tolerable(&e) => {
                    self.page.add(TROUBLES);
                    let Self { slot, env, .. } = self;
                    eprintln!("{}.{slot}: {} ({e:#})", env.node, self.page.step());
                    std::thread::sleep(Duration::from_millis(20 + self.rng.below(60)));
                }
                Err(e) => {
                    self.page
                        .set_fault(&format!("{} ({e:#})", self.page.step()));
                    return 1;
                }
            }
        }
    }

    /// Returns whether this half of its pair listens.
    fn serves(&self) -> bool {
        u32::from(self.env.node) % 2 == self.slot % 2
    }

    /// Gives up the worker's own resources. The crew sets the control group.
    fn lack(&self) -> Result<()> {
        match self.want {
            Want::Pins => {
                sys::set_limit(libc::RLIMIT_MEMLOCK, 160 << 10)?;
                sys::become_nobody()?;
                // Another user's process is not notified of its parent's death.
                sys::die_with_parent();
            }
            Want::Files => sys::set_limit(libc::RLIMIT_NOFILE, 12)?,
            Want::Nothing | Want::Memory => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_what_is_written() {
        let map = Map::shared(2 * PAGE).unwrap();
        let page = Page::new(&map, 1);
        page.add(CYCLES);
        page.set_fault(&"x".repeat(5000));
        assert_eq!((page.cycles(), page.troubles()), (1, 0));
        assert_eq!(page.fault().len(), STEP - TEXT);
        assert_eq!(Page::new(&map, 0).cycles(), 0);
    }

    #[test]
    fn a_hang_is_not_tolerable() {
        let call = |errno| {
            anyhow::Error::from(CallError {
                call: "x",
                errno: sys::Errno(errno),
            })
            .context("somewhere")
        };
        assert!(is_tolerable(&call(libc::ENODEV)));
        assert!(!is_tolerable(&call(libc::ETIMEDOUT)));
        assert!(!is_tolerable(&anyhow!("a wrong byte")));
        assert!(is_tolerable(
            &disturbed::<()>("cut").unwrap_err().context("x")
        ));
    }
}
