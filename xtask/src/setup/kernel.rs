// SPDX-License-Identifier: MIT OR Apache-2.0

//! The distribution's kernel, unmodified, and the tree to build modules with.
//!
//! There are two stages: the content of the packages (image, modules, configuration), and the
//! configured source tree, of which only the `rust/` metadata is built.

use super::stage;
use crate::chroot::{command, run_logged, Bind};
use crate::context::Context;
use crate::progress::Step;
use crate::versions::Choice;
use anyhow::{bail, Context as _, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// To be raised when a change of the recipes below changes their result.
const RECIPE: &str = "1";

/// Returns the key of the packages' content.
pub fn package_key(choice: &Choice) -> String {
    stage::key(&[
        "packages",
        RECIPE,
        &choice.release,
        &choice.version,
        &choice.image,
    ])
}

/// Returns the key of the configured tree.
pub fn tree_key(choice: &Choice) -> String {
    stage::key(&[
        "tree",
        RECIPE,
        &super::root::tools_key(),
        &package_key(choice),
    ])
}

/// Returns the packages' content, if it exists.
pub fn packages(ctx: &Context, choice: &Choice) -> Option<PathBuf> {
    stage::present(
        ctx,
        &format!("linux-{}", choice.release),
        &package_key(choice),
    )
}

/// Returns the configured tree, if it exists.
pub fn tree(ctx: &Context, choice: &Choice) -> Option<PathBuf> {
    stage::present(ctx, &format!("tree-{}", choice.release), &tree_key(choice))
}

/// Unpacks the packages in `debs`: `vmlinuz`, `config`, `Module.symvers`, `linux-source.tar.xz` and
/// `lib/modules/RELEASE` with its dependency lists.
///
/// # Errors
///
/// If a package lacks an expected file.
pub fn make_packages(
    ctx: &Context,
    choice: &Choice,
    root: &Path,
    debs: impl FnOnce() -> Result<PathBuf>,
) -> Result<PathBuf> {
    let name = format!("linux-{}", choice.release);
    stage::make(ctx, &name, &package_key(choice), |dir| {
        let debs = debs()?;
        let step = Step::new(ctx, format!("unpack kernel {}", choice.release));
        stage::clear(dir)?;
        let all = dir.join("unpacked");
        for entry in std::fs::read_dir(&debs)? {
            let deb = entry?.path();
            if deb.extension().is_some_and(|ext| ext == "deb") {
                let mut cmd = Command::new("dpkg-deb");
                cmd.arg("--extract").arg(&deb).arg(&all);
                run_logged(cmd, &ctx.log_dir().join("unpack.log"))?;
            }
        }
        let release = &choice.release;
        let headers = all.join(format!("usr/src/linux-headers-{release}"));
        let modules = dir.join("lib/modules");
        std::fs::create_dir_all(&modules)?;
        for (from, to) in [
            (headers.join(".config"), dir.join("config")),
            (headers.join("Module.symvers"), dir.join("Module.symvers")),
            (
                all.join(format!("usr/src/linux-source-{}.tar.xz", choice.series)),
                dir.join("linux-source.tar.xz"),
            ),
            (
                all.join(format!("usr/lib/modules/{release}")),
                modules.join(release),
            ),
        ] {
            std::fs::rename(&from, &to)
                .with_context(|| format!("the kernel's packages lack {}", from.display()))?;
        }
        let image = ["vmlinuz", "vmlinuz.unsigned"]
            .iter()
            .map(|name| modules.join(release).join(name))
            .find(|path| path.exists())
            .context("the kernel's packages lack the image")?;
        std::fs::rename(image, dir.join("vmlinuz"))?;
        std::fs::remove_dir_all(&all)?;
        // Uncompressed modules load faster, and the initramfs needs them. The dependency lists are
        // usually made by the package's installation script, which does not run here.
        let script =
            "find lib/modules -name '*.ko.xz' -print0 | xargs -0 -r -n 64 -P \"$(nproc)\" unxz\n\
                      depmod --basedir \"$PWD\" \"$1\"\n";
        let at = Path::new("/mnt");
        let bind = Bind {
            from: dir.to_owned(),
            at: at.to_owned(),
        };
        let cmd = command(root, &[bind], at, &["sh", "-ec", script, "depmod", release]);
        run_logged(cmd, &ctx.log_dir().join("depmod.log"))?;
        std::fs::remove_dir_all(debs)?;
        step.done();
        Ok(())
    })
}

/// Makes the configured tree: sources, the distribution's configuration, and `make
/// modules_prepare`.
///
/// # Errors
///
/// If the tree does not build, or does not match the distribution's kernel.
pub fn make_tree(ctx: &Context, choice: &Choice, root: &Path, packages: &Path) -> Result<PathBuf> {
    let name = format!("tree-{}", choice.release);
    let key = tree_key(choice);
    let place = stage::place(ctx, &name, &key);
    stage::make(ctx, &name, &key, |dir| {
        let source = Source {
            dir,
            place: &place,
            root,
            packages,
        };
        source.unpack(ctx, &choice.release, || {
            std::fs::copy(packages.join("config"), dir.join(".config"))?;
            std::fs::copy(packages.join("Module.symvers"), dir.join("Module.symvers"))?;
            Ok(std::fs::write(
                dir.join("localversion"),
                choice.local_version(),
            )?)
        })?;
        let step = Step::new(ctx, format!("rust/ metadata of {}", choice.release));
        let script = "make olddefconfig && make -j\"$(nproc)\" modules_prepare";
        let cmd = source.command(&["sh", "-ec", script]);
        run_logged(
            cmd,
            &ctx.log_dir()
                .join(format!("prepare-{}.log", choice.release)),
        )?;
        verify(dir, packages, &choice.release)?;
        step.done();
        Ok(())
    })
}

/// A kernel's source tree, and the environment of commands in it.
pub(super) struct Source<'a> {
    /// Folder in which the tree is made.
    pub dir: &'a Path,
    /// Final path of the tree, under which commands see it, because builds record this path.
    pub place: &'a Path,
    /// Root of the commands.
    pub root: &'a Path,
    /// The distribution's kernel, mounted at `/mnt` for commands.
    pub packages: &'a Path,
}

impl Source<'_> {
    /// Returns a command that runs in the tree.
    pub(super) fn command(&self, argv: &[&str]) -> Command {
        let binds = [
            Bind {
                from: self.dir.to_owned(),
                at: self.place.to_owned(),
            },
            Bind {
                from: self.packages.to_owned(),
                at: "/mnt".into(),
            },
        ];
        command(self.root, &binds, self.place, argv)
    }

    /// Unpacks the distribution's source and finishes the tree, unless that was done before.
    ///
    /// # Errors
    ///
    /// If the source does not unpack, or the tree cannot be finished.
    pub(super) fn unpack(
        &self,
        ctx: &Context,
        release: &str,
        finish: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let unpacked = self.dir.join(".kfabric-unpacked");
        if unpacked.exists() {
            return Ok(());
        }
        let step = Step::new(ctx, format!("unpack the source of {release}"));
        stage::clear(self.dir)?;
        let cmd = self.command(&[
            "tar",
            "-xJf",
            "/mnt/linux-source.tar.xz",
            "--strip-components=1",
        ]);
        run_logged(cmd, &ctx.log_dir().join("unpack-source.log"))?;
        finish()?;
        std::fs::write(&unpacked, "")?;
        step.done();
        Ok(())
    }
}

/// Checks that the tree matches the distribution's build: release, compiler, and every exported
/// Rust symbol.
fn verify(tree: &Path, packages: &Path, release: &str) -> Result<()> {
    let named = std::fs::read_to_string(tree.join("include/config/kernel.release"))?;
    if named.trim() != release {
        bail!(
            "the tree calls itself {}, the kernel {release}",
            named.trim()
        );
    }
    // A missing tool or another compiler changes the configuration silently, and with it the layout
    // of the kernel's structures.
    let config = |path: &Path| -> Result<String> {
        std::fs::read_to_string(path).with_context(|| path.display().to_string())
    };
    let (ours, theirs) = (
        config(&tree.join(".config"))?,
        config(&packages.join("config"))?,
    );
    let changed = config_changes(&theirs, &ours);
    if !changed.is_empty() {
        bail!(
            "the tree is not configured as the kernel was: {}",
            changed.join(", ")
        );
    }
    let symvers = std::fs::read_to_string(packages.join("Module.symvers"))?;
    let exported: BTreeSet<&str> = symvers
        .lines()
        .filter_map(|line| line.split('\t').nth(1))
        .collect();
    let header = std::fs::read_to_string(tree.join("rust/exports_kernel_generated.h"))?;
    let strangers: Vec<&str> = rust_exports(&header)
        .filter(|symbol| !exported.contains(symbol))
        .collect();
    if !strangers.is_empty() {
        bail!(
            "{} Rust symbols of the tree are unknown to the kernel, the first: {}",
            strangers.len(),
            strangers[0]
        );
    }
    Ok(())
}

/// Returns the options that differ between two configurations, except those that describe the
/// compiler.
fn config_changes(theirs: &str, ours: &str) -> Vec<String> {
    fn options(text: &str) -> BTreeSet<&str> {
        text.lines()
            .filter(|line| {
                line.starts_with("CONFIG_") && !line.starts_with("CONFIG_CC_VERSION_TEXT=")
            })
            .collect()
    }
    let (theirs, ours) = (options(theirs), options(ours));
    let gone = theirs.difference(&ours).map(|line| format!("-{line}"));
    let new = ours.difference(&theirs).map(|line| format!("+{line}"));
    gone.chain(new).collect()
}

/// Returns the symbols in a generated header of `EXPORT_SYMBOL_RUST_GPL(symbol);`.
fn rust_exports(header: &str) -> impl Iterator<Item = &str> {
    header.lines().filter_map(|line| {
        line.split_once('(')?
            .1
            .split_once(')')
            .map(|(symbol, _)| symbol)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_option_is_found() {
        let theirs = "# x\nCONFIG_CC_VERSION_TEXT=\"a\"\nCONFIG_RUST=y\nCONFIG_DEBUG_INFO_BTF=y\n";
        let ours = "CONFIG_CC_VERSION_TEXT=\"b\"\nCONFIG_RUST=y\nCONFIG_PAHOLE_VERSION=0\n";
        assert_eq!(
            config_changes(theirs, ours),
            ["-CONFIG_DEBUG_INFO_BTF=y", "+CONFIG_PAHOLE_VERSION=0"]
        );
        assert!(config_changes(theirs, theirs).is_empty());
    }

    #[test]
    fn exports_are_read_from_the_generated_header() {
        let header = "EXPORT_SYMBOL_RUST_GPL(_RNvA);\nEXPORT_SYMBOL_RUST_GPL(_RNvB);\n";
        assert_eq!(rust_exports(header).collect::<Vec<_>>(), ["_RNvA", "_RNvB"]);
    }
}
