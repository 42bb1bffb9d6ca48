// SPDX-License-Identifier: GPL-2.0
//! Auth keys: who may use them, and what they keep apart.
//!
//! * [`key`] — the bytes, known once, and what is proven with them.
//! * [`grant`] — who may use which, how much, how long.
//! * [`ask`] — the agent, and what it is asked.
//! * [`group`] — a group of the provider's for each auth key of a domain.
//! * [`sweep`] — the end of a grant.
//!
//! What a program opens is admitted here ([`admit`]) before anything is made, holding no lock; what
//! it is opened under ([`Under`]) stays with the object. Consumers in the kernel are not asked.
//!
//! Locks, in the order in which they are taken: the board (`ask`), grants (`grant`), one grant's terms, keys
//! (`key`). None of them is held while anybody is waited for.

pub(crate) mod ask;
pub(crate) mod grant;
pub(crate) mod group;
pub(crate) mod key;
pub(crate) mod seen;
pub(crate) mod sweep;

use core::sync::atomic::{
    AtomicU32,
    Ordering, //
};
use kernel::prelude::*;

pub use self::key::AuthKey;
use self::{
    grant::Lease,
    group::GroupRef,
    seen::Verdict, //
};
pub use crate::sys::auth::{
    now_ns,
    random,
    same, //
};
use crate::{
    errno::enokey,
    net::Net,
    pure::grant::{
        right,
        Amount,
        Asker,
        Miss, //
    },
    sys::auth as sys_auth,
    uapi::{
        KFI_AUTH_ENFORCE,
        KFI_AUTH_OPEN, //
    },
};

/// `KFI_AUTH_OPEN` or `KFI_AUTH_ENFORCE`.
static MODE: AtomicU32 = AtomicU32::new(KFI_AUTH_OPEN);

/// Readies it. Once, at module load.
///
/// # Safety
///
/// Called once, before anything else here.
pub(crate) unsafe fn init() {
    // SAFETY: As the caller promises.
    unsafe {
        key::init();
        grant::init();
        ask::init();
    }
}

/// Gives back what statics hold. Once, when no file is open any more and the worker has gone.
pub(crate) fn exit() {
    ask::exit();
    grant::exit();
    key::exit();
}

/// Whether grants are needed.
pub(crate) fn enforced() -> bool {
    MODE.load(Ordering::Acquire) == KFI_AUTH_ENFORCE
}

/// The mode.
pub(crate) fn mode() -> u32 {
    MODE.load(Ordering::Acquire)
}

/// Sets the mode.
pub(crate) fn set_mode(mode: u32) {
    MODE.store(mode, Ordering::Release);
}

/// What is to be opened.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    /// The rights that it takes.
    pub(crate) rights: u32,
    /// What it counts as.
    pub(crate) amount: Amount,
}

impl Want {
    /// Endpoints.
    pub(crate) fn endpoints(eps: u32) -> Self {
        Self {
            rights: right::EP,
            amount: Amount {
                eps,
                ..Amount::default()
            },
        }
    }

    /// A region of so many bytes, and so many keys.
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

/// The task that makes a call, as grants look at it.
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

/// Whether the current task may open what it wants under `key`: the lease that it is charged to;
/// none where grants are not needed. Asks the agent where no grant covers it. Holding no lock.
///
/// # Errors
///
/// See [`AuthMode`](crate::uapi::AuthMode). `EINTR`: the task was killed while it waited.
pub(crate) fn admit(
    net: &Net,
    domain: &str,
    key: Option<&AuthKey>,
    want: Want,
) -> Result<Option<Lease>> {
    if !enforced() {
        return Ok(None);
    }
    let caller = Caller::current(net);
    let told = |verdict: Verdict, grant: u64, result: Result<()>| {
        seen::decided(
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
    let mut wait = ask::Wait::new();
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
                match ask::ask(&caller, domain, key, want.rights, seen_grants, &mut wait) {
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

/// What an object is opened under.
#[derive(Default)]
pub(crate) struct Under {
    pub(crate) key: Option<AuthKey>,
    pub(crate) lease: Option<Lease>,
}

impl Under {
    /// An auth key, or none, and nobody was asked.
    pub(crate) fn of(key: Option<&AuthKey>) -> Self {
        Self {
            key: key.cloned(),
            lease: None,
        }
    }

    /// Whether its grant is still valid.
    ///
    /// # Errors
    ///
    /// `EKEYREVOKED`, `EKEYEXPIRED`.
    pub(crate) fn check(&self) -> Result {
        self.lease.as_ref().map_or(Ok(()), Lease::check)
    }

    /// It has ended, and is charged no more.
    pub(crate) fn end(&self) {
        if let Some(lease) = &self.lease {
            lease.end();
        }
    }

    /// Number of the auth key; 0: none.
    pub(crate) fn number(&self) -> u64 {
        self.key.as_ref().map_or(0, AuthKey::number)
    }
}

/// Under what something is exported, and the group that keeps it apart.
#[derive(Default)]
pub(crate) struct Apart {
    pub(crate) under: Under,
    /// The auth key's group; none: the domain's own, or an endpoint's.
    pub(crate) group: Option<GroupRef>,
}
