// SPDX-License-Identifier: MIT OR Apache-2.0

//! Layers over the build root: programs that a few tests need.
//!
//! A layer is a folder that guests can mount. It is no part of the build root, so that a change of
//! a layer makes no compiler, kernel or tree again.

mod fabtests;

use super::archive::{Archive, Mirror};
use super::{root, stage};
use crate::chroot::{overlaid, run_logged, tied};
use crate::context::Context;
use crate::progress::Step;
use crate::versions::SUITE;
use anyhow::{Context as _, Result};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// To be raised when a change of the recipes below changes their results.
const RECIPE: &str = "2";

/// Packages of the distribution in the layer `mpi`.
const PACKAGES: &str = "openmpi-bin libopenmpi-dev python3";

/// Installs [`PACKAGES`], which are the arguments.
const INSTALL: &str = r#"
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
apt-get update
apt-get install -y --no-install-recommends "$@"
rm /usr/sbin/policy-rc.d
"#;

/// The suite of the distribution with the oldest supported libfabric, and that libfabric's folder.
const OLD_LIBFABRIC: (&str, &str) = ("bookworm", "opt/libfabric-old");

/// The packages of the oldest libfabric, with the library that newer suites lack.
const OLD_PACKAGES: [&str; 3] = ["libfabric1", "libfabric-bin", "libpsm-infinipath1"];

/// Packages of Python's index in the layer `pypi`: requirement, and the folder of its content. The
/// wheel of MPICH has a libfabric of its own.
const WHEELS: [(&str, &str); 2] = [("mpich==5.0.2", "mpich"), ("mpi4py==4.1.2", "mpi4py")];

/// The package whose sources have the test suite of mpi4py, and the suite's folder.
const SOURCES: (&str, &str) = ("mpi4py==4.1.2", "mpi4py-tests");

/// The version of Python in the build root's distribution, as the index writes it.
const PYTHON: &str = "3.13";

/// A layer, and the name under which a guest mounts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// The tag of the guest's file system.
    pub tag: &'static str,
    /// Content of the layer.
    pub path: PathBuf,
}

/// Returns the layers, and makes those that are absent.
///
/// A layer that cannot be made is left out, with a message: the tests that need it are skipped.
pub fn ensure(ctx: &Context, root: &Path) -> Vec<Layer> {
    type Make = fn(&Context, &Path) -> Result<PathBuf>;
    let all: [(&str, &str, Make); 3] = [
        ("mpi", "kfabric-mpi", debian),
        ("pypi", "kfabric-pypi", pypi),
        ("fabtests", "kfabric-fabtests", fabtests::layer),
    ];
    let mut layers = Vec::new();
    for (name, tag, make) in all {
        match make(ctx, root) {
            Ok(path) => layers.push(Layer { tag, path }),
            Err(error) => {
                eprintln!("  without the layer {name}, whose tests are skipped: {error:#}")
            }
        }
    }
    layers
}

/// Makes the layer `name` unless it exists.
fn make(
    ctx: &Context,
    name: &str,
    key: &str,
    build: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    if let Some(path) = stage::present(ctx, name, key) {
        return Ok(path);
    }
    let _lock = stage::lock(&ctx.cache, "setup")?;
    stage::make(ctx, name, key, |dir| {
        let step = Step::new(ctx, format!("layer {name}"));
        stage::clear(dir)?;
        build(dir)?;
        step.done();
        Ok(())
    })
}

/// Makes the layer of the distribution's packages: the changes of `/usr` and `/etc` by their
/// installation, and an old libfabric.
fn debian(ctx: &Context, root: &Path) -> Result<PathBuf> {
    let key = stage::key(&[
        RECIPE,
        &root::key(),
        INSTALL,
        PACKAGES,
        OLD_LIBFABRIC.0,
        &OLD_PACKAGES.join(" "),
    ]);
    make(ctx, "mpi", &key, |dir| {
        let scratch = dir.join("scratch");
        let mut argv = vec!["sh", "-ec", INSTALL, "layer"];
        argv.extend(PACKAGES.split(' '));
        let cmd = overlaid(root, &scratch, &[], Path::new("/"), &argv);
        run_logged(cmd, &ctx.log_dir().join("layer-mpi.log"))?;
        for part in ["usr", "etc"] {
            std::fs::rename(scratch.join("upper").join(part), dir.join(part))
                .with_context(|| format!("the layer's {part}"))?;
        }
        std::fs::remove_dir_all(&scratch)?;
        // That of the machine that makes the layer.
        let _ = std::fs::remove_file(dir.join("etc/resolv.conf"));
        let (suite, folder) = OLD_LIBFABRIC;
        std::fs::create_dir_all(dir.join(folder))?;
        let state = ctx.cache.join(format!("apt-{suite}"));
        let archive = Archive::of_suite(state, &Mirror::find()?, suite)?;
        for package in OLD_PACKAGES {
            archive.unpack(ctx, package, &dir.join(folder))?;
        }
        // The link that the package makes at its installation.
        let libraries = dir.join(folder).join("usr/lib/x86_64-linux-gnu");
        let link = libraries.join("libpsm_infinipath.so.1");
        let target = "../libpsm1/libpsm_infinipath.so.1.16";
        std::os::unix::fs::symlink(target, &link).with_context(|| link.display().to_string())
    })
}

/// Makes the layer of packages from Python's index, by the machine's own pip.
fn pypi(ctx: &Context, _root: &Path) -> Result<PathBuf> {
    let wheels: Vec<&str> = WHEELS.iter().map(|(wheel, _)| *wheel).collect();
    let key = stage::key(&[RECIPE, SUITE, PYTHON, &wheels.join(" "), SOURCES.0]);
    make(ctx, "pypi", &key, |dir| {
        let log = ctx.log_dir().join("layer-pypi.log");
        let fetched = dir.join("fetched");
        std::fs::create_dir(&fetched)?;
        for (wheel, folder) in WHEELS {
            download(&fetched, wheel, &log)?;
            unzip(&found(&fetched, ".whl")?, &dir.join(folder), &log)?;
        }
        let (sources, folder) = SOURCES;
        let mut pip = pip(&fetched);
        let name = sources.split('=').next().unwrap_or(sources);
        pip.arg(format!("--no-binary={name}")).arg(sources);
        run_logged(pip, &log)?;
        std::fs::create_dir(dir.join(folder))?;
        let mut tar = tied("tar");
        tar.args(["--strip-components=1", "-xzf"]);
        tar.arg(found(&fetched, ".tar.gz")?).arg("-C");
        tar.arg(dir.join(folder));
        run_logged(tar, &log)?;
        std::fs::remove_dir_all(&fetched)?;
        relocate_data(&dir.join("mpich"))
    })
}

/// Returns a command that downloads into `dir`, without dependencies.
fn pip(dir: &Path) -> std::process::Command {
    let mut cmd = tied("python3");
    cmd.args(["-m", "pip", "download", "--no-deps", "--retries", "1"]);
    cmd.arg("--dest").arg(dir);
    cmd
}

/// Downloads a wheel for the build root's Python.
fn download(dir: &Path, wheel: &str, log: &Path) -> Result<()> {
    let mut pip = pip(dir);
    pip.args(["--only-binary=:all:", "--implementation", "cp"]);
    pip.args(["--python-version", PYTHON]);
    for platform in ["manylinux_2_28", "manylinux_2_17", "manylinux_2_5"] {
        pip.args(["--platform", &format!("{platform}_x86_64")]);
    }
    pip.arg(wheel);
    run_logged(pip, log)
}

/// Returns the one file in `dir` whose name has this ending.
fn found(dir: &Path, ending: &str) -> Result<PathBuf> {
    std::fs::read_dir(dir)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().ends_with(ending))
        .with_context(|| format!("pip has fetched no {ending}"))
}

/// Unpacks a wheel and removes it.
fn unzip(wheel: &Path, to: &Path, log: &Path) -> Result<()> {
    let mut cmd = tied("python3");
    cmd.args(["-m", "zipfile", "-e"]).arg(wheel).arg(to);
    run_logged(cmd, log)?;
    std::fs::remove_file(wheel)?;
    Ok(())
}

/// Moves a wheel's programs and libraries to the top of its folder, and makes the programs
/// executable.
fn relocate_data(folder: &Path) -> Result<()> {
    let data = std::fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "data"))
        .context("a wheel without data")?
        .join("data");
    for part in ["bin", "include", "lib"] {
        std::fs::rename(data.join(part), folder.join(part))?;
    }
    for program in std::fs::read_dir(folder.join("bin"))? {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(program?.path(), mode)?;
    }
    Ok(())
}
