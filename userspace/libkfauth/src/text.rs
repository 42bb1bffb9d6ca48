// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes and times as text, for policies and command lines.

use std::time::Duration;

/// Splits a text such as `12K` into the number and the unit.
fn number<'a>(text: &'a str, what: &str) -> Result<(u64, &'a str), String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number = number
        .parse()
        .map_err(|_| format!("`{text}` is not {what}"))?;
    Ok((number, unit))
}

/// Reads a size in bytes: `64`, `4K`, `1M`, `2GiB`, `1T`; `unlimited` is `None`.
///
/// ```
/// assert_eq!(kfauth::parse_size("4K"), Ok(Some(4096)));
/// assert_eq!(kfauth::parse_size("unlimited"), Ok(None));
/// ```
///
/// # Errors
///
/// The fault of the text, in words.
pub fn parse_size(text: &str) -> Result<Option<u64>, String> {
    if text == "unlimited" {
        return Ok(None);
    }
    let (number, unit) = number(text, "a size, such as 64, 4K, 1M, 2G or unlimited")?;
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").unwrap_or(&unit) {
        "" | "b" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => {
            return Err(format!(
                "`{text}` has an unknown unit; known are K, M, G, T"
            ))
        }
    };
    let bytes = number.checked_mul(1 << shift);
    bytes
        .map(Some)
        .ok_or_else(|| format!("`{text}` is too large"))
}

/// Reads a time: `90` or `90s` (seconds), `500ms`, `15m`, `8h`, `7d`.
///
/// ```
/// assert_eq!(kfauth::parse_time("8h"), Ok(std::time::Duration::from_secs(8 * 3600)));
/// ```
///
/// # Errors
///
/// The fault of the text, in words.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = number(text, "a time, such as 90s, 15m, 8h or 7d")?;
    let millis = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60 * 1000,
        "h" => 3600 * 1000,
        "d" => 24 * 3600 * 1000,
        _ => {
            return Err(format!(
                "`{text}` has an unknown unit; known are ms, s, m, h, d"
            ))
        }
    };
    // The kernel holds nanoseconds in 64 bits.
    let most = u64::MAX / 1_000_000;
    match number.checked_mul(millis).filter(|all| *all <= most) {
        Some(all) => Ok(Duration::from_millis(all)),
        None => Err(format!("`{text}` is too long")),
    }
}

/// Formats a time in the largest unit that divides it, in the form that [`parse_time`] reads.
/// Fractions of a second are formatted in ms, rounded up.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(kfauth::time_text(Duration::from_secs(5400)), "90m");
/// ```
pub fn time_text(time: Duration) -> String {
    let seconds = time.as_secs();
    if time.subsec_nanos() != 0 {
        let millis = time.as_nanos().div_ceil(1_000_000);
        return if millis.is_multiple_of(1000) {
            format!("{}s", millis / 1000)
        } else {
            format!("{millis}ms")
        };
    }
    for (unit, length) in [("d", 86_400), ("h", 3600), ("m", 60)] {
        if seconds > 0 && seconds.is_multiple_of(length) {
            return format!("{}{unit}", seconds / length);
        }
    }
    format!("{seconds}s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parse_size_reads_units_and_refuses_others() {
        for (text, n) in [
            ("0", 0),
            ("4K", 4096),
            ("1MiB", 1 << 20),
            ("7b", 7),
            ("2g", 2 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(Some(n)), "{text}");
        }
        for text in [
            "",
            "K",
            "1X",
            "-1",
            "99999999999999999999",
            "16777216T",
            "none",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parse_time_reads_units_and_refuses_others() {
        for (text, ms) in [
            ("90", 90_000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "h", "1w", "-1s", "99999999999999d", "1.5h"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        assert_eq!(time_text(Duration::ZERO), "0s");
        assert_eq!(time_text(Duration::from_nanos(1)), "1ms");
        assert_eq!(time_text(Duration::from_secs(3600)), "1h");
        assert_eq!(time_text(Duration::from_millis(1500)), "1500ms");
    }

    proptest! {
        #[test]
        fn time_to_text_and_back_is_equal(ms in 0..u64::MAX / 1_000_000) {
            let time = Duration::from_millis(ms);
            prop_assert_eq!(parse_time(&time_text(time)), Ok(time));
        }

        #[test]
        fn any_text_is_taken_or_refused(text in ".{0,24}") {
            let _ = parse_size(&text);
            let _ = parse_time(&text);
        }
    }
}
