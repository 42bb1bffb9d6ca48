// SPDX-License-Identifier: MIT OR Apache-2.0

//! A node's workers: started, killed, stopped, started again, judged.

use super::plan::{PAIRS, WORKERS};
use super::worker::{Page, Want, Worker, PAGE};
use crate::harness::child::where_it_is;
use crate::harness::guest::memory_group;
use crate::harness::Env;
use crate::sys::{self, Ended, Map};
use crate::tests::stress::Rng;
use anyhow::{bail, Context, Result};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time within which a killed process must die.
const DYING: Duration = Duration::from_secs(60);
/// Memory limit of a worker in a control group.
const LITTLE: &str = "10M";

struct Slot {
    pid: i32,
    want: Want,
    /// Number of lives so far.
    lives: u64,
    /// Time when the stopped worker continues.
    stopped: Option<Instant>,
}

/// The workers of a node.
pub struct Crew {
    env: Env,
    seed: u64,
    board: Map,
    slots: Vec<Slot>,
    /// True if new workers lack resources.
    want: bool,
    groups: Option<PathBuf>,
}

impl Crew {
    /// Starts a node's workers.
    ///
    /// # Errors
    ///
    /// If they cannot be started.
    pub fn new(env: &Env, seed: u64) -> Result<Self> {
        let mut crew = Self {
            env: env.clone(),
            seed,
            board: Map::shared(WORKERS as usize * PAGE)?,
            slots: Vec::new(),
            want: true,
            groups: groups(env.node),
        };
        open_to_all();
        for slot in 0..WORKERS {
            crew.slots.push(Slot {
                pid: 0,
                want: Want::Nothing,
                lives: 0,
                stopped: None,
            });
            crew.start(slot)?;
        }
        Ok(crew)
    }

    fn page(&self, slot: u32) -> Page<'_> {
        Page::new(&self.board, slot)
    }

    /// Starts a slot's next life, whose work depends on the seed alone.
    fn start(&mut self, slot: u32) -> Result<()> {
        let lives = self.slots[slot as usize].lives;
        let seed = self.seed ^ u64::from(self.env.node) << 56 ^ u64::from(slot) << 48 ^ lives << 20;
        let mut rng = Rng::of(!seed);
        // Workers that run alone may lack memory; workers of pairs need all they have.
        let want = match rng.below(6) {
            _ if !self.want => Want::Nothing,
            0 => Want::Files,
            1 => Want::Pins,
            2 if slot >= PAIRS && self.groups.is_some() => Want::Memory,
            _ => Want::Nothing,
        };
        let group = self.groups.as_ref().filter(|_| want == Want::Memory);
        let pid = sys::fork(|| {
            sys::die_with_parent();
            if let Some(group) = group {
                let _ = fs::write(group.join("cgroup.procs"), "0");
            }
            Worker::new(&self.env, slot, seed, want, &self.board).live()
        })
        .context("starting a worker")?;
        self.slots[slot as usize] = Slot {
            pid,
            want,
            lives: lives + 1,
            stopped: None,
        };
        Ok(())
    }

    /// Collects exited workers, and starts others in their place.
    ///
    /// # Errors
    ///
    /// If a worker reported an error, or was killed by a signal that the storm does not send.
    pub fn tend(&mut self) -> Result<()> {
        for slot in 0..WORKERS {
            let s = &self.slots[slot as usize];
            if s.stopped.is_some_and(|end| Instant::now() >= end) {
                sys::kill(s.pid, libc::SIGCONT)?;
                self.slots[slot as usize].stopped = None;
            }
            let s = &self.slots[slot as usize];
            if let Some(end) = sys::try_wait_pid(s.pid)? {
                self.judge(slot, end)?;
                self.start(slot)?;
            }
        }
        Ok(())
    }

    fn judge(&self, slot: u32, end: Ended) -> Result<()> {
        // The kernel kills a worker that takes too much memory, or one near it.
        if end == Ended::Signal(libc::SIGKILL) {
            return Ok(());
        }
        let page = self.page(slot);
        bail!(
            "worker {slot} of node {} (life {}, lacking {:?}) ended with {end:?}: {}; it was {}",
            self.env.node,
            self.slots[slot as usize].lives,
            self.slots[slot as usize].want,
            page.fault(),
            page.step()
        )
    }

    /// Kills a worker; another takes its place, now or at the next [`Crew::tend`].
    ///
    /// # Errors
    ///
    /// If there is no such worker.
    pub fn kill(&mut self, slot: u32) -> Result<()> {
        Ok(sys::kill(self.slots[slot as usize].pid, libc::SIGKILL)?)
    }

    /// Stops a worker for a while.
    ///
    /// # Errors
    ///
    /// If there is no such worker.
    pub fn stop(&mut self, slot: u32, length: Duration) -> Result<()> {
        let s = &mut self.slots[slot as usize];
        s.stopped = Some(Instant::now() + length);
        Ok(sys::kill(s.pid, libc::SIGSTOP)?)
    }

    /// Kills all workers and waits until they are dead. No others take their place.
    ///
    /// # Errors
    ///
    /// If a worker does not die, or had an error just before.
    pub fn kill_all(&mut self) -> Result<()> {
        for s in self.slots.iter().filter(|s| s.pid != 0) {
            // The worker may have exited and been collected.
            let _ = sys::kill(s.pid, libc::SIGKILL);
        }
        for slot in 0..WORKERS {
            let pid = self.slots[slot as usize].pid;
            if pid == 0 {
                continue;
            }
            let end = sys::wait_pid(pid, DYING)?.with_context(|| {
                format!(
                    "worker {slot} cannot be killed; it was {} {}",
                    self.page(slot).step(),
                    where_it_is(pid)
                )
            })?;
            self.judge(slot, end)?;
            self.slots[slot as usize].pid = 0;
        }
        Ok(())
    }

    /// Starts a worker in every empty place.
    ///
    /// # Errors
    ///
    /// If a worker cannot be started.
    pub fn fill(&mut self) -> Result<()> {
        open_to_all();
        (0..WORKERS)
            .filter(|slot| self.slots[*slot as usize].pid == 0)
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|slot| self.start(slot))
    }

    /// Ends all shortages and stops.
    ///
    /// # Errors
    ///
    /// If a worker no longer exists.
    pub fn relieve(&mut self) -> Result<()> {
        self.want = false;
        open_to_all();
        for s in &mut self.slots {
            if s.stopped.take().is_some() {
                sys::kill(s.pid, libc::SIGCONT)?;
            }
            if s.want != Want::Nothing {
                sys::kill(s.pid, libc::SIGKILL)?;
            }
        }
        Ok(())
    }

    /// Returns the number of completed cycles of every slot.
    pub fn cycles(&self) -> Vec<u64> {
        (0..WORKERS).map(|slot| self.page(slot).cycles()).collect()
    }

    /// Returns the steps of workers that completed no cycle since `before`.
    pub fn idle_since(&self, before: &[u64]) -> Vec<String> {
        (0..WORKERS)
            .filter(|slot| self.page(*slot).cycles() == before[*slot as usize])
            .map(|slot| {
                format!(
                    "worker {slot} of node {} is {} {}",
                    self.env.node,
                    self.page(slot).step(),
                    where_it_is(self.slots[slot as usize].pid)
                )
            })
            .collect()
    }

    /// Ends all workers.
    ///
    /// # Errors
    ///
    /// The errors of [`Crew::kill_all`].
    pub fn end(&mut self) -> Result<()> {
        let ended = self.kill_all();
        if let Some(group) = self.groups.take() {
            let _ = fs::remove_dir(group);
        }
        ended
    }

    /// Returns a summary of the crew's work.
    pub fn summary(&self) -> String {
        let slots: Vec<String> = (0..WORKERS)
            .map(|slot| {
                let page = self.page(slot);
                format!(
                    "{}: {} lives, {} done, {} disturbed",
                    slot,
                    self.slots[slot as usize].lives,
                    page.cycles(),
                    page.troubles()
                )
            })
            .collect();
        slots.join("; ")
    }
}

/// Opens the device file to all users, because some workers are unprivileged.
fn open_to_all() {
    use std::os::unix::fs::PermissionsExt;
    let all = fs::Permissions::from_mode(0o666);
    let _ = fs::set_permissions(crate::raw::device_path(), all);
}

/// Creates a control group with little memory, if the kernel has any.
fn groups(node: u8) -> Option<PathBuf> {
    let group = memory_group(&format!("storm-{node}"))?;
    fs::write(group.join("memory.max"), LITTLE).ok()?;
    Some(group)
}
