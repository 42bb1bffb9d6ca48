// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stages of the cache: folders that are whole or not there.
//!
//! A stage is named by a key made from everything it is built from, so that a
//! changed input makes a new one and leaves the rest alone. It is built in
//! `partial/` and renamed into place; what a killed run left in `partial/` is
//! found again by the next.

use crate::context::Context;
use anyhow::{Context as _, Result};
use std::fs::File;
use std::path::{Path, PathBuf};

/// The key of a stage made from `parts`.
pub fn key(parts: &[&str]) -> String {
    // FNV-1a over the parts and their lengths: stable everywhere, and nobody
    // gains anything from a collision in his own cache.
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let mut feed = |bytes: &[u8]| {
        for byte in bytes {
            hash ^= u128::from(*byte);
            hash = hash.wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    };
    for part in parts {
        feed(&part.len().to_le_bytes());
        feed(part.as_bytes());
    }
    format!("{:016x}", (hash >> 64) as u64 ^ hash as u64)
}

/// The place of the stage `name` with `key`, whether it is there or not.
pub fn place(ctx: &Context, name: &str, key: &str) -> PathBuf {
    ctx.cache.join(format!("{name}-{key}"))
}

/// The stage if it is there.
pub fn present(ctx: &Context, name: &str, key: &str) -> Option<PathBuf> {
    let place = place(ctx, name, key);
    place.is_dir().then_some(place)
}

/// Makes the stage with `build` unless it is there; the caller holds the lock.
///
/// `build` gets the folder to fill, which may hold what a killed run left.
///
/// # Errors
///
/// Those of `build`, and of the file system.
pub fn make(
    ctx: &Context,
    name: &str,
    key: &str,
    build: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    if let Some(place) = present(ctx, name, key) {
        return Ok(place);
    }
    let partial = ctx.cache.join("partial").join(format!("{name}-{key}"));
    std::fs::create_dir_all(&partial)?;
    build(&partial)?;
    let place = place(ctx, name, key);
    std::fs::rename(&partial, &place)
        .with_context(|| format!("moving {} into place", partial.display()))?;
    Ok(place)
}

/// Empties a folder.
///
/// # Errors
///
/// Those of the file system.
pub fn clear(dir: &Path) -> Result<()> {
    std::fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
    std::fs::create_dir_all(dir)?;
    Ok(())
}

/// Takes the lock `name` of the cache, waiting for another xtask if need be.
///
/// # Errors
///
/// Those of the file system.
pub fn lock(dir: &Path, name: &str) -> Result<File> {
    std::fs::create_dir_all(dir)?;
    let path = dir.join(format!("{name}.lock"));
    let file = File::options().create(true).append(true).open(&path)?;
    if file.try_lock().is_err() {
        eprintln!("  waiting for another xtask that works on the same ({name})");
        file.lock()
            .with_context(|| format!("locking {}", path.display()))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_depends_on_every_part_and_on_where_parts_end() {
        let base = key(&["a", "bc"]);
        assert_eq!(base, key(&["a", "bc"]));
        assert_ne!(base, key(&["ab", "c"]));
        assert_ne!(base, key(&["a", "bd"]));
        assert_ne!(base, key(&["a", "bc", ""]));
        assert_eq!(base.len(), 16);
    }

    #[test]
    fn a_stage_is_whole_or_not_there() {
        let dir = std::env::temp_dir().join(format!("kfabric-stage-{}", std::process::id()));
        let ctx = Context {
            repo: dir.clone(),
            cache: dir.clone(),
            target: dir.clone(),
            seed_bug: None,
        };
        let failed = make(&ctx, "s", "k", |dir| {
            std::fs::write(dir.join("half"), "")?;
            anyhow::bail!("killed")
        });
        assert!(failed.is_err());
        assert_eq!(present(&ctx, "s", "k"), None);
        let made = make(&ctx, "s", "k", |dir| {
            assert!(dir.join("half").exists(), "what was left is found again");
            Ok(())
        });
        assert_eq!(made.ok(), present(&ctx, "s", "k"));
        let again = make(&ctx, "s", "k", |_| anyhow::bail!("must not build twice"));
        assert!(again.is_ok());
        let _ = std::fs::remove_dir_all(dir);
    }
}
