// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks of the modules with the kernel's own tools and settings.

use super::files::{is_kernel, within};
use super::rust::said;
use super::Lint;
use crate::build::modules::{self, Profile};
use crate::chroot::{command, Bind};
use anyhow::Result;
use std::path::Path;

/// Ignored types of checkpatch's complaints, the paths concerned, and the reason.
const IGNORED: [(&str, &str); 8] = [
    // The symbols of a Rust crate are exported from a generated list.
    ("EXPORT_SYMBOL", "kfabric/exports.c"),
    // Names of the published API: its types, and the errno of an unsupported call.
    ("NEW_TYPEDEFS", "kfabric/include/"),
    ("ENOSYS", "kfabric/include/"),
    ("ENOSYS", "consumers/tests/c-api/"),
    // It changes a device's table of verbs.
    ("CONST_STRUCT", "consumers/tests/fake-device/"),
    // For patches to the kernel's own tree only.
    ("FILE_PATH_CHANGES", ""),
    ("MAINTAINERS_STYLE", ""),
    // The header is generated; its longest lines are assertions on layout.
    ("LONG_LINE_STRING", "uapi/include/kfabric_uapi.h"),
];

/// Checks that the modules' Rust is formatted as the kernel's.
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

/// Checks that the kernel's checkpatch has no complaint about C.
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
        // checkpatch writes temporary files to its working folder.
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

/// Checks that clippy, with the kernel's settings, has no complaint about the modules' Rust, and
/// sparse none about their C. Each header of the API is also checked alone and in either order
/// (`consumers/tests/c-api`).
pub(super) fn clippy(lint: &Lint<'_>) -> Result<Vec<String>> {
    let mut tools = lint.tools();
    tools.sparse = Some(crate::setup::sparse::ensure(lint.ctx)?);
    let built = modules::build(lint.ctx, &tools, Profile::Clippy);
    Ok(match built {
        Ok(_) => Vec::new(),
        Err(error) => vec![format!("{error:#} (see above)")],
    })
}

/// Returns a command that runs in the build root, in the folder `at`.
fn inside(lint: &Lint<'_>, at: &Path, argv: &[&str]) -> std::process::Command {
    let binds = [Bind::same(&lint.ctx.repo), Bind::same(&lint.rig.tree)];
    command(&lint.rig.root, &binds, at, argv)
}
