// SPDX-License-Identifier: MIT OR Apache-2.0

//! libfabric's own tests (fabtests) over the plug-in, unmodified: the sources are the distribution's.
//!
//! The programs are in a layer (`xtask/src/setup/layers/fabtests.rs`), which guests mount.

mod quick;
mod uber;

use crate::harness::child::announce;
use crate::harness::{skip, Ctx, Test, SHM_LONG};
use crate::sys;
use anyhow::{ensure, Context, Result};
use quick::{How, Outcome, Program, Setting};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("conformance.first_quick_test_of_each_program_passes", first).seconds(120),
    Test::pair(
        "conformance.quick_set_passes_where_other_providers_pass",
        compare,
    )
    .on(SHM_LONG)
    .seconds(360),
    Test::pair("conformance.atomics_of_the_quick_set_pass", atomics)
        .on(SHM_LONG)
        .seconds(160),
    Test::pair("conformance.combinations_of_ubertest_pass", combinations)
        .on(SHM_LONG)
        .seconds(300),
];

/// The layer with the programs.
const LAYER: &str = "/opt/kfabric-fabtests";

/// Tests of the quick set, with the capability that they need and that the plug-in and `ofi_rxm` lack. They may
/// fail: if a program finds no provider, its peer loses the connection for the exchange of addresses.
const ABSENT: &[(&str, &str)] = &[
    ("dgram", "datagrams without connections"),
    ("fi_rdm_rma_trigger", "triggered operations"),
];

/// Tests that by default register 128 buffers of 8 MiB and 4 KiB, and take a size. rxe cannot register more
/// than 1 GiB: kverbs refuses, and over libfabric's verbs the kernel warns, which would end the guest.
const SIZED: &[&str] = &["fi_multi_ep", "fi_inject_test"];

/// A test that registers as much and takes no size. Over the plug-in [`SIZE`] makes the buffers smaller. Over
/// libfabric's verbs the test does not run.
const LARGE: &str = "fi_recv_cancel";

/// Atomics: some minutes for each test on emulated processors. Over a provider whose sends may complete after
/// the peer's answer, such as rxe, the test may find a wrong value: `ofi_rxm` frees the buffer of a request
/// when the answer arrives, and takes the late completion for that of the buffer's next use
/// (`RXM_ATOMIC_RESP_WAIT` in its `rxm_cq.c`).
const ATOMIC: &str = "fi_rdm_atomic";

/// Tests that take half a minute and more on emulated processors.
const SLOW: &[&str] = &[ATOMIC, "fi_cq_test", "fi_flood"];

/// The variable that makes buffers of fabtests smaller.
const SIZE: &str = "FI_KFABRIC_MAX_MSG_SIZE";

/// Time limit of a test, which is that of the script.
const LIMIT: Duration = Duration::from_secs(120);
/// Time limit of a test of atomics.
const LIMIT_OF_ATOMICS: Duration = Duration::from_secs(400);

/// Time limit of a configuration of `fi_ubertest`.
const LIMIT_OF_COMBINATIONS: Duration = Duration::from_secs(900);

/// Returns whether the name of a test has one of these words.
fn has(test: &Program, words: &[&str]) -> bool {
    words.iter().any(|word| test.line.contains(word))
}

/// Returns whether a test may fail: [`ABSENT`].
fn is_absent(test: &Program) -> bool {
    ABSENT.iter().any(|(word, _)| test.line.contains(word))
}

/// Reads the quick set of the layer's script.
fn tests() -> Result<Vec<Program>> {
    if !Path::new(LAYER).is_dir() {
        skip(format!("the guest has no layer {LAYER}"))?;
    }
    let script = format!("{LAYER}/scripts/runfabtests.sh");
    let script = std::fs::read_to_string(&script).context(script)?;
    let tests = quick::read(&script);
    ensure!(tests.len() > 90, "the script has {} tests", tests.len());
    Ok(tests)
}

/// A provider under comparison.
struct Provider<'a> {
    /// Name for libfabric.
    name: &'a str,
    /// Name in messages.
    label: &'a str,
    /// Name of the plug-in's domain, or empty.
    domain: &'a str,
    addr: &'a str,
}

impl Provider<'_> {
    /// Runs a test. `size` is the value of [`SIZE`], or empty.
    fn run(&self, test: &Program, size: &str, args: &[&str]) -> Result<(Outcome, String)> {
        let mut vars = vec![("FI_PROVIDER_PATH", "/kfi/bin")];
        if !self.domain.is_empty() {
            vars.push(("FI_KFABRIC_DOMAIN", self.domain));
        }
        if !size.is_empty() {
            vars.push((SIZE, size));
        }
        if self.name.starts_with("verbs") {
            // `ofi_rxm` opens queues for so many peers, and rxe's are small.
            vars.push(("FI_UNIVERSE_SIZE", "4"));
        }
        let limit = match has(test, &[ATOMIC]) {
            true => LIMIT_OF_ATOMICS,
            false => LIMIT,
        };
        let setting = Setting {
            programs: &Path::new(LAYER).join("bin"),
            provider: self.name,
            addr: self.addr,
            vars: &vars,
            args,
            limit: sys::patience(limit),
        };
        setting.run(test)
    }
}

/// Chooses the first test of each program and kind of endpoint, without those of [`SLOW`].
fn firsts(tests: Vec<Program>) -> Vec<Program> {
    let mut seen = Vec::new();
    let key = |test: &Program| {
        let words: Vec<&str> = test.line.split_whitespace().collect();
        let after = |flag: &str| {
            let at = words.iter().position(|word| *word == flag)?;
            words.get(at + 1).copied()
        };
        let kind = after("-e").unwrap_or_default().to_owned();
        (words[0].to_owned(), kind, test.how == How::Refused)
    };
    let is_first = |test: &Program| {
        let key = key(test);
        let first = !seen.contains(&key);
        seen.push(key);
        first
    };
    let mut tests = tests;
    tests.retain(is_first);
    tests.retain(|test| !has(test, SLOW));
    tests
}

/// Runs the first test of each program, with buffers for messages of 64 KiB.
fn first(ctx: &mut Ctx) -> Result<()> {
    let tests = firsts(tests()?);
    if ctx.first() {
        let addr = ctx.env.addr.to_string();
        let (domain, addr) = match ctx.provider() {
            "kshm" => ("shm", "127.0.0.1"),
            _ => (ctx.env.dev.as_str(), addr.as_str()),
        };
        let ours = Provider {
            name: "kfabric",
            label: ctx.provider(),
            domain,
            addr,
        };
        let mut passed = 0;
        for test in tests.iter().filter(|test| !is_absent(test)) {
            let (outcome, said) = ours.run(test, "65536", &[])?;
            ensure!(outcome != Outcome::Fail, "{said}");
            passed += usize::from(outcome == Outcome::Pass);
        }
        ensure!(passed >= 32, "{passed} of {} tests passed", tests.len());
    }
    wait(ctx)
}

/// Waits until the other half is here.
fn wait(ctx: &mut Ctx) -> Result<()> {
    ctx.ctl
        .set_limit(sys::patience(Duration::from_secs(9000)))?;
    ctx.barrier("done")
}

/// Results of a provider by test.
type Results = BTreeMap<String, Outcome>;

/// Runs the quick set over a provider. Returns the results and the output of failed tests.
fn results(of: &Provider<'_>, tests: &[Program]) -> Result<(Results, Vec<String>)> {
    let (mut results, mut failures) = (Results::new(), Vec::new());
    let whole = Instant::now();
    for test in tests {
        let size = match of.domain.is_empty() || !has(test, &[LARGE]) {
            true => "",
            false => "1048576",
        };
        let args: &[&str] = match test.list {
            "short_tests" => &["-S", "65536"],
            _ if has(test, SIZED) => &["-S", "256"],
            _ => &[],
        };
        let started = Instant::now();
        let ran = match of.name.starts_with("verbs") && has(test, &[LARGE]) {
            true => Ok((Outcome::NotRun, String::new())),
            false => of.run(test, size, args),
        };
        // A program that cannot be run is a failed test, and the others follow.
        let (outcome, said) =
            ran.unwrap_or_else(|error| (Outcome::Fail, format!("{} -p : {error:#}", test.line)));
        let took = started.elapsed().as_secs_f32();
        announce(&format!(
            "{}: {} {outcome:?} ({took:.1} s)",
            of.label, test.line
        ));
        if outcome == Outcome::Fail {
            failures.push(said);
        }
        results.insert(test.line.clone(), outcome);
    }
    let count = |wanted| {
        results
            .values()
            .filter(|outcome| **outcome == wanted)
            .count()
    };
    announce(&format!(
        "{}: {} passed, {} failed, {} not run ({:.0} s)",
        of.label,
        count(Outcome::Pass),
        count(Outcome::Fail),
        count(Outcome::NotRun),
        whole.elapsed().as_secs_f32()
    ));
    Ok((results, failures))
}

/// Runs the quick set without atomics over both kernel providers, tcp and verbs, and compares. The plug-in's
/// name alone stands for `kfabric;ofi_rxm` in the tests of `FI_EP_RDM`.
fn compare(ctx: &mut Ctx) -> Result<()> {
    let mut tests = tests()?;
    tests.retain(|test| !has(test, &[ATOMIC]));
    if ctx.first() {
        compare_all(ctx, &tests)?;
    }
    wait(ctx)
}

/// Runs the atomics of the quick set over kshm.
fn atomics(ctx: &mut Ctx) -> Result<()> {
    let mut tests = tests()?;
    tests.retain(|test| has(test, &[ATOMIC]));
    if ctx.first() {
        let ours = Provider {
            name: "kfabric",
            label: ctx.provider(),
            domain: "shm",
            addr: "127.0.0.1",
        };
        let (results, failures) = results(&ours, &tests)?;
        ensure!(failures.is_empty(), "{}", failures.join("\n"));
        let passed = results.values().filter(|of| **of == Outcome::Pass).count();
        ensure!(passed == tests.len(), "{passed} of {} passed", tests.len());
    }
    wait(ctx)
}

/// Runs `fi_ubertest` over both kernel providers, by connected endpoints and by `ofi_rxm`.
fn combinations(ctx: &mut Ctx) -> Result<()> {
    tests()?;
    if ctx.first() {
        let addr = ctx.env.addr.to_string();
        for (domain, addr) in [("shm", "127.0.0.1"), (&ctx.env.dev, &addr)] {
            let vars = [
                ("FI_PROVIDER_PATH", "/kfi/bin"),
                ("FI_KFABRIC_DOMAIN", domain),
            ];
            for (kind, config) in [("msg", uber::MSG), ("rdm", uber::RDM)] {
                let programs = Path::new(LAYER).join("bin");
                let started = Instant::now();
                let limit = sys::patience(LIMIT_OF_COMBINATIONS);
                let passed = uber::run(&programs, addr, &vars, config, limit)
                    .with_context(|| format!("{kind} over {domain}"))?;
                let took = started.elapsed().as_secs_f32();
                announce(&format!(
                    "{kind} over {domain}: {passed} passed ({took:.0} s)"
                ));
            }
        }
    }
    wait(ctx)
}

fn compare_all(ctx: &Ctx, tests: &[Program]) -> Result<()> {
    let (dev, addr) = (ctx.env.dev.as_str(), ctx.env.addr.to_string());
    let of = |name, label, domain, addr| Provider {
        name,
        label,
        domain,
        addr,
    };
    let ours = [
        of("kfabric", "kfabric over kshm", "shm", "127.0.0.1"),
        of("kfabric", "kfabric over kverbs", dev, &addr),
    ];
    let others = [
        of("verbs;ofi_rxm", "verbs;ofi_rxm", "", addr.as_str()),
        of("tcp;ofi_rxm", "tcp;ofi_rxm", "", addr.as_str()),
    ];
    let mut theirs = Vec::new();
    for provider in &others {
        theirs.push((provider.label, results(provider, tests)?.0));
    }
    let mut faults = Vec::new();
    for provider in &ours {
        let (own, failures) = results(provider, tests)?;
        let may_fail = |said: &String| {
            let of = |test: &&Program| said.starts_with(&format!("{} -p ", test.line));
            tests.iter().find(of).is_some_and(is_absent)
        };
        faults.extend(failures.into_iter().filter(|said| !may_fail(said)));
        for (label, theirs) in &theirs {
            faults.extend(behind((provider.label, &own), (label, theirs)));
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// Returns the tests that pass over another provider and not over ours, and a message if ours does not
/// pass more of them.
fn behind(ours: (&str, &Results), theirs: (&str, &Results)) -> Vec<String> {
    let passes = |of: &Results, test: &str| of.get(test) == Some(&Outcome::Pass);
    let only = theirs.1.keys();
    let only = only.filter(|test| passes(theirs.1, test) && !passes(ours.1, test));
    let mut faults: Vec<String> = only
        .map(|test| format!("{test} passes over {} and not {}", theirs.0, ours.0))
        .collect();
    let count = |of: &Results| of.keys().filter(|test| passes(of, test)).count();
    let (more, less) = (count(ours.1), count(theirs.1));
    if more <= less {
        faults.push(format!("{more} pass {}, {less} over {}", ours.0, theirs.0));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(of: &[(&str, Outcome)]) -> Results {
        let own = |(test, outcome): &(&str, Outcome)| ((*test).to_owned(), *outcome);
        of.iter().map(own).collect()
    }

    #[test]
    fn comparison_finds_tests_that_pass_only_over_the_other_provider() {
        use Outcome::{Fail, NotRun, Pass};
        let ours = results(&[("a", Pass), ("b", NotRun), ("c", Pass), ("d", Fail)]);
        let theirs = results(&[("a", Pass), ("b", NotRun), ("c", NotRun), ("d", Fail)]);
        let of = |ours, theirs| behind(("ours", ours), ("theirs", theirs)).len();
        assert_eq!(of(&ours, &theirs), 0);
        // `c`, and the count.
        assert_eq!(of(&theirs, &ours), 2);
        assert_eq!(of(&ours, &ours), 1);
    }

    #[test]
    fn first_test_of_each_program_and_endpoint_is_chosen() {
        let test = |line: &str, how| Program {
            line: line.to_owned(),
            how,
            list: "",
        };
        let tests = vec![
            test("fi_msg g00n13s", How::Refused),
            test("fi_msg", How::Pair),
            test("fi_rma_bw -e msg -o write", How::Pair),
            test("fi_rma_bw -e msg -o read", How::Pair),
            test("fi_rma_bw -e rdm -o write", How::Pair),
            test("fi_rdm_atomic -I 5", How::Pair),
        ];
        let lines: Vec<String> = firsts(tests).into_iter().map(|test| test.line).collect();
        let wanted = [
            "fi_msg g00n13s",
            "fi_msg",
            "fi_rma_bw -e msg -o write",
            "fi_rma_bw -e rdm -o write",
        ];
        assert_eq!(lines, wanted);
    }
}
