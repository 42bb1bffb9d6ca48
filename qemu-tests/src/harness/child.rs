// SPDX-License-Identifier: MIT OR Apache-2.0

//! One half of a test, in a process of its own.

use super::result::Part;
use super::{Ctl, Ctx, Env, Outcome, Skip, Status, Test};
use crate::sys;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Exit status of a half that cannot run here.
const SKIPPED: i32 = 77;

/// Runs a test in this process, with `fd` as the line to the other half. Returns the exit status.
pub fn main(test: &Test, env: Env, fd: RawFd) -> i32 {
    sys::die_with_parent();
    // The runner has left this descriptor open for this process alone.
    let stream = TcpStream::from(sys::own_fd(fd));
    let limit = test.limit();
    let result = Ctl::new(stream, limit).and_then(|ctl| {
        let mut ctx = Ctx { env, ctl };
        ctx.barrier("start")?;
        ctx.need(test.needs)?;
        (test.run)(&mut ctx)?;
        if test.loses_peer {
            return Ok(());
        }
        ctx.barrier("end")
    });
    match result {
        Ok(()) => 0,
        Err(e) if e.is::<Skip>() => {
            eprintln!("{e}");
            SKIPPED
        }
        Err(e) => {
            eprintln!("{e:#}");
            1
        }
    }
}

/// Prefix of an output line that is a result beside the half's own.
const PART: &str = "KFI-PART ";

/// Reports a result beside the test's own.
pub fn tell(part: &Part) {
    if let Ok(json) = serde_json::to_string(part) {
        println!("{PART}{json}");
    }
}

/// Prefix of an output line that the runner prints at once.
const NOW: &str = "KFI-NOW ";

/// Reports progress, which the runner prints before the test ends.
pub fn announce(text: &str) {
    println!("{NOW}{text}");
}

/// Reads the progress from the growing output of a half.
struct Progress {
    log: File,
    /// Output after the last whole line.
    rest: Vec<u8>,
}

impl Progress {
    /// Returns the progress since the last call.
    fn news(&mut self) -> Vec<String> {
        // A read that fails is repeated by the next call.
        let _ = self.log.read_to_end(&mut self.rest);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let rest = self.rest.split_off(end + 1);
        let lines = std::mem::replace(&mut self.rest, rest);
        String::from_utf8_lossy(&lines)
            .lines()
            .filter_map(|line| Some(line.strip_prefix(NOW)?.to_owned()))
            .collect()
    }
}

/// Extracts the additional results from a half's output.
fn parts(said: &str) -> (Vec<Part>, String) {
    let mut parts = Vec::new();
    let mut rest = String::new();
    for line in said.lines() {
        match line
            .strip_prefix(PART)
            .and_then(|json| serde_json::from_str(json).ok())
        {
            Some(part) => parts.push(part),
            None => {
                rest += line;
                rest.push('\n');
            }
        }
    }
    (parts, rest)
}

/// A running half.
pub struct Half {
    child: Child,
    log: PathBuf,
    progress: Progress,
    start: Instant,
    limit: Duration,
}

impl Half {
    /// Starts a half of `test` with a line to the other.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(test: &Test, env: &Env, line: &TcpStream) -> Result<Self> {
        sys::keep_over_exec(line)?;
        let log = std::env::temp_dir().join(format!("kfi-tests.{}.{}.log", env.node, test.name));
        let out = File::create(&log).with_context(|| log.display().to_string())?;
        let progress = Progress {
            log: File::open(&log)?,
            rest: Vec::new(),
        };
        let mut cmd = Command::new(std::env::current_exe()?);
        cmd.args([
            "child",
            "--topology",
            &env.topology.to_string(),
            "--test",
            test.name,
        ]);
        cmd.args(["--fd", &line.as_raw_fd().to_string()]);
        cmd.env("RUST_BACKTRACE", "0")
            .env("KFI_NODE", env.node.to_string())
            .env("KFI_SEED", env.seed.to_string());
        cmd.stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0);
        let child = cmd.spawn().context("cannot start a half of the test")?;
        let limit = sys::patience(test.limit());
        Ok(Self {
            child,
            log,
            progress,
            start: Instant::now(),
            limit,
        })
    }

    /// Waits for the half, kills it when its time is up, and kills the processes that it left.
    pub fn wait(mut self) -> Outcome {
        let pid = self.child.id() as i32;
        let mut late = String::new();
        let status = loop {
            for line in self.progress.news() {
                println!("# {line}");
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                break Some(status);
            }
            let took = self.start.elapsed();
            if late.is_empty() && took > self.limit {
                late = format!("no end after {} s", self.limit.as_secs());
                let _ = write!(late, "; {}", where_it_is(pid));
                let _ = sys::kill(-pid, libc::SIGKILL);
            }
            if took > self.limit + Duration::from_secs(30) {
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let seconds = (self.start.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
        let _ = sys::kill(-pid, libc::SIGKILL);
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let _ = std::fs::remove_file(&self.log);
        let (parts, said) = parts(&said);
        let (status, mut detail) = judge(status, &said);
        if status == Status::Failed || std::env::var_os("KFI_VERBOSE").is_some() {
            said.lines().for_each(|line| println!("# {line}"));
        }
        if !late.is_empty() {
            detail = format!("{late}; {detail}");
        }
        Outcome {
            status,
            seconds,
            detail,
            parts,
        }
    }
}

/// Judges an exit status and the last words.
fn judge(status: Option<ExitStatus>, said: &str) -> (Status, String) {
    let words = last_words(said);
    let Some(status) = status else {
        return (Status::Failed, format!("it cannot be killed; {words}"));
    };
    match (status.code(), status.signal()) {
        (Some(0), _) => (Status::Ok, String::new()),
        (Some(SKIPPED), _) => (
            Status::Skipped,
            said.lines().last().unwrap_or_default().to_owned(),
        ),
        (_, Some(signal)) => (Status::Failed, format!("ended by signal {signal}; {words}")),
        _ => (Status::Failed, words),
    }
}

/// Returns the end of an output, short enough for one line.
fn last_words(said: &str) -> String {
    const MOST: usize = 1200;
    let text = said.trim().replace('\n', " / ");
    match text.char_indices().rev().nth(MOST) {
        Some((at, _)) => format!("…{}", &text[at..]),
        None => text,
    }
}

/// Returns the kernel stacks of a process's threads, to be shown when it hangs.
pub fn where_it_is(pid: i32) -> String {
    let mut out = String::new();
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return out;
    };
    for task in tasks.flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let stack = read("stack");
        let calls = stack
            .lines()
            .filter_map(|l| l.split_whitespace().nth(1)?.split('+').next());
        let calls: Vec<_> = calls.take(8).collect();
        let _ = write!(out, "[{} {}] ", read("comm").trim(), calls.join(" < "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_judged() {
        let status = |raw| Some(ExitStatus::from_raw(raw));
        assert_eq!(judge(status(0), "talk").0, Status::Ok);
        assert_eq!(
            judge(status(77 << 8), "x\nno rxe"),
            (Status::Skipped, "no rxe".into())
        );
        assert_eq!(
            judge(status(1 << 8), "a\nb"),
            (Status::Failed, "a / b".into())
        );
        assert!(judge(status(9), "").1.contains("signal 9"));
        assert!(judge(None, "").1.contains("cannot be killed"));
    }

    #[test]
    fn parts_are_taken_out() {
        let said = "a\nKFI-PART {\"name\":\"x\",\"status\":\"ok\",\"detail\":\"\"}\nb\n";
        let (parts, rest) = parts(said);
        assert_eq!((parts.len(), rest.as_str()), (1, "a\nb\n"));
    }

    #[test]
    fn long_words_are_cut_in_front() {
        let long = "x".repeat(5000) + "end";
        assert!(last_words(&long).ends_with("end"));
        assert!(last_words(&long).len() < 1300);
    }

    #[test]
    fn progress_is_read_once_and_in_whole_lines() {
        let path = std::env::temp_dir().join(format!("kfi-progress-{}", std::process::id()));
        let mut out = File::create(&path).unwrap();
        let log = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let rest = Vec::new();
        let mut progress = Progress { log, rest };
        let mut after = |text: &str| {
            std::io::Write::write_all(&mut out, text.as_bytes()).unwrap();
            progress.news()
        };
        assert_eq!(after("other\nKFI-NOW a b\nKFI-N"), ["a b"]);
        assert_eq!(after("OW c"), [""; 0]);
        assert_eq!(after("\n"), ["c"]);
    }
}
