// SPDX-License-Identifier: MIT OR Apache-2.0

//! Helpers for tests of auth keys: the mode, grants, and an agent.

use crate::raw::{self, Dev};
use crate::sys;
pub use crate::sys::pidfd;
use kfabric_uapi::*;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// An auth key whose bytes occur in no output unless the kernel leaks them.
pub const KEY: &[u8] = b"\xa7kfi-secret-of-job-1\x5a";
/// Another auth key.
pub const OTHER: &[u8] = b"\xa7kfi-secret-of-job-2\x5a";

/// Rights to endpoints and keys.
pub const BOTH: u32 = KFI_AUTH_EP | KFI_AUTH_KEYS;

/// Sets the parts of the mode that `flags` select.
///
/// # Errors
///
/// The call's errno.
pub fn set(dev: &Dev, want: &AuthMode) -> raw::Result<AuthMode> {
    let mut call = *want;
    dev.call(&mut call)?;
    Ok(call)
}

/// Returns the mode.
///
/// # Errors
///
/// The call's errno.
pub fn mode(dev: &Dev) -> raw::Result<AuthMode> {
    set(dev, &AuthMode::default())
}

/// Mode `enforce` until drop, which restores the defaults and revokes all grants.
pub struct Enforced(Dev);

impl Enforced {
    /// Sets the mode.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn new() -> raw::Result<Self> {
        let this = Self(Dev::open()?);
        set(
            &this.0,
            &AuthMode {
                flags: KFI_AUTH_SET_MODE,
                mode: KFI_AUTH_ENFORCE,
                ..Default::default()
            },
        )?;
        Ok(this)
    }

    /// Returns the administrator's file.
    pub fn dev(&self) -> &Dev {
        &self.0
    }

    /// Sets the agent's timeout.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn timeout(&self, ms: u32) -> raw::Result<()> {
        set(
            &self.0,
            &AuthMode {
                flags: KFI_AUTH_SET_TIMEOUT,
                timeout_ms: ms,
                ..Default::default()
            },
        )
        .map(|_| ())
    }
}

impl Drop for Enforced {
    fn drop(&mut self) {
        reset(&self.0);
    }
}

/// Restores the defaults of all settings, and revokes every grant.
pub fn reset(dev: &Dev) {
    let first = AuthMode {
        flags: KFI_AUTH_SET_MODE | KFI_AUTH_SET_TIMEOUT | KFI_AUTH_SET_DENY | KFI_AUTH_SET_ASKS,
        mode: KFI_AUTH_OPEN,
        timeout_ms: 10_000,
        deny_ms: 1_000,
        asks: 64,
        ..Default::default()
    };
    let _ = set(dev, &first);
    for grant in list(dev).unwrap_or_default() {
        let _ = revoke(dev, grant.id);
    }
}

/// Returns a grant of `key`; the caller fills in the subject.
pub fn grant(key: &[u8]) -> GrantAdd {
    GrantAdd {
        auth_key: key.as_ptr() as u64,
        auth_key_size: key.len() as u32,
        rights: BOTH,
        ..Default::default()
    }
}

/// Returns a grant of `key` to the superuser.
pub fn to_root(key: &[u8]) -> GrantAdd {
    GrantAdd {
        match_: KFI_MATCH_UID,
        ..grant(key)
    }
}

/// Installs a grant. Returns its id.
///
/// # Errors
///
/// The call's errno.
pub fn add(dev: &Dev, want: &GrantAdd) -> raw::Result<u64> {
    let mut call = *want;
    dev.call(&mut call)?;
    Ok(call.id)
}

/// Revokes a grant.
///
/// # Errors
///
/// The call's errno.
pub fn revoke(dev: &Dev, id: u64) -> raw::Result<()> {
    dev.call(&mut GrantRevoke {
        id,
        ..Default::default()
    })
}

/// Lists all grants.
///
/// # Errors
///
/// The call's errno.
pub fn list(dev: &Dev) -> raw::Result<Vec<GrantInfo>> {
    let mut room = vec![GrantInfo::default(); 4096];
    let mut call = GrantList {
        entries: room.as_mut_ptr() as u64,
        count: room.len() as u32,
        entry_size: std::mem::size_of::<GrantInfo>() as u32,
        ..Default::default()
    };
    dev.call(&mut call)?;
    room.truncate(call.count as usize);
    Ok(room)
}

/// Returns the inode number of a descriptor.
///
/// # Errors
///
/// The errno of `fstat(2)`.
pub fn inode(fd: BorrowedFd<'_>) -> std::io::Result<u64> {
    Ok(File::from(fd.try_clone_to_owned()?).metadata()?.ino())
}

/// A question, as the agent receives it.
#[derive(Clone, Debug)]
pub struct Question {
    /// The structure as the kernel filled it.
    pub raw: AgentNext,
    /// The auth key.
    pub key: Vec<u8>,
}

/// An agent.
pub struct Agent(Dev);

impl Agent {
    /// Opens the device and becomes the agent.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn open() -> raw::Result<Self> {
        let dev = Dev::open()?;
        dev.call(&mut AgentOpen::default())?;
        Ok(Self(dev))
    }

    /// Returns the agent's file.
    pub fn dev(&self) -> &Dev {
        &self.0
    }

    /// Returns the next question, if there is one now.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn next(&self) -> raw::Result<Question> {
        let mut key = vec![0xee_u8; KFI_AUTH_KEY_MAX];
        let mut raw = AgentNext {
            auth_key: key.as_mut_ptr() as u64,
            ..Default::default()
        };
        self.0.call(&mut raw)?;
        key.truncate(raw.auth_key_size as usize);
        Ok(Question { raw, key })
    }

    /// Waits for the next question.
    ///
    /// # Errors
    ///
    /// The errno of the failed call; `EAGAIN` if none comes.
    pub fn wait(&self, timeout: Duration) -> raw::Result<Question> {
        let _ = sys::poll_in(self.0.as_fd(), timeout);
        self.next()
    }

    /// Answers as `want` says.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn answer(&self, want: &AgentAnswer) -> raw::Result<u64> {
        let mut call = *want;
        self.0.call(&mut call)?;
        Ok(call.grant)
    }

    /// Allows the asking process.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn allow(&self, id: u64) -> raw::Result<u64> {
        self.answer(&AgentAnswer {
            id,
            verdict: KFI_AUTH_ALLOW,
            rights: BOTH,
            ..Default::default()
        })
    }

    /// Denies the question.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn deny(&self, id: u64) -> raw::Result<u64> {
        self.answer(&AgentAnswer {
            id,
            ..Default::default()
        })
    }
}

/// Reserves key slots under an auth key. Returns their handles.
///
/// # Errors
///
/// The call's errno.
pub fn slots(dev: &Dev, region: u64, key: &[u8], count: u32) -> raw::Result<Vec<u64>> {
    let mut handles = vec![0_u64; count as usize];
    let at = handles.as_mut_ptr() as u64;
    dev.call(&mut KeyAlloc {
        region,
        count,
        handles: at,
        auth_key: key.as_ptr() as u64,
        auth_key_size: key.len() as u32,
        ..Default::default()
    })?;
    Ok(handles)
}

/// Revokes all keys of the file that are under an auth key. Returns their number.
///
/// # Errors
///
/// The call's errno.
pub fn revoke_keys(dev: &Dev, key: &[u8]) -> raw::Result<u64> {
    let mut call = KeyRevokeMany {
        scope: KFI_REVOKE_AUTH,
        count: key.len() as u32,
        slots: key.as_ptr() as u64,
        ..Default::default()
    };
    dev.call(&mut call)?;
    Ok(call.revoked)
}

/// Opens an endpoint on `domain` with an auth key, or none.
///
/// # Errors
///
/// The call's errno.
pub fn endpoint(dev: &Dev, domain: u64, key: &[u8]) -> raw::Result<EpOpen> {
    dev.ep_open(&keyed(domain, key))
}

/// Returns the arguments that open an endpoint with an auth key, or without.
pub fn keyed(domain: u64, key: &[u8]) -> EpOpen {
    EpOpen {
        domain,
        auth_key: if key.is_empty() {
            0
        } else {
            key.as_ptr() as u64
        },
        auth_key_size: key.len() as u32,
        ..Default::default()
    }
}

/// Returns references to auth keys, as a passive endpoint takes them; they borrow the bytes.
pub fn refs(keys: &[&[u8]]) -> Vec<AuthKeyRef> {
    let one = |key: &&[u8]| AuthKeyRef {
        addr: key.as_ptr() as u64,
        size: key.len() as u32,
        reserved: 0,
    };
    keys.iter().map(one).collect()
}

/// Returns the descriptor's number, as the interface takes it.
pub fn number(fd: &OwnedFd) -> i32 {
    fd.as_raw_fd()
}
