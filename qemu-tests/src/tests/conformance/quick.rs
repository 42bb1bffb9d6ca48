// SPDX-License-Identifier: MIT OR Apache-2.0

//! The quick set of fabtests: reads the lists of `runfabtests.sh`, and runs a test as the script does.
//!
//! The script itself ends no server whose client has failed, so the tests after a failure fail, too.

use crate::sys;
use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Lists of the script that make up its quick set, with the way in which their tests run.
const LISTS: [(&str, How); 4] = [
    ("unit_tests", How::Alone),
    ("neg_unit_tests", How::Refused),
    ("functional_tests", How::Pair),
    ("short_tests", How::Pair),
];

/// Exit status of a program that finds no provider for its hints, and of one whose call is absent.
const ABSENT: [i32; 2] = [libc::ENODATA, libc::ENOSYS];

/// How the script runs a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// One program.
    Alone,
    /// One program, which must find no provider.
    Refused,
    /// A server and a client.
    Pair,
}

/// A test of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    /// The program and its arguments, as in the script.
    pub(super) line: String,
    pub(super) how: How,
    /// The script's list.
    pub(super) list: &'static str,
}

/// The script's result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Pass,
    Fail,
    NotRun,
}

/// Where and how tests run.
pub(super) struct Setting<'a> {
    /// Folder of the programs.
    pub(super) programs: &'a Path,
    /// Name of the provider for libfabric.
    pub(super) provider: &'a str,
    pub(super) addr: &'a str,
    /// Variables of the programs.
    pub(super) vars: &'a [(&'a str, &'a str)],
    /// Further arguments.
    pub(super) args: &'a [&'a str],
    /// Time limit of a test.
    pub(super) limit: Duration,
}

/// Reads the quick set from the text of the script.
pub(super) fn read(script: &str) -> Vec<Program> {
    let mut all = Vec::new();
    for (list, how) in LISTS {
        let lines = script
            .lines()
            .skip_while(|line| *line != format!("{list}=("));
        let tests = lines.skip(1).take_while(|line| !line.starts_with(')'));
        all.extend(tests.map(|line| Program {
            line: line.trim().trim_matches('"').to_owned(),
            how,
            list,
        }));
    }
    all
}

/// Judges exit statuses as the script does.
fn judge(how: How, ended: &[i32]) -> Outcome {
    let all = |status: i32| ended.iter().all(|other| *other == status);
    match how {
        How::Refused if all(libc::ENODATA) => Outcome::Pass,
        How::Refused => Outcome::Fail,
        _ if ABSENT.into_iter().any(all) => Outcome::NotRun,
        _ if all(0) => Outcome::Pass,
        _ => Outcome::Fail,
    }
}

/// A running program, with all its children.
pub(super) struct Running(Child);

impl Running {
    /// Starts a program, which writes to the file `said`.
    pub(super) fn start(command: &mut Command, said: &Path) -> Result<Self> {
        let out = File::create(said).with_context(|| said.display().to_string())?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?);
        command.stderr(out).process_group(0);
        let child = command.spawn();
        Ok(Self(child.with_context(|| format!("{command:?}"))?))
    }

    /// Returns the exit status: 124 if the program has not ended in time, as `timeout` has it.
    pub(super) fn wait(&mut self, until: Instant) -> Result<i32> {
        while Instant::now() < until {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status.code().unwrap_or(128));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(124)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The group's number is the program's. A group that has ended is none of ours to report.
        if let Ok(pid) = i32::try_from(self.0.id()) {
            let _ = sys::kill(-pid, libc::SIGKILL);
        }
        let _ = self.0.wait();
    }
}

impl Setting<'_> {
    /// Starts a program, which writes to `said`.
    fn start(&self, test: &Program, said: &Path, args: &[&str]) -> Result<Running> {
        let line = test.line.replace("GOOD_ADDR", self.addr);
        let line = line.replace("SERVER_ADDR", self.addr);
        let mut words = line.split_whitespace();
        let name = words.next().context("a test without a name")?;
        let mut command = Command::new(self.programs.join(name));
        command.args(words).args(["-p", self.provider]);
        if test.how == How::Pair {
            command.args(self.args);
        }
        command.args(args).envs(self.vars.iter().copied());
        Running::start(&mut command, said)
    }

    /// Runs a test. Returns its result and the output of its programs.
    pub(super) fn run(&self, test: &Program) -> Result<(Outcome, String)> {
        let until = Instant::now() + self.limit;
        let files = ["server", "client"].map(|name| std::env::temp_dir().join(name));
        let server = ["-s", self.addr];
        let args = match test.how {
            How::Pair => &server[..],
            _ => &[],
        };
        let mut server = self.start(test, &files[0], args)?;
        let mut ended = Vec::new();
        if test.how == How::Pair {
            std::thread::sleep(Duration::from_secs(1));
            let args = ["-s", self.addr, self.addr];
            let status = self.start(test, &files[1], &args)?.wait(until)?;
            ended.push(status);
            if status != 0 {
                let until = Instant::now() + sys::patience(Duration::from_secs(2));
                ended.push(server.wait(until)?);
            }
        }
        if ended.len() < 2 {
            ended.push(server.wait(until)?);
        }
        let mut said = format!("{} -p {}: {ended:?}\n", test.line, self.provider);
        for file in &files[..ended.len()] {
            let text = std::fs::read(file).unwrap_or_default();
            // The end of a program's output says why the program failed.
            let text = &text[text.len().saturating_sub(2000)..];
            said += &String::from_utf8_lossy(text);
        }
        Ok((judge(test.how, &ended), said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_set_is_read_from_the_lists_of_the_script() {
        let script = "neg_unit_tests=(\n\t\"fi_msg g00n13s\"\n)\n\nfunctional_tests=(\n\t\"fi_av_xfer -e rdm\"\n\
                      \t\"fi_msg\"\n)\nstandard_tests=(\n\t\"fi_msg_bw\"\n)\nunit_tests=(\n\t\"fi_eq_test\"\n)\n";
        let read = read(script);
        let read: Vec<_> = read.iter().map(|p| (p.line.as_str(), p.how)).collect();
        let wanted = [
            ("fi_eq_test", How::Alone),
            ("fi_msg g00n13s", How::Refused),
            ("fi_av_xfer -e rdm", How::Pair),
            ("fi_msg", How::Pair),
        ];
        assert_eq!(read, wanted);
    }

    #[test]
    fn test_without_provider_is_not_run_and_one_lost_program_fails() {
        use Outcome::{Fail, NotRun, Pass};
        let (nodata, nosys) = (libc::ENODATA, libc::ENOSYS);
        for (how, ended, outcome) in [
            (How::Alone, &[0][..], Pass),
            (How::Alone, &[nosys], NotRun),
            (How::Alone, &[1], Fail),
            (How::Refused, &[nodata], Pass),
            (How::Refused, &[0], Fail),
            (How::Pair, &[0, 0], Pass),
            (How::Pair, &[nodata, nodata], NotRun),
            (How::Pair, &[nodata, nosys], Fail),
            (How::Pair, &[nodata, 124], Fail),
            (How::Pair, &[0, 22], Fail),
        ] {
            assert_eq!(judge(how, ended), outcome, "{how:?} {ended:?}");
        }
    }
}
