// SPDX-License-Identifier: GPL-2.0
//! The end of a grant: its endpoints are closed, and its keys revoked.
//!
//! What was opened under grants lies in open files, so these are gone through. Whoever opens
//! something looks at its grant once more when it lies there: either of us sees the other. A key
//! that is just being made is told not to be, and looked at again.

use super::grant;
use crate::{
    dev,
    sys::auth as sys_auth, //
};

/// After how long it is looked again at what has not ended, in milliseconds.
pub(super) const AGAIN_MS: u64 = 10;
/// The longest time that the worker sleeps at once, in milliseconds.
const SLEEP_MS: u64 = 3_600_000;

/// Has the worker look in `ms` milliseconds.
pub(super) fn wake_in(ms: u64) {
    // A jiffy later rather than too early. CAST: At most `SLEEP_MS`.
    sys_auth::kick(ms.saturating_add(1).min(SLEEP_MS) as u32);
}

/// Ends what was opened under grants that are over, and waits for what others are just ending of it.
/// Whoever is being killed leaves it to the worker.
pub(crate) fn sweep() -> kernel::error::Result {
    let done = dev::sweep().and_then(|()| dev::swept());
    grant::settle(false);
    done
}

/// The worker's turn.
///
/// # Safety
///
/// Called by the worker in `auth.c` alone, while the module is loaded.
#[no_mangle]
unsafe extern "C" fn kf_auth_tick() {
    // Twice: those that are over by now are swept, and forgotten if nothing is left.
    if grant::settle(true) {
        let _ = dev::sweep();
        grant::settle(false);
    }
    super::ask::forget();
}
