// SPDX-License-Identifier: MIT OR Apache-2.0

//! Operations and counters.

use super::memory;
use crate::fault::lab::{Lab, Link, WAIT};
use crate::fault::sweep::{Case, Shot};
use crate::op::{self, iov};
use crate::sys::{self, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::os::fd::AsFd;

/// The cases.
pub const CASES: &[Case] = &[
    Case::new("KFI_IOC_SUBMIT", "send_recv", send_recv).also(NOT_POSTED),
    Case::new("KFI_IOC_SUBMIT", "inject", inject).also(NOT_POSTED),
    Case::new("KFI_IOC_SUBMIT", "read", read).also(NOT_POSTED),
    Case::new("KFI_IOC_SUBMIT", "write", write).also(NOT_POSTED),
    Case::new("KFI_IOC_SUBMIT", "many", many).also(NOT_POSTED),
    Case::new("KFI_IOC_SUBMIT", "atomic", atomic).also(NOT_POSTED),
    Case::new("KFI_IOC_ATOMIC_QUERY", "", query),
    Case::new("KFI_IOC_EP_RINGS", "", rings),
    Case::new("KFI_IOC_EP_WAKE", "", wake),
    Case::new("KFI_IOC_CANCEL", "", cancel),
    Case::new("KFI_IOC_CNTR_CTL", "read", cntr_read),
    Case::new("KFI_IOC_CNTR_CTL", "add", cntr_add),
    Case::new("KFI_IOC_CNTR_WAIT", "", cntr_wait),
    Case::new("KFI_IOC_CNTR_WAIT", "change", cntr_wait_change),
];

/// If a device refuses a work request, the endpoint acts as not connected.
const NOT_POSTED: &[i32] = &[libc::ENOTCONN];

/// A link, memory at both ends, and a key for it.
struct Bench {
    link: Link,
    map: Map,
    region: u64,
    slot: u64,
    key: KeyAssign,
}

impl Bench {
    fn new(lab: &mut Lab) -> Result<Self> {
        let link = lab.link()?;
        // In several pieces, so that one operation has several scatter entries.
        let map = Map::anon(4 * 4096)?;
        memory::touch(&map);
        let region = memory::register(lab, &map, KFI_REGION_DYNAMIC_KEYS)?;
        let slot = lab.dev.key_alloc(region, 1)?[0];
        let rights = KFI_REMOTE_READ | KFI_REMOTE_WRITE | KFI_ATOMIC;
        let key = lab.dev.key_assign(slot, 0, map.len() as u64, rights)?;
        Ok(Self {
            link,
            map,
            region,
            slot,
            key,
        })
    }

    /// Submits on the client with a failure, then checks the posted operations: each of
    /// `operations` that was accepted completes once, and the rest can be posted afterwards.
    fn submit(&self, lab: &Lab, shot: &mut Shot<'_>, operations: &[OpEntry]) -> Result<()> {
        let mut arg = submission(self.link.client, operations);
        let answer = shot.once(|| lab.dev.call(&mut arg))?;
        // The answer may be undeliverable: then operations were posted, and their completions count
        // them.
        let accepted = match answer {
            Ok(()) => arg.done as usize,
            Err(_) => self.outstanding_or_done(lab)?,
        };
        ensure!(accepted <= operations.len(), "{accepted} were accepted");
        for operation in &operations[..accepted] {
            complete(lab, operation.context)?;
        }
        let rest = &operations[accepted..];
        if !rest.is_empty() {
            let mut arg = submission(self.link.client, rest);
            lab.dev.call(&mut arg).context("the rest, afterwards")?;
            ensure!(arg.done as usize == rest.len(), "{arg:?}");
            for operation in rest {
                complete(lab, operation.context)?;
            }
        }
        ensure!(lab.cq.read().is_none(), "a completion too many");
        Ok(())
    }

    /// Returns the number of operations that the client accepted in this case.
    fn outstanding_or_done(&self, lab: &Lab) -> Result<usize> {
        let all = lab.dev.obj_list()?;
        let me = std::process::id();
        let ep = all
            .iter()
            .find(|o| o.pid == me && o.handle == self.link.client);
        let ep = ep.context("the endpoint is gone")?;
        Ok((ep.a + ep.c) as usize)
    }

    fn end(self, lab: &Lab) -> Result<()> {
        lab.unlink(self.link)?;
        lab.dev.close(self.slot)?;
        lab.dev.close(self.region)?;
        drop(self.map);
        Ok(())
    }
}

fn submission(ep: u64, operations: &[OpEntry]) -> Submit {
    Submit {
        ep,
        ops: operations.as_ptr() as u64,
        count: operations.len() as u32,
        entry_size: std::mem::size_of::<OpEntry>() as u32,
        ..Default::default()
    }
}

/// Waits for the successful completion of this context.
fn complete(lab: &Lab, context: u64) -> Result<()> {
    let entry = lab
        .cq
        .wait(WAIT)
        .with_context(|| format!("completion of {context}"))?;
    ensure!(
        entry.err == 0 && entry.context == context,
        "{entry:?}, not {context}"
    );
    Ok(())
}

/// Posts a receive on the client while the server sends, then a send to the server's receive.
fn send_recv(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let bench = Bench::new(lab)?;
    let piece = [iov(bench.region, 100, 8000)];
    lab.dev.submit(bench.link.server, &[op::recv(70, &piece)])?;
    let mut arg = submission(bench.link.client, &[]);
    let operations = [op::send(1, &[iov(bench.region, 8192, 5000)])];
    arg.ops = operations.as_ptr() as u64;
    arg.count = 1;
    let answer = shot.once(|| lab.dev.call(&mut arg))?;
    let accepted = answer.is_ok() || bench.outstanding_or_done(lab)? > 0;
    if !accepted {
        lab.dev
            .submit(bench.link.client, &operations)
            .context("again")?;
    }
    // The two completions come in either order.
    let mut seen = [0u64; 2];
    for place in &mut seen {
        let entry = lab.cq.wait(WAIT)?;
        ensure!(entry.err == 0, "{entry:?}");
        *place = entry.context;
    }
    seen.sort_unstable();
    ensure!(seen == [1, 70], "{seen:?}");
    ensure!(lab.cq.read().is_none(), "a completion too many");
    bench.end(lab)
}

/// An injected write has no completion of its own; the read behind it has.
fn inject(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let bench = Bench::new(lab)?;
    let payload = [7u8; 16];
    let (at, key) = (bench.key.remote_addr, bench.key.key);
    let operation = op::inject(op::write(1, &[], at, key), &payload);
    let operations = [operation];
    let mut arg = submission(bench.link.client, &operations);
    let answer = shot.once(|| lab.dev.call(&mut arg))?;
    if answer.is_err() && bench.outstanding_or_done(lab)? == 0 {
        lab.dev
            .submit(bench.link.client, &operations)
            .context("again")?;
    }
    let fence = op::read(2, &[iov(bench.region, 4096, 8)], at, key);
    lab.dev.submit(bench.link.client, &[fence])?;
    complete(lab, 2)?;
    ensure!(bench.map.get(0) == 7, "the payload did not come");
    bench.end(lab)
}

fn read(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let bench = Bench::new(lab)?;
    let (at, key) = (bench.key.remote_addr, bench.key.key);
    let piece = [iov(bench.region, 4096, 4096)];
    bench.submit(lab, shot, &[op::read(1, &piece, at, key)])?;
    bench.end(lab)
}

fn write(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let bench = Bench::new(lab)?;
    let (at, key) = (bench.key.remote_addr, bench.key.key);
    let piece = [iov(bench.region, 4096, 4096)];
    bench.submit(lab, shot, &[op::write(1, &piece, at, key)])?;
    bench.end(lab)
}

/// More than one batch of entries, so that some are posted if one fails.
fn many(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let bench = Bench::new(lab)?;
    let (at, key) = (bench.key.remote_addr, bench.key.key);
    let piece = [iov(bench.region, 4096, 512)];
    let all: Vec<OpEntry> = (1..=6).map(|i| op::write(i, &piece, at, key)).collect();
    bench.submit(lab, shot, &all)?;
    bench.end(lab)
}

fn atomic(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let bench = Bench::new(lab)?;
    let at = (bench.key.remote_addr, bench.key.key);
    let one = 1u64.to_ne_bytes();
    let what = (KFI_ATOMIC_SUM, KFI_UINT64);
    let add = op::atomic(KFI_OP_ATOMIC, what, &one, &[], at);
    let result = [iov(bench.region, 4096, 8)];
    let fetch = op::atomic(KFI_OP_FETCH_ATOMIC, what, &one, &result, at);
    bench.submit(lab, shot, &[add, fetch])?;
    bench.end(lab)
}

fn query(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let want = AtomicQuery {
        domain: lab.domain,
        op: KFI_OP_FETCH_ATOMIC,
        atomic_op: KFI_ATOMIC_SUM,
        datatype: KFI_UINT64,
        ..Default::default()
    };
    ensure!(shot.ioctl(&lab.dev, &want)?.count > 0, "none at a time");
    Ok(())
}

/// Connects two ends with rings, if the provider has them.
fn ringed(lab: &mut Lab) -> Result<Link> {
    lab.flags = KFI_EP_RINGS;
    let link = lab.link();
    lab.flags = 0;
    link
}

fn rings(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let link = ringed(lab)?;
    let want = EpRings {
        ep: link.client,
        ..Default::default()
    };
    let got = shot.ioctl(&lab.dev, &want)?;
    if got.state == KFI_RINGS_SHARED {
        let fd = sys::own_fd(got.fd);
        let bytes = got.map_size as usize;
        let map = Map::raw(
            fd.as_fd(),
            bytes,
            libc::PROT_READ,
            libc::MAP_SHARED,
            i64::from(got.page_size),
        )?;
        ensure!(map.load32(0) == 0, "the ring is not new");
    } else {
        ensure!(got.state == KFI_RINGS_NONE && got.fd == -1, "{got:?}");
    }
    lab.unlink(link)
}

fn wake(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let link = ringed(lab)?;
    let want = EpWake {
        flags: KFI_WAKE_SELF,
        ep: link.client,
        ..Default::default()
    };
    shot.ioctl(&lab.dev, &want)?;
    lab.unlink(link)
}

/// No provider can cancel: the refusal is expected.
fn cancel(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let ep = lab.enabled(0)?;
    lab.dev.submit(ep, &[op::recv(9, &[])])?;
    let mut want = Cancel {
        ep,
        context: 9,
        ..Default::default()
    };
    shot.call(|| match lab.dev.call(&mut want) {
        Err(e) if e.errno.0 == libc::EOPNOTSUPP => Ok(()),
        other => other,
    })?;
    lab.dev.close(ep)?;
    ensure!(lab.drain() == 1, "the receive is lost");
    Ok(())
}

fn cntr_read(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let cntr = lab.dev.cntr_open(lab.domain)?;
    lab.dev.cntr_ctl(cntr, KFI_CNTR_SET, 41)?;
    let want = CntrCtl {
        cntr,
        op: KFI_CNTR_READ,
        ..Default::default()
    };
    ensure!(shot.ioctl(&lab.dev, &want)?.value == 41, "another value");
    Ok(lab.dev.close(cntr)?)
}

/// A failed add has added nothing.
fn cntr_add(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let cntr = lab.dev.cntr_open(lab.domain)?;
    for op in [KFI_CNTR_SET, KFI_CNTR_SETERR] {
        lab.dev.cntr_ctl(cntr, op, 41)?;
    }
    let want = CntrCtl {
        cntr,
        op: KFI_CNTR_ADD,
        value: 1,
        ..Default::default()
    };
    ensure!(shot.ioctl(&lab.dev, &want)?.value == 42, "another value");
    Ok(lab.dev.close(cntr)?)
}

fn cntr_wait(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let cntr = lab.dev.cntr_open(lab.domain)?;
    lab.dev.cntr_ctl(cntr, KFI_CNTR_SET, 5)?;
    let want = CntrWait {
        cntr,
        threshold: 5,
        deadline: u64::MAX,
        ..Default::default()
    };
    shot.ioctl(&lab.dev, &want)?;
    Ok(lab.dev.close(cntr)?)
}

fn cntr_wait_change(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let cntr = lab.dev.cntr_open(lab.domain)?;
    lab.dev.cntr_ctl(cntr, KFI_CNTR_SET, 5)?;
    let want = CntrWait {
        flags: KFI_CNTR_WAIT_CHANGE,
        cntr,
        threshold: 5,
        errors: 1,
        deadline: u64::MAX,
        ..Default::default()
    };
    shot.ioctl(&lab.dev, &want)?;
    Ok(lab.dev.close(cntr)?)
}
