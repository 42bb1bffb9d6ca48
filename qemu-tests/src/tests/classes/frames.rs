// SPDX-License-Identifier: MIT OR Apache-2.0

//! Malformed first messages of a connection.

use super::raw_cm::{RawCm, CONNECT_REQUEST};
use super::times;
use crate::harness::Ctx;
use crate::pair::{Opts, Side, WAIT};
use crate::tests::death::fresh_transfer;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::net::SocketAddr;

/// Returns messages, and the application data of each: one byte says how many bytes of data there
/// are, then the data follow. The connection manager pads with zeros, so missing bytes read as
/// zeros.
fn messages(most: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let text = b"some data".to_vec();
    let framed = |size: u8, data: &[u8]| [&[size][..], data].concat();
    let padded = |data: &[u8], len: usize| {
        let mut data = data.to_vec();
        data.resize(len, 0);
        data
    };
    vec![
        // A valid message.
        (framed(9, &text), text.clone()),
        // No data, and no data announced.
        (vec![], vec![]),
        (vec![0], vec![]),
        // Fewer bytes announced than were sent, more, and more than any message has.
        (framed(4, &text), b"some".to_vec()),
        (framed(40, &text), padded(&text, 40)),
        (framed(255, &text), padded(&text, most)),
        (vec![255; most + 1], vec![255; most]),
        (framed(most as u8, &vec![7; most]), vec![7; most]),
        (framed(0, &vec![7; most]), vec![]),
        (framed(1, &vec![7; most]), vec![7]),
    ]
}

/// Checks the data that the kernel extracted: the expected data, possibly truncated.
fn same(got: &[u8], want: &[u8]) -> Result<()> {
    ensure!(got == want, "{got:x?} instead of {want:x?}");
    Ok(())
}

/// Node 2 sends requests, answers and refusals whose private data is cut off, too long, or has
/// false lengths, and disappears in each state of a connection.
pub(super) fn malformed_first_frames(ctx: &mut Ctx) -> Result<()> {
    for round in 0..times(4).min(2) {
        requests(ctx).with_context(|| format!("requests, round {round}"))?;
        answers(ctx).with_context(|| format!("answers, round {round}"))?;
    }
    fresh_transfer(ctx)
}

/// Sends to a listener of node 1's.
fn requests(ctx: &mut Ctx) -> Result<()> {
    // Private data has 56 bytes, of which the first is the length.
    let list = messages(55);
    if !ctx.first() {
        let port: u16 = ctx.ctl.recv()?;
        let to = ctx.env.peer_at(port);
        for (message, _) in &list {
            for _ in 0..3 {
                let mut cm = RawCm::new()?;
                cm.resolve(to).with_context(|| format!("{message:x?}"))?;
                cm.connect(message)?;
                ctx.barrier("asked")?;
                // The peer disappears after node 1 has accepted, refused or not answered, and never
                // completes the connection.
                ctx.barrier("answered")?;
                drop(cm);
                // The next request must not arrive before node 1 has read this connection's end.
                ctx.barrier("ended")?;
            }
        }
        return ctx.barrier("over");
    }
    let side = Side::open(ctx)?;
    let (pep, at) = side.listen(ctx.env.at(0), 0)?;
    ctx.ctl.send(&at.port())?;
    let cq = side.cq(0, 0)?;
    for (message, data) in &list {
        // The kernel refuses false handshake data. If it were reported to the application, the next
        // request would not be the expected one.
        let refused = message.first().is_some_and(|first| *first >= 0xf0);
        for way in 0..3 {
            ctx.barrier("asked")?;
            if refused {
                ctx.barrier("answered")?;
                ctx.barrier("ended")?;
                continue;
            }
            let event = side
                .event(KFI_CONNREQ)
                .with_context(|| format!("{message:x?}, way {way}"))?;
            same(&event.data, data).with_context(|| format!("{message:x?}"))?;
            let mut ep = None;
            match way {
                0 => {
                    let made = side.endpoint(&Opts::default(), &cq, event.raw.connreq)?;
                    side.dev.accept(made.handle, b"yes")?;
                    ep = Some(made.handle);
                }
                1 => side.dev.reject(event.raw.connreq, b"no")?,
                // Closed with the file.
                _ => {}
            }
            ctx.barrier("answered")?;
            if let Some(ep) = ep {
                // The peer disappeared before the connection existed, or a disconnect is reported.
                let told = side.dev.eq_wait(&side.eq, WAIT)?;
                let ends = [KFI_CONN_ERROR, KFI_SHUTDOWN, KFI_CONNECTED];
                ensure!(ends.contains(&told.raw.event), "{:?}", told.raw);
                side.dev.close(ep)?;
            }
            ctx.barrier("ended")?;
        }
    }
    side.dev.close(pep)?;
    ctx.barrier("over")
}

/// Sends to a connecting endpoint of node 1's.
fn answers(ctx: &mut Ctx) -> Result<()> {
    const PORT: u16 = 7471;
    let list: Vec<_> = [(true, 195), (false, 147)]
        .into_iter()
        .flat_map(|(accept, most)| messages(most).into_iter().map(move |m| (accept, m)))
        .collect();
    if !ctx.first() {
        let mut cm = RawCm::new()?;
        cm.listen(SocketAddr::new(ctx.env.addr, PORT))?;
        ctx.barrier("listening")?;
        for (accept, (message, _)) in &list {
            let request = cm.wait(CONNECT_REQUEST)?.id;
            if *accept {
                cm.accept(request, message)?;
            } else {
                cm.reject(request, message)?;
            }
            ctx.barrier("told")?;
            cm.destroy(request)?;
            ctx.barrier("closed")?;
            cm = RawCm::new()?;
            cm.listen(SocketAddr::new(ctx.env.addr, PORT))?;
            ctx.barrier("listening again")?;
        }
        return ctx.barrier("over");
    }
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    ctx.barrier("listening")?;
    for (accept, (message, data)) in &list {
        let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
        side.dev.connect(ep, ctx.env.peer_at(PORT), &[])?;
        // For an endpoint without auth key, an answer with handshake data is invalid.
        let refused = message.first().is_some_and(|first| *first >= 0xf0);
        let want = if *accept && !refused {
            KFI_CONNECTED
        } else {
            KFI_CONN_ERROR
        };
        let event = side.event(want)?;
        if !refused {
            same(&event.data, data).with_context(|| format!("{want:#x}: {message:x?}"))?;
        }
        ctx.barrier("told")?;
        ctx.barrier("closed")?;
        side.dev.close(ep)?;
        while side.dev.eq_read(side.eq.handle, 0).is_ok() {}
        ctx.barrier("listening again")?;
    }
    ctx.barrier("over")
}
