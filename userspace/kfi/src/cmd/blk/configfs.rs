// SPDX-License-Identifier: MIT OR Apache-2.0
//! kfblk's directories in configfs, and their attributes.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::ending::OnSignal;
use crate::error::{Failure, OnFile, Result};

/// Directory of kfblk in configfs.
pub(super) const ROOT: &str = "/sys/kernel/config/kfblk";

/// Checks that a name is a single path component.
fn name(name: &str) -> Result<&str> {
    let bad = matches!(name, "" | "." | "..") || name.contains(['/', '\0']) || name.len() > 255;
    match bad {
        true => Err(Failure::Usage(format!("{name:?} is not a name"))),
        false => Ok(name),
    }
}

/// Checks that an initiator's name is a single word.
pub(super) fn client(client: &str) -> Result<&str> {
    if client.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(Failure::Usage(format!("{client:?} is not a name")));
    }
    name(client)
}

/// Path of an export's, port's or disk's directory, which may not exist.
pub(super) fn folder(kind: &str, called: &str) -> Result<PathBuf> {
    Ok(Path::new(ROOT).join(kind).join(name(called)?))
}

/// Path of an export's directory.
pub(super) fn exported(called: &str) -> Result<PathBuf> {
    let folder = folder("subsystems", called)?;
    match folder.is_dir() {
        true => Ok(folder),
        false => Err(Failure::Io {
            what: format!("no export is {called:?}"),
            source: io::ErrorKind::NotFound.into(),
        }),
    }
}

/// Writes an existing attribute, in one system call, which a signal may interrupt.
pub(super) fn write(path: &Path, value: &[u8]) -> io::Result<()> {
    let mut file = fs::File::options().write(true).open(path)?;
    match file.write(value)? {
        len if len == value.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

pub(super) fn set(folder: &Path, attr: &str, value: &str) -> Result<()> {
    let path = folder.join(attr);
    write(&path, value.as_bytes()).on_file(&format!("write {value:?} to"), &path)
}

pub(super) fn get(folder: &Path, attr: &str) -> Result<String> {
    let path = folder.join(attr);
    Ok(fs::read_to_string(&path)
        .on_file("read", &path)?
        .trim()
        .to_owned())
}

/// Reads a list: from `all`, or from `attr` of an older module, which is limited to one page.
/// Returns the list and whether it is complete.
pub(super) fn lines(folder: &Path, all: &str, attr: &str) -> Result<(Vec<String>, bool)> {
    let path = folder.join(all);
    let text = match fs::read_to_string(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => get(folder, attr)?,
        text => text.on_file("read", &path)?,
    };
    Ok(listed(&text))
}

/// The lines of a list, and whether the list is complete.
fn listed(text: &str) -> (Vec<String>, bool) {
    let lines = text.lines().filter(|line| !line.is_empty());
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    // No initiator has this name.
    let more = lines.last().is_some_and(|last| last == "...");
    if more {
        lines.pop();
    }
    (lines, !more)
}

/// Names of the directories and links in a directory, sorted.
pub(super) fn names(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).on_file("read", folder)? {
        let entry = entry.on_file("read", folder)?;
        if entry
            .file_type()
            .is_ok_and(|t| t.is_dir() || t.is_symlink())
        {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found.sort();
    Ok(found)
}

/// Creates a directory and calls `fill`. If `fill` fails, or a signal ends the program, removes the
/// directory.
pub(super) fn make(folder: &Path, fill: impl FnOnce() -> Result<()>) -> Result<()> {
    let filled = Arc::new(AtomicBool::new(false));
    let (gone, done) = (folder.to_owned(), filled.clone());
    let made = OnSignal::making(
        || fs::create_dir(folder),
        move || {
            // The signal interrupts a call that waits in the kernel. A call that began just after
            // the signal needs another one.
            for _ in 0..500 {
                if done.load(Ordering::Acquire) {
                    break;
                }
                interrupt();
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = fs::remove_dir(&gone);
        },
    );
    let ((), undo) = match made {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            return Err(e).on_file("there is one of that name already:", folder)
        }
        made => made.on_file("make", folder)?,
    };
    let result = fill();
    filled.store(true, Ordering::Release);
    match result {
        Ok(()) => undo.keep(|| Ok(())),
        Err(e) => {
            let _ = fs::remove_dir(folder);
            Err(e)
        }
    }
}

/// Sends this process a signal that has a handler, to interrupt a system call.
fn interrupt() {
    let own = rustix::process::getpid();
    let _ = rustix::process::kill_process(own, rustix::process::Signal::TERM);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_path_is_refused() {
        for bad in [
            "",
            ".",
            "..",
            "/tmp/victim",
            "../../tmp/victim",
            "a/b",
            "a\0b",
        ] {
            assert!(matches!(name(bad), Err(Failure::Usage(_))), "{bad:?}");
            assert!(folder("disks", bad).is_err() && exported(bad).is_err());
            assert!(client(bad).is_err(), "{bad:?}");
        }
        assert!(name(&"n".repeat(256)).is_err());
        assert!(client("two words").is_err() && client("a\nb").is_err());
        let at = folder("disks", "..half").unwrap();
        assert_eq!(at, Path::new("/sys/kernel/config/kfblk/disks/..half"));
    }

    #[test]
    fn list_that_ends_with_dots_is_not_complete() {
        let (names, complete) = listed("a\nb\n...\n");
        assert!(names == ["a", "b"] && !complete);
        let (names, complete) = listed("a\nb\n\n\n");
        assert!(names == ["a", "b"] && complete);
        assert!(listed("").1);
    }

    #[test]
    fn write_of_a_missing_attribute_makes_no_file() {
        let path = std::env::temp_dir().join(format!("kfi-test-{}-attr", std::process::id()));
        assert!(write(&path, b"1").is_err());
        assert!(!path.exists());
    }
}
