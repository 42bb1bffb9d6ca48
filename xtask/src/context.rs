// SPDX-License-Identifier: MIT OR Apache-2.0

//! Paths of the checkout, the cache and the build output, and settings of all commands.

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use std::path::{Path, PathBuf};

/// The paths and settings that every command uses.
#[derive(Debug, Clone)]
pub struct Context {
    /// The checkout.
    pub repo: PathBuf,
    /// The cache, which `setup` fills and all checkouts share.
    pub cache: PathBuf,
    /// The build output of this checkout.
    pub target: PathBuf,
    /// A seeded bug to build in, to check that the tests find it.
    pub seed_bug: Option<SeedBug>,
}

/// A seeded bug, which the modules or a program can be built with on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SeedBug {
    /// A run of pages is not unpinned.
    MissingUnpin,
    /// Two locks are taken in either order.
    LockOrder,
    /// A queue is woken after its memory was freed.
    UseAfterFree,
    /// An operation is checked, fetched again, and used.
    DoubleFetch,
    /// A flushed operation has no completion.
    LostCompletion,
    /// A call that fails half-way does not undo its steps.
    MissedError,
    /// A program's counter is charged to no memory cgroup.
    UnaccountedAllocation,
    /// A rule of the daemon takes the unknown for false, so that a denying job does not deny.
    UnknownOpens,
    /// A registration waits for the program's page with a lock of its user held.
    PageUnderLock,
    /// A durable write does not write its bytes back.
    PmemNoWriteBack,
    /// A durable write does not wait for its write-backs.
    PmemNoFence,
    /// A durable write completes before it waits for its write-backs.
    PmemEarlyAnswer,
    /// A durable write does not write its last, partial cache line back.
    PmemLastLine,
    /// A durable write writes other bytes of the region back.
    PmemWrongRange,
    /// A durable write over verbs asks for its commit before its bytes have arrived.
    PmemEarlyCommit,
    /// A flush of a disk on persistent memory completes without a commit.
    DiskEarlyFlush,
    /// A flush of a disk does not flush the exported block device.
    DeviceNoFlush,
    /// The keys of a block device's memory stay valid when the memory has failed.
    DaxKeysStay,
    /// The example `kfi-pmlog` writes a record's commit word before the record.
    LogEarlyWord,
}

impl SeedBug {
    /// Returns the name of the bug, as in the modules' sources and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::MissingUnpin => "missing-unpin",
            Self::LockOrder => "lock-order",
            Self::UseAfterFree => "use-after-free",
            Self::DoubleFetch => "double-fetch",
            Self::LostCompletion => "lost-completion",
            Self::MissedError => "missed-error",
            Self::UnaccountedAllocation => "unaccounted-allocation",
            Self::UnknownOpens => "unknown-opens",
            Self::PageUnderLock => "page-under-lock",
            Self::PmemNoWriteBack => "pmem-no-write-back",
            Self::PmemNoFence => "pmem-no-fence",
            Self::PmemEarlyAnswer => "pmem-early-answer",
            Self::PmemLastLine => "pmem-last-line",
            Self::PmemWrongRange => "pmem-wrong-range",
            Self::PmemEarlyCommit => "pmem-early-commit",
            Self::DiskEarlyFlush => "disk-early-flush",
            Self::DeviceNoFlush => "device-no-flush",
            Self::DaxKeysStay => "dax-keys-stay",
            Self::LogEarlyWord => "log-early-word",
        }
    }

    /// Returns the package and the program with the bug; `None` if a module has the bug.
    pub fn program(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::UnknownOpens => Some(("kfi-authd", "kfi-authd")),
            Self::LogEarlyWord => Some(("kfi-example", "kfi-pmlog")),
            _ => None,
        }
    }

    /// Returns the bug that the environment selects.
    fn from_env() -> Result<Option<Self>> {
        let Some(name) = std::env::var_os("KFABRIC_SEED_BUG").filter(|name| !name.is_empty())
        else {
            return Ok(None);
        };
        let known = Self::value_variants().iter();
        let bug = known.copied().find(|bug| name == bug.name());
        bug.map(Some)
            .with_context(|| format!("KFABRIC_SEED_BUG names no bug: {}", name.to_string_lossy()))
    }
}

impl Context {
    /// Returns the paths, as set by the environment.
    ///
    /// # Errors
    ///
    /// If neither `KFABRIC_CACHE`, nor `XDG_CACHE_HOME`, nor `HOME` is set, or the cache folder
    /// cannot be created.
    pub fn new() -> Result<Self> {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask stands in the checkout's top folder")?
            .canonicalize()?;
        let cache = cache_dir(|name| std::env::var_os(name).map(PathBuf::from))
            .context("no place for the cache: set KFABRIC_CACHE to a folder")?;
        std::fs::create_dir_all(&cache)
            .with_context(|| format!("making the cache folder {}", cache.display()))?;
        Ok(Self {
            target: repo.join("target"),
            cache: cache.canonicalize()?,
            repo,
            seed_bug: SeedBug::from_env()?,
        })
    }

    /// Returns the seeded bug to build into the modules.
    pub fn module_bug(&self) -> Option<SeedBug> {
        self.seed_bug.filter(|bug| bug.program().is_none())
    }

    /// Returns the folder for logs of long steps.
    pub fn log_dir(&self) -> PathBuf {
        self.cache.join("logs")
    }
}

/// Returns the cache folder that the environment selects.
fn cache_dir(var: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let set = |name: &str| var(name).filter(|path| !path.as_os_str().is_empty());
    set("KFABRIC_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("kfabric")))
        .or_else(|| set("HOME").map(|dir| dir.join(".cache/kfabric")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &[(&str, &str)]) -> Option<PathBuf> {
        cache_dir(|name| {
            vars.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| PathBuf::from(value))
        })
    }

    #[test]
    fn the_most_specific_variable_names_the_cache() {
        let all = [
            ("KFABRIC_CACHE", "/k"),
            ("XDG_CACHE_HOME", "/x"),
            ("HOME", "/h"),
        ];
        assert_eq!(with(&all), Some("/k".into()));
        assert_eq!(with(&all[1..]), Some("/x/kfabric".into()));
        assert_eq!(with(&all[2..]), Some("/h/.cache/kfabric".into()));
        assert_eq!(with(&[]), None);
    }

    #[test]
    fn bugs_are_called_the_same_everywhere() {
        for bug in SeedBug::value_variants() {
            let value = bug.to_possible_value().unwrap();
            assert_eq!(value.get_name(), bug.name());
        }
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        assert_eq!(
            with(&[("KFABRIC_CACHE", ""), ("HOME", "/h")]),
            Some("/h/.cache/kfabric".into())
        );
    }
}
