// SPDX-License-Identifier: MIT OR Apache-2.0

//! The debug kernel: the distribution's source with every checker enabled.
//!
//! KASAN supports Rust only if clang compiles the C part, so this kernel is built from scratch. Its
//! configuration is in `debug.config`; `guest/klog.rs` detects the complaints of its checkers.

use super::kernel::Source;
use super::{initrd, stage, Rig};
use crate::chroot::run_logged;
use crate::context::Context;
use crate::progress::Step;
use crate::versions::Choice;
use anyhow::{bail, Result};
use std::path::Path;

/// The enabled options; all others are disabled.
const CONFIG: &str = include_str!("debug.config");
/// Suffix of the version in `uname -r`.
const LOCAL_VERSION: &str = "-kfabric-debug";
/// The toolchain, as an argument of make.
pub const LLVM: &str = "LLVM=-19";
/// To be raised when a change of the recipe below changes its result.
const RECIPE: &str = "1";

/// Makes `.config`.
const CONFIGURE: &str = r#"
make "$2" -s KCONFIG_ALLCONFIG=kfabric.config allnoconfig >/dev/null
make "$2" -s olddefconfig
"#;
/// Builds and installs the kernel, and keeps the files needed to build modules.
const BUILD: &str = r#"
release=$1
make "$2" -s -j"$(nproc)" bzImage modules
make "$2" -s INSTALL_MOD_PATH="$PWD/kfabric-installed" modules_install
test -d "kfabric-installed/lib/modules/$release"
rm -f "kfabric-installed/lib/modules/$release/build"
cp arch/x86/boot/bzImage kfabric-installed/vmlinuz
find . \( -name '*.o' -o -name '*.a' -o -name '.*.cmd' \) \
	-not -path './scripts/*' -not -path './tools/*' -not -path './rust/*' -delete
rm -f vmlinux vmlinux.unstripped .tmp_vmlinux*
"#;

/// Returns the choice for the debug kernel made of the source of `base`.
fn choice(base: &Choice) -> Choice {
    let upstream = base
        .release
        .strip_suffix(base.local_version())
        .unwrap_or(&base.release);
    Choice {
        release: format!("{upstream}{LOCAL_VERSION}"),
        version: format!(
            "{}/{}",
            base.version,
            stage::key(&[RECIPE, &options(CONFIG), CONFIGURE, BUILD])
        ),
        image: String::new(),
        ..base.clone()
    }
}

/// Returns whether a choice is the debug kernel.
pub fn is(choice: &Choice) -> bool {
    choice.release.ends_with(LOCAL_VERSION)
}

/// Returns whether the debug kernel is built. Its initramfs may be missing, which takes seconds.
pub fn is_built(ctx: &Context, base: &Rig) -> bool {
    let choice = choice(&base.choice);
    stage::present(ctx, &name(&choice), &key(base, &choice)).is_some()
}

/// Returns the rig with the debug kernel, if it exists.
pub fn present(ctx: &Context, base: &Rig) -> Option<Rig> {
    let choice = choice(&base.choice);
    let tree = stage::present(ctx, &name(&choice), &key(base, &choice))?;
    let initrd = initrd::present(ctx, &choice)?;
    Some(rig(base, choice, &tree, &initrd))
}

/// Makes the rig with the debug kernel; the caller holds the lock.
///
/// # Errors
///
/// If the kernel does not build or lacks a requested option.
pub fn make(ctx: &Context, base: &Rig) -> Result<Rig> {
    let choice = choice(&base.choice);
    let (name, key) = (name(&choice), key(base, &choice));
    let place = stage::place(ctx, &name, &key);
    let tree = stage::make(ctx, &name, &key, |dir| {
        let source = Source {
            dir,
            place: &place,
            root: &base.root,
            packages: &base.packages,
        };
        source.unpack(ctx, &choice.release, || {
            std::fs::write(dir.join("localversion"), LOCAL_VERSION)?;
            Ok(std::fs::write(dir.join("kfabric.config"), CONFIG)?)
        })?;
        let step = Step::new(ctx, format!("build kernel {}", choice.release));
        let log = ctx.log_dir().join(format!("build-{}.log", choice.release));
        let script = |text| source.command(&["sh", "-ec", text, "build", &choice.release, LLVM]);
        run_logged(script(CONFIGURE), &log)?;
        // Before the build, which takes half an hour.
        verify(dir)?;
        run_logged(script(BUILD), &log)?;
        step.done();
        Ok(())
    })?;
    let initrd = initrd::make(ctx, &choice, &base.root, &installed(&tree))?;
    Ok(rig(base, choice, &tree, &initrd))
}

/// Returns the lines of a configuration that affect the kernel's build.
fn options(config: &str) -> String {
    let lines = config.lines().filter(|line| line.starts_with("CONFIG_"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn name(choice: &Choice) -> String {
    format!("tree-{}", choice.release)
}

fn key(base: &Rig, choice: &Choice) -> String {
    stage::key(&[
        &super::root::tools_key(),
        &base.choice.version,
        &choice.version,
    ])
}

/// Returns the folder of image and modules, with the layout of the distribution's packages.
fn installed(tree: &Path) -> std::path::PathBuf {
    tree.join("kfabric-installed")
}

fn rig(base: &Rig, choice: Choice, tree: &Path, initrd: &Path) -> Rig {
    Rig {
        root: base.root.clone(),
        packages: installed(tree),
        tree: tree.to_owned(),
        initrd: initrd.to_owned(),
        choice,
    }
}

/// Checks that no requested option is missing. An option whose dependency is disabled is dropped
/// silently.
fn verify(tree: &Path) -> Result<()> {
    let config = std::fs::read_to_string(tree.join(".config"))?;
    let lost = lost(CONFIG, &config);
    if !lost.is_empty() {
        bail!("the kernel was not built with {}", lost.join(", "));
    }
    Ok(())
}

/// Returns the options of `wanted` that `config` lacks.
fn lost<'a>(wanted: &'a str, config: &str) -> Vec<&'a str> {
    wanted
        .lines()
        .filter(|line| line.starts_with("CONFIG_"))
        .filter(|line| match line.strip_suffix("=n") {
            Some(name) => config.lines().any(|set| {
                set.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with('='))
            }),
            None => !config.lines().any(|set| set == *line),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_got_lost_is_found() {
        let wanted = "# words\nCONFIG_A=y\nCONFIG_B=m\nCONFIG_C=n\nCONFIG_D=n\n";
        let config = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=y\nCONFIG_DD=y\n";
        assert_eq!(lost(wanted, config), ["CONFIG_B=m", "CONFIG_C=n"]);
    }

    #[test]
    fn the_debug_kernel_has_a_name_of_its_own() {
        let base = Choice {
            series: "7.2".into(),
            release: "7.2.12+deb13-amd64".into(),
            version: "7.2.12-1".into(),
            image: "linux-binary-7.2.12+deb13-amd64".into(),
            size: 1,
        };
        assert_eq!(choice(&base).release, "7.2.12-kfabric-debug");
        assert_ne!(choice(&base).version, base.version);
    }
}
