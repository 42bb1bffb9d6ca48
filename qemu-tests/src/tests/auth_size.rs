// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sizes of auth keys: peers can guess a short one (P7).

use super::auth::{led, try_all};
use crate::auth::{self, to_root, Enforced, KEY};
use crate::harness::{Ctx, Test, NETNS, SHM};
use anyhow::{ensure, Result};
use kfabric_uapi::*;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("auth.p07_short_key_under_enforce_is_refused", |ctx| {
        led(ctx, short)
    })
    .on(NETNS | SHM)
    .seconds(10),
];

/// Checks that a key of 15 bytes is refused in mode `enforce` even if a grant covers it, and that a
/// key of 16 bytes, or mode `open`, is not.
fn short(ctx: &Ctx) -> Result<()> {
    let (short, long) = (&KEY[..KFI_AUTH_KEY_SAFE - 1], &KEY[..KFI_AUTH_KEY_SAFE]);
    let mode = Enforced::new()?;
    for key in [short, long] {
        auth::add(mode.dev(), &to_root(key))?;
    }
    let refused = [libc::EKEYREJECTED; 2];
    for (key, want) in [(short, refused), (long, [0; 2])] {
        let got = try_all(ctx, key)?;
        ensure!(got == want, "{} bytes: {got:?}", key.len());
    }
    let open = AuthMode {
        flags: KFI_AUTH_SET_MODE,
        ..Default::default()
    };
    auth::set(mode.dev(), &open)?;
    let got = try_all(ctx, short)?;
    ensure!(got == [0; 2], "mode open: {got:?}");
    Ok(())
}
