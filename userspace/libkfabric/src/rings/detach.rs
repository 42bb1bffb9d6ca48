// SPDX-License-Identifier: MIT OR Apache-2.0
//! Closing a region that operations of rings use. The kernel does not know these operations, so
//! their memory would stay in use after the close.
#![forbid(unsafe_code)]

use super::queue::Pushed;
use super::{lock, Rings};
use crate::domain::inner::Holder;

impl Holder for Rings {
    fn advance(&self) {
        let pushed = self.progress();
        self.alert(pushed, None);
    }

    /// Ends the use of a region by waiting operations. After the return, this endpoint's messages
    /// read and write no byte of the region.
    ///
    /// Receives complete with `ECANCELED`. If a part of the message has arrived, the receive
    /// completes when the rest has been dropped. A message that waits for space is copied; without
    /// memory for the copy, the connection ends.
    fn detach(&self, region: u64) {
        let mut pushed = Pushed::rx(self.cancel_in(region));
        pushed |= Pushed::tx(self.keep_out_of(region));
        self.alert(pushed, None);
    }
}

impl Rings {
    fn cancel_in(&self, region: u64) -> bool {
        let mut rx = lock(&self.rx);
        if !rx.receives.iter().any(|receive| receive.uses(region)) {
            return false;
        }
        let mut pushed = false;
        let mut begun = rx.pipe.has_begun();
        for mut receive in std::mem::take(&mut rx.receives) {
            let first = std::mem::take(&mut begun);
            if !receive.uses(region) {
                rx.receives.push_back(receive);
            } else if first {
                receive.lose();
                rx.receives.push_back(receive);
            } else {
                pushed |= self.fail_rx(&receive, libc::ECANCELED, 0);
            }
        }
        pushed
    }

    fn keep_out_of(&self, region: u64) -> bool {
        let mut tx = lock(&self.tx);
        let mut waiting = tx.pending.iter_mut();
        if waiting.all(|message| !message.uses(region) || message.keep()) {
            return false;
        }
        self.end();
        self.link
            .get()
            .is_some_and(|link| self.flush_tx(link, &mut tx))
    }
}
