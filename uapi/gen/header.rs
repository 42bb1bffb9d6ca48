// SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note
//! Generates the C header from `abi.rs`: structures and constants by cbindgen, call numbers from
//! the table of calls, and checks of every size and offset.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;

use crate::layout::{CONSTANTS, LAYOUTS};
use kfabric_uapi::{KFI_IOCTLS, KFI_IOC_TYPE};

const TOP: &str = "\
/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The interface of /dev/kfabric.
 *
 * Generated from uapi/src/abi.rs by `cargo run -p kfabric-uapi --features header --bin gen-header`;
 * do not edit.
 *
 * Rules of every call: a structure starts with its size and flags. The kernel copies the smaller of
 * its own size and the caller's. Bytes beyond the kernel's size must be zero (E2BIG); missing bytes
 * count as zero. A size below the structure's first version is EINVAL. Unknown flags and non-zero
 * reserved fields are EINVAL. A handle names an object of one open file and is never reused. A call
 * that fails changes nothing.
 */
#ifndef _UAPI_KFABRIC_H
#define _UAPI_KFABRIC_H

#include <linux/ioctl.h>
#include <linux/types.h>

";

const BOTTOM: &str = "\n#endif /* _UAPI_KFABRIC_H */\n";

/// Converts a name such as `InfoEntry` to `info_entry`.
fn snake(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// Returns the C name of a structure.
fn tag(name: &str) -> String {
    // `ObjectCall` and `ObjectCall2` have the same fields; in C the second one is named by its
    // call.
    match name {
        "ObjectCall2" => "kfi_key_revoke".to_owned(),
        name => format!("kfi_{}", snake(name)),
    }
}

/// Converts Rust documentation to C comments: without links, with C names.
fn comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('[') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        // The link is [`Name`] or [`Name::field`].
        let linked = rest.strip_prefix("[`").and_then(|r| r.split_once("`]"));
        match linked {
            Some((name, after)) if !name.contains('\n') => {
                out.push_str(&c_name(name));
                rest = after;
            }
            _ => {
                out.push('[');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    // Sizes are written with C's `sizeof`.
    for (name, _, _) in LAYOUTS {
        out = out.replace(
            &format!("size_of::<{name}>()"),
            &format!("sizeof(struct {})", tag(name)),
        );
    }
    out.replace('`', "")
}

fn c_name(name: &str) -> String {
    let (ty, field) = name
        .split_once("::")
        .map_or((name, None), |(t, f)| (t, Some(f)));
    if !LAYOUTS.iter().any(|(n, _, _)| *n == ty) {
        return name.to_owned();
    }
    match field {
        Some(field) => format!("struct {}'s {field}", tag(ty)),
        None => format!("struct {}", tag(ty)),
    }
}

/// Generates structures and constants.
fn bindings(source: &Path) -> Result<String, String> {
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Tag,
        documentation_style: cbindgen::DocumentationStyle::C,
        no_includes: true,
        tab_width: 8,
        ..cbindgen::Config::default()
    };
    let tags = LAYOUTS
        .iter()
        .map(|(name, _, _)| ((*name).to_owned(), tag(name)));
    config.export.rename = tags.collect::<HashMap<_, _>>();
    // Include also structures that no call uses.
    config.export.include = LAYOUTS
        .iter()
        .map(|(name, _, _)| (*name).to_owned())
        .collect();
    config.export.item_types = vec![cbindgen::ItemType::Constants, cbindgen::ItemType::Structs];
    let made = cbindgen::Builder::new()
        .with_config(config)
        .with_src(source)
        .generate();
    let made = made.map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    made.write(&mut out);
    String::from_utf8(out).map_err(|e| e.to_string())
}

/// Replaces C99 integer types by the kernel's types, which C programs of any standard can use.
fn kernel_types(text: &str) -> String {
    let pairs = [
        ("uint8_t", "__u8"),
        ("uint16_t", "__u16"),
        ("uint32_t", "__u32"),
        ("uint64_t", "__u64"),
        ("int32_t", "__s32"),
        ("int64_t", "__s64"),
    ];
    // Longest first, because `int32_t` is part of `uint32_t`.
    pairs
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Adds a type suffix to shifts and large numbers.
fn constants(text: &str) -> String {
    let value = |line: &str| {
        let (name, value) = line.strip_prefix("#define ")?.split_once(' ')?;
        let (_, number) = CONSTANTS.iter().find(|(n, _)| *n == name)?;
        let (one, by) = value
            .trim_matches(|c| c == '(' || c == ')')
            .split_once(" << ")?;
        let wide = if *number > u64::from(u32::MAX) || *number >= 1 << 31 || one == "1" {
            "ULL"
        } else {
            ""
        };
        Some(format!("#define {name} ({one}{wide} << {by})"))
    };
    let lines = text
        .lines()
        .map(|line| value(line).unwrap_or_else(|| line.to_owned()) + "\n");
    lines.collect::<String>().replace("UINT64_MAX", "(~0ULL)")
}

/// Formats comments in kernel style, with tabs for indentation.
fn kernel_style(text: &str) -> String {
    let mut out = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let tabs = "\t".repeat(indent / 8);
        if line.trim() != "/*" {
            out.push_str(&format!("{tabs}{}\n", line.trim_start()));
            continue;
        }
        let body: Vec<&str> = lines
            .by_ref()
            .take_while(|l| l.trim() != "*/")
            .map(|l| l.trim())
            .collect();
        match body[..] {
            [one] if indent + one.len() + 6 <= 100 => {
                out.push_str(&format!("{tabs}/* {one} */\n"));
            }
            _ => {
                out.push_str(&format!("{tabs}/*\n"));
                for line in body {
                    out.push_str(format!("{tabs} * {line}").trim_end());
                    out.push('\n');
                }
                out.push_str(&format!("{tabs} */\n"));
            }
        }
    }
    out
}

/// Generates the numbers of the calls.
fn calls() -> String {
    let mut out = String::from(
        "/* The calls. The low byte selects one; the size is that of the first version. */\n",
    );
    for (number, name) in KFI_IOCTLS {
        let (nr, size) = (number & 0xff, (number >> 16) & 0x3fff);
        assert_eq!((number >> 8) & 0xff, KFI_IOC_TYPE, "{name}");
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "#define {name} _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, {nr:#04x}, {size})"
        );
    }
    out
}

/// Generates checks that C and Rust agree on the layout.
fn checks() -> String {
    let mut out = String::from(
        "/* Sizes, offsets and values are those of the kernel. */\n\
         #if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L\n",
    );
    for (name, size, fields) in LAYOUTS {
        let tag = tag(name);
        let _ = writeln!(
            out,
            "_Static_assert(sizeof(struct {tag}) == {size}, \"size of {tag}\");"
        );
        for (field, at) in *fields {
            let _ = writeln!(
                out,
                "_Static_assert(__builtin_offsetof(struct {tag}, {field}) == {at}, \"{tag}.{field}\");"
            );
        }
    }
    let numbers = KFI_IOCTLS
        .iter()
        .map(|(number, name)| (*name, u64::from(*number)));
    for (name, value) in CONSTANTS.iter().copied().chain(numbers) {
        let _ = writeln!(out, "_Static_assert({name} == {value:#x}ULL, \"{name}\");");
    }
    out.push_str("#endif\n");
    out
}

/// Generates the header.
///
/// # Errors
///
/// - The message of cbindgen if the source cannot be parsed.
pub(crate) fn generate(source: &Path) -> Result<String, String> {
    let body = kernel_style(&constants(&kernel_types(&comments(&bindings(source)?))));
    // The numbers of the calls need the type byte, so they follow the constants.
    Ok(format!(
        "{TOP}{}\n{}\n{}{BOTTOM}",
        body.trim(),
        calls(),
        checks()
    ))
}
