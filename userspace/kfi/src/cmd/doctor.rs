// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi doctor`: finds faults of the installation and of the path to a peer, and prints the
//! commands that mend them or show more.
//!
//! [`facts`] and [`path`] look at the machine, [`rules`] judges what they saw. The rules are pure, so
//! each of them has a test without a machine.

mod facts;
mod path;
mod rules;

use std::fmt::Write as _;
use std::time::Duration;

use super::{print, print_json};
use crate::cli::Doctor as Args;
use crate::error::{During, Failure, Result};
use crate::say::printable;
use rules::{Finding, Level};

/// Runs `kfi doctor`.
///
/// # Errors
///
/// - [`Failure::Unwell`] if there is a finding.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let facts = facts::gather();
    let mut findings = rules::host(&facts);
    if let Some(peer) = &args.peer {
        let peer = kfabric::resolve(peer, 0).during("resolve")?;
        let timeout = Duration::from_secs(args.timeout.clamp(1, 60));
        let seen = path::look(&facts, peer.ip(), timeout);
        findings.extend(rules::path(&facts, peer.ip(), &seen));
    }
    if json {
        print_json(&findings)?;
    } else {
        print(&table(&findings))?;
    }
    match findings
        .iter()
        .filter(|f| f.level >= Level::Warning)
        .count()
    {
        0 => Ok(()),
        count => Err(Failure::Unwell { count }),
    }
}

/// One line for each finding, and below the command that mends the finding or shows more.
fn table(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let (level, check) = (finding.level.name(), finding.check);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{level:<8} {check:<8} {}", printable(&finding.what));
        for (label, command) in [("mend", &finding.mend), ("check", &finding.check_command)] {
            if let Some(command) = command {
                let _ = writeln!(text, "{:17} {label}: {}", "", printable(command));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_shows_the_command_below_its_finding() {
        let findings = [
            Finding::ok("module", "kfabric is loaded"),
            Finding::error("memlock", "0 bytes").mended_by("ulimit -l unlimited"),
            Finding::unknown("mtu", "no answer").checked_by("ip link"),
        ];
        assert_eq!(
            table(&findings),
            "ok       module   kfabric is loaded\n\
             error    memlock  0 bytes\n\
             \x20                 mend: ulimit -l unlimited\n\
             unknown  mtu      no answer\n\
             \x20                 check: ip link\n"
        );
    }
}
