// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of the test run: tests that fail on purpose run in real guests, and each must be judged as
//! TESTING.md says. Cases without a guest are tested in `piece.rs`.

use super::guests;
use super::piece::{Listed, Stage};
use super::session::Failures;
use crate::context::Context;
use crate::guest::{Guests, Nodes, Options};
use crate::report::{Line, Report, Status};
use crate::setup::Which;
use anyhow::Result;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Place of the tests.
const PLACE: &str = "planted";
/// Time limit of all planted tests.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// A planted test, and its expected result.
struct Plant {
    name: &'static str,
    /// Expected status of the test itself.
    status: Status,
    /// The check around the stage that fails because of the test.
    fails: Option<&'static str>,
    /// Expected number of repetitions.
    repeats: usize,
}

const fn plant(
    name: &'static str,
    status: Status,
    fails: Option<&'static str>,
    repeats: usize,
) -> Plant {
    Plant {
        name,
        status,
        fails,
        repeats,
    }
}

const PLANTS: &[Plant] = &[
    plant("planted.passes", Status::Ok, None, 0),
    plant("planted.fails_once", Status::Flaky, None, 1),
    plant("planted.fails_always", Status::Failed, None, 2),
    plant("planted.finds_wrong_data", Status::Failed, None, 0),
    plant("planted.leaves_a_process", Status::Failed, None, 0),
    plant(
        "planted.warns",
        Status::Failed,
        Some("kernel-log.planted"),
        0,
    ),
    plant(
        "planted.panics",
        Status::Failed,
        Some("kernel-log.planted"),
        0,
    ),
    plant("planted.hangs", Status::Failed, None, 0),
];

/// Runs each planted test in its own guests and reports whether the run judged it correctly.
///
/// # Errors
///
/// If no guest can be prepared.
pub fn run(ctx: &Context, only: &str, report: &Report) -> Result<()> {
    let options = Options {
        nodes: Nodes::Netns,
        ..Options::default()
    };
    let guests = Guests::prepare(ctx, Which::Main, &options)?;
    for plant in PLANTS.iter().filter(|plant| plant.name.contains(only)) {
        let started = Instant::now();
        let faults = judge(&guests, plant)?;
        let name = format!("selftest.{}", plant.name);
        report.add(Line {
            seconds: started.elapsed().as_secs_f64(),
            ..Line::check(name, "selftest", &faults)
        });
    }
    Ok(())
}

/// Returns the differences between the expected and the actual judgement of a planted test.
fn judge(guests: &Guests<'_>, plant: &Plant) -> Result<Vec<String>> {
    let inner = Arc::new(Report::new(None)?);
    let tests = [Listed {
        name: plant.name.to_owned(),
        limit: 30,
    }];
    let stages = [Stage::new(
        Box::new(guests.with_nodes(Nodes::Netns)),
        "planted",
        PLACE,
        Instant::now() + LIMIT,
        &tests,
        Failures::Repeat,
    )];
    stages[0].run(vec![plant.name.to_owned()], &inner);
    guests::repeat(&stages, &inner);
    let mut faults = Vec::new();
    let Some(line) = inner.find(plant.name, PLACE) else {
        return Ok(vec!["no result".into()]);
    };
    if line.status != plant.status {
        faults.push(format!(
            "{:?}, not {:?}: {}",
            line.status, plant.status, line.detail
        ));
    }
    let repeats = line.detail.matches("\nagain, ").count();
    if repeats != plant.repeats {
        faults.push(format!("ran again {repeats} times, not {}", plant.repeats));
    }
    for check in ["kernel-log.planted", "leftovers.planted", "unload.planted"] {
        let failed = inner
            .find(check, PLACE)
            .is_some_and(|line| line.status == Status::Failed);
        if failed != (plant.fails == Some(check)) {
            faults.push(format!(
                "{check} {}",
                if failed { "failed" } else { "passed" }
            ));
        }
    }
    Ok(faults)
}
