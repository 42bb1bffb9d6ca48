// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask bench --against FILE`: the ratios that are worse than in an earlier run's report.

use super::Figure;
use anyhow::{Context as _, Result};
use std::collections::BTreeSet;
use std::path::Path;

/// A ratio may get worse by this factor before it is reported.
const TOLERANCE: f64 = 1.03;

/// Reads a report of `--report`.
///
/// # Errors
///
/// If the file cannot be read or has a line that is no figure.
pub(super) fn read(path: &Path) -> Result<Vec<Figure>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("reading the report {}", path.display()))?;
    text.lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("the figure {line}")))
        .collect()
}

/// Compares the ratios of two runs. Returns a line for each that is worse by more than 3 %, and for
/// each that the new run lacks although it ran the benchmark.
pub(super) fn worse(now: &[Figure], before: &[Figure]) -> Vec<String> {
    let ran: BTreeSet<&str> = now.iter().map(|figure| figure.bench.as_str()).collect();
    let mut lines = Vec::new();
    for old in before {
        let (Some(was), true) = (old.ratio, ran.contains(old.bench.as_str())) else {
            continue;
        };
        let name = format!("{} {}", old.bench, old.case);
        let peer = old.peer.as_deref().unwrap_or_default();
        let Some(is) = now
            .iter()
            .find(|new| new.bench == old.bench && new.case == old.case && new.peer == old.peer)
            .and_then(|new| new.ratio)
        else {
            lines.push(format!("{name}: no ratio to {peer} any more, was {was:.3}"));
            continue;
        };
        let factor = if more_is_better(&old.unit) {
            was / is
        } else {
            is / was
        };
        if factor > TOLERANCE {
            let percent = (factor - 1.0) * 100.0;
            lines.push(format!(
                "{name}: {is:.3} of {peer}, was {was:.3} ({percent:.0} % worse)"
            ));
        }
    }
    lines
}

/// Returns whether a larger figure of this unit is the better one.
fn more_is_better(unit: &str) -> bool {
    unit == "IOPS" || unit.ends_with("/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(case: &str, unit: &str, ratio: f64) -> Figure {
        Figure {
            bench: "b".to_owned(),
            case: case.to_owned(),
            value: 1.0,
            unit: unit.to_owned(),
            peer: Some("peer".to_owned()),
            peer_value: Some(1.0),
            ratio: Some(ratio),
            wanted: None,
        }
    }

    #[test]
    fn a_ratio_is_reported_if_it_is_worse_by_more_than_three_percent() {
        let before = [figure("time", "us", 1.0), figure("rate", "MiB/s", 1.0)];
        let same = [figure("time", "us", 1.02), figure("rate", "MiB/s", 0.98)];
        assert_eq!(worse(&same, &before), Vec::<String>::new());
        let better = [figure("time", "us", 0.5), figure("rate", "MiB/s", 2.0)];
        assert_eq!(worse(&better, &before), Vec::<String>::new());
        let bad = [figure("time", "us", 1.1), figure("rate", "MiB/s", 0.9)];
        assert_eq!(
            worse(&bad, &before),
            [
                "b time: 1.100 of peer, was 1.000 (10 % worse)",
                "b rate: 0.900 of peer, was 1.000 (11 % worse)"
            ]
        );
    }

    #[test]
    fn a_missing_ratio_is_reported_if_its_benchmark_ran() {
        let before = [figure("gone", "us", 1.0)];
        assert_eq!(worse(&[], &before), Vec::<String>::new());
        assert_eq!(
            worse(&[figure("other", "us", 1.0)], &before),
            ["b gone: no ratio to peer any more, was 1.000"]
        );
    }
}
