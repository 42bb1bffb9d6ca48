// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of each kind of target, and of its state afterwards.

use super::*;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

/// A temporary directory of a test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kfi-test-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let names = fs::read_dir(&self.0).unwrap().map(name);
        let mut names: Vec<_> = names.map(|n| n.into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes a transfer to a target.
fn transfer(target: &Path, content: &[u8]) -> Result<()> {
    let mut file = Target::open(target)?.begin()?;
    for part in content.chunks(7) {
        file.write(part)?;
    }
    file.finish()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn replace_of_a_private_file_keeps_mode_owner_and_attributes() {
    let folder = Folder::new("private");
    let path = folder.file("secret", b"the old content, which is longer", 0o600);
    let old = File::open(&path).unwrap();
    // As root, the file belongs to another user. The directory's default ACL must not be inherited.
    let root = std::os::unix::fs::chown(&path, Some(5), Some(60)).is_ok();
    let label = fsetxattr(&old, "user.kfi", b"label", XattrFlags::empty()).is_ok();
    let before = fs::metadata(&path).unwrap();
    transfer(&path, b"new").unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(mode(&path), 0o600);
    assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
    if root {
        assert_eq!((after.uid(), after.gid()), (5, 60));
    }
    if label {
        let new = File::open(&path).unwrap();
        let name = OsStr::new("user.kfi");
        assert_eq!(attribute(&new, name).as_deref(), Some(&b"label"[..]));
    }
    // Replaced, not overwritten: readers of the old file are not disturbed.
    assert_ne!(after.ino(), before.ino());
    assert_eq!(folder.names(), ["secret"]);
}

#[test]
fn replace_of_a_set_user_id_file_takes_that_away() {
    let folder = Folder::new("suid");
    let path = folder.file("tool", b"trusted", 0o6755);
    transfer(&path, b"a peer's").unwrap();
    assert_eq!(mode(&path), 0o755);
    fs::set_permissions(&path, PermissionsExt::from_mode(0o6711)).unwrap();
    fs::hard_link(&path, folder.0.join("other")).unwrap();
    transfer(&path, b"once more").unwrap();
    assert_eq!(mode(&path), 0o711);
}

#[test]
fn replace_of_one_of_two_names_changes_both() {
    let folder = Folder::new("links");
    let path = folder.file("one", b"the old content, which is longer", 0o640);
    let other = folder.0.join("other");
    fs::hard_link(&path, &other).unwrap();
    transfer(&path, b"new").unwrap();
    assert_eq!(fs::read(&other).unwrap(), b"new");
    assert_eq!(fs::metadata(&other).unwrap().nlink(), 2);
    assert_eq!(folder.names(), ["one", "other"]);
}

#[test]
fn replace_of_a_link_replaces_where_it_leads() {
    let folder = Folder::new("symlink");
    let path = folder.file("real", b"old", 0o604);
    let link = folder.0.join("link");
    symlink("real", &link).unwrap();
    transfer(&link, b"new").unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(
        (fs::read(&path).unwrap().as_slice(), mode(&path)),
        (&b"new"[..], 0o604)
    );
    let lost = folder.0.join("lost");
    symlink("nothing", &lost).unwrap();
    assert!(matches!(transfer(&lost, b"new"), Err(Failure::Usage(_))));
    assert_eq!(folder.names(), ["link", "lost", "real"]);
}

#[test]
fn replace_of_a_device_writes_to_it() {
    transfer(Path::new("/dev/null"), b"gone").unwrap();
    let null = fs::metadata("/dev/null").unwrap();
    assert!(null.file_type().is_char_device());
    let Err(Failure::Io { source, .. }) = transfer(Path::new("/dev/full"), b"x") else {
        panic!("/dev/full takes something");
    };
    assert_eq!(source.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
}

#[test]
fn replace_of_a_fifo_passes_content_through() {
    let folder = Folder::new("fifo");
    let path = folder.0.join("pipe");
    rustix::fs::mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
    let reader = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut all = Vec::new();
            File::open(path).unwrap().read_to_end(&mut all).unwrap();
            all
        }
    });
    transfer(&path, b"through the pipe").unwrap();
    assert_eq!(reader.join().unwrap(), b"through the pipe");
    assert!(fs::metadata(&path).unwrap().file_type().is_fifo());
    assert_eq!(folder.names(), ["pipe"]);
}

#[test]
fn replace_of_a_folder_is_refused() {
    let folder = Folder::new("folder");
    assert!(matches!(transfer(&folder.0, b"x"), Err(Failure::Io { .. })));
    for name in ["new/", "new/."] {
        let path = folder.0.join(name);
        assert!(transfer(&path, b"x").is_err(), "{name}");
    }
    assert!(folder.names().is_empty());
}

#[test]
fn new_file_of_the_longest_name_is_made() {
    let folder = Folder::new("long");
    for len in [250, 255] {
        let path = folder.0.join("n".repeat(len));
        transfer(&path, b"new").unwrap();
        transfer(&path, b"newer").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
    }
    let path = folder.0.join("n".repeat(256));
    assert!(transfer(&path, b"new").is_err());
    assert_eq!(folder.names().len(), 2);
}

#[test]
fn new_file_that_another_makes_meanwhile_keeps_the_others_mode() {
    let folder = Folder::new("meanwhile");
    let path = folder.0.join("new");
    let mut file = Target::open(&path).unwrap().begin().unwrap();
    file.write(b"ours").unwrap();
    folder.file("new", b"another's", 0o600);
    file.finish().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"ours");
    assert_eq!(mode(&path), 0o600);
    assert_eq!(folder.names(), ["new"]);
}

#[test]
fn unfinished_file_that_is_dropped_leaves_the_target_as_it_was() {
    let folder = Folder::new("dropped");
    let path = folder.file("file", b"old", 0o644);
    let mut file = Target::open(&path).unwrap().begin().unwrap();
    file.write(b"half of the new").unwrap();
    // The temporary file is readable for its owner only.
    let temp = folder.names().into_iter().find(|n| n != "file").unwrap();
    assert_eq!(mode(&folder.0.join(temp)), 0o600);
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(folder.names(), ["file"]);
}

const AS_CHILD: &str = "KFI_TEST_UNFINISHED";

/// Runs only as a child of the tests below: begins to replace a file, reports that, and waits.
#[test]
fn child_of_the_tests_of_signals() {
    let Some(path) = std::env::var_os(AS_CHILD) else {
        return;
    };
    let mut file = Target::open(Path::new(&path)).unwrap().begin().unwrap();
    file.write(b"half").unwrap();
    println!("unfinished");
    if std::env::var_os("KFI_TEST_LIMIT").is_some() {
        let Err(Failure::Io { source, .. }) = file.write(&[7; 4096]) else {
            panic!("written beyond the limit");
        };
        assert_eq!(source.raw_os_error(), Some(Errno::FBIG.raw_os_error()));
        return;
    }
    std::thread::sleep(std::time::Duration::from_secs(60));
}

/// Runs the test above through a shell that has executed `first`.
fn child(path: &Path, first: &str) -> std::process::Child {
    let own = std::env::current_exe().unwrap();
    let test = "replace::tests::child_of_the_tests_of_signals";
    let script = format!("{first} exec \"$0\" --exact {test} --nocapture");
    let mut child = Command::new("sh");
    child.arg("-c").arg(script).arg(own).env(AS_CHILD, path);
    if !first.is_empty() {
        child.env("KFI_TEST_LIMIT", "1");
    }
    child.stdout(Stdio::piped()).spawn().unwrap()
}

/// Waits until the child has begun. Returns the rest of its output.
fn wait_until_unfinished(child: &mut std::process::Child) -> std::process::ChildStdout {
    let mut out = child.stdout.take().unwrap();
    let mut said = Vec::new();
    let mut byte = [0];
    while !said.ends_with(b"unfinished\n") {
        assert_eq!(out.read(&mut byte).unwrap(), 1, "{said:?}");
        said.extend(byte);
    }
    out
}

#[test]
fn unfinished_file_of_a_program_ended_by_a_signal_goes() {
    use rustix::process::{kill_process, Pid, Signal};
    let folder = Folder::new("signal");
    let path = folder.file("file", b"old", 0o644);
    let mut signals = vec![Signal::INT, Signal::TERM, Signal::HUP];
    // A signal that the test's parent ignores is also ignored by its children.
    signals.retain(|signal| crate::ending::ignored() >> (signal.as_raw() - 1) & 1 == 0);
    for signal in signals {
        let mut child = child(&path, "");
        let _out = wait_until_unfinished(&mut child);
        assert_eq!(folder.names().len(), 2);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ended = child.wait().unwrap();
        assert_eq!(ended.signal(), Some(signal.as_raw()), "{ended}");
        assert_eq!(folder.names(), ["file"]);
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
}

#[test]
fn unfinished_file_beyond_the_size_limit_is_an_error_and_goes() {
    let folder = Folder::new("limit");
    let path = folder.file("file", b"old", 0o644);
    let mut child = child(&path, "ulimit -f 1;");
    let _out = wait_until_unfinished(&mut child);
    let ended = child.wait().unwrap();
    assert!(ended.success(), "{ended}");
    assert_eq!(folder.names(), ["file"]);
}
