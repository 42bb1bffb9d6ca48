// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the modules allocate is charged to the memory cgroup of the program that has it done.

use super::files::within;
use super::text::has_word;
use super::Lint;
use anyhow::Result;

/// Folders that programs reach.
const FOLDERS: [&str; 4] = ["kfabric", "kverbs-provider", "kshm-provider", "kfblk"];

/// Where nothing is a program's, and why.
const EXEMPT: [(&str, &str); 3] = [
    (
        "kfblk",
        "made for an administrator by configfs, and made anew by workers; no program has a part in it",
    ),
    (
        "kfabric/src/capi",
        "what a consumer in the kernel calls; the module itself has it, not the current task",
    ),
    ("kfabric/capi.c", "as kfabric/src/capi"),
];

/// What says why an allocation is charged to nobody.
const MARK: &str = "UNACCOUNTED: ";

/// `GFP_KERNEL` alone stands only where nothing is a program's, or below a comment that says why.
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

/// The numbers of the lines that allocate so and do not say why.
fn lines(text: &str) -> Vec<usize> {
    let mut faults = Vec::new();
    // Whether the comment that ends just above says why.
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
    fn unaccounted_allocation_is_looked_for_where_programs_reach() {
        assert!(is_checked("kfabric/src/ep.rs") && is_checked("kverbs-provider/src/ib/qp.rs"));
        assert!(!is_checked("kfabric/src/capi/av.rs") && !is_checked("kfblk/src/disk.rs"));
        assert!(!is_checked("consumers/c-sample/x.c") && !is_checked("kfabric/src/x.txt"));
    }
}
