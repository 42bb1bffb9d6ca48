// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk under fio: every written byte is read again, and must have its checksum.

use crate::disk::*;
use crate::harness::guest::run;
use crate::harness::{Ctx, Test, NETNS, SHM, TWO, WRONG_DATA};
use crate::sys::{slowness, Map};
use anyhow::{ensure, Result};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("blk.fio_of_all_mixes_and_depths_verifies", |ctx| {
        all(ctx, Of::Memory)
    })
    .seconds(60)
    .on(TWO),
    Test::pair("blkdev.fio_of_all_mixes_and_depths_verifies", |ctx| {
        all(ctx, Of::Device)
    })
    .seconds(60)
    .on(TWO),
    Test::pair("blk.fio_after_one_byte_changed_finds_it", wrong)
        .seconds(20)
        .on(NETNS),
    Test::pair("blk.fio_while_target_stops_and_returns_verifies", |ctx| {
        goes_and_comes(ctx, Of::Memory)
    })
    .seconds(60)
    .on(NETNS),
    Test::pair(
        "blkdev.fio_while_target_stops_and_returns_verifies",
        |ctx| goes_and_comes(ctx, Of::Device),
    )
    .seconds(60)
    .on(SHM),
];

/// fio's modes that write, and the mode that then reads the bytes back.
const MIXES: [(&str, Option<&str>); 4] = [
    ("write", Some("read")),
    ("randwrite", Some("randread")),
    ("rw", None),
    ("randrw", None),
];
/// Queue depths; the last exceeds the disk's depth.
const DEPTHS: [u32; 5] = [1, 4, 16, 64, 300];
/// Block sizes, and KiB of each job.
const BLOCKS: [(&str, u32); 5] = [
    ("512", 128),
    ("4k", 1024),
    ("16k", 2048),
    ("128k", 4096),
    ("1m", 8192),
];

/// Returns the common options of a job on a disk.
fn head(path: &Path) -> String {
    format!(
        "[global]\nfilename={}\ndirect=1\nioengine=libaio\nthread=1\nverify=crc32c\n\
         verify_fatal=1\nverify_state_save=0\ngroup_reporting=1\n",
        path.display()
    )
}

/// Adds a job that begins when the one before it has ended; a smaller job under checkers.
fn job(to: &mut String, rw: &str, block: &str, kib: u32, depth: u32) {
    let kib = if slowness() > 1 { kib / 4 } else { kib };
    let _ = write!(
        to,
        "[{rw}-{block}-{depth}]\nstonewall\nrw={rw}\nbs={block}\nsize={kib}k\niodepth={depth}\n"
    );
}

/// Runs fio with these jobs.
fn fio(jobs: &str) -> Result<()> {
    let file = format!("/tmp/blk-{}.fio", std::process::id());
    std::fs::write(&file, jobs)?;
    let said = run("fio", &["--minimal", "--aux-path=/tmp", &file]);
    std::fs::remove_file(&file)?;
    let wrong = |e: &anyhow::Error| format!("{e:#}").contains("verify failed");
    match said {
        Err(e) if wrong(&e) => Err(e.context(format!("{WRONG_DATA}fio"))),
        said => said.map(drop),
    }
}

fn all(ctx: &mut Ctx, of: Of) -> Result<()> {
    // A block-backed disk has a smaller queue depth.
    let less = if of == Of::Memory { 1 } else { 2 };
    of.with_disk(ctx, "16M", &["-i", "2"], |ctx, path| {
        if ctx.first() {
            return Ok(());
        }
        let mut jobs = head(path);
        let mut blocks = BLOCKS.iter().cycle();
        for depth in DEPTHS {
            for (write, read) in MIXES {
                let (block, kib) = *blocks.next().unwrap_or(&BLOCKS[0]);
                let kib = kib / less;
                job(&mut jobs, write, block, kib, depth);
                if let Some(read) = read {
                    job(&mut jobs, read, block, kib, depth);
                }
            }
        }
        // All block sizes at once, by many jobs at once.
        jobs += "[many]\nstonewall\nrw=randrw\nbssplit=512/30:4k/40:64k/30\nsize=1m\n\
                 offset_increment=4m\nnumjobs=4\niodepth=32\n";
        fio(&jobs)
    })
}

/// If another initiator changes a single byte, fio reports it.
fn wrong(ctx: &mut Ctx) -> Result<()> {
    const AT: usize = 100 * 512;
    with_disk(ctx, "2M", &[], |ctx, path| {
        if ctx.first() {
            ctx.barrier("written")?;
            let watch = connect(ctx, WATCH, &["-i", "1"])?;
            let disk = Disk::open(&watch)?;
            let map = Map::anon(512)?;
            disk.read(AT, &map, 512)?;
            map.set(77, !map.get(77));
            disk.write(AT, &map, 512)?;
            drop(disk);
            disconnect(WATCH)?;
            return ctx.barrier("spoilt");
        }
        let jobs = |rw: &str| {
            let mut jobs = head(path);
            job(&mut jobs, rw, "4k", 1024, 16);
            jobs
        };
        fio(&jobs("write"))?;
        fio(&jobs("randread"))?;
        ctx.barrier("written")?;
        ctx.barrier("spoilt")?;
        let found = fio(&jobs("randread")).err();
        ensure!(
            found
                .as_ref()
                .is_some_and(|e| format!("{e:#}").contains("verify failed")),
            "fio says {found:?}"
        );
        Ok(())
    })
}

/// The target stops listening again and again: fio's requests wait, and all of them complete.
fn goes_and_comes(ctx: &mut Ctx, of: Of) -> Result<()> {
    const TIMES: usize = 3;
    let options = [
        "-i",
        "2",
        "--reconnect-delay",
        "1",
        "--ctrl-loss-tmo",
        "600",
    ];
    of.with_disk(ctx, "16M", &options, |ctx, path| {
        if ctx.first() {
            for _ in 0..TIMES {
                ctx.barrier("busy")?;
                std::thread::sleep(Duration::from_millis(500));
                offer(ctx, false)?;
                std::thread::sleep(Duration::from_secs(1));
                offer(ctx, true)?;
            }
            return Ok(());
        }
        for depth in [1, 16, 300] {
            ctx.barrier("busy")?;
            let mut jobs = head(path);
            for (rw, _) in MIXES {
                job(&mut jobs, rw, "16k", 4096, depth);
            }
            fio(&jobs)?;
        }
        ensure!(show("disks", NAME, "state")? == "live");
        Ok(())
    })
}
