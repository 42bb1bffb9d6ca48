// SPDX-License-Identifier: MIT OR Apache-2.0

//! Executes the plan, undoes each blow in time, and restores the machine at the end.

use super::crew::Crew;
use super::plan::{Blow, Plan, Wire};
use crate::harness::child::where_it_is;
use crate::harness::guest::{ask_host, load, module_users, run, try_unload, unload};
use crate::harness::{weather, Env, Topology};
use crate::sys::{self, patience, Map};
use anyhow::{bail, ensure, Context, Result};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of a command that changes the machine.
const COMMAND: Duration = Duration::from_secs(60);
/// Memory that a hog leaves free.
const LEFT: u64 = 48 << 20;

/// A repair to be made later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repair {
    Up,
    Plug,
    Add,
    Fine,
    Hog(i32),
    Processor,
    /// The device may have suffered: see [`Chaos::mend`].
    Mend,
}

/// Blows on a node.
pub struct Chaos<'a> {
    env: &'a Env,
    repairs: Vec<(Instant, Repair)>,
}

impl<'a> Chaos<'a> {
    /// Returns a state without blows.
    pub fn new(env: &'a Env) -> Self {
        Self {
            env,
            repairs: Vec::new(),
        }
    }

    /// Executes the plan.
    ///
    /// # Errors
    ///
    /// If a worker reports an error, or a necessary step fails.
    pub fn run(&mut self, plan: &Plan, crew: &mut Crew) -> Result<()> {
        // By default a network device that goes down loses its addresses.
        let keep = format!("net.ipv6.conf.{}.keep_addr_on_down=1", self.env.netdev);
        let _ = run("sysctl", &["-qw", &keep]);
        let start = Instant::now();
        let mut blows = plan.actions.iter().peekable();
        while start.elapsed() < plan.length {
            crew.tend()?;
            self.repair(Instant::now())?;
            while let Some(action) = blows.next_if(|a| a.at <= start.elapsed()) {
                if action.node == self.env.node {
                    self.strike(action.blow, crew)
                        .with_context(|| action.blow.to_string())?;
                }
                // A blow to one end of a wire may cost the other end its device.
                if let Blow::Down(t) | Blow::Unplug(t) = action.blow {
                    self.later(t + Duration::from_millis(300), Repair::Mend);
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Restores the machine and waits until every worker has completed a cycle.
    ///
    /// # Errors
    ///
    /// If a worker does not, in time.
    pub fn calm(&mut self, crew: &mut Crew, limit: Duration) -> Result<()> {
        let end = Instant::now() + patience(limit);
        self.repair(far())?;
        weather::clear(self.env);
        crew.relieve()?;
        crew.tend()?;
        let before = crew.cycles();
        let mut mend = Instant::now();
        loop {
            crew.tend()?;
            let idle = crew.idle_since(&before);
            if idle.is_empty() {
                return Ok(());
            }
            if Instant::now() >= mend {
                self.mend()?;
                mend = Instant::now() + Duration::from_secs(2);
            }
            ensure!(
                Instant::now() < end,
                "nothing done in {} s of calm: {}",
                patience(limit).as_secs(),
                idle.join("; ")
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Makes all repairs after a failure: the nodes still have to talk.
    pub fn clear(&mut self) {
        weather::clear(self.env);
        // Each repair by itself, whether or not the others succeed.
        for what in std::mem::take(&mut self.repairs) {
            self.repairs = vec![what];
            if let Err(e) = self.repair(far()) {
                eprintln!("clearing up: {e:#}");
            }
        }
    }

    fn later(&mut self, after: Duration, what: Repair) {
        self.repairs.push((Instant::now() + after, what));
    }

    fn strike(&mut self, blow: Blow, crew: &mut Crew) -> Result<()> {
        match blow {
            Blow::Kill(slot) => crew.kill(slot)?,
            Blow::KillAll => {
                crew.kill_all()?;
                crew.fill()?;
            }
            Blow::Stop(slot, t) => crew.stop(slot, t)?,
            Blow::Down(t) => {
                self.command("ip", &["link", "set", &self.env.netdev, "down"])?;
                self.later(t, Repair::Up);
            }
            Blow::Unplug(t) => {
                ask_host("link off")?;
                self.later(t, Repair::Plug);
            }
            Blow::Delete(t) => {
                // The device may have been removed already.
                let _ = self.command("rdma", &["link", "delete", &self.env.dev]);
                self.later(t, Repair::Add);
            }
            Blow::Unload => self.unload(crew)?,
            Blow::Weather(spec, t) => {
                weather::make(self.env, spec)?;
                self.later(t, Repair::Fine);
            }
            Blow::Hog(t) => {
                let pid = hog()?;
                self.later(t, Repair::Hog(pid));
            }
            Blow::Processor(t) => {
                processor(false);
                self.later(t, Repair::Processor);
            }
        }
        Ok(())
    }

    /// Makes the repairs that are due by `now`.
    fn repair(&mut self, now: Instant) -> Result<()> {
        let (due, rest) = self.repairs.drain(..).partition(|(at, _)| *at <= now);
        self.repairs = rest;
        let mut due: Vec<(Instant, Repair)> = due;
        due.sort_by_key(|(at, _)| *at);
        for (_, what) in due {
            match what {
                Repair::Up => {
                    self.command("ip", &["link", "set", &self.env.netdev, "up"])?;
                }
                Repair::Plug => ask_host("link on")?,
                Repair::Add | Repair::Mend => self.mend()?,
                Repair::Fine => weather::clear(self.env),
                Repair::Hog(pid) => {
                    // The kernel may have killed it first.
                    let _ = sys::kill(pid, libc::SIGKILL);
                    ensure!(
                        sys::wait_pid(pid, COMMAND)?.is_some(),
                        "the memory hog does not die {}",
                        where_it_is(pid)
                    );
                }
                Repair::Processor => processor(true),
            }
        }
        Ok(())
    }

    /// Makes sure that the device exists and can connect: rxe's management queue pair does not
    /// survive a packet that the machine itself drops.
    fn mend(&self) -> Result<()> {
        let gone = self.repairs.iter().any(|(_, r)| *r == Repair::Add);
        if gone || Wire::of(self.env.topology) == Wire::None {
            return Ok(());
        }
        let dev = self.env.dev.as_str();
        let there = std::path::Path::new("/sys/class/infiniband")
            .join(dev)
            .exists();
        if there {
            let list = || self.command("rdma", &["resource", "show", "qp"]);
            // Fails if a device of the other node's is removed meanwhile.
            let again = |_| {
                std::thread::sleep(Duration::from_millis(500));
                list()
            };
            let all = list().or_else(again).or_else(again).or_else(again)?;
            let own = |l: &&str| l.contains(dev) && l.contains("GSI");
            if all
                .lines()
                .find(own)
                .is_some_and(|l| l.contains("state RTS"))
            {
                return Ok(());
            }
            self.command("rdma", &["link", "delete", dev])?;
        }
        let (kind, netdev) = (self.env.device.as_str(), self.env.netdev.as_str());
        self.command(
            "rdma",
            &["link", "add", dev, "type", kind, "netdev", netdev],
        )
        .map(drop)
    }

    /// Unloads the provider, which must succeed when it is unused, and loads it.
    fn unload(&self, crew: &mut Crew) -> Result<()> {
        if self.env.topology == Topology::Two {
            crew.kill_all()?;
            unload("kverbs")?;
            unload("kshm")?;
            unload("kfabric")?;
            load("kfabric")?;
            load("kverbs")?;
            load("kshm")?;
            return crew.fill();
        }
        // The other node's workers may use it at the moment, and may unload it too.
        let name = self.env.provider.as_str();
        match try_unload(name) {
            Ok(()) => load(name).or_else(|e| match module_users(name) {
                Some(_) => Ok(()),
                None => Err(e),
            }),
            Err(e) if [libc::EBUSY, libc::EAGAIN, libc::ENOENT].contains(&e.0) => Ok(()),
            Err(e) => bail!("unloading: {e}"),
        }
    }

    /// Runs a program with a time limit. Returns its output.
    fn command(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| program.to_owned())?;
        let end = Instant::now() + patience(COMMAND);
        while child.try_wait()?.is_none() {
            if Instant::now() >= end {
                let pid = child.id() as i32;
                let _ = child.kill();
                bail!("{program} {} hangs {}", args.join(" "), where_it_is(pid));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let out = child.wait_with_output()?;
        if !out.status.success() {
            let err = String::from_utf8_lossy(&out.stderr);
            bail!("{program} {}: {}", args.join(" "), err.trim());
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

/// Returns a time by which everything is due.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

/// Takes all memory but a little. Returns the process that has it, which the kernel kills first.
fn hog() -> Result<i32> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let free: u64 = text
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:"))
        .and_then(|v| v.split_whitespace().next()?.parse().ok())
        .map_or(0, |kib: u64| kib << 10);
    let size = free.saturating_sub(LEFT) as usize & !4095;
    let pid = sys::fork(|| {
        sys::die_with_parent();
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        if let Ok(map) = Map::anon(size) {
            (0..size).step_by(4096).for_each(|at| map.set(at, 1));
        }
        std::thread::sleep(Duration::from_secs(600));
        0
    })?;
    Ok(pid)
}

/// Takes the second processor offline or back; with one processor it does nothing.
fn processor(online: bool) {
    let value = if online { "1" } else { "0" };
    let _ = std::fs::write("/sys/devices/system/cpu/cpu1/online", value);
}
