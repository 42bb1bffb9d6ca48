// SPDX-License-Identifier: MIT OR Apache-2.0

//! Work of a loner: it opens, registers, assigns, listens, connects without a peer and closes, in
//! every valid order and in some invalid ones, and stops at any point.

use super::worker::{Want, Worker};
use crate::buf::Buf;
use crate::op::{self, iov};
use crate::pair::{Opts, Side, LOCAL, REMOTE};
use crate::raw::Cq;
use anyhow::{ensure, Result};
use kfabric_uapi::*;
use std::time::Duration;

/// Open objects.
struct Things {
    side: Side,
    cqs: Vec<Cq>,
    bufs: Vec<(u64, Buf)>,
    handles: Vec<u64>,
    eps: Vec<u64>,
}

/// Runs one life of an open file.
///
/// # Errors
///
/// If the worker is disturbed, or an error is found.
pub fn turn(w: &mut Worker<'_>) -> Result<()> {
    let side = w.side()?;
    let mut t = Things {
        side,
        cqs: Vec::new(),
        bufs: Vec::new(),
        handles: Vec::new(),
        eps: Vec::new(),
    };
    for _ in 0..w.rng.below(40) {
        step(w, &mut t)?;
    }
    w.at("closing the file");
    let Things { side, bufs, .. } = t;
    drop(side);
    for (_, buf) in &bufs {
        buf.check_guards()?;
    }
    w.done();
    Ok(())
}

/// Returns the maximum number of bytes that a worker registers at once.
fn most(want: Want) -> u64 {
    match want {
        Want::Memory => 12 << 20,
        _ => 3 << 20,
    }
}

fn step(w: &mut Worker<'_>, t: &mut Things) -> Result<()> {
    let dev = &t.side.dev;
    match w.rng.below(10) {
        0 | 1 => {
            w.at("registering");
            let buf = Buf::at(
                1 + w.rng.below(most(w.want)) as usize,
                w.rng.below(4096) as usize,
            )?;
            let region = t.side.reg(&buf, LOCAL | REMOTE)?.handle;
            t.bufs.push((region, buf));
        }
        2 => {
            w.at("assigning");
            let Some((region, buf)) = t.bufs.last() else {
                return Ok(());
            };
            let slots = dev.key_alloc(*region, 1 + w.rng.below(4) as u32)?;
            t.side
                .assign(slots[0], 0, 1 + w.rng.below(buf.len() as u64), REMOTE)?;
            t.handles.extend(&slots);
        }
        3 => {
            w.at("opening a queue");
            t.cqs
                .push(t.side.cq(1 << w.rng.below(8), KFI_CQ_FORMAT_DATA)?);
        }
        4 => {
            w.at("opening an endpoint");
            let Some(cq) = t.cqs.last() else {
                return Ok(());
            };
            let ep = t.side.endpoint(&Opts::default(), cq, 0)?.handle;
            t.eps.push(ep);
            if let Some((region, buf)) = t.bufs.last() {
                let piece = iov(*region, 0, (buf.len() as u64).min(4096));
                dev.submit(ep, &[op::recv(1, &[piece])])?;
            }
        }
        5 => {
            w.at("connecting without a listener");
            let Some(ep) = t.eps.last() else {
                return Ok(());
            };
            // Only once, and the answer may come at any time.
            let _ = dev.connect(*ep, w.env.peer_at(9), &[1, 2, 3]);
            std::thread::sleep(Duration::from_micros(w.rng.below(5000)));
        }
        6 => {
            w.at("listening");
            let (pep, _) = t.side.listen(w.env.at(0), 2)?;
            t.handles.push(pep);
        }
        7 => {
            w.at("closing an endpoint");
            if let Some(ep) = t.eps.pop() {
                dev.close(ep)?;
            }
        }
        8 => {
            w.at("closing a region");
            if let Some((region, buf)) = t.bufs.pop() {
                let closed = dev.close(region);
                let errno = closed.err().map_or(0, |e| e.errno.0);
                // An object with keys or with a posted receive stays.
                ensure!(
                    errno == 0 || errno == libc::EBUSY,
                    "closing a region: {errno}"
                );
                buf.check_guards()?;
                if errno != 0 {
                    t.handles.push(region);
                }
            }
        }
        _ => {
            w.at("closing something");
            let n = t.handles.len() as u64;
            if n > 0 {
                let handle = t.handles.swap_remove(w.rng.below(n) as usize);
                let errno = dev.close(handle).err().map_or(0, |e| e.errno.0);
                // Slots may be closed after the attempt to close their region.
                ensure!(
                    errno == 0 || errno == libc::EBUSY,
                    "closing something: {errno}"
                );
                if errno != 0 {
                    t.handles.push(handle);
                }
            }
        }
    }
    Ok(())
}
