// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where things are: the checkout, the cache, the build output.

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use std::path::{Path, PathBuf};

/// The places every command works with.
#[derive(Debug, Clone)]
pub struct Context {
    /// The checkout.
    pub repo: PathBuf,
    /// What `setup` makes, shared by all checkouts.
    pub cache: PathBuf,
    /// What the checkout's own sources are built into.
    pub target: PathBuf,
    /// A bug to build into the modules, to show that the tests find it.
    pub seed_bug: Option<SeedBug>,
}

/// A bug that the modules can be built with on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SeedBug {
    /// A run of pages is not unpinned.
    MissingUnpin,
    /// Two locks are taken in either order.
    LockOrder,
    /// A queue is woken after its memory was given back.
    UseAfterFree,
    /// An operation is judged, fetched again, and used.
    DoubleFetch,
    /// An operation that is flushed gets no completion.
    LostCompletion,
    /// A call that fails half-way leaves what it made.
    MissedError,
}

impl SeedBug {
    /// Its name, in the modules' sources and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::MissingUnpin => "missing-unpin",
            Self::LockOrder => "lock-order",
            Self::UseAfterFree => "use-after-free",
            Self::DoubleFetch => "double-fetch",
            Self::LostCompletion => "lost-completion",
            Self::MissedError => "missed-error",
        }
    }

    /// The bug that the environment asks for.
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
    /// Finds the places from the environment.
    ///
    /// # Errors
    ///
    /// When no cache folder can be named (neither `KFABRIC_CACHE`, nor
    /// `XDG_CACHE_HOME`, nor `HOME` is set) or it cannot be made.
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

    /// The folder logs of long steps are kept in.
    pub fn log_dir(&self) -> PathBuf {
        self.cache.join("logs")
    }
}

/// The cache folder that the environment asks for.
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
