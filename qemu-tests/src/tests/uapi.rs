// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rules of every ioctl: one valid call of each kind, and every way to make exactly one part of it
//! invalid.

pub(super) mod specimen;

use super::refused;
use crate::buf::Buf;
use crate::harness::{Ctx, Env, Test};
use crate::op::{self, iov};
use crate::pair::{Side, LOCAL, REMOTE};
use crate::raw::Dev;
use crate::sys::{self, Ended, Errno, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use specimen::{specimens, Fixture, Specimen};
use std::os::fd::AsFd;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("uapi.unknown_call_is_enotty", unknown_calls),
    Test::alone("uapi.wrong_size_is_refused", |ctx| each(ctx, sizes)).seconds(8),
    Test::alone("uapi.unknown_flag_is_refused", |ctx| each(ctx, flags)).seconds(8),
    Test::alone("uapi.nonzero_reserved_field_is_refused", |ctx| {
        each(ctx, reserved)
    })
    .seconds(8),
    Test::alone("uapi.wrong_handle_is_refused", |ctx| each(ctx, handles)).seconds(8),
    Test::alone("uapi.bad_pointer_is_efault", |ctx| each(ctx, pointers)).seconds(8),
    Test::alone("uapi.open_with_unwritable_answer_leaves_nothing", |ctx| {
        each(ctx, read_only_answer)
    })
    .seconds(8),
    Test::alone("uapi.grown_structure_with_zero_tail_is_accepted", |ctx| {
        each(ctx, grown)
    })
    .seconds(8),
    Test::alone(
        "uapi.rules_for_unprivileged_caller_are_the_same",
        unprivileged,
    )
    .seconds(15),
    Test::alone("uapi.wrong_entry_size_is_refused", entry_sizes),
    Test::alone("uapi.submit_with_bad_arguments_is_refused", submit_rules),
    Test::alone(
        "uapi.event_read_with_peek_or_bad_buffer_stays",
        event_buffer,
    ),
    Test::alone("uapi.call_on_other_file_is_enotty", not_a_kfabric_file),
    Test::alone(
        "uapi.read_write_and_mmap_of_file_are_refused",
        no_read_write,
    ),
];

/// Runs `check` on one specimen of each call, then makes the call, which must then succeed.
fn each(ctx: &mut Ctx, check: fn(&Fixture, &Specimen) -> Result<()>) -> Result<()> {
    each_of(&ctx.env, check)
}

fn each_of(env: &Env, check: fn(&Fixture, &Specimen) -> Result<()>) -> Result<()> {
    let fixture = Fixture::new(env)?;
    let list = specimens(&fixture);
    ensure!(
        list.len() == KFI_IOCTLS.len(),
        "{} specimens for {} calls",
        list.len(),
        KFI_IOCTLS.len()
    );
    for s in &list {
        check(&fixture, s).with_context(|| s.name)?;
    }
    for s in &list {
        let mut bytes = s.bytes.clone();
        match fixture.dev().call_bytes(s.nr, &mut bytes) {
            Ok(()) => {}
            // A call that needs a peer must fail for that reason alone.
            Err(e) => ensure!(s.may_fail.contains(&e.0), "{}: the right call: {e}", s.name),
        }
    }
    Ok(())
}

/// Makes an invalid call and checks the refusal.
fn wrong(f: &Fixture, s: &Specimen, bytes: &[u8], errno: i32, what: &str) -> Result<()> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().max(8192), 0);
    match f.dev().call_bytes(s.nr, &mut bytes) {
        Err(e) if e.0 == errno => Ok(()),
        Err(e) => anyhow::bail!("{what}: {e}, not {}", Errno(errno)),
        Ok(()) => anyhow::bail!("{what}: accepted, not refused with {}", Errno(errno)),
    }
}

fn with_size(s: &Specimen, size: u32) -> Vec<u8> {
    let mut bytes = s.bytes.clone();
    bytes[..4].copy_from_slice(&size.to_ne_bytes());
    bytes
}

fn sizes(f: &Fixture, s: &Specimen) -> Result<()> {
    let (first, own) = (s.first as u32, s.bytes.len() as u32);
    for size in [0, 1, 4, 8, first - 1, first - 8] {
        wrong(
            f,
            s,
            &with_size(s, size),
            libc::EINVAL,
            &format!("size {size}"),
        )?;
    }
    for size in [4097, 8192, u32::MAX, 1 << 31] {
        wrong(
            f,
            s,
            &with_size(s, size),
            libc::E2BIG,
            &format!("size {size}"),
        )?;
    }
    for at in [own, own + 7, own + 100] {
        let mut bytes = with_size(s, own + 128);
        bytes.resize(own as usize + 128, 0);
        bytes[at as usize] = 1;
        wrong(
            f,
            s,
            &bytes,
            libc::E2BIG,
            &format!("a tail with a byte at {at}"),
        )?;
    }
    Ok(())
}

/// The zero tail of a newer caller is accepted.
fn grown(f: &Fixture, s: &Specimen) -> Result<()> {
    let own = s.bytes.len() as u32;
    let mut bytes = with_size(s, own + 128);
    bytes.resize(own as usize + 128, 0);
    // A wrong flag shows that the size was accepted.
    bytes[7] = 0x80;
    wrong(
        f,
        s,
        &bytes,
        libc::EINVAL,
        "a zero tail and an unknown flag",
    )?;
    if !s.repeats {
        return Ok(());
    }
    bytes[7] = 0;
    match f.dev().call_bytes(s.nr, &mut bytes) {
        Ok(()) => {}
        Err(e) => ensure!(s.may_fail.contains(&e.0), "a zero tail: {e}"),
    }
    ensure!(
        bytes[own as usize..].iter().all(|b| *b == 0),
        "the tail was written to"
    );
    Ok(())
}

fn flags(f: &Fixture, s: &Specimen) -> Result<()> {
    for bit in 0..32 {
        let flag = 1u32 << bit;
        if s.flags & flag == 0 {
            let mut bytes = s.bytes.clone();
            let old = u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            bytes[4..8].copy_from_slice(&(old | flag).to_ne_bytes());
            wrong(f, s, &bytes, libc::EINVAL, &format!("flag {flag:#x}"))?;
        }
    }
    Ok(())
}

fn reserved(f: &Fixture, s: &Specimen) -> Result<()> {
    for &(at, len) in s.reserved {
        for i in [at, at + len - 1] {
            let mut bytes = s.bytes.clone();
            bytes[i] = 1;
            wrong(f, s, &bytes, libc::EINVAL, &format!("reserved byte {i}"))?;
        }
    }
    Ok(())
}

fn handles(f: &Fixture, s: &Specimen) -> Result<()> {
    for h in &s.handles {
        let try_one = |value: u64, what: &str| {
            let mut bytes = s.bytes.clone();
            bytes[h.at..h.at + 8].copy_from_slice(&value.to_ne_bytes());
            wrong(
                f,
                s,
                &bytes,
                libc::ENOENT,
                &format!("{what} ({value:#x}) at {}", h.at),
            )
        };
        if !h.optional {
            try_one(0, "no handle")?;
        }
        try_one(u64::MAX, "a wild handle")?;
        try_one(0xdead_beef_0000_0001, "a wild generation")?;
        try_one(0x0000_0001_7fff_ffff, "a wild index")?;
        try_one(f.closed, "a closed handle")?;
        try_one(h.wrong, "a handle of another type")?;
        try_one(h.foreign, "another file's handle")?;
    }
    Ok(())
}

fn pointers(f: &Fixture, s: &Specimen) -> Result<()> {
    for at in [0usize, 8, 1 << 46, usize::MAX - 4095, 0xffff_8880_0000_0000] {
        match f.dev().call_at(s.nr, at) {
            Err(Errno(libc::EFAULT)) => {}
            other => anyhow::bail!("the structure at {at:#x}: {other:?}"),
        }
    }
    // The structure ends at an unmapped page, before its own end and exactly there.
    let mut map = Map::anon(8192)?;
    map.punch(4096, 4096)?;
    let own = s.bytes.len();
    map.write(4096 - 8, &s.bytes[..8]);
    let cut = f.dev().call_at(s.nr, (map.addr() + 4096 - 8) as usize);
    ensure!(
        cut == Err(Errno(libc::EFAULT)),
        "a structure cut off: {cut:?}"
    );
    let tail = with_size(s, own as u32 + 8);
    map.write(4096 - own, &tail);
    let cut = f
        .dev()
        .call_at(s.nr, (map.addr() + 4096 - own as u64) as usize);
    ensure!(cut == Err(Errno(libc::EFAULT)), "a tail cut off: {cut:?}");
    std::mem::forget(map);
    for &at in s.pointers {
        for value in [8u64, 1 << 46, 0xffff_8880_0000_0000] {
            let mut bytes = s.bytes.clone();
            bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
            wrong(
                f,
                s,
                &bytes,
                libc::EFAULT,
                &format!("pointer {value:#x} at {at}"),
            )?;
        }
    }
    Ok(())
}

/// If the answer cannot be written, no opened object may stay.
fn read_only_answer(f: &Fixture, s: &Specimen) -> Result<()> {
    if !s.opens {
        return Ok(());
    }
    let me = std::process::id();
    let count =
        || -> Result<usize> { Ok(f.dev().obj_list()?.iter().filter(|o| o.pid == me).count()) };
    let fds = || std::fs::read_dir("/proc/self/fd").map(Iterator::count);
    let file = sys::memfd(4096)?;
    let writable = Map::file(file.as_fd(), 4096, true)?;
    writable.write(0, &s.bytes);
    let read_only = Map::file(file.as_fd(), 4096, false)?;
    let before = (count()?, fds()?, crate::harness::leaks::vm_pin());
    let answer = f.dev().call_at(s.nr, read_only.addr() as usize);
    ensure!(
        answer == Err(Errno(libc::EFAULT)),
        "an answer that cannot be written: {answer:?}"
    );
    let after = (count()?, fds()?, crate::harness::leaks::vm_pin());
    ensure!(
        before == after,
        "objects, descriptors, pins: {before:?} before, {after:?} after"
    );
    Ok(())
}

fn unprivileged(ctx: &mut Ctx) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(crate::raw::device_path(), mode)?;
    let env = ctx.env.clone();
    let pid = sys::fork(|| {
        let run = || -> Result<()> {
            sys::become_nobody()?;
            for check in [
                sizes,
                grown,
                flags,
                reserved,
                handles,
                pointers,
                read_only_answer,
            ] {
                each_of(&env, check)?;
            }
            Ok(())
        };
        match run() {
            Ok(()) => 0,
            Err(e) => {
                eprintln!("as uid 65534: {e:#}");
                1
            }
        }
    })?;
    let end = sys::wait_pid(pid, Duration::from_secs(100))?;
    ensure!(
        end == Some(Ended::Exit(0)),
        "the child without privileges: {end:?}"
    );
    Ok(())
}

fn unknown_calls(_: &mut Ctx) -> Result<()> {
    let dev = Dev::open()?;
    let mut bytes = [0u8; 4096];
    bytes[0] = 64;
    let known: Vec<u8> = KFI_IOCTLS.iter().map(|(nr, _)| *nr as u8).collect();
    for low in 0..=255u8 {
        if !known.contains(&low) {
            let nr = (3 << 30) | (64 << 16) | (KFI_IOC_TYPE << 8) | u32::from(low);
            let answer = dev.call_bytes(nr, &mut bytes);
            ensure!(
                answer == Err(Errno(libc::ENOTTY)),
                "call {low:#x}: {answer:?}"
            );
        }
    }
    for kind in [0u32, 0x1b, 0xbe, 0xff] {
        let nr = (KFI_IOC_GETINFO & !0xff00) | (kind << 8);
        let answer = dev.call_bytes(nr, &mut bytes);
        ensure!(
            answer == Err(Errno(libc::ENOTTY)),
            "type {kind:#x}: {answer:?}"
        );
    }
    // TCGETS, FIONREAD: libraries call these on unknown files.
    for nr in [0x5401, 0x541b] {
        let answer = dev.call_bytes(nr, &mut bytes);
        ensure!(
            answer == Err(Errno(libc::ENOTTY)),
            "call {nr:#x}: {answer:?}"
        );
    }
    Ok(())
}

/// Array entries have a size of their own, which may be wrong too.
fn entry_sizes(ctx: &mut Ctx) -> Result<()> {
    let f = Fixture::new(&ctx.env)?;
    let room = vec![0u8; 1 << 16];
    let at = room.as_ptr() as u64;
    let sizes = |own: usize| [0, 8, own as u32 - 8, 4104, u32::MAX];
    // The structure has grown by its last fields.
    for entry_size in sizes(std::mem::offset_of!(InfoEntry, visible)) {
        let mut arg = GetInfo {
            entries: at,
            count: 1,
            entry_size,
            ..Default::default()
        };
        let taken = f.dev().call(&mut arg).is_ok();
        ensure!(!taken, "GETINFO with entries of {entry_size} bytes: taken");
    }
    // The structure has grown by its last field.
    for entry_size in sizes(std::mem::offset_of!(ObjInfo, auth)) {
        let mut arg = ObjList {
            entries: at,
            count: 1,
            entry_size,
            ..Default::default()
        };
        let taken = f.dev().call(&mut arg).is_ok();
        ensure!(!taken, "OBJ_LIST with entries of {entry_size} bytes: taken");
    }
    let op = op::recv(1, &[]);
    let ops = std::ptr::from_ref(&op) as u64;
    for entry_size in sizes(std::mem::size_of::<OpEntry>()) {
        let mut arg = Submit {
            ep: f.ep,
            ops,
            count: 1,
            entry_size,
            ..Default::default()
        };
        let taken = f.dev().call(&mut arg).is_ok();
        ensure!(!taken, "SUBMIT with entries of {entry_size} bytes: taken");
    }
    // Larger entries of a newer caller, with the rest of each zero.
    let size = std::mem::size_of::<InfoEntry>() + 64;
    let mut arg = GetInfo {
        entries: at,
        count: 4,
        entry_size: size as u32,
        ..Default::default()
    };
    f.dev()
        .call(&mut arg)
        .context("GETINFO with larger entries")?;
    Ok(())
}

fn submit_rules(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let cq = side.cq(0, 0)?;
    let buf = Buf::new(8192)?;
    let region = side.reg(&buf, KFI_SEND | KFI_RECV)?.handle;
    let send_only = side.reg(&buf, KFI_SEND)?.handle;
    let recv_only = side.reg(&buf, KFI_RECV)?.handle;
    let other = dev.domain_open(
        side.fabric,
        &crate::raw::field_text(&crate::pair::own_info(dev, &ctx.env)?.domain_name),
    )?;
    let elsewhere = dev
        .region_reg(other.handle, buf.addr(), 4096, LOCAL | REMOTE, 1)?
        .handle;
    let ep = side.endpoint(&Default::default(), &cq, 0)?.handle;
    let no = |op: OpEntry, errno: i32, what: &str| refused(dev.submit(ep, &[op]), errno, what);
    let recv = op::recv(1, &[iov(region, 0, 100)]);
    let bare = EpOpen {
        domain: side.domain.handle,
        ..Default::default()
    };
    let new = dev.ep_open(&bare)?.handle;
    ensure!(
        dev.submit(new, &[recv]).is_err(),
        "a receive on an endpoint that is not enabled"
    );
    for op in [KFI_OP_COMMIT + 1, 77, u32::MAX] {
        no(OpEntry { op, ..recv }, libc::EINVAL, "an unknown operation")?;
    }
    let known = KFI_COMPLETION | KFI_INJECT | KFI_REMOTE_CQ_DATA | KFI_FENCE;
    let levels = KFI_DELIVERY_COMPLETE | KFI_COMMIT_COMPLETE;
    for bit in (0..64).map(|b| 1u64 << b).filter(|b| b & levels != 0) {
        no(
            op::with_flags(recv, bit),
            libc::EOPNOTSUPP,
            &format!("a receive with flag {bit:#x}"),
        )?;
    }
    let known = known | levels;
    for bit in (0..64).map(|b| 1u64 << b).filter(|b| b & known == 0) {
        no(
            op::with_flags(recv, bit),
            libc::EINVAL,
            &format!("flag {bit:#x}"),
        )?;
    }
    no(op::recv(1, &[iov(0, 0, 8)]), libc::ENOENT, "no region")?;
    no(
        op::recv(1, &[iov(cq.handle, 0, 8)]),
        libc::ENOENT,
        "a region that is a queue",
    )?;
    no(
        op::recv(1, &[iov(region, 8192, 1)]),
        libc::EINVAL,
        "the byte behind the region",
    )?;
    no(
        op::recv(1, &[iov(region, 0, 8193)]),
        libc::EINVAL,
        "a byte too many",
    )?;
    no(
        op::recv(1, &[iov(send_only, 0, 8)]),
        libc::EACCES,
        "a receive into a region for sending",
    )?;
    no(
        op::recv(1, &[iov(elsewhere, 0, 8)]),
        libc::EINVAL,
        "another domain's region",
    )
    .or_else(|_| {
        no(
            op::recv(1, &[iov(elsewhere, 0, 8)]),
            libc::ENOENT,
            "another domain's region",
        )
    })?;
    let not_connected = [libc::ENOTCONN, libc::EACCES];
    let r = dev.submit(ep, &[op::send(1, &[iov(recv_only, 0, 8)])]);
    ensure!(
        r.is_err_and(|e| not_connected.contains(&e.errno.0)),
        "a send from a region for receiving: {r:?}"
    );
    refused(dev.submit(ep, &[]), libc::EINVAL, "no operations")?;
    let many = vec![recv; KFI_SUBMIT_MAX as usize + 1];
    refused(dev.submit(ep, &many), libc::EINVAL, "too many operations")?;
    ensure!(cq.read().is_none(), "a refused operation completed");
    // Unused iov entries do not matter; used ones may be empty.
    let mut odd = recv;
    odd.iov[3] = iov(u64::MAX, u64::MAX, u64::MAX);
    dev.submit(ep, &[odd]).context("rubbish behind the iov")?;
    dev.submit(ep, &[op::recv(2, &[iov(region, 8192, 0)])])
        .context("an empty piece at the end")?;
    Ok(())
}

fn event_buffer(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    // An event that needs no peer: no program listens at the own address.
    let ep = side.endpoint(&Default::default(), &cq, 0)?.handle;
    side.dev.connect(ep, ctx.env.at(9), &[])?;
    crate::harness::guest::until("an event", crate::pair::WAIT, || {
        Ok(sys::poll_in(side.eq.fd.as_fd(), Duration::from_millis(100))?.then_some(()))
    })?;
    let peek = side.dev.eq_read(side.eq.handle, KFI_EQ_PEEK)?;
    ensure!(
        peek.raw.event == KFI_CONN_ERROR && peek.raw.object == ep,
        "{:?}",
        peek.raw
    );
    let mut bad = EqRead {
        eq: side.eq.handle,
        data: 8,
        data_len: 100,
        ..Default::default()
    };
    let r = side.dev.call(&mut bad);
    if r.is_err() {
        refused(r, libc::EFAULT, "a bad buffer")?;
        let event = side
            .dev
            .eq_read(side.eq.handle, 0)
            .context("the event after a bad buffer")?;
        ensure!(event.raw.object == ep, "{:?}", event.raw);
    }
    refused(
        side.dev.eq_read(side.eq.handle, 0),
        libc::EAGAIN,
        "the event is taken",
    )
}

fn not_a_kfabric_file(_: &mut Ctx) -> Result<()> {
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    let r = Dev::from_fd(null.into()).getinfo(None);
    refused(r, libc::ENOTTY, "a call on another file")
}

fn no_read_write(_: &mut Ctx) -> Result<()> {
    use std::io::{Read, Write};
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(crate::raw::device_path())?;
    ensure!(file.read(&mut [0u8; 64]).is_err(), "it can be read");
    ensure!(file.write(&[0u8; 64]).is_err(), "it can be written");
    ensure!(
        Map::file(file.as_fd(), 4096, true).is_err(),
        "it can be mapped"
    );
    Ok(())
}
