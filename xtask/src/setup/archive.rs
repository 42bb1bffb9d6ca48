// SPDX-License-Identifier: MIT OR Apache-2.0

//! The distribution's archive: mirror, index, downloads.
//!
//! The mirror is the one that this machine's package manager is configured with; no address is in
//! the sources. A private apt state in the cache is used, so that the machine's own lists and
//! sources do not change.

use super::stage;
use crate::chroot::{run_logged, tied};
use crate::context::Context;
use crate::progress::Step;
use crate::versions::{self, Choice, Package, KERNEL_SUITE, SUITE};
use anyhow::{bail, Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The keyring that signs the archive, as the distribution installs it.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A mirror of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// Address of the mirror.
    pub uri: String,
    /// The keyring that verifies the mirror.
    pub keyring: Option<String>,
}

impl Mirror {
    /// Returns the mirror in this machine's configuration of apt, or the one in `KFABRIC_MIRROR`.
    ///
    /// # Errors
    ///
    /// If apt is configured without a mirror of the distribution.
    pub fn find() -> Result<Self> {
        let keyring = Path::new(KEYRING).exists().then(|| KEYRING.to_owned());
        if let Ok(uri) = std::env::var("KFABRIC_MIRROR") {
            return Ok(Self { uri, keyring });
        }
        let codename = std::fs::read_to_string("/etc/os-release")
            .unwrap_or_default()
            .lines()
            .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
            .unwrap_or_default()
            .trim_matches('"')
            .to_owned();
        let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
        if let Ok(dir) = std::fs::read_dir("/etc/apt/sources.list.d") {
            files.extend(dir.filter_map(|entry| Some(entry.ok()?.path())));
        }
        files.sort();
        let mut found = Vec::new();
        for file in &files {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            match file.extension().and_then(|ext| ext.to_str()) {
                Some("sources") => found.extend(parse_deb822(&text)),
                Some("list") => found.extend(parse_one_line(&text)),
                _ => {}
            }
        }
        let uri = pick(&found, &codename).context(
            "apt is configured with no mirror of Debian's main archive; \
             set KFABRIC_MIRROR to one's address",
        )?;
        Ok(Self { uri, keyring })
    }

    /// Returns the line of a sources file for `suite`.
    pub fn source_line(&self, suite: &str) -> String {
        match &self.keyring {
            Some(keyring) => format!("deb [signed-by={keyring}] {} {suite} main", self.uri),
            None => format!("deb {} {suite} main", self.uri),
        }
    }
}

/// A configured source: address, suites, components.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    uri: String,
    suites: Vec<String>,
    components: Vec<String>,
}

/// Parses sources in the newer format (stanzas of fields).
fn parse_deb822(text: &str) -> Vec<Source> {
    let text: String = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut found = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| -> Vec<String> {
            stanza
                .lines()
                .find_map(|line| {
                    let (key, value) = line.split_once(':')?;
                    key.trim().eq_ignore_ascii_case(name).then_some(value)
                })
                .map(|value| value.split_whitespace().map(str::to_owned).collect())
                .unwrap_or_default()
        };
        let disabled = field("Enabled").first().is_some_and(|word| word == "no");
        if disabled || !field("Types").iter().any(|word| word == "deb") {
            continue;
        }
        for uri in field("URIs") {
            found.push(Source {
                uri,
                suites: field("Suites"),
                components: field("Components"),
            });
        }
    }
    found
}

/// Parses sources in the older format (one a line).
fn parse_one_line(text: &str) -> Vec<Source> {
    text.lines()
        .filter_map(|line| {
            let rest = line.trim().strip_prefix("deb ")?.trim_start();
            let rest = match rest.strip_prefix('[') {
                Some(options) => options.split_once(']')?.1,
                None => rest,
            };
            let mut words = rest.split_whitespace().map(str::to_owned);
            Some(Source {
                uri: words.next()?,
                suites: vec![words.next()?],
                components: words.collect(),
            })
        })
        .collect()
}

/// Returns the mirror of the main archive, which contains a release's own suite.
fn pick(sources: &[Source], codename: &str) -> Option<String> {
    let releases = [
        codename, SUITE, "stable", "testing", "unstable", "sid", "bookworm", "forky",
    ];
    sources
        .iter()
        .filter(|source| source.components.iter().any(|word| word == "main"))
        .find(|source| {
            source
                .suites
                .iter()
                .any(|suite| !suite.is_empty() && releases.contains(&suite.as_str()))
        })
        .map(|source| source.uri.trim_end_matches('/').to_owned())
}

/// Returns apt's proxy and certificate settings, one option each, for tools that do not read this
/// machine's configuration.
pub fn transport_options() -> Vec<String> {
    let Ok(output) = Command::new("apt-config").arg("dump").output() else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.starts_with("Acquire::http"))
        .map(|line| line.trim_end_matches(';').to_owned())
        .collect()
}

/// An apt with its own state in the cache.
pub struct Archive {
    dir: PathBuf,
}

impl Archive {
    /// Opens the private state for kernels from `mirror`.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn open(ctx: &Context, mirror: &Mirror) -> Result<Self> {
        Self::of_suite(ctx.cache.join("apt"), mirror, KERNEL_SUITE)
    }

    /// Makes a state in `dir`, for `suite` of `mirror`.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn of_suite(dir: PathBuf, mirror: &Mirror, suite: &str) -> Result<Self> {
        Self::of_line(dir, &mirror.source_line(suite))
    }

    /// Makes a state in `dir`, for the sources of `suite`.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn of_sources(dir: PathBuf, mirror: &Mirror, suite: &str) -> Result<Self> {
        Self::of_line(
            dir,
            &mirror.source_line(suite).replacen("deb", "deb-src", 1),
        )
    }

    fn of_line(dir: PathBuf, line: &str) -> Result<Self> {
        for sub in ["state/lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(dir.join(sub))?;
        }
        std::fs::write(dir.join("status"), "")?;
        std::fs::write(dir.join("sources.list"), format!("{line}\n"))?;
        Ok(Self { dir })
    }

    fn apt_get(&self) -> Command {
        let mut cmd = tied("apt-get");
        let dir = self.dir.display();
        for option in [
            format!("Dir::State={dir}/state"),
            format!("Dir::State::status={dir}/status"),
            format!("Dir::Cache={dir}/cache"),
            format!("Dir::Etc::sourcelist={dir}/sources.list"),
            "Dir::Etc::sourceparts=-".into(),
            "Dir::Etc::preferencesparts=-".into(),
            format!("APT::Architecture={}", versions::ARCH),
            format!("APT::Architectures={}", versions::ARCH),
            "APT::Sandbox::User=root".into(),
            "Acquire::Languages=none".into(),
            "Acquire::GzipIndexes=false".into(),
            "Acquire::Retries=3".into(),
        ] {
            cmd.args(["-o", &option]);
        }
        cmd.env("LC_ALL", "C");
        cmd
    }

    fn update(&self, ctx: &Context) -> Result<()> {
        let mut cmd = self.apt_get();
        cmd.args(["update", "--error-on=any"]);
        run_logged(cmd, &ctx.log_dir().join("apt-update.log"))
    }

    /// Unpacks the newest version of one package into `dir`, without its dependencies.
    ///
    /// # Errors
    ///
    /// If the mirror cannot be reached or lacks the package.
    pub fn unpack(&self, ctx: &Context, package: &str, dir: &Path) -> Result<()> {
        self.update(ctx)?;
        let log = ctx.log_dir().join("apt-download.log");
        let mut cmd = self.apt_get();
        cmd.args(["download", package]).current_dir(&self.dir);
        run_logged(cmd, &log)?;
        let found = std::fs::read_dir(&self.dir)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|ext| ext == "deb"))
            .with_context(|| format!("apt-get download fetched no {package}"))?;
        let mut cmd = tied("dpkg-deb");
        cmd.arg("--extract").arg(&found).arg(dir);
        run_logged(cmd, &log)?;
        // The next call must not take this package for its own.
        std::fs::remove_file(&found).with_context(|| found.display().to_string())
    }

    /// Unpacks the newest sources of a package into `dir`, without the distribution's changes.
    ///
    /// # Errors
    ///
    /// If the mirror cannot be reached or lacks the package.
    pub fn unpack_source(&self, ctx: &Context, package: &str, dir: &Path) -> Result<()> {
        self.update(ctx)?;
        let fetched = self.dir.join("fetched");
        std::fs::create_dir_all(&fetched)?;
        stage::clear(&fetched)?;
        let log = ctx.log_dir().join("apt-download.log");
        let mut cmd = self.apt_get();
        cmd.args(["source", "--download-only", "--tar-only", package]);
        cmd.current_dir(&fetched);
        run_logged(cmd, &log)?;
        let found = std::fs::read_dir(&fetched)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.to_string_lossy().contains(".orig.tar."))
            .with_context(|| format!("apt-get source fetched no {package}"))?;
        std::fs::create_dir_all(dir)?;
        let mut tar = tied("tar");
        tar.args(["--strip-components=1", "-xf"]).arg(&found);
        tar.arg("-C").arg(dir);
        run_logged(tar, &log)
    }

    /// Fetches and parses the index of the kernels' suite.
    ///
    /// # Errors
    ///
    /// If the mirror cannot be reached or lacks the suite.
    pub fn index(&self, ctx: &Context) -> Result<Vec<Package>> {
        self.update(ctx)?;
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.dir.join("state/lists"))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.ends_with("_Packages") && name.contains(KERNEL_SUITE) {
                found.extend(versions::parse_index(&std::fs::read_to_string(&path)?));
            }
        }
        if found.is_empty() {
            bail!("the mirror's index of {KERNEL_SUITE} names no kernel");
        }
        Ok(found)
    }

    /// Downloads the packages of `choice`, except those that exist already.
    ///
    /// # Errors
    ///
    /// If a package cannot be fetched or fails its check.
    pub fn download(&self, ctx: &Context, choice: &Choice) -> Result<PathBuf> {
        let dir = ctx
            .cache
            .join("download")
            .join(stage::key(&[&choice.release, &choice.version]));
        std::fs::create_dir_all(&dir)?;
        let gauge = {
            let (dir, total) = (dir.clone(), choice.size);
            Box::new(move || (folder_size(&dir), total))
        };
        let what = format!("download kernel {}", choice.release);
        let step = Step::with_gauge(ctx, what, Some(gauge));
        let mut cmd = self.apt_get();
        cmd.arg("download").current_dir(&dir);
        for package in choice.packages() {
            cmd.arg(format!("{package}={}", choice.version));
        }
        run_logged(cmd, &ctx.log_dir().join("apt-download.log"))?;
        step.done();
        Ok(dir)
    }
}

/// Returns the bytes in the files of a folder and its subfolders.
fn folder_size(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    entries
        .filter_map(|entry| entry.ok())
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => folder_size(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_format_is_read() {
        let text = "Types: deb\n# a remark\nURIs: http://mirror.example/debian/\nSuites: bookworm bookworm-updates\nComponents: main\n\n\
                    Types: deb\nEnabled: no\nURIs: http://off.example/debian\nSuites: bookworm\nComponents: main\n\n\
                    Types: deb-src\nURIs: http://src.example/debian\nSuites: bookworm\nComponents: main\n";
        let found = parse_deb822(text);
        assert_eq!(found.len(), 1);
        assert_eq!(
            pick(&found, "bookworm").as_deref(),
            Some("http://mirror.example/debian")
        );
    }

    #[test]
    fn the_older_format_is_read() {
        let text = "# deb http://off.example x main\ndeb [arch=amd64 signed-by=/k] http://mirror.example/debian trixie main contrib\n";
        let found = parse_one_line(text);
        assert_eq!(
            pick(&found, "trixie").as_deref(),
            Some("http://mirror.example/debian")
        );
    }

    #[test]
    fn other_archives_are_passed_over() {
        let text = "deb http://sec.example/debian-security bookworm-security main\n\
                    deb http://other.example stable-tools main\n\
                    deb http://extra.example bookworm contrib\n";
        assert_eq!(pick(&parse_one_line(text), "bookworm"), None);
    }
}
