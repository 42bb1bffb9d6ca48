// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs of libfabric over the plug-in, beside libfabric's own providers.
//!
//! `interop/fi_bench.c` runs once for each provider, on node 1, which is both ends.

use super::profile::held;
use super::{build, Figure};
use crate::harness::{Ctx, Env};
use anyhow::{ensure, Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A provider of libfabric, and the kernel provider or device below it.
#[derive(Clone, Copy)]
struct Provider<'a> {
    name: &'a str,
    /// `msg` or `rdm`.
    kind: &'a str,
    domain: &'a str,
    address: &'a str,
    /// Value of the plug-in's parameter for rings.
    rings: &'a str,
}

/// A figure of the program: its case, the value and the unit.
type Line = (String, f64, String);

impl Provider<'_> {
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .args([self.name, self.kind, self.domain, self.address])
            .env("FI_PROVIDER_PATH", "/kfi/bin")
            .env("FI_KFABRIC_RINGS", self.rings)
            // ofi_rxm opens a queue for this many peers, by default for more than rxe's have room.
            .env("FI_UNIVERSE_SIZE", "4")
            // verbs keeps closed registrations for the next one of the same memory; the plug-in does not.
            .env("FI_MR_CACHE_MAX_COUNT", "0");
        command
    }

    fn measure(&self, program: &Path) -> Result<Vec<Line>> {
        let out = self
            .command(program)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("starting {}", program.display()))?;
        ensure!(out.status.success(), "{}: {out:?}", self.name);
        let text = String::from_utf8_lossy(&out.stdout);
        text.lines().map(parse).collect()
    }
}

/// Reads a line `VALUE UNIT CASE`.
fn parse(line: &str) -> Result<Line> {
    let mut words = line.splitn(3, ' ');
    let mut next = || words.next().with_context(|| format!("the line {line:?}"));
    let value = next()?.parse()?;
    let unit = next()?.to_owned();
    Ok((next()?.to_owned(), value, unit))
}

/// The ratio to the peer that is wanted for a figure of a unit: a time, or a rate.
fn wanted(unit: &str) -> &'static str {
    match unit {
        "us" => "<= 1.0",
        _ => ">= 1.0",
    }
}

/// Builds the program in the guest. Returns its path.
fn program() -> Result<PathBuf> {
    let source = include_str!("../../interop/fi_bench.c");
    build("fi_bench", source, &["-lfabric"])
}

/// Traces messages and writes of 8 B over kverbs and over libfabric's own verbs.
pub(super) fn profile(env: &Env) -> Result<()> {
    const ROUNDS: usize = 100;
    let program = program()?;
    for (name, column) in [("kfabric", "kverbs"), ("verbs", "verbs")] {
        let provider = Provider {
            name,
            kind: "msg",
            domain: &env.dev,
            address: &env.addr.to_string(),
            rings: "0",
        };
        let mut command = provider.command(&program);
        command.arg(ROUNDS.to_string());
        let traces = [format!("{column}-message"), format!("{column}-write")];
        held(&mut command, ROUNDS, &traces).context(column)?;
    }
    Ok(std::fs::remove_file(program)?)
}

/// Measures messages, one-sided transfers and registrations of the plug-in and of libfabric's own providers.
pub(super) fn run(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let program = program()?;
        let (dev, addr) = (ctx.env.dev.clone(), ctx.env.addr.to_string());
        let rxe = |name, kind| Provider {
            name,
            kind,
            domain: &dev,
            address: &addr,
            rings: "0",
        };
        let host = |name, kind| Provider {
            name,
            kind,
            domain: "shm",
            address: "127.0.0.1",
            rings: "0",
        };
        let with_rings = |name, kind| Provider {
            rings: "1",
            ..host(name, kind)
        };
        // libfabric's shm has reliable datagrams alone.
        let shm = Provider {
            domain: "-",
            address: "-",
            ..host("shm", "rdm")
        };
        let shm = shm.measure(&program)?;
        for (column, ours, peer) in [
            ("kverbs", rxe("kfabric", "msg"), Some(rxe("verbs", "msg"))),
            (
                "kverbs by rxm",
                rxe("kfabric;ofi_rxm", "rdm"),
                Some(rxe("verbs;ofi_rxm", "rdm")),
            ),
            ("kshm", host("kfabric", "msg"), None),
            ("kshm by rxm", host("kfabric;ofi_rxm", "rdm"), None),
            ("kshm, rings", with_rings("kfabric", "msg"), None),
            (
                "kshm by rxm, rings",
                with_rings("kfabric;ofi_rxm", "rdm"),
                None,
            ),
        ] {
            let ours = ours.measure(&program).context(column)?;
            let theirs = match peer {
                // Without its peer a figure stands alone.
                Some(peer) => peer.measure(&program).unwrap_or_else(|error| {
                    eprintln!("{column}: no peer: {error:#}");
                    Vec::new()
                }),
                None => shm.clone(),
            };
            for (case, value, unit) in ours {
                let same = theirs.iter().find(|(name, ..)| *name == case);
                Figure {
                    bench: "libfabric",
                    case: &format!("{column}: {case}"),
                    value,
                    unit: &unit,
                    peer: Some(peer.map_or("shm", |peer| peer.name)),
                    peer_value: same.map(|(_, value, _)| *value),
                    ratio: None,
                    wanted: same.map(|_| wanted(&unit)),
                }
                .print(ctx);
            }
        }
        let _ = std::fs::remove_file(program);
    }
    ctx.barrier("libfabric")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_wanted_below_the_peers_and_rates_above() {
        let units = ["us", "/s", "MiB/s"];
        assert_eq!(units.map(wanted), ["<= 1.0", ">= 1.0", ">= 1.0"]);
    }

    #[test]
    fn line_of_the_program_has_value_unit_and_case() {
        let line = parse("93.125 MiB/s write, 64 KiB, 16 at once").unwrap();
        let case = "write, 64 KiB, 16 at once".to_owned();
        assert_eq!(line, (case, 93.125, "MiB/s".to_owned()));
        assert!(parse("x us write").is_err() && parse("1 us").is_err());
    }
}
