// SPDX-License-Identifier: MIT OR Apache-2.0

//! A fuzzer of `/dev/kfabric` and its rings that is led by coverage.
//!
//! A [program](program) is a list of calls that use each other's results. It is made by chance
//! ([`generate`]) from what is known of the interface ([`shape`]), or by changing one that was
//! worth keeping ([`corpus`]); it is run by some threads on the same file ([`execute`]), and kept
//! when it reaches code of our modules ([`kcov`]) or gets an answer that none before it did. On a
//! kernel that does not tell what runs, answers alone lead.
//!
//! A finding is what the kernel complains about, a call that does not come back, something left
//! behind when a file is closed, or a machine on which two endpoints cannot talk afterwards. The
//! programs about to be run are written to a file first, whose text runs them again.

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

/// Programs that are written down together before they run.
const BATCH: usize = 16;
/// How often it is told how far it is.
const TELL: Duration = Duration::from_secs(20);
/// How often it is looked for what was left behind.
const CHECK: Duration = Duration::from_secs(60);
/// Runs that making one program smaller may take.
const SMALLER: usize = 60;
/// Bytes that a user without rights may pin.
const PINNED: u64 = 128 << 10;
/// Time that it may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The file, in the folder that the host sees, of the programs that run just now.
pub const CURRENT: &str = "fuzz-current.txt";
/// The file of the programs of the batch before.
pub const BEFORE: &str = "fuzz-before.txt";
/// The file of what was worth keeping.
pub const KEPT: &str = "fuzz-corpus.txt";
/// The file of what code was reached: module, section, offset.
pub const REACHED: &str = "fuzz-reached.txt";

/// The file of how far it is.
pub const TALLY: &str = "fuzz-tally.json";

/// What to do.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where chance begins.
    pub seed: u64,
    /// For how long.
    pub time: Duration,
    /// Where files go.
    pub dir: Option<PathBuf>,
}

/// How far it is.
#[derive(Debug, Default, Serialize)]
pub struct Tally {
    /// Programs run.
    pub programs: u64,
    /// Calls made.
    pub calls: u64,
    /// Places in our modules' code that were reached.
    pub reached: usize,
    /// Answers: pairs of a call and its error.
    pub answers: usize,
    /// Programs kept.
    pub corpus: usize,
    /// Whether the kernel told which code ran.
    pub coverage: bool,
    /// Whether it could be made to fail inside.
    pub failing: bool,
    /// Seconds.
    pub seconds: u64,
}

/// A fuzzer at work.
struct Fuzzer {
    options: Options,
    machine: Machine,
    corpus: Corpus,
    rng: Rng,
    tally: Tally,
    baseline: Baseline,
    started: Instant,
}

/// Fuzzes, and tells how it went.
///
/// # Errors
///
/// What was found, or what is missing to begin.
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
/// What was found, or when the text is none.
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
        // Users without rights are to come further than the door, and soon to the end of what
        // they may pin.
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

    /// Runs what is written and planned, and the corpus, so that what they reach is known; in half
    /// the time there is. The corpus comes in an order of the seed's.
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

    /// Runs programs, and has `add` take those that show something new.
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

    /// The next programs.
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

    /// Keeps a program that showed something new, or as much of it as still shows it.
    fn keep(&mut self, program: &Program, new: HashSet<kcov::Point>) {
        // What does not show again is chance, and counts, but leads nowhere.
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

    /// Writes programs where they outlive this machine.
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

    /// Looks for what was left behind, and whether two endpoints can still talk.
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

/// Has failing allocations be told of to who asked for them, and not to the log; those that may
/// sleep fail too.
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
        // Not there on a kernel that cannot.
        let _ = std::fs::write(format!("{base}/{file}"), value);
    }
}
