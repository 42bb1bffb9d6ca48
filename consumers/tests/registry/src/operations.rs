// SPDX-License-Identifier: GPL-2.0
//! Tests of operations: each accepted one completes exactly once, and only valid ones are accepted
//! (P9).

use core::sync::atomic::{
    AtomicU32,
    Ordering, //
};
use kernel::{
    bindings,
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kfabric::{
    base::errno::enotconn,
    ep::{
        Endpoint,
        EpAttr,
        LocalMem,
        Post, //
    },
    objects::{
        cntr::Cntr,
        cq::{
            Cq,
            CqHandler, //
        },
        eq::Eq, //
    },
    op::{
        OpKind,
        Outcome as Ended, //
    },
    uapi::*,
};

use crate::{
    bench::{
        plain,
        region,
        Bench,
        Ends, //
    },
    check, check_eq, check_err,
    fake::{
        ipv4,
        Step,
        INJECT_SIZE,
        MAX_MSG_SIZE, //
    },
    ktap::Outcome,
    Test,
};

/// The tests of this file.
pub(crate) const TESTS: &[Test] = &[
    ("full_completion_queue", full_queue),
    ("provider_full_gives_slot_back", provider_full),
    ("dropped_token_is_canceled", dropped),
    ("close_cancels_what_is_posted", close_cancels),
    ("completion_fields", fields),
    ("completion_formats", formats),
    ("selective_completion", selective),
    ("counters_count", counters),
    ("completion_handler", handler),
    ("post_in_each_state", states),
    ("post_refusals", refusals),
    ("region_outlives_operation", outlives),
    ("many_operations", many),
];

fn full_queue(bench: &Bench) -> Outcome {
    let ends = Ends::connected(&bench.domain()?, 2, &bench.a.control)?;
    let device = bench.a.control.endpoint()?;
    for round in 0..5_u64 {
        ends.post(OpKind::Send, round * 2, LocalMem::new())?;
        ends.post(OpKind::Recv, round * 2 + 1, LocalMem::new())?;
        check_err!(ends.post(OpKind::Send, 99, LocalMem::new()), EAGAIN);
        check_err!(ends.post(OpKind::Recv, 99, LocalMem::new()), EAGAIN);
        check_eq!(ends.ep.outstanding(), 2);
        device.complete(Ended::default())?;
        device.complete(Ended::default())?;
        // Completed, but not read, so the queue is still full.
        check_err!(ends.post(OpKind::Send, 99, LocalMem::new()), EAGAIN);
        check_eq!(ends.cq.waiting(), 2);
        for context in [round * 2, round * 2 + 1] {
            check_eq!(ends.completion().ok_or(ENOENT)?.context, context);
        }
        check!(ends.completion().is_none());
    }
    check_eq!(ends.ep.completed(), 10);
    Ok(())
}

fn provider_full(bench: &Bench) -> Outcome {
    let control = &bench.a.control;
    let ends = Ends::connected(&bench.domain()?, 4, control)?;
    let device = control.endpoint()?;
    control.full.store(true, Ordering::Relaxed);
    let mut refused = Ok(());
    for _ in 0..100 {
        refused = ends.post(OpKind::Send, 1, LocalMem::new());
    }
    control.full.store(false, Ordering::Relaxed);
    check_err!(refused, EAGAIN);
    check_eq!(ends.ep.outstanding(), 0);
    check_eq!(ends.ep.completed(), 0);
    // All places are free again, and no more.
    for context in 0..4 {
        ends.post(OpKind::Send, context, LocalMem::new())?;
    }
    check_err!(ends.post(OpKind::Send, 4, LocalMem::new()), EAGAIN);
    for context in 0..4 {
        device.complete(Ended::default())?;
        check_eq!(ends.completion().ok_or(ENOENT)?.context, context);
    }
    check!(ends.completion().is_none());
    Ok(())
}

fn dropped(bench: &Bench) -> Outcome {
    let control = &bench.a.control;
    let ends = Ends::connected(&bench.domain()?, 0, control)?;
    control.drop_tokens.store(true, Ordering::Relaxed);
    let posted = ends.post(OpKind::Send, 42, LocalMem::new());
    control.drop_tokens.store(false, Ordering::Relaxed);
    posted?;
    let completion = ends.completion().ok_or(ENOENT)?;
    check_eq!(completion.context, 42);
    check_eq!(completion.err, bindings::ECANCELED);
    check!(ends.completion().is_none());
    check_eq!(ends.ep.outstanding(), 0);
    Ok(())
}

fn close_cancels(bench: &Bench) -> Outcome {
    let control = &bench.a.control;
    let ends = Ends::connected(&bench.domain()?, 0, control)?;
    ends.post(OpKind::Recv, 1, LocalMem::new())?;
    ends.post(OpKind::Send, 2, LocalMem::new())?;
    control.forget();
    ends.ep.close();
    check_eq!(control.count(Step::EpClose), 1);
    for context in [1, 2] {
        let completion = ends.completion().ok_or(ENOENT)?;
        check_eq!(completion.context, context);
        check_eq!(completion.err, bindings::ECANCELED);
    }
    check!(ends.completion().is_none());
    check_err!(ends.post(OpKind::Send, 3, LocalMem::new()), ENOENT);
    // A second close is harmless.
    ends.ep.close();
    check_eq!(control.count(Step::EpClose), 1);
    Ok(())
}

fn fields(bench: &Bench) -> Outcome {
    let domain = bench.domain()?;
    let ends = Ends::connected(&domain, 0, &bench.a.control)?;
    let device = bench.a.control.endpoint()?;
    let memory = region(
        &domain,
        2,
        KFI_SEND | KFI_RECV | KFI_READ | KFI_WRITE,
        false,
    )?;
    for (kind, flags) in [
        (OpKind::Send, KFI_MSG | KFI_SEND),
        (OpKind::Read, KFI_RMA | KFI_READ),
        (OpKind::Write, KFI_RMA | KFI_WRITE),
    ] {
        let mut segs = LocalMem::new();
        segs.push(kind, memory.clone(), 16, 100)?;
        segs.push(kind, memory.clone(), 4000, 200)?;
        ends.post(kind, 3, segs)?;
        // The provider's length is ignored here.
        device.complete(Ended {
            len: 7,
            ..Ended::default()
        })?;
        let completion = ends.completion().ok_or(ENOENT)?;
        check_eq!(completion.flags, flags);
        check_eq!(completion.len, 300);
    }
    let mut segs = LocalMem::new();
    segs.push(OpKind::Recv, memory.clone(), 64, 1000)?;
    ends.post(OpKind::Recv, 4, segs)?;
    device.complete(Ended {
        len: 7,
        imm: Some(0xfeed_beef),
        ..Ended::default()
    })?;
    let completion = ends.completion().ok_or(ENOENT)?;
    check_eq!(completion.flags, KFI_MSG | KFI_RECV | KFI_REMOTE_CQ_DATA);
    check_eq!(completion.len, 7);
    check_eq!(completion.data, 0xfeed_beef_u64);
    check_eq!(completion.buf, 64);
    ends.post(OpKind::Recv, 5, LocalMem::new())?;
    device.complete(Ended {
        err: bindings::EIO,
        prov_errno: 11,
        ..Ended::default()
    })?;
    let completion = ends.completion().ok_or(ENOENT)?;
    check_eq!(completion.err, bindings::EIO);
    check_eq!(completion.prov_errno, 11);
    Ok(())
}

fn formats(bench: &Bench) -> Outcome {
    let domain = bench.domain()?;
    for (format, flags, len, data) in [
        (KFI_CQ_FORMAT_CONTEXT, 0, 0, 0),
        (
            KFI_CQ_FORMAT_MSG,
            KFI_MSG | KFI_RECV | KFI_REMOTE_CQ_DATA,
            9,
            0,
        ),
        (
            KFI_CQ_FORMAT_DATA,
            KFI_MSG | KFI_RECV | KFI_REMOTE_CQ_DATA,
            9,
            3_u64,
        ),
    ] {
        let ends = open(&domain, format, 0)?;
        ends.post(OpKind::Recv, 8, LocalMem::new())?;
        bench.a.control.endpoint()?.complete(Ended {
            len: 9,
            imm: Some(3),
            ..Ended::default()
        })?;
        let completion = ends.completion().ok_or(ENOENT)?;
        check_eq!(completion.context, 8);
        check_eq!(completion.flags, flags);
        check_eq!(completion.len, len);
        check_eq!(completion.data, data);
    }
    Ok(())
}

/// Opens an enabled endpoint with this format and these bind flags.
fn open(domain: &Arc<kfabric::objects::domain::Domain>, format: u32, flags: u64) -> Result<Ends> {
    let eq = Eq::open(domain.fabric(), 0, None)?;
    let cq = Cq::open(domain, 4, format, None)?;
    let ep = Endpoint::open(domain, &EpAttr::default(), None)?;
    ep.bind_eq(&eq)?;
    ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV | flags)?;
    ep.enable()?;
    Ok(Ends { ep, cq, eq })
}

fn selective(bench: &Bench) -> Outcome {
    let ends = open(&bench.domain()?, 0, KFI_SELECTIVE_COMPLETION)?;
    let device = bench.a.control.endpoint()?;
    // The queue has four places; an operation without an entry returns its place.
    for context in 0..20 {
        ends.post(OpKind::Recv, context, LocalMem::new())?;
        device.complete(Ended::default())?;
    }
    check!(ends.completion().is_none());
    let wanted = Post {
        flags: KFI_COMPLETION,
        ..plain(OpKind::Recv, 21, LocalMem::new())
    };
    ends.ep.post(wanted)?;
    device.complete(Ended::default())?;
    check_eq!(ends.completion().ok_or(ENOENT)?.context, 21);
    // A failure always has an entry.
    ends.post(OpKind::Recv, 22, LocalMem::new())?;
    device.complete(Ended {
        err: bindings::EIO,
        ..Ended::default()
    })?;
    check_eq!(ends.completion().ok_or(ENOENT)?.err, bindings::EIO);
    check_eq!(ends.ep.completed(), 22);
    Ok(())
}

fn counters(bench: &Bench) -> Outcome {
    let domain = bench.domain()?;
    let ends = Ends::new(&domain, 0)?;
    let (sends, receives) = (Cntr::open(&domain)?, Cntr::open(&domain)?);
    ends.ep.bind_cntr(&sends, KFI_SEND)?;
    ends.ep.bind_cntr(&receives, KFI_RECV)?;
    check_err!(ends.ep.bind_cntr(&sends, KFI_SEND), EINVAL);
    check_err!(ends.ep.bind_cntr(&sends, 0), EINVAL);
    ends.ep.enable()?;
    ends.post(OpKind::Recv, 1, LocalMem::new())?;
    ends.post(OpKind::Recv, 2, LocalMem::new())?;
    let device = bench.a.control.endpoint()?;
    device.complete(Ended::default())?;
    device.complete(Ended {
        err: bindings::EIO,
        ..Ended::default()
    })?;
    check_eq!(receives.read().value, 1);
    check_eq!(receives.read().errors, 1);
    check_eq!(sends.read().value, 0);
    receives.wait(1, u64::MAX)?;
    // The deadline has passed.
    check_err!(receives.wait(2, 1), ETIMEDOUT);
    receives.update(|counts| counts.value = 0);
    check_eq!(receives.read().value, 0);
    Ok(())
}

/// Counts its calls.
struct Told(AtomicU32);

impl CqHandler for Told {
    fn completed(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn handler(bench: &Bench) -> Outcome {
    let domain = bench.domain()?;
    let told = Arc::new(Told(AtomicU32::new(0)), GFP_KERNEL)?;
    let eq = Eq::open(domain.fabric(), 0, None)?;
    let cq = Cq::open(&domain, 0, 0, Some(told.clone()))?;
    let ep = Endpoint::open(&domain, &EpAttr::default(), None)?;
    ep.bind_eq(&eq)?;
    ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV)?;
    ep.enable()?;
    let ends = Ends { ep, cq, eq };
    ends.post(OpKind::Recv, 1, LocalMem::new())?;
    check_eq!(told.0.load(Ordering::Relaxed), 0);
    bench.a.control.endpoint()?.complete(Ended::default())?;
    check_eq!(told.0.load(Ordering::Relaxed), 1);
    Ok(())
}

fn states(bench: &Bench) -> Outcome {
    let ends = Ends::new(&bench.domain()?, 0)?;
    let send = || ends.post(OpKind::Send, 1, LocalMem::new());
    let recv = || ends.post(OpKind::Recv, 2, LocalMem::new());
    check_err!(send(), EINVAL);
    check_err!(recv(), EINVAL);
    ends.ep.enable()?;
    check_err!(send(), enotconn());
    recv()?;
    ends.ep.connect(&ipv4([192, 0, 2, 9], 1), &[])?;
    check_err!(send(), enotconn());
    recv()?;
    let sink = bench.a.control.endpoint()?.sink.clone();
    sink.connected(&[]);
    send()?;
    recv()?;
    sink.shutdown(0);
    check_err!(send(), enotconn());
    check_err!(recv(), enotconn());
    check_eq!(ends.ep.outstanding(), 4);
    Ok(())
}

fn refusals(bench: &Bench) -> Outcome {
    let domain = bench.domain()?;
    let ends = Ends::connected(&domain, 0, &bench.a.control)?;
    let memory = region(&domain, 1, KFI_SEND, false)?;
    let mut segs = LocalMem::new();
    // Not inside, not registered for this use, too many.
    check_err!(segs.push(OpKind::Send, memory.clone(), 4096, 1), EINVAL);
    check_err!(segs.push(OpKind::Send, memory.clone(), 1, u64::MAX), EINVAL);
    check_err!(segs.push(OpKind::Recv, memory.clone(), 0, 1), EACCES);
    check_err!(segs.push(OpKind::Write, memory.clone(), 0, 1), EACCES);
    check!(segs.is_empty());
    for _ in 0..KFI_IOV_MAX {
        segs.push(OpKind::Send, memory.clone(), 0, 1)?;
    }
    check_err!(segs.push(OpKind::Send, memory.clone(), 0, 1), EINVAL);
    // More pieces than the endpoint was opened for.
    check_err!(ends.post(OpKind::Send, 1, segs), EINVAL);

    let data = [0_u8; INJECT_SIZE as usize + 1];
    let inject = |kind, len: usize, flags| {
        ends.ep.post(Post {
            flags: KFI_INJECT | flags,
            inject: &data[..len],
            ..plain(kind, 1, LocalMem::new())
        })
    };
    check_err!(inject(OpKind::Send, data.len(), 0), EMSGSIZE);
    check_err!(inject(OpKind::Recv, 1, 0), EINVAL);
    check_err!(inject(OpKind::Read, 1, 0), EINVAL);
    check_err!(inject(OpKind::Send, 1, 1 << 60), EINVAL);
    let with = |flags, data| {
        ends.ep.post(Post {
            flags,
            data,
            ..plain(OpKind::Send, 1, LocalMem::new())
        })
    };
    check_err!(with(KFI_REMOTE_CQ_DATA, 1 << 32), EINVAL);
    check_err!(with(KFI_SELECTIVE_COMPLETION, 0), EINVAL);
    let longer = region(&domain, (MAX_MSG_SIZE >> 12) as usize + 1, KFI_SEND, false)?;
    let mut segs = LocalMem::new();
    segs.push(OpKind::Send, longer, 0, MAX_MSG_SIZE + 1)?;
    check_err!(ends.post(OpKind::Send, 1, segs), EMSGSIZE);
    check_eq!(ends.ep.outstanding(), 0);
    // An injected operation has an entry only if it fails.
    inject(OpKind::Send, data.len() - 1, 0)?;
    bench.a.control.endpoint()?.complete(Ended::default())?;
    check!(ends.completion().is_none());
    Ok(())
}

/// Waits up to 5 s until at most `count` regions exist. If an operation has the last reference to a
/// region, a worker drops the region.
fn regions_left(bench: &Bench, count: u32) -> Outcome {
    let regions = &bench.a.control.regions;
    for _ in 0..500 {
        if regions.load(Ordering::Acquire) <= count {
            break;
        }
        fsleep(Delta::from_millis(10));
    }
    check_eq!(regions.load(Ordering::Acquire), count);
    Ok(())
}

fn outlives(bench: &Bench) -> Outcome {
    let control = &bench.a.control;
    // Regions of earlier tests.
    regions_left(bench, 0)?;
    let domain = bench.domain()?;
    let ends = Ends::connected(&domain, 0, control)?;
    let memory = region(&domain, 1, KFI_SEND, false)?;
    let mut segs = LocalMem::new();
    segs.push(OpKind::Send, memory.clone(), 0, 8)?;
    ends.post(OpKind::Send, 1, segs)?;
    memory.close()?;
    drop(memory);
    check_eq!(control.regions.load(Ordering::Acquire), 1);
    control.endpoint()?.complete(Ended::default())?;
    regions_left(bench, 0)
}

fn many(bench: &Bench) -> Outcome {
    let control = &bench.a.control;
    let ends = Ends::connected(&bench.domain()?, 8, control)?;
    let device = control.endpoint()?;
    let (mut posted, mut seen, mut full) = (0_u64, 0_u64, 0_u64);
    while seen < 100_000 {
        match ends.post(OpKind::Send, posted, LocalMem::new()) {
            Ok(()) => posted += 1,
            Err(e) if e == EAGAIN => {
                full += 1;
                while device.complete(Ended::default()).is_ok() {}
                // In order, each once; a read may leave some completions.
                let mut entries = [CqEntry::default(); 5];
                let count = ends.cq.read(&mut entries);
                for entry in &entries[..count] {
                    check_eq!(entry.context, seen);
                    seen += 1;
                }
            }
            Err(e) => return Err(e.into()),
        }
    }
    check!(full > 1000);
    Ok(())
}
