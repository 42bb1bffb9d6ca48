// SPDX-License-Identifier: MIT OR Apache-2.0
//! Output of programs: safe for terminals, and robust against a closed output.

use std::fmt::Write as _;
use std::io::Write as _;

use crate::error::Failure;

/// Whether a terminal may interpret a character instead of showing it.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            // Invisible characters, line separators, and characters that change the direction of
            // text.
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Makes text of other programs safe for a terminal, such as a process's or a client's name.
/// Characters that are not visible are written as `\n` or `\u{1b}`.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) {
            // Writing to a string cannot fail.
            let _ = write!(out, "{}", c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Writes to standard error. A failure is ignored: no other output is left to report it.
pub fn stderr(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Reports a failure and its hint on standard error.
pub fn complain(failure: &Failure) {
    let mut text = format!("error: {}\n", printable(&failure.to_string()));
    if let Some(hint) = failure.hint() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "hint: {hint}");
    }
    stderr(&text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_of_control_characters_escapes_them() {
        let name = "a\"b\n\u{1b}[31m\u{9b}m\u{202e}\u{fffd}é";
        let shown = printable(name);
        assert_eq!(shown, "a\"b\\n\\u{1b}[31m\\u{9b}m\\u{202e}\u{fffd}é");
        assert!(!shown.chars().any(is_unsafe));
    }
}
