// SPDX-License-Identifier: MIT OR Apache-2.0

//! Selection of tests: all, those of a name, or those that a change can affect.

use crate::context::Context;
use anyhow::{bail, Context as _, Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The tests that a change of a path can affect. The row with the longest matching path counts.
struct Row {
    /// A folder, a file, or a prefix of their names.
    path: &'static str,
    /// Prefixes of names of tests that run in guests.
    tests: &'static [&'static str],
    /// Places of those tests.
    places: &'static [&'static str],
    /// The tests of the host can be affected.
    host: bool,
}

const NETNS: &[&str] = &["netns"];
const BOTH: &[&str] = &["netns", "kshm"];
const ONE: &[&str] = &["netns", "1 node"];

/// Topics that cover all objects of the core, a few seconds each.
const CORE: &[&str] = &[
    "msg.", "rma.", "cq.", "cm.", "mr.", "open.", "keys.p0", "death.", "uapi.", "modules.",
    "memcg.",
];

const fn row(
    path: &'static str,
    tests: &'static [&'static str],
    places: &'static [&'static str],
    host: bool,
) -> Row {
    Row {
        path,
        tests,
        places,
        host,
    }
}

/// The table of folders and topics. A new folder needs a new row.
const TABLE: &[Row] = &[
    row("kfabric/", CORE, NETNS, false),
    row("kfabric/auth.c", &["auth.", "authd."], ONE, false),
    row("kfabric/capi", &["kernel."], BOTH, false),
    row("kfabric/include/", &["kernel."], BOTH, false),
    row("kfabric/src/auth", &["auth.", "authd."], ONE, false),
    row("kfabric/src/capi", &["kernel."], BOTH, false),
    row(
        "kfabric/src/memory/charge.rs",
        &["mr.", "memcg.", "rdmacg."],
        ONE,
        false,
    ),
    row(
        "kfabric/src/objects/cntr.rs",
        &["cntr.", "counters."],
        BOTH,
        false,
    ),
    row(
        "kfabric/src/objects/cq.rs",
        &["cq.", "cq_data.", "poll.", "resmgmt_test."],
        BOTH,
        false,
    ),
    row(
        "kfabric/src/chardev",
        &[
            "uapi.", "open.", "lib.", "mr.", "msg.", "share.", "threads.",
        ],
        NETNS,
        false,
    ),
    row(
        "kfabric/src/objects/eq.rs",
        &["cm.", "eq.", "death."],
        BOTH,
        false,
    ),
    row("kfabric/src/key", &["keys."], BOTH, false),
    row(
        "kfabric/src/ep/ring_pair.rs",
        &["shm_rings."],
        &["kshm"],
        false,
    ),
    row("kfblk/", &["blk.", "blkdev."], NETNS, false),
    row(
        "kshm-provider/",
        &[
            "shm.",
            "shm_rings.",
            "msg.",
            "rma.",
            "cm.",
            "keys.",
            "death.",
        ],
        &["kshm"],
        false,
    ),
    row(
        "kverbs-provider/",
        &[
            "msg.", "rma.", "cm.", "keys.", "death.", "device.", "devices.", "atomic.", "rdmacg.",
        ],
        NETNS,
        false,
    ),
    row("consumers/", &["kernel."], BOTH, false),
    row("consumers/tests/fake-device/", &["devices."], NETNS, false),
    row("examples/", &["examples."], BOTH, true),
    row("pure/", CORE, BOTH, true),
    row("uapi/", &["uapi.", "lib."], NETNS, true),
    row("fuzz/", &[], &[], true),
    row("packaging/", &[], &[], true),
    row("userspace/", &["kfi.", "lib.", "tools."], NETNS, true),
    row("userspace/kfi-authd/", &["authd.", "auth."], ONE, true),
    row("userspace/libkfauth/", &["authd.", "auth."], ONE, true),
    row(
        "userspace/libfabric-provider/",
        &["ofi.", "mpi.", "conformance."],
        BOTH,
        true,
    ),
    row("userspace/libkfabric/", &["lib.", "kfi."], NETNS, true),
    row(
        "userspace/libkfabric/src/rings",
        &["shm_rings."],
        &["kshm"],
        true,
    ),
    row("userspace/man/", &[], &[], false),
    row("qemu-tests/", &["msg."], BOTH, true),
    row("qemu-tests/interop/", &["interop."], NETNS, false),
    row("qemu-tests/interop/fi_cases", &["ofi."], BOTH, false),
    row("qemu-tests/interop/fi_local", &["ofi."], BOTH, false),
    row("qemu-tests/interop/fi_newer", &["ofi."], BOTH, false),
    row("qemu-tests/interop/fi_two", &["ofi."], BOTH, false),
    row("qemu-tests/interop/mpi_cases", &["mpi."], BOTH, false),
    row("qemu-tests/src/disk", &["blk."], NETNS, true),
    row("qemu-tests/src/profile", &["devices."], NETNS, true),
    row("qemu-tests/src/storm", &["death.p11_storm"], BOTH, true),
    row("qemu-tests/src/wire", &["wire."], NETNS, true),
    row("qemu-tests/src/fuzz", &["fuzz."], NETNS, true),
    row("qemu-tests/guest-init/", &["msg."], BOTH, true),
    row("xtask/", &["msg.send_of_each_size_arrives"], NETNS, true),
    row(
        "xtask/src/setup/layers",
        &["mpi.", "conformance."],
        BOTH,
        true,
    ),
    row("Cargo", &["msg."], NETNS, true),
    row(".cargo/", &[], &[], true),
    row(".ci/", &[], &[], false),
    row(".gitignore", &[], &[], false),
    row("LICENSES/", &[], &[], false),
    row("README.md", &[], &[], false),
    row("CHANGELOG.md", &[], &[], false),
    row("CONTRIBUTING.md", &[], &[], false),
    row("SECURITY.md", &[], &[], false),
    row("ARCHITECTURE.md", &[], &[], false),
    row("docs/", &[], &[], false),
    row("TESTING.md", &[], &[], false),
];

/// The folder of test sources, whose files name their tests.
const TOPICS: &str = "qemu-tests/src/tests/";

/// The tests of a run.
#[derive(Debug, Default)]
pub(super) struct Selection {
    /// Part of a test's name; empty for all tests.
    pub(super) only: String,
    /// Tests that a change can affect; `None` for all tests.
    changed: Option<Affected>,
}

/// Tests that a change can affect.
#[derive(Debug, Default, PartialEq, Eq)]
struct Affected {
    /// Places, and prefixes of names of tests there.
    tests: BTreeSet<(&'static str, &'static str)>,
    /// Full names of tests, which run at all their places.
    names: BTreeSet<String>,
    host: bool,
}

impl Selection {
    /// Selects the tests whose names contain `only`. If `since` is a revision, selects those of
    /// them that the changes since then can affect, with uncommitted and new files.
    ///
    /// # Errors
    ///
    /// If git does not know the revision.
    pub(super) fn new(ctx: &Context, only: &str, since: Option<&str>) -> Result<Self> {
        let changed = match since {
            None => None,
            Some(since) => {
                let files = files_since(&ctx.repo, since)?;
                println!("{} files differ from {since}", files.len());
                let read = |file: &str| std::fs::read_to_string(ctx.repo.join(file)).ok();
                let affected = affected(&files, read)?;
                affected.show();
                Some(affected)
            }
        };
        Ok(Self {
            only: only.to_owned(),
            changed,
        })
    }

    /// Returns whether this test at this place is selected.
    pub(super) fn has(&self, name: &str, place: &str) -> bool {
        let affected = |changed: &Affected| {
            let begins = |(at, start): &(&str, &str)| *at == place && name.starts_with(start);
            changed.names.contains(name) || changed.tests.iter().any(begins)
        };
        name.contains(&self.only) && self.changed.as_ref().is_none_or(affected)
    }

    /// Returns whether the tests of the host are selected.
    pub(super) fn has_host(&self) -> bool {
        self.changed.as_ref().is_none_or(|changed| changed.host)
    }

    /// Returns whether tests in guests are selected.
    pub(super) fn has_guests(&self) -> bool {
        let any = |changed: &Affected| !changed.tests.is_empty() || !changed.names.is_empty();
        self.changed.as_ref().is_none_or(any)
    }
}

impl Affected {
    fn show(&self) {
        let mut words: Vec<String> = self
            .tests
            .iter()
            .map(|(p, t)| format!("{t}* [{p}]"))
            .collect();
        words.extend(self.names.iter().cloned());
        if self.host {
            words.push("host".into());
        }
        println!("they can affect: {}", words.join(", "));
    }
}

/// Returns the tests that changes of these files can affect. `read` returns the text of an existing
/// file.
fn affected(files: &[String], read: impl Fn(&str) -> Option<String>) -> Result<Affected> {
    let mut all = Affected::default();
    for file in files {
        if let Some(topic) = file.strip_prefix(TOPICS) {
            all.host |= topic.ends_with(".rs");
            all.names
                .extend(read(file).map_or_else(Vec::new, |text| names_in(&text)));
            continue;
        }
        let matching = TABLE.iter().filter(|row| file.starts_with(row.path));
        let Some(row) = matching.max_by_key(|row| row.path.len()) else {
            bail!("{file} has no row in the table of xtask/src/test/selection.rs");
        };
        all.host |= row.host;
        let each = row.places.iter();
        all.tests
            .extend(each.flat_map(|place| row.tests.iter().map(move |test| (*place, *test))));
    }
    Ok(all)
}

/// Returns the names of tests in the source of a topic: every string in the form of a name.
fn names_in(text: &str) -> Vec<String> {
    let name = |word: &&str| {
        let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        word.split_once('.').is_some_and(|(topic, rest)| {
            !topic.is_empty() && !rest.is_empty() && topic.chars().chain(rest.chars()).all(fine)
        })
    };
    let words = text.split('"').skip(1).step_by(2);
    words.filter(name).map(str::to_owned).collect()
}

/// Returns the files that differ from a revision, with new ones.
fn files_since(repo: &Path, since: &str) -> Result<Vec<String>> {
    let git = |args: &[&str]| -> Result<String> {
        let output = Command::new("git")
            .arg("-C")
            .arg(repo)
            .args(args)
            .output()
            .context("starting git")?;
        if !output.status.success() {
            bail!("git: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let changed = git(&["diff", "--name-only", since, "--"])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(changed
        .lines()
        .chain(new.lines())
        .map(str::to_owned)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    fn of(files: &[&str]) -> Selection {
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        let read = |_: &str| Some(r#"Test::pair("cm.names", names), "no.Name", x"#.to_owned());
        Selection {
            only: String::new(),
            changed: Some(affected(&files, read).unwrap()),
        }
    }

    #[test]
    fn the_longest_path_counts() {
        let all = of(&["kfabric/src/objects/eq.rs"]);
        assert!(all.has("eq.order", "netns") && all.has("cm.names", "kshm"));
        assert!(!all.has("msg.iov", "netns") && !all.has_host());
    }

    #[test]
    fn a_topic_runs_the_tests_it_names() {
        let all = of(&["qemu-tests/src/tests/cm.rs"]);
        assert!(all.has("cm.names", "2 nodes") && all.has("cm.names", "netns"));
        assert!(!all.has("cm.ipv6", "netns"));
    }

    #[test]
    fn a_page_runs_nothing() {
        let all = of(&["README.md", "userspace/man/kfi_mr.3"]);
        assert!(!all.has_host() && !all.has_guests());
    }

    #[test]
    fn without_a_revision_everything_runs() {
        let all = Selection::default();
        assert!(all.has("a.b", "netns") && all.has_host() && all.has_guests());
    }

    #[test]
    fn every_file_of_the_project_has_a_row() {
        let output = Command::new("git")
            .arg("-C")
            .arg(repo())
            .arg("ls-files")
            .output();
        // An unpacked archive of the sources has no git history.
        let Ok(output) = output else { return };
        let text = String::from_utf8_lossy(&output.stdout);
        let files: Vec<String> = text.lines().map(str::to_owned).collect();
        affected(&files, |_| None).unwrap();
    }

    #[test]
    fn every_topic_of_the_table_has_tests() {
        let mut names = Vec::new();
        let folders = [
            "qemu-tests/src/tests",
            "qemu-tests/src/wire",
            "qemu-tests/src",
        ];
        for entry in folders.map(|dir| std::fs::read_dir(repo().join(dir)).unwrap()) {
            let paths = entry.flatten().map(|entry| entry.path());
            for path in paths.filter(|path| path.extension().is_some_and(|e| e == "rs")) {
                names.extend(names_in(&std::fs::read_to_string(path).unwrap()));
            }
        }
        for row in TABLE {
            for test in row.tests {
                let there = names.iter().any(|name| name.starts_with(test));
                assert!(there, "{}: no test begins with {test}", row.path);
            }
        }
    }
}
