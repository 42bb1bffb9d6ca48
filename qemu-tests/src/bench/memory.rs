// SPDX-License-Identifier: MIT OR Apache-2.0

//! What registering memory and handing out keys cost.

use super::{build, Figure};
use crate::buf::Buf;
use crate::harness::guest::run;
use crate::harness::Ctx;
use crate::pair::{Side, LOCAL, REMOTE};
use crate::sys::Map;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::time::Instant;

/// What verbs needs to register and deregister `len` bytes, in microseconds.
fn verbs(ctx: &Ctx, program: &std::path::Path, len: usize, rounds: u32) -> Result<f64> {
    let args = [&*ctx.env.dev, &len.to_string(), &rounds.to_string()];
    let said = run(&program.to_string_lossy(), &args)?;
    Ok(said.trim().parse::<f64>().with_context(|| said.clone())? / 1000.0)
}

/// Runs `f` once to warm up and `rounds` times; microseconds of each.
fn average(rounds: u32, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    f()?;
    let start = Instant::now();
    (0..rounds).try_for_each(|_| f())?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds))
}

/// Memory that is there, in pages of 4 KiB.
fn memory(len: usize) -> Result<Buf> {
    let map = Map::anon(len)?;
    map.advise(libc::MADV_NOHUGEPAGE)?;
    let buf = Buf::whole(map);
    buf.clear(1);
    Ok(buf)
}

fn verbs_reg() -> Result<std::path::PathBuf> {
    build(
        "verbs_reg",
        include_str!("../../interop/verbs_reg.c"),
        "-libverbs",
    )
}

/// Registering and closing a region, beside `ibv_reg_mr` and `ibv_dereg_mr`.
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

/// Keys of a batch.
const BATCH: usize = 64;

/// Assigning and revoking 64 keys, one call each: what one key costs, beside registering and
/// deregistering its window.
pub(super) fn key_batch(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let program = verbs_reg()?;
        let side = Side::open(ctx)?;
        for (case, len, rounds) in [("64 of 4 KiB", 4096, 30), ("64 of 1 MiB", 1 << 20, 5)] {
            let peer = verbs(ctx, &program, len, 50)?;
            let buf = memory(BATCH * len)?;
            let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
            let slots = side.dev.key_alloc(region, BATCH as u32)?;
            let entry = |(i, slot): (usize, &u64)| KeyEntry {
                slot: *slot,
                offset: (i * len) as u64,
                length: len as u64,
                access: KFI_REMOTE_READ,
                ..Default::default()
            };
            let mut entries: Vec<_> = slots.iter().enumerate().map(entry).collect();
            let value = average(rounds, || {
                let got = side.dev.key_assign_many(&mut entries)?;
                ensure!(got == (BATCH, 0), "assigned: {got:?}");
                let got = side.dev.key_revoke_slots(&slots)?;
                ensure!(got.revoked == BATCH as u64, "revoked: {got:?}");
                Ok(())
            })?;
            Figure {
                bench: "key_batch",
                case,
                value: value / BATCH as f64,
                unit: "us per key",
                peer: Some("ibv_reg_mr + ibv_dereg_mr of one window"),
                peer_value: Some(peer),
                ratio: None,
                wanted: Some("0.2"),
            }
            .print(ctx);
            for slot in slots {
                side.dev.close(slot)?;
            }
            side.dev.close(region)?;
        }
    }
    ctx.barrier("key_batch")
}

/// Assigning and revoking a key of 4 KiB, of a small and of a large region.
pub(super) fn key(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let program = verbs_reg()?;
        let peer = verbs(ctx, &program, 4096, 200)?;
        let side = Side::open(ctx)?;
        let mut before = None;
        for (case, len) in [("4 KiB of 4 KiB", 4096), ("4 KiB of 256 MiB", 256 << 20)] {
            let buf = memory(len)?;
            let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
            let slot = side.dev.key_alloc(region, 1)?[0];
            let at = (len as u64 / 2) & !4095;
            let value = average(300, || {
                side.dev.key_assign(slot, at, 4096, KFI_REMOTE_READ)?;
                Ok(side.dev.key_revoke(slot)?)
            })?;
            Figure {
                bench: "key",
                case,
                value,
                unit: "us",
                peer: Some("ibv_reg_mr + ibv_dereg_mr of 4 KiB"),
                peer_value: Some(peer),
                ratio: None,
                wanted: None,
            }
            .print(ctx);
            if let Some(small) = before.replace(value) {
                Figure {
                    bench: "key",
                    case: "of 256 MiB beside of 4 KiB",
                    value,
                    unit: "us",
                    peer: Some("the same of 4 KiB"),
                    peer_value: Some(small),
                    ratio: None,
                    wanted: Some("the same (P6)"),
                }
                .print(ctx);
            }
            side.dev.close(slot)?;
            side.dev.close(region)?;
        }
    }
    ctx.barrier("key")
}
