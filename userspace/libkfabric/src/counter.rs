// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use kfabric_uapi as abi;

use crate::errno::Errno;
use crate::error::{Error, ObjectId, Result, Returned};
use crate::fabric::DomainInner;
use crate::object::{Handle, Kind};
use crate::sys;

/// What a counter says.
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

/// Counts operations that ended.
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

    /// Its name in messages, with its handle.
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

    /// Reads it.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn read(&self) -> Result<CounterValue> {
        self.control(abi::KFI_CNTR_READ, 0)
    }

    /// Adds to it.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn add(&self, value: u64) -> Result<CounterValue> {
        self.control(abi::KFI_CNTR_ADD, value)
    }

    /// Sets it.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn set(&self, value: u64) -> Result<CounterValue> {
        self.control(abi::KFI_CNTR_SET, value)
    }

    /// Adds to its errors.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn add_errors(&self, value: u64) -> Result<CounterValue> {
        self.control(abi::KFI_CNTR_ADDERR, value)
    }

    /// Sets its errors.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn set_errors(&self, value: u64) -> Result<CounterValue> {
        self.control(abi::KFI_CNTR_SETERR, value)
    }

    /// Waits until it reaches `threshold`.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`]; `EIO` when its error count changed.
    pub fn wait(&self, threshold: u64, timeout: Duration) -> Result<()> {
        let wait = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let mut arg: abi::CntrWait = sys::new();
        arg.cntr = self.inner.handle.raw();
        arg.threshold = threshold;
        arg.deadline = sys::monotonic_ns().saturating_add(wait);
        let done = self.inner.handle.dev.call(self.id(), &mut arg, &mut []);
        match done {
            Err(e) if e.errno() == Some(Errno::ETIMEDOUT) => Err(Error::Timeout {
                what: "waiting for a counter",
                after: timeout,
            }),
            done => done,
        }
    }

    /// Closes it; given back while an endpoint uses it.
    ///
    /// # Errors
    ///
    /// `EBUSY`.
    pub fn close(self) -> std::result::Result<(), Returned<Self>> {
        match self.inner.handle.close() {
            Ok(()) => Ok(()),
            Err(error) => Err(Returned {
                object: self,
                error,
            }),
        }
    }
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.handle.fmt(f)
    }
}
