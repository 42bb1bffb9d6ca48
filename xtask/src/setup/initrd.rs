// SPDX-License-Identifier: MIT OR Apache-2.0

//! The guests' initramfs: busybox, a handful of modules, one script.
//!
//! The script only mounts the build root and starts `guest-init`, or systemd on a machine that has
//! its own disk.

use super::{kernel, root, stage};
use crate::context::Context;
use crate::versions::Choice;
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The script that runs first in a guest.
const INIT: &str = include_str!("init.sh");

/// The required modules, each after those it depends on.
const MODULES: [&str; 7] = [
    "9p",
    "9pnet_virtio",
    "virtio_net",
    "overlay",
    "virtio_rng",
    "virtio_blk",
    "ext4",
];

/// The line that a probed guest prints when it runs.
pub const PROBE_LINE: &str = "kfabric-probe: up";

fn key(choice: &Choice) -> String {
    stage::key(&[
        "initrd",
        INIT,
        &MODULES.join(","),
        &root::key(),
        &kernel::package_key(choice),
    ])
}

/// Returns the initramfs, if it exists.
pub fn present(ctx: &Context, choice: &Choice) -> Option<PathBuf> {
    let dir = stage::present(ctx, &format!("initrd-{}", choice.release), &key(choice))?;
    Some(dir.join("initrd"))
}

/// Makes the initramfs; the caller holds the lock.
///
/// # Errors
///
/// If the kernel's packages lack a module.
pub fn make(ctx: &Context, choice: &Choice, root: &Path, packages: &Path) -> Result<PathBuf> {
    let name = format!("initrd-{}", choice.release);
    let dir = stage::make(ctx, &name, &key(choice), |dir| {
        let base = packages.join("lib/modules").join(&choice.release);
        let list = std::fs::read_to_string(base.join("modules.dep"))?;
        let mut cpio = Cpio::default();
        for folder in ["bin", "dev", "m", "proc", "sys"] {
            cpio.add(folder, 0o040_755, &[]);
        }
        let busybox = root.join("usr/bin/busybox");
        cpio.add(
            "bin/busybox",
            0o100_755,
            &std::fs::read(&busybox).context("busybox")?,
        );
        let mut order = String::new();
        for path in load_order(&list, &MODULES) {
            let file = path.rsplit('/').next().unwrap_or(&path).to_owned();
            cpio.add(
                &format!("m/{file}"),
                0o100_644,
                &std::fs::read(base.join(&path))?,
            );
            order += &file;
            order.push('\n');
        }
        cpio.add("m/order", 0o100_644, order.as_bytes());
        cpio.add("init", 0o100_755, INIT.as_bytes());
        std::fs::write(dir.join("initrd"), cpio.finish())?;
        Ok(())
    })?;
    Ok(dir.join("initrd"))
}

/// Returns the files to load for `wanted`, dependencies first, as listed in `modules.dep`.
///
/// A module that is not listed is skipped: it is built in, or it is missing and the first boot fails.
fn load_order(modules_dep: &str, wanted: &[&str]) -> Vec<String> {
    let stem = |path: &str| {
        let file = path.rsplit('/').next().unwrap_or(path);
        file.strip_suffix(".ko").unwrap_or(file).replace('-', "_")
    };
    let table: BTreeMap<String, (&str, Vec<&str>)> = modules_dep
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(path, deps)| (stem(path), (path, deps.split_whitespace().collect())))
        .collect();
    let mut order: Vec<String> = Vec::new();
    for name in wanted {
        let Some((path, deps)) = table.get(*name) else {
            continue;
        };
        // modules.dep lists a module's dependencies in the reverse of the load order.
        for path in deps.iter().rev().chain([path]) {
            if !order.iter().any(|there| there == path) {
                order.push((*path).to_owned());
            }
        }
    }
    order
}

/// Writes an archive in the format of an initramfs ("newc").
#[derive(Default)]
struct Cpio {
    bytes: Vec<u8>,
    files: u32,
}

impl Cpio {
    fn add(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.files += 1;
        let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let name_size = name.len() as u32 + 1;
        let links = if mode & 0o040_000 != 0 { 2 } else { 1 };
        let fields = [
            self.files, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_loaded_first() {
        let dep = "fs/9p/9p.ko: net/9p/9pnet.ko fs/netfs/netfs.ko\nnet/9p/9pnet.ko:\nfs/netfs/netfs.ko:\nnet/9p/9pnet_virtio.ko: net/9p/9pnet.ko\n";
        let order = load_order(dep, &["9p", "9pnet_virtio", "virtio_net"]);
        assert_eq!(
            order,
            [
                "fs/netfs/netfs.ko",
                "net/9p/9pnet.ko",
                "fs/9p/9p.ko",
                "net/9p/9pnet_virtio.ko"
            ]
        );
        assert!(load_order(dep, &["built_in"]).is_empty());
    }

    #[test]
    fn an_archive_has_aligned_entries_and_a_trailer() {
        let mut cpio = Cpio::default();
        cpio.add("a", 0o100_644, b"xyz");
        let bytes = cpio.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[110..112], b"a\0");
        assert_eq!(&bytes[112..115], b"xyz");
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }
}
