// SPDX-License-Identifier: MIT OR Apache-2.0

//! Counts, in the kernel, the system calls of a message through rings: none if both ends poll, one
//! wake-up if the receiver sleeps.

use super::library::Lib;
use crate::harness::guest::until;
use crate::harness::trace::Trace;
use crate::harness::{Ctx, Test, SHM};
use crate::pair::WAIT;
use crate::sys;
use anyhow::{anyhow, bail, ensure, Context, Result};
use kfabric::{Endpoint, Region};
use kfabric_uapi::KFI_IOC_EP_WAKE;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "shm_rings.message_between_polling_ends_makes_no_syscall",
        polling,
    )
    .seconds(10)
    .on(SHM),
    Test::pair("shm_rings.message_to_sleeping_end_makes_one_wake", sleeping)
        .seconds(10)
        .on(SHM),
    Test::pair("shm_rings.messages_to_stopped_sleeper_make_one_wake", many)
        .seconds(10)
        .on(SHM),
];

/// A system call: its number, and its second argument.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Call {
    number: i64,
    request: u32,
}

impl Call {
    /// Parses `NR 16 (3, 2701bf27, 7ffd…)`.
    fn parse(text: &str) -> Option<Self> {
        let (number, args) = text.strip_prefix("NR ")?.split_once(" (")?;
        let second = args.split(", ").nth(1)?;
        Some(Self {
            number: number.parse().ok()?,
            // CAST: An ioctl request has 32 bits.
            request: u64::from_str_radix(second, 16).ok()? as u32,
        })
    }

    fn is_ioctl(&self) -> bool {
        self.number == libc::SYS_ioctl
    }

    /// Returns whether the call wakes an end of the connection.
    fn is_wake(&self) -> bool {
        self.is_ioctl() && self.request == KFI_IOC_EP_WAKE
    }

    fn is_poll(&self) -> bool {
        [libc::SYS_poll, libc::SYS_ppoll].contains(&self.number)
    }
}

/// Tells a thread that polls without a call to give up.
type Over = AtomicBool;

/// Calls `f` until it returns a value, without a system call.
fn spin<T>(over: &Over, mut f: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    loop {
        if let Some(value) = f()? {
            return Ok(value);
        }
        if over.load(Ordering::Relaxed) {
            bail!("it is over");
        }
        std::hint::spin_loop();
    }
}

/// Sets the flag when the scope ends, on every path.
struct Set<'a>(&'a AtomicBool);

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs `work` in a thread of its own, on both nodes at once, and `beside` in the calling thread.
/// Returns the system calls that `work` made. `beside` receives the ids of the other node's process
/// and thread.
fn calls_of(
    ctx: &mut Ctx,
    work: impl FnOnce(&Over) -> Result<()> + Send,
    beside: impl FnOnce((u32, i32), &Over) -> Result<()>,
) -> Result<Vec<Call>> {
    let [go, done, over] = [const { AtomicBool::new(false) }; 3];
    let thread = AtomicI32::new(0);
    std::thread::scope(|s| {
        let works = s.spawn(|| {
            thread.store(sys::thread_id(), Ordering::Release);
            spin(&over, || Ok(go.load(Ordering::Acquire).then_some(())))?;
            let result = {
                let _done = Set(&done);
                work(&over)
            };
            // Calls that a thread makes when it exits must not be counted.
            let _ = spin(&over, || Ok(None::<()>));
            result
        });
        let trace = {
            let _over = Set(&over);
            let id = spin(&over, || {
                let id = thread.load(Ordering::Acquire);
                Ok((id != 0).then_some(id))
            })?;
            let filter = format!("common_pid == {id}");
            let trace = Trace::new("raw_syscalls/sys_enter", Some(&filter))?;
            let theirs = ctx.ctl.exchange(&(std::process::id(), id))?;
            go.store(true, Ordering::Release);
            beside(theirs, &done)?;
            let end = Instant::now() + sys::patience(2 * WAIT);
            while !done.load(Ordering::Acquire) {
                ensure!(Instant::now() < end, "it does not come to an end");
                std::thread::sleep(Duration::from_millis(1));
            }
            trace.stop()?;
            trace
        };
        works.join().map_err(|_| anyhow!("it died"))??;
        let events = trace.events("sys_enter")?;
        let calls: Option<Vec<_>> = events.iter().map(|text| Call::parse(text)).collect();
        calls.with_context(|| format!("other events: {:?}", events.first()))
    })
}

/// Two connected ends; `first` marks the end that begins.
struct Ends {
    lib: Lib,
    ep: Endpoint,
    region: Region,
    first: bool,
}

impl Ends {
    /// Connects. Calls that are made once per connection are made here.
    fn new(ctx: &mut Ctx) -> Result<Self> {
        let lib = Lib::with_rings(ctx, true)?;
        let ep = lib.connect(ctx)?;
        ensure!(ep.has_rings() == Some(true), "{:?}", ep.has_rings());
        let region = lib.region(4096)?;
        let first = ctx.first();
        let ends = Self {
            lib,
            ep,
            region,
            first,
        };
        let over = Over::new(false);
        (0..5).try_for_each(|_| ends.turn(&over, || Ok(())))?;
        ctx.barrier("warm")?;
        Ok(ends)
    }

    fn receive(&self) -> Result<()> {
        Ok(self.ep.recv(self.region.segment(0..64), 1)?)
    }

    /// Sends a message and receives the answer, polling at both ends. The first end calls `before`
    /// and then sends.
    fn turn(&self, over: &Over, before: impl FnOnce() -> Result<()>) -> Result<()> {
        self.receive()?;
        if self.first {
            before()?;
            self.ep.inject(b"question")?;
        }
        spin(over, || Ok(self.lib.cq.read_one()?))?.ok()?;
        if !self.first {
            self.ep.inject(b"answer")?;
        }
        Ok(())
    }
}

fn polling(ctx: &mut Ctx) -> Result<()> {
    const TURNS: u32 = 300;
    let ends = Ends::new(ctx)?;
    let work = |over: &Over| (0..TURNS).try_for_each(|_| ends.turn(over, || Ok(())));
    let calls = calls_of(ctx, work, |_, _| Ok(()))?;
    ensure!(calls.is_empty(), "{} calls: {calls:?}", calls.len());
    ctx.barrier("done")
}

/// Waits until a thread is in `state` (`proc_pid_stat(5)`), or until `done`.
fn is_in(state: char, (pid, thread): (u32, i32), done: &Over) -> Result<()> {
    let path = format!("/proc/{pid}/task/{thread}/stat");
    until(&format!("the other is in state {state}"), WAIT, || {
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let (_, rest) = text.rsplit_once(") ").context("no state")?;
        ensure!(!done.load(Ordering::Acquire), "it has come to its end");
        Ok(rest.starts_with(state).then_some(()))
    })
}

/// The first end polls for the answers, so no wake-up is sent to it; the other end is asleep each
/// time.
fn sleeping(ctx: &mut Ctx) -> Result<()> {
    const TURNS: u64 = 100;
    let ends = Ends::new(ctx)?;
    if !ends.first {
        let work = |_: &Over| {
            (0..TURNS).try_for_each(|_| {
                ends.receive()?;
                ends.lib.cq.wait(WAIT)?.ok()?;
                Ok(ends.ep.inject(b"answer")?)
            })
        };
        let calls = calls_of(ctx, work, |_, _| Ok(()))?;
        let (polls, ioctls) = counts(&calls);
        ensure!(
            polls == TURNS && ioctls == 0,
            "{polls} polls, {ioctls} ioctls: {calls:?}"
        );
        return ctx.barrier("done");
    }
    let [asleep, answered] = [const { AtomicU64::new(0) }; 2];
    let work = |over: &Over| {
        (0..TURNS).try_for_each(|i| {
            ends.turn(over, || {
                spin(over, || {
                    Ok((asleep.load(Ordering::Acquire) > i).then_some(()))
                })
            })?;
            answered.store(i + 1, Ordering::Release);
            Ok(())
        })
    };
    let beside = |theirs, done: &Over| {
        (0..TURNS).try_for_each(|i| {
            is_in('S', theirs, done)?;
            asleep.store(i + 1, Ordering::Release);
            until("an answer", WAIT, || {
                let over = done.load(Ordering::Acquire);
                Ok((over || answered.load(Ordering::Acquire) > i).then_some(()))
            })
        })
    };
    let calls = calls_of(ctx, work, beside)?;
    ensure!(
        calls.len() as u64 == TURNS && calls.iter().all(Call::is_wake),
        "{} calls: {calls:?}",
        calls.len()
    );
    ctx.barrier("done")
}

/// Counts the polls and the ioctls among `calls`.
fn counts(calls: &[Call]) -> (u64, u64) {
    let of = |what: fn(&Call) -> bool| calls.iter().filter(|call| what(call)).count() as u64;
    (of(Call::is_poll), of(Call::is_ioctl))
}

/// A process that is stopped until this value is dropped.
struct Stopped(i32);

impl Stopped {
    fn stop(pid: i32) -> Result<Self> {
        sys::kill(pid, libc::SIGSTOP)?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = sys::kill(self.0, libc::SIGCONT);
    }
}

/// Sends many messages to a sleeping end that gets no time to wake: it is woken once for all of
/// them.
fn many(ctx: &mut Ctx) -> Result<()> {
    const MANY: u64 = 20;
    let ends = Ends::new(ctx)?;
    if !ends.first {
        let work = |_: &Over| {
            (0..MANY).try_for_each(|_| ends.receive())?;
            (0..MANY).try_for_each(|_| Ok(ends.lib.cq.wait(WAIT)?.ok().map(drop)?))
        };
        let calls = calls_of(ctx, work, |_, _| Ok(()))?;
        let (_, ioctls) = counts(&calls);
        ensure!(ioctls == 0, "{ioctls} ioctls: {calls:?}");
        return ctx.barrier("done");
    }
    let stands = AtomicBool::new(false);
    let work = |over: &Over| {
        spin(over, || Ok(stands.load(Ordering::Acquire).then_some(())))?;
        (0..MANY).try_for_each(|_| Ok(ends.ep.inject(b"question")?))
    };
    let beside = |theirs: (u32, i32), done: &Over| {
        is_in('S', theirs, done)?;
        // CAST: A process id.
        let _stopped = Stopped::stop(theirs.0 as i32)?;
        is_in('T', theirs, done)?;
        stands.store(true, Ordering::Release);
        until("all is sent", WAIT, || {
            Ok(done.load(Ordering::Acquire).then_some(()))
        })
    };
    let calls = calls_of(ctx, work, beside)?;
    ensure!(
        calls.len() == 1 && calls.iter().all(Call::is_wake),
        "{} calls: {calls:?}",
        calls.len()
    );
    ctx.barrier("done")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_parsed() {
        let wake = format!("NR 16 (5, {KFI_IOC_EP_WAKE:x}, 7ffd00, 0, 1, 2)");
        let wake = Call::parse(&wake).unwrap();
        assert!(wake.is_wake() && wake.is_ioctl() && !wake.is_poll());
        let poll = Call::parse("NR 271 (7ffd, 1, 7ffe, 0, 8, 0)").unwrap();
        assert!(poll.is_poll() && !poll.is_ioctl());
        assert_eq!(Call::parse("no call"), None);
    }
}
