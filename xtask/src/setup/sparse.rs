// SPDX-License-Identifier: MIT OR Apache-2.0

//! sparse, the checker of the kernel's C. The version in the build root's distribution does not
//! support all constructs of kernel 7.2 (`scripts/checker-valid.sh` there). So this one is from the
//! next distribution. Of its dependencies it needs only the C library to read C.

use super::archive::{Archive, Mirror};
use super::stage;
use crate::context::Context;
use crate::progress::Step;
use anyhow::Result;
use std::path::PathBuf;

/// The suite of the archive that contains it.
const SUITE: &str = "testing";

/// Returns the folder of sparse, which is fetched if necessary.
///
/// # Errors
///
/// If the archive cannot be reached or lacks the package.
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
