// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cost of registering memory.

use super::{build, Figure};
use crate::buf::Buf;
use crate::harness::guest::run;
use crate::harness::Ctx;
use crate::pair::{Side, LOCAL, REMOTE};
use crate::sys::Map;
use anyhow::{Context, Result};
use std::time::Instant;

/// Measures verbs' registering and deregistering of `len` bytes, in microseconds.
pub(super) fn verbs(ctx: &Ctx, program: &std::path::Path, len: usize, rounds: u32) -> Result<f64> {
    let args = [&*ctx.env.dev, &len.to_string(), &rounds.to_string()];
    let said = run(&program.to_string_lossy(), &args)?;
    Ok(said.trim().parse::<f64>().with_context(|| said.clone())? / 1000.0)
}

/// Runs `f` once to warm up and `rounds` times. Returns the average in microseconds.
pub(super) fn average(rounds: u32, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    f()?;
    let start = Instant::now();
    (0..rounds).try_for_each(|_| f())?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds))
}

/// Returns populated memory, in pages of 4 KiB.
pub(super) fn memory(len: usize) -> Result<Buf> {
    let map = Map::anon(len)?;
    map.advise(libc::MADV_NOHUGEPAGE)?;
    let buf = Buf::whole(map);
    buf.clear(1);
    Ok(buf)
}

pub(super) fn verbs_reg() -> Result<std::path::PathBuf> {
    build(
        "verbs_reg",
        include_str!("../../interop/verbs_reg.c"),
        &["-libverbs"],
    )
}

/// Measures registering and closing a region, beside `ibv_reg_mr` and `ibv_dereg_mr`.
pub(super) fn reg(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let program = verbs_reg()?;
        let side = Side::open(ctx)?;
        for (case, len, rounds) in [
            ("4 KiB", 4096, 200),
            ("1 MiB", 1 << 20, 50),
            ("64 MiB", 64 << 20, 5),
        ] {
            let buf = memory(len)?;
            let once = || Ok(side.dev.close(side.reg(&buf, LOCAL | REMOTE)?.handle)?);
            let value = average(rounds, once)?;
            let peer = verbs(ctx, &program, len, rounds)?;
            Figure {
                bench: "reg",
                case,
                value,
                unit: "us",
                peer: Some("ibv_reg_mr + ibv_dereg_mr"),
                peer_value: Some(peer),
                ratio: None,
                wanted: None,
            }
            .print(ctx);
        }
    }
    ctx.barrier("reg")
}
