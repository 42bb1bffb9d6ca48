// SPDX-License-Identifier: MIT OR Apache-2.0

//! Scenes: first calls of a program, which bring objects into an interesting state.

use super::program::{Op, Program, Val};
use super::rng::Rng;
use super::shape::{named, Area, Part};
use kfabric_uapi::*;

/// Adds a call by name; `$0`, `$1`, … are the numbers of the calls named in `uses`.
fn put(program: &mut Program, name: &str, sets: &[(&str, Val)]) -> usize {
    let Some(shape) = named(name) else { return 0 };
    let mut op = Op::new(shape);
    for (field, value) in sets {
        op.set(field, *value);
    }
    program.ops.push(op);
    program.ops.len() - 1
}

fn res(op: usize) -> Val {
    Val::Res(op, Part::Handle)
}

fn fd(op: usize) -> Val {
    Val::Res(op, Part::Fd)
}

const EVERY_ACCESS: u64 =
    KFI_SEND | KFI_RECV | KFI_READ | KFI_WRITE | KFI_REMOTE_READ | KFI_REMOTE_WRITE;

/// Numbers of the socket addresses, as the executor has them: the node's own, with a port.
const LISTENER: u64 = 1;
/// Time within which a connection must be reported, in milliseconds.
const PATIENCE: u64 = 300;

/// Adds one of the scenes.
pub fn any(program: &mut Program, rng: &mut Rng) {
    match rng.below(10) {
        0..=2 => {
            pair(program, rng);
        }
        3..=5 => keys(program, rng),
        6 | 7 => {
            endpoint(program, rng, None);
        }
        8 => listener(program),
        _ => {
            let domain = domain(program);
            put(program, "cq_open", &[("domain", res(domain))]);
            region(program, domain, 0);
        }
    }
}

fn domain(program: &mut Program) -> usize {
    let fabric = put(program, "fabric_open", &[]);
    put(program, "domain_open", &[("fabric", res(fabric))])
}

fn region(program: &mut Program, domain: usize, flags: u64) -> usize {
    put(
        program,
        "region_reg",
        &[
            ("domain", res(domain)),
            ("len", Val::Num(65536)),
            ("access", Val::Num(EVERY_ACCESS)),
            ("flags", Val::Num(flags)),
        ],
    )
}

fn keys(program: &mut Program, rng: &mut Rng) {
    let domain = domain(program);
    let region = region(program, domain, 1);
    let count = if rng.chance(20) { 70 } else { 1 };
    let slot = put(
        program,
        "key_alloc",
        &[("region", res(region)), ("count", Val::Num(count))],
    );
    let access = Val::Num(KFI_REMOTE_READ | KFI_REMOTE_WRITE);
    put(
        program,
        "key_assign",
        &[("slot", res(slot)), ("access", access)],
    );
    if rng.chance(50) {
        put(program, "key_revoke", &[("handle", res(slot))]);
    }
    if rng.chance(50) {
        batch(program, rng, region);
    }
}

/// Assigns two slots at once, and perhaps revokes them.
fn batch(program: &mut Program, rng: &mut Rng, region: usize) {
    for place in 0..2 {
        let slot = put(program, "key_alloc", &[("region", res(region))]);
        let entry = [
            ("slot", Val::Num(place)),
            ("of", res(slot)),
            ("length", Val::Num(4096)),
            ("access", Val::Num(KFI_REMOTE_READ)),
        ];
        put(program, "key_entry", &entry);
    }
    put(program, "key_assign_many", &[("count", Val::Num(2))]);
    if rng.chance(50) {
        let all = [("scope", Val::Num(1)), ("object", res(region))];
        put(program, "key_revoke_many", &all);
    }
}

/// Objects of an endpoint.
struct Made {
    fabric: usize,
    domain: usize,
    eq: usize,
    cq: usize,
    map: usize,
    ep: usize,
}

/// Adds an enabled endpoint with queues; with `with`, on the same domain and queues as another.
fn endpoint(program: &mut Program, rng: &mut Rng, with: Option<(&Made, usize)>) -> Made {
    let (fabric, domain, eq, request) = match with {
        Some((made, request)) => (made.fabric, made.domain, made.eq, res(request)),
        None => {
            let domain = domain(program);
            let fabric = domain - 1;
            let eq = put(program, "eq_open", &[("fabric", res(fabric))]);
            (fabric, domain, eq, Val::Num(0))
        }
    };
    let depth = *rng.pick(&[0, 0, 1, 2, 4]);
    let format = rng.below(4) as u64;
    let cq = put(
        program,
        "cq_open",
        &[
            ("domain", res(domain)),
            ("depth", Val::Num(depth)),
            ("format", Val::Num(format)),
        ],
    );
    let map = put(program, "mmap", &[("fd", fd(cq)), ("len", Val::Num(8192))]);
    let ep = put(
        program,
        "ep_open",
        &[
            ("domain", res(domain)),
            ("connreq", request),
            ("iov_limit", Val::Num(4)),
        ],
    );
    put(program, "bind", &[("ep", res(ep)), ("object", res(eq))]);
    let selective = if rng.chance(25) {
        KFI_SELECTIVE_COMPLETION
    } else {
        0
    };
    let sides = Val::Num(KFI_SEND | KFI_RECV | selective);
    put(
        program,
        "bind",
        &[("ep", res(ep)), ("object", res(cq)), ("bind_flags", sides)],
    );
    if rng.chance(30) {
        let cntr = put(program, "cntr_open", &[("domain", res(domain))]);
        let kinds = Val::Num(KFI_SEND | KFI_RECV | KFI_READ | KFI_WRITE);
        put(
            program,
            "bind",
            &[
                ("ep", res(ep)),
                ("object", res(cntr)),
                ("bind_flags", kinds),
            ],
        );
    }
    put(program, "enable", &[("handle", res(ep))]);
    Made {
        fabric,
        domain,
        eq,
        cq,
        map,
        ep,
    }
}

fn listener(program: &mut Program) {
    let fabric = put(program, "fabric_open", &[]);
    let eq = put(program, "eq_open", &[("fabric", res(fabric))]);
    let pep = put(
        program,
        "pep_open",
        &[
            ("fabric", res(fabric)),
            ("eq", res(eq)),
            ("addr", Val::Num(LISTENER)),
        ],
    );
    put(program, "listen", &[("pep", res(pep))]);
    put(program, "getname", &[("handle", res(pep))]);
}

fn event(program: &mut Program, eq: usize, sets: &[(&str, Val)]) -> usize {
    let ms = Val::Num(PATIENCE);
    put(program, "poll", &[("fd", fd(eq)), ("ms", ms)]);
    let mut all = vec![("eq", res(eq))];
    all.extend_from_slice(sets);
    put(program, "eq_read", &all)
}

/// Adds two connected endpoints of this process, and usually messages between them.
pub fn pair(program: &mut Program, rng: &mut Rng) {
    let client = endpoint(program, rng, None);
    let eq = put(program, "eq_open", &[("fabric", res(client.fabric))]);
    let pep = put(
        program,
        "pep_open",
        &[
            ("fabric", res(client.fabric)),
            ("eq", res(eq)),
            ("addr", Val::Num(LISTENER)),
        ],
    );
    put(program, "listen", &[("pep", res(pep))]);
    let len = Val::Num(*rng.pick(&[0, 8, 56]));
    put(
        program,
        "connect",
        &[
            ("ep", res(client.ep)),
            ("addr", Val::Num(LISTENER)),
            ("param_len", len),
        ],
    );
    let request = event(program, eq, &[]);
    if rng.chance(10) {
        put(
            program,
            "reject",
            &[("connreq", res(request)), ("param_len", len)],
        );
        event(program, client.eq, &[]);
        return;
    }
    let server = endpoint(program, rng, Some((&client, request)));
    put(
        program,
        "accept",
        &[("ep", res(server.ep)), ("param_len", len)],
    );
    event(program, client.eq, &[]);
    event(program, server.eq, &[]);
    if rng.chance(80) {
        transfer(program, rng, &client, &server);
    }
    if rng.chance(30) {
        put(program, "shutdown", &[("ep", res(client.ep))]);
        event(program, server.eq, &[]);
    }
}

/// Posts on both sides, waits, reads completions.
fn transfer(program: &mut Program, rng: &mut Rng, client: &Made, server: &Made) {
    let region = region(program, client.domain, 0);
    let flags = *rng.pick(&[
        0,
        0,
        KFI_COMPLETION,
        KFI_REMOTE_CQ_DATA,
        KFI_FENCE,
        KFI_INJECT,
    ]);
    let ops = [
        KFI_OP_SEND,
        KFI_OP_SEND,
        KFI_OP_READ,
        KFI_OP_WRITE,
        KFI_OP_COMMIT,
    ];
    let op = *rng.pick(&ops);
    let inject = flags == KFI_INJECT && matches!(op, KFI_OP_SEND | KFI_OP_WRITE);
    let piece = [("region0", res(region)), ("len0", Val::Num(64))];
    let mut recv = vec![
        ("slot", Val::Num(0)),
        ("op", Val::Num(u64::from(KFI_OP_RECV))),
    ];
    recv.extend(piece);
    put(program, "entry", &recv);
    let mut send = vec![
        ("slot", Val::Num(1)),
        ("op", Val::Num(u64::from(op))),
        ("flags", Val::Num(flags)),
        ("key", Val::Res(region, Part::Key)),
        ("remote_addr", Val::Res(region, Part::At)),
    ];
    if inject {
        send.extend([
            ("iov_count", Val::Num(0)),
            ("inject_len", Val::Num(8)),
            ("inject", Val::Mem(Area::Data, 1024)),
        ]);
    } else if op == KFI_OP_COMMIT {
        send.extend([("iov_count", Val::Num(0)), ("inject_len", Val::Num(64))]);
    } else {
        send.extend(piece);
    }
    put(program, "entry", &send);
    put(program, "submit", &[("ep", res(server.ep))]);
    let at = Val::Mem(Area::Ops, size_of::<OpEntry>() as u32);
    put(program, "submit", &[("ep", res(client.ep)), ("ops", at)]);
    put(
        program,
        "poll",
        &[("fd", fd(client.cq)), ("ms", Val::Num(PATIENCE))],
    );
    put(
        program,
        "consume",
        &[("map", res(client.map)), ("count", Val::Num(64))],
    );
    put(
        program,
        "consume",
        &[("map", res(server.map)), ("count", Val::Num(64))],
    );
}
