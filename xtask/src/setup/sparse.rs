// SPDX-License-Identifier: MIT OR Apache-2.0

//! The program that checks the kernel's C. The build root's distribution has one that does not know
//! all that kernel 7.2 writes (`scripts/checker-valid.sh` there), so this one is of the next; of
//! what it depends on it needs nothing but the C library to read C.

use super::archive::{Archive, Mirror};
use super::stage;
use crate::context::Context;
use crate::progress::Step;
use anyhow::Result;
use std::path::PathBuf;

/// Where the archive has it.
const SUITE: &str = "testing";

/// The folder with it, fetched if need be.
///
/// # Errors
///
/// When the archive cannot be reached or does not have it.
pub fn ensure(ctx: &Context) -> Result<PathBuf> {
    let key = stage::key(&[SUITE]);
    if let Some(there) = stage::present(ctx, "sparse", &key) {
        return Ok(there);
    }
    let _lock = stage::lock(&ctx.cache, "setup")?;
    stage::make(ctx, "sparse", &key, |dir| {
        let step = Step::new(ctx, "fetch sparse");
        stage::clear(dir)?;
        let apt = dir.join("apt");
        Archive::of_suite(apt.clone(), &Mirror::find()?, SUITE)?.unpack(ctx, "sparse", dir)?;
        std::fs::remove_dir_all(apt)?;
        step.done();
        Ok(())
    })
}
