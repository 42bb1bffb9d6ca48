// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask soak --nightly`: all long tests once, within a night, and the differences from the
//! night before.

use super::{one, Part, PARTS};
use crate::context::Context;
use crate::guest::{Guests, Kernel, Options};
use crate::pmcut::{Provider, Target};
use crate::progress::clock;
use crate::report::{Line, Report, Status};
use crate::setup::Which;
use crate::{fault, fuzz, package, pmcut, test};
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time of a night. The last steps are skipped if earlier ones end late.
const NIGHT: Duration = Duration::from_secs(8 * 3600);
/// Required coverage of the device and its rings, in percent.
const REQUIRED: f64 = 85.0;

/// Work of a step.
enum What {
    /// The suite on the debug kernel.
    Suite,
    /// Every call with its 1st, 2nd, … nth failure, at every place.
    Faults,
    /// The fuzzer.
    Fuzz,
    /// The part of `soak` of this name.
    Turn(&'static str),
    /// Power cuts of persistent memory with this owner, over a provider; `true`: with persistent caches.
    PowerCuts(Target, Provider, bool),
    /// The packages: built twice, checked, installed, upgraded, booted, and purged.
    Packages,
}

/// A step, and its time in minutes.
struct Step {
    name: &'static str,
    what: What,
    minutes: u64,
}

const fn step(name: &'static str, what: What, minutes: u64) -> Step {
    Step {
        name,
        what,
        minutes,
    }
}

/// The steps, the most important first, because the last ones are skipped if the time is over.
const STEPS: &[Step] = &[
    step("suite on the debug kernel", What::Suite, 98),
    step("faults", What::Faults, 60),
    step("fuzzer", What::Fuzz, 24),
    step("storms in namespaces", What::Turn("storm-netns"), 6),
    step("storms between guests", What::Turn("storm-2"), 6),
    step("storms over kshm", What::Turn("storm-shm"), 6),
    step("long tests, keys", What::Turn("keys-long-2"), 25),
    step("long tests, disks", What::Turn("blk-long-2"), 75),
    step("long tests, rest", What::Turn("long-2"), 7),
    step("deaths over kshm", What::Turn("long-shm"), 15),
    step(
        "power cuts",
        What::PowerCuts(Target::Dax, Provider::Kshm, false),
        6,
    ),
    step(
        "power cuts, eADR",
        What::PowerCuts(Target::Dax, Provider::Kshm, true),
        3,
    ),
    step(
        "power cuts over verbs",
        What::PowerCuts(Target::Dax, Provider::Kverbs, false),
        6,
    ),
    step(
        "power cuts over verbs, eADR",
        What::PowerCuts(Target::Dax, Provider::Kverbs, true),
        2,
    ),
    step(
        "power cuts, disk",
        What::PowerCuts(Target::Disk, Provider::Kshm, false),
        3,
    ),
    step(
        "power cuts, disk, eADR",
        What::PowerCuts(Target::Disk, Provider::Kshm, true),
        1,
    ),
    step(
        "power cuts, disk over verbs",
        What::PowerCuts(Target::Disk, Provider::Kverbs, false),
        4,
    ),
    step(
        "power cuts, disk over verbs, eADR",
        What::PowerCuts(Target::Disk, Provider::Kverbs, true),
        2,
    ),
    step(
        "power cuts, virtio-pmem",
        What::PowerCuts(Target::Virtio, Provider::Kshm, false),
        3,
    ),
    step(
        "power cuts, virtio-pmem over verbs",
        What::PowerCuts(Target::Virtio, Provider::Kverbs, false),
        4,
    ),
    step(
        "power cuts, log",
        What::PowerCuts(Target::Log, Provider::Kshm, false),
        3,
    ),
    step(
        "power cuts, log, eADR",
        What::PowerCuts(Target::Log, Provider::Kshm, true),
        1,
    ),
    step(
        "power cuts, log over verbs",
        What::PowerCuts(Target::Log, Provider::Kverbs, false),
        4,
    ),
    step(
        "power cuts, log over verbs, eADR",
        What::PowerCuts(Target::Log, Provider::Kverbs, true),
        2,
    ),
    step("packages", What::Packages, 35),
    step("long tests, devices", What::Turn("devices-long-2"), 20),
    step("long tests, MPI", What::Turn("mpi-long-shm"), 23),
    step("libfabric's tests", What::Turn("conformance-long"), 36),
];

/// Result of a step: a row of the table, and of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    step: String,
    /// Duration in seconds.
    took: u64,
    passed: usize,
    /// Names of failed tests.
    failed: BTreeSet<String>,
    /// Reason why the step did not run, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
}

/// Runs the night and returns the exit status: 0 only if every step ran and nothing failed.
///
/// # Errors
///
/// If the file of the night cannot be written.
pub(super) fn run(ctx: &Context, seed: u64, only: &str) -> Result<i32> {
    let folder = ctx.cache.join("nightly");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let last = folder.join("last.json");
    let before = load(&last)?;
    let end = Instant::now() + NIGHT;
    let mut rows = Vec::new();
    println!("a night of at most 8 hours, seed {seed}");
    for step in STEPS.iter().filter(|step| step.name.contains(only)) {
        println!("\n{}, at most {} minutes", step.name, step.minutes);
        let row = run_step(ctx, step, seed, end);
        println!("{}", shown(&row, &before));
        rows.push(row);
        // After each step, for a night that is aborted.
        let text = serde_json::to_string_pretty(&rows)?;
        std::fs::write(folder.join("running.json"), text)?;
    }
    let file = folder.join(format!("{}.json", now()));
    std::fs::write(&file, serde_json::to_string_pretty(&rows)?)?;
    std::fs::copy(&file, &last).with_context(|| last.display().to_string())?;
    println!("\n{}", table(&rows, &before));
    println!("the next night is compared with {}", file.display());
    Ok(i32::from(rows.is_empty() || !rows.iter().all(is_well)))
}

fn is_well(row: &Row) -> bool {
    row.failed.is_empty() && row.skipped.is_none()
}

fn now() -> u64 {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
    now.map_or(0, |time| time.as_secs())
}

/// Returns the rows of the night before; empty if there was none.
fn load(file: &Path) -> Result<Vec<Row>> {
    match std::fs::read_to_string(file) {
        Ok(text) => serde_json::from_str(&text).with_context(|| file.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

fn run_step(ctx: &Context, step: &Step, seed: u64, end: Instant) -> Row {
    let started = Instant::now();
    let time = Duration::from_secs(step.minutes * 60);
    let mut row = Row {
        step: step.name.to_owned(),
        took: 0,
        passed: 0,
        failed: BTreeSet::new(),
        skipped: None,
    };
    if end.saturating_duration_since(started) < time {
        row.skipped = Some("no time left".into());
        return row;
    }
    let result = match &step.what {
        What::Suite => suite(ctx, step.minutes),
        What::Faults => faults(ctx, time),
        What::Fuzz => fuzzer(ctx, step.minutes, seed),
        What::Turn(name) => turn(ctx, name, time, seed),
        What::PowerCuts(target, provider, eadr) => power_cuts(ctx, seed, *target, *provider, *eadr),
        What::Packages => {
            package::run(ctx, &package::Args::everything()).map(|()| (1, BTreeSet::new()))
        }
    };
    match result {
        Ok((passed, failed)) => (row.passed, row.failed) = (passed, failed),
        Err(error) => {
            row.failed.insert(format!("{error:#}"));
        }
    }
    row.took = started.elapsed().as_secs();
    row
}

/// Number of passed tests, and names of failed ones.
type Counted = (usize, BTreeSet<String>);

fn counted(lines: &[Line]) -> Counted {
    let of = |status: Status| lines.iter().filter(move |line| line.status == status);
    let name = |line: &Line| format!("{} [{}]", line.name, line.place);
    (
        of(Status::Ok).count(),
        of(Status::Failed).map(name).collect(),
    )
}

fn suite(ctx: &Context, minutes: u64) -> Result<Counted> {
    let report = Arc::new(Report::new(None)?);
    let args = test::Args {
        kernel: Kernel::Debug,
        strict: true,
        minutes: Some(minutes),
        no_host: true,
        ..test::Args::default()
    };
    test::run_into(ctx, &args, &report)?;
    report.finish();
    Ok(counted(&report.lines()))
}

fn faults(ctx: &Context, time: Duration) -> Result<Counted> {
    let report = Arc::new(Report::new(None)?);
    let guests = prepare(ctx, Kernel::Debug)?.with_timeout(time);
    fault::test(&guests, "", false, &report)?;
    report.finish();
    Ok(counted(&report.lines()))
}

fn fuzzer(ctx: &Context, minutes: u64, seed: u64) -> Result<Counted> {
    let args = fuzz::Args {
        minutes,
        seed: Some(seed.to_string()),
        replay: None,
        times: 1,
        corpus_out: None,
        require: Some(REQUIRED),
        kernel: Kernel::Debug,
    };
    Ok(match fuzz::run(ctx, &args)? {
        0 => (1, BTreeSet::new()),
        status => {
            let why = format!("ended with {status}: a finding, or less than {REQUIRED} % reached");
            (0, BTreeSet::from([why]))
        }
    })
}

fn power_cuts(
    ctx: &Context,
    seed: u64,
    target: Target,
    provider: Provider,
    eadr: bool,
) -> Result<Counted> {
    let report = Report::new(None)?;
    let args = pmcut::Args::long(seed, target, provider, eadr);
    pmcut::test(ctx, &args, &report)?;
    report.finish();
    Ok(counted(&report.lines()))
}

fn turn(ctx: &Context, name: &str, time: Duration, seed: u64) -> Result<Counted> {
    let part: &Part = PARTS
        .iter()
        .find(|part| part.name == name)
        .with_context(|| format!("no part of soak is called {name}"))?;
    let kernel = part.kernel.unwrap_or(Kernel::Stock);
    let turn = one(&prepare(ctx, kernel)?, part, seed, time, kernel)?;
    Ok((turn.passed, turn.faults.into_iter().collect()))
}

fn prepare(ctx: &Context, kernel: Kernel) -> Result<Guests<'_>> {
    let options = Options {
        kernel,
        layers: true,
        ..Options::default()
    };
    Guests::prepare(ctx, Which::Main, &options)
}

/// Formats a row as a line of the table, compared with the same step of the night before.
fn shown(row: &Row, before: &[Row]) -> String {
    let word = match (&row.skipped, row.failed.is_empty()) {
        (Some(_), _) => "SKIP",
        (None, true) => "ok",
        (None, false) => "FAIL",
    };
    let mut text = format!(
        "{word:4} {:34} {:>7}  {} passed, {} failed",
        row.step,
        clock(row.took),
        row.passed,
        row.failed.len()
    );
    let Some(old) = before.iter().find(|old| old.step == row.step) else {
        return text;
    };
    text += &format!(
        " (before: {}, {} passed, {} failed)",
        clock(old.took),
        old.passed,
        old.failed.len()
    );
    for name in row.failed.difference(&old.failed) {
        text += &format!("\n       new:  {name}");
    }
    for name in old.failed.difference(&row.failed) {
        text += &format!("\n       gone: {name}");
    }
    text
}

fn table(rows: &[Row], before: &[Row]) -> String {
    let lines: Vec<String> = rows.iter().map(|row| shown(row, before)).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    fn row(failed: &[&str]) -> Row {
        Row {
            step: "faults".into(),
            took: 65,
            passed: 3,
            failed: failed.iter().map(|name| (*name).to_owned()).collect(),
            skipped: None,
        }
    }

    #[test]
    fn a_night_fits_into_eight_hours_and_names_parts_that_exist() {
        let minutes: u64 = STEPS.iter().map(|step| step.minutes).sum();
        assert_eq!(minutes * 60, NIGHT.as_secs(), "{minutes} minutes");
        for step in STEPS {
            if let What::Turn(name) = step.what {
                assert!(PARTS.iter().any(|part| part.name == name), "{name}");
            }
        }
    }

    #[test]
    fn a_night_cuts_the_power_of_each_target_over_each_provider() {
        for target in Target::value_variants() {
            for provider in Provider::value_variants() {
                // virtio-pmem has no eADR.
                for eadr in [false, *target != Target::Virtio] {
                    let is_it = |step: &Step| match step.what {
                        What::PowerCuts(t, p, e) => (t, p, e) == (*target, *provider, eadr),
                        _ => false,
                    };
                    let name = format!("{target:?} {provider:?} {eadr}");
                    assert!(STEPS.iter().any(is_it), "{name}");
                }
            }
        }
    }

    #[test]
    fn a_row_shows_what_changed_since_the_night_before() {
        let text = shown(&row(&["b", "c"]), &[row(&["a", "b"])]);
        assert!(text.starts_with("FAIL faults"), "{text}");
        assert!(
            text.contains("new:  c") && text.contains("gone: a"),
            "{text}"
        );
        assert!(!text.contains("new:  b"), "{text}");
        assert!(!shown(&row(&[]), &[]).contains("before"));
    }

    #[test]
    fn a_night_is_read_back_as_it_was_written() {
        let file = std::env::temp_dir().join(format!("kfabric-night-{}", std::process::id()));
        let rows = vec![row(&["a"]), row(&[])];
        std::fs::write(&file, serde_json::to_string(&rows).unwrap()).unwrap();
        let read = load(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(read, rows);
        assert_eq!(load(&file).unwrap(), Vec::new());
    }
}
