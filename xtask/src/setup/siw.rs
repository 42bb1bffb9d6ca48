// SPDX-License-Identifier: MIT OR Apache-2.0

//! siw, the kernel's software iWARP, as a module. The distribution does not build it, and neither
//! does the configuration of the debug kernel. Its source is in the kernel's source package.

use super::{debug, stage, Rig};
use crate::chroot::{command, run_logged, Bind};
use crate::context::Context;
use crate::progress::Step;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};

/// The folder of the source in a kernel's tree.
const SOURCE: &str = "drivers/infiniband/sw/siw";

/// Included before each file of the source.
const HEADER: &str = include_str!("siw.h");

/// Builds the module in the current folder. The arguments are the kernel's tree and arguments of
/// make.
const BUILD: &str = r#"
tree=$1; shift
make -s -C "$tree" M="$PWD" CONFIG_RDMA_SIW=m KCFLAGS="-include $PWD/kfabric-siw.h" "$@" modules
"#;

/// Returns the module for the rig's kernel, which is built if necessary.
///
/// # Errors
///
/// If the module does not build.
pub fn ensure(ctx: &Context, rig: &Rig) -> Result<PathBuf> {
    let name = format!("siw-{}", rig.choice.release);
    // The name of the tree's folder has the key of its content.
    let tree = rig.tree.file_name().unwrap_or_default().to_string_lossy();
    let key = stage::key(&[&tree, HEADER, BUILD]);
    if let Some(there) = stage::present(ctx, &name, &key) {
        return Ok(there.join("siw.ko"));
    }
    let _lock = stage::lock(&ctx.cache, "setup")?;
    let made = stage::make(ctx, &name, &key, |dir| {
        let step = Step::new(ctx, format!("build siw for {}", rig.choice.release));
        stage::clear(dir)?;
        copy_source(&rig.tree.join(SOURCE), dir)?;
        std::fs::write(dir.join("kfabric-siw.h"), HEADER)?;
        let mut argv = vec!["sh", "-ec", BUILD, "build-siw"];
        let kdir = rig.tree.display().to_string();
        argv.push(&kdir);
        if rig.is_debug() {
            argv.push(debug::LLVM);
        }
        let binds = [Bind::same(&rig.tree), Bind::same(dir)];
        let log = ctx.log_dir().join(format!("{name}.log"));
        run_logged(command(&rig.root, &binds, dir, &argv), &log)?;
        step.done();
        Ok(())
    })?;
    Ok(made.join("siw.ko"))
}

fn copy_source(from: &Path, to: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
