// SPDX-License-Identifier: MIT OR Apache-2.0

//! A program: a list of calls, and its text.
//!
//! ```text
//! r0 = fabric_open
//! r1 = domain_open fabric=r0
//! r2 = region_reg domain=r1 access=0x3f00 addr=&play+0x10
//! ~1 r3 = close_object handle=r2
//! fail:2 r4 = cq_open domain=r1 depth=0x40
//! ```
//!
//! Fields with their usual values are left out. `r2` is the main result of the call with that
//! number, `r2.key` another result. `~1` makes another thread run the call and does not wait for
//! it. `fail:2` makes the second allocation or user copy in the call fail; `fail:all` repeats the
//! call until each has failed. `x100` repeats the call as many times. The word "nobody" runs the
//! call as an unprivileged user.

use super::shape::{book, named, Area, Class, Field, Part, Shape};
use anyhow::{bail, ensure, Context, Result};
use std::fmt::Write;

/// Maximum number of calls of a program.
pub const MAX_OPS: usize = 64;
/// Number of threads that make calls.
pub const THREADS: usize = 3;
/// [`Op::fail`]: each allocation and copy in turn.
pub const ALL: u16 = u16::MAX;

/// A field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Val {
    /// A number.
    Num(u64),
    /// The result of an earlier call.
    Res(usize, Part),
    /// An address.
    Mem(Area, u32),
}

/// A call of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Index of the call in the [`book`].
    pub shape: usize,
    /// A value for each field.
    pub vals: Vec<Val>,
    /// Thread that makes the call; 0 waits for it.
    pub thread: u8,
    /// Number of the allocation or copy that fails; 0: none, or [`ALL`].
    pub fail: u16,
    /// Number of repetitions.
    pub times: u16,
    /// Whether the call is made as an unprivileged user.
    pub nobody: bool,
}

/// A list of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Calls in order.
    pub ops: Vec<Op>,
}

/// Returns the value of a field that the text leaves out. Each call's structure has a slot of its
/// own.
pub fn usual(field: &Field) -> Val {
    match field.class {
        Class::Place(area) => Val::Mem(area, u32::MAX),
        Class::Size(size) => Val::Num(u64::from(size)),
        Class::Num(values) => Val::Num(values[0]),
        Class::Ptr(area, off) => Val::Mem(area, off),
        _ => Val::Num(0),
    }
}

impl Op {
    /// Returns a call with the usual values.
    pub fn new(shape: usize) -> Self {
        Self {
            shape,
            vals: book()[shape].fields.iter().map(usual).collect(),
            thread: 0,
            fail: 0,
            times: 1,
            nobody: false,
        }
    }

    /// Returns the call's shape.
    pub fn shape(&self) -> &'static Shape {
        &book()[self.shape]
    }

    /// Returns the value of a field.
    pub fn get(&self, name: &str) -> Val {
        self.shape()
            .field(name)
            .map_or(Val::Num(0), |i| self.vals[i])
    }

    /// Sets a field, which must exist.
    pub fn set(&mut self, name: &str, value: Val) {
        if let Some(i) = self.shape().field(name) {
            self.vals[i] = value;
        }
    }
}

fn part_name(part: Part) -> &'static str {
    match part {
        Part::Handle => "",
        Part::Fd => ".fd",
        Part::Key => ".key",
        Part::At => ".at",
        Part::Later => ".later",
        Part::Next => ".next",
    }
}

const PARTS: [Part; 6] = [
    Part::Handle,
    Part::Fd,
    Part::Key,
    Part::At,
    Part::Later,
    Part::Next,
];

impl Val {
    fn text(self) -> String {
        match self {
            Val::Num(n) if n < 10 => n.to_string(),
            Val::Num(n) => format!("{n:#x}"),
            Val::Res(op, part) => format!("r{op}{}", part_name(part)),
            Val::Mem(area, u32::MAX) => format!("&{}", area.name()),
            Val::Mem(area, off) => format!("&{}+{off:#x}", area.name()),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        if let Some(rest) = text.strip_prefix('&') {
            let (name, off) = match rest.split_once('+') {
                Some((name, off)) => (name, number(off)? as u32),
                None => (rest, u32::MAX),
            };
            let area = Area::ALL.into_iter().find(|area| area.name() == name);
            return Ok(Val::Mem(area.context("no such area")?, off));
        }
        if let Some(rest) = text.strip_prefix('r') {
            let (op, part) = match rest.split_once('.') {
                Some((op, part)) => (op, format!(".{part}")),
                None => (rest, String::new()),
            };
            let part = PARTS.into_iter().find(|p| part_name(*p) == part);
            return Ok(Val::Res(op.parse()?, part.context("no such result")?));
        }
        number(text).map(Val::Num)
    }
}

fn number(text: &str) -> Result<u64> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.with_context(|| format!("{text:?} is no number"))
}

impl Program {
    /// Returns the program's text, one line per call.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (i, op) in self.ops.iter().enumerate() {
            if op.thread != 0 {
                let _ = write!(out, "~{} ", op.thread);
            }
            match op.fail {
                0 => {}
                ALL => out += "fail:all ",
                nth => {
                    let _ = write!(out, "fail:{nth} ");
                }
            }
            if op.times != 1 {
                let _ = write!(out, "x{} ", op.times);
            }
            if op.nobody {
                out += "nobody ";
            }
            let shape = op.shape();
            let _ = write!(out, "r{i} = {}", shape.name);
            for (field, value) in shape.fields.iter().zip(&op.vals) {
                if *value != usual(field) {
                    let _ = write!(out, " {}={}", field.name, value.text());
                }
            }
            out.push('\n');
        }
        out
    }

    /// Parses a text; empty lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    ///
    /// If the text is not a program.
    pub fn parse(text: &str) -> Result<Self> {
        let mut program = Self::default();
        for line in text.lines() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                let op = parse_op(line).with_context(|| format!("in {line:?}"))?;
                program.ops.push(op);
            }
        }
        ensure!(program.ops.len() <= MAX_OPS, "more than {MAX_OPS} calls");
        Ok(program)
    }

    /// Removes call `at`; users of its result get zeroes.
    pub fn remove(&mut self, at: usize) {
        self.ops.remove(at);
        self.renumber(|op| match op {
            op if op == at => None,
            op if op > at => Some(op - 1),
            op => Some(op),
        });
    }

    /// Inserts `ops` before call `at`; the numbers that they use are those of the resulting
    /// program.
    pub fn insert(&mut self, at: usize, ops: Vec<Op>) {
        let more = ops.len();
        self.renumber(|op| Some(if op >= at { op + more } else { op }));
        self.ops.splice(at..at, ops);
    }

    /// Renumbers calls in the fields that use them; `None`: the call is removed.
    pub fn renumber(&mut self, to: impl Fn(usize) -> Option<usize>) {
        for op in &mut self.ops {
            for value in &mut op.vals {
                if let Val::Res(used, part) = *value {
                    *value = to(used).map_or(Val::Num(0), |used| Val::Res(used, part));
                }
            }
        }
    }
}

fn parse_op(line: &str) -> Result<Op> {
    let (mut thread, mut fail, mut times, mut nobody) = (0, 0, 1, false);
    let mut words = line.split_whitespace().peekable();
    while let Some(word) = words.peek() {
        if let Some(n) = word.strip_prefix('~') {
            thread = n.parse()?;
        } else if let Some(n) = word.strip_prefix("fail:") {
            fail = if n == "all" { ALL } else { n.parse()? };
        } else if let Some(n) = word.strip_prefix('x') {
            times = n.parse()?;
        } else if *word == "nobody" {
            nobody = true;
        } else {
            break;
        }
        words.next();
    }
    if words.peek().is_some_and(|word| word.starts_with('r')) {
        let mut ahead = words.clone();
        ahead.next();
        if ahead.next() == Some("=") {
            words = ahead;
        }
    }
    let name = words.next().context("no call")?;
    let mut op = Op::new(named(name).with_context(|| format!("no call is named {name}"))?);
    ensure!(usize::from(thread) < THREADS, "no thread {thread}");
    (op.thread, op.fail, op.times, op.nobody) = (thread, fail, times, nobody);
    for word in words {
        let Some((field, value)) = word.split_once('=') else {
            bail!("{word:?} sets nothing");
        };
        let at = op.shape().field(field);
        op.vals[at.with_context(|| format!("{name} has no {field}"))?] = Val::parse(value)?;
    }
    Ok(op)
}

/// Line between programs in a file.
const BETWEEN: &str = "---";

/// Returns the text of many programs.
pub fn join(programs: &[Program]) -> String {
    let mut out = String::new();
    for program in programs {
        out += &program.text();
        out += BETWEEN;
        out.push('\n');
    }
    out
}

/// Parses a text of many programs.
///
/// # Errors
///
/// The errors of [`Program::parse`].
pub fn split(text: &str) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    let mut one = String::new();
    for line in text.lines().chain([BETWEEN]) {
        if line.trim() == BETWEEN {
            let program = Program::parse(&one)?;
            if !program.ops.is_empty() {
                programs.push(program);
            }
            one.clear();
        } else {
            one += line;
            one.push('\n');
        }
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::super::{generate, rng::Rng};
    use super::*;

    #[test]
    fn a_text_reads_back_as_it_was() {
        let mut rng = Rng::new(1);
        for _ in 0..500 {
            let program = generate::program(&mut rng);
            assert_eq!(Program::parse(&program.text()).unwrap(), program);
        }
    }

    #[test]
    fn many_programs_read_back() {
        let mut rng = Rng::new(2);
        let many: Vec<_> = (0..5).map(|_| generate::program(&mut rng)).collect();
        assert_eq!(split(&join(&many)).unwrap(), many);
    }

    #[test]
    fn a_call_that_goes_takes_its_results_along() {
        let text = "fabric_open\ndomain_open fabric=r0\ncq_open domain=r1\nclose fd=r2.fd\n";
        let mut program = Program::parse(text).unwrap();
        program.remove(1);
        let want = "r0 = fabric_open\nr1 = cq_open\nr2 = close fd=r1.fd\n";
        assert_eq!(program.text(), want);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "fly",
            "close fd=rx",
            "open file",
            "open wing=1",
            "~9 open",
            "cq_open domain=&moon+0",
        ] {
            assert!(Program::parse(text).is_err(), "{text}");
        }
    }
}
