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

/// How long a process may take to die that was killed.
const DYING: Duration = Duration::from_secs(60);
/// Bytes that a worker in a control group may have.
const LITTLE: &str = "10M";

struct Slot {
    pid: i32,
    want: Want,
    /// Lives so far.
    lives: u64,
    /// When it moves again.
    stopped: Option<Instant>,
}

/// The workers of a node.
pub struct Crew {
    env: Env,
    seed: u64,
    board: Map,
    slots: Vec<Slot>,
    /// Whether new workers lack things.
    want: bool,
    groups: Option<PathBuf>,
}

impl Crew {
    /// Starts a node's workers.
    ///
    /// # Errors
    ///
    /// When they cannot be started.
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

    /// Starts a slot's next life. What it does depends on the seed and on nothing else.
    fn start(&mut self, slot: u32) -> Result<()> {
        let lives = self.slots[slot as usize].lives;
        let seed = self.seed ^ u64::from(self.env.node) << 56 ^ u64::from(slot) << 48 ^ lives << 20;
        let mut rng = Rng::of(!seed);
        // Memory is what those want that work alone; the others need all they have.
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

    /// Takes in workers that ended, and starts others in their place.
    ///
    /// # Errors
    ///
    /// When one ended that says that something is wrong, or by a signal that nobody sends.
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
        // Who takes too much memory, or is near to one who does, is killed by the kernel.
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
    /// When there is no such worker.
    pub fn kill(&mut self, slot: u32) -> Result<()> {
        Ok(sys::kill(self.slots[slot as usize].pid, libc::SIGKILL)?)
    }

    /// Stops a worker for a while.
    ///
    /// # Errors
    ///
    /// When there is no such worker.
    pub fn stop(&mut self, slot: u32, length: Duration) -> Result<()> {
        let s = &mut self.slots[slot as usize];
        s.stopped = Some(Instant::now() + length);
        Ok(sys::kill(s.pid, libc::SIGSTOP)?)
    }

    /// Kills all and waits until they are dead. No others take their place.
    ///
    /// # Errors
    ///
    /// When one does not die, or ended in another way just before.
    pub fn kill_all(&mut self) -> Result<()> {
        for s in self.slots.iter().filter(|s| s.pid != 0) {
            // It may have ended and been taken in.
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

    /// Starts a worker in every place that has none.
    ///
    /// # Errors
    ///
    /// When one cannot be started.
    pub fn fill(&mut self) -> Result<()> {
        open_to_all();
        (0..WORKERS)
            .filter(|slot| self.slots[*slot as usize].pid == 0)
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|slot| self.start(slot))
    }

    /// From now on nobody lacks anything, and nobody stands still.
    ///
    /// # Errors
    ///
    /// When there is no such worker any more.
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

    /// What every slot has got done so far.
    pub fn cycles(&self) -> Vec<u64> {
        (0..WORKERS).map(|slot| self.page(slot).cycles()).collect()
    }

    /// Where those are that have not got anything done since `before`.
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

    /// Ends it all.
    ///
    /// # Errors
    ///
    /// As [`Crew::kill_all`].
    pub fn end(&mut self) -> Result<()> {
        let ended = self.kill_all();
        if let Some(group) = self.groups.take() {
            let _ = fs::remove_dir(group);
        }
        ended
    }

    /// What it has done.
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

/// The device file's mode is the administrator's affair; some workers are nobody.
fn open_to_all() {
    use std::os::unix::fs::PermissionsExt;
    let all = fs::Permissions::from_mode(0o666);
    let _ = fs::set_permissions(crate::raw::device_path(), all);
}

/// A control group with little memory, where the kernel has such.
fn groups(node: u8) -> Option<PathBuf> {
    let group = memory_group(&format!("storm-{node}"))?;
    fs::write(group.join("memory.max"), LITTLE).ok()?;
    Some(group)
}
