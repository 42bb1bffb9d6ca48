// SPDX-License-Identifier: MIT OR Apache-2.0

//! Injects the nth failure of a kind: `/proc/self/task/TID/fail-nth` and the attributes in debugfs
//! (Documentation/fault-injection).

use crate::harness::skip;
use crate::sys::{self, Errno};
use anyhow::{ensure, Context, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// A kind of call that is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An allocation of the slab allocator (`kmalloc()` and the like).
    Slab,
    /// An allocation of pages (also those of `vmalloc()`).
    Page,
    /// A copy from or to user memory.
    Copy,
    /// Pinning user memory.
    Pin,
    /// A call of the device driver.
    Device,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Slab, Self::Page, Self::Copy, Self::Pin, Self::Device];

    /// Returns the kind's name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slab => "slab",
            Self::Page => "page",
            Self::Copy => "copy",
            Self::Pin => "pin",
            Self::Device => "device",
        }
    }

    /// Returns the kind's folder in debugfs.
    fn folder(self) -> &'static str {
        match self {
            Self::Slab => "failslab",
            Self::Page => "fail_page_alloc",
            Self::Copy => "fail_usercopy",
            Self::Pin => "fail_kfabric_pin",
            Self::Device => "fail_kfabric_device",
        }
    }

    /// Returns the errno that a failure of this kind gives.
    pub fn errno(self) -> i32 {
        match self {
            Self::Slab | Self::Page => libc::ENOMEM,
            Self::Copy | Self::Pin => libc::EFAULT,
            Self::Device => libc::EIO,
        }
    }
}

const DEBUGFS: &str = "/sys/kernel/debug";

/// The attributes of this kernel, and this thread's counter.
pub struct Knobs {
    /// Countdown of the thread that opened it; `None`: no failure is injected.
    nth: Option<File>,
}

impl Knobs {
    /// Prepares fault injection for the calling thread.
    ///
    /// # Errors
    ///
    /// If this kernel has none.
    pub fn open() -> Result<Self> {
        for kind in Kind::ALL {
            if !path(kind, "verbose").exists() {
                return skip(format!(
                    "the kernel has no {}: boot one with fault injection",
                    kind.folder()
                ));
            }
            // Injected failures must not be logged; warnings that they cause must be.
            set(kind, "verbose", "0")?;
            set(kind, "probability", "0")?;
            set(kind, "stacktrace-depth", "0")?;
        }
        set(Kind::Slab, "ignore-gfp-wait", "N")?;
        set(Kind::Slab, "cache-filter", "N")?;
        set(Kind::Page, "ignore-gfp-wait", "N")?;
        set(Kind::Page, "ignore-gfp-highmem", "N")?;
        set(Kind::Page, "min-order", "0")?;
        let own = format!("/proc/self/task/{}/fail-nth", sys::thread_id());
        let nth = File::options()
            .read(true)
            .write(true)
            .open(&own)
            .context(own)?;
        Ok(Self { nth: Some(nth) })
    }

    /// Returns knobs that inject no failure, for any kernel.
    pub fn dry() -> Self {
        Self { nth: None }
    }

    /// Returns whether no failure is injected.
    pub fn is_dry(&self) -> bool {
        self.nth.is_none()
    }

    /// Selects the kind of failures.
    ///
    /// # Errors
    ///
    /// If an attribute cannot be set.
    pub fn choose(&self, kind: Kind) -> Result<()> {
        if self.is_dry() {
            return Ok(());
        }
        for other in Kind::ALL {
            // With a stack depth of 0 no stack is checked: a kind whose range does not start at 0
            // neither fails nor counts.
            let start = if other == kind { "0" } else { "1" };
            set(other, "require-start", start)?;
        }
        Ok(())
    }

    /// Makes the `nth` call of the chosen kind in this thread fail, from now on.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub fn arm(&self, nth: u32) -> Result<()> {
        let Some(file) = &self.nth else {
            return Ok(());
        };
        file.write_all_at(nth.to_string().as_bytes(), 0)
            .context("setting fail-nth")
    }

    /// Disarms the failure. Returns whether it has happened.
    ///
    /// # Errors
    ///
    /// If the kernel refuses twice.
    pub fn disarm(&self) -> Result<bool> {
        let Some(file) = &self.nth else {
            return Ok(false);
        };
        let mut text = [0u8; 16];
        let mut happened = match file.read_at(&mut text, 0) {
            Ok(n) => &text[..n] == b"0\n",
            // The read itself failed, so the failure had not happened before.
            Err(e) if e.raw_os_error() == Some(libc::EFAULT) => false,
            Err(e) => return Err(e).context("reading fail-nth"),
        };
        if let Err(e) = file.write_all_at(b"0", 0) {
            ensure!(
                e.raw_os_error() == Some(libc::EFAULT),
                "clearing fail-nth: {e}"
            );
            happened = false;
            file.write_all_at(b"0", 0).context("clearing fail-nth")?;
        }
        Ok(happened)
    }

    /// Runs `f` with the `nth` failure. Returns its answer, and whether the failure happened.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub fn with<T>(
        &self,
        nth: u32,
        f: impl FnOnce() -> std::result::Result<T, Errno>,
    ) -> Result<(std::result::Result<T, Errno>, bool)> {
        self.arm(nth)?;
        let answer = f();
        Ok((answer, self.disarm()?))
    }
}

/// Makes every allocation of the calling thread fail on demand.
pub struct Famine {
    /// The `make-it-fail` file of this thread.
    mine: File,
}

impl Famine {
    /// Kinds of allocations.
    const KINDS: [Kind; 2] = [Kind::Slab, Kind::Page];

    /// Prepares the famine. Not to be used beside [`Knobs::with`].
    ///
    /// # Errors
    ///
    /// If an attribute cannot be set.
    pub fn new(knobs: &Knobs) -> Result<Self> {
        knobs.choose(Kind::Slab)?;
        let own = format!("/proc/self/task/{}/make-it-fail", sys::thread_id());
        let mine = File::options().write(true).open(&own).context(own)?;
        let this = Self { mine };
        for kind in Self::KINDS {
            set(kind, "require-start", "0")?;
            for (name, value) in [("task-filter", "Y"), ("times", "-1"), ("interval", "1")] {
                set(kind, name, value)?;
            }
            set(kind, "space", "0")?;
            set(kind, "probability", "100")?;
        }
        Ok(this)
    }

    /// Runs `f` while every kernel allocation of this thread fails. User memory that `f` uses must
    /// have been touched before.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub fn with<T>(&self, f: impl FnOnce() -> T) -> Result<T> {
        self.mine.write_all_at(b"1", 0).context("make-it-fail")?;
        let answer = f();
        self.mine.write_all_at(b"0", 0).context("make-it-fail")?;
        Ok(answer)
    }
}

impl Drop for Famine {
    fn drop(&mut self) {
        for kind in Self::KINDS {
            for (name, value) in [("probability", "0"), ("task-filter", "N"), ("times", "1")] {
                let _ = set(kind, name, value);
            }
        }
    }
}

/// Failures of one kind in any task, one at a time.
pub struct Everywhere {
    kind: Kind,
    /// Number of calls counted since boot. The kernel fails a call if the count is a multiple of
    /// the interval, and does not count if the interval is 1.
    counted: u64,
}

impl Everywhere {
    /// Prepares failures of a kind. If `only` is set, calls count only if made below code in that
    /// address range, and not below any in `except`.
    ///
    /// # Errors
    ///
    /// If an attribute cannot be set.
    pub fn new(kind: Kind, only: Option<(u64, u64)>, except: Option<(u64, u64)>) -> Result<Self> {
        let this = Self { kind, counted: 0 };
        let range = |name: &str, (from, to): (u64, u64)| -> Result<()> {
            set(kind, &format!("{name}-start"), &format!("{from:#x}"))?;
            set(kind, &format!("{name}-end"), &format!("{to:#x}"))
        };
        range("require", only.unwrap_or((0, u64::MAX)))?;
        range("reject", except.unwrap_or((0, 0)))?;
        let depth = if only.is_some() { "32" } else { "0" };
        set(kind, "stacktrace-depth", depth)?;
        set(kind, "space", "0")?;
        Ok(this)
    }

    /// Makes the `nth` call from now on fail, and no other.
    ///
    /// # Errors
    ///
    /// If an attribute cannot be set.
    pub fn arm(&mut self, nth: u32) -> Result<()> {
        let interval = self.counted + u64::from(nth);
        set(self.kind, "interval", &interval.to_string())?;
        set(self.kind, "times", "1")?;
        set(self.kind, "probability", "100")
    }

    /// Disarms the failure. Returns whether it has happened. If not, it cannot be armed again,
    /// because the count is unknown.
    ///
    /// # Errors
    ///
    /// If an attribute cannot be read or set.
    pub fn disarm(&mut self) -> Result<bool> {
        set(self.kind, "probability", "0")?;
        let happened = get(self.kind, "times")? == 0;
        let interval = u64::try_from(get(self.kind, "interval")?)?;
        if happened && interval > 1 {
            self.counted = interval;
        }
        Ok(happened)
    }
}

impl Drop for Everywhere {
    fn drop(&mut self) {
        for (name, value) in [
            ("probability", "0"),
            ("stacktrace-depth", "0"),
            ("times", "1"),
            ("interval", "1"),
            ("require-start", "0"),
            ("require-end", "0xffffffffffffffff"),
            ("reject-start", "0"),
            ("reject-end", "0"),
        ] {
            let _ = set(self.kind, name, value);
        }
    }
}

fn path(kind: Kind, name: &str) -> PathBuf {
    PathBuf::from(DEBUGFS).join(kind.folder()).join(name)
}

fn set(kind: Kind, name: &str, value: &str) -> Result<()> {
    let path = path(kind, name);
    std::fs::write(&path, value).with_context(|| format!("{} = {value}", path.display()))
}

fn get(kind: Kind, name: &str) -> Result<i64> {
    let path = path(kind, name);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    text.trim()
        .parse()
        .with_context(|| path.display().to_string())
}
