// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log: standard error, a line to an event, with levels as the journal reads them.
//!
//! Nothing that is written here has a key's bytes in it: keys are called by the policy's names, and
//! what comes from others goes through [`plain`].

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering};

/// How much an event matters; the numbers are syslog's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// It could not be done.
    Error = 3,
    /// Something is not as it should be.
    Warning = 4,
    /// Started, reloaded, taken over; denials.
    Notice = 5,
    /// Every decision, every grant.
    Info = 6,
    /// What is of use when something is sought.
    Debug = 7,
}

static MOST: AtomicU8 = AtomicU8::new(Level::Info as u8);

/// Leaves out what matters less.
pub fn set_level(level: Level) {
    MOST.store(level as u8, Ordering::Relaxed);
}

/// Writes an event. With the journal behind standard error, its level goes before it.
pub fn write(level: Level, what: fmt::Arguments<'_>) {
    if level as u8 > MOST.load(Ordering::Relaxed) {
        return;
    }
    let head = if std::env::var_os("JOURNAL_STREAM").is_some() {
        format!("<{}>", level as u8)
    } else {
        format!("kfi-authd: {}: ", format!("{level:?}").to_lowercase())
    };
    // Each line by itself, and each in one write, so that none is torn.
    let mut text = String::new();
    for line in what.to_string().lines() {
        text.push_str(&head);
        text.push_str(line);
        text.push('\n');
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Writes an event: level, then as `format!`.
#[macro_export]
macro_rules! event {
    ($level:ident, $($what:tt)*) => {
        $crate::log::write($crate::log::Level::$level, format_args!($($what)*))
    };
}

/// Text of others, without what would make another line, or another terminal, of it.
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}
