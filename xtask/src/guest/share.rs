// SPDX-License-Identifier: MIT OR Apache-2.0

//! The folder of one run: programs, modules and orders, `/kfi` in the guests.

use super::protocol::Config;
use crate::context::Context;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A run's folders; sockets have one of their own, because their paths must
/// be short.
pub struct RunDir {
    /// Logs, and the shared folder.
    pub dir: PathBuf,
    /// `/kfi` in the guests.
    pub share: PathBuf,
    /// The sockets.
    pub sockets: PathBuf,
}

impl RunDir {
    /// Makes the folders of a new run; removes those of runs that are over.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn new(ctx: &Context) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let (runs, temp) = (ctx.target.join("guest"), std::env::temp_dir());
        remove_old(&runs, "run-");
        remove_old(&temp, "kfabric-guest-");
        let dir = runs.join(format!("run-{name}"));
        let share = dir.join("share");
        for sub in ["bin", "ko"] {
            std::fs::create_dir_all(share.join(sub))?;
        }
        let sockets = temp.join(format!("kfabric-guest-{name}"));
        std::fs::create_dir_all(&sockets)?;
        Ok(Self {
            dir,
            share,
            sockets,
        })
    }

    /// Puts `files` into the folder `sub` of what the guests see.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn add(&self, sub: &str, files: &[PathBuf]) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for file in files {
            let name = file.file_name().unwrap_or_default();
            let to = self.share.join(sub).join(name);
            // A link suffices: whoever builds anew replaces the file.
            if std::fs::hard_link(file, &to).is_err() {
                std::fs::copy(file, &to).with_context(|| format!("copying {}", file.display()))?;
            }
            names.push(name.to_string_lossy().into_owned());
        }
        Ok(names)
    }

    /// Writes down what a guest is to do.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn configure(&self, guest: u8, config: &Config) -> Result<()> {
        let path = self.share.join(format!("guest-{guest}.json"));
        Ok(std::fs::write(path, serde_json::to_string_pretty(config)?)?)
    }

    /// Where a guest's kernel log is kept.
    pub fn console(&self, guest: u8) -> PathBuf {
        self.dir.join(format!("console-{guest}.log"))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // What stays is cleared away by the next run.
        let _ = std::fs::remove_dir_all(&self.sockets);
        let _ = std::fs::remove_dir_all(&self.share);
    }
}

/// Removes folders `PREFIX PID-N` in `dir` whose process is gone.
fn remove_old(dir: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.filter_map(|entry| entry.ok()) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(prefix)
            .and_then(|rest| rest.split_once('-'));
        if let Some((pid, _)) = owner {
            if pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists() {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}
