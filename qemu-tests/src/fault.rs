// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fault injection: every call, with its 1st, 2nd, … nth failure of each kind.
//!
//! A [`Case`](sweep::Case) makes one call. The sweep runs it again and again: with the first
//! allocation in it failing, then the second, until it has run without a failure; then the same
//! with page allocations, user copies, pins and calls of the device ([`inject::Kind`]). Each time
//! that the call fails
//!
//! * its errno must be one that the failure explains,
//! * its structure must not have been written to,
//! * objects, descriptors and pins of this process must be as before,
//! * and the same call, made again without a failure, must succeed.
//!
//! Failures in the connection manager's own tasks are in [`background`]; the API for kernel
//! consumers is swept by the module `kfi_test_fault`, whose results [`kernel`] reads. [`reserve`] shows
//! that an assignment on a key slot allocates no memory.
//!
//! This needs a kernel with fault injection.

pub mod background;
pub mod calls;
pub mod inject;
pub mod kernel;
pub mod lab;
pub mod reserve;
pub mod state;
pub mod sweep;

use crate::harness::{Env, Skip};
use anyhow::Result;
use sweep::{Case, Row, Verdict};

/// Extent of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Every place.
    Whole,
    /// Each of the first places, then fewer and fewer, for half a minute.
    Quick,
    /// None: each call is made once, on any kernel, to test the cases.
    Dry,
}

/// Reports that a sweep begins: if the guest dies, this sweep was the cause.
fn begin(name: &str) {
    println!("KFI-FAULT-BEGIN {name}");
}

/// Returns whether a name contains one of the patterns, which commas separate.
fn is_one(name: &str, patterns: &str) -> bool {
    patterns.split(',').any(|pattern| name.contains(pattern))
}

/// Runs every case whose name contains one of `only`, printing a row for each as it ends. Returns
/// whether all passed.
///
/// # Errors
///
/// If the kernel cannot inject failures.
pub fn run(env: &Env, only: &str, how: How) -> Result<bool> {
    let quick = how == How::Quick;
    let knobs = match how {
        How::Dry => inject::Knobs::dry(),
        How::Quick | How::Whole => inject::Knobs::open()?,
    };
    let cases = calls::all();
    let mut rows = Vec::new();
    let spared = |case: &Case| quick && case.long && only.is_empty();
    for case in cases
        .iter()
        .filter(|case| is_one(&case.name(), only) && !spared(case))
    {
        begin(&case.name());
        rows.push(sweep::run(case, env, &knobs, quick).told());
    }
    if how == How::Dry {
        return Ok(passed(&rows));
    }
    for case in background::CASES
        .iter()
        .filter(|case| is_one(case.name, only))
    {
        begin(case.name);
        rows.push(background::run(case, env, &knobs, quick).told());
    }
    for case in reserve::CASES.iter().filter(|case| is_one(case.name, only)) {
        begin(case.name);
        rows.push(reserve::run(case, env, &knobs).told());
    }
    let named = only
        .split(',')
        .any(|pattern| pattern.starts_with(kernel::PREFIX));
    if named || is_one(kernel::PREFIX, only) {
        begin(kernel::PREFIX);
        match kernel::run(|name| is_one(name, only)) {
            Ok(found) => rows.extend(found.into_iter().map(Row::told)),
            Err(e) if e.is::<Skip>() => eprintln!("{e}"),
            Err(e) => rows.push(Row::broken(kernel::PREFIX, &format!("{e:#}")).told()),
        }
    }
    Ok(passed(&rows))
}

fn passed(rows: &[Row]) -> bool {
    !rows.is_empty() && rows.iter().all(|row| row.verdict == Verdict::Ok)
}
