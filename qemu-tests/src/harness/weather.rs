// SPDX-License-Identifier: MIT OR Apache-2.0

//! Bad weather on the wire: netem on what a node sends.
//!
//! A packet that the machine itself drops on its way out is an error to rxe, and the end of its
//! queue pair. netem is no such place: what it loses counts as sent. That holds as long as its
//! queue is never full, so it gets a long one, and as long as it is not put there or taken away
//! while somebody sends: then the machine drops everything for a moment. So once there it stays,
//! and fine weather is netem that does nothing.

use super::guest::run;
use super::Env;
use anyhow::Result;

/// Packets that may wait in netem.
const QUEUE: &str = "100000";
/// What stays as it was unless it is said.
const NOTHING: [&str; 4] = ["corrupt", "0%", "rate", "0bit"];

fn tc(env: &Env, how: &str, spec: &str) -> Result<()> {
    let dev = env.netdev.as_str();
    let fixed = ["qdisc", how, "dev", dev, "root", "netem", "limit", QUEUE];
    let words = fixed.into_iter().chain(NOTHING);
    let args: Vec<&str> = words.chain(spec.split_whitespace()).collect();
    run("tc", &args).map(drop)
}

/// Makes the weather on what this node sends, as `tc-netem(8)` spells it: `loss 5% delay 2ms`.
/// It replaces the weather that there was.
///
/// # Errors
///
/// When `tc` cannot do it.
pub fn make(env: &Env, spec: &str) -> Result<()> {
    tc(env, "replace", spec)
}

/// Puts up the place where weather is made, and makes it fine: before anybody sends what is not
/// to be lost in doing so.
///
/// # Errors
///
/// When `tc` cannot do it.
pub fn prepare(env: &Env) -> Result<()> {
    make(env, "")
}

/// Makes the weather fine again. There may never have been any.
pub fn clear(env: &Env) {
    let _ = tc(env, "change", "");
}

/// Bad weather that ends with this.
pub struct Weather(Env);

impl Weather {
    /// [`make`]s it.
    ///
    /// # Errors
    ///
    /// When `tc` cannot do it.
    pub fn new(env: &Env, spec: &str) -> Result<Self> {
        make(env, spec)?;
        Ok(Self(env.clone()))
    }
}

impl Drop for Weather {
    fn drop(&mut self) {
        clear(&self.0);
    }
}
