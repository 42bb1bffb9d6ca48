// SPDX-License-Identifier: MIT OR Apache-2.0
//! The policy: which keys there are, and who may use them.
//!
//! A policy is read whole or not at all: [`Policy::load`] either gives a policy in which every name
//! means something, or all that is wrong with the file, each with its line.

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

/// How long an answer holds where the policy does not say: an hour.
pub const LIFETIME: Duration = Duration::from_secs(3600);
/// Bytes of a policy file, at most.
const FILE_MAX: u64 = 4 << 20;

/// A policy in force.
#[derive(Debug)]
pub struct Policy {
    /// What concerns the daemon itself.
    pub agent: AgentPart,
    /// The keys that it knows.
    pub keys: Vec<NamedKey>,
    /// Who may use them: the first that matches decides.
    pub jobs: Vec<Job>,
}

/// What a policy says of the daemon itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentPart {
    /// The mode to set when the policy is taken, if any.
    pub mode: Option<Mode>,
    /// Group, besides root, whose members may use the socket.
    pub socket_gid: Option<u32>,
}

/// A key with its name.
#[derive(Debug)]
pub struct NamedKey {
    /// How the policy, the socket and the log call it.
    pub name: String,
    /// Its bytes.
    pub key: AuthKey,
}

/// A rule: who may use which keys, and how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its name, for the log.
    pub name: String,
    /// Line of the policy where it begins.
    pub line: usize,
    /// Its keys, by their places in [`Policy::keys`].
    pub keys: Vec<usize>,
    /// Who it is about.
    pub who: Who,
    /// What it allows; `None`: it denies.
    pub gives: Option<Gives>,
}

/// What a job allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gives {
    /// For whom, and so by whom the limits are shared.
    pub per: Per,
    /// To do what.
    pub rights: Rights,
    /// How much.
    pub limits: Limits,
    /// For how long an answer holds.
    pub lifetime: Duration,
}

/// Whom a job is about: one of each kind that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// Users.
    pub uids: Vec<u32>,
    /// Groups.
    pub gids: Vec<u32>,
    /// Control groups, each with all below it, by their paths from the hierarchy's root.
    pub cgroups: Vec<String>,
    /// Network namespaces, by files that stand for them, such as `/run/netns/blue`.
    pub netns: Vec<PathBuf>,
}

/// Who, besides the process that asked, an answer is for. They share its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Per {
    /// Nobody.
    #[default]
    Process,
    /// All processes of its user.
    User,
    /// All processes of its control group and below.
    Cgroup,
}

/// Something wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line, from 1; 0: the file as a whole.
    pub line: usize,
    /// What is wrong, and with what.
    pub what: String,
}

/// Why a policy was not taken: all that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// The file.
    pub path: PathBuf,
    /// At least one.
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

/// What a policy's names are looked up in.
pub trait Names {
    /// The user of this name.
    fn uid(&self, name: &str) -> Result<u32, String>;
    /// The group of this name.
    fn gid(&self, name: &str) -> Result<u32, String>;
    /// The key in this file.
    fn key(&self, path: &Path) -> Result<AuthKey, String>;
}

/// The names of this system.
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
    /// Reads a policy file and the key files that it names.
    ///
    /// Whoever may change the file decides who uses which key, so only its owner, root or the caller,
    /// may; and where keys stand in it, nobody else may read it.
    ///
    /// # Errors
    ///
    /// All that is wrong with it.
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

    /// Reads a policy's text. Files that it names are relative to `folder`; `private` says that
    /// nobody but its owner can read it, so that keys may stand in it.
    ///
    /// # Errors
    ///
    /// All that is wrong with it, in the order of its lines.
    pub fn parse(
        text: &str,
        folder: &Path,
        private: bool,
        names: &dyn Names,
    ) -> Result<Self, Vec<Fault>> {
        raw::parse(text, folder, private, names)
    }

    /// The key of these bytes, by its place.
    pub fn find_key(&self, key: &AuthKey) -> Option<usize> {
        // All are compared, so that how long it takes does not tell which it was.
        let mut found = None;
        for (at, known) in self.keys.iter().enumerate() {
            if known.key == *key {
                found = Some(at);
            }
        }
        found
    }

    /// The key of this name.
    pub fn key_named(&self, name: &str) -> Option<&NamedKey> {
        self.keys.iter().find(|key| key.name == name)
    }
}

impl Who {
    /// Whether it names nobody in particular.
    pub fn is_anybody(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests;
