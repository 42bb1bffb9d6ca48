// SPDX-License-Identifier: GPL-2.0
//! Auth keys: the processes that may use them, and the objects that they keep apart.
//!
//! - [`auth_key`]: the bytes, stored once, and the proofs made with them.
//! - [`grant`]: processes, auth keys, limits and lifetimes that are permitted.
//! - [`agent`]: the agent and its upcalls.
//! - [`group`]: a protection group of the provider for each auth key of a domain.
//! - [`reaper`]: the end of a grant.
//!
//! Before a program's object is made, [`admit`] checks the program; the caller holds no lock. The
//! auth key and the lease ([`Authorization`]) stay with the object. Kernel consumers are not
//! checked.
//!
//! Lock order: the board (`agent`), grants (`grant`), one grant's terms, keys (`auth_key`). No task
//! waits for another task while it holds one of them.

pub(crate) mod agent;
pub(crate) mod auth_key;
pub(crate) mod grant;
pub(crate) mod group;
pub(crate) mod reaper;
pub(crate) mod trace;

use core::sync::atomic::{
    AtomicU32,
    Ordering, //
};
use kernel::prelude::*;

pub use self::auth_key::AuthKey;
use self::{
    grant::Lease,
    group::GroupRef,
    trace::Verdict, //
};
pub use crate::sys::auth::{
    now_ns,
    random,
    same, //
};
use crate::{
    base::errno::{
        ekeyrejected,
        enokey, //
    },
    pure::grant::{
        right,
        Amount,
        Asker,
        Miss, //
    },
    sys::{
        auth as sys_auth,
        net::Net, //
    },
    uapi::{
        KFI_AUTH_ENFORCE,
        KFI_AUTH_KEY_SAFE,
        KFI_AUTH_OPEN, //
    },
};

/// `KFI_AUTH_OPEN` or `KFI_AUTH_ENFORCE`.
static MODE: AtomicU32 = AtomicU32::new(KFI_AUTH_OPEN);

/// Initialises the lists of auth keys, grants and upcalls.
///
/// # Safety
///
/// Called once, before anything else here.
pub(crate) unsafe fn init() {
    // SAFETY: The caller's contract: this is called once, before anything else here.
    unsafe {
        auth_key::init();
        grant::init();
        agent::init();
    }
}

/// Allocates what no call may allocate with a list locked.
///
/// # Errors
///
/// - `ENOMEM` if there is no memory.
pub(crate) fn reserve() -> Result {
    agent::reserve()
}

/// Frees the lists. Called once, when no file is open and the worker has stopped.
pub(crate) fn exit() {
    agent::exit();
    grant::exit();
    auth_key::exit();
}

/// Returns whether the use of auth keys needs a grant.
pub(crate) fn enforced() -> bool {
    MODE.load(Ordering::Acquire) == KFI_AUTH_ENFORCE
}

/// Returns the mode.
pub(crate) fn mode() -> u32 {
    MODE.load(Ordering::Acquire)
}

/// Sets the mode.
pub(crate) fn set_mode(mode: u32) {
    MODE.store(mode, Ordering::Release);
}

/// Rights and amounts that a new object needs.
#[derive(Clone, Copy)]
pub(crate) struct ResourceRequest {
    /// Rights that the object needs.
    pub(crate) rights: u32,
    /// Amounts that are charged to the grant.
    pub(crate) amount: Amount,
}

impl ResourceRequest {
    /// The needs of `eps` endpoints.
    pub(crate) fn endpoints(eps: u32) -> Self {
        Self {
            rights: right::EP,
            amount: Amount {
                eps,
                ..Amount::default()
            },
        }
    }

    /// The needs of a region of `pinned` bytes, and of `keys` keys.
    pub(crate) fn memory(pinned: u64, keys: u32) -> Self {
        Self {
            rights: right::KEYS,
            amount: Amount {
                pinned,
                keys,
                ..Amount::default()
            },
        }
    }
}

/// The calling task, with the attributes that grants match.
pub(crate) struct Caller {
    pub(crate) task: sys_auth::Asker,
    pub(crate) netns: u64,
}

impl Caller {
    /// The current task, on a file that was opened in `net`.
    pub(crate) fn current(net: &Net) -> Self {
        Self {
            task: sys_auth::Asker::current(),
            netns: sys_auth::net_cookie(net),
        }
    }
}

impl Asker for Caller {
    fn uid(&self) -> u32 {
        self.task.uid
    }

    fn in_group(&self, gid: u32) -> bool {
        sys_auth::in_group(gid)
    }

    fn in_cgroup(&self, id: u64) -> bool {
        sys_auth::in_cgroup(id)
    }

    fn netns(&self) -> u64 {
        self.netns
    }

    fn process(&self) -> u64 {
        self.task.process
    }
}

/// Checks that the current task may use `want` under `key`; returns the lease that is charged.
/// `None` in mode open. If no grant covers the task, makes an upcall to the agent. The caller holds
/// no lock.
///
/// # Errors
///
/// See [`AuthMode`](crate::uapi::AuthMode), and:
///
/// - `EINTR` if the task was killed while it waited.
pub(crate) fn admit(
    net: &Net,
    domain: &str,
    key: Option<&AuthKey>,
    want: ResourceRequest,
) -> Result<Option<Lease>> {
    let short = key.is_some_and(|key| key.bytes().len() < KFI_AUTH_KEY_SAFE);
    if !enforced() {
        if short {
            sys_auth::say_short_key();
        }
        return Ok(None);
    }
    let caller = Caller::current(net);
    let told = |verdict: Verdict, grant: u64, result: Result<()>| {
        trace::decided(
            &caller,
            key.map_or(0, AuthKey::number),
            want.rights,
            grant,
            verdict,
            result,
        );
    };
    let Some(key) = key else {
        told(Verdict::NoKey, 0, Err(enokey()));
        return Err(enokey());
    };
    if short {
        told(Verdict::Short, 0, Err(ekeyrejected()));
        return Err(ekeyrejected());
    }
    let mut wait = agent::Wait::new();
    loop {
        let seen_grants = grant::changes();
        let miss = match grant::find(key, &caller, want) {
            Ok(lease) => {
                told(Verdict::Granted, lease.id(), Ok(()));
                return Ok(Some(lease));
            }
            Err(miss) => miss,
        };
        let (verdict, e) = match miss {
            (Miss::Nothing, _) => {
                match agent::ask(&caller, domain, key, want.rights, seen_grants, &mut wait) {
                    Ok(()) => continue,
                    Err(refused) => refused,
                }
            }
            (_, e) => (Verdict::of_miss(miss.0), e),
        };
        told(verdict, 0, Err(e));
        return Err(e);
    }
}

/// Auth key of an object, and its charge to a grant.
#[derive(Default)]
pub(crate) struct Authorization {
    pub(crate) key: Option<AuthKey>,
    pub(crate) lease: Option<Lease>,
}

impl Authorization {
    /// An auth key or none, without a grant: for kernel consumers.
    pub(crate) fn of(key: Option<&AuthKey>) -> Self {
        Self {
            key: key.cloned(),
            lease: None,
        }
    }

    /// Checks that the object's grant is still valid.
    ///
    /// # Errors
    ///
    /// - `EKEYREVOKED` if the grant was revoked.
    /// - `EKEYEXPIRED` if its lifetime has ended.
    pub(crate) fn check(&self) -> Result {
        self.lease.as_ref().map_or(Ok(()), Lease::check)
    }

    /// Returns the charge, because the object has ended.
    pub(crate) fn end(&self) {
        if let Some(lease) = &self.lease {
            lease.end();
        }
    }

    /// Number of the auth key; 0 for none.
    pub(crate) fn number(&self) -> u64 {
        self.key.as_ref().map_or(0, AuthKey::number)
    }
}

/// Auth key and charge of an object that peers can access, and its protection group.
#[derive(Default)]
pub(crate) struct Scope {
    pub(crate) under: Authorization,
    /// The auth key's group; `None` for the domain's own, or an endpoint's. Apart, because most key
    /// slots have none.
    pub(crate) group: Option<KBox<GroupRef>>,
}
