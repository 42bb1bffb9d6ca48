// SPDX-License-Identifier: MIT OR Apache-2.0

//! The debug kernel's checkers that report only on request.

use std::path::Path;
use std::time::Duration;

const KMEMLEAK: &str = "/sys/kernel/debug/kmemleak";
/// Age beyond which kmemleak suspects an object, if it is unchanged since the scan before.
const AGE: Duration = Duration::from_secs(6);
/// Number of suspects that are printed; the rest is counted.
const SHOWN: usize = 8;

/// Clears leaks from before our modules were loaded.
pub(crate) fn forget_leaks() {
    if suspects().is_some() {
        tell("clear");
    }
}

/// Returns memory that no pointer refers to, one text per object; empty if the kernel has no
/// kmemleak.
pub(crate) fn leaks() -> Vec<String> {
    if suspects().is_none_or(|found| found.is_empty()) {
        return Vec::new();
    }
    // A pointer that was in a register in one scan is found in the next.
    std::thread::sleep(AGE);
    let found = suspects().unwrap_or_default();
    let more = found.len().saturating_sub(SHOWN);
    let mut texts: Vec<String> = found.into_iter().take(SHOWN).collect();
    if more > 0 {
        texts.push(format!("and {more} more"));
    }
    tell("clear");
    texts
}

/// Scans, and reads the suspects. Returns `None` if the kernel has no kmemleak.
fn suspects() -> Option<Vec<String>> {
    if !Path::new(KMEMLEAK).exists() {
        return None;
    }
    std::thread::sleep(AGE);
    tell("scan");
    let text = std::fs::read_to_string(KMEMLEAK).ok()?;
    Some(objects(&text))
}

fn tell(what: &str) {
    let _ = std::fs::write(KMEMLEAK, what);
}

/// Splits a report into objects, without their content.
fn objects(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.starts_with("unreferenced object") {
            found.push(line.to_owned());
        } else if let Some(object) = found.last_mut() {
            if !line.trim_start().starts_with("hex dump") && !is_dump(line) {
                object.push('\n');
                object.push_str(line);
            }
        }
    }
    found
}

/// Returns whether a line is a part of a hex dump: pairs of digits.
fn is_dump(line: &str) -> bool {
    let pairs = line.split_whitespace().take(8);
    let mut count = 0;
    for word in pairs {
        if word.len() != 2 || !word.chars().all(|c| c.is_ascii_hexdigit()) {
            return false;
        }
        count += 1;
    }
    count == 8
}

/// Returns whether lockdep has switched itself off, which it does after a report or when it runs
/// out of memory: from then on it checks nothing.
pub(crate) fn lockdep_gave_up() -> bool {
    std::fs::read_to_string("/proc/lockdep_stats").is_ok_and(|text| {
        text.lines()
            .filter_map(|line| line.trim().strip_prefix("debug_locks:"))
            .any(|value| value.trim() == "0")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_split_into_objects_without_their_content() {
        let text = "unreferenced object 0xffff (size 64):\n  comm \"insmod\", pid 1\n  hex dump (first 32 bytes):\n    \
                    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00  ................\n  backtrace (crc 0):\n    kmalloc+0x1\n\
                    unreferenced object 0xfffe (size 8):\n  comm \"x\", pid 2\n";
        let found = objects(text);
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0],
            "unreferenced object 0xffff (size 64):\n  comm \"insmod\", pid 1\n  backtrace (crc 0):\n    kmalloc+0x1"
        );
    }
}
