// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi ping`: latency and bandwidth to a `kfi serve`.

pub mod plan;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kfabric::{Op, Region, RemoteMem};
use serde::Serialize;

use super::{print, print_json};
use crate::cli::{Ping as Args, Test};
use crate::error::{During, Failure, Result};
use crate::session::{Conn, Done, Node};
use crate::stats::{mib_per_s, Latency};
use crate::wire::{Kind, Msg, Service};
use plan::{Operation, Plan};

#[derive(Serialize)]
struct Report {
    provider: String,
    operation: &'static str,
    bytes: u64,
    iterations: u64,
    verified: bool,
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    latency: Option<Latency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mib_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ops_per_s: Option<f64>,
}

impl Report {
    fn heads(bandwidth: bool) -> String {
        if bandwidth {
            return format!(
                "{:>12} {:>10} {:>12} {:>12}\n",
                "#bytes", "#iterations", "BW[MiB/s]", "rate[op/s]"
            );
        }
        let names = [
            "t_min[us]",
            "t_max[us]",
            "t_typical",
            "t_avg",
            "t_stdev",
            "99%",
            "99.9%",
        ];
        let names: String = names.iter().map(|n| format!(" {n:>10}")).collect();
        format!("{:>12} {:>11}{names}\n", "#bytes", "#iterations")
    }

    fn line(&self) -> String {
        let start = format!("{:>12} {:>11}", self.bytes, self.iterations);
        if let Some(l) = &self.latency {
            let us = [
                l.min_us,
                l.max_us,
                l.typical_us,
                l.avg_us,
                l.stdev_us,
                l.p99_us,
                l.p999_us,
            ];
            let us: String = us.iter().map(|v| format!(" {v:>10.2}")).collect();
            return format!("{start}{us}\n");
        }
        let (bw, rate) = (self.mib_per_s.unwrap_or(0.0), self.ops_per_s.unwrap_or(0.0));
        format!("{start} {bw:>12.2} {rate:>12.0}\n")
    }
}

/// Runs `kfi ping`.
///
/// # Errors
///
/// - [`Failure::Corrupt`] with `--verify`, if data differs.
///
/// Also those of connecting.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let sizes = args.sizes().map_err(Failure::Usage)?;
    let peer = args.peer.address()?;
    let node = Node::to(&args.peer.common.select(), peer)?;
    for (i, size) in sizes.iter().enumerate() {
        let report = measure(&node, peer, args, *size, i + 1 == sizes.len())?;
        if json {
            print_json(&report)?;
        } else {
            if i == 0 {
                print(&format!("{peer} by {}\n", report.provider))?;
                print(&Report::heads(args.bandwidth))?;
            }
            print(&report.line())?;
        }
    }
    Ok(())
}

/// Measures one size, on a connection of its own, whose receives have that size.
fn measure(node: &Node, peer: SocketAddr, args: &Args, size: u64, last: bool) -> Result<Report> {
    let size =
        usize::try_from(size).map_err(|_| Failure::Usage(format!("size {size}: too large")))?;
    let (operation, name) = match args.operation {
        Test::Send => (Operation::Send, "send"),
        Test::Write => (Operation::Write, "write"),
        Test::Read => (Operation::Read, "read"),
    };
    let plan = Plan {
        operation,
        bandwidth: args.bandwidth,
        size,
        count: args.warmup.saturating_add(args.iterations),
        verify: args.verify,
        window: Plan::window_for(args.bandwidth, size),
    };
    let conn = &mut node.connect(peer, Service::Ping, plan.shape(), args.peer.common.wait())?;
    if size as u64 > conn.domain.max_msg_size() {
        let most = conn.domain.max_msg_size();
        return Err(Failure::Usage(format!(
            "size {size}: this device moves {most} bytes at most"
        )));
    }
    let region = plan.register(&conn.domain)?;
    conn.send(&plan.encode())?;
    let ready = conn.expect(Kind::Ready)?;
    let remote = RemoteMem {
        addr: ready.n[0],
        key: ready.n[1],
    };
    let mut report = Report {
        provider: conn.provider.clone(),
        operation: name,
        bytes: size as u64,
        iterations: args.iterations,
        verified: args.verify,
        latency: None,
        mib_per_s: None,
        ops_per_s: None,
    };
    if args.bandwidth {
        let time = stream(conn, &plan, &region, remote, args.warmup)?;
        report.mib_per_s = Some(mib_per_s(size as u64 * args.iterations, time));
        report.ops_per_s = Some(args.iterations as f64 / time.as_secs_f64().max(1e-9));
    } else {
        let samples = one_by_one(conn, &plan, &region, remote, args.warmup)?;
        // Half of a round trip is one direction; a one-sided operation has completed when it is
        // acknowledged.
        let parts = if operation == Operation::Send {
            2.0
        } else {
            1.0
        };
        report.latency = Latency::of(&samples, parts);
    }
    conn.send(&Msg::new(Kind::Done, &[u64::from(last)]))?;
    // Credit messages for the last messages may still arrive.
    let done = conn.expect_past(&[Kind::Credit], Kind::Done)?;
    if done.n[1] != 0 {
        let detail = format!("{} of {} messages of {size} bytes", done.n[1], done.n[0]);
        return Err(Failure::Corrupt {
            what: "ping",
            detail,
        });
    }
    Ok(report)
}

fn differs(plan: &Plan, number: u64) -> Failure {
    let detail = format!("operation {number} of {} bytes", plan.size);
    Failure::Corrupt {
        what: "ping",
        detail,
    }
}

/// Runs one operation after the other; returns the time of each.
fn one_by_one(
    conn: &mut Conn,
    plan: &Plan,
    region: &Region,
    remote: RemoteMem,
    warmup: u64,
) -> Result<Vec<Duration>> {
    let mut samples = Vec::new();
    for number in 0..plan.count {
        let sent = if plan.operation == Operation::Read {
            0
        } else {
            number
        };
        if plan.verify && plan.operation != Operation::Read {
            plan.fill(region, 0, number);
        }
        if plan.verify {
            plan.clear(region, 1);
        }
        let start = Instant::now();
        match plan.operation {
            Operation::Send => conn.ep.send(plan.segment(region, 0), 0),
            Operation::Write => conn.ep.write(plan.segment(region, 0), remote, 0),
            Operation::Read => conn.ep.read(plan.segment(region, 1), remote, 0),
        }
        .during("ping")?;
        let mut answer = None;
        let mut done = false;
        while !done || (plan.operation == Operation::Send && answer.is_none()) {
            match conn.take()? {
                Done::Operation(completion) => {
                    completion.ok().during("ping")?;
                    done = true;
                }
                Done::Message { slot, len } => answer = Some((slot, len)),
            }
        }
        let time = start.elapsed();
        if number >= warmup {
            samples.push(time);
        }
        let mut right = true;
        if let Some((slot, len)) = answer {
            let (slots, range) = conn.slot(slot, len);
            right = !plan.verify || slots.to_vec(range.start, len) == plan.pattern(sent);
            conn.repost(slot)?;
        } else if plan.verify {
            // Reads the written data back.
            if plan.operation == Operation::Write {
                conn.ep
                    .read(plan.segment(region, 1), remote, 0)
                    .during("read")?;
                conn.completion()?.ok().during("read back")?;
            }
            right = plan.matches(region, 1, sent);
        }
        if !right {
            return Err(differs(plan, number));
        }
    }
    Ok(samples)
}

/// Keeps as many operations outstanding as the window holds; returns the time of all after the
/// warm-up.
fn stream(
    conn: &mut Conn,
    plan: &Plan,
    region: &Region,
    remote: RemoteMem,
    warmup: u64,
) -> Result<Duration> {
    if plan.verify && plan.operation != Operation::Read {
        for slot in 0..plan.window {
            plan.fill(region, slot, slot as u64);
        }
    }
    // A message needs a receive at the peer, which reports receives that it posts again. One-sided
    // operations need none.
    let mut credit = plan.window as u64;
    let (mut posted, mut done) = (0, 0);
    let mut start = Instant::now();
    while done < plan.count {
        while posted < plan.count && posted - done < plan.window as u64 && credit > 0 {
            let slot = usize::try_from(posted).unwrap_or(0) % plan.window;
            let local = [plan.segment(region, slot)];
            let op = match plan.operation {
                Operation::Send => Op::send(&local),
                Operation::Write => Op::write(&local, remote),
                Operation::Read => Op::read(&local, remote),
            };
            conn.ep.post(&op.context(posted)).during("ping")?;
            posted += 1;
            if plan.operation == Operation::Send {
                credit -= 1;
            }
        }
        if credit == 0 && posted == done {
            credit = credit.saturating_add(conn.expect(Kind::Credit)?.n[0]);
            continue;
        }
        conn.completion()?.ok().during("ping")?;
        done += 1;
        while let Some(msg) = conn.recv_within(Duration::ZERO)? {
            if msg.kind != Kind::Credit {
                let got = format!("{:?}", msg.kind);
                return Err(Failure::Protocol { what: "ping", got });
            }
            credit = credit.saturating_add(msg.n[0]);
        }
        if done == warmup {
            start = Instant::now();
        }
    }
    let time = start.elapsed();
    if plan.verify && plan.operation != Operation::Send {
        // All operations use one range at the peer. After writes the range holds the last write;
        // every read returns the same bytes.
        let last = (plan.count - 1) % plan.window as u64;
        let (slot, number) = match plan.operation {
            Operation::Write => (0, last),
            _ => (usize::try_from(last).unwrap_or(0), 0),
        };
        if plan.operation == Operation::Write {
            plan.clear(region, slot);
            conn.ep
                .read(plan.segment(region, slot), remote, 0)
                .during("read")?;
            conn.completion()?.ok().during("read back")?;
        }
        if !plan.matches(region, slot, number) {
            return Err(differs(plan, plan.count - 1));
        }
    }
    Ok(time)
}
