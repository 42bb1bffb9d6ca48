// SPDX-License-Identifier: MIT OR Apache-2.0

//! The build root: the distribution's own compilers, and the programs of guests.
//!
//! One folder serves three purposes: the kernel and the modules are built in it, QEMU is started
//! from it, and guests mount it as their (read-only) root.

use super::archive::{transport_options, Mirror};
use super::stage;
use crate::chroot::{is_root, run_logged, tied};
use crate::context::Context;
use crate::progress::Step;
use crate::versions::{KERNEL_SUITE, SUITE};
use anyhow::Result;
use std::path::{Path, PathBuf};

/// To be raised when a change of the recipe below changes its result.
const RECIPE: &str = "1";

/// Packages that build kernels and modules.
const BUILD: &[&str] = &[
    "bc",
    "bindgen",
    "bison",
    "clang-19",
    "cpio",
    "dwarves",
    "flex",
    "gcc",
    "gcc-14",
    "git",
    "kmod",
    "libc6-dev",
    "libclang-19-dev",
    "libelf-dev",
    "libssl-dev",
    "lld-19",
    "llvm-19",
    "make",
    "openssl",
    "perl",
    "python3-minimal",
    "rust-clippy",
    "rust-src",
    "rustc",
    "rustfmt",
    "xz-utils",
];

/// Programs that start guests, programs that guests run, and the tool that draws for the documents.
const GUEST: &[&str] = &[
    "busybox-static",
    "e2fsprogs",
    "ethtool",
    "fio",
    "gdb-minimal",
    "graphviz",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "iputils-ping",
    "libfabric-bin",
    "libfabric-dev",
    "libibverbs-dev",
    "librdmacm-dev",
    "nvme-cli",
    "perftest",
    "procps",
    "qemu-system-x86",
    "rdma-core",
    "rdmacm-utils",
    "strace",
    "xfsprogs",
];

/// Returns the key of the compilers. Products of the compilers stay valid if only the tools of
/// guests change.
pub fn tools_key() -> String {
    stage::key(&["tools", RECIPE, SUITE, KERNEL_SUITE, &BUILD.join(",")])
}

/// Returns the key of the build root.
pub fn key() -> String {
    stage::key(&[
        "root",
        RECIPE,
        SUITE,
        KERNEL_SUITE,
        &BUILD.join(","),
        &GUEST.join(","),
    ])
}

/// Returns the build root, if it exists.
pub fn present(ctx: &Context) -> Option<PathBuf> {
    stage::present(ctx, "root", &key())
}

/// Makes the build root; the caller holds the lock.
///
/// # Errors
///
/// If the distribution's packages cannot be fetched or installed.
pub fn make(ctx: &Context, mirror: &Mirror) -> Result<PathBuf> {
    stage::make(ctx, "root", &key(), |dir| {
        let step = Step::new(ctx, format!("build root ({SUITE})"));
        stage::clear(dir)?;
        bootstrap(ctx, mirror, dir)?;
        step.done();
        Ok(())
    })
}

fn bootstrap(ctx: &Context, mirror: &Mirror, dir: &Path) -> Result<()> {
    let mut cmd = tied("mmdebstrap");
    cmd.arg("--variant=apt");
    cmd.arg(if is_root() {
        "--mode=root"
    } else {
        "--mode=unshare"
    });
    cmd.arg(format!("--include={}", [BUILD, GUEST].concat().join(",")));
    if let Some(keyring) = &mirror.keyring {
        cmd.arg(format!("--keyring={keyring}"));
    }
    for option in transport_options() {
        cmd.arg(format!("--aptopt={option}"));
    }
    // A guest needs neither documentation nor translations.
    for path in [
        "/usr/share/doc/*",
        "/usr/share/man/*",
        "/usr/share/locale/*",
        "/usr/share/info/*",
    ] {
        cmd.arg(format!("--dpkgopt=path-exclude={path}"));
    }
    cmd.arg("--aptopt=Acquire::Retries \"3\"");
    cmd.arg(SUITE).arg(dir);
    cmd.args([mirror.source_line(SUITE), mirror.source_line(KERNEL_SUITE)]);
    run_logged(cmd, &ctx.log_dir().join("build-root.log"))
}
