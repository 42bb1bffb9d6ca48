// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask pmcut`: cuts the power of a guest's persistent memory.
//!
//! A guest writes durably to an NVDIMM or a virtio-pmem device, and a plug-in of the emulator keeps the bytes that a
//! power failure would leave (`qemu-tests/pmcut`). The first boot is checked at every moment of its log. Later
//! boots are killed; each begins with the bytes that the power failure before it left, and a
//! program in the guest reads them.

mod area;
mod check;
mod log;
pub mod message;
#[cfg(test)]
mod model;
mod records;

use crate::context::Context;
use crate::guest::output::by_line;
use crate::guest::pmcut::{End, Pmcut};
use crate::guest::run::Outcome;
use crate::guest::{Guests, Job, Kernel, Nodes, Options};
use crate::progress::clock;
use crate::report::{Line, Report, Status};
use crate::setup::Which;
use anyhow::{ensure, Context as _, Result};
use area::Area;
use check::{Start, Verdict};
use log::{Log, Record};
use message::{mix, AREA, KEPT, LEN, LINE, WRITES};
use records::Records;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time limit of a boot.
const LIMIT: Duration = Duration::from_secs(10 * 60);
/// Time of a fence: long enough for another processor to see a completion that comes too early.
const DRAIN: Duration = Duration::from_micros(100);
/// One of this many stores evicts its line.
const EVICT: u32 = 512;
/// Writes of a workload that is killed before its end.
const ENDLESS: u64 = 1 << 20;
/// A kill comes at one of this many first fences, or within this time.
const FENCES: u64 = 200;
const KILL_WITHIN: Duration = Duration::from_millis(1500);

/// The provider over which the guest writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Provider {
    /// Between two processes.
    Kshm,
    /// Between two network namespaces, by rxe.
    Kverbs,
}

/// The owner of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// A program, by a device-dax device.
    Dax,
    /// The kernel: kfblk exports a block device as persistent memory.
    Disk,
    /// The kernel: kfblk exports a virtio-pmem device through the block layer.
    Virtio,
    /// The program `kfi-pmlog`, by a device-dax device. A write is an appended record.
    Log,
}

impl Target {
    /// Returns the names of the tests: reading the bytes that the power failure left, and writing.
    fn tests(self) -> [&'static str; 2] {
        match self {
            Self::Dax => ["pmcut.kept", "pmcut.writes"],
            Self::Disk => ["pmcut.disk_kept", "pmcut.disk_writes"],
            Self::Virtio => ["pmcut.virtio_kept", "pmcut.virtio_writes"],
            Self::Log => ["pmcut.log_kept", "pmcut.log_writes"],
        }
    }

    /// Returns the number of writes for each of which there is a fence at least.
    fn merged(self) -> u64 {
        match self {
            Self::Dax | Self::Log => 1,
            // A flush covers up to three writes of each of three threads.
            Self::Disk | Self::Virtio => 9,
        }
    }

    /// Returns the expectation of the contents.
    fn start(self) -> Start {
        match self {
            Self::Log => Records::start,
            Self::Dax | Self::Disk | Self::Virtio => Area::start,
        }
    }

    /// Returns the contents that the guest has to find. `now` is the memory from the area's start on.
    ///
    /// # Errors
    ///
    /// If there is no log.
    fn kept(self, now: &[u8]) -> Result<Vec<u8>> {
        match self {
            Self::Log => records::shown(now),
            Self::Dax | Self::Disk | Self::Virtio => Ok(now[..AREA].to_vec()),
        }
    }
}

impl Provider {
    fn nodes(self) -> Nodes {
        match self {
            Self::Kshm => Nodes::One,
            Self::Kverbs => Nodes::Netns,
        }
    }

    fn topology(self) -> &'static str {
        match self {
            Self::Kshm => "power-cut",
            Self::Kverbs => "power-cut-netns",
        }
    }

    /// Returns the place of the results.
    fn place(self) -> &'static str {
        match self {
            Self::Kshm => "power cut",
            Self::Kverbs => "power cut, netns",
        }
    }

    /// Returns the number of fences that this many writes cause at least. A commit over verbs is one
    /// of several writes.
    fn fences(self, writes: u64) -> u64 {
        match self {
            Self::Kshm => writes,
            Self::Kverbs => writes / 4,
        }
    }
}

/// The arguments of `pmcut`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Check the cuts at this many fences, and at all messages and evictions between them.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub cuts: u64,
    /// Kill this many guests, at a fence and at a random moment in turns, and boot from the
    /// remains.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub kills: u64,
    /// Seed of the writes and of the moments [default: from the clock].
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Persistent caches: stores are durable at once.
    #[arg(long)]
    pub eadr: bool,
    /// The distribution's kernel, or one with every checker enabled.
    #[arg(long, value_enum, default_value = "stock")]
    pub kernel: Kernel,
    /// The provider of the writes.
    #[arg(long, value_enum, default_value = "kshm")]
    pub provider: Provider,
    /// The owner of the memory: a program, or the kernel.
    #[arg(long, value_enum, default_value = "dax")]
    pub target: Target,
}

impl Args {
    /// Returns the arguments of a run of one to two minutes.
    pub fn short() -> Self {
        Self {
            cuts: 400,
            kills: 1,
            seed: None,
            eadr: false,
            kernel: Kernel::Stock,
            provider: Provider::Kshm,
            target: Target::Dax,
        }
    }

    /// Returns the arguments of a run of a minute over verbs.
    pub fn short_over_verbs() -> Self {
        Self {
            cuts: 100,
            kills: 0,
            provider: Provider::Kverbs,
            ..Self::short()
        }
    }

    /// Returns the arguments of a run of some minutes.
    pub fn long(seed: u64, target: Target, provider: Provider, eadr: bool) -> Self {
        // A durable write takes longer over verbs, or to a disk. With eADR each write makes thousands
        // of cuts.
        let (cuts, kills) = match (target, provider, eadr) {
            (Target::Dax, Provider::Kshm, false) => (3000, 8),
            (Target::Dax, Provider::Kverbs, false) => (1000, 2),
            (_, _, false) => (300, 2),
            (_, _, true) => (100, 1),
        };
        Self {
            cuts,
            kills,
            seed: Some(seed),
            eadr,
            provider,
            target,
            ..Self::short()
        }
    }
}

/// Runs `pmcut` and returns the exit status: 0 only if every durable write was there.
///
/// # Errors
///
/// If no guest can be prepared.
pub fn run(ctx: &Context, args: &Args) -> Result<i32> {
    let report = Report::new(None)?;
    let started = Instant::now();
    test(ctx, args, &report)?;
    println!("\ntook {}", clock(started.elapsed().as_secs()));
    Ok(report.finish())
}

/// Runs all boots and adds a result for each.
///
/// # Errors
///
/// If no guest can be prepared.
pub fn test(ctx: &Context, args: &Args, report: &Report) -> Result<()> {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let seed = now.map_or(1, |time| u64::from(time.subsec_micros()));
    let seed = args.seed.unwrap_or(seed);
    ensure!(
        !(args.eadr && args.target == Target::Virtio),
        "only its device makes the memory of a virtio-pmem device durable, with any caches"
    );
    println!(
        "\npower cuts over {:?}, target {:?}{}, seed {seed}",
        args.provider,
        args.target,
        if args.eadr { ", eADR" } else { "" }
    );
    let mut rig = Rig::new(ctx, args, seed)?;
    rig.add("pmcut.p10_cuts_at_every_fence", End::Own, args.cuts, report);
    for kill in 1..=args.kills {
        let random = mix(seed.wrapping_add(kill));
        let end = if kill % 2 == 1 {
            End::Fence(1 + random % FENCES)
        } else {
            End::After(Duration::from_micros(
                random % KILL_WITHIN.as_micros() as u64,
            ))
        };
        let name = format!("pmcut.p10_kill_{kill}");
        rig.add(&name, end, ENDLESS, report);
    }
    if args.kills > 0 {
        rig.add("pmcut.p10_boot_after_the_last_kill", End::Own, 1, report);
    }
    Ok(())
}

/// Runs the first boot alone, with `cuts` cuts, and returns the faults of the memory.
///
/// # Errors
///
/// If no guest can be prepared or started, or if something else is wrong with the boot.
pub fn lost(ctx: &Context, cuts: u64, provider: Provider, target: Target) -> Result<Vec<String>> {
    let args = Args {
        cuts,
        kills: 0,
        seed: Some(1),
        provider,
        target,
        ..Args::short()
    };
    let boot = Rig::new(ctx, &args, 1)?.boot(End::Own, cuts)?;
    println!("    {}", boot.summary());
    let lost = boot.verdict.faults;
    ensure!(
        !lost.is_empty() || boot.faults.is_empty(),
        "{}",
        boot.faults.join("; ")
    );
    Ok(lost)
}

/// Prepared guests with persistent memory whose power is cut.
struct Rig<'a> {
    guests: Guests<'a>,
    cut: Pmcut,
    /// Folder that guests find at `/host`.
    host: PathBuf,
    provider: Provider,
    target: Target,
    seed: u64,
    /// Number of the boot, from 1.
    boots: u64,
    /// Offset of the area in the memory, once known.
    area: Option<usize>,
}

/// Result of a boot.
struct Boot {
    verdict: Verdict,
    log: Log,
    faults: Vec<String>,
}

impl Boot {
    fn summary(&self) -> String {
        format!(
            "{} cuts ({} with a write in flight), {} fences, {} write-backs, {} evictions, \
             {} durable writes \
             ({} first completed at the target)",
            self.verdict.cuts,
            self.verdict.in_flight,
            self.log.fences,
            self.log.write_backs,
            self.log.evicted,
            self.verdict.durable,
            self.verdict.arrived
        )
    }
}

impl<'a> Rig<'a> {
    fn new(ctx: &'a Context, args: &Args, seed: u64) -> Result<Self> {
        let dir = ctx.target.join("pmcut");
        let _ = std::fs::remove_dir_all(&dir);
        let host = dir.join("host");
        std::fs::create_dir_all(&host).with_context(|| host.display().to_string())?;
        let cut = Pmcut {
            device: args.target == Target::Virtio,
            eadr: args.eadr,
            evict: EVICT,
            drain: DRAIN,
            ..Pmcut::new(&dir)
        };
        let options = Options {
            kernel: args.kernel,
            nodes: args.provider.nodes(),
            dir: Some(host.clone()),
            pmcut: Some(cut.clone()),
            ..Options::default()
        };
        Ok(Self {
            guests: Guests::prepare(ctx, Which::Main, &options)?
                .with_timeout(LIMIT * args.kernel.slowness()),
            cut,
            host,
            provider: args.provider,
            target: args.target,
            seed,
            boots: 0,
            area: None,
        })
    }

    /// Runs a boot and adds its result.
    fn add(&mut self, name: &str, end: End, writes: u64, report: &Report) {
        let started = Instant::now();
        let mut line = match self.boot(end, writes) {
            Ok(boot) => {
                println!("  {end:?}: {}", boot.summary());
                Line::check(name, self.provider.place(), &boot.faults)
            }
            Err(error) => Line::failed(name, self.provider.place(), 0.0, format!("{error:#}")),
        };
        line.seconds = started.elapsed().as_secs_f64();
        report.add(line);
    }

    /// Boots a guest that reads the bytes that the last power failure left, and then writes until `end`.
    fn boot(&mut self, end: End, writes: u64) -> Result<Boot> {
        self.boots += 1;
        let mut memory = match std::fs::read(self.cut.durable()) {
            Ok(bytes) => bytes,
            Err(_) => vec![0; LEN as usize],
        };
        let [kept, written] = self.target.tests();
        let mut tests = vec![written];
        if let Some(area) = self.area {
            std::fs::write(self.host.join(KEPT), self.target.kept(&memory[area..])?)?;
            tests.insert(0, kept);
        }
        let (outcome, results) = self.run(end, writes, &tests)?;
        let log = Log::read(&self.cut.log())?;
        let verdict = check::check(&log, &mut memory, self.target.start());
        self.area = verdict.begun.then_some(verdict.area);
        let mut faults = verdict.faults.clone();
        faults.extend(files_differ(
            &log,
            &memory,
            &std::fs::read(self.cut.durable())?,
        ));
        faults.extend(judge(end, &outcome, &results, &tests, &verdict));
        if log.unknown > 0 {
            faults.push(format!("{} write-backs of unknown addresses", log.unknown));
        }
        if end == End::Own && log.fences < self.provider.fences(writes) / self.target.merged() {
            faults.push(format!("{} fences for {writes} writes", log.fences));
        }
        // Of a write with data, the target's completion comes first.
        let tells = self.target == Target::Dax && verdict.durable > 100;
        if tells && verdict.arrived == 0 {
            faults.push("no completion at the target came before that of the write".into());
        }
        Ok(Boot {
            verdict,
            log,
            faults,
        })
    }

    fn run(&self, end: End, writes: u64, tests: &[&str]) -> Result<(Outcome, Vec<Line>)> {
        let cut = Pmcut {
            end,
            ..self.cut.clone()
        };
        let results = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&results);
        let sink = by_line(move |node, _, line| {
            let result = line.strip_prefix("KFI-RESULT ").filter(|_| node == 1);
            match result.and_then(|text| serde_json::from_str::<Line>(text).ok()) {
                Some(result) => {
                    if let Ok(mut taken) = taken.lock() {
                        taken.push(result);
                    }
                }
                None if line.starts_with("KFI-") || line.starts_with('#') => {}
                None => eprintln!("    {line}"),
            }
        });
        let seed = self.seed.wrapping_add(1000 * self.boots).to_string();
        let names = tests.join(",");
        let argv = [
            "kfi-tests",
            "run",
            "--topology",
            self.provider.topology(),
            "--names",
            &names,
            "--seed",
            &seed,
        ];
        let job = Job {
            env: BTreeMap::from([(WRITES.to_owned(), writes.to_string())]),
            ..Job::new(argv.map(str::to_owned).to_vec(), sink)
        };
        let outcome = self.guests.with_pmcut(&cut).run(&job)?;
        let results = results.lock().map(|mut r| std::mem::take(&mut *r));
        Ok((outcome, results.unwrap_or_default()))
    }
}

/// Returns the faults of a boot, apart from the memory.
fn judge(
    end: End,
    outcome: &Outcome,
    results: &[Line],
    tests: &[&str],
    verdict: &Verdict,
) -> Vec<String> {
    let mut faults = Vec::new();
    let passed = |name: &&&str| {
        let mut of = results.iter().filter(|line| line.name == ***name);
        of.any(|line| line.status == Status::Ok)
    };
    // A killed workload has no result.
    let expected = tests.len() - usize::from(end != End::Own);
    for name in tests[..expected].iter().filter(|name| !passed(name)) {
        let line = results.iter().find(|line| line.name == **name);
        let why = line.map_or("no result", |line| line.detail.as_str());
        faults.push(format!("{name}: {why}"));
    }
    for (_, complaint) in &outcome.complaints {
        faults.push(format!("the kernel: {}", complaint.line));
    }
    if end == End::Own {
        if !outcome.clean() || !verdict.ended {
            faults.extend(outcome.problems.iter().cloned());
            faults.extend(outcome.left.iter().cloned());
            faults.extend(outcome.unload.iter().cloned());
        }
    } else if !outcome.died || verdict.ended {
        let last = results.last();
        let why = last.map_or("no result", |line| line.detail.as_str());
        faults.push(format!("the guest was not killed: {why}"));
        faults.extend(outcome.problems.iter().cloned());
    }
    if !verdict.begun {
        faults.push("the workload did not begin".into());
    } else if verdict.faults.is_empty() && verdict.in_flight == 0 && !matches!(end, End::After(_)) {
        faults.push("no cut met a write in flight".into());
    }
    faults
}

/// Compares the durable file with the bytes of the log's end. The last record's lines may be
/// missing in the file, because the emulator may be killed between the log and the file.
fn files_differ(log: &Log, memory: &[u8], file: &[u8]) -> Option<String> {
    let last = log.records.iter().rev().find_map(|record| match record {
        Record::Durable(lines) => Some(lines.as_slice()),
        Record::Mark(_) => None,
    });
    let is_last = |at: usize| {
        let mut lines = last.unwrap_or_default().iter();
        lines.any(|line| line.offset as usize == at)
    };
    if memory.len() != file.len() {
        return Some("the durable file has another length".into());
    }
    let mut pairs = memory.chunks(LINE).zip(file.chunks(LINE)).enumerate();
    let wrong = pairs.find(|(number, (a, b))| a != b && !is_last(number * LINE));
    wrong.map(|(number, _)| {
        format!(
            "the durable file differs from the log at {:#x}",
            number * LINE
        )
    })
}
