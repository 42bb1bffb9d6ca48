// SPDX-License-Identifier: MIT OR Apache-2.0

//! A descriptor in the hands of a process with other rights than its opener.

use crate::buf::Buf;
use crate::harness::Ctx;
use crate::pair::{Side, LOCAL, REMOTE, WAIT};
use crate::raw::{device_path, Dev};
use crate::sys::{self, Ended};
use crate::tests::refused;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;

/// A privileged program may write to a descriptor that another user made its standard output: every
/// write is refused, and a call has no more rights than the opener. A program that dropped its
/// privileges has none through an inherited descriptor.
pub(super) fn inherited_descriptor(ctx: &mut Ctx) -> Result<()> {
    let mode = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(device_path(), mode)?;
    // An object of root's that other users must not see.
    let secret = Side::open(ctx)?;
    let buf = Buf::new(4096)?;
    let region = secret.reg(&buf, LOCAL | REMOTE)?.handle;
    let (slot, _) = secret.export(region, 0, 100, REMOTE)?;

    let (ours, theirs) = UnixStream::pair()?;
    let env = ctx.env.clone();
    let attacker = sys::fork(|| {
        let run = || -> Result<()> {
            sys::become_nobody()?;
            let side = Side::of(&env)?;
            sys::send_fd(theirs.as_fd(), side.dev.as_fd())?;
            // Wait until the privileged process is done.
            (&theirs).read_exact(&mut [0])?;
            let me = std::process::id();
            let list = side.dev.obj_list()?;
            let own = list.iter().filter(|o| o.pid == me).count();
            ensure!(own == 3, "{own} objects instead of 3");
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
    let inherited = sys::recv_fd(ours.as_fd())?;
    let written = writes_are_refused(File::from(inherited.try_clone()?));
    let listed = privileged_calls(Dev::from_fd(inherited), attacker as u32);
    (&ours).write_all(&[1])?;
    let end = sys::wait_pid(attacker, WAIT)?;
    written?;
    listed?;
    ensure!(end == Some(Ended::Exit(0)), "the attacker: {end:?}");

    // The reverse case.
    let me = std::process::id();
    let child = sys::fork(|| {
        let run = || -> Result<()> {
            sys::set_limit(libc::RLIMIT_MEMLOCK, 0)?;
            sys::become_nobody()?;
            for o in secret.dev.obj_list()? {
                ensure!(o.pid == me, "an object of process {} is shown", o.pid);
            }
            // The process may register its own memory, within its own limit.
            let own = Buf::new(4096)?;
            let r = secret.reg(&own, LOCAL);
            refused(r, libc::ENOMEM, "a region beyond the child's limit")?;
            // The child may not export the opener's memory.
            let more = secret.dev.key_alloc(region, 1)?[0];
            let r = secret.dev.key_assign(more, 0, 8, REMOTE);
            refused(r, libc::EACCES, "a key for another process's memory")?;
            Ok(())
        };
        match run() {
            Ok(()) => 0,
            Err(e) => {
                eprintln!("without privileges: {e:#}");
                1
            }
        }
    })?;
    let end = sys::wait_pid(child, WAIT)?;
    ensure!(end == Some(Ended::Exit(0)), "without privileges: {end:?}");
    secret
        .dev
        .key_revoke(slot)
        .context("the key is as it was")?;
    Ok(())
}

/// Tries every way to write to a descriptor of unknown type.
fn writes_are_refused(mut file: File) -> Result<()> {
    // Bytes that would be a call if calls were made by writing: a number, a size, an address.
    let mut command = [0u8; 64];
    command[..4].copy_from_slice(&KFI_IOC_OBJ_LIST.to_ne_bytes());
    command[4..8].copy_from_slice(&48u32.to_ne_bytes());
    let no = |r: std::io::Result<usize>, what: &str| match r {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => anyhow::bail!("{what}: {other:?}"),
    };
    no(file.write(&command), "a write")?;
    no(file.write(&[]), "an empty write").or_else(|_| Ok::<_, anyhow::Error>(()))?;
    let parts = [
        std::io::IoSlice::new(&command),
        std::io::IoSlice::new(&command),
    ];
    no(file.write_vectored(&parts), "a vectored write")?;
    let placed = file.write_at(&command, 0);
    ensure!(placed.is_err(), "a write at an offset: {placed:?}");
    let read = file.read(&mut command);
    ensure!(read.is_err(), "a read: {read:?}");
    let _ = file.seek(SeekFrom::Start(0));
    // Copies without the program's memory: sendfile(2), splice(2), copy_file_range(2).
    let mut source = sys::memfd(4096).map(|f| f.try_clone())??;
    let copied = std::io::copy(&mut source, &mut file);
    ensure!(copied.is_err(), "copied {copied:?} bytes");
    Ok(())
}

/// Root makes calls through a descriptor that an unprivileged user opened.
fn privileged_calls(dev: Dev, opener: u32) -> Result<()> {
    for o in dev.obj_list()? {
        ensure!(o.pid == opener, "an object of process {} is shown", o.pid);
    }
    Ok(())
}
