// SPDX-License-Identifier: MIT OR Apache-2.0

//! Auth keys as tests use them: the mode, grants, and an agent.

use crate::raw::{self, Dev};
use crate::sys;
pub use crate::sys::pidfd;
use kfabric_uapi::*;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// An auth key that is not there in any output unless somebody lets it out.
pub const KEY: &[u8] = b"\xa7kfi-secret-of-job-1\x5a";
/// Another one.
pub const OTHER: &[u8] = b"\xa7kfi-secret-of-job-2\x5a";

/// Rights of all sorts.
pub const BOTH: u32 = KFI_AUTH_EP | KFI_AUTH_KEYS;

/// Sets what `flags` of a mode call say.
///
/// # Errors
///
/// What the call answers.
pub fn set(dev: &Dev, want: &AuthMode) -> raw::Result<AuthMode> {
    let mut call = *want;
    dev.call(&mut call)?;
    Ok(call)
}

/// Shows the mode.
///
/// # Errors
///
/// What the call answers.
pub fn mode(dev: &Dev) -> raw::Result<AuthMode> {
    set(dev, &AuthMode::default())
}

/// Mode enforce, until it is dropped; then all is as at first and no grant is left.
pub struct Enforced(Dev);

impl Enforced {
    /// Sets the mode.
    ///
    /// # Errors
    ///
    /// What the call answers.
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

    /// The administrator's file.
    pub fn dev(&self) -> &Dev {
        &self.0
    }

    /// Sets how long the agent has.
    ///
    /// # Errors
    ///
    /// What the call answers.
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

/// Sets all that an administrator sets to what it is at first, and revokes every grant.
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

/// A grant of `key` to whoever `with` fills in.
pub fn grant(key: &[u8]) -> GrantAdd {
    GrantAdd {
        auth_key: key.as_ptr() as u64,
        auth_key_size: key.len() as u32,
        rights: BOTH,
        ..Default::default()
    }
}

/// A grant of `key` to the superuser.
pub fn to_root(key: &[u8]) -> GrantAdd {
    GrantAdd {
        match_: KFI_MATCH_UID,
        ..grant(key)
    }
}

/// Installs a grant; its id.
///
/// # Errors
///
/// What the call answers.
pub fn add(dev: &Dev, want: &GrantAdd) -> raw::Result<u64> {
    let mut call = *want;
    dev.call(&mut call)?;
    Ok(call.id)
}

/// Revokes a grant.
///
/// # Errors
///
/// What the call answers.
pub fn revoke(dev: &Dev, id: u64) -> raw::Result<()> {
    dev.call(&mut GrantRevoke {
        id,
        ..Default::default()
    })
}

/// All grants.
///
/// # Errors
///
/// What the call answers.
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

/// The inode number of a descriptor.
///
/// # Errors
///
/// What `fstat(2)` answers.
pub fn inode(fd: BorrowedFd<'_>) -> std::io::Result<u64> {
    Ok(File::from(fd.try_clone_to_owned()?).metadata()?.ino())
}

/// A question as the agent has it.
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
    /// What the calls answer.
    pub fn open() -> raw::Result<Self> {
        let dev = Dev::open()?;
        dev.call(&mut AgentOpen::default())?;
        Ok(Self(dev))
    }

    /// Its file.
    pub fn dev(&self) -> &Dev {
        &self.0
    }

    /// The next question, if there is one now.
    ///
    /// # Errors
    ///
    /// What the call answers.
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
    /// What the calls answer; `EAGAIN` when none comes.
    pub fn wait(&self, timeout: Duration) -> raw::Result<Question> {
        let _ = sys::poll_in(self.0.as_fd(), timeout);
        self.next()
    }

    /// Answers as `want` says.
    ///
    /// # Errors
    ///
    /// What the call answers.
    pub fn answer(&self, want: &AgentAnswer) -> raw::Result<u64> {
        let mut call = *want;
        self.0.call(&mut call)?;
        Ok(call.grant)
    }

    /// Yes, for the process that asks.
    ///
    /// # Errors
    ///
    /// What the call answers.
    pub fn allow(&self, id: u64) -> raw::Result<u64> {
        self.answer(&AgentAnswer {
            id,
            verdict: KFI_AUTH_ALLOW,
            rights: BOTH,
            ..Default::default()
        })
    }

    /// No.
    ///
    /// # Errors
    ///
    /// What the call answers.
    pub fn deny(&self, id: u64) -> raw::Result<u64> {
        self.answer(&AgentAnswer {
            id,
            ..Default::default()
        })
    }
}

/// Reserves key slots under an auth key; their handles.
///
/// # Errors
///
/// What the call answers.
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

/// Ends all keys of the file that are under an auth key; how many.
///
/// # Errors
///
/// What the call answers.
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
/// What the call answers.
pub fn endpoint(dev: &Dev, domain: u64, key: &[u8]) -> raw::Result<EpOpen> {
    dev.ep_open(&keyed(domain, key))
}

/// What opens an endpoint with an auth key, or without.
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

/// Auth keys as a passive endpoint names them, which borrows their bytes.
pub fn refs(keys: &[&[u8]]) -> Vec<AuthKeyRef> {
    let one = |key: &&[u8]| AuthKeyRef {
        addr: key.as_ptr() as u64,
        size: key.len() as u32,
        reserved: 0,
    };
    keys.iter().map(one).collect()
}

/// The descriptor's number, as the interface takes it.
pub fn number(fd: &OwnedFd) -> i32 {
    fd.as_raw_fd()
}
