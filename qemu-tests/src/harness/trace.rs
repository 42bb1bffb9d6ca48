// SPDX-License-Identifier: MIT OR Apache-2.0

//! A buffer of its own for the kernel's trace events.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Tracing of some events, which ends on drop. A process may have one at a time.
pub struct Trace {
    dir: PathBuf,
    events: PathBuf,
}

impl Trace {
    /// Traces events from now on, filtered by `filter`: those of a system (`kfabric`), or one of a
    /// system (`raw_syscalls/sys_enter`).
    ///
    /// # Errors
    ///
    /// If there are no such events, or no buffer for them.
    pub fn new(events: &str, filter: Option<&str>) -> Result<Self> {
        let name = format!("kfi-tests-{}", std::process::id());
        let dir = Path::new("/sys/kernel/tracing/instances").join(name);
        std::fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        let events = dir.join("events").join(events);
        let trace = Self { dir, events };
        if let Some(filter) = filter {
            let path = trace.events.join("filter");
            std::fs::write(path, filter).with_context(|| format!("filter {filter:?}"))?;
        }
        trace.set("1")?;
        Ok(trace)
    }

    fn set(&self, on: &str) -> Result<()> {
        let path = self.events.join("enable");
        std::fs::write(&path, on).with_context(|| path.display().to_string())
    }

    /// Stops tracing; recorded events stay.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub fn stop(&self) -> Result<()> {
        self.set("0")
    }

    /// Returns the kernel's text of each event called `name`.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn events(&self, name: &str) -> Result<Vec<String>> {
        Ok(self
            .lines(name)?
            .into_iter()
            .map(|(_, text)| text)
            .collect())
    }

    /// Returns the kernel's text of each event called `name` that came in a soft interrupt.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn events_in_soft_interrupt(&self, name: &str) -> Result<Vec<String>> {
        // The context is the third of the flags before the time (Documentation/trace/ftrace.rst).
        let soft = |place: &str| {
            let flags = place.split_whitespace().rev().nth(1);
            flags.and_then(|flags| flags.chars().nth(2)) == Some('s')
        };
        let lines = self.lines(name)?.into_iter();
        Ok(lines
            .filter(|(place, _)| soft(place))
            .map(|(_, text)| text)
            .collect())
    }

    /// Returns the start (task, processor, flags, time) and the text of each event called `name`.
    fn lines(&self, name: &str) -> Result<Vec<(String, String)>> {
        let text = std::fs::read_to_string(self.dir.join("trace"))?;
        let marker = format!(" {name}: ");
        let of = |line: &str| {
            let (place, text) = line.split_once(&marker)?;
            Some((place.to_owned(), text.to_owned()))
        };
        Ok(text.lines().filter_map(of).collect())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.dir);
    }
}
