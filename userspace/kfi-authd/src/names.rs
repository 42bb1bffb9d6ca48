// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lookup of users and groups by name: in `/etc/passwd` and `/etc/group`, then by the program
//! getent(1).
//!
//! The C library is not used for this. The daemon is linked statically, and a static C library
//! crashes when it loads the host's name services.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Maximum time of getent(1).
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum bytes of its output.
const ANSWER_MAX: u64 = 16 << 20;

/// Returns the number of a user or a group. `database` is `passwd` or `group`.
///
/// # Errors
///
/// The reason in words.
pub(crate) fn id(database: &str, name: &str) -> Result<u32, String> {
    let what = if database == "group" { "group" } else { "user" };
    let none = || format!("no {what} is called `{name}`");
    let cannot = |e: &str| format!("{what} `{name}` cannot be looked up: {e}");
    // getent gives these another meaning: options, and text that cannot be part of a line.
    if name.is_empty() || name.starts_with('-') || name.contains([':', '\n', '\0']) {
        return Err(none());
    }
    let path = format!("/etc/{database}");
    match std::fs::read(&path) {
        Ok(text) => {
            if let Some(id) = find(&text, name) {
                return Ok(id);
            }
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(cannot(&format!("{path}: {e}"))),
    }
    match getent(database, name) {
        Ok(text) => find(&text, name).ok_or_else(none),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(format!("{} in {path}, and there is no getent", none()))
        }
        Err(e) => Err(cannot(&format!("getent: {e}"))),
    }
}

/// Finds the number for a name in lines of passwd(5) or group(5).
fn find(text: &[u8], name: &str) -> Option<u32> {
    let mut lines = text.split(|byte| *byte == b'\n');
    lines.find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        if fields.next() != Some(name.as_bytes()) {
            return None;
        }
        let number = std::str::from_utf8(fields.nth(1)?).ok()?.parse().ok();
        // The kernel uses the last number for "none".
        number.filter(|id| *id != u32::MAX)
    })
}

/// Returns the output of getent(1); empty if the name does not exist.
fn getent(database: &str, name: &str) -> io::Result<Vec<u8>> {
    let mut child = Command::new("getent")
        .args([database, name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let out = child.stdout.take();
    let (send, read) = channel();
    let reads = std::thread::Builder::new().spawn(move || {
        let mut text = Vec::new();
        let result = match out {
            Some(out) => out.take(ANSWER_MAX).read_to_end(&mut text).map(|_| text),
            None => Ok(text),
        };
        let _ = send.send(result);
    });
    let text = reads.and_then(|_| {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "it does not answer");
        read.recv_timeout(PATIENCE).map_err(late)?
    });
    if text.is_err() {
        let _ = child.kill();
    }
    let end = child.wait()?;
    match end.code() {
        Some(0) => text,
        // Status 2: the name was not found.
        Some(2) => Ok(Vec::new()),
        _ => Err(text
            .err()
            .unwrap_or_else(|| io::Error::other(end.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_lines_of_passwd_and_group_are_read() {
        let text = b"+nis\nroot:x:0:0:root:/root:/bin/sh\nrooted:x:5:5::/:\nblue:*:1007:a,b\n\xff:x:9:\nbad:x:y:\nlast:x:4294967295:\n";
        for (name, id) in [
            ("root", Some(0)),
            ("blue", Some(1007)),
            ("roo", None),
            ("bad", None),
            ("last", None),
            ("+nis", None),
        ] {
            assert_eq!(find(text, name), id, "{name}");
        }
    }

    #[test]
    fn id_name_absent_from_the_files_is_refused() {
        assert_eq!(id("passwd", "root"), Ok(0));
        assert_eq!(id("group", "root"), Ok(0));
        for name in ["kfi-no-such-name", "--help", "", "a:b", "0"] {
            let what = id("passwd", name).unwrap_err();
            assert!(what.contains("no user is called"), "{name}: {what}");
        }
    }
}
