// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies source folders to a build folder, changing only files that differ.

use crate::setup::stage;
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Suffixes of files that a build writes beside its sources.
const MADE: [&str; 10] = [
    ".o",
    ".ko",
    ".mod",
    ".mod.c",
    ".cmd",
    ".rmeta",
    ".d",
    ".a",
    "Module.symvers",
    "modules.order",
];

/// Copies `folders` of `from` to `to`, and removes files of an earlier copy that no longer exist.
/// Returns a key of all files.
///
/// # Errors
///
/// If a file cannot be read or written.
pub fn sync(from: &Path, folders: &[&str], to: &Path) -> Result<String> {
    let mut files = BTreeMap::new();
    for folder in folders {
        collect(from, Path::new(folder), &mut files)?;
    }
    std::fs::create_dir_all(to)?;
    let list_path = to.join(".synced");
    let former = std::fs::read_to_string(&list_path).unwrap_or_default();
    for name in former
        .lines()
        .filter(|name| !files.contains_key(Path::new(*name)))
    {
        let _ = std::fs::remove_file(to.join(name));
    }
    let mut list = String::new();
    let mut parts = Vec::new();
    for (name, bytes) in &files {
        let target = to.join(name);
        if std::fs::read(&target).ok().as_ref() != Some(bytes) {
            if let Some(dir) = target.parent() {
                std::fs::create_dir_all(dir)?;
            }
            std::fs::write(&target, bytes)
                .with_context(|| format!("writing {}", target.display()))?;
        }
        list += &name.to_string_lossy();
        list.push('\n');
        parts.push(String::from_utf8_lossy(bytes));
    }
    std::fs::write(&list_path, &list)?;
    let parts: Vec<&str> = std::iter::once(list.as_str())
        .chain(parts.iter().map(|part| part.as_ref()))
        .collect();
    Ok(stage::key(&parts))
}

fn collect(base: &Path, folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(base.join(folder)) else {
        return Ok(());
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = folder.join(&name);
        if entry.file_type()?.is_dir() {
            if !name.starts_with('.') && name != "target" {
                collect(base, &path, files)?;
            }
        } else if is_source(&name) {
            files.insert(path, std::fs::read(entry.path())?);
        }
    }
    Ok(())
}

/// Returns whether a file of this name is a source, not a product of a build.
fn is_source(name: &str) -> bool {
    !name.starts_with('.') && !name.ends_with('~') && !MADE.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sources_are_copied_and_vanished_ones_removed() {
        let dir = std::env::temp_dir().join(format!("kfabric-sync-{}", std::process::id()));
        let (from, to) = (dir.join("from"), dir.join("to"));
        std::fs::create_dir_all(from.join("a/b")).unwrap();
        std::fs::write(from.join("a/b/x.rs"), "1").unwrap();
        std::fs::write(from.join("a/y.c"), "2").unwrap();
        std::fs::write(from.join("a/x.o"), "made").unwrap();
        let first = sync(&from, &["a", "missing"], &to).unwrap();
        assert!(to.join("a/b/x.rs").exists() && !to.join("a/x.o").exists());
        std::fs::write(to.join("a/y.o"), "made there").unwrap();
        std::fs::remove_file(from.join("a/y.c")).unwrap();
        let second = sync(&from, &["a"], &to).unwrap();
        assert!(!to.join("a/y.c").exists() && to.join("a/y.o").exists());
        assert_ne!(first, second);
        assert_eq!(second, sync(&from, &["a"], &to).unwrap());
        let _ = std::fs::remove_dir_all(dir);
    }
}
