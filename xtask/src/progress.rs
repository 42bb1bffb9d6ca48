// SPDX-License-Identifier: MIT OR Apache-2.0

//! Progress of long steps: name, elapsed time, remaining time.
//!
//! On a terminal the running step is one line that is rewritten. Elsewhere (a CI log) a step prints
//! a line at its start, one every half minute, and one at its end. The remaining time is computed
//! from bytes if the step counts them, and otherwise from the last duration of the same step.

use crate::context::Context;
use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Returns the progress of a step: bytes done and in total.
pub type Gauge = Box<dyn Fn() -> (u64, u64) + Send>;

/// A long step whose progress is shown. A drop before [`Step::done`] marks the step as failed.
pub struct Step {
    what: String,
    started: Instant,
    stop: Arc<AtomicBool>,
    shower: Option<JoinHandle<()>>,
    durations: PathBuf,
}

impl Step {
    /// Starts to show a step of the given name.
    pub fn new(ctx: &Context, what: impl Into<String>) -> Self {
        Self::with_gauge(ctx, what, None)
    }

    /// Starts to show a step whose progress `gauge` measures.
    pub fn with_gauge(ctx: &Context, what: impl Into<String>, gauge: Option<Gauge>) -> Self {
        let what = what.into();
        let durations = ctx.cache.join("durations.json");
        let expected = load(&durations).get(&what).copied();
        let started = Instant::now();
        let stop = Arc::new(AtomicBool::new(false));
        let tty = std::io::stderr().is_terminal();
        if !tty {
            match expected {
                Some(secs) => eprintln!("  {what} … (took {} the last time)", clock(secs)),
                None => eprintln!("  {what} …"),
            }
        }
        let shower = std::thread::spawn({
            let (what, stop) = (what.clone(), Arc::clone(&stop));
            move || show(&what, started, expected, gauge, tty, &stop)
        });
        Self {
            what,
            started,
            stop,
            shower: Some(shower),
            durations,
        }
    }

    /// Ends the step successfully and stores its duration.
    pub fn done(mut self) {
        let secs = self.started.elapsed().as_secs();
        self.end("✓");
        let mut all = load(&self.durations);
        all.insert(self.what.clone(), secs);
        // A lost duration only worsens the estimate of the next run.
        let _ = serde_json::to_string_pretty(&all)
            .map_err(std::io::Error::other)
            .and_then(|text| std::fs::write(&self.durations, text));
    }

    fn end(&mut self, mark: &str) {
        if let Some(shower) = self.shower.take() {
            self.stop.store(true, Ordering::Relaxed);
            shower.thread().unpark();
            let _ = shower.join();
            let elapsed = clock(self.started.elapsed().as_secs());
            let clear = if std::io::stderr().is_terminal() {
                "\r\x1b[K"
            } else {
                ""
            };
            eprintln!("{clear}{mark} {} ({elapsed})", self.what);
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.end("✗");
    }
}

/// Shows a step until the other end of the channel asks to stop.
fn show(
    what: &str,
    started: Instant,
    expected: Option<u64>,
    gauge: Option<Gauge>,
    tty: bool,
    stop: &AtomicBool,
) {
    let every = Duration::from_secs(if tty { 1 } else { 30 });
    let mut next = started + every;
    loop {
        std::thread::park_timeout(Duration::from_millis(250));
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if Instant::now() < next {
            continue;
        }
        next += every;
        let elapsed = started.elapsed().as_secs();
        let left = left(elapsed, expected, gauge.as_ref().map(|gauge| gauge()));
        let line = format!("  {what} … {}{left}", clock(elapsed));
        if tty {
            eprint!("\r\x1b[K{line}");
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }
}

/// Returns the remaining work or time, if known.
fn left(elapsed: u64, expected: Option<u64>, bytes: Option<(u64, u64)>) -> String {
    if let Some((done, total)) = bytes.filter(|(_, total)| *total > 0) {
        let mib = |bytes: u64| bytes >> 20;
        let done = done.min(total);
        let mut text = format!(", {} of {} MiB", mib(done), mib(total));
        if done > 0 && elapsed > 1 {
            let rest = (total - done) as f64 * elapsed as f64 / done as f64;
            text += &format!(", about {} left", clock(rest as u64));
        }
        return text;
    }
    match expected {
        Some(secs) if secs > elapsed => format!(", about {} left", clock(secs - elapsed)),
        Some(_) => ", longer than the last time".into(),
        None => String::new(),
    }
}

/// Formats seconds as `m:ss`.
pub fn clock(secs: u64) -> String {
    format!("{}:{:02}", secs / 60, secs % 60)
}

fn load(path: &std::path::Path) -> BTreeMap<String, u64> {
    std::fs::read_to_string(path)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_comes_from_bytes_before_history() {
        assert_eq!(
            left(10, Some(99), Some((1 << 20, 4 << 20))),
            ", 1 of 4 MiB, about 0:30 left"
        );
        assert_eq!(left(10, Some(75), None), ", about 1:05 left");
        assert_eq!(left(80, Some(75), None), ", longer than the last time");
        assert_eq!(left(80, None, None), "");
        assert_eq!(left(5, None, Some((0, 0))), "");
    }
}
