// SPDX-License-Identifier: MIT OR Apache-2.0

//! Nothing of C is declared a second time in the modules' Rust: bindgen reads the headers.

use super::files::is_kernel;
use super::text::has_word;
use super::Lint;
use anyhow::Result;

/// The mark of a comment that says why a type with a fixed layout is right.
const MARK: &str = "LAYOUT: ";
/// The macro that compares Rust functions with the C header (`kfabric/src/sys/edge.rs`).
const COMPARES: &str = "same_prototype!(";

/// Prototypes, structures and enumerations of C come from bindgen, and the compiler compares functions
/// that C calls with the header.
pub(super) fn edges(lint: &Lint<'_>) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let is_checked = |path: &&String| is_kernel(path) && path.ends_with(".rs");
    for path in lint.files.iter().filter(is_checked) {
        let text = std::fs::read_to_string(lint.ctx.repo.join(path)).unwrap_or_default();
        for (line, fault) in mirrors(&text) {
            faults.push(format!("{path}:{line}: {fault}"));
        }
    }
    Ok(faults)
}

/// The lines of a file that repeat something of C, each with a message.
fn mirrors(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let code: Vec<&str> = lines.iter().map(|line| without_comment(line)).collect();
    let mut faults = foreign_blocks(&code);
    for (at, line) in code.iter().enumerate() {
        let line = line.trim();
        if !line.starts_with("#[") {
            continue;
        }
        if has_word(line, "no_mangle") || has_word(line, "export_name") {
            faults.extend(unchecked_export(&code, at).map(|fault| (at + 1, fault)));
        }
        if let Some(layout) = between(line, "repr(", ")") {
            faults.extend(mirrored_type(&lines, &code, at, layout).map(|fault| (at + 1, fault)));
        }
    }
    faults.sort();
    faults
}

/// Blocks of prototypes: `extern`, perhaps an ABI, and a brace, on whatever lines they stand.
fn foreign_blocks(code: &[&str]) -> Vec<(usize, String)> {
    let joined = code.join("\n");
    let mut faults = Vec::new();
    for (at, word) in joined.match_indices("extern") {
        if !has_word(&joined[at.saturating_sub(1)..at + word.len()], word) {
            continue;
        }
        let rest = joined[at + word.len()..].trim_start();
        let rest = match rest.strip_prefix('"') {
            Some(abi) => abi
                .split_once('"')
                .map_or("", |(_, rest)| rest.trim_start()),
            None => rest,
        };
        if rest.starts_with('{') {
            let line = joined[..at].matches('\n').count() + 1;
            faults.push((
                line,
                "prototypes written by hand: declare them in the module's helpers.h, and use those that \
                 bindgen makes of it"
                    .to_owned(),
            ));
        }
    }
    faults
}

/// The fault of the item below an attribute that names it for C.
fn unchecked_export(code: &[&str], at: usize) -> Option<String> {
    let item = code[at + 1..].iter().take(4).find_map(|line| {
        let (_, rest) = line.split_once("fn ")?;
        rest.split(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
    });
    let Some(name) = item else {
        return Some(
            "something for C that is no function: C has it by a function's help".to_owned(),
        );
    };
    let joined = code.join("\n");
    let is_compared = joined.match_indices(COMPARES).any(|(at, mark)| {
        let list = &joined[at + mark.len()..];
        has_word(&list[..list.find(')').unwrap_or(list.len())], name)
    });
    (!is_compared).then(|| {
        format!("{name}: nothing compares it with the header: name it in same_prototype!(…) of this file")
    })
}

/// The fault of the type below an attribute that fixes its layout, if the type may be one of C's.
fn mirrored_type(lines: &[&str], code: &[&str], at: usize, layout: &str) -> Option<String> {
    let is_number = |word: &str| {
        let kind = word.strip_prefix("c_").unwrap_or(word);
        [
            "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "int", "uint",
        ]
        .contains(&kind)
    };
    let is_c = has_word(layout, "C");
    if !is_c && !layout.split(',').any(|word| is_number(word.trim())) {
        return None;
    }
    let head = code[at + 1..]
        .iter()
        .position(|line| !line.trim().is_empty() && !line.trim().starts_with("#["))?;
    let head = at + 1 + head;
    let name = ["struct ", "union ", "enum "].iter().find_map(|kind| {
        let (_, rest) = code[head].split_once(kind)?;
        rest.split(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
    })?;
    let body = || {
        code[head + 1..]
            .iter()
            .map(|line| line.trim())
            .take_while(|line| *line != "}")
            .filter(|line| !line.is_empty() && !line.starts_with("#["))
    };
    let says_why = lines[..at]
        .iter()
        .rev()
        .map(|line| line.trim())
        .take_while(|line| line.starts_with("//") || line.starts_with("#["))
        .any(|line| line.starts_with("//") && line.contains(MARK));
    let is_asserted = || {
        code.iter().any(|line| {
            line.contains("assert!(")
                && (line.contains(&format!("size_of::<{name}>"))
                    || line.contains(&format!("offset_of!({name},")))
        })
    };
    // A box around a structure that bindgen made begins with it.
    let is_headed = || body().next().is_some_and(|field| field.contains("raw::"));
    let has_literals = || {
        body().any(|variant| {
            variant
                .split_once(" = ")
                .is_some_and(|(_, value)| value.starts_with(|c: char| c.is_ascii_digit()))
        })
    };
    let is_enum = code[head].contains("enum ");
    let is_mirror = if is_enum && !is_c {
        has_literals()
    } else {
        !is_asserted() && !is_headed()
    };
    (is_mirror && !says_why).then(|| {
        format!(
            "{name}: its layout is written by hand: use what bindgen makes of the header, or assert that \
             it is the same, or say above it after \"{MARK}\" why no C sees it"
        )
    })
}

/// A line without its comment, if it has one.
fn without_comment(line: &str) -> &str {
    line.find("//").map_or(line, |at| &line[..at])
}

/// The part of a line between two marks.
fn between<'a>(line: &'a str, from: &str, to: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(from)?;
    rest.split_once(to).map(|(part, _)| part)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of `text` that are faulty.
    fn faulty(text: &str) -> Vec<usize> {
        mirrors(text).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn handwritten_prototype_is_found_on_any_lines() {
        assert_eq!(faulty("extern \"C\" {\n    fn kf_x() -> i32;\n}\n"), [1]);
        assert_eq!(
            faulty("fn a() {}\nunsafe extern \"C\"\n{\n    fn kf_x();\n}\n"),
            [2]
        );
        assert_eq!(faulty("    extern {\n        fn kf_x();\n    }\n"), [1]);
        let fine =
            "// extern \"C\" {\nunsafe extern \"C\" fn call() {\n}\nextern crate a;\nexternal {\n";
        assert_eq!(faulty(fine), [0; 0]);
    }

    #[test]
    fn function_for_c_without_comparison_is_found() {
        let export =
            "#[no_mangle]\npub(crate) unsafe extern \"C\" fn kf_tick(\n    a: u32,\n) {\n}\n";
        assert_eq!(faulty(export), [1]);
        assert_eq!(
            faulty(&export.replace("no_mangle", "unsafe(export_name = \"x\")")),
            [1]
        );
        let other = format!("{export}crate::same_prototype!(sys: kf_tick_more);\n");
        assert_eq!(faulty(&other), [1]);
        let compared =
            format!("{export}crate::same_prototype!(\n    sys:\n    kf_tock, kf_tick,\n);\n");
        assert_eq!(faulty(&compared), [0; 0]);
        assert_eq!(faulty("#[no_mangle]\nstatic KF_X: u32 = 0;\n"), [1]);
    }

    #[test]
    fn mirrored_structure_is_found_unless_it_is_compared() {
        let plain = "/// Of C.\n#[repr(C)]\n#[derive(Default)]\nstruct Order {\n    /// Bytes.\n    len: u64,\n}\n";
        assert_eq!(faulty(plain), [2]);
        assert_eq!(faulty(&plain.replace("(C)", "(C, packed)")), [2]);
        assert_eq!(faulty(&plain.replace("(C)", "(transparent)")), [0; 0]);
        assert_eq!(
            faulty(&plain.replace("len: u64", "fid: Opaque<raw::kfid>")),
            [0; 0]
        );
        let asserted = "const _: () = assert!(size_of::<Order>() == size_of::<raw::order>());\n";
        assert_eq!(faulty(&format!("{plain}{asserted}")), [0; 0]);
        let said = plain.replace("/// Of C.", "/// Ours.\n// LAYOUT: only Rust has it.");
        assert_eq!(faulty(&said), [0; 0]);
    }

    #[test]
    fn mirrored_enumeration_is_found_by_its_literals() {
        let plain = "#[repr(u32)]\npub(crate) enum Verdict {\n    /// Well.\n    Done = 0,\n}\n";
        assert_eq!(faulty(plain), [1]);
        assert_eq!(
            faulty(&plain.replace(" 0,", " raw::kfblk_verdict_KFBLK_DONE,")),
            [0; 0]
        );
        assert_eq!(faulty(&plain.replace(" = 0,", ",")), [0; 0]);
        assert_eq!(
            faulty(&format!("// LAYOUT: for an atomic.\n{plain}")),
            [0; 0]
        );
    }
}
