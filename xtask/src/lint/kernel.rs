// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks of the modules with the kernel's own tools and settings.

use super::files::{is_kernel, within};
use super::rust::said;
use super::Lint;
use crate::build::modules::{self, Profile};
use crate::chroot::{command, Bind};
use anyhow::Result;
use std::path::Path;

/// What checkpatch is not asked about, of which paths, and why.
const IGNORED: [(&str, &str); 7] = [
    // A Rust crate's symbols are exported from a list that the build makes.
    ("EXPORT_SYMBOL", "kfabric/exports.c"),
    // The published API's: types, and the answer to what is not offered.
    ("NEW_TYPEDEFS", "kfabric/include/"),
    ("ENOSYS", "kfabric/include/"),
    ("ENOSYS", "consumers/c-sample/"),
    // About patches to the kernel's own tree.
    ("FILE_PATH_CHANGES", ""),
    ("MAINTAINERS_STYLE", ""),
    // The header is generated; its longest lines are assertions on layout.
    ("LONG_LINE_STRING", "uapi/include/kfabric_uapi.h"),
];

/// The modules' Rust is formatted as the kernel's.
pub(super) fn fmt(lint: &Lint<'_>) -> Result<Vec<String>> {
    let config = lint.rig.tree.join(".rustfmt.toml");
    let config = config.display().to_string();
    let mut argv = vec!["rustfmt", "--edition", "2021", "--config-path", &config];
    if !lint.fix {
        argv.extend(["--check", "-l"]);
    }
    let files = lint
        .files
        .iter()
        .filter(|path| is_kernel(path) && path.ends_with(".rs"));
    argv.extend(files.map(String::as_str));
    let mut faults = said(inside(lint, &lint.ctx.repo, &argv))?;
    faults.sort();
    faults.dedup();
    if !faults.is_empty() {
        faults.push("cargo xtask lint --fix formats them".into());
    }
    Ok(faults)
}

/// The kernel's checkpatch has nothing to say about C.
pub(super) fn checkpatch(lint: &Lint<'_>) -> Result<Vec<String>> {
    let script = lint.rig.tree.join("scripts/checkpatch.pl");
    let script = script.display().to_string();
    let is_c = |path: &&String| {
        (is_kernel(path) || within(path, "uapi")) && (path.ends_with(".c") || path.ends_with(".h"))
    };
    let mut faults = Vec::new();
    for path in lint.files.iter().filter(is_c) {
        let ignored: Vec<&str> = IGNORED
            .iter()
            .filter(|(_, only)| path.starts_with(only))
            .map(|(kind, _)| *kind)
            .collect();
        let ignored = ignored.join(",");
        let file = lint.ctx.repo.join(path).display().to_string();
        // It writes notes for itself where it stands.
        faults.extend(said(inside(
            lint,
            Path::new("/tmp"),
            &[
                "perl",
                &script,
                "--no-tree",
                "--terse",
                "--show-types",
                "--no-summary",
                "--ignore",
                &ignored,
                "--file",
                &file,
            ],
        ))?);
    }
    Ok(faults)
}

/// Clippy, with the kernel's settings, has nothing to say about the modules' Rust, nor sparse about
/// their C: the headers of the API are checked alone and in either order (`consumers/c-sample`).
pub(super) fn clippy(lint: &Lint<'_>) -> Result<Vec<String>> {
    let mut tools = lint.tools();
    tools.sparse = Some(crate::setup::sparse::ensure(lint.ctx)?);
    let built = modules::build(lint.ctx, &tools, Profile::Clippy);
    Ok(match built {
        Ok(_) => Vec::new(),
        Err(error) => vec![format!("{error:#} (see above)")],
    })
}

/// A command in the build root, in the folder `at`.
fn inside(lint: &Lint<'_>, at: &Path, argv: &[&str]) -> std::process::Command {
    let binds = [Bind::same(&lint.ctx.repo), Bind::same(&lint.rig.tree)];
    command(&lint.rig.root, &binds, at, argv)
}
