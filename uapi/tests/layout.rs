// SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note
//! The interface does not change by accident: sizes, offsets and call numbers match `uapi.txt`, and
//! `uapi.txt` lists every item of `abi.rs`.

#[path = "../gen/layout.rs"]
mod layout;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use kfabric_uapi::KFI_IOCTLS;
use layout::{CONSTANTS, LAYOUTS};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn dump() -> String {
    let mut out = String::from(
        "# Calls with their numbers, constants, structures with sizes and offsets. Compared by tests/layout.rs.\n\
         # New lines are new interface; a changed line breaks programs.\n",
    );
    for (number, name) in KFI_IOCTLS {
        writeln!(out, "ioctl {name} {number:#010x}").unwrap();
    }
    for (name, value) in CONSTANTS {
        writeln!(out, "const {name} {value:#x}").unwrap();
    }
    for (name, size, fields) in LAYOUTS {
        writeln!(out, "struct {name} {size}").unwrap();
        for (field, at) in *fields {
            writeln!(out, "    {at:>4} {field}").unwrap();
        }
    }
    out
}

#[test]
fn nothing_moved() {
    let there = std::fs::read_to_string(root().join("uapi.txt")).unwrap_or_default();
    let now = dump();
    if now == there {
        return;
    }
    let (a, b): (BTreeSet<&str>, BTreeSet<&str>) = (there.lines().collect(), now.lines().collect());
    let gone: Vec<&&str> = a.difference(&b).collect();
    let new: Vec<&&str> = b.difference(&a).collect();
    panic!("the interface changed.\ngone: {gone:#?}\nnew: {new:#?}\nuapi.txt is to be:\n{now}");
}

#[test]
fn every_structure_and_field_is_listed() {
    let source = std::fs::read_to_string(root().join("src/abi.rs")).unwrap();
    let mut listed = LAYOUTS.iter();
    let mut fields: Option<Vec<&str>> = None;
    for line in source.lines() {
        if let Some(rest) = line.strip_prefix("pub struct ") {
            let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap();
            let (known, _, known_fields) = listed.next().expect(name);
            assert_eq!(*known, name);
            fields = Some(known_fields.iter().map(|(f, _)| *f).rev().collect());
        } else if let (Some(left), Some(rest)) = (&mut fields, line.strip_prefix("    pub ")) {
            let name = rest.split(':').next().unwrap();
            assert_eq!(left.pop(), Some(name));
        } else if line == "}" {
            assert_eq!(fields.take().unwrap_or_default(), Vec::<&str>::new());
        }
    }
    assert!(listed.next().is_none());
}

#[test]
fn every_constant_is_listed() {
    let source = std::fs::read_to_string(root().join("src/abi.rs")).unwrap();
    let named = source.lines().filter_map(|line| {
        let (name, ty) = line.strip_prefix("pub const ")?.split_once(": ")?;
        (name != "KFI_IOCTLS" && !ty.starts_with('&')).then_some(name)
    });
    let listed: Vec<&str> = CONSTANTS.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed, named.collect::<Vec<_>>());
}

#[test]
fn fields_of_a_call_begin_with_size_and_flags() {
    for (name, _, fields) in LAYOUTS {
        if fields.first() == Some(&("size", 0)) {
            assert_eq!(fields.get(1), Some(&("flags", 4)), "{name}");
        }
    }
    let nrs: Vec<u32> = KFI_IOCTLS.iter().map(|(number, _)| number & 0xff).collect();
    assert!(
        nrs.iter().copied().eq(0..u32::try_from(nrs.len()).unwrap()),
        "{nrs:?}"
    );
}
