// SPDX-License-Identifier: MIT OR Apache-2.0

//! Coverage of the fuzzed modules by source file.

use super::code::{functions, sites, Site};
use super::uses::{data, references, uses, Roots, Use};
use crate::chroot::{command, Bind};
use anyhow::{bail, Context as _, Result};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The fuzzed modules, the same as in `qemu-tests/src/fuzz/kcov.rs`, and their folders. Each module
/// uses those after it.
const MODULES: [(&str, &str); 3] = [
    ("kverbs", "kverbs-provider"),
    ("kshm", "kshm-provider"),
    ("kfabric", "kfabric"),
];

/// Groups of source files, with prefixes of file names. The first match counts.
const GROUPS: [(&str, &[&str]); 6] = [
    (
        "chardev",
        &[
            "kfabric/src/chardev",
            "kfabric/helpers.c",
            "uapi/",
            "pure/src/copysize.rs",
            "pure/src/slot.rs",
        ],
    ),
    (
        "rings",
        &[
            "kfabric/src/objects/cq.rs",
            "kfabric/src/sys/ring.rs",
            "kfabric/src/sys/wait.rs",
            "pure/src/cqring.rs",
        ],
    ),
    ("core", &["kfabric/", "pure/"]),
    ("kverbs", &["kverbs-provider"]),
    ("kshm", &["kshm-provider"]),
    ("other crates' code", &[""]),
];

/// Number of leading [`GROUPS`] that the fuzzer must cover.
const WANTED: usize = 2;

/// Definition of live edges, printed with the table.
const ALIVE: &str =
    "(alive: without edges that were not seen and from which every path ends in a panic, or in
 functions that only other modules, or only loading and unloading, lead to)\n";

/// Options of objdump for code.
const DISASSEMBLE: [&str; 2] = ["-dr", "--no-show-raw-insn"];

/// Counts of edges.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    reached: usize,
    all: usize,
    /// Dead edges among the unreached ones: no program can reach them. Either every path from there
    /// ends in a panic, or no code leads there, or only the loading of the module does.
    dead: usize,
}

impl Count {
    fn add(&mut self, other: Count) {
        self.reached += other.reached;
        self.all += other.all;
        self.dead += other.dead;
    }

    fn row(self, name: &str) -> String {
        let percent = |of: usize| match of {
            0 => "    -".to_owned(),
            _ => format!("{:5.1}", 100.0 * self.reached as f64 / of as f64),
        };
        format!(
            "{name:<42} {:>6} {:>6} {} % {:>6} {} %\n",
            self.reached,
            self.all,
            percent(self.all),
            self.alive(),
            percent(self.alive())
        )
    }

    fn alive(self) -> usize {
        self.all - self.dead
    }

    /// Returns the percentage of live edges that were reached.
    fn percent(self) -> f64 {
        100.0 * self.reached as f64 / self.alive().max(1) as f64
    }
}

/// Coverage by source file.
pub(super) struct Coverage(BTreeMap<String, Count>);

/// Reads the covered code, and writes a list of the uncovered code beside it.
///
/// # Errors
///
/// If a tool fails, or the guest has not written the covered code.
pub(super) fn read(root: &Path, modules: &[PathBuf], reached: &Path) -> Result<Coverage> {
    let text = std::fs::read_to_string(reached).context("the guest wrote no coverage")?;
    let mut files: BTreeMap<String, Count> = BTreeMap::new();
    let mut missed = String::new();
    let mut roots = Roots::default();
    for (module, folder) in MODULES {
        let file = format!("{module}.ko");
        let path = modules
            .iter()
            .find(|path| path.ends_with(&file))
            .with_context(|| format!("there is no {file}"))?;
        let seen = places(&text, module);
        let code = functions(&tool(root, path, "objdump", &DISASSEMBLE, "")?);
        let data = data(&tool(root, path, "objdump", &["-tr"], "")?);
        let uses = uses(&code, &data, &roots);
        let all = sites(&code, &uses.functions);
        // References of this module are uses in the modules after it.
        let more = references(&code, &data, &uses);
        roots.running.extend(more.running);
        roots.loading.extend(more.loading);
        if all.is_empty() {
            bail!("{file} was built without coverage");
        }
        let names = sources(root, path, &all)?;
        for (site, source) in all.iter().zip(names) {
            let source = part(module, folder, source);
            let hit = seen.contains(&(site.section.clone(), site.at));
            let name = source
                .rsplit_once(':')
                .map_or(source.as_str(), |(file, _)| file);
            let count = files.entry(name.to_owned()).or_default();
            count.all += 1;
            count.reached += usize::from(hit);
            count.dead += usize::from(!hit && (site.dead_end || site.use_ != Use::Running));
            if !hit {
                let dead = match (site.dead_end, site.use_) {
                    (true, _) => "panic ",
                    (_, Use::Nothing) => "unused ",
                    (_, Use::Loading) => "loading ",
                    (_, Use::Running) => "",
                };
                let _ = writeln!(
                    missed,
                    "{source} {dead}{}+{:#x} {}",
                    site.section, site.at, site.function
                );
            }
        }
    }
    let list = reached.with_file_name("fuzz-missed.txt");
    std::fs::write(&list, missed)?;
    Ok(Coverage(files))
}

impl Coverage {
    /// Returns the files of a group.
    fn files(&self, group: &str) -> impl Iterator<Item = (&String, &Count)> {
        let of = |file: &str| {
            let mut groups = GROUPS.iter();
            let fits = |starts: &[&str]| starts.iter().any(|start| file.starts_with(start));
            groups.find(|(_, starts)| fits(starts)).map(|found| found.0)
        };
        let group = group.to_owned();
        self.0
            .iter()
            .filter(move |(file, _)| of(file) == Some(group.as_str()))
    }

    fn group(&self, name: &str) -> Count {
        let mut total = Count::default();
        self.files(name).for_each(|(_, count)| total.add(*count));
        total
    }

    fn whole(&self) -> Count {
        let mut total = Count::default();
        self.0.values().for_each(|count| total.add(*count));
        total
    }

    /// Formats all counts as a table.
    pub(super) fn table(&self) -> String {
        let mut out = format!(
            "{:<42} {:>6} {:>6} {:>7} {:>6}\n",
            "edges", "seen", "all", "", "alive"
        );
        let mut totals = String::new();
        for (name, _) in GROUPS {
            for (file, count) in self.files(name) {
                out += &count.row(&format!("  {file}"));
            }
            totals += &self.group(name).row(name);
        }
        out + &totals + &self.whole().row("all") + ALIVE
    }

    /// Formats the most important counts as one line.
    pub(super) fn line(&self) -> String {
        let whole = self.whole();
        let mut line = format!("{} of {} edges", whole.reached, whole.alive());
        for (name, _) in &GROUPS[..WANTED] {
            let count = self.group(name);
            let _ = write!(line, ", {name} {:.1} %", count.percent());
        }
        line
    }

    /// Returns the wanted groups with a coverage below `percent`.
    pub(super) fn below(&self, percent: f64) -> Vec<&'static str> {
        let wanted = GROUPS[..WANTED].iter().map(|(name, _)| *name);
        wanted
            .filter(|name| self.group(name).percent() < percent)
            .collect()
    }
}

/// Returns a file and line as part of a module. Code of the framework that is compiled into a
/// provider counts as the provider's.
fn part(module: &str, folder: &str, source: String) -> String {
    if module == "kfabric" || source.starts_with(&format!("{folder}/")) {
        source
    } else {
        format!("{folder}: {source}")
    }
}

/// Returns the covered places of a module.
fn places(text: &str, module: &str) -> HashSet<(String, u64)> {
    let place = |line: &str| {
        let mut words = line.split_whitespace();
        if words.next()? != module {
            return None;
        }
        let section = words.next()?.to_owned();
        let at = words.next()?.strip_prefix("0x")?;
        Some((section, u64::from_str_radix(at, 16).ok()?))
    };
    text.lines().filter_map(place).collect()
}

/// Returns for each place the source file and line of ours that it was compiled from.
fn sources(root: &Path, module: &Path, all: &[Site]) -> Result<Vec<String>> {
    let mut names = Vec::with_capacity(all.len());
    let mut rest = all;
    while let Some(first) = rest.first() {
        let count = rest
            .iter()
            .take_while(|site| site.section == first.section)
            .count();
        let (part, tail) = rest.split_at(count);
        rest = tail;
        // The address of the call itself, not of the instruction after it.
        let addrs: String = part
            .iter()
            .map(|site| format!("{:#x}\n", site.at - 1))
            .collect();
        let said = tool(
            root,
            module,
            "addr2line",
            &["-a", "-i", "-j", &first.section],
            &addrs,
        )?;
        let mut answers: Vec<Option<String>> = Vec::new();
        for line in said.lines() {
            if line.starts_with("0x") {
                answers.push(None);
            } else if let Some(answer @ None) = answers.last_mut() {
                *answer = ours(line);
            }
        }
        if answers.len() != part.len() {
            bail!(
                "addr2line answered for {} of {} places",
                answers.len(),
                part.len()
            );
        }
        let unknown = || "(none of ours)".to_owned();
        names.extend(answers.into_iter().map(|name| name.unwrap_or_else(unknown)));
    }
    Ok(names)
}

/// Returns a file of ours, relative to the checkout, and its line.
fn ours(line: &str) -> Option<String> {
    let line = line.trim().trim_start_matches("(inlined by) ");
    let line = line.split(" (").next()?;
    let mut parts: Vec<&str> = Vec::new();
    for part in line.split('/') {
        if part == ".." && !parts.is_empty() {
            parts.pop();
        } else if part != "." {
            parts.push(part);
        }
    }
    let folders = [
        "kfabric",
        "kverbs-provider",
        "kshm-provider",
        "pure",
        "uapi",
    ];
    let starts = |i: usize| {
        folders.contains(&parts[i])
            && parts
                .get(i + 1)
                .is_some_and(|next| *next == "src" || next.contains(':') || next.ends_with(".c"))
    };
    let main = |part: &str| {
        let mut all = MODULES.iter();
        all.find(|(module, _)| part.starts_with(&format!("{module}_main.rs")))
    };
    let at = (0..parts.len())
        .rev()
        .find(|i| starts(*i) || main(parts[*i]).is_some())?;
    if let Some((_, folder)) = main(parts[at]) {
        return Some(format!("{folder}/src/{}", parts[at]));
    }
    Some(parts[at..].join("/"))
}

/// Returns the output of a tool of the build root for a module.
fn tool(root: &Path, module: &Path, name: &str, args: &[&str], input: &str) -> Result<String> {
    let dir = module.parent().unwrap_or(module);
    let file = module.display().to_string();
    let mut argv = vec![name];
    argv.extend_from_slice(args);
    argv.extend(if name == "addr2line" {
        vec!["-e", &file]
    } else {
        vec![file.as_str()]
    });
    let mut cmd: Command = command(root, &[Bind::same(dir)], dir, &argv);
    let mut child = cmd
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {name}"))?;
    let mut stdin = child.stdin.take().context("no input")?;
    let input = input.to_owned();
    let writer = std::thread::spawn(move || {
        use std::io::Write as _;
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output()?;
    let _ = writer.join();
    if !output.status.success() {
        bail!("{name} failed on {file}");
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_from_the_checkouts_root() {
        let at = |line| ours(line).unwrap();
        assert_eq!(
            at("/t/kbuild/7/debug/kfabric/src/chardev/dispatch.rs:12 (discriminator 3)"),
            "kfabric/src/chardev/dispatch.rs:12"
        );
        assert_eq!(
            at("/t/debug/kfabric/src/../../pure/src/cqring.rs:9"),
            "pure/src/cqring.rs:9"
        );
        assert_eq!(at("/t/debug/kfabric/helpers.c:9"), "kfabric/helpers.c:9");
        assert_eq!(
            at(" (inlined by) /t/debug/kverbs-provider/src/ib/qp.rs:3"),
            "kverbs-provider/src/ib/qp.rs:3"
        );
        assert_eq!(
            at("src/kverbs_main.rs:3"),
            "kverbs-provider/src/kverbs_main.rs:3"
        );
        assert_eq!(at("src/kshm_main.rs:3"), "kshm-provider/src/kshm_main.rs:3");
        assert_eq!(
            ours("/usr/lib/rustlib/src/rust/library/core/src/option.rs:3"),
            None
        );
    }

    #[test]
    fn what_a_provider_has_of_others_is_its_own() {
        let of = |module, folder, file: &str| part(module, folder, file.to_owned());
        let slot = "pure/src/slot.rs:9";
        assert_eq!(of("kfabric", "kfabric", slot), slot);
        let shm = of("kshm", "kshm-provider", slot);
        assert_eq!(shm, "kshm-provider: pure/src/slot.rs:9");
        let own = "kshm-provider/src/data/path.rs:9";
        assert_eq!(of("kshm", "kshm-provider", own), own);
    }

    #[test]
    fn groups_take_each_file_once() {
        let mut files = BTreeMap::new();
        let count = Count {
            reached: 1,
            all: 4,
            dead: 2,
        };
        for file in [
            "kfabric/src/chardev/dispatch.rs",
            "kfabric/src/objects/cq.rs",
            "kfabric/src/ep/endpoint.rs",
            "(none of ours)",
        ] {
            files.insert(file.to_owned(), count);
        }
        let coverage = Coverage(files);
        let text = coverage.table();
        let all = text.lines().find(|line| line.starts_with("all")).unwrap();
        assert!(
            all.contains(" 4 ") && all.contains(" 16 ") && all.contains("50.0"),
            "{text}"
        );
        let line = coverage.line();
        assert_eq!(line, "4 of 8 edges, chardev 50.0 %, rings 50.0 %");
        assert_eq!(coverage.below(50.0), [""; 0]);
        assert_eq!(coverage.below(50.1), ["chardev", "rings"]);
    }
}
