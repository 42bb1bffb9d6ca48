// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where things are: the checkout, the cache, the build output.

use anyhow::{Context as _, Result};
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
    fn an_empty_variable_counts_as_unset() {
        assert_eq!(
            with(&[("KFABRIC_CACHE", ""), ("HOME", "/h")]),
            Some("/h/.cache/kfabric".into())
        );
    }
}
