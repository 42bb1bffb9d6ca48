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
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// To be raised when a change of the recipes below changes their result.
const RECIPE: &str = "1";

/// Makes and checks the metadata in an unpacked source. The package `kfabric-dkms` has it, too.
const METADATA: &str = include_str!("../../../packaging/kernel-rust.sh");

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

/// Makes the configured tree: sources, the distribution's configuration, and the metadata.
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
        source.unpack(ctx, &choice.release, || Ok(()))?;
        let step = Step::new(ctx, format!("rust/ metadata of {}", choice.release));
        let cmd = source.command(&[
            "sh",
            "-ec",
            METADATA,
            "kernel-rust",
            &choice.release,
            "/mnt/config",
            "/mnt/Module.symvers",
        ]);
        run_logged(
            cmd,
            &ctx.log_dir()
                .join(format!("prepare-{}.log", choice.release)),
        )?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Runs [`METADATA`] for a kernel 7.2.12+x, with a `make` that ends with the commands `make`.
    /// Returns the script's complaint.
    fn complaint(name: &str, make: &str) -> Option<String> {
        let dir = std::env::temp_dir().join(format!("kfi-metadata-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("bin")).unwrap();
        let put = |name: &str, text: &str| fs::write(dir.join(name), text).unwrap();
        put(
            "config",
            "# x\nCONFIG_CC_VERSION_TEXT=\"a\"\nCONFIG_GCC_VERSION=1\nCONFIG_RUST=y\nCONFIG_BTF=y\n",
        );
        put(
            "symvers",
            "0x1\t_RNvA\tvmlinux\tEXPORT_SYMBOL_GPL\t\n0x2\tprintk\tvmlinux\tE\t\n",
        );
        let good = "#!/bin/sh\n[ \"$1\" = olddefconfig ] || exit 0\n\
                    mkdir -p include/config rust\n\
                    sed -i 's/VERSION_TEXT.*/VERSION_TEXT=b/; s/GCC_VERSION=1/GCC_VERSION=2/' .config\n\
                    echo \"7.2.12$(cat localversion)\" >include/config/kernel.release\n\
                    echo 'EXPORT_SYMBOL_RUST_GPL(_RNvA);' >rust/exports_kernel_generated.h\n";
        put("bin/make", &format!("{good}{make}\n"));
        fs::set_permissions(
            dir.join("bin/make"),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        let path = std::env::var("PATH").unwrap();
        let out = Command::new("sh")
            .args([
                "-ec",
                METADATA,
                "kernel-rust",
                "7.2.12+x",
                "config",
                "symvers",
            ])
            .env("PATH", format!("{}:{path}", dir.join("bin").display()))
            .current_dir(&dir)
            .output()
            .unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        (!out.status.success()).then_some(said)
    }

    #[test]
    fn metadata_of_a_tree_that_matches_is_accepted() {
        assert_eq!(complaint("good", ""), None);
    }

    #[test]
    fn metadata_of_another_release_configuration_or_compiler_is_refused() {
        let refused = |name: &str, make: &str, word: &str| {
            let said = complaint(name, make).unwrap();
            assert!(said.contains(word), "{said}");
        };
        refused(
            "release",
            "echo 7.2.13+x >include/config/kernel.release",
            "calls itself 7.2.13+x",
        );
        refused("less", "sed -i /BTF/d .config", "< CONFIG_BTF=y");
        refused("more", "echo CONFIG_SLIM=y >>.config", "> CONFIG_SLIM=y");
        refused(
            "symbol",
            "echo 'EXPORT_SYMBOL_RUST_GPL(_RNvB);' >>rust/exports_kernel_generated.h",
            "the first: _RNvB",
        );
        refused("build", "exit 1", "");
    }
}
