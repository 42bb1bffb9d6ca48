// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lays out a Debian package and builds it with dpkg-deb.

use super::control::Control;
use super::Release;
use crate::files::{said, Entry};
use anyhow::{bail, Context as _, Result};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds a package of `files` in `out`. Returns its path.
///
/// # Errors
///
/// If a file cannot be written, or dpkg-deb fails.
pub(super) fn build(
    stage: &Path,
    release: &Release,
    control: &Control,
    files: &[&Entry],
    out: &Path,
) -> Result<PathBuf> {
    let root = stage.join(control.name);
    let _ = fs::remove_dir_all(&root);
    let mut sums = BTreeMap::new();
    let mut size = 0;
    let mut put = |path: &Path, content: &[u8], mode: u32| -> Result<()> {
        let inside = path.strip_prefix("/").unwrap_or(path);
        write(&root.join(inside), content, mode)?;
        sums.insert(inside.to_owned(), md5(content)?);
        size += content.len().div_ceil(1024);
        Ok(())
    };
    for file in files {
        let is_page = file.path.starts_with("/usr/share/man");
        if is_page {
            let path = PathBuf::from(format!("{}.gz", file.path.display()));
            put(&path, &gzip(&file.content)?, file.mode)?;
        } else {
            put(&file.path, &file.content, file.mode)?;
        }
    }
    let doc = Path::new("/usr/share/doc").join(control.name);
    put(&doc.join("copyright"), control.copyright.as_bytes(), 0o644)?;
    let log = gzip(control.changelog.as_bytes())?;
    put(&doc.join("changelog.gz"), &log, 0o644)?;

    let meta = root.join("DEBIAN");
    write(&meta.join("control"), control.text(size).as_bytes(), 0o644)?;
    let list: String = sums
        .iter()
        .map(|(path, sum)| format!("{sum}  {}\n", path.display()))
        .collect();
    write(&meta.join("md5sums"), list.as_bytes(), 0o644)?;
    for (name, text) in &control.scripts {
        write(&meta.join(name), text.as_bytes(), 0o755)?;
    }
    if !control.triggers.is_empty() {
        write(&meta.join("triggers"), control.triggers.as_bytes(), 0o644)?;
    }
    let deb = out.join(format!(
        "{}_{}_{}.deb",
        control.name, release.version, control.architecture
    ));
    // dpkg-deb sorts the files, and sets later times to SOURCE_DATE_EPOCH.
    let mut cmd = Command::new("dpkg-deb");
    cmd.args(["--root-owner-group", "--uniform-compression", "-Zxz"])
        .args(["--threads-max=1", "--build"])
        .arg(&root)
        .arg(&deb)
        .env("SOURCE_DATE_EPOCH", release.epoch.to_string())
        .env("LC_ALL", "C");
    said(&mut cmd)?;
    Ok(deb)
}

/// Writes a file, and its folders with the usual permissions.
fn write(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let dir = path.parent().context("no folder")?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .and_then(|()| fs::write(path, content))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .with_context(|| format!("writing {}", path.display()))
}

/// Returns the output of a filter, without its time or name.
fn filter(program: &str, args: &[&str], content: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {program}"))?;
    let mut input = child.stdin.take().context("no input")?;
    let out = std::thread::scope(|scope| {
        // The output is read meanwhile, because the filter stops when its pipe is full.
        let written = scope.spawn(move || input.write_all(content));
        let out = child.wait_with_output();
        let _ = written.join();
        out
    })?;
    if !out.status.success() {
        bail!("{program}: {}", out.status);
    }
    Ok(out.stdout)
}

fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    filter("gzip", &["-9n"], content)
}

fn md5(content: &[u8]) -> Result<String> {
    let text = String::from_utf8(filter("md5sum", &[], content)?)?;
    let sum = text.split_whitespace().next();
    Ok(sum.context("md5sum prints nothing")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_files_and_sums_do_not_depend_on_the_time() {
        assert_eq!(gzip(b"page").unwrap(), gzip(b"page").unwrap());
        // The time in the header.
        assert_eq!(gzip(b"page").unwrap()[4..8], [0; 4]);
        assert_eq!(md5(b"").unwrap(), "d41d8cd98f00b204e9800998ecf8427e");
    }

    #[test]
    fn filter_of_much_output_ends() {
        let much = vec![b'x'; 1 << 20];
        assert_eq!(filter("cat", &[], &much).unwrap(), much);
    }
}
