// SPDX-License-Identifier: MIT OR Apache-2.0

//! One run of a job in one set of guests, from power-on to the verdict.

use super::accel::Accel;
use super::klog::{self, Complaint};
use super::node::{ports, Guest};
use super::protocol::{Config, Event, Order, Topology};
use super::qemu::{Cable, Machine, Pmem};
use super::share::RunDir;
use super::splat;
use super::{tty, Deadline, Guests, Job};
use anyhow::{bail, Context as _, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Time limit for a guest to get ready, far more than usual.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// Time that a node may continue after its peer's guest has died.
const GRACE: Duration = Duration::from_secs(30);
/// Time limit for a guest to unload and power off.
const FINISH_LIMIT: Duration = Duration::from_secs(90);

/// Result of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Exit status of each node whose command ended.
    pub statuses: BTreeMap<u8, i32>,
    /// Complaints of the kernels, with the number of the guest.
    pub complaints: Vec<(u8, Complaint)>,
    /// Leftovers that should not exist.
    pub left: Vec<String>,
    /// Faults found when the modules were unloaded.
    pub unload: Vec<String>,
    /// Other faults of the run as a whole.
    pub problems: Vec<String>,
    /// The run was ended by its time limit.
    pub timed_out: bool,
    /// A guest ended unexpectedly.
    pub died: bool,
    /// The guests' processors were emulated.
    pub emulated: bool,
    /// Files of the kernel logs.
    pub logs: Vec<PathBuf>,
}

impl Outcome {
    /// Returns the exit status of the run as a whole.
    pub fn status(&self) -> i32 {
        if self.timed_out {
            return 124;
        }
        let first = self.statuses.values().copied().find(|status| *status != 0);
        match first {
            Some(status) => status,
            None => i32::from(!self.clean()),
        }
    }

    /// Returns whether the run had no fault, apart from exit statuses of commands.
    pub fn clean(&self) -> bool {
        !self.died
            && self.complaints.is_empty()
            && self.left.is_empty()
            && self.unload.is_empty()
            && self.problems.is_empty()
    }

    /// Returns all faults of the run, apart from exit statuses of commands.
    pub fn faults(&self) -> Vec<String> {
        let complaints = self.complaints.iter().map(|(guest, complaint)| {
            format!("guest {guest}: {}\n{}", complaint.line, complaint.around)
        });
        let others = [&self.problems, &self.left, &self.unload]
            .into_iter()
            .flatten();
        complaints.chain(others.cloned()).collect()
    }

    /// Prints all faults.
    pub fn report(&self) {
        for (guest, complaint) in &self.complaints {
            eprintln!(
                "guest {guest}: the kernel complained:\n{}\n",
                complaint.around
            );
        }
        for problem in [&self.problems, &self.left, &self.unload]
            .into_iter()
            .flatten()
        {
            eprintln!("error: {problem}");
        }
        if !self.clean() {
            for log in &self.logs {
                eprintln!("kernel log: {}", log.display());
            }
        }
    }
}

/// A guest did not get ready because of the emulator.
#[derive(Debug)]
struct NotUp(String);

impl fmt::Display for NotUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotUp {}

/// State of the nodes while they run.
#[derive(Default)]
struct State {
    ready: Vec<u8>,
    done: Vec<u8>,
    outcome: Outcome,
}

impl Guests<'_> {
    /// Boots the guests, runs the job on every node, and ends the guests.
    ///
    /// If a guest does not boot because of the emulator, the guests are booted once more.
    ///
    /// # Errors
    ///
    /// If guests cannot be started. A failed job, a kernel complaint and the death of a guest are
    /// reported in the [`Outcome`].
    pub fn run(&self, job: &Job) -> Result<Outcome> {
        let result = self.run_once(job);
        match &result {
            Err(error) if error.is::<NotUp>() => {
                eprintln!("  the emulator failed a guest (see TESTING.md); it boots once more");
                self.run_once(job)
            }
            _ => result,
        }
    }

    fn run_once(&self, job: &Job) -> Result<Outcome> {
        let dir = RunDir::new(self.ctx)?;
        if let Some(cut) = &self.options.pmcut {
            cut.power_on()?;
        }
        let topology = Topology::from(self.options.nodes);
        let groups: &[&[u8]] = match topology {
            Topology::One => &[&[1]],
            Topology::Netns => &[&[1, 2]],
            Topology::Two => &[&[1], &[2]],
        };
        let host_dir = match &self.options.dir {
            Some(dir) => Some(
                dir.canonicalize()
                    .with_context(|| format!("--dir {}", dir.display()))?,
            ),
            None => None,
        };
        dir.add("bin", &self.programs)?;
        let (ours, core) = match &self.modules {
            Some(built) => (dir.add("ko", &built.modules)?, built.core),
            None => (Vec::new(), 0),
        };
        let kernel = dir.add("ko", &self.kernel_modules)?;
        eprintln!("  RDMA devices: {}", self.options.device.name());
        let (sender, events) = channel();
        let mut guests = Vec::new();
        let cable = dir.sockets.join("cable");
        for (index, nodes) in groups.iter().enumerate() {
            let number = index as u8 + 1;
            let config = Config {
                topology,
                nodes: nodes.to_vec(),
                device: self.options.device,
                kernel: kernel.clone(),
                load: ours[..core].to_vec(),
                ours: ours.clone(),
                argv: job.argv.clone(),
                interactive: job.interactive,
                size: job.interactive.then(tty::size).flatten(),
                host: host_dir.is_some(),
                layers: self.layers.iter().map(|l| l.tag.to_owned()).collect(),
                env: self.environment(job),
            };
            dir.configure(number, &config)?;
            let terminals: Vec<PathBuf> = nodes
                .iter()
                .filter(|_| job.interactive)
                .map(|node| dir.sockets.join(format!("tty-{node}")))
                .collect();
            let quiet = if self.options.icount {
                "quiet".to_owned()
            } else {
                format!("loglevel=7 {}", self.options.kernel.append())
            };
            let machine = Machine {
                rig: &self.rig,
                accel: self.accel,
                icount: self.options.icount,
                cpus: self.cpus(),
                mem: &self.options.mem,
                share: &dir.share,
                host_dir: host_dir.as_deref(),
                layers: &self.layers,
                console: &dir.console(number),
                ports: &ports(nodes, &dir.sockets, number),
                terminals: &terminals,
                qmp: &dir.sockets.join(format!("{number}-qmp")),
                cable: (topology == Topology::Two).then_some(Cable {
                    socket: &cable,
                    end: number,
                }),
                append: &format!("{quiet}{} kfabric.guest={number}", self.append()),
                disk: None,
                pmem: self.pmem(),
            };
            guests.push(Guest::start(number, nodes, &machine, &job.sink, &sender)?);
        }
        drop(sender);
        let mut state = State::default();
        let result = self.drive(job, &mut guests, &events, &mut state);
        for guest in &mut guests {
            guest.end();
        }
        // Events that arrived just before a guest ended.
        while let Ok((guest, event)) = events.try_recv() {
            state.take(guest, event);
        }
        let mut outcome = state.outcome;
        outcome.emulated = self.accel == Accel::Tcg;
        for guest in &guests {
            let log = guest.log();
            for mut complaint in klog::scan(&log) {
                let built = self
                    .modules
                    .as_ref()
                    .map_or(&[][..], |built| &built.modules);
                complaint.around = splat::explain(&self.rig.root, built, &complaint.around);
                outcome.complaints.push((guest.number, complaint));
            }
            outcome.logs.push(guest.console.clone());
        }
        result.map(|()| outcome)
    }

    /// Returns the persistent memory of a guest.
    fn pmem(&self) -> Option<Pmem<'_>> {
        match (&self.options.pmcut, &self.plugin) {
            (Some(cut), Some(plugin)) => Some(Pmem::Cut(cut, plugin)),
            _ if self.options.icount && !self.options.pmem => None,
            _ => Some(Pmem::Plain),
        }
    }

    /// Returns parameters of the kernel for the plug-in, which translates addresses itself.
    fn append(&self) -> &'static str {
        match self.options.pmcut {
            Some(_) => " nokaslr iomem=relaxed",
            None => "",
        }
    }

    /// Returns the environment of the job's command, in addition to the variables that `guest-init`
    /// sets.
    fn environment(&self, job: &Job) -> BTreeMap<String, String> {
        let mut env = job.env.clone();
        let slow = self.options.kernel.slowness();
        env.entry("KFI_SLOW".into()).or_insert(slow.to_string());
        env
    }

    /// Takes the guests through all steps of a run.
    fn drive(
        &self,
        job: &Job,
        guests: &mut [Guest],
        events: &Receiver<(u8, Event)>,
        state: &mut State,
    ) -> Result<()> {
        let started = Instant::now();
        let all = guests.len();
        let late = |limit: Duration| started.elapsed() > limit;
        let slow = self.options.kernel.slowness();
        // Step 1: until all guests are ready.
        loop {
            pump(events, state);
            if state.ready.len() == all {
                break;
            }
            if !state.outcome.problems.is_empty() {
                state.outcome.died = true;
                return Ok(());
            }
            if guests.iter_mut().any(|guest| !guest.runs()) || late(BOOT_LIMIT * slow) {
                pump(events, state);
                let logs: Vec<String> = guests.iter().map(Guest::log).collect();
                let ends: Vec<String> = logs.iter().map(|log| klog::tail(log, 50)).collect();
                let text = format!(
                    "the guest did not get ready; the end of its kernel log:\n{}",
                    ends.join("\n---\n")
                );
                let complaints: Vec<Complaint> =
                    logs.iter().flat_map(|log| klog::scan(log)).collect();
                // A quiet log does not show whether modules were loaded.
                let early = !self.options.icount && !logs.iter().any(|log| klog::has_modules(log));
                let emulators = early || klog::are_stale_breakpoints(&complaints);
                if self.accel == Accel::Tcg && emulators {
                    return Err(NotUp(text).into());
                }
                bail!(text);
            }
        }
        for guest in guests.iter_mut() {
            guest.order(&Order::Go);
        }
        let _raw = job.interactive.then(|| tty::join(guests)).transpose()?;
        // Step 2: until every node's command, or its guest, has ended.
        let mut first_death = None;
        let mut killed = Vec::new();
        loop {
            pump(events, state);
            let mut waiting = false;
            let mut died = false;
            for guest in guests.iter_mut() {
                let open = guest
                    .nodes
                    .iter()
                    .any(|node| !state.outcome.statuses.contains_key(node));
                if !open {
                    continue;
                }
                if guest.runs() {
                    waiting = true;
                } else if guest.was_killed() {
                    if !killed.contains(&guest.number) {
                        killed.push(guest.number);
                        died = true;
                    }
                } else if first_death.is_none() {
                    first_death = Some(Instant::now());
                    state.outcome.died = true;
                    state.outcome.problems.push(death(guest));
                }
            }
            if died {
                let others = guests
                    .iter()
                    .filter(|guest| !killed.contains(&guest.number));
                others.for_each(Guest::drop_packets);
            }
            if !waiting {
                break;
            }
            let too_late = match self.limit() {
                Some(limit) if late(limit) => {
                    Some(format!("not done within {} s: ended", limit.as_secs()))
                }
                _ => job
                    .deadline
                    .as_ref()
                    .is_some_and(Deadline::passed)
                    .then(|| "no sign of life for too long: ended".to_owned()),
            };
            if let Some(text) = too_late {
                state.outcome.timed_out = true;
                state.outcome.problems.push(text);
                return Ok(());
            }
            if first_death.is_some_and(|moment| moment.elapsed() > GRACE) {
                return Ok(());
            }
        }
        drop(_raw);
        // Step 3: leftovers, unload, power-off.
        for guest in guests.iter_mut() {
            guest.order(&Order::Finish);
        }
        let finishing = Instant::now();
        while guests.iter_mut().any(Guest::runs) {
            pump(events, state);
            if finishing.elapsed() > FINISH_LIMIT * slow {
                state
                    .outcome
                    .problems
                    .push("a guest did not unload and power off in time".into());
                state.outcome.died = true;
                return Ok(());
            }
        }
        pump(events, state);
        for guest in guests.iter() {
            if !state.done.contains(&guest.number) && !guest.was_killed() && !state.outcome.died {
                state.outcome.died = true;
                state.outcome.problems.push(format!(
                    "guest {} ended while it was being cleaned up",
                    guest.number
                ));
            }
        }
        Ok(())
    }
}

impl State {
    fn take(&mut self, guest: u8, event: Event) {
        match event {
            Event::Ready => self.ready.push(guest),
            Event::Fault { text } => self.outcome.problems.push(format!("guest {guest}: {text}")),
            Event::Exit { node, status } => {
                self.outcome.statuses.insert(node, status);
            }
            Event::Done { left, unload } => {
                self.done.push(guest);
                let mark = |text: String| format!("guest {guest}: {text}");
                self.outcome.left.extend(left.into_iter().map(mark));
                self.outcome.unload.extend(unload.into_iter().map(mark));
            }
        }
    }
}

/// Describes a guest that ended by itself. Its kernel's complaint, if any, is reported elsewhere.
fn death(guest: &Guest) -> String {
    let log = guest.log();
    let mut text = format!("guest {} ended before its command did", guest.number);
    if klog::scan(&log).is_empty() {
        text += &format!("; the end of its kernel log:\n{}", klog::tail(&log, 25));
    }
    text
}

/// Handles events for a moment.
fn pump(events: &Receiver<(u8, Event)>, state: &mut State) {
    match events.recv_timeout(Duration::from_millis(100)) {
        Ok((guest, event)) => state.take(guest, event),
        Err(RecvTimeoutError::Timeout) => {}
        Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(50)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_status_that_is_not_zero_counts() {
        let mut outcome = Outcome::default();
        outcome.statuses.extend([(1, 0), (2, 3)]);
        assert_eq!(outcome.status(), 3);
        outcome.timed_out = true;
        assert_eq!(outcome.status(), 124);
    }

    #[test]
    fn a_leftover_or_a_complaint_fails_a_run_whose_commands_did_not() {
        let mut outcome = Outcome::default();
        outcome.statuses.insert(1, 0);
        assert_eq!(outcome.status(), 0);
        outcome.left.push("a page".into());
        assert_eq!(outcome.status(), 1);
    }
}
