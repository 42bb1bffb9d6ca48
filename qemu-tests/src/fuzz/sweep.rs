// SPDX-License-Identifier: MIT OR Apache-2.0

//! Systematic programs: each call of some working programs, with each of its fields invalid by
//! itself, and with each allocation and copy in it failing.
//!
//! Random generation needs thousands of programs to reach the same cases; here some dozens suffice,
//! which run before all others.

use super::program::{split, usual, Op, Program, Val, ALL, MAX_OPS};
use super::shape::{Area, Class, Field, Part, Sys, What};
use super::world::NAMES;
use anyhow::{Context, Result};
use std::collections::HashSet;

/// The working programs.
const WORKING: &str = include_str!("../../fuzz-corpus/sweep.txt");

/// Returns all systematic programs.
///
/// # Errors
///
/// If the working programs cannot be read.
pub fn programs() -> Result<Vec<Program>> {
    let mut out = Vec::new();
    // A call that sets other fields is another call.
    let mut seen = HashSet::new();
    for working in split(WORKING).context("the programs to sweep")? {
        for at in 0..working.ops.len() {
            let op = &working.ops[at];
            let wanted = match op.shape().what {
                What::Ioctl(_) | What::Sys(Sys::Mmap | Sys::Open | Sys::Fdinfo) => true,
                What::Write(_) => true,
                What::Sys(_) => false,
            };
            let fields = op.shape().fields.iter().map(usual);
            let set: Vec<bool> = op.vals.iter().zip(fields).map(|(a, b)| *a != b).collect();
            if wanted && seen.insert((op.shape, set)) {
                sweep(&working, at, &mut out);
            }
        }
        out.push(working);
    }
    Ok(out)
}

/// Adds the programs for call `at` of a working program.
fn sweep(working: &Program, at: usize, out: &mut Vec<Program>) {
    let before = &working.ops[..at];
    let op = &working.ops[at];
    let mut each: Vec<Vec<Op>> = Vec::new();
    // A later call reads the written structure.
    let mut follows = Vec::new();
    if matches!(op.shape().what, What::Write(_)) {
        let next = |op: &&Op| matches!(op.shape().what, What::Ioctl(_));
        follows.extend(working.ops[at..].iter().find(next).cloned());
    } else {
        let mut failing = op.clone();
        failing.fail = ALL;
        out.push(with(before, &[failing]));
    }
    for (i, field) in op.shape().fields.iter().enumerate() {
        for value in wrong(before, field) {
            if value != op.vals[i] {
                let mut other = op.clone();
                other.vals[i] = value;
                let mut ops = Vec::new();
                if matches!(field.class, Class::Tail) {
                    // Such a value exists only behind the fields that the kernel knows.
                    other.set("size", Val::Num(op.shape().size as u64 + 16));
                }
                ops.push(other);
                ops.extend(follows.clone());
                each.push(ops);
            }
        }
    }
    let room = MAX_OPS.saturating_sub(before.len()).max(1);
    for some in each.chunks((room / (1 + follows.len())).max(1)) {
        out.push(with(before, &some.concat()));
    }
}

fn with(before: &[Op], ops: &[Op]) -> Program {
    let mut all = before.to_vec();
    all.extend_from_slice(ops);
    Program { ops: all }
}

/// Returns values that test a field's limits. Values that some call may accept come last, because
/// they change the state.
fn wrong(before: &[Op], field: &Field) -> Vec<Val> {
    let numbers = |values: &[u64]| values.iter().copied().map(Val::Num).collect::<Vec<_>>();
    let places = |area: Area, off: u32| {
        vec![
            Val::Num(0),
            Val::Mem(Area::Hole, 0),
            Val::Mem(Area::Ro, 0),
            Val::Mem(Area::Edge, 4092),
            Val::Mem(Area::Edge, 4096 - 160),
            Val::Num(u64::MAX),
            Val::Num(u64::MAX - 7),
            Val::Num(0xffff_8880_0000_0000),
            Val::Mem(area, off),
        ]
    };
    match field.class {
        Class::File => numbers(&[1]),
        Class::Place(_) => {
            let mut all = places(Area::Call, u32::MAX);
            all.push(Val::Mem(Area::Data, 1));
            all
        }
        Class::Size(size) => {
            let size = u64::from(size);
            numbers(&[0, 4, size - 8, size - 1, 4097, 4096, size + 8])
        }
        Class::Tail => numbers(&[1, 2]),
        Class::Zero => numbers(&[1]),
        Class::Handle(_) | Class::Fd(_) => {
            let mut all = numbers(&[0, u64::MAX, 0x7fff_ffff]);
            let made = |op: &usize| before[*op].shape().makes;
            let mut kinds = Vec::new();
            for op in (0..before.len()).rev().filter(|op| made(op).is_some()) {
                if kinds.contains(&made(&op)) {
                    continue;
                }
                kinds.push(made(&op));
                all.push(Val::Res(op, Part::Later));
                all.push(Val::Res(op, Part::Next));
                all.push(Val::Res(op, Part::Handle));
                if matches!(field.class, Class::Fd(_)) {
                    all.push(Val::Res(op, Part::Fd));
                }
            }
            all
        }
        Class::Key | Class::At => numbers(&[0, u64::MAX]),
        Class::Bits(bits) => {
            let mut all = numbers(&[1 << 31, 1 << 40, u64::MAX, 0]);
            all.extend(numbers(bits));
            all
        }
        Class::Num(values) => numbers(values),
        Class::Ptr(area, off) | Class::Maybe(area, off) => places(area, off),
        Class::Addr => numbers(&(0..16).rev().collect::<Vec<_>>()),
        Class::Name(_) => numbers(&(0..NAMES).rev().collect::<Vec<_>>()),
        Class::Deadline => numbers(&[0, 1, 10]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ioctl_is_swept() {
        let all = programs().unwrap();
        assert!(all.iter().all(|program| program.ops.len() <= MAX_OPS));
        for (i, shape) in super::super::shape::book().iter().enumerate() {
            if matches!(shape.what, What::Ioctl(_)) {
                let fails = |op: &Op| op.shape == i && op.fail == ALL;
                assert!(
                    all.iter().any(|p| p.ops.iter().any(fails)),
                    "{}",
                    shape.name
                );
            }
        }
        // They run before the remaining time goes to random programs.
        assert!(all.len() < 400, "{}", all.len());
    }
}
