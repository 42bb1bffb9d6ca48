// SPDX-License-Identifier: GPL-2.0
//! The end of a grant: its endpoints are closed, and its keys revoked.
//!
//! The objects opened under grants lie in open files, so a sweep visits all files. A task that
//! opens an object checks the grant again after publishing it. So either the sweep sees the object,
//! or the task sees that the grant has ended. A key that is being assigned is marked, and visited
//! again.

use kernel::{
    prelude::*,
    sync::SetOnce, //
};

use super::{
    agent,
    grant, //
};
use crate::sys::{
    self,
    auth as sys_auth, //
};

/// The front end, whose open files hold the objects of grants.
pub(crate) trait LeaseHolders: Sync {
    /// Ends the objects of ended grants, without a wait for other tasks.
    fn sweep(&self) -> Result;

    /// Waits for other tasks that are ending some of them.
    ///
    /// # Errors
    ///
    /// - `EINTR` if the task was killed while it waited.
    fn wait_swept(&self) -> Result;
}

/// Set once, at module load.
static HOLDERS: SetOnce<&'static dyn LeaseHolders> = SetOnce::new();

/// Registers the front end. Once, at module load.
pub(crate) fn register(holders: &'static dyn LeaseHolders) {
    // Cannot fail: this is the only call.
    let _ = HOLDERS.populate(holders);
}

/// Ends the objects of ended grants, in all files.
fn sweep_holders() -> Result {
    HOLDERS.as_ref().map_or(Ok(()), |holders| holders.sweep())
}

/// Interval at which the sweep is repeated while objects of an ended grant remain, in milliseconds.
pub(super) const AGAIN_MS: u64 = 10;
/// The longest time that the worker sleeps at once, in milliseconds.
const SLEEP_MS: u64 = 3_600_000;

/// Schedules the worker in `ms` milliseconds.
pub(super) fn wake_in(ms: u64) {
    // A jiffy later rather than too early. CAST: At most `SLEEP_MS`.
    sys_auth::kick(ms.saturating_add(1).min(SLEEP_MS) as u32);
}

/// Ends the objects of ended grants, and waits for other tasks that are ending some of them. If the
/// task is being killed, the worker completes the sweep.
pub(crate) fn sweep() -> Result {
    let waited = || {
        HOLDERS
            .as_ref()
            .map_or(Ok(()), |holders| holders.wait_swept())
    };
    let done = sweep_holders().and_then(|()| waited());
    grant::collect_ended(false);
    done
}

/// Runs the worker once.
///
/// # Safety
///
/// Called by the worker in `auth.c` alone, while the module is loaded.
#[no_mangle]
unsafe extern "C" fn kf_auth_tick() {
    // The first call marks ended grants, the second removes those without objects.
    if grant::collect_ended(true) {
        let _ = sweep_holders();
        grant::collect_ended(false);
    }
    agent::forget();
}

crate::same_prototype!(sys: kf_auth_tick);
