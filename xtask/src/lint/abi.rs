// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks that the pages in `docs/abi` list each file that the modules have in sysfs, configfs and
//! tracefs.

use super::files::within;
use super::Lint;
use anyhow::Result;

/// The folder of the pages, in the format of the kernel's `Documentation/ABI`.
const FOLDER: &str = "docs/abi";

/// Each attribute, module parameter and tracepoint has an entry.
pub(super) fn abi(lint: &Lint<'_>) -> Result<Vec<String>> {
    let read = |path: &String| std::fs::read_to_string(lint.ctx.repo.join(path));
    let mut entries = String::new();
    for page in lint.files.iter().filter(|path| within(path, FOLDER)) {
        entries += &what(&read(page)?);
    }
    let mut faults = Vec::new();
    let is_c = |path: &&String| path.ends_with(".c") || path.ends_with(".h");
    let ours = |path: &&String| {
        ["kfabric", "kverbs-provider", "kshm-provider", "kfblk"]
            .iter()
            .any(|folder| within(path, folder))
    };
    for source in lint.files.iter().filter(is_c).filter(ours) {
        for end in defined(&read(source)?) {
            if !has(&entries, &end) {
                faults.push(format!("{source}: no entry in {FOLDER} ends with {end}"));
            }
        }
    }
    Ok(faults)
}

/// Returns the lines of a page that name files.
fn what(page: &str) -> String {
    page.lines()
        .filter(|line| line.starts_with("What:"))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Returns whether an entry's path ends with `end`.
fn has(entries: &str, end: &str) -> bool {
    entries
        .split([',', '\n'])
        .any(|path| path.trim().ends_with(end))
}

/// Returns the ends of the paths of the files that a source defines.
fn defined(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((macro_name, rest)) = line.split_once('(') else {
            continue;
        };
        let words: Vec<&str> = rest.split([',', ')']).map(str::trim).collect();
        let end = match (macro_name, words.as_slice()) {
            ("CONFIGFS_ATTR" | "CONFIGFS_ATTR_RO" | "CONFIGFS_ATTR_WO", [folder, name, ..]) => {
                format!("{}s/<name>/{name}", folder.trim_end_matches('_'))
            }
            ("KFBLK_ALL", [name, ..]) => format!("subsystems/<name>/{name}"),
            ("module_param_named" | "module_param_cb" | "module_param", [name, ..]) => {
                format!("/parameters/{name}")
            }
            ("TRACE_EVENT", [name, ..]) => format!("/events/kfabric/{name}"),
            _ => continue,
        };
        found.push(end);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_source_are_found() {
        let text = "CONFIGFS_ATTR_RO(disk_, state);\nKFBLK_ALL(all_fenced, ID);\n\
                    \tmodule_param_named(no, x, uint, 0644);\n\
                    module_param_cb(user_mib, &ops, &x, 0644);\nTRACE_EVENT(key_assign,\n";
        assert_eq!(
            defined(text),
            [
                "disks/<name>/state",
                "subsystems/<name>/all_fenced",
                "/parameters/user_mib",
                "/events/kfabric/key_assign",
            ]
        );
    }

    #[test]
    fn file_without_entry_is_missed() {
        let page = "What:\t\t/a/disks/<name>/state, /a/disks/<name>/device\nstate\n";
        let entries = what(page);
        assert!(has(&entries, "disks/<name>/state") && has(&entries, "disks/<name>/device"));
        assert!(!has(&entries, "ports/<name>/state") && !has(&entries, "disks/<name>/enable"));
    }
}
