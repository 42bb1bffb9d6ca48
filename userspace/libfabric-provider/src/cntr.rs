// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use kfabric::CounterValue;

use crate::domain::Domain;
use crate::error::{errno, Errno, Ours};
use crate::ffi::*;
use crate::fork::{self, Disabled};
use crate::object::{self, called, Kind};
use crate::wait::{Flag, Wait};

/// The descriptor of a counter. The kernel has none, so a thread waits for changes.
struct Descriptor {
    /// Raised when the counter has changed since the last [`Counter::may_wait`].
    flag: Arc<Flag>,
    /// The value that the program has read last.
    seen: Mutex<CounterValue>,
    thread: Option<JoinHandle<()>>,
}

/// A counter.
pub(crate) struct Counter {
    pub(crate) counter: kfabric::Counter,
    wait: Wait,
    descriptor: Option<Descriptor>,
}

static FID: Table<fi_ops> = object::ops::<Counter>(absent(), Some(control));
pub(crate) static OPS: Table<fi_ops_cntr> = Table(fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(adderr),
    seterr: Some(seterr),
});

impl Kind for Counter {
    type Head = fid_cntr;
    const CLASS: u32 = FI_CLASS_CNTR;

    fn ops() -> *mut fi_ops {
        FID.get()
    }

    fn head(&self, fid: fid, _: *mut c_void) -> fid_cntr {
        fid_cntr {
            fid,
            ops: OPS.get(),
        }
    }

    fn disable(head: &mut fid_cntr) {
        head.ops = Disabled::of(&fork::COUNTER);
    }

    fn end(self) -> Result<(), (Self, Errno)> {
        let Self {
            counter,
            wait,
            descriptor,
        } = self;
        match counter.close() {
            Ok(()) => {
                // The close has ended the thread's wait.
                if let Some(thread) = descriptor.and_then(|of| of.thread) {
                    let _ = thread.join();
                }
                Ok(())
            }
            Err(returned) => {
                let counter = returned.object;
                let back = Self {
                    counter,
                    wait,
                    descriptor,
                };
                Err((back, errno(&returned.error)))
            }
        }
    }
}

/// Starts a thread that runs no signal handler of the program: a new thread has the mask of its maker.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are the calls' to write, and the first one is written before it is read.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let started = start();
    if blocked {
        // SAFETY: the call that succeeded has written the set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    started
}

impl Descriptor {
    fn new(counter: &kfabric::Counter) -> Result<Self, Errno> {
        let flag = Arc::new(Flag::new()?);
        let (raised, watch) = (flag.clone(), counter.watch());
        // Kernel modules without this wait refuse it here, not in the thread. No counter is at both
        // greatest values, so this one returns at once.
        let other = CounterValue {
            value: u64::MAX,
            errors: u64::MAX,
        };
        watch.changed(other).ours()?;
        let run = move || {
            let mut seen = CounterValue::default();
            // An error means that the counter is closed.
            while let Ok(now) = watch.changed(seen) {
                raised.raise();
                seen = now;
            }
        };
        let thread = std::thread::Builder::new().name("kfabric-cntr".into());
        let started = without_signals(|| thread.spawn(run));
        Ok(Self {
            flag,
            seen: Mutex::default(),
            thread: Some(started.ours()?),
        })
    }
}

impl Counter {
    fn new(domain: &Domain, attr: Option<&fi_cntr_attr>) -> Result<Self, Errno> {
        let (events, asked, flags) = attr.map_or((FI_CNTR_EVENTS_COMP, FI_WAIT_UNSPEC, 0), |a| {
            (a.events, a.wait_obj, a.flags)
        });
        if flags != 0 {
            return Err(FI_EBADFLAGS as Errno);
        }
        if events != FI_CNTR_EVENTS_COMP {
            return Err(libc::ENOSYS);
        }
        let wait = Wait::without_fd(asked)?;
        let counter = domain.domain.counter().ours()?;
        let descriptor = match wait.is_fd() {
            true => Some(Descriptor::new(&counter)?),
            false => None,
        };
        Ok(Self {
            counter,
            wait,
            descriptor,
        })
    }

    /// Reads one of the two values, which `part` returns, and marks it as seen; zero if the kernel
    /// refuses. The program has not seen the other value.
    fn read(&self, part: impl Fn(&mut CounterValue) -> &mut u64) -> u64 {
        let mut now = self.counter.read().unwrap_or_default();
        let now = *part(&mut now);
        if let Some(of) = &self.descriptor {
            let mut seen = of.seen.lock().unwrap_or_else(PoisonError::into_inner);
            *part(&mut seen) = now;
        }
        now
    }

    /// Whether the program may wait for the descriptor: it has read the value, and all errors.
    pub(crate) fn may_wait(&self) -> Result<bool, Errno> {
        let Some(of) = &self.descriptor else {
            return Ok(true);
        };
        of.flag.lower();
        let seen = of.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.counter.read().ours()?;
        Ok(now.value == seen.value && now.errors <= seen.errors)
    }

    fn wait(&self, threshold: u64, timeout: c_int) -> c_int {
        let ms = u64::try_from(timeout);
        let timeout = ms.map_or(Duration::MAX, Duration::from_millis);
        match self.counter.wait_or_signal(threshold, timeout) {
            Err(e) if e.errno() == Some(kfabric::Errno::EIO) => -(FI_EAVAIL as c_int),
            done => called(done),
        }
    }
}

/// `fi_cntr_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    to: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments; the domain is ours.
    unsafe {
        object::open(to, context, |_| {
            Counter::new(object::body(domain), attr.as_ref())
        })
    }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: a counter's fid, and the argument that the command takes.
    unsafe {
        let counter = object::body::<Counter>(fid);
        let fd = counter.descriptor.as_ref().map(|of| of.flag.0.as_fd());
        counter.wait.control(command, arg, fd)
    }
}

/// Functions on counters: the arguments, and the expression on the counter `c`.
macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty = |$c:ident| $do:expr;)*) => {$(
        unsafe extern "C" fn $name(cntr: *mut fid_cntr, $($arg: $ty),*) -> $out {
            // SAFETY: a counter.
            let $c = unsafe { object::body::<Counter>(cntr) };
            $do
        }
    )*};
}

functions! {
    fn read() -> u64 = |c| c.read(|of| &mut of.value);
    fn readerr() -> u64 = |c| c.read(|of| &mut of.errors);
    fn add(value: u64) -> c_int = |c| called(c.counter.add(value));
    fn set(value: u64) -> c_int = |c| called(c.counter.set(value));
    fn adderr(value: u64) -> c_int = |c| called(c.counter.add_errors(value));
    fn seterr(value: u64) -> c_int = |c| called(c.counter.set_errors(value));
    fn wait(threshold: u64, timeout: c_int) -> c_int = |c| c.wait(threshold, timeout);
}
