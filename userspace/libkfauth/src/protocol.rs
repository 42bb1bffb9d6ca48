// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `kfi-authd` speaks on its socket: JSON, a request to a line, and a line for each answer, in
//! order.
//!
//! ```text
//! > "list"
//! < {"grants":[{"id":7,"key":1,"uid":1000,…}]}
//! > {"grant":{"key":{"name":"compute"},"whom":{"uid":1000,"cgroup":"/job_17"},"lifetime":"8h"}}
//! < {"grant":8}
//! > {"revoke":{"grants":[8]}}
//! < {"revoked":1}
//! > {"check":{"key":{"name":"compute"},"pid":4711}}
//! < {"verdict":{"allowed":false,"why":"no job of the policy is about it"}}
//! > {"mode":"enforce"}
//! < {"error":{"what":"the mode is root's","errno":"EPERM"}}
//! ```
//!
//! Requests come from root and from the members of a group that the policy names; others cannot
//! connect (`EACCES`). No answer has a key's bytes in it.

use serde::{Deserialize, Serialize, Serializer};
use zeroize::Zeroizing;

use crate::{AuthKey, Grant, Limits, Mode, Rule};

/// Where the socket is, if nothing else is said.
pub const SOCKET: &str = "/run/kfi-authd/socket";
/// Bytes of a request with its line end, at most.
pub const LINE_MAX: usize = 64 << 10;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Request {
    /// Installs a grant: [`Answer::Grant`].
    Grant(GrantRequest),
    /// Changes a grant's limits or its end: [`Answer::Changed`].
    Change(ChangeRequest),
    /// Takes grants back: [`Answer::Revoked`].
    Revoke {
        /// Their numbers. One that is over is passed over.
        grants: Vec<u64>,
    },
    /// Lists all grants: [`Answer::Grants`].
    List,
    /// What the policy says of a process, without asking for anything: [`Answer::Verdict`].
    Check(CheckRequest),
    /// The mode, and who decides: [`Answer::Rule`].
    Rule,
    /// Sets the mode, for root: [`Answer::Rule`].
    Mode(Mode),
}

/// An auth key, by the policy's name or by its bytes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyRef {
    /// What the policy calls it.
    Name(String),
    /// Its bytes, as hexadecimal digits.
    #[serde(serialize_with = "digits")]
    Hex(AuthKey),
}

/// A grant to install.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GrantRequest {
    /// The auth key.
    pub key: KeyRef,
    /// For whom.
    pub whom: WhomRequest,
    /// Names of rights; none: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rights: Vec<String>,
    /// How much.
    #[serde(default)]
    pub limits: Limits,
    /// For how long, such as `8h`; not said: without end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<String>,
}

/// For whom a grant is: all that is said must be true, and something must be said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct WhomRequest {
    /// The effective uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The effective gid, or a supplementary group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// The control group, or one above: its path from the hierarchy's root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The network namespace: a file that stands for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// The process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRef>,
}

/// A process, by its number and by what keeps the number from meaning another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ProcessRef {
    /// Its number, in the daemon's pid namespace.
    pub pid: u32,
    /// [`Process::id`](crate::Process::id): the inode number of its pidfd.
    pub id: u64,
}

/// A change of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ChangeRequest {
    /// Its number.
    pub grant: u64,
    /// All its limits anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// For how long from now on, such as `8h`, or `unlimited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<String>,
}

/// A question about the policy.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CheckRequest {
    /// The auth key.
    pub key: KeyRef,
    /// The process.
    pub pid: u32,
    /// Names of rights; none: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rights: Vec<String>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Answer {
    /// The number of the grant that was installed.
    Grant(u64),
    /// The number of the grant that was changed.
    Changed(u64),
    /// How many grants were taken back.
    Revoked(u64),
    /// All grants.
    Grants(Vec<Grant>),
    /// What the policy says.
    Verdict(Verdict),
    /// The mode, and who decides.
    Rule(Rule),
    /// It was not done.
    Error(Refusal),
}

/// What a policy says of a process and an auth key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether it may.
    pub allowed: bool,
    /// Which part of the policy says so, and why.
    pub why: String,
    /// With a yes: how much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// With a yes: for how long, such as `1h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<String>,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// In words.
    pub what: String,
    /// Name of the errno, such as `EBUSY`; empty where there is none.
    #[serde(default)]
    pub errno: String,
}

fn digits<S: Serializer>(key: &AuthKey, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&key.expose_hex())
}

/// A request or an answer as a line.
///
/// # Errors
///
/// None that these types can have.
pub fn line(value: &impl Serialize) -> serde_json::Result<Zeroizing<Vec<u8>>> {
    // Room from the start: a vector that grows leaves copies of a key behind.
    let mut line = Zeroizing::new(Vec::with_capacity(4096));
    serde_json::to_writer(&mut *line, value)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Request {
        serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn the_documented_lines_are_understood() {
        assert!(matches!(request("\"list\""), Request::List));
        assert!(matches!(request("\"rule\""), Request::Rule));
        assert!(matches!(
            request("{\"mode\":\"enforce\"}"),
            Request::Mode(Mode::Enforce)
        ));
        let text = "{\"grant\":{\"key\":{\"name\":\"compute\"},\"whom\":{\"uid\":1000,\"cgroup\":\"/job_17\"},\"lifetime\":\"8h\"}}";
        let Request::Grant(grant) = request(text) else {
            panic!("no grant")
        };
        assert_eq!(grant.whom.uid, Some(1000));
        assert!(matches!(grant.key, KeyRef::Name(name) if name == "compute"));
        for wrong in [
            "{\"grant\":{\"key\":{\"name\":\"x\"},\"whom\":{\"user\":1}}}",
            "{\"frobnicate\":{}}",
            "{\"mode\":\"off\"}",
            "{\"revoke\":{}}",
        ] {
            assert!(serde_json::from_str::<Request>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_go_there_and_do_not_come_back() {
        let key = AuthKey::from_hex("5ec2e75ec2e7").unwrap();
        let ask = Request::Check(CheckRequest {
            key: KeyRef::Hex(key.clone()),
            pid: 1,
            rights: Vec::new(),
        });
        assert!(!format!("{ask:?}").contains("5ec2"));
        let line = line(&ask).unwrap();
        assert_eq!(line.last(), Some(&b'\n'));
        let Request::Check(back) = serde_json::from_slice(&line).unwrap() else {
            panic!("no check")
        };
        assert!(matches!(back.key, KeyRef::Hex(same) if same == key));
        let wrong = "{\"check\":{\"key\":{\"hex\":\"5ec2e75ec2zz\"},\"pid\":1}}";
        let said = serde_json::from_str::<Request>(wrong)
            .unwrap_err()
            .to_string();
        assert!(!said.contains("5ec2"), "{said}");
    }
}
