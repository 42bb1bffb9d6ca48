// SPDX-License-Identifier: GPL-2.0
//! Makes a call with its 1st, 2nd, … nth failure, until the call has run without one.
//!
//! The program that loads the module selects the failures in debugfs.

use kernel::{
    bindings,
    ffi::c_int,
    fmt,
    prelude::*, //
};

use crate::{
    check,
    ktap::{
        Failure,
        Ktap,
        Outcome, //
    },
    raw::{
        kfi_test_fault_arm,
        kfi_test_fault_disarm,
        kfi_test_fault_possible, //
    },
    station::Station,
};

/// Returns whether this kernel can inject failures.
pub(crate) fn possible() -> bool {
    // SAFETY: No preconditions.
    unsafe { kfi_test_fault_possible() }
}

/// Errnos that an injected failure explains: lack of memory, also for rxe's sockets and for a
/// route; errors of a device. A device that does not answer is not offered, and a device that
/// accepts nothing does not connect. A request may no longer be acceptable.
const EXPLAINED: [u32; 7] = [
    bindings::ENOMEM,
    bindings::ENFILE,
    bindings::ENOBUFS,
    bindings::EIO,
    bindings::ENODATA,
    bindings::ENOTCONN,
    bindings::ECONNABORTED,
];
/// Maximum number of places, more than any call has.
const MOST: u32 = 3000;
/// Maximum number of different errnos of one call.
const ERRNOS: usize = 4;

/// Results of a sweep.
#[derive(Default)]
pub(crate) struct Tally {
    injected: u32,
    failed: u32,
    errnos: [(i32, u32); ERRNOS],
}

impl Tally {
    fn count(&mut self, answer: Option<Error>) {
        self.injected += 1;
        let Some(error) = answer else { return };
        self.failed += 1;
        let number = -error.to_errno();
        let place = self
            .errnos
            .iter_mut()
            .find(|(errno, times)| *errno == number || *times == 0);
        if let Some((errno, times)) = place {
            *errno = number;
            *times += 1;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "swept {} {}", self.injected, self.failed)?;
        for (errno, times) in self.errnos.iter().filter(|(_, times)| *times != 0) {
            write!(f, " {errno}={times}")?;
        }
        Ok(())
    }
}

/// The call of a case that is made with a failure.
pub(crate) struct Shot {
    nth: u32,
    hit: bool,
    answer: Option<Error>,
}

impl Shot {
    /// Returns whether the failure has happened.
    pub(crate) fn hit(&self) -> bool {
        self.hit
    }

    /// Makes the call once and returns its result. An error must be one that the failure explains.
    pub(crate) fn once<T>(
        &mut self,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<Result<T>, Failure> {
        // SAFETY: No preconditions.
        unsafe { kfi_test_fault_arm(self.nth) };
        let answer = call();
        // SAFETY: No preconditions.
        self.hit = unsafe { kfi_test_fault_disarm() } == 0;
        if let Err(e) = &answer {
            self.answer = Some(*e);
            check!(self.hit);
            check!(EXPLAINED
                .iter()
                .any(|errno| e.to_errno() == -(*errno as c_int)));
        }
        Ok(answer)
    }

    /// Makes the call. If the call fails, it is repeated, and must then succeed.
    pub(crate) fn call<T>(&mut self, mut call: impl FnMut() -> Result<T>) -> Result<T, Failure> {
        match self.once(&mut call)? {
            Ok(value) => Ok(value),
            Err(_) => Ok(call()?),
        }
    }
}

/// Returns `ECONNABORTED`.
pub(crate) fn econnaborted() -> Error {
    // CAST: An errno is a small number.
    Error::from_errno(-(kernel::bindings::ECONNABORTED as i32))
}

/// A case: prepares a call, makes the call once through the shot, and undoes it.
pub(crate) type Case = fn(&Station, &mut Shot) -> Outcome;

/// Runs the sweep of one call.
pub(crate) fn sweep(ktap: &mut Ktap, name: &str, station: &Station, case: Case) {
    let mut tally = Tally::default();
    let mut at = 0;
    let mut went = Ok(());
    for nth in 1..MOST {
        at = nth;
        let mut shot = Shot {
            nth,
            hit: false,
            answer: None,
        };
        went = case(station, &mut shot);
        if shot.hit {
            tally.count(shot.answer);
        }
        if went.is_err() || !shot.hit {
            break;
        }
    }
    ktap.note(fmt!("{tally}"));
    if went.is_err() {
        ktap.note(fmt!("at {at}"));
    }
    ktap.test(name, || {
        went?;
        check!(at + 1 < MOST);
        Ok(())
    });
}
