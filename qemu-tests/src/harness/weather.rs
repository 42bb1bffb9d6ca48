// SPDX-License-Identifier: MIT OR Apache-2.0

//! Bad weather on the wire: netem on what a node sends.
//!
//! A packet that the machine itself drops on its way out is an error to rxe, and the end of its
//! queue pair. netem is no such place: what it loses counts as sent. That holds as long as its
//! queue is never full, so it gets a long one.

use super::guest::run;
use super::Env;
use anyhow::Result;

/// Packets that may wait in netem.
const QUEUE: &str = "100000";

/// Makes the weather on what this node sends, as `tc-netem(8)` spells it: `loss 5% delay 2ms`.
/// It replaces the weather that there was.
///
/// # Errors
///
/// When `tc` cannot do it.
pub fn make(env: &Env, spec: &str) -> Result<()> {
    let dev = env.netdev.as_str();
    let fixed = [
        "qdisc", "replace", "dev", dev, "root", "netem", "limit", QUEUE,
    ];
    let args: Vec<&str> = fixed.into_iter().chain(spec.split_whitespace()).collect();
    run("tc", &args).map(drop)
}

/// Makes the weather fine again. It may be so already.
pub fn clear(env: &Env) {
    let _ = run("tc", &["qdisc", "del", "dev", &env.netdev, "root"]);
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
