// SPDX-License-Identifier: MIT OR Apache-2.0
//! Statistics of samples, with the names of perftest.

use std::time::Duration;

use serde::Serialize;

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Smallest sample.
    pub min_us: f64,
    /// Largest sample.
    pub max_us: f64,
    /// Median; perftest calls it typical.
    pub typical_us: f64,
    /// Mean.
    pub avg_us: f64,
    /// Standard deviation.
    pub stdev_us: f64,
    /// 99 % of the samples are at most this.
    pub p99_us: f64,
    /// 99.9 % of the samples are at most this.
    pub p999_us: f64,
}

impl Latency {
    /// Computes latencies from samples, each divided by `parts`; `None` without samples.
    pub fn of(samples: &[Duration], parts: f64) -> Option<Self> {
        let mut us: Vec<f64> = samples
            .iter()
            .map(|d| d.as_secs_f64() * 1e6 / parts)
            .collect();
        us.sort_by(f64::total_cmp);
        let (min_us, max_us) = (*us.first()?, *us.last()?);
        let count = us.len() as f64;
        let avg_us = us.iter().sum::<f64>() / count;
        let variance = us.iter().map(|v| (v - avg_us).powi(2)).sum::<f64>() / count;
        // Nearest rank: the smallest sample that is not below so many per mille of the samples.
        let rank = |per_mille: usize| us[(us.len() * per_mille).div_ceil(1000).max(1) - 1];
        Some(Self {
            min_us,
            max_us,
            typical_us: rank(500),
            avg_us,
            stdev_us: variance.sqrt(),
            p99_us: rank(990),
            p999_us: rank(999),
        })
    }
}

/// Mebibytes per second.
pub fn mib_per_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / (1 << 20) as f64 / time.as_secs_f64().max(1e-9)
}

/// Formats bytes: exact below 1 KiB, else in the largest unit, rounded if necessary.
pub fn bytes(n: u64) -> String {
    let mut value = n as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if value.fract() == 0.0 {
        format!("{value} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// Reads a size in bytes: `64`, `4K`, `1M`, `2G`, also `KiB`, `k`.
///
/// # Errors
///
/// The fault of the text, in words.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a size, such as 64, 4K or 1M"))?;
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
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("`{text}` is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_percentile_is_the_nearest_rank() {
        let samples: Vec<Duration> = (1..=1000).map(Duration::from_micros).collect();
        let l = Latency::of(&samples, 1.0).unwrap();
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(close(l.min_us, 1.0) && close(l.max_us, 1000.0));
        assert!(close(l.typical_us, 500.0) && close(l.p99_us, 990.0) && close(l.p999_us, 999.0));
        assert!(Latency::of(&[], 1.0).is_none());
        let one = Latency::of(&[Duration::from_micros(8)], 2.0).unwrap();
        assert!(close(one.p999_us, 4.0) && close(one.stdev_us, 0.0));
    }

    #[test]
    fn parse_size_reads_units_and_refuses_others() {
        for (text, n) in [
            ("0", 0),
            ("64", 64),
            ("4K", 4096),
            ("1MiB", 1 << 20),
            ("2g", 2 << 30),
            ("7b", 7),
        ] {
            assert_eq!(parse_size(text), Ok(n), "{text}");
        }
        for text in ["", "K", "1X", "-1", "99999999999999999999", "16777216T"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(bytes(1000), "1000 B");
        assert_eq!(bytes(4096), "4 KiB");
        assert_eq!(bytes(1_500_000), "1.4 MiB");
    }
}
