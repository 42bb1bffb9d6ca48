// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks that prose names its actors: comments, documents, man pages and commit subjects.
//!
//! Each check counts the lines of a folder that break a rule and compares the count with the
//! folder's allowance in [`FOLDERS`]. An allowance may only shrink.

use super::files::{is_made, within};
use super::text::has_word;
use super::Lint;
use anyhow::{Context as _, Result};
use xshell::{cmd, Shell};

/// Lines of a folder that may break a rule, for each 1,000 lines of its prose.
struct Folder {
    path: &'static str,
    /// `who`, `whoever`, `whom`, `nobody`, `somebody`.
    actors: usize,
    /// `what`.
    objects: usize,
    /// Doc comments of at most six words that begin with a pronoun.
    fragments: usize,
    /// Private words for which the field has its own.
    terms: usize,
}

/// The target for each folder.
const TARGET: usize = 2;

const fn folder(path: &'static str, rules: [usize; 4]) -> Folder {
    let [actors, objects, fragments, terms] = rules;
    Folder {
        path,
        actors,
        objects,
        fragments,
        terms,
    }
}

/// The folders of the project; files at the top belong to the folder with the empty name.
const FOLDERS: [Folder; 13] = [
    folder("kfabric", [2, 2, 2, 2]),
    folder("kverbs-provider", [2, 2, 2, 2]),
    folder("kshm-provider", [2, 2, 2, 2]),
    folder("kfblk", [2, 2, 2, 2]),
    folder("consumers", [2, 2, 2, 2]),
    folder("examples", [0, 0, 0, 0]),
    folder("pure", [2, 2, 2, 2]),
    folder("uapi", [2, 2, 2, 2]),
    folder("userspace", [2, 2, 2, 2]),
    folder("qemu-tests", [2, 2, 2, 2]),
    folder("xtask", [2, 2, 2, 2]),
    folder("fuzz", [2, 2, 2, 2]),
    folder("", [2, 2, 2, 2]),
];

/// Words that stand for an actor and name none.
const ACTORS: [&str; 14] = [
    "who",
    "Who",
    "whoever",
    "Whoever",
    "whom",
    "Whom",
    "nobody",
    "Nobody",
    "somebody",
    "Somebody",
    "anybody",
    "Anybody",
    "everybody",
    "Everybody",
];
/// Words that stand for an object and name none.
const OBJECTS: [&str; 2] = ["what", "What"];
/// Words that make a short doc comment depend on the line below it.
const PRONOUNS: [&str; 17] = [
    "It", "Its", "They", "Their", "Them", "That", "Those", "This", "These", "There", "One", "He",
    "His", "Who", "Whose", "What", "Whether",
];
/// Private words; docs/glossary.md has the field's.
const TERMS: [&str; 38] = [
    "is told",
    "are told",
    "was told",
    "be told",
    "told of",
    "hears of",
    "hear of",
    "comes to be",
    "come to be",
    "on its way",
    "on their way",
    "under way",
    "goes away",
    "go away",
    "let go",
    "has to come again",
    "made of it",
    "lent",
    "lends",
    "hears",
    "news",
    "went away",
    "lets go",
    "worn",
    "blamed",
    "lane",
    "lanes",
    "shake",
    "importing end",
    "asks to connect",
    "asked to connect",
    "takes back",
    "take back",
    "gives a key",
    "end a key",
    "ends a key",
    "ends the key",
    "kills a key",
];
/// Words of a doc comment below which it is a fragment if it begins with a pronoun.
const SHORT: usize = 6;

/// A rule that a line of prose breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Actor,
    Object,
    Fragment,
    Term,
}

impl Rule {
    const ALL: [Self; 4] = [Self::Actor, Self::Object, Self::Fragment, Self::Term];

    /// Lines of `folder` that may break the rule, for each 1,000.
    fn allowance(self, folder: &Folder) -> usize {
        match self {
            Self::Actor => folder.actors,
            Self::Object => folder.objects,
            Self::Fragment => folder.fragments,
            Self::Term => folder.terms,
        }
        .max(TARGET)
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Actor => "name the actor instead of who, whoever, whom, nobody, somebody",
            Self::Object => "name the object instead of what",
            Self::Fragment => "name the subject of a short doc comment instead of a pronoun",
            Self::Term => "use the field's word, see docs/glossary.md",
        }
    }
}

/// Lines of prose in a folder and those that break a rule.
#[derive(Default)]
struct Count {
    lines: usize,
    broken: Vec<(Rule, String)>,
}

/// The prose of each folder names its actors and objects, within the folder's allowance.
pub(super) fn prose(lint: &Lint<'_>) -> Result<Vec<String>> {
    let mut counts: Vec<Count> = FOLDERS.iter().map(|_| Count::default()).collect();
    for path in lint.files.iter().filter(|path| !is_made(path)) {
        let Some(kind) = Kind::of(path) else { continue };
        let text = std::fs::read_to_string(lint.ctx.repo.join(path)).unwrap_or_default();
        // The last folder takes the files at the top and every folder without a row.
        let at = FOLDERS
            .iter()
            .position(|folder| within(path, folder.path))
            .unwrap_or(FOLDERS.len() - 1);
        add(&mut counts[at], path, kind, &text);
    }
    Ok(FOLDERS
        .iter()
        .zip(&counts)
        .flat_map(|(folder, count)| faults(folder, count))
        .collect())
}

/// Adds a file's prose to its folder's count.
fn add(count: &mut Count, path: &str, kind: Kind, text: &str) {
    for (number, line) in kind.prose(text) {
        count.lines += 1;
        for rule in broken(kind, line) {
            count
                .broken
                .push((rule, format!("{path}:{number}: {}", line.trim())));
        }
    }
}

/// The complaints about a folder: one for each rule that more lines break than the folder may.
fn faults(folder: &Folder, count: &Count) -> Vec<String> {
    let mut faults = Vec::new();
    for rule in Rule::ALL {
        let lines: Vec<&str> = count
            .broken
            .iter()
            .filter(|(broken, _)| *broken == rule)
            .map(|(_, line)| line.as_str())
            .collect();
        let allowed = rule.allowance(folder);
        if lines.len() * 1_000 > allowed * count.lines {
            faults.push(format!(
                "{}: {} of {} lines of prose, at most {allowed} in 1,000: {}\n{}",
                if folder.path.is_empty() {
                    "the top"
                } else {
                    folder.path
                },
                lines.len(),
                count.lines,
                rule.advice(),
                lines.join("\n"),
            ));
        }
    }
    faults
}

/// The rules that a line of prose breaks.
fn broken(kind: Kind, line: &str) -> Vec<Rule> {
    let has = |words: &[&str]| words.iter().any(|word| has_word(line, word));
    let mut rules = Vec::new();
    if has(&ACTORS) {
        rules.push(Rule::Actor);
    }
    if has(&OBJECTS) {
        rules.push(Rule::Object);
    }
    if kind == Kind::Rust && is_fragment(line) {
        rules.push(Rule::Fragment);
    }
    let words = without_code(line);
    if TERMS.iter().any(|word| has_word(&words, word)) {
        rules.push(Rule::Term);
    }
    rules
}

/// A line without the code between its backticks: names of code are no prose.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

/// Whether a line is a doc comment of a few words that begins with a pronoun.
fn is_fragment(line: &str) -> bool {
    let line = line.trim_start();
    let Some(doc) = line
        .strip_prefix("///")
        .or_else(|| line.strip_prefix("//!"))
    else {
        return false;
    };
    let words: Vec<&str> = doc.split_whitespace().collect();
    // A line without a full stop goes on in the next.
    doc.trim_end().ends_with('.')
        && words.len() <= SHORT
        && words.first().is_some_and(|word| PRONOUNS.contains(word))
}

/// Where a file's prose stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Lines that begin with `//`.
    Rust,
    /// Lines that begin with `//`, `/*` or `*`.
    C,
    /// Lines outside of code blocks.
    Markdown,
    /// Lines that are no request and no comment of the page's source.
    ManPage,
}

impl Kind {
    fn of(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let ending = name.rsplit_once('.')?.1;
        match ending {
            "rs" => Some(Self::Rust),
            "c" | "h" => Some(Self::C),
            "md" => Some(Self::Markdown),
            "1" | "3" | "4" | "5" | "7" | "8" => Some(Self::ManPage),
            _ => None,
        }
    }

    /// The lines of prose, with their numbers from 1.
    fn prose(self, text: &str) -> impl Iterator<Item = (usize, &str)> {
        let mut in_code = false;
        text.lines()
            .enumerate()
            .map(|(number, line)| (number + 1, line))
            .filter(move |(_, line)| {
                let line = line.trim_start();
                match self {
                    Self::Rust => line.starts_with("//"),
                    Self::C => ["//", "/*", "*"]
                        .iter()
                        .any(|start| line.starts_with(start)),
                    Self::Markdown => {
                        let fence = line.starts_with("```");
                        in_code ^= fence;
                        !fence && !in_code && !line.is_empty()
                    }
                    Self::ManPage => !line.starts_with(['.', '\'']) && !line.is_empty(),
                }
            })
    }
}

/// The last commit whose subject was checked by older rules.
const UNCHECKED: &str = "4fbad104141e6d15a77f166c7a76d0f88bac6276";
/// First words of a subject that are no verb.
const NO_VERBS: [&str; 14] = [
    "a", "an", "the", "this", "that", "it", "its", "there", "no", "all", "each", "every", "some",
    "one",
];
/// Characters of a subject.
const SUBJECT: usize = 72;

/// Each commit since [`UNCHECKED`] has a subject of the form `area: verb object`.
pub(super) fn subjects(lint: &Lint<'_>) -> Result<Vec<String>> {
    let shell = Shell::new()?;
    shell.change_dir(&lint.ctx.repo);
    let since = format!("{UNCHECKED}..HEAD");
    let unchecked = format!("{UNCHECKED}^{{commit}}");
    let has_it = cmd!(shell, "git -c safe.directory=* cat-file -e {unchecked}")
        .quiet()
        .ignore_stderr()
        .run()
        .is_ok();
    if !has_it {
        // A checkout without history has no subjects to look at.
        return Ok(Vec::new());
    }
    let log = cmd!(
        shell,
        "git -c safe.directory=* log --no-merges --format=%h%x20%s {since}"
    )
    .quiet()
    .read()
    .context("asking git for the commits")?;
    Ok(log
        .lines()
        .filter_map(|line| {
            let (id, subject) = line.split_once(' ')?;
            Some(format!("commit {id}: {}: {subject}", complaint(subject)?))
        })
        .collect())
}

/// Whether an area is a document at the top, such as `README`.
fn is_document(area: &str) -> bool {
    area.chars().all(|c| c.is_ascii_uppercase())
}

/// Returns the complaint about a commit's subject.
fn complaint(subject: &str) -> Option<&'static str> {
    let is_area = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_./*{}, ".contains(c);
    let Some((area, rest)) = subject.split_once(": ") else {
        return Some("no area in front");
    };
    if subject.chars().count() > SUBJECT {
        Some("more than 72 characters")
    } else if area.is_empty() || !(area.chars().all(is_area) || is_document(area)) {
        Some("its area is no list of folders or topics")
    } else if ["wip", "WIP"].iter().any(|word| has_word(subject, word)) {
        Some("unfinished work")
    } else if rest
        .split(' ')
        .next()
        .is_some_and(|word| NO_VERBS.contains(&word) || (word.len() > 5 && word.ends_with("ing")))
    {
        Some("no verb in front")
    } else if ACTORS
        .iter()
        .chain(&OBJECTS)
        .any(|word| has_word(rest, word))
    {
        Some("names no actor or object")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> Count {
        let mut count = Count::default();
        add(&mut count, path, Kind::of(path).unwrap(), text);
        count
    }

    #[test]
    fn planted_violation_of_each_rule_is_found() {
        let found = count(
            "a.rs",
            "/// Wakes who waits.\n\
             let who = what;\n\
             // Nobody is woken by what fails.\n\
             /// There is none.\n\
             /// Returns the waiter.\n\
             // The peer is told.\n",
        );
        assert_eq!(found.lines, 5);
        let rules: Vec<Rule> = found.broken.iter().map(|(rule, _)| *rule).collect();
        assert_eq!(
            rules,
            [
                Rule::Actor,
                Rule::Actor,
                Rule::Object,
                Rule::Fragment,
                Rule::Term
            ]
        );
        assert_eq!(faults(&folder("a", [0; 4]), &found).len(), 4);
        assert!(faults(&folder("a", [500, 250, 250, 250]), &found).is_empty());
    }

    #[test]
    fn planted_word_of_each_list_is_found_in_each_kind_of_file() {
        let lists = [
            (&ACTORS[..], Rule::Actor),
            (&OBJECTS[..], Rule::Object),
            (&TERMS[..], Rule::Term),
        ];
        let places = [
            ("a.rs", "// The peer ", "\n"),
            ("a.rs", "    /// The peer ", "\n"),
            ("a.c", "/* The peer ", " */\n"),
            ("a.h", " * The peer ", "\n"),
            ("a.md", "The peer ", "\n"),
            ("a.7", "The peer ", "\n"),
        ];
        for (path, before, after) in places {
            for (word, rule) in lists
                .iter()
                .flat_map(|(words, rule)| words.iter().map(move |word| (*word, *rule)))
            {
                let found = count(path, &format!("{before}{word} x.{after}"));
                let rules: Vec<Rule> = found.broken.iter().map(|(rule, _)| *rule).collect();
                assert_eq!(rules, [rule], "{path}: {word}");
            }
        }
        for word in PRONOUNS {
            for mark in ["///", "//!"] {
                let found = count("a.rs", &format!("{mark} {word} x.\n"));
                assert!(
                    found.broken.iter().any(|(rule, _)| *rule == Rule::Fragment),
                    "{word}"
                );
            }
        }
    }

    #[test]
    fn term_in_a_name_of_code_is_no_prose() {
        let found = count(
            "a.md",
            "The file `lane.rs` and the type [`Lane`].\nA `lane` lane.\n",
        );
        assert_eq!(found.broken.len(), 1);
        assert!(count("a.rs", "/// The type [`lanes`], and `news`.\n")
            .broken
            .is_empty());
    }

    #[test]
    fn folder_within_the_target_passes() {
        let mut text = "// Plain.\n".repeat(998);
        text.push_str("// Wakes who waits.\n// Wakes whom it likes.\n");
        assert!(faults(&folder("a", [0; 4]), &count("a.rs", &text)).is_empty());
        text.push_str("// Nobody knows.\n");
        assert_eq!(faults(&folder("a", [0; 4]), &count("a.rs", &text)).len(), 1);
    }

    #[test]
    fn code_in_documents_is_no_prose() {
        let found = count("a.md", "Run it.\n\n```\nwho | what\n```\n\nWho waits?\n");
        assert_eq!((found.lines, found.broken.len()), (2, 1));
        let found = count("a.8", ".SH WHAT\nwhat it does\n");
        assert_eq!((found.lines, found.broken.len()), (1, 1));
        let found = count("a.c", "/*\n * who\n */\nint what;\n");
        assert_eq!((found.lines, found.broken.len()), (3, 1));
    }

    #[test]
    fn planted_subjects_are_refused() {
        assert_eq!(
            complaint("kverbs, pure: use the oldest key values first"),
            None
        );
        for subject in [
            "repair it",
            "Kfabric: repair it",
            "kfabric: wip",
            "kverbs: who shuts down is not told",
            "kfabric: say in a very long subject, with more than seventy-two characters, all",
            "kfblk: a disk is what it was, or fails",
            "kfblk: failing a disk",
            "kfabric: do what clippy asks for",
            "kfabric: wake the task whom nobody serves",
        ] {
            assert!(complaint(subject).is_some(), "{subject}");
        }
    }
}
