// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent's side of the device: upcalls, and the answers to them.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use kfabric::uapi::{self, AgentAnswer, AgentNext};
use kfabric::{Device, Errno, Error, Result};
use zeroize::Zeroizing;

use crate::{grants, AuthKey, Limits, Looks, Process, Rights};

/// Maximum number of supplementary groups of a process (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;
/// Maximum bytes of a control group's path (`PATH_MAX`).
const PATH_MAX: usize = 4096;

/// The agent: the process that decides whether another process may use an auth key. The kernel
/// makes an upcall to the agent for each use that no grant covers.
///
/// A machine has at most one agent. Opening a second agent replaces the first: the first agent gets
/// [`Next::Over`], and the second one gets the upcalls that are still pending. After dropping the
/// agent the machine has no agent; grants stay.
///
/// This agent allows one user everything, and denies all other users:
///
/// ```no_run
/// use kfauth::{Agent, Next, Terms};
/// use std::time::Duration;
///
/// # fn main() -> kfabric::Result<()> {
/// let agent = Agent::open(&kfabric::Device::open()?)?;
/// loop {
///     // Or with poll, epoll or an async runtime: the agent is `AsFd`.
///     match agent.wait(Duration::from_secs(60))? {
///         Next::Question(question) if question.uid == 1000 => {
///             agent.allow(&question, &Terms::default())?;
///         }
///         Next::Question(question) => agent.deny(&question)?,
///         Next::Nothing => {}
///         Next::Over => return Ok(()),
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Agent {
    device: Device,
}

/// The outcome of asking for an upcall.
#[derive(Debug)]
pub enum Next {
    /// An upcall that the agent must answer.
    Question(Question),
    /// No upcall is pending.
    Nothing,
    /// Another agent has replaced this one.
    Over,
}

/// An upcall: a process's request to use an auth key.
#[derive(Debug)]
pub struct Question {
    /// Number of the upcall, which the answer carries.
    pub id: u64,
    /// The auth key.
    pub key: AuthKey,
    /// The rights that the process needs.
    pub rights: Rights,
    /// The process, in the agent's pid namespace; 0 if not visible there. A pid may soon belong to
    /// another process: see [`Question::process`].
    pub pid: u32,
    /// The process, in the form of [`Process::id`].
    pub process_id: u64,
    /// Effective uid, in the initial user namespace.
    pub uid: u32,
    /// Effective gid, in the initial user namespace.
    pub gid: u32,
    /// Supplementary groups, in the initial user namespace. `None`: unknown. An empty list: no
    /// groups.
    pub groups: Option<Vec<u32>>,
    /// Id of the process's control group.
    pub cgroup: u64,
    /// Path of the control group from the root of the hierarchy (v2), not always UTF-8. `None`:
    /// unknown.
    pub cgroup_path: Option<Vec<u8>>,
    /// Inode number of the process's user namespace, as in `/proc/PID/ns/user`.
    pub userns: u64,
    /// Cookie of the process's network namespace.
    pub netns: u64,
    /// Time that remains for an answer.
    pub left: Duration,
    /// Command name. The process chooses it, so no decision may depend on it.
    pub comm: String,
    /// Name of the domain on which the process uses the auth key.
    pub domain: String,
}

/// The terms of an answer that allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Attributes that select the processes allowed: those that equal the requester in all of them.
    /// Empty: the requesting process alone.
    pub looks: Looks,
    /// Rights that are allowed. Empty: the requested rights.
    pub rights: Rights,
    /// Limits of the grant.
    pub limits: Limits,
    /// Lifetime of the grant; `None`: until it is revoked.
    pub lifetime: Option<Duration>,
}

impl Default for Terms {
    /// The requesting process alone, with the requested rights, without limits or expiry.
    fn default() -> Self {
        Self {
            looks: Looks::empty(),
            rights: Rights::empty(),
            limits: Limits::default(),
            lifetime: None,
        }
    }
}

impl Agent {
    /// Becomes the agent, and replaces a former agent. The open device file is the agent as long as
    /// it stays open.
    ///
    /// # Errors
    ///
    /// - `EPERM` if the caller is not the administrator.
    /// - `EALREADY` if this device file is the agent already.
    pub fn open(device: &Device) -> Result<Self> {
        device.agent_open()?;
        Ok(Self {
            device: device.clone(),
        })
    }

    /// Takes the next upcall, without waiting.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the call.
    /// - [`Error::Argument`] if the upcall has an invalid auth key.
    pub fn next(&self) -> Result<Next> {
        let mut bytes = Zeroizing::new([0; uapi::KFI_AUTH_KEY_MAX]);
        let (mut groups, mut path) = (vec![0; GROUPS_MAX], vec![0; PATH_MAX]);
        match self.device.agent_next(&mut bytes, &mut groups, &mut path) {
            Ok(raw) => Question::new(&raw, &bytes[..], &groups, &path).map(Next::Question),
            Err(e) if e.errno() == Some(Errno::EAGAIN) => Ok(Next::Nothing),
            Err(e) if e.errno() == Some(Errno::ESTALE) => Ok(Next::Over),
            Err(e) => Err(e),
        }
    }

    /// Takes the next upcall; waits for one if none is pending. Returns [`Next::Nothing`] if the
    /// timeout expires first, or a signal arrives.
    ///
    /// # Errors
    ///
    /// The errors of [`Agent::next`].
    pub fn wait(&self, timeout: Duration) -> Result<Next> {
        let end = std::time::Instant::now().checked_add(timeout);
        loop {
            match self.next()? {
                Next::Nothing => {}
                other => return Ok(other),
            }
            let left = end.map_or(timeout, |end| {
                end.saturating_duration_since(std::time::Instant::now())
            });
            if left.is_zero() || !crate::process::wait_readable(self.as_fd(), left)? {
                return Ok(Next::Nothing);
            }
        }
    }

    /// Allows the request. Returns the number of the grant that this creates.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if the request is no longer waiting for an answer.
    /// - `ESTALE` if another process has become the agent.
    /// - `EBUSY` if an object exists that was opened under an earlier, ended grant of the auth key.
    ///   The upcall stays pending, and can be denied.
    /// - `EINVAL` if a limit or the lifetime is zero, or the rights do not include all requested
    ///   rights.
    pub fn allow(&self, question: &Question, terms: &Terms) -> Result<u64> {
        let (max_pinned, max_keys, max_eps) = grants::limits(&terms.limits)?;
        self.device.agent_answer(AgentAnswer {
            id: question.id,
            verdict: uapi::KFI_AUTH_ALLOW,
            match_: terms.looks.bits(),
            rights: terms.rights.bits(),
            max_keys,
            max_pinned,
            lifetime_ms: grants::lifetime(terms.lifetime)?,
            max_eps,
            ..AgentAnswer::default()
        })
    }

    /// Denies the request. The kernel remembers the denial for a short time.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if the request is no longer waiting for an answer.
    /// - `ESTALE` if another process has become the agent.
    pub fn deny(&self, question: &Question) -> Result<()> {
        let answer = AgentAnswer {
            id: question.id,
            verdict: uapi::KFI_AUTH_DENY,
            ..AgentAnswer::default()
        };
        self.device.agent_answer(answer).map(|_| ())
    }

    /// The device file that is the agent.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl AsFd for Agent {
    /// Readable while an upcall is pending; hung up after another process has become the agent.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Question {
    fn new(raw: &AgentNext, bytes: &[u8], groups: &[u32], path: &[u8]) -> Result<Self> {
        let known = |what: u32| raw.known & what != 0;
        let count = usize::try_from(raw.groups_count).unwrap_or(usize::MAX);
        let groups = groups.get(..count).map(<[u32]>::to_vec);
        let length = usize::try_from(raw.cgroup_path_size).unwrap_or(usize::MAX);
        let path = path.get(..length).map(<[u8]>::to_vec);
        let size = usize::try_from(raw.auth_key_size).unwrap_or(usize::MAX);
        let key = bytes.get(..size).map(<[u8]>::to_vec).map(AuthKey::new);
        let Some(Ok(key)) = key else {
            return Err(Error::Argument {
                what: "the kernel's question",
                why: format!("an auth key of {size} bytes"),
            });
        };
        Ok(Self {
            id: raw.id,
            key,
            rights: Rights::from_bits_retain(raw.rights),
            pid: raw.pid,
            process_id: raw.process,
            uid: raw.uid,
            gid: raw.gid,
            groups: groups.filter(|_| known(uapi::KFI_KNOWN_GROUPS)),
            cgroup: raw.cgroup,
            cgroup_path: path.filter(|_| known(uapi::KFI_KNOWN_CGROUP)),
            userns: raw.userns,
            netns: raw.netns,
            left: Duration::from_millis(u64::from(raw.left_ms)),
            comm: text(&raw.comm),
            domain: text(&raw.domain),
        })
    }

    /// Opens the requesting process by pidfd, to read attributes that the upcall does not contain.
    /// For the others, trust the upcall.
    ///
    /// # Errors
    ///
    /// - `ESRCH` if the process has ended, or is not visible from here.
    pub fn process(&self) -> std::io::Result<Process> {
        Process::known(self.pid, self.process_id)
    }
}

/// Copies text out of a NUL-padded array, with control characters replaced, for logs.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]);
    let plain = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_from_the_kernels_entry_is_complete() {
        let mut raw = AgentNext {
            auth_key_size: 3,
            rights: 3,
            left_ms: 1500,
            ..AgentNext::default()
        };
        raw.comm[..6].copy_from_slice(b"a\x1b[2Jb");
        let question = Question::new(&raw, b"key\0\0", &[7, 8], b"/a\xff").unwrap();
        assert_eq!((question.groups, question.cgroup_path), (None, None));
        raw.known = uapi::KFI_KNOWN_GROUPS | uapi::KFI_KNOWN_CGROUP;
        let question = Question::new(&raw, b"key\0\0", &[7, 8], b"/a\xff").unwrap();
        assert_eq!(question.groups.as_deref(), Some(&[][..]));
        (raw.groups_count, raw.cgroup_path_size) = (1, 3);
        let question = Question::new(&raw, b"key\0\0", &[7, 8], b"/a\xff").unwrap();
        assert_eq!(question.groups.as_deref(), Some(&[7][..]));
        assert_eq!(question.cgroup_path.as_deref(), Some(&b"/a\xff"[..]));
        assert_eq!(question.key.expose(), b"key");
        assert_eq!(question.comm, "a?[2Jb");
        assert_eq!(question.rights, Rights::all());
        assert!(!format!("{question:?}").contains("107, 101, 121"));
        raw.auth_key_size = 6;
        assert!(Question::new(&raw, b"key\0\0", &[], &[]).is_err());
        raw.auth_key_size = 0;
        assert!(Question::new(&raw, b"key\0\0", &[], &[]).is_err());
    }
}
