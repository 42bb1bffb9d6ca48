// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grants, which allow processes to use an auth key without an upcall, and the mode.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use kfabric::uapi::{self, GrantAdd, GrantChange, GrantInfo};
use kfabric::{Device, Error, Result};
use serde::{Deserialize, Serialize};

use crate::process::cgroup_id;
use crate::{AuthKey, Limits, Looks, Mode, Process, Rights};

/// Opens a file that represents a network namespace. Opens regular files only, and never blocks:
/// the path may come from a less privileged user.
fn open_namespace(path: &Path) -> io::Result<OwnedFd> {
    let no = || io::Error::new(io::ErrorKind::InvalidInput, "not a network namespace");
    if !std::fs::metadata(path)?.is_file() {
        return Err(no());
    }
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(no());
    }
    Ok(file.into())
}

/// The grants of a machine.
///
/// The kernel holds the grants. A grant outlives the process that installed it.
///
/// ```no_run
/// use kfauth::{AuthKey, Grants, Limits, Rights, Whom};
/// use std::path::Path;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let grants = Grants::of(&kfabric::Device::open()?);
/// let key = AuthKey::from_file(Path::new("/etc/kfabric/keys/compute"))?;
/// let job = Whom::new().cgroup("/system.slice/slurmstepd.scope/job_17")?.uid(1000);
/// let limits = Limits { pinned: Some(64 << 30), ..Limits::default() };
/// let id = grants.add(&key, &job, Rights::all(), &limits, Some(Duration::from_secs(86_400)))?;
/// // … the job runs …
/// grants.revoke(id)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Grants {
    device: Device,
}

/// The processes that a grant covers: those that meet all conditions that are set.
#[derive(Debug, Default)]
pub struct Whom {
    uid: Option<u32>,
    gid: Option<u32>,
    cgroup: Option<u64>,
    netns: Option<OwnedFd>,
    process: Option<Process>,
}

/// A grant, as the kernel lists it. Represents the auth key by a number only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Number of the grant, never used again.
    pub id: u64,
    /// Number of the auth key. Equal bytes have the same number while the auth key is in use.
    pub key: u64,
    /// Condition: the user's id.
    pub uid: Option<u32>,
    /// Condition: the group's id.
    pub gid: Option<u32>,
    /// Condition: id of the control group, or of one above.
    pub cgroup: Option<u64>,
    /// Condition: cookie of the network namespace.
    pub netns: Option<u64>,
    /// Condition: id of the process ([`Process::id`]).
    pub process: Option<u64>,
    /// Names of the rights that the grant allows.
    pub rights: Vec<String>,
    /// Limits of the grant.
    pub limits: Limits,
    /// Current use under the grant.
    pub used: Used,
    /// Milliseconds until the grant expires; `None`: it does not expire, or has ended.
    pub left_ms: Option<u64>,
    /// State of the grant.
    pub state: State,
    /// Whether the grant is the agent's answer to an upcall; otherwise it was installed.
    pub answered: bool,
}

/// Current use under a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Bytes in regions.
    pub pinned: u64,
    /// Number of keys.
    pub keys: u32,
    /// Number of endpoints and passive endpoints.
    pub endpoints: u32,
}

/// State of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The grant is in force.
    Valid,
    /// The grant is revoked; objects opened under it are still being closed.
    Revoked,
    /// The grant has expired; objects opened under it are still being closed.
    Expired,
}

/// The authorization settings of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The mode.
    pub mode: Mode,
    /// Time within which the agent must answer an upcall, in milliseconds.
    pub timeout_ms: u32,
    /// Time for which the kernel remembers a denial, in milliseconds.
    pub deny_ms: u32,
    /// Maximum number of upcalls of one process that may be pending.
    pub asks: u32,
    /// Set if an agent is running.
    pub agent: bool,
    /// The agent's process; `None` if not visible in the caller's pid namespace.
    pub agent_pid: Option<u32>,
    /// Number of grants.
    pub grants: u32,
    /// Number of pending upcalls.
    pub waiting: u32,
}

/// Settings to change in a [`Rule`]; a field that is `None` keeps its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The mode.
    pub mode: Option<Mode>,
    /// Time within which the agent must answer: 1 ms to 10 minutes.
    pub timeout: Option<Duration>,
    /// Time for which a denial is remembered: at most 10 minutes.
    pub deny: Option<Duration>,
    /// Maximum number of upcalls of one process that may be pending: 1 to 4096.
    pub asks: Option<u32>,
}

impl Grants {
    /// Returns the grants of the machine that `device` is on.
    pub fn of(device: &Device) -> Self {
        Self {
            device: device.clone(),
        }
    }

    /// Installs a grant, and returns its number. The grant stays until it is revoked or expires.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no condition, `rights` is empty, or a limit or the lifetime is
    ///   zero.
    /// - `EBUSY` while an object exists that was opened under an earlier, ended grant of the auth
    ///   key.
    /// - `ESRCH` if the process has ended.
    /// - `ENOSPC` if there are too many grants.
    /// - `EPERM` if the caller is not the administrator.
    pub fn add(
        &self,
        key: &AuthKey,
        whom: &Whom,
        rights: Rights,
        limits: &Limits,
        lifetime: Option<Duration>,
    ) -> Result<u64> {
        let (max_pinned, max_keys, max_eps) = self::limits(limits)?;
        let mut add = GrantAdd {
            rights: rights.bits(),
            max_pinned,
            max_keys,
            max_eps,
            lifetime_ms: self::lifetime(lifetime)?,
            ..GrantAdd::default()
        };
        whom.fill(&mut add);
        self.device.grant_add(add, key.expose())
    }

    /// Replaces all limits of a grant, its remaining lifetime, or both. Use beyond a lowered limit
    /// stays. `lifetime` counts from now; `Some(None)`: the grant does not expire.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if no grant has that number, or the grant has ended.
    /// - `EINVAL` if nothing is to change, or a limit or the lifetime is zero.
    /// - `EPERM` if the caller is not the administrator.
    pub fn change(
        &self,
        id: u64,
        limits: Option<&Limits>,
        lifetime: Option<Option<Duration>>,
    ) -> Result<()> {
        let mut change = GrantChange {
            id,
            ..GrantChange::default()
        };
        if let Some(limits) = limits {
            change.flags |= uapi::KFI_GRANT_LIMITS;
            (change.max_pinned, change.max_keys, change.max_eps) = self::limits(limits)?;
        }
        if let Some(lifetime) = lifetime {
            change.flags |= uapi::KFI_GRANT_LIFETIME;
            change.lifetime_ms = self::lifetime(lifetime)?;
        }
        self.device.grant_change(change)
    }

    /// Revokes a grant. After the return the endpoints opened under it are closed and the keys are
    /// revoked.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if no grant has that number, or the grant has ended.
    /// - `EPERM` if the caller is not the administrator.
    pub fn revoke(&self, id: u64) -> Result<()> {
        self.device.grant_revoke(id)
    }

    /// Returns all grants, oldest first.
    ///
    /// # Errors
    ///
    /// - `EPERM` if the caller is not the administrator.
    pub fn list(&self) -> Result<Vec<Grant>> {
        let mut all: Vec<Grant> = self.device.grants()?.iter().map(Grant::from).collect();
        all.sort_by_key(|grant| grant.id);
        Ok(all)
    }

    /// Returns the authorization settings.
    ///
    /// # Errors
    ///
    /// - `EPERM` if the caller is not the administrator.
    pub fn rule(&self) -> Result<Rule> {
        self.set(&Setting::default())
    }

    /// Changes authorization settings, and returns all settings as they are afterwards.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if a value is out of its range.
    /// - `EPERM` if the caller is not the administrator.
    pub fn set(&self, setting: &Setting) -> Result<Rule> {
        let ms = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let mut arg = uapi::AuthMode::default();
        if let Some(mode) = setting.mode {
            arg.flags |= uapi::KFI_AUTH_SET_MODE;
            arg.mode = mode.to_abi();
        }
        if let Some(timeout) = setting.timeout {
            arg.flags |= uapi::KFI_AUTH_SET_TIMEOUT;
            arg.timeout_ms = ms(timeout);
        }
        if let Some(deny) = setting.deny {
            arg.flags |= uapi::KFI_AUTH_SET_DENY;
            arg.deny_ms = ms(deny);
        }
        if let Some(asks) = setting.asks {
            arg.flags |= uapi::KFI_AUTH_SET_ASKS;
            arg.asks = asks;
        }
        let is = self.device.auth_mode(arg)?;
        Ok(Rule {
            mode: Mode::from_abi(is.mode),
            timeout_ms: is.timeout_ms,
            deny_ms: is.deny_ms,
            asks: is.asks,
            agent: is.agents != 0,
            agent_pid: (is.agent != 0).then_some(is.agent),
            grants: is.grants,
            waiting: is.waiting,
        })
    }
}

impl Whom {
    /// Makes an empty set of conditions. Add at least one: the kernel refuses a grant that covers
    /// all processes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition: this effective uid, in the initial user namespace.
    #[must_use]
    pub fn uid(self, uid: u32) -> Self {
        Self {
            uid: Some(uid),
            ..self
        }
    }

    /// Adds a condition: this group, effective or supplementary.
    #[must_use]
    pub fn gid(self, gid: u32) -> Self {
        Self {
            gid: Some(gid),
            ..self
        }
    }

    /// Adds a condition: this control group or one below. `path` is relative to the root of the
    /// hierarchy, or is the control group's directory.
    ///
    /// # Errors
    ///
    /// If the control group does not exist.
    pub fn cgroup(self, path: &str) -> io::Result<Self> {
        Ok(Self {
            cgroup: Some(cgroup_id(path)?),
            ..self
        })
    }

    /// Adds a condition: the device was opened in this network namespace. `path` is a file that
    /// represents the namespace, such as `/proc/PID/ns/net`.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or is not a regular file.
    pub fn netns(self, path: &Path) -> io::Result<Self> {
        Ok(Self {
            netns: Some(open_namespace(path)?),
            ..self
        })
    }

    /// Adds a condition: this process.
    #[must_use]
    pub fn process(self, process: Process) -> Self {
        Self {
            process: Some(process),
            ..self
        }
    }

    /// The attributes of a process that the conditions concern.
    pub fn looks(&self) -> Looks {
        let mut looks = Looks::empty();
        looks.set(Looks::UID, self.uid.is_some());
        looks.set(Looks::GID, self.gid.is_some());
        looks.set(Looks::CGROUP, self.cgroup.is_some());
        looks.set(Looks::NETNS, self.netns.is_some());
        looks.set(Looks::PROCESS, self.process.is_some());
        looks
    }

    fn fill(&self, add: &mut GrantAdd) {
        let raw = |fd: Option<BorrowedFd<'_>>| fd.map_or(0, |fd| fd.as_raw_fd());
        add.match_ = self.looks().bits();
        add.uid = self.uid.unwrap_or(0);
        add.gid = self.gid.unwrap_or(0);
        add.cgroup = self.cgroup.unwrap_or(0);
        add.netns_fd = raw(self.netns.as_ref().map(OwnedFd::as_fd));
        add.pidfd = raw(self.process.as_ref().map(Process::as_fd));
    }
}

impl From<&GrantInfo> for Grant {
    fn from(raw: &GrantInfo) -> Self {
        let looks = Looks::from_bits_retain(raw.match_);
        let limit = |n: u32| (n != 0).then_some(n);
        Self {
            id: raw.id,
            key: raw.key,
            uid: looks.contains(Looks::UID).then_some(raw.uid),
            gid: looks.contains(Looks::GID).then_some(raw.gid),
            cgroup: looks.contains(Looks::CGROUP).then_some(raw.cgroup),
            netns: looks.contains(Looks::NETNS).then_some(raw.netns),
            process: looks.contains(Looks::PROCESS).then_some(raw.process),
            rights: Rights::from_bits_retain(raw.rights)
                .names()
                .into_iter()
                .map(str::to_owned)
                .collect(),
            limits: Limits {
                pinned: (raw.max_pinned != 0).then_some(raw.max_pinned),
                keys: limit(raw.max_keys),
                endpoints: limit(raw.max_eps),
            },
            used: Used {
                pinned: raw.pinned,
                keys: raw.keys,
                endpoints: raw.eps,
            },
            left_ms: (raw.left_ms != 0).then_some(raw.left_ms),
            state: match raw.state {
                uapi::KFI_GRANT_VALID => State::Valid,
                uapi::KFI_GRANT_EXPIRED => State::Expired,
                _ => State::Revoked,
            },
            answered: raw.answered != 0,
        }
    }
}

/// Converts limits for the kernel interface, where 0 means no limit; refuses limits of 0.
pub(crate) fn limits(limits: &Limits) -> Result<(u64, u32, u32)> {
    if limits.has_zero() {
        return Err(Error::Argument {
            what: "limits",
            why: "to allow none of something is a matter of rights: a limit is 1 at least"
                .to_owned(),
        });
    }
    Ok((
        limits.pinned.unwrap_or(0),
        limits.keys.unwrap_or(0),
        limits.endpoints.unwrap_or(0),
    ))
}

/// Converts a lifetime to milliseconds, rounded up; 0 means that the grant does not expire.
pub(crate) fn lifetime(lifetime: Option<Duration>) -> Result<u64> {
    let Some(lifetime) = lifetime else {
        return Ok(0);
    };
    let ms = lifetime.as_nanos().div_ceil(1_000_000);
    match u64::try_from(ms) {
        Ok(1..) => Ok(u64::try_from(ms).unwrap_or(u64::MAX)),
        _ => Err(Error::Argument {
            what: "lifetime",
            why: format!("{lifetime:?} is no time"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_not_set_are_zero() {
        let mut add = GrantAdd::default();
        Whom::new().uid(7).gid(8).fill(&mut add);
        assert_eq!(add.match_, uapi::KFI_MATCH_UID | uapi::KFI_MATCH_GID);
        assert_eq!((add.uid, add.gid, add.cgroup), (7, 8, 0));
        assert_eq!((add.pidfd, add.netns_fd), (0, 0));
        let own = Process::open(std::process::id()).unwrap();
        let whom = Whom::new().process(own);
        let mut add = GrantAdd::default();
        whom.fill(&mut add);
        assert_eq!(add.match_, uapi::KFI_MATCH_PROCESS);
        assert!(add.pidfd > 2);
    }

    #[test]
    fn limit_or_lifetime_of_zero_is_refused() {
        let none = Limits {
            keys: Some(0),
            ..Limits::default()
        };
        assert!(limits(&none).is_err());
        assert_eq!(limits(&Limits::default()).unwrap(), (0, 0, 0));
        assert!(lifetime(Some(Duration::ZERO)).is_err());
        assert!(lifetime(Some(Duration::MAX)).is_err());
        assert_eq!(lifetime(Some(Duration::from_nanos(1))).unwrap(), 1);
        assert_eq!(lifetime(None).unwrap(), 0);
    }

    #[test]
    fn grant_from_the_kernels_entry_is_complete() {
        let raw = GrantInfo {
            id: 9,
            key: 3,
            match_: uapi::KFI_MATCH_UID,
            rights: uapi::KFI_AUTH_EP,
            uid: 0,
            gid: 4,
            max_keys: 5,
            left_ms: 1500,
            answered: 1,
            ..GrantInfo::default()
        };
        let grant = Grant::from(&raw);
        assert_eq!((grant.uid, grant.gid), (Some(0), None));
        assert_eq!(grant.rights, ["endpoints"]);
        assert_eq!((grant.limits.keys, grant.limits.pinned), (Some(5), None));
        assert_eq!(grant.left_ms, Some(1500));
        let text = serde_json::to_string(&grant).unwrap();
        assert_eq!(serde_json::from_str::<Grant>(&text).unwrap(), grant);
    }
}
