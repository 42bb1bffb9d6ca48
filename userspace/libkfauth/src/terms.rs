// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of auth keys: modes, rights, limits.

use std::fmt;
use std::str::FromStr;

use bitflags::bitflags;
use kfabric::uapi;
use serde::{Deserialize, Serialize};

/// What auth keys mean on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// No grant is needed: whoever knows an auth key uses it.
    Open,
    /// No grant, no endpoint and no key.
    Enforce,
}

impl Mode {
    /// The interface's number.
    pub fn to_abi(self) -> u32 {
        match self {
            Self::Open => uapi::KFI_AUTH_OPEN,
            Self::Enforce => uapi::KFI_AUTH_ENFORCE,
        }
    }

    /// From the interface's number. What a later kernel may add is at least as strict.
    pub fn from_abi(mode: u32) -> Self {
        match mode {
            uapi::KFI_AUTH_OPEN => Self::Open,
            _ => Self::Enforce,
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "open" => Ok(Self::Open),
            "enforce" => Ok(Self::Enforce),
            _ => Err(format!("`{text}` is not a mode: `open` or `enforce`")),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Enforce => "enforce",
        })
    }
}

bitflags! {
    /// What a grant allows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Rights: u32 {
        /// To open endpoints and passive endpoints.
        const ENDPOINTS = uapi::KFI_AUTH_EP;
        /// To have keys: key slots, and regions with a key.
        const KEYS = uapi::KFI_AUTH_KEYS;
    }
}

impl Rights {
    /// The names of those that are there, as [`Rights::from_str`] reads them.
    pub fn names(self) -> Vec<&'static str> {
        let all = [(Self::ENDPOINTS, "endpoints"), (Self::KEYS, "keys")];
        let there = all.iter().filter(|(right, _)| self.contains(*right));
        there.map(|(_, name)| *name).collect()
    }
}

impl FromStr for Rights {
    type Err = String;

    /// One right.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "endpoints" => Ok(Self::ENDPOINTS),
            "keys" => Ok(Self::KEYS),
            _ => Err(format!("`{text}` is not a right: `endpoints` or `keys`")),
        }
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join("+"))
    }
}

bitflags! {
    /// What of a process a grant looks at. A grant covers who all of it is true of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Looks: u32 {
        /// The effective uid.
        const UID = uapi::KFI_MATCH_UID;
        /// The effective gid and the supplementary groups.
        const GID = uapi::KFI_MATCH_GID;
        /// The cgroup (v2) and those it is in.
        const CGROUP = uapi::KFI_MATCH_CGROUP;
        /// The network namespace that the device file was opened in.
        const NETNS = uapi::KFI_MATCH_NETNS;
        /// The process itself.
        const PROCESS = uapi::KFI_MATCH_PROCESS;
    }
}

/// How much may be there at once under a grant; `None`: as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes in regions.
    pub pinned: Option<u64>,
    /// Keys: each slot, and each region's own.
    pub keys: Option<u32>,
    /// Endpoints and passive ones.
    pub endpoints: Option<u32>,
}

impl Limits {
    /// Whether one of them is 0, which the interface has for no limit. To allow none of something is
    /// a matter of [`Rights`].
    pub fn has_zero(&self) -> bool {
        self.pinned == Some(0) || self.keys == Some(0) || self.endpoints == Some(0)
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |n: Option<u64>| n.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
        write!(
            f,
            "pinned={} keys={} endpoints={}",
            number(self.pinned),
            number(self.keys.map(u64::from)),
            number(self.endpoints.map(u64::from))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back() {
        for mode in [Mode::Open, Mode::Enforce] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(Mode::from_abi(mode.to_abi()), mode);
        }
        assert!("Open".parse::<Mode>().is_err());
        for right in Rights::all() {
            assert_eq!(right.to_string().parse(), Ok(right));
        }
        assert_eq!(Rights::all().to_string(), "endpoints+keys");
        let limits = Limits {
            keys: Some(7),
            ..Limits::default()
        };
        assert_eq!(
            limits.to_string(),
            "pinned=unlimited keys=7 endpoints=unlimited"
        );
        assert!(!limits.has_zero());
    }
}
