// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grants: who may use an auth key, whether anybody asks or not. And the mode.

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

/// Opens a file that stands for a network namespace: never what would block, or do something by being
/// opened, for the path may be somebody's who may do less.
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
/// They are the kernel's: they stay when who installed them goes.
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

/// Whom a grant is for: all that is said must be true.
#[derive(Debug, Default)]
pub struct Whom {
    uid: Option<u32>,
    gid: Option<u32>,
    cgroup: Option<u64>,
    netns: Option<OwnedFd>,
    process: Option<Process>,
}

/// A grant, as the kernel lists it. Nothing of the auth key but a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Its number, never another's.
    pub id: u64,
    /// Number of the auth key: the same for the same bytes while anything uses them.
    pub key: u64,
    /// The user it is for.
    pub uid: Option<u32>,
    /// The group it is for.
    pub gid: Option<u32>,
    /// Id of the control group it is for, with all below.
    pub cgroup: Option<u64>,
    /// Cookie of the network namespace it is for.
    pub netns: Option<u64>,
    /// Id of the process it is for ([`Process::id`]).
    pub process: Option<u64>,
    /// What it allows.
    pub rights: Vec<String>,
    /// How much.
    pub limits: Limits,
    /// How much of that is in use.
    pub used: Used,
    /// Milliseconds that are left; `None`: without end, or over.
    pub left_ms: Option<u64>,
    /// How it is.
    pub state: State,
    /// Whether it is the agent's answer; else it was installed.
    pub answered: bool,
}

/// What is there now under a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Bytes in regions.
    pub pinned: u64,
    /// Keys.
    pub keys: u32,
    /// Endpoints and passive ones.
    pub endpoints: u32,
}

/// How a grant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// In force.
    Valid,
    /// Revoked; what was opened under it is still ending.
    Revoked,
    /// Its time is over; what was opened under it is still ending.
    Expired,
}

/// What auth keys mean on a machine, and who decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The mode.
    pub mode: Mode,
    /// How long the agent has for an answer.
    pub timeout_ms: u32,
    /// For how long a denial is remembered.
    pub deny_ms: u32,
    /// Questions of one process that may wait.
    pub asks: u32,
    /// Whether there is an agent.
    pub agent: bool,
    /// Its process, where it is visible.
    pub agent_pid: Option<u32>,
    /// Grants there are.
    pub grants: u32,
    /// Questions without an answer.
    pub waiting: u32,
}

/// What to set of a [`Rule`]; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The mode.
    pub mode: Option<Mode>,
    /// How long the agent has for an answer: 1 ms to 10 minutes.
    pub timeout: Option<Duration>,
    /// For how long a denial is remembered: up to 10 minutes.
    pub deny: Option<Duration>,
    /// Questions of one process that may wait: 1 to 4096.
    pub asks: Option<u32>,
}

impl Grants {
    /// Those of the machine that the device is on.
    pub fn of(device: &Device) -> Self {
        Self {
            device: device.clone(),
        }
    }

    /// Installs a grant; its number. It stays until it is revoked or its lifetime is over.
    ///
    /// # Errors
    ///
    /// `EINVAL` for nobody, no rights, and a limit or lifetime of zero; `EBUSY` while something opened
    /// under an earlier grant of the auth key, which is over, has not ended; `ESRCH` when the process
    /// is gone; `ENOSPC`; `EPERM`.
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

    /// Changes all limits of a grant, its end, or both. What is beyond a lower limit stays.
    /// `lifetime`: from now on; `Some(None)`: without end.
    ///
    /// # Errors
    ///
    /// `ENOENT`: there is none, or it is over. `EINVAL` for nothing to change, and for zero.
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

    /// Takes a grant back. When it returns the endpoints opened under it are closed and the keys
    /// revoked.
    ///
    /// # Errors
    ///
    /// `ENOENT`: there is none, or it is over.
    pub fn revoke(&self, id: u64) -> Result<()> {
        self.device.grant_revoke(id)
    }

    /// All grants, the oldest first.
    ///
    /// # Errors
    ///
    /// `EPERM`.
    pub fn list(&self) -> Result<Vec<Grant>> {
        let mut all: Vec<Grant> = self.device.grants()?.iter().map(Grant::from).collect();
        all.sort_by_key(|grant| grant.id);
        Ok(all)
    }

    /// The mode, and who decides.
    ///
    /// # Errors
    ///
    /// `EPERM`.
    pub fn rule(&self) -> Result<Rule> {
        self.set(&Setting::default())
    }

    /// Sets the mode and what goes with it; how it is then.
    ///
    /// # Errors
    ///
    /// `EINVAL` for what is out of its range; `EPERM`.
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
    /// Nobody in particular: say more, for the kernel takes no grant for everybody.
    pub fn new() -> Self {
        Self::default()
    }

    /// … with this effective uid, in the initial user namespace.
    #[must_use]
    pub fn uid(self, uid: u32) -> Self {
        Self {
            uid: Some(uid),
            ..self
        }
    }

    /// … with this group, effective or supplementary.
    #[must_use]
    pub fn gid(self, gid: u32) -> Self {
        Self {
            gid: Some(gid),
            ..self
        }
    }

    /// … in this control group or below: its path from the root of the hierarchy, or its directory.
    ///
    /// # Errors
    ///
    /// When it is not there.
    pub fn cgroup(self, path: &str) -> io::Result<Self> {
        Ok(Self {
            cgroup: Some(cgroup_id(path)?),
            ..self
        })
    }

    /// … with the device opened in this network namespace: a file that stands for it.
    ///
    /// # Errors
    ///
    /// When it cannot be opened.
    pub fn netns(self, path: &Path) -> io::Result<Self> {
        Ok(Self {
            netns: Some(open_namespace(path)?),
            ..self
        })
    }

    /// … this process.
    #[must_use]
    pub fn process(self, process: Process) -> Self {
        Self {
            process: Some(process),
            ..self
        }
    }

    /// What of a process it looks at.
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

/// Limits as the interface has them: 0 is none, so that cannot be said.
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

/// A lifetime as the interface has it, rounded up; 0 is without end.
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
    fn what_is_not_said_is_zero() {
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
    fn zero_is_no_limit_and_no_time() {
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
    fn a_grant_is_read() {
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
