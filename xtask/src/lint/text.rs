// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks of the files' text.

use super::files::{is_kernel, is_made, is_source, within};
use super::Lint;
use anyhow::Result;

/// Maximum lines of a source file; a longer one mixes several subjects.
const LONGEST: usize = 900;
/// Bindings that are generated from libfabric's headers, and have the headers' licence.
const LIBFABRIC: &str = "userspace/libfabric-provider/src/ffi/bindings.rs";
/// The interface to programs is one subject, read from top to bottom.
const LONG: &str = "uapi/src/abi.rs";

/// Calls `tell` with every line of every hand-written text file.
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

/// Checks that every source file begins with the licence of its folder.
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

/// Returns the permitted licences of a file, the usual one first.
fn licences(path: &str) -> &'static [&'static str] {
    if path == LIBFABRIC {
        &["BSD-2-Clause OR GPL-2.0-only"]
    } else if is_kernel(path) {
        &["GPL-2.0", "GPL-2.0-only"]
    } else if within(path, "uapi") {
        &[
            "GPL-2.0 WITH Linux-syscall-note",
            "GPL-2.0-only WITH Linux-syscall-note",
        ]
    } else if within(path, "pure") {
        &["GPL-2.0 OR MIT", "GPL-2.0-only OR MIT"]
    } else if [".md", ".dot", ".svg"]
        .iter()
        .any(|end| path.ends_with(end))
    {
        // Documents may concern all folders, so each folder's licence is permitted.
        &["MIT OR Apache-2.0", "GPL-2.0 OR MIT", "GPL-2.0"]
    } else {
        &["MIT OR Apache-2.0"]
    }
}

/// Returns the licence that a file's first lines name.
fn licence(text: &str) -> Option<String> {
    // The first line may name a shell or an interpreter.
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

/// Checks that no line is marked as unfinished.
pub(super) fn unfinished(lint: &Lint<'_>) -> Result<Vec<String>> {
    // Split in two, so that this file passes the check too.
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

/// Returns whether `line` contains `word` as a whole word.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        !inside(line[..at].chars().next_back()) && !inside(line[at + word.len()..].chars().next())
    })
}

/// Checks that no package registry is named; the machine's own configuration names it.
pub(super) fn hosts(lint: &Lint<'_>) -> Result<Vec<String>> {
    // Pages for readers, and names for examples.
    const FINE: [&str; 7] = [
        "kernel.org",
        "github.com",
        "github.io",
        "spdx.org",
        "rust-lang.org",
        "w3.org",
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

/// Returns the hosts of the addresses in a line.
fn hosts_in(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("://").filter_map(|(at, mark)| {
        let rest = &line[at + mark.len()..];
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '-')
            .unwrap_or(rest.len());
        (end > 0).then_some(&rest[..end])
    })
}

/// Checks that no path of a particular machine is named.
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

/// Checks for blanks at ends of lines, and for foreign line ends.
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

/// Checks that no source file is too long.
pub(super) fn size(lint: &Lint<'_>) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    // Generated headers may have any length.
    let written = |path: &&String| (path.ends_with(".rs") || path.ends_with(".c")) && *path != LONG;
    for path in lint.files.iter().filter(written) {
        let text = std::fs::read_to_string(lint.ctx.repo.join(path)).unwrap_or_default();
        let lines = text.lines().count();
        if lines > LONGEST && *path != LIBFABRIC {
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
