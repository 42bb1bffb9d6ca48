// SPDX-License-Identifier: MIT OR Apache-2.0

//! The API for kernel consumers: the module `kfi_test_fault` sweeps it, once for each kind.

use super::inject::{Kind, Knobs};
use super::sweep::{Count, Row};
use crate::harness::leaks::Baseline;
use crate::harness::Status;
use crate::tests::kernel::results;
use anyhow::Result;
use std::collections::BTreeMap;
use std::time::Instant;

/// Prefix of the rows' names.
pub const PREFIX: &str = "kernel.";

/// Kinds of failures that a kernel consumer meets; it copies nothing from a program.
const KINDS: [Kind; 3] = [Kind::Slab, Kind::Page, Kind::Device];

/// Sweeps the cases whose name is `wanted`, and makes rows of the module's reports.
///
/// # Errors
///
/// If the module does not load or reports nothing.
pub fn run(wanted: impl Fn(&str) -> bool) -> Result<Vec<Row>> {
    let knobs = Knobs::open()?;
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for kind in KINDS {
        knobs.choose(kind)?;
        let start = Instant::now();
        let mut baseline = Baseline::take();
        let told = results("kfi_test_fault");
        let left = baseline.leaks();
        let parts = match told {
            Ok(parts) => parts,
            Err(e) if e.is::<crate::harness::Skip>() => return Err(e),
            Err(e) => {
                let name = format!("{PREFIX}{}", kind.name());
                rows.insert(name.clone(), Row::broken(&name, &format!("{e:#}")));
                continue;
            }
        };
        let seconds = start.elapsed().as_secs_f64() / parts.len().max(1) as f64;
        for part in parts {
            let name = format!("{PREFIX}{}", part.name);
            let row = rows.entry(name.clone()).or_insert_with(|| Row::new(&name));
            row.seconds = ((row.seconds + seconds) * 10.0).round() / 10.0;
            take_in(row, kind, &part.notes);
            if part.status != Status::Ok {
                row.fail(&format!("{}: {}", kind.name(), part.detail));
            }
        }
        if !left.is_empty() {
            let name = format!("{PREFIX}leftovers");
            let row = rows.entry(name.clone()).or_insert_with(|| Row::new(&name));
            row.fail(&format!("{}: {}", kind.name(), left.join("; ")));
        }
    }
    let found = rows.into_values();
    Ok(found.filter(|row| wanted(&row.name)).collect())
}

/// Reads `swept INJECTED FAILED ERRNO=COUNT…`.
fn take_in(row: &mut Row, kind: Kind, notes: &[String]) {
    let swept = notes.iter().find_map(|note| note.strip_prefix("swept "));
    let mut words = swept.unwrap_or_default().split_whitespace();
    let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let count = Count {
        injected: number(),
        failed: number(),
    };
    if count.injected > 0 {
        row.counts.insert(kind.name().to_owned(), count);
    }
    for word in words {
        if let Some((errno, times)) = word.split_once('=') {
            let errno = crate::sys::Errno(errno.parse().unwrap_or(0));
            *row.errnos.entry(errno.name().to_owned()).or_default() += times.parse().unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_module_tells_becomes_a_row() {
        let mut row = Row::new("kernel.cq_open");
        take_in(&mut row, Kind::Slab, &["swept 7 5 12=4 5=1".into()]);
        assert_eq!(
            row.counts["slab"],
            Count {
                injected: 7,
                failed: 5
            }
        );
        assert_eq!((row.errnos["ENOMEM"], row.errnos["EIO"]), (4, 1));
    }
}
