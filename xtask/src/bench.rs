// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask bench`: benchmarks in a guest whose clock counts instructions, so that the load of
//! the host does not change the results.
//!
//! `kfi-tests bench` prints a line `KFI-BENCH {…}` for each figure. This module prints these as a
//! table and writes them to a file and to `docs/performance.md`.

mod against;
mod document;
mod profile;

use crate::context::Context;
use crate::guest::output::by_line;
use crate::guest::protocol::Device;
use crate::guest::{Guests, Job, Nodes, Options};
use crate::progress::clock;
use crate::setup::Which;
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run only these benchmarks.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Write figures to this file as they come, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Fail if a ratio is worse by more than 3 % than in this report of an earlier run.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// Write the tables of docs/performance.md from this run.
    #[arg(long)]
    pub write: bool,
    /// Take the figures from this report instead of a run.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["report", "names"])]
    pub from: Option<PathBuf>,
    /// The kind of RDMA device: software RoCE or software iWARP.
    #[arg(long, value_enum, default_value = "rxe")]
    pub device: Device,
    /// CPUs of the guest; with counted time they take turns.
    #[arg(long, value_name = "N", default_value = "1")]
    pub cpus: u32,
    /// Measure wall-clock time instead; needs a quiet machine.
    #[arg(long)]
    pub real_time: bool,
    /// Print instead a profile from a trace of every instruction: of `keys`, of `reg`istrations,
    /// of operations in the `kernel`, of requests of `blk`, or of messages of `libfabric`.
    #[arg(long, conflicts_with_all = ["report", "real_time", "cpus", "against", "write", "from"])]
    pub profile: bool,
    /// Kill the guest after this many seconds.
    #[arg(long, value_name = "S", default_value = "1800")]
    pub timeout: u64,
}

/// A figure, as the guest prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Figure {
    bench: String,
    case: String,
    value: f64,
    unit: String,
    /// The implementation that ours is compared with.
    peer: Option<String>,
    peer_value: Option<f64>,
    /// Our value divided by the peer's.
    ratio: Option<f64>,
    /// The target of the ratio, or of the value.
    wanted: Option<Value>,
}

/// Runs `bench` and returns the exit status.
///
/// # Errors
///
/// If a step of the setup or a build fails, or a report or the page cannot be read or written.
pub fn run(ctx: &Context, args: &Args) -> Result<i32> {
    if args.profile {
        return profile::run(ctx, &args.names, Duration::from_secs(args.timeout));
    }
    let started = Instant::now();
    let before = args.against.as_deref().map(against::read).transpose()?;
    let (figures, status) = match &args.from {
        Some(report) => (against::read(report)?, 0),
        None => measure(ctx, args)?,
    };
    print!("{}", table(&figures));
    println!("took {}", clock(started.elapsed().as_secs()));
    if figures.is_empty() {
        eprintln!("error: no benchmark gave a figure");
        return Ok(status.max(1));
    }
    if args.write {
        let path = ctx.repo.join("docs/performance.md");
        let page = std::fs::read_to_string(&path).context("reading docs/performance.md")?;
        let page = document::write(&page, &figures)?;
        std::fs::write(&path, page).context("writing docs/performance.md")?;
    }
    let worse = against::worse(&figures, &before.unwrap_or_default());
    for line in &worse {
        println!("worse: {line}");
    }
    Ok(match status {
        0 => i32::from(!worse.is_empty()),
        status => status,
    })
}

/// Runs the benchmarks in a guest. Returns their figures and the guest's exit status.
fn measure(ctx: &Context, args: &Args) -> Result<(Vec<Figure>, i32)> {
    let file = args
        .report
        .as_ref()
        .map(|path| {
            std::fs::File::create(path)
                .with_context(|| format!("making the report {}", path.display()))
        })
        .transpose()?;
    let options = Options {
        nodes: Nodes::Netns,
        device: args.device,
        icount: !args.real_time,
        pmem: args.names.is_empty() || args.names.iter().any(|name| name == "pmem"),
        cpus: Some(args.cpus),
        ..Options::default()
    };
    let guests = Guests::prepare(ctx, Which::Main, &options)?;
    let figures = Arc::new(Mutex::new(Vec::new()));
    let sink = by_line({
        let figures = Arc::clone(&figures);
        move |node, _, line| match parse(line) {
            Some(figure) => {
                if let Some(mut file) = file.as_ref() {
                    // Write each figure at once, because a run may be aborted.
                    if let Err(error) = writeln!(file, "{}", json(&figure)) {
                        eprintln!("error: writing the report: {error}");
                    }
                }
                eprintln!("  {} {}", figure.bench, figure.case);
                if let Ok(mut figures) = figures.lock() {
                    figures.push(figure);
                }
            }
            None => eprintln!("    [{node}] {line}"),
        }
    });
    let mut argv = vec!["kfi-tests".to_owned(), "bench".to_owned()];
    argv.extend(args.names.iter().cloned());
    let limit = Duration::from_secs(args.timeout);
    let outcome = guests.with_timeout(limit).run(&Job::new(argv, sink))?;
    outcome.report();
    let figures = figures
        .lock()
        .map(|figures| figures.clone())
        .unwrap_or_default();
    Ok((figures, outcome.status()))
}

/// Parses a line of the guest as a figure.
fn parse(line: &str) -> Option<Figure> {
    serde_json::from_str(line.strip_prefix("KFI-BENCH ")?).ok()
}

fn json(figure: &Figure) -> String {
    serde_json::to_string(figure).unwrap_or_default()
}

/// Formats the figures as a table.
fn table(figures: &[Figure]) -> String {
    let head = [
        "bench", "case", "value", "peer", "peer's", "ratio", "wanted",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for figure in figures {
        let of_unit = |value: f64| format!("{} {}", number(value), figure.unit);
        rows.push([
            figure.bench.clone(),
            figure.case.clone(),
            of_unit(figure.value),
            figure.peer.clone().unwrap_or_default(),
            figure.peer_value.map(of_unit).unwrap_or_default(),
            figure.ratio.map(number).unwrap_or_default(),
            match &figure.wanted {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            },
        ]);
    }
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, width))| match column {
                2 | 4 | 5 => format!("{cell:>width$}"),
                _ => format!("{cell:<width$}"),
            })
            .collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Formats a number with about four significant digits.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"KFI-BENCH {"bench":"key","case":"4 KiB","value":12.5,"unit":"us","peer":"ibv_reg_mr","peer_value":50.0,"ratio":0.25,"wanted":"<= 0.5"}"#;

    #[test]
    fn a_figure_is_read_with_or_without_a_peer() {
        let figure = parse(LINE).unwrap();
        assert_eq!((figure.value, figure.ratio), (12.5, Some(0.25)));
        let alone = r#"KFI-BENCH {"bench":"b","case":"c","value":1,"unit":"us","peer":null,"peer_value":null,"ratio":null,"wanted":null}"#;
        assert_eq!(parse(alone).unwrap().peer, None);
        assert_eq!(parse("something else"), None);
        assert_eq!(parse(&format!("KFI-BENCH {}", json(&figure))), Some(figure));
    }

    #[test]
    fn the_table_is_aligned() {
        let text = table(&[parse(LINE).unwrap()]);
        assert_eq!(
            text,
            "bench  case      value  peer          peer's  ratio  wanted\n\
             key    4 KiB  12.50 us  ibv_reg_mr  50.00 us  0.250  <= 0.5\n"
        );
    }
}
