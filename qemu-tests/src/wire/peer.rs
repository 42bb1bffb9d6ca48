// SPDX-License-Identifier: MIT OR Apache-2.0

//! The raw verbs peer (`interop/verbs_peer.c`): a process that executes commands line by line, and
//! can be killed in the middle of one.

use crate::harness::child::where_it_is;
use crate::harness::guest::run;
use crate::harness::skip;
use crate::sys;
use anyhow::{bail, ensure, Context, Result};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Number of the peer's slots.
pub const SLOTS: u64 = 64;

/// Time limit of any command, and of dying: some commands make the peer's own connection manager
/// wait until its retries are used up.
const PATIENCE: Duration = Duration::from_secs(150);

/// The running peer.
pub struct Peer {
    program: PathBuf,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    slow: u32,
    /// Number of uses of each command, and their total time.
    times: BTreeMap<String, (u32, Duration)>,
    /// Every command since the last [`Peer::forget`], with its answer.
    pub trace: Vec<String>,
}

/// Builds the peer, unless an earlier test has.
fn build() -> Result<PathBuf> {
    let dir = std::env::temp_dir();
    let program = dir.join("verbs_peer");
    if program.exists() {
        return Ok(program);
    }
    let source = dir.join("verbs_peer.c");
    let fresh = dir.join("verbs_peer.new");
    std::fs::write(&source, include_str!("../../interop/verbs_peer.c"))?;
    let (from, to) = (source.to_string_lossy(), fresh.to_string_lossy());
    let libs = ["-libverbs", "-lrdmacm"];
    let args = [&["-Wall", "-O1", "-o", &to, &from][..], &libs].concat();
    run("gcc", &args).context("building the raw peer")?;
    std::fs::rename(fresh, &program)?;
    Ok(program)
}

fn spawn(program: &Path) -> Result<(Child, ChildStdin, BufReader<ChildStdout>)> {
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the raw peer")?;
    let stdin = child.stdin.take().context("no input")?;
    let stdout = BufReader::new(child.stdout.take().context("no output")?);
    Ok((child, stdin, stdout))
}

impl Peer {
    /// Builds and starts the peer.
    ///
    /// # Errors
    ///
    /// If it cannot be built, the test is skipped.
    pub fn start(slow: u32) -> Result<Self> {
        let program = match build() {
            Ok(program) => program,
            Err(e) => return skip(format!("{e:#}")),
        };
        let (child, stdin, stdout) = spawn(&program)?;
        Ok(Self {
            program,
            child,
            stdin,
            stdout,
            slow,
            times: BTreeMap::new(),
            trace: Vec::new(),
        })
    }

    /// Clears the trace.
    pub fn forget(&mut self) {
        self.trace.clear();
    }

    /// Gives a command. Returns the words behind "ok", or `None` if it was refused.
    ///
    /// # Errors
    ///
    /// If the peer dies or does not answer.
    pub fn ask(&mut self, command: &str) -> Result<Option<Vec<String>>> {
        self.trace.push(command.to_owned());
        let start = Instant::now();
        writeln!(self.stdin, "{command}").context("the raw peer is gone")?;
        let limit = PATIENCE * self.slow;
        if !sys::poll_in(self.stdout.get_ref().as_fd(), limit)? {
            let at = where_it_is(self.child.id() as i32);
            bail!("the raw peer does not answer {command:?}: {at}");
        }
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            bail!("the raw peer died of {command:?}");
        }
        let line = line.trim_end();
        let verb = command.split(' ').next().unwrap_or_default();
        let time = self.times.entry(verb.to_owned()).or_default();
        *time = (time.0 + 1, time.1 + start.elapsed());
        if let Some(last) = self.trace.last_mut() {
            let short: String = line.chars().take(60).collect();
            *last += &format!(" -> {short} ({} ms)", start.elapsed().as_millis());
        }
        let mut words = line.split(' ').map(str::to_owned);
        match words.next().as_deref() {
            Some("ok") => Ok(Some(words.collect())),
            Some("err") => Ok(None),
            _ => bail!("the raw peer answers {line:?} to {command:?}"),
        }
    }

    /// Returns the time of each command, as text.
    pub fn times(&self) -> String {
        let one = |(verb, (n, took)): (&String, &(u32, Duration))| {
            format!("{n} {verb} {} ms", took.as_millis())
        };
        self.times.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Kills the peer, whatever objects it has, and starts another.
    ///
    /// # Errors
    ///
    /// If it does not die, or no other starts.
    pub fn die(&mut self) -> Result<()> {
        self.trace.push("(killed)".into());
        self.child.kill()?;
        let end = sys::wait_pid(self.child.id() as i32, PATIENCE * self.slow)?;
        ensure!(end.is_some(), "the raw peer cannot be killed");
        (self.child, self.stdin, self.stdout) = spawn(&self.program)?;
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
