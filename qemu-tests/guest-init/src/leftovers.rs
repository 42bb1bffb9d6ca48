// SPDX-License-Identifier: MIT OR Apache-2.0

//! Leftovers of a run: RDMA resources, pinned pages, references to our modules, and complaints
//! while they unload.

use crate::checkers;
use crate::machine::run;
use crate::protocol::Config;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

/// State before our modules were loaded.
pub(crate) struct Baseline {
    resources: BTreeMap<String, i64>,
    pins: i64,
}

impl Baseline {
    /// Records the state.
    pub(crate) fn take() -> Self {
        Self {
            resources: resources(),
            pins: pins(),
        }
    }
}

/// Differences from the baseline, and other findings.
#[derive(Default)]
pub(crate) struct Found {
    /// Leftovers of the run.
    pub(crate) left: Vec<String>,
    /// Findings while unloading.
    pub(crate) unload: Vec<String>,
}

/// Checks for leftovers and unloads our modules.
pub(crate) fn look(config: &Config, baseline: &Baseline) -> Found {
    let mut found = Found::default();
    if config.ours.is_empty() {
        return found;
    }
    // Scan once while the modules' names are known, and once for memory that only the modules
    // pointed to.
    let mut leaks = checkers::leaks();
    let marker = log_end();
    for file in config.ours.iter().rev() {
        let name = file.trim_end_matches(".ko").replace('-', "_");
        if refcount(&name).is_none() {
            continue;
        }
        if let Err(error) = settle(|| unload(&name)) {
            let count = refcount(&name).unwrap_or(0);
            found.unload.push(format!(
                "{name} does not unload ({count} references left): {error:#}"
            ));
        }
    }
    let more = settle(|| match more_resources(baseline) {
        more if more.is_empty() => Ok(()),
        more => Err(more),
    });
    if let Err(more) = more {
        found
            .left
            .push(format!("RDMA resources left: {}", more.join(", ")));
    }
    let left = settle(|| match pins() - baseline.pins {
        0 => Ok(()),
        left => Err(left),
    });
    if let Err(left) = left {
        found.left.push(format!("pinned pages left: {left}"));
    }
    leaks.extend(checkers::leaks());
    let leaks = leaks.into_iter().map(|leak| format!("leaked: {leak}"));
    found.left.extend(leaks);
    if checkers::lockdep_gave_up() {
        found.left.push("lockdep has switched itself off".into());
    }
    if let Some(said) = marker.map(since) {
        let loud: Vec<&str> = said
            .lines()
            .filter(|line| {
                ["kfabric", "kverbs", "kshm"]
                    .iter()
                    .any(|name| line.contains(name))
            })
            .collect();
        if !loud.is_empty() {
            found
                .unload
                .push(format!("unloading was not silent: {}", loud.join(" | ")));
        }
    }
    found
}

/// Repeats a check for a while, because a process's work may end after its exit.
fn settle<E>(mut check: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    let mut last = check();
    for _ in 0..50 {
        if last.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        last = check();
    }
    last
}

fn unload(name: &str) -> anyhow::Result<()> {
    run("rmmod", &[name]).map(drop)
}

/// Returns a module's reference count, or `None` if it is not loaded.
fn refcount(name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/sys/module/{name}/refcnt"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// Counts RDMA objects by kind and owner.
fn resources() -> BTreeMap<String, i64> {
    let mut found = BTreeMap::new();
    for kind in ["pd", "cq", "qp", "cm_id", "mr"] {
        let text = run("rdma", &["-j", "resource", "show", kind]).unwrap_or_default();
        let list: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
        for object in list {
            let owner = object.get("comm").and_then(Value::as_str).unwrap_or("?");
            *found.entry(format!("{kind} of {owner}")).or_default() += 1;
        }
    }
    found
}

/// Returns resources that the baseline does not have.
fn more_resources(baseline: &Baseline) -> Vec<String> {
    resources()
        .into_iter()
        .map(|(what, count)| {
            let before = baseline.resources.get(&what).copied().unwrap_or(0);
            (what, count - before)
        })
        .filter(|(_, more)| *more > 0)
        .map(|(what, more)| format!("{more} {what}"))
        .collect()
}

/// Returns the number of long-term pins.
fn pins() -> i64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let value = |name: &str| -> i64 {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
            .unwrap_or(0)
    };
    value("nr_foll_pin_acquired ") - value("nr_foll_pin_released ")
}

/// Opens the kernel log at its end.
fn log_end() -> Option<std::fs::File> {
    use std::io::Seek as _;
    let mut log = std::fs::File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/kmsg")
        .ok()?;
    log.seek(std::io::SeekFrom::End(0)).ok()?;
    Some(log)
}

/// Returns the log lines since `log` was opened.
fn since(mut log: std::fs::File) -> String {
    let mut text = String::new();
    let mut record = [0; 8192];
    // Each read returns one record; the end is an error (no record yet).
    while let Ok(count @ 1..) = log.read(&mut record) {
        text += &String::from_utf8_lossy(&record[..count]);
    }
    text
}
