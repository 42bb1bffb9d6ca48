// SPDX-License-Identifier: MIT OR Apache-2.0
//! Output of grants and the mode.

use std::time::Duration;

use kfauth::{time_text, Grant, Rule, State};

use crate::cmd::show::aligned;
use crate::cmd::{print, print_json};
use crate::error::Result;
use crate::stats::bytes;

/// The conditions of a grant, as text.
fn whom(grant: &Grant) -> String {
    let mut parts = Vec::new();
    let mut part = |name: &str, value: Option<u64>| {
        parts.extend(value.map(|value| format!("{name}={value}")));
    };
    part("uid", grant.uid.map(u64::from));
    part("gid", grant.gid.map(u64::from));
    part("cgroup", grant.cgroup);
    part("netns", grant.netns);
    part("process", grant.process);
    parts.join(" ")
}

/// Use and limit, as text.
fn use_of(used: String, limit: Option<String>) -> String {
    format!("{used}/{}", limit.unwrap_or_else(|| "-".to_owned()))
}

fn cells(grant: &Grant) -> [String; 9] {
    let (used, limits) = (&grant.used, &grant.limits);
    let end = match (grant.state, grant.left_ms) {
        (State::Revoked, _) => "revoked".to_owned(),
        (State::Expired, _) => "expired".to_owned(),
        (State::Valid, None) => "never".to_owned(),
        (State::Valid, Some(ms)) => time_text(Duration::from_secs(ms.div_ceil(1000))),
    };
    [
        grant.id.to_string(),
        grant.key.to_string(),
        whom(grant),
        grant.rights.join("+"),
        use_of(bytes(used.pinned), limits.pinned.map(bytes)),
        use_of(used.keys.to_string(), limits.keys.map(|n| n.to_string())),
        use_of(
            used.endpoints.to_string(),
            limits.endpoints.map(|n| n.to_string()),
        ),
        end,
        if grant.answered { "agent" } else { "installed" }.to_owned(),
    ]
}

/// Shows grants.
///
/// # Errors
///
/// If printing fails.
pub(super) fn grants(all: &[Grant], json: bool) -> Result<()> {
    if json {
        return print_json(&all);
    }
    if all.is_empty() {
        return print("no grants\n");
    }
    let heads = [
        "GRANT",
        "KEY",
        "FOR",
        "RIGHTS",
        "PINNED",
        "KEYS",
        "ENDPOINTS",
        "LEFT",
        "BY",
    ];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(all.iter().map(cells));
    print(&aligned(&rows))
}

/// Shows the authorization settings.
///
/// # Errors
///
/// If printing fails.
pub(super) fn rule(rule: &Rule, json: bool) -> Result<()> {
    if json {
        return print_json(rule);
    }
    let agent = match (rule.agent, rule.agent_pid) {
        (false, _) => "none".to_owned(),
        (true, Some(pid)) => format!("process {pid}"),
        (true, None) => "another pid namespace's".to_owned(),
    };
    let time = |ms: u32| time_text(Duration::from_millis(u64::from(ms)));
    print(&format!(
        "mode: {}\nagent: {agent}\ngrants: {}\nwaiting: {}\ntimeout: {}\ndeny: {}\nasks: {}\n",
        rule.mode,
        rule.grants,
        rule.waiting,
        time(rule.timeout_ms),
        time(rule.deny_ms),
        rule.asks,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kfauth::{Limits, Used};

    #[test]
    fn cells_of_a_grant_show_conditions_and_use() {
        let grant = Grant {
            id: 7,
            key: 2,
            uid: Some(0),
            gid: None,
            cgroup: Some(99),
            netns: None,
            process: None,
            rights: vec!["keys".to_owned()],
            limits: Limits {
                pinned: Some(8192),
                ..Limits::default()
            },
            used: Used {
                pinned: 4096,
                ..Used::default()
            },
            left_ms: Some(59_001),
            state: State::Valid,
            answered: true,
        };
        let wanted = [
            "7",
            "2",
            "uid=0 cgroup=99",
            "keys",
            "4 KiB/8 KiB",
            "0/-",
            "0/-",
            "1m",
            "agent",
        ];
        assert_eq!(cells(&grant), wanted.map(str::to_owned));
    }
}
