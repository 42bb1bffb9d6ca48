// SPDX-License-Identifier: MIT OR Apache-2.0

//! The board of questions for the agent: a user's share of it.

use super::authd::{once, WAIT};
use crate::auth::{self, Agent, Enforced};
use crate::harness::guest::until;
use crate::harness::{skip, Ctx, Env, Test, SHM};
use crate::pair::Side;
use crate::raw;
use crate::sys::{self, rights, Ended};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[Test::alone(
    "auth.p11_user_with_a_full_share_of_questions_leaves_room_for_others",
    |c| once(c, full_share),
)
.on(SHM)
.seconds(30)];

/// Questions of one user that may wait (`AuthMode`).
const SHARE: u32 = 4096;
/// The user that fills its share.
const GREEDY: u32 = 2101;
/// Another user.
const OTHER: u32 = 2102;

/// Opens an endpoint under an auth key of its own; the errno.
fn asks(side: &Side, number: u32) -> i32 {
    let key = (u128::from(number) + 1).to_ne_bytes();
    match auth::endpoint(&side.dev, side.domain.handle, &key) {
        Ok(_) => 0,
        Err(e) => e.errno.0,
    }
}

/// A process of `user` that asks `count` different questions at once. It exits with 0 if each got `want`.
fn asker(env: &Env, user: u32, count: u32, want: i32) -> Result<i32> {
    let run = || -> Result<i32> {
        rights::become_user(user)?;
        let side = Side::of(env)?;
        let other = std::thread::scope(|scope| -> Result<Option<i32>> {
            let side = &side;
            let mut threads = Vec::new();
            for number in 0..count {
                // Small stacks: there are thousands.
                let thread = std::thread::Builder::new().stack_size(64 << 10);
                threads.push(thread.spawn_scoped(scope, move || asks(side, number))?);
            }
            let mut got = threads.into_iter().map(|t| t.join().unwrap_or(255));
            Ok(got.find(|got| *got != want))
        })?;
        if let Some(got) = other {
            eprintln!("user {user}: errno {got}, not {want}");
        }
        Ok(i32::from(other.is_some()))
    };
    let child = sys::fork(|| {
        run().unwrap_or_else(|e| {
            eprintln!("user {user}: {e:#}");
            2
        })
    });
    child.context("fork")
}

fn ends_well(child: i32) -> Result<()> {
    let end = sys::wait_pid(child, sys::patience(Duration::from_secs(60)))?;
    ensure!(end == Some(Ended::Exit(0)), "{end:?}");
    Ok(())
}

/// A user's questions beyond the share are refused at once. Another user's question waits for the agent.
fn full_share(ctx: &mut Ctx) -> Result<()> {
    if sys::slowness() > 1 {
        return skip("thousands of threads take minutes with checkers");
    }
    // The device file's mode is the administrator's affair, and not what is tested here.
    std::fs::set_permissions(raw::device_path(), Permissions::from_mode(0o666))?;
    let mode = Enforced::new()?;
    let most = AuthMode {
        flags: KFI_AUTH_SET_ASKS | KFI_AUTH_SET_TIMEOUT,
        asks: SHARE,
        timeout_ms: 600_000,
        ..Default::default()
    };
    auth::set(mode.dev(), &most)?;
    let agent = Agent::open()?;
    let waiting = |count: u32| {
        until(
            &format!("{count} questions wait"),
            Duration::from_secs(120),
            || Ok((auth::mode(mode.dev())?.waiting == count).then_some(())),
        )
    };
    let greedy = asker(&ctx.env, GREEDY, SHARE, libc::ENOKEY)?;
    waiting(SHARE)?;
    ends_well(asker(&ctx.env, GREEDY, 1, libc::EAGAIN)?).context("beyond the share")?;
    let other = asker(&ctx.env, OTHER, 1, libc::ENOKEY)?;
    waiting(SHARE + 1)?;
    // Without an agent no question waits. The children have the first agent's descriptor, too, and the
    // second one's they have not.
    drop(Agent::open()?);
    drop(agent);
    ends_well(other).context("the other user")?;
    ends_well(greedy).context("the user with the full share")?;
    until("no question waits", WAIT, || {
        Ok((auth::mode(mode.dev())?.waiting == 0).then_some(()))
    })
}
