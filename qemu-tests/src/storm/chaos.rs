// SPDX-License-Identifier: MIT OR Apache-2.0

//! Does what the plan says, undoes it in time, and clears the sky at the end.

use super::crew::Crew;
use super::plan::{Blow, Plan, Wire};
use crate::harness::child::where_it_is;
use crate::harness::guest::{ask_host, load, module_users, run, unload};
use crate::harness::{weather, Env, Topology};
use crate::sys::{self, patience, Map};
use anyhow::{bail, ensure, Context, Result};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a command may take that changes the machine.
const COMMAND: Duration = Duration::from_secs(60);
/// Memory that a hog leaves.
const LEFT: u64 = 48 << 20;

/// What is to be done again later.
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

/// What happens to a node.
pub struct Chaos<'a> {
    env: &'a Env,
    repairs: Vec<(Instant, Repair)>,
}

impl<'a> Chaos<'a> {
    /// Nothing yet.
    pub fn new(env: &'a Env) -> Self {
        Self {
            env,
            repairs: Vec::new(),
        }
    }

    /// Goes through the plan.
    ///
    /// # Errors
    ///
    /// When a worker says that something is wrong, or what must be possible is not.
    pub fn run(&mut self, plan: &Plan, crew: &mut Crew) -> Result<()> {
        // What a device is down for counts as lost addresses, unless told otherwise.
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
                // What happens to one end of a wire may cost the other its device.
                if let Blow::Down(t) | Blow::Unplug(t) = action.blow {
                    self.later(t + Duration::from_millis(300), Repair::Mend);
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Clears the sky and waits until every worker has got something done.
    ///
    /// # Errors
    ///
    /// When one does not, in time.
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

    /// Puts back what can be put back, after a failure: the nodes still have to talk.
    pub fn clear(&mut self) {
        weather::clear(self.env);
        // Each of them on its own, whatever the others come to.
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
                // It may be gone already.
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

    /// Repairs what is due by `now`.
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
                    // The kernel may have been faster.
                    let _ = sys::kill(pid, libc::SIGKILL);
                    ensure!(
                        sys::wait_pid(pid, COMMAND)?.is_some(),
                        "who took all memory does not die {}",
                        where_it_is(pid)
                    );
                }
                Repair::Processor => processor(true),
            }
        }
        Ok(())
    }

    /// Sees that the device is there and can connect: rxe's queue pair for management does not
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
            // A device of the other node's that goes meanwhile makes it fail.
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
        let netdev = self.env.netdev.as_str();
        self.command(
            "rdma",
            &["link", "add", dev, "type", "rxe", "netdev", netdev],
        )
        .map(drop)
    }

    /// Unloads the provider, which must work when nobody uses it, and loads it.
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
        // The other node's workers use it, or not just now; and it may try the same.
        let name = self.env.provider.as_str();
        match sys::unload_module(name) {
            Ok(()) => load(name).or_else(|e| match module_users(name) {
                Some(_) => Ok(()),
                None => Err(e),
            }),
            Err(e) if [libc::EBUSY, libc::EAGAIN, libc::ENOENT].contains(&e.0) => Ok(()),
            Err(e) => bail!("unloading: {e}"),
        }
    }

    /// Runs a program that must end in time; what it says.
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

/// A moment by which everything is due.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

/// Takes all memory but a little; the process that has it, the first that the kernel kills.
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

/// Takes the second processor offline or back; without one nothing happens.
fn processor(online: bool) {
    let value = if online { "1" } else { "0" };
    let _ = std::fs::write("/sys/devices/system/cpu/cpu1/online", value);
}
