// SPDX-License-Identifier: MIT OR Apache-2.0

//! Faults on the wire: netem on a node's sent packets.
//!
//! A packet that the machine itself drops while sending is an error to rxe, and the end of its
//! queue pair. A packet that netem drops counts as sent. That holds only if netem's queue is never
//! full, so the queue is long, and if netem is not added or removed while packets are sent, because
//! then the machine drops everything for a moment. So netem stays once added, and fine weather is
//! netem without faults.

use super::guest::run;
use super::Env;
use anyhow::Result;

/// Maximum number of packets that wait in netem.
const QUEUE: &str = "100000";
/// Settings that a specification does not mention are reset to these.
const NOTHING: [&str; 4] = ["corrupt", "0%", "rate", "0bit"];

fn tc(env: &Env, how: &str, spec: &str) -> Result<()> {
    let dev = env.netdev.as_str();
    let fixed = ["qdisc", how, "dev", dev, "root", "netem", "limit", QUEUE];
    let words = fixed.into_iter().chain(NOTHING);
    let args: Vec<&str> = words.chain(spec.split_whitespace()).collect();
    run("tc", &args).map(drop)
}

/// Sets the faults of this node's sent packets, as `tc-netem(8)` spells them: `loss 5% delay 2ms`.
/// Earlier faults are replaced.
///
/// # Errors
///
/// If `tc` fails.
pub fn make(env: &Env, spec: &str) -> Result<()> {
    tc(env, "replace", spec)
}

/// Adds netem without faults, before any packets are sent that must not be lost by the addition.
///
/// # Errors
///
/// If `tc` fails.
pub fn prepare(env: &Env) -> Result<()> {
    make(env, "")
}

/// Removes the faults. There may never have been any.
pub fn clear(env: &Env) {
    let _ = tc(env, "change", "");
}

/// Faults that end when this value is dropped.
pub struct Weather(Env);

impl Weather {
    /// Sets faults with [`make`].
    ///
    /// # Errors
    ///
    /// If `tc` fails.
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
