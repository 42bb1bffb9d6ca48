// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cost of one copy between two processes of a host, beside the kernel's own (`process_vm_writev`,
//! which pins the target's pages anew each time and needs the right to debug the target).

use super::memory::{average, memory};
use super::Figure;
use crate::harness::{Ctx, Env};
use crate::op::{self, iov};
use crate::pair::{Opts, Side, LOCAL, LONG, REMOTE};
use crate::raw::Cq;
use crate::sys::{self, rights::process_vm};
use anyhow::{ensure, Result};
use kfabric_uapi::*;

/// Names, bytes, and numbers of copies.
const CASES: [(&str, usize, u32); 5] = [
    ("4 KiB", 4 << 10, 500),
    ("64 KiB", 64 << 10, 200),
    ("1 MiB", 1 << 20, 40),
    ("16 MiB", 16 << 20, 6),
    ("64 MiB", 64 << 20, 3),
];

/// Two connected ends.
pub(super) struct Ends {
    pub(super) ours: Side,
    pub(super) theirs: Side,
    cq: Cq,
    ep: u64,
}

impl Ends {
    /// Connects two ends over kshm.
    pub(super) fn new(env: &Env) -> Result<Self> {
        let env = &Env {
            provider: "kshm".into(),
            ..env.clone()
        };
        let (ours, theirs) = (Side::of(env)?, Side::of(env)?);
        let (_, at) = theirs.listen(env.at(0), 0)?;
        let cq = ours.cq(0, 0)?;
        let ep = ours.endpoint(&Opts::default(), &cq, 0)?.handle;
        ours.dev.connect(ep, at, &[])?;
        let asked = theirs.event(KFI_CONNREQ)?;
        let far = theirs.cq(0, 0)?;
        let end = theirs.endpoint(&Opts::default(), &far, asked.raw.connreq)?;
        theirs.dev.accept(end.handle, &[])?;
        ours.event(KFI_CONNECTED)?;
        theirs.event(KFI_CONNECTED)?;
        Ok(Self {
            ours,
            theirs,
            cq,
            ep,
        })
    }

    /// Posts one operation and waits for its completion.
    pub(super) fn run(&self, op: OpEntry) -> Result<()> {
        self.ours.dev.submit(self.ep, &[op])?;
        // The completion is there when the call returns, except for work of a worker.
        let done = match self.cq.read() {
            Some(done) => done,
            None => self.cq.wait(LONG)?,
        };
        ensure!(done.err == 0, "{done:?}");
        Ok(())
    }
}

/// A process with the same memory at the same place, in pages of its own.
pub(super) struct Twin(pub(super) i32);

impl Twin {
    pub(super) fn new(memory: &crate::buf::Buf) -> Result<Self> {
        let ready = sys::Map::shared(4096)?;
        let pid = sys::fork(|| {
            memory.clear(2);
            ready.store32(0, 1);
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1000));
            }
        })?;
        let twin = Self(pid);
        crate::harness::guest::until(
            "the twin",
            LONG,
            || Ok((ready.load32(0) == 1).then_some(())),
        )?;
        Ok(twin)
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        let _ = sys::kill(self.0, libc::SIGKILL);
        let _ = sys::wait_pid(self.0, LONG);
    }
}

/// Measures writes and reads.
pub(super) fn run(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        for (name, len, rounds) in CASES {
            let ends = Ends::new(&ctx.env)?;
            let (near, far) = (memory(len)?, memory(len)?);
            let twin = Twin::new(&far)?;
            let local = ends.ours.reg(&near, LOCAL)?.handle;
            let region = ends.theirs.reg(&far, LOCAL | REMOTE)?.handle;
            let (_, remote) = ends.theirs.export(region, 0, len as u64, REMOTE)?;
            let piece = [iov(local, 0, len as u64)];
            for read in [false, true] {
                let value = average(rounds, || {
                    ends.run(match read {
                        true => op::read(1, &piece, remote.addr, remote.key),
                        false => op::write(1, &piece, remote.addr, remote.key),
                    })
                })?;
                let peer_value = average(rounds, || {
                    let mut done = 0;
                    while done < len {
                        // Never short, because the pages are mapped.
                        done += process_vm(twin.0, read, near.map(), far.addr(), len)?;
                    }
                    Ok(())
                })?;
                let (verb, peer) = match read {
                    true => ("read", "process_vm_readv"),
                    false => ("write", "process_vm_writev"),
                };
                Figure {
                    bench: "shm",
                    case: &format!("{verb} {name}"),
                    value,
                    unit: "us",
                    peer: Some(peer),
                    peer_value: Some(peer_value),
                    ratio: None,
                    wanted: Some(if len < 64 << 10 { "0.6" } else { "0.7" }),
                }
                .print(ctx);
            }
        }
    }
    ctx.barrier("shm")?;
    super::rings::run(ctx)
}
