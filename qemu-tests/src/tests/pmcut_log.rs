// SPDX-License-Identifier: MIT OR Apache-2.0

//! Workload of `cargo xtask pmcut --target log`: the example `kfi-pmlog`, as users run it.
//!
//! Node 1 serves the NVDIMM. Node 2 appends records by the program, and is killed now and then. As in
//! [`pmcut`](super::pmcut), the host hears of each record before the program has it, and after the program
//! has reported it to be appended or has recovered it.

use super::examples::{log_client, log_server, run_log};
use super::pmcut::Channel;
use super::pmem::Device;
use crate::harness::guest::until;
use crate::harness::{Ctx, Test, POWER_CUT, POWER_CUT_VERBS};
use crate::pair::WAIT;
use crate::pmcut_message::{mix, sum, text, Message, Write, KEPT, WRITES};
use anyhow::{ensure, Context, Result};
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("pmcut.log_kept", kept)
        .seconds(20)
        .on(POWER_CUT | POWER_CUT_VERBS),
    Test::pair("pmcut.log_writes", writes)
        .seconds(60)
        .on(POWER_CUT | POWER_CUT_VERBS),
];

/// One of this many appends is killed, within this time.
const KILL: u64 = 32;
const KILL_WITHIN: u64 = 4000;

/// Returns the file with the records that the power failure left.
fn left() -> PathBuf {
    Path::new("/host").join(KEPT)
}

/// Serves the NVDIMM until the other node is done.
fn serve(ctx: &mut Ctx) -> Result<()> {
    let (device, _) = Device::Nvdimm.make()?;
    let mut server = log_server(ctx, &device.display().to_string())?;
    let done = ctx.barrier("listening").and_then(|()| ctx.barrier("end"));
    server.kill()?;
    server.wait()?;
    done
}

/// Shows the records after a power failure, and compares them with those that the host found.
fn kept(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let (_, number) = Device::Nvdimm.region()?;
        // The device-dax device was made before the power failure.
        let path = format!("/dev/dax{number}.0");
        until("the device-dax device", WAIT, || {
            Ok(Path::new(&path).exists().then_some(()))
        })?;
        return serve(ctx);
    }
    ctx.barrier("listening")?;
    let there = run_log(ctx, "show")?;
    let kept = fs::read_to_string(left()).context("the records that the host found")?;
    ensure!(there == kept, "the program finds {there:?}, not {kept:?}");
    ctx.barrier("end")
}

/// A run of the program that appends.
struct Appender {
    running: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Appender {
    /// Starts the program. Returns it, and the number of records that it has recovered.
    fn start(ctx: &Ctx) -> Result<(Self, u64)> {
        // The server rejects the program while it has the one that was killed.
        until("the program that appends", WAIT, || {
            let mut running = Command::new("kfi-pmlog")
                .args(log_client(ctx, "append"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let mut this = Self {
                input: running.stdin.take().context("no input")?,
                output: BufReader::new(running.stdout.take().context("no output")?),
                running,
            };
            let said = this.line()?;
            let Some(count) = said.strip_prefix("recovered ") else {
                ensure!(said.is_empty(), "the program: {said}");
                this.running.wait()?;
                return Ok(None);
            };
            let count = count.split(' ').next().unwrap_or_default().parse()?;
            Ok(Some((this, count)))
        })
    }

    /// Returns the next line of the program; an empty one if it has ended.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Kills the program.
    fn kill(&mut self) -> Result<()> {
        self.running.kill()?;
        self.running.wait()?;
        Ok(())
    }
}

/// Returns the length of the next record.
fn length(random: u64) -> u64 {
    let longest = match random % 10 {
        0 => 65_536,
        1..=4 => 4096,
        _ => 100,
    };
    1 + (random >> 8) % longest
}

fn writes(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        return serve(ctx);
    }
    ctx.barrier("listening")?;
    let (channel, address) = Channel::open()?;
    let count: u64 = std::env::var(WRITES).context(WRITES)?.parse()?;
    let seed = ctx.env.seed;
    if !left().exists() {
        run_log(ctx, "create")?;
    }
    channel.say(0, Message::Hello { address, seed });
    let (mut program, mut there) = Appender::start(ctx)?;
    let mut random = seed;
    for number in 1..=count {
        random = mix(random);
        let len = length(random);
        let write = Write {
            number,
            offset: 0,
            len,
            by_words: false,
        };
        let mut record = text(seed, &write);
        let durable = Message::Durable {
            number,
            sum: sum(&record),
        };
        record.push(b'\n');
        channel.say(0, Message::Begin(write));
        program.input.write_all(&record)?;
        random = mix(random);
        let dies = random.is_multiple_of(KILL);
        if dies {
            std::thread::sleep(Duration::from_micros((random >> 8) % KILL_WITHIN));
            program.kill()?;
        }
        let said = program.line()?;
        let mut is_durable = said == format!("appended {there}");
        if is_durable {
            channel.say(0, durable);
        }
        if dies {
            let recovered;
            (program, recovered) = Appender::start(ctx)?;
            if !is_durable && recovered == there + 1 {
                is_durable = true;
                channel.say(0, durable);
            }
            let wanted = there + u64::from(is_durable);
            ensure!(recovered == wanted, "{recovered} records, not {wanted}");
        } else {
            ensure!(is_durable, "record {there}: the program says {said:?}");
        }
        there += u64::from(is_durable);
    }
    drop(program.input);
    let status = program.running.wait()?;
    ensure!(status.success(), "the program: {status}");
    channel.say(0, Message::End);
    ctx.barrier("end")
}
