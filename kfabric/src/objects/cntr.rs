// SPDX-License-Identifier: GPL-2.0
//! Counters (`fi_cntr(3)`): operations that succeeded and operations that failed.

use kernel::{
    bindings,
    new_condvar,
    prelude::*,
    sync::{
        Arc,
        CondVar,
        CondVarTimeoutResult, //
    }, //
};

use super::domain::Domain;
use crate::{
    base::parent::{
        Children,
        Held,
        Parent, //
    },
    new_irqlock,
    sys::IrqLock, //
};

/// The two values of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that succeeded.
    pub value: u64,
    /// Operations that failed.
    pub errors: u64,
}

/// A counter.
#[pin_data]
pub struct Cntr {
    #[pin]
    counts: IrqLock<Counts>,
    #[pin]
    wait: CondVar,
    children: Children,
    domain: Held<Domain>,
}

impl Parent for Cntr {
    fn children(&self) -> &Children {
        &self.children
    }
}

impl Cntr {
    /// Opens a counter at zero.
    pub fn open(domain: &Arc<Domain>) -> Result<Arc<Self>> {
        let domain = Held::new(domain)?;
        #[cfg(not(kfabric_seed_bug = "unaccounted-allocation"))]
        let flags = GFP_KERNEL_ACCOUNT;
        #[cfg(kfabric_seed_bug = "unaccounted-allocation")]
        // UNACCOUNTED: The bug itself, which the test of memory cgroups has to find.
        let flags = GFP_KERNEL;
        Arc::pin_init(
            pin_init!(Self {
                counts <- new_irqlock!(Counts::default(), "kfabric_cntr"),
                wait <- new_condvar!("kfabric_cntr"),
                children: Children::new(),
                domain,
            }),
            flags,
        )
    }

    /// The counter's domain.
    pub fn domain(&self) -> &Arc<Domain> {
        self.domain.arc()
    }

    /// Reads both values.
    pub fn read(&self) -> Counts {
        *self.counts.lock()
    }

    /// Changes the values and wakes all waiters. Context: any.
    pub fn update(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock());
        self.wait.notify_all();
    }

    /// Waits until the value is at least `threshold`, or until `deadline` (nanoseconds of
    /// `CLOCK_MONOTONIC`; `u64::MAX`: none).
    ///
    /// # Errors
    ///
    /// - `EIO` if an operation failed meanwhile.
    /// - `ETIMEDOUT` if the deadline has passed.
    /// - `ERESTARTSYS` if a signal arrives.
    /// - `ENOENT` if the counter was closed meanwhile.
    pub fn wait(&self, threshold: u64, deadline: u64) -> Result {
        let mut first = None;
        self.wait_until(deadline, |counts| {
            let errors = *first.get_or_insert(counts.errors);
            match counts.value >= threshold {
                true => Ok(true),
                false if counts.errors != errors => Err(EIO),
                false => Ok(false),
            }
        })
    }

    /// Waits until a value differs from `seen`, or until `deadline` as for [`Cntr::wait`].
    ///
    /// # Errors
    ///
    /// Those of [`Cntr::wait`], except `EIO`.
    pub fn wait_change(&self, seen: Counts, deadline: u64) -> Result {
        self.wait_until(deadline, |counts| Ok(*counts != seen))
    }

    /// Waits until `over` returns true, or an error. `over` is called under the lock.
    fn wait_until(&self, deadline: u64, mut over: impl FnMut(&Counts) -> Result<bool>) -> Result {
        let mut counts = self.counts.lock();
        loop {
            if over(&counts)? {
                return Ok(());
            }
            if self.children.is_closed() {
                return Err(ENOENT);
            }
            let jiffies = match jiffies_until(deadline) {
                0 => return Err(ETIMEDOUT),
                jiffies => jiffies,
            };
            if let CondVarTimeoutResult::Signal { .. } =
                self.wait.wait_interruptible_timeout(&mut counts, jiffies)
            {
                return Err(ERESTARTSYS);
            }
        }
    }

    /// Closes the counter; `EBUSY` if an endpoint uses it.
    pub fn close(&self) -> Result {
        self.children.close()?;
        self.domain.release();
        // Under the lock: a waiter that found the counter open sleeps by now, or checks again.
        self.update(|_| ());
        Ok(())
    }
}

/// Jiffies until `deadline`, rounded up; 0 if it has passed.
fn jiffies_until(deadline: u64) -> usize {
    if deadline == u64::MAX {
        return isize::MAX as usize;
    }
    // CAST: The monotonic clock is positive.
    // SAFETY: The function has no preconditions.
    let now = unsafe { bindings::ktime_get() } as u64;
    let Some(left) = deadline.checked_sub(now).filter(|left| *left != 0) else {
        return 0;
    };
    let tick = 1_000_000_000 / u64::from(bindings::HZ);
    // CAST: The platform is 64-bit.
    (left / tick + 1) as usize
}
