// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cases of descriptors: opening and closing the device, mapping and polling queues.

use crate::fault::lab::Lab;
use crate::fault::sweep::{Case, Shot};
use crate::raw::{device_path, CallError, Dev};
use crate::sys::{self, Epoll, Errno, Map};
use anyhow::{ensure, Result};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// The cases.
pub const CASES: &[Case] = &[
    Case::new("open", "", open),
    Case::new("close", "", close),
    Case::new("mmap", "", mmap),
    Case::new("poll", "", poll),
    Case::new("epoll_ctl", "", epoll),
    Case::new("fdinfo", "", fdinfo),
];

fn failed(call: &'static str) -> impl Fn(io::Error) -> CallError {
    move |e| CallError {
        call,
        errno: Errno(e.raw_os_error().unwrap_or(0)),
    }
}

fn answered(call: &'static str) -> impl Fn(Errno) -> CallError {
    move |errno| CallError { call, errno }
}

fn open(_: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let path = device_path();
    let file = shot.call(|| {
        let file = File::options().read(true).write(true).open(&path);
        file.map_err(failed("open"))
    })?;
    Dev::from_fd(file.into()).getinfo(None)?;
    Ok(())
}

/// The last close frees everything, whichever step fails meanwhile.
fn close(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let mut other = Some(Lab::open(&lab.env)?);
    let memory = Map::anon(1 << 16)?;
    if let Some(other) = &mut other {
        super::memory::touch(&memory);
        let region = super::memory::register(other, &memory, 1)?;
        let slots = other.dev.key_alloc(region, 2)?;
        super::memory::assign(other, slots[0], 4096)?;
        other.dev.cntr_open(other.domain)?;
        other.link()?;
        other.request()?;
    }
    // A close reports no failure; the sweep checks for leftovers.
    let answer = shot.once(|| {
        drop(other.take());
        Ok(())
    })?;
    ensure!(answer.is_ok(), "a close cannot fail");
    Ok(())
}

fn mmap(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let len = lab.cq.map().len();
    let fd = lab.cq.fd.as_fd();
    let map = shot.call(|| Map::file(fd, len, true).map_err(answered("mmap")))?;
    ensure!(map.load32(0) == lab.cq.head(), "another ring");
    Ok(())
}

fn poll(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let fd = lab.cq.fd.as_fd();
    let there = shot.call(|| sys::poll_in(fd, Duration::ZERO).map_err(answered("poll")))?;
    ensure!(!there, "nothing waits");
    Ok(())
}

fn epoll(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let set = Epoll::new()?;
    let fd = lab.eq.fd.as_fd();
    shot.call(|| set.add(fd, libc::EPOLLIN, 7).map_err(answered("epoll_ctl")))?;
    ensure!(set.wait(Duration::ZERO)?.is_none(), "nothing waits");
    Ok(())
}

fn fdinfo(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let path = format!("/proc/self/fdinfo/{}", lab.dev.as_fd().as_raw_fd());
    let mut file = File::open(&path)?;
    let mut room = [0u8; 4096];
    let n = shot.call(|| file.read(&mut room).map_err(failed("read")))?;
    let text = String::from_utf8_lossy(&room[..n]);
    ensure!(text.contains("kfabric-domain:\t1"), "{text}");
    Ok(())
}
