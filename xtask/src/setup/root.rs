// SPDX-License-Identifier: MIT OR Apache-2.0

//! The build root: the distribution's own compilers, and what guests run.
//!
//! One folder serves for both: it is what the kernel and the modules are built
//! in, what QEMU is started from, and what guests mount as their (read-only)
//! root.

use super::archive::{transport_options, Mirror};
use super::stage;
use crate::chroot::{is_root, run_logged, tied};
use crate::context::Context;
use crate::progress::Step;
use crate::versions::{KERNEL_SUITE, SUITE};
use anyhow::Result;
use std::path::{Path, PathBuf};

/// To be raised when the recipe below changes in what it makes.
const RECIPE: &str = "1";

/// What builds kernels and modules.
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

/// What starts guests, and what they run.
const GUEST: &[&str] = &[
    "busybox-static",
    "e2fsprogs",
    "ethtool",
    "fio",
    "gdb-minimal",
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

/// The key of what builds: what was made with it need not be made anew for another tool of guests.
pub fn tools_key() -> String {
    stage::key(&["tools", RECIPE, SUITE, KERNEL_SUITE, &BUILD.join(",")])
}

/// The key of the build root.
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

/// The build root, if it is there.
pub fn present(ctx: &Context) -> Option<PathBuf> {
    stage::present(ctx, "root", &key())
}

/// Makes the build root; the caller holds the lock.
///
/// # Errors
///
/// When the distribution's packages cannot be fetched or installed.
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
    // Neither documentation nor translations are read in a guest.
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
