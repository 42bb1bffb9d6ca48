// SPDX-License-Identifier: MIT OR Apache-2.0
//! `/etc/kfabric/blk.conf`: the exports and disks of a host, which units make at boot.
//!
//! Each line is a command of `kfi blk`: `export …`, `allow …` or `connect …`.

use std::path::{Path, PathBuf};

use clap::{Args, Parser};

use super::{act, configfs::folder, unexport, What};
use crate::error::{Failure, OnFile, Result};

/// Options of `kfi blk connect-all` and `kfi blk export-all`.
#[derive(Debug, Args)]
pub struct AllArgs {
    /// Only the disk, or the export, of this name
    pub name: Option<String>,
    /// The file with the commands
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "/etc/kfabric/blk.conf"
    )]
    pub file: PathBuf,
}

/// A line, as the command line of `kfi blk`.
#[derive(Debug, Parser)]
#[command(
    no_binary_name = true,
    disable_help_flag = true,
    disable_version_flag = true,
    disable_help_subcommand = true
)]
struct Line {
    #[command(subcommand)]
    what: What,
}

/// The commands of a file.
#[derive(Debug, Default)]
struct Commands {
    all: Vec<What>,
    /// Lines that are no command: number, words, and what is wrong.
    faults: Vec<(usize, String, String)>,
}

/// Parses the commands of a file.
fn parse(text: &str) -> Commands {
    let mut found = Commands::default();
    for (at, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first().is_none_or(|word| word.starts_with('#')) {
            continue;
        }
        let why = match Line::try_parse_from(words).map(|line| line.what) {
            Ok(what @ (What::Export(_) | What::Allow(_) | What::Connect(_))) => {
                found.all.push(what);
                continue;
            }
            Ok(_) => "only export, allow and connect are possible".to_owned(),
            Err(e) => {
                let text = e.to_string();
                let why = text.lines().next().unwrap_or_default();
                why.trim_start_matches("error: ").to_owned()
            }
        };
        found.faults.push((at + 1, line.to_owned(), why));
    }
    found
}

impl Commands {
    /// Returns the commands of a file that can be run for `name`. Complains of faults in other lines.
    ///
    /// # Errors
    ///
    /// The first fault, if a line with a fault has the name: an export whose `allow` line has a fault
    /// would admit others.
    fn of(file: &Path, name: Option<&str>) -> Result<(Self, Result<()>)> {
        let text = std::fs::read_to_string(file).on_file("read", file)?;
        let found = parse(&text);
        let mut first = Ok(());
        for (line, words, why) in &found.faults {
            let fault = Failure::Usage(format!("{} line {line}: {why}", file.display()));
            match name {
                Some(name) if words.split_whitespace().any(|word| word == name) => {
                    return Err(fault)
                }
                None if first.is_ok() => first = Err(fault),
                _ => crate::say::complain(&fault),
            }
        }
        Ok((found, first))
    }

    /// Returns whether a line with a fault has a name.
    fn is_in_fault(&self, name: &str) -> bool {
        let mut faults = self.faults.iter();
        faults.any(|(_, words, _)| words.split_whitespace().any(|word| word == name))
    }
}

/// Runs `one` for each command that has a name by `name_of`, or for the only one of the name that
/// the arguments have. After a failure goes on with the others.
fn each(
    args: &AllArgs,
    kind: &str,
    name_of: impl Fn(&What) -> Option<&str>,
    mut one: impl FnMut(&What, &[What]) -> Result<()>,
) -> Result<()> {
    let (commands, mut result) = Commands::of(&args.file, args.name.as_deref())?;
    let all = &commands.all;
    let wanted = |what: &&What| {
        name_of(what).is_some_and(|name| match &args.name {
            Some(only) => only == name,
            None => !commands.is_in_fault(name),
        })
    };
    let mut count = 0;
    for what in all.iter().filter(wanted) {
        count += 1;
        let done = one(what, all);
        match (&result, done) {
            (Ok(()), done) => result = done,
            (Err(_), Err(failure)) => crate::say::complain(&failure),
            (Err(_), Ok(())) => {}
        }
    }
    match &args.name {
        Some(name) if count == 0 => Err(Failure::Usage(format!(
            "{} has no {kind} {name:?}",
            args.file.display()
        ))),
        _ => result,
    }
}

/// The name of the disk that a command connects.
fn disk_name(what: &What) -> Option<&str> {
    match what {
        What::Connect(connect) => Some(connect.disk.as_ref().unwrap_or(&connect.name)),
        _ => None,
    }
}

/// The name of the export that a command makes.
fn export_name(what: &What) -> Option<&str> {
    match what {
        What::Export(export) => Some(&export.name),
        _ => None,
    }
}

/// Connects the disks of the file, except those that exist.
pub(super) fn connect_all(args: &AllArgs, json: bool) -> Result<()> {
    each(args, "disk", disk_name, |what, _| {
        let name = disk_name(what).unwrap_or_default();
        match folder("disks", name)?.is_dir() {
            true => Ok(()),
            false => act(what, json),
        }
    })
}

/// Makes the exports of the file, except those that exist, and sets their initiators' auth keys.
pub(super) fn export_all(args: &AllArgs, json: bool) -> Result<()> {
    each(args, "export", export_name, |what, all| {
        let name = export_name(what).unwrap_or_default();
        if folder("subsystems", name)?.is_dir() {
            return Ok(());
        }
        act(what, json)?;
        let is_for = |what: &&What| matches!(what, What::Allow(allow) if allow.name == name);
        let allowed = all
            .iter()
            .filter(is_for)
            .try_for_each(|what| act(what, json));
        if allowed.is_err() {
            // Without an auth key other initiators could use the name.
            let _ = unexport(name);
        }
        allowed
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_file_has_commands_comments_and_empty_lines() {
        let text = "# exports\n\nexport scratch --size 1G --listen 10.0.0.1\n\
                    \tallow scratch other -k /etc/key\n connect 10.0.0.2 archive\n\
                    connect 10.0.0.2 archive -d second --ctrl-loss-tmo -1\n";
        let all = parse(text).all;
        let exports: Vec<_> = all.iter().filter_map(export_name).collect();
        let disks: Vec<_> = all.iter().filter_map(disk_name).collect();
        assert_eq!(exports, ["scratch"]);
        assert_eq!(disks, ["archive", "second"]);
        assert!(matches!(&all[1], What::Allow(allow) if allow.client == "other"));
        assert!(matches!(&all[3], What::Connect(c) if c.ctrl_loss_tmo == Some(-1)));
    }

    #[test]
    fn boot_file_with_another_command_or_a_fault_names_its_line() {
        for (text, line, word) in [
            ("\nunexport scratch\n", 2, "only export"),
            ("connect-all\n", 1, "only export"),
            ("#\n\nconnect 10.0.0.2\n", 3, "required"),
            (
                "export x --size 1G --listen ::1 --unknown\n",
                1,
                "--unknown",
            ),
            ("mount x\n", 1, "mount"),
        ] {
            let commands = parse(text);
            let [(at, _, why)] = &commands.faults[..] else {
                panic!("{commands:?}");
            };
            assert_eq!(*at, line, "{text:?}");
            assert!(why.contains(word), "{text:?}: {why}");
        }
    }

    #[test]
    fn fault_of_one_name_does_not_stop_another() {
        let file = std::env::temp_dir().join(format!("kfi-boot-{}.conf", std::process::id()));
        let text = "export one --size 1G --listen ::1\nallow one other --wrong\n\
                    export two --size 1G --listen ::1\n";
        std::fs::write(&file, text).unwrap();
        assert!(Commands::of(&file, Some("one")).is_err());
        let (commands, fault) = Commands::of(&file, Some("two")).unwrap();
        assert!(fault.is_ok() && commands.all.len() == 2);
        let (commands, fault) = Commands::of(&file, None).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(fault.is_err());
        assert!(commands.is_in_fault("one") && !commands.is_in_fault("two"));
    }

    #[test]
    fn example_of_the_boot_file_is_valid_without_its_comment_signs() {
        let text = include_str!("../../../../../packaging/blk.conf");
        let lines = text.lines().filter_map(|line| line.strip_prefix("# "));
        let commands: Vec<&str> = lines
            .filter(|line| {
                ["export ", "allow ", "connect "]
                    .iter()
                    .any(|c| line.starts_with(c))
            })
            .collect();
        let commands = parse(&commands.join("\n"));
        assert!(commands.faults.is_empty(), "{commands:?}");
        assert_eq!(commands.all.len(), 3);
        assert!(parse(text).all.is_empty());
    }
}
