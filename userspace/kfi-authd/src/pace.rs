// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits the lines that one user's denials take in the log, so that no user makes the journal drop the
//! lines of others.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lines of one user in each window.
const LINES: u32 = 50;
/// How long a window is.
const WINDOW: Duration = Duration::from_secs(1);

/// A user's window.
#[derive(Debug)]
struct Window {
    begun: Instant,
    lines: u32,
    /// Denials that were not written.
    more: u64,
}

/// The windows of users that were denied something just now.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    users: HashMap<u32, Window>,
}

impl Pace {
    /// Counts a denial of this user; whether a line is to be written of it.
    pub(crate) fn writes(&mut self, uid: u32, now: Instant) -> bool {
        let window = self.users.entry(uid).or_insert(Window {
            begun: now,
            lines: 0,
            more: 0,
        });
        if window.lines < LINES {
            window.lines += 1;
            return true;
        }
        window.more += 1;
        false
    }

    /// Ends windows that are over: the users of which denials were not written, and how many.
    pub(crate) fn over(&mut self, now: Instant) -> Vec<(u32, u64)> {
        let mut unwritten = Vec::new();
        self.users.retain(|uid, window| {
            let stays = now.duration_since(window.begun) < WINDOW;
            if !stays && window.more > 0 {
                unwritten.push((*uid, window.more));
            }
            stays
        });
        unwritten.sort_unstable();
        unwritten
    }

    /// When the next window is over of which something is to be written; `None`: there is none.
    pub(crate) fn next(&self) -> Option<Instant> {
        let some = self.users.values().filter(|window| window.more > 0);
        some.map(|window| window.begun + WINDOW).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_flood_of_one_user_takes_a_bounded_number_of_lines() {
        let mut pace = Pace::default();
        let now = Instant::now();
        let written = (0..10_000).filter(|_| pace.writes(1, now)).count();
        assert_eq!(written, LINES as usize);
        assert!(pace.writes(2, now), "another user's is written");
        assert_eq!(pace.next(), Some(now + WINDOW));
        assert_eq!(pace.over(now + WINDOW / 2), []);
        assert_eq!(pace.over(now + WINDOW), [(1, 10_000 - u64::from(LINES))]);
        assert_eq!((pace.next(), pace.users.len()), (None, 0));
        assert!(pace.writes(1, now + WINDOW));
    }
}
