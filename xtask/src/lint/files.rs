// SPDX-License-Identifier: MIT OR Apache-2.0

//! The checked files, and their classes by path.

use crate::build::modules;
use anyhow::{Context as _, Result};
use std::path::Path;
use xshell::{cmd, Shell};

/// Returns whether the Rust code of a file is kernel code, in the kernel's style.
pub(super) fn is_kernel(path: &str) -> bool {
    modules::FOLDERS
        .iter()
        .filter(|folder| !["uapi", "pure"].contains(*folder))
        .any(|folder| within(path, folder))
}

/// Returns whether a path lies in a folder.
pub(super) fn within(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Returns files under version control, and new ones that are not ignored.
pub(super) fn all(repo: &Path) -> Result<Vec<String>> {
    let shell = Shell::new()?;
    shell.change_dir(repo);
    // The checkout may belong to another user, as in a container.
    let list = cmd!(
        shell,
        "git -c safe.directory=* ls-files --cached --others --exclude-standard --deduplicate"
    )
    .quiet()
    .read()
    .context("asking git for the files")?;
    Ok(list
        .lines()
        .filter(|path| repo.join(path).is_file())
        .map(str::to_owned)
        .collect())
}

/// Returns whether a file is hand-written, in a language with comments.
pub(super) fn is_source(path: &str) -> bool {
    const ENDINGS: [&str; 9] = [
        ".rs", ".c", ".h", ".S", ".sh", ".py", ".toml", ".rules", ".config",
    ];
    const NAMES: [&str; 4] = ["Kbuild", "Makefile", "Kconfig", ".gitignore"];
    let name = path.rsplit('/').next().unwrap_or(path);
    ENDINGS.iter().any(|end| name.ends_with(end)) || NAMES.contains(&name) || within(path, ".ci")
}

/// Returns whether a file is written by tools.
pub(super) fn is_made(path: &str) -> bool {
    ["Cargo.lock", "fuzz/Cargo.lock"].contains(&path)
        || within(path, "LICENSES")
        || within(path, "fuzz/seeds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_told_apart() {
        assert!(is_kernel("kfabric/src/x.rs") && is_kernel("consumers/a/b.rs"));
        assert!(!is_kernel("kfabric-tools/x.rs") && !is_kernel("pure/src/x.rs"));
        assert!(is_source(".ci/run") && is_source("kfabric/Kbuild"));
        assert!(!is_source("README.md") && !is_source("LICENSES/MIT"));
    }
}
