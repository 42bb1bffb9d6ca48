// SPDX-License-Identifier: MIT OR Apache-2.0

//! The supported kernels, and the choice of one from an archive.
//!
//! No other code names a supported series.

use anyhow::{bail, Result};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// The supported series, the preferred one first.
pub const SERIES: [&str; 2] = ["7.2", "7.3"];
/// The distribution of the build root and of the kernels.
pub const SUITE: &str = "trixie";
/// The suite of the distribution that contains the kernels.
pub const KERNEL_SUITE: &str = "trixie-backports";
/// The architecture of the distribution.
pub const ARCH: &str = "amd64";

/// The archive has no complete kernel of a series.
#[derive(Debug)]
pub struct NoKernel {
    series: String,
}

impl std::fmt::Display for NoKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the archive's {KERNEL_SUITE} has no complete kernel (source, headers, modules and image of one version) of {}",
            self.series
        )
    }
}

impl std::error::Error for NoKernel {}

/// A package in an archive's index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Name of the package.
    pub name: String,
    /// Version of the package.
    pub version: String,
    /// Size of the package in bytes.
    pub size: u64,
}

/// A kernel whose packages are all in the archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The series, `7.2`.
    pub series: String,
    /// The output of `uname -r`, `7.2.12+deb13-amd64`.
    pub release: String,
    /// The packages' common version.
    pub version: String,
    /// The package of the image.
    pub image: String,
    /// Size of the download in bytes.
    pub size: u64,
}

impl Choice {
    /// Returns the names of the kernel's packages.
    pub fn packages(&self) -> [String; 4] {
        [
            format!("linux-source-{}", self.series),
            format!("linux-headers-{}", self.release),
            format!("linux-modules-{}", self.release),
            self.image.clone(),
        ]
    }

    /// Returns whether `wanted` names this kernel: a series, a point release (7.2.12) or a whole
    /// release.
    pub fn is(&self, wanted: &str) -> bool {
        self.series == wanted
            || self.release == wanted
            || self
                .release
                .strip_prefix(wanted)
                .is_some_and(|rest| rest.starts_with(['+', '-']))
    }

    /// Returns the suffix of the release after the upstream version: `+deb13-amd64`.
    pub fn local_version(&self) -> &str {
        let end = self
            .release
            .find(|c: char| c != '.' && !c.is_ascii_digit())
            .unwrap_or(self.release.len());
        &self.release[end..]
    }
}

/// Parses an archive's index (the `Packages` file).
pub fn parse_index(text: &str) -> Vec<Package> {
    text.split("\n\n")
        .filter_map(|stanza| {
            let field = |name: &str| {
                stanza
                    .lines()
                    .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            };
            Some(Package {
                name: field("Package")?.to_owned(),
                version: field("Version")?.to_owned(),
                size: field("Size")
                    .and_then(|size| size.parse().ok())
                    .unwrap_or(0),
            })
        })
        .filter(|package| package.name.starts_with("linux-"))
        .collect()
}

/// Returns all kernels of `series` with source, headers, modules and image of the same version, the
/// newest first.
pub fn complete(index: &[Package], series: &str) -> Vec<Choice> {
    let find = |name: &str, version: &str| {
        index
            .iter()
            .find(|package| package.name == name && package.version == version)
    };
    let mut found: Vec<Choice> = index
        .iter()
        .filter_map(|headers| {
            let release = headers.name.strip_prefix("linux-headers-")?;
            let (abi, flavour) = release.split_once('-')?;
            let of_series = abi.strip_prefix(series)?.starts_with('.');
            if !of_series || flavour != ARCH {
                return None;
            }
            let version = &headers.version;
            let source = find(&format!("linux-source-{series}"), version)?;
            let modules = find(&format!("linux-modules-{release}"), version)?;
            let image = ["linux-binary-", "linux-binary-unsigned-"]
                .iter()
                .find_map(|kind| find(&format!("{kind}{release}"), version))?;
            Some(Choice {
                series: series.to_owned(),
                release: release.to_owned(),
                version: version.clone(),
                image: image.name.clone(),
                size: headers.size + source.size + modules.size + image.size,
            })
        })
        .collect();
    found.sort_by(|a, b| compare(&b.version, &a.version));
    found.dedup_by(|a, b| a.release == b.release);
    found
}

/// Returns the kernel `wanted` (`7.2.11`, or a whole release) if given, else the newest kernel of
/// the first series in `series` that has one.
///
/// # Errors
///
/// If there is no such kernel; the error lists the existing ones.
pub fn choose(index: &[Package], series: &[&str], wanted: Option<&str>) -> Result<Choice> {
    let all: Vec<Choice> = series
        .iter()
        .flat_map(|series| complete(index, series))
        .collect();
    let fits = |choice: &&Choice| wanted.is_none_or(|wanted| choice.is(wanted));
    if let Some(choice) = all.iter().find(fits) {
        return Ok(choice.clone());
    }
    let there: Vec<&str> = all.iter().map(|choice| choice.release.as_str()).collect();
    match wanted {
        Some(wanted) => bail!(
            "no complete kernel {wanted} in the archive; complete are: {}",
            there.join(", ")
        ),
        None => Err(NoKernel {
            series: series.join(" or "),
        }
        .into()),
    }
}

/// Returns series in the archive that are newer than any supported one.
pub fn newer_series(index: &[Package]) -> Vec<String> {
    let newest = SERIES
        .iter()
        .copied()
        .max_by(|a, b| compare(a, b))
        .unwrap_or_default();
    let mut found: Vec<String> = index
        .iter()
        .filter_map(|package| package.name.strip_prefix("linux-source-"))
        .filter(|series| series.starts_with(|c: char| c.is_ascii_digit()))
        .filter(|series| compare(series, newest) == Ordering::Greater)
        .map(str::to_owned)
        .collect();
    found.sort_by(|a, b| compare(a, b));
    found.dedup();
    found
}

/// Compares two versions by the rules of the distribution's packaging tools.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let (left, right) = (split(&mut a, false), split(&mut b, false));
        let order = compare_text(left, right);
        if order != Ordering::Equal {
            return order;
        }
        let (left, right) = (split(&mut a, true), split(&mut b, true));
        let number = |digits: &str| digits.parse::<u64>().unwrap_or(0);
        let order = number(left).cmp(&number(right));
        if order != Ordering::Equal || (a.is_empty() && b.is_empty()) {
            return order;
        }
    }
}

/// Splits the leading run of digits, or of other characters, off `text`.
fn split<'a>(text: &mut &'a str, digits: bool) -> &'a str {
    let end = text
        .find(|c: char| c.is_ascii_digit() != digits)
        .unwrap_or(text.len());
    let (run, rest) = text.split_at(end);
    *text = rest;
    run
}

/// Compares runs without digits: `~` before the end, letters before the rest.
fn compare_text(a: &str, b: &str) -> Ordering {
    let weight = |c: Option<char>| match c {
        Some('~') => -1,
        None => 0,
        Some(c) if c.is_ascii_alphabetic() => c as i32,
        Some(c) => c as i32 + 256,
    };
    let (mut a, mut b) = (a.chars(), b.chars());
    loop {
        let (left, right) = (a.next(), b.next());
        let order = weight(left).cmp(&weight(right));
        if order != Ordering::Equal || left.is_none() {
            return order;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_of_versions_names_the_supported_series() {
        let text = include_str!("../../docs/versioning.md");
        let series = SERIES.join(" and ");
        assert!(text.contains(&format!("Kernels: Linux {series}, ")));
    }

    fn index(rows: &[(&str, &str)]) -> Vec<Package> {
        rows.iter()
            .map(|(name, version)| Package {
                name: (*name).into(),
                version: (*version).into(),
                size: 10,
            })
            .collect()
    }

    fn kernel(series: &str, point: &str, version: &str, image: &str) -> Vec<Package> {
        index(&[
            (&format!("linux-source-{series}"), version),
            (&format!("linux-headers-{point}+deb13-amd64"), version),
            (&format!("linux-headers-{point}+deb13-cloud-amd64"), version),
            (&format!("linux-modules-{point}+deb13-amd64"), version),
            (&format!("{image}-{point}+deb13-amd64"), version),
        ])
    }

    #[test]
    fn versions_are_ordered_as_the_distribution_orders_them() {
        for (small, large) in [
            ("7.2.9-1", "7.2.12-1"),
            ("7.2.12-1~bpo13+1", "7.2.12-1"),
            ("7.2.12-1~bpo13+1", "7.2.12-1~bpo13+2"),
            ("7.2.12-1", "7.2.12-2"),
            ("7.2", "7.2.1"),
        ] {
            assert_eq!(compare(small, large), Ordering::Less, "{small} < {large}");
            assert_eq!(
                compare(large, small),
                Ordering::Greater,
                "{large} > {small}"
            );
        }
        assert_eq!(compare("7.2.12-1", "7.2.12-1"), Ordering::Equal);
    }

    #[test]
    fn the_newest_complete_point_release_of_the_preferred_series_is_taken() {
        let mut all = kernel("7.2", "7.2.9", "7.2.9-1", "linux-binary");
        all.extend(kernel("7.2", "7.2.12", "7.2.12-1", "linux-binary"));
        all.extend(kernel("7.3", "7.3.4", "7.3.4-1", "linux-binary-unsigned"));
        let choice = choose(&all, &SERIES, None).unwrap();
        assert_eq!(choice.release, "7.2.12+deb13-amd64");
        assert_eq!(choice.image, "linux-binary-7.2.12+deb13-amd64");
        assert_eq!(choice.local_version(), "+deb13-amd64");
        assert_eq!(choice.size, 40);
    }

    #[test]
    fn a_release_without_its_source_is_passed_over() {
        let mut all = kernel("7.2", "7.2.12", "7.2.12-1", "linux-binary");
        all.extend(kernel("7.2", "7.2.13", "7.2.13-1", "linux-binary"));
        all.retain(|p| !(p.name == "linux-source-7.2" && p.version == "7.2.13-1"));
        assert_eq!(
            choose(&all, &SERIES, None).unwrap().release,
            "7.2.12+deb13-amd64"
        );
    }

    #[test]
    fn an_unsigned_image_serves_when_there_is_no_signed_one() {
        let all = kernel("7.3", "7.3.4", "7.3.4-1", "linux-binary-unsigned");
        let choice = choose(&all, &SERIES, None).unwrap();
        assert_eq!(choice.image, "linux-binary-unsigned-7.3.4+deb13-amd64");
    }

    #[test]
    fn a_wanted_version_is_found_or_refused_with_what_there_is() {
        let mut all = kernel("7.2", "7.2.1", "7.2.1-1", "linux-binary");
        all.extend(kernel("7.2", "7.2.11", "7.2.11-1", "linux-binary"));
        assert_eq!(
            choose(&all, &SERIES, Some("7.2.1")).unwrap().release,
            "7.2.1+deb13-amd64"
        );
        let refusal = choose(&all, &SERIES, Some("7.2.2"))
            .unwrap_err()
            .to_string();
        assert!(refusal.contains("7.2.11+deb13-amd64"), "{refusal}");
    }

    #[test]
    fn a_newer_series_is_reported() {
        let all = index(&[
            ("linux-source-7.10", "1"),
            ("linux-source-7.3", "1"),
            ("linux-source-6.19", "1"),
        ]);
        assert_eq!(newer_series(&all), ["7.10"]);
    }

    #[test]
    fn an_index_is_read_stanza_by_stanza() {
        let text =
            "Package: linux-source-7.2\nVersion: 7.2.12-1\nSize: 42\n\nPackage: bash\nVersion: 1\n";
        assert_eq!(
            parse_index(text),
            [Package {
                name: "linux-source-7.2".into(),
                version: "7.2.12-1".into(),
                size: 42
            }]
        );
    }
}
