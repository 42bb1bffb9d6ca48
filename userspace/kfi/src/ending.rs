// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cleanup when a signal ends the program: INT, TERM and HUP.
//!
//! A thread waits for these signals from the first registered cleanup on. The thread runs all
//! cleanups, then lets the signal end the program, so that the parent process sees the signal.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

type Undo = Box<dyn FnOnce() + Send>;

/// Registered cleanups by number, and the next number.
struct All {
    undo: BTreeMap<u64, Undo>,
    next: u64,
}

impl All {
    fn add(&mut self, undo: Undo) -> OnSignal {
        let number = self.next;
        self.next += 1;
        self.undo.insert(number, undo);
        OnSignal(number)
    }
}

static ALL: Mutex<All> = Mutex::new(All {
    undo: BTreeMap::new(),
    next: 0,
});

/// Set by the signal handler itself, before an interrupted system call returns.
static CAUGHT: OnceLock<Arc<AtomicBool>> = OnceLock::new();

fn all() -> MutexGuard<'static, All> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a signal is ending the program.
fn caught() -> bool {
    CAUGHT
        .get()
        .is_some_and(|caught| caught.load(Ordering::Acquire))
}

/// Returns at once; does not return if a signal is ending the program.
pub(crate) fn wait_if_ending() {
    while caught() {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Signals that the parent process has set to be ignored, as `nohup` does. Bit 0 is signal 1.
pub(crate) fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0)
}

/// Starts the thread that waits for the signals, on the first call.
fn watch() {
    static WATCHING: OnceLock<()> = OnceLock::new();
    WATCHING.get_or_init(|| {
        let ignored = ignored();
        let mut signals = vec![SIGINT, SIGTERM, SIGHUP];
        signals.retain(|signal| ignored >> (signal - 1) & 1 == 0);
        let (ready, started) = mpsc::channel();
        // The thread installs the handlers: if it cannot be started, signals still end the program.
        let spawned = std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || serve(&signals, ready));
        if spawned.is_ok() {
            let _ = started.recv();
        }
    });
}

fn serve(signals: &[i32], ready: mpsc::Sender<()>) {
    let mut watched = match Signals::new(signals) {
        Ok(watched) => watched,
        // Without a descriptor, the signals end the program as usual.
        Err(_) => return,
    };
    let caught = CAUGHT.get_or_init(Arc::default);
    // A write beyond the file size limit then fails with EFBIG, and does not end the program.
    let _ = flag::register(SIGXFSZ, Arc::default());
    for signal in signals {
        let _ = flag::register(*signal, caught.clone());
    }
    let _ = ready.send(());
    let Some(signal) = watched.forever().next() else {
        return;
    };
    // Held until the program ends: no cleanup is registered or withdrawn from here on.
    let mut all = all();
    // Newest first, so that files are removed before their directory.
    for (_, undo) in std::mem::take(&mut all.undo).into_iter().rev() {
        undo();
    }
    let _ = low_level::emulate_default_handler(signal);
    low_level::exit(128 + signal);
}

/// A cleanup that runs if a signal ends the program while this value lives.
pub(crate) struct OnSignal(u64);

impl OnSignal {
    /// Registers a cleanup.
    pub(crate) fn undo(undo: impl FnOnce() + Send + 'static) -> Self {
        watch();
        all().add(Box::new(undo))
    }

    /// Calls `make`, and registers the cleanup if `make` succeeds. No signal ends the program
    /// between the two.
    pub(crate) fn making<T, E>(
        make: impl FnOnce() -> Result<T, E>,
        undo: impl FnOnce() + Send + 'static,
    ) -> Result<(T, Self), E> {
        watch();
        let mut all = all();
        let made = make()?;
        Ok((made, all.add(Box::new(undo))))
    }

    /// Calls `last`, the step that makes the result permanent, and withdraws the cleanup if `last`
    /// succeeds. No signal ends the program meanwhile.
    pub(crate) fn keep<T, E>(&self, last: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut all = all();
        let done = last();
        if done.is_ok() {
            all.undo.remove(&self.0);
        }
        done
    }
}

impl Drop for OnSignal {
    fn drop(&mut self) {
        all().undo.remove(&self.0);
    }
}
