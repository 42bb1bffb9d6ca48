// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of completed operations (`fi_cntr(3)`).
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use kfabric_uapi as abi;

use crate::domain::inner::DomainInner;
use crate::errno::Errno;
use crate::error::{Error, Result, Returned};
use crate::handle::{debug_by_handle, Handle};
use crate::object::{Kind, ObjectId};
use crate::sys;

/// The two values of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterValue {
    /// Operations that succeeded.
    pub value: u64,
    /// Operations that failed.
    pub errors: u64,
}

pub(crate) struct CounterInner {
    pub(crate) handle: Handle,
    _domain: Arc<DomainInner>,
}

/// A counter of completed operations.
pub struct Counter {
    pub(crate) inner: Arc<CounterInner>,
}

impl Counter {
    pub(crate) fn open(domain: &Arc<DomainInner>) -> Result<Self> {
        let dev = &domain.handle.dev;
        let mut arg: abi::CntrOpen = sys::new();
        arg.domain = domain.handle.raw();
        dev.call(domain.handle.id, &mut arg, &mut [])?;
        let handle = Handle::new(dev, Kind::Counter, arg.handle);
        Ok(Self {
            inner: Arc::new(CounterInner {
                handle,
                _domain: domain.clone(),
            }),
        })
    }

    /// The counter's name in error messages, with its handle.
    pub fn id(&self) -> ObjectId {
        self.inner.handle.id
    }

    fn control(&self, op: u32, value: u64) -> Result<CounterValue> {
        let mut arg: abi::CntrCtl = sys::new();
        arg.cntr = self.inner.handle.raw();
        arg.op = op;
        arg.value = value;
        self.inner.handle.dev.call(self.id(), &mut arg, &mut [])?;
        Ok(CounterValue {
            value: arg.value,
            errors: arg.errors,
        })
    }

    /// Reads the counter.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the call.
    pub fn read(&self) -> Result<CounterValue> {
        self.control(abi::KFI_CNTR_READ, 0)
    }

    /// Adds to the number of successes.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the call.
    pub fn add(&self, value: u64) -> Result<CounterValue> {
        self.control(abi::KFI_CNTR_ADD, value)
    }

    /// Sets the number of successes.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the call.
    pub fn set(&self, value: u64) -> Result<CounterValue> {
        self.control(abi::KFI_CNTR_SET, value)
    }

    /// Adds to the number of failures.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the call.
    pub fn add_errors(&self, value: u64) -> Result<CounterValue> {
        self.control(abi::KFI_CNTR_ADDERR, value)
    }

    /// Sets the number of failures.
    ///
    /// # Errors
    ///
    /// - [`Error::Call`] if the kernel refuses the call.
    pub fn set_errors(&self, value: u64) -> Result<CounterValue> {
        self.control(abi::KFI_CNTR_SETERR, value)
    }

    /// Waits until the number of successes reaches `threshold`.
    ///
    /// # Errors
    ///
    /// - [`Error::Timeout`] if the timeout expires first.
    /// - `EIO` if the number of failures changes.
    pub fn wait(&self, threshold: u64, timeout: Duration) -> Result<()> {
        let mut arg = self.wait_arg(threshold, timeout);
        Self::waited(self.call_again(&mut arg), timeout)
    }

    /// Like [`Counter::wait`], but a signal handler without `SA_RESTART` ends the wait.
    ///
    /// # Errors
    ///
    /// - Those of [`Counter::wait`].
    /// - `EINTR` if such a handler ran.
    pub fn wait_or_signal(&self, threshold: u64, timeout: Duration) -> Result<()> {
        let mut arg = self.wait_arg(threshold, timeout);
        let dev = &self.inner.handle.dev;
        Self::waited(dev.call(self.id(), &mut arg, &mut []), timeout)
    }

    fn wait_arg(&self, threshold: u64, timeout: Duration) -> abi::CntrWait {
        let wait = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let mut arg: abi::CntrWait = sys::new();
        arg.cntr = self.inner.handle.raw();
        arg.threshold = threshold;
        arg.deadline = sys::monotonic_ns().saturating_add(wait);
        arg
    }

    /// Waits again after each signal: the deadline is absolute.
    fn call_again(&self, arg: &mut abi::CntrWait) -> Result<()> {
        loop {
            match self.inner.handle.dev.call(self.id(), arg, &mut []) {
                Err(e) if e.errno() == Some(Errno::EINTR) => {}
                done => return done,
            }
        }
    }

    fn waited(done: Result<()>, timeout: Duration) -> Result<()> {
        match done {
            Err(e) if e.errno() == Some(Errno::ETIMEDOUT) => Err(Error::Timeout {
                what: "waiting for a counter",
                after: timeout,
            }),
            done => done,
        }
    }

    /// Returns a view of the counter, for a thread that waits. Closing the counter ends its wait.
    pub fn watch(&self) -> CounterWatch {
        CounterWatch(Self {
            inner: self.inner.clone(),
        })
    }

    /// Closes the counter. On failure the counter is returned in [`Returned`].
    ///
    /// # Errors
    ///
    /// - `EBUSY` while an endpoint uses the counter.
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        Returned::on_error(self.inner.handle.close(), self)
    }
}

debug_by_handle!(Counter, inner.handle);

/// A view of a counter: [`Counter::watch`].
#[derive(Debug)]
pub struct CounterWatch(Counter);

impl CounterWatch {
    /// Waits until a value differs from `seen`. Returns the values.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if the counter was closed.
    /// - `EINVAL` if the kernel's modules are older than the library.
    pub fn changed(&self, seen: CounterValue) -> Result<CounterValue> {
        let mut arg: abi::CntrWait = sys::new();
        arg.flags = abi::KFI_CNTR_WAIT_CHANGE;
        arg.cntr = self.0.inner.handle.raw();
        arg.threshold = seen.value;
        arg.errors = seen.errors;
        arg.deadline = u64::MAX;
        self.0.call_again(&mut arg)?;
        self.0.read()
    }
}
