// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of endpoints that were just closed. `ofi_rxm` closes the endpoint of a lost connection
//! first. Then it reads the completions, posts a receive for each message among them, and may answer
//! the message. So the memory stays for a while, and these posts fail with -FI_ENOTCONN.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Number of closed endpoints whose memory stays.
const KEPT: usize = 256;

/// The memory of a closed object: its address, and the function that frees the memory.
type Closed = (usize, unsafe fn(usize));

/// Memory of closed objects, the oldest first.
static CLOSED: Mutex<VecDeque<Closed>> = Mutex::new(VecDeque::new());

/// Keeps the memory of a closed object until [`KEPT`] others are closed.
///
/// # Safety
///
/// `free` can be called once with `at`, and nothing else frees the memory.
pub(crate) unsafe fn keep(at: usize, free: unsafe fn(usize)) {
    let oldest = {
        let mut closed = CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
        closed.push_back((at, free));
        match closed.len() > KEPT {
            true => closed.pop_front(),
            false => None,
        }
    };
    if let Some((at, free)) = oldest {
        // SAFETY: as the caller that kept the memory vouched. The memory left the list just now.
        unsafe { free(at) };
    }
}
