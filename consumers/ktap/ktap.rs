// SPDX-License-Identifier: GPL-2.0
//! Test results in KTAP (Documentation/dev-tools/ktap.rst), for modules that run tests when they
//! are loaded.
//!
//! Each such module compiles this source file into itself. Results are printed to the kernel log as
//! they come, one line each after the module's name, and kept for a file in debugfs.

use core::{
    borrow::Borrow,
    panic::Location, //
};
use kernel::{
    debugfs,
    fmt::{
        self,
        Write, //
    },
    prelude::*, //
};

/// The reason why a test did not pass.
pub(crate) struct Failure {
    at: &'static Location<'static>,
    what: What,
}

enum What {
    /// A call failed unexpectedly.
    Call(Error),
    /// A condition does not hold.
    Condition(&'static str),
    /// Two values differ: the expression, the actual value, the expected value.
    Differs(&'static str, i64, i64),
    /// The test cannot run here.
    #[allow(dead_code, reason = "not every module that compiles this skips tests")]
    Skip(&'static str),
}

/// Result of a test.
pub(crate) type Outcome = Result<(), Failure>;

impl Failure {
    /// Returns the failure of a test that cannot run here.
    #[allow(dead_code, reason = "not every module that compiles this skips tests")]
    #[track_caller]
    pub(crate) fn skip(why: &'static str) -> Self {
        Self {
            at: Location::caller(),
            what: What::Skip(why),
        }
    }

    /// Returns the failure of a condition that does not hold.
    #[track_caller]
    pub(crate) fn condition(condition: &'static str) -> Self {
        Self {
            at: Location::caller(),
            what: What::Condition(condition),
        }
    }

    /// Returns the failure of a comparison: the expression, the actual value, the expected value.
    #[track_caller]
    pub(crate) fn differs(what: &'static str, got: i64, wanted: i64) -> Self {
        Self {
            at: Location::caller(),
            what: What::Differs(what, got, wanted),
        }
    }
}

impl From<Error> for Failure {
    #[track_caller]
    fn from(error: Error) -> Self {
        Self {
            at: Location::caller(),
            what: What::Call(error),
        }
    }
}

impl From<kernel::alloc::AllocError> for Failure {
    #[track_caller]
    fn from(_: kernel::alloc::AllocError) -> Self {
        ENOMEM.into()
    }
}

/// Writes source text of several lines as one line.
fn one_line(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    text.lines()
        .try_for_each(|line| f.write_str(line.trim_start()))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.at.file(), self.at.line())?;
        match &self.what {
            What::Call(error) => write!(f, "failed: {error:?}"),
            What::Condition(condition) => {
                write!(f, "does not hold: ")?;
                one_line(f, condition)
            }
            What::Differs(what, got, wanted) => {
                one_line(f, what)?;
                write!(f, " is {got}, not {wanted}")
            }
            What::Skip(why) => write!(f, "{why}"),
        }
    }
}

/// A number that tests compare.
pub(crate) trait Number {
    /// Returns the number for comparison and output.
    fn number(self) -> i64;
}

impl Number for i32 {
    fn number(self) -> i64 {
        self.into()
    }
}

impl Number for u32 {
    fn number(self) -> i64 {
        self.into()
    }
}

impl Number for u64 {
    fn number(self) -> i64 {
        // CAST: One to one, which suffices for a comparison.
        self as i64
    }
}

impl Number for usize {
    fn number(self) -> i64 {
        // CAST: As above.
        self as i64
    }
}

/// Returns the number for comparison and output.
pub(crate) fn number(value: impl Number) -> i64 {
    value.number()
}

/// Returns a result as a number: 0, or the negative errno.
pub(crate) fn errno<T>(result: &Result<T>) -> i64 {
    match result {
        Ok(_) => 0,
        Err(error) => i64::from(error.to_errno()),
    }
}

/// Returns from the test unless the condition holds.
#[macro_export]
macro_rules! check {
    ($condition:expr) => {
        if !$condition {
            return Err($crate::ktap::Failure::condition(stringify!($condition)));
        }
    };
}

/// Returns from the test unless both numbers are equal.
#[macro_export]
macro_rules! check_eq {
    ($got:expr, $wanted:expr) => {{
        let (got, wanted) = ($crate::ktap::number($got), $crate::ktap::number($wanted));
        if got != wanted {
            return Err($crate::ktap::Failure::differs(
                stringify!($got),
                got,
                wanted,
            ));
        }
    }};
}

/// Returns from the test unless the call fails with this error.
#[macro_export]
macro_rules! check_err {
    ($call:expr, $wanted:expr) => {{
        let got = $crate::ktap::errno(&$call);
        let wanted = i64::from($wanted.to_errno());
        if got != wanted {
            return Err($crate::ktap::Failure::differs(
                stringify!($call),
                got,
                wanted,
            ));
        }
    }};
}

/// Returns a module parameter's value, which series 7.2 returns by reference and 7.3 by value.
pub(crate) fn parameter(value: impl Borrow<i32>) -> i32 {
    *value.borrow()
}

/// The lines written so far.
pub(crate) struct Report(KVVec<u8>);

impl fmt::Write for Report {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0
            .extend_from_slice(text.as_bytes(), GFP_KERNEL)
            .map_err(|_| fmt::Error)
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(core::str::from_utf8(&self.0).unwrap_or("").trim_end())
    }
}

/// A run of a module's tests.
pub(crate) struct Ktap {
    report: Report,
    number: usize,
    failed: usize,
}

/// Writes a line to the kernel log and to the report.
macro_rules! line {
    ($ktap:expr, $($arg:tt)*) => {{
        pr_info!("{}\n", fmt!($($arg)*));
        // Without memory the file lacks this line; the kernel log has it.
        let _ = writeln!($ktap.report, "{}", fmt!($($arg)*));
    }};
}

impl Ktap {
    /// Begins a run of `plan` tests.
    pub(crate) fn begin(plan: usize) -> Self {
        let mut ktap = Self {
            report: Report(KVVec::new()),
            number: 0,
            failed: 0,
        };
        line!(ktap, "KTAP version 1");
        line!(ktap, "1..{plan}");
        ktap
    }

    /// Runs a test.
    pub(crate) fn test(&mut self, name: &str, test: impl FnOnce() -> Outcome) {
        self.number += 1;
        let number = self.number;
        match test() {
            Ok(()) => line!(self, "ok {number} {name}"),
            Err(Failure {
                what: What::Skip(why),
                ..
            }) => line!(self, "ok {number} {name} # SKIP {why}"),
            Err(failure) => {
                self.failed += 1;
                line!(self, "# {failure}");
                line!(self, "not ok {number} {name}");
            }
        }
    }

    /// Prints a note.
    #[allow(
        dead_code,
        reason = "not every module that compiles this has something to say"
    )]
    pub(crate) fn note(&mut self, text: fmt::Arguments<'_>) {
        line!(self, "# {text}");
    }

    /// Ends the run.
    ///
    /// # Errors
    ///
    /// - `EIO` if a test did not pass.
    pub(crate) fn end(mut self) -> Result<Report> {
        let (passed, failed) = (self.number - self.failed, self.failed);
        line!(self, "# {passed} passed, {failed} failed");
        if failed != 0 {
            return Err(EIO);
        }
        Ok(self.report)
    }
}

/// The file `results` in a debugfs folder. The drop removes both.
pub(crate) struct Results {
    // Dropped before its folder.
    _file: Pin<KBox<debugfs::File<Report>>>,
    _folder: debugfs::Dir,
}

impl Results {
    /// Shows `report`.
    pub(crate) fn show(folder: debugfs::Dir, report: Report) -> Result<Self> {
        let file = KBox::pin_init(folder.read_only_file(c"results", report), GFP_KERNEL)?;
        Ok(Self {
            _file: file,
            _folder: folder,
        })
    }
}
