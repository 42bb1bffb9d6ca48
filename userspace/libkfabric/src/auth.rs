// SPDX-License-Identifier: MIT OR Apache-2.0
//! Auth keys ([`key`]), and the administrator's calls. The calls take the
//! structures of the kernel interface; the crate `kfauth` wraps them.
#![forbid(unsafe_code)]

pub(crate) mod key;

use std::mem::offset_of;
use std::os::fd::BorrowedFd;

use kfabric_uapi as abi;
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::errno::Errno;
use crate::error::Result;
use crate::handle::DEVICE;
use crate::sys::{self, Buf};
use key::{given, AuthKey};

/// Returns the cookie of the calling thread's network namespace. The cookie is unique until the
/// next boot. [`abi::AgentNext::netns`] and [`abi::GrantInfo::netns`] are such cookies.
///
/// # Errors
///
/// - `EMFILE` or another errno of `socket(2)` or `getsockopt(2)`.
pub fn netns_cookie() -> std::result::Result<u64, Errno> {
    sys::netns_cookie()
}

/// Returns the supplementary groups of the process that connected a local socket, as of the time of
/// connecting (`SO_PEERGROUPS`).
///
/// # Errors
///
/// - `ENOTSOCK`, `ENODATA` or another errno of `getsockopt(2)`.
pub fn peer_groups(socket: BorrowedFd<'_>) -> std::result::Result<Vec<u32>, Errno> {
    sys::peer_groups(socket)
}

impl Device {
    /// Revokes all keys of this open file that are valid under an auth key, in one call. Returns
    /// their number. See [`Region::revoke_keys`](crate::Region::revoke_keys).
    ///
    /// # Errors
    ///
    /// - [`Error::Call`](crate::Error::Call) if the kernel refuses the call.
    pub fn revoke_keys_under(&self, key: &AuthKey) -> Result<u64> {
        let mut arg: abi::KeyRevokeMany = sys::new();
        arg.scope = abi::KFI_REVOKE_AUTH;
        let (mut bufs, size) = given(offset_of!(abi::KeyRevokeMany, slots), Some(key));
        arg.count = size;
        self.shared.call(DEVICE, &mut arg, &mut bufs)?;
        Ok(arg.revoked)
    }

    /// `KFI_IOC_AUTH_MODE`: sets the fields that `arg.flags` selects, and returns the mode that is
    /// in force afterwards. This function fills in `size`, as do the calls below.
    ///
    /// # Errors
    ///
    /// - `EPERM` if the caller is not the administrator.
    /// - `EINVAL` for unknown flags or values.
    pub fn auth_mode(&self, arg: abi::AuthMode) -> Result<abi::AuthMode> {
        let mut arg = abi::AuthMode {
            size: size::<abi::AuthMode>(),
            ..arg
        };
        self.shared.call(DEVICE, &mut arg, &mut [])?;
        Ok(arg)
    }

    /// `KFI_IOC_GRANT_ADD`: adds a grant and returns its number.
    ///
    /// # Errors
    ///
    /// - `EPERM` if the caller is not the administrator.
    /// - `EINVAL` for bad values.
    ///
    /// [`abi::GrantAdd`] lists the others.
    pub fn grant_add(&self, arg: abi::GrantAdd, auth_key: &[u8]) -> Result<u64> {
        let mut arg = abi::GrantAdd {
            size: size::<abi::GrantAdd>(),
            auth_key_size: u32::try_from(auth_key.len()).unwrap_or(u32::MAX),
            ..arg
        };
        let mut bufs = [Buf::input(offset_of!(abi::GrantAdd, auth_key), auth_key)];
        self.shared.call(DEVICE, &mut arg, &mut bufs)?;
        Ok(arg.id)
    }

    /// `KFI_IOC_GRANT_CHANGE`: changes a grant.
    ///
    /// # Errors
    ///
    /// - `EPERM` if the caller is not the administrator.
    /// - `EINVAL` for bad values.
    ///
    /// [`abi::GrantChange`] lists the others.
    pub fn grant_change(&self, arg: abi::GrantChange) -> Result<()> {
        let mut arg = abi::GrantChange {
            size: size::<abi::GrantChange>(),
            ..arg
        };
        self.shared.call(DEVICE, &mut arg, &mut [])
    }

    /// `KFI_IOC_GRANT_REVOKE`: revokes a grant.
    ///
    /// # Errors
    ///
    /// - `EPERM` if the caller is not the administrator.
    ///
    /// [`abi::GrantRevoke`] lists the others.
    pub fn grant_revoke(&self, id: u64) -> Result<()> {
        let mut arg: abi::GrantRevoke = sys::new();
        arg.id = id;
        self.shared.call(DEVICE, &mut arg, &mut [])
    }

    /// `KFI_IOC_GRANT_LIST`: returns all grants.
    ///
    /// # Errors
    ///
    /// - `EPERM` if the caller is not the administrator.
    pub fn grants(&self) -> Result<Vec<abi::GrantInfo>> {
        self.grow(|room: &mut [abi::GrantInfo]| {
            let mut arg: abi::GrantList = sys::new();
            arg.count = u32::try_from(room.len()).unwrap_or(u32::MAX);
            arg.entry_size = size::<abi::GrantInfo>();
            let mut bufs = [Buf::output(
                offset_of!(abi::GrantList, entries),
                room.as_mut_bytes(),
            )];
            self.shared.call(DEVICE, &mut arg, &mut bufs)?;
            Ok(arg.count)
        })
    }

    /// `KFI_IOC_AGENT_OPEN`: makes this open file the agent.
    ///
    /// # Errors
    ///
    /// - `EPERM` if the caller is not the administrator.
    /// - `EALREADY` if this open file is the agent already.
    pub fn agent_open(&self) -> Result<()> {
        let mut arg: abi::AgentOpen = sys::new();
        self.shared.call(DEVICE, &mut arg, &mut [])
    }

    /// `KFI_IOC_AGENT_NEXT`: takes the next upcall. Fills in its auth key, groups and cgroup path,
    /// as many bytes and entries as the result says.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if no upcall is pending.
    /// - `ESTALE` if another open file has become the agent.
    /// - `EINVAL` if this open file never was the agent.
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
        self.shared.call(DEVICE, &mut arg, &mut bufs)?;
        Ok(arg)
    }

    /// `KFI_IOC_AGENT_ANSWER`: answers an upcall; returns the grant's number if the answer allows.
    ///
    /// # Errors
    ///
    /// [`abi::AgentAnswer`] lists them.
    pub fn agent_answer(&self, arg: abi::AgentAnswer) -> Result<u64> {
        let mut arg = abi::AgentAnswer {
            size: size::<abi::AgentAnswer>(),
            ..arg
        };
        self.shared.call(DEVICE, &mut arg, &mut [])?;
        Ok(arg.grant)
    }
}

/// Size of a structure, for its first field.
fn size<T>() -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(u32::MAX)
}
