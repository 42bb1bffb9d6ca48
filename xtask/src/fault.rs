// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask fault`: runs every call with its 1st, 2nd, … nth failure of each kind, in a guest.
//!
//! `kfi-fault` prints `KFI-FAULT-BEGIN name` before a sweep, and a line `KFI-FAULT {…}` when the
//! sweep of a call has ended. This module prints these as a table, or reports them as tests named
//! `fault.…`.

use crate::context::Context;
use crate::guest::output::by_line;
use crate::guest::run::Outcome;
use crate::guest::{Guests, Job, Kernel, Nodes, Options};
use crate::progress::clock;
use crate::report::{Line, Report, Status};
use crate::setup::Which;
use anyhow::{bail, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The program that runs the sweeps.
const PROGRAM: &str = "kfi-fault";
/// The place of the results, as reports name it.
const PLACE: &str = "fault";
/// The kinds of injected failures, as rows name them.
const KINDS: [&str; 5] = ["slab", "page", "copy", "pin", "device"];

/// The arguments of `fault`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run only calls whose name contains one of these.
    #[arg(long, value_name = "PATTERN,…", default_value = "")]
    pub only: String,
    /// Inject at fewer places: at each of the first, then at increasing distances.
    #[arg(long)]
    pub quick: bool,
    /// Kill the guest after this many seconds.
    #[arg(long, value_name = "S", default_value = "3600")]
    pub timeout: u64,
}

/// Counts for one kind: injected failures, and those that made the call fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Count {
    injected: u32,
    failed: u32,
}

/// The result of the sweep of one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    name: String,
    counts: BTreeMap<String, Count>,
    errnos: BTreeMap<String, u32>,
    seconds: f64,
    verdict: Status,
    detail: String,
}

impl Row {
    /// Returns the row of a sweep that did not end.
    fn broken(name: &str, why: &str) -> Self {
        Self {
            name: name.to_owned(),
            counts: BTreeMap::new(),
            errnos: BTreeMap::new(),
            seconds: 0.0,
            verdict: Status::Failed,
            detail: why.to_owned(),
        }
    }

    fn injected(&self) -> u32 {
        self.counts.values().map(|count| count.injected).sum()
    }
}

/// Runs `fault` and returns the exit status.
///
/// # Errors
///
/// If a step of the setup or a build fails.
pub fn run(ctx: &Context, args: &Args) -> Result<i32> {
    let started = Instant::now();
    let options = Options {
        kernel: Kernel::Debug,
        nodes: Nodes::One,
        ..Options::default()
    };
    let guests = Guests::prepare(ctx, Which::Main, &options)?;
    if guests.program(PROGRAM).is_none() {
        bail!("the workspace has no program {PROGRAM}");
    }
    let limit = Duration::from_secs(args.timeout);
    let told = |row: &Row| {
        let verdict = if row.verdict == Status::Ok {
            "ok"
        } else {
            "FAILED"
        };
        eprintln!("  {verdict:<7} {} ({:.1} s)", row.name, row.seconds);
    };
    let (rows, outcome) = sweep(&guests.with_timeout(limit), &args.only, args.quick, told)?;
    outcome.report();
    print!("{}", table(&rows));
    let failed = rows.iter().filter(|row| row.verdict == Status::Failed);
    for row in failed.clone() {
        println!("\nFAILED {}: {}", row.name, row.detail);
    }
    let failed = failed.count();
    let injections: u32 = rows.iter().map(Row::injected).sum();
    println!("\ntook {}", clock(started.elapsed().as_secs()));
    println!(
        "{} calls, {injections} injections, {} passed, {failed} failed",
        rows.len(),
        rows.len() - failed
    );
    Ok(match outcome.status() {
        0 => i32::from(failed > 0 || rows.is_empty()),
        status => status,
    })
}

/// Runs the sweep as tests, one for each call, named `fault.CALL`.
///
/// # Errors
///
/// If the guest cannot be started.
pub fn test(guests: &Guests<'_>, only: &str, quick: bool, report: &Arc<Report>) -> Result<()> {
    let only = only.strip_prefix("fault.").unwrap_or(only);
    let (rows, outcome) = sweep(guests, only, quick, {
        let report = Arc::clone(report);
        move |row| report.add(line(row))
    })?;
    if rows.is_empty() {
        report.add(Line::failed("fault", PLACE, 0.0, "no call was swept"));
    }
    report.add(Line::check("fault.around", PLACE, &outcome.faults()));
    Ok(())
}

/// Converts a row to the result of a test.
fn line(row: &Row) -> Line {
    Line {
        name: format!("fault.{}", row.name),
        status: row.verdict,
        seconds: row.seconds,
        place: PLACE.to_owned(),
        detail: row.detail.clone(),
        fault: None,
    }
}

/// Runs the program in a guest and reports each row as it comes.
fn sweep(
    guests: &Guests<'_>,
    only: &str,
    quick: bool,
    told: impl Fn(&Row) + Send + Sync + 'static,
) -> Result<(Vec<Row>, Outcome)> {
    #[derive(Default)]
    struct Seen {
        rows: Vec<Row>,
        running: Option<String>,
    }
    let seen = Arc::new(Mutex::new(Seen::default()));
    let told = Arc::new(told);
    let sink = by_line({
        let (seen, told) = (Arc::clone(&seen), Arc::clone(&told));
        move |_, _, text| {
            let Ok(mut seen) = seen.lock() else { return };
            if let Some(name) = text.strip_prefix("KFI-FAULT-BEGIN ") {
                seen.running = Some(name.to_owned());
            } else if let Some(row) = parse(text) {
                seen.running = None;
                told(&row);
                seen.rows.push(row);
            } else {
                eprintln!("    {text}");
            }
        }
    });
    let mut argv = vec![PROGRAM.to_owned(), format!("--only={only}")];
    if quick {
        argv.push("--quick".to_owned());
    }
    let outcome = guests.run(&Job::new(argv, sink))?;
    let seen = seen
        .lock()
        .map(|mut seen| std::mem::take(&mut *seen))
        .unwrap_or_default();
    let mut rows = seen.rows;
    if let Some(name) = seen.running {
        let row = Row::broken(&name, "the guest ended while this was swept");
        told(&row);
        rows.push(row);
    }
    Ok((rows, outcome))
}

fn parse(text: &str) -> Option<Row> {
    serde_json::from_str(text.strip_prefix("KFI-FAULT ")?).ok()
}

/// Formats the rows as a table. Each cell has the number of injected failures and, after the slash,
/// the number of those that made the call fail; the call recovered from the others.
fn table(rows: &[Row]) -> String {
    let mut lines = vec![vec!["call".to_owned()]];
    lines[0].extend(KINDS.map(str::to_owned));
    lines[0].extend(["answered", "verdict"].map(str::to_owned));
    for row in rows {
        let mut line = vec![row.name.clone()];
        line.extend(KINDS.iter().map(|kind| match row.counts.get(*kind) {
            Some(count) => format!("{}/{}", count.injected, count.failed),
            None => "-".to_owned(),
        }));
        let errnos = row.errnos.iter().map(|(errno, n)| format!("{errno} {n}"));
        line.push(errnos.collect::<Vec<_>>().join(", "));
        line.push(
            if row.verdict == Status::Ok {
                "ok"
            } else {
                "FAILED"
            }
            .to_owned(),
        );
        lines.push(line);
    }
    let width = |column: usize| {
        let widths = lines.iter().map(|line| line[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells
            .map(|(column, (cell, width))| match column {
                1..=5 => format!("{cell:>width$}"),
                _ => format!("{cell:<width$}"),
            })
            .collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"KFI-FAULT {"name":"open","counts":{"slab":{"injected":5,"failed":4}},"errnos":{"ENOMEM":4},"seconds":0.5,"verdict":"ok","detail":""}"#;

    #[test]
    fn rows_are_read_and_shown() {
        let row = parse(ROW).unwrap();
        assert_eq!(row.injected(), 5);
        assert_eq!(parse("something else"), None);
        assert_eq!(
            table(std::slice::from_ref(&row)),
            "call  slab  page  copy  pin  device  answered  verdict\n\
             open   5/4     -     -    -       -  ENOMEM 4  ok\n"
        );
        assert_eq!(line(&row).name, "fault.open");
    }

    #[test]
    fn a_sweep_that_did_not_end_has_failed() {
        assert_eq!(line(&Row::broken("mmap", "gone")).status, Status::Failed);
    }
}
