// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes, control groups and network namespaces, as the kernel's grants identify them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};

/// Mount point of the control group hierarchy (v2).
pub const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// Inode number of the host's own user namespace, in which the agent is (`USER_NS_INIT_INO` of
/// `linux/nsfs.h`).
pub const HOST_USERNS: u64 = 0xEFFF_FFFD;

/// A process, held by a pidfd, so that a reused pid cannot be mistaken for it.
#[derive(Debug)]
pub struct Process {
    fd: OwnedFd,
    pid: u32,
    id: u64,
}

impl Process {
    /// Opens the process that has this pid now.
    ///
    /// # Errors
    ///
    /// - `ESRCH` if no process has this pid.
    pub fn open(pid: u32) -> io::Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let raw = raw
            .ok_or_else(|| io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()))?;
        let fd = pidfd_open(raw, PidfdFlags::empty())?;
        let id = rustix::fs::fstat(&fd)?.st_ino;
        Ok(Self { fd, pid, id })
    }

    /// Opens the process that an upcall identifies, by pid and [`uapi::AgentNext::process`].
    ///
    /// [`uapi::AgentNext::process`]: kfabric::uapi::AgentNext::process
    ///
    /// # Errors
    ///
    /// - `ESRCH` if the process has ended, even if its pid belongs to another process by now.
    pub fn known(pid: u32, id: u64) -> io::Result<Self> {
        let process = Self::open(pid)?;
        if process.id == id {
            return Ok(process);
        }
        Err(rustix::io::Errno::SRCH.into())
    }

    /// The process's pid.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The process's id: the inode number of its pidfd, never used again.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the process is running. If so, anything read from `/proc/PID` before was about this
    /// process.
    pub fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(0))
    }

    /// Reads one of the process's files in `/proc`. Returns bytes: the process chooses some of the
    /// content.
    ///
    /// # Errors
    ///
    /// - `ESRCH` if the process has ended.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let text = std::fs::read(format!("/proc/{}/{name}", self.pid))?;
        if self.is_alive() {
            return Ok(text);
        }
        Err(rustix::io::Errno::SRCH.into())
    }

    /// Effective uid, effective gid and supplementary groups.
    ///
    /// # Errors
    ///
    /// The errors of [`Process::read`].
    pub fn ids(&self) -> io::Result<(u32, u32, Vec<u32>)> {
        let status = self.read("status")?;
        ids(&status).ok_or_else(|| io::Error::other("its status in /proc is not understood"))
    }

    /// Inode number of its user namespace.
    ///
    /// # Errors
    ///
    /// `ESRCH` when it is gone.
    pub fn userns(&self) -> io::Result<u64> {
        let number = std::fs::metadata(format!("/proc/{}/ns/user", self.pid))?.ino();
        if self.is_alive() {
            return Ok(number);
        }
        Err(rustix::io::Errno::SRCH.into())
    }

    /// Path of the control group, from the root of the hierarchy, as bytes.
    ///
    /// # Errors
    ///
    /// If the process has no control group of version 2. Also those of [`Process::read`].
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

/// Supplementary groups of the process that connected a local socket, as of the time of connecting.
///
/// # Errors
///
/// The errors of `getsockopt(2)`.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    kfabric::peer_groups(socket).map_err(io::Error::from)
}

/// Waits until `fd` is readable, has an error or is hung up. Returns `false` if the timeout expires
/// first, or a signal arrives.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> kfabric::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    // At most a day: the caller tries again until its own timeout.
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

/// Returns the id of a control group. `path` is relative to the root of the hierarchy, or is the
/// control group's directory.
///
/// # Errors
///
/// If `path` does not exist or is not a control group.
pub fn cgroup_id(path: &str) -> io::Result<u64> {
    let directory = cgroup_directory(path);
    // Every control group has this file, and no other directory has it.
    std::fs::metadata(directory.join("cgroup.controllers"))?;
    Ok(std::fs::metadata(directory)?.ino())
}

/// Directory of a control group; `path` itself if it is a directory of the hierarchy.
fn cgroup_directory(path: &str) -> PathBuf {
    if Path::new(path).starts_with(CGROUP_ROOT) {
        return PathBuf::from(path);
    }
    let below = path.trim_start_matches('/');
    Path::new(CGROUP_ROOT).join(below)
}

/// Cookie of the network namespace that a file represents, such as `/run/netns/blue` or
/// `/proc/self/ns/net`. The cookie is unique until the next boot.
///
/// # Errors
///
/// If the file does not represent a network namespace, or the caller may not enter the namespace.
pub fn netns_cookie(path: &Path) -> io::Result<u64> {
    let file = File::open(path)?;
    // In a thread of its own: entering a namespace affects the calling thread alone.
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
    fn ids_are_read_from_the_status_file() {
        let text = b"Name:\t\xff\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t10 20 \nX:\t1\n";
        assert_eq!(ids(text), Some((2, 6, vec![10, 20])));
        assert_eq!(ids(b"Uid:\t1\n"), None);
        let none = b"Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t \n";
        assert_eq!(ids(none), Some((2, 6, vec![])));
    }

    #[test]
    fn process_that_has_ended_is_not_alive() {
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
    fn cgroup_path_is_below_the_root() {
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
