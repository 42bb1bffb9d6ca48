// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask soak`: long tests, which take too long to run after every change.
//!
//! The [`PARTS`] run in turns, each in its own guests, until the time is over. Random numbers start
//! from a seed that is printed. With the same seed and time, the same parts run with the same seeds
//! again.

mod nightly;

use crate::context::Context;
use crate::guest::output::by_line;
use crate::guest::protocol::Stream;
use crate::guest::{Guests, Job, Kernel, Nodes, Options};
use crate::progress::clock;
use crate::setup::Which;
use anyhow::Result;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The arguments of `soak`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run time in minutes.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub minutes: u64,
    /// Seed of the random numbers [default: from the clock].
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// The distribution's kernel, or one with every checker enabled.
    #[arg(long, value_enum, default_value = "stock")]
    pub kernel: Kernel,
    /// Run only parts whose name contains this.
    #[arg(long, value_name = "PATTERN", default_value = "")]
    pub only: String,
    /// Run all long tests once, within 8 hours: the debug kernel's suite, all faults, the fuzzer
    /// with its requirement, storms, the tests with thousands of rounds.
    #[arg(long, conflicts_with_all = ["minutes", "kernel"])]
    pub nightly: bool,
}

/// A part of the soak.
struct Part {
    name: &'static str,
    nodes: Nodes,
    /// The command without `--seed S`.
    command: &'static [&'static str],
    /// Length of a turn.
    turn: Duration,
    length: Length,
    /// The required kernel, which overrides the option.
    kernel: Option<Kernel>,
    /// Memory of each guest, if the default is too small.
    mem: Option<&'static str>,
}

/// Control of the length of a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    /// The command has an argument in seconds, and is repeated until then.
    Again,
    /// The command has an argument in seconds.
    Told,
    /// The command has its own length.
    Own,
}

const fn minutes(n: u64) -> Duration {
    Duration::from_secs(n * 60)
}

/// All parts, in the order of their turns. A new part is a new row.
const PARTS: &[Part] = &[
    Part {
        name: "storm-netns",
        nodes: Nodes::Netns,
        command: &["kfi-tests", "run", "--topology", "netns", "--only", "storm"],
        turn: minutes(4),
        length: Length::Again,
        kernel: None,
        mem: None,
    },
    Part {
        name: "storm-2",
        nodes: Nodes::Two,
        command: &["kfi-tests", "run", "--topology", "2", "--only", "storm"],
        turn: minutes(4),
        length: Length::Again,
        kernel: None,
        mem: None,
    },
    Part {
        name: "storm-shm",
        nodes: Nodes::One,
        command: &["kfi-tests", "run", "--topology", "shm", "--only", "storm"],
        turn: minutes(4),
        length: Length::Again,
        kernel: None,
        mem: None,
    },
    Part {
        name: "long-2",
        nodes: Nodes::Two,
        command: &[
            "kfi-tests",
            "run",
            "--topology",
            "long",
            "--except",
            "keys.,blk.,blkdev.,devices.",
        ],
        turn: minutes(7),
        length: Length::Own,
        kernel: None,
        mem: None,
    },
    Part {
        name: "devices-long-2",
        nodes: Nodes::Two,
        command: &[
            "kfi-tests",
            "run",
            "--topology",
            "long",
            "--only",
            "devices.",
        ],
        // 100,000 keys over each profile, and ten minutes of a user who burns values.
        turn: minutes(20),
        length: Length::Own,
        kernel: None,
        mem: None,
    },
    Part {
        name: "long-shm",
        nodes: Nodes::One,
        command: &[
            "kfi-tests",
            "run",
            "--topology",
            "shm-long",
            "--except",
            "mpi.,conformance.",
        ],
        turn: minutes(15),
        length: Length::Own,
        kernel: None,
        mem: None,
    },
    Part {
        name: "mpi-long-shm",
        nodes: Nodes::One,
        command: &[
            "kfi-tests",
            "run",
            "--topology",
            "shm-long",
            "--only",
            "mpi.",
        ],
        // Ten minutes of messages, and mpi4py's suite over two implementations.
        turn: minutes(23),
        length: Length::Own,
        kernel: None,
        mem: None,
    },
    Part {
        name: "conformance-long",
        nodes: Nodes::One,
        command: &[
            "kfi-tests",
            "run",
            "--topology",
            "shm-long",
            "--only",
            "conformance.",
        ],
        turn: minutes(36),
        length: Length::Own,
        kernel: None,
        // Two processes with 1 GiB each.
        mem: Some("4G"),
    },
    Part {
        name: "keys-netns",
        nodes: Nodes::Netns,
        command: &["kfi-tests", "run", "--topology", "netns", "--only", "p03_"],
        turn: minutes(3),
        length: Length::Again,
        kernel: None,
        mem: None,
    },
    Part {
        name: "fuzz",
        nodes: Nodes::One,
        command: &["kfi-fuzz", "run"],
        turn: minutes(5),
        length: Length::Told,
        kernel: Some(Kernel::Debug),
        mem: None,
    },
    Part {
        name: "suite-debug",
        nodes: Nodes::Netns,
        command: &["kfi-tests", "run", "--topology", "netns"],
        turn: minutes(15),
        length: Length::Again,
        kernel: Some(Kernel::Debug),
        mem: None,
    },
    Part {
        name: "keys-long-2",
        nodes: Nodes::Two,
        command: &["kfi-tests", "run", "--topology", "long", "--only", "keys."],
        turn: minutes(25),
        length: Length::Own,
        kernel: None,
        mem: None,
    },
    Part {
        name: "blk-long-2",
        nodes: Nodes::Two,
        command: &[
            "kfi-tests",
            "run",
            "--topology",
            "long",
            "--only",
            "blk.,blkdev.",
        ],
        turn: minutes(75),
        length: Length::Own,
        kernel: None,
        mem: None,
    },
];

/// The shortest useful turn.
const LEAST: Duration = Duration::from_secs(90);
/// Additional time of a turn: boot, the last round, the end.
const GRACE: Duration = minutes(8);

/// Result of a turn.
struct Turn {
    name: &'static str,
    seed: u64,
    took: Duration,
    passed: usize,
    failed: usize,
    /// Faults found in the turn.
    faults: Vec<String>,
}

/// Runs `soak` and returns the exit status: 0 only if no fault was found.
///
/// # Errors
///
/// If no guest can be prepared.
pub fn run(ctx: &Context, args: &Args) -> Result<i32> {
    let seed = args.seed.unwrap_or_else(any_seed);
    if args.nightly {
        return nightly::run(ctx, seed, &args.only);
    }
    let prepare = |kernel| {
        let options = Options {
            kernel,
            layers: true,
            ..Options::default()
        };
        Guests::prepare(ctx, Which::Main, &options)
    };
    let asked = prepare(args.kernel)?;
    let mut debug = None;
    let whole = minutes(args.minutes);
    println!(
        "{} minutes on {}, seed {seed}",
        args.minutes,
        asked.release()
    );
    let started = Instant::now();
    let mut turns: Vec<Turn> = Vec::new();
    let parts = PARTS.iter().filter(|part| part.name.contains(&args.only));
    for (number, part) in parts.cycle().enumerate() {
        let left = whole.saturating_sub(started.elapsed());
        if left < LEAST && number > 0 {
            break;
        }
        // A part with its own length is skipped if the remaining time is too short.
        if part.length == Length::Own && left < part.turn && number > 0 {
            if args.only.is_empty() {
                continue;
            }
            break;
        }
        let seed = seed + 1000 * number as u64;
        let guests = match part.kernel {
            Some(kernel) if kernel != args.kernel => match &mut debug {
                Some(guests) => guests,
                none => none.insert(prepare(kernel)?),
            },
            _ => &asked,
        };
        let turn = one(guests, part, seed, part.turn.min(left), args.kernel)?;
        show(&turn);
        turns.push(turn);
    }
    let failed = turns.iter().filter(|turn| !turn.faults.is_empty()).count();
    println!("\nseed {seed}, {}:", clock(started.elapsed().as_secs()));
    turns.iter().for_each(show);
    println!("{} turns, {failed} with faults", turns.len());
    Ok(i32::from(failed > 0 || turns.is_empty()))
}

/// Returns a random seed that is short enough to type.
fn any_seed() -> u64 {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
    now.map_or(1, |time| u64::from(time.subsec_micros()))
}

fn show(turn: &Turn) {
    println!(
        "{:4} {:12} seed {:<8} {:>6}  {} passed, {} failed",
        if turn.faults.is_empty() { "ok" } else { "FAIL" },
        turn.name,
        turn.seed,
        clock(turn.took.as_secs()),
        turn.passed,
        turn.failed
    );
    for fault in &turn.faults {
        println!("       {}", fault.replace('\n', "\n       "));
    }
}

/// Runs one turn of a part.
fn one(
    guests: &Guests<'_>,
    part: &Part,
    seed: u64,
    length: Duration,
    kernel: Kernel,
) -> Result<Turn> {
    let kernel = part.kernel.unwrap_or(kernel);
    let mut argv: Vec<String> = part.command.iter().map(|word| (*word).to_owned()).collect();
    argv.extend(["--seed".to_owned(), seed.to_string()]);
    if part.length == Length::Again {
        argv.push("--again".to_owned());
    }
    if part.length != Length::Own {
        argv.extend(["--seconds".to_owned(), length.as_secs().to_string()]);
    }
    println!("\n{}: {}", part.name, argv.join(" "));
    let told = Arc::new(Mutex::new((0, Vec::new())));
    let sink = by_line({
        let told = Arc::clone(&told);
        move |node, stream, line| {
            if let Ok(mut told) = told.lock() {
                let (passed, faults) = &mut *told;
                hear(node, stream, line, passed, faults);
            }
        }
    });
    let mut guests = guests.with_nodes(part.nodes);
    if let Some(mem) = part.mem {
        guests = guests.with_mem(mem);
    }
    let guests = guests.with_timeout(length + GRACE * kernel.slowness());
    let started = Instant::now();
    let outcome = guests.run(&Job::new(argv.clone(), sink))?;
    outcome.report();
    let (passed, mut faults) = told
        .lock()
        .map(|mut t| std::mem::take(&mut *t))
        .unwrap_or_default();
    let failed = faults.len();
    faults.extend(outcome.problems.iter().cloned());
    faults.extend(outcome.left.iter().cloned());
    faults.extend(outcome.unload.iter().cloned());
    for (guest, complaint) in &outcome.complaints {
        faults.push(format!("guest {guest}: {}", complaint.line));
    }
    if outcome.status() != 0 && faults.is_empty() {
        faults.push(format!("exit status {}", outcome.status()));
    }
    if passed == 0 && faults.is_empty() {
        faults.push("nothing was run".into());
    }
    Ok(Turn {
        name: part.name,
        seed,
        took: started.elapsed(),
        passed,
        failed,
        faults,
    })
}

/// Handles a line that a node printed: counts a result, prints any other line.
fn hear(node: u8, stream: Stream, line: &str, passed: &mut usize, faults: &mut Vec<String>) {
    let result = line.strip_prefix("KFI-RESULT ").filter(|_| node == 1);
    let result = result.and_then(|text| serde_json::from_str::<crate::report::Line>(text).ok());
    match result {
        Some(line) if line.status == crate::report::Status::Failed => {
            println!("FAIL {} {}: {}", line.name, line.place, line.detail);
            faults.push(format!("{}: {}", line.name, line.detail));
        }
        Some(line) => {
            println!("ok   {} {} ({:.1} s)", line.name, line.place, line.seconds);
            *passed += 1;
        }
        None if line.starts_with("KFI-START") => {}
        None if stream == Stream::Out => println!("[{node}] {line}"),
        None => eprintln!("[{node}] {line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        let (mut passed, mut faults) = (0, Vec::new());
        let mut say = |line: &str| hear(1, Stream::Out, line, &mut passed, &mut faults);
        say(r#"KFI-RESULT {"name":"a","status":"ok","seconds":1.0,"where":"netns","detail":""}"#);
        say(
            r#"KFI-RESULT {"name":"b","status":"failed","seconds":1.0,"where":"netns","detail":"x"}"#,
        );
        say("# seed 5");
        assert_eq!((passed, faults), (1, vec!["b: x".to_owned()]));
    }

    #[test]
    fn parts_have_names_of_their_own() {
        let names: std::collections::HashSet<_> = PARTS.iter().map(|part| part.name).collect();
        assert_eq!(names.len(), PARTS.len());
        assert!(PARTS.iter().all(|part| part.turn >= LEAST));
    }
}
