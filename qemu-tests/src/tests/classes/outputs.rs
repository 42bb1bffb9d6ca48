// SPDX-License-Identifier: MIT OR Apache-2.0

//! Answers that the kernel cannot write.

use super::{held, times};
use crate::harness::leaks::{pinned, vm_pin};
use crate::harness::Ctx;
use crate::sys::{memfd, own_fd, Errno, Map};
use crate::tests::uapi::specimen::{specimens, Fixture, Specimen};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::mem::{offset_of, size_of};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// State that a call may leave behind: objects and keys, descriptors, pinned bytes.
type There = (Vec<String>, usize, u64);

fn there(f: &Fixture) -> Result<There> {
    let descriptors = std::fs::read_dir("/proc/self/fd")?.count();
    Ok((held(f.dev())?, descriptors, vm_pin()))
}

/// Makes each call that writes an answer with the answer on a read-only page, running over into an
/// unmapped page, and becoming read-only while the call runs.
pub(super) fn answers_lost(ctx: &mut Ctx) -> Result<()> {
    // Pins are counted for the whole guest, so only one half runs the test.
    if !ctx.first() {
        return Ok(());
    }
    let names = {
        let f = Fixture::new(&ctx.env)?;
        let list = specimens(&f);
        let answers = list.iter().filter(|s| s.repeats || s.opens || is_assign(s));
        answers.map(|s| s.name).collect::<Vec<_>>()
    };
    ensure!(names.len() >= 12, "only {names:?} answer anything");
    let before = pinned();
    for name in names {
        let f = Fixture::new(&ctx.env)?;
        let list = specimens(&f);
        let s = list.iter().find(|s| s.name == name).context("a specimen")?;
        never(&f, s).context(name)?;
        arrays(&f, s).context(name)?;
        sometimes(&f, s).context(name)?;
    }
    // The other node's test pins pages too if both are on one machine.
    if !ctx.env.has_peer() {
        ensure!(
            pinned() == before,
            "{} pages stay pinned",
            pinned() - before
        );
    }
    Ok(())
}

fn is_assign(s: &Specimen) -> bool {
    [<KeyAssign as Ioctl>::NR, <KeyAssignMany as Ioctl>::NR].contains(&s.nr)
}

/// Puts the answer on memory that is read-only from the start.
fn never(f: &Fixture, s: &Specimen) -> Result<()> {
    let own = s.bytes.len();
    let map = Map::anon(8192)?;
    // The structure ends with the page, then runs over into a read-only page at every eight bytes.
    for into in (0..own).step_by(8) {
        let at = 4096 - into;
        map.write(at, &s.bytes);
        map.protect(4096, 4096, libc::PROT_READ)?;
        let before = there(f)?;
        let answer = f.dev().call_at(s.nr, map.addr() as usize + at);
        map.protect(4096, 4096, libc::PROT_READ | libc::PROT_WRITE)?;
        ensure!(
            answer == Err(Errno(libc::EFAULT)),
            "{into} bytes: {answer:?}"
        );
        let after = there(f)?;
        ensure!(before == after, "{into} bytes: {before:?}, then {after:?}");
    }
    Ok(())
}

/// Ends output arrays at unwritable memory, after 0, 1, … of their bytes.
fn arrays(f: &Fixture, s: &Specimen) -> Result<()> {
    let (at, step) = if s.nr == <GetInfo as Ioctl>::NR {
        (offset_of!(GetInfo, entries), size_of::<InfoEntry>())
    } else if s.nr == <ObjList as Ioctl>::NR {
        (offset_of!(ObjList, entries), size_of::<ObjInfo>())
    } else if s.nr == <KeyAlloc as Ioctl>::NR {
        (offset_of!(KeyAlloc, handles), 8)
    } else {
        return Ok(());
    };
    let map = Map::anon(8192)?;
    map.protect(4096, 4096, libc::PROT_NONE)?;
    for room in [0, 1, 7, 8, 9, step - 1, step] {
        let mut bytes = s.bytes.clone();
        let place = map.addr() + 4096 - room as u64;
        bytes[at..at + 8].copy_from_slice(&place.to_ne_bytes());
        let before = there(f)?;
        let answer = f.dev().call_bytes(s.nr, &mut bytes);
        // There may be only one entry.
        if room == step && s.nr != <KeyAlloc as Ioctl>::NR && answer.is_ok() {
            continue;
        }
        ensure!(
            answer == Err(Errno(libc::EFAULT)),
            "room for {room}: {answer:?}"
        );
        let after = there(f)?;
        ensure!(
            before == after,
            "room for {room}: {before:?}, then {after:?}"
        );
    }
    Ok(())
}

/// Another thread revokes and restores write permission: whether the call succeeds or fails, it is
/// never half done.
fn sometimes(f: &Fixture, s: &Specimen) -> Result<()> {
    // Two mappings of one page: the test writes through the mapping that stays writable.
    let file = memfd(4096)?;
    let place = Map::file(file.as_fd(), 4096, true)?;
    let map = Map::file(file.as_fd(), 4096, true)?;
    let over = AtomicBool::new(false);
    let (mut taken, mut refused) = (0, 0);
    std::thread::scope(|scope| -> Result<()> {
        scope.spawn(|| {
            let both = libc::PROT_READ | libc::PROT_WRITE;
            while !over.load(Ordering::Relaxed) {
                let _ = map.protect(0, 4096, libc::PROT_READ);
                std::thread::yield_now();
                let _ = map.protect(0, 4096, both);
                std::thread::yield_now();
            }
            let _ = map.protect(0, 4096, both);
        });
        let mut work = || -> Result<()> {
            for _ in 0..times(40) {
                place.write(0, &s.bytes);
                let before = there(f)?;
                match f.dev().call_at(s.nr, map.addr() as usize) {
                    Ok(()) => {
                        taken += 1;
                        undo(f, s, &place)?;
                    }
                    Err(Errno(libc::EFAULT)) => refused += 1,
                    Err(e) => ensure!(s.may_fail.contains(&e.0), "{e}"),
                }
                let after = there(f)?;
                ensure!(before == after, "{before:?}, then {after:?}");
            }
            Ok(())
        };
        let done = work();
        over.store(true, Ordering::Relaxed);
        done
    })?;
    eprintln!("{}: {taken} taken, {refused} answers lost", s.name);
    Ok(())
}

/// Undoes an accepted call.
fn undo(f: &Fixture, s: &Specimen, map: &Map) -> Result<()> {
    let mut bytes = vec![0u8; s.bytes.len()];
    map.read(0, &mut bytes);
    let u64_at =
        |at: usize| -> Result<u64> { Ok(u64::from_ne_bytes(bytes[at..at + 8].try_into()?)) };
    let fd_at =
        |at: usize| -> Result<i32> { Ok(i32::from_ne_bytes(bytes[at..at + 4].try_into()?)) };
    if s.nr == <KeyAssignMany as Ioctl>::NR {
        return Ok(f.dev().key_revoke(f.batched())?);
    }
    if is_assign(s) {
        f.dev().key_revoke(u64_at(offset_of!(KeyAssign, slot))?)?;
        return Ok(());
    }
    if s.nr == <KeyAlloc as Ioctl>::NR {
        let count = u32::from_ne_bytes(s.bytes[offset_of!(KeyAlloc, count)..][..4].try_into()?);
        let at = u64_at(offset_of!(KeyAlloc, handles))?;
        let mut handles = vec![0u8; 8 * count as usize];
        use std::os::unix::fs::FileExt;
        std::fs::File::open("/proc/self/mem")?.read_exact_at(&mut handles, at)?;
        for handle in handles.chunks_exact(8) {
            f.dev().close(u64::from_ne_bytes(handle.try_into()?))?;
        }
        return Ok(());
    }
    let handle = match s.nr {
        nr if nr == <FabricOpen as Ioctl>::NR => offset_of!(FabricOpen, handle),
        nr if nr == <DomainOpen as Ioctl>::NR => offset_of!(DomainOpen, handle),
        nr if nr == <CntrOpen as Ioctl>::NR => offset_of!(CntrOpen, handle),
        nr if nr == <PepOpen as Ioctl>::NR => offset_of!(PepOpen, handle),
        nr if nr == <EpOpen as Ioctl>::NR => offset_of!(EpOpen, handle),
        nr if nr == <RegionReg as Ioctl>::NR => offset_of!(RegionReg, handle),
        nr if nr == <EqOpen as Ioctl>::NR => {
            drop(own_fd(fd_at(offset_of!(EqOpen, fd))?));
            offset_of!(EqOpen, handle)
        }
        nr if nr == <CqOpen as Ioctl>::NR => {
            drop(own_fd(fd_at(offset_of!(CqOpen, fd))?));
            offset_of!(CqOpen, handle)
        }
        _ => return Ok(()),
    };
    f.dev().close(u64_at(handle)?)?;
    Ok(())
}
