// SPDX-License-Identifier: MIT OR Apache-2.0

//! Command lines of documents and man pages, and their execution.
//!
//! In a document, the word after the fence tells what a block is:
//!
//! | block | meaning |
//! |---|---|
//! | `sh` | commands, each of which must succeed |
//! | `sh fails` | one command, which must fail and print the lines of the next `text` |
//! | `sh test=NAME` | commands that the test NAME runs |
//! | `console` | commands after a prompt (`$ `, `# `, `1# `), and output |
//! | `text` | lines of the output of the commands above |
//! | another word | no commands |
//!
//! In a man page, commands are the lines of EXAMPLES that begin with a prompt. An ordinary user of the
//! group rdma runs the commands after `$ `, and root runs the others.
//!
//! All commands of a recipe run in one shell, which ends at the first failure, also at a failure of
//! `A` in `A && B`. Commands in the list [`Exception`] do not run.

use crate::harness::guest::until;
use crate::sys::{self, Ended};
use anyhow::{bail, ensure, Context, Result};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A command that no test can run.
#[derive(Debug)]
pub struct Exception {
    /// Name of the document or page.
    pub document: &'static str,
    /// Beginning of the command line.
    pub command: &'static str,
    /// Reason, for the reader.
    pub reason: &'static str,
}

/// Commands with a result.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Line of the document, from 1.
    pub line: usize,
    /// Shell commands.
    pub script: String,
    /// Whether the command must fail.
    pub fails: bool,
    /// Lines of the output that the document shows.
    pub shown: Vec<String>,
}

/// The commands of a document or page.
#[derive(Debug)]
pub struct Recipe {
    /// Name of the document or page.
    pub name: String,
    /// Commands in their order.
    pub steps: Vec<Step>,
    /// Tests that run the other commands.
    pub tests: Vec<String>,
}

/// Shell function that runs its argument as an ordinary user of the group rdma.
const AS_USER: &str = "\
as_user() {
    local rdma
    rdma=$(getent group rdma | cut -d: -f3)
    setpriv --reuid=65534 --regid=65534 --groups=\"$rdma\" bash -eo pipefail -c \"$1\"
}";
/// Mark before a command that an ordinary user runs.
const USER: &str = "$ ";

/// Returns the command after a prompt, and the mark [`USER`] if the prompt is an ordinary user's.
fn prompted(line: &str) -> Option<&str> {
    let of_root = ["# ", "1# ", "2# "]
        .iter()
        .find_map(|prompt| line.strip_prefix(prompt));
    of_root.or_else(|| line.starts_with(USER).then_some(line))
}

/// Returns a line of a step as the shell runs the line.
fn executed(line: &str) -> String {
    let mut text = match line.strip_prefix(USER) {
        None => line.to_owned(),
        Some(command) => {
            let (command, end) = match command.strip_suffix('&') {
                Some(command) => (command.trim_end(), " &"),
                None => (command, ""),
            };
            format!("as_user '{}'{end}", command.replace('\'', "'\\''"))
        }
    };
    let goes_on = ["\\", "&&", "||", "|"]
        .iter()
        .any(|end| line.ends_with(end));
    if line.contains(" && ") && !goes_on {
        // `set -e` ignores a failure before the last `&&`.
        text += "\ntest $? = 0 || exit 98";
    }
    text
}

impl Recipe {
    /// Reads a document in Markdown.
    ///
    /// # Errors
    ///
    /// If a block has no word after its fence, or an unknown mark, or if no output is shown of a
    /// command that must fail.
    pub fn document(name: &str, text: &str) -> Result<Self> {
        let mut recipe = Self::empty(name);
        let mut lines = text.lines().enumerate();
        while let Some((at, line)) = lines.next() {
            let Some(info) = line.strip_prefix("```") else {
                continue;
            };
            let body: Vec<&str> = lines
                .by_ref()
                .map(|(_, line)| line)
                .take_while(|line| !line.starts_with("```"))
                .collect();
            let (kind, mark) = info.split_once(' ').unwrap_or((info, ""));
            let step = Step {
                line: at + 1,
                script: body.join("\n"),
                fails: mark == "fails",
                shown: Vec::new(),
            };
            match (kind, mark) {
                ("sh", "" | "fails") => recipe.steps.push(step),
                ("sh", _) => {
                    let test = mark.strip_prefix("test=");
                    let test = test.with_context(|| format!("{name}:{}: {mark:?}", at + 1))?;
                    recipe.tests.push(test.to_owned());
                }
                ("console", _) => recipe.console(at + 1, &body),
                ("text", _) => {
                    let last = recipe.steps.last_mut();
                    let last = last.with_context(|| format!("{name}:{}: no command", at + 1))?;
                    last.shown
                        .extend(body.iter().map(|line| (*line).to_owned()));
                }
                ("", _) => bail!("{name}:{}: a block without a word", at + 1),
                _ => {}
            }
        }
        let mute =
            |step: &&Step| step.fails && step.shown.iter().all(|line| line.trim().is_empty());
        if let Some(step) = recipe.steps.iter().find(mute) {
            // Without the message any failure would do.
            bail!(
                "{name}:{}: no output of the failing command is shown",
                step.line
            );
        }
        Ok(recipe)
    }

    /// Reads the section EXAMPLES of a man page.
    pub fn page(name: &str, text: &str) -> Self {
        let mut recipe = Self::empty(name);
        let mut inside = false;
        for (at, line) in text.lines().enumerate() {
            if let Some(section) = line.strip_prefix(".SH ") {
                inside = section.trim_matches('"') == "EXAMPLES";
            } else if inside && !line.starts_with('.') {
                // Backslashes of the page, and non-breaking characters.
                let plain = line.replace("\\-", "-").replace("\\(dq", "\"");
                recipe.console(at + 1, &[&plain]);
            }
        }
        recipe
    }

    fn empty(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            steps: Vec::new(),
            tests: Vec::new(),
        }
    }

    fn console(&mut self, line: usize, body: &[&str]) {
        let commands: Vec<&str> = body.iter().filter_map(|line| prompted(line)).collect();
        if !commands.is_empty() {
            self.steps.push(Step {
                line,
                script: commands.join("\n"),
                ..Step::default()
            });
        }
    }

    /// Leaves out the commands in the list. Returns the positions of the used exceptions.
    pub fn leave_out(&mut self, list: &[Exception]) -> Vec<usize> {
        let mut used = Vec::new();
        for step in &mut self.steps {
            let mut kept = Vec::new();
            for line in step.script.lines() {
                let command = line.strip_prefix(USER).unwrap_or(line);
                let excepted = list
                    .iter()
                    .position(|e| e.document == self.name && command.starts_with(e.command));
                match excepted {
                    Some(at) => used.push(at),
                    None => kept.push(line),
                }
            }
            step.script = kept.join("\n");
        }
        self.steps
            .retain(|step| step.script.lines().any(|line| !line.trim().is_empty()));
        used
    }

    /// Returns one script. A line `@@ N` of the output precedes the output of step N.
    fn script(&self, prelude: &str) -> String {
        let mut text = format!("set -eo pipefail\n{AS_USER}\n{prelude}\n");
        for (at, step) in self.steps.iter().enumerate() {
            let line = step.line;
            let lines: Vec<String> = step.script.lines().map(executed).collect();
            let script = lines.join("\n");
            text += &format!("printf '\\n@@ {at}\\n'\n");
            text += &match step.fails {
                true => format!(
                    "if {script}\nthen echo 'line {line}: the command has succeeded'; exit 97; fi\n"
                ),
                false => format!("{script}\n"),
            };
        }
        text + "printf '\\n@@ end\\n'\n"
    }

    /// Runs the commands in the folder `at`, after the commands of `prelude`. Processes that they
    /// have started end with them.
    ///
    /// # Errors
    ///
    /// If a command fails, or does not print a shown line.
    pub fn run(&self, at: &Path, prelude: &str, limit: Duration) -> Result<()> {
        if self.steps.is_empty() {
            return Ok(());
        }
        let (out, trace) = (at.join("recipe.out"), at.join("recipe.trace"));
        let printed = File::create(&out)?;
        let mut shell = Command::new("bash")
            .arg("-c")
            .arg(format!(
                "exec 9>{}; BASH_XTRACEFD=9; set -x\n{}",
                trace.display(),
                self.script(prelude)
            ))
            .current_dir(at)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(printed.try_clone()?)
            .stderr(printed)
            .process_group(0)
            .spawn()
            .context("bash")?;
        let pid = shell.id() as i32;
        let ended = sys::wait_pid(pid, limit);
        // The group has the shell's number, and its background processes.
        let _ = sys::kill(-pid, libc::SIGKILL);
        let ended = ended?;
        if ended.is_none() {
            shell.wait()?;
        }
        until("the commands' processes have ended", limit, || {
            Ok(sys::kill(-pid, 0).is_err().then_some(()))
        })?;
        let said = String::from_utf8_lossy(&fs::read(&out)?).into_owned();
        let traced = String::from_utf8_lossy(&fs::read(&trace)?).into_owned();
        if std::env::var_os("KFI_VERBOSE").is_some() {
            eprintln!("{}:\n{said}", self.name);
        }
        if ended != Some(Ended::Exit(0)) {
            let last = traced.lines().rev().take(4).collect::<Vec<_>>();
            let tail: Vec<&str> = said.lines().rev().take(12).collect();
            bail!(
                "{}: ended with {ended:?}; last commands, the newest first: {last:?}; last output: \
                 {tail:?}",
                self.name
            );
        }
        self.compare(&said)
    }

    /// Checks that each step's output has the shown lines in their order.
    fn compare(&self, said: &str) -> Result<()> {
        for (at, step) in self.steps.iter().enumerate() {
            let (_, rest) = said
                .split_once(&format!("\n@@ {at}\n"))
                .with_context(|| format!("{}: no step {at}", self.name))?;
            let output = rest.split_once("\n@@ ").map_or(rest, |(output, _)| output);
            let mut lines = output.lines().map(stable);
            for shown in step.shown.iter().filter(|line| !line.trim().is_empty()) {
                let wanted = stable(shown);
                ensure!(
                    lines.any(|line| line == wanted),
                    "{}:{}: {shown:?} is not in its place in {output:?}",
                    self.name,
                    step.line
                );
            }
        }
        Ok(())
    }
}

/// Returns a line with each number as `0`, and one space between words.
fn stable(line: &str) -> String {
    let mut plain = String::new();
    for word in line.split_whitespace() {
        if !plain.is_empty() {
            plain.push(' ');
        }
        for part in word.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let token = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let end = &part[token.len()..];
            match token.starts_with(|c: char| c.is_ascii_digit()) {
                true => plain.push('0'),
                false => plain.push_str(token),
            }
            plain.push_str(end);
        }
    }
    // 12 and 12.5 are numbers alike.
    while plain.contains("0.0") {
        plain = plain.replace("0.0", "0");
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Text\n```sh\na one\nb two\n```\n\n```text\nout 12.5 of rxe0\n```\n\
                        ```sh fails\nc\n```\n```text\nno\n```\n```console\n1# d &\noutput\n2# e\n```\n\
                        ```toml\nx = 1\n```\n```sh test=some.test\nf\n```\n";

    #[test]
    fn blocks_of_each_kind_are_read() {
        let recipe = Recipe::document("x", TEXT).unwrap();
        let scripts: Vec<_> = recipe
            .steps
            .iter()
            .map(|step| (step.line, step.script.as_str(), step.fails))
            .collect();
        assert_eq!(
            scripts,
            [
                (2, "a one\nb two", false),
                (10, "c", true),
                (16, "d &\ne", false)
            ]
        );
        assert_eq!(recipe.steps[0].shown, ["out 12.5 of rxe0"]);
        assert_eq!(recipe.tests, ["some.test"]);
    }

    #[test]
    fn block_without_a_word_or_with_an_unknown_mark_is_refused() {
        assert!(Recipe::document("x", "```\na\n```\n").is_err());
        assert!(Recipe::document("x", "```sh later\na\n```\n").is_err());
    }

    #[test]
    fn failing_command_without_its_message_is_refused() {
        let command = "```sh fails\na\n```\n";
        assert!(Recipe::document("x", command).is_err());
        assert!(Recipe::document("x", &format!("{command}```text\n\n```\n")).is_err());
        assert!(Recipe::document("x", &format!("{command}```text\nno\n```\n")).is_ok());
    }

    #[test]
    fn commands_of_a_user_do_not_run_as_root() {
        assert_eq!(
            executed("$ a 'b' && c"),
            "as_user 'a '\\''b'\\'' && c'\ntest $? = 0 || exit 98"
        );
        assert_eq!(executed("$ kfi serve &"), "as_user 'kfi serve' &");
        assert_eq!(executed("a | b"), "a | b");
    }

    #[test]
    fn failure_before_and_ends_the_shell() {
        let folder = std::env::temp_dir().join(format!("recipe.{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let runs = |script: &str| {
            let text = format!("```sh\n{script}\ntrue\n```\n");
            let recipe = Recipe::document("x", &text).unwrap();
            recipe.run(&folder, "", Duration::from_secs(10)).is_ok()
        };
        let all = [
            ("true && true", true),
            ("false && true", false),
            ("(true\nfalse && true)", false),
            ("for a in 1; do\n    false && true\ndone", false),
            ("true && false || true", true),
            ("true &&\n    true", true),
            ("false", false),
        ];
        for (script, good) in all {
            assert_eq!(runs(script), good, "{script}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn commands_of_a_page_are_the_prompted_lines_of_examples() {
        let text = ".SH NAME\n# not this\n.SH EXAMPLES\nText.\n.nf\n# kfi a \\-\\-b\n12\n$ kfi c\n\
                    .fi\n.SH FILES\n# nor this\n";
        let steps = Recipe::page("x", text).steps;
        let scripts: Vec<_> = steps.iter().map(|step| step.script.as_str()).collect();
        assert_eq!(scripts, ["kfi a --b", "$ kfi c"]);
    }

    #[test]
    fn exceptions_of_the_document_leave_their_commands_out() {
        let mut recipe = Recipe::document("x", TEXT).unwrap();
        let list = [("x", "a"), ("y", "b"), ("x", "c")].map(|(document, command)| Exception {
            document,
            command,
            reason: "",
        });
        assert_eq!(recipe.leave_out(&list), [0, 2]);
        let scripts: Vec<_> = recipe.steps.iter().map(|s| s.script.as_str()).collect();
        assert_eq!(scripts, ["b two", "d &\ne"]);
    }

    #[test]
    fn shown_lines_match_whatever_their_numbers_are() {
        assert_eq!(stable("  64   12.50 us rxe0 "), stable("64 7 us rxe0"));
        assert_ne!(stable("64 us rxe0"), stable("64 us rxe1"));
        assert_eq!(stable("key 0x1f, 4KiB"), stable("key 0xffff, 16KiB"));
        let mut recipe = Recipe::document("x", TEXT).unwrap();
        recipe.steps.truncate(1);
        let said = "\n@@ 0\nfirst\nout 7 of rxe0\n\n@@ end\n";
        recipe.compare(said).unwrap();
        assert!(recipe.compare(&said.replace("rxe0", "rxe1")).is_err());
    }
}
