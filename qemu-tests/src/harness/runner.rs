// SPDX-License-Identifier: MIT OR Apache-2.0

//! The two runners. Node 1 leads, node 2 follows its orders.

use super::caps::LACKS;
use super::child::Half;
use super::leaks::Baseline;
use super::result::{fault_of, join, Fault, Line, Part};
use super::{ctl, Ctl, Env, Outcome, Status, Test};
use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::Child;
use std::time::{Duration, Instant};

/// Time for which the nodes wait for each other at the start.
const START: Duration = Duration::from_secs(120);
/// Time limit of an answer that needs no work.
const ANSWER: Duration = Duration::from_secs(60);

/// An order of node 1 to node 2.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Run one half of the test.
    Run(String),
    /// Check for leftovers.
    Look,
    /// No orders follow.
    End,
}

/// The tests to run, and their limits.
pub struct Plan {
    /// The tests, in order.
    pub tests: Vec<Test>,
    /// Time after which no test begins.
    pub time: Option<Duration>,
    /// Whether the tests are repeated, each time with the next seed, until time is up or one fails.
    pub again: bool,
}

impl Plan {
    /// Chooses the topology's tests whose name contains `only` and is one of `names` (empty: any).
    /// A test that loses the peer comes last.
    pub fn choose(
        all: &[Test],
        topology: super::Topology,
        only: &[String],
        names: &[String],
    ) -> Self {
        let chosen = |t: &&Test| {
            t.topologies & topology.bit() != 0
                && (only.is_empty() || only.iter().any(|part| t.name.contains(part.as_str())))
                && (names.is_empty() || names.iter().any(|n| n == t.name))
        };
        let mut tests: Vec<_> = all.iter().filter(chosen).copied().collect();
        tests.sort_by_key(|t| t.loses_peer);
        Self {
            tests,
            time: None,
            again: false,
        }
    }
}

/// Runs the plan on this node. Returns whether no test failed.
///
/// # Errors
///
/// If the nodes do not find each other, or lose each other.
pub fn run(plan: &Plan, env: &Env) -> Result<bool> {
    if env.node == 1 {
        // Without a peer, the other half runs on this node too.
        let other = if env.has_peer() {
            None
        } else {
            Some(second_runner(env)?)
        };
        let done = lead(plan, env);
        if let Some(mut other) = other {
            let _ = other.wait();
        }
        return done;
    }
    follow(plan, env)?;
    Ok(true)
}

fn second_runner(env: &Env) -> Result<Child> {
    let mut cmd = std::process::Command::new("/proc/self/exe");
    cmd.args(["run", "--topology", &env.topology.to_string()]);
    cmd.env("KFI_NODE", "2")
        .env("KFI_PEER", env.addr.to_string());
    cmd.spawn().context("cannot start the second runner")
}

fn lead(plan: &Plan, env: &Env) -> Result<bool> {
    let listener = ctl::listen()?;
    let stream = ctl::accept(&listener, START)?;
    let mut line = Ctl::new(stream, ANSWER)?;
    let mut baseline = Baseline::take();
    let mut counts = [0usize; 3];
    let mut lacks = BTreeMap::new();
    let start = Instant::now();
    let mut env = env.clone();
    loop {
        println!("# seed {}", env.seed);
        let up = || plan.time.is_some_and(|time| start.elapsed() > time);
        for (number, test) in plan.tests.iter().enumerate() {
            let rest = plan.tests.len() - number;
            if up() {
                println!("# {rest} tests were not begun: time is up");
                break;
            }
            let (status, detail) = lead_shown(test, &env, &listener, &mut line, &mut baseline)
                .with_context(|| format!("node 2 is lost; {} tests were not run", rest - 1))?;
            if let Some(names) = detail.strip_prefix(LACKS) {
                for name in names.split(", ") {
                    *lacks.entry(name.to_owned()).or_insert(0usize) += 1;
                }
            }
            counts[status as usize] += 1;
            if test.loses_peer {
                // Node 2 has ended. The host boots both guests again for the remaining tests.
                println!("# {} tests were not begun: node 2 is gone", rest - 1);
                break;
            }
        }
        if !plan.again || up() || counts[Status::Failed as usize] > 0 {
            break;
        }
        env.seed += 1;
    }
    let _ = line.send(&Order::End);
    for (name, tests) in &lacks {
        println!("# {LACKS}{name} ({tests} tests)");
    }
    let [ok, failed, skipped] = counts;
    println!(
        "# {}: {ok} passed, {failed} failed, {skipped} skipped in {:.0} s",
        env.topology.place(),
        start.elapsed().as_secs_f64()
    );
    Ok(failed == 0)
}

/// Runs a test and prints its result.
fn lead_shown(
    test: &Test,
    env: &Env,
    listener: &TcpListener,
    line: &mut Ctl,
    baseline: &mut Baseline,
) -> Result<(Status, String)> {
    println!("KFI-START {}", test.name);
    let result = lead_one(test, env, listener, line, baseline);
    let lost = result.is_err();
    let (status, seconds, detail, fault) = result.unwrap_or_else(|e| {
        let why = format!("the nodes lost each other: {e:#}");
        (Status::Failed, 0.0, why, None)
    });
    let place = env.topology.place().to_owned();
    Line {
        name: test.name.to_owned(),
        status,
        seconds,
        place,
        detail: detail.clone(),
        fault,
    }
    .print();
    if lost && !test.loses_peer {
        bail!("no word of it");
    }
    Ok((status, detail))
}

fn lead_one(
    test: &Test,
    env: &Env,
    listener: &TcpListener,
    line: &mut Ctl,
    baseline: &mut Baseline,
) -> Result<(Status, f64, String, Option<Fault>)> {
    line.set_limit(ANSWER)?;
    line.send(&Order::Run(test.name.to_owned()))?;
    let half = {
        let stream = ctl::accept(listener, ANSWER)?;
        Half::start(test, env, &stream)?
    };
    let mine = half.wait();
    if test.loses_peer {
        let leaks = baseline.leaks();
        let (status, detail) = join(&[(1, mine.clone())], &leaks);
        let fault = fault_of(status, &detail, &leaks);
        return Ok((status, mine.seconds, detail, fault));
    }
    line.set_limit(test.limit() + Duration::from_secs(90))?;
    let theirs: Outcome = line.recv().context("waiting for node 2 to end the test")?;
    line.send(&Order::Look)?;
    let mut leaks = baseline.leaks();
    let others: Vec<String> = line
        .recv()
        .context("waiting for node 2 to look for leftovers")?;
    leaks.extend(others.into_iter().map(|l| format!("node 2: {l}")));
    let seconds = mine.seconds.max(theirs.seconds);
    for part in mine.parts.iter().chain(&theirs.parts) {
        let Part {
            name,
            status,
            detail,
        } = part.clone();
        let place = env.topology.place().to_owned();
        Line {
            name,
            status,
            seconds: 0.0,
            place,
            fault: fault_of(status, &detail, &[]),
            detail,
        }
        .print();
    }
    let (status, detail) = join(&[(1, mine), (2, theirs)], &leaks);
    let fault = fault_of(status, &detail, &leaks);
    Ok((status, seconds, detail, fault))
}

fn follow(plan: &Plan, env: &Env) -> Result<()> {
    let leader = env.peer_at(ctl::PORT);
    let mut line = Ctl::new(ctl::connect(leader, START)?, Duration::from_secs(3600))?;
    let mut baseline = Baseline::take();
    loop {
        match line.recv()? {
            Order::Run(name) => {
                let planned = plan.tests.iter().find(|t| t.name == name).copied();
                let test = planned.or_else(|| crate::tests::find(&name));
                let test =
                    test.with_context(|| format!("node 1 wants {name:?}, which is unknown here"))?;
                let half = {
                    let stream = ctl::connect(leader, ANSWER)?;
                    Half::start(&test, env, &stream)?
                };
                line.send(&half.wait())?;
            }
            Order::Look => line.send(&baseline.leaks())?,
            Order::End => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Ctx, Topology, ONE};
    use super::*;

    fn nothing(_: &mut Ctx) -> Result<()> {
        Ok(())
    }

    #[test]
    fn a_plan_has_what_was_asked_for() {
        let all = [
            Test::pair("b.last", nothing).loses_peer(),
            Test::pair("a.one", nothing),
            Test::alone("a.two", nothing),
            Test::alone("c.one", nothing).on(ONE),
        ];
        let names = |plan: Plan| plan.tests.iter().map(|t| t.name).collect::<Vec<_>>();
        assert_eq!(
            names(Plan::choose(&all, Topology::Netns, &[], &[])),
            ["a.one", "a.two", "b.last"]
        );
        assert_eq!(
            names(Plan::choose(&all, Topology::One, &[], &[])),
            ["c.one"]
        );
        assert_eq!(
            names(Plan::choose(&all, Topology::Netns, &["last".into()], &[])),
            ["b.last"]
        );
        assert_eq!(
            names(Plan::choose(&all, Topology::Netns, &[], &["a.two".into()])),
            ["a.two"]
        );
    }
}
