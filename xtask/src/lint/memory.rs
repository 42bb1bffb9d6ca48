// SPDX-License-Identifier: MIT OR Apache-2.0

//! Check that the modules charge allocations to the memory cgroup of the program that causes them.

use super::files::within;
use super::text::has_word;
use super::Lint;
use anyhow::Result;

/// Folders with code that programs can call.
const FOLDERS: [&str; 4] = ["kfabric", "kverbs-provider", "kshm-provider", "kfblk"];

/// Files without allocations on behalf of programs, with the reason.
const EXEMPT: [(&str, &str); 3] = [
    (
        "kfblk",
        "allocated for an administrator by configfs, and by workers; no program causes it",
    ),
    (
        "kfabric/src/capi",
        "called by consumers in the kernel; the module owns the memory, not the current task",
    ),
    ("kfabric/capi.c", "as kfabric/src/capi"),
];

/// Mark of the comment that gives the reason for an uncharged allocation.
const MARK: &str = "UNACCOUNTED: ";

/// Checks that `GFP_KERNEL` alone is used only in exempt files, or below a comment with the reason.
pub(super) fn unaccounted(lint: &Lint<'_>) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for path in lint.files.iter().filter(|path| is_checked(path)) {
        let text = std::fs::read_to_string(lint.ctx.repo.join(path)).unwrap_or_default();
        for number in lines(&text) {
            faults.push(format!(
                "{path}:{number}: GFP_KERNEL charges no memory cgroup: GFP_KERNEL_ACCOUNT, or a line \
                 \"{MARK}…\" above it that says why not"
            ));
        }
    }
    Ok(faults)
}

fn is_checked(path: &str) -> bool {
    let exempt = |(at, _): &(&str, &str)| *at == path || within(path, at);
    (path.ends_with(".rs") || path.ends_with(".c"))
        && FOLDERS.iter().any(|folder| within(path, folder))
        && !EXEMPT.iter().any(exempt)
}

/// Returns the numbers of lines with such an allocation and without a reason.
fn lines(text: &str) -> Vec<usize> {
    let mut faults = Vec::new();
    // The comment just above gives a reason.
    let mut said = false;
    for (number, line) in text.lines().enumerate() {
        let is_comment = |start| line.trim_start().starts_with(start);
        if ["//", "/*", "*"].into_iter().any(is_comment) {
            said |= line.contains(MARK);
            continue;
        }
        if has_word(line, "GFP_KERNEL") && !said {
            faults.push(number + 1);
        }
        said = false;
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaccounted_allocation_without_a_reason_fails() {
        let text = "let a = KVec::with_capacity(1, GFP_KERNEL)?;\n\
                    let b = KVec::with_capacity(1, GFP_KERNEL_ACCOUNT)?;\n\
                    // UNACCOUNTED: the module has it,\n\
                    // from load to unload.\n\
                    let c = KVec::with_capacity(1, GFP_KERNEL)?;\n\
                    let d = KVec::with_capacity(1, GFP_KERNEL | __GFP_NOWARN)?;\n";
        assert_eq!(lines(text), [1, 6]);
    }

    #[test]
    fn unaccounted_allocation_planted_in_any_source_is_found() {
        let repo = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap();
        let files = super::super::files::all(repo).unwrap();
        let mut planted = 0;
        for path in files.iter().filter(|path| is_checked(path)) {
            let text = std::fs::read_to_string(repo.join(path)).unwrap();
            assert_eq!(lines(&text), [0_usize; 0], "{path}");
            for (number, line) in text.lines().enumerate() {
                if line.trim_start().starts_with("//") || !has_word(line, "GFP_KERNEL_ACCOUNT") {
                    continue;
                }
                let bad = line.replace("GFP_KERNEL_ACCOUNT", "GFP_KERNEL");
                let mut all: Vec<&str> = text.lines().collect();
                all[number] = &bad;
                assert_eq!(lines(&all.join("\n")), [number + 1], "{path}");
                planted += 1;
            }
        }
        assert!(planted > 50, "{planted} lines");
    }

    #[test]
    fn unaccounted_allocation_is_looked_for_where_programs_reach() {
        assert!(
            is_checked("kfabric/src/ep/endpoint.rs") && is_checked("kverbs-provider/src/ib/qp.rs")
        );
        assert!(!is_checked("kfabric/src/capi/av.rs") && !is_checked("kfblk/src/disk.rs"));
        assert!(!is_checked("consumers/tests/c-api/x.c") && !is_checked("kfabric/src/x.txt"));
    }
}
