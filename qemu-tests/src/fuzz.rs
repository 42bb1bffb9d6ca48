// SPDX-License-Identifier: MIT OR Apache-2.0

//! A coverage-guided fuzzer of `/dev/kfabric` and its rings.
//!
//! A [program](program) is a list of calls that use each other's results. Programs are generated at
//! random ([`generate`]) from a description of the interface ([`shape`]), or by changing a kept one
//! ([`corpus`]). Some threads run a program on the same file ([`execute`]). A program is kept if it
//! reaches new code of our modules ([`kcov`]) or gets a new answer. On a kernel without kcov,
//! answers alone guide the fuzzer.
//!
//! A finding is a kernel complaint, a call that does not return, an object that outlives its file,
//! or a machine on which two endpoints cannot talk afterwards. Each program is written to a file
//! before it runs; the text of the file runs it again.

pub mod corpus;
pub mod execute;
pub mod generate;
#[allow(unsafe_code)]
pub mod kcov;
#[allow(unsafe_code)]
pub mod os;
pub mod program;
pub mod rng;
pub mod scene;
pub mod shape;
pub mod sweep;
mod syscalls;
pub mod world;

use crate::harness::leaks::Baseline;
use crate::harness::{Env, Topology};
use anyhow::{bail, ensure, Context, Result};
use corpus::Corpus;
use execute::Machine;
use program::{join, split, Program};
use rng::Rng;
use serde::Serialize;
use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use world::World;

/// Number of programs that are written down together before they run.
const BATCH: usize = 16;
/// Interval of progress reports.
const TELL: Duration = Duration::from_secs(20);
/// Interval of leak checks.
const CHECK: Duration = Duration::from_secs(60);
/// Maximum number of runs for shrinking one program.
const SMALLER: usize = 60;
/// Bytes that an unprivileged user may pin.
const PINNED: u64 = 128 << 10;
/// Time limit of shrinking.
const PATIENCE: Duration = Duration::from_secs(5);

/// Name of the file, in the folder that the host sees, of the running programs.
pub const CURRENT: &str = "fuzz-current.txt";
/// Name of the file of the batch before.
pub const BEFORE: &str = "fuzz-before.txt";
/// Name of the file of kept programs.
pub const KEPT: &str = "fuzz-corpus.txt";
/// Name of the file of reached code: module, section, offset.
pub const REACHED: &str = "fuzz-reached.txt";

/// Name of the progress file.
pub const TALLY: &str = "fuzz-tally.json";

/// Options of a fuzzing run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Seed of all random choices.
    pub seed: u64,
    /// Duration of the run.
    pub time: Duration,
    /// Folder of the output files.
    pub dir: Option<PathBuf>,
}

/// Progress of a fuzzing run.
#[derive(Debug, Default, Serialize)]
pub struct Tally {
    /// Number of programs run.
    pub programs: u64,
    /// Number of calls made.
    pub calls: u64,
    /// Number of reached places in our modules' code.
    pub reached: usize,
    /// Number of answers: pairs of a call and its errno.
    pub answers: usize,
    /// Number of programs kept.
    pub corpus: usize,
    /// True if the kernel reports coverage.
    pub coverage: bool,
    /// True if the kernel injects failures.
    pub failing: bool,
    /// Duration in seconds.
    pub seconds: u64,
}

/// A running fuzzer.
struct Fuzzer {
    options: Options,
    machine: Machine,
    corpus: Corpus,
    rng: Rng,
    tally: Tally,
    baseline: Baseline,
    started: Instant,
}

/// Fuzzes. Returns the final tally.
///
/// # Errors
///
/// A finding, or a missing prerequisite.
pub fn run(options: Options) -> Result<Tally> {
    let mut fuzzer = Fuzzer::new(options)?;
    fuzzer.load()?;
    let (mut told, mut checked) = (Instant::now(), Instant::now());
    while fuzzer.started.elapsed() < fuzzer.options.time {
        let batch = fuzzer.batch();
        fuzzer.run_batch(&batch)?;
        if told.elapsed() > TELL {
            fuzzer.tell()?;
            told = Instant::now();
        }
        if checked.elapsed() > CHECK {
            fuzzer.check()?;
            checked = Instant::now();
        }
    }
    fuzzer.check()?;
    fuzzer.tell()?;
    Ok(fuzzer.tally)
}

/// Runs the programs of a text again, each `times` times.
///
/// # Errors
///
/// A finding, or a text that cannot be parsed.
pub fn replay(text: &str, times: usize, dir: Option<PathBuf>) -> Result<Tally> {
    let programs = split(text)?;
    ensure!(!programs.is_empty(), "no program in there");
    let mut fuzzer = Fuzzer::new(Options {
        seed: 0,
        time: Duration::MAX,
        dir,
    })?;
    for _ in 0..times {
        for program in &programs {
            let run = fuzzer.run(program);
            println!("{}", fuzzer.machine.answers(program));
            for point in run {
                fuzzer.machine.known().add(point);
            }
        }
        fuzzer.check()?;
    }
    fuzzer.tell()?;
    Ok(fuzzer.tally)
}

impl Fuzzer {
    fn new(options: Options) -> Result<Self> {
        let env = Env::read(Topology::One)?;
        let slow = std::env::var("KFI_SLOW").ok();
        let slow = slow.and_then(|n| n.parse().ok()).unwrap_or(1);
        let world = World::find(env.addr, env.addr6)?;
        fail_quietly();
        // Unprivileged users must be able to open the device, and soon reach their pinning limit.
        std::fs::set_permissions("/dev/kfabric", std::fs::Permissions::from_mode(0o666))?;
        os::limit_pinned(PINNED);
        let baseline = Baseline::take();
        let machine = Machine::new(world, slow).context("starting the threads")?;
        let tally = Tally {
            coverage: machine.sees(),
            failing: machine.fails(),
            ..Tally::default()
        };
        println!(
            "KFI-FUZZ seed {:#x}, coverage: {}, failing calls: {}",
            options.seed, tally.coverage, tally.failing
        );
        Ok(Self {
            rng: Rng::new(options.seed),
            options,
            machine,
            corpus: Corpus::default(),
            tally,
            baseline,
            started: Instant::now(),
        })
    }

    /// Runs the written and planned programs, and the corpus, to learn their coverage, in half of
    /// the time. The seed decides the corpus's order.
    fn load(&mut self) -> Result<()> {
        let given = [Corpus::written()?, sweep::programs()?].concat();
        self.load_some(&given, Corpus::give)?;
        let mut kept = Corpus::kept()?;
        for i in (1..kept.len()).rev() {
            kept.swap(i, self.rng.below(i + 1));
        }
        self.load_some(&kept, Corpus::add)?;
        let any = self.machine.known().all().any(kcov::is_code);
        if self.machine.sees() && !any {
            bail!("the kernel tells of no code in our modules: are its addresses moved, or were they built without coverage?");
        }
        self.tell()
    }

    /// Runs programs, and passes those that show something new to `add`.
    fn load_some(&mut self, programs: &[Program], add: fn(&mut Corpus, Program)) -> Result<()> {
        for batch in programs.chunks(BATCH) {
            let late = self.started.elapsed() > self.options.time / 2;
            if !late {
                self.write_down(batch)?;
            }
            for program in batch {
                let new = match late {
                    true => HashSet::new(),
                    false => self.run(program),
                };
                if late || !new.is_empty() {
                    add(&mut self.corpus, program.clone());
                }
                for point in new {
                    self.machine.known().add(point);
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, program: &Program) -> HashSet<kcov::Point> {
        let run = self.machine.run(program);
        self.tally.programs += 1;
        self.tally.calls += run.calls;
        run.points
    }

    /// Returns the next programs.
    fn batch(&mut self) -> Vec<Program> {
        let rng = &mut self.rng;
        let mut batch = Vec::with_capacity(BATCH);
        for _ in 0..BATCH {
            let fresh = self.corpus.len() < 50 || rng.chance(25);
            let base = (!fresh).then(|| self.corpus.pick(rng)).flatten();
            let other = self.corpus.pick(rng).cloned().unwrap_or_default();
            batch.push(match base {
                Some(base) => generate::mutate(rng, base, &other),
                None => generate::program(rng),
            });
        }
        batch
    }

    fn run_batch(&mut self, batch: &[Program]) -> Result<()> {
        self.write_down(batch)?;
        for program in batch {
            if self.started.elapsed() > self.options.time {
                break;
            }
            let new = self.run(program);
            if !new.is_empty() {
                self.keep(program, new);
            }
        }
        Ok(())
    }

    /// Keeps a program that showed something new, reduced to the calls that still show it.
    fn keep(&mut self, program: &Program, new: HashSet<kcov::Point>) {
        // A result that does not show again is counted, and not followed.
        let begun = Instant::now();
        let again = self.run(program);
        let mut wanted: HashSet<_> = new.intersection(&again).copied().collect();
        let mut best = program.clone();
        let mut tries = 0;
        let mut at = best.ops.len();
        while at > 0 && tries < SMALLER && !wanted.is_empty() && begun.elapsed() < PATIENCE {
            at -= 1;
            if best.ops.len() < 2 {
                break;
            }
            let mut less = best.clone();
            less.remove(at);
            tries += 1;
            let shown = self.run(&less);
            if wanted.is_subset(&shown) {
                wanted.extend(shown.intersection(&new));
                best = less;
            }
        }
        let found: Vec<_> = new.union(&again).copied().collect();
        for point in found {
            self.machine.known().add(point);
        }
        if !wanted.is_empty() {
            self.corpus.add(best);
        }
    }

    /// Writes programs to a file that outlives this machine.
    fn write_down(&self, batch: &[Program]) -> Result<()> {
        let Some(dir) = &self.options.dir else {
            return Ok(());
        };
        let _ = std::fs::rename(dir.join(CURRENT), dir.join(BEFORE));
        let head = format!(
            "# seed {:#x}, after {} programs\n",
            self.options.seed, self.tally.programs
        );
        std::fs::write(dir.join(CURRENT), head + &join(batch))?;
        Ok(())
    }

    fn tell(&mut self) -> Result<()> {
        let known: Vec<_> = self.machine.known().all().collect();
        self.tally.reached = known.iter().filter(|point| kcov::is_code(**point)).count();
        self.tally.answers = known.len() - self.tally.reached;
        self.tally.corpus = self.corpus.len();
        self.tally.seconds = self.started.elapsed().as_secs();
        let tally = serde_json::to_string(&self.tally)?;
        println!("KFI-FUZZ {tally}");
        let Some(dir) = &self.options.dir else {
            return Ok(());
        };
        std::fs::write(dir.join(TALLY), tally)?;
        let text = self.machine.text();
        let places = known.iter().filter(|point| kcov::is_code(**point));
        let mut lines: Vec<String> = places.filter_map(|point| text.place(*point)).collect();
        lines.push(String::new());
        std::fs::write(dir.join(REACHED), lines.join("\n"))?;
        std::fs::write(dir.join(KEPT), self.corpus.text())?;
        Ok(())
    }

    /// Checks for leaked objects, and that two endpoints can still talk.
    fn check(&mut self) -> Result<()> {
        let left = self.baseline.leaks();
        ensure!(left.is_empty(), "left behind: {}", left.join("; "));
        let well = split(include_str!("../fuzz-corpus/well.txt"))?;
        for program in &well {
            let run = self.machine.run_watched(program);
            let wrong: Vec<_> = run.iter().filter(|(_, errno)| *errno != 0).collect();
            ensure!(
                wrong.is_empty(),
                "after all that, a transfer does not work: {wrong:?} in\n{}",
                program.text()
            );
        }
        Ok(())
    }
}

/// Makes injected failures return errnos without log lines, and includes allocations that may
/// sleep.
fn fail_quietly() {
    let base = "/sys/kernel/debug";
    for (file, value) in [
        ("failslab/verbose", "0"),
        ("failslab/ignore-gfp-wait", "N"),
        ("failslab/cache-filter", "N"),
        ("fail_page_alloc/verbose", "0"),
        ("fail_page_alloc/ignore-gfp-wait", "N"),
        ("fail_page_alloc/ignore-gfp-highmem", "N"),
        ("fail_page_alloc/min-order", "0"),
        ("fail_usercopy/verbose", "0"),
    ] {
        // The file is missing on a kernel without fault injection.
        let _ = std::fs::write(format!("{base}/{file}"), value);
    }
}
