// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi show keys`: key slots, counts of key values, and the modules' counters.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use kfabric::{Kind, LiveObject};
use serde::Serialize;

use super::{access, aligned};
use crate::cmd::{print, print_json};
use crate::error::Result;
use crate::say::printable;

/// Directory of the modules' counters, readable by root.
const COUNTERS: &str = "/sys/kernel/debug/kfabric";

/// A key slot.
#[derive(Debug, PartialEq, Serialize)]
struct Slot {
    slot: String,
    region: String,
    pid: u32,
    comm: String,
    state: String,
    /// Number of keys that the slot has had.
    keys: u64,
    /// Offset of the first byte in the region.
    offset: Option<u64>,
    length: Option<u64>,
    access: Option<String>,
    /// Number of the auth key, if there is one.
    auth: Option<u64>,
    /// Handle of the endpoint that the slot is bound to, if there is one.
    endpoint: Option<String>,
}

/// Counts of the key values of a domain.
#[derive(Debug, PartialEq, Serialize)]
struct Values {
    domain: String,
    device: String,
    pid: u32,
    comm: String,
    /// Values that were in a key or are reserved for one.
    used: u64,
    /// Those of them that were used before.
    reused: u64,
    /// Keys whose end left their memory region without a value.
    worn: u64,
    /// Values of all domains of the user that count in the user's budget.
    spent: u64,
}

/// Counters by part and name.
type Counters = BTreeMap<String, BTreeMap<String, u64>>;

#[derive(Serialize)]
struct Report {
    slots: Vec<Slot>,
    /// Of the domains that have used key values.
    values: Vec<Values>,
    /// Empty if the counters cannot be read.
    counters: Counters,
}

/// State of a slot, and the number of keys that it has had.
pub(super) fn state(object: &LiveObject) -> (&str, u64) {
    // An older kernel does not report the state, but reports whether the slot has a key.
    let assigned = object.raw.b != 0;
    let plain = if assigned { "assigned" } else { "reserved" };
    match object.name.split_once(' ') {
        Some((state, keys)) => (state, keys.parse().unwrap_or(0)),
        None => (plain, u64::from(assigned)),
    }
}

impl Slot {
    fn new(object: &LiveObject) -> Self {
        let raw = &object.raw;
        let (state, keys) = state(object);
        let assigned = raw.b != 0;
        Self {
            slot: format!("{:#x}", object.handle),
            region: format!("{:#x}", object.parent),
            pid: object.pid,
            comm: object.comm.clone(),
            state: state.to_owned(),
            keys,
            offset: assigned.then_some(raw.c),
            length: assigned.then_some(raw.a),
            access: assigned.then(|| access(raw.b)),
            auth: (raw.auth != 0).then_some(raw.auth),
            endpoint: (raw.ep != 0).then(|| format!("{:#x}", raw.ep)),
        }
    }

    fn cells(&self) -> [String; 10] {
        let none = || "-".to_owned();
        let range = match (self.offset, self.length) {
            (Some(offset), Some(length)) => format!("{offset}+{length}"),
            _ => none(),
        };
        [
            self.slot.clone(),
            self.region.clone(),
            self.pid.to_string(),
            self.comm.clone(),
            self.state.clone(),
            range,
            self.access.clone().unwrap_or_else(none),
            self.keys.to_string(),
            self.auth.map_or_else(none, |auth| format!("{auth:x}")),
            self.endpoint.clone().unwrap_or_else(none),
        ]
    }
}

impl Values {
    fn new(object: &LiveObject) -> Self {
        let raw = &object.raw;
        Self {
            domain: format!("{:#x}", object.handle),
            device: object.name.clone(),
            pid: object.pid,
            comm: object.comm.clone(),
            used: raw.keys_used,
            reused: raw.keys_reused,
            worn: raw.keys_worn,
            spent: raw.keys_spent,
        }
    }

    fn has_some(&self) -> bool {
        [self.used, self.worn, self.spent] != [0; 3]
    }

    fn cells(&self) -> [String; 8] {
        [
            self.domain.clone(),
            self.device.clone(),
            self.pid.to_string(),
            self.comm.clone(),
            self.used.to_string(),
            self.reused.to_string(),
            self.worn.to_string(),
            self.spent.to_string(),
        ]
    }
}

/// Reads the counters below `root`: a directory per part, a file per counter.
fn counters(root: &Path) -> Counters {
    let names = |path: &Path| -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let name = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
    let value = |path: &Path| std::fs::read_to_string(path).ok()?.trim().parse().ok();
    let mut all = Counters::new();
    for part in names(root) {
        for file in names(&part) {
            if let (Some(part), Some(file), Some(value)) = (name(&part), name(&file), value(&file))
            {
                all.entry(part).or_default().insert(file, value);
            }
        }
    }
    all
}

fn text(report: &Report) -> String {
    let mut t = String::new();
    if report.slots.is_empty() {
        t.push_str("no keys\n");
    } else {
        let heads = [
            "SLOT", "REGION", "PID", "COMMAND", "STATE", "RANGE", "RIGHTS", "KEYS", "AUTH",
            "ENDPOINT",
        ];
        let mut cells = vec![heads.map(str::to_owned)];
        cells.extend(report.slots.iter().map(Slot::cells));
        t.push_str(&aligned(&cells));
    }
    if !report.values.is_empty() {
        let heads = [
            "DOMAIN", "DEVICE", "PID", "COMMAND", "USED", "REUSED", "WORN", "SPENT",
        ];
        let mut cells = vec![heads.map(str::to_owned)];
        cells.extend(report.values.iter().map(Values::cells));
        t.push_str(&aligned(&cells));
    }
    for (part, counters) in &report.counters {
        let each: Vec<_> = counters.iter().map(|(n, v)| format!("{n} {v}")).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(t, "{}", printable(&format!("{part}: {}", each.join(", "))));
    }
    t
}

/// Prints the key slots among `objects`, and the counts of their domains.
///
/// # Errors
///
/// If printing fails.
pub(super) fn run(objects: &[LiveObject], json: bool) -> Result<()> {
    let keys = objects.iter().filter(|o| o.kind == Kind::Key);
    let domains = objects.iter().filter(|o| o.kind == Kind::Domain);
    let report = Report {
        slots: keys.map(Slot::new).collect(),
        values: domains.map(Values::new).filter(Values::has_some).collect(),
        counters: counters(Path::new(COUNTERS)),
    };
    if json {
        print_json(&report)
    } else {
        print(&text(&report))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::object;
    use super::*;
    use kfabric::Access;

    fn key(name: &str, abc: [u64; 3]) -> Slot {
        let mut o = object(Kind::Key, 9, 0x40, 0x30, abc);
        o.name = name.to_owned();
        Slot::new(&o)
    }

    #[test]
    fn slot_state_comes_from_the_kernels_name() {
        let rights = Access::REMOTE_READ.bits();
        let slot = key("assigned 4", [4096, rights, 100]);
        assert_eq!((slot.state.as_str(), slot.keys), ("assigned", 4));
        assert_eq!(
            slot.cells()[5..],
            ["100+4096", "remote-read", "4", "-", "-"]
        );
        let slot = key("reserved 3", [0; 3]);
        assert_eq!(slot.cells()[4..], ["reserved", "-", "-", "3", "-", "-"]);
        let mut o = object(Kind::Key, 9, 0x40, 0x30, [0; 3]);
        (o.raw.auth, o.raw.ep) = (0x1f, 0x50);
        assert_eq!(Slot::new(&o).cells()[8..], ["1f", "0x50"]);
        // As an older kernel reports a slot, without a state.
        assert_eq!(key("", [8, rights, 0]).state, "assigned");
        assert_eq!(key("", [0; 3]).state, "reserved");
    }

    #[test]
    fn values_of_a_domain_are_shown_if_it_has_used_some() {
        let mut domain = object(Kind::Domain, 2, 0x20, 0x10, [0; 3]);
        domain.name = "rxe0".into();
        assert!(!Values::new(&domain).has_some());
        let raw = &mut domain.raw;
        (raw.keys_used, raw.keys_reused, raw.keys_worn) = (300, 4, 2);
        let report = Report {
            slots: Vec::new(),
            values: vec![Values::new(&domain)],
            counters: Counters::new(),
        };
        let shown = text(&report);
        let line = shown.lines().nth(2).unwrap_or_default();
        let cells: Vec<_> = line.split_whitespace().collect();
        let wanted = ["0x20", "rxe0", "7", "app", "300", "4", "2", "0"];
        assert_eq!(cells, wanted, "{shown}");
    }

    #[test]
    fn counters_of_a_directory_are_read_and_others_skipped() {
        let root = std::env::temp_dir().join(format!("kfi-counters-{}", std::process::id()));
        std::fs::create_dir_all(root.join("keys")).unwrap();
        std::fs::write(root.join("keys/assigned"), "17\n").unwrap();
        std::fs::write(root.join("keys/else"), "not a number\n").unwrap();
        let report = Report {
            slots: Vec::new(),
            values: Vec::new(),
            counters: counters(&root),
        };
        let _ = std::fs::remove_dir_all(&root);
        assert_eq!(text(&report), "no keys\nkeys: assigned 17\n");
        assert!(counters(&root).is_empty());
    }
}
