// SPDX-License-Identifier: MIT OR Apache-2.0
//! Auth keys: what is opened under one, and the administrator's calls about them, with the
//! interface's own structures. The crate `kfauth` makes something nicer of these.
#![forbid(unsafe_code)]

use std::mem::offset_of;
use std::os::fd::BorrowedFd;

use kfabric_uapi as abi;
use zerocopy::IntoBytes;
use zeroize::Zeroize;

use crate::device::Device;
use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::sys::{self, Buf};

/// An auth key (`fi_domain(3)`, `fi_endpoint(3)`): opaque bytes that divide jobs. What is exported
/// under one is reached by endpoints with the same one alone, and two endpoints connect if both have
/// the same one. See `kfi_auth(7)`.
///
/// Dropping it overwrites its memory. (What was moved leaves its bytes behind, as the language has it:
/// keep one in a place, and lend it.)
#[derive(Clone, PartialEq, Eq)]
pub struct AuthKey {
    bytes: [u8; abi::KFI_AUTH_KEY_MAX],
    len: usize,
}

impl AuthKey {
    /// A copy of `bytes`.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`]: none, or more than `KFI_AUTH_KEY_MAX`.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let mut key = Self {
            bytes: [0; abi::KFI_AUTH_KEY_MAX],
            len: bytes.len(),
        };
        match key.bytes.get_mut(..bytes.len()) {
            Some(place) if !bytes.is_empty() => place.copy_from_slice(bytes),
            _ => {
                return Err(Error::Argument {
                    what: "auth key",
                    why: format!("{} bytes", bytes.len()),
                })
            }
        }
        Ok(key)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for AuthKey {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl std::fmt::Debug for AuthKey {
    /// Says nothing of the bytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthKey(…)")
    }
}

/// The bytes of an auth key that may be given, and how many, for a call's pointer `at`.
pub(crate) fn given(at: usize, key: Option<&AuthKey>) -> (Vec<Buf<'_>>, u32) {
    match key {
        // CAST: At most `KFI_AUTH_KEY_MAX`.
        Some(key) => (vec![Buf::input(at, key.bytes())], key.len as u32),
        None => (Vec::new(), 0),
    }
}

/// Cookie of the network namespace that the calling thread is in: no other one has it until the
/// machine boots anew. [`abi::AgentNext::netns`] and [`abi::GrantInfo::netns`] are such.
///
/// # Errors
///
/// `EMFILE` and the like.
pub fn netns_cookie() -> std::result::Result<u64, Errno> {
    sys::netns_cookie()
}

/// Supplementary groups of who connected a local socket, as they were when it did (`SO_PEERGROUPS`).
///
/// # Errors
///
/// `ENOTSOCK`, `ENODATA` and the like.
pub fn peer_groups(socket: BorrowedFd<'_>) -> std::result::Result<Vec<u32>, Errno> {
    sys::peer_groups(socket)
}

impl Device {
    /// Ends all keys of this open file that are valid under an auth key, in one call; how many. See
    /// [`Region::revoke_keys`](crate::Region::revoke_keys).
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn revoke_keys_under(&self, key: &AuthKey) -> Result<u64> {
        let mut arg: abi::KeyRevokeMany = sys::new();
        arg.scope = abi::KFI_REVOKE_AUTH;
        let (mut bufs, size) = given(offset_of!(abi::KeyRevokeMany, slots), Some(key));
        arg.count = size;
        self.shared.call(Self::id(), &mut arg, &mut bufs)?;
        Ok(arg.revoked)
    }

    /// `KFI_IOC_AUTH_MODE`: sets what `arg.flags` says, and tells how it is then. `size` is set here,
    /// as in the calls below.
    ///
    /// # Errors
    ///
    /// `EPERM`, `EINVAL`.
    pub fn auth_mode(&self, arg: abi::AuthMode) -> Result<abi::AuthMode> {
        let mut arg = abi::AuthMode {
            size: size::<abi::AuthMode>(),
            ..arg
        };
        self.shared.call(Self::id(), &mut arg, &mut [])?;
        Ok(arg)
    }

    /// `KFI_IOC_GRANT_ADD`: the grant's number.
    ///
    /// # Errors
    ///
    /// What [`abi::GrantAdd`] says, `EPERM`, `EINVAL`.
    pub fn grant_add(&self, arg: abi::GrantAdd, auth_key: &[u8]) -> Result<u64> {
        let mut arg = abi::GrantAdd {
            size: size::<abi::GrantAdd>(),
            auth_key_size: u32::try_from(auth_key.len()).unwrap_or(u32::MAX),
            ..arg
        };
        let mut bufs = [Buf::input(offset_of!(abi::GrantAdd, auth_key), auth_key)];
        self.shared.call(Self::id(), &mut arg, &mut bufs)?;
        Ok(arg.id)
    }

    /// `KFI_IOC_GRANT_CHANGE`.
    ///
    /// # Errors
    ///
    /// What [`abi::GrantChange`] says, `EPERM`, `EINVAL`.
    pub fn grant_change(&self, arg: abi::GrantChange) -> Result<()> {
        let mut arg = abi::GrantChange {
            size: size::<abi::GrantChange>(),
            ..arg
        };
        self.shared.call(Self::id(), &mut arg, &mut [])
    }

    /// `KFI_IOC_GRANT_REVOKE`.
    ///
    /// # Errors
    ///
    /// What [`abi::GrantRevoke`] says, `EPERM`.
    pub fn grant_revoke(&self, id: u64) -> Result<()> {
        let mut arg: abi::GrantRevoke = sys::new();
        arg.id = id;
        self.shared.call(Self::id(), &mut arg, &mut [])
    }

    /// `KFI_IOC_GRANT_LIST`: all grants.
    ///
    /// # Errors
    ///
    /// `EPERM`.
    pub fn grants(&self) -> Result<Vec<abi::GrantInfo>> {
        self.grow(|room: &mut [abi::GrantInfo]| {
            let mut arg: abi::GrantList = sys::new();
            arg.count = u32::try_from(room.len()).unwrap_or(u32::MAX);
            arg.entry_size = size::<abi::GrantInfo>();
            let mut bufs = [Buf::output(
                offset_of!(abi::GrantList, entries),
                room.as_mut_bytes(),
            )];
            self.shared.call(Self::id(), &mut arg, &mut bufs)?;
            Ok(arg.count)
        })
    }

    /// `KFI_IOC_AGENT_OPEN`: makes this open file the agent.
    ///
    /// # Errors
    ///
    /// `EALREADY`: it is. `EPERM`.
    pub fn agent_open(&self) -> Result<()> {
        let mut arg: abi::AgentOpen = sys::new();
        self.shared.call(Self::id(), &mut arg, &mut [])
    }

    /// `KFI_IOC_AGENT_NEXT`: the next question, its auth key in the first bytes of `auth_key`, and as
    /// much of `groups` and `cgroup_path` filled in as it says.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: nobody asks. `ESTALE`: another file is the agent. `EINVAL`: this never was.
    pub fn agent_next(
        &self,
        auth_key: &mut [u8; abi::KFI_AUTH_KEY_MAX],
        groups: &mut [u32],
        cgroup_path: &mut [u8],
    ) -> Result<abi::AgentNext> {
        let mut arg: abi::AgentNext = sys::new();
        arg.groups_count = u32::try_from(groups.len()).unwrap_or(u32::MAX);
        arg.cgroup_path_size = u32::try_from(cgroup_path.len()).unwrap_or(u32::MAX);
        let mut bufs = [
            Buf::output(
                offset_of!(abi::AgentNext, auth_key),
                auth_key.as_mut_slice(),
            ),
            Buf::output(offset_of!(abi::AgentNext, groups), groups.as_mut_bytes()),
            Buf::output(offset_of!(abi::AgentNext, cgroup_path), cgroup_path),
        ];
        self.shared.call(Self::id(), &mut arg, &mut bufs)?;
        Ok(arg)
    }

    /// `KFI_IOC_AGENT_ANSWER`: the grant's number after a yes.
    ///
    /// # Errors
    ///
    /// What [`abi::AgentAnswer`] says.
    pub fn agent_answer(&self, arg: abi::AgentAnswer) -> Result<u64> {
        let mut arg = abi::AgentAnswer {
            size: size::<abi::AgentAnswer>(),
            ..arg
        };
        self.shared.call(Self::id(), &mut arg, &mut [])?;
        Ok(arg.grant)
    }
}

/// A structure's size as its first field has it.
fn size<T>() -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(u32::MAX)
}
