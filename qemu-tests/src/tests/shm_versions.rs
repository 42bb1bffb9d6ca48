// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs with different versions of the protocol in the rings: the kernel carries their messages.

use super::library::Lib;
use crate::buf::Buf;
use crate::harness::{Ctx, Test, SHM};
use crate::op::{self, iov};
use crate::pair::{self, Opts, Pair, Side};
use crate::raw;
use anyhow::{ensure, Result};
use kfabric_pure::pipe::VERSION;
use kfabric_uapi::*;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("shm_rings.peers_of_other_versions_use_the_kernel", others).on(SHM),
    Test::pair("shm_rings.version_without_flag_is_refused", unflagged).on(SHM),
    Test::pair(
        "shm_rings.library_shares_rings_with_its_version_alone",
        library,
    )
    .on(SHM),
];

/// Returns the state of the endpoint's rings.
fn state(pair: &Pair) -> raw::Result<EpRings> {
    let mut rings = EpRings {
        ep: pair.ep,
        ..EpRings::default()
    };
    pair.dev().call(&mut rings)?;
    Ok(rings)
}

/// Only ends with equal versions get rings. Messages arrive in either case.
fn others(ctx: &mut Ctx) -> Result<()> {
    for versions in [[0, 1], [1, 0], [7, 7], [u32::MAX, 0]] {
        let own = versions[usize::from(!ctx.first())];
        let opts = Opts {
            rings: Some(own),
            ..Opts::default()
        };
        let pair = Pair::with(ctx, &opts)?;
        let rings = state(&pair)?;
        if versions[0] == versions[1] {
            ensure!(rings.state == KFI_RINGS_SHARED, "{versions:?}: {rings:?}");
            drop(crate::sys::own_fd(rings.fd));
            ctx.barrier("done")?;
            continue;
        }
        ensure!(rings.state == KFI_RINGS_NONE, "{versions:?}: {rings:?}");
        ensure!(rings.fd == -1, "{versions:?}: {rings:?}");
        let buf = Buf::new(4096)?;
        let region = pair.reg(&buf)?;
        pair.post(op::recv(1, &[iov(region, 0, 64)]))?;
        ctx.barrier("posted")?;
        pair.post(op::inject(op::send(2, &[]), &[own as u8; 10]))?;
        let got = pair.wait_context(1)?;
        ensure!(got.len == 10, "{got:?}");
        let theirs = versions[usize::from(ctx.first())];
        buf.check_value(0, 10, theirs as u8)?;
        ctx.barrier("done")?;
    }
    Ok(())
}

/// An endpoint of the library shares rings with a peer of the library's version, and exchanges messages
/// through the kernel with peers of any other version.
fn library(ctx: &mut Ctx) -> Result<()> {
    for (theirs, shared) in [(VERSION, true), (VERSION + 1, false), (u32::MAX, false)] {
        if ctx.first() {
            let lib = Lib::with_rings(ctx, true)?;
            let ep = lib.accept_one(ctx)?;
            ensure!(ep.has_rings() == Some(shared), "version {theirs}");
            ctx.barrier("asked")?;
            if !shared {
                ctx.barrier("posted")?;
                ep.inject(&[5; 10])?;
            }
            ctx.barrier("done")?;
            continue;
        }
        let side = Side::open(ctx)?;
        let opts = Opts {
            rings: Some(theirs),
            ..Opts::default()
        };
        let cq = side.cq(opts.cq_depth, opts.cq_format)?;
        let port: u16 = ctx.ctl.recv()?;
        let got = pair::connect_one(&side, &opts, &cq, ctx.env.peer_at(port))?;
        let pair = Pair {
            ep: got.handle,
            side,
            cq,
            got,
        };
        ctx.barrier("asked")?;
        let rings = state(&pair)?;
        if shared {
            ensure!(rings.state == KFI_RINGS_SHARED, "{rings:?}");
            drop(crate::sys::own_fd(rings.fd));
        } else {
            ensure!(rings.state == KFI_RINGS_NONE, "{rings:?}");
            let buf = Buf::new(4096)?;
            let region = pair.reg(&buf)?;
            pair.post(op::recv(1, &[iov(region, 0, 64)]))?;
            ctx.barrier("posted")?;
            let came = pair.wait_context(1)?;
            ensure!(came.len == 10, "{came:?}");
            buf.check_value(0, 10, 5)?;
        }
        ctx.barrier("done")?;
    }
    Ok(())
}

/// A version needs the flag, like any other value of a field that is not used.
fn unflagged(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let side = crate::pair::Side::open(ctx)?;
        let refused = side.dev.ep_open(&EpOpen {
            domain: side.domain.handle,
            rings_version: 1,
            ..EpOpen::default()
        });
        let errno = refused.err().map(|e| e.errno.0);
        ensure!(errno == Some(libc::EINVAL), "{errno:?}");
    }
    ctx.barrier("done")
}
