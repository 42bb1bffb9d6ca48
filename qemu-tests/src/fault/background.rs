// SPDX-License-Identifier: MIT OR Apache-2.0

//! Failures in tasks that work for a connection in the background. [`durable`] has those for durable writes and commits.
//!
//! A connect returns at once; the connection manager's and the provider's workers go on. Here one
//! step fails in any task, at one place after the other, while two endpoints connect. In every case
//! each end that has begun must get its result, and afterwards everything can be closed and nothing
//! is left.

mod durable;

use super::inject::{Everywhere, Kind, Knobs};
use super::lab::Lab;
use super::state::Watch;
use super::sweep::{next, Row};
use crate::harness::Env;
use crate::raw::Dev;
use crate::sys::{self, Errno};
use anyhow::{bail, ensure, Context, Result};
use durable::Form;
use kfabric_uapi::*;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Time within which an end must know its result; a lost message is retried for a minute.
const PATIENCE: Duration = Duration::from_secs(200);
/// More places than there are.
const MOST: u32 = 1000;

/// A sweep of one kind of failures.
type Sweep = fn(Kind, &Env, &Knobs, bool, &mut Row) -> Result<()>;

/// Work in the background with failures of one kind.
pub struct Background {
    /// Name of the case in the table.
    pub name: &'static str,
    kind: Kind,
    sweep: Sweep,
}

/// The cases.
pub const CASES: &[Background] = &[
    Background {
        name: "background.connect.device",
        kind: Kind::Device,
        sweep,
    },
    Background {
        name: "background.connect.slab",
        kind: Kind::Slab,
        sweep,
    },
    Background {
        name: "background.connect.page",
        kind: Kind::Page,
        sweep,
    },
    Background {
        name: "background.durable.device",
        kind: Kind::Device,
        sweep: writes,
    },
    Background {
        name: "background.durable.slab",
        kind: Kind::Slab,
        sweep: writes,
    },
    Background {
        name: "background.durable.page",
        kind: Kind::Page,
        sweep: writes,
    },
    Background {
        name: "background.commit.device",
        kind: Kind::Device,
        sweep: commits,
    },
    Background {
        name: "background.commit.slab",
        kind: Kind::Slab,
        sweep: commits,
    },
    Background {
        name: "background.commit.page",
        kind: Kind::Page,
        sweep: commits,
    },
    Background {
        name: "background.listen.device",
        kind: Kind::Device,
        sweep: durable::sweep_listener,
    },
    Background {
        name: "background.listen.slab",
        kind: Kind::Slab,
        sweep: durable::sweep_listener,
    },
    Background {
        name: "background.listen.page",
        kind: Kind::Page,
        sweep: durable::sweep_listener,
    },
];

fn writes(kind: Kind, env: &Env, knobs: &Knobs, quick: bool, row: &mut Row) -> Result<()> {
    durable::sweep(Form::Write, kind, env, knobs, quick, row)
}

fn commits(kind: Kind, env: &Env, knobs: &Knobs, quick: bool, row: &mut Row) -> Result<()> {
    durable::sweep(Form::Commit, kind, env, knobs, quick, row)
}

/// Sweeps one case.
pub fn run(case: &Background, env: &Env, knobs: &Knobs, quick: bool) -> Row {
    Row::of(case.name, |row| {
        (case.sweep)(case.kind, env, knobs, quick, row)
    })
}

fn sweep(kind: Kind, env: &Env, knobs: &Knobs, quick: bool, row: &mut Row) -> Result<()> {
    knobs.choose(kind)?;
    let lab = Lab::open(env)?;
    let mut watch = Watch::open()?;
    let addr = lab.addr;
    let (only, except) = of_provider(kind)?;
    let mut everywhere = Everywhere::new(kind, only, except)?;
    let mut nth = 1;
    while nth < MOST {
        let at = || format!("{} {nth}", kind.name());
        let before = watch.look()?;
        everywhere.arm(nth)?;
        let end = connect(&lab, addr).with_context(at)?;
        let happened = everywhere.disarm()?;
        close_all(&lab)?;
        let after = watch.look()?;
        ensure!(
            after == before,
            "{}: left behind: {}",
            at(),
            after.since(&before)
        );
        if !happened {
            ensure!(end.is_none(), "{}: {end:?}, though nothing failed", at());
            return Ok(());
        }
        row.count(kind, end);
        nth = next(nth, quick);
    }
    bail!("the sweep does not end");
}

/// Progress of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The end has not begun, or its call has failed and returned an errno.
    Idle,
    /// The end waits for its event.
    Waiting,
    /// The end is connected.
    Up,
    /// The end has got a failure event.
    Down,
}

/// Both ends of a connection in progress.
struct Attempt<'a> {
    lab: &'a Lab,
    client: (u64, End),
    server: (u64, End),
    /// The first reported failure.
    why: Option<Errno>,
}

/// Connects two endpoints as far as possible, and waits until both have their result. Returns
/// `None` if they were connected and then shut down properly.
fn connect(lab: &Lab, addr: std::net::SocketAddr) -> Result<Option<Errno>> {
    let mut attempt = Attempt {
        lab,
        client: (0, End::Idle),
        server: (0, End::Idle),
        why: None,
    };
    attempt.begin(addr)?;
    let up = |a: &Attempt<'_>| a.client.1 == End::Up && a.server.1 == End::Up;
    let settled = |a: &Attempt<'_>| ![a.client.1, a.server.1].contains(&End::Waiting);
    attempt.until("both ends know", |a| up(a) || (settled(a) && !half(a)))?;
    if up(&attempt) {
        lab.dev.shutdown(attempt.client.0)?;
        attempt.until("both ends are down", |a| {
            a.client.1 == End::Down && a.server.1 == End::Down
        })?;
    }
    Ok(attempt.why)
}

/// Returns whether one end is connected and the other has failed: the first will get an event.
fn half(a: &Attempt<'_>) -> bool {
    (a.client.1 == End::Up) != (a.server.1 == End::Up)
}

impl Attempt<'_> {
    /// Records a failure that a call returned.
    fn told<T>(&mut self, answer: Result<T>) -> Result<Option<T>> {
        match answer {
            Ok(value) => Ok(Some(value)),
            Err(e) => match e.downcast_ref::<crate::raw::CallError>() {
                Some(call) => {
                    self.why.get_or_insert(call.errno);
                    Ok(None)
                }
                None => Err(e),
            },
        }
    }

    fn begin(&mut self, addr: std::net::SocketAddr) -> Result<()> {
        let lab = self.lab;
        if let Some(client) = self.told(lab.enabled(0))? {
            let begun = lab.dev.connect(client, addr, b"hello");
            if self.told(begun.map_err(Into::into))?.is_some() {
                self.client = (client, End::Waiting);
            }
        }
        Ok(())
    }

    /// Takes a request and accepts it; a request that cannot be accepted is rejected.
    fn answer(&mut self, connreq: u64) -> Result<()> {
        let lab = self.lab;
        let server = lab.enabled(connreq);
        if let Some(server) = self.told(server)? {
            let accepted = lab.dev.accept(server, &[]);
            match self.told(accepted.map_err(Into::into))? {
                Some(()) => self.server = (server, End::Waiting),
                None => lab.dev.close(server)?,
            }
            return Ok(());
        }
        // The endpoint may have been opened and not enabled.
        close_all_but(lab, self.client.0)
    }

    /// Takes events until `done`.
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            if Instant::now() >= end {
                bail!(
                    "{what}: not after {} s; client {:?}, server {:?}, {:?}",
                    PATIENCE.as_secs(),
                    self.client,
                    self.server,
                    self.why
                );
            }
            if let Ok(event) = self.lab.dev.eq_read(self.lab.door.handle, 0) {
                self.answer(event.raw.connreq)?;
                continue;
            }
            match self.lab.dev.eq_read(self.lab.eq.handle, 0) {
                Ok(event) => self.heard(&event.raw),
                Err(_) => {
                    sys::poll_in(self.lab.eq.fd.as_fd(), Duration::from_millis(20))?;
                }
            }
        }
        Ok(())
    }

    fn heard(&mut self, event: &EqRead) {
        let end = if event.object == self.client.0 {
            &mut self.client.1
        } else {
            &mut self.server.1
        };
        *end = match event.event {
            KFI_CONNECTED => End::Up,
            _ => End::Down,
        };
        if event.event == KFI_CONN_ERROR || event.err != 0 {
            self.why.get_or_insert(Errno(event.err as i32));
        }
    }
}

/// Closes all endpoints and requests in the lab's file.
fn close_all(lab: &Lab) -> Result<()> {
    close_all_but(lab, 0)?;
    lab.drain();
    while let Ok(event) = lab.dev.eq_read(lab.door.handle, 0) {
        lab.dev.close(event.raw.connreq)?;
    }
    Ok(())
}

fn close_all_but(lab: &Lab, keep: u64) -> Result<()> {
    let me = std::process::id();
    for object in Dev::open()?.obj_list()? {
        let passing = [KFI_TYPE_EP, KFI_TYPE_CONNREQ].contains(&object.kind);
        if object.pid == me && passing && object.handle != keep {
            lab.dev.close(object.handle)?;
        }
    }
    Ok(())
}

/// The address ranges of a function below which failures of a kind count, and of one below which they do
/// not; `None` for any and for none.
type Ranges = (Option<(u64, u64)>, Option<(u64, u64)>);

/// Returns the ranges for failures of the provider. Allocations of other code must not fail, and those of
/// tested calls have cases of their own.
fn of_provider(kind: Kind) -> Result<Ranges> {
    if kind == Kind::Device {
        return Ok((None, None));
    }
    let calls = function("dev_ioctl", "kfabric")?;
    Ok((Some(module("kverbs")?), Some(calls)))
}

/// Returns the address range of a module's code.
fn module(name: &str) -> Result<(u64, u64)> {
    let modules = std::fs::read_to_string("/proc/modules")?;
    let line = modules.lines().find(|l| l.split(' ').next() == Some(name));
    let words: Vec<&str> = line
        .with_context(|| format!("{name} is not loaded"))?
        .split(' ')
        .collect();
    let (size, at) = (words.get(1), words.get(5));
    let size: u64 = size.context("/proc/modules")?.parse()?;
    let at = at.context("/proc/modules")?.trim_start_matches("0x");
    let from = u64::from_str_radix(at, 16)?;
    Ok((from, from + size))
}

/// Returns the address range of a module's function.
fn function(name: &str, of: &str) -> Result<(u64, u64)> {
    let tag = format!("[{of}]");
    let symbols = std::fs::read_to_string("/proc/kallsyms")?;
    let mut own: Vec<(u64, &str)> = symbols
        .lines()
        .filter(|l| l.ends_with(&tag))
        .filter_map(|l| {
            let mut words = l.split_whitespace();
            let at = u64::from_str_radix(words.next()?, 16).ok()?;
            Some((at, words.nth(1)?))
        })
        .collect();
    own.sort_unstable();
    let index = own
        .iter()
        .position(|(_, n)| *n == name)
        .with_context(|| format!("{of} has no function {name}"))?;
    let from = own[index].0;
    let to = own[index..].iter().find(|(at, _)| *at > from);
    Ok((from, to.map_or(from + 4096, |(at, _)| *at)))
}
