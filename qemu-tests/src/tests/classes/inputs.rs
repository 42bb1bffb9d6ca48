// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers and addresses at their limits, and input that changes while the kernel reads it.

use super::{held, taken, times};
use crate::buf::Buf;
use crate::harness::leaks::vm_pin;
use crate::harness::Ctx;
use crate::op::{self, iov};
use crate::pair::{Opts, Pair, Side, LOCAL, REMOTE};
use crate::sys::{Errno, Map};
use crate::tests::refused;
use crate::tests::uapi::specimen::{specimens, Fixture, Specimen};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicBool, Ordering};

/// Errnos that may refuse a call with an odd number.
const REASONS: &[i32] = &[
    libc::EINVAL,
    libc::E2BIG,
    libc::EMSGSIZE,
    libc::EFAULT,
    libc::ENOMEM,
    libc::EOVERFLOW,
    libc::EOPNOTSUPP,
    libc::EAGAIN,
    libc::EBUSY,
    libc::ENOENT,
    libc::ENOTCONN,
    libc::EADDRNOTAVAIL,
];

/// A number in a call that is a length or a count.
struct Length {
    nr: u32,
    at: usize,
    /// Bytes of the number: 4 or 8.
    width: usize,
    /// Limit: larger values must be refused.
    most: u64,
}

macro_rules! length {
    ($ty:ident . $field:ident, $width:literal, $most:expr) => {
        Length {
            nr: <$ty as Ioctl>::NR,
            at: offset_of!($ty, $field),
            width: $width,
            most: $most as u64,
        }
    };
}

fn lengths(f: &Fixture) -> Vec<Length> {
    let d = &f.side.domain;
    vec![
        length!(GetInfo.count, 4, u32::MAX),
        length!(GetInfo.entry_size, 4, 4096),
        length!(DomainOpen.auth_key_size, 4, 0),
        length!(DomainOpen.auth_key, 8, 0),
        length!(EqOpen.depth, 4, KFI_EQ_SIZE_MAX),
        length!(CqOpen.depth, 4, KFI_CQ_SIZE_MAX),
        length!(EpOpen.tx_size, 4, d.max_tx_size),
        length!(EpOpen.rx_size, 4, d.max_rx_size),
        length!(EpOpen.iov_limit, 4, d.iov_limit),
        length!(EpOpen.auth_key_size, 4, 0),
        length!(EpOpen.auth_key, 8, 0),
        length!(PepOpen.addr, 4, 28),
        length!(EpOpen.src_addr, 4, 28),
        length!(Connect.addr, 4, 28),
        length!(Listen.backlog, 4, u32::MAX),
        length!(Connect.param_len, 4, KFI_CM_DATA_MAX),
        length!(Accept.param_len, 4, 0),
        length!(Reject.param_len, 4, 0),
        length!(EqRead.data_len, 4, u32::MAX),
        length!(CntrWait.threshold, 8, 0),
        length!(RegionReg.len, 8, AREA),
        length!(KeyAlloc.count, 4, KFI_KEY_ALLOC_MAX),
        length!(KeyAssign.offset, 8, 8192 - 64),
        length!(KeyAssign.length, 8, 8192),
        length!(KeyAssignMany.count, 4, KFI_KEY_ALLOC_MAX),
        length!(KeyAssignMany.entry_size, 4, size_of::<KeyEntry>()),
        length!(KeyRevokeMany.count, 4, 0),
        length!(Submit.count, 4, KFI_SUBMIT_MAX),
        length!(Submit.entry_size, 4, size_of::<OpEntry>()),
        length!(ObjList.count, 4, u32::MAX),
        length!(ObjList.entry_size, 4, 4096),
    ]
}

/// Bytes that calls may write to; the memory behind them is unmapped.
const AREA: usize = 1 << 20;

/// Returns numbers at the limits of a field of `width` bytes, and around `own`, the size of the
/// structure that contains it.
fn ends(width: usize, own: u64, most: u64) -> Vec<u64> {
    let max = if width == 4 {
        u64::from(u32::MAX)
    } else {
        u64::MAX
    };
    let mut values = vec![0, 1, own - 1, own, own + 1, 4095, 4096, 4097];
    values.extend([most, most.wrapping_add(1), 0x7fff_ffff, 0x8000_0000]);
    values.extend([max, max - 1, max - own, max - own + 1, max - 4095, max / 2]);
    values.extend([0xffff_ffff, 0x1_0000_0000, 0x1_0000_0001, 1 << 63]);
    values.retain(|value| *value <= max);
    values.sort_unstable();
    values.dedup();
    values
}

/// Sets every length and count of every call to 0 and 1, around the structure's own size, to its
/// type's maximum and to that less the structure's size.
pub(super) fn lengths_at_their_ends(ctx: &mut Ctx) -> Result<()> {
    let (mut calls, mut accepted) = (0, 0);
    let count = lengths(&Fixture::new(&ctx.env)?).len();
    for i in 0..count {
        let f = Fixture::new(&ctx.env)?;
        let length = &lengths(&f)[i];
        let list = specimens(&f);
        let s = list.iter().find(|s| s.nr == length.nr);
        let s = s.context("no specimen of this call")?;
        for value in ends(length.width, s.bytes.len() as u64, length.most) {
            let fine = one_length(&f, s, length, value)
                .with_context(|| format!("{}: {value:#x} at {}", s.name, length.at))?;
            calls += 1;
            accepted += u32::from(fine);
        }
    }
    eprintln!("{calls} calls, {accepted} taken");
    operation_lengths(ctx)
}

fn one_length(f: &Fixture, s: &Specimen, length: &Length, value: u64) -> Result<bool> {
    let mut area = Map::anon(AREA + 4096)?;
    area.punch(AREA, 4096)?;
    area.set(0, 0);
    let mut bytes = s.bytes.clone();
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    // Output arrays end before unmapped memory.
    let outputs = [
        (<GetInfo as Ioctl>::NR, offset_of!(GetInfo, entries)),
        (<ObjList as Ioctl>::NR, offset_of!(ObjList, entries)),
        (<KeyAlloc as Ioctl>::NR, offset_of!(KeyAlloc, handles)),
        (<EqRead as Ioctl>::NR, offset_of!(EqRead, data)),
        (<RegionReg as Ioctl>::NR, offset_of!(RegionReg, addr)),
    ];
    for (_, at) in outputs.iter().filter(|(nr, _)| *nr == s.nr) {
        put(*at, &area.addr().to_ne_bytes());
    }
    if s.nr == <CntrWait as Ioctl>::NR {
        put(offset_of!(CntrWait, deadline), &1u64.to_ne_bytes());
    }
    put(length.at, &value.to_ne_bytes()[..length.width]);
    let before = (held(f.dev())?, vm_pin());
    let answer = f.dev().call_bytes(s.nr, &mut bytes);
    // The area's end is a hole now, which drop must not unmap once more.
    std::mem::forget(area);
    match answer {
        Ok(()) => {
            ensure!(value <= length.most, "taken");
            return Ok(true);
        }
        Err(Errno(libc::ETIMEDOUT)) if s.nr == <CntrWait as Ioctl>::NR => {}
        Err(e) => ensure!(REASONS.contains(&e.0), "{e}"),
    }
    let after = (held(f.dev())?, vm_pin());
    ensure!(
        before == after,
        "objects, pins: {before:?} before, {after:?} after a refusal"
    );
    Ok(false)
}

/// Does the same with the numbers of an operation.
fn operation_lengths(ctx: &mut Ctx) -> Result<()> {
    const SIZE: u64 = 8192;
    let side = Side::open(ctx)?;
    let cq = side.cq(4096, KFI_CQ_FORMAT_DATA)?;
    let buf = Buf::new(SIZE as usize)?;
    let region = side.reg(&buf, LOCAL)?.handle;
    let opts = Opts {
        rx_size: 512,
        ..Default::default()
    };
    let ep = side.endpoint(&opts, &cq, 0)?.handle;
    let own = size_of::<OpEntry>() as u64;
    let mut accepted = 0u32;
    for value in ends(8, own, SIZE) {
        // Offset and length, and whether they lie inside.
        for (piece, fine) in [
            (iov(region, value, 1), value < SIZE),
            (iov(region, value, 0), value <= SIZE),
            (iov(region, 0, value), value <= SIZE),
            (iov(region, 1, value), value < SIZE),
            (iov(region, value, value), value <= SIZE / 2),
        ] {
            let answer = side.dev.submit(ep, &[op::recv(0, &[piece])]);
            let was = taken(answer, &[libc::EINVAL], "a receive")?;
            ensure!(was == fine, "{piece:x?}: {was}, not {fine}");
            accepted += u32::from(was);
        }
        // A receive has no payload of its own, and a send with a payload is not connected.
        let odd = OpEntry {
            op: KFI_OP_SEND,
            flags: KFI_INJECT,
            inject: buf.addr(),
            inject_len: value,
            ..Default::default()
        };
        let reasons = [libc::EMSGSIZE, libc::ENOTCONN];
        let was = taken(side.dev.submit(ep, &[odd]), &reasons, "an injected send")?;
        ensure!(!was, "an injected send of {value:#x} bytes: taken");
    }
    side.dev.close(ep)?;
    let mut ended = 0;
    while let Some(e) = cq.read() {
        ensure!(e.err != 0 && e.len == 0 && e.buf <= SIZE, "{e:?}");
        ended += 1;
    }
    ensure!(ended == accepted, "{ended} of {accepted} receives ended");
    buf.check_guards()
}

/// Passes more pieces, receives or operations than the limits allow.
pub(super) fn counts_beyond_limits(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(64, 0)?;
    let buf = Buf::new(4096)?;
    let region = side.reg(&buf, LOCAL)?.handle;
    for limit in 1..=side.domain.iov_limit {
        let opts = Opts {
            iov_limit: limit,
            rx_size: 16,
            ..Default::default()
        };
        let ep = side.endpoint(&opts, &cq, 0)?;
        let mut posted = 0;
        let most = KFI_IOV_MAX as u32;
        for count in (0..=most + 1).chain([255, 256, 1 << 31, u32::MAX - 1, u32::MAX]) {
            let pieces = [iov(region, 8, 8); KFI_IOV_MAX];
            let entry = OpEntry {
                iov_count: count,
                ..op::recv(0, &pieces)
            };
            let was = taken(side.dev.submit(ep.handle, &[entry]), &[libc::EINVAL], "")?;
            ensure!(
                was == (count <= ep.iov_limit),
                "{count} pieces for {}: {was}",
                ep.iov_limit
            );
            posted += u32::from(was);
        }
        let one = [op::recv(0, &[]); 32];
        let (done, err) = side.dev.submit(ep.handle, &one)?;
        ensure!(
            done as u32 + posted == ep.rx_size && err == libc::EAGAIN,
            "{posted} and {done} receives for {}, errno {err}",
            ep.rx_size
        );
        side.dev.close(ep.handle)?;
        let mut ended = 0;
        while cq.read().is_some() {
            ended += 1;
        }
        ensure!(ended == ep.rx_size, "{ended} of {} ended", ep.rx_size);
    }
    Ok(())
}

/// Passes ranges whose end is before their start, or would be once rounded to pages.
pub(super) fn ranges_that_wrap(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let side = &pair.side;
    let buf = Buf::new(8192)?;
    buf.clear(0x5a);
    let (region, remote) = crate::tests::rma::exported(ctx, &pair, &buf)?;
    let pinned = vm_pin();
    let page = 4096u64;
    for addr in [
        u64::MAX,
        u64::MAX - 1,
        u64::MAX - page + 1,
        u64::MAX - page,
        1 << 63,
        1,
    ] {
        for len in [
            1,
            2,
            page - 1,
            page,
            page + 1,
            u64::MAX - addr,
            (u64::MAX - addr).wrapping_add(1),
        ] {
            let r = side.reg_at(addr, len, LOCAL);
            let reasons = [libc::EINVAL, libc::EFAULT, libc::ENOMEM];
            ensure!(
                !taken(r, &reasons, "a region")?,
                "{len:#x} at {addr:#x}: taken"
            );
        }
    }
    // From a valid address to the point where the range wraps.
    let end = u64::MAX - buf.addr();
    for len in [end - 4095, end, end + 1, end + 2, end + 4096, u64::MAX] {
        let r = side.reg_at(buf.addr(), len, LOCAL);
        let reasons = [libc::EINVAL, libc::EFAULT, libc::ENOMEM];
        ensure!(!taken(r, &reasons, "a region")?, "{len:#x} bytes: taken");
    }
    ensure!(vm_pin() == pinned, "VmPin was {pinned}, is {}", vm_pin());
    let slot = pair.dev().key_alloc(region, 1)?[0];
    for (offset, len) in [
        (u64::MAX, 1),
        (u64::MAX, 2),
        (1, u64::MAX),
        (8192, u64::MAX - 8191),
        (8191, u64::MAX - 8190),
        (u64::MAX - 8191, 8192),
        (1 << 63, 1 << 63),
    ] {
        let k = pair.dev().key_assign(slot, offset, len, REMOTE);
        refused(
            k,
            libc::EINVAL,
            &format!("a key for {len:#x} at {offset:#x}"),
        )?;
        let piece = [iov(region, offset, len)];
        let r = pair.post(op::recv(1, &piece));
        refused(r, libc::EINVAL, &format!("{len:#x} at {offset:#x}"))?;
    }
    // Arrays whose end wraps.
    let arrays = [u64::MAX - 7, u64::MAX - 127, u64::MAX - 4095];
    for at in arrays {
        let mut submit = Submit {
            ep: pair.ep,
            ops: at,
            count: KFI_SUBMIT_MAX,
            entry_size: size_of::<OpEntry>() as u32,
            ..Default::default()
        };
        refused(pair.dev().call(&mut submit), libc::EFAULT, "operations")?;
        let mut list = ObjList {
            entries: at,
            count: 1000,
            entry_size: size_of::<ObjInfo>() as u32,
            ..Default::default()
        };
        refused(pair.dev().call(&mut list), libc::EFAULT, "a list")?;
        let mut alloc = KeyAlloc {
            region,
            count: 1000,
            handles: at,
            ..Default::default()
        };
        refused(pair.dev().call(&mut alloc), libc::EFAULT, "handles")?;
    }
    // At the peer: the key is valid, but the range wraps or begins before the key's range.
    ctx.barrier("asked here")?;
    if !ctx.first() {
        let at = remote.addr;
        for (i, addr) in [at - 8, at + 8185, u64::MAX - 7, u64::MAX, 0]
            .into_iter()
            .enumerate()
        {
            let write = op::write(1, &[iov(region, 0, 16)], addr, remote.key);
            match pair.post(write) {
                Ok(()) => ensure!(pair.wait_any(crate::pair::WAIT)?.err != 0, "{addr:#x}"),
                // The first refused operation ended the connection.
                Err(e) => ensure!(i > 0 && e.errno.0 == libc::ENOTCONN, "{addr:#x}: {e}"),
            }
        }
    }
    ctx.barrier("asked there")?;
    buf.check_value(0, 8192, 0x5a)?;
    buf.check_guards()
}

/// Another thread changes an operation in memory all the time: the kernel uses the value that it
/// has checked, whatever is in memory afterwards.
pub(super) fn fetched_once(ctx: &mut Ctx) -> Result<()> {
    const FINE: u64 = 40;
    // A byte of one value and the rest of the other still give one of the two.
    const WRONG: u64 = FINE | 1 << 40;
    let side = Side::open(ctx)?;
    let cq = side.cq(1024, KFI_CQ_FORMAT_DATA)?;
    let buf = Buf::new(4096)?;
    let region = side.reg(&buf, LOCAL)?.handle;
    let entry = op::recv(7, &[iov(region, FINE, 64)]);
    let place = Map::anon(4096)?;
    place.write(0, zerocopy::IntoBytes::as_bytes(&entry));
    let at = offset_of!(OpEntry, iov) + offset_of!(Iov, offset);
    let over = AtomicBool::new(false);
    let (mut fine, mut wrong) = (0u64, 0u64);
    std::thread::scope(|s| -> Result<()> {
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                place.set64(at, WRONG);
                place.set64(at, FINE);
            }
        });
        let mut work = || -> Result<()> {
            for round in 0..times(100) {
                let opts = Opts {
                    rx_size: 512,
                    ..Default::default()
                };
                let ep = side.endpoint(&opts, &cq, 0)?;
                let mut posted = 0;
                // As many times as the endpoint accepts the operation.
                for _ in 0..2048 {
                    let mut submit = Submit {
                        ep: ep.handle,
                        ops: place.addr(),
                        count: 1,
                        entry_size: size_of::<OpEntry>() as u32,
                        ..Default::default()
                    };
                    match side.dev.call(&mut submit) {
                        Ok(()) => posted += 1,
                        Err(e) if e.errno.0 == libc::EINVAL => wrong += 1,
                        Err(e) if e.errno.0 == libc::EAGAIN => break,
                        Err(e) => return Err(e.into()),
                    }
                }
                side.dev.close(ep.handle)?;
                let mut ended = 0;
                while let Some(e) = cq.read() {
                    ensure!(
                        e.buf == FINE,
                        "round {round}: a receive at {:#x} was taken",
                        e.buf
                    );
                    ended += 1;
                }
                ensure!(ended == posted, "round {round}: {ended} of {posted} ended");
                fine += posted;
            }
            Ok(())
        };
        let done = work();
        over.store(true, Ordering::Relaxed);
        done
    })?;
    eprintln!("{fine} taken, {wrong} refused");
    ensure!(fine > 0 && wrong > 0, "the two never met");
    Ok(())
}
