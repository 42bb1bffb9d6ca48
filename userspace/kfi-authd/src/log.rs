// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log: standard error, one line per event, with levels in the journal's form.
//!
//! No line contains bytes of an auth key: auth keys appear by their names in the policy. Text from
//! other processes is passed through [`plain`].

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering};

/// Level of an event; the numbers are those of syslog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// An action failed.
    Error = 3,
    /// A problem that the daemon could handle.
    Warning = 4,
    /// Start, reload, takeover, and denials.
    Notice = 5,
    /// Every decision and every grant.
    Info = 6,
    /// Details, for debugging.
    Debug = 7,
}

static MOST: AtomicU8 = AtomicU8::new(Level::Info as u8);

/// Drops events above this level.
pub fn set_level(level: Level) {
    MOST.store(level as u8, Ordering::Relaxed);
}

/// Writes an event. If standard error is the journal, the level precedes each line.
pub fn write(level: Level, what: fmt::Arguments<'_>) {
    if level as u8 > MOST.load(Ordering::Relaxed) {
        return;
    }
    let head = if std::env::var_os("JOURNAL_STREAM").is_some() {
        format!("<{}>", level as u8)
    } else {
        format!("kfi-authd: {}: ", format!("{level:?}").to_lowercase())
    };
    // One write per event, with the head on each line, so that lines are not interleaved.
    let mut text = String::new();
    for line in what.to_string().lines() {
        text.push_str(&head);
        text.push_str(line);
        text.push('\n');
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Writes an event: the level, then arguments as for `format!`.
#[macro_export]
macro_rules! event {
    ($level:ident, $($what:tt)*) => {
        $crate::log::write($crate::log::Level::$level, format_args!($($what)*))
    };
}

/// Replaces control characters in text of other processes.
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}
