// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is undone when a signal ends the program: INT, TERM and HUP.
//!
//! A thread waits for these signals once something is to be undone. It undoes everything and then
//! lets the signal end the program, so that the parent sees which one it was.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

type Undo = Box<dyn FnOnce() + Send>;

/// What is to be undone, by number, and the next number.
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

/// Returns at once, except if a signal is ending the program: then never.
pub(crate) fn wait_if_ending() {
    while caught() {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// The signals that the parent has set to be ignored, as `nohup` does: a mask with bit 0 for signal 1.
pub(crate) fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0)
}

/// Watches the signals on a thread of its own, from the first call on.
fn watch() {
    static WATCHING: OnceLock<()> = OnceLock::new();
    WATCHING.get_or_init(|| {
        let ignored = ignored();
        let mut signals = vec![SIGINT, SIGTERM, SIGHUP];
        signals.retain(|signal| ignored >> (signal - 1) & 1 == 0);
        let (ready, started) = mpsc::channel();
        // The handlers are installed by the thread: without one, signals must go on ending the
        // program.
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
        // Without a descriptor for it, they end the program as ever.
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
    // Kept until the end: nothing is made, or made to stay, from here on.
    let mut all = all();
    // The newest first: what is in a folder before the folder.
    for (_, undo) in std::mem::take(&mut all.undo).into_iter().rev() {
        undo();
    }
    let _ = low_level::emulate_default_handler(signal);
    low_level::exit(128 + signal);
}

/// Undoes something if a signal ends the program while this lives.
pub(crate) struct OnSignal(u64);

impl OnSignal {
    /// Has `undo` done if a signal ends the program.
    pub(crate) fn undo(undo: impl FnOnce() + Send + 'static) -> Self {
        watch();
        all().add(Box::new(undo))
    }

    /// Makes something, and has it undone if a signal ends the program. None does in between.
    pub(crate) fn making<T, E>(
        make: impl FnOnce() -> Result<T, E>,
        undo: impl FnOnce() + Send + 'static,
    ) -> Result<(T, Self), E> {
        watch();
        let mut all = all();
        let made = make()?;
        Ok((made, all.add(Box::new(undo))))
    }

    /// Does what makes it stay. No signal ends the program meanwhile; afterwards nothing is undone
    /// if it succeeded.
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
