// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cost of an operation to kernel consumers: through the kfi API and through the Rust API, beside
//! the same loop through verbs alone. Modules measure; each connects the device to itself.

use super::Figure;
use crate::harness::{Ctx, Status};
use crate::tests::kernel::{results, results_with};
use anyhow::{ensure, Context, Result};
use std::collections::BTreeMap;

/// Kind, bytes, and number of outstanding operations.
type Case = (String, usize, usize);

/// Measured APIs: the modules' names, and the names in the output.
const OURS: [(&str, &str); 2] = [("kfi", "C"), ("rust", "Rust")];
/// Peers: the modules' names, the names in the output, and the wanted ratio.
const PEERS: [(&str, &str, Option<&str>); 2] = [
    ("core", "ib_post_send, ib_alloc_cq", Some("<= 1.05")),
    ("raw", "ib_post_send, ib_poll_cq", None),
];

/// Parses a note: the way, the case, and nanoseconds per operation.
fn read(note: &str) -> Option<(String, Case, f64)> {
    let words: Vec<_> = note.strip_prefix("loop ")?.split(' ').collect();
    let [way, kind, len, depth, nanos, count] = words[..] else {
        return None;
    };
    let case = (kind.to_owned(), len.parse().ok()?, depth.parse().ok()?);
    let (nanos, count): (f64, f64) = (nanos.parse().ok()?, count.parse().ok()?);
    Some((way.to_owned(), case, nanos / count))
}

/// Returns a size as text.
fn size(len: usize) -> String {
    match len {
        1024.. => format!("{} KiB", len >> 10),
        _ => format!("{len} B"),
    }
}

fn table(ctx: &Ctx) -> Result<()> {
    let mut told = results("kfi_bench_c")?;
    told.extend(results_with("kfi_bench_rust", "loops=1")?);
    let mut cases: BTreeMap<Case, BTreeMap<String, f64>> = BTreeMap::new();
    for part in told {
        ensure!(part.status == Status::Ok, "{}: {}", part.name, part.detail);
        for (way, case, nanos) in part.notes.iter().filter_map(|note| read(note)) {
            cases.entry(case).or_default().insert(way, nanos);
        }
    }
    ensure!(!cases.is_empty(), "no figure");
    for ((kind, len, depth), ways) in &cases {
        let of = |way: &str| ways.get(way).copied().with_context(|| way.to_owned());
        for (way, words) in OURS {
            for (peer, name, wanted) in PEERS {
                Figure {
                    bench: "kernel",
                    case: &format!("{kind} {}, {depth} at once, {words}", size(*len)),
                    value: of(way)?,
                    unit: "ns",
                    peer: Some(name),
                    peer_value: Some(of(peer)?),
                    ratio: None,
                    wanted,
                }
                .print(ctx);
            }
        }
    }
    Ok(())
}

/// Runs the whole benchmark.
pub(super) fn run(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        table(ctx)?;
    }
    ctx.barrier("kernel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read() {
        let case = ("write".to_owned(), 4096, 16);
        assert_eq!(
            read("loop raw write 4096 16 5000 100"),
            Some(("raw".to_owned(), case, 50.0))
        );
        assert_eq!(read("loop raw write 4096 16 5000"), None);
        assert_eq!(read("keys 1 2 3 4 5"), None);
    }
}
