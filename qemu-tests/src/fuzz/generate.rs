// SPDX-License-Identifier: MIT OR Apache-2.0

//! Random programs, and random changes to programs.
//!
//! A new program begins with a scene that brings objects into an interesting state (a connected
//! pair, a region with keys), so that the random calls behind it have something to break.

use super::program::{usual, Op, Program, Val, ALL, MAX_OPS, THREADS};
use super::rng::Rng;
use super::scene;
use super::shape::{book, Area, Class, Kind, Part, Shape, What};
use super::world::NAMES;

/// Percentage of values that do not match their field.
const WRONG: u64 = 5;
/// Maximum depth of objects created for objects.
const DEPTH: usize = 6;

/// Returns a new program.
pub fn program(rng: &mut Rng) -> Program {
    let mut program = Program::default();
    if rng.chance(70) {
        scene::any(&mut program, rng);
    }
    for _ in 0..1 + rng.below(12) {
        let shape = choose(rng);
        add(&mut program, rng, shape, DEPTH);
    }
    spice(&mut program, rng);
    program.ops.truncate(MAX_OPS);
    program
}

/// Returns a change of a kept program, sometimes combined with a second one.
pub fn mutate(rng: &mut Rng, base: &Program, other: &Program) -> Program {
    let mut program = base.clone();
    for _ in 0..1 + rng.below(4) {
        match rng.below(10) {
            0..=2 => {
                let shape = choose(rng);
                let at = rng.below(program.ops.len() + 1);
                insert(&mut program, rng, at, shape);
            }
            3..=6 => change(&mut program, rng),
            7 if program.ops.len() > 1 => {
                let at = rng.below(program.ops.len());
                program.remove(at);
            }
            8 => repeat(&mut program, rng),
            _ => append(&mut program, other),
        }
    }
    spice(&mut program, rng);
    program.ops.truncate(MAX_OPS);
    program
}

fn choose(rng: &mut Rng) -> usize {
    let all: usize = book().iter().map(|shape| shape.weight).sum();
    let mut left = rng.below(all);
    for (i, shape) in book().iter().enumerate() {
        if left < shape.weight {
            return i;
        }
        left -= shape.weight;
    }
    0
}

/// Adds a call, and before it the calls that create its arguments.
fn add(program: &mut Program, rng: &mut Rng, shape: usize, depth: usize) -> usize {
    let mut op = Op::new(shape);
    for (i, field) in book()[shape].fields.iter().enumerate() {
        op.vals[i] = value(program, rng, &book()[shape], i, depth);
        // Most calls are valid except for one field.
        if matches!(
            field.class,
            Class::File | Class::Place(_) | Class::Tail | Class::Size(_) | Class::Zero
        ) && !rng.chance(WRONG)
        {
            op.vals[i] = usual(field);
        }
    }
    program.ops.push(op);
    program.ops.len() - 1
}

fn insert(program: &mut Program, rng: &mut Rng, at: usize, shape: usize) {
    let mut before = Program {
        ops: program.ops[..at].to_vec(),
    };
    add(&mut before, rng, shape, 1);
    let new = before.ops.split_off(at);
    program.insert(at, new);
}

/// Changes one field of one call.
fn change(program: &mut Program, rng: &mut Rng) {
    if program.ops.is_empty() {
        return;
    }
    let at = rng.below(program.ops.len());
    let shape = program.ops[at].shape();
    if shape.fields.is_empty() {
        return;
    }
    let field = rng.below(shape.fields.len());
    let mut before = Program {
        ops: program.ops[..at].to_vec(),
    };
    let value = if rng.chance(20) {
        wild(&before, rng)
    } else {
        value(&mut before, rng, shape, field, 0)
    };
    program.ops[at].vals[field] = value;
}

/// Repeats a call, in another thread at the same time, or later.
fn repeat(program: &mut Program, rng: &mut Rng) {
    if program.ops.is_empty() {
        return;
    }
    let at = rng.below(program.ops.len());
    let mut again = program.ops[at].clone();
    if rng.chance(60) {
        again.thread = 1 + rng.below(THREADS - 1) as u8;
        program.insert(at, vec![again]);
    } else {
        let to = at + rng.below(program.ops.len() + 1 - at);
        program.insert(to, vec![again]);
    }
}

fn append(program: &mut Program, other: &Program) {
    let base = program.ops.len();
    let mut other = other.clone();
    other.renumber(|op| Some(op + base));
    program.ops.extend(other.ops);
}

/// Makes some calls fail inside, and some run beside others.
fn spice(program: &mut Program, rng: &mut Rng) {
    if rng.chance(30) && !program.ops.is_empty() {
        let at = rng.below(program.ops.len());
        program.ops[at].fail = match rng.below(10) {
            0 => ALL,
            1 | 2 => 1 + rng.below(60) as u16,
            _ => 1 + rng.below(20) as u16,
        };
    }
    if rng.chance(5) && !program.ops.is_empty() {
        let at = rng.below(program.ops.len());
        program.ops[at].nobody = true;
    }
    if rng.chance(25) && !program.ops.is_empty() {
        let from = rng.below(program.ops.len());
        for op in program.ops.iter_mut().skip(from).take(4) {
            op.thread = rng.below(THREADS) as u8;
            if rng.chance(20) {
                op.times = 2 + rng.below(300) as u16;
            }
        }
    }
}

/// Returns a value for field `index` of a call of `shape` after `program`.
fn value(program: &mut Program, rng: &mut Rng, shape: &Shape, index: usize, depth: usize) -> Val {
    let field = &shape.fields[index];
    if rng.chance(WRONG) {
        return wild(program, rng);
    }
    match field.class {
        Class::File => Val::Num(rng.below(4) as u64),
        Class::Place(_) => place(rng),
        Class::Size(size) => {
            let size = u64::from(size);
            Val::Num(*rng.pick(&[
                size,
                size - 8,
                size - 1,
                size + 1,
                size + 8,
                size + 64,
                200,
                4096,
                4097,
                0,
                4,
                u64::MAX,
            ]))
        }
        Class::Tail => Val::Num(rng.below(3) as u64),
        Class::Handle(kinds) => handle(program, rng, shape, kinds, depth),
        Class::Fd(kinds) => handle(program, rng, shape, kinds, depth),
        Class::Key => result(program, rng, Part::Key),
        Class::At => {
            if rng.chance(80) {
                result(program, rng, Part::At)
            } else {
                pointer(rng, Area::Play)
            }
        }
        Class::Bits(bits) => {
            let all: u64 = bits.iter().fold(0, |all, bit| all | bit);
            Val::Num(match rng.below(10) {
                0..=2 => 0,
                3 => all,
                _ if bits.is_empty() => 0,
                _ => rng.any() & rng.pick(bits) | rng.pick(bits),
            })
        }
        Class::Num(values) => match rng.below(4) {
            0 | 1 => Val::Num(values[0]),
            _ => Val::Num(*rng.pick(values)),
        },
        Class::Maybe(..) if rng.chance(70) => Val::Num(0),
        Class::Ptr(area, off) | Class::Maybe(area, off) => match rng.below(8) {
            0..=4 => Val::Mem(area, off),
            5 => pointer(rng, area),
            6 => place(rng),
            _ => Val::Num(*rng.pick(&[
                0,
                1,
                0xffff_8880_0000_0000,
                u64::MAX,
                u64::MAX - 7,
                0x7fff_ffff_f000,
            ])),
        },
        Class::Addr => Val::Num(match rng.below(3) {
            0 => rng.below(16) as u64,
            _ => 1 + rng.below(2) as u64,
        }),
        Class::Name(_) => Val::Num(if rng.chance(60) {
            0
        } else {
            rng.below(NAMES as usize) as u64
        }),
        Class::Deadline => Val::Num(*rng.pick(&[0, 1, 10, 50, u64::MAX])),
        Class::Zero => Val::Num(*rng.pick(&[1, u64::MAX, 1 << 32])),
    }
}

/// Returns a valid or invalid place for a structure.
fn place(rng: &mut Rng) -> Val {
    match rng.below(8) {
        0 | 1 => Val::Mem(Area::Edge, 4096 - 4 * rng.below(64) as u32),
        2 | 3 => Val::Mem(Area::Ro, 8 * rng.below(16) as u32),
        4 => Val::Mem(Area::Hole, 0),
        5 => Val::Mem(Area::Data, 1 + rng.below(100) as u32),
        6 => Val::Num(0),
        _ => Val::Mem(Area::Call, u32::MAX),
    }
}

fn pointer(rng: &mut Rng, area: Area) -> Val {
    let off = *rng.pick(&[0, 1, 64, 4095, 4096, 8190, 12288]);
    let area = if rng.chance(30) {
        *rng.pick(&[Area::Shm, Area::Play, Area::Ro, Area::Data])
    } else {
        area
    };
    Val::Mem(area, off)
}

/// Returns any value.
fn wild(program: &Program, rng: &mut Rng) -> Val {
    match rng.below(6) {
        0 => Val::Num(rng.any()),
        1 => Val::Num(rng.any() >> rng.below(64)),
        2 => Val::Num(*rng.pick(&[0, 1, u64::MAX, 1 << 32, 1 << 63, u64::from(u32::MAX)])),
        3 => place(rng),
        _ if program.ops.is_empty() => Val::Num(0),
        _ => {
            let part = *rng.pick(&[
                Part::Handle,
                Part::Handle,
                Part::Later,
                Part::Next,
                Part::Key,
                Part::Fd,
            ]);
            Val::Res(rng.below(program.ops.len()), part)
        }
    }
}

/// Returns the result of an earlier call, or of a new one.
fn handle(program: &mut Program, rng: &mut Rng, user: &Shape, kinds: &[Kind], depth: usize) -> Val {
    let part = |kind: Kind| match (kind, user.what) {
        (Kind::Cq | Kind::Eq | Kind::Epoll | Kind::Rings, What::Sys(_)) => Part::Fd,
        _ => Part::Handle,
    };
    // Most endpoints and events have no request, and most regions and keys no endpoint.
    let bound = matches!(user.makes, Some(Kind::Region | Kind::Key)) && kinds == [Kind::Ep];
    let optional = bound || kinds == [Kind::Request];
    let there: Vec<(usize, Kind)> = program
        .ops
        .iter()
        .enumerate()
        .filter_map(|(i, op)| Some((i, op.shape().makes.filter(|kind| kinds.contains(kind))?)))
        .collect();
    if optional && !rng.chance(40) {
        return Val::Num(0);
    }
    if !there.is_empty() && !rng.chance(10) {
        // The latest object is most often in the wanted state.
        let (op, kind) = if rng.chance(50) {
            there[there.len() - 1]
        } else {
            *rng.pick(&there)
        };
        return Val::Res(op, part(kind));
    }
    if depth == 0 || optional || program.ops.len() + DEPTH > MAX_OPS {
        return Val::Num(0);
    }
    let kind = *rng.pick(kinds);
    let Some(maker) = book().iter().position(|shape| shape.makes == Some(kind)) else {
        return Val::Num(0);
    };
    let op = add(program, rng, maker, depth - 1);
    Val::Res(op, part(kind))
}

/// Returns a key or an address that an earlier call returned.
fn result(program: &Program, rng: &mut Rng, part: Part) -> Val {
    let there: Vec<usize> = (0..program.ops.len())
        .filter(|i| {
            program.ops[*i]
                .shape()
                .outs
                .iter()
                .any(|out| out.part == part)
        })
        .collect();
    if there.is_empty() {
        return Val::Num(rng.any());
    }
    Val::Res(*rng.pick(&there), part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_uses_comes_before() {
        let mut rng = Rng::new(3);
        let mut base = program(&mut rng);
        for _ in 0..2000 {
            let other = program(&mut rng);
            base = mutate(&mut rng, &base, &other);
            assert!(base.ops.len() <= MAX_OPS);
            for op in &base.ops {
                assert_eq!(op.vals.len(), op.shape().fields.len());
                for value in &op.vals {
                    assert!(!matches!(value, Val::Res(used, _) if *used >= MAX_OPS * 4));
                }
            }
        }
    }

    #[test]
    fn every_call_is_made_in_the_end() {
        let mut rng = Rng::new(4);
        let mut seen = vec![false; book().len()];
        for _ in 0..2000 {
            for op in program(&mut rng).ops {
                seen[op.shape] = true;
            }
        }
        assert!(seen.iter().all(|seen| *seen), "{seen:?}");
    }
}
