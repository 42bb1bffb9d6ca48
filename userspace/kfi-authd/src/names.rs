// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users and groups by their names: from `/etc/passwd` and `/etc/group`, and what is not there from
//! the program getent(1).
//!
//! Not by the C library: the daemon is linked statically, and a static library that loads the name
//! services of the host, of which a name may be, crashes.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long getent(1) may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of its answer, at most.
const ANSWER_MAX: u64 = 16 << 20;

/// The number of a user, or of a group, by its name. `database`: `passwd` or `group`.
///
/// # Errors
///
/// In words, why there is none.
pub(crate) fn id(database: &str, name: &str) -> Result<u32, String> {
    let what = if database == "group" { "group" } else { "user" };
    let none = || format!("no {what} is called `{name}`");
    let cannot = |e: &str| format!("{what} `{name}` cannot be looked up: {e}");
    // What could not stand in a line, or is an option, means something else to getent.
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

/// The number in the line of this name; the fields are those of passwd(5) and group(5).
fn find(text: &[u8], name: &str) -> Option<u32> {
    let mut lines = text.split(|byte| *byte == b'\n');
    lines.find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        if fields.next() != Some(name.as_bytes()) {
            return None;
        }
        let number = std::str::from_utf8(fields.nth(1)?).ok()?.parse().ok();
        // The last number means "nobody in particular" to the kernel.
        number.filter(|id| *id != u32::MAX)
    })
}

/// What getent(1) answers; nothing if there is no such name.
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
        // One or more of the names were not found.
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
