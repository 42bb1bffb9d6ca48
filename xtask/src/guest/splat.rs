// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readable splats: demangled names of Rust functions, and source lines for frames in our modules.

use crate::chroot::{command, Bind};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A frame of a backtrace: `name+0x12/0x34 [module]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    module: String,
    name: String,
    offset: u64,
}

/// Section and offset of each function of a module.
type Functions = BTreeMap<String, (String, u64)>;

/// Adds the source line to each frame of `text` in one of `modules` (with debug information), and
/// demangles the other names.
pub(super) fn explain(root: &Path, modules: &[PathBuf], text: &str) -> String {
    let mut known: BTreeMap<String, (PathBuf, Functions)> = BTreeMap::new();
    let mut explained = String::new();
    for line in text.lines() {
        explained += &demangle(line);
        explained.push('\n');
        let Some(frame) = frame_of(line) else {
            continue;
        };
        let file = modules.iter().find(|path| stem(path) == frame.module);
        let Some(file) = file else {
            continue;
        };
        let (file, functions) = known
            .entry(frame.module.clone())
            .or_insert_with(|| (file.clone(), functions(root, file)));
        if let Some((section, start)) = functions.get(&frame.name) {
            for place in lines(root, file, section, start + frame.offset) {
                explained += &format!("          {place}\n");
            }
        }
    }
    explained
}

fn stem(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.replace('-', "_")
}

/// Returns the frame in a line of a kernel log, if it is one of a module.
fn frame_of(line: &str) -> Option<Frame> {
    let mut words = line.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let Some((name, rest)) = word.rsplit_once("+0x") else {
            continue;
        };
        let Some(module) = words.peek().and_then(|next| next.strip_prefix('[')) else {
            continue;
        };
        let (offset, _) = rest.split_once("/0x")?;
        return Some(Frame {
            module: module.trim_end_matches(']').to_owned(),
            name: name.rsplit(':').next().unwrap_or(name).to_owned(),
            offset: u64::from_str_radix(offset, 16).ok()?,
        });
    }
    None
}

/// Demangles words that look like names of Rust functions.
fn demangle(line: &str) -> String {
    let word_end = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.');
    let mut out = String::new();
    let mut rest = line;
    while let Some(start) = rest.find("_R") {
        let end = rest[start..]
            .find(word_end)
            .map_or(rest.len(), |length| start + length);
        out += &rest[..start];
        let name = &rest[start..end];
        match rustc_demangle::try_demangle(name) {
            Ok(plain) => out += &format!("{plain:#}"),
            Err(_) => out += name,
        }
        rest = &rest[end..];
    }
    out + rest
}

fn tool(root: &Path, file: &Path, argv: &[&str]) -> String {
    let dir = file.parent().unwrap_or(file);
    let output = command(root, &[Bind::same(dir)], Path::new("/"), argv)
        .stdin(std::process::Stdio::null())
        .output();
    output
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default()
}

fn functions(root: &Path, file: &Path) -> Functions {
    let path = file.display().to_string();
    parse_functions(&tool(root, file, &["objdump", "-t", &path]))
}

/// Parses the output of `objdump -t`: value, flags, section, size, name.
fn parse_functions(table: &str) -> Functions {
    table
        .lines()
        .filter_map(|line| {
            let value = u64::from_str_radix(line.get(..16)?, 16).ok()?;
            let flags = line.get(17..24)?;
            let mut rest = line.get(25..)?.split_whitespace();
            let section = rest.next()?;
            let name = rest.last()?;
            flags
                .contains('F')
                .then(|| (name.to_owned(), (section.to_owned(), value)))
        })
        .collect()
}

/// Returns the source lines of a place, the innermost inlined function first.
fn lines(root: &Path, file: &Path, section: &str, at: u64) -> Vec<String> {
    let path = file.display().to_string();
    let section = format!("--section={section}");
    // The address of a frame is the return address of the call.
    let at = format!("{:#x}", at.saturating_sub(1));
    let argv = ["addr2line", "-i", "-e", &path, &section, &at];
    tool(root, file, &argv)
        .lines()
        .filter(|line| !line.starts_with("??"))
        .map(|line| match line.rfind("kbuild/") {
            // The path is that of a copy in the build folder; it is shown as in the checkout.
            Some(start) => line[start..]
                .splitn(4, '/')
                .last()
                .unwrap_or(line)
                .to_owned(),
            None => line.to_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_with_and_without_a_time() {
        let frame = Frame {
            module: "kfabric".into(),
            name: "_RNvCs1_7kfabric4pin".into(),
            offset: 0x2f,
        };
        for line in [
            "[   12.3]  ? _RNvCs1_7kfabric4pin+0x2f/0x90 [kfabric]",
            "RIP: 0010:_RNvCs1_7kfabric4pin+0x2f/0x90 [kfabric]",
        ] {
            assert_eq!(frame_of(line), Some(frame.clone()), "{line}");
        }
        assert_eq!(frame_of("[   12.3]  do_syscall_64+0x95/0x180"), None);
        assert_eq!(
            frame_of("Modules linked in: kfabric(O) [last unloaded: x]"),
            None
        );
    }

    #[test]
    fn names_are_demangled_where_they_stand() {
        assert_eq!(
            demangle("BUG in _RNvNtCs1234_7mycrate3foo3bar+0x1/0x2 [x]"),
            "BUG in mycrate::foo::bar+0x1/0x2 [x]"
        );
        assert_eq!(demangle("SYM_R and _Rnot"), "SYM_R and _Rnot");
    }

    #[test]
    fn the_symbol_table_is_read() {
        let table = "kfabric.ko:     file format elf64-x86-64\n\nSYMBOL TABLE:\n\
                     0000000000000000 l    d  .text\t0000000000000000 .text\n\
                     0000000000000150 g     F .init.text\t0000000000000012 0x kf_init\n\
                     00000000000000a0 l     F .text\t0000000000000040 pin\n";
        let found = parse_functions(table);
        assert_eq!(found["pin"], (".text".into(), 0xa0));
        assert_eq!(found["kf_init"], (".init.text".into(), 0x150));
        assert_eq!(found.len(), 2);
    }
}
