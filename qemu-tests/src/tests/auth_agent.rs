// SPDX-License-Identifier: MIT OR Apache-2.0

//! The agent that decides about grants (P7): its upcalls and answers, missing answers, and the
//! asking processes.

use super::auth::{led, Served};
use super::refused;
use crate::auth::{self, Agent, Enforced, KEY, OTHER};
use crate::harness::{Ctx, Test, NETNS, SHM};
use crate::pair::Side;
use crate::raw::Dev;
use crate::sys::{self, Ended};
use anyhow::{ensure, Result};
use kfabric_uapi::*;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("auth.p07_agent_answer_in_time_becomes_grant", |ctx| {
        led(ctx, answers)
    })
    .on(NETNS | SHM)
    .seconds(10),
    Test::pair("auth.p07_agent_answer_too_late_admits_no_process", |ctx| {
        led(ctx, late)
    })
    .on(NETNS | SHM)
    .seconds(10),
    Test::pair("auth.p07_equal_questions_at_once_are_merged", |ctx| {
        led(ctx, equal)
    })
    .on(NETNS | SHM)
    .seconds(10),
    Test::pair("auth.p07_agent_giving_wrong_answer_gets_errno", |ctx| {
        led(ctx, lies)
    })
    .on(NETNS | SHM)
    .seconds(10),
    Test::pair("auth.p07_agent_killed_passes_questions_to_next", |ctx| {
        led(ctx, replaced)
    })
    .on(NETNS | SHM)
    .seconds(10),
    Test::pair("auth.p07_asking_process_killed_withdraws_question", |ctx| {
        led(ctx, asker_killed)
    })
    .on(NETNS | SHM)
    .seconds(10),
    Test::pair(
        "auth.p07_thousand_questions_at_once_are_all_answered",
        |ctx| led(ctx, thousand),
    )
    .on(NETNS | SHM)
    .seconds(60),
    Test::pair("auth.p07_question_flood_starves_no_other_process", |ctx| {
        led(ctx, flood)
    })
    .on(NETNS | SHM)
    .seconds(20),
];

/// The question describes the process truly, an allowing answer becomes a grant, and a denial is
/// cached for a while.
fn answers(ctx: &Ctx) -> Result<()> {
    let mode = Enforced::new()?;
    let agent = Agent::open()?;
    let env = ctx.env.clone();
    let asker = sys::fork(move || {
        let Ok(side) = Side::of(&env) else { return 99 };
        let open =
            || auth::endpoint(&side.dev, side.domain.handle, KEY).map_or_else(|e| e.errno.0, |_| 0);
        let (no, again) = (open(), open());
        std::thread::sleep(Duration::from_millis(1500));
        let (yes, cached) = (open(), open());
        i32::from([no, again, yes, cached] != [libc::EACCES, libc::EACCES, 0, 0])
    })?;
    let question = agent.wait(Duration::from_secs(20))?;
    let raw = &question.raw;
    let fd = auth::pidfd(asker)?;
    ensure!(question.key == KEY, "another key");
    ensure!(
        raw.pid == asker as u32 && raw.process == auth::inode(fd.as_fd())?,
        "{raw:?}"
    );
    ensure!(
        (raw.uid, raw.gid, raw.rights) == (0, 0, KFI_AUTH_EP),
        "{raw:?}"
    );
    let domain = match ctx.provider() {
        "kshm" => "shm",
        _ => &*ctx.env.dev,
    };
    ensure!(crate::raw::field_text(&raw.domain) == domain, "{raw:?}");
    ensure!(raw.left_ms <= 10_000 && raw.left_ms > 0, "{raw:?}");
    refused(agent.next(), libc::EAGAIN, "the same question twice")?;
    agent.deny(raw.id)?;
    refused(agent.deny(raw.id), libc::ENOENT, "a second answer")?;
    let second = agent.wait(Duration::from_secs(20))?;
    ensure!(second.raw.id != raw.id);
    let id = agent.allow(second.raw.id)?;
    ensure!(sys::wait_pid(asker, Duration::from_secs(30))? == Some(Ended::Exit(0)));
    let grants = auth::list(mode.dev())?;
    ensure!(
        grants.iter().all(|g| g.id == id && g.answered == 1),
        "{grants:?}"
    );
    Ok(())
}

/// An answer that comes after the timeout, or after a denial, has no effect: no process is admitted
/// by it then or later.
fn late(ctx: &Ctx) -> Result<()> {
    let mode = Enforced::new()?;
    mode.timeout(200)?;
    auth::set(
        mode.dev(),
        &AuthMode {
            flags: KFI_AUTH_SET_DENY,
            ..Default::default()
        },
    )?;
    let agent = Agent::open()?;
    let side = Side::of(&ctx.env)?;
    let open = || auth::endpoint(&side.dev, side.domain.handle, KEY);
    for _ in 0..2 {
        // This agent takes the question while the process waits, and does not answer in time.
        let asker = std::thread::scope(|scope| -> Result<_> {
            let asker = scope.spawn(open);
            let question = agent.wait(Duration::from_secs(20))?;
            let asker = asker.join().map_err(|_| anyhow::anyhow!("panicked"))?;
            refused(agent.allow(question.raw.id), libc::ENOENT, "a late yes")?;
            refused(agent.deny(question.raw.id), libc::ENOENT, "a late no")?;
            Ok(asker)
        })?;
        refused(asker, libc::ETIMEDOUT, "no answer in time")?;
        ensure!(auth::list(mode.dev())?.is_empty(), "a grant of a late yes");
        ensure!(auth::mode(mode.dev())?.waiting == 0, "it is still asked");
    }
    mode.timeout(10_000)?;
    let denied = std::thread::scope(|scope| -> Result<_> {
        let asker = scope.spawn(open);
        let question = agent.wait(Duration::from_secs(20))?;
        agent.deny(question.raw.id)?;
        refused(
            agent.allow(question.raw.id),
            libc::ENOENT,
            "a yes after all",
        )?;
        asker.join().map_err(|_| anyhow::anyhow!("panicked"))
    })?;
    refused(denied, libc::EACCES, "a no")?;
    ensure!(auth::list(mode.dev())?.is_empty(), "a grant of it");
    // A new question is sent.
    let served = std::thread::scope(|scope| -> Result<_> {
        let asker = scope.spawn(open);
        let question = agent.wait(Duration::from_secs(20))?;
        agent.allow(question.raw.id)?;
        asker.join().map_err(|_| anyhow::anyhow!("panicked"))
    })?;
    served?;
    Ok(())
}

/// Threads that ask the same at once share one question, and one answer serves them all: allow,
/// deny, and timeout.
fn equal(ctx: &Ctx) -> Result<()> {
    const THREADS: usize = 12;
    let mode = Enforced::new()?;
    mode.timeout(60_000)?;
    let agent = Agent::open()?;
    let side = Side::of(&ctx.env)?;
    for (key, errno) in [(KEY, 0), (OTHER, libc::EACCES)] {
        let got = std::thread::scope(|scope| -> Result<Vec<i32>> {
            let open = || auth::endpoint(&side.dev, side.domain.handle, key);
            let askers: Vec<_> = (0..THREADS).map(|_| scope.spawn(open)).collect();
            let question = agent.wait(Duration::from_secs(20))?;
            // Later threads join the question, or find the answer.
            std::thread::sleep(sys::patience(Duration::from_millis(300)));
            refused(agent.next(), libc::EAGAIN, "a second question")?;
            ensure!(auth::mode(mode.dev())?.waiting == 1, "not one question");
            match errno {
                0 => agent.allow(question.raw.id)?,
                _ => agent.deny(question.raw.id)?,
            };
            let mut got = Vec::new();
            for asker in askers {
                let opened = asker.join().map_err(|_| anyhow::anyhow!("panicked"))?;
                got.push(opened.map_or_else(|e| e.errno.0, |_| 0));
            }
            Ok(got)
        })?;
        ensure!(got == [errno; THREADS], "{got:?}");
        refused(agent.next(), libc::EAGAIN, "a question afterwards")?;
    }
    let grants = auth::list(mode.dev())?;
    ensure!(
        grants.len() == 1 && grants[0].eps as usize == THREADS,
        "{grants:?}"
    );
    Ok(())
}

/// An agent that gives a wrong answer gets an errno, and harms no process.
fn lies(ctx: &Ctx) -> Result<()> {
    let mode = Enforced::new()?;
    mode.timeout(3000)?;
    let agent = Agent::open()?;
    refused(agent.next(), libc::EAGAIN, "no question")?;
    refused(agent.allow(1 << 40), libc::ENOENT, "an unknown question")?;
    let bad = |want: AgentAnswer, errno, what| refused(agent.answer(&want), errno, what);
    bad(
        AgentAnswer {
            id: 1,
            verdict: 2,
            ..Default::default()
        },
        libc::EINVAL,
        "another verdict",
    )?;
    bad(
        AgentAnswer {
            id: 1,
            max_keys: 1,
            ..Default::default()
        },
        libc::EINVAL,
        "limits of a no",
    )?;
    refused(
        agent.dev().call(&mut AgentOpen::default()),
        libc::EALREADY,
        "twice",
    )?;
    let stranger = Dev::open()?;
    refused(
        stranger.call(&mut AgentNext::default()),
        libc::EINVAL,
        "no agent",
    )?;
    let env = ctx.env.clone();
    let asker = sys::fork(move || match Side::of(&env) {
        Ok(side) => {
            auth::endpoint(&side.dev, side.domain.handle, KEY).map_or_else(|e| e.errno.0, |_| 0)
        }
        Err(_) => 99,
    })?;
    let question = agent.wait(Duration::from_secs(20))?;
    let id = question.raw.id;
    bad(
        AgentAnswer {
            id,
            verdict: 1,
            rights: KFI_AUTH_KEYS,
            ..Default::default()
        },
        libc::EINVAL,
        "less than asked",
    )?;
    bad(
        AgentAnswer {
            id,
            verdict: 1,
            rights: 8,
            ..Default::default()
        },
        libc::EINVAL,
        "no right",
    )?;
    bad(
        AgentAnswer {
            id,
            verdict: 1,
            match_: 64,
            ..Default::default()
        },
        libc::EINVAL,
        "no match",
    )?;
    agent.allow(id)?;
    refused(agent.allow(id), libc::ENOENT, "twice")?;
    refused(agent.deny(id), libc::ENOENT, "yes and no")?;
    ensure!(sys::wait_pid(asker, Duration::from_secs(30))? == Some(Ended::Exit(0)));
    Ok(())
}

/// A new agent receives the questions that the old one has not answered. Without an agent, waiting
/// processes are denied at once.
fn replaced(ctx: &Ctx) -> Result<()> {
    let mode = Enforced::new()?;
    let old = Agent::open()?;
    let ask = || -> Result<i32> {
        let env = ctx.env.clone();
        Ok(sys::fork(move || match Side::of(&env) {
            Ok(side) => {
                auth::endpoint(&side.dev, side.domain.handle, KEY).map_or_else(|e| e.errno.0, |_| 0)
            }
            Err(_) => 99,
        })?)
    };
    let asker = ask()?;
    let question = old.wait(Duration::from_secs(20))?;
    let new = Agent::open()?;
    refused(
        old.allow(question.raw.id),
        libc::ESTALE,
        "the old one's answer",
    )?;
    refused(old.next(), libc::ESTALE, "the old one")?;
    let events = sys::poll(old.dev().as_fd(), libc::POLLIN, Duration::from_secs(5))?;
    ensure!(events & libc::POLLHUP != 0, "events {events:#x}");
    let again = new.wait(Duration::from_secs(20))?;
    ensure!(again.raw.id == question.raw.id, "another question");
    drop(old);
    new.allow(again.raw.id)?;
    ensure!(sys::wait_pid(asker, Duration::from_secs(30))? == Some(Ended::Exit(0)));
    drop(new);
    let served = Served::start(|_, _| ())?;
    let asker = ask()?;
    let end = Instant::now() + sys::patience(Duration::from_secs(8));
    while auth::mode(mode.dev())?.waiting == 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(served);
    let ended = sys::wait_pid(asker, Duration::from_secs(30))?;
    ensure!(ended == Some(Ended::Exit(libc::ENOKEY)), "{ended:?}");
    Ok(())
}

/// Killing the asking process withdraws its question.
fn asker_killed(ctx: &Ctx) -> Result<()> {
    let mode = Enforced::new()?;
    let agent = Agent::open()?;
    let env = ctx.env.clone();
    let asker = sys::fork(move || {
        if let Ok(side) = Side::of(&env) {
            let _ = auth::endpoint(&side.dev, side.domain.handle, KEY);
        }
        0
    })?;
    let question = agent.wait(Duration::from_secs(20))?;
    ensure!(auth::mode(mode.dev())?.waiting == 1);
    sys::kill(asker, libc::SIGKILL)?;
    ensure!(sys::wait_pid(asker, Duration::from_secs(10))? == Some(Ended::Signal(libc::SIGKILL)));
    ensure!(
        auth::mode(mode.dev())?.waiting == 0,
        "the question is still there"
    );
    refused(
        agent.allow(question.raw.id),
        libc::ENOENT,
        "an answer to a withdrawn question",
    )
}

/// A thousand questions at once, of a hundred processes with ten threads each, answered in random
/// order: every thread gets its own answer.
fn thousand(ctx: &Ctx) -> Result<()> {
    const PROCESSES: usize = 100;
    const THREADS: u8 = 10;
    let mode = Enforced::new()?;
    mode.timeout(120_000)?;
    let agent = Agent::open()?;
    let mut askers = Vec::new();
    for _ in 0..PROCESSES {
        let env = ctx.env.clone();
        askers.push(sys::fork(move || {
            let Ok(side) = Side::of(&env) else { return 99 };
            let side = &side;
            let wrong = std::thread::scope(|scope| {
                let threads = (0..THREADS)
                    .map(|i| {
                        scope.spawn(move || {
                            let got = auth::endpoint(&side.dev, side.domain.handle, &[i; 16]);
                            let want = if i % 2 == 0 { 0 } else { libc::EACCES };
                            got.map_or_else(|e| e.errno.0, |_| 0) != want
                        })
                    })
                    .collect::<Vec<_>>();
                threads
                    .into_iter()
                    .map(|t| t.join().unwrap_or(true))
                    .filter(|w| *w)
                    .count()
            });
            wrong as i32
        })?);
    }
    let mut held = Vec::new();
    let end = Instant::now() + sys::patience(Duration::from_secs(60));
    while held.len() < PROCESSES * usize::from(THREADS) && Instant::now() < end {
        match agent.wait(Duration::from_secs(1)) {
            Ok(question) => held.push(question),
            Err(e) if e.errno.0 == libc::EAGAIN => {}
            Err(e) => return Err(e.into()),
        }
    }
    ensure!(held.len() == 1000, "{} questions", held.len());
    while let Some(question) = if held.len() % 2 == 0 {
        held.pop()
    } else {
        Some(held.remove(held.len() / 2))
    } {
        match question.key[0] % 2 {
            0 => agent.allow(question.raw.id)?,
            _ => agent.deny(question.raw.id)?,
        };
    }
    for asker in askers {
        let ended = sys::wait_pid(asker, Duration::from_secs(60))?;
        ensure!(ended == Some(Ended::Exit(0)), "{ended:?}");
    }
    Ok(())
}

/// A process that asks more than its limit gets an errno, and another process's question gets
/// through.
fn flood(ctx: &Ctx) -> Result<()> {
    let mode = Enforced::new()?;
    auth::set(
        mode.dev(),
        &AuthMode {
            flags: KFI_AUTH_SET_ASKS | KFI_AUTH_SET_TIMEOUT,
            asks: 8,
            timeout_ms: 60_000,
            ..Default::default()
        },
    )?;
    let agent = Agent::open()?;
    let env = ctx.env.clone();
    let flooder = sys::fork(move || {
        let Ok(side) = Side::of(&env) else { return 99 };
        let side = &side;
        std::thread::scope(|scope| {
            for i in 0..32_u8 {
                scope.spawn(move || {
                    let _ = auth::endpoint(&side.dev, side.domain.handle, &[i; 16]);
                });
            }
        });
        0
    })?;
    let end = Instant::now() + sys::patience(Duration::from_secs(20));
    while auth::mode(mode.dev())?.waiting < 8 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    let waiting = auth::mode(mode.dev())?.waiting;
    ensure!(waiting == 8, "{waiting} questions wait");
    let env = ctx.env.clone();
    let other = sys::fork(move || match Side::of(&env) {
        Ok(side) => {
            auth::endpoint(&side.dev, side.domain.handle, OTHER).map_or_else(|e| e.errno.0, |_| 0)
        }
        Err(_) => 99,
    })?;
    let mut seen = 0;
    loop {
        let question = agent.wait(Duration::from_secs(20))?;
        if question.key == OTHER {
            agent.allow(question.raw.id)?;
            break;
        }
        seen += 1;
        ensure!(seen <= 8, "more than its share");
    }
    ensure!(sys::wait_pid(other, Duration::from_secs(30))? == Some(Ended::Exit(0)));
    sys::kill(flooder, libc::SIGKILL)?;
    sys::wait_pid(flooder, Duration::from_secs(30))?;
    ensure!(auth::mode(mode.dev())?.waiting == 0);
    Ok(())
}
