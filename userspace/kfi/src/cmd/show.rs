// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi show`: live objects.

mod keys;

use std::collections::BTreeMap;
use std::fmt::Write;

use kfabric::{uapi, Access, Device, Kind, LiveObject};
use serde::Serialize;

use super::{print, print_json};
use crate::cli::{Show as Args, What};
use crate::error::{During, Result};
use crate::say::printable;
use crate::stats::bytes;

#[derive(Serialize)]
struct Row {
    kind: String,
    handle: String,
    parent: Option<String>,
    pid: u32,
    comm: String,
    name: String,
    #[serde(flatten)]
    figures: BTreeMap<&'static str, serde_json::Value>,
}

fn state(n: u64) -> &'static str {
    match u32::try_from(n) {
        Ok(uapi::KFI_STATE_NEW) => "new",
        Ok(uapi::KFI_STATE_ENABLED) => "enabled",
        Ok(uapi::KFI_STATE_CONNECTING) => "connecting",
        Ok(uapi::KFI_STATE_CONNECTED) => "connected",
        Ok(uapi::KFI_STATE_DOWN) => "down",
        _ => "unknown",
    }
}

fn access(bits: u64) -> String {
    let names = [
        (Access::SEND, "send"),
        (Access::RECV, "recv"),
        (Access::READ, "read"),
        (Access::WRITE, "write"),
        (Access::REMOTE_READ, "remote-read"),
        (Access::REMOTE_WRITE, "remote-write"),
        (Access::ATOMIC, "atomic"),
    ];
    let set = names
        .iter()
        .filter(|(bit, _)| bits & bit.bits() != 0)
        .map(|(_, name)| *name);
    set.collect::<Vec<_>>().join("+")
}

/// The kernel's figures, with their names for the kind of object.
fn figures(object: &LiveObject) -> BTreeMap<&'static str, serde_json::Value> {
    let (a, b, c) = (object.raw.a, object.raw.b, object.raw.c);
    let mut out = BTreeMap::new();
    match object.kind {
        Kind::Domain => {
            out.insert("pinned", a.into());
        }
        Kind::Region => {
            out.insert("length", a.into());
            out.insert("access", access(b).into());
            out.insert("pages", c.into());
        }
        Kind::Key => {
            let (state, had) = keys::state(object);
            out.insert("state", state.into());
            out.insert("keys", had.into());
            if b != 0 {
                out.insert("length", a.into());
                out.insert("access", access(b).into());
                out.insert("offset", c.into());
            }
        }
        Kind::Endpoint => {
            out.insert("outstanding", a.into());
            out.insert("state", state(b).into());
            out.insert("completed", c.into());
        }
        Kind::EventQueue | Kind::CompletionQueue => {
            out.insert("depth", a.into());
            out.insert("waiting", b.into());
        }
        Kind::Counter => {
            out.insert("value", a.into());
            out.insert("errors", b.into());
        }
        _ => {}
    }
    if object.raw.auth != 0 {
        out.insert("auth", object.raw.auth.into());
    }
    if object.raw.ep != 0 {
        out.insert("endpoint", format!("{:#x}", object.raw.ep).into());
    }
    out
}

/// The figures as one line of text.
fn summary(figures: &BTreeMap<&'static str, serde_json::Value>) -> String {
    let one = |(name, value): (&&str, &serde_json::Value)| match (*name, value) {
        ("length" | "pinned", v) => format!("{name} {}", bytes(v.as_u64().unwrap_or(0))),
        ("state" | "access" | "endpoint", v) => v.as_str().unwrap_or_default().to_owned(),
        (name, v) => format!("{name} {v}"),
    };
    figures.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The object's name. For a key slot it is empty: the kernel's name of a slot is its state.
fn name(object: &LiveObject) -> &str {
    match object.kind {
        Kind::Key => "",
        _ => &object.name,
    }
}

impl Row {
    fn new(object: &LiveObject) -> Self {
        Self {
            kind: object.kind.name().to_owned(),
            handle: format!("{:#x}", object.handle),
            parent: (object.parent != 0).then(|| format!("{:#x}", object.parent)),
            pid: object.pid,
            comm: object.comm.clone(),
            name: name(object).to_owned(),
            figures: figures(object),
        }
    }
}

/// Objects as one tree per process. Handles are unique within a device file only, and a process may
/// have several files: an object appears below the first parent that matches.
fn tree(objects: &[LiveObject]) -> String {
    let mut t = String::new();
    let mut owners: Vec<(u32, &str)> = objects.iter().map(|o| (o.pid, o.comm.as_str())).collect();
    owners.sort_unstable();
    owners.dedup();
    for (pid, comm) in owners {
        // Writing to a string cannot fail.
        let shown = printable(comm);
        let _ = match pid {
            0 => writeln!(t, "{shown} (another pid namespace)"),
            pid => writeln!(t, "{shown} ({pid})"),
        };
        let own: Vec<&LiveObject> = objects
            .iter()
            .filter(|o| o.pid == pid && o.comm == comm)
            .collect();
        let is_root = |o: &&&LiveObject| !own.iter().any(|p| p.handle == o.parent && o.parent != 0);
        let roots: Vec<&LiveObject> = own.iter().filter(is_root).copied().collect();
        branch(&mut t, &own, &roots, "");
    }
    t
}

fn branch(t: &mut String, all: &[&LiveObject], level: &[&LiveObject], indent: &str) {
    // A parent is older than its children, so the tree is finite. This limit stops at an
    // inconsistent list.
    if indent.chars().count() > 64 {
        return;
    }
    for (i, object) in level.iter().enumerate() {
        let last = i + 1 == level.len();
        let figures = summary(&figures(object));
        let _ = write!(
            t,
            "{indent}{} {} {:#x}",
            if last { "└─" } else { "├─" },
            object.kind,
            object.handle
        );
        for part in [name(object), &figures] {
            if !part.is_empty() {
                let _ = write!(t, "  {}", printable(part));
            }
        }
        t.push('\n');
        let children: Vec<&LiveObject> = all
            .iter()
            .filter(|o| o.parent == object.handle && o.handle != object.handle)
            .copied()
            .collect();
        let deeper = format!("{indent}{}", if last { "   " } else { "│  " });
        branch(t, all, &children, &deeper);
    }
}

fn table(rows: &[Row]) -> String {
    let heads = [
        "KIND", "HANDLE", "PARENT", "PID", "COMMAND", "NAME", "FIGURES",
    ];
    let mut cells: Vec<[String; 7]> = vec![heads.map(str::to_owned)];
    cells.extend(rows.iter().map(|r| {
        let parent = r.parent.clone().unwrap_or_else(|| "-".to_owned());
        let summary = summary(&r.figures);
        [
            r.kind.clone(),
            r.handle.clone(),
            parent,
            r.pid.to_string(),
            r.comm.clone(),
            r.name.clone(),
            summary,
        ]
    }));
    aligned(&cells)
}

/// Formats rows in aligned columns, safe for terminals.
pub(super) fn aligned<const N: usize>(cells: &[[String; N]]) -> String {
    let shown = |row: &[String; N]| row.each_ref().map(|cell| printable(cell));
    let cells: Vec<[String; N]> = cells.iter().map(shown).collect();
    let width = |column: usize| {
        cells
            .iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut t = String::new();
    for row in &cells {
        let line: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}", width = *width))
            .collect();
        let _ = writeln!(t, "{}", line.join("  ").trim_end());
    }
    t
}

/// Runs `kfi show`.
///
/// # Errors
///
/// The errors of the kernel.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let device = Device::open().during("open")?;
    let mut objects = device.objects().during("list objects")?;
    objects.retain(|o| args.pid.is_none_or(|pid| o.pid == pid));
    if args.what == Some(What::Keys) {
        return keys::run(&objects, json);
    }
    let rows: Vec<Row> = objects.iter().map(Row::new).collect();
    if json {
        return print_json(&rows);
    }
    if rows.is_empty() {
        return print("no objects\n");
    }
    print(&if args.table {
        table(&rows)
    } else {
        tree(&objects)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn object(
        kind: Kind,
        number: u32,
        handle: u64,
        parent: u64,
        abc: [u64; 3],
    ) -> LiveObject {
        let mut raw = empty();
        (raw.kind, raw.handle, raw.parent) = (number, handle, parent);
        [raw.a, raw.b, raw.c] = abc;
        LiveObject {
            kind,
            pid: 7,
            comm: "app".into(),
            handle,
            parent,
            name: String::new(),
            raw,
        }
    }

    fn empty() -> uapi::ObjInfo {
        uapi::ObjInfo {
            kind: 0,
            pid: 0,
            handle: 0,
            parent: 0,
            a: 0,
            b: 0,
            c: 0,
            comm: [0; 16],
            name: [0; uapi::KFI_NAME_MAX],
            auth: 0,
            ep: 0,
            keys_used: 0,
            keys_reused: 0,
            keys_worn: 0,
            keys_spent: 0,
        }
    }

    #[test]
    fn tree_shows_every_object_once() {
        let rights = Access::REMOTE_READ.bits();
        let objects = [
            object(Kind::Fabric, 1, 0x10, 0, [0; 3]),
            object(Kind::Domain, 2, 0x20, 0x10, [8192, 0, 0]),
            object(Kind::Region, 8, 0x30, 0x20, [8192, rights, 2]),
            object(Kind::Key, 9, 0x40, 0x30, [4096, rights, 0]),
            object(Kind::Endpoint, 7, 0x50, 0x20, [3, 3, 9]),
            object(Kind::Counter, 5, 0x60, 0x999, [1, 0, 0]),
        ];
        let mut objects = objects;
        objects[3].name = "assigned 1".into();
        let text = tree(&objects);
        for object in &objects {
            let handle = format!("{:#x}", object.handle);
            assert_eq!(text.matches(&handle).count(), 1, "{handle} in\n{text}");
        }
        assert!(
            text.contains("key 0x40  remote-read, keys 1, length 4 KiB, offset 0, assigned\n"),
            "{text}"
        );
        assert!(text.starts_with("app (7)\n"), "{text}");
    }

    #[test]
    fn show_of_a_name_with_escapes_prints_no_control_character() {
        let mut object = object(Kind::Region, 8, 0x30, 0, [8192, 0, 2]);
        object.comm = "a\"b\n\u{1b}[31m\u{fffd}".into();
        object.name = "n\r\u{9b}m".into();
        let rows = [Row::new(&object)];
        for text in [tree(&[object.clone()]), table(&rows)] {
            let odd = |c: char| c.is_control() && c != '\n';
            assert!(!text.contains(odd), "{text:?}");
            assert!(text.contains("a\"b\\n\\u{1b}[31m"), "{text:?}");
        }
        assert_eq!(table(&rows).lines().count(), 2);
        assert_eq!(tree(&[object]).lines().count(), 2);
    }
}
