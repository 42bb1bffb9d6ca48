// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask build` builds the modules and the programs. `kmake` builds an external module
//! against the same kernel and our modules.

pub mod modules;
pub mod programs;
pub mod sync;

use crate::context::Context;
use crate::setup::{self, Which};
use anyhow::{bail, Context as _, Result};
use modules::{Built, Profile, Toolbox};
use std::path::PathBuf;

/// The arguments of `build`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Build against this configured, Rust-enabled kernel tree, with this machine's own tools.
    #[arg(long, value_name = "DIR")]
    pub kdir: Option<PathBuf>,
}

/// The arguments of `kmake`.
#[derive(Debug, clap::Args)]
pub struct KmakeArgs {
    /// The module's folder, with a Kbuild or a Makefile.
    pub dir: PathBuf,
    /// More arguments for make: targets, variables.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<String>,
}

/// Runs `build`.
///
/// # Errors
///
/// If a module or a program does not build.
pub fn run(ctx: &Context, args: &Args) -> Result<()> {
    let built = match &args.kdir {
        Some(dir) => modules::build(ctx, &Toolbox::host(ctx, dir)?, Profile::Stock)?,
        None => {
            let rig = setup::ensure(ctx, Which::Main)?;
            modules::build(ctx, &Toolbox::rig(&rig), Profile::Stock)?
        }
    };
    for module in &built.modules {
        println!("{}", module.display());
    }
    if args.kdir.is_none() {
        for program in programs::build(ctx, false)? {
            println!("{}", program.display());
        }
    }
    Ok(())
}

/// Runs `kmake` and returns make's exit status.
///
/// # Errors
///
/// If our own modules do not build, or the folder does not exist.
pub fn kmake(ctx: &Context, args: &KmakeArgs) -> Result<i32> {
    let dir = args
        .dir
        .canonicalize()
        .with_context(|| format!("the module's folder {}", args.dir.display()))?;
    if !["Kbuild", "Makefile"]
        .iter()
        .any(|name| dir.join(name).exists())
    {
        bail!("{} has neither a Kbuild nor a Makefile", dir.display());
    }
    let rig = setup::ensure(ctx, Which::Main)?;
    let tools = Toolbox::rig(&rig);
    let Built {
        dir: ours, symbols, ..
    } = modules::build(ctx, &tools, Profile::Stock)?;
    let mut cmd = tools.make(ctx, &dir, &ours, &symbols, &args.args);
    let status = cmd.status().context("starting make")?;
    Ok(status.code().unwrap_or(1))
}
