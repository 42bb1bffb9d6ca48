// SPDX-License-Identifier: MIT OR Apache-2.0
//! The policy: the auth keys, and the processes that may use them.
//!
//! A policy is loaded as a whole or not at all: [`Policy::load`] returns either a policy without
//! faults, or all faults of the file with their lines.

mod raw;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kfauth::{AuthKey, Limits, Mode, Rights};
use nix::fcntl::OFlag;
use zeroize::Zeroizing;

/// Default lifetime of an answer: one hour.
pub const LIFETIME: Duration = Duration::from_secs(3600);
/// Maximum bytes of a policy file.
const FILE_MAX: u64 = 4 << 20;

/// A policy, free of faults.
#[derive(Debug)]
pub struct Policy {
    /// Settings of the daemon itself.
    pub agent: AgentPart,
    /// The auth keys that have a name.
    pub keys: Vec<NamedKey>,
    /// The rules. The first job that matches a request decides.
    pub jobs: Vec<Job>,
}

/// A policy's settings of the daemon itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentPart {
    /// The mode to set when the policy is loaded, if any.
    pub mode: Option<Mode>,
    /// Group whose members may use the socket, in addition to root.
    pub socket_gid: Option<u32>,
}

/// An auth key with its name.
#[derive(Debug)]
pub struct NamedKey {
    /// Name of the auth key in the policy, on the socket and in the log.
    pub name: String,
    /// The auth key.
    pub key: AuthKey,
}

/// A rule: the processes that may use some auth keys, and the terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Name of the job, for the log.
    pub name: String,
    /// Line of the policy where the job begins.
    pub line: usize,
    /// The job's auth keys, as indices of [`Policy::keys`].
    pub keys: Vec<usize>,
    /// The processes that the job is about.
    pub who: Who,
    /// The terms of the job; `None` for a job that denies.
    pub gives: Option<Gives>,
}

/// The terms of a job that allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gives {
    /// The processes that share an answer and its limits.
    pub per: Per,
    /// Rights.
    pub rights: Rights,
    /// Limits.
    pub limits: Limits,
    /// Lifetime of an answer.
    pub lifetime: Duration,
}

/// The processes that a job is about. For each list that is not empty, a process must match an
/// entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// User ids.
    pub uids: Vec<u32>,
    /// Group ids.
    pub gids: Vec<u32>,
    /// Control groups, including those below them: paths from the hierarchy's root.
    pub cgroups: Vec<String>,
    /// Network namespaces, by files that represent them, such as `/run/netns/blue`.
    pub netns: Vec<PathBuf>,
}

/// The processes that an answer covers. They share its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Per {
    /// Only the requesting process.
    #[default]
    Process,
    /// All processes of the requester's user.
    User,
    /// All processes of the requester's control group, and below.
    Cgroup,
}

/// A fault of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// Description of the fault.
    pub what: String,
}

/// All faults of a policy that was not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// Path of the policy.
    pub path: PathBuf,
    /// The faults; at least one.
    pub faults: Vec<Fault>,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, fault) in self.faults.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            match fault.line {
                0 => write!(f, "{}: {}", self.path.display(), fault.what)?,
                line => write!(f, "{}:{line}: {}", self.path.display(), fault.what)?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for PolicyError {}

/// Lookup of the names in a policy.
pub trait Names {
    /// Returns the user of this name.
    fn uid(&self, name: &str) -> Result<u32, String>;
    /// Returns the group of this name.
    fn gid(&self, name: &str) -> Result<u32, String>;
    /// Reads the auth key from this file.
    fn key(&self, path: &Path) -> Result<AuthKey, String>;
}

/// Lookup on this system.
pub struct System;

impl Names for System {
    fn uid(&self, name: &str) -> Result<u32, String> {
        crate::names::id("passwd", name)
    }

    fn gid(&self, name: &str) -> Result<u32, String> {
        crate::names::id("group", name)
    }

    fn key(&self, path: &Path) -> Result<AuthKey, String> {
        AuthKey::from_file(path).map_err(|e| e.to_string())
    }
}

impl Policy {
    /// Loads a policy file and the key files that it names.
    ///
    /// The content of the file decides on the use of auth keys. So only the owner (root or the
    /// caller) may have write access. If the file contains keys, only the owner may have read
    /// access.
    ///
    /// # Errors
    ///
    /// All faults of the file.
    pub fn load(path: &Path) -> Result<Self, PolicyError> {
        let whole = |what: String| PolicyError {
            path: path.to_owned(),
            faults: vec![Fault { line: 0, what }],
        };
        let file = File::options()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path)
            .map_err(|e| whole(e.to_string()))?;
        let meta = file.metadata().map_err(|e| whole(e.to_string()))?;
        if !meta.is_file() {
            return Err(whole("not a regular file".to_owned()));
        }
        let own = nix::unistd::geteuid().as_raw();
        if ![0, own].contains(&meta.uid()) {
            return Err(whole(format!(
                "it belongs to uid {}, not to root or uid {own}",
                meta.uid()
            )));
        }
        let mode = meta.mode() & 0o7777;
        if mode & 0o022 != 0 {
            return Err(whole(format!(
                "mode {mode:04o}: others than its owner may change it: chmod go-w"
            )));
        }
        let room = usize::try_from(meta.len().min(FILE_MAX)).unwrap_or(0) + 1;
        let mut text = Zeroizing::new(String::with_capacity(room));
        file.take(FILE_MAX + 1)
            .read_to_string(&mut text)
            .map_err(|e| whole(e.to_string()))?;
        if text.len() as u64 > FILE_MAX {
            return Err(whole(format!("more than {FILE_MAX} bytes")));
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        let private = mode & 0o077 == 0;
        Self::parse(&text, folder, private, &System).map_err(|faults| PolicyError {
            path: path.to_owned(),
            faults,
        })
    }

    /// Parses a policy's text. Relative file names refer to `folder`. `private` says that only the
    /// owner can read the text, so that it may contain keys.
    ///
    /// # Errors
    ///
    /// All faults of the text, in the order of the lines.
    pub fn parse(
        text: &str,
        folder: &Path,
        private: bool,
        names: &dyn Names,
    ) -> Result<Self, Vec<Fault>> {
        raw::parse(text, folder, private, names)
    }

    /// Returns the index of an auth key in [`Policy::keys`].
    pub fn find_key(&self, key: &AuthKey) -> Option<usize> {
        // Compares with all keys, so that the time does not reveal which one matches.
        let mut found = None;
        for (at, known) in self.keys.iter().enumerate() {
            if known.key == *key {
                found = Some(at);
            }
        }
        found
    }

    /// Returns the auth key of this name.
    pub fn key_named(&self, name: &str) -> Option<&NamedKey> {
        self.keys.iter().find(|key| key.name == name)
    }
}

impl Who {
    /// Whether the job is about all processes.
    pub fn is_anybody(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests;
