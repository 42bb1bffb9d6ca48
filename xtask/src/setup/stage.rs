// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stages of the cache: folders that are complete or absent.
//!
//! The name of a stage contains a key of everything it is built from. So a changed input makes a
//! new stage and leaves the others alone. A stage is built in `partial/` and renamed when complete.
//! The next run continues with the files that a killed run left in `partial/`.

use crate::context::Context;
use anyhow::{Context as _, Result};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Returns the key of a stage made from `parts`.
pub fn key(parts: &[&str]) -> String {
    // FNV-1a over the parts and their lengths. The hash is the same on all machines, and a
    // collision in a user's own cache helps no attacker.
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

/// Returns the path of the stage `name` with `key`, whether or not it exists.
pub fn place(ctx: &Context, name: &str, key: &str) -> PathBuf {
    ctx.cache.join(format!("{name}-{key}"))
}

/// Returns the stage, if it exists.
pub fn present(ctx: &Context, name: &str, key: &str) -> Option<PathBuf> {
    let place = place(ctx, name, key);
    place.is_dir().then_some(place)
}

/// Makes the stage with `build` unless it exists; the caller holds the lock.
///
/// `build` receives the folder to fill, which may contain files of a killed run.
///
/// # Errors
///
/// Those of `build`, or if a folder cannot be created.
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
/// If the folder cannot be removed or created.
pub fn clear(dir: &Path) -> Result<()> {
    std::fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
    std::fs::create_dir_all(dir)?;
    Ok(())
}

/// Takes the lock `name` of the cache; may wait for another xtask.
///
/// # Errors
///
/// If the lock file cannot be opened.
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
