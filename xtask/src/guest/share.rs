// SPDX-License-Identifier: MIT OR Apache-2.0

//! Folder of one run: programs, modules and orders, mounted at `/kfi` in the guests.

use super::protocol::Config;
use crate::context::Context;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Folders of a run. Sockets have a separate folder, because their paths must be short.
pub struct RunDir {
    /// Logs, and the shared folder.
    pub dir: PathBuf,
    /// The shared folder, mounted at `/kfi` in the guests.
    pub share: PathBuf,
    /// Folder of the sockets.
    pub sockets: PathBuf,
}

impl RunDir {
    /// Makes the folders of a new run and removes those of ended runs.
    ///
    /// # Errors
    ///
    /// If a folder cannot be created.
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

    /// Copies `files` to the folder `sub` of the shared folder and returns their names.
    ///
    /// # Errors
    ///
    /// If a file cannot be copied.
    pub fn add(&self, sub: &str, files: &[PathBuf]) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for file in files {
            let name = file.file_name().unwrap_or_default();
            let to = self.share.join(sub).join(name);
            // A hard link suffices, because a build replaces files.
            if std::fs::hard_link(file, &to).is_err() {
                std::fs::copy(file, &to).with_context(|| format!("copying {}", file.display()))?;
            }
            names.push(name.to_string_lossy().into_owned());
        }
        Ok(names)
    }

    /// Writes the configuration of a guest.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn configure(&self, guest: u8, config: &Config) -> Result<()> {
        let path = self.share.join(format!("guest-{guest}.json"));
        Ok(std::fs::write(path, serde_json::to_string_pretty(config)?)?)
    }

    /// Returns the file of a guest's kernel log.
    pub fn console(&self, guest: u8) -> PathBuf {
        self.dir.join(format!("console-{guest}.log"))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // The next run removes folders that remain.
        let _ = std::fs::remove_dir_all(&self.sockets);
        let _ = std::fs::remove_dir_all(&self.share);
    }
}

/// Removes folders `PREFIX PID-N` in `dir` whose process has ended.
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
