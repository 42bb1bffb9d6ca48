// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent's side of the device: questions, and answers to them.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use kfabric::uapi::{self, AgentAnswer, AgentNext};
use kfabric::{Device, Errno, Error, Result};
use zeroize::Zeroizing;

use crate::{grants, AuthKey, Limits, Looks, Process, Rights};

/// Supplementary groups that a process can have (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;
/// Bytes of a control group's path, at most (`PATH_MAX`).
const PATH_MAX: usize = 4096;

/// The one that the kernel asks whether a process may use an auth key.
///
/// There is one on a machine. Opening another one takes over: the former is told [`Next::Over`],
/// and what it has not answered the new one is asked. Dropping it leaves the machine without an
/// agent; grants stay.
///
/// An agent that allows a user everything, and everybody else nothing:
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

/// What there is for the agent to do.
#[derive(Debug)]
pub enum Next {
    /// To answer this.
    Question(Question),
    /// Nothing, for now.
    Nothing,
    /// Nothing any more: another agent has taken over.
    Over,
}

/// May this process use this auth key?
#[derive(Debug)]
pub struct Question {
    /// Its number, which the answer bears.
    pub id: u64,
    /// The auth key.
    pub key: AuthKey,
    /// What is wanted.
    pub rights: Rights,
    /// The process, in the agent's pid namespace; 0: not visible there. A number alone may soon be
    /// another's: see [`Question::process`].
    pub pid: u32,
    /// The process, as [`Process::id`] has it.
    pub process_id: u64,
    /// Effective uid, in the initial user namespace.
    pub uid: u32,
    /// Effective gid, in the initial user namespace.
    pub gid: u32,
    /// Its supplementary groups, in the initial user namespace. `None`: they are not known, which is
    /// not the same as none.
    pub groups: Option<Vec<u32>>,
    /// Id of its control group.
    pub cgroup: u64,
    /// Path of its control group from the root of the hierarchy (version 2): bytes, not always text.
    /// `None`: it is not known.
    pub cgroup_path: Option<Vec<u8>>,
    /// Inode number of its user namespace, as in `/proc/PID/ns/user`.
    pub userns: u64,
    /// Cookie of its network namespace.
    pub netns: u64,
    /// How long there is left for an answer.
    pub left: Duration,
    /// Command name: the process's own choice, and nothing to decide by.
    pub comm: String,
    /// The domain that it wants to use the auth key on.
    pub domain: String,
}

/// What comes with a yes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// For whom: whoever has all of this in common with the process that asked. Empty: that process.
    pub looks: Looks,
    /// To do what. Empty: what was asked for.
    pub rights: Rights,
    /// How much.
    pub limits: Limits,
    /// For how long; `None`: until it is revoked.
    pub lifetime: Option<Duration>,
}

impl Default for Terms {
    /// For the process, to do what it asked for, without limits or end.
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
    /// Becomes the agent, in the place of a former one if there is any. The device's file is the
    /// agent from now on, and for as long as anything holds it.
    ///
    /// # Errors
    ///
    /// `EPERM` for who is no administrator; `EALREADY` when this device file is the agent.
    pub fn open(device: &Device) -> Result<Self> {
        device.agent_open()?;
        Ok(Self {
            device: device.clone(),
        })
    }

    /// The next question, without waiting.
    ///
    /// # Errors
    ///
    /// What the kernel says.
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

    /// The next question, waiting for it; [`Next::Nothing`] when time is up, or a signal came.
    ///
    /// # Errors
    ///
    /// What the kernel says.
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

    /// Says yes; the grant that this makes.
    ///
    /// # Errors
    ///
    /// `ENOENT`: nobody waits for this answer any more. `ESTALE`: another one is the agent. `EBUSY`: a
    /// grant of this auth key is over, and something opened under it has not ended yet; the question
    /// stays, and can be answered with no. `EINVAL` for a limit or a lifetime of zero, and for rights
    /// that are not all that was asked for.
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

    /// Says no, which the kernel remembers for a moment.
    ///
    /// # Errors
    ///
    /// `ENOENT`: nobody waits for this answer any more. `ESTALE`: another one is the agent.
    pub fn deny(&self, question: &Question) -> Result<()> {
        let answer = AgentAnswer {
            id: question.id,
            verdict: uapi::KFI_AUTH_DENY,
            ..AgentAnswer::default()
        };
        self.device.agent_answer(answer).map(|_| ())
    }

    /// The device that it is the agent of.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl AsFd for Agent {
    /// Readable while there is a question; hung up once another one is the agent.
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

    /// The process that asks, held by a pidfd. For what the question itself does not tell; of the
    /// rest, believe the question.
    ///
    /// # Errors
    ///
    /// `ESRCH`: it is gone, or not visible from here.
    pub fn process(&self) -> std::io::Result<Process> {
        Process::known(self.pid, self.process_id)
    }
}

/// Text from a NUL-padded array, without characters that would spoil a log.
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
    fn questions_are_read() {
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
