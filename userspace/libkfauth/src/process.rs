// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes, control groups and network namespaces, as the kernel's grants name them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};

/// Where the hierarchy of control groups (version 2) is mounted.
pub const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// A process, held by a pidfd: never another one that got its number.
#[derive(Debug)]
pub struct Process {
    fd: OwnedFd,
    pid: u32,
    id: u64,
}

impl Process {
    /// The process that has this number now.
    ///
    /// # Errors
    ///
    /// `ESRCH` when there is none.
    pub fn open(pid: u32) -> io::Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let raw = raw
            .ok_or_else(|| io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()))?;
        let fd = pidfd_open(raw, PidfdFlags::empty())?;
        let id = rustix::fs::fstat(&fd)?.st_ino;
        Ok(Self { fd, pid, id })
    }

    /// The process that the kernel means by number and [`uapi::AgentNext::process`].
    ///
    /// [`uapi::AgentNext::process`]: kfabric::uapi::AgentNext::process
    ///
    /// # Errors
    ///
    /// `ESRCH` when it is gone, also where its number is another's by now.
    pub fn known(pid: u32, id: u64) -> io::Result<Self> {
        let process = Self::open(pid)?;
        if process.id == id {
            return Ok(process);
        }
        Err(rustix::io::Errno::SRCH.into())
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its id: the inode number of its pidfd, which no other process ever has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether it runs. What was read of it in `/proc` before this said so was its own.
    pub fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(0))
    }

    /// Reads one of its files in `/proc`: bytes, for some of what stands there is its own choice.
    ///
    /// # Errors
    ///
    /// `ESRCH` when it is gone.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let text = std::fs::read(format!("/proc/{}/{name}", self.pid))?;
        if self.is_alive() {
            return Ok(text);
        }
        Err(rustix::io::Errno::SRCH.into())
    }

    /// Its effective uid, its effective gid, and its supplementary groups.
    ///
    /// # Errors
    ///
    /// As [`Process::read`].
    pub fn ids(&self) -> io::Result<(u32, u32, Vec<u32>)> {
        let status = self.read("status")?;
        ids(&status).ok_or_else(|| io::Error::other("its status in /proc is not understood"))
    }

    /// Its control group: path from the root of the hierarchy, as bytes.
    ///
    /// # Errors
    ///
    /// As [`Process::read`]; where it has none (there is no hierarchy of version 2).
    pub fn cgroup(&self) -> io::Result<Vec<u8>> {
        let text = self.read("cgroup")?;
        let mut lines = text.split(|byte| *byte == b'\n');
        let path = lines.find_map(|line| line.strip_prefix(b"0::"));
        path.map(<[u8]>::to_vec)
            .ok_or_else(|| io::Error::other("it has no control group of version 2"))
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Supplementary groups of who connected a local socket, as they were when it did.
///
/// # Errors
///
/// What the kernel says.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    kfabric::peer_groups(socket).map_err(io::Error::from)
}

/// Waits until `fd` is readable, has an error or is hung up; `false` when time ran out, or a signal
/// came.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> kfabric::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    // A day is as good as for ever: the caller asks again.
    let time = Timespec {
        tv_sec: i64::try_from(timeout.as_secs().min(86_400)).unwrap_or(86_400),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    match rustix::event::poll(&mut fds, Some(&time)) {
        Ok(n) => Ok(n > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(e) => Err(kfabric::Error::Argument {
            what: "poll",
            why: e.to_string(),
        }),
    }
}

/// Effective ids and groups from `/proc/PID/status`.
fn ids(status: &[u8]) -> Option<(u32, u32, Vec<u32>)> {
    let line = |name: &str| {
        let mut lines = status.split(|byte| *byte == b'\n');
        let line = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
        std::str::from_utf8(line).ok()
    };
    let effective = |name: &str| line(name)?.split_whitespace().nth(1)?.parse().ok();
    let groups = line("Groups:")?.split_whitespace();
    let groups: Result<Vec<u32>, _> = groups.map(str::parse).collect();
    Some((effective("Uid:")?, effective("Gid:")?, groups.ok()?))
}

/// The id of a control group: of its path from the root of the hierarchy, or of its directory.
///
/// # Errors
///
/// When it is not there, or is no control group.
pub fn cgroup_id(path: &str) -> io::Result<u64> {
    let directory = cgroup_directory(path);
    // Every control group has this file, and nothing else does.
    std::fs::metadata(directory.join("cgroup.controllers"))?;
    Ok(std::fs::metadata(directory)?.ino())
}

/// The directory of a control group: `path` itself where it is one already.
fn cgroup_directory(path: &str) -> PathBuf {
    if Path::new(path).starts_with(CGROUP_ROOT) {
        return PathBuf::from(path);
    }
    let below = path.trim_start_matches('/');
    Path::new(CGROUP_ROOT).join(below)
}

/// The cookie of the network namespace that a file stands for, such as `/run/netns/blue` or
/// `/proc/self/ns/net`. No other one has it until the machine boots anew.
///
/// # Errors
///
/// When the file is none, or the caller may not enter the namespace.
pub fn netns_cookie(path: &Path) -> io::Result<u64> {
    let file = File::open(path)?;
    // Entering it is a thread's own matter, and this one's ends with it.
    let look = move || -> io::Result<u64> {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        kfabric::netns_cookie().map_err(io::Error::from)
    };
    let thread = std::thread::Builder::new().spawn(look)?;
    let result = thread.join();
    result.unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_read() {
        let text = b"Name:\t\xff\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t10 20 \nX:\t1\n";
        assert_eq!(ids(text), Some((2, 6, vec![10, 20])));
        assert_eq!(ids(b"Uid:\t1\n"), None);
        let none = b"Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t \n";
        assert_eq!(ids(none), Some((2, 6, vec![])));
    }

    #[test]
    fn a_process_is_held() {
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(process.is_alive());
        assert_eq!(
            process.ids().unwrap().0,
            rustix::process::geteuid().as_raw()
        );
        let again = Process::known(child.id(), process.id());
        assert_eq!(again.unwrap().id(), process.id());
        assert!(Process::known(child.id(), process.id() + 1).is_err());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.is_alive());
        assert!(process.ids().is_err());
        assert!(Process::open(0).is_err());
    }

    #[test]
    fn control_groups_have_directories() {
        for (path, directory) in [
            ("/", "/sys/fs/cgroup/"),
            ("/a/b", "/sys/fs/cgroup/a/b"),
            ("/sys/fs/cgroup/a", "/sys/fs/cgroup/a"),
        ] {
            assert_eq!(cgroup_directory(path), PathBuf::from(directory));
        }
        assert!(cgroup_id("/no-such-control-group").is_err());
    }
}
