// SPDX-License-Identifier: MIT OR Apache-2.0
//! Implementation of the commands.

pub mod auth;
pub mod blk;
pub mod doctor;
pub mod export;
pub mod info;
pub mod ping;
pub mod serve;
pub mod show;
pub mod transfer;

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use serde::Serialize;

use crate::cli::{Cli, Command};
use crate::error::{Failure, OnFile, Result};

/// Runs a command line.
///
/// # Errors
///
/// The failure of the command.
pub fn run(cli: Cli) -> Result<()> {
    let json = cli.json;
    match cli.command {
        Command::Info(args) => info::run(&args, json),
        Command::Serve(args) => serve::run(&args, json),
        Command::Ping(args) => ping::run(&args, json),
        Command::Export(args) => export::run(&args, json),
        Command::Get(args) => transfer::get(&args, json),
        Command::Put(args) => transfer::put(&args, json),
        Command::Show(args) => show::run(&args, json),
        Command::Auth(args) => auth::run(&args, json),
        Command::Blk(args) => blk::run(&args, json),
        Command::Doctor(args) => doctor::run(&args, json),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "kfi", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
        Command::Man { dir } => man(&dir),
    }
}

/// Man pages that are written by hand: name and text.
const PAGES: &[(&str, &str)] = &[
    ("kfi-auth.8", include_str!("../../man/kfi-auth.8")),
    ("kfi-blk.8", include_str!("../../man/kfi-blk.8")),
    ("kfi-authd.8", include_str!("../../man/kfi-authd.8")),
    ("kfabric.4", include_str!("../../man/kfabric.4")),
    ("kfabric.7", include_str!("../../man/kfabric.7")),
    ("kfi_auth.7", include_str!("../../man/kfi_auth.7")),
    ("kfi_cm.3", include_str!("../../man/kfi_cm.3")),
    ("kfi_cq.3", include_str!("../../man/kfi_cq.3")),
    ("kfi_endpoint.3", include_str!("../../man/kfi_endpoint.3")),
    ("kfi_mr.3", include_str!("../../man/kfi_mr.3")),
    ("kfi_rma.3", include_str!("../../man/kfi_rma.3")),
    ("kfi_rings.7", include_str!("../../man/kfi_rings.7")),
    ("kshm.7", include_str!("../../man/kshm.7")),
    ("kverbs.7", include_str!("../../man/kverbs.7")),
];

/// Heading of the examples in a command's help.
const EXAMPLES: &str = "Examples:\n";

fn man(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).on_file("make", dir)?;
    for (name, text) in PAGES {
        let page = dir.join(name);
        std::fs::write(&page, text).on_file("write", &page)?;
    }
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    page(&command, dir)
}

/// Writes the generated pages of a command and its subcommands, except those written by hand.
fn page(command: &clap::Command, dir: &Path) -> Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    if written(name) {
        return Ok(());
    }
    let after = command.get_after_help().map(ToString::to_string);
    let after = after.unwrap_or_default();
    let (extra, examples) = after.split_once(EXAMPLES).unwrap_or((&after, ""));
    let described = match extra.trim() {
        "" => command.clone().after_help(None::<&str>),
        extra => command.clone().after_help(extra.to_owned()),
    };
    let mut text = Vec::new();
    let rendered = clap_mangen::Man::new(described).render(&mut text);
    let path = dir.join(format!("{name}.1"));
    rendered.on_file("write", &path)?;
    let mut text = String::from_utf8_lossy(&text).into_owned();
    // Pages written by hand are in section 8.
    for below in command.get_subcommands() {
        let name = below.get_display_name().unwrap_or(below.get_name());
        if written(name) {
            let name = name.replace('-', "\\-");
            text = text.replace(&format!("{name}(1)"), &format!("{name}(8)"));
        }
    }
    if !examples.is_empty() {
        text += ".SH EXAMPLES\n.RS 4\n.nf\n";
        for line in examples.lines().map(str::trim) {
            text += &format!("$ {}\n", line.replace('-', "\\-"));
        }
        text += ".fi\n.RE\n";
    }
    if name != "kfi" {
        text += ".SH EXIT STATUS\nAs for\n.BR kfi (1).\n";
    }
    std::fs::write(&path, text).on_file("write", &path)?;
    command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
        .try_for_each(|below| page(below, dir))
}

/// Whether the page of this command is written by hand.
fn written(name: &str) -> bool {
    PAGES.iter().any(|(page, _)| *page == format!("{name}.8"))
}

/// Prints text to standard output.
///
/// # Errors
///
/// - [`Failure::Output`] if writing fails. `main` ignores a closed pipe.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Failure::Output)
}

/// Prints one JSON value on a line.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value).map_err(|e| Failure::Io {
        what: "write JSON".to_owned(),
        source: e.into(),
    })?;
    print(&format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    /// Returns the lines of `text` that run `kfi`, without prompt, comment, redirection and later
    /// commands.
    fn commands(text: &str) -> Vec<String> {
        text.lines()
            .map(|line| line.trim_start_matches(['#', '$', ' ']).replace('\\', ""))
            // The shell's process number.
            .map(|line| line.replace("$$", "1"))
            .filter(|line| line.starts_with("kfi "))
            .map(|line| {
                let end = [" #", " &", " |", " >"]
                    .iter()
                    .filter_map(|mark| line.find(mark))
                    .min();
                line[..end.unwrap_or(line.len())].trim().to_owned()
            })
            .collect()
    }

    #[test]
    fn pages_have_the_sections_of_a_page() {
        for (name, text) in PAGES {
            let has = |section: &str| {
                let heading = format!(".SH {section}");
                text.lines().any(|line| line == heading)
            };
            for section in ["SYNOPSIS", "EXAMPLES", "FILES"] {
                assert!(has(section), "{name}: {section}");
            }
            assert!(has("EXIT STATUS") || has("ERRORS"), "{name}");
        }
    }

    fn check(name: &str, text: &str) -> usize {
        let commands = commands(text);
        for command in &commands {
            if let Err(error) = Cli::try_parse_from(command.split_whitespace()) {
                panic!("{name}: {command}: {error}");
            }
        }
        commands.len()
    }

    #[test]
    fn commands_in_examples_of_pages_are_valid() {
        let mut count = 0;
        for (name, text) in PAGES {
            let examples = text.split(".SH EXAMPLES").nth(1).unwrap_or_default();
            count += check(name, examples.split(".SH ").next().unwrap_or_default());
        }
        assert!(count > 10, "only {count} commands were found");
    }

    #[test]
    fn commands_in_documents_are_valid() {
        let documents = [
            ("README.md", include_str!("../../../README.md")),
            ("docs/install.md", include_str!("../../../docs/install.md")),
            (
                "docs/persistent-memory.md",
                include_str!("../../../docs/persistent-memory.md"),
            ),
        ];
        for (name, text) in documents {
            // Every second part is a block of code.
            let blocks: String = text.split("```").skip(1).step_by(2).collect();
            assert!(check(name, &blocks) > 0, "no command in {name}");
        }
    }

    #[test]
    fn each_command_has_valid_examples() {
        let mut kfi = Cli::command();
        kfi.build();
        let shown = kfi.get_subcommands().filter(|below| !below.is_hide_set());
        for command in shown.filter(|below| below.get_name() != "help") {
            let name = command.get_display_name().unwrap_or(command.get_name());
            if !written(name) {
                let after = command.get_after_help().map(ToString::to_string);
                let after = after.unwrap_or_default();
                let (_, examples) = after.split_once(EXAMPLES).expect(name);
                assert!(check(name, examples) > 0, "{name}: {examples}");
            }
        }
    }

    #[test]
    fn page_of_the_device_names_each_call() {
        let (_, page) = PAGES.iter().find(|(name, _)| *name == "kfabric.4").unwrap();
        for (_, name) in kfabric::uapi::KFI_IOCTLS {
            let entry = format!(".BR {name} ");
            assert!(page.contains(&entry), "{name} is not in kfabric.4");
        }
    }
}
