// SPDX-License-Identifier: MIT OR Apache-2.0
//! Terms of auth keys: modes, rights, limits.

use std::fmt;
use std::str::FromStr;

use bitflags::bitflags;
use kfabric::uapi;
use serde::{Deserialize, Serialize};

/// The mode of a machine: whether the use of auth keys needs a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// No grant is needed: a process that knows an auth key may use it.
    Open,
    /// Opening an endpoint or having a key needs a grant.
    Enforce,
}

impl Mode {
    /// The `KFI_AUTH_*` constant.
    pub fn to_abi(self) -> u32 {
        match self {
            Self::Open => uapi::KFI_AUTH_OPEN,
            Self::Enforce => uapi::KFI_AUTH_ENFORCE,
        }
    }

    /// Converts a `KFI_AUTH_*` constant. An unknown mode of a later kernel counts as `Enforce`.
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
    /// Rights that a grant allows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Rights: u32 {
        /// Opening endpoints and passive endpoints.
        const ENDPOINTS = uapi::KFI_AUTH_EP;
        /// Having keys: key slots, and regions registered with a key.
        const KEYS = uapi::KFI_AUTH_KEYS;
    }
}

impl Rights {
    /// Names of the rights in the set, in the form that [`Rights::from_str`] reads.
    pub fn names(self) -> Vec<&'static str> {
        let all = [(Self::ENDPOINTS, "endpoints"), (Self::KEYS, "keys")];
        let there = all.iter().filter(|(right, _)| self.contains(*right));
        there.map(|(_, name)| *name).collect()
    }
}

impl FromStr for Rights {
    type Err = String;

    /// Reads the name of one right.
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
    /// Attributes of a process that a grant compares. The grant covers a process if all selected
    /// attributes match.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Looks: u32 {
        /// The effective uid.
        const UID = uapi::KFI_MATCH_UID;
        /// The effective gid and the supplementary groups.
        const GID = uapi::KFI_MATCH_GID;
        /// The control group (v2), and those above it.
        const CGROUP = uapi::KFI_MATCH_CGROUP;
        /// The network namespace that the device file was opened in.
        const NETNS = uapi::KFI_MATCH_NETNS;
        /// The process itself.
        const PROCESS = uapi::KFI_MATCH_PROCESS;
    }
}

/// Limits on simultaneous use under a grant; `None`: unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes in regions.
    pub pinned: Option<u64>,
    /// Number of keys: one per key slot, and one per region registered with a key.
    pub keys: Option<u32>,
    /// Number of endpoints and passive endpoints.
    pub endpoints: Option<u32>,
}

impl Limits {
    /// Whether a limit is 0. The kernel interface takes 0 for unlimited. To forbid a use, omit its
    /// right from [`Rights`].
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
    fn mode_rights_and_limits_to_text_and_back_are_equal() {
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
