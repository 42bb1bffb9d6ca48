// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks of the files' text.

use super::files::{is_kernel, is_made, is_source, within};
use super::Lint;
use anyhow::Result;

/// Lines of a source file above which it surely holds more than one thing.
const LONGEST: usize = 900;
/// The interface to programs is one thing, read from top to bottom.
const LONG: &str = "uapi/src/abi.rs";

/// Calls `tell` with every line of every file of text that people write.
fn each_line(lint: &Lint<'_>, mut tell: impl FnMut(&str, usize, &str)) {
    for path in lint.files.iter().filter(|path| !is_made(path)) {
        let Ok(text) = std::fs::read_to_string(lint.ctx.repo.join(path)) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            tell(path, number + 1, line);
        }
    }
}

/// Every source file begins with the licence of the folder it stands in.
pub(super) fn spdx(lint: &Lint<'_>) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for path in lint.files.iter().filter(|path| !is_made(path)) {
        let Ok(text) = std::fs::read_to_string(lint.ctx.repo.join(path)) else {
            continue;
        };
        let wanted = licences(path);
        match licence(&text) {
            Some(found) if wanted.contains(&found.as_str()) => {}
            Some(found) => faults.push(format!("{path}: {found}, should be {}", wanted[0])),
            None if is_source(path) => faults.push(format!(
                "{path}: no SPDX-License-Identifier at its head, should be {}",
                wanted[0]
            )),
            None => {}
        }
    }
    Ok(faults)
}

/// The licences a file may have, the usual one first.
fn licences(path: &str) -> &'static [&'static str] {
    if is_kernel(path) {
        &["GPL-2.0", "GPL-2.0-only"]
    } else if within(path, "uapi") {
        &[
            "GPL-2.0 WITH Linux-syscall-note",
            "GPL-2.0-only WITH Linux-syscall-note",
        ]
    } else if within(path, "pure") {
        &["GPL-2.0 OR MIT", "GPL-2.0-only OR MIT"]
    } else if path.ends_with(".md") {
        // What is said of all folders may be used with any of them.
        &["MIT OR Apache-2.0", "GPL-2.0 OR MIT", "GPL-2.0"]
    } else {
        &["MIT OR Apache-2.0"]
    }
}

/// The licence that a file's first lines name.
fn licence(text: &str) -> Option<String> {
    // A shell's or an interpreter's line may come first.
    let line = text
        .lines()
        .take(2)
        .find_map(|line| line.split_once("SPDX-License-Identifier:"))?
        .1;
    let end = [" */", "*/", "-->"]
        .iter()
        .filter_map(|end| line.find(end))
        .min()
        .unwrap_or(line.len());
    let name = line[..end].trim();
    let name = name.strip_prefix('(').unwrap_or(name);
    Some(name.strip_suffix(')').unwrap_or(name).to_owned())
}

/// Nothing is marked as unfinished.
pub(super) fn unfinished(lint: &Lint<'_>) -> Result<Vec<String>> {
    // In two parts, so that this file may be checked too.
    let words = [("TO", "DO"), ("FIX", "ME"), ("X", "XX")].map(|(a, b)| format!("{a}{b}"));
    let macros = [("to", "do!("), ("unimple", "mented!(")].map(|(a, b)| format!("{a}{b}"));
    let mut faults = Vec::new();
    each_line(lint, |path, number, line| {
        let marked = words.iter().any(|word| has_word(line, word))
            || macros.iter().any(|call| line.contains(call.as_str()));
        if marked {
            faults.push(format!("{path}:{number}: {}", line.trim()));
        }
    });
    Ok(faults)
}

/// Whether `word` stands in `line` by itself.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        !inside(line[..at].chars().next_back()) && !inside(line[at + word.len()..].chars().next())
    })
}

/// No package registry is named: the machine's own configuration has it.
pub(super) fn hosts(lint: &Lint<'_>) -> Result<Vec<String>> {
    // Pages that a reader may want to look at, and names for examples.
    const FINE: [&str; 6] = [
        "kernel.org",
        "github.com",
        "github.io",
        "spdx.org",
        "rust-lang.org",
        "example",
    ];
    let registries = [
        ("crates", "io"),
        ("deb.debian", "org"),
        ("archive.ubuntu", "com"),
        ("pypi", "org"),
        ("npmjs", "org"),
        ("proxy.golang", "org"),
        ("docker", "io"),
        ("quay", "io"),
    ]
    .map(|(name, end)| format!("{name}.{end}"));
    let mut faults = Vec::new();
    each_line(lint, |path, number, line| {
        let named = registries.iter().any(|host| has_word(line, host));
        let strange = hosts_in(line).any(|host| {
            !FINE.iter().any(|fine| {
                host.strip_suffix(fine)
                    .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            })
        });
        if named || strange {
            faults.push(format!("{path}:{number}: {}", line.trim()));
        }
    });
    Ok(faults)
}

/// The hosts of the addresses in a line.
fn hosts_in(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("://").filter_map(|(at, mark)| {
        let rest = &line[at + mark.len()..];
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '-')
            .unwrap_or(rest.len());
        (end > 0).then_some(&rest[..end])
    })
}

/// No path of somebody's machine.
pub(super) fn paths(lint: &Lint<'_>) -> Result<Vec<String>> {
    let mut mine: Vec<String> = [
        ("/wo", "rk/"),
        ("/ho", "me/"),
        ("/Use", "rs/"),
        ("/var/t", "mp/"),
        ("/ro", "ot/."),
    ]
    .map(|(a, b)| format!("{a}{b}"))
    .to_vec();
    for path in [&lint.ctx.repo, &lint.ctx.cache] {
        mine.push(path.display().to_string());
    }
    let mut faults = Vec::new();
    each_line(lint, |path, number, line| {
        if mine.iter().any(|word| line.contains(word.as_str())) {
            faults.push(format!("{path}:{number}: {}", line.trim()));
        }
    });
    Ok(faults)
}

/// No blanks at ends of lines, no foreign line ends.
pub(super) fn whitespace(lint: &Lint<'_>) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for path in lint.files.iter().filter(|path| !is_made(path)) {
        let Ok(text) = std::fs::read_to_string(lint.ctx.repo.join(path)) else {
            continue;
        };
        for (number, line) in text.split('\n').enumerate() {
            if line.ends_with([' ', '\t', '\r']) {
                faults.push(format!("{path}:{}: blank at the end", number + 1));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            faults.push(format!("{path}: its last line has no end"));
        }
    }
    Ok(faults)
}

/// No source file holds too much.
pub(super) fn size(lint: &Lint<'_>) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    // Generated headers are as long as they are.
    let written = |path: &&String| (path.ends_with(".rs") || path.ends_with(".c")) && *path != LONG;
    for path in lint.files.iter().filter(written) {
        let text = std::fs::read_to_string(lint.ctx.repo.join(path)).unwrap_or_default();
        let lines = text.lines().count();
        if lines > LONGEST {
            faults.push(format!("{path}: {lines} lines, {LONGEST} at most"));
        }
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_found_in_any_comment() {
        let found = |text: &str| licence(text).unwrap();
        assert_eq!(found("// SPDX-License-Identifier: GPL-2.0\n"), "GPL-2.0");
        assert_eq!(found("/* SPDX-License-Identifier: GPL-2.0 */"), "GPL-2.0");
        assert_eq!(
            found("#!/bin/sh\n# SPDX-License-Identifier: MIT OR Apache-2.0\n"),
            "MIT OR Apache-2.0"
        );
        let uapi = "/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) */\n";
        assert!(licences("uapi/include/x.h").contains(&found(uapi).as_str()));
        assert_eq!(licence("// nothing\n"), None);
    }

    #[test]
    fn words_stand_alone() {
        assert!(has_word("a WORD: b", "WORD") && has_word("WORD", "WORD"));
        assert!(!has_word("aWORD", "WORD") && !has_word("WORD_1 WORDS", "WORD"));
    }

    #[test]
    fn hosts_are_found_in_addresses() {
        let line = "see https://docs.kernel.org/rust and http://mirror.example:80/x, file:///x";
        assert_eq!(
            hosts_in(line).collect::<Vec<_>>(),
            ["docs.kernel.org", "mirror.example"]
        );
    }
}
