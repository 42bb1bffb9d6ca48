// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the command with an unwritable standard output, and of commands that need no device.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn kfi() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kfi"));
    command
        .env("KFABRIC_DEVICE", "/no/such/device")
        .stdin(Stdio::null());
    command
}

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// A pipe without a reader.
fn broken() -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn error_with_an_unwritable_standard_output_goes_to_standard_error() {
    for output in [Stdio::from(full()), Stdio::from(broken())] {
        let out = kfi().args(["--json", "info"]).stdout(output).output();
        let out = out.unwrap();
        assert_eq!(out.status.code(), Some(3), "{}", said(&out));
        assert!(said(&out).starts_with("error: open /no/such/device: "));
        assert!(!said(&out).contains("panicked"));
    }
}

#[test]
fn output_to_a_full_device_is_an_error_and_to_a_closed_pipe_is_none() {
    let out = kfi().args(["info", "-e"]).stdout(full()).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", said(&out));
    assert!(said(&out).starts_with("error: write to standard output: "));
    let out = kfi()
        .args(["info", "-e"])
        .stdout(broken())
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", said(&out));
}

#[test]
fn error_with_an_unwritable_standard_error_keeps_its_status() {
    let out = kfi().arg("info").stderr(full()).output().unwrap();
    assert_eq!(out.status.code(), Some(3));
}

#[test]
fn error_of_a_name_with_escapes_prints_none() {
    let out = kfi()
        .args(["put", "192.0.2.1", "/tmp/no\u{1b}[31m\nsuch"])
        .output()
        .unwrap();
    let text = said(&out);
    assert_eq!(text.lines().count(), 1, "{text:?}");
    assert!(text.contains("no\\u{1b}[31m\\nsuch"), "{text:?}");
}

/// A temporary directory of a test.
fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("kfi-output-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir(&path).unwrap();
    path
}

#[test]
fn put_of_a_source_that_is_no_regular_file_is_refused_before_connecting() {
    let dir = folder("put");
    let fifo = dir.join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    for path in [fifo, PathBuf::from("/dev/zero"), dir.clone()] {
        let out = kfi()
            .args(["put", "192.0.2.1"])
            .arg(&path)
            .output()
            .unwrap();
        assert_eq!(
            out.status.code(),
            Some(2),
            "{}: {}",
            path.display(),
            said(&out)
        );
        assert!(said(&out).contains("not a regular file"), "{}", said(&out));
    }
    // A source without a length is read first; then the missing device is the error.
    for path in ["/proc/self/status", "-"] {
        let mut child = kfi()
            .args(["put", "192.0.2.1", path])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // Only `-` is standard input; the other child may have exited before a write.
        if path == "-" {
            stdin.write_all(b"content").unwrap();
        }
        drop(stdin);
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(3), "{path}: {}", said(&out));
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn man_pages_of_a_hand_written_command_are_not_hidden() {
    let dir = folder("man");
    assert!(kfi().arg("man").arg(&dir).status().unwrap().success());
    let names: Vec<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let has = |name: &str| names.iter().any(|n| n == name);
    for page in [
        "kfi.1",
        "kfi-get.1",
        "kfi-auth.8",
        "kfi-blk.8",
        "kfi-authd.8",
    ] {
        assert!(has(page), "{page} is not among {names:?}");
    }
    for topic in ["kfi-auth", "kfi-blk"] {
        let hides = |n: &&String| n.starts_with(topic) && n.ends_with(".1");
        let hiding: Vec<_> = names.iter().filter(hides).collect();
        assert!(hiding.is_empty(), "{hiding:?}");
    }
    let first = std::fs::read_to_string(dir.join("kfi.1")).unwrap();
    for (there, not) in [("auth(8)", "auth(1)"), ("blk(8)", "blk(1)")] {
        assert!(first.contains(there) && !first.contains(not), "{first}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}
